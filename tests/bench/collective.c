/* Figures of lib/transport between processes of one host: all-reduce of 64 MiB and of 1 KiB with 2
 * and 4 engines, and redistributions with 2, over gloo's time in the same run.
 * usage: collective [KEY...]
 * Peers: `build/venv/bin/python tests/bench/gloo.py`, where PyTorch is; else their figures are 0
 * and what is over them is left out. Where mpicc and mpirun are installed, a line beside
 * (allreduce64_2_mpi_ms ...) tells their time; another one (allreduce64_2_copy_ms ...) what plain
 * copies take. Prints JSON lines; exits 3 when no key is ours. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/memfd.h"
#include "shm/ring.h"
#include "transport/board.h"
#include "transport/transport.h"

#define LARGE    (INT64_C(64) << 20) /* bytes */
#define SMALL    INT64_C(1024)
#define ARENA    ((uint64_t)1 << 30)
#define RUNS_MAX 400
#define WARM     3
#define ENGINES  4u
#define GLOO     "build/venv/bin/python tests/bench/gloo.py"
#define MPI_MAKE "mpicc -O2 -o build/bench-mpi tests/bench/mpi/allreduce.c"
#define MPI_RUN  "mpirun --oversubscribe --allow-run-as-root -np"

typedef struct figure {
    const char *key;
    const char *mpi;    /* the key of MPI's time; NULL: it is not asked */
    const char *copies; /* the key of the time of plain copies; NULL: likewise */
    uint32_t engines;
    char from, to; /* P, R, 0, 1: a shard of that dimension */
    int64_t bytes;
    int runs;
    const char *unit; /* "ms", "us", "ratio": over gloo's time */
    double goal;      /* 0: none */
} figure_t;

static const figure_t figures[] = {
    {"allreduce64_2_ms", "allreduce64_2_mpi_ms", "allreduce64_2_copy_ms", 2, 'P', 'R', LARGE, 15,
     "ms", 5},
    {"allreduce64_4_ms", "allreduce64_4_mpi_ms", "allreduce64_4_copy_ms", 4, 'P', 'R', LARGE, 15,
     "ms", 12},
    {"allreduce1k_2_us", "allreduce1k_2_mpi_us", NULL, 2, 'P', 'R', SMALL, RUNS_MAX, "us", 0},
    {"allreduce1k_4_us", "allreduce1k_4_mpi_us", NULL, 4, 'P', 'R', SMALL, RUNS_MAX, "us", 0},
    {"redistribute_s0_r_ratio", NULL, NULL, 2, '0', 'R', LARGE, 15, "ratio", 0.3},
    {"redistribute_s0_s1_ratio", NULL, NULL, 2, '0', '1', LARGE, 15, "ratio", 0.3},
    {"redistribute_p_s0_ratio", NULL, NULL, 2, 'P', '0', LARGE, 15, "ratio", 0.3},
};

typedef struct world {
    dt_board_t *board;
    int board_fd;
    int arenas[ENGINES], wakes[ENGINES], executors[ENGINES];
} world_t;

static bool is_done;
static dt_exchange_result_t ended;

static void die(const char *what, const dt_error_t *err)
{
    fprintf(stderr, "collective: %s: %s\n", what, err ? err->text : "");
    exit(1);
}

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void on_done(void *arg, const dt_exchange_result_t *result)
{
    (void)arg;
    is_done = true;
    ended = *result;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void world_make(world_t *world, uint32_t engines)
{
    dt_error_t err = {0};
    if (dt_board_create(&world->board_fd, &world->board, &err) != DT_OK)
        die("board", &err);
    for (uint32_t e = 0; e < engines; e++) {
        uint32_t member;
        const dt_board_entry_t entry = {"bench", 0, e, dt_shm_arena_size(ARENA), &e, 1};
        if (dt_memfd_create("bench", dt_shm_arena_size(ARENA), &world->arenas[e], &err) != DT_OK ||
            dt_ring_wake_create(&world->wakes[e], &err) != DT_OK ||
            dt_ring_wake_create(&world->executors[e], &err) != DT_OK ||
            dt_board_add(world->board, &entry, &member, &err) != DT_OK)
            die("world", &err);
    }
}

static dt_transport_t *engine_open(const world_t *world, uint32_t engines, uint32_t self,
                                   dt_shm_arena_t **ret_arena)
{
    dt_error_t err = {0};
    dt_transport_t *transport;
    const dt_transport_options_t options = {.wake = world->wakes[self],
                                            .executor = world->executors[self]};
    if (dt_transport_create(&options, &transport, &err) != DT_OK ||
        dt_shm_arena_open(dup(world->arenas[self]), dt_shm_arena_size(ARENA), (int64_t)ARENA,
                          ret_arena, &err) != DT_OK ||
        dt_transport_open(transport, 1, *ret_arena, &self, 1, &err) != DT_OK ||
        dt_transport_board(transport, 1, world->board_fd, self, &err) != DT_OK)
        die("engine", &err);
    for (uint32_t e = 0; e < engines; e++)
        if (e != self && dt_transport_peer(transport, 1, e, world->arenas[e], dup(world->wakes[e]),
                                           &err) != DT_OK)
            die("peer", &err);
    return transport;
}

static dt_placement_t placement_of(char word)
{
    if (word == 'P')
        return dt_placement_partial(DT_REDUCTION_SUM);
    return word == 'R' ? dt_placement_replicate() : dt_placement_shard((unsigned)(word - '0'));
}

static dt_exchange_plan_t *plan_make(const figure_t *figure)
{
    static const uint64_t vdevs[] = {0, 1, 2, 3};
    const int64_t columns = figure->bytes == LARGE ? 1024 : 32;
    const int64_t sizes[] = {figure->bytes / 4 / columns, columns};
    dt_layout_t from = {.ndim = 1, .placements = {placement_of(figure->from)}};
    dt_layout_t to = {.ndim = 1, .placements = {placement_of(figure->to)}};
    dt_meta_t meta;
    dt_shard_mesh_t mesh;
    dt_exchange_plan_t *plan;
    dt_error_t err = {0};
    if (dt_meta_set(&meta, DT_DTYPE_F32, 2, sizes, NULL, 0, &err) != DT_OK ||
        dt_shard_mesh_init(&mesh, 1, &figure->engines, vdevs, &err) != DT_OK)
        die("mesh", &err);
    const dt_shard_pair_t pair = {&meta, &mesh, &mesh, &from, &to};
    if (dt_exchange_plan_create("bench", &pair, &plan, &err) != DT_OK)
        die("plan", &err);
    return plan;
}

/* One engine's life; the times of the first one go to `ret_ms` (figure->runs). */
static void engine_run(const world_t *world, const figure_t *figure, uint32_t self, double *ret_ms)
{
    dt_shm_arena_t *arena = NULL;
    dt_transport_t *transport = engine_open(world, figure->engines, self, &arena);
    dt_exchange_plan_t *plan = plan_make(figure);
    const dt_exchange_buffer_t buffer = {self, dt_shm_arena_alloc(arena, (size_t)figure->bytes),
                                         dt_shm_arena_alloc(arena, (size_t)figure->bytes)};
    float *source;
    memcpy(&source, &buffer.source, sizeof source);
    for (int64_t i = 0; i < figure->bytes / 4; i++)
        source[i] = (float)(self + 1);
    for (int run = -WARM; run < figure->runs; run++) {
        const dt_exchange_t exchange = {.plan = plan,
                                        .number = (uint64_t)(run + WARM + 1),
                                        .buffers = &buffer,
                                        .buffer_count = 1,
                                        .done = on_done};
        double begin_ms = now_ms();
        is_done = false;
        (void)dt_transport_start(transport, 1, &exchange);
        while (!is_done && !dt_transport_collect(transport)) {
            struct pollfd fd = {.fd = world->executors[self], .events = POLLIN};
            (void)poll(&fd, 1, -1);
            dt_ring_wake_clear(fd.fd);
        }
        if (ended.status != DT_OK)
            die("exchange", &ended.err);
        if (run >= 0)
            ret_ms[run] = now_ms() - begin_ms;
    }
}

/* Median and interquartile range, in ms. */
static double measure(const figure_t *figure, double *ret_spread)
{
    static double ms[RUNS_MAX];
    const int runs = figure->runs;
    world_t world;
    world_make(&world, figure->engines);
    (void)fflush(stdout);
    for (uint32_t e = 1; e < figure->engines; e++)
        if (fork() == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            engine_run(&world, figure, e, ms);
            _exit(0);
        }
    if (fork() == 0) { /* so that each figure begins with a fresh process */
        engine_run(&world, figure, 0, ms);
        qsort(ms, (size_t)runs, sizeof *ms, compare);
        double out[2] = {ms[runs / 2], ms[3 * runs / 4] - ms[runs / 4]};
        memcpy(world.board->slots[DT_BOARD_MEMBERS_MAX - 1].cause, out, sizeof out);
        _exit(0);
    }
    while (wait(NULL) > 0)
        ;
    double out[2];
    memcpy(out, world.board->slots[DT_BOARD_MEMBERS_MAX - 1].cause, sizeof out);
    dt_board_close(world.board);
    (void)close(world.board_fd);
    for (uint32_t e = 0; e < figure->engines; e++) {
        (void)close(world.arenas[e]);
        (void)close(world.wakes[e]);
        (void)close(world.executors[e]);
    }
    *ret_spread = out[1];
    return out[0];
}

/* The number that a command prints; 0: none. */
static double number_of(const char *command)
{
    char line[64] = "";
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return 0;
    (void)!fgets(line, sizeof line, pipe);
    (void)pclose(pipe);
    return strtod(line, NULL);
}

typedef struct copying {
    uint8_t *to;
    const uint8_t *from;
    size_t size;
} copying_t;

static void *copy(void *arg)
{
    const copying_t *c = arg;
    memcpy(c->to, c->from, c->size);
    return NULL;
}

/* What plain copies of as many bytes take, one by each engine's thread and all at once: an
 * all-reduce reads and writes more than that. Median. */
static double copies_ms(const figure_t *figure)
{
    static double ms[RUNS_MAX];
    size_t size = (size_t)figure->bytes, all = 2 * size * figure->engines;
    uint8_t *memory = malloc(all);
    if (!memory)
        die("no memory for plain copies", NULL);
    memset(memory, 1, all);
    for (int run = 0; run < figure->runs; run++) {
        pthread_t threads[ENGINES];
        copying_t copies[ENGINES];
        double begin = now_ms();
        for (uint32_t e = 0; e < figure->engines; e++) {
            copies[e] = (copying_t){memory + 2 * size * e, memory + 2 * size * e + size, size};
            if (pthread_create(&threads[e], NULL, copy, &copies[e]) != 0)
                die("no thread for a plain copy", NULL);
        }
        for (uint32_t e = 0; e < figure->engines; e++)
            (void)pthread_join(threads[e], NULL);
        ms[run] = now_ms() - begin;
    }
    free(memory);
    qsort(ms, (size_t)figure->runs, sizeof *ms, compare);
    return ms[figure->runs / 2];
}

static void line_print(const figure_t *figure, const char *key, double value, double spread,
                       double gloo)
{
    bool is_other = key != figure->key;
    (void)printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"better\":\"lower\","
                 "\"peer\":\"%s\",\"peer_value\":%.4g,"
                 "\"goal\":%.4g,\"runs\":%d,\"spread\":%.4g}\n",
                 key, value, figure->unit,
                 !is_other            ? "gloo by torch.distributed, same run"
                 : key == figure->mpi ? "this is MPI's own, same run"
                                      : "this is of plain copies, same run",
                 gloo, is_other ? 0 : figure->goal, figure->runs, spread);
    (void)fflush(stdout);
}

static void print(const figure_t *figure)
{
    char command[256];
    double spread;
    bool is_ratio = strcmp(figure->unit, "ratio") == 0;
    double scale = strcmp(figure->unit, "us") == 0 ? 1e3 : 1; /* of a millisecond */
    double ms = measure(figure, &spread);
    (void)snprintf(command, sizeof command, "%s %u %c %c %lld %d 2>build/gloo.log", GLOO,
                   figure->engines, figure->from, figure->to, (long long)figure->bytes,
                   figure->runs);
    double gloo = number_of(command);
    if (is_ratio && gloo <= 0) {
        fprintf(stderr, "collective: %s is left out: no PyTorch to compare with\n", figure->key);
        return;
    }
    scale = is_ratio ? 1 / gloo : scale;
    line_print(figure, figure->key, ms * scale, spread * scale, gloo * scale);
    if (figure->copies)
        line_print(figure, figure->copies, copies_ms(figure), 0, gloo * scale);
    if (!figure->mpi || system("which mpicc mpirun >/dev/null 2>&1") != 0 || system(MPI_MAKE) != 0)
        return;
    (void)snprintf(command, sizeof command, "%s %u build/bench-mpi %lld %d 2>build/mpi.log",
                   MPI_RUN, figure->engines, (long long)figure->bytes, figure->runs);
    double mpi = number_of(command);
    if (mpi > 0)
        line_print(figure, figure->mpi, mpi * scale, 0, gloo * scale);
}

int main(int argc, char **argv)
{
    int count = 0;
    for (size_t f = 0; f < sizeof figures / sizeof figures[0]; f++) {
        bool is_wanted = argc == 1;
        for (int i = 1; i < argc; i++)
            is_wanted |= strcmp(argv[i], figures[f].key) == 0;
        if (!is_wanted)
            continue;
        print(&figures[f]);
        count++;
    }
    return count > 0 ? 0 : 3;
}
