/* Propagation: on each mesh dimension the cheapest row. Rows come from rules_rows.c; here is what
 * moving costs, which of two rows is better, and what is written into layouts. */
#include "shard/rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shard/rules_internal.h"

typedef struct choice {
    bool is_found;
    uint32_t pinned; /* inputs that the program placed and that would move */
    int64_t price_bytes;
    uint32_t moved, sharded; /* inputs; results */
} choice_t;

typedef struct propagation {
    const dt_shard_call_t *call;
    const dt_signature_t *signature;
    const dt_shard_mesh_t *mesh;
    uint32_t mesh_id;
    const dt_shard_policy_t *policy;
    unsigned dim; /* of the mesh, the one that is chosen for */
    dt_shard_answer_t *answer;
    choice_t best;
    dt_shard_row_t row;                       /* of the best */
    dt_placement_t have[DT_SHARD_TENSOR_MAX]; /* of call->ins, on `dim` */
} propagation_t;

/* ---- what moving costs ---- */

static bool is_foreign(const propagation_t *p, int32_t input)
{
    return p->signature->inputs[input].layout.mesh != p->mesh_id ||
           p->signature->inputs[input].layout.ndim != p->mesh->ndim;
}

static dt_placement_t have_of(const propagation_t *p, int32_t input, unsigned dim)
{
    if (input < 0 || is_foreign(p, input))
        return dt_placement_replicate();
    return p->signature->inputs[input].layout.placements[dim];
}

/* The same pieces on `dim`? Units that all borders meet anyway are none. `outer`: placements on the
 * dimensions before. */
static bool is_same_cut(const dt_placement_t *outer, dt_placement_t have, dt_placement_t want,
                        const dt_shard_mesh_t *mesh, unsigned dim, const dt_meta_t *meta)
{
    if (dt_placement_equal(have, want))
        return true;
    if (have.kind != DT_PLACEMENT_SHARD || want.kind != DT_PLACEMENT_SHARD ||
        have.dim != want.dim || have.groups != want.groups || have.order != want.order ||
        have.dim >= meta->ndim || have.order == DT_ORDER_WINDOW)
        return false;
    int64_t pieces = (int64_t)have.groups * mesh->sizes[dim], size = meta->sizes[have.dim];
    for (unsigned j = 0; j < dim; j++)
        if (outer[j].kind == DT_PLACEMENT_SHARD && outer[j].dim == have.dim)
            pieces *= mesh->sizes[j];
    return size % (pieces * have.unit) == 0 && size % (pieces * want.unit) == 0;
}

static bool is_same_input(const propagation_t *p, int32_t input, dt_placement_t want)
{
    const dt_signature_tensor_t *tensor = &p->signature->inputs[input];
    return is_foreign(p, input)
               ? want.kind == DT_PLACEMENT_REPLICATE
               : is_same_cut(p->answer->inputs[input].placements, tensor->layout.placements[p->dim],
                             want, p->mesh, p->dim, &tensor->meta);
}

/* What of the tensor one group of devices along `dim` shares. */
static int64_t group_bytes(const propagation_t *p, int32_t input)
{
    int64_t bytes = dt_meta_bytes(&p->signature->inputs[input].meta);
    for (unsigned j = 0; j < p->mesh->ndim; j++) {
        dt_placement_t place =
            j < p->dim ? p->answer->inputs[input].placements[j] : have_of(p, input, j);
        if (j != p->dim && place.kind == DT_PLACEMENT_SHARD)
            bytes = (bytes + p->mesh->sizes[j] - 1) / p->mesh->sizes[j];
    }
    return bytes;
}

/* Bytes that one device receives. */
static int64_t move_bytes(const propagation_t *p, int64_t bytes, dt_placement_t have,
                          dt_placement_t want)
{
    int64_t k = p->mesh->sizes[p->dim], most = bytes / k * (k - 1) + bytes % k * (k - 1) / k;
    if (dt_placement_equal(have, want) || have.kind == DT_PLACEMENT_REPLICATE)
        return 0;
    if (have.kind == DT_PLACEMENT_SHARD)
        return want.kind == DT_PLACEMENT_REPLICATE ? most
               : want.kind == DT_PLACEMENT_SHARD   ? most / k
                                                   : 0;
    if (want.kind == DT_PLACEMENT_REPLICATE)
        return 2 * most;
    return most; /* sum to avg too: it moves nothing, but it rounds */
}

static bool is_written(const propagation_t *p, int32_t input)
{
    const dt_signature_t *s = p->signature;
    for (uint32_t j = 0; j < s->output_count; j++)
        if (s->outputs[j].alias == DT_ALIAS_IN_PLACE && s->outputs[j].input == (uint32_t)input)
            return true;
    return false;
}

/* ---- which row is better ---- */

/* max and min stand alone among the reductions of a layout. */
static bool is_mixed(const dt_layout_t *layout, unsigned dim, dt_placement_t place)
{
    for (unsigned j = 0; j < dim && place.kind == DT_PLACEMENT_PARTIAL; j++) {
        dt_placement_t other = layout->placements[j];
        if (other.kind == DT_PLACEMENT_PARTIAL && other.reduction != place.reduction &&
            (other.reduction > DT_REDUCTION_AVG || place.reduction > DT_REDUCTION_AVG))
            return true;
    }
    return false;
}

/* A dimension that outer mesh dimensions cut in other groups, or as a window, cannot be cut again.
 */
static bool is_torn(const dt_layout_t *layout, unsigned dim, dt_placement_t place)
{
    for (unsigned j = 0; j < dim && place.kind == DT_PLACEMENT_SHARD; j++) {
        dt_placement_t other = layout->placements[j];
        if (other.kind == DT_PLACEMENT_SHARD && other.dim == place.dim &&
            (other.groups != place.groups || other.order || place.order))
            return true;
    }
    return false;
}

static bool is_layout(const dt_layout_t *layout, unsigned dim, dt_placement_t place)
{
    return !is_mixed(layout, dim, place) && !is_torn(layout, dim, place);
}

static bool fits(const propagation_t *p, const dt_shard_row_t *row)
{
    const dt_shard_call_t *c = p->call;
    for (uint32_t i = 0; i < c->in_count; i++)
        if (c->ins[i].at >= 0 && !is_layout(&p->answer->inputs[c->ins[i].at], p->dim, row->ins[i]))
            return false;
    for (uint32_t j = 0; j < c->out_count; j++)
        if (!is_layout(&p->answer->outputs[c->outs[j].at], p->dim, row->outs[j]))
            return false;
    return true;
}

/* Does Partial pass an operator that neither joins nor shrinks? */
static bool is_unsettled(const propagation_t *p, const dt_shard_row_t *row)
{
    const dt_shard_call_t *c = p->call;
    bool narrows = c->in_count == 1 && c->out_count == 1 &&
                   dt_dtype_bytes(c->outs[0].meta->dtype) < dt_dtype_bytes(c->ins[0].meta->dtype);
    if (!(p->policy->flags & DT_SHARD_SETTLE) || (c->rule->is_join && !narrows))
        return false;
    for (uint32_t j = 0; j < c->out_count; j++)
        if (row->outs[j].kind != DT_PLACEMENT_PARTIAL)
            return false;
    for (uint32_t i = 0; i < c->in_count; i++)
        if (p->have[i].kind == DT_PLACEMENT_PARTIAL && row->ins[i].kind == DT_PLACEMENT_PARTIAL)
            return true;
    return false;
}

/* Would only this row make a Partial of what is none? It is of use beside another one of its kind,
 * or for shards of what must be whole: they are parts of a sum already. A window is not: few rows
 * of a long tensor are moved cheaper than a sum that all devices have parts of. */
static bool is_made_up(const propagation_t *p, const dt_shard_row_t *row)
{
    const dt_shard_call_t *c = p->call;
    bool is_any = false, is_beside = false, is_sum_of_shards = false, is_other = false;
    for (uint32_t i = 0; i < c->in_count && !row->label; i++) {
        if (row->ins[i].kind != DT_PLACEMENT_PARTIAL)
            continue;
        is_any = true;
        if (c->ins[i].at < 0 || is_foreign(p, c->ins[i].at))
            continue;
        if (p->have[i].kind == DT_PLACEMENT_SHARD && row->ins[i].reduction != DT_REDUCTION_SUM)
            return true;
        is_beside |= dt_placement_equal(p->have[i], row->ins[i]);
        is_other |= p->have[i].kind == DT_PLACEMENT_PARTIAL || dt_placement_is_window(p->have[i]);
        is_sum_of_shards |= p->have[i].kind == DT_PLACEMENT_SHARD;
    }
    return is_any && !is_beside && (is_other || !is_sum_of_shards);
}

/* Does each device make the rows of a table that it has? */
static bool is_by_rows(const propagation_t *p, const dt_shard_row_t *row)
{
    return row->label && row->label == p->call->rule->vocabulary &&
           dt_shard_makes_vocabulary(p->call);
}

static bool is_wanted(const propagation_t *p, const dt_shard_row_t *row)
{
    return p->policy->wanted &&
           dt_placement_equal(p->policy->wanted->placements[p->dim], row->outs[0]);
}

/* What it costs to make a result whole afterwards, where the line says that this counts: a Partial
 * one always; a Shard only if something is moved for its sake, else whoever cut it wants it so. */
static int64_t owed_bytes(const propagation_t *p, const dt_shard_row_t *row, bool is_moved)
{
    const dt_shard_call_t *c = p->call;
    int64_t owed = 0;
    for (uint32_t j = 0; j < c->out_count && c->rule->owes && !is_by_rows(p, row); j++) {
        const dt_layout_t *at = &p->answer->outputs[c->outs[j].at];
        int64_t bytes = dt_meta_bytes(c->outs[j].meta);
        for (unsigned k = 0; k < p->dim; k++)
            if (at->placements[k].kind == DT_PLACEMENT_SHARD)
                bytes = (bytes + p->mesh->sizes[k] - 1) / p->mesh->sizes[k];
        if (row->outs[j].kind == DT_PLACEMENT_PARTIAL || is_moved)
            owed += move_bytes(p, bytes, row->outs[j], dt_placement_replicate());
    }
    return p->policy->flags & DT_SHARD_PLAIN ? 0 : owed;
}

/* A tensor of another mesh must come, whatever the row; as Replicate if nothing speaks for a cut.
 */
static void price(const propagation_t *p, const dt_shard_row_t *row, choice_t *choice)
{
    const dt_shard_call_t *c = p->call;
    *choice = (choice_t){.is_found = true};
    for (uint32_t i = 0; i < c->in_count; i++) {
        int32_t input = c->ins[i].at;
        dt_placement_t want = row->ins[i];
        if (input < 0)
            continue;
        if (is_foreign(p, input)) {
            choice->price_bytes += group_bytes(p, input);
            choice->moved += want.kind != DT_PLACEMENT_REPLICATE;
            continue;
        }
        if (is_same_input(p, input, want))
            continue;
        int64_t bytes = group_bytes(p, input);
        int64_t there = move_bytes(p, bytes, p->have[i], want);
        bool is_pinned =
            p->policy->input_flags && (p->policy->input_flags[input] & DT_SHARD_PINNED);
        choice->pinned += is_pinned && there > 0;
        choice->moved++;
        choice->price_bytes +=
            there + (is_written(p, input) ? move_bytes(p, bytes, want, p->have[i]) : 0);
    }
    choice->price_bytes += owed_bytes(p, row, choice->moved > 0);
    for (uint32_t j = 0; j < c->out_count; j++)
        choice->sharded += row->outs[j].kind == DT_PLACEMENT_SHARD;
}

static bool is_better(const choice_t *a, const choice_t *b)
{
    if (!b->is_found)
        return true;
    if (a->pinned != b->pinned)
        return a->pinned < b->pinned;
    if (a->price_bytes != b->price_bytes)
        return a->price_bytes < b->price_bytes;
    if (a->moved != b->moved)
        return a->moved < b->moved;
    return a->sharded > b->sharded;
}

/* A row holds tensors that the call has not: only what is used is copied. */
static void copy_row(const dt_shard_call_t *call, const dt_shard_row_t *row, dt_shard_row_t *to)
{
    memcpy(to->ins, row->ins, call->in_count * sizeof row->ins[0]);
    memcpy(to->outs, row->outs, call->out_count * sizeof row->outs[0]);
    to->label = row->label;
    to->is_even = row->is_even;
}

static bool consider(void *arg, const dt_shard_row_t *row)
{
    propagation_t *p = arg;
    choice_t tried;
    if (row->label == DT_SHARD_LABEL_ROWS && (p->policy->flags & DT_SHARD_NO_ROWS))
        return true;
    if (is_by_rows(p, row) && !is_wanted(p, row))
        return true; /* who has the table whole would have to gather its gradient */
    if (!fits(p, row) || is_unsettled(p, row) || is_made_up(p, row))
        return true;
    price(p, row, &tried);
    if (is_better(&tried, &p->best)) {
        p->best = tried;
        copy_row(p->call, row, &p->row);
    }
    return true;
}

static void whole_row(const dt_shard_call_t *call, dt_shard_row_t *row)
{
    row->label = 0;
    row->is_even = false;
    for (uint32_t i = 0; i < call->in_count; i++)
        row->ins[i] = dt_placement_replicate();
    for (uint32_t j = 0; j < call->out_count; j++)
        row->outs[j] = dt_placement_replicate();
}

/* ---- writing it down ---- */

/* All Replicate: what is always right. */
static void replicate(propagation_t *p)
{
    const dt_signature_t *s = p->signature;
    for (uint32_t i = 0; i < s->input_count; i++) {
        const dt_signature_tensor_t *input = &s->inputs[i];
        int64_t bytes = dt_meta_bytes(&input->meta), most = 0;
        p->answer->inputs[i] = dt_layout_replicate(p->mesh_id, p->mesh->ndim);
        if (dt_layout_equal(&input->layout, &p->answer->inputs[i]))
            continue;
        for (p->dim = 0; p->dim < p->mesh->ndim && !is_foreign(p, (int32_t)i); p->dim++)
            most +=
                move_bytes(p, bytes, input->layout.placements[p->dim], dt_placement_replicate());
        p->answer->price_bytes += is_foreign(p, (int32_t)i) ? bytes : most;
    }
    for (uint32_t j = 0; j < s->output_count; j++)
        p->answer->outputs[j] = dt_layout_replicate(p->mesh_id, p->mesh->ndim);
}

/* A factory: its result lies as wanted, or like its input; the input's values do not count. */
static dt_status_t factory(propagation_t *p, dt_error_t *err)
{
    const dt_signature_t *s = p->signature;
    dt_layout_t *out = &p->answer->outputs[0];
    *out = dt_layout_replicate(p->mesh_id, p->mesh->ndim);
    for (uint32_t i = 0; i < s->input_count; i++)
        if (!is_foreign(p, (int32_t)i))
            p->answer->inputs[i] = s->inputs[i].layout;
    if (p->policy->wanted) {
        *out = *p->policy->wanted;
        out->mesh = p->mesh_id;
    } else if (s->input_count == 1 && p->call->rule->loc_count == 0) {
        *out = p->answer->inputs[0];
    }
    for (unsigned j = 0; j < out->ndim; j++)
        if (out->placements[j].kind == DT_PLACEMENT_PARTIAL)
            out->placements[j] = dt_placement_replicate();
    return dt_layout_check(out, p->mesh, &s->outputs[0].meta, err);
}

static void take_choice(propagation_t *p)
{
    const dt_shard_call_t *c = p->call;
    const dt_shard_row_t *row = &p->row;
    for (uint32_t i = 0; i < c->in_count; i++) {
        int32_t input = c->ins[i].at;
        if (input < 0)
            continue;
        bool stays = !is_foreign(p, input) && is_same_input(p, input, row->ins[i]);
        p->answer->inputs[input].placements[p->dim] = stays ? p->have[i] : row->ins[i];
    }
    for (uint32_t j = 0; j < c->out_count; j++)
        p->answer->outputs[c->outs[j].at].placements[p->dim] = row->outs[j];
    p->answer->price_bytes += p->best.price_bytes;
}

static void cut_label(dt_shard_call_t *call, const dt_shard_row_t *row, uint32_t parts)
{
    if (row->label)
        call->divisors[row->label] = row->is_even ? call->divisors[row->label] * parts : 0;
}

/* Choose for every mesh dimension, from left to right. */
static void choose(propagation_t *p, dt_shard_call_t *call)
{
    bool is_plain = p->policy->flags & DT_SHARD_PLAIN;
    dt_shard_row_t whole = {.label = 0};
    choice_t tried;
    for (p->dim = 0; p->dim < p->mesh->ndim; p->dim++) {
        for (uint32_t i = 0; i < call->in_count; i++)
            p->have[i] = have_of(p, call->ins[i].at, p->dim);
        p->best.is_found = false;
        dt_shard_rows(call, p->mesh->sizes[p->dim], p->have, is_plain, consider, p);
        whole_row(call, &whole);
        price(p, &whole, &tried);
        if (is_better(&tried, &p->best)) {
            p->best = tried;
            copy_row(call, &whole, &p->row);
        }
        take_choice(p);
        cut_label(call, &p->row, p->mesh->sizes[p->dim]);
    }
}

static void replicate_all(propagation_t *p)
{
    const dt_signature_t *s = p->signature;
    for (uint32_t i = 0; i < s->input_count; i++)
        p->answer->inputs[i] = dt_layout_replicate(p->mesh_id, p->mesh->ndim);
    for (uint32_t j = 0; j < s->output_count; j++)
        p->answer->outputs[j] = dt_layout_replicate(p->mesh_id, p->mesh->ndim);
}

/* Lists: each element is a call of its own. False: one has no row. */
static bool each(propagation_t *p, const dt_shard_rules_t *rules, dt_shard_call_t *call,
                 uint32_t count)
{
    replicate_all(p);
    for (uint32_t i = 0; i < count; i++) {
        if (!dt_shard_bind_element(rules, p->signature, i, call))
            return false;
        choose(p, call);
    }
    return true;
}

/* A result that is written in place lies where its input does. */
static void place_written(propagation_t *p)
{
    const dt_signature_t *s = p->signature;
    p->answer->moved_count = 0;
    for (uint32_t i = 0; i < s->input_count; i++)
        p->answer->moved_count += !dt_layout_equal(&s->inputs[i].layout, &p->answer->inputs[i]);
    for (uint32_t j = 0; j < s->output_count; j++)
        if (s->outputs[j].alias == DT_ALIAS_NONE)
            p->answer->outputs[j] = dt_layout_replicate(p->mesh_id, p->mesh->ndim);
}

static dt_status_t refuse_move(const propagation_t *p, dt_error_t *err)
{
    const dt_signature_t *s = p->signature;
    char from[128], to[128], shape[96];
    for (uint32_t i = 0; i < s->input_count; i++) {
        const dt_layout_t *have = &s->inputs[i].layout, *want = &p->answer->inputs[i];
        if (is_foreign(p, (int32_t)i) || dt_layout_equal(have, want))
            continue;
        dt_layout_print(have, from, sizeof from);
        dt_layout_print(want, to, sizeof to);
        dt_meta_print(&s->inputs[i].meta, shape, sizeof shape);
        return dt_fail(err, DT_ERR_INVALID, "dt", i,
                       "%s: input %" PRIu32 ", %s, lies as %s; no row of the operator takes it "
                       "without moving (nearest: %s), and the policy is strict",
                       s->name, i, shape, from, to);
    }
    return DT_OK;
}

static dt_status_t check_inputs(const propagation_t *p, dt_error_t *err)
{
    for (uint32_t i = 0; i < p->signature->input_count; i++) {
        const dt_signature_tensor_t *input = &p->signature->inputs[i];
        if (!is_foreign(p, (int32_t)i))
            DT_TRY(dt_layout_check(&input->layout, p->mesh, &input->meta, err));
    }
    return DT_OK;
}

dt_status_t dt_shard_propagate(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                               const dt_shard_mesh_t *mesh, uint32_t mesh_id,
                               const dt_shard_policy_t *policy, dt_shard_answer_t *answer,
                               dt_error_t *err)
{
    dt_shard_call_t call;
    propagation_t p = {.call = &call,
                       .signature = signature,
                       .mesh = mesh,
                       .mesh_id = mesh_id,
                       .policy = policy,
                       .answer = answer};
    DT_TRY(check_inputs(&p, err));
    answer->price_bytes = 0;
    uint32_t elements = dt_shard_element_count(rules, signature);
    answer->is_replicated =
        elements ? !each(&p, rules, &call, elements) : !dt_shard_bind(rules, signature, &call);
    if (answer->is_replicated) {
        answer->price_bytes = 0;
        replicate(&p);
    } else if (!elements) {
        replicate_all(&p);
        if (call.rule->family == DT_SHARD_FAMILY_FACT)
            DT_TRY(factory(&p, err));
        else
            choose(&p, &call);
    }
    place_written(&p);
    return policy->flags & DT_SHARD_STRICT ? refuse_move(&p, err) : DT_OK;
}

/* ---- verifying ---- */

typedef struct verification {
    const dt_shard_call_t *call;
    const dt_shard_mesh_t *mesh;
    unsigned dim;
    bool is_found;
    dt_shard_row_t row;
} verification_t;

static bool is_same(const verification_t *v, const dt_signature_tensor_t *tensor,
                    dt_placement_t want)
{
    const dt_placement_t *at = tensor->layout.placements;
    return is_same_cut(at, at[v->dim], want, v->mesh, v->dim, &tensor->meta);
}

static bool is_row(const verification_t *v, const dt_shard_row_t *row)
{
    const dt_shard_call_t *c = v->call;
    for (uint32_t i = 0; i < c->in_count; i++) {
        const dt_signature_tensor_t *t = &c->signature->inputs[c->ins[i].at < 0 ? 0 : c->ins[i].at];
        if (c->ins[i].at >= 0 && !is_same(v, t, row->ins[i]))
            return false;
    }
    for (uint32_t j = 0; j < c->out_count; j++) {
        const dt_signature_tensor_t *t = &c->signature->outputs[c->outs[j].at];
        if (!is_same(v, t, row->outs[j]))
            return false;
    }
    return true;
}

static bool compare(void *arg, const dt_shard_row_t *row)
{
    verification_t *v = arg;
    v->is_found = is_row(v, row);
    if (v->is_found) {
        v->row.label = row->label;
        v->row.is_even = row->is_even;
    }
    return !v->is_found;
}

static bool is_whole(const dt_signature_t *s)
{
    for (uint32_t i = 0; i < s->input_count; i++)
        if (!dt_layout_is_replicate(&s->inputs[i].layout))
            return false;
    for (uint32_t j = 0; j < s->output_count; j++)
        if (s->outputs[j].alias != DT_ALIAS_NONE && !dt_layout_is_replicate(&s->outputs[j].layout))
            return false;
    return true;
}

static bool has_partial_output(const dt_signature_t *s)
{
    for (uint32_t j = 0; j < s->output_count; j++)
        for (unsigned k = 0; k < s->outputs[j].layout.ndim; k++)
            if (s->outputs[j].layout.placements[k].kind == DT_PLACEMENT_PARTIAL)
                return true;
    return false;
}

/* A sum of what nobody has written yet is as good as any other. */
static bool is_without_value(const dt_signature_t *s)
{
    return strcmp(s->name, "aten::empty_strided") == 0;
}

/* Is there a row on every mesh dimension for what the call is bound to? *ret_labels, if not NULL:
 * by which label (0: by none), -1: all Replicate. */
static bool is_bound_row(dt_shard_call_t *call, const dt_shard_mesh_t *mesh, int *ret_labels)
{
    verification_t v = {.call = call, .mesh = mesh};
    dt_placement_t have[DT_SHARD_TENSOR_MAX];
    for (v.dim = 0; v.dim < mesh->ndim; v.dim++) {
        for (uint32_t i = 0; i < call->in_count; i++)
            have[i] = call->ins[i].at < 0
                          ? dt_placement_replicate()
                          : call->signature->inputs[call->ins[i].at].layout.placements[v.dim];
        v.is_found = false;
        dt_shard_rows(call, mesh->sizes[v.dim], have, false, compare, &v);
        if (!v.is_found) {
            whole_row(call, &v.row);
            if (!is_row(&v, &v.row))
                return false;
        }
        if (ret_labels)
            ret_labels[v.dim] = v.is_found ? v.row.label : -1;
        cut_label(call, &v.row, mesh->sizes[v.dim]);
    }
    return true;
}

static bool is_exact(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                     const dt_shard_mesh_t *mesh)
{
    dt_shard_call_t call;
    uint32_t elements = dt_shard_element_count(rules, signature);
    if (is_whole(signature))
        return true;
    for (uint32_t i = 0; i < elements; i++)
        if (!dt_shard_bind_element(rules, signature, i, &call) || !is_bound_row(&call, mesh, NULL))
            return false;
    if (elements)
        return true;
    if (!dt_shard_bind(rules, signature, &call))
        return false;
    if (call.rule->family == DT_SHARD_FAMILY_FACT)
        return !has_partial_output(signature) || is_without_value(signature);
    return is_bound_row(&call, mesh, NULL);
}

/* Say what differs: what propagation makes of the inputs. */
static dt_status_t refuse(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                          const dt_shard_mesh_t *mesh, dt_error_t *err)
{
    dt_layout_t inputs[DT_SHARD_TENSOR_MAX], outputs[DT_SHARD_TENSOR_MAX];
    dt_shard_answer_t answer = {.inputs = inputs, .outputs = outputs};
    dt_shard_policy_t policy = {.flags = 0};
    uint32_t mesh_id = signature->input_count ? signature->inputs[0].layout.mesh : 0;
    char given[160], derived[160];
    if (signature->input_count > DT_SHARD_TENSOR_MAX ||
        signature->output_count > DT_SHARD_TENSOR_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "%s: more tensors than rules look at, and "
                       "not all Replicate",
                       signature->name);
    DT_TRY(dt_shard_propagate(rules, signature, mesh, mesh_id, &policy, &answer, err));
    for (uint32_t i = 0; i < signature->input_count + signature->output_count; i++) {
        bool is_input = i < signature->input_count;
        uint32_t k = is_input ? i : i - signature->input_count;
        const dt_layout_t *have =
            is_input ? &signature->inputs[k].layout : &signature->outputs[k].layout;
        const dt_layout_t *want = is_input ? &inputs[k] : &outputs[k];
        if (dt_layout_equal(have, want))
            continue;
        dt_layout_print(have, given, sizeof given);
        dt_layout_print(want, derived, sizeof derived);
        return dt_fail(err, DT_ERR_INVALID, "dt", i,
                       "%s: %s %" PRIu32 " lies as %s in the signature, as %s by the rules",
                       signature->name, is_input ? "input" : "output", k, given, derived);
    }
    return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: these layouts are no row of the operator",
                   signature->name);
}

dt_status_t dt_shard_verify(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                            const dt_shard_mesh_t *mesh, dt_error_t *err)
{
    for (uint32_t i = 0; i < signature->input_count; i++)
        DT_TRY(
            dt_layout_check(&signature->inputs[i].layout, mesh, &signature->inputs[i].meta, err));
    for (uint32_t j = 0; j < signature->output_count; j++)
        if (signature->outputs[j].alias != DT_ALIAS_NONE)
            DT_TRY(dt_layout_check(&signature->outputs[j].layout, mesh, &signature->outputs[j].meta,
                                   err));
    if (dt_shard_is_attention(signature->name))
        return dt_shard_attend_verify(signature, mesh, err);
    return is_exact(rules, signature, mesh) ? DT_OK : refuse(rules, signature, mesh, err);
}

bool dt_shard_row_labels(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                         const dt_shard_mesh_t *mesh, int *ret_labels)
{
    dt_shard_call_t call;
    if (dt_shard_element_count(rules, signature) || !dt_shard_bind(rules, signature, &call) ||
        call.rule->family == DT_SHARD_FAMILY_FACT)
        return false;
    return is_bound_row(&call, mesh, ret_labels);
}
