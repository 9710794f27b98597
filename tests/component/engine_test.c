/* Engines of a real worker: they come up, die in all ways, are put back, and end with their agent.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "lib/testcluster.h"
#include "shm/engine_page.h"

#define PATIENCE   DT_TESTCLUSTER_PATIENCE_MS
#define ENGINE_MAX 8

TestSuite(engine, .timeout = 600);

static dt_testcluster_t *start(const char *worker_conf)
{
    return dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .worker_conf = worker_conf});
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon did not end well");
}

/* What a test wants of the node's engines, and what they were when it was so. */
struct engines {
    size_t warm;   /* wanted: exactly so many warm ones, and no others */
    pid_t without; /* none of them has this pid; 0: any */
    pid_t pid[ENGINE_MAX];
};

static bool engines_are(const Dtorch__V1__Node *node, void *arg)
{
    struct engines *want = arg;
    if (node->n_engines != want->warm || want->warm > ENGINE_MAX)
        return false;
    for (size_t i = 0; i < node->n_engines; i++) {
        if (node->engines[i]->state != DTORCH__V1__ENGINE__STATE__WARM ||
            (pid_t)node->engines[i]->pid == want->without)
            return false;
        want->pid[i] = (pid_t)node->engines[i]->pid;
    }
    return true;
}

static void expect_engines(dt_testcluster_t *tc, struct engines *want)
{
    cr_assert(dt_testcluster_wait_node(tc, 0, engines_are, want, PATIENCE),
              "not %zu warm engines\n%s", want->warm, dt_testcluster_logs(tc));
}

static bool has_pid(const struct engines *engines, pid_t pid)
{
    for (size_t i = 0; i < engines->warm; i++)
        if (engines->pid[i] == pid)
            return true;
    return false;
}

static const char *field(const Dtorch__V1__Event *event, const char *key)
{
    for (size_t i = 0; i < event->n_fields; i++)
        if (strcmp(event->fields[i]->key, key) == 0)
            return event->fields[i]->value;
    return "";
}

static Dtorch__V1__Event *expect_event(dt_testcluster_t *tc, const char *name, uint64_t after)
{
    Dtorch__V1__Event *event = NULL;
    cr_assert(dt_testcluster_wait_event(tc, name, 0, after, PATIENCE, &event), "no %s\n%s", name,
              dt_testcluster_logs(tc));
    return event;
}

static bool same_node(const Dtorch__V1__Node *node, void *arg)
{
    (void)arg;
    return node->health == DTORCH__V1__NODE_HEALTH__NODE_OK && node->session_count == 1;
}

/* Kill one of two engines by `signo`; the other one, the agent and its connection stay. Gives the
 * crash's event (free it). */
static Dtorch__V1__Event *kill_one(dt_testcluster_t *tc, int signo)
{
    struct engines before = {.warm = 2};
    char text[32];
    expect_engines(tc, &before);
    uint64_t after = dt_testcluster_last_event(tc);
    pid_t agent = dt_testcluster_pid(tc, 0);
    cr_assert_eq(kill(before.pid[0], signo), 0);
    Dtorch__V1__Event *event = expect_event(tc, "engine-crashed", after);
    (void)snprintf(text, sizeof text, "%d", signo);
    cr_assert_str_eq(field(event, "signal"), text, "%s", event->text);
    (void)snprintf(text, sizeof text, "%d", (int)before.pid[0]);
    cr_assert_str_eq(field(event, "pid"), text);
    struct engines now = {.warm = 2, .without = before.pid[0]};
    expect_engines(tc, &now);
    cr_assert(has_pid(&now, before.pid[1]), "the other engine is gone too");
    cr_assert_eq(dt_testcluster_pid(tc, 0), agent);
    cr_assert(dt_testcluster_wait_node(tc, 0, same_node, NULL, PATIENCE), "the node was disturbed");
    return event;
}

Test(engine, that_crashes_tells_of_it_by_its_handler_and_hurts_nothing_else)
{
    static const int signals[] = {SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL};
    dt_testcluster_t *tc = start("Engines=2");
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        Dtorch__V1__Event *event = kill_one(tc, signals[i]);
        cr_assert_str_eq(field(event, "noticed_by"), "handler");
        cr_assert_gt(strtoll(field(event, "noticed_ns"), NULL, 10), 0);
        dtorch__v1__event__free_unpacked(event, NULL);
    }
    stop(tc);
}

Test(engine, that_is_killed_is_noticed_without_its_help)
{
    dt_testcluster_t *tc = start("Engines=2");
    for (int i = 0; i < 3; i++) {
        Dtorch__V1__Event *event = kill_one(tc, i == 2 ? SIGTERM : SIGKILL);
        cr_assert_str_neq(field(event, "noticed_by"), "handler");
        dtorch__v1__event__free_unpacked(event, NULL);
    }
    stop(tc);
}

/* ---- a hang, played by writing to the engine's page ---- */

/* Where the engine has its page mapped; 0 if that cannot be seen. */
static uintptr_t page_address(pid_t pid)
{
    char path[64];
    char line[512];
    unsigned long begin = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (strstr(line, "dtorch-engine-page")) {
            begin = strtoul(line, NULL, 16);
            break;
        }
    }
    if (maps)
        (void)fclose(maps);
    return begin;
}

static bool page_write(pid_t pid, const dt_engine_page_t *page)
{
    dt_engine_page_t copy;
    memcpy(&copy, page, sizeof copy);
    struct iovec from = {&copy, sizeof copy};
    struct iovec to = {(void *)page_address(pid), sizeof copy};
    return to.iov_base && process_vm_writev(pid, &from, 1, &to, 1, 0) == (ssize_t)sizeof copy;
}

Test(engine, whose_operator_never_ends_is_killed_and_named)
{
    dt_testcluster_t *tc = start("Engines=1\nOperationTimeout=500ms");
    struct engines before = {.warm = 1};
    struct timespec now;
    static dt_engine_page_t page;
    expect_engines(tc, &before);
    uint64_t after = dt_testcluster_last_event(tc);
    clock_gettime(CLOCK_MONOTONIC, &now);
    page = (dt_engine_page_t){.magic = DT_ENGINE_PAGE_MAGIC, .version = DT_ENGINE_PAGE_VERSION};
    page.state = DT_ENGINE_STATE_BUSY;
    page.progress = 41;
    dt_engine_page_op_begin(&page, "aten::mm", (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
    if (!page_write(before.pid[0], &page)) {
        stop(tc);
        cr_skip_test("needs root: another process's memory is written");
    }
    Dtorch__V1__Event *event = expect_event(tc, "engine-hung", after);
    cr_assert_str_eq(field(event, "operator"), "aten::mm");
    cr_assert_not_null(strstr(event->text, "aten::mm"), "%s", event->text);
    dtorch__v1__event__free_unpacked(event, NULL);
    struct engines again = {.warm = 1, .without = before.pid[0]};
    expect_engines(tc, &again);
    stop(tc);
}

/* ---- with its agent ---- */

/* Wait until a process that this one inherits is gone, and take its status. */
static bool is_gone(pid_t pid)
{
    for (int64_t end_ms = dt_test_now_ms() + PATIENCE; dt_test_now_ms() < end_ms;) {
        if (waitpid(pid, NULL, WNOHANG) == pid || (kill(pid, 0) < 0 && errno == ESRCH))
            return true;
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return false;
}

Test(engine, ends_when_its_agent_is_killed_and_the_next_start_works)
{
    dt_testcluster_t *tc = start("Engines=2");
    struct engines before = {.warm = 2};
    int code;
    expect_engines(tc, &before);
    dt_testcluster_kill(tc, 0, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, 0, PATIENCE, &code));
    cr_assert(is_gone(before.pid[0]) && is_gone(before.pid[1]), "an engine outlived its agent");
    dt_testcluster_start_daemon(tc, 0);
    struct engines again = {.warm = 2, .without = before.pid[0]};
    expect_engines(tc, &again);
    stop(tc);
}

Test(engine, stays_while_the_controller_is_away)
{
    dt_testcluster_t *tc = start("Engines=2");
    struct engines before = {.warm = 2};
    int code;
    expect_engines(tc, &before);
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, PATIENCE, &code));
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    struct engines after = {.warm = 2};
    expect_engines(tc, &after);
    cr_assert(has_pid(&after, before.pid[0]) && has_pid(&after, before.pid[1]),
              "an engine was replaced though nothing happened to it");
    stop(tc);
}

Test(engine, that_died_while_the_controller_was_away_is_told_of_later)
{
    dt_testcluster_t *tc = start("Engines=1");
    struct engines before = {.warm = 1};
    int code;
    expect_engines(tc, &before);
    uint64_t last = dt_testcluster_last_event(tc);
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGTERM);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, PATIENCE, &code));
    cr_assert_eq(kill(before.pid[0], SIGSEGV), 0);
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    Dtorch__V1__Event *event = expect_event(tc, "engine-crashed", last);
    cr_assert_str_eq(field(event, "signal"), "11");
    dtorch__v1__event__free_unpacked(event, NULL);
    struct engines after = {.warm = 1, .without = before.pid[0]};
    expect_engines(tc, &after);
    stop(tc);
}

Test(engine, count_follows_a_reload)
{
    dt_testcluster_t *tc = start("Engines=1");
    struct engines one = {.warm = 1};
    struct engines three = {.warm = 3};
    expect_engines(tc, &one);
    dt_testcluster_set_conf(tc, 0, "Engines=3");
    dt_testcluster_kill(tc, 0, SIGHUP);
    expect_engines(tc, &three);
    cr_assert(has_pid(&three, one.pid[0]), "the first engine was replaced");
    dt_testcluster_set_conf(tc, 0, "Engines=1");
    dt_testcluster_kill(tc, 0, SIGHUP);
    struct engines again = {.warm = 1};
    expect_engines(tc, &again);
    cr_assert_eq(again.pid[0], one.pid[0], "the oldest engine stays");
    stop(tc);
}

/* Without a device of that kind; where the library is not built there is nothing to load early. */
Test(engine, that_loads_before_the_devices_are_known_comes_up_when_there_are_none)
{
    dt_testcluster_t *tc = start("Devices=torch:cuda\nEngines=1\n");
    struct engines one = {.warm = 1};
    expect_engines(tc, &one);
    stop(tc);
}

Test(engine, that_finds_no_descriptor_to_start_with_is_started_later)
{
    dt_testcluster_t *tc = start("Engines=1");
    struct engines before = {.warm = 1};
    struct rlimit limit;
    expect_engines(tc, &before);
    pid_t agent = dt_testcluster_pid(tc, 0);
    uint64_t last = dt_testcluster_last_event(tc);
    cr_assert_eq(prlimit(agent, RLIMIT_NOFILE, NULL, &limit), 0);
    struct rlimit tight = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
    cr_assert_eq(prlimit(agent, RLIMIT_NOFILE, &tight, NULL), 0);
    cr_assert_eq(kill(before.pid[0], SIGKILL), 0);
    dtorch__v1__event__free_unpacked(expect_event(tc, "engine-failed", last), NULL);
    cr_assert_eq(prlimit(agent, RLIMIT_NOFILE, &limit, NULL), 0);
    struct engines after = {.warm = 1, .without = before.pid[0]};
    expect_engines(tc, &after);
    stop(tc);
}

Test(engine, that_gets_stricter_limits_than_its_own_keeps_them)
{
    dt_testcluster_t *tc = start("Engines=1");
    struct engines before = {.warm = 1};
    struct rlimit none = {0, 0}, is;
    expect_engines(tc, &before);
    cr_assert_eq(prlimit(dt_testcluster_pid(tc, 0), RLIMIT_CORE, &none, NULL), 0);
    cr_assert_eq(kill(before.pid[0], SIGKILL), 0);
    struct engines after = {.warm = 1, .without = before.pid[0]};
    expect_engines(tc, &after);
    cr_assert_eq(prlimit(after.pid[0], RLIMIT_CORE, NULL, &is), 0);
    cr_assert_eq(is.rlim_max, 0);
    stop(tc);
}

/* ---- its sandbox ---- */

static bool status_has(pid_t pid, const char *wanted)
{
    char path[64];
    char line[256];
    bool has = false;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *status = fopen(path, "r");
    cr_assert_not_null(status);
    while (!has && fgets(line, sizeof line, status))
        has = strncmp(line, wanted, strlen(wanted)) == 0;
    (void)fclose(status);
    return has;
}

Test(engine, runs_in_its_sandbox)
{
    dt_testcluster_t *tc = start("Engines=1");
    struct engines engines = {.warm = 1};
    expect_engines(tc, &engines);
    pid_t pid = engines.pid[0];
    cr_assert(status_has(pid, "NoNewPrivs:\t1"));
    cr_assert(status_has(pid, "Seccomp:\t2"));
    cr_assert(status_has(pid, "CapEff:\t0000000000000000"));
    cr_assert(status_has(pid, "CapBnd:\t0000000000000000") || geteuid() != 0);
    stop(tc);
}

Test(engine, cannot_do_what_it_must_not)
{
    const char *const args[] = {"--check-sandbox", NULL};
    dt_testrun_t run = dt_testrun_program("dtorch-workerd", args, NULL);
    int refused = 0;
    for (const char *at = run.out; (at = strstr(at, ": refused\n")) != NULL; at++)
        refused++;
    cr_assert_eq(run.code, 0, "%s%s", run.out, run.err);
    cr_assert_eq(refused, 14, "%s", run.out);
    dt_testrun_fini(&run);
}

/* ---- its cgroup ---- */

#define GROUP_ROOT "/sys/fs/cgroup"

static bool move_self(const char *group)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/cgroup.procs", group);
    FILE *procs = fopen(path, "w");
    bool is_moved = procs && fputs("0", procs) >= 0;
    return procs && fclose(procs) == 0 && is_moved;
}

/* Make a delegated cgroup and go there, so that the daemons start in it. False: not allowed here.
 */
static bool enter_group(const char *root, char *group, size_t size)
{
    (void)snprintf(group, size, "%s/dtorch-test-%d", root, (int)getpid());
    if (mkdir(group, 0755))
        return false;
    if (setxattr(group, "trusted.delegate", "1", 1, 0) || !move_self(group)) {
        (void)rmdir(group);
        return false;
    }
    return true;
}

static void leave_group(const char *root, const char *group)
{
    char agent[512];
    (void)move_self(root);
    (void)snprintf(agent, sizeof agent, "%s/agent", group);
    (void)rmdir(agent);
    cr_assert_eq(rmdir(group), 0, "a cgroup of an engine was left behind");
}

static bool is_in_group(pid_t pid, const char *wanted)
{
    char path[64];
    char line[512];
    bool is_there = false;
    (void)snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    FILE *groups = fopen(path, "r");
    while (groups && fgets(line, sizeof line, groups))
        if (strncmp(line, "0::", 3) == 0)
            is_there = strstr(line, wanted) != NULL;
    if (groups)
        (void)fclose(groups);
    return is_there;
}

Test(engine, has_a_cgroup_of_its_own_where_that_is_delegated)
{
    char group[256];
    bool is_unified = access(GROUP_ROOT "/cgroup.procs", F_OK) == 0;
    const char *root = is_unified ? GROUP_ROOT : GROUP_ROOT "/unified";
    if (!enter_group(root, group, sizeof group))
        cr_skip_test("needs root and a cgroup that can be made");
    dt_testcluster_t *tc = start("Engines=2\nEngineCgroup=yes");
    struct engines before = {.warm = 2};
    expect_engines(tc, &before);
    cr_assert(is_in_group(dt_testcluster_pid(tc, 0), "/agent"));
    cr_assert(is_in_group(before.pid[0], "/engine-1"));
    cr_assert(is_in_group(before.pid[1], "/engine-2"));
    cr_assert_eq(kill(before.pid[0], SIGKILL), 0);
    struct engines after = {.warm = 2, .without = before.pid[0]};
    expect_engines(tc, &after);
    cr_assert(is_in_group(after.pid[1], "/engine-3"));
    stop(tc);
    leave_group(root, group);
}

/* ---- one identity ---- */

Test(engine, of_a_second_agent_on_one_state_directory_never_starts)
{
    dt_testcluster_t *tc = start("Engines=1");
    struct engines before = {.warm = 1};
    char pid[32];
    expect_engines(tc, &before);
    const char *const args[] = {"--config", dt_testcluster_conf_file(tc, 0), NULL};
    dt_testrun_t run = dt_testrun_program("dtorch-workerd", args, NULL);
    (void)snprintf(pid, sizeof pid, "pid %d on ", (int)dt_testcluster_pid(tc, 0));
    cr_assert_eq(run.code, 75, "%s", run.err);
    cr_assert_not_null(strstr(run.err, pid), "the holder is not named: %s", run.err);
    dt_testrun_fini(&run);
    cr_assert(dt_testcluster_wait_node(tc, 0, same_node, NULL, PATIENCE),
              "the first was disturbed");
    struct engines after = {.warm = 1};
    expect_engines(tc, &after);
    cr_assert_eq(after.pid[0], before.pid[0]);
    stop(tc);
}
