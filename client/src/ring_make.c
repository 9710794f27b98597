/* Lists for attention over a cut sequence: which way, and the steps of it. See ring.c. */
#include <stdlib.h>
#include <string.h>

#include "ring.h"
#include "shard/rules.h"

#define ARENA_MAX (1u << 20)
#define TURN_MAX  DT_ORDER_TURN_MAX

static const char forward_name[] = "aten::_scaled_dot_product_flash_attention_for_cpu";
static const char backward_name[] = "aten::_scaled_dot_product_flash_attention_for_cpu_backward";

typedef dt_client_making_t making_t;

/* ---- what a call is ---- */

static dt_value_t arg_at(const dt_signature_t *sig, uint32_t at)
{
    return at < sig->arg_count ? sig->args[at] : (dt_value_t){.tag = DT_VALUE_DEFAULT};
}

static uint32_t input_count(bool is_backward)
{
    return is_backward ? 6 : 3;
}

bool dt_client_ring_takes(const dt_signature_t *sig)
{
    bool is_backward = strcmp(sig->name, backward_name) == 0;
    uint32_t inputs = input_count(is_backward);
    if (!is_backward && strcmp(sig->name, forward_name) != 0)
        return false;
    dt_value_t dropped = arg_at(sig, inputs), causal = arg_at(sig, inputs + 1);
    dt_value_t scale = arg_at(sig, inputs + 3);
    if (sig->flags || sig->input_count != inputs || sig->output_count != (is_backward ? 3u : 2u))
        return false;
    for (uint32_t i = 0; i < inputs; i++)
        if (arg_at(sig, i).tag != DT_VALUE_TENSOR || sig->inputs[i].meta.ndim != (i == 5 ? 3 : 4) ||
            dt_meta_numel(&sig->inputs[i].meta) == 0)
            return false;
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias != DT_ALIAS_FRESH)
            return false;
    const dt_meta_t *q = &sig->inputs[is_backward ? 1 : 0].meta;
    const dt_meta_t *k = &sig->inputs[is_backward ? 2 : 1].meta;
    return (dropped.tag == DT_VALUE_DEFAULT || dropped.tag == DT_VALUE_DYNAMIC ||
            (dropped.tag == DT_VALUE_DOUBLE && dropped.real == 0)) &&
           (causal.tag == DT_VALUE_DEFAULT || causal.tag == DT_VALUE_FALSE ||
            causal.tag == DT_VALUE_TRUE) &&
           (scale.tag == DT_VALUE_DEFAULT || scale.tag == DT_VALUE_NONE ||
            scale.tag == DT_VALUE_DOUBLE || scale.tag == DT_VALUE_DYNAMIC) &&
           q->sizes[0] == k->sizes[0] && q->sizes[1] % k->sizes[1] == 0;
}

bool dt_client_ring_drops(const dt_signature_t *sig)
{
    return arg_at(sig, sig->input_count).tag == DT_VALUE_DYNAMIC;
}

/* ---- steps ---- */

/* The same of one that is used no more where it was. */
static dt_status_t send(making_t *m, uint16_t *value, uint32_t place)
{
    uint16_t old = *value;
    DT_TRY(dt_client_making_move(m, old, place, value));
    if (*value != old)
        dt_client_making_let_go(m, old);
    return DT_OK;
}

static dt_status_t place_of(making_t *m, const dt_layout_t *layout, uint32_t *ret_place)
{
    return dt_client_place(m->session, layout, ret_place, m->err);
}

/* What is added up, to be like result `output` of the operator; without a value. */
static dt_status_t sum_new(making_t *m, uint32_t output, uint32_t place, uint16_t *ret_value)
{
    const dt_meta_t *like = &m->sig->outputs[output].meta;
    dt_signature_tensor_t made = {.alias = DT_ALIAS_FRESH};
    dt_client_signature_t *signature;
    uint32_t meta;
    DT_TRY(
        dt_meta_set(&made.meta, m->lse_dtype, like->ndim, like->sizes, like->strides, 0, m->err));
    dt_client_place_layout(m->session, place, &made.layout);
    if (dt_client_meta_intern(&m->session->metas, &made.meta, &meta) != DT_OK)
        return dt_client_making_nomem(m);
    const dt_value_t args[] = {
        {.tag = DT_VALUE_INTS, .count = like->ndim, .ints = made.meta.sizes},
        {.tag = DT_VALUE_INTS, .count = like->ndim, .ints = made.meta.strides},
        {.tag = DT_VALUE_DTYPE, .number = (int64_t)m->lse_dtype}};
    dt_signature_t sig = {.name = "aten::empty_strided",
                          .arg_count = 3,
                          .args = args,
                          .output_count = 1,
                          .outputs = &made};
    DT_TRY(dt_client_signature_define(m->session, &sig, &signature, m->err));
    DT_TRY(dt_client_making_value(m, meta, place, ret_value));
    DT_TRY(dt_client_making_step(m, signature, ret_value));
    m->ring->steps[m->ring->step_count - 1].output = *ret_value;
    return DT_OK;
}

/* A block. `values`: what is written, then what is read, as the operator's arguments are. */
static dt_status_t attend(making_t *m, const uint16_t *values, bool is_first)
{
    uint32_t inputs = m->is_backward ? 9 : 5, written = m->is_backward ? 3 : 2;
    dt_signature_tensor_t tensors[DT_CLIENT_RING_INPUTS], outputs[DT_CLIENT_RING_OUTPUTS];
    dt_value_t args[DT_CLIENT_RING_INPUTS + 3];
    dt_client_signature_t *signature;
    for (uint32_t i = 0; i < inputs; i++) {
        dt_client_making_tensor(m, values[i], &tensors[i]);
        args[i] = (dt_value_t){.tag = DT_VALUE_TENSOR};
    }
    for (uint32_t i = 0; i < written; i++) {
        outputs[i] = tensors[i];
        outputs[i].alias = DT_ALIAS_IN_PLACE;
        outputs[i].input = i;
    }
    args[inputs] = (dt_value_t){.tag = m->is_causal ? DT_VALUE_TRUE : DT_VALUE_FALSE};
    args[inputs + 1] = (dt_value_t){.tag = is_first ? DT_VALUE_TRUE : DT_VALUE_FALSE};
    args[inputs + 2] = m->scale;
    dt_signature_t sig = {.name = m->is_backward ? DT_SHARD_ATTEND_BACKWARD : DT_SHARD_ATTEND,
                          .arg_count = inputs + 3,
                          .args = args,
                          .input_count = inputs,
                          .inputs = tensors,
                          .output_count = written,
                          .outputs = outputs};
    DT_TRY(dt_client_signature_define(m->session, &sig, &signature, m->err));
    DT_TRY(dt_client_making_step(m, signature, values));
    m->ring->steps[m->ring->step_count - 1].scalar = m->signature->ring_drops;
    return DT_OK;
}

/* A result as the operator says it: at `place`, in its type. */
static dt_status_t give(making_t *m, uint32_t output, uint16_t value, uint32_t place)
{
    const dt_signature_tensor_t *said = &m->sig->outputs[output];
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR},
                               {.tag = DT_VALUE_DTYPE, .number = said->meta.dtype}};
    dt_signature_tensor_t from, to;
    dt_client_signature_t *signature;
    uint16_t made = value;
    DT_TRY(send(m, &value, place));
    if (m->session->metas.items[m->ring->values[value].meta]->dtype != said->meta.dtype) {
        dt_client_making_tensor(m, value, &from);
        to = from;
        to.alias = DT_ALIAS_FRESH;
        to.meta = said->meta;
        dt_signature_t sig = {.name = "aten::_to_copy",
                              .arg_count = 2,
                              .args = args,
                              .input_count = 1,
                              .inputs = &from,
                              .output_count = 1,
                              .outputs = &to};
        DT_TRY(dt_client_signature_define(m->session, &sig, &signature, m->err));
        DT_TRY(dt_client_making_value(m, m->signature->metas[output], place, &made));
        DT_TRY(dt_client_making_step(m, signature, &value));
        m->ring->steps[m->ring->step_count - 1].output = made;
        dt_client_making_let_go(m, value);
        value = made;
    }
    m->ring->results[output] = value;
    return DT_OK;
}

/* ---- the ring ---- */

/* Where a block is after `turn` steps. */
static dt_status_t turned(making_t *m, const dt_layout_t *layout, uint32_t turn,
                          uint32_t *ret_place)
{
    dt_layout_t at = *layout;
    if (m->is_ring)
        at.placements[m->dim].order |= (uint8_t)turn;
    return place_of(m, &at, ret_place);
}

/* Send keys and values on; what they were is used once more. */
static dt_status_t pass_on(making_t *m, const dt_layout_t *layout, uint32_t turn, uint16_t *keys)
{
    uint32_t place;
    DT_TRY(turned(m, layout, turn, &place));
    DT_TRY(dt_client_making_move(m, keys[0], place, &keys[0]));
    return dt_client_making_move(m, keys[1], place, &keys[1]);
}

static void let_go_all(making_t *m, const uint16_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        dt_client_making_let_go(m, values[i]);
}

static dt_status_t ring_forward(making_t *m, const dt_layout_t *queries, const dt_layout_t *keys)
{
    uint16_t values[5], kv[2] = {1, 2};
    uint32_t at, home, parts = m->is_ring ? m->parts : 1;
    DT_TRY(place_of(m, queries, &at));
    DT_TRY(place_of(m, &m->queries, &home));
    DT_TRY(dt_client_making_move(m, 0, at, &values[2]));
    DT_TRY(pass_on(m, keys, 0, kv));
    for (uint32_t i = 0; i < 2; i++)
        DT_TRY(sum_new(m, i, at, &values[i]));
    for (uint32_t turn = 0; turn < parts; turn++) {
        memcpy(&values[3], kv, sizeof kv);
        if (turn + 1 < parts)
            DT_TRY(pass_on(m, keys, turn + 1, kv));
        DT_TRY(attend(m, values, turn == 0));
        let_go_all(m, &values[3], 2);
    }
    dt_client_making_let_go(m, values[2]);
    DT_TRY(give(m, 0, values[0], home));
    return give(m, 1, values[1], home);
}

/* Of keys that are whole, each device has its queries' share of the gradient. */
static dt_layout_t sums_of(const making_t *m, const dt_layout_t *keys)
{
    dt_layout_t sums = *keys;
    if (!m->is_ring)
        sums.placements[m->dim] = dt_placement_partial(DT_REDUCTION_SUM);
    return sums;
}

static dt_status_t ring_backward(making_t *m, const dt_layout_t *queries, const dt_layout_t *keys)
{
    /* dq dk dv, grad q k v out lse */
    uint16_t values[9], kv[2] = {2, 3};
    static const uint16_t inputs[4][2] = {{3, 0}, {4, 1}, {7, 4}, {8, 5}};
    uint32_t at, home, kv_home, place, parts = m->is_ring ? m->parts : 1;
    dt_layout_t sums = sums_of(m, keys);
    DT_TRY(place_of(m, queries, &at));
    DT_TRY(place_of(m, &m->queries, &home));
    DT_TRY(place_of(m, &m->keys, &kv_home));
    for (uint32_t i = 0; i < 4; i++)
        DT_TRY(dt_client_making_move(m, inputs[i][1], at, &values[inputs[i][0]]));
    DT_TRY(pass_on(m, keys, 0, kv));
    DT_TRY(turned(m, &sums, 0, &place));
    for (uint32_t i = 0; i < 3; i++)
        DT_TRY(sum_new(m, i, i ? place : at, &values[i]));
    for (uint32_t turn = 0; turn < parts; turn++) {
        memcpy(&values[5], kv, sizeof kv);
        if (turn + 1 < parts)
            DT_TRY(pass_on(m, keys, turn + 1, kv));
        DT_TRY(attend(m, values, turn == 0));
        let_go_all(m, &values[5], 2);
        DT_TRY(turned(m, &sums, (turn + 1) % parts, &place));
        for (uint32_t i = 1; i < 3; i++)
            DT_TRY(send(m, &values[i], place));
    }
    let_go_all(m, &values[3], 2);
    let_go_all(m, &values[7], 2);
    DT_TRY(give(m, 0, values[0], home));
    DT_TRY(give(m, 1, values[1], kv_home));
    return give(m, 2, values[2], kv_home);
}

/* ---- dealt out anew ---- */

/* Everything cut by tensor dimension `dim` in place of the sequence, the operator, and back. */
static dt_status_t deal(making_t *m, unsigned dim)
{
    uint32_t count = m->signature->input_count, place, home[DT_CLIENT_RING_OUTPUTS] = {0};
    dt_signature_tensor_t inputs[DT_CLIENT_RING_INPUTS], outputs[DT_CLIENT_RING_OUTPUTS];
    uint16_t values[DT_CLIENT_RING_INPUTS], made = 0;
    dt_client_signature_t *signature;
    dt_signature_t sig = *m->sig;
    for (uint32_t i = 0; i < count; i++) {
        dt_layout_t layout = i == m->k || i == m->k + 1 ? m->keys : m->queries;
        layout.placements[m->dim] = dt_placement_shard(dim);
        DT_TRY(place_of(m, &layout, &place));
        DT_TRY(dt_client_making_move(m, (uint16_t)i, place, &values[i]));
        inputs[i] = m->sig->inputs[i];
        inputs[i].layout = layout;
    }
    for (uint32_t i = 0; i < sig.output_count; i++) {
        bool is_key = m->is_backward && i > 0;
        outputs[i] = m->sig->outputs[i];
        outputs[i].layout = inputs[is_key ? m->k : m->q].layout;
        DT_TRY(place_of(m, is_key ? &m->keys : &m->queries, &home[i]));
    }
    sig.inputs = inputs;
    sig.outputs = outputs;
    DT_TRY(dt_client_signature_define(m->session, &sig, &signature, m->err));
    for (uint32_t i = 0; i < sig.output_count; i++) {
        uint16_t value;
        DT_TRY(place_of(m, &outputs[i].layout, &place));
        DT_TRY(dt_client_making_value(m, m->signature->metas[i], place, &value));
        made = i ? made : value;
    }
    DT_TRY(dt_client_making_step(m, signature, values));
    m->ring->steps[m->ring->step_count - 1].output = made;
    let_go_all(m, values, count);
    for (uint32_t i = 0; i < sig.output_count; i++)
        DT_TRY(give(m, i, (uint16_t)(made + i), home[i]));
    return DT_OK;
}

/* ---- which way ---- */

static bool is_cut(dt_placement_t placement, unsigned dim)
{
    return placement.kind == DT_PLACEMENT_SHARD && placement.dim == dim;
}

/* Other mesh dimensions as they are, if each device then has its queries' keys. */
static bool fits_as_is(making_t *m, const dt_layout_t *k)
{
    for (unsigned j = 0; j < k->ndim; j++) {
        if (j == m->dim)
            continue;
        if (is_cut(m->queries.placements[j], 2))
            return false;
        m->keys.placements[j] = k->placements[j];
    }
    return dt_shard_attend_fits(&m->mesh->shard, &m->sig->inputs[m->q].meta, &m->queries,
                                &m->sig->inputs[m->k].meta, &m->keys);
}

/* Other mesh dimensions by batch or whole heads, as the queries are, else whole. */
static bool fits_anew(making_t *m, const dt_layout_t *q, bool is_any)
{
    const dt_meta_t *many = &m->sig->inputs[m->q].meta, *few = &m->sig->inputs[m->k].meta;
    for (unsigned j = 0; j < q->ndim; j++) {
        dt_placement_t p = q->placements[j];
        if (j == m->dim)
            continue;
        m->queries.placements[j] = m->keys.placements[j] = dt_placement_replicate();
        if (!is_any || (!is_cut(p, 0) && !is_cut(p, 1)))
            continue;
        m->queries.placements[j] = m->keys.placements[j] = dt_placement_shard(p.dim);
        if (p.dim == 1 && few->sizes[1] % m->mesh->shard.count)
            m->queries.placements[j].unit = (uint32_t)(many->sizes[1] / few->sizes[1]);
    }
    return dt_shard_attend_fits(&m->mesh->shard, many, &m->queries, few, &m->keys);
}

/* How many of tensor dimension `dim` a device has by the other mesh dimensions; 0: unequal. */
static int64_t share(const making_t *m, const dt_layout_t *layout, const dt_meta_t *meta,
                     unsigned dim)
{
    int64_t size = meta->sizes[dim];
    for (unsigned j = 0; j < layout->ndim; j++) {
        if (j == m->dim || !is_cut(layout->placements[j], dim))
            continue;
        if (size % ((int64_t)m->mesh->shard.sizes[j] * layout->placements[j].unit))
            return 0;
        size /= m->mesh->shard.sizes[j];
    }
    return size;
}

/* The tensor dimension by which it is better dealt out than sent around; -1: none. Counted is what
 * a device sends, in rows of the width. */
static int dealt_by(const making_t *m, bool is_folded)
{
    const dt_meta_t *q = &m->sig->inputs[m->q].meta, *k = &m->sig->inputs[m->k].meta;
    int64_t n = m->parts, batch = share(m, &m->queries, q, 0);
    int64_t heads = share(m, &m->queries, q, 1), few = share(m, &m->keys, k, 1);
    int64_t own = (q->sizes[2] + n - 1) / n, keys = (k->sizes[2] + n - 1) / n;
    int64_t all = 2 * own * heads + 2 * keys * few; /* q and its result, k and v */
    int dim = heads && few && heads % n == 0 && few % n == 0 ? 1 : batch && batch % n == 0 ? 0 : -1;
    if (!m->is_ring || (dim == 0 && (!heads || !few)))
        return -1;
    return all * (n - 1) / n <= 2 * (n - 1) * keys * few + (is_folded ? all / 2 : 0) ? dim : -1;
}

/* False: the operator's rule does it. */
static bool choose(making_t *m)
{
    const dt_layout_t *q = &m->sig->inputs[m->q].layout, *k = &m->sig->inputs[m->k].layout;
    const dt_layout_t *v = &m->sig->inputs[m->k + 1].layout;
    uint32_t count = m->signature->input_count;
    for (uint32_t i = 0; i < count; i++)
        if (m->sig->inputs[i].layout.mesh != q->mesh)
            return false;
    while (m->dim < q->ndim &&
           (m->mesh->shard.sizes[m->dim] == 1 || !is_cut(q->placements[m->dim], 2)))
        m->dim++;
    if (m->dim == q->ndim || m->mesh->shard.sizes[m->dim] >= TURN_MAX)
        return false;
    m->parts = m->mesh->shard.sizes[m->dim];
    m->is_ring = k->placements[m->dim].kind != DT_PLACEMENT_REPLICATE ||
                 v->placements[m->dim].kind != DT_PLACEMENT_REPLICATE;
    m->queries = m->keys = *q;
    m->queries.placements[m->dim] = dt_placement_shard(2);
    m->keys.placements[m->dim] = m->is_ring ? dt_placement_shard(2) : dt_placement_replicate();
    return (dt_layout_equal(k, v) && fits_as_is(m, k)) || fits_anew(m, q, true) ||
           fits_anew(m, q, false);
}

static bool may_fold(const making_t *m)
{
    int64_t queries = m->sig->inputs[m->q].meta.sizes[2];
    return m->is_causal && m->is_ring && queries == m->sig->inputs[m->k].meta.sizes[2] &&
           queries % (2 * (int64_t)m->parts) == 0;
}

static dt_status_t make(making_t *m)
{
    m->is_backward = strcmp(m->sig->name, backward_name) == 0;
    uint32_t count = input_count(m->is_backward);
    m->q = m->is_backward ? 1 : 0;
    m->k = m->q + 1;
    m->lse_dtype = m->is_backward ? m->sig->inputs[5].meta.dtype : m->sig->outputs[1].meta.dtype;
    m->is_causal = arg_at(m->sig, count + 1).tag == DT_VALUE_TRUE;
    m->scale = arg_at(m->sig, count + 3);
    if (m->scale.tag == DT_VALUE_DEFAULT)
        m->scale.tag = DT_VALUE_NONE;
    m->mesh = dt_client_place_mesh(m->session, m->ring->have[m->q]);
    m->ring->is_none = !choose(m);
    if (m->ring->is_none)
        return DT_OK;
    bool is_folded = may_fold(m);
    int dim = dealt_by(m, is_folded);
    if (dim >= 0)
        return deal(m, (unsigned)dim);
    dt_layout_t queries = m->queries, keys = m->keys;
    if (is_folded)
        queries.placements[m->dim].order = keys.placements[m->dim].order = DT_ORDER_FOLDED;
    return m->is_backward ? ring_backward(m, &queries, &keys) : ring_forward(m, &queries, &keys);
}

static dt_status_t begin(making_t *m, const uint32_t *have)
{
    const dt_client_signature_t *signature = m->signature;
    dt_cursor_t cursor = {.at = signature->body, .end = signature->body + signature->body_bytes};
    uint16_t value;
    if (dt_signature_decode(&cursor, &m->arena, &m->sig) != 0)
        return dt_client_making_nomem(m);
    memcpy(m->ring->have, have, signature->input_count * sizeof *have);
    for (uint32_t i = 0; i < signature->input_count; i++) {
        dt_signature_tensor_t *input = (dt_signature_tensor_t *)(uintptr_t)&m->sig->inputs[i];
        dt_client_place_layout(m->session, have[i], &input->layout); /* of our arena */
        DT_TRY(dt_client_making_value(m, signature->inputs[i], have[i], &value));
    }
    return DT_OK;
}

dt_status_t dt_client_ring_make(dt_session_t *session, dt_client_signature_t *signature,
                                const uint32_t *have, dt_client_ring_t **ret_ring, dt_error_t *err)
{
    making_t m = {.session = session, .signature = signature, .err = err};
    m.ring = calloc(1, sizeof *m.ring);
    if (!m.ring)
        return dt_client_making_nomem(&m);
    dt_arena_init(&m.arena, ARENA_MAX);
    dt_status_t status = begin(&m, have);
    if (status == DT_OK)
        status = signature->needs_whole ? dt_client_whole_make(&m) : make(&m);
    dt_arena_fini(&m.arena);
    if (status == DT_OK) {
        *ret_ring = m.ring;
        return DT_OK;
    }
    free(m.ring->values);
    free(m.ring->steps);
    free(m.ring);
    return status;
}
