/* Rules of metadata: how they lie in memory, and the parts of the evaluator. What meta.def may say
 * is documented there. */
#ifndef DT_OPS_META_INTERNAL_H
#define DT_OPS_META_INTERNAL_H
#include "ops/meta.h"

#define DT_OPS_PARAM_MAX 24u /* of one overload */
#define DT_OPS_CHILD_MAX 16u /* arguments of one call, elements of one list */
#define DT_OPS_DEPTH_MAX 10u /* of calls within calls */
#define DT_OPS_INTS_MAX  32u /* elements of a list of integers */
#define DT_OPS_NODE_MAX  16384u
#define DT_OPS_LINE_MAX  512u /* rules */
#define DT_OPS_NAME_MAX  127u /* bytes of a name */

/* One line of meta.def. */
typedef struct dt_ops_line {
    int line;         /* in its file, for messages */
    const char *kind; /* "cpu", "any": of the device; "first": cpu, and before the Meta kernel */
    const char *text;
} dt_ops_line_t;

typedef enum dt_ops_node_kind {
    DT_OPS_NODE_NUMBER, /* number */
    DT_OPS_NODE_TRUE,
    DT_OPS_NODE_FALSE,
    DT_OPS_NODE_NONE,
    DT_OPS_NODE_UNDEFINED, /* a result that there is not */
    DT_OPS_NODE_DTYPE,     /* number: the dtype */
    DT_OPS_NODE_PARAM,     /* number: which */
    DT_OPS_NODE_LIST,      /* children; those that are SPLICE give all their elements */
    DT_OPS_NODE_SPLICE,
    DT_OPS_NODE_INDEX,   /* children: list, position */
    DT_OPS_NODE_ASK,     /* name, children; number: which of its results, -1: the only one */
    DT_OPS_NODE_BUILTIN, /* number: dt_ops_builtin_t; children */
} dt_ops_node_kind_t;

/* X(name in meta.def, enumerator, fewest arguments, most arguments); operators have names that no
 * rule can write. */
#define DT_OPS_BUILTIN_MAP(X)                                                                      \
    X("+", ADD, 2, 2)                                                                              \
    X("-", SUB, 2, 2)                                                                              \
    X("*", MUL, 2, 2)                                                                              \
    X("/", DIV, 2, 2)                                                                              \
    X("==", EQ, 2, 2)                                                                              \
    X("!=", NE, 2, 2)                                                                              \
    X("<", LT, 2, 2)                                                                               \
    X("<=", LE, 2, 2)                                                                              \
    X("and", AND, 2, 2)                                                                            \
    X("or", OR, 2, 2)                                                                              \
    X("not", NOT, 1, 1)                                                                            \
    X("choose", CHOOSE, 3, 3)                                                                      \
    X("cont", CONT, 2, 2)                                                                          \
    X("strided", STRIDED, 3, 3)                                                                    \
    X("ordered", ORDERED, 3, 3)                                                                    \
    X("cast", CAST, 2, 2)                                                                          \
    X("suggested", SUGGESTED, 1, 1)                                                                \
    X("first", FIRST, 2, 4)                                                                        \
    X("known", KNOWN, 1, 1)                                                                        \
    X("sizes", SIZES, 1, 1)                                                                        \
    X("strides", STRIDES, 1, 1)                                                                    \
    X("dtype", DTYPE, 1, 1)                                                                        \
    X("dim", DIM, 1, 1)                                                                            \
    X("numel", NUMEL, 1, 1)                                                                        \
    X("real", REAL, 1, 1)                                                                          \
    X("accumulate", ACCUMULATE, 1, 1)                                                              \
    X("is_float", IS_FLOAT, 1, 1)                                                                  \
    X("is_complex", IS_COMPLEX, 1, 1)                                                              \
    X("is_contiguous", IS_CONTIGUOUS, 1, 1)                                                        \
    X("is_channels_last", IS_CHANNELS_LAST, 1, 1)                                                  \
    X("is_dense", IS_DENSE, 1, 1)                                                                  \
    X("is_plain", IS_PLAIN, 1, 1)                                                                  \
    X("is_clear", IS_CLEAR, 1, 1)                                                                  \
    X("len", LEN, 1, 1)                                                                            \
    X("prod", PROD, 1, 1)                                                                          \
    X("slice", SLICE, 3, 3)                                                                        \
    X("replace", REPLACE, 3, 3)                                                                    \
    X("repeat", REPEAT, 2, 2)

typedef enum dt_ops_builtin {
#define X(text, name, least, most) DT_OPS_BUILTIN_##name,
    DT_OPS_BUILTIN_MAP(X)
#undef X
        DT_OPS_BUILTIN_COUNT
} dt_ops_builtin_t;

typedef struct dt_ops_node {
    uint8_t kind; /* dt_ops_node_kind_t */
    uint8_t child_count;
    uint16_t children; /* first of child_count numbers in the table of children */
    int64_t number;
    const char *name; /* ASK: terminated, of the rules */
} dt_ops_node_t;

typedef struct dt_ops_rule {
    const char *name; /* of the overload; of the rules */
    int line;
    bool is_any;   /* kind of device */
    bool is_first; /* before the Meta kernel */
    bool is_open;  /* further arguments are allowed, and mean nothing */
    uint8_t param_count;
    uint8_t result_count;
    int16_t condition;                  /* node; -1: none */
    int16_t defaults[DT_OPS_PARAM_MAX]; /* node; -1: the argument must be given */
    int16_t results[DT_OPS_RESULT_MAX]; /* nodes */
} dt_ops_rule_t;

struct dt_ops_rules {
    dt_ops_rule_t *rules; /* (rule_count) by name, then by line */
    dt_ops_node_t *nodes; /* (node_count) */
    uint16_t *children;   /* (child_count) nodes */
    char *names;          /* (name_bytes) terminated, one after the other */
    uint32_t rule_count, node_count, child_count, overload_count;
    size_t name_bytes;
};

/* Read rules from lines. Borrows them. Errors: INVALID (what, and in which line), NOMEM, LIMIT. */
DT_MUST_USE dt_status_t dt_ops_rules_read(const dt_ops_line_t *lines, uint32_t count,
                                          dt_ops_rules_t **ret_rules, dt_error_t *err);

/* ---- values while answering ---- */

typedef enum dt_ops_value_kind {
    DT_OPS_VALUE_NONE,
    DT_OPS_VALUE_BOOL,
    DT_OPS_VALUE_INT,
    DT_OPS_VALUE_INTS,
    DT_OPS_VALUE_DTYPE,
    DT_OPS_VALUE_TENSOR,
    DT_OPS_VALUE_UNDEFINED,
    DT_OPS_VALUE_RAW, /* an argument that is only passed on */
} dt_ops_value_kind_t;

typedef struct dt_ops_value {
    uint8_t kind;
    uint8_t alias;  /* TENSOR: FRESH, VIEW or IN_PLACE of `input` of the rule's operator */
    uint32_t count; /* INTS */
    uint32_t input; /* TENSOR */
    int64_t number; /* BOOL, INT, DTYPE */
    union {
        dt_meta_t meta; /* TENSOR */
        int64_t ints[DT_OPS_INTS_MAX];
        const dt_value_t *raw;
    };
} dt_ops_value_t;

/* meta_builtin.c: apply a builtin but CHOOSE, AND, OR to evaluated arguments. False: it does not
 * hold for these (out of range, overflow, another kind of value), and *ret_why says why. */
bool dt_ops_builtin_apply(dt_ops_builtin_t builtin, const dt_ops_value_t *args, uint32_t count,
                          dt_ops_value_t *ret_value, const char **ret_why);
const char *dt_ops_builtin_name(dt_ops_builtin_t builtin);

#endif
