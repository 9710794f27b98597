/* dtorchctl's grammar: one table of nouns and verbs, one of options. Parsing, --help, bash
 * completion and the manual page come from these rows; a verb cannot exist without its help.
 *     dtorchctl [OPTIONS] NOUN VERB [ARGS]
 * Options may stand anywhere, up to "--". Nouns and verbs may be cut to a unique prefix. A noun
 * alone is its first verb (list, status); a noun and something that is no verb is its show. */
#ifndef DT_CTL_CLI_H
#define DT_CTL_CLI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pool.h"

#define DT_CTL_ARG_MAX     1024 /* words of a command line */
#define DT_CTL_EXAMPLE_MAX 3

/* sysexits, because scripts branch on them. */
typedef enum dt_ctl_exit {
    DT_CTL_EXIT_OK = 0,
    DT_CTL_EXIT_FAILED = 1,
    DT_CTL_EXIT_PARTIAL = 2, /* some of those asked for */
    DT_CTL_EXIT_WOULD = 3,   /* --dry-run: there would be a change */
    DT_CTL_EXIT_USAGE = 64,
    DT_CTL_EXIT_DATA = 65,
    DT_CTL_EXIT_NOT_FOUND = 67,
    DT_CTL_EXIT_UNAVAILABLE = 69,
    DT_CTL_EXIT_INTERNAL = 70,
    DT_CTL_EXIT_AGAIN = 75,
    DT_CTL_EXIT_DENIED = 77,
    DT_CTL_EXIT_CONFIG = 78,
    DT_CTL_EXIT_TIMEOUT = 124,
} dt_ctl_exit_t;

typedef enum dt_ctl_option_id {
    DT_CTL_OPT_HOST,
    DT_CTL_OPT_CONFIG,
    DT_CTL_OPT_OUTPUT,
    DT_CTL_OPT_FIELDS,
    DT_CTL_OPT_FILTER,
    DT_CTL_OPT_SORT,
    DT_CTL_OPT_LIMIT,
    DT_CTL_OPT_WATCH,
    DT_CTL_OPT_FOLLOW,
    DT_CTL_OPT_SINCE,
    DT_CTL_OPT_NO_LEGEND,
    DT_CTL_OPT_COLOR,
    DT_CTL_OPT_UTC,
    DT_CTL_OPT_BYTES,
    DT_CTL_OPT_QUIET,
    DT_CTL_OPT_VERBOSE,
    DT_CTL_OPT_YES,
    DT_CTL_OPT_REASON,
    DT_CTL_OPT_DRY_RUN,
    DT_CTL_OPT_REQUEST_ID,
    DT_CTL_OPT_WAIT,
    DT_CTL_OPT_TIMEOUT,
    DT_CTL_OPT_LIFETIME,
    DT_CTL_OPT_EXPIRES,
    DT_CTL_OPT_END_JOBS,
    DT_CTL_OPT_USES,
    DT_CTL_OPT_NODE,
    DT_CTL_OPT_NAME,
    DT_CTL_OPT_LISTEN,
    DT_CTL_OPT_ADDRESS,
    DT_CTL_OPT_CONTROLLER,
    DT_CTL_OPT_TOKEN_FILE,
    DT_CTL_OPT_DEVICES,
    DT_CTL_OPT_RACK,
    DT_CTL_OPT_TORCH,
    DT_CTL_OPT_STATE_DIR,
    DT_CTL_OPT_DIR,
    DT_CTL_OPT_FORCE,
    DT_CTL_OPT_RENEW,
    DT_CTL_OPT_HELP,
    DT_CTL_OPT_VERSION,
    DT_CTL_OPT_COUNT,
} dt_ctl_option_id_t;

#define DT_CTL_BIT(option) (UINT64_C(1) << (option))

typedef enum dt_ctl_option_type {
    DT_CTL_TYPE_FLAG,
    DT_CTL_TYPE_TEXT,
    DT_CTL_TYPE_COUNT,    /* number, 1 or more */
    DT_CTL_TYPE_DURATION, /* number in milliseconds */
    DT_CTL_TYPE_CHOICE,   /* number is the index in `choices` */
} dt_ctl_option_type_t;

typedef struct dt_ctl_option {
    dt_ctl_option_type_t type;
    char letter;             /* 'o', or 0 */
    const char *name;        /* "output" for --output */
    const char *placeholder; /* "FORMAT"; NULL: a flag */
    bool is_optional;        /* the value may be missing, and is only taken with = */
    const char *choices;     /* CHOICE: words with a space between; default is the first */
    const char *help;
} dt_ctl_option_t;

struct dt_ctl;

typedef struct dt_ctl_verb {
    const char *noun;
    const char *name; /* one or two words; "" when the noun is the command */
    const char *args; /* "NODE...", "" */
    size_t arg_min, arg_max;
    uint64_t options;   /* DT_CTL_BIT()s beside those that every verb has */
    const char *ids;    /* noun whose ids complete the arguments, or NULL */
    const char *method; /* of the Admin service, or NULL: asks no controller, or several */
    const char *role;   /* "viewer" "operator" "admin", or "none" */
    const char *help;   /* one sentence without its full stop */
    const char *more;   /* further sentences, or NULL */
    const char *examples[DT_CTL_EXAMPLE_MAX]; /* without "dtorchctl" */
    int (*run)(struct dt_ctl *ctl);           /* gives the exit code */
} dt_ctl_verb_t;

typedef struct dt_ctl_noun {
    const char *name;
    const char *bare; /* verb of the noun alone; NULL: none */
    const char *show; /* verb of the noun with an id, where no verb stands; NULL: none */
    const char *help;
} dt_ctl_noun_t;

extern const dt_ctl_option_t dt_ctl_options[DT_CTL_OPT_COUNT];
extern const dt_ctl_noun_t dt_ctl_nouns[];
extern const size_t dt_ctl_noun_count;
extern const dt_ctl_verb_t dt_ctl_verbs[];
extern const size_t dt_ctl_verb_count;
extern const uint64_t dt_ctl_common_options; /* that every verb has */

typedef struct dt_ctl_setting {
    bool is_set;
    const char *text; /* NULL for flags and for optional values that are missing */
    int64_t number;   /* COUNT, DURATION (ms), CHOICE */
} dt_ctl_setting_t;

/* A command line that was understood. Texts are argv's or live in the pool. */
typedef struct dt_ctl_cli {
    const dt_ctl_noun_t *noun; /* NULL: nothing was named */
    const dt_ctl_verb_t *verb; /* NULL only with --help or --version */
    const char **args;
    size_t arg_count;
    dt_ctl_setting_t settings[DT_CTL_OPT_COUNT];
} dt_ctl_cli_t;

/* Read a command line. Ownership: borrows `argv` for the life of *ret_cli.
 * Errors: INVALID: what is wrong and the nearest right word. */
DT_MUST_USE dt_status_t dt_ctl_cli_parse(dt_arena_t *pool, int argc, char *const *argv,
                                         dt_ctl_cli_t *ret_cli, dt_error_t *err);

/* The exit code that stands for a status of the controller or of a file. */
dt_ctl_exit_t dt_ctl_exit_of(dt_status_t status);

const dt_ctl_noun_t *dt_ctl_noun_find(const char *name);                   /* exact, or NULL */
const dt_ctl_verb_t *dt_ctl_verb_find(const char *noun, const char *name); /* exact, or NULL */

#endif
