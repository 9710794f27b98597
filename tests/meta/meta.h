/* Every rule of lib/ops/meta.def against the truth: the operator is executed by the torch backend
 * on the CPU, with many sets of random arguments, and each result's dtype, sizes, strides, lazy
 * bits and aliasing are compared with what the rule said.
 *
 *     cases.c   a row an operator: who makes its arguments
 *     gen.c     random tensors of given shapes: dense in any order, with gaps, expanded, channels
 *               last, behind an offset, lazily conjugated, empty; and other arguments
 *     main.c    asks, executes, compares, counts, prints */
#ifndef DT_TESTS_META_H
#define DT_TESTS_META_H
#include <stdbool.h>
#include <stdint.h>

#include "device/backend.h"

#define DT_RULES_ARG_MAX    24
#define DT_RULES_TENSOR_MAX 12
#define DT_RULES_INTS_MAX   64

/* One set of arguments, and what they are made from. */
typedef struct dt_gen {
    const dt_backend_t *table;
    void *device;
    uint64_t state; /* of the random numbers */
    dt_value_t args[DT_RULES_ARG_MAX];
    uint32_t arg_count;
    void *tensors[DT_RULES_TENSOR_MAX]; /* in order of the arguments */
    uint32_t tensor_count;
    void *owned[3 * DT_RULES_TENSOR_MAX];
    uint32_t owned_count;
    int64_t ints[DT_RULES_INTS_MAX]; /* that lists point at */
    uint32_t ints_used;
    uint8_t bools[8];
    bool is_plain;  /* tensors contiguous from here on */
    bool is_broken; /* a tensor could not be made */
} dt_gen_t;

typedef struct dt_rules_row {
    const char *name;
    void (*make)(dt_gen_t *g, const char *how); /* appends arguments */
    const char *how;                            /* for `make`: dtypes, a variant */
} dt_rules_row_t;

const dt_rules_row_t *dt_rules_rows(uint32_t *ret_count);

void dt_gen_begin(dt_gen_t *g, uint64_t seed);
void dt_gen_end(dt_gen_t *g); /* frees the tensors */

/* ---- draws ---- */
uint32_t dt_gen_below(dt_gen_t *g, uint32_t bound); /* 0..bound - 1 */
bool dt_gen_chance(dt_gen_t *g, uint32_t percent);
int64_t dt_gen_size(dt_gen_t *g); /* of a dimension: 0 seldom, 1 often, up to 9 */
/* A dtype of letters: f d h b(f16) for floats, i j k u for 64, 32, 8 bits and uint8, o bool, c z
 * complex. */
unsigned dt_gen_dtype(dt_gen_t *g, const char *letters);
unsigned dt_gen_shape(dt_gen_t *g, unsigned least, unsigned most, int64_t *ret_sizes);

/* ---- arguments, appended ---- */
void dt_gen_tensor(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes);
/* Integers of 0..bound - 1, of `dtype`; with a negative bound all are its amount. */
void dt_gen_indices(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes,
                    int64_t bound);
/* Of a shape that broadcasts to `sizes`. */
void dt_gen_broadcast(dt_gen_t *g, unsigned dtype, unsigned ndim, const int64_t *sizes);
void dt_gen_int(dt_gen_t *g, int64_t number);
void dt_gen_double(dt_gen_t *g, double number);
void dt_gen_bool(dt_gen_t *g, bool is_true);
void dt_gen_none(dt_gen_t *g);
void dt_gen_names(dt_gen_t *g, uint32_t count); /* of so many dimensions, at most 8 */
void dt_gen_default(dt_gen_t *g);
void dt_gen_type(dt_gen_t *g, unsigned dtype);
void dt_gen_list(dt_gen_t *g, unsigned count, const int64_t *ints);
void dt_gen_mask(dt_gen_t *g, unsigned count); /* bool[count] */

#endif
