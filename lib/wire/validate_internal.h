/* The rows that validate.c is made of, and the walker (walk.c) that applies them. Internal to
 * lib/wire and its tests. */
#ifndef DT_WIRE_VALIDATE_INTERNAL_H
#define DT_WIRE_VALIDATE_INTERNAL_H
#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum dt_validate_kind {
    DT_VALIDATE_FREE = 0,      /* any value of the type */
    DT_VALIDATE_INT,           /* min..max; max -1 on an unsigned field: no upper bound */
    DT_VALIDATE_TEXT,          /* clean text of min..max bytes */
    DT_VALIDATE_LINES,         /* the same with newlines (PEM) */
    DT_VALIDATE_NODE,          /* a node's name, or empty unless min is 1 */
    DT_VALIDATE_LABEL_KEY,     /* [a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])? */
    DT_VALIDATE_LABEL_VALUE,   /* at most max of [A-Za-z0-9._-] */
    DT_VALIDATE_BYTES,         /* min..max bytes */
    DT_VALIDATE_BYTES_OR_NONE, /* exactly max bytes, or none */
    DT_VALIDATE_ENUM,          /* a value that this version knows */
    DT_VALIDATE_MESSAGE,       /* walked into; must be there if min is 1 */
} dt_validate_kind_t;

typedef struct dt_validate_row {
    const char *field;
    dt_validate_kind_t kind;
    int64_t min;
    int64_t max;
    size_t count_max; /* of a repeated field */
} dt_validate_row_t;

typedef struct dt_validate_table {
    const ProtobufCMessageDescriptor *type;
    const dt_validate_row_t *rows; /* one for each field, by field number */
    size_t row_count;
    dt_status_t (*check)(const ProtobufCMessage *message, dt_error_t *err); /* or NULL */
} dt_validate_table_t;

/* The table of a message kind, or NULL. */
const dt_validate_table_t *dt_validate_table(const ProtobufCMessageDescriptor *type);
const dt_validate_table_t *dt_validate_tables_for_test(size_t *ret_count);

#endif
