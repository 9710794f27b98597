/* The cluster's inside, shared by the cluster_*.c files:
 *   cluster.c         life, options, time, the action queue, the journal's two ends
 *   cluster_state.c   restore and snapshot
 *   cluster_nodes.c   registry, health, admin state, a node's record
 *   cluster_streams.c streams, hello, welcome, refusals, messages
 *   cluster_devices.c inventories: what is there, missing, failed
 *   cluster_events.c  events: making, rate, ring, durability, queries; peers that misbehave
 *   cluster_tokens.c  join tokens
 *   cluster_keys.c    API keys
 *   cluster_admin.c   changes by people, request ids, replies that wait for the journal
 *   cluster_sessions.c what the session machine wants
 *   cluster_view.c    queries, alarms, diagnostics, counts */
#ifndef DT_CORE_CLUSTER_INTERNAL_H
#define DT_CORE_CLUSTER_INTERNAL_H
#include "base/list.h"
#include "core/cluster.h"
#include "wire/wire.h"

#define DT_CLUSTER_MS_NS      INT64_C(1000000)
#define DT_CLUSTER_SECOND_NS  INT64_C(1000000000)
#define DT_CLUSTER_PEERS_MAX  64u /* misbehaving or refused peers that are remembered */
#define DT_CLUSTER_LIVES_MAX  4u
#define DT_CLUSTER_ID_SIZE    16u
#define DT_CLUSTER_REPLY_MAX  (16u << 20) /* arena of an admin reply */
#define DT_CLUSTER_TEXT_SIZE  513u        /* an event's or a refusal's text */
#define DT_CLUSTER_PERSON_MAX 255u

/* Events of one source: `level` of them now, `rate_ns` for one more, `max` at most. */
typedef struct dt_bucket {
    int64_t filled_ns;
    uint32_t level;
    uint64_t suppressed; /* since the last that was let through */
} dt_bucket_t;

/* A device that a node has or had. */
typedef struct dt_known_device {
    char uuid[64]; /* "" : known by backend and index */
    char backend[32];
    char kind[16];
    uint32_t index;
    bool is_missing;
    int64_t missing_since_wall_ms;
    Dtorch__V1__Device__Health health;
    uint64_t hash;   /* over the kept fields */
    uint8_t *packed; /* Device with the kept fields only, owned */
    size_t packed_size;
} dt_known_device_t;

struct dt_stream;

/* What was taken from one incarnation of a node. Some are kept: a process that lost its identity to
 * another for a while sends again what was not acknowledged. */
typedef struct dt_life {
    uint64_t incarnation;     /* 0: none */
    uint64_t engine_sequence; /* of the newest engine event taken */
} dt_life_t;

typedef struct dt_label {
    char key[64];
    char value[64];
} dt_label_t;

typedef struct dt_node {
    uint8_t id[DT_CLUSTER_ID_SIZE];
    char name[64];
    struct dt_node *next_by_id; /* chain of the hash */

    /* set by people */
    Dtorch__V1__NodeIntent__Admin admin;
    char reason[257];
    char reason_by[DT_CLUSTER_PERSON_MAX + 1];
    int64_t reason_wall_ms;
    dt_label_t *labels; /* owned, sorted by key */
    uint32_t label_count;

    /* observed */
    Dtorch__V1__NodeHealth health;
    char health_text[256];
    int64_t health_since_wall_ms;
    int64_t health_since_ns;
    struct dt_stream *stream; /* welcomed, or NULL */
    dt_lease_t lease;         /* valid while there is a stream */
    dt_lease_rules_t rules;   /* that the Welcome told */
    int64_t next_beat_ns;
    uint64_t beat_sequence;
    bool is_stuck;
    uint64_t generation; /* of the last change that sessions should know */

    /* from the hello */
    uint64_t incarnation;
    uint32_t session_count;
    uint32_t pid;
    char build[65], boot_id[37], config_hash[17], rack[64], address[96];
    int64_t clock_offset_ms, connected_wall_ms, certificate_not_after_wall_ms;

    /* from the inventory */
    uint8_t *inventory; /* packed Inventory, owned; NULL before the first */
    size_t inventory_size;
    dt_known_device_t *devices; /* owned, by index */
    uint32_t device_count;
    uint32_t devices_missing, devices_failed, devices_degraded;
    uint32_t engines_busy;
    uint8_t busy[DT_CLUSTER_DEVICES_MAX]; /* percent, by the order of `inventory`, from a beat */
    uint32_t busy_count;

    /* engine events */
    dt_life_t lives[DT_CLUSTER_LIVES_MAX]; /* newest first; lives[0] is the current incarnation */
    uint64_t engine_journal_sequence;      /* the journal's for the newest event taken */
    dt_list_t ack_link; /* in cluster.acks while something is to be acknowledged */

    /* record */
    dt_list_t dirty_link; /* in cluster.dirty while the journal lacks the newest state */
    bool is_recorded;     /* the journal has some state of it */
    int64_t recorded_ns;  /* when the last record went out */
    dt_bucket_t bucket;   /* of its events */
} dt_node_t;

typedef enum dt_stream_state {
    DT_STREAM_NEW = 0, /* nothing said yet */
    DT_STREAM_HELD,    /* hello waits for the epoch to be durable */
    DT_STREAM_WELCOMED,
} dt_stream_state_t;

/* What a hello says, kept while it is held. */
typedef struct dt_hello {
    uint8_t node_id[DT_CLUSTER_ID_SIZE];
    uint8_t cluster_id[DT_CLUSTER_ID_SIZE];
    bool has_cluster_id;
    char node_name[64], build[65], boot_id[37], config_hash[17], rack[64];
    uint64_t incarnation, epoch_seen;
    int64_t wall_ms;
    uint32_t pid;
} dt_hello_t;

typedef struct dt_stream {
    uint64_t id;
    struct dt_stream *next_by_id;
    dt_list_t link; /* in cluster.streams, by age */
    dt_stream_state_t state;
    int64_t opened_ns;
    dt_node_t *node; /* if WELCOMED */
    char address[96];
    char certificate_name[64];
    int64_t certificate_not_after_wall_ms;
    int32_t pid;
    dt_hello_t hello; /* if HELD */
} dt_stream_t;

/* An event in memory. */
typedef struct dt_stored_event {
    uint64_t sequence;
    uint64_t journal_sequence; /* 0: durable since before the start */
    int64_t wall_ms;
    Dtorch__V1__Severity severity;
    char node[64];
    uint8_t *packed; /* Event, owned */
    size_t packed_size;
} dt_stored_event_t;

/* A peer that was refused or that misbehaved. */
typedef struct dt_offender {
    char key[160];  /* host and kind of offence */
    char text[256]; /* of the last one */
    char address[96];
    int64_t event_ns; /* of the last event about it */
    int64_t last_ns, last_wall_ms, first_wall_ms;
    uint64_t count, suppressed;
    bool is_malicious;  /* malformed and the like, not a mere refusal */
    dt_bucket_t answer; /* refusals that were explained to it */
} dt_offender_t;

typedef struct dt_token {
    char id[32];
    uint8_t secret_sha256[32];
    char node_name[64];
    char by[DT_CLUSTER_PERSON_MAX + 1];
    int64_t created_wall_ms, expires_wall_ms;
    int64_t expires_ns; /* monotonic; rules */
    uint32_t uses_left;
    bool is_revoked;
    uint8_t user_id[16]; /* of its last use; user_name "": none */
    char user_name[64];
} dt_token_t;

typedef struct dt_key {
    char id[32];
    uint8_t secret_sha256[32];
    char name[64];
    char by[DT_CLUSTER_PERSON_MAX + 1];
    char reason[257];
    int64_t created_wall_ms, expires_wall_ms; /* 0: never */
    int64_t expires_ns;                       /* monotonic; rules */
    bool is_revoked;
    int64_t revoked_wall_ms;
    char revoked_by[DT_CLUSTER_PERSON_MAX + 1];
    char revoked_reason[257];
    uint64_t uses;
    int64_t used_wall_ms;
    char used_from[96];
    int64_t recorded_ns; /* when the last record went out */
} dt_key_t;

typedef struct dt_request {
    char id[65];
    uint64_t hash; /* of what was asked */
    int64_t wall_ms;
    uint64_t journal_sequence; /* 0: durable since before the start */
} dt_request_t;

typedef struct dt_queued_action {
    dt_list_t link;
    dt_cluster_action_t action;
    char text[DT_CLUSTER_TEXT_SIZE];
    uint8_t data[]; /* action.data, or a packed Event */
} dt_queued_action_t;

/* A reply that waits for its records. */
typedef struct dt_pending {
    dt_list_t link;
    uint64_t journal_sequence;
    dt_queued_action_t *reply; /* owned, made beforehand */
} dt_pending_t;

struct dt_cluster {
    /* options */
    char name[64], build[65], config_hash[17], worker_config_hash[17];
    dt_lease_rules_t rules;
    int64_t rejoin_grace_ns, hello_timeout_ns;
    uint32_t nodes_max, streams_max, events_max, admin_pending_max, journal_pending_max;

    /* identity and time */
    uint8_t id[DT_CLUSTER_ID_SIZE];
    uint64_t epoch;          /* of this start; of the last one before dt_cluster_start() */
    uint64_t epoch_sequence; /* journal's, of the epoch's record */
    bool is_started, is_ready, is_stopping;
    bool journal_is_failing;
    int64_t now_ns, wall_ms; /* of the last input */
    int64_t started_ns, started_wall_ms;
    int64_t wall_base_ms; /* wall - monotonic, at the last look; a change is a jump */
    int64_t jump_event_ns;
    dt_lease_clock_t clock;
    int64_t grace_until_ns; /* UNKNOWN nodes are DEAD after it; 0: judged already */

    /* members */
    dt_node_t **nodes; /* by name */
    uint32_t node_count;
    dt_node_t **buckets; /* by id; bucket_mask + 1 of them */
    dt_stream_t **stream_buckets;
    uint32_t bucket_mask, stream_mask, stream_count;
    dt_list_t streams, dirty, acks;

    /* events */
    dt_stored_event_t *events; /* ring of events_max */
    uint32_t events_head, events_count;
    uint64_t event_sequence, event_visible, event_lost_before;
    uint64_t events_by_severity[6], events_suppressed, events_dropped, events_dropped_told;
    dt_bucket_t event_bucket;
    int64_t dropped_since_wall_ms;
    dt_offender_t offenders[DT_CLUSTER_PEERS_MAX];

    /* journal */
    uint64_t journal_issued, journal_durable;
    uint64_t journal_bytes_max;
    uint64_t journal_bytes;         /* of all issued records */
    uint64_t journal_bytes_durable; /* of all durable ones */
    uint64_t *journal_ends;         /* journal_bytes behind a record, by its sequence; as many as
                                       may be pending, and one */
    char journal_text[256];
    int64_t journal_failing_since_wall_ms;

    /* sessions */
    uint64_t generation;
    uint64_t session_first;    /* of this start */
    uint64_t session_wanted;   /* asked for */
    uint64_t session_reserved; /* in the journal, by the record session_sequence */
    uint64_t session_limit;    /* durable */
    uint64_t session_sequence;

    /* admin */
    dt_token_t tokens[DT_CLUSTER_TOKENS_MAX];
    uint32_t token_count;
    dt_key_t keys[DT_CLUSTER_KEYS_MAX];
    uint32_t key_count;
    uint64_t key_refusals[DT_KEY_VERDICT_COUNT];
    dt_request_t *requests; /* ring of DT_CLUSTER_REQUESTS_MAX */
    uint32_t requests_head, requests_count;
    dt_list_t pending;
    uint32_t pending_count;

    /* out */
    dt_list_t actions;
    dt_queued_action_t *polled;
    dt_arena_t event_arena; /* of the polled event */
    uint64_t actions_lost;  /* for want of memory */
    uint8_t *snapshot_data;
    char request_summary[64]; /* of the request that a snapshot writes */
    uint64_t welcomes, refusals, beats_received, beats_sent, malformed;
};

/* cluster.c */
/* Each input begins with it: monotonic time, and the wall clock's by the last tick. */
void dt_cluster_set_now(dt_cluster_t *cluster, int64_t now_ns);
dt_queued_action_t *dt_cluster_action_new(dt_cluster_t *cluster, dt_cluster_action_kind_t kind,
                                          size_t size);
void dt_cluster_push(dt_cluster_t *cluster, dt_queued_action_t *queued);
void dt_cluster_send(dt_cluster_t *cluster, uint64_t stream, const Dtorch__V1__WorkerDown *down,
                     bool is_beat);
/* Room in the journal that a use may take: events least, people's changes most. */
typedef enum dt_journal_use {
    DT_JOURNAL_EVENT,
    DT_JOURNAL_NODE,
    DT_JOURNAL_ADMIN,
} dt_journal_use_t;
bool dt_cluster_journal_has_room(const dt_cluster_t *cluster, dt_journal_use_t use, uint32_t count);
/* Returns the record's sequence, 0 if there was no room or no memory. */
uint64_t dt_cluster_journal(dt_cluster_t *cluster, dt_journal_use_t use,
                            const Dtorch__V1__StateRecord *record);
bool dt_bucket_take(dt_bucket_t *bucket, int64_t now_ns, uint32_t max, int64_t rate_ns);

/* cluster_nodes.c */
dt_node_t *dt_cluster_node_by_id(const dt_cluster_t *cluster, const uint8_t *id);
dt_node_t *dt_cluster_node_by_name(const dt_cluster_t *cluster, const char *name);
dt_node_t *dt_cluster_node_add(dt_cluster_t *cluster, const uint8_t *id, const char *name);
dt_status_t dt_cluster_node_rename(dt_cluster_t *cluster, dt_node_t *node, const char *name);
void dt_cluster_node_remove(dt_cluster_t *cluster, dt_node_t *node);
void dt_cluster_node_free(dt_node_t *node);
uint32_t dt_cluster_node_index_above(const dt_cluster_t *cluster, const char *name);
void dt_cluster_node_set_health(dt_cluster_t *cluster, dt_node_t *node,
                                Dtorch__V1__NodeHealth health, const char *text);
/* OK or DEGRADED by devices and progress; only for a node that is heard. */
void dt_cluster_node_judge(dt_cluster_t *cluster, dt_node_t *node);
/* DRAINING <-> DRAINED by what runs there. */
void dt_cluster_node_settle_drain(dt_cluster_t *cluster, dt_node_t *node);
void dt_cluster_node_send_intent(dt_cluster_t *cluster, dt_node_t *node);
void dt_cluster_node_dirty(dt_cluster_t *cluster, dt_node_t *node);
/* Write the node's record now. Returns the journal's sequence or 0. */
uint64_t dt_cluster_node_record(dt_cluster_t *cluster, dt_node_t *node, dt_journal_use_t use);
void dt_cluster_flush_dirty(dt_cluster_t *cluster);
void dt_cluster_check_leases(dt_cluster_t *cluster);
void dt_cluster_send_beats(dt_cluster_t *cluster);
void dt_cluster_send_acks(dt_cluster_t *cluster);
/* The life of an incarnation, moved to the front; a new one pushes the oldest out. */
dt_life_t *dt_cluster_node_life(dt_node_t *node, uint64_t incarnation);
bool dt_cluster_node_is_heard(const dt_node_t *node);
const char *dt_cluster_health_text(Dtorch__V1__NodeHealth health);
const char *dt_cluster_admin_text(Dtorch__V1__NodeIntent__Admin admin);

/* cluster_sessions.c */
void dt_cluster_node_moved(dt_cluster_t *cluster, dt_node_t *node);
void dt_cluster_sessions_durable(dt_cluster_t *cluster);
void dt_cluster_fill_state(dt_cluster_t *cluster, Dtorch__V1__ClusterState *ret_state);

/* cluster_state.c */
/* Fill a record that borrows from the node and from `arena`. */
dt_status_t dt_cluster_node_fill_state(dt_node_t *node, dt_arena_t *arena,
                                       Dtorch__V1__NodeState *ret_state);

/* cluster_streams.c */
dt_stream_t *dt_cluster_stream_find(const dt_cluster_t *cluster, uint64_t id);
void dt_cluster_stream_remove(dt_cluster_t *cluster, dt_stream_t *stream);
/* CLOSE and forget the stream. The node, if any, has none then. */
void dt_cluster_stream_end(dt_cluster_t *cluster, dt_stream_t *stream, const char *text);
void dt_cluster_stream_refuse(dt_cluster_t *cluster, dt_stream_t *stream,
                              Dtorch__V1__Refusal__Code code, bool retry, const char *text);
void dt_cluster_admit_held(dt_cluster_t *cluster);
void dt_cluster_check_hellos(dt_cluster_t *cluster);

/* cluster_devices.c */
void dt_cluster_take_inventory(dt_cluster_t *cluster, dt_node_t *node,
                               const Dtorch__V1__Inventory *inventory);
/* How busy the devices of the newest inventory are, `count` of at most 64 percents. */
void dt_cluster_take_busy(dt_node_t *node, const uint8_t *percents, uint32_t count);
void dt_cluster_devices_free(dt_node_t *node);
dt_status_t dt_cluster_device_restore(dt_node_t *node, const Dtorch__V1__Device *device,
                                      int64_t missing_since_wall_ms);
void dt_cluster_devices_count(dt_node_t *node);

/* cluster_events.c */
typedef struct dt_event_draft {
    Dtorch__V1__Event event;
    Dtorch__V1__EventField fields[16];
    Dtorch__V1__EventField *field_list[16];
    char values[16][256];
    char text[DT_CLUSTER_TEXT_SIZE];
    dt_node_t *node;
    bool is_unbounded; /* made by people or by the controller itself: no rate */
} dt_event_draft_t;
/* `name` must be a literal. `node` may be NULL. */
void dt_event_begin(dt_event_draft_t *draft, Dtorch__V1__Severity severity, const char *name,
                    dt_node_t *node);
void dt_event_field(dt_event_draft_t *draft, const char *key, const char *fmt, ...)
    DT_PRINTF_LIKE(3, 4);
/* Give it out: log, ring, journal, if the rate allows. Returns the journal's sequence, or 0 if it
 * is not kept. */
uint64_t dt_event_end(dt_cluster_t *cluster, dt_event_draft_t *draft, const char *fmt, ...)
    DT_PRINTF_LIKE(3, 4);
dt_status_t dt_cluster_event_restore(dt_cluster_t *cluster, const Dtorch__V1__Event *event);
void dt_cluster_events_durable(dt_cluster_t *cluster);
void dt_cluster_events_tick(dt_cluster_t *cluster);
void dt_cluster_events_free(dt_cluster_t *cluster);
/* Index of the first event in memory with a sequence above this one. */
uint32_t dt_cluster_event_index_above(const dt_cluster_t *cluster, uint64_t sequence);
const dt_stored_event_t *dt_cluster_event_at(const dt_cluster_t *cluster, uint32_t index);
/* Note a refused or misbehaving peer; one event at first, then one a minute with the count. `kind`
 * "session": a program, and node_name is what is wrong with its key. */
void dt_cluster_offence(dt_cluster_t *cluster, const char *address, const char *kind,
                        const char *node_name, const char *text, bool is_malicious);

/* Whether a peer that was noted may be told why once more: 10 times, then once in 6 s. */
bool dt_cluster_offender_may_ask(dt_cluster_t *cluster, const char *address, const char *kind);

/* cluster_tokens.c */
/* In a time that does not depend on where the bytes differ. */
bool dt_cluster_secrets_are_equal(const uint8_t a[32], const uint8_t b[32]);
/* A restored end on the wall clock as a monotonic one. */
int64_t dt_cluster_expiry_ns(const dt_cluster_t *cluster, int64_t created_wall_ms,
                             int64_t expires_wall_ms);
/* Turn the restored tokens' wall times into monotonic ones. */
void dt_cluster_tokens_start(dt_cluster_t *cluster);
dt_token_t *dt_cluster_token_find(dt_cluster_t *cluster, const char *id);
dt_status_t dt_cluster_token_restore(dt_cluster_t *cluster, const Dtorch__V1__TokenState *state);
void dt_cluster_token_fill(dt_token_t *token, Dtorch__V1__TokenInfo *ret_info);
void dt_cluster_token_state(dt_token_t *token, Dtorch__V1__TokenInfo *info,
                            Dtorch__V1__TokenState *ret_state);

/* cluster_keys.c */
void dt_cluster_keys_start(dt_cluster_t *cluster);
dt_status_t dt_cluster_key_restore(dt_cluster_t *cluster, const Dtorch__V1__KeyState *state);
void dt_cluster_key_state(dt_key_t *key, Dtorch__V1__KeyInfo *info,
                          Dtorch__V1__KeyState *ret_state);
/* Count and tell a refusal. */
void dt_cluster_refused_session(dt_cluster_t *cluster, dt_key_verdict_t verdict,
                                const char *address, const char *text);
void dt_cluster_count_keys(const dt_cluster_t *cluster, dt_cluster_counts_t *ret_counts);

/* cluster_admin.c */
/* Answer now, without data. */
void dt_cluster_reply_error(dt_cluster_t *cluster, uint64_t ticket, dt_status_t status,
                            const char *fmt, ...) DT_PRINTF_LIKE(4, 5);
/* Answer with a message once `journal_sequence` is durable (now if it is). `message` NULL: none. */
void dt_cluster_reply_when_durable(dt_cluster_t *cluster, uint64_t ticket,
                                   uint64_t journal_sequence, const ProtobufCMessage *message);
void dt_cluster_replies_durable(dt_cluster_t *cluster);
/* Whether a change may be made: started, journal healthy, room. Answers the ticket if not. */
bool dt_cluster_admin_may_change(dt_cluster_t *cluster, uint64_t ticket, uint32_t records);
/* Whether a secret may be made: the request is sound, was not carried out, and may change things.
 * `what` it is: "token". Answers the ticket if not. */
bool dt_cluster_admin_may_issue(dt_cluster_t *cluster, uint64_t ticket,
                                const ProtobufCMessage *request, const char *request_id,
                                const char *what);
const dt_request_t *dt_cluster_request_find(const dt_cluster_t *cluster, const char *id);
/* Remember and journal a request id; "" is none. Returns the journal's sequence or 0. */
uint64_t dt_cluster_request_record(dt_cluster_t *cluster, const char *id, uint64_t hash);
void dt_cluster_request_fill(dt_cluster_t *cluster, uint32_t index,
                             Dtorch__V1__RequestState *ret_state);
dt_status_t dt_cluster_request_restore(dt_cluster_t *cluster,
                                       const Dtorch__V1__RequestState *state);
void dt_cluster_person(char *out, size_t out_size, const char *known, const char *said);

/* cluster_view.c */
dt_status_t dt_cluster_node_list_of(const dt_cluster_t *cluster, char **names, size_t count,
                                    bool with_devices, dt_arena_t *arena, int64_t now_ns,
                                    Dtorch__V1__NodeList **ret_list);

#endif
