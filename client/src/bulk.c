/* Transfers: bytes of large uploads and fetches, directly to their node (data.c), else on a stream
 * of their own to the controller, who relays them. I/O thread.
 *
 * An upload takes the direct way as soon as that is there, else the relay; when its way changes it
 * goes on from what was received. The relay's stream is dialled when there is something for it.
 * Whoever finds a hole says so at once and is sent the bytes again. What is lost with a connection
 * is said again on the next one. What a relay lost unseen is begun again after STALL_NS without
 * progress. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "client.h"
#include "wire/wire.h"

#define BULK_METHOD "/dtorch.v1.Session/Bulk"
#define OPEN_MS     5000
#define RETRY_NS    (50 * DT_CLOCK_MS_NS)
#define STALL_NS    (300 * DT_CLOCK_MS_NS)
#define HEAD_BYTES  64u
#define QUEUE_BYTES (DT_CLIENT_BULK_AHEAD + (4u << 20))

/* Fields of BulkChunk, and how they are coded. */
enum { SESSION = 1, TOKEN, TRANSFER, OFFSET, CRC, DATA, RECEIVED, FAILED, RESTART, TOTAL };
#define VARINT_TAG(field) ((uint8_t)((field) << 3))
#define BYTES_TAG(field)  ((uint8_t)((field) << 3 | 2))

/* ---- saying ---- */

static uint8_t *put_number(uint8_t *at, unsigned field, uint64_t value)
{
    *at++ = VARINT_TAG(field);
    return dt_varint_put(at, value);
}

static bool send(dt_session_t *session, const uint8_t *bytes, size_t size)
{
    dt_rpc_stream_t *bulk = session->io.bulk;
    if (!bulk)
        return false;
    dt_status_t status = dt_rpc_stream_send(bulk, bytes, size);
    if (status == DT_ERR_LIMIT)
        dt_rpc_stream_cancel(bulk, DT_ERR_LIMIT, "the controller does not read");
    return status == DT_OK;
}

static void say_received(dt_session_t *session, dt_client_path_t *path, uint64_t transfer,
                         uint64_t received, bool restart)
{
    uint8_t bytes[HEAD_BYTES];
    if (path) {
        dt_client_path_received(path, transfer, received, restart);
        return;
    }
    uint8_t *at = put_number(bytes, TRANSFER, transfer);
    at = put_number(at, RECEIVED, received);
    if (restart)
        at = put_number(at, RESTART, 1);
    (void)send(session, bytes, (size_t)(at - bytes));
}

static void say_who(dt_session_t *session)
{
    uint8_t bytes[HEAD_BYTES];
    uint8_t *at = put_number(bytes, SESSION, session->number);
    *at++ = BYTES_TAG(TOKEN);
    *at++ = sizeof session->io.token;
    memcpy(at, session->io.token, sizeof session->io.token);
    (void)send(session, bytes, (size_t)(at - bytes) + sizeof session->io.token);
}

/* One chunk. The upload stays where it is: only this thread removes uploads. */
static bool say_chunk(dt_session_t *session, dt_client_upload_t *upload, size_t size)
{
    uint8_t *buffer = session->io.bulk_buffer;
    const uint8_t *data = upload->data + upload->sent;
    dt_client_record_chunk(session, upload, size);
    uint8_t *at = put_number(buffer, TRANSFER, upload->number);
    at = put_number(at, OFFSET, upload->sent);
    at = put_number(at, CRC, dt_crc32c(0, data, size));
    *at++ = BYTES_TAG(DATA);
    at = dt_varint_put(at, size);
    memcpy(at, data, size);
    if (!send(session, buffer, (size_t)(at - buffer) + size))
        return false;
    pthread_mutex_lock(&session->lock);
    upload->sent += size;
    session->relayed_bytes += size;
    pthread_mutex_unlock(&session->lock);
    return true;
}

/* ---- hearing ---- */

static bool read_bytes(dt_cursor_t *cursor, const uint8_t **ret_bytes, size_t *ret_size)
{
    uint64_t size = dt_cursor_varint(cursor);
    if (cursor->error || size > dt_cursor_left(cursor))
        return false;
    *ret_bytes = dt_cursor_bytes(cursor, size);
    *ret_size = (size_t)size;
    return true;
}

static void take_number(dt_client_chunk_t *chunk, uint64_t tag, uint64_t value)
{
    if (tag == VARINT_TAG(TRANSFER))
        chunk->transfer = value;
    else if (tag == VARINT_TAG(OFFSET))
        chunk->offset = value;
    else if (tag == VARINT_TAG(CRC))
        chunk->crc32c = (uint32_t)value;
    else if (tag == VARINT_TAG(RECEIVED))
        chunk->received = value;
    else if (tag == VARINT_TAG(RESTART))
        chunk->is_again = value != 0;
    else if (tag == VARINT_TAG(TOTAL))
        chunk->total = value;
}

bool dt_client_chunk_read(const uint8_t *bytes, size_t size, dt_client_chunk_t *ret_chunk)
{
    dt_cursor_t cursor = {.at = bytes, .end = bytes + size};
    *ret_chunk = (dt_client_chunk_t){.has_crc = true};
    while (dt_cursor_left(&cursor) > 0) {
        uint64_t tag = dt_cursor_varint(&cursor);
        const uint8_t *skipped;
        size_t skipped_bytes;
        if ((tag & 7) == 0)
            take_number(ret_chunk, tag, dt_cursor_varint(&cursor));
        else if (tag == BYTES_TAG(DATA)) {
            if (!read_bytes(&cursor, &ret_chunk->data, &ret_chunk->data_bytes))
                return false;
        } else if (tag == BYTES_TAG(FAILED)) {
            if (!read_bytes(&cursor, &ret_chunk->error, &ret_chunk->error_bytes))
                return false;
        } else if ((tag & 7) != 2 || !read_bytes(&cursor, &skipped, &skipped_bytes))
            return false;
    }
    return !cursor.error;
}

/* The error with which a transfer is over. Lock held. */
static void note_error(dt_session_t *session, const dt_client_chunk_t *chunk)
{
    Dtorch__V1__OperatorError *error;
    dt_arena_reset(&session->io.arena);
    if (DT_WIRE_UNPACK(dtorch__v1__operator_error, &session->io.arena, chunk->error,
                       chunk->error_bytes, &error, NULL) == DT_OK)
        dt_client_failure_note(session, error);
}

/* It is over: free it, or leave that to the thread that is copying to it. Lock held. */
static void upload_over(dt_session_t *session, dt_client_upload_t *upload,
                        dt_client_upload_t **ret_done)
{
    dt_list_remove(&upload->link);
    dt_client_copy_done(session, upload);
    upload->is_over = true;
    if (!upload->is_filling)
        *ret_done = upload;
}

static void take_answer(dt_session_t *session, dt_client_upload_t *upload,
                        const dt_client_chunk_t *chunk, dt_client_upload_t **ret_done)
{
    if (chunk->error)
        note_error(session, chunk);
    if (chunk->received > upload->received) {
        upload->received = chunk->received < upload->size ? chunk->received : upload->size;
        session->io.bulk_progress_ns = dt_loop_now_ns();
    }
    if (upload->sent < upload->received || chunk->is_again)
        upload->sent = upload->received;
    if (upload->path && upload->path->window)
        dt_client_window_give(upload->path->window, upload->number,
                              chunk->error ? SIZE_MAX : upload->received);
    if (chunk->error || upload->received == upload->size)
        upload_over(session, upload, ret_done);
}

static void on_answer(dt_session_t *session, const dt_client_chunk_t *chunk)
{
    dt_client_upload_t *done = NULL;
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next) {
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        if (upload->number != chunk->transfer)
            continue;
        take_answer(session, upload, chunk, &done);
        break;
    }
    if (done && done->window) {
        dt_client_upload_free(done); /* runs nothing of the program's */
        done = NULL;
    }
    pthread_mutex_unlock(&session->lock);
    if (done)
        dt_client_upload_free(done);
}

/* The future of a value that comes, with memory for it. NULL: nobody wants it. Lock held. */
static dt_future_t *future_for(dt_session_t *session, uint64_t transfer, uint64_t total)
{
    dt_future_t *future = dt_client_future_find(session, transfer);
    if (!future || !dt_list_is_empty(&future->link))
        return future;
    if (future->is_dropped || future->has_result || total == 0 ||
        dt_client_future_begin(future, total) != DT_OK)
        return NULL;
    return future;
}

uint8_t *dt_client_bulk_room(dt_session_t *session, uint64_t transfer, uint64_t total,
                             uint64_t offset, size_t size)
{
    dt_future_t *future = future_for(session, transfer, total);
    return future && offset == future->received && size <= future->size - future->received
               ? future->data + future->received
               : NULL;
}

/* Whether a chunk's bytes are those that were sent. */
static bool is_sound(const dt_future_t *future, const dt_client_chunk_t *chunk)
{
    const uint8_t *data = chunk->is_in_place ? future->data + chunk->offset : chunk->data;
    return !chunk->is_torn &&
           (!chunk->has_crc || chunk->crc32c == dt_crc32c(0, data, chunk->data_bytes));
}

/* Copy what is new of a chunk into its future. *ret_received: how much of it is there; more than it
 * has: nobody wants it. False: there is nothing to say. */
static bool take_data(dt_session_t *session, const dt_client_chunk_t *chunk, uint64_t *ret_received,
                      bool *ret_restart)
{
    dt_future_t *future = future_for(session, chunk->transfer, chunk->total);
    uint64_t end;
    if (!future) {
        *ret_received = INT64_MAX;
        return chunk->transfer < session->future_next;
    }
    if (__builtin_add_overflow(chunk->offset, chunk->data_bytes, &end) || end > future->size)
        return false;
    if (chunk->offset > future->received || !is_sound(future, chunk)) {
        *ret_restart = !future->has_asked || future->asked_at != future->received;
        future->has_asked = true; /* once: what is on its way behind the hole comes in vain */
        future->asked_at = future->received;
    } else if (end > future->received) {
        size_t skip = (size_t)(future->received - chunk->offset);
        if (!chunk->is_in_place)
            memcpy(future->data + future->received, chunk->data + skip, chunk->data_bytes - skip);
        future->received = (size_t)end;
        session->io.bulk_progress_ns = dt_loop_now_ns();
    }
    bool is_due = *ret_restart || future->received == future->size ||
                  future->received - future->told >= DT_BULK_TELL_BYTES;
    if (is_due)
        future->told = future->received;
    *ret_received = future->received;
    dt_client_future_whole(future);
    return is_due;
}

static void on_data(dt_session_t *session, dt_client_path_t *path, const dt_client_chunk_t *chunk)
{
    uint64_t received = 0;
    bool restart = false;
    pthread_mutex_lock(&session->lock);
    bool is_wanted = take_data(session, chunk, &received, &restart);
    pthread_mutex_unlock(&session->lock);
    if (is_wanted)
        say_received(session, path, chunk->transfer, received, restart);
}

void dt_client_bulk_chunk(dt_session_t *session, dt_client_path_t *path,
                          const dt_client_chunk_t *chunk)
{
    if (chunk->data_bytes)
        on_data(session, path, chunk);
    else if (chunk->transfer == 0 && chunk->is_again)
        dt_client_bulk_again(session, NULL);
    else
        on_answer(session, chunk);
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    dt_session_t *session = dt_rpc_stream_arg(stream);
    dt_client_chunk_t chunk;
    if (!dt_client_chunk_read(data, size, &chunk)) {
        dt_rpc_stream_cancel(stream, DT_ERR_PEER, "a malformed chunk came");
        return;
    }
    pthread_mutex_lock(&session->lock);
    session->relayed_bytes += chunk.data_bytes;
    pthread_mutex_unlock(&session->lock);
    dt_client_bulk_chunk(session, NULL, &chunk);
    dt_client_bulk_pump(session);
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    dt_session_t *session = dt_rpc_stream_arg(stream);
    (void)why;
    session->io.bulk = NULL;
    session->io.bulk_retry_ns = dt_loop_now_ns() + RETRY_NS;
    dt_client_io_closed(session);
}

/* ---- moving ---- */

/* Say what is there of each download. The program may free futures meanwhile, so they are found by
 * their numbers. */
static void ask_again(dt_session_t *session, dt_client_path_t *path)
{
    uint64_t after = 0;
    for (;;) {
        uint64_t number = 0, received = 0;
        pthread_mutex_lock(&session->lock);
        for (dt_list_t *at = session->downloads.next; at != &session->downloads; at = at->next) {
            const dt_future_t *future = DT_CONTAINER_OF(at, dt_future_t, link);
            if (future->number <= after || (number && future->number > number))
                continue;
            number = future->number;
            received = future->received;
        }
        pthread_mutex_unlock(&session->lock);
        if (!number)
            return;
        say_received(session, path, number, received, true);
        after = number;
    }
}

void dt_client_bulk_again(dt_session_t *session, dt_client_path_t *path)
{
    session->io.bulk_progress_ns = dt_loop_now_ns();
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next) {
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        if (upload->path == path)
            upload->sent = upload->received;
    }
    pthread_mutex_unlock(&session->lock);
    ask_again(session, path);
}

void dt_client_bulk_doubt(dt_session_t *session)
{
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next)
        DT_CONTAINER_OF(at, dt_client_upload_t, link)->is_relayed = true;
    pthread_mutex_unlock(&session->lock);
    dt_client_bulk_pump(session);
}

static void dial(dt_session_t *session)
{
    static const dt_rpc_stream_ops_t ops = {.message = on_message, .closed = on_closed};
    const dt_client_settings_t *settings = &session->settings;
    dt_client_io_t *io = &session->io;
    dt_rpc_dial_t options = {
        .address = settings->addresses[io->address],
        .tls = settings->has_tls ? &settings->tls : NULL,
        .bearer = settings->api_key,
        .method = BULK_METHOD,
        .ops = &ops,
        .arg = session,
        .open_ms = OPEN_MS,
        .queue_bytes_max = QUEUE_BYTES,
    };
    if (!io->bulk_buffer && !(io->bulk_buffer = malloc(DT_CLIENT_BULK_CHUNK + HEAD_BYTES)))
        return;
    if (dt_rpc_dial(io->rpc, &options, &io->bulk, NULL) != DT_OK)
        return;
    say_who(session);
    dt_client_bulk_again(session, NULL);
}

/* The way that an upload takes now. False: it waits. Lock held. */
static bool route(dt_session_t *session, dt_client_upload_t *upload, dt_client_path_t **ret_path)
{
    dt_client_path_t *path = upload->is_relayed ? NULL : dt_client_path_of(session, upload->vdev);
    /* It is about to be there, or the node has still time to say where it is. */
    bool is_awaited = path ? path->state != DT_CLIENT_PATH_SPENT
                           : !upload->is_relayed && session->settings.uses_direct &&
                                 dt_loop_now_ns() < session->io.door_ns;
    *ret_path = path && path->state == DT_CLIENT_PATH_READY ? path : NULL;
    if (!*ret_path && is_awaited)
        return false;
    return *ret_path || upload->sequence <= session->acked_sequence;
}

/* Pieces in a window are bounded by that. */
static bool is_placed(const dt_client_upload_t *upload)
{
    return upload->path && upload->path->window && upload->size > DT_BULK_INLINE_MAX;
}

static size_t ahead_of(const dt_client_upload_t *upload)
{
    return is_placed(upload) ? 0 : upload->sent - upload->received;
}

/* The next upload that has a piece to send, its way and the piece's size. Lock not held. */
static dt_client_upload_t *next_upload(dt_session_t *session, dt_client_path_t **ret_path,
                                       size_t *ret_size)
{
    dt_client_upload_t *next = NULL;
    size_t ahead = 0;
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next) {
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        dt_client_path_t *path = upload->path;
        if (!next && route(session, upload, &path)) {
            if (upload->path != path) { /* what went the other way may come late, or never */
                upload->path = path;
                upload->sent = upload->received;
            }
            size_t left = upload->ready - upload->sent;
            size_t most = DT_CLIENT_BULK_CHUNK;
            if (left >= most || (left > 0 && upload->ready == upload->size)) {
                next = upload;
                *ret_path = path;
                *ret_size = left < most ? left : most;
            }
        }
        ahead += ahead_of(upload);
    }
    pthread_mutex_unlock(&session->lock);
    if (!next || is_placed(next))
        return next;
    return ahead + DT_CLIENT_BULK_CHUNK <= DT_CLIENT_BULK_AHEAD ? next : NULL;
}

static void send_uploads(dt_session_t *session)
{
    dt_client_upload_t *upload;
    dt_client_path_t *path = NULL;
    size_t size = 0;
    while ((upload = next_upload(session, &path, &size)) != NULL)
        if (!(path ? dt_client_path_piece(path, upload, size)
                   : session->io.bulk && say_chunk(session, upload, size)))
            return;
}

/* What has to be there for what is to be moved: connect directly, and say whether the relay is
 * needed too. */
static bool needs_relay(dt_session_t *session)
{
    bool is_direct = !dt_list_is_empty(&session->paths);
    bool needs = false;
    for (dt_list_t *at = session->paths.next; at != &session->paths; at = at->next)
        is_direct &= dt_client_path_dial(DT_CONTAINER_OF(at, dt_client_path_t, link));
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads && !needs; at = at->next) {
        dt_client_path_t *path;
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        needs = route(session, upload, &path) && !path;
    }
    if (!dt_list_is_empty(&session->downloads) || session->has_refused)
        needs |=
            !is_direct && (!session->settings.uses_direct || !dt_list_is_empty(&session->paths) ||
                           dt_loop_now_ns() >= session->io.door_ns);
    pthread_mutex_unlock(&session->lock);
    return needs;
}

/* By some way each byte that comes for nobody is answered: that is told then. Lock held. */
static bool owes_answer(dt_session_t *session)
{
    bool has_way = session->io.bulk != NULL;
    for (dt_list_t *at = session->paths.next; at != &session->paths; at = at->next)
        has_way |= DT_CONTAINER_OF(at, dt_client_path_t, link)->state == DT_CLIENT_PATH_READY;
    session->has_refused &= !has_way;
    return session->has_refused;
}

void dt_client_bulk_pump(dt_session_t *session)
{
    dt_client_io_t *io = &session->io;
    pthread_mutex_lock(&session->lock);
    bool has_work = !dt_list_is_empty(&session->uploads) ||
                    !dt_list_is_empty(&session->downloads) || owes_answer(session);
    pthread_mutex_unlock(&session->lock);
    int64_t now_ns = dt_loop_now_ns();
    if (has_work && !io->is_bulk_busy)
        io->bulk_progress_ns = now_ns;
    io->is_bulk_busy = has_work;
    if (!has_work || io->is_closing || !io->has_token)
        return;
    if (needs_relay(session) && io->is_welcome) {
        if (!io->bulk && now_ns >= io->bulk_retry_ns)
            dial(session);
        else if (io->bulk && now_ns - io->bulk_progress_ns > STALL_NS)
            dt_client_bulk_again(session, NULL);
    }
    send_uploads(session);
}

void dt_client_bulk_close(dt_session_t *session)
{
    dt_client_paths_close(session);
    if (session->io.bulk)
        dt_rpc_stream_close(session->io.bulk, DT_OK, NULL);
}
