/* What keeps a daemon from starting: each a clear message and the right exit code, and what can get
 * better by itself is waited for without haste. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/testcluster.h"

#define LONG_MS     DT_TESTCLUSTER_PATIENCE_MS
#define EXIT_CONFIG 78

TestSuite(start, .timeout = 600);

static dt_testcluster_t *idle(void)
{
    return dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 1, .is_idle = true, .use_tcp = true, .is_strict = true});
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* Start a daemon that must refuse, and see its exit code (0: any but 0) and words. */
static void expect_refusal(dt_testcluster_t *tc, int who, int code, const char *const *words)
{
    int got = -1;
    dt_testcluster_spawn(tc, who, NULL);
    cr_assert(dt_testcluster_wait_exit(tc, who, LONG_MS, &got), "it runs\n%s",
              dt_testcluster_logs(tc));
    cr_assert(got > 0 && got < 128 && (code == 0 || got == code), "exit %d, wanted %d\n%s", got,
              code, dt_testcluster_logs(tc));
    for (; *words; words++)
        cr_assert(dt_testcluster_log_count(tc, who, *words) > 0, "no line says '%s'\n%s", *words,
                  dt_testcluster_logs(tc));
}

#define WORDS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

Test(start, an_unknown_key_names_its_line_and_the_nearest_key)
{
    dt_testcluster_t *tc = idle();
    dt_testcluster_set_conf(tc, -1, "HeartbeetInterval=1s");
    expect_refusal(tc, -1, EXIT_CONFIG, WORDS("c.conf:9", "HeartbeatInterval"));
    dt_testcluster_set_conf(tc, 0, "Device=all");
    expect_refusal(tc, 0, EXIT_CONFIG, WORDS("w0.conf:9", "Devices"));
    stop(tc);
}

Test(start, a_public_address_without_certificates_is_refused)
{
    dt_testcluster_t *tc = idle();
    dt_testcluster_set_conf(tc, -1, "Listen=0.0.0.0:0");
    expect_refusal(tc, -1, EXIT_CONFIG, WORDS("0.0.0.0", "Certificate"));
    stop(tc);
}

Test(start, a_socket_path_that_is_too_long_is_named)
{
    dt_testcluster_t *tc = idle();
    char lines[512], path[200];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    (void)snprintf(lines, sizeof lines, "Listen=%s", path);
    dt_testcluster_set_conf(tc, -1, lines);
    expect_refusal(tc, -1, EXIT_CONFIG, WORDS("c.conf:9", "at most 107 bytes"));
    stop(tc);
}

Test(start, a_taken_port_is_named)
{
    dt_testcluster_t *tc = idle();
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char lines[64], address[32];
    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&addr, sizeof addr) == 0 &&
              listen(fd, 1) == 0 && getsockname(fd, (struct sockaddr *)&addr, &size) == 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(addr.sin_port));
    (void)snprintf(lines, sizeof lines, "Listen=%s", address);
    dt_testcluster_set_conf(tc, -1, lines);
    expect_refusal(tc, -1, 0, WORDS(address));
    (void)snprintf(lines, sizeof lines, "MetricsListen=%s", address);
    dt_testcluster_set_conf(tc, -1, lines);
    expect_refusal(tc, -1, 0, WORDS(address));
    (void)snprintf(lines, sizeof lines, "StatusListen=%s", address);
    dt_testcluster_set_conf(tc, -1, lines);
    expect_refusal(tc, -1, 0, WORDS("StatusListen", address, "another program has this port"));
    close(fd);
    stop(tc);
}

static void private_mounts(void)
{
    if (geteuid() != 0)
        cr_skip_test("needs root: it mounts a file system");
    cr_assert(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
}

Test(start, a_read_only_state_directory_is_named)
{
    dt_testcluster_t *tc;
    private_mounts();
    tc = idle();
    for (int who = -1; who <= 0; who++) {
        const char *dir = dt_testcluster_state_dir(tc, who);
        cr_assert_eq(mount("tmpfs", dir, "tmpfs", MS_RDONLY, NULL), 0);
        expect_refusal(tc, who, 0, WORDS(dir));
        cr_assert_eq(umount(dir), 0);
    }
    stop(tc);
}

Test(start, a_full_disk_is_named)
{
    dt_testcluster_t *tc;
    private_mounts();
    tc = idle();
    for (int who = -1; who <= 0; who++) {
        const char *dir = dt_testcluster_state_dir(tc, who);
        char command[1200];
        cr_assert_eq(mount("tmpfs", dir, "tmpfs", 0, "size=64k"), 0);
        (void)snprintf(command, sizeof command, "cat /dev/zero >%s/ballast 2>/dev/null; true", dir);
        cr_assert_eq(system(command), 0);
        expect_refusal(tc, who, 0, WORDS(dir, "o space left"));
        cr_assert_eq(umount(dir), 0);
    }
    stop(tc);
}

/* User and system time of a process, ms. */
static long cpu_ms(pid_t pid)
{
    char path[64], *text, *rest;
    unsigned long user = 0, system_time = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    text = dt_test_read_file(path);
    rest = text ? strrchr(text, ')') : NULL;
    if (rest)
        (void)sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                     &system_time);
    free(text);
    return (long)(user + system_time) * 1000 / sysconf(_SC_CLK_TCK);
}

static bool never(dt_testcluster_t *tc, void *arg)
{
    (void)tc;
    (void)arg;
    return false;
}

static bool says(dt_testcluster_t *tc, void *arg)
{
    return dt_testcluster_log_count(tc, 0, arg) > 0;
}

/* A worker that cannot reach its controller for 4 s: it says so, stays, and rests in between. */
static void expect_patience(dt_testcluster_t *tc, char *word)
{
    long before;
    int code = -1;
    dt_testcluster_spawn(tc, 0, NULL);
    cr_assert(dt_testcluster_wait_ready(tc, 0, LONG_MS), "%s", dt_testcluster_logs(tc));
    /* A name server that is away answers late, or never. */
    cr_assert(dt_testcluster_wait(tc, says, word, LONG_MS), "no line says '%s'\n%s", word,
              dt_testcluster_logs(tc));
    before = cpu_ms(dt_testcluster_pid(tc, 0));
    (void)dt_testcluster_wait(tc, never, NULL, 4000);
    cr_assert_lt(cpu_ms(dt_testcluster_pid(tc, 0)) - before, 2000, "it loops at full speed");
    cr_assert_lt(dt_testcluster_log_count(tc, 0, "level=warning"), 50, "%s",
                 dt_testcluster_logs(tc));
    dt_testcluster_kill(tc, 0, SIGTERM);
    cr_assert(dt_testcluster_wait_exit(tc, 0, LONG_MS, &code), "%s", dt_testcluster_logs(tc));
    cr_assert_eq(code, 0);
}

Test(start, a_worker_waits_for_a_name_that_does_not_resolve)
{
    dt_testcluster_t *tc = idle();
    char name[] = "nowhere.invalid";
    dt_testcluster_set_conf(tc, 0, "Controller=nowhere.invalid:7700");
    expect_patience(tc, name);
    stop(tc);
}

Test(start, a_worker_waits_for_a_port_that_nobody_serves)
{
    dt_testcluster_t *tc = idle();
    char address[] = "127.0.0.1";
    expect_patience(tc, address);
    stop(tc);
}

Test(start, a_controllers_name_that_resolves_elsewhere_is_found)
{
    dt_testcluster_t *tc;
    char lines[64];
    uint64_t before;
    if (geteuid() != 0)
        cr_skip_test("needs root: it gives the daemons their own /etc/hosts");
    tc = idle();
    /* 127.0.0.2 is this host too, and nobody listens there. */
    dt_testcluster_set_hosts(tc, "127.0.0.2 controller.test\n127.0.0.1 localhost\n");
    (void)snprintf(lines, sizeof lines, "Controller=controller.test:%d", dt_testcluster_port(tc));
    dt_testcluster_set_conf(tc, 0, lines);
    dt_testcluster_start_daemon(tc, -1);
    dt_testcluster_start_daemon(tc, 0);
    before = dt_testcluster_last_event(tc);
    cr_assert(!dt_testcluster_wait_event(tc, "node-joined", 0, before, 1000, NULL));
    dt_testcluster_set_hosts(tc, "127.0.0.1 controller.test localhost\n");
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, LONG_MS), "%s",
              dt_testcluster_logs(tc));
    stop(tc);
}

Test(start, a_clock_that_was_set_back_by_an_hour_is_no_obstacle)
{
    dt_testcluster_t *tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .is_idle = true, .fake_wall = true});
    int code = -1;
    dt_testcluster_start_daemon(tc, -1);
    dt_testcluster_start_daemon(tc, 0);
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, LONG_MS));
    for (int who = 0; who >= -1; who--) {
        dt_testcluster_kill(tc, who, SIGTERM);
        cr_assert(dt_testcluster_wait_exit(tc, who, LONG_MS, &code));
        dt_testcluster_jump_wall(tc, who, -3600 * 1000);
    }
    dt_testcluster_start_daemon(tc, -1);
    dt_testcluster_start_daemon(tc, 0);
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, LONG_MS), "%s",
              dt_testcluster_logs(tc));
    stop(tc);
}

/* What a daemon opens first must not become what it prints to. (Number 0 goes to a library that
 * opens something before main, which is harmless.) */
Test(start, without_standard_descriptors_is_as_good_as_with_them)
{
    static const char script[] = "\"$0\" --config \"$1\" <&- >&- 2>&- & pid=$!\n"
                                 "for i in $(seq 600); do\n"
                                 "    [ -S \"$2\" ] && \"$3\" --config /dev/null -H \"$2\" cluster "
                                 "status -q >/dev/null 2>&1 && break\n"
                                 "    sleep 0.1\n"
                                 "done\n"
                                 "for fd in 1 2; do [ \"$(readlink /proc/$pid/fd/$fd)\" = "
                                 "/dev/null ] || echo wrong; done\n"
                                 "kill -TERM $pid; wait $pid; echo ended with $?\n";
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.is_idle = true});
    char daemon[700], ctl[700];
    const char *bin = getenv("DT_TEST_BIN");
    (void)snprintf(daemon, sizeof daemon, "%s/dtorch-controllerd", bin);
    (void)snprintf(ctl, sizeof ctl, "%s/dtorchctl", bin);
    const char *args[] = {"-c",
                          script,
                          daemon,
                          dt_testcluster_conf_file(tc, DT_TESTCLUSTER_CONTROLLER),
                          dt_testcluster_admin_socket(tc),
                          ctl,
                          NULL};
    dt_testrun_t run = dt_testrun_program("/bin/sh", args, NULL);
    cr_assert_str_eq(run.out, "ended with 0\n", "%s%s", run.out, run.err);
    dt_testrun_fini(&run);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
