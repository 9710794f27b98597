/* The text of a configuration file: sections, keys, comments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "conf/conf_internal.h"

enum { FILE_WORD_SHOWN = 64, FILE_WHERE_MAX = 4096 + 16 };

/* Where the parser is. */
typedef struct parser {
    dt_conf_t *conf;
    const char *name;   /* of the file, for messages */
    int line;           /* from 1 on */
    bool is_in_section; /* the program's section has begun */
    dt_error_t *err;
} parser_t;

static dt_status_t refuse(const parser_t *parser, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);

static dt_status_t refuse(const parser_t *parser, const char *fmt, ...)
{
    char text[DT_CONF_REASON_MAX];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return dt_fail(parser->err, DT_ERR_INVALID, "dt", parser->line, "%s:%d: %s", parser->name,
                   parser->line, text);
}

static dt_status_t begin_section(parser_t *parser, char *line)
{
    const dt_conf_table_t *ours = parser->conf->table;
    const dt_conf_table_t *const tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                             dt_conf_table_client()};
    char *end = strchr(line, ']');
    if (!end || end[1])
        return refuse(parser, "a section is written [%s], alone on its line", ours->section);
    *end = '\0';
    const char *section = line + 1;
    if (dt_str_is_equal(section, ours->section)) {
        parser->is_in_section = true;
        return DT_OK;
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (dt_str_is_equal(section, tables[i]->section))
            return refuse(parser, "section [%s] belongs into %s; %s reads [%s]", section,
                          tables[i]->file, ours->program, ours->section);
    bool is_near = dt_nearest(section, &ours->section, 1) != NULL;
    return refuse(parser, "unknown section [%.*s]; %s [%s]%s", FILE_WORD_SHOWN, section,
                  is_near ? "did you mean" : "the only one here is", ours->section,
                  is_near ? "?" : "");
}

static dt_status_t set_key(parser_t *parser, const char *key, const char *value)
{
    const dt_conf_table_t *table = parser->conf->table;
    size_t index = dt_conf_find(table, key);
    char where[FILE_WHERE_MAX];

    if (index == table->option_count) {
        const char *near = dt_conf_nearest_key(table, key);
        return refuse(parser, "unknown key \"%.*s\" in [%s]%s%s%s", FILE_WORD_SHOWN, key,
                      table->section, near ? "; did you mean \"" : "", near ? near : "",
                      near ? "\"?" : "");
    }
    (void)snprintf(where, sizeof where, "%s:%d", parser->name, parser->line);
    return dt_conf_set(parser->conf, index, value, where, parser->err);
}

static dt_status_t read_line(parser_t *parser, char *line)
{
    for (const char *at = line; *at; at++)
        if (((unsigned char)*at < 0x20 && !strchr("\t\r", *at)) || *at == 0x7f)
            return refuse(parser, "control character 0x%02x", (unsigned char)*at);
    if (!dt_str_is_utf8(line, strlen(line)))
        return refuse(parser, "not UTF-8");
    line = dt_str_trim(line);
    if (!*line || *line == '#' || *line == ';')
        return DT_OK;
    if (*line == '[')
        return begin_section(parser, line);
    char *equals = strchr(line, '=');
    if (!equals || equals == line)
        return refuse(parser, "\"%.*s\" is neither Key=Value nor [%s]", FILE_WORD_SHOWN, line,
                      parser->conf->table->section);
    *equals = '\0';
    const char *key = dt_str_trim(line);
    if (!parser->is_in_section)
        return refuse(parser, "\"%.*s\" stands before the line [%s]", FILE_WORD_SHOWN, key,
                      parser->conf->table->section);
    return set_key(parser, key, dt_str_trim(equals + 1));
}

dt_status_t dt_conf_apply_text(dt_conf_t *conf, const char *name, const char *text, size_t len,
                               dt_error_t *err)
{
    parser_t parser = {.conf = conf, .name = name, .err = err};
    char line[DT_CONF_LINE_MAX + 1];

    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3; /* the byte order mark that some editors write */
        len -= 3;
    }
    while (len) {
        const char *newline = memchr(text, '\n', len);
        size_t line_len = newline ? (size_t)(newline - text) : len;
        size_t step = newline ? line_len + 1 : line_len;
        parser.line++;
        if (line_len > DT_CONF_LINE_MAX)
            return refuse(&parser, "a line of %zu bytes; at most %d", line_len, DT_CONF_LINE_MAX);
        if (memchr(text, '\0', line_len))
            return refuse(&parser, "control character 0x00");
        memcpy(line, text, line_len);
        line[line_len] = '\0';
        DT_TRY(read_line(&parser, line));
        text += step;
        len -= step;
    }
    return DT_OK;
}
