#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine_pack.h"
#include "sessions_internal.h"

#define DT_NODE_TOGETHER_BYTES 16384u /* of small messages that wait for each other */
#define DT_NODE_LOOK_NS        INT64_C(40000)

bool dt_node_up_keep(dt_node_instance_t *instance, const uint8_t *bytes, size_t size)
{
    dt_node_message_t *message = malloc(sizeof *message + size);
    if (!message)
        return false;
    message->number = ++instance->up_last;
    message->size = (uint32_t)size;
    memcpy(message->bytes, bytes, size);
    dt_list_push(&instance->kept, &message->link);
    instance->kept_bytes += size;
    instance->owner->stats.messages++;
    instance->owner->stats.message_bytes += size;
    return true;
}

bool dt_node_up_pack(dt_node_instance_t *instance, const Dtorch__V1__WorkerSessionUp *up)
{
    size_t size = dtorch__v1__worker_session_up__get_packed_size(up);
    uint8_t *bytes = malloc(size ? size : 1);
    if (!bytes)
        return false;
    (void)dtorch__v1__worker_session_up__pack(up, bytes);
    bool is_kept = dt_node_up_keep(instance, bytes, size);
    free(bytes);
    return is_kept;
}

static bool can_send(const dt_node_instance_t *instance)
{
    return instance->stream && instance->stream->is_heard &&
           dt_rpc_stream_queued(instance->stream->rpc) < DT_NODE_SESSIONS_QUEUE_MAX;
}

/* Give what is kept and not sent to the stream. */
static void send_kept(dt_node_instance_t *instance)
{
    if (instance->up_sent == instance->up_last)
        return;
    dt_list_t *at = instance->kept.prev;
    /* Few are unsent, so they are found from the end. */
    while (at != &instance->kept &&
           DT_CONTAINER_OF(at, dt_node_message_t, link)->number > instance->up_sent)
        at = at->prev;
    if (!can_send(instance))
        return;
    dt_rpc_stream_cork(instance->stream->rpc);
    for (at = at->next; at != &instance->kept && can_send(instance); at = at->next) {
        const dt_node_message_t *message = DT_CONTAINER_OF(at, dt_node_message_t, link);
        if (dt_rpc_stream_send(instance->stream->rpc, message->bytes, message->size) != DT_OK)
            break; /* it is ending; `closed` comes */
        instance->up_sent = message->number;
    }
    dt_rpc_stream_uncork(instance->stream->rpc);
}

void dt_node_up_received(dt_node_instance_t *instance, uint64_t number)
{
    while (!dt_list_is_empty(&instance->kept)) {
        dt_node_message_t *message = DT_CONTAINER_OF(instance->kept.next, dt_node_message_t, link);
        if (message->number > number)
            break;
        instance->kept_bytes -= message->size;
        free(DT_CONTAINER_OF(dt_list_pop(&instance->kept), dt_node_message_t, link));
    }
    if (instance->stream && !instance->stream->is_heard) {
        instance->stream->is_heard = true;
        instance->up_sent = number < instance->up_last ? number : instance->up_last;
        instance->dials = 0;
    }
    dt_node_up_pump(instance);
}

/* Chunks go to the data connection, if there is one; the controller hears of their ends. Before the
 * program has any way for them, bytes would only be thrown away by the controller: it asks for them
 * when it has one. */
static bool take_chunk(dt_node_instance_t *instance, const dt_ring_message_t *message)
{
    dt_cursor_t cursor = {message->bytes + 1, message->bytes + message->size, 0};
    dt_node_chunk_t chunk;
    if (message->size < 2 || message->bytes[0] != (DT_PACK_UP_CHUNK << 3 | 2) ||
        dt_cursor_varint(&cursor) != dt_cursor_left(&cursor) ||
        !dt_node_chunk_read(cursor.at, dt_cursor_left(&cursor), &chunk))
        return false;
    if (dt_node_data_take(instance, &chunk))
        return !chunk.is_done && !chunk.error;
    if (chunk.size > 0 && !instance->has_relay) {
        instance->has_withheld = true;
        return true;
    }
    instance->owner->stats.bulk[DT_NODE_BULK_RELAYED].down_bytes += chunk.size;
    return false;
}

/* Take one message of an engine's ring. AGAIN: none. */
static dt_status_t take(dt_node_instance_t *instance, dt_node_member_t *member)
{
    dt_ring_message_t message;
    DT_TRY(dt_ring_peek(&member->up, &message));
    if (message.kind == DT_CHANNEL_UP && !take_chunk(instance, &message) &&
        !dt_node_up_keep(instance, message.bytes, message.size))
        return DT_ERR_NOMEM;
    dt_ring_pass(&member->up);
    return DT_OK;
}

/* A ring that cannot be is an engine that must go; its end is told like any other. */
static void engine_misbehaves(dt_node_instance_t *instance, const dt_node_member_t *member)
{
    dt_log_err("an engine broke its ring and is ended", DT_LOG_U("engine", member->host->engine));
    dt_engines_kill(instance->owner->options.engines, member->host->engine);
}

/* Move what one engine wrote. Small messages that lie together leave in one write. */
static void pump_member(dt_node_instance_t *instance, dt_node_member_t *member, uint64_t *moved)
{
    uint64_t unsent = 0;
    while (member->host && instance->kept_bytes < DT_NODE_SESSIONS_KEEP_BYTES) {
        uint64_t before = instance->kept_bytes;
        dt_status_t status =
            *moved < DT_NODE_SESSIONS_TURN_BYTES ? take(instance, member) : DT_ERR_LIMIT;
        if (status == DT_ERR_LIMIT) { /* others' turn; ring our own bell */
            dt_engine_door_t *door =
                dt_engines_door(instance->owner->options.engines, member->host->engine);
            dt_ring_wake(door ? door->bell : -1);
            return;
        }
        if (status == DT_ERR_PEER)
            engine_misbehaves(instance, member);
        if (status == DT_ERR_AGAIN && dt_ring_prepare_sleep(&member->up))
            continue;
        if (status != DT_OK)
            return;
        *moved += instance->kept_bytes - before;
        unsent += instance->kept_bytes - before;
        if (unsent >= DT_NODE_TOGETHER_BYTES) {
            send_kept(instance);
            unsent = 0;
        }
    }
}

void dt_node_up_pump(dt_node_instance_t *instance)
{
    uint64_t moved = 0;
    send_kept(instance);
    for (uint32_t i = 0; i < instance->member_count; i++) {
        pump_member(instance, &instance->members[i], &moved);
        send_kept(instance);
    }
}

/* Whether an engine has answered. */
static bool has_answer(const dt_node_instance_t *instance)
{
    for (uint32_t i = 0; i < instance->member_count; i++) {
        dt_ring_message_t message;
        if (instance->members[i].host && dt_ring_peek(&instance->members[i].up, &message) == DT_OK)
            return true;
    }
    return false;
}

void dt_node_up_look(dt_node_instance_t *instance)
{
    if (!dt_look_begin(&instance->look))
        return;
    for (uint32_t i = 0; i < instance->member_count; i++)
        if (instance->members[i].host)
            dt_ring_cancel_sleep(&instance->members[i].up);
    int64_t until_ns = dt_loop_now_ns() + DT_NODE_LOOK_NS;
    (void)sched_yield(); /* to the engine, if it is to run on this processor */
    bool has_one = has_answer(instance);
    if (!has_one)
        dt_rpc_catch_up(instance->owner->options.rpc); /* it needs a while to wake */
    int64_t now_ns = dt_loop_now_ns();
    while (!has_one && now_ns < until_ns) {
        (void)sched_yield();
        has_one = has_answer(instance);
        now_ns = dt_loop_now_ns();
    }
    /* Found late, since others had the processor: who sleeps is woken sooner than that. */
    dt_look_end(&instance->look, has_one && now_ns < until_ns);
    dt_node_up_pump(instance);
}

void dt_node_up_drain(dt_node_instance_t *instance, dt_node_member_t *member)
{
    while (take(instance, member) == DT_OK)
        ;
    send_kept(instance);
}

void dt_node_up_free(dt_node_instance_t *instance)
{
    dt_list_t *at;
    while ((at = dt_list_pop(&instance->kept)) != NULL)
        free(DT_CONTAINER_OF(at, dt_node_message_t, link));
    instance->kept_bytes = 0;
}
