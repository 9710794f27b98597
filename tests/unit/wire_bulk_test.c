/* Messages of data connections, and window memory in units. */
#include <criterion/criterion.h>
#include <string.h>

#include "client/src/client.h"
#include "daemons/workerd/chunk.h"
#include "wire/bulk.h"

TestSuite(wire_bulk, .timeout = 60);

static const dt_bulk_head_t good[] = {
    {.kind = DT_BULK_HELLO, .place = DT_BULK_WINDOW_BYTES, .total = 7, .size = DT_BULK_TOKEN_BYTES},
    {.kind = DT_BULK_WELCOME, .place = 1},
    {.kind = DT_BULK_REFUSED, .size = 20},
    {.kind = DT_BULK_DATA, .transfer = 1, .offset = 5, .total = 9, .size = 4, .crc32c = 0xdeadbeef},
    {.kind = DT_BULK_PLACED, .transfer = UINT64_MAX, .place = DT_BULK_WINDOW_BYTES - 1, .size = 1},
    {.kind = DT_BULK_RECEIVED, .flags = DT_BULK_AGAIN, .transfer = 3, .place = UINT64_MAX},
    {.kind = DT_BULK_FAILED, .size = DT_BULK_TEXT_MAX},
};

Test(wire_bulk, a_head_is_read_as_it_was_put)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint8_t bytes[DT_BULK_HEAD_BYTES];
        dt_bulk_head_t is = {0};
        dt_bulk_put(bytes, &good[i]);
        cr_assert_eq(dt_bulk_get(bytes, &is, NULL), DT_OK, "message %zu", i);
        cr_assert(is.kind == good[i].kind && is.flags == good[i].flags &&
                      is.transfer == good[i].transfer && is.offset == good[i].offset &&
                      is.place == good[i].place && is.total == good[i].total &&
                      is.size == good[i].size && is.crc32c == good[i].crc32c,
                  "message %zu", i);
        bytes[0] ^= 1;
        cr_assert_eq(dt_bulk_get(bytes, &is, NULL), DT_ERR_INVALID, "another magic");
    }
}

Test(wire_bulk, what_a_kind_may_not_say_is_refused)
{
    static const dt_bulk_head_t bad[] = {
        {.kind = 0},
        {.kind = DT_BULK_FAILED + 1},
        {.kind = DT_BULK_HELLO, .size = DT_BULK_TOKEN_BYTES - 1},
        {.kind = DT_BULK_HELLO, .size = DT_BULK_TOKEN_BYTES, .place = DT_BULK_WINDOW_BYTES + 1},
        {.kind = DT_BULK_DATA},
        {.kind = DT_BULK_DATA, .size = DT_BULK_BODY_MAX + 1},
        {.kind = DT_BULK_DATA, .size = 2, .offset = UINT64_MAX},
        {.kind = DT_BULK_PLACED},
        {.kind = DT_BULK_PLACED, .place = DT_BULK_WINDOW_BYTES, .size = 1},
        {.kind = DT_BULK_PLACED, .place = UINT64_MAX, .size = 2},
        {.kind = DT_BULK_PLACED, .size = UINT32_MAX},
        {.kind = DT_BULK_RECEIVED, .size = 1},
        {.kind = DT_BULK_REFUSED, .size = DT_BULK_TEXT_MAX + 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint8_t bytes[DT_BULK_HEAD_BYTES];
        dt_bulk_head_t is;
        dt_bulk_put(bytes, &bad[i]);
        cr_assert_eq(dt_bulk_get(bytes, &is, NULL), DT_ERR_INVALID, "message %zu", i);
    }
}

Test(wire_bulk, areas_lie_behind_the_uploads_and_do_not_overlap)
{
    for (uint32_t count = 1; count <= DT_BULK_AREAS_MAX; count++) {
        uint64_t end = DT_BULK_UPLOAD_BYTES;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t place, bytes;
            cr_assert(dt_bulk_area(i, count, &place, &bytes));
            cr_assert(place >= end && bytes >= DT_BULK_UNIT_BYTES &&
                      bytes % DT_BULK_UNIT_BYTES == 0);
            end = place + bytes;
        }
        cr_assert_leq(end, DT_BULK_WINDOW_BYTES);
    }
    cr_assert_not(dt_bulk_area(0, 0, &(uint64_t){0}, &(uint64_t){0}));
    cr_assert_not(dt_bulk_area(0, DT_BULK_AREAS_MAX + 1, &(uint64_t){0}, &(uint64_t){0}));
    cr_assert_not(dt_bulk_area(2, 2, &(uint64_t){0}, &(uint64_t){0}));
}

Test(wire_bulk, units_are_given_out_once_and_in_runs)
{
    dt_bulk_units_t units = {.count = 8};
    uint32_t a, b, c, d;
    cr_assert_not(dt_bulk_units_take(&units, 0, &a));
    cr_assert_not(dt_bulk_units_take(&units, 9, &a));
    cr_assert(dt_bulk_units_take(&units, 3, &a) && dt_bulk_units_take(&units, 3, &b));
    cr_assert(a == 0 && b == 3);
    cr_assert_not(dt_bulk_units_take(&units, 3, &c));
    dt_bulk_units_give(&units, a, 3);
    cr_assert(dt_bulk_units_take(&units, 2, &c) && dt_bulk_units_take(&units, 2, &d));
    cr_assert(c == 0 && d == 6);
    units = (dt_bulk_units_t){.count = 64};
    cr_assert(dt_bulk_units_take(&units, 64, &a) && a == 0);
    cr_assert_eq(units.used, UINT64_MAX);
    dt_bulk_units_give(&units, 0, 64);
    cr_assert_eq(units.used, 0);
}

Test(wire_bulk, sizes_are_counted_in_whole_units)
{
    cr_assert_eq(dt_bulk_units_of(0), 0);
    cr_assert_eq(dt_bulk_units_of(1), 1);
    cr_assert_eq(dt_bulk_units_of(DT_BULK_UNIT_BYTES), 1);
    cr_assert_eq(dt_bulk_units_of(DT_BULK_UNIT_BYTES + 1), 2);
    cr_assert_eq(dt_bulk_units_of(UINT64_MAX), DT_BULK_UNITS_MAX + 1);
}

/* The program and the agent read chunks by hand: both as protobuf does. */
Test(wire_bulk, chunks_are_read_as_protobuf_packs_them)
{
    Dtorch__V1__BulkChunk chunk = DTORCH__V1__BULK_CHUNK__INIT;
    uint8_t data[] = {1, 2, 3}, packed[256];
    chunk.session = 5;
    chunk.transfer = 300;
    chunk.offset = 1 << 20;
    chunk.crc32c = 0xfedcba98;
    chunk.data = (ProtobufCBinaryData){sizeof data, data};
    chunk.received = 12345;
    chunk.restart = true;
    chunk.total = 1 << 22;
    chunk.done = true;
    chunk.place = 1 + (70 << 20);
    chunk.size = 4097;
    chunk.window = 9;
    size_t size = dtorch__v1__bulk_chunk__pack(&chunk, packed);
    dt_node_chunk_t node;
    dt_client_chunk_t client;
    cr_assert(dt_node_chunk_read(packed, size, &node));
    cr_assert(node.head.transfer == 300 && node.head.offset == 1 << 20 &&
              node.head.crc32c == 0xfedcba98 && node.head.received == 12345 &&
              node.head.place == 70 << 20 && node.head.size == 4097 && node.head.window == 9 &&
              node.head.flags == (DT_CHANNEL_CHUNK_RESTART | DT_CHANNEL_CHUNK_PLACED));
    cr_assert(node.size == 3 && memcmp(node.data, data, 3) == 0 && node.total == 1 << 22 &&
              node.is_done && !node.error);
    cr_assert(dt_client_chunk_read(packed, size, &client));
    cr_assert(client.transfer == 300 && client.offset == 1 << 20 && client.crc32c == 0xfedcba98 &&
              client.received == 12345 && client.is_again && client.total == 1 << 22 &&
              client.data_bytes == 3 && memcmp(client.data, data, 3) == 0 && !client.error);
    for (size_t cut = 0; cut < size; cut++) { /* none may read outside */
        (void)dt_node_chunk_read(packed, cut, &node);
        (void)dt_client_chunk_read(packed, cut, &client);
    }
}
