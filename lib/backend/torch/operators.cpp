// Operators of our own, called by name as PyTorch's are: what front ends need and no schema of ATen
// gives. They are registered when a device is opened, not by the linker.
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

using Stack = std::vector<c10::IValue>;

/* The state of a random stream, as bytes that only the same kind of device understands. Boxed: no
 * schema is inferred for functions that take a generator. */
void generator_state(const c10::OperatorHandle &, Stack *stack)
{
    at::Generator generator = stack->back().toGenerator();
    stack->pop_back();
    std::lock_guard<std::mutex> hold(generator.mutex());
    stack->emplace_back(generator.get_state());
}

/* The same on the device of a tensor, which is all that it is for. */
void generator_state_beside(const c10::OperatorHandle &handle, Stack *stack)
{
    stack->pop_back();
    generator_state(handle, stack);
}

void set_generator_state(const c10::OperatorHandle &, Stack *stack)
{
    at::Tensor state = stack->back().toTensor().cpu().contiguous();
    stack->pop_back();
    at::Generator generator = stack->back().toGenerator();
    stack->pop_back();
    std::lock_guard<std::mutex> hold(generator.mutex());
    generator.set_state(state);
}

/* What a tensor is, without its value: for results whose sizes depend on values.
 * Shapes: (2 + 2 * DT_META_DIM_MAX) of element type, dims, sizes, strides. */
at::Tensor metadata(const at::Tensor &tensor)
{
    at::Tensor result = at::zeros({2 + 2 * DT_META_DIM_MAX}, at::TensorOptions().dtype(at::kLong));
    TORCH_CHECK(tensor.dim() <= DT_META_DIM_MAX, "a tensor of ", tensor.dim(), " dimensions");
    int64_t *at = result.mutable_data_ptr<int64_t>();
    *at++ = (int64_t)tensor.scalar_type();
    *at++ = tensor.dim();
    for (int64_t i = 0; i < tensor.dim(); i++) {
        at[i] = tensor.size(i);
        at[DT_META_DIM_MAX + i] = tensor.stride(i);
    }
    return result;
}

/* oneDNN's layer keeps what its backward pass needs only where gradients are wanted. An engine
 * cannot know: the backward pass is an operator like any other. It is kept always, for the client
 * to free; results are the same. */
c10::SafeKernelFunction *rnn_layer_kernel;

void rnn_layer(const c10::OperatorHandle &handle, Stack *stack)
{
    c10::AutoGradMode wanted(true);
    rnn_layer_kernel->callBoxed(handle, c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

/* Over PyTorch's kernel, which warns: there is a reason. */
void register_rnn_layer()
{
    struct Silence final : c10::WarningHandler {
        void process(const c10::Warning &) override
        {
        }
    } silence;
    auto handle = c10::Dispatcher::singleton().findSchema({"aten::mkldnn_rnn_layer", ""});
    if (!handle || !handle->hasKernelForDispatchKey(c10::DispatchKey::CPU))
        return; /* without oneDNN */
    rnn_layer_kernel =
        new c10::SafeKernelFunction(handle->getComputedKernelForDispatchKey(c10::DispatchKey::CPU));
    static auto *lib =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    c10::WarningUtils::WarningHandlerGuard quiet(&silence);
    lib->impl("mkldnn_rnn_layer", torch::CppFunction::makeFromBoxedFunction<&rnn_layer>());
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
    lib->def("generator_state(Generator generator) -> Tensor",
             torch::CppFunction::makeFromBoxedFunction<&generator_state>());
    lib->def("generator_state.beside(Generator generator, Tensor where) -> Tensor",
             torch::CppFunction::makeFromBoxedFunction<&generator_state_beside>());
    lib->def("set_generator_state(Generator generator, Tensor state) -> ()",
             torch::CppFunction::makeFromBoxedFunction<&set_generator_state>());
    lib->def("metadata(Tensor tensor) -> Tensor", metadata);
    register_linear();
    register_rnn_layer();
}

} // namespace dt_torch
