/* Operators, and FREE, which is as frequent. An operator on one vdev of this engine goes the short
 * way: its places are filled, it is called, its results get their ids. On several it is run for one
 * after the other; each has its own local tensors, results and cause. */
#include <stdlib.h>
#include <string.h>

#include "engine_exec_internal.h"

/* Of the short way: in line there, whoever else calls it. */
#define DT_EXEC_HOT static inline __attribute__((always_inline))

/* ---- what the page tells the agent ---- */

DT_EXEC_HOT void page_begin(dt_exec_t *exec, const dt_exec_plan_t *plan)
{
    dt_engine_page_t *page = exec->options.page;
    if (exec->named != plan) {
        const size_t words = sizeof page->op_name / sizeof page->op_name[0];
        for (size_t i = 0; i < plan->name_count && i < words; i++)
            atomic_store_explicit(&page->op_name[i], plan->name_words[i], memory_order_relaxed);
        if (plan->name_count < words)
            atomic_store_explicit(&page->op_name[plan->name_count], 0, memory_order_relaxed);
        exec->named = plan;
    }
    atomic_store_explicit(&page->op_begin_ns, exec->now_ns, memory_order_release);
}

DT_EXEC_HOT int64_t page_end(dt_exec_t *exec)
{
    dt_engine_page_t *page = exec->options.page;
    int64_t begin_ns = exec->now_ns;
    int64_t spent_ns = dt_exec_now(exec) - begin_ns;
    exec->device_ns += (uint64_t)spent_ns;
    atomic_store_explicit(&page->op_begin_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&page->device_ns, exec->device_ns, memory_order_relaxed);
    atomic_store_explicit(&page->progress, ++exec->progress, memory_order_release);
    return spent_ns;
}

/* ---- operators ---- */

void dt_exec_page_begin(dt_exec_t *exec, const dt_exec_plan_t *plan)
{
    page_begin(exec, plan);
}

int64_t dt_exec_page_end(dt_exec_t *exec)
{
    return page_end(exec);
}

/* ---- failures ---- */

void dt_exec_enter_poisoned(dt_exec_session_t *session, dt_exec_mesh_t *mesh, uint32_t own,
                            uint64_t id, dt_exec_cause_t *cause)
{
    dt_exec_storage_t *storage =
        dt_exec_storage_new(session->exec, mesh->own[own].vdev, session->record->sequence);
    if (storage && dt_exec_enter_local(session, mesh, own, id, NULL, storage)) {
        dt_exec_poison(storage, cause);
        return;
    }
    if (storage)
        dt_exec_storage_unref(session, storage);
    dt_exec_break(session, "the tensors");
}

/* All outputs of mesh->own[own], and what would have been written in place, take the cause. */
static void poison_outputs(dt_exec_session_t *session, const dt_exec_plan_t *plan, uint32_t own,
                           dt_exec_cause_t *cause)
{
    const dt_record_op_t *op = &session->record->op;
    const dt_signature_t *sig = plan->signature;
    for (uint32_t i = 0; i < sig->output_count; i++) {
        if (sig->outputs[i].alias != DT_ALIAS_IN_PLACE)
            continue;
        dt_exec_local_t *input =
            dt_exec_local(session, plan->mesh, op->inputs[sig->outputs[i].input], own);
        if (input)
            dt_exec_poison(input->storage, cause);
    }
    for (uint32_t i = 0; i < op->output_count; i++)
        dt_exec_enter_poisoned(session, plan->mesh, own, op->outputs[i], cause);
}

/* The cause of what failed now; NULL: there is no memory, the session is broken. */
static dt_exec_cause_t *new_cause(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                  uint32_t vdev, const char *kind, const dt_error_t *err)
{
    dt_exec_cause_t *cause =
        dt_exec_cause_new(session, session->record->sequence, plan, NULL, vdev, kind, err);
    if (plan->stat) {
        plan->stat->errors++;
        plan->stat->is_changed = true;
        session->has_stats = true;
    }
    if (!cause) {
        session->is_broken = true;
        session->broken = *err;
    }
    return cause;
}

static void fail_op(dt_exec_session_t *session, const dt_exec_plan_t *plan, const char *kind,
                    const dt_error_t *err)
{
    dt_exec_cause_t *cause = new_cause(session, plan, plan->vdev, kind, err);
    if (!cause)
        return;
    poison_outputs(session, plan, plan->own, cause);
    dt_exec_tell_poison(session, cause);
    dt_exec_cause_unref(cause);
}

/* An operator that cannot be called, on none of its vdevs. */
static void refuse_op(dt_exec_session_t *session, const dt_exec_plan_t *plan)
{
    dt_exec_mesh_t *mesh = plan->mesh;
    for (uint32_t i = 0; plan->input_at && i < plan->signature->input_count; i++)
        if (plan->input_at[i]) /* it may hold what the signature said there */
            *plan->input_at[i] = NULL;
    uint32_t vdev = mesh->own_count > 0 ? mesh->own[0].vdev : session->vdevs[0];
    dt_exec_cause_t *cause =
        new_cause(session, plan, vdev, dt_exec_error_kind(plan->refused), plan->refused);
    if (!cause)
        return;
    for (uint32_t i = 0; i < mesh->own_count; i++)
        poison_outputs(session, plan, i, cause);
    dt_exec_tell_poison(session, cause);
    dt_exec_cause_unref(cause);
}

/* ---- results ---- */

static void free_results(dt_exec_t *exec, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (exec->results[i])
            exec->options.backend->tensor_free(exec->options.device, exec->results[i]);
}

/* Give one output its id. False: no memory. */
DT_EXEC_HOT bool bind_output(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                             const dt_signature_tensor_t *out, void *result, uint64_t id)
{
    const dt_record_t *record = session->record;
    dt_exec_storage_t *storage;
    if (out->alias == DT_ALIAS_VIEW) {
        const dt_exec_local_t *input =
            dt_exec_local(session, plan->mesh, record->op.inputs[out->input], plan->own);
        storage = input ? input->storage : NULL; /* it may lie on another vdev of ours */
        if (storage)
            storage->refs++;
    } else {
        storage = dt_exec_storage_new(session->exec, plan->vdev, record->sequence);
    }
    if (storage && (__builtin_expect(plan->is_local, 0)
                        ? dt_exec_enter_local(session, plan->mesh, plan->own, id, result, storage)
                        : dt_exec_enter(session, id, result, storage)))
        return true;
    if (storage)
        dt_exec_storage_unref(session, storage);
    return false;
}

/* Take over the results. They are as the plan says, or unchecked by its wish. */
DT_EXEC_HOT void bind_results(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                              uint32_t count)
{
    dt_exec_t *exec = session->exec;
    const dt_record_t *record = session->record;
    const dt_signature_t *sig = plan->signature;
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; i++) {
        const dt_signature_tensor_t *out = &sig->outputs[i];
        void *result = exec->results[i];
        if (out->alias == DT_ALIAS_FRESH || out->alias == DT_ALIAS_VIEW) {
            if (result && bind_output(session, plan, out, result, record->op.outputs[next++]))
                continue;
            session->is_broken = true;
            (void)dt_fail(&session->broken, DT_ERR_NOMEM, "dt", 0,
                          "%s gave fewer tensors than said, or the engine has no memory for them",
                          sig->name);
        } else if (out->alias == DT_ALIAS_IN_PLACE) {
            dt_exec_local_t *input =
                dt_exec_local(session, plan->mesh, record->op.inputs[out->input], plan->own);
            if (input)
                input->storage->version = record->sequence;
        }
        if (result)
            exec->options.backend->tensor_free(exec->options.device, result);
    }
}

/* ---- inputs ---- */

enum op_inputs { INPUTS_READY, INPUTS_WAIT, INPUTS_POISONED };

/* Look at a storage that has no value, or not yet. */
static bool must_wait(const dt_exec_storage_t *storage, dt_exec_cause_t **cause)
{
    if (storage->upload)
        return true;
    if (storage->cause && (!*cause || storage->cause->sequence < (*cause)->sequence))
        *cause = storage->cause;
    return false;
}

/* Put handles into their places. *ret_cause: the cause with the lowest sequence of what is
 * poisoned. */
DT_EXEC_HOT enum op_inputs take_inputs(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                       dt_exec_cause_t **ret_cause)
{
    const dt_record_op_t *op = &session->record->op;
    dt_exec_cause_t *cause = NULL;
    bool is_missing = false;
    for (uint32_t i = 0; i < op->input_count; i++) {
        dt_exec_tensor_t *tensor = dt_exec_find(&session->tensors, op->inputs[i]);
        if (__builtin_expect(!tensor, 0)) {
            is_missing = true;
            *plan->input_at[i] = NULL;
            continue;
        }
        if (__builtin_expect(dt_exec_is_troubled(tensor->storage), 0) &&
            must_wait(tensor->storage, &cause))
            return INPUTS_WAIT;
        *plan->input_at[i] = tensor->handle;
    }
    *ret_cause = cause;
    return cause || is_missing ? INPUTS_POISONED : INPUTS_READY;
}

/* The same of a part. */
static enum op_inputs take_local_inputs(dt_exec_session_t *session, const dt_exec_plan_t *part,
                                        dt_exec_cause_t **ret_cause)
{
    const dt_record_op_t *op = &session->record->op;
    bool is_missing = false;
    *ret_cause = NULL;
    for (uint32_t i = 0; i < op->input_count; i++) {
        dt_exec_local_t *local = dt_exec_local(session, part->mesh, op->inputs[i], part->own);
        *part->input_at[i] = local ? local->handle : NULL;
        is_missing |= !local;
        if (local && must_wait(local->storage, ret_cause))
            return INPUTS_WAIT;
    }
    return *ret_cause || is_missing ? INPUTS_POISONED : INPUTS_READY;
}

static void skip_op(dt_exec_session_t *session, const dt_exec_plan_t *plan, dt_exec_cause_t *cause)
{
    dt_error_t err = {0};
    if (cause) {
        cause->skipped++;
        poison_outputs(session, plan, plan->own, cause);
        return;
    }
    (void)dt_fail(&err, DT_ERR_LOST, "dt", 0, "an input of %s is not on this device",
                  plan->signature->name);
    fail_op(session, plan, "RuntimeError", &err);
}

/* ---- running ---- */

DT_EXEC_HOT void run_begin(dt_exec_t *exec, const dt_exec_plan_t *plan)
{
    const dt_exec_options_t *options = &exec->options;
    dt_error_t *err = &exec->err;
    if (__builtin_expect(plan->stream != exec->stream_now, 0) &&
        options->backend->generator_use(options->device, plan->stream, err) == DT_OK)
        exec->stream_now = plan->stream;
    err->text[0] = '\0';
    err->source_code = 0;
    page_begin(exec, plan);
}

/* Count it, and bind its results or poison its outputs. */
DT_EXEC_HOT void run_end(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_status_t status,
                         uint32_t count)
{
    dt_exec_t *exec = session->exec;
    dt_error_t *err = &exec->err;
    int64_t spent_ns = page_end(exec);
    if (__builtin_expect(status != DT_OK, 0) && dt_exec_moves_hold(session, plan, status))
        return;
    plan->stat->device_ns += (uint64_t)spent_ns;
    if (__builtin_expect(session->trace != NULL, 0))
        dt_exec_trace_op(session, plan, session->record->sequence, session->record->op.signature,
                         spent_ns, status != DT_OK);
    plan->stat->count++;
    plan->stat->bytes += plan->bytes;
    plan->stat->is_changed = true;
    session->has_stats = true;
    if (__builtin_expect(status != DT_OK, 0)) {
        err->code = status;
        fail_op(session, plan, dt_exec_error_kind(err), err);
        return;
    }
    if (__builtin_expect(!plan->is_checked || count != plan->signature->output_count, 0)) {
        if (dt_exec_check(session, plan, exec->results, count, err) != DT_OK) {
            free_results(exec, count);
            err->code = DT_ERR_INVALID;
            fail_op(session, plan, "MetadataError", err);
            return;
        }
        plan->is_checked = !plan->takes_numbers;
    }
    bind_results(session, plan, count);
}

/* Run an operator whose arguments are in their places. */
DT_EXEC_HOT void execute(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    dt_exec_t *exec = session->exec;
    const dt_exec_options_t *options = &exec->options;
    uint32_t count = 0;
    run_begin(exec, plan);
    if (plan->expected)
        options->backend->op_expect(options->device, plan->op, plan->expected,
                                    plan->signature->output_count);
    dt_status_t status = options->backend->op_execute(options->device, plan->op, plan->args,
                                                      plan->signature->arg_count, exec->results,
                                                      DT_RECORD_OUTPUTS_MAX, &count, &exec->err);
    run_end(session, plan, status, count);
}

/* ---- several operators in the place of one, or none ---- */

static dt_status_t run_step(dt_exec_session_t *session, const dt_exec_plan_t *part,
                            const dt_exec_step_t *step, uint32_t *ret_count)
{
    dt_exec_t *exec = session->exec;
    const dt_exec_program_t *program = part->program;
    const dt_exec_options_t *options = &exec->options;
    for (uint32_t i = 0; i < step->use_count; i++) {
        uint32_t source = step->uses[i].source;
        *step->uses[i].place = source >= DT_SHARD_TEMP ? program->temps[source - DT_SHARD_TEMP]
                                                       : program->handles[source - 1];
    }
    for (uint32_t i = 0; i < step->number_count; i++)
        step->args[step->numbers[(size_t)2 * i]] =
            session->record->op.scalars[step->numbers[(size_t)2 * i + 1]];
    if (part->expected && step == &program->steps[program->step_count - 1])
        options->backend->op_expect(options->device, step->op, part->expected,
                                    part->signature->output_count);
    else if (step->expected)
        options->backend->op_expect(options->device, step->op, step->expected, 1);
    return options->backend->op_execute(options->device, step->op, step->args, step->arg_count,
                                        exec->results, DT_RECORD_OUTPUTS_MAX, ret_count,
                                        &exec->err);
}

/* Keep the results of an operator that is not the last for those behind it. */
static void keep_results(dt_exec_t *exec, const dt_exec_program_t *program, uint32_t step,
                         uint32_t count)
{
    uint32_t kept = count < DT_EXEC_STEP_RESULTS ? count : DT_EXEC_STEP_RESULTS;
    for (uint32_t i = 0; i < kept; i++) {
        program->temps[step * DT_EXEC_STEP_RESULTS + i] = exec->results[i];
        exec->results[i] = NULL;
    }
    free_results(exec, count);
}

static void execute_program(dt_exec_session_t *session, dt_exec_plan_t *part)
{
    dt_exec_t *exec = session->exec;
    const dt_exec_program_t *program = part->program;
    const dt_exec_options_t *options = &exec->options;
    dt_status_t status = DT_OK;
    uint32_t count = 0;
    run_begin(exec, part);
    for (uint32_t i = 0; status == DT_OK && i < program->step_count; i++) {
        status = run_step(session, part, &program->steps[i], &count);
        if (status == DT_OK && i + 1 < program->step_count)
            keep_results(exec, program, i, count);
    }
    if (program->is_written && status == DT_OK) {
        free_results(exec, count);
        count = part->signature->output_count;
        memset(exec->results, 0, count * sizeof(void *));
    }
    run_end(session, part, status, count);
    for (uint32_t i = 0; i < program->step_count * DT_EXEC_STEP_RESULTS; i++) {
        options->backend->tensor_free(options->device, program->temps[i]);
        program->temps[i] = NULL;
    }
}

/* Outputs of an operator that is not run, since its vdev's shard is empty. */
static void make_outputs(dt_exec_session_t *session, dt_exec_plan_t *part)
{
    dt_exec_t *exec = session->exec;
    const dt_exec_options_t *options = &exec->options;
    const dt_signature_t *sig = part->signature;
    dt_status_t status = DT_OK;
    uint32_t count = 0;
    exec->err = (dt_error_t){0};
    for (; status == DT_OK && count < sig->output_count; count++) {
        const dt_signature_tensor_t *out = &sig->outputs[count];
        unsigned fill = part->program->fills[count];
        exec->results[count] = NULL;
        if (out->alias != DT_ALIAS_FRESH && out->alias != DT_ALIAS_VIEW)
            continue;
        status = options->backend->tensor_create(options->device, &out->meta, &exec->results[count],
                                                 &exec->err);
        if (status == DT_OK && fill != DT_SHARD_FILL_EMPTY)
            status = dt_exec_fill(exec, exec->results[count], &out->meta, fill, &exec->err);
    }
    if (status == DT_OK) {
        bind_results(session, part, count);
        return;
    }
    free_results(exec, count);
    exec->err.code = status;
    fail_op(session, part, dt_exec_error_kind(&exec->err), &exec->err);
}

static void execute_part(dt_exec_session_t *session, dt_exec_plan_t *part)
{
    const dt_record_op_t *op = &session->record->op;
    if (!part->program) {
        for (uint32_t i = 0; i < op->scalar_count; i++)
            part->args[part->dynamic_at[i]] = op->scalars[i];
        execute(session, part);
    } else if (part->program->step_count > 0) {
        execute_program(session, part);
    } else {
        make_outputs(session, part);
    }
}

/* Whether a part has to wait for bytes: then none is run yet. */
static bool parts_wait(dt_exec_session_t *session, const dt_exec_plan_t *plan)
{
    dt_exec_cause_t *cause;
    if (dt_list_is_empty(&session->uploads))
        return false;
    for (uint32_t i = 0; i < plan->part_count; i++)
        if (take_local_inputs(session, plan->parts[i], &cause) == INPUTS_WAIT)
            return true;
    return false;
}

static bool perform_parts(dt_exec_session_t *session, const dt_exec_plan_t *plan)
{
    if (parts_wait(session, plan))
        return false;
    for (uint32_t i = 0; i < plan->part_count && !session->is_broken && !session->is_short; i++) {
        dt_exec_plan_t *part = plan->parts[i];
        dt_exec_cause_t *cause;
        if (take_local_inputs(session, part, &cause) == INPUTS_READY)
            execute_part(session, part);
        else
            skip_op(session, part, cause);
    }
    return !session->is_short;
}

/* ---- a record ---- */

static dt_exec_plan_t *plan_of(const dt_exec_session_t *session, uint32_t id)
{
    return id < session->plan_count ? session->plans[id] : NULL;
}

/* The controller has compared counts with the signature; we believe nobody. */
static bool has_arity(const dt_exec_plan_t *plan, const dt_record_op_t *op)
{
    const dt_signature_t *sig = plan->signature;
    return op->input_count == sig->input_count && op->output_count == sig->id_count &&
           op->scalar_count == sig->dynamic_count;
}

/* What is not one operator on one vdev. */
static bool perform_other(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    switch (plan->way) {
    case DT_EXEC_WAY_PARTS:
        return perform_parts(session, plan);
    case DT_EXEC_WAY_MOVE:
        return dt_exec_perform_move(session, plan);
    case DT_EXEC_WAY_REFUSE:
        if (session->moves.count > 0)
            return false; /* it may have to leave the other engines, which are in no move then */
        if (!dt_exec_move_again(session, plan)) {
            refuse_op(session, plan);
            return true;
        }
        return plan->way == DT_EXEC_WAY_PASS || dt_exec_perform_move(session, plan);
    default:
        return true;
    }
}

static bool perform_op(dt_exec_session_t *session)
{
    const dt_record_op_t *op = &session->record->op;
    dt_exec_plan_t *plan = plan_of(session, op->signature);
    dt_exec_cause_t *cause = NULL;
    if (!plan || !has_arity(plan, op)) {
        session->is_broken = true;
        (void)dt_fail(&session->broken, DT_ERR_INVALID, "dt", op->signature,
                      "operator record %llu does not fit signature %u",
                      (unsigned long long)session->record->sequence, op->signature);
        return true;
    }
    if (__builtin_expect(session->moves.count > 0, 0) && !dt_exec_moves_allow(session, plan))
        return false;
    session->is_short = false;
    if (__builtin_expect(plan->way != DT_EXEC_WAY_ONE, 0))
        return perform_other(session, plan);
    enum op_inputs inputs = take_inputs(session, plan, &cause);
    if (__builtin_expect(inputs != INPUTS_READY, 0)) {
        if (inputs == INPUTS_WAIT)
            return false;
        skip_op(session, plan, cause);
        return true;
    }
    for (uint32_t i = 0; i < op->scalar_count; i++)
        plan->args[plan->dynamic_at[i]] = op->scalars[i];
    execute(session, plan);
    return !session->is_short;
}

static void perform_free(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    for (uint32_t i = 0; i < record->ids.count; i++)
        dt_exec_drop(session, record->ids.ids[i]);
}

bool dt_exec_perform(dt_exec_session_t *session)
{
    uint8_t kind = session->record->kind;
    bool is_done = true;
    atomic_store_explicit(&session->memory.channel->running, session->record->sequence,
                          memory_order_relaxed);
    if (__builtin_expect(session->is_broken, 0))
        dt_exec_perform_broken(session);
    else if (kind == DT_RECORD_OP || kind == DT_RECORD_OP_LONG)
        is_done = perform_op(session);
    else if (kind == DT_RECORD_FREE)
        perform_free(session);
    else
        is_done = dt_exec_perform_kind(session);
    session->is_waiting = !is_done;
    return is_done;
}
