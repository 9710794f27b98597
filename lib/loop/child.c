/* A child is forked and executed by hand, not by uv_spawn: its end comes by pidfd, so nobody else
 * needs SIGCHLD, and it starts with exactly the descriptors that were listed. Between fork and exec
 * only async-signal-safe functions run, since other threads may have held any lock. */
#include "loop/child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loop/loop_internal.h"

#define TARGET_MAX 1024

struct dt_child {
    dt_list_t link; /* in the loop's list until reaped */
    dt_loop_t *loop;
    dt_watch_t *watch;
    pid_t pid;
    int pidfd;
    void (*exited)(void *arg, const dt_child_exit_t *exit);
    void *arg;
    bool is_forgotten; /* freed by its owner while it ran */
};

static dt_status_t status_of_errno(int number)
{
    switch (number) {
    case ENOENT:
    case ENOTDIR:
        return DT_ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
        return DT_ERR_DENIED;
    case ENOMEM:
        return DT_ERR_NOMEM;
    case EAGAIN:
    case EMFILE:
    case ENFILE:
        return DT_ERR_AGAIN;
    default:
        return DT_ERR_INVALID;
    }
}

/* ---- in the child, before exec ---- */

static void report_and_exit(int report_fd)
{
    int number = errno;
    ssize_t written = write(report_fd, &number, sizeof number);
    _exit(written == sizeof number ? 127 : 126);
}

static void reset_signals(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int signum = 1; signum < NSIG; signum++)
        (void)sigaction(signum, &action, NULL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Put each descriptor at its target. Sources are moved above all targets first, so that no target
 * overwrites a source that is still needed. Returns the place where report_fd is now, or -1. */
static int place_descriptors(const dt_child_options_t *options, int report_fd)
{
    int moved[DT_CHILD_FD_MAX];
    bool has_stdin = false;
    report_fd = fcntl(report_fd, F_DUPFD_CLOEXEC, TARGET_MAX);
    for (size_t i = 0; i < options->fd_count; i++) {
        moved[i] = fcntl(options->fds[i].fd, F_DUPFD_CLOEXEC, TARGET_MAX);
        if (moved[i] < 0)
            return report_fd < 0 ? -1 : -report_fd;
        has_stdin = has_stdin || options->fds[i].target == STDIN_FILENO;
    }
    if (close_range(STDERR_FILENO + 1, UINT_MAX, CLOSE_RANGE_CLOEXEC) != 0)
        return report_fd < 0 ? -1 : -report_fd;
    for (size_t i = 0; i < options->fd_count; i++)
        if (dup2(moved[i], options->fds[i].target) < 0) /* without close-on-exec */
            return report_fd < 0 ? -1 : -report_fd;
    if (!has_stdin) {
        int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (null_fd > STDIN_FILENO)
            (void)dup2(null_fd, STDIN_FILENO);
    }
    return report_fd;
}

static void become(const dt_child_options_t *options, int report_fd, pid_t parent)
    __attribute__((noreturn));
static void become(const dt_child_options_t *options, int report_fd, pid_t parent)
{
    reset_signals();
    if (options->parent_death_signal) {
        (void)prctl(PR_SET_PDEATHSIG, options->parent_death_signal);
        if (getppid() != parent) /* it died before the line above */
            _exit(125);
    }
    if (options->new_session)
        (void)setsid();
    int placed = place_descriptors(options, report_fd);
    if (placed < 0)
        report_and_exit(placed == -1 ? report_fd : -placed);
    execve(options->path, options->argv, options->envp ? options->envp : environ);
    report_and_exit(placed);
    _exit(127);
}

/* ---- in the parent ---- */

static bool reap(dt_child_t *child, bool wait, dt_child_exit_t *ret_exit)
{
    siginfo_t info = {0};
    int rc;
    do
        rc = waitid(P_PID, (id_t)child->pid, &info, WEXITED | (wait ? 0 : WNOHANG));
    while (rc != 0 && errno == EINTR);
    if (rc != 0 || info.si_pid != child->pid)
        return false;
    *ret_exit = (dt_child_exit_t){.is_signal = info.si_code != CLD_EXITED,
                                  .is_core = info.si_code == CLD_DUMPED,
                                  .code = info.si_status};
    return true;
}

static void let_go(dt_child_t *child)
{
    dt_list_remove(&child->link);
    dt_watch_free(child->watch);
    child->watch = NULL;
    (void)close(child->pidfd);
    child->pidfd = -1;
}

static void on_pidfd(void *arg, int events)
{
    dt_child_t *child = arg;
    dt_child_exit_t exit;
    (void)events;
    if (!reap(child, false, &exit))
        return;
    let_go(child);
    if (child->is_forgotten)
        free(child);
    else
        child->exited(child->arg, &exit); /* may free it */
}

static dt_status_t check_options(const dt_child_options_t *options, dt_error_t *err)
{
    if (options->fd_count > DT_CHILD_FD_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%zu descriptors for a child, at most %d",
                       options->fd_count, DT_CHILD_FD_MAX);
    for (size_t i = 0; i < options->fd_count; i++)
        if (options->fds[i].target < 0 || options->fds[i].target >= TARGET_MAX)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "descriptor %d for a child: not in 0..%d",
                           options->fds[i].target, TARGET_MAX - 1);
    return DT_OK;
}

/* Fork, and wait until the exec has worked or has failed with *ret_errno. */
static pid_t start(const dt_child_options_t *options, int *ret_errno)
{
    int report[2];
    pid_t parent = getpid();
    if (pipe2(report, O_CLOEXEC) != 0) {
        *ret_errno = errno;
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        become(options, report[1], parent);
    *ret_errno = pid < 0 ? errno : 0;
    (void)close(report[1]);
    if (pid > 0) {
        int number;
        ssize_t got;
        do
            got = read(report[0], &number, sizeof number);
        while (got < 0 && errno == EINTR);
        if (got == sizeof number) {
            (void)waitpid(pid, NULL, 0);
            *ret_errno = number;
            pid = -1;
        }
    }
    (void)close(report[0]);
    return pid;
}

dt_status_t dt_child_spawn(dt_loop_t *loop, const dt_child_options_t *options,
                           void (*exited)(void *arg, const dt_child_exit_t *exit), void *arg,
                           dt_child_t **ret_child, dt_error_t *err)
{
    int number = 0;
    DT_TRY(check_options(options, err));
    dt_child_t *child = calloc(1, sizeof *child);
    if (!child)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a child");
    child->loop = loop;
    child->exited = exited;
    child->arg = arg;
    child->pid = start(options, &number);
    if (child->pid < 0) {
        free(child);
        return dt_fail(err, status_of_errno(number), "errno", number, "cannot start %s: %s",
                       options->path, strerror(number));
    }
    child->pidfd = pidfd_open(child->pid, 0);
    number = errno;
    dt_status_t status = child->pidfd < 0
                             ? dt_fail(err, status_of_errno(number), "errno", number,
                                       "pidfd of %s: %s", options->path, strerror(number))
                             : dt_watch_create(loop, child->pidfd, DT_LOOP_READABLE, on_pidfd,
                                               child, &child->watch, err);
    if (status != DT_OK) {
        (void)kill(child->pid, SIGKILL); /* not reaped yet, so it is still this process */
        (void)waitpid(child->pid, NULL, 0);
        if (child->pidfd >= 0)
            (void)close(child->pidfd);
        free(child);
        return status;
    }
    dt_list_push(&loop->children, &child->link);
    *ret_child = child;
    return DT_OK;
}

pid_t dt_child_pid(const dt_child_t *child)
{
    return child->pid;
}

int dt_child_pidfd(const dt_child_t *child)
{
    return child->pidfd;
}

dt_status_t dt_child_kill(dt_child_t *child, int signum)
{
    if (child->pidfd < 0)
        return DT_ERR_NOT_FOUND;
    if (pidfd_send_signal(child->pidfd, signum, NULL, 0) != 0)
        return errno == ESRCH ? DT_ERR_NOT_FOUND : status_of_errno(errno);
    return DT_OK;
}

void dt_child_free(dt_child_t *child)
{
    if (!child)
        return;
    if (child->pidfd < 0) {
        free(child);
        return;
    }
    child->is_forgotten = true;
    (void)dt_child_kill(child, SIGKILL);
}

int dt_loop_reap_children(dt_loop_t *loop)
{
    int count = 0;
    dt_list_t *link;
    while ((link = dt_list_pop(&loop->children)) != NULL) {
        dt_child_t *child = DT_CONTAINER_OF(link, dt_child_t, link);
        dt_child_exit_t exit;
        count += child->is_forgotten ? 0 : 1;
        (void)dt_child_kill(child, SIGKILL);
        (void)reap(child, true, &exit);
        let_go(child);
        free(child);
    }
    return count;
}
