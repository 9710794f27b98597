/* The executor: runs the operators of sessions on one device, on one thread.
 *
 * It reads each session's frames from its ring, decodes records and performs them in order through
 * the backend's table. What it knows of a session is plans (signatures with the operator found
 * once), meshes, and tensors by id; ids of other engines' devices are passed over. A tensor on a
 * mesh has a local tensor for each vdev of the mesh that this engine runs, and an operator on it
 * runs once for each. Each plan's first execution is compared with what its signature says.
 * Results, errors and reports go into the session's up ring as the bytes that the agent forwards.
 *
 * Fairness: sessions take turns of DT_EXEC_QUANTUM_NS, handed over between operators; one whose
 * operators took longer waits until the others have had as much time. A session whose up ring is
 * full, or whose next operator needs bytes that have not come, waits alone.
 * Errors are values: an operator that fails poisons its outputs and what it would have written;
 * what depends on it is skipped and carries the same cause, the one with the lowest sequence.
 * Memory: of tensors by the session's arena, over the limit is OutOfMemoryError for that operator
 * only. A table of ids or plans that cannot grow breaks the session, not the engine. Costs: no
 * allocation, lock or system call for an operator that has run before.
 *
 * Not here: who sends what (sessions.c of the agent), metadata (engine_meta.h), the process
 * (engine_serve.h). */
#ifndef DT_WORKERD_ENGINE_EXEC_H
#define DT_WORKERD_ENGINE_EXEC_H
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "device/backend.h"
#include "engine_channel.h"
#include "shm/arena.h"
#include "shm/engine_page.h"
#include "transport/transport.h"

#define DT_EXEC_QUANTUM_NS    INT64_C(1000000)
#define DT_EXEC_SAVED_NS      INT64_C(100000000) /* what an idle session may catch up with */
#define DT_EXEC_SESSIONS_MAX  256u
#define DT_EXEC_REPORT_BYTES  (64u << 10)
#define DT_EXEC_REPORT_NS     INT64_C(4000000) /* a frame goes back when all of it is over */
#define DT_EXEC_STATS_NS      INT64_C(1000000000)
#define DT_EXEC_TRIM_NS       INT64_C(2000000000) /* of idleness, then dirty pages go back */
#define DT_EXEC_EARLY_MAX     (16u << 20)         /* bytes that came before their UPLOAD */
#define DT_EXEC_AHEAD_MAX     (8u << 20)          /* bytes of downloads sent and not received */
#define DT_EXEC_CHUNK_MAX     (1u << 20)
#define DT_EXEC_DOWNLOADS_MAX 65536u
#define DT_EXEC_OPERATORS_MAX 4096u  /* names in a session's statistics */
#define DT_EXEC_STREAMS_MAX   4096u  /* random streams of a session */
#define DT_EXEC_SOURCES_MAX   65536u /* places in the program that have a number */
#define DT_EXEC_RANGES_MAX    16u
#define DT_EXEC_POISONS_RATE  1000u /* told in a second; the rest is learnt by fetching */

typedef struct dt_exec dt_exec_t;

typedef struct dt_exec_options {
    const dt_backend_t *backend; /* kept; its executing entries are there */
    void *device;                /* kept; open */
    dt_engine_page_t *page;      /* kept; where it tells what runs */
    const dt_clock_t *clock;     /* kept */
    int wake;                    /* kept; eventfd on which this thread sleeps, -1 in tests */
    int bell;                    /* kept; eventfd of the agent, -1 in tests */
    dt_transport_t *transport;   /* kept; NULL: redistributions are refused */
    bool is_serial;              /* records wait for each redistribution before them */
} dt_exec_options_t;

/* The memory of one session, mapped. */
typedef struct dt_exec_memory {
    dt_channel_t *channel; /* DT_CHANNEL_BYTES */
    const uint8_t *down;   /* DT_CHANNEL_DOWN_BYTES */
    dt_shm_arena_t *arena; /* NULL: the heap, without a limit (tests) */
    void (*closed)(void *arg, struct dt_exec_memory *memory); /* gives all back; may be NULL */
    void *arg;
} dt_exec_memory_t;

/* Ownership: gives *ret_exec, free with dt_exec_free(). Errors: NOMEM. Threads: the executor's
 * only, as all here. */
DT_MUST_USE dt_status_t dt_exec_create(const dt_exec_options_t *options, dt_exec_t **ret_exec,
                                       dt_error_t *err);
void dt_exec_free(dt_exec_t *exec); /* closes what is open; NULL is fine */

/* Serve a session. Ownership: takes `memory` on success only.
 * Errors: INVALID (rings or numbers that are none), EXISTS, LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_exec_open(dt_exec_t *exec, uint32_t instance,
                                     const dt_exec_memory_t *memory, dt_error_t *err);
/* Free all that the session has. Unknown is fine. */
void dt_exec_close(dt_exec_t *exec, uint32_t instance);
uint32_t dt_exec_session_count(const dt_exec_t *exec);

/* Memory that a session's program shares with this engine; wire/bulk.h has its layout. */
typedef struct dt_exec_window {
    uint32_t number;     /* rising in an instance */
    uint32_t area_bytes; /* of this engine's area; 0: it has none */
    uint64_t area_place;
    uint8_t *map; /* NULL: there is none any more */
    size_t size;
} dt_exec_window_t;

/* Use a window from now on, in place of an earlier one; one with an older number is passed over.
 * Ownership: takes window->map, dt_memfd_unmap() ends it. */
void dt_exec_window(dt_exec_t *exec, uint32_t instance, const dt_exec_window_t *window);

/* Give each session that has something to do one turn. Returns whether one could go on. */
bool dt_exec_turn(dt_exec_t *exec);
/* Before sleeping on `wake`. False: something came, take another turn. *ret_deadline_ns: when a
 * turn is wanted without a wake; INT64_MAX: never. */
bool dt_exec_prepare_sleep(dt_exec_t *exec, int64_t *ret_deadline_ns);

/* ---- memory for the backend ---- */

/* What a device is opened with: blocks come from the arena of the session whose turn it is, on
 * other threads and between turns from the heap. */
const dt_backend_memory_t *dt_exec_backend_memory(void);

#endif
