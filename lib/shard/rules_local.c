/* What one device of the mesh runs: the program's operator with its sizes made local. */
#include <string.h>

#include "shard/rules_internal.h"

typedef struct local {
    const dt_shard_rules_t *rules;
    const dt_signature_t *signature;
    const dt_shard_mesh_t *mesh;
    uint32_t index;
    dt_arena_t *arena;
    dt_meta_t *inputs, *outputs;
    uint8_t *fills;
    dt_value_t *args;
    dt_shard_op_t *op;
} local_t;

/* ---- sizes ---- */

static bool metas(local_t *l)
{
    const dt_signature_t *s = l->signature;
    l->inputs = dt_arena_calloc(l->arena, s->input_count, sizeof *l->inputs);
    l->outputs = dt_arena_calloc(l->arena, s->output_count, sizeof *l->outputs);
    l->fills = dt_arena_calloc(l->arena, s->output_count, 1);
    l->args = dt_arena_calloc(l->arena, s->arg_count, sizeof *l->args);
    l->op = dt_arena_calloc(l->arena, 1, sizeof *l->op);
    if (!l->inputs || !l->outputs || !l->fills || !l->args || !l->op)
        return false;
    for (uint32_t i = 0; i < s->input_count; i++)
        dt_shard_local_meta(&s->inputs[i].meta, &s->inputs[i].layout, l->mesh, l->index,
                            &l->inputs[i]);
    for (uint32_t j = 0; j < s->output_count; j++)
        if (s->outputs[j].alias != DT_ALIAS_NONE && !(s->flags & DT_SIGNATURE_UNKNOWN))
            dt_shard_local_meta(&s->outputs[j].meta, &s->outputs[j].layout, l->mesh, l->index,
                                &l->outputs[j]);
    return true;
}

/* ---- empty shards ---- */

/* Is there a tensor without elements, globally? */
static bool is_all_empty(const local_t *l)
{
    for (uint32_t i = 0; i < l->signature->input_count; i++)
        if (dt_meta_numel(&l->signature->inputs[i].meta) == 0)
            return true;
    return false;
}

/* What a result is if nothing runs. False: it must be computed. */
static bool fill_of(const local_t *l, uint32_t j)
{
    const dt_signature_tensor_t *output = &l->signature->outputs[j];
    bool is_partial = false;
    l->fills[j] = DT_SHARD_FILL_EMPTY;
    if (output->alias == DT_ALIAS_NONE || dt_meta_numel(&l->outputs[j]) == 0)
        return true;
    for (unsigned k = 0; k < output->layout.ndim; k++) {
        dt_placement_t p = output->layout.placements[k];
        if (p.kind != DT_PLACEMENT_PARTIAL)
            continue;
        if (p.reduction == DT_REDUCTION_AVG && is_all_empty(l))
            return false; /* the mean of nothing is not 0 */
        is_partial = true;
        l->fills[j] = p.reduction == DT_REDUCTION_MAX   ? DT_SHARD_FILL_MAX
                      : p.reduction == DT_REDUCTION_MIN ? DT_SHARD_FILL_MIN
                                                        : DT_SHARD_FILL_SUM;
    }
    return is_partial;
}

static bool gives_nothing(const local_t *l)
{
    for (uint32_t j = 0; j < l->signature->output_count; j++)
        if (l->signature->outputs[j].alias != DT_ALIAS_NONE && dt_meta_numel(&l->outputs[j]) > 0)
            return false;
    return true;
}

/* No operator sees an empty shard: LibTorch raises, is wrong or dies on some. But if another input
 * is Partial its term still counts, unless there is nothing to add it to; and what joins rows has
 * something to say of those that are not here. */
static bool is_skipped(const local_t *l, const dt_shard_call_t *call)
{
    dt_shard_pieces_t pieces;
    if (call->rule->is_rows && dt_shard_pieces(call, &pieces) && pieces.joins)
        return gives_nothing(l);
    if (dt_shard_makes_vocabulary(call) && gives_nothing(l))
        return true; /* there are fewer rows than devices */
    const dt_signature_t *s = l->signature;
    bool is_empty = false, has_part = false;
    for (uint32_t i = 0; i < s->input_count; i++) {
        const dt_layout_t *layout = &s->inputs[i].layout;
        for (unsigned k = 0; k < layout->ndim; k++) {
            has_part |= layout->placements[k].kind == DT_PLACEMENT_PARTIAL &&
                        dt_meta_numel(&l->inputs[i]) > 0;
            is_empty |= layout->placements[k].kind == DT_PLACEMENT_SHARD &&
                        l->inputs[i].sizes[layout->placements[k].dim] == 0;
        }
    }
    if (has_part && !gives_nothing(l))
        return false;
    for (uint32_t j = 0; j < s->output_count && is_empty; j++)
        is_empty = fill_of(l, j);
    return is_empty;
}

/* ---- attributes ---- */

static bool set_ints(local_t *l, dt_value_t *arg, const int64_t *ints, uint32_t count)
{
    int64_t *copy = dt_arena_alloc(l->arena, (count ? count : 1) * sizeof *copy);
    if (!copy)
        return false;
    for (uint32_t i = 0; i < count; i++)
        copy[i] = ints[i];
    *arg = (dt_value_t){.tag = DT_VALUE_INTS, .count = count, .ints = copy};
    return true;
}

static bool localize_attribute(local_t *l, const dt_shard_call_t *call, const dt_shard_loc_t *loc)
{
    if (loc->param >= l->signature->arg_count)
        return true;
    dt_value_t *arg = &l->args[loc->param];
    if (arg->tag == DT_VALUE_NONE || arg->tag == DT_VALUE_DEFAULT)
        return true;
    if (loc->what == 'i') {
        if (loc->of < call->in_count && call->ins[loc->of].at >= 0)
            *arg = (dt_value_t){.tag = DT_VALUE_INT,
                                .number = l->inputs[call->ins[loc->of].at].sizes[loc->dim]};
        return true;
    }
    if (loc->of >= l->signature->output_count ||
        l->signature->outputs[loc->of].alias == DT_ALIAS_NONE)
        return true;
    const dt_meta_t *meta = &l->outputs[loc->of];
    return set_ints(l, arg, loc->what == 's' ? meta->strides : meta->sizes, meta->ndim);
}

/* A shard may have length 1 where the tensor has not: the dimensions are named. */
static bool localize_squeeze(local_t *l, const dt_shard_call_t *call)
{
    const char *name = l->signature->name;
    size_t base = (size_t)(strchrnul(name, '.') - name);
    int64_t dims[DT_META_DIM_MAX];
    uint32_t gone = dt_shard_squeezed(call), count = 0;
    char *changed = dt_arena_alloc(l->arena, base + sizeof ".dims");
    dt_value_t *args = dt_arena_calloc(l->arena, 2, sizeof *args);
    if (!changed || !args)
        return false;
    memcpy(changed, name, base);
    memcpy(changed + base, ".dims", sizeof ".dims");
    for (int64_t d = 0; d < call->ins[0].meta->ndim; d++)
        if (gone >> d & 1)
            dims[count++] = d;
    args[0] = l->args[0];
    l->args = args;
    l->op->name = changed;
    l->op->arg_count = 2;
    l->op->args = args;
    return set_ints(l, &args[1], dims, count);
}

static bool arguments(local_t *l)
{
    const dt_signature_t *s = l->signature;
    uint64_t next = 1;
    for (uint32_t i = 0; i < s->arg_count; i++) {
        dt_value_t *arg = &l->args[i];
        *arg = s->args[i];
        if (arg->tag == DT_VALUE_TENSOR || arg->tag == DT_VALUE_STORAGE)
            arg->id = next++;
        if (arg->tag != DT_VALUE_TENSORS)
            continue;
        uint64_t *ids = dt_arena_calloc(l->arena, arg->count, sizeof *ids);
        if (!ids)
            return false;
        for (uint32_t k = 0; k < arg->count; k++)
            ids[k] = arg->ids[k] ? next++ : 0;
        arg->ids = ids;
    }
    *l->op = (dt_shard_op_t){.name = s->name, .arg_count = s->arg_count, .args = l->args};
    return true;
}

/* Is the dimension of these rows cut, and which part of the whole lies here? */
static bool lies_in_parts(const local_t *l, const dt_shard_call_t *call, const dt_shard_pieces_t *p,
                          dt_shard_span_t *ret_span)
{
    const dt_signature_t *s = l->signature;
    const dt_signature_tensor_t *whole =
        p->joins ? &s->outputs[call->outs[0].at] : &s->inputs[call->ins[0].at];
    dt_shard_box_t box;
    bool is_cut = false;
    for (unsigned j = 0; j < whole->layout.ndim; j++)
        is_cut |= whole->layout.placements[j].kind == DT_PLACEMENT_SHARD &&
                  whole->layout.placements[j].dim == p->dim;
    (void)dt_shard_box(&whole->layout, l->mesh, whole->meta.ndim, whole->meta.sizes, l->index,
                       &box);
    *ret_span = box.spans[p->dim];
    return is_cut;
}

/* slice, narrow and their gradients: rows are counted from the first that lies here. */
static bool localize_start(local_t *l, const dt_shard_call_t *call)
{
    const dt_shard_rule_t *rule = call->rule;
    dt_shard_pieces_t p;
    dt_shard_span_t span;
    uint32_t at = 0, count = l->op->arg_count;
    while (at < rule->param_count && !(rule->params[at].kind == DT_SHARD_PARAM_ATTR &&
                                       rule->params[at].name.size == sizeof "start" - 1 &&
                                       memcmp(rule->params[at].name.at, "start", 5) == 0))
        at++;
    if (at == rule->param_count || !dt_shard_pieces(call, &p) || !lies_in_parts(l, call, &p, &span))
        return true;
    count = count < at + 2 ? at + 2 : count;
    dt_value_t *args = dt_arena_calloc(l->arena, count, sizeof *args);
    if (!args)
        return false;
    for (uint32_t i = 0; i < count; i++)
        args[i] = i < l->op->arg_count ? l->args[i] : (dt_value_t){.tag = DT_VALUE_DEFAULT};
    const dt_meta_t *piece = p.joins ? &l->inputs[call->ins[0].at] : &l->outputs[call->outs[0].at];
    bool is_narrow = strncmp(l->signature->name, "aten::narrow", strlen("aten::narrow")) == 0;
    int64_t size = piece->sizes[p.dim], first = p.at[0] - span.lo;
    first = first < 0 || size == 0 ? 0 : first;
    args[at] = (dt_value_t){.tag = DT_VALUE_INT, .number = first};
    args[at + 1] = (dt_value_t){.tag = DT_VALUE_INT, .number = is_narrow ? size : first + size};
    l->args = args;
    l->op->args = args;
    l->op->arg_count = count;
    return true;
}

/* split.Tensor is the same with a list of sizes under another name. */
static void split_by_list(local_t *l)
{
    if (strcmp(l->signature->name, "aten::split.Tensor") == 0)
        l->op->name = "aten::split_with_sizes";
    if (strcmp(l->signature->name, "aten::unsafe_split.Tensor") == 0)
        l->op->name = "aten::unsafe_split_with_sizes";
}

/* The pieces of a split along a sharded dimension: one size, or a list of them. */
static bool localize_runs(local_t *l, const dt_shard_call_t *call)
{
    dt_shard_pieces_t p;
    int dim = dt_shard_pieces(call, &p) && !p.joins ? p.dim : -1;
    bool is_equal = true;
    int64_t sizes[DT_SHARD_TENSOR_MAX];
    const dt_layout_t *layout = &l->signature->inputs[call->ins[0].at].layout;
    bool is_cut = false;
    for (unsigned j = 0; j < layout->ndim && dim >= 0; j++)
        is_cut |= layout->placements[j].kind == DT_PLACEMENT_SHARD &&
                  layout->placements[j].dim == (unsigned)dim;
    if (!is_cut || l->signature->arg_count < 2)
        return true;
    for (uint32_t j = 0; j < call->out_count; j++) {
        sizes[j] = l->outputs[call->outs[j].at].sizes[dim];
        is_equal = is_equal && sizes[j] == sizes[0];
    }
    if (l->args[1].tag != DT_VALUE_INTS && !is_equal)
        split_by_list(l);
    if (l->args[1].tag == DT_VALUE_INTS || !is_equal)
        return set_ints(l, &l->args[1], sizes, call->out_count);
    l->args[1] = (dt_value_t){.tag = DT_VALUE_INT, .number = sizes[0]};
    return true;
}

static bool localize_all(local_t *l, const dt_shard_call_t *call)
{
    if (call->rule->family == DT_SHARD_FAMILY_SQUEEZE)
        return localize_squeeze(l, call);
    if (call->rule->is_runs)
        return localize_runs(l, call);
    if (call->rule->is_rows && !localize_start(l, call))
        return false;
    for (unsigned k = 0; k < call->rule->loc_count; k++)
        if (!localize_attribute(l, call, &call->rule->locs[k]))
            return false;
    return true;
}

static bool is_whole(const dt_signature_t *s)
{
    for (uint32_t i = 0; i < s->input_count + s->output_count; i++) {
        bool is_input = i < s->input_count;
        const dt_signature_tensor_t *t = is_input ? &s->inputs[i] : &s->outputs[i - s->input_count];
        if ((is_input || t->alias != DT_ALIAS_NONE) && !dt_layout_is_replicate(&t->layout))
            return false;
    }
    return true;
}

dt_status_t dt_shard_localize(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                              const dt_shard_mesh_t *mesh, uint32_t index, dt_arena_t *arena,
                              dt_shard_local_t *ret_local, dt_error_t *err)
{
    dt_shard_call_t call;
    local_t l = {
        .rules = rules, .signature = signature, .mesh = mesh, .index = index, .arena = arena};
    bool has_memory = metas(&l) && arguments(&l);
    /* Lists run as they are: their kernels take empty tensors. */
    bool is_list = dt_shard_element_count(rules, signature) > 0;
    dt_shard_local_t local = {.is_run = true,
                              .op_count = 1,
                              .ops = l.op,
                              .inputs = l.inputs,
                              .outputs = l.outputs,
                              .fills = l.fills};
    if (has_memory && dt_shard_is_attention(signature->name)) {
        DT_TRY(dt_shard_attend_verify(signature, mesh, err));
        has_memory = dt_shard_attend_program(signature, mesh, index, arena, &local);
    } else if (has_memory && !is_list && !is_whole(signature)) {
        if (!dt_shard_bind(rules, signature, &call))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "%s: no row of the operator has shards, and there are some",
                           signature->name);
        has_memory = localize_all(&l, &call);
        local.is_run = has_memory && !is_skipped(&l, &call);
        if (local.is_run)
            has_memory = dt_shard_program(&call, mesh, index, arena, &local);
    }
    if (!has_memory)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "%s: no memory for its local form",
                       signature->name);
    *ret_local = local;
    return DT_OK;
}
