/* The event loop of a daemon: timers, descriptors, signals and children, all on one thread.
 *
 * lib/loop is the only folder that calls libuv; what it gives out are opaque handles. Two ways to
 * drive it: dt_loop_run() blocks in the loop itself; a thread that blocks elsewhere (gRPC's
 * completion queue, lib/rpc) uses dt_loop_backend_fd(), dt_loop_timeout_ms() and dt_loop_turn().
 * Invariants: callbacks run on the thread that turns the loop, never from inside another function
 * of this module; after a handle's _free its callback never runs again. Every callback is
 * measured. Does not: lock; only dt_loop_wake() may be called by other threads. */
#ifndef DT_LOOP_LOOP_H
#define DT_LOOP_LOOP_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct dt_loop dt_loop_t;
typedef struct dt_timer dt_timer_t;
typedef struct dt_watch dt_watch_t;
typedef struct dt_sigwatch dt_sigwatch_t;

/* A callback above this is reported through the slow hook. */
#define DT_LOOP_SLOW_NS INT64_C(50000000)

typedef struct dt_loop_stats {
    uint64_t turns;         /* turns of the loop since its start */
    uint64_t callbacks;     /* callbacks since the start, those of lib/rpc included */
    uint64_t slow;          /* callbacks above DT_LOOP_SLOW_NS since the start */
    int64_t longest_ns;     /* longest callback since the maxima were last reset */
    const char *longest;    /* what kind it was: "timer" "fd" "signal" "child" "mailbox" "rpc" */
    int64_t lag_ns;         /* how late the last timer ran after its deadline */
    int64_t lag_longest_ns; /* largest lag since the maxima were last reset */
} dt_loop_stats_t;

/* Read the monotonic clock. Units: ns. Threads: any. */
int64_t dt_loop_now_ns(void);

/* Create a loop.
 * Ownership: gives *ret_loop, free with dt_loop_free().
 * Errors: NOMEM, AGAIN (no file descriptors). Threads: the thread that creates it turns it. */
DT_MUST_USE dt_status_t dt_loop_create(dt_loop_t **ret_loop, dt_error_t *err);

/* Close a loop whose handles were all freed. Runs the last close callbacks.
 * Errors: INTERNAL if handles or children were left: they are closed (children killed and reaped)
 * all the same, so that nothing leaks, but it is a bug of the caller's. NULL is fine. */
dt_status_t dt_loop_free(dt_loop_t *loop);

/* Turn until dt_loop_stop(). Blocking: yes. */
void dt_loop_run(dt_loop_t *loop);
/* Make dt_loop_run() return after this turn. Threads: loop only. */
void dt_loop_stop(dt_loop_t *loop);
/* Make a sleeping loop take one turn. Threads: any. Calls coalesce. */
void dt_loop_wake(dt_loop_t *loop);

/* Inverted mode. The descriptor is readable when something waits; the timeout is -1 for "none", 0
 * for "now", else ms, and has to be asked for before every wait. A turn never blocks. */
int dt_loop_backend_fd(const dt_loop_t *loop);
int dt_loop_timeout_ms(dt_loop_t *loop);
void dt_loop_turn(dt_loop_t *loop);

/* Read the statistics; `reset_maxima` starts longest_ns and lag_longest_ns anew. Threads: loop. */
void dt_loop_stats(dt_loop_t *loop, bool reset_maxima, dt_loop_stats_t *ret_stats);
/* Call `hook` after each callback that took longer than DT_LOOP_SLOW_NS. NULL: nobody. */
void dt_loop_set_slow_hook(dt_loop_t *loop, void (*hook)(void *arg, const char *what, int64_t ns),
                           void *arg);
/* Measure a callback that was not dispatched by this module: begin gives the start for end. */
int64_t dt_loop_measure_begin(dt_loop_t *loop);
void dt_loop_measure_end(dt_loop_t *loop, const char *what, int64_t begin_ns);

/* Create a timer, not armed. `run` is called once for each arming, with the deadline that it was
 * armed for: a periodic timer arms again from that deadline, not from now.
 * Ownership: gives *ret_timer, free with dt_timer_free() at any time, in its own callback too.
 * Errors: NOMEM. Threads: loop only. */
DT_MUST_USE dt_status_t dt_timer_create(dt_loop_t *loop,
                                        void (*run)(void *arg, int64_t deadline_ns), void *arg,
                                        dt_timer_t **ret_timer, dt_error_t *err);
/* Arm for an absolute monotonic deadline; an earlier arming is replaced. A deadline that has
 * passed runs in the next turn. Never runs before the deadline. Resolution: 1 ms. */
void dt_timer_arm(dt_timer_t *timer, int64_t deadline_ns);
void dt_timer_disarm(dt_timer_t *timer);
void dt_timer_free(dt_timer_t *timer); /* NULL is fine */

enum {
    DT_LOOP_READABLE = 1,
    DT_LOOP_WRITABLE = 2,
    DT_LOOP_HANGUP = 4, /* the peer closed its end */
};

/* Watch a descriptor for `events`, level-triggered.
 * Ownership: keeps `fd` until dt_watch_free(), and does not close it; sets O_NONBLOCK on it. One
 * watch a descriptor. `events` of the callback may hold bits not asked for when the descriptor is
 * in error. Errors: INVALID (not pollable), NOMEM. Threads: loop only. */
DT_MUST_USE dt_status_t dt_watch_create(dt_loop_t *loop, int fd, int events,
                                        void (*run)(void *arg, int events), void *arg,
                                        dt_watch_t **ret_watch, dt_error_t *err);
/* Change what is watched; 0 pauses. */
void dt_watch_set(dt_watch_t *watch, int events);
void dt_watch_free(dt_watch_t *watch); /* NULL is fine; then the descriptor may be closed */

/* Take a signal as an event of the loop. Errors: INVALID (SIGKILL, SIGSTOP), NOMEM. */
DT_MUST_USE dt_status_t dt_sigwatch_create(dt_loop_t *loop, int signum,
                                           void (*run)(void *arg, int signum), void *arg,
                                           dt_sigwatch_t **ret_sigwatch, dt_error_t *err);
void dt_sigwatch_free(dt_sigwatch_t *sigwatch); /* NULL is fine */

/* Keep SIGTERM, SIGINT and SIGHUP waiting until dt_signals_release(): nothing that a start makes
 * can be left behind, and threads made meanwhile never take them. Threads: main, before others
 * exist. */
void dt_signals_hold(void);
/* Let the calling thread take them, the one that turns the loop; sigwatches see them then. */
void dt_signals_release(void);

#endif
