/* Operators that make tensors from nothing or copy them, and those that fill one. */
#include <math.h>
#include <string.h>

#include "device/ref_internal.h"

/* PyTorch's memory formats. */
enum { FORMAT_CONTIGUOUS = 0, FORMAT_PRESERVE = 1, FORMAT_CHANNELS_LAST = 2 };

static void fill(const dt_ref_call_t *call, dt_ref_tensor_t *tensor, const dt_ref_number_t *number)
{
    dt_ref_cell_t cell = {.storage = {.data = &cell.bytes}, .tensor = {.storage = &cell.storage}};
    cell.tensor.meta.dtype = number->dtype;
    dt_ref_store((char *)&cell.bytes, number->dtype, number->dtype, number->value);
    dt_ref_copy(call, tensor, &cell.tensor);
}

/* ---- factories ---- */
static dt_status_t new_filled(dt_ref_call_t *call, uint32_t dtype_at, unsigned dtype,
                              const dt_ref_number_t *number)
{
    int64_t sizes[DT_META_DIM_MAX];
    unsigned ndim;
    dt_ref_tensor_t *result;
    DT_TRY(dt_ref_arg_ints(call, 0, sizes, &ndim));
    DT_TRY(dt_ref_arg_dtype(call, dtype_at, dtype, &dtype));
    DT_TRY(dt_ref_result(call, dtype, ndim, sizes, NULL, &result));
    if (number)
        fill(call, result, number);
    return DT_OK;
}

static const dt_ref_number_t zero = {.dtype = DT_DTYPE_I64, .value.i = 0};
static const dt_ref_number_t one = {.dtype = DT_DTYPE_I64, .value.i = 1};

static dt_status_t run_empty(dt_ref_call_t *call)
{
    int64_t format;
    DT_TRY(dt_ref_arg_int(call, 5, FORMAT_CONTIGUOUS, &format));
    if (format != FORMAT_CONTIGUOUS)
        return dt_ref_refuse(call, DT_BACKEND_NOT_IMPLEMENTED, "only in contiguous format");
    return new_filled(call, 1, DT_DTYPE_F32, NULL);
}

static dt_status_t run_zeros(dt_ref_call_t *call)
{
    return new_filled(call, 1, DT_DTYPE_F32, &zero);
}

static dt_status_t run_ones(dt_ref_call_t *call)
{
    return new_filled(call, 1, DT_DTYPE_F32, &one);
}

static dt_status_t run_full(dt_ref_call_t *call)
{
    dt_ref_number_t number;
    if (!dt_ref_is_given(call, 1))
        return dt_ref_refuse(call, DT_BACKEND_TYPE_ERROR, "argument 1 is missing");
    DT_TRY(dt_ref_arg_number(call, 1, 0, &number));
    return new_filled(call, 2, number.dtype == DT_DTYPE_F64 ? DT_DTYPE_F32 : number.dtype, &number);
}

static dt_status_t run_empty_strided(dt_ref_call_t *call)
{
    int64_t sizes[DT_META_DIM_MAX], strides[DT_META_DIM_MAX];
    unsigned ndim, stride_count, dtype;
    dt_ref_tensor_t *result;
    DT_TRY(dt_ref_arg_ints(call, 0, sizes, &ndim));
    DT_TRY(dt_ref_arg_ints(call, 1, strides, &stride_count));
    DT_TRY(dt_ref_arg_dtype(call, 2, DT_DTYPE_F32, &dtype));
    if (ndim != stride_count)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "%u sizes, %u strides", ndim,
                             stride_count);
    return dt_ref_result(call, dtype, ndim, sizes, strides, &result);
}

/* Element k is start + k * step. */
typedef struct range {
    dt_ref_number_t start, end, step;
    bool is_int;
} range_t;

static double real_of(const dt_ref_number_t *number)
{
    return number->dtype == DT_DTYPE_F64 ? number->value.f : (double)number->value.i;
}

static void fill_range(const dt_ref_call_t *call, dt_ref_tensor_t *result, const range_t *range)
{
    unsigned dtype = result->meta.dtype;
    char *at = dt_ref_tensor_data(result);
    if (call->is_question || !at)
        return;
    for (int64_t k = 0; k < result->meta.sizes[0]; k++, at += dt_dtype_bytes(dtype)) {
        dt_ref_value_t value;
        if (range->is_int)
            value.i = (int64_t)((uint64_t)range->start.value.i +
                                (uint64_t)k * (uint64_t)range->step.value.i);
        else
            value.f = real_of(&range->start) + (double)k * real_of(&range->step);
        dt_ref_store(at, dtype, range->is_int ? DT_DTYPE_I64 : DT_DTYPE_F64, value);
    }
}

static dt_status_t make_range(dt_ref_call_t *call, range_t *range, uint32_t dtype_at)
{
    dt_ref_tensor_t *result;
    unsigned dtype;
    double start = real_of(&range->start), end = real_of(&range->end), step = real_of(&range->step);
    double count = ceil((end - start) / step);
    int64_t size;
    range->is_int = range->start.dtype != DT_DTYPE_F64 && range->end.dtype != DT_DTYPE_F64 &&
                    range->step.dtype != DT_DTYPE_F64;
    DT_TRY(dt_ref_arg_dtype(call, dtype_at, range->is_int ? DT_DTYPE_I64 : DT_DTYPE_F32, &dtype));
    if (step == 0 || !isfinite(start) || !isfinite(end) || (end - start) * step < 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "bounds that are not finite, or lie against the step's sign");
    if (!(count < (double)DT_META_BYTES_MAX))
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "the range is too large");
    size = (int64_t)count;
    DT_TRY(dt_ref_result(call, dtype, 1, &size, NULL, &result));
    fill_range(call, result, range);
    return DT_OK;
}

static dt_status_t run_arange(dt_ref_call_t *call)
{
    range_t range = {.start = zero, .step = one};
    DT_TRY(dt_ref_arg_number(call, 0, 0, &range.end));
    return make_range(call, &range, 1);
}

static dt_status_t run_arange_start(dt_ref_call_t *call)
{
    range_t range = {.step = one};
    DT_TRY(dt_ref_arg_number(call, 0, 0, &range.start));
    DT_TRY(dt_ref_arg_number(call, 1, 0, &range.end));
    return make_range(call, &range, 2);
}

static dt_status_t run_arange_step(dt_ref_call_t *call)
{
    range_t range;
    DT_TRY(dt_ref_arg_number(call, 0, 0, &range.start));
    DT_TRY(dt_ref_arg_number(call, 1, 0, &range.end));
    DT_TRY(dt_ref_arg_number(call, 2, 1, &range.step));
    return make_range(call, &range, 3);
}

/* ---- like another ---- */
/* Strides of a copy of `meta` in a format. */
static dt_status_t format_strides(dt_ref_call_t *call, const dt_meta_t *meta, int64_t format,
                                  int64_t *ret_strides)
{
    dt_meta_t other = *meta;
    other.layout = format == FORMAT_CHANNELS_LAST ? DT_META_CHANNELS_LAST : DT_META_CONTIGUOUS;
    if (format < FORMAT_CONTIGUOUS || format > FORMAT_CHANNELS_LAST ||
        (format == FORMAT_CHANNELS_LAST && meta->ndim != 4))
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "memory format %lld does not fit",
                             (long long)format);
    if (format == FORMAT_PRESERVE) {
        dt_ref_dense_strides(meta, ret_strides);
        return DT_OK;
    }
    (void)dt_meta_fill_strides(&other);
    memcpy(ret_strides, other.strides, meta->ndim * sizeof *ret_strides);
    return DT_OK;
}

static dt_status_t new_like(dt_ref_call_t *call, const dt_ref_number_t *number)
{
    int64_t format, strides[DT_META_DIM_MAX];
    dt_ref_tensor_t *self, *result;
    unsigned dtype;
    DT_TRY(dt_ref_arg_tensor(call, 0, &self));
    DT_TRY(dt_ref_arg_dtype(call, 1, self->meta.dtype, &dtype));
    DT_TRY(dt_ref_arg_int(call, 5, FORMAT_PRESERVE, &format));
    DT_TRY(format_strides(call, &self->meta, format, strides));
    DT_TRY(dt_ref_result(call, dtype, self->meta.ndim, self->meta.sizes, strides, &result));
    if (number)
        fill(call, result, number);
    return DT_OK;
}

static dt_status_t run_empty_like(dt_ref_call_t *call)
{
    return new_like(call, NULL);
}

static dt_status_t run_zeros_like(dt_ref_call_t *call)
{
    return new_like(call, &zero);
}

static dt_status_t run_ones_like(dt_ref_call_t *call)
{
    return new_like(call, &one);
}

/* ---- copies ---- */
static dt_status_t copy_as(dt_ref_call_t *call, dt_ref_tensor_t *self, unsigned dtype,
                           int64_t format)
{
    int64_t strides[DT_META_DIM_MAX];
    dt_ref_tensor_t *result;
    DT_TRY(format_strides(call, &self->meta, format, strides));
    DT_TRY(dt_ref_result(call, dtype, self->meta.ndim, self->meta.sizes, strides, &result));
    dt_ref_copy(call, result, self);
    return DT_OK;
}

static dt_status_t run_clone(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t format;
    DT_TRY(dt_ref_arg_tensor(call, 0, &self));
    DT_TRY(dt_ref_arg_int(call, 1, FORMAT_PRESERVE, &format));
    return copy_as(call, self, self->meta.dtype, format);
}

static dt_status_t run_contiguous(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t format;
    DT_TRY(dt_ref_arg_tensor(call, 0, &self));
    DT_TRY(dt_ref_arg_int(call, 1, FORMAT_CONTIGUOUS, &format));
    if (format != FORMAT_CONTIGUOUS)
        return dt_ref_refuse(call, DT_BACKEND_NOT_IMPLEMENTED, "only in contiguous format");
    if (dt_ref_is_contiguous(&self->meta))
        return dt_ref_result_same(call, self);
    return copy_as(call, self, self->meta.dtype, format);
}

static dt_status_t run_to_copy(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    unsigned dtype;
    int64_t format;
    DT_TRY(dt_ref_arg_tensor(call, 0, &self));
    DT_TRY(dt_ref_arg_dtype(call, 1, self->meta.dtype, &dtype));
    DT_TRY(dt_ref_arg_int(call, 6, FORMAT_PRESERVE, &format));
    return copy_as(call, self, dtype, format);
}

static dt_status_t run_to_dtype(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    unsigned dtype;
    bool is_copy;
    int64_t format;
    DT_TRY(dt_ref_arg_tensor(call, 0, &self));
    DT_TRY(dt_ref_arg_dtype(call, 1, self->meta.dtype, &dtype));
    DT_TRY(dt_ref_arg_bool(call, 3, false, &is_copy));
    DT_TRY(dt_ref_arg_int(call, 4, FORMAT_PRESERVE, &format));
    if (dtype == self->meta.dtype && !is_copy && format == FORMAT_PRESERVE)
        return dt_ref_result_same(call, self);
    return copy_as(call, self, dtype, format);
}

static dt_status_t run_copy(dt_ref_call_t *call)
{
    dt_ref_tensor_t *in[2];
    unsigned ndim;
    int64_t sizes[DT_META_DIM_MAX];
    DT_TRY(dt_ref_arg_tensor(call, 0, &in[0]));
    DT_TRY(dt_ref_arg_tensor(call, 1, &in[1]));
    DT_TRY(dt_ref_broadcast(in, 2, &ndim, sizes, call->err));
    if (in[0]->is_wrapped || ndim != in[0]->meta.ndim ||
        memcmp(sizes, in[0]->meta.sizes, ndim * sizeof *sizes) != 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "the source does not broadcast to the tensor written");
    if (in[0] != in[1])
        DT_TRY(dt_ref_check_overlap(in[0], &in[1], 1, call->err));
    dt_ref_copy(call, in[0], in[1]);
    return dt_ref_result_same(call, in[0]);
}

static dt_status_t fill_self(dt_ref_call_t *call, const dt_ref_number_t *number)
{
    dt_ref_tensor_t *self;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_check_dtype(call, self->meta.dtype));
    fill(call, self, number);
    return dt_ref_result_same(call, self);
}

static dt_status_t run_fill(dt_ref_call_t *call)
{
    dt_ref_number_t number;
    if (!dt_ref_is_given(call, 1))
        return dt_ref_refuse(call, DT_BACKEND_TYPE_ERROR, "argument 1 is missing");
    DT_TRY(dt_ref_arg_number(call, 1, 0, &number));
    return fill_self(call, &number);
}

static dt_status_t run_zero(dt_ref_call_t *call)
{
    return fill_self(call, &zero);
}

/* ---- cat ---- */
/* A tensor of one dimension and no elements is left out, whatever the others' shape. */
static bool is_left_out(const dt_ref_tensor_t *tensor)
{
    return tensor->meta.ndim == 1 && tensor->meta.sizes[0] == 0;
}

static dt_status_t cat_shape(dt_ref_call_t *call, dt_ref_tensor_t *const *list, uint32_t count,
                             dt_meta_t *ret_shape)
{
    const dt_ref_tensor_t *first = list[0];
    int64_t wanted, total = 0;
    unsigned dim;
    for (uint32_t k = 0; k < count && is_left_out(first); k++)
        first = list[k];
    DT_TRY(dt_ref_arg_int(call, 1, 0, &wanted));
    if (is_left_out(first)) { /* all are: there is nothing that a dimension could be of */
        *ret_shape = first->meta;
        ret_shape->layout = 0;
        return DT_OK;
    }
    if (first->meta.ndim == 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "a tensor of no dimensions cannot be concatenated");
    DT_TRY(dt_ref_dim(call, wanted, first->meta.ndim, &dim));
    *ret_shape = first->meta;
    for (uint32_t k = 0; k < count; k++) {
        const dt_meta_t *meta = &list[k]->meta;
        if (is_left_out(list[k]))
            continue;
        for (unsigned i = 0; i < first->meta.ndim || meta->ndim != first->meta.ndim; i++)
            if (meta->ndim != first->meta.ndim ||
                (i != dim && meta->sizes[i] != first->meta.sizes[i]))
                return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                                     "sizes must match except in dimension %u: tensor %u differs",
                                     dim, k);
        total += meta->sizes[dim];
    }
    ret_shape->sizes[dim] = total;
    ret_shape->layout = (uint8_t)dim; /* carried to cat_fill() */
    return DT_OK;
}

static void cat_fill(const dt_ref_call_t *call, dt_ref_tensor_t *const *list, uint32_t count,
                     const dt_ref_tensor_t *result, unsigned dim)
{
    dt_ref_tensor_t part = *result;
    for (uint32_t k = 0; k < count; k++) {
        if (is_left_out(list[k]))
            continue;
        part.meta.sizes[dim] = list[k]->meta.sizes[dim];
        dt_ref_copy(call, &part, list[k]);
        part.offset += list[k]->meta.sizes[dim] * part.meta.strides[dim];
    }
}

static dt_status_t run_cat(dt_ref_call_t *call)
{
    const dt_value_t *value = &call->args[0];
    dt_ref_tensor_t *result, *const *list;
    dt_meta_t shape = {0};
    unsigned dtype = DT_DTYPE_BOOL;
    if (!dt_ref_is_given(call, 0) || value->tag != DT_VALUE_TENSORS || value->count == 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "expected a list of tensors");
    list = (dt_ref_tensor_t *const *)value->handles;
    for (uint32_t k = 0; k < value->count; k++) {
        if (!list[k])
            return dt_ref_refuse(call, DT_BACKEND_TYPE_ERROR, "tensor %u is None", k);
        DT_TRY(dt_ref_check_dtype(call, list[k]->meta.dtype));
    }
    dtype = dt_ref_promote(list, value->count);
    DT_TRY(cat_shape(call, list, value->count, &shape));
    DT_TRY(dt_ref_result(call, dtype, shape.ndim, shape.sizes, NULL, &result));
    if (!call->is_question)
        cat_fill(call, list, value->count, result, shape.layout);
    return DT_OK;
}

dt_ref_table_t dt_ref_create_table(void)
{
    static const dt_ref_op_t ops[] = {
        {.name = "aten::empty.memory_format", .arg_count = 6, .run = run_empty},
        {.name = "aten::empty_strided", .arg_count = 6, .run = run_empty_strided},
        {.name = "aten::zeros", .arg_count = 5, .run = run_zeros},
        {.name = "aten::ones", .arg_count = 5, .run = run_ones},
        {.name = "aten::full", .arg_count = 6, .run = run_full},
        {.name = "aten::arange", .arg_count = 5, .run = run_arange},
        {.name = "aten::arange.start", .arg_count = 6, .run = run_arange_start},
        {.name = "aten::arange.start_step", .arg_count = 7, .run = run_arange_step},
        {.name = "aten::empty_like", .arg_count = 6, .run = run_empty_like},
        {.name = "aten::zeros_like", .arg_count = 6, .run = run_zeros_like},
        {.name = "aten::ones_like", .arg_count = 6, .run = run_ones_like},
        {.name = "aten::clone", .arg_count = 2, .run = run_clone},
        {.name = "aten::contiguous", .arg_count = 2, .run = run_contiguous},
        {.name = "aten::_to_copy", .arg_count = 7, .run = run_to_copy},
        {.name = "aten::to.dtype", .arg_count = 5, .run = run_to_dtype},
        {.name = "aten::copy_", .arg_count = 3, .run = run_copy},
        {.name = "aten::fill_.Scalar", .arg_count = 2, .run = run_fill},
        {.name = "aten::zero_", .arg_count = 1, .run = run_zero},
        {.name = "aten::cat", .arg_count = 2, .run = run_cat},
    };
    return (dt_ref_table_t){ops, sizeof ops / sizeof *ops};
}
