// Metadata of results without running on real data: op_infer asks LibTorch's own Meta kernels;
// op_rehearse, where there is none and the metadata cannot depend on values, the operator itself on
// zeros of the CPU (never wrong for operators without a dispatcher tag that says otherwise: 2,993
// of 3,098 signatures equal, the rest tagged or refused).
#include <ATen/core/enum_tag.h>
#include <cstring>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

/* Bytes of all inputs; above them the operator is executed. A matrix of 724 x 724 doubles is
 * decomposed in 0.3 s. */
constexpr int64_t zeros_bytes_max = INT64_C(64) << 20, zeros_matrix_bytes_max = INT64_C(4) << 20;

/* A tensor may be a view of more memory than it spans, and nobody asked how much: on Meta there is
 * always enough, and what is out of bounds is refused at execution. */
constexpr size_t meta_storage_bytes = size_t(1) << 60;

std::vector<at::Tensor> make_inputs(const dt_meta_t *inputs, uint32_t count, c10::Device where)
{
    std::vector<at::Tensor> made;
    made.reserve(count);
    for (uint32_t i = 0; i < count; i++) {
        made.push_back(empty_like_meta(inputs[i], where));
        if (where.is_meta())
            made.back().storage().set_nbytes(meta_storage_bytes);
        if (where.is_cpu() && made.back().storage().nbytes())
            memset(made.back().storage().mutable_data(), 0, made.back().storage().nbytes());
    }
    return made;
}

dt_status_t describe(const std::vector<at::Tensor> &results, const std::vector<at::Tensor> &inputs,
                     dt_backend_output_t *ret_outputs, uint32_t output_max, uint32_t *ret_count,
                     dt_error_t *err)
{
    if (results.size() > output_max)
        return dt_fail(err, DT_ERR_LIMIT, "torch", (int64_t)results.size(),
                       "%zu results, at most %u", results.size(), output_max);
    for (size_t k = 0; k < results.size(); k++) {
        dt_backend_output_t *out = &ret_outputs[k];
        *out = dt_backend_output_t{};
        if (!results[k].defined()) {
            out->alias = DT_ALIAS_NONE;
            continue;
        }
        for (size_t i = 0; i < inputs.size() && out->alias == DT_ALIAS_FRESH; i++) {
            bool is_same = results[k].unsafeGetTensorImpl() == inputs[i].unsafeGetTensorImpl();
            if (is_same || results[k].is_alias_of(inputs[i])) {
                out->alias = is_same ? DT_ALIAS_IN_PLACE : DT_ALIAS_VIEW;
                out->input = (uint32_t)i;
            }
        }
        dt_status_t status = meta_of(results[k], &out->meta, err);
        if (status != DT_OK)
            return status;
    }
    *ret_count = (uint32_t)results.size();
    return DT_OK;
}

struct Question {
    Device *device;
    Op *op;
    const dt_value_t *args;
    uint32_t arg_count;
    const dt_meta_t *inputs;
    uint32_t input_count;
};

dt_status_t ask(const Question &q, c10::Device where, dt_backend_output_t *ret_outputs,
                uint32_t output_max, uint32_t *ret_count, dt_error_t *err)
{
    std::vector<at::Tensor> inputs = make_inputs(q.inputs, q.input_count, where), results;
    std::vector<c10::IValue> stack;
    Call call{q.device, where, &inputs};
    push_arguments(*q.op, q.args, q.arg_count, call, stack);
    q.op->handle.callBoxed(&stack);
    pop_results(stack, results);
    return describe(results, inputs, ret_outputs, output_max, ret_count, err);
}

/* Masks say with their values how many elements are taken; PyTorch tags indexing as a whole. */
bool depends_on_values(const Question &q)
{
    if (!q.op->is_dynamic || q.op->name != "aten::index.Tensor")
        return q.op->is_dynamic;
    for (uint32_t i = 1; i < q.input_count; i++)
        if (q.inputs[i].dtype == DT_DTYPE_BOOL || q.inputs[i].dtype == DT_DTYPE_U8)
            return true;
    return false;
}

/* A random stream must not be moved by a question: such operators are asked on Meta only. */
bool draws(const Op &op)
{
    for (at::Tag tag : op.handle.getTags())
        if (tag == at::Tag::nondeterministic_seeded)
            return true;
    return false;
}

/* The kernel believes its offsets: zeros say that the last bag ends where the first begins, and it
 * reads past what is there. */
bool believes_offsets(const Op &op)
{
    return op.name.find("_embedding_bag") != std::string::npos;
}

bool may_run_on_zeros(const Question &q)
{
    bool is_matrix = q.op->name.find("linalg_") != std::string::npos;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < q.input_count; i++)
        bytes += dt_meta_span_bytes(&q.inputs[i]);
    return q.device->where.is_cpu() && !draws(*q.op) && !believes_offsets(*q.op) &&
           bytes <= (is_matrix ? zeros_matrix_bytes_max : zeros_bytes_max);
}

/* The operator may compute in another type than that of input `i`. */
bool may_convert(const Question &q, uint32_t i, const dt_backend_output_t *outputs, uint32_t count)
{
    for (uint32_t k = 0; k < q.input_count; k++)
        if (q.inputs[k].dtype != q.inputs[i].dtype)
            return true;
    for (uint32_t k = 0; k < count; k++)
        if (outputs[k].alias == DT_ALIAS_FRESH &&
            (outputs[k].meta.dtype != q.inputs[i].dtype || outputs[k].meta.dtype == DT_DTYPE_BOOL))
            return true;
    return false;
}

/* On the CPU a tensor of another type than the operator computes in is copied first, which makes a
 * view with gaps dense; Meta leaves it out, and the order of the results' strides comes from it. */
bool may_stride_otherwise(const Question &q, const dt_backend_output_t *outputs, uint32_t count)
{
    for (uint32_t i = 0; i < q.input_count && q.device->where.is_cpu(); i++)
        if (dt_meta_span_bytes(&q.inputs[i]) != dt_meta_bytes(&q.inputs[i]) &&
            may_convert(q, i, outputs, count))
            return true;
    return false;
}

dt_status_t ask_meta(const Question &q, dt_backend_output_t *ret_outputs, uint32_t output_max,
                     uint32_t *ret_count, dt_error_t *err)
{
    const char *name = q.op->name.c_str();
    try {
        if (!q.op->is_meta_missing) {
            dt_status_t status =
                ask(q, c10::Device(c10::DeviceType::Meta), ret_outputs, output_max, ret_count, err);
            if (status == DT_OK && may_stride_otherwise(q, ret_outputs, *ret_count))
                return dt_fail(err, DT_ERR_AGAIN, "torch", 0,
                               "%s may convert an input with gaps first", name);
            return status;
        }
    } catch (const c10::NotImplementedError &) {
        q.op->is_meta_missing = true;
    }
    return dt_fail(err, DT_ERR_AGAIN, "torch", 0, "%s has no Meta kernel", name);
}

dt_status_t run_on_zeros(const Question &q, dt_backend_output_t *ret_outputs, uint32_t output_max,
                         uint32_t *ret_count, dt_error_t *err)
{
    const char *name = q.op->name.c_str();
    if (!may_run_on_zeros(q))
        return dt_fail(err, DT_ERR_AGAIN, "torch", 0, "%s is not run on zeros", name);
    try {
        return ask(q, q.device->where, ret_outputs, output_max, ret_count, err);
    } catch (const NotKnown &) {
        throw;
    } catch (const std::exception &) { /* zeros may be what it refuses: singular, divisor, index */
        return dt_fail(err, DT_ERR_AGAIN, "torch", 0, "%s refuses zeros", name);
    }
}

using Answerer = dt_status_t (*)(const Question &q, dt_backend_output_t *ret_outputs,
                                 uint32_t output_max, uint32_t *ret_count, dt_error_t *err);

dt_status_t answer(Answerer answerer, const Question &q, dt_backend_output_t *ret_outputs,
                   uint32_t output_max, uint32_t *ret_count, dt_error_t *err)
{
    enter_thread(q.device);
    if (depends_on_values(q))
        return dt_fail(err, DT_ERR_AGAIN, "torch", 0, "%s: sizes depend on values",
                       q.op->name.c_str());
    return guarded(err, [&] {
        try {
            return answerer(q, ret_outputs, output_max, ret_count, err);
        } catch (const NotKnown &e) {
            return dt_fail(err, DT_ERR_AGAIN, "torch", 0, "%s: %s", q.op->name.c_str(), e.what());
        }
    });
}

} // namespace

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
dt_status_t op_infer(void *arg, void *op_arg, const dt_value_t *args, uint32_t arg_count,
                     const dt_meta_t *inputs, uint32_t input_count,
                     dt_backend_output_t *ret_outputs, uint32_t output_max, uint32_t *ret_count,
                     dt_error_t *err)
{
    Question q{static_cast<Device *>(arg),
               static_cast<Op *>(op_arg),
               args,
               arg_count,
               inputs,
               input_count};
    return answer(ask_meta, q, ret_outputs, output_max, ret_count, err);
}

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
dt_status_t op_rehearse(void *arg, void *op_arg, const dt_value_t *args, uint32_t arg_count,
                        const dt_meta_t *inputs, uint32_t input_count,
                        dt_backend_output_t *ret_outputs, uint32_t output_max, uint32_t *ret_count,
                        dt_error_t *err)
{
    Question q{static_cast<Device *>(arg),
               static_cast<Op *>(op_arg),
               args,
               arg_count,
               inputs,
               input_count};
    return answer(run_on_zeros, q, ret_outputs, output_max, ret_count, err);
}

dt_status_t op_output_count(void * /*arg*/, void *op_arg, uint32_t *ret_count)
{
    const std::vector<c10::Argument> &returns =
        static_cast<Op *>(op_arg)->handle.schema().returns();
    for (const c10::Argument &one : returns)
        if (one.type()->kind() != c10::TypeKind::TensorType || one.alias_info())
            return DT_ERR_AGAIN;
    *ret_count = (uint32_t)returns.size();
    return DT_OK;
}

} // namespace dt_torch
