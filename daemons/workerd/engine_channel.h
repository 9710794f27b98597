/* The memory that an agent and an engine share for one session: how the two lay it out.
 *
 *   channel  a memfd for each engine of a session, written by both: dt_channel_t, and behind it the
 *            ring of what goes up
 *   down     a memfd for the session, written by the agent, read-only for its engines: the ring of
 *            frames, and behind it the ring of tensor bytes
 *
 * Nothing in the channel is believed by the agent: cursors are checked by the rings, `executed` is
 * brought into its bounds, texts are cleaned. */
#ifndef DT_WORKERD_ENGINE_CHANNEL_H
#define DT_WORKERD_ENGINE_CHANNEL_H
#include <stdatomic.h>
#include <stdint.h>

#include "shm/engine_page.h"
#include "shm/ring.h"

#define DT_CHANNEL_VDEVS_MAX    4096u
#define DT_CHANNEL_SOURCE_BYTES 1024u
#define DT_CHANNEL_UP_BYTES     (8u << 20)
#define DT_CHANNEL_FRAMES_BYTES (2u << 20)
#define DT_CHANNEL_BULK_BYTES   (16u << 20)
#define DT_CHANNEL_META_BYTES   (4u << 20) /* each way */

/* Kinds of messages. */
enum {
    DT_CHANNEL_FRAME = 1, /* frames: a frame as it came */
    DT_CHANNEL_LIST = 2,  /* frames: list tensors; a u32, how many at most */
    DT_CHANNEL_TRACE = 3, /* frames: trace operators; a u32, for how many ms */
    DT_CHANNEL_CHUNK = 1, /* bulk: dt_channel_chunk_t and bytes */
    DT_CHANNEL_UP = 1,    /* up: a packed WorkerSessionUp */
};

typedef struct dt_channel_chunk {
    uint64_t transfer;
    uint64_t offset;
    uint64_t received; /* the other side has so much of a download */
    uint32_t crc32c;   /* of the bytes */
    uint32_t flags;
    uint64_t place;  /* PLACED: where the bytes lie in the program's window */
    uint32_t size;   /* PLACED: how many */
    uint32_t window; /* PLACED: number of the window */
} dt_channel_chunk_t;
enum {
    DT_CHANNEL_CHUNK_ACK = 1,     /* it is about `received`, there are no bytes */
    DT_CHANNEL_CHUNK_RESTART = 2, /* bytes behind `received` are wanted again */
    DT_CHANNEL_CHUNK_ERROR = 4,   /* the other side gave the transfer up */
    DT_CHANNEL_CHUNK_PLACED = 8,  /* the bytes are not here but in the window */
};

typedef struct dt_channel {
    dt_ring_cursor_t frames; /* the engine's, of the down rings */
    dt_ring_cursor_t bulk;
    dt_ring_cursor_t up;                    /* the agent's */
    _Alignas(64) _Atomic uint64_t executed; /* engine: last sequence executed or skipped */
    _Atomic uint64_t running;             /* engine: sequence that runs; 0: none of this session */
    char source[DT_CHANNEL_SOURCE_BYTES]; /* engine: the program's line of what runs */
    _Atomic uint64_t moving; /* engine: sequence of the move that runs beside it; 0: none */
    char move_name[DT_ENGINE_PAGE_NAME_MAX + 1];
    char move_source[DT_CHANNEL_SOURCE_BYTES]; /* its line */
    /* Agent, before the engine maps it. */
    uint64_t session;
    uint64_t limit_bytes; /* of all its tensors here */
    uint64_t arena_bytes; /* size of the arena's memfd */
    uint32_t device;      /* index in the node */
    char node[64];
    uint32_t vdev_count;
    uint32_t vdevs[DT_CHANNEL_VDEVS_MAX]; /* that this engine runs, rising */
} dt_channel_t;

#define DT_CHANNEL_CONTROL_BYTES 32768u
_Static_assert(sizeof(dt_channel_t) <= DT_CHANNEL_CONTROL_BYTES, "the channel fits its pages");
#define DT_CHANNEL_BYTES   (DT_CHANNEL_CONTROL_BYTES + DT_RING_HEAD_BYTES + DT_CHANNEL_UP_BYTES)
#define DT_CHANNEL_BULK_AT (DT_RING_HEAD_BYTES + DT_CHANNEL_FRAMES_BYTES)
#define DT_CHANNEL_DOWN_BYTES                                                                      \
    (DT_CHANNEL_BULK_AT + (size_t)DT_RING_HEAD_BYTES + DT_CHANNEL_BULK_BYTES)

/* One memory an engine for its metadata thread: cursors, queries down, answers up. A message's kind
 * is the number of the session's instance. A query: u64 number, u32 vdev, the signature's body and
 * those that are asked ahead, one behind the other; an answer: a packed WorkerSessionUp. */
typedef struct dt_channel_meta {
    dt_ring_cursor_t queries; /* the engine's */
    dt_ring_cursor_t answers; /* the agent's */
} dt_channel_meta_t;
#define DT_CHANNEL_QUERIES_AT 4096u
#define DT_CHANNEL_ANSWERS_AT (DT_CHANNEL_QUERIES_AT + DT_RING_HEAD_BYTES + DT_CHANNEL_META_BYTES)
#define DT_CHANNEL_META_SIZE  (DT_CHANNEL_ANSWERS_AT + DT_RING_HEAD_BYTES + DT_CHANNEL_META_BYTES)
#define DT_CHANNEL_QUERY_HEAD 16u

#endif
