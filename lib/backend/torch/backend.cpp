// The table: LibTorch's boxed dispatcher behind device/backend.h. No code for single operators.
// CPU devices are executed and tested here; the CUDA path is the same code and was not run on a
// GPU.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <cstdio>
#include <cstring>
#include <torch/headeronly/version.h>

#include "backend/torch/torch_internal.h"

extern "C" {
#include "device/host.h"
#include "device/sysfile.h"
}

namespace dt_torch
{

namespace
{
template <typename E> bool is(const c10::Error &e)
{
    return dynamic_cast<const E *>(&e) != nullptr;
}
} // namespace

dt_status_t status_of(const c10::Error &e, dt_error_t *err) noexcept
{
    dt_status_t status = DT_ERR_INVALID;
    int64_t code = DT_BACKEND_RUNTIME_ERROR;
    if (typeid(e) == typeid(c10::Error)) { /* most are no more than that */
    } else if (is<c10::IndexError>(e)) {
        code = DT_BACKEND_INDEX_ERROR;
    } else if (is<c10::ValueError>(e)) {
        code = DT_BACKEND_VALUE_ERROR;
    } else if (is<c10::TypeError>(e)) {
        code = DT_BACKEND_TYPE_ERROR;
    } else if (is<c10::NotImplementedError>(e)) {
        status = DT_ERR_NOT_FOUND;
        code = DT_BACKEND_NOT_IMPLEMENTED;
    } else if (is<c10::LinAlgError>(e)) {
        code = DT_BACKEND_LINALG_ERROR;
    } else if (is<c10::OutOfMemoryError>(e)) {
        status = DT_ERR_LIMIT;
        code = DT_BACKEND_OUT_OF_MEMORY;
    }
    return dt_fail(err, status, "torch", code, "%s", e.what_without_backtrace());
}

dt_status_t status_of(const std::exception &e, dt_error_t *err) noexcept
{
    if (dynamic_cast<const std::bad_alloc *>(&e))
        return dt_fail(err, DT_ERR_LIMIT, "torch", DT_BACKEND_OUT_OF_MEMORY, "out of memory");
    bool is_mismatch = dynamic_cast<const ValueMismatch *>(&e) != nullptr;
    return dt_fail(err, DT_ERR_INVALID, "torch",
                   is_mismatch ? DT_BACKEND_TYPE_ERROR : DT_BACKEND_RUNTIME_ERROR, "%s", e.what());
}

namespace
{
/* Warnings are for a program's author, and standard error is the agent's log. */
struct NoWarnings final : c10::WarningHandler {
    void process(const c10::Warning &) override
    {
    }
};
} // namespace

void enter_thread(Device *device)
{
    static NoWarnings no_warnings;
    static thread_local bool is_entered;
    if (is_entered)
        return;
    is_entered = true;
    at::set_num_threads(device->threads); /* OpenMP's count belongs to the calling thread */
    c10::WarningUtils::set_warning_handler(&no_warnings);
    new c10::InferenceMode(true); /* left in place for the thread's whole life */
}

namespace
{

/* What the library that was really loaded calls itself; a TensorImpl of another version has another
 * layout. */
std::string loaded_version()
{
    static const char key[] = "TORCH_VERSION=";
    std::string config = at::show_config();
    size_t at = config.find(key);
    if (at == std::string::npos)
        return "unknown";
    at += sizeof key - 1;
    return config.substr(at, config.find_first_of(", \n", at) - at);
}

bool is_same_version(const std::string &found)
{
    std::string built = TORCH_VERSION; /* "2.11.0", a wheel says "2.11.0+cu130" in one of the two */
    return built.substr(0, built.find('+')) == found.substr(0, found.find('+'));
}

/* What devices are made from. */
struct Context {
    std::string root;
    std::string seed;
};

dt_status_t backend_open(const dt_backend_options_t *options, void **ret_ctx, dt_error_t *err)
{
    if (*options->spec)
        return dt_fail(err, DT_ERR_INVALID, "torch", 0,
                       "torch:%s: expected nothing after \"torch\"", options->spec);
    return guarded(err, [&] {
        std::string found = loaded_version();
        if (!is_same_version(found))
            return dt_fail(err, DT_ERR_DEVICE, "torch", 0, "built for LibTorch %s, found %s",
                           TORCH_VERSION, found.c_str());
        *ret_ctx = new Context{options->root, options->seed};
        return DT_OK;
    });
}

void backend_close(void *ctx)
{
    delete static_cast<Context *>(ctx);
}

dt_status_t refresh(void *arg, dt_device_info_t *devices, int32_t count, bool *ret_is_stale,
                    dt_error_t *)
{
    const Context *ctx = static_cast<Context *>(arg);
    for (int32_t i = 0; i < count; i++)
        dt_host_memory(ctx->root.c_str(), &devices[i].memory_bytes, &devices[i].memory_used_bytes);
    *ret_is_stale = false;
    return DT_OK;
}

dt_status_t enumerate(void *arg, dt_device_info_t *ret_devices, int32_t device_max,
                      int32_t *ret_count, dt_error_t *err)
{
    const Context *ctx = static_cast<Context *>(arg);
    dt_device_info_t info{};
    bool is_stale = false;
    if (device_max < 1)
        return dt_fail(err, DT_ERR_LIMIT, "torch", 0, "no room for a device");
    dt_sysfile_uuid("CPU-torch", ctx->seed.c_str(), 0, info.uuid, sizeof info.uuid);
    (void)snprintf(info.kind, sizeof info.kind, "cpu");
    dt_host_cpu_name(ctx->root.c_str(), info.name, sizeof info.name);
    (void)snprintf(info.driver, sizeof info.driver, "LibTorch %s %s", TORCH_VERSION,
                   at::get_cpu_capability().c_str());
    info.numa_node = -1;
    info.health = DT_DEVICE_OK;
    ret_devices[0] = info;
    *ret_count = 1;
    return refresh(arg, ret_devices, 1, &is_stale, err);
}

/* Which CUDA ordinal has this PCI address: the driver's order may be another than NVML's. */
c10::Device place_of(const dt_device_info_t *info)
{
    if (strcmp(info->kind, "cpu") == 0)
        return c10::Device(c10::DeviceType::CPU);
    if (strcmp(info->kind, "cuda") != 0)
        throw ValueMismatch(std::string("the torch backend has no devices of kind ") + info->kind);
    TORCH_CHECK(at::globalContext().hasCUDA(), "this LibTorch finds no CUDA device");
    /* The engine was started with CUDA_VISIBLE_DEVICES set to this device's UUID alone. */
    return c10::Device(c10::DeviceType::CUDA, 0);
}

dt_status_t device_open(void *, const dt_backend_device_options_t *options, void **ret_device,
                        dt_error_t *err)
{
    return guarded(err, [&] {
        auto device = std::make_unique<Device>();
        c10::SetStackTraceFetcher(std::function<std::string()>([] { return std::string(); }));
        device->where = place_of(options->info);
        device->threads = options->threads;
        register_operators();
        install_allocator(options->memory);
        if (!device->where.is_cpu())
            at::globalContext().lazyInitDevice(device->where.type());
        (void)at::globalContext().defaultGenerator(device->where); /* opens /dev/urandom, once */
        *ret_device = device.release();
        return DT_OK;
    });
}

void device_close(void *device)
{
    delete static_cast<Device *>(device);
}

dt_status_t op_find(void *device, const char *name, void **ret_op, dt_error_t *err)
{
    return guarded(err, [&] {
        Op *op = nullptr;
        dt_status_t status = find_op(static_cast<Device *>(device), name, &op, err);
        *ret_op = op;
        return status;
    });
}

/* The same for the one thread that executes, without a look at what belongs to threads: this is
 * asked for each operator. */
void enter_executor(Device *device)
{
    if (pthread_equal(device->executor, pthread_self()))
        return;
    enter_thread(device);
    device->executor = pthread_self();
}

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
dt_status_t op_execute(void *arg, void *op_arg, const dt_value_t *args, uint32_t arg_count,
                       void **ret_results, uint32_t result_max, uint32_t *ret_count,
                       dt_error_t *err)
{
    Device *device = static_cast<Device *>(arg);
    Op *op = static_cast<Op *>(op_arg);
    Scratch &scratch = device->scratch;
    enter_executor(device);
    if (op->typed && op->typed->fits(*op, args, arg_count) && result_max > 0)
        return guarded(err, [&] {
            ret_results[0] = give(op->typed->call(*op, args, arg_count));
            *ret_count = 1;
            return DT_OK;
        });
    dt_status_t status = guarded(err, [&] {
        Call call{device, device->where, nullptr};
        push_arguments(*op, args, arg_count, call, scratch.stack);
        op->handle.callBoxed(&scratch.stack);
        pop_results(scratch.stack, scratch.results);
        if (scratch.results.size() > result_max)
            return dt_fail(err, DT_ERR_LIMIT, "torch", (int64_t)scratch.results.size(),
                           "%zu results, at most %u", scratch.results.size(), result_max);
        for (size_t i = 0; i < scratch.results.size(); i++)
            ret_results[i] = give(std::move(scratch.results[i]));
        *ret_count = (uint32_t)scratch.results.size();
        return DT_OK;
    });
    scratch.clear();
    return status;
}

dt_status_t device_sync(void *arg, dt_error_t *err)
{
    Device *device = static_cast<Device *>(arg);
    if (device->where.is_cpu())
        return DT_OK;
    return guarded(err, [&] {
        c10::impl::VirtualGuardImpl guard(device->where.type());
        guard.synchronizeDevice(device->where.index());
        return DT_OK;
    });
}

const dt_backend_t table = {
    .struct_size = sizeof(dt_backend_t),
    .abi = DT_BACKEND_ABI,
    .name = "torch",
    .open = backend_open,
    .enumerate = enumerate,
    .refresh = refresh,
    .close = backend_close,
    .device_open = device_open,
    .device_close = device_close,
    .op_find = op_find,
    .op_execute = op_execute,
    .op_infer = op_infer,
    .tensor_create = tensor_create,
    .tensor_info = tensor_info,
    .tensor_write = tensor_write,
    .tensor_read = tensor_read,
    .tensor_free = tensor_free,
    .generator_seed = generator_seed,
    .generator_use = generator_use,
    .generator_free = generator_free,
    .device_sync = device_sync,
    .op_expect = nullptr,
    .op_rehearse = op_rehearse,
    .op_output_count = op_output_count,
    .tensor_is = tensor_is,
};

} // namespace
} // namespace dt_torch

extern "C" __attribute__((visibility("default"))) const dt_backend_t *dt_backend_get(int abi);
extern "C" const dt_backend_t *dt_backend_get(int abi)
{
    return abi == DT_BACKEND_ABI ? &dt_torch::table : nullptr;
}
