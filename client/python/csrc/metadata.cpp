// What comes out of a call: C++ Meta kernels of this process, else a rule (rules.cpp), else the
// cluster's answer.
//
// PyTorch's Python registers Meta functions of its own over the C++ kernels; those are slow, want
// the interpreter, and some are wrong. take_meta_kernels() keeps the kernels below them: those of
// C++, registered for Meta itself, which dispatch to nothing that Python owns.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "internal.h"

namespace dt_pu
{

/* ---- numbers ---- */

c10::IValue number_in(const at::Tensor &wrapped)
{
    switch (wrapped.scalar_type()) {
    case c10::kBool:
        return *static_cast<const bool *>(wrapped.const_data_ptr());
    case c10::kLong:
        return *static_cast<const int64_t *>(wrapped.const_data_ptr());
    case c10::kDouble:
        return *static_cast<const double *>(wrapped.const_data_ptr());
    default: {
        at::Scalar number = wrapped.item();
        if (number.isComplex())
            return number.toComplexDouble();
        return number.isFloatingPoint() ? c10::IValue(number.toDouble())
                                        : c10::IValue(number.toLong());
    }
    }
}

dt_value_t value_of_number(const c10::IValue &number, ValueMemory *memory)
{
    if (number.isBool())
        return dt_arg_bool(number.toBool());
    if (number.isInt())
        return dt_arg_int(number.toInt());
    if (number.isDouble())
        return dt_arg_double(number.toDouble());
    auto complex = number.toComplexDouble();
    memory->reals.push_back({complex.real(), complex.imag()});
    dt_value_t value = dt_arg_tag(DT_VALUE_COMPLEX);
    value.doubles = memory->reals.back().data();
    return value;
}

/* Of an operator that draws: how much is dropped. Where that is nothing it draws nothing, and runs
 * on shards like any other: so it is part of the signature. */
static bool is_dropped_share(const Op &op, const Argument &argument)
{
    auto at = (size_t)(&argument - op.arguments.data());
    return op.draws && argument.kind == Kind::real &&
           op.handle.schema().arguments()[at].name() == "dropout_p";
}

static bool draws_now(const Call &call)
{
    const Op &op = *call.op;
    const size_t begin = call.stack->size() - op.arguments.size();
    for (size_t i = 0; op.draws && i < op.arguments.size(); i++) {
        const c10::IValue &value = (*call.stack)[begin + i];
        if (is_dropped_share(op, op.arguments[i]) && value.isDouble() && value.toDouble() == 0)
            return false;
    }
    return op.draws;
}

/* A float never shapes a result, but for arange and its like; an integer does not where it is a
 * value, as in the pointwise operators. */
bool is_dynamic_number(const Op &op, const Argument &argument, const c10::IValue &number)
{
    if (op.shapes_by_value || is_dropped_share(op, argument))
        return false;
    if (argument.kind == Kind::real)
        return number.isDouble();
    if (argument.kind != Kind::scalar && argument.kind != Kind::tensor)
        return false;
    return number.isDouble() || (number.isInt() && op.is_pointwise);
}

/* ---- values for libdtorch ---- */

namespace
{

/* An integer gives results of another type than a float does. */
dt_value_t dynamic_like(const c10::IValue &number)
{
    dt_value_t value = dt_arg_tag(DT_VALUE_DYNAMIC);
    value.number = number.isInt();
    return value;
}

/* Only its being there counts: inputs are named apart. */
void *const some_handle = reinterpret_cast<void *>(1);

dt_value_t value_of_tensor(const at::Tensor &tensor, const Op &op, const Argument &argument,
                           bool with_dynamic, ValueMemory &memory)
{
    if (!tensor.defined())
        return dt_arg_none();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.device().is_cpu()) {
        c10::IValue number = number_in(tensor);
        if (with_dynamic && is_dynamic_number(op, argument, number))
            return dynamic_like(number);
        return value_of_number(number, &memory);
    }
    dt_value_t value = dt_arg_tag(DT_VALUE_TENSOR);
    value.handle = some_handle;
    return value;
}

dt_value_t value_of_text(const std::string &text, ValueMemory &memory)
{
    memory.texts.push_back(text);
    return dt_arg_str(memory.texts.back().data(), (uint32_t)text.size());
}

dt_value_t value_of_tensors(at::ArrayRef<c10::IValue> list, ValueMemory &memory)
{
    auto &handles = memory.handles.emplace_back();
    for (const c10::IValue &item : list)
        handles.push_back(item.isTensor() && item.toTensor().defined() ? some_handle : nullptr);
    dt_value_t value = dt_arg_tag(DT_VALUE_TENSORS);
    value.count = (uint32_t)handles.size();
    value.handles = handles.data();
    return value;
}

bool all_are(at::ArrayRef<c10::IValue> list, bool (c10::IValue::*is)() const)
{
    for (const c10::IValue &item : list)
        if (!(item.*is)())
            return false;
    return true;
}

dt_value_t value_of_numbers(at::ArrayRef<c10::IValue> list, ValueMemory &memory)
{
    if (all_are(list, &c10::IValue::isInt)) {
        auto &ints = memory.ints.emplace_back();
        for (const c10::IValue &item : list)
            ints.push_back(item.toInt());
        return dt_arg_ints(ints.data(), (uint32_t)ints.size());
    }
    if (all_are(list, &c10::IValue::isDouble)) {
        auto &reals = memory.reals.emplace_back();
        for (const c10::IValue &item : list)
            reals.push_back(item.toDouble());
        return dt_arg_doubles(reals.data(), (uint32_t)reals.size());
    }
    auto &values = memory.values.emplace_back();
    for (const c10::IValue &item : list)
        values.push_back(item.isString() ? value_of_text(item.toStringRef(), memory)
                                         : value_of_number(item, &memory));
    dt_value_t value =
        dt_arg_tag(all_are(list, &c10::IValue::isString) ? DT_VALUE_STRS : DT_VALUE_VALUES);
    value.count = (uint32_t)values.size();
    value.values = values.data();
    return value;
}

dt_value_t value_of_list(const c10::IValue &v, const Argument &argument, ValueMemory &memory)
{
    auto list = v.toListRef();
    if (argument.kind == Kind::tensors)
        return value_of_tensors(list, memory);
    if (v.isBoolList()) {
        auto &bools = memory.bools.emplace_back();
        for (const c10::IValue &item : list)
            bools.push_back(item.toBool());
        return dt_arg_bools(bools.data(), (uint32_t)bools.size());
    }
    return value_of_numbers(list, memory);
}

dt_value_t value_of_int(const Argument &argument, const c10::IValue &v, ValueMemory &memory)
{
    if (v.isInt() && argument.kind == Kind::dtype)
        return dt_arg_number(DT_VALUE_DTYPE, v.toInt());
    if (v.isInt() && argument.kind == Kind::layout)
        return dt_arg_number(DT_VALUE_LAYOUT, v.toInt());
    if (v.isInt() && argument.kind == Kind::memory_format)
        return dt_arg_number(DT_VALUE_MEMORY_FORMAT, v.toInt());
    return value_of_number(v, &memory);
}

dt_value_t value_of(const Op &op, const Argument &argument, const c10::IValue &v, bool with_dynamic,
                    ValueMemory &memory)
{
    if (v.isTensor())
        return value_of_tensor(v.toTensor(), op, argument, with_dynamic, memory);
    if (v.isNone())
        return dt_arg_none();
    if (v.isList())
        return value_of_list(v, argument, memory);
    if (v.isString())
        return value_of_text(v.toStringRef(), memory);
    if (v.isGenerator())
        return dt_arg_generator(stream_of(v.toGenerator()));
    if (v.isDevice()) {
        dt_value_t value = dt_arg_number(DT_VALUE_DEVICE, 0);
        value.index = -1;
        return value;
    }
    if (with_dynamic && is_dynamic_number(op, argument, v))
        return dynamic_like(v);
    return value_of_int(argument, v, memory);
}

/* ---- Meta kernels ---- */

struct MetaInputs {
    const Call &call;
    std::vector<std::pair<const c10::TensorImpl *, at::Tensor>> made;

    at::Tensor of(const at::Tensor &tensor)
    {
        if (!tensor.defined() || (tensor.device().is_cpu() && tensor.dim() == 0))
            return tensor;
        for (auto &[from, to] : made)
            if (from == tensor.unsafeGetTensorImpl())
                return to;
        at::Tensor meta =
            at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
        if (tensor.is_conj())
            meta._set_conj(true);
        if (tensor.is_neg())
            meta._set_neg(true);
        made.emplace_back(tensor.unsafeGetTensorImpl(), meta);
        return meta;
    }

    c10::IValue of(const Argument &argument, const c10::IValue &v)
    {
        if (v.isTensor())
            return of(v.toTensor());
        if (v.isDevice())
            return c10::Device(c10::DeviceType::Meta);
        if (v.isGenerator())
            return c10::IValue();
        if (v.isTensorList()) {
            std::vector<at::Tensor> list;
            for (const at::Tensor &tensor : v.toTensorVector())
                list.push_back(of(tensor));
            return list;
        }
        if (argument.kind == Kind::tensors) {
            c10::List<std::optional<at::Tensor>> list;
            for (const c10::IValue &item : v.toListRef())
                list.push_back(item.isNone() ? std::optional<at::Tensor>()
                                             : std::optional<at::Tensor>(of(item.toTensor())));
            return list;
        }
        return v;
    }
};

Output output_of(const at::Tensor &tensor)
{
    if (!tensor.defined())
        return {DT_ALIAS_NONE, 0, nullptr};
    return {DT_ALIAS_FRESH, 0, geometry_of(tensor)->plain};
}

/* Which operand an argument is: tensors are counted in the order of the schema. */
uint32_t operand_of(const Call &call, size_t argument)
{
    const size_t begin = call.stack->size() - call.op->arguments.size();
    auto is_operand = [](const c10::IValue &v) {
        return v.isTensor() && v.toTensor().defined() &&
               !(v.toTensor().unsafeGetTensorImpl()->is_wrapped_number() &&
                 v.toTensor().device().is_cpu());
    };
    uint32_t operand = 0;
    for (size_t i = 0; i < argument; i++) {
        const c10::IValue &v = (*call.stack)[begin + i];
        if (v.isList() && call.op->arguments[i].kind == Kind::tensors) {
            for (const c10::IValue &item : v.toListRef())
                operand += is_operand(item);
        } else {
            operand += is_operand(v);
        }
    }
    return operand;
}

/* Results as they stand on a stack. False: a shape that we cannot give. */
bool read_results(const Call &call, Stack &results, Signature &signature)
{
    const Op &op = *call.op;
    for (size_t i = 0; i < results.size(); i++) {
        signature.lists.push_back(UINT32_MAX);
        if (op.aliases[i] >= 0) {
            uint32_t operand = operand_of(call, (size_t)op.aliases[i]);
            if (!results[i].isTensor())
                return false;
            Output out = output_of(results[i].toTensor());
            signature.outputs.push_back({DT_ALIAS_IN_PLACE, operand, out.geometry});
        } else if (results[i].isTensorList()) {
            auto list = results[i].toTensorVector();
            signature.lists.back() = (uint32_t)list.size();
            for (const at::Tensor &tensor : list)
                signature.outputs.push_back(output_of(tensor));
        } else if (results[i].isTensor() || results[i].isNone()) {
            signature.outputs.push_back(
                output_of(results[i].isTensor() ? results[i].toTensor() : at::Tensor()));
        } else {
            return false;
        }
    }
    return true;
}

/* The operator may compute in another type than that of an input. */
bool may_convert(const Call &call, const Geometry *input, const Signature &signature)
{
    for (const Geometry *other : *call.operands)
        if (other->meta.dtype != input->meta.dtype)
            return true;
    for (const Output &out : signature.outputs)
        if (out.alias == DT_ALIAS_FRESH && (out.geometry->meta.dtype != input->meta.dtype ||
                                            out.geometry->meta.dtype == DT_DTYPE_BOOL))
            return true;
    return false;
}

/* On the CPU a tensor of another type than the operator computes in is copied first, which makes a
 * view with gaps dense; Meta leaves it out, and the order of the results' strides comes from it. */
bool may_stride_otherwise(const Call &call, const Signature &signature)
{
    for (const Geometry *input : *call.operands) {
        size_t base = (size_t)input->offset * dt_element_bytes((dt_dtype_t)input->meta.dtype);
        bool has_gaps =
            input->span_bytes && input->span_bytes - base != dt_dense_bytes(&input->meta);
        if (has_gaps && may_convert(call, input, signature))
            return true;
    }
    return false;
}

/* False: there is no kernel that answers. Throws what the operator itself would raise. */
bool ask_meta(const Call &call, Signature &signature)
{
    Op &op = *call.op;
    if (!op.meta || op.is_meta_refused)
        return false;
    MetaInputs inputs{call, {}};
    Stack stack;
    const size_t begin = call.stack->size() - op.arguments.size();
    for (size_t i = 0; i < op.arguments.size(); i++)
        stack.push_back(inputs.of(op.arguments[i], (*call.stack)[begin + i]));
    try {
        at::AutoDispatchBelowADInplaceOrView guard;
        op.meta->callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    } catch (const c10::NotImplementedError &) {
        op.is_meta_refused = true;
        return false;
    } catch (const c10::Error &error) {
        std::string text = error.what_without_backtrace();
        if (text.find("meta tensor") == std::string::npos && text.find("Meta") == std::string::npos)
            throw;
        op.is_meta_refused = true;
        return false;
    }
    if (!read_results(call, stack, signature) || may_stride_otherwise(call, signature))
        return false;
    counters().metas++;
    return true;
}

/* Integers that are no values to compute with. */
bool is_condition(const Op &op, size_t argument)
{
    const std::string &name = op.handle.schema().arguments()[argument].name();
    return name == "condition" || name == "mask";
}

/* Whether there are integers for values, no other tensors, and nothing says a type. What is written
 * does not count. */
bool computes_on_integers(const Op &op, const Stack &call)
{
    const size_t begin = call.size() - op.arguments.size();
    bool is_any = false;
    for (size_t i = 0; i < op.arguments.size(); i++) {
        const c10::IValue &v = call[begin + i];
        if (op.arguments[i].kind == Kind::dtype && !v.isNone())
            return false;
        if (!v.isTensor() || !v.toTensor().defined() || op.arguments[i].written >= 0 ||
            v.toTensor().unsafeGetTensorImpl()->is_wrapped_number())
            continue;
        if (!c10::isIntegralType(v.toTensor().scalar_type(), true))
            return false;
        is_any |= !is_condition(op, i);
    }
    return is_any;
}

/* Whether results are of PyTorch's default type. */
bool gives_default(Op &op, const Stack &call)
{
    std::vector<const Geometry *> none;
    MetaInputs inputs{{&op, &call, &none, 0, false}, {}};
    Stack stack;
    const size_t begin = call.size() - op.arguments.size();
    if (!op.meta) /* those that have none for Meta in C++ */
        return op.name == "aten::angle" || op.name == "aten::logit" ||
               op.name == "aten::logsumexp" || op.name == "aten::native_dropout_backward";
    for (size_t i = 0; i < op.arguments.size(); i++)
        stack.push_back(inputs.of(op.arguments[i], call[begin + i]));
    try {
        at::AutoDispatchBelowADInplaceOrView guard;
        op.meta->callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
    } catch (const c10::Error &) {
        return false; /* it is told when the operator itself is asked for */
    }
    if (!stack[0].isTensor() || !stack[0].toTensor().defined())
        return false;
    const c10::ScalarType type = c10::get_default_dtype_as_scalartype();
    return stack[0].toTensor().scalar_type() == type ||
           stack[0].toTensor().scalar_type() == c10::toComplexType(type);
}

/* The operator with the same arguments but those that are written: what `out` is of says nothing of
 * what is computed. NULL: it goes by another name. */
Op *without_out(const Op &op)
{
    const c10::OperatorName &name = op.handle.operator_name();
    const std::string &from = name.overload_name;
    std::vector<std::string> overloads{"", "Tensor"};
    if (from.rfind("out_", 0) == 0)
        overloads = {"Tensor" + from.substr(3)};
    else if (from.rfind("Out", 0) == 0)
        overloads = {from.substr(3)};
    else if (from.size() > 4 && from.compare(from.size() - 4, 4, "_out") == 0)
        overloads = {from.substr(0, from.size() - 4)};
    for (const std::string &overload : overloads) {
        auto handle = c10::Dispatcher::singleton().findSchema({name.name, overload});
        if (handle && handle->schema().arguments().size() < op.arguments.size())
            return make_op(*handle);
    }
    return nullptr;
}

/* ---- the other answers ---- */

/* Written in place, as it was. */
void take_aliases(const Call &call, Signature &signature)
{
    const size_t begin = call.stack->size() - call.op->arguments.size();
    for (int32_t argument : call.op->aliases) {
        uint32_t operand = operand_of(call, (size_t)argument);
        const c10::IValue &v = (*call.stack)[begin + (size_t)argument];
        size_t count = v.isList() ? v.toListRef().size() : 1;
        signature.lists.push_back(UINT32_MAX);
        for (size_t i = 0; i < count; i++, operand++)
            signature.outputs.push_back({DT_ALIAS_IN_PLACE, operand, (*call.operands)[operand]});
    }
}

struct Definition {
    std::vector<dt_value_t> args;
    ValueMemory memory;
    std::vector<dt_operand_t> operands;
    dt_operation_t operation;
};

std::unique_ptr<Definition> describe(const Call &call, bool with_dynamic)
{
    auto made = std::make_unique<Definition>();
    made->args = values_of(call, with_dynamic, made->memory);
    for (const Geometry *geometry : *call.operands)
        made->operands.push_back({geometry->meta, call.vdev});
    made->operation = {call.op->name.c_str(), made->args.data(), (uint32_t)made->args.size(),
                       (uint32_t)made->operands.size(), made->operands.data()};
    return made;
}

/* Results depend on values: as many as the schema says. */
void take_unknown(const Call &call, Signature &signature)
{
    TORCH_CHECK_NOT_IMPLEMENTED(!call.op->has_list, call.op->name,
                                ": how many results there are depends on values");
    signature.depends = true;
    for (int32_t argument : call.op->aliases) {
        signature.lists.push_back(UINT32_MAX);
        if (argument >= 0) {
            uint32_t operand = operand_of(call, (size_t)argument);
            signature.outputs.push_back({DT_ALIAS_IN_PLACE, operand,
                                         call.op->is_out ? nullptr : (*call.operands)[operand]});
        } else {
            signature.outputs.push_back({DT_ALIAS_FRESH, 0, nullptr});
        }
    }
}

/* The cluster's outputs are flat: lists take what is left over. */
void take_flat(const Call &call, const dt_output_t *outputs, uint32_t count, Signature &signature)
{
    uint32_t singles = 0;
    for (const c10::Argument &result : call.op->handle.schema().returns())
        singles += result.type()->kind() != c10::TypeKind::ListType;
    for (const c10::Argument &result : call.op->handle.schema().returns())
        signature.lists.push_back(result.type()->kind() == c10::TypeKind::ListType ? count - singles
                                                                                   : UINT32_MAX);
    for (uint32_t i = 0; i < count; i++) {
        bool has_meta = outputs[i].alias != DT_ALIAS_NONE;
        signature.outputs.push_back({(dt_alias_t)outputs[i].alias, outputs[i].input,
                                     has_meta ? geometry_of(outputs[i].meta, 0) : nullptr});
    }
}

/* Recorder held, and released while waiting. */
void ask_cluster(const Call &call, Signature &signature)
{
    auto definition = describe(call, false);
    auto failure = std::make_unique<dt_failure_t>();
    const dt_output_t *outputs;
    uint32_t number, count, flags;
    uint32_t max = call.op->has_list ? 4096 : (uint32_t)call.op->aliases.size();
    dt_session_t *now = session();
    counters().asked++;
    calls().asking++;
    recorder().unlock();
    dt_status_t status =
        dt_signature_infer(now, &definition->operation, max, &number, failure.get());
    recorder().lock();
    calls().asking--;
    if (status != DT_OK)
        raise(*failure);
    if (dt_signature_outputs(now, number, &outputs, &count, &flags) != DT_OK)
        TORCH_CHECK(false, "signature ", number, " is not known");
    if (flags & DT_SIGNATURE_DEPENDS) {
        /* What was written down for it says less than we know of aliases. */
        dt_error_t err;
        must(dt_signature_drop(now, &number, 1, &err), err);
        take_unknown(call, signature);
    } else {
        take_flat(call, outputs, count, signature);
    }
}

bool follow_rule(const Call &call, Signature &signature)
{
    auto definition = describe(call, false);
    std::vector<dt_output_t> outputs;
    if (!answer_by_rule(definition->operation, outputs))
        return false;
    take_flat(call, outputs.data(), (uint32_t)outputs.size(), signature);
    counters().rules++;
    return true;
}

bool has_many(const Call &call)
{
    return call.operands->size() > 16;
}

void answer(const Call &call, Signature &signature)
{
    const Op &op = *call.op;
    if (op.is_dynamic && (!op.is_index || call.has_mask)) {
        take_unknown(call, signature);
        return;
    }
    if (op.is_all_alias && !op.is_out) {
        Signature ignored{};
        if (!has_many(call))
            (void)ask_meta(call, ignored); /* for its errors */
        take_aliases(call, signature);
        return;
    }
    if (!is_rule_first(op) && ask_meta(call, signature))
        return;
    signature.outputs.clear();
    signature.lists.clear();
    if (!follow_rule(call, signature))
        ask_cluster(call, signature);
}

} // namespace

void compute_in_default(Op &op, Stack &stack)
{
    const size_t begin = stack.size() - op.arguments.size();
    Op *plain = op.is_out ? without_out(op) : &op;
    if (!plain || (op.is_all_alias && !op.is_out) || !computes_on_integers(op, stack))
        return;
    /* What is written comes last. */
    Stack call(stack.begin() + (ptrdiff_t)begin,
               stack.begin() + (ptrdiff_t)(begin + plain->arguments.size()));
    if (!gives_default(*plain, call))
        return;
    for (size_t i = 0; i < plain->arguments.size(); i++) {
        c10::IValue &v = stack[begin + i];
        if (v.isTensor() && v.toTensor().defined() && !is_condition(op, i) &&
            !v.toTensor().unsafeGetTensorImpl()->is_wrapped_number())
            v = v.toTensor().to(c10::get_default_dtype_as_scalartype());
    }
}

std::vector<dt_value_t> values_of(const Call &call, bool with_dynamic, ValueMemory &memory)
{
    const size_t begin = call.stack->size() - call.op->arguments.size();
    std::vector<dt_value_t> values;
    for (size_t i = 0; i < call.op->arguments.size(); i++)
        values.push_back(value_of(*call.op, call.op->arguments[i], (*call.stack)[begin + i],
                                  with_dynamic, memory));
    return values;
}

/* Write down what `signature` says of a call. Recorder held. */
static void define(const Call &call, Signature &signature)
{
    std::vector<dt_output_t> outputs;
    dt_error_t err;
    auto definition = describe(call, true);
    signature.id_count = 0;
    for (const Output &from : signature.outputs) {
        dt_output_t out{};
        out.alias = (uint8_t)from.alias;
        out.input = from.input;
        if (from.geometry)
            out.meta = from.geometry->meta;
        else if (from.alias != DT_ALIAS_NONE)
            must(dt_describe(DT_DTYPE_F32, 0, nullptr, nullptr, &out.meta, &err), err);
        signature.id_count += from.alias == DT_ALIAS_FRESH || from.alias == DT_ALIAS_VIEW;
        outputs.push_back(out);
    }
    uint32_t flags =
        (draws_now(call) ? DT_SIGNATURE_DRAWS : 0) | (signature.depends ? DT_SIGNATURE_DEPENDS : 0);
    must(dt_signature_define(session(), &definition->operation, outputs.data(),
                             (uint32_t)outputs.size(), flags, &signature.number, &err),
         err);
}

std::unique_ptr<Signature> work_out(const Call &call)
{
    auto made = std::make_unique<Signature>();
    answer(call, *made);
    define(call, *made);
    return made;
}

void settle(const Call &call, Signature &signature, const std::vector<const Geometry *> &learned)
{
    dt_error_t err;
    if (call.op->is_dynamic && (!call.op->is_index || call.has_mask))
        return; /* the next time it may be something else */
    must(dt_signature_drop(session(), &signature.number, 1, &err), err);
    for (size_t i = 0; i < learned.size(); i++)
        signature.outputs[i].geometry = learned[i];
    signature.depends = false;
    define(call, signature);
}

/* Known to answer wrongly: the real result of a complex one may carry the conjugate bit. */
static bool is_wrong_on_meta(const Op &op)
{
    return op.name.rfind("aten::linalg_lu_solve", 0) == 0;
}

namespace
{

/* The dispatcher keeps all kernels of a key and hands out the one that was registered last. There
 * is no public way to those below it but to take the upper ones out, and the 1,300 that Python has
 * registered take longer to take out and put back than all else at loading. So two private members
 * are read: the standard lets an explicit instantiation name them. Where a later PyTorch names them
 * otherwise this does not compile. */
template <auto member> struct Definition_of {
    friend auto *definition_of(const c10::OperatorHandle &handle)
    {
        return &(handle.*member)->op;
    }
};
template <auto member> struct Kernels_of {
    friend const auto &kernels_of(const c10::impl::OperatorEntry &entry)
    {
        return entry.*member;
    }
};
auto *definition_of(const c10::OperatorHandle &handle);
const auto &kernels_of(const c10::impl::OperatorEntry &entry);
template struct Definition_of<&c10::OperatorHandle::operatorDef_>;
template struct Kernels_of<&c10::impl::OperatorEntry::kernels_>;

/* What C++ registers has types that the dispatcher checks; what Python registers tells none. NULL:
 * there is none. */
const c10::KernelFunction *cpp_meta_kernel(const c10::OperatorHandle &handle)
{
    const auto &kernels = kernels_of(*definition_of(handle));
    auto of_meta = kernels.find(c10::DispatchKey::Meta);
    if (of_meta == kernels.end())
        return nullptr;
    for (const auto &registered : of_meta->second)
        if (registered.inferred_function_schema)
            return &registered.kernel;
    return nullptr;
}

} // namespace

int take_meta_kernels()
{
    int count = 0;
    for (Op *op : all_ops()) {
        const c10::KernelFunction *kernel = cpp_meta_kernel(op->handle);
        if (!kernel || is_wrong_on_meta(*op))
            continue;
        op->meta.emplace(kernel, op->name, std::make_shared<c10::OperatorHandle>(op->handle));
        count++;
    }
    return count;
}

} // namespace dt_pu
