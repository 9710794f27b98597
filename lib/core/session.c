/* Life of the session machine, its streams, its actions, its time. */
#include "core/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/session_internal.h"

#define SESSIONS_LIMIT 65536u
#define QUEUE_CLIENT   (4u << 20)
#define QUEUE_BULK     (24u << 20) /* 8 MiB of transfers each way, and the windows of frames */

/* ---- life ---- */

static dt_status_t check_options(const dt_sessions_options_t *options, dt_error_t *err)
{
    if (options->struct_size < sizeof *options || !options->random || !options->hash ||
        options->sessions_max == 0 || options->sessions_max > SESSIONS_LIMIT ||
        options->client_window_bytes < DT_FRAME_BYTES_MAX ||
        options->node_window_bytes < DT_SESSION_ACK_BYTES || options->node_window_records == 0 ||
        options->tensors_max == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "options of sessions out of bounds");
    return DT_OK;
}

dt_status_t dt_sessions_create(const dt_sessions_options_t *options, int64_t now_ns,
                               dt_sessions_t **ret_sessions, dt_error_t *err)
{
    dt_sessions_t *sessions;
    DT_TRY(check_options(options, err));
    sessions = calloc(1, sizeof *sessions);
    if (!sessions)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    sessions->fates = malloc(DT_SESSION_RECORDS_MAX);
    sessions->scratch = malloc(DT_SESSION_SCRATCH_BYTES);
    dt_list_init(&sessions->all);
    dt_list_init(&sessions->traces);
    dt_list_init(&sessions->streams);
    dt_list_init(&sessions->acks);
    dt_list_init(&sessions->asks);
    dt_list_init(&sessions->actions);
    dt_arena_init(&sessions->arena, DT_SESSION_ARENA_MAX);
    dt_arena_init(&sessions->event_arena, DT_SESSION_ARENA_MAX);
    dt_arena_init(&sessions->sig_arena, DT_SESSION_ARENA_MAX);
    sessions->options = *options;
    (void)dt_str_copy(sessions->build, sizeof sessions->build, options->build);
    sessions->options.build = sessions->build;
    dt_lease_clock_init(&sessions->clock, &options->rules, now_ns);
    sessions->now_ns = sessions->next_beat_ns = now_ns;
    if (!sessions->fates || !sessions->scratch) {
        dt_sessions_free(sessions);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    }
    *ret_sessions = sessions;
    return DT_OK;
}

static void queued_free(dt_session_queued_t *queued)
{
    if (!queued)
        return;
    dt_session_packet_unref(queued->packet);
    free(queued);
}

static void stream_remove(dt_sessions_t *sessions, dt_session_stream_t *stream)
{
    dt_session_stream_t **at = &sessions->stream_buckets[stream->id % DT_SESSION_BUCKETS];
    while (*at != stream)
        at = &(*at)->next_by_id;
    *at = stream->next_by_id;
    dt_list_remove(&stream->list);
    dt_list_remove(&stream->bulk_list);
    sessions->stream_count--;
    free(stream->why_not);
    free(stream);
}

void dt_sessions_free(dt_sessions_t *sessions)
{
    if (!sessions)
        return;
    sessions->is_stopping = true;
    while (!dt_list_is_empty(&sessions->all))
        dt_session_finish(sessions, DT_CONTAINER_OF(sessions->all.next, dt_session_t, list),
                          "the controller stops");
    dt_sessions_traces_free(sessions);
    while (!dt_list_is_empty(&sessions->streams))
        stream_remove(sessions, DT_CONTAINER_OF(sessions->streams.next, dt_session_stream_t, list));
    while (!dt_list_is_empty(&sessions->asks))
        dt_session_ask_free(sessions, DT_CONTAINER_OF(sessions->asks.next, dt_session_ask_t, list));
    while (!dt_list_is_empty(&sessions->actions))
        queued_free(DT_CONTAINER_OF(dt_list_pop(&sessions->actions), dt_session_queued_t, list));
    queued_free(sessions->polled);
    for (uint32_t i = 0; i < sessions->place_count; i++)
        dt_session_place_free(sessions->places[i]);
    free(sessions->places);
    dt_arena_fini(&sessions->arena);
    dt_arena_fini(&sessions->event_arena);
    dt_arena_fini(&sessions->sig_arena);
    dt_shard_rules_free(sessions->rules);
    dt_frame_reader_fini(&sessions->reader);
    free(sessions->fates);
    free(sessions->scratch);
    dt_session_usage_free(sessions->usage);
    free(sessions);
}

void dt_sessions_set_options(dt_sessions_t *sessions, const dt_sessions_options_t *options)
{
    if (check_options(options, NULL) != DT_OK)
        return;
    sessions->options = *options;
    sessions->options.build = sessions->build;
    dt_lease_clock_set_rules(&sessions->clock, &options->rules);
}

void dt_sessions_numbers(dt_sessions_t *sessions, uint64_t epoch, uint64_t first, uint64_t limit,
                         int64_t now_ns)
{
    dt_sessions_set_now(sessions, now_ns);
    if (!sessions->is_started) {
        sessions->is_started = true;
        sessions->epoch = epoch;
        sessions->number_first = sessions->number_next = first;
    }
    if (limit > sessions->number_limit)
        sessions->number_limit = limit;
}

/* ---- actions ---- */

dt_session_queued_t *dt_sessions_action(dt_sessions_t *sessions, dt_session_action_kind_t kind,
                                        size_t size)
{
    dt_session_queued_t *queued = malloc(sizeof *queued + size);
    (void)sessions;
    if (!queued)
        return NULL;
    queued->action = (dt_session_action_t){.kind = kind, .size = size};
    queued->packet = NULL;
    queued->text[0] = '\0';
    queued->action.data = queued->data;
    return queued;
}

void dt_sessions_push(dt_sessions_t *sessions, dt_session_queued_t *queued)
{
    queued->action.text = queued->text;
    dt_list_push(&sessions->actions, &queued->list);
}

static void send_as(dt_sessions_t *sessions, dt_session_action_kind_t kind, uint64_t stream,
                    const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    dt_session_queued_t *queued = dt_sessions_action(sessions, kind, size);
    if (!queued)
        return;
    (void)protobuf_c_message_pack(message, queued->data);
    queued->action.stream = stream;
    dt_sessions_push(sessions, queued);
}

void dt_sessions_send(dt_sessions_t *sessions, uint64_t stream, const ProtobufCMessage *message)
{
    send_as(sessions, DT_SESSION_DO_SEND, stream, message);
}

void dt_sessions_node_send(dt_sessions_t *sessions, uint64_t stream,
                           const Dtorch__V1__WorkerDown *down)
{
    send_as(sessions, DT_SESSION_DO_NODE_SEND, stream, &down->base);
}

uint8_t *dt_sessions_send_bytes(dt_sessions_t *sessions, uint64_t stream, const uint8_t *data,
                                size_t size)
{
    dt_session_queued_t *queued = dt_sessions_action(sessions, DT_SESSION_DO_SEND, size);
    if (!queued)
        return NULL;
    memcpy(queued->data, data, size);
    queued->action.stream = stream;
    dt_sessions_push(sessions, queued);
    return queued->data;
}

void dt_sessions_send_packet(dt_sessions_t *sessions, uint64_t stream, dt_session_packet_t *packet)
{
    dt_session_queued_t *queued = dt_sessions_action(sessions, DT_SESSION_DO_SEND, 0);
    if (!queued)
        return;
    packet->refs++;
    queued->packet = packet;
    queued->action.stream = stream;
    queued->action.data = packet->bytes + packet->start;
    queued->action.size = packet->size;
    dt_sessions_push(sessions, queued);
}

bool dt_sessions_poll(dt_sessions_t *sessions, dt_session_action_t *ret_action)
{
    dt_list_t *first = dt_list_pop(&sessions->actions);
    dt_session_queued_t *queued;
    queued_free(sessions->polled);
    sessions->polled = NULL;
    if (!first)
        return false;
    queued = sessions->polled = DT_CONTAINER_OF(first, dt_session_queued_t, list);
    if (queued->action.kind == DT_SESSION_DO_EVENT) {
        ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free,
                                        &sessions->event_arena};
        dt_arena_reset(&sessions->event_arena);
        queued->action.event =
            dtorch__v1__event__unpack(&allocator, queued->action.size, queued->data);
        if (!queued->action.event)
            return dt_sessions_poll(sessions, ret_action);
    }
    *ret_action = queued->action;
    return true;
}

/* ---- streams ---- */

void dt_sessions_set_now(dt_sessions_t *sessions, int64_t now_ns)
{
    if (now_ns > sessions->now_ns)
        sessions->now_ns = now_ns;
}

int64_t dt_sessions_wall_ms(const dt_sessions_t *sessions)
{
    return sessions->wall_ms + (sessions->now_ns - sessions->wall_at_ns) / 1000000;
}

dt_session_stream_t *dt_sessions_stream(const dt_sessions_t *sessions, uint64_t id)
{
    dt_session_stream_t *stream = id ? sessions->stream_buckets[id % DT_SESSION_BUCKETS] : NULL;
    while (stream && stream->id != id)
        stream = stream->next_by_id;
    return stream;
}

dt_session_t *dt_sessions_find(const dt_sessions_t *sessions, uint64_t id)
{
    dt_session_t *session = sessions->buckets[id % DT_SESSION_BUCKETS];
    while (session && session->id != id)
        session = session->next_by_id;
    return session;
}

/* What the end of a stream means to its session. */
static void leave(dt_sessions_t *sessions, dt_session_stream_t *stream)
{
    if (stream->kind == DT_SESSION_STREAM_CLIENT)
        dt_session_client_closed(sessions, stream);
    else if (stream->kind == DT_SESSION_STREAM_LINK)
        dt_session_link_closed(sessions, stream);
    stream_remove(sessions, stream);
}

void dt_session_stream_end(dt_sessions_t *sessions, dt_session_stream_t *stream, dt_status_t status,
                           const char *text)
{
    dt_session_queued_t *queued = dt_sessions_action(sessions, DT_SESSION_DO_CLOSE, 0);
    if (queued) {
        queued->action.stream = stream->id;
        queued->action.status = status;
        (void)snprintf(queued->text, sizeof queued->text, "%s", text);
        dt_sessions_push(sessions, queued);
    }
    leave(sessions, stream);
}

void dt_sessions_opened(dt_sessions_t *sessions, uint64_t id, dt_session_stream_kind_t kind,
                        const char *address, int64_t now_ns)
{
    dt_session_stream_t *stream = calloc(1, sizeof *stream);
    dt_sessions_set_now(sessions, now_ns);
    if (!stream)
        return; /* what comes from it is ignored, and its caller sweeps it */
    stream->id = id;
    stream->kind = kind;
    stream->opened_ns = sessions->now_ns;
    (void)dt_str_copy(stream->address, sizeof stream->address, address);
    dt_list_init(&stream->bulk_list);
    dt_list_push(&sessions->streams, &stream->list);
    stream->next_by_id = sessions->stream_buckets[id % DT_SESSION_BUCKETS];
    sessions->stream_buckets[id % DT_SESSION_BUCKETS] = stream;
    sessions->stream_count++;
    dt_lease_init(&stream->lease, &sessions->clock, sessions->now_ns);
}

void dt_sessions_identify(dt_sessions_t *sessions, uint64_t id, const char *key, const char *name,
                          const char *why_not, const char *kind)
{
    dt_session_stream_t *stream = dt_sessions_stream(sessions, id);
    if (!stream || stream->session)
        return;
    (void)dt_str_copy(stream->key, sizeof stream->key, key);
    (void)dt_str_copy(stream->key_name, sizeof stream->key_name, name);
    (void)dt_str_copy(stream->why_kind, sizeof stream->why_kind, kind);
    free(stream->why_not);
    stream->why_not = why_not ? strdup(why_not) : NULL;
    if (why_not && !stream->why_not)
        dt_session_stream_end(sessions, stream, DT_ERR_NOMEM, "out of memory");
}

void dt_sessions_received(dt_sessions_t *sessions, uint64_t id, const uint8_t *data, size_t size,
                          int64_t now_ns)
{
    dt_session_stream_t *stream = dt_sessions_stream(sessions, id);
    dt_sessions_set_now(sessions, now_ns);
    if (!stream)
        return;
    switch (stream->kind) {
    case DT_SESSION_STREAM_CLIENT:
        dt_session_client_received(sessions, stream, data, size);
        break;
    case DT_SESSION_STREAM_LINK:
        dt_session_link_received(sessions, stream, data, size);
        break;
    case DT_SESSION_STREAM_BULK:
        dt_session_bulk_received(sessions, stream, data, size);
        break;
    }
}

size_t dt_sessions_queue_max(const dt_sessions_t *sessions, uint64_t id)
{
    const dt_session_stream_t *stream = dt_sessions_stream(sessions, id);
    if (!stream || !stream->session)
        return QUEUE_CLIENT;
    /* A client that comes back gets all unconfirmed results at once. */
    return stream->kind == DT_SESSION_STREAM_CLIENT
               ? QUEUE_CLIENT + (size_t)stream->session->results_bytes
               : QUEUE_BULK;
}

void dt_sessions_stuck(dt_sessions_t *sessions, uint64_t id, size_t queued, int64_t now_ns)
{
    static const char *const what[] = {[DT_SESSION_STREAM_CLIENT] = "the program",
                                       [DT_SESSION_STREAM_LINK] = "the node",
                                       [DT_SESSION_STREAM_BULK] = "the program's bulk stream"};
    dt_session_stream_t *stream = dt_sessions_stream(sessions, id);
    dt_sessions_set_now(sessions, now_ns);
    if (!stream)
        return;
    sessions->counts.misbehaved++;
    dt_session_event(sessions, DTORCH__V1__SEVERITY__WARNING, "session-misbehaves", stream->session,
                     stream->link ? stream->link->place->name : "", "does-not-read",
                     "%s at %s does not read what it is sent: %zu bytes wait", what[stream->kind],
                     stream->address, queued);
    dt_session_stream_end(sessions, stream, DT_ERR_LIMIT, "does not read what it is sent");
}

void dt_sessions_closed(dt_sessions_t *sessions, uint64_t id, const char *text, int64_t now_ns)
{
    dt_session_stream_t *stream = dt_sessions_stream(sessions, id);
    (void)text;
    dt_sessions_set_now(sessions, now_ns);
    if (stream)
        leave(sessions, stream);
}

/* ---- time ---- */

void dt_sessions_tick(dt_sessions_t *sessions, int64_t now_ns, int64_t wall_ms)
{
    dt_sessions_set_now(sessions, now_ns);
    sessions->wall_ms = wall_ms;
    sessions->wall_at_ns = sessions->now_ns;
    dt_sessions_ack_due(sessions);
    if (!dt_lease_clock_turn(&sessions->clock, sessions->now_ns))
        return;
    sessions->turns++;
    dt_sessions_client_turn(sessions);
    dt_sessions_links_turn(sessions);
    dt_sessions_places_turn(sessions);
    dt_sessions_asks_turn(sessions);
}

int64_t dt_sessions_deadline(const dt_sessions_t *sessions)
{
    int64_t deadline_ns = sessions->clock.deadline_ns;
    if (!dt_list_is_empty(&sessions->acks)) {
        const dt_session_t *first = DT_CONTAINER_OF(sessions->acks.next, dt_session_t, ack_list);
        if (first->ack_due_ns < deadline_ns)
            deadline_ns = first->ack_due_ns;
    }
    return deadline_ns;
}

void dt_sessions_stop(dt_sessions_t *sessions, int64_t now_ns)
{
    dt_sessions_set_now(sessions, now_ns);
    sessions->is_stopping = true;
    for (dt_list_t *at = sessions->streams.next, *next; at != &sessions->streams; at = next) {
        dt_session_stream_t *stream = DT_CONTAINER_OF(at, dt_session_stream_t, list);
        next = at->next;
        if (stream->kind == DT_SESSION_STREAM_CLIENT)
            dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__STOPPING, true,
                              DT_ERR_STOPPED, "the controller stops");
        else
            dt_session_stream_end(sessions, stream, DT_ERR_STOPPED, "the controller stops");
    }
}

dt_status_t dt_sessions_end(dt_sessions_t *sessions, uint64_t job, const char *text, int64_t now_ns,
                            dt_error_t *err)
{
    dt_session_t *session = dt_sessions_find(sessions, job);
    dt_sessions_set_now(sessions, now_ns);
    if (!session)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "there is no job %" PRIu64, job);
    if (session->stream)
        dt_session_refuse(sessions, session->stream, DTORCH__V1__REFUSAL__CODE__DENIED, false,
                          DT_ERR_STOPPED, text);
    dt_session_finish(sessions, session, text);
    return DT_OK;
}

uint32_t dt_sessions_count_key(const dt_sessions_t *sessions, const char *key)
{
    uint32_t count = 0;
    for (dt_list_t *at = sessions->all.next; at != &sessions->all; at = at->next)
        count += strcmp(DT_CONTAINER_OF(at, dt_session_t, list)->key, key) == 0;
    return count;
}

uint32_t dt_sessions_end_key(dt_sessions_t *sessions, const char *key, const char *text,
                             int64_t now_ns)
{
    uint32_t count = 0;
    for (dt_list_t *at = sessions->all.next, *next; at != &sessions->all; at = next) {
        const dt_session_t *session = DT_CONTAINER_OF(at, dt_session_t, list);
        next = at->next; /* before it is freed */
        if (strcmp(session->key, key) == 0 &&
            dt_sessions_end(sessions, session->id, text, now_ns, NULL) == DT_OK)
            count++;
    }
    return count;
}
