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

TestSuite(disk, .timeout = 600);

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

/* A controller with a small file system for its state. */
static dt_testcluster_t *start_small(int workers)
{
    dt_testcluster_t *tc;
    if (geteuid() != 0)
        cr_skip_test("needs root: it mounts a small file system");
    cr_assert(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = workers, .is_idle = true, .controller_conf = "LogLevel=info"});
    cr_assert_eq(mount("tmpfs", dt_testcluster_state_dir(tc, -1), "tmpfs", 0, "size=1m"), 0);
    dt_testcluster_start_daemon(tc, -1);
    for (int i = 0; i < workers; i++)
        dt_testcluster_start_daemon(tc, i);
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, LONG_MS));
    return tc;
}

/* Set a label; text that no block of the journal holds beside another. Gives the exit code. */
static int label(dt_testcluster_t *tc, int round, bool must_explain)
{
    char word[64];
    (void)snprintf(word, sizeof word, "round=%048d", round);
    dt_testrun_t run = dt_testcluster_ctl(tc, "node", "label", "w0", word, NULL);
    int code = run.code;
    if (code != 0 || must_explain) {
        cr_assert_eq(code, 75, "exit %d\n%s%s", code, run.out, run.err);
        cr_assert(strstr(run.err, "journal") && !strstr(run.err, "no controller answers"), "%s",
                  run.err);
    }
    dt_testrun_fini(&run);
    return code;
}

Test(disk, a_change_that_cannot_be_written_is_told_from_a_controller_that_is_away)
{
    dt_testcluster_t *tc = start_small(1);
    char ballast[700];
    bool no = false;
    int round = 0;
    fill(dt_testcluster_state_dir(tc, -1));
    while (label(tc, round, false) == 0) /* the journal's last block has room for some */
        cr_assert_lt(++round, 200, "the disk is not full");
    (void)label(tc, round, true);
    (void)snprintf(ballast, sizeof ballast, "%s/ballast", dt_testcluster_state_dir(tc, -1));
    cr_assert_eq(unlink(ballast), 0);
    cr_assert(dt_testcluster_wait(tc, has_alarm, &no, LONG_MS), "%s", dt_testcluster_logs(tc));
    cr_assert_eq(label(tc, round + 1, false), 0);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
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
    tc = start_small(2);
    dir = dt_testcluster_state_dir(tc, -1);
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
