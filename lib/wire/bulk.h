/* Messages of a data connection: tensor bytes between a program and the agent of a node, past the
 * controller. By a stream socket, of the same host with a window in shared memory, or TCP.
 *
 *   offset size  field, little-endian
 *   0      4     magic "DTB1"
 *   4      1     kind
 *   5      1     flags
 *   6      2     zero
 *   8      8     transfer
 *   16     8     offset of the bytes in the transfer
 *   24     8     place: PLACED: where in the window; RECEIVED: bytes that are there; HELLO: bytes
 * of the window, 0: none; WELCOME: see dt_bulk_areas() 32     8     total: bytes of the transfer
 * (DATA and PLACED from the node); HELLO: the session 40     4     size: of the bytes that follow
 * (PLACED: that lie in the window, none follow) 44     4     CRC32C of the bytes that follow
 *
 * The program says HELLO with a token that is good for one connection, and with the descriptor of
 * its window; the agent WELCOME or REFUSED. Then DATA or PLACED in either direction, each answered
 * by RECEIVED, cumulative in its transfer. Bytes behind a hole are refused at once: RECEIVED with
 * AGAIN. Transfers are those of the session's stream; dtorch-protocol(7) has the rules.
 *
 * The window: uploads in its first DT_BULK_UPLOAD_BYTES, given out by the program; behind them
 * areas for fetches, each of one engine and given out by it. Threads: none of its own. Never
 * allocates. */
#ifndef DT_WIRE_BULK_H
#define DT_WIRE_BULK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_BULK_HEAD_BYTES   48u
#define DT_BULK_BODY_MAX     (1u << 20) /* of DATA */
#define DT_BULK_TEXT_MAX     8192u      /* of REFUSED and FAILED */
#define DT_BULK_TOKEN_BYTES  16u
#define DT_BULK_INLINE_MAX   (64u << 10) /* what is larger is PLACED where there is a window */
#define DT_BULK_UNIT_BYTES   (1u << 20)  /* window memory is given out in units */
#define DT_BULK_UPLOAD_BYTES (64u << 20) /* of the window */
#define DT_BULK_FETCH_BYTES  (64u << 20) /* of the window, all areas */
#define DT_BULK_WINDOW_BYTES (DT_BULK_UPLOAD_BYTES + DT_BULK_FETCH_BYTES)
#define DT_BULK_AREAS_MAX    64u
#define DT_BULK_UNITS_MAX    64u
#define DT_BULK_PIECE_BYTES  (1u << 20) /* PLACED in one message */
#define DT_BULK_TELL_BYTES   (2u << 20) /* RECEIVED is said after so many, and at the end */
#define DT_BULK_AHEAD_MAX    (8u << 20) /* bytes of DATA on their way in one direction */

typedef enum dt_bulk_kind {
    DT_BULK_HELLO = 1, /* program; the token follows */
    DT_BULK_WELCOME,   /* agent */
    DT_BULK_REFUSED,   /* agent, the last message; a text follows */
    DT_BULK_DATA,
    DT_BULK_PLACED,
    DT_BULK_RECEIVED,
    DT_BULK_FAILED, /* agent: the transfer is over; an OperatorError follows */
} dt_bulk_kind_t;

enum {
    DT_BULK_AGAIN = 1, /* RECEIVED: what is behind it has to be said again */
};

typedef struct dt_bulk_head {
    uint8_t kind;
    uint8_t flags;
    uint64_t transfer;
    uint64_t offset;
    uint64_t place;
    uint64_t total;
    uint32_t size;
    uint32_t crc32c;
} dt_bulk_head_t;

void dt_bulk_put(uint8_t ret_bytes[DT_BULK_HEAD_BYTES], const dt_bulk_head_t *head);
/* Read a head. Errors: INVALID (the text says what). */
DT_MUST_USE dt_status_t dt_bulk_get(const uint8_t bytes[DT_BULK_HEAD_BYTES],
                                    dt_bulk_head_t *ret_head, dt_error_t *err);
/* Bytes that follow a head. */
static inline uint32_t dt_bulk_body(const dt_bulk_head_t *head)
{
    return head->kind == DT_BULK_PLACED || head->kind == DT_BULK_RECEIVED ? 0 : head->size;
}

/* Where the area of the engine `index` of `count` lies in the window. False: it has none. */
bool dt_bulk_area(uint32_t index, uint32_t count, uint64_t *ret_place, uint64_t *ret_bytes);

/* ---- memory that is given out in units ---- */

typedef struct dt_bulk_units {
    uint64_t used; /* bit i: unit i */
    uint32_t count;
} dt_bulk_units_t;

static inline uint32_t dt_bulk_units_of(uint64_t size)
{
    uint64_t units = size / DT_BULK_UNIT_BYTES + (size % DT_BULK_UNIT_BYTES != 0);
    return units > DT_BULK_UNITS_MAX ? DT_BULK_UNITS_MAX + 1 : (uint32_t)units;
}
/* Take a run of units. False: there is none. Cost: O(units). */
bool dt_bulk_units_take(dt_bulk_units_t *units, uint32_t count, uint32_t *ret_first);
void dt_bulk_units_give(dt_bulk_units_t *units, uint32_t first, uint32_t count);

#endif
