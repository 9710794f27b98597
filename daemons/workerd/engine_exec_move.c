/* Tensors that are made of others' local ones, by names that no backend knows:
 *   dtorch::redistribute(Tensor) -> Tensor   the same value in another layout, on this mesh or
 *                                            another; lib/transport moves the bytes
 *   dtorch::local(Tensor) -> Tensor          a copy of what one vdev has of a tensor on a mesh
 *   dtorch::assemble(Tensor[]) -> Tensor     a tensor on a mesh of one tensor on each of its vdevs,
 *                                            in their order; takes them over: they have no value
 *                                            then
 *
 * While a redistribution runs the session's next records wait, so nothing writes what is read; the
 * executor goes on with other sessions. A poisoned input, or no memory for a target, is told to the
 * transport instead of bytes, so that all engines of both meshes end with the same cause. */
#include <stdlib.h>
#include <string.h>

#include "engine_exec_internal.h"

/* One vdev of this engine that is on either mesh. */
typedef struct move_own {
    uint32_t vdev;
    uint32_t from_own, to_own; /* which of mesh->own; UINT32_MAX: it is not on that mesh */
    dt_meta_t from, to;        /* local; zeroed where it is not */
    void *target;              /* while it runs */
    void *staged_source;       /* dense bytes, where the tensor's own are not; NULL: they are */
    void *staged_target;
} move_own_t;

struct dt_exec_move {
    enum { MOVE_REDISTRIBUTE, MOVE_LOCAL, MOVE_ASSEMBLE } kind;
    dt_exec_mesh_t *from; /* of the input; ASSEMBLE: not looked at */
    dt_exec_mesh_t *to;   /* of the output */
    dt_exchange_plan_t *exchange;
    bool
        is_played; /* the device computes nothing, so there are no bytes: only who waits for whom */
    uint32_t own_count;
    move_own_t *owns;              /* (own_count) rising vdevs */
    dt_exchange_buffer_t *buffers; /* (own_count) */
    int64_t begin_ns;
};

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

static move_own_t *own_of(struct dt_exec_move *move, uint32_t vdev)
{
    for (uint32_t i = 0; i < move->own_count; i++)
        if (move->owns[i].vdev == vdev)
            return &move->owns[i];
    move_own_t *own = &move->owns[move->own_count++];
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
    move->buffers = dt_arena_calloc(plan->arena, most + 1, sizeof *move->buffers);
    if (!move->owns || !move->buffers)
        return no_memory(err);
    for (uint32_t i = 0; i < move->from->own_count; i++) {
        move_own_t *own = own_of(move, move->from->own[i].vdev);
        own->from_own = i;
        dt_shard_local_meta(&in->meta, &in->layout, &move->from->shape, move->from->own[i].place,
                            &own->from);
    }
    for (uint32_t i = 0; i < move->to->own_count; i++) {
        move_own_t *own = own_of(move, move->to->own[i].vdev);
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
    if (move)
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

/* A cause that arises here; the session is broken without memory for it. */
static dt_exec_cause_t *new_cause(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                  uint32_t vdev, const dt_error_t *err)
{
    dt_exec_cause_t *cause = dt_exec_cause_new(session, session->record->sequence, plan, NULL, vdev,
                                               dt_exec_error_kind(err), err);
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

static void count_run(dt_exec_session_t *session, const dt_exec_plan_t *plan, uint64_t bytes)
{
    plan->stat->count++;
    plan->stat->bytes += bytes;
    plan->stat->is_changed = true;
    session->has_stats = true;
}

/* ---- redistribution ---- */

static bool is_dense(const dt_backend_tensor_t *info)
{
    return info->data && info->meta.layout == DT_META_CONTIGUOUS;
}

static dt_status_t stage(uint64_t size, void **ret_block, dt_error_t *err)
{
    *ret_block = dt_exec_backend_memory()->alloc(NULL, size);
    return *ret_block
               ? DT_OK
               : dt_fail(err, DT_ERR_LIMIT, "dt", DT_BACKEND_OUT_OF_MEMORY,
                         "no memory to move a tensor of %llu bytes here", (unsigned long long)size);
}

/* Where the bytes of a source are. */
static dt_status_t take_source(dt_exec_t *exec, const struct dt_exec_move *move, move_own_t *own,
                               void *handle, dt_exchange_buffer_t *buffer, dt_error_t *err)
{
    const dt_exec_options_t *options = &exec->options;
    uint64_t size = (uint64_t)dt_meta_bytes(&own->from);
    dt_backend_tensor_t info;
    DT_TRY(options->backend->tensor_info(options->device, handle, &info, err));
    if (info.meta.dtype != own->from.dtype || info.meta.ndim != own->from.ndim ||
        memcmp(info.meta.sizes, own->from.sizes, info.meta.ndim * sizeof *info.meta.sizes) != 0) {
        char text[2][128];
        dt_meta_print(&own->from, text[0], sizeof text[0]);
        dt_meta_print(&info.meta, text[1], sizeof text[1]);
        return dt_fail(err, DT_ERR_INVALID, "dt", own->vdev,
                       "vdev %u was said to have %s and has %s", own->vdev, text[0], text[1]);
    }
    if (size == 0 || move->is_played)
        return DT_OK;
    if (is_dense(&info)) {
        buffer->source = info.data;
        return DT_OK;
    }
    DT_TRY(stage(size, &own->staged_source, err));
    buffer->source = own->staged_source;
    return options->backend->tensor_read(options->device, handle, 0, own->staged_source, size, err);
}

static dt_status_t make_target(dt_exec_t *exec, const struct dt_exec_move *move, move_own_t *own,
                               dt_exchange_buffer_t *buffer, dt_error_t *err)
{
    const dt_exec_options_t *options = &exec->options;
    uint64_t size = (uint64_t)dt_meta_bytes(&own->to);
    dt_backend_tensor_t info;
    DT_TRY(options->backend->tensor_create(options->device, &own->to, &own->target, err));
    if (size == 0 || move->is_played)
        return DT_OK;
    DT_TRY(options->backend->tensor_info(options->device, own->target, &info, err));
    if (is_dense(&info)) {
        buffer->target = info.data;
        return DT_OK;
    }
    DT_TRY(stage(size, &own->staged_target, err));
    buffer->target = own->staged_target;
    return DT_OK;
}

/* Whether an input's bytes have not come; else *ret_cause is the first cause of a poisoned one,
 * and *ret_missing a vdev that has nothing, UINT32_MAX: all have. */
static bool look_at_inputs(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                           dt_exec_cause_t **ret_cause, uint32_t *ret_missing)
{
    const struct dt_exec_move *move = plan->move;
    *ret_cause = NULL;
    *ret_missing = UINT32_MAX;
    for (uint32_t i = 0; i < move->from->own_count; i++) {
        const dt_exec_local_t *local =
            dt_exec_local(session, move->from, session->record->op.inputs[0], i);
        if (!local)
            *ret_missing = move->from->own[i].vdev;
        else if (local->storage->upload)
            return true;
        else if (local->storage->cause &&
                 (!*ret_cause || local->storage->cause->sequence < (*ret_cause)->sequence))
            *ret_cause = local->storage->cause;
    }
    return false;
}

/* Make ready what is moved. What was made stays for move_clear(). */
static dt_status_t take_buffers(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                uint32_t *ret_vdev, dt_error_t *err)
{
    const struct dt_exec_move *move = plan->move;
    dt_exec_t *exec = session->exec;
    if (exec->options.backend->device_sync && move->from->own_count > 0)
        DT_TRY(exec->options.backend->device_sync(exec->options.device, err));
    for (uint32_t i = 0; i < move->own_count; i++) {
        move_own_t *own = &move->owns[i];
        *ret_vdev = own->vdev;
        if (own->from_own != UINT32_MAX)
            DT_TRY(take_source(
                exec, move, own,
                dt_exec_local(session, move->from, session->record->op.inputs[0], own->from_own)
                    ->handle,
                &move->buffers[i], err));
        if (own->to_own != UINT32_MAX)
            DT_TRY(make_target(exec, move, own, &move->buffers[i], err));
    }
    return DT_OK;
}

/* Give back what a redistribution used, but for targets that were taken. */
static void move_clear(dt_exec_session_t *session, struct dt_exec_move *move)
{
    const dt_exec_options_t *options = &session->exec->options;
    for (uint32_t i = 0; i < move->own_count; i++) {
        move_own_t *own = &move->owns[i];
        dt_exec_backend_memory()->release(own->staged_source);
        dt_exec_backend_memory()->release(own->staged_target);
        options->backend->tensor_free(options->device, own->target);
        own->staged_source = own->staged_target = own->target = NULL;
        move->buffers[i] = (dt_exchange_buffer_t){.vdev = own->vdev};
    }
}

static dt_exec_cause_t *copy_cause(const dt_exchange_cause_t *from)
{
    dt_exec_cause_t *cause = malloc(sizeof *cause + from->size);
    if (!cause)
        return NULL;
    *cause = (dt_exec_cause_t){.refs = 1, .size = from->size, .sequence = from->sequence};
    memcpy(cause->bytes, from->bytes, from->size);
    return cause;
}

/* The transport says how it ended. */
static void on_done(void *arg, const dt_exchange_result_t *result)
{
    dt_exec_session_t *session = arg;
    session->is_moved = true;
    session->is_waiting = false;
    session->move_status = result->status;
    session->move_err = result->err;
    if (result->cause.size == 0)
        return;
    if (session->move_cause && session->move_cause->sequence == result->cause.sequence)
        return; /* it is ours */
    dt_exec_cause_unref(session->move_cause);
    session->move_cause = copy_cause(&result->cause);
    if (!session->move_cause)
        dt_exec_break(session, "a cause");
}

/* Start it. False: the input's bytes have not come. */
static bool redistribute_begin(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    struct dt_exec_move *move = plan->move;
    dt_exec_t *exec = session->exec;
    dt_exec_cause_t *cause;
    uint32_t vdev;
    dt_error_t err = {0};
    dt_status_t status = DT_OK;
    if (look_at_inputs(session, plan, &cause, &vdev))
        return false;
    move->begin_ns = dt_exec_now(exec);
    move_clear(session, move);
    if (cause)
        cause->refs++;
    else if (vdev != UINT32_MAX)
        status = dt_fail(&err, DT_ERR_LOST, "dt", vdev, "the input is not on vdev %u", vdev);
    else
        status = take_buffers(session, plan, &vdev, &err);
    if (status != DT_OK) {
        err.code = status;
        cause = new_cause(session, plan, vdev, &err);
    }
    if (cause)
        move_clear(session, move);
    session->moving = plan;
    session->is_moved = false;
    session->move_cause = cause;
    const dt_exchange_t exchange = {
        .plan = move->exchange,
        .number = session->record->sequence,
        .buffers = move->buffers,
        .buffer_count = move->own_count,
        .cause = {cause ? cause->sequence : 0, cause ? cause->size : 0,
                  cause ? cause->bytes : NULL},
        .done = on_done,
        .arg = session,
    };
    dt_exec_page_begin(exec, plan);
    (void)dt_transport_start(exec->options.transport, session->instance, &exchange);
    plan->stat->device_ns += (uint64_t)dt_exec_page_end(exec);
    return true;
}

/* Bring staged bytes home and give the output its id. */
static dt_status_t take_targets(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                uint32_t *ret_vdev, dt_error_t *err)
{
    const struct dt_exec_move *move = plan->move;
    const dt_exec_options_t *options = &session->exec->options;
    for (uint32_t i = 0; i < move->own_count; i++) {
        move_own_t *own = &move->owns[i];
        *ret_vdev = own->vdev;
        if (own->staged_target)
            DT_TRY(options->backend->tensor_write(options->device, own->target, 0,
                                                  own->staged_target,
                                                  (size_t)dt_meta_bytes(&own->to), err));
    }
    for (uint32_t i = 0; i < move->own_count; i++) {
        move_own_t *own = &move->owns[i];
        if (own->to_own == UINT32_MAX)
            continue;
        enter_output(session, plan, own->to_own, own->target);
        own->target = NULL;
    }
    return DT_OK;
}

static void redistribute_end(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    struct dt_exec_move *move = plan->move;
    dt_exec_cause_t *cause = session->move_cause;
    dt_status_t status = session->move_status;
    dt_error_t err = session->move_err;
    uint32_t vdev = move->owns[0].vdev;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < move->own_count; i++)
        bytes += (uint64_t)dt_meta_bytes(&move->owns[i].to);
    session->moving = NULL;
    session->move_cause = NULL;
    count_run(session, plan, bytes);
    for (uint32_t i = 0; session->trace && i < move->own_count; i++) {
        plan->vdev = move->owns[i].vdev;
        dt_exec_trace_op(session, plan, dt_exec_now(session->exec) - move->begin_ns,
                         cause || status != DT_OK);
    }
    plan->vdev = vdev;
    if (!cause && status == DT_OK)
        status = take_targets(session, plan, &vdev, &err);
    if (!cause && status != DT_OK) {
        err.code = status;
        cause = new_cause(session, plan, vdev, &err);
    }
    if (cause) {
        cause->skipped++;
        poison_output(session, plan, cause);
        dt_exec_cause_unref(cause);
    }
    move_clear(session, move);
}

static bool redistribute(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    if (!session->moving && !redistribute_begin(session, plan))
        return false;
    if (!session->is_moved)
        return false;
    redistribute_end(session, plan);
    return true;
}

void dt_exec_move_leave(dt_exec_session_t *session)
{
    dt_exec_t *exec = session->exec;
    if (exec->options.transport)
        dt_transport_close(exec->options.transport, session->instance);
    if (session->moving)
        move_clear(session, session->moving->move);
    session->moving = NULL;
    dt_exec_cause_unref(session->move_cause);
    session->move_cause = NULL;
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
    count_run(session, plan, 0);
    if (status == DT_OK) {
        enter_output(session, plan, 0, handle);
        return true;
    }
    options->backend->tensor_free(options->device, handle);
    err.code = status;
    dt_exec_cause_t *cause = new_cause(session, plan, move->to->own[0].vdev, &err);
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
    count_run(session, plan, 0);
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
        dt_exec_cause_t *cause = new_cause(session, plan, mesh->own[i].vdev, &err);
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
        return redistribute(session, plan);
    }
}
