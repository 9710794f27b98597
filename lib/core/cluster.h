/* The controller's whole state as a sans-IO machine: who is a member, in what health, what people
 * want of them, what happened, which tokens hold. Events and time in, actions out; the daemon and
 * the simulator run this same code.
 *
 * Membership. A node is known by node_id (16 bytes that it keeps for ever) and has a unique name.
 * One identity has at most one welcomed stream:
 *   - same incarnation on a new stream: the old stream is replaced at once (a reconnect);
 *   - new incarnation, and the old stream is closed or its lease is not ALIVE: a new life;
 *   - new incarnation while the old one is ALIVE: refused, named in the text, the old one is not
 *     disturbed.
 * Health (observed) and admin state (set by people, DRAINING/DRAINED by what runs there) are apart.
 *
 * Health:  UNKNOWN -> OK|DEGRADED (welcomed), DEAD (did not come back in rejoin_grace)
 *          OK|DEGRADED -> SUSPECT (silence), DEAD (connection closed), STOPPED (said Bye)
 *          SUSPECT -> OK|DEGRADED, DEAD, STOPPED;   DEAD, STOPPED -> OK|DEGRADED (welcomed)
 *
 * Durability. A change goes out as a JOURNAL action with a rising sequence; dt_cluster_durable()
 * says up to where they are safe. Nothing is welcomed before this start's epoch is durable; no
 * admin reply and no token's use leaves before its record is durable; queries show only durable
 * events. When the journal cannot take more (journal_*_max) admin changes are refused with
 * AGAIN, events are counted instead of kept, and nodes' records wait, newest state wins.
 *
 * Time. now_ns is monotonic and rules everything; wall_ms is only shown and stored (and a token's
 * life is turned into monotonic time when it is made or restored). A jump of the wall clock is one
 * event. Silence: core/lease.h.
 *
 * Everything is bounded: nodes_max, streams_max, events_max, pending admin requests, request ids,
 * tokens, offenders; a node's devices and labels; events by a rate for each node and in all.
 *
 * Events (name, severity, fields beside the node):
 *   cluster-started notice build · clock-jumped warning jump_ms · journal-failing error ·
 *   journal-recovered notice failed_ms · events-dropped warning count
 *   node-joined, node-reconnected notice address incarnation build pid · node-restarted the same
 *   and old_incarnation (a new life) · node-refused warning address kind node_name (kind begins
 *   with the refusal's code: IDENTITY, VERSION, EPOCH, DENIED, LIMIT; or "join") ·
 *   peer-misbehaves warning address kind
 *   node-ok, node-stopped notice; node-suspect, node-degraded warning; node-dead error: from
 *   after_ms incarnation, and silent_ms of suspect and dead
 *   device-missing warning, device-failed error, device-back, device-added, device-ok notice:
 *   devices ("gpu001:3, gpu001:4")
 *   engine-started info, engine-exited notice, engine-crashed, engine-hung warning, engine-failed
 *   error: engine pid signal exit_status operator noticed_ns noticed_by engine_sequence incarnation
 *   node-drain, node-undrain, node-cordon, node-uncordon, node-label, node-forgotten notice by
 *   reason · node-drained notice · token-created, token-revoked, token-used notice token uses_left
 * · key-created, key-revoked notice key key_id by reason · session-refused warning address kind Any
 * of them may carry suppressed_before: events of that source that the rate bound swallowed.
 *
 * The caller performs actions in order: dt_cluster_poll() until it returns false, after each input.
 * Pointers in an action are valid until the next call on the cluster, polls included.
 * Threads: state thread only. Blocking: never. */
#ifndef DT_CORE_CLUSTER_H
#define DT_CORE_CLUSTER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "core/lease.h"
#include "core/session.h"
#include "dtorch/v1/admin.pb-c.h"
#include "dtorch/v1/state.pb-c.h"
#include "dtorch/v1/worker.pb-c.h"

#define DT_CLUSTER_TOKENS_MAX   1024u
#define DT_CLUSTER_KEYS_MAX     1024u
#define DT_CLUSTER_REQUESTS_MAX 4096u
#define DT_CLUSTER_DEVICES_MAX  128u /* of one node, missing ones included */
#define DT_CLUSTER_LABELS_MAX   64u
#define DT_CLUSTER_RECORD_MAX   (512u << 10) /* bytes of one JOURNAL record */

typedef struct dt_cluster dt_cluster_t;

typedef struct dt_cluster_options {
    size_t struct_size;
    const char *name; /* of the cluster, 1..63 bytes; strings are copied */
    const char *build;
    const char *config_hash;        /* of the controller's configuration */
    const char *worker_config_hash; /* what workers should report; "" or NULL: the majority's */
    uint8_t new_cluster_id[16];     /* random; used if no restored record brings one */
    dt_lease_rules_t rules;
    int64_t rejoin_grace_ns;  /* known nodes have this long to come back after a start */
    int64_t hello_timeout_ns; /* a stream has this long to say Hello */
    uint32_t nodes_max;
    uint32_t streams_max;
    uint32_t events_max;          /* held in memory, and in a snapshot */
    uint32_t admin_pending_max;   /* admin requests that wait for the journal */
    uint32_t journal_pending_max; /* records handed out and not durable yet */
    uint64_t journal_bytes_max;   /* of them, and one record beyond; 0: no bound */
} dt_cluster_options_t;

/* Who is at the other end of a stream, as lib/rpc knows it. Strings are copied. */
typedef struct dt_cluster_peer {
    const char *address;          /* "10.0.0.7:41234", "unix:pid 4711" */
    const char *certificate_name; /* node name in a verified certificate; NULL or "": no TLS */
    int64_t certificate_not_after_wall_ms; /* 0 without */
    int32_t pid;                           /* by SO_PEERCRED, 0 if unknown */
} dt_cluster_peer_t;

typedef enum dt_cluster_action_kind {
    DT_CLUSTER_DO_SEND = 1, /* send `data` (a WorkerDown) on `stream` */
    DT_CLUSTER_DO_CLOSE,    /* end `stream` after what was sent; `text` is its status. No answer is
                               needed: later inputs for that stream are ignored */
    DT_CLUSTER_DO_JOURNAL,  /* append `data` (a StateRecord) as `sequence`; report it by
                               dt_cluster_durable(). Sequences rise by one from 1 at each start */
    DT_CLUSTER_DO_EVENT,    /* log `event` once (a follower gets it when it is durable) */
    DT_CLUSTER_DO_REPLY,    /* answer admin request `ticket` with `status`: on DT_OK `data` is the
                               packed reply message, else `text` says why */
} dt_cluster_action_kind_t;

typedef struct dt_cluster_action {
    dt_cluster_action_kind_t kind;
    uint64_t stream;
    uint64_t sequence;
    uint64_t ticket;
    const uint8_t *data;
    size_t size;
    bool is_beat; /* SEND: may be dropped if an earlier beat is still unsent */
    dt_status_t status;
    const char *text;
    const Dtorch__V1__Event *event;
} dt_cluster_action_t;

/* Errors: INVALID (an option out of bounds), NOMEM. Gives *ret_cluster, free with
 * dt_cluster_free(). */
DT_MUST_USE dt_status_t dt_cluster_create(const dt_cluster_options_t *options,
                                          dt_cluster_t **ret_cluster, dt_error_t *err);
void dt_cluster_free(dt_cluster_t *cluster); /* NULL is fine */

/* Take the next action; false: none is left. */
bool dt_cluster_poll(dt_cluster_t *cluster, dt_cluster_action_t *ret_action);
bool dt_cluster_has_actions(const dt_cluster_t *cluster);

/* ---- start ---- */

/* Take one durable record, in the order of the journal, before dt_cluster_start().
 * Errors: INVALID (it breaks a bound: the caller should stop, the state is damaged), NOMEM, LIMIT
 *  (more nodes than nodes_max). */
DT_MUST_USE dt_status_t dt_cluster_restore(dt_cluster_t *cluster,
                                           const Dtorch__V1__StateRecord *record, dt_error_t *err);
/* Begin a new epoch: one above the highest restored. Streams may be opened before it is durable;
 * their Hello waits. Errors: NOMEM. */
DT_MUST_USE dt_status_t dt_cluster_start(dt_cluster_t *cluster, int64_t now_ns, int64_t wall_ms,
                                         dt_error_t *err);
/* Whether the epoch is durable: workers are welcomed. */
bool dt_cluster_is_ready(const dt_cluster_t *cluster);

/* ---- streams (of service Worker) ---- */

/* `id` is the caller's number, not 0, never used again. */
void dt_cluster_stream_opened(dt_cluster_t *cluster, uint64_t id, const dt_cluster_peer_t *peer,
                              int64_t now_ns);
/* A valid message (dt_wire_unpack) came. Borrows it. */
void dt_cluster_stream_received(dt_cluster_t *cluster, uint64_t id,
                                const Dtorch__V1__WorkerUp *message, int64_t now_ns);
/* A message came that lib/wire refused: refusal, end, an event that names the peer. */
void dt_cluster_stream_malformed(dt_cluster_t *cluster, uint64_t id, const dt_error_t *error,
                                 int64_t now_ns);
/* The stream ended at the peer's side, or its connection did. */
void dt_cluster_stream_closed(dt_cluster_t *cluster, uint64_t id, const char *text, int64_t now_ns);
/* Some other offence that a lower layer saw (too many connections, no handshake, does not read).
 * Rate-bounded for each peer like the rest. */
void dt_cluster_peer_misbehaved(dt_cluster_t *cluster, const char *address, const char *what,
                                int64_t now_ns);

/* ---- time and journal ---- */

void dt_cluster_tick(dt_cluster_t *cluster, int64_t now_ns, int64_t wall_ms);
int64_t dt_cluster_deadline(const dt_cluster_t *cluster); /* when a tick is wanted next */
/* All JOURNAL actions up to `sequence` are on the disk. */
void dt_cluster_durable(dt_cluster_t *cluster, uint64_t sequence, int64_t now_ns);
/* The store cannot write (text: why), or can again (NULL). */
void dt_cluster_journal_failing(dt_cluster_t *cluster, const char *text, int64_t now_ns);

/* New settings after a reload: rules (streams in use keep those that their Welcome told), grace,
 * timeouts, hashes. The name and the bounds *_max do not change. Errors: INVALID. */
DT_MUST_USE dt_status_t dt_cluster_set_options(dt_cluster_t *cluster,
                                               const dt_cluster_options_t *options, int64_t now_ns,
                                               dt_error_t *err);
/* Refuse new streams and end all with Refusal STOPPING; admin requests that are not durable yet
 * are still answered if their records become durable. */
void dt_cluster_stop(dt_cluster_t *cluster, int64_t now_ns);

/* ---- admin changes: each is answered by one REPLY action with its ticket ----
 * `ticket` is the caller's number. `by` is who the controller knows the peer to be ("root (uid
 * 0)"), put in front of the request's own `by`. Requests are validated here too. */

void dt_cluster_set_node(dt_cluster_t *cluster, uint64_t ticket,
                         const Dtorch__V1__SetNodeRequest *request, const char *by,
                         int64_t now_ns); /* REPLY: NodeList */

/* The caller makes the random id and secret. The text of the token is kept only until the reply. */
typedef struct dt_cluster_new_token {
    const char *id;    /* 1..31 bytes of [a-z0-9] */
    const char *token; /* what the person gets */
    uint8_t secret_sha256[32];
} dt_cluster_new_token_t;
void dt_cluster_create_token(dt_cluster_t *cluster, uint64_t ticket,
                             const Dtorch__V1__CreateTokenRequest *request,
                             const dt_cluster_new_token_t *made, const char *by,
                             int64_t now_ns); /* REPLY: CreateTokenReply */
void dt_cluster_revoke_token(dt_cluster_t *cluster, uint64_t ticket,
                             const Dtorch__V1__RevokeTokenRequest *request, const char *by,
                             int64_t now_ns); /* REPLY: TokenList */
/* A node wants to join: check the token and use it up by one, unless this node has used it last and
 * asks again, because its answer was lost. The certificate may be signed when
 * the REPLY (without data) says DT_OK. Errors in it: DENIED, AGAIN (journal), with a text that does
 * not help to guess. */
void dt_cluster_use_token(dt_cluster_t *cluster, uint64_t ticket, const char *id,
                          const uint8_t secret_sha256[32], const char *node_name,
                          const uint8_t node_id[16], const char *address, int64_t now_ns);

/* ---- API keys of programs ---- */

void dt_cluster_create_key(dt_cluster_t *cluster, uint64_t ticket,
                           const Dtorch__V1__CreateKeyRequest *request,
                           const dt_cluster_new_token_t *made, const char *by,
                           int64_t now_ns); /* REPLY: CreateKeyReply */
/* Returns the id of the key that is revoked now, in memory, whatever the REPLY says later; NULL:
 * none is. Borrowed until the next call. */
const char *dt_cluster_revoke_key(dt_cluster_t *cluster, uint64_t ticket,
                                  const Dtorch__V1__RevokeKeyRequest *request, const char *by,
                                  int64_t now_ns); /* REPLY: KeyList */

typedef enum dt_key_verdict {
    DT_KEY_FITS,
    DT_KEY_EXPIRED, /* the secret is right in both: what began with the key goes on */
    DT_KEY_REVOKED,
    DT_KEY_UNKNOWN, /* no such key, or another secret */
    DT_KEY_MISSING,
    DT_KEY_MALFORMED,
    DT_KEY_VERDICT_COUNT,
} dt_key_verdict_t;

/* "expired". Static. */
const char *dt_cluster_verdict_text(dt_key_verdict_t verdict);

typedef struct dt_cluster_admission {
    dt_key_verdict_t verdict;
    const char *id, *name; /* of the key if the secret is right, else NULL; until the next call */
    char text[256];        /* for the peer: what is wrong, and what to do */
    bool is_limited;       /* too many failures of this host: it need not be told */
} dt_cluster_admission_t;

/* Judge what a program shows that opens a session's stream over TLS without a certificate: the id
 * of its key ("": it is none, NULL: nothing) and the hash of the secret. What is neither right nor
 * once was is an event (session-refused), bounded for each host; the caller reports the others by
 * dt_cluster_report() when it refuses them. */
void dt_cluster_admit(dt_cluster_t *cluster, const char *id, const uint8_t *secret_sha256,
                      const char *address, int64_t now_ns, dt_cluster_admission_t *ret_admission);

/* ---- queries: messages in the caller's arena, durable state only where it matters ----
 * Errors of all: NOMEM (the arena's cap). */

/* Everything but controller, version, listens, is_private and journal, which the caller knows. */
DT_MUST_USE dt_status_t dt_cluster_get(const dt_cluster_t *cluster, dt_arena_t *arena,
                                       int64_t now_ns, Dtorch__V1__ClusterStatus **ret_status);
DT_MUST_USE dt_status_t dt_cluster_list_nodes(const dt_cluster_t *cluster,
                                              const Dtorch__V1__ListNodesRequest *request,
                                              dt_arena_t *arena, int64_t now_ns,
                                              Dtorch__V1__NodeList **ret_list);
DT_MUST_USE dt_status_t dt_cluster_list_events(const dt_cluster_t *cluster,
                                               const Dtorch__V1__ListEventsRequest *request,
                                               dt_arena_t *arena, Dtorch__V1__EventList **ret_list);
DT_MUST_USE dt_status_t dt_cluster_list_tokens(const dt_cluster_t *cluster, dt_arena_t *arena,
                                               int64_t now_ns, Dtorch__V1__TokenList **ret_list);
/* All but `jobs`. */
DT_MUST_USE dt_status_t dt_cluster_list_keys(const dt_cluster_t *cluster, dt_arena_t *arena,
                                             Dtorch__V1__KeyList **ret_list);
/* Items of parts "core" and "node/NAME", to be put behind the caller's own. */
DT_MUST_USE dt_status_t dt_cluster_diagnose(const dt_cluster_t *cluster, dt_arena_t *arena,
                                            int64_t now_ns, Dtorch__V1__Diagnostics **ret_items);

/* Numbers for metrics, STATUS= and the watchdog. Cost: O(nodes). */
typedef struct dt_cluster_counts {
    uint64_t epoch;
    uint32_t nodes_by_health[6]; /* by Dtorch__V1__NodeHealth */
    uint32_t nodes_by_admin[4];  /* by Dtorch__V1__NodeIntent__Admin */
    uint32_t nodes[4][6];        /* admin x health */
    uint32_t devices_total, devices_ok, devices_missing, devices_failed;
    uint32_t streams, streams_max; /* open now, hello or not */
    uint32_t nodes_total, nodes_max;
    uint64_t events_visible;        /* sequence of the newest durable event */
    uint64_t events_by_severity[6]; /* since the start */
    uint64_t events_suppressed, events_dropped;
    uint64_t journal_issued, journal_durable; /* sequences */
    uint32_t journal_pending_max, admin_pending, admin_pending_max;
    uint64_t journal_bytes, journal_bytes_max; /* not durable yet */
    uint64_t welcomes, refusals, beats_received, beats_sent, malformed;
    int64_t late_ns, late_total_ns; /* of our own turns */
    bool journal_is_failing;
    uint32_t keys[DT_KEY_VERDICT_COUNT];         /* by FITS, EXPIRED, REVOKED */
    uint64_t key_refusals[DT_KEY_VERDICT_COUNT]; /* since the start */
} dt_cluster_counts_t;
void dt_cluster_count(const dt_cluster_t *cluster, dt_cluster_counts_t *ret_counts);
/* What is looked at in each turn. Cost: O(1). */
uint64_t dt_cluster_epoch(const dt_cluster_t *cluster);
uint64_t dt_cluster_events_visible(const dt_cluster_t *cluster); /* newest durable event */
const uint8_t *dt_cluster_id(const dt_cluster_t *cluster);       /* 16 bytes */

/* ---- for the session machine (core/session.h) ---- */

#define DT_CLUSTER_PLACE_DEVICES 64u

/* Rises when something about a node changed that sessions should know. */
uint64_t dt_cluster_generation(const dt_cluster_t *cluster);
/* Give the next node that changed after generation `since`; *at begins at 0. False: no more.
 * Ownership: *ret_node borrows from the cluster and `devices` until the next call. */
bool dt_cluster_next_moved(const dt_cluster_t *cluster, uint64_t since, uint32_t *at,
                           dt_session_node_t *ret_node,
                           dt_session_device_t devices[DT_CLUSTER_PLACE_DEVICES]);
/* Sessions below `limit` will be given out; durable when dt_cluster_session_numbers() says so. */
void dt_cluster_reserve_sessions(dt_cluster_t *cluster, uint64_t limit, int64_t now_ns);
/* Which numbers may be given out: from the first of this start on, below *ret_limit. */
void dt_cluster_session_numbers(const dt_cluster_t *cluster, uint64_t *ret_epoch,
                                uint64_t *ret_first, uint64_t *ret_limit);
/* Put an event of a session into the cluster's; it may be suppressed by rate like any other. */
void dt_cluster_report(dt_cluster_t *cluster, const Dtorch__V1__Event *event, int64_t now_ns);

/* ---- snapshot: all that holds, as StateRecords, a few at a time ----
 * Start a new segment first; records that come while the snapshot is written are replayed on top of
 * it. A zeroed cursor begins. False: no more, or is_failed: no memory, throw it away. Data is valid
 * until the next call on the cluster. */
typedef struct dt_cluster_cursor {
    int part;
    uint64_t next;
    char name[64];
    bool is_failed;
} dt_cluster_cursor_t;
bool dt_cluster_snapshot_next(dt_cluster_t *cluster, dt_cluster_cursor_t *cursor,
                              const uint8_t **ret_data, size_t *ret_size);

#endif
