/* Definitions. A plan is decoded once into the very arguments that the backend is called with; an
 * operator record then only puts handles and numbers into their places. */
#include <stdlib.h>
#include <string.h>

#include "engine_exec_internal.h"

bool dt_exec_reach(dt_exec_session_t *session, void **array, uint32_t *count, size_t element_bytes,
                   uint32_t at, const char *what)
{
    uint32_t bigger = *count ? *count : 64;
    if (at < *count)
        return true;
    while (bigger <= at)
        bigger *= 2;
    uint8_t *grown = realloc(*array, bigger * element_bytes);
    if (!grown) {
        dt_exec_break(session, what);
        return false;
    }
    memset(grown + *count * element_bytes, 0, (bigger - *count) * element_bytes);
    *array = grown;
    *count = bigger;
    return true;
}

void dt_exec_break(dt_exec_session_t *session, const char *what)
{
    session->is_broken = true;
    (void)dt_fail(&session->broken, DT_ERR_NOMEM, "dt", 0,
                  "the engine has no memory for %s of this session", what);
}

/* ---- random streams ---- */

bool dt_exec_stream(dt_exec_session_t *session, uint32_t vdev, uint32_t stream,
                    uint32_t *ret_number)
{
    for (uint32_t i = 0; i < session->stream_count; i++)
        if (session->streams[i].vdev == vdev && session->streams[i].stream == stream) {
            *ret_number = session->streams[i].number;
            return true;
        }
    if (session->stream_count == DT_EXEC_STREAMS_MAX)
        return false;
    if ((session->stream_count & (session->stream_count + 1)) == 0) { /* 0, 1, 3, 7, ... */
        size_t places = 2 * (size_t)session->stream_count + 1;
        dt_exec_stream_t *grown = realloc(session->streams, places * sizeof *grown);
        if (!grown)
            return false;
        session->streams = grown;
    }
    *ret_number = ++session->exec->stream_last;
    session->streams[session->stream_count++] = (dt_exec_stream_t){vdev, stream, *ret_number};
    return true;
}

/* ---- plans ---- */

void dt_exec_plan_free(dt_exec_plan_t *plan)
{
    if (!plan)
        return;
    dt_exec_move_free(plan->move);
    dt_arena_fini(&plan->memory);
    free(plan);
}

/* The plan cannot run; each use of it is an error with this text. */
static void refuse(dt_exec_plan_t *plan, const dt_error_t *err)
{
    static const dt_error_t no_memory = {
        .code = DT_ERR_NOMEM, .source = "dt", .text = "no memory for a signature"};
    dt_error_t *copy = dt_arena_alloc(plan->arena, sizeof *copy);
    if (copy)
        *copy = *err;
    plan->way = DT_EXEC_WAY_REFUSE;
    plan->refused = copy ? copy : &no_memory;
}

/* On which mesh it runs: that of its tensors, which must be one. */
static dt_status_t find_mesh(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    const dt_signature_t *sig = plan->signature;
    for (uint32_t i = 0; i < sig->input_count + sig->output_count; i++) {
        const dt_signature_tensor_t *tensor =
            i < sig->input_count ? &sig->inputs[i] : &sig->outputs[i - sig->input_count];
        if (i >= sig->input_count && tensor->alias == DT_ALIAS_NONE)
            continue;
        dt_exec_mesh_t *here = dt_exec_mesh_of(session, &tensor->layout);
        if (!here)
            return dt_fail(err, DT_ERR_NOT_FOUND, "dt", tensor->layout.mesh,
                           "%s: mesh %u is not defined", sig->name, tensor->layout.mesh);
        if (plan->mesh && !dt_exec_mesh_is_same(plan->mesh, here))
            return dt_fail(err, DT_ERR_INVALID, "dt", tensor->layout.mesh,
                           "%s: its tensors lie on different meshes", sig->name);
        if (!plan->mesh)
            plan->mesh = here;
    }
    return DT_OK;
}

/* Handles of a Tensor[] argument, None as NULL. */
static bool place_list(dt_exec_plan_t *plan, dt_value_t *arg, uint32_t *input)
{
    void **handles = dt_arena_calloc(plan->arena, arg->count ? arg->count : 1, sizeof *handles);
    if (!handles)
        return false;
    for (uint32_t i = 0; i < arg->count; i++)
        if (arg->ids[i] != 0)
            plan->input_at[(*input)++] = &handles[i];
    arg->handles = handles;
    return true;
}

dt_status_t dt_exec_plan_generator(dt_exec_session_t *session, uint32_t vdev, dt_value_t *arg,
                                   dt_error_t *err)
{
    uint32_t number;
    if (!dt_exec_stream(session, vdev, (uint32_t)arg->number, &number))
        return dt_fail(err, DT_ERR_LIMIT, "dt", DT_EXEC_STREAMS_MAX, "more than %u random streams",
                       DT_EXEC_STREAMS_MAX);
    arg->number = number;
    return DT_OK;
}

static dt_status_t place_args(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    const dt_signature_t *sig = plan->signature;
    uint32_t input = 0;
    uint32_t dynamic = 0;
    plan->args = dt_arena_calloc(plan->arena, sig->arg_count, sizeof *plan->args);
    plan->input_at = dt_arena_calloc(plan->arena, sig->input_count, sizeof *plan->input_at);
    plan->dynamic_at = dt_arena_calloc(plan->arena, sig->dynamic_count, sizeof *plan->dynamic_at);
    if (!plan->args || !plan->input_at || !plan->dynamic_at)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    for (uint32_t i = 0; i < sig->arg_count; i++) {
        dt_value_t *arg = &plan->args[i];
        *arg = sig->args[i];
        if (arg->tag == DT_VALUE_TENSOR || arg->tag == DT_VALUE_STORAGE)
            plan->input_at[input++] = &arg->handle;
        else if (arg->tag == DT_VALUE_DYNAMIC)
            plan->dynamic_at[dynamic++] = i;
        else if (arg->tag == DT_VALUE_TENSORS && !place_list(plan, arg, &input))
            return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
        else if (arg->tag == DT_VALUE_GENERATOR)
            DT_TRY(dt_exec_plan_generator(session, plan->vdev, arg, err));
    }
    return DT_OK;
}

static uint64_t bytes_of(const dt_signature_t *sig)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < sig->input_count; i++)
        bytes += (uint64_t)dt_meta_bytes(&sig->inputs[i].meta);
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias != DT_ALIAS_NONE)
            bytes += (uint64_t)dt_meta_bytes(&sig->outputs[i].meta);
    return bytes;
}

/* What a backend that computes no metadata is told before each call. */
static dt_status_t expect_outputs(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    const dt_signature_t *sig = plan->signature;
    if (!session->exec->options.backend->op_expect || (sig->flags & DT_SIGNATURE_DATA_DEPENDENT))
        return DT_OK;
    plan->expected = dt_arena_calloc(plan->arena, sig->output_count, sizeof *plan->expected);
    if (!plan->expected)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    for (uint32_t i = 0; i < sig->output_count; i++) {
        plan->expected[i].alias = sig->outputs[i].alias;
        plan->expected[i].input = sig->outputs[i].input;
        plan->expected[i].meta = sig->outputs[i].meta;
    }
    return DT_OK;
}

/* An output in place is its input, whatever numbers come. */
static bool takes_numbers(const dt_signature_t *sig)
{
    bool makes_tensors = false;
    for (uint32_t i = 0; i < sig->output_count; i++)
        makes_tensors |= sig->outputs[i].alias != DT_ALIAS_IN_PLACE;
    return makes_tensors && sig->dynamic_count > 0;
}

void dt_exec_plan_name(dt_exec_plan_t *plan)
{
    const char *name = plan->signature->name;
    size_t length = strnlen(name, DT_ENGINE_PAGE_NAME_MAX);
    memcpy(plan->name_words, name, length);
    plan->name_count = (uint32_t)(length / sizeof(uint64_t)) + 1;
}

dt_status_t dt_exec_plan_fill(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    dt_status_t status = DT_OK;
    const dt_signature_t *sig = plan->signature;
    plan->vdev = plan->mesh->own[plan->own].vdev;
    if (!dt_exec_stream(session, plan->vdev, 0, &plan->stream))
        status = dt_fail(err, DT_ERR_LIMIT, "dt", DT_EXEC_STREAMS_MAX,
                         "more than %u random streams", DT_EXEC_STREAMS_MAX);
    if (status == DT_OK)
        status = expect_outputs(session, plan, err);
    plan->bytes = bytes_of(sig);
    plan->is_checked = (sig->flags & DT_SIGNATURE_DATA_DEPENDENT) != 0;
    plan->takes_numbers = takes_numbers(sig);
    dt_exec_plan_name(plan);
    plan->stat = dt_exec_stat(session, sig->name);
    if (!plan->stat)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for statistics");
    return status;
}

/* A plan whose metadata is that of the one device that it runs on. */
static dt_status_t prepare_one(dt_exec_session_t *session, dt_exec_plan_t *plan, dt_error_t *err)
{
    const dt_exec_options_t *options = &session->exec->options;
    dt_status_t status = dt_exec_plan_fill(session, plan, err);
    if (status == DT_OK)
        status = place_args(session, plan, err);
    if (status == DT_OK)
        status = options->backend->op_find(options->device, plan->signature->name, &plan->op, err);
    plan->way = DT_EXEC_WAY_ONE;
    return status;
}

/* Make everything of a plan but its place in the table. */
static dt_status_t plan_prepare(dt_exec_session_t *session, dt_exec_plan_t *plan,
                                dt_cursor_t *cursor, dt_error_t *err)
{
    uint32_t steps = dt_cursor_bounded(cursor, DT_RECORD_STEP_MAX);
    if (dt_exec_is_move(plan->signature->name))
        return dt_exec_plan_move(session, plan, err); /* whatever the steps: they are for people */
    dt_status_t status = find_mesh(session, plan, err);
    if (!plan->mesh)
        plan->mesh = &session->first;
    if (plan->mesh->own_count == 0)
        return DT_OK;
    if (status == DT_OK && (steps > 0 || cursor->error))
        status = dt_fail(err, DT_ERR_NOT_FOUND, "dt", steps,
                         "%s: a plan with transfers is not served by this version",
                         plan->signature->name);
    if (status != DT_OK)
        return status;
    return plan->mesh->shape.count == 1 ? prepare_one(session, plan, err)
                                        : dt_exec_plan_localize(session, plan, err);
}

void dt_exec_define_plan(dt_exec_session_t *session, const dt_record_t *record)
{
    dt_signature_t *sig;
    dt_error_t err = {0};
    dt_cursor_t cursor = {record->definition.body,
                          record->definition.body + record->definition.body_bytes, 0};
    uint32_t id = record->definition.id;
    void *array = session->plans;
    if (!dt_exec_reach(session, &array, &session->plan_count, sizeof(dt_exec_plan_t *), id,
                       "the signatures"))
        return;
    session->plans = array;
    dt_exec_plan_t *plan = calloc(1, sizeof *plan);
    if (!plan) {
        dt_exec_break(session, "the signatures");
        return;
    }
    dt_arena_init(&plan->memory, DT_EXEC_PLAN_BYTES);
    plan->arena = &plan->memory;
    if (dt_signature_decode(&cursor, plan->arena, &sig) != 0) {
        dt_exec_plan_free(plan); /* the controller has decoded it before, so it is memory */
        dt_exec_break(session, "a signature");
        return;
    }
    plan->signature = sig;
    if (plan_prepare(session, plan, &cursor, &err) != DT_OK)
        refuse(plan, &err);
    session->exec->named = NULL; /* it may have been the one before, or a part of it */
    dt_exec_plan_free(session->plans[id]);
    session->plans[id] = plan;
}

/* ---- the check ---- */

static dt_status_t check_alias(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                               const dt_signature_tensor_t *said, uint32_t output,
                               const void *storage, dt_error_t *err)
{
    const dt_exec_options_t *options = &session->exec->options;
    const dt_signature_t *sig = plan->signature;
    for (uint32_t k = 0; k < sig->input_count; k++) {
        dt_backend_tensor_t input;
        dt_error_t ignored = {0};
        bool is_it = said->alias != DT_ALIAS_FRESH && said->input == k;
        if (said->alias != DT_ALIAS_FRESH && !is_it)
            continue; /* inputs may share storage among themselves */
        if (options->backend->tensor_info(options->device, *plan->input_at[k], &input, &ignored) !=
            DT_OK)
            continue;
        bool is_shared = storage && input.storage == storage;
        if (is_it && !is_shared)
            return dt_fail(err, DT_ERR_INVALID, "dt", output,
                           "output %u was said to share the storage of input %u and does not",
                           output, k);
        if (!is_it && is_shared)
            return dt_fail(err, DT_ERR_INVALID, "dt", output,
                           "output %u was said to be new and shares the storage of input %u",
                           output, k);
    }
    return DT_OK;
}

/* Of local tensors the strides are the operator's matter: they need not follow from the global ones
 * where those are not dense. Nor need they be lazy conjugates or negatives where those are: what
 * was moved is not, and so are views of it. The value is the same. */
static bool is_as_said(const dt_exec_plan_t *plan, const dt_meta_t *is, const dt_meta_t *said)
{
    if (!plan->is_local)
        return dt_meta_equal(is, said);
    const unsigned ignored = DT_META_CLASS_MASK | DT_META_CONJ | DT_META_NEG;
    return is->dtype == said->dtype && is->ndim == said->ndim &&
           (is->layout & ~ignored) == (said->layout & ~ignored) &&
           memcmp(is->sizes, said->sizes, is->ndim * sizeof *is->sizes) == 0;
}

static dt_status_t check_output(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                uint32_t output, void *result, dt_error_t *err)
{
    const dt_exec_options_t *options = &session->exec->options;
    const dt_signature_tensor_t *said = &plan->signature->outputs[output];
    dt_backend_tensor_t is;
    char text[2][128];
    if ((said->alias == DT_ALIAS_NONE) != (result == NULL))
        return dt_fail(err, DT_ERR_INVALID, "dt", output, "output %u was said to be %s and is %s",
                       output, result ? "undefined" : "a tensor", result ? "one" : "undefined");
    if (!result)
        return DT_OK;
    DT_TRY(options->backend->tensor_info(options->device, result, &is, err));
    if (!is_as_said(plan, &is.meta, &said->meta)) {
        dt_meta_print(&said->meta, text[0], sizeof text[0]);
        dt_meta_print(&is.meta, text[1], sizeof text[1]);
        return dt_fail(err, DT_ERR_INVALID, "dt", output, "output %u was said to be %s and is %s",
                       output, text[0], text[1]);
    }
    return check_alias(session, plan, said, output, is.storage, err);
}

/* Whether the backend says at a glance that an output is what it was said to be. False: look. */
static bool is_plainly(dt_exec_session_t *session, const dt_exec_plan_t *plan, uint32_t output,
                       void *result)
{
    const dt_exec_options_t *options = &session->exec->options;
    const dt_signature_t *sig = plan->signature;
    const dt_signature_tensor_t *said = &sig->outputs[output];
    const void *storage, *other;
    if (!options->backend->tensor_is || !result || said->alias == DT_ALIAS_NONE ||
        !options->backend->tensor_is(options->device, result, &said->meta, &storage))
        return false;
    for (uint32_t k = 0; k < sig->input_count; k++) {
        bool is_it = said->alias != DT_ALIAS_FRESH && said->input == k;
        void *input = *plan->input_at[k];
        if (said->alias != DT_ALIAS_FRESH && !is_it)
            continue;
        if (!input || !options->backend->tensor_is(options->device, input, NULL, &other) ||
            is_it != (storage && other == storage))
            return false;
    }
    return true;
}

dt_status_t dt_exec_check(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                          void *const *results, uint32_t count, dt_error_t *err)
{
    if (count != plan->signature->output_count)
        return dt_fail(err, DT_ERR_INVALID, "dt", count, "%u outputs were said and there are %u",
                       plan->signature->output_count, count);
    for (uint32_t i = 0; i < count; i++)
        if (!is_plainly(session, plan, i, results[i]))
            DT_TRY(check_output(session, plan, i, results[i], err));
    return DT_OK;
}
