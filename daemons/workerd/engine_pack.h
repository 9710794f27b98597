/* The few protobuf fields that the engine writes by hand, because they stand around bytes that must
 * not be copied once more. Field numbers are those of session.proto; a test packs and unpacks each.
 */
#ifndef DT_WORKERD_ENGINE_PACK_H
#define DT_WORKERD_ENGINE_PACK_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "wire/varint.h"

/* Fields of WorkerSessionUp and of what is in it. */
enum {
    DT_PACK_UP_EXECUTED = 2,
    DT_PACK_UP_RESULT = 3,
    DT_PACK_UP_ANSWER = 4,
    DT_PACK_UP_POISON = 5,
    DT_PACK_UP_CHUNK = 6,
    DT_PACK_EXECUTED_SEQUENCE = 1,
    DT_PACK_EXECUTED_VDEV = 2,
    DT_PACK_RESULT_FUTURE = 1,
    DT_PACK_RESULT_META = 2,
    DT_PACK_RESULT_VALUE = 3,
    DT_PACK_RESULT_TRANSFER = 4,
    DT_PACK_RESULT_SIZE = 5,
    DT_PACK_RESULT_ERROR = 6,
    DT_PACK_RESULT_LAYOUT = 7,
    DT_PACK_POISON_SEQUENCE = 1,
    DT_PACK_POISON_ERROR = 2,
    DT_PACK_ERROR_CODE = 1,
    DT_PACK_ERROR_KIND = 2,
    DT_PACK_ERROR_TEXT = 3,
    DT_PACK_ERROR_SEQUENCE = 4,
    DT_PACK_ERROR_OPERATOR = 5,
    DT_PACK_ERROR_INPUTS = 6,
    DT_PACK_ERROR_SOURCE = 7,
    DT_PACK_ERROR_NODE = 8,
    DT_PACK_ERROR_DEVICE = 9,
    DT_PACK_ERROR_VDEV = 10,
    DT_PACK_ERROR_SOURCE_CODE = 11,
    DT_PACK_ERROR_SKIPPED = 12,
    DT_PACK_ERROR_RANGE = 13,
    DT_PACK_CHUNK_SESSION = 1,
    DT_PACK_CHUNK_TRANSFER = 3,
    DT_PACK_CHUNK_OFFSET = 4,
    DT_PACK_CHUNK_CRC = 5,
    DT_PACK_CHUNK_DATA = 6,
    DT_PACK_CHUNK_RECEIVED = 7,
    DT_PACK_CHUNK_ERROR = 8,
    DT_PACK_CHUNK_RESTART = 9,
    DT_PACK_CHUNK_TOTAL = 10,
    DT_PACK_CHUNK_DONE = 11,
    DT_PACK_CHUNK_PLACE = 12,
    DT_PACK_CHUNK_SIZE = 13,
    DT_PACK_CHUNK_WINDOW = 14,
    DT_PACK_NUMBER_MAX = 12, /* bytes of a number's field */
};

/* A number; zero is left out, as proto3 does. */
static inline uint8_t *dt_pack_number(uint8_t *at, unsigned field, uint64_t value)
{
    if (value == 0)
        return at;
    *at++ = (uint8_t)(field << 3);
    return dt_varint_put(at, value);
}

/* What stands before `size` bytes of a field. */
static inline uint8_t *dt_pack_head(uint8_t *at, unsigned field, size_t size)
{
    *at++ = (uint8_t)(field << 3 | 2);
    return dt_varint_put(at, size);
}

static inline uint8_t *dt_pack_bytes(uint8_t *at, unsigned field, const void *bytes, size_t size)
{
    if (size == 0)
        return at;
    at = dt_pack_head(at, field, size);
    memcpy(at, bytes, size);
    return at + size;
}

#endif
