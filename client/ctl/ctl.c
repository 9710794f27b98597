#include "ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/version.h"
#include "conf/env.h"
#include "dtorch/v1/admin.pb-c.h"
#include "help.h"
#include "pki/pki.h"
#include "text.h"

#define TERMINAL_COLUMNS 80 /* of a terminal that does not say */
#define TERMINAL_LINES   24
#define WATCH_MS         2000
#define PROBE_MS         2000 /* whether a controller that was late answers at all */

/* ---- what was asked ---- */

bool dt_ctl_has(const dt_ctl_t *ctl, dt_ctl_option_id_t option)
{
    return ctl->cli.settings[option].is_set;
}

const char *dt_ctl_option(const dt_ctl_t *ctl, dt_ctl_option_id_t option)
{
    return ctl->cli.settings[option].text;
}

int64_t dt_ctl_number(const dt_ctl_t *ctl, dt_ctl_option_id_t option, int64_t fallback)
{
    return ctl->cli.settings[option].text ? ctl->cli.settings[option].number : fallback;
}

bool dt_ctl_is_people(const dt_ctl_t *ctl)
{
    return ctl->output.format == DT_CTL_TABLE || ctl->output.format == DT_CTL_WIDE;
}

void dt_ctl_terminal_size(FILE *file, size_t *ret_columns, size_t *ret_lines)
{
    struct winsize size = {0};
    int64_t columns;
    const char *wanted = dt_env_get("COLUMNS");
    (void)ioctl(fileno(file), TIOCGWINSZ, &size);
    *ret_columns = size.ws_col > 0 ? size.ws_col : TERMINAL_COLUMNS;
    *ret_lines = size.ws_row > 0 ? size.ws_row : TERMINAL_LINES;
    if (wanted && dt_str_to_i64(wanted, &columns) == DT_OK && columns > 0 && columns < 10000)
        *ret_columns = (size_t)columns;
}

static bool wants_colour(const dt_ctl_t *ctl)
{
    const char *terminal = dt_env_get("TERM");
    switch (dt_ctl_number(ctl, DT_CTL_OPT_COLOR, 0)) {
    case 1: /* always */
        return true;
    case 2: /* never */
        return false;
    default:
        return ctl->is_terminal && !dt_env_get("NO_COLOR") &&
               !(terminal && strcmp(terminal, "dumb") == 0);
    }
}

static void set_output(dt_ctl_t *ctl, FILE *out)
{
    size_t columns, lines;
    ctl->is_terminal = isatty(fileno(out)) == 1;
    dt_ctl_terminal_size(out, &columns, &lines);
    bool is_wide = dt_ctl_number(ctl, DT_CTL_OPT_OUTPUT, DT_CTL_TABLE) == DT_CTL_WIDE;
    ctl->output = (dt_ctl_output_t){
        .pool = &ctl->pool,
        .screen = {.file = out,
                   .columns = ctl->is_terminal && !is_wide ? columns : 0,
                   .has_colour = wants_colour(ctl),
                   .has_legend = !dt_ctl_has(ctl, DT_CTL_OPT_NO_LEGEND)},
        .style = {.is_utc = dt_ctl_has(ctl, DT_CTL_OPT_UTC),
                  .raw_bytes = dt_ctl_has(ctl, DT_CTL_OPT_BYTES)},
        .format = (dt_ctl_format_t)dt_ctl_number(ctl, DT_CTL_OPT_OUTPUT, DT_CTL_TABLE),
        .fields = dt_ctl_option(ctl, DT_CTL_OPT_FIELDS),
        .filter = dt_ctl_option(ctl, DT_CTL_OPT_FILTER),
        .sort = dt_ctl_option(ctl, DT_CTL_OPT_SORT),
        .limit = (size_t)dt_ctl_number(ctl, DT_CTL_OPT_LIMIT, 0),
        .is_first = true,
    };
}

int dt_ctl_init(dt_ctl_t *ctl, int argc, char *const *argv, FILE *out, FILE *err)
{
    dt_error_t error;
    *ctl = (dt_ctl_t){.err = err};
    dt_arena_init(&ctl->pool, DT_CTL_POOL_MAX);
    dt_arena_init(&ctl->kept, DT_CTL_POOL_MAX);
    ctl->output.screen.file = out;
    if (dt_ctl_cli_parse(&ctl->kept, argc, argv, &ctl->cli, &error) != DT_OK)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
    set_output(ctl, out);
    return DT_CTL_EXIT_OK;
}

void dt_ctl_fini(dt_ctl_t *ctl)
{
    dt_ctl_conn_fini(&ctl->conn);
    dt_arena_fini(&ctl->pool);
    dt_arena_fini(&ctl->kept);
}

/* ---- saying things ---- */

static void DT_PRINTF_LIKE(3, 0)
    say(dt_ctl_t *ctl, const char *prefix, const char *fmt, va_list args)
{
    (void)fflush(ctl->output.screen.file);
    const char *text = dt_ctl_vprint(&ctl->pool, fmt, args);
    for (const char *line = text; *line != '\0';) { /* each line of ours is kept a line */
        size_t len = strcspn(line, "\n");
        const char *safe = dt_ctl_safe(&ctl->pool, dt_ctl_copy(&ctl->pool, line, len));
        (void)fprintf(ctl->err, "%s%s\n", line == text ? prefix : "", safe);
        line += len + (line[len] == '\n');
    }
}

void dt_ctl_say(dt_ctl_t *ctl, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(ctl, "dtorchctl: ", fmt, args);
    va_end(args);
}

int dt_ctl_fail(dt_ctl_t *ctl, dt_ctl_exit_t code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(ctl, "dtorchctl: ", fmt, args);
    va_end(args);
    return (int)code;
}

int dt_ctl_fail_error(dt_ctl_t *ctl, const dt_error_t *error)
{
    return dt_ctl_fail(ctl, dt_ctl_exit_of(error->code), "%s", error->text);
}

void dt_ctl_note(dt_ctl_t *ctl, const char *fmt, ...)
{
    va_list args;
    if (dt_ctl_has(ctl, DT_CTL_OPT_QUIET))
        return;
    va_start(args, fmt);
    say(ctl, "", fmt, args);
    va_end(args);
}

bool dt_ctl_confirm(dt_ctl_t *ctl, const char *fmt, ...)
{
    char answer[16];
    va_list args;
    if (dt_ctl_has(ctl, DT_CTL_OPT_YES) || isatty(STDIN_FILENO) != 1 ||
        isatty(fileno(ctl->err)) != 1)
        return true;
    va_start(args, fmt);
    const char *question = dt_ctl_safe(&ctl->pool, dt_ctl_vprint(&ctl->pool, fmt, args));
    va_end(args);
    (void)fprintf(ctl->err, "%s [y/N] ", question);
    (void)fflush(ctl->err);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

/* ---- asking ---- */

/* Say that nobody answered, which addresses were tried, and what to do. */
static int fail_unreached(dt_ctl_t *ctl, const dt_error_t *error, const char *tried)
{
    const char *next =
        error->code == DT_ERR_DENIED
            ? "use the group dtorch-admin, or a certificate (dtorchctl(1), FILES)"
            : "systemctl status dtorch-controllerd, or name a controller: -H HOST:PORT";
    return dt_ctl_fail(ctl,
                       error->code == DT_ERR_DENIED ? DT_CTL_EXIT_DENIED : DT_CTL_EXIT_UNAVAILABLE,
                       "%s\n%s  next      %s", error->text, tried, next);
}

/* Nobody answered in time. A controller whose disk hangs answers questions and keeps changes
 * waiting: say so then. Gives the exit code, or 0 if it is not that. */
static int fail_waiting(dt_ctl_t *ctl)
{
    Dtorch__V1__GetClusterRequest request = DTORCH__V1__GET_CLUSTER_REQUEST__INIT;
    ProtobufCMessage *reply;
    const char *tried;
    const dt_ctl_request_t what = {"GetCluster", &request.base,
                                   &dtorch__v1__cluster_status__descriptor, PROBE_MS};
    if (dt_ctl_conn_call(&ctl->conn, &ctl->pool, &what, &reply, &tried, NULL) != DT_OK)
        return DT_CTL_EXIT_OK;
    const Dtorch__V1__ClusterStatus *status =
        (const Dtorch__V1__ClusterStatus *)(const void *)reply;
    const Dtorch__V1__JournalStatus *journal = status->journal;
    if (!journal || (journal->pending == 0 && !journal->is_failing))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_AGAIN,
                           "the controller did not answer this in time, but it answers others; try "
                           "again, with the same --request-id if it was a change");
    return dt_ctl_fail(ctl, DT_CTL_EXIT_AGAIN,
                       "the controller has not carried this out: its journal %s%s%s, and %" PRIu64
                       " records wait for it. It may still happen when the disk works again.\n"
                       "  next      dtorchctl cluster status",
                       journal->is_failing ? "cannot be written" : "is not written in time",
                       *journal->text ? ": " : "", journal->text, journal->pending);
}

int dt_ctl_connect(dt_ctl_t *ctl)
{
    dt_error_t error;
    dt_status_t status =
        dt_ctl_conn_open(&ctl->conn, &ctl->kept, dt_ctl_option(ctl, DT_CTL_OPT_HOST),
                         dt_ctl_option(ctl, DT_CTL_OPT_CONFIG), &error);
    if (status == DT_OK)
        return DT_CTL_EXIT_OK;
    return dt_ctl_fail(ctl, status == DT_ERR_DENIED ? DT_CTL_EXIT_DENIED : DT_CTL_EXIT_CONFIG, "%s",
                       error.text);
}

void *dt_ctl_call(dt_ctl_t *ctl, const char *method, const void *request,
                  const ProtobufCMessageDescriptor *reply_type, int *ret_code)
{
    dt_error_t error;
    ProtobufCMessage *reply = NULL;
    const char *tried;
    *ret_code = dt_ctl_connect(ctl);
    if (*ret_code != DT_CTL_EXIT_OK)
        return NULL;
    const dt_ctl_request_t what = {method, request, reply_type, DT_CTL_CALL_MS};
    bool was_answered = ctl->conn.has_answered;
    dt_status_t status = dt_ctl_conn_call(&ctl->conn, &ctl->pool, &what, &reply, &tried, &error);
    if (dt_ctl_has(ctl, DT_CTL_OPT_VERBOSE) && !was_answered && ctl->conn.has_answered)
        dt_ctl_say(ctl, "controller at %s", dt_ctl_conn_address(&ctl->conn));
    if (status == DT_OK)
        return reply;
    if (tried && strstr(tried, DT_CTL_LATE) && strcmp(method, "GetCluster") != 0)
        *ret_code = fail_waiting(ctl);
    else
        *ret_code = DT_CTL_EXIT_OK;
    if (*ret_code == DT_CTL_EXIT_OK)
        *ret_code = tried ? fail_unreached(ctl, &error, tried) : dt_ctl_fail_error(ctl, &error);
    return NULL;
}

char *dt_ctl_request_id(dt_ctl_t *ctl)
{
    char id[33];
    const char *given = dt_ctl_option(ctl, DT_CTL_OPT_REQUEST_ID);
    if (given)
        return dt_ctl_copy(&ctl->pool, given, strlen(given));
    dt_pki_random_hex(id, 16);
    if (dt_ctl_has(ctl, DT_CTL_OPT_VERBOSE))
        dt_ctl_say(ctl, "request id %s", id);
    return dt_ctl_copy(&ctl->pool, id, strlen(id));
}

char *dt_ctl_by(dt_ctl_t *ctl)
{
    char host[64] = "?";
    const struct passwd *user = getpwuid(getuid());
    (void)gethostname(host, sizeof host - 1);
    if (user)
        return dt_ctl_print(&ctl->pool, "%s@%s", user->pw_name, host);
    return dt_ctl_print(&ctl->pool, "uid %u@%s", (unsigned)getuid(), host);
}

/* ---- printing ---- */

int dt_ctl_check_list(dt_ctl_t *ctl, const dt_ctl_list_t *list)
{
    dt_error_t error;
    if (dt_ctl_list_check(list, &ctl->output, &error) == DT_OK)
        return DT_CTL_EXIT_OK;
    return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
}

int dt_ctl_print_list(dt_ctl_t *ctl, const dt_ctl_list_t *list,
                      const ProtobufCMessage *const *items, size_t count,
                      const ProtobufCMessage *reply)
{
    dt_error_t error;
    if (dt_ctl_list_print(list, items, count, reply, &ctl->output, &error) == DT_OK)
        return DT_CTL_EXIT_OK;
    return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "%s", error.text);
}

/* NOLINTNEXTLINE(readability-function-size): what is printed, under which names */
bool dt_ctl_print_secret(dt_ctl_t *ctl, const ProtobufCMessage *reply, const char *kind,
                         const char *one, const char *many, const char *secret, int *ret_code)
{
    FILE *out = ctl->output.screen.file;
    bool is_csv = ctl->output.format == DT_CTL_CSV;
    *ret_code = DT_CTL_EXIT_OK;
    if (ctl->output.format == DT_CTL_JSON) {
        const dt_ctl_list_t list = {
            .kind = kind, .one = one, .many = many, .type = reply->descriptor};
        *ret_code = dt_ctl_print_list(ctl, &list, &reply, 1, NULL);
        return false;
    }
    if (is_csv && ctl->output.screen.has_legend)
        (void)fprintf(out, "%s\r\n", one);
    (void)fprintf(out, "%s%s", dt_ctl_safe(&ctl->pool, secret), is_csv ? "\r\n" : "\n");
    return dt_ctl_is_people(ctl);
}

/* ---- running ---- */

static int run_once(dt_ctl_t *ctl)
{
    ctl->output.style.now_wall_ms = dt_clock_wall_ms(dt_clock_system());
    int code = ctl->cli.verb->run(ctl);
    dt_arena_reset(&ctl->pool);
    return code;
}

/* Draw again and again, until a signal ends us. Returns when stdout takes no more. */
static int run_watch(dt_ctl_t *ctl)
{
    FILE *out = ctl->output.screen.file;
    int64_t pause_ms = dt_ctl_number(ctl, DT_CTL_OPT_WATCH, WATCH_MS);
    int code;
    do {
        if (ctl->is_terminal)
            (void)fputs("\033[H\033[2J", out);
        if (ctl->is_terminal && ctl->output.screen.has_legend)
            (void)fprintf(out, "Every %s: dtorchctl %s %s\n\n",
                          dt_ctl_duration(&ctl->pool, pause_ms), ctl->cli.verb->noun,
                          ctl->cli.verb->name);
        code = run_once(ctl);
        if (!ctl->is_terminal)
            (void)fputc('\n', out); /* so that a reader sees where a turn ends */
        struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000};
        if (fflush(out) != 0)
            return DT_CTL_EXIT_FAILED;
        (void)nanosleep(&pause, NULL);
    } while (code == DT_CTL_EXIT_OK || code == DT_CTL_EXIT_UNAVAILABLE ||
             code == DT_CTL_EXIT_AGAIN || code == DT_CTL_EXIT_PARTIAL);
    return code;
}

int dt_ctl_run(dt_ctl_t *ctl)
{
    FILE *out = ctl->output.screen.file;
    int code = DT_CTL_EXIT_OK;
    if (dt_ctl_has(ctl, DT_CTL_OPT_VERSION))
        (void)fprintf(out, "dtorchctl %s\n", dt_version());
    else if (dt_ctl_has(ctl, DT_CTL_OPT_HELP))
        dt_ctl_help(out, ctl->cli.noun, ctl->cli.verb);
    else if (dt_ctl_has(ctl, DT_CTL_OPT_WATCH) && ctl->cli.verb->run != dt_ctl_top)
        code = run_watch(ctl);
    else
        code = run_once(ctl);
    if (fflush(out) != 0 && code == DT_CTL_EXIT_OK)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED, "cannot write the output: %s", strerror(errno));
    return code;
}
