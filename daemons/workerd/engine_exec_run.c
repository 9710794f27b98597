/* Records that are no operators: tensors in and out, seeds, marks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "engine_exec_internal.h"
#include "engine_pack.h"

/* ---- tensors in and out ---- */

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
 * tensor's own strides are, but the program may not know them. Gives the bytes of the value, and
 * whether the tensor has them as they are sent. */
static dt_status_t put_metas(dt_exec_t *exec, void *handle, uint8_t **at, uint64_t *ret_size,
                             bool *ret_is_packed, dt_error_t *err)
{
    dt_backend_tensor_t info;
    dt_meta_t packed;
    DT_TRY(exec->options.backend->tensor_info(exec->options.device, handle, &info, err));
    DT_TRY(dt_meta_set(&packed, info.meta.dtype, info.meta.ndim, info.meta.sizes, NULL, 0, err));
    *at = put_meta(*at, DT_PACK_RESULT_META, &packed);
    *ret_is_packed = dt_meta_equal(&packed, &info.meta);
    if (!*ret_is_packed)
        *at = put_meta(*at, DT_PACK_RESULT_LAYOUT, &info.meta);
    *ret_size = (uint64_t)dt_meta_bytes(&packed);
    return DT_OK;
}

static dt_status_t send_value(dt_exec_session_t *session, const dt_exec_local_t *local,
                              dt_error_t *err)
{
    dt_exec_t *exec = session->exec;
    void *handle = local->handle;
    uint64_t future = session->record->move.number;
    uint64_t size;
    bool is_packed;
    uint8_t *body = exec->scratch;
    uint8_t *at = dt_pack_number(body, DT_PACK_RESULT_FUTURE, future);
    DT_TRY(put_metas(exec, handle, &at, &size, &is_packed, err));
    if (size > DT_RECORD_INLINE_MAX) {
        DT_TRY(dt_exec_download_begin(session, local, size, is_packed, err));
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

/* What a FETCH asks for: of a tensor on several vdevs what the first of its mesh has. NULL: it is
 * not here. */
static const dt_exec_local_t *fetched(dt_exec_session_t *session)
{
    uint64_t id = session->record->move.tensor;
    const dt_exec_tensor_t *tensor = dt_exec_find(&session->tensors, id);
    const dt_exec_local_t *local = tensor ? &tensor->local : NULL;
    if (!tensor && session->spreads.count > 0) {
        tensor = dt_exec_find(&session->spreads, id);
        local = tensor ? &tensor->spread->locals[0] : NULL;
    }
    return local && local->storage && local->storage->place == 0 ? local : NULL;
}

static bool perform_fetch(dt_exec_session_t *session)
{
    dt_exec_t *exec = session->exec;
    dt_error_t err = {0};
    const dt_exec_local_t *local = fetched(session);
    if (!local)
        return true; /* another engine's */
    const dt_exec_storage_t *storage = local->storage;
    if (storage->upload || session->moves.count > 0)
        return false; /* who waits for a value waits for all that came before: dt_synchronize() */
    if (storage->cause) {
        dt_exec_result_error(session, session->record->move.number, storage->cause);
        return true;
    }
    dt_status_t status = DT_OK;
    if (exec->options.backend->device_sync)
        status = exec->options.backend->device_sync(exec->options.device, &err);
    if (status == DT_OK)
        status = send_value(session, local, &err);
    (void)dt_exec_now(exec);
    if (status != DT_OK) {
        err.code = status;
        fail_result(session, storage->vdev, &err);
    }
    return true;
}

/* Make the local tensor of an upload. Bytes that came with it are all of the tensor: of them a vdev
 * of several keeps its box. */
static dt_status_t upload_make(dt_exec_session_t *session, const dt_exec_mesh_t *mesh, uint32_t own,
                               void **ret_handle, dt_error_t *err)
{
    const dt_record_t *record = session->record;
    const dt_exec_options_t *options = &session->exec->options;
    const uint8_t *bytes = record->move.bytes;
    uint64_t size = record->move.size;
    dt_meta_t meta = record->move.meta;
    if (mesh->shape.count > 1) {
        DT_TRY(dt_exec_cut(session, mesh, own, &meta, &size, err));
        bytes = session->exec->scratch;
    }
    DT_TRY(options->backend->tensor_create(options->device, &meta, ret_handle, err));
    if (record->move.number != 0)
        return DT_OK;
    return options->backend->tensor_write(options->device, *ret_handle, record->move.offset, bytes,
                                          size, err);
}

static dt_status_t upload(dt_exec_session_t *session, dt_exec_mesh_t *mesh, uint32_t own,
                          dt_error_t *err)
{
    const dt_record_t *record = session->record;
    const dt_exec_options_t *options = &session->exec->options;
    uint64_t id = record->move.output;
    void *handle = NULL;
    dt_status_t status = upload_make(session, mesh, own, &handle, err);
    dt_exec_storage_t *storage =
        status == DT_OK ? dt_exec_storage_new(session->exec, mesh->own[own].vdev, record->sequence)
                        : NULL;
    if (status == DT_OK &&
        (!storage || !dt_exec_enter_local(session, mesh, own, id, handle, storage))) {
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
    if (!dt_exec_upload_begin(session, record, dt_exec_local(session, mesh, id, own)))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the engine has no memory for an upload");
    return DT_OK;
}

static void perform_upload(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    dt_exec_mesh_t *mesh = dt_exec_mesh_of(session, &record->move.layout);
    if (record->move.number > session->last_transfer)
        session->last_transfer = record->move.number;
    for (uint32_t i = 0; mesh && i < mesh->own_count; i++) {
        dt_error_t err = {0};
        dt_status_t status = upload(session, mesh, i, &err);
        (void)dt_exec_now(session->exec);
        if (status == DT_OK)
            continue;
        err.code = status;
        dt_exec_cause_t *cause = plain_cause(session, "upload", mesh->own[i].vdev, &err);
        if (!cause)
            return;
        if (record->move.number != 0)
            dt_exec_upload_refuse(session, record->move.number, cause);
        dt_exec_enter_poisoned(session, mesh, i, record->move.output, cause);
        dt_exec_tell_poison(session, cause);
        dt_exec_cause_unref(cause);
    }
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

/* False: the text that goes is that of queued moves, perhaps. */
static bool set_source(dt_exec_session_t *session, uint64_t number, const char *text,
                       uint32_t text_bytes)
{
    if (number >= DT_EXEC_SOURCES_MAX)
        return true;
    if (text_bytes > 0) {
        if (!session->sources)
            session->sources = calloc(DT_EXEC_SOURCES_MAX, sizeof *session->sources);
        if (!session->sources)
            return true;
        if (session->sources[number] && session->moves.count > 0)
            return false;
        free(session->sources[number]);
        session->sources[number] = strndup(text, text_bytes);
    }
    session->here.source = session->sources ? session->sources[number] : NULL;
    if (session->here.source)
        (void)dt_str_copy(session->memory.channel->source, sizeof session->memory.channel->source,
                          session->here.source);
    return true;
}

static bool perform_mark(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    switch (record->note.what) {
    case DT_MARK_SOURCE:
        return set_source(session, record->note.value, record->note.text, record->note.text_bytes);
    case DT_MARK_RANGE_BEGIN:
        if (session->here.range_depth < DT_EXEC_RANGES_MAX)
            (void)snprintf(session->here.ranges[session->here.range_depth],
                           sizeof session->here.ranges[0], "%.*s",
                           record->note.text_bytes < 127 ? (int)record->note.text_bytes : 127,
                           record->note.text_bytes ? record->note.text : "");
        session->here.range_depth++;
        return true;
    case DT_MARK_RANGE_END:
        session->here.range_depth -= session->here.range_depth > 0;
        return true;
    default: /* steps and snapshot points are the controller's */
        return true;
    }
}

/* Whether a queued move may use what lies under the number of a plan. */
static bool is_plan_used(const dt_exec_session_t *session, uint64_t id)
{
    return session->moves.count > 0 && id < session->plan_count && session->plans[id] &&
           session->plans[id]->move;
}

static bool perform_option(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    char text[16];
    int64_t id;
    if (record->note.what != DT_OPTION_DROP_SIGNATURE || record->note.text_bytes >= sizeof text)
        return true;
    (void)snprintf(text, sizeof text, "%.*s", (int)record->note.text_bytes, record->note.text);
    if (dt_str_to_i64(text, &id) != DT_OK || id < 0 || id >= session->plan_count)
        return true;
    if (is_plan_used(session, (uint64_t)id))
        return false;
    session->exec->named = NULL; /* it may have been this one, or a part of it */
    dt_exec_plan_free(session->plans[id]);
    session->plans[id] = NULL;
    return true;
}

/* What a record would have made has the cause, on this engine's part of its mesh. */
static void enter_refused(dt_exec_session_t *session, dt_exec_cause_t *cause)
{
    const dt_record_t *record = session->record;
    dt_exec_mesh_t *mesh = dt_exec_mesh_of(session, &record->move.layout);
    for (uint32_t i = 0; mesh && i < mesh->own_count; i++)
        dt_exec_enter_poisoned(session, mesh, i, record->move.output, cause);
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
        enter_refused(session, cause);
    dt_exec_tell_poison(session, cause);
    dt_exec_cause_unref(cause);
}

bool dt_exec_perform_kind(dt_exec_session_t *session)
{
    const dt_record_t *record = session->record;
    switch (record->kind) {
    case DT_RECORD_FETCH:
        return perform_fetch(session);
    case DT_RECORD_UPLOAD:
        if (dt_exec_moves_crowd(session))
            return false;
        perform_upload(session);
        return true;
    case DT_RECORD_DEF_PLAN:
        if (is_plan_used(session, record->definition.id))
            return false;
        dt_exec_define_plan(session, record);
        return true;
    case DT_RECORD_DEF_MESH:
        dt_exec_define_mesh(session, record);
        return true;
    case DT_RECORD_SEED:
        perform_seed(session);
        return true;
    case DT_RECORD_MARK:
        return perform_mark(session);
    case DT_RECORD_SET_OPTION:
        return perform_option(session);
    default:
        if (!(record->kind & DT_RECORD_OPTIONAL))
            refuse_record(session);
        return true;
    }
}

/* A session that broke answers what is asked and does nothing else; engines that would wait for it
 * are told. */
void dt_exec_perform_broken(dt_exec_session_t *session)
{
    if (!session->has_left)
        dt_exec_move_leave(session);
    session->has_left = true;
    if (session->record->kind == DT_RECORD_FETCH)
        fail_result(session, session->vdevs[0], &session->broken);
}
