/* Records, performed in order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "engine_exec_internal.h"
#include "engine_pack.h"

/* ---- what the page tells the agent ---- */

static void page_begin(dt_exec_t *exec, const dt_exec_plan_t *plan)
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

static int64_t page_end(dt_exec_t *exec)
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

/* A name for an output that has no value: it has the cause. */
static void enter_poisoned(dt_exec_session_t *session, uint64_t id, uint32_t vdev,
                           uint64_t sequence, dt_exec_cause_t *cause)
{
    dt_exec_storage_t *storage = dt_exec_storage_new(session->exec, vdev, sequence);
    if (storage && dt_exec_enter(session, id, NULL, storage)) {
        dt_exec_poison(storage, cause);
        return;
    }
    if (storage)
        dt_exec_storage_unref(session, storage);
    session->is_broken = true;
    (void)dt_fail(&session->broken, DT_ERR_NOMEM, "dt", 0,
                  "the engine has no memory for the tensors of this session");
}

/* All outputs, and what would have been written in place, take the cause. */
static void poison_outputs(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                           dt_exec_cause_t *cause)
{
    const dt_record_t *record = session->record;
    const dt_signature_t *sig = plan->signature;
    for (uint32_t i = 0; i < sig->output_count; i++) {
        if (sig->outputs[i].alias != DT_ALIAS_IN_PLACE)
            continue;
        dt_exec_tensor_t *input =
            dt_exec_find(&session->tensors, record->op.inputs[sig->outputs[i].input]);
        if (input)
            dt_exec_poison(input->storage, cause);
    }
    for (uint32_t i = 0; i < record->op.output_count; i++)
        enter_poisoned(session, record->op.outputs[i], plan->vdev, record->sequence, cause);
}

static void fail_op(dt_exec_session_t *session, const dt_exec_plan_t *plan, const char *kind,
                    const dt_error_t *err)
{
    dt_exec_cause_t *cause =
        dt_exec_cause_new(session, session->record->sequence, plan, NULL, plan->vdev, kind, err);
    if (plan->stat) {
        plan->stat->errors++;
        plan->stat->is_changed = true;
        session->has_stats = true;
    }
    if (!cause) {
        session->is_broken = true;
        session->broken = *err;
        return;
    }
    poison_outputs(session, plan, cause);
    dt_exec_tell_poison(session, cause);
    dt_exec_cause_unref(cause);
}

static void free_results(dt_exec_t *exec, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (exec->results[i])
            exec->options.backend->tensor_free(exec->options.device, exec->results[i]);
}

/* Give one output its id. False: no memory. */
static bool bind_output(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                        const dt_signature_tensor_t *out, void *result, uint64_t id)
{
    const dt_record_t *record = session->record;
    dt_exec_storage_t *storage;
    if (out->alias == DT_ALIAS_VIEW) {
        dt_exec_tensor_t *input = dt_exec_find(&session->tensors, record->op.inputs[out->input]);
        storage = input->storage;
        storage->refs++;
    } else {
        storage = dt_exec_storage_new(session->exec, plan->vdev, record->sequence);
    }
    if (storage && dt_exec_enter(session, id, result, storage))
        return true;
    if (storage)
        dt_exec_storage_unref(session, storage);
    return false;
}

/* Take over the results. They are as the plan says, or unchecked by its wish. */
static void bind_results(dt_exec_session_t *session, const dt_exec_plan_t *plan, uint32_t count)
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
            dt_exec_tensor_t *input =
                dt_exec_find(&session->tensors, record->op.inputs[out->input]);
            input->storage->version = record->sequence;
        }
        if (result)
            exec->options.backend->tensor_free(exec->options.device, result);
    }
}

enum op_inputs { INPUTS_READY, INPUTS_WAIT, INPUTS_POISONED };

/* Put handles into their places. *ret_cause: the cause with the lowest sequence of what is
 * poisoned. */
static enum op_inputs take_inputs(dt_exec_session_t *session, const dt_exec_plan_t *plan,
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
        dt_exec_storage_t *storage = tensor->storage;
        if (__builtin_expect(storage->upload != NULL, 0))
            return INPUTS_WAIT;
        if (__builtin_expect(storage->cause != NULL, 0) &&
            (!cause || storage->cause->sequence < cause->sequence))
            cause = storage->cause;
        *plan->input_at[i] = tensor->handle;
    }
    *ret_cause = cause;
    return cause || is_missing ? INPUTS_POISONED : INPUTS_READY;
}

static void skip_op(dt_exec_session_t *session, const dt_exec_plan_t *plan, dt_exec_cause_t *cause)
{
    dt_error_t err = {0};
    if (cause) {
        cause->skipped++;
        poison_outputs(session, plan, cause);
        return;
    }
    (void)dt_fail(&err, DT_ERR_LOST, "dt", 0, "an input of %s is not on this device",
                  plan->signature->name);
    fail_op(session, plan, "RuntimeError", &err);
}

/* Run an operator whose arguments are in their places. */
static void execute(dt_exec_session_t *session, dt_exec_plan_t *plan)
{
    dt_exec_t *exec = session->exec;
    const dt_exec_options_t *options = &exec->options;
    dt_error_t *err = &exec->err;
    uint32_t count = 0;
    if (__builtin_expect(plan->stream != exec->stream_now, 0) &&
        options->backend->generator_use(options->device, plan->stream, err) == DT_OK)
        exec->stream_now = plan->stream;
    err->text[0] = '\0';
    err->source_code = 0;
    page_begin(exec, plan);
    if (plan->expected)
        options->backend->op_expect(options->device, plan->op, plan->expected,
                                    plan->signature->output_count);
    dt_status_t status = options->backend->op_execute(options->device, plan->op, plan->args,
                                                      plan->signature->arg_count, exec->results,
                                                      DT_RECORD_OUTPUTS_MAX, &count, err);
    int64_t spent_ns = page_end(exec);
    plan->stat->device_ns += (uint64_t)spent_ns;
    if (__builtin_expect(session->trace != NULL, 0))
        dt_exec_trace_op(session, plan, spent_ns, status != DT_OK);
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
    if (!plan->is_mine)
        return true;
    if (__builtin_expect(plan->refused != NULL, 0)) {
        for (uint32_t i = 0; plan->input_at && i < op->input_count; i++)
            if (plan->input_at[i])
                *plan->input_at[i] = NULL;
        fail_op(session, plan, dt_exec_error_kind(plan->refused), plan->refused);
        return true;
    }
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
    return true;
}

/* ---- tensors in and out ---- */

static void perform_free(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    for (uint32_t i = 0; i < record->ids.count; i++) {
        dt_exec_tensor_t *tensor = dt_exec_find(&session->tensors, record->ids.ids[i]);
        if (tensor)
            dt_exec_drop(session, tensor);
    }
}

/* A cause that is no operator's: an upload or a fetch that failed. */
static dt_exec_cause_t *plain_cause(dt_exec_session_t *session, const char *what, uint32_t vdev,
                                    const dt_error_t *err)
{
    return dt_exec_cause_new(session, session->record->sequence, NULL, what, vdev,
                             dt_exec_error_kind(err), err);
}

static void fail_result(dt_exec_session_t *session, uint32_t vdev, const dt_error_t *err)
{
    dt_exec_cause_t *cause = plain_cause(session, "fetch", vdev, err);
    if (cause)
        dt_exec_result_error(session, session->record->move.number, cause);
    dt_exec_cause_unref(cause);
}

static uint8_t *put_meta(uint8_t *at, unsigned field, const dt_meta_t *meta)
{
    uint8_t coded[DT_RECORD_META_BYTES];
    return dt_pack_bytes(at, field, coded, (size_t)(dt_record_put_meta(coded, meta) - coded));
}

/* Put the metadata of the value, and that of the tensor: what is sent is packed, whatever the
 * tensor's own strides are, but the program may not know them. Gives the bytes of the value. */
static dt_status_t put_metas(dt_exec_t *exec, void *handle, uint8_t **at, uint64_t *ret_size,
                             dt_error_t *err)
{
    dt_backend_tensor_t info;
    dt_meta_t packed;
    DT_TRY(exec->options.backend->tensor_info(exec->options.device, handle, &info, err));
    DT_TRY(dt_meta_set(&packed, info.meta.dtype, info.meta.ndim, info.meta.sizes, NULL, 0, err));
    *at = put_meta(*at, DT_PACK_RESULT_META, &packed);
    if (!dt_meta_equal(&packed, &info.meta))
        *at = put_meta(*at, DT_PACK_RESULT_LAYOUT, &info.meta);
    *ret_size = (uint64_t)dt_meta_bytes(&packed);
    return DT_OK;
}

static dt_status_t send_value(dt_exec_session_t *session, void *handle, dt_error_t *err)
{
    dt_exec_t *exec = session->exec;
    uint64_t future = session->record->move.number;
    uint64_t size;
    uint8_t *body = exec->scratch;
    uint8_t *at = dt_pack_number(body, DT_PACK_RESULT_FUTURE, future);
    DT_TRY(put_metas(exec, handle, &at, &size, err));
    if (size > DT_RECORD_INLINE_MAX) {
        DT_TRY(dt_exec_download_begin(session, future, handle, size, err));
        at = dt_pack_number(at, DT_PACK_RESULT_TRANSFER, future);
    } else if (size > 0) {
        at = dt_pack_head(at, DT_PACK_RESULT_VALUE, size);
        DT_TRY(exec->options.backend->tensor_read(exec->options.device, handle, 0, at, size, err));
        at += size;
    }
    at = dt_pack_number(at, DT_PACK_RESULT_SIZE, size);
    dt_exec_up(session, DT_PACK_UP_RESULT, body, (size_t)(at - body));
    return DT_OK;
}

static bool perform_fetch(dt_exec_session_t *session)
{
    dt_exec_t *exec = session->exec;
    dt_error_t err = {0};
    dt_exec_tensor_t *tensor = dt_exec_find(&session->tensors, session->record->move.tensor);
    if (!tensor)
        return true; /* another engine's */
    dt_exec_storage_t *storage = tensor->storage;
    if (storage->upload)
        return false;
    if (storage->cause) {
        dt_exec_result_error(session, session->record->move.number, storage->cause);
        return true;
    }
    dt_status_t status = DT_OK;
    if (exec->options.backend->device_sync)
        status = exec->options.backend->device_sync(exec->options.device, &err);
    if (status == DT_OK)
        status = send_value(session, tensor->handle, &err);
    (void)dt_exec_now(exec);
    if (status != DT_OK) {
        err.code = status;
        fail_result(session, storage->vdev, &err);
    }
    return true;
}

static dt_status_t upload(dt_exec_session_t *session, uint32_t vdev, dt_error_t *err)
{
    const dt_record_t *record = session->record;
    const dt_exec_options_t *options = &session->exec->options;
    void *handle = NULL;
    DT_TRY(options->backend->tensor_create(options->device, &record->move.meta, &handle, err));
    dt_status_t status = DT_OK;
    if (record->move.number == 0)
        status = options->backend->tensor_write(options->device, handle, record->move.offset,
                                                record->move.bytes, record->move.size, err);
    dt_exec_storage_t *storage =
        status == DT_OK ? dt_exec_storage_new(session->exec, vdev, record->sequence) : NULL;
    if (status == DT_OK &&
        (!storage || !dt_exec_enter(session, record->move.output, handle, storage))) {
        if (storage)
            dt_exec_storage_unref(session, storage);
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the engine has no memory for a tensor");
    }
    if (status != DT_OK) {
        options->backend->tensor_free(options->device, handle);
        return status;
    }
    if (record->move.number == 0)
        return DT_OK;
    if (!dt_exec_upload_begin(session, record,
                              dt_exec_find(&session->tensors, record->move.output)))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the engine has no memory for an upload");
    return DT_OK;
}

static void perform_upload(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    dt_error_t err = {0};
    uint32_t vdev = dt_exec_vdev_of(session, &record->move.layout);
    if (record->move.number > session->last_transfer)
        session->last_transfer = record->move.number;
    if (!dt_exec_is_mine(session, vdev))
        return;
    dt_status_t status = upload(session, vdev, &err);
    (void)dt_exec_now(session->exec);
    if (status == DT_OK)
        return;
    err.code = status;
    dt_exec_cause_t *cause = plain_cause(session, "upload", vdev, &err);
    if (!cause)
        return;
    enter_poisoned(session, record->move.output, vdev, record->sequence, cause);
    dt_exec_tell_poison(session, cause);
    dt_exec_cause_unref(cause);
}

/* ---- the rest ---- */

static void perform_seed(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    const dt_exec_options_t *options = &session->exec->options;
    dt_error_t err = {0};
    for (uint32_t i = 0; i < session->vdev_count; i++) {
        uint32_t number;
        dt_status_t status = DT_ERR_LIMIT;
        (void)dt_fail(&err, status, "dt", 0, "too many random streams");
        if (dt_exec_stream(session, session->vdevs[i], (uint32_t)record->note.what, &number))
            status = options->backend->generator_seed(options->device, number, record->note.value,
                                                      record->note.offset, &err);
        if (status == DT_OK)
            continue;
        err.code = status;
        dt_exec_cause_t *cause = plain_cause(session, "seed", session->vdevs[i], &err);
        if (cause)
            dt_exec_tell_poison(session, cause);
        dt_exec_cause_unref(cause);
    }
}

static void set_source(dt_exec_session_t *session, uint64_t number, const char *text,
                       uint32_t text_bytes)
{
    if (number >= DT_EXEC_SOURCES_MAX)
        return;
    if (text_bytes > 0) {
        if (!session->sources)
            session->sources = calloc(DT_EXEC_SOURCES_MAX, sizeof *session->sources);
        if (!session->sources)
            return;
        free(session->sources[number]);
        session->sources[number] = strndup(text, text_bytes);
    }
    session->source = session->sources ? session->sources[number] : NULL;
    if (session->source)
        (void)dt_str_copy(session->memory.channel->source, sizeof session->memory.channel->source,
                          session->source);
}

static void perform_mark(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    switch (record->note.what) {
    case DT_MARK_SOURCE:
        set_source(session, record->note.value, record->note.text, record->note.text_bytes);
        return;
    case DT_MARK_RANGE_BEGIN:
        if (session->range_depth < DT_EXEC_RANGES_MAX)
            (void)snprintf(session->ranges[session->range_depth], sizeof session->ranges[0], "%.*s",
                           record->note.text_bytes < 127 ? (int)record->note.text_bytes : 127,
                           record->note.text_bytes ? record->note.text : "");
        session->range_depth++;
        return;
    case DT_MARK_RANGE_END:
        session->range_depth -= session->range_depth > 0;
        return;
    default: /* steps and snapshot points are the controller's */
        return;
    }
}

static void perform_option(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    char text[16];
    int64_t id;
    if (record->note.what != DT_OPTION_DROP_SIGNATURE || record->note.text_bytes >= sizeof text)
        return;
    (void)snprintf(text, sizeof text, "%.*s", (int)record->note.text_bytes, record->note.text);
    if (dt_str_to_i64(text, &id) != DT_OK || id < 0 || id >= session->plan_count)
        return;
    if (session->exec->named == session->plans[id])
        session->exec->named = NULL;
    dt_exec_plan_free(session->plans[id]);
    session->plans[id] = NULL;
}

/* A kind that this version does not perform: named, and what it would have made is poisoned. */
static void refuse_record(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    const char *name = dt_record_kind_name(record->kind);
    dt_error_t err = {0};
    (void)dt_fail(&err, DT_ERR_NOT_FOUND, "dt", record->kind,
                  "%s is not served by this version of the engine", name);
    dt_exec_cause_t *cause = plain_cause(session, name, session->vdevs[0], &err);
    if (!cause)
        return;
    if (record->kind == DT_RECORD_LOAD || record->kind == DT_RECORD_COPY_IN ||
        record->kind == DT_RECORD_REDISTRIBUTE)
        enter_poisoned(session, record->move.output, session->vdevs[0], record->sequence, cause);
    dt_exec_tell_poison(session, cause);
    dt_exec_cause_unref(cause);
}

static bool perform_kind(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    switch (record->kind) {
    case DT_RECORD_FETCH:
        return perform_fetch(session);
    case DT_RECORD_UPLOAD:
        perform_upload(session);
        return true;
    case DT_RECORD_DEF_PLAN:
        dt_exec_define_plan(session, record);
        return true;
    case DT_RECORD_DEF_MESH:
        dt_exec_define_mesh(session, record);
        return true;
    case DT_RECORD_SEED:
        perform_seed(session);
        return true;
    case DT_RECORD_MARK:
        perform_mark(session);
        return true;
    case DT_RECORD_SET_OPTION:
        perform_option(session);
        return true;
    default:
        if (!(record->kind & DT_RECORD_OPTIONAL))
            refuse_record(session);
        return true;
    }
}

/* A session that broke answers what is asked and does nothing else. */
static void perform_broken(dt_exec_session_t *session)
{
    if (session->record->kind == DT_RECORD_FETCH)
        fail_result(session, session->vdevs[0], &session->broken);
}

bool dt_exec_perform(dt_exec_session_t *session)
{
    uint8_t kind = session->record->kind;
    bool is_done = true;
    atomic_store_explicit(&session->memory.channel->running, session->record->sequence,
                          memory_order_relaxed);
    if (__builtin_expect(session->is_broken, 0))
        perform_broken(session);
    else if (kind == DT_RECORD_OP || kind == DT_RECORD_OP_LONG)
        is_done = perform_op(session);
    else if (kind == DT_RECORD_FREE)
        perform_free(session);
    else
        is_done = perform_kind(session);
    session->is_waiting = !is_done;
    return is_done;
}
