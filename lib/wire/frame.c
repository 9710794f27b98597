#include "wire/frame.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/crc32c.h"

static const struct {
    int number;
    const char *name;
    const char *text;
} errors[] = {
#define X(name, number, text) {number, #name, text},
    DT_FRAME_ERROR_MAP(X)
#undef X
};

const char *dt_frame_error_name(int error)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].number == error)
            return errors[i].name + strlen("DT_FRAME_");
    return "E_UNKNOWN";
}

const char *dt_frame_error_text(int error)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].number == error)
            return errors[i].text;
    return "unknown error";
}

dt_status_t dt_frame_fail(dt_error_t *err, int error, uint64_t sequence, const char *what)
{
    dt_status_t status = error == DT_FRAME_E_NOMEM ? DT_ERR_NOMEM : DT_ERR_INVALID;
    return dt_fail(err, status, "wire", error, "record %" PRIu64 "%s%s: %s (%s)", sequence,
                   what ? ", " : "", what ? what : "", dt_frame_error_text(error),
                   dt_frame_error_name(error));
}

static void put_le(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static uint32_t checksum(const uint8_t *bytes, size_t size)
{
    return dt_crc32c(dt_crc32c(0, bytes, 28), bytes + 32, size - 32);
}

void dt_frame_begin(dt_frame_writer_t *writer, uint8_t *bytes, size_t cap, uint64_t first_sequence,
                    uint32_t epoch)
{
    *writer = (dt_frame_writer_t){.bytes = bytes,
                                  .cap = cap,
                                  .len = DT_FRAME_HEADER_BYTES,
                                  .first_sequence = first_sequence,
                                  .epoch = epoch};
}

size_t dt_frame_end(dt_frame_writer_t *writer, unsigned flags)
{
    uint8_t *bytes = writer->bytes;
    if (writer->count == 0)
        return 0;
    put_le(bytes, DT_FRAME_MAGIC, 4);
    bytes[4] = 1;
    bytes[5] = (uint8_t)flags;
    put_le(bytes + 6, DT_FRAME_HEADER_BYTES, 2);
    put_le(bytes + 8, writer->first_sequence, 8);
    put_le(bytes + 16, writer->epoch, 4);
    put_le(bytes + 20, writer->count, 4);
    put_le(bytes + 24, writer->len - DT_FRAME_HEADER_BYTES, 4);
    put_le(bytes + 28, checksum(bytes, writer->len), 4);
    return writer->len;
}

void dt_frame_restamp(uint8_t *bytes, size_t size, uint32_t epoch)
{
    bytes[5] |= DT_FRAME_RESENT;
    put_le(bytes + 16, epoch, 4);
    put_le(bytes + 28, checksum(bytes, size), 4);
}

int dt_frame_open(dt_frame_reader_t *reader, const uint8_t *bytes, size_t size)
{
    dt_frame_header_t *header = &reader->header;
    size_t header_bytes;
    if (size < DT_FRAME_HEADER_BYTES)
        return DT_FRAME_E_SHORT;
    if (get_le(bytes, 4) != DT_FRAME_MAGIC)
        return DT_FRAME_E_MAGIC;
    if (bytes[4] != 1)
        return DT_FRAME_E_VERSION;
    if (bytes[5] & ~DT_FRAME_FLAGS_ALL)
        return DT_FRAME_E_FLAGS;
    header_bytes = get_le(bytes + 6, 2);
    header->payload_bytes = (uint32_t)get_le(bytes + 24, 4);
    if (size > DT_FRAME_BYTES_MAX || header_bytes < DT_FRAME_HEADER_BYTES ||
        header_bytes % 8 != 0 || header_bytes > size ||
        header->payload_bytes != size - header_bytes)
        return DT_FRAME_E_SIZE;
    if (get_le(bytes + 28, 4) != checksum(bytes, size))
        return DT_FRAME_E_CRC;
    header->flags = bytes[5];
    header->first_sequence = get_le(bytes + 8, 8);
    header->epoch = (uint32_t)get_le(bytes + 16, 4);
    header->count = (uint32_t)get_le(bytes + 20, 4);
    if (header->count == 0 || header->count > header->payload_bytes / 2 ||
        header->first_sequence == 0 ||
        header->first_sequence + header->count < header->first_sequence)
        return DT_FRAME_E_COUNT;
    reader->cursor = (dt_cursor_t){.at = bytes + header_bytes, .end = bytes + size};
    reader->index = 0;
    reader->base = 0;
    return 0;
}

void dt_frame_reader_fini(dt_frame_reader_t *reader)
{
    free(reader->scratch);
    *reader = (dt_frame_reader_t){0};
}
