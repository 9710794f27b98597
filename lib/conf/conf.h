/* Configuration: one table row for each option; parsing, bounds, help, dump, man page come from it.
 *
 * Sources, the later ones win: the row's default < /usr/lib/dtorch/X.conf < /etc/dtorch/X.conf <
 * drop-ins X.conf.d/NAME.conf of both folders, in the order of NAME, a file in /etc hiding one of
 * the same NAME in /usr/lib < environment DTORCH_KEY_NAME < flags. `--config FILE` stands in place
 * of the files. A file has the program's section only. A line is `Key=Value`; lines that begin with
 * # or ; are comments, and there are no comments behind a value. An empty value means the default
 * again. A list that is set again is replaced.
 *
 * Errors say FILE:LINE, the key, the value, and what is allowed. Limits: DT_CONF_FILE_MAX bytes a
 * file, DT_CONF_LINE_MAX a line, DT_CONF_DROPIN_MAX drop-ins. An object is never changed after it
 * was loaded, so any thread may read it. Whether values make sense together is for the program's
 * dt_conf_check_fn. */
#ifndef DT_CONF_CONF_H
#define DT_CONF_CONF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "base/strings.h"

#define DT_CONF_FILE_MAX   (256 << 10)
#define DT_CONF_LINE_MAX   4096
#define DT_CONF_VALUE_MAX  4000
#define DT_CONF_DROPIN_MAX 256
#define DT_CONF_TEXT_MAX   (256 << 10) /* of a dump, a help text, a man page */
#define DT_CONF_HASH_SIZE  17          /* 16 hex digits and a NUL */

typedef struct dt_conf dt_conf_t;

typedef enum dt_conf_type {
    DT_CONF_BOOL,
    DT_CONF_INT,
    DT_CONF_DURATION, /* bounds and value in nanoseconds */
    DT_CONF_SIZE,     /* bounds and value in bytes */
    DT_CONF_STRING,   /* bounds: bytes */
    DT_CONF_PATH,     /* absolute; empty allowed when the default is empty */
    DT_CONF_LIST,     /* words separated by spaces, addresses by commas too; bounds: words */
    DT_CONF_ENUM,     /* one of `choices` */
} dt_conf_type_t;

/* What a string, or each word of a list, must look like. */
typedef enum dt_conf_shape {
    DT_CONF_SHAPE_ANY,
    DT_CONF_SHAPE_NAME,    /* dt_str_is_name() */
    DT_CONF_SHAPE_ADDRESS, /* absolute path, HOST[:PORT] or [V6][:PORT]; a port is added if none */
    DT_CONF_SHAPE_LISTEN,  /* absolute path, IP:PORT or HOST:PORT (0: any port), or "none" */
    DT_CONF_SHAPE_HTTP,    /* as LISTEN, but no path */
    DT_CONF_SHAPE_PATHS,   /* absolute path */
} dt_conf_shape_t;

typedef struct dt_conf_option {
    const char *name; /* CamelCase; --camel-case and DTORCH_CAMEL_CASE follow from it */
    dt_conf_type_t type;
    dt_conf_shape_t shape;
    int64_t min, max;    /* in the type's unit; both 0: no bounds */
    const char *dflt;    /* as one would write it; "" for none */
    const char *choices; /* ENUM: words separated by spaces */
    bool is_reloadable;  /* a reload may change it */
    bool is_local;       /* differs from node to node by its nature: not in the hash */
    bool is_secret;      /* its value is in no message and no dump, and not in the hash */
    const char *help;    /* a phrase without its full stop, for --help */
    const char *more;    /* further sentences for dtorch.conf(5), or NULL */
} dt_conf_option_t;

/* A program's options. */
typedef struct dt_conf_table {
    const char *program;   /* "dtorch-controllerd" */
    const char *file;      /* "controllerd.conf" */
    const char *section;   /* "Controller" */
    const char *summary;   /* one line for --help */
    const char *own_flags; /* lines of --help for flags that main() takes itself; NULL: none */
    const dt_conf_option_t *options;
    size_t option_count;
} dt_conf_table_t;

/* The three tables. Ownership: static. */
const dt_conf_table_t *dt_conf_table_controller(void);
const dt_conf_table_t *dt_conf_table_worker(void);
const dt_conf_table_t *dt_conf_table_client(void);

/* A value from the command line. */
typedef struct dt_conf_flag {
    const char *key;    /* the option's name */
    const char *value;  /* as in a file */
    const char *origin; /* as typed, for messages: "-H"; NULL: the key's own flag, "--log-level" */
} dt_conf_flag_t;

/* A program's own look at a configuration whose values are each fine: do they make sense together?
 * Use dt_conf_fail() for the message. */
typedef dt_status_t (*dt_conf_check_fn)(const dt_conf_t *conf, dt_error_t *err);

/* Where to read. Zero: the system's files and the process's environment. */
typedef struct dt_conf_sources {
    const char *config_path;     /* in place of the system's files; NULL: those */
    const char *root;            /* put before the system's paths, for tests; NULL: "" */
    char *const *environment;    /* NULL: the process's */
    const dt_conf_flag_t *flags; /* the last one wins */
    size_t flag_count;
    dt_conf_check_fn check; /* called at the end of a load; NULL: none */
} dt_conf_sources_t;

/* Load a configuration.
 * Ownership: borrows all (`table` must be static); gives *ret_conf, free with dt_conf_free().
 * Errors: INVALID (what is written is wrong; the text says FILE:LINE), NOT_FOUND (config_path),
 * DENIED (a file cannot be read), LIMIT (a file too large), NOMEM. Blocking: reads files. */
DT_MUST_USE dt_status_t dt_conf_load(const dt_conf_table_t *table, const dt_conf_sources_t *sources,
                                     dt_conf_t **ret_conf, dt_error_t *err);
void dt_conf_free(dt_conf_t *conf);   /* NULL is fine */
void dt_conf_freep(dt_conf_t **conf); /* for DT_CLEANUP */

/* Parse text as one file named `name` over the defaults: no files, environment or flags. For the
 * fuzzer and for tests. Ownership and errors as dt_conf_load(). Blocking: never. */
DT_MUST_USE dt_status_t dt_conf_parse(const dt_conf_table_t *table, const char *name,
                                      const char *text, size_t len, dt_conf_t **ret_conf,
                                      dt_error_t *err);

/* Typed getters. A name that is not in the table, or of another type, is a bug of ours and stops
 * the process. Ownership: results are borrowed until dt_conf_free(). Threads: any.
 * Cost: O(options); look a value up once, not in a loop. */
bool dt_conf_bool(const dt_conf_t *conf, const char *key);
int64_t dt_conf_int(const dt_conf_t *conf, const char *key);
int64_t dt_conf_duration_ns(const dt_conf_t *conf, const char *key);
int64_t dt_conf_size(const dt_conf_t *conf, const char *key);
const char *dt_conf_str(const dt_conf_t *conf, const char *key); /* string, path; "" for none */
const dt_strv_t *dt_conf_list(const dt_conf_t *conf, const char *key);
const char *dt_conf_enum(const dt_conf_t *conf, const char *key);
bool dt_conf_is_default(const dt_conf_t *conf, const char *key); /* nobody set it */

/* One option as `cluster config show` lists it. Results are borrowed until dt_conf_free(). */
typedef struct dt_conf_entry {
    const dt_conf_option_t *option;
    const char *section;
    const char *value;  /* canonical text: "250ms", "yes", words with one space between */
    const char *origin; /* "default", "FILE:LINE", "environment DTORCH_X", "flag --x" */
} dt_conf_entry_t;

size_t dt_conf_entry_count(const dt_conf_t *conf);
void dt_conf_entry(const dt_conf_t *conf, size_t index, dt_conf_entry_t *ret_entry);

/* Hash over all key=value that are not local, not over origins: 16 hex digits, equal on machines
 * that are configured alike. Borrowed until dt_conf_free(). */
const char *dt_conf_hash(const dt_conf_t *conf);

/* Append every key with its origin, in a form that can be a file again. Errors: LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_conf_dump(const dt_conf_t *conf, dt_buf_t *out);

/* Refuse a value in a program's own check: "FILE:LINE: Key=Value: " and the text. Returns INVALID.
 */
dt_status_t dt_conf_fail(const dt_conf_t *conf, const char *key, dt_error_t *err, const char *fmt,
                         ...) DT_PRINTF_LIKE(4, 5);

/* Load again and see what a reload would change: all of it or nothing.
 * On DT_OK, *ret_conf replaces `current` (which the caller frees) and *ret_changed names the keys
 * that differ (it may be empty). Ownership: gives both; dt_strv_fini() for the list.
 * Errors: those of dt_conf_load(), and DENIED when a changed key needs a restart: the text names
 * every such key. After an error nothing has changed. Blocking: reads files. */
DT_MUST_USE dt_status_t dt_conf_reload(const dt_conf_t *current, const dt_conf_sources_t *sources,
                                       dt_conf_t **ret_conf, dt_strv_t *ret_changed,
                                       dt_error_t *err);

#endif
