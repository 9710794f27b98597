/* The arithmetic of collectives, element by element. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/dtype.h"
#include "transport/reduce.h"
#include "wire/record.h"

TestSuite(transport_reduce, .timeout = 60);

static void run(unsigned dtype, unsigned reduction, const void *a, const void *b, void *ret,
                int64_t num, int64_t den)
{
    const dt_reduce_t reduce = {(uint8_t)dtype, (uint8_t)reduction, false, num, den};
    const void *parts[] = {a, b};
    dt_reduce_run(&reduce, parts, 2, &ret, 1, 1);
}

static float half_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    float mantissa = (float)(bits & 1023);
    float value = exponent == 31  ? (mantissa > 0 ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf(mantissa, -24)
                                  : ldexpf(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

/* x + -0.0 is x, so each half goes to float32 and back as it was. */
Test(transport_reduce, every_half_goes_through_float32_unchanged)
{
    const uint16_t zero = 0x8000;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;
        uint16_t is = 0;
        run(DT_DTYPE_F16, DT_REDUCTION_SUM, &half, &zero, &is, 1, 1);
        if (isnan(half_value(half)))
            cr_assert(isnan(half_value(is)), "%x", bits);
        else
            cr_assert_eq(is, half, "%x became %x", bits, is);
        run(DT_DTYPE_BF16, DT_REDUCTION_SUM, &half, &zero, &is, 1, 1);
        bool is_nan = (half & 0x7f80) == 0x7f80 && (half & 0x7f);
        cr_assert(is_nan ? is == 0x7fc0 : is == half, "%x became %x", bits, is);
    }
}

Test(transport_reduce, sums_of_halves_are_rounded_to_the_nearest)
{
    uint64_t random = 1;
    for (int i = 0; i < 100000; i++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint16_t a = (uint16_t)(random >> 20), b = (uint16_t)(random >> 40), is = 0;
        run(DT_DTYPE_F16, DT_REDUCTION_SUM, &a, &b, &is, 1, 1);
        float sum = half_value(a) + half_value(b);
        if (!(fabsf(sum) < 65520)) { /* what is rounded from there on is infinite */
            cr_assert(isnan(sum) ? isnan(half_value(is)) : isinf(half_value(is)), "%x + %x", a, b);
            continue;
        }
        float error = fabsf(half_value(is) - sum);
        float below = fabsf(half_value((uint16_t)(is - 1)) - sum);
        float above = fabsf(half_value((uint16_t)(is + 1)) - sum);
        cr_assert(!(error > below) && !(error > above), "%x + %x = %x", a, b, is);
    }
}

Test(transport_reduce, nan_wins_and_zeros_keep_their_sign)
{
    const float nan = NAN, one = 1, minus = -0.0F;
    float is = 0;
    run(DT_DTYPE_F32, DT_REDUCTION_MAX, &nan, &one, &is, 1, 1);
    cr_expect(isnan(is));
    run(DT_DTYPE_F32, DT_REDUCTION_MIN, &one, &nan, &is, 1, 1);
    cr_expect(isnan(is));
    run(DT_DTYPE_F32, DT_REDUCTION_SUM, &minus, &minus, &is, 1, 1);
    cr_expect(is == 0 && signbit(is));
    run(DT_DTYPE_F32, DT_REDUCTION_SUM, &one, &one, &is, 3, 4);
    cr_expect_eq(is, 1.5F);
}

Test(transport_reduce, integers_wrap_and_compare_with_their_sign)
{
    const int8_t low = -128, high = 127;
    int8_t is = 0;
    run(DT_DTYPE_I8, DT_REDUCTION_SUM, &high, &high, &is, 1, 1);
    cr_expect_eq(is, -2);
    run(DT_DTYPE_I8, DT_REDUCTION_MAX, &low, &high, &is, 1, 1);
    cr_expect_eq(is, 127);
    run(DT_DTYPE_I8, DT_REDUCTION_MIN, &low, &high, &is, 1, 1);
    cr_expect_eq(is, -128);
}

/* What is combined with the identity stays as it is, in every byte. */
Test(transport_reduce, identities_change_nothing)
{
    for (unsigned dtype = 0; dtype <= DT_DTYPE_NUMBER_MAX; dtype++)
        for (unsigned reduction = 0; reduction <= DT_REDUCTION_MIN; reduction++) {
            uint8_t value[16] = {0x81, 0x3c, 0x42, 0xbf, 0x11, 0x40, 0x99, 0xc0};
            uint8_t identity[16];
            uint8_t is[16] = {0};
            const dt_reduce_t reduce = {(uint8_t)dtype, (uint8_t)reduction, false, 1, 1};
            size_t bytes = dt_dtype_bytes(dtype);
            if (reduction == DT_REDUCTION_AVG || !dt_reduce_is_defined(dtype, reduction))
                continue;
            value[0] = dtype == DT_DTYPE_BOOL ? 1 : value[0];
            dt_reduce_fill(&reduce, identity, 1);
            run(dtype, reduction, value, identity, is, 1, 1);
            cr_expect_arr_eq(is, value, bytes, "%s, %u", dt_dtype_name(dtype), reduction);
            run(dtype, reduction, identity, value, is, 1, 1);
            cr_expect_arr_eq(is, value, bytes, "%s, %u, the other way", dt_dtype_name(dtype),
                             reduction);
        }
}

/* Long enough for blocks, streamed and not, with odd starts. */
Test(transport_reduce, long_runs_are_the_same_streamed_and_not)
{
    enum { COUNT = 40007 };
    float *a = malloc(COUNT * sizeof *a), *b = malloc(COUNT * sizeof *b);
    float *out[4];
    for (int i = 0; i < 4; i++)
        out[i] = malloc((COUNT + 4) * sizeof(float));
    for (int i = 0; i < COUNT; i++) {
        a[i] = (float)i * 0.1F;
        b[i] = (float)(i % 101) - 3.7F;
    }
    for (int s = 0; s < 2; s++) {
        const dt_reduce_t reduce = {DT_DTYPE_F32, DT_REDUCTION_SUM, s == 1, 1, 3};
        const void *parts[] = {a, b};
        void *targets[] = {out[2 * s] + 1, out[2 * s + 1] + 3};
        dt_reduce_run(&reduce, parts, 2, targets, 2, COUNT);
        dt_reduce_fence();
    }
    for (int i = 0; i < COUNT; i++) {
        float wanted = (a[i] + b[i]) / 3;
        for (int k = 0; k < 4; k++)
            cr_assert_eq(out[k][i + (k % 2 ? 3 : 1)], wanted, "%d of %d", i, k);
    }
    for (int i = 0; i < 4; i++)
        free(out[i]);
    free(a);
    free(b);
}

/* Sums of float32 that are streamed go another way: in lines, from any number of parts to any
 * number of targets. It gives the same bits, and what is not a whole line too. */
Test(transport_reduce, sums_in_lines_have_the_bits_of_sums_in_blocks)
{
    enum { COUNT = 16 * 300 + 7, MOST = 5 };
    float *parts[MOST], *blocks[MOST], *lines[MOST];
    uint64_t random = 1;
    for (int i = 0; i < MOST; i++) {
        parts[i] = aligned_alloc(64, COUNT * sizeof(float) / 64 * 64 + 64);
        blocks[i] = aligned_alloc(64, COUNT * sizeof(float) / 64 * 64 + 64);
        lines[i] = aligned_alloc(64, COUNT * sizeof(float) / 64 * 64 + 64);
        for (int k = 0; k < COUNT; k++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
            parts[i][k] = ldexpf((float)(int32_t)(random >> 32), (int)(random >> 20 & 63));
        }
    }
    for (uint32_t p = 1; p <= MOST; p++)
        for (uint32_t t = 1; t <= MOST; t++) {
            dt_reduce_t reduce = {DT_DTYPE_F32, DT_REDUCTION_SUM, false, 1, 1};
            for (uint32_t i = 0; i < t; i++)
                memset(lines[i], 0xff, COUNT * sizeof(float));
            dt_reduce_run(&reduce, (const void *const *)parts, p, (void *const *)blocks, t, COUNT);
            reduce.is_streamed = true;
            dt_reduce_run(&reduce, (const void *const *)parts, p, (void *const *)lines, t, COUNT);
            dt_reduce_fence();
            for (uint32_t i = 0; i < t; i++)
                cr_assert_arr_eq(blocks[i], lines[i], COUNT * sizeof(float), "%u parts, target %u",
                                 p, i);
        }
    for (int i = 0; i < MOST; i++) {
        free(parts[i]);
        free(blocks[i]);
        free(lines[i]);
    }
}
