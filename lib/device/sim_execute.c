/* How `sim` runs operators: it works out what comes back and how long it takes. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/ref_internal.h"
#include "device/sim.h"

#define NS_PER_SLEEP  1000000
#define SIM_OP_MAX    16384 /* operators of different names */
#define SIM_INPUT_MAX 4096  /* tensors of one operator that are looked at */

typedef struct sim_op {
    struct sim_op *next;
    const dt_ref_op_t *ref; /* NULL: not one of ref's */
    int32_t factor;         /* tensor input whose last dimension is summed over; -1: none */
    bool is_convolution;
    char name[];
} sim_op_t;

typedef struct sim_device {
    double ns_per_flop;
    double ns_per_byte;
    double debt_ns;       /* not slept yet */
    pthread_mutex_t lock; /* ops, op_count: the metadata thread looks for operators too */
    sim_op_t *ops;
    uint32_t op_count;
    const sim_op_t *expected_of; /* what op_expect was told */
    const dt_backend_output_t *expected;
    uint32_t expected_count;
} sim_device_t;

dt_status_t dt_sim_device_make(const dt_sim_spec_t *spec, void **ret_device, dt_error_t *err)
{
    sim_device_t *device = calloc(1, sizeof *device);
    if (!device)
        return dt_fail(err, DT_ERR_NOMEM, "sim", 0, "no memory for a device");
    if (pthread_mutex_init(&device->lock, NULL) != 0) {
        free(device);
        return dt_fail(err, DT_ERR_NOMEM, "sim", 0, "no memory for a lock");
    }
    device->ns_per_flop = spec->tflops > 0 ? 1e-3 / spec->tflops : 0;
    device->ns_per_byte = spec->gbs > 0 ? 1.0 / spec->gbs : 0;
    *ret_device = device;
    return DT_OK;
}

void dt_sim_device_close(void *arg)
{
    sim_device_t *device = arg;
    while (device->ops) {
        sim_op_t *op = device->ops;
        device->ops = op->next;
        free(op);
    }
    (void)pthread_mutex_destroy(&device->lock);
    free(device);
}

/* ---- operators ---- */
static const struct {
    const char *name;
    int32_t factor;
} products[] = {
    {"aten::mm", 0},      {"aten::bmm", 0},    {"aten::addmm", 1},
    {"aten::baddbmm", 1}, {"aten::matmul", 0}, {"aten::linear", 0},
    {"aten::mv", 0},      {"aten::dot", 0},    {"aten::convolution", 1},
};

static sim_op_t *make_op(sim_device_t *device, const char *name)
{
    size_t size = strlen(name) + 1;
    sim_op_t *op = calloc(1, sizeof *op + size);
    void *ref = NULL;
    if (!op)
        return NULL;
    memcpy(op->name, name, size);
    if (dt_ref_op_find(NULL, name, &ref, NULL) == DT_OK)
        op->ref = ref;
    op->factor = -1;
    op->is_convolution = strcmp(name, "aten::convolution") == 0;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (strcmp(products[i].name, name) == 0)
            op->factor = products[i].factor;
    op->next = device->ops;
    device->ops = op;
    device->op_count++;
    return op;
}

static dt_status_t find(sim_device_t *device, const char *name, void **ret_op, dt_error_t *err)
{
    sim_op_t *op = device->ops;
    while (op && strcmp(op->name, name) != 0)
        op = op->next;
    if (!op && device->op_count == SIM_OP_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "sim", SIM_OP_MAX, "more than %d operators", SIM_OP_MAX);
    if (!op && !(op = make_op(device, name)))
        return dt_fail(err, DT_ERR_NOMEM, "sim", 0, "no memory for an operator");
    *ret_op = op;
    return DT_OK;
}

dt_status_t dt_sim_op_find(void *arg, const char *name, void **ret_op, dt_error_t *err)
{
    sim_device_t *device = arg;
    dt_status_t status;
    (void)pthread_mutex_lock(&device->lock);
    status = find(device, name, ret_op, err);
    (void)pthread_mutex_unlock(&device->lock);
    return status;
}

/* ---- results ---- */
/* Tensor number `number` of the arguments, lists flattened; NULL where there are not so many. */
static dt_ref_tensor_t *input_at(const dt_value_t *args, uint32_t arg_count, uint32_t number)
{
    for (uint32_t i = 0; i < arg_count; i++) {
        if (args[i].tag == DT_VALUE_TENSOR && args[i].handle && number-- == 0)
            return args[i].handle;
        for (uint32_t k = 0; args[i].tag == DT_VALUE_TENSORS && k < args[i].count; k++)
            if (args[i].handles[k] && number-- == 0)
                return args[i].handles[k];
    }
    return NULL;
}

static dt_status_t make_expected(const dt_backend_output_t *output, const dt_value_t *args,
                                 uint32_t arg_count, void **ret_result, dt_error_t *err)
{
    const dt_meta_t *meta = &output->meta;
    dt_ref_tensor_t *input = NULL, *result = NULL;
    if (output->alias == DT_ALIAS_VIEW || output->alias == DT_ALIAS_IN_PLACE) {
        input = input_at(args, arg_count, output->input);
        if (!input)
            return dt_fail(err, DT_ERR_INVALID, "sim", DT_BACKEND_RUNTIME_ERROR,
                           "a result is a view of tensor %u, which is not there", output->input);
    }
    if (output->alias == DT_ALIAS_IN_PLACE)
        result = dt_ref_tensor_keep(input);
    else if (output->alias == DT_ALIAS_VIEW)
        DT_TRY(dt_ref_tensor_alias(input, meta->ndim, meta->sizes, meta->strides, input->offset,
                                   &result, err));
    else if (output->alias == DT_ALIAS_FRESH)
        DT_TRY(dt_ref_tensor_of(NULL, meta, &result, err));
    if (output->alias == DT_ALIAS_VIEW)
        result->meta = *meta;
    *ret_result = result;
    return DT_OK;
}

static dt_status_t give_expected(const sim_device_t *device, const dt_value_t *args,
                                 uint32_t arg_count, void **ret_results, uint32_t result_max,
                                 uint32_t *ret_count, dt_error_t *err)
{
    uint32_t made = 0;
    dt_status_t status = DT_OK;
    if (device->expected_count > result_max)
        return dt_fail(err, DT_ERR_LIMIT, "sim", device->expected_count, "%u results, at most %u",
                       device->expected_count, result_max);
    for (; made < device->expected_count && status == DT_OK; made++)
        status = make_expected(&device->expected[made], args, arg_count, &ret_results[made], err);
    if (status != DT_OK) {
        while (--made > 0)
            dt_ref_tensor_drop(ret_results[made - 1]);
        return status;
    }
    *ret_count = made;
    return DT_OK;
}

static dt_status_t give_as_ref(const sim_op_t *op, const dt_value_t *args, uint32_t arg_count,
                               void **ret_results, uint32_t result_max, uint32_t *ret_count,
                               dt_error_t *err)
{
    dt_ref_call_t call = {
        .op = op->ref, .args = args, .arg_count = arg_count, .is_question = true, .err = err};
    if (!op->ref)
        return dt_fail(err, DT_ERR_NOT_FOUND, "sim", DT_BACKEND_NOT_IMPLEMENTED,
                       "the sim backend cannot tell what %.200s returns", op->name);
    DT_TRY(dt_ref_run(&call, result_max));
    for (uint32_t i = 0; i < call.result_count; i++)
        ret_results[i] = call.results[i];
    *ret_count = call.result_count;
    return DT_OK;
}

/* ---- time ---- */
static void sleep_debt(sim_device_t *device)
{
    const int64_t ns = (int64_t)device->debt_ns;
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (nanosleep(&time, &time) != 0)
        ;
    device->debt_ns = 0;
}

static double flops_of(const sim_op_t *op, const dt_value_t *args, uint32_t arg_count,
                       double result_count)
{
    const dt_ref_tensor_t *factor =
        op->factor >= 0 ? input_at(args, arg_count, (uint32_t)op->factor) : NULL;
    const dt_meta_t *meta = factor ? &factor->meta : NULL;
    if (!meta || meta->ndim == 0 || meta->sizes[0] == 0)
        return result_count;
    if (op->is_convolution)
        return 2 * result_count * (double)dt_meta_numel(meta) / (double)meta->sizes[0];
    return 2 * result_count * (double)meta->sizes[meta->ndim - 1];
}

static void spend(sim_device_t *device, const sim_op_t *op, const dt_value_t *args,
                  uint32_t arg_count, void *const *results, uint32_t count)
{
    const dt_ref_tensor_t *input;
    double bytes = 0, elements = 0, flop_ns, byte_ns;
    if (device->ns_per_flop == 0 && device->ns_per_byte == 0)
        return;
    for (uint32_t i = 0; i < SIM_INPUT_MAX && (input = input_at(args, arg_count, i)); i++)
        bytes += (double)dt_meta_bytes(&input->meta);
    for (uint32_t i = 0; i < count; i++) {
        const dt_ref_tensor_t *result = results[i];
        bytes += result ? (double)dt_meta_bytes(&result->meta) : 0;
        elements += result ? (double)dt_meta_numel(&result->meta) : 0;
    }
    flop_ns = flops_of(op, args, arg_count, elements) * device->ns_per_flop;
    byte_ns = bytes * device->ns_per_byte;
    device->debt_ns += flop_ns > byte_ns ? flop_ns : byte_ns;
    if (device->debt_ns >= NS_PER_SLEEP)
        sleep_debt(device);
}

dt_status_t dt_sim_device_sync(void *arg, dt_error_t *err)
{
    sim_device_t *device = arg;
    (void)err;
    if (device->debt_ns >= 1)
        sleep_debt(device);
    return DT_OK;
}

/* ---- the other entries ---- */
void dt_sim_op_expect(void *arg, void *op, const dt_backend_output_t *outputs, uint32_t count)
{
    sim_device_t *device = arg;
    device->expected_of = op;
    device->expected = outputs;
    device->expected_count = count;
}

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
dt_status_t dt_sim_op_execute(void *arg, void *op, const dt_value_t *args, uint32_t arg_count,
                              void **ret_results, uint32_t result_max, uint32_t *ret_count,
                              dt_error_t *err)
{
    sim_device_t *device = arg;
    bool is_expected = device->expected_of == op;
    dt_status_t status =
        is_expected
            ? give_expected(device, args, arg_count, ret_results, result_max, ret_count, err)
            : give_as_ref(op, args, arg_count, ret_results, result_max, ret_count, err);
    device->expected_of = NULL;
    if (status == DT_OK)
        spend(device, op, args, arg_count, ret_results, *ret_count);
    return status;
}

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
dt_status_t dt_sim_op_infer(void *device, void *arg, const dt_value_t *args, uint32_t arg_count,
                            const dt_meta_t *inputs, uint32_t input_count,
                            dt_backend_output_t *ret_outputs, uint32_t output_max,
                            uint32_t *ret_count, dt_error_t *err)
{
    const sim_op_t *op = arg;
    void *ref;
    (void)device;
    if (!op->ref)
        return dt_fail(err, DT_ERR_AGAIN, "sim", 0, "the sim backend does not know %.200s",
                       op->name);
    memcpy(&ref, &op->ref, sizeof ref); /* the entry's type has no const */
    return dt_ref_op_infer(NULL, ref, args, arg_count, inputs, input_count, ret_outputs, output_max,
                           ret_count, err);
}

dt_status_t dt_sim_tensor_create(void *device, const dt_meta_t *meta, void **ret_tensor,
                                 dt_error_t *err)
{
    dt_ref_tensor_t *tensor;
    (void)device;
    DT_TRY(dt_ref_tensor_of(NULL, meta, &tensor, err));
    *ret_tensor = tensor;
    return DT_OK;
}

dt_status_t dt_sim_tensor_info(void *device, void *tensor, dt_backend_tensor_t *ret_info,
                               dt_error_t *err)
{
    const dt_ref_tensor_t *t = tensor;
    DT_TRY(dt_ref_tensor_info(device, tensor, ret_info, err));
    ret_info->storage_bytes = (uint64_t)dt_meta_span_bytes(&t->meta);
    return DT_OK;
}

dt_status_t dt_sim_tensor_write(void *device, void *tensor, uint64_t offset, const void *bytes,
                                size_t size, dt_error_t *err)
{
    (void)device, (void)bytes;
    return dt_ref_check_range(tensor, offset, size, err);
}

dt_status_t dt_sim_tensor_read(void *device, void *tensor, uint64_t offset, void *ret_bytes,
                               size_t size, dt_error_t *err)
{
    (void)device;
    DT_TRY(dt_ref_check_range(tensor, offset, size, err));
    memset(ret_bytes, 0, size);
    return DT_OK;
}
