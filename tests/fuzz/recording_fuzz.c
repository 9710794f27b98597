/* Recordings: any bytes are refused or give items within the file; contents are read within bounds.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "client/ctl/recorded.h"
#include "wire/recording.h"

static void put_le(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void read_items(const uint8_t *bytes, size_t size)
{
    dt_recording_reader_t reader;
    dt_recording_item_t item;
    dt_recording_chunk_t chunk;
    dt_recording_result_t result;
    bool is_end = false;
    if (dt_recording_open(&reader, bytes, size) != 0)
        return;
    while (dt_recording_next(&reader, &item, &is_end) == 0 && !is_end) {
        if (item.offset >= size || item.content + item.size > bytes + size)
            abort(); /* outside the file */
        if (dt_recording_get_chunk(&item, &chunk) == 0 && chunk.size > item.size)
            abort();
        if (dt_recording_get_result(&item, &result) == 0 && result.text_bytes > item.size)
            abort();
    }
}

static void print_items(const uint8_t *bytes, size_t size)
{
    dt_ctl_recorded_t recorded;
    dt_arena_t pool;
    dt_arena_init(&pool, DT_CTL_POOL_MAX);
    dt_ctl_recorded_init(&recorded, bytes, size, true);
    while (!recorded.damage.error && dt_ctl_recorded_next(&recorded, &pool))
        if (recorded.item.offset >= size)
            abort();
    dt_ctl_recorded_fini(&recorded);
    dt_arena_fini(&pool);
}

#define HEADS    (DT_RECORDING_HEAD_BYTES + DT_RECORDING_ITEM_BYTES)
#define FILE_MAX (64u << 10)

static uint8_t file[HEADS + FILE_MAX];

/* Put a right head and item header around `size` bytes that stand behind them. */
static void dress(unsigned kind, size_t size)
{
    uint8_t *item = file + DT_RECORDING_HEAD_BYTES;
    memset(file, 0, HEADS);
    memcpy(file, "DTORCHRC", 8);
    put_le(file + 8, 1, 2);
    put_le(file + 12, DT_RECORDING_HEAD_BYTES, 4);
    put_le(file + 28, dt_crc32c(0, file, 28), 4);
    put_le(item, kind, 2);
    put_le(item + 4, size, 4);
    put_le(item + 16, dt_crc32c(dt_crc32c(0, item, 16), file + HEADS, size), 4);
}

/* The input as the content of one sound item: its first byte is the kind. Of a FRAME it is the
 * records, the second byte their number. */
static void read_dressed(const uint8_t *data, size_t size)
{
    size_t used = size - 1;
    if (size < 3 || size > FILE_MAX - DT_FRAME_HEADER_BYTES)
        return;
    if (data[0] == DT_RECORDING_FRAME) {
        dt_frame_writer_t writer;
        dt_frame_begin(&writer, file + HEADS, FILE_MAX, 1, 1);
        memcpy(writer.bytes + writer.len, data + 2, size - 2);
        writer.len += size - 2;
        writer.count = data[1] ? data[1] : 1;
        used = dt_frame_end(&writer, 0);
    } else {
        memcpy(file + HEADS, data + 1, used);
    }
    dress(data[0], used);
    read_items(file, HEADS + used);
    print_items(file, HEADS + used);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_items(data, size);
    print_items(data, size);
    read_dressed(data, size);
    return 0;
}
