/* Operators that make one element from many, and softmax, which does so on its way. */
#include <math.h>
#include <string.h>

#include "device/ref_internal.h"

/* What is done with the elements of one group, in row-major order. */
typedef struct group {
    dt_ref_value_t value; /* so far */
    int64_t count;        /* elements seen */
    int64_t place;        /* of `value`, for argmax */
} group_t;
typedef void (*group_fn)(group_t *group, dt_ref_value_t element);

static void sum_f(group_t *group, dt_ref_value_t element)
{
    group->value.f += element.f;
}

static void sum_i(group_t *group, dt_ref_value_t element)
{
    group->value.i = (int64_t)((uint64_t)group->value.i + (uint64_t)element.i);
}

static void max_f(group_t *group, dt_ref_value_t element)
{
    if (group->count == 0 || element.f > group->value.f ||
        (isnan(element.f) && !isnan(group->value.f))) {
        group->value = element;
        group->place = group->count;
    }
}

static void max_i(group_t *group, dt_ref_value_t element)
{
    if (group->count == 0 || element.i > group->value.i) {
        group->value = element;
        group->place = group->count;
    }
}

/* The input, which of its dimensions are reduced, and the result's shape. */
typedef struct reduction {
    dt_ref_tensor_t *self;
    bool is_reduced[DT_META_DIM_MAX];
    bool is_kept; /* reduced dimensions stay, with size 1 */
    unsigned ndim;
    int64_t sizes[DT_META_DIM_MAX];
    int64_t group_size;
    unsigned dtype; /* of the sum */
} reduction_t;

static void set_shape(reduction_t *r)
{
    const dt_meta_t *meta = &r->self->meta;
    r->group_size = 1;
    r->ndim = 0;
    for (unsigned i = 0; i < meta->ndim; i++) {
        if (r->is_reduced[i])
            r->group_size *= meta->sizes[i];
        if (!r->is_reduced[i] || r->is_kept)
            r->sizes[r->ndim++] = r->is_reduced[i] ? 1 : meta->sizes[i];
    }
}

/* dims at argument `dims_at` (none: all), keepdim behind it. */
static dt_status_t read_dims(dt_ref_call_t *call, uint32_t dims_at, reduction_t *r)
{
    int64_t dims[DT_META_DIM_MAX];
    unsigned count = 0, dim;
    DT_TRY(dt_ref_arg_tensor(call, 0, &r->self));
    if (dims_at) {
        DT_TRY(dt_ref_arg_ints(call, dims_at, dims, &count));
        DT_TRY(dt_ref_arg_bool(call, dims_at + 1, false, &r->is_kept));
    }
    for (unsigned i = 0; i < r->self->meta.ndim; i++)
        r->is_reduced[i] = count == 0;
    for (unsigned i = 0; i < count; i++) {
        DT_TRY(dt_ref_dim(call, dims[i], r->self->meta.ndim, &dim));
        if (r->self->meta.ndim > 0 && r->is_reduced[dim])
            return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "dim %u is there twice", dim);
        r->is_reduced[dim] = true;
    }
    set_shape(r);
    return DT_OK;
}

/* Go over one group: `index` stands at its first element and does so again at the end. */
static group_t reduce_group(const reduction_t *r, int64_t *index, unsigned as, group_fn fn)
{
    const dt_meta_t *meta = &r->self->meta;
    const char *data = dt_ref_tensor_data(r->self);
    group_t group = {.value = {.i = 0}};
    int64_t sizes[DT_META_DIM_MAX], inner[DT_META_DIM_MAX] = {0};
    if (dt_ref_is_float(as))
        group.value.f = 0;
    for (unsigned i = 0; i < meta->ndim; i++)
        sizes[i] = r->is_reduced[i] ? meta->sizes[i] : 1;
    if (r->group_size == 0)
        return group;
    do {
        int64_t place = 0;
        for (unsigned i = 0; i < meta->ndim; i++)
            place += (index[i] + inner[i]) * meta->strides[i];
        fn(&group,
           dt_ref_load(data + place * (int64_t)dt_dtype_bytes(meta->dtype), meta->dtype, as));
        group.count++;
    } while (dt_ref_step(meta->ndim, sizes, inner));
    return group;
}

/* What becomes of a finished group. */
typedef enum ending { END_VALUE, END_MEAN, END_PLACE } ending_t;

static void reduce(const dt_ref_call_t *call, const reduction_t *r, dt_ref_tensor_t *result,
                   unsigned as, group_fn fn, ending_t ending)
{
    int64_t outer[DT_META_DIM_MAX], index[DT_META_DIM_MAX] = {0};
    const dt_meta_t *meta = &r->self->meta;
    char *at = dt_ref_tensor_data(result);
    if (call->is_question || !at)
        return;
    for (unsigned i = 0; i < meta->ndim; i++)
        outer[i] = r->is_reduced[i] ? 1 : meta->sizes[i];
    do {
        group_t group = reduce_group(r, index, as, fn);
        if (ending == END_MEAN)
            group.value.f /= (double)r->group_size;
        if (ending == END_PLACE)
            dt_ref_store(at, DT_DTYPE_I64, DT_DTYPE_I64, (dt_ref_value_t){.i = group.place});
        else
            dt_ref_store(at, result->meta.dtype, as, group.value);
        at += dt_dtype_bytes(result->meta.dtype);
    } while (dt_ref_step(meta->ndim, outer, index));
}

/* A float sum is made in double and rounded once. */
static unsigned sum_dtype(unsigned dtype)
{
    return dt_ref_is_float(dtype) ? DT_DTYPE_F64 : DT_DTYPE_I64;
}

static dt_status_t sum_or_mean(dt_ref_call_t *call, uint32_t dims_at, bool is_mean)
{
    reduction_t r = {0};
    dt_ref_tensor_t *result;
    unsigned dtype;
    DT_TRY(read_dims(call, dims_at, &r));
    dtype = r.self->meta.dtype;
    if (!is_mean && !dt_ref_is_float(dtype))
        dtype = DT_DTYPE_I64;
    DT_TRY(dt_ref_arg_dtype(call, dims_at ? dims_at + 2 : 1, dtype, &dtype));
    if (is_mean && !dt_ref_is_float(dtype))
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "the dtype must be a float, give one for other inputs");
    DT_TRY(dt_ref_result(call, dtype, r.ndim, r.sizes, NULL, &result));
    dtype = sum_dtype(dtype);
    reduce(call, &r, result, dtype, dt_ref_is_float(dtype) ? sum_f : sum_i,
           is_mean ? END_MEAN : END_VALUE);
    return DT_OK;
}

static dt_status_t run_sum(dt_ref_call_t *call)
{
    return sum_or_mean(call, 0, false);
}

static dt_status_t run_sum_dim(dt_ref_call_t *call)
{
    return sum_or_mean(call, 1, false);
}

static dt_status_t run_mean(dt_ref_call_t *call)
{
    return sum_or_mean(call, 0, true);
}

static dt_status_t run_mean_dim(dt_ref_call_t *call)
{
    return sum_or_mean(call, 1, true);
}

static dt_status_t maximum(dt_ref_call_t *call, uint32_t dims_at, bool is_place)
{
    reduction_t r = {0};
    dt_ref_tensor_t *result;
    unsigned dtype;
    DT_TRY(read_dims(call, dims_at, &r));
    dtype = r.self->meta.dtype;
    if (r.group_size == 0)
        return dt_ref_refuse(call,
                             is_place || (dims_at && dt_ref_is_given(call, dims_at))
                                 ? DT_BACKEND_INDEX_ERROR
                                 : DT_BACKEND_RUNTIME_ERROR,
                             "of no elements there is no largest");
    if (is_place && dtype == DT_DTYPE_BOOL)
        return dt_ref_refuse(call, DT_BACKEND_NOT_IMPLEMENTED, "is not for bool");
    DT_TRY(dt_ref_result(call, is_place ? DT_DTYPE_I64 : dtype, r.ndim, r.sizes, NULL, &result));
    reduce(call, &r, result, dtype, dt_ref_is_float(dtype) ? max_f : max_i,
           is_place ? END_PLACE : END_VALUE);
    return DT_OK;
}

static dt_status_t run_max(dt_ref_call_t *call)
{
    return maximum(call, 0, false);
}

static dt_status_t run_amax(dt_ref_call_t *call)
{
    return maximum(call, 1, false);
}

static dt_status_t run_argmax(dt_ref_call_t *call)
{
    return maximum(call, 1, true);
}

/* ---- softmax ---- */
/* One row: elements at at + k * step bytes. */
typedef struct row {
    char *at;
    int64_t step;
    unsigned dtype;
} row_t;

static double element(const row_t *row, unsigned as, int64_t k)
{
    return dt_ref_load(row->at + k * row->step, row->dtype, as).f;
}

static void softmax_row(const row_t *out, const row_t *in, int64_t size, bool is_log)
{
    double most = -INFINITY, sum = 0;
    for (int64_t k = 0; k < size; k++) {
        double x = element(in, out->dtype, k);
        most = x > most || isnan(x) ? x : most;
    }
    for (int64_t k = 0; k < size; k++)
        sum += exp(element(in, out->dtype, k) - most);
    for (int64_t k = 0; k < size; k++) {
        double x = element(in, out->dtype, k) - most;
        dt_ref_value_t y = {.f = is_log ? x - log(sum) : exp(x) / sum};
        dt_ref_store(out->at + k * out->step, out->dtype, DT_DTYPE_F64, y);
    }
}

/* The row along `dim` through the element at `index`. */
static row_t row_at(const dt_ref_tensor_t *tensor, const int64_t *index, unsigned dim)
{
    const dt_meta_t *meta = &tensor->meta;
    int64_t place = 0, width = (int64_t)dt_dtype_bytes(meta->dtype);
    for (unsigned i = 0; i < meta->ndim; i++)
        place += index[i] * meta->strides[i];
    return (row_t){
        .at = (char *)dt_ref_tensor_data(tensor) + place * width,
        .step = meta->ndim ? meta->strides[dim] * width : 0,
        .dtype = meta->dtype,
    };
}

static void softmax_rows(const dt_ref_tensor_t *self, const dt_ref_tensor_t *result, unsigned dim,
                         bool is_log)
{
    const dt_meta_t *meta = &self->meta;
    int64_t sizes[DT_META_DIM_MAX], index[DT_META_DIM_MAX] = {0};
    int64_t length = meta->ndim ? meta->sizes[dim] : 1;
    memcpy(sizes, meta->sizes, sizeof sizes);
    sizes[dim] = 1;
    do {
        row_t out = row_at(result, index, dim), in = row_at(self, index, dim);
        softmax_row(&out, &in, length, is_log);
    } while (dt_ref_step(meta->ndim, sizes, index));
}

static dt_status_t softmax(dt_ref_call_t *call, uint32_t dtype_at, bool is_log)
{
    dt_ref_tensor_t *self, *result;
    int64_t dim;
    unsigned at, dtype;
    DT_TRY(dt_ref_arg_tensor(call, 0, &self));
    DT_TRY(dt_ref_arg_int(call, 1, 0, &dim));
    DT_TRY(dt_ref_dim(call, dim, self->meta.ndim, &at));
    dtype = self->meta.dtype;
    if (dtype_at)
        DT_TRY(dt_ref_arg_dtype(call, dtype_at, dtype, &dtype));
    if (!dt_ref_is_float(dtype))
        return dt_ref_refuse(call, DT_BACKEND_NOT_IMPLEMENTED, "is not for %s",
                             dt_dtype_name(dtype));
    DT_TRY(dt_ref_result(call, dtype, self->meta.ndim, self->meta.sizes, NULL, &result));
    if (!call->is_question && dt_meta_numel(&self->meta) > 0)
        softmax_rows(self, result, at, is_log);
    return DT_OK;
}

static dt_status_t run_softmax(dt_ref_call_t *call)
{
    return softmax(call, 0, false);
}

static dt_status_t run_log_softmax(dt_ref_call_t *call)
{
    return softmax(call, 0, true);
}

static dt_status_t run_softmax_int(dt_ref_call_t *call)
{
    return softmax(call, 2, false);
}

dt_ref_table_t dt_ref_reduce_table(void)
{
    static const dt_ref_op_t ops[] = {
        {.name = "aten::sum", .arg_count = 2, .run = run_sum},
        {.name = "aten::sum.dim_IntList", .arg_count = 4, .run = run_sum_dim},
        {.name = "aten::mean", .arg_count = 2, .run = run_mean},
        {.name = "aten::mean.dim", .arg_count = 4, .run = run_mean_dim},
        {.name = "aten::max", .arg_count = 1, .run = run_max},
        {.name = "aten::amax", .arg_count = 3, .run = run_amax},
        {.name = "aten::argmax", .arg_count = 3, .run = run_argmax},
        {.name = "aten::_softmax", .arg_count = 3, .run = run_softmax},
        {.name = "aten::_log_softmax", .arg_count = 3, .run = run_log_softmax},
        {.name = "aten::softmax.int", .arg_count = 3, .run = run_softmax_int},
    };
    return (dt_ref_table_t){ops, sizeof ops / sizeof *ops};
}
