/* Who this node is: its state directory, the id that lives in it, its name, what it knows of its
 * cluster.
 * Files in the state directory: `lock` (held by one process, holds its pid and host; removed at the
 * end), `node-id` (32 hex digits, made once), `cluster` (the cluster's id and the highest epoch
 * seen). All but the lock are written whole or not at all. */
#ifndef DT_WORKERD_IDENTITY_H
#define DT_WORKERD_IDENTITY_H
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_IDENTITY_ID_BYTES  16
#define DT_IDENTITY_NAME_SIZE 64 /* with the NUL */

typedef struct dt_identity {
    char directory[4096];
    int lock_fd; /* held until dt_identity_close() */
    uint8_t node_id[DT_IDENTITY_ID_BYTES];
    char node_id_hex[2 * DT_IDENTITY_ID_BYTES + 1];
    char node_name[DT_IDENTITY_NAME_SIZE];
    uint8_t cluster_id[DT_IDENTITY_ID_BYTES]; /* all zero: none yet */
    uint64_t epoch_seen;                      /* 0: none yet */
    uint64_t incarnation;                     /* random, not 0 */
    char boot_id[37];
} dt_identity_t;

/* Take the state directory (made with mode 0700 if missing; its parent must exist) and read or make
 * the identity.
 * Ownership: borrows all; fills *ret_identity, end with dt_identity_close(). `node_name` is "" for
 * the host's name made legal.
 * Errors: EXISTS (another process holds the directory; the text names it), DENIED (permissions or a
 * read-only file system), LIMIT (disk full), NOT_FOUND (the parent does not exist), INVALID (a file
 * is damaged, or the name is not legal; the text says what to do). Nothing is left behind on an
 * error. Blocking: reads, and writes with fsync the first time. */
DT_MUST_USE dt_status_t dt_identity_open(const char *directory, const char *node_name,
                                         dt_identity_t *ret_identity, dt_error_t *err);
void dt_identity_close(dt_identity_t *identity); /* removes the lock; zeroed is fine */

/* Write what is known of the cluster, durably. Errors: as dt_identity_open(). Blocking: fsync. */
DT_MUST_USE dt_status_t dt_identity_save_cluster(const char *directory, const uint8_t *cluster_id,
                                                 uint64_t epoch, dt_error_t *err);

/* Make a legal node name of a host name: its first label in lower case, what is not allowed turned
 * into '-'. Gives "" if nothing is left. */
void dt_identity_name_from_host(const char *host, char name[static DT_IDENTITY_NAME_SIZE]);

#endif
