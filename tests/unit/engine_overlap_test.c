/* Operators beside moves, with the ref backend and two engines in one process: vdev 0 on the first,
 * whose stream is looked at, vdev 1 on the second, which holds a move up by not being run. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/moves.h"
#include "device/builtin.h"
#include "lib/execrig.h"
#include "shard/layout.h"

TestSuite(engine_overlap, .timeout = 60);

#define MESH_ID 7u
#define ITEMS   6

static const dt_backend_t *table;
static void *device;
static dt_execrig_t rigs[2];
static dt_execrig_session_t engines[2];
static dt_execrig_session_t *first = &engines[0], *second = &engines[1];
static dt_board_t *board;
static unsigned questions;                      /* for lists that are not answered */
static dt_signature_tensor_t shard, whole, one; /* of ITEMS values; `one` on vdev 0 alone */

/* ---- helpers ---- */

static dt_signature_tensor_t tensor(dt_layout_t layout)
{
    static const int64_t sizes[] = {ITEMS};
    dt_signature_tensor_t is = {.layout = layout};
    cr_assert_eq(dt_meta_set(&is.meta, DT_DTYPE_F32, 1, sizes, NULL, 0, NULL), DT_OK);
    return is;
}

static void begin(bool is_serial)
{
    questions = 0;
    const dt_backend_device_options_t options = {
        .struct_size = sizeof options, .memory = dt_exec_backend_memory(), .threads = 1};
    table = dt_backend_ref();
    cr_assert_eq(table->device_open(NULL, &options, &device, NULL), DT_OK);
    for (uint32_t i = 0; i < 2; i++) {
        (is_serial ? dt_execrig_init_serial : dt_execrig_init)(&rigs[i], table, device, true);
        dt_execrig_open_on(&rigs[i], &engines[i], 1, &i, 1, 1 << 20);
    }
    board = dt_execrig_join((dt_execrig_session_t *const[]){first, second}, 2);
    dt_layout_t layout = {.mesh = MESH_ID, .ndim = 1, .placements = {dt_placement_shard(0)}};
    shard = tensor(layout);
    layout.placements[0] = dt_placement_replicate();
    whole = tensor(layout);
    one = tensor((dt_layout_t){0});
}

static void end(void)
{
    for (int i = 0; i < 2; i++) {
        dt_execrig_close(&engines[i]);
        dt_execrig_fini(&rigs[i]);
    }
    dt_board_close(board);
    table->device_close(device);
}

/* Both engines get the same stream, so each call puts one record into both. */

static void put(dt_record_t *record)
{
    for (int i = 0; i < 2; i++)
        dt_execrig_put(&engines[i], record);
}

static void mesh(void)
{
    static const uint64_t vdevs[] = {0, 1};
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_DEF_MESH};
    record.mesh = (dt_record_mesh_t){
        .id = MESH_ID, .ndim = 1, .vdev_count = 2, .sizes = {2}, .names = {""}, .vdevs = vdevs};
    put(&record);
}

static uint64_t upload(dt_signature_tensor_t like, float value)
{
    static dt_record_t record;
    float values[ITEMS];
    for (int i = 0; i < ITEMS; i++)
        values[i] = value + (float)i;
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    record.move.meta = like.meta;
    record.move.layout = like.layout;
    record.move.output = ++first->tensor;
    second->tensor++;
    record.move.size = sizeof values;
    record.move.bytes = (const uint8_t *)values;
    put(&record);
    return first->tensor;
}

static uint32_t define(const char *name, const dt_signature_tensor_t *inputs, uint32_t count,
                       dt_signature_tensor_t output)
{
    dt_value_t args[2] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}};
    const dt_signature_t sig = {.name = name,
                                .arg_count = count,
                                .input_count = count,
                                .output_count = 1,
                                .id_count = output.alias != DT_ALIAS_IN_PLACE,
                                .args = args,
                                .inputs = inputs,
                                .outputs = &output};
    (void)dt_execrig_define(second, &sig);
    return dt_execrig_define(first, &sig);
}

static uint64_t call(uint32_t signature, const uint64_t *inputs, uint32_t count, bool has_output)
{
    (void)dt_execrig_op(second, signature, inputs, count, has_output);
    return dt_execrig_op(first, signature, inputs, count, has_output);
}

static uint64_t add(dt_signature_tensor_t like, uint64_t a, uint64_t b)
{
    uint32_t signature = define("aten::add.Tensor", (dt_signature_tensor_t[]){like, like}, 2, like);
    return call(signature, (uint64_t[]){a, b}, 2, true);
}

static void add_(dt_signature_tensor_t like, uint64_t a)
{
    dt_signature_tensor_t written = like;
    written.alias = DT_ALIAS_IN_PLACE;
    uint32_t signature =
        define("aten::add_.Tensor", (dt_signature_tensor_t[]){like, like}, 2, written);
    (void)call(signature, (uint64_t[]){a, a}, 2, false);
}

static uint64_t move(dt_signature_tensor_t from, uint64_t id, dt_signature_tensor_t to)
{
    return call(define("dtorch::redistribute", &from, 1, to), &id, 1, true);
}

static void drop(uint64_t id)
{
    for (int i = 0; i < 2; i++)
        dt_execrig_free(&engines[i], id);
}

static void run(dt_execrig_session_t *engine)
{
    dt_execrig_run(engine);
    (void)sched_yield(); /* threads of transports work meanwhile */
}

/* The second engine comes too: until both have nothing left. */
static void run_both(void)
{
    for (bool is_done = false; !is_done;) {
        run(second);
        run(first);
        is_done = atomic_load(&first->channel->executed) == first->sequence - 1 &&
                  atomic_load(&second->channel->executed) == second->sequence - 1;
    }
}

/* What the first engine lists: whether `id` is there, and how many bytes live. A question that a
 * record stands before is answered later. */
static bool is_listed(uint64_t id, uint64_t *ret_bytes)
{
    const uint32_t limit = 1000;
    bool is_there = false;
    dt_execrig_flush(first);
    cr_assert_eq(dt_ring_write(&first->frames, DT_CHANNEL_LIST, &limit, sizeof limit, NULL), DT_OK);
    questions++;
    dt_execrig_run(first);
    while (questions > 0) {
        Dtorch__V1__WorkerSessionUp *up = dt_execrig_next(first);
        if (!up)
            return false;
        if (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_STATS && up->stats->is_list) {
            questions--;
            is_there = false;
            for (size_t i = 0; i < up->stats->n_list; i++)
                is_there |= up->stats->list[i]->id == id;
            if (ret_bytes)
                *ret_bytes = up->stats->memory_bytes;
        }
        dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    }
    return is_there;
}

/* `scale` times (value, value + 1, ...) */
static void expect(uint64_t id, float value, float scale)
{
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(first, dt_execrig_fetch(first, id));
    float is[ITEMS];
    cr_assert_not_null(up, "no answer");
    cr_assert_null(up->result->error, "%s", up->result->error ? up->result->error->text : "");
    cr_assert_eq(up->result->value.len, sizeof is);
    memcpy(is, up->result->value.data, sizeof is);
    for (int i = 0; i < ITEMS; i++)
        cr_assert_eq(is[i], scale * (value + (float)i), "%d: %g", i, (double)is[i]);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

static void expect_error(uint64_t id, const char *text, uint64_t sequence)
{
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(first, dt_execrig_fetch(first, id));
    cr_assert_not_null(up, "no answer");
    cr_assert_not_null(up->result->error, "it has a value");
    cr_assert_not_null(strstr(up->result->error->text, text), "%s", up->result->error->text);
    cr_assert_eq(up->result->error->sequence, sequence);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

static uint64_t next_sequence(void)
{
    return first->sequence + (first->has_frame ? first->writer.count : 0);
}

/* ---- what goes on, and what waits ---- */

Test(engine_overlap, an_operator_that_needs_nothing_of_a_move_goes_on)
{
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    uint64_t moved = move(shard, a, whole);
    uint64_t at = next_sequence() - 1;
    uint64_t sum = add(one, b, b), read = add(shard, a, a);
    cr_expect(is_listed(sum, NULL), "it waited");
    cr_expect(is_listed(read, NULL), "a reader of what is moved waited");
    cr_expect(!is_listed(moved, NULL), "what has no value yet is listed");
    cr_expect_eq(atomic_load(&first->channel->executed), at - 1, "what is open is acknowledged");
    run_both();
    cr_expect(is_listed(moved, NULL));
    expect(moved, 1, 1);
    expect(sum, 10, 2);
    end();
}

Test(engine_overlap, without_it_everything_waits)
{
    begin(true);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    uint64_t moved = move(shard, a, whole);
    uint64_t sum = add(one, b, b);
    cr_expect(!is_listed(sum, NULL));
    run_both();
    expect(moved, 1, 1);
    expect(sum, 10, 2);
    end();
}

Test(engine_overlap, who_reads_what_is_made_waits_and_who_follows_too)
{
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    uint64_t moved = move(shard, a, whole);
    uint64_t twice = add(whole, moved, moved);
    uint64_t behind = add(one, b, b);
    cr_expect(!is_listed(twice, NULL));
    cr_expect(!is_listed(behind, NULL), "operators keep their order");
    run_both();
    expect(twice, 1, 2);
    expect(behind, 10, 2);
    end();
}

Test(engine_overlap, who_writes_what_is_read_waits)
{
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1);
    uint64_t moved = move(shard, a, whole);
    add_(shard, a);
    uint64_t after = move(shard, a, whole);
    run(first);
    run_both();
    expect(moved, 1, 1);
    expect(after, 1, 2);
    end();
}

Test(engine_overlap, who_writes_through_a_view_waits)
{
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    dt_signature_tensor_t view = shard;
    view.alias = DT_ALIAS_VIEW;
    dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_INTS, .count = 1}};
    static const int64_t all[] = {ITEMS};
    args[1].ints = all;
    const dt_signature_t sig = {.name = "aten::view",
                                .arg_count = 2,
                                .input_count = 1,
                                .output_count = 1,
                                .id_count = 1,
                                .args = args,
                                .inputs = &shard,
                                .outputs = &view};
    (void)dt_execrig_define(second, &sig);
    uint64_t v = call(dt_execrig_define(first, &sig), &a, 1, true);
    uint64_t moved = move(shard, a, whole);
    add_(shard, v);
    uint64_t behind = add(one, b, b);
    cr_expect(!is_listed(behind, NULL));
    uint64_t after = move(shard, a, whole);
    run_both();
    expect(moved, 1, 1);
    expect(after, 1, 2);
    end();
}

Test(engine_overlap, a_fetch_waits_for_all_that_came_before)
{
    begin(false);
    mesh();
    uint64_t b = upload(one, 10);
    (void)move(shard, upload(shard, 1), whole);
    uint64_t future = dt_execrig_fetch(first, b);
    (void)dt_execrig_fetch(second, b);
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(first, future);
    cr_assert_null(up, "dt_synchronize() would not wait for the move");
    run_both();
    end();
}

/* By the fake clock: a second beside other operators, two more that one waits. */
Test(engine_overlap, what_is_not_hidden_is_counted)
{
    const int64_t second_ns = INT64_C(1000000000);
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    uint64_t moved = move(shard, a, whole);
    (void)add(one, b, b);
    run(first);
    rigs[0].now_ns += second_ns;
    (void)add(whole, moved, moved);
    run(first);
    rigs[0].now_ns += 2 * second_ns;
    run_both();
    int64_t runs_ns = (int64_t)rigs[0].page->move_ns[DT_ENGINE_MOVE_RUNS];
    int64_t waits_ns = (int64_t)rigs[0].page->move_ns[DT_ENGINE_MOVE_WAITS];
    cr_expect_eq(runs_ns / second_ns, 3, "%lld", (long long)runs_ns); /* turns take 1 us */
    cr_expect_eq(waits_ns / second_ns, 2, "%lld", (long long)waits_ns);
    end();
}

/* ---- freeing ---- */

Test(engine_overlap, what_a_move_reads_and_makes_may_be_freed)
{
    uint64_t bytes = 0;
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    uint64_t kept = move(shard, a, whole), gone = move(shard, a, whole);
    drop(a);
    drop(gone);
    uint64_t sum = add(one, b, b);
    cr_expect(is_listed(sum, NULL), "it waited");
    cr_expect(!is_listed(a, NULL));
    run_both();
    expect(kept, 1, 1);
    drop(kept);
    drop(sum);
    drop(b);
    (void)is_listed(kept, &bytes);
    cr_expect_eq(bytes, 0, "%llu bytes are left", (unsigned long long)bytes);
    run_both();
    end();
}

/* aten::zeros of `count` values on vdev 0. */
static uint64_t zeros(dt_signature_tensor_t *ret_like, int64_t count)
{
    dt_value_t args[] = {{.tag = DT_VALUE_INTS, .count = 1, .ints = &count}};
    *ret_like = one;
    cr_assert_eq(dt_meta_set(&ret_like->meta, DT_DTYPE_F32, 1, &count, NULL, 0, NULL), DT_OK);
    const dt_signature_t sig = {.name = "aten::zeros",
                                .arg_count = 1,
                                .output_count = 1,
                                .id_count = 1,
                                .args = args,
                                .outputs = ret_like};
    (void)dt_execrig_define(second, &sig);
    return call(dt_execrig_define(first, &sig), NULL, 0, true);
}

/* 1 MiB is there: two tensors of 384 KiB, not three. */
Test(engine_overlap, memory_that_a_move_keeps_is_waited_for)
{
    dt_signature_tensor_t large, everywhere = whole;
    begin(false);
    mesh();
    uint64_t a = zeros(&large, 98304), small = upload(one, 10);
    everywhere = whole;
    everywhere.meta = large.meta;
    uint64_t moved = move(large, a, everywhere);
    drop(a);
    uint64_t sum = add(one, small, small);
    cr_expect(is_listed(sum, NULL));
    uint64_t b = zeros(&large, 98304);
    cr_expect(!is_listed(b, NULL), "there was room for it");
    run_both();
    cr_expect(is_listed(b, NULL));
    drop(moved);
    uint64_t c = zeros(&large, 98304);
    run_both();
    cr_expect(is_listed(c, NULL));
    uint64_t fails = zeros(&large, 98304);
    expect_error(fails, "", next_sequence() - 1);
    end();
}

Test(engine_overlap, an_operator_in_place_waits_where_memory_is_scarce)
{
    dt_signature_tensor_t large, everywhere;
    begin(false);
    mesh();
    uint64_t a = zeros(&large, 98304), small = upload(one, 10);
    everywhere = whole;
    everywhere.meta = large.meta;
    (void)move(large, a, everywhere);
    add_(one, small);
    uint64_t before = add(one, small, small);
    cr_expect(is_listed(before, NULL), "nothing is kept for the move");
    drop(a);
    add_(one, small);
    uint64_t after = add(one, small, small);
    cr_expect(!is_listed(after, NULL));
    run_both();
    expect(after, 10, 8);
    end();
}

Test(engine_overlap, a_full_queue_waits)
{
    uint64_t moved[DT_MOVES_MAX + 2];
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    uint32_t plan = define("dtorch::redistribute", &shard, 1, whole);
    for (uint32_t i = 0; i < DT_MOVES_MAX; i++)
        moved[i] = call(plan, &a, 1, true);
    uint64_t sum = add(one, b, b);
    cr_expect(is_listed(sum, NULL));
    for (uint32_t i = DT_MOVES_MAX; i < DT_MOVES_MAX + 2; i++)
        moved[i] = call(plan, &a, 1, true);
    uint64_t behind = add(one, b, b);
    cr_expect(!is_listed(behind, NULL));
    run_both();
    for (uint32_t i = 0; i < DT_MOVES_MAX + 2; i++)
        expect(moved[i], 1, 1);
    end();
}

Test(engine_overlap, a_signature_is_dropped_when_its_moves_are_over)
{
    static dt_record_t record;
    char text[16];
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    uint32_t plan = define("dtorch::redistribute", &shard, 1, whole);
    uint64_t moved = call(plan, &a, 1, true);
    record = (dt_record_t){.kind = DT_RECORD_SET_OPTION};
    record.note.what = DT_OPTION_DROP_SIGNATURE;
    record.note.text = text;
    record.note.text_bytes = (uint32_t)snprintf(text, sizeof text, "%u", plan);
    put(&record);
    uint64_t behind = add(one, b, b);
    cr_expect(!is_listed(behind, NULL));
    run_both();
    expect(moved, 1, 1);
    end();
}

/* ---- what goes wrong ---- */

static void mark(unsigned what, uint64_t value, const char *text)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_MARK};
    record.note.what = (uint8_t)what;
    record.note.value = value;
    record.note.text = text;
    record.note.text_bytes = text ? (uint32_t)strlen(text) : 0;
    put(&record);
}

/* Each queued one ends with its own record and line, however far the program has gone. */
Test(engine_overlap, a_peer_that_is_lost_fails_all_that_is_queued)
{
    uint64_t at[2];
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    mark(DT_MARK_SOURCE, 1, "train.py:1");
    mark(DT_MARK_RANGE_BEGIN, 0, "backward");
    uint64_t moved[] = {move(shard, a, whole), 0};
    at[0] = next_sequence() - 1;
    mark(DT_MARK_SOURCE, 2, "train.py:2");
    moved[1] = move(shard, a, whole);
    at[1] = next_sequence() - 1;
    mark(DT_MARK_RANGE_END, 0, NULL);
    mark(DT_MARK_SOURCE, 3, "train.py:3");
    uint64_t sum = add(one, b, b);
    cr_expect(is_listed(sum, NULL));
    uint64_t poisoned = add(whole, moved[0], moved[1]);
    dt_board_lose(board, 1, "");
    dt_ring_wake(rigs[0].wake);
    while (atomic_load(&first->channel->executed) != first->sequence - 1)
        run(first);
    for (int i = 0; i < 2; i++) {
        Dtorch__V1__WorkerSessionUp *up =
            dt_execrig_result(first, dt_execrig_fetch(first, moved[i]));
        cr_assert_not_null(up->result->error);
        const Dtorch__V1__OperatorError *error = up->result->error;
        cr_expect_str_eq(error->operator_name, "dtorch::redistribute");
        cr_expect_not_null(strstr(error->text, "node1"), "%s", error->text);
        cr_expect_eq(error->sequence, at[i]);
        cr_expect_str_eq(error->source, i == 0 ? "train.py:1" : "train.py:2");
        cr_expect(error->n_range == 1 && strcmp(error->range[0], "backward") == 0);
        dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    }
    expect_error(poisoned, "node1", at[0]);
    expect(sum, 10, 2);
    end();
}

Test(engine_overlap, a_cause_goes_through_the_queue)
{
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1), b = upload(one, 10);
    dt_signature_tensor_t large, sum_of = one;
    cr_assert_eq(dt_meta_set(&sum_of.meta, DT_DTYPE_F32, 0, NULL, NULL, 0, NULL), DT_OK);
    uint64_t before = move(shard, a, whole);
    uint64_t fails = zeros(&large, 1 << 19); /* over the limit, while a move is queued */
    uint64_t at = next_sequence() - 1;
    uint64_t poisoned = call(define("aten::sum", &large, 1, sum_of), &fails, 1, true);
    dt_signature_tensor_t everywhere = sum_of;
    everywhere.layout = whole.layout;
    uint64_t moved = move(sum_of, poisoned, everywhere);
    uint64_t sum = add(one, b, b);
    cr_expect(is_listed(sum, NULL));
    run_both();
    expect(before, 1, 1);
    expect(sum, 10, 2);
    expect_error(moved, "", at);
    end();
}

Test(engine_overlap, a_session_that_is_closed_with_a_queue_leaves_nothing)
{
    begin(false);
    mesh();
    uint64_t a = upload(shard, 1);
    for (int i = 0; i < 3; i++)
        drop(move(shard, a, whole));
    (void)move(shard, a, whole);
    drop(a);
    run(first);
    end();
}
