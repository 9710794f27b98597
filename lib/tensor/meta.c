#include "tensor/meta.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int64_t at_least_one(int64_t size)
{
    return size > 1 ? size : 1;
}

static void fill_contiguous(dt_meta_t *meta)
{
    int64_t stride = 1;
    for (int i = meta->ndim - 1; i >= 0; i--) {
        meta->strides[i] = stride;
        stride *= at_least_one(meta->sizes[i]);
    }
}

static bool fill_channels_last(dt_meta_t *meta)
{
    int64_t stride = 1;
    if (meta->ndim != 4 && meta->ndim != 5)
        return false;
    meta->strides[1] = stride;
    stride *= at_least_one(meta->sizes[1]);
    for (int i = meta->ndim - 1; i >= 2; i--) {
        meta->strides[i] = stride;
        stride *= at_least_one(meta->sizes[i]);
    }
    meta->strides[0] = stride;
    return true;
}

bool dt_meta_fill_strides(dt_meta_t *meta)
{
    switch (meta->layout & DT_META_CLASS_MASK) {
    case DT_META_CONTIGUOUS:
        fill_contiguous(meta);
        return true;
    case DT_META_CHANNELS_LAST:
        return fill_channels_last(meta);
    default:
        return false;
    }
}

static void classify(dt_meta_t *meta, const int64_t *strides, unsigned bits)
{
    size_t bytes = meta->ndim * sizeof *strides;
    for (unsigned layout = DT_META_CONTIGUOUS; layout <= DT_META_CHANNELS_LAST; layout++) {
        meta->layout = (uint8_t)layout;
        if (dt_meta_fill_strides(meta) && (!strides || !memcmp(meta->strides, strides, bytes))) {
            meta->layout = (uint8_t)(layout | bits);
            return;
        }
    }
    meta->layout = (uint8_t)(DT_META_EXPLICIT | bits);
    memcpy(meta->strides, strides, bytes);
}

/* Dense bytes and the span of the strides are both bounded, so no later product can overflow. */
static bool fits(const dt_meta_t *meta)
{
    int64_t dense = (int64_t)dt_dtype_bytes(meta->dtype);
    int64_t last = 0;
    for (int i = 0; i < meta->ndim; i++) {
        int64_t step;
        if (__builtin_mul_overflow(dense, at_least_one(meta->sizes[i]), &dense) ||
            dense > DT_META_BYTES_MAX)
            return false;
        if (__builtin_mul_overflow(at_least_one(meta->sizes[i]) - 1, meta->strides[i], &step) ||
            __builtin_add_overflow(last, step, &last) || last > DT_META_BYTES_MAX)
            return false;
    }
    return true;
}

dt_status_t dt_meta_set(dt_meta_t *ret_meta, unsigned dtype, unsigned ndim, const int64_t *sizes,
                        const int64_t *strides, unsigned bits, dt_error_t *err)
{
    dt_meta_t meta = {.dtype = (uint8_t)dtype, .ndim = (uint8_t)ndim};
    int64_t dense = (int64_t)dt_dtype_bytes(dtype);
    if (dense == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", dtype, "dtype %u is not known", dtype);
    if (ndim > DT_META_DIM_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", ndim, "%u dimensions, at most %d", ndim,
                       DT_META_DIM_MAX);
    for (unsigned i = 0; i < ndim; i++) {
        meta.sizes[i] = sizes[i];
        if (sizes[i] < 0 || (strides && strides[i] < 0))
            return dt_fail(err, DT_ERR_INVALID, "dt", i,
                           "dimension %u has a negative size or stride", i);
        if (__builtin_mul_overflow(dense, at_least_one(sizes[i]), &dense) ||
            dense > DT_META_BYTES_MAX)
            return dt_fail(err, DT_ERR_LIMIT, "dt", i, "tensor of more than %" PRId64 " bytes",
                           DT_META_BYTES_MAX);
    }
    classify(&meta, strides, bits);
    if (!fits(&meta))
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "strides span more than %" PRId64 " bytes",
                       DT_META_BYTES_MAX);
    *ret_meta = meta;
    return DT_OK;
}

int64_t dt_meta_numel(const dt_meta_t *meta)
{
    int64_t numel = 1;
    for (int i = 0; i < meta->ndim; i++)
        if (meta->sizes[i] == 0)
            return 0;
    for (int i = 0; i < meta->ndim; i++)
        numel *= meta->sizes[i];
    return numel;
}

int64_t dt_meta_bytes(const dt_meta_t *meta)
{
    return dt_meta_numel(meta) * (int64_t)dt_dtype_bytes(meta->dtype);
}

int64_t dt_meta_span_bytes(const dt_meta_t *meta)
{
    int64_t last = 0;
    if (dt_meta_numel(meta) == 0)
        return 0;
    for (int i = 0; i < meta->ndim; i++)
        last += (meta->sizes[i] - 1) * meta->strides[i];
    return (last + 1) * (int64_t)dt_dtype_bytes(meta->dtype);
}

bool dt_meta_equal(const dt_meta_t *a, const dt_meta_t *b)
{
    size_t bytes = a->ndim * sizeof a->sizes[0];
    return a->dtype == b->dtype && a->ndim == b->ndim && a->layout == b->layout &&
           !memcmp(a->sizes, b->sizes, bytes) && !memcmp(a->strides, b->strides, bytes);
}

static size_t print_list(char *text, size_t size, size_t at, const int64_t *values, int count)
{
    for (int i = 0; i <= count && at < size; i++) {
        int n = i == count
                    ? snprintf(text + at, size - at, count == 1 ? ",)" : ")")
                    : snprintf(text + at, size - at, "%s%" PRId64, i ? ", " : "(", values[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    return at;
}

void dt_meta_print(const dt_meta_t *meta, char *text, size_t size)
{
    int n = snprintf(text, size, "%s ", dt_dtype_name(meta->dtype));
    size_t at = n > 0 ? (size_t)n : 0;
    if (meta->ndim == 0 && at < size)
        (void)snprintf(text + at, size - at, "()");
    else
        at = print_list(text, size, at, meta->sizes, meta->ndim);
    if ((meta->layout & DT_META_CLASS_MASK) == DT_META_EXPLICIT && at < size) {
        n = snprintf(text + at, size - at, " strides ");
        (void)print_list(text, size, at + (n > 0 ? (size_t)n : 0), meta->strides, meta->ndim);
    }
}
