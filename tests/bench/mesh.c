/* Figures of sessions on several devices: `make bench`. What a cached operator's placements cost a
 * C program, what an operator costs the controller whatever the number of devices, and a job's
 * start. usage: mesh [KEY...]     no KEY: all. Exit status 3: none of the keys is one of these */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/clienttest.h"

#define RUNS  9
#define ROUND 2000

typedef struct figure {
    const char *key, *unit, *peer;
    double peer_value, goal;
} figure_t;

static double now_ms(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e3 + (double)at.tv_nsec / 1e6;
}

/* Of a clock of processor time. */
static double cpu_ns(clockid_t clock)
{
    struct timespec at;
    if (clock_gettime(clock, &at) != 0)
        dt_test_die("no processor time");
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Returns the median. */
static double report(const figure_t *figure, double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    (void)printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"better\":\"lower\","
                 "\"peer\":\"%s\",\"peer_value\":%.4g,\"goal\":%.4g,\"runs\":%d,\"spread\":%.4g}\n",
                 figure->key, values[count / 2], figure->unit, figure->peer, figure->peer_value,
                 figure->goal, count, values[3 * count / 4] - values[count / 4]);
    (void)fflush(stdout);
    return values[count / 2];
}

/* ---- a session on a mesh ---- */

typedef struct bed {
    dt_testcluster_t *tc;
    dt_session_t *session;
    dt_mesh_t *mesh;
} bed_t;

static void join(bed_t *bed, uint32_t vdevs)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(bed->tc),
                                    .vdev_count = vdevs,
                                    .program = "bench"};
    dt_error_t err;
    if (dt_connect(&options, &bed->session, &err) != DT_OK ||
        dt_mesh_create(bed->session, 1, &vdevs, NULL, NULL, &bed->mesh, &err) != DT_OK)
        dt_test_die("%s", err.text);
}

static void leave(bed_t *bed)
{
    dt_mesh_free(bed->mesh);
    dt_clienttest_disconnect(bed->session);
}

static dt_testcluster_t *cluster(const char *devices)
{
    char conf[128];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nLogLevel=warning\n", devices);
    return dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 1, .worker_conf = conf, .controller_conf = "LogLevel=warning"});
}

static dt_tensor_t *moved(const bed_t *bed, dt_tensor_t *tensor, const dt_placement_t *placement)
{
    dt_tensor_t *made = NULL;
    dt_error_t err;
    if (dt_redistribute(tensor, bed->mesh, placement, &made, &err) != DT_OK)
        dt_test_die("redistribute: %s", err.text);
    return made;
}

/* (vdevs) zeros, one on each device; on one device: not of a mesh. */
static dt_tensor_t *spread(const bed_t *bed, uint32_t vdevs)
{
    const int64_t size = vdevs;
    const dt_placement_t shard = {.kind = DT_PLACEMENT_SHARD};
    const dt_value_t args[] = {dt_arg_ints(&size, 1)};
    dt_tensor_t *zeros = dt_clienttest_call(bed->session, "aten::zeros", args, 1);
    if (vdevs == 1)
        return zeros;
    dt_tensor_t *parts = moved(bed, zeros, &shard);
    dt_tensor_free(zeros);
    return parts;
}

static void adds(const bed_t *bed, dt_tensor_t *tensor, int count)
{
    for (int i = 0; i < count; i++)
        dt_tensor_free(dt_clienttest_call2(bed->session, "aten::add.Tensor", tensor, tensor));
}

static void synchronize(const bed_t *bed)
{
    dt_error_t err;
    if (dt_synchronize(bed->session, DT_TESTCLUSTER_PATIENCE_MS, &err) != DT_OK)
        dt_test_die("synchronize: %s", err.text);
}

/* ---- figures ---- */

/* A cached operator on a mesh over the same one on a device: what looking at placements costs the
 * program's thread. */
static void bench_hit(void)
{
    static const figure_t figure = {"propagate_hit_ns", "ns", "", 0, 100};
    double cost[2], values[RUNS];
    bed_t bed = {.tc = cluster("sim:1")};
    join(&bed, 2);
    dt_tensor_t *plain = spread(&bed, 1), *parts = spread(&bed, 2);
    for (int run = -1; run < RUNS; run++) {
        for (int on_mesh = 0; on_mesh < 2; on_mesh++) {
            synchronize(&bed);
            double begin_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
            adds(&bed, on_mesh ? parts : plain, ROUND);
            cost[on_mesh] = (cpu_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns) / ROUND;
        }
        if (run >= 0)
            values[run] = cost[1] - cost[0];
    }
    (void)report(&figure, values, RUNS);
    dt_tensor_free(plain);
    dt_tensor_free(parts);
    leave(&bed);
    (void)dt_testcluster_stop(bed.tc);
}

/* Until the controller has checked all that was issued and passed it on. */
static void accepted(const bed_t *bed)
{
    dt_session_info_t info = {.struct_size = sizeof info};
    do {
        dt_test_pause_ms(1);
        if (dt_session_info(bed->session, &info) != DT_OK)
            dt_test_die("session");
    } while (info.accepted < info.records);
}

/* Processor time of the controller for an operator: what one engine tells while it goes through all
 * its simulated devices is not waited for. */
static double controller_ns(const bed_t *bed, clockid_t clock, dt_tensor_t *tensor)
{
    const int count = 2 * ROUND;
    synchronize(bed);
    double begin_ns = cpu_ns(clock);
    adds(bed, tensor, count);
    accepted(bed);
    double ns = (cpu_ns(clock) - begin_ns) / count;
    synchronize(bed); /* the next one has the processors to itself */
    return ns;
}

/* Sessions on so many devices take turns, and each turn is compared with that of one device in the
 * same round: the machine changes more from second to second than the devices do. */
static void bench_controller(void)
{
    enum { COUNT = 4, ROUNDS = 31 };
    static const struct {
        uint32_t vdevs;
        figure_t figure;
    } rows[COUNT] = {
        {1, {"controller_op_1_ns", "ns", "", 0, 0}},
        {8, {"controller_op_8_ns", "ns", "", 0, 0}},
        {64, {"controller_op_64_ns", "ns", "", 0, 0}},
        {512, {"controller_op_512_ns", "ns", "", 0, 0}},
    };
    static const figure_t flat = {"controller_op_flat_ratio", "ratio", "one device", 1, 1.2};
    double values[COUNT][ROUNDS], ratios[COUNT][ROUNDS];
    bed_t beds[COUNT] = {{.tc = cluster("sim:1")}};
    dt_tensor_t *tensors[COUNT];
    clockid_t clock;
    size_t worst = 1;
    if (clock_getcpuclockid(dt_testcluster_pid(beds[0].tc, DT_TESTCLUSTER_CONTROLLER), &clock) != 0)
        dt_test_die("no processor time of the controller");
    for (int i = 0; i < COUNT; i++) {
        beds[i].tc = beds[0].tc;
        join(&beds[i], rows[i].vdevs);
        tensors[i] = spread(&beds[i], rows[i].vdevs);
    }
    for (int round = -1; round < ROUNDS; round++)
        for (int i = 0; i < COUNT; i++) {
            double ns = controller_ns(&beds[i], clock, tensors[i]);
            if (round < 0)
                continue;
            values[i][round] = ns;
            ratios[i][round] = ns / values[0][round];
        }
    for (size_t i = 0; i < COUNT; i++) {
        (void)report(&rows[i].figure, values[i], ROUNDS);
        qsort(ratios[i], ROUNDS, sizeof ratios[i][0], by_value);
        if (i > 0 && ratios[i][ROUNDS / 2] > ratios[worst][ROUNDS / 2])
            worst = i;
        dt_tensor_free(tensors[i]);
        leave(&beds[i]);
    }
    (void)report(&flat, ratios[worst], ROUNDS);
    (void)dt_testcluster_stop(beds[0].tc);
}

/* What torchrun takes for the same: two processes, an all-reduce by gloo; 0: not known. */
static double torchrun_ms(void)
{
    static const char program[] =
        "import torch, torch.distributed as d; d.init_process_group('gloo'); "
        "d.all_reduce(torch.ones(2))";
    char path[64], python[1024];
    (void)snprintf(path, sizeof path, "build/bench-torchrun.%d.py", (int)getpid());
    (void)snprintf(python, sizeof python, "%s/../../venv/bin/python", getenv("DT_TEST_BIN"));
    const char *args[] = {"-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", path,
                          NULL};
    const char *env[] = {"OMP_NUM_THREADS=1", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", NULL};
    FILE *file = access(python, X_OK) == 0 ? fopen(path, "w") : NULL;
    if (!file)
        return 0;
    (void)fputs(program, file);
    (void)fclose(file);
    double begin_ms = now_ms();
    dt_testrun_t run = dt_testrun_program(python, args, env);
    double ms = run.code == 0 ? now_ms() - begin_ms : 0;
    dt_testrun_fini(&run);
    (void)unlink(path);
    return ms;
}

/* Connect to a running cluster, sum what two devices have, and have the value. */
static void bench_start(void)
{
    const dt_placement_t partial = {.kind = DT_PLACEMENT_PARTIAL}, replicate = {0};
    figure_t figure = {"job_start_ms", "ms", "torchrun with gloo, same run", torchrun_ms(), 100};
    double values[RUNS];
    char devices[64];
    (void)snprintf(devices, sizeof devices, "%s:2", dt_clienttest_devices());
    bed_t bed = {.tc = cluster(devices)};
    for (int run = -1; run < RUNS; run++) {
        const int64_t size = 2;
        const float data[] = {1, 2};
        float is[2];
        dt_test_pause_ms(500); /* spare engines come up behind those that were taken */
        double begin_ms = now_ms();
        join(&bed, 2);
        dt_tensor_t *x = dt_clienttest_f32(bed.session, 1, &size, data);
        dt_tensor_t *parts = moved(&bed, x, &partial), *sum = moved(&bed, parts, &replicate);
        dt_clienttest_read(sum, is, sizeof is);
        if (run >= 0)
            values[run] = now_ms() - begin_ms;
        if (memcmp(is, data, sizeof is) != 0)
            dt_test_die("another sum");
        dt_tensor_free(x);
        dt_tensor_free(parts);
        dt_tensor_free(sum);
        leave(&bed);
    }
    (void)report(&figure, values, RUNS);
    (void)dt_testcluster_stop(bed.tc);
}

static const struct {
    const char *keys; /* each with a space around */
    void (*run)(void);
} benches[] = {
    {" propagate_hit_ns ", bench_hit},
    {" controller_op_1_ns controller_op_8_ns controller_op_64_ns controller_op_512_ns "
     "controller_op_flat_ratio ",
     bench_controller},
    {" job_start_ms ", bench_start},
};

static bool is_wanted(const char *keys, int argc, char **argv)
{
    char word[64];
    for (int i = 1; i < argc; i++) {
        (void)snprintf(word, sizeof word, " %s ", argv[i]);
        if (strstr(keys, word))
            return true;
    }
    return argc == 1;
}

int main(int argc, char **argv)
{
    int ran = 0;
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        if (is_wanted(benches[i].keys, argc, argv)) {
            benches[i].run();
            ran++;
        }
    return ran ? 0 : 3;
}
