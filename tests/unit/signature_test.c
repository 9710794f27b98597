#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "wire/signature.h"

TestSuite(signature, .timeout = 60);

static dt_signature_tensor_t tensor(unsigned dtype, int64_t rows, int64_t columns)
{
    dt_signature_tensor_t t = {0};
    const int64_t sizes[] = {rows, columns};
    cr_assert(eq(int, dt_meta_set(&t.meta, dtype, 2, sizes, NULL, 0, NULL), DT_OK));
    return t;
}

/* Every kind of argument in one signature. */
static dt_signature_t everything(dt_signature_tensor_t *inputs, dt_signature_tensor_t *outputs)
{
    static const int64_t ints[] = {0, -5, INT64_MAX};
    static const double doubles[] = {1.5, -0.0}, one_minus_2i[] = {1, -2};
    static const uint8_t bools[] = {1, 0, 1};
    static const uint64_t ids[] = {1, 0, 1};
    static const dt_value_t numbers[] = {
        {.tag = DT_VALUE_INT, .number = 64},
        {.tag = DT_VALUE_TRUE},
        {.tag = DT_VALUE_COMPLEX, .count = 2, .doubles = one_minus_2i}};
    static const dt_value_t strs[] = {{.tag = DT_VALUE_STR, .count = 2, .text = "ab"},
                                      {.tag = DT_VALUE_STR, .count = 0, .text = ""}};
    static const dt_value_t args[] = {
        {.tag = DT_VALUE_TENSOR},
        {.tag = DT_VALUE_DEFAULT},
        {.tag = DT_VALUE_NONE},
        {.tag = DT_VALUE_FALSE},
        {.tag = DT_VALUE_TRUE},
        {.tag = DT_VALUE_INT, .number = 63},
        {.tag = DT_VALUE_INT, .number = -1},
        {.tag = DT_VALUE_DOUBLE, .real = 0.1},
        {.tag = DT_VALUE_COMPLEX, .count = 2, .doubles = one_minus_2i},
        {.tag = DT_VALUE_STR, .count = 5, .text = "ij,jk"},
        {.tag = DT_VALUE_INTS, .count = 3, .ints = ints},
        {.tag = DT_VALUE_DOUBLES, .count = 2, .doubles = doubles},
        {.tag = DT_VALUE_BOOLS, .count = 3, .bools = bools},
        {.tag = DT_VALUE_TENSORS, .count = 3, .ids = ids},
        {.tag = DT_VALUE_VALUES, .count = 3, .values = numbers},
        {.tag = DT_VALUE_STRS, .count = 2, .values = strs},
        {.tag = DT_VALUE_DTYPE, .number = DT_DTYPE_BF16},
        {.tag = DT_VALUE_LAYOUT, .number = 0},
        {.tag = DT_VALUE_MEMORY_FORMAT, .number = 2},
        {.tag = DT_VALUE_DEVICE, .number = 1, .index = -1},
        {.tag = DT_VALUE_GENERATOR, .number = 3},
        {.tag = DT_VALUE_DYNAMIC},
    };
    for (int i = 0; i < 3; i++)
        inputs[i] = tensor(DT_DTYPE_F32, i, 7);
    outputs[0] = tensor(DT_DTYPE_I64, 1, 1);
    outputs[1] = tensor(DT_DTYPE_F32, 2, 7);
    outputs[1].alias = DT_ALIAS_IN_PLACE;
    outputs[1].input = 2;
    outputs[2] = (dt_signature_tensor_t){.alias = DT_ALIAS_NONE};
    return (dt_signature_t){.name = "aten::everything.out",
                            .arg_count = sizeof args / sizeof args[0],
                            .args = args,
                            .input_count = 3,
                            .inputs = inputs,
                            .output_count = 3,
                            .outputs = outputs,
                            .flags = DT_SIGNATURE_RANDOM};
}

static int decode(dt_arena_t *arena, const uint8_t *bytes, size_t size, dt_signature_t **ret)
{
    dt_cursor_t cursor = {.at = bytes, .end = bytes + size};
    int error = dt_signature_decode(&cursor, arena, ret);
    return error ? error : cursor.at == cursor.end ? 0 : DT_FRAME_E_BODY;
}

Test(signature, every_kind_of_argument_survives_the_way_there)
{
    dt_signature_tensor_t inputs[3], outputs[3];
    dt_signature_t put = everything(inputs, outputs), *got = NULL;
    dt_buf_t first, second;
    dt_arena_t arena;
    dt_arena_init(&arena, 1 << 20);
    dt_buf_init(&first, DT_SIGNATURE_BYTES_MAX);
    dt_buf_init(&second, DT_SIGNATURE_BYTES_MAX);
    cr_assert(eq(int, dt_signature_encode(&put, &first, NULL), DT_OK));
    cr_assert(eq(int, decode(&arena, first.data, first.len, &got), 0));
    cr_assert_str_eq(got->name, put.name);
    cr_assert(eq(u32, got->input_count, 3));
    cr_assert(eq(u32, got->dynamic_count, 1));
    cr_assert(eq(u32, got->id_count, 1));
    cr_assert(eq(int, dt_signature_encode(got, &second, NULL), DT_OK));
    cr_assert(eq(sz, first.len, second.len));
    cr_assert(memcmp(first.data, second.data, first.len) == 0);
    dt_buf_fini(&first);
    dt_buf_fini(&second);
    dt_arena_fini(&arena);
}

Test(signature, every_cut_of_a_body_is_an_error)
{
    dt_signature_tensor_t inputs[3], outputs[3];
    dt_signature_t put = everything(inputs, outputs), *got = NULL;
    dt_buf_t buf;
    dt_arena_t arena;
    dt_arena_init(&arena, 1 << 20);
    dt_buf_init(&buf, DT_SIGNATURE_BYTES_MAX);
    cr_assert(eq(int, dt_signature_encode(&put, &buf, NULL), DT_OK));
    for (size_t size = 0; size < buf.len; size++) {
        cr_assert(ne(int, decode(&arena, buf.data, size, &got), 0), "cut at %zu", size);
        dt_arena_reset(&arena);
    }
    dt_buf_fini(&buf);
    dt_arena_fini(&arena);
}

Test(signature, malformed_bodies_are_refused_with_their_number)
{
    static const struct {
        uint8_t bytes[24];
        uint8_t size;
        int error;
    } cases[] = {
        {{0, 0, 0, 0}, 4, DT_FRAME_E_BODY},                        /* no name */
        {{1, 'a', 65}, 3, DT_FRAME_E_LIMIT},                       /* 65 arguments */
        {{1, 'a', 1, 22, 0, 0}, 6, DT_FRAME_E_BODY},               /* unknown tag */
        {{1, 'a', 1, 4, 2, 0, 0}, 7, DT_FRAME_E_BODY},             /* 1 has a shorter form */
        {{1, 'a', 1, 9, 0xff, 0xff, 3, 0, 0}, 9, DT_FRAME_E_BODY}, /* a list that is not there */
        {{1, 'a', 1, 13, 1, 13, 0, 0, 0}, 9, DT_FRAME_E_BODY},     /* a list in a list of numbers */
        {{1, 'a', 1, 13, 1, 1, 0, 0}, 8, DT_FRAME_E_BODY},         /* None among numbers */
        {{1, 'a', 1, 11, 1, 2, 0, 0}, 8, DT_FRAME_E_BODY},         /* a bool of 2 */
        {{1, 'a', 0, 1, 1, 0, 0}, 7, DT_FRAME_E_ID}, /* view of an input that is not there */
        {{1, 'a', 0, 1, 4, 0}, 6, DT_FRAME_E_LIMIT}, /* unknown alias */
        {{1, 'a', 0, 0, 8}, 5, DT_FRAME_E_LIMIT},    /* unknown flag */
    };
    dt_signature_t *got = NULL;
    dt_arena_t arena;
    dt_arena_init(&arena, 1 << 20);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert(eq(int, decode(&arena, cases[i].bytes, cases[i].size, &got), cases[i].error),
                  "case %zu", i);
        dt_arena_reset(&arena);
    }
    dt_arena_fini(&arena);
}

Test(signature, a_small_arena_is_an_error_and_no_crash)
{
    dt_signature_tensor_t inputs[3], outputs[3];
    dt_signature_t put = everything(inputs, outputs), *got = NULL;
    dt_buf_t buf;
    dt_arena_t arena;
    dt_buf_init(&buf, DT_SIGNATURE_BYTES_MAX);
    cr_assert(eq(int, dt_signature_encode(&put, &buf, NULL), DT_OK));
    dt_arena_init(&arena, 64);
    cr_assert(eq(int, decode(&arena, buf.data, buf.len, &got), DT_FRAME_E_NOMEM));
    dt_arena_fini(&arena);
    dt_buf_fini(&buf);
}

Test(signature, prints_itself_for_people)
{
    dt_signature_tensor_t inputs[] = {tensor(DT_DTYPE_F32, 4, 3)},
                          outputs[] = {tensor(DT_DTYPE_F32, 4, 3)};
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_DOUBLE, .real = 2.5}};
    const dt_signature_t sig = {.name = "aten::mul.Scalar",
                                .arg_count = 2,
                                .args = args,
                                .input_count = 1,
                                .inputs = inputs,
                                .output_count = 1,
                                .outputs = outputs};
    const char *text = NULL;
    dt_buf_t buf;
    dt_buf_init(&buf, 4096);
    cr_assert(eq(int, dt_signature_print(&sig, &buf), DT_OK));
    cr_assert(eq(int, dt_buf_text(&buf, &text), DT_OK));
    cr_assert_str_eq(text, "aten::mul.Scalar(T, 2.5) [float32 (4, 3)] -> [float32 (4, 3)]");
    dt_buf_fini(&buf);
}
