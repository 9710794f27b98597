/* Services Session and Worker/Session: programs' operator streams, their bulk streams, and the
 * nodes' streams of the same sessions. All three only carry bytes to and from the session machine
 * (core/session.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/version.h"
#include "controllerd.h"
#include "wire/wire.h"

struct session_stream {
    dt_list_t link; /* in its bucket */
    dt_controllerd_t *app;
    dt_rpc_stream_t *stream;
    uint64_t id;
    int64_t stalled_ns;   /* since when something waits and nothing is written; 0: nothing waits */
    uint64_t given_bytes; /* to lib/rpc */
    uint64_t written_bytes; /* of them, at the last sweep */
    bool is_ended;          /* the machine has done with it */
};

static dt_list_t *bucket_of(dt_controllerd_t *app, uint64_t id)
{
    return &app->session_buckets[dt_hash_u64(id) % DT_CONTROLLERD_BUCKET_COUNT];
}

static struct session_stream *find(dt_controllerd_t *app, uint64_t id)
{
    dt_list_t *bucket = bucket_of(app, id);
    for (dt_list_t *at = bucket->next; at != bucket; at = at->next) {
        struct session_stream *s = DT_CONTAINER_OF(at, struct session_stream, link);
        if (s->id == id)
            return s;
    }
    return NULL;
}

static void open_as(dt_rpc_stream_t *stream, dt_session_stream_kind_t kind)
{
    dt_controllerd_door_t *door = dt_rpc_stream_arg(stream);
    dt_controllerd_t *app = door->app;
    dt_cluster_admission_t admission;
    struct session_stream *s;
    dt_rpc_stream_set_arg(stream, NULL);
    if (!dt_controllerd_admit(door, stream, kind == DT_SESSION_STREAM_BULK, &admission)) {
        dt_controllerd_pump(app);
        return;
    }
    if (app->session_stream_count >= DT_CONTROLLERD_SESSION_STREAMS) {
        dt_rpc_stream_close(stream, DT_ERR_AGAIN, "too many session streams are open");
        return;
    }
    s = malloc(sizeof *s);
    if (!s) {
        dt_rpc_stream_cancel(stream, DT_ERR_NOMEM, "out of memory");
        return;
    }
    *s = (struct session_stream){.app = app, .stream = stream, .id = dt_rpc_stream_id(stream)};
    dt_list_push(bucket_of(app, s->id), &s->link);
    app->session_stream_count++;
    dt_rpc_stream_set_arg(stream, s);
    dt_sessions_opened(app->sessions, s->id, kind, dt_rpc_stream_peer(stream)->address,
                       dt_loop_now_ns());
    dt_sessions_identify(app->sessions, s->id, admission.id, admission.name,
                         admission.verdict == DT_KEY_FITS ? NULL : admission.text,
                         dt_cluster_verdict_text(admission.verdict));
    dt_controllerd_pump(app);
}

static void on_open_client(dt_rpc_stream_t *stream)
{
    open_as(stream, DT_SESSION_STREAM_CLIENT);
}

static void on_open_link(dt_rpc_stream_t *stream)
{
    open_as(stream, DT_SESSION_STREAM_LINK);
}

static void on_open_bulk(dt_rpc_stream_t *stream)
{
    open_as(stream, DT_SESSION_STREAM_BULK);
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    struct session_stream *s = dt_rpc_stream_arg(stream);
    if (!s || s->is_ended)
        return;
    dt_sessions_received(s->app->sessions, s->id, data, size, dt_loop_now_ns());
    dt_controllerd_pump(s->app);
}

static void on_drained(dt_rpc_stream_t *stream)
{
    struct session_stream *s = dt_rpc_stream_arg(stream);
    if (s)
        s->stalled_ns = 0;
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    struct session_stream *s = dt_rpc_stream_arg(stream);
    dt_controllerd_t *app;
    if (!s)
        return;
    app = s->app;
    dt_sessions_closed(app->sessions, s->id, why->text, dt_loop_now_ns());
    dt_list_remove(&s->link);
    app->session_stream_count--;
    free(s);
    dt_controllerd_pump(app);
}

#define OPS(open_fn)                                                                               \
    {                                                                                              \
        .open = (open_fn), .message = on_message, .drained = on_drained, .closed = on_closed       \
    }
const dt_rpc_stream_ops_t dt_controllerd_session_ops = OPS(on_open_client);
const dt_rpc_stream_ops_t dt_controllerd_link_ops = OPS(on_open_link);
const dt_rpc_stream_ops_t dt_controllerd_bulk_ops = OPS(on_open_bulk);

/* ---- what the machine wants ---- */

static void send(dt_controllerd_t *app, const dt_session_action_t *action)
{
    struct session_stream *s = find(app, action->stream);
    int64_t now_ns = dt_loop_now_ns();
    size_t queued;
    if (!s || s->is_ended)
        return;
    if (!s->stalled_ns)
        s->stalled_ns = now_ns; /* until on_drained() says that it is written */
    queued = dt_rpc_stream_queued(s->stream);
    s->given_bytes += action->size;
    if (queued <= dt_sessions_queue_max(app->sessions, s->id) &&
        dt_rpc_stream_send(s->stream, action->data, action->size) != DT_ERR_LIMIT)
        return;
    s->is_ended = true;
    dt_rpc_stream_cancel(s->stream, DT_ERR_LIMIT, "the peer does not read what it is sent");
    dt_sessions_stuck(app->sessions, s->id, queued, now_ns);
}

static void node_send(dt_controllerd_t *app, const dt_session_action_t *action)
{
    const dt_cluster_action_t send_it = {.kind = DT_CLUSTER_DO_SEND,
                                         .stream = action->stream,
                                         .data = action->data,
                                         .size = action->size};
    dt_controllerd_worker_send(app, &send_it);
}

static void reply(dt_controllerd_t *app, const dt_session_action_t *action)
{
    const dt_cluster_action_t answer = {.kind = DT_CLUSTER_DO_REPLY,
                                        .ticket = action->ticket,
                                        .status = action->status,
                                        .text = action->text,
                                        .data = action->data,
                                        .size = action->size};
    dt_controllerd_ticket_answer(app, &answer);
}

static void perform(dt_controllerd_t *app, const dt_session_action_t *action)
{
    struct session_stream *s;
    switch (action->kind) {
    case DT_SESSION_DO_SEND:
        send(app, action);
        break;
    case DT_SESSION_DO_CLOSE:
        s = find(app, action->stream);
        if (!s || s->is_ended)
            break;
        s->is_ended = true;
        dt_rpc_stream_close(s->stream, action->status, action->text);
        break;
    case DT_SESSION_DO_NODE_SEND:
        node_send(app, action);
        break;
    case DT_SESSION_DO_EVENT:
        dt_cluster_report(app->cluster, action->event, dt_loop_now_ns());
        break;
    case DT_SESSION_DO_REPLY:
        reply(app, action);
        break;
    case DT_SESSION_DO_NUMBERS:
        dt_cluster_reserve_sessions(app->cluster, action->number, dt_loop_now_ns());
        break;
    }
}

/* Nodes that moved, numbers that are durable. */
static void look_at_cluster(dt_controllerd_t *app)
{
    uint64_t generation = dt_cluster_generation(app->cluster), epoch, first, limit;
    dt_session_device_t devices[DT_CLUSTER_PLACE_DEVICES];
    dt_session_node_t node;
    uint32_t at = 0;
    dt_cluster_session_numbers(app->cluster, &epoch, &first, &limit);
    if (limit > app->session_numbers && dt_cluster_is_ready(app->cluster)) {
        app->session_numbers = limit;
        dt_sessions_numbers(app->sessions, epoch, first, limit, dt_loop_now_ns());
    }
    if (generation == app->session_generation)
        return;
    while (dt_cluster_next_moved(app->cluster, app->session_generation, &at, &node, devices))
        dt_sessions_node(app->sessions, &node, dt_loop_now_ns());
    app->session_generation = generation;
}

void dt_controllerd_session_pump(dt_controllerd_t *app)
{
    dt_session_action_t action;
    look_at_cluster(app);
    while (dt_sessions_poll(app->sessions, &action))
        perform(app, &action);
    if (app->session_timer)
        dt_timer_arm(app->session_timer, dt_sessions_deadline(app->sessions));
}

/* ---- life ---- */

static void hash_token(const uint8_t *bytes, size_t size, uint8_t ret_hash[DT_SESSION_HASH_BYTES])
{
    dt_controllerd_hash(bytes, size, ret_hash);
}

static void random_bytes(void *bytes, size_t size)
{
    dt_pki_random(bytes, size);
}

static void fill_options(const dt_controllerd_t *app, dt_sessions_options_t *ret_options)
{
    const dt_conf_t *conf = app->conf;
    *ret_options = (dt_sessions_options_t){
        .struct_size = sizeof *ret_options,
        .build = dt_version(),
        .random = random_bytes,
        .hash = hash_token,
        .rules = {.interval_ns = dt_conf_duration_ns(conf, "HeartbeatInterval"),
                  .suspect_beats = (uint32_t)dt_conf_int(conf, "SuspectBeats"),
                  .dead_beats = (uint32_t)dt_conf_int(conf, "DeadBeats")},
        .grace_ns = dt_conf_duration_ns(conf, "SessionGrace"),
        .hello_ns = dt_conf_duration_ns(conf, "HelloTimeout"),
        .sessions_max = (uint32_t)dt_conf_int(conf, "SessionsMax"),
        .tensors_max = (uint32_t)dt_conf_int(conf, "SessionTensorsMax"),
        .memory_bytes = (uint64_t)dt_conf_size(conf, "SessionMemory"),
        .client_window_bytes = (uint64_t)dt_conf_size(conf, "SessionWindow"),
        .node_window_bytes = DT_CONTROLLERD_NODE_WINDOW,
        .node_window_records = DT_CONTROLLERD_NODE_RECORDS,
        .results_bytes = DT_CONTROLLERD_RESULTS,
    };
    ret_options->lost_ns = ret_options->rules.interval_ns * ret_options->rules.dead_beats;
}

static void on_deadline(void *arg, int64_t deadline_ns)
{
    dt_controllerd_t *app = arg;
    (void)deadline_ns;
    dt_sessions_tick(app->sessions, dt_loop_now_ns(), dt_clock_wall_ms(dt_clock_system()));
    dt_controllerd_pump(app);
}

dt_status_t dt_controllerd_session_start(dt_controllerd_t *app, dt_error_t *err)
{
    dt_sessions_options_t options;
    fill_options(app, &options);
    DT_TRY(dt_sessions_create(&options, dt_loop_now_ns(), &app->sessions, err));
    return dt_timer_create(app->loop, on_deadline, app, &app->session_timer, err);
}

void dt_controllerd_session_reload(dt_controllerd_t *app)
{
    dt_sessions_options_t options;
    fill_options(app, &options);
    dt_sessions_set_options(app->sessions, &options);
}

void dt_controllerd_session_free(dt_controllerd_t *app)
{
    dt_timer_free(app->session_timer);
    app->session_timer = NULL;
    dt_sessions_free(app->sessions);
    app->sessions = NULL;
}

/* One that reads, but slowly, makes progress from look to look. */
static void sweep(dt_controllerd_t *app, struct session_stream *s, int64_t now_ns)
{
    size_t queued = dt_rpc_stream_queued(s->stream);
    uint64_t written = s->given_bytes - queued;
    bool is_moving = written != s->written_bytes;
    s->written_bytes = written;
    if (s->is_ended || !s->stalled_ns || queued == 0)
        return;
    if (is_moving)
        s->stalled_ns = now_ns;
    if (now_ns - s->stalled_ns <= DT_CONTROLLERD_STALL_NS)
        return;
    s->is_ended = true;
    dt_rpc_stream_cancel(s->stream, DT_ERR_LIMIT, "the peer does not read");
    dt_sessions_stuck(app->sessions, s->id, queued, now_ns);
}

void dt_controllerd_session_sweep(dt_controllerd_t *app, int64_t now_ns)
{
    for (size_t i = 0; i < DT_CONTROLLERD_BUCKET_COUNT; i++) {
        dt_list_t *bucket = &app->session_buckets[i];
        for (dt_list_t *at = bucket->next; at != bucket; at = at->next) {
            sweep(app, DT_CONTAINER_OF(at, struct session_stream, link), now_ns);
        }
    }
}

void dt_controllerd_session_end(dt_controllerd_t *app)
{
    if (app->sessions)
        dt_sessions_stop(app->sessions, dt_loop_now_ns());
}

/* ---- what people ask ---- */

void dt_controllerd_list_jobs(dt_controllerd_t *app, dt_rpc_call_t *call,
                              const ProtobufCMessage *message)
{
    Dtorch__V1__ListJobsRequest request = *(const Dtorch__V1__ListJobsRequest *)message;
    Dtorch__V1__JobList *list;
    request.limit = request.limit ? request.limit : DT_CONTROLLERD_LIST_JOBS;
    for (; request.limit; request.limit /= 2) {
        uint8_t *data;
        size_t size;
        dt_arena_reset(&app->reply_arena);
        if (dt_sessions_list(app->sessions, &request, &app->reply_arena, dt_loop_now_ns(), &list) ==
                DT_OK &&
            dt_wire_pack(&list->base, &app->reply_arena, &data, &size) == DT_OK &&
            size <= DT_CONTROLLERD_REPLY_MAX) {
            dt_rpc_call_reply(call, data, size);
            return;
        }
    }
    dt_rpc_call_fail(call, DT_ERR_LIMIT, "the reply is too large");
}

void dt_controllerd_get_job(dt_controllerd_t *app, dt_rpc_call_t *call,
                            const ProtobufCMessage *message)
{
    const Dtorch__V1__GetJobRequest *request = (const Dtorch__V1__GetJobRequest *)message;
    Dtorch__V1__JobDetail *job;
    dt_error_t err;
    if (dt_sessions_get(app->sessions, request->id, &app->reply_arena, dt_loop_now_ns(), &job,
                        &err) != DT_OK)
        dt_controllerd_fail(call, &err);
    else
        dt_controllerd_reply(app, call, &job->base);
}

void dt_controllerd_end_job(dt_controllerd_t *app, dt_rpc_call_t *call,
                            const ProtobufCMessage *message)
{
    const Dtorch__V1__EndJobRequest *request = (const Dtorch__V1__EndJobRequest *)message;
    char by[DT_CONTROLLERD_BY_MAX], text[DT_CONTROLLERD_BY_MAX + 300];
    Dtorch__V1__JobDetail *job;
    dt_error_t err;
    dt_controllerd_peer_name(dt_rpc_call_peer(call), by, sizeof by);
    (void)snprintf(text, sizeof text, "ended by %s: %s", by, request->reason);
    if (dt_sessions_get(app->sessions, request->id, &app->reply_arena, dt_loop_now_ns(), &job,
                        &err) != DT_OK) {
        dt_controllerd_fail(call, &err);
        return;
    }
    dt_controllerd_reply(app, call, &job->base); /* as it was */
    (void)!dt_sessions_end(app->sessions, request->id, text, dt_loop_now_ns(), NULL);
}

void dt_controllerd_get_timeline(dt_controllerd_t *app, dt_rpc_call_t *call,
                                 const ProtobufCMessage *message)
{
    Dtorch__V1__Timeline *timeline;
    dt_error_t err;
    if (dt_sessions_timeline(app->sessions, (const Dtorch__V1__GetTimelineRequest *)message,
                             &app->reply_arena, dt_loop_now_ns(), &timeline, &err) != DT_OK)
        dt_controllerd_fail(call, &err);
    else
        dt_controllerd_reply(app, call, &timeline->base);
}

void dt_controllerd_get_plans(dt_controllerd_t *app, dt_rpc_call_t *call,
                              const ProtobufCMessage *message)
{
    Dtorch__V1__PlanList *list;
    dt_error_t err;
    if (dt_sessions_plans(app->sessions, (const Dtorch__V1__GetPlansRequest *)message,
                          &app->reply_arena, &list, &err) != DT_OK)
        dt_controllerd_fail(call, &err);
    else
        dt_controllerd_reply(app, call, &list->base);
}

void dt_controllerd_get_usage(dt_controllerd_t *app, dt_rpc_call_t *call,
                              const ProtobufCMessage *message)
{
    Dtorch__V1__UsageReport *report;
    (void)message;
    if (dt_sessions_usage(app->sessions, &app->reply_arena, dt_loop_now_ns(), &report) != DT_OK) {
        dt_rpc_call_fail(call, DT_ERR_NOMEM, "out of memory");
        return;
    }
    report->since_wall_ms = app->started_wall_ms;
    report->until_wall_ms = dt_clock_wall_ms(dt_clock_system());
    dt_controllerd_reply(app, call, &report->base);
}

void dt_controllerd_list_tensors(dt_controllerd_t *app, dt_rpc_call_t *call,
                                 const ProtobufCMessage *message)
{
    uint64_t ticket = dt_controllerd_ticket_make(app, call, NULL, 0);
    if (ticket)
        dt_sessions_list_tensors(app->sessions, ticket,
                                 (const Dtorch__V1__ListTensorsRequest *)message, dt_loop_now_ns());
}
