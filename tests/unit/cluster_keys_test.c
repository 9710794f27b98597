/* API keys in the cluster's core: who is admitted, what is kept, what failures cost. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "lib/coretest.h"
#include "pki/pki.h"
#include "wire/wire.h"

#define PEER "10.0.0.5:1234"

static dt_coretest_t *test;
static const uint8_t secret[32] = "the hash of a secret, 32 bytes.";
static const uint8_t wrong[32] = "the hash of a secret, 32 bytes!";

static void setup(void)
{
    test = dt_coretest_new();
}

static void teardown(void)
{
    dt_coretest_free(test);
}

TestSuite(cluster_keys, .init = setup, .fini = teardown, .timeout = 60);

static dt_status_t create(const char *id, const char *name, int64_t lifetime_ms)
{
    static uint64_t ticket = 500;
    Dtorch__V1__CreateKeyRequest request = DTORCH__V1__CREATE_KEY_REQUEST__INIT;
    dt_cluster_new_token_t made = {.id = id, .token = "dtk_shown_once"};
    memcpy(made.secret_sha256, secret, sizeof secret);
    request.name = (char *)(uintptr_t)name;
    request.lifetime_ms = lifetime_ms;
    dt_cluster_create_key(test->cluster, ++ticket, &request, &made, "root", test->now_ns);
    dt_coretest_perform(test);
    return dt_coretest_find(test, DT_CLUSTER_DO_REPLY, ticket)->status;
}

static dt_status_t revoke(const char *key)
{
    static uint64_t ticket = 900;
    char reason[] = "lost";
    Dtorch__V1__RevokeKeyRequest request = DTORCH__V1__REVOKE_KEY_REQUEST__INIT;
    request.key = (char *)(uintptr_t)key;
    request.reason = reason;
    (void)dt_cluster_revoke_key(test->cluster, ++ticket, &request, "root", test->now_ns);
    dt_coretest_perform(test);
    return dt_coretest_find(test, DT_CLUSTER_DO_REPLY, ticket)->status;
}

static dt_cluster_admission_t admit(const char *id, const uint8_t *hash)
{
    dt_cluster_admission_t admission;
    dt_cluster_admit(test->cluster, id, hash, PEER, test->now_ns, &admission);
    dt_coretest_perform(test);
    return admission;
}

static dt_key_verdict_t verdict(const char *id, const uint8_t *hash)
{
    return admit(id, hash).verdict;
}

Test(cluster_keys, admits_the_right_secret_and_nothing_else)
{
    cr_assert_eq(create("k1", "ana", 0), DT_OK);
    dt_cluster_admission_t admission = admit("k1", secret);
    cr_assert_eq(admission.verdict, DT_KEY_FITS);
    cr_assert_str_eq(admission.id, "k1");
    cr_assert_str_eq(admission.name, "ana");
    admission = admit("k1", wrong);
    cr_assert_eq(admission.verdict, DT_KEY_UNKNOWN);
    cr_assert_null(admission.id);
    cr_assert_eq(verdict("k2", secret), DT_KEY_UNKNOWN);
    cr_assert_eq(verdict("", NULL), DT_KEY_MALFORMED);
    cr_assert_eq(verdict(NULL, NULL), DT_KEY_MISSING);
}

Test(cluster_keys, end_when_their_time_is_over_whatever_the_wall_clock_says)
{
    cr_assert_eq(create("k1", "ana", 60000), DT_OK);
    cr_assert_eq(create("k2", "bob", 0), DT_OK);
    test->wall_ms += INT64_C(86400000);
    dt_coretest_pass(test, 500);
    cr_assert_eq(verdict("k1", secret), DT_KEY_FITS);
    dt_coretest_pass(test, 61000);
    dt_cluster_admission_t admission = admit("k1", secret);
    cr_assert_eq(admission.verdict, DT_KEY_EXPIRED);
    cr_assert_str_eq(admission.id, "k1", "what it began goes on");
    cr_assert_eq(verdict("k2", secret), DT_KEY_FITS);
    cr_assert_eq(create("k3", "ana", 0), DT_OK, "the name is free again");
}

Test(cluster_keys, belong_to_one_name_at_a_time_and_are_revoked_by_name_or_id)
{
    cr_assert_eq(create("k1", "ana", 0), DT_OK);
    cr_assert_eq(create("k2", "ana", 0), DT_ERR_EXISTS);
    cr_assert_eq(revoke("ana"), DT_OK);
    cr_assert_eq(verdict("k1", secret), DT_KEY_REVOKED);
    cr_assert_eq(create("k2", "ana", 0), DT_OK);
    cr_assert_eq(verdict("k2", secret), DT_KEY_FITS);
    cr_assert_eq(revoke("k2"), DT_OK);
    cr_assert_eq(verdict("k2", secret), DT_KEY_REVOKED);
    cr_assert_eq(revoke("nobody"), DT_ERR_NOT_FOUND);
    cr_assert_eq(dt_coretest_count_events(test, "key-created"), 2);
    cr_assert_eq(dt_coretest_count_events(test, "key-revoked"), 2);
}

Test(cluster_keys, are_kept_over_a_restart_with_their_end_and_their_last_use)
{
    dt_arena_t arena;
    Dtorch__V1__KeyList *list;
    cr_assert_eq(create("k1", "ana", 0), DT_OK);
    cr_assert_eq(create("k2", "bob", 0), DT_OK);
    cr_assert_eq(create("k3", "cleo", 60000), DT_OK);
    cr_assert_eq(verdict("k1", secret), DT_KEY_FITS);
    cr_assert_eq(revoke("bob"), DT_OK);
    dt_coretest_restart(test);
    cr_assert_eq(verdict("k2", secret), DT_KEY_REVOKED);
    cr_assert_eq(verdict("k3", secret), DT_KEY_FITS);
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    cr_assert_eq(dt_cluster_list_keys(test->cluster, &arena, &list), DT_OK);
    cr_assert_eq(list->n_keys, 3);
    cr_assert_str_eq(list->keys[0]->name, "ana");
    cr_assert_str_eq(list->keys[0]->used_from, PEER);
    cr_assert_eq(list->keys[0]->uses, 1);
    cr_assert_str_eq(list->keys[1]->revoked_reason, "lost");
    dt_arena_fini(&arena);
    dt_coretest_pass(test, 61000);
    cr_assert_eq(verdict("k3", secret), DT_KEY_EXPIRED);
}

Test(cluster_keys, write_the_journal_seldom_for_their_uses)
{
    cr_assert_eq(create("k1", "ana", 0), DT_OK);
    uint32_t before = test->record_count;
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(verdict("k1", secret), DT_KEY_FITS);
    cr_assert_leq(test->record_count - before, 1);
}

Test(cluster_keys, make_few_events_and_fewer_answers_of_many_failures)
{
    dt_cluster_counts_t counts;
    uint32_t told = 0;
    cr_assert_eq(create("k1", "ana", 0), DT_OK);
    dt_coretest_forget_actions(test);
    for (int i = 0; i < 1000; i++)
        told += !admit("k1", wrong).is_limited;
    cr_assert_eq(dt_coretest_count_events(test, "session-refused"), 1);
    cr_assert(told >= 5 && told <= 20, "%u", told);
    cr_assert_eq(verdict("k1", secret), DT_KEY_FITS, "others of the host are not punished");
    dt_cluster_count(test->cluster, &counts);
    cr_assert_eq(counts.key_refusals[DT_KEY_UNKNOWN], 1000);
    cr_assert_eq(counts.keys[DT_KEY_FITS], 1);
    dt_coretest_pass(test, 61000);
    cr_assert_not(admit("k1", wrong).is_limited);
    cr_assert_eq(dt_coretest_count_events(test, "session-refused"), 2);
}

Test(cluster_keys, at_their_bound_give_the_place_of_one_that_is_over)
{
    char id[16], name[16];
    for (unsigned i = 0; i < DT_CLUSTER_KEYS_MAX; i++) {
        (void)snprintf(id, sizeof id, "k%u", i);
        (void)snprintf(name, sizeof name, "n%u", i);
        cr_assert_eq(create(id, name, 0), DT_OK);
        dt_coretest_forget_actions(test);
    }
    cr_assert_eq(create("more", "more", 0), DT_ERR_LIMIT);
    cr_assert_eq(revoke("n7"), DT_OK);
    cr_assert_eq(create("more", "more", 0), DT_OK);
    cr_assert_eq(verdict("k7", secret), DT_KEY_UNKNOWN);
    cr_assert_eq(verdict("more", secret), DT_KEY_FITS);
}

Test(cluster_keys, are_never_written_themselves)
{
    cr_assert_eq(create("k1", "ana", 0), DT_OK);
    for (uint32_t i = 0; i < test->record_count; i++)
        cr_assert(memmem(test->records[i].data, test->records[i].size, "dtk_", 4) == NULL);
}

Test(cluster_keys, have_a_text_that_is_read_exactly)
{
    char text[DT_PKI_TOKEN_SIZE], longer[DT_PKI_TOKEN_SIZE + 1];
    dt_pki_api_key_t made, read;
    dt_error_t err;
    dt_pki_api_key_make(&made, text);
    cr_assert_eq(dt_pki_api_key_parse(text, &read, &err), DT_OK, "%s", err.text);
    cr_assert_str_eq(read.id, made.id);
    cr_assert_str_eq(read.secret, made.secret);
    (void)snprintf(longer, sizeof longer, "%sa", text);
    cr_assert_eq(dt_pki_api_key_parse(longer, &read, &err), DT_ERR_INVALID);
    cr_assert_null(strstr(err.text, made.secret));
    for (size_t i = 0; text[i]; i++) {
        char cut[DT_PKI_TOKEN_SIZE];
        (void)snprintf(cut, sizeof cut, "%.*s", (int)i, text);
        cr_assert_eq(dt_pki_api_key_parse(cut, &read, NULL), DT_ERR_INVALID);
    }
    text[6] = 'G';
    cr_assert_eq(dt_pki_api_key_parse(text, &read, NULL), DT_ERR_INVALID);
}
