/* Service grpc.health.v1.Health: the standard question whether a service serves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controllerd.h"
#include "grpc/health/v1/health.pb-c.h"
#include "wire/wire.h"

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_t;

#define SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define NO_SERVICE  GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct watcher {
    dt_list_t link;
    dt_controllerd_t *app;
    dt_rpc_stream_t *stream;
    char service[129];
    bool has_asked;
    bool is_ending;
    serving_t told; /* the last status sent; 0 (UNKNOWN): none */
};

static serving_t serving(const dt_controllerd_t *app, const char *service)
{
    if (strcmp(service, "dtorch.v1.Session") == 0)
        return NOT_SERVING; /* it is there, and refuses by name what it lacks */
    if (*service && strcmp(service, "dtorch.v1.Worker") != 0 &&
        strcmp(service, "dtorch.v1.Admin") != 0 && strcmp(service, "grpc.health.v1.Health") != 0)
        return NO_SERVICE;
    return dt_controllerd_not_serving(app) ? NOT_SERVING : SERVING;
}

void dt_controllerd_health_check(dt_controllerd_t *app, dt_rpc_call_t *call,
                                 const ProtobufCMessage *message)
{
    const Grpc__Health__V1__HealthCheckRequest *request =
        (const Grpc__Health__V1__HealthCheckRequest *)message;
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = serving(app, request->service);
    if (response.status == NO_SERVICE)
        dt_rpc_call_fail(call, DT_ERR_NOT_FOUND, "no such service");
    else
        dt_controllerd_reply(app, call, &response.base);
}

/* Send the status if it changed; one that reads slowly gets only the last, unless this `is_end`. */
static void tell(struct watcher *w, bool is_end)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    uint8_t data[16];
    size_t size;
    if (!w->has_asked || w->is_ending || (!is_end && dt_rpc_stream_queued(w->stream) > 0))
        return;
    response.status = serving(w->app, w->service);
    if (response.status == w->told)
        return;
    size = grpc__health__v1__health_check_response__pack(&response, data);
    if (dt_rpc_stream_send(w->stream, data, size) == DT_OK)
        w->told = response.status;
}

static void watch_open(dt_rpc_stream_t *stream)
{
    dt_controllerd_door_t *door = dt_rpc_stream_arg(stream);
    dt_controllerd_t *app = door->app;
    struct watcher *w;
    dt_rpc_stream_set_arg(stream, NULL);
    if (!dt_controllerd_door_admits(door, stream))
        return;
    if (app->watcher_count >= DT_CONTROLLERD_FOLLOWER_MAX) {
        dt_rpc_stream_close(stream, DT_ERR_AGAIN, "too many watch the health already");
        return;
    }
    w = calloc(1, sizeof *w);
    if (!w) {
        dt_rpc_stream_cancel(stream, DT_ERR_NOMEM, "out of memory");
        return;
    }
    w->app = app;
    w->stream = stream;
    dt_list_push(&app->watchers, &w->link);
    app->watcher_count++;
    dt_rpc_stream_set_arg(stream, w);
}

static void watch_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    struct watcher *w = dt_rpc_stream_arg(stream);
    Grpc__Health__V1__HealthCheckRequest *request;
    dt_error_t err;
    if (!w || w->has_asked || w->is_ending)
        return;
    dt_arena_reset(&w->app->request_arena);
    if (DT_WIRE_UNPACK(grpc__health__v1__health_check_request, &w->app->request_arena, data, size,
                       &request, &err) != DT_OK) {
        w->is_ending = true;
        dt_rpc_stream_close(stream, err.code, err.text);
        return;
    }
    (void)dt_str_copy(w->service, sizeof w->service, request->service);
    w->has_asked = true;
    tell(w, false);
}

static void watch_drained(dt_rpc_stream_t *stream)
{
    struct watcher *w = dt_rpc_stream_arg(stream);
    if (w)
        tell(w, false); /* it may have changed meanwhile */
}

static void watch_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    struct watcher *w = dt_rpc_stream_arg(stream);
    (void)why;
    if (!w)
        return;
    dt_list_remove(&w->link);
    w->app->watcher_count--;
    free(w);
}

const dt_rpc_stream_ops_t dt_controllerd_watch_ops = {
    .open = watch_open,
    .message = watch_message,
    .drained = watch_drained,
    .closed = watch_closed,
};

void dt_controllerd_watch_tell(dt_controllerd_t *app)
{
    for (dt_list_t *at = app->watchers.next; at != &app->watchers; at = at->next)
        tell(DT_CONTAINER_OF(at, struct watcher, link), false);
}

void dt_controllerd_watch_end(dt_controllerd_t *app)
{
    for (dt_list_t *at = app->watchers.next; at != &app->watchers; at = at->next) {
        struct watcher *w = DT_CONTAINER_OF(at, struct watcher, link);
        tell(w, true);
        w->is_ending = true;
        /* Status OK: another one can make the client drop the message before it. */
        dt_rpc_stream_close(w->stream, DT_OK, "the controller stops");
    }
}
