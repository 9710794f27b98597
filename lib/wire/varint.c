#include "wire/varint.h"

#include "wire/frame.h"
#include "wire/wire.h"

uint64_t dt_cursor_varint_slow(dt_cursor_t *cursor)
{
    uint64_t value = 0;
    const uint8_t *at = cursor->at;
    for (unsigned shift = 0; at < cursor->end && shift < 64; shift += 7) {
        uint64_t byte = *at++;
        if (shift == 63 && byte > 1)
            break;
        value |= (byte & 127) << shift;
        if (byte >= 128)
            continue;
        if (byte == 0 && shift > 0)
            break; /* not the shortest form */
        cursor->at = at;
        return value;
    }
    return dt_cursor_fail(cursor, DT_FRAME_E_BODY);
}

uint8_t dt_cursor_u8(dt_cursor_t *cursor)
{
    if (cursor->at == cursor->end)
        return (uint8_t)dt_cursor_fail(cursor, DT_FRAME_E_BODY);
    return *cursor->at++;
}

const uint8_t *dt_cursor_bytes(dt_cursor_t *cursor, uint64_t size)
{
    const uint8_t *bytes = cursor->at;
    if (size > dt_cursor_left(cursor)) {
        dt_cursor_fail(cursor, DT_FRAME_E_BODY);
        return NULL;
    }
    cursor->at += size;
    return bytes;
}

uint64_t dt_cursor_u64(dt_cursor_t *cursor)
{
    const uint8_t *bytes = dt_cursor_bytes(cursor, 8);
    uint64_t value = 0;
    for (int i = 7; bytes && i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

double dt_cursor_f64(dt_cursor_t *cursor)
{
    uint64_t bits = dt_cursor_u64(cursor);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint64_t dt_cursor_bounded(dt_cursor_t *cursor, uint64_t max)
{
    uint64_t value = dt_cursor_varint(cursor);
    return value <= max ? value : dt_cursor_fail(cursor, DT_FRAME_E_LIMIT);
}

const char *dt_cursor_text(dt_cursor_t *cursor, uint64_t max, uint32_t *ret_size)
{
    uint64_t size = dt_cursor_bounded(cursor, max);
    const char *text = (const char *)dt_cursor_bytes(cursor, size);
    *ret_size = 0;
    if (!text)
        return NULL;
    if (!dt_wire_text_is_clean(text, size)) {
        dt_cursor_fail(cursor, DT_FRAME_E_TEXT);
        return NULL;
    }
    *ret_size = (uint32_t)size;
    return text;
}
