/* The journal's reader: any bytes are read or refused, and what is passed on is within the bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "store/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bounds {
    const uint8_t *begin;
    const uint8_t *end;
    uint64_t next;
};

static dt_status_t look(const dt_journal_record_t *record, void *arg, dt_error_t *err)
{
    struct bounds *bounds = arg;
    const uint8_t *payload = record->payload;
    (void)err;
    if (payload < bounds->begin || payload + record->payload_bytes > bounds->end ||
        record->payload_bytes > DT_JOURNAL_PAYLOAD_MAX || record->sequence != bounds->next++)
        abort();
    return DT_OK;
}

/* Turn the input into records with right checksums, so that what lies behind them is reached: each
 * byte pair gives a length and a place. */
static size_t forge(const uint8_t *data, size_t size, uint8_t *out, size_t room)
{
    size_t at = DT_JOURNAL_HEADER_BYTES;
    uint64_t sequence = 1;
    dt_journal_put_header(out, DT_JOURNAL_SEGMENT, sequence);
    for (size_t i = 0; i + 1 < size; i += 2) {
        uint32_t payload_bytes = data[i] & 0x1f;
        uint8_t payload[32];
        if (at + DT_JOURNAL_RECORD_BYTES + payload_bytes > room)
            break;
        memset(payload, data[i], sizeof payload);
        dt_journal_put_record(out + at, &(dt_journal_record_t){.sequence = sequence,
                                                               .epoch = 1,
                                                               .type = 1,
                                                               .place = data[i + 1] & 7,
                                                               .payload_bytes = payload_bytes,
                                                               .payload = payload});
        if (data[i + 1] & 0x80)
            out[at + (data[i] % DT_JOURNAL_RECORD_BYTES)] ^= data[i + 1];
        sequence += (data[i + 1] & 0x40) ? 2 : 1;
        at += DT_JOURNAL_RECORD_BYTES + payload_bytes;
    }
    return at;
}

static void read_all(const uint8_t *data, size_t size)
{
    struct bounds bounds = {.begin = data, .end = data + size, .next = 1};
    dt_journal_scan_t scan;
    if (dt_journal_read(data, size, 1, UINT64_MAX, look, &bounds, &scan, NULL) != DT_OK)
        return;
    if (scan.end_offset > size || scan.next_sequence != bounds.next ||
        (scan.end == DT_JOURNAL_END_CLEAN) != (scan.end_offset == size) ||
        (scan.end == DT_JOURNAL_END_CLEAN) != (scan.what == NULL))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t forged[16384];
    uint64_t sequence;
    (void)!dt_journal_get_header(data, size, DT_JOURNAL_SEGMENT, &sequence, NULL);
    (void)!dt_journal_get_header(data, size, DT_JOURNAL_SNAPSHOT, &sequence, NULL);
    read_all(data, size);
    read_all(forged, forge(data, size, forged, sizeof forged));
    return 0;
}
