/* 64-bit hashes: FNV-1a over bytes, and a mixer for integer keys.
 * Not for secrets and not against an adversary who chooses keys: bound the table instead. The
 * results are stable across machines and releases, so they may be shown and compared. */
#ifndef DT_BASE_HASH_H
#define DT_BASE_HASH_H
#include <stddef.h>
#include <stdint.h>

#define DT_HASH_SEED UINT64_C(0xcbf29ce484222325)

/* Hash bytes. Start with DT_HASH_SEED; pass the result on to hash several pieces as one. */
uint64_t dt_hash_bytes(uint64_t seed, const void *data, size_t size);

/* Hash a string with its end, so that "ab","c" and "a","bc" differ. */
uint64_t dt_hash_str(uint64_t seed, const char *text);

/* Mix an integer so that every bit of the result depends on every bit of the key. */
uint64_t dt_hash_u64(uint64_t key);

#endif
