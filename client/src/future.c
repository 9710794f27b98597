/* Futures: values asked for, and waiting for all that came before. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

/* ---- the ring of those that are not confirmed ---- */

dt_future_t *dt_client_future_find(dt_session_t *session, uint64_t number)
{
    if (number < session->future_base || number >= session->future_next)
        return NULL;
    return session->futures[number & (session->future_cap - 1)];
}

static dt_status_t ring_room(dt_session_t *session)
{
    uint64_t count = session->future_next - session->future_base;
    uint32_t cap = session->future_cap ? 2 * session->future_cap : 64;
    dt_future_t **ring;
    if (count < session->future_cap)
        return DT_OK;
    ring = calloc(cap, sizeof(void *));
    if (!ring)
        return DT_ERR_NOMEM;
    for (uint64_t n = session->future_base; n < session->future_next; n++)
        ring[n & (cap - 1)] = session->futures[n & (session->future_cap - 1)];
    free(session->futures);
    session->futures = ring;
    session->future_cap = cap;
    return DT_OK;
}

static void future_free(dt_future_t *future)
{
    dt_list_remove(&future->link);
    if (!future->is_given)
        free(future->data);
    free(future->failure);
    free(future);
}

void dt_client_future_done(dt_future_t *future, dt_status_t status)
{
    dt_session_t *session = future->session;
    future->status = status;
    future->is_done = true;
    dt_list_remove(&future->link);
    session->done_bytes += future->size;
    if (future->has_slot) {
        future->has_slot = false;
        session->futures[future->number & (session->future_cap - 1)] = NULL;
        while (session->future_base < session->future_next &&
               !session->futures[session->future_base & (session->future_cap - 1)])
            session->future_base++;
    }
    if (future->is_dropped) {
        session->users--;
        future_free(future);
    }
    dt_client_changed(session);
}

void dt_client_futures_end(dt_session_t *session)
{
    uint64_t next = session->future_next;
    for (uint64_t n = session->future_base; n < next; n++) {
        dt_future_t *future = dt_client_future_find(session, n);
        if (!future)
            continue;
        future->failure = calloc(1, sizeof *future->failure);
        if (future->failure)
            (void)dt_client_failure_from(future->failure, &session->end);
        dt_client_future_done(future, session->end.code);
    }
}

/* ---- asking ---- */

#define FETCH_BOUND 64u /* bytes of its record */

dt_status_t dt_client_fetch(dt_session_t *session, uint64_t id, int64_t deadline_ns,
                            dt_future_t **ret_future, dt_error_t *err)
{
    dt_record_t record;
    record.kind = DT_RECORD_FETCH;
    memset(&record.move, 0, sizeof record.move);
    record.move.tensor = id;
    do {
        DT_TRY(dt_client_room(session, dt_record_bound(&record), deadline_ns, err));
        if (session->future_next - session->future_base < DT_CLIENT_FUTURES_MAX)
            break;
        dt_client_close_frame(session);
    } while (dt_client_wait(session, deadline_ns));
    if (session->future_next - session->future_base >= DT_CLIENT_FUTURES_MAX)
        return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "too many values are asked for");
    dt_future_t *future = calloc(1, sizeof *future);
    if (!future || ring_room(session) != DT_OK) {
        free(future);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a future");
    }
    future->session = session;
    future->has_slot = true;
    dt_list_init(&future->link);
    record.move.number = future->number = session->future_next++;
    session->futures[future->number & (session->future_cap - 1)] = future;
    session->users++;
    dt_client_put(session, &record);
    *ret_future = future;
    return DT_OK;
}

/* Where the program's tensor is now, with room for the FETCH. Lock held, may be released. */
static dt_status_t find_wire(dt_session_t *session, uint64_t id, uint64_t *ret_wire,
                             dt_error_t *err)
{
    uint64_t seen;
    *ret_wire = id;
    if (!session->track.is_on)
        return DT_OK;
    do {
        seen = session->releases;
        DT_TRY(dt_client_fetch_wire(session, id, ret_wire, err));
        DT_TRY(dt_client_room(session, FETCH_BOUND, INT64_MAX, err));
    } while (session->releases != seen);
    return DT_OK;
}

/* `into` NULL: the value goes into memory of the future. */
static dt_status_t fetch_into(dt_session_t *session, uint64_t id, void *into, size_t size,
                              dt_future_t **ret_future, dt_error_t *err)
{
    dt_future_t *future = NULL;
    uint64_t wire = 0;
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = id && id < session->next_tensor
                             ? find_wire(session, id, &wire, err)
                             : dt_fail(err, DT_ERR_INVALID, "dt", 0, "no tensor has this id");
    if (status == DT_OK)
        status = dt_client_fetch(session, wire, INT64_MAX, &future, err);
    if (session->track.is_on)
        dt_client_drop_flush(session);
    if (status == DT_OK) {
        future->into = into;
        future->into_size = size;
        *ret_future = future;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

dt_status_t dt_fetch_id(dt_session_t *session, uint64_t id, dt_future_t **ret_future,
                        dt_error_t *err)
{
    return fetch_into(session, id, NULL, 0, ret_future, err);
}

dt_status_t dt_fetch(dt_tensor_t *tensor, dt_future_t **ret_future, dt_error_t *err)
{
    return dt_fetch_id(tensor->session, tensor->id, ret_future, err);
}

/* ---- a value comes ---- */

static void fail(dt_future_t *future, const Dtorch__V1__OperatorError *error)
{
    future->failure = malloc(sizeof *future->failure);
    if (future->failure)
        dt_client_failure_fill(future->failure, error);
    dt_client_record_result(future, future->failure ? future->failure->error.code : DT_ERR_NOMEM);
    dt_client_future_done(future, future->failure ? future->failure->error.code : DT_ERR_NOMEM);
}

static void fail_here(dt_future_t *future, dt_status_t code, const char *text)
{
    dt_error_t err;
    future->failure = malloc(sizeof *future->failure);
    (void)dt_fail(&err, code, "dt", 0, "%s", text);
    if (future->failure)
        (void)dt_client_failure_from(future->failure, &err);
    dt_client_future_done(future, code);
}

dt_status_t dt_client_future_begin(dt_future_t *future, uint64_t total)
{
    dt_session_t *session = future->session;
    future->is_given = future->into && future->into_size == total;
    future->data = future->is_given       ? future->into
                   : total <= PTRDIFF_MAX ? malloc(total ? (size_t)total : 1)
                                          : NULL;
    if (!future->data) {
        fail_here(future, DT_ERR_NOMEM, "no memory for a value that was fetched");
        return DT_ERR_NOMEM;
    }
    future->size = (size_t)total;
    dt_list_push(&session->downloads, &future->link);
    return DT_OK;
}

void dt_client_future_whole(dt_future_t *future)
{
    if (!future->has_result || future->received < future->size)
        return;
    dt_client_record_result(future, DT_OK);
    dt_client_future_done(future, DT_OK);
}

/* Bytes that a peer left out are none at NULL. */
static dt_cursor_t cursor_over(const ProtobufCBinaryData *bytes)
{
    return (dt_cursor_t){.at = bytes->data,
                         .end = bytes->len ? bytes->data + bytes->len : bytes->data};
}

void dt_client_result(dt_session_t *session, const Dtorch__V1__Result *result)
{
    dt_future_t *future = dt_client_future_find(session, result->future);
    if (!future || (future->has_result && !result->error))
        return; /* said again after a resume; an error: its bytes are lost with their node */
    future->has_result = true;
    if (result->error) {
        fail(future, result->error);
        return;
    }
    dt_cursor_t cursor = cursor_over(&result->meta);
    dt_record_get_meta(&cursor, &future->meta);
    future->layout = future->meta;
    if (!cursor.error && result->layout.len) {
        cursor = cursor_over(&result->layout);
        dt_record_get_meta(&cursor, &future->layout);
    }
    bool is_one = future->layout.dtype == future->meta.dtype &&
                  future->layout.ndim == future->meta.ndim &&
                  memcmp(future->layout.sizes, future->meta.sizes, sizeof future->meta.sizes) == 0;
    size_t size = cursor.error ? 0 : (size_t)dt_meta_bytes(&future->meta);
    bool has_begun = !dt_list_is_empty(&future->link);
    if (cursor.error || !is_one ||
        (result->transfer ? result->size_bytes : result->value.len) != size ||
        (has_begun && future->size != size)) {
        fail_here(future, DT_ERR_INTERNAL, "a value that does not fit its metadata came");
        return;
    }
    if (future->is_dropped) {
        session->has_refused |= result->transfer != 0;
        dt_client_future_done(future, DT_OK);
        return;
    }
    if (!has_begun && dt_client_future_begin(future, size) != DT_OK)
        return;
    if (!result->transfer) {
        if (size)
            memcpy(future->data, result->value.data, size);
        future->received = size;
    }
    dt_client_future_whole(future);
}

/* ---- looking at it ---- */

bool dt_future_ready(dt_future_t *future)
{
    dt_session_t *session = future->session;
    if (dt_client_is_forked(session))
        return true;
    pthread_mutex_lock(&session->lock);
    bool is_done = future->is_done;
    if (!is_done && session->open && session->writer.count > 0)
        dt_client_close_frame(session); /* somebody waits for it, it seems */
    pthread_mutex_unlock(&session->lock);
    return is_done;
}

/* Wait until it is done. Lock held. */
static bool await(dt_future_t *future, int64_t deadline_ns)
{
    dt_session_t *session = future->session;
    session->may_defer = true; /* a frame leaves from here, if nobody else turns */
    if (!future->is_done)
        dt_client_close_frame(session);
    session->may_defer = false;
    while (!future->is_done && dt_client_await(session, deadline_ns))
        ;
    return future->is_done;
}

dt_status_t dt_future_wait(dt_future_t *future, int64_t timeout_ms, dt_failure_t *failure)
{
    dt_session_t *session = future->session;
    dt_error_t err;
    dt_status_t status;
    if (dt_client_is_forked(session)) {
        (void)dt_client_forked(&err);
        return dt_client_failure_from(failure, &err);
    }
    pthread_mutex_lock(&session->lock);
    if (!await(future, dt_client_deadline(timeout_ms))) {
        (void)dt_fail(&err, DT_ERR_TIMEOUT, "dt", 0, "the value did not come in time");
        status = dt_client_failure_from(failure, &err);
    } else if (future->status == DT_OK) {
        status = DT_OK;
    } else if (future->failure) {
        status = dt_client_failure_give(future->failure, failure);
        dt_client_failure_fetched(session, future->failure->sequence);
    } else {
        (void)dt_fail(&err, future->status, "dt", 0, "%s", dt_status_text(future->status));
        status = dt_client_failure_from(failure, &err);
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

static dt_status_t value_of(dt_future_t *future)
{
    if (dt_client_is_forked(future->session))
        return DT_ERR_STOPPED;
    pthread_mutex_lock(&future->session->lock);
    dt_status_t status = future->is_done ? future->status : DT_ERR_AGAIN;
    pthread_mutex_unlock(&future->session->lock);
    return status;
}

dt_status_t dt_future_meta(dt_future_t *future, dt_meta_t *ret_meta)
{
    DT_TRY(value_of(future));
    *ret_meta = future->meta;
    return DT_OK;
}

dt_status_t dt_future_data(dt_future_t *future, const void **ret_data, size_t *ret_size)
{
    DT_TRY(value_of(future));
    *ret_data = future->data;
    *ret_size = future->size;
    return DT_OK;
}

dt_status_t dt_future_read(dt_future_t *future, void *ret_data, size_t size, dt_error_t *err)
{
    dt_status_t status = value_of(future);
    if (status != DT_OK)
        return dt_fail(err, status, "dt", 0, "%s",
                       status == DT_ERR_AGAIN ? "the value is not here yet"
                                              : dt_status_text(status));
    if (size != future->size)
        return dt_fail(err, DT_ERR_LIMIT, "dt", (int64_t)future->size,
                       "the value has %zu bytes, there is room for %zu", future->size, size);
    if (size)
        memcpy(ret_data, future->data, size);
    return DT_OK;
}

void dt_future_free(dt_future_t *future)
{
    if (!future || dt_client_is_forked(future->session))
        return;
    dt_session_t *session = future->session;
    pthread_mutex_lock(&session->lock);
    if (future->has_slot && dt_list_is_empty(&future->link)) {
        future->is_dropped = true;
        pthread_mutex_unlock(&session->lock);
        return;
    }
    if (future->has_slot) { /* its bytes are coming: not any more */
        future->is_dropped = true;
        dt_client_future_done(future, DT_OK);
        if (session->answer_waits > 0)
            dt_client_io_kick(session); /* one of them may turn, and not hear of it */
        pthread_mutex_unlock(&session->lock);
        return;
    }
    future_free(future);
    dt_client_unuse_unlock(session);
}

dt_status_t dt_tensor_read(dt_tensor_t *tensor, void *ret_data, size_t size, dt_failure_t *failure)
{
    dt_future_t *future = NULL;
    dt_error_t err = {.code = DT_ERR_INTERNAL};
    if (fetch_into(tensor->session, tensor->id, ret_data, size, &future, &err) != DT_OK || !future)
        return dt_client_failure_from(failure, &err);
    /* We wait until it is done, whatever comes: ret_data is there as long as it may be written. */
    dt_status_t status = dt_future_wait(future, -1, failure);
    if (status == DT_OK && !future->is_given &&
        dt_future_read(future, ret_data, size, &err) != DT_OK)
        status = dt_client_failure_from(failure, &err);
    dt_future_free(future);
    return status;
}

/* ---- synchronising: a fetch comes back when all before it has been executed ---- */

static dt_status_t put_sync_tensor(dt_session_t *session, uint32_t vdev, int64_t deadline_ns,
                                   dt_error_t *err)
{
    static const uint8_t zero = 0;
    dt_record_t record;
    record.kind = DT_RECORD_UPLOAD;
    memset(&record.move, 0, sizeof record.move);
    DT_TRY(dt_meta_set(&record.move.meta, DT_DTYPE_U8, 0, NULL, NULL, 0, err));
    record.move.size = 1;
    record.move.bytes = &zero;
    DT_TRY(dt_client_layout(session, vdev, &record.move.layout, err));
    DT_TRY(dt_client_room(session, dt_record_bound(&record), deadline_ns, err));
    if (session->sync_tensors[vdev])
        return DT_OK; /* another thread did it meanwhile */
    session->sync_tensors[vdev] = record.move.output = session->next_tensor++;
    dt_client_put(session, &record);
    return DT_OK;
}

/* Virtual devices are waited for one after the other; the fetches of all are sent before. Lock
 * held. */
static dt_status_t sync_all(dt_session_t *session, dt_future_t **futures, int64_t deadline_ns,
                            dt_error_t *err)
{
    for (uint32_t v = 0; v < session->settings.vdev_count; v++) {
        if (v > 0 && !session->has_mesh[v])
            continue;
        if (!session->sync_tensors[v])
            DT_TRY(put_sync_tensor(session, v, deadline_ns, err));
        DT_TRY(dt_client_fetch(session, session->sync_tensors[v], deadline_ns, &futures[v], err));
    }
    for (uint32_t v = 0; v < session->settings.vdev_count; v++) {
        if (!futures[v])
            continue;
        if (!await(futures[v], deadline_ns))
            return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "not all operators were executed in time");
        if (session->state == DT_CLIENT_ENDED)
            return dt_fail(err, session->end.code, "dt", 0, "%s", session->end.text);
        if (futures[v]->status != DT_OK)
            session->sync_tensors[v] = 0; /* lost with its device: make another the next time */
    }
    return DT_OK;
}

dt_status_t dt_synchronize(dt_session_t *session, int64_t timeout_ms, dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    uint32_t count = session->settings.vdev_count;
    dt_future_t **futures = calloc(count, sizeof(void *));
    dt_status_t status = futures ? sync_all(session, futures, dt_client_deadline(timeout_ms), err)
                                 : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to wait with");
    pthread_mutex_unlock(&session->lock);
    for (uint32_t v = 0; futures && v < count; v++)
        dt_future_free(futures[v]);
    free(futures);
    return status;
}

dt_status_t dt_flush(dt_session_t *session, dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    dt_client_put_frees(session, true);
    dt_client_close_frame(session);
    pthread_mutex_unlock(&session->lock);
    return DT_OK;
}
