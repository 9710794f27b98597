#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "store/journal.h"

TestSuite(journal, .timeout = 60);

#define ROOM 4096

struct seen {
    uint64_t count;
    uint64_t last;
    dt_status_t give;
};

static dt_status_t note(const dt_journal_record_t *record, void *arg, dt_error_t *err)
{
    struct seen *seen = arg;
    (void)err;
    seen->count++;
    seen->last = record->sequence;
    return seen->give;
}

/* Write a segment from `first` on, `places[i]` being each record's place in its batch. */
static size_t make_segment(uint8_t *out, uint64_t first, const uint16_t *places, size_t count)
{
    size_t at = DT_JOURNAL_HEADER_BYTES;
    dt_journal_put_header(out, DT_JOURNAL_SEGMENT, first);
    for (size_t i = 0; i < count; i++) {
        char payload[16] = "record number 0";
        payload[14] = (char)('0' + i);
        dt_journal_put_record(out + at, &(dt_journal_record_t){.sequence = first + i,
                                                               .epoch = 7,
                                                               .type = DT_JOURNAL_TYPE_STATE,
                                                               .place = places[i],
                                                               .payload_bytes = (uint32_t)(3 + i),
                                                               .payload = payload});
        at += DT_JOURNAL_RECORD_BYTES + 3 + i;
    }
    return at;
}

static dt_journal_scan_t scan_of(const uint8_t *data, size_t size, uint64_t first,
                                 struct seen *seen)
{
    dt_journal_scan_t scan;
    *seen = (struct seen){.give = DT_OK};
    cr_assert_eq(dt_journal_read(data, size, first, UINT64_MAX, note, seen, &scan, NULL), DT_OK);
    return scan;
}

static const uint16_t single[] = {0, 0, 0, 0};  /* each record was synced by itself */
static const uint16_t batched[] = {0, 0, 1, 2}; /* the last three were synced at once */

Test(journal, reads_back_what_was_written)
{
    uint8_t data[ROOM];
    struct seen seen;
    size_t size = make_segment(data, 41, single, 4);
    uint64_t first;
    cr_assert_eq(dt_journal_get_header(data, size, DT_JOURNAL_SEGMENT, &first, NULL), DT_OK);
    cr_assert_eq(first, 41);
    dt_journal_scan_t scan = scan_of(data, size, first, &seen);
    cr_assert_eq(scan.end, DT_JOURNAL_END_CLEAN);
    cr_assert_eq(scan.end_offset, size);
    cr_assert_eq(scan.next_sequence, 45);
    cr_assert_eq(seen.count, 4);
}

Test(journal, refuses_headers_of_another_kind_version_or_checksum)
{
    uint8_t data[DT_JOURNAL_HEADER_BYTES];
    uint64_t first;
    dt_journal_put_header(data, DT_JOURNAL_SNAPSHOT, 9);
    cr_assert_eq(dt_journal_get_header(data, sizeof data, DT_JOURNAL_SEGMENT, &first, NULL),
                 DT_ERR_INVALID);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] ^= 1;
        cr_assert_eq(dt_journal_get_header(data, sizeof data, DT_JOURNAL_SNAPSHOT, &first, NULL),
                     DT_ERR_INVALID, "byte %zu", i);
        data[i] ^= 1;
    }
    cr_assert_eq(dt_journal_get_header(data, sizeof data - 1, DT_JOURNAL_SNAPSHOT, &first, NULL),
                 DT_ERR_INVALID);
}

Test(journal, a_file_cut_at_any_byte_is_torn_and_keeps_all_whole_records)
{
    uint8_t data[ROOM];
    size_t size = make_segment(data, 1, single, 4);
    size_t ends[5] = {DT_JOURNAL_HEADER_BYTES};
    for (size_t i = 0; i < 4; i++)
        ends[i + 1] = ends[i] + DT_JOURNAL_RECORD_BYTES + 3 + i;
    for (size_t cut = DT_JOURNAL_HEADER_BYTES; cut <= size; cut++) {
        struct seen seen;
        uint8_t *copy = malloc(cut); /* of the exact size, so that ASan sees a byte too many */
        size_t whole = 0;
        memcpy(copy, data, cut);
        while (whole < 4 && ends[whole + 1] <= cut)
            whole++;
        dt_journal_scan_t scan = scan_of(copy, cut, 1, &seen);
        cr_assert_eq(scan.end, ends[whole] == cut ? DT_JOURNAL_END_CLEAN : DT_JOURNAL_END_TORN);
        cr_assert_eq(scan.end_offset, ends[whole], "cut at %zu", cut);
        cr_assert_eq(seen.count, whole);
        free(copy);
    }
}

Test(journal, a_flipped_bit_before_durable_records_is_damage)
{
    uint8_t data[ROOM];
    struct seen seen;
    size_t size = make_segment(data, 1, single, 4);
    size_t last = size - DT_JOURNAL_RECORD_BYTES - 6;
    for (size_t i = DT_JOURNAL_HEADER_BYTES; i < last; i++) {
        data[i] ^= 0x10;
        dt_journal_scan_t scan = scan_of(data, size, 1, &seen);
        cr_assert_eq(scan.end, DT_JOURNAL_END_DAMAGED, "byte %zu", i);
        cr_assert_leq(scan.end_offset, i);
        cr_assert_gt(scan.sound_offset, scan.end_offset);
        data[i] ^= 0x10;
    }
}

Test(journal, a_flipped_bit_in_the_last_record_is_a_torn_tail)
{
    uint8_t data[ROOM];
    struct seen seen;
    size_t size = make_segment(data, 1, single, 4);
    size_t last = size - DT_JOURNAL_RECORD_BYTES - 6;
    for (size_t i = last; i < size; i++) {
        data[i] ^= 0x10;
        dt_journal_scan_t scan = scan_of(data, size, 1, &seen);
        cr_assert_eq(scan.end, DT_JOURNAL_END_TORN, "byte %zu", i);
        cr_assert_eq(scan.end_offset, last);
        cr_assert_eq(seen.count, 3);
        data[i] ^= 0x10;
    }
}

Test(journal, a_hole_within_the_last_batch_is_torn_because_nobody_was_told)
{
    uint8_t data[ROOM];
    struct seen seen;
    size_t size = make_segment(data, 1, batched, 4);
    size_t second = DT_JOURNAL_HEADER_BYTES + DT_JOURNAL_RECORD_BYTES + 3;
    memset(data + second, 0, DT_JOURNAL_RECORD_BYTES + 4);
    dt_journal_scan_t scan = scan_of(data, size, 1, &seen);
    cr_assert_eq(scan.end, DT_JOURNAL_END_TORN);
    cr_assert_eq(scan.end_offset, second);
    cr_assert_eq(seen.count, 1);
}

Test(journal, records_out_of_order_are_damage)
{
    uint8_t data[ROOM];
    struct seen seen;
    size_t size = make_segment(data, 5, single, 2);
    cr_assert_eq(scan_of(data, size, 4, &seen).end, DT_JOURNAL_END_DAMAGED, "one is missing");
    cr_assert_eq(scan_of(data, size, 6, &seen).end, DT_JOURNAL_END_DAMAGED, "one came again");
    cr_assert_eq(seen.count, 0);
}

Test(journal, zeros_behind_the_records_are_a_torn_tail)
{
    uint8_t data[ROOM] = {0};
    struct seen seen;
    size_t size = make_segment(data, 1, single, 4);
    dt_journal_scan_t scan = scan_of(data, sizeof data, 1, &seen);
    cr_assert_eq(scan.end, DT_JOURNAL_END_TORN);
    cr_assert_eq(scan.end_offset, size);
}

Test(journal, stops_where_a_younger_file_takes_over)
{
    uint8_t data[ROOM];
    struct seen seen = {.give = DT_OK};
    dt_journal_scan_t scan;
    size_t size = make_segment(data, 1, single, 4);
    cr_assert_eq(dt_journal_read(data, size, 1, 3, note, &seen, &scan, NULL), DT_OK);
    cr_assert_eq(seen.last, 2);
    cr_assert_eq(scan.next_sequence, 3);
    cr_assert_eq(scan.end, DT_JOURNAL_END_CLEAN);
}

Test(journal, a_reader_can_end_the_scan_with_its_own_status)
{
    uint8_t data[ROOM];
    struct seen seen = {.give = DT_ERR_NOMEM};
    dt_journal_scan_t scan;
    size_t size = make_segment(data, 1, single, 4);
    cr_assert_eq(dt_journal_read(data, size, 1, UINT64_MAX, note, &seen, &scan, NULL),
                 DT_ERR_NOMEM);
    cr_assert_eq(seen.count, 1);
}

Test(journal, a_length_out_of_bounds_is_never_followed)
{
    uint8_t data[ROOM];
    struct seen seen;
    size_t size = make_segment(data, 1, single, 1);
    memset(data + DT_JOURNAL_HEADER_BYTES, 0xff, 4);
    dt_journal_scan_t scan = scan_of(data, size, 1, &seen);
    cr_assert_eq(scan.end, DT_JOURNAL_END_TORN);
    cr_assert_eq(seen.count, 0);
}
