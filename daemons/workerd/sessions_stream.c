#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine_pack.h"
#include "sessions_internal.h"
#include "wire/frame.h"
#include "wire/wire.h"

#define DT_NODE_STREAM_METHOD      "/dtorch.v1.Worker/Session"
#define DT_NODE_STREAM_MESSAGE_MAX ((1u << 20) + 4096u) /* a chunk and its fields */
#define DT_NODE_STREAM_QUEUE_MAX   (16u << 20)
#define DT_NODE_AWAITED_BYTES      4096u /* a frame up to this is no part of a long run */
#define DT_NODE_FRAME_TAG          0x0a  /* field 1 of WorkerSessionDown, bytes */
#define DT_NODE_CHUNK_TAG          0x1a  /* field 3, a BulkChunk */

/* ---- what comes down ---- */

static void stream_fail(dt_node_instance_t *instance, const char *text)
{
    dt_log_warn("a session's stream from the controller is wrong",
                DT_LOG_U("session", instance->session), DT_LOG_S("reason", text));
    dt_rpc_stream_cancel(instance->stream->rpc, DT_ERR_INVALID, text);
}

/* Where a frame begins and ends is ours to know; its engines check the rest. */
static void take_frame(dt_node_instance_t *instance, const uint8_t *frame, size_t size)
{
    uint32_t magic;
    uint64_t first;
    uint32_t count;
    uint32_t bad = 0;
    if (size < DT_FRAME_HEADER_BYTES || size > DT_FRAME_BYTES_MAX) {
        stream_fail(instance, "a frame's size");
        return;
    }
    memcpy(&magic, frame, sizeof magic);
    memcpy(&first, frame + 8, sizeof first);
    memcpy(&count, frame + 20, sizeof count);
    if (magic != DT_FRAME_MAGIC || first == 0 || count == 0 || first + count < first) {
        stream_fail(instance, "not a frame");
        return;
    }
    if (instance->received > 0 && first > instance->received + 1) {
        stream_fail(instance, "records are missing");
        return;
    }
    bool is_awaited = size <= DT_NODE_AWAITED_BYTES && dt_ring_is_drained(&instance->frames);
    dt_status_t status = dt_ring_write(&instance->frames, DT_CHANNEL_FRAME, frame, size, &bad);
    if (status == DT_ERR_PEER)
        dt_node_member_misbehaves(instance, bad, true);
    else if (status != DT_OK) {
        stream_fail(instance, "more frames than its engines have room for");
        return;
    }
    if (first + count - 1 > instance->received)
        instance->received = first + count - 1;
    instance->owner->stats.frames++;
    instance->owner->stats.frame_bytes += size;
    if (is_awaited && status == DT_OK)
        dt_node_up_look(instance);
}

/* The envelope of a frame is read by hand, so that its bytes are copied once: into the ring. */
static bool take_plain_frame(dt_node_instance_t *instance, const uint8_t *data, size_t size)
{
    dt_cursor_t cursor = {data + 1, data + size, 0};
    if (size < 2 || data[0] != DT_NODE_FRAME_TAG)
        return false;
    uint64_t length = dt_cursor_varint(&cursor);
    if (cursor.error || length != dt_cursor_left(&cursor))
        return false;
    take_frame(instance, cursor.at, (size_t)length);
    return true;
}

static void take_query(dt_node_instance_t *instance, const Dtorch__V1__SigQuery *query)
{
    dt_node_sessions_t *sessions = instance->owner;
    dt_node_member_t *member = dt_node_member_of(instance, query->vdev);
    dt_engine_door_t *door = member && member->host
                                 ? dt_engines_door(sessions->options.engines, member->host->engine)
                                 : NULL;
    uint8_t *bytes;
    size_t size = DT_CHANNEL_QUERY_HEAD + query->signature.len;
    for (size_t i = 0; i < query->n_ahead; i++)
        size += query->ahead[i].len;
    if (door && dt_ring_reserve(&door->queries, size, &bytes, NULL) == DT_OK) {
        memset(bytes, 0, DT_CHANNEL_QUERY_HEAD);
        memcpy(bytes, &query->query, sizeof query->query);
        memcpy(bytes + sizeof query->query, &query->vdev, sizeof query->vdev);
        uint8_t *to = bytes + DT_CHANNEL_QUERY_HEAD;
        memcpy(to, query->signature.data, query->signature.len);
        to += query->signature.len;
        for (size_t i = 0; i < query->n_ahead; to += query->ahead[i++].len)
            memcpy(to, query->ahead[i].data, query->ahead[i].len);
        dt_ring_commit(&door->queries, size, instance->number);
        return;
    }
    /* Nobody can be asked now: whoever wants to know executes it. */
    Dtorch__V1__WorkerSessionUp up;
    Dtorch__V1__SigAnswer answer;
    dtorch__v1__worker_session_up__init(&up);
    dtorch__v1__sig_answer__init(&answer);
    answer.query = query->query;
    answer.needs_execution = true;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_ANSWER;
    up.answer = &answer;
    (void)dt_node_up_pack(instance, &up);
    dt_node_up_pump(instance);
}

/* A chunk is read by hand too: its bytes go into the ring and nowhere else. */
static bool take_plain_chunk(dt_node_instance_t *instance, const uint8_t *data, size_t size)
{
    dt_cursor_t cursor = {data + 1, data + size, 0};
    dt_node_chunk_t chunk;
    if (size < 2 || data[0] != DT_NODE_CHUNK_TAG)
        return false;
    if (dt_cursor_varint(&cursor) != dt_cursor_left(&cursor))
        return false;
    if (!dt_node_chunk_read(cursor.at, dt_cursor_left(&cursor), &chunk)) {
        stream_fail(instance, "a malformed chunk");
        return true;
    }
    bool is_restart = chunk.head.transfer == 0 && (chunk.head.flags & DT_CHANNEL_CHUNK_RESTART);
    instance->has_relay |= !is_restart || chunk.is_done;
    if (is_restart || (instance->has_withheld && instance->has_relay)) {
        if (!instance->data) /* else nothing goes by the controller */
            dt_node_bulk_restart(instance);
        instance->has_withheld &= !instance->has_relay;
    }
    if (is_restart)
        return true;
    chunk.head.flags &= ~(uint32_t)DT_CHANNEL_CHUNK_PLACED; /* windows are not the controller's */
    if (chunk.size == 0 && !(chunk.head.flags & DT_CHANNEL_CHUNK_ERROR))
        chunk.head.flags |= DT_CHANNEL_CHUNK_ACK;
    instance->owner->stats.bulk[DT_NODE_BULK_RELAYED].up_bytes += chunk.size;
    /* Without room it was a sender over its bound; it sends again what is not received. */
    (void)!dt_node_bulk_write(instance, &chunk);
    return true;
}

static void take(dt_node_instance_t *instance, const Dtorch__V1__WorkerSessionDown *down)
{
    uint32_t limit;
    switch (down->kind_case) {
    case DTORCH__V1__WORKER_SESSION_DOWN__KIND_FRAME:
        take_frame(instance, down->frame.data, down->frame.len);
        return;
    case DTORCH__V1__WORKER_SESSION_DOWN__KIND_QUERY:
        take_query(instance, down->query);
        return;
    case DTORCH__V1__WORKER_SESSION_DOWN__KIND_LIST:
        limit = down->list->limit;
        if (dt_ring_write(&instance->frames, DT_CHANNEL_LIST, &limit, sizeof limit, NULL) != DT_OK)
            stream_fail(instance, "more questions than its engines have room for");
        return;
    case DTORCH__V1__WORKER_SESSION_DOWN__KIND_TRACE:
        limit = down->trace->duration_ms;
        if (dt_ring_write(&instance->frames, DT_CHANNEL_TRACE, &limit, sizeof limit, NULL) != DT_OK)
            stream_fail(instance, "more questions than its engines have room for");
        return;
    case DTORCH__V1__WORKER_SESSION_DOWN__KIND_UP_RECEIVED:
        dt_node_up_received(instance, down->up_received);
        return;
    case DTORCH__V1__WORKER_SESSION_DOWN__KIND_PEER:
        dt_node_links_door(instance, down->peer);
        return;
    case DTORCH__V1__WORKER_SESSION_DOWN__KIND_CLOSE:
        dt_node_instance_end(instance, "the controller closed it");
        return;
    default:
        return; /* of a newer minor version */
    }
}

/* ---- the stream ---- */

static void on_open(dt_rpc_stream_t *rpc)
{
    dt_node_stream_t *stream = dt_rpc_stream_arg(rpc);
    dt_node_instance_t *instance = stream->instance;
    uint8_t *bytes;
    size_t size;
    Dtorch__V1__WorkerSessionUp up;
    Dtorch__V1__WorkerSessionHello hello;
    if (!instance)
        return;
    dtorch__v1__worker_session_up__init(&up);
    dtorch__v1__worker_session_hello__init(&hello);
    hello.session = instance->session;
    hello.epoch = instance->epoch;
    hello.key.data = instance->key;
    hello.key.len = sizeof instance->key;
    hello.received = instance->received;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    if (dt_wire_pack(&up.base, &stream->owner->arena, &bytes, &size) != DT_OK ||
        dt_rpc_stream_send(rpc, bytes, size) != DT_OK)
        dt_rpc_stream_cancel(rpc, DT_ERR_NOMEM, "no memory for a hello");
    dt_arena_reset(&stream->owner->arena);
}

static void on_message(dt_rpc_stream_t *rpc, const uint8_t *data, size_t size)
{
    dt_node_stream_t *stream = dt_rpc_stream_arg(rpc);
    dt_node_instance_t *instance = stream->instance;
    dt_node_sessions_t *sessions = stream->owner;
    Dtorch__V1__WorkerSessionDown *down;
    dt_error_t err = {0};
    if (!instance || take_plain_frame(instance, data, size) ||
        take_plain_chunk(instance, data, size))
        return;
    if (DT_WIRE_UNPACK(dtorch__v1__worker_session_down, &sessions->arena, data, size, &down,
                       &err) == DT_OK)
        take(instance, down);
    else
        stream_fail(instance, err.text);
    dt_arena_reset(&sessions->arena);
}

static void on_drained(dt_rpc_stream_t *rpc)
{
    dt_node_stream_t *stream = dt_rpc_stream_arg(rpc);
    if (stream->instance)
        dt_node_up_pump(stream->instance);
}

static int64_t redial_wait(uint32_t dials)
{
    uint32_t doublings = dials < 8 ? dials : 8;
    int64_t wait_ns = DT_NODE_SESSIONS_REDIAL_MIN << doublings;
    return wait_ns < DT_NODE_SESSIONS_REDIAL_MAX ? wait_ns : DT_NODE_SESSIONS_REDIAL_MAX;
}

static void on_closed(dt_rpc_stream_t *rpc, const dt_error_t *why)
{
    dt_node_stream_t *stream = dt_rpc_stream_arg(rpc);
    dt_node_instance_t *instance = stream->instance;
    dt_node_sessions_t *sessions = stream->owner;
    dt_list_remove(&stream->link);
    free(stream);
    if (instance) {
        instance->stream = NULL;
        dt_log_debug("a session's stream ended", DT_LOG_U("session", instance->session),
                     DT_LOG_E(why));
        if (why->code == DT_ERR_NOT_FOUND)
            dt_node_instance_end(instance, why->text);
        else
            instance->redial_ns = dt_loop_now_ns() + redial_wait(instance->dials++);
    }
    dt_node_schedule(sessions);
}

static const dt_rpc_stream_ops_t stream_ops = {
    .open = on_open, .message = on_message, .drained = on_drained, .closed = on_closed};

void dt_node_stream_leave(dt_node_instance_t *instance, const char *why)
{
    if (!instance->stream)
        return;
    instance->stream->instance = NULL;
    dt_rpc_stream_close(instance->stream->rpc, DT_OK, why);
    instance->stream = NULL;
}

void dt_node_stream_dial(dt_node_instance_t *instance)
{
    dt_node_sessions_t *sessions = instance->owner;
    const char *address = sessions->options.address(sessions->options.arg);
    dt_error_t err = {0};
    instance->redial_ns = 0;
    if (instance->stream || sessions->is_stopping)
        return;
    dt_node_stream_t *stream = address ? calloc(1, sizeof *stream) : NULL;
    if (!stream) {
        instance->redial_ns = dt_loop_now_ns() + redial_wait(instance->dials++);
        return;
    }
    stream->owner = sessions;
    stream->instance = instance;
    const dt_rpc_dial_t dial = {
        .address = address,
        .tls = address[0] == '/' ? NULL : sessions->options.tls(sessions->options.arg),
        .method = DT_NODE_STREAM_METHOD,
        .ops = &stream_ops,
        .arg = stream,
        .message_bytes_max = DT_NODE_STREAM_MESSAGE_MAX,
        .queue_bytes_max = DT_NODE_STREAM_QUEUE_MAX,
    };
    if (dt_rpc_dial(sessions->options.rpc, &dial, &stream->rpc, &err) != DT_OK) {
        dt_log_warn("a session's stream cannot be dialled", DT_LOG_U("session", instance->session),
                    DT_LOG_E(&err));
        free(stream);
        instance->redial_ns = dt_loop_now_ns() + redial_wait(instance->dials++);
        return;
    }
    instance->stream = stream;
    dt_list_push(&sessions->streams, &stream->link);
}
