/* Inside lib/conf: values, and what the parts call of each other. */
#ifndef DT_CONF_CONF_INTERNAL_H
#define DT_CONF_CONF_INTERNAL_H
#include "conf/conf.h"

#define DT_CONF_REASON_MAX 256 /* bytes of why a value is not taken */
#define DT_CONF_PORT       7700
#define DT_CONF_HOST_MAX   253
#define DT_CONF_SUN_PATH   107 /* bytes of a unix socket's path */

/* An option's value. */
typedef struct dt_conf_value {
    char *text;      /* canonical */
    char *origin;    /* "default", "FILE:LINE", … */
    int64_t num;     /* bool, int, duration, size */
    dt_strv_t list;  /* list */
    bool is_default; /* nobody set it */
} dt_conf_value_t;

struct dt_conf {
    const dt_conf_table_t *table;
    char hash[DT_CONF_HASH_SIZE];
    dt_conf_value_t values[]; /* one an option, in the table's order */
};

/* Make an object that holds the defaults. Errors: NOMEM. */
DT_MUST_USE dt_status_t dt_conf_create(const dt_conf_table_t *table, dt_conf_t **ret_conf,
                                       dt_error_t *err);

/* Give one option a value; an empty one means the default.
 * Errors: INVALID (the text begins with `origin`), NOMEM; the old value stays. */
DT_MUST_USE dt_status_t dt_conf_set(dt_conf_t *conf, size_t index, const char *text,
                                    const char *origin, dt_error_t *err);

/* Apply a file's text. Errors: INVALID, NOMEM; values set before the wrong line stay. */
DT_MUST_USE dt_status_t dt_conf_apply_text(dt_conf_t *conf, const char *name, const char *text,
                                           size_t len, dt_error_t *err);

/* Apply files, environment and flags. Errors: as dt_conf_load(). */
DT_MUST_USE dt_status_t dt_conf_apply_sources(dt_conf_t *conf, const dt_conf_sources_t *sources,
                                              dt_error_t *err);

/* Compute the hash, once all values are there. */
void dt_conf_seal(dt_conf_t *conf);

/* Parse a value: fill *ret_value but its origin.
 * Errors: INVALID with the reason as text, NOMEM; *ret_value is empty then. */
DT_MUST_USE dt_status_t dt_conf_value_parse(const dt_conf_option_t *option, const char *text,
                                            dt_conf_value_t *ret_value,
                                            char reason[static DT_CONF_REASON_MAX]);
void dt_conf_value_fini(dt_conf_value_t *value);

/* Whether the bounds of an option count bytes or words. */
bool dt_conf_is_counted(const dt_conf_option_t *option);

/* Describe an option's bounds: "50ms..1min", "at most 63 bytes"; an empty text if it has none. */
void dt_conf_bounds_text(const dt_conf_option_t *option, char *text, size_t size);

/* What stands for an option's value in --help and in manual pages: "DURATION". */
const char *dt_conf_placeholder(const dt_conf_option_t *option);

/* An option's default in canonical form, cut at `size`. Errors: INVALID (a bug in the table, which
 * a test finds), NOMEM. */
DT_MUST_USE dt_status_t dt_conf_default_text(const dt_conf_option_t *option, char *text,
                                             size_t size);

/* The index of a key in the table, or option_count. */
size_t dt_conf_find(const dt_conf_table_t *table, const char *key);

/* The known key nearest to `word`, or NULL. */
const char *dt_conf_nearest_key(const dt_conf_table_t *table, const char *word);

#endif
