// The rest of the C interface; each file has its own part.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <chrono>
#include <cstring>
#include <torch/headeronly/version.h>

#include "record.h"

namespace dt_pu
{

std::string binding_text(uint32_t vdev)
{
    std::vector<dt_binding_t> bindings(vdev_count());
    uint32_t count = 0;
    dt_session_t *now = if_session();
    if (!now || dt_session_bindings(now, bindings.data(), (uint32_t)bindings.size(), &count))
        return "";
    for (uint32_t i = 0; i < count && i < bindings.size(); i++)
        if (bindings[i].vdev == vdev)
            return std::string(bindings[i].node) + " " + bindings[i].kind + ":" +
                   std::to_string(bindings[i].device);
    return "";
}

std::string place_of(const at::Tensor &tensor)
{
    return binding_text(storage_of(tensor)->vdev);
}

int64_t wire_id_of(const at::Tensor &tensor)
{
    (void)session();
    note_place();
    Lock lock(recorder());
    return (int64_t)wire_id(tensor);
}

} // namespace dt_pu

using namespace dt_pu;

uint32_t dt_device_abi(void)
{
    return DT_DEVICE_ABI;
}

const char *dt_device_torch_version(void)
{
    return TORCH_VERSION;
}

const char *dt_device_error(void)
{
    return error_text();
}

int dt_device_exception(const char *kind_name, void *type)
{
    return guarded([&] {
        set_exception(kind_name, type);
        return DT_OK;
    });
}

int dt_device_install(void)
{
    return guarded([] { return register_all(); });
}

int dt_device_take_meta(void)
{
    return guarded([] { return take_meta_kernels(); });
}

int dt_device_failure(dt_device_failure_t *ret_failure)
{
    auto from = std::make_unique<dt_failure_t>();
    if (ret_failure->struct_size != sizeof *ret_failure)
        return DT_ERR_INVALID;
    if (!last_failure(from.get()))
        return DT_ERR_NOT_FOUND;
    memset(ret_failure, 0, sizeof *ret_failure);
    ret_failure->struct_size = sizeof *ret_failure;
    ret_failure->status = from->error.code;
    ret_failure->device = from->device;
    ret_failure->vdev = from->vdev;
    ret_failure->range_count = from->range_count;
    ret_failure->sequence = from->sequence;
    ret_failure->skipped = from->skipped;
    memcpy(ret_failure->kind, from->kind, sizeof from->kind);
    memcpy(ret_failure->text, from->text, sizeof from->text);
    memcpy(ret_failure->operator_name, from->operator_name, sizeof from->operator_name);
    memcpy(ret_failure->inputs, from->inputs, sizeof from->inputs);
    memcpy(ret_failure->place, from->place, sizeof from->place);
    memcpy(ret_failure->node, from->node, sizeof from->node);
    memcpy(ret_failure->range, from->range, sizeof from->range);
    return DT_OK;
}

/* 0: it failed. */
static double bench(int count, const std::function<std::function<void()>()> &prepare)
{
    double spent_ns = 0;
    (void)guarded([&] {
        std::function<void()> program = prepare();
        auto begin = std::chrono::steady_clock::now();
        program();
        std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
        spent_ns = spent.count() / count;
        return DT_OK;
    });
    return spent_ns;
}

static at::Tensor one()
{
    return at::ones({1}, at::TensorOptions().device(c10::Device(kind, 0)));
}

double dt_device_bench_add(int count)
{
    return bench(count, [count]() -> std::function<void()> {
        return [count, a = one(), b = one()] {
            at::AutoDispatchBelowADInplaceOrView below;
            for (int i = 0; i < count; i++)
                at::Tensor sum = at::add(a, b);
        };
    });
}

double dt_device_bench_hit(int count)
{
    return bench(count, [count]() -> std::function<void()> {
        at::Tensor first = one(), second = one();
        (void)at::add(first, second);
        return [count, a = first, b = second] {
            Op *add = find_op("aten::add", "Tensor");
            Lock lock(recorder());
            for (int i = 0; i < count; i++) {
                Scratch &s = scratch();
                s.begin(*add, is_default_type_odd());
                put_tensor(s, *add, add->arguments[0], a);
                put_tensor(s, *add, add->arguments[1], b);
                put_number(s, *add, add->arguments[2], at::Scalar(1));
                s.end();
                TORCH_CHECK(find_signature(s.key), "an add that is not known");
            }
        };
    });
}

double dt_device_bench_place(int count)
{
    return bench(count, [count]() -> std::function<void()> {
        return [count] {
            for (int i = 0; i < count; i++)
                note_place();
        };
    });
}
