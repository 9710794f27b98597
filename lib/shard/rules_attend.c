/* Attention of a block of queries on a block of keys: what a device does in one step of a ring.
 *
 *   dtorch::attend(out!, lse!, q, k, v, is_causal, is_first, scale)
 *     out and lse, the result over the keys seen so far and the logarithm of their weights' sum,
 * take in those of k and v: sub, sigmoid, lerp, logaddexp. is_first: nothing was seen so far
 *   dtorch::attend_backward(dq!, dk!, dv!, grad, q, k, v, out, lse, is_causal, is_first, scale)
 *     adds what this block of keys gives; with the merged out and lse each block's share is exact
 *
 * Shapes: q, out, grad, dq (batch, heads, queries, width); k, v, dk, dv (batch, kv heads, keys,
 * width), heads a multiple of kv heads; lse (batch, heads, queries). What is written has the type
 * that the kernel adds up in.
 * Layouts, on each mesh dimension: all cut by batch, all by heads (a query's head with its key's),
 * or none; or queries cut along their sequence, and keys cut along theirs, in any order, or whole.
 * Then dk and dv are Partial(sum). What a device computes follows from where its boxes lie in the
 * sequence: nothing for keys that come later than its queries, the lower triangle where they are
 * the same, all where they come earlier. Boxes that overlap otherwise are cut at each other's
 * borders.
 *
 * Not its own: the way of the keys around the ring, which are redistributions of the program's
 * (client/src/ring.c). An operator of no name here sees layouts in another order as foreign. */
#include <string.h>

#include "shard/rules_internal.h"

#define OP_MAX    160u
#define PIECE_MAX 6u      /* of a box of two runs, cut at the four borders of another one */
#define SEEN_NONE (-1e30) /* lse of no keys: finite, since the difference of two is taken */

static const char kernel[] = "aten::_scaled_dot_product_flash_attention_for_cpu";
static const char kernel_backward[] = "aten::_scaled_dot_product_flash_attention_for_cpu_backward";

/* Places of inputs. */
enum { OUT, LSE, Q, K, V, INPUTS };
enum { DQ, DK, DV, GRAD, BQ, BK, BV, BOUT, BLSE, BACKWARD_INPUTS };

typedef struct roles {
    bool is_backward;
    uint32_t q, k, v, written, inputs;
    uint32_t causal, first, scale; /* arguments */
} roles_t;

typedef struct piece {
    int64_t lo, hi; /* in the sequence */
    int64_t at;     /* in the local tensor */
} piece_t;

typedef struct builder {
    const dt_signature_t *signature;
    const dt_meta_t *inputs; /* local */
    roles_t roles;
    piece_t queries[PIECE_MAX], keys[PIECE_MAX];
    uint32_t query_count, key_count;
    dt_arena_t *arena;
    dt_shard_op_t *ops; /* (OP_MAX) */
    uint32_t count;
    bool has_failed;
} builder_t;

bool dt_shard_is_attention(const char *name)
{
    return strcmp(name, DT_SHARD_ATTEND) == 0 || strcmp(name, DT_SHARD_ATTEND_BACKWARD) == 0;
}

static roles_t roles_of(const dt_signature_t *s)
{
    if (strcmp(s->name, DT_SHARD_ATTEND) == 0)
        return (roles_t){.q = Q,
                         .k = K,
                         .v = V,
                         .written = 2,
                         .inputs = INPUTS,
                         .causal = INPUTS,
                         .first = INPUTS + 1,
                         .scale = INPUTS + 2};
    return (roles_t){.is_backward = true,
                     .q = BQ,
                     .k = BK,
                     .v = BV,
                     .written = 3,
                     .inputs = BACKWARD_INPUTS,
                     .causal = BACKWARD_INPUTS,
                     .first = BACKWARD_INPUTS + 1,
                     .scale = BACKWARD_INPUTS + 2};
}

/* ---- verifying ---- */

static dt_status_t refuse(const dt_signature_t *s, const char *text, dt_error_t *err)
{
    return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: %s", s->name, text);
}

static bool is_truth(dt_value_t value)
{
    return value.tag == DT_VALUE_TRUE || value.tag == DT_VALUE_FALSE;
}

/* Like the queries, the keys, or the logarithms, which have no width. */
static bool is_shaped(const dt_signature_t *s, const roles_t *r, uint32_t input)
{
    const dt_meta_t *meta = &s->inputs[input].meta;
    bool is_key =
        input == r->k || input == r->v || (r->is_backward && (input == DK || input == DV));
    bool is_lse = r->is_backward ? input == BLSE : input == LSE;
    const dt_meta_t *like = &s->inputs[is_key ? r->k : r->q].meta;
    return meta->ndim == (is_lse ? 3 : 4) &&
           memcmp(meta->sizes, like->sizes, meta->ndim * sizeof *meta->sizes) == 0;
}

static dt_status_t check_call(const dt_signature_t *s, const roles_t *r, dt_error_t *err)
{
    if (s->input_count != r->inputs || s->output_count != r->written || s->id_count != 0 ||
        s->arg_count != r->scale + 1 || !is_truth(s->args[r->causal]) ||
        !is_truth(s->args[r->first]))
        return refuse(s, "not with these arguments", err);
    for (uint32_t i = 0; i < r->inputs; i++)
        if (s->args[i].tag != DT_VALUE_TENSOR || !is_shaped(s, r, i))
            return refuse(s, "tensors of these shapes do not go together", err);
    const dt_meta_t *q = &s->inputs[r->q].meta, *k = &s->inputs[r->k].meta;
    if (q->sizes[0] != k->sizes[0] || q->sizes[3] != k->sizes[3] || k->sizes[1] == 0 ||
        q->sizes[1] % k->sizes[1])
        return refuse(s, "queries and keys do not go together", err);
    for (uint32_t j = 0; j < r->written; j++)
        if (s->outputs[j].alias != DT_ALIAS_IN_PLACE || s->outputs[j].input != j ||
            !dt_layout_equal(&s->outputs[j].layout, &s->inputs[j].layout) ||
            s->inputs[j].meta.dtype != s->inputs[0].meta.dtype)
            return refuse(s, "it writes to its first tensors", err);
    return DT_OK;
}

/* On one mesh dimension: may queries lie so, with keys so? */
static bool goes_with(dt_placement_t q, dt_placement_t k)
{
    if (dt_placement_is_window(q) || dt_placement_is_window(k))
        return false;
    if (q.kind == DT_PLACEMENT_REPLICATE)
        return k.kind == DT_PLACEMENT_REPLICATE;
    if (q.kind != DT_PLACEMENT_SHARD || q.dim > 2 || (q.dim < 2 && q.groups != 1))
        return false;
    if (q.dim == 2)
        return q.groups == 1 && (k.kind == DT_PLACEMENT_REPLICATE ||
                                 (k.kind == DT_PLACEMENT_SHARD && k.dim == 2 && k.groups == 1));
    return k.kind == DT_PLACEMENT_SHARD && k.dim == q.dim && k.groups == 1;
}

static bool is_placed(const dt_signature_t *s, const roles_t *r, unsigned dim)
{
    dt_placement_t q = s->inputs[r->q].layout.placements[dim];
    dt_placement_t k = s->inputs[r->k].layout.placements[dim], gradient = k;
    if (!goes_with(q, k))
        return false;
    if (q.kind == DT_PLACEMENT_SHARD && q.dim == 2 && k.kind == DT_PLACEMENT_REPLICATE)
        gradient = dt_placement_partial(DT_REDUCTION_SUM);
    for (uint32_t i = 0; i < r->inputs; i++) {
        bool is_key = i == r->k || i == r->v;
        bool is_sum = r->is_backward && (i == DK || i == DV);
        if (!dt_placement_equal(s->inputs[i].layout.placements[dim], is_sum   ? gradient
                                                                     : is_key ? k
                                                                              : q))
            return false;
    }
    return true;
}

bool dt_shard_attend_fits(const dt_shard_mesh_t *mesh, const dt_meta_t *q, const dt_layout_t *q_at,
                          const dt_meta_t *k, const dt_layout_t *k_at)
{
    int64_t group = k->sizes[1] ? q->sizes[1] / k->sizes[1] : 1;
    for (unsigned j = 0; j < mesh->ndim; j++)
        if (!goes_with(q_at->placements[j], k_at->placements[j]))
            return false;
    for (uint32_t i = 0; i < mesh->count; i++) {
        dt_shard_box_t a, b;
        (void)dt_shard_box(q_at, mesh, 4, q->sizes, i, &a);
        (void)dt_shard_box(k_at, mesh, 4, k->sizes, i, &b);
        if (a.spans[0].length != b.spans[0].length ||
            (a.spans[0].length && a.spans[0].lo != b.spans[0].lo) ||
            a.spans[1].length != group * b.spans[1].length ||
            (a.spans[1].length && a.spans[1].lo != group * b.spans[1].lo))
            return false;
    }
    return true;
}

dt_status_t dt_shard_attend_verify(const dt_signature_t *s, const dt_shard_mesh_t *mesh,
                                   dt_error_t *err)
{
    roles_t r = roles_of(s);
    DT_TRY(check_call(s, &r, err));
    for (unsigned j = 0; j < mesh->ndim; j++)
        if (!is_placed(s, &r, j))
            return refuse(s, "its tensors do not lie as one of its rows", err);
    if (!dt_shard_attend_fits(mesh, &s->inputs[r.q].meta, &s->inputs[r.q].layout,
                              &s->inputs[r.k].meta, &s->inputs[r.k].layout))
        return refuse(s, "queries and their keys lie on different devices", err);
    return DT_OK;
}

/* ---- the program of one device ---- */

static uint64_t result_of(uint32_t op, uint32_t result)
{
    return DT_SHARD_TEMP + 16u * op + result;
}

static dt_value_t tensor(uint64_t id)
{
    return (dt_value_t){.tag = DT_VALUE_TENSOR, .id = id};
}

static dt_value_t integer(int64_t number)
{
    return (dt_value_t){.tag = DT_VALUE_INT, .number = number};
}

/* A number of the call, wherever it is used. */
static dt_value_t scale_of(const builder_t *b)
{
    dt_value_t value = b->signature->args[b->roles.scale];
    if (value.tag == DT_VALUE_DYNAMIC)
        value.number = 0; /* it is the only one */
    return value;
}

static dt_value_t input(uint32_t at)
{
    return tensor((uint64_t)at + 1);
}

/* Append an operator; returns its number. */
static uint32_t append(builder_t *b, const char *name, const dt_value_t *args, uint32_t arg_count)
{
    dt_value_t *copy = dt_arena_calloc(b->arena, arg_count, sizeof *copy);
    if (!copy || b->count == OP_MAX) {
        b->has_failed = true;
        return 0;
    }
    memcpy(copy, args, arg_count * sizeof *copy);
    b->ops[b->count] = (dt_shard_op_t){.name = name, .arg_count = arg_count, .args = copy};
    return b->count++;
}

static dt_value_t append_one(builder_t *b, const char *name, const dt_value_t *args,
                             uint32_t arg_count)
{
    return tensor(result_of(append(b, name, args, arg_count), 0));
}

/* The part of an input that is a piece of the sequence. */
static dt_value_t cut(builder_t *b, uint32_t at, const piece_t *piece)
{
    int64_t length = piece->hi - piece->lo;
    if (length == b->inputs[at].sizes[2])
        return input(at);
    return append_one(
        b, "aten::slice.Tensor",
        (dt_value_t[]){input(at), integer(2), integer(piece->at), integer(piece->at + length)}, 4);
}

/* In the type that is added up in. */
static dt_value_t widened(builder_t *b, dt_value_t value)
{
    unsigned wide = b->inputs[0].dtype;
    if (b->inputs[b->roles.q].dtype == wide)
        return value;
    return append_one(b, "aten::_to_copy",
                      (dt_value_t[]){value, {.tag = DT_VALUE_DTYPE, .number = (int64_t)wide}}, 2);
}

static void forward(builder_t *b, const piece_t *query, const piece_t *key, bool is_triangle)
{
    dt_value_t q = cut(b, Q, query), k = cut(b, K, key), v = cut(b, V, key);
    dt_value_t out = cut(b, OUT, query), lse = cut(b, LSE, query);
    dt_value_t triangle = {.tag = is_triangle ? DT_VALUE_TRUE : DT_VALUE_FALSE};
    uint32_t at = append(
        b, kernel,
        (dt_value_t[]){
            q, k, v, {.tag = DT_VALUE_DOUBLE}, triangle, {.tag = DT_VALUE_NONE}, scale_of(b)},
        7);
    dt_value_t some = widened(b, tensor(result_of(at, 0))), weight = tensor(result_of(at, 1));
    dt_value_t less = append_one(b, "aten::sub.Tensor", (dt_value_t[]){weight, lse}, 2);
    dt_value_t share = append_one(b, "aten::sigmoid", &less, 1);
    dt_value_t each = append_one(b, "aten::unsqueeze", (dt_value_t[]){share, integer(-1)}, 2);
    (void)append(b, "aten::lerp_.Tensor", (dt_value_t[]){out, some, each}, 3);
    dt_value_t both = append_one(b, "aten::logaddexp", (dt_value_t[]){lse, weight}, 2);
    (void)append(b, "aten::copy_", (dt_value_t[]){lse, both}, 2);
}

static void backward(builder_t *b, const piece_t *query, const piece_t *key, bool is_triangle)
{
    dt_value_t dq = cut(b, DQ, query), dk = cut(b, DK, key), dv = cut(b, DV, key);
    dt_value_t grad = cut(b, GRAD, query), q = cut(b, BQ, query);
    dt_value_t k = cut(b, BK, key), v = cut(b, BV, key);
    dt_value_t out = cut(b, BOUT, query), lse = cut(b, BLSE, query);
    dt_value_t triangle = {.tag = is_triangle ? DT_VALUE_TRUE : DT_VALUE_FALSE};
    dt_value_t dense = append_one(
        b, "aten::clone", (dt_value_t[]){lse, {.tag = DT_VALUE_MEMORY_FORMAT, .number = 0}}, 2);
    uint32_t at = append(b, kernel_backward,
                         (dt_value_t[]){grad,
                                        q,
                                        k,
                                        v,
                                        out,
                                        dense,
                                        {.tag = DT_VALUE_DOUBLE},
                                        triangle,
                                        {.tag = DT_VALUE_NONE},
                                        scale_of(b)},
                         10);
    const dt_value_t sums[3] = {dq, dk, dv};
    for (uint32_t i = 0; i < 3; i++)
        (void)append(b, "aten::add_.Tensor", (dt_value_t[]){sums[i], tensor(result_of(at, i))}, 2);
}

/* Nothing was seen so far. */
static void begin(builder_t *b)
{
    const dt_value_t none = {.tag = DT_VALUE_DOUBLE, .real = SEEN_NONE};
    for (uint32_t i = 0; i < b->roles.written; i++) {
        bool is_lse = !b->roles.is_backward && i == LSE;
        if (dt_meta_numel(&b->inputs[i]) == 0)
            continue;
        (void)append(b, is_lse ? "aten::fill_.Scalar" : "aten::zero_",
                     (dt_value_t[]){input(i), none}, is_lse ? 2 : 1);
    }
}

/* ---- pieces ---- */

/* The runs of a box, cut where runs of the other one begin and end. */
static uint32_t pieces_of(const dt_shard_span_t *span, const dt_shard_span_t *other, bool is_cut,
                          piece_t *ret_pieces)
{
    uint32_t count = 0;
    for (int64_t run = 0; run < span->groups && span->length > 0; run++) {
        int64_t first = span->lo + run * span->stride, lo = first, end = first + span->length;
        while (lo < end && count < PIECE_MAX) {
            int64_t hi = end;
            for (int64_t i = 0; is_cut && i < 2 * other->groups; i++) {
                int64_t border = other->lo + i / 2 * other->stride + i % 2 * other->length;
                hi = border > lo && border < hi ? border : hi;
            }
            ret_pieces[count++] = (piece_t){lo, hi, lo - first + run * span->length};
            lo = hi;
        }
    }
    return count;
}

static void blocks(builder_t *b, bool is_causal)
{
    for (uint32_t i = 0; i < b->query_count; i++)
        for (uint32_t j = 0; j < b->key_count; j++) {
            const piece_t *query = &b->queries[i], *key = &b->keys[j];
            if (is_causal && key->lo >= query->hi)
                continue;
            bool is_triangle = is_causal && key->lo == query->lo;
            if (b->roles.is_backward)
                backward(b, query, key, is_triangle);
            else
                forward(b, query, key, is_triangle);
        }
}

bool dt_shard_attend_program(const dt_signature_t *s, const dt_shard_mesh_t *mesh, uint32_t index,
                             dt_arena_t *arena, dt_shard_local_t *local)
{
    builder_t b = {.signature = s, .inputs = local->inputs, .roles = roles_of(s), .arena = arena};
    const dt_signature_tensor_t *q = &s->inputs[b.roles.q], *k = &s->inputs[b.roles.k];
    bool is_causal = s->args[b.roles.causal].tag == DT_VALUE_TRUE;
    dt_shard_box_t from, on;
    bool is_full = dt_shard_box(&q->layout, mesh, 4, q->meta.sizes, index, &from);
    is_full &= dt_shard_box(&k->layout, mesh, 4, k->meta.sizes, index, &on);
    b.ops = dt_arena_calloc(arena, OP_MAX, sizeof *b.ops);
    if (!b.ops)
        return false;
    if (s->args[b.roles.first].tag == DT_VALUE_TRUE)
        begin(&b);
    if (is_full) {
        b.query_count = pieces_of(&from.spans[2], &on.spans[2], is_causal, b.queries);
        b.key_count = pieces_of(&on.spans[2], &from.spans[2], is_causal, b.keys);
        blocks(&b, is_causal);
    }
    local->is_written = true;
    local->is_run = b.count > 0;
    local->ops = b.ops;
    local->op_count = b.count;
    return !b.has_failed;
}
