/* Metadata of a dense tensor: element type, sizes, strides, the lazy conjugate and negative bits.
 * What is left out on purpose: the storage and the offset into it, which are no part of a
 * signature. Invariants after dt_meta_set(): strides are filled whatever the class; the product of
 * sizes and of bytes fits DT_META_BYTES_MAX. Threads: none of its own. Never allocates. */
#ifndef DT_TENSOR_META_H
#define DT_TENSOR_META_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/dtype.h"

#define DT_META_DIM_MAX   16
#define DT_META_BYTES_MAX (INT64_C(1) << 46) /* of one tensor, 64 TiB */

/* How the strides are given; the lower four bits of `layout`. */
enum {
    DT_META_CONTIGUOUS = 0,    /* row-major: stride[i] = stride[i + 1] * max(size[i + 1], 1) */
    DT_META_CHANNELS_LAST = 1, /* 4-d NHWC or 5-d NDHWC order of a (N, C, ...) tensor */
    DT_META_EXPLICIT = 2,      /* anything else */
    DT_META_CLASS_MASK = 0x0f,
    DT_META_CONJ = 0x40, /* the value is the conjugate of what is stored */
    DT_META_NEG = 0x80,  /* the value is the negative of what is stored */
};

typedef struct dt_meta {
    uint8_t dtype; /* dt_dtype_t */
    uint8_t ndim;  /* 0..DT_META_DIM_MAX */
    uint8_t layout;
    int64_t sizes[DT_META_DIM_MAX];   /* elements */
    int64_t strides[DT_META_DIM_MAX]; /* elements */
} dt_meta_t;

/* Fill `ret_meta` from sizes and strides; NULL strides: contiguous. `bits`: DT_META_CONJ, _NEG.
 * The class is the narrowest that gives exactly these strides.
 * Errors: INVALID (dtype, more dimensions than DT_META_DIM_MAX, a negative size or stride), LIMIT
 * (more than DT_META_BYTES_MAX). */
DT_MUST_USE dt_status_t dt_meta_set(dt_meta_t *ret_meta, unsigned dtype, unsigned ndim,
                                    const int64_t *sizes, const int64_t *strides, unsigned bits,
                                    dt_error_t *err);
/* Fill strides from the class, for CONTIGUOUS and CHANNELS_LAST. False: the class does not fit
 * ndim. */
bool dt_meta_fill_strides(dt_meta_t *meta);

int64_t dt_meta_numel(const dt_meta_t *meta);
int64_t dt_meta_bytes(const dt_meta_t *meta); /* of the elements, densely packed */
/* Bytes from the first element to the end of the last one in storage; 0 without elements. LIMIT is
 * impossible after dt_meta_set(). */
int64_t dt_meta_span_bytes(const dt_meta_t *meta);
bool dt_meta_equal(const dt_meta_t *a, const dt_meta_t *b);

/* Write "float32 (4, 3)", with strides when they are explicit; cut to `size`. */
void dt_meta_print(const dt_meta_t *meta, char *text, size_t size);

#endif
