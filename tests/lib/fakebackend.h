/* A backend of float32 vectors for tests, small enough to be read: in the test's own process by
 * this header, and as a shared object by tests/so/backend_fake.c. Needs nothing but libc. Some of
 * its operators fail, lie, hang or die, as they are told to. */
#ifndef DT_TESTS_LIB_FAKEBACKEND_H
#define DT_TESTS_LIB_FAKEBACKEND_H
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "device/backend.h"

static dt_status_t __attribute__((format(printf, 5, 6)))
fake_fail(dt_error_t *err, dt_status_t code, const char *source, int64_t source_code,
          const char *format, ...)
{
    va_list args;
    va_start(args, format);
    err->code = code;
    err->source = source;
    err->source_code = source_code;
    (void)vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return code;
}

typedef struct fake_storage {
    int refs;
    float *data;
    int64_t count;
} fake_storage_t;

typedef struct fake_tensor {
    int refs;
    dt_meta_t meta;
    fake_storage_t *storage;
} fake_tensor_t;

enum fake_op {
    FAKE_ADD,
    FAKE_ADD_INPLACE,
    FAKE_VIEW,
    FAKE_FAIL,
    FAKE_LIE,
    FAKE_SCALE,
    FAKE_CRASH, /* dies of SIGFPE */
    FAKE_SEGV,  /* writes where it must not: SIGSEGV */
    FAKE_HANG,  /* never returns */
    FAKE_SLOW,  /* takes a millisecond */
    FAKE_OPS
};
static const char *const fake_names[FAKE_OPS] = {
    "aten::add.Tensor", "aten::add_.Tensor", "aten::view", "aten::fail", "aten::lie",
    "aten::scale",      "fake::crash",       "fake::segv", "fake::hang", "fake::slow",
};

static struct {
    const dt_backend_memory_t *memory;
    int tensors; /* alive */
    int calls;
    int64_t *clock_ns; /* moved by each operator; NULL: FAKE_SLOW takes a real millisecond */
    int64_t op_ns;     /* of an operator, and of FAKE_SLOW */
    int64_t slow_ns;
    int generators;
    uint32_t stream;
    uint32_t used[64]; /* stream in use at each call */
} fake;

static fake_tensor_t *fake_new(const dt_meta_t *meta, fake_storage_t *storage)
{
    fake_tensor_t *tensor = calloc(1, sizeof *tensor);
    tensor->refs = 1;
    tensor->meta = *meta;
    tensor->storage = storage;
    fake.tensors++;
    return tensor;
}

static dt_status_t fake_create(void *device, const dt_meta_t *meta, void **ret_tensor,
                               dt_error_t *err)
{
    (void)device;
    int64_t count = 1;
    for (int i = 0; i < meta->ndim; i++)
        count *= meta->sizes[i];
    size_t bytes = (size_t)count * (meta->dtype == DT_DTYPE_F32 ? sizeof(float) : 1);
    fake_storage_t *storage = calloc(1, sizeof *storage);
    storage->refs = 1;
    storage->count = count;
    storage->data = fake.memory->alloc(NULL, bytes ? bytes : 1);
    if (!storage->data) {
        free(storage);
        return fake_fail(err, DT_ERR_LIMIT, "fake", DT_BACKEND_OUT_OF_MEMORY,
                         "tried to allocate %zu bytes", bytes);
    }
    *ret_tensor = fake_new(meta, storage);
    return DT_OK;
}

static void fake_free(void *device, void *handle)
{
    fake_tensor_t *tensor = handle;
    (void)device;
    if (!tensor || --tensor->refs > 0)
        return;
    if (--tensor->storage->refs == 0) {
        fake.memory->release(tensor->storage->data);
        free(tensor->storage);
    }
    free(tensor);
    fake.tensors--;
}

static dt_status_t fake_find(void *device, const char *name, void **ret_op, dt_error_t *err)
{
    (void)device;
    for (uintptr_t i = 0; i < FAKE_OPS; i++)
        if (strcmp(name, fake_names[i]) == 0) {
            *ret_op = (void *)(i + 1);
            return DT_OK;
        }
    return fake_fail(err, DT_ERR_NOT_FOUND, "fake", 0, "no operator %s", name);
}

static dt_status_t fake_add(const fake_tensor_t *a, const fake_tensor_t *b, float scale,
                            void **ret_result, dt_error_t *err)
{
    DT_TRY(fake_create(NULL, &a->meta, ret_result, err));
    fake_tensor_t *out = *ret_result;
    for (int64_t i = 0; i < out->storage->count; i++)
        out->storage->data[i] = a->storage->data[i] * scale + (b ? b->storage->data[i] : 0);
    return DT_OK;
}

static dt_status_t fake_execute(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                                void **ret_results, uint32_t result_max, uint32_t *ret_count,
                                dt_error_t *err)
{
    fake_tensor_t *a = arg_count > 0 ? args[0].handle : NULL;
    fake_tensor_t *b = arg_count > 1 && args[1].tag == DT_VALUE_TENSOR ? args[1].handle : NULL;
    dt_meta_t other;
    (void)device;
    (void)result_max;
    *ret_count = 1;
    fake.used[fake.calls++ % 64] = fake.stream;
    if (fake.clock_ns)
        *fake.clock_ns += op == (void *)(uintptr_t)(FAKE_SLOW + 1) ? fake.slow_ns : fake.op_ns;
    switch ((enum fake_op)((uintptr_t)op - 1)) {
    case FAKE_ADD:
        return fake_add(a, b, 1, &ret_results[0], err);
    case FAKE_SCALE:
        return fake_add(
            a, NULL, args[1].tag == DT_VALUE_DOUBLE ? (float)args[1].real : (float)args[1].number,
            &ret_results[0], err);
    case FAKE_ADD_INPLACE:
        for (int64_t i = 0; i < a->storage->count; i++)
            a->storage->data[i] += b->storage->data[i];
        a->refs++;
        ret_results[0] = a;
        return DT_OK;
    case FAKE_VIEW:
        a->storage->refs++;
        ret_results[0] = fake_new(&a->meta, a->storage);
        return DT_OK;
    case FAKE_CRASH:
        (void)raise(SIGFPE);
        return DT_ERR_INTERNAL;
    case FAKE_SEGV:
        *(volatile char *)mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) = 1;
        return DT_ERR_INTERNAL;
    case FAKE_HANG:
        for (;;)
            (void)nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    case FAKE_SLOW:
        if (!fake.clock_ns)
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        return fake_add(a, NULL, 1, &ret_results[0], err);
    case FAKE_LIE:
        other = (dt_meta_t){.dtype = DT_DTYPE_F32, .ndim = 1, .sizes = {1}, .strides = {1}};
        return fake_create(NULL, &other, &ret_results[0], err);
    default:
        return fake_fail(err, DT_ERR_INVALID, "fake", DT_BACKEND_INDEX_ERROR,
                         "index 7 is out of bounds\nfor dimension 0");
    }
}

static dt_status_t fake_info(void *device, void *handle, dt_backend_tensor_t *ret_info,
                             dt_error_t *err)
{
    const fake_tensor_t *tensor = handle;
    (void)device;
    (void)err;
    *ret_info = (dt_backend_tensor_t){.meta = tensor->meta, .storage = tensor->storage};
    return DT_OK;
}

static dt_status_t fake_write(void *device, void *handle, uint64_t offset, const void *bytes,
                              size_t size, dt_error_t *err)
{
    fake_tensor_t *tensor = handle;
    (void)device;
    (void)err;
    if (size)
        memcpy((char *)tensor->storage->data + offset, bytes, size);
    return DT_OK;
}

static dt_status_t fake_read(void *device, void *handle, uint64_t offset, void *ret_bytes,
                             size_t size, dt_error_t *err)
{
    const fake_tensor_t *tensor = handle;
    (void)device;
    (void)err;
    memcpy(ret_bytes, (const char *)tensor->storage->data + offset, size);
    return DT_OK;
}

static dt_status_t fake_seed(void *device, uint32_t stream, uint64_t seed, uint64_t offset,
                             dt_error_t *err)
{
    (void)device;
    (void)stream;
    (void)seed;
    (void)offset;
    (void)err;
    fake.generators++;
    return DT_OK;
}

static dt_status_t fake_use(void *device, uint32_t stream, dt_error_t *err)
{
    (void)device;
    (void)err;
    fake.stream = stream;
    return DT_OK;
}

static void fake_generator_free(void *device, uint32_t stream)
{
    (void)device;
    (void)stream;
}

static dt_status_t fake_open(const dt_backend_options_t *options, void **ret_ctx, dt_error_t *err)
{
    (void)options;
    (void)err;
    *ret_ctx = NULL;
    return DT_OK;
}

static dt_status_t fake_enumerate(void *ctx, dt_device_info_t *ret_devices, int32_t device_max,
                                  int32_t *ret_count, dt_error_t *err)
{
    (void)ctx;
    (void)err;
    for (int32_t i = 0; i < 2 && i < device_max; i++) {
        ret_devices[i] = (dt_device_info_t){.numa_node = -1, .health = DT_DEVICE_OK};
        (void)snprintf(ret_devices[i].uuid, sizeof ret_devices[i].uuid, "fake-%d", (int)i);
        (void)snprintf(ret_devices[i].kind, sizeof ret_devices[i].kind, "fake");
        (void)snprintf(ret_devices[i].name, sizeof ret_devices[i].name, "not a device");
        ret_devices[i].memory_bytes = UINT64_C(1) << 30;
    }
    *ret_count = 2;
    return DT_OK;
}

static dt_status_t fake_device_open(void *ctx, const dt_backend_device_options_t *options,
                                    void **ret_device, dt_error_t *err)
{
    static int device;
    (void)ctx;
    (void)err;
    fake.memory = options->memory;
    *ret_device = &device;
    return DT_OK;
}

static void fake_device_close(void *device)
{
    (void)device;
}

/* Everything returns what its first input is, but for what lies. */
static dt_status_t fake_infer(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                              const dt_meta_t *inputs, uint32_t input_count,
                              dt_backend_output_t *ret_outputs, uint32_t output_max,
                              uint32_t *ret_count, dt_error_t *err)
{
    enum fake_op kind = (enum fake_op)((uintptr_t)op - 1);
    (void)device;
    (void)args;
    (void)arg_count;
    (void)output_max;
    if (kind == FAKE_SLOW)
        return fake_fail(err, DT_ERR_AGAIN, "fake", 0, "not known before it has run");
    if (input_count == 0)
        return fake_fail(err, DT_ERR_INVALID, "fake", DT_BACKEND_TYPE_ERROR, "no input");
    ret_outputs[0] = (dt_backend_output_t){
        .alias = kind == FAKE_VIEW          ? DT_ALIAS_VIEW
                 : kind == FAKE_ADD_INPLACE ? DT_ALIAS_IN_PLACE
                                            : DT_ALIAS_FRESH,
        .meta = inputs[0],
    };
    *ret_count = 1;
    return DT_OK;
}

static const dt_backend_t fake_backend = {
    .struct_size = sizeof fake_backend,
    .abi = DT_BACKEND_ABI,
    .name = "fake",
    .open = fake_open,
    .enumerate = fake_enumerate,
    .device_open = fake_device_open,
    .device_close = fake_device_close,
    .op_infer = fake_infer,
    .op_find = fake_find,
    .op_execute = fake_execute,
    .tensor_create = fake_create,
    .tensor_info = fake_info,
    .tensor_write = fake_write,
    .tensor_read = fake_read,
    .tensor_free = fake_free,
    .generator_seed = fake_seed,
    .generator_use = fake_use,
    .generator_free = fake_generator_free,
};

#endif
