/* What the parts of lib/store share: the state directory, the replay of what stands in it, and the
 * writer, which the journal thread owns. */
#ifndef DT_STORE_STORE_INTERNAL_H
#define DT_STORE_STORE_INTERNAL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "store/io.h"
#include "store/store.h"

#define DT_STORE_NAME_MAX      64
#define DT_STORE_FILE_MAX      (UINT64_C(1) << 32) /* bytes of a file that is read */
#define DT_STORE_RESERVE_BYTES 65536               /* that must be free at a start */

/* ---- directory.c ---- */

typedef struct dt_store_directory {
    const dt_store_io_t *io;
    char *path;
    int fd;
    int lock_fd;
} dt_store_directory_t;

/* A segment or a snapshot; its name follows from the sequence. */
typedef struct dt_store_file {
    uint64_t sequence;
} dt_store_file_t;

typedef struct dt_store_listing {
    dt_store_file_t *segments; /* by sequence */
    dt_store_file_t *snapshots;
    size_t segment_count;
    size_t snapshot_count;
} dt_store_listing_t;

/* Return the status for an errno of a file function. */
dt_status_t dt_store_status_from_errno(int number);

/* Fill `err` with what was tried, its subject and the errno's text. */
dt_status_t dt_store_fail_errno(dt_error_t *err, int number, const char *what, const char *path,
                                const char *name);

void dt_store_file_name(dt_journal_kind_t kind, uint64_t sequence, char name[DT_STORE_NAME_MAX]);

/* Open the directory, making it if needed, and take its lock. */
DT_MUST_USE dt_status_t dt_store_directory_open(dt_store_directory_t *dir, const dt_store_io_t *io,
                                                const char *path, dt_error_t *err);
void dt_store_directory_close(dt_store_directory_t *dir);

/* Remove what a crash left behind and list the rest. Ownership: gives the arrays in *ret_listing,
 * free with dt_store_listing_fini(). */
DT_MUST_USE dt_status_t dt_store_directory_list(dt_store_directory_t *dir, uint32_t *ret_removed,
                                                dt_store_listing_t *ret_listing, dt_error_t *err);
void dt_store_listing_fini(dt_store_listing_t *listing);

/* ---- replay.c ---- */

typedef struct dt_store_replayed {
    uint64_t next_sequence;     /* of the next record */
    uint64_t snapshot_sequence; /* 0: none */
    uint64_t record_count;      /* behind the snapshot */
    uint64_t byte_count;        /* of them */
    uint64_t segment_sequence;  /* newest segment, 0: none */
    uint64_t segment_bytes;     /* of it, after the cut */
} dt_store_replayed_t;

DT_MUST_USE dt_status_t dt_store_replay(dt_store_directory_t *dir,
                                        const dt_store_listing_t *listing, dt_journal_record_fn *fn,
                                        void *arg, dt_store_report_t *report,
                                        dt_store_replayed_t *ret_replayed, dt_error_t *err);

/* ---- writer.c: journal thread only ---- */

typedef struct dt_store_writer {
    dt_store_directory_t *dir;
    uint64_t segment_max;      /* bytes */
    int fd;                    /* of the segment, -1: none */
    uint64_t segment_sequence; /* of its first record */
    uint64_t offset;           /* all before is durable */
    bool must_rotate;          /* the segment takes no more records */
    int failed_errno;          /* of the last failure */
    const char *failed_what;   /* static string */
    int64_t sync_ns;           /* how long the last sync took */
} dt_store_writer_t;

/* Open the newest segment for more records, or none if there is none. */
DT_MUST_USE dt_status_t dt_store_writer_open(dt_store_writer_t *writer,
                                             const dt_store_replayed_t *replayed, dt_error_t *err);
void dt_store_writer_close(dt_store_writer_t *writer);

/* Write records, the first of which is `sequence`, and sync. On false failed_* say why, nothing of
 * it counts as durable, and the same records must come again. */
bool dt_store_writer_put(dt_store_writer_t *writer, const uint8_t *data, size_t size,
                         uint64_t sequence);

/* Write a whole snapshot, put it in place, remove what is no longer needed. */
bool dt_store_writer_snapshot(dt_store_writer_t *writer, const uint8_t *data, size_t size,
                              uint64_t sequence);

#endif
