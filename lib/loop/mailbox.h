/* The door into a thread for other threads: the journal, executors, file work. Bounded.
 *
 * States: open, closed (posts are refused, what is queued is still drained). Invariants: mails run
 * on the thread that drains, each once, in the order of post; depth <= depth_max; `wake` is called
 * once for each time the queue goes from empty to not empty, so one wake may stand for many posts.
 * A wake-up of a sleeping thread costs about 10 us of CPU and 40 us of latency: good for results
 * of work that took longer, wrong for one network message each. Does not: allocate, wait, or keep
 * order between two mailboxes. */
#ifndef DT_LOOP_MAILBOX_H
#define DT_LOOP_MAILBOX_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"
#include "base/status.h"

typedef struct dt_mail dt_mail_t;
struct dt_mail {
    dt_list_t link;
    void (*run)(dt_mail_t *mail); /* on the draining thread; may free its mail, may post again */
};

typedef struct dt_mailbox {
    pthread_mutex_t lock;
    dt_list_t queue;         /* lock */
    size_t depth;            /* lock; mails in queue */
    size_t depth_max;        /* set at init */
    bool is_closed;          /* lock */
    void (*wake)(void *arg); /* any thread, under the lock: must not block nor take other locks that
                                are held while posting; makes the owner call dt_mailbox_drain() */
    void *wake_arg;
} dt_mailbox_t;

/* Make a mailbox ready.
 * Ownership: `mb` is the caller's storage; keeps `wake_arg` until dt_mailbox_fini().
 * Errors: INVALID (depth_max is 0). */
DT_MUST_USE dt_status_t dt_mailbox_init(dt_mailbox_t *mb, size_t depth_max, void (*wake)(void *arg),
                                        void *wake_arg, dt_error_t *err);

/* Queue `mail` for the owner.
 * Ownership: takes `mail` on success only.
 * Errors: AGAIN (full; wait and post again), STOPPED (closed; will never be taken again).
 * Threads: any, until dt_mailbox_fini(). Blocking: never longer than another post. */
DT_MUST_USE dt_status_t dt_mailbox_post(dt_mailbox_t *mb, dt_mail_t *mail);

/* Run what is queued now; mails posted meanwhile wake again. Threads: the owner's. */
void dt_mailbox_drain(dt_mailbox_t *mb);

/* Refuse new mails from now on. What is queued can still be drained. Threads: any. */
void dt_mailbox_close(dt_mailbox_t *mb);

/* End. The queue must have been drained, and no thread may post any more. Threads: the owner's. */
void dt_mailbox_fini(dt_mailbox_t *mb);

/* Read the number of queued mails. Threads: any. */
size_t dt_mailbox_depth(dt_mailbox_t *mb);

#endif
