/* How `ref` runs operators: the worked example of docs/backend.md. Only ref*.c and sim*.c include
 * this.
 *
 *     ref_tensor.c     storages, tensors, bytes in and out
 *     ref_layout.c     PyTorch's rules: broadcasting, promotion of dtypes, strides of results
 *     ref_loop.c       walking over the elements of up to four tensors
 *     ref_call.c       finding an operator, its arguments, running it or asking it
 *     ref_pointwise.c ref_view.c ref_create.c ref_reduce.c ref_matrix.c    the operators
 *
 * An operator is one function. It works out what its results are, makes them, and fills them; when
 * it is only asked (op_infer) tensors have no data and the loops do nothing, so that an answer
 * cannot differ from what is executed. Dtypes: f32, f64, i64, bool. Floats are computed in double
 * and rounded once, which for + - * / is what float arithmetic gives.
 *
 * Threads: the executor's and the metadata thread's calls share nothing that is written. */
#ifndef DT_DEVICE_REF_INTERNAL_H
#define DT_DEVICE_REF_INTERNAL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/backend.h"

#define DT_REF_ARG_MAX    12 /* of one operator */
#define DT_REF_RESULT_MAX 2
#define DT_REF_SLOT_MAX   4
#define DT_REF_NUMBER_MAX 3 /* numbers given for tensors, in one call */

typedef struct dt_ref_storage {
    void *data;                        /* NULL: no bytes, or only asked */
    const dt_backend_memory_t *memory; /* NULL: `data` is not ours */
    uint64_t bytes;
    int32_t ref_count;
} dt_ref_storage_t;

/* What a tensor handle points to. */
typedef struct dt_ref_tensor {
    dt_ref_storage_t *storage;
    int64_t offset; /* elements */
    dt_meta_t meta;
    int32_t ref_count;
    bool is_wrapped; /* a number: does not widen dtypes */
} dt_ref_tensor_t;

typedef struct dt_ref_device {
    const dt_backend_memory_t *memory;
} dt_ref_device_t;

/* A number of the schema, or an element; which member counts is said beside it. */
typedef union dt_ref_value {
    double f;
    int64_t i;
} dt_ref_value_t;

typedef struct dt_ref_number {
    uint8_t dtype; /* F64, I64 or BOOL */
    dt_ref_value_t value;
} dt_ref_number_t;

/* A number dressed as a tensor of no dimensions, for the call's time. */
typedef struct dt_ref_cell {
    dt_ref_tensor_t tensor;
    dt_ref_storage_t storage;
    uint64_t bytes;
} dt_ref_cell_t;

typedef struct dt_ref_call dt_ref_call_t;
typedef dt_ref_value_t (*dt_ref_element_fn)(const dt_ref_value_t *in);

/* What the common functions need to know of an operator beside its name. */
typedef struct dt_ref_kernel {
    dt_ref_element_fn f; /* for floats; NULL: refused */
    dt_ref_element_fn i; /* for i64 and bool; NULL: computed as float, result f32 */
    uint8_t inputs;      /* tensors, the first arguments */
    uint8_t number;      /* argument that is a number and comes after them; 0: none */
    uint8_t flags;
} dt_ref_kernel_t;

enum {
    DT_REF_IN_PLACE = 1, /* the result is the first input */
    DT_REF_COMPARE = 2,  /* the result is bool */
    DT_REF_NO_BOOL = 4,  /* refuses bool inputs */
    DT_REF_SWAPPED = 16, /* the second argument is the first input */
    DT_REF_ALPHA = 8,    /* `number` is alpha: 1 by default, of the result's kind */
};

typedef struct dt_ref_op {
    const char *name; /* "aten::add.Tensor" */
    uint32_t arg_count;
    dt_status_t (*run)(dt_ref_call_t *call);
    dt_ref_kernel_t kernel;
} dt_ref_op_t;

typedef struct dt_ref_table {
    const dt_ref_op_t *ops;
    size_t count;
} dt_ref_table_t;
dt_ref_table_t dt_ref_pointwise_table(void);
dt_ref_table_t dt_ref_view_table(void);
dt_ref_table_t dt_ref_create_table(void);
dt_ref_table_t dt_ref_reduce_table(void);
dt_ref_table_t dt_ref_matrix_table(void);

/* One call of one operator. */
struct dt_ref_call {
    const dt_ref_op_t *op;
    const dt_value_t *args; /* TENSOR, TENSORS: handles */
    uint32_t arg_count;
    bool is_question; /* nothing has data */
    const dt_backend_memory_t *memory;
    dt_ref_tensor_t *results[DT_REF_RESULT_MAX]; /* owned until the call is over */
    uint32_t result_count;
    dt_ref_cell_t cells[DT_REF_NUMBER_MAX];
    uint32_t cell_count;
    dt_error_t *err;
};

/* ---- ref_tensor.c ---- */
/* Make a tensor over new memory; strides NULL: contiguous. `memory` NULL: without data.
 * Ownership: gives *ret_tensor, one reference. Errors: LIMIT, INVALID, NOMEM. */
DT_MUST_USE dt_status_t dt_ref_tensor_new(const dt_backend_memory_t *memory, unsigned dtype,
                                          unsigned ndim, const int64_t *sizes,
                                          const int64_t *strides, dt_ref_tensor_t **ret_tensor,
                                          dt_error_t *err);
/* The same of metadata that was checked. */
DT_MUST_USE dt_status_t dt_ref_tensor_of(const dt_backend_memory_t *memory, const dt_meta_t *meta,
                                         dt_ref_tensor_t **ret_tensor, dt_error_t *err);
/* Make another tensor over the same storage. */
DT_MUST_USE dt_status_t dt_ref_tensor_alias(dt_ref_tensor_t *of, unsigned ndim,
                                            const int64_t *sizes, const int64_t *strides,
                                            int64_t offset, dt_ref_tensor_t **ret_tensor,
                                            dt_error_t *err);
dt_ref_tensor_t *dt_ref_tensor_keep(dt_ref_tensor_t *tensor); /* one more reference */
void dt_ref_tensor_drop(dt_ref_tensor_t *tensor);             /* NULL is fine */
void *dt_ref_tensor_data(const dt_ref_tensor_t *tensor);      /* first element; NULL: no data */
bool dt_ref_is_dtype(unsigned dtype);
/* Errors: INVALID (bytes beyond the packed elements). */
DT_MUST_USE dt_status_t dt_ref_check_range(const dt_ref_tensor_t *tensor, uint64_t offset,
                                           size_t size, dt_error_t *err);
static inline bool dt_ref_is_float(unsigned dtype)
{
    return dtype == DT_DTYPE_F32 || dtype == DT_DTYPE_F64;
}

/* ---- ref_layout.c ---- */
/* The shape that all of tensors[0 .. count) broadcast to. Errors: INVALID. */
DT_MUST_USE dt_status_t dt_ref_broadcast(dt_ref_tensor_t *const *tensors, uint32_t count,
                                         unsigned *ret_ndim, int64_t *ret_sizes, dt_error_t *err);
/* The dtype that an operator over these tensors computes in. */
unsigned dt_ref_promote(dt_ref_tensor_t *const *tensors, uint32_t count);
/* Strides of a new result of this shape, as the inputs' strides suggest. */
void dt_ref_pointwise_strides(dt_ref_tensor_t *const *tensors, uint32_t count, unsigned ndim,
                              const int64_t *sizes, int64_t *ret_strides);
/* Strides that are dense and keep the order of `meta`'s; those of `meta` where they are dense. */
void dt_ref_dense_strides(const dt_meta_t *meta, int64_t *ret_strides);
bool dt_ref_is_contiguous(const dt_meta_t *meta);
bool dt_ref_is_dense(const dt_meta_t *meta); /* no gaps, no overlap, in any order */
/* May `tensor` be written while `from` is read? Errors: INVALID (elements share memory). */
DT_MUST_USE dt_status_t dt_ref_check_overlap(const dt_ref_tensor_t *tensor,
                                             dt_ref_tensor_t *const *from, uint32_t count,
                                             dt_error_t *err);

/* ---- ref_loop.c ---- */
/* Up to four tensors walked over together; slot 0 is written. */
typedef struct dt_ref_loop {
    unsigned ndim;
    int64_t sizes[DT_META_DIM_MAX];
    uint32_t count;
    struct {
        char *at;
        uint8_t dtype;
        uint8_t as;                     /* dtype that it is computed as */
        int64_t steps[DT_META_DIM_MAX]; /* bytes */
    } slots[DT_REF_SLOT_MAX];
} dt_ref_loop_t;
void dt_ref_loop_init(dt_ref_loop_t *loop, unsigned ndim, const int64_t *sizes);
/* Add a tensor, broadcast to the loop's shape. `as`: 0xff for its own dtype. */
void dt_ref_loop_add(dt_ref_loop_t *loop, const dt_ref_tensor_t *tensor, unsigned as);
/* out = fn(in) for each element. Slot 0's `as` is the dtype that `fn` returns. */
void dt_ref_loop_run(dt_ref_loop_t *loop, dt_ref_element_fn fn);
dt_ref_value_t dt_ref_load(const char *at, unsigned dtype, unsigned as);
void dt_ref_store(char *at, unsigned dtype, unsigned as, dt_ref_value_t value);
/* Move `index` on by one element, the last dimension fastest. False: that was the last. */
bool dt_ref_step(unsigned ndim, const int64_t *sizes, int64_t *index);
/* to = from, broadcast and converted. */
void dt_ref_copy(const dt_ref_call_t *call, dt_ref_tensor_t *to, const dt_ref_tensor_t *from);

/* ---- ref_call.c: arguments by position; what is missing or DEFAULT is `otherwise` ---- */
bool dt_ref_is_given(const dt_ref_call_t *call, uint32_t at); /* neither DEFAULT nor None */
DT_MUST_USE dt_status_t dt_ref_arg_tensor(dt_ref_call_t *call, uint32_t at,
                                          dt_ref_tensor_t **ret_tensor); /* numbers are dressed */
/* A number as a wrapped tensor of the call. */
dt_ref_tensor_t *dt_ref_dress(dt_ref_call_t *call, const dt_ref_number_t *number);
/* The same for operators that look at no element: any dtype, no number. */
DT_MUST_USE dt_status_t dt_ref_arg_any(dt_ref_call_t *call, uint32_t at,
                                       dt_ref_tensor_t **ret_tensor);
/* Errors: INVALID (elements that `ref` does not compute with). */
DT_MUST_USE dt_status_t dt_ref_check_dtype(dt_ref_call_t *call, unsigned dtype);
DT_MUST_USE dt_status_t dt_ref_arg_int(dt_ref_call_t *call, uint32_t at, int64_t otherwise,
                                       int64_t *ret_value);
DT_MUST_USE dt_status_t dt_ref_arg_bool(dt_ref_call_t *call, uint32_t at, bool otherwise,
                                        bool *ret_value);
DT_MUST_USE dt_status_t dt_ref_arg_number(dt_ref_call_t *call, uint32_t at, double otherwise,
                                          dt_ref_number_t *ret_value);
/* An int is a list of one. Errors: INVALID (no such list, more than DT_META_DIM_MAX). */
DT_MUST_USE dt_status_t dt_ref_arg_ints(dt_ref_call_t *call, uint32_t at, int64_t *ret_values,
                                        unsigned *ret_count);
DT_MUST_USE dt_status_t dt_ref_arg_dtype(dt_ref_call_t *call, uint32_t at, unsigned otherwise,
                                         unsigned *ret_dtype);
/* A dimension, counted from the end if negative; `ndim` 0 counts as 1. */
DT_MUST_USE dt_status_t dt_ref_dim(dt_ref_call_t *call, int64_t dim, unsigned ndim,
                                   unsigned *ret_dim);
DT_MUST_USE dt_status_t dt_ref_refuse(dt_ref_call_t *call, dt_backend_error_t kind,
                                      const char *format, ...) DT_PRINTF_LIKE(3, 4);
/* Make a result and append it. Ownership: *ret_tensor is the call's. */
DT_MUST_USE dt_status_t dt_ref_result(dt_ref_call_t *call, unsigned dtype, unsigned ndim,
                                      const int64_t *sizes, const int64_t *strides,
                                      dt_ref_tensor_t **ret_tensor);
DT_MUST_USE dt_status_t dt_ref_result_view(dt_ref_call_t *call, dt_ref_tensor_t *of, unsigned ndim,
                                           const int64_t *sizes, const int64_t *strides,
                                           int64_t offset);
DT_MUST_USE dt_status_t dt_ref_result_same(dt_ref_call_t *call, dt_ref_tensor_t *tensor);
/* Run call->op; after an error there are no results. */
DT_MUST_USE dt_status_t dt_ref_run(dt_ref_call_t *call, uint32_t result_max);

/* ---- entries of the table ---- */
dt_status_t dt_ref_device_open(void *ctx, const dt_backend_device_options_t *options,
                               void **ret_device, dt_error_t *err);
void dt_ref_device_close(void *device);
dt_status_t dt_ref_op_find(void *device, const char *name, void **ret_op, dt_error_t *err);
dt_status_t dt_ref_op_execute(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                              void **ret_results, uint32_t result_max, uint32_t *ret_count,
                              dt_error_t *err);
dt_status_t dt_ref_op_infer(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                            const dt_meta_t *inputs, uint32_t input_count,
                            dt_backend_output_t *ret_outputs, uint32_t output_max,
                            uint32_t *ret_count, dt_error_t *err);
dt_status_t dt_ref_tensor_create(void *device, const dt_meta_t *meta, void **ret_tensor,
                                 dt_error_t *err);
bool dt_ref_tensor_is(void *device, void *tensor, const dt_meta_t *meta, const void **ret_storage);
dt_status_t dt_ref_tensor_info(void *device, void *tensor, dt_backend_tensor_t *ret_info,
                               dt_error_t *err);
dt_status_t dt_ref_tensor_write(void *device, void *tensor, uint64_t offset, const void *bytes,
                                size_t size, dt_error_t *err);
dt_status_t dt_ref_tensor_read(void *device, void *tensor, uint64_t offset, void *ret_bytes,
                               size_t size, dt_error_t *err);
void dt_ref_tensor_free(void *device, void *tensor);
/* No operator here draws random numbers, so streams need nothing. */
dt_status_t dt_ref_generator_seed(void *device, uint32_t stream, uint64_t seed, uint64_t offset,
                                  dt_error_t *err);
dt_status_t dt_ref_generator_use(void *device, uint32_t stream, dt_error_t *err);
void dt_ref_generator_free(void *device, uint32_t stream);

#endif
