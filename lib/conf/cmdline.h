/* The daemons' command line: --config, --check-config, --dump-config, --help, --version, and a flag
 * for each option of the table (--heartbeat-interval=250ms, or with the value as the next word; a
 * bool alone means yes).
 *     int main(int argc, char **argv)
 *     {
 *         dt_conf_cmdline_t cmdline;
 *         int rc = dt_conf_start(dt_conf_table_worker(), argc, argv, check, &cmdline, &conf);
 *         if (rc != DT_CONF_GO_ON)
 *             return rc;
 */
#ifndef DT_CONF_CMDLINE_H
#define DT_CONF_CMDLINE_H
#include "conf/conf.h"

#define DT_CONF_FLAG_MAX 64
#define DT_CONF_GO_ON    (-1) /* dt_conf_start: nothing to exit for */

/* sysexits, as scripts and unit files see them. */
#define DT_CONF_EXIT_USAGE  64
#define DT_CONF_EXIT_CONFIG 78

/* The parts of a command line. Keep it: a reload needs the same sources. Its strings are argv's. */
typedef struct dt_conf_cmdline {
    dt_conf_sources_t sources; /* its flags point into this struct: never copy the struct */
    dt_conf_flag_t flags[DT_CONF_FLAG_MAX];
    bool is_help, is_version, is_check, is_dump;
    const char
        *print; /* --print=WHAT, for the build: "dtorch.conf.5", "flags", "X.conf"; or NULL */
} dt_conf_cmdline_t;

/* Read a command line. Ownership: borrows `argv` for the life of *ret_cmdline.
 * Errors: INVALID (unknown flag, with the nearest one; a value missing; an operand), LIMIT. */
DT_MUST_USE dt_status_t dt_conf_cmdline_parse(const dt_conf_table_t *table, int argc, char **argv,
                                              dt_conf_cmdline_t *ret_cmdline, dt_error_t *err);

/* Do all that comes before a daemon's own work: read the command line, print what was asked for,
 * load the configuration, say what is wrong with it on stderr. `check` (NULL: none) is the daemon's
 * own check of values against each other; it stays in ret_cmdline->sources, so a reload runs it
 * too. Returns DT_CONF_GO_ON with *ret_conf set (gives), or the exit status: 0 after --help,
 * --version,
 * --check-config, --dump-config; 64 for a wrong command line; 78 for a wrong configuration. */
int dt_conf_start(const dt_conf_table_t *table, int argc, char **argv, dt_conf_check_fn check,
                  dt_conf_cmdline_t *ret_cmdline, dt_conf_t **ret_conf);

#endif
