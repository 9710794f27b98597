/* All methods of all services in one table, the check of roles before any of them, and requests
 * that wait for the core. */
#include <stdlib.h>

#include "controllerd.h"
#include "dtorch/v1/admin.pb-c.h"
#include "dtorch/v1/session.pb-c.h"
#include "dtorch/v1/worker.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "wire/wire.h"

#define UNARY(path_, role_, request_, unary_)                                                      \
    {                                                                                              \
        .path = (path_), .role = (role_), .request = (request_), .unary = (unary_)                 \
    }
#define ADMIN "/dtorch.v1.Admin/"

static const dt_controllerd_method_t methods[] = {
    {.path = "/dtorch.v1.Worker/Stream",
     .role = DT_CONTROLLERD_ROLE_WORKER,
     .ops = &dt_controllerd_worker_ops},
    {.path = "/dtorch.v1.Worker/Join",
     .role = DT_CONTROLLERD_ROLE_NONE,
     .request = &dtorch__v1__join_request__descriptor,
     .unary = dt_controllerd_join},
    {.path = "/dtorch.v1.Session/Stream",
     .role = DT_CONTROLLERD_ROLE_USER,
     .ops = &dt_controllerd_session_ops},
    {.path = "/dtorch.v1.Session/Bulk",
     .role = DT_CONTROLLERD_ROLE_USER,
     .ops = &dt_controllerd_bulk_ops},
    {.path = "/dtorch.v1.Worker/Session",
     .role = DT_CONTROLLERD_ROLE_WORKER,
     .ops = &dt_controllerd_link_ops},
    UNARY(ADMIN "GetCluster", DT_CONTROLLERD_ROLE_VIEWER,
          &dtorch__v1__get_cluster_request__descriptor, dt_controllerd_get_cluster),
    UNARY(ADMIN "ListNodes", DT_CONTROLLERD_ROLE_VIEWER,
          &dtorch__v1__list_nodes_request__descriptor, dt_controllerd_list_nodes),
    UNARY(ADMIN "SetNode", DT_CONTROLLERD_ROLE_OPERATOR, &dtorch__v1__set_node_request__descriptor,
          dt_controllerd_set_node),
    UNARY(ADMIN "ListEvents", DT_CONTROLLERD_ROLE_VIEWER,
          &dtorch__v1__list_events_request__descriptor, dt_controllerd_list_events),
    {.path = "/dtorch.v1.Admin/FollowEvents",
     .role = DT_CONTROLLERD_ROLE_VIEWER,
     .ops = &dt_controllerd_follow_ops,
     .is_server_stream = true},
    UNARY(ADMIN "GetConfig", DT_CONTROLLERD_ROLE_VIEWER,
          &dtorch__v1__get_config_request__descriptor, dt_controllerd_get_config),
    UNARY(ADMIN "GetDiagnostics", DT_CONTROLLERD_ROLE_VIEWER,
          &dtorch__v1__get_diagnostics_request__descriptor, dt_controllerd_get_diagnostics),
    UNARY(ADMIN "CreateToken", DT_CONTROLLERD_ROLE_ADMIN,
          &dtorch__v1__create_token_request__descriptor, dt_controllerd_create_token),
    UNARY(ADMIN "ListTokens", DT_CONTROLLERD_ROLE_ADMIN,
          &dtorch__v1__list_tokens_request__descriptor, dt_controllerd_list_tokens),
    UNARY(ADMIN "RevokeToken", DT_CONTROLLERD_ROLE_ADMIN,
          &dtorch__v1__revoke_token_request__descriptor, dt_controllerd_revoke_token),
    UNARY(ADMIN "CreateKey", DT_CONTROLLERD_ROLE_ADMIN, &dtorch__v1__create_key_request__descriptor,
          dt_controllerd_create_key),
    UNARY(ADMIN "ListKeys", DT_CONTROLLERD_ROLE_ADMIN, &dtorch__v1__list_keys_request__descriptor,
          dt_controllerd_list_keys),
    UNARY(ADMIN "RevokeKey", DT_CONTROLLERD_ROLE_ADMIN, &dtorch__v1__revoke_key_request__descriptor,
          dt_controllerd_revoke_key),
    UNARY(ADMIN "ListJobs", DT_CONTROLLERD_ROLE_VIEWER, &dtorch__v1__list_jobs_request__descriptor,
          dt_controllerd_list_jobs),
    UNARY(ADMIN "GetJob", DT_CONTROLLERD_ROLE_VIEWER, &dtorch__v1__get_job_request__descriptor,
          dt_controllerd_get_job),
    UNARY(ADMIN "EndJob", DT_CONTROLLERD_ROLE_OPERATOR, &dtorch__v1__end_job_request__descriptor,
          dt_controllerd_end_job),
    UNARY(ADMIN "ListTensors", DT_CONTROLLERD_ROLE_VIEWER,
          &dtorch__v1__list_tensors_request__descriptor, dt_controllerd_list_tensors),
    UNARY(ADMIN "GetTimeline", DT_CONTROLLERD_ROLE_VIEWER,
          &dtorch__v1__get_timeline_request__descriptor, dt_controllerd_get_timeline),
    UNARY(ADMIN "GetPlans", DT_CONTROLLERD_ROLE_VIEWER, &dtorch__v1__get_plans_request__descriptor,
          dt_controllerd_get_plans),
    UNARY(ADMIN "GetUsage", DT_CONTROLLERD_ROLE_VIEWER, &dtorch__v1__get_usage_request__descriptor,
          dt_controllerd_get_usage),
    {.path = "/grpc.health.v1.Health/Check",
     .role = DT_CONTROLLERD_ROLE_NONE,
     .request = &grpc__health__v1__health_check_request__descriptor,
     .unary = dt_controllerd_health_check},
    {.path = "/grpc.health.v1.Health/Watch",
     .role = DT_CONTROLLERD_ROLE_NONE,
     .ops = &dt_controllerd_watch_ops,
     .is_server_stream = true},
};

const dt_controllerd_method_t *dt_controllerd_methods(size_t *ret_count)
{
    *ret_count = sizeof methods / sizeof *methods;
    return methods;
}

static dt_status_t deny(const dt_controllerd_method_t *method, const dt_rpc_peer_t *peer,
                        dt_error_t *err)
{
    return dt_fail(err, DT_ERR_DENIED, "dt", 0, "%s needs the role %s, which %s does not have%s",
                   method->path, dt_controllerd_role_text(method->role), peer->address,
                   method->role == DT_CONTROLLERD_ROLE_OPERATOR ||
                           method->role == DT_CONTROLLERD_ROLE_ADMIN
                       ? "; use the admin socket or an admin's certificate"
                       : "");
}

bool dt_controllerd_door_admits(const dt_controllerd_door_t *door, dt_rpc_stream_t *stream)
{
    const dt_rpc_peer_t *peer = dt_rpc_stream_peer(stream);
    dt_error_t err;
    if (door->app->is_stopping) {
        dt_rpc_stream_close(stream, DT_ERR_STOPPED, "the controller stops");
        return false;
    }
    if (dt_controllerd_peer_has_role(peer, door->method->role))
        return true;
    dt_rpc_stream_close(stream, deny(door->method, peer, &err), err.text);
    return false;
}

void dt_controllerd_fail(dt_rpc_call_t *call, const dt_error_t *why)
{
    dt_rpc_call_fail(call, why->code, why->text);
}

void dt_controllerd_reply(dt_controllerd_t *app, dt_rpc_call_t *call,
                          const ProtobufCMessage *message)
{
    uint8_t *data;
    size_t size;
    if (dt_wire_pack(message, &app->reply_arena, &data, &size) != DT_OK)
        dt_rpc_call_fail(call, DT_ERR_LIMIT, "the reply is too large");
    else
        dt_rpc_call_reply(call, data, size);
}

/* A request that is no sane message is an offence of the peer; one with a value out of bounds is so
 * only from where programs of ours, not people, send. */
static bool is_offence(const dt_rpc_peer_t *peer, const dt_error_t *err)
{
    return err->source_code == DT_WIRE_SIZE || err->source_code == DT_WIRE_SYNTAX ||
           peer->listener != DT_CONTROLLERD_LISTENER_ADMIN;
}

/* What all unary methods begin with. */
static void enter(dt_rpc_call_t *call, const uint8_t *data, size_t size, void *arg)
{
    dt_controllerd_door_t *door = arg;
    dt_controllerd_t *app = door->app;
    const dt_rpc_peer_t *peer = dt_rpc_call_peer(call);
    ProtobufCMessage *request;
    dt_error_t err;
    if (!dt_controllerd_peer_has_role(peer, door->method->role)) {
        (void)deny(door->method, peer, &err);
        dt_controllerd_fail(call, &err);
        return;
    }
    dt_arena_reset(&app->request_arena);
    dt_arena_reset(&app->reply_arena);
    if (dt_wire_unpack(door->method->request, &app->request_arena, data, size, &request, &err) !=
        DT_OK) {
        if (is_offence(peer, &err)) {
            char address[sizeof peer->address];
            (void)dt_str_copy(address, sizeof address, peer->address);
            dt_cluster_peer_misbehaved(app->cluster, address, err.text, dt_loop_now_ns());
        }
        dt_controllerd_fail(call, &err);
    } else {
        door->method->unary(app, call, request);
    }
    dt_controllerd_pump(app);
}

/* Make what lib/rpc wants of the table. */
dt_status_t dt_controllerd_doors_make(dt_controllerd_t *app, dt_error_t *err)
{
    const size_t count = sizeof methods / sizeof *methods;
    app->doors = calloc(count, sizeof *app->doors);
    app->rpc_methods = calloc(count, sizeof *app->rpc_methods);
    if (!app->doors || !app->rpc_methods)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    app->method_count = count;
    for (size_t i = 0; i < count; i++) {
        app->doors[i] = (dt_controllerd_door_t){.app = app, .method = &methods[i]};
        app->rpc_methods[i] = (dt_rpc_method_t){
            .name = methods[i].path,
            .ops = methods[i].ops,
            .unary = methods[i].unary ? enter : NULL,
            .is_server_stream = methods[i].is_server_stream,
            .arg = &app->doors[i],
        };
    }
    return DT_OK;
}

/* ---- tickets ---- */

uint64_t dt_controllerd_ticket_make(dt_controllerd_t *app, dt_rpc_call_t *call, uint8_t *held,
                                    size_t held_size)
{
    dt_controllerd_ticket_t *ticket = malloc(sizeof *ticket);
    if (!ticket) {
        free(held);
        dt_rpc_call_fail(call, DT_ERR_NOMEM, "out of memory");
        return 0;
    }
    *ticket = (dt_controllerd_ticket_t){
        .number = ++app->ticket_last, .call = call, .held = held, .held_size = held_size};
    dt_list_push(&app->tickets, &ticket->link);
    return ticket->number;
}

static void ticket_free(dt_controllerd_ticket_t *ticket)
{
    free(ticket->held);
    free(ticket);
}

void dt_controllerd_ticket_answer(dt_controllerd_t *app, const dt_cluster_action_t *action)
{
    for (dt_list_t *at = app->tickets.next; at != &app->tickets; at = at->next) {
        dt_controllerd_ticket_t *ticket = DT_CONTAINER_OF(at, dt_controllerd_ticket_t, link);
        if (ticket->number != action->ticket)
            continue;
        dt_list_remove(&ticket->link);
        if (action->status != DT_OK)
            dt_rpc_call_fail(ticket->call, action->status, action->text);
        else if (ticket->held)
            dt_rpc_call_reply(ticket->call, ticket->held, ticket->held_size);
        else
            dt_rpc_call_reply(ticket->call, action->data, action->size);
        ticket_free(ticket);
        return;
    }
}

void dt_controllerd_ticket_fail_all(dt_controllerd_t *app, dt_status_t status, const char *text)
{
    dt_list_t *at = app->tickets.next, *next;
    for (; at != &app->tickets; at = next) {
        dt_controllerd_ticket_t *ticket = DT_CONTAINER_OF(at, dt_controllerd_ticket_t, link);
        next = at->next;
        dt_rpc_call_fail(ticket->call, status, text);
        ticket_free(ticket);
    }
    dt_list_init(&app->tickets);
}
