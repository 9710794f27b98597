#include "store/journal.h"

#include <stdbool.h>
#include <string.h>

#include "base/crc32c.h"

#define JOURNAL_VERSION 1u

static const char journal_magic[8] = "DTJRNL\r\n"; /* the line end shows a file sent as text */

static void put16(uint8_t *out, uint16_t value)
{
    out[0] = (uint8_t)value;
    out[1] = (uint8_t)(value >> 8);
}

static void put32(uint8_t *out, uint32_t value)
{
    put16(out, (uint16_t)value);
    put16(out + 2, (uint16_t)(value >> 16));
}

static void put64(uint8_t *out, uint64_t value)
{
    put32(out, (uint32_t)value);
    put32(out + 4, (uint32_t)(value >> 32));
}

static uint16_t get16(const uint8_t *in)
{
    return (uint16_t)(in[0] | in[1] << 8);
}

static uint32_t get32(const uint8_t *in)
{
    return get16(in) | (uint32_t)get16(in + 2) << 16;
}

static uint64_t get64(const uint8_t *in)
{
    return get32(in) | (uint64_t)get32(in + 4) << 32;
}

void dt_journal_put_header(uint8_t *out, dt_journal_kind_t kind, uint64_t sequence)
{
    memcpy(out, journal_magic, sizeof journal_magic);
    put32(out + 8, (uint32_t)kind);
    put32(out + 12, JOURNAL_VERSION);
    put64(out + 16, sequence);
    put32(out + 24, dt_crc32c(0, out, 24));
}

dt_status_t dt_journal_get_header(const uint8_t *data, size_t size, dt_journal_kind_t kind,
                                  uint64_t *ret_sequence, dt_error_t *err)
{
    if (size < DT_JOURNAL_HEADER_BYTES)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the file ends within its header");
    if (memcmp(data, journal_magic, sizeof journal_magic) != 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the file is no DTorch journal");
    if (get32(data + 24) != dt_crc32c(0, data, 24))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the header's checksum does not match");
    if (get32(data + 12) != JOURNAL_VERSION)
        return dt_fail(err, DT_ERR_INVALID, "dt", get32(data + 12),
                       "the file has format version %u, this build reads %u", get32(data + 12),
                       JOURNAL_VERSION);
    if (get32(data + 8) != (uint32_t)kind)
        return dt_fail(err, DT_ERR_INVALID, "dt", get32(data + 8), "the file is of another kind");
    *ret_sequence = get64(data + 16);
    return DT_OK;
}

void dt_journal_put_head(uint8_t *out, uint32_t payload_bytes, uint16_t type, uint64_t epoch)
{
    put32(out, payload_bytes);
    put16(out + 4, type);
    put64(out + 8, epoch);
}

void dt_journal_get_head(const uint8_t *in, uint32_t *ret_payload_bytes, uint16_t *ret_type,
                         uint64_t *ret_epoch)
{
    *ret_payload_bytes = get32(in);
    *ret_type = get16(in + 4);
    *ret_epoch = get64(in + 8);
}

void dt_journal_put_record(uint8_t *out, const dt_journal_record_t *record)
{
    dt_journal_put_head(out, record->payload_bytes, record->type, record->epoch);
    put16(out + 6, record->place);
    put64(out + 16, record->sequence);
    if (record->payload_bytes && record->payload != out + DT_JOURNAL_HEAD_BYTES)
        memcpy(out + DT_JOURNAL_HEAD_BYTES, record->payload, record->payload_bytes);
    put32(out + DT_JOURNAL_HEAD_BYTES + record->payload_bytes,
          dt_crc32c(0, out, DT_JOURNAL_HEAD_BYTES + record->payload_bytes));
}

/* Take a record apart if it is whole and its checksum fits; else say what is wrong. */
static const char *record_parse(const uint8_t *in, size_t size, dt_journal_record_t *ret_record)
{
    uint32_t payload_bytes;
    if (size < DT_JOURNAL_RECORD_BYTES)
        return "the file ends within a record";
    payload_bytes = get32(in);
    if (payload_bytes > DT_JOURNAL_PAYLOAD_MAX)
        return "a record's length is out of bounds";
    if (size < DT_JOURNAL_RECORD_BYTES + payload_bytes)
        return "the file ends within a record";
    if (get32(in + DT_JOURNAL_HEAD_BYTES + payload_bytes) !=
        dt_crc32c(0, in, DT_JOURNAL_HEAD_BYTES + payload_bytes))
        return "a record's checksum does not match";
    *ret_record = (dt_journal_record_t){
        .payload_bytes = payload_bytes,
        .type = get16(in + 4),
        .place = get16(in + 6),
        .epoch = get64(in + 8),
        .sequence = get64(in + 16),
        .payload = in + DT_JOURNAL_HEAD_BYTES,
    };
    return NULL;
}

/* Look behind a bad place for a sound record that proves it was durable once. A candidate's
 * sequence must be one that fits into the bytes between, so that few checksums are computed. */
static void judge(const uint8_t *data, size_t size, dt_journal_scan_t *scan)
{
    uint64_t expected = scan->next_sequence;
    size_t at = (size_t)scan->end_offset;
    scan->end = DT_JOURNAL_END_TORN;
    scan->sound_offset = size;
    for (; at + DT_JOURNAL_RECORD_BYTES <= size; at++) {
        dt_journal_record_t record;
        uint64_t sequence = get64(data + at + 16);
        if (sequence - expected > (at - scan->end_offset) / DT_JOURNAL_RECORD_BYTES + 1)
            continue; /* lower ones wrap around and are far away */
        if (record_parse(data + at, size - at, &record) || sequence == expected)
            continue;
        if (sequence - record.place > expected) {
            scan->end = DT_JOURNAL_END_DAMAGED;
            scan->sound_offset = at;
            scan->sound_sequence = sequence;
            return;
        }
    }
}

/* NOLINTNEXTLINE(readability-function-size): eight parameters, all of them needed at each call */
dt_status_t dt_journal_read(const uint8_t *data, size_t size, uint64_t sequence,
                            uint64_t sequence_end, dt_journal_record_fn *fn, void *arg,
                            dt_journal_scan_t *ret_scan, dt_error_t *err)
{
    dt_journal_scan_t scan = {.end_offset = DT_JOURNAL_HEADER_BYTES, .next_sequence = sequence};
    if (size < DT_JOURNAL_HEADER_BYTES)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the file ends within its header");
    while (scan.end_offset < size && scan.next_sequence < sequence_end) {
        dt_journal_record_t record;
        const uint8_t *at = data + scan.end_offset;
        scan.what = record_parse(at, size - (size_t)scan.end_offset, &record);
        if (!scan.what && record.sequence != scan.next_sequence) {
            scan.what = "a record is out of order";
            judge(data, size, &scan);
            if (record.sequence - record.place > scan.next_sequence ||
                record.sequence < scan.next_sequence)
                scan.end = DT_JOURNAL_END_DAMAGED;
            break;
        }
        if (scan.what) {
            judge(data, size, &scan);
            break;
        }
        DT_TRY(fn(&record, arg, err));
        scan.end_offset += DT_JOURNAL_RECORD_BYTES + record.payload_bytes;
        scan.next_sequence++;
        scan.record_count++;
    }
    *ret_scan = scan;
    return DT_OK;
}
