#include "wire/recording.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "wire/record.h"

#define MAGIC       "DTORCHRC"
#define MAJOR       1u
#define MINOR       0u
#define HEAD_MAX    65536u
#define RESULT_HEAD 24u
#define CHUNK_HEAD  16u

static const struct {
    unsigned number;
    const char *name;
} kinds[] = {
#define X(name, number, text) {number, text},
    DT_RECORDING_KIND_MAP(X)
#undef X
};

static const char *known_kind(unsigned kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].number == kind)
            return kinds[i].name;
    return NULL;
}

const char *dt_recording_kind_name(unsigned kind)
{
    const char *name = known_kind(kind);
    return name ? name : "unknown";
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

/* ---- writing ---- */

struct dt_recording {
    int fd;
    dt_error_t failed; /* code DT_OK: not yet */
    size_t len;        /* of buffer */
    uint8_t buffer[DT_RECORDING_BUFFER_BYTES];
};

static dt_status_t status_of(int number)
{
    switch (number) {
    case ENOENT:
    case ENOTDIR:
        return DT_ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return DT_ERR_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return DT_ERR_LIMIT;
    case ENOMEM:
        return DT_ERR_NOMEM;
    default:
        return DT_ERR_INTERNAL;
    }
}

/* Give the first error of the file again. */
static dt_status_t failed(const dt_recording_t *recording, dt_error_t *err)
{
    if (err)
        *err = recording->failed;
    return recording->failed.code;
}

static dt_status_t write_all(dt_recording_t *recording, const uint8_t *bytes, size_t size,
                             dt_error_t *err)
{
    while (size > 0 && recording->failed.code == DT_OK) {
        ssize_t written = write(recording->fd, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            (void)dt_fail(&recording->failed, status_of(errno), "errno", errno,
                          "recording: cannot write: %s", strerror(errno));
            break;
        }
        bytes += written;
        size -= (size_t)written;
    }
    return failed(recording, err);
}

dt_status_t dt_recording_flush(dt_recording_t *recording, dt_error_t *err)
{
    size_t len = recording->len;
    recording->len = 0;
    return write_all(recording, recording->buffer, len, err);
}

static dt_status_t append(dt_recording_t *recording, const void *bytes, size_t size,
                          dt_error_t *err)
{
    if (recording->failed.code != DT_OK)
        return failed(recording, err);
    if (size > sizeof recording->buffer - recording->len)
        DT_TRY(dt_recording_flush(recording, err));
    if (size >= sizeof recording->buffer)
        return write_all(recording, bytes, size, err);
    if (size > 0)
        memcpy(recording->buffer + recording->len, bytes, size);
    recording->len += size;
    return DT_OK;
}

dt_status_t dt_recording_create(const char *path, int64_t wall_ms, dt_recording_t **ret_recording,
                                dt_error_t *err)
{
    uint8_t head[DT_RECORDING_HEAD_BYTES] = MAGIC;
    dt_recording_t *recording = calloc(1, sizeof *recording);
    if (!recording)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "recording %s: out of memory", path);
    recording->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
    /* Two sessions in one file would be neither: the lock comes before anything is cut off. */
    bool is_ours = recording->fd >= 0 && flock(recording->fd, LOCK_EX | LOCK_NB) == 0;
    if (!is_ours || (ftruncate(recording->fd, 0) != 0 && errno != EINVAL)) {
        int number = errno;
        if (recording->fd >= 0)
            (void)close(recording->fd);
        free(recording);
        return dt_fail(err, number == EWOULDBLOCK ? DT_ERR_EXISTS : status_of(number), "errno",
                       number, "recording %s: %s", path,
                       number == EWOULDBLOCK ? "another session writes it" : strerror(number));
    }
    put_le(head + 8, MAJOR, 2);
    put_le(head + 10, MINOR, 2);
    put_le(head + 12, sizeof head, 4);
    put_le(head + 16, (uint64_t)wall_ms, 8);
    put_le(head + 28, dt_crc32c(0, head, 28), 4);
    memcpy(recording->buffer, head, sizeof head);
    recording->len = sizeof head;
    *ret_recording = recording;
    return DT_OK;
}

struct piece {
    const void *bytes;
    size_t size;
};

/* An item whose content comes in two pieces. */
static dt_status_t add(dt_recording_t *recording, unsigned kind, int64_t at_ns, struct piece first,
                       struct piece second, dt_error_t *err)
{
    uint8_t item[DT_RECORDING_ITEM_BYTES] = {0};
    uint32_t crc;
    if (first.size > DT_RECORDING_CONTENT_MAX ||
        second.size > DT_RECORDING_CONTENT_MAX - first.size)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "recording: item of %zu bytes, at most %u",
                       first.size + second.size, DT_RECORDING_CONTENT_MAX);
    put_le(item, kind, 2);
    put_le(item + 4, first.size + second.size, 4);
    put_le(item + 8, at_ns > 0 ? (uint64_t)at_ns : 0, 8);
    crc = dt_crc32c(0, item, 16);
    crc = dt_crc32c(dt_crc32c(crc, first.bytes, first.size), second.bytes, second.size);
    put_le(item + 16, crc, 4);
    DT_TRY(append(recording, item, sizeof item, err));
    DT_TRY(append(recording, first.bytes, first.size, err));
    return append(recording, second.bytes, second.size, err);
}

dt_status_t dt_recording_add(dt_recording_t *recording, dt_recording_kind_t kind, int64_t at_ns,
                             const void *content, size_t size, dt_error_t *err)
{
    return add(recording, kind, at_ns, (struct piece){content, size}, (struct piece){"", 0}, err);
}

dt_status_t dt_recording_add_chunk(dt_recording_t *recording, int64_t at_ns,
                                   const dt_recording_chunk_t *chunk, dt_error_t *err)
{
    uint8_t head[CHUNK_HEAD];
    put_le(head, chunk->transfer, 8);
    put_le(head + 8, chunk->offset, 8);
    return add(recording, DT_RECORDING_CHUNK, at_ns, (struct piece){head, sizeof head},
               (struct piece){chunk->bytes, chunk->size}, err);
}

dt_status_t dt_recording_add_result(dt_recording_t *recording, int64_t at_ns,
                                    const dt_recording_result_t *result, dt_error_t *err)
{
    uint8_t head[RESULT_HEAD];
    uint8_t meta[DT_RECORD_META_BYTES];
    put_le(head, result->future, 8);
    put_le(head + 8, result->size_bytes, 8);
    put_le(head + 16, result->crc32c, 4);
    put_le(head + 20, (uint32_t)result->status, 4);
    if (result->status == DT_OK) {
        size_t meta_bytes = (size_t)(dt_record_put_meta(meta, &result->meta) - meta);
        return add(recording, DT_RECORDING_RESULT, at_ns, (struct piece){head, sizeof head},
                   (struct piece){meta, meta_bytes}, err);
    }
    size_t text_bytes =
        result->text_bytes < DT_RECORDING_TEXT_MAX ? result->text_bytes : DT_RECORDING_TEXT_MAX;
    while (text_bytes > 0 && text_bytes < result->text_bytes &&
           ((uint8_t)result->text[text_bytes] & 0xc0) == 0x80)
        text_bytes--; /* cut between characters */
    return add(recording, DT_RECORDING_RESULT, at_ns, (struct piece){head, sizeof head},
               (struct piece){result->text ? result->text : "", result->text ? text_bytes : 0},
               err);
}

dt_status_t dt_recording_close(dt_recording_t *recording, dt_error_t *err)
{
    dt_status_t status;
    if (!recording)
        return DT_OK;
    status = dt_recording_flush(recording, err);
    if (close(recording->fd) != 0 && status == DT_OK)
        status = dt_fail(err, status_of(errno), "errno", errno, "recording: cannot write: %s",
                         strerror(errno));
    free(recording);
    return status;
}

/* ---- reading ---- */

int dt_recording_open(dt_recording_reader_t *reader, const uint8_t *bytes, size_t size)
{
    *reader = (dt_recording_reader_t){.bytes = bytes, .size = size};
    if (size < DT_RECORDING_HEAD_BYTES)
        return DT_FRAME_E_SHORT;
    if (memcmp(bytes, MAGIC, 8) != 0)
        return DT_FRAME_E_MAGIC;
    if (get_le(bytes + 8, 2) != MAJOR)
        return DT_FRAME_E_VERSION;
    uint64_t head_bytes = get_le(bytes + 12, 4);
    if (head_bytes < DT_RECORDING_HEAD_BYTES || head_bytes > HEAD_MAX || head_bytes > size)
        return DT_FRAME_E_SIZE;
    uint32_t crc = dt_crc32c(dt_crc32c(0, bytes, 28), bytes + DT_RECORDING_HEAD_BYTES,
                             head_bytes - DT_RECORDING_HEAD_BYTES);
    if (get_le(bytes + 28, 4) != crc)
        return DT_FRAME_E_CRC;
    reader->at = head_bytes;
    reader->wall_ms = (int64_t)get_le(bytes + 16, 8);
    return 0;
}

int dt_recording_next(dt_recording_reader_t *reader, dt_recording_item_t *ret_item,
                      bool *ret_is_end)
{
    const uint8_t *at = reader->bytes + reader->at;
    size_t left = reader->size - reader->at;
    *ret_is_end = left == 0;
    if (left == 0)
        return 0;
    if (left < DT_RECORDING_ITEM_BYTES)
        return DT_FRAME_E_SHORT;
    dt_recording_item_t item = {
        .kind = (unsigned)get_le(at, 2),
        .at_ns = (int64_t)(get_le(at + 8, 8) & INT64_MAX),
        .content = at + DT_RECORDING_ITEM_BYTES,
        .size = get_le(at + 4, 4),
        .offset = reader->at,
        .number = reader->number + 1,
    };
    if (item.size > DT_RECORDING_CONTENT_MAX || get_le(at + 2, 2) != 0)
        return DT_FRAME_E_SIZE;
    if (item.size > left - DT_RECORDING_ITEM_BYTES)
        return DT_FRAME_E_SHORT;
    if (get_le(at + 16, 4) != dt_crc32c(dt_crc32c(0, at, 16), item.content, item.size))
        return DT_FRAME_E_CRC;
    if (!known_kind(item.kind) && !(item.kind & DT_RECORDING_KIND_OPTIONAL))
        return DT_FRAME_E_KIND;
    reader->at += DT_RECORDING_ITEM_BYTES + item.size;
    reader->number++;
    *ret_item = item;
    return 0;
}

int dt_recording_get_chunk(const dt_recording_item_t *item, dt_recording_chunk_t *ret_chunk)
{
    if (item->size < CHUNK_HEAD)
        return DT_FRAME_E_BODY;
    *ret_chunk = (dt_recording_chunk_t){
        .transfer = get_le(item->content, 8),
        .offset = get_le(item->content + 8, 8),
        .bytes = item->content + CHUNK_HEAD,
        .size = item->size - CHUNK_HEAD,
    };
    return 0;
}

int dt_recording_get_result(const dt_recording_item_t *item, dt_recording_result_t *ret_result)
{
    if (item->size < RESULT_HEAD)
        return DT_FRAME_E_BODY;
    dt_recording_result_t result = {
        .future = get_le(item->content, 8),
        .size_bytes = get_le(item->content + 8, 8),
        .crc32c = (uint32_t)get_le(item->content + 16, 4),
        .status = (int32_t)(uint32_t)get_le(item->content + 20, 4),
    };
    dt_cursor_t cursor = {.at = item->content + RESULT_HEAD, .end = item->content + item->size};
    if (result.status == DT_OK) {
        dt_record_get_meta(&cursor, &result.meta);
    } else {
        result.text_bytes = dt_cursor_left(&cursor);
        result.text = (const char *)dt_cursor_bytes(&cursor, result.text_bytes);
        if (result.text_bytes > DT_RECORDING_TEXT_MAX)
            return DT_FRAME_E_LIMIT;
    }
    if (!cursor.error && cursor.at != cursor.end)
        return DT_FRAME_E_BODY;
    if (!cursor.error)
        *ret_result = result;
    return cursor.error;
}
