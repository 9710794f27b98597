/* API keys: made, listed and revoked for people, judged for programs that open a session's stream
 * over TLS. */
#include <stdio.h>
#include <string.h>

#include "controllerd.h"
#include "dtorch/v1/admin.pb-c.h"
#include "wire/wire.h"

void dt_controllerd_create_key(dt_controllerd_t *app, dt_rpc_call_t *call,
                               const ProtobufCMessage *message)
{
    dt_cluster_new_token_t key;
    dt_pki_api_key_t made;
    char by[DT_CONTROLLERD_BY_MAX], text[DT_PKI_TOKEN_SIZE];
    uint64_t ticket;
    dt_controllerd_peer_name(dt_rpc_call_peer(call), by, sizeof by);
    ticket = dt_controllerd_ticket_make(app, call, NULL, 0);
    if (!ticket)
        return;
    dt_pki_api_key_make(&made, text);
    key = (dt_cluster_new_token_t){.id = made.id, .token = text};
    dt_controllerd_secret_hash(made.secret, key.secret_sha256);
    dt_cluster_create_key(app->cluster, ticket, (const Dtorch__V1__CreateKeyRequest *)message, &key,
                          by, dt_loop_now_ns());
    explicit_bzero(&made, sizeof made);
    explicit_bzero(text, sizeof text);
}

void dt_controllerd_list_keys(dt_controllerd_t *app, dt_rpc_call_t *call,
                              const ProtobufCMessage *message)
{
    Dtorch__V1__KeyList *list;
    (void)message;
    if (dt_cluster_list_keys(app->cluster, &app->reply_arena, &list) != DT_OK) {
        dt_rpc_call_fail(call, DT_ERR_LIMIT, "the reply is too large");
        return;
    }
    for (size_t i = 0; i < list->n_keys; i++)
        list->keys[i]->jobs = dt_sessions_count_key(app->sessions, list->keys[i]->id);
    dt_controllerd_reply(app, call, &list->base);
}

void dt_controllerd_revoke_key(dt_controllerd_t *app, dt_rpc_call_t *call,
                               const ProtobufCMessage *message)
{
    const Dtorch__V1__RevokeKeyRequest *request = (const Dtorch__V1__RevokeKeyRequest *)message;
    char by[DT_CONTROLLERD_BY_MAX], text[DT_CONTROLLERD_BY_MAX + 300];
    uint64_t ticket;
    const char *id;
    dt_controllerd_peer_name(dt_rpc_call_peer(call), by, sizeof by);
    ticket = dt_controllerd_ticket_make(app, call, NULL, 0);
    if (!ticket)
        return;
    id = dt_cluster_revoke_key(app->cluster, ticket, request, by, dt_loop_now_ns());
    if (!id || !request->end_jobs)
        return;
    (void)snprintf(text, sizeof text, "its API key was revoked by %s%s%s", by,
                   request->reason[0] ? ": " : "", request->reason);
    (void)dt_sessions_end_key(app->sessions, id, text, dt_loop_now_ns());
}

/* ---- programs ---- */

/* End a stream that was just opened, with a message that the client library understands. */
static void refuse(dt_controllerd_t *app, dt_rpc_stream_t *stream, bool is_bulk,
                   const dt_cluster_admission_t *admission)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__Refusal refusal = DTORCH__V1__REFUSAL__INIT;
    uint8_t *data;
    size_t size;
    if (admission->is_limited) {
        dt_rpc_stream_cancel(stream, DT_ERR_LIMIT,
                             "too many sessions of this host were refused; wait a minute");
        return;
    }
    refusal.code = DTORCH__V1__REFUSAL__CODE__DENIED;
    refusal.text = (char *)(uintptr_t)admission->text;
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_REFUSAL;
    down.refusal = &refusal;
    dt_arena_reset(&app->reply_arena);
    if (!is_bulk && dt_wire_pack(&down.base, &app->reply_arena, &data, &size) == DT_OK)
        (void)!dt_rpc_stream_send(stream, data, size);
    dt_rpc_stream_close(stream, DT_ERR_DENIED, admission->text);
}

bool dt_controllerd_admit(const dt_controllerd_door_t *door, dt_rpc_stream_t *stream, bool is_bulk,
                          dt_cluster_admission_t *ret_admission)
{
    const dt_rpc_peer_t *peer = dt_rpc_stream_peer(stream);
    char bearer[DT_PKI_TOKEN_SIZE];
    dt_pki_api_key_t key = {.id = ""};
    uint8_t hash[32];
    bool has_bearer;
    *ret_admission = (dt_cluster_admission_t){.verdict = DT_KEY_FITS, .id = "", .name = ""};
    if (door->method->role != DT_CONTROLLERD_ROLE_USER || peer->kind != DT_RPC_PEER_TLS ||
        door->app->is_stopping || dt_controllerd_peer_has_role(peer, door->method->role))
        return dt_controllerd_door_admits(door, stream);
    has_bearer = dt_rpc_stream_bearer(stream, bearer, sizeof bearer);
    if (has_bearer && dt_pki_api_key_parse(bearer, &key, NULL) == DT_OK)
        dt_controllerd_secret_hash(key.secret, hash);
    dt_cluster_admit(door->app->cluster, has_bearer ? key.id : NULL, hash, peer->address,
                     dt_loop_now_ns(), ret_admission);
    explicit_bzero(&key, sizeof key);
    explicit_bzero(bearer, sizeof bearer);
    if (ret_admission->id)
        return true;
    refuse(door->app, stream, is_bulk, ret_admission);
    return false;
}
