/* A private cluster: a controller and a worker as children of the program, on a unix socket in a
 * folder that only its user can enter. They end with the session, and by PDEATHSIG with the I/O
 * thread, so with the program however that ends. I/O thread.
 *
 * A program that is killed leaves the folder. The program and both daemons hold a lock in it, so
 * the next private cluster of the user takes away those that nobody holds any more. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"
#include "client.h"
#include "conf/env.h"

#define STOP_NS  (5 * DT_CLOCK_SECOND_NS) /* then they are killed */
#define SUN_PATH 107
#define LOG_TAIL 300
#define LOCK_FD  3         /* of the daemons */
#define LOOK_MAX 4096      /* entries of the base folder that are looked at */
#define PREFIX   "dtorch-" /* then six characters */

enum { CONTROLLER, WORKER, DAEMONS };

static const char *const names[DAEMONS] = {"dtorch-controllerd", "dtorch-workerd"};

struct dt_client_private {
    dt_session_t *session;
    char dir[PATH_MAX];
    int lock; /* descriptor; -1: none */
    struct daemon {
        struct dt_client_private *cluster;
        dt_child_t *child;
        bool has_ended;
        dt_child_exit_t exit;
    } daemons[DAEMONS];
};

/* ---- finding the programs ---- */

static bool join(char path[static PATH_MAX], const char *folder, size_t len, const char *rest,
                 const char *name)
{
    int n = snprintf(path, PATH_MAX, "%.*s%s/%s", (int)len, folder, rest, name);
    return n > 0 && n < PATH_MAX && access(path, X_OK) == 0;
}

static bool beside_library(const char *name, char path[static PATH_MAX])
{
    static const char *const places[] = {"", "/../bin", "/../sbin", "/../../bin", "/../../sbin"};
    Dl_info info;
    char library[PATH_MAX];
    if (dladdr(names, &info) == 0 || !info.dli_fname || !realpath(info.dli_fname, library))
        return false;
    const char *slash = strrchr(library, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++)
        if (join(path, library, (size_t)(slash - library), places[i], name))
            return true;
    return false;
}

static bool in_path(const char *name, char path[static PATH_MAX])
{
    const char *folders = dt_env_get("PATH");
    for (const char *at = folders; at && *at;) {
        size_t len = strcspn(at, ":");
        if (len && join(path, at, len, "", name))
            return true;
        at += len + (at[len] == ':');
    }
    return join(path, "/usr/sbin", strlen("/usr/sbin"), "", name);
}

static dt_status_t find_program(const dt_client_settings_t *settings, const char *name,
                                char path[static PATH_MAX], dt_error_t *err)
{
    const char *folder = settings->bin_dir ? settings->bin_dir : dt_env_get("DTORCH_BIN");
    if (folder ? join(path, folder, strlen(folder), "", name)
               : beside_library(name, path) || in_path(name, path))
        return DT_OK;
    return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0,
                   "no controller is configured, and %s for a private one was not found in %s",
                   name, folder ? folder : "$DTORCH_BIN, beside the library, or $PATH");
}

/* ---- its folder ---- */

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *ftw)
{
    (void)status;
    (void)type;
    (void)ftw;
    (void)remove(path);
    return 0;
}

/* Lock the folder's file; it gets its name only then, so nobody sees it unlocked by mistake. */
static dt_status_t lock_folder(struct dt_client_private *cluster, dt_error_t *err)
{
    char before[PATH_MAX + 16], path[PATH_MAX + 16];
    (void)snprintf(before, sizeof before, "%s/lock.new", cluster->dir);
    (void)snprintf(path, sizeof path, "%s/lock", cluster->dir);
    cluster->lock = open(before, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (cluster->lock >= 0 && flock(cluster->lock, LOCK_EX | LOCK_NB) == 0 &&
        rename(before, path) == 0)
        return DT_OK;
    return dt_fail(err, DT_ERR_DENIED, "errno", errno, "%s: %s", path, strerror(errno));
}

/* Take away a folder of ours whose lock nobody holds. */
static void remove_if_left(const char *base, const char *name)
{
    char dir[PATH_MAX], path[PATH_MAX + 16];
    struct stat status;
    int n = snprintf(dir, sizeof dir, "%s/%s", base, name);
    if (n < 0 || n >= (int)sizeof dir || lstat(dir, &status) != 0 || !S_ISDIR(status.st_mode) ||
        status.st_uid != geteuid() || (status.st_mode & 0777) != 0700)
        return;
    (void)snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)close(fd);
}

static void remove_left_overs(const char *base)
{
    DIR *folder = opendir(base);
    const struct dirent *entry;
    for (int i = 0; folder && i < LOOK_MAX && (entry = readdir(folder)) != NULL; i++)
        if (dt_str_has_prefix(entry->d_name, PREFIX) &&
            strlen(entry->d_name) == strlen(PREFIX "XXXXXX"))
            remove_if_left(base, entry->d_name);
    if (folder)
        (void)closedir(folder);
}

static dt_status_t make_folder(struct dt_client_private *cluster, dt_error_t *err)
{
    const char *base = dt_env_get("XDG_RUNTIME_DIR");
    if (!base || access(base, W_OK) != 0)
        base = dt_env_get("TMPDIR");
    if (!base || access(base, W_OK) != 0)
        base = "/tmp";
    int n = snprintf(cluster->dir, sizeof cluster->dir, "%s/" PREFIX "XXXXXX", base);
    if (n < 0 || n + (int)sizeof "/controller.sock" > SUN_PATH)
        return dt_fail(err, DT_ERR_LIMIT, "dt", n, "%s is too long a path for a socket", base);
    remove_left_overs(base);
    if (!mkdtemp(cluster->dir)) {
        cluster->dir[0] = '\0';
        return dt_fail(err, DT_ERR_DENIED, "errno", errno, "%s: %s", base, strerror(errno));
    }
    return lock_folder(cluster, err);
}

static dt_status_t write_file(const char *path, const char *text, dt_error_t *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    size_t len = strlen(text);
    bool is_written = fd >= 0 && write(fd, text, len) == (ssize_t)len;
    int number = errno;
    if (fd >= 0)
        (void)close(fd);
    return is_written
               ? DT_OK
               : dt_fail(err, DT_ERR_DENIED, "errno", number, "%s: %s", path, strerror(number));
}

static dt_status_t configure(struct dt_client_private *cluster, int which, dt_error_t *err)
{
    const char *devices = cluster->session->settings.private_devices;
    const char *dir = cluster->dir;
    char path[PATH_MAX + 64], text[4 * PATH_MAX];
    int n;
    (void)snprintf(path, sizeof path, "%s/%s.conf", dir, names[which]);
    /* Who is silent here has no processor: its end is told by the kernel at once. */
    if (which == CONTROLLER)
        n = snprintf(text, sizeof text,
                     "[Controller]\nClusterName=private\nListen=%s/controller.sock\n"
                     "AdminSocket=%s/admin.sock\nStateDirectory=%s/controller\nMetricsListen=none\n"
                     "StatusListen=none\nLogLevel=warning\nSuspectBeats=100\nDeadBeats=240\n",
                     dir, dir, dir);
    else
        n = snprintf(text, sizeof text,
                     "[Worker]\nController=%s/controller.sock\nNodeName=local\n"
                     "StateDirectory=%s/worker\nMetricsListen=none\nEngineCgroup=no\nDevices=%s\n"
                     "LogLevel=warning\n",
                     dir, dir, devices ? devices : "all");
    if (n < 0 || n >= (int)sizeof text)
        return dt_fail(err, DT_ERR_LIMIT, "dt", n, "the list of private devices is too long");
    return write_file(path, text, err);
}

/* ---- its daemons ---- */

/* DTORCH_* would set options of the daemons over their files. Gives an array of borrowed strings.
 */
static char **clean_environment(void)
{
    char **all = dt_env_all();
    size_t count = 0, kept = 0;
    while (all[count])
        count++;
    char **clean = calloc(count + 1, sizeof *clean);
    for (size_t i = 0; clean && i < count; i++)
        if (!dt_str_has_prefix(all[i], "DTORCH_") && !dt_str_has_prefix(all[i], "NOTIFY_SOCKET="))
            clean[kept++] = all[i];
    return clean;
}

static void on_exit_of(void *arg, const dt_child_exit_t *exit)
{
    struct daemon *daemon = arg;
    bool is_last = true;
    daemon->has_ended = true;
    daemon->exit = *exit;
    for (int i = 0; i < DAEMONS; i++) {
        const struct daemon *other = &daemon->cluster->daemons[i];
        is_last &= other->has_ended || !other->child;
    }
    if (is_last)
        dt_loop_stop(daemon->cluster->session->io.loop);
}

static dt_status_t spawn(struct dt_client_private *cluster, int which, char **environment,
                         dt_error_t *err)
{
    struct daemon *daemon = &cluster->daemons[which];
    char program[PATH_MAX], config[PATH_MAX + 64], log[PATH_MAX + 64];
    DT_TRY(find_program(&cluster->session->settings, names[which], program, err));
    (void)snprintf(config, sizeof config, "%s/%s.conf", cluster->dir, names[which]);
    (void)snprintf(log, sizeof log, "%s/%s.log", cluster->dir, names[which]);
    DT_TRY(configure(cluster, which, err));
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return dt_fail(err, DT_ERR_DENIED, "errno", errno, "%s: %s", log, strerror(errno));
    char flag[] = "--config";
    char *const argv[] = {program, flag, config, NULL};
    const dt_child_fd_t fds[] = {
        {fd, STDOUT_FILENO}, {fd, STDERR_FILENO}, {cluster->lock, LOCK_FD}};
    dt_child_options_t options = {
        .path = program,
        .argv = argv,
        .envp = environment,
        .fds = fds,
        .fd_count = 3,
        .parent_death_signal = SIGTERM,
        .new_session = true, /* Ctrl-C is the program's; we end them */
    };
    daemon->cluster = cluster;
    dt_status_t status = dt_child_spawn(cluster->session->io.loop, &options, on_exit_of, daemon,
                                        &daemon->child, err);
    (void)close(fd);
    return status;
}

dt_status_t dt_client_private_start(dt_session_t *session, dt_error_t *err)
{
    dt_client_settings_t *settings = &session->settings;
    struct dt_client_private *cluster = calloc(1, sizeof *cluster);
    char address[PATH_MAX + 32];
    if (!cluster)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a private cluster");
    session->io.private_cluster = cluster;
    cluster->session = session;
    cluster->lock = -1;
    DT_TRY(make_folder(cluster, err));
    (void)snprintf(address, sizeof address, "%s/controller.sock", cluster->dir);
    settings->addresses[0] = strdup(address);
    char **environment = clean_environment();
    if (!settings->addresses[0] || !environment) {
        free(environment);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a private cluster");
    }
    settings->address_count = 1;
    dt_status_t status = DT_OK;
    for (int i = 0; i < DAEMONS && status == DT_OK; i++)
        status = spawn(cluster, i, environment, err);
    free(environment);
    return status;
}

/* The end of a daemon's log: why it has ended. */
static void log_tail(const struct dt_client_private *cluster, int which, char text[static LOG_TAIL])
{
    char path[PATH_MAX + 64];
    (void)snprintf(path, sizeof path, "%s/%s.log", cluster->dir, names[which]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t from = size > LOG_TAIL - 1 ? size - (LOG_TAIL - 1) : 0;
    ssize_t n = fd >= 0 ? pread(fd, text, LOG_TAIL - 1, from) : 0;
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    char *end = dt_str_trim(text);
    char *line = strrchr(end, '\n');
    memmove(text, line ? line + 1 : end, strlen(line ? line + 1 : end) + 1);
}

dt_status_t dt_client_private_check(dt_session_t *session, dt_error_t *err)
{
    struct dt_client_private *cluster = session->io.private_cluster;
    for (int i = 0; cluster && i < DAEMONS; i++) {
        const struct daemon *daemon = &cluster->daemons[i];
        char tail[LOG_TAIL];
        if (!daemon->has_ended)
            continue;
        log_tail(cluster, i, tail);
        return dt_fail(err, DT_ERR_LOST, "dt", daemon->exit.code,
                       "%s of the private cluster has ended (%s %d): %s", names[i],
                       daemon->exit.is_signal ? "signal" : "exit code", daemon->exit.code, tail);
    }
    return DT_OK;
}

static void on_late(void *arg, int64_t deadline_ns)
{
    struct dt_client_private *cluster = arg;
    (void)deadline_ns;
    for (int i = 0; i < DAEMONS; i++)
        if (cluster->daemons[i].child)
            (void)dt_child_kill(cluster->daemons[i].child, SIGKILL);
}

void dt_client_private_stop(dt_session_t *session)
{
    struct dt_client_private *cluster = DT_TAKE(session->io.private_cluster);
    dt_timer_t *late = NULL;
    bool runs = false;
    if (!cluster)
        return;
    for (int i = 0; i < DAEMONS; i++)
        if (cluster->daemons[i].child && !cluster->daemons[i].has_ended) {
            runs = true;
            (void)dt_child_kill(cluster->daemons[i].child, SIGTERM);
        }
    if (runs && dt_timer_create(session->io.loop, on_late, cluster, &late, NULL) == DT_OK) {
        dt_timer_arm(late, dt_loop_now_ns() + STOP_NS);
        dt_loop_run(session->io.loop); /* until the last one has ended */
    }
    dt_timer_free(late);
    for (int i = 0; i < DAEMONS; i++)
        dt_child_free(cluster->daemons[i].child);
    if (cluster->dir[0])
        (void)nftw(cluster->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (cluster->lock >= 0)
        (void)close(cluster->lock);
    free(cluster);
}
