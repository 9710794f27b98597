/* What this machine can do at most, for figures of bulk transfers: another process that moves the
 * same bytes by the plainest means, in the same run.
 *
 * Ownership: a peer is a child process; dt_bulkpeer_stop() ends and reaps it. Errors: they end the
 * test program. Threads: one. Blocking: each transfer, until the other side has all. */
#ifndef DT_TESTS_LIB_BULKPEER_H
#define DT_TESTS_LIB_BULKPEER_H
#include <stddef.h>
#include <sys/types.h>

typedef enum dt_bulkpeer_kind {
    DT_BULKPEER_SOCKET, /* TCP on loopback, calls of 1 MiB */
    DT_BULKPEER_MEMORY, /* a copy into shared memory and one out of it, pieces of 1 MiB in turn */
} dt_bulkpeer_kind_t;

typedef struct dt_bulkpeer {
    dt_bulkpeer_kind_t kind;
    pid_t pid;
    int fd;
    size_t size;
    unsigned char *window; /* (64 pieces) shared */
} dt_bulkpeer_t;

void dt_bulkpeer_start(dt_bulkpeer_t *peer, dt_bulkpeer_kind_t kind, size_t size);
void dt_bulkpeer_send(dt_bulkpeer_t *peer, const void *data); /* until the other side has it */
void dt_bulkpeer_fetch(dt_bulkpeer_t *peer, void *ret_data);
void dt_bulkpeer_stop(dt_bulkpeer_t *peer);

#endif
