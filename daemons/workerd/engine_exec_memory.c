/* Blocks for the backend: which arena is a matter of the thread, because the table's `arg` is one
 * for the whole device. */
#include <stdlib.h>

#include "engine_exec_internal.h"

#define DT_EXEC_MEMORY_ALIGN 64

static __thread dt_shm_arena_t *memory_arena;

void dt_exec_memory_use(dt_shm_arena_t *arena)
{
    memory_arena = arena;
}

static void *memory_alloc(void *arg, size_t size)
{
    (void)arg;
    if (memory_arena)
        return dt_shm_arena_alloc(memory_arena, size);
    if (size > SIZE_MAX - DT_EXEC_MEMORY_ALIGN)
        return NULL;
    return aligned_alloc(DT_EXEC_MEMORY_ALIGN, (size + DT_EXEC_MEMORY_ALIGN - 1) /
                                                   DT_EXEC_MEMORY_ALIGN * DT_EXEC_MEMORY_ALIGN);
}

static void memory_release(void *block)
{
    dt_shm_arena_t *arena = block ? dt_shm_arena_of(block) : NULL;
    if (arena)
        dt_shm_arena_free(arena, block);
    else
        free(block);
}

const dt_backend_memory_t *dt_exec_backend_memory(void)
{
    static const dt_backend_memory_t memory = {.alloc = memory_alloc, .release = memory_release};
    return &memory;
}
