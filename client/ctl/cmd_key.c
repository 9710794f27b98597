/* dtorchctl key: API keys, which programs show to a controller over TLS. */
#include <string.h>

#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"
#include "text.h"

/* As CreateKeyRequest in dtorch/v1/admin.proto says. */
#define LIFETIME_MIN_MS INT64_C(60000)
#define LIFETIME_MAX_MS (3650 * INT64_C(86400000))
#define REASON_MAX      256

static const Dtorch__V1__KeyInfo *key_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__KeyInfo *)(const void *)view->items[0];
}

static const char *state_of(const Dtorch__V1__KeyInfo *key, int64_t now_wall_ms)
{
    return key->revoked                                                  ? "revoked"
           : key->expires_wall_ms && key->expires_wall_ms <= now_wall_ms ? "expired"
                                                                         : "valid";
}

static dt_ctl_value_t key_state(const dt_ctl_view_t *view)
{
    return dt_ctl_text(state_of(key_of(view), view->style->now_wall_ms));
}

static const dt_ctl_column_t key_columns[] = {
    {"name", "NAME", "name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"id", "ID", "id", NULL, NULL, 0, 0},
    {"state", "STATE", NULL, key_state, NULL, DT_CTL_COLUMN_STATE, 0},
    {"jobs", "JOBS", "jobs", NULL, NULL, 0, 0},
    {"used", "LAST USE", "used_wall_ms", NULL, NULL, 0, 0},
    {"from", "FROM", "used_from", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"expires", "EXPIRES", "expires_wall_ms", NULL, NULL, 0, 0},
    {"uses", "USES", "uses", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"created", "CREATED", "created_wall_ms", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"by", "BY", "by", NULL, NULL, DT_CTL_COLUMN_WIDE | DT_CTL_COLUMN_SHRINK, 0},
    {"reason", "REASON", "reason", NULL, NULL, DT_CTL_COLUMN_WIDE | DT_CTL_COLUMN_SHRINK, 0},
};

static const dt_ctl_list_t key_list = {
    .kind = "KeyList",
    .one = "key",
    .many = "keys",
    .name_path = "name",
    .type = &dtorch__v1__key_info__descriptor,
    .columns = key_columns,
    .column_count = sizeof key_columns / sizeof key_columns[0],
};

static int print_keys(dt_ctl_t *ctl, const Dtorch__V1__KeyList *list)
{
    return dt_ctl_print_list(ctl, &key_list,
                             (const ProtobufCMessage *const *)(const void *)list->keys,
                             list->n_keys, &list->base);
}

static const Dtorch__V1__KeyList *get_keys(dt_ctl_t *ctl, int *ret_code)
{
    Dtorch__V1__ListKeysRequest request = DTORCH__V1__LIST_KEYS_REQUEST__INIT;
    return dt_ctl_call(ctl, "ListKeys", &request, &dtorch__v1__key_list__descriptor, ret_code);
}

int dt_ctl_key_list(dt_ctl_t *ctl)
{
    int code = dt_ctl_check_list(ctl, &key_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__KeyList *list = get_keys(ctl, &code);
    return list ? print_keys(ctl, list) : code;
}

/* By id, else by name: the valid one of it, else the newest, which the list has first. */
static Dtorch__V1__KeyInfo *find_key(dt_ctl_t *ctl, const Dtorch__V1__KeyList *list,
                                     const char *what)
{
    Dtorch__V1__KeyInfo *found = NULL;
    for (size_t i = 0; i < list->n_keys; i++) {
        Dtorch__V1__KeyInfo *key = list->keys[i];
        if (strcmp(key->id, what) == 0)
            return key;
        if (strcmp(key->name, what) != 0)
            continue;
        if (!found || strcmp(state_of(key, ctl->output.style.now_wall_ms), "valid") == 0)
            found = key;
    }
    if (!found)
        (void)dt_ctl_fail(ctl, DT_CTL_EXIT_NOT_FOUND,
                          "no API key \"%s\"; dtorchctl key list shows them", what);
    return found;
}

/* ---- show ---- */

static void line(dt_ctl_t *ctl, const char *name, const char *text)
{
    if (text && *text)
        (void)fprintf(ctl->output.screen.file, "  %-10s %s\n", name, dt_ctl_safe(&ctl->pool, text));
}

static const char *time_of(dt_ctl_t *ctl, int64_t wall_ms)
{
    return dt_ctl_time(&ctl->pool, wall_ms, ctl->output.style.now_wall_ms,
                       ctl->output.style.is_utc);
}

static void show_key(dt_ctl_t *ctl, const Dtorch__V1__KeyInfo *key)
{
    dt_arena_t *pool = &ctl->pool;
    (void)fprintf(ctl->output.screen.file, "%s  %s  %s\n", dt_ctl_safe(pool, key->name),
                  dt_ctl_safe(pool, key->id), state_of(key, ctl->output.style.now_wall_ms));
    line(ctl, "for", key->reason);
    line(ctl, "created",
         dt_ctl_print(pool, "%s by %s", time_of(ctl, key->created_wall_ms), key->by));
    line(ctl, "expires", key->expires_wall_ms ? time_of(ctl, key->expires_wall_ms) : "never");
    if (key->used_wall_ms)
        line(ctl, "last use",
             dt_ctl_print(pool, "%s from %s, %llu in all", time_of(ctl, key->used_wall_ms),
                          key->used_from, (unsigned long long)key->uses));
    else
        line(ctl, "last use", "never");
    line(ctl, "jobs", dt_ctl_print(pool, "%u", key->jobs));
    if (key->revoked)
        line(ctl, "revoked",
             dt_ctl_print(pool, "%s by %s%s%s", time_of(ctl, key->revoked_wall_ms), key->revoked_by,
                          key->revoked_reason[0] ? ": " : "", key->revoked_reason));
}

int dt_ctl_key_show(dt_ctl_t *ctl)
{
    int code;
    Dtorch__V1__KeyList some = DTORCH__V1__KEY_LIST__INIT;
    const Dtorch__V1__KeyList *list = get_keys(ctl, &code);
    if (!list)
        return code;
    some.keys = dt_ctl_alloc(&ctl->pool, ctl->cli.arg_count, sizeof(Dtorch__V1__KeyInfo *));
    for (size_t i = 0; i < ctl->cli.arg_count; i++) {
        Dtorch__V1__KeyInfo *key = find_key(ctl, list, ctl->cli.args[i]);
        if (!key)
            return DT_CTL_EXIT_NOT_FOUND;
        some.keys[some.n_keys++] = key;
    }
    if (!dt_ctl_is_people(ctl))
        return print_keys(ctl, &some);
    for (size_t i = 0; i < some.n_keys; i++)
        show_key(ctl, some.keys[i]);
    return DT_CTL_EXIT_OK;
}

/* ---- changes ---- */

static int print_created(dt_ctl_t *ctl, const Dtorch__V1__CreateKeyReply *reply)
{
    int code;
    if (!dt_ctl_print_secret(ctl, &reply->base, "CreateKeyReply", "key", "keys", reply->key,
                             &code) ||
        !reply->info)
        return code;
    dt_ctl_note(ctl,
                "Shown this once; good until %s. For its program: a file of mode 0600, named by "
                "ApiKeyFile= in client.conf or DTORCH_API_KEY_FILE, and CertificateAuthority=.",
                reply->info->expires_wall_ms ? time_of(ctl, reply->info->expires_wall_ms)
                                             : "it is revoked");
    return DT_CTL_EXIT_OK;
}

/* Give the text of -m, "" without. */
static int take_reason(dt_ctl_t *ctl, char **ret_reason)
{
    const char *reason = dt_ctl_option(ctl, DT_CTL_OPT_REASON);
    if (reason && strlen(reason) > REASON_MAX)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "-m has at most %d bytes", REASON_MAX);
    *ret_reason = dt_ctl_copy(&ctl->pool, reason ? reason : "", reason ? strlen(reason) : 0);
    return DT_CTL_EXIT_OK;
}

int dt_ctl_key_create(dt_ctl_t *ctl)
{
    Dtorch__V1__CreateKeyRequest request = DTORCH__V1__CREATE_KEY_REQUEST__INIT;
    int code = take_reason(ctl, &request.reason);
    if (code != DT_CTL_EXIT_OK)
        return code;
    request.name = dt_ctl_copy(&ctl->pool, ctl->cli.args[0], strlen(ctl->cli.args[0]));
    request.lifetime_ms = dt_ctl_number(ctl, DT_CTL_OPT_EXPIRES, 0);
    if (dt_ctl_has(ctl, DT_CTL_OPT_EXPIRES) &&
        (request.lifetime_ms < LIFETIME_MIN_MS || request.lifetime_ms > LIFETIME_MAX_MS))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "--expires is 1min to 3650d");
    if (dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN)) {
        dt_ctl_note(ctl, "would make a key");
        return DT_CTL_EXIT_WOULD;
    }
    request.request_id = dt_ctl_request_id(ctl);
    request.by = dt_ctl_by(ctl);
    const Dtorch__V1__CreateKeyReply *reply =
        dt_ctl_call(ctl, "CreateKey", &request, &dtorch__v1__create_key_reply__descriptor, &code);
    return reply ? print_created(ctl, reply) : code;
}

static int revoke_dry(dt_ctl_t *ctl)
{
    int code;
    size_t count = 0;
    bool end_jobs = dt_ctl_has(ctl, DT_CTL_OPT_END_JOBS);
    const Dtorch__V1__KeyList *list = get_keys(ctl, &code);
    if (!list)
        return code;
    for (size_t i = 0; i < ctl->cli.arg_count; i++) {
        const Dtorch__V1__KeyInfo *key = find_key(ctl, list, ctl->cli.args[i]);
        if (!key)
            return DT_CTL_EXIT_NOT_FOUND;
        count += !key->revoked || (end_jobs && key->jobs);
        dt_ctl_note(ctl, "%s (%s)  %s revoked, %u job%s %s", key->name, key->id,
                    key->revoked ? "is already" : "would be", key->jobs, key->jobs == 1 ? "" : "s",
                    end_jobs ? "would end" : "would go on");
    }
    return count > 0 ? DT_CTL_EXIT_WOULD : DT_CTL_EXIT_OK;
}

int dt_ctl_key_revoke(dt_ctl_t *ctl)
{
    char *reason = NULL;
    size_t count = ctl->cli.arg_count;
    const Dtorch__V1__KeyList *list = NULL;
    int code = take_reason(ctl, &reason);
    if (code != DT_CTL_EXIT_OK)
        return code;
    if (count > 1 && dt_ctl_has(ctl, DT_CTL_OPT_REQUEST_ID))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "--request-id goes with one key");
    if (dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN))
        return revoke_dry(ctl);
    if (!dt_ctl_confirm(ctl, "Revoke %zu key%s?", count, count == 1 ? "" : "s"))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED, "nothing was changed");
    for (size_t i = 0; i < count; i++) {
        Dtorch__V1__RevokeKeyRequest request = DTORCH__V1__REVOKE_KEY_REQUEST__INIT;
        request.key = dt_ctl_copy(&ctl->pool, ctl->cli.args[i], strlen(ctl->cli.args[i]));
        request.end_jobs = dt_ctl_has(ctl, DT_CTL_OPT_END_JOBS);
        request.reason = reason;
        request.request_id = dt_ctl_request_id(ctl);
        request.by = dt_ctl_by(ctl);
        list = dt_ctl_call(ctl, "RevokeKey", &request, &dtorch__v1__key_list__descriptor, &code);
        if (!list)
            return i > 0 ? DT_CTL_EXIT_PARTIAL : code;
        if (dt_ctl_is_people(ctl) && !dt_ctl_has(ctl, DT_CTL_OPT_QUIET))
            (void)fprintf(ctl->output.screen.file, "%s  revoked%s\n",
                          dt_ctl_safe(&ctl->pool, request.key),
                          request.end_jobs ? ", its jobs ended" : "");
    }
    dt_check(list); /* the grammar wants one key at least */
    return dt_ctl_is_people(ctl) ? code : print_keys(ctl, list);
}
