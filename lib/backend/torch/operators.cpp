// Operators of our own, called by name as PyTorch's are: what front ends need and no schema of ATen
// gives. They are registered when a device is opened, not by the linker.
#include <ATen/core/Generator.h>
#include <torch/library.h>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

/* The state of a random stream, as bytes that only the same kind of device understands. */
at::Tensor generator_state(const at::Generator &generator)
{
    std::lock_guard<std::mutex> hold(generator.mutex());
    return generator.get_state();
}

void set_generator_state(at::Generator generator, const at::Tensor &state)
{
    std::lock_guard<std::mutex> hold(generator.mutex());
    generator.set_state(state.cpu().contiguous());
}

} // namespace

void register_operators()
{
    static auto *lib =
        new torch::Library(torch::Library::FRAGMENT, "dtorch", std::nullopt, __FILE__, __LINE__);
    static bool is_done = false;
    if (is_done)
        return;
    is_done = true;
    lib->def("generator_state(Generator generator) -> Tensor", generator_state);
    lib->def("set_generator_state(Generator generator, Tensor state) -> ()", set_generator_state);
}

} // namespace dt_torch
