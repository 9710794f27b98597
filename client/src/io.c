/* The I/O thread: dials, sends frames, beats, dials again. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "client.h"
#include "wire/wire.h"

#define STREAM_METHOD    "/dtorch.v1.Session/Stream"
#define OPEN_MS          5000
#define WELCOME_NS       (10 * DT_CLOCK_SECOND_NS) /* from dial to Welcome */
#define BACKOFF_FIRST_NS (20 * DT_CLOCK_MS_NS)
#define BACKOFF_MAX_NS   DT_CLOCK_SECOND_NS /* in the first 30 s away */
#define BACKOFF_LONG_NS  (5 * DT_CLOCK_SECOND_NS)
#define BACKOFF_AFTER_NS (30 * DT_CLOCK_SECOND_NS)
#define DONE_COUNT       1024u /* FuturesDone is sent at these, or after DONE_NS */
#define DONE_BYTES       (1u << 20)
#define DONE_NS          (50 * DT_CLOCK_MS_NS)
#define DOOR_NS          (100 * DT_CLOCK_MS_NS) /* that a node has to say where it takes bytes */
#define BEAT_NS          (250 * DT_CLOCK_MS_NS) /* until the Welcome says */

static void dial(dt_session_t *session);

/* ---- sending ---- */

void dt_client_io_send(dt_session_t *session, const ProtobufCMessage *up)
{
    uint8_t *bytes;
    size_t size;
    if (!session->io.stream || dt_wire_pack_new(up, &bytes, &size) != DT_OK)
        return;
    if (dt_rpc_stream_send(session->io.stream, bytes, size) == DT_ERR_LIMIT)
        dt_rpc_stream_cancel(session->io.stream, DT_ERR_LIMIT, "the controller does not read");
    free(bytes);
}

static void send_hello(dt_session_t *session)
{
    const dt_client_settings_t *settings = &session->settings;
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionHello hello = DTORCH__V1__SESSION_HELLO__INIT;
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    version.major = DT_WIRE_VERSION_MAJOR;
    version.minor = DT_WIRE_VERSION_MINOR;
    hello.version = &version;
    hello.build = (char *)(uintptr_t)settings->build;
    hello.program = (char *)(uintptr_t)settings->program;
    hello.host = (char *)(uintptr_t)settings->host;
    hello.device_kind = (char *)(uintptr_t)settings->device_kind;
    hello.backend = (char *)(uintptr_t)settings->backend;
    hello.device_count = settings->vdev_count;
    hello.one_device = settings->is_one_device;
    hello.memory_limit_bytes = settings->memory_limit_bytes;
    if (session->io.has_token) {
        hello.session = session->number;
        hello.resume_token = (ProtobufCBinaryData){sizeof session->io.token, session->io.token};
        hello.acked_sequence = session->acked_sequence;
    }
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
    up.hello = &hello;
    dt_client_record_hello(session, &hello);
    dt_client_io_send(session, &up.base);
}

/* What pump_queries() sends while the lock is released. */
struct asked {
    uint64_t number;
    uint32_t vdev, count;
    uint32_t ends[DT_WIRE_AHEAD_MAX];
    dt_buf_t body;
};

static void send_query(dt_session_t *session, const struct asked *asked)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SigQuery query = DTORCH__V1__SIG_QUERY__INIT;
    ProtobufCBinaryData ahead[DT_WIRE_AHEAD_MAX];
    uint32_t first = asked->count ? asked->ends[0] : (uint32_t)asked->body.len;
    query.query = asked->number;
    query.vdev = asked->vdev;
    query.signature = (ProtobufCBinaryData){first, asked->body.data};
    query.ahead = ahead;
    for (uint32_t i = 1; i < asked->count; i++) {
        uint32_t from = asked->ends[i - 1];
        ahead[query.n_ahead++] =
            (ProtobufCBinaryData){asked->ends[i] - from, asked->body.data + from};
    }
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_QUERY;
    up.query = &query;
    dt_client_io_send(session, &up.base);
}

/* Ask what is not asked yet. Lock held; released while sending. */
static void pump_queries(dt_session_t *session)
{
    struct asked asked;
    dt_buf_init(&asked.body, DT_SIGNATURE_BYTES_MAX);
    for (dt_list_t *at = session->queries.next; at != &session->queries;) {
        dt_client_query_t *query = DT_CONTAINER_OF(at, dt_client_query_t, link);
        at = at->next;
        if (query->number)
            continue;
        dt_buf_reset(&asked.body);
        if (dt_buf_append(&asked.body, query->body, query->body_bytes) != DT_OK)
            break;
        query->number = ++session->query_next;
        if (!query->least)
            query->least = query->number;
        asked.number = query->number;
        asked.vdev = query->vdev;
        asked.count = query->body_count;
        if (query->body_count)
            memcpy(asked.ends, query->ends, query->body_count * sizeof *asked.ends);
        session->queries_asked += !query->batch;
        pthread_mutex_unlock(&session->lock);
        send_query(session, &asked);
        pthread_mutex_lock(&session->lock);
        at = session->queries.next; /* the asker may have left */
    }
    dt_buf_fini(&asked.body);
}

/* Put the tag and the length of SessionUp.frame right in front of the frame. */
static const uint8_t *envelope(const dt_client_frame_t *frame, size_t *ret_size)
{
    uint8_t coded[DT_VARINT_BYTES_MAX];
    size_t coded_bytes = (size_t)(dt_varint_put(coded, frame->size) - coded);
    uint8_t *start = frame->bytes - coded_bytes - 1;
    start[0] = 0x12;
    memcpy(start + 1, coded, coded_bytes);
    *ret_size = frame->size + coded_bytes + 1;
    return start;
}

/* Take the next frame that may be sent. Lock held. */
static dt_client_frame_t *take_frame(dt_session_t *session)
{
    dt_client_frame_t *frame = session->unsent;
    size_t payload;
    if (!frame)
        return NULL;
    payload = frame->size - DT_FRAME_HEADER_BYTES;
    if (!frame->is_counted && (session->sent_payload + payload > session->credit_bytes ||
                               frame->last > session->acked_sequence + DT_CLIENT_RECORDS_MAX))
        return NULL;
    if (!frame->is_counted)
        session->sent_payload += payload;
    frame->is_counted = frame->is_sent = true;
    session->sent_sequence = frame->last;
    session->unsent = frame->link.next == &session->frames
                          ? NULL
                          : DT_CONTAINER_OF(frame->link.next, dt_client_frame_t, link);
    /* A program that waits for room goes on when there is a good deal of it, not for each frame. */
    bool was_much = session->unsent_bytes > DT_CLIENT_UNSENT_MAX / 2;
    session->unsent_bytes -= frame->size;
    if (was_much && session->unsent_bytes <= DT_CLIENT_UNSENT_MAX / 2)
        dt_client_changed(session);
    return frame;
}

void dt_client_io_pump(dt_session_t *session)
{
    dt_client_frame_t *frame;
    if (!session->io.stream || !session->io.is_welcome || session->io.is_closing)
        return;
    pthread_mutex_lock(&session->lock);
    pump_queries(session);
    while (session->io.stream && (frame = take_frame(session)) != NULL) {
        size_t size;
        const uint8_t *start = envelope(frame, &size);
        pthread_mutex_unlock(&session->lock);
        dt_client_record_frame(session, frame);
        if (dt_rpc_stream_send(session->io.stream, start, size) == DT_ERR_LIMIT)
            dt_rpc_stream_cancel(session->io.stream, DT_ERR_LIMIT, "the controller does not read");
        pthread_mutex_lock(&session->lock);
    }
    pthread_mutex_unlock(&session->lock);
    dt_client_bulk_pump(session);
}

/* ---- confirming results ---- */

static void send_done(dt_session_t *session, int64_t now_ns)
{
    dt_client_io_t *io = &session->io;
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__FuturesDone done = DTORCH__V1__FUTURES_DONE__INIT;
    pthread_mutex_lock(&session->lock);
    done.future = session->future_base - 1;
    size_t bytes = session->done_bytes;
    pthread_mutex_unlock(&session->lock);
    if (!io->is_welcome || done.future <= io->told_done)
        return;
    if (done.future - io->told_done < DONE_COUNT && bytes - io->told_done_bytes < DONE_BYTES &&
        now_ns - io->told_done_ns < DONE_NS)
        return;
    io->told_done = done.future;
    io->told_done_bytes = bytes;
    io->told_done_ns = now_ns;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_DONE;
    up.done = &done;
    dt_client_io_send(session, &up.base);
}

/* ---- timers ---- */

/* Send the tail of what a program has left behind; runs while there is something to do. */
static void on_tick(void *arg, int64_t deadline_ns)
{
    dt_session_t *session = arg;
    dt_client_io_t *io = &session->io;
    int64_t now_ns = dt_loop_now_ns();
    bool is_busy;
    (void)deadline_ns;
    pthread_mutex_lock(&session->lock);
    if (session->open && session->writer.count > 0 && dt_client_has_lingered(session, now_ns))
        dt_client_close_frame(session);
    if (!session->open && session->free_count > 0) {
        dt_client_put_frees(session, true);
        dt_client_close_frame(session);
    }
    is_busy = session->open || session->free_count > 0 ||
              session->future_base - 1 > io->told_done || !dt_list_is_empty(&session->uploads) ||
              !dt_list_is_empty(&session->downloads) || session->has_refused;
    io->idle_ticks = is_busy ? 0 : io->idle_ticks + 1;
    if (io->idle_ticks > DT_CLIENT_TICKS_IDLE)
        session->is_ticking = false;
    bool is_ticking = session->is_ticking;
    pthread_mutex_unlock(&session->lock);
    dt_client_io_pump(session);
    send_done(session, now_ns);
    io->is_tick_armed = is_ticking;
    if (is_ticking)
        dt_timer_arm(io->tick, now_ns + DT_CLIENT_TICK_NS);
}

static void send_beat(dt_session_t *session)
{
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    beat.sequence = ++session->io.beat_sequence;
    beat.progress = session->io.turns;
    beat.late_ns = session->io.late_ns;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BEAT;
    up.beat = &beat;
    dt_client_io_send(session, &up.base);
}

/* Silence is counted in turns of our own timer that had the chance to read, so that a starved
 * process does not take its own absence for the controller's. */
static void judge(dt_session_t *session)
{
    dt_client_io_t *io = &session->io;
    int64_t heard_ns = dt_rpc_stream_last_rx_ns(io->stream);
    io->silent_turns = heard_ns == io->heard_ns ? io->silent_turns + 1 : 0;
    io->heard_ns = heard_ns;
    if (io->silent_turns > 2 * io->dead_beats)
        dt_rpc_stream_cancel(io->stream, DT_ERR_TIMEOUT, "the controller has fallen silent");
}

static void check_away(dt_session_t *session, int64_t now_ns)
{
    dt_error_t err = {.code = DT_OK};
    if (dt_client_private_check(session, &err) != DT_OK) {
        pthread_mutex_lock(&session->lock);
        dt_client_end(session, err.code, err.text);
        pthread_mutex_unlock(&session->lock);
    } else if (session->state == DT_CLIENT_AWAY &&
               now_ns - session->io.away_since_ns > session->io.grace_ns) {
        pthread_mutex_lock(&session->lock);
        dt_client_end(session, DT_ERR_LOST,
                      "the controller was away for longer than it keeps a session");
        pthread_mutex_unlock(&session->lock);
    }
}

static void on_beat(void *arg, int64_t deadline_ns)
{
    dt_session_t *session = arg;
    dt_client_io_t *io = &session->io;
    int64_t now_ns = dt_loop_now_ns();
    int64_t late_ns = now_ns - deadline_ns;
    io->late_ns = late_ns > io->late_ns / 2 ? late_ns : io->late_ns / 2;
    io->turns++;
    if (io->stream && io->is_welcome) {
        if (io->turns % 2 == 0)
            send_beat(session);
        judge(session);
    } else {
        check_away(session, now_ns);
    }
    dt_timer_arm(io->beat, now_ns + io->beat_ns / 2);
}

static void on_patience(void *arg, int64_t deadline_ns)
{
    dt_session_t *session = arg;
    (void)deadline_ns;
    if (session->io.stream && !session->io.is_welcome)
        dt_rpc_stream_cancel(session->io.stream, DT_ERR_TIMEOUT, "no welcome in time");
}

/* ---- the stream ---- */

void dt_client_io_closed(dt_session_t *session)
{
    if (session->io.is_closing && !session->io.stream && !session->io.bulk)
        dt_rpc_stop(session->io.rpc);
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    dt_session_t *session = dt_rpc_stream_arg(stream);
    dt_client_down(session, data, size);
    send_done(session, dt_loop_now_ns());
}

/* Full jitter between half of it and the whole, so that many clients do not come back at once. */
static int64_t backoff_ns(dt_session_t *session, int64_t now_ns)
{
    dt_client_io_t *io = &session->io;
    bool is_long =
        session->state == DT_CLIENT_AWAY && now_ns - io->away_since_ns > BACKOFF_AFTER_NS;
    int64_t most_ns = is_long ? BACKOFF_LONG_NS : BACKOFF_MAX_NS;
    int64_t ns = BACKOFF_FIRST_NS << (io->attempt < 8 ? io->attempt : 8);
    if (session->settings.is_private)
        return BACKOFF_FIRST_NS / 2;
    ns = ns < most_ns ? ns : most_ns;
    return ns / 2 + (int64_t)(((uint64_t)now_ns * UINT64_C(0x9e3779b97f4a7c15) >> 33) %
                              (uint64_t)(ns / 2 + 1));
}

/* Whether another try would end the same: no right to be here, or a controller whose certificate is
 * not of the authority that we were told. gRPC has only words for the latter. */
static bool is_hopeless(const dt_error_t *why)
{
    return why->code == DT_ERR_DENIED || strstr(why->text, "certificate verify failed") ||
           strstr(why->text, "is not in peer certificate");
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    dt_session_t *session = dt_rpc_stream_arg(stream);
    dt_client_io_t *io = &session->io;
    int64_t now_ns = dt_loop_now_ns();
    bool is_over;
    io->stream = NULL;
    io->is_welcome = false;
    dt_timer_disarm(io->patience);
    pthread_mutex_lock(&session->lock);
    if (session->state == DT_CLIENT_LIVE) {
        session->state = DT_CLIENT_AWAY;
        io->away_since_ns = now_ns;
    } else if (session->state == DT_CLIENT_CONNECTING && is_hopeless(why)) {
        dt_client_end(session, DT_ERR_DENIED, why->text);
    } else if (session->state == DT_CLIENT_CONNECTING && !io->has_refusal) {
        session->end = *why;
    }
    is_over = session->state == DT_CLIENT_ENDED;
    pthread_mutex_unlock(&session->lock);
    if (io->is_closing)
        dt_client_io_closed(session);
    else if (!is_over)
        dt_timer_arm(io->redial, now_ns + backoff_ns(session, now_ns));
    io->attempt++;
}

static void on_redial(void *arg, int64_t deadline_ns)
{
    dt_session_t *session = arg;
    (void)deadline_ns;
    if (!session->io.stream && !session->io.is_closing && session->state != DT_CLIENT_ENDED)
        dial(session);
}

static void dial(dt_session_t *session)
{
    static const dt_rpc_stream_ops_t ops = {.message = on_message, .closed = on_closed};
    const dt_client_settings_t *settings = &session->settings;
    dt_client_io_t *io = &session->io;
    dt_error_t err;
    io->has_refusal = false;
    if (!io->has_token || io->attempt > 0) /* a session's own controller first */
        io->address = io->attempt % settings->address_count;
    dt_rpc_dial_t options = {
        .address = settings->addresses[io->address],
        .tls = settings->has_tls ? &settings->tls : NULL,
        .bearer = settings->api_key,
        .method = STREAM_METHOD,
        .ops = &ops,
        .arg = session,
        .open_ms = OPEN_MS,
        .queue_bytes_max = 16u << 20,
    };
    dt_status_t status = dt_rpc_dial(io->rpc, &options, &io->stream, &err);
    if (status != DT_OK) {
        pthread_mutex_lock(&session->lock);
        dt_client_end(session, status, err.text);
        pthread_mutex_unlock(&session->lock);
        return;
    }
    dt_timer_arm(io->patience, dt_loop_now_ns() + WELCOME_NS);
    send_hello(session);
}

void dt_client_io_welcome(dt_session_t *session, const Dtorch__V1__SessionWelcome *welcome)
{
    dt_client_io_t *io = &session->io;
    dt_client_record_welcome(session, welcome);
    memcpy(io->token, welcome->resume_token.data, sizeof io->token);
    io->has_token = true;
    io->is_welcome = true;
    io->attempt = 0;
    io->silent_turns = 0;
    io->beat_sequence = 0;
    io->beat_ns = welcome->heartbeat_ms * DT_CLOCK_MS_NS;
    io->dead_beats = welcome->dead_beats;
    io->grace_ns = welcome->grace_ms * DT_CLOCK_MS_NS;
    io->door_ns = dt_loop_now_ns() + DOOR_NS;
    if (welcome->results_done < io->told_done)
        io->told_done = welcome->results_done;
    dt_timer_disarm(io->patience);
    dt_timer_arm(io->beat, dt_loop_now_ns() + io->beat_ns / 2);
}

/* ---- the thread ---- */

static void begin_close(dt_session_t *session)
{
    dt_client_io_t *io = &session->io;
    io->is_closing = true;
    dt_timer_disarm(io->redial);
    dt_timer_disarm(io->tick);
    if (io->stream && io->is_welcome) {
        Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
        Dtorch__V1__SessionBye bye = DTORCH__V1__SESSION_BYE__INIT;
        dt_client_record_end(session);
        up.kind_case = DTORCH__V1__SESSION_UP__KIND_BYE;
        up.bye = &bye;
        dt_client_io_send(session, &up.base);
        dt_rpc_stream_close(io->stream, DT_OK, NULL);
    } else if (io->stream) {
        dt_rpc_stream_cancel(io->stream, DT_ERR_STOPPED, "the session ends");
    }
    dt_client_bulk_close(session);
    dt_client_io_closed(session);
}

void dt_client_io_woken(dt_session_t *session)
{
    dt_client_io_t *io = &session->io;
    pthread_mutex_lock(&session->lock);
    bool should_end = session->should_end;
    bool should_tick = session->is_ticking;
    bool should_lend = session->answer_waits > 0 && session->state == DT_CLIENT_LIVE;
    pthread_mutex_unlock(&session->lock);
    if (should_end) {
        if (!io->is_closing)
            begin_close(session);
        return;
    }
    if (should_tick && !io->is_tick_armed) {
        io->is_tick_armed = true;
        io->idle_ticks = 0;
        dt_timer_arm(io->tick, dt_loop_now_ns() + DT_CLIENT_TICK_NS);
    }
    dt_client_io_pump(session);
    if (should_lend)
        dt_rpc_lend(io->rpc);
}

static void on_wake(void *arg)
{
    dt_client_io_woken(arg);
}

/* Who waits can have it now. */
static void on_lent(void *arg)
{
    dt_session_t *session = arg;
    pthread_mutex_lock(&session->lock);
    pthread_cond_broadcast(&session->changed);
    pthread_mutex_unlock(&session->lock);
}

void dt_client_io_kick(dt_session_t *session)
{
    if (session->may_defer || session->sends_itself)
        session->must_kick = true;
    else if (session->wake)
        dt_rpc_wake(session->wake);
}

static dt_status_t set_up(dt_session_t *session, dt_error_t *err)
{
    dt_client_io_t *io = &session->io;
    dt_rpc_wake_t *wake;
    dt_arena_init(&io->arena, DT_WIRE_ARENA_MAX);
    io->beat_ns = BEAT_NS;
    io->dead_beats = 8;
    DT_TRY(dt_loop_create(&io->loop, err));
    if (session->settings.is_private)
        DT_TRY(dt_client_private_start(session, err));
    DT_TRY(dt_rpc_create(io->loop, NULL, &io->rpc, err));
    dt_rpc_share(io->rpc, on_lent, session);
    DT_TRY(dt_timer_create(io->loop, on_tick, session, &io->tick, err));
    DT_TRY(dt_timer_create(io->loop, on_beat, session, &io->beat, err));
    DT_TRY(dt_timer_create(io->loop, on_redial, session, &io->redial, err));
    DT_TRY(dt_timer_create(io->loop, on_patience, session, &io->patience, err));
    DT_TRY(dt_rpc_wake_create(io->rpc, on_wake, session, &wake, err));
    pthread_mutex_lock(&session->lock);
    session->wake = wake;
    bool should_end = session->should_end;
    pthread_mutex_unlock(&session->lock);
    if (should_end)
        dt_rpc_wake(wake);
    dt_timer_arm(io->beat, dt_loop_now_ns() + io->beat_ns / 2);
    return DT_OK;
}

static void tear_down(dt_session_t *session)
{
    dt_client_io_t *io = &session->io;
    pthread_mutex_lock(&session->lock);
    dt_rpc_wake_t *wake = DT_TAKE(session->wake);
    pthread_mutex_unlock(&session->lock);
    dt_rpc_wake_free(wake);
    dt_client_paths_close(session);
    dt_timer_free(io->tick);
    dt_timer_free(io->beat);
    dt_timer_free(io->redial);
    dt_timer_free(io->patience);
    (void)dt_rpc_free(io->rpc);
    dt_client_private_stop(session);
    (void)dt_loop_free(io->loop);
    dt_arena_fini(&io->arena);
    free(io->bulk_buffer);
}

static void *io_main(void *arg)
{
    dt_session_t *session = arg;
    dt_error_t err;
    (void)prctl(PR_SET_NAME, "dtorch-io");
    if (set_up(session, &err) != DT_OK) {
        pthread_mutex_lock(&session->lock);
        dt_client_end(session, err.code, err.text);
        pthread_mutex_unlock(&session->lock);
    } else {
        dial(session);
        dt_rpc_run(session->io.rpc);
    }
    tear_down(session);
    return NULL;
}

dt_status_t dt_client_io_start(dt_session_t *session, dt_error_t *err)
{
    sigset_t all, old;
    int rc;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the program's own */
    rc = pthread_create(&session->thread, NULL, io_main, session);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return dt_fail(err, DT_ERR_AGAIN, "errno", rc, "thread: %s", strerror(rc));
    session->has_thread = true;
    return DT_OK;
}
