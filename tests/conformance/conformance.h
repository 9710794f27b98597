/* Conformance: one backend against the torch backend on the CPU, operator by operator. Both get the
 * same bytes and the same views of them; what comes back is compared in values, dtype, sizes,
 * strides, offset and in which input's memory it lies, and so is every input afterwards, since
 * operators write in place. What op_infer says is compared with what was executed.
 *
 *     cases.c   the table: operators, argument patterns, shapes, dtypes, tolerances
 *     run.c     one case on both backends
 *     main.c    loads backends, goes through the table, prints */
#ifndef DT_CONFORMANCE_H
#define DT_CONFORMANCE_H
#include <stdbool.h>
#include <stdint.h>

#include "device/backend.h"

#define DT_CONF_TENSOR_MAX 3  /* of one case */
#define DT_CONF_ARG_MAX    12 /* arguments */
#define DT_CONF_RESULT_MAX 4

/* An operator with a pattern of arguments, run over all shapes of a set and all dtypes.
 * Pattern, one word an argument: "@0" tensor 0 of the shapes ("@0b": always bool), "[@0,@1]" a list
 * of tensors, "i:2" "f:0.5" "b:1" numbers, "l:2,3" a list of ints, "d:f" a dtype, "m:0" a memory
 * format, "n" None, "-" the default. */
typedef struct dt_conf_row {
    const char *op;
    const char *args;
    char set;           /* of shapes */
    const char *dtypes; /* of tensors: f d i b */
    bool is_mixed;      /* each tensor has each of them, else all tensors have the same */
    double tolerance;   /* in units of the dtype's epsilon times max(1, |value|); 0: bit-equal */
    bool is_unset;      /* the values of the result are not defined */
} dt_conf_row_t;

/* Shapes of the tensors of one case: "2x3", "" for no dimensions, with a letter behind for how the
 * elements lie: t transposed, s every second row of a larger one, e expanded along the last
 * dimension, p permuted, v special values (NaN, infinities, zeros). */
typedef struct dt_conf_shapes {
    char set;
    const char *of[DT_CONF_TENSOR_MAX]; /* NULL behind the last */
} dt_conf_shapes_t;

const dt_conf_row_t *dt_conf_rows(size_t *ret_count);
const dt_conf_shapes_t *dt_conf_shapes(size_t *ret_count);

/* A backend with a device open. */
typedef struct dt_conf_backend {
    const dt_backend_t *table;
    void *device;
} dt_conf_backend_t;

typedef struct dt_conf_case {
    const dt_conf_row_t *row;
    const dt_conf_shapes_t *shapes;
    char dtypes[DT_CONF_TENSOR_MAX]; /* of its tensors */
} dt_conf_case_t;

typedef enum dt_conf_verdict {
    DT_CONF_SAME = 0,
    DT_CONF_BOTH_REFUSE = 1,
    DT_CONF_ABSENT = 2, /* the backend has no such operator */
    DT_CONF_DIFFERENT = 3,
} dt_conf_verdict_t;

/* What was seen over the cases of an operator. */
typedef struct dt_conf_report {
    double error[2]; /* largest, f32 and f64, in units of epsilon */
    bool has_inferred;
    char text[512]; /* of a difference */
} dt_conf_report_t;

dt_conf_verdict_t dt_conf_run(const dt_conf_case_t *conf_case, const dt_conf_backend_t *tested,
                              const dt_conf_backend_t *oracle, dt_conf_report_t *report);
/* Print "aten::add.Tensor(2x3:f, 3:i)". */
void dt_conf_print_case(const dt_conf_case_t *conf_case, char *text, size_t size);

#endif
