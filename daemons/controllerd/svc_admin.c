/* Service Admin: what dtorchctl asks. Changes go through the core and wait until they are durable.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "controllerd.h"
#include "dtorch/v1/admin.pb-c.h"
#include "observe.h"
#include "wire/wire.h"

#define BY_MAX           320
#define LIST_NODES_MAX   1000
#define LIST_EVENTS_MAX  10000
#define LIST_EVENTS_DFLT 1000

static dt_error_t *no_memory(dt_error_t *err)
{
    (void)dt_fail(err, DT_ERR_LIMIT, "dt", 0, "the reply is too large");
    return err;
}

/* ---- the cluster ---- */

void dt_controllerd_get_cluster(dt_controllerd_t *app, dt_rpc_call_t *call,
                                const ProtobufCMessage *message)
{
    Dtorch__V1__ClusterStatus *status;
    int64_t now_ns = dt_loop_now_ns();
    dt_error_t err;
    (void)message;
    if (dt_cluster_get(app->cluster, &app->reply_arena, now_ns, &status) != DT_OK ||
        dt_controllerd_complete_status(app, now_ns, status) != DT_OK) {
        dt_controllerd_fail(call, no_memory(&err));
        return;
    }
    dt_controllerd_reply(app, call, &status->base);
}

/* ---- nodes ---- */

/* Lists are cut to what one reply may hold: half as many, until they fit. */
void dt_controllerd_list_nodes(dt_controllerd_t *app, dt_rpc_call_t *call,
                               const ProtobufCMessage *message)
{
    Dtorch__V1__ListNodesRequest request = *(const Dtorch__V1__ListNodesRequest *)message;
    Dtorch__V1__NodeList *list;
    dt_error_t err;
    request.limit = request.limit ? request.limit : LIST_NODES_MAX;
    for (; request.limit; request.limit /= 2) {
        uint8_t *data;
        size_t size;
        dt_arena_reset(&app->reply_arena);
        if (dt_cluster_list_nodes(app->cluster, &request, &app->reply_arena, dt_loop_now_ns(),
                                  &list) == DT_OK &&
            dt_wire_pack(&list->base, &app->reply_arena, &data, &size) == DT_OK &&
            size <= DT_CONTROLLERD_REPLY_MAX) {
            dt_rpc_call_reply(call, data, size);
            return;
        }
    }
    dt_controllerd_fail(call, no_memory(&err));
}

void dt_controllerd_set_node(dt_controllerd_t *app, dt_rpc_call_t *call,
                             const ProtobufCMessage *message)
{
    char by[BY_MAX];
    uint64_t ticket;
    dt_controllerd_peer_name(dt_rpc_call_peer(call), by, sizeof by);
    ticket = dt_controllerd_ticket_make(app, call, NULL, 0);
    if (ticket)
        dt_cluster_set_node(app->cluster, ticket, (const Dtorch__V1__SetNodeRequest *)message, by,
                            dt_loop_now_ns());
}

/* ---- events ---- */

dt_status_t dt_controllerd_pack_events(dt_controllerd_t *app,
                                       const Dtorch__V1__ListEventsRequest *wanted,
                                       uint8_t **ret_data, size_t *ret_size, uint64_t *ret_last)
{
    Dtorch__V1__ListEventsRequest request = *wanted;
    Dtorch__V1__EventList *list;
    request.limit = request.limit ? request.limit : LIST_EVENTS_DFLT;
    for (bool is_cut = false; request.limit; request.limit /= 2, is_cut = true) {
        dt_arena_reset(&app->reply_arena);
        if (dt_cluster_list_events(app->cluster, &request, &app->reply_arena, &list) != DT_OK)
            continue;
        if (is_cut && list->n_events)
            list->lost_before_sequence = list->events[0]->sequence;
        if (dt_wire_pack(&list->base, &app->reply_arena, ret_data, ret_size) != DT_OK ||
            *ret_size > DT_CONTROLLERD_REPLY_MAX)
            continue;
        *ret_last = list->n_events ? list->events[list->n_events - 1]->sequence : 0;
        return DT_OK;
    }
    return DT_ERR_LIMIT;
}

void dt_controllerd_list_events(dt_controllerd_t *app, dt_rpc_call_t *call,
                                const ProtobufCMessage *message)
{
    uint8_t *data;
    uint64_t last;
    dt_error_t err;
    size_t size;
    if (dt_controllerd_pack_events(app, (const Dtorch__V1__ListEventsRequest *)message, &data,
                                   &size, &last) != DT_OK)
        dt_controllerd_fail(call, no_memory(&err));
    else
        dt_rpc_call_reply(call, data, size);
}

/* One that follows events. It gets the next batch when it has taken the last, so a slow one costs
 * no memory; one that takes nothing for DT_CONTROLLERD_STALL_NS goes. */
struct follower {
    dt_list_t link;
    dt_controllerd_t *app;
    dt_rpc_stream_t *stream;
    Dtorch__V1__ListEventsRequest request; /* node points to `node` */
    char node[64];
    int64_t sent_ns; /* when the batch that still waits was given; 0: none waits */
    bool has_asked;
    bool is_ending;
};

static void follower_feed(struct follower *f)
{
    dt_controllerd_t *app = f->app;
    uint8_t *data;
    uint64_t last;
    size_t size;
    if (!f->has_asked || f->is_ending || dt_rpc_stream_queued(f->stream) > 0)
        return;
    if (dt_controllerd_pack_events(app, &f->request, &data, &size, &last) != DT_OK)
        return;
    /* What the filter held back is not asked for again. */
    f->request.after_sequence = app->events_fed;
    f->request.since_wall_ms = 0;
    f->request.limit = LIST_EVENTS_MAX;
    if (!last)
        return;
    if (dt_rpc_stream_send(f->stream, data, size) == DT_OK) {
        f->sent_ns = dt_loop_now_ns();
    } else {
        f->is_ending = true;
        dt_rpc_stream_cancel(f->stream, DT_ERR_LIMIT, "the follower does not read");
    }
}

static void follow_open(dt_rpc_stream_t *stream)
{
    dt_controllerd_door_t *door = dt_rpc_stream_arg(stream);
    dt_controllerd_t *app = door->app;
    struct follower *f;
    dt_rpc_stream_set_arg(stream, NULL);
    if (!dt_controllerd_door_admits(door, stream))
        return;
    if (app->follower_count >= DT_CONTROLLERD_FOLLOWER_MAX) {
        char text[96];
        (void)snprintf(text, sizeof text, "%d others follow the events already",
                       DT_CONTROLLERD_FOLLOWER_MAX);
        dt_rpc_stream_close(stream, DT_ERR_AGAIN, text);
        return;
    }
    f = calloc(1, sizeof *f);
    if (!f) {
        dt_rpc_stream_cancel(stream, DT_ERR_NOMEM, "out of memory");
        return;
    }
    f->app = app;
    f->stream = stream;
    dt_list_push(&app->followers, &f->link);
    app->follower_count++;
    dt_rpc_stream_set_arg(stream, f);
}

static void follow_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    struct follower *f = dt_rpc_stream_arg(stream);
    Dtorch__V1__ListEventsRequest *request;
    dt_error_t err;
    if (!f || f->has_asked || f->is_ending)
        return;
    dt_arena_reset(&f->app->request_arena);
    if (DT_WIRE_UNPACK(dtorch__v1__list_events_request, &f->app->request_arena, data, size,
                       &request, &err) != DT_OK) {
        f->is_ending = true;
        dt_rpc_stream_close(stream, err.code, err.text);
        return;
    }
    f->request = *request;
    (void)dt_str_copy(f->node, sizeof f->node, request->node);
    f->request.node = f->node;
    f->has_asked = true;
    follower_feed(f);
}

static void follow_drained(dt_rpc_stream_t *stream)
{
    struct follower *f = dt_rpc_stream_arg(stream);
    if (!f)
        return;
    f->sent_ns = 0;
    follower_feed(f);
}

static void follow_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    struct follower *f = dt_rpc_stream_arg(stream);
    (void)why;
    if (!f)
        return;
    dt_list_remove(&f->link);
    f->app->follower_count--;
    free(f);
}

const dt_rpc_stream_ops_t dt_controllerd_follow_ops = {
    .open = follow_open,
    .message = follow_message,
    .drained = follow_drained,
    .closed = follow_closed,
};

void dt_controllerd_follow_feed(dt_controllerd_t *app)
{
    uint64_t visible = dt_cluster_events_visible(app->cluster);
    if (visible == app->events_fed)
        return;
    app->events_fed = visible;
    for (dt_list_t *at = app->followers.next; at != &app->followers; at = at->next)
        follower_feed(DT_CONTAINER_OF(at, struct follower, link));
}

void dt_controllerd_follow_sweep(dt_controllerd_t *app, int64_t now_ns)
{
    for (dt_list_t *at = app->followers.next; at != &app->followers; at = at->next) {
        struct follower *f = DT_CONTAINER_OF(at, struct follower, link);
        char address[sizeof((dt_rpc_peer_t *)0)->address];
        if (f->is_ending || !f->sent_ns || now_ns - f->sent_ns <= DT_CONTROLLERD_STALL_NS ||
            dt_rpc_stream_queued(f->stream) == 0)
            continue;
        f->is_ending = true;
        (void)dt_str_copy(address, sizeof address, dt_rpc_stream_peer(f->stream)->address);
        dt_rpc_stream_cancel(f->stream, DT_ERR_LIMIT, "the follower does not read");
        dt_cluster_peer_misbehaved(app->cluster, address, "follows events and does not read them",
                                   now_ns);
    }
}

void dt_controllerd_follow_end(dt_controllerd_t *app)
{
    for (dt_list_t *at = app->followers.next; at != &app->followers; at = at->next) {
        struct follower *f = DT_CONTAINER_OF(at, struct follower, link);
        f->is_ending = true;
        dt_rpc_stream_close(f->stream, DT_ERR_STOPPED, "the controller stops");
    }
}

/* ---- configuration and diagnostics ---- */

void dt_controllerd_get_config(dt_controllerd_t *app, dt_rpc_call_t *call,
                               const ProtobufCMessage *message)
{
    Dtorch__V1__ConfigList list = DTORCH__V1__CONFIG_LIST__INIT;
    size_t count = dt_conf_entry_count(app->conf);
    Dtorch__V1__ConfigItem *items =
        dt_arena_calloc(&app->reply_arena, count ? count : 1, sizeof *items);
    dt_error_t err;
    (void)message;
    list.items = dt_arena_calloc(&app->reply_arena, count ? count : 1, sizeof *list.items);
    if (!items || !list.items) {
        dt_controllerd_fail(call, no_memory(&err));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        dt_conf_entry_t entry;
        dt_conf_entry(app->conf, i, &entry);
        dtorch__v1__config_item__init(&items[i]);
        items[i].section = (char *)(uintptr_t)entry.section;
        items[i].key = (char *)(uintptr_t)entry.option->name;
        items[i].value = (char *)(uintptr_t)entry.value;
        items[i].origin = (char *)(uintptr_t)entry.origin;
        items[i].reloadable = entry.option->is_reloadable;
        list.items[i] = &items[i];
    }
    list.n_items = count;
    list.hash = (char *)(uintptr_t)dt_conf_hash(app->conf);
    dt_controllerd_reply(app, call, &list.base);
}

void dt_controllerd_get_diagnostics(dt_controllerd_t *app, dt_rpc_call_t *call,
                                    const ProtobufCMessage *message)
{
    Dtorch__V1__Diagnostics *diagnostics;
    dt_error_t err;
    (void)message;
    if (dt_controllerd_diagnose(app, dt_loop_now_ns(), &diagnostics) != DT_OK)
        dt_controllerd_fail(call, no_memory(&err));
    else
        dt_controllerd_reply(app, call, &diagnostics->base);
}

/* ---- tokens ---- */

void dt_controllerd_create_token(dt_controllerd_t *app, dt_rpc_call_t *call,
                                 const ProtobufCMessage *message)
{
    dt_cluster_new_token_t token;
    dt_pki_token_t made;
    char by[BY_MAX], text[DT_PKI_TOKEN_SIZE];
    uint64_t ticket;
    if (!app->tls.ca_key) {
        dt_rpc_call_fail(call, DT_ERR_DENIED,
                         "nodes cannot join: this controller has no Certificate=, Key=, "
                         "CertificateAuthority= and CertificateAuthorityKey=; make them with "
                         "`dtorchctl setup controller`");
        return;
    }
    dt_controllerd_peer_name(dt_rpc_call_peer(call), by, sizeof by);
    ticket = dt_controllerd_ticket_make(app, call, NULL, 0);
    if (!ticket)
        return;
    dt_pki_token_make(app->tls.ca_info.sha256, &made);
    dt_pki_token_format(&made, text);
    token = (dt_cluster_new_token_t){.id = made.id, .token = text};
    dt_controllerd_secret_hash(made.secret, token.secret_sha256);
    dt_cluster_create_token(app->cluster, ticket, (const Dtorch__V1__CreateTokenRequest *)message,
                            &token, by, dt_loop_now_ns());
    explicit_bzero(&made, sizeof made);
    explicit_bzero(text, sizeof text);
}

void dt_controllerd_list_tokens(dt_controllerd_t *app, dt_rpc_call_t *call,
                                const ProtobufCMessage *message)
{
    Dtorch__V1__TokenList *list;
    dt_error_t err;
    (void)message;
    if (dt_cluster_list_tokens(app->cluster, &app->reply_arena, dt_loop_now_ns(), &list) != DT_OK)
        dt_controllerd_fail(call, no_memory(&err));
    else
        dt_controllerd_reply(app, call, &list->base);
}

void dt_controllerd_revoke_token(dt_controllerd_t *app, dt_rpc_call_t *call,
                                 const ProtobufCMessage *message)
{
    char by[BY_MAX];
    uint64_t ticket;
    dt_controllerd_peer_name(dt_rpc_call_peer(call), by, sizeof by);
    ticket = dt_controllerd_ticket_make(app, call, NULL, 0);
    if (ticket)
        dt_cluster_revoke_token(app->cluster, ticket,
                                (const Dtorch__V1__RevokeTokenRequest *)message, by,
                                dt_loop_now_ns());
}
