#include "overlap.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "core/moves.h"

#define PROGRAMS 4 /* of one seed */
#define VDEVS    8
#define MESHES   6
#define RECORDS  300
#define TENSORS  (RECORDS + 1)
#define SLOWEST  16u
#define WORK_NS  UINT64_C(1000)

typedef enum kind { MAKE, ADD, WRITE, VIEW, FREE, MOVE, FETCH } kind_t;

/* Of the one stream that all engines get. */
typedef struct record {
    kind_t kind;
    uint32_t mesh, to; /* of inputs; MOVE: of the output */
    uint32_t inputs[2];
    uint32_t output;
    uint64_t work_ns; /* of an engine of speed 1 */
} record_t;

/* A tensor on one device. Views share the storage of another tensor. */
typedef struct cell {
    uint64_t value;
    uint32_t refs; /* tensors and queued moves; as long as it lives its value is kept */
    dt_move_mark_t mark;
} cell_t;

typedef struct queued {
    dt_move_t move;
    const record_t *record;
    uint64_t read[VDEVS];              /* what it reads, by vdev, as its record found it */
    uint32_t from[VDEVS], into[VDEVS]; /* storages, by vdev */
    dt_move_mark_t *marks[2 * VDEVS];
} queued_t;

typedef struct engine {
    uint32_t vdevs;    /* bit v: it runs vdev v */
    uint64_t slowness; /* 1..SLOWEST */
    uint32_t next;     /* record */
    uint64_t busy_ns;  /* until then it computes */
    dt_moves_t moves;
    uint32_t storage_of[TENSORS];
    cell_t cells[TENSORS][VDEVS]; /* by storage */
    queued_t *running;            /* NULL: no move */
    uint64_t acknowledged;
    uint64_t last_begun; /* move; from 1 */
} engine_t;

/* A move between its members. */
typedef struct meeting {
    uint32_t begun;  /* bit v: the engine of vdev v has begun it */
    uint64_t end_ns; /* of all members; 0: not all have come */
    uint64_t parts[VDEVS];
} meeting_t;

typedef struct world {
    uint64_t random, now_ns, steps;
    uint32_t queue_max; /* random, so that full queues are seen too */
    bool is_traced, has_failed;
    char *failure;
    uint32_t mesh_vdevs[MESHES]; /* bits */
    record_t records[RECORDS];
    uint32_t engine_count;
    engine_t engines[VDEVS];
    meeting_t meetings[RECORDS];
    /* The program run record by record, on all devices of its meshes and on others. */
    uint32_t storage_of[TENSORS], mesh_of[TENSORS];
    bool is_live[TENSORS];
    uint64_t truth[TENSORS][VDEVS];
    uint64_t expected[RECORDS][VDEVS]; /* what a record makes, writes or fetches */
} world_t;

static uint64_t draw(world_t *w, uint64_t bound)
{
    w->random = dt_hash_u64(w->random + UINT64_C(0x9e3779b97f4a7c15));
    return w->random % bound;
}

static uint64_t mix(uint64_t kind, uint64_t a, uint64_t b)
{
    return dt_hash_u64(kind + 3 * dt_hash_u64(a + 5 * dt_hash_u64(b)));
}

static void fail(world_t *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(world_t *w, const char *fmt, ...)
{
    char text[300];
    va_list args;
    if (w->has_failed)
        return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    w->has_failed = true;
    (void)snprintf(w->failure, 512, "overlap: %s at %" PRIu64 " ns", text, w->now_ns);
}

/* ---- the program, and what it means ---- */

/* What the parts on one mesh give on each device of another: all of them, in order. */
static uint64_t moved(uint32_t from, const uint64_t parts[VDEVS], uint32_t vdev)
{
    uint64_t value = vdev;
    for (uint32_t v = 0; v < VDEVS; v++)
        if (from >> v & 1)
            value = mix(7, value, parts[v]);
    return value;
}

static bool pick(world_t *w, uint32_t mesh, uint32_t count, uint32_t *ret_tensor)
{
    uint32_t from = (uint32_t)draw(w, count + 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = (from + i) % count;
        if (w->is_live[id] && w->mesh_of[id] == mesh)
            return *ret_tensor = id, true;
    }
    return false;
}

static uint64_t result_of(const world_t *w, const record_t *r, const uint64_t *parts, uint32_t v)
{
    uint32_t at = (uint32_t)(r - w->records);
    switch (r->kind) {
    case MAKE:
        return mix(1, at, v);
    case ADD:
        return mix(2, parts[v], w->truth[w->storage_of[r->inputs[1]]][v]);
    case WRITE:
        return mix(3, parts[v], at);
    case MOVE:
        return moved(w->mesh_vdevs[r->mesh], parts, v);
    default:
        return parts[v];
    }
}

static void run_truly(world_t *w, uint32_t at)
{
    const record_t *r = &w->records[at];
    uint64_t parts[VDEVS];
    uint32_t a = w->storage_of[r->inputs[0]];
    memcpy(parts, w->truth[a], sizeof parts);
    w->storage_of[r->output] = r->kind == VIEW ? a : r->output;
    for (uint32_t v = 0; v < VDEVS; v++) {
        uint64_t result = w->expected[at][v] = result_of(w, r, parts, v);
        w->truth[r->kind == WRITE ? a : w->storage_of[r->output]][v] = result;
    }
    w->mesh_of[r->output] = r->to;
    w->is_live[r->output] = r->kind == MAKE || r->kind == ADD || r->kind == VIEW || r->kind == MOVE;
    if (r->kind == FREE)
        w->is_live[r->inputs[0]] = false;
}

static kind_t kind_of(uint64_t what)
{
    return what < 30   ? ADD
           : what < 42 ? WRITE
           : what < 50 ? VIEW
           : what < 62 ? FREE
           : what < 92 ? MOVE
           : what < 95 ? FETCH
                       : MAKE;
}

/* Record `at` makes tensor `at + 1`, if any; 0 is none. */
static void make_record(world_t *w, uint32_t at)
{
    record_t *r = &w->records[at];
    *r = (record_t){.kind = kind_of(draw(w, 100)), .mesh = (uint32_t)draw(w, MESHES)};
    r->output = at + 1;
    r->to = r->kind == MOVE ? (uint32_t)draw(w, MESHES) : r->mesh;
    r->work_ns = 1 + draw(w, draw(w, 10) ? WORK_NS : 20 * WORK_NS);
    if (!pick(w, r->mesh, at + 1, &r->inputs[0]) || !pick(w, r->mesh, at + 1, &r->inputs[1])) {
        r->kind = MAKE;
        r->to = r->mesh;
    }
    run_truly(w, at);
}

static void make_world(world_t *w)
{
    for (uint32_t m = 0; m < MESHES; m++)
        w->mesh_vdevs[m] = 1 + (uint32_t)draw(w, (1U << VDEVS) - 1);
    for (uint32_t i = 0; i < RECORDS; i++)
        make_record(w, i);
    w->queue_max = 1 + (uint32_t)draw(w, draw(w, 2) ? 4 : DT_MOVES_MAX);
    w->engine_count = 1 + (uint32_t)draw(w, VDEVS);
    for (uint32_t v = 0; v < VDEVS; v++)
        w->engines[v < w->engine_count ? v : draw(w, w->engine_count)].vdevs |= 1U << v;
    for (uint32_t e = 0; e < w->engine_count; e++) {
        dt_moves_init(&w->engines[e].moves);
        w->engines[e].slowness = 1 + draw(w, SLOWEST);
    }
    w->engines[draw(w, w->engine_count)].slowness = SLOWEST;
}

/* ---- storages of an engine ---- */

static void unref(engine_t *e, uint32_t storage, uint32_t v)
{
    cell_t *cell = &e->cells[storage][v];
    if (--cell->refs == 0)
        cell->value = UINT64_C(0xdead); /* whoever reads it now reads nonsense */
}

static void put(engine_t *e, uint32_t id, uint32_t storage, uint32_t v, uint64_t value)
{
    e->storage_of[id] = storage;
    e->cells[storage][v] = (cell_t){.value = value, .refs = 1};
}

/* ---- moves ---- */

static void trace(const world_t *w, const engine_t *e, const char *what, uint64_t sequence)
{
    if (w->is_traced)
        (void)printf("%10" PRIu64 " engine %d %s %" PRIu64 "\n", w->now_ns, (int)(e - w->engines),
                     what, sequence);
}

static void come_to_move(engine_t *e, const record_t *r, const world_t *w)
{
    queued_t *q = calloc(1, sizeof *q);
    if (!q)
        abort();
    q->record = r;
    q->move.sequence = (uint64_t)(r - w->records) + 1;
    q->move.reads = q->marks;
    q->move.makes = q->marks + VDEVS;
    for (uint32_t v = 0; v < VDEVS; v++) {
        q->from[v] = q->into[v] = UINT32_MAX;
        if (e->vdevs & w->mesh_vdevs[r->mesh] & 1U << v) {
            q->from[v] = e->storage_of[r->inputs[0]];
            q->read[v] = e->cells[q->from[v]][v].value;
            e->cells[q->from[v]][v].refs++;
            q->move.reads[q->move.read_count++] = &e->cells[q->from[v]][v].mark;
        }
        if (e->vdevs & w->mesh_vdevs[r->to] & 1U << v) {
            put(e, r->output, r->output, v, UINT64_C(0xbad));
            q->into[v] = r->output;
            e->cells[r->output][v].refs++;
            q->move.makes[q->move.make_count++] = &e->cells[r->output][v].mark;
        }
    }
    dt_moves_push(&e->moves, &q->move);
}

/* Nobody may have written what it reads since its record. */
static void check_reads(world_t *w, const engine_t *e, const queued_t *q)
{
    for (uint32_t v = 0; v < VDEVS; v++)
        if (q->from[v] != UINT32_MAX && e->cells[q->from[v]][v].value != q->read[v])
            fail(w, "what move %" PRIu64 " reads was changed under it", q->move.sequence);
}

/* Whoever comes last says how long it takes. */
static void begin_move(world_t *w, engine_t *e, const queued_t *q)
{
    meeting_t *m = &w->meetings[q->move.sequence - 1];
    uint32_t members = w->mesh_vdevs[q->record->mesh] | w->mesh_vdevs[q->record->to];
    trace(w, e, "begins", q->move.sequence);
    if (q->move.sequence <= e->last_begun)
        fail(w, "an engine begins move %" PRIu64 " after %" PRIu64, q->move.sequence,
             e->last_begun);
    e->last_begun = q->move.sequence;
    check_reads(w, e, q);
    m->begun |= e->vdevs & members;
    for (uint32_t v = 0; v < VDEVS; v++)
        if (q->from[v] != UINT32_MAX)
            m->parts[v] = q->read[v];
    if (m->begun == members)
        m->end_ns = w->now_ns + 1 + draw(w, draw(w, 4) ? 4 * WORK_NS : 100 * WORK_NS);
}

/* Compare what a record gave on one device. */
static void judge(world_t *w, const record_t *r, uint32_t v, uint64_t value)
{
    uint32_t at = (uint32_t)(r - w->records);
    if (value != w->expected[at][v])
        fail(w, "record %" PRIu32 " gave another value on vdev %" PRIu32, at + 1, v);
}

static void end_move(world_t *w, engine_t *e, queued_t *q)
{
    const meeting_t *m = &w->meetings[q->move.sequence - 1];
    trace(w, e, "ends", q->move.sequence);
    check_reads(w, e, q);
    for (uint32_t v = 0; v < VDEVS; v++) {
        if (q->into[v] != UINT32_MAX) {
            cell_t *cell = &e->cells[q->into[v]][v];
            cell->value = moved(w->mesh_vdevs[q->record->mesh], m->parts, v);
            judge(w, q->record, v, cell->value);
            unref(e, q->into[v], v);
        }
        if (q->from[v] != UINT32_MAX)
            unref(e, q->from[v], v);
    }
    dt_moves_end(&e->moves);
    e->running = NULL;
    free(q);
}

/* False: nothing has ended and nothing begins. */
static bool turn_moves(world_t *w, engine_t *e)
{
    bool is_any = false;
    for (;;) {
        uint64_t end_ns = e->running ? w->meetings[e->running->move.sequence - 1].end_ns : 0;
        if (e->running && (end_ns == 0 || end_ns > w->now_ns))
            return is_any;
        is_any |= e->running != NULL;
        if (e->running)
            end_move(w, e, e->running);
        dt_move_t *next = dt_moves_next(&e->moves);
        if (!next)
            return is_any;
        is_any = true;
        e->running = DT_CONTAINER_OF(next, queued_t, move);
        begin_move(w, e, e->running);
    }
}

/* ---- other records ---- */

static bool may(const world_t *w, engine_t *e, const record_t *r)
{
    for (uint32_t v = 0; v < VDEVS; v++) {
        if (!(e->vdevs & w->mesh_vdevs[r->mesh] & 1U << v))
            continue;
        const dt_move_mark_t *a = &e->cells[e->storage_of[r->inputs[0]]][v].mark;
        const dt_move_mark_t *b = &e->cells[e->storage_of[r->inputs[1]]][v].mark;
        if (!dt_move_may_read(a) || (r->kind == ADD && !dt_move_may_read(b)) ||
            (r->kind == WRITE && !dt_move_may_write(a)))
            return false;
    }
    return true;
}

/* Whether the record at hand has to wait, as engines have it. */
static bool waits(const world_t *w, engine_t *e, const record_t *r)
{
    switch (r->kind) {
    case MAKE:
    case FREE:
        return false;
    case FETCH:
        return e->moves.count > 0;
    case MOVE:
        return e->moves.count >= w->queue_max || !may(w, e, r);
    default:
        return !may(w, e, r);
    }
}

static void perform_on(world_t *w, engine_t *e, const record_t *r, uint32_t v)
{
    uint32_t a = e->storage_of[r->inputs[0]];
    cell_t *cell = &e->cells[a][v];
    uint32_t at = (uint32_t)(r - w->records);
    switch (r->kind) {
    case MAKE:
        put(e, r->output, r->output, v, mix(1, at, v));
        break;
    case ADD:
        put(e, r->output, r->output, v,
            mix(2, cell->value, e->cells[e->storage_of[r->inputs[1]]][v].value));
        judge(w, r, v, e->cells[r->output][v].value);
        break;
    case WRITE:
        cell->value = mix(3, cell->value, at);
        judge(w, r, v, cell->value);
        break;
    case VIEW:
        e->storage_of[r->output] = a;
        cell->refs++;
        break;
    case FREE:
        unref(e, a, v);
        break;
    default:
        judge(w, r, v, cell->value);
        break;
    }
}

/* False: it waits. */
static bool perform(world_t *w, engine_t *e)
{
    const record_t *r = &w->records[e->next];
    uint32_t mine = e->vdevs & (w->mesh_vdevs[r->mesh] | w->mesh_vdevs[r->to]);
    if (mine && waits(w, e, r))
        return false;
    e->next++;
    if (!mine)
        return true;
    trace(w, e, r->kind == MOVE ? "queues" : "performs", e->next);
    if (r->kind == MOVE) {
        come_to_move(e, r, w);
        return true;
    }
    for (uint32_t v = 0; v < VDEVS; v++)
        if (mine >> v & 1)
            perform_on(w, e, r, v);
    e->busy_ns = w->now_ns + r->work_ns * e->slowness;
    return true;
}

static void check_acknowledged(world_t *w, engine_t *e)
{
    uint64_t settled = dt_moves_settled(&e->moves, e->next);
    if (settled < e->acknowledged)
        fail(w, "what was acknowledged is open again");
    e->acknowledged = settled;
    for (dt_list_t *at = e->moves.queue.next; at != &e->moves.queue; at = at->next)
        if (DT_CONTAINER_OF(at, dt_move_t, link)->sequence <= settled)
            fail(w, "an open move is acknowledged");
}

/* What an engine does between two records. False: nothing. */
static bool turn(world_t *w, engine_t *e)
{
    if (e->busy_ns > w->now_ns)
        return false;
    bool has_moved = turn_moves(w, e);
    bool has_performed = e->next < RECORDS && perform(w, e);
    w->steps += has_performed;
    check_acknowledged(w, e);
    return has_moved || has_performed;
}

/* ---- a program ---- */

static bool is_through(const world_t *w)
{
    for (uint32_t i = 0; i < w->engine_count; i++)
        if (w->engines[i].next < RECORDS || w->engines[i].moves.count > 0)
            return false;
    return true;
}

/* Go to when something happens next. False: nothing ever will. */
static bool wait_for_time(world_t *w)
{
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < w->engine_count; i++) {
        const engine_t *e = &w->engines[i];
        uint64_t end_ns = e->running ? w->meetings[e->running->move.sequence - 1].end_ns : 0;
        if (e->busy_ns > w->now_ns && e->busy_ns < next_ns)
            next_ns = e->busy_ns;
        if (end_ns > w->now_ns && end_ns < next_ns)
            next_ns = end_ns;
    }
    if (next_ns == UINT64_MAX)
        return false;
    w->now_ns = next_ns;
    return true;
}

static void run_program(world_t *w)
{
    while (!w->has_failed && !is_through(w)) {
        uint32_t first = (uint32_t)draw(w, w->engine_count);
        bool is_any = false;
        for (uint32_t i = 0; i < w->engine_count; i++)
            is_any |= turn(w, &w->engines[(first + i) % w->engine_count]);
        if (!is_any && !wait_for_time(w))
            fail(w, "all engines wait for each other");
    }
    for (uint32_t i = 0; i < w->engine_count; i++) { /* of a program that failed */
        dt_move_t *move;
        while ((move = dt_moves_take(&w->engines[i].moves)) != NULL)
            free(DT_CONTAINER_OF(move, queued_t, move));
    }
}

bool overlap_run(uint64_t seed, bool is_traced, char *failure, uint64_t *ret_steps)
{
    bool is_ok = true;
    for (uint64_t i = 0; is_ok && i < PROGRAMS; i++) {
        world_t *w = calloc(1, sizeof *w);
        if (!w)
            abort();
        w->random = dt_hash_u64(seed * PROGRAMS + i);
        w->is_traced = is_traced;
        w->failure = failure;
        make_world(w);
        run_program(w);
        is_ok = !w->has_failed;
        *ret_steps += w->steps;
        free(w);
    }
    return is_ok;
}
