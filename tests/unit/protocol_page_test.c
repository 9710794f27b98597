/* dtorch-protocol(7) says what the code does: its tables are lib/wire's, its example is a frame. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/recording.h"
#include "wire/signature.h"

#define PAGE      "man/dtorch-protocol.7"
#define ROWS_MAX  64
#define FIELD_MAX 64

struct row {
    unsigned number;
    char name[FIELD_MAX];
    char rest[256];
};

static char page[1u << 17];
static struct row rows[ROWS_MAX];
static dt_record_t record; /* too large for comfort on a stack */

static void start(void)
{
    FILE *file = fopen(PAGE, "re");
    cr_assert(file != NULL, "%s", PAGE);
    size_t size = fread(page, 1, sizeof page - 1, file);
    (void)fclose(file);
    page[size] = '\0';
}

TestSuite(protocol_page, .init = start, .timeout = 60);

/* Read the rows ".It NUMBER Ta NAME Ta REST" of a table. Returns how many. */
static size_t read_table(const char *name)
{
    char mark[64];
    size_t count = 0;
    (void)snprintf(mark, sizeof mark, ".\\\" TABLE %s\n", name);
    const char *at = strstr(page, mark), *end = at ? strstr(at, ".\\\" END") : NULL;
    cr_assert(at && end, "no table %s in %s", name, PAGE);
    for (const char *line = at; line < end; line = strchr(line, '\n') + 1) {
        struct row *row = &rows[count];
        *row = (struct row){0};
        if (sscanf(line, ".It %u Ta %63s Ta %255[^\n]", &row->number, row->name, row->rest) >= 2)
            count++;
        cr_assert_lt(count, ROWS_MAX);
    }
    return count;
}

Test(protocol_page, names_every_kind_of_record)
{
    size_t count = read_table("records");
    cr_assert_eq(count, DT_RECORD_KIND_COUNT - 1);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(rows[i].number, i + 1);
        cr_assert_str_eq(rows[i].name, dt_record_kind_name(rows[i].number));
    }
}

Test(protocol_page, names_every_error_with_its_number_and_text)
{
    static const int errors[] = {
#define X(name, number, text) name,
        DT_FRAME_ERROR_MAP(X)
#undef X
    };
    size_t count = read_table("errors");
    cr_assert_eq(count, sizeof errors / sizeof errors[0]);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(rows[i].number, (unsigned)errors[i]);
        cr_assert_str_eq(rows[i].name, dt_frame_error_name(errors[i]));
        cr_assert_str_eq(rows[i].rest, dt_frame_error_text(errors[i]));
    }
}

Test(protocol_page, names_every_dtype_with_its_size)
{
    size_t count = read_table("dtypes"), known = 0;
    for (unsigned number = 0; number <= DT_DTYPE_NUMBER_MAX; number++)
        known += dt_dtype_bytes(number) > 0;
    cr_assert_eq(count, known);
    for (size_t i = 0; i < count; i++) {
        cr_assert_str_eq(rows[i].name, dt_dtype_name(rows[i].number));
        cr_assert_eq((size_t)strtoul(rows[i].rest, NULL, 10), dt_dtype_bytes(rows[i].number));
    }
}

Test(protocol_page, names_every_tag_of_a_value)
{
    static const struct {
        unsigned number;
        const char *name;
    } tags[] = {
#define TAG(name) {DT_VALUE_##name, #name}
        TAG(DEFAULT), TAG(NONE),      TAG(FALSE),   TAG(TRUE),    TAG(INT),     TAG(DOUBLE),
        TAG(COMPLEX), TAG(STR),       TAG(TENSOR),  TAG(INTS),    TAG(DOUBLES), TAG(BOOLS),
        TAG(TENSORS), TAG(VALUES),    TAG(STRS),    TAG(DTYPE),   TAG(LAYOUT),  TAG(MEMORY_FORMAT),
        TAG(DEVICE),  TAG(GENERATOR), TAG(STORAGE), TAG(DYNAMIC), TAG(SMALL),
#undef TAG
    };
    size_t count = read_table("tags");
    cr_assert_eq(count, sizeof tags / sizeof tags[0]);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(rows[i].number, tags[i].number);
        cr_assert_str_eq(rows[i].name, tags[i].name);
    }
}

Test(protocol_page, names_every_item_of_a_recording)
{
    static const unsigned kinds[] = {
#define X(name, number, text) name,
        DT_RECORDING_KIND_MAP(X)
#undef X
    };
    size_t count = read_table("items");
    cr_assert_eq(count, sizeof kinds / sizeof kinds[0]);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(rows[i].number, kinds[i]);
        cr_assert_str_eq(rows[i].name, dt_recording_kind_name(kinds[i]));
    }
}

/* ---- the example ---- */

static dt_signature_tensor_t two_floats(void)
{
    const int64_t sizes[] = {2};
    dt_signature_tensor_t tensor = {0};
    cr_assert_eq(dt_meta_set(&tensor.meta, DT_DTYPE_F32, 1, sizes, NULL, 0, NULL), DT_OK);
    return tensor;
}

static void put_negation(dt_frame_writer_t *writer)
{
    dt_buf_t body;
    const dt_value_t argument = {.tag = DT_VALUE_TENSOR};
    const dt_signature_tensor_t tensor = two_floats();
    const dt_signature_t sig = {.name = "aten::neg",
                                .arg_count = 1,
                                .input_count = 1,
                                .output_count = 1,
                                .id_count = 1,
                                .args = &argument,
                                .inputs = &tensor,
                                .outputs = &tensor};
    dt_buf_init(&body, DT_SIGNATURE_BYTES_MAX);
    cr_assert_eq(dt_signature_encode(&sig, &body, NULL), DT_OK);
    record = (dt_record_t){.kind = DT_RECORD_DEF_SIG};
    record.definition.body = body.data;
    record.definition.body_bytes = (uint32_t)body.len;
    cr_assert(dt_record_put(writer, &record));
    dt_buf_fini(&body);
}

/* Write the frame that the page shows. */
static size_t write_example(uint8_t *frame, size_t cap)
{
    dt_frame_writer_t writer;
    const float numbers[] = {1.0F, -2.0F};
    const uint64_t ids[] = {1, 2};
    dt_frame_begin(&writer, frame, cap, 1, 3);
    put_negation(&writer);
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    record.move.output = 1;
    record.move.meta = two_floats().meta;
    record.move.size = sizeof numbers;
    record.move.bytes = (const uint8_t *)numbers;
    cr_assert(dt_record_put(&writer, &record));
    cr_assert(dt_record_put_op(
        &writer, &(dt_record_op_t){
                     .input_count = 1, .output_count = 1, .inputs = &ids[0], .outputs = &ids[1]}));
    record = (dt_record_t){.kind = DT_RECORD_FETCH};
    record.move.tensor = 2;
    record.move.number = 1;
    cr_assert(dt_record_put(&writer, &record));
    record = (dt_record_t){.kind = DT_RECORD_FREE};
    record.ids.ids = ids;
    record.ids.count = 2;
    cr_assert(dt_record_put(&writer, &record));
    return dt_frame_end(&writer, DT_FRAME_SYNC);
}

/* Read the page's bytes: pairs of hex digits at the start of each line, with one blank between. */
static size_t read_example(uint8_t *bytes, size_t cap)
{
    size_t count = 0;
    const char *at = strstr(page, ".\\\" EXAMPLE\n"), *end = at ? strstr(at, ".Ed") : NULL;
    cr_assert(at && end);
    for (const char *line = strchr(strchr(at, '\n') + 1, '\n') + 1; line < end;
         line = strchr(line, '\n') + 1)
        for (const char *c = line; isxdigit((unsigned char)c[0]) && isxdigit((unsigned char)c[1]) &&
                                   (c[2] == ' ' || c[2] == '\n');
             c += 3) {
            cr_assert_lt(count, cap);
            bytes[count++] = (uint8_t)strtoul((char[]){c[0], c[1], '\0'}, NULL, 16);
        }
    return count;
}

Test(protocol_page, has_an_example_that_is_the_frame_it_says)
{
    static uint8_t wanted[4096], is[256];
    size_t size = write_example(wanted, sizeof wanted);
    cr_assert_eq(read_example(is, sizeof is), size);
    for (size_t i = 0; i < size; i++)
        cr_assert_eq(is[i], wanted[i], "byte %zu: %02x in the page, %02x", i, is[i], wanted[i]);
}

Test(protocol_page, says_the_bounds_of_the_code)
{
    static const struct {
        const char *text;
        unsigned long is, said;
    } bounds[] = {
        {"256 KiB at most with its header", DT_FRAME_BYTES_MAX, 256u << 10},
        {"a header of 32 bytes", DT_FRAME_HEADER_BYTES, 32},
        {"Up to 64 inputs, 15 outputs, 14 scalars", DT_RECORD_OP_INPUTS, 64},
        {"at most 65,535", DT_RECORD_INPUTS_MAX, 65535},
        {"outputs (4,096)", DT_RECORD_OUTPUTS_MAX, 4096},
        {"scalars (255)", DT_RECORD_SCALARS_MAX, 255},
        {"count (1 to 64)", DT_RECORD_FREE_MAX, 64},
        {"at most 4096 here", DT_RECORD_INLINE_MAX, 4096},
        {"arguments, at most 64", DT_SIGNATURE_ARGS_MAX, 64},
        {"(below 2^20)", DT_RECORD_SIG_MAX, 1u << 20},
        {"dimensions (at most 16)", DT_META_DIM_MAX, 16},
        {"content (at most 2 MiB)", DT_RECORDING_CONTENT_MAX, 2u << 20},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        cr_assert_eq(bounds[i].is, bounds[i].said, "%s", bounds[i].text);
        cr_assert(strstr(page, bounds[i].text) != NULL, "the page does not say: %s",
                  bounds[i].text);
    }
}
