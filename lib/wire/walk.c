/* Applies the rows of validate.c to a message, by protobuf-c's descriptors. */
#include <inttypes.h>
#include <string.h>

#include "wire/validate_internal.h"
#include "wire/wire.h"

/* Where we are, for the error's text. */
struct place {
    const ProtobufCMessageDescriptor *type;
    const ProtobufCFieldDescriptor *field;
};

static const dt_validate_row_t free_text = {
    .kind = DT_VALIDATE_TEXT, .max = INT64_MAX, .count_max = SIZE_MAX};
static const dt_validate_row_t free_row = {.kind = DT_VALIDATE_FREE};
static const dt_validate_row_t free_list = {.kind = DT_VALIDATE_MESSAGE, .count_max = SIZE_MAX};

#define FAIL(at, err, number, fmt, ...)                                                            \
    dt_fail((err), DT_ERR_INVALID, "wire", (number), "%s.%s: " fmt, (at)->type->short_name,        \
            (at)->field->name, __VA_ARGS__)

static dt_status_t check_signed(const struct place *at, const dt_validate_row_t *row, int64_t value,
                                dt_error_t *err)
{
    if (value >= row->min && value <= row->max)
        return DT_OK;
    return FAIL(at, err, DT_WIRE_BOUND, "%" PRId64 ", bound %" PRId64 "..%" PRId64, value, row->min,
                row->max);
}

static dt_status_t check_unsigned(const struct place *at, const dt_validate_row_t *row,
                                  uint64_t value, dt_error_t *err)
{
    uint64_t max = row->max < 0 ? UINT64_MAX : (uint64_t)row->max;
    if (value >= (uint64_t)row->min && value <= max)
        return DT_OK;
    return FAIL(at, err, DT_WIRE_BOUND, "%" PRIu64 ", bound %" PRId64 "..%" PRIu64, value, row->min,
                max);
}

static dt_status_t check_int(const struct place *at, const dt_validate_row_t *row,
                             const void *value, dt_error_t *err)
{
    int64_t i64;
    int32_t i32;
    uint64_t u64;
    uint32_t u32;
    switch (at->field->type) {
    case PROTOBUF_C_TYPE_INT64:
        memcpy(&i64, value, sizeof i64);
        return check_signed(at, row, i64, err);
    case PROTOBUF_C_TYPE_INT32:
        memcpy(&i32, value, sizeof i32);
        return check_signed(at, row, i32, err);
    case PROTOBUF_C_TYPE_UINT64:
        memcpy(&u64, value, sizeof u64);
        return check_unsigned(at, row, u64, err);
    case PROTOBUF_C_TYPE_UINT32:
        memcpy(&u32, value, sizeof u32);
        return check_unsigned(at, row, u32, err);
    default:
        dt_check(!"an INT row for a field that is no integer");
        return DT_ERR_INTERNAL;
    }
}

static dt_status_t check_enum(const struct place *at, const void *value, dt_error_t *err)
{
    int number;
    memcpy(&number, value, sizeof number);
    if (protobuf_c_enum_descriptor_get_value(at->field->descriptor, number))
        return DT_OK;
    return FAIL(at, err, DT_WIRE_BOUND, "%d is not one of the known values", number);
}

static bool is_label_byte(char c, const char *more)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c && strchr(more, c));
}

static bool is_label_key(const char *text, size_t len)
{
    if (len < 1 || len > 63 || !is_label_byte(text[0], "") || !is_label_byte(text[len - 1], ""))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!is_label_byte(text[i], "._/-"))
            return false;
    return true;
}

static bool is_label_value(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!is_label_byte(text[i], "._-") && !(text[i] >= 'A' && text[i] <= 'Z'))
            return false;
    return true;
}

static bool lines_are_clean(const char *text, size_t len)
{
    for (size_t at = 0, end; at < len; at = end + 1) {
        const char *newline = memchr(text + at, '\n', len - at);
        end = newline ? (size_t)(newline - text) : len;
        size_t line = end - at;
        if (line && text[end - 1] == '\r')
            line--;
        if (!dt_wire_text_is_clean(text + at, line))
            return false;
    }
    return true;
}

/* The values themselves stay out of the text: what is not clean must not reach a log. */
static dt_status_t check_text(const struct place *at, const dt_validate_row_t *row,
                              const char *text, dt_error_t *err)
{
    size_t len = text ? strlen(text) : 0;
    bool is_counted = row->kind == DT_VALIDATE_TEXT || row->kind == DT_VALIDATE_LINES ||
                      row->kind == DT_VALIDATE_LABEL_VALUE;
    if (is_counted && (len < (size_t)row->min || len > (size_t)row->max))
        return FAIL(at, err, len ? DT_WIRE_BOUND : DT_WIRE_MISSING,
                    "%zu bytes, bound %" PRId64 "..%" PRId64, len, row->min, row->max);
    if (row->kind == DT_VALIDATE_LINES)
        return lines_are_clean(text, len) ? DT_OK
                                          : FAIL(at, err, DT_WIRE_TEXT, "%s", "not clean text");
    if (text && !dt_wire_text_is_clean(text, len))
        return FAIL(at, err, DT_WIRE_TEXT,
                    "%zu bytes that are not UTF-8 without control characters", len);
    if (row->kind == DT_VALIDATE_NODE && (len || row->min) && !dt_wire_node_name_is_valid(text))
        return FAIL(at, err, DT_WIRE_BOUND, "\"%.80s\", a name is 1..63 of [a-z0-9-]", text);
    if (row->kind == DT_VALIDATE_LABEL_KEY && !is_label_key(text, len))
        return FAIL(at, err, DT_WIRE_BOUND,
                    "\"%.80s\", a label's key is 1..63 of [a-z0-9._/-], first and last [a-z0-9]",
                    text);
    if (row->kind == DT_VALIDATE_LABEL_VALUE && !is_label_value(text, len))
        return FAIL(at, err, DT_WIRE_BOUND, "\"%.80s\", a label's value is of [A-Za-z0-9._-]",
                    text);
    return DT_OK;
}

static dt_status_t check_bytes(const struct place *at, const dt_validate_row_t *row,
                               const void *value, dt_error_t *err)
{
    ProtobufCBinaryData bytes;
    memcpy(&bytes, value, sizeof bytes);
    size_t min = row->kind == DT_VALIDATE_BYTES ? (size_t)row->min : (size_t)row->max;
    if (row->kind == DT_VALIDATE_FREE || (bytes.len >= min && bytes.len <= (size_t)row->max) ||
        (row->kind == DT_VALIDATE_BYTES_OR_NONE && bytes.len == 0))
        return DT_OK;
    return FAIL(at, err, DT_WIRE_BOUND, "%zu bytes, bound %zu..%" PRId64 "%s", bytes.len, min,
                row->max, row->kind == DT_VALIDATE_BYTES_OR_NONE ? " or none" : "");
}

static dt_status_t check_value(const struct place *at, const dt_validate_row_t *row,
                               const void *value, dt_error_t *err)
{
    const void *pointer;
    switch (at->field->type) {
    case PROTOBUF_C_TYPE_STRING:
        memcpy(&pointer, value, sizeof pointer);
        return check_text(at, row, pointer, err);
    case PROTOBUF_C_TYPE_BYTES:
        return check_bytes(at, row, value, err);
    case PROTOBUF_C_TYPE_ENUM:
        return check_enum(at, value, err);
    case PROTOBUF_C_TYPE_MESSAGE:
        memcpy(&pointer, value, sizeof pointer);
        if (pointer)
            return dt_wire_validate(pointer, err);
        return row->min ? FAIL(at, err, DT_WIRE_MISSING, "%s", "missing") : DT_OK;
    default:
        return row->kind == DT_VALIDATE_INT ? check_int(at, row, value, err) : DT_OK;
    }
}

static size_t size_of_element(const ProtobufCFieldDescriptor *field)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    default:
        return 4;
    }
}

static dt_status_t check_repeated(const struct place *at, const dt_validate_row_t *row,
                                  const char *message, dt_error_t *err)
{
    size_t count;
    const char *elements;
    memcpy(&count, message + at->field->quantifier_offset, sizeof count);
    memcpy(&elements, message + at->field->offset, sizeof elements);
    if (count > row->count_max)
        return FAIL(at, err, DT_WIRE_BOUND, "%zu entries, bound %zu", count, row->count_max);
    for (size_t i = 0; i < count; i++)
        DT_TRY(check_value(at, row, elements + i * size_of_element(at->field), err));
    return DT_OK;
}

static const dt_validate_row_t *row_without_table(const ProtobufCFieldDescriptor *field)
{
    if (field->label == PROTOBUF_C_LABEL_REPEATED && field->type != PROTOBUF_C_TYPE_STRING)
        return &free_list;
    return field->type == PROTOBUF_C_TYPE_STRING ? &free_text : &free_row;
}

dt_status_t dt_wire_validate(const ProtobufCMessage *message, dt_error_t *err)
{
    const ProtobufCMessageDescriptor *type = message->descriptor;
    const dt_validate_table_t *table = dt_validate_table(type);
    for (unsigned i = 0; i < type->n_fields; i++) {
        struct place at = {type, &type->fields[i]};
        const dt_validate_row_t *row = table ? &table->rows[i] : row_without_table(at.field);
        const char *value = (const char *)message + at.field->offset;
        if (at.field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            int kind;
            memcpy(&kind, (const char *)message + at.field->quantifier_offset, sizeof kind);
            if ((uint32_t)kind != at.field->id)
                continue;
        }
        if (at.field->label == PROTOBUF_C_LABEL_REPEATED)
            DT_TRY(check_repeated(&at, row, (const char *)message, err));
        else
            DT_TRY(check_value(&at, row, value, err));
    }
    return table && table->check ? table->check(message, err) : DT_OK;
}
