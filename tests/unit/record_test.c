#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "wire/record.h"

TestSuite(record, .timeout = 60);

static uint8_t frame[DT_FRAME_BYTES_MAX];
static dt_record_t record; /* too large for comfort on a stack */

static size_t one(const dt_record_t *put)
{
    dt_frame_writer_t writer;
    dt_frame_begin(&writer, frame, sizeof frame, 7, 3);
    cr_assert(dt_record_put(&writer, put));
    cr_assert(writer.len - DT_FRAME_HEADER_BYTES <= dt_record_bound(put));
    return dt_frame_end(&writer, 0);
}

/* Read the only record of `frame` into `record`. */
static int read_one(dt_frame_reader_t *reader, size_t size)
{
    bool is_end;
    int error = dt_frame_open(reader, frame, size);
    if (!error)
        error = dt_record_next(reader, &record, &is_end);
    if (error)
        return error;
    return dt_record_next(reader, &(dt_record_t){0}, &is_end);
}

/* A frame around raw record bytes, with a right header. */
static size_t raw(const void *payload, size_t size, uint32_t count)
{
    dt_frame_writer_t writer;
    dt_frame_begin(&writer, frame, sizeof frame, 1, 1);
    memcpy(frame + DT_FRAME_HEADER_BYTES, payload, size);
    writer.len += size;
    writer.count = count;
    return dt_frame_end(&writer, 0);
}

Test(record, an_operator_of_two_inputs_takes_eleven_bytes_in_a_stream)
{
    dt_frame_writer_t writer;
    uint32_t count = 0;
    uint64_t next = 100000;
    dt_frame_begin(&writer, frame, DT_FRAME_FLUSH_BYTES, 1, 1);
    for (;; count++, next++) {
        const uint64_t in[] = {next - 900, next - 2}, out[] = {next};
        const dt_record_op_t op = {
            .signature = 300, .input_count = 2, .output_count = 1, .inputs = in, .outputs = out};
        if (!dt_record_put_op(&writer, &op))
            break;
    }
    cr_assert(count > 4000);
    cr_assert(le(sz, (writer.len - DT_FRAME_HEADER_BYTES) / count, 11),
              "%zu bytes for %u operators", writer.len, count);
}

Test(record, operators_survive_the_way_there_with_every_kind_of_scalar)
{
    dt_frame_reader_t reader = {0};
    const uint64_t in[] = {1, UINT64_MAX, 5}, out[] = {9, 12};
    const dt_value_t scalars[] = {{.tag = DT_VALUE_NONE},
                                  {.tag = DT_VALUE_TRUE},
                                  {.tag = DT_VALUE_INT, .number = INT64_MIN},
                                  {.tag = DT_VALUE_DOUBLE, .real = -0.0}};
    const dt_record_t put = {.kind = DT_RECORD_OP,
                             .op = {.signature = 77,
                                    .input_count = 3,
                                    .output_count = 2,
                                    .scalar_count = 4,
                                    .inputs = in,
                                    .outputs = out,
                                    .scalars = scalars}};
    cr_assert(eq(int, read_one(&reader, one(&put)), 0));
    cr_assert(eq(u64, record.sequence, 7));
    cr_assert(eq(u32, record.op.signature, 77));
    cr_assert(memcmp(record.op.inputs, in, sizeof in) == 0);
    cr_assert(memcmp(record.op.outputs, out, sizeof out) == 0);
    cr_assert(eq(i64, record.op.scalars[2].number, INT64_MIN));
    cr_assert(memcmp(&record.op.scalars[3].real, &scalars[3].real, 8) == 0);
    dt_frame_reader_fini(&reader);
}

Test(record, an_operator_with_more_than_64_inputs_becomes_a_long_one)
{
    dt_frame_reader_t reader = {0};
    uint64_t *in = malloc(20000 * sizeof *in);
    for (uint64_t i = 0; i < 20000; i++)
        in[i] = i * 3 + 1;
    const dt_record_t put = {
        .kind = DT_RECORD_OP,
        .op = {
            .signature = 1, .input_count = 20000, .output_count = 0, .inputs = in, .outputs = in}};
    cr_assert(eq(int, read_one(&reader, one(&put)), 0));
    cr_assert(eq(int, record.kind, DT_RECORD_OP_LONG));
    cr_assert(eq(u32, record.op.input_count, 20000));
    cr_assert(memcmp(record.op.inputs, in, 20000 * sizeof *in) == 0);
    free(in);
    dt_frame_reader_fini(&reader);
}

Test(record, a_record_that_does_not_fit_leaves_the_frame_as_it_was)
{
    dt_frame_writer_t writer;
    const uint64_t ids[] = {1, 2, 3};
    const dt_record_t put = {.kind = DT_RECORD_FREE, .ids = {.ids = ids, .count = 3}};
    dt_frame_begin(&writer, frame, DT_FRAME_HEADER_BYTES + 20, 1, 1);
    cr_assert(not(dt_record_put(&writer, &put)));
    cr_assert(eq(sz, writer.len, DT_FRAME_HEADER_BYTES));
    cr_assert(eq(sz, dt_frame_end(&writer, 0), 0));
}

Test(record, a_mesh_keeps_sizes_names_and_devices)
{
    dt_frame_reader_t reader = {0};
    const uint64_t odd[] = {4, 0, 9, 2};
    dt_record_t put = {.kind = DT_RECORD_DEF_MESH,
                       .mesh = {.id = 3,
                                .ndim = 2,
                                .vdev_count = 4,
                                .sizes = {2, 2},
                                .names = {"dp", "tp"},
                                .name_bytes = {2, 2},
                                .vdevs = odd}};
    cr_assert(eq(int, read_one(&reader, one(&put)), 0));
    cr_assert(memcmp(record.mesh.vdevs, odd, sizeof odd) == 0);
    cr_assert(memcmp(record.mesh.names[1], "tp", 2) == 0);
    const uint64_t row[] = {5, 6, 7, 8};
    put.mesh.vdevs = row;
    size_t size = one(&put);
    cr_assert(size < DT_FRAME_HEADER_BYTES + 16);
    cr_assert(eq(int, read_one(&reader, size), 0));
    cr_assert(memcmp(record.mesh.vdevs, row, sizeof row) == 0);
    const uint64_t twice[] = {5, 6, 5, 8};
    put.mesh.vdevs = twice;
    cr_assert(eq(int, read_one(&reader, one(&put)), DT_FRAME_E_DUP));
    dt_frame_reader_fini(&reader);
}

Test(record, uploads_carry_small_tensors_and_name_large_ones)
{
    dt_frame_reader_t reader = {0};
    const int64_t sizes[] = {2, 3};
    const uint8_t bytes[24] = {1, 2, 3};
    dt_record_t put = {.kind = DT_RECORD_UPLOAD,
                       .move = {.output = 4, .size = sizeof bytes, .bytes = bytes}};
    cr_assert(eq(int, dt_meta_set(&put.move.meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK));
    cr_assert(eq(int, read_one(&reader, one(&put)), 0));
    cr_assert(memcmp(record.move.bytes, bytes, sizeof bytes) == 0);
    cr_assert(dt_meta_equal(&record.move.meta, &put.move.meta));
    put.move.number = 17;
    put.move.bytes = NULL;
    put.move.offset = 8;
    put.move.size = 17;
    cr_assert(eq(int, read_one(&reader, one(&put)), DT_FRAME_E_RANGE));
    put.move.size = 16;
    cr_assert(eq(int, read_one(&reader, one(&put)), 0));
    cr_assert(eq(u64, record.move.number, 17));
    dt_frame_reader_fini(&reader);
}

Test(record, the_rest_of_the_kinds_survive_too)
{
    dt_frame_reader_t reader = {0};
    const dt_layout_t layout = {
        .mesh = 2,
        .ndim = 4,
        .placements = {{.kind = DT_PLACEMENT_SHARD, .dim = 1, .unit = 64, .groups = 2},
                       {.kind = DT_PLACEMENT_SHARD,
                        .dim = 2,
                        .unit = 1,
                        .groups = 1,
                        .order = 3 | DT_ORDER_FOLDED},
                       {.kind = DT_PLACEMENT_PARTIAL, .reduction = DT_REDUCTION_MAX},
                       {.kind = DT_PLACEMENT_REPLICATE}}};
    const uint64_t pairs[] = {0, 3, 7, 1};
    const uint8_t changes[] = {4, 0, DT_VALUE_INT, 10};
    const dt_record_t puts[] = {
        {.kind = DT_RECORD_FETCH, .move = {.tensor = 3, .number = 900}},
        {.kind = DT_RECORD_REDISTRIBUTE, .move = {.tensor = 3, .output = 4, .layout = layout}},
        {.kind = DT_RECORD_LOAD,
         .move = {.output = 5,
                  .layout = layout,
                  .uri = "file:///m.safetensors",
                  .uri_bytes = 21,
                  .name = "w",
                  .name_bytes = 1}},
        {.kind = DT_RECORD_SAVE,
         .move = {.tensor = 5, .uri = "x", .uri_bytes = 1, .name = "w", .name_bytes = 1}},
        {.kind = DT_RECORD_MARK,
         .note =
             {.what = DT_MARK_SOURCE, .value = 9, .text = "train.py:57 in loss", .text_bytes = 19}},
        {.kind = DT_RECORD_BEGIN, .note = {.what = 1}},
        {.kind = DT_RECORD_END, .ids = {.recording = 1, .ids = pairs, .count = 2}},
        {.kind = DT_RECORD_REPLAY,
         .replay = {.recording = 1,
                    .output = 8,
                    .slot_count = 2,
                    .pairs = pairs,
                    .change_count = 1,
                    .changes = changes,
                    .change_bytes = 4}},
        {.kind = DT_RECORD_SEED, .note = {.what = 1, .value = UINT64_MAX, .offset = 5}},
        {.kind = DT_RECORD_SET_OPTION, .note = {.what = 2, .text = "on", .text_bytes = 2}},
        {.kind = DT_RECORD_COPY_OUT, .move = {.tensor = 3, .number = 1}},
        {.kind = DT_RECORD_BIND, .note = {.what = 1, .value = 2}},
    };
    for (size_t i = 0; i < sizeof puts / sizeof puts[0]; i++) {
        uint8_t copy[2048];
        size_t size = one(&puts[i]);
        memcpy(copy, frame, size);
        cr_assert(eq(int, read_one(&reader, size), 0), "%s", dt_record_kind_name(puts[i].kind));
        cr_assert(eq(int, record.kind, puts[i].kind));
        /* what was read writes the same bytes, so every field came through */
        cr_assert(eq(sz, one(&record), size));
        cr_assert(memcmp(frame, copy, size) == 0, "%s", dt_record_kind_name(puts[i].kind));
    }
    dt_frame_reader_fini(&reader);
}

Test(record, an_unknown_kind_is_refused_and_an_optional_one_is_skipped)
{
    dt_frame_reader_t reader = {0};
    const uint8_t unknown[] = {21, 1, 0}, optional[] = {0x95, 1, 0};
    cr_assert(eq(int, read_one(&reader, raw(unknown, 3, 1)), DT_FRAME_E_KIND));
    cr_assert(eq(int, read_one(&reader, raw(optional, 3, 1)), 0));
    cr_assert(eq(int, record.kind, 0x95));
}

Test(record, malformed_bodies_are_refused_with_their_number)
{
    static const struct {
        uint8_t bytes[24];
        uint8_t size;
        int error;
    } cases[] = {
        {{3, 3, 0, 65, 0}, 5, DT_FRAME_E_LIMIT},                 /* 65 inputs in an OP */
        {{3, 3, 0, 0, 0x0f}, 5, DT_FRAME_E_LIMIT},               /* 15 scalars in an OP */
        {{3, 4, 0, 1, 0, 0x80}, 6, DT_FRAME_E_BODY},             /* varint without end */
        {{3, 5, 0, 1, 0, 0x80, 0}, 7, DT_FRAME_E_BODY},          /* not the shortest varint */
        {{3, 4, 0, 0, 1, 9}, 6, DT_FRAME_E_BODY},                /* scalar tag that is no number */
        {{3, 4, 0, 0, 0, 0}, 6, DT_FRAME_E_BODY},                /* body longer than its content */
        {{4, 6, 0, 0xff, 0xff, 3, 0, 0}, 8, DT_FRAME_E_BODY},    /* 65,535 inputs, none there */
        {{4, 6, 0, 0x80, 0x80, 4, 0, 0}, 8, DT_FRAME_E_LIMIT},   /* 65,536 inputs */
        {{5, 1, 0}, 3, DT_FRAME_E_LIMIT},                        /* FREE of nothing */
        {{5, 1, 65}, 3, DT_FRAME_E_LIMIT},                       /* FREE of 65 */
        {{2, 3, 0, 0, 0}, 5, DT_FRAME_E_LIMIT},                  /* mesh without dimensions */
        {{2, 3, 0, 9, 0}, 5, DT_FRAME_E_LIMIT},                  /* mesh of nine dimensions */
        {{2, 4, 0, 1, 0, 0}, 6, DT_FRAME_E_LIMIT},               /* mesh dimension of size 0 */
        {{11, 4, 5, 1, 1, 0xff}, 6, DT_FRAME_E_TEXT},            /* text that is not UTF-8 */
        {{11, 3, 9, 1, 0}, 5, DT_FRAME_E_LIMIT},                 /* mark of an unknown sort */
        {{7, 7, 0, 0, 12, 0, 0, 0, 0}, 9, DT_FRAME_E_LIMIT},     /* dtype that is none */
        {{7, 8, 0, 0, 6, 17, 0, 0, 0, 0}, 10, DT_FRAME_E_LIMIT}, /* 17 dimensions */
        {{7, 8, 0, 0, 6, 1, 4, 1, 0, 0}, 10, DT_FRAME_E_LIMIT}, /* channels-last of one dimension */
        {{7, 8, 0, 0, 6, 1, 4, 3, 0, 0}, 10, DT_FRAME_E_LIMIT}, /* layout that is none */
        {{7, 9, 0, 0, 6, 1, 4, 2, 1, 0, 0},
         11,
         DT_FRAME_E_BODY},                 /* explicit strides that are contiguous */
        {{3, 200, 1}, 3, DT_FRAME_E_BODY}, /* body longer than the frame */
        {{3, 128, 128, 128, 128, 128, 2}, 7, DT_FRAME_E_BODY}, /* 64 GiB announced */
        {{3, 128, 128, 128, 128, 128, 128, 128, 128, 64},
         10,
         DT_FRAME_E_BODY}, /* a body of 2^62 bytes */
        {{3, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1},
         11,
         DT_FRAME_E_BODY}, /* and of 2^63 */
        {{7, 18, 0, 1, 6, 2, 128, 128, 128, 128, 16, 128, 128, 128, 128, 16, 0, 0, 0, 0},
         20,
         DT_FRAME_E_LIMIT}, /* 2^64 elements */
    };
    dt_frame_reader_t reader = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert(eq(int, read_one(&reader, raw(cases[i].bytes, cases[i].size, 1)), cases[i].error),
                  "case %zu", i);
    dt_frame_reader_fini(&reader);
}

Test(record, damaged_headers_are_refused_with_their_number)
{
    static const struct {
        size_t at;
        uint8_t value;
        int error;
    } cases[] = {
        {0, 0, DT_FRAME_E_MAGIC}, {4, 2, DT_FRAME_E_VERSION}, {5, 4, DT_FRAME_E_FLAGS},
        {6, 31, DT_FRAME_E_SIZE}, {6, 36, DT_FRAME_E_SIZE},   {24, 9, DT_FRAME_E_SIZE},
        {8, 99, DT_FRAME_E_CRC},  {33, 1, DT_FRAME_E_CRC},
    };
    const uint64_t ids[] = {1};
    const dt_record_t put = {.kind = DT_RECORD_FREE, .ids = {.ids = ids, .count = 1}};
    dt_frame_reader_t reader = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size = one(&put);
        frame[cases[i].at] = cases[i].value;
        cr_assert(eq(int, dt_frame_open(&reader, frame, size), cases[i].error), "case %zu", i);
    }
    cr_assert(eq(int, dt_frame_open(&reader, frame, 31), DT_FRAME_E_SHORT));
    cr_assert(eq(int, dt_frame_open(&reader, frame, raw("\5\2\1\0", 4, 9)), DT_FRAME_E_COUNT));
    cr_assert(eq(int, read_one(&reader, raw("\5\2\1\0\5\2\1\0", 8, 1)), DT_FRAME_E_TRAILING));
    cr_assert(eq(int, read_one(&reader, raw("\5\2\1\0\5\2", 6, 2)), DT_FRAME_E_BODY));
}

Test(record, a_restamped_frame_is_whole_and_says_so)
{
    const uint64_t ids[] = {1};
    const dt_record_t put = {.kind = DT_RECORD_FREE, .ids = {.ids = ids, .count = 1}};
    dt_frame_reader_t reader = {0};
    size_t size = one(&put);
    dt_frame_restamp(frame, size, 9);
    cr_assert(eq(int, dt_frame_open(&reader, frame, size), 0));
    cr_assert(eq(u32, reader.header.epoch, 9));
    cr_assert(eq(int, reader.header.flags, DT_FRAME_RESENT));
}

Test(record, a_hundred_thousand_damaged_frames_end_in_an_error_or_a_sound_record)
{
    dt_frame_reader_t reader = {0};
    uint64_t state = 1;
    for (int round = 0; round < 100000; round++) {
        uint8_t bytes[48];
        bool is_end = false;
        size_t size = 2 + (size_t)round % 46;
        for (size_t i = 0; i < size; i++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            bytes[i] = (uint8_t)(state >> 56);
        }
        bytes[0] %= DT_RECORD_KIND_COUNT;
        bytes[1] = (uint8_t)(size - 2);
        if (dt_frame_open(&reader, frame, raw(bytes, size, 1)) == 0 &&
            dt_record_next(&reader, &record, &is_end) == 0)
            cr_assert(eq(int, record.kind, bytes[0]));
    }
    dt_frame_reader_fini(&reader);
}

Test(record, errors_have_names_and_the_record_in_the_text)
{
    dt_error_t err;
    cr_assert(eq(int, dt_frame_fail(&err, DT_FRAME_E_ID, 42, "OP"), DT_ERR_INVALID));
    cr_assert_str_eq(err.text, "record 42, OP: id that names nothing (E_ID)");
    cr_assert_str_eq(err.source, "wire");
    cr_assert(eq(i64, err.source_code, DT_FRAME_E_ID));
    cr_assert_str_eq(dt_frame_error_name(1), "E_UNKNOWN");
}
