/* The page that an engine writes and its agent reads: how far it is, what it runs, and how it died.
 * Fixed layout, one page of shared memory an engine. No lock: each field is one atomic word. The
 * engine needs no heartbeat, the agent looks here when it wants to know. An engine runs a tenant's
 * operators, so the agent believes nothing in the page: it takes a snapshot, in which every field
 * is brought into its bounds. What a page says is for people and for deadlines, never for memory.
 */
#ifndef DT_SHM_ENGINE_PAGE_H
#define DT_SHM_ENGINE_PAGE_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define DT_ENGINE_PAGE_MAGIC    UINT32_C(0x45505444) /* "DTPE" */
#define DT_ENGINE_PAGE_VERSION  3
#define DT_ENGINE_PAGE_BYTES    4096
#define DT_ENGINE_PAGE_NAME_MAX 127 /* of an operator, without the NUL */

typedef enum dt_engine_state {
    DT_ENGINE_STATE_LOADING, /* since its exec */
    DT_ENGINE_STATE_WARM,    /* ready, no session */
    DT_ENGINE_STATE_BUSY,
    DT_ENGINE_STATE_CRASHED, /* written by the crash handler, then it dies */
} dt_engine_state_t;

/* Who answered a question about an operator's results. */
typedef enum dt_engine_answerer {
    DT_ENGINE_ANSWERER_META,      /* a Meta kernel */
    DT_ENGINE_ANSWERER_RULE,      /* a line of lib/ops/meta.def */
    DT_ENGINE_ANSWERER_REHEARSAL, /* the operator on zeros */
    DT_ENGINE_ANSWERER_EXECUTION, /* nobody: it is left to the operator's execution */
    DT_ENGINE_ANSWERER_COUNT
} dt_engine_answerer_t;

/* How bytes came from one device to another. */
typedef enum dt_engine_moved {
    DT_ENGINE_MOVED_MEMORY, /* of this host, of one engine or two */
    DT_ENGINE_MOVED_LINK,   /* by a socket, from another host */
    DT_ENGINE_MOVED_COUNT
} dt_engine_moved_t;

/* What took time about it, of each session. */
typedef enum dt_engine_move_time {
    DT_ENGINE_MOVE_RUNS,  /* a redistribution ran */
    DT_ENGINE_MOVE_WAITS, /* a record waited for one */
    DT_ENGINE_MOVE_TIME_COUNT
} dt_engine_move_time_t;

typedef struct dt_engine_page {
    uint32_t magic;               /* agent, before the engine starts */
    uint32_t version;             /* agent, before the engine starts */
    _Atomic uint32_t state;       /* dt_engine_state_t */
    _Atomic uint32_t crash_signo; /* 0: none */
    _Atomic uint64_t crash_addr;  /* si_addr of the signal */
    _Atomic int64_t crash_ns;     /* monotonic, when the handler began */
    _Atomic uint64_t progress;    /* operators finished */
    _Atomic int64_t op_begin_ns;  /* monotonic, when the running operator began; 0: none runs */
    _Atomic uint64_t device_ns;   /* time spent in operators */
    _Atomic uint64_t op_name[16]; /* NUL-padded bytes; of the operator that runs or ran last */
    _Atomic uint64_t answers[DT_ENGINE_ANSWERER_COUNT]; /* of the metadata thread */
    _Atomic uint64_t moved[DT_ENGINE_MOVED_COUNT];      /* bytes, by who moves them */
    _Atomic uint64_t move_ns[DT_ENGINE_MOVE_TIME_COUNT];
} dt_engine_page_t;
_Static_assert(sizeof(dt_engine_page_t) <= DT_ENGINE_PAGE_BYTES, "it is one page");

/* What the agent makes of a page. */
typedef struct dt_engine_snapshot {
    dt_engine_state_t state;
    int32_t crash_signo; /* 0..64 */
    uint64_t crash_addr;
    int64_t crash_ns; /* 0: no handler ran; never in the future */
    uint64_t progress;
    int64_t op_begin_ns; /* 0: no operator runs; never in the future */
    uint64_t device_ns;
    char op_name[DT_ENGINE_PAGE_NAME_MAX + 1]; /* printable ASCII */
    uint64_t answers[DT_ENGINE_ANSWERER_COUNT];
    uint64_t moved[DT_ENGINE_MOVED_COUNT];
    uint64_t move_ns[DT_ENGINE_MOVE_TIME_COUNT];
} dt_engine_snapshot_t;

/* Create the memory of one page, with magic and version written.
 * Ownership: gives *ret_fd (for the engine, read and write) and *ret_page (the agent's, read-only;
 * unmap with dt_engine_page_unmap()). Errors: LIMIT, NOMEM, NOT_FOUND, as dt_memfd_*. Threads: any.
 */
DT_MUST_USE dt_status_t dt_engine_page_create(int *ret_fd, const dt_engine_page_t **ret_page,
                                              dt_error_t *err);

/* Map the page for writing, in the engine.
 * Ownership: borrows `fd`; gives *ret_page, unmap with dt_engine_page_unmap().
 * Errors: INVALID (not a page, or of another version), as dt_memfd_map(). Threads: any. */
DT_MUST_USE dt_status_t dt_engine_page_open(int fd, dt_engine_page_t **ret_page, dt_error_t *err);
void dt_engine_page_unmap(const dt_engine_page_t *page); /* NULL is fine */

/* Engine: an operator begins or ends. `name` is cut at DT_ENGINE_PAGE_NAME_MAX bytes.
 * Threads: the executor only. Blocking: never. Cost: 25 to 35 ns. */
void dt_engine_page_op_begin(dt_engine_page_t *page, const char *name, int64_t now_ns);
void dt_engine_page_op_end(dt_engine_page_t *page, int64_t now_ns);

/* Engine: a question was answered. Threads: the metadata thread only. Blocking: never. */
void dt_engine_page_answered(dt_engine_page_t *page, dt_engine_answerer_t answerer);

/* Engine: a fatal signal came. Safe in a signal handler. */
void dt_engine_page_crashed(dt_engine_page_t *page, int signo, uint64_t addr, int64_t now_ns);

/* Agent: read a page. Threads: any. Blocking: never. */
void dt_engine_page_read(const dt_engine_page_t *page, int64_t now_ns,
                         dt_engine_snapshot_t *ret_snapshot);

#endif
