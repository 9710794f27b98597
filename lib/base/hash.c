/* FNV-1a and an integer mixer.
 * Source: RFC 9923 (FNV); the mixer is the finaliser of MurmurHash3 (public domain). */
#include "base/hash.h"

#include <string.h>

uint64_t dt_hash_bytes(uint64_t seed, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    uint64_t hash = seed;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t dt_hash_str(uint64_t seed, const char *text)
{
    return dt_hash_bytes(seed, text, strlen(text) + 1);
}

uint64_t dt_hash_u64(uint64_t key)
{
    key = (key ^ (key >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    key = (key ^ (key >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    return key ^ (key >> 33);
}
