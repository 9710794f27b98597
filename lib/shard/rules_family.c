/* Families whose labels follow from sizes: views, index. */
#include <string.h>

#include "shard/rules_internal.h"

static bool is_one_to_one(const dt_shard_call_t *call)
{
    return call->in_count == 1 && call->out_count == 1;
}

/* Groups of dimensions with equal products; the first of a group passes. */
static bool bind_view(dt_shard_call_t *call)
{
    dt_shard_tensor_t *in = &call->ins[0], *out = &call->outs[0];
    const dt_meta_t *a = in->meta, *b = out->meta;
    int64_t numel = dt_meta_numel(a);
    uint8_t label = 'a';
    unsigned i = 0, j = 0;
    if (numel == 0 || numel != dt_meta_numel(b))
        return false;
    while (i < a->ndim || j < b->ndim) {
        unsigned i0 = i, j0 = j;
        int64_t pa = i < a->ndim ? a->sizes[i++] : 1, pb = j < b->ndim ? b->sizes[j++] : 1;
        while (pa != pb)
            if (pa < pb)
                pa *= a->sizes[i++];
            else
                pb *= b->sizes[j++];
        while (i0 < i && a->sizes[i0] == 1)
            i0++;
        while (j0 < j && b->sizes[j0] == 1)
            j0++;
        if (i0 < i && j0 < j)
            in->labels[i0] = out->labels[j0] = label++;
    }
    return true;
}

static bool bind_expand(dt_shard_call_t *call)
{
    dt_shard_tensor_t *in = &call->ins[0], *out = &call->outs[0];
    int more = out->meta->ndim - in->meta->ndim;
    if (more < 0)
        return false;
    for (int d = more; d < out->meta->ndim; d++)
        if (in->meta->sizes[d - more] == out->meta->sizes[d])
            in->labels[d - more] = out->labels[d] = (uint8_t)('a' + d);
    return true;
}

static bool wrap(int64_t *dim, int ndim)
{
    if (*dim < -ndim || *dim >= ndim)
        return false;
    *dim += *dim < 0 ? ndim : 0;
    return true;
}

static bool bind_perm(dt_shard_call_t *call)
{
    dt_shard_tensor_t *in = &call->ins[0], *out = &call->outs[0];
    int ndim = in->meta->ndim;
    dt_shard_attr_t dims = dt_shard_attr(call, "dims");
    dt_shard_attr_t a = dt_shard_attr(call, "dim0"), b = dt_shard_attr(call, "dim1");
    int64_t order[DT_META_DIM_MAX], x = 0, y = ndim - 1;
    if (out->meta->ndim != ndim || a.kind == DT_SHARD_ATTR_UNKNOWN ||
        b.kind == DT_SHARD_ATTR_UNKNOWN || dims.kind == DT_SHARD_ATTR_UNKNOWN ||
        (dims.kind == DT_SHARD_ATTR_LIST && dims.count != (uint32_t)ndim))
        return false;
    for (int d = 0; d < ndim; d++) {
        order[d] = dims.kind == DT_SHARD_ATTR_LIST ? dims.ints[d] : d;
        if (!wrap(&order[d], ndim))
            return false;
        in->labels[d] = (uint8_t)('a' + d);
    }
    if (dims.kind != DT_SHARD_ATTR_LIST && ndim > 1) {
        x = a.kind == DT_SHARD_ATTR_NUMBER ? a.number : x;
        y = b.kind == DT_SHARD_ATTR_NUMBER ? b.number : y;
        if (!wrap(&x, ndim) || !wrap(&y, ndim))
            return false;
        int64_t kept = order[x];
        order[x] = order[y];
        order[y] = kept;
    }
    for (int d = 0; d < ndim; d++)
        out->labels[d] = in->labels[order[d]];
    return true;
}

uint32_t dt_shard_squeezed(const dt_shard_call_t *call)
{
    const dt_meta_t *meta = call->ins[0].meta;
    dt_shard_attr_t dim = dt_shard_attr(call, "dim");
    uint32_t named = 0, gone = 0;
    if (dim.kind == DT_SHARD_ATTR_NONE)
        named = (1u << meta->ndim) - 1;
    for (uint32_t i = 0; i < (dim.kind == DT_SHARD_ATTR_LIST ? dim.count : 1); i++) {
        int64_t d = dim.kind == DT_SHARD_ATTR_LIST ? dim.ints[i] : dim.number;
        if (dim.kind != DT_SHARD_ATTR_NONE && wrap(&d, meta->ndim))
            named |= 1u << d;
    }
    for (unsigned d = 0; d < meta->ndim; d++)
        gone |= (named >> d & 1) && meta->sizes[d] == 1 ? 1u << d : 0;
    return gone;
}

int dt_shard_run_dim(const dt_shard_call_t *call)
{
    bool joins = call->out_count == 1;
    uint32_t count = joins ? call->in_count : call->out_count;
    const dt_shard_tensor_t *pieces = joins ? call->ins : call->outs;
    const dt_meta_t *whole = joins ? call->outs[0].meta : call->ins[0].meta;
    int dim = -1;
    if (!call->rule->is_runs || count < 2 || (joins ? call->out_count : call->in_count) != 1)
        return -1;
    for (int d = 0; d < whole->ndim && pieces[0].meta->ndim == whole->ndim; d++)
        if (whole->sizes[d] == pieces[0].meta->sizes[d] * count && whole->sizes[d] > 0)
            dim = d;
    for (uint32_t i = 0; i < count && dim >= 0; i++)
        if (pieces[i].meta->ndim != whole->ndim ||
            pieces[i].meta->sizes[dim] != pieces[0].meta->sizes[dim])
            dim = -1;
    return dim;
}

bool dt_shard_pieces(const dt_shard_call_t *call, dt_shard_pieces_t *ret_pieces)
{
    dt_shard_attr_t dim = dt_shard_attr(call, "dim"), start = dt_shard_attr(call, "start");
    dt_shard_attr_t step = dt_shard_attr(call, "step");
    uint32_t in = call->out_first < call->in_count ? call->out_first : call->in_count;
    if (!call->rule->is_rows || in == 0 || call->out_count == 0 ||
        dim.kind != DT_SHARD_ATTR_NUMBER || start.kind > DT_SHARD_ATTR_NUMBER ||
        step.kind > DT_SHARD_ATTR_NUMBER || (step.kind == DT_SHARD_ATTR_NUMBER && step.number != 1))
        return false;
    int ndim = call->outs[0].meta->ndim, d = (int)(dim.number < 0 ? dim.number + ndim : dim.number);
    if (d < 0 || d >= ndim || (in > 1 && call->out_count > 1))
        return false;
    bool joins = in > 1 || call->signature->args[0].tag == DT_VALUE_TENSORS;
    if (!joins && call->out_count == 1)
        joins = call->ins[0].meta->ndim != ndim ||
                call->outs[0].meta->sizes[d] > call->ins[0].meta->sizes[d];
    const dt_shard_tensor_t *whole = joins ? &call->outs[0] : &call->ins[0];
    *ret_pieces = (dt_shard_pieces_t){.joins = joins,
                                      .dim = d,
                                      .size = whole->meta->sizes[d],
                                      .count = joins ? in : call->out_count,
                                      .pieces = joins ? call->ins : call->outs};
    int64_t at = start.kind == DT_SHARD_ATTR_NONE ? 0 : start.number;
    at = at < 0 ? at + whole->meta->sizes[d] : at;
    at = at < 0 ? 0 : at > whole->meta->sizes[d] ? whole->meta->sizes[d] : at;
    for (uint32_t i = 0; i < ret_pieces->count; i++) {
        const dt_shard_tensor_t *piece = &ret_pieces->pieces[i];
        ret_pieces->at[i] = at;
        if (piece->is_ignored)
            continue;
        if (piece->meta->ndim != ndim || at + piece->meta->sizes[d] > ret_pieces->size)
            return false;
        at += piece->meta->sizes[d];
    }
    return whole->meta->ndim == ndim;
}

static bool bind_squeeze(dt_shard_call_t *call)
{
    dt_shard_tensor_t *in = &call->ins[0], *out = &call->outs[0];
    uint32_t gone = dt_shard_squeezed(call);
    unsigned n = 0;
    if (dt_shard_attr(call, "dim").kind == DT_SHARD_ATTR_UNKNOWN)
        return false;
    for (unsigned d = 0; d < in->meta->ndim; d++) {
        if (gone >> d & 1)
            continue;
        if (n >= out->meta->ndim)
            return false;
        in->labels[d] = out->labels[n++] = (uint8_t)('a' + d);
    }
    return n == out->meta->ndim;
}

static bool bind_repeat(dt_shard_call_t *call)
{
    dt_shard_tensor_t *in = &call->ins[0], *out = &call->outs[0];
    int more = out->meta->ndim - in->meta->ndim;
    dt_shard_attr_t repeats = dt_shard_attr(call, "repeats");
    if (more < 0 || repeats.kind != DT_SHARD_ATTR_LIST || repeats.count != out->meta->ndim)
        return false;
    for (int d = more; d < out->meta->ndim; d++)
        if (repeats.ints[d] == 1)
            in->labels[d - more] = out->labels[d] = (uint8_t)('a' + d);
    return true;
}

static bool bind_pad(dt_shard_call_t *call)
{
    dt_shard_tensor_t *in = &call->ins[0], *out = &call->outs[0];
    unsigned ndim = in->meta->ndim;
    dt_shard_attr_t pad = dt_shard_attr(call, "pad");
    if (pad.kind != DT_SHARD_ATTR_LIST || pad.count > 2 * ndim || out->meta->ndim != ndim)
        return false;
    for (unsigned d = 0; d < ndim; d++) {
        unsigned q = 2 * (ndim - 1 - d);
        if (q + 1 >= pad.count || (pad.ints[q] == 0 && pad.ints[q + 1] == 0))
            in->labels[d] = out->labels[d] = (uint8_t)('a' + d);
    }
    return true;
}

/* ---- index ---- */

typedef struct index {
    uint32_t where; /* bit d: dimension d of self is indexed */
    int first, last, given;
    int ndim; /* of the indices, broadcast */
    int64_t sizes[DT_META_DIM_MAX];
    uint8_t result[DT_META_DIM_MAX]; /* labels and sizes of the result */
    int64_t result_sizes[DT_META_DIM_MAX];
    int result_ndim;
} index_t;

static bool index_where(const dt_shard_call_t *call, index_t *x)
{
    const dt_value_t *list = &call->signature->args[call->slots[1].param];
    if (list->tag != DT_VALUE_TENSORS || list->count > call->ins[0].meta->ndim)
        return false;
    x->first = -1;
    for (uint32_t d = 0; d < list->count; d++)
        if (list->ids[d] != 0) {
            x->where |= 1u << d;
            x->first = x->first < 0 ? (int)d : x->first;
            x->last = (int)d;
            x->given++;
        }
    return x->given > 0;
}

static bool index_sizes(dt_shard_call_t *call, index_t *x)
{
    const dt_shard_slot_t *slot = &call->slots[1];
    dt_shard_tensor_t *indices = &call->ins[slot->first];
    for (uint32_t k = 0; k < slot->count; k++) {
        if (indices[k].kind == 'b')
            return false; /* a mask's size depends on data */
        x->ndim = indices[k].meta->ndim > x->ndim ? indices[k].meta->ndim : x->ndim;
    }
    for (int q = 0; q < x->ndim; q++)
        for (uint32_t k = 0; k < slot->count; k++) {
            int d = q - x->ndim + indices[k].meta->ndim;
            if (d >= 0 && indices[k].meta->sizes[d] > x->sizes[q])
                x->sizes[q] = indices[k].meta->sizes[d];
        }
    for (uint32_t k = 0; k < slot->count; k++)
        for (int d = 0; d < indices[k].meta->ndim; d++) {
            int q = x->ndim - indices[k].meta->ndim + d;
            if (indices[k].meta->sizes[d] == x->sizes[q])
                indices[k].labels[d] = (uint8_t)(128 + q);
        }
    return true;
}

static bool index_append(index_t *x, uint8_t label, int64_t size)
{
    if (x->result_ndim == DT_META_DIM_MAX)
        return false;
    x->result[x->result_ndim] = label;
    x->result_sizes[x->result_ndim++] = size;
    return true;
}

/* The result: dimensions of the indices stand where these were, or first if apart. */
static bool index_result(const dt_shard_tensor_t *self, index_t *x)
{
    bool is_together = x->last - x->first + 1 == x->given;
    int at = is_together ? x->first : 0;
    for (int d = 0; d <= self->meta->ndim; d++) {
        for (int q = 0; q < x->ndim && d == at; q++)
            if (!index_append(x, (uint8_t)(128 + q), x->sizes[q]))
                return false;
        if (d < self->meta->ndim && !(x->where >> d & 1) &&
            !index_append(x, self->labels[d], self->meta->sizes[d]))
            return false;
    }
    return true;
}

static bool bind_index(dt_shard_call_t *call)
{
    dt_shard_tensor_t *self = &call->ins[0], *out = &call->outs[0];
    index_t x = {.where = 0};
    if (call->slot_count < 2 || call->slots[0].count != 1 || call->out_count != 1 ||
        !index_where(call, &x))
        return false;
    for (unsigned d = 0; d < self->meta->ndim; d++)
        self->labels[d] = x.where >> d & 1 ? 0 : (uint8_t)('a' + d);
    if (!index_sizes(call, &x) || !index_result(self, &x))
        return false;
    if (!call->rule->is_put) {
        memcpy(out->labels, x.result, sizeof out->labels);
        return out->meta->ndim == x.result_ndim;
    }
    if (call->slots[2].count != 1)
        return false;
    dt_shard_tensor_t *values = &call->ins[call->slots[2].first];
    int more = x.result_ndim - values->meta->ndim;
    if (more < 0)
        return false;
    for (int d = 0; d < values->meta->ndim; d++) {
        bool passes =
            values->meta->sizes[d] == x.result_sizes[more + d] && x.result[more + d] < 128;
        values->labels[d] = passes ? x.result[more + d] : 0;
    }
    for (uint32_t k = 0; k < call->slots[1].count; k++)
        memset(call->ins[call->slots[1].first + k].labels, 0, sizeof self->labels);
    memcpy(out->labels, self->labels, sizeof out->labels);
    return out->meta->ndim == self->meta->ndim;
}

/* Factories: the result's dimensions, and those of an input of the same shape. */
static bool bind_fact(dt_shard_call_t *call)
{
    if (call->out_count != 1)
        return false;
    dt_shard_tensor_t *out = &call->outs[0];
    for (unsigned d = 0; d < out->meta->ndim; d++)
        out->labels[d] = (uint8_t)('a' + d);
    return true;
}

bool dt_shard_bind_family(dt_shard_call_t *call)
{
    unsigned family = call->rule->family;
    if (family == DT_SHARD_FAMILY_INDEX)
        return bind_index(call);
    if (family == DT_SHARD_FAMILY_FACT)
        return bind_fact(call);
    if (!is_one_to_one(call))
        return false;
    switch (family) {
    case DT_SHARD_FAMILY_VIEW:
        return bind_view(call);
    case DT_SHARD_FAMILY_EXPAND:
        return bind_expand(call);
    case DT_SHARD_FAMILY_PERM:
        return bind_perm(call);
    case DT_SHARD_FAMILY_SQUEEZE:
        return bind_squeeze(call);
    case DT_SHARD_FAMILY_REPEAT:
        return bind_repeat(call);
    default:
        return bind_pad(call);
    }
}
