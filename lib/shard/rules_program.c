/* Local programs: rows in which a device runs more than the program's operator.
 *   means   each device's mean, times (its count / the count of all), adds up
 *   vocab=  an index points into a dimension that is sharded: it is counted from the shard's start;
 *           what lies elsewhere gives 0 here, and the results add up; in a gradient, each device
 *           makes the rows that it has
 *   groups  native_group_norm reads memory in the order that strides tell, and those of one
 *           picture may tell another than those of several did */
#include <string.h>

#include "shard/rules_internal.h"

#define OP_MAX  12u
#define ARG_MAX 8u

typedef struct builder {
    const dt_shard_call_t *call;
    const dt_shard_mesh_t *mesh;
    uint32_t index;
    const dt_meta_t *inputs, *outputs; /* local */
    const dt_shard_op_t *op;           /* the operator, its sizes local */
    dt_arena_t *arena;
    dt_shard_op_t *ops; /* (OP_MAX) */
    uint32_t count;
    bool has_failed;
} builder_t;

static uint64_t result_of(uint32_t op)
{
    return DT_SHARD_TEMP + 16u * op;
}

static dt_value_t tensor(uint64_t id)
{
    return (dt_value_t){.tag = DT_VALUE_TENSOR, .id = id};
}

static dt_value_t integer(int64_t number)
{
    return (dt_value_t){.tag = DT_VALUE_INT, .number = number};
}

static dt_value_t real(double number)
{
    return (dt_value_t){.tag = DT_VALUE_DOUBLE, .real = number};
}

/* Append an operator; its result has the sizes of `like` and `dtype`. Returns the result's id. */
static uint64_t append(builder_t *b, const char *name, const dt_value_t *args, uint32_t arg_count,
                       const dt_meta_t *like, unsigned dtype)
{
    dt_value_t *copy = dt_arena_calloc(b->arena, arg_count, sizeof *copy);
    dt_meta_t *meta = dt_arena_calloc(b->arena, 1, sizeof *meta);
    if (!copy || !meta || b->count == OP_MAX) {
        b->has_failed = true;
        return 0;
    }
    memcpy(copy, args, arg_count * sizeof *copy);
    dt_check(dt_meta_set(meta, dtype, like->ndim, like->sizes, NULL, 0, NULL) == DT_OK);
    b->ops[b->count] =
        (dt_shard_op_t){.name = name, .arg_count = arg_count, .args = copy, .result = meta};
    return result_of(b->count++);
}

/* One tensor and one number, as most are. */
static uint64_t scalar_op(builder_t *b, const char *name, uint64_t of, dt_value_t number,
                          const dt_meta_t *like, unsigned dtype)
{
    return append(b, name, (dt_value_t[]){tensor(of), number}, 2, like, dtype);
}

/* The operator itself, with some arguments changed (`args` NULL: none). */
static uint64_t append_own(builder_t *b, const dt_value_t *args)
{
    uint64_t id = append(b, b->op->name, args ? args : b->op->args, b->op->arg_count,
                         &b->outputs[0], b->outputs[0].dtype);
    for (uint32_t i = 0, k = 0; i < b->op->arg_count && !b->has_failed; i++) {
        dt_value_t *arg = (dt_value_t *)(uintptr_t)&b->ops[b->count - 1].args[i];
        if (arg->tag == DT_VALUE_DYNAMIC)
            arg->number = k++;
    }
    return id;
}

/* ---- means ---- */

bool dt_shard_has_mean(const dt_shard_call_t *call)
{
    const char *name = call->rule->name.at;
    return call->rule->family == DT_SHARD_FAMILY_LOSS ||
           (call->rule->family == DT_SHARD_FAMILY_DIM && strncmp(name, "aten::mean", 10) == 0);
}

static bool is_sharded(const dt_layout_t *layout, unsigned dim)
{
    return layout->placements[dim].kind == DT_PLACEMENT_SHARD;
}

/* By what the local result is multiplied; 1 if the operator alone is right. */
static double mean_factor(const builder_t *b)
{
    const dt_signature_t *s = b->call->signature;
    const dt_layout_t *in = &s->inputs[b->call->ins[b->call->is_scaled].at].layout;
    const dt_layout_t *out = &s->outputs[0].layout;
    int64_t all = dt_meta_numel(&s->inputs[b->call->ins[b->call->is_scaled].at].meta);
    int64_t own = dt_meta_numel(&b->inputs[b->call->ins[b->call->is_scaled].at]);
    double averaged = 1;
    if (all == 0 || dt_meta_numel(&b->outputs[0]) == 0)
        return 1;
    if (!b->call->is_scaled) { /* a result's share of both */
        all /= dt_meta_numel(&s->outputs[0].meta);
        own /= dt_meta_numel(&b->outputs[0]);
    }
    for (unsigned j = 0; j < in->ndim && !b->call->is_scaled; j++)
        if (is_sharded(in, j) && out->placements[j].kind == DT_PLACEMENT_PARTIAL &&
            out->placements[j].reduction == DT_REDUCTION_AVG)
            averaged *= b->mesh->sizes[j];
    return (double)own * averaged / (double)all;
}

static void mean(builder_t *b)
{
    double factor = mean_factor(b);
    if (factor == 1)
        return;
    uint64_t own = append_own(b, NULL);
    (void)scalar_op(b, "aten::mul.Scalar", own, real(factor), &b->outputs[0], b->outputs[0].dtype);
}

/* ---- vocabulary ---- */

/* The tensor input of argument `slot`; -1: it is not given. */
static int32_t input_at(const dt_shard_call_t *call, uint32_t slot)
{
    return call->slots[slot].count ? call->ins[call->slots[slot].first].at : -1;
}

/* Which dimension of input 0 (or 1, of gradients) the index points into, and the shard's part of
 * it. False: it is whole. */
static bool vocabulary(const builder_t *b, int32_t *ret_input, dt_shard_span_t *ret_span)
{
    const dt_shard_call_t *c = b->call;
    dt_shard_box_t box;
    bool is_cut = false;
    uint32_t slot = c->rule->family == DT_SHARD_FAMILY_NLLB;
    int32_t input = input_at(c, slot);
    const dt_shard_tensor_t *t = &c->ins[c->slots[slot].first];
    const dt_signature_tensor_t *tensor = &c->signature->inputs[input];
    const uint8_t *at = memchr(t->labels, c->rule->vocabulary, t->meta->ndim);
    if (!at)
        return false;
    for (unsigned j = 0; j < tensor->layout.ndim; j++)
        is_cut |= is_sharded(&tensor->layout, j) &&
                  tensor->layout.placements[j].dim == (unsigned)(at - t->labels);
    (void)dt_shard_box(&tensor->layout, b->mesh, tensor->meta.ndim, tensor->meta.sizes, b->index,
                       &box);
    *ret_span = box.spans[at - t->labels];
    *ret_input = input;
    return is_cut;
}

/* An index into rows of which this device has those of the span. */
typedef struct here {
    uint64_t inside; /* counted from the span's start; of others' rows, any that is here */
    uint64_t others; /* a mask with a last dimension of 1: what points to rows of others */
} here_t;

/* `like`: metadata of a tensor with one row for each index. */
static here_t point_here(builder_t *b, int32_t index_at, dt_shard_span_t span,
                         const dt_meta_t *like)
{
    const dt_meta_t *index = &b->inputs[index_at];
    dt_meta_t thin = *like; /* the mask, with a dimension for the row */
    thin.sizes[thin.ndim - 1] = 1;
    uint64_t own = scalar_op(b, "aten::sub.Scalar", (uint64_t)index_at + 1, integer(span.lo), index,
                             index->dtype);
    uint64_t inside =
        append(b, "aten::clamp", (dt_value_t[]){tensor(own), integer(0), integer(span.length - 1)},
               3, index, index->dtype);
    uint64_t others = append(b, "aten::ne.Tensor", (dt_value_t[]){tensor(own), tensor(inside)}, 2,
                             index, DT_DTYPE_BOOL);
    return (here_t){inside,
                    scalar_op(b, "aten::unsqueeze", others, integer(-1), &thin, DT_DTYPE_BOOL)};
}

/* embedding(weight, indices): rows of others give -0.0, which adds nothing. */
static void embedding(builder_t *b, dt_shard_span_t span)
{
    int32_t at = input_at(b->call, 1);
    const dt_meta_t *out = &b->outputs[0];
    dt_value_t args[ARG_MAX];
    if (b->op->arg_count > ARG_MAX) {
        b->has_failed = true;
        return;
    }
    const here_t here = point_here(b, at, span, out);
    memcpy(args, b->op->args, b->op->arg_count * sizeof *args);
    args[1] = tensor(here.inside);
    for (uint32_t i = 2; i < b->op->arg_count; i++)
        args[i] = (dt_value_t){.tag = DT_VALUE_DEFAULT}; /* they count in the gradient only */
    uint64_t rows = append_own(b, args);
    (void)append(b, "aten::masked_fill.Scalar",
                 (dt_value_t[]){tensor(rows), tensor(here.others), real(-0.0)}, 3, out, out->dtype);
}

/* Which rows of the result this device has. False: all. */
static bool rows_here(const builder_t *b, dt_shard_span_t *ret_span)
{
    const dt_shard_tensor_t *made = &b->call->outs[0];
    const dt_signature_tensor_t *out = &b->call->signature->outputs[made->at];
    const uint8_t *at = memchr(made->labels, b->call->rule->vocabulary, made->meta->ndim);
    dt_shard_box_t box;
    bool is_cut = false;
    if (!at)
        return false;
    unsigned dim = (unsigned)(at - made->labels);
    for (unsigned j = 0; j < out->layout.ndim; j++)
        is_cut |= is_sharded(&out->layout, j) && out->layout.placements[j].dim == dim;
    (void)dt_shard_box(&out->layout, b->mesh, out->meta.ndim, out->meta.sizes, b->index, &box);
    *ret_span = box.spans[dim];
    return is_cut;
}

/* embedding_dense_backward(gradient, indices, rows, padding_idx): what goes to rows of others is 0.
 */
static void embedding_gradient(builder_t *b, dt_shard_span_t span)
{
    int32_t from = input_at(b->call, 0), at = input_at(b->call, 1);
    const dt_meta_t *given = &b->inputs[from];
    int64_t padding = dt_shard_attr(b->call, "padding_idx").number;
    dt_value_t args[ARG_MAX];
    if (b->op->arg_count > ARG_MAX || b->op->arg_count < 4) {
        b->has_failed = true;
        return;
    }
    const here_t here = point_here(b, at, span, given);
    uint64_t mine = append(b, "aten::masked_fill.Scalar",
                           (dt_value_t[]){tensor((uint64_t)from + 1), tensor(here.others), real(0)},
                           3, given, given->dtype);
    memcpy(args, b->op->args, b->op->arg_count * sizeof *args);
    args[0] = tensor(mine);
    args[1] = tensor(here.inside);
    args[2] = integer(span.length);
    args[3] =
        integer(padding >= span.lo && padding < span.lo + span.length ? padding - span.lo : -1);
    (void)append_own(b, args);
}

/* nll_loss: classes of others become the ignored one. */
static void classes(builder_t *b, dt_shard_span_t span)
{
    bool is_backward = b->call->rule->family == DT_SHARD_FAMILY_NLLB;
    uint32_t first = is_backward; /* arguments: self, target, weight stand behind the gradient */
    int32_t at = input_at(b->call, first + 1), weight = input_at(b->call, first + 2);
    const dt_meta_t *target = &b->inputs[at];
    dt_shard_attr_t ignore = dt_shard_attr(b->call, "ignore_index");
    unsigned truth = DT_DTYPE_BOOL;
    dt_value_t args[ARG_MAX];
    if (b->op->arg_count > ARG_MAX || b->op->arg_count < first + 5) {
        b->has_failed = true;
        return;
    }
    uint64_t given = (uint64_t)at + 1;
    uint64_t own = scalar_op(b, "aten::sub.Scalar", given, integer(span.lo), target, target->dtype);
    uint64_t below = scalar_op(b, "aten::lt.Scalar", own, integer(0), target, truth);
    uint64_t above = scalar_op(b, "aten::ge.Scalar", own, integer(span.length), target, truth);
    uint64_t ignored =
        scalar_op(b, "aten::eq.Scalar", given, integer(ignore.number), target, truth);
    uint64_t some = append(b, "aten::logical_or", (dt_value_t[]){tensor(below), tensor(above)}, 2,
                           target, truth);
    uint64_t all = append(b, "aten::logical_or", (dt_value_t[]){tensor(some), tensor(ignored)}, 2,
                          target, truth);
    uint64_t local =
        append(b, "aten::masked_fill.Scalar",
               (dt_value_t[]){tensor(own), tensor(all), integer(-100)}, 3, target, target->dtype);
    memcpy(args, b->op->args, b->op->arg_count * sizeof *args);
    args[first + 1] = tensor(local);
    args[first + 4] = integer(-100);
    if (weight >= 0) {
        dt_meta_t cut = b->inputs[weight];
        cut.sizes[0] = span.length;
        uint64_t part = append(b, "aten::slice.Tensor",
                               (dt_value_t[]){tensor((uint64_t)weight + 1), integer(0),
                                              integer(span.lo), integer(span.lo + span.length)},
                               4, &cut, cut.dtype);
        args[first + 2] = tensor(part);
    }
    (void)append_own(b, args);
}

/* ---- group norms ---- */

static bool is_group_norm(const dt_shard_call_t *call)
{
    return strncmp(call->rule->name.at, "aten::native_group_norm", 23) == 0;
}

/* The kernel takes its input as it lies: channels first, or last as a whole batch shows it. The
 * program has seen to that for the global tensor. A view of one picture of several can have
 * strides that are neither, of which the forward pass complains and the backward one does not. */
static void group_norm(builder_t *b)
{
    dt_value_t args[ARG_MAX + 2];
    if (b->op->arg_count > ARG_MAX + 2) {
        b->has_failed = true;
        return;
    }
    memcpy(args, b->op->args, b->op->arg_count * sizeof *args);
    for (uint32_t i = 0; i < 2; i++) { /* backward: the gradient and the input */
        int32_t at = input_at(b->call, i);
        const dt_meta_t *mine = at >= 0 ? &b->inputs[at] : NULL;
        if (!mine || mine->ndim < 2 || mine->sizes[0] != 1 ||
            b->call->signature->inputs[at].meta.sizes[0] == 1)
            continue;
        const dt_value_t dense[] = {args[i], {.tag = DT_VALUE_MEMORY_FORMAT, .number = 0}};
        args[i] = tensor(append(b, "aten::contiguous", dense, 2, mine, mine->dtype));
    }
    if (b->count)
        (void)append_own(b, args);
}

bool dt_shard_program(const dt_shard_call_t *call, const dt_shard_mesh_t *mesh, uint32_t index,
                      dt_arena_t *arena, dt_shard_local_t *local)
{
    builder_t b = {.call = call,
                   .mesh = mesh,
                   .index = index,
                   .inputs = local->inputs,
                   .outputs = local->outputs,
                   .op = local->ops,
                   .arena = arena};
    int32_t input;
    dt_shard_span_t span;
    bool is_mean =
        call->is_scaled || (call->reduce == DT_SHARD_REDUCE_AVG && dt_shard_has_mean(call));
    if (!is_mean && !call->rule->vocabulary && !is_group_norm(call))
        return true;
    b.ops = dt_arena_calloc(arena, OP_MAX, sizeof *b.ops);
    if (!b.ops)
        return false;
    if (is_mean)
        mean(&b);
    else if (is_group_norm(call))
        group_norm(&b);
    else if (dt_shard_makes_vocabulary(call) && rows_here(&b, &span))
        embedding_gradient(&b, span);
    else if (dt_shard_makes_vocabulary(call))
        ; /* all rows are here */
    else if (vocabulary(&b, &input, &span) && call->rule->family == DT_SHARD_FAMILY_LITERAL)
        embedding(&b, span);
    else if (vocabulary(&b, &input, &span))
        classes(&b, span);
    if (b.count) {
        local->ops = b.ops;
        local->op_count = b.count;
    }
    return !b.has_failed;
}
