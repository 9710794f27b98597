/* Lists for operators that need the whole of a dimension, on tensors that are cut there: softmax,
 * norms and the mean of losses, in smaller operators of which only the small results in the middle
 * are brought together. No rule of placement can say that, for there is communication between them.
 * Each of the smaller ones runs by its own rule (lib/shard), and what that wants elsewhere is
 * moved. See ring.c.
 *
 * Where the CPU's kernels compute in float32 what is shorter, so do these; results have the
 * operator's type, and its strides. */
#include <math.h>
#include <string.h>

#include "ring.h"
#include "shard/rules.h"

#define LEAST_BYTES 4096 /* what is smaller is brought together in one message */

typedef struct whole {
    dt_client_making_t *m;
    dt_status_t status; /* the first that failed; then nothing is made any more */
} whole_t;

/* ---- what a call is ---- */

static dt_value_t arg_at(const dt_signature_t *sig, uint32_t at)
{
    return at < sig->arg_count ? sig->args[at] : (dt_value_t){.tag = DT_VALUE_DEFAULT};
}

static bool is_floating(unsigned dtype)
{
    return dtype == DT_DTYPE_F16 || dtype == DT_DTYPE_BF16 || dtype == DT_DTYPE_F32 ||
           dtype == DT_DTYPE_F64;
}

static uint64_t bit(const dt_meta_t *meta, int64_t dim)
{
    dim += dim < 0 ? meta->ndim : 0;
    return dim >= 0 && dim < meta->ndim ? UINT64_C(1) << dim : 0;
}

static uint64_t all_of(const dt_meta_t *meta)
{
    return (UINT64_C(1) << meta->ndim) - 1;
}

/* Dimensions that a list names; all if it is empty or not given. */
static uint64_t dims_of(const dt_meta_t *meta, dt_value_t list)
{
    uint64_t dims = 0;
    for (uint32_t i = 0; list.tag == DT_VALUE_INTS && i < list.count; i++)
        dims |= bit(meta, list.ints[i]);
    return dims ? dims : all_of(meta);
}

/* The last ones, which layer_norm() makes alike. */
static uint64_t last_of(const dt_meta_t *meta, dt_value_t shape)
{
    uint64_t outer = UINT64_C(1) << (meta->ndim - (shape.count < meta->ndim ? shape.count : 0));
    return shape.tag == DT_VALUE_INTS && shape.count <= meta->ndim ? all_of(meta) & ~(outer - 1)
                                                                   : 0;
}

static uint64_t cuts_of(const dt_signature_tensor_t *tensor)
{
    uint64_t cuts = 0;
    for (unsigned j = 0; j < tensor->layout.ndim; j++)
        if (tensor->layout.placements[j].kind == DT_PLACEMENT_SHARD)
            cuts |= UINT64_C(1) << tensor->layout.placements[j].dim;
    return cuts;
}

static bool is_large(const dt_signature_tensor_t *tensor)
{
    return dt_meta_bytes(&tensor->meta) >= LEAST_BYTES;
}

/* The input that argument `at` is; -1: it is none. */
static int input_of(const dt_signature_t *sig, uint32_t at)
{
    int input = 0;
    for (uint32_t i = 0; i < at && i < sig->arg_count; i++)
        input += sig->args[i].tag == DT_VALUE_TENSOR;
    return arg_at(sig, at).tag == DT_VALUE_TENSOR ? input : -1;
}

/* ---- smaller operators ---- */

static const dt_meta_t *meta_of(const whole_t *w, uint16_t value)
{
    return w->m->session->metas.items[w->m->ring->values[value].meta];
}

/* Ask the operator's rule where it takes its inputs, have them there, and put it. */
static dt_status_t put(whole_t *w, dt_signature_t *sig, const uint16_t *values,
                       dt_signature_tensor_t *inputs, dt_signature_tensor_t *outputs,
                       uint16_t *ret_values)
{
    dt_client_making_t *m = w->m;
    dt_layout_t in[DT_CLIENT_RING_INPUTS], out[DT_CLIENT_RING_OUTPUTS];
    dt_shard_policy_t policy = {.flags = DT_SHARD_AUTO};
    dt_shard_answer_t answer = {.inputs = in, .outputs = out};
    uint16_t moved[DT_CLIENT_RING_INPUTS];
    dt_client_signature_t *signature;
    uint32_t place, meta;
    for (uint32_t i = 0; i < sig->input_count; i++)
        dt_client_making_tensor(m, values[i], &inputs[i]);
    DT_TRY(dt_shard_propagate(m->session->track.rules, sig, &m->mesh->shard, m->mesh->id, &policy,
                              &answer, m->err));
    for (uint32_t i = 0; i < sig->input_count; i++) {
        DT_TRY(dt_client_place(m->session, &in[i], &place, m->err));
        DT_TRY(dt_client_making_move(m, values[i], place, &moved[i]));
        inputs[i].layout = in[i];
    }
    for (uint32_t i = 0; i < sig->output_count; i++)
        outputs[i].layout = out[i];
    DT_TRY(dt_client_signature_define(m->session, sig, &signature, m->err));
    for (uint32_t i = 0; i < sig->output_count; i++) {
        if (dt_client_meta_intern(&m->session->metas, &outputs[i].meta, &meta) != DT_OK)
            return dt_client_making_nomem(m);
        DT_TRY(dt_client_place(m->session, &out[i], &place, m->err));
        DT_TRY(dt_client_making_value(m, meta, place, &ret_values[i]));
    }
    DT_TRY(dt_client_making_step(m, signature, moved));
    m->ring->steps[m->ring->step_count - 1].output = ret_values[0];
    return DT_OK;
}

/* An operator of `count` tensors, which are its first arguments, and one result. */
static uint16_t op(whole_t *w, const char *name, const uint16_t *values, uint32_t count,
                   const dt_value_t *args, uint32_t arg_count, const dt_meta_t *result)
{
    dt_value_t all[DT_CLIENT_RING_INPUTS];
    dt_signature_tensor_t inputs[DT_CLIENT_RING_INPUTS], output = {.alias = DT_ALIAS_FRESH};
    uint16_t made = 0;
    for (uint32_t i = 0; i < count; i++)
        all[i] = (dt_value_t){.tag = DT_VALUE_TENSOR};
    for (uint32_t i = 0; i < arg_count; i++)
        all[count + i] = args[i];
    output.meta = *result;
    dt_signature_t sig = {.name = name,
                          .arg_count = count + arg_count,
                          .args = all,
                          .input_count = count,
                          .inputs = inputs,
                          .output_count = 1,
                          .outputs = &output};
    if (w->status == DT_OK)
        w->status = put(w, &sig, values, inputs, &output, &made);
    return made;
}

/* Metadata of a result: dense, of these sizes. */
static dt_meta_t dense(unsigned dtype, unsigned ndim, const int64_t *sizes)
{
    dt_meta_t meta;
    dt_check(dt_meta_set(&meta, dtype, ndim, sizes, NULL, 0, NULL) == DT_OK); /* of what is there */
    return meta;
}

static uint16_t one(whole_t *w, const char *name, uint16_t a)
{
    const dt_meta_t *from = meta_of(w, a);
    dt_meta_t made = dense(from->dtype, from->ndim, from->sizes);
    return op(w, name, &a, 1, NULL, 0, &made);
}

static uint16_t with_number(whole_t *w, const char *name, uint16_t a, dt_value_t number)
{
    const dt_meta_t *from = meta_of(w, a);
    dt_meta_t made = dense(from->dtype, from->ndim, from->sizes);
    return op(w, name, &a, 1, &number, 1, &made);
}

/* Of two tensors that are broadcast to each other. */
static uint16_t pair(whole_t *w, const char *name, uint16_t a, uint16_t b)
{
    const dt_meta_t *x = meta_of(w, a), *y = meta_of(w, b);
    const dt_meta_t *more = x->ndim >= y->ndim ? x : y, *less = more == x ? y : x;
    int64_t sizes[DT_META_DIM_MAX];
    unsigned ahead = more->ndim - less->ndim;
    memcpy(sizes, more->sizes, sizeof sizes);
    for (unsigned d = 0; d < less->ndim; d++)
        sizes[ahead + d] = sizes[ahead + d] == 1 ? less->sizes[d] : sizes[ahead + d];
    dt_meta_t made = dense(x->dtype, more->ndim, sizes);
    return op(w, name, (uint16_t[]){a, b}, 2, NULL, 0, &made);
}

static uint16_t reduced(whole_t *w, const char *name, uint16_t a, uint64_t dims, bool keeps)
{
    const dt_meta_t *from = meta_of(w, a);
    int64_t list[DT_META_DIM_MAX], sizes[DT_META_DIM_MAX];
    uint32_t count = 0;
    unsigned ndim = 0;
    for (unsigned d = 0; d < from->ndim; d++) {
        bool is_gone = dims >> d & 1;
        if (is_gone)
            list[count++] = d;
        if (!is_gone || keeps)
            sizes[ndim++] = is_gone ? 1 : from->sizes[d];
    }
    const dt_value_t args[] = {{.tag = DT_VALUE_INTS, .count = count, .ints = list},
                               {.tag = keeps ? DT_VALUE_TRUE : DT_VALUE_FALSE}};
    dt_meta_t made = dense(from->dtype, ndim, sizes);
    return op(w, name, &a, 1, args, 2, &made);
}

static uint16_t sum(whole_t *w, uint16_t a, uint64_t dims, bool keeps)
{
    return reduced(w, "aten::sum.dim_IntList", a, dims, keeps);
}

/* A small result that every part needs. Its sum is not dealt out: that would cut it across what it
 * is then used with. */
static uint16_t everywhere(whole_t *w, uint16_t a)
{
    dt_layout_t layout;
    uint32_t place;
    dt_client_place_layout(w->m->session, w->m->ring->values[a].place, &layout);
    for (unsigned j = 0; j < layout.ndim; j++)
        if (layout.placements[j].kind == DT_PLACEMENT_PARTIAL)
            layout.placements[j] = dt_placement_replicate();
    if (w->status == DT_OK)
        w->status = dt_client_place(w->m->session, &layout, &place, w->m->err);
    if (w->status == DT_OK)
        w->status = dt_client_making_move(w->m, a, place, &a);
    return a;
}

static uint16_t mean(whole_t *w, uint16_t a, uint64_t dims)
{
    return everywhere(w, reduced(w, "aten::mean.dim", a, dims, true));
}

static uint16_t as_type(whole_t *w, uint16_t a, unsigned dtype)
{
    const dt_meta_t *from = meta_of(w, a);
    const dt_value_t arg = {.tag = DT_VALUE_DTYPE, .number = (int64_t)dtype};
    if (from->dtype == dtype)
        return a;
    dt_meta_t made = dense(dtype, from->ndim, from->sizes);
    return op(w, "aten::_to_copy", &a, 1, &arg, 1, &made);
}

/* What is computed with. */
static uint16_t wide(whole_t *w, uint16_t a)
{
    return dt_dtype_bytes(meta_of(w, a)->dtype) < 4 ? as_type(w, a, DT_DTYPE_F32) : a;
}

/* A result as the operator says it. Pointwise operators keep the strides of what they are given. */
static void give(whole_t *w, uint32_t output, uint16_t value)
{
    const dt_signature_t *sig = w->m->sig;
    const dt_value_t arg = {.tag = DT_VALUE_MEMORY_FORMAT}; /* contiguous */
    bool is_plain = true;
    value = as_type(w, value, sig->outputs[output].meta.dtype);
    for (uint32_t i = 0; i < sig->input_count; i++)
        is_plain &= sig->inputs[i].meta.layout == DT_META_CONTIGUOUS;
    if (!is_plain && w->status == DT_OK)
        value = op(w, "aten::clone", &value, 1, &arg, 1, &sig->outputs[output].meta);
    w->m->ring->results[output] = value;
}

/* ---- softmax ---- */

static bool softmax(whole_t *w, bool is_log)
{
    const dt_signature_t *sig = w->m->sig;
    uint64_t dim = bit(&sig->inputs[0].meta, arg_at(sig, 1).number);
    if (arg_at(sig, 1).tag != DT_VALUE_INT || !(cuts_of(&sig->inputs[0]) & dim) ||
        !is_large(&sig->inputs[0]))
        return false;
    uint16_t x = wide(w, 0);
    uint16_t most = everywhere(w, reduced(w, "aten::amax", x, dim, true));
    uint16_t less = pair(w, "aten::sub.Tensor", x, most), powers = one(w, "aten::exp", less);
    uint16_t total = everywhere(w, sum(w, powers, dim, true));
    give(w, 0,
         is_log ? pair(w, "aten::sub.Tensor", less, one(w, "aten::log", total))
                : pair(w, "aten::div.Tensor", powers, total));
    return true;
}

static bool softmax_backward(whole_t *w, bool is_log)
{
    const dt_signature_t *sig = w->m->sig;
    uint64_t dim = bit(&sig->inputs[0].meta, arg_at(sig, 2).number);
    if (arg_at(sig, 2).tag != DT_VALUE_INT ||
        !((cuts_of(&sig->inputs[0]) | cuts_of(&sig->inputs[1])) & dim) ||
        !is_large(&sig->inputs[0]))
        return false;
    uint16_t gradient = wide(w, 0), y = wide(w, 1);
    uint16_t from = is_log ? gradient : pair(w, "aten::mul.Tensor", gradient, y);
    uint16_t weight = is_log ? one(w, "aten::exp", y) : y;
    uint16_t total = everywhere(w, sum(w, from, dim, true));
    uint16_t share = pair(w, "aten::mul.Tensor", weight, total);
    give(w, 0, pair(w, "aten::sub.Tensor", from, share));
    return true;
}

static bool plain_softmax(whole_t *w)
{
    return softmax(w, false);
}

static bool log_softmax(whole_t *w)
{
    return softmax(w, true);
}

static bool plain_softmax_backward(whole_t *w)
{
    return softmax_backward(w, false);
}

static bool log_softmax_backward(whole_t *w)
{
    return softmax_backward(w, true);
}

/* ---- norms ---- */

static bool vector_norm(whole_t *w)
{
    const dt_signature_t *sig = w->m->sig;
    dt_value_t order = arg_at(sig, 1);
    double power = order.tag == DT_VALUE_DOUBLE    ? order.real
                   : order.tag == DT_VALUE_INT     ? (double)order.number
                   : order.tag == DT_VALUE_DEFAULT ? 2
                                                   : 0;
    uint64_t dims = dims_of(&sig->inputs[0].meta, arg_at(sig, 2));
    bool keeps = arg_at(sig, 3).tag == DT_VALUE_TRUE;
    if (!isfinite(power) || power == 0 || power == 1 || !is_floating(sig->outputs[0].meta.dtype) ||
        !(cuts_of(&sig->inputs[0]) & dims))
        return false; /* the others have rules */
    uint16_t x = wide(w, as_type(w, 0, sig->outputs[0].meta.dtype));
    dt_value_t number = {.tag = DT_VALUE_DOUBLE, .real = power};
    if (power == 2) {
        give(w, 0, one(w, "aten::sqrt", sum(w, pair(w, "aten::mul.Tensor", x, x), dims, keeps)));
        return true;
    }
    uint16_t powers = with_number(w, "aten::pow.Tensor_Scalar", one(w, "aten::abs", x), number);
    number.real = 1 / power;
    give(w, 0, with_number(w, "aten::pow.Tensor_Scalar", sum(w, powers, dims, keeps), number));
    return true;
}

static bool layer_norm(whole_t *w)
{
    const dt_signature_t *sig = w->m->sig;
    uint64_t dims = last_of(&sig->inputs[0].meta, arg_at(sig, 1));
    int weight = input_of(sig, 2), bias = input_of(sig, 3);
    if (!(cuts_of(&sig->inputs[0]) & dims) || !is_large(&sig->inputs[0]) ||
        dt_dtype_bytes(sig->inputs[0].meta.dtype) < 4 || arg_at(sig, 4).tag == DT_VALUE_DEFAULT)
        return false;
    uint16_t middle = mean(w, 0, dims), less = pair(w, "aten::sub.Tensor", 0, middle);
    uint16_t spread = mean(w, pair(w, "aten::mul.Tensor", less, less), dims);
    uint16_t scale =
        one(w, "aten::rsqrt", with_number(w, "aten::add.Scalar", spread, arg_at(sig, 4)));
    uint16_t made = pair(w, "aten::mul.Tensor", less, scale);
    if (weight >= 0)
        made = pair(w, "aten::mul.Tensor", made, (uint16_t)weight);
    if (bias >= 0)
        made = pair(w, "aten::add.Tensor", made, (uint16_t)bias);
    give(w, 0, made);
    give(w, 1, middle);
    give(w, 2, scale);
    return true;
}

static bool layer_norm_backward(whole_t *w)
{
    const dt_signature_t *sig = w->m->sig;
    const dt_meta_t *meta = &sig->inputs[1].meta;
    uint64_t dims = last_of(meta, arg_at(sig, 2)), outer = all_of(meta) & ~dims;
    int weight = input_of(sig, 5);
    if (!((cuts_of(&sig->inputs[0]) | cuts_of(&sig->inputs[1])) & dims) ||
        !is_large(&sig->inputs[1]) || dt_dtype_bytes(meta->dtype) < 4)
        return false;
    uint16_t given = 0, scale = (uint16_t)input_of(sig, 4), middle = (uint16_t)input_of(sig, 3);
    uint16_t shape = pair(w, "aten::mul.Tensor", pair(w, "aten::sub.Tensor", 1, middle), scale);
    if (sig->outputs[0].alias == DT_ALIAS_FRESH) {
        uint16_t gradient =
            weight >= 0 ? pair(w, "aten::mul.Tensor", given, (uint16_t)weight) : given;
        uint16_t along = mean(w, pair(w, "aten::mul.Tensor", gradient, shape), dims);
        uint16_t rest = pair(w, "aten::sub.Tensor", gradient, mean(w, gradient, dims));
        rest = pair(w, "aten::sub.Tensor", rest, pair(w, "aten::mul.Tensor", shape, along));
        give(w, 0, pair(w, "aten::mul.Tensor", scale, rest));
    }
    if (sig->outputs[1].alias == DT_ALIAS_FRESH) {
        uint16_t all = pair(w, "aten::mul.Tensor", given, shape);
        give(w, 1, outer ? sum(w, all, outer, false) : all);
    }
    if (sig->outputs[2].alias == DT_ALIAS_FRESH)
        give(w, 2, outer ? sum(w, given, outer, false) : one(w, "aten::clone", given));
    return true;
}

/* ---- losses ---- */

/* A mean's divisor, the weight of all targets, is known when all have been looked at. */
static bool nll_loss(whole_t *w)
{
    const dt_signature_t *sig = w->m->sig;
    dt_value_t args[DT_CLIENT_RING_INPUTS];
    dt_signature_tensor_t inputs[DT_CLIENT_RING_INPUTS], outputs[2];
    uint16_t values[DT_CLIENT_RING_INPUTS] = {0, 1, 2}, made[2] = {0};
    if (arg_at(sig, 3).tag != DT_VALUE_INT || arg_at(sig, 3).number != 1 ||
        sig->output_count != 2 || sig->arg_count > DT_CLIENT_RING_INPUTS ||
        !(cuts_of(&sig->inputs[0]) | cuts_of(&sig->inputs[1])))
        return false;
    memcpy(args, sig->args, sig->arg_count * sizeof *args);
    memcpy(outputs, sig->outputs, sizeof outputs);
    args[3].number = 2; /* the sum */
    dt_signature_t sums = *sig;
    sums.args = args;
    sums.inputs = inputs;
    sums.outputs = outputs;
    if (w->status == DT_OK)
        w->status = put(w, &sums, values, inputs, outputs, made);
    w->m->ring->results[0] = pair(w, "aten::div.Tensor", made[0], made[1]);
    w->m->ring->results[1] = made[1];
    return true;
}

/* ---- which ---- */

static const struct {
    const char *name;
    uint32_t least; /* arguments, and */
    uint32_t inputs, outputs;
    bool (*make)(whole_t *w); /* false: its rule does it */
} ways[] = {
    {"aten::_softmax", 2, 1, 1, plain_softmax},
    {"aten::_log_softmax", 2, 1, 1, log_softmax},
    {"aten::_softmax_backward_data", 3, 2, 1, plain_softmax_backward},
    {"aten::_log_softmax_backward_data", 3, 2, 1, log_softmax_backward},
    {"aten::linalg_vector_norm", 1, 1, 1, vector_norm},
    {"aten::native_layer_norm", 5, 1, 3, layer_norm},
    {"aten::native_layer_norm_backward", 5, 4, 3, layer_norm_backward},
    {"aten::nll_loss_forward", 4, 2, 2, nll_loss},
    {"aten::nll_loss2d_forward", 4, 2, 2, nll_loss},
};
#define WAY_COUNT (sizeof ways / sizeof ways[0])

static size_t way_of(const dt_signature_t *sig)
{
    size_t at = 0;
    while (at < WAY_COUNT && strcmp(sig->name, ways[at].name) != 0)
        at++;
    return at;
}

bool dt_client_whole_takes(const dt_signature_t *sig)
{
    size_t at = way_of(sig);
    if (at == WAY_COUNT || sig->flags || sig->arg_count < ways[at].least ||
        sig->input_count < ways[at].inputs || sig->input_count > DT_CLIENT_RING_INPUTS ||
        sig->output_count != ways[at].outputs)
        return false;
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias != DT_ALIAS_FRESH && sig->outputs[i].alias != DT_ALIAS_NONE)
            return false;
    for (uint32_t i = 1; i < sig->arg_count; i++) /* one number at most comes with each call */
        if (sig->args[i].tag == DT_VALUE_DYNAMIC && (ways[at].make != layer_norm || i != 4))
            return false;
    return is_floating(sig->inputs[0].meta.dtype) && dt_meta_numel(&sig->inputs[0].meta) > 0;
}

dt_status_t dt_client_whole_make(dt_client_making_t *m)
{
    whole_t w = {.m = m};
    m->mesh = dt_client_place_mesh(m->session, m->ring->have[0]);
    m->ring->is_none = true;
    for (uint32_t i = 0; i < m->sig->input_count; i++)
        if (m->sig->inputs[i].layout.mesh != m->sig->inputs[0].layout.mesh)
            return DT_OK;
    m->ring->is_none = !ways[way_of(m->sig)].make(&w);
    if (w.status == DT_OK && !m->ring->is_none)
        dt_client_making_free_all(m);
    return w.status;
}
