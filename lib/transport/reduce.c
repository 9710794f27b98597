#include "transport/reduce.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#include <xmmintrin.h>
#endif

#include "base/status.h"
#include "tensor/dtype.h"
#include "wire/record.h"

/* Loops over blocks are worth vectors in every preset. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define BLOCK_BYTES 8192u /* what accumulates stays in the first cache */
#define LINE_BYTES  64u
#define AHEAD_BYTES 2048u /* processors do not look ahead beyond a page by themselves */

/* ---- memory ---- */

#if defined(__x86_64__)
static void copy_streamed(uint8_t *target, const uint8_t *source, size_t size)
{
    size_t head = (size_t)(-(uintptr_t)target & (LINE_BYTES - 1));
    if (size < head + LINE_BYTES) {
        memcpy(target, source, size);
        return;
    }
    memcpy(target, source, head);
    size_t at = head;
    for (; at + LINE_BYTES <= size; at += LINE_BYTES) {
        _mm_prefetch((const char *)source + at + AHEAD_BYTES, _MM_HINT_T0);
        for (size_t i = 0; i < LINE_BYTES; i += 16)
            _mm_stream_si128((__m128i *)(void *)(target + at + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(source + at + i)));
    }
    memcpy(target + at, source + at, size - at);
}

/* Read what comes after `size` bytes, which are being worked on. */
static void look_ahead(const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i += LINE_BYTES)
        _mm_prefetch((const char *)bytes + size + i, _MM_HINT_T0);
}

void dt_reduce_fence(void)
{
    _mm_sfence();
}
#else
static void copy_streamed(uint8_t *target, const uint8_t *source, size_t size)
{
    memcpy(target, source, size);
}

static void look_ahead(const void *bytes, size_t size)
{
    __builtin_prefetch(bytes);
    (void)size;
}

void dt_reduce_fence(void)
{
}
#endif

void dt_reduce_copy(void *target, const void *source, size_t size, bool is_streamed)
{
    if (is_streamed)
        copy_streamed(target, source, size);
    else
        memcpy(target, source, size);
}

/* ---- floats of 16 bits ---- */

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

static inline uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return value != value ? 0x7fc0 : (uint16_t)rounded;
}

/* A half's exponent is moved by a multiplication, which also makes subnormals right. */
static inline float from_f16(uint16_t half)
{
    uint32_t wide = (uint32_t)half << 16;
    uint32_t twice = wide + wide;
    float normal = float_of((twice >> 4) + (UINT32_C(0xe0) << 23)) * 0x1.0p-112f;
    float small = float_of((twice >> 17) | (UINT32_C(126) << 23)) - 0.5f;
    uint32_t bits = (wide & 0x80000000u) | (twice < (1u << 27) ? bits_of(small) : bits_of(normal));
    return float_of(bits);
}

/* Additions of a power of two let the processor round to a half's last bit. */
static inline uint16_t to_f16(float value)
{
    float base = (fabsf(value) * 0x1.0p+112f) * 0x1.0p-110f;
    uint32_t bits = bits_of(value);
    uint32_t twice = bits + bits;
    uint32_t bias = twice & 0xff000000u;
    bias = bias < 0x71000000u ? 0x71000000u : bias;
    base = float_of((bias >> 1) + 0x07800000u) + base;
    uint32_t sum = bits_of(base);
    uint32_t magnitude = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
    return (uint16_t)((bits >> 16 & 0x8000u) | (twice > 0xff000000u ? 0x7e00u : magnitude));
}

/* ---- kernels: one block of at most BLOCK_BYTES / sizeof(accumulator) elements ---- */

typedef struct block {
    const void *const *parts;
    uint32_t part_count;
    size_t at, count; /* elements */
    int64_t num, den; /* scale */
} block_t;

#define SAME(x)        (x)
#define ADD(a, x)      ((a) + (x))
#define OR(a, x)       ((a) | (x))
#define AND(a, x)      ((a) & (x))
#define INT_MAX_(a, x) ((x) > (a) ? (x) : (a))
#define INT_MIN_(a, x) ((x) < (a) ? (x) : (a))
/* NaN wins, and stays: no comparison with it is true. */
#define FLT_MAX_(a, x) ((x) > (a) || (x) != (x) ? (x) : (a))
#define FLT_MIN_(a, x) ((x) < (a) || (x) != (x) ? (x) : (a))

/* NOLINTBEGIN(bugprone-macro-parentheses): names of types cannot be enclosed */
#define KERNEL(name, type, wide, in, combine)                                                      \
    static void name(const block_t *b, void *acc_)                                                 \
    {                                                                                              \
        wide *restrict acc = acc_;                                                                 \
        const type *first = (const type *)b->parts[0] + b->at;                                     \
        for (size_t i = 0; i < b->count; i++)                                                      \
            acc[i] = (wide)in(first[i]);                                                           \
        for (uint32_t p = 1; p < b->part_count; p++) {                                             \
            const type *restrict x = (const type *)b->parts[p] + b->at;                            \
            for (size_t i = 0; i < b->count; i++)                                                  \
                acc[i] = (wide)combine(acc[i], in(x[i]));                                          \
        }                                                                                          \
    }
/* NOLINTEND(bugprone-macro-parentheses) */
#define INT_KERNELS(name, type, sum)                                                               \
    KERNEL(name##_sum, sum, sum, SAME, ADD)                                                        \
    KERNEL(name##_max, type, type, SAME, INT_MAX_)                                                 \
    KERNEL(name##_min, type, type, SAME, INT_MIN_)
#define FLT_KERNELS(name, type, wide, in)                                                          \
    KERNEL(name##_sum, type, wide, in, ADD)                                                        \
    KERNEL(name##_max, type, wide, in, FLT_MAX_)                                                   \
    KERNEL(name##_min, type, wide, in, FLT_MIN_)

INT_KERNELS(u8, uint8_t, uint8_t)
INT_KERNELS(i8, int8_t, uint8_t)
INT_KERNELS(u16, uint16_t, uint16_t)
INT_KERNELS(i16, int16_t, uint16_t)
INT_KERNELS(u32, uint32_t, uint32_t)
INT_KERNELS(i32, int32_t, uint32_t)
INT_KERNELS(u64, uint64_t, uint64_t)
INT_KERNELS(i64, int64_t, uint64_t)
KERNEL(bool_or, uint8_t, uint8_t, SAME, OR)
KERNEL(bool_and, uint8_t, uint8_t, SAME, AND)
FLT_KERNELS(f32, float, float, SAME)
FLT_KERNELS(f64, double, double, SAME)
FLT_KERNELS(f16, uint16_t, float, from_f16)
FLT_KERNELS(bf16, uint16_t, float, from_bf16)

/* ---- from the accumulator to the element ---- */

static void scale_f32(const block_t *b, float *acc)
{
    float num = (float)b->num;
    float den = (float)b->den;
    for (size_t i = 0; b->num != 1 && i < b->count; i++)
        acc[i] *= num;
    for (size_t i = 0; b->den != 1 && i < b->count; i++)
        acc[i] /= den;
}

static void finish_f32(const block_t *b, void *acc)
{
    scale_f32(b, acc);
}

static void finish_f64(const block_t *b, void *acc_)
{
    double *acc = acc_;
    for (size_t i = 0; b->num != 1 && i < b->count; i++)
        acc[i] *= (double)b->num;
    for (size_t i = 0; b->den != 1 && i < b->count; i++)
        acc[i] /= (double)b->den;
}

/* Narrowed in place: what is written lies before what is still to be read. */
static void finish_f16(const block_t *b, void *acc)
{
    scale_f32(b, acc);
    for (size_t i = 0; i < b->count; i++) {
        float value;
        memcpy(&value, (uint8_t *)acc + i * sizeof value, sizeof value);
        uint16_t half = to_f16(value);
        memcpy((uint8_t *)acc + i * sizeof half, &half, sizeof half);
    }
}

static void finish_bf16(const block_t *b, void *acc)
{
    scale_f32(b, acc);
    for (size_t i = 0; i < b->count; i++) {
        float value;
        memcpy(&value, (uint8_t *)acc + i * sizeof value, sizeof value);
        uint16_t half = to_bf16(value);
        memcpy((uint8_t *)acc + i * sizeof half, &half, sizeof half);
    }
}

/* ---- which ---- */

typedef void (*kernel_fn)(const block_t *block, void *acc);

typedef struct arithmetic {
    kernel_fn kernels[4]; /* by dt_reduction_t; AVG: none of its own */
    kernel_fn finish;     /* NULL: nothing to do, and no scale */
    uint8_t wide_bytes;   /* of an accumulator; 0: the dtype has no arithmetic */
    uint8_t lanes;        /* accumulators in an element */
} arithmetic_t;

#define ROW(name, finish_, wide, lanes_)                                                           \
    {                                                                                              \
        {name##_sum, NULL, name##_max, name##_min}, finish_, wide, lanes_                          \
    }
#define COMPLEX_ROW(name, finish_, wide)                                                           \
    {                                                                                              \
        {name##_sum, NULL, NULL, NULL}, finish_, wide, 2                                           \
    }

static const arithmetic_t arithmetics[DT_DTYPE_NUMBER_MAX + 1] = {
    [DT_DTYPE_U8] = ROW(u8, NULL, 1, 1),
    [DT_DTYPE_I8] = ROW(i8, NULL, 1, 1),
    [DT_DTYPE_I16] = ROW(i16, NULL, 2, 1),
    [DT_DTYPE_I32] = ROW(i32, NULL, 4, 1),
    [DT_DTYPE_I64] = ROW(i64, NULL, 8, 1),
    [DT_DTYPE_F16] = ROW(f16, finish_f16, 4, 1),
    [DT_DTYPE_F32] = ROW(f32, finish_f32, 4, 1),
    [DT_DTYPE_F64] = ROW(f64, finish_f64, 8, 1),
    [DT_DTYPE_C32] = COMPLEX_ROW(f16, finish_f16, 4),
    [DT_DTYPE_C64] = COMPLEX_ROW(f32, finish_f32, 4),
    [DT_DTYPE_C128] = COMPLEX_ROW(f64, finish_f64, 8),
    [DT_DTYPE_BOOL] = {{bool_or, NULL, bool_or, bool_and}, NULL, 1, 1},
    [DT_DTYPE_BF16] = ROW(bf16, finish_bf16, 4, 1),
    [DT_DTYPE_U16] = ROW(u16, NULL, 2, 1),
    [DT_DTYPE_U32] = ROW(u32, NULL, 4, 1),
    [DT_DTYPE_U64] = ROW(u64, NULL, 8, 1),
};

bool dt_reduce_is_defined(unsigned dtype, unsigned reduction)
{
    if (dtype > DT_DTYPE_NUMBER_MAX || reduction > DT_REDUCTION_MIN)
        return false;
    const arithmetic_t *a = &arithmetics[dtype];
    if (reduction == DT_REDUCTION_AVG)
        return a->finish != NULL;
    return a->kernels[reduction] != NULL;
}

/* ---- sums of float32 in one pass ---- */

#if defined(__x86_64__)
/* Whole lines: each is read once and written once, and nothing is put down in between. */
__attribute__((always_inline)) static inline void sum_lines(const float *const *parts,
                                                            uint32_t part_count,
                                                            float *const *targets,
                                                            uint32_t target_count, size_t count)
{
    for (size_t i = 0; i < count; i += LINE_BYTES / sizeof(float)) {
        __m128 sum[4];
        for (size_t k = 0; k < 4; k++)
            sum[k] = _mm_loadu_ps(parts[0] + i + 4 * k);
        _mm_prefetch((const char *)(parts[0] + i) + AHEAD_BYTES, _MM_HINT_T0);
        for (uint32_t p = 1; p < part_count; p++) {
            for (size_t k = 0; k < 4; k++)
                sum[k] = _mm_add_ps(sum[k], _mm_loadu_ps(parts[p] + i + 4 * k));
            _mm_prefetch((const char *)(parts[p] + i) + AHEAD_BYTES, _MM_HINT_T0);
        }
        for (uint32_t t = 0; t < target_count; t++)
            for (size_t k = 0; k < 4; k++)
                _mm_stream_ps(targets[t] + i + 4 * k, sum[k]);
    }
}

/* Returns the elements that were summed: the first ones; none if this is not for such a case. */
static size_t sum_streamed(const dt_reduce_t *reduce, const void *const *parts, uint32_t part_count,
                           void *const *targets, uint32_t target_count, size_t count)
{
    const float *const *from = (const float *const *)parts;
    float *const *to = (float *const *)targets;
    count -= count % (LINE_BYTES / sizeof(float));
    if (!reduce->is_streamed || reduce->dtype != DT_DTYPE_F32 ||
        reduce->reduction != DT_REDUCTION_SUM || reduce->scale_num != 1 || reduce->scale_den != 1)
        return 0;
    for (uint32_t t = 0; t < target_count; t++)
        if ((uintptr_t)targets[t] % LINE_BYTES != 0)
            return 0;
    if (part_count == 2 && target_count == 2)
        sum_lines(from, 2, to, 2, count);
    else if (part_count == 2 && target_count == 1)
        sum_lines(from, 2, to, 1, count);
    else if (part_count == 4 && target_count == 4)
        sum_lines(from, 4, to, 4, count);
    else
        sum_lines(from, part_count, to, target_count, count);
    return count;
}
#else
static size_t sum_streamed(const dt_reduce_t *reduce, const void *const *parts, uint32_t part_count,
                           void *const *targets, uint32_t target_count, size_t count)
{
    (void)reduce, (void)parts, (void)part_count, (void)targets, (void)target_count, (void)count;
    return 0;
}
#endif

void dt_reduce_run(const dt_reduce_t *reduce, const void *const *parts, uint32_t part_count,
                   void *const *targets, uint32_t target_count, size_t count)
{
    _Alignas(64) uint8_t acc[BLOCK_BYTES];
    const arithmetic_t *a = &arithmetics[reduce->dtype];
    kernel_fn kernel = a->kernels[reduce->reduction];
    dt_check(kernel != NULL);
    size_t bytes = dt_dtype_bytes(reduce->dtype) / a->lanes;
    block_t b = {.parts = parts,
                 .part_count = part_count,
                 .num = reduce->scale_num,
                 .den = reduce->scale_den};
    b.at = sum_streamed(reduce, parts, part_count, targets, target_count, count);
    count *= a->lanes;
    for (; b.at < count; b.at += b.count) {
        size_t most = BLOCK_BYTES / a->wide_bytes;
        b.count = count - b.at < most ? count - b.at : most;
        kernel(&b, acc);
        for (uint32_t p = 0; reduce->is_streamed && p < part_count; p++)
            look_ahead((const uint8_t *)parts[p] + b.at * bytes, b.count * bytes);
        if (a->finish)
            a->finish(&b, acc);
        for (uint32_t i = 0; i < target_count; i++)
            dt_reduce_copy((uint8_t *)targets[i] + b.at * bytes, acc, b.count * bytes,
                           reduce->is_streamed);
    }
}

/* ---- identities ---- */

/* The element that changes nothing, in the first bytes of `ret`: of one lane. */
static void identity_of(unsigned dtype, unsigned reduction, uint8_t *ret)
{
    static const uint16_t f16[] = {0x8000, 0, 0xfc00, 0x7c00};
    static const uint16_t bf16[] = {0x8000, 0, 0xff80, 0x7f80};
    static const float f32[] = {-0.0F, 0, -INFINITY, INFINITY};
    static const double f64[] = {-0.0, 0, -INFINITY, INFINITY};
    size_t bytes = dt_dtype_bytes(dtype);
    bool is_signed = dtype == DT_DTYPE_I8 || dtype == DT_DTYPE_I16 || dtype == DT_DTYPE_I32 ||
                     dtype == DT_DTYPE_I64;
    switch (dtype) {
    case DT_DTYPE_F16:
    case DT_DTYPE_C32:
        memcpy(ret, &f16[reduction], sizeof *f16);
        return;
    case DT_DTYPE_BF16:
        memcpy(ret, &bf16[reduction], sizeof *bf16);
        return;
    case DT_DTYPE_F32:
    case DT_DTYPE_C64:
        memcpy(ret, &f32[reduction], sizeof *f32);
        return;
    case DT_DTYPE_F64:
    case DT_DTYPE_C128:
        memcpy(ret, &f64[reduction], sizeof *f64);
        return;
    default: /* integers: all bits 0, or the limit */
        if (dtype == DT_DTYPE_BOOL) {
            ret[0] = reduction == DT_REDUCTION_MIN;
            return;
        }
        memset(ret, reduction == DT_REDUCTION_MIN ? 0xff : 0, bytes);
        if (is_signed && reduction >= DT_REDUCTION_MAX)
            ret[bytes - 1] ^= 0x80; /* little-endian */
    }
}

void dt_reduce_fill(const dt_reduce_t *reduce, void *target, size_t count)
{
    _Alignas(64) uint8_t block[4096] = {0};
    const arithmetic_t *a = &arithmetics[reduce->dtype];
    size_t lanes = a->lanes ? a->lanes : 1;
    size_t bytes = dt_dtype_bytes(reduce->dtype) / lanes;
    size_t size = count * lanes * bytes;
    if (a->wide_bytes > 0)
        identity_of(reduce->dtype, reduce->reduction, block);
    for (size_t at = bytes; at < sizeof block; at += bytes)
        memcpy(block + at, block, bytes);
    for (size_t at = 0; at < size; at += sizeof block)
        dt_reduce_copy((uint8_t *)target + at, block,
                       size - at < sizeof block ? size - at : sizeof block, reduce->is_streamed);
}
