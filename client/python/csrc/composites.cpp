// Composite operators that ask which kind of device they are on. They must decompose as on the kind
// of device that executes, the CPU, or values differ.
#include "composites.h"

#include <ATen/ATen.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>

#include "internal.h"

namespace dt_pu
{

/* Else native_dropout, with other rounding and other draws than the CPU's. */
at::Tensor dropout(const at::Tensor &input, double p, bool train)
{
    TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
    if (p == 0 || !train || input.sym_numel() == 0)
        return input;
    if (p == 1)
        return input.mul(at::zeros({}, input.options()));
    at::Tensor noise = at::empty_like(input).bernoulli_(1 - p).div_(1 - p);
    return input * noise;
}

at::Tensor &dropout_(at::Tensor &input, double p, bool train)
{
    TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
    if (p == 0 || !train || input.sym_numel() == 0)
        return input;
    if (p == 1)
        return input.mul_(at::zeros({}, input.options()));
    at::Tensor noise = at::empty_like(input).bernoulli_(1 - p).div_(1 - p);
    return input.mul_(noise);
}

namespace
{

/* The CPU's own choice: it reads metadata only. Conditions differ between versions, so they are not
 * written again here. */
// NOLINTNEXTLINE(readability-function-size): PyTorch's own signature
int64_t sdp_choice(const at::Tensor &query, const at::Tensor &key_, const at::Tensor &value,
                   const std::optional<at::Tensor> &mask, double dropout_p, bool is_causal,
                   std::optional<double> scale, bool enable_gqa)
{
    using Choice =
        int64_t(const at::Tensor &, const at::Tensor &, const at::Tensor &,
                const std::optional<at::Tensor> &, double, bool, std::optional<double>, bool);
    static auto handle = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten::_fused_sdp_choice", "")
                             .typed<Choice>();
    return handle.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key_, value, mask,
                             dropout_p, is_causal, scale, enable_gqa);
}

} // namespace
} // namespace dt_pu

namespace at::native
{
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &dt_pu::sdp_choice)
} // namespace at::native

namespace dt_pu
{

/* There are no nested tensors on the device: the fast path of nn.TransformerEncoder is not taken.
 */
bool is_mask_left_aligned(const at::Tensor &, const at::Tensor &)
{
    return false;
}

/* Integers, which CUDA takes and the CPU does not: programs that count so ask for it on every
 * device but the CPU. */
at::Tensor histc(const at::Tensor &self, int64_t bins, const at::Scalar &min, const at::Scalar &max)
{
    if (c10::isIntegralType(self.scalar_type(), false))
        return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
    static Op *op = find_op("aten::histc");
    Stack stack{self, bins, min, max};
    record(*op, &stack);
    return stack.back().toTensor();
}

/* Where to split is needed here and now. */
std::vector<at::Tensor> tensor_split(const at::Tensor &self, const at::Tensor &where, int64_t dim)
{
    return at::tensor_split(self, where.cpu(), dim);
}

} // namespace dt_pu
