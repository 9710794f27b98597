/* A backend in a child process of its own: a crash, a hang or a leak of a driver's library costs
 * the child, never the node agent.
 *
 * The child is this program again (or the one that options name), started with posix_spawn, not
 * fork: the agent has threads, and only an exec gives the child a clean state. It gets one socket
 * as its standard input, answers each request byte with the state of all devices, and ends when the
 * socket closes. It is kept between requests, so that refreshing costs no start.
 *
 * States: stopped -> running (dt_probe_ask) -> stopped (the child died, was too slow or the answer
 * made no sense: the error says which). A child that fails is started again at the next ask, but
 * not before a back-off of 1 s, doubled each time up to 60 s, has passed; until then ask repeats
 * the error. One that says "no such hardware" is looked at again after 60 s.
 *
 * Threads: one at a time; dt_probe_cancel from any. Blocking: ask, at most DT_PROBE_LOAD_MS. */
#ifndef DT_DEVICE_PROBE_H
#define DT_DEVICE_PROBE_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/backend.h"

#define DT_PROBE_BACKOFF_FIRST_NS INT64_C(1000000000)
#define DT_PROBE_BACKOFF_LAST_NS  INT64_C(60000000000)
#define DT_PROBE_LOAD_MS          60000 /* from a child's start to its first answer: libraries load */

/* What a child runs. All strings are borrowed until dt_probe_free(). */
typedef struct dt_probe_options {
    const char *program; /* has dt_device_probe_main(); NULL: this program */
    const char *path;    /* of a shared object, or NULL: the built-in table called `builtin` */
    const char *builtin; /* "nvml", or any other built-in name */
    int32_t timeout_ms;  /* of an answer; 0: DT_BACKEND_CALL_MS, of the first DT_PROBE_LOAD_MS */
    dt_backend_options_t backend;
} dt_probe_options_t;

/* What the child said of its backend. */
typedef struct dt_probe_answer {
    char name[32];
    int32_t abi;
    uint64_t table_size;
    int32_t count;
    dt_device_info_t devices[DT_DEVICE_MAX]; /* not checked yet */
} dt_probe_answer_t;

typedef struct dt_probe dt_probe_t;

/* Ownership: copies `options`, keeps its strings; gives *ret_probe. Errors: NOMEM. Starts nothing.
 */
DT_MUST_USE dt_status_t dt_probe_create(const dt_probe_options_t *options, dt_probe_t **ret_probe,
                                        dt_error_t *err);
/* Ask the child, starting it first if need be. `now_ns` is monotonic and only used for the
 * back-off. Errors: INVALID (refused at load, or the spec), NOT_FOUND (no such hardware), TIMEOUT
 * (too slow; killed), PEER (the child died; the text says how), AGAIN (could not be started),
 * STOPPED (cancelled), and what the backend returned. */
DT_MUST_USE dt_status_t dt_probe_ask(dt_probe_t *probe, int64_t now_ns,
                                     dt_probe_answer_t *ret_answer, dt_error_t *err);
/* Make the present and each later ask end at once with STOPPED. Threads: any. */
void dt_probe_cancel(dt_probe_t *probe);
void dt_probe_free(dt_probe_t *probe); /* NULL is fine; ends the child and waits for it */

#endif
