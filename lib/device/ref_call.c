/* A call of an operator: found by name, given its arguments, run or only asked. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/ref_internal.h"

/* ---- errors ---- */
dt_status_t dt_ref_refuse(dt_ref_call_t *call, dt_backend_error_t kind, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dt_fail(call->err, DT_ERR_INVALID, "ref", kind, "%s: %s", call->op->name, text);
}

static dt_status_t wrong_type(dt_ref_call_t *call, uint32_t at, const char *wanted)
{
    return dt_ref_refuse(call, DT_BACKEND_TYPE_ERROR, "argument %u must be %s", at, wanted);
}

dt_status_t dt_ref_check_dtype(dt_ref_call_t *call, unsigned dtype)
{
    if (dt_ref_is_dtype(dtype))
        return DT_OK;
    return dt_ref_refuse(call, DT_BACKEND_NOT_IMPLEMENTED,
                         "not for %s, only for float32, float64, int64 and bool",
                         dt_dtype_name(dtype));
}

/* ---- arguments ---- */
bool dt_ref_is_given(const dt_ref_call_t *call, uint32_t at)
{
    return at < call->arg_count && call->args[at].tag != DT_VALUE_DEFAULT &&
           call->args[at].tag != DT_VALUE_NONE;
}

static bool number_of(const dt_value_t *value, dt_ref_number_t *ret_number)
{
    dt_ref_number_t number = {.dtype = DT_DTYPE_I64};
    switch (value->tag) {
    case DT_VALUE_FALSE:
    case DT_VALUE_TRUE:
        number.dtype = DT_DTYPE_BOOL;
        number.value.i = value->tag == DT_VALUE_TRUE;
        break;
    case DT_VALUE_INT:
        number.value.i = value->number;
        break;
    case DT_VALUE_DOUBLE:
        number.dtype = DT_DTYPE_F64;
        number.value.f = value->real;
        break;
    default:
        return false;
    }
    *ret_number = number;
    return true;
}

dt_ref_tensor_t *dt_ref_dress(dt_ref_call_t *call, const dt_ref_number_t *number)
{
    dt_ref_cell_t *cell = &call->cells[call->cell_count++];
    dt_check(call->cell_count <= DT_REF_NUMBER_MAX); /* operators take at most so many */
    memset(cell, 0, sizeof *cell);
    cell->storage = (dt_ref_storage_t){
        .data = &cell->bytes, .bytes = dt_dtype_bytes(number->dtype), .ref_count = 1};
    cell->tensor.storage = &cell->storage;
    cell->tensor.meta.dtype = number->dtype;
    cell->tensor.ref_count = 1;
    cell->tensor.is_wrapped = true;
    dt_ref_store((char *)&cell->bytes, number->dtype, number->dtype, number->value);
    return &cell->tensor;
}

dt_status_t dt_ref_arg_any(dt_ref_call_t *call, uint32_t at, dt_ref_tensor_t **ret_tensor)
{
    if (!dt_ref_is_given(call, at) || call->args[at].tag != DT_VALUE_TENSOR ||
        !call->args[at].handle)
        return wrong_type(call, at, "a tensor");
    *ret_tensor = call->args[at].handle;
    return DT_OK;
}

dt_status_t dt_ref_arg_tensor(dt_ref_call_t *call, uint32_t at, dt_ref_tensor_t **ret_tensor)
{
    dt_ref_number_t number;
    if (dt_ref_is_given(call, at) && number_of(&call->args[at], &number)) {
        *ret_tensor = dt_ref_dress(call, &number);
        return DT_OK;
    }
    DT_TRY(dt_ref_arg_any(call, at, ret_tensor));
    return dt_ref_check_dtype(call, (*ret_tensor)->meta.dtype);
}

dt_status_t dt_ref_arg_number(dt_ref_call_t *call, uint32_t at, double otherwise,
                              dt_ref_number_t *ret_value)
{
    *ret_value = (dt_ref_number_t){.dtype = DT_DTYPE_I64, .value.i = (int64_t)otherwise};
    if (!dt_ref_is_given(call, at) || number_of(&call->args[at], ret_value))
        return DT_OK;
    return wrong_type(call, at, "a number");
}

dt_status_t dt_ref_arg_int(dt_ref_call_t *call, uint32_t at, int64_t otherwise, int64_t *ret_value)
{
    *ret_value = otherwise;
    if (!dt_ref_is_given(call, at))
        return DT_OK;
    if (call->args[at].tag != DT_VALUE_INT && call->args[at].tag != DT_VALUE_MEMORY_FORMAT)
        return wrong_type(call, at, "an int");
    *ret_value = call->args[at].number;
    return DT_OK;
}

dt_status_t dt_ref_arg_bool(dt_ref_call_t *call, uint32_t at, bool otherwise, bool *ret_value)
{
    *ret_value = otherwise;
    if (!dt_ref_is_given(call, at))
        return DT_OK;
    if (call->args[at].tag != DT_VALUE_TRUE && call->args[at].tag != DT_VALUE_FALSE)
        return wrong_type(call, at, "a bool");
    *ret_value = call->args[at].tag == DT_VALUE_TRUE;
    return DT_OK;
}

dt_status_t dt_ref_arg_ints(dt_ref_call_t *call, uint32_t at, int64_t *ret_values,
                            unsigned *ret_count)
{
    const dt_value_t *value = &call->args[at];
    *ret_count = 0;
    if (!dt_ref_is_given(call, at))
        return DT_OK;
    if (value->tag == DT_VALUE_INT) {
        ret_values[0] = value->number;
        *ret_count = 1;
        return DT_OK;
    }
    if (value->tag != DT_VALUE_INTS)
        return wrong_type(call, at, "a list of ints");
    if (value->count > DT_META_DIM_MAX)
        return dt_ref_refuse(call, DT_BACKEND_RUNTIME_ERROR, "%u dimensions, at most %d",
                             value->count, DT_META_DIM_MAX);
    memcpy(ret_values, value->ints, value->count * sizeof *ret_values);
    *ret_count = value->count;
    return DT_OK;
}

dt_status_t dt_ref_arg_dtype(dt_ref_call_t *call, uint32_t at, unsigned otherwise,
                             unsigned *ret_dtype)
{
    *ret_dtype = otherwise;
    if (dt_ref_is_given(call, at)) {
        if (call->args[at].tag != DT_VALUE_DTYPE && call->args[at].tag != DT_VALUE_INT)
            return wrong_type(call, at, "a dtype");
        *ret_dtype = (unsigned)call->args[at].number;
    }
    return dt_ref_check_dtype(call, *ret_dtype);
}

dt_status_t dt_ref_dim(dt_ref_call_t *call, int64_t dim, unsigned ndim, unsigned *ret_dim)
{
    int64_t count = ndim ? ndim : 1;
    if (dim < -count || dim >= count)
        return dt_ref_refuse(call, DT_BACKEND_INDEX_ERROR,
                             "dimension %lld out of range (expected to be in [%lld, %lld])",
                             (long long)dim, (long long)-count, (long long)count - 1);
    *ret_dim = (unsigned)(dim < 0 ? dim + count : dim);
    return DT_OK;
}

/* ---- results ---- */
static void append(dt_ref_call_t *call, dt_ref_tensor_t *tensor)
{
    dt_check(call->result_count < DT_REF_RESULT_MAX);
    call->results[call->result_count++] = tensor;
}

dt_status_t dt_ref_result(dt_ref_call_t *call, unsigned dtype, unsigned ndim, const int64_t *sizes,
                          const int64_t *strides, dt_ref_tensor_t **ret_tensor)
{
    DT_TRY(dt_ref_tensor_new(call->memory, dtype, ndim, sizes, strides, ret_tensor, call->err));
    append(call, *ret_tensor);
    return DT_OK;
}

dt_status_t dt_ref_result_view(dt_ref_call_t *call, dt_ref_tensor_t *of, unsigned ndim,
                               const int64_t *sizes, const int64_t *strides, int64_t offset)
{
    dt_ref_tensor_t *view;
    DT_TRY(dt_ref_tensor_alias(of, ndim, sizes, strides, offset, &view, call->err));
    append(call, view);
    return DT_OK;
}

dt_status_t dt_ref_result_same(dt_ref_call_t *call, dt_ref_tensor_t *tensor)
{
    append(call, dt_ref_tensor_keep(tensor));
    return DT_OK;
}

/* ---- entries of the table ---- */
dt_status_t dt_ref_device_open(void *ctx, const dt_backend_device_options_t *options,
                               void **ret_device, dt_error_t *err)
{
    dt_ref_device_t *device = malloc(sizeof *device);
    (void)ctx;
    if (!device)
        return dt_fail(err, DT_ERR_NOMEM, "ref", 0, "no memory for a device");
    device->memory = options->memory;
    *ret_device = device;
    return DT_OK;
}

void dt_ref_device_close(void *device)
{
    free(device);
}

dt_status_t dt_ref_op_find(void *device, const char *name, void **ret_op, dt_error_t *err)
{
    const dt_ref_table_t tables[] = {dt_ref_pointwise_table(), dt_ref_view_table(),
                                     dt_ref_create_table(), dt_ref_reduce_table(),
                                     dt_ref_matrix_table()};
    (void)device;
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
        for (size_t i = 0; i < tables[k].count; i++)
            if (strcmp(tables[k].ops[i].name, name) == 0) {
                memcpy(ret_op, &(const void *){&tables[k].ops[i]}, sizeof *ret_op);
                return DT_OK;
            }
    return dt_fail(err, DT_ERR_NOT_FOUND, "ref", DT_BACKEND_NOT_IMPLEMENTED,
                   "the ref backend has no operator %.200s", name);
}

static void drop_results(dt_ref_call_t *call)
{
    for (uint32_t i = 0; i < call->result_count; i++)
        dt_ref_tensor_drop(call->results[i]);
    call->result_count = 0;
}

dt_status_t dt_ref_run(dt_ref_call_t *call, uint32_t result_max)
{
    dt_status_t status;
    if (call->arg_count > call->op->arg_count)
        return dt_ref_refuse(call, DT_BACKEND_TYPE_ERROR, "%u arguments, it takes %u",
                             call->arg_count, call->op->arg_count);
    status = call->op->run(call);
    if (status == DT_OK && call->result_count > result_max)
        status = dt_fail(call->err, DT_ERR_LIMIT, "ref", call->result_count,
                         "%u results, at most %u", call->result_count, result_max);
    if (status != DT_OK)
        drop_results(call);
    return status;
}

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
dt_status_t dt_ref_op_execute(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                              void **ret_results, uint32_t result_max, uint32_t *ret_count,
                              dt_error_t *err)
{
    const dt_ref_device_t *ref = device;
    dt_ref_call_t call = {
        .op = op, .args = args, .arg_count = arg_count, .memory = ref->memory, .err = err};
    DT_TRY(dt_ref_run(&call, result_max));
    for (uint32_t i = 0; i < call.result_count; i++)
        ret_results[i] = call.results[i];
    *ret_count = call.result_count;
    return DT_OK;
}

/* ---- asking ---- */
typedef struct question {
    dt_value_t args[DT_REF_ARG_MAX];
    dt_ref_tensor_t **tensors; /* owned, input_count of them */
    void **handles;            /* of lists, one after the other; 0 for None */
    uint32_t input_count;
    uint32_t used;
    uint32_t handles_used;
} question_t;

static dt_status_t make_tensors(question_t *q, const dt_meta_t *inputs, uint32_t count,
                                dt_error_t *err)
{
    q->tensors = calloc(count + 1, sizeof *q->tensors);
    if (!q->tensors)
        return dt_fail(err, DT_ERR_NOMEM, "ref", 0, "no memory for a question");
    for (; q->input_count < count; q->input_count++) {
        const dt_meta_t *meta = &inputs[q->input_count];
        DT_TRY(dt_ref_tensor_new(NULL, meta->dtype, meta->ndim, meta->sizes, meta->strides,
                                 &q->tensors[q->input_count], err));
    }
    return DT_OK;
}

static void *next_tensor(question_t *q)
{
    return q->used < q->input_count ? q->tensors[q->used++] : NULL;
}

/* The arguments with tensors in place of the ids that a question has. */
static dt_status_t make_args(question_t *q, const dt_value_t *args, uint32_t count, dt_error_t *err)
{
    size_t in_lists = 0;
    for (uint32_t i = 0; i < count; i++)
        in_lists += args[i].tag == DT_VALUE_TENSORS ? args[i].count : 0;
    q->handles = calloc(in_lists + 1, sizeof *q->handles);
    if (!q->handles)
        return dt_fail(err, DT_ERR_NOMEM, "ref", 0, "no memory for a question");
    for (uint32_t i = 0; i < count; i++) {
        q->args[i] = args[i];
        if (args[i].tag == DT_VALUE_TENSOR)
            q->args[i].handle = next_tensor(q);
        if (args[i].tag != DT_VALUE_TENSORS)
            continue;
        q->args[i].handles = &q->handles[q->handles_used];
        for (uint32_t k = 0; k < args[i].count; k++)
            q->handles[q->handles_used++] = args[i].ids[k] ? next_tensor(q) : NULL;
    }
    return DT_OK;
}

static void describe(const question_t *q, const dt_ref_tensor_t *result, dt_backend_output_t *out)
{
    *out = (dt_backend_output_t){.alias = DT_ALIAS_FRESH, .meta = result->meta};
    for (uint32_t i = 0; i < q->input_count && out->alias == DT_ALIAS_FRESH; i++)
        if (result->storage == q->tensors[i]->storage) {
            out->alias = result == q->tensors[i] ? DT_ALIAS_IN_PLACE : DT_ALIAS_VIEW;
            out->input = i;
        }
}

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
dt_status_t dt_ref_op_infer(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                            const dt_meta_t *inputs, uint32_t input_count,
                            dt_backend_output_t *ret_outputs, uint32_t output_max,
                            uint32_t *ret_count, dt_error_t *err)
{
    question_t q = {.tensors = NULL};
    dt_ref_call_t call = {
        .op = op, .args = q.args, .arg_count = arg_count, .is_question = true, .err = err};
    dt_status_t status = arg_count <= DT_REF_ARG_MAX
                             ? make_tensors(&q, inputs, input_count, err)
                             : dt_ref_refuse(&call, DT_BACKEND_TYPE_ERROR, "too many arguments");
    (void)device;
    if (status == DT_OK)
        status = make_args(&q, args, arg_count, err);
    if (status == DT_OK)
        status = dt_ref_run(&call, output_max < DT_REF_RESULT_MAX ? output_max : DT_REF_RESULT_MAX);
    if (status == DT_OK) {
        for (uint32_t i = 0; i < call.result_count; i++)
            describe(&q, call.results[i], &ret_outputs[i]);
        *ret_count = call.result_count;
        drop_results(&call);
    }
    for (uint32_t i = 0; i < q.input_count; i++)
        dt_ref_tensor_drop(q.tensors[i]);
    free(q.tensors);
    free(q.handles);
    return status;
}

/* ---- random streams ---- */
dt_status_t dt_ref_generator_seed(void *device, uint32_t stream, uint64_t seed, uint64_t offset,
                                  dt_error_t *err)
{
    (void)device, (void)stream, (void)seed, (void)offset, (void)err;
    return DT_OK;
}

dt_status_t dt_ref_generator_use(void *device, uint32_t stream, dt_error_t *err)
{
    (void)device, (void)stream, (void)err;
    return DT_OK;
}

void dt_ref_generator_free(void *device, uint32_t stream)
{
    (void)device, (void)stream;
}
