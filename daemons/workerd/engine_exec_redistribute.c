/* Redistributions: the communication queue of a session on this engine (core/moves.h). A record of
 * one makes its targets, gives them its output's id and joins the queue; the next records are
 * performed meanwhile, but for those that need what is moved. The queue's first move runs; it is
 * begun and ended between records, on this thread.
 *
 * What a queued move reads may be freed: its handle is the move's then, until that ends. A poisoned
 * input, or no memory for a target, is told to the transport instead of bytes, so that all engines
 * of both meshes end with the same cause. */
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "engine_exec_move.h"

/* What one vdev has to do with it. */
typedef struct run_own {
    void *source, *target;               /* handles; NULL: none */
    dt_exec_storage_t *from_storage;     /* with a reference; NULL: none */
    dt_exec_storage_t *to_storage;       /* likewise */
    bool frees_source, frees_target;     /* the program has freed it: the handle is ours */
    void *staged_source, *staged_target; /* dense bytes, where the tensor's own are not */
} run_own_t;

/* One use of a plan. */
typedef struct dt_exec_run {
    dt_move_t move;
    struct dt_exec_run *next_spare;
    dt_exec_session_t *session;
    dt_exec_plan_t *plan;
    dt_exec_origin_t origin;
    uint32_t signature;
    uint64_t output; /* its id */
    int64_t begin_ns;
    dt_exec_cause_t *cause; /* NULL: it has its value, or `err` says why not */
    bool is_over;           /* the transport has done with it, so: */
    dt_status_t status;
    dt_error_t err;
    run_own_t *owns;               /* (plan->move->own_count) as its `owns` */
    dt_exchange_buffer_t *buffers; /* (own_count) */
    dt_move_mark_t **marks;        /* (2 * own_count) */
} dt_exec_run_t;

/* ---- memory ---- */

static dt_exec_run_t *run_new(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    struct dt_exec_move *move = plan->move;
    size_t count = move->own_count;
    dt_exec_run_t *run = move->spare;
    if (run) {
        move->spare = run->next_spare;
    } else {
        run = calloc(1, sizeof *run + count * (sizeof *run->owns + sizeof *run->buffers +
                                               2 * sizeof(dt_move_mark_t *)));
        if (!run)
            return NULL;
        run->owns = (run_own_t *)(run + 1);
        run->buffers = (dt_exchange_buffer_t *)(run->owns + count);
        run->marks = (dt_move_mark_t **)(run->buffers + count);
    }
    memset(run->owns, 0, count * sizeof *run->owns);
    for (uint32_t i = 0; i < count; i++)
        run->buffers[i] = (dt_exchange_buffer_t){.vdev = move->owns[i].vdev};
    run->session = session;
    run->plan = plan;
    run->signature = session->record->op.signature;
    run->output = session->record->op.outputs[0];
    run->move.sequence = session->record->sequence;
    dt_exec_origin_copy(&run->origin, session->origin);
    run->cause = NULL;
    run->is_over = false;
    return run;
}

void dt_exec_runs_free(struct dt_exec_move *move)
{
    while (move->spare) {
        dt_exec_run_t *run = move->spare;
        move->spare = run->next_spare;
        free(run);
    }
}

/* Give back all that it used; it is in no queue any more. */
static void run_drop(dt_exec_run_t *run)
{
    dt_exec_session_t *session = run->session;
    const dt_exec_options_t *options = &session->exec->options;
    struct dt_exec_move *move = run->plan->move;
    for (uint32_t i = 0; i < move->own_count; i++) {
        run_own_t *own = &run->owns[i];
        dt_exec_backend_memory()->release(own->staged_source);
        dt_exec_backend_memory()->release(own->staged_target);
        if (own->frees_source)
            options->backend->tensor_free(options->device, own->source);
        if (own->frees_target)
            options->backend->tensor_free(options->device, own->target);
        session->kept_count -= own->frees_source + own->frees_target;
        if (own->from_storage)
            dt_exec_storage_unref(session, own->from_storage);
        if (own->to_storage)
            dt_exec_storage_unref(session, own->to_storage);
    }
    dt_exec_cause_unref(run->cause);
    run->next_spare = move->spare;
    move->spare = run;
}

bool dt_exec_run_keeps(dt_exec_session_t *session, const dt_exec_local_t *local)
{
    for (dt_list_t *at = session->moves.queue.prev; at != &session->moves.queue; at = at->prev) {
        dt_exec_run_t *run = DT_CONTAINER_OF(at, dt_exec_run_t, move.link);
        for (uint32_t i = 0; i < run->plan->move->own_count; i++) {
            run_own_t *own = &run->owns[i];
            if (own->source != local->handle && own->target != local->handle)
                continue;
            *(own->source == local->handle ? &own->frees_source : &own->frees_target) = true;
            session->kept_count++;
            return true;
        }
    }
    return false;
}

/* ---- coming to one ---- */

/* It fails for a reason that arises here, now or at its record. */
static void fail(dt_exec_run_t *run, dt_status_t status, uint32_t vdev, dt_error_t *err)
{
    dt_exec_session_t *session = run->session;
    const dt_exec_origin_t *now = session->origin;
    err->code = status;
    session->origin = &run->origin;
    run->cause = dt_exec_move_cause(session, run->plan, run->move.sequence, vdev, err);
    session->origin = now;
}

/* Take the inputs. Their first cause becomes the run's. False: bytes of one have not come. */
static bool take_inputs(dt_exec_run_t *run)
{
    dt_exec_session_t *session = run->session;
    const struct dt_exec_move *move = run->plan->move;
    uint32_t missing = UINT32_MAX;
    for (uint32_t i = 0; i < move->own_count; i++) {
        run_own_t *own = &run->owns[i];
        if (move->owns[i].from_own == UINT32_MAX)
            continue;
        const dt_exec_local_t *local = dt_exec_local(
            session, move->from, session->record->op.inputs[0], move->owns[i].from_own);
        if (!local) {
            missing = move->owns[i].vdev;
            continue;
        }
        if (local->storage->upload)
            return false;
        if (local->storage->cause &&
            (!run->cause || local->storage->cause->sequence < run->cause->sequence))
            run->cause = local->storage->cause;
        own->source = local->handle;
        own->from_storage = local->storage;
    }
    for (uint32_t i = 0; i < move->own_count; i++)
        if (run->owns[i].from_storage)
            run->owns[i].from_storage->refs++;
    if (run->cause) {
        run->cause->refs++;
    } else if (missing != UINT32_MAX) {
        dt_error_t err = {0};
        fail(run, dt_fail(&err, DT_ERR_LOST, "dt", missing, "the input is not on vdev %u", missing),
             missing, &err);
    }
    return true;
}

/* Name the target of a vdev, which is there or not. False: no memory. */
static bool enter_target(dt_exec_run_t *run, uint32_t i)
{
    dt_exec_session_t *session = run->session;
    const dt_exec_move_own_t *is = &run->plan->move->owns[i];
    run_own_t *own = &run->owns[i];
    dt_exec_storage_t *storage = dt_exec_storage_new(session->exec, is->vdev, run->move.sequence);
    if (storage && dt_exec_enter_local(session, run->plan->mesh, is->to_own, run->output,
                                       own->target, storage)) {
        storage->refs++;
        own->to_storage = storage;
        return true;
    }
    if (storage)
        dt_exec_storage_unref(session, storage);
    own->frees_target = true;
    session->kept_count++;
    dt_exec_break(session, "the tensors");
    return false;
}

/* The program's tensors of the output have no value: take the handles out of the table. */
static void take_targets_back(dt_exec_run_t *run)
{
    const struct dt_exec_move *move = run->plan->move;
    for (uint32_t i = 0; i < move->own_count; i++) {
        run_own_t *own = &run->owns[i];
        if (!own->target || own->frees_target)
            continue;
        dt_exec_local_t *local =
            dt_exec_local(run->session, run->plan->mesh, run->output, move->owns[i].to_own);
        if (local && local->handle == own->target)
            local->handle = NULL;
        own->frees_target = true;
        run->session->kept_count++;
    }
}

/* Make the targets and give them their id, in any case: who reads it waits for the end. */
static void make_targets(dt_exec_run_t *run)
{
    const dt_exec_options_t *options = &run->session->exec->options;
    const struct dt_exec_move *move = run->plan->move;
    for (uint32_t i = 0; i < move->own_count; i++) {
        const dt_exec_move_own_t *is = &move->owns[i];
        dt_error_t err = {0};
        dt_status_t status = DT_OK;
        if (is->to_own == UINT32_MAX)
            continue;
        if (!run->cause)
            status = options->backend->tensor_create(options->device, &is->to, &run->owns[i].target,
                                                     &err);
        if (!enter_target(run, i))
            status = dt_fail(&err, DT_ERR_NOMEM, "dt", 0, "no memory for a tensor");
        if (status != DT_OK && !run->cause)
            fail(run, status, is->vdev, &err);
    }
    if (run->cause || run->session->is_broken)
        take_targets_back(run);
}

static void mark(dt_exec_run_t *run)
{
    dt_move_t *move = &run->move;
    uint32_t count = run->plan->move->own_count;
    move->reads = run->marks;
    move->makes = run->marks + count;
    move->read_count = move->make_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (run->owns[i].from_storage)
            move->reads[move->read_count++] = &run->owns[i].from_storage->mark;
        if (run->owns[i].to_storage)
            move->makes[move->make_count++] = &run->owns[i].to_storage->mark;
    }
}

/* ---- running one ---- */

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
static dt_status_t take_source(dt_exec_run_t *run, uint32_t i, dt_error_t *err)
{
    const dt_exec_options_t *options = &run->session->exec->options;
    const struct dt_exec_move *move = run->plan->move;
    const dt_exec_move_own_t *is = &move->owns[i];
    run_own_t *own = &run->owns[i];
    uint64_t size = (uint64_t)dt_meta_bytes(&is->from);
    dt_backend_tensor_t info;
    DT_TRY(options->backend->tensor_info(options->device, own->source, &info, err));
    if (info.meta.dtype != is->from.dtype || info.meta.ndim != is->from.ndim ||
        memcmp(info.meta.sizes, is->from.sizes, info.meta.ndim * sizeof *info.meta.sizes) != 0) {
        char text[2][128];
        dt_meta_print(&is->from, text[0], sizeof text[0]);
        dt_meta_print(&info.meta, text[1], sizeof text[1]);
        return dt_fail(err, DT_ERR_INVALID, "dt", is->vdev,
                       "vdev %u was said to have %s and has %s", is->vdev, text[0], text[1]);
    }
    if (size == 0 || move->is_played)
        return DT_OK;
    if (is_dense(&info)) {
        run->buffers[i].source = info.data;
        return DT_OK;
    }
    DT_TRY(stage(size, &own->staged_source, err));
    run->buffers[i].source = own->staged_source;
    return options->backend->tensor_read(options->device, own->source, 0, own->staged_source, size,
                                         err);
}

static dt_status_t take_target(dt_exec_run_t *run, uint32_t i, dt_error_t *err)
{
    const dt_exec_options_t *options = &run->session->exec->options;
    const struct dt_exec_move *move = run->plan->move;
    run_own_t *own = &run->owns[i];
    uint64_t size = (uint64_t)dt_meta_bytes(&move->owns[i].to);
    dt_backend_tensor_t info;
    if (size == 0 || move->is_played)
        return DT_OK;
    DT_TRY(options->backend->tensor_info(options->device, own->target, &info, err));
    if (is_dense(&info)) {
        run->buffers[i].target = info.data;
        return DT_OK;
    }
    DT_TRY(stage(size, &own->staged_target, err));
    run->buffers[i].target = own->staged_target;
    return DT_OK;
}

/* Make ready what is moved. */
static dt_status_t take_buffers(dt_exec_run_t *run, uint32_t *ret_vdev, dt_error_t *err)
{
    const dt_exec_options_t *options = &run->session->exec->options;
    const struct dt_exec_move *move = run->plan->move;
    if (options->backend->device_sync && move->from->own_count > 0)
        DT_TRY(options->backend->device_sync(options->device, err));
    for (uint32_t i = 0; i < move->own_count; i++) {
        *ret_vdev = move->owns[i].vdev;
        if (move->owns[i].from_own != UINT32_MAX)
            DT_TRY(take_source(run, i, err));
        if (move->owns[i].to_own != UINT32_MAX)
            DT_TRY(take_target(run, i, err));
    }
    return DT_OK;
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
    dt_exec_run_t *run = arg;
    run->session->is_waiting = false;
    run->is_over = true;
    run->status = result->status;
    run->err = result->err;
    if (result->cause.size == 0)
        return;
    if (run->cause && run->cause->sequence == result->cause.sequence)
        return; /* it is ours */
    dt_exec_cause_unref(run->cause);
    run->cause = copy_cause(&result->cause);
    if (!run->cause)
        dt_exec_break(run->session, "a cause");
}

/* For the agent, should this engine die meanwhile. */
static void tell_moving(const dt_exec_run_t *run)
{
    dt_channel_t *channel = run->session->memory.channel;
    const char *source = run->origin.source;
    (void)dt_str_copy(channel->move_name, sizeof channel->move_name, run->plan->signature->name);
    (void)dt_str_copy(channel->move_source, sizeof channel->move_source, source ? source : "");
    atomic_store_explicit(&channel->moving, run->move.sequence, memory_order_release);
}

static void run_begin(dt_exec_run_t *run)
{
    dt_exec_session_t *session = run->session;
    dt_exec_t *exec = session->exec;
    const struct dt_exec_move *move = run->plan->move;
    uint32_t vdev = move->owns[0].vdev;
    dt_error_t err = {0};
    run->begin_ns = dt_exec_now(exec);
    tell_moving(run);
    dt_status_t status = run->cause ? DT_OK : take_buffers(run, &vdev, &err);
    if (status != DT_OK)
        fail(run, status, vdev, &err);
    for (uint32_t i = 0; run->cause && i < move->own_count; i++)
        run->buffers[i].source = run->buffers[i].target = NULL;
    const dt_exec_cause_t *cause = run->cause;
    const dt_exchange_t exchange = {
        .plan = move->exchange,
        .number = run->move.sequence,
        .buffers = run->buffers,
        .buffer_count = move->own_count,
        .cause = {cause ? cause->sequence : 0, cause ? cause->size : 0,
                  cause ? cause->bytes : NULL},
        .done = on_done,
        .arg = run,
    };
    dt_exec_page_begin(exec, run->plan);
    (void)dt_transport_start(exec->options.transport, session->instance, &exchange);
    run->plan->stat->device_ns += (uint64_t)dt_exec_page_end(exec);
}

/* Bring staged bytes home. */
static dt_status_t fill_targets(dt_exec_run_t *run, uint32_t *ret_vdev, dt_error_t *err)
{
    const struct dt_exec_move *move = run->plan->move;
    const dt_exec_options_t *options = &run->session->exec->options;
    for (uint32_t i = 0; i < move->own_count; i++) {
        *ret_vdev = move->owns[i].vdev;
        if (run->owns[i].staged_target)
            DT_TRY(options->backend->tensor_write(options->device, run->owns[i].target, 0,
                                                  run->owns[i].staged_target,
                                                  (size_t)dt_meta_bytes(&move->owns[i].to), err));
    }
    return DT_OK;
}

/* What people see of it. */
static void run_tell(dt_exec_run_t *run, bool has_failed)
{
    dt_exec_session_t *session = run->session;
    dt_exec_plan_t *plan = run->plan;
    const struct dt_exec_move *move = plan->move;
    const dt_exec_origin_t *now = session->origin;
    uint32_t vdev = plan->vdev;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < move->own_count; i++)
        bytes += (uint64_t)dt_meta_bytes(&move->owns[i].to);
    dt_exec_move_count(session, plan, bytes);
    dt_exec_move_time(session->exec, DT_ENGINE_MOVE_RUNS,
                      dt_exec_now(session->exec) - run->begin_ns);
    session->origin = &run->origin;
    for (uint32_t i = 0; session->trace && i < move->own_count; i++) {
        plan->vdev = move->owns[i].vdev;
        dt_exec_trace_op(session, plan, run->move.sequence, run->signature,
                         dt_exec_now(session->exec) - run->begin_ns, has_failed);
    }
    session->origin = now;
    plan->vdev = vdev;
}

/* Its output has a value now, or the cause. */
static void run_end(dt_exec_run_t *run)
{
    dt_exec_session_t *session = run->session;
    const struct dt_exec_move *move = run->plan->move;
    uint32_t vdev = move->owns[0].vdev;
    dt_status_t status = run->status;
    atomic_store_explicit(&session->memory.channel->moving, 0, memory_order_relaxed);
    run_tell(run, run->cause || status != DT_OK);
    if (!run->cause && status == DT_OK)
        status = fill_targets(run, &vdev, &run->err);
    if (!run->cause && status != DT_OK)
        fail(run, status, vdev, &run->err);
    if (run->cause || session->is_broken)
        take_targets_back(run);
    for (uint32_t i = 0; run->cause && i < move->own_count; i++)
        if (run->owns[i].to_storage)
            dt_exec_poison(run->owns[i].to_storage, run->cause);
    if (run->cause)
        run->cause->skipped++;
    dt_moves_end(&session->moves);
    run_drop(run);
}

/* ---- the queue ---- */

void dt_exec_moves_turn(dt_exec_session_t *session)
{
    while (session->moves.count > 0) {
        if (session->is_broken) {
            dt_exec_move_leave(session);
            session->has_left = true;
            return;
        }
        if (session->has_emitted && !dt_exec_has_room(session))
            return; /* a cause could not be told */
        if (session->run && !session->run->is_over)
            return;
        if (session->run)
            run_end(DT_TAKE(session->run));
        dt_move_t *next = dt_moves_next(&session->moves);
        if (!next)
            return;
        session->run = DT_CONTAINER_OF(next, dt_exec_run_t, move);
        run_begin(session->run);
    }
}

/* Whether a record may read, or write, all that a tensor has here. */
static bool may(const dt_exec_session_t *session, uint64_t id,
                bool (*may_one)(const dt_move_mark_t *mark))
{
    const dt_exec_tensor_t *tensor = dt_exec_find(&session->tensors, id);
    if (tensor)
        return may_one(&tensor->storage->mark);
    tensor = session->spreads.count > 0 ? dt_exec_find(&session->spreads, id) : NULL;
    for (uint32_t i = 0; tensor && i < tensor->spread->mesh->own_count; i++)
        if (tensor->spread->locals[i].storage && !may_one(&tensor->spread->locals[i].storage->mark))
            return false;
    return true;
}

/* ---- memory that is kept ---- */

/* Whether an operator that failed for want of memory has left everything as it was. */
static bool is_repeatable(const dt_exec_plan_t *plan)
{
    const dt_signature_t *sig = plan->signature;
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias == DT_ALIAS_IN_PLACE)
            return false;
    return (sig->flags & DT_SIGNATURE_RANDOM) == 0;
}

bool dt_exec_moves_crowd(const dt_exec_session_t *session)
{
    return session->kept_count > 0 && session->memory.arena &&
           dt_shm_arena_live(session->memory.arena) >
               (int64_t)(session->memory.channel->limit_bytes / 2);
}

bool dt_exec_moves_hold(dt_exec_session_t *session, const dt_exec_plan_t *plan, dt_status_t status)
{
    session->is_short = session->kept_count > 0 && is_repeatable(plan) &&
                        (status == DT_ERR_LIMIT || status == DT_ERR_NOMEM);
    return session->is_short;
}

/* ---- the record at hand ---- */

bool dt_exec_moves_allow(dt_exec_session_t *session, const dt_exec_plan_t *plan)
{
    const dt_record_op_t *op = &session->record->op;
    const dt_signature_t *sig = plan->signature;
    bool is_tried_once = plan->way == DT_EXEC_WAY_MOVE || !is_repeatable(plan);
    if (session->kept_count > 0 &&
        (session->is_short || (is_tried_once && dt_exec_moves_crowd(session))))
        return false;
    for (uint32_t i = 0; i < op->input_count; i++)
        if (!may(session, op->inputs[i], dt_move_may_read))
            return false;
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias == DT_ALIAS_IN_PLACE &&
            !may(session, op->inputs[sig->outputs[i].input], dt_move_may_write))
            return false;
    return true;
}

bool dt_exec_redistribute(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    if (dt_moves_is_full(&session->moves))
        return false;
    dt_exec_run_t *run = run_new(session, plan);
    if (!run) {
        dt_exec_break(session, "a redistribution");
        return true;
    }
    if (!take_inputs(run)) {
        run->cause = NULL; /* nothing was taken yet */
        run->next_spare = plan->move->spare;
        plan->move->spare = run;
        return false;
    }
    make_targets(run);
    mark(run);
    dt_moves_push(&session->moves, &run->move);
    dt_exec_moves_turn(session);
    return true;
}

void dt_exec_move_leave(dt_exec_session_t *session)
{
    dt_move_t *move;
    if (session->exec->options.transport)
        dt_transport_close(session->exec->options.transport, session->instance);
    session->run = NULL;
    while ((move = dt_moves_take(&session->moves)) != NULL)
        run_drop(DT_CONTAINER_OF(move, dt_exec_run_t, move));
}
