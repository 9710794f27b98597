// Calls without boxing. Most operators of a program take tensors and numbers and return one new
// tensor; for schemas of these few shapes the arguments go straight to the dispatcher's typed call,
// which spares the stack, a reference to each tensor, and boxing each number. Nothing here knows an
// operator.
#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

bool is_number(const dt_value_t &v)
{
    return v.tag == DT_VALUE_INT || v.tag == DT_VALUE_DOUBLE || v.tag == DT_VALUE_TRUE ||
           v.tag == DT_VALUE_FALSE || v.tag == DT_VALUE_COMPLEX;
}

/* One argument; it lives as long as the call. `v` is NULL where it was left out. */
template <typename P> struct Slot;

/* The caller's tensor without a reference of our own, or a number as a tensor. */
template <> struct Slot<const at::Tensor &> {
    static constexpr Kind kind = Kind::tensor;
    at::Tensor tensor;
    bool is_borrowed;
    Slot(const Argument &argument, const dt_value_t *v) : is_borrowed(v->tag == DT_VALUE_TENSOR)
    {
        if (is_borrowed) {
            tensor =
                at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
                    static_cast<c10::TensorImpl *>(v->handle)));
            return;
        }
        tensor = c10::scalar_to_tensor(as_scalar(argument, *v));
        tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    Slot(const Slot &) = delete;
    Slot &operator=(const Slot &) = delete;
    ~Slot()
    {
        if (is_borrowed)
            (void)tensor.unsafeReleaseTensorImpl();
    }
    operator const at::Tensor &() const
    {
        return tensor;
    }
    static bool fits(const Argument &, const dt_value_t *v)
    {
        return v && (v->tag == DT_VALUE_TENSOR ? v->handle != nullptr : is_number(*v));
    }
};

template <> struct Slot<const at::Scalar &> {
    static constexpr Kind kind = Kind::scalar;
    at::Scalar scalar;
    Slot(const Argument &argument, const dt_value_t *v)
        : scalar(v && v->tag != DT_VALUE_DEFAULT ? as_scalar(argument, *v)
                                                 : argument.fallback.toScalar())
    {
    }
    operator const at::Scalar &() const
    {
        return scalar;
    }
    static bool fits(const Argument &argument, const dt_value_t *v)
    {
        return v && v->tag != DT_VALUE_DEFAULT
                   ? is_number(*v)
                   : argument.has_default && argument.fallback.isScalar();
    }
};

template <typename... P> struct Unboxed final : Typed {
    c10::TypedOperatorHandle<at::Tensor(P...)> handle;
    explicit Unboxed(const c10::OperatorHandle &h) : handle(h.typed<at::Tensor(P...)>())
    {
    }
    bool fits(const Op &op, const dt_value_t *args, uint32_t count) const override
    {
        return count <= sizeof...(P) && fits(op, args, count, std::index_sequence_for<P...>());
    }
    at::Tensor call(const Op &op, const dt_value_t *args, uint32_t count) const override
    {
        return call(op, args, count, std::index_sequence_for<P...>());
    }

  private:
    static const dt_value_t *at(const dt_value_t *args, uint32_t count, size_t i)
    {
        return i < count ? &args[i] : nullptr;
    }
    template <size_t... I>
    static bool fits(const Op &op, const dt_value_t *args, uint32_t count,
                     std::index_sequence<I...>)
    {
        return (Slot<P>::fits(op.arguments[I], at(args, count, I)) && ...);
    }
    template <size_t... I>
    at::Tensor call(const Op &op, const dt_value_t *args, uint32_t count,
                    std::index_sequence<I...>) const
    {
        return handle.call(Slot<P>(op.arguments[I], at(args, count, I))...);
    }
};

/* Whether the arguments are of these kinds, none of them optional. */
template <typename... P> bool takes(const Op &op)
{
    const Kind kinds[] = {Slot<P>::kind...};
    if (op.arguments.size() != sizeof...(P))
        return false;
    for (size_t i = 0; i < sizeof...(P); i++)
        if (op.arguments[i].kind != kinds[i] || op.arguments[i].is_optional)
            return false;
    return true;
}

template <typename... P> std::unique_ptr<Typed> try_call(const Op &op)
{
    return takes<P...>(op) ? std::make_unique<Unboxed<P...>>(op.handle) : nullptr;
}

using T = const at::Tensor &;
using N = const at::Scalar &;

} // namespace

std::unique_ptr<Typed> typed_call(const Op &op)
{
    const std::vector<c10::Argument> &returns = op.handle.schema().returns();
    std::unique_ptr<Typed> call;
    if (returns.size() != 1 || returns[0].type()->kind() != c10::TypeKind::TensorType ||
        returns[0].alias_info())
        return call;
    try {
        if (!(call = try_call<T>(op)) && !(call = try_call<T, T>(op)) &&
            !(call = try_call<T, N>(op)) && !(call = try_call<T, T, N>(op)) &&
            !(call = try_call<T, T, T>(op)) && !(call = try_call<T, N, N>(op)))
            call = try_call<T, T, T, N, N>(op);
    } catch (const c10::Error &) { /* registered with other types than its schema suggests */
        call = nullptr;
    }
    return call;
}

} // namespace dt_torch
