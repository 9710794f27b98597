/* What holds of a cluster of real daemons: it comes up in any order, sees who is gone, and loses
 * nothing of what a person set when a daemon is restarted. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/testcluster.h"

#define OK      DTORCH__V1__NODE_HEALTH__NODE_OK
#define SUSPECT DTORCH__V1__NODE_HEALTH__NODE_SUSPECT
#define DEAD    DTORCH__V1__NODE_HEALTH__NODE_DEAD
#define STOPPED DTORCH__V1__NODE_HEALTH__NODE_STOPPED
#define LONG_MS DT_TESTCLUSTER_PATIENCE_MS
/* The issue's own limit for a silent peer. */
#define SILENCE "no beat for" /* so the event says when it was not the socket that told */

TestSuite(cluster, .timeout = 600);

struct seen {
    uint64_t incarnation;
    uint32_t sessions;
    size_t devices;
};

static bool copy_node(const Dtorch__V1__Node *node, void *arg)
{
    struct seen *seen = arg;
    seen->incarnation = node->incarnation;
    seen->sessions = node->session_count;
    seen->devices = node->n_devices;
    return true;
}

static struct seen look_at(dt_testcluster_t *tc, int worker)
{
    struct seen seen = {0};
    cr_assert(dt_testcluster_wait_node(tc, worker, copy_node, &seen, LONG_MS), "no node w%d\n%s",
              worker, dt_testcluster_logs(tc));
    return seen;
}

static void expect_health(dt_testcluster_t *tc, int worker, Dtorch__V1__NodeHealth health,
                          int64_t patience_ms)
{
    cr_assert(dt_testcluster_wait_health(tc, worker, health, patience_ms),
              "w%d did not get health %d within %lld ms\n%s", worker, (int)health,
              (long long)patience_ms, dt_testcluster_logs(tc));
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon left something behind, see above");
}

static bool has_lost_controller(dt_testcluster_t *tc, void *arg)
{
    (void)arg;
    return dt_testcluster_log_count(tc, 0, "controller lost") > 0;
}

static void expect_controller_lost(dt_testcluster_t *tc)
{
    cr_assert(dt_testcluster_wait(tc, has_lost_controller, NULL, LONG_MS),
              "the worker did not notice\n%s", dt_testcluster_logs(tc));
}

Test(cluster, three_workers_register_with_their_devices)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 3});
    Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
    cr_assert(status, "%s", dt_testcluster_logs(tc));
    cr_assert_eq(status->nodes_total, 3);
    cr_assert_eq(status->nodes_ready, 3);
    cr_assert_eq(status->devices_total, 6);
    cr_assert_eq(status->devices_ok, 6);
    cr_assert(status->is_private);
    cr_assert_str_eq(status->name, "test");
    dtorch__v1__cluster_status__free_unpacked(status, NULL);
    stop(tc);
}

Test(cluster, workers_that_start_first_find_the_controller_when_it_comes)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 2, .is_idle = true});
    dt_testcluster_spawn(tc, 0, NULL);
    dt_testcluster_spawn(tc, 1, NULL);
    cr_assert(dt_testcluster_wait_ready(tc, 0, LONG_MS), "%s", dt_testcluster_logs(tc));
    cr_assert(dt_testcluster_wait_ready(tc, 1, LONG_MS), "%s", dt_testcluster_logs(tc));
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    expect_health(tc, 0, OK, LONG_MS);
    expect_health(tc, 1, OK, LONG_MS);
    stop(tc);
}

Test(cluster, works_over_tcp_on_loopback)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .use_tcp = true});
    expect_health(tc, 0, OK, LONG_MS);
    stop(tc);
}

Test(cluster, a_killed_worker_is_dead_at_once_and_named_in_an_event)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 2});
    Dtorch__V1__Event *event = NULL;
    dt_testcluster_kill(tc, 1, SIGKILL);
    cr_assert(dt_testcluster_wait_event(tc, "node-dead", 1, 0, LONG_MS, &event), "%s",
              dt_testcluster_logs(tc));
    cr_assert(!strstr(event->text, SILENCE), "not noticed by its socket: %s", event->text);
    dtorch__v1__event__free_unpacked(event, NULL);
    expect_health(tc, 1, DEAD, LONG_MS);
    expect_health(tc, 0, OK, LONG_MS);
    stop(tc);
}

Test(cluster, a_stopped_worker_is_suspect_then_dead_and_comes_back_when_it_goes_on)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 2, .is_strict = true});
    struct seen before = look_at(tc, 1), after;
    Dtorch__V1__Event *event = NULL;
    dt_testcluster_kill(tc, 1, SIGSTOP);
    cr_assert(dt_testcluster_wait_event(tc, "node-suspect", 1, 0, LONG_MS, NULL), "%s",
              dt_testcluster_logs(tc));
    cr_assert(dt_testcluster_wait_event(tc, "node-dead", 1, 0, LONG_MS, &event), "%s",
              dt_testcluster_logs(tc));
    cr_assert(strstr(event->text, SILENCE), "%s", event->text);
    dtorch__v1__event__free_unpacked(event, NULL);
    dt_testcluster_kill(tc, 1, SIGCONT);
    expect_health(tc, 1, OK, LONG_MS);
    after = look_at(tc, 1);
    cr_assert_eq(after.incarnation, before.incarnation, "it is the same life");
    cr_assert_gt(after.sessions, before.sessions);
    stop(tc);
}

Test(cluster, a_silent_link_is_noticed_from_both_sides_and_heals)
{
    dt_testcluster_t *tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 2, .use_proxy = true, .is_strict = true});
    Dtorch__V1__Event *event = NULL;
    dt_testcluster_link_swallow(tc, 0);
    expect_controller_lost(tc);
    cr_assert(dt_testcluster_wait_event(tc, "node-dead", 0, 0, LONG_MS, &event), "%s",
              dt_testcluster_logs(tc));
    cr_assert(strstr(event->text, SILENCE), "%s", event->text);
    dtorch__v1__event__free_unpacked(event, NULL);
    expect_health(tc, 1, OK, LONG_MS);
    dt_testcluster_link_pass(tc, 0);
    expect_health(tc, 0, OK, LONG_MS);
    stop(tc);
}

Test(cluster, a_stopped_controller_is_noticed_by_its_workers_and_found_again)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .is_strict = true});
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGSTOP);
    expect_controller_lost(tc);
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGCONT);
    expect_health(tc, 0, OK, LONG_MS);
    stop(tc);
}

Test(cluster, a_slow_link_is_not_a_dead_one)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .use_proxy = true});
    uint64_t before;
    struct seen seen;
    dt_testcluster_link_delay(tc, 0, 200);
    before = dt_testcluster_last_event(tc);
    cr_assert(!dt_testcluster_wait_event(tc, "node-dead", 0, before, 4000, NULL), "%s",
              dt_testcluster_logs(tc));
    seen = look_at(tc, 0);
    cr_assert_eq(seen.sessions, 1);
    dt_testcluster_link_pass(tc, 0);
    stop(tc);
}

Test(cluster, a_planned_end_is_told_from_a_death)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    int code = -1;
    dt_testcluster_kill(tc, 0, SIGTERM);
    cr_assert(dt_testcluster_wait_exit(tc, 0, LONG_MS, &code));
    cr_assert_eq(code, 0, "%s", dt_testcluster_logs(tc));
    expect_health(tc, 0, STOPPED, LONG_MS);
    stop(tc);
}

static void kill_controller_and_start_it_again(dt_testcluster_t *tc)
{
    int code = -1;
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, LONG_MS, &code));
    cr_assert_eq(code, 128 + SIGKILL);
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
}

Test(cluster, a_killed_controller_comes_back_with_drains_labels_events_and_workers)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 2});
    Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
    uint64_t epoch = status->epoch, last;
    Dtorch__V1__EventList *events;
    dt_testrun_t run;
    cr_assert_eq(
        dt_testcluster_set_node(tc, 0, DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN, "a fan", NULL),
        DT_OK);
    run = dt_testcluster_ctl(tc, "node", "label", "w1", "zone=b", NULL);
    cr_assert_eq(run.code, 0, "%s%s", run.out, run.err);
    dt_testrun_fini(&run);
    last = dt_testcluster_last_event(tc);
    dtorch__v1__cluster_status__free_unpacked(status, NULL);
    kill_controller_and_start_it_again(tc);
    expect_health(tc, 0, OK, LONG_MS);
    expect_health(tc, 1, OK, LONG_MS);
    cr_assert(dt_testcluster_wait_admin(tc, 0, DTORCH__V1__NODE_INTENT__ADMIN__DRAINED, LONG_MS),
              "the drain was forgotten\n%s", dt_testcluster_logs(tc));
    run = dt_testcluster_ctl(tc, "node", "show", "w1", NULL);
    cr_assert(strstr(run.out, "zone=b"), "the label was forgotten:\n%s", run.out);
    dt_testrun_fini(&run);
    status = dt_testcluster_status(tc);
    cr_assert_gt(status->epoch, epoch);
    dtorch__v1__cluster_status__free_unpacked(status, NULL);
    events = dt_testcluster_events(tc, 0);
    cr_assert(events && events->n_events > 0);
    cr_assert_leq(events->events[0]->sequence, 1, "the first event was forgotten");
    for (size_t i = 1; i < events->n_events; i++)
        cr_assert_eq(events->events[i]->sequence, events->events[i - 1]->sequence + 1);
    cr_assert_geq(events->events[events->n_events - 1]->sequence, last);
    dtorch__v1__event_list__free_unpacked(events, NULL);
    stop(tc);
}

Test(cluster, a_worker_that_died_while_the_controller_was_down_is_dead_within_the_grace)
{
    dt_testcluster_t *tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 2, .controller_conf = "RejoinGrace=2s"});
    int code = -1;
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, LONG_MS, &code));
    dt_testcluster_kill(tc, 1, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, 1, LONG_MS, &code));
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    expect_health(tc, 0, OK, LONG_MS);
    expect_health(tc, 1, DEAD, LONG_MS);
    stop(tc);
}

Test(cluster, a_restarted_worker_is_a_new_life_of_the_same_node)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    struct seen before = look_at(tc, 0), after;
    int code = -1;
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, LONG_MS, &code));
    dt_testcluster_kill(tc, 0, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, 0, LONG_MS, &code));
    dt_testcluster_start_daemon(tc, 0);
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    expect_health(tc, 0, OK, LONG_MS);
    after = look_at(tc, 0);
    cr_assert_neq(after.incarnation, before.incarnation);
    cr_assert_eq(after.devices, before.devices);
    stop(tc);
}

Test(cluster, a_second_daemon_with_the_same_identity_is_refused_and_the_first_goes_on)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 2, .is_idle = true});
    char command[2048];
    struct seen before, after;
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    dt_testcluster_start_daemon(tc, 0);
    expect_health(tc, 0, OK, LONG_MS);
    before = look_at(tc, 0);
    /* What happens when a disk image is cloned: the second host has the first one's identity. */
    (void)snprintf(command, sizeof command, "cp -r %s/. %s/", dt_testcluster_state_dir(tc, 0),
                   dt_testcluster_state_dir(tc, 1));
    cr_assert_eq(system(command), 0);
    dt_testcluster_set_conf(tc, 1, "NodeName=w0");
    dt_testcluster_spawn(tc, 1, NULL);
    cr_assert(
        dt_testcluster_wait_event(tc, "node-refused", DT_TESTCLUSTER_CONTROLLER, 0, LONG_MS, NULL),
        "%s", dt_testcluster_logs(tc));
    expect_health(tc, 0, OK, LONG_MS);
    after = look_at(tc, 0);
    cr_assert_eq(after.incarnation, before.incarnation);
    cr_assert_eq(after.sessions, before.sessions, "the first one was disturbed");
    stop(tc);
}

Test(cluster, a_second_controller_on_one_state_directory_says_who_holds_it)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){0});
    char listen[600], admin[600], pid[32];
    const char *args[] = {"--config",
                          dt_testcluster_conf_file(tc, -1),
                          "--listen",
                          listen,
                          "--admin-socket",
                          admin,
                          "--metrics-listen",
                          "127.0.0.1:0",
                          NULL};
    dt_testrun_t run;
    (void)snprintf(listen, sizeof listen, "%s/tmp/other.sock", dt_testcluster_dir(tc));
    (void)snprintf(admin, sizeof admin, "%s/tmp/admin.sock", dt_testcluster_dir(tc));
    (void)snprintf(pid, sizeof pid, "%d", (int)dt_testcluster_pid(tc, -1));
    run = dt_testrun_program("dtorch-controllerd", args, NULL);
    cr_assert_neq(run.code, 0);
    cr_assert_lt(run.code, 128, "it crashed: %s", run.err);
    cr_assert(strstr(run.err, pid), "the holder, process %s, is not named:\n%s", pid, run.err);
    dt_testrun_fini(&run);
    stop(tc);
}

Test(cluster, sockets_of_a_crashed_controller_do_not_stop_the_next_start)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    for (int i = 0; i < 3; i++) {
        kill_controller_and_start_it_again(tc);
        expect_health(tc, 0, OK, LONG_MS);
    }
    stop(tc);
}

Test(cluster, sigterm_at_any_moment_of_a_start_ends_it_cleanly)
{
    /* From before the first line of main to well after READY. */
    static const int after_ms[] = {0, 1, 2, 5, 10, 20, 40, 80, 160};
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .is_idle = true});
    for (size_t i = 0; i < sizeof after_ms / sizeof *after_ms; i++)
        for (int who = -1; who <= 0; who++) {
            int code = -1;
            dt_testcluster_spawn(tc, who, NULL);
            (void)dt_testcluster_wait_ready(tc, who, after_ms[i]);
            dt_testcluster_kill(tc, who, SIGTERM);
            cr_assert(dt_testcluster_wait_exit(tc, who, LONG_MS, &code), "%s",
                      dt_testcluster_logs(tc));
            /* Before it could ask for the signal, the kernel's default ends it: nothing was made.
             */
            cr_assert(code == 0 || code == 128 + SIGTERM, "SIGTERM after %d ms: exit %d\n%s",
                      after_ms[i], code, dt_testcluster_logs(tc));
        }
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    dt_testcluster_start_daemon(tc, 0);
    expect_health(tc, 0, OK, LONG_MS);
    stop(tc);
}

Test(cluster, wall_clocks_that_jump_a_day_change_nothing)
{
    static const int64_t day_ms = INT64_C(24) * 3600 * 1000;
    /* Two seconds, as busy machines are late by a few hundred milliseconds. */
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 2, .fake_wall = true, .controller_conf = "SuspectBeats=8\nDeadBeats=16"});
    static const int order[][2] = {{-1, 1}, {-1, -1}, {0, 1}, {0, -1}, {-1, 0}, {0, 0}};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        uint64_t before = dt_testcluster_last_event(tc);
        dt_testcluster_jump_wall(tc, order[i][0], order[i][1] * day_ms);
        /* Longer than SUSPECT takes: a wrong clock would show by then. */
        cr_assert(!dt_testcluster_wait_event(tc, "node-suspect", DT_TESTCLUSTER_CONTROLLER, before,
                                             2500, NULL),
                  "%s", dt_testcluster_logs(tc));
    }
    for (int worker = 0; worker < 2; worker++) {
        expect_health(tc, worker, OK, LONG_MS);
        cr_assert_eq(look_at(tc, worker).sessions, 1, "a stream broke\n%s",
                     dt_testcluster_logs(tc));
    }
    stop(tc);
}

static bool has_another_hash(const Dtorch__V1__Node *node, void *arg)
{
    return strcmp(node->config_hash, arg) != 0;
}

static bool copy_hash(const Dtorch__V1__Node *node, void *arg)
{
    (void)snprintf(arg, 32, "%s", node->config_hash);
    return true;
}

Test(cluster, a_worker_that_loaded_its_configuration_again_is_seen_with_the_new_hash)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    char before[32], after[32];
    cr_assert(dt_testcluster_wait_node(tc, 0, copy_hash, before, LONG_MS));
    dt_testcluster_set_conf(tc, 0, "Engines=1");
    dt_testcluster_kill(tc, 0, SIGHUP);
    cr_assert(dt_testcluster_wait_node(tc, 0, has_another_hash, before, LONG_MS), "%s",
              dt_testcluster_logs(tc));
    cr_assert(dt_testcluster_wait_node(tc, 0, copy_hash, after, LONG_MS));
    /* The next connection says the same. */
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    int code;
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, LONG_MS, &code));
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, LONG_MS));
    cr_assert(dt_testcluster_wait_node(tc, 0, copy_hash, before, LONG_MS));
    cr_assert_str_eq(before, after);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
