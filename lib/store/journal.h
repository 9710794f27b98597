/* The bytes of journal segments and snapshots, and a bounded reader for them. No I/O in here.
 *
 * A file is a header and then records without gaps; all numbers are little-endian.
 *   header: magic[8] kind:u32 version:u32 sequence:u64 crc32c:u32
 *     segment:  `sequence` is that of its first record.
 *     snapshot: `sequence` is that of the newest record that it stands for.
 *   record: length:u32 type:u16 place:u16 epoch:u64 sequence:u64 payload[length] crc32c:u32
 * `place` is the record's place in the batch that was written and synced at once: 0, 1, 2, … So
 * sequence - place is the first record of its batch, and all before that was durable when the batch
 * was written. That is how a torn tail, which nobody was told about, is told from damage: if a
 * sound record follows whose batch began later than the bad one, then the bad one was durable once.
 * The last record of a snapshot has type DT_JOURNAL_TYPE_END; without it the snapshot is
 * incomplete.
 */
#ifndef DT_STORE_JOURNAL_H
#define DT_STORE_JOURNAL_H
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_JOURNAL_HEADER_BYTES 28u
#define DT_JOURNAL_RECORD_BYTES 28u        /* of a record, without its payload */
#define DT_JOURNAL_HEAD_BYTES   24u        /* of a record, before its payload */
#define DT_JOURNAL_PAYLOAD_MAX  (1u << 20) /* bytes */
#define DT_JOURNAL_BATCH_MAX    UINT16_MAX /* records written and synced at once */
#define DT_JOURNAL_TYPE_STATE   1u         /* payload: dtorch.v1.StateRecord */
#define DT_JOURNAL_TYPE_END     0xffffu    /* end of a snapshot; payload is empty */

typedef enum dt_journal_kind {
    DT_JOURNAL_SEGMENT = 1,
    DT_JOURNAL_SNAPSHOT = 2,
} dt_journal_kind_t;

typedef struct dt_journal_record {
    uint64_t sequence;
    uint64_t epoch;
    uint16_t type;
    uint16_t place;         /* in its batch */
    uint32_t payload_bytes; /* at most DT_JOURNAL_PAYLOAD_MAX */
    const void *payload;    /* borrowed from the scanned bytes */
} dt_journal_record_t;

/* Called for each sound record, in order. A status other than DT_OK ends the scan with it. */
typedef dt_status_t dt_journal_record_fn(const dt_journal_record_t *record, void *arg,
                                         dt_error_t *err);

typedef enum dt_journal_end {
    DT_JOURNAL_END_CLEAN,   /* every byte was read */
    DT_JOURNAL_END_TORN,    /* the tail is no sound record and was never reported durable */
    DT_JOURNAL_END_DAMAGED, /* what stands at `end_offset` was durable once */
} dt_journal_end_t;

typedef struct dt_journal_scan {
    dt_journal_end_t end;
    uint64_t end_offset;     /* just behind the last sound record */
    uint64_t next_sequence;  /* one above the last sound record */
    uint64_t record_count;   /* sound records that were passed on */
    uint64_t sound_offset;   /* DAMAGED: where sound records go on, else the size */
    uint64_t sound_sequence; /* DAMAGED: number of the first of them */
    const char *what;        /* TORN, DAMAGED: what is wrong at end_offset; static string */
} dt_journal_scan_t;

/* Write a file header. Ownership: fills out[DT_JOURNAL_HEADER_BYTES]. */
void dt_journal_put_header(uint8_t *out, dt_journal_kind_t kind, uint64_t sequence);

/* Check a file header and give its sequence.
 * Errors: INVALID (short, no such file kind, other version, checksum). */
DT_MUST_USE dt_status_t dt_journal_get_header(const uint8_t *data, size_t size,
                                              dt_journal_kind_t kind, uint64_t *ret_sequence,
                                              dt_error_t *err);

/* Write a record with its checksum; `out` has room for DT_JOURNAL_RECORD_BYTES + payload_bytes.
 * `record->payload` may already stand in its place in `out`. */
void dt_journal_put_record(uint8_t *out, const dt_journal_record_t *record);

/* Write or read the part of a record that is known before its batch is; the rest is left alone. */
void dt_journal_put_head(uint8_t *out, uint32_t payload_bytes, uint16_t type, uint64_t epoch);
void dt_journal_get_head(const uint8_t *in, uint32_t *ret_payload_bytes, uint16_t *ret_type,
                         uint64_t *ret_epoch);

/* Read the records of a file whose header was accepted; `data` begins with the header. Records from
 * `sequence_end` on are not passed on (a later file holds them); UINT64_MAX for all.
 * Errors: that of `fn`; damage is no error but a result. Blocking: never. */
DT_MUST_USE dt_status_t dt_journal_read(const uint8_t *data, size_t size, uint64_t sequence,
                                        uint64_t sequence_end, dt_journal_record_fn *fn, void *arg,
                                        dt_journal_scan_t *ret_scan, dt_error_t *err);

#endif
