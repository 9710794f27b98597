/* What one vdev runs of a plan on several: the operator with its sizes made local, a few operators
 * in its place, or, on an empty shard, nothing. lib/shard says which. */
#include <stdlib.h>
#include <string.h>

#include "engine_exec_internal.h"
#include "transport/reduce.h"

/* Places of one operator's arguments, while they are made. */
typedef struct placing {
    dt_exec_session_t *session;
    dt_exec_plan_t *part;
    dt_exec_step_t *step;
} placing_t;

static dt_status_t no_memory(dt_error_t *err)
{
    return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
}

/* `id`: 1 and an input, or DT_SHARD_TEMP and an earlier result; 0: None. */
static void use(const placing_t *placing, void **place, uint64_t id)
{
    *place = NULL;
    if (id != 0)
        placing->step->uses[placing->step->use_count++] = (dt_exec_use_t){place, (uint32_t)id};
}

/* Whether all handles of an operator are there when it runs as number `at`. */
static bool has_sources(const dt_exec_plan_t *part, const dt_exec_step_t *step, uint32_t at)
{
    for (uint32_t i = 0; i < step->use_count; i++) {
        uint32_t source = step->uses[i].source;
        if (source >= DT_SHARD_TEMP ? source - DT_SHARD_TEMP >= at * DT_EXEC_STEP_RESULTS
                                    : source > part->signature->input_count)
            return false;
    }
    return true;
}

static dt_status_t place_list(const placing_t *placing, dt_value_t *arg, dt_error_t *err)
{
    const uint64_t *ids = arg->ids;
    void **handles =
        dt_arena_calloc(placing->part->arena, arg->count ? arg->count : 1, sizeof *handles);
    if (!handles)
        return no_memory(err);
    for (uint32_t i = 0; i < arg->count; i++)
        use(placing, &handles[i], ids[i]);
    arg->handles = handles;
    return DT_OK;
}

static dt_status_t place_arg(const placing_t *placing, uint32_t at, bool is_only, dt_error_t *err)
{
    dt_exec_step_t *step = placing->step;
    dt_value_t *arg = &step->args[at];
    uint32_t *number;
    switch (arg->tag) {
    case DT_VALUE_TENSOR:
    case DT_VALUE_STORAGE:
        use(placing, &arg->handle, arg->id);
        return DT_OK;
    case DT_VALUE_TENSORS:
        return place_list(placing, arg, err);
    case DT_VALUE_DYNAMIC:
        number = &step->numbers[(size_t)2 * step->number_count];
        number[0] = at;
        number[1] = is_only ? step->number_count : (uint32_t)arg->number;
        step->number_count++;
        return number[1] < placing->part->signature->dynamic_count
                   ? DT_OK
                   : dt_fail(err, DT_ERR_INTERNAL, "dt", at, "a local operator's number is none");
    case DT_VALUE_GENERATOR:
        return dt_exec_plan_generator(placing->session, placing->part->vdev, arg, err);
    default:
        return DT_OK;
    }
}

static dt_status_t step_prepare(const placing_t *placing, const dt_shard_op_t *op, bool is_only,
                                dt_error_t *err)
{
    const dt_exec_options_t *options = &placing->session->exec->options;
    dt_exec_step_t *step = placing->step;
    dt_arena_t *arena = placing->part->arena;
    uint32_t tensors = 0;
    for (uint32_t i = 0; i < op->arg_count; i++)
        tensors += op->args[i].tag == DT_VALUE_TENSORS ? op->args[i].count : 1;
    step->arg_count = op->arg_count;
    step->args = dt_arena_calloc(arena, op->arg_count + 1, sizeof *step->args);
    step->uses = dt_arena_calloc(arena, tensors + 1, sizeof *step->uses);
    step->numbers = dt_arena_calloc(arena, (size_t)2 * op->arg_count + 1, sizeof *step->numbers);
    if (!step->args || !step->uses || !step->numbers)
        return no_memory(err);
    memcpy(step->args, op->args, op->arg_count * sizeof *step->args);
    if (options->backend->op_expect && op->result) {
        step->expected = dt_arena_calloc(arena, 1, sizeof *step->expected);
        if (!step->expected)
            return no_memory(err);
        step->expected->meta = *op->result;
    }
    for (uint32_t i = 0; i < op->arg_count; i++)
        DT_TRY(place_arg(placing, i, is_only, err));
    return options->backend->op_find(options->device, op->name, &step->op, err);
}

/* Whether each input of the plan stands in one place: then it needs no program. */
static bool is_plain(const dt_exec_plan_t *part, const dt_exec_step_t *step)
{
    if (step->use_count != part->signature->input_count)
        return false;
    for (uint32_t i = 0; i < step->use_count; i++)
        for (uint32_t k = 0; k <= i; k++)
            if (step->uses[i].source > step->use_count ||
                (k < i && step->uses[k].source == step->uses[i].source))
                return false;
    return true;
}

/* Make the part call the one operator itself. */
static dt_status_t part_is_operator(dt_exec_plan_t *part, const dt_exec_step_t *step,
                                    dt_error_t *err)
{
    part->input_at = dt_arena_calloc(part->arena, step->use_count + 1, sizeof *part->input_at);
    part->dynamic_at =
        dt_arena_calloc(part->arena, step->number_count + 1, sizeof *part->dynamic_at);
    if (!part->input_at || !part->dynamic_at)
        return no_memory(err);
    part->op = step->op;
    part->args = step->args;
    for (uint32_t i = 0; i < step->use_count; i++)
        part->input_at[step->uses[i].source - 1] = step->uses[i].place;
    for (uint32_t i = 0; i < step->number_count; i++)
        part->dynamic_at[step->numbers[(size_t)2 * i + 1]] = step->numbers[(size_t)2 * i];
    return DT_OK;
}

static dt_status_t program_prepare(dt_exec_plan_t *part, dt_exec_step_t *steps, uint32_t count,
                                   const uint8_t *fills, dt_error_t *err)
{
    uint32_t inputs = part->signature->input_count;
    dt_exec_program_t *program = dt_arena_calloc(part->arena, 1, sizeof *program);
    part->input_at = dt_arena_calloc(part->arena, inputs + 1, sizeof *part->input_at);
    if (!program || !part->input_at)
        return no_memory(err);
    program->steps = steps;
    program->step_count = count;
    program->fills = fills;
    program->handles = dt_arena_calloc(part->arena, inputs + 1, sizeof *program->handles);
    program->temps =
        dt_arena_calloc(part->arena, count + 1, DT_EXEC_STEP_RESULTS * sizeof *program->temps);
    if (!program->handles || !program->temps)
        return no_memory(err);
    for (uint32_t i = 0; i < inputs; i++)
        part->input_at[i] = &program->handles[i];
    part->program = program;
    return DT_OK;
}

static dt_status_t part_prepare(dt_exec_session_t *session, dt_exec_plan_t *part,
                                const dt_shard_local_t *local, dt_error_t *err)
{
    uint32_t count = local->is_run ? local->op_count : 0;
    dt_exec_step_t *steps = dt_arena_calloc(part->arena, count + 1, sizeof *steps);
    if (!steps)
        return no_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        const placing_t placing = {session, part, &steps[i]};
        DT_TRY(step_prepare(&placing, &local->ops[i], count == 1, err));
        if (!has_sources(part, &steps[i], i))
            return dt_fail(err, DT_ERR_INTERNAL, "dt", i, "%s: its local program is none",
                           part->signature->name);
    }
    if (count == 1 && is_plain(part, &steps[0]))
        return part_is_operator(part, &steps[0], err);
    return program_prepare(part, steps, count, local->fills, err);
}

/* The plan's signature with local metadata, and the operator that gives the outputs. */
static const dt_signature_t *signature_of(dt_exec_plan_t *part, const dt_signature_t *sig,
                                          const dt_shard_local_t *local)
{
    dt_signature_t *is = dt_arena_alloc(part->arena, sizeof *is);
    dt_signature_tensor_t *tensors = dt_arena_calloc(
        part->arena, (size_t)sig->input_count + sig->output_count + 1, sizeof *tensors);
    if (!is || !tensors)
        return NULL;
    *is = *sig;
    is->inputs = tensors;
    is->outputs = tensors + sig->input_count;
    for (uint32_t i = 0; i < sig->input_count; i++) {
        tensors[i] = sig->inputs[i];
        tensors[i].meta = local->inputs[i];
    }
    for (uint32_t i = 0; i < sig->output_count; i++) {
        tensors[sig->input_count + i] = sig->outputs[i];
        tensors[sig->input_count + i].meta = local->outputs[i];
    }
    if (local->is_run && local->op_count == 1) {
        is->name = local->ops[0].name;
        is->args = local->ops[0].args;
        is->arg_count = local->ops[0].arg_count;
    }
    return is;
}

static dt_status_t localize(dt_exec_session_t *session, const dt_signature_t *sig,
                            dt_exec_plan_t *part, dt_error_t *err)
{
    dt_shard_local_t local;
    DT_TRY(dt_shard_localize(session->exec->rules, sig, &part->mesh->shape,
                             part->mesh->own[part->own].place, part->arena, &local, err));
    part->is_local = true;
    part->signature = signature_of(part, sig, &local);
    if (!part->signature) {
        part->signature = sig;
        return no_memory(err);
    }
    DT_TRY(dt_exec_plan_fill(session, part, err));
    DT_TRY(part_prepare(session, part, &local, err));
    if (local.is_written && part->program) {
        part->program->is_written = true;
        part->is_checked = true; /* it gives nothing */
        part->takes_numbers = false;
    }
    return DT_OK;
}

dt_status_t dt_exec_plan_localize(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    dt_exec_t *exec = session->exec;
    const dt_signature_t *sig = plan->signature;
    uint32_t count = plan->mesh->own_count;
    if (!exec->rules)
        DT_TRY(dt_shard_rules_create(&exec->rules, err));
    plan->way = DT_EXEC_WAY_PARTS;
    plan->part_count = count;
    plan->parts = dt_arena_calloc(plan->arena, count, sizeof(dt_exec_plan_t *));
    if (!plan->parts)
        return no_memory(err);
    if (count == 1) {
        plan->parts[0] = plan;
        DT_TRY(localize(session, sig, plan, err));
        if (!plan->program)
            plan->way = DT_EXEC_WAY_ONE;
        return DT_OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        dt_exec_plan_t *part = plan->parts[i] = dt_arena_calloc(plan->arena, 1, sizeof *part);
        if (!part)
            return no_memory(err);
        part->arena = plan->arena;
        part->mesh = plan->mesh;
        part->own = i;
        DT_TRY(localize(session, sig, part, err));
    }
    return DT_OK;
}

/* ---- outputs of what is not run ---- */

dt_status_t dt_exec_fill(dt_exec_t *exec, void *handle, const dt_meta_t *meta, unsigned fill,
                         dt_error_t *err)
{
    const dt_exec_options_t *options = &exec->options;
    const dt_reduce_t reduce = {.dtype = meta->dtype,
                                .reduction = fill == DT_SHARD_FILL_MAX   ? DT_REDUCTION_MAX
                                             : fill == DT_SHARD_FILL_MIN ? DT_REDUCTION_MIN
                                                                         : DT_REDUCTION_SUM,
                                .scale_num = 1,
                                .scale_den = 1};
    uint64_t size = (uint64_t)dt_meta_bytes(meta);
    uint64_t most = size < DT_EXEC_SCRATCH_BYTES ? size : DT_EXEC_SCRATCH_BYTES;
    dt_reduce_fill(&reduce, exec->scratch, most / dt_dtype_bytes(meta->dtype));
    for (uint64_t at = 0; at < size; at += most)
        DT_TRY(options->backend->tensor_write(options->device, handle, at, exec->scratch,
                                              size - at < most ? size - at : most, err));
    return DT_OK;
}
