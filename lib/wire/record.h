/* Records of the operator stream: what stands behind a frame's header.
 *
 * Body of each kind, in order. `varint` as in wire/varint.h, `id` a zigzag varint of (id - base)
 * where base is the last output id of the frame, `out` the same against base + 1 (ids given out in
 * order cost one zero byte), `str` a varint length and UTF-8, `scalar` a tag byte and its value,
 * `meta` dtype u8, ndim u8, sizes varint, layout u8 (and strides varint if it is EXPLICIT), `layout
 * of a mesh` mesh varint, count u8, placements.
 *
 *    1 DEF_SIG       id varint, signature body (wire/signature.h)
 *    2 DEF_MESH      id varint, ndim u8; each dimension: size varint, name str; 0 u8 and first vdev
 *                    varint (vdevs in a row), or 1 u8 and a varint for each vdev
 *    3 OP            signature varint, inputs u8, outputs << 4 | scalars u8, ids, outs, scalars
 *    4 OP_LONG       the same with three varint counts
 *    5 FREE          count varint (1..64), ids, each against the one before
 *    6 FETCH         id, future varint
 *    7 UPLOAD        out, transfer varint, meta, layout of a mesh, offset varint, size varint;
 *                    transfer 0: the bytes
 *    8 REDISTRIBUTE  id, out, layout of a mesh
 *    9 LOAD          uri str, tensor name str, out, layout of a mesh
 *   10 SAVE          uri str, tensor name str, id
 *   11 MARK          what varint, value varint, text str
 *   12 RECORD_BEGIN  recording varint
 *   13 RECORD_END    recording varint, count varint, ids that stay alive, each against the one
 * before 14 REPLAY        recording varint, out, count varint of (slot varint, id), count varint of
 *                    (record varint, scalar index u8, scalar)
 *   15 SEED          random stream varint, seed u64, offset varint
 *   16 OPTION        key varint, value str
 *   17 COPY_OUT      id, transfer varint                  controller -> worker only, as are 18 to
 * 20 18 COPY_IN       out, transfer varint, meta 19 BIND          vdev varint, pdev varint 20
 * DEF_PLAN      plan varint, signature body, count varint of steps (kind u8, mesh dims varint, from
 * placement, to placement, queue u8)
 *
 * Kind bit 0x80: a reader that does not know such a kind skips it. Threads: one a frame. */
#ifndef DT_WIRE_RECORD_H
#define DT_WIRE_RECORD_H
#include <stdbool.h>
#include <stdint.h>

#include "tensor/meta.h"
#include "tensor/value.h"
#include "wire/frame.h"

#define DT_RECORD_OP_INPUTS    64u /* of an ordinary OP; more are OP_LONG */
#define DT_RECORD_OP_OUTPUTS   15u
#define DT_RECORD_OP_SCALARS   14u
#define DT_RECORD_INPUTS_MAX   65535u
#define DT_RECORD_OUTPUTS_MAX  4096u
#define DT_RECORD_SCALARS_MAX  255u
#define DT_RECORD_FREE_MAX     64u
#define DT_RECORD_INLINE_MAX   4096u /* bytes of an UPLOAD without a transfer */
#define DT_RECORD_MESH_DIM_MAX 8u
#define DT_RECORD_VDEV_MAX     4096u /* devices of one mesh */
#define DT_RECORD_NAME_MAX     255u  /* bytes of a schema, tensor or dimension name */
#define DT_RECORD_URI_MAX      4095u
#define DT_RECORD_TEXT_MAX     1023u /* bytes of a MARK's or OPTION's text */
#define DT_RECORD_STEP_MAX     64u   /* steps of a plan */
#define DT_RECORD_SIG_MAX      (1u << 20)
#define DT_RECORD_MESH_MAX     65535u
#define DT_RECORD_OPTIONAL     0x80u

typedef enum dt_record_kind {
    DT_RECORD_DEF_SIG = 1,
    DT_RECORD_DEF_MESH = 2,
    DT_RECORD_OP = 3,
    DT_RECORD_OP_LONG = 4,
    DT_RECORD_FREE = 5,
    DT_RECORD_FETCH = 6,
    DT_RECORD_UPLOAD = 7,
    DT_RECORD_REDISTRIBUTE = 8,
    DT_RECORD_LOAD = 9,
    DT_RECORD_SAVE = 10,
    DT_RECORD_MARK = 11,
    DT_RECORD_BEGIN = 12,
    DT_RECORD_END = 13,
    DT_RECORD_REPLAY = 14,
    DT_RECORD_SEED = 15,
    DT_RECORD_SET_OPTION = 16,
    DT_RECORD_COPY_OUT = 17,
    DT_RECORD_COPY_IN = 18,
    DT_RECORD_BIND = 19,
    DT_RECORD_DEF_PLAN = 20,
    DT_RECORD_KIND_COUNT = 21,
} dt_record_kind_t;

/* Skipped by every reader; stands where a record was that a node must not run. */
#define DT_RECORD_NOP 0x80u

/* Keys of OPTION. A reader passes over keys that it does not know. */
typedef enum dt_option {
    DT_OPTION_DROP_SIGNATURE =
        1, /* value: a signature's id in decimal; it may not be named again */
} dt_option_t;

/* What a MARK says. */
typedef enum dt_mark {
    DT_MARK_STEP = 1,        /* a step of the program ended; value: its number; text: when, as value
                                of the next two, in decimal; may be empty */
    DT_MARK_RANGE_BEGIN = 2, /* text: its name; value: when, ns of the program's monotonic clock,
                                0: not told */
    DT_MARK_RANGE_END = 3,   /* value: likewise */
    DT_MARK_SNAPSHOT = 4,
    DT_MARK_SOURCE = 5, /* operators that follow come from here; value: number of the place; text:
                           "train.py:57 in loss" when the number is new, else empty */
} dt_mark_t;

typedef enum dt_placement_kind {
    DT_PLACEMENT_REPLICATE = 0,
    DT_PLACEMENT_SHARD = 1,
    DT_PLACEMENT_PARTIAL = 2,
} dt_placement_kind_t;

typedef enum dt_reduction {
    DT_REDUCTION_SUM = 0,
    DT_REDUCTION_AVG = 1,
    DT_REDUCTION_MAX = 2,
    DT_REDUCTION_MIN = 3,
} dt_reduction_t;

/* SHARD: who has which piece, where that is not the device at coordinate c piece c. Bits 0..6: by
 * how many the pieces are turned: c has piece (c - turn) mod k. FOLDED: pieces are the first half
 * of chunk c and the second half of chunk k - 1 - c, so all have the same share of a triangle. */
#define DT_ORDER_TURN_MAX 127u
#define DT_ORDER_FOLDED   128u
/* All bits, which say something else: a WINDOW. The tensor's rows are some of a longer dimension,
 * and lie where that one's lie, which is cut evenly: `unit` is that one's size, `groups` is 1 + the
 * first row. */
#define DT_ORDER_WINDOW 255u

/* Where a tensor lies along one mesh dimension. On the wire: kind u8; SHARD: dim u8, unit varint,
 * groups varint; PARTIAL: reduction u8; 3, a SHARD in another order: as SHARD, then order u8. */
typedef struct dt_placement {
    uint8_t kind;      /* dt_placement_kind_t */
    uint8_t dim;       /* SHARD: tensor dimension */
    uint8_t reduction; /* PARTIAL: dt_reduction_t */
    uint8_t order;     /* SHARD: see above; not the program's to say: dtorch.h has a gap here */
    uint32_t unit;     /* SHARD: borders are multiples of it; 1 or more */
    uint32_t groups;   /* SHARD: the dimension is planned as (groups, n / groups); 1 or more */
} dt_placement_t;

/* A tensor's layout: on which mesh, and where along each of its dimensions. */
typedef struct dt_layout {
    uint32_t mesh; /* 0: the session's first device alone */
    uint8_t ndim;  /* placements, 0..DT_RECORD_MESH_DIM_MAX */
    dt_placement_t placements[DT_RECORD_MESH_DIM_MAX];
} dt_layout_t;

typedef struct dt_record_op {
    uint32_t signature; /* towards a worker: the plan */
    uint32_t input_count;
    uint32_t output_count;
    uint32_t scalar_count;
    const uint64_t *inputs;    /* (input_count) */
    const uint64_t *outputs;   /* (output_count) */
    const dt_value_t *scalars; /* (scalar_count) NONE, FALSE, TRUE, INT, DOUBLE */
} dt_record_op_t;

typedef struct dt_record_mesh {
    uint32_t id;
    uint8_t ndim;        /* 1..DT_RECORD_MESH_DIM_MAX */
    uint32_t vdev_count; /* product of sizes, at most DT_RECORD_VDEV_MAX */
    uint32_t sizes[DT_RECORD_MESH_DIM_MAX];
    const char *names[DT_RECORD_MESH_DIM_MAX]; /* not terminated */
    uint32_t name_bytes[DT_RECORD_MESH_DIM_MAX];
    const uint64_t *vdevs; /* (vdev_count) distinct */
} dt_record_mesh_t;

typedef struct dt_record {
    uint8_t kind; /* dt_record_kind_t, or one with DT_RECORD_OPTIONAL that was skipped */
    uint64_t sequence;
    union {
        dt_record_op_t op; /* OP, OP_LONG */
        dt_record_mesh_t mesh;
        struct {
            uint32_t id;         /* DEF_SIG: signature; DEF_PLAN: plan */
            const uint8_t *body; /* signature body, and steps behind it: dt_signature_decode() */
            uint32_t body_bytes;
        } definition;
        struct {
            const uint64_t *ids;
            uint32_t count;
            uint32_t recording; /* END */
        } ids;                  /* FREE, END */
        struct {
            uint64_t tensor;      /* FETCH, SAVE, COPY_OUT, REDISTRIBUTE: input */
            uint64_t output;      /* UPLOAD, LOAD, COPY_IN, REDISTRIBUTE */
            uint64_t number;      /* FETCH: future; UPLOAD, COPY_*: transfer, 0: inline */
            uint64_t offset;      /* UPLOAD: first byte that the transfer fills */
            uint64_t size;        /* UPLOAD: bytes of it */
            const uint8_t *bytes; /* UPLOAD inline: (size) */
            const char *uri;      /* LOAD, SAVE; not terminated, as name */
            const char *name;
            uint32_t uri_bytes;
            uint32_t name_bytes;
            dt_meta_t meta;     /* UPLOAD, COPY_IN */
            dt_layout_t layout; /* REDISTRIBUTE, LOAD, UPLOAD */
        } move;
        struct {
            uint64_t
                what; /* MARK: dt_mark_t; SEED: stream; OPTION: key; BIND: vdev; BEGIN: recording */
            uint64_t value;   /* MARK; SEED: seed; BIND: pdev */
            uint64_t offset;  /* SEED */
            const char *text; /* MARK, OPTION; not terminated */
            uint32_t text_bytes;
        } note;
        struct {
            uint32_t recording;
            uint64_t output;       /* first */
            uint32_t slot_count;   /* pairs (slot, id) in `pairs` */
            const uint64_t *pairs; /* (slot_count, 2) */
            uint32_t change_count; /* changed scalars, left in their bytes: dt_record_change() */
            const uint8_t *changes;
            uint32_t change_bytes;
        } replay;
    };
    uint64_t ids_[DT_RECORD_OP_INPUTS + DT_RECORD_OP_OUTPUTS]; /* storage of the above */
    dt_value_t scalars_[DT_RECORD_SCALARS_MAX];
} dt_record_t;

const char *dt_record_kind_name(unsigned kind); /* "OP"; "unknown" */

/* Read the next record.
 * Returns 0, or a dt_frame_error_t; *ret_is_end is true behind the last record (then nothing was
 * read). The record's views live as long as the frame's bytes and until the next call on the
 * reader. */
int dt_record_next(dt_frame_reader_t *reader, dt_record_t *ret_record, bool *ret_is_end);

/* Write one record. False: it does not fit, the frame is unchanged: end this frame, begin another.
 * A record that breaks a bound of this header is a bug of the caller's. */
bool dt_record_put_op(dt_frame_writer_t *writer, const dt_record_op_t *op);
bool dt_record_put(dt_frame_writer_t *writer, const dt_record_t *record);
/* The most bytes that `record` can take in a frame. */
size_t dt_record_bound(const dt_record_t *record);

/* Read the next changed scalar of a REPLAY whose record came from dt_record_next() (so it is
 * sound). `cursor` begins at .changes; false at the end. */
bool dt_record_change(dt_cursor_t *cursor, uint32_t *ret_record, uint8_t *ret_index,
                      dt_value_t *ret_value);

/* Parts that signatures share. */
uint8_t *dt_record_put_meta(uint8_t *at, const dt_meta_t *meta);
void dt_record_get_meta(dt_cursor_t *cursor, dt_meta_t *ret_meta);
uint8_t *dt_record_put_placement(uint8_t *at, const dt_placement_t *placement);
void dt_record_get_placement(dt_cursor_t *cursor, dt_placement_t *ret_placement);
uint8_t *dt_record_put_layout(uint8_t *at, const dt_layout_t *layout);
void dt_record_get_layout(dt_cursor_t *cursor, dt_layout_t *ret_layout);
#define DT_RECORD_META_BYTES   (4u + 2u * DT_META_DIM_MAX * DT_VARINT_BYTES_MAX)
#define DT_RECORD_LAYOUT_BYTES (6u + 24u * DT_RECORD_MESH_DIM_MAX)

#endif
