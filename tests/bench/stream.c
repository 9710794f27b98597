/* The figures of the operator stream: `make bench`. libdtorch against real daemons of the release
 * build; one JSON line a figure, as tests/bench/figures.c prints them.
 * usage: stream [KEY...]     no KEY: all. Exit status 3: none of the keys is one of these */
#include <dlfcn.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/bulkpeer.h"
#include "lib/clienttest.h"
#include "lib/tlscluster.h"

#define RUNS_MAX 4000
#define SPARE_MS 1500

struct samples {
    double values[RUNS_MAX];
    int count;
};

static double now_us(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

/* Processor time of this process, all of its threads. */
static double cpu_us(void)
{
    struct rusage use;
    (void)getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

/* The same of another process. */
static double cpu_us_of(pid_t pid)
{
    clockid_t clock;
    struct timespec at;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &at) != 0)
        dt_test_die("no processor time of process %d", (int)pid);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void add(struct samples *samples, double value)
{
    if (samples->count < RUNS_MAX)
        samples->values[samples->count++] = value;
}

struct figure {
    const char *key, *unit, *better, *peer;
    double peer_value, goal;
};

static void report(const struct figure *figure, struct samples *samples)
{
    const double *v = samples->values;
    int n = samples->count;
    qsort(samples->values, (size_t)n, sizeof *v, by_value);
    double goal = isnan(figure->goal) ? 0 : figure->goal; /* JSON has no such number */
    double peer = isnan(figure->peer_value) ? 0 : figure->peer_value;
    (void)printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"better\":\"%s\","
                 "\"peer\":\"%s\",\"peer_value\":%.4g,\"goal\":%.4g,\"runs\":%d,\"spread\":%.4g}\n",
                 figure->key, v[n / 2], figure->unit, figure->better, figure->peer, peer, goal, n,
                 v[3 * n / 4] - v[n / 4]);
    (void)fflush(stdout);
}

/* ---- a session with one operator that is submitted by number ---- */

struct bed {
    dt_testcluster_t *tc;
    dt_session_t *session;
    dt_tensor_t *one; /* float32 (1,) */
    uint32_t sig;     /* aten::add.Tensor(one, one) */
};

static bool has_torch(void)
{
    return strcmp(dt_clienttest_devices(), "ref") != 0;
}

static void define_add(struct bed *bed)
{
    static const float value = 1;
    static const int64_t sizes[] = {1};
    dt_operand_t operands[2] = {0};
    dt_failure_t failure = {0};
    const dt_value_t args[] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_tag(DT_VALUE_TENSOR)};
    dt_operation_t add = {.name = "aten::add.Tensor",
                          .args = args,
                          .arg_count = 2,
                          .inputs = operands,
                          .input_count = 2};
    bed->one = dt_clienttest_f32(bed->session, 1, sizes, &value);
    dt_status_t status =
        dt_describe(DT_DTYPE_F32, 1, sizes, NULL, &operands[0].meta, &failure.error);
    operands[1] = operands[0];
    const dt_output_t output = {.alias = DT_ALIAS_FRESH, .meta = operands[0].meta};
    if (status == DT_OK)
        status = dt_signature_define(bed->session, &add, &output, 1, 0, &bed->sig, &failure.error);
    if (status != DT_OK)
        dt_test_die("define: %s", failure.error.text);
}

static struct bed make_bed(const char *devices, bool use_tcp)
{
    struct bed bed = {0};
    char conf[128], address[64];
    /* A port of its own: the one that is taken by default may be another cluster's, and then the
     * controller relays. */
    (void)snprintf(conf, sizeof conf,
                   "Devices=%s\nEngines=1\nLogLevel=warning\nDataListen=127.0.0.1:0\n", devices);
    bed.tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1,
                                                              .worker_conf = conf,
                                                              .controller_conf = "LogLevel=warning",
                                                              .use_tcp = use_tcp});
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testcluster_port(bed.tc));
    bed.session = dt_clienttest_connect(bed.tc, use_tcp ? address : NULL, NULL);
    define_add(&bed);
    if (strcmp(devices, "ref") != 0) /* the spare that comes up behind ours loads what it needs */
        dt_test_pause_ms(SPARE_MS);
    return bed;
}

static void end_bed(struct bed *bed)
{
    dt_tensor_free(bed->one);
    dt_clienttest_disconnect(bed->session);
    (void)dt_testcluster_stop(bed->tc);
}

static uint64_t submit(struct bed *bed)
{
    uint64_t id = dt_tensor_id(bed->one), out;
    const uint64_t inputs[] = {id, id};
    if (dt_submit(bed->session, bed->sig, inputs, 2, NULL, 0, &out, 1, NULL) != DT_OK)
        dt_test_die("submit");
    return out;
}

static void synchronize(struct bed *bed)
{
    dt_error_t err;
    if (dt_synchronize(bed->session, DT_TESTCLUSTER_PATIENCE_MS, &err) != DT_OK)
        dt_test_die("synchronize: %s", err.text);
}

/* Operators that are submitted and freed without waiting. */
static void run_ops(struct bed *bed, int count)
{
    for (int i = 0; i < count; i++) {
        uint64_t out = submit(bed);
        dt_free_ids(bed->session, &out, 1);
    }
}

/* ---- figures ---- */

struct pipeline_figures {
    const struct figure *ops, *client, *controller, *bytes; /* NULL: not asked for */
};

static void pipeline(const char *devices, int count, const struct pipeline_figures *figures)
{
    struct bed bed = make_bed(devices, false);
    pid_t controller = dt_testcluster_pid(bed.tc, DT_TESTCLUSTER_CONTROLLER);
    struct samples rate = {.count = 0}, cost = rate, size = rate, daemon = rate;
    run_ops(&bed, 1000);
    synchronize(&bed);
    for (int run = 0; run < 5; run++) {
        dt_session_info_t before = {.struct_size = sizeof before}, after = before;
        (void)dt_session_info(bed.session, &before);
        double begin_us = now_us(), begin_cpu_us = cpu_us(), daemon_us = cpu_us_of(controller);
        run_ops(&bed, count);
        double submitted_cpu_us = cpu_us();
        synchronize(&bed);
        add(&rate, count / ((now_us() - begin_us) / 1e6));
        add(&cost, (submitted_cpu_us - begin_cpu_us) * 1e3 / count);
        add(&daemon, (cpu_us_of(controller) - daemon_us) * 1e3 / count);
        (void)dt_session_info(bed.session, &after);
        add(&size, (double)(after.bytes - before.bytes) / count);
    }
    report(figures->ops, &rate);
    if (figures->client)
        report(figures->client, &cost);
    if (figures->controller)
        report(figures->controller, &daemon);
    if (figures->bytes)
        report(figures->bytes, &size);
    end_bed(&bed);
}

static void bench_pipeline_sim(void)
{
    static const struct figure ops = {"pipeline_sim_ops", "op/s", "higher", "Monarch", 2800, 4e6};
    static const struct figure cpu = {"client_op_c_ns", "ns", "lower", "PyTorch eager", 870, 100};
    static const struct figure bytes = {"wire_op_bytes", "B", "lower", "ggml RPC", 304, 16};
    /* The whole daemon, its gRPC and the FREE of each operator included. */
    static const struct figure daemon = {"controller_op_ns", "ns", "lower", "", 0, 150};
    pipeline("sim:1", 2000000, &(struct pipeline_figures){&ops, &cpu, &daemon, &bytes});
}

/* What a program of PyTorch's Python prints; NAN where there is none. */
static double python_number(const char *text)
{
    const char *args[] = {"-c", text, NULL};
    char python[1024];
    (void)snprintf(python, sizeof python, "%s/../../venv/bin/python", getenv("DT_TEST_BIN"));
    if (access(python, X_OK) != 0)
        return NAN;
    dt_testrun_t run = dt_testrun_program(python, args, NULL);
    double number = run.code == 0 ? strtod(run.out, NULL) : NAN;
    dt_testrun_fini(&run);
    return number;
}

static const char add500_py[] = "import time, torch\n"
                                "torch.set_num_threads(1)\n"
                                "x, y = torch.ones(1), torch.ones(1)\n"
                                "best = []\n"
                                "for run in range(60):\n"
                                "    begin = time.perf_counter()\n"
                                "    for _ in range(500): z = x + y\n"
                                "    z.item()\n"
                                "    best.append(time.perf_counter() - begin)\n"
                                "print(sorted(best)[30] * 1e6)\n";

/* Beside it what eager PyTorch does in one process, in the same run. */
static void bench_pipeline_torch(void)
{
    struct figure ops = {"pipeline_torch_ops", "op/s", "higher", "PyTorch eager", 0, 1e6};
    if (!has_torch())
        return;
    ops.peer_value = 500 / python_number(add500_py) * 1e6;
    pipeline(dt_clienttest_devices(), 500000, &(struct pipeline_figures){.ops = &ops});
}

/* aten::index_select(data, 0, index) of one element; where the index is none it fails, there. */
static double select_us(struct bed *bed, int64_t at)
{
    enum { COUNT = 20000 };
    static const int64_t sizes[] = {1};
    dt_tensor_t *index = dt_clienttest_i64(bed->session, &at, 1);
    const uint64_t inputs[] = {dt_tensor_id(bed->one), dt_tensor_id(index)};
    dt_operand_t operands[2] = {0};
    dt_error_t err;
    uint32_t sig;
    const dt_value_t args[] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_int(0),
                               dt_arg_tag(DT_VALUE_TENSOR)};
    dt_operation_t select = {.name = "aten::index_select",
                             .args = args,
                             .arg_count = 3,
                             .inputs = operands,
                             .input_count = 2};
    dt_output_t output = {.alias = DT_ALIAS_FRESH};
    if (dt_describe(DT_DTYPE_F32, 1, sizes, NULL, &operands[0].meta, &err) != DT_OK ||
        dt_describe(DT_DTYPE_I64, 1, sizes, NULL, &operands[1].meta, &err) != DT_OK)
        dt_test_die("describe: %s", err.text);
    output.meta = operands[0].meta;
    if (dt_signature_define(bed->session, &select, &output, 1, 0, &sig, &err) != DT_OK)
        dt_test_die("define: %s", err.text);
    synchronize(bed);
    double begin_us = now_us();
    for (int i = 0; i < COUNT; i++) {
        uint64_t out;
        if (dt_submit(bed->session, sig, inputs, 2, NULL, 0, &out, 1, NULL) != DT_OK)
            dt_test_die("submit");
        dt_free_ids(bed->session, &out, 1);
    }
    synchronize(bed);
    double us = (now_us() - begin_us) / COUNT;
    dt_tensor_free(index);
    return us;
}

/* aten::select.int(data, 0, index) by a number that each operator brings. */
static double pick_us(struct bed *bed, int64_t at)
{
    enum { COUNT = 20000 };
    static const int64_t sizes[] = {1};
    const uint64_t input = dt_tensor_id(bed->one);
    const dt_value_t index = dt_arg_int(at);
    const dt_value_t args[] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_int(0),
                               dt_arg_tag(DT_VALUE_DYNAMIC)};
    dt_operand_t operand = {0};
    dt_operation_t pick = {.name = "aten::select.int",
                           .args = args,
                           .arg_count = 3,
                           .inputs = &operand,
                           .input_count = 1};
    dt_output_t output = {.alias = DT_ALIAS_VIEW};
    dt_error_t err;
    uint32_t sig;
    if (dt_describe(DT_DTYPE_F32, 1, sizes, NULL, &operand.meta, &err) != DT_OK ||
        dt_describe(DT_DTYPE_F32, 0, NULL, NULL, &output.meta, &err) != DT_OK ||
        dt_signature_define(bed->session, &pick, &output, 1, 0, &sig, &err) != DT_OK)
        dt_test_die("define: %s", err.text);
    synchronize(bed);
    double begin_us = now_us();
    for (int i = 0; i < COUNT; i++) {
        uint64_t out;
        if (dt_submit(bed->session, sig, &input, 1, &index, 1, &out, 1, NULL) != DT_OK)
            dt_test_die("submit");
        dt_free_ids(bed->session, &out, 1);
    }
    synchronize(bed);
    return (now_us() - begin_us) / COUNT;
}

static void errors(const char *devices, double (*run_us)(struct bed *bed, int64_t at),
                   bool is_ratio, const struct figure *figure)
{
    struct samples cost = {.count = 0};
    struct bed bed = make_bed(devices, false);
    dt_failure_t failure = {0};
    (void)run_us(&bed, 0);
    for (int run = 0; run < 7; run++) {
        double good_us = run_us(&bed, 0);
        add(&cost, run_us(&bed, 1) / (is_ratio ? good_us : 1));
    }
    report(figure, &cost);
    dt_tensor_free(bed.one);
    (void)dt_disconnect(bed.session, DT_TESTCLUSTER_PATIENCE_MS, &failure); /* says the errors */
    (void)dt_testcluster_stop(bed.tc);
}

static const char error_py[] = "import time, torch\n"
                               "torch.set_num_threads(1)\n"
                               "x = torch.ones(1)\n"
                               "def run(at):\n"
                               "    i = torch.tensor([at])\n"
                               "    begin = time.perf_counter()\n"
                               "    for _ in range(2000):\n"
                               "        try: torch.index_select(x, 0, i)\n"
                               "        except Exception: pass\n"
                               "    return time.perf_counter() - begin\n"
                               "run(0)\n"
                               "print(sorted(run(1) for _ in range(7))[3] / 2000 * 1e6)\n";

/* `error_op_ratio` is ours: a backend that throws nothing. With LibTorch its own throwing is in it,
 * as it is in eager PyTorch's: decision 0013. */
static void bench_error(void)
{
    static const struct figure ours = {"error_op_ratio", "ratio", "lower", "", 0, 3};
    struct figure torch = {"error_torch_op_us", "us", "lower", "PyTorch eager", 0, 0};
    errors("ref", pick_us, true, &ours);
    if (!has_torch())
        return;
    torch.peer_value = torch.goal = python_number(error_py);
    errors(dt_clienttest_devices(), select_us, false, &torch);
}

/* Run on the first (0) or the last (1) of these processors. */
static void run_on(const cpu_set_t *all, int which)
{
    cpu_set_t one;
    int at = which ? CPU_SETSIZE - 1 : 0;
    while (!CPU_ISSET(at, all))
        at += which ? -1 : 1;
    CPU_ZERO(&one);
    CPU_SET(at, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

/* What six wake-ups of a process by another one, on another processor, take here and now: a round
 * trip through controller, agent, engine and back has no fewer, wherever they are. */
static double six_wakes_us(void)
{
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        dt_test_die("no processors");
    enum { TRIPS = 1000 };
    struct samples us = {.count = 0};
    uint64_t one = 1, count;
    int there = eventfd(0, 0), back = eventfd(0, 0);
    pid_t child = fork();
    run_on(&all, child == 0);
    if (child == 0) {
        for (int i = 0; i < TRIPS; i++)
            if (read(there, &count, sizeof count) < 0 || write(back, &one, sizeof one) < 0)
                _exit(1);
        _exit(0);
    }
    for (int i = 0; i < TRIPS; i++) {
        double begin_us = now_us();
        if (write(there, &one, sizeof one) < 0 || read(back, &count, sizeof count) < 0)
            dt_test_die("eventfd");
        add(&us, now_us() - begin_us);
    }
    (void)waitpid(child, NULL, 0);
    (void)sched_setaffinity(0, sizeof all, &all);
    (void)close(there);
    (void)close(back);
    qsort(us.values, TRIPS, sizeof *us.values, by_value);
    return us.values[TRIPS / 2] * 3;
}

static void roundtrip(bool use_tcp, struct figure *figure)
{
    figure->peer_value = six_wakes_us();
    struct bed bed = make_bed(dt_clienttest_devices(), use_tcp);
    struct samples us = {.count = 0};
    for (int run = 0; run < 2200; run++) {
        dt_future_t *future;
        double begin_us = now_us();
        uint64_t out = submit(&bed);
        if (dt_fetch_id(bed.session, out, &future, NULL) != DT_OK ||
            dt_future_wait(future, -1, NULL) != DT_OK)
            dt_test_die("fetch");
        if (run >= 200)
            add(&us, now_us() - begin_us);
        dt_future_free(future);
        dt_free_ids(bed.session, &out, 1);
    }
    report(figure, &us);
    end_bed(&bed);
}

static void bench_roundtrip_unix(void)
{
    struct figure figure = {"op_roundtrip_us", "us", "lower", "6 wake-ups", 0, 130};
    roundtrip(false, &figure);
}

static void bench_roundtrip_tcp(void)
{
    struct figure figure = {"op_roundtrip_tcp_us", "us", "lower", "6 wake-ups", 0, 170};
    roundtrip(true, &figure);
}

static void nothing(void *arg)
{
    (void)arg;
}

/* From the call until an operator has read the last byte. The program lends its memory. */
static dt_tensor_t *upload(struct bed *bed, const float *data, int64_t count)
{
    const dt_upload_t from = {.struct_size = sizeof from,
                              .dtype = DT_DTYPE_F32,
                              .ndim = 1,
                              .sizes = &count,
                              .data = data,
                              .release = nothing};
    dt_tensor_t *tensor = NULL;
    float value;
    if (dt_tensor_upload(bed->session, &from, &tensor, NULL) != DT_OK)
        dt_test_die("upload");
    const dt_value_t args[] = {dt_arg_tensor(tensor), dt_arg_int(0), dt_arg_int(count - 1)};
    dt_tensor_t *last = dt_clienttest_call(bed->session, "aten::select.int", args, 3);
    dt_clienttest_read(last, &value, sizeof value);
    if (memcmp(&value, &data[count - 1], sizeof value) != 0)
        dt_test_die("the last value is another one");
    dt_tensor_free(last);
    return tensor;
}

enum { BULK_BYTES = 64 << 20 };

static void add_gbs(struct samples *samples, double begin_us)
{
    add(samples, BULK_BYTES / (now_us() - begin_us) / 1e3);
}

/* What the machine itself does, between our runs. */
static void bulk_peer(dt_bulkpeer_t *peer, float *data, struct samples *sent, struct samples *got)
{
    double begin_us = now_us();
    dt_bulkpeer_send(peer, data);
    add_gbs(sent, begin_us);
    begin_us = now_us();
    dt_bulkpeer_fetch(peer, data);
    add_gbs(got, begin_us);
}

static double median(struct samples *samples)
{
    qsort(samples->values, (size_t)samples->count, sizeof *samples->values, by_value);
    return samples->values[samples->count / 2];
}

/* 64 MiB there and back. The peer moves the same in the same run; its name and value replace what
 * the figures say. It is stopped here: the end of a cluster looks for processes that are left. */
static void bulk_on(struct bed *bed, bool is_direct, dt_bulkpeer_t *peer, struct figure *up,
                    struct figure *down)
{
    static float data[BULK_BYTES / sizeof(float)];
    struct samples sent = {.count = 0}, got = {.count = 0};
    struct samples peer_sent = {.count = 0}, peer_got = {.count = 0};
    for (int run = -3; run < 21; run++) {
        if (run == 0) /* the first ones touch the pages */
            sent.count = got.count = peer_sent.count = peer_got.count = 0;
        bulk_peer(peer, data, &peer_sent, &peer_got);
        memset(data, run + 10, sizeof data);
        double begin_us = now_us();
        dt_tensor_t *tensor = upload(bed, data, BULK_BYTES / sizeof(float));
        add_gbs(&sent, begin_us);
        begin_us = now_us();
        dt_clienttest_read(tensor, data, sizeof data);
        add_gbs(&got, begin_us);
        dt_tensor_free(tensor);
    }
    up->peer = down->peer = peer->kind == DT_BULKPEER_SOCKET ? "a plain socket" : "plain copies";
    up->peer_value = median(&peer_sent);
    down->peer_value = median(&peer_got);
    dt_session_info_t info = {.struct_size = sizeof info};
    if (is_direct && (dt_session_info(bed->session, &info) != DT_OK ||
                      info.relayed_bytes > info.direct_bytes / 4))
        dt_test_die("the bytes were relayed: %s", info.detour);
    report(up, &sent);
    report(down, &got);
    dt_bulkpeer_stop(peer);
}

/* `way` is a word of DataPath=. */
static void bulk(const char *way, bool use_tcp, dt_bulkpeer_kind_t kind, struct figure *up,
                 struct figure *down)
{
    dt_bulkpeer_t peer;
    dt_bulkpeer_start(&peer, kind, BULK_BYTES);
    (void)setenv("DTORCH_DATA_PATH", way, 1);
    struct bed bed = make_bed(dt_clienttest_devices(), use_tcp);
    (void)unsetenv("DTORCH_DATA_PATH");
    bulk_on(&bed, strcmp(way, "direct") == 0, &peer, up, down);
    end_bed(&bed);
}

/* With an API key and TLS everywhere, straight to the node. */
static void bench_bulk_tls(void)
{
    struct figure up = {"upload_tls_gbs", "GB/s", "higher", "", 0, NAN};
    struct figure down = {"fetch_tls_gbs", "GB/s", "higher", "", 0, NAN};
    dt_bulkpeer_t peer;
    dt_tlscluster_t cluster;
    char lines[128];
    (void)snprintf(lines, sizeof lines, "Devices=%s\nEngines=1\nDataListen=127.0.0.1:0\n",
                   dt_clienttest_devices());
    dt_bulkpeer_start(&peer, DT_BULKPEER_SOCKET, BULK_BYTES);
    dt_tlscluster_start(&cluster, 1, lines);
    struct bed bed = {.tc = cluster.tc, .session = dt_tlscluster_connect(&cluster, "direct", 1)};
    bulk_on(&bed, true, &peer, &up, &down);
    dt_clienttest_disconnect(bed.session);
    dt_tlscluster_stop(&cluster);
}

static void bench_bulk_tcp(void)
{
    struct figure up = {"upload_gbs", "GB/s", "higher", "", 0, 3};
    struct figure down = {"fetch_gbs", "GB/s", "higher", "", 0, 3};
    bulk("direct", true, DT_BULKPEER_SOCKET, &up, &down);
}

static void bench_bulk_local(void)
{
    struct figure up = {"upload_local_gbs", "GB/s", "higher", "", 0, 8};
    struct figure down = {"fetch_local_gbs", "GB/s", "higher", "", 0, 8};
    bulk("auto", false, DT_BULKPEER_MEMORY, &up, &down);
}

static void bench_bulk_relay(void)
{
    struct figure up = {"upload_relay_gbs", "GB/s", "higher", "", 0, 1};
    struct figure down = {"fetch_relay_gbs", "GB/s", "higher", "", 0, 1};
    bulk("relay", true, DT_BULKPEER_SOCKET, &up, &down);
}

static void bench_add500(void)
{
    struct figure figure = {"add500_c_ratio", "ratio", "lower", "reference", 1.37, 0.6};
    double eager_us = has_torch() ? python_number(add500_py) : NAN;
    struct samples ratio = {.count = 0};
    if (isnan(eager_us))
        return;
    struct bed bed = make_bed(dt_clienttest_devices(), false);
    const dt_value_t args[] = {dt_arg_tensor(bed.one), dt_arg_tensor(bed.one)};
    for (int run = 0; run < 60; run++) {
        double begin_us = now_us();
        dt_tensor_t *sum = NULL;
        float value;
        for (int i = 0; i < 500; i++) {
            dt_tensor_free(sum);
            sum = dt_clienttest_call(bed.session, "aten::add.Tensor", args, 2);
        }
        dt_clienttest_read(sum, &value, sizeof value);
        add(&ratio, (now_us() - begin_us) / eager_us);
        dt_tensor_free(sum);
    }
    report(&figure, &ratio);
    end_bed(&bed);
}

/* From dt_connect() to the first result. */
static double private_ms(const char *devices)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .flags = DT_CONNECT_PRIVATE,
                                    .bin_dir = getenv("DT_TEST_BIN"),
                                    .private_devices = devices};
    dt_session_t *session;
    dt_error_t err;
    const float value = 1;
    float is;
    double begin_us = now_us();
    if (dt_connect(&options, &session, &err) != DT_OK)
        dt_test_die("connect: %s", err.text);
    dt_tensor_t *x = dt_clienttest_f32(session, 0, NULL, &value);
    dt_tensor_t *y = dt_clienttest_call2(session, "aten::add.Tensor", x, x);
    dt_clienttest_read(y, &is, sizeof is);
    double ms = (now_us() - begin_us) / 1e3;
    dt_tensor_free(x);
    dt_tensor_free(y);
    dt_clienttest_disconnect(session);
    return ms;
}

/* What a process needs to load the backend's library, and nothing else. */
static double load_ms(void)
{
    const char *args[] = {"--load", NULL};
    char bin[1024];
    const char *env[] = {bin, NULL};
    (void)snprintf(bin, sizeof bin, "DT_TEST_BIN=%s", getenv("DT_TEST_BIN"));
    dt_testrun_t run = dt_testrun_program("/proc/self/exe", args, env); /* this program */
    if (run.code != 0)
        dt_test_die("the backend cannot be loaded");
    double ms = strtod(run.out, NULL);
    dt_testrun_fini(&run);
    return ms;
}

static int load(void)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/../lib/dtorch/backends/dtorch-backend-torch.so",
                   getenv("DT_TEST_BIN"));
    double begin_us = now_us();
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL))
        return 1;
    (void)printf("%.3f\n", (now_us() - begin_us) / 1e3);
    return 0;
}

/* `private_start_ms` with a backend that loads nothing; with torch its load time is stated. */
static void bench_private(void)
{
    static const struct figure plain = {"private_start_ms", "ms", "lower", "", 0, 500};
    static const struct figure loading = {"backend_load_ms", "ms", "lower", "", 0, 0};
    struct figure torch = {"private_torch_start_ms", "ms", "lower", "backend_load_ms", 0, 0};
    struct samples ref = {.count = 0}, load_of = ref, with_torch = ref;
    for (int run = 0; run < 7; run++) {
        add(&ref, private_ms("ref"));
        if (!has_torch())
            continue;
        add(&load_of, load_ms());
        add(&with_torch, private_ms(dt_clienttest_devices()));
    }
    report(&plain, &ref);
    if (!has_torch())
        return;
    report(&loading, &load_of); /* sorts */
    torch.peer_value = load_of.values[load_of.count / 2];
    torch.goal = 500 + torch.peer_value;
    report(&torch, &with_torch);
}

static const struct {
    const char *keys; /* each with a space around */
    void (*run)(void);
} benches[] = {
    {" client_op_c_ns controller_op_ns wire_op_bytes pipeline_sim_ops ", bench_pipeline_sim},
    {" pipeline_torch_ops ", bench_pipeline_torch},
    {" op_roundtrip_us ", bench_roundtrip_unix},
    {" op_roundtrip_tcp_us ", bench_roundtrip_tcp},
    {" upload_gbs fetch_gbs ", bench_bulk_tcp},
    {" upload_tls_gbs fetch_tls_gbs ", bench_bulk_tls},
    {" upload_local_gbs fetch_local_gbs ", bench_bulk_local},
    {" upload_relay_gbs fetch_relay_gbs ", bench_bulk_relay},
    {" add500_c_ratio ", bench_add500},
    {" error_op_ratio error_torch_op_us ", bench_error},
    {" private_start_ms private_torch_start_ms backend_load_ms ", bench_private},
};

static bool is_wanted(const char *keys, int argc, char **argv)
{
    char word[64];
    if (argc <= 1)
        return true;
    for (int i = 1; i < argc; i++) {
        (void)snprintf(word, sizeof word, " %s ", argv[i]);
        if (strstr(keys, word))
            return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    int ran = 0;
    if (argc > 1 && strcmp(argv[1], "--load") == 0)
        return load();
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (is_wanted(benches[i].keys, argc, argv)) {
            benches[i].run();
            ran++;
        }
    return ran ? 0 : 3;
}
