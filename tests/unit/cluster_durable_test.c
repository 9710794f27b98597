#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>

#include "lib/coretest.h"
#include "wire/wire.h"

#define HEALTH(name) DTORCH__V1__NODE_HEALTH__NODE_##name
#define ADMIN(name)  DTORCH__V1__NODE_INTENT__ADMIN__##name
#define CHANGE(name) DTORCH__V1__SET_NODE_REQUEST__CHANGE__##name
#define WELCOME      DTORCH__V1__WORKER_DOWN__KIND_WELCOME

static dt_coretest_t *test;

static void setup(void)
{
    test = dt_coretest_new();
}

static void teardown(void)
{
    dt_coretest_free(test);
}

static size_t count_listed(uint64_t after, uint64_t *ret_last)
{
    dt_arena_t arena;
    Dtorch__V1__ListEventsRequest request = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    Dtorch__V1__EventList *list;
    request.after_sequence = after;
    request.limit = 10000;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    cr_assert_eq(dt_cluster_list_events(test->cluster, &request, &arena, &list), DT_OK);
    size_t count = list->n_events;
    if (ret_last && count)
        *ret_last = list->events[count - 1]->sequence;
    dt_arena_fini(&arena);
    return count;
}

TestSuite(cluster_durable, .init = setup, .fini = teardown, .timeout = 60);

Test(cluster_durable, welcomes_nobody_before_its_epoch_is_durable)
{
    dt_coretest_free(test);
    test = dt_coretest_new_stopped();
    test->is_holding = true;
    dt_coretest_start(test);
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_pass(test, 20000);
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_SEND, 1) == NULL);
    cr_assert_not(dt_cluster_is_ready(test->cluster));
    dt_coretest_sync(test);
    cr_assert(dt_coretest_sent(test, 1, WELCOME) != NULL);
}

Test(cluster_durable, raises_its_epoch_at_each_start)
{
    for (uint64_t epoch = 2; epoch < 6; epoch++) {
        dt_coretest_restart(test);
        dt_coretest_forget_actions(test);
        dt_coretest_join(test, epoch, 1, 11);
        const Dtorch__V1__WorkerDown *down = dt_coretest_sent(test, epoch, WELCOME);
        cr_assert_eq(down->welcome->epoch, epoch);
    }
}

Test(cluster_durable, keeps_a_drain_labels_and_devices_over_a_restart)
{
    dt_arena_t arena;
    char key[] = "zone", value[] = "A.1", name[] = "n1";
    char *names[] = {name};
    Dtorch__V1__Label label = DTORCH__V1__LABEL__INIT, *labels[] = {&label};
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    label.key = key;
    label.value = value;
    request.names = names;
    request.n_names = 1;
    request.change = CHANGE(LABEL);
    request.set_labels = labels;
    request.n_set_labels = 1;
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_inventory(test, 1, 0x7, 0);
    dt_coretest_inventory(test, 1, 0x5, 0);
    dt_cluster_set_node(test->cluster, 1, &request, "root", test->now_ns);
    dt_coretest_perform(test);
    dt_coretest_set(test, 2, CHANGE(DRAIN), "n1", "fan 2", "");
    dt_coretest_pass(test, 1500);
    dt_coretest_restart(test);
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    const Dtorch__V1__Node *node = dt_coretest_node(test, &arena, "n1");
    cr_assert_eq(node->admin, ADMIN(DRAINED));
    cr_assert_str_eq(node->reason, "fan 2");
    cr_assert_str_eq(node->reason_by, "uid 1000, ana");
    cr_assert_eq(node->health, HEALTH(UNKNOWN));
    cr_assert_eq(node->n_labels, 1);
    cr_assert_str_eq(node->labels[0]->value, "A.1");
    cr_assert_eq(node->n_devices, 3);
    cr_assert(node->devices[1]->is_missing);
    dt_arena_fini(&arena);
}

Test(cluster_durable, knows_nodes_after_a_restart_and_declares_them_dead_after_the_grace)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_join(test, 2, 2, 22);
    dt_coretest_restart(test);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(UNKNOWN));
    dt_coretest_join(test, 3, 1, 11);
    dt_coretest_pass(test, 2000);
    dt_coretest_beat(test, 3, 1, 0);
    cr_assert_eq(dt_coretest_health(test, "n2"), HEALTH(UNKNOWN));
    dt_coretest_pass(test, 8200);
    cr_assert_eq(dt_coretest_health(test, "n2"), HEALTH(DEAD));
    dt_coretest_pass(test, 2000);
    dt_coretest_forget_actions(test);
    dt_coretest_restart(test);
    cr_assert_eq(dt_coretest_health(test, "n2"), HEALTH(DEAD), "not believed alive for ever");
}

Test(cluster_durable, tells_a_new_life_from_the_old_one_after_a_restart)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_restart(test);
    dt_coretest_forget_actions(test);
    dt_coretest_join(test, 2, 1, 22);
    cr_assert_eq(dt_coretest_count_events(test, "node-restarted"), 1);
}

Test(cluster_durable, shows_an_event_only_when_it_is_durable)
{
    uint64_t last = 0;
    size_t before = count_listed(0, &last);
    test->is_holding = true;
    dt_coretest_join(test, 1, 1, 11);
    cr_assert_eq(count_listed(0, NULL), before);
    dt_coretest_sync(test);
    cr_assert_gt(count_listed(last, NULL), 0);
}

Test(cluster_durable, keeps_the_numbers_of_events_over_a_restart)
{
    uint64_t last = 0, later = 0;
    dt_coretest_join(test, 1, 1, 11);
    size_t before = count_listed(0, &last);
    dt_coretest_restart(test);
    cr_assert_eq(count_listed(0, &later), before + 1, "all, and the start");
    cr_assert_eq(later, last + 1);
}

Test(cluster_durable, answers_a_change_only_when_it_is_durable)
{
    dt_coretest_join(test, 1, 1, 11);
    test->is_holding = true;
    dt_coretest_set(test, 7, CHANGE(CORDON), "n1", "look at it", "");
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 7) == NULL);
    dt_coretest_sync(test);
    cr_assert_eq(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 7)->status, DT_OK);
}

Test(cluster_durable, loses_a_change_that_was_not_durable_and_never_said_it_was)
{
    dt_coretest_join(test, 1, 1, 11);
    test->is_holding = true;
    dt_coretest_set(test, 7, CHANGE(CORDON), "n1", "look at it", "");
    test->is_holding = false;
    dt_coretest_restart(test);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(ENABLED));
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 7) == NULL);
}

Test(cluster_durable, refuses_changes_while_the_journal_fails_and_says_why)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_cluster_journal_failing(test->cluster, "No space left on device", test->now_ns);
    dt_coretest_set(test, 7, CHANGE(CORDON), "n1", "look at it", "");
    const dt_coretest_action_t *reply = dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 7);
    cr_assert_eq(reply->status, DT_ERR_AGAIN);
    cr_assert(strstr(reply->text, "No space left") != NULL);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(ENABLED));
    dt_cluster_journal_failing(test->cluster, NULL, test->now_ns);
    dt_coretest_set(test, 8, CHANGE(CORDON), "n1", "look at it", "");
    cr_assert_eq(dt_coretest_find(test, DT_CLUSTER_DO_REPLY, 8)->status, DT_OK);
}

Test(cluster_durable, keeps_serving_bounded_while_the_journal_takes_nothing)
{
    dt_cluster_counts_t counts;
    test->is_holding = true;
    dt_cluster_journal_failing(test->cluster, "No space left on device", test->now_ns);
    for (uint64_t i = 1; i <= 2000; i++) {
        dt_coretest_join(test, i, (uint8_t)(i % 60 + 1), i);
        dt_cluster_stream_closed(test->cluster, i, "", test->now_ns);
        dt_coretest_pass(test, 70);
        dt_coretest_forget_actions(test);
    }
    dt_cluster_count(test->cluster, &counts);
    cr_assert_leq(counts.journal_issued - counts.journal_durable, 1024);
    cr_assert_gt(counts.events_dropped, 0);
    dt_cluster_journal_failing(test->cluster, NULL, test->now_ns);
    test->is_holding = false;
    dt_coretest_sync(test);
    dt_coretest_pass(test, 2000);
    cr_assert_eq(dt_coretest_count_events(test, "events-dropped"), 1);
    dt_coretest_restart(test);
    dt_cluster_count(test->cluster, &counts);
    cr_assert_eq(counts.nodes_total, 60, "the nodes' newest state was written when it could be");
}

Test(cluster_durable, writes_a_snapshot_that_restores_to_the_same)
{
    const uint8_t *data;
    size_t size;
    dt_cluster_cursor_t cursor = {0};
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_inventory(test, 1, 0x7, 0);
    dt_coretest_set(test, 1, CHANGE(CORDON), "n1", "look at it", "id-1");
    dt_coretest_join(test, 2, 2, 22);
    size_t events = count_listed(0, NULL);
    for (uint32_t i = 0; i < test->record_count; i++)
        free(test->records[i].data);
    test->record_count = 0;
    while (dt_cluster_snapshot_next(test->cluster, &cursor, &data, &size)) {
        uint8_t *copy = malloc(size);
        memcpy(copy, data, size);
        test->records[test->record_count].data = copy;
        test->records[test->record_count++].size = size;
    }
    cr_assert_not(cursor.is_failed);
    test->durable_count = test->record_count;
    dt_coretest_restart(test);
    cr_assert_eq(dt_coretest_admin(test, "n1"), ADMIN(CORDONED));
    cr_assert_eq(dt_coretest_health(test, "n2"), HEALTH(UNKNOWN));
    cr_assert_eq(count_listed(0, NULL), events + 1);
    dt_coretest_forget_actions(test);
    dt_coretest_set(test, 2, CHANGE(CORDON), "n1", "look at it", "id-1");
    cr_assert_eq(dt_coretest_count_events(test, "node-cordon"), 0, "the request id was kept");
}

Test(cluster_durable, knows_an_engines_event_again_after_a_restart)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_engine(test, 1, 1);
    dt_coretest_restart(test);
    dt_coretest_forget_actions(test);
    dt_coretest_join(test, 2, 1, 11);
    dt_coretest_engine(test, 2, 1);
    cr_assert_eq(dt_coretest_count_events(test, "engine-crashed"), 0);
    cr_assert(dt_coretest_sent(test, 2, DTORCH__V1__WORKER_DOWN__KIND_ENGINE_ACK) != NULL);
}

Test(cluster_durable, what_a_restart_finds_is_so_since_the_restart)
{
    dt_arena_t arena;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_pass(test, 60000); /* it says nothing: dead */
    dt_coretest_restart(test);
    int64_t restarted_ms = test->wall_ms;
    dt_coretest_pass(test, 1000);
    const Dtorch__V1__Node *node = dt_coretest_node(test, &arena, "n1");
    cr_assert_eq(node->health, HEALTH(DEAD));
    cr_assert(node->health_since_wall_ms > 0 &&
              node->health_since_wall_ms <= restarted_ms); /* not 1970 */
    dt_arena_fini(&arena);
}
