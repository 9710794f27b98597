#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"

TestSuite(ref, .timeout = 60);

static const dt_backend_t *table;
static void *device;
static size_t blocks;    /* in use */
static size_t bytes_max; /* of one block */

static void *memory_alloc(void *arg, size_t size)
{
    (void)arg;
    if (size > bytes_max)
        return NULL;
    blocks++;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}

static void memory_release(void *block)
{
    blocks--;
    free(block);
}

static void open_device(void)
{
    static const dt_backend_memory_t memory = {.alloc = memory_alloc, .release = memory_release};
    const dt_backend_device_options_t options = {
        .struct_size = sizeof options, .memory = &memory, .threads = 1};
    table = dt_backend_ref();
    blocks = 0;
    bytes_max = 1 << 20;
    cr_assert_eq(table->device_open(NULL, &options, &device, NULL), DT_OK);
}

static void close_device(void)
{
    cr_assert_eq(blocks, 0, "memory is left");
    table->device_close(device);
}

static void *make(unsigned dtype, unsigned ndim, const int64_t *sizes, const void *data)
{
    dt_error_t err = {0};
    dt_meta_t meta;
    void *tensor;
    cr_assert_eq(dt_meta_set(&meta, dtype, ndim, sizes, NULL, 0, NULL), DT_OK);
    cr_assert_eq(table->tensor_create(device, &meta, &tensor, &err), DT_OK, "%s", err.text);
    cr_assert_eq(table->tensor_write(device, tensor, 0, data, (size_t)dt_meta_bytes(&meta), &err),
                 DT_OK);
    return tensor;
}

static dt_value_t tensor_value(void *tensor)
{
    return (dt_value_t){.tag = DT_VALUE_TENSOR, .handle = tensor};
}

static dt_value_t int_value(int64_t number)
{
    return (dt_value_t){.tag = DT_VALUE_INT, .number = number};
}

static dt_status_t try_call(const char *name, const dt_value_t *args, uint32_t count, void **result,
                            dt_error_t *err)
{
    uint32_t result_count = 0;
    void *op;
    cr_assert_eq(table->op_find(device, name, &op, err), DT_OK, "%s", name);
    return table->op_execute(device, op, args, count, result, 1, &result_count, err);
}

static void *call(const char *name, const dt_value_t *args, uint32_t count)
{
    dt_error_t err = {0};
    void *result = NULL;
    cr_assert_eq(try_call(name, args, count, &result, &err), DT_OK, "%s", err.text);
    return result;
}

static void expect_floats(void *tensor, const float *wanted, size_t count)
{
    float got[64];
    dt_error_t err = {0};
    cr_assert_eq(table->tensor_read(device, tensor, 0, got, count * sizeof *got, &err), DT_OK, "%s",
                 err.text);
    for (size_t i = 0; i < count; i++)
        cr_assert_float_eq(got[i], wanted[i], 1e-6, "element %zu: %g, expected %g", i, got[i],
                           wanted[i]);
}

static const int64_t shape_2x3[] = {2, 3}, shape_3[] = {3}, shape_3x2[] = {3, 2};
static const float six[] = {1, 2, 3, 4, 5, 6}, three[] = {10, 20, 30};

Test(ref, adds_with_broadcasting_and_a_wrapped_number, .init = open_device)
{
    void *a = make(DT_DTYPE_F32, 2, shape_2x3, six), *b = make(DT_DTYPE_F32, 1, shape_3, three);
    const dt_value_t args[] = {tensor_value(a), tensor_value(b)};
    const dt_value_t with_number[] = {tensor_value(a), {.tag = DT_VALUE_DOUBLE, .real = 0.5}};
    void *sum = call("aten::add.Tensor", args, 2), *half = call("aten::mul.Tensor", with_number, 2);
    dt_backend_tensor_t info;
    expect_floats(sum, (const float[]){11, 22, 33, 14, 25, 36}, 6);
    expect_floats(half, (const float[]){0.5, 1, 1.5, 2, 2.5, 3}, 6);
    cr_assert_eq(table->tensor_info(device, half, &info, NULL), DT_OK);
    cr_assert_eq(info.meta.dtype, DT_DTYPE_F32, "a number does not widen");
    const void *storage = NULL;
    cr_assert(table->tensor_is(device, half, &info.meta, &storage));
    cr_assert_eq(storage, info.storage);
    info.meta.dtype = DT_DTYPE_F64;
    cr_assert_not(table->tensor_is(device, half, &info.meta, &storage));
    table->tensor_free(device, a);
    table->tensor_free(device, b);
    table->tensor_free(device, sum);
    table->tensor_free(device, half);
    close_device();
}

Test(ref, writes_through_a_view_into_the_storage_it_shares, .init = open_device)
{
    void *a = make(DT_DTYPE_F32, 2, shape_2x3, six);
    const dt_value_t swap[] = {tensor_value(a), int_value(0), int_value(1)};
    void *t = call("aten::transpose.int", swap, 3);
    const dt_value_t pick[] = {tensor_value(t), int_value(0), int_value(1)};
    void *row = call("aten::select.int", pick, 3);
    const dt_value_t add[] = {tensor_value(row), int_value(100)};
    void *same = call("aten::add_.Tensor", add, 2);
    cr_assert_eq(same, row, "in place is that tensor again");
    expect_floats(a, (const float[]){1, 102, 3, 4, 105, 6}, 6);
    expect_floats(t, (const float[]){1, 4, 102, 105, 3, 6}, 6);
    table->tensor_free(device, same);
    table->tensor_free(device, a); /* the views keep the storage */
    expect_floats(row, (const float[]){102, 105}, 2);
    table->tensor_free(device, t);
    table->tensor_free(device, row);
    close_device();
}

Test(ref, multiplies_matrices_as_three_loops_do, .init = open_device)
{
    void *a = make(DT_DTYPE_F32, 2, shape_2x3, six), *b = make(DT_DTYPE_F32, 2, shape_3x2, six);
    const dt_value_t args[] = {tensor_value(a), tensor_value(b)};
    void *c = call("aten::mm", args, 2);
    float wanted[4] = {0};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            for (int m = 0; m < 3; m++)
                wanted[i * 2 + k] += six[i * 3 + m] * six[m * 2 + k];
    expect_floats(c, wanted, 4);
    table->tensor_free(device, a);
    table->tensor_free(device, b);
    table->tensor_free(device, c);
    close_device();
}

Test(ref, reduces_over_a_dimension, .init = open_device)
{
    const int64_t last = -1;
    void *a = make(DT_DTYPE_F32, 2, shape_2x3, six);
    const dt_value_t args[] = {tensor_value(a), {.tag = DT_VALUE_INTS, .count = 1, .ints = &last}};
    void *sum = call("aten::sum.dim_IntList", args, 2), *most = call("aten::amax", args, 2);
    expect_floats(sum, (const float[]){6, 15}, 2);
    expect_floats(most, (const float[]){3, 6}, 2);
    table->tensor_free(device, a);
    table->tensor_free(device, sum);
    table->tensor_free(device, most);
    close_device();
}

Test(ref, refuses_with_pytorchs_class_and_goes_on, .init = open_device)
{
    void *a = make(DT_DTYPE_F32, 2, shape_2x3, six), *result = NULL;
    dt_error_t err = {0};
    const dt_value_t far[] = {tensor_value(a), int_value(0), int_value(9)};
    const dt_value_t none[] = {tensor_value(a), {.tag = DT_VALUE_STR, .count = 0, .text = ""}};
    cr_assert_eq(try_call("aten::select.int", far, 3, &result, &err), DT_ERR_INVALID);
    cr_assert_eq(err.source_code, DT_BACKEND_INDEX_ERROR);
    cr_assert_eq(try_call("aten::add.Tensor", none, 2, &result, &err), DT_ERR_INVALID);
    cr_assert_eq(err.source_code, DT_BACKEND_TYPE_ERROR);
    bytes_max = 8;
    cr_assert_eq(try_call("aten::exp", none, 1, &result, &err), DT_ERR_LIMIT);
    cr_assert_eq(err.source_code, DT_BACKEND_OUT_OF_MEMORY);
    bytes_max = 1 << 20;
    table->tensor_free(device, call("aten::exp", none, 1));
    table->tensor_free(device, a);
    close_device();
}

Test(ref, tells_results_without_data, .init = open_device)
{
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR, .id = 1}, int_value(0), int_value(1)};
    dt_backend_output_t output;
    dt_error_t err = {0};
    dt_meta_t input;
    uint32_t count = 0;
    void *op;
    cr_assert_eq(dt_meta_set(&input, DT_DTYPE_I64, 2, shape_2x3, NULL, 0, NULL), DT_OK);
    cr_assert_eq(table->op_find(device, "aten::transpose.int", &op, &err), DT_OK);
    cr_assert_eq(table->op_infer(device, op, args, 3, &input, 1, &output, 1, &count, &err), DT_OK);
    cr_assert_eq(count, 1);
    cr_assert_eq(output.alias, DT_ALIAS_VIEW);
    cr_assert_eq(output.meta.sizes[0], 3);
    cr_assert_eq(output.meta.strides[0], 1);
    close_device();
}
