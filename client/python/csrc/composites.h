/* Composites that are decomposed by hand, composites.cpp, and those that are not, linear.cpp;
 * recurrent layers, recurrent.cpp. */
#ifndef DT_PYTHON_COMPOSITES_H
#define DT_PYTHON_COMPOSITES_H
#include <ATen/core/Tensor.h>
#include <optional>
#include <torch/library.h>
#include <vector>

namespace dt_pu
{

at::Tensor dropout(const at::Tensor &input, double p, bool train);
at::Tensor &dropout_(at::Tensor &input, double p, bool train);
bool is_mask_left_aligned(const at::Tensor &tensor, const at::Tensor &mask);
at::Tensor histc(const at::Tensor &self, int64_t bins, const at::Scalar &min,
                 const at::Scalar &max);
std::vector<at::Tensor> tensor_split(const at::Tensor &self, const at::Tensor &where, int64_t dim);

/* What is switched off to measure what it is worth (mesh.cpp), beside the bits of dt_policy_t. */
constexpr uint32_t policy_parts = 1u << 8; /* linear layers in their parts */
bool has_policy(uint32_t flag);

/* Register aten::linear and aten::linear_backward, which go to the device whole. */
void register_linear(torch::Library &device, torch::Library &autograd);

/* Register recurrent layers and cells, in the CPU's parts (recurrent.cpp). */
void register_recurrent(torch::Library &device, torch::Library &autograd);

} // namespace dt_pu
#endif
