// Operators that need the whole of a dimension, on tensors of a mesh that are cut there: in smaller
// ones, of which only the small results in the middle are brought together. No rule of placement
// can say that: it is several operators with communication between them.
#include <ATen/ATen.h>
#include <vector>

#include "composites.h"
#include "internal.h"

namespace dt_pu
{
namespace
{

using Arguments = c10::ArrayRef<c10::IValue>;

constexpr size_t least_bytes = 4096; /* what is smaller is brought together in one message */

/* Dimensions of a tensor that are cut, as bits. */
uint64_t cuts_of(const at::Tensor &tensor)
{
    if (!tensor.defined() || tensor.device().type() != kind || !storage_of(tensor)->mesh)
        return 0;
    Lock lock(recorder());
    calls().now++;
    std::optional<MeshLayout> layout = layout_held(tensor);
    uint64_t cuts = 0;
    for (size_t i = 0; layout && i < layout->placements.size(); i++)
        if (layout->placements[i].kind == DT_PLACEMENT_SHARD)
            cuts |= UINT64_C(1) << layout->placements[i].dim;
    return cuts;
}

bool is_cut(const at::Tensor &tensor, at::IntArrayRef dims, size_t least = least_bytes)
{
    uint64_t mask = 0;
    for (int64_t dim : dims)
        mask |= UINT64_C(1) << c10::maybe_wrap_dim(dim, tensor.dim());
    return tensor.numel() > 0 && tensor.nbytes() >= least && tensor.is_floating_point() &&
           (cuts_of(tensor) & (dims.empty() ? ~UINT64_C(0) : mask));
}

/* The CPU's kernels compute in float32 what is shorter. */
at::Tensor wide(const at::Tensor &tensor)
{
    return tensor.element_size() < 4 ? tensor.to(at::kFloat) : tensor;
}

at::Tensor narrow_as(const at::Tensor &tensor, c10::ScalarType type)
{
    return tensor.scalar_type() == type ? tensor : tensor.to(type);
}

/* As the CPU's kernels give it. */
at::Tensor plain_as(const at::Tensor &tensor, c10::ScalarType type)
{
    return narrow_as(tensor, type).contiguous();
}

/* ---- softmax ---- */

bool softmax(Arguments args, Stack &results, bool is_log)
{
    const at::Tensor &self = args[0].toTensor();
    const int64_t dim = args[1].toInt();
    if (!is_cut(self, dim))
        return false;
    at::Tensor x = wide(self);
    at::Tensor less = x - x.amax(dim, true);
    at::Tensor powers = less.exp(), sum = powers.sum(dim, true);
    at::Tensor made = is_log ? less - sum.log() : powers / sum;
    results.emplace_back(
        plain_as(made, args[2].toBool() ? c10::ScalarType::Float : self.scalar_type()));
    return true;
}

bool softmax_backward(Arguments args, Stack &results, bool is_log)
{
    const at::Tensor &given = args[0].toTensor(), &output = args[1].toTensor();
    const int64_t dim = args[2].toInt();
    if (!is_cut(given, dim) && !is_cut(output, dim))
        return false;
    at::Tensor gradient = wide(given), y = wide(output);
    at::Tensor made;
    if (is_log) {
        made = gradient - y.exp() * gradient.sum(dim, true);
    } else {
        at::Tensor part = gradient * y;
        made = part - y * part.sum(dim, true);
    }
    results.emplace_back(plain_as(made, args[3].toScalarType()));
    return true;
}

/* ---- norms ---- */

bool vector_norm(Arguments args, Stack &results)
{
    const at::Tensor &self = args[0].toTensor();
    const double order = args[1].toScalar().toDouble();
    std::vector<int64_t> dims;
    if (!args[2].isNone())
        dims = args[2].toIntVector();
    if (!std::isfinite(order) || order == 0 || order == 1 || !is_cut(self, dims, 0))
        return false; /* the others have rules */
    const c10::ScalarType type = args[4].isNone() ? self.scalar_type() : args[4].toScalarType();
    if (!c10::isFloatingType(type))
        return false;
    at::Tensor x = wide(narrow_as(self, type));
    at::Tensor powers = order == 2 ? x * x : x.abs().pow(order);
    at::Tensor sum = powers.sum(dims, args[3].toBool());
    results.emplace_back(narrow_as(order == 2 ? sum.sqrt() : sum.pow(1 / order), type));
    return true;
}

/* Dimensions that layer_norm() makes alike: the last ones. */
std::vector<int64_t> last_dims(const at::Tensor &tensor, size_t count)
{
    std::vector<int64_t> dims;
    for (size_t i = 0; i < count; i++)
        dims.push_back(tensor.dim() - (int64_t)(count - i));
    return dims;
}

at::Tensor given_or_empty(const c10::IValue &value)
{
    return value.isNone() ? at::Tensor() : value.toTensor();
}

bool layer_norm(Arguments args, Stack &results)
{
    const at::Tensor &x = args[0].toTensor();
    const std::vector<int64_t> dims = last_dims(x, args[1].toDimVector().size());
    if (!is_cut(x, dims) || x.element_size() < 4)
        return false;
    at::Tensor weight = given_or_empty(args[2]), bias = given_or_empty(args[3]);
    at::Tensor mean = x.mean(dims, true);
    at::Tensor less = x - mean;
    at::Tensor scale = ((less * less).mean(dims, true) + args[4].toDouble()).rsqrt();
    at::Tensor made = less * scale;
    if (weight.defined())
        made = made * weight;
    if (bias.defined())
        made = made + bias;
    results.emplace_back(made.contiguous());
    results.emplace_back(mean);
    results.emplace_back(scale);
    return true;
}

bool layer_norm_backward(Arguments args, Stack &results)
{
    const at::Tensor &given = args[0].toTensor(), &x = args[1].toTensor();
    const size_t count = args[2].toDimVector().size();
    const std::vector<int64_t> dims = last_dims(x, count);
    if ((!is_cut(x, dims) && !is_cut(given, dims)) || x.element_size() < 4)
        return false;
    at::Tensor weight = given_or_empty(args[5]), scale = args[4].toTensor();
    const auto wanted = args[7].toBoolList();
    at::Tensor shape = (x - args[3].toTensor()) * scale;
    at::Tensor gradient = weight.defined() ? given * weight : given;
    std::vector<int64_t> outer;
    for (int64_t d = 0; d < x.dim() - (int64_t)count; d++)
        outer.push_back(d);
    auto shrunk = [&](const at::Tensor &all) { return outer.empty() ? all : all.sum(outer); };
    at::Tensor none;
    results.emplace_back(!wanted[0] ? none
                                    : (scale * (gradient - gradient.mean(dims, true) -
                                                shape * (gradient * shape).mean(dims, true)))
                                          .contiguous());
    results.emplace_back(wanted[1] && weight.defined() ? shrunk(given * shape) : none);
    results.emplace_back(wanted[2] ? shrunk(given) : none);
    return true;
}

/* ---- losses ---- */

/* A mean's divisor, the weight of all targets, is known when all have been looked at. */
bool nll_loss(Op &op, Arguments args, Stack &results)
{
    const at::Tensor &self = args[0].toTensor(), &target = args[1].toTensor();
    if (args[3].toInt() != at::Reduction::Mean || self.numel() == 0 ||
        !(cuts_of(self) | cuts_of(target)))
        return false;
    Stack sums(args.begin(), args.end());
    sums[3] = (int64_t)at::Reduction::Sum;
    op.handle.callBoxed(&sums);
    results.emplace_back(sums[0].toTensor() / sums[1].toTensor());
    results.emplace_back(sums[1]);
    return true;
}

struct Way {
    const char *name;
    bool (*take)(Op &, Arguments, Stack &);
    const Op *op = nullptr;
};

/* An operator is looked up for each call on a mesh: by its address. */
const std::vector<Way> &ways()
{
    static const auto *known = [] {
        auto *made = new std::vector<Way>{
            {"aten::_softmax", [](Op &, Arguments a, Stack &r) { return softmax(a, r, false); }},
            {"aten::_log_softmax", [](Op &, Arguments a, Stack &r) { return softmax(a, r, true); }},
            {"aten::_softmax_backward_data",
             [](Op &, Arguments a, Stack &r) { return softmax_backward(a, r, false); }},
            {"aten::_log_softmax_backward_data",
             [](Op &, Arguments a, Stack &r) { return softmax_backward(a, r, true); }},
            {"aten::linalg_vector_norm",
             [](Op &, Arguments a, Stack &r) { return vector_norm(a, r); }},
            {"aten::native_layer_norm",
             [](Op &, Arguments a, Stack &r) { return layer_norm(a, r); }},
            {"aten::native_layer_norm_backward",
             [](Op &, Arguments a, Stack &r) { return layer_norm_backward(a, r); }},
            {"aten::nll_loss_forward", nll_loss},
            {"aten::nll_loss2d_forward", nll_loss},
        };
        for (Way &way : *made)
            way.op = find_op(way.name);
        return made;
    }();
    return *known;
}

} // namespace

bool decompose(Op &op, Stack *stack)
{
    const Way *way = nullptr;
    for (const Way &known : ways())
        if (C10_UNLIKELY(known.op == &op))
            way = &known;
    if (C10_LIKELY(!way) || is_strict() || has_policy(policy_whole))
        return false;
    const size_t count = op.arguments.size();
    Stack results;
    if (!way->take(op, Arguments(*stack).slice(stack->size() - count), results))
        return false;
    torch::jit::drop(*stack, count);
    for (c10::IValue &result : results)
        stack->push_back(std::move(result));
    return true;
}

} // namespace dt_pu
