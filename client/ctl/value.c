#include "value.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/strings.h"
#include "text.h"

dt_ctl_value_t dt_ctl_absent(void)
{
    return (dt_ctl_value_t){.kind = DT_CTL_ABSENT};
}

dt_ctl_value_t dt_ctl_text(const char *text)
{
    if (!text || *text == '\0')
        return dt_ctl_absent();
    return (dt_ctl_value_t){.kind = DT_CTL_TEXT, .text = text};
}

dt_ctl_value_t dt_ctl_int(int64_t integer, dt_ctl_unit_t unit)
{
    return (dt_ctl_value_t){.kind = DT_CTL_INT, .integer = integer, .unit = unit};
}

dt_ctl_value_t dt_ctl_uint(uint64_t natural, dt_ctl_unit_t unit)
{
    return (dt_ctl_value_t){.kind = DT_CTL_UINT, .natural = natural, .unit = unit};
}

static dt_ctl_unit_t unit_of(const char *name)
{
    static const struct {
        const char *suffix;
        dt_ctl_unit_t unit;
    } units[] = {{"bytes", DT_CTL_BYTES},
                 {"wall_ms", DT_CTL_WALL_MS},
                 {"_ms", DT_CTL_MS},
                 {"_ns", DT_CTL_NS},
                 {"_percent", DT_CTL_PERCENT}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (dt_str_has_suffix(name, units[i].suffix))
            return units[i].unit;
    return DT_CTL_PLAIN;
}

/* How many bytes of an enum's names are a prefix of all of them, up to an underscore. A first value
 * that alone says X_UNSPECIFIED does not count. */
static size_t enum_prefix(const ProtobufCEnumDescriptor *type)
{
    const char *first = type->values[0].name;
    size_t from = type->n_values > 1 && dt_str_has_suffix(first, "_UNSPECIFIED") ? 1 : 0;
    const char *base = type->values[from].name;
    for (size_t len = strlen(base); len > 0; len--) {
        size_t i = from;
        while (i < type->n_values && strncmp(type->values[i].name, base, len) == 0)
            i++;
        if (base[len - 1] == '_' && i == type->n_values)
            return len;
    }
    return 0;
}

const char *dt_ctl_enum_word(dt_arena_t *pool, const ProtobufCEnumDescriptor *type, int value)
{
    const ProtobufCEnumValue *named = protobuf_c_enum_descriptor_get_value(type, value);
    if (!named)
        return dt_ctl_print(pool, "%d", value); /* a newer peer's word */
    const char *name = named->name;
    size_t prefix = enum_prefix(type);
    if (dt_str_has_suffix(name, "_UNSPECIFIED"))
        name = "UNSPECIFIED";
    else if (prefix < strlen(name))
        name += prefix;
    char *word = dt_ctl_copy(pool, name, strlen(name));
    for (char *c = word; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return word;
}

bool dt_ctl_is_pairs(const ProtobufCFieldDescriptor *field)
{
    if (field->label != PROTOBUF_C_LABEL_REPEATED || field->type != PROTOBUF_C_TYPE_MESSAGE)
        return false;
    const ProtobufCMessageDescriptor *type = field->descriptor;
    return type->n_fields == 2 && strcmp(type->fields[0].name, "key") == 0 &&
           strcmp(type->fields[1].name, "value") == 0;
}

static const void *member(const ProtobufCMessage *message, size_t offset)
{
    return (const char *)message + offset;
}

size_t dt_ctl_field_count(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return *(const size_t *)member(message, field->quantifier_offset);
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)member(message, field->quantifier_offset) == field->id;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return *(const void *const *)member(message, field->offset) != NULL;
    return 1;
}

static size_t element_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    default:
        return sizeof(uint32_t); /* the 32-bit numbers and enums; the protocol has no floats */
    }
}

dt_ctl_value_t dt_ctl_field(dt_arena_t *pool, const ProtobufCMessage *message,
                            const ProtobufCFieldDescriptor *field, size_t index)
{
    dt_ctl_unit_t unit = unit_of(field->name);
    if (index >= dt_ctl_field_count(message, field))
        return dt_ctl_absent();
    const char *at = member(message, field->offset);
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        at = *(const char *const *)at + index * element_size(field->type);
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return dt_ctl_int(*(const int32_t *)(const void *)at, unit);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return dt_ctl_int(*(const int64_t *)(const void *)at, unit);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return dt_ctl_uint(*(const uint32_t *)(const void *)at, unit);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return dt_ctl_uint(*(const uint64_t *)(const void *)at, unit);
    case PROTOBUF_C_TYPE_BOOL:
        return (dt_ctl_value_t){.kind = DT_CTL_BOOL,
                                .integer = *(const protobuf_c_boolean *)(const void *)at != 0};
    case PROTOBUF_C_TYPE_ENUM: {
        int number = *(const int *)(const void *)at;
        return (dt_ctl_value_t){.kind = DT_CTL_ENUM,
                                .integer = number,
                                .field = field,
                                .text = dt_ctl_enum_word(pool, field->descriptor, number)};
    }
    case PROTOBUF_C_TYPE_STRING:
        return dt_ctl_text(*(const char *const *)(const void *)at);
    case PROTOBUF_C_TYPE_BYTES: {
        const ProtobufCBinaryData *bytes = (const void *)at;
        return dt_ctl_text(dt_ctl_hex(pool, bytes->data, bytes->len));
    }
    case PROTOBUF_C_TYPE_MESSAGE:
        return (dt_ctl_value_t){.kind = DT_CTL_MESSAGE,
                                .message = *(const void *const *)(const void *)at,
                                .field = field};
    default:
        return dt_ctl_absent();
    }
}

/* The field that a path begins with; *ret_rest is what follows its dot, or "". */
static const ProtobufCFieldDescriptor *path_head(dt_arena_t *pool,
                                                 const ProtobufCMessageDescriptor *type,
                                                 const char *path, const char **ret_rest)
{
    size_t len = strcspn(path, ".");
    *ret_rest = path[len] == '.' ? path + len + 1 : "";
    return protobuf_c_message_descriptor_get_field_by_name(type, dt_ctl_copy(pool, path, len));
}

static dt_ctl_value_t pair_value(dt_arena_t *pool, const ProtobufCMessage *message,
                                 const ProtobufCFieldDescriptor *field, const char *key)
{
    for (size_t i = 0; i < dt_ctl_field_count(message, field); i++) {
        const ProtobufCMessage *pair = dt_ctl_field(pool, message, field, i).message;
        dt_ctl_value_t name = dt_ctl_field(pool, pair, &pair->descriptor->fields[0], 0);
        if (name.kind == DT_CTL_TEXT && strcmp(name.text, key) == 0)
            return dt_ctl_field(pool, pair, &pair->descriptor->fields[1], 0);
    }
    return dt_ctl_absent();
}

dt_ctl_value_t dt_ctl_path(dt_arena_t *pool, const ProtobufCMessage *message, const char *path)
{
    while (message) {
        const char *rest;
        const ProtobufCFieldDescriptor *field = path_head(pool, message->descriptor, path, &rest);
        if (!field)
            return dt_ctl_absent();
        if (dt_ctl_is_pairs(field) && *rest != '\0')
            return pair_value(pool, message, field, rest);
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            return *rest != '\0'
                       ? dt_ctl_absent()
                       : (dt_ctl_value_t){.kind = DT_CTL_LIST, .message = message, .field = field};
        dt_ctl_value_t value = dt_ctl_field(pool, message, field, 0);
        if (*rest == '\0')
            return value;
        message = value.kind == DT_CTL_MESSAGE ? value.message : NULL;
        path = rest;
    }
    return dt_ctl_absent();
}

bool dt_ctl_path_exists(const ProtobufCMessageDescriptor *type, const char *path)
{
    while (type) {
        char head[64];
        size_t len = strcspn(path, ".");
        if (len >= sizeof head)
            return false;
        memcpy(head, path, len);
        head[len] = '\0';
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(type, head);
        if (!field)
            return false;
        if (path[len] == '\0' || dt_ctl_is_pairs(field))
            return true;
        path += len + 1;
        bool goes_on =
            field->type == PROTOBUF_C_TYPE_MESSAGE && field->label != PROTOBUF_C_LABEL_REPEATED;
        type = goes_on ? field->descriptor : NULL;
    }
    return false;
}

static size_t collect_paths(dt_arena_t *pool, const ProtobufCMessageDescriptor *type,
                            const char *prefix, const char **paths, size_t max, size_t count)
{
    for (unsigned i = 0; i < type->n_fields && count < max; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        const char *path = dt_ctl_print(pool, "%s%s", prefix, field->name);
        bool is_list = field->label == PROTOBUF_C_LABEL_REPEATED;
        bool is_message = field->type == PROTOBUF_C_TYPE_MESSAGE;
        if (is_message && !is_list)
            count = collect_paths(pool, field->descriptor, dt_ctl_print(pool, "%s.", path), paths,
                                  max, count);
        else if (!is_message || dt_ctl_is_pairs(field))
            paths[count++] = path;
    }
    return count;
}

size_t dt_ctl_paths(dt_arena_t *pool, const ProtobufCMessageDescriptor *type, const char **paths,
                    size_t max)
{
    return collect_paths(pool, type, "", paths, max, 0);
}

int dt_ctl_compare(const dt_ctl_value_t *a, const dt_ctl_value_t *b)
{
    if (a->kind == DT_CTL_ABSENT || b->kind == DT_CTL_ABSENT)
        return (a->kind != DT_CTL_ABSENT) - (b->kind != DT_CTL_ABSENT);
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    switch (a->kind) {
    case DT_CTL_BOOL:
    case DT_CTL_INT:
    case DT_CTL_ENUM:
        return (a->integer > b->integer) - (a->integer < b->integer);
    case DT_CTL_UINT:
        return (a->natural > b->natural) - (a->natural < b->natural);
    case DT_CTL_TEXT:
        return strverscmp(a->text, b->text);
    default:
        return 0;
    }
}

/* Words of a list: elements, or key=value of pairs; for other messages how many there are. */
static const char *show_list(dt_arena_t *pool, const dt_ctl_value_t *list)
{
    const ProtobufCMessage *owner = list->message;
    size_t count = dt_ctl_field_count(owner, list->field);
    const char *words = "";
    if (list->field->type == PROTOBUF_C_TYPE_MESSAGE && !dt_ctl_is_pairs(list->field))
        return dt_ctl_print(pool, "%zu", count);
    for (size_t i = 0; i < count; i++) {
        dt_ctl_value_t value = dt_ctl_field(pool, owner, list->field, i);
        const char *word = dt_ctl_raw(pool, &value);
        if (value.kind == DT_CTL_MESSAGE) {
            dt_ctl_value_t key = dt_ctl_path(pool, value.message, "key");
            dt_ctl_value_t text = dt_ctl_path(pool, value.message, "value");
            word = dt_ctl_print(pool, "%s=%s", dt_ctl_raw(pool, &key), dt_ctl_raw(pool, &text));
        }
        words = dt_ctl_print(pool, "%s%s%s", words, i > 0 ? " " : "", word);
    }
    return words;
}

const char *dt_ctl_raw(dt_arena_t *pool, const dt_ctl_value_t *value)
{
    switch (value->kind) {
    case DT_CTL_BOOL:
        return value->integer ? "true" : "false";
    case DT_CTL_INT:
        return dt_ctl_print(pool, "%" PRId64, value->integer);
    case DT_CTL_UINT:
        return dt_ctl_print(pool, "%" PRIu64, value->natural);
    case DT_CTL_TEXT:
    case DT_CTL_ENUM:
        return value->text;
    case DT_CTL_LIST:
        return show_list(pool, value);
    default:
        return "";
    }
}

const char *dt_ctl_size(dt_arena_t *pool, const dt_ctl_style_t *style, uint64_t bytes)
{
    return style->raw_bytes ? dt_ctl_print(pool, "%" PRIu64, bytes) : dt_ctl_bytes(pool, bytes);
}

static const char *show_number(dt_arena_t *pool, const dt_ctl_value_t *value,
                               const dt_ctl_style_t *style)
{
    int64_t number = value->kind == DT_CTL_INT    ? value->integer
                     : value->natural > INT64_MAX ? INT64_MAX
                                                  : (int64_t)value->natural;
    switch (value->unit) {
    case DT_CTL_BYTES:
        return style->raw_bytes ? dt_ctl_raw(pool, value) : dt_ctl_bytes(pool, (uint64_t)number);
    case DT_CTL_WALL_MS:
        return number == 0 ? "-" : dt_ctl_time(pool, number, style->now_wall_ms, style->is_utc);
    case DT_CTL_MS:
        return dt_ctl_duration(pool, number);
    case DT_CTL_NS:
        return dt_ctl_duration_ns(pool, number);
    case DT_CTL_PERCENT:
        return dt_ctl_print(pool, "%" PRId64 "%%", number);
    default:
        return dt_ctl_raw(pool, value);
    }
}

const char *dt_ctl_show(dt_arena_t *pool, const dt_ctl_value_t *value, const dt_ctl_style_t *style)
{
    const char *text;
    switch (value->kind) {
    case DT_CTL_BOOL:
        return value->integer ? "yes" : "no";
    case DT_CTL_INT:
    case DT_CTL_UINT:
        return show_number(pool, value, style);
    default:
        text = dt_ctl_safe(pool, dt_ctl_raw(pool, value));
        return *text != '\0' ? text : "-";
    }
}
