/* Operators in the stream wherever their inputs lie.
 *
 * One operator is: views made anew whose storage went elsewhere, inputs that are brought where the
 * plan wants them (and kept there until they are written), the operator itself, and of what it
 * wrote elsewhere the way back: into the place of the storage, or by copy_ into the view. What must
 * not be torn apart is put in one frame after room for all of it was made. Whoever makes room may
 * release the lock; then all is looked at again. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define NEAR       16u /* inputs of an ordinary operator, on the stack */
#define MOVE_BOUND 64u /* bytes of an operator of two inputs and one output */

/* ---- small operators ---- */

static void weigh(dt_session_t *session, dt_client_signature_t *signature)
{
    dt_client_step_t *step = &session->step;
    if (!signature->bytes)
        dt_client_weigh(session, signature);
    step->bytes += signature->bytes;
    if (signature->moved <= step->heaviest_bytes)
        return;
    step->heaviest_bytes = signature->moved;
    step->heaviest = signature;
    step->source = session->source;
}

static void put_part(dt_session_t *session, dt_client_signature_t *signature,
                     const uint64_t *inputs, const dt_value_t *scalars, uint64_t *outputs)
{
    dt_record_op_t op = {.signature = signature->id,
                         .input_count = signature->input_count,
                         .output_count = signature->id_count,
                         .scalar_count = signature->dynamic_count,
                         .inputs = inputs,
                         .outputs = outputs,
                         .scalars = scalars};
    for (uint32_t i = 0; i < signature->id_count; i++)
        outputs[i] = session->next_tensor++;
    signature->used = dt_client_sequence(session);
    dt_client_put_part(session, &op);
    weigh(session, signature);
}

dt_status_t dt_client_run1(dt_session_t *session, dt_client_signature_t *signature, uint64_t input,
                           uint64_t *ret_output, dt_error_t *err)
{
    DT_TRY(dt_client_room(session, MOVE_BOUND, INT64_MAX, err));
    put_part(session, signature, &input, NULL, ret_output);
    dt_client_put_end(session);
    return DT_OK;
}

/* ---- views ---- */

static bool is_stale(const dt_client_node_t *node)
{
    return node->source && (node->source_wire != node->source->wire ||
                            (node->via && node->made != node->root->version));
}

static void settle_at(dt_session_t *session, dt_client_node_t *node, uint64_t wire, uint32_t place)
{
    dt_client_drop(session, node->wire, node->meta);
    node->wire = wire;
    node->place = place;
}

/* Run the step of a view again. Room was made. */
static void derive_put(dt_session_t *session, dt_client_node_t *node, const dt_client_plan_t *plan,
                       dt_client_copy_t *via, uint64_t *ids)
{
    uint64_t from = via ? via->wire : node->source->wire;
    uint32_t at = 0;
    put_part(session, plan->run, &from, node->scalars, ids);
    dt_client_put_end(session);
    for (uint32_t i = 0; i < node->step->output_count; i++) {
        uint8_t alias = node->step->outputs[i].alias;
        if (alias != DT_ALIAS_FRESH && alias != DT_ALIAS_VIEW)
            continue;
        if (i == node->output)
            settle_at(session, node, ids[at], plan->gives[i]);
        else
            dt_client_drop(session, ids[at], node->step->metas[i]);
        at++;
    }
    if (via)
        via->refs++;
    dt_client_copy_unref(session, node->via);
    node->via = via;
    node->source_wire = node->source->wire;
    node->made = node->root->version;
}

static dt_status_t derive(dt_session_t *session, dt_client_node_t *node, dt_error_t *err)
{
    dt_client_node_t *source = node->source;
    dt_client_plan_t *plan;
    if (!node->step)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)node->id,
                       "tensor %llu is a view by an operator of several tensors, and its storage "
                       "has moved",
                       (unsigned long long)node->id);
    uint64_t *ids = malloc((node->step->id_count + 1) * sizeof *ids);
    dt_status_t status = ids ? DT_OK : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a view");
    while (status == DT_OK) {
        uint64_t seen = session->releases, wire;
        uint32_t have = source->place;
        dt_client_copy_t *via = NULL;
        status = dt_client_plan(session, node->step, &have, &plan, err);
        if (status == DT_OK && plan->want[0] != have)
            status = dt_client_bring(session, source, plan->want[0], &wire, err);
        if (status == DT_OK)
            status = dt_client_room(session, dt_client_op_bound(1, node->step->id_count, 255),
                                    INT64_MAX, err);
        if (status != DT_OK || session->releases != seen || source->place != have)
            continue;
        if (plan->want[0] != have)
            via = dt_client_node_kept(session, source, plan->want[0]);
        derive_put(session, node, plan, via, ids);
        break;
    }
    free(ids);
    return status;
}

dt_status_t dt_client_refresh(dt_session_t *session, dt_client_node_t *node, dt_error_t *err)
{
    for (;;) {
        dt_client_node_t *first = NULL; /* nearest to the storage */
        for (dt_client_node_t *at = node; at; at = at->source)
            if (is_stale(at))
                first = at;
        if (!first)
            return DT_OK;
        DT_TRY(derive(session, first, err));
    }
}

/* ---- bringing ---- */

dt_status_t dt_client_bring(dt_session_t *session, dt_client_node_t *node, uint32_t place,
                            uint64_t *ret_wire, dt_error_t *err)
{
    dt_client_signature_t *move;
    for (;;) {
        uint64_t seen;
        DT_TRY(dt_client_refresh(session, node, err));
        if (node->place == place) {
            *ret_wire = node->wire;
            return DT_OK;
        }
        const dt_client_copy_t *kept = dt_client_node_kept(session, node, place);
        if (kept) {
            *ret_wire = kept->wire;
            return DT_OK;
        }
        seen = session->releases;
        DT_TRY(dt_client_move(session, node->meta, node->place, place, &move, err));
        DT_TRY(dt_client_room(session, MOVE_BOUND, INT64_MAX, err));
        if (session->releases == seen)
            break;
    }
    DT_TRY(dt_client_run1(session, move, node->wire, ret_wire, err));
    /* A Partial is settled where it is first needed whole. */
    if (!(session->track.policy & DT_POLICY_UNSETTLED) && !node->source && !node->is_alien &&
        dt_client_place_is_partial(session, node->place) &&
        !dt_client_place_is_partial(session, place) &&
        dt_client_place_mesh(session, node->place) == dt_client_place_mesh(session, place)) {
        settle_at(session, node, *ret_wire, place);
        return DT_OK;
    }
    return dt_client_node_keep(session, node, place, *ret_wire) == DT_OK
               ? DT_OK
               : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a tensor");
}

dt_status_t dt_client_rebase(dt_session_t *session, dt_client_node_t *node, uint32_t place,
                             dt_error_t *err)
{
    dt_client_signature_t *move;
    uint64_t wire, seen;
    if (node->place == place)
        return DT_OK;
    do {
        seen = session->releases;
        DT_TRY(dt_client_move(session, node->meta, node->place, place, &move, err));
        DT_TRY(dt_client_room(session, MOVE_BOUND, INT64_MAX, err));
    } while (session->releases != seen);
    DT_TRY(dt_client_run1(session, move, node->wire, &wire, err));
    settle_at(session, node, wire, place);
    return DT_OK;
}

/* ---- one operator ---- */

struct job {
    dt_session_t *session;
    const dt_client_spread_t *spread;
    dt_client_signature_t *signature;
    uint32_t in;
    dt_client_plan_t *plan;
    dt_client_node_t **nodes; /* (in) */
    uint64_t *wires;          /* (in) what the operator names */
    uint32_t *have;           /* (in, at least 1) */
    uint8_t *is_written;      /* (in) */
    bool must_restart;
    dt_client_node_t *lent; /* a storage that was moved for a write through its views, and */
    uint32_t home;          /* where it goes afterwards */
};

/* Where the operator finds input k: where that is, or where it is to be read. */
static uint32_t place_of(const struct job *job, uint32_t k)
{
    const dt_client_node_t *node = job->nodes[k];
    return node->source || job->is_written[k] || !node->own.use ? node->place : node->own.use - 1;
}

static dt_status_t node_of(struct job *job, uint32_t k, dt_error_t *err)
{
    dt_session_t *session = job->session;
    uint64_t id = job->spread->inputs[k];
    dt_client_node_t *node = dt_client_node_find(session, id);
    if (!node) {
        DT_TRY(dt_client_node_base(session, id, id, job->signature->inputs[k], job->signature->vdev,
                                   err));
        node = dt_client_node_find(session, id);
        node->is_alien = true;
    }
    if (node->meta == DT_CLIENT_NO_META)
        node->meta = job->signature->inputs[k];
    DT_TRY(dt_client_refresh(session, node, err));
    job->nodes[k] = node;
    job->wires[k] = node->wire;
    job->have[k] = place_of(job, k) | (node->root->flags & DT_HINT_PINNED ? DT_CLIENT_PIN : 0);
    return DT_OK;
}

static dt_client_node_t *base_of(dt_client_node_t *node)
{
    while (node->source)
        node = node->source;
    return node;
}

static dt_status_t whole_place(dt_session_t *session, uint32_t like, uint32_t *ret_place,
                               dt_error_t *err)
{
    const dt_mesh_t *mesh = dt_client_place_mesh(session, like);
    dt_layout_t layout = dt_layout_replicate(mesh->id, mesh->shard.ndim);
    return dt_client_place(session, &layout, ret_place, err);
}

/* An `out` argument may have been resized; NO_META: to what only its values tell. */
static uint32_t meta_after(const struct job *job, uint32_t k)
{
    const dt_client_signature_t *signature = job->signature;
    const dt_client_node_t *node = job->nodes[k];
    for (uint32_t i = 0; i < signature->output_count && !node->source; i++)
        if (signature->outputs[i].alias == DT_ALIAS_IN_PLACE && signature->outputs[i].input == k)
            return signature->metas[i];
    return node->meta;
}

/* Where a written one is afterwards; an out= that has become what nobody knows stays where it ran.
 */
static uint32_t stay_of(const struct job *job, uint32_t k)
{
    const dt_client_node_t *node = job->nodes[k];
    if (node->source || node->is_alien)
        return node->place;
    return meta_after(job, k) == DT_CLIENT_NO_META ? job->plan->want[k] : job->plan->stay[k];
}

/* May several elements be one place of memory? True where that is not plain to see. */
static bool may_overlap(const dt_meta_t *meta)
{
    uint32_t done = 0;
    int64_t extent = 1;
    for (unsigned k = 0; k < meta->ndim; k++) {
        int next = -1;
        for (int d = 0; d < meta->ndim; d++)
            if (!(done >> d & 1) && (next < 0 || meta->strides[d] < meta->strides[next]))
                next = d;
        done |= 1u << next;
        if (meta->sizes[next] == 0)
            return false;
        if (meta->sizes[next] > 1 && meta->strides[next] < extent)
            return true;
        extent += (meta->sizes[next] - 1) * meta->strides[next];
    }
    return false;
}

/* What was moved of an expanded view cannot be copied back: one place of the storage has several
 * elements there, and one of them was written. The storage itself is moved instead, whole, and goes
 * home behind the operator. */
static dt_status_t lend(struct job *job, dt_client_node_t *base, dt_error_t *err)
{
    uint32_t place;
    if (job->lent || base->is_alien || !dt_client_place_mesh(job->session, base->place))
        return DT_OK;
    DT_TRY(whole_place(job->session, base->place, &place, err));
    if (place == base->place)
        return DT_OK;
    base->refs++;
    job->lent = base;
    job->home = base->place;
    job->must_restart = true;
    return dt_client_rebase(job->session, base, place, err);
}

/* The signatures that bring back what is written, and a storage that can take it. */
static dt_status_t ready_write(struct job *job, uint32_t k, dt_error_t *err)
{
    dt_session_t *session = job->session;
    dt_client_node_t *node = job->nodes[k], *base = base_of(node);
    uint32_t want = job->plan->want[k], stay = job->plan->stay[k], place, dense;
    dt_client_signature_t *unused;
    bool comes = !dt_client_place_mesh(session, base->place) && dt_client_place_mesh(session, stay);
    if (node->source && !base->is_alien &&
        (comes || dt_client_place_is_partial(session, base->place))) {
        DT_TRY(whole_place(session, comes ? stay : base->place, &place, err));
        DT_TRY(dt_client_rebase(session, base, place, err));
        job->must_restart = true;
        return DT_OK;
    }
    if (want != node->place) {
        DT_TRY(dt_client_move(session, node->meta, node->place, want, &unused, err));
        stay = stay_of(job, k);
        if (stay != want) {
            DT_TRY(dt_client_dense(session, meta_after(job, k), &dense, err));
            DT_TRY(dt_client_move(session, dense, want, stay, &unused, err));
        }
        if (base->is_alien || node->source)
            DT_TRY(dt_client_put_back(session, node->meta, node->place, &unused, err));
    }
    for (; node->source; node = node->source) {
        if (!node->via)
            continue;
        if (may_overlap(session->metas.items[node->source->meta])) {
            DT_TRY(lend(job, base, err));
            if (job->must_restart)
                return DT_OK;
        }
        DT_TRY(dt_client_dense(session, node->source->meta, &dense, err));
        DT_TRY(dt_client_move(session, dense, node->via->place, node->source->place, &unused, err));
        DT_TRY(dt_client_put_back(session, node->source->meta, node->source->place, &unused, err));
    }
    return DT_OK;
}

/* Results that are drawn or made elsewhere than they are wanted. */
static dt_status_t ready_results(struct job *job, dt_error_t *err)
{
    const dt_client_plan_t *plan = job->plan;
    dt_client_signature_t *unused;
    for (uint32_t i = 0; i < job->signature->output_count; i++)
        if (plan->gives[i] != plan->runs[i] && job->signature->outputs[i].alias == DT_ALIAS_FRESH &&
            job->signature->metas[i] != DT_CLIENT_NO_META)
            DT_TRY(dt_client_move(job->session, job->signature->metas[i], plan->runs[i],
                                  plan->gives[i], &unused, err));
    return DT_OK;
}

static bool is_plain(const struct job *job)
{
    uint32_t vdev = job->signature->vdev;
    if (job->signature->is_dropped)
        return false;
    if (job->in == 0)
        return job->spread->wanted == DT_CLIENT_NO_PLACE;
    for (uint32_t k = 0; k < job->in; k++)
        if (job->have[k] != vdev)
            return false;
    return true;
}

static uint32_t dense_of(dt_session_t *session, uint32_t meta)
{
    uint32_t dense = meta;
    dt_check(dt_client_dense(session, meta, &dense, NULL) == DT_OK);
    return dense;
}

/* A copy of a view has other strides, and nothing of its storage beside it. */
static dt_status_t check_strided(const struct job *job, dt_error_t *err)
{
    dt_client_node_t *node = job->in ? job->nodes[0] : NULL;
    if (!node || !node->source || !job->signature->is_strided ||
        job->plan->want[0] == node->place || node->meta == DT_CLIENT_NO_META)
        return DT_OK;
    const dt_meta_t *view = job->session->metas.items[node->meta];
    uint32_t whole = base_of(node)->meta;
    if (whole != DT_CLIENT_NO_META && dense_of(job->session, node->meta) == node->meta &&
        dt_meta_numel(view) == dt_meta_numel(job->session->metas.items[whole]))
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)node->id,
                   "an operator of strides is called on a part of a tensor on a mesh that must be "
                   "moved: call it on the whole tensor, or use view and slice");
}

/* Know where everything is, and have it where it must be. The lock may be released. */
static dt_status_t look(struct job *job, dt_error_t *err)
{
    dt_session_t *session = job->session;
    job->must_restart = false;
    job->plan = NULL;
    for (uint32_t k = 0; k < job->in; k++)
        DT_TRY(node_of(job, k, err));
    if (is_plain(job))
        return DT_OK;
    if (job->in == 0)
        job->have[0] =
            job->spread->wanted == DT_CLIENT_NO_PLACE ? job->signature->vdev : job->spread->wanted;
    DT_TRY(dt_client_plan(session, job->signature, job->have, &job->plan, err));
    DT_TRY(check_strided(job, err));
    bool is_used = false; /* elsewhere than where it is */
    for (uint32_t k = 0; k < job->in; k++)
        is_used |= place_of(job, k) != job->nodes[k]->place;
    if (!job->plan->must_move && !is_used &&
        job->signature->id_count == job->signature->output_count && !job->signature->writes_unsaid)
        return DT_OK; /* nothing moves, nothing is written */
    for (uint32_t k = 0; k < job->in && !job->must_restart; k++) {
        if (job->is_written[k])
            DT_TRY(ready_write(job, k, err));
        else if (job->plan->want[k] != job->nodes[k]->place)
            DT_TRY(
                dt_client_bring(session, job->nodes[k], job->plan->want[k], &job->wires[k], err));
        /* A Partial that was settled is another plan's. */
        job->must_restart |= (job->have[k] & ~DT_CLIENT_PIN) != place_of(job, k);
    }
    for (uint32_t k = 0; k < job->in; k++)
        for (const dt_client_node_t *at = job->nodes[k]; at && !job->must_restart; at = at->source)
            job->must_restart = is_stale(at); /* its storage was settled for another input's sake */
    return job->must_restart ? DT_OK : ready_results(job, err);
}

static size_t bound_of(const struct job *job)
{
    size_t bound = dt_client_op_bound(job->in, job->signature->id_count, job->spread->scalar_count);
    if (job->plan)
        bound += (size_t)MOVE_BOUND * job->signature->output_count;
    for (uint32_t k = 0; k < job->in; k++) {
        if (!job->is_written[k])
            continue;
        if (job->plan && job->plan->want[k] != job->nodes[k]->place)
            bound += (size_t)4 * MOVE_BOUND;
        for (const dt_client_node_t *node = job->nodes[k]; node->source; node = node->source)
            bound += node->via ? (size_t)2 * MOVE_BOUND : 0;
    }
    return bound;
}

/* ---- putting it; room was made, the signatures are there ---- */

static uint64_t put_move(dt_session_t *session, uint32_t meta, uint32_t from, uint32_t to,
                         uint64_t wire)
{
    dt_client_signature_t *move;
    uint64_t moved = 0;
    dt_check(dt_client_move(session, meta, from, to, &move, NULL) == DT_OK);
    put_part(session, move, &wire, NULL, &moved);
    return moved;
}

static void put_copy(dt_session_t *session, uint32_t meta, uint32_t place, uint64_t self,
                     uint64_t source)
{
    dt_client_signature_t *copy;
    uint64_t inputs[2] = {self, source};
    dt_check(dt_client_put_back(session, meta, place, &copy, NULL) == DT_OK);
    put_part(session, copy, inputs, NULL, NULL);
}

/* A view that shares a moved storage was written: so must be what it is a view of. */
static void put_up(dt_session_t *session, dt_client_node_t *node)
{
    for (; node->source; node = node->source) {
        dt_client_node_t *source = node->source;
        node->made = node->root->version;
        dt_client_node_forget(session, node);
        if (!node->via)
            continue;
        uint64_t back = put_move(session, dense_of(session, source->meta), node->via->place,
                                 source->place, node->via->wire);
        put_copy(session, source->meta, source->place, source->wire, back);
        dt_client_drop(session, back, source->meta);
    }
    dt_client_node_forget(session, node);
}

/* What was written at `wire` goes where the tensor is. */
static void put_written(struct job *job, uint32_t k)
{
    dt_session_t *session = job->session;
    dt_client_node_t *node = job->nodes[k];
    uint64_t wire = job->wires[k];
    uint32_t want = job->plan ? job->plan->want[k] : node->place;
    node->root->version++;
    if (wire == node->wire) {
        node->meta = meta_after(job, k);
    } else {
        uint32_t stay = stay_of(job, k), after = meta_after(job, k);
        uint64_t back =
            stay == want ? wire : put_move(session, dense_of(session, after), want, stay, wire);
        if (back != wire)
            dt_client_drop(session, wire, after);
        if (!node->source && !node->is_alien) {
            node->meta = after;
            settle_at(session, node, back, stay);
        } else {
            put_copy(session, node->meta, stay, node->wire, back);
            dt_client_drop(session, back, node->meta);
        }
    }
    put_up(session, node);
    if (node->is_alien)
        dt_client_node_forget(session, node);
}

/* ---- results ---- */

static bool has_id(const dt_output_t *out)
{
    return out->alias == DT_ALIAS_FRESH || out->alias == DT_ALIAS_VIEW;
}

/* Nodes of the results before anything is put: with them in hand it cannot fail. */
static dt_status_t results_make(struct job *job, dt_client_node_t **nodes, dt_error_t *err)
{
    dt_session_t *session = job->session;
    dt_client_signature_t *signature = job->signature;
    uint32_t at = 0;
    bool is_made = dt_client_node_room(session, signature->id_count);
    for (uint32_t i = 0; i < signature->output_count && is_made; i++) {
        const dt_output_t *out = &signature->outputs[i];
        if (!has_id(out))
            continue;
        dt_client_node_t *node = nodes[at] = dt_client_node_new(session);
        is_made = node != NULL;
        if (!is_made)
            break;
        at++;
        node->id = session->next_tensor; /* anything: it is given when the operator is put */
        if (out->alias == DT_ALIAS_VIEW && job->spread->scalar_count) {
            node->scalars = malloc(job->spread->scalar_count * sizeof *node->scalars);
            is_made = node->scalars != NULL;
            if (is_made)
                memcpy(node->scalars, job->spread->scalars,
                       job->spread->scalar_count * sizeof *node->scalars);
        }
    }
    if (is_made)
        return DT_OK;
    while (at > 0)
        dt_client_node_discard(session, nodes[--at]);
    return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for results");
}

static void result_is(struct job *job, dt_client_node_t *node, uint32_t i, uint64_t id)
{
    dt_session_t *session = job->session;
    dt_client_signature_t *signature = job->signature;
    const dt_output_t *out = &signature->outputs[i];
    dt_client_node_t *source = out->alias == DT_ALIAS_VIEW ? job->nodes[out->input] : NULL;
    uint32_t runs = job->plan ? job->plan->runs[i] : signature->vdev;
    node->id = node->wire = id;
    node->meta = signature->metas[i];
    node->place = runs;
    if (!source && job->plan && job->plan->gives[i] != runs && node->meta != DT_CLIENT_NO_META) {
        node->place = job->plan->gives[i];
        node->wire = put_move(session, node->meta, runs, node->place, id);
        dt_client_drop(session, id, node->meta);
    }
    if (source) {
        node->step = job->in == 1 ? signature : NULL;
        node->output = i;
        node->source_wire = source->wire;
        node->made = source->root->version;
        if (job->plan && job->wires[out->input] != source->wire) {
            node->via = dt_client_node_kept(session, source, job->plan->want[out->input]);
            if (node->via)
                node->via->refs++;
        }
    }
    dt_client_node_add(session, node, source);
}

/* What was moved for this operator alone. */
static void forget_moved(const struct job *job)
{
    bool forgets = job->session->track.policy & DT_POLICY_FORGET;
    for (uint32_t k = 0; k < job->in; k++)
        for (dt_client_node_t *at = job->nodes[k]; at; at = at->source)
            if (forgets || (at->own.use && !at->own.is_use_kept))
                dt_client_node_forget(job->session, at);
}

static dt_status_t put_all(struct job *job, uint64_t *ret_outputs, dt_error_t *err)
{
    dt_session_t *session = job->session;
    dt_client_signature_t *signature = job->signature;
    const dt_client_plan_t *plan = job->plan;
    dt_client_node_t *near[NEAR] = {NULL};
    dt_client_node_t **nodes =
        signature->id_count <= NEAR ? near : calloc(signature->id_count, sizeof *nodes);
    dt_status_t status = nodes ? results_make(job, nodes, err)
                               : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for results");
    if (status == DT_OK) {
        uint32_t at = 0;
        for (uint32_t k = 0; plan && k < job->in; k++)
            if (plan->want[k] != job->nodes[k]->place && job->is_written[k])
                job->wires[k] = put_move(session, job->nodes[k]->meta, job->nodes[k]->place,
                                         plan->want[k], job->nodes[k]->wire);
        put_part(session, plan ? plan->run : signature, job->wires, job->spread->scalars,
                 ret_outputs);
        for (uint32_t i = 0; i < signature->output_count; i++)
            if (has_id(&signature->outputs[i])) {
                dt_check(nodes[at]); /* results_make() made it */
                result_is(job, nodes[at], i, ret_outputs[at]);
                at++;
            }
        for (uint32_t k = 0; k < job->in; k++) {
            if (job->is_written[k])
                put_written(job, k);
            else if (job->nodes[k]->is_alien)
                dt_client_node_forget(session, job->nodes[k]);
        }
        forget_moved(job);
        dt_client_put_end(session);
    }
    if (nodes != near)
        free(nodes);
    dt_client_drop_flush(session);
    return status;
}

static dt_status_t run(struct job *job, uint64_t *ret_outputs, dt_error_t *err)
{
    dt_session_t *session = job->session;
    for (;;) {
        uint64_t seen = session->releases;
        if (session->state == DT_CLIENT_ENDED)
            return dt_fail(err, session->end.code, "dt", 0, "%s", session->end.text);
        DT_TRY(look(job, err));
        if (job->must_restart || session->releases != seen)
            continue;
        DT_TRY(dt_client_room(session, bound_of(job), INT64_MAX, err));
        if (session->releases == seen)
            return put_all(job, ret_outputs, err);
    }
}

/* Where a storage was lent it goes home; if it cannot, it is right where it is. */
static void give_back(struct job *job)
{
    if (!job->lent)
        return;
    (void)dt_client_rebase(job->session, job->lent, job->home, NULL);
    dt_client_node_unref(job->session, job->lent);
    dt_client_drop_flush(job->session);
}

dt_status_t dt_client_spread(dt_session_t *session, const dt_client_spread_t *spread,
                             uint64_t *ret_outputs, dt_error_t *err)
{
    dt_client_node_t *near_nodes[NEAR];
    uint64_t near_wires[NEAR];
    uint32_t near_have[NEAR];
    uint8_t near_written[NEAR] = {0};
    uint32_t in = spread->signature->input_count;
    bool is_near = in <= NEAR;
    struct job job = {.session = session,
                      .spread = spread,
                      .signature = spread->signature,
                      .in = in,
                      .nodes = is_near ? near_nodes : malloc(in * sizeof *job.nodes),
                      .wires = is_near ? near_wires : malloc(in * sizeof *job.wires),
                      .have = is_near ? near_have : malloc(in * sizeof *job.have),
                      .is_written = is_near ? near_written : calloc(in, 1)};
    bool is_made = job.nodes && job.wires && job.have && job.is_written, is_done = false;
    if (is_made && spread->signature->writes_unsaid) /* it may be any */
        memset(job.is_written, 1, in);
    for (uint32_t i = 0; is_made && i < spread->signature->output_count; i++)
        if (spread->signature->outputs[i].alias == DT_ALIAS_IN_PLACE)
            job.is_written[spread->signature->outputs[i].input] = 1;
    dt_status_t status =
        is_made ? DT_OK : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for an operator");
    uint32_t outer = dt_client_explain_enter(session);
    if (status == DT_OK && spread->signature->may_ring)
        status = dt_client_ring(session, spread, ret_outputs, &is_done, err);
    if (status == DT_OK && spread->signature->row_dim >= 0)
        status = dt_client_rows(session, spread, ret_outputs, &is_done, err);
    if (status == DT_OK && !is_done)
        status = run(&job, ret_outputs, err);
    give_back(&job);
    dt_client_explain_leave(session, outer);
    if (!is_near) {
        free(job.nodes);
        free(job.wires);
        free(job.have);
        free(job.is_written);
    }
    return status;
}
