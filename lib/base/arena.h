/* Arena: many small allocations, one release, and a cap on the sum.
 * A request has one arena; what a peer sends is unpacked into it, so a message can take no more
 * memory than the cap. The cap counts payload and the blocks' overhead alike. Nothing is released
 * one by one. Invariant: used_bytes <= cap_bytes. Threads: one at a time. */
#ifndef DT_BASE_ARENA_H
#define DT_BASE_ARENA_H
#include <stddef.h>

#include "base/status.h"

struct dt_arena_block;

typedef struct dt_arena {
    struct dt_arena_block *head; /* newest block; NULL while empty */
    size_t used_bytes;           /* allocated from the system, headers included */
    size_t cap_bytes;            /* maximum of used_bytes */
} dt_arena_t;

/* Start an empty arena. Allocates nothing. */
void dt_arena_init(dt_arena_t *arena, size_t cap_bytes);
void dt_arena_fini(dt_arena_t *arena); /* NULL is fine */

/* Release everything at once; keeps one block of the usual size for the next request.
 * Every pointer that came from the arena is dead afterwards. */
void dt_arena_reset(dt_arena_t *arena);

/* Allocate `size` bytes, aligned for any type, not cleared. A size of 0 gives a unique pointer.
 * Returns NULL when the cap or the memory is reached; what was allocated before stays valid. */
void *dt_arena_alloc(dt_arena_t *arena, size_t size);

/* The same cleared, for `count` elements; NULL on overflow too. */
void *dt_arena_calloc(dt_arena_t *arena, size_t count, size_t size);

/* Copy `len` bytes of text and terminate them. NULL as above. */
char *dt_arena_strndup(dt_arena_t *arena, const char *text, size_t len);

/* The two functions of a ProtobufCAllocator whose allocator_data is the arena:
 *     ProtobufCAllocator a = {dt_arena_pb_alloc, dt_arena_pb_free, &arena}; */
void *dt_arena_pb_alloc(void *arena, size_t size);
void dt_arena_pb_free(void *arena, void *ptr);

#endif
