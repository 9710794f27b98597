/* Inside of the rules: a parsed line, and a call that is bound to it. For lib/shard/rules*.c and
 * their tests. */
#ifndef DT_SHARD_RULES_INTERNAL_H
#define DT_SHARD_RULES_INTERNAL_H
#include <stdbool.h>
#include <stdint.h>

#include "shard/rules.h"

#define DT_SHARD_PARAM_MAX 24u
#define DT_SHARD_SPEC_MAX  12u
#define DT_SHARD_CLASS_MAX 8u /* algebra */
#define DT_SHARD_LOC_MAX   2u
#define DT_SHARD_WORD_MAX  2u
#define DT_SHARD_NAME_MAX  95u /* bytes of an overload */

/* X(name in ops.def) */
#define DT_SHARD_FAMILY_MAP(X)                                                                     \
    X(PW)                                                                                          \
    X(LOSS)                                                                                        \
    X(LOSSB)                                                                                       \
    X(LOSSN)                                                                                       \
    X(LOSSNB)                                                                                      \
    X(NLL)                                                                                         \
    X(NLLB)                                                                                        \
    X(VNORM)                                                                                       \
    X(VIEW)                                                                                        \
    X(EXPAND)                                                                                      \
    X(PERM)                                                                                        \
    X(SQUEEZE)                                                                                     \
    X(REPEAT)                                                                                      \
    X(PAD)                                                                                         \
    X(INDEX)                                                                                       \
    X(CONV)                                                                                        \
    X(REPL)                                                                                        \
    X(RAND)                                                                                        \
    X(FACT)                                                                                        \
    X(DIM)                                                                                         \
    X(EACH)

typedef enum dt_shard_family {
#define X(name) DT_SHARD_FAMILY_##name,
    DT_SHARD_FAMILY_MAP(X)
#undef X
        DT_SHARD_FAMILY_LITERAL,
} dt_shard_family_t;

/* A piece of a line; not terminated. */
typedef struct dt_shard_text {
    const char *at;
    uint32_t size;
} dt_shard_text_t;

typedef enum dt_shard_param_kind {
    DT_SHARD_PARAM_SKIP,
    DT_SHARD_PARAM_TENSOR,
    DT_SHARD_PARAM_ATTR,
} dt_shard_param_kind_t;

typedef struct dt_shard_param {
    uint8_t kind;     /* dt_shard_param_kind_t */
    bool has_default; /* a number; else it is none, or must be given */
    int64_t number;
    dt_shard_text_t name;
} dt_shard_param_t;

/* One tensor's part of a template. */
typedef struct dt_shard_spec {
    dt_shard_text_t text; /* without the marks below */
    uint8_t term;         /* additive term */
    bool is_broadcast;    /* ^ */
    bool is_nonlinear;    /* ! */
    bool has_deps;        /* @ */
    uint16_t deps;        /* bit k: depends on tensor argument k */
} dt_shard_spec_t;

typedef enum dt_shard_reduce {
    DT_SHARD_REDUCE_UNSET,
    DT_SHARD_REDUCE_NONE,
    DT_SHARD_REDUCE_SUM,
    DT_SHARD_REDUCE_AVG,
    DT_SHARD_REDUCE_MAX,
    DT_SHARD_REDUCE_MIN,
} dt_shard_reduce_t;

/* L J A I D X N Z: letters of the grammar; others are words that look at attributes. */
enum {
    DT_SHARD_CLASS_MM = 'm',
    DT_SHARD_CLASS_CAST = 'c',
    DT_SHARD_CLASS_SCALE = 's',
    DT_SHARD_CLASS_SHIFT = 'h',
    DT_SHARD_CLASS_ADD = 'a',
    DT_SHARD_CLASS_SUB = 'b',
};

typedef struct dt_shard_class {
    char code;
    bool is_all;   /* * */
    uint16_t args; /* bit k: flat tensor input k */
} dt_shard_class_t;

/* What to make local: attribute `param`. */
typedef struct dt_shard_loc {
    uint8_t param;
    char what; /* o: shape of result `of`; i: size of dimension `dim` of input `of`; s: strides of
                  result 0 */
    uint8_t of, dim;
} dt_shard_loc_t;

typedef struct dt_shard_rule {
    dt_shard_text_t name; /* without ".default" */
    int line;
    uint8_t family;                  /* dt_shard_family_t */
    uint8_t param_count, slot_count; /* slots: tensor arguments */
    uint8_t in_count, out_count, class_count, loc_count, word_count;
    uint8_t reduce;                                      /* dt_shard_reduce_t */
    bool has_terms;                                      /* a + in the template */
    bool is_meta, is_join, is_in_place, is_put, is_back; /* words */
    bool is_runs;       /* runs=1: splits into runs, or joins them */
    bool is_rows;       /* rows=1: takes rows of a dimension, or joins them */
    bool is_real;       /* real: integers are rounded, so Partial passes with none of them */
    bool is_same;       /* same=1 */
    bool owes;          /* owes=1: settling a Partial result counts in the row's price */
    uint8_t vocabulary; /* label of the dimension that an index points into; 0: none */
    uint8_t grouped;    /* label whose sizes may differ among inputs if all divide (heads) */
    int8_t tail, unless,
        keepdim; /* parameter, -1: none; the number of entries of ~; the condition */
    bool is_word_number[DT_SHARD_WORD_MAX];
    int8_t words[DT_SHARD_WORD_MAX]; /* DIM: parameter or number; -1: no such attribute, so all */
    dt_shard_param_t params[DT_SHARD_PARAM_MAX];
    dt_shard_spec_t ins[DT_SHARD_SPEC_MAX], outs[DT_SHARD_SPEC_MAX];
    dt_shard_class_t classes[DT_SHARD_CLASS_MAX];
    dt_shard_loc_t locs[DT_SHARD_LOC_MAX];
} dt_shard_rule_t;

struct dt_shard_rules {
    dt_shard_rule_t *rules; /* (count) by name */
    uint32_t count;
};

typedef struct dt_shard_line {
    int line;
    const char *text;
} dt_shard_line_t;

/* rules_parse.c: read lines. Keeps their text. Errors: INVALID (what, and in which line), NOMEM. */
DT_MUST_USE dt_status_t dt_shard_rules_read(const dt_shard_line_t *lines, uint32_t count,
                                            dt_shard_rules_t **ret_rules, dt_error_t *err);
/* The rule of an overload, or of what it is the in-place or out= form of; NULL: none. */
const dt_shard_rule_t *dt_shard_rules_find(const dt_shard_rules_t *rules, const char *name,
                                           bool *ret_is_in_place);

/* ---- a call ---- */

typedef struct dt_shard_tensor {
    const dt_meta_t *meta;
    int32_t at;   /* which input or output of the signature; -1: a number */
    uint8_t slot; /* which tensor argument */
    uint8_t term;
    char kind; /* f i b c */
    bool is_linear;
    bool is_ignored; /* of shape (0,) in a list: cat drops it */
    bool has_deps;
    uint16_t deps;                   /* slots */
    uint8_t labels[DT_META_DIM_MAX]; /* 0: whole; ASCII or 128 + k */
} dt_shard_tensor_t;

typedef struct dt_shard_slot {
    uint32_t first, count; /* among `ins` */
    uint32_t param;
} dt_shard_slot_t;

typedef struct dt_shard_call {
    const dt_shard_rule_t *rule;
    const dt_signature_t *signature;
    bool is_in_place; /* result 0 is input 0, written */
    bool is_scaled;   /* no row is plain: the local result is scaled (gradient of a mean) */
    uint8_t reduce;   /* dt_shard_reduce_t: what becomes of a label that is missing in a result */
    uint32_t in_count, out_count, slot_count;
    uint32_t out_first; /* inputs from here on are out= arguments: where result k goes */
    dt_shard_slot_t slots[DT_SHARD_SPEC_MAX];
    int64_t divisors[256]; /* by label: product of the mesh dimensions that cut it evenly so far; 0:
                              one did not */
    dt_shard_tensor_t ins[DT_SHARD_TENSOR_MAX], outs[DT_SHARD_TENSOR_MAX];
} dt_shard_call_t;

/* rules_bind.c: give every dimension of every tensor its label. False: the call has no row. */
bool dt_shard_bind(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                   dt_shard_call_t *ret_call);
/* Lists of family EACH: how many elements, each a call of its own; 0: another family. */
uint32_t dt_shard_element_count(const dt_shard_rules_t *rules, const dt_signature_t *signature);
/* Bind element i of each list, and what goes with it. False: no row. */
bool dt_shard_bind_element(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                           uint32_t element, dt_shard_call_t *ret_call);
/* rules_family.c: the same for families whose labels follow from sizes. False: no row. */
bool dt_shard_bind_family(dt_shard_call_t *call);
/* The dimension that a split cuts or a cat joins, if all pieces are equal; -1: there is none. */
int dt_shard_run_dim(const dt_shard_call_t *call);
/* Rows of one dimension: those of the whole that each piece is. */
typedef struct dt_shard_pieces {
    bool joins; /* the whole is the result, the pieces are inputs */
    int dim;
    int64_t size;                    /* of the whole */
    uint32_t count;                  /* of pieces, ignored ones too */
    int64_t at[DT_SHARD_TENSOR_MAX]; /* (count) first row */
    const dt_shard_tensor_t *pieces; /* (count) */
} dt_shard_pieces_t;

/* rules_family.c: what a call of a rule with rows=1 takes or joins. False: that cannot be known, or
 * it is not one row after the other. */
bool dt_shard_pieces(const dt_shard_call_t *call, dt_shard_pieces_t *ret_pieces);
#define DT_SHARD_LABEL_ROWS 1u /* of the dimension of these rows: it is cut once */

/* Dimensions that a squeeze removes, of the global shape. Bit d. */
uint32_t dt_shard_squeezed(const dt_shard_call_t *call);

/* Attributes, by the name of the rule's parameter. */
typedef enum dt_shard_attr_kind {
    DT_SHARD_ATTR_NONE, /* none, or there is no such attribute */
    DT_SHARD_ATTR_NUMBER,
    DT_SHARD_ATTR_LIST,
    DT_SHARD_ATTR_UNKNOWN, /* a number that each operator record brings anew, or what rules do not
                              read */
} dt_shard_attr_kind_t;

typedef struct dt_shard_attr {
    uint8_t kind;
    uint32_t count; /* LIST */
    int64_t number; /* NUMBER: truncated */
    double real;    /* NUMBER */
    const int64_t *ints;
} dt_shard_attr_t;

dt_shard_attr_t dt_shard_attr(const dt_shard_call_t *call, const char *name);
dt_shard_attr_t dt_shard_attr_of(const dt_shard_call_t *call, unsigned param);

/* Is the dimension that an index points into one of the result alone, as in embedding's gradient?
 */
bool dt_shard_makes_vocabulary(const dt_shard_call_t *call);

/* ---- local programs ---- */

/* rules_program.c: replace the operator of `local`, whose arguments are local already, by a program
 * where its row needs one. False: no memory. */
bool dt_shard_program(const dt_shard_call_t *call, const dt_shard_mesh_t *mesh, uint32_t index,
                      dt_arena_t *arena, dt_shard_local_t *local);
/* Is the mean of this operator the sum of its parts' means, each times a number? */
bool dt_shard_has_mean(const dt_shard_call_t *call);

/* ---- attention (rules_attend.c) ---- */

bool dt_shard_is_attention(const char *name);
DT_MUST_USE dt_status_t dt_shard_attend_verify(const dt_signature_t *signature,
                                               const dt_shard_mesh_t *mesh, dt_error_t *err);
/* What place `index` runs; `local` has the inputs' metadata. False: no memory. */
bool dt_shard_attend_program(const dt_signature_t *signature, const dt_shard_mesh_t *mesh,
                             uint32_t index, dt_arena_t *arena, dt_shard_local_t *local);

/* ---- rows ---- */

typedef struct dt_shard_row {
    dt_placement_t ins[DT_SHARD_TENSOR_MAX], outs[DT_SHARD_TENSOR_MAX];
    int label;    /* 0: not by a label */
    bool is_even; /* all sizes of the label divide */
} dt_shard_row_t;

/* Visit every row of mesh dimension `dim` but "all Replicate", in the line's order. `have`:
 * placements of the inputs on that dimension (for units, groups, and what is kept as it is).
 * Stops when `visit` returns false. */
void dt_shard_rows(const dt_shard_call_t *call, uint32_t parts, const dt_placement_t *have,
                   bool is_plain, bool (*visit)(void *arg, const dt_shard_row_t *row), void *arg);

/* rules.c: which row of a line's rule a signature is, on each dimension of its mesh: the label that
 * is cut, 0 for a row by the operator's algebra, -1 for "all Replicate". False: by no line's row.
 * Shapes: ret_labels (mesh->ndim,). */
bool dt_shard_row_labels(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                         const dt_shard_mesh_t *mesh, int *ret_labels);

#endif
