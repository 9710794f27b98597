/* The supervisor of this node's engines: starts warm spares, watches them, says how each ended,
 * puts another in its place.
 *
 * States of an engine: COMING_UP -> READY -> LOST (its end was noticed) -> reaped; or ENDING (we
 * asked it to) -> reaped. A death is noticed by the crash handler's message, else by the end of the
 * control socket, else by the pidfd, whichever is first; it is reported at once, and only once.
 * A replacement starts at once after a first death, then with a back-off that doubles to
 * DT_ENGINES_BACKOFF_MAX_NS, until an engine has lived for DT_ENGINES_STEADY_NS.
 * Invariants: an engine number is never used again; an engine's end touches no other one.
 * Limits: DT_ENGINES_MAX engines. Nothing here blocks or depends on the controller. */
#ifndef DT_WORKERD_ENGINES_H
#define DT_WORKERD_ENGINES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "dtorch/v1/worker.pb-c.h"
#include "engine.h"
#include "engine_cgroup.h"
#include "engine_door.h"
#include "loop/loop.h"
#include "shm/engine_page.h"

#define DT_ENGINES_MAX        256
#define DT_ENGINES_COME_UP_NS INT64_C(60000000000)
#define DT_ENGINES_END_NS     INT64_C(2000000000)
/* After the socket's end: the kernel gives the status once it has taken the memory back, which has
 * taken 150 ms for 1 GiB, and more on a busy machine. */
#define DT_ENGINES_STATUS_WAIT_NS INT64_C(2000000000)
#define DT_ENGINES_CHECK_NS       INT64_C(250000000)
#define DT_ENGINES_BACKOFF_MIN_NS INT64_C(100000000)
#define DT_ENGINES_BACKOFF_MAX_NS INT64_C(10000000000)
#define DT_ENGINES_STEADY_NS      INT64_C(10000000000)

typedef struct dt_engines dt_engines_t;

typedef struct dt_engines_options {
    dt_loop_t *loop;
    int32_t spare_count;        /* warm engines to keep, 0..DT_ENGINES_MAX / 2 */
    int64_t heap_bytes;         /* bound of each one's private memory; 0: none */
    int64_t operation_ns;       /* an operator that runs longer is hung; 0: no bound */
    dt_engine_cgroup_t *cgroup; /* kept until freed */
    /* How an engine came or went. The event and its texts are borrowed for the call; `sequence` is
     * not set. */
    void (*event)(void *arg, const Dtorch__V1__EngineEvent *event);
    void (*changed)(void *arg); /* what dt_engines_list() gives is another list now */
    /* Tell what an engine for `device` has to load; -1: for a spare, the choice is free; its device
     * may be DT_ENGINE_DEVICE_LATER, it is asked for again at dt_engines_refresh() then. False: not
     * known yet, dt_engines_refresh() says when. NULL: engines without a device. */
    bool (*setup)(void *arg, int32_t device, dt_engine_setup_t *ret_setup);
    /* For engines that were taken, each may be NULL: it is warm; it is gone (the event is
     * borrowed); it rang; it says that an instance was refused. */
    void (*ready)(void *arg, uint32_t engine);
    void (*lost)(void *arg, uint32_t engine, const Dtorch__V1__EngineEvent *event);
    void (*bell)(void *arg, uint32_t engine);
    void (*refused)(void *arg, uint32_t engine, uint32_t instance, const char *text);
    /* The window of an instance's program cannot be used. */
    void (*no_window)(void *arg, uint32_t engine, uint32_t instance, const char *text);
    void *arg;
} dt_engines_options_t;

/* Counts since the start, for metrics. */
typedef struct dt_engines_stats {
    uint32_t coming_up;
    uint32_t ready;
    uint32_t lost; /* dead, not reaped yet; ending ones too */
    uint64_t started;
    uint64_t exited;
    uint64_t crashed;
    uint64_t hung;
    uint64_t failed;
    uint64_t progress; /* operators finished by all engines that ever were */
    uint64_t answers[DT_ENGINE_ANSWERER_COUNT];  /* of their metadata threads, likewise */
    uint64_t moved[DT_ENGINE_MOVED_COUNT];       /* bytes between devices, likewise */
    uint64_t move_ns[DT_ENGINE_MOVE_TIME_COUNT]; /* likewise */
    uint32_t failures;                           /* deaths in a row; what the back-off comes from */
    int64_t retry_at_ns;                         /* when the next one is started; 0: none is due */
} dt_engines_stats_t;

/* Ownership: keeps `options` pointers until freed; gives *ret_engines, free with dt_engines_free().
 * Errors: NOMEM. Threads: loop only, as all here. Nothing is started yet. */
DT_MUST_USE dt_status_t dt_engines_create(const dt_engines_options_t *options,
                                          dt_engines_t **ret_engines, dt_error_t *err);

/* Start the spares, and keep their number from now on. */
void dt_engines_start(dt_engines_t *engines);
void dt_engines_set_spares(dt_engines_t *engines, int32_t spare_count);

/* What options.setup says is another thing now. */
void dt_engines_refresh(dt_engines_t *engines);

/* Take an engine for `device`: a warm spare, else a new one, which will call options.ready. It is
 * no spare any more; another is started in its place. Ownership: until it is lost or given back
 * with dt_engines_end(). Errors: AGAIN (devices not known yet), LIMIT, NOMEM, what starting can
 * say. */
DT_MUST_USE dt_status_t dt_engines_take(dt_engines_t *engines, int32_t device, uint32_t *ret_engine,
                                        dt_error_t *err);
/* Say whether a session is open in a taken engine: it is shown as BUSY then, and a drain waits for
 * it. One that was just taken is used. */
void dt_engines_use(dt_engines_t *engines, uint32_t id, bool is_used);
bool dt_engines_is_ready(const dt_engines_t *engines, uint32_t engine);
/* Its doors; NULL: there is no such engine. Borrowed until it is lost or ended. */
dt_engine_door_t *dt_engines_door(dt_engines_t *engines, uint32_t id);
/* Say something with descriptors. Errors: PEER (gone), AGAIN (it does not read). */
DT_MUST_USE dt_status_t dt_engines_say(dt_engines_t *engines, uint32_t engine, uint32_t kind,
                                       uint32_t value, const int *fds, int fd_count);
/* The same for a message with more in it. */
DT_MUST_USE dt_status_t dt_engines_send(dt_engines_t *engines, uint32_t engine,
                                        const dt_engine_message_t *message, const int *fds,
                                        int fd_count);
/* Kill an engine that must not go on; options.lost runs when that is seen. */
void dt_engines_kill(dt_engines_t *engines, uint32_t id);
/* End a taken engine; options.lost does not run. */
void dt_engines_end(dt_engines_t *engines, uint32_t id);

/* Whether the first spare is warm or has failed, or none is wanted. */
bool dt_engines_is_settled(const dt_engines_t *engines);

/* End all engines: ask, then SIGKILL after DT_ENGINES_END_NS. `stopped` runs when the last one was
 * reaped, perhaps at once. Their ends are no events. */
void dt_engines_stop(dt_engines_t *engines, void (*stopped)(void *arg));

/* Describe the engines: fills `list` (`max` entries) and `list_at`. Texts are static.
 * Returns their number. */
size_t dt_engines_list(const dt_engines_t *engines, Dtorch__V1__Engine *list,
                       Dtorch__V1__Engine **list_at, size_t max);
void dt_engines_stats(const dt_engines_t *engines, dt_engines_stats_t *ret_stats);
/* How long the living engines of each device have computed, ns, by device index below `count`; what
 * runs now counts. */
void dt_engines_computed(const dt_engines_t *engines, int64_t now_ns, uint64_t *ret_ns,
                         size_t count);

/* Kills what still runs. NULL is fine. */
void dt_engines_free(dt_engines_t *engines);

/* How long to wait before the next start after `failures` deaths in a row; `random` spreads it. */
int64_t dt_engines_backoff_ns(uint32_t failures, uint32_t random);

#endif
