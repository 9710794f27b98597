/* The session's arena: exact accounting, no overlap, memory given back. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "shm/arena.h"
#include "shm/memfd.h"

TestSuite(shm_arena, .timeout = 60);

#define MIB (INT64_C(1) << 20)

static dt_shm_arena_t *arena_new(int64_t limit_bytes)
{
    int fd;
    dt_error_t err = {0};
    dt_shm_arena_t *arena;
    size_t size = dt_shm_arena_size((uint64_t)limit_bytes);
    cr_assert_eq(dt_memfd_create("test", size, &fd, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_shm_arena_open(fd, size, limit_bytes, &arena, &err), DT_OK, "%s", err.text);
    return arena;
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *seed >> 33;
}

Test(shm_arena, random_traces_never_overlap_and_end_with_nothing)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        dt_shm_arena_t *arena = arena_new(256 * MIB);
        uint8_t *blocks[512] = {NULL};
        size_t sizes[512] = {0};
        uint64_t random = seed;
        for (int step = 0; step < 30000; step++) {
            size_t at = next(&random) % 512;
            for (size_t i = 0; blocks[at] && i < sizes[at]; i += i < 4096 ? 61 : 4093)
                cr_assert_eq(blocks[at][i], (uint8_t)at, "seed %d", (int)seed);
            if (blocks[at])
                dt_shm_arena_free(arena, blocks[at]);
            size_t size = (size_t)1 << next(&random) % 21;
            sizes[at] = size + next(&random) % size;
            blocks[at] = dt_shm_arena_alloc(arena, sizes[at]);
            if (!blocks[at])
                continue;
            cr_assert_eq((uintptr_t)blocks[at] % 64, 0);
            cr_assert_eq(dt_shm_arena_of(blocks[at]), arena);
            cr_assert_geq(dt_shm_arena_offset(arena, blocks[at]), DT_SHM_ARENA_HEAD_BYTES);
            memset(blocks[at], (int)at, sizes[at] < 4096 ? sizes[at] : 4096);
            for (size_t i = 0; i < sizes[at]; i += i < 4096 ? 61 : 4093)
                blocks[at][i] = (uint8_t)at;
        }
        for (size_t i = 0; i < 512; i++)
            if (blocks[i])
                dt_shm_arena_free(arena, blocks[i]);
        cr_assert_eq(dt_shm_arena_live(arena), 0);
        dt_shm_arena_trim(arena);
        dt_shm_arena_stats_t stats;
        dt_shm_arena_stats(arena, &stats);
        cr_assert_eq(stats.dirty_bytes, 0);
        cr_assert_eq(stats.backed_bytes, 0, "%lld bytes stayed", (long long)stats.backed_bytes);
        cr_assert_leq(stats.peak_bytes, 256 * MIB);
        dt_shm_arena_close(arena);
    }
}

Test(shm_arena, stops_at_its_limit_and_works_after_it)
{
    dt_shm_arena_t *arena = arena_new(10 * MIB);
    void *a = dt_shm_arena_alloc(arena, 6 * MIB);
    cr_assert_not_null(a);
    cr_assert_null(dt_shm_arena_alloc(arena, 5 * MIB));
    cr_assert_null(dt_shm_arena_alloc(arena, SIZE_MAX));
    cr_assert_null(dt_shm_arena_alloc(arena, SIZE_MAX / 2));
    cr_assert_eq(dt_shm_arena_live(arena), 6 * MIB);
    void *b = dt_shm_arena_alloc(arena, 4 * MIB);
    cr_assert_not_null(b);
    cr_assert_null(dt_shm_arena_alloc(arena, 1));
    dt_shm_arena_free(arena, a);
    a = dt_shm_arena_alloc(arena, 6 * MIB);
    cr_assert_not_null(a);
    dt_shm_arena_free(arena, a);
    dt_shm_arena_free(arena, b);
    cr_assert_eq(dt_shm_arena_live(arena), 0);
    dt_shm_arena_close(arena);
}

Test(shm_arena, a_block_belongs_to_one_arena)
{
    dt_shm_arena_t *a = arena_new(MIB);
    dt_shm_arena_t *b = arena_new(MIB);
    void *block_a = dt_shm_arena_alloc(a, 100);
    void *block_b = dt_shm_arena_alloc(b, 100);
    int local;
    cr_assert_eq(dt_shm_arena_of(block_a), a);
    cr_assert_eq(dt_shm_arena_of(block_b), b);
    cr_assert_null(dt_shm_arena_of(&local));
    dt_shm_arena_close(a);
    cr_assert_null(dt_shm_arena_of(block_a));
    cr_assert_eq(dt_shm_arena_of(block_b), b);
    dt_shm_arena_close(b);
}

Test(shm_arena, memory_that_is_no_arena_is_refused)
{
    int fd;
    dt_error_t err = {0};
    dt_shm_arena_t *arena;
    cr_assert_eq(dt_memfd_create("test", 4096, &fd, &err), DT_OK);
    cr_assert_neq(dt_shm_arena_open(fd, 4096, MIB, &arena, &err), DT_OK);
    cr_assert_neq(dt_shm_arena_open(fd, 64 * MIB, MIB, &arena, &err), DT_OK);
    cr_assert_neq(dt_shm_arena_open(-1, 64 * MIB, MIB, &arena, &err), DT_OK);
}
