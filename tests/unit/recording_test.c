#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf/env.h"
#include "wire/frame.h"
#include "wire/recording.h"

/* A file with one item of each form, read back into memory. */
static char path[256];
static uint8_t bytes[1u << 20];
static size_t size;
static dt_recording_reader_t reader;
static dt_recording_item_t item;
static bool is_end;

static void start(void)
{
    const char *folder = dt_env_get("TMPDIR");
    (void)snprintf(path, sizeof path, "%s/dtorch-recording-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    (void)close(fd);
}

static void stop(void)
{
    (void)unlink(path);
}

TestSuite(recording, .timeout = 60, .init = start, .fini = stop);

static void load(void)
{
    FILE *file = fopen(path, "rbe");
    cr_assert(file != NULL);
    size = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
}

static dt_recording_t *create(void)
{
    dt_recording_t *recording;
    dt_error_t error;
    cr_assert_eq(dt_recording_create(path, 1796000000123, &recording, &error), DT_OK, "%s",
                 error.text);
    return recording;
}

static void write_all_forms(void)
{
    const int64_t sizes[] = {4, 3};
    dt_recording_t *recording = create();
    dt_recording_result_t good = {.future = 1, .size_bytes = 48, .crc32c = 0xdeadbeef};
    const dt_recording_result_t bad = {.future = 2,
                                       .status = DT_ERR_INVALID,
                                       .text = "IndexError: no",
                                       .text_bytes = strlen("IndexError: no")};
    const dt_recording_chunk_t chunk = {
        .transfer = 9, .offset = 1u << 20, .bytes = (const uint8_t *)"abc", .size = 3};
    cr_assert_eq(dt_meta_set(&good.meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_FRAME, 5, "frame", 5, NULL), DT_OK);
    cr_assert_eq(dt_recording_add_chunk(recording, 6, &chunk, NULL), DT_OK);
    cr_assert_eq(dt_recording_add_result(recording, 7, &good, NULL), DT_OK);
    cr_assert_eq(dt_recording_add_result(recording, 8, &bad, NULL), DT_OK);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_END, 9, "", 0, NULL), DT_OK);
    cr_assert_eq(dt_recording_close(recording, NULL), DT_OK);
    load();
}

static int next(void)
{
    return dt_recording_next(&reader, &item, &is_end);
}

Test(recording, is_read_as_it_was_written)
{
    dt_recording_chunk_t chunk;
    dt_recording_result_t result;
    write_all_forms();
    cr_assert_eq(dt_recording_open(&reader, bytes, size), 0);
    cr_assert_eq(reader.wall_ms, 1796000000123);
    cr_assert(next() == 0 && !is_end);
    cr_assert(item.kind == DT_RECORDING_FRAME && item.size == 5 && item.at_ns == 5);
    cr_assert(item.number == 1 && item.offset == DT_RECORDING_HEAD_BYTES);
    cr_assert(next() == 0 && dt_recording_get_chunk(&item, &chunk) == 0);
    cr_assert(chunk.transfer == 9 && chunk.offset == 1u << 20 && chunk.size == 3);
    cr_assert_eq(memcmp(chunk.bytes, "abc", 3), 0);
    cr_assert(next() == 0 && dt_recording_get_result(&item, &result) == 0);
    cr_assert(result.future == 1 && result.size_bytes == 48 && result.crc32c == 0xdeadbeef);
    cr_assert(result.meta.ndim == 2 && result.meta.sizes[1] == 3);
    cr_assert(next() == 0 && dt_recording_get_result(&item, &result) == 0);
    cr_assert(result.status == DT_ERR_INVALID && result.text_bytes == 14);
    cr_assert(next() == 0 && item.kind == DT_RECORDING_END && item.size == 0);
    cr_assert(next() == 0 && is_end);
}

Test(recording, is_for_its_owner_only)
{
    struct stat status;
    (void)unlink(path);
    cr_assert_eq(dt_recording_close(create(), NULL), DT_OK);
    cr_assert_eq(stat(path, &status), 0);
    cr_assert_eq(status.st_mode & 0777, 0600);
}

Test(recording, cut_anywhere_gives_what_is_whole_before_the_cut)
{
    write_all_forms();
    for (size_t cut = 0; cut < size; cut++) {
        size_t whole = 0;
        int error = dt_recording_open(&reader, bytes, cut);
        cr_assert_eq(error, cut < DT_RECORDING_HEAD_BYTES ? DT_FRAME_E_SHORT : 0);
        while (error == 0 && (error = next()) == 0 && !is_end)
            whole++;
        cr_assert(error == DT_FRAME_E_SHORT || (error == 0 && is_end), "cut at %zu: %d", cut,
                  error);
        cr_assert(whole == reader.number && whole < 5);
    }
}

Test(recording, damaged_anywhere_is_noticed)
{
    write_all_forms();
    for (size_t at = 0; at < size; at++) {
        bytes[at] ^= 0x10;
        int error = dt_recording_open(&reader, bytes, size);
        while (error == 0 && (error = next()) == 0 && !is_end)
            ;
        cr_assert_neq(error, 0, "byte %zu", at);
        bytes[at] ^= 0x10;
    }
}

/* Write an item of a kind that this version does not know. */
static void write_kind(unsigned kind)
{
    dt_recording_t *recording = create();
    cr_assert_eq(dt_recording_add(recording, (dt_recording_kind_t)kind, 1, "x", 1, NULL), DT_OK);
    cr_assert_eq(dt_recording_close(recording, NULL), DT_OK);
    load();
    cr_assert_eq(dt_recording_open(&reader, bytes, size), 0);
}

Test(recording, of_an_unknown_kind_is_refused_unless_the_kind_may_be_skipped)
{
    write_kind(99);
    cr_assert_eq(next(), DT_FRAME_E_KIND);
    cr_assert_eq(reader.at, DT_RECORDING_HEAD_BYTES);
    write_kind(99 | DT_RECORDING_KIND_OPTIONAL);
    cr_assert_eq(next(), 0);
    cr_assert_str_eq(dt_recording_kind_name(item.kind), "unknown");
}

Test(recording, holds_items_larger_than_its_buffer)
{
    static uint8_t large[DT_RECORDING_BUFFER_BYTES + 77];
    dt_recording_t *recording = create();
    memset(large, 0x5a, sizeof large);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_FRAME, 1, "a", 1, NULL), DT_OK);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_FRAME, 2, large, sizeof large, NULL),
                 DT_OK);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_FRAME, 3, "b", 1, NULL), DT_OK);
    cr_assert_eq(dt_recording_close(recording, NULL), DT_OK);
    load();
    cr_assert_eq(dt_recording_open(&reader, bytes, size), 0);
    cr_assert(next() == 0 && item.size == 1);
    cr_assert(next() == 0 && item.size == sizeof large);
    cr_assert_eq(memcmp(item.content, large, sizeof large), 0);
    cr_assert(next() == 0 && *item.content == 'b');
}

Test(recording, refuses_an_item_over_its_bound_and_goes_on)
{
    dt_error_t error;
    dt_recording_t *recording = create();
    uint8_t *large = calloc(1, DT_RECORDING_CONTENT_MAX + 1u);
    cr_assert(large != NULL);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_FRAME, 1, large,
                                  DT_RECORDING_CONTENT_MAX + 1u, &error),
                 DT_ERR_LIMIT);
    cr_assert_eq(dt_recording_close(recording, NULL), DT_OK);
    free(large);
    load();
    cr_assert_eq(size, DT_RECORDING_HEAD_BYTES);
}

Test(recording, gives_the_first_error_of_a_full_disk_again_and_again)
{
    dt_error_t error = {.code = DT_OK};
    dt_recording_t *recording;
    if (dt_recording_create("/dev/full", 1, &recording, &error) != DT_OK)
        cr_skip_test("no /dev/full here: %s", error.text);
    cr_assert_eq(dt_recording_flush(recording, &error), DT_ERR_LIMIT);
    cr_assert_eq(dt_recording_add(recording, DT_RECORDING_END, 1, "", 0, &error), DT_ERR_LIMIT);
    cr_assert(error.source_code != 0 && strstr(error.text, "No space") != NULL);
    cr_assert_eq(dt_recording_close(recording, &error), DT_ERR_LIMIT);
}

Test(recording, that_is_being_written_is_not_written_by_another_session)
{
    dt_error_t error;
    dt_recording_t *first = create(), *second;
    cr_assert_eq(dt_recording_create(path, 1, &second, &error), DT_ERR_EXISTS);
    cr_assert(strstr(error.text, "another session") != NULL, "%s", error.text);
    cr_assert_eq(dt_recording_close(first, NULL), DT_OK);
    cr_assert_eq(dt_recording_close(create(), NULL), DT_OK);
}

Test(recording, in_a_folder_that_is_not_there_is_an_error_with_its_name)
{
    dt_error_t error;
    dt_recording_t *recording;
    cr_assert_eq(dt_recording_create("/nonexistent/x.rec", 1, &recording, &error),
                 DT_ERR_NOT_FOUND);
    cr_assert(strstr(error.text, "/nonexistent/x.rec") != NULL);
}

Test(recording, with_a_head_that_is_not_ours_is_refused)
{
    write_all_forms();
    bytes[0] = 'X';
    cr_assert_eq(dt_recording_open(&reader, bytes, size), DT_FRAME_E_MAGIC);
    bytes[0] = 'D';
    bytes[8] = 2;
    cr_assert_eq(dt_recording_open(&reader, bytes, size), DT_FRAME_E_VERSION);
    bytes[8] = 1;
    bytes[12] = 200;
    bytes[15] = 200;
    cr_assert_eq(dt_recording_open(&reader, bytes, size), DT_FRAME_E_SIZE);
}
