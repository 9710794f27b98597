/* The sessions that this node serves: the agent's half of the operator stream.
 *
 *   SessionOpen --> an instance: its engines (one for each device it uses, shared as Isolation=
 * says), a ring of frames that all of them read, a channel and an arena for each stream
 * /dtorch.v1.Worker/Session, dialled to where the node's own stream goes, again after each break
 * while that one is up; frames and tensor bytes into the rings, what the engines put into theirs
 * back as it is SessionClose, `close`, another epoch, a controller that does not know it --> all is
 * freed
 *
 * Up messages are numbered and kept until the controller has taken them (`up_received`), at most
 * DT_NODE_SESSIONS_KEEP_BYTES of an instance; then its engines wait, and only they. Down, frames
 * are counted by their sequence: WorkerSessionHello.received. Engines pass over what they have
 * done.
 *
 * An engine that dies takes its tensors with it: EngineLost tells which devices, the operator, the
 * signal. The instance stays for its other engines. A warm spare is taken for a new engine; one
 * without sessions stays for DT_NODE_SESSIONS_LINGER_NS for the next of the same isolation.
 *
 * Limits: DT_NODE_SESSIONS_MAX instances. Threads: state thread only. Nothing here blocks. */
#ifndef DT_WORKERD_SESSIONS_H
#define DT_WORKERD_SESSIONS_H
#include <stdbool.h>
#include <stdint.h>

#include "dtorch/v1/worker.pb-c.h"
#include "engines.h"
#include "rpc/rpc.h"

#define DT_NODE_SESSIONS_MAX        1024u
#define DT_NODE_SESSIONS_KEEP_BYTES (8u << 20)
#define DT_NODE_SESSIONS_QUEUE_MAX  (4u << 20) /* bytes that wait in a stream */
#define DT_NODE_SESSIONS_TURN_BYTES (4u << 20) /* that one turn moves up */
#define DT_NODE_SESSIONS_LINGER_NS  INT64_C(30000000000)
#define DT_NODE_SESSIONS_REDIAL_MIN INT64_C(20000000)
#define DT_NODE_SESSIONS_REDIAL_MAX INT64_C(1000000000)
#define DT_NODE_SESSIONS_MEMORY     (UINT64_C(8) << 30) /* limit when nobody names one */

typedef struct dt_node_sessions dt_node_sessions_t;

typedef enum dt_node_isolation {
    DT_NODE_ISOLATION_SESSION, /* an engine serves one session */
    DT_NODE_ISOLATION_TENANT,  /* the sessions of one tenant */
    DT_NODE_ISOLATION_DEVICE,  /* all of a device */
} dt_node_isolation_t;

typedef struct dt_node_sessions_options {
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    dt_engines_t *engines;
    const char *node_name; /* kept */
    const char *boot_id;   /* kept; of the host */
    dt_node_isolation_t isolation;
    const char *data_listen;  /* kept; IP:PORT for data connections, or "none" */
    const char *data_address; /* kept; IP:PORT that programs are told in its place, or "none" */
    bool is_plain;            /* there is no certificate, and none will come */
    /* Where the controller is reached now, and what to show it; NULL: it is not connected. */
    const char *(*address)(void *arg);
    const char *(*peer)(void *arg); /* likewise as a number and port; "": not known */
    const dt_rpc_tls_t *(*tls)(void *arg);
    void *arg;
} dt_node_sessions_options_t;

/* The ways that tensor bytes take between a program and this node. */
typedef enum dt_node_bulk_path {
    DT_NODE_BULK_WINDOW,  /* shared memory */
    DT_NODE_BULK_DIRECT,  /* a data connection */
    DT_NODE_BULK_RELAYED, /* the controller */
    DT_NODE_BULK_PATHS,
} dt_node_bulk_path_t;

/* Counts for metrics. */
typedef struct dt_node_sessions_stats {
    uint32_t sessions;                /* instances */
    uint32_t streams;                 /* of them connected */
    uint32_t engines;                 /* that serve them */
    uint64_t opened, closed, lost;    /* engines lost, since the start */
    uint64_t frames, frame_bytes;     /* down */
    uint64_t messages, message_bytes; /* up */
    uint64_t kept_bytes;              /* not taken by the controller yet */
    uint64_t queued_records;          /* received, not executed; once for each engine */
    uint64_t memory_limit_bytes;      /* that the sessions may use in all */
    struct {
        uint64_t up_bytes, down_bytes; /* uploads, fetches */
    } bulk[DT_NODE_BULK_PATHS];
    uint32_t connections;         /* data connections */
    uint64_t connections_refused; /* since the start */
} dt_node_sessions_stats_t;

/* Ownership: keeps what options say; gives *ret_sessions, dt_node_sessions_free().
 * Errors: NOMEM. Threads: state thread, as all here. */
DT_MUST_USE dt_status_t dt_node_sessions_create(const dt_node_sessions_options_t *options,
                                                dt_node_sessions_t **ret_sessions, dt_error_t *err);

/* From the node's own stream. Borrow all. */
void dt_node_sessions_open(dt_node_sessions_t *sessions, const Dtorch__V1__SessionOpen *open);
void dt_node_sessions_close(dt_node_sessions_t *sessions, const Dtorch__V1__SessionClose *close);
/* The node's own stream is up, in this epoch: sessions of others are over. */
void dt_node_sessions_epoch(dt_node_sessions_t *sessions, uint64_t epoch);

/* From the engines: for dt_engines_options_t. */
void dt_node_sessions_engine_ready(dt_node_sessions_t *sessions, uint32_t engine);
void dt_node_sessions_engine_lost(dt_node_sessions_t *sessions, uint32_t engine,
                                  const Dtorch__V1__EngineEvent *event);
void dt_node_sessions_engine_bell(dt_node_sessions_t *sessions, uint32_t engine);
void dt_node_sessions_engine_refused(dt_node_sessions_t *sessions, uint32_t engine,
                                     uint32_t instance, const char *text);

/* An engine cannot use the window of an instance's program. */
void dt_node_sessions_no_window(dt_node_sessions_t *sessions, uint32_t instance, const char *text);

void dt_node_sessions_stats(const dt_node_sessions_t *sessions,
                            dt_node_sessions_stats_t *ret_stats);

/* Close all and end their streams. `stopped` runs when the last one has ended, perhaps at once. */
void dt_node_sessions_stop(dt_node_sessions_t *sessions, void (*stopped)(void *arg), void *arg);
void dt_node_sessions_free(dt_node_sessions_t *sessions); /* after `stopped`; NULL is fine */

#endif
