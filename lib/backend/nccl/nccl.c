/* Communicators: made without waiting, polled, aborted. Each has a stream: two programs use a
 * device in orders of their own, and on one stream each could wait behind the other for ever. */
#include "backend/nccl/nccl.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "backend/nccl/api.h"

typedef struct nccl {
    dt_nccl_api_t api;
    pthread_t thread; /* whose calls these are */
    int32_t device;
    uint32_t group_count;
} nccl_t;

typedef struct group {
    nccl_t *nccl;
    dt_nccl_comm_t comm;
    dt_nccl_stream_t stream;
    dt_nccl_event_t event; /* the end of what runs */
    enum { GROUP_JOINING, GROUP_IDLE, GROUP_ISSUING, GROUP_RUNNING, GROUP_BROKEN } state;
    dt_group_place_t place;
    const dt_group_work_t *work; /* ISSUING */
    dt_status_t broken;          /* BROKEN: what poll() says for ever */
    int64_t broken_code;
} group_t;

/* ---- errors ---- */

static dt_status_t status_of(dt_nccl_result_t result)
{
    switch (result) {
    case DT_NCCL_SUCCESS:
        return DT_OK;
    case DT_NCCL_IN_PROGRESS:
        return DT_ERR_AGAIN;
    case DT_NCCL_REMOTE_ERROR:
    case DT_NCCL_SYSTEM_ERROR: /* a socket, most of the time */
        return DT_ERR_PEER;
    case DT_NCCL_INVALID_ARGUMENT:
    case DT_NCCL_INVALID_USAGE:
        return DT_ERR_INVALID;
    case DT_NCCL_UNHANDLED_CUDA:
        return DT_ERR_DEVICE;
    default:
        return DT_ERR_INTERNAL;
    }
}

/* What NCCL says; IN_PROGRESS is no failure. */
static dt_status_t said(const nccl_t *nccl, dt_nccl_comm_t comm, dt_nccl_result_t result,
                        const char *what, dt_error_t *err)
{
    dt_status_t status = status_of(result);
    if (status == DT_OK || status == DT_ERR_AGAIN)
        return status;
    const char *more = nccl->api.last_text(comm);
    return dt_fail(err, status, "nccl", result, "%s: NCCL says %s (%d)%s%.200s", what,
                   nccl->api.result_text(result), result, more && *more ? ": " : "",
                   more ? more : "");
}

static dt_status_t ran(const nccl_t *nccl, dt_nccl_error_t error, const char *what, dt_error_t *err)
{
    if (error == DT_NCCL_CUDA_SUCCESS)
        return DT_OK;
    return dt_fail(err, error == DT_NCCL_CUDA_NO_MEMORY ? DT_ERR_LIMIT : DT_ERR_DEVICE, "cuda",
                   error, "%s: CUDA says %s (%d)", what, nccl->api.error_text(error), error);
}

static dt_status_t break_up(group_t *group, dt_status_t status, const dt_error_t *err)
{
    group->state = GROUP_BROKEN;
    group->broken = status;
    group->broken_code = err ? err->source_code : 0;
    return status;
}

/* ---- a device ---- */

static void nccl_close(void *ctx)
{
    nccl_t *nccl = ctx;
    if (!nccl)
        return;
    dt_check(nccl->group_count == 0);
    dt_nccl_api_close(&nccl->api);
    free(nccl);
}

static dt_status_t device_begin(nccl_t *nccl, dt_error_t *err)
{
    int count = 0;
    DT_TRY(ran(nccl, nccl->api.device_count(&count), "count the devices", err));
    if (nccl->device < 0 || nccl->device >= count)
        return dt_fail(err, DT_ERR_NOT_FOUND, "cuda", nccl->device, "device %d of %d",
                       (int)nccl->device, count);
    return ran(nccl, nccl->api.set_device(nccl->device), "choose the device", err);
}

static dt_status_t nccl_open(const dt_group_options_t *options, void **ret_ctx, dt_error_t *err)
{
    nccl_t *nccl = calloc(1, sizeof *nccl);
    if (!nccl)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for NCCL");
    nccl->thread = pthread_self();
    nccl->device = options->device;
    dt_status_t status = dt_nccl_api_open(&nccl->api, options->library, options->runtime, err);
    if (status == DT_OK)
        status = device_begin(nccl, err);
    if (status != DT_OK) {
        nccl_close(nccl);
        return status;
    }
    *ret_ctx = nccl;
    return DT_OK;
}

static nccl_t *ours(void *ctx)
{
    nccl_t *nccl = ctx;
    dt_check(pthread_equal(nccl->thread, pthread_self()));
    return nccl;
}

static dt_status_t nccl_alloc(void *ctx, uint64_t size, void **ret_block, dt_error_t *err)
{
    nccl_t *nccl = ours(ctx);
    void *block = NULL;
    DT_TRY(ran(nccl, nccl->api.memory_alloc(&block, size), "room for what moves", err));
    *ret_block = block;
    return DT_OK;
}

static void nccl_release(void *ctx, void *block)
{
    if (block)
        (void)ours(ctx)->api.memory_free(block);
}

/* ---- life ---- */

static dt_status_t nccl_id_make(void *ctx, dt_group_id_t *ret_id, dt_error_t *err)
{
    nccl_t *nccl = ours(ctx);
    dt_nccl_id_t id;
    DT_TRY(said(nccl, NULL, nccl->api.get_id(&id), "make a group's id", err));
    _Static_assert(sizeof id == sizeof *ret_id, "one is the other");
    memcpy(ret_id, &id, sizeof id);
    return DT_OK;
}

static void nccl_leave(void *arg)
{
    group_t *group = arg;
    if (!group)
        return;
    nccl_t *nccl = ours(group->nccl);
    if (group->comm) /* not ncclCommDestroy, which waits for the others */
        (void)nccl->api.comm_abort(group->comm);
    if (group->event)
        (void)nccl->api.event_destroy(group->event);
    if (group->stream) { /* copies only: with what was aborted, they end */
        (void)nccl->api.stream_wait(group->stream);
        (void)nccl->api.stream_destroy(group->stream);
    }
    nccl->group_count--;
    free(group);
}

static dt_status_t join_begin(group_t *group, const dt_group_id_t *id, dt_error_t *err)
{
    nccl_t *nccl = group->nccl;
    dt_nccl_config_t config = {sizeof config, DT_NCCL_CONFIG_MAGIC, DT_NCCL_CONFIG_VERSION, 0,
                               INT_MIN};
    dt_nccl_id_t said_id;
    memcpy(&said_id, id, sizeof said_id);
    DT_TRY(ran(nccl, nccl->api.stream_create(&group->stream, DT_NCCL_CUDA_NON_BLOCKING),
               "make a stream", err));
    DT_TRY(ran(nccl, nccl->api.event_create(&group->event, DT_NCCL_CUDA_NO_TIMING), "make an event",
               err));
    dt_status_t status = said(nccl, NULL,
                              nccl->api.init_rank(&group->comm, (int)group->place.count, said_id,
                                                  (int)group->place.rank, &config),
                              "join a group", err);
    return status == DT_ERR_AGAIN ? DT_OK : status;
}

static dt_status_t nccl_join(void *ctx, const dt_group_id_t *id, const dt_group_place_t *place,
                             void **ret_group, dt_error_t *err)
{
    nccl_t *nccl = ours(ctx);
    if (place->count == 0 || place->count > DT_GROUP_RANK_MAX || place->rank >= place->count)
        return dt_fail(err, DT_ERR_INVALID, "dt", place->rank, "rank %" PRIu32 " of %" PRIu32,
                       place->rank, place->count);
    group_t *group = calloc(1, sizeof *group);
    if (!group)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a group");
    group->nccl = nccl;
    group->place = *place;
    group->state = GROUP_JOINING;
    nccl->group_count++;
    dt_status_t status = join_begin(group, id, err);
    if (status != DT_OK) {
        nccl_leave(group);
        return status;
    }
    *ret_group = group;
    return DT_OK;
}

/* ---- work ---- */

static dt_nccl_dtype_t number_of(unsigned dtype)
{
    switch (dtype) {
    case DT_DTYPE_U8:
        return DT_NCCL_U8;
    case DT_DTYPE_I8:
        return DT_NCCL_I8;
    case DT_DTYPE_I32:
        return DT_NCCL_I32;
    case DT_DTYPE_U32:
        return DT_NCCL_U32;
    case DT_DTYPE_I64:
        return DT_NCCL_I64;
    case DT_DTYPE_U64:
        return DT_NCCL_U64;
    case DT_DTYPE_F16:
        return DT_NCCL_F16;
    case DT_DTYPE_F32:
        return DT_NCCL_F32;
    case DT_DTYPE_F64:
        return DT_NCCL_F64;
    case DT_DTYPE_BF16:
        return DT_NCCL_BF16;
    default:
        return -1; /* it can be moved, as bytes */
    }
}

static bool is_reducing(const dt_group_op_t *op)
{
    return op->kind == DT_GROUP_ALL_REDUCE || op->kind == DT_GROUP_REDUCE_SCATTER;
}

static dt_nccl_op_t reduction_of(unsigned reduction)
{
    static const dt_nccl_op_t numbers[] = {DT_NCCL_SUM, DT_NCCL_MAX, DT_NCCL_MIN, DT_NCCL_AVG};
    return reduction < sizeof numbers / sizeof numbers[0] ? numbers[reduction] : -1;
}

static dt_status_t check(const group_t *group, const dt_group_work_t *work, dt_error_t *err)
{
    for (uint32_t i = 0; i < work->op_count; i++) {
        const dt_group_op_t *op = &work->ops[i];
        bool has_peer = op->kind <= DT_GROUP_BROADCAST;
        bool is_self = op->kind <= DT_GROUP_RECV && op->peer == group->place.rank;
        if (op->kind >= DT_GROUP_OP_KIND_COUNT || dt_dtype_bytes(op->dtype) == 0 ||
            (has_peer && op->peer >= group->place.count) || is_self)
            return dt_fail(err, DT_ERR_INVALID, "dt", op->kind, "operation %" PRIu32 " of a group",
                           i);
        if (is_reducing(op) && (number_of(op->dtype) < 0 || reduction_of(op->reduction) < 0))
            return dt_fail(err, DT_ERR_INVALID, "nccl", op->dtype, "NCCL does not reduce %s",
                           dt_dtype_name(op->dtype));
    }
    return DT_OK;
}

static dt_nccl_result_t issue(const group_t *group, const dt_group_op_t *op)
{
    const dt_nccl_api_t *api = &group->nccl->api;
    dt_nccl_stream_t stream = group->stream;
    dt_nccl_dtype_t dtype = is_reducing(op) ? number_of(op->dtype) : DT_NCCL_U8;
    size_t count = op->count * (is_reducing(op) ? 1 : dt_dtype_bytes(op->dtype));
    dt_nccl_op_t reduction = reduction_of(op->reduction);
    switch (op->kind) {
    case DT_GROUP_SEND:
        return api->send(op->source, count, dtype, (int)op->peer, group->comm, stream);
    case DT_GROUP_RECV:
        return api->recv(op->target, count, dtype, (int)op->peer, group->comm, stream);
    case DT_GROUP_BROADCAST:
        return api->broadcast(op->source, op->target, count, dtype, (int)op->peer, group->comm,
                              stream);
    case DT_GROUP_ALL_REDUCE:
        return api->all_reduce(op->source, op->target, count, dtype, reduction, group->comm,
                               stream);
    case DT_GROUP_ALL_GATHER:
        return api->all_gather(op->source, op->target, count, dtype, group->comm, stream);
    default:
        return api->reduce_scatter(op->source, op->target, count, dtype, reduction, group->comm,
                                   stream);
    }
}

static dt_status_t issue_all(group_t *group, const dt_group_work_t *work, dt_error_t *err)
{
    nccl_t *nccl = group->nccl;
    dt_nccl_result_t first = DT_NCCL_SUCCESS;
    DT_TRY(said(nccl, group->comm, nccl->api.group_start(), "begin to move", err));
    for (uint32_t i = 0; i < work->op_count && status_of(first) != DT_ERR_PEER; i++) {
        dt_nccl_result_t result = issue(group, &work->ops[i]);
        if (first == DT_NCCL_SUCCESS && result != DT_NCCL_IN_PROGRESS)
            first = result;
    }
    dt_nccl_result_t last = nccl->api.group_end(); /* whatever came: what began must end */
    return said(nccl, group->comm, first != DT_NCCL_SUCCESS ? first : last, "move", err);
}

/* A box is rows where it can be, and runs where the pitch is more than CUDA takes. */
static dt_nccl_error_t copy_begin(const group_t *group, const dt_group_copy_t *copy)
{
    const dt_nccl_api_t *api = &group->nccl->api;
    dt_nccl_error_t error = DT_NCCL_CUDA_SUCCESS;
    if (copy->rows > 1 && copy->source_pitch <= DT_NCCL_CUDA_PITCH_MAX &&
        copy->target_pitch <= DT_NCCL_CUDA_PITCH_MAX)
        return api->copy_rows(copy->target, copy->target_pitch, copy->source, copy->source_pitch,
                              copy->row_bytes, copy->rows, DT_NCCL_CUDA_COPY_DEFAULT,
                              group->stream);
    for (uint64_t i = 0; error == DT_NCCL_CUDA_SUCCESS && i < copy->rows; i++)
        error = api->copy_run((uint8_t *)copy->target + i * copy->target_pitch,
                              (const uint8_t *)copy->source + i * copy->source_pitch,
                              copy->row_bytes, DT_NCCL_CUDA_COPY_DEFAULT, group->stream);
    return error;
}

static dt_status_t copy_all(const group_t *group, const dt_group_copy_t *copies, uint32_t count,
                            dt_error_t *err)
{
    for (uint32_t i = 0; i < count; i++)
        DT_TRY(ran(group->nccl, copy_begin(group, &copies[i]), "copy a box", err));
    return DT_OK;
}

/* All operations are on the stream: what comes after them, too. */
static dt_status_t issue_rest(group_t *group, dt_error_t *err)
{
    const nccl_t *nccl = group->nccl;
    DT_TRY(copy_all(group, group->work->after, group->work->after_count, err));
    DT_TRY(ran(nccl, nccl->api.event_record(group->event, group->stream), "record an event", err));
    group->work = NULL;
    group->state = GROUP_RUNNING;
    return DT_ERR_AGAIN;
}

static dt_status_t nccl_run(void *arg, const dt_group_work_t *work, dt_error_t *err)
{
    group_t *group = arg;
    (void)ours(group->nccl);
    dt_check(group->state == GROUP_IDLE);
    DT_TRY(check(group, work, err));
    group->work = work;
    dt_status_t status = copy_all(group, work->before, work->before_count, err);
    if (status == DT_OK && work->op_count > 0)
        status = issue_all(group, work, err);
    if (status == DT_ERR_AGAIN)
        group->state = GROUP_ISSUING;
    else if (status == DT_OK)
        status = issue_rest(group, err);
    return status == DT_ERR_AGAIN ? DT_OK : break_up(group, status, err);
}

/* ---- looking ---- */

static dt_status_t look(group_t *group, dt_error_t *err)
{
    nccl_t *nccl = group->nccl;
    dt_nccl_result_t result = DT_NCCL_SUCCESS;
    DT_TRY(said(nccl, group->comm, nccl->api.async_error(group->comm, &result), "ask NCCL", err));
    DT_TRY(said(nccl, group->comm, result, group->state == GROUP_JOINING ? "join a group" : "move",
                err));
    if (group->state == GROUP_ISSUING)
        return issue_rest(group, err);
    if (group->state == GROUP_JOINING)
        group->state = GROUP_IDLE;
    if (group->state == GROUP_IDLE)
        return DT_OK;
    dt_nccl_error_t error = nccl->api.event_query(group->event);
    if (error == DT_NCCL_CUDA_NOT_READY)
        return DT_ERR_AGAIN;
    DT_TRY(ran(nccl, error, "move", err));
    group->state = GROUP_IDLE;
    return DT_OK;
}

static dt_status_t nccl_poll(void *arg, dt_error_t *err)
{
    group_t *group = arg;
    (void)ours(group->nccl);
    if (group->state == GROUP_BROKEN)
        return dt_fail(err, group->broken, "nccl", group->broken_code,
                       "generation %" PRIu64 " of this group has failed", group->place.generation);
    dt_error_t why = {0};
    dt_status_t status = look(group, &why);
    if (status == DT_OK || status == DT_ERR_AGAIN)
        return status;
    if (err)
        *err = why;
    return break_up(group, status, &why);
}

const dt_group_table_t *dt_nccl_groups(void)
{
    static const dt_group_table_t table = {
        .name = "nccl",
        .open = nccl_open,
        .close = nccl_close,
        .id_make = nccl_id_make,
        .join = nccl_join,
        .poll = nccl_poll,
        .run = nccl_run,
        .leave = nccl_leave,
        .alloc = nccl_alloc,
        .release = nccl_release,
    };
    return &table;
}
