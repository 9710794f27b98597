#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "tensor/meta.h"

TestSuite(meta, .timeout = 60);

Test(meta, without_strides_is_contiguous_as_pytorch_counts_it)
{
    dt_meta_t meta;
    const int64_t sizes[] = {2, 0, 3};
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_F32, 3, sizes, NULL, 0, NULL), DT_OK));
    cr_assert(eq(int, meta.layout, DT_META_CONTIGUOUS));
    cr_assert(eq(i64, meta.strides[0], 3)); /* a size of 0 counts as 1 */
    cr_assert(eq(i64, meta.strides[1], 3));
    cr_assert(eq(i64, meta.strides[2], 1));
    cr_assert(eq(i64, dt_meta_numel(&meta), 0));
    cr_assert(eq(i64, dt_meta_span_bytes(&meta), 0));
}

Test(meta, finds_the_narrowest_class_of_given_strides)
{
    dt_meta_t meta;
    const int64_t sizes[] = {2, 3, 4, 5};
    const int64_t rows[] = {60, 20, 5, 1}, nhwc[] = {60, 1, 15, 3}, other[] = {60, 1, 3, 12};
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_BF16, 4, sizes, rows, 0, NULL), DT_OK));
    cr_assert(eq(int, meta.layout, DT_META_CONTIGUOUS));
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_BF16, 4, sizes, nhwc, 0, NULL), DT_OK));
    cr_assert(eq(int, meta.layout, DT_META_CHANNELS_LAST));
    cr_assert(
        eq(int, dt_meta_set(&meta, DT_DTYPE_BF16, 4, sizes, other, DT_META_CONJ, NULL), DT_OK));
    cr_assert(eq(int, meta.layout, DT_META_EXPLICIT | DT_META_CONJ));
    cr_assert(eq(i64, dt_meta_bytes(&meta), 240));
}

Test(meta, spans_what_an_expanded_or_strided_view_reaches)
{
    dt_meta_t meta;
    const int64_t sizes[] = {3, 4};
    const int64_t expanded[] = {0, 1}, strided[] = {8, 2};
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_F64, 2, sizes, expanded, 0, NULL), DT_OK));
    cr_assert(eq(i64, dt_meta_span_bytes(&meta), 32));
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_F64, 2, sizes, strided, 0, NULL), DT_OK));
    cr_assert(eq(i64, dt_meta_span_bytes(&meta), 184));
}

Test(meta, refuses_what_no_tensor_can_be)
{
    dt_meta_t meta;
    dt_error_t err;
    const int64_t negative[] = {-1}, huge[] = {INT64_C(1) << 40, 1 << 10}, one[] = {2},
                  far[] = {INT64_MAX};
    cr_assert(eq(int, dt_meta_set(&meta, 12, 1, one, NULL, 0, &err), DT_ERR_INVALID));
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_F32, 17, one, NULL, 0, &err), DT_ERR_INVALID));
    cr_assert(
        eq(int, dt_meta_set(&meta, DT_DTYPE_F32, 1, negative, NULL, 0, &err), DT_ERR_INVALID));
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_F32, 2, huge, NULL, 0, &err), DT_ERR_LIMIT));
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_F32, 1, one, far, 0, &err), DT_ERR_LIMIT));
}

Test(meta, prints_itself_for_people)
{
    dt_meta_t meta;
    char text[128];
    const int64_t sizes[] = {4, 3}, strides[] = {1, 4};
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK));
    dt_meta_print(&meta, text, sizeof text);
    cr_assert_str_eq(text, "float32 (4, 3)");
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_I64, 2, sizes, strides, 0, NULL), DT_OK));
    dt_meta_print(&meta, text, sizeof text);
    cr_assert_str_eq(text, "int64 (4, 3) strides (1, 4)");
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_BOOL, 0, NULL, NULL, 0, NULL), DT_OK));
    dt_meta_print(&meta, text, sizeof text);
    cr_assert_str_eq(text, "bool ()");
    cr_assert(eq(int, dt_meta_set(&meta, DT_DTYPE_U8, 1, sizes, NULL, 0, NULL), DT_OK));
    dt_meta_print(&meta, text, 9);
    cr_assert_str_eq(text, "uint8 (4"); /* cut, terminated */
}
