/* The agent's side of a probe: start the child, ask it, notice its end. */
#include "device/probe.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device/probe_internal.h"
#include "device/sysfile.h"

#define NS_MS  INT64_C(1000000)
#define END_MS 1000 /* that a child has to end by itself, and again to die when killed */

extern char **environ;

struct dt_probe {
    dt_probe_options_t options;
    int cancel_fd; /* eventfd; readable once cancelled */
    int fd;        /* socket to the child, -1 while stopped */
    int pid_fd;    /* -1 while stopped, or where the kernel gave none */
    pid_t pid;
    bool has_answered;  /* this child: its libraries are loaded */
    int64_t retry_ns;   /* not started before this; 0: at once */
    int64_t backoff_ns; /* the next one */
    dt_error_t last;    /* what ask repeats until retry_ns */
};

static int64_t mono_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / NS_MS;
}

dt_status_t dt_probe_create(const dt_probe_options_t *options, dt_probe_t **ret_probe,
                            dt_error_t *err)
{
    dt_probe_t *probe = calloc(1, sizeof *probe);
    if (!probe)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a probe");
    probe->options = *options;
    probe->fd = probe->pid_fd = -1;
    probe->backoff_ns = DT_PROBE_BACKOFF_FIRST_NS;
    probe->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (probe->cancel_fd < 0) {
        free(probe);
        return dt_fail(err, DT_ERR_NOMEM, "errno", errno, "eventfd: %s",
                       dt_sysfile_errno_text(errno));
    }
    *ret_probe = probe;
    return DT_OK;
}

void dt_probe_cancel(dt_probe_t *probe)
{
    (void)eventfd_write(probe->cancel_fd, 1);
}

/* ---- start and end ---- */
static int spawn(const dt_probe_options_t *o, int child_fd, pid_t *ret_pid)
{
    const char *argv[DT_PROBE_ARG_COUNT + 1] = {
        "dtorch-device-probe",
        [DT_PROBE_ARG_FLAG] = DT_PROBE_ARGUMENT,
        [DT_PROBE_ARG_KIND] = o->path ? "so" : "builtin",
        [DT_PROBE_ARG_WHAT] = o->path ? o->path : o->builtin,
        [DT_PROBE_ARG_SPEC] = o->backend.spec,
        [DT_PROBE_ARG_ROOT] = o->backend.root,
        [DT_PROBE_ARG_SEED] = o->backend.seed,
        [DT_PROBE_ARG_FAULTS] = o->backend.faults,
        [DT_PROBE_ARG_LIBRARY] = o->backend.library,
    };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char *args[DT_PROBE_ARG_COUNT + 1];
    int rc = posix_spawn_file_actions_init(&files);
    if (rc != 0)
        return rc;
    rc = posix_spawnattr_init(&attr);
    if (rc != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return rc;
    }
    memcpy(args, argv, sizeof args); /* exec's argv is not const, but nobody writes to it */
    (void)sigemptyset(&none);
    (void)sigfillset(&all);
    (void)posix_spawnattr_setsigmask(&attr, &none);
    (void)posix_spawnattr_setsigdefault(&attr, &all);
    (void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    rc = posix_spawn_file_actions_adddup2(&files, child_fd, STDIN_FILENO);
    if (rc == 0) /* what a driver prints goes to the log */
        rc = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    if (rc == 0)
        rc = posix_spawn(ret_pid, o->program ? o->program : "/proc/self/exe", &files, &attr, args,
                         environ);
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&files);
    return rc;
}

static dt_status_t start(dt_probe_t *probe, dt_error_t *err)
{
    int pair[2], rc;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return dt_fail(err, DT_ERR_AGAIN, "errno", errno, "socketpair: %s",
                       dt_sysfile_errno_text(errno));
    rc = spawn(&probe->options, pair[1], &probe->pid);
    (void)close(pair[1]);
    if (rc != 0) {
        (void)close(pair[0]);
        return dt_fail(err, DT_ERR_AGAIN, "errno", rc, "a probe could not be started: %s",
                       dt_sysfile_errno_text(rc));
    }
    probe->has_answered = false;
    probe->fd = pair[0];
    probe->pid_fd = pidfd_open(probe->pid, 0);
    return DT_OK;
}

/* Wait for the child's end for at most END_MS. True if it was reaped; *ret_info tells how it ended,
 * with si_pid 0 if someone else has reaped it. */
static bool reap(dt_probe_t *probe, siginfo_t *ret_info)
{
    struct pollfd wait = {.fd = probe->pid_fd, .events = POLLIN};
    int64_t end = mono_ms() + END_MS;
    memset(ret_info, 0, sizeof *ret_info);
    for (;;) {
        int64_t left = end - mono_ms();
        int rc = waitid(P_PID, (id_t)probe->pid, ret_info, WEXITED | WNOHANG);
        if ((rc != 0 && errno != EINTR) || ret_info->si_pid != 0)
            return true;
        if (left <= 0)
            return false;
        /* without a pidfd, look each 10 ms */
        (void)poll(&wait, probe->pid_fd >= 0, probe->pid_fd >= 0 ? (int)left : 10);
    }
}

/* End the child: at once, or by letting it see that its socket closed. A child that a driver holds
 * in the kernel cannot be killed; it is left to the kernel then, and the agent does not wait. */
static void stop(dt_probe_t *probe, bool is_now, siginfo_t *ret_info)
{
    memset(ret_info, 0, sizeof *ret_info);
    if (probe->fd < 0)
        return;
    (void)close(probe->fd);
    if (is_now || !reap(probe, ret_info)) {
        (void)kill(probe->pid, SIGKILL); /* not reaped yet, so the number is still its own */
        (void)reap(probe, ret_info);
    }
    if (probe->pid_fd >= 0)
        (void)close(probe->pid_fd);
    probe->fd = probe->pid_fd = -1;
}

void dt_probe_free(dt_probe_t *probe)
{
    siginfo_t info;
    if (!probe)
        return;
    stop(probe, false, &info);
    (void)close(probe->cancel_fd);
    free(probe);
}

/* ---- asking ---- */
/* Receive exactly `size` bytes until `end_ms`. */
static dt_status_t receive(const dt_probe_t *probe, void *data, size_t size, int64_t end_ms)
{
    char *at = data;
    while (size > 0) {
        struct pollfd fds[] = {{.fd = probe->cancel_fd, .events = POLLIN},
                               {.fd = probe->fd, .events = POLLIN}};
        int64_t left = end_ms - mono_ms();
        ssize_t got;
        int ready = poll(fds, 2, left > 0 ? (int)left : 0);
        if (ready < 0 && errno == EINTR)
            continue;
        if (fds[0].revents)
            return DT_ERR_STOPPED;
        if (ready <= 0)
            return DT_ERR_TIMEOUT;
        got = recv(probe->fd, at, size, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return DT_ERR_PEER;
        at += got;
        size -= (size_t)got;
    }
    return DT_OK;
}

static dt_status_t exchange(const dt_probe_t *probe, dt_probe_reply_t *reply,
                            dt_probe_answer_t *ret_answer)
{
    const char request = DT_PROBE_REQUEST;
    int32_t timeout = probe->has_answered ? DT_BACKEND_CALL_MS : DT_PROBE_LOAD_MS;
    int64_t end_ms =
        mono_ms() + (probe->options.timeout_ms > 0 ? probe->options.timeout_ms : timeout);
    if (send(probe->fd, &request, 1, MSG_NOSIGNAL) != 1)
        return DT_ERR_PEER;
    DT_TRY(receive(probe, reply, sizeof *reply, end_ms));
    if (reply->magic != DT_PROBE_MAGIC || reply->count < 0 || reply->count > DT_DEVICE_MAX)
        return DT_ERR_INTERNAL;
    ret_answer->count = reply->count;
    return receive(probe, ret_answer->devices, (size_t)reply->count * sizeof *ret_answer->devices,
                   end_ms);
}

static dt_status_t describe_end(const siginfo_t *info, const char *what, dt_error_t *err)
{
    const char *name = info->si_code == CLD_EXITED ? NULL : sigdescr_np(info->si_status);
    if (info->si_pid == 0)
        return dt_fail(err, DT_ERR_PEER, "dt", 0, "%s: its process ended", what);
    if (info->si_code == CLD_EXITED)
        return dt_fail(err, DT_ERR_PEER, "dt", info->si_status,
                       "%s: its process ended with status %d", what, info->si_status);
    return dt_fail(err, DT_ERR_PEER, "dt", info->si_status,
                   "%s: its process was killed by signal %d (%s)", what, info->si_status,
                   name ? name : "unknown");
}

/* The exchange failed: end the child and say why. */
static dt_status_t give_up(dt_probe_t *probe, dt_status_t status, dt_error_t *err)
{
    const char *what = probe->options.path ? probe->options.path : probe->options.builtin;
    siginfo_t info;
    stop(probe, status != DT_ERR_PEER, &info);
    if (status == DT_ERR_PEER)
        return describe_end(&info, what, err);
    if (status == DT_ERR_STOPPED)
        return dt_fail(err, status, "dt", 0, "%s: cancelled", what);
    if (status == DT_ERR_TIMEOUT)
        return dt_fail(err, status, "dt", 0, "%s: gave no answer in time and was killed", what);
    return dt_fail(err, DT_ERR_DEVICE, "dt", 0, "%s: gave an answer that makes no sense", what);
}

static dt_status_t ask_now(dt_probe_t *probe, dt_probe_answer_t *ret_answer, dt_error_t *err)
{
    dt_probe_reply_t reply;
    siginfo_t info;
    dt_status_t status = DT_OK;
    if (probe->fd < 0)
        DT_TRY(start(probe, err));
    status = exchange(probe, &reply, ret_answer);
    if (status != DT_OK)
        return give_up(probe, status, err);
    probe->has_answered = true;
    reply.name[sizeof reply.name - 1] = reply.text[sizeof reply.text - 1] = '\0';
    (void)snprintf(ret_answer->name, sizeof ret_answer->name, "%s", reply.name);
    ret_answer->abi = reply.abi;
    ret_answer->table_size = reply.table_size;
    if (reply.status == DT_OK)
        return DT_OK;
    if (reply.is_last)
        stop(probe, false, &info);
    return dt_fail(err, (dt_status_t)reply.status, "backend", reply.source_code, "%s", reply.text);
}

dt_status_t dt_probe_ask(dt_probe_t *probe, int64_t now_ns, dt_probe_answer_t *ret_answer,
                         dt_error_t *err)
{
    dt_status_t status;
    if (probe->fd < 0 && probe->retry_ns != 0 && now_ns < probe->retry_ns) {
        if (err)
            *err = probe->last;
        return probe->last.code;
    }
    status = ask_now(probe, ret_answer, &probe->last);
    if (status == DT_OK) {
        probe->retry_ns = 0;
        probe->backoff_ns = DT_PROBE_BACKOFF_FIRST_NS;
        return DT_OK;
    }
    if (status == DT_ERR_NOT_FOUND || status == DT_ERR_INVALID)
        probe->backoff_ns = DT_PROBE_BACKOFF_LAST_NS; /* a new start would say the same */
    probe->retry_ns = now_ns + probe->backoff_ns;
    probe->backoff_ns *= 2;
    if (probe->backoff_ns > DT_PROBE_BACKOFF_LAST_NS)
        probe->backoff_ns = DT_PROBE_BACKOFF_LAST_NS;
    if (err)
        *err = probe->last;
    return status;
}
