/* Service Worker: the node agents' streams, and joining. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "controllerd.h"
#include "dtorch/v1/worker.pb-c.h"
#include "wire/wire.h"

#define RENEW_TOKEN "renew" /* in place of a token, by a node that shows its certificate */

/* One open stream; the stream's own pointer leads here. */
struct worker_stream {
    dt_list_t link; /* in its bucket */
    dt_controllerd_t *app;
    dt_rpc_stream_t *stream;
    uint64_t id;
    int64_t stalled_ns; /* since when something waits to be written; 0: nothing does */
    bool is_dropped;    /* it goes for not reading */
};

static dt_list_t *bucket_of(dt_controllerd_t *app, uint64_t id)
{
    return &app->worker_buckets[dt_hash_u64(id) % DT_CONTROLLERD_BUCKET_COUNT];
}

static struct worker_stream *find(dt_controllerd_t *app, uint64_t id)
{
    dt_list_t *bucket = bucket_of(app, id);
    for (dt_list_t *at = bucket->next; at != bucket; at = at->next) {
        struct worker_stream *ws = DT_CONTAINER_OF(at, struct worker_stream, link);
        if (ws->id == id)
            return ws;
    }
    return NULL;
}

static void on_open(dt_rpc_stream_t *stream)
{
    dt_controllerd_door_t *door = dt_rpc_stream_arg(stream);
    dt_controllerd_t *app = door->app;
    const dt_rpc_peer_t *peer = dt_rpc_stream_peer(stream);
    struct worker_stream *ws;
    dt_rpc_stream_set_arg(stream, NULL);
    if (!dt_controllerd_door_admits(door, stream))
        return;
    ws = malloc(sizeof *ws);
    if (!ws) {
        dt_rpc_stream_cancel(stream, DT_ERR_NOMEM, "out of memory");
        return;
    }
    *ws = (struct worker_stream){.app = app, .stream = stream, .id = dt_rpc_stream_id(stream)};
    dt_list_push(bucket_of(app, ws->id), &ws->link);
    dt_rpc_stream_set_arg(stream, ws);
    dt_cluster_stream_opened(app->cluster, ws->id,
                             &(dt_cluster_peer_t){
                                 .address = peer->address,
                                 .certificate_name = dt_controllerd_peer_node(peer),
                                 .certificate_not_after_wall_ms = peer->not_after_ms,
                                 .pid = peer->pid,
                             },
                             dt_loop_now_ns());
    dt_controllerd_pump(app);
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    struct worker_stream *ws = dt_rpc_stream_arg(stream);
    Dtorch__V1__WorkerUp *message;
    dt_controllerd_t *app;
    dt_error_t err;
    if (!ws)
        return;
    app = ws->app;
    dt_arena_reset(&app->request_arena);
    if (DT_WIRE_UNPACK(dtorch__v1__worker_up, &app->request_arena, data, size, &message, &err) ==
        DT_OK)
        dt_cluster_stream_received(app->cluster, ws->id, message, dt_loop_now_ns());
    else
        dt_cluster_stream_malformed(app->cluster, ws->id, &err, dt_loop_now_ns());
    dt_controllerd_pump(app);
}

static void on_drained(dt_rpc_stream_t *stream)
{
    struct worker_stream *ws = dt_rpc_stream_arg(stream);
    if (ws)
        ws->stalled_ns = 0;
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    struct worker_stream *ws = dt_rpc_stream_arg(stream);
    dt_controllerd_t *app;
    uint64_t id;
    if (!ws)
        return;
    app = ws->app;
    id = ws->id;
    dt_list_remove(&ws->link);
    free(ws);
    dt_cluster_stream_closed(app->cluster, id, why->text, dt_loop_now_ns());
    dt_controllerd_pump(app);
}

const dt_rpc_stream_ops_t dt_controllerd_worker_ops = {
    .open = on_open,
    .message = on_message,
    .drained = on_drained,
    .closed = on_closed,
};

static void drop(struct worker_stream *ws, int64_t now_ns)
{
    char address[sizeof((dt_rpc_peer_t *)0)->address];
    if (ws->is_dropped)
        return;
    ws->is_dropped = true;
    (void)dt_str_copy(address, sizeof address, dt_rpc_stream_peer(ws->stream)->address);
    dt_rpc_stream_cancel(ws->stream, DT_ERR_LIMIT, "the peer does not read what it is sent");
    dt_cluster_peer_misbehaved(ws->app->cluster, address, "does not read what it is sent", now_ns);
}

void dt_controllerd_worker_send(dt_controllerd_t *app, const dt_cluster_action_t *action)
{
    struct worker_stream *ws = find(app, action->stream);
    int64_t now_ns = dt_loop_now_ns();
    if (!ws || ws->is_dropped)
        return;
    if (!ws->stalled_ns)
        ws->stalled_ns = now_ns; /* until on_drained() says that it is written */
    else if (action->is_beat && dt_rpc_stream_queued(ws->stream) > 0)
        return; /* an unsent beat says all that this one would */
    if (dt_rpc_stream_send(ws->stream, action->data, action->size) == DT_ERR_LIMIT)
        drop(ws, now_ns);
}

void dt_controllerd_worker_close(dt_controllerd_t *app, const dt_cluster_action_t *action)
{
    struct worker_stream *ws = find(app, action->stream);
    if (ws && !ws->is_dropped)
        dt_rpc_stream_close(ws->stream, action->status, action->text);
}

void dt_controllerd_worker_sweep(dt_controllerd_t *app, int64_t now_ns)
{
    for (size_t i = 0; i < DT_CONTROLLERD_BUCKET_COUNT; i++) {
        dt_list_t *bucket = &app->worker_buckets[i];
        for (dt_list_t *at = bucket->next; at != bucket; at = at->next) {
            struct worker_stream *ws = DT_CONTAINER_OF(at, struct worker_stream, link);
            if (ws->stalled_ns && now_ns - ws->stalled_ns > DT_CONTROLLERD_STALL_NS &&
                dt_rpc_stream_queued(ws->stream) > 0)
                drop(ws, now_ns);
        }
    }
}

/* Whether a peer's address is of this host: "10.0.0.7", "::1", or "unix:uid=0". */
static bool is_of_host(const char *address, const char *host)
{
    size_t length = strlen(host);
    if (dt_str_has_prefix(host, "unix:"))
        return dt_str_has_prefix(address, "unix:") &&
               dt_str_has_suffix(address, host + strlen("unix:"));
    if (*address == '[')
        address++;
    return strncmp(address, host, length) == 0 &&
           (address[length] == ':' || address[length] == ']');
}

size_t dt_controllerd_worker_count_host(dt_controllerd_t *app, const char *host)
{
    size_t count = 0;
    for (size_t i = 0; i < DT_CONTROLLERD_BUCKET_COUNT; i++) {
        dt_list_t *bucket = &app->worker_buckets[i];
        for (dt_list_t *at = bucket->next; at != bucket; at = at->next) {
            struct worker_stream *ws = DT_CONTAINER_OF(at, struct worker_stream, link);
            count += is_of_host(dt_rpc_stream_peer(ws->stream)->address, host);
        }
    }
    return count;
}

/* ---- joining ---- */

/* Whether a node that shows its certificate may have it renewed. */
static dt_status_t check_renewal(const dt_rpc_peer_t *peer, const Dtorch__V1__JoinRequest *request,
                                 dt_error_t *err)
{
    const char *node = dt_controllerd_peer_node(peer);
    if (!node)
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "a certificate is renewed over a connection that shows it");
    if (!dt_str_is_equal(node, request->node_name))
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "the certificate shown is that of node %s, not of %s", node,
                       request->node_name);
    return DT_OK;
}

static dt_status_t sign(dt_controllerd_t *app, const Dtorch__V1__JoinRequest *request,
                        uint8_t **ret_reply, size_t *ret_size, dt_error_t *err)
{
    dt_pki_pair_t ca = {.certificate = app->tls.ca, .key = app->tls.ca_key};
    int64_t lifetime_ms = dt_conf_duration_ns(app->conf, "CertificateLifetime") / DT_CLOCK_MS_NS;
    Dtorch__V1__JoinReply reply = DTORCH__V1__JOIN_REPLY__INIT;
    DT_CLEANUP(dt_str_free) char *certificate = NULL;
    dt_pki_info_t info;
    DT_TRY(dt_pki_sign_csr(&ca, request->csr_pem, strlen(request->csr_pem), DT_PKI_ROLE_NODE,
                           request->node_name, lifetime_ms, &certificate, err));
    DT_TRY(dt_pki_read(certificate, &info, err));
    reply.certificate_pem = certificate;
    reply.ca_pem = app->tls.ca;
    reply.cluster_name = (char *)(uintptr_t)dt_conf_str(app->conf, "ClusterName");
    reply.not_after_wall_ms = info.not_after_ms;
    if (dt_wire_pack_new(&reply.base, ret_reply, ret_size) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    return DT_OK;
}

void dt_controllerd_secret_hash(const char *secret, uint8_t hash[32])
{
    dt_controllerd_hash(secret, strlen(secret), hash);
}

void dt_controllerd_hash(const void *bytes, size_t size, uint8_t hash[32])
{
    char hex[DT_PKI_SHA256_HEX_SIZE];
    dt_pki_sha256_hex(bytes, size, hex);
    for (size_t i = 0; i < 32; i++) {
        unsigned high = (unsigned char)hex[2 * i], low = (unsigned char)hex[2 * i + 1];
        hash[i] = (uint8_t)((high <= '9' ? high - '0' : high - 'a' + 10) << 4 |
                            (low <= '9' ? low - '0' : low - 'a' + 10));
    }
}

static dt_status_t check_join(dt_controllerd_t *app, const dt_rpc_peer_t *peer,
                              const Dtorch__V1__JoinRequest *request, dt_pki_token_t *ret_token,
                              dt_error_t *err)
{
    DT_TRY(dt_wire_check_version(request->version, "worker", "", err));
    if (!app->tls.ca_key)
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "this controller signs no certificates: it has no CertificateAuthorityKey=");
    if (dt_str_is_equal(request->token, RENEW_TOKEN))
        return check_renewal(peer, request, err);
    if (dt_pki_token_parse(request->token, ret_token, NULL) != DT_OK)
        return dt_fail(err, DT_ERR_DENIED, "dt", 0, "this is no join token");
    if (!dt_str_is_equal(ret_token->ca_sha256, app->tls.ca_info.sha256))
        return dt_fail(err, DT_ERR_DENIED, "dt", 0, "the token is for another cluster");
    return DT_OK;
}

void dt_controllerd_join(dt_controllerd_t *app, dt_rpc_call_t *call,
                         const ProtobufCMessage *message)
{
    const Dtorch__V1__JoinRequest *request = (const Dtorch__V1__JoinRequest *)message;
    const dt_rpc_peer_t *peer = dt_rpc_call_peer(call);
    char address[sizeof peer->address];
    dt_pki_token_t token;
    uint8_t *reply, hash[32];
    uint64_t ticket;
    dt_error_t err;
    size_t size;
    (void)dt_str_copy(address, sizeof address, peer->address);
    if (check_join(app, peer, request, &token, &err) != DT_OK ||
        sign(app, request, &reply, &size, &err) != DT_OK) {
        dt_log_notice("join refused", DT_LOG_S("node", request->node_name),
                      DT_LOG_S("peer", address), DT_LOG_S("reason", err.text));
        dt_controllerd_fail(call, &err);
        return;
    }
    if (dt_str_is_equal(request->token, RENEW_TOKEN)) {
        dt_log_info("certificate renewed", DT_LOG_S("node", request->node_name));
        dt_rpc_call_reply(call, reply, size);
        free(reply);
        return;
    }
    ticket = dt_controllerd_ticket_make(app, call, reply, size);
    if (!ticket)
        return;
    dt_controllerd_secret_hash(token.secret, hash);
    dt_cluster_use_token(app->cluster, ticket, token.id, hash, request->node_name,
                         request->node_id.data, address, dt_loop_now_ns());
}
