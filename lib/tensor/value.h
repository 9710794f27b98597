/* An argument of an operator: a tagged value. One form for the program's boxed call, for signatures
 * on the wire and for backends. The tag numbers are the wire's. */
#ifndef DT_TENSOR_VALUE_H
#define DT_TENSOR_VALUE_H
#include <stdbool.h>
#include <stdint.h>

typedef enum dt_value_tag {
    DT_VALUE_DEFAULT = 0, /* the schema's default */
    DT_VALUE_NONE = 1,
    DT_VALUE_FALSE = 2,
    DT_VALUE_TRUE = 3,
    DT_VALUE_INT = 4,
    DT_VALUE_DOUBLE = 5,
    DT_VALUE_COMPLEX = 6, /* doubles[0] + i doubles[1] */
    DT_VALUE_STR = 7,
    DT_VALUE_TENSOR = 8, /* which one: id or handle, as the user of the value says */
    DT_VALUE_INTS = 9,
    DT_VALUE_DOUBLES = 10,
    DT_VALUE_BOOLS = 11,
    DT_VALUE_TENSORS = 12, /* Tensor[] and Tensor?[] */
    DT_VALUE_VALUES = 13,  /* Scalar[] */
    DT_VALUE_STRS = 14,
    DT_VALUE_DTYPE = 15,
    DT_VALUE_LAYOUT = 16,
    DT_VALUE_MEMORY_FORMAT = 17,
    DT_VALUE_DEVICE = 18,    /* number: type; index: device index, -1 current */
    DT_VALUE_GENERATOR = 19, /* number: random stream id */
    DT_VALUE_STORAGE = 20,   /* of a tensor, as TENSOR */
    DT_VALUE_DYNAMIC = 21,   /* a number that each operator record brings anew */
    DT_VALUE_SMALL = 0x40,   /* on the wire only: 0x40..0x7f is the int 0..63 */
} dt_value_tag_t;

#define DT_VALUE_LIST_MAX 65535u /* elements of one list argument */

typedef struct dt_value {
    uint8_t tag;    /* dt_value_tag_t */
    int16_t index;  /* DEVICE */
    uint32_t count; /* elements of lists, bytes of STR */
    union {
        int64_t number; /* INT, DTYPE, LAYOUT, MEMORY_FORMAT, DEVICE, GENERATOR */
        double real;    /* DOUBLE */
        uint64_t id;    /* TENSOR, STORAGE on our side of a backend; 0: None */
        void *handle;   /* TENSOR, STORAGE at a backend; NULL: None */
        const int64_t *ints;
        const double *doubles;
        const uint8_t *bools;          /* each 0 or 1 */
        const char *text;              /* count bytes, no NUL counted */
        const uint64_t *ids;           /* TENSORS on our side; 0: None */
        void *const *handles;          /* TENSORS at a backend; NULL: None */
        const struct dt_value *values; /* VALUES: numbers; STRS: strings */
    };
} dt_value_t;

/* What an output of an operator is to its inputs. */
typedef enum dt_alias {
    DT_ALIAS_FRESH = 0,
    DT_ALIAS_VIEW = 1,     /* shares the storage of an input */
    DT_ALIAS_IN_PLACE = 2, /* is that input, written; has no id of its own in OP */
    DT_ALIAS_NONE = 3,     /* undefined; has no id in OP, and no meta or layout here */
} dt_alias_t;

/* A number that an operator record carries: TRUE, FALSE, INT, DOUBLE, or NONE. */
static inline bool dt_value_is_scalar(const dt_value_t *value)
{
    return value->tag >= DT_VALUE_NONE && value->tag <= DT_VALUE_DOUBLE;
}

#endif
