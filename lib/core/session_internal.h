/* The session machine's inside, shared by the session*.c files:
 *   session.c         life, streams, actions, time
 *   session_client.c  hello, welcome, resume, refusals, beats, acks, queries, results' confirmation
 *   session_frame.c   frames: order, what each record does, what nodes get of it
 *   session_table.c   tensors, storages, signatures, futures, causes of one session
 *   session_mesh.c    meshes and layouts, whether a signature's are right, plans of moves
 *   session_link.c    links: sending, Executed, results, statistics
 *   session_place.c   nodes, binding of vdevs, loss
 *   session_bulk.c    relay of transfers
 *   session_view.c    events, what people see
 *   session_tensors.c lists of live tensors
 *   session_plans.c   signatures and meshes for who asks what they mean */
#ifndef DT_CORE_SESSION_INTERNAL_H
#define DT_CORE_SESSION_INTERNAL_H
#include "base/list.h"
#include "core/session.h"
#include "dtorch/v1/worker.pb-c.h"
#include "shard/layout.h"
#include "shard/redistribute.h"
#include "shard/rules.h"
#include "wire/frame.h"
#include "wire/record.h"
#include "wire/signature.h"
#include "wire/wire.h"

#define DT_SESSION_SECOND_NS      INT64_C(1000000000)
#define DT_SESSION_BUCKETS        1024u
#define DT_SESSION_KEY_ID         32u /* bytes of an API key's id, with the NUL */
#define DT_SESSION_RECORDS_MAX    (DT_FRAME_BYTES_MAX / 2)
#define DT_SESSION_ENVELOPE_BYTES 8u /* room in front of a packet's frame for its envelope */
#define DT_SESSION_SCRATCH_BYTES  (1u << 20)
#define DT_SESSION_MERGE_PACKETS  64u   /* of them wait before small frames are merged */
#define DT_SESSION_MERGE_BYTES    4096u /* of a merged packet */
#define DT_SESSION_LIVE_SIGS_MAX  16384u
#define DT_SESSION_SEEDS_MAX      256u
#define DT_SESSION_RANGES_MAX     16u
#define DT_SESSION_TRANSFERS_MAX  65536u
#define DT_SESSION_FAULTS_MAX     16u
#define DT_SESSION_FAULT_IDS      10000u
#define DT_SESSION_OP_RESULT      4096u
#define DT_SESSION_TICKETS_MAX    64u
#define DT_SESSION_LIST_NS        DT_SESSION_SECOND_NS        /* nodes have to answer ListTensors */
#define DT_SESSION_UNSERVED_NS    (60 * DT_SESSION_SECOND_NS) /* a node has to dial its link */
#define DT_SESSION_ARENA_MAX      (32u << 20)

/* Strings of messages that are packed at once and never written to. */
#define DT_SESSION_TEXT(text) ((char *)(uintptr_t)(text))

/* ---- tables of one session (session_table.c) ---- */

/* id -> value; open addressing in groups that follow each other, so that ids given out in a row lie
 * in a row; groups are spread by a secret factor, so that a peer cannot choose ids that collide. */
typedef struct dt_session_entry {
    uint64_t id; /* 0: empty */
    uint32_t value;
    uint32_t extra; /* of a tensor: its spot; DT_SESSION_NAMED: a FREE names it */
} dt_session_entry_t;
#define DT_SESSION_NAMED (UINT32_C(1) << 31)

typedef struct dt_session_map {
    dt_session_entry_t *entries; /* mask + 1; NULL before the first */
    uint64_t mask;
    uint64_t count;
    uint64_t factor; /* odd */
} dt_session_map_t;

typedef struct dt_session_storage {
    uint64_t version; /* sequence of the record that wrote it last */
    uint32_t refs;    /* tensors; free ones: next free */
    uint32_t cause;   /* poisoned or lost, 1 + index in causes; 0: neither */
    uint32_t spot;    /* of its first tensor */
} dt_session_storage_t;

/* Where a tensor lies, by number: below vdev_count that device alone, from there on a layout on a
 * mesh of several. */
typedef struct dt_session_spot {
    dt_layout_t layout;
    uint32_t cause; /* of a device of the mesh that has none now; 0: all have */
} dt_session_spot_t;

/* One step of a move, as it is counted. */
typedef struct dt_session_move {
    uint32_t kind; /* dt_shard_step_kind_t */
    uint64_t bytes;
} dt_session_move_t;

/* What nodes get of a signature. */
typedef struct dt_session_plan {
    const uint8_t *body;            /* as it came */
    const uint8_t *steps;           /* of a move, as DEF_PLAN has them; NULL: a plan of none */
    const dt_session_move_t *moves; /* (move_count) those steps */
    uint32_t body_bytes, step_bytes, move_count;
} dt_session_plan_t;

/* What a signature means for the tables. */
typedef struct dt_session_signature {
    uint32_t input_count, output_count, scalar_count; /* that an OP must have */
    uint32_t spot;                                    /* of all its tensors, if is_uniform */
    uint32_t cause;                                   /* refused by name; 0: not */
    uint32_t write_count; /* inputs that it writes: the first ones of `links` */
    bool has_views;       /* behind them: for each output 1 + input that it is a view of, or 0 */
    bool is_uniform; /* else behind those: spots of the inputs, then of the outputs with an id */
    bool is_told;    /* the client knows that it is refused */
    char *name;
    dt_session_plan_t plan; /* owned */
    uint32_t links[];
} dt_session_signature_t;

typedef struct dt_session_mesh {
    dt_shard_mesh_t shard; /* count 0: not defined */
    uint64_t *vdevs;       /* (shard.count) */
    char *shape;           /* "(dp=2, tp=2)", for people; NULL for mesh 0 */
    uint8_t *body;         /* as it came; NULL for mesh 0 */
    uint32_t body_bytes;
    uint32_t cause; /* a device of it is lost: that one's; 0: none is */
} dt_session_mesh_t;

typedef struct dt_session_seed {
    uint64_t stream, seed, offset;
} dt_session_seed_t;

typedef struct dt_session_future {
    uint64_t future;
    uint64_t sequence; /* of the FETCH */
    uint32_t vdev;
    uint32_t size;     /* of `result` */
    uint8_t *result;   /* packed SessionDown, kept until confirmed; NULL: not there yet */
    bool has_transfer; /* its bytes follow, past us perhaps */
} dt_session_future_t;

/* An upload that is not whole. */
typedef struct dt_session_transfer {
    uint64_t transfer;
    uint64_t size;
    uint32_t vdev; /* UINT32_MAX: it is over */
} dt_session_transfer_t;

/* A record's fate on its way to the nodes. */
enum {
    DT_FATE_KEEP = 0,
    DT_FATE_PLAN, /* DEF_SIG becomes DEF_PLAN */
    DT_FATE_NOP,  /* nothing that a node may run */
    DT_FATE_CUT,  /* accepted before */
};

/* ---- frames on their way (session_frame.c, session_link.c) ---- */

typedef struct dt_session_packet {
    uint32_t refs;
    uint32_t count;
    uint64_t first;   /* sequence */
    uint64_t base;    /* of id deltas behind its last record */
    uint32_t payload; /* client's bytes that it gives back when executed */
    uint32_t size;    /* of the envelope, which begins at `start` */
    uint32_t start;
    uint8_t bytes[];
} dt_session_packet_t;

typedef struct dt_session_engine {
    uint32_t device;
    uint32_t vdev; /* the first one there */
    uint64_t executed;
} dt_session_engine_t;

struct dt_session;
struct dt_session_place;

typedef struct dt_session_stat {
    uint64_t count, device_ns, bytes, errors;
} dt_session_stat_t;

/* Sums by operator's name. Zero is empty. */
typedef struct dt_session_stats {
    char **names;
    dt_session_stat_t *sums;
    uint32_t count;
    uint32_t *index; /* hash, 1 + index */
} dt_session_stats_t;

#define DT_SESSION_REPORTERS_MAX 64u /* engines of one instance; more do not count */

/* What one engine of a link said last: it tells of what it did itself. */
typedef struct dt_session_reporter {
    uint32_t engine;          /* its process id on the node */
    dt_session_stat_t *stats; /* by index of the session's names */
    uint32_t stat_count;
    uint64_t memory_bytes, memory_peak_bytes, tensors;
    uint64_t operators, device_ns;             /* all of `stats` */
    uint64_t since_operators, since_device_ns; /* at since_ns */
    int64_t since_ns;                          /* the report that rates are from; 0: none yet */
    int64_t told_ns;                           /* the last report of operators */
    double operators_per_s, device_ns_per_s;   /* negative: not known yet */
} dt_session_reporter_t;

/* One instance of a session on a node. */
typedef struct dt_session_link {
    dt_list_t list;      /* in session.links */
    dt_list_t node_list; /* in place.links */
    struct dt_session *session;
    struct dt_session_place *place;
    uint64_t stream; /* 0: not connected */
    uint8_t key[DT_SESSION_KEY_BYTES];
    uint64_t join;     /* first sequence of the session that concerns it */
    uint32_t round;    /* of binding; vdevs bound later get a link of their own */
    uint64_t start;    /* sequence before its first record, of the prelude if it has one */
    uint64_t sent;     /* last sequence sent */
    uint64_t executed; /* by all of its engines */
    uint64_t inflight_bytes;
    dt_session_packet_t **prelude; /* packets of its own, before `join`; NULL when executed */
    uint32_t prelude_count;
    /* Packets count from 0: those of the prelude, then the session's from join_index on. */
    uint64_t join_index, next, done; /* next to send, first that is not executed */
    uint64_t up_count, up_told;      /* messages taken, and how many the node knows of */
    uint64_t up_bytes;               /* since it was told */
    int64_t unserved_ns;             /* since when it has no stream */
    dt_session_engine_t *engines;
    uint32_t engine_count;
    dt_session_reporter_t *reporters; /* its engines, as they report */
    uint32_t reporter_count;
    uint8_t *door; /* the node's latest DataDoor, as SessionDown; NULL: none */
    uint32_t door_bytes;
    uint64_t gone_from; /* number of the session's next gone one when it began */
    uint8_t *peer;      /* the node's PeerDoor, as WorkerSessionDown; NULL: none */
    uint32_t peer_bytes;
    uint64_t memory_bytes, memory_peak_bytes, tensors, operators, device_ns; /* of all of them */
    int64_t memory_ns; /* when memory was; 0: never */
} dt_session_link_t;

typedef struct dt_session_vdev {
    struct dt_session_place *place; /* NULL: lost, no device */
    dt_session_link_t *link;
    uint32_t device;
    uint32_t cause; /* of its loss, when link is NULL */
    char kind[16];
    char backend[32];
} dt_session_vdev_t;

/* A node's instance that is over, for those that were there then and may not have heard it. */
typedef struct dt_session_gone {
    uint64_t number; /* rising */
    char node[64];
    uint32_t size;
    uint8_t *packed; /* WorkerSessionDown with a PeerDoor, owned */
} dt_session_gone_t;

typedef struct dt_session_query {
    dt_list_t list;
    uint64_t query;
    uint32_t vdev;
    uint32_t size; /* packed WorkerSessionDown */
    uint8_t bytes[];
} dt_session_query_t;

typedef struct dt_session_bucket {
    int64_t since_ns;
    uint32_t count; /* in the second that began then */
} dt_session_bucket_t;

typedef struct dt_session {
    uint64_t id;
    struct dt_session *next_by_id;
    dt_list_t list; /* in sessions.all, by id */

    /* who */
    char program[128], build[65], address[112], host[37];
    int64_t started_ns, started_wall_ms;
    uint64_t memory_limit;
    uint64_t features;
    struct dt_session_stream *stream; /* of the client; NULL: AWAY */
    dt_list_t bulks;                  /* streams of kind BULK */
    int64_t away_since_ns;
    uint64_t resumes;
    char key[DT_SESSION_KEY_ID]; /* of the API key that it began with, "" none */
    char key_name[64];
    uint8_t token_hash[DT_SESSION_HASH_BYTES];
    uint8_t old_token_hash[DT_SESSION_HASH_BYTES];

    /* order and flow */
    uint64_t next_sequence;
    uint64_t executed;   /* by all nodes */
    uint64_t bytes;      /* payload accepted */
    uint64_t bytes_done; /* of them executed by all */
    uint64_t window_bytes;
    uint64_t node_window_bytes;
    uint64_t results_bytes_max;
    uint64_t ack_sequence, ack_credit; /* as last sent */
    uint64_t bytes_acked;
    int64_t ack_due_ns;          /* 0: none is due */
    dt_list_t ack_list;          /* in sessions.acks */
    dt_session_packet_t **queue; /* accepted, not executed by all: (queue_count) from queue_head */
    uint32_t queue_head, queue_count, queue_cap;
    uint64_t queue_first; /* index of the first since the session began */
    dt_session_bucket_t syncs, beats, rebinds;

    /* tables */
    dt_session_map_t tensors;         /* id -> storage */
    dt_session_transfer_t *transfers; /* uploads, from transfer_head, rising */
    uint32_t transfer_head, transfer_count, transfer_cap;
    uint64_t next_tensor, last_future, last_transfer, last_query;
    uint32_t tensors_max;
    uint32_t node_window_records;
    dt_session_storage_t *storages;
    uint32_t storage_count, storage_cap, storage_free, storages_live;
    dt_session_signature_t **signatures; /* by id; NULL: not defined */
    uint32_t signature_cap, signatures_live;
    dt_session_mesh_t *meshes; /* by id */
    uint32_t mesh_cap;
    dt_session_spot_t *spots; /* from number vdev_count on */
    uint32_t spot_count, spot_cap;
    uint32_t *spot_index; /* open addressing: 1 + index; (2 * spot_cap) */
    uint32_t seed_count;
    uint64_t definition_bytes;
    uint64_t
        plan_work; /* that may be spent on choosing steps of moves, as it was at plan_work_ns */
    int64_t plan_work_ns; /* 0: nothing was spent yet */
    dt_session_seed_t *seeds;
    dt_session_future_t *futures; /* from future_head, rising */
    uint32_t future_head, future_count, future_cap;
    uint32_t future_answered; /* of them, the first ones: a lower bound */
    uint64_t futures_done;
    uint64_t results_bytes;             /* kept */
    Dtorch__V1__OperatorError **causes; /* each its own, packed apart */

    /* nodes */
    dt_session_vdev_t *vdevs;
    uint32_t vdev_count;
    bool is_one_device; /* all vdevs are bound to one */
    uint32_t bind_round;
    uint32_t unbound;   /* vdevs without a device */
    uint32_t stillborn; /* engines in a row that were lost before they executed anything */
    dt_list_t links;
    dt_session_gone_t *gone; /* by number; one of a node, while a link lives that was there */
    uint32_t gone_count, gone_cap;
    uint64_t gone_next;
    dt_list_t queries;
    uint32_t query_count;
    uint32_t cause_count;
    uint64_t query_bytes;

    /* what people see */
    struct {
        uint8_t *packed; /* SessionDown with a Poison */
        uint32_t size;
        bool is_told;                /* the client got it */
    } errors[DT_SESSION_ERRORS_MAX]; /* ring */
    uint32_t error_head, error_count;
    uint64_t error_total;
    struct {
        uint8_t *packed; /* SessionDown */
        uint32_t size;
    } faults[DT_SESSION_FAULTS_MAX]; /* that wait for the client to come back */
    uint32_t fault_count;
    dt_session_stats_t stats;
    uint64_t memory_mib_ms; /* memory times time, as the nodes report */
    dt_session_moved_t moves[DT_SESSION_MOVE_KINDS];
    uint64_t operators, frames, steps, step;
    int64_t step_ns;
    char ranges[DT_SESSION_RANGES_MAX][128];
    uint32_t range_depth;           /* may be above DT_SESSION_RANGES_MAX */
    struct dt_session_trace *trace; /* NULL: nobody wants to know its times */
    bool has_old_token;
} dt_session_t;

/* ---- streams ---- */

typedef struct dt_session_stream {
    uint64_t id;
    struct dt_session_stream *next_by_id;
    dt_list_t list; /* in sessions.streams, by age */
    dt_list_t bulk_list;
    dt_session_stream_kind_t kind;
    int64_t opened_ns;
    char address[112];
    char key[DT_SESSION_KEY_ID]; /* CLIENT: of the API key that was shown */
    char key_name[64];
    char *why_not; /* CLIENT: owned; it may not begin a session. NULL: it may */
    char why_kind[16];
    dt_session_t *session;   /* after its hello */
    dt_session_link_t *link; /* LINK */
    dt_lease_t lease;        /* CLIENT */
    bool is_heard;           /* CLIENT: a message after the hello */
    uint64_t beat_sequence;
} dt_session_stream_t;

/* ---- nodes ---- */

typedef struct dt_session_place {
    char name[64];
    char boot_id[37];
    uint64_t incarnation, stream;
    bool takes_work, is_stopped;
    int64_t away_since_ns;        /* 0: connected */
    dt_session_device_t *devices; /* (device_count); owned, as thousands of nodes have few each */
    uint32_t *bound;              /* (device_count) vdevs */
    uint32_t device_count;
    dt_list_t links;
} dt_session_place_t;

/* A ListTensors that waits for nodes. */
typedef struct dt_session_ask {
    dt_list_t list;
    uint64_t ticket;
    uint64_t job; /* 0: all */
    uint32_t limit;
    int64_t deadline_ns;
    uint32_t waiting;  /* links */
    uint64_t *streams; /* (stream_count) that were asked; 0: answered */
    uint32_t *engines; /* (stream_count) there that have not answered */
    uint32_t stream_count;
    Dtorch__V1__TensorInfo **tensors; /* owned, each unpacked apart */
    uint32_t tensor_count, tensor_cap;
    bool is_cut;
} dt_session_ask_t;

typedef struct dt_session_queued {
    dt_list_t list;
    dt_session_action_t action;
    dt_session_packet_t *packet; /* action.data lies in it; a reference */
    char text[513];
    uint8_t data[];
} dt_session_queued_t;

struct dt_sessions {
    dt_sessions_options_t options;
    char build[65];
    uint64_t epoch;
    uint64_t number_first, number_next, number_limit, number_asked;
    bool is_started, is_stopping;
    int64_t now_ns, wall_ms, wall_at_ns;
    dt_list_t traces; /* by age */
    uint32_t trace_count;
    dt_lease_clock_t clock;
    uint64_t turns; /* progress of our beats */
    int64_t next_beat_ns;

    dt_session_t *buckets[DT_SESSION_BUCKETS];
    dt_list_t all;
    uint32_t session_count, away_count;
    dt_session_stream_t *stream_buckets[DT_SESSION_BUCKETS];
    dt_list_t streams;
    uint32_t stream_count, link_count;
    dt_list_t acks; /* sessions with an Ack due, by time */
    dt_session_place_t **places;
    uint32_t place_count, place_cap;
    dt_list_t asks;
    uint32_t ask_count;

    dt_list_t actions;
    dt_session_queued_t *polled;
    dt_arena_t arena;       /* of a message that came */
    dt_arena_t event_arena; /* of the polled event */
    dt_arena_t sig_arena;
    dt_shard_rules_t *rules; /* NULL before the first signature on a mesh */
    dt_frame_reader_t reader;
    dt_record_t record;
    uint8_t *fates;   /* (DT_SESSION_RECORDS_MAX) of the frame at hand */
    uint8_t *scratch; /* (DT_SESSION_SCRATCH_BYTES) */
    dt_sessions_counts_t counts;
    struct dt_session_usage *usage; /* of jobs that ended; NULL: none did */
};

/* session.c */
void dt_sessions_set_now(dt_sessions_t *sessions, int64_t now_ns);
dt_session_queued_t *dt_sessions_action(dt_sessions_t *sessions, dt_session_action_kind_t kind,
                                        size_t size);
void dt_sessions_push(dt_sessions_t *sessions, dt_session_queued_t *queued);
/* Send a message; it is packed at once. */
void dt_sessions_send(dt_sessions_t *sessions, uint64_t stream, const ProtobufCMessage *message);
/* Send a copy, and give it; NULL without memory. */
uint8_t *dt_sessions_send_bytes(dt_sessions_t *sessions, uint64_t stream, const uint8_t *data,
                                size_t size);
void dt_sessions_send_packet(dt_sessions_t *sessions, uint64_t stream, dt_session_packet_t *packet);
void dt_sessions_node_send(dt_sessions_t *sessions, uint64_t stream,
                           const Dtorch__V1__WorkerDown *down);
void dt_session_packet_unref(dt_session_packet_t *packet);
dt_session_stream_t *dt_sessions_stream(const dt_sessions_t *sessions, uint64_t id);
dt_session_t *dt_sessions_find(const dt_sessions_t *sessions, uint64_t id);
/* Forget a stream and end it at the caller's. */
void dt_session_stream_end(dt_sessions_t *sessions, dt_session_stream_t *stream, dt_status_t status,
                           const char *text);
int64_t dt_sessions_wall_ms(const dt_sessions_t *sessions);

/* session_usage.c */
void dt_session_drop_reporters(dt_session_link_t *link);
void dt_session_rates_show(const dt_session_t *session, Dtorch__V1__Job *job, int64_t now_ns);
void dt_session_take_stats(dt_session_link_t *link, const Dtorch__V1__SessionStats *stats,
                           int64_t now_ns);
void dt_session_stats_fini(dt_session_stats_t *stats);
/* Give them as messages, most device time first. False: no memory. */
bool dt_session_stats_show(const dt_session_stats_t *stats, dt_arena_t *arena,
                           Dtorch__V1__OperatorStats ***ret_list);
/* Keep what a job used that ends now. */
void dt_session_usage_keep(dt_sessions_t *sessions, const dt_session_t *session);
void dt_session_usage_free(struct dt_session_usage *usage);

/* session_client.c */
void dt_session_client_received(dt_sessions_t *sessions, dt_session_stream_t *stream,
                                const uint8_t *data, size_t size);
void dt_session_client_closed(dt_sessions_t *sessions, dt_session_stream_t *stream);
/* Refuse and end a client's stream; its session, if any, is AWAY then. */
void dt_session_refuse(dt_sessions_t *sessions, dt_session_stream_t *stream,
                       Dtorch__V1__Refusal__Code code, bool retry, dt_status_t status,
                       const char *text);
/* The same for what a sane client does not do: with an event. */
void dt_session_offend(dt_sessions_t *sessions, dt_session_stream_t *stream,
                       Dtorch__V1__Refusal__Code code, dt_status_t status, const char *kind,
                       const char *text);
bool dt_session_token_fits(dt_sessions_t *sessions, const dt_session_t *session,
                           const ProtobufCBinaryData *token);
bool dt_session_bucket_take(dt_session_bucket_t *bucket, int64_t now_ns, uint32_t per_second);
uint64_t dt_session_credit(const dt_session_t *session);
/* An Ack is due, at once or soon. */
void dt_session_ack(dt_sessions_t *sessions, dt_session_t *session, bool is_now);
void dt_sessions_ack_due(dt_sessions_t *sessions);
void dt_sessions_client_turn(dt_sessions_t *sessions);
/* Free everything and tell the nodes. */
void dt_session_finish(dt_sessions_t *sessions, dt_session_t *session, const char *reason);
void dt_session_free(dt_session_t *session);
void dt_session_send_down(dt_sessions_t *sessions, dt_session_t *session,
                          const Dtorch__V1__SessionDown *down);

/* session_frame.c */
void dt_session_frame(dt_sessions_t *sessions, dt_session_stream_t *stream, const uint8_t *bytes,
                      size_t size);
/* Definitions of a session so far as packets that end before its next record. */
dt_status_t dt_session_prelude(dt_sessions_t *sessions, dt_session_link_t *link);
dt_session_packet_t *dt_session_packet_new(const uint8_t *frame, size_t size, uint64_t first,
                                           uint32_t count);

/* session_table.c */
dt_status_t dt_session_tables_init(dt_session_t *session, uint64_t factor);
void dt_session_tables_fini(dt_session_t *session);
dt_session_entry_t *dt_session_map_find(const dt_session_map_t *map, uint64_t id);
bool dt_session_map_put(dt_session_map_t *map, uint64_t id, uint32_t value, uint32_t extra);
void dt_session_map_remove(dt_session_map_t *map, dt_session_entry_t *entry);
/* A new storage with one reference; UINT32_MAX without memory. */
uint32_t dt_session_storage_new(dt_session_t *session, uint32_t spot, uint64_t version,
                                uint32_t cause);
void dt_session_storage_unref(dt_session_t *session, uint32_t storage);
int dt_session_define_signature(dt_sessions_t *sessions, dt_session_t *session,
                                const dt_record_t *record);
void dt_session_drop_signature(dt_session_t *session, uint32_t id);
int dt_session_seed(dt_session_t *session, const dt_record_t *record);
int dt_session_future_add(dt_session_t *session, uint64_t future, uint32_t vdev, uint64_t sequence);
int dt_session_transfer_add(dt_session_t *session, uint64_t transfer, uint64_t size, uint32_t vdev);
dt_session_transfer_t *dt_session_transfer_find(dt_session_t *session, uint64_t transfer);
void dt_session_transfer_end(dt_session_t *session, dt_session_transfer_t *transfer);
dt_session_future_t *dt_session_future_find(dt_session_t *session, uint64_t future);
/* The oldest that has no answer, or NULL. */
const dt_session_future_t *dt_session_future_open(dt_session_t *session);
void dt_session_futures_done(dt_session_t *session, uint64_t future);
/* Keep a copy of a cause. Returns its number; with too many the last one's. */
uint32_t dt_session_cause(dt_session_t *session, const Dtorch__V1__OperatorError *error);
const Dtorch__V1__OperatorError *dt_session_cause_of(const dt_session_t *session, uint32_t cause);

/* session_mesh.c */
dt_status_t dt_session_meshes_init(dt_session_t *session);
void dt_session_meshes_fini(dt_session_t *session);
int dt_session_define_mesh(dt_session_t *session, const dt_record_t *record);
/* The number of a layout. Errors: E_LIMIT (its mesh is not defined, or there are too many), NOMEM.
 */
int dt_session_spot(dt_session_t *session, const dt_layout_t *layout, uint32_t *ret_spot);
/* NULL: it is one device. */
const dt_session_mesh_t *dt_session_spot_mesh(const dt_session_t *session, uint32_t spot);
uint32_t dt_session_spot_vdev(const dt_session_t *session, uint32_t spot); /* the first */
/* Why nothing can be put there now; 0: it can. */
uint32_t dt_session_spot_cause(const dt_session_t *session, uint32_t spot);
/* A device was lost or found. */
void dt_session_spots_update(dt_session_t *session);
/* Whether the inputs' layouts give those of the outputs, with lib/shard. Gives the steps of a move
 * and what is counted of it into `plan`, dt_session_steps_free(); there may be none.
 * Errors: INVALID (the text names what differs), NOMEM. */
dt_status_t dt_session_check_layouts(dt_sessions_t *sessions, dt_session_t *session,
                                     const dt_signature_t *decoded, dt_session_plan_t *plan,
                                     dt_error_t *err);
void dt_session_steps_free(dt_session_plan_t *plan);
/* The steps of a plan whose signature is gone. False: it is no good one. */
bool dt_session_steps_again(dt_sessions_t *sessions, dt_session_t *session,
                            dt_session_plan_t *plan);
/* Whether a value from the program can be put there. */
dt_status_t dt_session_check_upload(const dt_session_t *session, const dt_record_t *record,
                                    dt_error_t *err);

/* session_view.c */
Dtorch__V1__Job *dt_session_job(const dt_sessions_t *sessions, const dt_session_t *session,
                                dt_arena_t *arena, int64_t now_ns);

/* session_link.c */
void dt_session_link_received(dt_sessions_t *sessions, dt_session_stream_t *stream,
                              const uint8_t *data, size_t size);
/* Tell nodes what was taken of theirs. */
void dt_sessions_links_turn(dt_sessions_t *sessions);
void dt_session_link_closed(dt_sessions_t *sessions, dt_session_stream_t *stream);
dt_session_link_t *dt_session_link_new(dt_sessions_t *sessions, dt_session_t *session,
                                       dt_session_place_t *place);
void dt_session_link_remove(dt_sessions_t *sessions, dt_session_link_t *link, const char *reason);
void dt_session_link_open(dt_sessions_t *sessions, dt_session_link_t *link);
void dt_session_gone_fini(dt_session_t *session);
/* Which engines it has by the vdevs bound to it. */
void dt_session_link_engines(dt_session_link_t *link);
/* Send what may be sent, to all links of a session. */
void dt_session_pump(dt_sessions_t *sessions, dt_session_t *session);
/* Move `executed`, give credit, drop packets. */
void dt_session_settle(dt_sessions_t *sessions, dt_session_t *session);
/* Answer a fetch here. */
void dt_session_answer(dt_sessions_t *sessions, dt_session_t *session, uint64_t number,
                       uint32_t cause);
/* Answer the queries to vdevs that have no device. */
void dt_session_answer_queries(dt_sessions_t *sessions, dt_session_t *session);
void dt_session_note_error(dt_sessions_t *sessions, dt_session_t *session,
                           const Dtorch__V1__OperatorError *error);
void dt_sessions_asks_turn(dt_sessions_t *sessions);
void dt_session_ask_answered(dt_sessions_t *sessions, uint64_t stream,
                             const Dtorch__V1__SessionStats *stats, uint64_t session);
void dt_session_ask_free(dt_sessions_t *sessions, dt_session_ask_t *ask);

/* session_place.c */
/* Bind all vdevs of a new session. Errors: AGAIN (no such device is ready; text says what is). */
dt_status_t dt_session_bind(dt_sessions_t *sessions, dt_session_t *session,
                            const Dtorch__V1__SessionHello *hello, dt_error_t *err);
/* Take its vdevs off their devices. */
void dt_session_unbind(dt_session_t *session);
/* Lose these vdevs with this cause, bind them anew, tell the client. */
void dt_session_lose(dt_sessions_t *sessions, dt_session_link_t *link, const uint32_t *vdevs,
                     size_t count, const Dtorch__V1__OperatorError *error);
void dt_sessions_places_turn(dt_sessions_t *sessions);
void dt_session_place_free(dt_session_place_t *place);
/* Fill bindings in an arena. */
Dtorch__V1__VdevBinding **dt_session_bindings(const dt_session_t *session,
                                              const dt_session_link_t *only, dt_arena_t *arena,
                                              size_t *ret_count);

/* session_bulk.c */
void dt_session_bulk_received(dt_sessions_t *sessions, dt_session_stream_t *stream,
                              const uint8_t *data, size_t size);
/* A chunk came from a node: `data` is the packed BulkChunk. */
void dt_session_bulk_from_link(dt_sessions_t *sessions, dt_session_link_t *link,
                               const uint8_t *data, size_t size);
/* The upload is over, for what was seen here. */
void dt_session_bulk_fail(dt_sessions_t *sessions, dt_session_t *session, uint64_t transfer,
                          const Dtorch__V1__OperatorError *error);
/* A node is there (again): the client goes on from what was received, and so does the node. */
void dt_session_bulk_restart(dt_sessions_t *sessions, dt_session_t *session,
                             const dt_session_link_t *link);
/* If a message is one length-delimited field `number` and nothing else, give its bytes. */
bool dt_session_only_field(const uint8_t *data, size_t size, uint32_t number,
                           const uint8_t **ret_bytes, size_t *ret_size);

/* session_view.c */
void dt_session_event(dt_sessions_t *sessions, Dtorch__V1__Severity severity, const char *name,
                      const dt_session_t *session, const char *node, const char *kind,
                      const char *fmt, ...) DT_PRINTF_LIKE(7, 8);
/* A program may not begin a session, by what dt_sessions_identify() said. */
void dt_session_event_refused(dt_sessions_t *sessions, const dt_session_stream_t *stream);

/* session_trace.c; all but the last three where session->trace is not NULL */
void dt_session_trace_frame(dt_sessions_t *sessions, dt_session_t *session, uint64_t first,
                            size_t size);
void dt_session_trace_ack(dt_sessions_t *sessions, dt_session_t *session);
/* `client_ns`: of the program's clock; 0: not told, or nonsense. */
void dt_session_trace_mark(dt_sessions_t *sessions, dt_session_t *session, unsigned what,
                           uint64_t sequence, uint64_t client_ns, const char *text);
void dt_session_trace_take(dt_sessions_t *sessions, dt_session_link_t *link,
                           Dtorch__V1__TraceBatch *batch);
void dt_session_trace_ended(dt_session_t *session);
void dt_sessions_traces_free(dt_sessions_t *sessions);

#endif
