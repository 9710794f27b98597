// aten::linear_backward for the CPU, where PyTorch has none: a linear layer is one operator for
// those that place it on devices, in both directions. The products and the sum, their order and
// how their operands lie are those that autograd makes of a linear layer on the CPU, so that the
// bits are the same.
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

/* Dims lie as in a transposed matrix. Shapes: (m, n). */
bool is_column_major(const at::Tensor &matrix)
{
    return matrix.stride(0) == 1 && matrix.stride(1) == matrix.size(0);
}

/* What `first` @ `second` gives back to `first`: it lies as `first` does. */
at::Tensor first_gradient(const at::Tensor &grad, const at::Tensor &first, const at::Tensor &second)
{
    return is_column_major(first) ? at::mm(second, grad.t()).t() : at::mm(grad, second.t());
}

at::Tensor second_gradient(const at::Tensor &grad, const at::Tensor &first,
                           const at::Tensor &second)
{
    return is_column_major(second) ? at::mm(grad.t(), first).t() : at::mm(first.t(), grad);
}

at::Tensor as_matrix(const at::Tensor &tensor)
{
    int64_t rows = 1;
    for (int64_t i = 0; i + 1 < tensor.dim(); i++)
        rows *= tensor.size(i);
    return tensor.dim() == 2 ? tensor : tensor.reshape({rows, tensor.size(-1)});
}

/* The CPU adds a bias within the product if the input is a matrix or lies as one, else after it. */
at::Tensor bias_gradient(const at::Tensor &grad, const at::Tensor &input)
{
    bool is_within = input.dim() == 2 || input.is_contiguous();
    at::Tensor from = is_within ? as_matrix(grad) : grad;
    std::vector<int64_t> outer;
    for (int64_t i = 0; i + 1 < from.dim(); i++)
        outer.push_back(i);
    if (outer.empty())
        return from.clone(at::MemoryFormat::Contiguous);
    return from.sum(outer, true).view({from.size(-1)});
}

/* Shapes: input (..., in), grad (..., out), weight (out, in); gives as the input, as the weight,
 * (out). */
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward(const at::Tensor &input,
                                                               const at::Tensor &grad,
                                                               const at::Tensor &weight,
                                                               std::array<bool, 3> wanted)
{
    at::Tensor rows = as_matrix(input), back = as_matrix(grad), turned = weight.t();
    at::Tensor of_input, of_weight, of_bias;
    if (wanted[0])
        of_input = first_gradient(back, rows, turned).reshape(input.sizes());
    if (wanted[1])
        of_weight = second_gradient(back, rows, turned).t();
    if (wanted[2])
        of_bias = bias_gradient(grad, input);
    return {of_input, of_weight, of_bias};
}

} // namespace

void register_linear()
{
    static auto *lib =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    lib->impl("linear_backward", TORCH_FN(linear_backward));
}

} // namespace dt_torch
