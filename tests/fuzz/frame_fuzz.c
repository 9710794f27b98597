/* Frames and signatures: any bytes are either refused or give records that can be written again. */
#include <stdlib.h>
#include <string.h>

#include "wire/signature.h"

/* Give the input a right magic, sizes and checksum, else nothing behind the checksum is ever tried.
 */
static size_t dress(uint8_t *frame, const uint8_t *data, size_t size)
{
    dt_frame_writer_t writer;
    if (size < 3)
        return 0;
    dt_frame_begin(&writer, frame, DT_FRAME_BYTES_MAX, 1, 1);
    memcpy(frame + DT_FRAME_HEADER_BYTES, data + 1, size - 1);
    writer.len += size - 1;
    writer.count = data[0] ? data[0] : 1;
    return dt_frame_end(&writer, 0);
}

static void try_signature(const dt_record_t *record)
{
    dt_arena_t arena;
    dt_buf_t buf;
    dt_signature_t *signature = NULL;
    dt_cursor_t cursor = {.at = record->definition.body,
                          .end = record->definition.body + record->definition.body_bytes};
    dt_arena_init(&arena, 32u << 20);
    dt_buf_init(&buf, 1u << 20);
    if (dt_signature_decode(&cursor, &arena, &signature) == 0) {
        size_t used = (size_t)(cursor.at - record->definition.body);
        if (dt_signature_encode(signature, &buf, NULL) != DT_OK || buf.len != used ||
            memcmp(buf.data, record->definition.body, used) != 0)
            abort(); /* not one form for one signature */
        dt_buf_reset(&buf);
        if (dt_signature_print(signature, &buf) != DT_OK)
            dt_buf_reset(&buf); /* text longer than the buffer: refused, not wrong */
    }
    dt_buf_fini(&buf);
    dt_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t frame[DT_FRAME_BYTES_MAX], again[DT_FRAME_BYTES_MAX];
    static dt_record_t record;
    dt_frame_reader_t reader = {0};
    dt_frame_writer_t writer;
    bool is_end = false;
    if (size > DT_FRAME_BYTES_MAX - DT_FRAME_HEADER_BYTES)
        return 0;
    (void)dt_frame_open(&reader, data, size);
    size = dress(frame, data, size);
    dt_frame_begin(&writer, again, sizeof again, 1, 1);
    if (size && dt_frame_open(&reader, frame, size) == 0)
        while (dt_record_next(&reader, &record, &is_end) == 0 && !is_end) {
            if (record.kind == DT_RECORD_DEF_SIG || record.kind == DT_RECORD_DEF_PLAN)
                try_signature(&record);
            if (record.kind < DT_RECORD_KIND_COUNT)
                (void)dt_record_put(&writer, &record);
        }
    dt_frame_reader_fini(&reader);
    return 0;
}
