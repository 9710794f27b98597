/* Recordings: any bytes are refused or give items within the file; contents are read within bounds.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
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

/* The input's bytes as the content of one sound item: its first byte is the kind. */
static void read_dressed(const uint8_t *data, size_t size)
{
    static uint8_t file[DT_RECORDING_HEAD_BYTES + DT_RECORDING_ITEM_BYTES + (64u << 10)];
    uint8_t *item = file + DT_RECORDING_HEAD_BYTES;
    if (size < 1 || size - 1 > 64u << 10)
        return;
    memset(file, 0, DT_RECORDING_HEAD_BYTES + DT_RECORDING_ITEM_BYTES);
    memcpy(file, "DTORCHRC", 8);
    put_le(file + 8, 1, 2);
    put_le(file + 12, DT_RECORDING_HEAD_BYTES, 4);
    put_le(file + 28, dt_crc32c(0, file, 28), 4);
    put_le(item, data[0], 2);
    put_le(item + 4, size - 1, 4);
    memcpy(item + DT_RECORDING_ITEM_BYTES, data + 1, size - 1);
    put_le(item + 16, dt_crc32c(dt_crc32c(0, item, 16), data + 1, size - 1), 4);
    read_items(file, DT_RECORDING_HEAD_BYTES + DT_RECORDING_ITEM_BYTES + size - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_items(data, size);
    read_dressed(data, size);
    return 0;
}
