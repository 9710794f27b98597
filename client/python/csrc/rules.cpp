// Results by rule (lib/ops/meta.def), where an operator has no Meta kernel: what the engine would
// answer, without asking it.
extern "C" {
#include "ops/meta.h"
}
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "internal.h"

namespace dt_pu
{
namespace
{

const dt_ops_rules_t *rules()
{
    static const dt_ops_rules_t *made = [] {
        dt_ops_rules_t *read = nullptr;
        dt_error_t err;
        must(dt_ops_rules_create(&read, &err), err);
        return read;
    }();
    return made;
}

/* Of the operators that rules name: registered here or not. NULL: this PyTorch has none. */
Op *op_of_rule(const char *name)
{
    std::string full(name);
    size_t dot = full.find('.');
    auto handle = c10::Dispatcher::singleton().findSchema(
        {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
    return handle ? make_op(*handle) : nullptr;
}

struct Question {
    const dt_ops_question_t *from;
    std::vector<at::Tensor> inputs; /* on Meta */
    size_t next = 0;
};

at::Tensor on_meta(const dt_meta_t &meta)
{
    at::Tensor made = at::detail::empty_strided_meta(at::IntArrayRef(meta.sizes, meta.ndim),
                                                     at::IntArrayRef(meta.strides, meta.ndim),
                                                     (c10::ScalarType)meta.dtype);
    made._set_conj(meta.layout & DT_META_CONJ);
    made._set_neg(meta.layout & DT_META_NEG);
    return made;
}

/* A number that stands where the schema has a tensor. */
at::Tensor wrapped(const at::Scalar &number)
{
    at::Tensor made = c10::scalar_to_tensor(number);
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
}

c10::IValue number_for(const Argument &argument, const at::Scalar &number)
{
    if (argument.kind == Kind::tensor)
        return wrapped(number);
    if (argument.kind == Kind::real)
        return number.toDouble();
    if (argument.is_list)
        return std::vector<int64_t>{number.toLong()};
    return number;
}

/* False: rules have no such value. */
bool push(Question &q, const Argument &argument, const dt_value_t &value, Stack &stack)
{
    switch (value.tag) {
    case DT_VALUE_NONE:
        stack.emplace_back();
        return true;
    case DT_VALUE_TENSOR:
        stack.emplace_back(q.inputs.at(q.next++));
        return true;
    case DT_VALUE_FALSE:
    case DT_VALUE_TRUE:
        stack.push_back(number_for(argument, value.tag == DT_VALUE_TRUE));
        return true;
    case DT_VALUE_INT:
        stack.push_back(number_for(argument, value.number));
        return true;
    case DT_VALUE_DTYPE:
        stack.emplace_back((int64_t)value.number);
        return true;
    case DT_VALUE_DOUBLE:
        stack.push_back(number_for(argument, value.real));
        return true;
    case DT_VALUE_INTS:
        stack.emplace_back(std::vector<int64_t>(value.ints, value.ints + value.count));
        return true;
    default:
        return false;
    }
}

bool push_all(Question &q, const Op &op, Stack &stack)
{
    const auto &schema = op.handle.schema().arguments();
    for (size_t i = 0; i < op.arguments.size(); i++) {
        bool is_given = i < q.from->arg_count && q.from->args[i].tag != DT_VALUE_DEFAULT;
        if (is_given && !push(q, op.arguments[i], q.from->args[i], stack))
            return false;
        if (!is_given && !schema[i].default_value())
            return false;
        if (!is_given)
            stack.push_back(*schema[i].default_value());
    }
    return true;
}

/* The two that have no kernel of their own on Meta. False: it is neither. */
bool is_arithmetic(Question &q, dt_ops_answer_t *ret_answer)
{
    const dt_ops_question_t &from = *q.from;
    dt_ops_output_t &out = ret_answer->outputs[0];
    if (strcmp(from.name, "aten::empty_like") == 0 && from.arg_count == 1) {
        at::Tensor x = q.inputs.at(0);
        auto strides = x.is_non_overlapping_and_dense()
                           ? x.strides().vec()
                           : at::infer_dense_strides(x.sizes(), x.strides());
        at::IntArrayRef as_list(strides);
        out = {DT_ALIAS_FRESH, 0, geometry_of(x.scalar_type(), x.sizes(), &as_list)->meta};
    } else if (strcmp(from.name, "aten::transpose.int") == 0 && from.arg_count == 3) {
        std::vector<int64_t> sizes = q.inputs.at(0).sizes().vec();
        std::vector<int64_t> strides = q.inputs[0].strides().vec();
        int64_t count = q.inputs[0].dim(), a = from.args[1].number, b = from.args[2].number;
        a += a < 0 ? count : 0;
        b += b < 0 ? count : 0;
        if (a < 0 || b < 0 || a >= count || b >= count)
            return false;
        std::swap(sizes[(size_t)a], sizes[(size_t)b]);
        std::swap(strides[(size_t)a], strides[(size_t)b]);
        at::IntArrayRef as_list(strides);
        out = {DT_ALIAS_VIEW, 0, geometry_of(q.inputs[0].scalar_type(), sizes, &as_list)->meta};
    } else {
        return false;
    }
    ret_answer->count = 1;
    return true;
}

dt_status_t describe(const Question &q, Stack &results, dt_ops_answer_t *ret_answer)
{
    ret_answer->count = 0;
    for (const c10::IValue &value : results) {
        if ((!value.isTensor() && !value.isNone()) || ret_answer->count == DT_OPS_RESULT_MAX)
            return DT_ERR_AGAIN;
        dt_ops_output_t &out = ret_answer->outputs[ret_answer->count++];
        const at::Tensor tensor = value.isNone() ? at::Tensor() : value.toTensor();
        out.alias = tensor.defined() ? DT_ALIAS_FRESH : DT_ALIAS_NONE;
        if (!tensor.defined())
            continue;
        out.meta = geometry_of(tensor)->plain->meta;
        for (size_t i = 0; i < q.inputs.size() && out.alias == DT_ALIAS_FRESH; i++) {
            bool is_same = tensor.unsafeGetTensorImpl() == q.inputs[i].unsafeGetTensorImpl();
            if (is_same || tensor.is_alias_of(q.inputs[i])) {
                out.alias = is_same ? DT_ALIAS_IN_PLACE : DT_ALIAS_VIEW;
                out.input = (uint32_t)i;
            }
        }
    }
    return DT_OK;
}

/* C code calls it: nothing is thrown. */
dt_status_t ask(void *, const dt_ops_question_t *question, dt_ops_answer_t *ret_answer,
                dt_error_t *) noexcept
{
    try {
        Question q{question, {}};
        for (uint32_t i = 0; i < question->input_count; i++)
            q.inputs.push_back(on_meta(question->inputs[i]));
        if (is_arithmetic(q, ret_answer))
            return DT_OK;
        Op *op = op_of_rule(question->name);
        Stack stack;
        if (!op || !op->meta || !push_all(q, *op, stack))
            return DT_ERR_AGAIN;
        at::AutoDispatchBelowADInplaceOrView guard;
        op->meta->callBoxed(op->handle, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
        return describe(q, stack, ret_answer);
    } catch (const std::bad_alloc &) {
        return DT_ERR_NOMEM;
    } catch (...) { /* the operator itself will raise its own */
        return DT_ERR_AGAIN;
    }
}

} // namespace

bool is_rule_first(const Op &op)
{
    return dt_ops_rules_is_first(rules(), op.name.c_str());
}

bool answer_by_rule(const dt_operation_t &operation, std::vector<dt_output_t> &ret_outputs)
{
    if (!dt_ops_rules_has(rules(), operation.name))
        return false;
    std::vector<dt_meta_t> inputs(operation.input_count);
    for (uint32_t i = 0; i < operation.input_count; i++)
        inputs[i] = operation.inputs[i].meta;
    const dt_ops_question_t question = {operation.name, operation.args, operation.arg_count,
                                        operation.input_count, inputs.data()};
    const dt_ops_asker_t asker = {ask, nullptr, device_kind()};
    auto answer = std::make_unique<dt_ops_answer_t>();
    dt_error_t err;
    dt_status_t status = dt_ops_rules_answer(rules(), &asker, &question, answer.get(), &err);
    if (status == DT_ERR_NOMEM)
        raise(err);
    if (status != DT_OK)
        return false;
    for (uint32_t i = 0; i < answer->count; i++) {
        dt_output_t out{};
        out.alias = answer->outputs[i].alias;
        out.input = answer->outputs[i].input;
        if (out.alias != DT_ALIAS_NONE)
            out.meta = answer->outputs[i].meta;
        ret_outputs.push_back(out);
    }
    return true;
}

} // namespace dt_pu
