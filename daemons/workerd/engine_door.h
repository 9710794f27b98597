/* The agent's side of one engine's doors: what it is told before it starts, the eventfds that wake
 * it and us, the rings of its metadata thread. Sessions have channels of their own. */
#ifndef DT_WORKERD_ENGINE_DOOR_H
#define DT_WORKERD_ENGINE_DOOR_H
#include "engine_channel.h"
#include "engine_setup.h"
#include "loop/child.h"

#define DT_ENGINE_DOOR_FDS 6

typedef struct dt_engine_door {
    int setup;     /* until it has started, then -1 */
    int meta_fd;   /* likewise */
    int wake;      /* its executor sleeps on it */
    int bell;      /* we watch it */
    int meta_wake; /* its metadata thread sleeps on it */
    int move_wake; /* its communication thread sleeps on it; its peers have it too */
    void *meta;    /* DT_CHANNEL_META_SIZE */
    dt_ring_writer_t queries;
    dt_ring_reader_t answers;
} dt_engine_door_t;

/* Make all of it. Ownership: fills *ret_door, whatever is returned; dt_engine_door_close().
 * Errors: LIMIT (descriptors), NOMEM. */
DT_MUST_USE dt_status_t dt_engine_door_open(const dt_engine_setup_t *setup,
                                            dt_engine_door_t *ret_door, dt_error_t *err);
/* Put a setup into memory that can only be read. Ownership: gives *ret_fd, close() it. Errors:
 * LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_engine_door_setup(const dt_engine_setup_t *setup, int *ret_fd,
                                             dt_error_t *err);
/* What the child gets. */
void dt_engine_door_fds(const dt_engine_door_t *door, dt_child_fd_t fds[DT_ENGINE_DOOR_FDS]);
/* The child has started: close what only it needs. */
void dt_engine_door_started(dt_engine_door_t *door);
void dt_engine_door_close(dt_engine_door_t *door);

#endif
