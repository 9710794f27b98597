/* Rings: what is written is read, in order, by all; and a peer that writes nonsense into the shared
 * memory gets DT_ERR_PEER and nothing else. */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/ring.h"

TestSuite(ring, .timeout = 60);

#define CAPACITY 4096u

typedef struct rig {
    uint8_t *memory;
    dt_ring_cursor_t cursors[2];
    dt_ring_writer_t writer;
    dt_ring_reader_t readers[2];
} rig_t;

static rig_t *rig_new(uint32_t readers)
{
    dt_error_t err = {0};
    rig_t *rig = calloc(1, sizeof *rig);
    uint32_t at;
    rig->memory = aligned_alloc(4096, dt_ring_body_bytes(CAPACITY));
    memset(rig->memory, 0, dt_ring_body_bytes(CAPACITY));
    cr_assert_eq(dt_ring_writer_init(&rig->writer, rig->memory, CAPACITY, &err), DT_OK);
    for (uint32_t i = 0; i < readers; i++) {
        cr_assert_eq(dt_ring_join(&rig->writer, &rig->cursors[i], -1, &at, &err), DT_OK);
        cr_assert_eq(dt_ring_reader_init(&rig->readers[i], rig->memory,
                                         dt_ring_body_bytes(CAPACITY), &rig->cursors[i], -1, &err),
                     DT_OK);
    }
    return rig;
}

static void rig_free(rig_t *rig)
{
    free(rig->memory);
    free(rig);
}

static void fill(uint8_t *bytes, size_t size, uint32_t seed)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(seed + i * 7);
}

static void expect_next(dt_ring_reader_t *reader, size_t size, uint32_t seed)
{
    dt_ring_message_t message;
    uint8_t wanted[CAPACITY];
    cr_assert_eq(dt_ring_peek(reader, &message), DT_OK);
    fill(wanted, size, seed);
    cr_assert_eq(message.size, size);
    cr_assert_eq(message.kind, seed);
    cr_assert_eq(memcmp(message.bytes, wanted, size), 0);
    dt_ring_pass(reader);
}

Test(ring, messages_of_all_sizes_come_in_order_to_each_reader)
{
    rig_t *rig = rig_new(2);
    uint8_t bytes[1024];
    uint32_t sizes[64];
    uint32_t written = 0;
    uint32_t read[2] = {0, 0};
    unsigned seed = 7;
    while (read[0] < 5000 || read[1] < 5000) {
        seed = seed * 1103515245u + 12345u;
        uint32_t size = (seed >> 8) % 1017;
        fill(bytes, size, written);
        if (written < 5000 && written - read[0] < 60 && written - read[1] < 60 &&
            dt_ring_write(&rig->writer, written, bytes, size, NULL) == DT_OK)
            sizes[written++ % 64] = size;
        uint32_t who = (seed >> 20) % 2;
        if (read[who] < written) {
            expect_next(&rig->readers[who], sizes[read[who] % 64], read[who]);
            read[who]++;
        }
    }
    cr_assert(dt_ring_is_drained(&rig->writer));
    rig_free(rig);
}

Test(ring, is_full_until_the_slowest_reader_has_passed)
{
    rig_t *rig = rig_new(2);
    uint8_t bytes[1000] = {0};
    uint32_t count = 0;
    while (dt_ring_write(&rig->writer, count, bytes, sizeof bytes, NULL) == DT_OK)
        count++;
    cr_assert_eq(count, 4);
    fill(bytes, sizeof bytes, 0);
    dt_ring_message_t message;
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_eq(dt_ring_peek(&rig->readers[0], &message), DT_OK);
        dt_ring_pass(&rig->readers[0]);
    }
    cr_assert_eq(dt_ring_write(&rig->writer, 0, bytes, 100, NULL), DT_ERR_AGAIN);
    dt_ring_leave(&rig->writer, 1);
    cr_assert_eq(dt_ring_write(&rig->writer, 0, bytes, sizeof bytes, NULL), DT_OK);
    rig_free(rig);
}

Test(ring, room_is_what_the_next_message_may_have)
{
    rig_t *rig = rig_new(1);
    uint8_t bytes[2048] = {0};
    unsigned seed = 3;
    for (int i = 0; i < 2000; i++) {
        size_t room = dt_ring_room(&rig->writer);
        uint8_t *at;
        if (room > 0)
            cr_assert_eq(dt_ring_reserve(&rig->writer, room, &at, NULL), DT_OK, "%zu", room);
        seed = seed * 1103515245u + 12345u;
        (void)!dt_ring_write(&rig->writer, 1, bytes, (seed >> 9) % 1000, NULL);
        dt_ring_message_t message;
        if ((seed >> 4) % 3 && dt_ring_peek(&rig->readers[0], &message) == DT_OK)
            dt_ring_pass(&rig->readers[0]);
    }
    rig_free(rig);
}

Test(ring, a_message_above_a_quarter_of_the_ring_is_refused)
{
    rig_t *rig = rig_new(1);
    uint8_t *at;
    cr_assert_eq(dt_ring_reserve(&rig->writer, CAPACITY / 4 - 7, &at, NULL), DT_ERR_LIMIT);
    cr_assert_eq(dt_ring_reserve(&rig->writer, CAPACITY / 4 - 8, &at, NULL), DT_OK);
    rig_free(rig);
}

Test(ring, a_reader_that_joins_sees_what_comes_after)
{
    rig_t *rig = rig_new(1);
    dt_error_t err = {0};
    uint32_t at;
    uint8_t bytes[8] = {0};
    cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, 8, NULL), DT_OK);
    cr_assert_eq(dt_ring_join(&rig->writer, &rig->cursors[1], -1, &at, &err), DT_OK);
    cr_assert_eq(dt_ring_reader_init(&rig->readers[1], rig->memory, dt_ring_body_bytes(CAPACITY),
                                     &rig->cursors[1], -1, &err),
                 DT_OK);
    dt_ring_message_t message;
    cr_assert_eq(dt_ring_peek(&rig->readers[1], &message), DT_ERR_AGAIN);
    cr_assert_eq(dt_ring_write(&rig->writer, 2, bytes, 8, NULL), DT_OK);
    cr_assert_eq(dt_ring_peek(&rig->readers[1], &message), DT_OK);
    cr_assert_eq(message.kind, 2);
    rig_free(rig);
}

static bool rings(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 1;
}

Test(ring, wakes_who_sleeps_once_and_nobody_else)
{
    rig_t *rig = rig_new(0);
    dt_error_t err = {0};
    int reader_wake;
    int writer_wake;
    uint32_t at;
    uint8_t bytes[1000] = {0};
    dt_ring_message_t message;
    cr_assert_eq(dt_ring_wake_create(&reader_wake, &err), DT_OK);
    cr_assert_eq(dt_ring_wake_create(&writer_wake, &err), DT_OK);
    cr_assert_eq(dt_ring_join(&rig->writer, &rig->cursors[0], reader_wake, &at, &err), DT_OK);
    cr_assert_eq(dt_ring_reader_init(&rig->readers[0], rig->memory, dt_ring_body_bytes(CAPACITY),
                                     &rig->cursors[0], writer_wake, &err),
                 DT_OK);
    cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, 8, NULL), DT_OK);
    cr_assert_not(rings(reader_wake), "it did not sleep");
    cr_assert(dt_ring_prepare_sleep(&rig->readers[0]), "a message is there");
    cr_assert_eq(dt_ring_peek(&rig->readers[0], &message), DT_OK);
    dt_ring_pass(&rig->readers[0]);
    cr_assert_not(dt_ring_prepare_sleep(&rig->readers[0]));
    cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, 8, NULL), DT_OK);
    cr_assert(rings(reader_wake));
    dt_ring_wake_clear(reader_wake);
    cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, 8, NULL), DT_OK);
    cr_assert_not(rings(reader_wake), "it is awake");
    while (dt_ring_write(&rig->writer, 1, bytes, sizeof bytes, NULL) == DT_OK)
        ;
    cr_assert_not(rings(writer_wake));
    dt_ring_want_room(&rig->writer);
    cr_assert_eq(dt_ring_peek(&rig->readers[0], &message), DT_OK);
    dt_ring_pass(&rig->readers[0]);
    cr_assert(rings(writer_wake));
    (void)close(reader_wake);
    (void)close(writer_wake);
    rig_free(rig);
}

/* ---- a writer that is not to be trusted ---- */

static dt_status_t peek_all(dt_ring_reader_t *reader, const uint8_t *memory)
{
    dt_ring_message_t message;
    dt_status_t status;
    for (int i = 0; i < 10000; i++) {
        status = dt_ring_peek(reader, &message);
        if (status != DT_OK)
            return status;
        cr_assert(message.bytes >= memory + DT_RING_HEAD_BYTES);
        cr_assert(message.bytes + message.size <= memory + DT_RING_HEAD_BYTES + CAPACITY);
        dt_ring_pass(reader);
    }
    return DT_OK;
}

Test(ring, positions_that_cannot_be_break_it_for_good)
{
    static const uint64_t tails[] = {4, CAPACITY + 8, UINT64_MAX, UINT64_MAX - 7, 1};
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        rig_t *rig = rig_new(1);
        dt_ring_message_t message;
        atomic_store(&rig->writer.body->tail, tails[i]);
        cr_assert_eq(dt_ring_peek(&rig->readers[0], &message), DT_ERR_PEER);
        atomic_store(&rig->writer.body->tail, 0);
        cr_assert_eq(dt_ring_peek(&rig->readers[0], &message), DT_ERR_PEER);
        cr_assert_not(dt_ring_prepare_sleep(&rig->readers[0]));
        rig_free(rig);
    }
}

Test(ring, random_bytes_never_lead_outside)
{
    unsigned seed = 11;
    for (int round = 0; round < 3000; round++) {
        rig_t *rig = rig_new(1);
        for (size_t i = 0; i < CAPACITY; i++) {
            seed = seed * 1103515245u + 12345u;
            rig->memory[DT_RING_HEAD_BYTES + i] = (seed >> 16) % 4 ? 0 : (uint8_t)(seed >> 18);
        }
        atomic_store(&rig->writer.body->tail, 8 * ((seed >> 8) % (CAPACITY / 8 + 1)));
        dt_status_t status = peek_all(&rig->readers[0], rig->memory);
        cr_assert(status == DT_ERR_PEER || status == DT_ERR_AGAIN);
        rig_free(rig);
    }
}

Test(ring, a_reader_that_moves_back_or_ahead_is_found)
{
    static const uint64_t heads[] = {0, 4096, UINT64_MAX};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        rig_t *rig = rig_new(2);
        uint8_t bytes[16] = {0};
        uint32_t bad = 9;
        dt_ring_message_t message;
        cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, sizeof bytes, NULL), DT_OK);
        cr_assert_eq(dt_ring_peek(&rig->readers[1], &message), DT_OK);
        dt_ring_pass(&rig->readers[1]);
        cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, sizeof bytes, NULL), DT_OK);
        atomic_store(&rig->cursors[1].head, heads[i]);
        cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, sizeof bytes, &bad), DT_ERR_PEER);
        cr_assert_eq(bad, 1);
        cr_assert_eq(dt_ring_room(&rig->writer), 0);
        dt_ring_leave(&rig->writer, 1);
        cr_assert_eq(dt_ring_write(&rig->writer, 1, bytes, sizeof bytes, &bad), DT_OK);
        rig_free(rig);
    }
}

Test(ring, a_head_that_is_no_ring_is_refused)
{
    rig_t *rig = rig_new(1);
    dt_error_t err = {0};
    dt_ring_reader_t reader;
    size_t size = dt_ring_body_bytes(CAPACITY);
    cr_assert_eq(dt_ring_reader_init(&reader, rig->memory, size - 1, &rig->cursors[0], -1, &err),
                 DT_ERR_INVALID);
    cr_assert_eq(dt_ring_reader_init(&reader, rig->memory, 64, &rig->cursors[0], -1, &err),
                 DT_ERR_INVALID);
    rig->writer.body->capacity = CAPACITY + 8;
    cr_assert_eq(dt_ring_reader_init(&reader, rig->memory, size, &rig->cursors[0], -1, &err),
                 DT_ERR_INVALID);
    rig->writer.body->capacity = CAPACITY;
    rig->writer.body->magic = 0;
    cr_assert_eq(dt_ring_reader_init(&reader, rig->memory, size, &rig->cursors[0], -1, &err),
                 DT_ERR_INVALID);
    rig_free(rig);
}
