/* Transfers: bytes of large uploads and fetches, on a stream of their own. I/O thread.
 *
 * The bulk stream is dialled when there is something to move, and again while there is. What either
 * side has not confirmed may be lost with a stream, or because it overtook the record that it
 * belongs to; so whoever makes no progress for STALL_NS is begun again where it was confirmed. */
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
enum { SESSION = 1, TOKEN, TRANSFER, OFFSET, CRC, DATA, RECEIVED, FAILED, RESTART };
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

static void say_received(dt_session_t *session, uint64_t transfer, uint64_t received, bool restart)
{
    uint8_t bytes[HEAD_BYTES];
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
static bool say_chunk(dt_session_t *session, dt_client_upload_t *upload)
{
    uint8_t *buffer = session->io.bulk_buffer;
    size_t left = upload->size - upload->sent;
    size_t size = left < DT_CLIENT_BULK_CHUNK ? left : DT_CLIENT_BULK_CHUNK;
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
    upload->sent += size;
    return true;
}

/* ---- hearing ---- */

struct chunk {
    uint64_t transfer, offset, crc, received;
    const uint8_t *data, *error;
    size_t data_bytes, error_bytes;
};

static bool read_bytes(dt_cursor_t *cursor, const uint8_t **ret_bytes, size_t *ret_size)
{
    uint64_t size = dt_cursor_varint(cursor);
    if (cursor->error || size > dt_cursor_left(cursor))
        return false;
    *ret_bytes = dt_cursor_bytes(cursor, size);
    *ret_size = (size_t)size;
    return true;
}

static bool read_chunk(const uint8_t *bytes, size_t size, struct chunk *ret_chunk)
{
    dt_cursor_t cursor = {.at = bytes, .end = bytes + size};
    memset(ret_chunk, 0, sizeof *ret_chunk);
    while (dt_cursor_left(&cursor) > 0) {
        uint64_t tag = dt_cursor_varint(&cursor);
        const uint8_t *skipped;
        size_t skipped_bytes;
        uint64_t value = 0;
        if ((tag & 7) == 0)
            value = dt_cursor_varint(&cursor);
        else if (tag == BYTES_TAG(DATA)) {
            if (!read_bytes(&cursor, &ret_chunk->data, &ret_chunk->data_bytes))
                return false;
        } else if (tag == BYTES_TAG(FAILED)) {
            if (!read_bytes(&cursor, &ret_chunk->error, &ret_chunk->error_bytes))
                return false;
        } else if ((tag & 7) != 2 || !read_bytes(&cursor, &skipped, &skipped_bytes))
            return false;
        if (tag == VARINT_TAG(TRANSFER))
            ret_chunk->transfer = value;
        else if (tag == VARINT_TAG(OFFSET))
            ret_chunk->offset = value;
        else if (tag == VARINT_TAG(CRC))
            ret_chunk->crc = value;
        else if (tag == VARINT_TAG(RECEIVED))
            ret_chunk->received = value;
    }
    return !cursor.error;
}

/* The error with which a transfer is over. Lock held. */
static void note_error(dt_session_t *session, const struct chunk *chunk)
{
    Dtorch__V1__OperatorError *error;
    dt_arena_reset(&session->io.arena);
    if (DT_WIRE_UNPACK(dtorch__v1__operator_error, &session->io.arena, chunk->error,
                       chunk->error_bytes, &error, NULL) == DT_OK)
        dt_client_failure_note(session, error);
}

static void on_answer(dt_session_t *session, const struct chunk *chunk)
{
    dt_client_upload_t *done = NULL;
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next) {
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        if (upload->number != chunk->transfer)
            continue;
        if (chunk->error)
            note_error(session, chunk);
        if (chunk->received > upload->received) {
            upload->received = chunk->received < upload->size ? chunk->received : upload->size;
            session->io.bulk_progress_ns = dt_loop_now_ns();
        }
        if (upload->sent < upload->received)
            upload->sent = upload->received;
        if (chunk->error || upload->received == upload->size) {
            dt_list_remove(&upload->link);
            done = upload;
        }
        break;
    }
    pthread_mutex_unlock(&session->lock);
    if (done)
        dt_client_upload_free(done);
}

/* Copy what is new of a chunk into its future. *ret_received: how much of it is there. */
static bool take_data(dt_session_t *session, const struct chunk *chunk, uint64_t *ret_received,
                      bool *ret_restart)
{
    dt_future_t *future = dt_client_future_find(session, chunk->transfer);
    uint64_t end;
    if (future && dt_list_is_empty(&future->link))
        future->has_missed = true;
    if (!future || dt_list_is_empty(&future->link) ||
        __builtin_add_overflow(chunk->offset, chunk->data_bytes, &end) || end > future->size)
        return false; /* not wanted any more, or not yet: it will be asked for again */
    if (chunk->offset > future->received ||
        chunk->crc != dt_crc32c(0, chunk->data, chunk->data_bytes)) {
        *ret_restart = !future->has_asked || future->asked_at != future->received;
        future->has_asked = true; /* once: what is on its way behind the hole comes in vain */
        future->asked_at = future->received;
    } else if (end > future->received) {
        size_t skip = (size_t)(future->received - chunk->offset);
        memcpy(future->data + future->received, chunk->data + skip, chunk->data_bytes - skip);
        future->received = (size_t)end;
        session->io.bulk_progress_ns = dt_loop_now_ns();
    }
    *ret_received = future->received;
    if (future->received == future->size) {
        dt_client_record_result(future, DT_OK);
        dt_client_future_done(future, DT_OK);
    }
    return true;
}

static void on_data(dt_session_t *session, const struct chunk *chunk)
{
    uint64_t received = 0;
    bool restart = false;
    pthread_mutex_lock(&session->lock);
    bool is_wanted = take_data(session, chunk, &received, &restart);
    pthread_mutex_unlock(&session->lock);
    if (is_wanted)
        say_received(session, chunk->transfer, received, restart);
}

static void on_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    dt_session_t *session = dt_rpc_stream_arg(stream);
    struct chunk chunk;
    if (!read_chunk(data, size, &chunk)) {
        dt_rpc_stream_cancel(stream, DT_ERR_PEER, "a malformed chunk came");
        return;
    }
    if (chunk.data_bytes)
        on_data(session, &chunk);
    else
        on_answer(session, &chunk);
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

static void begin_again(dt_session_t *session)
{
    session->io.bulk_progress_ns = dt_loop_now_ns();
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next) {
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        upload->sent = upload->received;
    }
    for (dt_list_t *at = session->downloads.next; at != &session->downloads; at = at->next) {
        dt_future_t *future = DT_CONTAINER_OF(at, dt_future_t, link);
        future->has_missed = false;
        say_received(session, future->number, future->received, true);
    }
    pthread_mutex_unlock(&session->lock);
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
    begin_again(session);
}

/* Ask for what came too early. Lock not held. */
static void ask_missed(dt_session_t *session)
{
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->downloads.next; at != &session->downloads; at = at->next) {
        dt_future_t *future = DT_CONTAINER_OF(at, dt_future_t, link);
        if (!future->has_missed)
            continue;
        future->has_missed = false;
        future->has_asked = true;
        future->asked_at = future->received;
        say_received(session, future->number, future->received, true);
    }
    pthread_mutex_unlock(&session->lock);
}

/* The next upload that has something to send, and the bytes that are on their way. */
static dt_client_upload_t *next_upload(dt_session_t *session)
{
    dt_client_upload_t *next = NULL;
    size_t ahead = 0;
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->uploads.next; at != &session->uploads; at = at->next) {
        dt_client_upload_t *upload = DT_CONTAINER_OF(at, dt_client_upload_t, link);
        ahead += upload->sent - upload->received;
        if (!next && upload->sent < upload->size && upload->sequence <= session->acked_sequence)
            next = upload;
    }
    pthread_mutex_unlock(&session->lock);
    return ahead + DT_CLIENT_BULK_CHUNK <= DT_CLIENT_BULK_AHEAD ? next : NULL;
}

void dt_client_bulk_pump(dt_session_t *session)
{
    dt_client_io_t *io = &session->io;
    dt_client_upload_t *upload;
    pthread_mutex_lock(&session->lock);
    bool has_work = !dt_list_is_empty(&session->uploads) || !dt_list_is_empty(&session->downloads);
    pthread_mutex_unlock(&session->lock);
    int64_t now_ns = dt_loop_now_ns();
    if (has_work && !io->is_bulk_busy)
        io->bulk_progress_ns = now_ns;
    io->is_bulk_busy = has_work;
    if (!has_work || !io->is_welcome || io->is_closing)
        return;
    if (!io->bulk) {
        if (now_ns < io->bulk_retry_ns)
            return;
        dial(session);
    } else if (now_ns - io->bulk_progress_ns > STALL_NS) {
        begin_again(session);
    } else {
        ask_missed(session);
    }
    while (io->bulk && (upload = next_upload(session)) != NULL)
        if (!say_chunk(session, upload))
            break;
}

void dt_client_bulk_close(dt_session_t *session)
{
    if (session->io.bulk)
        dt_rpc_stream_close(session->io.bulk, DT_OK, NULL);
}
