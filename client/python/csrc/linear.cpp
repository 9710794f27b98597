// Linear layers are one operator on the device, forward and backward: who places their operands on
// several devices must see the layer, not the reshaping and the product that PyTorch makes of it.
//
// Once PrivateUse1 has a kernel for aten::linear, autograd uses the layer's own derivative, which
// is aten::linear_backward. Both are sent whole where the CPU would flatten the input and multiply
// once, which the engine does with the same bits. What is left, the CPU takes apart in other ways:
// it is taken apart here as there.
#include <ATen/ATen.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/linear_native.h>

#include "composites.h"
#include "internal.h"

namespace dt_pu
{
namespace
{

struct Linear {
    Op *forward = find_op("aten::linear");
    Op *backward = find_op("aten::linear_backward");
    /* PyTorch's own kernels for autograd. */
    std::optional<c10::SafeKernelFunction> forward_autograd, backward_autograd;
};

Linear &linear()
{
    static auto *made = new Linear;
    return *made;
}

bool is_floating(const at::Tensor &tensor, c10::ScalarType type)
{
    return tensor.device().type() == kind && tensor.scalar_type() == type && !tensor.is_neg() &&
           tensor.layout() == at::kStrided;
}

/* Each dim of `input` but the last two lies right around the next: the CPU flattens it. */
bool lies_flat(const at::Tensor &input)
{
    auto sizes = input.sizes();
    auto strides = input.strides();
    for (size_t i = 0; i + 2 < sizes.size(); i++)
        if (strides[i] != strides[i + 1] * sizes[i + 1])
            return input.numel() == 0;
    return true;
}

/* The layer as modules make it: nothing to refuse or to promote. */
bool is_plain(const at::Tensor &input, const at::Tensor &weight, const at::Tensor *bias)
{
    const c10::ScalarType type = input.scalar_type();
    if (!c10::isFloatingType(type) || input.dim() < 1 || weight.dim() != 2 ||
        input.size(-1) != weight.size(1) || !is_floating(input, type) || !is_floating(weight, type))
        return false;
    return !bias ||
           (bias->dim() == 1 && bias->size(0) == weight.size(0) && is_floating(*bias, type));
}

bool is_odd(const at::Tensor &tensor)
{
    return at::isTensorSubclassLike(tensor) || tensor._fw_grad(0).defined();
}

const at::Tensor *defined(const std::optional<at::Tensor> &tensor)
{
    return tensor && tensor->defined() ? &*tensor : nullptr;
}

enum class Way { whole, flattened, apart };

Way way_of(const at::Tensor &input, const at::Tensor &weight, const at::Tensor *bias)
{
    if (is_odd(input) || is_odd(weight) || (bias && is_odd(*bias)) || has_policy(policy_parts) ||
        !is_plain(input, weight, bias))
        return Way::apart;
    if (lies_flat(input))
        return Way::whole;
    /* To save memory backward the CPU copies the input instead of repeating a weight that learns.
     */
    return weight.requires_grad() && at::GradMode::is_enabled() && !(bias && input.is_contiguous())
               ? Way::flattened
               : Way::apart;
}

at::Tensor flattened(const at::Tensor &input, const at::Tensor &weight, const at::Tensor *bias)
{
    std::vector<int64_t> sizes = input.sizes().vec();
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < sizes.size(); i++)
        rows *= sizes[i];
    at::Tensor product = at::linear(input.reshape({rows, input.size(-1)}), weight);
    sizes.back() = weight.size(0);
    product = at::_unsafe_view(product, sizes);
    return bias ? product.add_(*bias) : product;
}

/* A bias that does not fit is refused here: addmm() on Meta does not look at it. */
at::Tensor apart(const at::Tensor &input, const at::Tensor &weight,
                 const std::optional<at::Tensor> &bias)
{
    const at::Tensor *given = defined(bias);
    if (given && given->dim() == 1 && input.dim() == 2 && weight.dim() == 2 &&
        input.size(1) == weight.size(1))
        (void)given->expand({input.size(0), weight.size(0)});
    return at::native::linear(input, weight, bias);
}

at::Tensor forward(const at::Tensor &input, const at::Tensor &weight,
                   const std::optional<at::Tensor> &bias)
{
    Way way = way_of(input, weight, defined(bias));
    if (way == Way::flattened)
        return flattened(input, weight, defined(bias));
    if (way == Way::apart)
        return apart(input, weight, bias);
    Stack stack{input, weight, bias};
    record(*linear().forward, &stack);
    return std::move(stack.back()).toTensor();
}

at::Tensor forward_autograd(c10::DispatchKeySet keys, const at::Tensor &input,
                            const at::Tensor &weight, const std::optional<at::Tensor> &bias)
{
    Way way = way_of(input, weight, defined(bias));
    if (way == Way::flattened)
        return flattened(input, weight, defined(bias));
    if (way == Way::apart)
        return apart(input, weight, bias);
    Stack stack{input, weight, bias};
    linear().forward_autograd->callBoxed(linear().forward->handle, keys, &stack);
    return std::move(stack.back()).toTensor();
}

/* ---- backward ---- */

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

bool is_column_major(const at::Tensor &matrix)
{
    return matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
}

at::Tensor as_matrix(const at::Tensor &tensor)
{
    int64_t rows = 1;
    for (int64_t i = 0; i + 1 < tensor.dim(); i++)
        rows *= tensor.size(i);
    return tensor.dim() == 2 ? tensor : tensor.reshape({rows, tensor.size(-1)});
}

/* As the engine does it (lib/backend/torch/linear.cpp), but in operators that can be derived once
 * more. */
Gradients backward_apart(const at::Tensor &input, const at::Tensor &grad, const at::Tensor &weight,
                         std::array<bool, 3> wanted)
{
    at::Tensor rows = as_matrix(input), back = as_matrix(grad), turned = weight.t();
    at::Tensor of_input, of_weight, of_bias;
    if (wanted[0])
        of_input = (is_column_major(rows) ? at::mm(turned, back.t()).t() : at::mm(back, turned.t()))
                       .reshape(input.sizes());
    if (wanted[1])
        of_weight =
            (is_column_major(turned) ? at::mm(back.t(), rows).t() : at::mm(rows.t(), back)).t();
    if (wanted[2]) {
        at::Tensor from = input.dim() == 2 || input.is_contiguous() ? back : grad;
        std::vector<int64_t> outer;
        for (int64_t i = 0; i + 1 < from.dim(); i++)
            outer.push_back(i);
        of_bias = outer.empty() ? from : from.sum(outer, true).view({from.size(-1)});
    }
    return {of_input, of_weight, of_bias};
}

Gradients pop_gradients(Stack &stack)
{
    at::Tensor of_bias = std::move(stack.back()).toTensor();
    stack.pop_back();
    at::Tensor of_weight = std::move(stack.back()).toTensor();
    stack.pop_back();
    return {std::move(stack.back()).toTensor(), of_weight, of_bias};
}

Gradients backward(const at::Tensor &input, const at::Tensor &grad, const at::Tensor &weight,
                   std::array<bool, 3> wanted)
{
    Stack stack{input, grad, weight, c10::IValue(std::vector<bool>(wanted.begin(), wanted.end()))};
    record(*linear().backward, &stack);
    return pop_gradients(stack);
}

/* PyTorch's own derivative of the backward pass computes in another order than that of the parts.
 */
Gradients backward_autograd(c10::DispatchKeySet keys, const at::Tensor &input,
                            const at::Tensor &grad, const at::Tensor &weight,
                            std::array<bool, 3> wanted)
{
    bool is_derived = at::GradMode::is_enabled() &&
                      (input.requires_grad() || grad.requires_grad() || weight.requires_grad());
    if (is_derived || is_odd(input) || is_odd(grad) || is_odd(weight))
        return backward_apart(input, grad, weight, wanted);
    Stack stack{input, grad, weight, c10::IValue(std::vector<bool>(wanted.begin(), wanted.end()))};
    linear().backward_autograd->callBoxed(linear().backward->handle, keys, &stack);
    return pop_gradients(stack);
}

} // namespace

void register_linear(torch::Library &device, torch::Library &autograd)
{
    constexpr auto autograd_key = c10::DispatchKey::AutogradPrivateUse1;
    Linear &l = linear();
    device.impl("linear", TORCH_FN(forward));
    device.impl("linear_backward", TORCH_FN(backward));
    l.forward_autograd = l.forward->handle.getComputedKernelForDispatchKey(autograd_key);
    l.backward_autograd = l.backward->handle.getComputedKernelForDispatchKey(autograd_key);
    autograd.impl("linear", TORCH_FN(forward_autograd));
    autograd.impl("linear_backward", TORCH_FN(backward_autograd));
}

} // namespace dt_pu
