#include "wire/bulk.h"

#include <string.h>

#define DT_BULK_MAGIC UINT32_C(0x31425444) /* "DTB1" */

static uint8_t *put_le(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *at++ = (uint8_t)(value >> 8 * i);
    return at;
}

static uint64_t get_le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

void dt_bulk_put(uint8_t ret_bytes[DT_BULK_HEAD_BYTES], const dt_bulk_head_t *head)
{
    uint8_t *at = put_le(ret_bytes, DT_BULK_MAGIC, 4);
    at = put_le(at, head->kind, 1);
    at = put_le(at, head->flags, 1);
    at = put_le(at, 0, 2);
    at = put_le(at, head->transfer, 8);
    at = put_le(at, head->offset, 8);
    at = put_le(at, head->place, 8);
    at = put_le(at, head->total, 8);
    at = put_le(at, head->size, 4);
    (void)put_le(at, head->crc32c, 4);
}

/* What a head of its kind may say. */
static const char *fault_of(const dt_bulk_head_t *head)
{
    uint64_t end;
    switch (head->kind) {
    case DT_BULK_HELLO:
        return head->size == DT_BULK_TOKEN_BYTES && head->place <= DT_BULK_WINDOW_BYTES
                   ? NULL
                   : "a hello's size";
    case DT_BULK_REFUSED:
    case DT_BULK_FAILED:
        return head->size <= DT_BULK_TEXT_MAX ? NULL : "a text's size";
    case DT_BULK_DATA:
        if (head->size == 0 || head->size > DT_BULK_BODY_MAX)
            return "the size of a piece";
        return __builtin_add_overflow(head->offset, head->size, &end) ? "a piece's end" : NULL;
    case DT_BULK_PLACED:
        if (head->size == 0 || head->place > DT_BULK_WINDOW_BYTES ||
            head->size > DT_BULK_WINDOW_BYTES - head->place)
            return "a piece's place in the window";
        return __builtin_add_overflow(head->offset, head->size, &end) ? "a piece's end" : NULL;
    case DT_BULK_WELCOME:
    case DT_BULK_RECEIVED:
        return head->size == 0 ? NULL : "bytes where there are none";
    default:
        return "an unknown kind";
    }
}

dt_status_t dt_bulk_get(const uint8_t bytes[DT_BULK_HEAD_BYTES], dt_bulk_head_t *ret_head,
                        dt_error_t *err)
{
    const dt_bulk_head_t head = {
        .kind = bytes[4],
        .flags = bytes[5],
        .transfer = get_le(bytes + 8, 8),
        .offset = get_le(bytes + 16, 8),
        .place = get_le(bytes + 24, 8),
        .total = get_le(bytes + 32, 8),
        .size = (uint32_t)get_le(bytes + 40, 4),
        .crc32c = (uint32_t)get_le(bytes + 44, 4),
    };
    if (get_le(bytes, 4) != DT_BULK_MAGIC)
        return dt_fail(err, DT_ERR_INVALID, "wire", 0, "not a message of a data connection");
    const char *fault = fault_of(&head);
    if (fault)
        return dt_fail(err, DT_ERR_INVALID, "wire", head.kind, "a data connection: %s", fault);
    *ret_head = head;
    return DT_OK;
}

bool dt_bulk_area(uint32_t index, uint32_t count, uint64_t *ret_place, uint64_t *ret_bytes)
{
    if (count == 0 || count > DT_BULK_AREAS_MAX || index >= count)
        return false;
    *ret_bytes = (uint64_t)(DT_BULK_FETCH_BYTES / DT_BULK_UNIT_BYTES / count) * DT_BULK_UNIT_BYTES;
    *ret_place = (uint64_t)DT_BULK_UPLOAD_BYTES + index * *ret_bytes;
    return true;
}

static uint64_t run_of(uint32_t first, uint32_t count)
{
    uint64_t ones = count >= 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1;
    return ones << first;
}

bool dt_bulk_units_take(dt_bulk_units_t *units, uint32_t count, uint32_t *ret_first)
{
    for (uint32_t first = 0; count > 0 && count <= units->count && first <= units->count - count;
         first++)
        if (!(units->used & run_of(first, count))) {
            units->used |= run_of(first, count);
            *ret_first = first;
            return true;
        }
    return false;
}

void dt_bulk_units_give(dt_bulk_units_t *units, uint32_t first, uint32_t count)
{
    units->used &= ~run_of(first, count);
}
