/* Tensor bytes in and out. Uploads are written into their tensors as they come, in order; what came
 * before its UPLOAD record waits in memory, at most DT_EXEC_EARLY_MAX. A fetched tensor is copied,
 * so that later operators may write it, and sent in chunks as far as the other side follows. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "dtorch/v1/session.pb-c.h"
#include "engine_exec_internal.h"
#include "engine_pack.h"

#define DT_EXEC_CHUNK_HEAD 64u /* bytes of a chunk's fields before the data */

/* ---- in ---- */

static void answer_received(dt_exec_session_t *session, uint64_t transfer, uint64_t received)
{
    uint8_t body[4 * DT_PACK_NUMBER_MAX];
    uint8_t *at = dt_pack_number(body, DT_PACK_CHUNK_SESSION, session->id);
    at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, transfer);
    at = dt_pack_number(at, DT_PACK_CHUNK_RECEIVED, received);
    dt_exec_up(session, DT_PACK_UP_CHUNK, body, (size_t)(at - body));
}

static dt_exec_upload_t *upload_find(dt_exec_session_t *session, uint64_t transfer)
{
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next) {
        dt_exec_upload_t *upload = DT_CONTAINER_OF(at, dt_exec_upload_t, link);
        if (upload->transfer == transfer)
            return upload;
    }
    return NULL;
}

void dt_exec_upload_end(dt_exec_session_t *session, dt_exec_upload_t *upload)
{
    upload->storage->upload = NULL;
    dt_list_remove(&upload->link);
    free(upload);
    session->is_waiting = false;
}

/* The transfer is over and the tensor has no value. */
static void upload_fail(dt_exec_session_t *session, dt_exec_upload_t *upload, const dt_error_t *err)
{
    dt_exec_cause_t *cause = dt_exec_cause_new(session, upload->storage->version, NULL, "upload",
                                               upload->storage->vdev, dt_exec_error_kind(err), err);
    if (cause) {
        uint8_t *body = session->exec->scratch;
        uint8_t *at = dt_pack_number(body, DT_PACK_CHUNK_SESSION, session->id);
        at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, upload->transfer);
        at = dt_pack_bytes(at, DT_PACK_CHUNK_ERROR, cause->bytes, cause->size);
        dt_exec_up(session, DT_PACK_UP_CHUNK, body, (size_t)(at - body));
        dt_exec_poison(upload->storage, cause);
        dt_exec_tell_poison(session, cause);
    }
    dt_exec_cause_unref(cause);
    dt_exec_upload_end(session, upload);
}

static dt_status_t upload_write(dt_exec_session_t *session, dt_exec_upload_t *upload,
                                const dt_channel_chunk_t *head, const uint8_t *bytes, uint32_t size,
                                dt_error_t *err)
{
    const dt_exec_options_t *options = &session->exec->options;
    if (head->flags & DT_CHANNEL_CHUNK_ERROR)
        return dt_fail(err, DT_ERR_PEER, "dt", 0, "the sender gave the upload up");
    if (head->offset < upload->offset || head->offset - upload->offset > upload->size ||
        size > upload->size - (head->offset - upload->offset))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "bytes %llu to %llu are outside of the upload",
                       (unsigned long long)head->offset, (unsigned long long)(head->offset + size));
    uint64_t at = head->offset - upload->offset;
    if (at > upload->received || at + size <= upload->received)
        return DT_OK; /* a hole is never bridged, and what is there is there */
    if (dt_crc32c(0, bytes, size) != head->crc32c)
        return dt_fail(err, DT_ERR_PEER, "dt", head->crc32c, "a chunk's checksum differs");
    uint64_t known = upload->received - at;
    DT_TRY(options->backend->tensor_write(options->device, upload->handle, head->offset + known,
                                          bytes + known, size - known, err));
    upload->received = at + size;
    return DT_OK;
}

static void upload_take(dt_exec_session_t *session, dt_exec_upload_t *upload,
                        const dt_channel_chunk_t *head, const uint8_t *bytes, uint32_t size)
{
    dt_error_t err = {0};
    uint64_t transfer = upload->transfer;
    dt_status_t status = upload_write(session, upload, head, bytes, size, &err);
    if (status != DT_OK) {
        err.code = status;
        upload_fail(session, upload, &err);
        return;
    }
    answer_received(session, transfer, upload->received);
    if (upload->received == upload->size)
        dt_exec_upload_end(session, upload);
}

static void early_free(dt_exec_session_t *session, dt_exec_early_t *early)
{
    session->early_bytes -= early->size;
    dt_list_remove(&early->link);
    free(early);
}

bool dt_exec_upload_begin(dt_exec_session_t *session, const dt_record_t *record,
                          dt_exec_tensor_t *tensor)
{
    dt_exec_upload_t *upload = calloc(1, sizeof *upload);
    dt_list_t *next;
    if (!upload)
        return false;
    upload->transfer = record->move.number;
    upload->handle = tensor->handle;
    upload->storage = tensor->storage;
    upload->offset = record->move.offset;
    upload->size = record->move.size;
    tensor->storage->upload = upload;
    dt_list_push(&session->uploads, &upload->link);
    if (upload->size == 0)
        dt_exec_upload_end(session, upload);
    for (dt_list_t *at = session->early.next; at != &session->early; at = next) {
        dt_exec_early_t *early = DT_CONTAINER_OF(at, dt_exec_early_t, link);
        next = at->next;
        if (early->head.transfer > session->last_transfer)
            continue;
        dt_exec_upload_t *mine = upload_find(session, early->head.transfer);
        if (mine)
            upload_take(session, mine, &early->head, early->bytes, early->size);
        early_free(session, early);
    }
    return true;
}

/* Keep a chunk until its UPLOAD is performed. False: no room, it stays in the ring. */
static bool early_keep(dt_exec_session_t *session, const dt_channel_chunk_t *head,
                       const uint8_t *bytes, uint32_t size)
{
    if (session->early_bytes + size > DT_EXEC_EARLY_MAX)
        return false;
    dt_exec_early_t *early = malloc(sizeof *early + size);
    if (!early)
        return false;
    early->head = *head;
    early->size = size;
    memcpy(early->bytes, bytes, size);
    session->early_bytes += size;
    dt_list_push(&session->early, &early->link);
    return true;
}

static dt_exec_download_t *download_find(dt_exec_session_t *session, uint64_t transfer)
{
    for (dt_list_t *at = session->downloads.next; at != &session->downloads; at = at->next) {
        dt_exec_download_t *download = DT_CONTAINER_OF(at, dt_exec_download_t, link);
        if (download->transfer == transfer)
            return download;
    }
    return NULL;
}

static void download_free(dt_exec_session_t *session, dt_exec_download_t *download)
{
    session->ahead_bytes -= download->sent - download->received;
    session->download_count--;
    session->download_waits -= download->handle != NULL;
    dt_list_remove(&download->link);
    dt_exec_backend_memory()->release(download->bytes);
    free(download);
}

/* The other side says what it has of a download. */
static void download_answered(dt_exec_session_t *session, const dt_channel_chunk_t *head)
{
    dt_exec_download_t *download = download_find(session, head->transfer);
    if (!download)
        return;
    if (head->flags & DT_CHANNEL_CHUNK_ERROR) {
        download_free(session, download);
        return;
    }
    if (head->received > download->size)
        return;
    uint64_t before = download->sent - download->received;
    if (head->received > download->received)
        download->received = head->received;
    if (download->sent < download->received)
        download->sent = download->received;
    if (head->flags & DT_CHANNEL_CHUNK_RESTART)
        download->sent = download->received = head->received;
    session->ahead_bytes -= before;
    session->ahead_bytes += download->sent - download->received;
    if (download->received == download->size)
        download_free(session, download);
}

/* One message of the bulk ring. False: it must stay there for now. */
static bool chunk_take(dt_exec_session_t *session, const dt_ring_message_t *message)
{
    dt_channel_chunk_t head;
    if (message->kind != DT_CHANNEL_CHUNK || message->size < sizeof head)
        return true;
    memcpy(&head, message->bytes, sizeof head);
    const uint8_t *bytes = message->bytes + sizeof head;
    uint32_t size = message->size - (uint32_t)sizeof head;
    if (head.flags & DT_CHANNEL_CHUNK_ACK) {
        download_answered(session, &head);
        return true;
    }
    dt_exec_upload_t *upload = upload_find(session, head.transfer);
    if (upload)
        upload_take(session, upload, &head, bytes, size);
    else if (head.flags & DT_CHANNEL_CHUNK_ERROR)
        download_answered(session, &head);
    else if (head.transfer > session->last_transfer)
        return early_keep(session, &head, bytes, size);
    return true; /* of a transfer that is over, or another engine's */
}

void dt_exec_bulk_read(dt_exec_session_t *session)
{
    dt_ring_message_t message = {0};
    for (uint64_t bytes = 0; bytes < DT_EXEC_AHEAD_MAX; bytes += message.size) {
        session->is_stuck = false;
        if (dt_ring_peek(&session->bulk, &message) != DT_OK || !dt_exec_has_room(session))
            return;
        session->is_stuck = !chunk_take(session, &message);
        if (session->is_stuck)
            return;
        dt_ring_pass(&session->bulk);
    }
}

/* ---- out ---- */

dt_status_t dt_exec_download_begin(dt_exec_session_t *session, uint64_t transfer, void *handle,
                                   uint64_t size, dt_error_t *err)
{
    const dt_exec_options_t *options = &session->exec->options;
    if (session->download_count == DT_EXEC_DOWNLOADS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", DT_EXEC_DOWNLOADS_MAX,
                       "%u fetched tensors wait to be read", DT_EXEC_DOWNLOADS_MAX);
    dt_exec_download_t *download = calloc(1, sizeof *download);
    if (!download)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the engine has no memory for a transfer");
    download->bytes = dt_exec_backend_memory()->alloc(NULL, size);
    dt_status_t status = DT_OK;
    if (download->bytes)
        status =
            options->backend->tensor_read(options->device, handle, 0, download->bytes, size, err);
    else
        download->handle = handle;
    if (status != DT_OK) {
        dt_exec_backend_memory()->release(download->bytes);
        free(download);
        return status;
    }
    session->download_waits += download->handle != NULL;
    download->transfer = transfer;
    download->size = size;
    dt_list_push(&session->downloads, &download->link);
    session->download_count++;
    return DT_OK;
}

/* The next `size` bytes of a download: its copy, or read from the tensor into `room`. */
static const uint8_t *chunk_data(dt_exec_session_t *session, const dt_exec_download_t *download,
                                 uint8_t *room, size_t size)
{
    const dt_exec_options_t *options = &session->exec->options;
    dt_error_t err = {0};
    if (!download->handle)
        return download->bytes + download->sent;
    return options->backend->tensor_read(options->device, download->handle, download->sent, room,
                                         size, &err) == DT_OK
               ? room
               : NULL;
}

static bool chunk_send(dt_exec_session_t *session, dt_exec_download_t *download)
{
    uint8_t *bytes;
    uint8_t fields[DT_EXEC_CHUNK_HEAD];
    uint64_t left = download->size - download->sent;
    size_t size = left < DT_EXEC_CHUNK_MAX ? (size_t)left : DT_EXEC_CHUNK_MAX;
    if (dt_ring_reserve(&session->up, (size_t)2 * DT_EXEC_CHUNK_HEAD + size, &bytes, NULL) !=
        DT_OK) {
        dt_ring_want_room(&session->up);
        return false;
    }
    const uint8_t *data =
        chunk_data(session, download, bytes + (size_t)2 * DT_EXEC_CHUNK_HEAD, size);
    if (!data)
        return false;
    uint8_t *at = dt_pack_number(fields, DT_PACK_CHUNK_SESSION, session->id);
    at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, download->transfer);
    at = dt_pack_number(at, DT_PACK_CHUNK_OFFSET, download->sent);
    at = dt_pack_number(at, DT_PACK_CHUNK_CRC, dt_crc32c(0, data, size));
    at = dt_pack_head(at, DT_PACK_CHUNK_DATA, size);
    size_t head = (size_t)(at - fields);
    uint8_t *end = dt_pack_head(bytes, DT_PACK_UP_CHUNK, head + size);
    memcpy(end, fields, head);
    memmove(end + head, data, size);
    dt_ring_commit(&session->up, (size_t)(end - bytes) + head + size, DT_CHANNEL_UP);
    download->sent += size;
    session->ahead_bytes += size;
    return true;
}

/* Whether a chunk could go now; else what it waits for will wake us. */
bool dt_exec_bulk_can_write(dt_exec_session_t *session)
{
    if (session->ahead_bytes >= DT_EXEC_AHEAD_MAX)
        return false;
    for (dt_list_t *at = session->downloads.next; at != &session->downloads; at = at->next) {
        const dt_exec_download_t *download = DT_CONTAINER_OF(at, dt_exec_download_t, link);
        uint64_t left = download->size - download->sent;
        if (left > 0)
            return dt_ring_room(&session->up) >=
                   (size_t)2 * DT_EXEC_CHUNK_HEAD +
                       (left < DT_EXEC_CHUNK_MAX ? left : DT_EXEC_CHUNK_MAX);
    }
    return false;
}

bool dt_exec_bulk_write(dt_exec_session_t *session)
{
    bool was_sent = false;
    for (dt_list_t *at = session->downloads.next; at != &session->downloads; at = at->next) {
        dt_exec_download_t *download = DT_CONTAINER_OF(at, dt_exec_download_t, link);
        while (download->sent < download->size) {
            if (session->ahead_bytes >= DT_EXEC_AHEAD_MAX || !chunk_send(session, download))
                return was_sent;
            was_sent = true;
        }
    }
    return was_sent;
}

void dt_exec_bulk_fini(dt_exec_session_t *session)
{
    dt_list_t *at;
    while ((at = dt_list_pop(&session->uploads)) != NULL)
        dt_exec_upload_end(session, DT_CONTAINER_OF(at, dt_exec_upload_t, link));
    while ((at = dt_list_pop(&session->downloads)) != NULL)
        download_free(session, DT_CONTAINER_OF(at, dt_exec_download_t, link));
    while ((at = dt_list_pop(&session->early)) != NULL)
        early_free(session, DT_CONTAINER_OF(at, dt_exec_early_t, link));
}
