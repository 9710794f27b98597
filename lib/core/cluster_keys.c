/* API keys: made and revoked by people, shown by programs. Only the secret's hash is known.
 *
 * Who guesses gains nothing by time (the comparison takes the same for all) nor by many tries (the
 * secret has 128 random bits); so a right key is never refused for what others of its host did.
 * What is bounded are the answers and events that failures cost. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/strings.h"
#include "core/cluster_internal.h"

#define USE_RECORD_EVERY_NS (600 * DT_CLUSTER_SECOND_NS) /* the last use of a key is kept */

static const char *const verdict_words[DT_KEY_VERDICT_COUNT] = {
    [DT_KEY_FITS] = "fits",       [DT_KEY_EXPIRED] = "expired", [DT_KEY_REVOKED] = "revoked",
    [DT_KEY_UNKNOWN] = "unknown", [DT_KEY_MISSING] = "missing", [DT_KEY_MALFORMED] = "malformed",
};

const char *dt_cluster_verdict_text(dt_key_verdict_t verdict)
{
    return verdict_words[verdict];
}

static dt_key_t *find_by_id(dt_cluster_t *cluster, const char *id)
{
    for (uint32_t i = 0; i < cluster->key_count; i++)
        if (strcmp(cluster->keys[i].id, id) == 0)
            return &cluster->keys[i];
    return NULL;
}

static dt_key_verdict_t judge(const dt_cluster_t *cluster, const dt_key_t *key)
{
    return key->is_revoked                      ? DT_KEY_REVOKED
           : key->expires_ns <= cluster->now_ns ? DT_KEY_EXPIRED
                                                : DT_KEY_FITS;
}

/* The key of a name: the one that is valid, else the newest. */
static dt_key_t *find_by_name(dt_cluster_t *cluster, const char *name)
{
    dt_key_t *best = NULL;
    for (uint32_t i = 0; i < cluster->key_count; i++) {
        dt_key_t *key = &cluster->keys[i];
        if (strcmp(key->name, name) != 0)
            continue;
        if (judge(cluster, key) == DT_KEY_FITS)
            return key;
        if (!best || key->created_wall_ms >= best->created_wall_ms)
            best = key;
    }
    return best;
}

/* A free place: at the bound the oldest key that is over gives its own. */
static dt_key_t *key_place(dt_cluster_t *cluster)
{
    if (cluster->key_count < DT_CLUSTER_KEYS_MAX)
        return &cluster->keys[cluster->key_count++];
    dt_key_t *oldest = NULL;
    for (uint32_t i = 0; i < cluster->key_count; i++) {
        dt_key_t *key = &cluster->keys[i];
        if (judge(cluster, key) != DT_KEY_FITS &&
            (!oldest || key->created_wall_ms < oldest->created_wall_ms))
            oldest = key;
    }
    return oldest;
}

static void fill(dt_key_t *key, Dtorch__V1__KeyInfo *ret_info)
{
    dtorch__v1__key_info__init(ret_info);
    ret_info->id = key->id;
    ret_info->name = key->name;
    ret_info->created_wall_ms = key->created_wall_ms;
    ret_info->expires_wall_ms = key->expires_wall_ms;
    ret_info->by = key->by;
    ret_info->reason = key->reason;
    ret_info->revoked = key->is_revoked;
    ret_info->revoked_wall_ms = key->revoked_wall_ms;
    ret_info->revoked_by = key->revoked_by;
    ret_info->revoked_reason = key->revoked_reason;
    ret_info->uses = key->uses;
    ret_info->used_wall_ms = key->used_wall_ms;
    ret_info->used_from = key->used_from;
}

/* ---- the journal's record ---- */

void dt_cluster_key_state(dt_key_t *key, Dtorch__V1__KeyInfo *info, Dtorch__V1__KeyState *ret_state)
{
    fill(key, info);
    dtorch__v1__key_state__init(ret_state);
    ret_state->info = info;
    ret_state->secret_sha256 = (ProtobufCBinaryData){sizeof key->secret_sha256, key->secret_sha256};
}

dt_status_t dt_cluster_key_restore(dt_cluster_t *cluster, const Dtorch__V1__KeyState *state)
{
    const Dtorch__V1__KeyInfo *info = state->info;
    dt_key_t *key = find_by_id(cluster, info->id);
    if (!key)
        key = key_place(cluster);
    if (!key)
        return DT_ERR_LIMIT;
    *key = (dt_key_t){
        .created_wall_ms = info->created_wall_ms,
        .expires_wall_ms = info->expires_wall_ms,
        .expires_ns = INT64_MAX, /* until dt_cluster_keys_start() */
        .is_revoked = info->revoked,
        .revoked_wall_ms = info->revoked_wall_ms,
        .uses = info->uses,
        .used_wall_ms = info->used_wall_ms,
    };
    memcpy(key->secret_sha256, state->secret_sha256.data, sizeof key->secret_sha256);
    (void)dt_str_copy(key->id, sizeof key->id, info->id);
    (void)dt_str_copy(key->name, sizeof key->name, info->name);
    (void)dt_str_copy(key->by, sizeof key->by, info->by);
    (void)dt_str_copy(key->reason, sizeof key->reason, info->reason);
    (void)dt_str_copy(key->revoked_by, sizeof key->revoked_by, info->revoked_by);
    (void)dt_str_copy(key->revoked_reason, sizeof key->revoked_reason, info->revoked_reason);
    (void)dt_str_copy(key->used_from, sizeof key->used_from, info->used_from);
    return DT_OK;
}

void dt_cluster_keys_start(dt_cluster_t *cluster)
{
    for (uint32_t i = 0; i < cluster->key_count; i++) {
        dt_key_t *key = &cluster->keys[i];
        if (key->expires_wall_ms)
            key->expires_ns =
                dt_cluster_expiry_ns(cluster, key->created_wall_ms, key->expires_wall_ms);
    }
}

static uint64_t record_key(dt_cluster_t *cluster, dt_key_t *key, dt_journal_use_t use)
{
    Dtorch__V1__StateRecord record = DTORCH__V1__STATE_RECORD__INIT;
    Dtorch__V1__KeyState state;
    Dtorch__V1__KeyInfo info;
    dt_cluster_key_state(key, &info, &state);
    record.kind_case = DTORCH__V1__STATE_RECORD__KIND_KEY;
    record.key = &state;
    key->recorded_ns = cluster->now_ns;
    return dt_cluster_journal(cluster, use, &record);
}

/* ---- making and revoking ---- */

static void tell(dt_cluster_t *cluster, const dt_key_t *key, const char *name, const char *text,
                 const char *who, const char *reason)
{
    dt_event_draft_t draft;
    dt_event_begin(&draft, DTORCH__V1__SEVERITY__NOTICE, name, NULL);
    draft.is_unbounded = true;
    dt_event_field(&draft, "key", "%s", key->name);
    dt_event_field(&draft, "key_id", "%s", key->id);
    dt_event_field(&draft, "by", "%s", who);
    if (*reason)
        dt_event_field(&draft, "reason", "%s", reason);
    (void)dt_event_end(cluster, &draft, "API key %s (%s) was %s %s%s%s", key->name, key->id, text,
                       who, *reason ? ": " : "", reason);
}

static uint64_t hash_create(const Dtorch__V1__CreateKeyRequest *request)
{
    uint64_t hash = dt_hash_str(DT_HASH_SEED, "create-key");
    hash = dt_hash_bytes(hash, &request->lifetime_ms, sizeof request->lifetime_ms);
    return dt_hash_str(hash, request->name);
}

static void make_key(dt_cluster_t *cluster, dt_key_t *key,
                     const Dtorch__V1__CreateKeyRequest *request,
                     const dt_cluster_new_token_t *made, const char *by)
{
    int64_t lifetime_ms = request->lifetime_ms;
    *key = (dt_key_t){
        .created_wall_ms = cluster->wall_ms,
        .expires_wall_ms = lifetime_ms ? cluster->wall_ms + lifetime_ms : 0,
        .expires_ns = lifetime_ms ? cluster->now_ns + lifetime_ms * DT_CLUSTER_MS_NS : INT64_MAX,
    };
    memcpy(key->secret_sha256, made->secret_sha256, sizeof key->secret_sha256);
    (void)dt_str_copy(key->id, sizeof key->id, made->id);
    (void)dt_str_copy(key->name, sizeof key->name, request->name);
    (void)dt_str_copy(key->reason, sizeof key->reason, request->reason);
    dt_cluster_person(key->by, sizeof key->by, by, request->by);
}

/* A place for a key of this name, or NULL after the ticket was answered. */
static dt_key_t *place_for(dt_cluster_t *cluster, uint64_t ticket, const char *name, const char *id)
{
    const dt_key_t *holder = find_by_name(cluster, name);
    if (holder && judge(cluster, holder) == DT_KEY_FITS) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_EXISTS,
                               "there is a valid API key %s (%s) already; to replace it without a "
                               "gap make one of another name first, then: dtorchctl key revoke %s",
                               name, holder->id, name);
        return NULL;
    }
    dt_key_t *key = find_by_id(cluster, id) ? NULL : key_place(cluster);
    if (!key)
        dt_cluster_reply_error(cluster, ticket, DT_ERR_LIMIT,
                               "%u API keys are valid, which is the bound; revoke some",
                               DT_CLUSTER_KEYS_MAX);
    return key;
}

void dt_cluster_create_key(dt_cluster_t *cluster, uint64_t ticket,
                           const Dtorch__V1__CreateKeyRequest *request,
                           const dt_cluster_new_token_t *made, const char *by, int64_t now_ns)
{
    dt_cluster_set_now(cluster, now_ns);
    if (!dt_cluster_admin_may_issue(cluster, ticket, &request->base, request->request_id, "key"))
        return;
    dt_key_t *key = place_for(cluster, ticket, request->name, made->id);
    if (!key)
        return;
    make_key(cluster, key, request, made, by);
    if (!record_key(cluster, key, DT_JOURNAL_ADMIN)) {
        key->is_revoked = true;
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOMEM, "no memory for the key's record");
        return;
    }
    tell(cluster, key, "key-created", "created by", key->by, key->reason);
    (void)dt_cluster_request_record(cluster, request->request_id, hash_create(request));
    Dtorch__V1__CreateKeyReply reply = DTORCH__V1__CREATE_KEY_REPLY__INIT;
    Dtorch__V1__KeyInfo info;
    fill(key, &info);
    reply.key = (char *)(uintptr_t)made->token; /* borrowed while it is packed */
    reply.info = &info;
    dt_cluster_reply_when_durable(cluster, ticket, cluster->journal_issued, &reply.base);
}

/* The answer of a revocation: the one key. */
static void reply_key(dt_cluster_t *cluster, uint64_t ticket, dt_key_t *key)
{
    Dtorch__V1__KeyList list = DTORCH__V1__KEY_LIST__INIT;
    Dtorch__V1__KeyInfo info, *infos[] = {&info};
    fill(key, &info);
    list.keys = infos;
    list.n_keys = 1;
    dt_cluster_reply_when_durable(cluster, ticket, cluster->journal_issued, &list.base);
}

const char *dt_cluster_revoke_key(dt_cluster_t *cluster, uint64_t ticket,
                                  const Dtorch__V1__RevokeKeyRequest *request, const char *by,
                                  int64_t now_ns)
{
    dt_error_t error;
    dt_cluster_set_now(cluster, now_ns);
    if (dt_wire_validate(&request->base, &error) != DT_OK) {
        dt_cluster_reply_error(cluster, ticket, error.code, "%s", error.text);
        return NULL;
    }
    dt_key_t *key = find_by_id(cluster, request->key);
    if (!key)
        key = find_by_name(cluster, request->key);
    if (!key) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOT_FOUND, "no API key %s", request->key);
        return NULL;
    }
    if (key->is_revoked) {
        reply_key(cluster, ticket, key);
        return key->id;
    }
    if (!dt_cluster_admin_may_change(cluster, ticket, 2))
        return NULL;
    key->is_revoked = true; /* in memory at once, whatever the journal does */
    key->revoked_wall_ms = cluster->wall_ms;
    dt_cluster_person(key->revoked_by, sizeof key->revoked_by, by, request->by);
    (void)dt_str_copy(key->revoked_reason, sizeof key->revoked_reason, request->reason);
    if (!record_key(cluster, key, DT_JOURNAL_ADMIN)) {
        dt_cluster_reply_error(cluster, ticket, DT_ERR_NOMEM, "no memory for the key's record");
        return key->id;
    }
    tell(cluster, key, "key-revoked", "revoked by", key->revoked_by, key->revoked_reason);
    reply_key(cluster, ticket, key);
    return key->id;
}

/* ---- showing one ---- */

static void explain_over(const dt_key_t *key, dt_cluster_admission_t *ret_admission)
{
    if (ret_admission->verdict == DT_KEY_EXPIRED)
        (void)snprintf(ret_admission->text, sizeof ret_admission->text,
                       "the API key %s has expired; make another: dtorchctl key create NAME",
                       key->name);
    else
        (void)snprintf(ret_admission->text, sizeof ret_admission->text,
                       "the API key %s was revoked%s%.96s; another is made by dtorchctl key create "
                       "NAME",
                       key->name, key->revoked_reason[0] ? ": " : "", key->revoked_reason);
}

static void explain_none(dt_cluster_admission_t *ret_admission)
{
    const char *text =
        "what was given is no API key: one begins with dtk_ and comes from dtorchctl "
        "key create NAME";
    if (ret_admission->verdict == DT_KEY_UNKNOWN)
        text = "the API key is not known here: mistyped, or of another cluster; dtorchctl key list "
               "shows those that are, key create NAME makes one";
    else if (ret_admission->verdict == DT_KEY_MISSING)
        text = "a session over TLS needs an API key (or a client certificate): make one by "
               "dtorchctl key create NAME, give it by ApiKeyFile= in client.conf or "
               "DTORCH_API_KEY_FILE";
    (void)snprintf(ret_admission->text, sizeof ret_admission->text, "%s", text);
}

/* The last use is seen at once, and kept now and then. */
static void note_use(dt_cluster_t *cluster, dt_key_t *key, const char *address)
{
    bool is_first = key->used_wall_ms == 0;
    key->uses++;
    key->used_wall_ms = cluster->wall_ms;
    dt_wire_text_copy(key->used_from, sizeof key->used_from, address);
    if ((is_first || cluster->now_ns - key->recorded_ns >= USE_RECORD_EVERY_NS) &&
        dt_cluster_journal_has_room(cluster, DT_JOURNAL_EVENT, 1))
        (void)record_key(cluster, key, DT_JOURNAL_EVENT);
}

void dt_cluster_refused_session(dt_cluster_t *cluster, dt_key_verdict_t verdict,
                                const char *address, const char *text)
{
    cluster->key_refusals[verdict]++;
    dt_cluster_offence(cluster, address, "session", verdict_words[verdict], text, false);
}

void dt_cluster_admit(dt_cluster_t *cluster, const char *id, const uint8_t *secret_sha256,
                      const char *address, int64_t now_ns, dt_cluster_admission_t *ret_admission)
{
    dt_key_t *key = id && *id ? find_by_id(cluster, id) : NULL;
    dt_cluster_set_now(cluster, now_ns);
    *ret_admission = (dt_cluster_admission_t){.verdict = DT_KEY_MISSING};
    if (id && !*id)
        ret_admission->verdict = DT_KEY_MALFORMED;
    else if (id)
        ret_admission->verdict = DT_KEY_UNKNOWN;
    if (key && dt_cluster_secrets_are_equal(key->secret_sha256, secret_sha256)) {
        ret_admission->verdict = judge(cluster, key);
        ret_admission->id = key->id;
        ret_admission->name = key->name;
        if (ret_admission->verdict == DT_KEY_FITS)
            note_use(cluster, key, address);
        else
            explain_over(key, ret_admission);
        return; /* one that is over is refused only if it wants something new */
    }
    explain_none(ret_admission);
    dt_cluster_refused_session(cluster, ret_admission->verdict, address, ret_admission->text);
    ret_admission->is_limited = !dt_cluster_offender_may_ask(cluster, address, "session");
}

/* ---- queries ---- */

static int by_name(const void *a, const void *b)
{
    const Dtorch__V1__KeyInfo *x = *(Dtorch__V1__KeyInfo *const *)a;
    const Dtorch__V1__KeyInfo *y = *(Dtorch__V1__KeyInfo *const *)b;
    int order = strcmp(x->name, y->name);
    if (order != 0)
        return order;
    return (x->created_wall_ms < y->created_wall_ms) - (x->created_wall_ms > y->created_wall_ms);
}

dt_status_t dt_cluster_list_keys(const dt_cluster_t *cluster, dt_arena_t *arena,
                                 Dtorch__V1__KeyList **ret_list)
{
    Dtorch__V1__KeyList *list = dt_arena_alloc(arena, sizeof *list);
    if (!list)
        return DT_ERR_NOMEM;
    dtorch__v1__key_list__init(list);
    list->keys = dt_arena_calloc(arena, cluster->key_count, sizeof(Dtorch__V1__KeyInfo *));
    if (!list->keys)
        return DT_ERR_NOMEM;
    for (uint32_t i = 0; i < cluster->key_count; i++) {
        Dtorch__V1__KeyInfo *info = dt_arena_alloc(arena, sizeof *info);
        dt_key_t *copy = dt_arena_alloc(arena, sizeof *copy);
        if (!info || !copy)
            return DT_ERR_NOMEM;
        *copy = cluster->keys[i]; /* what the list shows may change before it is packed */
        memset(copy->secret_sha256, 0, sizeof copy->secret_sha256);
        fill(copy, info);
        list->keys[list->n_keys++] = info;
    }
    if (list->n_keys)
        qsort(list->keys, list->n_keys, sizeof(Dtorch__V1__KeyInfo *), by_name);
    *ret_list = list;
    return DT_OK;
}

void dt_cluster_count_keys(const dt_cluster_t *cluster, dt_cluster_counts_t *ret_counts)
{
    memset(ret_counts->keys, 0, sizeof ret_counts->keys);
    for (uint32_t i = 0; i < cluster->key_count; i++)
        ret_counts->keys[judge(cluster, &cluster->keys[i])]++;
    memcpy(ret_counts->key_refusals, cluster->key_refusals, sizeof ret_counts->key_refusals);
}
