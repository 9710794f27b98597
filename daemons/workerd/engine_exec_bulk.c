/* Tensor bytes in and out. Uploads are written into their tensors as they come, in order; what came
 * before its UPLOAD record waits in memory, at most DT_EXEC_EARLY_MAX. A fetched tensor is copied
 * into the program's window, if there is one with room, and told; else it is sent in chunks as far
 * as the other side follows, out of the tensor itself until a record comes that could write or free
 * it: what was not received until then is copied. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "dtorch/v1/session.pb-c.h"
#include "engine_exec_internal.h"
#include "engine_pack.h"

#define DT_EXEC_CHUNK_HEAD      80u /* bytes of a chunk's fields around the data, less a length */
#define DT_EXEC_CHUNK_CRC_BYTES 6u  /* of the checksum, nearly always */

/* ---- in ---- */

static void answer_received(dt_exec_session_t *session, dt_exec_upload_t *upload, bool is_again)
{
    upload->told = upload->received;
    uint8_t body[5 * DT_PACK_NUMBER_MAX];
    uint8_t *at = dt_pack_number(body, DT_PACK_CHUNK_SESSION, session->id);
    at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, upload->transfer);
    at = dt_pack_number(at, DT_PACK_CHUNK_RECEIVED, upload->received);
    at = dt_pack_number(at, DT_PACK_CHUNK_RESTART, is_again);
    at = dt_pack_number(at, DT_PACK_CHUNK_DONE, upload->received == upload->size);
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

void dt_exec_upload_refuse(dt_exec_session_t *session, uint64_t transfer,
                           const dt_exec_cause_t *cause)
{
    uint8_t *body = session->exec->scratch;
    uint8_t *at = dt_pack_number(body, DT_PACK_CHUNK_SESSION, session->id);
    at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, transfer);
    at = dt_pack_bytes(at, DT_PACK_CHUNK_ERROR, cause->bytes, cause->size);
    dt_exec_up(session, DT_PACK_UP_CHUNK, body, (size_t)(at - body));
}

/* The transfer is over and the tensor has no value. */
static void upload_fail(dt_exec_session_t *session, dt_exec_upload_t *upload, const dt_error_t *err)
{
    dt_exec_cause_t *cause = dt_exec_cause_new(session, upload->storage->version, NULL, "upload",
                                               upload->storage->vdev, dt_exec_error_kind(err), err);
    if (cause) {
        dt_exec_upload_refuse(session, upload->transfer, cause);
        dt_exec_poison(upload->storage, cause);
        dt_exec_tell_poison(session, cause);
    }
    dt_exec_cause_unref(cause);
    dt_exec_upload_end(session, upload);
}

/* Whether a piece goes on where the upload stands. What is there is there; a hole is never bridged,
 * and told once: what is on its way behind it comes in vain. */
static bool upload_wants(dt_exec_session_t *session, dt_exec_upload_t *upload, uint64_t at,
                         uint32_t size)
{
    if (at > upload->received && (!upload->has_asked || upload->asked_at != upload->received)) {
        upload->has_asked = true;
        upload->asked_at = upload->received;
        answer_received(session, upload, true);
    } else if (at + size <= upload->received) {
        answer_received(session, upload, false); /* an answer may have been lost */
    }
    return at <= upload->received && at + size > upload->received;
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
    if (!upload_wants(session, upload, at, size))
        return DT_OK;
    if (!(head->flags & DT_CHANNEL_CHUNK_PLACED) && dt_crc32c(0, bytes, size) != head->crc32c)
        return dt_fail(err, DT_ERR_PEER, "dt", head->crc32c, "a chunk's checksum differs");
    uint64_t known = upload->received - at;
    DT_TRY(options->backend->tensor_write(options->device, upload->handle, head->offset + known,
                                          bytes + known, size - known, err));
    upload->received = at + size;
    if (upload->received == upload->size || upload->received - upload->told >= DT_BULK_TELL_BYTES)
        answer_received(session, upload, false);
    return DT_OK;
}

static void upload_take(dt_exec_session_t *session, dt_exec_upload_t *upload,
                        const dt_channel_chunk_t *head, const uint8_t *bytes, uint32_t size)
{
    dt_error_t err = {0};
    dt_status_t status = upload_write(session, upload, head, bytes, size, &err);
    if (status != DT_OK) {
        err.code = status;
        upload_fail(session, upload, &err);
        return;
    }
    if (upload->received == upload->size)
        dt_exec_upload_end(session, upload);
}

static void early_free(dt_exec_session_t *session, dt_exec_early_t *early)
{
    session->early_bytes -= sizeof *early + early->size;
    dt_list_remove(&early->link);
    free(early);
}

bool dt_exec_upload_begin(dt_exec_session_t *session, const dt_record_t *record,
                          const dt_exec_local_t *local)
{
    dt_exec_upload_t *upload = calloc(1, sizeof *upload);
    dt_list_t *next;
    if (!upload)
        return false;
    upload->transfer = record->move.number;
    upload->handle = local->handle;
    upload->storage = local->storage;
    upload->offset = record->move.offset;
    upload->size = record->move.size;
    local->storage->upload = upload;
    dt_list_push(&session->uploads, &upload->link);
    if (upload->size == 0)
        dt_exec_upload_end(session, upload);
    for (dt_list_t *at = session->early.next; at != &session->early; at = next) {
        dt_exec_early_t *early = DT_CONTAINER_OF(at, dt_exec_early_t, link);
        next = at->next;
        if (early->head.transfer > session->last_transfer)
            continue;
        dt_exec_upload_t *mine = upload_find(session, early->head.transfer);
        const uint8_t *placed;
        if (mine && !(early->head.flags & DT_CHANNEL_CHUNK_PLACED))
            upload_take(session, mine, &early->head, early->bytes, early->size);
        else if (mine && dt_exec_window_find(session, &early->head, &placed) == DT_EXEC_PLACED_HERE)
            upload_take(session, mine, &early->head, placed, early->head.size);
        early_free(session, early);
    }
    return true;
}

/* Keep a chunk until its UPLOAD is performed. False: no room, it stays in the ring. */
static bool early_keep(dt_exec_session_t *session, const dt_channel_chunk_t *head,
                       const uint8_t *bytes, uint32_t size)
{
    dt_exec_early_t *early;
    if (session->early_bytes + sizeof *early + size > DT_EXEC_EARLY_MAX)
        return false;
    early = malloc(sizeof *early + size);
    if (!early)
        return false;
    early->head = *head;
    early->size = size;
    if (size > 0)
        memcpy(early->bytes, bytes, size);
    session->early_bytes += sizeof *early + size;
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

static void pieces_give(dt_exec_download_t *download, uint64_t received)
{
    for (dt_list_t *at = download->pieces.next, *next; at != &download->pieces; at = next) {
        dt_exec_piece_t *piece = DT_CONTAINER_OF(at, dt_exec_piece_t, link);
        next = at->next;
        if (piece->end > received)
            return;
        dt_list_remove(&piece->link);
        dt_exec_area_give(&piece->area);
        free(piece);
    }
}

static void download_free(dt_exec_session_t *session, dt_exec_download_t *download)
{
    session->ahead_bytes -= download->ahead;
    session->download_count--;
    session->lazy_count -= download->handle && !download->is_awaited;
    session->download_waits -= download->is_awaited;
    dt_list_remove(&download->link);
    pieces_give(download, UINT64_MAX);
    if (download->area.view)
        dt_exec_area_give(&download->area);
    else
        dt_exec_backend_memory()->release(download->bytes);
    free(download);
}

/* What is on its way of it, now. */
static void download_count(dt_exec_session_t *session, dt_exec_download_t *download)
{
    session->ahead_bytes -= download->ahead;
    download->ahead = download->sent - download->received;
    session->ahead_bytes += download->ahead;
}

static void downloads_restart(dt_exec_session_t *session)
{
    for (dt_list_t *at = session->downloads.next; at != &session->downloads; at = at->next) {
        dt_exec_download_t *download = DT_CONTAINER_OF(at, dt_exec_download_t, link);
        download->sent = download->received;
        download_count(session, download);
    }
}

/* The other side says what it has of a download; more than there is: it does not want it. Of none:
 * nobody knows what has become of all that was sent and not answered. */
static void download_answered(dt_exec_session_t *session, const dt_channel_chunk_t *head)
{
    dt_exec_download_t *download = download_find(session, head->transfer);
    if (head->transfer == 0 && (head->flags & DT_CHANNEL_CHUNK_RESTART))
        downloads_restart(session);
    if (!download)
        return;
    if ((head->flags & DT_CHANNEL_CHUNK_ERROR) || head->received >= download->size) {
        download_free(session, download);
        return;
    }
    bool is_whole = download->area.view && download->ahead == 0 && download->sent == download->size;
    if (head->received > download->received)
        download->received = head->received;
    if (head->flags & DT_CHANNEL_CHUNK_RESTART)
        download->sent = download->received = head->received;
    if (download->sent < download->received)
        download->sent = download->received;
    if (!is_whole || (head->flags & DT_CHANNEL_CHUNK_RESTART))
        download_count(session, download);
    pieces_give(download, download->received);
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
    if (head.flags & DT_CHANNEL_CHUNK_PLACED) {
        dt_exec_placed_t where = dt_exec_window_find(session, &head, &bytes);
        if (where == DT_EXEC_PLACED_NEVER)
            return true; /* the program says it again: it has another window, or none */
        if (where == DT_EXEC_PLACED_LATER)
            return false;
        size = upload ? head.size : 0; /* early ones stay where they are */
    }
    if (upload)
        upload_take(session, upload, &head, bytes, size);
    else if (head.flags & DT_CHANNEL_CHUNK_ERROR)
        download_answered(session, &head);
    else if (head.transfer > session->last_transfer)
        return early_keep(session, &head, bytes, size);
    return true; /* of a transfer that is over, or another engine's */
}

/* Bytes that a message moves. */
static uint64_t moved_by(const dt_ring_message_t *message)
{
    dt_channel_chunk_t head;
    if (message->size < sizeof head)
        return message->size;
    memcpy(&head, message->bytes, sizeof head);
    return message->size + (head.flags & DT_CHANNEL_CHUNK_PLACED ? head.size : 0);
}

void dt_exec_bulk_read(dt_exec_session_t *session)
{
    dt_ring_message_t message = {0};
    for (uint64_t bytes = 0; bytes < DT_EXEC_AHEAD_MAX;) {
        session->is_stuck = false;
        if (dt_ring_peek(&session->bulk, &message) != DT_OK || !dt_exec_has_room(session))
            return;
        bytes += moved_by(&message);
        session->is_stuck = !chunk_take(session, &message);
        if (session->is_stuck)
            return;
        dt_ring_pass(&session->bulk);
    }
}

/* ---- out ---- */

/* Tell of bytes that lie in the program's window. */
static void tell_placed(dt_exec_session_t *session, const dt_exec_download_t *download,
                        uint64_t offset, size_t size, const dt_exec_area_t *area, uint64_t place)
{
    uint8_t body[7 * DT_PACK_NUMBER_MAX];
    uint8_t *at = dt_pack_number(body, DT_PACK_CHUNK_SESSION, session->id);
    at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, download->transfer);
    at = dt_pack_number(at, DT_PACK_CHUNK_OFFSET, offset);
    at = dt_pack_number(at, DT_PACK_CHUNK_TOTAL, download->size);
    at = dt_pack_number(at, DT_PACK_CHUNK_PLACE, 1 + place);
    at = dt_pack_number(at, DT_PACK_CHUNK_SIZE, size);
    at = dt_pack_number(at, DT_PACK_CHUNK_WINDOW, area->view->given.number);
    dt_exec_up(session, DT_PACK_UP_CHUNK, body, (size_t)(at - body));
}

/* Put a value into the window, piece by piece, so that the program can take the first ones
 * meanwhile. One that is not packed is read at once: backends pack all of it for each read. */
static dt_status_t place_whole(dt_exec_session_t *session, dt_exec_download_t *download,
                               void *handle, bool is_packed, dt_error_t *err)
{
    const dt_exec_options_t *options = &session->exec->options;
    download->bytes = download->area.bytes;
    if (!is_packed)
        DT_TRY(options->backend->tensor_read(options->device, handle, 0, download->bytes,
                                             download->size, err));
    while (download->sent < download->size) {
        uint64_t left = download->size - download->sent;
        size_t size = left < DT_BULK_PIECE_BYTES ? (size_t)left : DT_BULK_PIECE_BYTES;
        if (is_packed)
            DT_TRY(options->backend->tensor_read(options->device, handle, download->sent,
                                                 download->bytes + download->sent, size, err));
        tell_placed(session, download, download->sent, size, &download->area,
                    download->area.place + download->sent);
        dt_exec_kick(session);
        download->sent += size;
    }
    return DT_OK;
}

/* The next `size` bytes of a download: its copy, or read from the tensor into `room`. */
static const uint8_t *chunk_data(dt_exec_session_t *session, const dt_exec_download_t *download,
                                 uint8_t *room, size_t size, dt_error_t *err)
{
    const dt_exec_options_t *options = &session->exec->options;
    if (!download->handle)
        return download->bytes + download->sent;
    err->code = options->backend->tensor_read(options->device, download->handle, download->sent,
                                              room, size, err);
    return err->code == DT_OK ? room : NULL;
}

/* Put a piece into the window, if there is room; its bytes are there until it is received. */
static bool piece_place(dt_exec_session_t *session, dt_exec_download_t *download, size_t size)
{
    dt_exec_piece_t *piece = size > DT_BULK_INLINE_MAX ? calloc(1, sizeof *piece) : NULL;
    if (!piece || !dt_exec_area_take(session, size, &piece->area)) {
        free(piece);
        return false;
    }
    dt_error_t err = {0};
    const uint8_t *data = chunk_data(session, download, piece->area.bytes, size, &err);
    if (!data) {
        dt_exec_area_give(&piece->area);
        free(piece);
        return false;
    }
    if (data != piece->area.bytes)
        memcpy(piece->area.bytes, data, size);
    piece->end = download->sent + size;
    dt_list_push(&download->pieces, &piece->link);
    tell_placed(session, download, download->sent, size, &piece->area, piece->area.place);
    return true;
}

/* Write a chunk into the ring. The checksum stands behind the bytes, so that their place is known
 * before it is: they are read straight to where they stay. */
static bool chunk_put(dt_exec_session_t *session, const dt_exec_download_t *download,
                      uint8_t *bytes, size_t size, size_t *ret_bytes, dt_error_t *err)
{
    uint8_t fields[DT_EXEC_CHUNK_HEAD];
    uint8_t tail[DT_PACK_NUMBER_MAX];
    uint8_t *at = dt_pack_number(fields, DT_PACK_CHUNK_SESSION, session->id);
    at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, download->transfer);
    at = dt_pack_number(at, DT_PACK_CHUNK_OFFSET, download->sent);
    at = dt_pack_number(at, DT_PACK_CHUNK_TOTAL, download->size);
    at = dt_pack_head(at, DT_PACK_CHUNK_DATA, size);
    size_t head = (size_t)(at - fields);
    uint8_t *guess =
        dt_pack_head(bytes, DT_PACK_UP_CHUNK, head + size + DT_EXEC_CHUNK_CRC_BYTES) + head;
    const uint8_t *data = chunk_data(session, download, guess, size, err);
    if (!data)
        return false;
    size_t tail_bytes =
        (size_t)(dt_pack_number(tail, DT_PACK_CHUNK_CRC, dt_crc32c(0, data, size)) - tail);
    uint8_t *end = dt_pack_head(bytes, DT_PACK_UP_CHUNK, head + size + tail_bytes) + head;
    if (data != end) /* a copy of the tensor; or the checksum was so short that a length is too */
        memmove(end, data, size);
    memcpy(end - head, fields, head);
    memcpy(end + size, tail, tail_bytes);
    *ret_bytes = (size_t)(end - bytes) + size + tail_bytes;
    return true;
}

/* False: no room now, or the value cannot be read, which *err says. */
static bool chunk_send(dt_exec_session_t *session, dt_exec_download_t *download, dt_error_t *err)
{
    uint8_t *bytes;
    uint64_t left = download->size - download->sent;
    size_t size = left < DT_EXEC_CHUNK_MAX ? (size_t)left : DT_EXEC_CHUNK_MAX;
    size_t written = 0;
    if (dt_ring_room(&session->up) < (size_t)2 * DT_EXEC_CHUNK_HEAD + size) {
        dt_ring_want_room(&session->up);
        return false;
    }
    if (!piece_place(session, download, size)) {
        if (dt_ring_reserve(&session->up, (size_t)2 * DT_EXEC_CHUNK_HEAD + size, &bytes, NULL) !=
                DT_OK ||
            !chunk_put(session, download, bytes, size, &written, err))
            return false;
        dt_ring_commit(&session->up, written, DT_CHANNEL_UP);
    }
    download->sent += size;
    download_count(session, download);
    return true;
}

/* Copy it, so that the tensor may be written or go: all of it, as what was received may be asked
 * for again. Without memory for that the session waits until the other side has it. */
static void download_settle(dt_exec_session_t *session, dt_exec_download_t *download)
{
    const dt_exec_options_t *options = &session->exec->options;
    dt_error_t err = {0};
    session->lazy_count--;
    download->bytes = dt_exec_backend_memory()->alloc(NULL, download->size);
    if (download->bytes &&
        options->backend->tensor_read(options->device, download->handle, 0, download->bytes,
                                      download->size, &err) == DT_OK) {
        download->handle = NULL;
        return;
    }
    dt_exec_backend_memory()->release(download->bytes);
    download->bytes = NULL;
    download->is_awaited = true;
    session->download_waits++;
}

bool dt_exec_bulk_settle(dt_exec_session_t *session)
{
    for (dt_list_t *at = session->downloads.next;
         session->lazy_count > 0 && at != &session->downloads; at = at->next) {
        dt_exec_download_t *download = DT_CONTAINER_OF(at, dt_exec_download_t, link);
        if (download->handle && !download->is_awaited)
            download_settle(session, download);
    }
    return session->download_waits == 0;
}

/* What was to be sent cannot be read any more. */
static void download_fail(dt_exec_session_t *session, dt_exec_download_t *download,
                          const dt_error_t *err)
{
    dt_exec_cause_t *cause = dt_exec_cause_new(session, download->sequence, NULL, "fetch",
                                               download->vdev, dt_exec_error_kind(err), err);
    if (cause)
        dt_exec_result_error(session, download->transfer, cause);
    dt_exec_cause_unref(cause);
    download_free(session, download);
}

dt_status_t dt_exec_download_begin(dt_exec_session_t *session, const dt_exec_local_t *local,
                                   uint64_t size, bool is_packed, dt_error_t *err)
{
    if (session->download_count == DT_EXEC_DOWNLOADS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", DT_EXEC_DOWNLOADS_MAX,
                       "%u fetched tensors wait to be read", DT_EXEC_DOWNLOADS_MAX);
    dt_exec_download_t *download = calloc(1, sizeof *download);
    if (!download)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the engine has no memory for a transfer");
    download->transfer = session->record->move.number;
    download->sequence = session->record->sequence;
    download->vdev = local->storage->vdev;
    download->size = size;
    dt_list_init(&download->pieces);
    dt_list_push(&session->downloads, &download->link);
    session->download_count++;
    if (size <= DT_BULK_INLINE_MAX || !dt_exec_area_take(session, size, &download->area)) {
        download->handle = local->handle;
        session->lazy_count++;
        if (!is_packed)
            download_settle(session, download);
        return DT_OK;
    }
    dt_status_t status = place_whole(session, download, local->handle, is_packed, err);
    if (status != DT_OK)
        download_free(session, download);
    return status;
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
    for (dt_list_t *at = session->downloads.next, *next; at != &session->downloads; at = next) {
        dt_exec_download_t *download = DT_CONTAINER_OF(at, dt_exec_download_t, link);
        dt_error_t err = {0};
        next = at->next;
        while (download->sent < download->size && err.code == DT_OK) {
            if (session->ahead_bytes >= DT_EXEC_AHEAD_MAX)
                return was_sent;
            if (chunk_send(session, download, &err))
                was_sent = true;
            else if (err.code == DT_OK)
                return was_sent;
        }
        if (err.code != DT_OK && dt_exec_has_room(session))
            download_fail(session, download, &err);
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
