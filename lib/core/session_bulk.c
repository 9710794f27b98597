/* Relay of transfers: chunks go on as they came. Which way a chunk goes is told by whether it has
 * data: uploads have it from the client, fetches from the node; without it is an answer. */
#include <stdlib.h>
#include <string.h>

#include "core/session_internal.h"

#define CHUNK_MAX      (1u << 20)
#define LINK_CHUNK_TAG 0x1a /* WorkerSessionDown.chunk */
#define BULKS_MAX      4    /* streams of one session */

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

/* ---- protobuf, as far as it is needed to pass a field on without a copy ---- */

static bool get_varint(const uint8_t **at, const uint8_t *end, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *ret_value = value;
            return true;
        }
    }
    return false;
}

struct field {
    uint32_t number;
    uint32_t type;
    uint64_t value; /* VARINT */
    const uint8_t *bytes;
    size_t size;
};

static bool next_field(const uint8_t **at, const uint8_t *end, struct field *ret_field)
{
    uint64_t tag, size;
    if (!get_varint(at, end, &tag) || tag > UINT32_MAX || tag < 8)
        return false;
    *ret_field = (struct field){.number = (uint32_t)tag >> 3, .type = tag & 7};
    switch (ret_field->type) {
    case WIRE_VARINT:
        return get_varint(at, end, &ret_field->value);
    case WIRE_BYTES:
        if (!get_varint(at, end, &size))
            return false;
        break;
    case WIRE_FIXED64:
        size = 8;
        break;
    case WIRE_FIXED32:
        size = 4;
        break;
    default:
        return false;
    }
    if (size > (uint64_t)(end - *at))
        return false;
    ret_field->bytes = *at;
    ret_field->size = (size_t)size;
    *at += size;
    return true;
}

bool dt_session_only_field(const uint8_t *data, size_t size, uint32_t number,
                           const uint8_t **ret_bytes, size_t *ret_size)
{
    const uint8_t *at = data;
    struct field field;
    if (!next_field(&at, data + size, &field) || field.number != number ||
        field.type != WIRE_BYTES || at != data + size)
        return false;
    *ret_bytes = field.bytes;
    *ret_size = field.size;
    return true;
}

struct chunk {
    uint64_t session, transfer, received;
    size_t token_bytes;
    const uint8_t *token;
    size_t data_bytes;
    bool has_error;
};

/* Numbers of BulkChunk's fields. */
enum { SESSION = 1, TOKEN, TRANSFER, OFFSET, CRC, DATA, RECEIVED, FAILED, RESTART };

static bool read_chunk(const uint8_t *data, size_t size, struct chunk *ret_chunk)
{
    static const uint8_t types[] = {
        [SESSION] = WIRE_VARINT,  [TOKEN] = WIRE_BYTES,  [TRANSFER] = WIRE_VARINT,
        [OFFSET] = WIRE_VARINT,   [CRC] = WIRE_VARINT,   [DATA] = WIRE_BYTES,
        [RECEIVED] = WIRE_VARINT, [FAILED] = WIRE_BYTES, [RESTART] = WIRE_VARINT};
    const uint8_t *at = data, *end = data + size;
    struct field field;
    *ret_chunk = (struct chunk){0};
    while (at < end) {
        if (!next_field(&at, end, &field))
            return false;
        if (field.number > RESTART)
            continue;
        if (field.number == 0 || field.type != types[field.number])
            return false;
        if (field.number == SESSION)
            ret_chunk->session = field.value;
        else if (field.number == TRANSFER)
            ret_chunk->transfer = field.value;
        else if (field.number == RECEIVED)
            ret_chunk->received = field.value;
        else if (field.number == TOKEN) {
            ret_chunk->token = field.bytes;
            ret_chunk->token_bytes = field.size;
        } else if (field.number == DATA)
            ret_chunk->data_bytes = field.size;
        else if (field.number == FAILED)
            ret_chunk->has_error = true;
    }
    return ret_chunk->data_bytes <= CHUNK_MAX;
}

/* ---- client to node ---- */

static void to_link(dt_sessions_t *sessions, const dt_session_link_t *link, const uint8_t *data,
                    size_t size)
{
    dt_session_queued_t *queued;
    uint8_t head[1 + DT_VARINT_BYTES_MAX];
    size_t head_bytes;
    if (!link || !link->stream)
        return; /* it will be said again when the node is back */
    head[0] = LINK_CHUNK_TAG;
    head_bytes = (size_t)(dt_varint_put(head + 1, size) - head);
    queued = dt_sessions_action(sessions, DT_SESSION_DO_SEND, head_bytes + size);
    if (!queued)
        return;
    memcpy(queued->data, head, head_bytes);
    memcpy(queued->data + head_bytes, data, size);
    queued->action.stream = link->stream;
    dt_sessions_push(sessions, queued);
}

/* Answers may have been lost, of values too that the client has dropped and will not ask for again:
 * what a node waits for it says once more, and is told that it is over. Without a stream of the
 * client's nothing would go on. */
static void say_restart(dt_sessions_t *sessions, const dt_session_link_t *link, bool has_stream)
{
    Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    chunk.restart = true;
    chunk.done = has_stream;
    down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_CHUNK;
    down.chunk = &chunk;
    if (link->stream)
        dt_sessions_send(sessions, link->stream, &down.base);
}

static void attach(dt_sessions_t *sessions, dt_session_stream_t *stream, const struct chunk *chunk)
{
    dt_session_t *session = dt_sessions_find(sessions, chunk->session);
    ProtobufCBinaryData token = {chunk->token_bytes, (uint8_t *)(uintptr_t)chunk->token};
    uint32_t count = 0;
    if (!session || !dt_session_token_fits(sessions, session, &token)) {
        dt_session_stream_end(sessions, stream, DT_ERR_DENIED,
                              "the first chunk must name a session and its token");
        return;
    }
    for (dt_list_t *at = session->bulks.next; at != &session->bulks; at = at->next)
        count++;
    if (count >= BULKS_MAX)
        dt_session_stream_end(sessions,
                              DT_CONTAINER_OF(session->bulks.next, dt_session_stream_t, bulk_list),
                              DT_ERR_AGAIN, "replaced by a newer stream");
    stream->session = session;
    dt_list_push(&session->bulks, &stream->bulk_list);
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next)
        say_restart(sessions, DT_CONTAINER_OF(at, dt_session_link_t, list), true);
}

/* Of a transfer that is over, whose last answer the client did not see. */
static void say_whole(dt_sessions_t *sessions, const dt_session_stream_t *stream, uint64_t transfer)
{
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    chunk.transfer = transfer;
    chunk.received = INT64_MAX;
    dt_sessions_send(sessions, stream->id, &chunk.base);
}

/* Of a download whose value the client has confirmed. */
static void say_over(dt_sessions_t *sessions, const dt_session_link_t *link, uint64_t transfer)
{
    Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    chunk.transfer = transfer;
    chunk.received = INT64_MAX;
    down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_CHUNK;
    down.chunk = &chunk;
    dt_sessions_send(sessions, link->stream, &down.base);
}

/* The answer for a value came by another stream than its confirmation, and after it: the node waits
 * for it, and which one that is nobody knows any more. */
static void say_over_to_all(dt_sessions_t *sessions, const dt_session_t *session, uint64_t transfer)
{
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (link->stream)
            say_over(sessions, link, transfer);
    }
}

void dt_session_bulk_received(dt_sessions_t *sessions, dt_session_stream_t *stream,
                              const uint8_t *data, size_t size)
{
    dt_session_t *session = stream->session;
    struct chunk chunk;
    if (!read_chunk(data, size, &chunk) || (session && chunk.token_bytes)) {
        sessions->counts.malformed++;
        dt_session_event(sessions, DTORCH__V1__SEVERITY__WARNING, "session-misbehaves", session, "",
                         "chunk", "%s: a malformed chunk", stream->address);
        dt_session_stream_end(sessions, stream, DT_ERR_INVALID, "a malformed chunk");
        return;
    }
    if (!session) {
        attach(sessions, stream, &chunk);
    } else if (chunk.data_bytes) {
        const dt_session_transfer_t *t = dt_session_transfer_find(session, chunk.transfer);
        sessions->counts.bulk_bytes_up += chunk.data_bytes;
        if (t)
            to_link(sessions, session->vdevs[t->vdev].link, data, size);
        else if (chunk.transfer <= session->last_transfer)
            say_whole(sessions, stream, chunk.transfer);
    } else {
        const dt_session_future_t *f = dt_session_future_find(session, chunk.transfer);
        if (f)
            to_link(sessions, session->vdevs[f->vdev].link, data, size);
        else if (chunk.transfer <= session->last_future)
            say_over_to_all(sessions, session, chunk.transfer);
    }
}

/* ---- node to client ---- */

static dt_session_stream_t *newest_bulk(const dt_session_t *session)
{
    return dt_list_is_empty(&session->bulks)
               ? NULL
               : DT_CONTAINER_OF(session->bulks.prev, dt_session_stream_t, bulk_list);
}

void dt_session_bulk_from_link(dt_sessions_t *sessions, dt_session_link_t *link,
                               const uint8_t *data, size_t size)
{
    dt_session_t *session = link->session;
    const dt_session_stream_t *bulk = newest_bulk(session);
    dt_session_transfer_t *t;
    struct chunk chunk;
    if (!read_chunk(data, size, &chunk))
        return;
    if (chunk.data_bytes) {
        const dt_session_future_t *f = dt_session_future_find(session, chunk.transfer);
        sessions->counts.bulk_bytes_down += chunk.data_bytes;
        if (f && session->vdevs[f->vdev].link == link && bulk)
            (void)dt_sessions_send_bytes(sessions, bulk->id, data, size);
        else if (!f && chunk.transfer <= session->last_future)
            say_over(sessions, link, chunk.transfer);
        return;
    }
    t = dt_session_transfer_find(session, chunk.transfer);
    if (!t || session->vdevs[t->vdev].link != link)
        return;
    if (bulk)
        (void)dt_sessions_send_bytes(sessions, bulk->id, data, size);
    if (chunk.has_error || chunk.received >= t->size)
        dt_session_transfer_end(session, t);
}

void dt_session_bulk_restart(dt_sessions_t *sessions, dt_session_t *session,
                             const dt_session_link_t *link)
{
    const dt_session_stream_t *bulk = newest_bulk(session);
    say_restart(sessions, link, bulk != NULL);
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    if (!bulk)
        return; /* a new one begins again by itself */
    chunk.restart = true;
    dt_sessions_send(sessions, bulk->id, &chunk.base);
}

void dt_session_bulk_fail(dt_sessions_t *sessions, dt_session_t *session, uint64_t transfer,
                          const Dtorch__V1__OperatorError *error)
{
    const dt_session_stream_t *bulk = newest_bulk(session);
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    if (!bulk)
        return;
    chunk.transfer = transfer;
    chunk.error = (Dtorch__V1__OperatorError *)(uintptr_t)error;
    dt_sessions_send(sessions, bulk->id, &chunk.base);
}
