/* Tensors that are made of others' local ones, by names that no backend knows:
 *   dtorch::redistribute(Tensor) -> Tensor   the same value in another layout, on this mesh or
 *                                            another; lib/transport moves the bytes
 *   dtorch::local(Tensor) -> Tensor          a copy of what one vdev has of a tensor on a mesh
 *   dtorch::assemble(Tensor[]) -> Tensor     a tensor on a mesh of one tensor on each of its vdevs,
 *                                            in their order; takes them over: they have no value
 *                                            then
 *
 * Here are their definitions, and what moves no bytes between devices; how a redistribution runs is
 * engine_exec_redistribute.c's. */
#include "engine_exec_move.h"

#include <stdlib.h>
#include <string.h>

/* ---- definition ---- */

static dt_status_t no_memory(dt_error_t *err)
{
    return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
}

bool dt_exec_is_move(const char *name)
{
    return strcmp(name, "dtorch::redistribute") == 0 || strcmp(name, "dtorch::local") == 0 ||
           strcmp(name, "dtorch::assemble") == 0;
}

static dt_exec_move_own_t *own_of(struct dt_exec_move *move, uint32_t vdev)
{
    for (uint32_t i = 0; i < move->own_count; i++)
        if (move->owns[i].vdev == vdev)
            return &move->owns[i];
    dt_exec_move_own_t *own = &move->owns[move->own_count++];
    own->vdev = vdev;
    own->from_own = own->to_own = UINT32_MAX;
    return own;
}

/* Our vdevs on either mesh. */
static dt_status_t find_owns(dt_exec_plan_t *plan, dt_error_t *err)
{
    struct dt_exec_move *move = plan->move;
    const dt_signature_t *sig = plan->signature;
    const dt_signature_tensor_t *in = &sig->inputs[0];
    const dt_signature_tensor_t *out = &sig->outputs[0];
    uint32_t most = move->from->own_count + move->to->own_count;
    move->owns = dt_arena_calloc(plan->arena, most + 1, sizeof *move->owns);
    if (!move->owns)
        return no_memory(err);
    for (uint32_t i = 0; i < move->from->own_count; i++) {
        dt_exec_move_own_t *own = own_of(move, move->from->own[i].vdev);
        own->from_own = i;
        dt_shard_local_meta(&in->meta, &in->layout, &move->from->shape, move->from->own[i].place,
                            &own->from);
    }
    for (uint32_t i = 0; i < move->to->own_count; i++) {
        dt_exec_move_own_t *own = own_of(move, move->to->own[i].vdev);
        own->to_own = i;
        dt_shard_local_meta(&out->meta, &out->layout, &move->to->shape, move->to->own[i].place,
                            &own->to);
    }
    return DT_OK;
}

static dt_status_t prepare_exchange(dt_exec_session_t *session, dt_exec_plan_t *plan,
                                    dt_error_t *err)
{
    struct dt_exec_move *move = plan->move;
    const dt_signature_t *sig = plan->signature;
    dt_shard_pair_t pair = {.meta = &sig->inputs[0].meta,
                            .from_mesh = &move->from->shape,
                            .to_mesh = &move->to->shape,
                            .from = &sig->inputs[0].layout,
                            .to = &sig->outputs[0].layout};
    if (!session->exec->options.transport)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "%s: there is no transport here", sig->name);
    DT_TRY(dt_layout_check(&sig->inputs[0].layout, &move->from->shape, &sig->inputs[0].meta, err));
    DT_TRY(dt_layout_check(&sig->outputs[0].layout, &move->to->shape, &sig->outputs[0].meta, err));
    DT_TRY(find_owns(plan, err));
    dt_meta_t nothing;
    move->is_played = session->exec->options.backend->op_expect && pair.meta->ndim > 0;
    if (move->is_played) {
        static const int64_t sizes[DT_META_DIM_MAX];
        DT_TRY(dt_meta_set(&nothing, pair.meta->dtype, pair.meta->ndim, sizes, NULL, 0, err));
        pair.meta = &nothing;
    }
    return dt_exchange_plan_create(sig->name, &pair, &move->exchange, err);
}

/* Of a local tensor its vdev must be one of the mesh; here, if it is ours. */
static dt_status_t prepare_local(dt_exec_plan_t *plan, dt_error_t *err)
{
    struct dt_exec_move *move = plan->move;
    if (move->to->shape.count != 1 ||
        dt_shard_mesh_find(&move->from->shape, move->to->vdevs[0]) < 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: the output is not on a vdev of the mesh",
                       plan->signature->name);
    return DT_OK;
}

static dt_status_t prepare_assemble(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                    dt_error_t *err)
{
    const dt_signature_t *sig = plan->signature;
    const dt_exec_mesh_t *to = plan->move->to;
    bool is_fit = sig->input_count == to->shape.count;
    for (uint32_t i = 0; is_fit && i < sig->input_count; i++) {
        const dt_exec_mesh_t *from = dt_exec_mesh_of(session, &sig->inputs[i].layout);
        is_fit = from && from->shape.count == 1 && from->vdevs[0] == to->vdevs[i];
    }
    return is_fit ? DT_OK
                  : dt_fail(err, DT_ERR_INVALID, "dt", sig->input_count,
                            "%s: its inputs are not one on each vdev of the mesh", sig->name);
}

/* Errors that only this engine can have are memory's; all others come on every engine alike. */
static dt_status_t prepare(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    struct dt_exec_move *move = plan->move;
    const dt_signature_t *sig = plan->signature;
    move->to = sig->output_count == 1 && sig->outputs[0].alias != DT_ALIAS_NONE
                   ? dt_exec_mesh_of(session, &sig->outputs[0].layout)
                   : NULL;
    if (move->to)
        plan->mesh = move->to;
    move->from = sig->input_count > 0 ? dt_exec_mesh_of(session, &sig->inputs[0].layout) : NULL;
    if (!move->from || !move->to || sig->id_count != 1 || sig->dynamic_count > 0 ||
        (move->kind != MOVE_ASSEMBLE && sig->input_count != 1))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s: not with these tensors", sig->name);
    switch (move->kind) {
    case MOVE_LOCAL:
        return prepare_local(plan, err);
    case MOVE_ASSEMBLE:
        return prepare_assemble(session, plan, err);
    default:
        return prepare_exchange(session, plan, err);
    }
}

dt_status_t dt_exec_plan_move(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    const char *name = plan->signature->name;
    struct dt_exec_move *move = plan->move = dt_arena_calloc(plan->arena, 1, sizeof *move);
    plan->mesh = &session->first;
    if (!move)
        return no_memory(err);
    move->kind = strcmp(name, "dtorch::local") == 0      ? MOVE_LOCAL
                 : strcmp(name, "dtorch::assemble") == 0 ? MOVE_ASSEMBLE
                                                         : MOVE_REDISTRIBUTE;
    dt_status_t status = prepare(session, plan, err);
    bool is_mine = plan->mesh->own_count > 0 || move->own_count > 0;
    plan->way = is_mine ? DT_EXEC_WAY_MOVE : DT_EXEC_WAY_PASS;
    if (!is_mine)
        return DT_OK;
    plan->vdev = plan->mesh->own_count > 0 ? plan->mesh->own[0].vdev : move->owns[0].vdev;
    dt_exec_plan_name(plan);
    plan->stat = dt_exec_stat(session, name);
    if (!plan->stat)
        return no_memory(err);
    return status;
}

bool dt_exec_move_again(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    dt_error_t err = {0};
    if (plan->refused->code != DT_ERR_NOMEM ||
        strcmp(plan->signature->name, "dtorch::redistribute") != 0)
        return false;
    dt_exec_move_free(DT_TAKE(plan->move));
    if (dt_exec_plan_move(session, plan, &err) == DT_OK)
        return true;
    plan->way = DT_EXEC_WAY_REFUSE;
    if (session->exec->options.transport)
        dt_transport_quit(session->exec->options.transport, session->instance, err.text);
    return false;
}

void dt_exec_move_free(struct dt_exec_move *move)
{
    if (!move)
        return;
    dt_exec_runs_free(move);
    dt_exchange_plan_free(move->exchange);
}

/* ---- what all have in common ---- */

/* The output has a cause, on all of our vdevs of its mesh. */
static void poison_output(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                          dt_exec_cause_t *cause)
{
    for (uint32_t i = 0; i < plan->mesh->own_count; i++)
        dt_exec_enter_poisoned(session, plan->mesh, i, session->record->op.outputs[0], cause);
}

dt_exec_cause_t *dt_exec_move_cause(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                    uint64_t sequence, uint32_t vdev, const dt_error_t *err)
{
    dt_exec_cause_t *cause =
        dt_exec_cause_new(session, sequence, plan, NULL, vdev, dt_exec_error_kind(err), err);
    plan->stat->errors++;
    plan->stat->is_changed = true;
    session->has_stats = true;
    if (cause)
        dt_exec_tell_poison(session, cause);
    else
        dt_exec_break(session, "a cause");
    return cause;
}

/* The output on mesh->own[own]; takes the handle. */
static void enter_output(dt_exec_session_t *session, const dt_exec_plan_t *plan, uint32_t own,
                         void *handle)
{
    const dt_exec_options_t *options = &session->exec->options;
    dt_exec_storage_t *storage =
        dt_exec_storage_new(session->exec, plan->mesh->own[own].vdev, session->record->sequence);
    if (storage && dt_exec_enter_local(session, plan->mesh, own, session->record->op.outputs[0],
                                       handle, storage))
        return;
    if (storage)
        dt_exec_storage_unref(session, storage);
    options->backend->tensor_free(options->device, handle);
    dt_exec_break(session, "the tensors");
}

void dt_exec_move_count(dt_exec_session_t *session, const dt_exec_plan_t *plan, uint64_t bytes)
{
    plan->stat->count++;
    plan->stat->bytes += bytes;
    plan->stat->is_changed = true;
    session->has_stats = true;
}

/* ---- without moving bytes between devices ---- */

static dt_status_t copy_tensor(dt_exec_t *exec, void *from, void **ret_to, dt_error_t *err)
{
    const dt_exec_options_t *options = &exec->options;
    dt_backend_tensor_t info;
    dt_meta_t meta;
    if (options->backend->device_sync)
        DT_TRY(options->backend->device_sync(options->device, err));
    DT_TRY(options->backend->tensor_info(options->device, from, &info, err));
    DT_TRY(dt_meta_set(&meta, info.meta.dtype, info.meta.ndim, info.meta.sizes, NULL, 0, err));
    DT_TRY(options->backend->tensor_create(options->device, &meta, ret_to, err));
    uint64_t size = (uint64_t)dt_meta_bytes(&meta);
    for (uint64_t at = 0; at < size; at += DT_EXEC_SCRATCH_BYTES) {
        size_t piece = size - at < DT_EXEC_SCRATCH_BYTES ? size - at : DT_EXEC_SCRATCH_BYTES;
        DT_TRY(options->backend->tensor_read(options->device, from, at, exec->scratch, piece, err));
        DT_TRY(options->backend->tensor_write(options->device, *ret_to, at, exec->scratch, piece,
                                              err));
    }
    return DT_OK;
}

/* Which of ours it is; the output's vdev is ours. */
static uint32_t local_own(const struct dt_exec_move *move)
{
    uint32_t i = 0;
    while (i + 1 < move->from->own_count && move->from->own[i].vdev != move->to->vdevs[0])
        i++;
    return i;
}

static bool take_local(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    const dt_exec_options_t *options = &session->exec->options;
    const struct dt_exec_move *move = plan->move;
    void *handle = NULL;
    dt_error_t err = {0};
    dt_status_t status;
    dt_exec_local_t *local =
        dt_exec_local(session, move->from, session->record->op.inputs[0], local_own(move));
    if (local && local->storage->upload)
        return false;
    if (local && local->storage->cause) {
        local->storage->cause->skipped++;
        poison_output(session, plan, local->storage->cause);
        return true;
    }
    status = local ? copy_tensor(session->exec, local->handle, &handle, &err)
                   : dt_fail(&err, DT_ERR_LOST, "dt", 0, "the input is not on this device");
    dt_exec_move_count(session, plan, 0);
    if (status == DT_OK) {
        enter_output(session, plan, 0, handle);
        return true;
    }
    options->backend->tensor_free(options->device, handle);
    err.code = status;
    dt_exec_cause_t *cause =
        dt_exec_move_cause(session, plan, session->record->sequence, move->to->own[0].vdev, &err);
    if (cause)
        poison_output(session, plan, cause);
    dt_exec_cause_unref(cause);
    return true;
}

/* Take over the tensor on one of our vdevs; what is left has no value. */
static dt_status_t assemble_one(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                uint32_t own, dt_exec_cause_t *taken, dt_error_t *err)
{
    dt_exec_mesh_t *mesh = plan->mesh;
    const dt_record_op_t *op = &session->record->op;
    dt_exec_tensor_t *input = dt_exec_find(&session->tensors, op->inputs[mesh->own[own].place]);
    if (!input)
        return dt_fail(err, DT_ERR_LOST, "dt", 0, "an input is not on this device");
    if (input->storage->cause) {
        dt_exec_enter_poisoned(session, mesh, own, op->outputs[0], input->storage->cause);
        return DT_OK;
    }
    dt_exec_storage_t *left =
        dt_exec_storage_new(session->exec, mesh->own[own].vdev, session->record->sequence);
    if (!left)
        return no_memory(err);
    dt_exec_poison(left, taken);
    dt_exec_local_t local = input->local;
    input->local = (dt_exec_local_t){NULL, left};
    if (dt_exec_enter_local(session, mesh, own, op->outputs[0], local.handle, local.storage))
        return DT_OK;
    dt_exec_find(&session->tensors, op->inputs[mesh->own[own].place])->local = local;
    dt_exec_storage_unref(session, left);
    return no_memory(err);
}

static bool assemble(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    dt_exec_mesh_t *mesh = plan->mesh;
    dt_error_t err = {0};
    (void)dt_fail(&err, DT_ERR_INVALID, "dt", 0, "its value was taken over by %s",
                  plan->signature->name);
    dt_exec_cause_t *taken = dt_exec_cause_new(session, session->record->sequence, plan, NULL,
                                               mesh->own[0].vdev, "RuntimeError", &err);
    dt_exec_move_count(session, plan, 0);
    if (!taken) {
        dt_exec_break(session, "a cause");
        return true;
    }
    for (uint32_t i = 0; i < mesh->own_count; i++) {
        err = (dt_error_t){0};
        dt_status_t status = assemble_one(session, plan, i, taken, &err);
        if (status == DT_OK)
            continue;
        err.code = status;
        dt_exec_cause_t *cause =
            dt_exec_move_cause(session, plan, session->record->sequence, mesh->own[i].vdev, &err);
        if (cause)
            dt_exec_enter_poisoned(session, mesh, i, session->record->op.outputs[0], cause);
        dt_exec_cause_unref(cause);
    }
    dt_exec_cause_unref(taken);
    return true;
}

bool dt_exec_perform_move(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    switch (plan->move->kind) {
    case MOVE_LOCAL:
        return plan->mesh->own_count == 0 || take_local(session, plan);
    case MOVE_ASSEMBLE:
        return plan->mesh->own_count == 0 || assemble(session, plan);
    default:
        return dt_exec_redistribute(session, plan);
    }
}
