/* A recorded session in a file: what a program sent, and what it got for its fetches, so that it
 * can be read (`dtorchctl diag decode`) and played again with a comparison bit by bit.
 *
 *   offset size  field of the file's head, little-endian
 *   0      8     magic "DTORCHRC"
 *   8      2     major version, 1
 *   10     2     minor version
 *   12     4     head size, 32 or more; a reader skips what it does not know
 *   16     8     wall clock at the beginning, milliseconds since 1970
 *   24     4     zero
 *   28     4     CRC32C of the head without these four bytes
 *
 *   offset size  field of an item
 *   0      2     kind; one with 0x8000 that a reader does not know is skipped
 *   2      2     zero
 *   4      4     size of the content
 *   8      8     nanoseconds since the beginning
 *   16     4     CRC32C of these 16 bytes and the content
 *   20           content
 *
 * A file that ends in the middle of an item (its writer was killed, the disk was full) is good up
 * to there. A recording holds the program's data: it is made readable for its owner only. The token
 * of a session is never in it. Threads: one at a time. */
#ifndef DT_WIRE_RECORDING_H
#define DT_WIRE_RECORDING_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/meta.h"

#define DT_RECORDING_HEAD_BYTES    32u
#define DT_RECORDING_ITEM_BYTES    20u
#define DT_RECORDING_CONTENT_MAX   (2u << 20) /* of one item */
#define DT_RECORDING_BUFFER_BYTES  (256u << 10)
#define DT_RECORDING_KIND_OPTIONAL 0x8000u

/* X(name, number, name for people) */
#define DT_RECORDING_KIND_MAP(X)                                                                   \
    X(DT_RECORDING_HELLO, 1, "HELLO")       /* packed SessionHello, session and token left out */  \
    X(DT_RECORDING_FRAME, 2, "FRAME")       /* a frame when it was first sent */                   \
    X(DT_RECORDING_CHUNK, 3, "CHUNK")       /* dt_recording_chunk_t: bytes of an upload */         \
    X(DT_RECORDING_RESULT, 4, "RESULT")     /* dt_recording_result_t: what a fetch gave */         \
    X(DT_RECORDING_BINDINGS, 5, "BINDINGS") /* packed SessionWelcome, token left out */            \
    X(DT_RECORDING_FAULT, 6, "FAULT")       /* packed Fault */                                     \
    X(DT_RECORDING_END, 7, "END")           /* the program closed the session; empty */

typedef enum dt_recording_kind {
#define X(name, number, text) name = (number),
    DT_RECORDING_KIND_MAP(X)
#undef X
} dt_recording_kind_t;

const char *dt_recording_kind_name(unsigned kind); /* "FRAME"; "unknown" */

/* Content of CHUNK: transfer u64, offset u64, the bytes. */
typedef struct dt_recording_chunk {
    uint64_t transfer;
    uint64_t offset;
    const uint8_t *bytes; /* (size) */
    size_t size;
} dt_recording_chunk_t;

/* Content of RESULT: future u64, size u64, crc u32, status i32, then meta as records have it, or
 * the error's text. Written when the value is whole. */
typedef struct dt_recording_result {
    uint64_t future;
    uint64_t size_bytes;
    uint32_t crc32c;  /* of the whole value, row-major */
    int32_t status;   /* dt_status_t: DT_OK, or that of the error */
    dt_meta_t meta;   /* with DT_OK */
    const char *text; /* else: "IndexError: ..."; not terminated */
    size_t text_bytes;
} dt_recording_result_t;

#define DT_RECORDING_TEXT_MAX 4096u

/* ---- writing ---- */

typedef struct dt_recording dt_recording_t;

/* Make the file `path` (mode 0600; an old one is overwritten) and write its head.
 * Ownership: gives *ret_recording, dt_recording_close(). Errors: those of a file, EXISTS (another
 * session writes it). Blocking: disk.
 */
DT_MUST_USE dt_status_t dt_recording_create(const char *path, int64_t wall_ms,
                                            dt_recording_t **ret_recording, dt_error_t *err);
/* Append an item. After a failure nothing more is written, and each call gives the first error
 * again: a program goes on without its recording. Errors: those of a file, LIMIT (content above
 * DT_RECORDING_CONTENT_MAX). Blocking: disk, when the buffer of DT_RECORDING_BUFFER_BYTES is full.
 */
DT_MUST_USE dt_status_t dt_recording_add(dt_recording_t *recording, dt_recording_kind_t kind,
                                         int64_t at_ns, const void *content, size_t size,
                                         dt_error_t *err);
DT_MUST_USE dt_status_t dt_recording_add_chunk(dt_recording_t *recording, int64_t at_ns,
                                               const dt_recording_chunk_t *chunk, dt_error_t *err);
DT_MUST_USE dt_status_t dt_recording_add_result(dt_recording_t *recording, int64_t at_ns,
                                                const dt_recording_result_t *result,
                                                dt_error_t *err);
/* Write what is buffered. Errors: as above. */
DT_MUST_USE dt_status_t dt_recording_flush(dt_recording_t *recording, dt_error_t *err);
/* Flush, close and free; NULL is fine. Errors: the first one of the file's life. */
DT_MUST_USE dt_status_t dt_recording_close(dt_recording_t *recording, dt_error_t *err);

/* ---- reading, from memory ---- */

typedef struct dt_recording_item {
    unsigned kind; /* dt_recording_kind_t, or one with DT_RECORDING_KIND_OPTIONAL */
    int64_t at_ns;
    const uint8_t *content; /* (size) in the file's bytes */
    size_t size;
    uint64_t offset; /* of the item in the file */
    uint64_t number; /* of the item, from 1 */
} dt_recording_item_t;

typedef struct dt_recording_reader {
    const uint8_t *bytes;
    size_t size;
    size_t at;       /* next item */
    uint64_t number; /* of items read */
    int64_t wall_ms; /* when it began */
} dt_recording_reader_t;

/* Check the head. Ownership: borrows `bytes` while items are read. Returns 0 or a dt_frame_error_t
 * (SHORT, MAGIC, VERSION, SIZE, CRC). */
int dt_recording_open(dt_recording_reader_t *reader, const uint8_t *bytes, size_t size);
/* Give the next item; *ret_is_end behind the last one. Returns 0 or a dt_frame_error_t: SHORT (the
 * file ends within the item), SIZE, KIND, CRC; reader->at is the damaged item's offset. */
int dt_recording_next(dt_recording_reader_t *reader, dt_recording_item_t *ret_item,
                      bool *ret_is_end);
/* Read the content of a CHUNK or RESULT. Returns 0 or a dt_frame_error_t. */
int dt_recording_get_chunk(const dt_recording_item_t *item, dt_recording_chunk_t *ret_chunk);
int dt_recording_get_result(const dt_recording_item_t *item, dt_recording_result_t *ret_result);

#endif
