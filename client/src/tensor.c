/* Tensors: handles, uploads, frees. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define FILL_BYTES DT_BULK_PIECE_BYTES

/* ---- metadata ---- */

dt_status_t dt_describe(dt_dtype_t dtype, unsigned ndim, const int64_t *sizes,
                        const int64_t *strides, dt_meta_t *ret_meta, dt_error_t *err)
{
    return dt_meta_set(ret_meta, dtype, ndim, sizes, strides, 0, err);
}

size_t dt_element_bytes(dt_dtype_t dtype)
{
    return dt_dtype_bytes(dtype);
}

size_t dt_dense_bytes(const dt_meta_t *meta)
{
    return (size_t)dt_meta_bytes(meta);
}

/* ---- handles ---- */

dt_tensor_t *dt_client_tensor_new(dt_session_t *session, uint64_t id, uint32_t meta, uint32_t vdev)
{
    dt_tensor_t *tensor = session->tensor_pool;
    if (tensor)
        session->tensor_pool = tensor->next_free;
    else if (!(tensor = malloc(sizeof *tensor)))
        return NULL;
    *tensor = (dt_tensor_t){.session = session, .id = id, .meta = meta, .vdev = vdev, .refs = 1};
    session->users++;
    return tensor;
}

void dt_client_free_wire(dt_session_t *session, uint64_t id, uint64_t bytes)
{
    if (session->state == DT_CLIENT_ENDED || id == 0)
        return;
    if (session->free_count == session->free_cap) {
        uint32_t cap = session->free_cap ? 2 * session->free_cap : DT_RECORD_FREE_MAX;
        uint64_t *grown = realloc(session->frees, cap * sizeof *grown);
        if (!grown)
            return; /* it is freed with the session */
        session->frees = grown;
        session->free_cap = cap;
    }
    session->frees[session->free_count++] = id;
    session->free_bytes += bytes;
    if (session->open &&
        (session->free_count >= DT_RECORD_FREE_MAX || session->free_bytes >= DT_CLIENT_FREE_BYTES))
        dt_client_put_frees(session, false);
    if (!session->is_ticking) {
        session->is_ticking = true;
        dt_client_io_kick(session);
    }
}

/* The program names it no more. */
static void free_id(dt_session_t *session, uint64_t id, uint64_t bytes)
{
    dt_client_node_t *node = session->track.is_on ? dt_client_node_find(session, id) : NULL;
    if (!node) {
        dt_client_free_wire(session, id, bytes);
        return;
    }
    dt_client_node_unref(session, node);
    dt_client_drop_flush(session);
}

static bool unref(dt_tensor_t *tensor)
{
    dt_session_t *session = tensor->session;
    if (--tensor->refs > 0)
        return false;
    free_id(session, tensor->id,
            tensor->meta >= session->metas.count /* DT_CLIENT_NO_META is */
                ? DT_CLIENT_FREE_UNKNOWN
                : (uint64_t)dt_meta_bytes(session->metas.items[tensor->meta]));
    tensor->next_free = session->tensor_pool;
    session->tensor_pool = tensor;
    return true;
}

void dt_client_tensor_unref(dt_tensor_t *tensor)
{
    dt_session_t *session = tensor->session;
    if (unref(tensor))
        session->users--;
}

void dt_tensor_free(dt_tensor_t *tensor)
{
    if (!tensor || dt_client_is_forked(tensor->session))
        return;
    dt_session_t *session = tensor->session;
    pthread_mutex_lock(&session->lock);
    if (unref(tensor))
        dt_client_unuse_unlock(session);
    else
        pthread_mutex_unlock(&session->lock);
}

dt_tensor_t *dt_tensor_ref(dt_tensor_t *tensor)
{
    if (dt_client_is_forked(tensor->session))
        return tensor;
    pthread_mutex_lock(&tensor->session->lock);
    tensor->refs++;
    pthread_mutex_unlock(&tensor->session->lock);
    return tensor;
}

uint64_t dt_tensor_disown(dt_tensor_t *tensor)
{
    uint64_t id = tensor->id;
    tensor->id = 0;
    dt_tensor_free(tensor);
    return id;
}

dt_status_t dt_tensor_adopt(dt_session_t *session, uint64_t id, uint32_t vdev,
                            const dt_meta_t *meta, dt_tensor_t **ret_tensor, dt_error_t *err)
{
    uint32_t index = DT_CLIENT_NO_META;
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = meta ? dt_client_meta_intern(&session->metas, meta, &index) : DT_OK;
    dt_tensor_t *tensor = status == DT_OK ? dt_client_tensor_new(session, id, index, vdev) : NULL;
    pthread_mutex_unlock(&session->lock);
    if (!tensor)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a tensor");
    *ret_tensor = tensor;
    return DT_OK;
}

void dt_free_ids_of(dt_session_t *session, const uint64_t *ids, uint32_t count, uint64_t bytes)
{
    if (dt_client_is_forked(session))
        return;
    pthread_mutex_lock(&session->lock);
    for (uint32_t i = 0; i < count; i++)
        free_id(session, ids[i], i + 1 == count ? bytes : 0);
    pthread_mutex_unlock(&session->lock);
}

void dt_free_ids(dt_session_t *session, const uint64_t *ids, uint32_t count)
{
    dt_free_ids_of(session, ids, count, (uint64_t)count * DT_CLIENT_FREE_UNKNOWN);
}

uint64_t dt_tensor_id(const dt_tensor_t *tensor)
{
    return tensor->id;
}

uint32_t dt_tensor_vdev(const dt_tensor_t *tensor)
{
    return tensor->vdev;
}

dt_status_t dt_tensor_meta(dt_tensor_t *tensor, dt_meta_t *ret_meta, dt_failure_t *failure)
{
    dt_session_t *session = tensor->session;
    dt_future_t *future;
    dt_error_t err;
    dt_meta_t meta;
    if (dt_client_is_forked(session)) {
        (void)dt_client_forked(&err);
        return dt_client_failure_from(failure, &err);
    }
    pthread_mutex_lock(&session->lock);
    bool is_known = tensor->meta != DT_CLIENT_NO_META;
    if (is_known)
        *ret_meta = *session->metas.items[tensor->meta];
    pthread_mutex_unlock(&session->lock);
    if (is_known)
        return DT_OK;
    if (dt_fetch(tensor, &future, &err) != DT_OK)
        return dt_client_failure_from(failure, &err);
    dt_status_t status = dt_future_wait(future, -1, failure);
    if (status == DT_OK)
        meta = future->layout;
    dt_future_free(future);
    if (status != DT_OK)
        return status;
    pthread_mutex_lock(&session->lock);
    if (tensor->meta == DT_CLIENT_NO_META)
        (void)dt_client_meta_intern(&session->metas, &meta, &tensor->meta);
    pthread_mutex_unlock(&session->lock);
    *ret_meta = meta;
    return DT_OK;
}

/* ---- where it lies ---- */

dt_status_t dt_client_layout(dt_session_t *session, uint32_t vdev, dt_layout_t *ret_layout,
                             dt_error_t *err)
{
    uint64_t device = vdev;
    dt_record_t record;
    memset(ret_layout, 0, sizeof *ret_layout);
    if (vdev >= session->settings.vdev_count)
        return dt_fail(err, DT_ERR_INVALID, "dt", vdev, "virtual device %u of %u", vdev,
                       session->settings.vdev_count);
    if (vdev == 0)
        return DT_OK;
    ret_layout->mesh = vdev;
    ret_layout->ndim = 1;
    ret_layout->placements[0].kind = DT_PLACEMENT_REPLICATE;
    if (session->has_mesh[vdev])
        return DT_OK;
    record.kind = DT_RECORD_DEF_MESH;
    record.mesh = (dt_record_mesh_t){
        .id = vdev, .ndim = 1, .vdev_count = 1, .sizes = {1}, .names = {""}, .vdevs = &device};
    DT_TRY(dt_client_room(session, dt_record_bound(&record), INT64_MAX, err));
    if (!session->has_mesh[vdev])
        dt_client_put(session, &record);
    session->has_mesh[vdev] = 1;
    return DT_OK;
}

/* ---- uploads ---- */

void dt_client_upload_free(dt_client_upload_t *upload)
{
    if (upload->window) {
        dt_bulk_units_give(&upload->window->units, upload->unit_first, upload->unit_count);
        dt_client_window_unref(upload->window);
    }
    if (upload->release)
        upload->release(upload->arg);
    free(upload);
}

static void free_copy(void *copy)
{
    free(copy);
}

void dt_client_copy_done(dt_session_t *session, dt_client_upload_t *upload)
{
    if (upload->copied == 0)
        return;
    session->copied_bytes -= upload->copied;
    upload->copied = 0;
    pthread_cond_broadcast(&session->changed);
}

/* Wait until there is room for one more copy: a slow cluster must not fill this machine's memory.
 * One copy may be larger than all the room. */
static dt_status_t room_for_copy(dt_session_t *session, dt_client_upload_t *upload, dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    while (session->state != DT_CLIENT_ENDED && session->copied_bytes > 0 &&
           (upload->size > DT_CLIENT_COPIES_MAX ||
            session->copied_bytes > DT_CLIENT_COPIES_MAX - upload->size))
        (void)dt_client_wait(session, INT64_MAX);
    upload->copied = upload->size;
    session->copied_bytes += upload->copied;
    pthread_mutex_unlock(&session->lock);
    return DT_OK;
}

/* Have them in the window that is shared with the node, if there is one with room: the program's
 * thread copies them there once. */
static bool keep_in_window(dt_session_t *session, const dt_upload_t *from,
                           dt_client_upload_t *upload)
{
    if (from->release || upload->size <= DT_BULK_INLINE_MAX)
        return false;
    pthread_mutex_lock(&session->lock);
    upload->window = dt_client_window_take(session, from->vdev, upload->size, &upload->unit_first,
                                           &upload->unit_count);
    pthread_mutex_unlock(&session->lock);
    if (!upload->window)
        return false;
    upload->data = upload->window->map + (size_t)upload->unit_first * DT_BULK_UNIT_BYTES;
    upload->ready = 0;
    upload->is_filling = true;
    return true;
}

/* Copy into the window, piece by piece, so that the first ones are on their way meanwhile. */
static void fill_window(dt_session_t *session, const dt_upload_t *from, dt_client_upload_t *upload)
{
    uint8_t *to = upload->window->map + (size_t)upload->unit_first * DT_BULK_UNIT_BYTES;
    size_t total = upload->size; /* with the last piece the upload is not ours any more */
    bool is_over = false;
    for (size_t done = 0, size; done < total && !is_over; done += size) {
        size = total - done < FILL_BYTES ? total - done : FILL_BYTES;
        if (from->data)
            memcpy(to + done, (const uint8_t *)from->data + done, size);
        else
            memset(to + done, 0, size);
        pthread_mutex_lock(&session->lock);
        upload->ready = done + size;
        is_over = upload->is_over;
        upload->is_filling = done + size < total && !is_over;
        if (is_over)
            dt_client_upload_free(upload);
        else
            dt_client_io_kick(session);
        pthread_mutex_unlock(&session->lock);
    }
}

/* What was kept is not needed; the data stays the caller's. */
static void unkeep(dt_session_t *session, dt_client_upload_t *upload)
{
    if (upload->release != free_copy)
        upload->release = NULL;
    pthread_mutex_lock(&session->lock);
    dt_client_copy_done(session, upload);
    dt_client_upload_free(upload);
    pthread_mutex_unlock(&session->lock);
}

/* Where the bytes stay until they are sent. Small ones go in the record itself. */
static dt_status_t keep_bytes(dt_session_t *session, const dt_upload_t *from, size_t size,
                              dt_client_upload_t **ret_upload, dt_error_t *err)
{
    dt_client_upload_t *upload = calloc(1, sizeof *upload);
    void *copy = NULL;
    if (upload) {
        dt_list_init(&upload->link);
        upload->vdev = from->vdev;
        upload->size = upload->ready = size;
        if (keep_in_window(session, from, upload)) {
            *ret_upload = upload;
            return DT_OK;
        }
    }
    if (upload && !from->release) {
        dt_status_t status = room_for_copy(session, upload, err);
        if (status != DT_OK) {
            free(upload);
            return status;
        }
        copy = from->data ? malloc(size) : calloc(size, 1);
        if (copy && from->data)
            memcpy(copy, from->data, size);
    }
    if (!upload || (!from->release && !copy)) {
        if (upload)
            unkeep(session, upload);
        return dt_fail(err, DT_ERR_NOMEM, "dt", (int64_t)size, "no memory for %zu bytes", size);
    }
    upload->data = copy ? copy : from->data;
    upload->release = copy ? free_copy : from->release;
    upload->arg = copy ? copy : from->arg;
    *ret_upload = upload;
    return DT_OK;
}

/* Lock held. `place` is on from->vdev alone, or the bytes are in the record. */
static dt_status_t put_upload(dt_session_t *session, const dt_upload_t *from, uint32_t place,
                              const dt_meta_t *meta, dt_client_upload_t *upload,
                              dt_tensor_t **ret_tensor, dt_error_t *err)
{
    static const uint8_t zeros[DT_RECORD_INLINE_MAX];
    dt_record_t record;
    uint32_t index;
    record.kind = DT_RECORD_UPLOAD;
    memset(&record.move, 0, sizeof record.move);
    record.move.meta = *meta;
    record.move.size = (uint64_t)dt_meta_bytes(meta);
    record.move.number = upload ? 1 : 0;
    if (!upload)
        record.move.bytes = from->data ? from->data : zeros;
    DT_TRY(dt_client_layout(session, from->vdev, &record.move.layout, err));
    dt_client_place_layout(session, place, &record.move.layout);
    if (dt_client_meta_intern(&session->metas, meta, &index) != DT_OK)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for metadata");
    DT_TRY(dt_client_room(session, dt_record_bound(&record), INT64_MAX, err));
    dt_tensor_t *tensor = dt_client_tensor_new(session, session->next_tensor, index, from->vdev);
    if (!tensor)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a tensor");
    if (session->track.is_on) {
        dt_status_t status = dt_client_node_base(session, session->next_tensor,
                                                 session->next_tensor, index, place, err);
        if (status != DT_OK) {
            tensor->id = 0;
            dt_client_tensor_unref(tensor);
            return status;
        }
    }
    record.move.output = session->next_tensor++;
    if (upload) {
        record.move.number = upload->number = ++session->upload_next;
        upload->sequence = dt_client_sequence(session);
        dt_list_push(&session->uploads, &upload->link);
        session->wants_ack = true;
    }
    dt_client_put(session, &record);
    if (upload)
        dt_client_close_frame(session); /* and wake the I/O thread: the bytes follow */
    *ret_tensor = tensor;
    return DT_OK;
}

/* What the program gave, and where it is to be. */
static dt_status_t take_upload(dt_session_t *session, const dt_upload_t *given, dt_upload_t *from,
                               dt_meta_t *meta, uint32_t *ret_place, dt_error_t *err)
{
    memset(from, 0, sizeof *from);
    if (given->struct_size < sizeof given->struct_size || given->struct_size > sizeof *from)
        return dt_fail(err, DT_ERR_INVALID, "dt", (int64_t)given->struct_size,
                       "dt_upload_t of %zu bytes, this library knows %zu", given->struct_size,
                       sizeof *from);
    memcpy(from, given, given->struct_size);
    if (from->release && !from->data)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "nothing to release: data is NULL");
    DT_TRY(dt_meta_set(meta, from->dtype, from->ndim, from->sizes, NULL, 0, err));
    *ret_place = from->vdev;
    if (!from->mesh)
        return DT_OK;
    from->vdev = from->mesh->first;
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status =
        dt_client_place_given(session, 0, from->mesh, from->placements, meta, ret_place, err);
    if (status == DT_OK && dt_client_place_is_partial(session, *ret_place))
        status = dt_fail(err, DT_ERR_INVALID, "dt", 0,
                         "a value from host memory cannot be made Partial: upload it Replicate and "
                         "redistribute it");
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* The bytes went to the mesh's first device: from there to where they are to be. */
static dt_status_t spread_upload(dt_session_t *session, uint32_t place, dt_tensor_t *tensor,
                                 dt_error_t *err)
{
    DT_TRY(dt_client_lock(session, err));
    dt_client_node_t *node = dt_client_node_find(session, tensor->id);
    dt_status_t status = dt_client_rebase(session, node, place, err);
    dt_client_drop_flush(session);
    pthread_mutex_unlock(&session->lock);
    if (status != DT_OK)
        dt_tensor_free(tensor);
    return status;
}

dt_status_t dt_tensor_upload(dt_session_t *session, const dt_upload_t *given,
                             dt_tensor_t **ret_tensor, dt_error_t *err)
{
    dt_upload_t from;
    dt_client_upload_t *upload = NULL;
    dt_tensor_t *tensor = NULL;
    dt_meta_t meta;
    uint32_t place;
    if (dt_client_is_forked(session))
        return dt_client_forked(err);
    DT_TRY(take_upload(session, given, &from, &meta, &place, err));
    size_t size = (size_t)dt_meta_bytes(&meta);
    if (from.mesh && size > DT_RECORD_INLINE_MAX && !dt_client_place_is_whole(session, place))
        return dt_client_upload_parts(session, &from, &meta, place, ret_tensor, err);
    if (size > DT_RECORD_INLINE_MAX)
        DT_TRY(keep_bytes(session, &from, size, &upload, err));
    bool is_filling = upload && upload->is_filling; /* not ours to look at once it is put */
    bool must_spread = from.mesh && upload;
    dt_status_t status = dt_client_lock(session, err);
    if (status == DT_OK) {
        status = put_upload(session, &from, must_spread ? from.vdev : place, &meta, upload, &tensor,
                            err);
        pthread_mutex_unlock(&session->lock);
    }
    if (status != DT_OK && upload)
        unkeep(session, upload);
    else if (status == DT_OK && !upload && from.release)
        from.release(from.arg);
    else if (status == DT_OK && is_filling)
        fill_window(session, &from, upload);
    if (status == DT_OK && must_spread)
        status = spread_upload(session, place, tensor, err);
    if (status == DT_OK)
        *ret_tensor = tensor;
    return status;
}

dt_status_t dt_tensor_from(dt_session_t *session, dt_dtype_t dtype, unsigned ndim,
                           const int64_t *sizes, const void *data, dt_tensor_t **ret_tensor,
                           dt_error_t *err)
{
    dt_upload_t from = {
        .struct_size = sizeof from, .dtype = dtype, .ndim = ndim, .sizes = sizes, .data = data};
    return dt_tensor_upload(session, &from, ret_tensor, err);
}
