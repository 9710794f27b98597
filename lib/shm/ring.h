/* A ring of whole messages in shared memory: one writer, several readers, each with a cursor.
 *
 * Body     what the writer writes: a page with its position, and the bytes. Readers map it
 *          read-only when they are given a read-only descriptor, so one reader cannot change what
 *          another one reads.
 * Cursor   64 bytes that one reader writes and the writer looks at, in memory that the two share.
 *
 * A message lies in one piece: a header of 8 bytes (size, kind) and the bytes, 8-byte aligned; what
 * is left at the end of the bytes is skipped. The writer has room when every reader has passed. All
 * see the same messages in the same order.
 *
 * Waking. A reader that finds nothing says so in its cursor, looks again, and sleeps on its
 * eventfd; the writer wakes it once, with the next message. A writer without room says so in
 * all cursors, looks again, and sleeps on its own; a reader wakes it when it has passed something.
 * Nobody is woken who is awake, and nobody spins.
 *
 * Trust. Each side keeps its own position in private memory and never reads it back. What it reads
 * of the other's is checked: a position that cannot be, a message that does not fit between the
 * positions, a size over the bound is DT_ERR_PEER, for good, and no byte outside is touched. The
 * bytes of a message may be changed by a writer that is not trusted while they are read: such a
 * reader copies first and checks then.
 *
 * Limits: DT_RING_READERS_MAX readers, messages of at most a quarter of the capacity. Threads: one
 * a side. Nothing here blocks. */
#ifndef DT_SHM_RING_H
#define DT_SHM_RING_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_RING_READERS_MAX  16
#define DT_RING_HEAD_BYTES   4096u /* of a body, before the bytes */
#define DT_RING_CAPACITY_MIN 4096u
#define DT_RING_CAPACITY_MAX (1u << 30)

typedef struct dt_ring_body {
    uint32_t magic;
    uint32_t capacity;                  /* bytes, a power of two */
    _Alignas(64) _Atomic uint64_t tail; /* bytes ever written */
} dt_ring_body_t;

/* Zeroed memory is a cursor at the start. */
typedef struct dt_ring_cursor {
    _Alignas(64) _Atomic uint64_t head; /* bytes ever passed */
    _Atomic uint32_t is_asleep;         /* the next message must wake it; the writer clears it */
    _Atomic uint32_t wants_room;        /* this reader must wake the writer; it clears it */
} dt_ring_cursor_t;

typedef struct dt_ring_message {
    const uint8_t *bytes; /* in the ring; valid until dt_ring_pass() */
    uint32_t size;
    uint32_t kind;
} dt_ring_message_t;

typedef struct dt_ring_reader {
    const dt_ring_body_t *body;
    const uint8_t *bytes;
    dt_ring_cursor_t *cursor;
    uint64_t head;   /* private */
    uint64_t seen;   /* tail as it was last read */
    uint64_t next;   /* behind the message that dt_ring_peek() gave */
    uint32_t mask;   /* capacity - 1 */
    int writer_wake; /* eventfd of the writer, -1: none */
    bool is_broken;
} dt_ring_reader_t;

typedef struct dt_ring_writer {
    dt_ring_body_t *body;
    uint8_t *bytes;
    uint64_t tail;     /* private */
    uint64_t reserved; /* where the reserved message begins */
    uint32_t mask;
    uint32_t reader_count;
    struct {
        dt_ring_cursor_t *cursor; /* NULL: free place */
        uint64_t head;            /* as it was last read and believed */
        uint64_t start;           /* tail when it joined: it may not be before that */
        int wake;                 /* eventfd of the reader, -1: none */
    } readers[DT_RING_READERS_MAX];
} dt_ring_writer_t;

/* Bytes of a body with `capacity` bytes. */
static inline size_t dt_ring_body_bytes(uint32_t capacity)
{
    return (size_t)DT_RING_HEAD_BYTES + capacity;
}

/* Begin to write a ring in `memory` (dt_ring_body_bytes(), zeroed, page-aligned).
 * Ownership: keeps `memory`. Errors: INVALID (capacity). */
DT_MUST_USE dt_status_t dt_ring_writer_init(dt_ring_writer_t *ret_writer, void *memory,
                                            uint32_t capacity, dt_error_t *err);
/* Let a reader join; it sees what is written from now on. Its cursor is set to where that is.
 * Ownership: keeps `cursor` and `wake` until dt_ring_leave(). Errors: LIMIT. */
DT_MUST_USE dt_status_t dt_ring_join(dt_ring_writer_t *writer, dt_ring_cursor_t *cursor, int wake,
                                     uint32_t *ret_reader, dt_error_t *err);
void dt_ring_leave(dt_ring_writer_t *writer, uint32_t reader);

/* Reserve a message of at most `size` bytes; *ret_bytes may be filled until dt_ring_commit().
 * Errors: AGAIN (no room now; nothing is asked for, see dt_ring_want_room()), LIMIT (larger than a
 * message may be), PEER (a reader's cursor cannot be; *ret_reader if it is not NULL says whose). */
DT_MUST_USE dt_status_t dt_ring_reserve(dt_ring_writer_t *writer, size_t size, uint8_t **ret_bytes,
                                        uint32_t *ret_reader);
/* Make the reserved message visible, `size` bytes of it, and wake who sleeps. */
void dt_ring_commit(dt_ring_writer_t *writer, size_t size, uint32_t kind);
/* The same in two steps, so that several messages are seen together and need one wake: what was put
 * is nobody's until the kick, or the next commit. */
void dt_ring_put(dt_ring_writer_t *writer, size_t size, uint32_t kind);
void dt_ring_kick(dt_ring_writer_t *writer);
/* Reserve, copy, commit. Errors: as dt_ring_reserve(). */
DT_MUST_USE dt_status_t dt_ring_write(dt_ring_writer_t *writer, uint32_t kind, const void *bytes,
                                      size_t size, uint32_t *ret_reader);
/* Bytes of the largest message that could be reserved now. */
size_t dt_ring_room(dt_ring_writer_t *writer);
/* Whether all readers have passed everything. */
bool dt_ring_is_drained(dt_ring_writer_t *writer);
/* Ask to be woken by any reader that passes something. Look for room once more after it. */
void dt_ring_want_room(dt_ring_writer_t *writer);

/* Begin to read a ring that somebody else wrote the head of.
 * Ownership: keeps all. `size` is of the mapped body; `writer_wake` may be -1.
 * Errors: INVALID (not a ring, or its capacity does not fit `size`). */
DT_MUST_USE dt_status_t dt_ring_reader_init(dt_ring_reader_t *ret_reader, const void *body,
                                            size_t size, dt_ring_cursor_t *cursor, int writer_wake,
                                            dt_error_t *err);
/* Look at the next message. Errors: AGAIN (none), PEER (the writer broke the ring; it stays so). */
DT_MUST_USE dt_status_t dt_ring_peek(dt_ring_reader_t *reader, dt_ring_message_t *ret_message);
/* Pass the message that was looked at; its bytes may be written over. */
void dt_ring_pass(dt_ring_reader_t *reader);
/* Say that nothing more is read until a wake. True: a message is there after all, do not sleep. */
bool dt_ring_prepare_sleep(dt_ring_reader_t *reader);
/* Take the word back, when one reads on for another reason. */
void dt_ring_cancel_sleep(dt_ring_reader_t *reader);

/* Between two looks of a reader that does not sleep yet. */
static inline void dt_ring_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wake-ups are eventfds, not blocking. */
DT_MUST_USE dt_status_t dt_ring_wake_create(int *ret_fd, dt_error_t *err);
void dt_ring_wake(int fd);       /* Safe with -1. Cost: a system call */
void dt_ring_wake_clear(int fd); /* forget wakes that came */

#endif
