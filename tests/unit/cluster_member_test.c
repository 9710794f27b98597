#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "lib/coretest.h"
#include "wire/wire.h"

#define HEALTH(name)  DTORCH__V1__NODE_HEALTH__NODE_##name
#define REFUSAL(name) DTORCH__V1__REFUSAL__CODE__##name
#define WELCOME       DTORCH__V1__WORKER_DOWN__KIND_WELCOME

static dt_coretest_t *test;

static void setup(void)
{
    test = dt_coretest_new();
}

static void teardown(void)
{
    dt_coretest_free(test);
}

/* Beats on a stream at every interval. */
static void live(uint64_t stream, int64_t ms)
{
    static uint64_t progress;
    for (int64_t passed = 0; passed < ms; passed += 250) {
        dt_coretest_pass(test, 250);
        dt_coretest_beat(test, stream, ++progress, 0);
    }
}

TestSuite(cluster_member, .init = setup, .fini = teardown, .timeout = 60);

Test(cluster_member, welcomes_a_node_with_epoch_rules_and_intent)
{
    dt_coretest_join(test, 1, 1, 11);
    const Dtorch__V1__WorkerDown *down = dt_coretest_sent(test, 1, WELCOME);
    cr_assert(down != NULL);
    cr_assert_eq(down->welcome->epoch, 1);
    cr_assert_eq(down->welcome->heartbeat_ms, 250);
    cr_assert_eq(down->welcome->dead_beats, 8);
    down = dt_coretest_sent(test, 1, DTORCH__V1__WORKER_DOWN__KIND_INTENT);
    cr_assert(down != NULL);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
    cr_assert_eq(dt_coretest_count_events(test, "node-joined"), 1);
}

Test(cluster_member, is_suspect_then_dead_by_silence_and_its_stream_is_closed)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_pass(test, 1000);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(SUSPECT));
    dt_coretest_pass(test, 1300);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(DEAD));
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_CLOSE, 1) != NULL);
    cr_assert_eq(dt_coretest_count_events(test, "node-suspect"), 1);
    cr_assert_eq(dt_coretest_count_events(test, "node-dead"), 1);
}

Test(cluster_member, stays_ok_while_it_beats_and_gets_beats)
{
    dt_coretest_join(test, 1, 1, 11);
    live(1, 5000);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
    cr_assert_geq(dt_coretest_count(test, DT_CLUSTER_DO_SEND, 1), 19);
}

Test(cluster_member, does_not_die_when_the_controller_was_starved_for_minutes)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_starve(test, 60000);
    dt_coretest_starve(test, 60000);
    cr_assert_neq(dt_coretest_health(test, "n1"), HEALTH(DEAD));
    cr_assert_eq(dt_coretest_count_events(test, "node-dead"), 0);
}

Test(cluster_member, is_dead_at_once_when_its_connection_closes)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_cluster_stream_closed(test->cluster, 1, "Socket closed", test->now_ns);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(DEAD));
}

Test(cluster_member, is_stopped_not_lost_after_a_bye)
{
    Dtorch__V1__Bye bye = DTORCH__V1__BYE__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_BYE;
    up.bye = &bye;
    dt_coretest_join(test, 1, 1, 11);
    dt_cluster_stream_received(test->cluster, 1, &up, test->now_ns);
    dt_coretest_perform(test);
    dt_cluster_stream_closed(test->cluster, 1, "", test->now_ns);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(STOPPED));
    cr_assert_eq(dt_coretest_count_events(test, "node-dead"), 0);
}

Test(cluster_member, refuses_a_second_live_process_with_one_identity_and_names_the_first)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_join(test, 2, 1, 22);
    cr_assert(dt_coretest_was_refused(test, 2, REFUSAL(IDENTITY), "10.0.0.1:40001 (pid 101"));
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_CLOSE, 1) == NULL);
    live(1, 2500);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
}

Test(cluster_member, replaces_the_old_stream_when_the_same_life_connects_again)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_join(test, 2, 1, 11);
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_CLOSE, 1) != NULL);
    cr_assert(dt_coretest_sent(test, 2, WELCOME) != NULL);
    dt_cluster_stream_closed(test->cluster, 1, "late news of the old one", test->now_ns);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
    cr_assert_eq(dt_coretest_count_events(test, "node-reconnected"), 1);
}

Test(cluster_member, takes_a_new_life_while_the_old_one_is_suspect)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_pass(test, 1000);
    dt_coretest_join(test, 2, 1, 22);
    cr_assert(dt_coretest_sent(test, 2, WELCOME) != NULL);
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_CLOSE, 1) != NULL);
    cr_assert_eq(dt_coretest_count_events(test, "node-restarted"), 1);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
}

Test(cluster_member, refuses_a_name_that_another_node_has)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_open(test, 2, NULL);
    dt_coretest_hello(test, 2, 2, 22, "n1");
    cr_assert(dt_coretest_was_refused(test, 2, REFUSAL(IDENTITY), "node forget n1"));
}

Test(cluster_member, renames_a_node_that_comes_with_a_free_name)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_cluster_stream_closed(test->cluster, 1, "", test->now_ns);
    dt_coretest_open(test, 2, NULL);
    dt_coretest_hello(test, 2, 1, 22, "gpu001");
    cr_assert_eq(dt_coretest_health(test, "n1"), -1);
    cr_assert_eq(dt_coretest_health(test, "gpu001"), HEALTH(OK));
}

Test(cluster_member, refuses_a_name_that_is_not_the_certificates)
{
    dt_coretest_open(test, 1, "n7");
    dt_coretest_hello(test, 1, 1, 11, NULL);
    cr_assert(dt_coretest_was_refused(test, 1, REFUSAL(DENIED), "certificate is for n7"));
}

Test(cluster_member, does_not_let_a_certificate_take_over_another_identity)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_cluster_stream_closed(test->cluster, 1, "", test->now_ns);
    dt_coretest_open(test, 2, "evil");
    dt_coretest_hello(test, 2, 1, 22, "evil");
    cr_assert(dt_coretest_was_refused(test, 2, REFUSAL(IDENTITY), "known as n1"));
}

static void hello_with(uint64_t stream, uint32_t major, uint64_t epoch_seen, const char *cluster_id)
{
    uint8_t id[16] = {9}, cluster[16] = {0};
    char name[] = "n9", build[] = "other-2.0";
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    Dtorch__V1__WorkerHello hello = DTORCH__V1__WORKER_HELLO__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    version.major = major;
    memcpy(cluster, cluster_id, strlen(cluster_id));
    hello.version = &version;
    hello.build = build;
    hello.node_id = (ProtobufCBinaryData){sizeof id, id};
    hello.cluster_id = (ProtobufCBinaryData){sizeof cluster, cluster};
    hello.node_name = name;
    hello.incarnation = 1;
    hello.epoch_seen = epoch_seen;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_HELLO;
    up.hello = &hello;
    dt_coretest_open(test, stream, NULL);
    dt_cluster_stream_received(test->cluster, stream, &up, test->now_ns);
    dt_coretest_perform(test);
}

Test(cluster_member, refuses_another_major_version_with_both_in_the_text)
{
    hello_with(1, 2, 0, "cluster-id-1234");
    cr_assert(dt_coretest_was_refused(test, 1, REFUSAL(VERSION), "protocol 2.0 (build other-2.0)"));
    hello_with(2, 2, 0, "cluster-id-1234");
    cr_assert(dt_coretest_was_refused(test, 2, REFUSAL(VERSION), "speaks 1.0"));
}

Test(cluster_member, refuses_one_that_has_seen_a_later_epoch)
{
    hello_with(1, 1, 2, "cluster-id-1234");
    cr_assert(dt_coretest_was_refused(test, 1, REFUSAL(EPOCH), "has seen epoch 2"));
}

Test(cluster_member, refuses_one_of_another_cluster)
{
    hello_with(1, 1, 0, "another-cluster");
    cr_assert(dt_coretest_was_refused(test, 1, REFUSAL(DENIED), "another cluster"));
}

Test(cluster_member, closes_a_stream_without_hello_and_names_the_peer)
{
    dt_coretest_open(test, 5, NULL);
    dt_coretest_pass(test, 4900);
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_CLOSE, 5) == NULL);
    dt_coretest_pass(test, 300);
    cr_assert(dt_coretest_find(test, DT_CLUSTER_DO_CLOSE, 5) != NULL);
    const dt_coretest_action_t *event = dt_coretest_find(test, DT_CLUSTER_DO_EVENT, 0);
    cr_assert(event != NULL);
    cr_assert_eq(dt_coretest_count_events(test, "peer-misbehaves"), 1);
}

Test(cluster_member, ends_a_malformed_stream_and_bounds_the_events_about_one_peer)
{
    dt_error_t error = {.text = "Beat.late_ns: -1, bound 0.."};
    dt_coretest_forget_actions(test);
    for (uint64_t i = 0; i < 200; i++) {
        dt_cluster_peer_t peer = {.address = "10.9.9.9:1000"};
        dt_cluster_stream_opened(test->cluster, 100 + i, &peer, test->now_ns);
        dt_cluster_stream_malformed(test->cluster, 100 + i, &error, test->now_ns);
        dt_coretest_perform(test);
        dt_coretest_pass(test, 20);
    }
    cr_assert_eq(dt_coretest_count_events(test, "peer-misbehaves"), 1);
    cr_assert(dt_coretest_was_refused(test, 150, REFUSAL(MALFORMED), "late_ns"));
}

Test(cluster_member, refuses_streams_and_nodes_above_their_bounds)
{
    dt_coretest_free(test);
    test = dt_coretest_new_stopped();
    test->options.nodes_max = 2;
    test->options.streams_max = 3;
    dt_coretest_start(test);
    for (uint8_t i = 1; i <= 3; i++)
        dt_coretest_join(test, i, i, 10u + i);
    cr_assert(dt_coretest_was_refused(test, 3, REFUSAL(LIMIT), "NodesMax="));
    dt_coretest_open(test, 4, NULL);
    dt_coretest_open(test, 5, NULL);
    cr_assert(dt_coretest_was_refused(test, 5, REFUSAL(LIMIT), "too many streams"));
}

Test(cluster_member, shows_missing_devices_until_they_return_by_themselves)
{
    dt_arena_t arena;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_inventory(test, 1, 0xf, 0);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
    dt_coretest_inventory(test, 1, 0xd, 0);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(DEGRADED));
    const Dtorch__V1__Node *node = dt_coretest_node(test, &arena, "n1");
    cr_assert_eq(node->n_devices, 4);
    cr_assert(node->devices[1]->is_missing);
    cr_assert_eq(node->devices[1]->missing_since_wall_ms, test->wall_ms);
    cr_assert_str_eq(node->devices[1]->id, "n1:1");
    dt_coretest_inventory(test, 1, 0xf, 0);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
    cr_assert_eq(dt_coretest_count_events(test, "device-missing"), 1);
    cr_assert_eq(dt_coretest_count_events(test, "device-back"), 1);
    cr_assert_eq(dt_coretest_count_events(test, "device-added"), 0);
    dt_arena_fini(&arena);
}

static uint32_t load_of(dt_arena_t *arena, size_t device)
{
    return dt_coretest_node(test, arena, "n1")->devices[device]->device->utilization_percent;
}

Test(cluster_member, shows_how_busy_devices_are_as_the_node_says)
{
    const uint8_t busy[] = {20, 250, 7};
    dt_arena_t arena;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_beat_busy(test, 1, busy, 3); /* of no device */
    dt_coretest_inventory(test, 1, 0xd, 0);
    cr_assert_eq(load_of(&arena, 0), 0);
    dt_coretest_beat_busy(test, 1, busy, 3);
    cr_assert_eq(load_of(&arena, 0), 20);
    cr_assert_eq(load_of(&arena, 1), 100);
    cr_assert_eq(load_of(&arena, 2), 7);
    dt_coretest_inventory(test, 1, 0x5, 0); /* the last one is gone */
    cr_assert_eq(load_of(&arena, 0), 0);
    cr_assert_eq(load_of(&arena, 2), 0);
    dt_coretest_beat_busy(test, 1, busy, 1);
    cr_assert_eq(load_of(&arena, 0), 20);
    cr_assert_eq(load_of(&arena, 1), 0);
    dt_arena_fini(&arena);
}

Test(cluster_member, is_degraded_when_alive_without_progress)
{
    dt_coretest_join(test, 1, 1, 11);
    for (int i = 0; i < 30; i++) {
        dt_coretest_pass(test, 250);
        dt_coretest_beat(test, 1, 7, 0);
    }
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(DEGRADED));
    dt_coretest_beat(test, 1, 8, 0);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
}

Test(cluster_member, acknowledges_engine_events_and_drops_those_that_come_again)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_engine(test, 1, 1);
    dt_coretest_engine(test, 1, 1);
    cr_assert_eq(dt_coretest_count_events(test, "engine-crashed"), 1);
    const Dtorch__V1__WorkerDown *down =
        dt_coretest_sent(test, 1, DTORCH__V1__WORKER_DOWN__KIND_ENGINE_ACK);
    cr_assert(down != NULL);
    cr_assert_eq(down->engine_ack->sequence, 1);
}

Test(cluster_member, changes_nothing_but_one_event_when_the_wall_clock_jumps)
{
    dt_coretest_join(test, 1, 1, 11);
    live(1, 1000);
    test->wall_ms += 24 * 3600 * 1000;
    live(1, 1000);
    test->wall_ms -= 24 * 3600 * 1000;
    live(1, 1000);
    cr_assert_eq(dt_coretest_health(test, "n1"), HEALTH(OK));
    cr_assert_eq(dt_coretest_count_events(test, "clock-jumped"), 1);
    cr_assert_eq(dt_coretest_count_events(test, "node-suspect"), 0);
}

Test(cluster_member, bounds_the_events_of_a_node_that_flaps)
{
    for (uint64_t i = 1; i <= 300; i++) {
        dt_coretest_join(test, i, 1, 11);
        dt_cluster_stream_closed(test->cluster, i, "", test->now_ns);
        dt_coretest_perform(test);
        dt_coretest_pass(test, 100);
        if (i % 50 == 0)
            dt_coretest_forget_actions(test);
    }
    cr_assert_leq(test->record_count, 160);
}

Test(cluster_member, says_stopping_to_all_when_it_stops)
{
    dt_coretest_join(test, 1, 1, 11);
    dt_coretest_open(test, 2, NULL);
    dt_cluster_stop(test->cluster, test->now_ns);
    dt_coretest_perform(test);
    cr_assert(dt_coretest_was_refused(test, 1, REFUSAL(STOPPING), "stops"));
    cr_assert(dt_coretest_was_refused(test, 2, REFUSAL(STOPPING), "stops"));
    dt_coretest_open(test, 3, NULL);
    cr_assert(dt_coretest_was_refused(test, 3, REFUSAL(STOPPING), "stops"));
}
