/* libdtorch inside: one session of one program.
 *
 * Two kinds of threads. Program threads append records to the open frame under the session's lock
 * and close it when it is full, has lingered, or when they are about to wait. The I/O thread owns
 * the gRPC streams: it sends closed frames as credit allows, keeps them until they are
 * acknowledged, makes broken streams anew and sends them again, and takes results in. Both meet in
 * the session under its one lock; waiting is for `changed`.
 *
 *   state  CONNECTING -> LIVE <-> AWAY -> ENDED (with `end`, the reason, for good)
 *
 * Invariants: sequence numbers and ids are given out under the lock, in the order of the stream;
 * frames in `frames` are closed and in order, those from `unsent` on have not been sent on the
 * stream that is open now; what is unsent is at most DT_CLIENT_UNSENT_MAX and one frame. The lock
 * is never held while gRPC is called, but for the wake of the I/O thread. */
#ifndef DT_CLIENT_CLIENT_H
#define DT_CLIENT_CLIENT_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/list.h"
#include "base/look.h"
#include "base/status.h"
#include "dtorch/v1/session.pb-c.h"
#include "loop/child.h"
#include "loop/loop.h"
#include "pki/tls.h"
#include "rpc/rpc.h"
#include "shard/layout.h"
#include "shard/rules.h"
#include "tensor/meta.h"
#include "tensor/value.h"
#include "wire/bulk.h"
#include "wire/frame.h"
#include "wire/record.h"
#include "wire/signature.h"
/* clang-format off: the public header leaves out what it finds defined */
#include <dtorch/dtorch.h>
/* clang-format on */

#define DT_CLIENT_UNSENT_MAX    (256u << 10) /* bytes of closed frames before the program waits */
#define DT_CLIENT_RECORDS_MAX   65536u       /* sent and not acknowledged */
#define DT_CLIENT_LINGER_NS     INT64_C(50000)
#define DT_CLIENT_LINGER_MAX_NS INT64_C(1000000) /* in a long run */
#define DT_CLIENT_LINGER_LOOK   8u               /* records between two looks at the clock */
#define DT_CLIENT_LOOK_NS       INT64_C(200000)  /* that who waits looks for its answer at most */
#define DT_CLIENT_TICK_NS       INT64_C(1000000)
#define DT_CLIENT_STOP_LOOK_NS  INT64_C(20000000) /* between two questions whether to wait on */
#define DT_CLIENT_TICKS_IDLE    32u               /* ticks without work, then they stop */
#define DT_CLIENT_ENVELOPE      8u      /* room in front of a frame for its tag and length */
#define DT_CLIENT_FUTURES_MAX   200000u /* unconfirmed; below the controller's bound */
#define DT_CLIENT_FAILURES_MAX  256u    /* unfetched ones that are kept */
#define DT_CLIENT_BULK_AHEAD    DT_BULK_AHEAD_MAX /* bytes of uploads on their way */
#define DT_CLIENT_COPIES_MAX    (128u << 20) /* bytes of uploads copied before the program waits */
#define DT_CLIENT_BULK_CHUNK    (1u << 20)
#define DT_CLIENT_SIGNATURES    16000u /* live ones; the controller's bound is a little higher */
#define DT_CLIENT_SCALARS_MAX   16u    /* numbers of one call that may become dynamic */
#define DT_CLIENT_ADDRESSES_MAX 16u
#define DT_CLIENT_NO_META       UINT32_MAX
/* Ids are freed together, but what holds so much memory does not wait for others. */
#define DT_CLIENT_FREE_BYTES   (32u << 10)
#define DT_CLIENT_FREE_UNKNOWN (2u << 10) /* what an id counts whose tensor is not known here */
/* Bytes of one FREE record; a frame keeps so much room for the frees that go with it. */
#define DT_CLIENT_FREES (48u + DT_VARINT_BYTES_MAX * DT_RECORD_FREE_MAX)

typedef enum dt_client_state {
    DT_CLIENT_CONNECTING,
    DT_CLIENT_LIVE,
    DT_CLIENT_AWAY,
    DT_CLIENT_ENDED,
} dt_client_state_t;

/* A closed frame. Memory: this, DT_CLIENT_ENVELOPE bytes, the frame. */
typedef struct dt_client_frame {
    dt_list_t link; /* in `frames`; the open one is in no list */
    uint64_t first;
    uint64_t last;
    size_t cap; /* bytes at `bytes` */
    size_t size;
    bool is_sent;    /* on the stream that is open now */
    bool is_counted; /* in sent_payload: it was sent on some stream */
    uint8_t *bytes;
} dt_client_frame_t;

/* Where all settings have gone. Owns its strings. */
typedef struct dt_client_settings {
    char *addresses[DT_CLIENT_ADDRESSES_MAX];
    size_t address_count;
    bool is_private;
    bool has_tls;
    char *ca, *certificate, *key; /* PEM texts */
    dt_rpc_tls_t tls;
    char *api_key; /* shown over TLS; NULL: none */
    char program[128];
    char build[65];
    char host[40];
    char device_kind[16];
    char backend[32];
    uint32_t vdev_count;
    bool is_one_device; /* physical */
    uint64_t memory_limit_bytes;
    char *bin_dir;
    char *private_devices;
    char *record_file;             /* NULL: none */
    uint32_t move_warning_percent; /* of a step's bytes that one move may have; 0: any */
    bool uses_direct;              /* tensor bytes may go past the controller */
    bool uses_window;              /* and by shared memory */
    int64_t connect_timeout_ns;
    int64_t linger_ns, linger_max_ns;
} dt_client_settings_t;

struct dt_tensor {
    dt_session_t *session;
    uint64_t id;
    uint32_t meta; /* interned; DT_CLIENT_NO_META: not known yet */
    uint32_t vdev;
    uint32_t refs;
    dt_tensor_t *next_free;
};

struct dt_future {
    dt_session_t *session;
    uint64_t number;
    bool is_done;
    bool is_dropped; /* the program forgot it before the value came */
    bool has_slot;   /* counted among the unconfirmed ones */
    dt_status_t status;
    dt_meta_t meta;
    dt_meta_t layout; /* the tensor's own */
    uint8_t *data;
    size_t size;
    size_t received; /* of a transfer */
    size_t told;     /* of `received` */
    bool has_result; /* it came, and says what the bytes are */
    bool is_given;   /* `data` is the program's own memory */
    bool has_asked;  /* to begin again at asked_at */
    size_t asked_at;
    void *into; /* where the program wants it, if it has into_size bytes; NULL: anywhere */
    size_t into_size;
    dt_list_t link;        /* in `downloads` */
    dt_failure_t *failure; /* when status is not DT_OK */
};

struct dt_client_path;

/* Memory that is shared with a node; wire/bulk.h has its layout. Lock held for all but `map`. */
typedef struct dt_client_window {
    uint32_t refs; /* its connection, and uploads whose bytes are in it */
    uint8_t *map;  /* DT_BULK_WINDOW_BYTES */
    dt_bulk_units_t units;
    struct {
        uint64_t upload; /* number; 0: not a piece's first unit */
        size_t end;      /* in the upload */
        uint32_t count;
    } pieces[DT_BULK_UNITS_MAX]; /* by first unit */
} dt_client_window_t;

/* An upload whose bytes are too many for its record. */
typedef struct dt_client_upload {
    dt_list_t link;
    uint64_t number;
    uint64_t sequence; /* of its UPLOAD: the controller takes bytes when that is accepted */
    uint32_t vdev;
    const uint8_t *data;
    size_t size;
    size_t ready; /* bytes that are at `data`; others are being copied there by the program */
    size_t sent;  /* by `path` */
    size_t received;
    size_t recorded;
    size_t copied;               /* bytes of our own at `data`, counted in the session */
    struct dt_client_path *path; /* that it takes now; NULL: the controller */
    bool is_relayed;             /* it has to go by the controller, who knows what is lost */
    bool is_filling;             /* a program thread is at it */
    bool is_over;                /* and frees it */
    dt_client_window_t *window;  /* `data` is in it; NULL: elsewhere */
    uint32_t unit_first, unit_count;
    void (*release)(void *arg);
    void *arg;
} dt_client_upload_t;

/* What a chunk says, by whatever way it came. */
typedef struct dt_client_chunk {
    uint64_t transfer, offset, received, total;
    uint32_t crc32c;
    bool has_crc;
    bool is_again;    /* what is behind `received` is wanted once more */
    bool is_in_place; /* the bytes lie in their future already: dt_client_bulk_room() */
    bool is_torn;     /* they cannot be used */
    const uint8_t *data, *error;
    size_t data_bytes, error_bytes;
} dt_client_chunk_t;

typedef enum dt_client_path_state {
    DT_CLIENT_PATH_IDLE,    /* there is a token to connect with */
    DT_CLIENT_PATH_DIALING, /* connected, or about to be; no welcome yet */
    DT_CLIENT_PATH_READY,
    DT_CLIENT_PATH_SPENT, /* the token was used; a new one is awaited */
} dt_client_path_state_t;

/* The direct way to a node: data.c. Only the I/O thread touches it, but for window and vdevs, which
 * change with the lock held. */
typedef struct dt_client_path {
    dt_list_t link; /* in session.paths */
    dt_session_t *session;
    dt_client_path_state_t state;
    uint8_t instance[8];
    uint8_t token[DT_BULK_TOKEN_BYTES];
    char node[64], boot_id[40], local[64], address[64];
    const char *no_address; /* why there is none */
    bool has_tls;           /* at `address` */
    uint32_t uid;
    uint32_t *vdevs; /* (vdev_count) */
    uint32_t vdev_count;
    bool has_token;        /* it was not used yet */
    uint32_t broken_count; /* connections that broke before the welcome, since the last one */
    bool is_local_bad;     /* the unix socket did not work: not tried again */
    bool is_local;
    int64_t since_ns; /* when it was dialled */
    int64_t retry_ns; /* not dialled again before */
    int fd;           /* -1: none */
    dt_tls_t *tls;    /* NULL: the socket is plain */
    dt_watch_t *watch;
    dt_client_window_t *window; /* NULL: none, or not welcomed yet */
    int window_fd;              /* until it was sent; -1 */
    uint8_t head_bytes[DT_BULK_HEAD_BYTES];
    size_t head_len;
    dt_bulk_head_t head;
    bool is_in_place; /* the body goes into its future */
    bool is_torn;     /* a part did, and then that could not go on */
    uint8_t *body;
    size_t body_cap, body_len;
    uint8_t *out; /* not taken by the socket: out_len bytes at out_at */
    size_t out_cap, out_at, out_len;
} dt_client_path_t;

typedef struct dt_client_ahead dt_client_ahead_t;
typedef struct dt_client_batch dt_client_batch_t;

/* A question for the outputs of a signature; on the asking thread's stack. Or of several that are
 * asked ahead, in its batch. */
typedef struct dt_client_query {
    dt_list_t link;
    uint64_t number; /* of the last time that it was asked; 0: not yet */
    uint64_t least;  /* of the first time */
    const uint8_t *body;
    size_t body_bytes;
    const uint32_t *ends; /* (body_count) of each in `body`; a single one needs none */
    uint32_t body_count;
    dt_client_batch_t *batch; /* NULL: somebody waits for this one */
    uint32_t vdev;
    bool is_done;
    bool needs_execution;
    dt_buf_t answer; /* the body with outputs */
    dt_failure_t *failure;
} dt_client_query_t;

/* A defined signature. Never moves, and is kept when it is dropped. */
typedef struct dt_client_signature {
    uint32_t id;
    uint32_t flags;
    uint32_t vdev;
    uint32_t input_count;
    uint32_t dynamic_count;
    uint32_t id_count; /* outputs with an id */
    uint32_t output_count;
    bool is_pinned; /* the program knows its number */
    bool is_dropped;
    bool writes_unsaid;   /* inputs that no output names: any of them */
    bool is_strided;      /* it looks at the memory of its input, not only at its values */
    bool may_ring;        /* ring.c may take it apart, */
    bool ring_drops;      /* ... if its first number is 0, */
    bool needs_whole;     /* ... and not under DT_POLICY_WHOLE */
    int row_dim;          /* rows.c may take rows of this dimension; -1: it does not take any, */
    int64_t row_first;    /* ... from this one on, if the call does not say */
    uint64_t used;        /* sequence of its last use */
    dt_output_t *outputs; /* (output_count) */
    uint32_t *metas;      /* (output_count) interned */
    uint32_t *inputs;     /* (input_count) metadata, interned */
    uint8_t *body;        /* as DEF_SIG says it */
    uint32_t body_bytes;
    uint64_t bytes; /* 1 + those of its tensors; 0: not weighed. On meshes only, as the next two */
    uint64_t moved; /* of a move: that the busiest device receives */
    bool is_told_heavy;
    struct dt_client_plan *plans; /* what it means on meshes; the last used first */
    struct dt_client_ring *rings; /* the same of what is a list of records there */
    struct dt_client_rows *rows;  /* (row_count) by first row: where that dimension is cut */
    uint32_t row_count;
} dt_client_signature_t;

/* ---- tensors on several devices: place.c, track.c, plan.c, spread.c ----
 * A place is a layout by number: below vdev_count that virtual device alone, above it a layout on a
 * mesh. A node is what is known of an id of the program: which id the cluster knows its value by
 * now (its wire), where that lies, and what it is a view of. A root is a storage. */

struct dt_mesh {
    dt_session_t *session;
    uint32_t id;    /* vdev_count + its index; smaller ones are single devices */
    uint32_t first; /* virtual device */
    dt_shard_mesh_t shard;
    uint64_t *vdevs; /* (shard.count) */
};

#define DT_CLIENT_NO_PLACE UINT32_MAX
#define DT_CLIENT_PIN      (UINT32_C(1) << 31) /* in a plan's key: the input is pinned */

/* How a signature runs with inputs at given places. One block of memory. */
typedef struct dt_client_plan {
    struct dt_client_plan *next;
    dt_client_signature_t *run; /* the signature with exact layouts */
    uint32_t policy;            /* that it was made under */
    uint32_t *have;  /* (inputs) and pins; without inputs (1) the place wanted of the outputs */
    uint32_t *want;  /* (inputs) where `run` takes them */
    uint32_t *stay;  /* (inputs) where a written one is afterwards */
    uint32_t *runs;  /* (outputs) where `run` gives them */
    uint32_t *gives; /* (outputs) where they are to be */
    bool must_move;  /* some `want` or `gives` is another place */
} dt_client_plan_t;

/* A value that was moved; whoever reads it there shares it. */
typedef struct dt_client_copy {
    uint32_t refs;
    uint32_t place;
    uint32_t meta;
    uint64_t wire;
} dt_client_copy_t;

typedef struct dt_client_root {
    uint32_t flags;   /* DT_HINT_* */
    uint32_t use;     /* 1 + the place where operators read the whole of it; 0: where it is */
    bool is_use_kept; /* the copy there is kept */
    uint64_t version; /* writes so far */
} dt_client_root_t;

#define DT_CLIENT_KEPT_MAX 4u

typedef struct dt_client_node {
    struct dt_client_node *next; /* in its bucket, or in the pool */
    uint64_t id;
    uint64_t wire;
    uint32_t meta; /* interned; DT_CLIENT_NO_META */
    uint32_t place;
    uint32_t refs; /* the program's, and views of it */
    bool is_alien; /* from before the tracking: its storage may have views that nobody knows */
    dt_client_root_t own;   /* of a storage */
    dt_client_root_t *root; /* of the node that is its whole, which lives as long as a view of it */
    dt_client_copy_t *kept[DT_CLIENT_KEPT_MAX]; /* the value at other places, */
    uint64_t kept_version;                      /* of this version, */
    uint64_t kept_wire;                         /* of this wire */
    /* Views: */
    struct dt_client_node *source; /* NULL: the whole storage */
    dt_client_signature_t *step;   /* that makes it of `source` */
    uint32_t output;               /* which result of that */
    dt_value_t *scalars;           /* (step->dynamic_count) */
    dt_client_copy_t *via; /* a moved source, whose storage `wire` shares; NULL: the source's own */
    uint64_t source_wire;  /* it was made of */
    uint64_t made;         /* root's version that `via` has */
} dt_client_node_t;

#define DT_CLIENT_TABLES_MAX 8u

typedef struct dt_client_track {
    bool is_on; /* ids are looked up */
    uint32_t policy;
    dt_shard_rules_t *rules; /* NULL before the first mesh */
    dt_mesh_t **meshes;      /* by id - vdev_count */
    uint32_t mesh_count, mesh_cap;
    struct dt_client_table {
        int64_t rows, width;
        dt_layout_t layout;         /* where rows were looked up last */
    } tables[DT_CLIENT_TABLES_MAX]; /* the last ones, in no order */
    uint32_t table_count;           /* ever noted */
    dt_layout_t *layouts;           /* of places, from vdev_count on */
    uint32_t layout_count, layout_cap;
    dt_client_node_t **buckets; /* by id; (bucket_mask + 1) */
    uint64_t bucket_mask, node_count;
    dt_client_node_t *node_pool;
    struct dt_client_move *moves; /* (move_cap) open addressing: redistributions with a signature */
    uint32_t move_count, move_cap;
    struct dt_client_dropped {
        uint64_t wire, bytes;
    } * drops; /* to free when an operator is in the stream */
    uint32_t drop_count, drop_cap;
} dt_client_track_t;

/* Signatures that differ in their numbers only; see cache.c. */
typedef struct dt_client_numbers {
    uint64_t bits[DT_CLIENT_SCALARS_MAX]; /* of dynamic ones 0 */
    uint32_t mask;                        /* bit i: number i is dynamic */
} dt_client_numbers_t;

typedef struct dt_client_entry {
    dt_client_numbers_t numbers;
    dt_client_signature_t *signature;
    struct dt_client_entry *next;
} dt_client_entry_t;

typedef struct dt_client_family {
    uint64_t hash;
    struct dt_client_family *next; /* in its bucket */
    dt_client_entry_t *entries;
    uint32_t number_count;
    uint32_t mask; /* which are dynamic from now on */
    uint8_t changes[DT_CLIENT_SCALARS_MAX];
    uint64_t last[DT_CLIENT_SCALARS_MAX];
    uint32_t key_bytes;
    uint8_t key[];
} dt_client_family_t;

/* A call taken apart: see cache.c. Its arrays grow and are kept. */
typedef struct dt_client_call {
    uint8_t *key;
    size_t key_bytes, key_cap;
    uint64_t *inputs;      /* ids; (input_count) as the next two */
    dt_tensor_t **handles; /* NULL for operands */
    uint32_t *metas;
    uint32_t input_count, input_cap;
    uint32_t vdev;
    uint32_t number_count; /* numbers that may become dynamic: not in the key */
    uint64_t bits[DT_CLIENT_SCALARS_MAX];
    dt_value_t numbers[DT_CLIENT_SCALARS_MAX];
    uint8_t positions[DT_CLIENT_SCALARS_MAX]; /* arguments that they are */
    dt_tensor_t *unknown;                     /* an input whose metadata is not known yet */
} dt_client_call_t;

typedef struct dt_client_metas {
    dt_meta_t **items; /* (count), each its own memory */
    uint32_t count, cap;
    uint32_t *index; /* open addressing, index + 1; (index_cap) a power of two */
    uint32_t index_cap;
} dt_client_metas_t;

typedef struct dt_client_cache {
    dt_client_family_t **buckets;
    uint32_t bucket_count, family_count;
    dt_client_signature_t **signatures; /* by id */
    uint32_t signature_count, signature_cap, live_count;
    dt_client_call_t call; /* scratch of whoever holds the lock */
    dt_buf_t body;         /* likewise */
} dt_client_cache_t;

/* What only the I/O thread touches, or the thread that stands in for it (dt_client_await). */
typedef struct dt_client_io {
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    dt_timer_t *tick, *beat, *redial, *patience;
    dt_rpc_stream_t *stream, *bulk;
    bool is_welcome;          /* the stream has been welcomed */
    bool is_bulk_busy;        /* something was to be moved at the last look */
    int64_t door_ns;          /* until then doors of nodes are waited for */
    int64_t bulk_retry_ns;    /* not dialled again before */
    int64_t bulk_progress_ns; /* when bytes of a transfer were last confirmed or came */
    uint8_t *bulk_buffer;     /* of one chunk that is sent */
    uint32_t attempt;         /* dials that failed in a row */
    size_t address;           /* which is dialled */
    int64_t away_since_ns;
    int64_t grace_ns;
    int64_t heard_ns;
    uint32_t silent_turns;
    int64_t beat_ns;
    uint32_t dead_beats;
    uint64_t beat_sequence, turns;
    int64_t late_ns;
    uint64_t told_done;
    size_t told_done_bytes;
    int64_t told_done_ns;
    uint8_t token[16];
    bool has_token;
    dt_arena_t arena;
    bool is_closing;  /* no dial any more */
    bool has_refusal; /* its text is kept, not the stream's */
    bool is_tick_armed;
    uint32_t idle_ticks;
    struct dt_client_private *private_cluster;
    struct dt_recording *recording; /* NULL: none */
    int64_t recording_ns;           /* when it began */
    uint64_t recorded_sequence;     /* last record that is in it */
    bool is_hello_recorded;
} dt_client_io_t;

/* What a step has done so far (explain.c). */
typedef struct dt_client_step {
    uint64_t bytes; /* of tensors that operators took and gave */
    uint64_t heaviest_bytes;
    dt_client_signature_t *heaviest; /* move; NULL: none */
    uint32_t source;                 /* its line */
} dt_client_step_t;

struct dt_session {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t changes;      /* how often that was said */
    uint64_t releases;     /* how often the lock was released by who waited */
    uint32_t waiter_count; /* threads in dt_client_wait() */
    uint32_t answer_waits; /* of them those in dt_client_await() */
    dt_look_t look;        /* for answers, before who waits for them sleeps */
    bool may_defer;        /* who holds the lock is about to wait: a kick may be left to that */
    bool sends_itself;     /* likewise, to the end of its call: dt_client_unlock_sent() */
    bool must_kick;        /* it was left */
    uint32_t generation;   /* of the process: fork() makes it old */
    uint32_t users;        /* tensors and futures, and 1 until dt_disconnect() */
    dt_client_settings_t settings;
    dt_client_state_t state;
    dt_error_t end; /* ENDED: why. CONNECTING: what the last attempt said */
    bool should_end;
    pthread_t thread;
    bool has_thread;
    dt_rpc_wake_t *wake;
    bool is_ticking;

    uint64_t number; /* of the session */
    uint32_t epoch;
    dt_binding_t *bindings;
    uint32_t binding_count;
    uint64_t reconnects, queries_asked; /* the latter without those asked ahead */

    dt_frame_writer_t writer; /* of `open` */
    dt_client_frame_t *open;  /* NULL: none */
    int64_t open_ns;
    int64_t hold_ns;       /* how long it stays open for more */
    int64_t busy_since_ns; /* when the program's present run of operators began */
    bool has_awaited;      /* since the last frame was opened: a new run begins */
    uint32_t since_look;
    dt_client_frame_t *spare; /* memory of a full frame, kept */
    dt_list_t frames;
    dt_client_frame_t *unsent; /* first in `frames` that is not sent; NULL: all are */
    size_t unsent_bytes;
    bool wants_ack;         /* the open frame asks for an acknowledgement at once */
    size_t flush_bytes;     /* a frame is closed at this size */
    uint64_t next_sequence; /* of the first record of the open frame, or of the next one */
    uint64_t acked_sequence, sent_sequence;
    uint64_t credit_first; /* of a session that has executed nothing */
    uint64_t credit_bytes, sent_payload, appended_bytes;

    uint64_t next_tensor;
    dt_tensor_t *tensor_pool;
    uint64_t *frees; /* ids to free; (free_count) */
    uint32_t free_count, free_cap;
    uint64_t free_bytes;    /* that they hold, as far as is known */
    uint64_t *sync_tensors; /* (vdev_count) what a synchronising FETCH names; 0: none yet */
    uint8_t *has_mesh;      /* (vdev_count) DEF_MESH was sent */
    dt_client_track_t track;

    dt_future_t **futures; /* ring by number: from future_base to future_next */
    uint32_t future_cap;
    uint64_t future_base, future_next;
    size_t done_bytes; /* of results since the start */

    dt_list_t queries;
    uint64_t query_next;
    dt_client_ahead_t *ahead; /* NULL: nothing was asked yet */
    dt_list_t uploads;        /* in order of number */
    dt_list_t downloads;      /* futures whose bytes are coming */
    bool has_refused; /* a value: its node is to hear of it, by a way that is not there yet */
    uint64_t upload_next;
    size_t copied_bytes; /* of uploads, kept until they have arrived */
    dt_list_t paths;     /* dt_client_path_t */
    uint64_t window_bytes, direct_bytes, relayed_bytes; /* both directions */
    char detour[128]; /* why bytes do not go by shared memory or directly; "": they do, or none went
                       */

    dt_failure_t *failures[DT_CLIENT_FAILURES_MAX]; /* unfetched, oldest first */
    uint32_t failure_count;
    uint64_t fetched[64]; /* sequences of failures that were fetched lately */
    uint32_t fetched_count;

    struct dt_client_explain *explain; /* NULL: nobody wants to know */
    dt_client_step_t step;

    char **sources;         /* places of the program by number - 1 */
    uint32_t *source_index; /* open addressing: number; (source_index_cap) a power of two */
    uint32_t source_count, source_index_cap;
    uint32_t source; /* number of the one in force; 0: unknown */

    bool (*should_stop)(void *arg); /* dt_on_wait(); NULL: none */
    void *stop_arg;

    dt_client_metas_t metas;
    dt_client_cache_t cache;
    dt_client_io_t io;
};

/* ---- session.c ---- */

extern atomic_uint dt_client_generation;
/* A session that nobody serves yet: without settings and I/O thread. NULL: no memory. */
dt_session_t *dt_client_create(dt_error_t *err);
/* The session was made by this very process and has not ended. Lock not needed. */
static inline bool dt_client_is_forked(const dt_session_t *session)
{
    return session->generation != atomic_load_explicit(&dt_client_generation, memory_order_relaxed);
}
dt_status_t dt_client_forked(dt_error_t *err);
/* Take the lock of a session that can be used. Errors: STOPPED, LOST, ...; then it is not held. */
dt_status_t dt_client_lock(dt_session_t *session, dt_error_t *err);
/* Give the lock back. Frames that were closed since sends_itself was set are sent: by this thread,
 * if the I/O thread has stepped aside, else it is woken. */
void dt_client_unlock_sending(dt_session_t *session);
static inline void dt_client_unlock_sent(dt_session_t *session)
{
    if (session->must_kick) {
        dt_client_unlock_sending(session);
        return;
    }
    session->sends_itself = false;
    pthread_mutex_unlock(&session->lock);
}
/* One tensor or future less; frees an ended session with the last one. Lock held; releases it. */
void dt_client_unuse_unlock(dt_session_t *session);
/* Tell all who wait that something has changed. Lock held. */
void dt_client_changed(dt_session_t *session);
/* Wait for it. False: the deadline is over (INT64_MAX: none), or the program does not want to wait
 * any longer (dt_on_wait()). Lock held, released meanwhile. */
bool dt_client_wait(dt_session_t *session, int64_t deadline_ns);
/* The same for an answer of the controller: the caller may do the I/O thread's work meanwhile, so
 * what is I/O thread's is whoever's that turns (rpc/rpc.h, "Standing in"). */
bool dt_client_await(dt_session_t *session, int64_t deadline_ns);
int64_t dt_client_deadline(int64_t timeout_ms);
/* The session ends for good: everybody who waits learns why. Lock held. */
void dt_client_end(dt_session_t *session, dt_status_t code, const char *text);

/* ---- settings.c ---- */
dt_status_t dt_client_settings(dt_client_settings_t *settings, const dt_connect_options_t *given,
                               dt_error_t *err);
void dt_client_settings_fini(dt_client_settings_t *settings);

/* ---- io.c: the I/O thread ---- */
dt_status_t dt_client_io_start(dt_session_t *session, dt_error_t *err);
void dt_client_io_kick(dt_session_t *session);  /* any thread, lock held */
void dt_client_io_woken(dt_session_t *session); /* whoever turns: what a kick asks for */
void dt_client_io_pump(dt_session_t *session);  /* I/O thread */
void dt_client_io_welcome(dt_session_t *session, const Dtorch__V1__SessionWelcome *welcome);
void dt_client_io_closed(dt_session_t *session); /* stops the thread if that was the last stream */
void dt_client_io_send(dt_session_t *session, const ProtobufCMessage *up);
/* down.c: one message of the controller. */
void dt_client_down(dt_session_t *session, const uint8_t *data, size_t size);

/* ---- stream.c; lock held in all ---- */
/* Have an open frame with room for a record of `bound` bytes. Waits, releasing the lock, while too
 * much is unsent: so ids and numbers are given out after it. Then records are put. Errors: TIMEOUT
 * (INT64_MAX: no deadline), NOMEM, LIMIT, what ended the session. */
dt_status_t dt_client_room(dt_session_t *session, size_t bound, int64_t deadline_ns,
                           dt_error_t *err);
void dt_client_put(dt_session_t *session, const dt_record_t *record);
void dt_client_put_op(dt_session_t *session, const dt_record_op_t *op);
/* The same for an operator that others must follow in the same frame. */
void dt_client_put_part(dt_session_t *session, const dt_record_op_t *op);
void dt_client_put_end(dt_session_t *session); /* behind the last of them */
/* explain.c: note a record that was put. Only while session->explain is there. */
void dt_client_explain_note(dt_session_t *session, uint32_t signature);
/* What is put until the end of an operator is of one group. Gives what the end wants. */
uint32_t dt_client_explain_enter(dt_session_t *session);
void dt_client_explain_leave(dt_session_t *session, uint32_t outer);
void dt_client_explain_fini(dt_session_t *session);
void dt_client_weigh(const dt_session_t *session, dt_client_signature_t *signature);
size_t dt_client_op_bound(uint32_t inputs, uint32_t outputs, uint32_t scalars);
/* Room and put at once, for records without a number of ours. */
dt_status_t dt_client_append(dt_session_t *session, const dt_record_t *record, dt_error_t *err);
static inline bool dt_client_has_room(const dt_session_t *session, size_t bound)
{
    return session->open && session->writer.cap - session->writer.len >= bound + DT_CLIENT_FREES;
}
/* Whether the open frame has waited for more for as long as it should. Lock held. */
static inline bool dt_client_has_lingered(const dt_session_t *session, int64_t now_ns)
{
    return now_ns - session->open_ns >= session->hold_ns;
}
uint64_t dt_client_sequence(const dt_session_t *session); /* of the record that comes next */
void dt_client_close_frame(dt_session_t *session);        /* and wake the I/O thread */
void dt_client_accepted(dt_session_t *session, uint64_t sequence);
void dt_client_resume(dt_session_t *session, uint64_t next_sequence);
void dt_client_put_frees(dt_session_t *session, bool is_tail);
void dt_client_stream_fini(dt_session_t *session);

/* ---- failure.c ---- */
void dt_client_failure_fill(dt_failure_t *failure, const Dtorch__V1__OperatorError *error);
/* Copy to the program's, or the plain error; either may be NULL. Returns its code. */
dt_status_t dt_client_failure_give(const dt_failure_t *failure, dt_failure_t *ret_failure);
dt_status_t dt_client_failure_from(dt_failure_t *failure, const dt_error_t *err);
void dt_client_failure_note(dt_session_t *session, const Dtorch__V1__OperatorError *error);
void dt_client_failure_fetched(dt_session_t *session, uint64_t sequence);

/* ---- metas.c ---- */
dt_status_t dt_client_meta_intern(dt_client_metas_t *metas, const dt_meta_t *meta,
                                  uint32_t *ret_index);
void dt_client_metas_fini(dt_client_metas_t *metas);

/* ---- cache.c; lock held ---- */

/* Take a call apart into session->cache.call. Errors: INVALID (the text says which argument). */
dt_status_t dt_client_call_handles(dt_session_t *session, const char *name, const dt_value_t *args,
                                   uint32_t arg_count, dt_error_t *err);
dt_status_t dt_client_call_operands(dt_session_t *session, const dt_operation_t *operation,
                                    dt_error_t *err);
/* The signature of the call in the scratch, or NULL; *ret_family NULL: not even that. */
dt_client_signature_t *dt_client_lookup(dt_session_t *session, dt_client_family_t **ret_family);
dt_client_signature_t *dt_client_find_entry(const dt_client_family_t *family,
                                            const dt_client_numbers_t *numbers);
dt_client_family_t *dt_client_family_new(dt_session_t *session); /* NULL: no memory */
/* The call in the scratch comes with other numbers than before: those that have changed twice
 * become dynamic. Gives a signature whose outputs hold for all of them, or NULL. */
const dt_client_signature_t *dt_client_promote(dt_session_t *session, dt_client_family_t *family,
                                               dt_client_numbers_t *ret_numbers);
dt_status_t dt_client_cache_put(dt_client_cache_t *cache, dt_client_family_t *family,
                                const dt_client_numbers_t *numbers,
                                dt_client_signature_t *signature);
void dt_client_cache_forget_dropped(dt_client_cache_t *cache);
void dt_client_cache_fini(dt_client_cache_t *cache);

void dt_client_signature_free(dt_client_signature_t *signature); /* NULL is fine */
dt_status_t dt_client_signature_add(dt_client_cache_t *cache, dt_client_signature_t *signature);

/* ---- signature.c; lock held ---- */

/* Define `sig`, that of no call of the program: a plan's. Its tensors lie on meshes that are
 * defined. May release the lock. */
dt_status_t dt_client_signature_define(dt_session_t *session, dt_signature_t *sig,
                                       dt_client_signature_t **ret_signature, dt_error_t *err);

typedef struct dt_client_question {
    const char *name;
    const dt_value_t *args;
    uint32_t arg_count;
    const dt_operation_t *operation; /* of operands; NULL: args have handles */
    uint32_t output_max;
} dt_client_question_t;
/* Look up, else ask and define, waiting for the answer. The scratch is another one afterwards. */
dt_status_t dt_client_resolve(dt_session_t *session, const dt_client_question_t *question,
                              dt_client_signature_t **ret_signature, dt_failure_t *failure);

/* ---- ahead.c; lock held ---- */
/* The program asks for `sig`, or finds it answered: those that will follow are asked, if it is seen
 * which. Gives its course, 0: none. */
uint64_t dt_client_ahead_learn(dt_session_t *session, const dt_signature_t *sig, uint32_t vdev);
/* The answer to a question that was asked ahead, waiting for it if need be. Errors: NOT_FOUND (it
 * was not asked, or has no plain answer). May release the lock. */
dt_status_t dt_client_ahead_take(dt_session_t *session, uint64_t course, const dt_buf_t *body,
                                 dt_buf_t *answer);
void dt_client_ahead_answered(dt_session_t *session, dt_client_batch_t *batch,
                              const Dtorch__V1__SigAnswer *answer);
void dt_client_ahead_forget(dt_session_t *session); /* devices have changed */
void dt_client_ahead_fini(dt_session_t *session);

/* ---- tensor.c; lock held ---- */
dt_tensor_t *dt_client_tensor_new(dt_session_t *session, uint64_t id, uint32_t meta, uint32_t vdev);
void dt_client_tensor_unref(dt_tensor_t *tensor); /* the program still has the session */
void dt_client_free_wire(dt_session_t *session, uint64_t id, uint64_t bytes);
dt_status_t dt_client_layout(dt_session_t *session, uint32_t vdev, dt_layout_t *ret_layout,
                             dt_error_t *err);

/* ---- place.c; lock held ---- */
void dt_client_places_fini(dt_session_t *session);
/* Errors: NOMEM. */
dt_status_t dt_client_place(dt_session_t *session, const dt_layout_t *layout, uint32_t *ret_place,
                            dt_error_t *err);
void dt_client_place_layout(const dt_session_t *session, uint32_t place, dt_layout_t *ret_layout);
/* So many layouts that slices should make no more of them. */
bool dt_client_places_are_many(const dt_session_t *session);
/* NULL: one device. */
const dt_mesh_t *dt_client_place_mesh(const dt_session_t *session, uint32_t place);
/* The virtual device where a value of it is fetched. */
uint32_t dt_client_place_vdev(const dt_session_t *session, uint32_t place);
bool dt_client_place_is_partial(const dt_session_t *session, uint32_t place);
bool dt_client_place_is_whole(const dt_session_t *session, uint32_t place); /* Replicate, or one */
/* What the program says; `mesh` NULL: `vdev` alone. `meta` NULL: any. Errors: INVALID. */
dt_status_t dt_client_place_given(dt_session_t *session, uint32_t vdev, const dt_mesh_t *mesh,
                                  const dt_placement_t *placements, const dt_meta_t *meta,
                                  uint32_t *ret_place, dt_error_t *err);

/* ---- track.c; lock held ---- */
void dt_client_track_fini(dt_session_t *session);
dt_client_node_t *dt_client_node_find(const dt_session_t *session, uint64_t id);
/* NULL: no memory. */
dt_client_node_t *dt_client_node_new(dt_session_t *session);
/* Have room for so many more. */
bool dt_client_node_room(dt_session_t *session, uint32_t count);
/* Take it into the table, for which there is room; `source` NULL: the whole of a storage. */
void dt_client_node_add(dt_session_t *session, dt_client_node_t *node, dt_client_node_t *source);
void dt_client_node_discard(dt_session_t *session, dt_client_node_t *node); /* was not added */
/* The whole of a storage that came by an upload. */
dt_status_t dt_client_node_base(dt_session_t *session, uint64_t id, uint64_t wire, uint32_t meta,
                                uint32_t place, dt_error_t *err);
void dt_client_node_unref(dt_session_t *session, dt_client_node_t *node);
dt_client_copy_t *dt_client_node_kept(dt_session_t *session, dt_client_node_t *node,
                                      uint32_t place);
void dt_client_node_forget(dt_session_t *session, dt_client_node_t *node); /* what is kept */
dt_status_t dt_client_node_keep(dt_session_t *session, dt_client_node_t *node, uint32_t place,
                                uint64_t wire);
void dt_client_copy_unref(dt_session_t *session, dt_client_copy_t *copy); /* NULL is fine */
/* Free this wire, of a tensor of such metadata, with the next flush. */
void dt_client_drop(dt_session_t *session, uint64_t wire, uint32_t meta);
void dt_client_drop_flush(dt_session_t *session);

/* ---- plan.c; lock held, may be released ---- */
/* Errors: what dt_shard_propagate() gives; NOMEM. */
dt_status_t dt_client_plan(dt_session_t *session, dt_client_signature_t *signature,
                           const uint32_t *have, dt_client_plan_t **ret_plan, dt_error_t *err);
void dt_client_plans_free(dt_client_signature_t *signature);
/* The metadata of a tensor that was moved: its strides, if they are dense in some order. */
dt_status_t dt_client_dense(dt_session_t *session, uint32_t meta, uint32_t *ret_meta,
                            dt_error_t *err);
/* The signature that moves a tensor of this metadata. */
dt_status_t dt_client_move(dt_session_t *session, uint32_t meta, uint32_t from, uint32_t to,
                           dt_client_signature_t **ret_signature, dt_error_t *err);
/* That of copy_ between two tensors at `place`. */
dt_status_t dt_client_put_back(dt_session_t *session, uint32_t meta, uint32_t place,
                               dt_client_signature_t **ret_signature, dt_error_t *err);

/* That of a tensor at `place` made of the parts that its devices have. */
dt_status_t dt_client_assemble(dt_session_t *session, uint32_t meta, uint32_t place,
                               dt_client_signature_t **ret_signature, dt_error_t *err);

/* ---- parts.c; lock not held ---- */
/* Upload a value that is cut somewhere: each device gets its own bytes only. `from` as it was
 * given, with a mesh. */
dt_status_t dt_client_upload_parts(dt_session_t *session, const dt_upload_t *from,
                                   const dt_meta_t *meta, uint32_t place, dt_tensor_t **ret_tensor,
                                   dt_error_t *err);

/* ---- spread.c; lock held, may be released ---- */
typedef struct dt_client_spread {
    dt_client_signature_t *signature; /* the program's */
    const uint64_t *inputs;           /* (signature->input_count) */
    const dt_value_t *scalars;        /* (scalar_count) */
    uint32_t scalar_count;
    uint32_t wanted; /* place of the results; DT_CLIENT_NO_PLACE: as it comes */
} dt_client_spread_t;
/* Put an operator in the stream wherever its inputs lie; ret_outputs as dt_submit(). */
dt_status_t dt_client_spread(dt_session_t *session, const dt_client_spread_t *spread,
                             uint64_t *ret_outputs, dt_error_t *err);
/* ring.c: what is a list of records where its inputs lie. *ret_is_done false: it is an operator
 * like any other. */
dt_status_t dt_client_ring(dt_session_t *session, const dt_client_spread_t *spread,
                           uint64_t *ret_outputs, bool *ret_is_done, dt_error_t *err);
void dt_client_rings_free(dt_client_signature_t *signature);
/* rows.c: rows of a dimension that is cut, which stay where they are. *ret_is_done as above. */
dt_status_t dt_client_rows(dt_session_t *session, const dt_client_spread_t *spread,
                           uint64_t *ret_outputs, bool *ret_is_done, dt_error_t *err);
/* Of which dimension a call takes rows by a number; -1: it does not. */
int dt_client_rows_dim(const dt_signature_t *sig);
void dt_client_rows_free(dt_client_signature_t *signature);
/* Have the value of a node at `place`: *ret_wire lives until the node is written or freed. */
dt_status_t dt_client_bring(dt_session_t *session, dt_client_node_t *node, uint32_t place,
                            uint64_t *ret_wire, dt_error_t *err);
/* Move the whole of a storage for good. */
dt_status_t dt_client_rebase(dt_session_t *session, dt_client_node_t *node, uint32_t place,
                             dt_error_t *err);
/* Make it what it is a view of now. */
dt_status_t dt_client_refresh(dt_session_t *session, dt_client_node_t *node, dt_error_t *err);
/* Submit a signature of one input and one output. */
dt_status_t dt_client_run1(dt_session_t *session, dt_client_signature_t *signature, uint64_t input,
                           uint64_t *ret_output, dt_error_t *err);

/* ---- future.c ---- */
dt_status_t dt_client_fetch(dt_session_t *session, uint64_t id, int64_t deadline_ns,
                            dt_future_t **ret_future, dt_error_t *err); /* lock held */
/* Its bytes begin to come. Errors: NOMEM, and it is done. Lock held. */
dt_status_t dt_client_future_begin(dt_future_t *future, uint64_t total);
void dt_client_future_whole(dt_future_t *future); /* done, if all is there; lock held */
void dt_client_result(dt_session_t *session, const Dtorch__V1__Result *result); /* lock held */
void dt_client_future_done(dt_future_t *future, dt_status_t status);            /* lock held */
void dt_client_futures_end(dt_session_t *session);                              /* lock held */
dt_future_t *dt_client_future_find(dt_session_t *session, uint64_t number);     /* lock held */

/* ---- bulk.c; I/O thread ---- */
void dt_client_bulk_pump(dt_session_t *session);
void dt_client_bulk_close(dt_session_t *session);
/* Read a packed BulkChunk; *ret_chunk points into `bytes`. False: malformed. */
bool dt_client_chunk_read(const uint8_t *bytes, size_t size, dt_client_chunk_t *ret_chunk);
/* A chunk came by `path`, NULL: from the controller. */
void dt_client_bulk_chunk(dt_session_t *session, dt_client_path_t *path,
                          const dt_client_chunk_t *chunk);
/* Where the bytes of a value that comes may be received: in its future, if they are the next ones.
 * NULL: elsewhere. Good as long as the lock is held. */
uint8_t *dt_client_bulk_room(dt_session_t *session, uint64_t transfer, uint64_t total,
                             uint64_t offset, size_t size);
/* A way is there (again): what it may have lost is said again. */
void dt_client_bulk_again(dt_session_t *session, dt_client_path_t *path);
/* A node lost something: the controller knows which uploads are over. */
void dt_client_bulk_doubt(dt_session_t *session);
void dt_client_upload_free(dt_client_upload_t *upload); /* lock held if it is in a window */
/* The copy of its bytes is not needed any more. Lock held. */
void dt_client_copy_done(dt_session_t *session, dt_client_upload_t *upload);

/* ---- gather.c; lock held, may be released ---- */
/* The wire that a FETCH of this id names. */
dt_status_t dt_client_fetch_wire(dt_session_t *session, uint64_t id, uint64_t *ret_wire,
                                 dt_error_t *err);

/* ---- data.c; I/O thread, but for the window ---- */
void dt_client_door(dt_session_t *session, const Dtorch__V1__DataDoor *door);
/* The way to a virtual device; NULL: none. */
dt_client_path_t *dt_client_path_of(dt_session_t *session, uint32_t vdev);
/* Connect, if it is not yet. Whether it will be there, or is. */
bool dt_client_path_dial(dt_client_path_t *path);
void dt_client_path_received(dt_client_path_t *path, uint64_t transfer, uint64_t received,
                             bool is_again);
/* Send the next piece of an upload. False: not now. Lock not held. */
bool dt_client_path_piece(dt_client_path_t *path, dt_client_upload_t *upload, size_t size);
void dt_client_paths_close(dt_session_t *session);
/* Window memory for a whole upload to `vdev`; lock held. NULL: there is none. */
dt_client_window_t *dt_client_window_take(dt_session_t *session, uint32_t vdev, size_t size,
                                          uint32_t *ret_first, uint32_t *ret_count);
void dt_client_window_give(dt_client_window_t *window, uint64_t upload, size_t received);
void dt_client_window_unref(dt_client_window_t *window); /* NULL is fine */

/* ---- record.c; I/O thread, but for open and close; without a recording they do nothing ---- */
dt_status_t dt_client_record_open(dt_session_t *session, dt_error_t *err);
dt_status_t dt_client_record_close(dt_session_t *session, dt_error_t *err);
void dt_client_record_hello(dt_session_t *session, const Dtorch__V1__SessionHello *hello);
void dt_client_record_welcome(dt_session_t *session, const Dtorch__V1__SessionWelcome *welcome);
void dt_client_record_frame(dt_session_t *session, const dt_client_frame_t *frame);
/* What an upload is about to send: `size` bytes behind `sent`. */
void dt_client_record_chunk(dt_session_t *session, dt_client_upload_t *upload, size_t size);
void dt_client_record_result(const dt_future_t *future, dt_status_t result);
void dt_client_record_fault(dt_session_t *session, const Dtorch__V1__Fault *fault);
void dt_client_record_end(dt_session_t *session);

/* ---- private.c; I/O thread ---- */
dt_status_t dt_client_private_start(dt_session_t *session, dt_error_t *err);
/* Why it cannot work any more, if a daemon has ended; else DT_OK. */
dt_status_t dt_client_private_check(dt_session_t *session, dt_error_t *err);
void dt_client_private_stop(dt_session_t *session);

#endif
