/* Views: other sizes, strides and offset over the same storage. They look at no element, so any
 * dtype will do. */
#include <string.h>

#include "device/ref_internal.h"

/* A shape in the making. */
typedef struct shape {
    unsigned ndim;
    int64_t sizes[DT_META_DIM_MAX];
    int64_t strides[DT_META_DIM_MAX];
} shape_t;

static shape_t shape_of(const dt_ref_tensor_t *tensor)
{
    shape_t shape = {.ndim = tensor->meta.ndim};
    memcpy(shape.sizes, tensor->meta.sizes, sizeof shape.sizes);
    memcpy(shape.strides, tensor->meta.strides, sizeof shape.strides);
    return shape;
}

static dt_status_t give(dt_ref_call_t *call, dt_ref_tensor_t *of, const shape_t *shape,
                        int64_t offset)
{
    return dt_ref_result_view(call, of, shape->ndim, shape->sizes, shape->strides, offset);
}

/* ---- view and reshape ---- */
/* Fill in the one size that is -1. */
static dt_status_t complete(dt_ref_call_t *call, int64_t numel, shape_t *shape)
{
    int64_t known = 1;
    int missing = -1;
    for (unsigned i = 0; i < shape->ndim; i++) {
        if (shape->sizes[i] < -1 || (shape->sizes[i] == -1 && missing >= 0))
            return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "invalid shape dimension %lld",
                                 (long long)shape->sizes[i]);
        if (shape->sizes[i] == -1)
            missing = (int)i;
        else if (__builtin_mul_overflow(known, shape->sizes[i], &known))
            return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "the shape is too large");
    }
    if (missing >= 0 && known > 0 && numel % known == 0)
        known *= shape->sizes[missing] = numel / known;
    else if (missing >= 0)
        known = -1;
    if (known != numel)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "the shape is invalid for an input of %lld elements",
                             (long long)numel);
    return DT_OK;
}

static void fill_contiguous(shape_t *shape)
{
    int64_t stride = 1;
    for (unsigned i = shape->ndim; i-- > 0;) {
        shape->strides[i] = stride;
        stride *= shape->sizes[i] > 1 ? shape->sizes[i] : 1;
    }
}

/* Strides of `shape` over the memory of `meta`, if there are any: each run of dimensions of the old
 * shape that is contiguous in itself must be cut by dimensions of the new one. */
static bool fill_strides(const dt_meta_t *meta, shape_t *shape)
{
    int64_t base, run = 1, made = 1;
    int at = (int)shape->ndim - 1;
    if (dt_meta_numel(meta) == 0) {
        if (shape->ndim == meta->ndim &&
            !memcmp(shape->sizes, meta->sizes, meta->ndim * sizeof *meta->sizes))
            memcpy(shape->strides, meta->strides, meta->ndim * sizeof *meta->strides);
        else
            fill_contiguous(shape);
        return true;
    }
    if (meta->ndim == 0) {
        fill_contiguous(shape);
        return true;
    }
    base = meta->strides[meta->ndim - 1];
    for (int i = meta->ndim - 1; i >= 0; i--) {
        run *= meta->sizes[i];
        if (i > 0 && (meta->sizes[i - 1] == 1 || meta->strides[i - 1] == run * base))
            continue;
        for (; at >= 0 && (made < run || shape->sizes[at] == 1); at--) {
            shape->strides[at] = made * base;
            made *= shape->sizes[at];
        }
        if (made != run)
            return false;
        if (i > 0)
            base = meta->strides[i - 1];
        run = made = 1;
    }
    return at == -1;
}

static dt_status_t wanted_shape(dt_ref_call_t *call, dt_ref_tensor_t **ret_self, shape_t *ret_shape)
{
    DT_TRY(dt_ref_arg_any(call, 0, ret_self));
    DT_TRY(dt_ref_arg_ints(call, 1, ret_shape->sizes, &ret_shape->ndim));
    return complete(call, dt_meta_numel(&(*ret_self)->meta), ret_shape);
}

static dt_status_t run_view(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    shape_t shape = {0};
    DT_TRY(wanted_shape(call, &self, &shape));
    if (!fill_strides(&self->meta, &shape))
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "view size is not compatible with the tensor's size and stride; use "
                             "reshape");
    return give(call, self, &shape, self->offset);
}

static dt_status_t run_reshape(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self, *result;
    shape_t shape = {0};
    DT_TRY(wanted_shape(call, &self, &shape));
    if (fill_strides(&self->meta, &shape))
        return give(call, self, &shape, self->offset);
    DT_TRY(dt_ref_check_dtype(call, self->meta.dtype));
    DT_TRY(dt_ref_result(call, self->meta.dtype, shape.ndim, shape.sizes, NULL, &result));
    /* The copy in the old shape has the elements in the order that the new shape wants. */
    dt_ref_tensor_t in_old_shape = *result;
    in_old_shape.meta = self->meta;
    in_old_shape.meta.layout = DT_META_CONTIGUOUS;
    (void)dt_meta_fill_strides(&in_old_shape.meta);
    dt_ref_copy(call, &in_old_shape, self);
    return DT_OK;
}

/* ---- dimensions moved, added, taken away ---- */
static dt_status_t swap_dims(dt_ref_call_t *call, dt_ref_tensor_t *self, unsigned a, unsigned b)
{
    shape_t shape = shape_of(self);
    if (shape.ndim == 0)
        return give(call, self, &shape, self->offset);
    shape.sizes[a] = self->meta.sizes[b];
    shape.sizes[b] = self->meta.sizes[a];
    shape.strides[a] = self->meta.strides[b];
    shape.strides[b] = self->meta.strides[a];
    return give(call, self, &shape, self->offset);
}

static dt_status_t run_transpose(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t dims[2];
    unsigned at[2];
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    for (uint32_t i = 0; i < 2; i++) {
        DT_TRY(dt_ref_arg_int(call, i + 1, 0, &dims[i]));
        DT_TRY(dt_ref_dim(call, dims[i], self->meta.ndim, &at[i]));
    }
    return swap_dims(call, self, at[0], at[1]);
}

static dt_status_t run_t(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    if (self->meta.ndim > 2)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "expects a tensor with at most 2 dimensions, but self has %u",
                             self->meta.ndim);
    return swap_dims(call, self, 0, self->meta.ndim < 2 ? 0 : 1);
}

static dt_status_t run_permute(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t dims[DT_META_DIM_MAX];
    unsigned count;
    uint32_t seen = 0;
    shape_t shape = {0};
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_arg_ints(call, 1, dims, &count));
    if (count != self->meta.ndim)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "%u dimensions given for %u", count,
                             self->meta.ndim);
    shape.ndim = count;
    for (unsigned i = 0; i < count; i++) {
        unsigned from;
        DT_TRY(dt_ref_dim(call, dims[i], count, &from));
        if (seen >> from & 1)
            return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "duplicate dims are not allowed");
        seen |= 1U << from;
        shape.sizes[i] = self->meta.sizes[from];
        shape.strides[i] = self->meta.strides[from];
    }
    return give(call, self, &shape, self->offset);
}

/* Take dimension `dim` out of `shape` if its size is 1. */
static void take_out(shape_t *shape, unsigned dim)
{
    if (dim >= shape->ndim || shape->sizes[dim] != 1)
        return;
    shape->ndim--;
    memmove(&shape->sizes[dim], &shape->sizes[dim + 1], (shape->ndim - dim) * sizeof(int64_t));
    memmove(&shape->strides[dim], &shape->strides[dim + 1], (shape->ndim - dim) * sizeof(int64_t));
}

static dt_status_t run_squeeze(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    shape_t shape = shape_of(self);
    for (unsigned i = shape.ndim; i-- > 0;)
        take_out(&shape, i);
    return give(call, self, &shape, self->offset);
}

static dt_status_t run_squeeze_dim(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t dim;
    unsigned at;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_arg_int(call, 1, 0, &dim));
    DT_TRY(dt_ref_dim(call, dim, self->meta.ndim, &at));
    shape_t shape = shape_of(self);
    take_out(&shape, at);
    return give(call, self, &shape, self->offset);
}

static dt_status_t run_unsqueeze(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t dim;
    unsigned at;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_arg_int(call, 1, 0, &dim));
    DT_TRY(dt_ref_dim(call, dim, self->meta.ndim + 1U, &at));
    if (self->meta.ndim == DT_META_DIM_MAX)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "more than %d dimensions",
                             DT_META_DIM_MAX);
    shape_t shape = shape_of(self);
    memmove(&shape.sizes[at + 1], &shape.sizes[at], (shape.ndim - at) * sizeof(int64_t));
    memmove(&shape.strides[at + 1], &shape.strides[at], (shape.ndim - at) * sizeof(int64_t));
    shape.strides[at] = at < shape.ndim ? self->meta.sizes[at] * self->meta.strides[at] : 1;
    shape.sizes[at] = 1;
    shape.ndim++;
    return give(call, self, &shape, self->offset);
}

static dt_status_t run_expand(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    shape_t shape = {0};
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_arg_ints(call, 1, shape.sizes, &shape.ndim));
    const dt_meta_t *from = &self->meta;
    if (shape.ndim < from->ndim)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "%u sizes for %u dimensions",
                             shape.ndim, from->ndim);
    for (int i = (int)shape.ndim - 1; i >= 0; i--) {
        int at = i - ((int)shape.ndim - from->ndim);
        int64_t size = at >= 0 ? from->sizes[at] : 1;
        bool is_last = i + 1 == (int)shape.ndim;
        shape.strides[i] = at >= 0   ? from->strides[at]
                           : is_last ? 1
                                     : shape.sizes[i + 1] * shape.strides[i + 1];
        if (shape.sizes[i] == -1 && at >= 0)
            shape.sizes[i] = size;
        if (shape.sizes[i] == size)
            continue;
        if (size != 1 || shape.sizes[i] < 0)
            return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                                 "size %lld at dimension %d does not match the existing %lld",
                                 (long long)shape.sizes[i], i, (long long)size);
        shape.strides[i] = 0;
    }
    if (from->ndim == 0) /* as PyTorch has it, for sizes of 1 too */
        memset(shape.strides, 0, sizeof shape.strides);
    return give(call, self, &shape, self->offset);
}

/* ---- parts ---- */
static int64_t clamp(int64_t value, int64_t size)
{
    if (value < 0)
        value += size;
    return value < 0 ? 0 : value > size ? size : value;
}

static dt_status_t run_slice(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t dim, start, end, step, size;
    unsigned at;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_arg_int(call, 1, 0, &dim));
    DT_TRY(dt_ref_arg_int(call, 2, 0, &start));
    DT_TRY(dt_ref_arg_int(call, 3, INT64_MAX, &end));
    DT_TRY(dt_ref_arg_int(call, 4, 1, &step));
    if (self->meta.ndim == 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "a tensor of no dimensions has none");
    DT_TRY(dt_ref_dim(call, dim, self->meta.ndim, &at));
    if (step <= 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "the step must be positive");
    shape_t shape = shape_of(self);
    size = shape.sizes[at];
    start = clamp(start, size);
    end = clamp(end, size);
    shape.sizes[at] = end > start ? (end - start - 1) / step + 1 : 0;
    if (__builtin_mul_overflow(shape.strides[at], step, &shape.strides[at]))
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "the step is too large");
    return give(call, self, &shape, self->offset + start * self->meta.strides[at]);
}

static dt_status_t run_select(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    int64_t dim, index, size;
    unsigned at;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_arg_int(call, 1, 0, &dim));
    DT_TRY(dt_ref_arg_int(call, 2, 0, &index));
    if (self->meta.ndim == 0)
        return dt_ref_refuse(call, DT_BACKEND_INDEX_ERROR, "a tensor of no dimensions has none");
    DT_TRY(dt_ref_dim(call, dim, self->meta.ndim, &at));
    shape_t shape = shape_of(self);
    size = shape.sizes[at];
    if (index < -size || index >= size)
        return dt_ref_refuse(call, DT_BACKEND_INDEX_ERROR,
                             "index %lld is out of range for dimension %u of size %lld",
                             (long long)index, at, (long long)size);
    index += index < 0 ? size : 0;
    shape.sizes[at] = 1;
    take_out(&shape, at);
    return give(call, self, &shape, self->offset + index * self->meta.strides[at]);
}

static dt_status_t run_as_strided(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    shape_t shape = {0};
    unsigned stride_count;
    int64_t offset;
    dt_meta_t meta;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    DT_TRY(dt_ref_arg_ints(call, 1, shape.sizes, &shape.ndim));
    DT_TRY(dt_ref_arg_ints(call, 2, shape.strides, &stride_count));
    DT_TRY(dt_ref_arg_int(call, 3, self->offset, &offset));
    if (stride_count != shape.ndim || offset < 0)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "mismatch in length of strides and shape, or a negative offset");
    DT_TRY(
        dt_meta_set(&meta, self->meta.dtype, shape.ndim, shape.sizes, shape.strides, 0, call->err));
    if (offset > DT_META_BYTES_MAX ||
        (uint64_t)dt_meta_span_bytes(&meta) + (uint64_t)offset * dt_dtype_bytes(self->meta.dtype) >
            self->storage->bytes)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR,
                             "sizes and strides go beyond the storage of %llu bytes",
                             (unsigned long long)self->storage->bytes);
    return give(call, self, &shape, offset);
}

static dt_status_t run_alias(dt_ref_call_t *call)
{
    dt_ref_tensor_t *self;
    DT_TRY(dt_ref_arg_any(call, 0, &self));
    shape_t shape = shape_of(self);
    return give(call, self, &shape, self->offset);
}

dt_ref_table_t dt_ref_view_table(void)
{
    static const dt_ref_op_t ops[] = {
        {.name = "aten::view", .arg_count = 2, .run = run_view},
        {.name = "aten::reshape", .arg_count = 2, .run = run_reshape},
        {.name = "aten::transpose.int", .arg_count = 3, .run = run_transpose},
        {.name = "aten::t", .arg_count = 1, .run = run_t},
        {.name = "aten::permute", .arg_count = 2, .run = run_permute},
        {.name = "aten::squeeze", .arg_count = 1, .run = run_squeeze},
        {.name = "aten::squeeze.dim", .arg_count = 2, .run = run_squeeze_dim},
        {.name = "aten::unsqueeze", .arg_count = 2, .run = run_unsqueeze},
        {.name = "aten::expand", .arg_count = 3, .run = run_expand},
        {.name = "aten::slice.Tensor", .arg_count = 5, .run = run_slice},
        {.name = "aten::select.int", .arg_count = 3, .run = run_select},
        {.name = "aten::as_strided", .arg_count = 4, .run = run_as_strided},
        {.name = "aten::alias", .arg_count = 1, .run = run_alias},
        {.name = "aten::detach", .arg_count = 1, .run = run_alias},
    };
    return (dt_ref_table_t){ops, sizeof ops / sizeof *ops};
}
