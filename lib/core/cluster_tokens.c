/* Join tokens: made and revoked by people, used up by nodes. Only the secret's hash is known. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/strings.h"
#include "core/cluster_internal.h"

#define LIFETIME_DEFAULT_MS (INT64_C(3600) * 1000)

bool dt_cluster_secrets_are_equal(const uint8_t a[32], const uint8_t b[32])
{
    uint8_t difference = 0;
    for (int i = 0; i < 32; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

dt_token_t *dt_cluster_token_find(dt_cluster_t *cluster, const char *id)
{
    for (uint32_t i = 0; i < cluster->token_count; i++)
        if (strcmp(cluster->tokens[i].id, id) == 0)
            return &cluster->tokens[i];
    return NULL;
}

static bool is_over(const dt_cluster_t *cluster, const dt_token_t *token)
{
    return token->is_revoked || token->uses_left == 0 || token->expires_ns <= cluster->now_ns;
}

/* A free place: at the bound the oldest token that is over gives its own. */
static dt_token_t *token_place(dt_cluster_t *cluster)
{
    if (cluster->token_count < DT_CLUSTER_TOKENS_MAX)
        return &cluster->tokens[cluster->token_count++];
    dt_token_t *oldest = NULL;
    for (uint32_t i = 0; i < cluster->token_count; i++) {
        dt_token_t *token = &cluster->tokens[i];
        if (is_over(cluster, token) &&
            (!oldest || token->created_wall_ms < oldest->created_wall_ms))
            oldest = token;
    }
    return oldest;
}

void dt_cluster_token_fill(dt_token_t *token, Dtorch__V1__TokenInfo *ret_info)
{
    dtorch__v1__token_info__init(ret_info);
    ret_info->id = token->id;
    ret_info->created_wall_ms = token->created_wall_ms;
    ret_info->expires_wall_ms = token->expires_wall_ms;
    ret_info->uses_left = token->uses_left;
    ret_info->node_name = token->node_name;
    ret_info->by = token->by;
    ret_info->revoked = token->is_revoked;
}

void dt_cluster_token_state(dt_token_t *token, Dtorch__V1__TokenInfo *info,
                            Dtorch__V1__TokenState *ret_state)
{
    dt_cluster_token_fill(token, info);
    dtorch__v1__token_state__init(ret_state);
    ret_state->info = info;
    ret_state->secret_sha256 =
        (ProtobufCBinaryData){sizeof token->secret_sha256, token->secret_sha256};
    if (token->user_name[0])
        ret_state->user_id = (ProtobufCBinaryData){sizeof token->user_id, token->user_id};
    ret_state->user_name = token->user_name;
}

dt_status_t dt_cluster_token_restore(dt_cluster_t *cluster, const Dtorch__V1__TokenState *state)
{
    const Dtorch__V1__TokenInfo *info = state->info;
    dt_token_t *token = dt_cluster_token_find(cluster, info->id);
    if (!token)
        token = token_place(cluster);
    if (!token)
        return DT_ERR_LIMIT;
    *token = (dt_token_t){
        .created_wall_ms = info->created_wall_ms,
        .expires_wall_ms = info->expires_wall_ms,
        .uses_left = info->uses_left,
        .is_revoked = info->revoked,
    };
    memcpy(token->secret_sha256, state->secret_sha256.data, sizeof token->secret_sha256);
    (void)dt_str_copy(token->id, sizeof token->id, info->id);
    (void)dt_str_copy(token->node_name, sizeof token->node_name, info->node_name);
    (void)dt_str_copy(token->by, sizeof token->by, info->by);
    if (state->user_id.len == sizeof token->user_id) {
        memcpy(token->user_id, state->user_id.data, sizeof token->user_id);
        (void)dt_str_copy(token->user_name, sizeof token->user_name, state->user_name);
    }
    return DT_OK;
}

int64_t dt_cluster_expiry_ns(const dt_cluster_t *cluster, int64_t created_wall_ms,
                             int64_t expires_wall_ms)
{
    int64_t left_ms = expires_wall_ms - cluster->wall_ms;
    int64_t whole_ms = expires_wall_ms - created_wall_ms;
    int64_t left_ns, end_ns;
    if (left_ms > whole_ms)
        left_ms = whole_ms; /* the clock was set back: no longer than it was made for */
    if (__builtin_mul_overflow(left_ms > 0 ? left_ms : 0, DT_CLUSTER_MS_NS, &left_ns) ||
        __builtin_add_overflow(cluster->now_ns, left_ns, &end_ns))
        return INT64_MAX;
    return end_ns;
}

void dt_cluster_tokens_start(dt_cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->token_count; i++) {
        dt_token_t *token = &cluster->tokens[i];
        token->expires_ns =
            dt_cluster_expiry_ns(cluster, token->created_wall_ms, token->expires_wall_ms);
    }
}

static uint64_t record_token(dt_cluster_t *cluster, dt_token_t *token)
{
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    Dtorch__V1__TokenState state;
    Dtorch__V1__TokenInfo info;
    dt_cluster_token_state(token, &info, &state);
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_TOKEN;
    record.token = &state;
    return dt_cluster_journal(cluster, DT_JOURNAL_ADMIN, &record);
}

static void tell(dt_cluster_t *cluster, const dt_token_t *token, const char *name, const char *text,
                 const char *who)
{
    dt_event_draft_t draft;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__NOTICE, name, NULL);
    draft.is_unbounded = true;
    dt_event_field(&draft, "token", "%s", token->id);
    dt_event_field(&draft, "uses_left", "%" PRIu32, token->uses_left);
    if (token->node_name[0])
        dt_event_field(&draft, "node_name", "%s", token->node_name);
    (void)dt_event_end(cluster, &draft, "join token %s was %s %s", token->id, text, who);
}

static uint64_t hash_create(const Dtorch__V1__CreateTokenRequest *request)
{
    uint64_t hash = dt_hash_str(DT_HASH_SEED, "create-token");
    hash = dt_hash_bytes(hash, &request->lifetime_ms, sizeof request->lifetime_ms);
    hash = dt_hash_bytes(hash, &request->uses, sizeof request->uses);
    return dt_hash_str(hash, request->node_name);
}

static void make_token(dt_cluster_t *cluster, dt_token_t *token,
                       const Dtorch__V1__CreateTokenRequest *request,
                       const dt_cluster_new_token_t *made, const char *by)
{
    int64_t lifetime_ms = request->lifetime_ms ? request->lifetime_ms : LIFETIME_DEFAULT_MS;
    *token = (dt_token_t){
        .created_wall_ms = cluster->wall_ms,
        .expires_wall_ms = cluster->wall_ms + lifetime_ms,
        .expires_ns = cluster->now_ns + lifetime_ms * DT_CLUSTER_MS_NS,
        .uses_left = request->uses ? request->uses : 1,
    };
    memcpy(token->secret_sha256, made->secret_sha256, sizeof token->secret_sha256);
    (void)dt_str_copy(token->id, sizeof token->id, made->id);
    (void)dt_str_copy(token->node_name, sizeof token->node_name, request->node_name);
    dt_cluster_person(token->by, sizeof token->by, by, request->by);
}

void dt_cluster_create_token(dt_cluster_t *cluster, uint64_t ticket,
                             const Dtorch__V1__CreateTokenRequest *request,
                             const dt_cluster_new_token_t *made, const char *by, int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    if (!dt_cluster_admin_may_issue(cluster, ticket, &request->base, request->request_id, "token"))
        return;
    dt_token_t *token = dt_cluster_token_find(cluster, made->id) ? NULL : token_place(cluster);
    if (!token) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_LIMIT,
                               "%u join tokens are valid, which is the bound; revoke some",
                               DT_CLUSTER_TOKENS_MAX);
        return;
    }
    make_token(cluster, token, request, made, by);
    if (!record_token(cluster, token)) {
        token->is_revoked = true;
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOMEM, "no memory for the token's record");
        return;
    }
    tell(cluster, token, "token-created", "created by", token->by);
    (void)dt_cluster_request_record(cluster, request->request_id, hash_create(request));
    Dtorch__V1__CreateTokenReply reply = DTORCH__V1__CREATE_TOKEN_REPLY__INIT;
    Dtorch__V1__TokenInfo info;
    dt_cluster_token_fill(token, &info);
    reply.token = (char *)(uintptr_t)made->token; /* borrowed while it is packed */
    reply.info = &info;
    dt_cluster_reply_when_durable(cluster, ticket, cluster->journal_issued, &reply.base);
}

/* The answer of a revocation: the one token. */
static void reply_token(dt_cluster_t *cluster, uint64_t ticket, uint64_t sequence,
                        dt_token_t *token)
{
    Dtorch__V1__TokenList list = DTORCH__V1__TOKEN_LIST__INIT;
    Dtorch__V1__TokenInfo info, *infos[] = {&info};
    dt_cluster_token_fill(token, &info);
    list.tokens = infos;
    list.n_tokens = 1;
    dt_cluster_reply_when_durable(cluster, ticket, sequence, &list.base);
}

void dt_cluster_revoke_token(dt_cluster_t *cluster, uint64_t ticket,
                             const Dtorch__V1__RevokeTokenRequest *request, const char *by,
                             int64_t now_ns)
{
    dt_error_t error;
    char who[DT_CLUSTER_PERSON_MAX + 1];
    dt_cluster_set_now(cluster, now_ns);
    if (dt_wire_validate(&request->base, &error) != DT_OK) {
        dt_cluster_reply_error(cluster, ticket, error.code, "%s", error.text);
        return;
    }
    dt_token_t *token = dt_cluster_token_find(cluster, request->id);
    if (!token) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOT_FOUND, "no join token %s", request->id);
        return;
    }
    if (token->is_revoked) {
        reply_token(cluster, ticket, cluster->journal_issued, token);
        return;
    }
    if (!dt_cluster_admin_may_change(cluster, ticket, 2))
        return;
    token->is_revoked = true; /* in memory at once, whatever the journal does */
    if (!record_token(cluster, token)) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOMEM, "no memory for the token's record");
        return;
    }
    dt_cluster_person(who, sizeof who, by, request->by);
    tell(cluster, token, "token-revoked", "revoked by", who);
    reply_token(cluster, ticket, cluster->journal_issued, token);
}

/* Whether the node has used the token before: the answer was lost then, with a connection or with a
 * controller, and it must not cost another use. */
static bool is_again(const dt_token_t *token, const char *node_name, const uint8_t node_id[16])
{
    return token && strcmp(token->user_name, node_name) == 0 &&
           memcmp(token->user_id, node_id, sizeof token->user_id) == 0;
}

/* Why a token does not admit this node, for the log; NULL: it does. */
static const char *why_not(dt_cluster_t *cluster, const dt_token_t *token,
                           const uint8_t secret_sha256[32], const char *node_name,
                           const uint8_t node_id[16])
{
    if (!token)
        return "no such token";
    if (!dt_cluster_secrets_are_equal(token->secret_sha256, secret_sha256))
        return "wrong secret";
    if (token->is_revoked)
        return "the token was revoked";
    if (token->expires_ns <= cluster->now_ns)
        return "the token has expired";
    if (token->uses_left == 0 && !is_again(token, node_name, node_id))
        return "the token was used up";
    if (token->node_name[0] && strcmp(token->node_name, node_name) != 0)
        return "the token is for another node";
    return NULL;
}

/* Count one use and record it. False: no memory, and nothing has changed. */
static bool take_use(dt_cluster_t *cluster, dt_token_t *token, const char *node_name,
                     const uint8_t node_id[16])
{
    dt_token_t before = *token;
    token->uses_left--;
    memcpy(token->user_id, node_id, sizeof token->user_id);
    (void)dt_str_copy(token->user_name, sizeof token->user_name, node_name);
    if (record_token(cluster, token))
        return true;
    *token = before;
    return false;
}

/* NOLINTNEXTLINE(readability-function-size): eight parameters: who joins, with which token */
void dt_cluster_use_token(dt_cluster_t *cluster, uint64_t ticket, const char *id,
                          const uint8_t secret_sha256[32], const char *node_name,
                          const uint8_t node_id[16], const char *address, int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    dt_token_t *token = dt_cluster_token_find(cluster, id);
    const char *reason = why_not(cluster, token, secret_sha256, node_name, node_id);
    if (reason) {
        dt_cluster_offence(cluster, address, "join", node_name, reason, false);
        dt_cluster_reply_error(cluster, ticket, DT_ERR_DENIED,
                               "the join token is not valid for node %s: wrong, expired, revoked, "
                               "used up or for another node; the controller's events say which",
                               node_name);
        return;
    }
    const dt_node_t *named = dt_cluster_node_by_name(cluster, node_name);
    if (named && memcmp(named->id, node_id, sizeof named->id) != 0) {
        reason = "the name belongs to another node";
        dt_cluster_offence(cluster, address, "join", node_name, reason, false);
        dt_cluster_reply_error(cluster, ticket, DT_ERR_DENIED,
                               "%s: %s; first, if that one is no more: dtorchctl node forget %s",
                               node_name, reason, node_name);
        return;
    }
    if (!dt_cluster_admin_may_change(cluster, ticket, 2))
        return;
    if (is_again(token, node_name, node_id)) {
        tell(cluster, token, "token-used", "used again by", node_name);
        dt_cluster_reply_when_durable(cluster, ticket, cluster->journal_issued, NULL);
        return;
    }
    if (!take_use(cluster, token, node_name, node_id)) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOMEM, "no memory for the token's record");
        return;
    }
    tell(cluster, token, "token-used", "used by", node_name);
    dt_cluster_reply_when_durable(cluster, ticket, cluster->journal_issued, NULL);
}

dt_status_t dt_cluster_list_tokens(const dt_cluster_t *cluster, dt_arena_t *arena, int64_t now_ns,
                                   Dtorch__V1__TokenList **ret_list)
{
    (void)now_ns;
    Dtorch__V1__TokenList *list = dt_arena_alloc(arena, sizeof *list);
    if (!list)
        return DT_ERR_NOMEM;
    dtorch__v1__token_list__init(list);
    list->tokens = dt_arena_calloc(arena, cluster->token_count, sizeof *list->tokens);
    if (!list->tokens)
        return DT_ERR_NOMEM;
    for (uint32_t i = 0; i < cluster->token_count; i++) {
        Dtorch__V1__TokenInfo *info = dt_arena_alloc(arena, sizeof *info);
        dt_token_t *copy = dt_arena_alloc(arena, sizeof *copy);
        if (!info || !copy)
            return DT_ERR_NOMEM;
        *copy = cluster->tokens[i]; /* what the list shows may change before it is packed */
        memset(copy->secret_sha256, 0, sizeof copy->secret_sha256);
        dt_cluster_token_fill(copy, info);
        list->tokens[list->n_tokens++] = info;
    }
    *ret_list = list;
    return DT_OK;
}
