/* The daemons' command line. */
#include "conf/cmdline.h"

#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "base/version.h"
#include "conf/conf_internal.h"
#include "conf/print.h"

enum { CMDLINE_FLAG_MAX = 96 };

/* Flags that are no options. */
static const char *const own_flags[] = {"--config", "--check-config", "--dump-config",
                                        "--help",   "--version",      "--print"};

/* A command line under way. */
typedef struct reader {
    const dt_conf_table_t *table;
    int argc;
    char **argv;
    int at; /* the word that is read */
    dt_error_t *err;
} reader_t;

/* Whether a word is `flag` or begins with `flag=`; the text behind the = or NULL. */
static bool is_flag(const char *word, const char *flag, const char **ret_value)
{
    size_t len = strlen(flag);
    if (strncmp(word, flag, len) != 0 || (word[len] && word[len] != '='))
        return false;
    *ret_value = word[len] ? word + len + 1 : NULL;
    return true;
}

/* The value behind a flag: after its =, else the next word. */
static dt_status_t need_value(reader_t *reader, const char *flag, const char **value)
{
    if (*value)
        return DT_OK;
    if (reader->at + 1 >= reader->argc)
        return dt_fail(reader->err, DT_ERR_INVALID, "dt", 0, "%s needs a value", flag);
    *value = reader->argv[++reader->at];
    return DT_OK;
}

static dt_status_t refuse_flag(const reader_t *reader, const char *word)
{
    char names[CMDLINE_FLAG_MAX][DT_CONF_NAME_SIZE];
    const char *candidates[CMDLINE_FLAG_MAX];
    char flag[DT_CONF_NAME_SIZE];
    size_t count = 0;

    for (size_t i = 0; i + 1 < sizeof own_flags / sizeof *own_flags; i++)
        candidates[count++] = own_flags[i];
    for (size_t i = 0; i < reader->table->option_count && count < CMDLINE_FLAG_MAX; i++) {
        dt_conf_flag_name(reader->table->options[i].name, names[count]);
        candidates[count] = names[count];
        count++;
    }
    (void)snprintf(flag, sizeof flag, "%.*s", (int)strcspn(word, "="), word);
    const char *near = dt_nearest(flag, candidates, count);
    return dt_fail(reader->err, DT_ERR_INVALID, "dt", 0, "unknown flag \"%s\"%s%s%s", flag,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* Read the flag of an option. Sets *ret_taken when it was one. */
static dt_status_t read_option(reader_t *reader, dt_conf_cmdline_t *cmdline, bool *ret_taken)
{
    const char *word = reader->argv[reader->at];
    char flag[DT_CONF_NAME_SIZE];
    const char *value = NULL;
    size_t i = 0;

    *ret_taken = false;
    for (; i < reader->table->option_count; i++) {
        dt_conf_flag_name(reader->table->options[i].name, flag);
        if (is_flag(word, flag, &value))
            break;
    }
    if (i == reader->table->option_count)
        return DT_OK;
    *ret_taken = true;
    if (!value && reader->table->options[i].type == DT_CONF_BOOL)
        value = "yes";
    DT_TRY(need_value(reader, flag, &value));
    size_t count = cmdline->sources.flag_count;
    if (count == DT_CONF_FLAG_MAX)
        return dt_fail(reader->err, DT_ERR_LIMIT, "dt", 0, "more than %d flags", DT_CONF_FLAG_MAX);
    cmdline->flags[count] = (dt_conf_flag_t){reader->table->options[i].name, value, NULL};
    cmdline->sources.flag_count++;
    return DT_OK;
}

static dt_status_t read_word(reader_t *reader, dt_conf_cmdline_t *cmdline)
{
    const char *word = reader->argv[reader->at];
    const char *value = NULL;
    bool is_taken = false;

    if (is_flag(word, "--config", &value)) {
        DT_TRY(need_value(reader, "--config", &value));
        cmdline->sources.config_path = value;
        return DT_OK;
    }
    if (is_flag(word, "--print", &value)) {
        DT_TRY(need_value(reader, "--print", &value));
        cmdline->print = value;
        return DT_OK;
    }
    if (dt_str_is_equal(word, "--check-config"))
        cmdline->is_check = true;
    else if (dt_str_is_equal(word, "--dump-config"))
        cmdline->is_dump = true;
    else if (dt_str_is_equal(word, "--help") || dt_str_is_equal(word, "-h"))
        cmdline->is_help = true;
    else if (dt_str_is_equal(word, "--version"))
        cmdline->is_version = true;
    else if (word[0] != '-')
        return dt_fail(reader->err, DT_ERR_INVALID, "dt", 0,
                       "\"%.64s\" is not a flag, and there are no other arguments", word);
    else {
        DT_TRY(read_option(reader, cmdline, &is_taken));
        return is_taken ? DT_OK : refuse_flag(reader, word);
    }
    return DT_OK;
}

dt_status_t dt_conf_cmdline_parse(const dt_conf_table_t *table, int argc, char **argv,
                                  dt_conf_cmdline_t *ret_cmdline, dt_error_t *err)
{
    reader_t reader = {.table = table, .argc = argc, .argv = argv, .at = 1, .err = err};

    *ret_cmdline = (dt_conf_cmdline_t){0};
    for (; reader.at < argc; reader.at++)
        DT_TRY(read_word(&reader, ret_cmdline));
    ret_cmdline->sources.flags = ret_cmdline->flags;
    return DT_OK;
}

/* Print a text that was made into `out`. Returns the exit status. */
static int finish_print(const char *program, dt_status_t status, dt_buf_t *out)
{
    int rc = 0;
    if (status != DT_OK) {
        (void)fprintf(stderr, "%s: %s\n", program, dt_status_text(status));
        rc = DT_CONF_EXIT_USAGE;
    } else if (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0) {
        (void)fprintf(stderr, "%s: cannot write to standard output\n", program);
        rc = 1;
    }
    dt_buf_fini(out);
    return rc;
}

/* Do what --help, --version and --print ask for. */
static int print_static(const dt_conf_table_t *table, const dt_conf_cmdline_t *cmdline)
{
    dt_buf_t out;
    dt_status_t status;
    dt_buf_init(&out, DT_CONF_TEXT_MAX);

    if (cmdline->is_help)
        status = dt_conf_print_help(table, &out);
    else if (cmdline->is_version)
        status = dt_buf_printf(&out, "%s %s\n", table->program, dt_version());
    else
        status = dt_conf_print(table, cmdline->print, &out);
    return finish_print(table->program, status, &out);
}

/* Do what --check-config and --dump-config ask for. */
static int print_loaded(const dt_conf_table_t *table, const dt_conf_cmdline_t *cmdline,
                        const dt_conf_t *conf)
{
    dt_buf_t out;
    dt_status_t status;
    dt_buf_init(&out, DT_CONF_TEXT_MAX);

    if (cmdline->is_dump)
        status = dt_conf_dump(conf, &out);
    else
        status = dt_buf_printf(&out, "%s: the configuration is valid, hash %s\n", table->program,
                               dt_conf_hash(conf));
    return finish_print(table->program, status, &out);
}

int dt_conf_start(const dt_conf_table_t *table, int argc, char **argv, dt_conf_check_fn check,
                  dt_conf_cmdline_t *ret_cmdline, dt_conf_t **ret_conf)
{
    DT_CLEANUP(dt_conf_freep) dt_conf_t *conf = NULL;
    dt_error_t err = {0};

    if (dt_conf_cmdline_parse(table, argc, argv, ret_cmdline, &err) != DT_OK) {
        (void)fprintf(stderr, "%s: %s\nTry: %s --help\n", table->program, err.text, table->program);
        return DT_CONF_EXIT_USAGE;
    }
    if (ret_cmdline->is_help || ret_cmdline->is_version || ret_cmdline->print)
        return print_static(table, ret_cmdline);
    ret_cmdline->sources.check = check;
    if (dt_conf_load(table, &ret_cmdline->sources, &conf, &err) != DT_OK) {
        /* A text that begins with a path is FILE:LINE: editors jump there when it comes first. */
        bool is_located = err.text[0] == '/';
        (void)fprintf(stderr, "%s%s%s\n", is_located ? "" : table->program, is_located ? "" : ": ",
                      err.text);
        return DT_CONF_EXIT_CONFIG;
    }
    if (ret_cmdline->is_check || ret_cmdline->is_dump)
        return print_loaded(table, ret_cmdline, conf);
    *ret_conf = DT_TAKE(conf);
    return DT_CONF_GO_ON;
}
