/* CRC-32C: eight tables of 256 entries (slicing by 8), or the CPU's instruction.
 * The tables are made once, at the first use. */
#include "base/crc32c.h"

#include <pthread.h>
#include <string.h>

#define CRC_POLYNOMIAL UINT32_C(0x82f63b78) /* reflected */

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int slice = 1; slice < 8; slice++)
            table[slice][i] = (table[slice - 1][i] >> 8) ^ table[0][table[slice - 1][i] & 0xff];
}

static uint32_t load_le32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t dt_crc32c_portable_for_test(uint32_t crc, const void *data, size_t size)
{
    const uint8_t *at = data;

    (void)pthread_once(&once, make_tables);
    crc = ~crc;
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = load_le32(at) ^ crc;
        uint32_t high = load_le32(at + 4);
        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^
              table[4][low >> 24] ^ table[3][high & 0xff] ^ table[2][high >> 8 & 0xff] ^
              table[1][high >> 16 & 0xff] ^ table[0][high >> 24];
    }
    for (; size; size--, at++)
        crc = (crc >> 8) ^ table[0][(crc ^ *at) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
/* The instruction takes three cycles and can begin one in each: three lanes side by side. What a
 * lane had before is carried over the bytes of the others by a table, since a CRC is linear. */
#define LANE_BYTES ((size_t)1024)

static uint32_t carry[4][256]; /* by byte of the CRC: what LANE_BYTES of zeros make of it */
static pthread_once_t carry_once = PTHREAD_ONCE_INIT;

__attribute__((target("sse4.2"))) static void make_carry(void)
{
    for (unsigned bit = 0; bit < 32; bit++) {
        uint64_t wide = UINT64_C(1) << bit;
        for (size_t i = 0; i < LANE_BYTES; i += 8)
            wide = __builtin_ia32_crc32di(wide, 0);
        for (unsigned byte = 0; byte < 256; byte++)
            if (byte >> bit % 8 & 1)
                carry[bit / 8][byte] ^= (uint32_t)wide;
    }
}

static uint64_t carry_over(uint64_t wide)
{
    return carry[0][wide & 0xff] ^ carry[1][wide >> 8 & 0xff] ^ carry[2][wide >> 16 & 0xff] ^
           carry[3][wide >> 24 & 0xff];
}

__attribute__((target("sse4.2"))) static uint64_t crc_of_lanes(uint64_t wide, const uint8_t *at)
{
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < LANE_BYTES; i += 8) {
        uint64_t a, b, c;
        memcpy(&a, at + i, sizeof a);
        memcpy(&b, at + LANE_BYTES + i, sizeof b);
        memcpy(&c, at + 2 * LANE_BYTES + i, sizeof c);
        wide = __builtin_ia32_crc32di(wide, a);
        second = __builtin_ia32_crc32di(second, b);
        third = __builtin_ia32_crc32di(third, c);
    }
    return carry_over(carry_over(wide) ^ second) ^ third;
}

__attribute__((target("sse4.2"))) static uint32_t crc_by_cpu(uint32_t crc, const void *data,
                                                             size_t size)
{
    const uint8_t *at = data;
    uint64_t wide = ~crc;

    if (size >= 3 * LANE_BYTES)
        (void)pthread_once(&carry_once, make_carry);
    for (; size >= 3 * LANE_BYTES; size -= 3 * LANE_BYTES, at += 3 * LANE_BYTES)
        wide = crc_of_lanes(wide, at);
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size; size--, at++)
        crc = __builtin_ia32_crc32qi(crc, *at);
    return ~crc;
}
#endif

uint32_t dt_crc32c(uint32_t crc, const void *data, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return crc_by_cpu(crc, data, size);
#endif
    return dt_crc32c_portable_for_test(crc, data, size);
}
