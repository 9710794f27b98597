/* Integers of operator records: LEB128 of at most 10 bytes in the shortest form, zigzag for signed
 * ones. The cursor remembers its first error, so that a body is read straight through and checked
 * once. Threads: none of its own. Never allocates. */
#ifndef DT_WIRE_VARINT_H
#define DT_WIRE_VARINT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DT_VARINT_BYTES_MAX 10

typedef struct dt_cursor {
    const uint8_t *at;
    const uint8_t *end;
    int error; /* dt_frame_error_t of the first failure; 0: none. Then reads give 0 and do not move
                */
} dt_cursor_t;

static inline uint64_t dt_zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static inline int64_t dt_unzigzag(uint64_t value)
{
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* Write; `at` must have room for DT_VARINT_BYTES_MAX. Returns the end. */
static inline uint8_t *dt_varint_put(uint8_t *at, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        *at++ = (uint8_t)(value | 128);
    *at++ = (uint8_t)value;
    return at;
}

static inline uint64_t dt_cursor_fail(dt_cursor_t *cursor, int error)
{
    if (!cursor->error)
        cursor->error = error;
    cursor->at = cursor->end;
    return 0;
}

static inline size_t dt_cursor_left(const dt_cursor_t *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

/* The long forms; out of line so that the common single byte stays small. */
uint64_t dt_cursor_varint_slow(dt_cursor_t *cursor);
uint8_t dt_cursor_u8(dt_cursor_t *cursor);
uint64_t dt_cursor_u64(dt_cursor_t *cursor);
double dt_cursor_f64(dt_cursor_t *cursor);
/* Give `size` bytes in place. */
const uint8_t *dt_cursor_bytes(dt_cursor_t *cursor, uint64_t size);
/* Read a varint that must not be above `max`, else DT_FRAME_E_LIMIT. */
uint64_t dt_cursor_bounded(dt_cursor_t *cursor, uint64_t max);
/* Read a string of at most `max` bytes: UTF-8 without NUL; not terminated. */
const char *dt_cursor_text(dt_cursor_t *cursor, uint64_t max, uint32_t *ret_size);

static inline uint64_t dt_cursor_varint(dt_cursor_t *cursor)
{
    if (cursor->at < cursor->end && *cursor->at < 128)
        return *cursor->at++;
    return dt_cursor_varint_slow(cursor);
}

#endif
