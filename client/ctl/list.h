/* A list of messages on a screen: filtered, sorted, cut, then as table, json, csv or names.
 * A list type is a table of columns. A column is a field's path or is worked out; both have a key,
 * by which -p, --filter and --sort name it. Every path of the message can be named too. In csv and
 * json nothing is rounded and nothing is invented: json has the message's fields only. */
#ifndef DT_CTL_LIST_H
#define DT_CTL_LIST_H
#include "filter.h"
#include "grid.h"
#include "value.h"

#define DT_CTL_SORT_MAX 8

typedef enum dt_ctl_format {
    DT_CTL_TABLE,
    DT_CTL_WIDE,
    DT_CTL_JSON,
    DT_CTL_CSV,
    DT_CTL_NAME,
} dt_ctl_format_t;

/* What a column is worked out from: one item, or some that share a line. */
typedef struct dt_ctl_view {
    dt_arena_t *pool;
    const dt_ctl_style_t *style;
    const ProtobufCMessage *const *items;
    size_t count;        /* 1 or more */
    const void *context; /* of the output */
} dt_ctl_view_t;

#define DT_CTL_COLUMN_WIDE   1u  /* in -o wide only */
#define DT_CTL_COLUMN_NARROW 2u  /* in -o table only */
#define DT_CTL_COLUMN_KEY    4u  /* only when named with -p, --filter, --sort */
#define DT_CTL_COLUMN_SHRINK 8u  /* may be cut when the terminal is narrow */
#define DT_CTL_COLUMN_STATE  16u /* in colour */
#define DT_CTL_COLUMN_SPARSE 32u /* left out of -o table when no line has a value */

typedef struct dt_ctl_column {
    const char *key;
    const char *head;
    const char *path; /* of a field; NULL: worked out by `value` */
    dt_ctl_value_t (*value)(const dt_ctl_view_t *view);
    const char *(*show)(const dt_ctl_view_t *view); /* how a table shows it; NULL: by value */
    unsigned flags;
    size_t columns_min;
} dt_ctl_column_t;

typedef struct dt_ctl_list {
    const char *kind;       /* "NodeList" */
    const char *one, *many; /* "node", "nodes" for the footer */
    const char *name_path;  /* what -o name prints */
    const ProtobufCMessageDescriptor *type;
    const dt_ctl_column_t *columns;
    size_t column_count;
    /* Whether `next` shares a line of -o table with the items before it, the last one being
     * `last`. NULL: never. */
    bool (*folds)(dt_arena_t *pool, const ProtobufCMessage *last, const ProtobufCMessage *next);
} dt_ctl_list_t;

/* What the user asked for. */
typedef struct dt_ctl_output {
    dt_arena_t *pool;
    dt_ctl_screen_t screen;
    dt_ctl_style_t style;
    dt_ctl_format_t format;
    const char *fields;  /* -p, or NULL */
    const char *filter;  /* or NULL */
    const char *sort;    /* or NULL */
    size_t limit;        /* 0: none */
    bool is_stream;      /* more will follow: no envelope, no footer, headings only once */
    bool is_first;       /* of a stream */
    bool is_array;       /* of a stream in json: within an envelope that the caller prints */
    const void *context; /* for columns that are worked out; what it is the list's type says */
} dt_ctl_output_t;

/* Check that the fields which the user named exist. Call it before asking a controller.
 * Errors: INVALID (with the nearest name), LIMIT. */
DT_MUST_USE dt_status_t dt_ctl_list_check(const dt_ctl_list_t *list, const dt_ctl_output_t *output,
                                          dt_error_t *err);

/* Print. `reply` is the message that held the items, whose own single fields go into json's
 * envelope (absent ones and zeroes do not); may be NULL.
 * Errors: INVALID (a filter's value does not fit its field). */
DT_MUST_USE dt_status_t dt_ctl_list_print(const dt_ctl_list_t *list,
                                          const ProtobufCMessage *const *items, size_t count,
                                          const ProtobufCMessage *reply,
                                          const dt_ctl_output_t *output, dt_error_t *err);

/* Whether one item passes a filter. Errors: INVALID. */
DT_MUST_USE dt_status_t dt_ctl_list_passes(const dt_ctl_list_t *list, const ProtobufCMessage *item,
                                           const dt_ctl_filter_t *filter,
                                           const dt_ctl_output_t *output, bool *ret_passes,
                                           dt_error_t *err);

/* Begin and end json's envelope {"schema":…,"kind":…,"items":[ … ]}. */
void dt_ctl_json_begin(FILE *file, const char *kind);
void dt_ctl_json_end(FILE *file);

/* Write one csv field, quoted where RFC 4180 wants it. */
void dt_ctl_csv_text(FILE *file, const char *text);

#endif
