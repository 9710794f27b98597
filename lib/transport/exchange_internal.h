/* Exchanges from inside:
 *   plan.c       what an engine has to do for a pair of layouts: pieces and messages
 *   exchange.c   one exchange as a state machine
 *   transport.c  sessions, the thread, the two ways in and out
 *   board.c      memory that the engines of a session on one host share
 *   link.c       frames to an engine on another host
 *
 * Places number the vdevs of both meshes, alike on all engines. A piece is a box of one of our
 * targets of at most DT_EXCHANGE_PIECE_BYTES (bigger boxes are cut, alike on all engines), and the
 * parts that it is made of, in order. What is made of parts that live in memory (ours, or of an
 * engine of this host) is read there; the owner of a reduced piece writes it to the other targets
 * of this host at once, while it is in the cache. */
#ifndef DT_TRANSPORT_EXCHANGE_INTERNAL_H
#define DT_TRANSPORT_EXCHANGE_INTERNAL_H
#include "base/arena.h"
#include "transport/reduce.h"
#include "transport/transport.h"

#define DT_EXCHANGE_PIECE_BYTES (1u << 20)
#define DT_EXCHANGE_PLAN_BYTES  ((size_t)64 << 20) /* of memory */
#define DT_EXCHANGE_MEMBERS_MAX 512u
#define DT_EXCHANGE_NOBODY      UINT32_MAX

/* How an engine reaches the memory of a vdev. */
typedef enum dt_exchange_reach {
    DT_EXCHANGE_OWN,
    DT_EXCHANGE_SHARED, /* another engine of this host */
    DT_EXCHANGE_REMOTE,
} dt_exchange_reach_t;

/* Who runs what; by a session, fixed while it lives. */
typedef struct dt_exchange_world {
    uint32_t self;            /* our member */
    uint32_t vdev_count;      /* places of the arrays */
    const uint32_t *members;  /* (vdev_count) member that runs a vdev; NOBODY */
    const uint32_t *hosts;    /* (vdev_count) host of a vdev; NULL: all are here */
    const uint8_t *is_remote; /* by member; NULL: none is */
} dt_exchange_world_t;

typedef struct dt_exchange_place {
    uint64_t vdev;
    uint32_t member;
    uint8_t reach;                           /* dt_exchange_reach_t */
    int64_t source_count, target_count;      /* elements; 0: no shard */
    int64_t source_strides[DT_META_DIM_MAX]; /* elements */
    int64_t target_strides[DT_META_DIM_MAX];
    bool is_filled;        /* ours: all of the target is made of pieces */
    const uint8_t *source; /* of the exchange that runs; valid where reach is not REMOTE */
    uint8_t *target;
} dt_exchange_place_t;

/* One part of a piece, or one more target. */
typedef struct dt_exchange_end {
    uint32_t place;
    int64_t offset; /* elements, of the corner in that local tensor */
} dt_exchange_end_t;

typedef struct dt_exchange_piece {
    uint8_t wave;
    bool is_reduce;
    bool is_done;
    uint32_t remote_count; /* parts that come by messages */
    uint32_t staged;       /* of them those that are here */
    dt_exchange_end_t to;
    uint32_t part_count, push_count;
    dt_exchange_end_t *parts;  /* (part_count) in part order */
    dt_exchange_end_t *pushes; /* (push_count) other targets that get the same */
    uint8_t **stages; /* (part_count) what came for a remote part; NULL if none is remote */
    int64_t sizes[DT_META_DIM_MAX];
} dt_exchange_piece_t;

/* A box that goes to an engine of another host. */
typedef struct dt_exchange_send {
    uint8_t wave;
    uint32_t part;
    dt_exchange_end_t from, to;
    uint32_t after; /* wave 1: the piece that makes it; NOBODY: all of wave 0 */
    int64_t sizes[DT_META_DIM_MAX];
} dt_exchange_send_t;

/* Whether the exchanges of a plan go by a group of devices; grouped.h. */
typedef enum dt_exchange_grouping {
    DT_EXCHANGE_NOT_SEEN, /* no exchange has ended well yet */
    DT_EXCHANGE_BY_HOST,
    DT_EXCHANGE_GROUPED,
} dt_exchange_grouping_t;

typedef struct dt_exchange_grouped dt_exchange_grouped_t;

struct dt_exchange_plan {
    char text[320]; /* for people: what, which tensor, from where to where */
    dt_meta_t meta;
    dt_shard_mesh_t from_mesh, to_mesh;
    dt_layout_t from, to;
    uint32_t item_bytes;
    bool is_reducing; /* the source has parts: then wave 1 is what owners have combined */
    uint32_t place_count;
    dt_exchange_place_t *places;
    dt_exchange_grouping_t grouping;
    dt_exchange_grouped_t *grouped; /* what a group does; NULL before the first time */

    /* Made for a world when it is first used in it. */
    bool is_prepared;
    dt_reduce_t reduce; /* how parts are combined */
    dt_reduce_t fill;   /* with what a Partial target is filled first */
    bool fills;
    bool has_pulls;      /* wave 1 is read out of other engines' targets */
    bool has_remotes;    /* engines of other hosts take part */
    uint64_t work_bytes; /* that our pieces read and write */
    uint32_t piece_count, send_count, member_count;
    dt_exchange_piece_t *pieces; /* (piece_count) by wave and target */
    dt_exchange_send_t *sends;   /* (send_count) in the order of their messages */
    uint32_t *members;           /* (member_count) rising, ours too */
    void **ends;                 /* room for the parts and targets of any piece */
    const int64_t **strides;     /* likewise */
    dt_arena_t arena;            /* all of it */
};

/* List what the engine of `world` has to do. Errors: NOT_FOUND (a vdev that nobody runs), NOMEM. */
dt_status_t dt_exchange_plan_prepare(dt_exchange_plan_t *plan, const dt_exchange_world_t *world,
                                     dt_error_t *err);
/* Fill our targets, where something of them is nobody's. */
void dt_exchange_plan_fill(const dt_exchange_plan_t *plan);
/* Make one piece; what its remote parts are is staged. */
void dt_exchange_piece_run(const dt_exchange_plan_t *plan, const dt_exchange_piece_t *piece);
/* Free what came for pieces and was not used. */
void dt_exchange_stages_free(dt_exchange_plan_t *plan);
/* Put the box of a message together. */
void dt_exchange_send_pack(const dt_exchange_plan_t *plan, const dt_exchange_send_t *send,
                           uint8_t *bytes);
/* Free what was prepared for groups; grouped.h. */
void dt_exchange_grouped_free(dt_exchange_plan_t *plan);
/* Bytes of a box. */
size_t dt_exchange_box_bytes(const dt_exchange_plan_t *plan, const int64_t *sizes);

#endif
