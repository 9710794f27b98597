/* Devices of a real worker, as the controller tells of them. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/temptree.h"
#include "lib/testcluster.h"

#define PATIENCE DT_TESTCLUSTER_PATIENCE_MS

static dt_temptree_t tree;

static void make_tree(void)
{
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, "faults", "");
}

static void remove_tree(void)
{
    dt_temptree_fini(&tree);
}

TestSuite(device, .init = make_tree, .fini = remove_tree, .timeout = 600);

/* One worker with the devices of `devices`, whose faults are in tree/faults. */
static dt_testcluster_t *start(const char *devices, const char *more)
{
    char conf[1024];
    (void)snprintf(conf, sizeof conf,
                   "Devices=%s\nSimFaults=%s\nDeviceInterval=100ms\nEngines=0\n%s", devices,
                   dt_temptree_path(&tree, "faults"), more);
    return dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = conf});
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon did not end well");
}

struct want {
    uint32_t index;
    bool is_missing;
    Dtorch__V1__Device__Health health;
    const char *text; /* in health_text, or NULL */
};

/* The device with the wanted index is as wanted. */
static bool device_is(const Dtorch__V1__Node *node, void *arg)
{
    const struct want *want = arg;
    for (size_t i = 0; i < node->n_devices; i++) {
        const Dtorch__V1__NodeDevice *it = node->devices[i];
        if (it->device->index != want->index)
            continue;
        return it->is_missing == want->is_missing &&
               (it->missing_since_wall_ms > 0) == want->is_missing &&
               (want->is_missing || it->device->health == want->health) &&
               (!want->text || strstr(it->device->health_text, want->text));
    }
    return false;
}

static void expect_device(dt_testcluster_t *tc, struct want want)
{
    cr_assert(dt_testcluster_wait_node(tc, 0, device_is, &want, PATIENCE),
              "device %u is not as it should be\n%s", want.index, dt_testcluster_logs(tc));
}

static void expect_health(dt_testcluster_t *tc, Dtorch__V1__NodeHealth health)
{
    cr_assert(dt_testcluster_wait_health(tc, 0, health, PATIENCE), "node is not in state %d\n%s",
              (int)health, dt_testcluster_logs(tc));
}

Test(device, that_disappears_makes_its_node_degraded_and_returns_by_itself)
{
    dt_testcluster_t *tc = start("sim:4", "");
    expect_health(tc, DTORCH__V1__NODE_HEALTH__NODE_OK);
    dt_temptree_write(&tree, "faults", "1 gone\n");
    expect_health(tc, DTORCH__V1__NODE_HEALTH__NODE_DEGRADED);
    expect_device(tc, (struct want){.index = 1, .is_missing = true});
    expect_device(tc, (struct want){.index = 3, .health = DTORCH__V1__DEVICE__HEALTH__OK});
    dt_temptree_write(&tree, "faults", "");
    expect_health(tc, DTORCH__V1__NODE_HEALTH__NODE_OK);
    expect_device(tc, (struct want){.index = 1, .health = DTORCH__V1__DEVICE__HEALTH__OK});
    stop(tc);
}

Test(device, that_does_not_come_up_after_a_restart_is_missing_and_keeps_its_number)
{
    dt_testcluster_t *tc = start("sim:3", "");
    int code;
    expect_device(tc, (struct want){.index = 2, .health = DTORCH__V1__DEVICE__HEALTH__OK});
    dt_testcluster_kill(tc, 0, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, 0, PATIENCE, &code));
    dt_temptree_write(&tree, "faults", "0 gone\n");
    dt_testcluster_start_daemon(tc, 0);
    expect_health(tc, DTORCH__V1__NODE_HEALTH__NODE_DEGRADED);
    expect_device(tc, (struct want){.index = 0, .is_missing = true});
    expect_device(tc, (struct want){.index = 2, .health = DTORCH__V1__DEVICE__HEALTH__OK});
    dt_temptree_write(&tree, "faults", "");
    expect_health(tc, DTORCH__V1__NODE_HEALTH__NODE_OK);
    expect_device(tc, (struct want){.index = 0, .health = DTORCH__V1__DEVICE__HEALTH__OK});
    stop(tc);
}

Test(device, that_fails_is_shown_with_its_reason)
{
    dt_testcluster_t *tc = start("sim:2", "");
    dt_temptree_write(&tree, "faults", "1 failed the fan stands still\n");
    expect_device(tc, (struct want){.index = 1,
                                    .health = DTORCH__V1__DEVICE__HEALTH__FAILED,
                                    .text = "the fan stands still"});
    expect_health(tc, DTORCH__V1__NODE_HEALTH__NODE_DEGRADED);
    dt_temptree_write(&tree, "faults", "");
    expect_health(tc, DTORCH__V1__NODE_HEALTH__NODE_OK);
    stop(tc);
}

/* The node's devices are the CPU and the two of the playing backend, in this order. */
static bool has_play_devices(const Dtorch__V1__Node *node, void *arg)
{
    (void)arg;
    return node->n_devices == 3 && strcmp(node->devices[0]->device->backend, "ref") == 0 &&
           strcmp(node->devices[2]->device->backend, "play") == 0 &&
           strcmp(node->devices[2]->device->uuid, "PLAY-1") == 0;
}

/* A worker that knows backend_play.so. */
static dt_testcluster_t *start_play(const char *devices)
{
    char target[512], line[600];
    const char *dir = getenv("DT_TEST_SO");
    (void)snprintf(target, sizeof target, "%s/backend_play.so", dir ? dir : "");
    dt_temptree_link(&tree, "backends/dtorch-backend-play.so", target);
    (void)snprintf(line, sizeof line, "Backends=%s\n", dt_temptree_path(&tree, "backends"));
    return start(devices, line);
}

Test(device, of_another_makers_backend_is_offered)
{
    dt_testcluster_t *tc = start_play("ref play");
    cr_assert(dt_testcluster_wait_node(tc, 0, has_play_devices, NULL, PATIENCE), "%s",
              dt_testcluster_logs(tc));
    stop(tc);
}

static bool has_the_cpu_only(const Dtorch__V1__Node *node, void *arg)
{
    (void)arg;
    return node->n_devices == 1 && strcmp(node->devices[0]->device->backend, "ref") == 0;
}

Test(device, backend_that_crashes_does_not_take_the_daemon)
{
    dt_testcluster_t *tc = start_play("ref play:abort");
    cr_assert(dt_testcluster_wait_node(tc, 0, has_the_cpu_only, NULL, PATIENCE), "%s",
              dt_testcluster_logs(tc));
    cr_assert_gt(dt_testcluster_log_count(tc, 0, "killed by signal 6"), 0, "%s",
                 dt_testcluster_logs(tc));
    stop(tc);
}

Test(device, backends_are_checked_by_an_option_of_the_daemon)
{
    char text[600];
    dt_testrun_t run;
    const char *conf = dt_temptree_path(&tree, "workerd.conf");
    const char *const args[] = {"--config", conf, "--check-backends", NULL};
    (void)snprintf(text, sizeof text, "[Worker]\nBackends=%s\n",
                   dt_temptree_path(&tree, "backends"));
    dt_temptree_write(&tree, "workerd.conf", text);
    run = dt_testrun_program("dtorch-workerd", args, NULL);
    cr_assert_eq(run.code, 0, "%s%s", run.out, run.err);
    cr_assert(strstr(run.out, "ref          ok       ABI 1"), "%s", run.out);
    dt_testrun_fini(&run);
    dt_temptree_write(&tree, "backends/dtorch-backend-bad.so", "no library\n");
    run = dt_testrun_program("dtorch-workerd", args, NULL);
    cr_assert_neq(run.code, 0, "%s%s", run.out, run.err);
    cr_assert(strstr(run.out, "bad          failed   "), "%s", run.out);
    dt_testrun_fini(&run);
}
