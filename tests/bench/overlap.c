/* How much of a data-parallel step's communication is hidden behind what it computes: two engines
 * on two hosts, in one process, each with its executor, its communication thread and its own copy
 * of the stream; a relay between them that delays and slows what goes over the link; products that
 * take a stated time, so that the figure does not depend on the machine.
 * A step: a forward product for each layer, two backward ones, each gradient summed over both as
 * soon as it is there, then all weights are written in the order of the layers.
 * overlap_share: (time with Overlap=no - time with it) over what the moves add with Overlap=no. The
 * weights must be the same bits. usage: overlap [KEY...]; exit status 3: none is one of these */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "device/builtin.h"
#include "lib/execrig.h"
#include "lib/testproc.h"
#include "shard/layout.h"

#define RUNS        9
#define LAYERS      12
#define WIDTH       128 /* of a layer: a gradient has 64 KiB */
#define ROWS        8
#define PRODUCT_NS  INT64_C(5000000)
#define DELAY_NS    INT64_C(500000) /* of the link, each way */
#define BYTES_PER_S 25e6
#define PAUSE_NS    50000
#define MESH_ID     7u
#define ARENA_BYTES ((uint64_t)64 << 20)
#define GOAL        0.7

static int64_t now_ns(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

static void pause_for(int64_t ns)
{
    const struct timespec time = {ns / 1000000000, ns % 1000000000};
    (void)nanosleep(&time, NULL);
}

/* ---- the device: ref, whose products take their time ---- */

static dt_backend_t slow;
static void *device, *product;

static dt_status_t execute(void *on, void *op, const dt_value_t *args, uint32_t arg_count,
                           void **ret_results, uint32_t result_max, uint32_t *ret_count,
                           dt_error_t *err)
{
    int64_t until_ns = now_ns() + PRODUCT_NS;
    dt_status_t status = dt_backend_ref()->op_execute(on, op, args, arg_count, ret_results,
                                                      result_max, ret_count, err);
    for (int64_t left_ns = 0; op == product && (left_ns = until_ns - now_ns()) > 0;)
        pause_for(left_ns);
    return status;
}

static void device_make(void)
{
    const dt_backend_device_options_t options = {
        .struct_size = sizeof options, .memory = dt_exec_backend_memory(), .threads = 1};
    dt_error_t err = {0};
    slow = *dt_backend_ref();
    slow.op_execute = execute;
    if (slow.device_open(NULL, &options, &device, &err) != DT_OK ||
        slow.op_find(device, "aten::mm", &product, &err) != DT_OK)
        dt_test_die("device: %s", err.text);
}

/* ---- the link ---- */

#define LANE_BYTES ((size_t)4 << 20)
#define LANE_PARTS 4096u

/* One direction: bytes in order, each part with the time when it arrives. */
typedef struct lane {
    int from, to;
    uint8_t *bytes; /* (LANE_BYTES) a ring */
    size_t head, tail;
    struct {
        size_t end;
        int64_t due_ns;
    } parts[LANE_PARTS];
    size_t first, last;
    int64_t free_ns; /* when the line has sent what came so far */
} lane_t;

typedef struct relay {
    lane_t lanes[2];
    pthread_t thread;
    atomic_bool is_stopping;
} relay_t;

static void lane_take(lane_t *lane)
{
    size_t at = lane->head % LANE_BYTES;
    size_t room = LANE_BYTES - (lane->head - lane->tail);
    size_t most = LANE_BYTES - at < room ? LANE_BYTES - at : room;
    if (most == 0 || lane->last - lane->first == LANE_PARTS)
        return;
    ssize_t n = recv(lane->from, lane->bytes + at, most < 16384 ? most : 16384, MSG_DONTWAIT);
    if (n <= 0)
        return;
    int64_t begin_ns = lane->free_ns > now_ns() ? lane->free_ns : now_ns();
    lane->free_ns = begin_ns + (int64_t)((double)n / BYTES_PER_S * 1e9);
    lane->head += (size_t)n;
    lane->parts[lane->last % LANE_PARTS].end = lane->head;
    lane->parts[lane->last++ % LANE_PARTS].due_ns = lane->free_ns + DELAY_NS;
}

static void lane_give(lane_t *lane)
{
    while (lane->first < lane->last && lane->parts[lane->first % LANE_PARTS].due_ns <= now_ns()) {
        size_t end = lane->parts[lane->first % LANE_PARTS].end;
        size_t at = lane->tail % LANE_BYTES;
        size_t size = end - lane->tail < LANE_BYTES - at ? end - lane->tail : LANE_BYTES - at;
        ssize_t n = send(lane->to, lane->bytes + at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0)
            return;
        lane->tail += (size_t)n;
        lane->first += lane->tail == end;
    }
}

static void *relay_main(void *arg)
{
    relay_t *relay = arg;
    while (!atomic_load(&relay->is_stopping)) {
        for (int i = 0; i < 2; i++) {
            lane_take(&relay->lanes[i]);
            lane_give(&relay->lanes[i]);
        }
        pause_for(PAUSE_NS);
    }
    return NULL;
}

/* Gives the two ends that the engines use. */
static void relay_start(relay_t *relay, int ret_ends[2])
{
    int pairs[2][2];
    memset(relay, 0, sizeof *relay);
    for (int i = 0; i < 2; i++) {
        relay->lanes[i].bytes = malloc(LANE_BYTES);
        if (!relay->lanes[i].bytes || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[i]))
            dt_test_die("link: %s", strerror(errno));
        ret_ends[i] = pairs[i][0];
    }
    for (int i = 0; i < 2; i++) {
        relay->lanes[i].from = pairs[i][1];
        relay->lanes[i].to = pairs[!i][1];
    }
    if (pthread_create(&relay->thread, NULL, relay_main, relay) != 0)
        dt_test_die("no thread");
}

static void relay_stop(relay_t *relay)
{
    atomic_store(&relay->is_stopping, true);
    (void)pthread_join(relay->thread, NULL);
    for (int i = 0; i < 2; i++) {
        (void)close(relay->lanes[i].from);
        free(relay->lanes[i].bytes);
    }
}

/* ---- the engines ---- */

typedef struct engine {
    dt_execrig_t rig;
    dt_execrig_session_t session;
    dt_board_t *board;
    pthread_t thread;
    atomic_bool is_stopping;
} engine_t;

/* What both are asked: numbers of signatures, of tensors. */
typedef struct pair {
    engine_t engines[2];
    relay_t relay;
    uint32_t forward, backward, move, update, sum;
    uint64_t weights[LAYERS], rows, columns, input, still; /* `still`: in place of a moved one */
} pair_t;

static void *engine_main(void *arg)
{
    engine_t *engine = arg;
    while (!atomic_load(&engine->is_stopping))
        if (!dt_exec_turn(engine->rig.exec))
            pause_for(PAUSE_NS);
    return NULL;
}

/* A board for each host, with both engines. */
static void engine_join(engine_t *engine, uint32_t self, int end)
{
    dt_error_t err = {0};
    int fd;
    if (dt_board_create(&fd, &engine->board, &err) != DT_OK)
        dt_test_die("board: %s", err.text);
    for (uint32_t i = 0; i < 2; i++) {
        const dt_board_entry_t entry = {
            i == 0 ? "a" : "b", i, 0, i == self ? engine->session.channel->arena_bytes : 0, &i, 1};
        uint32_t member;
        if (dt_board_add(engine->board, &entry, &member, &err) != DT_OK)
            dt_test_die("board: %s", err.text);
    }
    if (dt_transport_board(engine->rig.transport, 1, fd, self, &err) != DT_OK ||
        dt_transport_link(engine->rig.transport, 1, !self, end, NULL, &err) != DT_OK)
        dt_test_die("link: %s", err.text);
    (void)close(fd);
}

/* ---- the stream, which both get ---- */

static void put(pair_t *pair, const dt_record_t *record)
{
    for (int i = 0; i < 2; i++)
        dt_execrig_put(&pair->engines[i].session, record);
}

static void flush(pair_t *pair)
{
    for (int i = 0; i < 2; i++)
        dt_execrig_flush(&pair->engines[i].session);
}

static uint64_t call(pair_t *pair, uint32_t signature, const uint64_t *inputs, uint32_t count,
                     bool has_output)
{
    (void)dt_execrig_op(&pair->engines[1].session, signature, inputs, count, has_output);
    return dt_execrig_op(&pair->engines[0].session, signature, inputs, count, has_output);
}

static void drop(pair_t *pair, uint64_t id)
{
    for (int i = 0; i < 2; i++)
        dt_execrig_free(&pair->engines[i].session, id);
}

static dt_signature_tensor_t tensor(unsigned ndim, int64_t rows, int64_t columns,
                                    dt_placement_t placement)
{
    const int64_t sizes[] = {rows, columns};
    dt_signature_tensor_t is = {.layout = {.mesh = MESH_ID, .ndim = 1, .placements = {placement}}};
    dt_error_t err = {0};
    if (dt_meta_set(&is.meta, DT_DTYPE_F32, ndim, sizes, NULL, 0, &err) != DT_OK)
        dt_test_die("%s", err.text);
    return is;
}

static uint32_t define(pair_t *pair, const char *name, const dt_signature_tensor_t *inputs,
                       uint32_t count, dt_signature_tensor_t output)
{
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}};
    const dt_signature_t sig = {.name = name,
                                .arg_count = count,
                                .input_count = count,
                                .output_count = 1,
                                .id_count = output.alias != DT_ALIAS_IN_PLACE,
                                .args = args,
                                .inputs = inputs,
                                .outputs = &output};
    (void)dt_execrig_define(&pair->engines[1].session, &sig);
    return dt_execrig_define(&pair->engines[0].session, &sig);
}

/* aten::zeros, and then aten::add_.Scalar, so that it is not zero. */
static uint64_t filled(pair_t *pair, dt_signature_tensor_t like, double value)
{
    const dt_value_t sizes = {
        .tag = DT_VALUE_INTS, .count = like.meta.ndim, .ints = like.meta.sizes};
    dt_signature_tensor_t written = like;
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_DOUBLE, .real = value}};
    const dt_signature_t zeros = {.name = "aten::zeros",
                                  .arg_count = 1,
                                  .output_count = 1,
                                  .id_count = 1,
                                  .args = &sizes,
                                  .outputs = &like};
    written.alias = DT_ALIAS_IN_PLACE;
    const dt_signature_t add = {.name = "aten::add_.Scalar",
                                .arg_count = 2,
                                .input_count = 1,
                                .output_count = 1,
                                .args = args,
                                .inputs = &like,
                                .outputs = &written};
    (void)dt_execrig_define(&pair->engines[1].session, &zeros);
    uint64_t id = call(pair, dt_execrig_define(&pair->engines[0].session, &zeros), NULL, 0, true);
    (void)dt_execrig_define(&pair->engines[1].session, &add);
    (void)call(pair, dt_execrig_define(&pair->engines[0].session, &add), &id, 1, false);
    return id;
}

static void program_define(pair_t *pair)
{
    static const uint64_t vdevs[] = {0, 1};
    static dt_record_t record;
    dt_signature_tensor_t weight = tensor(2, WIDTH, WIDTH, dt_placement_replicate());
    dt_signature_tensor_t part = tensor(2, WIDTH, WIDTH, dt_placement_partial(DT_REDUCTION_SUM));
    dt_signature_tensor_t input = tensor(2, ROWS, WIDTH, dt_placement_shard(0));
    dt_signature_tensor_t turned = tensor(2, WIDTH, ROWS, dt_placement_shard(1));
    dt_signature_tensor_t one = tensor(0, 0, 0, dt_placement_replicate()), written = weight;
    written.alias = DT_ALIAS_IN_PLACE;
    record = (dt_record_t){.kind = DT_RECORD_DEF_MESH};
    record.mesh = (dt_record_mesh_t){
        .id = MESH_ID, .ndim = 1, .vdev_count = 2, .sizes = {2}, .names = {""}, .vdevs = vdevs};
    put(pair, &record);
    pair->forward = define(pair, "aten::mm", (dt_signature_tensor_t[]){input, weight}, 2, input);
    pair->backward = define(pair, "aten::mm", (dt_signature_tensor_t[]){turned, input}, 2, part);
    pair->move = define(pair, "dtorch::redistribute", &part, 1, weight);
    pair->update =
        define(pair, "aten::add_.Tensor", (dt_signature_tensor_t[]){weight, weight}, 2, written);
    pair->sum = define(pair, "aten::sum", &weight, 1, one);
    for (int i = 0; i < LAYERS; i++)
        pair->weights[i] = filled(pair, weight, 0.01 * (i + 1));
    pair->still = filled(pair, weight, 0.001);
    pair->input = filled(pair, input, 0.1);
    pair->columns = filled(pair, turned, 0.2);
    pair->rows = filled(pair, input, 0.3);
}

static void pair_open(pair_t *pair, bool is_serial)
{
    int ends[2];
    memset(pair, 0, sizeof *pair);
    relay_start(&pair->relay, ends);
    for (uint32_t i = 0; i < 2; i++) {
        engine_t *engine = &pair->engines[i];
        (is_serial ? dt_execrig_init_serial : dt_execrig_init)(&engine->rig, &slow, device, false);
        dt_execrig_open_on(&engine->rig, &engine->session, 1, &i, 1, ARENA_BYTES);
        engine_join(engine, i, ends[i]);
    }
    program_define(pair);
    for (int i = 0; i < 2; i++)
        if (pthread_create(&pair->engines[i].thread, NULL, engine_main, &pair->engines[i]) != 0)
            dt_test_die("no thread");
}

static void pair_close(pair_t *pair)
{
    for (int i = 0; i < 2; i++) {
        atomic_store(&pair->engines[i].is_stopping, true);
        (void)pthread_join(pair->engines[i].thread, NULL);
    }
    for (int i = 0; i < 2; i++) {
        dt_execrig_close(&pair->engines[i].session);
        dt_execrig_fini(&pair->engines[i].rig);
        dt_board_close(pair->engines[i].board);
    }
    relay_stop(&pair->relay);
}

/* ---- a step ---- */

/* Both have executed all that was put. */
static void await(pair_t *pair)
{
    for (int i = 0; i < 2; i++) {
        const dt_execrig_session_t *session = &pair->engines[i].session;
        while (atomic_load(&session->channel->executed) != session->sequence - 1)
            pause_for(PAUSE_NS);
    }
}

/* Returns how long it took. `has_moves` false: the same without communication. */
static double step_ms(pair_t *pair, bool has_moves)
{
    uint64_t gradients[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        drop(pair, call(pair, pair->forward, (uint64_t[]){pair->input, pair->weights[i]}, 2, true));
    for (int i = LAYERS - 1; i >= 0; i--) {
        uint64_t part =
            call(pair, pair->backward, (uint64_t[]){pair->columns, pair->rows}, 2, true);
        gradients[i] = has_moves ? call(pair, pair->move, &part, 1, true) : pair->still;
        drop(pair, part);
        drop(pair, call(pair, pair->forward, (uint64_t[]){pair->rows, pair->weights[i]}, 2, true));
    }
    for (int i = 0; i < LAYERS; i++) {
        (void)call(pair, pair->update, (uint64_t[]){pair->weights[i], gradients[i]}, 2, false);
        if (has_moves)
            drop(pair, gradients[i]);
    }
    int64_t begin_ns = now_ns();
    flush(pair);
    await(pair);
    return (double)(now_ns() - begin_ns) / 1e6;
}

/* The sums of all weights, on the first device. */
static void weights_read(pair_t *pair, float ret_sums[LAYERS])
{
    dt_execrig_session_t *session = &pair->engines[0].session;
    for (int i = 0; i < LAYERS; i++) {
        uint64_t sum = call(pair, pair->sum, &pair->weights[i], 1, true);
        uint64_t future = dt_execrig_fetch(session, sum);
        (void)dt_execrig_fetch(&pair->engines[1].session, sum);
        Dtorch__V1__WorkerSessionUp *up = NULL;
        flush(pair);
        for (bool is_there = false; !is_there;
             dtorch__v1__worker_session_up__free_unpacked(up, NULL)) {
            while (!(up = dt_execrig_next(session)))
                pause_for(PAUSE_NS);
            is_there = up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_RESULT &&
                       up->result->future == future;
            if (is_there && (up->result->error || up->result->value.len != sizeof *ret_sums))
                dt_test_die("a weight: %s", up->result->error ? up->result->error->text : "");
            if (is_there)
                memcpy(&ret_sums[i], up->result->value.data, sizeof *ret_sums);
        }
        drop(pair, sum);
    }
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void bench_share(void)
{
    static pair_t pairs[2]; /* with it, and without */
    double shares[RUNS], on_ms[RUNS], off_ms[RUNS], none_ms[RUNS];
    float sums[2][LAYERS];
    device_make();
    for (int i = 0; i < 2; i++)
        pair_open(&pairs[i], i == 1);
    for (int run = -1; run < RUNS; run++) {
        double on = step_ms(&pairs[0], true), off = step_ms(&pairs[1], true);
        double none = step_ms(&pairs[run & 1], false);
        (void)step_ms(&pairs[!(run & 1)], false); /* the weights stay alike */
        if (run < 0)
            continue;
        on_ms[run] = on, off_ms[run] = off, none_ms[run] = none;
        shares[run] = (off - on) / (off - none);
    }
    for (int i = 0; i < 2; i++) {
        weights_read(&pairs[i], sums[i]);
        pair_close(&pairs[i]);
    }
    slow.device_close(device);
    if (memcmp(sums[0], sums[1], sizeof sums[0]) != 0)
        dt_test_die("the weights have other bits with Overlap=no");
    qsort(shares, RUNS, sizeof *shares, by_value);
    qsort(on_ms, RUNS, sizeof *on_ms, by_value);
    qsort(off_ms, RUNS, sizeof *off_ms, by_value);
    qsort(none_ms, RUNS, sizeof *none_ms, by_value);
    (void)fprintf(stderr, "overlap_share: a step takes %.1f ms, %.1f with Overlap=no, %.1f alone\n",
                  on_ms[RUNS / 2], off_ms[RUNS / 2], none_ms[RUNS / 2]);
    (void)printf("{\"figure\":\"overlap_share\",\"value\":%.4g,\"unit\":\"ratio\",\"better\":"
                 "\"higher\",\"peer\":\"\",\"peer_value\":0,\"goal\":%.4g,\"runs\":%d,"
                 "\"spread\":%.4g}\n",
                 shares[RUNS / 2], GOAL, RUNS, shares[3 * RUNS / 4] - shares[RUNS / 4]);
}

int main(int argc, char **argv)
{
    bool is_wanted = argc == 1;
    for (int i = 1; i < argc; i++)
        is_wanted |= strcmp(argv[i], "overlap_share") == 0;
    if (is_wanted)
        bench_share();
    return is_wanted ? 0 : 3;
}
