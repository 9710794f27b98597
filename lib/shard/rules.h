/* Rules of placement: which layouts an operator accepts, and which its results have.
 *
 * lib/ops/ops.def has a line an overload (docs/placement-rules.md: the grammar). A line gives, for
 * a call and one mesh dimension, *rows*: a placement for each tensor input and each result such
 * that running the operator on every device's part gives the parts of the global result. "All
 * Replicate" is always a row. On a mesh of several dimensions a row is taken for each, from left to
 * right.
 *
 * Three calls, and the same answers in a program, the controller and an engine:
 *   dt_shard_propagate   the client: layouts are given, what must move, and what comes out?
 *   dt_shard_verify      the controller: do these layouts of inputs give these of outputs, with
 *                        nothing moved?
 *   dt_shard_localize    an engine: what does one device of the mesh run?
 *
 * An operator that has no line, whose outputs nobody knows (DT_SIGNATURE_UNKNOWN), or that draws
 * random numbers has no row but "all Replicate". In place: a row must leave the written input where
 * it was; out=: where the result is. Numbers in a tensor's place are Replicate inputs without an
 * entry in the answer. Results that there are not (DT_ALIAS_NONE) have the layout of no tensor: all
 * Replicate.
 *
 * Attention whose sequence is sharded is several operators with communication between them, and two
 * of its own, DT_SHARD_ATTEND and DT_SHARD_ATTEND_BACKWARD (rules_attend.c).
 *
 * Threads: a dt_shard_rules_t is constant after it was made; any number may use it. Blocking:
 * never. Allocation: none but by dt_shard_rules_create() and, into the caller's arena, by
 * dt_shard_localize(). */
#ifndef DT_SHARD_RULES_H
#define DT_SHARD_RULES_H
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "shard/layout.h"
#include "wire/signature.h"

#define DT_SHARD_TENSOR_MAX                                                                        \
    256u /* inputs or outputs of one call that rules look at; more: whole                          \
          */

typedef struct dt_shard_rules dt_shard_rules_t;

/* Read the rules that are built in (ops.def). Cost: about 1 ms, once.
 * Ownership: gives *ret_rules, dt_shard_rules_free(). Errors: NOMEM; INVALID is a bug of ops.def,
 * which the unit tests find, and the text names its line. */
DT_MUST_USE dt_status_t dt_shard_rules_create(dt_shard_rules_t **ret_rules, dt_error_t *err);
void dt_shard_rules_free(dt_shard_rules_t *rules); /* NULL is fine */
/* Whether there is a line for an overload ("aten::mm" or "aten::mm.default"); add_.Tensor uses the
 * line of add.Tensor. */
bool dt_shard_rules_has(const dt_shard_rules_t *rules, const char *name);

/* What to move when no row fits. Each can be left out, to measure what it is worth. */
enum {
    DT_SHARD_STRICT = 1,  /* nothing may move: INVALID instead */
    DT_SHARD_SETTLE = 2,  /* Partial passes only operators that join or shrink (add, sum, cat,
                             views); others settle it first */
    DT_SHARD_PLAIN = 4,   /* no row whose local operator is another than the program's */
    DT_SHARD_NO_ROWS = 8, /* slices of a cut dimension move: no new windows */
    DT_SHARD_AUTO = DT_SHARD_SETTLE, /* the default of programs */
};

/* What is known of an input beyond its layout. */
enum {
    DT_SHARD_PINNED = 1, /* placed by the program's plan: not moved unless no other row exists */
};

typedef struct dt_shard_policy {
    uint32_t flags;             /* DT_SHARD_STRICT, ... */
    const uint8_t *input_flags; /* (input_count) DT_SHARD_PINNED; NULL: none */
    const dt_layout_t *wanted;  /* for operators without tensor inputs: the layout of every output;
                                   NULL: Replicate. For the gradient of an embedding: where its
                                   table lies; NULL: not by rows */
} dt_shard_policy_t;

/* An answer. The caller gives the arrays. */
typedef struct dt_shard_answer {
    dt_layout_t *inputs;  /* (input_count) what each input must have */
    dt_layout_t *outputs; /* (output_count) */
    int64_t price_bytes;  /* that the busiest device receives for all moves; in place: the way back
                             of the written input included */
    uint32_t moved_count; /* inputs whose layout is another than given */
    bool is_replicated;   /* no row held: everything is made whole */
} dt_shard_answer_t;

/* Find what must move and what comes out, on `mesh` (whose id in layouts is `mesh_id`).
 * An input on another mesh counts as one that must be brought. Equal prices: fewer changed inputs,
 * then sharded outputs, then the line's order.
 * A written input (IN_PLACE) that must move keeps its own layout in the program's eyes: inputs[k]
 * and the output say where the operator runs; the caller moves it there and back. Errors: INVALID:
 * a layout that no tensor can have (the text of dt_layout_check()); with DT_SHARD_STRICT that
 * something must move (the text has operator, shapes, placements, and the nearest row). Cost: 2 to
 * 20 us. */
DT_MUST_USE dt_status_t dt_shard_propagate(const dt_shard_rules_t *rules,
                                           const dt_signature_t *signature,
                                           const dt_shard_mesh_t *mesh, uint32_t mesh_id,
                                           const dt_shard_policy_t *policy,
                                           dt_shard_answer_t *answer, dt_error_t *err);

/* Check a signature whose inputs and outputs all have layouts on one mesh: is it a row?
 * Errors: INVALID; the text names the operator and both versions of the first layout that differs.
 */
DT_MUST_USE dt_status_t dt_shard_verify(const dt_shard_rules_t *rules,
                                        const dt_signature_t *signature,
                                        const dt_shard_mesh_t *mesh, dt_error_t *err);

/* ---- attention, a block at a time ---- */

#define DT_SHARD_ATTEND          "dtorch::attend"
#define DT_SHARD_ATTEND_BACKWARD "dtorch::attend_backward"

/* May queries lie at `q_at` and their keys at `k_at`? Each device then has the heads and the part
 * of the batch of its queries. Shapes: (batch, heads, sequence, width). Cost: O(devices). */
bool dt_shard_attend_fits(const dt_shard_mesh_t *mesh, const dt_meta_t *q, const dt_layout_t *q_at,
                          const dt_meta_t *k, const dt_layout_t *k_at);

/* ---- one device ---- */

/* TENSOR arguments of a local operator: 1 + k is the call's tensor input k; what is at this number
 * and above is a result of an operator before: DT_SHARD_TEMP + 16 * t + r is result r of operator
 * t. */
#define DT_SHARD_TEMP 0x10000u

/* One operator to run. */
typedef struct dt_shard_op {
    const char *name;
    uint32_t arg_count;
    const dt_value_t *args; /* (arg_count) schema order; TENSOR and TENSORS: ids as above, 0: None.
                               DYNAMIC in a program of several: number is its index among those of
                               the call */
    const dt_meta_t
        *result; /* local metadata of result 0, strides not meant; NULL: as the call's */
} dt_shard_op_t;

/* How to make a local output without running anything. */
typedef enum dt_shard_fill {
    DT_SHARD_FILL_EMPTY = 0, /* no elements */
    DT_SHARD_FILL_SUM,       /* identity of Partial(sum): -0.0, or 0 for integers */
    DT_SHARD_FILL_MAX,       /* -inf, or the least value */
    DT_SHARD_FILL_MIN,       /* +inf, or the largest value */
} dt_shard_fill_t;

typedef struct dt_shard_local {
    bool is_run;              /* false: `fills` says what the outputs are instead */
    bool is_written;          /* the operators write to inputs; what the last one gives is none of
                                 the outputs */
    uint32_t op_count;        /* 1 but for rows with a local program */
    const dt_shard_op_t *ops; /* (op_count) in order; the last gives the outputs */
    const dt_meta_t *inputs;  /* (input_count) local; strides as dt_shard_local_meta() says */
    const dt_meta_t *outputs; /* (output_count) local sizes, to compare with; NONE: zeroed */
    const uint8_t *fills;     /* (output_count) dt_shard_fill_t */
} dt_shard_local_t;

/* What place `index` of the mesh runs for a signature that dt_shard_verify() accepts. Where `ops`
 * has one operator it is the program's with sizes made local; DYNAMIC arguments stay DYNAMIC.
 * Ownership: everything in *ret_local lives in `arena` or in the signature. Errors: INVALID (it is
 * no row: never after dt_shard_verify()), NOMEM (the arena's cap). Cost: a few us. */
DT_MUST_USE dt_status_t dt_shard_localize(const dt_shard_rules_t *rules,
                                          const dt_signature_t *signature,
                                          const dt_shard_mesh_t *mesh, uint32_t index,
                                          dt_arena_t *arena, dt_shard_local_t *ret_local,
                                          dt_error_t *err);

#endif
