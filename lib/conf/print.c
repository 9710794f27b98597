/* Texts for people from the option tables: --help and the example files. The manual pages are in
 * man.c. */
#include "conf/print.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "conf/conf_internal.h"

enum { PRINT_WIDTH = 80 };

/* Turn CamelCase into words with `dash` between them; a run of capitals is one word. */
static void split_camel(const char *key, char dash, bool is_upper, char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; key[i] && at + 2 < size; i++) {
        bool is_begin = i && isupper((unsigned char)key[i]) && !isupper((unsigned char)key[i - 1]);
        if (is_begin)
            text[at++] = dash;
        text[at++] =
            (char)(is_upper ? toupper((unsigned char)key[i]) : tolower((unsigned char)key[i]));
    }
    text[at] = '\0';
}

void dt_conf_flag_name(const char *key, char text[static DT_CONF_NAME_SIZE])
{
    text[0] = text[1] = '-';
    split_camel(key, '-', false, text + 2, DT_CONF_NAME_SIZE - 2);
}

void dt_conf_env_name(const char *key, char text[static DT_CONF_NAME_SIZE])
{
    static const char prefix[] = "DTORCH_";
    memcpy(text, prefix, sizeof prefix);
    split_camel(key, '_', true, text + sizeof prefix - 1, DT_CONF_NAME_SIZE - (sizeof prefix - 1));
}

const char *dt_conf_placeholder(const dt_conf_option_t *option)
{
    switch (option->type) {
    case DT_CONF_BOOL:
        return "BOOL";
    case DT_CONF_INT:
        return "NUMBER";
    case DT_CONF_DURATION:
        return "DURATION";
    case DT_CONF_SIZE:
        return "SIZE";
    case DT_CONF_STRING:
        return option->shape == DT_CONF_SHAPE_NAME  ? "NAME"
               : option->shape != DT_CONF_SHAPE_ANY ? "ADDRESS"
                                                    : "TEXT";
    case DT_CONF_PATH:
        return "PATH";
    case DT_CONF_LIST:
        return "LIST";
    case DT_CONF_ENUM:
        return "WORD";
    }
    return "VALUE";
}

dt_status_t dt_conf_default_text(const dt_conf_option_t *option, char *text, size_t size)
{
    char reason[DT_CONF_REASON_MAX];
    dt_conf_value_t value;

    DT_TRY(dt_conf_value_parse(option, option->dflt, &value, reason));
    (void)snprintf(text, size, "%s", value.text);
    dt_conf_value_fini(&value);
    return DT_OK;
}

/* Append text broken between words, each line behind `prefix`. */
static dt_status_t wrap(dt_buf_t *out, const char *prefix, const char *text)
{
    size_t column = 0;
    DT_CLEANUP(dt_strv_fini) dt_strv_t words = {0};

    DT_TRY(dt_strv_split(&words, text, " "));
    for (size_t i = 0; i < words.count; i++) {
        size_t len = strlen(words.items[i]);
        bool is_first = i == 0;
        if (is_first || column + 1 + len > PRINT_WIDTH) {
            DT_TRY(dt_buf_printf(out, "%s%s%s", is_first ? "" : "\n", prefix, words.items[i]));
            column = strlen(prefix) + len;
        } else {
            DT_TRY(dt_buf_printf(out, " %s", words.items[i]));
            column += 1 + len;
        }
    }
    return dt_buf_append_str(out, "\n");
}

dt_status_t dt_conf_print_options(const dt_conf_table_t *table, dt_buf_t *out)
{
    for (size_t i = 0; i < table->option_count; i++) {
        const dt_conf_option_t *option = &table->options[i];
        char flag[DT_CONF_NAME_SIZE], bounds[128], dflt[256], text[640];
        dt_conf_flag_name(option->name, flag);
        bounds[0] = '\0';
        if (!dt_conf_is_counted(option))
            dt_conf_bounds_text(option, bounds, sizeof bounds);
        DT_TRY(dt_conf_default_text(option, dflt, sizeof dflt));
        (void)snprintf(text, sizeof text, "%s (%s%s%s%s)", option->help, bounds,
                       *bounds ? "; " : "", *dflt ? "default " : "default: none", dflt);
        DT_TRY(dt_buf_printf(out, "  %s=%s\n", flag, dt_conf_placeholder(option)));
        DT_TRY(wrap(out, "        ", text));
    }
    return DT_OK;
}

dt_status_t dt_conf_print_help(const dt_conf_table_t *table, dt_buf_t *out)
{
    DT_TRY(dt_buf_printf(out, "Usage: %s [OPTION]...\n%s\n\n", table->program, table->summary));
    DT_TRY(dt_buf_append_str(
        out, "  --config=FILE     read FILE in place of the system's files\n"
             "  --check-config    say whether the configuration is valid, then exit: 0 or 78\n"
             "  --dump-config     print every key with its value and origin, then exit\n"
             "  -h, --help        print this\n"
             "  --version         print the version\n"));
    DT_TRY(dt_buf_append_str(out, table->own_flags ? table->own_flags : ""));
    DT_TRY(dt_buf_printf(out,
                         "\n"
                         "Each key of [%s] is a flag too, which wins over the environment\n"
                         "(DTORCH_KEY_NAME), which wins over the files:\n\n",
                         table->section));
    DT_TRY(dt_conf_print_options(table, out));
    return dt_buf_printf(
        out,
        "\nFiles: /usr/lib/dtorch/%s, /etc/dtorch/%s,\n"
        "       %s.d/*.conf beside both; see dtorch.conf(5).\n"
        "Exit status: 0 ok, 64 wrong usage, 65 damaged state, 69 port taken, 75 try "
        "again\n(disk full, state held by another), 77 refused, 78 wrong "
        "configuration.\n",
        table->file, table->file, table->file);
}

dt_status_t dt_conf_print_example(const dt_conf_table_t *table, dt_buf_t *out)
{
    DT_TRY(dt_buf_printf(out,
                         "# Configuration of %s, see dtorch.conf(5).\n"
                         "# Every key stands here with its default. Put changes into\n"
                         "# /etc/dtorch/%s or into /etc/dtorch/%s.d/NAME.conf.\n"
                         "# A comment has a line of its own.\n\n[%s]\n",
                         table->program, table->file, table->file, table->section));
    for (size_t i = 0; i < table->option_count; i++) {
        const dt_conf_option_t *option = &table->options[i];
        char bounds[128], dflt[256], text[640];
        bounds[0] = '\0';
        if (!dt_conf_is_counted(option))
            dt_conf_bounds_text(option, bounds, sizeof bounds);
        DT_TRY(dt_conf_default_text(option, dflt, sizeof dflt));
        (void)snprintf(text, sizeof text, "%s%s%s%s", option->help, *bounds ? " (" : "", bounds,
                       *bounds ? ")" : "");
        text[0] = (char)toupper((unsigned char)text[0]);
        DT_TRY(dt_buf_append_str(out, "\n"));
        DT_TRY(wrap(out, "# ", text));
        DT_TRY(dt_buf_printf(out, "#%s=%s\n", option->name, dflt));
    }
    return DT_OK;
}

dt_status_t dt_conf_print(const dt_conf_table_t *table, const char *what, dt_buf_t *out)
{
    const dt_conf_table_t *const tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                             dt_conf_table_client()};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (dt_str_is_equal(what, tables[i]->file))
            return dt_conf_print_example(tables[i], out);
    if (dt_str_is_equal(what, "dtorch.conf.5"))
        return dt_conf_print_man(out);
    if (dt_str_is_equal(what, "flags"))
        return dt_conf_print_man_flags(table, out);
    return DT_ERR_NOT_FOUND;
}
