// Typed kernels of the operators that programs call most: without PyTorch's stack between. They
// make the keys that the boxed kernel makes (record.cpp), and what is not known yet, or not that
// plain, is left to it.
#include "typed.h"

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <torch/library.h>
#include <tuple>

#include "record.h"
#include "typed_operators.h"

namespace dt_pu
{
namespace
{

/* ---- arguments: what put_value() writes for the same on a stack ---- */

const Argument list_element{Kind::other, false, -1};

void put_int(Scratch &s, int64_t number)
{
    s.key.put((uint64_t)'i' << 32);
    s.key.put(number);
}

void put(Scratch &s, const Op &op, const Argument &argument, const at::Tensor &tensor)
{
    put_tensor(s, op, argument, tensor);
}

void put(Scratch &s, const Op &op, const Argument &argument, const at::Scalar &number)
{
    put_number(s, op, argument, number);
}

void put(Scratch &s, const Op &, const Argument &, int64_t number)
{
    put_int(s, number);
}

void put(Scratch &s, const Op &op, const Argument &argument, double number)
{
    put_number(s, op, argument, c10::IValue(number));
}

void put(Scratch &s, const Op &, const Argument &, bool is_true)
{
    s.key.put((uint64_t)'b' << 32);
    s.key.put((int64_t)is_true);
}

void put(Scratch &s, const Op &, const Argument &, const c10::SymInt &number)
{
    put_int(s, number.guard_int(__FILE__, __LINE__));
}

void put(Scratch &s, const Op &, const Argument &, c10::ScalarType type)
{
    put_int(s, (int64_t)type);
}

void put(Scratch &s, const Op &, const Argument &, c10::MemoryFormat format)
{
    put_int(s, (int64_t)format);
}

void put(Scratch &s, const Op &, const Argument &, const at::Generator &generator)
{
    put_generator(s, generator);
}

void put(Scratch &s, const Op &, const Argument &, std::string_view text)
{
    s.key.put('s');
    s.key.put((uint32_t)text.size());
    s.key.put_bytes(text.data(), text.size());
}

void put_length(Scratch &s, size_t length)
{
    s.key.put('[');
    s.key.put((uint32_t)length);
}

void put(Scratch &s, const Op &, const Argument &, at::IntArrayRef list)
{
    put_length(s, list.size());
    for (int64_t number : list)
        put_int(s, number);
}

void put(Scratch &s, const Op &op, const Argument &argument, c10::SymIntArrayRef list)
{
    put(s, op, argument, C10_AS_INTARRAYREF_SLOW(list));
}

template <size_t N>
void put(Scratch &s, const Op &op, const Argument &, const std::array<bool, N> &list)
{
    put_length(s, N);
    for (bool is_true : list)
        put(s, op, list_element, is_true);
}

void put(Scratch &s, const Op &op, const Argument &, at::ArrayRef<at::Scalar> list)
{
    put_length(s, list.size());
    for (const at::Scalar &number : list)
        put_number(s, op, list_element, number);
}

void put(Scratch &s, const Op &op, const Argument &argument, at::TensorList list)
{
    put_length(s, list.size());
    for (const at::Tensor &tensor : list)
        put_tensor(s, op, argument, tensor);
}

void put(Scratch &s, const Op &op, const Argument &argument, const at::ITensorListRef &list)
{
    put_length(s, list.size());
    for (const at::Tensor &tensor : list)
        put_tensor(s, op, argument, tensor);
}

template <typename T>
void put(Scratch &s, const Op &op, const Argument &argument, const std::optional<T> &value)
{
    if (value)
        put(s, op, argument, *value);
    else
        s.key.put('n');
}

void put(Scratch &s, const Op &op, const Argument &argument, const at::OptionalIntArrayRef &value)
{
    if (value)
        put(s, op, argument, *value);
    else
        s.key.put('n');
}

void put(Scratch &s, const Op &op, const Argument &argument,
         const at::OptionalSymIntArrayRef &value)
{
    if (value)
        put(s, op, argument, *value);
    else
        s.key.put('n');
}

/* ---- results ---- */

/* Ids of what has no tensor yet; where they begin is taken out of the scratch under the lock. */
struct New {
    const Signature &signature;
    const Scratch &s;
    uint32_t output = 0, id = 0;

    at::Tensor next()
    {
        const Output &out = signature.outputs[output++];
        if (out.alias == DT_ALIAS_NONE)
            return at::Tensor();
        return make_tensor(out.geometry, s.where(), s.outputs[id++]);
    }
};

template <typename R> struct Give;

template <> struct Give<at::Tensor> {
    static at::Tensor from(New &made)
    {
        return made.next();
    }
    static at::Tensor from(Stack &stack)
    {
        return std::move(stack.back()).toTensor();
    }
};

template <typename... T> struct Give<std::tuple<T...>> {
    static std::tuple<T...> from(New &made)
    {
        return std::tuple<T...>{(static_cast<void>(sizeof(T)), made.next())...};
    }
    static std::tuple<T...> from(Stack &stack)
    {
        size_t at = stack.size() - sizeof...(T);
        auto take = [&] { return std::move(stack[at++]).toTensor(); };
        return std::tuple<T...>{(static_cast<void>(sizeof(T)), take())...};
    }
};

template <> struct Give<std::vector<at::Tensor>> {
    static std::vector<at::Tensor> from(New &made)
    {
        std::vector<at::Tensor> list(made.signature.outputs.size());
        for (at::Tensor &tensor : list)
            tensor = made.next();
        return list;
    }
    static std::vector<at::Tensor> from(Stack &stack)
    {
        return std::move(stack.back()).toTensorVector();
    }
};

/* ---- the kernel ---- */

void push(Stack &stack, const at::ITensorListRef &list)
{
    std::vector<at::Tensor> tensors;
    for (const at::Tensor &tensor : list)
        tensors.push_back(tensor);
    stack.emplace_back(std::move(tensors));
}

void push(Stack &stack, c10::SymIntArrayRef list)
{
    stack.emplace_back(C10_AS_INTARRAYREF_SLOW(list).vec());
}

void push(Stack &stack, const at::OptionalSymIntArrayRef &list)
{
    if (list)
        push(stack, *list);
    else
        stack.emplace_back();
}

void push(Stack &stack, const c10::SymInt &number)
{
    stack.emplace_back(number.guard_int(__FILE__, __LINE__));
}

void push(Stack &stack, const std::optional<c10::SymInt> &number)
{
    if (number)
        push(stack, *number);
    else
        stack.emplace_back();
}

template <typename T> void push(Stack &stack, const T &value)
{
    if constexpr (std::is_same_v<T, at::OptionalIntArrayRef>) {
        if (value)
            stack.emplace_back(value->vec());
        else
            stack.emplace_back();
    } else {
        stack.emplace_back(c10::IValue(value));
    }
}

bool is_plain(const Signature *signature)
{
    return signature && !signature->depends;
}

/* Put together and sent, if its signature is known. Recorder held. */
template <typename... Args> const Signature *send(Scratch &s, Op &op, const Args &...args)
{
    size_t i = 0;
    if (C10_UNLIKELY(is_default_type_odd()))
        return nullptr;
    s.begin(op, false);
    (put(s, op, op.arguments[i++], args), ...);
    s.end();
    const Signature *signature = find_signature(s.key);
    if (C10_UNLIKELY(!is_plain(signature)))
        return nullptr;
    counters().count_operator();
    counters().count_hit();
    submit(s, *signature);
    if (C10_UNLIKELY(op.draws))
        note_draw(s, op);
    return signature;
}

template <typename... Args> Stack slowly(Op &op, const Args &...args)
{
    Stack stack;
    stack.reserve(sizeof...(Args));
    (push(stack, args), ...);
    record(op, &stack);
    return stack;
}

template <typename Name, typename Schema> struct Typed;

template <typename Name, typename R, typename... Args> struct Typed<Name, R(Args...)> {
    static inline Op *op = nullptr;
    static R call(Args... args)
    {
        (void)session();
        note_place();
        if (!any_mesh()) {
            Lock lock(recorder());
            Scratch &s = scratch();
            if (const Signature *signature = send(s, *op, args...)) {
                New made{*signature, s};
                return Give<R>::from(made);
            }
        }
        Stack stack = slowly(*op, args...);
        return Give<R>::from(stack);
    }
};

/* Written in place: the first argument is the result. */
template <typename Name, typename... Args> struct Typed<Name, at::Tensor &(at::Tensor &, Args...)> {
    static inline Op *op = nullptr;
    static at::Tensor &call(at::Tensor &self, Args... args)
    {
        (void)session();
        note_place();
        if (!any_mesh()) {
            Lock lock(recorder());
            if (send(scratch(), *op, self, args...))
                return self;
        }
        (void)slowly(*op, self, args...);
        return self;
    }
};

void bump_all(const at::TensorList &list)
{
    for (const at::Tensor &tensor : list)
        bump(tensor);
}

/* Lists that are written: the first argument. */
template <typename Name, typename... Args> struct Typed<Name, void(at::TensorList, Args...)> {
    static inline Op *op = nullptr;
    static void call(at::TensorList self, Args... args)
    {
        (void)session();
        note_place();
        if (!any_mesh()) {
            Lock lock(recorder());
            if (send(scratch(), *op, self, args...)) {
                bump_all(self);
                return;
            }
        }
        (void)slowly(*op, self, args...);
    }
};

template <typename R> R views(const at::Tensor &viewed, const Geometries &geometries)
{
    if constexpr (std::is_same_v<R, at::Tensor>) {
        return view_of(viewed, geometries[0]);
    } else {
        R list;
        list.reserve(geometries.size());
        for (const Geometry *geometry : geometries)
            list.push_back(view_of(viewed, geometry));
        return list;
    }
}

template <typename Name, typename Schema> struct TypedView;

template <typename Name, typename R, typename... Args>
struct TypedView<Name, R(const at::Tensor &, Args...)> {
    static inline Op *op = nullptr;
    static R call(const at::Tensor &self, Args... args)
    {
        if (!is_within_view()) {
            Lock lock(recorder());
            Scratch &s = scratch();
            size_t i = 1;
            begin_view(s, *op, self);
            (put(s, *op, op->arguments[i++], args), ...);
            if (const Geometries *known = find_view(s.key))
                return views<R>(self, *known);
        }
        Stack stack;
        push(stack, self);
        (push(stack, args), ...);
        record_view(*op, &stack);
        return Give<R>::from(stack);
    }
};

template <typename Name> void add_view(torch::Library &lib, std::set<std::string> &done)
{
    using Kernel = TypedView<Name, typename Name::schema>;
    Kernel::op = find_op(Name::name, Name::overload_name);
    Kernel::op->view = Kernel::op->handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU);
    lib.impl(Kernel::op->name.c_str() + sizeof "aten::" - 1,
             torch::CppFunction::makeFromUnboxedFunction(&Kernel::call));
    done.insert(Kernel::op->name);
}

template <typename Name> void add(torch::Library &lib, std::set<std::string> &done)
{
    using Kernel = Typed<Name, typename Name::schema>;
    Kernel::op = find_op(Name::name, Name::overload_name);
    Kernel::op->find_one_by_one();
    lib.impl(Kernel::op->name.c_str() + sizeof "aten::" - 1,
             torch::CppFunction::makeFromUnboxedFunction(&Kernel::call));
    done.insert(Kernel::op->name);
}

} // namespace

void register_typed(torch::Library &lib, std::set<std::string> &done)
{
#define X(name) add<at::_ops::name>(lib, done);
    DT_TYPED_OPERATORS(X)
#undef X
#define X(name) add_view<at::_ops::name>(lib, done);
    DT_TYPED_VIEWS(X)
#undef X
}

} // namespace dt_pu
