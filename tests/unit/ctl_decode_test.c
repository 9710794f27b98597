#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "dtorch/v1/session.pb-c.h"
#include "wire/recording.h"
#include "wire/signature.h"
#include "wire/wire.h"

/* A recorded session: two uploads, an operator with a changing number, one in place, a fetch. */
static char path[256];
static dt_record_t record; /* too large for comfort on a stack */
static char *out, *err;
static int code;

static void start(void)
{
    const char *base = secure_getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%s/dtorch-decode-XXXXXX", base ? base : "/tmp");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    (void)close(fd);
}

static void stop(void)
{
    (void)unlink(path);
    free(out);
    free(err);
}

TestSuite(ctl_decode, .init = start, .fini = stop, .timeout = 60);

/* ---- making a recording ---- */

static dt_signature_tensor_t tensor(uint8_t alias, int64_t rows, int64_t columns)
{
    const int64_t sizes[] = {rows, columns};
    dt_signature_tensor_t made = {.alias = alias};
    cr_assert_eq(dt_meta_set(&made.meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK);
    return made;
}

static void put(dt_frame_writer_t *writer)
{
    cr_assert(dt_record_put(writer, &record));
}

static void put_signature(dt_frame_writer_t *writer, uint32_t id, const dt_signature_t *sig)
{
    dt_buf_t buf;
    dt_error_t error;
    dt_buf_init(&buf, DT_SIGNATURE_BYTES_MAX);
    cr_assert_eq(dt_signature_encode(sig, &buf, &error), DT_OK, "%s", error.text);
    record = (dt_record_t){.kind = DT_RECORD_DEF_SIG};
    record.definition.id = id;
    record.definition.body = buf.data;
    record.definition.body_bytes = (uint32_t)buf.len;
    put(writer);
    dt_buf_fini(&buf);
}

static void put_signatures(dt_frame_writer_t *writer)
{
    const dt_value_t two[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}};
    const dt_value_t scaled[] = {
        {.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_DYNAMIC}};
    const dt_signature_tensor_t mm_in[] = {tensor(0, 4, 3), tensor(0, 3, 2)};
    const dt_signature_tensor_t mm_out[] = {tensor(DT_ALIAS_FRESH, 4, 2)};
    const dt_signature_tensor_t add_in[] = {tensor(0, 4, 2), tensor(0, 4, 2)};
    const dt_signature_tensor_t add_out[] = {tensor(DT_ALIAS_IN_PLACE, 4, 2)};
    put_signature(writer, 0,
                  &(dt_signature_t){.name = "aten::mm",
                                    .arg_count = 2,
                                    .input_count = 2,
                                    .output_count = 1,
                                    .id_count = 1,
                                    .args = two,
                                    .inputs = mm_in,
                                    .outputs = mm_out});
    put_signature(writer, 1,
                  &(dt_signature_t){.name = "aten::add_.Tensor",
                                    .arg_count = 3,
                                    .input_count = 2,
                                    .output_count = 1,
                                    .dynamic_count = 1,
                                    .args = scaled,
                                    .inputs = add_in,
                                    .outputs = add_out});
}

static void put_upload(dt_frame_writer_t *writer, uint64_t id, int64_t rows, int64_t columns,
                       uint64_t transfer)
{
    static const uint8_t zeroes[48];
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    record.move.output = id;
    record.move.number = transfer;
    record.move.meta = tensor(0, rows, columns).meta;
    record.move.size = (uint64_t)(rows * columns) * 4;
    record.move.bytes = transfer ? NULL : zeroes;
    put(writer);
}

static void put_work(dt_frame_writer_t *writer)
{
    const uint64_t mm_in[] = {1, 2}, mm_out[] = {3}, add_in[] = {3, 3};
    const dt_value_t half = {.tag = DT_VALUE_DOUBLE, .real = 0.5};
    put_upload(writer, 1, 4, 3, 0);
    put_upload(writer, 2, 3, 2, 9);
    cr_assert(dt_record_put_op(writer, &(dt_record_op_t){.signature = 0,
                                                         .input_count = 2,
                                                         .output_count = 1,
                                                         .inputs = mm_in,
                                                         .outputs = mm_out}));
    cr_assert(dt_record_put_op(writer, &(dt_record_op_t){.signature = 1,
                                                         .input_count = 2,
                                                         .scalar_count = 1,
                                                         .inputs = add_in,
                                                         .scalars = &half}));
    record = (dt_record_t){.kind = DT_RECORD_FETCH};
    record.move.tensor = 3;
    record.move.number = 1;
    put(writer);
    record = (dt_record_t){.kind = DT_RECORD_MARK};
    record.note.what = DT_MARK_STEP;
    record.note.value = 7;
    put(writer);
    record = (dt_record_t){.kind = DT_RECORD_FREE};
    record.ids.ids = mm_in;
    record.ids.count = 2;
    put(writer);
}

static void add_hello(dt_recording_t *recording)
{
    Dtorch__V1__SessionHello hello = DTORCH__V1__SESSION_HELLO__INIT;
    char program[] = "mat\033mul", build[] = "1.2";
    uint8_t *bytes;
    size_t size;
    hello.program = program;
    hello.build = build;
    hello.device_count = 1;
    cr_assert_eq(dt_wire_pack_new(&hello.base, &bytes, &size), DT_OK);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_HELLO, 0, bytes, size, NULL), DT_OK);
    free(bytes);
}

/* Write the file; `damage` is done to the second frame's bytes before they are recorded. */
static void record_session(void (*damage)(uint8_t *frame, size_t size))
{
    static uint8_t frame[DT_FRAME_BYTES_MAX];
    dt_frame_writer_t writer;
    dt_recording_t *recording;
    dt_recording_result_t result = {.future = 1, .size_bytes = 32, .crc32c = 0xc0ffee};
    const dt_recording_chunk_t chunk = {.transfer = 9, .bytes = (const uint8_t *)"123", .size = 3};
    result.meta = tensor(0, 4, 2).meta;
    cr_assert_eq(dt_recording_create(path, 1796000000123, &recording, NULL), DT_OK);
    add_hello(recording);
    dt_frame_begin(&writer, frame, sizeof frame, 1, 3);
    put_signatures(&writer);
    size_t size = dt_frame_end(&writer, 0);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_FRAME, 1000000, frame, size, NULL),
                 DT_OK);
    dt_frame_begin(&writer, frame, sizeof frame, 3, 3);
    put_work(&writer);
    size = dt_frame_end(&writer, DT_FRAME_SYNC);
    if (damage)
        damage(frame, size);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_FRAME, 2000000, frame, size, NULL),
                 DT_OK);
    cr_assert_eq(dt_recording_add_chunk(recording, 2100000, &chunk, NULL), DT_OK);
    cr_assert_eq(dt_recording_add_result(recording, 3000000, &result, NULL), DT_OK);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_END, 4000000, "", 0, NULL), DT_OK);
    cr_assert_eq(dt_recording_close(recording, NULL), DT_OK);
}

/* ---- running ---- */

/* Run "dtorchctl diag decode FILE" with up to two more words. */
static void run(const char *more, const char *last)
{
    char words[5][256] = {"dtorchctl", "diag", "decode"};
    char *argv[7] = {words[0], words[1], words[2], path};
    int argc = 4;
    size_t size;
    dt_ctl_t ctl;
    const char *extra[] = {more, last};
    for (size_t i = 0; i < 2 && extra[i]; i++) {
        (void)snprintf(words[3 + i], sizeof words[0], "%s", extra[i]);
        argv[argc++] = words[3 + i];
    }
    free(out);
    free(err);
    out = err = NULL;
    FILE *out_file = open_memstream(&out, &size), *err_file = open_memstream(&err, &size);
    cr_assert(out_file && err_file);
    code = dt_ctl_init(&ctl, argc, argv, out_file, err_file);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_run(&ctl);
    dt_ctl_fini(&ctl);
    (void)fclose(out_file);
    (void)fclose(err_file);
}

static void contains(const char *text, const char *wanted)
{
    cr_assert(strstr(text, wanted) != NULL, "no \"%s\" in:\n%s", wanted, text);
}

Test(ctl_decode, shows_each_record_with_its_operator_and_inputs)
{
    record_session(NULL);
    run("--utc", NULL);
    cr_assert_eq(code, DT_CTL_EXIT_OK, "%s", err);
    cr_assert_str_eq(
        out,
        "SEQUENCE  KIND      WHAT\n"
        "       -  HELLO     program \"mat\\x1bmul\", 1 device, build 1.2\n"
        "       1  DEF_SIG   s0 aten::mm(T, T) [float32 (4, 3), float32 (3, 2)] -> [float32 (4, "
        "2)]\n"
        "       2  DEF_SIG   s1 aten::add_.Tensor(T, T, dynamic) [float32 (4, 2), float32 (4, 2)] "
        "-> [in place of input 0: float32 (4, 2)]\n"
        "       3  UPLOAD    t1 float32 (4, 3), 48 bytes here\n"
        "       4  UPLOAD    t2 float32 (3, 2), 24 bytes by transfer 9\n"
        "       5  OP        aten::mm(t1 float32 (4, 3), t2 float32 (3, 2)) -> t3 float32 (4, 2)\n"
        "       6  OP        aten::add_.Tensor(t3 float32 (4, 2), t3 float32 (4, 2); 0.5) -> t3 "
        "float32 (4, 2) in place\n"
        "       7  FETCH     t3 as future 1\n"
        "       8  MARK      step 7\n"
        "       9  FREE      t1 t2\n"
        "       -  CHUNK     transfer 9, 3 bytes from 0\n"
        "       -  RESULT    future 1: float32 (4, 2), 32 bytes, checksum 00c0ffee\n"
        "       -  END       -\n"
        "9 records in 2 frames, recorded 2026-11-30T00:53:20.123Z.\n",
        "%s", out);
}

Test(ctl_decode, gives_json_with_the_operators_parts)
{
    record_session(NULL);
    run("-o", "json");
    cr_assert_eq(code, DT_CTL_EXIT_OK, "%s", err);
    contains(out, "{\"schema\":\"dtorch/v1\",\"kind\":\"Recording\",\"started_wall_ms\":"
                  "1796000000123,\"items\":[\n{\"item\":1,");
    contains(out, "\"op\":{\"signature\":0,\"name\":\"aten::mm\",\"inputs\":[{\"id\":1,\"meta\":"
                  "\"float32 (4, 3)\"},{\"id\":2,\"meta\":\"float32 (3, 2)\"}],\"outputs\":[{"
                  "\"id\":3,\"meta\":\"float32 (4, 2)\"}],\"scalars\":[]}");
    contains(out, "\"alias\":\"in place of 0\"}],\"scalars\":[\"0.5\"]}");
    contains(out, "\"ids\":[1,2]");
    cr_assert_str_eq(out + strlen(out) - 3, "]}\n", "%s", out);
}

Test(ctl_decode, filters_limits_and_chooses_fields)
{
    record_session(NULL);
    run("--filter=operator~mm", "-ocsv");
    cr_assert_eq(code, DT_CTL_EXIT_OK, "%s", err);
    contains(out, ",OP,\"aten::mm(");
    cr_assert_null(strstr(out, "add_"), "%s", out);
    run("-n2", "-pkind");
    contains(out, "KIND\nHELLO\nDEF_SIG\n1 record in 1 frame, recorded ");
}

Test(ctl_decode, shows_frames_with_verbose)
{
    record_session(NULL);
    run("-v", NULL);
    contains(out, "FRAME     7 records from 3, epoch 3, ");
    contains(out, " bytes, SYNC\n");
}

static void flip(uint8_t *frame, size_t size)
{
    frame[size - 1] ^= 1;
}

/* A frame of one record that names a signature which nobody defined. */
static void name_nothing(uint8_t *frame, size_t size)
{
    dt_frame_writer_t writer;
    static const uint8_t op[] = {DT_RECORD_OP, 3, 77, 0, 0};
    dt_frame_begin(&writer, frame, size, 3, 3);
    memcpy(frame + DT_FRAME_HEADER_BYTES, op, sizeof op);
    memset(frame + DT_FRAME_HEADER_BYTES + sizeof op, 0, size - DT_FRAME_HEADER_BYTES - sizeof op);
    frame[DT_FRAME_HEADER_BYTES + sizeof op] = DT_RECORD_NOP;
    frame[DT_FRAME_HEADER_BYTES + sizeof op + 1] =
        (uint8_t)(size - DT_FRAME_HEADER_BYTES - sizeof op - 2);
    writer.len = size;
    writer.count = 2;
    cr_assert_eq(dt_frame_end(&writer, 0), size);
}

Test(ctl_decode, prints_what_is_whole_before_the_damage_and_names_the_place)
{
    record_session(flip);
    run(NULL, NULL);
    cr_assert_eq(code, DT_CTL_EXIT_DATA);
    contains(out, "       2  DEF_SIG");
    cr_assert_null(strstr(out, "UPLOAD"), "%s", out);
    contains(err, "(item 3): checksum differs (E_CRC); what is whole before it was read");
    run("-o", "json");
    cr_assert_eq(code, DT_CTL_EXIT_DATA);
    contains(out, "],\"damage\":{\"error\":\"E_CRC\",\"offset\":");
}

Test(ctl_decode, names_the_record_that_cannot_be)
{
    record_session(name_nothing);
    run(NULL, NULL);
    cr_assert_eq(code, DT_CTL_EXIT_DATA);
    contains(err, "(item 3), record 3: signature, plan or recording that is not defined (E_SIG)");
}

Test(ctl_decode, of_a_cut_file_says_where_it_ends)
{
    record_session(NULL);
    cr_assert_eq(truncate(path, 200), 0);
    run(NULL, NULL);
    cr_assert_eq(code, DT_CTL_EXIT_DATA);
    contains(err, "E_SHORT");
    cr_assert_eq(truncate(path, 10), 0);
    run(NULL, NULL);
    contains(err, ": at byte 0: shorter than a header (E_SHORT)");
    cr_assert_eq(truncate(path, 0), 0);
    run(NULL, NULL);
    cr_assert_eq(code, DT_CTL_EXIT_DATA);
}

Test(ctl_decode, of_no_file_or_another_file_is_told)
{
    FILE *file = fopen(path, "we");
    cr_assert(file != NULL);
    (void)fprintf(file, "%64s", "not a recording");
    (void)fclose(file);
    run(NULL, NULL);
    cr_assert_eq(code, DT_CTL_EXIT_DATA);
    contains(err, "E_MAGIC");
    (void)unlink(path);
    run(NULL, NULL);
    cr_assert_eq(code, DT_CTL_EXIT_NOT_FOUND);
    contains(err, "No such file");
}
