/* The executor against a backend that is written here: what is run, what is poisoned and by whom,
 * what is checked, counted, and given back. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "lib/execrig.h"
#include "lib/fakebackend.h"

TestSuite(engine_exec, .timeout = 60);

/* ---- helpers ---- */

static const int64_t four[] = {4};
static const float ones[] = {1, 1, 1, 1};
static const float ramp[] = {1, 2, 3, 4};

static void begin_on(dt_execrig_t *rig, const dt_backend_t *backend)
{
    memset(&fake, 0, sizeof fake);
    fake.memory = dt_exec_backend_memory();
    dt_execrig_init(rig, backend, NULL, true);
}

static void begin(dt_execrig_t *rig)
{
    begin_on(rig, &fake_backend);
}

static void end(dt_execrig_t *rig)
{
    dt_execrig_fini(rig);
    cr_assert_eq(fake.tensors, 0, "%d tensors are left", fake.tensors);
}

static uint64_t upload4(dt_execrig_session_t *s, const float *values)
{
    return dt_execrig_upload(s, DT_DTYPE_F32, 1, four, values);
}

static uint32_t define(dt_execrig_session_t *s, enum fake_op op, uint32_t inputs, unsigned alias)
{
    return dt_execrig_define_f32(s, fake_names[op], inputs, 1, four, alias, 0);
}

static uint64_t op2(dt_execrig_session_t *s, uint32_t sig, uint64_t a, uint64_t b)
{
    return dt_execrig_op(s, sig, (uint64_t[]){a, b}, 2, true);
}

static void expect_value(dt_execrig_session_t *s, uint64_t tensor, float first, float step)
{
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(s, dt_execrig_fetch(s, tensor));
    cr_assert_not_null(up);
    cr_assert_null(up->result->error, "%s", up->result->error ? up->result->error->text : "");
    cr_assert_eq(up->result->value.len, 16);
    float is[4];
    memcpy(is, up->result->value.data, sizeof is);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(is[i], first + step * (float)i, "%d: %g", i, (double)is[i]);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

/* Gives the error of a fetch. */
static Dtorch__V1__WorkerSessionUp *failing(dt_execrig_session_t *s, uint64_t tensor)
{
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(s, dt_execrig_fetch(s, tensor));
    cr_assert_not_null(up);
    cr_assert_not_null(up->result->error, "a value came");
    return up;
}

static void expect_error(dt_execrig_session_t *s, uint64_t tensor, const char *kind,
                         uint64_t sequence)
{
    Dtorch__V1__WorkerSessionUp *up = failing(s, tensor);
    cr_assert_str_eq(up->result->error->kind, kind);
    if (sequence)
        cr_assert_eq(up->result->error->sequence, sequence);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

/* ---- tests ---- */

Test(engine_exec, runs_operators_and_answers_in_order)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint32_t add = define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint64_t a = upload4(&s, ones);
    uint64_t b = upload4(&s, ramp);
    uint64_t c = op2(&s, add, a, b);
    expect_value(&s, op2(&s, add, c, c), 4, 2);
    dt_execrig_free(&s, a);
    expect_value(&s, c, 2, 1);
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_next(&s);
    cr_assert_eq(up->kind_case, DTORCH__V1__WORKER_SESSION_UP__KIND_EXECUTED);
    cr_assert_eq(up->executed->sequence, s.sequence - 1);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    cr_assert_eq(atomic_load(&s.channel->executed), s.sequence - 1);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, a_failed_operator_poisons_what_depends_on_it_with_the_first_cause)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint32_t add = define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint32_t fail = define(&s, FAKE_FAIL, 2, DT_ALIAS_FRESH);
    uint64_t a = upload4(&s, ones);
    static dt_record_t mark;
    mark = (dt_record_t){.kind = DT_RECORD_MARK};
    mark.note.what = DT_MARK_SOURCE;
    mark.note.value = 3;
    mark.note.text = "train.py:57 in loss";
    mark.note.text_bytes = 19;
    dt_execrig_put(&s, &mark);
    mark.note.what = DT_MARK_RANGE_BEGIN;
    mark.note.text = "epoch 1";
    mark.note.text_bytes = 7;
    dt_execrig_put(&s, &mark);
    uint64_t failed = op2(&s, fail, a, a); /* record 6 */
    uint64_t later = op2(&s, fail, a, a);
    uint64_t both = op2(&s, add, later, failed);
    uint64_t good = op2(&s, add, a, a);
    int calls = 3;
    Dtorch__V1__WorkerSessionUp *up = failing(&s, both);
    cr_assert_eq(fake.calls, calls, "a poisoned operator was run");
    cr_assert_str_eq(up->result->error->kind, "IndexError");
    cr_assert_eq(up->result->error->sequence, 6);
    cr_assert_eq(up->result->error->skipped, 1);
    cr_assert_str_eq(up->result->error->text, "index 7 is out of bounds for dimension 0");
    cr_assert_str_eq(up->result->error->operator_name, "aten::fail");
    cr_assert_str_eq(up->result->error->inputs, "float32 (4,), float32 (4,)");
    cr_assert_str_eq(up->result->error->source, "train.py:57 in loss");
    cr_assert_str_eq(up->result->error->node, "w0");
    cr_assert_eq(up->result->error->n_range, 1);
    cr_assert_str_eq(up->result->error->range[0], "epoch 1");
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    expect_value(&s, good, 2, 0);
    expect_error(&s, later, "IndexError", 7);
    dt_execrig_free(&s, failed);
    dt_execrig_free(&s, later);
    expect_error(&s, both, "IndexError", 6);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, the_first_cause_is_told_before_it_is_fetched)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint32_t fail = define(&s, FAKE_FAIL, 1, DT_ALIAS_FRESH);
    uint64_t a = upload4(&s, ones);
    (void)dt_execrig_op(&s, fail, &a, 1, true);
    dt_execrig_run(&s);
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_next(&s);
    cr_assert_eq(up->kind_case, DTORCH__V1__WORKER_SESSION_UP__KIND_POISON);
    cr_assert_eq(up->poison->sequence, 3);
    cr_assert_str_eq(up->poison->error->kind, "IndexError");
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, an_operator_in_place_that_fails_poisons_all_views)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint32_t view = define(&s, FAKE_VIEW, 1, DT_ALIAS_VIEW);
    uint32_t write = define(&s, FAKE_ADD_INPLACE, 2, DT_ALIAS_IN_PLACE);
    uint32_t fail = define(&s, FAKE_FAIL, 2, DT_ALIAS_IN_PLACE);
    uint64_t a = upload4(&s, ones);
    uint64_t b = upload4(&s, ramp);
    uint64_t v = dt_execrig_op(&s, view, &a, 1, true);
    (void)dt_execrig_op(&s, write, (uint64_t[]){v, b}, 2, false);
    expect_value(&s, a, 2, 1);
    (void)dt_execrig_op(&s, fail, (uint64_t[]){a, b}, 2, false);
    expect_error(&s, v, "IndexError", 0);
    expect_error(&s, a, "IndexError", 0);
    expect_value(&s, b, 1, 1);
    dt_execrig_close(&s);
    end(&rig);
}

static int glances; /* that fake_is() was asked for */

static bool fake_is(void *device, void *handle, const dt_meta_t *meta, const void **ret_storage)
{
    const fake_tensor_t *tensor = handle;
    (void)device;
    glances++;
    *ret_storage = tensor->storage;
    return !meta || dt_meta_equal(meta, &tensor->meta);
}

static void check_results(const dt_backend_t *backend)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin_on(&rig, backend);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint64_t a = upload4(&s, ones);
    uint32_t lie = define(&s, FAKE_LIE, 1, DT_ALIAS_FRESH);
    uint32_t view_as_new = define(&s, FAKE_VIEW, 1, DT_ALIAS_FRESH);
    uint32_t new_as_view = define(&s, FAKE_ADD, 2, DT_ALIAS_VIEW);
    uint32_t unchecked = dt_execrig_define_f32(&s, fake_names[FAKE_LIE], 1, 1, four, DT_ALIAS_FRESH,
                                               DT_SIGNATURE_DATA_DEPENDENT);
    Dtorch__V1__WorkerSessionUp *up = failing(&s, dt_execrig_op(&s, lie, &a, 1, true));
    cr_assert_str_eq(up->result->error->kind, "MetadataError");
    cr_assert_str_eq(up->result->error->text,
                     "output 0 was said to be float32 (4,) and is float32 (1,)");
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    expect_error(&s, dt_execrig_op(&s, view_as_new, &a, 1, true), "MetadataError", 0);
    expect_error(&s, op2(&s, new_as_view, a, a), "MetadataError", 0);
    up = dt_execrig_result(&s, dt_execrig_fetch(&s, dt_execrig_op(&s, unchecked, &a, 1, true)));
    cr_assert_null(up->result->error);
    cr_assert_eq(up->result->value.len, 4, "its own size");
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    uint32_t view = define(&s, FAKE_VIEW, 1, DT_ALIAS_VIEW);
    expect_value(&s, dt_execrig_op(&s, view, &a, 1, true), 1, 0);
    expect_value(&s, op2(&s, define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH), a, a), 2, 0);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, results_that_are_not_as_said_are_an_error)
{
    check_results(&fake_backend);
}

Test(engine_exec, results_are_compared_by_a_glance_where_the_backend_has_it)
{
    dt_backend_t quick = fake_backend;
    quick.tensor_is = fake_is;
    check_results(&quick);
    cr_assert_gt(glances, 0);
}

Test(engine_exec, an_unknown_operator_is_refused_by_name)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 2, 1 << 20);
    uint64_t a = upload4(&s, ones);
    uint32_t unknown = dt_execrig_define_f32(&s, "aten::no_such", 1, 1, four, DT_ALIAS_FRESH, 0);
    expect_error(&s, dt_execrig_op(&s, unknown, &a, 1, true), "NotImplementedError", 0);
    expect_value(&s, a, 1, 0);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, what_lies_on_other_devices_is_passed_over)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    static dt_record_t record;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    record = (dt_record_t){.kind = DT_RECORD_DEF_MESH};
    record.mesh.id = 1;
    record.mesh.ndim = 1;
    record.mesh.sizes[0] = record.mesh.vdev_count = 1;
    record.mesh.vdevs = (const uint64_t[]){7};
    record.mesh.names[0] = "";
    dt_execrig_put(&s, &record);
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    (void)!dt_meta_set(&record.move.meta, DT_DTYPE_F32, 1, four, NULL, 0, NULL);
    record.move.output = ++s.tensor;
    record.move.size = 16;
    record.move.bytes = (const uint8_t *)ones;
    record.move.layout.mesh = 1;
    dt_execrig_put(&s, &record);
    cr_assert_null(dt_execrig_result(&s, dt_execrig_fetch(&s, s.tensor)), "it is not ours");
    cr_assert_eq(fake.tensors, 0);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, numbers_that_change_come_with_each_operator)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint64_t a = upload4(&s, ramp);
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_DYNAMIC}};
    dt_signature_tensor_t tensors[2] = {{0}};
    for (int i = 0; i < 2; i++)
        (void)!dt_meta_set(&tensors[i].meta, DT_DTYPE_F32, 1, four, NULL, 0, NULL);
    const dt_signature_t sig = {.name = fake_names[FAKE_SCALE],
                                .arg_count = 2,
                                .input_count = 1,
                                .output_count = 1,
                                .id_count = 1,
                                .dynamic_count = 1,
                                .args = args,
                                .inputs = &tensors[0],
                                .outputs = &tensors[1]};
    static dt_record_t record;
    uint32_t scale = dt_execrig_define(&s, &sig);
    uint64_t outputs[2];
    for (int i = 0; i < 2; i++) {
        const dt_value_t number = {.tag = DT_VALUE_DOUBLE, .real = i + 2.0};
        record = (dt_record_t){.kind = DT_RECORD_OP};
        outputs[i] = ++s.tensor;
        record.op = (dt_record_op_t){scale, 1, 1, 1, &a, &outputs[i], &number};
        dt_execrig_put(&s, &record);
    }
    expect_value(&s, outputs[0], 2, 2);
    expect_value(&s, outputs[1], 3, 3);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, memory_over_the_limit_fails_that_operator_only)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    const int64_t many[] = {1 << 18}; /* 1 MiB */
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 3 << 20);
    uint32_t add = dt_execrig_define_f32(&s, fake_names[FAKE_ADD], 2, 1, many, DT_ALIAS_FRESH, 0);
    uint32_t small = define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint64_t a = dt_execrig_upload(&s, DT_DTYPE_F32, 1, many, NULL);
    float *zeros = calloc(1 << 18, sizeof *zeros);
    dt_execrig_chunk(&s, a, 0, zeros, 1 << 20);
    uint64_t b = op2(&s, add, a, a);
    uint64_t c = op2(&s, add, a, b);
    uint64_t over = op2(&s, add, a, a);
    expect_error(&s, over, "OutOfMemoryError", 0);
    uint64_t x = upload4(&s, ones); /* nothing is left */
    expect_error(&s, x, "OutOfMemoryError", 0);
    dt_execrig_free(&s, c);
    x = upload4(&s, ones);
    expect_value(&s, op2(&s, small, x, x), 2, 0);
    free(zeros);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, an_upload_in_pieces_holds_back_only_its_own_session)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    dt_execrig_session_t other;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    dt_execrig_open(&rig, &other, 2, 1, 1 << 20);
    uint32_t add = define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint64_t late = upload4(&s, NULL);
    uint64_t future = dt_execrig_fetch(&s, op2(&s, add, late, late));
    cr_assert_null(dt_execrig_result(&s, future));
    uint64_t b = upload4(&other, ramp);
    expect_value(&other, b, 1, 1);
    dt_execrig_chunk(&s, late, 8, ramp + 2, 8); /* a hole: ignored */
    dt_execrig_chunk(&s, late, 0, ramp, 8);
    cr_assert_null(dt_execrig_result(&s, future));
    dt_execrig_chunk(&s, late, 0, ramp, 8); /* known already */
    dt_execrig_chunk(&s, late, 8, ramp + 2, 8);
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(&s, future);
    cr_assert_not_null(up);
    float is[4];
    memcpy(is, up->result->value.data, sizeof is);
    cr_assert_eq(is[3], 8);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    dt_execrig_close(&s);
    dt_execrig_close(&other);
    end(&rig);
}

Test(engine_exec, chunks_that_come_before_their_upload_are_kept)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    dt_execrig_chunk(&s, 1, 0, ramp, 16);
    dt_execrig_run(&s);
    expect_value(&s, upload4(&s, NULL), 1, 1);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, a_damaged_chunk_ends_its_transfer)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint64_t outside = upload4(&s, NULL);
    uint64_t fine = upload4(&s, NULL);
    dt_execrig_run(&s);
    dt_execrig_chunk(&s, outside, 8, ramp, 16);
    dt_execrig_chunk(&s, fine, 0, ramp, 16);
    expect_error(&s, outside, "RuntimeError", 0);
    expect_value(&s, fine, 1, 1);
    dt_execrig_close(&s);
    end(&rig);
}

/* Fetch 12 MiB, more than may be ahead, and write the tensor after it: at once, or when some of it
 * has left already (`round`). */
static void fetch_large(uint64_t limit_bytes, int round)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    const int64_t many[] = {3 << 20};
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, limit_bytes);
    float *values = malloc(12 << 20);
    for (int i = 0; i < 3 << 20; i++)
        values[i] = (float)i;
    uint64_t a = dt_execrig_upload(&s, DT_DTYPE_F32, 1, many, NULL);
    for (uint64_t at = 0; at < 12 << 20; at += 1 << 20)
        dt_execrig_chunk(&s, a, at, (char *)values + at, 1 << 20);
    uint32_t write =
        dt_execrig_define_f32(&s, fake_names[FAKE_ADD_INPLACE], 2, 1, many, DT_ALIAS_IN_PLACE, 0);
    uint64_t future = dt_execrig_fetch(&s, a);
    if (round == 0)
        (void)dt_execrig_op(&s, write, (uint64_t[]){a, a}, 2, false);
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(&s, future);
    cr_assert_not_null(up);
    cr_assert_null(up->result->error);
    cr_assert_eq(up->result->transfer, future);
    cr_assert_eq(up->result->size_bytes, 12 << 20);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    uint64_t got = 0;
    dt_execrig_ack(&s, future, 0, true); /* what came before the result was not looked at */
    for (int rounds = 0; got < 12 << 20 && rounds < 100; rounds++) {
        if (round > 0 && rounds == round)
            (void)dt_execrig_op(&s, write, (uint64_t[]){a, a}, 2, false);
        dt_execrig_run(&s);
        while ((up = dt_execrig_next(&s)) != NULL) {
            if (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_CHUNK &&
                up->chunk->transfer == future && up->chunk->offset == got) {
                cr_assert_eq(
                    memcmp(up->chunk->data.data, (char *)values + got, up->chunk->data.len), 0,
                    "later writes are seen");
                got += up->chunk->data.len;
            }
            dtorch__v1__worker_session_up__free_unpacked(up, NULL);
        }
        if (rounds == 1) /* what was sent is lost: from there again */
            got -= 1 << 20;
        dt_execrig_ack(&s, future, got, rounds == 1);
    }
    cr_assert_eq(got, 12 << 20);
    Dtorch__V1__WorkerSessionUp *after = dt_execrig_result(&s, dt_execrig_fetch(&s, a));
    cr_assert_not_null(after, "the session waits still");
    dtorch__v1__worker_session_up__free_unpacked(after, NULL);
    free(values);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, a_large_value_comes_in_chunks_and_is_the_value_of_its_place)
{
    fetch_large(64 << 20, 0);
}

Test(engine_exec, a_write_in_the_middle_of_a_fetch_is_not_seen_in_it)
{
    fetch_large(64 << 20, 1);
    fetch_large(64 << 20, 2);
}

Test(engine_exec, a_write_in_the_middle_of_a_fetch_waits_where_there_is_no_memory_for_a_copy)
{
    fetch_large(13 << 20, 1);
}

Test(engine_exec, a_value_that_cannot_be_copied_is_sent_while_the_session_waits)
{
    fetch_large(13 << 20, 0);
}

/* Bytes of a transfer among what goes up now. */
static uint64_t bytes_of(dt_execrig_session_t *s, uint64_t transfer)
{
    uint64_t bytes = 0;
    Dtorch__V1__WorkerSessionUp *up;
    dt_execrig_run(s);
    while ((up = dt_execrig_next(s)) != NULL) {
        if (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_CHUNK &&
            up->chunk->transfer == transfer)
            bytes += up->chunk->data.len;
        dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    }
    return bytes;
}

/* The program has dropped the first value, and the answer that says so was lost. */
Test(engine_exec, a_value_whose_answer_is_lost_holds_others_until_it_is_said_again)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    const int64_t many[] = {3 << 20};
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 64 << 20);
    char *zeros = calloc(1, 1 << 20);
    uint64_t a = dt_execrig_upload(&s, DT_DTYPE_F32, 1, many, NULL);
    for (uint64_t at = 0; at < 12 << 20; at += 1 << 20)
        dt_execrig_chunk(&s, a, at, zeros, 1 << 20);
    uint64_t dropped = dt_execrig_fetch(&s, a);
    uint64_t sent = 0, more;
    while ((more = bytes_of(&s, dropped)) > 0)
        sent += more;
    cr_assert_geq(sent, DT_EXEC_AHEAD_MAX);
    uint64_t wanted = dt_execrig_fetch(&s, a);
    cr_assert_eq(bytes_of(&s, wanted), 0, "it goes past what is on its way");
    dt_execrig_ack(&s, 0, 0, true); /* whatever was on its way, nobody knows of it */
    cr_assert_gt(bytes_of(&s, dropped), 0, "it is not said again");
    dt_execrig_ack(&s, dropped, INT64_MAX, false); /* as the controller answers then */
    cr_assert_gt(bytes_of(&s, wanted), 0, "it is held still");
    free(zeros);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, random_streams_of_sessions_are_their_own)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    dt_execrig_session_t other;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    dt_execrig_open(&rig, &other, 2, 1, 1 << 20);
    uint32_t add = define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint32_t add2 = define(&other, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint64_t a = upload4(&s, ones);
    uint64_t b = upload4(&other, ones);
    expect_value(&s, op2(&s, add, a, a), 2, 0);
    expect_value(&other, op2(&other, add2, b, b), 2, 0);
    expect_value(&s, op2(&s, add, a, a), 2, 0);
    cr_assert_neq(fake.used[0], fake.used[1]);
    cr_assert_eq(fake.used[0], fake.used[2]);
    dt_execrig_close(&s);
    dt_execrig_close(&other);
    end(&rig);
}

Test(engine_exec, frames_that_were_performed_are_not_performed_again)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint32_t write = define(&s, FAKE_ADD_INPLACE, 2, DT_ALIAS_IN_PLACE);
    uint64_t a = upload4(&s, ones);
    uint64_t b = upload4(&s, ones);
    dt_execrig_run(&s);
    for (int i = 0; i < 3; i++) { /* the same frame again, then one that overlaps */
        s.sequence = 4;
        (void)dt_execrig_op(&s, write, (uint64_t[]){a, b}, 2, false);
        if (i == 2)
            (void)dt_execrig_op(&s, write, (uint64_t[]){a, b}, 2, false);
        dt_execrig_run(&s);
    }
    expect_value(&s, a, 3, 0);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, a_broken_stream_ends_in_errors_and_not_in_silence)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint64_t a = upload4(&s, ones);
    dt_execrig_run(&s);
    s.sequence += 5; /* a hole */
    expect_error(&s, a, "RuntimeError", 0);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, a_full_up_ring_holds_back_its_session_until_it_is_read)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    dt_execrig_session_t other;
    const int64_t sizes[] = {1024};
    float values[1024] = {1};
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    dt_execrig_open(&rig, &other, 2, 1, 1 << 20);
    uint64_t a = dt_execrig_upload(&s, DT_DTYPE_F32, 1, sizes, values);
    const int fetches = 4000; /* 16 MiB of results */
    for (int i = 0; i < fetches; i++)
        (void)dt_execrig_fetch(&s, a);
    dt_execrig_run(&s);
    uint64_t b = upload4(&other, ramp);
    expect_value(&other, b, 1, 1);
    int results = 0;
    for (int rounds = 0; results < fetches && rounds < 20; rounds++) {
        Dtorch__V1__WorkerSessionUp *up;
        while ((up = dt_execrig_next(&s)) != NULL) {
            if (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_RESULT)
                cr_assert_eq(up->result->future, (uint64_t)++results);
            dtorch__v1__worker_session_up__free_unpacked(up, NULL);
        }
        dt_execrig_run(&s);
    }
    cr_assert_eq(results, fetches);
    dt_execrig_close(&s);
    dt_execrig_close(&other);
    end(&rig);
}

Test(engine_exec, counts_operators_by_name)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint32_t add = define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint32_t fail = define(&s, FAKE_FAIL, 1, DT_ALIAS_FRESH);
    uint64_t a = upload4(&s, ones);
    for (int i = 0; i < 10; i++)
        (void)op2(&s, add, a, a);
    (void)dt_execrig_op(&s, fail, &a, 1, true);
    dt_execrig_run(&s);
    Dtorch__V1__SessionStats *stats = NULL;
    Dtorch__V1__WorkerSessionUp *up;
    while ((up = dt_execrig_next(&s)) != NULL && !stats) {
        if (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_STATS) {
            stats = up->stats;
            cr_assert_eq(stats->n_operators, 2);
            cr_assert_str_eq(stats->operators[0]->name, "aten::add.Tensor");
            cr_assert_eq(stats->operators[0]->count, 10);
            cr_assert_eq(stats->operators[0]->bytes, 480);
            cr_assert_eq(stats->operators[1]->errors, 1);
            cr_assert_eq(stats->tensors, 12);
            cr_assert_eq(stats->memory_bytes, 11 * 64);
        }
        dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    }
    cr_assert_not_null(stats);
    dt_execrig_close(&s);
    end(&rig);
}

Test(engine_exec, closing_frees_all_whatever_state_it_is_in)
{
    dt_execrig_t rig;
    dt_execrig_session_t s;
    begin(&rig);
    dt_execrig_open(&rig, &s, 1, 1, 1 << 20);
    uint32_t add = define(&s, FAKE_ADD, 2, DT_ALIAS_FRESH);
    uint32_t fail = define(&s, FAKE_FAIL, 1, DT_ALIAS_FRESH);
    uint64_t late = upload4(&s, NULL);
    uint64_t a = upload4(&s, ones);
    uint64_t bad = dt_execrig_op(&s, fail, &a, 1, true);
    (void)op2(&s, add, bad, a);
    (void)op2(&s, add, late, a);
    dt_execrig_chunk(&s, 99, 0, ramp, 16);
    dt_execrig_run(&s);
    dt_execrig_close(&s);
    end(&rig);
}

/* Operators that a session has performed of those behind record `first`. */
static int64_t done_since(const dt_execrig_session_t *s, uint64_t first)
{
    uint64_t executed = atomic_load(&s->channel->executed);
    return executed < first ? 0 : (int64_t)(executed - first) + 1;
}

Test(engine_exec, sessions_get_the_same_time_whatever_their_operators_take)
{
    enum { SLOW_MS = 20, SLOW_OPS = 20, OPS = 420 };
    dt_execrig_t rig;
    dt_execrig_session_t s[2];
    uint64_t first[2];
    memset(&fake, 0, sizeof fake);
    fake.memory = dt_exec_backend_memory();
    dt_execrig_init(&rig, &fake_backend, NULL, true);
    for (uint32_t i = 0; i < 2; i++) {
        dt_execrig_open(&rig, &s[i], i + 1, 1, 1 << 20);
        uint32_t sig = define(&s[i], i == 0 ? FAKE_SLOW : FAKE_ADD, 1, DT_ALIAS_FRESH);
        uint64_t a = upload4(&s[i], ones);
        dt_execrig_flush(&s[i]);
        first[i] = s[i].sequence;
        for (int k = 0; k < (i == 0 ? SLOW_OPS : OPS); k++)
            (void)dt_execrig_op(&s[i], sig, &a, 1, true);
        dt_execrig_flush(&s[i]);
    }
    fake.clock_ns = &rig.now_ns;
    fake.op_ns = DT_CLOCK_MS_NS;
    fake.slow_ns = SLOW_MS * DT_CLOCK_MS_NS;
    while (done_since(&s[0], first[0]) < SLOW_OPS) {
        cr_assert(dt_exec_turn(rig.exec));
        int64_t slow_ms = done_since(&s[0], first[0]) * SLOW_MS;
        int64_t quick_ms = done_since(&s[1], first[1]);
        cr_assert(slow_ms - quick_ms <= SLOW_MS + 1 && quick_ms - slow_ms <= SLOW_MS + 1,
                  "%d ms and %d ms", (int)slow_ms, (int)quick_ms);
    }
    fake.clock_ns = NULL;
    dt_execrig_close(&s[0]);
    dt_execrig_close(&s[1]);
    end(&rig);
}
