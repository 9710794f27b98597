// Random streams. Each is a generator of its own; the process's default generator, from which
// operators draw that name none, stands for one stream at a time and is changed by moving its
// state.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

constexpr size_t stream_max = 4096;

at::Generator new_generator(Device *device)
{
    if (device->where.is_cpu())
        return at::detail::createCPUGenerator(0);
    return at::globalContext()
        .getAcceleratorHooksInterface(device->where.type())
        .getNewGenerator(device->where.index());
}

const at::Generator &default_generator(Device *device)
{
    return at::globalContext().defaultGenerator(device->where);
}

void move_state(const at::Generator &from, const at::Generator &to)
{
    at::Generator target = to;
    target.set_state(from.get_state());
}

/* While a stream is the default, its state lives in the default generator. */
void park_default(Device *device)
{
    if (device->is_default_loaded)
        move_state(default_generator(device), device->streams.at(device->used_stream));
    device->is_default_loaded = false;
}

at::Generator &stream_slot(Device *device, uint32_t stream)
{
    auto known = device->streams.find(stream);
    if (known != device->streams.end())
        return known->second;
    if (device->streams.size() >= stream_max)
        throw ValueMismatch("more than " + std::to_string(stream_max) + " random streams");
    return device->streams.emplace(stream, new_generator(device)).first->second;
}

} // namespace

at::Generator &stream_of(Device *device, uint32_t stream)
{
    at::Generator &generator = stream_slot(device, stream);
    if (device->is_default_loaded && device->used_stream == stream)
        return const_cast<at::Generator &>(default_generator(device));
    return generator;
}

dt_status_t generator_seed(void *arg, uint32_t stream, uint64_t seed, uint64_t offset,
                           dt_error_t *err)
{
    Device *device = static_cast<Device *>(arg);
    return guarded(err, [&] {
        at::Generator &generator = stream_of(device, stream);
        if (offset != 0 && device->where.is_cpu())
            return dt_fail(err, DT_ERR_INVALID, "torch", DT_BACKEND_VALUE_ERROR,
                           "random streams of a CPU have no offset");
        std::lock_guard<std::mutex> hold(generator.mutex());
        generator.set_current_seed(seed);
        if (offset != 0)
            generator.set_offset(offset);
        return DT_OK;
    });
}

dt_status_t generator_use(void *arg, uint32_t stream, dt_error_t *err)
{
    Device *device = static_cast<Device *>(arg);
    if (device->is_default_loaded && device->used_stream == stream)
        return DT_OK;
    return guarded(err, [&] {
        park_default(device);
        move_state(stream_slot(device, stream), default_generator(device));
        device->used_stream = stream;
        device->is_default_loaded = true;
        return DT_OK;
    });
}

void generator_free(void *arg, uint32_t stream)
{
    Device *device = static_cast<Device *>(arg);
    if (device->used_stream == stream)
        device->is_default_loaded = false;
    device->streams.erase(stream);
}

} // namespace dt_torch
