/* Signatures: what a DEF_SIG (and a DEF_PLAN) says. An operator's schema name, its attributes, and
 * the metadata and layouts of its tensors, so that an OP record needs only ids and the numbers that
 * change.
 *
 *   name str · argument count varint · arguments: tag u8 and value (below)
 *   · for each tensor input (TENSOR, STORAGE, and each of TENSORS that is not None): meta, layout
 *   · output count varint · for each output: alias u8 · input varint if it is an alias · meta,
 * layout · flags varint
 *
 * Values: DEFAULT NONE FALSE TRUE TENSOR STORAGE DYNAMIC nothing · INT zigzag · DOUBLE 8 bytes ·
 * COMPLEX 16 · STR str · INTS count, zigzags · DOUBLES count, 8 bytes each · BOOLS count, bytes ·
 * TENSORS count, a byte each (1: None) · VALUES count, tagged numbers · STRS count, strs · DTYPE
 * LAYOUT MEMORY_FORMAT u8 · DEVICE type u8, index + 1 u8 · GENERATOR stream varint · 0x40..0x7f the
 * int 0..63. There is one form for one signature, so that equal ones have equal bytes: an INT of
 * 0..63 must be the short one.
 *
 * A decoded signature lives in an arena; nothing in it points into the frame. Threads: none of its
 * own. */
#ifndef DT_WIRE_SIGNATURE_H
#define DT_WIRE_SIGNATURE_H
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "wire/record.h"

#define DT_SIGNATURE_ARGS_MAX    64u
#define DT_SIGNATURE_TENSORS_MAX 65535u
#define DT_SIGNATURE_BYTES_MAX   (128u << 10) /* of one body */

enum {
    DT_SIGNATURE_RANDOM = 1,         /* draws from a random stream */
    DT_SIGNATURE_DATA_DEPENDENT = 2, /* metadata of outputs depends on values */
    DT_SIGNATURE_UNKNOWN = 4,        /* the definer does not know the outputs: they are asked for */
    DT_SIGNATURE_FLAGS_ALL = 7,
};

typedef struct dt_signature_tensor {
    uint8_t alias;  /* outputs: dt_alias_t */
    uint32_t input; /* VIEW, IN_PLACE: which tensor input */
    dt_meta_t meta;
    dt_layout_t layout;
} dt_signature_tensor_t;

typedef struct dt_signature {
    const char *name; /* "aten::add.Tensor", terminated */
    uint32_t arg_count;
    uint32_t input_count;   /* tensors among the arguments, lists flattened */
    uint32_t output_count;  /* all outputs, those without an id too */
    uint32_t id_count;      /* outputs that have an id in OP */
    uint32_t dynamic_count; /* DYNAMIC arguments: the scalars of OP, in order */
    uint32_t flags;
    const dt_value_t *args;               /* (arg_count) TENSORS: ids[i] is 0 for None, else 1 */
    const dt_signature_tensor_t *inputs;  /* (input_count) */
    const dt_signature_tensor_t *outputs; /* (output_count) */
} dt_signature_t;

/* Decode the body of a DEF_SIG, or with `steps` left over that of a DEF_PLAN.
 * Ownership: *ret_signature lives in `arena`. Errors: a dt_frame_error_t, 0 if none. */
int dt_signature_decode(dt_cursor_t *cursor, dt_arena_t *arena, dt_signature_t **ret_signature);

/* Append the body. Errors: INVALID (a bound of this header; the text names it), LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_signature_encode(const dt_signature_t *signature, dt_buf_t *buf,
                                            dt_error_t *err);

/* Write a line for people: "aten::add.Tensor(T, T, alpha=1) [float32 (4,), ...] -> [...]". */
DT_MUST_USE dt_status_t dt_signature_print(const dt_signature_t *signature, dt_buf_t *buf);

#endif
