#include <criterion/criterion.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/arena.h"

TestSuite(arena, .timeout = 60);

Test(arena, gives_aligned_memory_that_does_not_overlap)
{
    dt_arena_t arena;
    unsigned char *at[200];
    dt_arena_init(&arena, 1 << 20);
    for (int i = 0; i < 200; i++) {
        at[i] = dt_arena_alloc(&arena, (size_t)i);
        cr_assert(at[i] != NULL);
        cr_assert_eq((uintptr_t)at[i] % alignof(max_align_t), 0);
        memset(at[i], i, (size_t)i);
    }
    for (int i = 0; i < 200; i++)
        for (int k = 0; k < i; k++)
            cr_assert_eq(at[i][k], i);
    dt_arena_fini(&arena);
}

Test(arena, never_takes_more_than_its_cap)
{
    dt_arena_t arena;
    size_t got = 0;
    dt_arena_init(&arena, 10000);
    while (dt_arena_alloc(&arena, 100))
        got += 100;
    cr_assert(got <= 10000 && got > 8000, "%zu", got);
    cr_assert(arena.used_bytes <= 10000);
    cr_assert(dt_arena_alloc(&arena, 20000) == NULL);
    dt_arena_fini(&arena);
}

Test(arena, refuses_sizes_that_overflow)
{
    dt_arena_t arena;
    dt_arena_init(&arena, SIZE_MAX);
    cr_assert(dt_arena_alloc(&arena, SIZE_MAX) == NULL);
    cr_assert(dt_arena_alloc(&arena, SIZE_MAX - 20) == NULL);
    cr_assert(dt_arena_calloc(&arena, SIZE_MAX / 2, 3) == NULL);
    cr_assert(dt_arena_strndup(&arena, "x", SIZE_MAX) == NULL);
    dt_arena_fini(&arena);
}

Test(arena, has_its_whole_cap_again_after_a_reset)
{
    dt_arena_t arena;
    dt_arena_init(&arena, 64 * 1024);
    for (int round = 0; round < 10; round++) {
        cr_assert(dt_arena_alloc(&arena, 100) != NULL);
        cr_assert(dt_arena_alloc(&arena, 40000) != NULL);
        dt_arena_reset(&arena);
        cr_assert(arena.used_bytes <= 4096);
    }
    dt_arena_fini(&arena);
    cr_assert_eq(arena.used_bytes, 0);
}

Test(arena, clears_what_calloc_gives_and_terminates_copies)
{
    dt_arena_t arena;
    dt_arena_init(&arena, 64 * 1024);
    memset(dt_arena_alloc(&arena, 1000), 0xff, 1000);
    dt_arena_reset(&arena);
    unsigned char *zero = dt_arena_calloc(&arena, 10, 100);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(zero[i], 0);
    cr_assert_str_eq(dt_arena_strndup(&arena, "hello", 4), "hell");
    cr_assert_str_eq(dt_arena_strndup(&arena, NULL, 0), "");
    dt_arena_fini(&arena);
    dt_arena_fini(NULL);
}

Test(arena, serves_as_a_protobuf_allocator)
{
    dt_arena_t arena;
    dt_arena_init(&arena, 4096);
    void *at = dt_arena_pb_alloc(&arena, 10);
    cr_assert(at != NULL);
    dt_arena_pb_free(&arena, at);
    cr_assert(dt_arena_pb_alloc(&arena, 5000) == NULL);
    dt_arena_fini(&arena);
}
