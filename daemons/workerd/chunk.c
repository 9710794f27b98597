#include "chunk.h"

#include <string.h>

#include "engine_pack.h"
#include "wire/frame.h"

#define DT_NODE_CHUNK_FIELD_MAX ((1u << 20) + 4096u)

static void take_number(dt_node_chunk_t *chunk, uint64_t field, uint64_t number)
{
    switch (field) {
    case DT_PACK_CHUNK_TRANSFER:
        chunk->head.transfer = number;
        return;
    case DT_PACK_CHUNK_OFFSET:
        chunk->head.offset = number;
        return;
    case DT_PACK_CHUNK_CRC:
        chunk->head.crc32c = (uint32_t)number;
        return;
    case DT_PACK_CHUNK_RECEIVED:
        chunk->head.received = number;
        return;
    case DT_PACK_CHUNK_RESTART:
        chunk->head.flags |= number ? DT_CHANNEL_CHUNK_RESTART : 0;
        return;
    case DT_PACK_CHUNK_TOTAL:
        chunk->total = number;
        return;
    case DT_PACK_CHUNK_DONE:
        chunk->is_done = number != 0;
        return;
    case DT_PACK_CHUNK_PLACE:
        chunk->head.flags |= DT_CHANNEL_CHUNK_PLACED;
        chunk->head.place = number - 1;
        return;
    case DT_PACK_CHUNK_SIZE:
        chunk->head.size = (uint32_t)number;
        return;
    case DT_PACK_CHUNK_WINDOW:
        chunk->head.window = (uint32_t)number;
        return;
    default: /* the session's number is known; what is newer is not for us */
        return;
    }
}

static void take_field(dt_node_chunk_t *chunk, dt_cursor_t *cursor)
{
    uint64_t tag = dt_cursor_varint(cursor);
    if ((tag & 7) == 0) {
        take_number(chunk, tag >> 3, dt_cursor_varint(cursor));
        return;
    }
    if ((tag & 7) != 2) {
        (void)dt_cursor_fail(cursor, DT_FRAME_E_BODY);
        return;
    }
    size_t size = (size_t)dt_cursor_bounded(cursor, DT_NODE_CHUNK_FIELD_MAX);
    const uint8_t *bytes = dt_cursor_bytes(cursor, size);
    if (tag >> 3 == DT_PACK_CHUNK_DATA) {
        chunk->data = bytes;
        chunk->size = size;
    } else if (tag >> 3 == DT_PACK_CHUNK_ERROR) {
        chunk->head.flags |= DT_CHANNEL_CHUNK_ERROR;
        chunk->error = bytes;
        chunk->error_bytes = size;
    }
}

bool dt_node_chunk_read(const uint8_t *bytes, size_t size, dt_node_chunk_t *ret_chunk)
{
    dt_cursor_t cursor = {.at = bytes, .end = bytes + size};
    memset(ret_chunk, 0, sizeof *ret_chunk);
    while (dt_cursor_left(&cursor) > 0 && !cursor.error)
        take_field(ret_chunk, &cursor);
    return !cursor.error && ret_chunk->size <= DT_NODE_CHUNK_DATA_MAX;
}
