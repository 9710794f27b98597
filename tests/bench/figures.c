/* The figures of the control plane: `make bench`. Each is measured through real daemons of the
 * release build and printed as one JSON line:
 * {"figure","value","unit","better","peer","peer_value", "goal","runs","spread"}; value is a
 * median, spread the interquartile range. usage: figures LOAD [KEY...]     LOAD is the load
 * generator; no KEY: all. Exit status 3: none of the keys is one of these */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "lib/testcluster.h"

#define SAMPLE_MAX   2000
#define PATIENCE_MS  DT_TESTCLUSTER_PATIENCE_MS
#define LOAD_SECONDS "10"
#define PAGE_SECONDS 7 /* within those */
#define VIEWERS      10
#define OK           DTORCH__V1__NODE_HEALTH__NODE_OK

struct samples {
    double values[SAMPLE_MAX];
    int count;
};

struct figure {
    const char *key, *unit, *peer;
    double peer_value, goal;
};

/* Peers' figures are those of DESIGN.md section 16, measured with the peers themselves. */
enum {
    CPU_1000,
    CPU_4000,
    MB_4000,
    KILL_MS,
    KILL_WORST_MS,
    SUSPECT_MS,
    DEAD_MS,
    START_MS,
    JOIN_MS,
    RTT_US,
    PAGE_BYTES,
    PAGE_DOCUMENT_KB,
    PAGE_LOOP,
    FIGURE_COUNT
};
static const struct figure figures[FIGURE_COUNT] = {
    [CPU_1000] = {"heartbeat_cpu_1000", "cores", "prototype at 500 ms", 0.13, 0.25},
    [CPU_4000] = {"heartbeat_cpu_4000", "cores", "prototype at 1000 ms", 0.37, 1.0},
    [MB_4000] = {"conn4000_mb", "MiB", "", 0, 150},
    [KILL_MS] = {"kill9_notice_ms", "ms", "Ray", 6, 5},
    [KILL_WORST_MS] = {"kill9_notice_worst_ms", "ms", "Ray", 6, 50},
    [SUSPECT_MS] = {"hang_suspect_ms", "ms", "Monarch", 40000, 1000},
    [DEAD_MS] = {"hang_notice_ms", "ms", "Monarch", 40000, 2500},
    [START_MS] = {"controller_start_ms", "ms", "", 0, 500},
    [JOIN_MS] = {"worker_start_ms", "ms", "", 0, 500},
    [PAGE_BYTES] = {"status_page_bytes", "bytes", "", 0, 65536},
    [PAGE_DOCUMENT_KB] = {"status_document_1000_kb", "KiB", "", 0, 512},
    [PAGE_LOOP] = {"status_page_loop_percent", "% of a core", "", 0, 1},
    [RTT_US] = {"admin_rtt_us", "us", "", 0, 10000},
};

static const char *load_program;

static void add(struct samples *samples, double value)
{
    if (samples->count < SAMPLE_MAX)
        samples->values[samples->count++] = value;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double quantile(const struct samples *samples, double q)
{
    double at = q * (samples->count - 1);
    int below = (int)at;
    int above = below + 1 < samples->count ? below + 1 : below;
    return samples->values[below] +
           (at - below) * (samples->values[above] - samples->values[below]);
}

static void print(const struct figure *figure, double value, int runs, double spread)
{
    (void)printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"better\":\"lower\","
                 "\"peer\":\"%s\",\"peer_value\":%.4g,\"goal\":%.4g,\"runs\":%d,\"spread\":%.4g}\n",
                 figure->key, value, figure->unit, figure->peer, figure->peer_value, figure->goal,
                 runs, spread);
    (void)fflush(stdout);
}

static void report(int index, struct samples *samples)
{
    if (samples->count == 0)
        dt_test_die("%s: nothing was measured", figures[index].key);
    qsort(samples->values, (size_t)samples->count, sizeof *samples->values, by_value);
    print(&figures[index], quantile(samples, 0.5), samples->count,
          quantile(samples, 0.75) - quantile(samples, 0.25));
}

static double wall_ms(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static double mono_us(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static void end(dt_testcluster_t *tc)
{
    if (dt_testcluster_stop(tc) != 0)
        dt_test_die("a daemon did not end well");
}

/* Let the load generator play `workers` and give what it says of the controller. */
static void run_load(int workers, double *ret_cores, double *ret_mib)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .controller_conf = "NodesMax=8192\nConnectionsMax=8192\nEventsMax=20000\nLogLevel=notice"});
    char address[32], count[16], pid[16];
    const char *args[] = {address, count, LOAD_SECONDS, pid, NULL};
    long long rss = 0;
    int late_ms = 0, welcomed = 0;
    dt_testrun_t run;
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testcluster_port(tc));
    (void)snprintf(count, sizeof count, "%d", workers);
    (void)snprintf(pid, sizeof pid, "%d", (int)dt_testcluster_pid(tc, -1));
    run = dt_testrun_program(load_program, args, NULL);
    if (run.code != 0 || !run.out ||
        sscanf(run.out, "workers=%d cpu_cores=%lf rss_bytes=%lld late_ms=%d", &welcomed, ret_cores,
               &rss, &late_ms) != 4)
        dt_test_die("load of %d workers: exit %d\n%s%s\n%s", workers, run.code, run.out, run.err,
                    dt_testcluster_logs(tc));
    (void)fprintf(stderr, "%d workers: %s", workers, run.out);
    *ret_mib = (double)rss / 1048576;
    dt_testrun_fini(&run);
    end(tc);
}

static void bench_cpu_1000(void)
{
    struct samples cores = {.count = 0};
    for (int run = 0; run < 3; run++) {
        double value, mib;
        run_load(1000, &value, &mib);
        add(&cores, value);
    }
    report(CPU_1000, &cores);
}

static void bench_4000(void)
{
    double cores, mib;
    run_load(4000, &cores, &mib);
    print(&figures[CPU_4000], cores, 1, 0);
    print(&figures[MB_4000], mib, 1, 0);
}

/* ---- the status page: 1,000 nodes, VIEWERS that ask once a second, as its script does ---- */

struct viewers {
    int port, metrics_port;
    atomic_bool is_over;
    double document_kib, loop_percent;
};

/* A number in the controller's metrics. */
static double metric_of(int port, const char *name)
{
    char *text = dt_test_http_get(port, "/metrics"), *at = text;
    double value = -1;
    while (at && (at = strstr(at, name)) != NULL && (at[-1] != '\n' || at[strlen(name)] != ' '))
        at++;
    if (at)
        value = strtod(at + strlen(name), NULL);
    free(text);
    return value;
}

static void *view(void *arg)
{
    struct viewers *viewers = arg;
    while (!atomic_load(&viewers->is_over)) {
        free(dt_test_http_get(viewers->port, "/status.json"));
        (void)usleep(1000000);
    }
    return NULL;
}

/* Wait until all nodes are shown, then see what the state thread spends on it for a while. */
static void *watch_page(void *arg)
{
    struct viewers *viewers = arg;
    char *text = NULL;
    double spent, from;
    while (!atomic_load(&viewers->is_over) &&
           (!text || !strstr(text, "\"nodes\":{\"total\":1000,\"ready\":1000,"))) {
        free(text);
        (void)usleep(200000);
        text = dt_test_http_get(viewers->port, "/status.json");
    }
    viewers->document_kib = text ? (double)strlen(text) / 1024 : 0;
    free(text);
    spent = metric_of(viewers->metrics_port, "dtorch_status_seconds_total");
    from = mono_us();
    (void)usleep(PAGE_SECONDS * 1000000);
    viewers->loop_percent =
        (metric_of(viewers->metrics_port, "dtorch_status_seconds_total") - spent) * 1e8 /
        (mono_us() - from);
    return NULL;
}

static double page_bytes(int port)
{
    static const char *const files[] = {"/", "/page.css", "/page.js", "/icon.svg"};
    double sum = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text = dt_test_http_get(port, files[i]);
        char *body = text ? strstr(text, "\r\n\r\n") : NULL;
        if (!body)
            dt_test_die("no %s", files[i]);
        sum += (double)strlen(body + 4);
        free(text);
    }
    return sum;
}

static void bench_page(void)
{
    struct viewers viewers = {.loop_percent = -1};
    pthread_t threads[VIEWERS], watcher;
    char conf[256], address[32], pid[16];
    const char *args[] = {address, "1000", LOAD_SECONDS, pid, NULL};
    int kept;
    dt_testrun_t run;
    viewers.port = dt_testcluster_reserve_port(&kept);
    (void)snprintf(conf, sizeof conf,
                   "NodesMax=8192\nConnectionsMax=8192\nLogLevel=notice\nStatusListen=127.0.0.1:%d",
                   viewers.port);
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.controller_conf = conf});
    viewers.metrics_port = dt_testcluster_metrics_port(tc, DT_TESTCLUSTER_CONTROLLER);
    print(&figures[PAGE_BYTES], page_bytes(viewers.port), 1, 0);
    for (int i = 0; i < VIEWERS; i++)
        if (pthread_create(&threads[i], NULL, view, &viewers) != 0)
            dt_test_die("no thread");
    if (pthread_create(&watcher, NULL, watch_page, &viewers) != 0)
        dt_test_die("no thread");
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testcluster_port(tc));
    (void)snprintf(pid, sizeof pid, "%d", (int)dt_testcluster_pid(tc, -1));
    run = dt_testrun_program(load_program, args, NULL);
    if (run.code != 0)
        dt_test_die("load: exit %d\n%s%s", run.code, run.out, run.err);
    (void)fprintf(stderr, "with %d viewers: %s", VIEWERS, run.out);
    dt_testrun_fini(&run);
    (void)pthread_join(watcher, NULL);
    atomic_store(&viewers.is_over, true);
    for (int i = 0; i < VIEWERS; i++)
        (void)pthread_join(threads[i], NULL);
    print(&figures[PAGE_DOCUMENT_KB], viewers.document_kib, 1, 0);
    print(&figures[PAGE_LOOP], viewers.loop_percent, 1, 0);
    end(tc);
    close(kept);
}

/* Wall time of the next event of worker 0, ms. The event's own time is whole milliseconds, cut
 * off: 1 is added, so the figure is never better than the truth. */
static double event_ms(dt_testcluster_t *tc, const char *name, uint64_t after)
{
    Dtorch__V1__Event *event = NULL;
    double at;
    if (!dt_testcluster_wait_event(tc, name, 0, after, PATIENCE_MS, &event))
        dt_test_die("no event %s\n%s", name, dt_testcluster_logs(tc));
    at = (double)event->wall_ms + 1;
    dtorch__v1__event__free_unpacked(event, NULL);
    return at;
}

/* Few on one cluster: a node that flaps for long runs into the bound on its events. */
static void kill_ten(struct samples *noticed, struct samples *joined)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    int code;
    for (int run = 0; run < 10; run++) {
        uint64_t after = dt_testcluster_last_event(tc);
        double at = wall_ms();
        dt_testcluster_kill(tc, 0, SIGKILL);
        add(noticed, event_ms(tc, "node-dead", after) - at);
        if (!dt_testcluster_wait_exit(tc, 0, PATIENCE_MS, &code))
            dt_test_die("a killed worker runs");
        after = dt_testcluster_last_event(tc);
        at = wall_ms();
        dt_testcluster_spawn(tc, 0, NULL);
        add(joined, event_ms(tc, "node-restarted", after) - at);
    }
    end(tc);
}

static void bench_kill(void)
{
    struct samples noticed = {.count = 0}, joined = {.count = 0};
    for (int cluster = 0; cluster < 5; cluster++)
        kill_ten(&noticed, &joined);
    report(KILL_MS, &noticed);
    print(&figures[KILL_WORST_MS], noticed.values[noticed.count - 1], noticed.count, 0);
    report(JOIN_MS, &joined);
}

static void bench_hang(void)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    struct samples suspect = {.count = 0}, dead = {.count = 0};
    for (int run = 0; run < 5; run++) {
        uint64_t after = dt_testcluster_last_event(tc);
        double at = wall_ms();
        dt_testcluster_kill(tc, 0, SIGSTOP);
        add(&suspect, event_ms(tc, "node-suspect", after) - at);
        add(&dead, event_ms(tc, "node-dead", after) - at);
        dt_testcluster_kill(tc, 0, SIGCONT);
        if (!dt_testcluster_wait_health(tc, 0, OK, PATIENCE_MS))
            dt_test_die("the worker did not come back\n%s", dt_testcluster_logs(tc));
    }
    report(SUSPECT_MS, &suspect);
    report(DEAD_MS, &dead);
    end(tc);
}

static void bench_start(void)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 0, .is_idle = true});
    struct samples ready = {.count = 0};
    int code;
    for (int run = 0; run < 20; run++) {
        double at = mono_us();
        dt_testcluster_start_daemon(tc, -1);
        add(&ready, (mono_us() - at) / 1000);
        dt_testcluster_kill(tc, -1, SIGTERM);
        if (!dt_testcluster_wait_exit(tc, -1, PATIENCE_MS, &code) || code != 0)
            dt_test_die("the controller did not end\n%s", dt_testcluster_logs(tc));
    }
    report(START_MS, &ready);
    end(tc);
}

/* What a tool pays: connect to the admin socket, ask, read the answer. */
static void bench_rtt(void)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1});
    struct samples rtt = {.count = 0};
    for (int run = 0; run < 500; run++) {
        double at = mono_us();
        Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
        if (!status)
            dt_test_die("no answer\n%s", dt_testcluster_logs(tc));
        add(&rtt, mono_us() - at);
        dtorch__v1__cluster_status__free_unpacked(status, NULL);
    }
    report(RTT_US, &rtt);
    end(tc);
}

static const struct {
    const char *keys; /* of the figures that it prints, each with a space around */
    void (*run)(void);
} benches[] = {
    {" controller_start_ms ", bench_start},
    {" kill9_notice_ms kill9_notice_worst_ms worker_start_ms ", bench_kill},
    {" hang_suspect_ms hang_notice_ms ", bench_hang},
    {" admin_rtt_us ", bench_rtt},
    {" status_page_bytes status_document_1000_kb status_page_loop_percent ", bench_page},
    {" heartbeat_cpu_1000 ", bench_cpu_1000},
    {" heartbeat_cpu_4000 conn4000_mb ", bench_4000},
};

static bool is_wanted(const char *keys, int argc, char **argv)
{
    char word[64];
    if (argc <= 2)
        return true;
    for (int i = 2; i < argc; i++) {
        (void)snprintf(word, sizeof word, " %s ", argv[i]);
        if (strstr(keys, word))
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    int ran = 0;
    if (argc < 2)
        dt_test_die("usage: figures LOAD [KEY...]");
    load_program = argv[1];
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (is_wanted(benches[i].keys, argc, argv)) {
            benches[i].run();
            ran++;
        }
    return ran ? 0 : 3;
}
