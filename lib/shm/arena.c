#include "shm/arena.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/memfd.h"

#define DT_SHM_ARENA_CLASSES   56
#define DT_SHM_ARENA_SMALL_MAX (UINT64_C(32) << 10)
#define DT_SHM_ARENA_PAGE      UINT64_C(4096)
#define DT_SHM_ARENA_NIL       UINT32_MAX
#define DT_SHM_ARENA_BINS      32
#define DT_SHM_ARENA_TRIES     64 /* runs of one bin that are looked at */
#define DT_SHM_ARENA_MAGAZINE  32u

enum unit_kind { UNIT_FREE, UNIT_SLAB, UNIT_LARGE, UNIT_INNER };

struct unit {
    uint8_t kind;
    uint8_t cls;
    bool dirty;          /* FREE: its pages may exist */
    uint32_t run;        /* FREE (first and last unit), LARGE (first): length */
    uint32_t used;       /* SLAB: blocks out, magazine included */
    uint32_t carved;     /* SLAB: blocks ever carved */
    uint32_t next, prev; /* FREE: list of its bin; SLAB: list of slabs with room */
    void *free;          /* SLAB: freed blocks, linked through their first word */
    uint64_t size_bytes; /* LARGE */
};

struct dt_shm_arena {
    char *base;
    uint64_t size_bytes;
    int64_t limit_bytes;
    _Atomic int64_t live_bytes;
    _Atomic int64_t peak_bytes;
    const void *owner; /* a thread's own address; it alone uses the magazine */
    uint32_t count[DT_SHM_ARENA_CLASSES];
    void *magazine[DT_SHM_ARENA_CLASSES];
    pthread_mutex_t lock; /* all below */
    struct unit *units;
    uint32_t unit_count;
    uint32_t runs[2][DT_SHM_ARENA_BINS]; /* heads by log2 of the length; clean, dirty */
    uint32_t slabs[DT_SHM_ARENA_CLASSES];
    int64_t dirty_bytes;
    int fd;
};

/* Which arena an address belongs to. Entries are written by whoever opens and closes. */
static _Atomic(dt_shm_arena_t *) arenas[DT_SHM_ARENAS_MAX];
static _Atomic uint32_t arena_top;   /* entries ever used */
static __thread uint32_t asked_last; /* place in `arenas` */
static __thread char thread_mark;

/* ---- size classes ---- */

static unsigned class_of(size_t size)
{
    if (size <= 1024)
        return size ? (unsigned)((size + 63) / 64) - 1 : 0;
    unsigned log = 63 - (unsigned)__builtin_clzll(size - 1);
    return 16 + (log - 10) * 8 + (unsigned)((size - 1) >> (log - 3)) - 8;
}

static size_t class_size(unsigned cls)
{
    return cls < 16 ? (size_t)(cls + 1) * 64 : (size_t)((cls - 16) % 8 + 9) << ((cls - 16) / 8 + 7);
}

static uint32_t class_room(unsigned cls)
{
    return (uint32_t)(DT_SHM_ARENA_UNIT / class_size(cls));
}

/* Blocks that the magazine takes at once; large ones are not hoarded. */
static uint32_t magazine_max(unsigned cls)
{
    return cls < 40 ? DT_SHM_ARENA_MAGAZINE : 2;
}

/* ---- runs of units; lock held ---- */

static unsigned bin_of(uint32_t run)
{
    return 31 - (unsigned)__builtin_clz(run);
}

static void list_push(dt_shm_arena_t *arena, uint32_t *head, uint32_t unit)
{
    arena->units[unit].prev = DT_SHM_ARENA_NIL;
    arena->units[unit].next = *head;
    if (*head != DT_SHM_ARENA_NIL)
        arena->units[*head].prev = unit;
    *head = unit;
}

static void list_remove(dt_shm_arena_t *arena, uint32_t *head, uint32_t unit)
{
    const struct unit *at = &arena->units[unit];
    if (at->prev == DT_SHM_ARENA_NIL)
        *head = at->next;
    else
        arena->units[at->prev].next = at->next;
    if (at->next != DT_SHM_ARENA_NIL)
        arena->units[at->next].prev = at->prev;
}

/* Take a whole run off its list. */
static void run_take(dt_shm_arena_t *arena, uint32_t first)
{
    struct unit *at = &arena->units[first];
    list_remove(arena, &arena->runs[at->dirty][bin_of(at->run)], first);
    at->kind = arena->units[first + at->run - 1].kind = UNIT_INNER;
}

/* Put a run on its list, joined with its free neighbours of the same kind. */
static void run_put(dt_shm_arena_t *arena, uint32_t first, uint32_t count, bool dirty)
{
    struct unit *units = arena->units;
    uint32_t after = first + count;
    if (after < arena->unit_count && units[after].kind == UNIT_FREE &&
        units[after].dirty == dirty) {
        count += units[after].run;
        run_take(arena, after);
    }
    if (first > 0 && units[first - 1].kind == UNIT_FREE && units[first - 1].dirty == dirty) {
        uint32_t before = units[first - 1].run; /* the first and the last unit of a run say it */
        first -= before;
        count += before;
        run_take(arena, first);
    }
    struct unit *head = &units[first];
    struct unit *last = &units[first + count - 1];
    head->kind = last->kind = UNIT_FREE;
    head->run = last->run = count;
    head->dirty = last->dirty = dirty;
    list_push(arena, &arena->runs[dirty][bin_of(count)], first);
}

/* Dirty runs first, as they need no new pages; then clean ones. First fit within a bin. */
static uint32_t run_alloc(dt_shm_arena_t *arena, uint32_t count)
{
    for (int dirty = 1; dirty >= 0; dirty--)
        for (unsigned bin = bin_of(count); bin < DT_SHM_ARENA_BINS; bin++) {
            uint32_t at = arena->runs[dirty][bin];
            for (int tries = 0; at != DT_SHM_ARENA_NIL && tries < DT_SHM_ARENA_TRIES; tries++) {
                uint32_t run = arena->units[at].run;
                if (run >= count) {
                    run_take(arena, at);
                    if (run > count)
                        run_put(arena, at + count, run - count, dirty);
                    if (dirty)
                        arena->dirty_bytes -= (int64_t)(count * DT_SHM_ARENA_UNIT);
                    return at;
                }
                at = arena->units[at].next;
            }
        }
    return DT_SHM_ARENA_NIL;
}

static void purge(dt_shm_arena_t *arena, int64_t cap_bytes)
{
    for (unsigned bin = DT_SHM_ARENA_BINS; bin-- > 0 && arena->dirty_bytes > cap_bytes;)
        while (arena->runs[1][bin] != DT_SHM_ARENA_NIL && arena->dirty_bytes > cap_bytes) {
            uint32_t first = arena->runs[1][bin];
            uint32_t count = arena->units[first].run;
            run_take(arena, first);
            /* Without the hole the pages stay; they are then used again as clean ones. */
            (void)fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                            (off_t)(first * DT_SHM_ARENA_UNIT), (off_t)(count * DT_SHM_ARENA_UNIT));
            arena->dirty_bytes -= (int64_t)(count * DT_SHM_ARENA_UNIT);
            run_put(arena, first, count, false);
        }
}

static void run_free(dt_shm_arena_t *arena, uint32_t first, uint32_t count)
{
    arena->dirty_bytes += (int64_t)(count * DT_SHM_ARENA_UNIT);
    run_put(arena, first, count, true);
    if (arena->dirty_bytes > DT_SHM_ARENA_DIRTY_MAX)
        purge(arena, DT_SHM_ARENA_DIRTY_MAX);
}

/* ---- slabs; lock held ---- */

static void *next_free(void *block)
{
    void *next;
    memcpy(&next, block, sizeof next);
    return next;
}

static void set_next_free(void *block, void *next)
{
    memcpy(block, &next, sizeof next);
}

static void *slab_alloc(dt_shm_arena_t *arena, unsigned cls)
{
    uint32_t unit = arena->slabs[cls];
    if (unit == DT_SHM_ARENA_NIL) {
        unit = run_alloc(arena, 1);
        if (unit == DT_SHM_ARENA_NIL)
            return NULL;
        arena->units[unit] = (struct unit){.kind = UNIT_SLAB, .cls = (uint8_t)cls};
        list_push(arena, &arena->slabs[cls], unit);
    }
    struct unit *slab = &arena->units[unit];
    void *block = slab->free;
    if (block)
        slab->free = next_free(block);
    else
        block = arena->base + unit * DT_SHM_ARENA_UNIT + slab->carved++ * class_size(cls);
    if (++slab->used == class_room(cls))
        list_remove(arena, &arena->slabs[cls], unit);
    return block;
}

static uint32_t unit_of(const dt_shm_arena_t *arena, const void *block)
{
    return (uint32_t)(dt_shm_arena_offset(arena, block) / DT_SHM_ARENA_UNIT);
}

static void slab_free(dt_shm_arena_t *arena, void *block)
{
    uint32_t unit = unit_of(arena, block);
    struct unit *slab = &arena->units[unit];
    set_next_free(block, slab->free);
    slab->free = block;
    if (slab->used-- == class_room(slab->cls))
        list_push(arena, &arena->slabs[slab->cls], unit);
    if (slab->used == 0) {
        list_remove(arena, &arena->slabs[slab->cls], unit);
        run_free(arena, unit, 1);
    }
}

/* ---- the owner's magazine ---- */

static void magazine_fill(dt_shm_arena_t *arena, unsigned cls)
{
    uint32_t wanted = magazine_max(cls) / 2;
    pthread_mutex_lock(&arena->lock);
    for (uint32_t i = 0; i < wanted; i++) {
        void *block = slab_alloc(arena, cls);
        if (!block)
            break;
        set_next_free(block, arena->magazine[cls]);
        arena->magazine[cls] = block;
        arena->count[cls]++;
    }
    pthread_mutex_unlock(&arena->lock);
}

static void magazine_flush(dt_shm_arena_t *arena, unsigned cls, uint32_t keep)
{
    pthread_mutex_lock(&arena->lock);
    while (arena->count[cls] > keep) {
        void *block = arena->magazine[cls];
        arena->magazine[cls] = next_free(block);
        arena->count[cls]--;
        slab_free(arena, block);
    }
    pthread_mutex_unlock(&arena->lock);
}

static void *small_alloc(dt_shm_arena_t *arena, unsigned cls)
{
    if (arena->owner != &thread_mark) {
        pthread_mutex_lock(&arena->lock);
        void *block = slab_alloc(arena, cls);
        pthread_mutex_unlock(&arena->lock);
        return block;
    }
    if (arena->count[cls] == 0)
        magazine_fill(arena, cls);
    void *block = arena->magazine[cls];
    if (block) {
        arena->magazine[cls] = next_free(block);
        arena->count[cls]--;
    }
    return block;
}

static void *large_alloc(dt_shm_arena_t *arena, size_t rounded)
{
    uint64_t units = (rounded + DT_SHM_ARENA_UNIT - 1) / DT_SHM_ARENA_UNIT;
    uint32_t first = DT_SHM_ARENA_NIL;
    pthread_mutex_lock(&arena->lock);
    if (units < arena->unit_count)
        first = run_alloc(arena, (uint32_t)units);
    if (first != DT_SHM_ARENA_NIL)
        arena->units[first] =
            (struct unit){.kind = UNIT_LARGE, .run = (uint32_t)units, .size_bytes = rounded};
    pthread_mutex_unlock(&arena->lock);
    return first == DT_SHM_ARENA_NIL ? NULL : arena->base + first * DT_SHM_ARENA_UNIT;
}

/* ---- the face ---- */

size_t dt_shm_arena_size(uint64_t limit_bytes)
{
    uint64_t size = limit_bytes + limit_bytes / 2 + (UINT64_C(64) << 20);
    size = (size + DT_SHM_ARENA_UNIT - 1) / DT_SHM_ARENA_UNIT * DT_SHM_ARENA_UNIT;
    return size < DT_MEMFD_SIZE_MAX ? size : DT_MEMFD_SIZE_MAX;
}

static dt_status_t publish(dt_shm_arena_t *arena, dt_error_t *err)
{
    for (uint32_t i = 0; i < DT_SHM_ARENAS_MAX; i++) {
        dt_shm_arena_t *none = NULL;
        if (!atomic_compare_exchange_strong(&arenas[i], &none, arena))
            continue;
        uint32_t top = atomic_load(&arena_top);
        while (top < i + 1 && !atomic_compare_exchange_weak(&arena_top, &top, i + 1))
            ;
        return DT_OK;
    }
    return dt_fail(err, DT_ERR_LIMIT, "dt", DT_SHM_ARENAS_MAX, "%u arenas are open",
                   DT_SHM_ARENAS_MAX);
}

static dt_status_t arena_map(dt_shm_arena_t *arena, dt_error_t *err)
{
    void *base;
    uint32_t head = (uint32_t)(DT_SHM_ARENA_HEAD_BYTES / DT_SHM_ARENA_UNIT);
    if (arena->size_bytes < DT_SHM_ARENA_HEAD_BYTES + DT_SHM_ARENA_UNIT ||
        arena->size_bytes > DT_MEMFD_SIZE_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "an arena of %llu bytes",
                       (unsigned long long)arena->size_bytes);
    arena->unit_count = (uint32_t)(arena->size_bytes / DT_SHM_ARENA_UNIT);
    arena->units = calloc(arena->unit_count, sizeof *arena->units);
    if (!arena->units)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an arena of %u units",
                       arena->unit_count);
    DT_TRY(dt_memfd_map(arena->fd, arena->size_bytes, DT_MEMFD_READ_WRITE, &base, err));
    arena->base = base;
    memset(arena->runs, 0xff, sizeof arena->runs);
    memset(arena->slabs, 0xff, sizeof arena->slabs);
    for (uint32_t i = 0; i < arena->unit_count; i++)
        arena->units[i].kind = UNIT_INNER;
    run_put(arena, head, arena->unit_count - head, false);
    return DT_OK;
}

dt_status_t dt_shm_arena_open(int fd, size_t size_bytes, int64_t limit_bytes,
                              dt_shm_arena_t **ret_arena, dt_error_t *err)
{
    dt_shm_arena_t *arena = calloc(1, sizeof *arena);
    if (!arena)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an arena");
    arena->fd = fd;
    arena->size_bytes = size_bytes;
    arena->limit_bytes = limit_bytes;
    arena->owner = &thread_mark;
    (void)pthread_mutex_init(&arena->lock, NULL);
    dt_status_t status = arena_map(arena, err);
    if (status == DT_OK)
        status = publish(arena, err);
    if (status != DT_OK) {
        arena->fd = -1;
        dt_shm_arena_close(arena);
        return status;
    }
    *ret_arena = arena;
    return DT_OK;
}

void dt_shm_arena_close(dt_shm_arena_t *arena)
{
    if (!arena)
        return;
    for (uint32_t i = 0; i < DT_SHM_ARENAS_MAX; i++)
        if (atomic_load(&arenas[i]) == arena)
            atomic_store(&arenas[i], NULL);
    dt_memfd_unmap(arena->base, arena->size_bytes);
    if (arena->fd >= 0)
        (void)close(arena->fd);
    (void)pthread_mutex_destroy(&arena->lock);
    free(arena->units);
    free(arena);
}

/* Count before the block is taken, so that threads together cannot pass the limit. */
static bool account(dt_shm_arena_t *arena, int64_t bytes)
{
    int64_t live =
        atomic_fetch_add_explicit(&arena->live_bytes, bytes, memory_order_relaxed) + bytes;
    if (live > arena->limit_bytes) {
        atomic_fetch_sub_explicit(&arena->live_bytes, bytes, memory_order_relaxed);
        return false;
    }
    if (live > atomic_load_explicit(&arena->peak_bytes, memory_order_relaxed))
        atomic_store_explicit(&arena->peak_bytes, live, memory_order_relaxed);
    return true;
}

void *dt_shm_arena_alloc(dt_shm_arena_t *arena, size_t size_bytes)
{
    if (size_bytes > arena->size_bytes)
        return NULL;
    bool is_small = size_bytes <= DT_SHM_ARENA_SMALL_MAX;
    unsigned cls = is_small ? class_of(size_bytes) : 0;
    size_t rounded = is_small ? class_size(cls)
                              : (size_bytes + DT_SHM_ARENA_PAGE - 1) & ~(DT_SHM_ARENA_PAGE - 1);
    if (!account(arena, (int64_t)rounded))
        return NULL;
    void *block = is_small ? small_alloc(arena, cls) : large_alloc(arena, rounded);
    if (!block)
        atomic_fetch_sub_explicit(&arena->live_bytes, (int64_t)rounded, memory_order_relaxed);
    return block;
}

static bool is_in(const dt_shm_arena_t *arena, const void *block)
{
    return (uint64_t)((const char *)block - arena->base) < arena->size_bytes;
}

dt_shm_arena_t *dt_shm_arena_of(const void *block)
{
    dt_shm_arena_t *arena = atomic_load_explicit(&arenas[asked_last], memory_order_acquire);
    if (arena && is_in(arena, block))
        return arena;
    uint32_t top = atomic_load_explicit(&arena_top, memory_order_acquire);
    for (uint32_t i = 0; i < top; i++) {
        arena = atomic_load_explicit(&arenas[i], memory_order_acquire);
        if (arena && is_in(arena, block)) {
            asked_last = i;
            return arena;
        }
    }
    return NULL;
}

void dt_shm_arena_free(dt_shm_arena_t *arena, void *block)
{
    struct unit *unit = &arena->units[unit_of(arena, block)];
    bool is_slab = unit->kind == UNIT_SLAB; /* cannot change while a block of it is out */
    unsigned cls = unit->cls;
    int64_t bytes = is_slab ? (int64_t)class_size(cls) : (int64_t)unit->size_bytes;
    if (is_slab && arena->owner == &thread_mark) {
        set_next_free(block, arena->magazine[cls]);
        arena->magazine[cls] = block;
        if (++arena->count[cls] > magazine_max(cls))
            magazine_flush(arena, cls, magazine_max(cls) / 2);
    } else {
        pthread_mutex_lock(&arena->lock);
        if (is_slab)
            slab_free(arena, block);
        else
            run_free(arena, unit_of(arena, block), unit->run);
        pthread_mutex_unlock(&arena->lock);
    }
    atomic_fetch_sub_explicit(&arena->live_bytes, bytes, memory_order_relaxed);
}

void dt_shm_arena_trim(dt_shm_arena_t *arena)
{
    if (arena->owner == &thread_mark)
        for (unsigned cls = 0; cls < DT_SHM_ARENA_CLASSES; cls++)
            magazine_flush(arena, cls, 0);
    pthread_mutex_lock(&arena->lock);
    purge(arena, 0);
    pthread_mutex_unlock(&arena->lock);
}

int64_t dt_shm_arena_live(const dt_shm_arena_t *arena)
{
    return atomic_load_explicit(&arena->live_bytes, memory_order_relaxed);
}

void dt_shm_arena_stats(const dt_shm_arena_t *arena, dt_shm_arena_stats_t *ret_stats)
{
    struct stat stat = {0};
    (void)syscall(SYS_fstat, arena->fd, &stat); /* glibc's is newfstatat, refused in the sandbox */
    *ret_stats = (dt_shm_arena_stats_t){
        .live_bytes = dt_shm_arena_live(arena),
        .peak_bytes = atomic_load_explicit(&arena->peak_bytes, memory_order_relaxed),
        .limit_bytes = arena->limit_bytes,
        .dirty_bytes = arena->dirty_bytes,
        .backed_bytes = (int64_t)stat.st_blocks * 512,
    };
}

uint64_t dt_shm_arena_offset(const dt_shm_arena_t *arena, const void *block)
{
    return (uint64_t)((const char *)block - arena->base);
}
