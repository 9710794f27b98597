/* Tensor memory of one session in shared memory: an allocator over a sealed memfd.
 *
 * The memfd has a fixed size (so a mapping never faults with SIGBUS, and the size is a hard cap),
 * is sparse, and is mapped whole. Its head is a table of tensors: what people and, after a crash,
 * another engine can see of it. All else about the allocator is private memory of the engine.
 *
 * Units of 256 KiB: a slab of blocks of one size class (up to 32 KiB, 8 classes a doubling), or a
 * run of units for one large block. Freed runs keep their pages up to DT_SHM_ARENA_DIRTY_MAX (a
 * fresh page costs more than a copy), then they are punched out; trim punches out all.
 *
 * Invariants: live bytes are exact (size classes, whole pages of large blocks) and never above the
 * limit; a block belongs to one arena, which is found by its address. Limits:
 * DT_SHM_ARENAS_MAX arenas in a process. Blocks are aligned to 64 bytes and not cleared; memory
 * that was never used before is zero.
 * Threads: any for alloc and free; the thread that opened it takes no lock for small blocks. */
#ifndef DT_SHM_ARENA_H
#define DT_SHM_ARENA_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_SHM_ARENAS_MAX       256u
#define DT_SHM_ARENA_UNIT       (UINT64_C(256) << 10)
#define DT_SHM_ARENA_ENTRIES    65536u /* of the table; tensors beyond are not listed */
#define DT_SHM_ARENA_HEAD_BYTES (UINT64_C(8) << 20)
#define DT_SHM_ARENA_DIRTY_MAX  (INT64_C(256) << 20)

/* One tensor in the table, 128 bytes. Written by the engine only; seq is odd while it changes. */
typedef struct dt_shm_arena_entry {
    _Atomic uint64_t seq;
    uint64_t id;      /* of the tensor; 0: the entry is free */
    uint64_t version; /* sequence of the record that wrote it last */
    uint64_t offset;  /* of its first element in the arena; 0: its memory is elsewhere */
    uint64_t size_bytes;
    uint32_t vdev;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t state; /* dt_shm_arena_state_t */
    uint8_t pad;
    int64_t sizes[8]; /* the first eight */
    int64_t pad_[2];
} dt_shm_arena_entry_t;
_Static_assert(sizeof(dt_shm_arena_entry_t) == 128, "the table's layout");
_Static_assert(sizeof(dt_shm_arena_entry_t) * DT_SHM_ARENA_ENTRIES <= DT_SHM_ARENA_HEAD_BYTES,
               "the table fits the head");

typedef enum dt_shm_arena_state {
    DT_SHM_ARENA_READY = 1,
    DT_SHM_ARENA_POISONED = 2,
} dt_shm_arena_state_t;

typedef struct dt_shm_arena dt_shm_arena_t;

typedef struct dt_shm_arena_stats {
    int64_t live_bytes;
    int64_t peak_bytes;
    int64_t limit_bytes;
    int64_t dirty_bytes;  /* kept for use again */
    int64_t backed_bytes; /* pages that exist, by the kernel's word */
} dt_shm_arena_stats_t;

/* The size of the memfd for a limit: room for the table and for what fragments. */
size_t dt_shm_arena_size(uint64_t limit_bytes);

/* Open the arena in `fd`, empty. The calling thread is its owner.
 * Ownership: takes `fd` on success only; gives *ret_arena, free with dt_shm_arena_close().
 * Errors: INVALID (not sealed, too small), NOMEM, LIMIT (DT_SHM_ARENAS_MAX). */
DT_MUST_USE dt_status_t dt_shm_arena_open(int fd, size_t size_bytes, int64_t limit_bytes,
                                          dt_shm_arena_t **ret_arena, dt_error_t *err);
/* Unmap. Blocks that are still out become invalid. NULL is fine. */
void dt_shm_arena_close(dt_shm_arena_t *arena);

/* Give a block; NULL over the limit or when there is no run of that size. */
void *dt_shm_arena_alloc(dt_shm_arena_t *arena, size_t size_bytes);
/* Whose block this is; NULL: no arena's. Cost: O(1) for the arena that was asked for last. */
dt_shm_arena_t *dt_shm_arena_of(const void *block);
void dt_shm_arena_free(dt_shm_arena_t *arena, void *block);
/* Punch out all pages that are kept for use again. Cost: 0.2 ms a MiB; when idle. */
void dt_shm_arena_trim(dt_shm_arena_t *arena);
void dt_shm_arena_stats(const dt_shm_arena_t *arena, dt_shm_arena_stats_t *ret_stats);
/* Live bytes alone. Cost: a load. */
int64_t dt_shm_arena_live(const dt_shm_arena_t *arena);

/* Where a block lies, from the start of the memfd. */
uint64_t dt_shm_arena_offset(const dt_shm_arena_t *arena, const void *block);

#endif
