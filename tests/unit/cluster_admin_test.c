#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>

#include "lib/coretest.h"
#include "wire/wire.h"

#define ADMIN(name)  DTORCH__V1__NODE_INTENT__ADMIN__##name
#define CHANGE(name) DTORCH__V1__SET_NODE_REQUEST__CHANGE__##name

static dt_coretest_t *test;

static void setup(void)
{
    test = dt_coretest_new();
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_inventory(test, 1, 0x3, 0);
}

static void teardown(void)
{
    dt_coretest_free(test);
}

static dt_status_t set(int change, const char *name, const char *reason)
{
    static uint64_t ticket = 100;
    dt_coretest_set(test, ++ticket, change, name, reason, "");
    const dt_coretest_action_t *reply = dt_coretest_find(test, DT_CLUSTER_DO_REPLY, ticket);
    cr_assert(reply != NULL);
    return reply->status;
}

TestSuite(cluster_admin, .init = setup, .fini = teardown, .timeout = 60);

Test(cluster_admin, is_drained_at_once_when_nothing_runs_there_and_the_worker_is_told)
{
    dt_coretest_forget_actions(test);
    cr_assert_eq(set(CHANGE(DRAIN), "n1", "fan"), DT_OK);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(DRAINED));
    cr_assert_eq(dt_coretest_count_events(test, "node-drain"), 1);
    cr_assert_eq(dt_coretest_count_events(test, "node-drained"), 1);
    const Dtorch__V1__WorkerDown *down =
        dt_coretest_sent(test, 1, DTORCH__V1__WORKER_DOWN__KIND_INTENT);
    cr_assert_eq(down->intent->admin, ADMIN(DRAINED));
}

Test(cluster_admin, drains_until_the_last_engine_is_idle)
{
    dt_coretest_inventory(test, 1, 0x3, 2);
    cr_assert_eq(set(CHANGE(DRAIN), "n1", "fan"), DT_OK);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(DRAINING));
    dt_coretest_inventory(test, 1, 0x3, 1);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(DRAINING));
    dt_coretest_inventory(test, 1, 0x3, 0);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(DRAINED));
}

Test(cluster_admin, keeps_admin_state_apart_from_health)
{
    cr_assert_eq(set(CHANGE(CORDON), "n1", "look"), DT_OK);
    dt_cluster_stream_closed(test->cluster, 1, "", test->now_ns);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(CORDONED));
    dt_coretest_join(test, 2, 1, 22);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(CORDONED));
}

Test(cluster_admin, undoes_with_the_verb_that_fits_only)
{
    cr_assert_eq(set(CHANGE(CORDON), "n1", "look"), DT_OK);
    cr_assert_eq(set(CHANGE(UNDRAIN), "n1", ""), DT_ERR_INVALID);
    cr_assert_eq(set(CHANGE(UNCORDON), "n1", ""), DT_OK);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(ENABLED));
    cr_assert_eq(set(CHANGE(DRAIN), "n1", "fan"), DT_OK);
    cr_assert_eq(set(CHANGE(CORDON), "n1", "fan"), DT_ERR_INVALID);
    cr_assert_eq(set(CHANGE(UNCORDON), "n1", ""), DT_ERR_INVALID);
    cr_assert_eq(set(CHANGE(UNDRAIN), "n1", ""), DT_OK);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(ENABLED));
}

Test(cluster_admin, needs_a_reason_for_drain_and_cordon)
{
    cr_assert_eq(set(CHANGE(DRAIN), "n1", ""), DT_ERR_INVALID);
    cr_assert_eq(set(CHANGE(CORDON), "n1", ""), DT_ERR_INVALID);
}

Test(cluster_admin, changes_all_nodes_or_none)
{
    char a[] = "n1", b[] = "nobody", reason[] = "fan";
    char *names[] = {a, b};
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    request.names = names;
    request.n_names = 2;
    request.change = CHANGE(DRAIN);
    request.reason = reason;
    dt_cluster_set_node(test->cluster, 5, &request, "root", test->now_ns);
    dt_coretest_perform(test);
    cr_assert_eq(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 5)->status, DT_ERR_NOT_FOUND);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(ENABLED));
}

Test(cluster_admin, changes_nothing_in_a_dry_run)
{
    char a[] = "n1", reason[] = "fan";
    char *names[] = {a};
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    request.names = names;
    request.n_names = 1;
    request.change = CHANGE(DRAIN);
    request.reason = reason;
    request.dry_run = true;
    uint32_t records = test->record_count;
    dt_cluster_set_node(test->cluster, 5, &request, "root", test->now_ns);
    dt_coretest_perform(test);
    const dt_coretest_action_t *reply = dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 5);
    cr_assert_eq(reply->status, DT_OK);
    Dtorch__V1__NodeList *list = dtorch__v1__node_list__unpack(NULL, reply->size, reply->data);
    cr_assert_eq(list->nodes[0]->admin, ADMIN(DRAINED));
    dtorch__v1__node_list__free_unpacked(list, NULL);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(ENABLED));
    cr_assert_eq(test->record_count, records);
}

Test(cluster_admin, answers_a_repeated_request_id_alike_and_changes_nothing)
{
    dt_coretest_set(test, 1, CHANGE(DRAIN), "n1", "fan", "abc");
    dt_coretest_set(test, 2, CHANGE(UNDRAIN), "n1", "", "");
    dt_coretest_set(test, 3, CHANGE(DRAIN), "n1", "fan", "abc");
    cr_assert_eq(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 3)->status, DT_OK);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(ENABLED));
    dt_coretest_set(test, 4, CHANGE(CORDON), "n1", "other", "abc");
    cr_assert_eq(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 4)->status, DT_ERR_INVALID);
}

Test(cluster_admin, forgets_only_what_is_dead_or_stopped)
{
    cr_assert_eq(set(CHANGE(FORGET), "n1", ""), DT_ERR_INVALID);
    dt_cluster_stream_closed(test->cluster, 1, "", test->now_ns);
    cr_assert_eq(set(CHANGE(FORGET), "n1", ""), DT_OK);
    cr_assert_eq(dt_coretest_admin(test, "n1"), -1);
    dt_coretest_restart(test);
    cr_assert_eq(dt_coretest_admin(test, "n1"), -1);
}

Test(cluster_admin, bounds_the_changes_that_wait_for_the_journal)
{
    test->is_holding = true;
    dt_status_t last = DT_OK;
    for (uint64_t i = 0; i < 17; i++)
        dt_coretest_set(test, 1000 + i, CHANGE(CORDON), "n1", "look", "");
    const dt_coretest_action_t *reply = dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 1016);
    cr_assert(reply != NULL);
    last = reply->status;
    cr_assert_eq(last, DT_ERR_AGAIN);
}

Test(cluster_admin, bounds_the_bytes_that_wait_for_the_journal)
{
    char reason[200];
    dt_cluster_counts_t counts;
    uint64_t ticket = 2000;
    dt_status_t last = DT_OK;
    memset(reason, 'r', sizeof reason);
    reason[sizeof reason - 1] = '\0';
    dt_coretest_free(test);
    test = dt_coretest_new_stopped();
    test->options.journal_bytes_max = 8192;
    dt_coretest_start(test);
    dt_coretest_join(test, 1, 1, 11);
    test->is_holding = true;
    for (int i = 0; i < 15 && last == DT_OK; i++) { /* fewer than admin_pending_max */
        for (int k = 0; k < 4; k++)
            dt_cluster_peer_misbehaved(test->cluster, "10.0.0.1:1", reason + 8 * i + k,
                                       test->now_ns);
        dt_coretest_set(test, ++ticket, CHANGE(CORDON), "n1", reason, "");
        const dt_coretest_action_t *reply = dt_coretest_find(test, DT_CLUSTER_DO_REPLY, ticket);
        last = reply ? reply->status : DT_OK;
    }
    cr_assert_eq(last, DT_ERR_AGAIN);
    dt_cluster_count(test->cluster, &counts);
    cr_assert(counts.journal_bytes >= 4096 && counts.journal_bytes < 8192 + 2048, "%lu",
              (unsigned long)counts.journal_bytes);
    test->is_holding = false;
    dt_coretest_sync(test);
    dt_cluster_count(test->cluster, &counts);
    cr_assert_eq(counts.journal_bytes, 0);
    cr_assert_eq(set(CHANGE(CORDON), "n1", "now"), DT_OK);
}

/* ---- tokens ---- */

static const uint8_t secret[32] = "the hash of a secret, 32 bytes.";

static dt_status_t create(const char *id, uint32_t uses, int64_t lifetime_ms, const char *node_name)
{
    static uint64_t ticket = 500;
    Dtorch__V1__CreateTokenRequest request = DTORCH__V1__CREATE_TOKEN_REQUEST__INIT;
    dt_cluster_new_token_t token = {.id = id, .token = "dtj_shown_once"};
    memcpy(token.secret_sha256, secret, sizeof secret);
    request.uses = uses;
    request.lifetime_ms = lifetime_ms;
    request.node_name = (char *)(uintptr_t)node_name;
    dt_cluster_create_token(test->cluster, ++ticket, &request, &token, "root", test->now_ns);
    dt_coretest_perform(test);
    return dt_coretest_find(test, DT_CLUSTER_DO_REPLY, ticket)->status;
}

static dt_status_t use(const char *id, const uint8_t *hash, const char *name, uint8_t node)
{
    static uint64_t ticket = 800;
    uint8_t node_id[16];
    memset(node_id, node, sizeof node_id);
    dt_cluster_use_token(test->cluster, ++ticket, id, hash, name, node_id, "10.0.0.5:1",
                         test->now_ns);
    dt_coretest_perform(test);
    const dt_coretest_action_t *reply = dt_coretest_find(test, DT_CLUSTER_DO_REPLY, ticket);
    return reply ? reply->status : DT_ERR_TIMEOUT;
}

Test(cluster_admin, admits_as_many_nodes_as_a_token_has_uses)
{
    cr_assert_eq(create("t1", 2, 0, ""), DT_OK);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_OK);
    cr_assert_eq(use("t1", secret, "n6", 6), DT_OK);
    cr_assert_eq(use("t1", secret, "n7", 7), DT_ERR_DENIED);
}

Test(cluster_admin, answers_a_node_again_whose_first_answer_was_lost)
{
    cr_assert_eq(create("t1", 1, 0, ""), DT_OK);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_OK);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_OK);
    dt_coretest_restart(test);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_OK);
    cr_assert_eq(use("t1", secret, "n5", 6), DT_ERR_DENIED, "another node");
    cr_assert_eq(use("t1", secret, "n6", 5), DT_ERR_DENIED, "another name");
}

Test(cluster_admin, admits_nobody_with_a_wrong_secret_name_or_time)
{
    const uint8_t wrong[32] = "no";
    cr_assert_eq(create("t1", 9, 60000, "n5"), DT_OK);
    cr_assert_eq(use("t1", wrong, "n5", 5), DT_ERR_DENIED);
    cr_assert_eq(use("t2", secret, "n5", 5), DT_ERR_DENIED);
    cr_assert_eq(use("t1", secret, "n6", 6), DT_ERR_DENIED);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_OK);
    dt_coretest_pass(test, 61000);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_ERR_DENIED);
}

Test(cluster_admin, gives_no_certificate_for_a_name_that_another_node_has)
{
    cr_assert_eq(create("t1", 9, 0, ""), DT_OK);
    cr_assert_eq(use("t1", secret, "n1", 66), DT_ERR_DENIED);
    cr_assert_eq(use("t1", secret, "n1", 1), DT_OK);
}

Test(cluster_admin, says_that_a_token_was_used_only_when_that_is_durable)
{
    cr_assert_eq(create("t1", 1, 0, ""), DT_OK);
    test->is_holding = true;
    cr_assert_eq(use("t1", secret, "n5", 5), DT_ERR_TIMEOUT, "no answer yet");
    dt_coretest_sync(test);
    test->is_holding = false;
    dt_coretest_restart(test);
    cr_assert_eq(use("t1", secret, "n6", 6), DT_ERR_DENIED, "still used up");
}

Test(cluster_admin, keeps_a_tokens_life_when_the_wall_clock_jumps)
{
    cr_assert_eq(create("t1", 9, 3600000, ""), DT_OK);
    test->wall_ms += 24 * 3600 * 1000;
    dt_coretest_pass(test, 500);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_OK);
    dt_coretest_pass(test, 0);
}

Test(cluster_admin, refuses_a_revoked_token)
{
    char id[] = "t1";
    Dtorch__V1__RevokeTokenRequest request = DTORCH__V1__REVOKE_TOKEN_REQUEST__INIT;
    request.id = id;
    cr_assert_eq(create("t1", 9, 0, ""), DT_OK);
    dt_cluster_revoke_token(test->cluster, 9, &request, "root", test->now_ns);
    dt_coretest_perform(test);
    cr_assert_eq(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 9)->status, DT_OK);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_ERR_DENIED);
    dt_coretest_restart(test);
    cr_assert_eq(use("t1", secret, "n5", 5), DT_ERR_DENIED);
}

Test(cluster_admin, never_writes_the_token_itself)
{
    cr_assert_eq(create("t1", 9, 0, ""), DT_OK);
    for (uint32_t i = 0; i < test->record_count; i++)
        cr_assert(memmem(test->records[i].data, test->records[i].size, "dtj_", 4) == NULL);
}

/* ---- what queries say ---- */

Test(cluster_admin, shows_alarms_for_dead_nodes_missing_devices_and_bad_peers)
{
    dt_arena_t arena;
    Dtorch__V1__ClusterStatus *status;
    dt_coretest_join(test, 2, 2, 22);
    dt_coretest_inventory(test, 2, 0x3, 0);
    dt_coretest_inventory(test, 2, 0x1, 0);
    dt_cluster_stream_closed(test->cluster, 1, "", test->now_ns);
    dt_cluster_peer_misbehaved(test->cluster, "10.7.7.7:9", "says nothing", test->now_ns);
    dt_cluster_journal_failing(test->cluster, "No space left on device", test->now_ns);
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    cr_assert_eq(dt_cluster_get(test->cluster, &arena, test->now_ns, &status), DT_OK);
    cr_assert_eq(status->n_alarms, 4);
    cr_assert_str_eq(status->alarms[0]->name, "journal-full");
    cr_assert_str_eq(status->alarms[1]->name, "node-dead");
    cr_assert_str_eq(status->alarms[1]->command, "dtorchctl node show n1");
    cr_assert_str_eq(status->alarms[2]->name, "peer-misbehaves");
    cr_assert_str_eq(status->alarms[3]->name, "devices-missing");
    cr_assert_eq(status->nodes_total, 2);
    cr_assert_eq(status->nodes_dead, 1);
    cr_assert_eq(status->nodes_ready, 1);
    dt_arena_fini(&arena);
}

Test(cluster_admin, pages_nodes_by_name)
{
    dt_arena_t arena;
    Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    Dtorch__V1__NodeList *list;
    char after[64] = "";
    size_t seen = 1;
    for (uint8_t i = 2; i <= 20; i++)
        dt_coretest_join(test, i, i, i);
    request.limit = 7;
    request.after = after;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    for (seen = 0;; seen += list->n_nodes) {
        cr_assert_eq(dt_cluster_list_nodes(test->cluster, &request, &arena, test->now_ns, &list),
                     DT_OK);
        if (!list->more)
            break;
        (void)snprintf(after, sizeof after, "%s", list->nodes[list->n_nodes - 1]->name);
    }
    cr_assert_eq(seen + list->n_nodes, 20);
    dt_arena_fini(&arena);
}

Test(cluster_admin, diagnoses_each_queue_with_its_bound)
{
    dt_arena_t arena;
    Dtorch__V1__Diagnostics *items;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    cr_assert_eq(dt_cluster_diagnose(test->cluster, &arena, test->now_ns, &items), DT_OK);
    bool has_pending = false, has_lease = false;
    for (size_t i = 0; i < items->n_items; i++) {
        has_pending |= strcmp(items->items[i]->name, "journal_pending") == 0 &&
                       strcmp(items->items[i]->bound, "1024") == 0;
        has_lease |= strcmp(items->items[i]->part, "node/n1") == 0 &&
                     strcmp(items->items[i]->value, "alive") == 0;
    }
    cr_assert(has_pending && has_lease);
    dt_arena_fini(&arena);
}
