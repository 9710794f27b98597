/* See testcluster.h. The folder of a cluster:
 *   conf/NAME.conf  log/NAME  run/NAME/ (sockets)  state/NAME/  tmp/NAME/  report/  notify/NAME
 * where NAME is c for the controller and wI for a worker. run and tmp must be empty at the end. */
#include "lib/testcluster.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/testproxy.h"

#define DAEMON_MAX (DT_TESTCLUSTER_WORKER_MAX + 1)
#define POLL_MS    10
/* A worker that has no processor for a second is "suspect" by the rules that we ship, and a program
 * that says nothing for two is taken for gone: right, and not what most tests are about. */
#define PATIENT_RULES "SuspectBeats=20\nDeadBeats=24\n"

struct daemon_slot {
    dt_testproc_t proc;
    char name[8];
    char conf_path[DT_TESTPROC_PATH_MAX];
    char state_dir[DT_TESTPROC_PATH_MAX];
    char log_path[DT_TESTPROC_PATH_MAX];
    int port, metrics_port;       /* reserved on loopback */
    int port_fd, metrics_port_fd; /* keep them reserved */
    bool is_judged;               /* must end with 0 and leave nothing */
    int64_t *wall_offset_ms;      /* shared with the daemon, or NULL */
    dt_testproxy_t *proxy;        /* or NULL */
};

struct dt_testcluster {
    dt_testcluster_options_t options;
    char dir[DT_TESTPROC_PATH_MAX];
    char bin[DT_TESTPROC_PATH_MAX];
    char admin_socket[DT_TESTPROC_PATH_MAX], controller_socket[DT_TESTPROC_PATH_MAX];
    char hosts_path[DT_TESTPROC_PATH_MAX];
    struct daemon_slot slots[DAEMON_MAX]; /* the controller first */
    char *logs;                           /* what dt_testcluster_logs gave last */
    int complaints;
};

#define PATH_OF(out, ...) path_of((out), sizeof(out), __VA_ARGS__)

static void path_of(char *out, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void path_of(char *out, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(out, size, fmt, args) >= (int)size)
        dt_test_die("path too long: %s", out);
    va_end(args);
}

static struct daemon_slot *slot_of(const dt_testcluster_t *tc, int who)
{
    union {
        const struct daemon_slot *in;
        struct daemon_slot *out;
    } slot = {.in = &tc->slots[who + 1]};
    if (who < DT_TESTCLUSTER_CONTROLLER || who >= tc->options.workers)
        dt_test_die("the cluster has no worker %d", who);
    return slot.out;
}

/* Take a free port and hold it: bound and not listening, with SO_REUSEADDR, it can be bound once
 * more by a daemon, and the kernel gives it to nobody who asks for any port. */
int dt_testcluster_reserve_port(int *ret_fd)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof addr;
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(fd, (struct sockaddr *)&addr, sizeof addr) < 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &size) < 0)
        dt_test_die("no free port: %s", strerror(errno));
    *ret_fd = fd;
    return ntohs(addr.sin_port);
}

static void make_dir(const dt_testcluster_t *tc, const char *part, const char *name)
{
    char path[DT_TESTPROC_PATH_MAX + 32];
    PATH_OF(path, "%s/%s%s%s", tc->dir, part, *name ? "/" : "", name);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        dt_test_die("cannot make %s: %s", path, strerror(errno));
}

static void make_slot(dt_testcluster_t *tc, int who)
{
    struct daemon_slot *slot = slot_of(tc, who);
    int fd;
    char path[DT_TESTPROC_PATH_MAX + 32];
    slot->proc = (dt_testproc_t){.pidfd = -1, .notify_fd = -1};
    (void)snprintf(slot->name, sizeof slot->name, who < 0 ? "c" : "w%d", who);
    PATH_OF(slot->conf_path, "%s/conf/%s.conf", tc->dir, slot->name);
    PATH_OF(slot->state_dir, "%s/state/%s", tc->dir, slot->name);
    PATH_OF(slot->log_path, "%s/log/%s", tc->dir, slot->name);
    make_dir(tc, "run", slot->name);
    make_dir(tc, "tmp", slot->name);
    make_dir(tc, "state", slot->name);
    slot->port = dt_testcluster_reserve_port(&slot->port_fd);
    slot->metrics_port = dt_testcluster_reserve_port(&slot->metrics_port_fd);
    if (!tc->options.fake_wall)
        return;
    PATH_OF(path, "%s/tmp/%s.wall", tc->dir, slot->name);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *slot->wall_offset_ms) < 0)
        dt_test_die("cannot make %s: %s", path, strerror(errno));
    slot->wall_offset_ms =
        mmap(NULL, sizeof *slot->wall_offset_ms, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (slot->wall_offset_ms == MAP_FAILED)
        dt_test_die("cannot map %s: %s", path, strerror(errno));
    close(fd);
}

void dt_testcluster_set_conf(dt_testcluster_t *tc, int who, const char *lines)
{
    struct daemon_slot *slot = slot_of(tc, who);
    char *text = NULL, target[DT_TESTPROC_PATH_MAX];
    int rc;
    if (slot->proxy)
        PATH_OF(target, "127.0.0.1:%d", dt_testproxy_port(slot->proxy));
    else if (tc->options.use_tcp)
        PATH_OF(target, "127.0.0.1:%d", dt_testcluster_port(tc));
    else
        PATH_OF(target, "%s", tc->controller_socket);
    if (who < 0)
        rc = asprintf(&text,
                      "[Controller]\nClusterName=test\nListen=%s 127.0.0.1:%d\nAdminSocket=%s\n"
                      "StateDirectory=%s\nMetricsListen=127.0.0.1:%d\nStatusListen=none\n"
                      "LogLevel=debug\n%s%s\n",
                      tc->controller_socket, slot->port, tc->admin_socket, slot->state_dir,
                      slot->metrics_port, tc->options.is_strict ? "" : PATIENT_RULES,
                      lines ? lines : "");
    else
        rc = asprintf(&text,
                      "[Worker]\nController=%s\nNodeName=%s\nStateDirectory=%s\n"
                      "MetricsListen=127.0.0.1:%d\nLogLevel=debug\nDevices=sim:2\nEngines=0\n%s\n",
                      target, slot->name, slot->state_dir, slot->metrics_port, lines ? lines : "");
    if (rc < 0)
        dt_test_die("out of memory");
    dt_test_write_file(slot->conf_path, text);
    free(text);
}

static void make_folder(dt_testcluster_t *tc)
{
    static const char *const parts[] = {"conf", "log", "run", "state", "tmp", "report", "notify"};
    const char *base = getenv("TMPDIR");
    const char *bin = getenv("DT_TEST_BIN");
    if (!bin)
        dt_test_die("DT_TEST_BIN is not set: run this by make check-component or check-fault");
    PATH_OF(tc->bin, "%s", bin);
    PATH_OF(tc->dir, "%s/c.XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(tc->dir))
        dt_test_die("cannot make %s: %s", tc->dir, strerror(errno));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        make_dir(tc, parts[i], "");
    PATH_OF(tc->admin_socket, "%s/run/c/admin.sock", tc->dir);
    PATH_OF(tc->controller_socket, "%s/run/c/controller.sock", tc->dir);
}

dt_testcluster_t *dt_testcluster_start(const dt_testcluster_options_t *options)
{
    dt_testcluster_t *tc = calloc(1, sizeof *tc);
    if (!tc || options->workers < 0 || options->workers > DT_TESTCLUSTER_WORKER_MAX)
        dt_test_die("a cluster of %d workers", options->workers);
    tc->options = *options;
    dt_testproc_adopt_orphans();
    make_folder(tc);
    for (int who = -1; who < options->workers; who++) {
        make_slot(tc, who);
        if (who >= 0 && options->use_proxy)
            slot_of(tc, who)->proxy = dt_testproxy_start(tc->controller_socket);
        dt_testcluster_set_conf(tc, who, who < 0 ? options->controller_conf : options->worker_conf);
    }
    if (options->is_idle)
        return tc;
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    for (int who = 0; who < options->workers; who++)
        dt_testcluster_spawn(tc, who, NULL);
    for (int who = 0; who < options->workers; who++)
        if (!dt_testcluster_wait_ready(tc, who, DT_TESTCLUSTER_PATIENCE_MS) ||
            !dt_testcluster_wait_here(tc, who, DT_TESTCLUSTER_PATIENCE_MS))
            dt_test_die("worker %d did not register\n%s", who, dt_testcluster_logs(tc));
    return tc;
}

void dt_testcluster_spawn(dt_testcluster_t *tc, int who, const char *const *extra)
{
    struct daemon_slot *slot = slot_of(tc, who);
    const char *argv[16] = {who < 0 ? "dtorch-controllerd" : "dtorch-workerd", "--config",
                            slot->conf_path};
    char path[DT_TESTPROC_PATH_MAX + 32], report[DT_TESTPROC_PATH_MAX + 32];
    const char *so = getenv("DT_TEST_SO");
    dt_testproc_env_t env;
    if (slot->proc.is_running)
        dt_test_die("%s runs already", slot->name);
    for (int i = 3; extra && *extra && i < 15; i++)
        argv[i] = *extra++;
    PATH_OF(report, "%s/report/%s", tc->dir, slot->name);
    dt_testproc_env_init(&env, report);
    PATH_OF(path, "%s/notify/%s", tc->dir, slot->name);
    dt_testproc_listen(&slot->proc, path);
    dt_testproc_env_add(&env, "NOTIFY_SOCKET=%s", path);
    dt_testproc_env_add(&env, "TMPDIR=%s/tmp/%s", tc->dir, slot->name);
    dt_testproc_env_add(&env, "RUNTIME_DIRECTORY=%s/run/%s", tc->dir, slot->name);
    if (tc->options.fake_wall) {
        dt_testproc_env_add(&env, "LD_PRELOAD=%s/wallclock.so", so ? so : ".");
        dt_testproc_env_add(&env, "DT_TEST_WALL=%s/tmp/%s.wall", tc->dir, slot->name);
    }
    PATH_OF(path, "%s/%s", tc->bin, argv[0]);
    dt_testproc_spawn(&slot->proc, path, argv, &env, slot->log_path, slot->log_path,
                      *tc->hosts_path ? tc->hosts_path : NULL);
    dt_testproc_env_fini(&env);
    slot->is_judged = true;
}

bool dt_testcluster_wait_ready(dt_testcluster_t *tc, int who, int64_t patience_ms)
{
    return dt_testproc_wait_ready(&slot_of(tc, who)->proc, patience_ms);
}

void dt_testcluster_start_daemon(dt_testcluster_t *tc, int who)
{
    dt_testcluster_spawn(tc, who, NULL);
    if (!dt_testcluster_wait_ready(tc, who, DT_TESTCLUSTER_PATIENCE_MS))
        dt_test_die("%s did not become ready\n%s", slot_of(tc, who)->name, dt_testcluster_logs(tc));
}

void dt_testcluster_kill(dt_testcluster_t *tc, int who, int signo)
{
    struct daemon_slot *slot = slot_of(tc, who);
    if (!slot->proc.is_running || kill(slot->proc.pid, signo) < 0)
        dt_test_die("%s does not run, so signal %d cannot be sent\n%s", slot->name, signo,
                    dt_testcluster_logs(tc));
    if (signo == SIGKILL || signo == SIGTERM)
        slot->is_judged = false;
}

bool dt_testcluster_wait_exit(dt_testcluster_t *tc, int who, int64_t patience_ms, int *ret_code)
{
    struct daemon_slot *slot = slot_of(tc, who);
    slot->is_judged = false;
    if (!dt_testproc_wait_exit(&slot->proc, patience_ms))
        return false;
    *ret_code = slot->proc.code;
    return true;
}

static int complain(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int complain(const char *name, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)fprintf(stderr, "%s: ", name);
    (void)vfprintf(stderr, fmt, args);
    (void)fputc('\n', stderr);
    va_end(args);
    return 1;
}

static int stop_daemon(dt_testcluster_t *tc, int who)
{
    struct daemon_slot *slot = slot_of(tc, who);
    int complaints = 0;
    if (!slot->proc.is_running) {
        if (slot->is_judged && slot->proc.pid)
            complaints += complain(slot->name, "ended by itself with %d", slot->proc.code);
        return complaints;
    }
    (void)kill(slot->proc.pid, SIGCONT);
    (void)kill(slot->proc.pid, SIGTERM);
    if (!dt_testproc_wait_exit(&slot->proc, DT_TESTCLUSTER_PATIENCE_MS))
        complaints +=
            complain(slot->name, "did not end within %d ms of SIGTERM", DT_TESTCLUSTER_PATIENCE_MS);
    else if (slot->proc.code != 0 && slot->is_judged)
        complaints += complain(slot->name, "ended with %d", slot->proc.code);
    return complaints;
}

/* Whether a file in a place is something that a daemon should have taken away. */
static bool is_litter(const char *dir, const char *name, bool is_state)
{
    char path[2 * DT_TESTPROC_PATH_MAX];
    struct stat st;
    size_t len = strlen(name);
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    if (strncmp(name, "tsan.rodata.", 12) == 0) /* ThreadSanitizer's, killed in its own start */
        return false;
    if (!is_state)
        return true;
    PATH_OF(path, "%s/%s", dir, name);
    return (len > 4 && strcmp(name + len - 4, ".tmp") == 0) ||
           (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode));
}

static int litter_in(const dt_testcluster_t *tc, const char *part, const char *name)
{
    char path[DT_TESTPROC_PATH_MAX + 32];
    struct dirent *entry;
    DIR *dir;
    int complaints = 0;
    PATH_OF(path, "%s/%s%s%s", tc->dir, part, *name ? "/" : "", name);
    dir = opendir(path);
    while (dir && (entry = readdir(dir)) != NULL)
        if (is_litter(path, entry->d_name, strcmp(part, "state") == 0))
            complaints += complain(*name ? name : "cluster", "left %s/%s", path, entry->d_name);
    if (dir)
        closedir(dir);
    return complaints;
}

static int sanitizer_reports(const dt_testcluster_t *tc)
{
    char path[2 * DT_TESTPROC_PATH_MAX];
    struct dirent *entry;
    DIR *dir;
    int complaints = 0;
    PATH_OF(path, "%s/report", tc->dir);
    dir = opendir(path);
    while (dir && (entry = readdir(dir)) != NULL) {
        char *text;
        if (entry->d_name[0] == '.')
            continue;
        PATH_OF(path, "%s/report/%s", tc->dir, entry->d_name);
        text = dt_test_read_file(path);
        complaints += complain(entry->d_name, "sanitizer report:\n%s", text ? text : "?");
        free(text);
    }
    if (dir)
        closedir(dir);
    return complaints;
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    (void)chmod(path, 0700);
    (void)remove(path);
    return 0;
}

int dt_testcluster_stop(dt_testcluster_t *tc)
{
    int complaints = 0;
    for (int who = tc->options.workers - 1; who >= -1; who--)
        complaints += stop_daemon(tc, who);
    for (int who = -1; who < tc->options.workers; who++)
        dt_testproc_close(&slot_of(tc, who)->proc);
    complaints += dt_testproc_orphans_left(DT_TESTCLUSTER_PATIENCE_MS);
    for (int who = -1; who < tc->options.workers; who++) {
        struct daemon_slot *slot = slot_of(tc, who);
        if (!slot->is_judged)
            continue;
        complaints += litter_in(tc, "run", slot->name);
        complaints += litter_in(tc, "tmp", slot->name);
        complaints += litter_in(tc, "state", slot->name);
    }
    complaints += sanitizer_reports(tc);
    if (complaints)
        (void)fputs(dt_testcluster_logs(tc), stderr);
    for (int who = -1; who < tc->options.workers; who++) {
        struct daemon_slot *slot = slot_of(tc, who);
        dt_testproxy_stop(slot->proxy);
        close(slot->port_fd);
        close(slot->metrics_port_fd);
        if (slot->wall_offset_ms)
            (void)munmap(slot->wall_offset_ms, sizeof *slot->wall_offset_ms);
    }
    (void)nftw(tc->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(tc->logs);
    free(tc);
    return complaints;
}

const char *dt_testcluster_logs(dt_testcluster_t *tc)
{
    char *all = strdup("");
    for (int who = -1; all && who < tc->options.workers; who++) {
        struct daemon_slot *slot = slot_of(tc, who);
        char *text = dt_test_read_file(slot->log_path), *more = NULL;
        size_t len = text ? strlen(text) : 0;
        const char *from = text ? text + (len > 12000 ? len - 12000 : 0) : "(none)";
        if (asprintf(&more, "%s\n---- log of %s, exit %d%s\n%s", all, slot->name, slot->proc.code,
                     len > 12000 ? ", its end" : "", from) < 0)
            more = NULL;
        free(text);
        free(all);
        all = more;
    }
    free(tc->logs);
    tc->logs = all;
    return all ? all : "(no memory for logs)";
}

int dt_testcluster_log_count(dt_testcluster_t *tc, int who, const char *text)
{
    char *log = dt_test_read_file(slot_of(tc, who)->log_path);
    int count = 0;
    for (char *line = log; line && *line;) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        count += strstr(line, text) != NULL;
        line = end ? end + 1 : NULL;
    }
    free(log);
    return count;
}

const char *dt_testcluster_dir(const dt_testcluster_t *tc)
{
    return tc->dir;
}

const char *dt_testcluster_admin_socket(const dt_testcluster_t *tc)
{
    return tc->admin_socket;
}

const char *dt_testcluster_controller_socket(const dt_testcluster_t *tc)
{
    return tc->controller_socket;
}

const char *dt_testcluster_state_dir(const dt_testcluster_t *tc, int who)
{
    return slot_of(tc, who)->state_dir;
}

const char *dt_testcluster_conf_file(const dt_testcluster_t *tc, int who)
{
    return slot_of(tc, who)->conf_path;
}

int dt_testcluster_port(const dt_testcluster_t *tc)
{
    return slot_of(tc, DT_TESTCLUSTER_CONTROLLER)->port;
}

int dt_testcluster_metrics_port(const dt_testcluster_t *tc, int who)
{
    return slot_of(tc, who)->metrics_port;
}

pid_t dt_testcluster_pid(const dt_testcluster_t *tc, int who)
{
    return slot_of(tc, who)->proc.pid;
}

int64_t dt_testcluster_rss_bytes(const dt_testcluster_t *tc, int who)
{
    char path[64];
    long long total = 0, resident = 0;
    FILE *file;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)dt_testcluster_pid(tc, who));
    file = fopen(path, "r");
    if (!file || fscanf(file, "%lld %lld", &total, &resident) != 2)
        dt_test_die("cannot read %s", path);
    (void)fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

void dt_testcluster_set_hosts(dt_testcluster_t *tc, const char *text)
{
    PATH_OF(tc->hosts_path, "%s/conf/hosts", tc->dir);
    dt_test_write_file(tc->hosts_path, text);
}

void dt_testcluster_jump_wall(dt_testcluster_t *tc, int who, int64_t offset_ms)
{
    struct daemon_slot *slot = slot_of(tc, who);
    if (!slot->wall_offset_ms)
        dt_test_die("jump_wall without fake_wall");
    __atomic_store_n(slot->wall_offset_ms, offset_ms, __ATOMIC_RELAXED);
}

dt_testproxy_t *dt_testcluster_proxy(dt_testcluster_t *tc, int worker)
{
    struct daemon_slot *slot = slot_of(tc, worker);
    if (!slot->proxy)
        dt_test_die("link_* without use_proxy");
    return slot->proxy;
}

void dt_testcluster_link_pass(dt_testcluster_t *tc, int worker)
{
    dt_testproxy_set(dt_testcluster_proxy(tc, worker), DT_TESTPROXY_PASS, 0);
}

void dt_testcluster_link_swallow(dt_testcluster_t *tc, int worker)
{
    dt_testproxy_set(dt_testcluster_proxy(tc, worker), DT_TESTPROXY_STALL, 0);
}

void dt_testcluster_link_cut(dt_testcluster_t *tc, int worker)
{
    dt_testproxy_set(dt_testcluster_proxy(tc, worker), DT_TESTPROXY_CUT, 0);
}

void dt_testcluster_link_delay(dt_testcluster_t *tc, int worker, int delay_ms)
{
    dt_testproxy_set(dt_testcluster_proxy(tc, worker), DT_TESTPROXY_PASS, delay_ms);
}
