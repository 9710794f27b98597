/* One run of dtorchctl: what was asked, where output goes, the connection.
 * A verb is a function that takes this and gives an exit code; what went wrong it has said on
 * stderr before. stdout carries data only. Threads: one. */
#ifndef DT_CTL_CTL_H
#define DT_CTL_CTL_H
#include <stdio.h>

#include "base/clock.h"
#include "cli.h"
#include "conn.h"
#include "list.h"

typedef struct dt_ctl {
    dt_arena_t pool; /* of one turn: --watch empties it */
    dt_arena_t kept; /* of the whole run: the command line, the connection */
    dt_ctl_cli_t cli;
    dt_ctl_output_t output;
    dt_ctl_conn_t conn;
    FILE *err;
    bool is_terminal; /* stdout is one */
} dt_ctl_t;

/* Get ready to run what argv says. `out` and `err` stay the caller's.
 * Returns DT_CTL_EXIT_OK, or the exit code after the error was told. dt_ctl_fini() in any case. */
int dt_ctl_init(dt_ctl_t *ctl, int argc, char *const *argv, FILE *out, FILE *err);
int dt_ctl_run(dt_ctl_t *ctl); /* gives the exit code */
void dt_ctl_fini(dt_ctl_t *ctl);

/* ---- for verbs ---- */

bool dt_ctl_has(const dt_ctl_t *ctl, dt_ctl_option_id_t option);
const char *dt_ctl_option(const dt_ctl_t *ctl, dt_ctl_option_id_t option); /* text or NULL */
int64_t dt_ctl_number(const dt_ctl_t *ctl, dt_ctl_option_id_t option, int64_t fallback);
bool dt_ctl_is_people(const dt_ctl_t *ctl); /* -o table or wide */

/* Work out the addresses, if not done yet; dt_ctl_call() does it by itself. Gives the exit code. */
int dt_ctl_connect(dt_ctl_t *ctl);

/* Give the size of a terminal now; 80 by 24 of one that does not say. COLUMNS goes before. */
void dt_ctl_terminal_size(FILE *file, size_t *ret_columns, size_t *ret_lines);

/* Say "dtorchctl: TEXT" on stderr, made safe. */
void dt_ctl_say(dt_ctl_t *ctl, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);
/* Say it and give `code`, so that `return dt_ctl_fail(...)` works. */
int dt_ctl_fail(dt_ctl_t *ctl, dt_ctl_exit_t code, const char *fmt, ...) DT_PRINTF_LIKE(3, 4);
/* Say what an error holds and give its exit code. */
int dt_ctl_fail_error(dt_ctl_t *ctl, const dt_error_t *error);

/* Say a remark on stderr, unless -q. */
void dt_ctl_note(dt_ctl_t *ctl, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);

/* Call a method of the Admin service ("ListNodes"). Gives the reply, which lives in ctl->pool, or
 * NULL after the error was told: then *ret_code is the exit code. */
void *dt_ctl_call(dt_ctl_t *ctl, const char *method, const void *request,
                  const ProtobufCMessageDescriptor *reply_type, int *ret_code);

/* Print a list; gives the exit code. */
int dt_ctl_print_list(dt_ctl_t *ctl, const dt_ctl_list_t *list,
                      const ProtobufCMessage *const *items, size_t count,
                      const ProtobufCMessage *reply);

/* Print a secret that was made, alone, in the format asked for: `reply` whole in JSON. `one`,
 * `many`: "token", "tokens"; `kind`: the reply's name. Gives whether people want a word about it.
 */
bool dt_ctl_print_secret(dt_ctl_t *ctl, const ProtobufCMessage *reply, const char *kind,
                         const char *one, const char *many, const char *secret, int *ret_code);

/* Check what the user named of a list before any call; gives the exit code. */
int dt_ctl_check_list(dt_ctl_t *ctl, const dt_ctl_list_t *list);

/* Ask on the terminal, unless -y is given or there is nobody to ask. Gives whether to go on. */
bool dt_ctl_confirm(dt_ctl_t *ctl, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);

/* The request id: that of --request-id, else a new random one. */
char *dt_ctl_request_id(dt_ctl_t *ctl);
/* "ana@login1": who asks. */
char *dt_ctl_by(dt_ctl_t *ctl);

/* ---- the verbs, one function each (cmd_*.c) ---- */
int dt_ctl_cluster_status(dt_ctl_t *ctl);
int dt_ctl_cluster_check(dt_ctl_t *ctl);
int dt_ctl_cluster_config(dt_ctl_t *ctl);
int dt_ctl_node_list(dt_ctl_t *ctl);
int dt_ctl_node_show(dt_ctl_t *ctl);
int dt_ctl_node_change(dt_ctl_t *ctl); /* drain, undrain, cordon, uncordon, forget */
int dt_ctl_node_label(dt_ctl_t *ctl);
int dt_ctl_node_reason(dt_ctl_t *ctl);
int dt_ctl_device_list(dt_ctl_t *ctl);
int dt_ctl_device_show(dt_ctl_t *ctl);
int dt_ctl_device_topology(dt_ctl_t *ctl);
int dt_ctl_job_list(dt_ctl_t *ctl);
int dt_ctl_job_show(dt_ctl_t *ctl);
int dt_ctl_job_ops(dt_ctl_t *ctl);
int dt_ctl_job_errors(dt_ctl_t *ctl);
int dt_ctl_job_cancel(dt_ctl_t *ctl);
int dt_ctl_job_timeline(dt_ctl_t *ctl);
int dt_ctl_job_explain_plan(dt_ctl_t *ctl);
int dt_ctl_tensor_list(dt_ctl_t *ctl);
int dt_ctl_top(dt_ctl_t *ctl);
int dt_ctl_events_list(dt_ctl_t *ctl);
int dt_ctl_events_follow(dt_ctl_t *ctl);
int dt_ctl_report_usage(dt_ctl_t *ctl);
int dt_ctl_token_create(dt_ctl_t *ctl);
int dt_ctl_token_list(dt_ctl_t *ctl);
int dt_ctl_token_revoke(dt_ctl_t *ctl);
int dt_ctl_key_create(dt_ctl_t *ctl);
int dt_ctl_key_list(dt_ctl_t *ctl);
int dt_ctl_key_show(dt_ctl_t *ctl);
int dt_ctl_key_revoke(dt_ctl_t *ctl);
int dt_ctl_diag_dump(dt_ctl_t *ctl);
int dt_ctl_diag_decode(dt_ctl_t *ctl);
int dt_ctl_diag_replay(dt_ctl_t *ctl);
int dt_ctl_setup_controller(dt_ctl_t *ctl);
int dt_ctl_setup_worker(dt_ctl_t *ctl);
int dt_ctl_version(dt_ctl_t *ctl);
int dt_ctl_completion_bash(dt_ctl_t *ctl);

/* The hidden ones: `__complete NOUN` prints ids, `--man FILE` the manual page. */
int dt_ctl_complete(int argc, char *const *argv, FILE *out);
int dt_ctl_man(const char *template_path, FILE *out, FILE *err);

#endif
