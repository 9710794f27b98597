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
__attribute__((target("sse4.2"))) static uint32_t crc_by_cpu(uint32_t crc, const void *data,
                                                             size_t size)
{
    const uint8_t *at = data;
    uint64_t wide = ~crc;

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
