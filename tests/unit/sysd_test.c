#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "conf/env.h"
#include "lib/temptree.h"
#include "sysd/sysd.h"

TestSuite(sysd, .timeout = 60);

static void set(const char *name, const char *value)
{
    cr_assert_eq(setenv(name, value, 1), 0);
}

static void set_pid(const char *name, pid_t pid)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%d", (int)pid);
    set(name, text);
}

Test(sysd, outside_the_service_manager_every_call_succeeds)
{
    dt_sysd_fd_t fds[DT_SYSD_FD_MAX];
    size_t count = 9;
    dt_error_t err;
    dt_env_unset("NOTIFY_SOCKET");
    dt_env_unset("LISTEN_FDS");
    dt_env_unset("WATCHDOG_USEC");
    cr_assert_eq(dt_sysd_ready("up", &err), DT_OK);
    cr_assert_eq(dt_sysd_status(&err, "%d nodes", 3), DT_OK);
    cr_assert_eq(dt_sysd_reloading(1, &err), DT_OK);
    cr_assert_eq(dt_sysd_extend_timeout(1, &err), DT_OK);
    cr_assert_eq(dt_sysd_watchdog_feed(&err), DT_OK);
    cr_assert_eq(dt_sysd_stopping(NULL, &err), DT_OK);
    cr_assert_eq(dt_sysd_watchdog_ns(), 0);
    cr_assert_eq(dt_sysd_listen_fds(fds, &count, &err), DT_OK);
    cr_assert_eq(count, 0);
}

Test(sysd, a_wrong_notify_socket_is_an_error_and_not_a_crash)
{
    char name[200];
    dt_error_t err;
    set("NOTIFY_SOCKET", "relative");
    cr_assert_eq(dt_sysd_ready(NULL, &err), DT_ERR_INVALID);
    cr_assert_str_eq(err.text, "NOTIFY_SOCKET=relative is not a socket");
    memset(name, 'x', sizeof name - 1);
    name[0] = '/';
    name[sizeof name - 1] = '\0';
    set("NOTIFY_SOCKET", name);
    cr_assert_eq(dt_sysd_ready(NULL, &err), DT_ERR_INVALID);
    set("NOTIFY_SOCKET", "/nonexistent/socket");
    cr_assert_eq(dt_sysd_ready(NULL, &err), DT_ERR_PEER);
}

Test(sysd, the_watchdog_is_for_this_process_only)
{
    set("WATCHDOG_USEC", "3000000");
    dt_env_unset("WATCHDOG_PID");
    cr_assert_eq(dt_sysd_watchdog_ns(), 3 * DT_CLOCK_SECOND_NS);
    set_pid("WATCHDOG_PID", getpid());
    cr_assert_eq(dt_sysd_watchdog_ns(), 3 * DT_CLOCK_SECOND_NS);
    set_pid("WATCHDOG_PID", getpid() + 1);
    cr_assert_eq(dt_sysd_watchdog_ns(), 0);
    set_pid("WATCHDOG_PID", getpid());
    const char *bad[] = {"-1", "0", "x", "9223372036854775807"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set("WATCHDOG_USEC", bad[i]);
        cr_assert_eq(dt_sysd_watchdog_ns(), 0, "%s", bad[i]);
    }
}

Test(sysd, passed_sockets_come_with_their_names_and_only_once)
{
    dt_sysd_fd_t fds[DT_SYSD_FD_MAX];
    size_t count = 0;
    dt_error_t err;
    int null_fd = open("/dev/null", O_RDONLY);
    for (int fd = 3; fd < 5; fd++) /* the test runner may hold these two itself */
        if (fcntl(fd, F_GETFD) < 0)
            cr_assert_eq(dup2(null_fd, fd), fd);
    cr_assert_eq(fcntl(4, F_SETFD, 0), 0);
    set_pid("LISTEN_PID", getpid());
    set("LISTEN_FDS", "2");
    set("LISTEN_FDNAMES", "admin");
    cr_assert_eq(dt_sysd_listen_fds(fds, &count, &err), DT_OK, "%s", err.text);
    cr_assert_eq(count, 2);
    cr_assert_eq(fds[0].fd, 3);
    cr_assert_str_eq(fds[0].name, "admin");
    cr_assert_eq(fds[1].fd, 4);
    cr_assert_str_eq(fds[1].name, "unknown");
    cr_assert_eq(fcntl(4, F_GETFD), FD_CLOEXEC);
    cr_assert(dt_env_get("LISTEN_FDS") == NULL && dt_env_get("LISTEN_PID") == NULL);
    cr_assert_eq(dt_sysd_listen_fds(fds, &count, &err), DT_OK);
    cr_assert_eq(count, 0);
}

Test(sysd, passed_sockets_of_another_process_are_left_alone_and_nonsense_is_refused)
{
    static const struct {
        const char *count;
        int pid_offset;
        dt_status_t status;
    } cases[] = {{"1", 1, DT_OK},
                 {"x", 0, DT_ERR_INVALID},
                 {"-1", 0, DT_ERR_INVALID},
                 {"65", 0, DT_ERR_LIMIT},
                 {"64", 0, DT_ERR_INVALID}}; /* so many are not open */
    dt_sysd_fd_t fds[DT_SYSD_FD_MAX];
    dt_error_t err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t count = 9;
        set_pid("LISTEN_PID", getpid() + cases[i].pid_offset);
        set("LISTEN_FDS", cases[i].count);
        cr_assert_eq(dt_sysd_listen_fds(fds, &count, &err), cases[i].status, "%s", cases[i].count);
        cr_assert_eq(count, 0);
    }
}

Test(sysd, a_credential_is_found_unless_it_says_none)
{
    dt_temptree_t tree;
    char path[DT_SYSD_PATH_MAX] = "";
    dt_error_t err;
    dt_temptree_init(&tree);
    dt_temptree_write(&tree, "tls.key", "-----BEGIN PRIVATE KEY-----\n");
    dt_temptree_write(&tree, "ca.key", "none\n");
    dt_temptree_write(&tree, "nonesuch", "nonesuch");
    set("CREDENTIALS_DIRECTORY", tree.root);
    cr_assert_eq(dt_sysd_credential_path("tls.key", path, &err), DT_OK, "%s", err.text);
    cr_assert_str_eq(path, dt_temptree_path(&tree, "tls.key"));
    cr_assert_eq(dt_sysd_credential_path("nonesuch", path, &err), DT_OK);
    cr_assert_eq(dt_sysd_credential_path("ca.key", path, &err), DT_ERR_NOT_FOUND);
    cr_assert_str_eq(err.text, "credential ca.key: none yet");
    cr_assert_eq(dt_sysd_credential_path("missing", path, &err), DT_ERR_NOT_FOUND);
    cr_assert_eq(dt_sysd_credential_path("../etc/passwd", path, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_sysd_credential_path("..", path, &err), DT_ERR_INVALID);
    dt_env_unset("CREDENTIALS_DIRECTORY");
    cr_assert_eq(dt_sysd_credential_path("tls.key", path, &err), DT_ERR_NOT_FOUND);
    dt_temptree_fini(&tree);
}

Test(sysd, stderr_is_the_journal_when_device_and_inode_are_equal)
{
    struct stat st;
    char text[64];
    cr_assert_eq(fstat(STDERR_FILENO, &st), 0);
    (void)snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
    set("JOURNAL_STREAM", text);
    cr_assert(dt_sysd_is_stderr_journal());
    (void)snprintf(text, sizeof text, "%llu:%llu", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino + 1);
    set("JOURNAL_STREAM", text);
    cr_assert_not(dt_sysd_is_stderr_journal());
    set("JOURNAL_STREAM", "7");
    cr_assert_not(dt_sysd_is_stderr_journal());
    dt_env_unset("JOURNAL_STREAM");
    cr_assert_not(dt_sysd_is_stderr_journal());
    cr_assert_not(dt_sysd_log_init("test"));
}
