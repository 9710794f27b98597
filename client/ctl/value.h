/* Fields of protobuf messages by name, as values that can be shown, compared and filtered.
 * All of dtorchctl's output comes through here, from protobuf-c's descriptors: a field that is
 * added to a .proto is in json, csv, -p, --filter and --sort without a line of code.
 *
 * A path is field names with dots, "device.memory_bytes". In a list of labels or event fields the
 * next word is a key: "labels.zone". In other lists a path has no value.
 * A missing message, an empty string and empty bytes are absent. Enums are lower-case words without
 * the prefix that all their values share. */
#ifndef DT_CTL_VALUE_H
#define DT_CTL_VALUE_H
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool.h"

typedef enum dt_ctl_kind {
    DT_CTL_ABSENT,
    DT_CTL_BOOL,
    DT_CTL_INT,
    DT_CTL_UINT,
    DT_CTL_TEXT,
    DT_CTL_ENUM, /* integer and text */
    DT_CTL_MESSAGE,
    DT_CTL_LIST,
} dt_ctl_kind_t;

/* What a number means; it follows from the end of the field's name. */
typedef enum dt_ctl_unit {
    DT_CTL_PLAIN,
    DT_CTL_BYTES,   /* _bytes */
    DT_CTL_WALL_MS, /* wall_ms: since 1970 */
    DT_CTL_MS,      /* _ms */
    DT_CTL_NS,      /* _ns */
    DT_CTL_PERCENT, /* _percent */
} dt_ctl_unit_t;

typedef struct dt_ctl_value {
    dt_ctl_kind_t kind;
    dt_ctl_unit_t unit;
    int64_t integer;                       /* INT, BOOL, ENUM */
    uint64_t natural;                      /* UINT */
    const char *text;                      /* TEXT (bytes as hex), ENUM; not made safe */
    const void *message;                   /* MESSAGE: it. LIST: the message that holds the list */
    const ProtobufCFieldDescriptor *field; /* MESSAGE, LIST, ENUM: its descriptor */
} dt_ctl_value_t;

/* Options of how values are shown to people. */
typedef struct dt_ctl_style {
    int64_t now_wall_ms;
    bool is_utc;    /* times as RFC 3339 in UTC */
    bool raw_bytes; /* sizes as plain numbers */
} dt_ctl_style_t;

/* Read element `index` of a repeated field, or with index 0 a single one (a oneof's field that is
 * not the chosen one is absent). Ownership: borrows all; texts live in `pool` or the message. */
dt_ctl_value_t dt_ctl_field(dt_arena_t *pool, const ProtobufCMessage *message,
                            const ProtobufCFieldDescriptor *field, size_t index);

/* How many elements a field has: of a single one 0 or 1. */
size_t dt_ctl_field_count(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field);

/* Read the value at `path`; absent if there is none. A repeated field gives LIST. */
dt_ctl_value_t dt_ctl_path(dt_arena_t *pool, const ProtobufCMessage *message, const char *path);

/* Whether messages of this type can have a value at `path`. */
bool dt_ctl_path_exists(const ProtobufCMessageDescriptor *type, const char *path);

/* Give every path of a type that leads to a single value or to labels, in the order of the .proto,
 * going into messages but not into other lists. At most `max` are written; returns how many. */
size_t dt_ctl_paths(dt_arena_t *pool, const ProtobufCMessageDescriptor *type, const char **paths,
                    size_t max);

/* Whether a field is a list of {key, value} pairs. */
bool dt_ctl_is_pairs(const ProtobufCFieldDescriptor *field);

/* The word of an enum's value. */
const char *dt_ctl_enum_word(dt_arena_t *pool, const ProtobufCEnumDescriptor *type, int value);

/* Order two values: absent first, numbers by size, texts in natural order (gpu9 before gpu10). */
int dt_ctl_compare(const dt_ctl_value_t *a, const dt_ctl_value_t *b);

/* Show a value in a table: with its unit, made safe, "-" when absent. */
const char *dt_ctl_show(dt_arena_t *pool, const dt_ctl_value_t *value, const dt_ctl_style_t *style);

/* Show a size: "3.1 GiB", or with raw_bytes the plain number. */
const char *dt_ctl_size(dt_arena_t *pool, const dt_ctl_style_t *style, uint64_t bytes);

/* Show a value as csv has it: raw, "" when absent, lists as words. */
const char *dt_ctl_raw(dt_arena_t *pool, const dt_ctl_value_t *value);

/* Makers, for columns that are worked out. */
dt_ctl_value_t dt_ctl_absent(void);
dt_ctl_value_t dt_ctl_text(const char *text); /* NULL or "": absent */
dt_ctl_value_t dt_ctl_int(int64_t integer, dt_ctl_unit_t unit);
dt_ctl_value_t dt_ctl_uint(uint64_t natural, dt_ctl_unit_t unit);

#endif
