/* PyTorch's rules for the shape, the dtype and the strides of results.
 * Source: aten/src/ATen/TensorIterator.cpp and native/TypeProperties.cpp describe them. */
#include <string.h>

#include "device/ref_internal.h"

/* ---- shapes ---- */
dt_status_t dt_ref_broadcast(dt_ref_tensor_t *const *tensors, uint32_t count, unsigned *ret_ndim,
                             int64_t *ret_sizes, dt_error_t *err)
{
    unsigned ndim = 0;
    for (uint32_t k = 0; k < count; k++)
        if (tensors[k]->meta.ndim > ndim)
            ndim = tensors[k]->meta.ndim;
    for (unsigned i = 0; i < ndim; i++)
        ret_sizes[i] = 1;
    for (uint32_t k = 0; k < count; k++) {
        const dt_meta_t *meta = &tensors[k]->meta;
        for (unsigned i = 0; i < meta->ndim; i++) {
            int64_t *size = &ret_sizes[ndim - meta->ndim + i];
            if (meta->sizes[i] == *size || meta->sizes[i] == 1)
                continue;
            if (*size != 1)
                return dt_fail(err, DT_ERR_INVALID, "ref", DT_BACKEND_RUNTIME_ERROR,
                               "sizes %lld and %lld do not match at dimension %u", (long long)*size,
                               (long long)meta->sizes[i], ndim - meta->ndim + i);
            *size = meta->sizes[i];
        }
    }
    *ret_ndim = ndim;
    return DT_OK;
}

/* ---- dtypes ---- */
/* bool < i64 < f32 < f64; 0 stands for none. */
static int rank_of(unsigned dtype)
{
    return dtype == DT_DTYPE_F64 ? 4 : dtype == DT_DTYPE_F32 ? 3 : dtype == DT_DTYPE_I64 ? 2 : 1;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* `lower` counts only where it is of a higher kind (bool, int, float) than `higher`. */
static int combine(int higher, int lower)
{
    bool is_float = higher >= 3, is_lower_float = lower >= 3;
    if (higher == 0)
        return lower;
    if (is_float || (higher == 2 && !is_lower_float))
        return higher;
    return larger(higher, lower);
}

unsigned dt_ref_promote(dt_ref_tensor_t *const *tensors, uint32_t count)
{
    static const unsigned dtypes[] = {DT_DTYPE_BOOL, DT_DTYPE_BOOL, DT_DTYPE_I64, DT_DTYPE_F32,
                                      DT_DTYPE_F64};
    int with_dims = 0, without = 0, numbers = 0;
    for (uint32_t k = 0; k < count; k++) {
        int rank = rank_of(tensors[k]->meta.dtype);
        if (tensors[k]->is_wrapped)
            numbers = larger(numbers, rank == 4 ? 3 : rank); /* a number's float is the default */
        else if (tensors[k]->meta.ndim == 0)
            without = larger(without, rank);
        else
            with_dims = larger(with_dims, rank);
    }
    return dtypes[combine(with_dims, combine(without, numbers))];
}

/* ---- strides ---- */
bool dt_ref_is_contiguous(const dt_meta_t *meta)
{
    int64_t expected = 1;
    if (dt_meta_numel(meta) == 0)
        return true;
    for (int i = meta->ndim - 1; i >= 0; i--) {
        if (meta->sizes[i] != 1 && meta->strides[i] != expected)
            return false;
        expected *= meta->sizes[i];
    }
    return true;
}

bool dt_ref_is_dense(const dt_meta_t *meta)
{
    int64_t expected = 1;
    uint32_t seen = 0;
    if (dt_ref_is_contiguous(meta))
        return true;
    for (int i = 0; i < meta->ndim; i++) /* the dimensions in order of their strides */
        for (int k = 0; k < meta->ndim; k++) {
            if (seen >> k & 1 || (meta->sizes[k] != 1 && meta->strides[k] != expected))
                continue;
            seen |= 1U << k;
            expected *= meta->sizes[k];
            break;
        }
    return seen == (1U << meta->ndim) - 1;
}

/* Stride of a tensor in a dimension of the broadcast shape; 0 where it is repeated. */
static int64_t stride_in(const dt_meta_t *meta, unsigned ndim, const int64_t *sizes, unsigned dim)
{
    unsigned missing = ndim - meta->ndim;
    if (dim < missing || (meta->sizes[dim - missing] == 1 && sizes[dim] != 1))
        return 0;
    return meta->strides[dim - missing];
}

/* Below zero: `a` is the inner dimension; above: `b` is; zero: no tensor tells. */
static int compare_dims(const dt_meta_t *const *metas, uint32_t count, unsigned ndim,
                        const int64_t *sizes, unsigned a, unsigned b)
{
    for (uint32_t k = 0; k < count; k++) {
        int64_t at_a = stride_in(metas[k], ndim, sizes, a);
        int64_t at_b = stride_in(metas[k], ndim, sizes, b);
        if (at_a == 0 || at_b == 0)
            continue;
        if (at_a != at_b)
            return at_a < at_b ? -1 : 1;
        if (sizes[a] > sizes[b])
            return 1;
    }
    return 0;
}

/* order[0] becomes the innermost dimension. An insertion sort that stops at what is undecided just
 * as PyTorch's does: the order is not total. */
static void sort_dims(const dt_meta_t *const *metas, uint32_t count, unsigned ndim,
                      const int64_t *sizes, unsigned *order)
{
    for (unsigned i = 0; i < ndim; i++)
        order[i] = ndim - 1 - i;
    for (unsigned i = 1; i < ndim; i++) {
        unsigned at = i;
        for (int k = (int)i - 1; k >= 0; k--) {
            int side = compare_dims(metas, count, ndim, sizes, order[k], order[at]);
            unsigned moved = order[k];
            if (side < 0)
                break;
            if (side == 0)
                continue;
            order[k] = order[at];
            order[at] = moved;
            at = (unsigned)k;
        }
    }
}

static void contiguous_strides(unsigned ndim, const int64_t *sizes, int64_t *ret_strides)
{
    int64_t stride = 1;
    for (unsigned i = ndim; i-- > 0;) {
        ret_strides[i] = stride;
        stride *= sizes[i] > 1 ? sizes[i] : 1;
    }
}

static bool all_alike(const dt_meta_t *const *metas, uint32_t count)
{
    for (uint32_t k = 1; k < count; k++)
        if (metas[k]->ndim != metas[0]->ndim ||
            memcmp(metas[k]->sizes, metas[0]->sizes, metas[0]->ndim * sizeof *metas[0]->sizes) != 0)
            return false;
    return true;
}

/* Inputs of one shape that are all contiguous, or all dense with the same strides. */
static bool strides_at_once(const dt_meta_t *const *metas, uint32_t count, int64_t *ret_strides)
{
    const dt_meta_t *first = metas[0];
    bool is_contiguous = true, is_dense = true;
    if (!all_alike(metas, count))
        return false;
    for (uint32_t k = 0; k < count; k++) {
        is_contiguous &= dt_ref_is_contiguous(metas[k]);
        is_dense &= dt_ref_is_dense(metas[k]) && !memcmp(metas[k]->strides, first->strides,
                                                         first->ndim * sizeof *first->strides);
    }
    if (is_contiguous)
        contiguous_strides(first->ndim, first->sizes, ret_strides);
    else if (is_dense)
        memcpy(ret_strides, first->strides, first->ndim * sizeof *ret_strides);
    return is_contiguous || is_dense;
}

void dt_ref_pointwise_strides(dt_ref_tensor_t *const *tensors, uint32_t count, unsigned ndim,
                              const int64_t *sizes, int64_t *ret_strides)
{
    const dt_meta_t *metas[DT_REF_SLOT_MAX] = {NULL};
    unsigned order[DT_META_DIM_MAX] = {0};
    bool is_row_major = true;
    int64_t stride = 1;
    dt_check(count >= 1 && count <= DT_REF_SLOT_MAX);
    for (uint32_t k = 0; k < count; k++)
        metas[k] = &tensors[k]->meta;
    if (strides_at_once(metas, count, ret_strides))
        return;
    sort_dims(metas, count, ndim, sizes, order);
    for (unsigned i = 0; i < ndim; i++) {
        is_row_major &= order[i] == ndim - 1 - i;
        ret_strides[order[i]] = stride;
        stride *= sizes[order[i]];
    }
    if (is_row_major)
        contiguous_strides(ndim, sizes, ret_strides);
}

void dt_ref_dense_strides(const dt_meta_t *meta, int64_t *ret_strides)
{
    unsigned order[DT_META_DIM_MAX] = {0};
    int64_t stride = 1;
    if (dt_ref_is_dense(meta)) {
        memcpy(ret_strides, meta->strides, meta->ndim * sizeof *ret_strides);
        return;
    }
    sort_dims(&meta, 1, meta->ndim, meta->sizes, order);
    for (unsigned i = 0; i < meta->ndim; i++) {
        ret_strides[order[i]] = stride;
        stride *= meta->sizes[order[i]] > 1 ? meta->sizes[order[i]] : 1;
    }
}

/* ---- overlap ---- */
static bool overlaps_itself(const dt_meta_t *meta)
{
    if (dt_ref_is_dense(meta))
        return false;
    for (int i = 0; i < meta->ndim; i++)
        if (meta->strides[i] == 0 && meta->sizes[i] > 1)
            return true;
    return false; /* what is harder to find is the program's affair, as in PyTorch */
}

static bool overlaps_partly(const dt_ref_tensor_t *a, const dt_ref_tensor_t *b)
{
    int64_t end_a = a->offset + dt_meta_numel(&a->meta),
            end_b = b->offset + dt_meta_numel(&b->meta);
    if (a == b || a->storage != b->storage || !dt_ref_is_dense(&a->meta) ||
        !dt_ref_is_dense(&b->meta) || end_a == a->offset || end_b == b->offset)
        return false;
    if (a->offset == b->offset && end_a == end_b)
        return !dt_meta_equal(&a->meta, &b->meta);
    return a->offset < end_b && b->offset < end_a;
}

dt_status_t dt_ref_check_overlap(const dt_ref_tensor_t *tensor, dt_ref_tensor_t *const *from,
                                 uint32_t count, dt_error_t *err)
{
    if (overlaps_itself(&tensor->meta))
        return dt_fail(err, DT_ERR_INVALID, "ref", DT_BACKEND_RUNTIME_ERROR,
                       "more than one element of the written-to tensor refers to a single memory "
                       "location; clone() it first");
    for (uint32_t k = 0; k < count; k++)
        if (overlaps_partly(tensor, from[k]))
            return dt_fail(err, DT_ERR_INVALID, "ref", DT_BACKEND_RUNTIME_ERROR,
                           "some elements of an input and the written-to tensor refer to a single "
                           "memory location; clone() it first");
    return DT_OK;
}
