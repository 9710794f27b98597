/* dtorchctl token: join tokens, with which a new node gets its certificate. */
#include <inttypes.h>
#include <string.h>

#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"
#include "text.h"

/* As CreateTokenRequest in dtorch/v1/admin.proto says. */
#define LIFETIME_MIN_MS INT64_C(60000)
#define LIFETIME_MAX_MS (30 * INT64_C(86400000))

static const Dtorch__V1__TokenInfo *token_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__TokenInfo *)(const void *)view->items[0];
}

static dt_ctl_value_t token_state(const dt_ctl_view_t *view)
{
    const Dtorch__V1__TokenInfo *token = token_of(view);
    return dt_ctl_text(token->revoked                                       ? "revoked"
                       : token->expires_wall_ms <= view->style->now_wall_ms ? "expired"
                       : token->uses_left == 0                              ? "used"
                                                                            : "valid");
}

static const dt_ctl_column_t token_columns[] = {
    {"id", "ID", "id", NULL, NULL, 0, 0},
    {"state", "STATE", NULL, token_state, NULL, DT_CTL_COLUMN_STATE, 0},
    {"uses_left", "LEFT", "uses_left", NULL, NULL, 0, 0},
    {"node", "NODE", "node_name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"expires", "EXPIRES", "expires_wall_ms", NULL, NULL, 0, 0},
    {"created", "CREATED", "created_wall_ms", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"by", "BY", "by", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

static const dt_ctl_list_t token_list = {
    .kind = "TokenList",
    .one = "token",
    .many = "tokens",
    .name_path = "id",
    .type = &dtorch__v1__token_info__descriptor,
    .columns = token_columns,
    .column_count = sizeof token_columns / sizeof token_columns[0],
};

static int print_tokens(dt_ctl_t *ctl, const Dtorch__V1__TokenList *list)
{
    return dt_ctl_print_list(ctl, &token_list,
                             (const ProtobufCMessage *const *)(const void *)list->tokens,
                             list->n_tokens, &list->base);
}

static const Dtorch__V1__TokenList *get_tokens(dt_ctl_t *ctl, int *ret_code)
{
    Dtorch__V1__ListTokensRequest request = DTORCH__V1__LIST_TOKENS_REQUEST__INIT;
    return dt_ctl_call(ctl, "ListTokens", &request, &dtorch__v1__token_list__descriptor, ret_code);
}

int dt_ctl_token_list(dt_ctl_t *ctl)
{
    int code = dt_ctl_check_list(ctl, &token_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__TokenList *list = get_tokens(ctl, &code);
    return list ? print_tokens(ctl, list) : code;
}

/* Where nodes find this controller: the first TCP address that it listens on, else what was asked.
 */
static const char *join_address(dt_ctl_t *ctl)
{
    int code;
    dt_arena_t *pool = &ctl->pool;
    Dtorch__V1__GetClusterRequest request = DTORCH__V1__GET_CLUSTER_REQUEST__INIT;
    const Dtorch__V1__ClusterStatus *status =
        dt_ctl_call(ctl, "GetCluster", &request, &dtorch__v1__cluster_status__descriptor, &code);
    for (size_t i = 0; status && i < status->n_listens; i++) {
        const char *address = status->listens[i], *colon = strrchr(address, ':');
        if (address[0] == '/' || !colon)
            continue;
        bool is_any = dt_str_has_prefix(address, "0.0.0.0:") || dt_str_has_prefix(address, "[::]:");
        return dt_ctl_safe(pool, is_any ? dt_ctl_print(pool, "%s%s", status->controller, colon)
                                        : address);
    }
    return "HOST:PORT";
}

static int print_created(dt_ctl_t *ctl, const Dtorch__V1__CreateTokenReply *reply)
{
    dt_arena_t *pool = &ctl->pool;
    int code;
    if (!dt_ctl_print_secret(ctl, &reply->base, "CreateTokenReply", "token", "tokens", reply->token,
                             &code) ||
        !reply->info)
        return code;
    const char *expires = dt_ctl_time(pool, reply->info->expires_wall_ms,
                                      ctl->output.style.now_wall_ms, ctl->output.style.is_utc);
    dt_ctl_note(ctl,
                "Good until %s for %s%s. On the node: dtorchctl setup worker --controller=%s "
                "--token-file=-",
                expires,
                reply->info->node_name[0] ? "the node "
                : reply->info->uses_left == 1
                    ? "1 node"
                    : dt_ctl_print(pool, "%u nodes", reply->info->uses_left),
                reply->info->node_name, join_address(ctl));
    return DT_CTL_EXIT_OK;
}

int dt_ctl_token_create(dt_ctl_t *ctl)
{
    int code;
    char none[] = "";
    const char *node = dt_ctl_option(ctl, DT_CTL_OPT_NODE);
    Dtorch__V1__CreateTokenRequest request = DTORCH__V1__CREATE_TOKEN_REQUEST__INIT;
    request.lifetime_ms = dt_ctl_number(ctl, DT_CTL_OPT_LIFETIME, 0);
    if (dt_ctl_has(ctl, DT_CTL_OPT_LIFETIME) &&
        (request.lifetime_ms < LIFETIME_MIN_MS || request.lifetime_ms > LIFETIME_MAX_MS))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "--lifetime is 1min to 30d");
    request.uses = (uint32_t)dt_ctl_number(ctl, DT_CTL_OPT_USES, 0);
    request.node_name = node ? dt_ctl_copy(&ctl->pool, node, strlen(node)) : none;
    if (dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN)) {
        dt_ctl_note(ctl, "would make a token");
        return DT_CTL_EXIT_WOULD;
    }
    request.request_id = dt_ctl_request_id(ctl);
    request.by = dt_ctl_by(ctl);
    const Dtorch__V1__CreateTokenReply *reply = dt_ctl_call(
        ctl, "CreateToken", &request, &dtorch__v1__create_token_reply__descriptor, &code);
    return reply ? print_created(ctl, reply) : code;
}

static const Dtorch__V1__TokenInfo *find_token(const Dtorch__V1__TokenList *list, const char *id)
{
    for (size_t i = 0; i < list->n_tokens; i++)
        if (strcmp(list->tokens[i]->id, id) == 0)
            return list->tokens[i];
    return NULL;
}

static int revoke_dry(dt_ctl_t *ctl)
{
    int code;
    size_t count = 0;
    const Dtorch__V1__TokenList *list = get_tokens(ctl, &code);
    if (!list)
        return code;
    for (size_t i = 0; i < ctl->cli.arg_count; i++) {
        const Dtorch__V1__TokenInfo *token = find_token(list, ctl->cli.args[i]);
        if (!token)
            return dt_ctl_fail(ctl, DT_CTL_EXIT_NOT_FOUND,
                               "no token \"%s\"; dtorchctl token list shows them",
                               ctl->cli.args[i]);
        count += !token->revoked;
        dt_ctl_note(ctl, "%s  %s revoked", token->id, token->revoked ? "is already" : "would be");
    }
    return count > 0 ? DT_CTL_EXIT_WOULD : DT_CTL_EXIT_OK;
}

int dt_ctl_token_revoke(dt_ctl_t *ctl)
{
    int code = DT_CTL_EXIT_OK;
    const Dtorch__V1__TokenList *list = NULL;
    size_t count = ctl->cli.arg_count;
    if (count > 1 && dt_ctl_has(ctl, DT_CTL_OPT_REQUEST_ID))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "--request-id goes with one token");
    if (dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN))
        return revoke_dry(ctl);
    if (!dt_ctl_confirm(ctl, "Revoke %zu token%s?", count, count == 1 ? "" : "s"))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED, "nothing was changed");
    for (size_t i = 0; i < count; i++) {
        Dtorch__V1__RevokeTokenRequest request = DTORCH__V1__REVOKE_TOKEN_REQUEST__INIT;
        request.id = dt_ctl_copy(&ctl->pool, ctl->cli.args[i], strlen(ctl->cli.args[i]));
        request.request_id = dt_ctl_request_id(ctl);
        request.by = dt_ctl_by(ctl);
        list =
            dt_ctl_call(ctl, "RevokeToken", &request, &dtorch__v1__token_list__descriptor, &code);
        if (!list)
            return i > 0 ? DT_CTL_EXIT_PARTIAL : code;
        if (dt_ctl_is_people(ctl) && !dt_ctl_has(ctl, DT_CTL_OPT_QUIET))
            (void)fprintf(ctl->output.screen.file, "%s  revoked\n",
                          dt_ctl_safe(&ctl->pool, request.id));
    }
    dt_check(list); /* the grammar wants one id at least */
    return dt_ctl_is_people(ctl) ? code : print_tokens(ctl, list);
}
