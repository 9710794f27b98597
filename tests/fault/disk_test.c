/* The journal's disk is full for DT_TEST_DISK_S seconds (60): few lines in the log, an alarm that a
 * person sees, and recovery as soon as there is space again. */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "lib/testcluster.h"

#define LONG_MS   DT_TESTCLUSTER_PATIENCE_MS
#define LINES_MAX 1000

TestSuite(disk, .timeout = 300);

static bool has_alarm(dt_testcluster_t *tc, void *arg)
{
    const bool *wanted = arg;
    Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
    bool found = false;
    for (size_t i = 0; status && i < status->n_alarms; i++)
        found = found || strcmp(status->alarms[i]->name, "journal-full") == 0;
    if (!status)
        return false;
    dtorch__v1__cluster_status__free_unpacked(status, NULL);
    return found == *wanted;
}

static dt_status_t drain(dt_testcluster_t *tc, bool is_drain)
{
    return dt_testcluster_set_node(tc, 0,
                                   is_drain ? DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN
                                            : DTORCH__V1__SET_NODE_REQUEST__CHANGE__UNDRAIN,
                                   "disk test", NULL);
}

static void fill(const char *dir)
{
    char command[1200];
    (void)snprintf(command, sizeof command, "cat /dev/zero >>%s/ballast 2>/dev/null; true", dir);
    cr_assert_eq(system(command), 0);
}

Test(disk, a_full_disk_is_an_alarm_and_is_recovered_from)
{
    const char *seconds = getenv("DT_TEST_DISK_S");
    int64_t full_ms = (seconds ? strtol(seconds, NULL, 10) : 60) * 1000;
    bool yes = true, no = false;
    dt_testcluster_t *tc;
    int64_t end_ms;
    int lines, code = -1;
    char ballast[700];
    const char *dir;
    if (geteuid() != 0)
        cr_skip_test("needs root: it mounts a small file system");
    cr_assert(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 2, .is_idle = true, .controller_conf = "LogLevel=info"});
    dir = dt_testcluster_state_dir(tc, -1);
    cr_assert_eq(mount("tmpfs", dir, "tmpfs", 0, "size=1m"), 0);
    dt_testcluster_start_daemon(tc, -1);
    dt_testcluster_start_daemon(tc, 0);
    dt_testcluster_start_daemon(tc, 1);
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, LONG_MS));
    lines = dt_testcluster_log_count(tc, -1, "");
    fill(dir);
    end_ms = dt_test_now_ms() + full_ms;
    /* Something to write all the time: what people ask for, and nodes that come and go. */
    for (int round = 0; dt_test_now_ms() < end_ms; round++) {
        (void)drain(tc, round % 2 == 0);
        if (round == 10)
            cr_assert(dt_testcluster_wait(tc, has_alarm, &yes, LONG_MS), "%s",
                      dt_testcluster_logs(tc));
        if (round % 10 == 5)
            dt_testcluster_kill(tc, 1, SIGKILL);
        if (round % 10 == 5)
            cr_assert(dt_testcluster_wait_exit(tc, 1, LONG_MS, &code));
        if (round % 10 == 7)
            dt_testcluster_start_daemon(tc, 1);
        dt_test_pause_ms(100);
    }
    lines = dt_testcluster_log_count(tc, -1, "") - lines;
    cr_assert_lt(lines, LINES_MAX, "%d lines in the log", lines);
    cr_assert(dt_testcluster_wait(tc, has_alarm, &yes, LONG_MS));
    (void)snprintf(ballast, sizeof ballast, "%s/ballast", dir);
    cr_assert_eq(unlink(ballast), 0);
    cr_assert(dt_testcluster_wait(tc, has_alarm, &no, LONG_MS), "%s", dt_testcluster_logs(tc));
    cr_assert_eq(drain(tc, true), DT_OK, "%s", dt_testcluster_logs(tc));
    dt_testcluster_kill(tc, -1, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, -1, LONG_MS, &code));
    dt_testcluster_start_daemon(tc, -1);
    cr_assert(dt_testcluster_wait_admin(tc, 0, DTORCH__V1__NODE_INTENT__ADMIN__DRAINED, LONG_MS),
              "what was accepted after the recovery is lost\n%s", dt_testcluster_logs(tc));
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, LONG_MS));
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
