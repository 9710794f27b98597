/* How a signature of the program runs where its inputs lie: which inputs move, and what comes out.
 * lib/shard decides; this keeps its answers with the signature, and the signatures of moves. */
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "shard/redistribute.h"

#define ARENA_MAX (32u << 20)
#define MOVE_WORK UINT64_C(512) /* some 0.1 us each, once a move */

/* ---- signatures of moves ---- */

enum { MOVE, PUT, ASSEMBLE }; /* PUT: copy_ at `from`; ASSEMBLE: of parts, at `to` */

struct dt_client_move {
    uint32_t meta, from, to, kind;
    dt_client_signature_t *signature; /* NULL: free */
};

static uint32_t move_home(const dt_client_track_t *track, const struct dt_client_move *key)
{
    uint64_t hash =
        (uint64_t)key->meta << 32 ^ (uint64_t)key->from << 16 ^ key->to ^ (uint64_t)key->kind << 62;
    return (uint32_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (track->move_cap - 1);
}

static struct dt_client_move *move_find(const dt_client_track_t *track,
                                        const struct dt_client_move *key)
{
    uint32_t at = track->move_cap ? move_home(track, key) : 0;
    for (; track->move_cap && track->moves[at].signature; at = (at + 1) & (track->move_cap - 1)) {
        struct dt_client_move *move = &track->moves[at];
        if (move->meta == key->meta && move->from == key->from && move->to == key->to &&
            move->kind == key->kind)
            return move;
    }
    return NULL;
}

static void move_put(dt_client_track_t *track, const struct dt_client_move *move)
{
    uint32_t at = move_home(track, move);
    while (track->moves[at].signature)
        at = (at + 1) & (track->move_cap - 1);
    track->moves[at] = *move;
}

static bool move_add(dt_client_track_t *track, const struct dt_client_move *move)
{
    struct dt_client_move *old = move_find(track, move);
    if (old) { /* it was dropped, or another thread was faster */
        old->signature = move->signature;
        return true;
    }
    if (2 * track->move_count >= track->move_cap) {
        dt_client_track_t grown = {.move_cap = track->move_cap ? 2 * track->move_cap : 64};
        grown.moves = calloc(grown.move_cap, sizeof *grown.moves);
        if (!grown.moves)
            return false;
        for (uint32_t i = 0; i < track->move_cap; i++)
            if (track->moves[i].signature)
                move_put(&grown, &track->moves[i]);
        free(track->moves);
        track->moves = grown.moves;
        track->move_cap = grown.move_cap;
    }
    move_put(track, move);
    track->move_count++;
    return true;
}

static bool is_dense(const dt_meta_t *meta)
{
    uint8_t order[DT_META_DIM_MAX];
    int count = 0;
    int64_t expected = 1;
    for (int i = 0; i < meta->ndim; i++) {
        int at = count;
        if (meta->sizes[i] == 0)
            return true;
        if (meta->sizes[i] == 1)
            continue;
        while (at > 0 && meta->strides[order[at - 1]] > meta->strides[i]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = (uint8_t)i;
        count++;
    }
    for (int i = 0; i < count; i++) {
        if (meta->strides[order[i]] != expected)
            return false;
        expected *= meta->sizes[order[i]];
    }
    return true;
}

dt_status_t dt_client_dense(dt_session_t *session, uint32_t meta, uint32_t *ret_meta,
                            dt_error_t *err)
{
    const dt_meta_t *from = session->metas.items[meta];
    dt_meta_t dense;
    *ret_meta = meta;
    if (is_dense(from) && !(from->layout & ~DT_META_CLASS_MASK))
        return DT_OK;
    DT_TRY(dt_meta_set(&dense, from->dtype, from->ndim, from->sizes,
                       is_dense(from) ? from->strides : NULL, 0, err));
    return dt_client_meta_intern(&session->metas, &dense, ret_meta) == DT_OK
               ? DT_OK
               : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for metadata");
}

/* By a move, at the device that receives most. */
static uint64_t bytes_moved(const dt_session_t *session, const struct dt_client_move *key,
                            const dt_meta_t *meta)
{
    const dt_mesh_t *meshes[2] = {dt_client_place_mesh(session, key->from),
                                  dt_client_place_mesh(session, key->to)};
    const uint64_t vdevs[2] = {key->from, key->to};
    const dt_shard_mesh_t alone[2] = {dt_shard_mesh_single(&vdevs[0]),
                                      dt_shard_mesh_single(&vdevs[1])};
    uint64_t work = MOVE_WORK;
    dt_shard_plan_t chosen;
    dt_layout_t layouts[2];
    for (unsigned i = 0; i < 2; i++) {
        dt_client_place_layout(session, i ? key->to : key->from, &layouts[i]);
        if (!meshes[i])
            layouts[i] = dt_layout_replicate(layouts[i].mesh, 0);
    }
    const dt_shard_pair_t pair = {.meta = meta,
                                  .from_mesh = meshes[0] ? &meshes[0]->shard : &alone[0],
                                  .to_mesh = meshes[1] ? &meshes[1]->shard : &alone[1],
                                  .from = &layouts[0],
                                  .to = &layouts[1]};
    if (dt_shard_plan_choose(&pair, NULL, &work, &chosen, NULL) != DT_OK)
        return 0;
    return (uint64_t)chosen.recv_bytes;
}

static dt_status_t move_define(dt_session_t *session, struct dt_client_move *key, dt_error_t *err)
{
    static const dt_value_t args[] = {
        {.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_FALSE}};
    bool is_put = key->kind == PUT;
    dt_signature_tensor_t inputs[2], output;
    uint32_t dense;
    memset(inputs, 0, sizeof inputs);
    DT_TRY(dt_client_dense(session, key->meta, &dense, err));
    inputs[0].meta = *session->metas.items[key->meta];
    inputs[1].meta = *session->metas.items[dense];
    dt_client_place_layout(session, key->from, &inputs[0].layout);
    inputs[1].layout = inputs[0].layout;
    output = inputs[is_put ? 0 : 1];
    output.alias = is_put ? DT_ALIAS_IN_PLACE : DT_ALIAS_FRESH;
    dt_client_place_layout(session, key->to, &output.layout);
    dt_signature_t sig = {.name = is_put ? "aten::copy_" : "dtorch::redistribute",
                          .arg_count = is_put ? 3 : 1,
                          .args = args,
                          .input_count = is_put ? 2 : 1,
                          .inputs = inputs,
                          .output_count = 1,
                          .outputs = &output};
    DT_TRY(dt_client_signature_define(session, &sig, &key->signature, err));
    if (!is_put)
        key->signature->moved = bytes_moved(session, key, &inputs[0].meta);
    return DT_OK;
}

/* A tensor of the parts of all devices of its mesh, each on its own. */
static dt_status_t assemble_define(dt_session_t *session, struct dt_client_move *key,
                                   dt_error_t *err)
{
    const dt_mesh_t *mesh = dt_client_place_mesh(session, key->to);
    dt_signature_tensor_t output = {.meta = *session->metas.items[key->meta]};
    uint32_t count = mesh->shard.count;
    dt_signature_tensor_t *parts = calloc(count, sizeof *parts);
    uint64_t *ids = calloc(count, sizeof *ids);
    dt_value_t arg = {.tag = DT_VALUE_TENSORS, .count = count, .ids = ids};
    dt_signature_t sig = {.name = "dtorch::assemble",
                          .arg_count = 1,
                          .args = &arg,
                          .input_count = count,
                          .inputs = parts,
                          .output_count = 1,
                          .outputs = &output};
    dt_status_t status =
        parts && ids ? DT_OK : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    dt_client_place_layout(session, key->to, &output.layout);
    for (uint32_t i = 0; status == DT_OK && i < count; i++) {
        ids[i] = 1;
        dt_client_place_layout(session, (uint32_t)mesh->vdevs[i], &parts[i].layout);
        dt_shard_local_meta(&output.meta, &output.layout, &mesh->shard, i, &parts[i].meta);
    }
    if (status == DT_OK)
        status = dt_client_signature_define(session, &sig, &key->signature, err);
    free(parts);
    free(ids);
    return status;
}

static dt_status_t move_signature(dt_session_t *session, struct dt_client_move *key,
                                  dt_client_signature_t **ret_signature, dt_error_t *err)
{
    const struct dt_client_move *known = move_find(&session->track, key);
    if (known && !known->signature->is_dropped) {
        *ret_signature = known->signature;
        known->signature->used = dt_client_sequence(session);
        return DT_OK;
    }
    DT_TRY(key->kind == ASSEMBLE ? assemble_define(session, key, err)
                                 : move_define(session, key, err));
    if (!move_add(&session->track, key))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    *ret_signature = key->signature;
    return DT_OK;
}

dt_status_t dt_client_move(dt_session_t *session, uint32_t meta, uint32_t from, uint32_t to,
                           dt_client_signature_t **ret_signature, dt_error_t *err)
{
    struct dt_client_move key = {.meta = meta, .from = from, .to = to};
    return move_signature(session, &key, ret_signature, err);
}

dt_status_t dt_client_put_back(dt_session_t *session, uint32_t meta, uint32_t place,
                               dt_client_signature_t **ret_signature, dt_error_t *err)
{
    struct dt_client_move key = {.meta = meta, .from = place, .to = place, .kind = PUT};
    return move_signature(session, &key, ret_signature, err);
}

dt_status_t dt_client_assemble(dt_session_t *session, uint32_t meta, uint32_t place,
                               dt_client_signature_t **ret_signature, dt_error_t *err)
{
    struct dt_client_move key = {.meta = meta, .from = place, .to = place, .kind = ASSEMBLE};
    return move_signature(session, &key, ret_signature, err);
}

/* ---- plans ---- */

void dt_client_plans_free(dt_client_signature_t *signature)
{
    while (signature->plans) {
        dt_client_plan_t *plan = signature->plans;
        signature->plans = plan->next;
        free(plan);
    }
}

static uint32_t key_count(const dt_client_signature_t *signature)
{
    return signature->input_count ? signature->input_count : 1;
}

static dt_client_plan_t *plan_find(dt_session_t *session, dt_client_signature_t *signature,
                                   const uint32_t *have)
{
    size_t bytes = key_count(signature) * sizeof *have;
    for (dt_client_plan_t **at = &signature->plans, *plan; (plan = *at); at = &plan->next) {
        if (plan->policy != session->track.policy || memcmp(plan->have, have, bytes) != 0 ||
            plan->run->is_dropped)
            continue;
        if (plan != signature->plans) {
            *at = plan->next;
            plan->next = signature->plans;
            signature->plans = plan;
        }
        plan->run->used = dt_client_sequence(session);
        return plan;
    }
    return NULL;
}

static dt_client_plan_t *plan_new(const dt_client_signature_t *signature, const uint32_t *have)
{
    size_t in = signature->input_count, out = signature->output_count, keys = key_count(signature);
    dt_client_plan_t *plan =
        calloc(1, sizeof *plan + (keys + 2 * in + 2 * out + 1) * sizeof(uint32_t));
    if (!plan)
        return NULL;
    plan->have = (uint32_t *)(plan + 1);
    plan->want = plan->have + keys;
    plan->stay = plan->want + in;
    plan->runs = plan->stay + in;
    plan->gives = plan->runs + out;
    memcpy(plan->have, have, keys * sizeof *have);
    for (size_t i = 0; i < in; i++)
        plan->want[i] = plan->stay[i] = have[i] & ~DT_CLIENT_PIN;
    return plan;
}

struct planning {
    dt_session_t *session;
    dt_client_signature_t *signature;
    dt_client_plan_t *plan;
    dt_signature_t *sig; /* decoded; its layouts are ours to write */
    dt_signature_tensor_t *inputs, *outputs;
    const dt_mesh_t *mesh; /* NULL: all on one device */
    dt_arena_t arena;
};

static dt_status_t whole_on(const struct planning *p, uint32_t *ret_place, dt_error_t *err)
{
    dt_layout_t layout = dt_layout_replicate(p->mesh->id, p->mesh->shard.ndim);
    return dt_client_place(p->session, &layout, ret_place, err);
}

static void set_all(uint32_t *places, uint32_t count, uint32_t place)
{
    for (uint32_t i = 0; i < count; i++)
        places[i] = place;
}

/* Where a result that was drawn on device 0 goes: as the input of its shape. */
static dt_status_t place_drawn(const struct planning *p, uint32_t wanted, dt_error_t *err)
{
    uint32_t whole;
    DT_TRY(whole_on(p, &whole, err));
    for (uint32_t i = 0; i < p->sig->output_count; i++) {
        const dt_meta_t *out = &p->outputs[i].meta;
        p->plan->gives[i] = wanted != DT_CLIENT_NO_PLACE ? wanted : whole;
        for (uint32_t k = 0; k < p->sig->input_count; k++) {
            const dt_meta_t *in = &p->inputs[k].meta;
            if (in->ndim != out->ndim ||
                memcmp(in->sizes, out->sizes, out->ndim * sizeof out->sizes[0]) != 0 ||
                dt_client_place_mesh(p->session, p->plan->stay[k]) != p->mesh ||
                dt_client_place_is_partial(p->session, p->plan->stay[k]))
                continue;
            p->plan->gives[i] = p->plan->stay[k];
            break;
        }
    }
    return DT_OK;
}

/* The table of embeddings with so many rows, which was looked up from before; NULL: unknown. */
static struct dt_client_table *table_find(const struct planning *p, const dt_meta_t *meta)
{
    dt_client_track_t *track = &p->session->track;
    for (uint32_t i = 0; i < track->table_count && i < DT_CLIENT_TABLES_MAX; i++)
        if (meta->ndim == 2 && track->tables[i].rows == meta->sizes[0] &&
            track->tables[i].width == meta->sizes[1] && track->tables[i].layout.mesh == p->mesh->id)
            return &track->tables[i];
    return NULL;
}

static void table_note(const struct planning *p, const dt_meta_t *meta, const dt_layout_t *layout)
{
    dt_client_track_t *track = &p->session->track;
    struct dt_client_table *table = table_find(p, meta);
    if (!table)
        table = &track->tables[track->table_count++ % DT_CLIENT_TABLES_MAX];
    *table = (struct dt_client_table){meta->sizes[0], meta->sizes[1], *layout};
}

/* Where an operator's results are wanted, for the rules. A gradient of a table knows the table's
 * size only: it is wanted where rows were looked up. Whoever has it otherwise gets the same value.
 */
static const dt_layout_t *wanted_at(const struct planning *p, uint32_t wanted, dt_layout_t *room)
{
    if (wanted != DT_CLIENT_NO_PLACE) {
        dt_client_place_layout(p->session, wanted, room);
        return room;
    }
    if (strcmp(p->sig->name, "aten::embedding_dense_backward") != 0 || p->sig->output_count != 1)
        return NULL;
    const struct dt_client_table *table = table_find(p, &p->outputs[0].meta);
    return table ? &table->layout : NULL;
}

static dt_status_t ask_rules(struct planning *p, uint32_t wanted, dt_error_t *err)
{
    dt_session_t *session = p->session;
    dt_signature_t *sig = p->sig;
    dt_layout_t want;
    dt_shard_policy_t policy = {.flags = DT_SHARD_AUTO};
    dt_shard_answer_t answer = {0};
    uint8_t *flags = dt_arena_calloc(&p->arena, sig->input_count + 1, 1);
    answer.inputs = dt_arena_calloc(&p->arena, sig->input_count + 1, sizeof *answer.inputs);
    answer.outputs = dt_arena_calloc(&p->arena, sig->output_count + 1, sizeof *answer.outputs);
    if (!flags || !answer.inputs || !answer.outputs)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a plan");
    for (uint32_t i = 0; i < sig->input_count; i++)
        flags[i] = p->plan->have[i] & DT_CLIENT_PIN ? DT_SHARD_PINNED : 0;
    if (session->track.policy & DT_POLICY_UNPINNED)
        memset(flags, 0, sig->input_count);
    policy.input_flags = flags;
    if (session->track.policy & DT_POLICY_STRICT)
        policy.flags |= DT_SHARD_STRICT;
    if (dt_client_places_are_many(session))
        policy.flags |= DT_SHARD_NO_ROWS;
    if (session->track.policy & DT_POLICY_PASS)
        policy.flags &= ~(uint32_t)DT_SHARD_SETTLE;
    policy.wanted = wanted_at(p, wanted, &want);
    DT_TRY(dt_shard_propagate(session->track.rules, sig, &p->mesh->shard, p->mesh->id, &policy,
                              &answer, err));
    if (strcmp(sig->name, "aten::embedding") == 0 && p->inputs[0].meta.ndim == 2)
        table_note(p, &p->inputs[0].meta, &answer.inputs[0]);
    for (uint32_t i = 0; i < sig->input_count; i++)
        DT_TRY(dt_client_place(session, &answer.inputs[i], &p->plan->want[i], err));
    for (uint32_t i = 0; i < sig->output_count; i++) {
        DT_TRY(dt_client_place(session, &answer.outputs[i], &p->plan->runs[i], err));
        p->plan->gives[i] = wanted != DT_CLIENT_NO_PLACE ? wanted : p->plan->runs[i];
    }
    return DT_OK;
}

/* Written inputs that run elsewhere go back, unless their storage had no such place for good:
 * a Partial is settled, what lay on one device has come to the mesh. */
static dt_status_t place_written(const struct planning *p, dt_error_t *err)
{
    dt_client_plan_t *plan = p->plan;
    for (uint32_t i = 0; i < p->sig->output_count; i++) {
        uint32_t k = p->outputs[i].input;
        if (p->outputs[i].alias != DT_ALIAS_IN_PLACE || plan->want[k] == plan->stay[k])
            continue;
        if (dt_client_place_mesh(p->session, plan->stay[k]) &&
            !dt_client_place_is_partial(p->session, plan->stay[k]))
            continue;
        plan->stay[k] = plan->want[k];
        if (!dt_client_place_mesh(p->session, plan->want[k]))
            DT_TRY(whole_on(p, &plan->stay[k], err));
    }
    return DT_OK;
}

static dt_status_t decide(struct planning *p, uint32_t wanted, dt_error_t *err)
{
    dt_client_plan_t *plan = p->plan;
    uint32_t in = p->sig->input_count, out = p->sig->output_count, whole;
    if (!p->mesh) {
        uint32_t place = in ? plan->want[0] : wanted;
        for (uint32_t i = 1; i < in; i++)
            if (plan->want[i] != place)
                return dt_fail(err, DT_ERR_INVALID, "dt", i,
                               "%s: tensors lie on different virtual devices, %u and %u",
                               p->sig->name, place, plan->want[i]);
        set_all(plan->runs, out, place);
        set_all(plan->gives, out, place);
        return DT_OK;
    }
    if (p->sig->flags & DT_SIGNATURE_RANDOM) { /* from the program's stream, that of device 0 */
        set_all(plan->want, in, 0);
        set_all(plan->runs, out, 0);
        DT_TRY(place_written(p, err));
        return place_drawn(p, wanted, err);
    }
    if (!(p->sig->flags & DT_SIGNATURE_DATA_DEPENDENT)) {
        DT_TRY(ask_rules(p, wanted, err));
        return place_written(p, err);
    }
    DT_TRY(whole_on(p, &whole, err));
    set_all(plan->want, in, whole);
    set_all(plan->runs, out, whole);
    set_all(plan->gives, out, whole);
    return place_written(p, err);
}

/* The signature that has these very layouts, if there is one. */
static dt_client_signature_t *run_find(const struct planning *p)
{
    const dt_client_signature_t *signature = p->signature;
    const dt_client_plan_t *plan = p->plan;
    if (!p->mesh && !signature->is_dropped &&
        (signature->input_count ? plan->want[0] : plan->have[0]) == signature->vdev)
        return p->signature;
    for (const dt_client_plan_t *other = signature->plans; other; other = other->next)
        if (!other->run->is_dropped && other->run != signature &&
            memcmp(other->want, plan->want, signature->input_count * sizeof *plan->want) == 0 &&
            memcmp(other->runs, plan->runs, signature->output_count * sizeof *plan->runs) == 0) {
            other->run->used = dt_client_sequence(p->session); /* not to be dropped before it ran */
            return other->run;
        }
    return NULL;
}

/* What an operator writes and does not return: a write to a copy would be lost. */
static dt_status_t check_unsaid(const struct planning *p, dt_error_t *err)
{
    const dt_client_plan_t *plan = p->plan;
    for (uint32_t i = 0; i < p->sig->input_count; i++)
        if (plan->want[i] != (plan->have[i] & ~DT_CLIENT_PIN) && p->signature->writes_unsaid)
            return dt_fail(err, DT_ERR_INVALID, "dt", i,
                           "%s writes to arguments that it does not return, and its tensor %u "
                           "would have to be moved: redistribute its tensors to Replicate first",
                           p->sig->name, i);
    return DT_OK;
}

static dt_status_t define(struct planning *p, dt_error_t *err)
{
    dt_client_plan_t *plan = p->plan;
    for (uint32_t i = 0; i < p->sig->input_count; i++)
        dt_client_place_layout(p->session, plan->want[i], &p->inputs[i].layout);
    for (uint32_t i = 0; i < p->sig->output_count; i++)
        dt_client_place_layout(p->session, plan->runs[i], &p->outputs[i].layout);
    plan->run = run_find(p);
    if (plan->run)
        return DT_OK;
    return dt_client_signature_define(p->session, p->sig, &plan->run, err);
}

static dt_status_t begin(struct planning *p, dt_error_t *err)
{
    dt_cursor_t cursor = {.at = p->signature->body,
                          .end = p->signature->body + p->signature->body_bytes};
    uint32_t keys = key_count(p->signature);
    if (dt_signature_decode(&cursor, &p->arena, &p->sig) != 0)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    p->inputs = (dt_signature_tensor_t *)(uintptr_t)p->sig->inputs; /* of our arena */
    p->outputs = (dt_signature_tensor_t *)(uintptr_t)p->sig->outputs;
    for (uint32_t i = 0; i < keys && !p->mesh; i++)
        p->mesh = dt_client_place_mesh(p->session, p->plan->have[i] & ~DT_CLIENT_PIN);
    for (uint32_t i = 0; i < p->sig->input_count; i++)
        dt_client_place_layout(p->session, p->plan->want[i], &p->inputs[i].layout);
    return DT_OK;
}

static void must_move(struct planning *p)
{
    dt_client_plan_t *plan = p->plan;
    for (uint32_t i = 0; i < p->sig->input_count; i++)
        plan->must_move |= plan->want[i] != (plan->have[i] & ~DT_CLIENT_PIN);
    for (uint32_t i = 0; i < p->sig->output_count; i++)
        plan->must_move |= plan->gives[i] != plan->runs[i];
}

dt_status_t dt_client_plan(dt_session_t *session, dt_client_signature_t *signature,
                           const uint32_t *have, dt_client_plan_t **ret_plan, dt_error_t *err)
{
    struct planning p = {.session = session, .signature = signature};
    if ((*ret_plan = plan_find(session, signature, have)) != NULL)
        return DT_OK;
    p.plan = plan_new(signature, have);
    if (!p.plan)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a plan");
    p.plan->policy = session->track.policy;
    dt_arena_init(&p.arena, ARENA_MAX);
    dt_status_t status = begin(&p, err);
    if (status == DT_OK)
        status = decide(&p, signature->input_count ? DT_CLIENT_NO_PLACE : have[0], err);
    if (status == DT_OK && p.mesh)
        status = check_unsaid(&p, err);
    if (status == DT_OK)
        status = define(&p, err);
    if (status == DT_OK) {
        must_move(&p);
        p.plan->next = signature->plans;
        signature->plans = p.plan;
        *ret_plan = p.plan;
    } else {
        free(p.plan);
    }
    dt_arena_fini(&p.arena);
    return status;
}
