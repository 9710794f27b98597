/* Plays N workers against a real controller: a gRPC stream and a connection each, hello, inventory,
 * beats at the interval that Welcome names, spread over it. All on one thread.
 * usage: load ADDRESS WORKERS SECONDS CONTROLLER_PID
 * Prints one line when all are welcomed and SECONDS have passed:
 *   workers=N cpu_cores=0.123 rss_bytes=456 late_ms=7      (cpu and memory are the controller's) */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "dtorch/v1/worker.pb-c.h"
#include "loop/loop.h"
#include "rpc/rpc.h"

#define WORKER_MAX  8192
#define DIAL_BURST  64 /* dials that wait for their Welcome at once */
#define MS_NS       INT64_C(1000000)
#define SECOND_NS   INT64_C(1000000000)
#define MESSAGE_MAX 4096
#define RACK_NODES  40
#define GIVE_UP_NS  (300 * SECOND_NS) /* only what fails uses it up */

struct load;

struct worker {
    struct load *load;
    int number;
    dt_rpc_stream_t *stream; /* NULL: not dialled, or ended */
    dt_timer_t *timer;
    int64_t interval_ns; /* 0 before Welcome */
    uint64_t beats;
};

struct load {
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    const char *address;
    struct worker *workers;
    int count, dialled, welcomed, lost;
    int64_t begin_ns, measure_ns, seconds;
    int64_t late_ns; /* how late our own timers were at most: this generator's health */
    long controller_pid, cpu_ticks;
    dt_timer_t *phase;
    bool is_over;
};

static void send_up(struct worker *worker, const Dtorch__V1__WorkerUp *up)
{
    uint8_t packed[MESSAGE_MAX];
    size_t size = dtorch__v1__worker_up__get_packed_size(up);
    if (size > sizeof packed || !worker->stream)
        return;
    (void)dtorch__v1__worker_up__pack(up, packed);
    if (dt_rpc_stream_send(worker->stream, packed, size) != DT_OK)
        (void)fprintf(stderr, "worker %d cannot send\n", worker->number);
}

static void send_hello(struct worker *worker)
{
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    Dtorch__V1__WorkerHello hello = DTORCH__V1__WORKER_HELLO__INIT;
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    uint8_t id[16] = {0xbe, 0x9c, (uint8_t)(worker->number >> 8), (uint8_t)worker->number};
    char name[32], build[] = "load", boot[] = "01234567-0123-0123-0123-012345678901";
    char hash[] = "0123456789abcdef";
    (void)snprintf(name, sizeof name, "load%05d", worker->number);
    version.major = 1;
    hello.version = &version;
    hello.build = build;
    hello.node_id = (ProtobufCBinaryData){.len = sizeof id, .data = id};
    hello.node_name = name;
    hello.incarnation = (uint64_t)worker->load->begin_ns + (uint64_t)worker->number + 1;
    hello.boot_id = boot;
    hello.config_hash = hash;
    hello.pid = (uint32_t)getpid();
    hello.wall_ms = (int64_t)time(NULL) * 1000;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_HELLO;
    up.hello = &hello;
    send_up(worker, &up);
}

/* Eight devices, as a GPU node has. */
static void send_inventory(struct worker *worker)
{
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    Dtorch__V1__Inventory inventory = DTORCH__V1__INVENTORY__INIT;
    Dtorch__V1__NodeTopology topology = DTORCH__V1__NODE_TOPOLOGY__INIT;
    Dtorch__V1__Device devices[8], *pointers[8];
    char uuids[8][32], rack[16], backend[] = "sim", kind[] = "sim", name[] = "Simulated 80G";
    for (int i = 0; i < 8; i++) {
        dtorch__v1__device__init(&devices[i]);
        (void)snprintf(uuids[i], sizeof uuids[i], "sim-%d-%d", worker->number, i);
        devices[i].index = (uint32_t)i;
        devices[i].backend = backend;
        devices[i].kind = kind;
        devices[i].name = name;
        devices[i].uuid = uuids[i];
        devices[i].memory_bytes = UINT64_C(80) << 30;
        devices[i].numa_node = -1;
        devices[i].utilization_percent = (uint32_t)((worker->number * 37 + i * 11) % 101);
        devices[i].memory_used_bytes = (uint64_t)((worker->number * 13 + i * 7) % 80) << 30;
        devices[i].health = DTORCH__V1__DEVICE__HEALTH__OK;
        pointers[i] = &devices[i];
    }
    inventory.n_devices = 8;
    inventory.devices = pointers;
    (void)snprintf(rack, sizeof rack, "r%02d", worker->number / RACK_NODES);
    topology.rack = rack;
    inventory.topology = &topology;
    inventory.memory_bytes = UINT64_C(1) << 40;
    inventory.cpu_count = 128;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_INVENTORY;
    up.inventory = &inventory;
    send_up(worker, &up);
}

static void on_beat(void *arg, int64_t deadline_ns)
{
    struct worker *worker = arg;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    Dtorch__V1__Beat beat = DTORCH__V1__BEAT__INIT;
    int64_t late_ns = dt_loop_now_ns() - deadline_ns;
    if (late_ns > worker->load->late_ns)
        worker->load->late_ns = late_ns;
    beat.sequence = ++worker->beats;
    beat.progress = worker->beats;
    beat.late_ns = late_ns > 0 ? late_ns : 0;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_BEAT;
    up.beat = &beat;
    send_up(worker, &up);
    dt_timer_arm(worker->timer, deadline_ns + worker->interval_ns);
}

static void dial_next(struct load *load);

static void on_open(dt_rpc_stream_t *stream)
{
    send_hello(dt_rpc_stream_arg(stream));
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    struct worker *worker = dt_rpc_stream_arg(stream);
    struct load *load = worker->load;
    Dtorch__V1__WorkerDown *down;
    if (worker->interval_ns)
        return; /* beats and intents need no answer */
    down = dtorch__v1__worker_down__unpack(NULL, size, data);
    if (down && down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_WELCOME) {
        worker->interval_ns = (int64_t)down->welcome->heartbeat_ms * MS_NS;
        send_inventory(worker);
        /* Spread over the interval, as the daemons spread by identity. */
        dt_timer_arm(worker->timer, dt_loop_now_ns() + worker->interval_ns * worker->number /
                                                           load->count % worker->interval_ns);
        load->welcomed++;
    } else if (down && down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_REFUSAL) {
        (void)fprintf(stderr, "worker %d refused: %s\n", worker->number, down->refusal->text);
    }
    if (down)
        dtorch__v1__worker_down__free_unpacked(down, NULL);
    dial_next(load);
}

static void finish_if_closed(struct load *load)
{
    for (int i = 0; i < load->count; i++)
        if (load->workers[i].stream)
            return;
    dt_rpc_stop(load->rpc);
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    struct worker *worker = dt_rpc_stream_arg(stream);
    struct load *load = worker->load;
    worker->stream = NULL;
    dt_timer_disarm(worker->timer);
    if (!load->is_over) {
        load->lost++;
        (void)fprintf(stderr, "worker %d lost its stream: %s\n", worker->number, why->text);
        return;
    }
    finish_if_closed(load);
}

static const dt_rpc_stream_ops_t stream_ops = {
    .open = on_open, .message = on_message, .closed = on_closed};

static void dial_next(struct load *load)
{
    while (load->dialled < load->count && load->dialled - load->welcomed < DIAL_BURST) {
        struct worker *worker = &load->workers[load->dialled];
        dt_rpc_dial_t dial = {.address = load->address,
                              .method = "/dtorch.v1.Worker/Stream",
                              .ops = &stream_ops,
                              .arg = worker,
                              .open_ms = 30000};
        dt_error_t err = {0};
        load->dialled++;
        if (dt_rpc_dial(load->rpc, &dial, &worker->stream, &err) != DT_OK) {
            (void)fprintf(stderr, "worker %d cannot dial: %s\n", worker->number, err.text);
            load->lost++;
        }
    }
}

static long controller_ticks(long pid)
{
    char path[64], text[1024];
    unsigned long user = 0, system_time = 0;
    const char *rest;
    FILE *file;
    size_t len;
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    file = fopen(path, "r");
    if (!file)
        return 0;
    len = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[len] = '\0';
    rest = strrchr(text, ')');
    if (rest)
        (void)sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                     &system_time);
    return (long)(user + system_time);
}

static long long controller_rss(long pid)
{
    char path[64];
    long long total = 0, resident = 0;
    FILE *file;
    (void)snprintf(path, sizeof path, "/proc/%ld/statm", pid);
    file = fopen(path, "r");
    if (file && fscanf(file, "%lld %lld", &total, &resident) != 2)
        resident = 0;
    if (file)
        (void)fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

static void end_all(struct load *load)
{
    load->is_over = true;
    for (int i = 0; i < load->count; i++)
        if (load->workers[i].stream)
            dt_rpc_stream_cancel(load->workers[i].stream, DT_ERR_STOPPED,
                                 "the measurement is over");
    finish_if_closed(load);
}

/* Once a second: is everyone there; has it been measured for long enough. */
static void on_phase(void *arg, int64_t deadline_ns)
{
    struct load *load = arg;
    int64_t now_ns = dt_loop_now_ns();
    double cores;
    if (load->lost || (!load->measure_ns && now_ns - load->begin_ns > GIVE_UP_NS)) {
        (void)fprintf(stderr, "%d welcomed of %d, %d lost\n", load->welcomed, load->count,
                      load->lost);
        end_all(load);
        return;
    }
    if (load->measure_ns && now_ns - load->measure_ns >= load->seconds * SECOND_NS) {
        cores = (double)(controller_ticks(load->controller_pid) - load->cpu_ticks) /
                (double)sysconf(_SC_CLK_TCK) / ((double)(now_ns - load->measure_ns) / 1e9);
        (void)printf("workers=%d cpu_cores=%.4f rss_bytes=%lld late_ms=%" PRId64 "\n",
                     load->welcomed, cores, controller_rss(load->controller_pid),
                     load->late_ns / MS_NS);
        end_all(load);
        return;
    }
    if (!load->measure_ns && load->welcomed == load->count) {
        load->measure_ns = now_ns;
        load->cpu_ticks = controller_ticks(load->controller_pid);
        load->late_ns = 0;
    }
    dt_timer_arm(load->phase, deadline_ns + SECOND_NS);
}

static bool setup(struct load *load)
{
    dt_error_t err = {0};
    load->workers = calloc((size_t)load->count, sizeof *load->workers);
    if (!load->workers || dt_loop_create(&load->loop, &err) != DT_OK ||
        dt_rpc_create(load->loop, NULL, &load->rpc, &err) != DT_OK ||
        dt_timer_create(load->loop, on_phase, load, &load->phase, &err) != DT_OK) {
        (void)fprintf(stderr, "load: %s\n", err.text);
        return false;
    }
    load->begin_ns = dt_loop_now_ns();
    for (int i = 0; i < load->count; i++) {
        load->workers[i].load = load;
        load->workers[i].number = i;
        if (dt_timer_create(load->loop, on_beat, &load->workers[i], &load->workers[i].timer,
                            &err) != DT_OK)
            return false;
    }
    dt_timer_arm(load->phase, load->begin_ns + SECOND_NS);
    dial_next(load);
    return true;
}

int main(int argc, char **argv)
{
    static struct load load;
    bool ok;
    if (argc != 5) {
        (void)fprintf(stderr, "usage: load ADDRESS WORKERS SECONDS CONTROLLER_PID\n");
        return 64;
    }
    load.address = argv[1];
    load.count = (int)strtol(argv[2], NULL, 10);
    load.seconds = strtol(argv[3], NULL, 10);
    load.controller_pid = strtol(argv[4], NULL, 10);
    if (load.count < 1 || load.count > WORKER_MAX || !setup(&load))
        return 64;
    dt_rpc_run(load.rpc);
    ok = load.measure_ns != 0 && load.lost == 0;
    for (int i = 0; i < load.count; i++)
        dt_timer_free(load.workers[i].timer);
    dt_timer_free(load.phase);
    (void)dt_rpc_free(load.rpc);
    (void)dt_loop_free(load.loop);
    free(load.workers);
    return ok ? 0 : 1;
}
