/* The controller's half of the operator stream as a sans-IO machine: all sessions, their tensors'
 * ids, the frames on their way to nodes, acknowledgement, credit, resume. Bytes of three kinds of
 * streams and time in, actions out; the daemon and the simulator run this same code.
 *
 *   CLIENT  /dtorch.v1.Session/Stream  one a session: hello, frames, queries; welcome, acks,
 *           results
 *   LINK    /dtorch.v1.Worker/Session  one an instance of a session on a node: frames down,
 *           results up
 *   BULK    /dtorch.v1.Session/Bulk    bytes of transfers of a session, relayed to and from its
 *           links
 *
 * Session. LIVE (has a client's stream) <-> AWAY (has none; grace_ns until it ends) -> ended.
 *   A hello with number and token moves the session to the new stream; the old stream is ended
 *   and what still comes from it is ignored. Each Welcome brings a new token; the one before stays
 *   valid until the first message on the new stream, since a Welcome can be lost. Numbers rise and
 *   are never used again, over restarts too (dt_sessions_numbers()). A number of an earlier start
 *   is refused with EPOCH.
 *
 * Frames. A record is accepted once, in sequence order. What is accepted is applied to the tables
 *   below, then the frame's bytes go on to every node of the session, as they came, unless it
 *     - holds a DEF_SIG: it becomes a DEF_PLAN of the same number with no steps;
 *     - holds records that were accepted before (a resent frame that overlaps): they are cut off;
 *     - ends in a malformed record: those before it are accepted and go on, the stream ends with
 *       Refusal MALFORMED (record number, E_ name), the session waits at that number;
 *     - names lost or poisoned tensors (below).
 *   So what a node gets has no gap and no overlap, but for its first frame: that begins where the
 *   session is when the node joins it. Definitions made before are put in front, numbered so that
 *   they end right before it. A record that a node must not run is replaced by a DT_RECORD_NOP.
 *
 * Ids. Tensor ids rise strictly. A tensor has a storage; a storage lies on one vdev and has a
 *   version, the sequence of the record that wrote it last. Which storage an output has, and which
 *   an operator writes, comes from the signature's alias bytes. Errors, as in wire/frame.h: unknown
 *   or freed id E_ID, an id that does not rise E_DUP, undefined signature E_SIG, counts E_ARITY,
 *   bounds E_LIMIT, a future that does not rise E_DUP, a gap E_SEQ, another epoch E_EPOCH.
 *
 * Refused by name (not malformed: the record is accepted, its outputs are poisoned here, the
 *   client gets a Poison): a signature whose tensors lie on several vdevs or on a mesh of more than
 *   one; an operator whose inputs lie elsewhere than its signature says; REDISTRIBUTE, LOAD, SAVE,
 *   RECORD_*, REPLAY.
 *
 * Loss. A node that is away for lost_ns, a new life of it, or EngineLost: the tensors on the vdevs
 *   concerned are lost. They keep their ids, with the cause. Then, and for refused records alike:
 *     - an operator with such an input is not sent; its outputs take the cause, the storages that
 *       it would have written are poisoned with it; FETCH is answered here with the cause;
 *     - FREE goes on as it came: a node ignores ids that it does not have, as it must in a session
 *       of several nodes anyway;
 *     - records sent and not executed when the engine went are counted as lost;
 *   and the vdevs are bound to another ready device of the same kind and backend, if there is one,
 *   from the next record on. On a node that has the session already this is a further instance of
 *   it: a SessionOpen with another key and those bindings, with a link, frames and an engine of its
 *   own, so that what goes on there is not disturbed. The client gets a Fault with what is lost and
 *   the new bindings. Random streams of such a vdev begin anew at their last SEED. Without a device
 *   the vdev stays lost until one comes: what is put there is poisoned at once. Engines that are
 *   lost in a row before they executed anything are not tried again for a while. Poison that arose
 *   in an engine is the engine's matter; this module only passes on its first cause.
 *
 * Flow. The client may send credit_bytes of payload (cumulative): what all nodes have executed, and
 *   client_window_bytes. Frames wait here, at most that much, until each node has executed them: so
 *   they can be sent again after a broken link, behind what WorkerSessionHello says was received. A
 *   link has node_window_bytes and node_window_records in flight, and one frame beyond. While more
 *   than results_bytes of Results are not confirmed by FuturesDone, nodes get no more than what the
 *   oldest missing one needs: the records up to its FETCH, all of them. Acks are merged: sent after
 *   DT_SESSION_ACK_BYTES, DT_SESSION_ACK_NS, or at SYNC. A node is told how many of its messages
 *   were taken.
 *
 * Answers. A Result is kept and sent again after each resume until FuturesDone confirms it. Queries
 *   are kept until answered and asked again at a node that comes back.
 *
 * Isolation. Every id, number and stream is looked up within one session; nothing of a session is
 *   reachable from another. A client that sends without credit, floods SYNC, does not read, asks
 *   too much at once: its stream is ended with an event that names it; the session has its grace.
 *
 * Events: session-started, session-resumed, session-ended info; session-lost warning (the grace is
 *   over); session-misbehaves, session-refused warning; session-fault warning (node, lost tensors).
 *   Fields: session,
 *   program, peer, kind.
 *
 * The caller performs actions in order: dt_sessions_poll() until false, after each input. Pointers
 * in an action are valid until the next call. Threads: state thread only. Blocking: never. Cost of
 * a frame: O(records), no allocation for a record. */
#ifndef DT_CORE_SESSION_H
#define DT_CORE_SESSION_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "core/lease.h"
#include "dtorch/v1/admin.pb-c.h"
#include "dtorch/v1/session.pb-c.h"

#define DT_SESSION_TOKEN_BYTES    16u
#define DT_SESSION_KEY_BYTES      16u
#define DT_SESSION_HASH_BYTES     32u
#define DT_SESSION_VDEVS_MAX      4096u
#define DT_SESSION_NODES_MAX      256u             /* of one session */
#define DT_SESSION_ACK_BYTES      (64u << 10)      /* an Ack goes out when this much was accepted */
#define DT_SESSION_ACK_NS         INT64_C(4000000) /* or so long after what it is about */
#define DT_SESSION_SIG_BYTES      (64u << 20)      /* definitions kept for nodes that join late */
#define DT_SESSION_FUTURES_MAX    262144u          /* fetches that are not confirmed */
#define DT_SESSION_QUERIES_MAX    1024u
#define DT_SESSION_QUERY_BYTES    (4u << 20) /* of all unanswered ones */
#define DT_SESSION_ERRORS_MAX     256u       /* kept for people */
#define DT_SESSION_CAUSES_MAX     4096u      /* different causes of lost and refused tensors */
#define DT_SESSION_STATS_MAX      4096u      /* names of operators */
#define DT_SESSION_SYNC_RATE      100000u    /* frames with SYNC in a second, more are a flood */
#define DT_SESSION_PLAN_WORK      (UINT64_C(1) << 20) /* units of dt_shard_plan_choose() at once */
#define DT_SESSION_PLAN_WORK_RATE 100000              /* and in a second: 1 % of a core */
#define DT_SESSION_BEATS_RATE     50000u              /* messages besides frames in a second */
#define DT_SESSION_NUMBERS_STEP   64u                 /* numbers reserved at once */

typedef struct dt_sessions dt_sessions_t;

typedef struct dt_sessions_options {
    size_t struct_size;
    const char *build; /* copied */
    void (*random)(void *bytes, size_t size);
    void (*hash)(const uint8_t *bytes, size_t size, uint8_t ret_hash[DT_SESSION_HASH_BYTES]);
    dt_lease_rules_t rules;       /* beats of clients, as of nodes */
    int64_t grace_ns;             /* SessionGrace= */
    int64_t hello_ns;             /* HelloTimeout= */
    int64_t lost_ns;              /* a node that is away so long is lost to its sessions */
    uint32_t sessions_max;        /* SessionsMax=, those away included */
    uint32_t tensors_max;         /* SessionTensorsMax=, live in one session */
    uint64_t memory_bytes;        /* SessionMemory=, for each vdev where the hello says none */
    uint64_t client_window_bytes; /* SessionWindow= */
    uint64_t node_window_bytes;
    uint32_t node_window_records;
    uint64_t results_bytes; /* unconfirmed Results, then nodes get no more than it needs */
} dt_sessions_options_t;

typedef enum dt_session_stream_kind {
    DT_SESSION_STREAM_CLIENT = 1,
    DT_SESSION_STREAM_LINK,
    DT_SESSION_STREAM_BULK,
} dt_session_stream_kind_t;

typedef enum dt_session_action_kind {
    DT_SESSION_DO_SEND = 1,  /* send `data` on `stream` */
    DT_SESSION_DO_CLOSE,     /* end `stream` after what was sent, with `status` and `text`; later
                                inputs for it are ignored */
    DT_SESSION_DO_NODE_SEND, /* send `data` (a WorkerDown) on the node's control stream `stream` */
    DT_SESSION_DO_EVENT,     /* put `event` (no sequence, no time) into the cluster's events */
    DT_SESSION_DO_REPLY,     /* answer admin request `ticket`: `data` on DT_OK, else `text` */
    DT_SESSION_DO_NUMBERS,   /* reserve numbers below `number` in the journal, then tell by
                                dt_sessions_numbers() */
} dt_session_action_kind_t;

typedef struct dt_session_action {
    dt_session_action_kind_t kind;
    uint64_t stream;
    uint64_t ticket;
    uint64_t number;
    const uint8_t *data;
    size_t size;
    dt_status_t status;
    const char *text;
    const Dtorch__V1__Event *event;
} dt_session_action_t;

/* Errors: INVALID, NOMEM. Gives *ret_sessions, dt_sessions_free(). */
DT_MUST_USE dt_status_t dt_sessions_create(const dt_sessions_options_t *options, int64_t now_ns,
                                           dt_sessions_t **ret_sessions, dt_error_t *err);
void dt_sessions_free(dt_sessions_t *sessions); /* NULL is fine */
/* Other settings; windows and limits count for sessions that begin later. */
void dt_sessions_set_options(dt_sessions_t *sessions, const dt_sessions_options_t *options);
bool dt_sessions_poll(dt_sessions_t *sessions, dt_session_action_t *ret_action);

/* Numbers from `first` on, below `limit`, may be given out: they are durable. Called again with a
 * higher limit. Before the first call hellos wait. `epoch` is the cluster's. */
void dt_sessions_numbers(dt_sessions_t *sessions, uint64_t epoch, uint64_t first, uint64_t limit,
                         int64_t now_ns);

/* ---- nodes, as the cluster knows them ---- */

typedef struct dt_session_device {
    uint32_t index;
    char kind[16];
    char backend[32];
    bool is_usable; /* there, and not failed */
} dt_session_device_t;

typedef struct dt_session_node {
    const char *name;
    const char *boot_id;
    uint64_t incarnation;
    uint64_t stream;                    /* control stream, 0: it is not connected */
    bool takes_work;                    /* enabled and healthy: new vdevs may be bound to it */
    bool is_stopped;                    /* said Bye, or was forgotten: nothing of it comes back */
    const dt_session_device_t *devices; /* (device_count) */
    uint32_t device_count;
} dt_session_node_t;

/* Something about a node changed. Borrows all. */
void dt_sessions_node(dt_sessions_t *sessions, const dt_session_node_t *node, int64_t now_ns);

/* ---- streams; `id` is the caller's number, not 0, never used again ---- */

void dt_sessions_opened(dt_sessions_t *sessions, uint64_t id, dt_session_stream_kind_t kind,
                        const char *address, int64_t now_ns);
/* What the program at the other end of a CLIENT stream has shown; between its opening and its first
 * message. `key` and `name`: of its API key, "" for none. `why_not` is not NULL: it may come back
 * to what it began with that key, a new session is refused with this text (event session-refused,
 * `kind`). Copies all. */
void dt_sessions_identify(dt_sessions_t *sessions, uint64_t id, const char *key, const char *name,
                          const char *why_not, const char *kind);
/* A message came: the envelope as it was received. Borrows it. */
void dt_sessions_received(dt_sessions_t *sessions, uint64_t id, const uint8_t *data, size_t size,
                          int64_t now_ns);
/* Bytes that may wait to be written on a stream before it counts as stuck. */
size_t dt_sessions_queue_max(const dt_sessions_t *sessions, uint64_t id);
/* It does not take what it is sent: `queued` bytes wait. Its stream is ended. */
void dt_sessions_stuck(dt_sessions_t *sessions, uint64_t id, size_t queued, int64_t now_ns);
void dt_sessions_closed(dt_sessions_t *sessions, uint64_t id, const char *text, int64_t now_ns);

/* ---- time ---- */

void dt_sessions_tick(dt_sessions_t *sessions, int64_t now_ns, int64_t wall_ms);
int64_t dt_sessions_deadline(const dt_sessions_t *sessions); /* when a tick is wanted next */
/* End all streams with Refusal STOPPING; new ones are refused. */
void dt_sessions_stop(dt_sessions_t *sessions, int64_t now_ns);

/* ---- what people see; messages in the caller's arena. Errors: NOMEM, NOT_FOUND ---- */

DT_MUST_USE dt_status_t dt_sessions_list(const dt_sessions_t *sessions,
                                         const Dtorch__V1__ListJobsRequest *request,
                                         dt_arena_t *arena, int64_t now_ns,
                                         Dtorch__V1__JobList **ret_list);
DT_MUST_USE dt_status_t dt_sessions_get(const dt_sessions_t *sessions, uint64_t job,
                                        dt_arena_t *arena, int64_t now_ns,
                                        Dtorch__V1__JobDetail **ret_job, dt_error_t *err);
/* End a job: its client gets the text, its memory is freed. */
DT_MUST_USE dt_status_t dt_sessions_end(dt_sessions_t *sessions, uint64_t job, const char *text,
                                        int64_t now_ns, dt_error_t *err);
/* End all jobs that began with an API key, by its id. Gives how many. */
uint32_t dt_sessions_end_key(dt_sessions_t *sessions, const char *key, const char *text,
                             int64_t now_ns);
/* How many jobs there are that began with it. Cost: O(sessions). */
uint32_t dt_sessions_count_key(const dt_sessions_t *sessions, const char *key);
/* What jobs have used since the controller started, those that ended too; all but the times.
 * Cost: O(rows * sessions + operators of all sessions). */
DT_MUST_USE dt_status_t dt_sessions_usage(const dt_sessions_t *sessions, dt_arena_t *arena,
                                          int64_t now_ns, Dtorch__V1__UsageReport **ret_report);
/* The operators of it, most device time first. Cost: O(operators of all sessions). */
DT_MUST_USE dt_status_t dt_sessions_operators(const dt_sessions_t *sessions, dt_arena_t *arena,
                                              Dtorch__V1__OperatorStats ***ret_list,
                                              size_t *ret_count);
/* Ask the nodes; answered by one REPLY with a TensorList. */
void dt_sessions_list_tensors(dt_sessions_t *sessions, uint64_t ticket,
                              const Dtorch__V1__ListTensorsRequest *request, int64_t now_ns);

/* Begin to trace a job, or read what was traced. Errors: also AGAIN (too many are traced). */
DT_MUST_USE dt_status_t dt_sessions_timeline(dt_sessions_t *sessions,
                                             const Dtorch__V1__GetTimelineRequest *request,
                                             dt_arena_t *arena, int64_t now_ns,
                                             Dtorch__V1__Timeline **ret_timeline, dt_error_t *err);

/* The signatures and meshes that a job has defined, from a number on. The bytes of bodies are the
 * session's: pack the answer before anything else happens to it. Errors: NOT_FOUND, NOMEM. */
DT_MUST_USE dt_status_t dt_sessions_plans(const dt_sessions_t *sessions,
                                          const Dtorch__V1__GetPlansRequest *request,
                                          dt_arena_t *arena, Dtorch__V1__PlanList **ret_list,
                                          dt_error_t *err);

/* Tensors moved between devices by steps of one kind, as they were planned: bytes are those of the
 * device that receives most. */
typedef struct dt_session_moved {
    uint64_t count, bytes;
} dt_session_moved_t;
#define DT_SESSION_MOVE_KINDS 9u /* dt_shard_step_kind_t */

/* Numbers for metrics and diagnostics. Cost: O(sessions). */
typedef struct dt_sessions_counts {
    uint32_t live, away, sessions_max, streams, links;
    uint64_t started, resumed, ended, lost;     /* since the start */
    uint64_t frames, records, operators, bytes; /* accepted */
    uint64_t frames_dropped;                    /* accepted before */
    uint64_t rewritten;                         /* frames that were written anew */
    uint64_t plan_work; /* units of dt_shard_plan_choose() since the start */
    uint64_t acks, results, errors, malformed, misbehaved;
    uint64_t bulk_bytes_up, bulk_bytes_down;
    uint64_t tensors, storages;
    uint64_t queued_bytes;  /* frames that nodes have not executed */
    uint64_t unsent_bytes;  /* of them, those that wait for a node's window */
    uint64_t credit_bytes;  /* given and not used, all sessions */
    uint64_t results_bytes; /* unconfirmed */
    uint64_t memory_bytes;  /* live on the nodes, as they report */
    uint64_t executed;      /* operators, by the nodes' statistics */
    dt_session_moved_t moves[DT_SESSION_MOVE_KINDS]; /* by kind, accepted since the start */
} dt_sessions_counts_t;
void dt_sessions_count(const dt_sessions_t *sessions, dt_sessions_counts_t *ret_counts);

#endif
