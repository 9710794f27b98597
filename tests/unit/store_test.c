#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "store/store.h"
#include "store/store_internal.h"

TestSuite(store, .timeout = 60);

/* ---- a state directory, and file functions that fail on demand ---- */

enum call { CALL_OPEN, CALL_WRITE, CALL_DATA_SYNC, CALL_SYNC, CALL_RENAME, CALL_COUNT };

struct fixture {
    char path[128];
    dt_store_io_t io;
    _Atomic int fail_at[CALL_COUNT]; /* the Nth call from now fails once; 0: none */
    _Atomic int fail_errno;
    _Atomic int64_t room; /* bytes that writes may still take; below 0: no bound */
    sem_t woken;
    dt_store_t *store;
    dt_store_report_t report;
    uint64_t replayed;
    uint64_t sum; /* of the values that were replayed, in order */
    dt_error_t err;
};

static bool should_fail(struct fixture *f, enum call call)
{
    int left = atomic_load(&f->fail_at[call]);
    while (left > 0 && !atomic_compare_exchange_weak(&f->fail_at[call], &left, left - 1))
        ;
    if (left != 1)
        return false;
    errno = f->fail_errno;
    return true;
}

static int fake_open_at(void *arg, int dir_fd, const char *name, int flags, mode_t mode)
{
    return should_fail(arg, CALL_OPEN) ? -1 : openat(dir_fd, name, flags, mode);
}

static ssize_t fake_write_at(void *arg, int fd, const void *data, size_t size, off_t at)
{
    struct fixture *f = arg;
    int64_t room = f->room;
    if (should_fail(f, CALL_WRITE))
        return -1;
    if (room == 0) {
        errno = ENOSPC;
        return -1;
    }
    if (room > 0 && (int64_t)size > room)
        size = (size_t)room;
    if (room > 0)
        f->room = room - (int64_t)size;
    return pwrite(fd, data, size, at);
}

static int fake_data_sync(void *arg, int fd)
{
    (void)fd;
    return should_fail(arg, CALL_DATA_SYNC) ? -1 : 0;
}

static int fake_sync(void *arg, int fd)
{
    (void)fd;
    return should_fail(arg, CALL_SYNC) ? -1 : 0;
}

static int fake_reserve(void *arg, int fd, off_t at, off_t size)
{
    struct fixture *f = arg;
    (void)fd, (void)at, (void)size;
    errno = ENOSPC;
    return f->room == 0 ? -1 : 0;
}

static int fake_rename_at(void *arg, int dir_fd, const char *from, const char *to)
{
    return should_fail(arg, CALL_RENAME) ? -1 : renameat(dir_fd, from, dir_fd, to);
}

static void woken(void *arg)
{
    sem_post(&((struct fixture *)arg)->woken);
}

static void setup(struct fixture *f)
{
    const char *base = "/tmp";
    memset(f, 0, sizeof *f);
    (void)snprintf(f->path, sizeof f->path, "%s/dtorch-store-XXXXXX", base);
    cr_assert_not_null(mkdtemp(f->path));
    f->io = *dt_store_io_system();
    f->io.arg = f;
    f->io.open_at = fake_open_at;
    f->io.write_at = fake_write_at;
    f->io.data_sync = fake_data_sync;
    f->io.sync = fake_sync;
    f->io.reserve = fake_reserve;
    f->io.rename_at = fake_rename_at;
    f->room = -1;
    f->fail_errno = EIO;
    sem_init(&f->woken, 0, 0);
}

static dt_status_t replay(const dt_journal_record_t *record, void *arg, dt_error_t *err)
{
    struct fixture *f = arg;
    uint64_t value;
    (void)err;
    cr_assert_eq(record->payload_bytes, sizeof value);
    memcpy(&value, record->payload, sizeof value);
    f->replayed++;
    f->sum = f->sum * 31 + value;
    return DT_OK;
}

static dt_status_t open_with(struct fixture *f, uint64_t segment_bytes, uint32_t pending_max)
{
    f->replayed = f->sum = 0;
    return dt_store_open(&(dt_store_options_t){.struct_size = sizeof(dt_store_options_t),
                                               .directory = f->path,
                                               .segment_bytes = segment_bytes,
                                               .pending_max = pending_max,
                                               .io = &f->io,
                                               .wake = woken,
                                               .wake_arg = f},
                         replay, f, &f->report, &f->store, &f->err);
}

static void open_store(struct fixture *f)
{
    cr_assert_eq(open_with(f, 0, 0), DT_OK, "%s", f->err.text);
}

static void append(struct fixture *f, uint64_t value)
{
    uint64_t sequence;
    cr_assert_eq(dt_store_append(f->store, DT_JOURNAL_TYPE_STATE, 1, &value, sizeof value,
                                 &sequence, &f->err),
                 DT_OK, "%s", f->err.text);
}

/* Wait until `is_so` holds; the suite's timeout ends a wait for ever. */
#define WAIT_FOR(f, status, is_so)                                                                 \
    do {                                                                                           \
        dt_store_poll((f)->store, &(status));                                                      \
        if (is_so)                                                                                 \
            break;                                                                                 \
        sem_wait(&(f)->woken);                                                                     \
    } while (true)

static void wait_durable(struct fixture *f, uint64_t sequence)
{
    dt_store_status_t status;
    WAIT_FOR(f, status, status.durable_sequence >= sequence);
}

/* Append 1..count, each durable before the next. */
static void fill(struct fixture *f, uint64_t count)
{
    for (uint64_t i = 1; i <= count; i++) {
        append(f, i);
        wait_durable(f, i);
    }
}

static uint64_t sum_to(uint64_t count)
{
    uint64_t sum = 0;
    for (uint64_t i = 1; i <= count; i++)
        sum = sum * 31 + i;
    return sum;
}

static void close_store(struct fixture *f)
{
    cr_assert_eq(dt_store_close(f->store, 60000), 0);
    f->store = NULL;
}

static void cleanup(struct fixture *f)
{
    char command[160];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    cr_assert_eq(system(command), 0);
    sem_destroy(&f->woken);
}

static void file_of(struct fixture *f, dt_journal_kind_t kind, uint64_t sequence, char path[256])
{
    char name[DT_STORE_NAME_MAX];
    dt_store_file_name(kind, sequence, name);
    (void)snprintf(path, 256, "%s/%s", f->path, name);
}

static off_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) < 0 ? -1 : st.st_size;
}

static void flip_byte(const char *path, off_t at)
{
    uint8_t byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x20;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void snapshot_of(struct fixture *f, uint64_t count)
{
    dt_store_status_t status;
    uint64_t before;
    dt_store_poll(f->store, &status);
    before = status.snapshots + status.failures;
    cr_assert_eq(dt_store_snapshot_begin(f->store, &f->err), DT_OK);
    for (uint64_t i = 1; i <= count; i++)
        cr_assert_eq(
            dt_store_snapshot_add(f->store, DT_JOURNAL_TYPE_STATE, 1, &i, sizeof i, &f->err),
            DT_OK);
    dt_store_snapshot_commit(f->store);
    WAIT_FOR(f, status, status.snapshots + status.failures > before);
}

/* ---- what holds without faults ---- */

Test(store, gives_back_all_records_in_order_after_a_restart)
{
    struct fixture f;
    setup(&f);
    open_store(&f);
    fill(&f, 100);
    close_store(&f);
    open_store(&f);
    cr_assert_eq(f.replayed, 100);
    cr_assert_eq(f.sum, sum_to(100));
    cr_assert_eq(f.report.sequence, 100);
    cr_assert_eq(f.report.torn_bytes, 0);
    close_store(&f);
    cleanup(&f);
}

Test(store, begins_new_segments_and_reads_across_them)
{
    struct fixture f;
    char second[256];
    setup(&f);
    cr_assert_eq(open_with(&f, 200, 0), DT_OK);
    fill(&f, 20);
    close_store(&f);
    file_of(&f, DT_JOURNAL_SEGMENT, 5, second);
    cr_assert_gt(size_of(second), 0, "28 bytes of header, 36 a record: four fit");
    cr_assert_eq(open_with(&f, 200, 0), DT_OK);
    cr_assert_eq(f.sum, sum_to(20));
    close_store(&f);
    cleanup(&f);
}

Test(store, makes_its_directory_private_and_leaves_no_lock_behind)
{
    struct fixture f;
    struct stat st;
    char lock[256];
    setup(&f);
    cr_assert_eq(chmod(f.path, 0755), 0);
    open_store(&f);
    cr_assert_eq(stat(f.path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700);
    (void)snprintf(lock, sizeof lock, "%s/lock", f.path);
    cr_assert_gt(size_of(lock), 0);
    close_store(&f);
    cr_assert_eq(size_of(lock), -1);
    cleanup(&f);
}

Test(store, refuses_a_directory_that_is_held_and_names_the_holder)
{
    struct fixture f, other;
    char pid[32];
    setup(&f);
    open_store(&f);
    other = f;
    cr_assert_eq(open_with(&other, 0, 0), DT_ERR_EXISTS);
    (void)snprintf(pid, sizeof pid, "process %ld on host", (long)getpid());
    cr_assert_not_null(strstr(other.err.text, pid), "%s", other.err.text);
    append(&f, 1);
    wait_durable(&f, 1); /* the first is not disturbed */
    close_store(&f);
    open_store(&f);
    close_store(&f);
    cleanup(&f);
}

Test(store, a_stale_lock_file_and_temporary_files_of_a_crash_do_not_stop_a_start)
{
    struct fixture f;
    char path[256];
    setup(&f);
    (void)snprintf(path, sizeof path, "%s/lock", f.path);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    (void)snprintf(path, sizeof path, "%s/snapshot-00000000000000000007.snap.tmp", f.path);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    open_store(&f);
    cr_assert_eq(f.report.temporary_removed, 1);
    cr_assert_eq(size_of(path), -1);
    close_store(&f);
    cleanup(&f);
}

/* ---- torn tails and damage ---- */

Test(store, a_tail_torn_at_any_byte_is_cut_reported_and_written_over)
{
    struct fixture f;
    char path[256];
    const int record = DT_JOURNAL_RECORD_BYTES + 8;
    setup(&f);
    file_of(&f, DT_JOURNAL_SEGMENT, 1, path);
    for (int cut = 1; cut < record; cut++) {
        open_store(&f);
        fill(&f, 3);
        close_store(&f);
        cr_assert_eq(truncate(path, DT_JOURNAL_HEADER_BYTES + 3 * record - cut), 0);
        open_store(&f);
        cr_assert_eq(f.sum, sum_to(2), "cut %d", cut);
        cr_assert_eq(f.report.torn_bytes, (uint64_t)(record - cut));
        cr_assert_eq(f.report.torn_offset, (uint64_t)(DT_JOURNAL_HEADER_BYTES + 2 * record));
        append(&f, 3);
        wait_durable(&f, 3);
        close_store(&f);
        open_store(&f);
        cr_assert_eq(f.sum, sum_to(3));
        cr_assert_eq(f.report.torn_bytes, 0);
        close_store(&f);
        cr_assert_eq(unlink(path), 0);
    }
    cleanup(&f);
}

Test(store, damage_in_the_middle_is_refused_with_file_and_offset_and_nothing_is_changed)
{
    struct fixture f;
    char path[256], offset[32];
    setup(&f);
    open_store(&f);
    fill(&f, 5);
    close_store(&f);
    file_of(&f, DT_JOURNAL_SEGMENT, 1, path);
    flip_byte(path, DT_JOURNAL_HEADER_BYTES + 36 + 26);
    off_t size = size_of(path);
    cr_assert_eq(open_with(&f, 0, 0), DT_ERR_INVALID);
    (void)snprintf(offset, sizeof offset, "offset %d", DT_JOURNAL_HEADER_BYTES + 36);
    cr_assert_not_null(strstr(f.err.text, path), "%s", f.err.text);
    cr_assert_not_null(strstr(f.err.text, offset), "%s", f.err.text);
    cr_assert_eq(size_of(path), size);
    flip_byte(path, DT_JOURNAL_HEADER_BYTES + 36 + 26);
    open_store(&f); /* the lock was given back */
    close_store(&f);
    cleanup(&f);
}

Test(store, a_missing_segment_is_refused)
{
    struct fixture f;
    char path[256];
    setup(&f);
    cr_assert_eq(open_with(&f, 200, 0), DT_OK);
    fill(&f, 20);
    close_store(&f);
    file_of(&f, DT_JOURNAL_SEGMENT, 5, path);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(open_with(&f, 200, 0), DT_ERR_INVALID);
    cr_assert_not_null(strstr(f.err.text, "records 5 to 8 are missing"), "%s", f.err.text);
    cleanup(&f);
}

/* ---- snapshots ---- */

Test(store, starts_from_the_newest_snapshot_and_the_records_behind_it)
{
    struct fixture f;
    setup(&f);
    open_store(&f);
    fill(&f, 10);
    snapshot_of(&f, 10);
    append(&f, 11);
    wait_durable(&f, 11);
    close_store(&f);
    open_store(&f);
    cr_assert_eq(f.report.snapshot_sequence, 10);
    cr_assert_eq(f.replayed, 11);
    cr_assert_eq(f.sum, sum_to(11));
    close_store(&f);
    cleanup(&f);
}

Test(store, keeps_two_snapshots_and_the_segments_that_the_older_needs)
{
    struct fixture f;
    char path[256];
    setup(&f);
    open_store(&f);
    for (uint64_t i = 1; i <= 4; i++) {
        append(&f, i);
        wait_durable(&f, i);
        snapshot_of(&f, i);
    }
    for (uint64_t i = 1; i <= 4; i++) {
        file_of(&f, DT_JOURNAL_SNAPSHOT, i, path);
        cr_assert_eq(size_of(path) > 0, i >= 3, "snapshot %d", (int)i);
        file_of(&f, DT_JOURNAL_SEGMENT, i, path);
        cr_assert_eq(size_of(path) > 0, i >= 4, "segment %d", (int)i);
    }
    close_store(&f);
    cleanup(&f);
}

Test(store, falls_back_to_the_older_snapshot_when_the_newer_is_damaged)
{
    struct fixture f;
    char path[256];
    setup(&f);
    open_store(&f);
    fill(&f, 3);
    snapshot_of(&f, 3);
    append(&f, 4);
    wait_durable(&f, 4);
    snapshot_of(&f, 4);
    close_store(&f);
    file_of(&f, DT_JOURNAL_SNAPSHOT, 4, path);
    flip_byte(path, size_of(path) - 3);
    open_store(&f);
    cr_assert_eq(f.report.snapshots_refused, 1);
    cr_assert_eq(f.report.snapshot_sequence, 3);
    cr_assert_eq(f.sum, sum_to(4));
    close_store(&f);
    cleanup(&f);
}

Test(store, asks_for_a_snapshot_when_enough_has_gathered)
{
    struct fixture f;
    dt_store_status_t status;
    setup(&f);
    cr_assert_eq(open_with(&f, 200, 0), DT_OK);
    fill(&f, 10);
    WAIT_FOR(&f, status, status.wants_snapshot);
    snapshot_of(&f, 10);
    dt_store_poll(f.store, &status);
    cr_assert(!status.wants_snapshot);
    cr_assert_eq(status.bytes, 0);
    cr_assert_eq(status.records, 0);
    close_store(&f);
    cleanup(&f);
}

Test(store, a_snapshot_that_cannot_be_written_costs_nothing_but_itself)
{
    for (int call = CALL_OPEN; call < CALL_COUNT; call++) {
        struct fixture f;
        dt_store_status_t status;
        if (call == CALL_DATA_SYNC)
            continue; /* snapshots use the other one */
        setup(&f);
        open_store(&f);
        fill(&f, 3);
        f.fail_at[call] = 1;
        snapshot_of(&f, 3);
        dt_store_poll(f.store, &status);
        cr_assert_eq(status.snapshots, 0);
        cr_assert_eq(status.snapshot_errno, EIO);
        cr_assert(!status.is_failing);
        append(&f, 4);
        wait_durable(&f, 4);
        close_store(&f);
        open_store(&f);
        cr_assert_eq(f.sum, sum_to(4));
        close_store(&f);
        cleanup(&f);
    }
}

/* ---- faults of the disk ---- */

Test(store, the_nth_failing_write_or_sync_loses_nothing_and_is_over_by_itself)
{
    static const enum call calls[] = {CALL_OPEN, CALL_WRITE, CALL_DATA_SYNC, CALL_SYNC,
                                      CALL_RENAME};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        for (int nth = 1; nth <= 6; nth++) {
            struct fixture f;
            dt_store_status_t status;
            setup(&f);
            cr_assert_eq(open_with(&f, 120, 0), DT_OK); /* two records a segment */
            f.fail_at[calls[i]] = nth;
            fill(&f, 12);
            dt_store_poll(f.store, &status);
            cr_assert_eq(status.failures, f.fail_at[calls[i]] == 0 ? 1 : 0);
            cr_assert(!status.is_failing);
            f.fail_at[calls[i]] = 0;
            close_store(&f);
            cr_assert_eq(open_with(&f, 120, 0), DT_OK, "call %d, nth %d: %s", calls[i], nth,
                         f.err.text);
            cr_assert_eq(f.sum, sum_to(12), "call %d, nth %d", calls[i], nth);
            close_store(&f);
            cleanup(&f);
        }
    }
}

Test(store, what_a_failed_sync_left_behind_is_superseded_even_if_it_cannot_be_cut)
{
    struct fixture f;
    char path[256];
    uint8_t copy[512];
    ssize_t size;
    int fd;
    setup(&f);
    open_store(&f);
    fill(&f, 2);
    f.fail_at[CALL_DATA_SYNC] = 1;
    append(&f, 3);
    wait_durable(&f, 3);
    close_store(&f);
    /* Put the bytes of the failed batch back, as a disk may do that had them all along. */
    file_of(&f, DT_JOURNAL_SEGMENT, 3, path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    size = pread(fd, copy, sizeof copy, DT_JOURNAL_HEADER_BYTES);
    close(fd);
    cr_assert_eq(size, 36);
    file_of(&f, DT_JOURNAL_SEGMENT, 1, path);
    fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    cr_assert_eq(write(fd, copy, 30), 30);
    close(fd);
    open_store(&f);
    cr_assert_eq(f.sum, sum_to(3));
    close_store(&f);
    cleanup(&f);
}

Test(store, a_full_disk_fills_the_queue_to_its_bound_and_is_over_when_there_is_room)
{
    struct fixture f;
    dt_store_status_t status;
    uint64_t sequence, value = 1;
    setup(&f);
    cr_assert_eq(open_with(&f, 0, 8), DT_OK);
    f.room = 50; /* one record and a part of the next */
    fill(&f, 1);
    for (value = 2; value <= 9; value++)
        append(&f, value);
    WAIT_FOR(&f, status, status.is_failing);
    cr_assert_eq(status.failing_errno, ENOSPC);
    cr_assert_not_null(strstr(status.text, "No space left"), "%s", status.text);
    cr_assert_eq(dt_store_append(f.store, 1, 1, &value, sizeof value, &sequence, &f.err),
                 DT_ERR_LIMIT);
    cr_assert_not_null(strstr(f.err.text, "8 journal records wait"), "%s", f.err.text);
    f.room = -1;
    wait_durable(&f, 9);
    dt_store_poll(f.store, &status);
    cr_assert(!status.is_failing);
    cr_assert_str_eq(status.text, "");
    cr_assert_eq(status.pending, 0);
    close_store(&f);
    open_store(&f);
    cr_assert_eq(f.sum, sum_to(9));
    cr_assert_eq(f.report.torn_bytes, 0);
    close_store(&f);
    cleanup(&f);
}

Test(store, closing_on_a_full_disk_ends_in_time_and_says_what_is_lost)
{
    struct fixture f;
    setup(&f);
    open_store(&f);
    fill(&f, 2);
    f.room = 0;
    append(&f, 3);
    append(&f, 4);
    cr_assert_eq(dt_store_close(f.store, 50), 2);
    f.room = -1;
    open_store(&f);
    cr_assert_eq(f.sum, sum_to(2));
    close_store(&f);
    cleanup(&f);
}

Test(store, a_start_on_a_full_disk_is_refused_as_LIMIT)
{
    struct fixture f;
    setup(&f);
    f.room = 0;
    cr_assert_eq(open_with(&f, 0, 0), DT_ERR_LIMIT);
    cr_assert_not_null(strstr(f.err.text, "No space left"), "%s", f.err.text);
    f.room = -1;
    open_store(&f);
    fill(&f, 1);
    close_store(&f);
    f.room = 100; /* for the lock file */
    f.io.reserve = fake_reserve;
    f.room = 0;
    cr_assert_eq(open_with(&f, 0, 0), DT_ERR_LIMIT);
    cleanup(&f);
}

Test(store, every_call_that_fails_at_open_leaves_nothing_behind)
{
    for (int call = CALL_OPEN; call < CALL_COUNT; call++) {
        for (int nth = 1; nth <= 2; nth++) {
            struct fixture f;
            dt_status_t status;
            setup(&f);
            f.fail_at[call] = nth;
            status = open_with(&f, 0, 0);
            if (status == DT_OK) {
                close_store(&f);
            } else {
                cr_assert_eq(status, DT_ERR_INTERNAL, "%s", f.err.text);
            }
            f.fail_at[call] = 0;
            open_store(&f);
            cr_assert_eq(f.report.temporary_removed, 0);
            fill(&f, 1);
            close_store(&f);
            cleanup(&f);
        }
    }
}

Test(store, a_payload_above_the_bound_is_refused)
{
    struct fixture f;
    uint64_t sequence;
    void *payload = calloc(1, DT_JOURNAL_PAYLOAD_MAX + 1);
    setup(&f);
    open_store(&f);
    cr_assert_eq(
        dt_store_append(f.store, 1, 1, payload, DT_JOURNAL_PAYLOAD_MAX + 1, &sequence, &f.err),
        DT_ERR_INVALID);
    cr_assert_eq(dt_store_append(f.store, 1, 1, payload, DT_JOURNAL_PAYLOAD_MAX, &sequence, &f.err),
                 DT_OK);
    close_store(&f);
    free(payload);
    cleanup(&f);
}
