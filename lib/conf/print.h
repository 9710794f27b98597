/* Texts that come from the option tables: --help, example files, the manual page dtorch.conf(5).
 * Errors of all: LIMIT, NOMEM. */
#ifndef DT_CONF_PRINT_H
#define DT_CONF_PRINT_H
#include "base/buf.h"
#include "conf/conf.h"

/* The flags section of --help, one or two lines an option, at most 80 columns. */
DT_MUST_USE dt_status_t dt_conf_print_options(const dt_conf_table_t *table, dt_buf_t *out);

/* All of a daemon's --help. */
DT_MUST_USE dt_status_t dt_conf_print_help(const dt_conf_table_t *table, dt_buf_t *out);

/* The example file: every key commented out with its default. config/X.conf must equal it. */
DT_MUST_USE dt_status_t dt_conf_print_example(const dt_conf_table_t *table, dt_buf_t *out);

/* The manual page dtorch.conf(5), mdoc. */
DT_MUST_USE dt_status_t dt_conf_print_man(dt_buf_t *out);

/* The option list of one program for its own manual page, mdoc. */
DT_MUST_USE dt_status_t dt_conf_print_man_flags(const dt_conf_table_t *table, dt_buf_t *out);

/* Any of them by the name of what is printed: "controllerd.conf", "workerd.conf", "client.conf",
 * "dtorch.conf.5", "flags" (of `table`). Errors besides: NOT_FOUND. */
DT_MUST_USE dt_status_t dt_conf_print(const dt_conf_table_t *table, const char *what,
                                      dt_buf_t *out);

/* Names derived from an option's: "--heartbeat-interval", "DTORCH_HEARTBEAT_INTERVAL". */
#define DT_CONF_NAME_SIZE 64
void dt_conf_flag_name(const char *key, char text[static DT_CONF_NAME_SIZE]);
void dt_conf_env_name(const char *key, char text[static DT_CONF_NAME_SIZE]);

#endif
