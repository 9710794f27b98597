/* See testproc.h. Between fork and exec only system calls are made: the test may have threads. */
#include "lib/testproc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX (64 * 1024 * 1024)

void dt_test_die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)fputs("test helper: ", stderr);
    (void)vfprintf(stderr, fmt, args);
    (void)fputc('\n', stderr);
    va_end(args);
    abort();
}

int64_t dt_test_now_ms(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void dt_test_pause_ms(int ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&ts, NULL);
}

char *dt_test_read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    size_t len = 0, cap = 65536;
    char *text = file ? malloc(cap + 1) : NULL;
    while (text && !feof(file) && !ferror(file) && cap <= FILE_MAX) {
        len += fread(text + len, 1, cap - len, file);
        if (len < cap)
            continue;
        cap *= 2;
        char *more = realloc(text, cap + 1);
        if (!more)
            break;
        text = more;
    }
    if (text)
        text[len] = '\0';
    if (file)
        (void)fclose(file);
    return text;
}

void dt_test_write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    bool ok = file && fputs(text, file) >= 0;
    if (!file || fclose(file) != 0 || !ok)
        dt_test_die("cannot write %s: %s", path, strerror(errno));
}

void dt_testproc_env_add(dt_testproc_env_t *env, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (env->count >= DT_TESTPROC_ENV_MAX || vasprintf(&env->items[env->count], fmt, args) < 0)
        dt_test_die("the environment of a program is too large");
    va_end(args);
    env->items[++env->count] = NULL;
}

void dt_testproc_env_init(dt_testproc_env_t *env, const char *report)
{
    static const char *const sanitizers[] = {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"};
    static const char *const kept[] = {"LSAN_OPTIONS", "LD_LIBRARY_PATH", "PATH"};
    memset(env, 0, sizeof *env);
    dt_testproc_env_add(env, "LANG=C.UTF-8");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (getenv(kept[i]))
            dt_testproc_env_add(env, "%s=%s", kept[i], getenv(kept[i]));
    for (size_t i = 0; i < sizeof sanitizers / sizeof *sanitizers; i++)
        if (report)
            dt_testproc_env_add(env, "%s=%s:log_path=%s", sanitizers[i],
                                getenv(sanitizers[i]) ? getenv(sanitizers[i]) : "exitcode=66",
                                report);
        else if (getenv(sanitizers[i]))
            dt_testproc_env_add(env, "%s=%s", sanitizers[i], getenv(sanitizers[i]));
}

void dt_testproc_env_fini(dt_testproc_env_t *env)
{
    for (int i = 0; i < env->count; i++)
        free(env->items[i]);
    memset(env, 0, sizeof *env);
}

void dt_testproc_listen(dt_testproc_t *proc, const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (proc->notify_fd > 0)
        close(proc->notify_fd);
    if (strlen(path) >= sizeof addr.sun_path)
        dt_test_die("the path %s is too long for a socket; set TMPDIR to a shorter one", path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    (void)unlink(path);
    proc->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (proc->notify_fd < 0 || bind(proc->notify_fd, (struct sockaddr *)&addr, sizeof addr) < 0)
        dt_test_die("cannot make the readiness socket %s: %s", path, strerror(errno));
}

static int open_output(const char *path)
{
    int fd;
    if (!path)
        return -1;
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        dt_test_die("cannot open %s: %s", path, strerror(errno));
    return fd;
}

/* The child's half. It shows what went wrong by its exit code, as a shell does. */
static __attribute__((noreturn)) void child(const char *path, const char *const *argv,
                                            const dt_testproc_env_t *env, int out, int err,
                                            const char *hosts, pid_t parent)
{
    union {
        const char *const *in;
        char *const *out;
    } args = {.in = argv}; /* execve does not write, its type only says so */
    int null = open("/dev/null", O_RDONLY);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    if (hosts &&
        (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
         mount(hosts, "/etc/hosts", NULL, MS_BIND, NULL) < 0))
        _exit(125);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    if (out >= 0)
        dup2(out, STDOUT_FILENO);
    if (err >= 0)
        dup2(err, STDERR_FILENO);
    execve(path, args.out, env->items);
    _exit(127);
}

void dt_testproc_spawn(dt_testproc_t *proc, const char *path, const char *const *argv,
                       const dt_testproc_env_t *env, const char *out, const char *err,
                       const char *hosts)
{
    int out_fd = open_output(out);
    int err_fd = open_output(err);
    pid_t self = getpid();
    if (access(path, X_OK) < 0)
        dt_test_die("%s: %s (DT_TEST_BIN must name the folder of the programs)", path,
                    strerror(errno));
    proc->pid = fork();
    if (proc->pid == 0)
        child(path, argv, env, out_fd, err_fd, hosts, self);
    if (proc->pid < 0)
        dt_test_die("cannot start %s: %s", path, strerror(errno));
    proc->pidfd = (int)syscall(SYS_pidfd_open, proc->pid, 0);
    if (proc->pidfd < 0)
        dt_test_die("pidfd_open: %s", strerror(errno));
    proc->is_running = true;
    proc->is_ready = false;
    proc->code = -1;
    if (out_fd >= 0)
        close(out_fd);
    if (err_fd >= 0)
        close(err_fd);
}

static void reap(dt_testproc_t *proc)
{
    int status = 0;
    if (!proc->is_running || waitpid(proc->pid, &status, WNOHANG) != proc->pid)
        return;
    proc->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    proc->is_running = false;
    close(proc->pidfd);
    proc->pidfd = -1;
}

static void read_notes(dt_testproc_t *proc)
{
    char text[4096];
    ssize_t len;
    while ((len = recv(proc->notify_fd, text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
        char *status;
        text[len] = '\0';
        if (strncmp(text, "READY=1", 7) == 0 || strstr(text, "\nREADY=1"))
            proc->is_ready = true;
        status = strstr(text, "STATUS=");
        if (status)
            (void)snprintf(proc->status, sizeof proc->status, "%.*s",
                           (int)strcspn(status + 7, "\n"), status + 7);
    }
}

bool dt_testproc_wait_ready(dt_testproc_t *proc, int64_t patience_ms)
{
    int64_t deadline = dt_test_now_ms() + patience_ms;
    for (;;) {
        struct pollfd fds[2] = {{.fd = proc->notify_fd, .events = POLLIN},
                                {.fd = proc->pidfd, .events = POLLIN}};
        int64_t left = deadline - dt_test_now_ms();
        read_notes(proc);
        reap(proc);
        if (proc->is_ready || !proc->is_running || left <= 0)
            return proc->is_ready && proc->is_running;
        (void)poll(fds, 2, (int)left);
    }
}

bool dt_testproc_wait_exit(dt_testproc_t *proc, int64_t patience_ms)
{
    int64_t deadline = dt_test_now_ms() + patience_ms;
    for (;;) {
        struct pollfd fd = {.fd = proc->pidfd, .events = POLLIN};
        int64_t left = deadline - dt_test_now_ms();
        reap(proc);
        if (!proc->is_running || left <= 0)
            return !proc->is_running;
        (void)poll(&fd, 1, (int)left);
    }
}

void dt_testproc_close(dt_testproc_t *proc)
{
    if (proc->is_running) {
        (void)kill(proc->pid, SIGKILL);
        (void)dt_testproc_wait_exit(proc, 60000);
    }
    if (proc->notify_fd > 0)
        close(proc->notify_fd);
    proc->notify_fd = -1;
}

void dt_testproc_adopt_orphans(void)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        dt_test_die("prctl(PR_SET_CHILD_SUBREAPER): %s", strerror(errno));
}

/* The state letter of a process that is our child, else 0. */
static char child_state(const char *name)
{
    char path[300], text[512];
    const char *rest;
    char state = 0;
    int parent = 0;
    size_t len;
    FILE *file;
    (void)snprintf(path, sizeof path, "/proc/%s/stat", name);
    file = fopen(path, "r");
    if (!file)
        return 0;
    len = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[len] = '\0';
    rest = strrchr(text, ')');
    if (!rest || sscanf(rest + 1, " %c %d", &state, &parent) != 2 || parent != getpid())
        return 0;
    return state;
}

static int count_children(bool print)
{
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    int count = 0;
    while (dir && (entry = readdir(dir)) != NULL) {
        char path[300];
        char *cmdline;
        char state = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? child_state(entry->d_name)
                                                                        : (char)0;
        if (state == 0)
            continue;
        count++; /* a zombie too: it was not reaped because threads of it still end */
        if (!print)
            continue;
        (void)snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        cmdline = dt_test_read_file(path);
        (void)fprintf(stderr, "left behind: process %s, %s\n", entry->d_name,
                      cmdline ? cmdline : "?");
        free(cmdline);
    }
    if (dir)
        closedir(dir);
    return count;
}

int dt_testproc_orphans_left(int64_t patience_ms)
{
    int64_t deadline = dt_test_now_ms() + patience_ms;
    int count;
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        count = count_children(false);
        if (count == 0 || dt_test_now_ms() >= deadline)
            break;
        dt_test_pause_ms(10);
    }
    return count ? count_children(true) : 0;
}
