// Which overloads have a kernel on the device, by rule, and those by hand.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/equal.h>
#include <set>
#include <torch/library.h>

#include "composites.h"
#include "internal.h"
#include "typed.h"

namespace dt_pu
{
namespace
{

struct Kernel final : public c10::OperatorKernel {
    Op *op;
    explicit Kernel(Op *of) : op(of)
    {
    }
    void operator()(const c10::OperatorHandle &, c10::DispatchKeySet, Stack *stack)
    {
        record(*op, stack);
    }
};

struct ViewKernel final : public c10::OperatorKernel {
    Op *op;
    explicit ViewKernel(Op *of) : op(of)
    {
    }
    void operator()(const c10::OperatorHandle &, c10::DispatchKeySet, Stack *stack)
    {
        record_view(*op, stack);
    }
};

/* They only allocate or alias, or have to be decomposed to come out as on the CPU. */
const std::set<std::string> &left_out()
{
    static const auto *names = new std::set<std::string>{
        "aten::empty",
        "aten::_to_copy",
        "aten::detach",
        "aten::detach_",
        "aten::alias",
        "aten::lift",
        "aten::lift_fresh",
        "aten::lift_fresh_copy",
        "aten::_copy_from",
        "aten::_copy_from_and_resize",
        "aten::set_",
        "aten::_cudnn_rnn",
        "aten::normal_functional",
        "aten::_linalg_check_errors",
        "aten::_pack_padded_sequence",
    };
    return *names;
}

/* A tensor, or an optional one, or a list of them. */
bool is_tensor(const c10::TypePtr &type)
{
    if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType)
        return is_tensor(type->containedType(0));
    return type->kind() == c10::TypeKind::TensorType;
}

enum class Use { no, kernel, view };

/* CPU has a kernel of its own, or one is computed for it and the operator is no plain composite. */
Use use_of(const c10::OperatorHandle &handle)
{
    bool is_view = false, has_tensor = false, writes = false;
    const c10::FunctionSchema &schema = handle.schema();
    if (!handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))
        return Use::no;
    if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
        !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU))
        return Use::no;
    for (const c10::Argument &argument : schema.arguments()) {
        is_view |= argument.alias_info() && !argument.alias_info()->isWrite();
        writes |= argument.alias_info() && argument.alias_info()->isWrite();
        has_tensor |= is_tensor(argument.type());
    }
    for (const c10::Argument &result : schema.returns())
        if (!is_tensor(result.type()))
            return Use::no;
    has_tensor |= schema.name() == "aten::tril_indices" || schema.name() == "aten::triu_indices";
    if (!has_tensor || (is_view && writes))
        return Use::no;
    return is_view ? Use::view : Use::kernel;
}

bool is_geometry_only(const std::string &name)
{
    static const std::set<std::string> names{
        "aten::t_",        "aten::transpose_", "aten::squeeze_",    "aten::unsqueeze_",
        "aten::swapaxes_", "aten::swapdims_",  "aten::as_strided_",
    };
    return names.count(name) || name.find("resize") != std::string::npos;
}

/* Tensors of the device are strided: PyTorch itself says what is missing. */
bool is_sparse(const std::string &name)
{
    return name.find("sparse") != std::string::npos;
}

at::Tensor &set_source_tensor(at::Tensor &self, const at::Tensor &source)
{
    TORCH_CHECK(self.scalar_type() == source.scalar_type() && self.device() == source.device(),
                "Could not set tensor of type ", source.toString(), " to a tensor of type ",
                self.toString());
    return set_source_storage_offset(self, source.storage(), source.storage_offset(),
                                     source.sizes(), source.strides());
}

/* By hand: what allocates, copies or only changes the handle. */
void register_by_hand(torch::Library &lib, std::set<std::string> &done)
{
#define BY_HAND(name, function)                                                                    \
    do {                                                                                           \
        done.insert("aten::" name);                                                                \
        lib.impl(name, TORCH_FN(function));                                                        \
    } while (0)
    BY_HAND("empty.memory_format", empty);
    BY_HAND("empty_strided", empty_strided);
    BY_HAND("empty_like", empty_like);
    BY_HAND("new_empty", new_empty);
    BY_HAND("new_empty_strided", new_empty_strided);
    BY_HAND("_efficientzerotensor", efficient_zero_tensor);
    BY_HAND("copy_", copy_);
    BY_HAND("_local_scalar_dense", local_scalar_dense);
    BY_HAND("resize_", resize_);
    BY_HAND("set_.source_Storage_storage_offset", set_source_storage_offset);
    BY_HAND("set_.source_Storage", set_source_storage);
    BY_HAND("set_.source_Tensor", set_source_tensor);
    BY_HAND("set_", set_nothing);
    BY_HAND("dropout", dropout);
    BY_HAND("dropout_", dropout_);
    BY_HAND("tensor_split.tensor_indices_or_sections", tensor_split);
    BY_HAND("_nested_tensor_from_mask_left_aligned", is_mask_left_aligned);
    BY_HAND("equal", equal);
    BY_HAND("histc", histc);
#undef BY_HAND
}

/* inference_mode takes the autograd keys away: composites are registered for both. */
void register_composites(torch::Library &device)
{
    static auto *lib = new torch::Library(
        torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
    lib->impl("dropout", TORCH_FN(dropout));
    lib->impl("dropout_", TORCH_FN(dropout_));
    lib->impl("tensor_split.tensor_indices_or_sections", TORCH_FN(tensor_split));
    register_linear(device, *lib);
    register_recurrent(device, *lib);
}

/* By the dispatcher itself: torch::Library parses the name of each anew, and we have it. */
void register_kernel(Op *op, c10::KernelFunction kernel)
{
    static auto *kept = new std::vector<c10::RegistrationHandleRAII>;
    kept->push_back(c10::Dispatcher::singleton().registerImpl(op->handle.operator_name(), key,
                                                              std::move(kernel), std::nullopt,
                                                              nullptr, "the device dtorch"));
}

} // namespace

int register_all()
{
    static auto *lib = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    static int count = -1;
    std::set<std::string> done;
    if (count >= 0)
        return count;
    register_device();
    register_by_hand(*lib, done);
    register_typed(*lib, done);
    register_composites(*lib);
    count = (int)done.size();
    c10::Dispatcher &dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
        if (name.name.rfind("aten::", 0) != 0 || left_out().count(name.name) || done.count(full) ||
            is_geometry_only(name.name) || is_sparse(name.name))
            continue;
        auto handle = dispatcher.findSchema(name);
        Use use = handle ? use_of(*handle) : Use::no;
        if (use == Use::no)
            continue;
        Op *op = make_op(*handle);
        op->find_one_by_one();
        if (use == Use::view) {
            op->view = handle->getComputedKernelForDispatchKey(c10::DispatchKey::CPU);
            register_kernel(
                op, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ViewKernel>(op)));
        } else {
            register_kernel(
                op, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op)));
        }
        count++;
    }
    return count;
}

} // namespace dt_pu

TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m){
#define LOWER(...)   KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SINGLE(...)  KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
    AT_FORALL_LOWER_PRECISION_FP(LOWER) AT_FORALL_FP32(SINGLE) AT_FORALL_PROMOTE(PROMOTE)
#undef LOWER
#undef SINGLE
#undef PROMOTE
}

/* For the Python package; dtorch_device.h says what they do. */
TORCH_LIBRARY(dtorch, m)
{
    m.def("fetch_start(Tensor tensor) -> int");
    m.def("fetch_done(int number) -> bool", dt_pu::fetch_done);
    m.def("fetch_wait(int number, int timeout_ms) -> bool", dt_pu::fetch_wait);
    m.def("fetch_take(int number) -> Tensor", dt_pu::fetch_take);
    m.def("fetch_drop(int number) -> ()", dt_pu::fetch_drop);
    m.def("place(Tensor tensor) -> str");
    m.def("wire_id(Tensor tensor) -> int");
}

TORCH_LIBRARY_IMPL(dtorch, PrivateUse1, m)
{
    m.impl("fetch_start", TORCH_FN(dt_pu::fetch_start));
    m.impl("place", TORCH_FN(dt_pu::place_of));
    m.impl("wire_id", TORCH_FN(dt_pu::wire_id_of));
}
