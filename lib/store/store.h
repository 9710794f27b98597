/* The controller's memory: a journal of records and snapshots of what they add up to, in a state
 * directory of its own.
 *
 * One thread, the journal thread, owns the files. The state thread appends records to a bounded
 * queue and is woken when something changed: it then asks dt_store_poll() how far the journal is
 * durable. Whatever gathers while a sync runs is written and synced together (group commit).
 *
 * Files: `lock` (held by one process), `journal-<first sequence>.log` (segments),
 * `snapshot-<last sequence>.snap` (two are kept), `*.tmp` (of a crash; removed at open).
 *
 * States: sound -> failing (a write or sync failed: disk full, read-only, I/O error) -> sound.
 * While failing the records stay in the queue, the journal thread tries again with back-off up to
 * DT_STORE_RETRY_MAX_MS, and when the queue is full dt_store_append() says LIMIT. What a failed
 * sync may have left on the disk is never trusted: the records go again, to a new segment.
 * Invariants: sequences have no gaps; a record is durable only after fdatasync of its segment and
 * fsync of the directory since the segment was made.
 * Not in here: what records mean, and any logging. */
#ifndef DT_STORE_STORE_H
#define DT_STORE_STORE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "store/io.h"
#include "store/journal.h"

#define DT_STORE_RETRY_MIN_MS   100
#define DT_STORE_RETRY_MAX_MS   2000
#define DT_STORE_SNAPSHOTS_KEPT 2
#define DT_STORE_SYNC_BUCKETS   10
#define DT_STORE_DIRECTORY_MODE 0700

typedef struct dt_store dt_store_t;

typedef struct dt_store_options {
    size_t struct_size;         /* sizeof(dt_store_options_t) */
    const char *directory;      /* made with mode 0700 if missing; its parent must exist */
    uint64_t segment_bytes;     /* a new segment is begun above it; 0: 64 MiB */
    uint32_t pending_max;       /* records queued and not durable; 0 and more: 65,535 */
    uint64_t pending_bytes_max; /* the same in bytes; 0: 64 MiB */
    uint32_t snapshot_records;  /* a snapshot is asked for after so many records; 0: 100,000 */
    const dt_store_io_t *io;    /* NULL: the system's */
    void (*wake)(void *arg);    /* from the journal thread: dt_store_poll() has news. May be NULL */
    void *wake_arg;
} dt_store_options_t;

/* What opening found. */
typedef struct dt_store_report {
    uint64_t record_count;      /* passed to the replay function, snapshot included */
    uint64_t snapshot_sequence; /* of the snapshot that was read, 0 if none */
    uint64_t sequence;          /* of the newest record, 0 if none */
    uint64_t torn_bytes;        /* cut from the end of the newest segment, 0 if none */
    uint64_t torn_offset;
    char torn_file[64];         /* "" if none */
    uint32_t snapshots_refused; /* newer snapshots that were damaged; an older one was used */
    uint32_t temporary_removed; /* files left behind by a crash */
} dt_store_report_t;

typedef struct dt_store_status {
    uint64_t sequence;         /* of the newest record appended */
    uint64_t durable_sequence; /* all up to here are durable */
    uint64_t pending;          /* records not durable yet */
    uint64_t pending_max;
    uint64_t pending_bytes;
    uint64_t pending_bytes_max;
    uint64_t bytes;     /* written since the last snapshot */
    uint64_t records;   /* durable since the last snapshot */
    uint64_t turns;     /* progress of the journal thread; rises while it lives */
    uint64_t failures;  /* writes, syncs and snapshots that failed since open */
    uint64_t snapshots; /* written since open */
    bool is_failing;
    bool wants_snapshot; /* the state thread should give one */
    int failing_errno;   /* of the last failure, 0 if none */
    int snapshot_errno;  /* why the last snapshot was not written, 0 if it was */
    char text[256];      /* why it is failing, "" if it is not */
    uint64_t sync_count; /* of fdatasync */
    uint64_t sync_sum_ns;
    uint64_t sync_buckets[DT_STORE_SYNC_BUCKETS]; /* up to dt_store_sync_bounds_ns[i], not summed */
} dt_store_status_t;

/* Upper bounds of the buckets; the last is INT64_MAX. */
extern const int64_t dt_store_sync_bounds_ns[DT_STORE_SYNC_BUCKETS];

/* Take the directory's lock, read what it holds through `replay` and start the journal thread.
 * Ownership: keeps options->io and wake_arg until dt_store_close(); gives *ret_store.
 * Errors: EXISTS (another process holds the directory; the text names it), DENIED (permissions or a
 * read-only file system), LIMIT (disk full), NOT_FOUND (the parent does not exist), INVALID
 * (damage; the text names file, offset and what to do), NOMEM, INTERNAL (I/O), or that of `replay`.
 * Nothing is left behind on an error. Blocking: yes, for as long as the replay takes. Cost:
 * O(records). */
DT_MUST_USE dt_status_t dt_store_open(const dt_store_options_t *options,
                                      dt_journal_record_fn *replay, void *arg,
                                      dt_store_report_t *ret_report, dt_store_t **ret_store,
                                      dt_error_t *err);

/* Queue a record and give the sequence that it got: one more than the last.
 * Ownership: borrows payload (copied). Errors: LIMIT (the queue is full: nothing was queued),
 * INVALID (payload too large), NOMEM, STOPPED. Threads: state thread. Blocking: never. */
DT_MUST_USE dt_status_t dt_store_append(dt_store_t *store, uint16_t type, uint64_t epoch,
                                        const void *payload, size_t payload_bytes,
                                        uint64_t *ret_sequence, dt_error_t *err);

/* Begin, fill and hand over a snapshot: what all records appended before begin add up to. It may be
 * filled in many turns; records appended meanwhile are replayed on top of it, so what it holds of
 * them already must bear to come again. A snapshot that cannot be written is dropped and asked for
 * again later; the journal goes on without it.
 * Errors: NOMEM, INVALID (payload too large), LIMIT (one is being written already).
 * Threads: state thread. Blocking: never. */
DT_MUST_USE dt_status_t dt_store_snapshot_begin(dt_store_t *store, dt_error_t *err);
DT_MUST_USE dt_status_t dt_store_snapshot_add(dt_store_t *store, uint16_t type, uint64_t epoch,
                                              const void *payload, size_t payload_bytes,
                                              dt_error_t *err);
void dt_store_snapshot_commit(dt_store_t *store);
void dt_store_snapshot_abort(dt_store_t *store); /* drop what was begun; fine if nothing was */

/* Give the journal's state. Threads: any. Blocking: never. Cost: O(1). */
void dt_store_poll(dt_store_t *store, dt_store_status_t *ret_status);

/* Write what is queued, for at most `grace_ms`, end the journal thread, release the lock.
 * Returns the number of records that could not be made durable. NULL is fine. Blocking: grace_ms
 * and the system call that runs. */
uint64_t dt_store_close(dt_store_t *store, int64_t grace_ms);

#endif
