/* Arena: blocks of a usual size, larger ones for larger requests. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BLOCK_SIZE = 4096 }; /* with its header */

struct dt_arena_block {
    struct dt_arena_block *next; /* older block */
    size_t size;                 /* bytes of payload */
    size_t used;                 /* bytes of payload handed out */
    alignas(max_align_t) unsigned char payload[];
};

void dt_arena_init(dt_arena_t *arena, size_t cap_bytes)
{
    *arena = (dt_arena_t){.cap_bytes = cap_bytes};
}

void dt_arena_fini(dt_arena_t *arena)
{
    if (!arena)
        return;
    while (arena->head) {
        struct dt_arena_block *block = arena->head;
        arena->head = block->next;
        free(block);
    }
    arena->used_bytes = 0;
}

void dt_arena_reset(dt_arena_t *arena)
{
    struct dt_arena_block *keep = NULL;
    while (arena->head) {
        struct dt_arena_block *block = arena->head;
        arena->head = block->next;
        if (!keep && sizeof *block + block->size == ARENA_BLOCK_SIZE)
            keep = block;
        else
            free(block);
    }
    arena->used_bytes = 0;
    if (keep) {
        keep->next = NULL;
        keep->used = 0;
        arena->head = keep;
        arena->used_bytes = ARENA_BLOCK_SIZE;
    }
}

/* Put a block for at least `size` bytes in front. Returns whether there was room and memory. */
static bool add_block(dt_arena_t *arena, size_t size)
{
    size_t room = arena->cap_bytes - arena->used_bytes;
    size_t total;
    if (__builtin_add_overflow(size, sizeof(struct dt_arena_block), &total) || total > room)
        return false;
    if (total < ARENA_BLOCK_SIZE)
        total = room < ARENA_BLOCK_SIZE ? room : ARENA_BLOCK_SIZE;
    struct dt_arena_block *block = malloc(total);
    if (!block)
        return false;
    block->size = total - sizeof *block;
    block->used = 0;
    block->next = arena->head;
    arena->head = block;
    arena->used_bytes += total;
    return true;
}

void *dt_arena_alloc(dt_arena_t *arena, size_t size)
{
    const size_t align = alignof(max_align_t);
    if (!size)
        size = 1;
    if (size > SIZE_MAX - align)
        return NULL;
    size = (size + align - 1) / align * align;
    if (!arena->head || arena->head->size - arena->head->used < size) {
        if (!add_block(arena, size))
            return NULL;
    }
    struct dt_arena_block *block = arena->head;
    void *at = block->payload + block->used;
    block->used += size;
    return at;
}

void *dt_arena_calloc(dt_arena_t *arena, size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        return NULL;
    void *at = dt_arena_alloc(arena, total);
    if (at)
        memset(at, 0, total);
    return at;
}

char *dt_arena_strndup(dt_arena_t *arena, const char *text, size_t len)
{
    if (len == SIZE_MAX)
        return NULL;
    char *copy = dt_arena_alloc(arena, len + 1);
    if (!copy)
        return NULL;
    if (len)
        memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

void *dt_arena_pb_alloc(void *arena, size_t size)
{
    return dt_arena_alloc(arena, size);
}

void dt_arena_pb_free(void *arena, void *ptr)
{
    (void)arena;
    (void)ptr;
}
