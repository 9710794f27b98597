#include "shm/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DT_RING_MAGIC  UINT32_C(0x52475444) /* "DTGR" */
#define DT_RING_HEADER 8u
#define DT_RING_SKIP   UINT32_MAX /* kind of what fills the end of the bytes */

static uint64_t capacity_of(uint32_t mask)
{
    return (uint64_t)mask + 1;
}

static uint32_t message_max(uint32_t mask)
{
    return (uint32_t)(capacity_of(mask) / 4) - DT_RING_HEADER;
}

/* Bytes that a message takes, header and alignment included. */
static uint64_t taken(uint64_t size)
{
    return (DT_RING_HEADER + size + 7) & ~UINT64_C(7);
}

static bool is_capacity(uint32_t capacity)
{
    return capacity >= DT_RING_CAPACITY_MIN && capacity <= DT_RING_CAPACITY_MAX &&
           (capacity & (capacity - 1)) == 0;
}

/* ---- writer ---- */

dt_status_t dt_ring_writer_init(dt_ring_writer_t *ret_writer, void *memory, uint32_t capacity,
                                dt_error_t *err)
{
    dt_ring_body_t *body = memory;
    if (!is_capacity(capacity))
        return dt_fail(err, DT_ERR_INVALID, "dt", capacity, "a ring of %u bytes", capacity);
    memset(ret_writer, 0, sizeof *ret_writer);
    ret_writer->body = body;
    ret_writer->bytes = (uint8_t *)memory + DT_RING_HEAD_BYTES;
    ret_writer->mask = capacity - 1;
    body->capacity = capacity;
    body->magic = DT_RING_MAGIC;
    atomic_store_explicit(&body->tail, 0, memory_order_release);
    return DT_OK;
}

dt_status_t dt_ring_join(dt_ring_writer_t *writer, dt_ring_cursor_t *cursor, int wake,
                         uint32_t *ret_reader, dt_error_t *err)
{
    uint32_t at = 0;
    while (at < DT_RING_READERS_MAX && writer->readers[at].cursor)
        at++;
    if (at == DT_RING_READERS_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", at, "a ring has at most %u readers", at);
    writer->readers[at].cursor = cursor;
    writer->readers[at].head = writer->readers[at].start = writer->tail;
    writer->readers[at].wake = wake;
    atomic_store_explicit(&cursor->head, writer->tail, memory_order_release);
    if (at >= writer->reader_count)
        writer->reader_count = at + 1;
    *ret_reader = at;
    return DT_OK;
}

void dt_ring_leave(dt_ring_writer_t *writer, uint32_t reader)
{
    writer->readers[reader].cursor = NULL;
    while (writer->reader_count > 0 && !writer->readers[writer->reader_count - 1].cursor)
        writer->reader_count--;
}

/* Read all cursors anew. Returns the bytes that are free; a cursor that moved back or past what was
 * written is no cursor. */
static dt_status_t look(dt_ring_writer_t *writer, uint64_t *ret_free, uint32_t *ret_reader)
{
    uint64_t free_bytes = capacity_of(writer->mask);
    for (uint32_t i = 0; i < writer->reader_count; i++) {
        if (!writer->readers[i].cursor)
            continue;
        uint64_t head =
            atomic_load_explicit(&writer->readers[i].cursor->head, memory_order_acquire);
        if (head < writer->readers[i].head || head > writer->tail) {
            if (ret_reader)
                *ret_reader = i;
            return DT_ERR_PEER;
        }
        writer->readers[i].head = head;
        uint64_t left = capacity_of(writer->mask) - (writer->tail - head);
        if (left < free_bytes)
            free_bytes = left;
    }
    *ret_free = free_bytes;
    return DT_OK;
}

/* Bytes from the tail to the end of the bytes. */
static uint64_t to_end(const dt_ring_writer_t *writer)
{
    return capacity_of(writer->mask) - (writer->tail & writer->mask);
}

static void put_header(dt_ring_writer_t *writer, uint64_t at, uint32_t size, uint32_t kind)
{
    const uint32_t header[2] = {size, kind};
    memcpy(writer->bytes + (at & writer->mask), header, sizeof header);
}

dt_status_t dt_ring_reserve(dt_ring_writer_t *writer, size_t size, uint8_t **ret_bytes,
                            uint32_t *ret_reader)
{
    uint64_t free_bytes;
    if (size > message_max(writer->mask))
        return DT_ERR_LIMIT;
    uint64_t skipped = to_end(writer) < taken(size) ? to_end(writer) : 0;
    DT_TRY(look(writer, &free_bytes, ret_reader));
    if (free_bytes < skipped + taken(size))
        return DT_ERR_AGAIN;
    if (skipped) /* at least a header: everything is 8-byte aligned */
        put_header(writer, writer->tail, (uint32_t)skipped - DT_RING_HEADER, DT_RING_SKIP);
    writer->reserved = writer->tail + skipped;
    *ret_bytes = writer->bytes + (writer->reserved & writer->mask) + DT_RING_HEADER;
    return DT_OK;
}

void dt_ring_put(dt_ring_writer_t *writer, size_t size, uint32_t kind)
{
    put_header(writer, writer->reserved, (uint32_t)size, kind);
    writer->tail = writer->reserved + taken(size);
}

void dt_ring_kick(dt_ring_writer_t *writer)
{
    /* Against the reader's "asleep, then look": one of the two sees the other's store. */
    atomic_store_explicit(&writer->body->tail, writer->tail, memory_order_seq_cst);
    for (uint32_t i = 0; i < writer->reader_count; i++) {
        dt_ring_cursor_t *cursor = writer->readers[i].cursor;
        if (cursor && atomic_load_explicit(&cursor->is_asleep, memory_order_seq_cst) &&
            atomic_exchange_explicit(&cursor->is_asleep, 0, memory_order_seq_cst))
            dt_ring_wake(writer->readers[i].wake);
    }
}

void dt_ring_commit(dt_ring_writer_t *writer, size_t size, uint32_t kind)
{
    dt_ring_put(writer, size, kind);
    dt_ring_kick(writer);
}

dt_status_t dt_ring_write(dt_ring_writer_t *writer, uint32_t kind, const void *bytes, size_t size,
                          uint32_t *ret_reader)
{
    uint8_t *at;
    DT_TRY(dt_ring_reserve(writer, size, &at, ret_reader));
    if (size)
        memcpy(at, bytes, size);
    dt_ring_commit(writer, size, kind);
    return DT_OK;
}

size_t dt_ring_room(dt_ring_writer_t *writer)
{
    uint64_t free_bytes;
    if (look(writer, &free_bytes, NULL) != DT_OK)
        return 0;
    uint64_t end = to_end(writer);
    uint64_t piece = end >= free_bytes        ? free_bytes
                     : free_bytes - end > end ? free_bytes - end
                                              : end;
    if (piece < DT_RING_HEADER)
        return 0;
    uint64_t room = piece - DT_RING_HEADER;
    return room < message_max(writer->mask) ? room : message_max(writer->mask);
}

bool dt_ring_is_drained(dt_ring_writer_t *writer)
{
    uint64_t free_bytes;
    return look(writer, &free_bytes, NULL) == DT_OK && free_bytes == capacity_of(writer->mask);
}

void dt_ring_want_room(dt_ring_writer_t *writer)
{
    for (uint32_t i = 0; i < writer->reader_count; i++)
        if (writer->readers[i].cursor)
            atomic_store_explicit(&writer->readers[i].cursor->wants_room, 1, memory_order_seq_cst);
}

/* ---- reader ---- */

dt_status_t dt_ring_reader_init(dt_ring_reader_t *ret_reader, const void *body, size_t size,
                                dt_ring_cursor_t *cursor, int writer_wake, dt_error_t *err)
{
    const dt_ring_body_t *head = body;
    uint32_t capacity = size > DT_RING_HEAD_BYTES ? head->capacity : 0;
    if (!is_capacity(capacity) || dt_ring_body_bytes(capacity) > size ||
        head->magic != DT_RING_MAGIC)
        return dt_fail(err, DT_ERR_INVALID, "dt", capacity,
                       "not a ring, or one of %u bytes in a memory of %zu", capacity, size);
    *ret_reader = (dt_ring_reader_t){
        .body = head,
        .bytes = (const uint8_t *)body + DT_RING_HEAD_BYTES,
        .cursor = cursor,
        .head = atomic_load_explicit(&cursor->head, memory_order_acquire),
        .mask = capacity - 1,
        .writer_wake = writer_wake,
    };
    ret_reader->seen = ret_reader->next = ret_reader->head;
    return DT_OK;
}

static dt_status_t break_ring(dt_ring_reader_t *reader)
{
    reader->is_broken = true;
    return DT_ERR_PEER;
}

static dt_status_t fill(dt_ring_reader_t *reader)
{
    uint64_t tail = atomic_load_explicit(&reader->body->tail, memory_order_acquire);
    if (tail - reader->head > capacity_of(reader->mask) || tail % 8)
        return break_ring(reader);
    reader->seen = tail;
    return tail == reader->head ? DT_ERR_AGAIN : DT_OK;
}

dt_status_t dt_ring_peek(dt_ring_reader_t *reader, dt_ring_message_t *ret_message)
{
    if (reader->is_broken)
        return DT_ERR_PEER;
    for (;;) {
        uint32_t header[2];
        if (reader->seen == reader->head)
            DT_TRY(fill(reader));
        uint64_t at = reader->head & reader->mask;
        memcpy(header, reader->bytes + at, sizeof header);
        /* Copied once, so what is checked is what is used. */
        uint64_t size = taken(header[0]);
        if (size > reader->seen - reader->head || size > capacity_of(reader->mask) - at)
            return break_ring(reader);
        if (header[1] != DT_RING_SKIP) {
            if (header[0] > message_max(reader->mask))
                return break_ring(reader);
            *ret_message =
                (dt_ring_message_t){reader->bytes + at + DT_RING_HEADER, header[0], header[1]};
            reader->next = reader->head + size;
            return DT_OK;
        }
        if (size != capacity_of(reader->mask) - at)
            return break_ring(reader);
        reader->head += size;
    }
}

void dt_ring_pass(dt_ring_reader_t *reader)
{
    reader->head = reader->next;
    atomic_store_explicit(&reader->cursor->head, reader->head, memory_order_seq_cst);
    if (atomic_load_explicit(&reader->cursor->wants_room, memory_order_seq_cst) &&
        atomic_exchange_explicit(&reader->cursor->wants_room, 0, memory_order_seq_cst))
        dt_ring_wake(reader->writer_wake);
}

bool dt_ring_prepare_sleep(dt_ring_reader_t *reader)
{
    if (reader->is_broken)
        return false;
    if (reader->seen != reader->head)
        return true;
    atomic_store_explicit(&reader->cursor->is_asleep, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&reader->body->tail, memory_order_seq_cst) == reader->head)
        return false;
    dt_ring_cancel_sleep(reader);
    return true;
}

void dt_ring_cancel_sleep(dt_ring_reader_t *reader)
{
    atomic_store_explicit(&reader->cursor->is_asleep, 0, memory_order_relaxed);
}

/* ---- waking ---- */

dt_status_t dt_ring_wake_create(int *ret_fd, dt_error_t *err)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        int code = errno;
        return dt_fail(err, code == EMFILE || code == ENFILE ? DT_ERR_LIMIT : DT_ERR_NOMEM, "errno",
                       code, "eventfd: %s", strerror(code));
    }
    *ret_fd = fd;
    return DT_OK;
}

void dt_ring_wake(int fd)
{
    const uint64_t one = 1;
    if (fd >= 0 && write(fd, &one, sizeof one) < 0)
        return; /* full: it is readable, which is all that is wanted */
}

void dt_ring_wake_clear(int fd)
{
    uint64_t count;
    if (fd >= 0 && read(fd, &count, sizeof count) < 0)
        return; /* nothing came */
}
