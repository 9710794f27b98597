/* Rows of one mesh dimension: a row for each label, then those in which Partial passes. */
#include <string.h>

#include "shard/rules_internal.h"

typedef struct walk {
    const dt_shard_call_t *call;
    uint32_t parts; /* size of the mesh dimension */
    const dt_placement_t *have;
    bool is_plain; /* only plain rows */
    bool (*visit)(void *arg, const dt_shard_row_t *row);
    void *arg;
    bool is_stopped;
    dt_shard_row_t row;
} walk_t;

static int find_label(const dt_shard_tensor_t *tensor, uint8_t label)
{
    const uint8_t *at = memchr(tensor->labels, label, tensor->meta->ndim);
    return at ? (int)(at - tensor->labels) : -1;
}

static bool has_twice(const dt_shard_tensor_t *tensor, uint8_t label)
{
    int first = find_label(tensor, label);
    return first >= 0 &&
           memchr(tensor->labels + first + 1, label, (size_t)(tensor->meta->ndim - first - 1));
}

/* Give out= arguments the placements of their results; see that what is written stays. */
static bool keeps_written(walk_t *w)
{
    const dt_shard_call_t *c = w->call;
    if (c->is_in_place && c->out_count && c->in_count &&
        !dt_placement_equal(w->row.ins[0], w->row.outs[0]))
        return false;
    for (uint32_t j = 0; j < c->out_count; j++) {
        const dt_signature_tensor_t *output = &c->signature->outputs[c->outs[j].at];
        if (output->alias != DT_ALIAS_IN_PLACE || c->rule->is_meta)
            continue;
        for (uint32_t i = 0; i < c->in_count; i++) {
            if (c->ins[i].at != (int32_t)output->input)
                continue;
            if (i >= c->out_first)
                w->row.ins[i] = w->row.outs[j];
            else if (!dt_placement_equal(w->row.ins[i], w->row.outs[j]))
                return false;
        }
    }
    return true;
}

static void give(walk_t *w)
{
    if (!w->is_stopped && keeps_written(w))
        w->is_stopped = !w->visit(w->arg, &w->row);
}

/* ---- a label ---- */

typedef struct cut {
    uint8_t label;
    uint32_t unit, groups; /* of dimensions of `size` */
    uint8_t order;         /* DT_ORDER_WINDOW, which says what these are, or 0 */
    int64_t size;
    bool is_even;
} cut_t;

/* Is every piece of the dimension the same? */
static bool is_even(const walk_t *w, const cut_t *cut, int64_t size, int64_t unit)
{
    if (cut->order)
        return false;
    int64_t pieces = w->call->divisors[cut->label] * w->parts * unit * cut->groups;
    return pieces > 0 && size % pieces == 0;
}

/* The placement of a dimension of `size` whose borders are those of the cut. False: there is none.
 */
static bool place(const walk_t *w, const cut_t *cut, int dim, int64_t size, dt_placement_t *ret)
{
    uint64_t unit = cut->unit;
    *ret = dt_placement_shard((unsigned)dim);
    if (cut->order) {
        ret->order = cut->order;
        ret->unit = cut->unit;
        ret->groups = cut->groups;
        return size == cut->size && w->call->divisors[cut->label] == 1;
    }
    if (size != cut->size && !(cut->is_even && cut->unit == 1)) {
        if (w->is_plain || cut->groups != 1 || size == 0 || cut->size == 0)
            return false;
        if (size > cut->size && size % cut->size == 0)
            unit *= (uint64_t)(size / cut->size);
        else if (cut->size % size == 0 && unit % (uint64_t)(cut->size / size) == 0)
            unit /= (uint64_t)(cut->size / size);
        else
            return false;
        if (unit > UINT32_MAX)
            return false;
    }
    ret->unit = is_even(w, cut, size, (int64_t)unit) ? 1 : (uint32_t)unit;
    ret->groups = cut->groups;
    return true;
}

/* Sizes of a label: those of inputs must agree. False: they do not, or no kernel takes them. */
static bool measure(const walk_t *w, cut_t *cut)
{
    const dt_shard_call_t *c = w->call;
    bool may_differ = c->rule->grouped == cut->label;
    cut->is_even = true;
    if (w->is_plain && (c->rule->vocabulary == cut->label || c->is_scaled))
        return false;
    if (c->rule->vocabulary == cut->label && (cut->groups > 1 || cut->order))
        return false;
    if (c->rule->vocabulary == cut->label &&
        dt_shard_attr(c, "padding_idx").kind == DT_SHARD_ATTR_UNKNOWN)
        return false; /* a row that is counted from the shard's start */
    if (c->rule->family == DT_SHARD_FAMILY_CONV && cut->order)
        return false;
    for (uint32_t i = 0; i < c->in_count + c->out_count; i++) {
        const dt_shard_tensor_t *t = i < c->in_count ? &c->ins[i] : &c->outs[i - c->in_count];
        int d = find_label(t, cut->label);
        if (has_twice(t, cut->label))
            return false;
        if (d < 0)
            continue;
        int64_t size = t->meta->sizes[d];
        if (cut->size < 0)
            cut->size = size;
        if (i < c->in_count && size != cut->size && (w->is_plain || !may_differ))
            return false;
        cut->is_even = cut->is_even && is_even(w, cut, size, 1);
    }
    if (c->rule->family == DT_SHARD_FAMILY_CONV) { /* no kernel for zero channels */
        int64_t unit = cut->unit, others = c->divisors[cut->label] * cut->groups;
        int64_t units = others ? (cut->size / others + unit - 1) / unit : 0;
        if ((w->parts - 1) * ((units + w->parts - 1) / w->parts) >= units)
            return false;
    }
    return true;
}

/* Does LibTorch add a term to a product of no elements? Not to a vector if the term is broadcast to
 * it, nor to integers by a factor that is none. */
static bool adds_to_nothing(const walk_t *w, const cut_t *cut, uint32_t k)
{
    const dt_shard_call_t *c = w->call;
    int64_t chunk = (cut->size + w->parts - 1) / w->parts;
    bool is_cut_once =
        cut->unit == 1 && cut->groups == 1 && !cut->order && c->divisors[cut->label] == 1;
    bool is_any_empty = !is_even(w, cut, cut->size, cut->unit) &&
                        (!is_cut_once || chunk * (w->parts - 1) >= cut->size);
    const dt_meta_t *term = c->ins[k].meta, *sum = c->outs[0].meta;
    bool is_same = term->ndim == 1 && term->sizes[0] == sum->sizes[0];
    return !is_any_empty || (c->outs[0].kind != 'i' && (sum->ndim != 1 || is_same));
}

/* Additive terms that the label does not touch arrive as Partial(sum). */
static bool settle_terms(walk_t *w, const cut_t *cut)
{
    const dt_shard_call_t *c = w->call;
    uint32_t touched = 0, all = 0;
    for (uint32_t i = 0; i < c->out_first; i++) {
        all |= 1u << c->ins[i].term;
        touched |= w->row.ins[i].kind != DT_PLACEMENT_REPLICATE ? 1u << c->ins[i].term : 0;
    }
    for (uint32_t term = 0; all >> term; term++) {
        uint32_t k = 0;
        if (!(all & ~touched & 1u << term))
            continue;
        while (k < c->out_first && (c->ins[k].term != term || !c->ins[k].is_linear))
            k++;
        if (c->reduce != DT_SHARD_REDUCE_SUM || k == c->out_first || c->ins[k].at < 0 ||
            !adds_to_nothing(w, cut, k))
            return false;
        w->row.ins[k] = dt_placement_partial(DT_REDUCTION_SUM);
    }
    return true;
}

static bool depends(const walk_t *w, const dt_shard_tensor_t *out)
{
    const dt_shard_call_t *c = w->call;
    for (uint32_t i = 0; i < c->out_first; i++)
        if ((out->deps >> c->ins[i].slot & 1) && w->row.ins[i].kind != DT_PLACEMENT_REPLICATE)
            return true;
    return !out->has_deps;
}

static bool place_output(walk_t *w, const cut_t *cut, uint32_t j)
{
    const dt_shard_tensor_t *out = &w->call->outs[j];
    int d = find_label(out, cut->label);
    if (d >= 0)
        return place(w, cut, d, out->meta->sizes[d], &w->row.outs[j]);
    w->row.outs[j] = dt_placement_replicate();
    if (!depends(w, out))
        return true;
    unsigned reduce = w->call->reduce;
    if (w->call->rule->vocabulary == cut->label)
        reduce = DT_SHARD_REDUCE_SUM; /* out of range gives 0 */
    if (reduce == DT_SHARD_REDUCE_NONE)
        return false;
    if (reduce == DT_SHARD_REDUCE_AVG && !is_even(w, cut, cut->size, cut->unit)) {
        if (w->is_plain || !dt_shard_has_mean(w->call))
            return false;
        reduce = DT_SHARD_REDUCE_SUM;
    }
    w->row.outs[j] =
        dt_placement_partial(DT_REDUCTION_SUM + reduce - (unsigned)DT_SHARD_REDUCE_SUM);
    return (j > 0 && out->has_deps) || settle_terms(w, cut);
}

static void label_row(walk_t *w, cut_t cut)
{
    const dt_shard_call_t *c = w->call;
    if (!measure(w, &cut))
        return;
    for (uint32_t i = 0; i < c->in_count; i++) {
        int d = find_label(&c->ins[i], cut.label);
        w->row.ins[i] = dt_placement_replicate();
        if (d >= 0 && !place(w, &cut, d, c->ins[i].meta->sizes[d], &w->row.ins[i]))
            return;
    }
    for (uint32_t j = 0; j < c->out_count; j++)
        if (!place_output(w, &cut, j))
            return;
    w->row.label = cut.label;
    w->row.is_even = is_even(w, &cut, cut.size, cut.unit);
    give(w);
}

/* The label's row as torch.chunk cuts, and as each input that has it is cut already. */
static void label_rows(walk_t *w, uint8_t label)
{
    const dt_shard_call_t *c = w->call;
    cut_t tried[4] = {{.label = label, .unit = 1, .groups = 1, .size = -1}};
    unsigned count = 1;
    label_row(w, tried[0]);
    for (uint32_t i = 0; i < c->in_count && w->have && !w->is_plain; i++) {
        dt_placement_t p = w->have[i];
        uint8_t order = dt_placement_is_window(p) ? p.order : 0;
        unsigned k = 0;
        if (p.kind != DT_PLACEMENT_SHARD || p.dim >= c->ins[i].meta->ndim ||
            c->ins[i].labels[p.dim] != label)
            continue;
        while (k < count &&
               (tried[k].unit != p.unit || tried[k].groups != p.groups || tried[k].order != order))
            k++;
        if (k < count || count == 4)
            continue;
        tried[count] = (cut_t){.label = label,
                               .unit = p.unit,
                               .groups = p.groups,
                               .order = order,
                               .size = c->ins[i].meta->sizes[p.dim]};
        label_row(w, tried[count++]);
    }
}

/* ---- Partial ---- */

static bool is_possible(char kind, unsigned reduction, bool is_input)
{
    if (kind == 'b' || (kind == 'i' && reduction == DT_REDUCTION_AVG))
        return false;
    return !is_input || kind != 'c' || reduction <= DT_REDUCTION_AVG;
}

/* Inputs of `who` arrive as Partial(a), the others Replicate; all results are Partial(b). */
static void partial_row(walk_t *w, const uint8_t *who, unsigned a, unsigned b)
{
    const dt_shard_call_t *c = w->call;
    for (uint32_t i = 0; i < c->in_count; i++) {
        w->row.ins[i] = who[i] ? dt_placement_partial(a) : dt_placement_replicate();
        if (who[i] && (c->ins[i].at < 0 || !is_possible(c->ins[i].kind, a, true)))
            return;
    }
    for (uint32_t j = 0; j < c->out_count; j++) {
        w->row.outs[j] = dt_placement_partial(b);
        if (!is_possible(c->outs[j].kind, b, false))
            return;
    }
    w->row.label = 0;
    w->row.is_even = false;
    give(w);
}

/* One factor of each additive term; with `is_average` a term may be left out, but not all. */
static void multilinear_rows(walk_t *w, bool is_average)
{
    const dt_shard_call_t *c = w->call;
    uint32_t pick[8] = {0}, terms = 0; /* pick: place of the factor; out_first: none */
    uint8_t who[DT_SHARD_TENSOR_MAX] = {0};
    unsigned reduction = is_average ? DT_REDUCTION_AVG : DT_REDUCTION_SUM;
    uint32_t last = c->out_first + is_average;
    for (uint32_t i = 0; i < c->out_first; i++)
        terms = c->ins[i].term + 1u > terms ? c->ins[i].term + 1u : terms;
    if (terms == 0 || terms > 8)
        return;
    for (uint32_t t = 0; t < terms;) {
        bool is_right = true, is_any = false;
        memset(who, 0, sizeof who);
        for (uint32_t k = 0; k < terms; k++) {
            uint32_t i = pick[k];
            bool is_in = i < c->out_first;
            is_right = is_right && (!is_in || (c->ins[i].term == k && c->ins[i].is_linear));
            who[is_in ? i : DT_SHARD_TENSOR_MAX - 1] |= is_in;
            is_any = is_any || is_in;
        }
        if (is_right && is_any)
            partial_row(w, who, reduction, reduction);
        for (t = 0; t < terms && ++pick[t] == last; t++)
            pick[t] = 0;
    }
}

static bool all_kinds(const dt_shard_call_t *c, const char *allowed)
{
    for (uint32_t i = 0; i < c->in_count + c->out_count; i++)
        if (!strchr(allowed, i < c->in_count ? c->ins[i].kind : c->outs[i - c->in_count].kind))
            return false;
    return true;
}

static void class_rows(walk_t *w, char code, const dt_shard_class_t *class)
{
    const dt_shard_call_t *c = w->call;
    uint8_t who[DT_SHARD_TENSOR_MAX] = {0};
    bool is_any = false;
    for (uint32_t i = 0; i < c->out_first; i++) {
        who[i] = (class->is_all && !c->ins[i].is_ignored) || (i < 16 && (class->args >> i & 1));
        is_any = is_any || who[i];
    }
    if (!is_any || (code == 'D' && !all_kinds(c, "f"))) /* the least integer has no negative */
        return;
    if (code == 'L' || code == 'J')
        partial_row(w, who, DT_REDUCTION_SUM, DT_REDUCTION_SUM);
    if (code == 'L' || code == 'J' || code == 'A')
        partial_row(w, who, DT_REDUCTION_AVG, DT_REDUCTION_AVG);
    if (code == 'I' || code == 'D')
        partial_row(w, who, DT_REDUCTION_MAX, code == 'I' ? DT_REDUCTION_MAX : DT_REDUCTION_MIN);
    if (code == 'I' || code == 'D')
        partial_row(w, who, DT_REDUCTION_MIN, code == 'I' ? DT_REDUCTION_MIN : DT_REDUCTION_MAX);
    if (code == 'X')
        partial_row(w, who, DT_REDUCTION_MAX, DT_REDUCTION_MAX);
    if (code == 'N')
        partial_row(w, who, DT_REDUCTION_MIN, DT_REDUCTION_MIN);
}

static void simple(walk_t *w, char code, uint16_t args)
{
    dt_shard_class_t class = {.code = code, .args = args};
    class_rows(w, code, &class);
}

/* Inputs and results of one kind each? */
static bool same_kinds(const dt_shard_call_t *c)
{
    for (uint32_t i = 0; i < c->in_count && i < c->out_count; i++)
        if (c->ins[i].kind != c->outs[i].kind)
            return false;
    return c->in_count == c->out_count;
}

/* add(x, y, alpha), sub(x, y, alpha): the sign of y's factor decides about max and min. */
static void sum_rows(walk_t *w, bool is_sub)
{
    const dt_shard_call_t *c = w->call;
    dt_shard_attr_t alpha = dt_shard_attr(c, "alpha");
    bool is_known = alpha.kind == DT_SHARD_ATTR_NONE || alpha.kind == DT_SHARD_ATTR_NUMBER;
    bool rises = (alpha.kind == DT_SHARD_ATTR_NONE || alpha.real >= 0) != is_sub;
    if (c->slots[0].count == 1 && c->slots[1].count == 1)
        simple(w, 'J', 3);
    else if (c->slots[0].count == 0) /* the first is left out: what is there has another sign */
        return;
    simple(w, 'A', 1);
    if (c->in_count > 1)
        simple(w, 'A', 2);
    if (!all_kinds(c, "f")) /* the least integer less one is the largest */
        return;
    simple(w, 'I', 1);
    if (c->in_count > 1 && is_known)
        simple(w, rises ? 'I' : 'D', 2);
}

static void scale_rows(walk_t *w)
{
    dt_shard_attr_t other = dt_shard_attr(w->call, "other");
    simple(w, 'L', 1);
    if (!all_kinds(w->call, "f"))
        return;
    if (other.kind == DT_SHARD_ATTR_NUMBER && other.real > 0)
        simple(w, 'I', 1);
    if (other.kind == DT_SHARD_ATTR_NUMBER && other.real < 0)
        simple(w, 'D', 1);
}

static void cast_rows(walk_t *w)
{
    const dt_shard_call_t *c = w->call;
    if (all_kinds(c, "f")) {
        simple(w, 'L', 1);
        simple(w, 'I', 1);
    } else if (all_kinds(c, "fc") && same_kinds(c)) {
        simple(w, 'L', 1);
    }
}

/* Written into a tensor of another type: parts may not fit there that add up to what does. */
static bool is_cast(const dt_shard_call_t *c)
{
    return c->rule->is_in_place && c->in_count == 2 &&
           c->ins[0].meta->dtype != c->ins[1].meta->dtype;
}

/* The result does not depend on values: a Partial input is as good as any. */
static void shape_rows(walk_t *w)
{
    const dt_shard_call_t *c = w->call;
    if (!w->have || c->in_count == 0 || w->have[0].kind != DT_PLACEMENT_PARTIAL)
        return;
    for (uint32_t i = 0; i < c->in_count; i++)
        w->row.ins[i] = i == 0 ? w->have[0] : dt_placement_replicate();
    for (uint32_t j = 0; j < c->out_count; j++)
        w->row.outs[j] = dt_placement_replicate();
    w->row.label = 0;
    give(w);
}

/* ---- runs: the q, k and v of a fused weight ---- */

static dt_placement_t shard_as(unsigned dim, uint32_t unit, uint32_t groups)
{
    dt_placement_t p = dt_placement_shard(dim);
    p.unit = unit;
    p.groups = groups;
    return p;
}

static void run_row(walk_t *w, dt_placement_t in, dt_placement_t out)
{
    for (uint32_t i = 0; i < w->call->in_count; i++)
        w->row.ins[i] = in;
    for (uint32_t j = 0; j < w->call->out_count; j++)
        w->row.outs[j] = out;
    w->row.label = 0;
    w->row.is_even = false;
    give(w);
}

/* A dimension of g runs split into these, or g pieces joined into runs. */
static void split_rows(walk_t *w)
{
    const dt_shard_call_t *c = w->call;
    int dim = dt_shard_run_dim(c);
    uint32_t runs = c->in_count > c->out_count ? c->in_count : c->out_count;
    bool joins = c->out_count == 1;
    for (uint32_t i = 0; i < c->in_count && dim >= 0; i++) {
        dt_placement_t p = w->have[i];
        if (p.kind != DT_PLACEMENT_SHARD || p.dim != dim || p.groups != (joins ? 1 : runs) ||
            p.order)
            continue;
        run_row(w, p, shard_as(p.dim, p.unit, joins ? runs : 1));
        return;
    }
}

/* (g * n) seen as (g, n), or the other way. */
static void view_rows(walk_t *w)
{
    const dt_meta_t *in = w->call->ins[0].meta, *out = w->call->outs[0].meta;
    dt_placement_t p = w->have[0];
    if (p.kind != DT_PLACEMENT_SHARD || p.dim >= in->ndim || p.order)
        return;
    int64_t before = 1, size = in->sizes[p.dim];
    bool joins = p.groups == 1 && p.dim > 0;
    for (unsigned d = 0; d + joins < p.dim; d++)
        before *= in->sizes[d];
    unsigned d = 0;
    while (d < out->ndim && before > 1 && before % out->sizes[d] == 0)
        before /= out->sizes[d++];
    if (before != 1 || size == 0)
        return;
    if (p.groups > 1 && d + 1 < out->ndim && out->sizes[d] == p.groups &&
        out->sizes[d + 1] * p.groups == size)
        run_row(w, p, shard_as(d + 1, p.unit, 1));
    int64_t runs = joins ? in->sizes[p.dim - 1] : 1;
    if (runs > 1 && d < out->ndim && out->sizes[d] == runs * size)
        run_row(w, p, shard_as(d, p.unit, (uint32_t)runs));
}

/* ---- rows of a table that only the result has ---- */

bool dt_shard_makes_vocabulary(const dt_shard_call_t *call)
{
    uint8_t label = call->rule->vocabulary;
    if (!label || call->out_count == 0 || find_label(&call->outs[0], label) < 0)
        return false;
    for (uint32_t i = 0; i < call->in_count; i++)
        if (find_label(&call->ins[i], label) >= 0)
            return false;
    return true;
}

/* ---- rows of a dimension: each stays where it is ---- */

/* The whole lies as `whole` says; so does each piece of it. */
static void piece_row(walk_t *w, const dt_shard_pieces_t *p, dt_placement_t whole)
{
    bool is_window = dt_placement_is_window(whole);
    int64_t of = is_window ? whole.unit : p->size, first = is_window ? whole.groups - 1 : 0;
    dt_placement_t *pieces = p->joins ? w->row.ins : w->row.outs;
    *(p->joins ? &w->row.outs[0] : &w->row.ins[0]) = whole;
    for (uint32_t i = 0; i < p->count; i++) {
        pieces[i] = dt_placement_replicate();
        if (!p->pieces[i].is_ignored &&
            !dt_placement_window((unsigned)p->dim, p->pieces[i].meta->sizes[p->dim], of,
                                 first + p->at[i], w->parts, &pieces[i]))
            return;
    }
    w->row.label = DT_SHARD_LABEL_ROWS;
    w->row.is_even = false;
    give(w);
}

/* Cut as torch.chunk cuts the whole, as it is cut, and as one of its pieces is. */
static void piece_rows(walk_t *w)
{
    dt_shard_pieces_t p;
    dt_placement_t whole = dt_placement_replicate();
    if (w->call->divisors[DT_SHARD_LABEL_ROWS] != 1 || !dt_shard_pieces(w->call, &p))
        return;
    piece_row(w, &p, dt_placement_shard((unsigned)p.dim));
    for (uint32_t i = 0; i < (p.joins ? p.count : 1); i++) {
        dt_placement_t have = w->have[i];
        if (!dt_placement_is_window(have) || have.dim != p.dim || p.pieces[i].is_ignored)
            continue;
        int64_t first = (int64_t)have.groups - 1 - (p.joins ? p.at[i] : 0);
        if (p.joins && (first < 0 || first + p.size > have.unit ||
                        !dt_placement_window(have.dim, p.size, have.unit, first, w->parts, &whole)))
            continue;
        piece_row(w, &p, p.joins ? whole : have);
    }
}

void dt_shard_rows(const dt_shard_call_t *call, uint32_t parts, const dt_placement_t *have,
                   bool is_plain, bool (*visit)(void *arg, const dt_shard_row_t *row), void *arg)
{
    walk_t w = {.call = call,
                .parts = parts,
                .have = have,
                .is_plain = is_plain,
                .visit = visit,
                .arg = arg};
    uint8_t seen[256] = {0};
    for (uint32_t i = 0; i < call->in_count && !w.is_stopped; i++)
        for (unsigned d = 0; d < call->ins[i].meta->ndim && !w.is_stopped; d++) {
            uint8_t label = call->ins[i].labels[d];
            if (label && !seen[label])
                label_rows(&w, label);
            seen[label] = 1;
        }
    if (dt_shard_makes_vocabulary(call) && have && !is_plain)
        label_rows(&w, call->rule->vocabulary);
    if (call->rule->is_runs && have && !is_plain)
        split_rows(&w);
    if (call->rule->is_rows && have && !is_plain)
        piece_rows(&w);
    if (call->rule->family == DT_SHARD_FAMILY_VIEW && have && !is_plain)
        view_rows(&w);
    if ((call->rule->is_real && !all_kinds(call, "fc")) || is_cast(call))
        return;
    for (unsigned k = 0; k < call->rule->class_count && !w.is_stopped; k++) {
        const dt_shard_class_t *class = &call->rule->classes[k];
        if (class->code == DT_SHARD_CLASS_MM) {
            multilinear_rows(&w, false);
            multilinear_rows(&w, true);
        } else if (class->code == DT_SHARD_CLASS_ADD || class->code == DT_SHARD_CLASS_SUB) {
            sum_rows(&w, class->code == DT_SHARD_CLASS_SUB);
        } else if (class->code == DT_SHARD_CLASS_SCALE) {
            scale_rows(&w);
        } else if (class->code == DT_SHARD_CLASS_SHIFT) {
            if (all_kinds(call, "f"))
                simple(&w, 'I', 1);
            simple(&w, 'A', 1);
        } else if (class->code == DT_SHARD_CLASS_CAST) {
            cast_rows(&w);
        } else if (class->code == 'Z') {
            shape_rows(&w);
        } else {
            class_rows(&w, class->code, class);
        }
    }
}
