#include "lib/grouprig.h"

#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/nccl/nccl.h"
#include "base/clock.h"

#define RIG_PATIENCE_NS    (INT64_C(240000) * DT_CLOCK_MS_NS)
#define RIG_GENERATION_MAX 8u
#define RIG_TEXT_MAX       400

struct dt_grouprig_page {
    dt_group_id_t ids[RIG_GENERATION_MAX];
    _Atomic uint32_t has_id[RIG_GENERATION_MAX];
    _Atomic uint32_t ended[RIG_GENERATION_MAX]; /* ranks that have nothing to move any more */
    _Atomic uint32_t lost;                      /* bits: ranks whose process has ended */
    _Atomic uint32_t reached;                   /* ranks that came to where a case wants them */
    _Atomic uint32_t has_text;
    char text[RIG_TEXT_MAX];
};

/* ---- what ranks use ---- */

static void fail(const dt_grouprig_t *rig, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
static void fail(const dt_grouprig_t *rig, const char *fmt, ...)
{
    va_list args;
    char text[RIG_TEXT_MAX - 32];
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (atomic_fetch_add(&rig->page->has_text, 1) == 0)
        (void)snprintf(rig->page->text, sizeof rig->page->text, "rank %u: %s", rig->rank, text);
    _exit(1);
}

static void pause_until(const dt_grouprig_t *rig, int64_t deadline_ns, const char *what)
{
    if (dt_clock_mono_ns(dt_clock_system()) > deadline_ns)
        fail(rig, "it takes for ever: %s", what);
    (void)sched_yield();
}

static int64_t deadline(void)
{
    return dt_clock_mono_ns(dt_clock_system()) + RIG_PATIENCE_NS;
}

static bool is_lost(const dt_grouprig_t *rig, uint32_t rank)
{
    return atomic_load(&rig->page->lost) >> rank & 1;
}

/* Begin to join the group of ranks 0 .. count - 1. */
static dt_status_t join_begin(const dt_grouprig_t *rig, uint32_t generation, uint32_t count,
                              void **ret_group, dt_error_t *err)
{
    const dt_group_place_t place = {generation, rig->rank, count};
    int64_t until = deadline();
    if (rig->rank == 0) {
        if (rig->table->id_make(rig->ctx, &rig->page->ids[generation], err) != DT_OK)
            fail(rig, "no id: %s", err->text);
        atomic_store(&rig->page->has_id[generation], 1);
    }
    while (!atomic_load(&rig->page->has_id[generation]))
        pause_until(rig, until, "an id");
    return rig->table->join(rig->ctx, &rig->page->ids[generation], &place, ret_group, err);
}

static void *join(const dt_grouprig_t *rig, uint32_t generation, uint32_t count)
{
    dt_error_t err = {0};
    void *group = NULL;
    if (join_begin(rig, generation, count, &group, &err) != DT_OK)
        fail(rig, "join: %s", err.text);
    return group;
}

/* Poll until it is idle, has failed, or `other` is lost, which is AGAIN. */
static dt_status_t wait_for(const dt_grouprig_t *rig, void *group, uint32_t other, dt_error_t *err)
{
    int64_t until = deadline();
    for (;;) {
        dt_status_t status = rig->table->poll(group, err);
        if (status != DT_ERR_AGAIN || (other != UINT32_MAX && is_lost(rig, other)))
            return status;
        pause_until(rig, until, "a group");
    }
}

static void finish(const dt_grouprig_t *rig, void *group)
{
    dt_error_t err = {0};
    if (wait_for(rig, group, UINT32_MAX, &err) != DT_OK)
        fail(rig, "poll: %s", err.text);
}

/* Leave when all have ended what they moved. */
static void depart(const dt_grouprig_t *rig, void *group, uint32_t generation)
{
    int64_t until = deadline();
    atomic_fetch_add(&rig->page->ended[generation], 1);
    while (atomic_load(&rig->page->ended[generation]) < rig->count)
        pause_until(rig, until, "the others' end");
    rig->table->leave(group);
}

static void run(const dt_grouprig_t *rig, void *group, const dt_group_work_t *work)
{
    dt_error_t err = {0};
    if (rig->table->run(group, work, &err) != DT_OK)
        fail(rig, "run: %s", err.text);
}

static void *room(const dt_grouprig_t *rig, size_t size)
{
    dt_error_t err = {0};
    void *block = NULL;
    if (rig->table->alloc(rig->ctx, size, &block, &err) != DT_OK)
        fail(rig, "alloc: %s", err.text);
    return block;
}

static void copy(const dt_grouprig_t *rig, void *to, const void *from, size_t size)
{
    if (rig->api.copy(to, from, size, DT_NCCL_CUDA_COPY_DEFAULT) != DT_NCCL_CUDA_SUCCESS)
        fail(rig, "a copy of %zu bytes", size);
}

/* ---- values ---- */

/* Element i of what rank r brings; small, so that float sums are exact in any order. */
static int64_t value_of(uint32_t rank, uint64_t i)
{
    return (int64_t)(i * 7 + rank * 13) % 101 - 50;
}

static void *brought(const dt_grouprig_t *rig, unsigned dtype, uint64_t count)
{
    size_t size = count * dt_dtype_bytes(dtype);
    void *host = malloc(size);
    void *block = room(rig, size);
    for (uint64_t i = 0; host && i < count; i++)
        if (dtype == DT_DTYPE_F32)
            ((float *)host)[i] = (float)value_of(rig->rank, i);
        else
            ((int64_t *)host)[i] = value_of(rig->rank, i);
    copy(rig, block, host, size);
    free(host);
    return block;
}

static double read_at(const void *host, unsigned dtype, uint64_t i)
{
    return dtype == DT_DTYPE_F32 ? (double)((const float *)host)[i]
                                 : (double)((const int64_t *)host)[i];
}

static double combined(unsigned reduction, uint32_t count, uint64_t i)
{
    double all = (double)value_of(0, i);
    for (uint32_t r = 1; r < count; r++) {
        double one = (double)value_of(r, i);
        all = reduction == DT_GROUP_MAX   ? (one > all ? one : all)
              : reduction == DT_GROUP_MIN ? (one < all ? one : all)
                                          : all + one;
    }
    return reduction == DT_GROUP_AVG ? (double)((float)all / (float)count) : all;
}

/* What element i of the target is to be. */
static double wanted(const dt_grouprig_t *rig, const dt_group_op_t *op, uint64_t i)
{
    switch (op->kind) {
    case DT_GROUP_ALL_REDUCE:
        return combined(op->reduction, rig->count, i);
    case DT_GROUP_REDUCE_SCATTER:
        return combined(op->reduction, rig->count, rig->rank * op->count + i);
    case DT_GROUP_ALL_GATHER:
        return (double)value_of((uint32_t)(i / op->count), i % op->count);
    default:
        return (double)value_of(op->peer, i);
    }
}

static void try_op(const dt_grouprig_t *rig, void *group, dt_group_op_t op)
{
    uint64_t source = op.count * (op.kind == DT_GROUP_REDUCE_SCATTER ? rig->count : 1);
    uint64_t target = op.count * (op.kind == DT_GROUP_ALL_GATHER ? rig->count : 1);
    size_t size = target * dt_dtype_bytes(op.dtype);
    void *from = brought(rig, op.dtype, source);
    void *to = room(rig, size);
    void *host = malloc(size);
    op.source = from;
    op.target = to;
    const dt_group_work_t work = {.ops = &op, .op_count = 1};
    run(rig, group, &work);
    finish(rig, group);
    copy(rig, host, to, size);
    for (uint64_t i = 0; i < target; i++) {
        double is = read_at(host, op.dtype, i);
        double want = wanted(rig, &op, i);
        double close = op.reduction == DT_GROUP_AVG ? 1e-5 : 0; /* a sum over count, rounded */
        if (is - want > close || want - is > close)
            fail(rig, "operation %u of %s, element %llu: %g and not %g", op.kind,
                 dt_dtype_name(op.dtype), (unsigned long long)i, is, want);
    }
    free(host);
    rig->table->release(rig->ctx, from);
    rig->table->release(rig->ctx, to);
}

/* ---- cases ---- */

static void every_collective(dt_grouprig_t *rig)
{
    static const uint8_t dtypes[] = {DT_DTYPE_I64, DT_DTYPE_F32};
    void *group = join(rig, 0, rig->count);
    finish(rig, group);
    for (unsigned d = 0; d < 2; d++) {
        for (unsigned reduction = DT_GROUP_SUM; reduction <= DT_GROUP_AVG; reduction++) {
            if (reduction == DT_GROUP_AVG && dtypes[d] == DT_DTYPE_I64)
                continue; /* of integers it is no value of ours */
            const dt_group_op_t all = {.kind = DT_GROUP_ALL_REDUCE,
                                       .dtype = dtypes[d],
                                       .reduction = (uint8_t)reduction,
                                       .count = 1003};
            const dt_group_op_t scatter = {.kind = DT_GROUP_REDUCE_SCATTER,
                                           .dtype = dtypes[d],
                                           .reduction = (uint8_t)reduction,
                                           .count = 77};
            try_op(rig, group, all);
            try_op(rig, group, scatter);
        }
        const dt_group_op_t gather = {.kind = DT_GROUP_ALL_GATHER, .dtype = dtypes[d], .count = 51};
        try_op(rig, group, gather);
        for (uint32_t root = 0; root < rig->count; root++) {
            const dt_group_op_t broadcast = {
                .kind = DT_GROUP_BROADCAST, .dtype = dtypes[d], .peer = root, .count = 130};
            try_op(rig, group, broadcast);
        }
    }
    depart(rig, group, 0);
}

/* Rank a sends b's columns of its matrix to b: boxes of every size, also bigger than what fits on
 * the way, packed before and put in place after. */
static void boxes_of_uneven_sizes(dt_grouprig_t *rig)
{
    enum { COLUMN_MAX = DT_GROUPRIG_RANK_MAX * 3 };
    uint32_t columns = 0, rows = 1001 + 503 * rig->rank;
    uint64_t from_bytes, back = 0, at = 0;
    dt_group_copy_t before[DT_GROUPRIG_RANK_MAX];
    dt_group_op_t ops[2 * DT_GROUPRIG_RANK_MAX];
    uint32_t copies = 0, count = 0;
    for (uint32_t r = 0; r < rig->count; r++)
        columns += r + 1; /* of rank r; at most COLUMN_MAX of 8 */
    from_bytes = (uint64_t)rows * columns * sizeof(int64_t);
    for (uint32_t r = 0; r < rig->count; r++)
        back += (1001 + 503 * (uint64_t)r) * (rig->rank + 1);
    void *group = join(rig, 0, rig->count);
    uint8_t *from = brought(rig, DT_DTYPE_I64, (uint64_t)rows * columns);
    uint8_t *packed = room(rig, from_bytes);
    uint8_t *to = room(rig, back * sizeof(int64_t));
    for (uint32_t r = 0, column = 0; r < rig->count; column += ++r) {
        uint64_t width = (r + 1) * sizeof(int64_t), height = 1001 + 503 * (uint64_t)r;
        uint8_t *place = packed + (uint64_t)rows * column * sizeof(int64_t);
        bool is_own = r == rig->rank;
        before[copies++] = (dt_group_copy_t){.source = from + column * sizeof(int64_t),
                                             .target = is_own ? to + at : place,
                                             .rows = rows,
                                             .row_bytes = width,
                                             .source_pitch = columns * sizeof(int64_t),
                                             .target_pitch = width};
        if (!is_own) {
            ops[count++] = (dt_group_op_t){.kind = DT_GROUP_SEND,
                                           .dtype = DT_DTYPE_I64,
                                           .peer = r,
                                           .count = rows * (r + 1),
                                           .source = place};
            ops[count++] = (dt_group_op_t){.kind = DT_GROUP_RECV,
                                           .dtype = DT_DTYPE_I64,
                                           .peer = r,
                                           .count = height * (rig->rank + 1),
                                           .target = to + at};
        }
        at += height * (rig->rank + 1) * sizeof(int64_t);
    }
    const dt_group_work_t work = {
        .before = before, .before_count = copies, .ops = ops, .op_count = count};
    finish(rig, group);
    run(rig, group, &work);
    finish(rig, group);
    int64_t *host = malloc(back * sizeof *host), *is = host;
    copy(rig, host, to, back * sizeof *host);
    uint32_t first = rig->rank * (rig->rank + 1) / 2; /* our first column */
    for (uint32_t r = 0; r < rig->count; r++)
        for (uint64_t row = 0; row < 1001 + 503 * (uint64_t)r; row++)
            for (uint32_t c = 0; c <= rig->rank; c++, is++)
                if (*is != value_of(r, row * columns + first + c))
                    fail(rig, "row %llu of rank %u is wrong", (unsigned long long)row, r);
    free(host);
    depart(rig, group, 0);
}

/* Rows of a tensor whose next dimension is over 2 GiB away, which CUDA does not copy as rows. */
static void rows_too_far_apart_for_one_copy(dt_grouprig_t *rig)
{
    enum { ROW = 64, ROWS = 2 };
    const uint64_t pitch = DT_NCCL_CUDA_PITCH_MAX + 1;
    uint8_t host[ROWS * ROW], is[ROWS * ROW] = {0};
    for (size_t i = 0; i < sizeof host; i++)
        host[i] = (uint8_t)(i + rig->rank);
    void *group = join(rig, 0, rig->count);
    uint8_t *from = room(rig, pitch + ROW);
    uint8_t *packed = room(rig, sizeof host), *to = room(rig, sizeof host);
    for (uint64_t row = 0; row < ROWS; row++)
        copy(rig, from + row * pitch, host + row * ROW, ROW);
    const dt_group_copy_t copies[] = {
        {.source = from,
         .target = packed,
         .rows = ROWS,
         .row_bytes = ROW,
         .source_pitch = pitch,
         .target_pitch = ROW},
        {.source = packed,
         .target = to,
         .rows = 1,
         .row_bytes = sizeof host,
         .source_pitch = pitch,
         .target_pitch = pitch},
    };
    const dt_group_work_t work = {.before = copies, .before_count = 2};
    finish(rig, group);
    run(rig, group, &work);
    finish(rig, group);
    copy(rig, is, to, sizeof is);
    if (memcmp(is, host, sizeof is) != 0)
        fail(rig, "rows %llu bytes apart came otherwise", (unsigned long long)pitch);
    rig->table->release(rig->ctx, from);
    rig->table->release(rig->ctx, packed);
    rig->table->release(rig->ctx, to);
    depart(rig, group, 0);
}

static void a_refused_operation_changes_nothing(dt_grouprig_t *rig)
{
    dt_error_t err = {0};
    void *block = NULL;
    void *group = join(rig, 0, rig->count);
    const dt_group_op_t halves = {.kind = DT_GROUP_ALL_REDUCE, .dtype = DT_DTYPE_I16, .count = 1};
    const dt_group_op_t self = {.kind = DT_GROUP_SEND, .dtype = DT_DTYPE_I64, .peer = rig->rank};
    const dt_group_op_t good = {.kind = DT_GROUP_ALL_REDUCE, .dtype = DT_DTYPE_I64, .count = 5};
    const dt_group_work_t no_sum = {.ops = &halves, .op_count = 1};
    const dt_group_work_t no_peer = {.ops = &self, .op_count = 1};
    finish(rig, group);
    if (rig->table->run(group, &no_sum, &err) != DT_ERR_INVALID || !strstr(err.text, "int16"))
        fail(rig, "int16 was reduced: %s", err.text);
    if (rig->table->run(group, &no_peer, &err) != DT_ERR_INVALID)
        fail(rig, "it sent to itself");
    if (rig->table->alloc(rig->ctx, UINT64_C(1) << 50, &block, &err) != DT_ERR_LIMIT)
        fail(rig, "a petabyte was there: %s", err.text);
    try_op(rig, group, good);
    depart(rig, group, 0);
}

/* Two programs share the devices, and what they move begins in another order on each. */
static void groups_of_two_programs_wait_for_none_of_the_other(dt_grouprig_t *rig)
{
    enum { GROUPS = 2, COUNT = 1 << 16 }; /* more than fits on the way */
    void *groups[GROUPS];
    dt_group_op_t ops[GROUPS];
    dt_group_work_t works[GROUPS];
    uint32_t over = 0;
    int64_t until = deadline();
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g] = join(rig, g, rig->count);
        finish(rig, groups[g]);
        ops[g] = (dt_group_op_t){.kind = DT_GROUP_ALL_REDUCE,
                                 .dtype = DT_DTYPE_I64,
                                 .count = COUNT,
                                 .source = brought(rig, DT_DTYPE_I64, COUNT),
                                 .target = room(rig, COUNT * sizeof(int64_t))};
        works[g] = (dt_group_work_t){.ops = &ops[g], .op_count = 1};
    }
    for (uint32_t i = 0; i < GROUPS; i++) {
        uint32_t g = (i + rig->rank) % GROUPS;
        run(rig, groups[g], &works[g]);
    }
    while (over != (1u << GROUPS) - 1) {
        for (uint32_t g = 0; g < GROUPS; g++)
            if (!(over >> g & 1) && rig->table->poll(groups[g], NULL) == DT_OK)
                over |= 1u << g;
        pause_until(rig, until, "two groups");
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        int64_t first = 0;
        copy(rig, &first, ops[g].target, sizeof first);
        if ((double)first != combined(DT_GROUP_SUM, rig->count, 0))
            fail(rig, "group %u: %lld", g, (long long)first);
        depart(rig, groups[g], g);
    }
}

/* What a group copied ends with it: the buffers may be another's from then on. */
static void who_left_writes_nothing_any_more(dt_grouprig_t *rig)
{
    enum { COUNT = 1000 };
    const dt_group_op_t op = {.kind = DT_GROUP_ALL_REDUCE, .dtype = DT_DTYPE_I64, .count = COUNT};
    const int64_t others[COUNT] = {0};
    int64_t is[COUNT];
    void *group = join(rig, 0, rig->count);
    void *from = brought(rig, DT_DTYPE_I64, COUNT);
    void *to = room(rig, sizeof others);
    const dt_group_copy_t all = {.source = from,
                                 .target = to,
                                 .rows = 2,
                                 .row_bytes = sizeof others / 2,
                                 .source_pitch = sizeof others / 2,
                                 .target_pitch = sizeof others / 2};
    const dt_group_work_t work = {.before = &all, .before_count = 1};
    finish(rig, group);
    run(rig, group, &work);
    depart(rig, group, 0);
    copy(rig, to, others, sizeof others);
    group = join(rig, 1, rig->count);
    finish(rig, group);
    try_op(rig, group, op);
    copy(rig, is, to, sizeof is);
    if (memcmp(is, others, sizeof is) != 0)
        fail(rig, "a group that was left wrote");
    depart(rig, group, 1);
}

static void generations_follow_each_other(dt_grouprig_t *rig)
{
    void *past = NULL;
    for (uint32_t generation = 0; generation < 3; generation++) {
        const dt_group_op_t op = {
            .kind = DT_GROUP_ALL_REDUCE, .dtype = DT_DTYPE_I64, .count = 100 + generation};
        void *group = join(rig, generation, rig->count); /* while the past one is still there */
        finish(rig, group);
        try_op(rig, group, op);
        if (past)
            depart(rig, past, generation - 1);
        past = group;
    }
    depart(rig, past, 2);
}

/* What is left joins anew and computes. */
static void go_on_without_the_last(const dt_grouprig_t *whole, uint32_t generation)
{
    dt_grouprig_t rig = *whole;
    const dt_group_op_t op = {.kind = DT_GROUP_ALL_REDUCE, .dtype = DT_DTYPE_F32, .count = 999};
    rig.count--;
    void *group = join(&rig, generation, rig.count);
    finish(&rig, group);
    try_op(&rig, group, op);
    depart(&rig, group, generation);
}

static void a_member_killed_in_a_move_ends_nothing_but_it(dt_grouprig_t *rig)
{
    enum { COUNT = 1 << 18 }; /* more than fits on the way: nobody is done before it */
    uint32_t victim = rig->count - 1;
    dt_error_t err = {0};
    void *group = join(rig, 0, rig->count);
    void *from = brought(rig, DT_DTYPE_I64, COUNT);
    void *to = room(rig, (size_t)COUNT * sizeof(int64_t));
    const dt_group_op_t op = {.kind = DT_GROUP_ALL_REDUCE,
                              .dtype = DT_DTYPE_I64,
                              .count = COUNT,
                              .source = from,
                              .target = to};
    const dt_group_work_t work = {.ops = &op, .op_count = 1};
    finish(rig, group);
    if (rig->rank == victim) {
        int64_t until = deadline();
        while (atomic_load(&rig->page->reached) < victim)
            pause_until(rig, until, "the others");
        (void)raise(SIGKILL);
    }
    run(rig, group, &work);
    (void)rig->table->poll(group, NULL);
    atomic_fetch_add(&rig->page->reached, 1);
    dt_status_t status = wait_for(rig, group, victim, &err);
    if (status != DT_ERR_AGAIN && status != DT_ERR_PEER)
        fail(rig, "the end of a move without %u: %s %s", victim, dt_status_text(status), err.text);
    rig->table->leave(group);
    copy(rig, to, from, (size_t)COUNT * sizeof(int64_t)); /* nobody else writes there any more */
    go_on_without_the_last(rig, 1);
}

static void a_member_killed_before_it_joins_ends_nothing_but_it(dt_grouprig_t *rig)
{
    uint32_t victim = rig->count - 1;
    dt_error_t err = {0};
    if (rig->rank == victim)
        (void)raise(SIGKILL);
    void *group = NULL;
    dt_status_t status = join_begin(rig, 0, rig->count, &group, &err);
    if (status == DT_OK)
        status = wait_for(rig, group, victim, &err);
    if (status != DT_ERR_AGAIN && status != DT_ERR_PEER)
        fail(rig, "joined without %u: %s %s", victim, dt_status_text(status), err.text);
    rig->table->leave(group);
    go_on_without_the_last(rig, 1);
}

static void who_leaves_in_a_move_is_an_error_of_all_others(dt_grouprig_t *rig)
{
    const dt_group_op_t op = {.kind = DT_GROUP_ALL_GATHER, .dtype = DT_DTYPE_F32, .count = 1 << 16};
    dt_group_op_t moved = op;
    const dt_group_work_t work = {.ops = &moved, .op_count = 1};
    dt_error_t err = {0};
    void *group = join(rig, 0, rig->count);
    moved.source = brought(rig, DT_DTYPE_F32, op.count);
    moved.target = room(rig, op.count * rig->count * sizeof(float));
    finish(rig, group);
    if (rig->rank != 0) {
        run(rig, group, &work);
        dt_status_t status = wait_for(rig, group, UINT32_MAX, &err);
        if (status != DT_ERR_PEER || strcmp(err.source, "nccl") != 0 || err.source_code == 0)
            fail(rig, "%s %s", dt_status_text(status), err.text);
        if (rig->table->poll(group, &err) != DT_ERR_PEER || !strstr(err.text, "generation 0"))
            fail(rig, "it recovered: %s", err.text);
    }
    rig->table->leave(group);
    group = join(rig, 1, rig->count);
    finish(rig, group);
    try_op(rig, group, op);
    depart(rig, group, 1);
}

const dt_grouprig_case_t dt_grouprig_cases[] = {
    {"every_collective", 1, every_collective},
    {"boxes_of_uneven_sizes", 2, boxes_of_uneven_sizes},
    {"rows_too_far_apart_for_one_copy", 1, rows_too_far_apart_for_one_copy},
    {"a_refused_operation_changes_nothing", 1, a_refused_operation_changes_nothing},
    {"groups_of_two_programs_wait_for_none_of_the_other", 2,
     groups_of_two_programs_wait_for_none_of_the_other},
    {"who_left_writes_nothing_any_more", 1, who_left_writes_nothing_any_more},
    {"generations_follow_each_other", 1, generations_follow_each_other},
    {"a_member_killed_in_a_move_ends_nothing_but_it", 3,
     a_member_killed_in_a_move_ends_nothing_but_it},
    {"a_member_killed_before_it_joins_ends_nothing_but_it", 3,
     a_member_killed_before_it_joins_ends_nothing_but_it},
    {"who_leaves_in_a_move_is_an_error_of_all_others", 2,
     who_leaves_in_a_move_is_an_error_of_all_others},
    {NULL, 0, NULL},
};

/* ---- processes ---- */

static void rank_main(const dt_grouprig_options_t *options, const dt_grouprig_case_t *it,
                      dt_grouprig_page_t *page, uint32_t rank)
{
    dt_error_t err = {0};
    dt_grouprig_t rig = {
        .table = dt_nccl_groups(), .rank = rank, .count = options->count, .page = page};
    const dt_group_options_t device = {
        .device = (int32_t)rank, .library = options->library, .runtime = options->runtime};
    if (rig.table->open(&device, &rig.ctx, &err) != DT_OK ||
        dt_nccl_api_open(&rig.api, options->library, options->runtime, &err) != DT_OK)
        fail(&rig, "%s", err.text);
    it->run(&rig);
    rig.table->close(rig.ctx);
    dt_nccl_api_close(&rig.api);
    _exit(0);
}

static dt_grouprig_page_t *page_make(void)
{
    void *map = mmap(NULL, sizeof(dt_grouprig_page_t), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

const char *dt_grouprig_run(const dt_grouprig_options_t *options, const dt_grouprig_case_t *it)
{
    static char text[RIG_TEXT_MAX];
    pid_t pids[DT_GROUPRIG_RANK_MAX];
    dt_grouprig_page_t *page = page_make();
    if (!page)
        return "no memory";
    for (uint32_t i = 0; i < options->count; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            rank_main(options, it, page, i);
    }
    text[0] = '\0';
    for (uint32_t left = options->count; left > 0; left--) {
        int how = 0;
        pid_t pid = wait(&how);
        for (uint32_t i = 0; i < options->count; i++)
            if (pids[i] == pid)
                atomic_fetch_or(&page->lost, 1u << i);
        bool is_meant = (WIFEXITED(how) && WEXITSTATUS(how) == 0) ||
                        (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        if (!is_meant && !text[0])
            (void)snprintf(text, sizeof text, "%.300s (ended with %d)", page->text, how);
        for (uint32_t i = 0; !is_meant && i < options->count; i++)
            if (!(atomic_load(&page->lost) >> i & 1))
                (void)kill(pids[i], SIGKILL);
    }
    (void)munmap(page, sizeof *page);
    return text[0] ? text : NULL;
}

uint32_t dt_grouprig_devices(const dt_grouprig_options_t *options, char *ret_why, size_t size)
{
    dt_grouprig_page_t *page = page_make();
    int how = 0, count = 0;
    if (!page)
        return 0;
    pid_t pid = fork();
    if (pid == 0) {
        dt_nccl_api_t api;
        dt_error_t err = {0};
        int code = 0;
        if (dt_nccl_api_open(&api, options->library, options->runtime, &err) != DT_OK)
            (void)snprintf(page->text, sizeof page->text, "%.380s", err.text);
        else if ((code = (int)api.device_count(&count)) != DT_NCCL_CUDA_SUCCESS)
            (void)snprintf(page->text, sizeof page->text, "CUDA says %s (%d)", api.error_text(code),
                           code);
        _exit(page->text[0] ? 0 : count);
    }
    (void)waitpid(pid, &how, 0);
    (void)snprintf(ret_why, size, "%s",
                   page->text[0]      ? page->text
                   : WIFSIGNALED(how) ? "looking for devices ended with a signal"
                                      : "no device");
    count = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
    (void)munmap(page, sizeof *page);
    return (uint32_t)count;
}
