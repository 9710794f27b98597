// Arguments in and results out: dt_value_t to the dispatcher's stack by schema kind, and back.
#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

[[noreturn]] void mismatch(const Argument &argument, const char *what)
{
    throw ValueMismatch("argument '" + argument.name + "': " + what);
}

bool is_int_like(const dt_value_t &v)
{
    return v.tag == DT_VALUE_INT || v.tag == DT_VALUE_TRUE || v.tag == DT_VALUE_FALSE ||
           v.tag == DT_VALUE_DTYPE || v.tag == DT_VALUE_LAYOUT || v.tag == DT_VALUE_MEMORY_FORMAT;
}

int64_t as_int(const Argument &argument, const dt_value_t &v)
{
    if (!is_int_like(v))
        mismatch(argument, "expected an int");
    return v.tag == DT_VALUE_TRUE ? 1 : v.tag == DT_VALUE_FALSE ? 0 : v.number;
}

} // namespace

at::Scalar as_scalar(const Argument &argument, const dt_value_t &v)
{
    switch (v.tag) {
    case DT_VALUE_INT:
        return at::Scalar(v.number);
    case DT_VALUE_DOUBLE:
        return at::Scalar(v.real);
    case DT_VALUE_FALSE:
        return at::Scalar(false);
    case DT_VALUE_TRUE:
        return at::Scalar(true);
    case DT_VALUE_COMPLEX:
        return at::Scalar(c10::complex<double>(v.doubles[0], v.doubles[1]));
    default:
        mismatch(argument, "expected a number");
    }
}

namespace
{

at::Tensor tensor_at(void *handle, Call &call)
{
    if (!call.inputs)
        return borrow(handle);
    return call.inputs->at(call.next_input++);
}

void push_tensor(const Argument &argument, const dt_value_t &v, Call &call,
                 std::vector<c10::IValue> &stack)
{
    if (v.tag == DT_VALUE_TENSOR) {
        stack.emplace_back(tensor_at(v.handle, call));
        return;
    }
    at::Tensor number = c10::scalar_to_tensor(as_scalar(argument, v));
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    stack.emplace_back(std::move(number));
}

/* At a backend TENSORS holds handles; for infer it holds ids, 0 for None. Both are pointer-sized
 * zeros. */
bool is_none(const dt_value_t &v, uint32_t i, const Call &call)
{
    return call.inputs ? v.ids[i] == 0 : v.handles[i] == nullptr;
}

void push_tensors(const Argument &argument, const dt_value_t &v, Call &call,
                  std::vector<c10::IValue> &stack)
{
    if (v.tag != DT_VALUE_TENSORS)
        mismatch(argument, "expected a list of tensors");
    if (argument.kind == Kind::tensors) {
        std::vector<at::Tensor> list;
        list.reserve(v.count);
        for (uint32_t i = 0; i < v.count; i++)
            list.push_back(is_none(v, i, call)
                               ? at::Tensor()
                               : tensor_at(call.inputs ? nullptr : v.handles[i], call));
        stack.emplace_back(std::move(list));
        return;
    }
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(v.count);
    for (uint32_t i = 0; i < v.count; i++)
        list.push_back(is_none(v, i, call) ? std::nullopt
                                           : std::optional<at::Tensor>(tensor_at(
                                                 call.inputs ? nullptr : v.handles[i], call)));
    stack.emplace_back(std::move(list));
}

void push_integers(const Argument &argument, const dt_value_t &v, std::vector<c10::IValue> &stack)
{
    /* int[2] given as 3 or as [3] means [3, 3], as in Python */
    bool is_single = v.tag != DT_VALUE_INTS || (argument.fixed > 1 && v.count == 1);
    if (!is_single) {
        stack.emplace_back(at::IntArrayRef(v.ints, v.count));
        return;
    }
    int64_t number = v.tag == DT_VALUE_INTS ? v.ints[0] : as_int(argument, v);
    stack.emplace_back(
        std::vector<int64_t>(argument.fixed > 0 ? (size_t)argument.fixed : 1, number));
}

void push_reals(const Argument &argument, const dt_value_t &v, std::vector<c10::IValue> &stack)
{
    if (v.tag == DT_VALUE_DOUBLES)
        stack.emplace_back(at::ArrayRef<double>(v.doubles, v.count));
    else if (v.tag == DT_VALUE_INTS)
        stack.emplace_back(std::vector<double>(v.ints, v.ints + v.count));
    else if (v.tag == DT_VALUE_DOUBLE)
        stack.emplace_back(
            std::vector<double>(argument.fixed > 0 ? (size_t)argument.fixed : 1, v.real));
    else
        mismatch(argument, "expected a list of floats");
}

void push_booleans(const Argument &argument, const dt_value_t &v, std::vector<c10::IValue> &stack)
{
    c10::List<bool> list;
    if (v.tag != DT_VALUE_BOOLS)
        mismatch(argument, "expected a list of bools");
    list.reserve(v.count);
    for (uint32_t i = 0; i < v.count; i++)
        list.push_back(v.bools[i] != 0);
    stack.emplace_back(std::move(list));
}

void push_scalars(const Argument &argument, const dt_value_t &v, std::vector<c10::IValue> &stack)
{
    c10::impl::GenericList list(c10::NumberType::get());
    if (v.tag != DT_VALUE_VALUES && v.tag != DT_VALUE_DOUBLES && v.tag != DT_VALUE_INTS)
        mismatch(argument, "expected a list of numbers");
    for (uint32_t i = 0; i < v.count; i++) {
        if (v.tag == DT_VALUE_VALUES)
            list.push_back(c10::IValue(as_scalar(argument, v.values[i])));
        else if (v.tag == DT_VALUE_DOUBLES)
            list.push_back(c10::IValue(v.doubles[i]));
        else
            list.push_back(c10::IValue(v.ints[i]));
    }
    stack.emplace_back(std::move(list));
}

void push_strings(const Argument &argument, const dt_value_t &v, std::vector<c10::IValue> &stack)
{
    c10::List<std::string> list;
    if (v.tag != DT_VALUE_STRS)
        mismatch(argument, "expected a list of strings");
    for (uint32_t i = 0; i < v.count; i++)
        list.push_back(std::string(v.values[i].text, v.values[i].count));
    stack.emplace_back(std::move(list));
}

void push_default(const Op &op, const Argument &argument, const Call &call,
                  std::vector<c10::IValue> &stack)
{
    if (argument.kind == Kind::device && op.is_factory)
        stack.emplace_back(call.where);
    else if (argument.has_default)
        stack.emplace_back(argument.fallback);
    else
        mismatch(argument, "is missing and has no default");
}

void push_none(const Op &op, const Argument &argument, const Call &call,
               std::vector<c10::IValue> &stack)
{
    if (argument.kind == Kind::device && op.is_factory)
        stack.emplace_back(call.where);
    else if (argument.is_optional)
        stack.emplace_back();
    else if (argument.kind == Kind::tensor)
        stack.emplace_back(at::Tensor());
    else
        mismatch(argument, "must not be None");
}

void push_device(const Argument &argument, const dt_value_t &v, const Call &call,
                 std::vector<c10::IValue> &stack)
{
    if (v.tag != DT_VALUE_DEVICE)
        mismatch(argument, "expected a device");
    bool is_meta = (c10::DeviceType)v.number == c10::DeviceType::Meta;
    stack.emplace_back(is_meta ? c10::Device(c10::DeviceType::Meta) : call.where);
}

/* A question may not touch the streams, which are the executor's; nothing draws then. */
void push_generator(const Argument &argument, const dt_value_t &v, Call &call,
                    std::vector<c10::IValue> &stack)
{
    if (v.tag != DT_VALUE_GENERATOR)
        mismatch(argument, "expected a random stream");
    if (call.inputs && argument.is_optional)
        stack.emplace_back();
    else if (call.inputs)
        throw NotKnown("a random stream");
    else
        stack.emplace_back(stream_of(call.device, (uint32_t)v.number));
}

/* A number that each operator record brings anew: metadata does not depend on it where it may be a
 * float, but for factories. */
dt_value_t stand_in(const Op &op, const Argument &argument)
{
    dt_value_t value{};
    bool is_number = argument.kind == Kind::real || argument.kind == Kind::scalar ||
                     argument.kind == Kind::tensor;
    if (!is_number || op.is_factory)
        throw NotKnown("argument '" + argument.name + "' is not known yet");
    value.tag = DT_VALUE_DOUBLE;
    value.real = 1.0;
    return value;
}

void push_value(const Op &op, const Argument &argument, const dt_value_t &v, Call &call,
                std::vector<c10::IValue> &stack)
{
    if (v.tag == DT_VALUE_DEFAULT)
        return push_default(op, argument, call, stack);
    if (v.tag == DT_VALUE_NONE)
        return push_none(op, argument, call, stack);
    if (v.tag == DT_VALUE_DYNAMIC && call.inputs)
        return push_value(op, argument, stand_in(op, argument), call, stack);
    switch (argument.kind) {
    case Kind::tensor:
        return push_tensor(argument, v, call, stack);
    case Kind::tensors:
    case Kind::optional_tensors:
        return push_tensors(argument, v, call, stack);
    case Kind::integer:
        stack.emplace_back(as_int(argument, v));
        return;
    case Kind::integers:
        return push_integers(argument, v, stack);
    case Kind::real:
        stack.emplace_back(v.tag == DT_VALUE_DOUBLE ? v.real : (double)as_int(argument, v));
        return;
    case Kind::reals:
        return push_reals(argument, v, stack);
    case Kind::boolean:
        stack.emplace_back(as_int(argument, v) != 0);
        return;
    case Kind::booleans:
        return push_booleans(argument, v, stack);
    case Kind::scalar:
        stack.emplace_back(as_scalar(argument, v)); /* boxed as the plain number */
        return;
    case Kind::scalars:
        return push_scalars(argument, v, stack);
    case Kind::complex:
        stack.emplace_back(as_scalar(argument, v).toComplexDouble());
        return;
    case Kind::string:
        if (v.tag != DT_VALUE_STR)
            mismatch(argument, "expected a string");
        stack.emplace_back(std::string(v.text, v.count));
        return;
    case Kind::strings:
        return push_strings(argument, v, stack);
    case Kind::device:
        return push_device(argument, v, call, stack);
    case Kind::generator:
        return push_generator(argument, v, call, stack);
    case Kind::storage:
        if (v.tag != DT_VALUE_STORAGE)
            mismatch(argument, "expected a storage");
        stack.emplace_back(tensor_at(v.handle, call).storage());
        return;
    case Kind::unsupported:
        break;
    }
    mismatch(argument, "has an unsupported type");
}

} // namespace

void push_arguments(const Op &op, const dt_value_t *args, uint32_t count, Call &call,
                    std::vector<c10::IValue> &stack)
{
    if (count > op.arguments.size())
        throw ValueMismatch(op.name + " takes " + std::to_string(op.arguments.size()) +
                            " arguments, " + std::to_string(count) + " were given");
    for (uint32_t i = 0; i < count; i++)
        push_value(op, op.arguments[i], args[i], call, stack);
    for (size_t i = count; i < op.arguments.size(); i++)
        push_default(op, op.arguments[i], call, stack);
}

void pop_results(std::vector<c10::IValue> &stack, std::vector<at::Tensor> &results)
{
    for (auto &value : stack) {
        if (value.isTensor())
            results.push_back(std::move(value).toTensor());
        else if (value.isTensorList())
            for (at::Tensor tensor : value.toTensorList())
                results.push_back(std::move(tensor));
        else if (value.isOptionalTensorList())
            for (std::optional<at::Tensor> tensor : value.toOptionalTensorList())
                results.push_back(tensor ? *tensor : at::Tensor());
        else if (value.isScalar())
            results.push_back(c10::scalar_to_tensor(value.toScalar()));
        else if (value.isIntList())
            for (int64_t number : value.toIntList())
                results.push_back(c10::scalar_to_tensor(at::Scalar(number)));
        else if (value.isNone())
            results.push_back(at::Tensor());
        else
            throw ValueMismatch("a result of type " + value.tagKind() + " is not supported");
    }
}

} // namespace dt_torch
