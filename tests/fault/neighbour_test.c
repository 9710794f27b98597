/* Sessions beside others that misbehave, on one device: their results are right and they get their
 * share. And what stays bounded when somebody is slow or gone. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/clienttest.h"
#include "lib/multiplier.h"
#include "lib/rawpeer.h"

TestSuite(neighbour, .timeout = 600);

#define MIB          (INT64_C(1) << 20)
#define PATIENCE_MS  DT_TESTCLUSTER_PATIENCE_MS
#define SIDE         64 /* of matrices */
#define SHARE_MIN    40 /* percent */
#define BATCHES      60
#define GROWTH_MAX   (64 * MIB)  /* of a daemon, for one session: its windows, and what moves */
#define PROGRAM_MAX  (256 * MIB) /* copies of uploads that wait, and the library */
#define UPLOAD_BYTES (4 * MIB)

static dt_testcluster_t *start(const char *more)
{
    char conf[512];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\nIsolation=device\n%s",
                   dt_clienttest_devices(), more);
    /* What a test stops for a while is not to be taken for dead. */
    return dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 1, .worker_conf = conf, .controller_conf = "DeadBeats=1000"});
}

static bool is_sanitized(void)
{
    const char *bin = getenv("DT_TEST_BIN");
    return bin && (strstr(bin, "/asan/") || strstr(bin, "/tsan/"));
}

/* ---- shares ---- */

static bool has_begun(dt_testcluster_t *tc, void *arg)
{
    (void)tc;
    return atomic_load(&((dt_multiplier_t *)arg)->done) >= DT_MULTIPLIER_AHEAD;
}

struct pair {
    dt_multiplier_t endless, good;
    int own, other; /* batches since both have begun */
};

/* Look at more batches: whether one has its share of all so far. Both are to have work all the
 * time, but on a busy machine a program may have no processor for longer than its work reaches, and
 * then the other one rightly has the device. That happens to either: what an engine that is fair
 * gives comes out in the long run, and so does what one that is not gives. */
static bool has_share(dt_testcluster_t *tc, void *arg)
{
    struct pair *p = arg;
    int other = atomic_load(&p->endless.done), own = atomic_load(&p->good.done);
    (void)tc;
    while (atomic_load(&p->good.done) - own < BATCHES &&
           atomic_load(&p->endless.done) - other < 4 * BATCHES)
        dt_test_pause_ms(1);
    p->own += atomic_load(&p->good.done) - own;
    p->other += atomic_load(&p->endless.done) - other;
    return 100 * p->own >= SHARE_MIN * (p->own + p->other - DT_MULTIPLIER_AHEAD);
}

Test(neighbour, of_one_that_never_stops_gets_its_share)
{
    dt_testcluster_t *tc = start("");
    struct pair p = {.own = 0};
    dt_multiplier_start(&p.endless, tc, SIDE, 0);
    dt_multiplier_start(&p.good, tc, SIDE, 0);
    cr_assert(dt_testcluster_wait(tc, has_begun, &p.endless, PATIENCE_MS));
    cr_assert(dt_testcluster_wait(tc, has_begun, &p.good, PATIENCE_MS));
    cr_assert(dt_testcluster_wait(tc, has_share, &p, PATIENCE_MS),
              "%d batches beside %d of the other", p.own, p.other);
    atomic_store(&p.endless.should_end, true);
    atomic_store(&p.good.should_end, true);
    dt_multiplier_join(&p.endless);
    dt_multiplier_join(&p.good);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- pests ---- */

struct pest {
    pthread_t thread;
    dt_testcluster_t *tc;
    atomic_bool should_end;
    atomic_int rounds;
};

/* Wants more memory than it may have, again and again. */
static void *take_memory(void *arg)
{
    struct pest *p = arg;
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(p->tc),
                                    .memory_limit_bytes = 8 << 20,
                                    .connect_timeout_ms = PATIENCE_MS};
    static const int64_t large[] = {1024, 1024};
    const float one = 1;
    dt_session_t *session;
    dt_error_t err;
    dt_failure_t failure;
    if (dt_connect(&options, &session, &err) != DT_OK)
        dt_test_die("%s", err.text);
    dt_tensor_t *a = dt_clienttest_f32(session, 2, (int64_t[]){1, 1}, &one);
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_ints(large, 2), dt_arg_bool(false)};
    dt_tensor_t *wide = dt_clienttest_call(session, "aten::expand", args, 3);
    dt_tensor_t *kept = dt_clienttest_call2(session, "aten::add.Tensor", wide, wide);
    while (!atomic_load(&p->should_end)) {
        dt_tensor_t *more[3];
        for (int i = 0; i < 3; i++)
            more[i] = dt_clienttest_call2(session, "aten::add.Tensor", wide, kept);
        if (dt_clienttest_fails(more[2], &failure) != DT_ERR_LIMIT)
            dt_test_die("%s: %s", failure.kind, failure.error.text);
        for (int i = 0; i < 3; i++)
            dt_tensor_free(more[i]);
        atomic_fetch_add(&p->rounds, 1);
    }
    dt_tensor_free(wide);
    dt_tensor_free(kept);
    dt_tensor_free(a);
    (void)dt_disconnect(session, PATIENCE_MS, &failure); /* errors that nobody fetched */
    return NULL;
}

/* Says what nobody understands. */
static void *talk_nonsense(void *arg)
{
    struct pest *p = arg;
    uint8_t junk[1024];
    while (!atomic_load(&p->should_end)) {
        int round = atomic_fetch_add(&p->rounds, 1);
        int fd = dt_rawpeer_connect(dt_testcluster_controller_socket(p->tc));
        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (uint8_t)(i * 31 + (size_t)round * 7);
        if (fd < 0)
            continue;
        if (dt_rawpeer_preface(fd, 0) && dt_rawpeer_open(fd, "/dtorch.v1.Session/Stream"))
            (void)!dt_rawpeer_message(fd, junk, sizeof junk,
                                      round % 2 ? sizeof junk : UINT32_C(0x7fffffff));
        (void)close(fd);
        dt_test_pause_ms(5);
    }
    return NULL;
}

/* Fetches and never looks at what comes. */
static void *never_read(void *arg)
{
    struct pest *p = arg;
    static float data[256 * 1024];
    dt_failure_t failure;
    dt_session_t *session = dt_clienttest_connect(p->tc, NULL, NULL);
    dt_tensor_t *a = dt_clienttest_f32(session, 1, (int64_t[]){256 * 1024}, data);
    while (!atomic_load(&p->should_end) && atomic_load(&p->rounds) < 100) {
        dt_future_t *future;
        dt_error_t err;
        if (dt_fetch(a, &future, &err) != DT_OK)
            dt_test_die("%s", err.text);
        atomic_fetch_add(&p->rounds, 1); /* its future is never freed, before the session */
    }
    while (!atomic_load(&p->should_end))
        dt_test_pause_ms(5);
    dt_tensor_free(a);
    (void)dt_disconnect(session, PATIENCE_MS, &failure);
    return NULL;
}

static bool is_at_work(dt_testcluster_t *tc, void *arg)
{
    (void)tc;
    return atomic_load(&((struct pest *)arg)->rounds) > 0;
}

Test(neighbour, of_those_that_misbehave_gets_right_results)
{
    static void *(*const pests[])(void *) = {take_memory, talk_nonsense, never_read};
    dt_testcluster_t *tc = start("");
    struct pest p[3];
    dt_multiplier_t good;
    for (int i = 0; i < 3; i++) {
        memset(&p[i], 0, sizeof p[i]);
        p[i].tc = tc;
        cr_assert_eq(pthread_create(&p[i].thread, NULL, pests[i], &p[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        cr_assert(dt_testcluster_wait(tc, is_at_work, &p[i], PATIENCE_MS), "pest %d does nothing",
                  i);
    dt_multiplier_start(&good, tc, SIDE, BATCHES);
    dt_multiplier_join(&good);
    cr_assert_eq(atomic_load(&good.done), BATCHES);
    for (int i = 0; i < 3; i++) {
        atomic_store(&p[i].should_end, true);
        cr_assert_eq(pthread_join(p[i].thread, NULL), 0);
    }
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- bounds ---- */

static int64_t rss_bytes(pid_t pid)
{
    char path[64];
    long pages = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%*s %ld", &pages) != 1)
        pages = 0;
    if (file)
        (void)fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* A program in a process of its own: uploads, computes and fetches without end. It is forked before
 * this process has used gRPC. */
struct producer {
    pid_t pid;
    int to, from; /* it is told the address; it says a byte a round */
};

static void produce(const char *address, int out)
{
    float *data = calloc(1, (size_t)UPLOAD_BYTES);
    dt_session_t *session = dt_clienttest_connect(NULL, address, NULL);
    const int64_t count = UPLOAD_BYTES / (int64_t)sizeof *data;
    dt_tensor_t *kept = NULL;
    for (;;) {
        dt_tensor_t *a, *b;
        dt_future_t *future;
        if (dt_tensor_from(session, DT_DTYPE_F32, 1, &count, data, &a, NULL) != DT_OK ||
            dt_call(session, "aten::add.Tensor", (dt_value_t[]){dt_arg_tensor(a), dt_arg_tensor(a)},
                    2, &b, 1, NULL, NULL) != DT_OK ||
            dt_fetch(b, &future, NULL) != DT_OK)
            _exit(1);
        dt_future_free(future); /* nobody wants it */
        dt_tensor_free(a);
        dt_tensor_free(kept);
        kept = b;
        if (write(out, "x", 1) != 1)
            _exit(0);
    }
}

static struct producer producer_fork(void)
{
    int down[2], up[2];
    char address[256] = "";
    cr_assert(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
    struct producer p = {.pid = fork(), .to = down[1], .from = up[0]};
    if (p.pid == 0) {
        (void)close(down[1]);
        if (read(down[0], address, sizeof address - 1) <= 0)
            _exit(2);
        produce(address, up[1]);
    }
    (void)close(down[0]);
    (void)close(up[1]);
    (void)fcntl(p.from, F_SETFL, O_NONBLOCK);
    return p;
}

static void producer_go(const struct producer *p, dt_testcluster_t *tc)
{
    const char *address = dt_testcluster_controller_socket(tc);
    cr_assert_eq(write(p->to, address, strlen(address)), (ssize_t)strlen(address));
}

static void producer_kill(struct producer *p)
{
    int status;
    cr_assert_eq(kill(p->pid, SIGKILL), 0);
    cr_assert_eq(waitpid(p->pid, &status, 0), p->pid);
    (void)close(p->to);
    (void)close(p->from);
}

struct flow {
    int in;
    int64_t produced;
    int64_t last_ms; /* when something came */
};

static bool stands_still(dt_testcluster_t *tc, void *arg)
{
    struct flow *flow = arg;
    char bytes[64];
    ssize_t n = read(flow->in, bytes, sizeof bytes);
    (void)tc;
    if (n > 0) {
        flow->produced += n;
        flow->last_ms = dt_test_now_ms();
    }
    return flow->produced > 0 && dt_test_now_ms() - flow->last_ms > 1500;
}

static bool goes_on(dt_testcluster_t *tc, void *arg)
{
    struct flow *flow = arg;
    int64_t before = flow->produced;
    (void)stands_still(tc, arg);
    return flow->produced > before;
}

static void expect_bounded(dt_testcluster_t *tc, struct producer *p, int stopped, const char *what)
{
    struct flow flow = {.in = p->from, .last_ms = dt_test_now_ms()};
    int64_t before[2] = {dt_testcluster_rss_bytes(tc, DT_TESTCLUSTER_CONTROLLER),
                         dt_testcluster_rss_bytes(tc, 0)};
    producer_go(p, tc);
    cr_assert(dt_testcluster_wait(tc, goes_on, &flow, PATIENCE_MS), "%s", what);
    dt_testcluster_kill(tc, stopped, SIGSTOP);
    cr_assert(dt_testcluster_wait(tc, stands_still, &flow, 4 * PATIENCE_MS),
              "%s stands and the program produces all the same: %lld MiB", what,
              (long long)(flow.produced * UPLOAD_BYTES / MIB));
    int64_t own = rss_bytes(p->pid);
    int64_t controller = dt_testcluster_rss_bytes(tc, DT_TESTCLUSTER_CONTROLLER) - before[0];
    int64_t worker = dt_testcluster_rss_bytes(tc, 0) - before[1];
    dt_testcluster_kill(tc, stopped, SIGCONT);
    cr_assert(dt_testcluster_wait(tc, goes_on, &flow, 2 * PATIENCE_MS), "%s: it goes on", what);
    producer_kill(p);
    (void)printf("%s stands: program %lld, controller %+lld, worker %+lld MiB\n", what,
                 (long long)(own / MIB), (long long)(controller / MIB), (long long)(worker / MIB));
    if (is_sanitized())
        return;
    cr_assert_leq(own, PROGRAM_MAX, "%s: program %lld MiB", what, (long long)(own / MIB));
    cr_assert_leq(controller, GROWTH_MAX, "%s: controller %lld MiB more", what,
                  (long long)(controller / MIB));
    cr_assert_leq(worker, GROWTH_MAX, "%s: worker %lld MiB more", what, (long long)(worker / MIB));
}

Test(neighbour, that_stands_still_lets_no_memory_swell)
{
    struct producer p[2] = {producer_fork(), producer_fork()};
    dt_testcluster_t *tc = start("");
    expect_bounded(tc, &p[0], 0, "the worker");
    expect_bounded(tc, &p[1], DT_TESTCLUSTER_CONTROLLER, "the controller");
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- a program that is killed ---- */

/* Pages of shared memory that a process has: arenas, for an engine. */
static int64_t shared_bytes(pid_t pid)
{
    char path[64], line[128];
    long long kib = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        (void)sscanf(line, "RssShmem: %lld", &kib);
    if (file)
        (void)fclose(file);
    return kib * 1024;
}

static bool engine_is_busy(const Dtorch__V1__Node *node, void *arg)
{
    for (size_t i = 0; i < node->n_engines; i++)
        if (node->engines[i]->state == DTORCH__V1__ENGINE__STATE__BUSY)
            *(pid_t *)arg = (pid_t)node->engines[i]->pid;
    return *(pid_t *)arg != 0;
}

/* What is issued is not executed yet. */
static bool tensors_lie_in_it(dt_testcluster_t *tc, void *arg)
{
    (void)tc;
    return shared_bytes(*(pid_t *)arg) >= UPLOAD_BYTES;
}

static bool memory_is_back(dt_testcluster_t *tc, void *arg)
{
    Dtorch__V1__ListJobsRequest list = DTORCH__V1__LIST_JOBS_REQUEST__INIT;
    uint8_t *data;
    size_t size, jobs;
    dt_error_t err;
    if (dt_testcluster_admin_call(tc, "ListJobs", &list.base, &data, &size, &err) != DT_OK)
        return false;
    Dtorch__V1__JobList *all = dtorch__v1__job_list__unpack(NULL, size, data);
    free(data);
    jobs = all ? all->n_jobs : 1;
    if (all)
        dtorch__v1__job_list__free_unpacked(all, NULL);
    return jobs == 0 && shared_bytes(*(pid_t *)arg) < UPLOAD_BYTES;
}

Test(neighbour, that_is_killed_leaves_no_memory_behind)
{
    struct producer p = producer_fork();
    char conf[256];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", dt_clienttest_devices());
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 1, .controller_conf = "SessionGrace=2s\n", .worker_conf = conf});
    struct flow flow = {.in = p.from};
    pid_t engine = 0;
    producer_go(&p, tc);
    cr_assert(dt_testcluster_wait(tc, goes_on, &flow, PATIENCE_MS));
    cr_assert(dt_testcluster_wait_node(tc, 0, engine_is_busy, &engine, PATIENCE_MS));
    cr_assert(dt_testcluster_wait(tc, tensors_lie_in_it, &engine, PATIENCE_MS),
              "its tensors lie in pages of the engine: %lld bytes",
              (long long)shared_bytes(engine));
    producer_kill(&p);
    cr_assert(dt_testcluster_wait(tc, memory_is_back, &engine, 2 * PATIENCE_MS), "%lld MiB stay",
              (long long)(shared_bytes(engine) / MIB));
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
