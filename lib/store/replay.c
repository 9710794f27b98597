/* Reading what the state directory holds: the newest sound snapshot, then the segments behind it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/strings.h"
#include "store/store_internal.h"

struct bytes {
    uint8_t *data;
    size_t size;
};

static dt_status_t read_file(const dt_store_directory_t *dir, const char *name,
                             struct bytes *ret_bytes, dt_error_t *err)
{
    struct stat st;
    dt_status_t status = DT_OK;
    struct bytes bytes = {.data = NULL};
    int fd = openat(dir->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0) {
        status = dt_store_fail_errno(err, errno, "cannot open", dir->path, name);
        goto out;
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > DT_STORE_FILE_MAX) {
        status = dt_fail(err, DT_ERR_INVALID, "dt", st.st_size, "%s/%s: no file of a sane size",
                         dir->path, name);
        goto out;
    }
    bytes.data = malloc((size_t)st.st_size + 1);
    if (!bytes.data) {
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
        goto out;
    }
    while (bytes.size < (size_t)st.st_size) {
        ssize_t got = read(fd, bytes.data + bytes.size, (size_t)st.st_size - bytes.size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = dt_store_fail_errno(err, errno, "cannot read", dir->path, name);
            goto out;
        }
        if (got == 0)
            break;
        bytes.size += (size_t)got;
    }
    *ret_bytes = bytes;
    bytes.data = NULL;
out:
    free(bytes.data);
    if (fd >= 0)
        close(fd);
    return status;
}

/* ---- snapshots ---- */

struct snapshot_end {
    bool was_seen;
    uint64_t record_count;
};

static dt_status_t snapshot_probe(const dt_journal_record_t *record, void *arg, dt_error_t *err)
{
    struct snapshot_end *end = arg;
    if (end->was_seen)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "records behind the end of the snapshot");
    end->was_seen = record->type == DT_JOURNAL_TYPE_END;
    end->record_count += !end->was_seen;
    return DT_OK;
}

struct pass_on {
    dt_journal_record_fn *fn;
    void *arg;
    uint64_t above; /* records up to here are in the snapshot already */
    uint64_t count;
    uint64_t bytes;
};

static dt_status_t pass(const dt_journal_record_t *record, void *arg, dt_error_t *err)
{
    struct pass_on *to = arg;
    if (record->type == DT_JOURNAL_TYPE_END || record->sequence <= to->above)
        return DT_OK;
    to->count++;
    to->bytes += DT_JOURNAL_RECORD_BYTES + record->payload_bytes;
    return to->fn(record, to->arg, err);
}

/* See whether a snapshot is whole. */
static dt_status_t snapshot_check(const struct bytes *bytes, uint64_t sequence, dt_error_t *err)
{
    struct snapshot_end end = {.was_seen = false};
    dt_journal_scan_t scan;
    uint64_t stated;
    DT_TRY(dt_journal_get_header(bytes->data, bytes->size, DT_JOURNAL_SNAPSHOT, &stated, err));
    if (stated != sequence)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "name and content differ");
    DT_TRY(
        dt_journal_read(bytes->data, bytes->size, 1, UINT64_MAX, snapshot_probe, &end, &scan, err));
    if (scan.end != DT_JOURNAL_END_CLEAN)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s at offset %" PRIu64, scan.what,
                       scan.end_offset);
    if (!end.was_seen)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "its end is missing");
    return DT_OK;
}

/* Read one snapshot and pass its records on. *ret_is_sound false: it is damaged, nothing was. */
static dt_status_t snapshot_read(dt_store_directory_t *dir, uint64_t sequence, struct pass_on *to,
                                 bool *ret_is_sound, dt_error_t *err)
{
    struct bytes bytes = {.data = NULL};
    char name[DT_STORE_NAME_MAX];
    dt_journal_scan_t scan;
    dt_status_t status;
    dt_store_file_name(DT_JOURNAL_SNAPSHOT, sequence, name);
    DT_TRY(read_file(dir, name, &bytes, err));
    *ret_is_sound = snapshot_check(&bytes, sequence, NULL) == DT_OK;
    status = *ret_is_sound
                 ? dt_journal_read(bytes.data, bytes.size, 1, UINT64_MAX, pass, to, &scan, err)
                 : DT_OK;
    free(bytes.data);
    return status;
}

static dt_status_t snapshot_load(dt_store_directory_t *dir, const dt_store_listing_t *listing,
                                 struct pass_on *to, dt_store_report_t *report,
                                 uint64_t *ret_sequence, dt_error_t *err)
{
    *ret_sequence = 0;
    for (size_t i = listing->snapshot_count; i-- > 0;) {
        bool is_sound = false;
        DT_TRY(snapshot_read(dir, listing->snapshots[i].sequence, to, &is_sound, err));
        if (is_sound) {
            *ret_sequence = listing->snapshots[i].sequence;
            return DT_OK;
        }
        report->snapshots_refused++;
    }
    return DT_OK;
}

/* ---- segments ---- */

static dt_status_t fail_damaged(const dt_store_directory_t *dir, const char *name,
                                const dt_journal_scan_t *scan, dt_error_t *err)
{
    return dt_fail(
        err, DT_ERR_INVALID, "dt", (int64_t)scan->end_offset,
        "%s/%s is damaged at offset %" PRIu64 ": %s, but record %" PRIu64
        " was safe once. Nothing was changed. Restore the directory from a copy; or keep "
        "a copy and give up all from that record on: move younger journal and snapshot "
        "files away and `truncate -s %" PRIu64 " %s`",
        dir->path, name, scan->end_offset, scan->what ? scan->what : "records end",
        scan->next_sequence, scan->end_offset, name);
}

static dt_status_t fail_missing(const dt_store_directory_t *dir, uint64_t from, uint64_t to,
                                const dt_store_report_t *report, dt_error_t *err)
{
    return dt_fail(
        err, DT_ERR_INVALID, "dt", (int64_t)from,
        "%s: journal records %" PRIu64 " to %" PRIu64 " are missing%s. Nothing was "
        "changed. Restore the directory from a copy; or keep a copy and move all younger "
        "journal and snapshot files away, which gives up what they hold",
        dir->path, from, to,
        report->snapshots_refused ? " and the snapshot that covers them is damaged" : "");
}

/* Cut what a crash left half-written at the end of the newest segment. */
static dt_status_t cut_tail(dt_store_directory_t *dir, const char *name, uint64_t size,
                            const dt_journal_scan_t *scan, dt_store_report_t *report,
                            dt_error_t *err)
{
    const dt_store_io_t *io = dir->io;
    int fd = io->open_at(io->arg, dir->fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    int number;
    if (fd < 0)
        return dt_store_fail_errno(err, errno, "cannot open", dir->path, name);
    if (io->truncate(io->arg, fd, (off_t)scan->end_offset) < 0 || io->sync(io->arg, fd) < 0) {
        number = errno;
        close(fd);
        return dt_store_fail_errno(err, number, "cannot cut the torn end of", dir->path, name);
    }
    close(fd);
    report->torn_bytes = size - scan->end_offset;
    report->torn_offset = scan->end_offset;
    (void)dt_str_copy(report->torn_file, sizeof report->torn_file, name);
    return DT_OK;
}

/* What is to be read of a segment, and where it ends. */
struct segment {
    uint64_t first;
    uint64_t next_first; /* of the younger one, which takes over there; UINT64_MAX: it is newest */
};

static dt_status_t segment_read(dt_store_directory_t *dir, const struct segment *segment,
                                const struct bytes *bytes, struct pass_on *to,
                                dt_store_report_t *report, dt_journal_scan_t *ret_scan,
                                dt_error_t *err)
{
    char name[DT_STORE_NAME_MAX];
    dt_journal_scan_t scan;
    dt_error_t why = {.text = ""};
    uint64_t stated = segment->first;
    bool is_newest = segment->next_first == UINT64_MAX;
    dt_store_file_name(DT_JOURNAL_SEGMENT, segment->first, name);
    if (dt_journal_get_header(bytes->data, bytes->size, DT_JOURNAL_SEGMENT, &stated, &why) !=
            DT_OK ||
        stated != segment->first) {
        scan = (dt_journal_scan_t){.what = *why.text ? why.text : "name and content differ",
                                   .next_sequence = segment->first};
        return fail_damaged(dir, name, &scan, err);
    }
    DT_TRY(dt_journal_read(bytes->data, bytes->size, segment->first, segment->next_first, pass, to,
                           &scan, err));
    /* A younger segment takes over from where this one's records stopped being trusted. */
    if (!is_newest && scan.next_sequence != segment->next_first)
        return scan.end == DT_JOURNAL_END_CLEAN
                   ? fail_missing(dir, scan.next_sequence, segment->next_first - 1, report, err)
                   : fail_damaged(dir, name, &scan, err);
    if (is_newest && scan.end == DT_JOURNAL_END_DAMAGED)
        return fail_damaged(dir, name, &scan, err);
    if (is_newest && scan.end == DT_JOURNAL_END_TORN)
        DT_TRY(cut_tail(dir, name, bytes->size, &scan, report, err));
    *ret_scan = scan;
    return DT_OK;
}

static dt_status_t segment_load(dt_store_directory_t *dir, const struct segment *segment,
                                struct pass_on *to, dt_store_report_t *report,
                                dt_store_replayed_t *replayed, dt_error_t *err)
{
    struct bytes bytes = {.data = NULL};
    char name[DT_STORE_NAME_MAX];
    dt_journal_scan_t scan = {.what = NULL};
    dt_status_t status;
    dt_store_file_name(DT_JOURNAL_SEGMENT, segment->first, name);
    DT_TRY(read_file(dir, name, &bytes, err));
    status = segment_read(dir, segment, &bytes, to, report, &scan, err);
    free(bytes.data);
    DT_TRY(status);
    replayed->next_sequence = scan.next_sequence;
    replayed->segment_sequence = segment->first;
    replayed->segment_bytes = scan.end_offset;
    return DT_OK;
}

dt_status_t dt_store_replay(dt_store_directory_t *dir, const dt_store_listing_t *listing,
                            dt_journal_record_fn *fn, void *arg, dt_store_report_t *report,
                            dt_store_replayed_t *ret_replayed, dt_error_t *err)
{
    struct pass_on snapshot = {.fn = fn, .arg = arg};
    struct pass_on records = {.fn = fn, .arg = arg};
    dt_store_replayed_t replayed = {.next_sequence = 1};
    DT_TRY(snapshot_load(dir, listing, &snapshot, report, &replayed.snapshot_sequence, err));
    records.above = replayed.snapshot_sequence;
    replayed.next_sequence = replayed.snapshot_sequence + 1;
    for (size_t i = 0; i < listing->segment_count; i++) {
        struct segment segment = {
            .first = listing->segments[i].sequence,
            .next_first =
                i + 1 < listing->segment_count ? listing->segments[i + 1].sequence : UINT64_MAX,
        };
        if (segment.next_first <= replayed.snapshot_sequence + 1)
            continue;
        if (segment.first > replayed.next_sequence)
            return fail_missing(dir, replayed.next_sequence, segment.first - 1, report, err);
        DT_TRY(segment_load(dir, &segment, &records, report, &replayed, err));
    }
    if (replayed.next_sequence <= replayed.snapshot_sequence) {
        /* The snapshot is younger than all segments: go on behind it, in a new one. */
        replayed.next_sequence = replayed.snapshot_sequence + 1;
        replayed.segment_sequence = 0;
    }
    if (!replayed.snapshot_sequence && listing->snapshot_count && !listing->segment_count)
        return fail_missing(dir, 1, listing->snapshots[listing->snapshot_count - 1].sequence,
                            report, err);
    replayed.record_count = records.count;
    replayed.byte_count = records.bytes;
    report->record_count = snapshot.count + records.count;
    report->snapshot_sequence = replayed.snapshot_sequence;
    report->sequence = replayed.next_sequence - 1;
    *ret_replayed = replayed;
    return DT_OK;
}
