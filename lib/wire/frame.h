/* Frames of the operator stream: a header of 32 bytes and varint-coded records behind it.
 *
 *   offset size  field, little-endian
 *   0      4     magic "DTF1"
 *   4      1     major version, 1
 *   5      1     flags: 1 SYNC (acknowledge at once), 2 RESENT
 *   6      2     header size, 32 or more, a multiple of 8; a reader skips what it does not know
 *   8      8     sequence number of the first record; record i has first + i
 *   16     4     epoch of the cluster
 *   20     4     record count, at least 1
 *   24     4     payload size; header and payload are the whole message
 *   28     4     CRC32C of the frame without these four bytes
 *   record: kind u8, body size varint, body (wire/record.h)
 *
 * A frame is self-contained: the base of id deltas is 0 at its start, so it can be sent again,
 * journaled, dropped or fuzzed alone. Writer: the caller's memory, never allocates. Reader: views
 * into the frame; allocates only for records with more ids than an ordinary operator has, within
 * the bounds below. A peer's bytes never reach an assertion. Source: dtorch-protocol(7). Threads:
 * one at a time. Blocking: never. */
#ifndef DT_WIRE_FRAME_H
#define DT_WIRE_FRAME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "wire/varint.h"

#define DT_FRAME_MAGIC        0x31465444u
#define DT_FRAME_HEADER_BYTES 32u
#define DT_FRAME_BYTES_MAX    (256u << 10) /* header included */
#define DT_FRAME_FLUSH_BYTES  (64u << 10)  /* a writer sends at this size */

enum {
    DT_FRAME_SYNC = 1,
    DT_FRAME_RESENT = 2,
    DT_FRAME_FLAGS_ALL = 3,
};

/* dt_error_t.source_code where source is "wire" and the error is in a frame. X(name, number, text)
 */
#define DT_FRAME_ERROR_MAP(X)                                                                      \
    X(DT_FRAME_E_SHORT, 33, "shorter than a header")                                               \
    X(DT_FRAME_E_MAGIC, 34, "not a frame")                                                         \
    X(DT_FRAME_E_VERSION, 35, "another major version")                                             \
    X(DT_FRAME_E_FLAGS, 36, "unknown flag")                                                        \
    X(DT_FRAME_E_SIZE, 37, "sizes do not fit together")                                            \
    X(DT_FRAME_E_CRC, 38, "checksum differs")                                                      \
    X(DT_FRAME_E_EPOCH, 39, "another epoch")                                                       \
    X(DT_FRAME_E_COUNT, 40, "record count does not fit the payload")                               \
    X(DT_FRAME_E_KIND, 41, "unknown or forbidden kind of record")                                  \
    X(DT_FRAME_E_BODY, 42, "body ends early, late, or holds a malformed number")                   \
    X(DT_FRAME_E_LIMIT, 43, "over a limit")                                                        \
    X(DT_FRAME_E_TRAILING, 44, "bytes behind the last record")                                     \
    X(DT_FRAME_E_SIG, 45, "signature, plan or recording that is not defined")                      \
    X(DT_FRAME_E_ARITY, 46, "counts differ from the signature's")                                  \
    X(DT_FRAME_E_ID, 47, "id that names nothing")                                                  \
    X(DT_FRAME_E_DUP, 48, "id that is in use or not rising")                                       \
    X(DT_FRAME_E_RANGE, 49, "outside the tensor")                                                  \
    X(DT_FRAME_E_SEQ, 50, "gap in the sequence")                                                   \
    X(DT_FRAME_E_TEXT, 51, "text is not UTF-8 or holds a NUL")                                     \
    X(DT_FRAME_E_NOMEM, 52, "out of memory")

typedef enum dt_frame_error {
#define X(name, number, text) name = (number),
    DT_FRAME_ERROR_MAP(X)
#undef X
} dt_frame_error_t;

const char *dt_frame_error_name(int error); /* "E_MAGIC"; "E_UNKNOWN" for others */
const char *dt_frame_error_text(int error);
/* Fill `err`: INVALID (NOMEM for E_NOMEM), source "wire", the number; text names the record. */
dt_status_t dt_frame_fail(dt_error_t *err, int error, uint64_t sequence, const char *what);

/* ---- writing ---- */

typedef struct dt_frame_writer {
    uint8_t *bytes;
    size_t cap; /* of bytes, at least DT_FRAME_HEADER_BYTES */
    size_t len; /* so far, header included */
    uint64_t first_sequence;
    uint64_t base; /* of the next id delta: the last output id */
    uint32_t count;
    uint32_t epoch;
} dt_frame_writer_t;

/* Begin a frame in the caller's memory (borrowed until dt_frame_end()). */
void dt_frame_begin(dt_frame_writer_t *writer, uint8_t *bytes, size_t cap, uint64_t first_sequence,
                    uint32_t epoch);
/* Write the header. Returns the size of the whole frame; 0 if it holds no record. */
size_t dt_frame_end(dt_frame_writer_t *writer, unsigned flags);
/* Put another epoch into a finished frame and mark it RESENT; the checksum follows. */
void dt_frame_restamp(uint8_t *bytes, size_t size, uint32_t epoch);

/* ---- reading ---- */

typedef struct dt_frame_header {
    uint64_t first_sequence;
    uint32_t epoch;
    uint32_t count;
    uint32_t payload_bytes;
    uint8_t flags;
} dt_frame_header_t;

typedef struct dt_frame_reader {
    dt_cursor_t cursor;
    dt_frame_header_t header;
    uint32_t index;         /* of the next record */
    uint64_t base;          /* of the next id delta */
    uint64_t *scratch;      /* ids of long records; owned */
    uint32_t scratch_count; /* capacity */
} dt_frame_reader_t;

/* Check the header and the checksum of a whole frame and stand before its first record. `reader`
 * must be zeroed once before its first frame and may then be used for many. Returns 0 or a
 * dt_frame_error_t. Ownership: borrows `bytes` while records are read. */
int dt_frame_open(dt_frame_reader_t *reader, const uint8_t *bytes, size_t size);
void dt_frame_reader_fini(dt_frame_reader_t *reader);

#endif
