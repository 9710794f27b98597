#include <criterion/criterion.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/hash.h"

TestSuite(hash, .timeout = 60);
TestSuite(crc32c, .timeout = 60);

Test(hash, gives_the_published_values_of_fnv_1a)
{
    cr_assert_eq(dt_hash_bytes(DT_HASH_SEED, "", 0), UINT64_C(0xcbf29ce484222325));
    cr_assert_eq(dt_hash_bytes(DT_HASH_SEED, "a", 1), UINT64_C(0xaf63dc4c8601ec8c));
    cr_assert_eq(dt_hash_bytes(DT_HASH_SEED, "foobar", 6), UINT64_C(0x85944171f73967e8));
}

Test(hash, tells_where_one_string_ends_and_the_next_begins)
{
    uint64_t a = dt_hash_str(dt_hash_str(DT_HASH_SEED, "ab"), "c");
    uint64_t b = dt_hash_str(dt_hash_str(DT_HASH_SEED, "a"), "bc");
    cr_assert_neq(a, b);
}

Test(hash, spreads_neighbouring_integers)
{
    for (uint64_t i = 0; i < 1000; i++) {
        int changed = __builtin_popcountll(dt_hash_u64(i) ^ dt_hash_u64(i + 1));
        cr_assert(changed > 10 && changed < 54, "%d bits at %d", changed, (int)i);
    }
}

Test(crc32c, gives_the_values_of_rfc_3720)
{
    uint8_t zeros[32] = {0};
    uint8_t ones[32];
    uint8_t rising[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++)
        rising[i] = (uint8_t)i;
    cr_assert_eq(dt_crc32c(0, zeros, 32), 0x8a9136aa);
    cr_assert_eq(dt_crc32c(0, ones, 32), 0x62a8ab43);
    cr_assert_eq(dt_crc32c(0, rising, 32), 0x46dd794e);
    cr_assert_eq(dt_crc32c(0, "123456789", 9), 0xe3069283);
}

Test(crc32c, both_forms_agree_at_every_length_and_alignment)
{
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)dt_hash_u64(i);
    for (size_t from = 0; from < 9; from++)
        for (size_t size = 0; from + size <= sizeof data; size++)
            cr_assert_eq(dt_crc32c(7, data + from, size),
                         dt_crc32c_portable_for_test(7, data + from, size));
}

Test(crc32c, both_forms_agree_on_long_pieces)
{
    static uint8_t data[40000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)dt_hash_u64(i);
    for (size_t size = 3050; size < 3100; size++)
        cr_assert_eq(dt_crc32c(9, data + 1, size), dt_crc32c_portable_for_test(9, data + 1, size));
    for (size_t size = 6100; size + 3 <= sizeof data; size += 997)
        cr_assert_eq(dt_crc32c(~0u, data + 3, size),
                     dt_crc32c_portable_for_test(~0u, data + 3, size));
}

Test(crc32c, continues_over_pieces)
{
    for (size_t cut = 0; cut <= 9; cut++) {
        uint32_t crc = dt_crc32c(0, "123456789", cut);
        cr_assert_eq(dt_crc32c(crc, &"123456789"[cut], 9 - cut), 0xe3069283);
    }
}
