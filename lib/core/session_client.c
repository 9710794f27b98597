/* A client's side of its session: hello, welcome, resume, acknowledgement, queries, its end. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "core/session_internal.h"

#define UP_FRAME           2
#define HEARTBEAT_MS(ns)   ((uint32_t)((ns) / 1000000))
#define CREDIT_STEP(bytes) ((bytes) / 8) /* credit that moved so far is told at once */

bool dt_session_bucket_take(dt_session_bucket_t *bucket, int64_t now_ns, uint32_t per_second)
{
    if (now_ns - bucket->since_ns >= DT_SESSION_SECOND_NS)
        *bucket = (dt_session_bucket_t){.since_ns = now_ns};
    return bucket->count++ < per_second;
}

/* ---- refusals ---- */

void dt_session_refuse(dt_sessions_t *sessions, dt_session_stream_t *stream,
                       Dtorch__V1__Refusal__Code code, bool retry, dt_status_t status,
                       const char *text)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__Refusal refusal = DTORCH__V1__REFUSAL__INIT;
    char clean[513];
    dt_wire_text_copy(clean, sizeof clean, text);
    refusal.code = code;
    refusal.text = clean;
    refusal.retry = retry;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_REFUSAL;
    down.refusal = &refusal;
    dt_sessions_send(sessions, stream->id, &down.base);
    dt_session_stream_end(sessions, stream, status, clean);
}

void dt_session_offend(dt_sessions_t *sessions, dt_session_stream_t *stream,
                       Dtorch__V1__Refusal__Code code, dt_status_t status, const char *kind,
                       const char *text)
{
    sessions->counts.misbehaved++;
    dt_session_event(sessions, DTORCH__V1__SEVERITY__WARNING, "session-misbehaves", stream->session,
                     "", kind, "%s: %s", stream->address, text);
    dt_session_refuse(sessions, stream, code, false, status, text);
}

/* ---- acknowledgement and credit ---- */

uint64_t dt_session_credit(const dt_session_t *session)
{
    return session->bytes_done + session->window_bytes;
}

static void send_ack(dt_sessions_t *sessions, dt_session_t *session)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__Ack ack = DTORCH__V1__ACK__INIT;
    session->ack_due_ns = 0;
    dt_list_remove(&session->ack_list);
    if (!session->stream)
        return;
    ack.sequence = session->ack_sequence = session->next_sequence - 1;
    ack.credit_bytes = session->ack_credit = dt_session_credit(session);
    session->bytes_acked = session->bytes;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_ACK;
    down.ack = &ack;
    dt_sessions_send(sessions, session->stream->id, &down.base);
    sessions->counts.acks++;
    if (session->trace)
        dt_session_trace_ack(sessions, session);
}

void dt_session_ack(dt_sessions_t *sessions, dt_session_t *session, bool is_now)
{
    if (!session->stream)
        return;
    if (is_now || session->bytes - session->bytes_acked >= DT_SESSION_ACK_BYTES ||
        dt_session_credit(session) - session->ack_credit >= CREDIT_STEP(session->window_bytes)) {
        send_ack(sessions, session);
    } else if (!session->ack_due_ns) {
        session->ack_due_ns = sessions->now_ns + DT_SESSION_ACK_NS;
        dt_list_push(&sessions->acks, &session->ack_list);
    }
}

void dt_sessions_ack_due(dt_sessions_t *sessions)
{
    while (!dt_list_is_empty(&sessions->acks)) {
        dt_session_t *session = DT_CONTAINER_OF(sessions->acks.next, dt_session_t, ack_list);
        if (session->ack_due_ns > sessions->now_ns)
            return;
        send_ack(sessions, session);
    }
}

/* ---- hello ---- */

static void make_token(dt_sessions_t *sessions, dt_session_t *session,
                       uint8_t token[DT_SESSION_TOKEN_BYTES])
{
    sessions->options.random(token, DT_SESSION_TOKEN_BYTES);
    memcpy(session->old_token_hash, session->token_hash, sizeof session->token_hash);
    session->has_old_token = session->resumes > 0;
    sessions->options.hash(token, DT_SESSION_TOKEN_BYTES, session->token_hash);
}

static void welcome(dt_sessions_t *sessions, dt_session_t *session)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__SessionWelcome welcome = DTORCH__V1__SESSION_WELCOME__INIT;
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    uint8_t token[DT_SESSION_TOKEN_BYTES];
    make_token(sessions, session, token);
    version.major = DT_WIRE_VERSION_MAJOR;
    version.minor = DT_WIRE_VERSION_MINOR;
    welcome.version = &version;
    welcome.build = sessions->build;
    welcome.session = session->id;
    welcome.resume_token = (ProtobufCBinaryData){sizeof token, token};
    welcome.epoch = sessions->epoch;
    welcome.next_sequence = session->next_sequence;
    welcome.credit_bytes = session->ack_credit = dt_session_credit(session);
    welcome.heartbeat_ms = HEARTBEAT_MS(sessions->options.rules.interval_ns);
    welcome.dead_beats = sessions->options.rules.dead_beats;
    welcome.grace_ms = sessions->options.grace_ns / 1000000;
    dt_arena_reset(&sessions->sig_arena);
    welcome.bindings =
        dt_session_bindings(session, NULL, &sessions->sig_arena, &welcome.n_bindings);
    welcome.results_done = session->futures_done;
    session->bytes_acked = session->bytes;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_WELCOME;
    down.welcome = &welcome;
    dt_sessions_send(sessions, session->stream->id, &down.base);
}

/* Who has shown a key that is over may come back to what it began with it, and to nothing else. */
static bool may_have(dt_sessions_t *sessions, dt_session_stream_t *stream,
                     const dt_session_t *session)
{
    if (!stream->why_not || (session && strcmp(session->key, stream->key) == 0))
        return true;
    dt_session_event_refused(sessions, stream);
    dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__DENIED, false, DT_ERR_DENIED,
                      stream->why_not);
    return false;
}

static void attach(dt_session_t *session, dt_session_stream_t *stream)
{
    stream->session = session;
    session->stream = stream;
    session->away_since_ns = 0;
    (void)dt_str_copy(session->address, sizeof session->address, stream->address);
}

/* Who it is, and what it wants. */
static dt_session_t *session_new(const dt_sessions_t *sessions,
                                 const Dtorch__V1__SessionHello *hello)
{
    const dt_sessions_options_t *options = &sessions->options;
    dt_session_t *session = calloc(1, sizeof *session);
    uint64_t factor;
    if (!session)
        return NULL;
    dt_list_init(&session->list);
    dt_list_init(&session->bulks);
    dt_list_init(&session->ack_list);
    dt_list_init(&session->links);
    dt_list_init(&session->queries);
    (void)dt_str_copy(session->program, sizeof session->program, hello->program);
    (void)dt_str_copy(session->build, sizeof session->build, hello->build);
    (void)dt_str_copy(session->host, sizeof session->host, hello->host);
    session->features = hello->features;
    session->started_ns = sessions->now_ns;
    session->started_wall_ms = dt_sessions_wall_ms(sessions);
    session->memory_limit =
        hello->memory_limit_bytes ? hello->memory_limit_bytes : options->memory_bytes;
    session->next_sequence = session->next_tensor = 1;
    session->window_bytes = options->client_window_bytes;
    session->node_window_bytes = options->node_window_bytes;
    session->node_window_records = options->node_window_records;
    session->results_bytes_max = options->results_bytes;
    session->tensors_max = options->tensors_max;
    session->vdev_count = hello->device_count ? hello->device_count : 1;
    session->is_one_device = hello->one_device;
    session->vdevs = calloc(session->vdev_count, sizeof *session->vdevs);
    options->random(&factor, sizeof factor);
    if (session->vdevs && dt_session_tables_init(session, factor) == DT_OK)
        return session;
    dt_session_free(session);
    return NULL;
}

static void add(dt_sessions_t *sessions, dt_session_t *session)
{
    dt_session_t **bucket;
    session->id = sessions->number_next++;
    bucket = &sessions->buckets[session->id % DT_SESSION_BUCKETS];
    session->next_by_id = *bucket;
    *bucket = session;
    dt_list_push(&sessions->all, &session->list);
    sessions->session_count++;
    sessions->counts.started++;
    if (sessions->number_limit - sessions->number_next < DT_SESSION_NUMBERS_STEP / 2 &&
        sessions->number_asked <= sessions->number_limit) {
        dt_session_queued_t *queued = dt_sessions_action(sessions, DT_SESSION_DO_NUMBERS, 0);
        if (!queued)
            return;
        sessions->number_asked = sessions->number_limit + DT_SESSION_NUMBERS_STEP;
        queued->action.number = sessions->number_asked;
        dt_sessions_push(sessions, queued);
    }
}

static void open_links(dt_sessions_t *sessions, dt_session_t *session)
{
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next)
        dt_session_link_open(sessions, DT_CONTAINER_OF(at, dt_session_link_t, list));
}

static void hello_new(dt_sessions_t *sessions, dt_session_stream_t *stream,
                      const Dtorch__V1__SessionHello *hello)
{
    dt_session_t *session;
    dt_error_t err = {.text = "out of memory"};
    if (!may_have(sessions, stream, NULL))
        return;
    if (sessions->session_count >= sessions->options.sessions_max) {
        dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__LIMIT, true, DT_ERR_AGAIN,
                          "as many sessions as SessionsMax= allows are open");
        return;
    }
    if (sessions->number_next >= sessions->number_limit) {
        dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__STOPPING, true, DT_ERR_AGAIN,
                          "the journal has not taken the numbers of new sessions yet");
        return;
    }
    session = session_new(sessions, hello);
    if (!session || dt_session_bind(sessions, session, hello, &err) != DT_OK) {
        dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__LIMIT, true, DT_ERR_AGAIN,
                          err.text);
        if (session) {
            dt_session_unbind(session);
            dt_session_free(session);
        }
        return;
    }
    add(sessions, session);
    attach(session, stream);
    (void)dt_str_copy(session->key, sizeof session->key, stream->key);
    (void)dt_str_copy(session->key_name, sizeof session->key_name, stream->key_name);
    open_links(sessions, session);
    welcome(sessions, session);
    dt_session_event(sessions, DTORCH__V1__SEVERITY__INFO, "session-started", session, "", "",
                     "job %" PRIu64 " of %s began on %" PRIu32 " device%s", session->id,
                     session->program[0] ? session->program : "a program", session->vdev_count,
                     session->vdev_count == 1 ? "" : "s");
}

bool dt_session_token_fits(dt_sessions_t *sessions, const dt_session_t *session,
                           const ProtobufCBinaryData *token)
{
    uint8_t hash[DT_SESSION_HASH_BYTES], differs = 0, differs_old = 0;
    if (token->len != DT_SESSION_TOKEN_BYTES)
        return false;
    sessions->options.hash(token->data, token->len, hash);
    for (size_t i = 0; i < sizeof hash; i++) {
        differs |= hash[i] ^ session->token_hash[i];
        differs_old |= hash[i] ^ session->old_token_hash[i];
    }
    return differs == 0 || (session->has_old_token && differs_old == 0);
}

/* What was not confirmed, what was not told. */
static void send_again(dt_sessions_t *sessions, dt_session_t *session)
{
    uint64_t stream = session->stream->id;
    for (uint32_t i = 0; i < session->future_count; i++) {
        const dt_session_future_t *f = &session->futures[session->future_head + i];
        if (f->result)
            (void)dt_sessions_send_bytes(sessions, stream, f->result, f->size);
    }
    for (uint32_t i = 0; i < session->error_count; i++) {
        uint32_t at = (session->error_head + i) % DT_SESSION_ERRORS_MAX;
        if (session->errors[at].is_told)
            continue;
        (void)dt_sessions_send_bytes(sessions, stream, session->errors[at].packed,
                                     session->errors[at].size);
        session->errors[at].is_told = true;
    }
    for (uint32_t i = 0; i < session->fault_count; i++) {
        (void)dt_sessions_send_bytes(sessions, stream, session->faults[i].packed,
                                     session->faults[i].size);
        free(session->faults[i].packed);
    }
    session->fault_count = 0;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (link->door)
            (void)dt_sessions_send_bytes(sessions, stream, link->door, link->door_bytes);
    }
}

static void hello_resume(dt_sessions_t *sessions, dt_session_stream_t *stream,
                         const Dtorch__V1__SessionHello *hello)
{
    dt_session_t *session = dt_sessions_find(sessions, hello->session);
    char text[160];
    if (!session &&
        (hello->session < sessions->number_first || hello->session >= sessions->number_next)) {
        (void)snprintf(text, sizeof text,
                       "session %" PRIu64 " ended with an earlier start of the controller",
                       hello->session);
        dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__EPOCH, false, DT_ERR_LOST,
                          text);
        return;
    }
    if (!session || !dt_session_token_fits(sessions, session, &hello->resume_token)) {
        dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__DENIED, false, DT_ERR_DENIED,
                          session ? "the token does not fit the session" : "the session is over");
        return;
    }
    if (!may_have(sessions, stream, session))
        return;
    if (session->stream) {
        dt_session_stream_t *old = session->stream;
        old->session = NULL;
        session->stream = NULL;
        dt_session_stream_end(sessions, old, DT_ERR_AGAIN, "the session moved to another stream");
    } else {
        sessions->away_count--;
    }
    attach(session, stream);
    session->resumes++;
    sessions->counts.resumed++;
    welcome(sessions, session);
    send_again(sessions, session);
    dt_session_event(sessions, DTORCH__V1__SEVERITY__INFO, "session-resumed", session, "", "",
                     "job %" PRIu64 " is back at record %" PRIu64, session->id,
                     session->next_sequence);
}

static void on_hello(dt_sessions_t *sessions, dt_session_stream_t *stream,
                     const Dtorch__V1__SessionHello *hello)
{
    dt_error_t err;
    if (stream->session) {
        dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__MALFORMED, DT_ERR_INVALID,
                          "second-hello", "a second hello");
        return;
    }
    if (dt_wire_check_version(hello->version, "client", hello->build, &err) != DT_OK) {
        dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__VERSION, false,
                          DT_ERR_INVALID, err.text);
        return;
    }
    if (sessions->is_stopping) {
        dt_session_refuse(sessions, stream, DTORCH__V1__REFUSAL__CODE__STOPPING, true,
                          DT_ERR_STOPPED, "the controller stops");
        return;
    }
    if (hello->session)
        hello_resume(sessions, stream, hello);
    else
        hello_new(sessions, stream, hello);
}

/* ---- the rest of what it says ---- */

static void on_query(dt_sessions_t *sessions, dt_session_stream_t *stream,
                     const Dtorch__V1__SigQuery *asked)
{
    Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
    dt_session_t *session = stream->session;
    dt_session_query_t *query;
    size_t size;
    if (asked->query <= session->last_query)
        return; /* said again after a resume: it is asked already, or answered */
    down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_QUERY;
    down.query = (Dtorch__V1__SigQuery *)(uintptr_t)asked;
    size = dtorch__v1__worker_session_down__get_packed_size(&down);
    if (asked->vdev >= session->vdev_count || session->query_count >= DT_SESSION_QUERIES_MAX ||
        session->query_bytes + size > DT_SESSION_QUERY_BYTES) {
        dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__LIMIT, DT_ERR_LIMIT,
                          "queries", "too many unanswered queries, or one to no device");
        return;
    }
    query = malloc(sizeof *query + size);
    if (!query)
        return;
    *query = (dt_session_query_t){.query = asked->query, .vdev = asked->vdev};
    query->size = (uint32_t)dtorch__v1__worker_session_down__pack(&down, query->bytes);
    session->last_query = asked->query;
    session->query_count++;
    session->query_bytes += query->size;
    dt_list_push(&session->queries, &query->list);
    const dt_session_link_t *link = session->vdevs[asked->vdev].link;
    if (link && link->stream)
        (void)dt_sessions_send_bytes(sessions, link->stream, query->bytes, query->size);
    else if (!link)
        dt_session_answer_queries(sessions, session);
}

static void on_message(dt_sessions_t *sessions, dt_session_stream_t *stream,
                       const Dtorch__V1__SessionUp *up)
{
    dt_session_t *session = stream->session;
    switch (up->kind_case) {
    case DTORCH__V1__SESSION_UP__KIND_FRAME:
        dt_session_frame(sessions, stream, up->frame.data, up->frame.len);
        break;
    case DTORCH__V1__SESSION_UP__KIND_BEAT:
        dt_lease_beat(&stream->lease, &sessions->options.rules, up->beat->sequence,
                      up->beat->progress, up->beat->late_ns);
        break;
    case DTORCH__V1__SESSION_UP__KIND_BYE: {
        char reason[300];
        (void)snprintf(reason, sizeof reason, "ended by its program%s%s",
                       up->bye->reason[0] ? ": " : "", up->bye->reason);
        dt_session_finish(sessions, session, reason);
        break;
    }
    case DTORCH__V1__SESSION_UP__KIND_QUERY:
        on_query(sessions, stream, up->query);
        break;
    case DTORCH__V1__SESSION_UP__KIND_DONE:
        dt_session_futures_done(session, up->done->future);
        dt_session_pump(sessions, session);
        break;
    default:
        break; /* of a newer minor version */
    }
}

void dt_session_client_received(dt_sessions_t *sessions, dt_session_stream_t *stream,
                                const uint8_t *data, size_t size)
{
    dt_session_t *session = stream->session;
    Dtorch__V1__SessionUp *up;
    const uint8_t *frame;
    size_t frame_bytes;
    dt_error_t err;
    if (session) {
        (void)dt_lease_heard(&stream->lease, &sessions->clock, sessions->now_ns);
        session->has_old_token = false;
        if (dt_session_only_field(data, size, UP_FRAME, &frame, &frame_bytes)) {
            dt_session_frame(sessions, stream, frame, frame_bytes);
            return;
        }
        if (!dt_session_bucket_take(&session->beats, sessions->now_ns, DT_SESSION_BEATS_RATE)) {
            dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__LIMIT, DT_ERR_LIMIT,
                              "flood", "too many messages besides frames in a second");
            return;
        }
    }
    dt_arena_reset(&sessions->arena);
    if (DT_WIRE_UNPACK(dtorch__v1__session_up, &sessions->arena, data, size, &up, &err) != DT_OK) {
        sessions->counts.malformed++;
        dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__MALFORMED, err.code,
                          "malformed", err.text);
        return;
    }
    if (up->kind_case == DTORCH__V1__SESSION_UP__KIND_HELLO)
        on_hello(sessions, stream, up->hello);
    else if (session)
        on_message(sessions, stream, up);
    else
        dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__MALFORMED, DT_ERR_INVALID,
                          "no-hello-first", "the first message must be a hello");
}

void dt_session_client_closed(dt_sessions_t *sessions, dt_session_stream_t *stream)
{
    dt_session_t *session = stream->session;
    if (!session || session->stream != stream)
        return;
    session->stream = NULL;
    session->away_since_ns = sessions->now_ns;
    session->ack_due_ns = 0;
    dt_list_remove(&session->ack_list);
    sessions->away_count++;
}

/* ---- time ---- */

static void send_beat(dt_sessions_t *sessions, dt_session_stream_t *stream)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    beat.sequence = ++stream->beat_sequence;
    beat.progress = sessions->turns;
    beat.late_ns = sessions->clock.late_ns;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_BEAT;
    down.beat = &beat;
    dt_sessions_send(sessions, stream->id, &down.base);
}

static void check_stream(dt_sessions_t *sessions, dt_session_stream_t *stream, bool is_beat)
{
    if (!stream->session && sessions->now_ns - stream->opened_ns > sessions->options.hello_ns) {
        if (stream->kind == DT_SESSION_STREAM_CLIENT)
            dt_session_offend(sessions, stream, DTORCH__V1__REFUSAL__CODE__MALFORMED,
                              DT_ERR_TIMEOUT, "no-hello", "no hello in time");
        else
            dt_session_stream_end(sessions, stream, DT_ERR_TIMEOUT, "no hello in time");
        return;
    }
    if (!stream->session || stream->kind != DT_SESSION_STREAM_CLIENT)
        return;
    if (dt_lease_check(&stream->lease, &sessions->options.rules, &sessions->clock) ==
        DT_LEASE_DEAD) {
        dt_session_stream_end(sessions, stream, DT_ERR_TIMEOUT, "the client has fallen silent");
        return;
    }
    if (is_beat)
        send_beat(sessions, stream);
}

void dt_sessions_client_turn(dt_sessions_t *sessions)
{
    bool is_beat = sessions->now_ns >= sessions->next_beat_ns;
    if (is_beat)
        sessions->next_beat_ns = sessions->now_ns + sessions->options.rules.interval_ns;
    for (dt_list_t *at = sessions->streams.next, *next; at != &sessions->streams; at = next) {
        next = at->next;
        check_stream(sessions, DT_CONTAINER_OF(at, dt_session_stream_t, list), is_beat);
    }
    for (dt_list_t *at = sessions->all.next, *next; at != &sessions->all; at = next) {
        dt_session_t *session = DT_CONTAINER_OF(at, dt_session_t, list);
        next = at->next;
        if (session->stream ||
            sessions->now_ns - session->away_since_ns < sessions->options.grace_ns)
            continue;
        sessions->counts.lost++;
        dt_session_event(sessions, DTORCH__V1__SEVERITY__WARNING, "session-lost", session, "", "",
                         "the program of job %" PRIu64 " did not come back in time", session->id);
        dt_session_finish(sessions, session, "its program did not come back in time");
    }
}

/* ---- the end ---- */

void dt_session_free(dt_session_t *session)
{
    dt_session_trace_ended(session);
    while (!dt_list_is_empty(&session->queries))
        free(DT_CONTAINER_OF(dt_list_pop(&session->queries), dt_session_query_t, list));
    for (uint32_t i = 0; i < session->queue_count; i++)
        dt_session_packet_unref(session->queue[session->queue_head + i]);
    free(session->queue);
    dt_session_gone_fini(session);
    dt_session_tables_fini(session);
    for (uint32_t i = 0; i < DT_SESSION_ERRORS_MAX; i++)
        free(session->errors[i].packed);
    for (uint32_t i = 0; i < session->fault_count; i++)
        free(session->faults[i].packed);
    dt_session_stats_fini(&session->stats);
    free(session->vdevs);
    free(session);
}

static void forget(dt_sessions_t *sessions, dt_session_t *session)
{
    dt_session_t **at = &sessions->buckets[session->id % DT_SESSION_BUCKETS];
    while (*at != session)
        at = &(*at)->next_by_id;
    *at = session->next_by_id;
    dt_list_remove(&session->list);
    dt_list_remove(&session->ack_list);
    sessions->session_count--;
}

void dt_session_finish(dt_sessions_t *sessions, dt_session_t *session, const char *reason)
{
    dt_session_event(sessions, DTORCH__V1__SEVERITY__INFO, "session-ended", session, "", "",
                     "job %" PRIu64 " ended: %s", session->id, reason);
    sessions->counts.ended++;
    sessions->counts.operators += session->operators;
    for (uint32_t i = 0; i < session->stats.count; i++)
        sessions->counts.executed += session->stats.sums[i].count;
    dt_session_usage_keep(sessions, session);
    if (session->stream) {
        dt_session_stream_t *stream = session->stream;
        session->stream = NULL;
        stream->session = NULL;
        dt_session_stream_end(sessions, stream, DT_OK, reason);
    } else {
        sessions->away_count--;
    }
    for (dt_list_t *at = session->bulks.next, *next; at != &session->bulks; at = next) {
        next = at->next;
        dt_session_stream_end(sessions, DT_CONTAINER_OF(at, dt_session_stream_t, bulk_list), DT_OK,
                              reason);
    }
    for (dt_list_t *at = session->links.next, *next; at != &session->links; at = next) {
        next = at->next;
        dt_session_link_remove(sessions, DT_CONTAINER_OF(at, dt_session_link_t, list), reason);
    }
    dt_session_unbind(session);
    forget(sessions, session);
    dt_session_free(session);
}
