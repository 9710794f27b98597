/* Work that may block (a file's fsync, a name look-up, a TLS handshake), away from the state
 * thread. Each task has a thread for as long as it runs; its result comes back as a callback on the
 * state thread. There are few tasks, and each is rare. Limits: DT_TASKS_MAX at once. */
#ifndef DT_WORKERD_TASKS_H
#define DT_WORKERD_TASKS_H
#include <stdbool.h>

#include "base/status.h"
#include "rpc/rpc.h"

#define DT_TASKS_MAX 8

typedef struct dt_tasks dt_tasks_t;

/* Ownership: keeps `rpc`; gives *ret_tasks, free with dt_tasks_free(). Errors: NOMEM. */
DT_MUST_USE dt_status_t dt_tasks_create(dt_rpc_t *rpc, dt_tasks_t **ret_tasks, dt_error_t *err);

/* Run `work(arg)` on a thread of its own, then `done(arg)` on the state thread.
 * Ownership: `arg` belongs to the task from DT_OK until `done`.
 * Errors: LIMIT (DT_TASKS_MAX run), AGAIN (no thread), NOMEM; nothing is called then.
 * Threads: state thread. Blocking: never. */
DT_MUST_USE dt_status_t dt_tasks_run(dt_tasks_t *tasks, void (*work)(void *arg),
                                     void (*done)(void *arg), void *arg, dt_error_t *err);

/* Wait for what still runs, at most `grace_ms`, call the `done` of what ended, and free. What does
 * not end in time is left to the end of the process, and its `done` never runs: false then.
 * NULL is fine. */
bool dt_tasks_free(dt_tasks_t *tasks, int64_t grace_ms);

#endif
