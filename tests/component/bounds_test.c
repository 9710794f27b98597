/* What a program may do more often than it seems: signatures over their number, chains of operators
 * as long as one likes, lists of strings as arguments; and an engine whose heap is bounded. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"

TestSuite(bounds, .timeout = 600);

#define CHAIN  200000
#define PINNED 15990 /* of the 16,000 that libdtorch keeps */
#define MORE   2000  /* with these over the 16,384 that the controller holds */
#define COUNT  3

static dt_testcluster_t *start(const char *devices, const char *more)
{
    char conf[256];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n%s", devices, more);
    return dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = conf});
}

/* ---- signatures ---- */

/* Define the sum of two vectors of so many int64. */
static dt_status_t define_sum(dt_session_t *session, int64_t size, uint32_t *ret_signature)
{
    dt_operand_t operands[2] = {0};
    const dt_value_t args[] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_tag(DT_VALUE_TENSOR)};
    const dt_operation_t add = {.name = "aten::add.Tensor",
                                .args = args,
                                .arg_count = 2,
                                .inputs = operands,
                                .input_count = 2};
    cr_assert_eq(dt_describe(DT_DTYPE_I64, 1, &size, NULL, &operands[0].meta, NULL), DT_OK);
    operands[1] = operands[0];
    const dt_output_t output = {.alias = DT_ALIAS_FRESH, .meta = operands[0].meta};
    return dt_signature_define(session, &add, &output, 1, 0, ret_signature, NULL);
}

/* The sum of a new tensor of so many elements with itself, by a call or by a signature. */
static void expect_sum(dt_session_t *session, int64_t size, const uint32_t *signature)
{
    int64_t *data = malloc((size_t)size * sizeof *data);
    dt_meta_t meta;
    cr_assert_not_null(data);
    for (int64_t i = 0; i < size; i++)
        data[i] = i;
    dt_tensor_t *x = dt_clienttest_i64(session, data, size), *sum;
    cr_assert_eq(dt_tensor_meta(x, &meta, NULL), DT_OK);
    if (signature) {
        uint64_t inputs[] = {dt_tensor_id(x), dt_tensor_id(x)}, id;
        cr_assert_eq(dt_submit(session, *signature, inputs, 2, NULL, 0, &id, 1, NULL), DT_OK);
        cr_assert_eq(dt_tensor_adopt(session, id, 0, &meta, &sum, NULL), DT_OK);
    } else {
        sum = dt_clienttest_call2(session, "aten::add.Tensor", x, x);
    }
    dt_clienttest_read(sum, data, (size_t)size * sizeof *data);
    cr_assert_eq(data[size - 1], 2 * (size - 1));
    dt_tensor_free(x);
    dt_tensor_free(sum);
    free(data);
}

Test(bounds, of_signatures_are_kept_by_dropping_those_that_nobody_uses)
{
    static uint32_t pinned[PINNED], more[MORE];
    dt_testcluster_t *tc = start("ref", "");
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    uint64_t id;
    for (int64_t i = 0; i < PINNED; i++)
        cr_assert_eq(define_sum(session, i + 1, &pinned[i]), DT_OK, "signature %ld", (long)i);
    for (int round = 0; round < 2; round++) /* more than have room: each is asked for again */
        for (int64_t size = PINNED + 1; size < PINNED + 21; size++)
            expect_sum(session, size, NULL);
    expect_sum(session, 7, &pinned[6]);
    dt_status_t status = DT_OK;
    for (int64_t i = 0; i < 20 && status == DT_OK; i++)
        status = define_sum(session, 20000 + i, &more[i]);
    cr_assert_eq(status, DT_ERR_LIMIT, "what a program holds is not dropped");
    cr_assert_eq(dt_signature_drop(session, pinned, PINNED, NULL), DT_OK);
    cr_assert_eq(dt_submit(session, pinned[6], (uint64_t[]){1, 1}, 2, NULL, 0, &id, 1, NULL),
                 DT_ERR_INVALID, "it was dropped");
    for (int64_t i = 0; i < MORE; i++)
        cr_assert_eq(define_sum(session, 30000 + i, &more[i]), DT_OK, "signature %ld", (long)i);
    expect_sum(session, 30005, &more[5]);
    cr_assert_eq(define_sum(session, 7, &pinned[6]), DT_OK);
    expect_sum(session, 7, &pinned[6]);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- chains ---- */

/* An operator on the result of the one before, again and again. */
static dt_tensor_t *chain(dt_session_t *session, dt_tensor_t *from, dt_tensor_t *by)
{
    dt_tensor_t *at = dt_clienttest_call2(session, "aten::add.Tensor", from, by);
    for (int i = 1; i < CHAIN; i++) {
        dt_tensor_t *next = dt_clienttest_call2(session, "aten::add.Tensor", at, by);
        dt_tensor_free(at);
        at = next;
    }
    return at;
}

Test(bounds, there_are_none_for_the_length_of_a_chain_nor_for_what_follows_an_error)
{
    dt_testcluster_t *tc = start(dt_clienttest_devices(), "");
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const int64_t data[COUNT] = {1, 2, 3}, ones[COUNT] = {1, 1, 1}, index[COUNT] = {0, 1, 77};
    int64_t is[COUNT];
    dt_failure_t failure;
    dt_tensor_t *a = dt_clienttest_i64(session, data, COUNT);
    dt_tensor_t *one = dt_clienttest_i64(session, ones, COUNT);
    dt_tensor_t *wrong = dt_clienttest_i64(session, index, COUNT);
    dt_tensor_t *end = chain(session, a, one);
    dt_clienttest_read(end, is, sizeof is);
    cr_assert(is[0] == CHAIN + 1 && is[2] == CHAIN + 3, "%ld", (long)is[0]);
    dt_tensor_free(end);
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_int(0), dt_arg_tensor(wrong)};
    dt_tensor_t *bad = dt_clienttest_call(session, "aten::index_select", args, 3);
    end = chain(session, bad, one);
    cr_assert_neq(dt_clienttest_fails(end, &failure), DT_OK);
    cr_assert_str_eq(failure.operator_name, "aten::index_select");
    cr_assert_eq(failure.skipped, CHAIN, "%lu were skipped", (unsigned long)failure.skipped);
    dt_tensor_t *const all[] = {a, one, wrong, bad, end};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dt_tensor_free(all[i]);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- arguments ---- */

/* Run an operator on a tensor and a list of two strings (NULL: None). Its result is a view of the
 * tensor with these sizes and strides; nobody is asked, as named tensors exist on the CPU only. */
static dt_tensor_t *named(dt_session_t *session, const char *name, dt_tensor_t *tensor,
                          const char *const *names, const int64_t *sizes, const int64_t *strides)
{
    dt_operand_t operand = {0};
    dt_output_t output = {.alias = DT_ALIAS_VIEW};
    dt_value_t words[2], args[] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_none()};
    uint64_t input = dt_tensor_id(tensor), id;
    dt_tensor_t *made;
    uint32_t signature;
    dt_error_t err;
    for (int i = 0; names && i < 2; i++)
        words[i] = dt_arg_str(names[i], (uint32_t)strlen(names[i]));
    if (names)
        args[1] = (dt_value_t){.tag = DT_VALUE_STRS, .count = 2, .values = words};
    cr_assert_eq(dt_tensor_meta(tensor, &operand.meta, NULL), DT_OK);
    cr_assert_eq(dt_describe(DT_DTYPE_F32, 2, sizes, strides, &output.meta, NULL), DT_OK);
    const dt_operation_t operation = {
        .name = name, .args = args, .arg_count = 2, .inputs = &operand, .input_count = 1};
    cr_assert_eq(dt_signature_define(session, &operation, &output, 1, 0, &signature, &err), DT_OK,
                 "%s", err.text);
    cr_assert_eq(dt_submit(session, signature, &input, 1, NULL, 0, &id, 1, &err), DT_OK, "%s",
                 err.text);
    cr_assert_eq(dt_tensor_adopt(session, id, 0, &output.meta, &made, &err), DT_OK, "%s", err.text);
    return made;
}

Test(bounds, lists_of_strings_arrive_as_they_are)
{
    if (strcmp(dt_clienttest_devices(), "ref") == 0)
        cr_skip_test("ref has no operator of this kind");
    static const int64_t wide[] = {2, 3}, by_row[] = {3, 1}, tall[] = {3, 2}, by_column[] = {1, 3};
    static const char *const rows[] = {"dimname::ROWS", "dimname::COLUMNS"};
    static const char *const columns[] = {"dimname::COLUMNS", "dimname::ROWS"};
    dt_testcluster_t *tc = start(dt_clienttest_devices(), "");
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    const float data[6] = {0, 1, 2, 3, 4, 5};
    float is[6];
    dt_tensor_t *a = dt_clienttest_f32(session, 2, wide, data);
    dt_tensor_t *b = named(session, "aten::rename", a, rows, wide, by_row);
    dt_tensor_t *c = named(session, "aten::align_to", b, columns, tall, by_column);
    dt_tensor_t *d = named(session, "aten::rename", c, NULL, tall, by_column);
    dt_clienttest_read(d, is, sizeof is);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(is[i], data[i % 2 * 3 + i / 2], "element %d", i);
    /* The names alone, by dt_call(): what comes out is known without running it. */
    dt_value_t words[2];
    for (int i = 0; i < 2; i++)
        words[i] = dt_arg_str(rows[i], (uint32_t)strlen(rows[i]));
    const dt_value_t args[] = {dt_arg_tensor(a),
                               {.tag = DT_VALUE_STRS, .count = 2, .values = words}};
    dt_tensor_t *e = dt_clienttest_call(session, "aten::rename", args, 2);
    const dt_value_t nameless[] = {dt_arg_tensor(e), dt_arg_none()};
    dt_tensor_t *f = dt_clienttest_call(session, "aten::rename", nameless, 2);
    dt_clienttest_read(e, is, sizeof is);
    cr_assert_eq(memcmp(is, data, sizeof is), 0, "values have no names");
    dt_clienttest_read(f, is, sizeof is);
    cr_assert_eq(memcmp(is, data, sizeof is), 0);
    dt_tensor_t *const all[] = {a, b, c, d, e, f};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dt_tensor_free(all[i]);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- an engine's heap ---- */

Test(bounds, an_engine_s_heap_is_bounded_and_its_tensors_are_not_part_of_it)
{
    if (strcmp(dt_clienttest_devices(), "ref") == 0)
        cr_skip_test("needs the torch backend");
    dt_testcluster_t *tc = start(dt_clienttest_devices(), "EngineHeapMax=1GiB\n");
    dt_session_t *session = dt_clienttest_connect(tc, NULL, NULL);
    static const int64_t sizes[] = {3, INT64_C(1) << 29}; /* 6 GiB, of which few are touched */
    const float data[4] = {1, 2, 3, 4};
    float is[4];
    dt_value_t args[6] = {dt_arg_ints(sizes, 2)};
    for (int i = 1; i < 6; i++)
        args[i] = dt_arg_none();
    dt_tensor_t *a = dt_clienttest_f32(session, 2, (int64_t[]){2, 2}, data);
    dt_tensor_t *product = dt_clienttest_call2(session, "aten::mm", a, a);
    dt_clienttest_read(product, is, sizeof is);
    cr_assert(is[0] == 7 && is[3] == 22);
    dt_tensor_t *large = dt_clienttest_call(session, "aten::empty.memory_format", args, 6);
    const dt_value_t row[] = {dt_arg_tensor(large), dt_arg_int(0), dt_arg_int(2)};
    const dt_value_t part[] = {dt_arg_tensor(NULL), dt_arg_int(0), dt_arg_int(0), dt_arg_int(4)};
    dt_tensor_t *last = dt_clienttest_call(session, "aten::select.int", row, 3);
    dt_value_t cut[4];
    memcpy(cut, part, sizeof cut);
    cut[0] = dt_arg_tensor(last);
    dt_tensor_t *four = dt_clienttest_call(session, "aten::slice.Tensor", cut, 4);
    dt_clienttest_read(four, is, sizeof is);
    dt_tensor_t *const all[] = {a, product, large, last, four};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dt_tensor_free(all[i]);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
