/* Service Session: programs' operator streams. This build has none: a Hello is answered with a
 * Refusal that names the missing feature, so that a newer client can say what it needs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/version.h"
#include "controllerd.h"
#include "dtorch/v1/session.pb-c.h"
#include "wire/wire.h"

struct session {
    dt_list_t link;
    dt_controllerd_t *app;
    dt_rpc_stream_t *stream;
    int64_t opened_ns;
    bool is_ending;
};

/* Send a Refusal and end the stream; with status OK, since a client of gRPC may drop a message that
 * it has not read when another status follows. */
static void refuse(struct session *s, Dtorch__V1__Refusal__Code code, const char *text)
{
    Dtorch__V1__Refusal refusal = DTORCH__V1__REFUSAL__INIT;
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    uint8_t *data;
    size_t size;
    refusal.code = code;
    refusal.text = (char *)(uintptr_t)text;
    refusal.retry = code == DTORCH__V1__REFUSAL__CODE__STOPPING;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_REFUSAL;
    down.refusal = &refusal;
    s->is_ending = true;
    dt_arena_reset(&s->app->reply_arena);
    if (dt_wire_pack(&down.base, &s->app->reply_arena, &data, &size) == DT_OK)
        (void)!dt_rpc_stream_send(s->stream, data, size);
    dt_rpc_stream_close(s->stream, DT_OK, text);
}

static void on_open(dt_rpc_stream_t *stream)
{
    dt_controllerd_door_t *door = dt_rpc_stream_arg(stream);
    dt_controllerd_t *app = door->app;
    struct session *s;
    dt_rpc_stream_set_arg(stream, NULL);
    if (!dt_controllerd_door_admits(door, stream))
        return;
    if (app->session_count >= DT_CONTROLLERD_SESSION_MAX) {
        dt_rpc_stream_close(stream, DT_ERR_AGAIN, "too many session streams are open");
        return;
    }
    s = calloc(1, sizeof *s);
    if (!s) {
        dt_rpc_stream_cancel(stream, DT_ERR_NOMEM, "out of memory");
        return;
    }
    s->app = app;
    s->stream = stream;
    s->opened_ns = dt_loop_now_ns();
    dt_list_push(&app->sessions, &s->link);
    app->session_count++;
    dt_rpc_stream_set_arg(stream, s);
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    struct session *s = dt_rpc_stream_arg(stream);
    Dtorch__V1__SessionUp *up;
    dt_controllerd_t *app;
    dt_error_t err;
    if (!s || s->is_ending)
        return;
    app = s->app;
    dt_arena_reset(&app->request_arena);
    if (DT_WIRE_UNPACK(dtorch__v1__session_up, &app->request_arena, data, size, &up, &err) !=
        DT_OK) {
        dt_cluster_peer_misbehaved(app->cluster, dt_rpc_stream_peer(stream)->address, err.text,
                                   dt_loop_now_ns());
        refuse(s, DTORCH__V1__REFUSAL__CODE__MALFORMED, err.text);
        dt_controllerd_pump(app);
        return;
    }
    if (up->kind_case != DTORCH__V1__SESSION_UP__KIND_HELLO)
        refuse(s, DTORCH__V1__REFUSAL__CODE__MALFORMED, "the first message must be a hello");
    else if (dt_wire_check_version(up->hello->version, "client", up->hello->build, &err) != DT_OK)
        refuse(s, DTORCH__V1__REFUSAL__CODE__VERSION, err.text);
    else
        refuse(s, DTORCH__V1__REFUSAL__CODE__UNSUPPORTED,
               "this controller has no operator stream: the feature \"operator-stream\" is not in "
               "its build");
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    struct session *s = dt_rpc_stream_arg(stream);
    (void)why;
    if (!s)
        return;
    dt_list_remove(&s->link);
    s->app->session_count--;
    free(s);
}

const dt_rpc_stream_ops_t dt_controllerd_session_ops = {
    .open = on_open,
    .message = on_message,
    .closed = on_closed,
};

void dt_controllerd_session_sweep(dt_controllerd_t *app, int64_t now_ns)
{
    int64_t timeout_ns = dt_conf_duration_ns(app->conf, "HelloTimeout");
    for (dt_list_t *at = app->sessions.next; at != &app->sessions; at = at->next) {
        struct session *s = DT_CONTAINER_OF(at, struct session, link);
        char address[sizeof((dt_rpc_peer_t *)0)->address];
        if (s->is_ending || now_ns - s->opened_ns < timeout_ns)
            continue;
        (void)dt_str_copy(address, sizeof address, dt_rpc_stream_peer(s->stream)->address);
        refuse(s, DTORCH__V1__REFUSAL__CODE__MALFORMED, "no hello in time");
        dt_cluster_peer_misbehaved(app->cluster, address, "opened a session and said no hello",
                                   now_ns);
    }
}

void dt_controllerd_session_end(dt_controllerd_t *app)
{
    for (dt_list_t *at = app->sessions.next; at != &app->sessions; at = at->next) {
        struct session *s = DT_CONTAINER_OF(at, struct session, link);
        if (!s->is_ending)
            refuse(s, DTORCH__V1__REFUSAL__CODE__STOPPING, "the controller stops");
    }
}
