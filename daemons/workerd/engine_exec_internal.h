/* The executor's inside, shared by the engine_exec*.c files:
 *   engine_exec.c         sessions, turns, sleeping
 *   engine_exec_table.c   tensors by id, storages, causes
 *   engine_exec_mesh.c    meshes; tensors of which several parts lie here
 *   engine_exec_plan.c    definitions: plans; the check of a first execution
 *   engine_exec_local.c   what one vdev runs of a plan on several
 *   engine_exec_op.c      operators, on one vdev or on several
 *   engine_exec_move.c    tensors that are made of others' local ones
 *   engine_exec_redistribute.c  those that move between devices: the communication queue
 *   engine_exec_run.c     the other records: frees, fetches, uploads, seeds, marks
 *   engine_exec_error.c   the first cause of a failure, as bytes
 *   engine_exec_bulk.c    tensor bytes in and out
 *   engine_exec_window.c  memory that is shared with the program
 *   engine_exec_report.c  what goes up: reports, statistics, lists
 *   engine_exec_trace.c   what ran when, while somebody wants to know
 *   engine_exec_memory.c  blocks for the backend */
#ifndef DT_WORKERD_ENGINE_EXEC_INTERNAL_H
#define DT_WORKERD_ENGINE_EXEC_INTERNAL_H
#include <string.h>

#include "base/arena.h"
#include "base/list.h"
#include "core/moves.h"
#include "engine_exec.h"
#include "shard/rules.h"
#include "wire/bulk.h"
#include "wire/record.h"
#include "wire/signature.h"

#define DT_EXEC_SCRATCH_BYTES (32u << 10)
#define DT_EXEC_ROOM_BYTES    (24u << 10) /* what one record may put into the up ring */
#define DT_EXEC_PLAN_BYTES    (8u << 20)  /* of one plan */
#define DT_EXEC_CAUSE_BYTES   (8u << 10)  /* of all that an OperatorError may say, and more */
#define DT_EXEC_INPUTS_TEXT   1024        /* of the .proto, without the NUL */
#define DT_EXEC_INPUTS_KNOWN  4u

typedef struct dt_exec_session dt_exec_session_t;

/* The first cause: a packed OperatorError. */
typedef struct dt_exec_cause {
    uint32_t refs; /* storages, and the one who made it */
    uint32_t size;
    uint64_t sequence;
    uint64_t skipped; /* operators not run because of it */
    uint8_t bytes[];
} dt_exec_cause_t;

struct dt_exec_upload;

/* Memory that tensors share. */
typedef struct dt_exec_storage {
    uint32_t refs;          /* tensors */
    uint16_t vdev;          /* below DT_CHANNEL_VDEVS_MAX */
    uint16_t place;         /* of the vdev in the tensor's mesh, below DT_RECORD_VDEV_MAX */
    uint64_t version;       /* sequence that wrote it last */
    dt_exec_cause_t *cause; /* poisoned; NULL: sound */
    dt_move_mark_t mark;    /* what moves in the queue do with it */
    union {
        struct dt_exec_upload *upload;     /* bytes that have not come yet; NULL: none */
        struct dt_exec_storage *next_free; /* of a free one */
    };
} dt_exec_storage_t;

/* Whether it is poisoned, or waits for bytes. */
static inline bool dt_exec_is_troubled(const dt_exec_storage_t *storage)
{
    return ((uintptr_t)storage->cause | (uintptr_t)storage->upload) != 0;
}

#define DT_EXEC_STORAGE_BATCH 256u
typedef struct dt_exec_storage_batch {
    struct dt_exec_storage_batch *next;
    dt_exec_storage_t storages[DT_EXEC_STORAGE_BATCH];
} dt_exec_storage_batch_t;

/* What one vdev has of a tensor. */
typedef struct dt_exec_local {
    void *handle;               /* NULL: poisoned */
    dt_exec_storage_t *storage; /* NULL: nothing was made here */
} dt_exec_local_t;

/* One vdev of a mesh that this engine runs. */
typedef struct dt_exec_own {
    uint32_t place; /* in the mesh, row-major */
    uint32_t vdev;
} dt_exec_own_t;

typedef struct dt_exec_mesh {
    dt_shard_mesh_t shape;
    uint64_t *vdevs; /* (shape.count) */
    uint32_t own_count;
    dt_exec_own_t *own;             /* (own_count) rising places */
    struct dt_exec_spread *spreads; /* not in use, to be used again */
} dt_exec_mesh_t;

/* A tensor on a mesh of which this engine runs several vdevs. One that it runs one vdev of, whether
 * the mesh has more or not, is as good as one device's and has none of this. */
typedef struct dt_exec_spread {
    dt_exec_mesh_t *mesh;
    struct dt_exec_spread *next_free;
    dt_exec_local_t locals[]; /* (mesh->own_count) */
} dt_exec_spread_t;

typedef struct dt_exec_tensor {
    uint64_t id; /* 0: empty place */
    union {
        struct { /* in session.tensors */
            void *handle;
            dt_exec_storage_t *storage;
        };
        dt_exec_local_t local;
        dt_exec_spread_t *spread; /* in session.spreads */
    };
} dt_exec_tensor_t;

typedef struct dt_exec_table {
    dt_exec_tensor_t *places; /* (mask + 1) open addressing; NULL before the first */
    uint64_t mask;
    uint64_t count;
    unsigned shift;
} dt_exec_table_t;

typedef struct dt_exec_stat {
    char *name;
    uint64_t count, device_ns, bytes, errors;
    bool is_changed;
} dt_exec_stat_t;

/* What an OP with a plan does. */
typedef enum dt_exec_way {
    DT_EXEC_WAY_PASS,  /* nothing: it is on other engines' devices */
    DT_EXEC_WAY_ONE,   /* run the operator, on the one vdev of its mesh that is here */
    DT_EXEC_WAY_PARTS, /* run, or not on an empty shard, each of `parts` */
    DT_EXEC_WAY_MOVE,  /* dtorch::redistribute and what else makes tensors of others' parts */
    DT_EXEC_WAY_REFUSE,
} dt_exec_way_t;

/* Where an operator of a local program takes a handle from: 1 and the call's input, or
 * DT_SHARD_TEMP and a place in program.temps. */
typedef struct dt_exec_use {
    void **place;
    uint32_t source;
} dt_exec_use_t;

/* One operator of a local program. */
typedef struct dt_exec_step {
    void *op;
    dt_value_t *args; /* (arg_count) */
    uint32_t arg_count;
    dt_exec_use_t *uses; /* (use_count) */
    uint32_t use_count;
    uint32_t *numbers; /* (number_count, 2) which argument, which of the record's numbers */
    uint32_t number_count;
    dt_backend_output_t *expected; /* its first result for op_expect; NULL: it is not told */
} dt_exec_step_t;

#define DT_EXEC_STEP_RESULTS 16u /* that later operators may use, as lib/shard numbers them */

/* What a vdev does for a plan on several, where that is not one operator with the plan's inputs. */
typedef struct dt_exec_program {
    dt_exec_step_t *steps; /* (step_count) in order; 0: the shard is empty, `fills` says what the
                              outputs are */
    uint32_t step_count;
    bool is_written;      /* all outputs are inputs that the operators write to */
    void **handles;       /* (input_count) of the inputs */
    void **temps;         /* (step_count, DT_EXEC_STEP_RESULTS) results while it runs */
    const uint8_t *fills; /* (output_count) dt_shard_fill_t */
} dt_exec_program_t;

typedef struct dt_exec_plan {
    dt_exec_way_t way;
    void *op;
    dt_value_t *args;                /* (arg_count) with places for handles and numbers */
    void ***input_at;                /* (input_count) where each handle goes */
    uint32_t *dynamic_at;            /* (dynamic_count) which argument each number is */
    const dt_signature_t *signature; /* in `arena`, which holds the above too */
    dt_backend_output_t *expected;   /* for op_expect; NULL: it is not told */
    uint64_t bytes;                  /* of inputs and outputs, for statistics */
    dt_exec_stat_t *stat;
    uint32_t vdev;
    uint32_t stream;      /* the device's number of the random stream of operators that name none */
    dt_exec_mesh_t *mesh; /* of its tensors */
    uint32_t own;         /* which of mesh->own runs it */
    bool is_local;        /* `signature` has the metadata of one vdev of several */
    bool is_checked;      /* its first execution was as the signature says */
    bool takes_numbers;   /* each execution is compared: the numbers that it brings may matter */
    const dt_error_t *refused;   /* why it cannot run, in `arena`; NULL: it can */
    uint32_t part_count;         /* PARTS */
    struct dt_exec_plan **parts; /* (part_count) one for each of mesh->own; in `arena` */
    dt_exec_program_t *program;  /* of a part; NULL: it is one operator */
    struct dt_exec_move *move;   /* MOVE: engine_exec_move.c */
    uint64_t name_words[sizeof((dt_engine_page_t *)0)->op_name / sizeof(uint64_t)];
    uint32_t name_count; /* of words that are not all zero, and one */
    uint64_t traced;     /* number of the trace that has its name; 0: none */
    dt_arena_t *arena;   /* `memory`, or for a part that of the plan */
    dt_arena_t memory;
} dt_exec_plan_t;

/* A window, mapped: of its session, and of each piece of its area that is in use. */
typedef struct dt_exec_view {
    uint32_t refs;
    dt_exec_window_t given;
    dt_bulk_units_t units; /* of the area */
} dt_exec_view_t;

/* A piece of the area. */
typedef struct dt_exec_area {
    dt_exec_view_t *view; /* NULL: none */
    uint32_t first, count;
    uint64_t place; /* in the window */
    uint8_t *bytes;
} dt_exec_area_t;

/* A piece of a download that was put into the area and is not received yet. */
typedef struct dt_exec_piece {
    dt_list_t link; /* in download.pieces, by end */
    dt_exec_area_t area;
    uint64_t end; /* in the transfer */
} dt_exec_piece_t;

/* Bytes of a tensor that come in from outside. */
typedef struct dt_exec_upload {
    dt_list_t link; /* in session.uploads */
    uint64_t transfer;
    void *handle; /* a reference of its own is not needed: it goes with the storage */
    dt_exec_storage_t *storage;
    uint64_t offset; /* in the tensor */
    uint64_t size;
    uint64_t received;
    uint64_t told;  /* of `received` */
    bool has_asked; /* for what comes at asked_at to be said again */
    uint64_t asked_at;
} dt_exec_upload_t;

/* Bytes of a tensor on their way out: a copy of what was fetched, in the program's window if it
 * fits there. Else it is the tensor itself, until a record comes that could write it; without
 * memory for a copy then the session waits until all was received. */
typedef struct dt_exec_download {
    dt_list_t link; /* in session.downloads */
    uint64_t transfer;
    uint64_t size;
    uint64_t sent;
    uint64_t received;
    uint8_t *bytes;  /* NULL: read from `handle` */
    void *handle;    /* borrowed until it is settled, or while the session waits */
    bool is_awaited; /* the session waits for it */
    uint32_t vdev;
    uint64_t sequence;   /* of its FETCH */
    dt_exec_area_t area; /* where `bytes` are, if it has a view */
    uint64_t ahead;      /* of it in session.ahead_bytes */
    dt_list_t pieces;
} dt_exec_download_t;

/* A chunk that came before its UPLOAD. */
typedef struct dt_exec_early {
    dt_list_t link; /* in session.early */
    dt_channel_chunk_t head;
    uint32_t size;
    uint8_t bytes[];
} dt_exec_early_t;

typedef struct dt_exec_stream {
    uint32_t vdev;
    uint32_t stream; /* the session's number */
    uint32_t number; /* the device's */
} dt_exec_stream_t;

/* Where in the program something comes from. */
typedef struct dt_exec_origin {
    const char *source; /* in session.sources; NULL: not told */
    uint32_t range_depth;
    char ranges[DT_EXEC_RANGES_MAX][128]; /* (range_depth), those that there is room for */
} dt_exec_origin_t;

struct dt_exec_session {
    dt_exec_t *exec;
    uint32_t instance;
    uint64_t id;
    dt_exec_memory_t memory;
    dt_ring_reader_t frames;
    dt_ring_reader_t bulk;
    dt_ring_writer_t up;
    char node[64];
    uint32_t device;
    uint32_t *vdevs; /* (vdev_count) rising */
    uint32_t vdev_count;

    dt_frame_reader_t reader;
    dt_record_t *record; /* decoded; kept while it waits for bytes */
    bool has_frame;
    bool has_record;  /* it waits to be performed */
    bool is_waiting;  /* for bytes of an upload */
    bool is_blocked;  /* for room in the up ring */
    bool is_stuck;    /* a chunk that came early has no room yet */
    bool has_emitted; /* something went up since room was looked for */
    bool must_kick;   /* something went up and its reader may sleep */
    bool is_broken;   /* nothing more is performed; `broken` says why */
    bool has_left;    /* then: the transport */
    dt_error_t broken;
    bool wants_more;       /* it could go on after its last turn */
    int64_t spent_ns;      /* of the executor's time, and what it was given for it at its return */
    uint64_t next;         /* sequence that is performed next; 0: the first frame says */
    uint64_t reported;     /* last `executed` told */
    uint64_t payload;      /* bytes performed and not told */
    int64_t unreported_ns; /* when the oldest of them was performed; 0: none */

    dt_exec_table_t tensors; /* with one local tensor here */
    dt_exec_table_t spreads; /* with several */
    dt_exec_plan_t **plans;
    uint32_t plan_count;     /* places */
    dt_exec_mesh_t **meshes; /* by id */
    uint32_t mesh_count;     /* places */
    dt_exec_mesh_t first;    /* mesh 0 as long as it is not defined: vdev 0 alone */
    dt_exec_stat_t **stats;  /* (stat_count) in order of their first definition */
    uint32_t stat_count;
    bool has_stats;        /* some changed and were not told */
    int64_t stats_told_ns; /* when they were told last */
    dt_exec_stream_t *streams;
    uint32_t stream_count;
    char **sources; /* by number */
    uint32_t source_count;
    dt_exec_origin_t here;          /* of the records that are performed now */
    const dt_exec_origin_t *origin; /* that errors and traces name; `here`, but for a queued move */
    int64_t poison_since_ns;
    uint32_t poison_count; /* told in the second that began then */

    dt_list_t uploads;
    dt_list_t downloads;
    uint32_t download_count;
    uint32_t lazy_count;     /* of them those that are read from their tensors, and not settled */
    uint32_t download_waits; /* of them those that the session waits for */
    dt_list_t early;
    uint64_t early_bytes;
    dt_moves_t moves;        /* queued redistributions */
    struct dt_exec_run *run; /* the one that runs; NULL: none */
    uint32_t kept_count;     /* tensors that the program has freed and queued moves keep */
    int64_t wait_since_ns;   /* the record at hand waits while moves are queued; 0: it does not */
    bool is_short;           /* the record at hand found too little memory while they do */
    uint64_t last_transfer;  /* of an UPLOAD that was performed */
    uint64_t ahead_bytes; /* of downloads sent and not received; what is whole in a window is not */
    uint32_t window_number;      /* of the newest window that came; 0: none */
    dt_exec_view_t *view;        /* NULL: none */
    struct dt_exec_trace *trace; /* NULL: nobody wants to know */
};

/* What was printed last of inputs. */
typedef struct dt_exec_inputs {
    uint32_t count;
    dt_meta_t metas[DT_EXEC_INPUTS_KNOWN]; /* (count), if there are no more */
    char text[DT_EXEC_INPUTS_TEXT + 1];
} dt_exec_inputs_t;

struct dt_exec {
    dt_exec_options_t options;
    dt_exec_session_t *sessions[DT_EXEC_SESSIONS_MAX]; /* (session_count) in turn */
    uint32_t session_count;
    int64_t now_ns;        /* read after the last thing that took time */
    int64_t idle_since_ns; /* 0: not idle, or trimmed */
    int64_t fair_ns;       /* what a session that wants much has had, up to now; never falls */
    uint64_t progress;
    uint64_t device_ns;
    dt_shard_rules_t *rules;     /* NULL: no plan on several vdevs has come yet */
    uint64_t traces;             /* begun */
    const dt_exec_plan_t *named; /* whose name is in the page */
    uint32_t stream_last;        /* number of a random stream given out */
    uint32_t stream_now;         /* in use for operators that name none */
    dt_exec_storage_t *storage_free;
    dt_exec_storage_batch_t *storage_batches; /* all there are */
    void **results;                           /* (DT_RECORD_OUTPUTS_MAX) */
    uint8_t *scratch;                         /* (DT_EXEC_SCRATCH_BYTES) */
    dt_exec_inputs_t inputs;
    uint8_t cause[DT_EXEC_CAUSE_BYTES]; /* where one is packed */
    dt_error_t err;
};

static inline int64_t dt_exec_now(dt_exec_t *exec)
{
    return exec->now_ns = dt_clock_mono_ns(exec->options.clock);
}

/* Add to what the page says of moves. */
static inline void dt_exec_move_time(dt_exec_t *exec, dt_engine_move_time_t what, int64_t ns)
{
    _Atomic uint64_t *sum = &exec->options.page->move_ns[what]; /* written on this thread only */
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + (uint64_t)ns,
                          memory_order_relaxed);
}

static inline void dt_exec_origin_copy(dt_exec_origin_t *to, const dt_exec_origin_t *from)
{
    size_t count = from->range_depth < DT_EXEC_RANGES_MAX ? from->range_depth : DT_EXEC_RANGES_MAX;
    to->source = from->source;
    to->range_depth = from->range_depth;
    memcpy(to->ranges, from->ranges, count * sizeof to->ranges[0]);
}

/* Of the records up to the last performed one those that are over: no move before them is open. */
static inline uint64_t dt_exec_executed(const dt_exec_session_t *session)
{
    return dt_moves_settled(&session->moves, session->next > 0 ? session->next - 1 : 0);
}

/* ---- engine_exec_table.c ---- */

dt_exec_tensor_t *dt_exec_find(const dt_exec_table_t *table, uint64_t id); /* NULL: not here */
/* Enter an id that must not be there (an older one is freed). False: no memory. */
bool dt_exec_enter(dt_exec_session_t *session, uint64_t id, void *handle,
                   dt_exec_storage_t *storage);
/* The same for a tensor with several local ones. */
bool dt_exec_enter_spread(dt_exec_session_t *session, uint64_t id, dt_exec_spread_t *spread);
/* Free a tensor, wherever it is: the handles, and each storage with its last one. Unknown is fine:
 * it is on another engine's device. */
void dt_exec_drop(dt_exec_session_t *session, uint64_t id);
void dt_exec_table_fini(dt_exec_session_t *session);
dt_exec_storage_t *dt_exec_storage_new(dt_exec_t *exec, uint32_t vdev, uint64_t version);
void dt_exec_storage_unref(dt_exec_session_t *session, dt_exec_storage_t *storage);
/* Poison what tensors share; an earlier cause stays. Takes a reference of its own. */
void dt_exec_poison(dt_exec_storage_t *storage, dt_exec_cause_t *cause);
void dt_exec_cause_unref(dt_exec_cause_t *cause); /* NULL is fine */

/* ---- engine_exec_mesh.c ---- */

bool dt_exec_mesh_init(dt_exec_session_t *session); /* false: no memory */
void dt_exec_mesh_fini(dt_exec_session_t *session); /* after its tensors are freed */
void dt_exec_define_mesh(dt_exec_session_t *session, const dt_record_t *record);
dt_exec_mesh_t *dt_exec_mesh_of(dt_exec_session_t *session,
                                const dt_layout_t *layout); /* NULL: not defined */
/* Whether they are the same vdevs in the same order and dimensions. */
bool dt_exec_mesh_is_same(const dt_exec_mesh_t *a, const dt_exec_mesh_t *b);
/* The local tensor of mesh->own[own]; NULL: it has none. Valid until a tensor is entered. */
dt_exec_local_t *dt_exec_local(dt_exec_session_t *session, const dt_exec_mesh_t *mesh, uint64_t id,
                               uint32_t own);
/* Enter it, with the id if that is new. Takes both on success. False: no memory. */
bool dt_exec_enter_local(dt_exec_session_t *session, dt_exec_mesh_t *mesh, uint32_t own,
                         uint64_t id, void *handle, dt_exec_storage_t *storage);
/* Copy the box of mesh->own[own] out of the bytes of an upload, which has all of them, into
 * exec->scratch. Sets *meta, which is the tensor's, to the box's, and *size to its bytes. Errors:
 * INVALID: an upload that cannot be cut. */
dt_status_t dt_exec_cut(dt_exec_session_t *session, const dt_exec_mesh_t *mesh, uint32_t own,
                        dt_meta_t *meta, uint64_t *size, dt_error_t *err);
void dt_exec_spread_free(dt_exec_session_t *session, dt_exec_spread_t *spread);

/* ---- engine_exec_plan.c ---- */

void dt_exec_define_plan(dt_exec_session_t *session, const dt_record_t *record);
void dt_exec_plan_free(dt_exec_plan_t *plan);
/* Make room for index `at` in an array of `count` places. False: no memory; the session is broken
 * for the lack of memory for `what`. */
bool dt_exec_reach(dt_exec_session_t *session, void **array, uint32_t *count, size_t element_bytes,
                   uint32_t at, const char *what);
void dt_exec_break(dt_exec_session_t *session, const char *what);
/* Compare what came out with what was said. Errors: INVALID, the text names the difference. */
dt_status_t dt_exec_check(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                          void *const *results, uint32_t count, dt_error_t *err);
/* The device's number of a session's random stream; made when it is new. False: too many. */
bool dt_exec_stream(dt_exec_session_t *session, uint32_t vdev, uint32_t stream,
                    uint32_t *ret_number);

/* Fill a plan, or a part of one, whose signature, mesh and own are set, but for what the operator
 * is called with. `err` and the return value say why it cannot run; it is whole all the same. */
dt_status_t dt_exec_plan_fill(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err);

void dt_exec_plan_name(dt_exec_plan_t *plan); /* for the page */
/* Put the device's number of its stream into a GENERATOR argument. Errors: LIMIT. */
dt_status_t dt_exec_plan_generator(dt_exec_session_t *session, uint32_t vdev, dt_value_t *arg,
                                   dt_error_t *err);

/* ---- engine_exec_local.c ---- */

/* Make a plan on several vdevs those of them that are here, parts or itself. Errors: as
 * dt_shard_localize(), op_find; NOMEM. */
dt_status_t dt_exec_plan_localize(dt_exec_session_t *session, dt_exec_plan_t *plan,
                                  dt_error_t *err);
/* Write what an operator gives on an empty shard into a new tensor. */
dt_status_t dt_exec_fill(dt_exec_t *exec, void *handle, const dt_meta_t *meta, unsigned fill,
                         dt_error_t *err);

/* ---- engine_exec_op.c ---- */

/* Perform session->record. False: it waits for bytes or for room; call again later. */
bool dt_exec_perform(dt_exec_session_t *session);
/* Name what has no value on mesh->own[own]: it has the cause. */
void dt_exec_enter_poisoned(dt_exec_session_t *session, dt_exec_mesh_t *mesh, uint32_t own,
                            uint64_t id, dt_exec_cause_t *cause);

/* What the agent sees of an operator: it began now; it is over, it took *this* long. */
void dt_exec_page_begin(dt_exec_t *exec, const dt_exec_plan_t *plan);
int64_t dt_exec_page_end(dt_exec_t *exec);

/* ---- engine_exec_move.c ---- */

bool dt_exec_is_move(const char *name); /* "dtorch::redistribute" and so on */
/* Fill a plan of such a name; its way is MOVE, or PASS where none of its tensors is here. Errors:
 * INVALID (tensors that do not fit it), NOT_FOUND (without a transport), NOMEM. */
dt_status_t dt_exec_plan_move(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err);
/* A redistribution that could not be made for want of memory is made now: the other engines have
 * it, and wait for us in it. If it cannot be, we leave them, which they are told. Returns whether
 * it was made. Only for a plan that is refused. */
bool dt_exec_move_again(dt_exec_session_t *session, dt_exec_plan_t *plan);
void dt_exec_move_free(
    struct dt_exec_move *move); /* what is not in the plan's arena; NULL is fine */
/* As dt_exec_perform(). */
bool dt_exec_perform_move(dt_exec_session_t *session, dt_exec_plan_t *plan);

/* ---- engine_exec_redistribute.c ---- */

/* End what has ended, begin what comes next. */
void dt_exec_moves_turn(dt_exec_session_t *session);
/* Whether queued moves leave to the operator at hand what it reads and writes, and memory. */
bool dt_exec_moves_allow(dt_exec_session_t *session, const dt_exec_plan_t *plan);
/* The operator at hand failed: whether it will have the memory once moves have ended that keep what
 * the program has freed. It has to be performed again then. */
bool dt_exec_moves_hold(dt_exec_session_t *session, const dt_exec_plan_t *plan, dt_status_t status);
/* Whether what is not tried twice waits until more memory is free, as if nothing was kept. */
bool dt_exec_moves_crowd(const dt_exec_session_t *session);
/* A tensor is freed whose storage is marked: whether a queued move needs its handle, and frees it
 * then. */
bool dt_exec_run_keeps(dt_exec_session_t *session, const dt_exec_local_t *local);
/* Take no part in what other engines do for this session any more. */
void dt_exec_move_leave(dt_exec_session_t *session);

/* ---- engine_exec_run.c ---- */

/* What is no operator and no FREE. As dt_exec_perform(). */
bool dt_exec_perform_kind(dt_exec_session_t *session);
void dt_exec_perform_broken(dt_exec_session_t *session);

/* ---- engine_exec_error.c ---- */

/* Make the cause of a failure. `plan` may be NULL: then `what` names it. NULL: no memory. */
dt_exec_cause_t *dt_exec_cause_new(dt_exec_session_t *session, uint64_t sequence,
                                   const dt_exec_plan_t *plan, const char *what, uint32_t vdev,
                                   const char *kind, const dt_error_t *err);
/* "IndexError", or what else the backend's number says. */
const char *dt_exec_error_kind(const dt_error_t *err);
/* Make one line of UTF-8 of what a backend said. */
void dt_exec_text_clean(char *out, size_t size, const char *text);

/* ---- engine_exec_bulk.c ---- */

void dt_exec_bulk_read(dt_exec_session_t *session);  /* chunks that came */
bool dt_exec_bulk_write(dt_exec_session_t *session); /* chunks that can go; whether one did */
bool dt_exec_bulk_can_write(dt_exec_session_t *session);
/* Begin an upload that was performed now; chunks that came early are used. False: no memory. */
bool dt_exec_upload_begin(dt_exec_session_t *session, const dt_record_t *record,
                          const dt_exec_local_t *local);
/* Say that nothing becomes of an upload, so that nobody keeps its bytes. */
void dt_exec_upload_refuse(dt_exec_session_t *session, uint64_t transfer,
                           const dt_exec_cause_t *cause);
/* The storage goes before its bytes came. */
void dt_exec_upload_end(dt_exec_session_t *session, dt_exec_upload_t *upload);
/* Send the tensor that the FETCH at hand asks for, `size` bytes; `is_packed`: they lie in it as
 * they are sent. Ownership: borrows its handle until dt_exec_bulk_settle(). Errors: LIMIT, NOMEM.
 */
dt_status_t dt_exec_download_begin(dt_exec_session_t *session, const dt_exec_local_t *local,
                                   uint64_t size, bool is_packed, dt_error_t *err);
/* A record comes that may write or free what is being sent. False: not now, the session waits. */
bool dt_exec_bulk_settle(dt_exec_session_t *session);
void dt_exec_bulk_fini(dt_exec_session_t *session);

/* ---- engine_exec_window.c ---- */

typedef enum dt_exec_placed {
    DT_EXEC_PLACED_HERE,
    DT_EXEC_PLACED_LATER, /* the window has not come yet */
    DT_EXEC_PLACED_NEVER, /* it is another one's, or outside */
} dt_exec_placed_t;
/* Where the bytes of a PLACED chunk lie. */
dt_exec_placed_t dt_exec_window_find(const dt_exec_session_t *session,
                                     const dt_channel_chunk_t *head, const uint8_t **ret_bytes);
void dt_exec_window_drop(dt_exec_session_t *session);
/* Memory in the program's window. False: there is none, or no room. */
bool dt_exec_area_take(dt_exec_session_t *session, uint64_t size, dt_exec_area_t *ret_area);
void dt_exec_area_give(dt_exec_area_t *area); /* an empty one is fine */

/* ---- engine_exec_report.c ---- */

/* Put a field of WorkerSessionUp. The room was looked at before: what does not fit ends the session
 * at the agent, which sees a gap. */
void dt_exec_up(dt_exec_session_t *session, unsigned field, const void *body, size_t size);
/* Wake the agent for what went up: once for all of it. */
void dt_exec_kick(dt_exec_session_t *session);
bool dt_exec_has_room(dt_exec_session_t *session); /* for one more record; else it is blocked */
void dt_exec_result_error(dt_exec_session_t *session, uint64_t future, dt_exec_cause_t *cause);
void dt_exec_tell_poison(dt_exec_session_t *session, dt_exec_cause_t *cause);
void dt_exec_report(dt_exec_session_t *session);       /* Executed, if there is news */
void dt_exec_report_stats(dt_exec_session_t *session); /* what changed */
void dt_exec_list(dt_exec_session_t *session);
dt_exec_stat_t *dt_exec_stat(dt_exec_session_t *session, const char *name); /* NULL: no memory */

/* ---- engine_exec_memory.c ---- */

/* Blocks of this thread come from `arena` from now on; NULL: from the heap. */
void dt_exec_memory_use(dt_shm_arena_t *arena);

/* ---- engine_exec_trace.c; without a trace the caller does not call ---- */

/* Trace for so long from now on, anew. Without memory nothing is traced. */
void dt_exec_trace_begin(dt_exec_session_t *session, uint32_t duration_ms);
/* An operator ran for `spent_ns`, up to now. */
void dt_exec_trace_op(dt_exec_session_t *session, dt_exec_plan_t *plan, uint64_t sequence,
                      uint32_t signature, int64_t spent_ns, bool has_failed);
/* Send what is due, and end the trace when its time is over. */
void dt_exec_trace_turn(dt_exec_session_t *session);
int64_t dt_exec_trace_due_ns(const dt_exec_session_t *session); /* of the next turn that matters */
void dt_exec_trace_end(dt_exec_session_t *session);             /* without sending; none is fine */

#endif
