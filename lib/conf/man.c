/* Manual pages from the option tables, in mdoc(7). */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "conf/conf_internal.h"
#include "conf/print.h"

enum { MAN_WIDTH = 72 }; /* leaves room for escapes */

static const char man_head[] =
    ".\\\" Made from the option tables in lib/conf/options.c.\n"
    ".Dd November 30, 2026\n"
    ".Dt DTORCH.CONF 5\n"
    ".Os\n"
    ".Sh NAME\n"
    ".Nm dtorch.conf\n"
    ".Nd configuration of the DTorch programs\n"
    ".Sh SYNOPSIS\n"
    ".Bl -item -compact\n"
    ".It\n.Pa /etc/dtorch/controllerd.conf\n"
    ".It\n.Pa /etc/dtorch/workerd.conf\n"
    ".It\n.Pa /etc/dtorch/client.conf\n"
    ".El\n"
    ".Sh DESCRIPTION\n"
    "Each program reads one file with one section.\n"
    "A line is\n"
    ".Ar Key Ns = Ns Ar Value .\n"
    "Lines that begin with # or ; are comments.\n"
    "A # behind a value belongs to the value.\n"
    "An empty value means the default again.\n"
    "A list that is set again is replaced.\n"
    ".Pp\n"
    "The sources of a value are, the later ones winning:\n"
    ".Bl -enum -compact\n"
    ".It\nthe default;\n"
    ".It\n.Pa /usr/lib/dtorch/X.conf ,\nthen\n.Pa /etc/dtorch/X.conf ;\n"
    ".It\nthe drop-ins\n.Pa X.conf.d/NAME.conf\nof both folders in the order of their names, where "
    "a file in\n.Pa /etc\nhides one of the same name in\n.Pa /usr/lib ;\n"
    ".It\nthe environment: the variable of the key\n.Ar ClusterName\nis\n"
    ".Ev DTORCH_CLUSTER_NAME ;\n"
    ".It\nflags: the flag of the key\n.Ar ClusterName\nis\n.Fl Fl cluster-name .\n"
    ".El\n"
    ".Pp\n"
    "With\n.Fl Fl config Ns = Ns Ar FILE\nthat file stands in place of the files of 2 and 3.\n"
    "An unknown section or key is an error that names the file, the line and\n"
    "the nearest key.\n"
    ".Fl Fl check-config\nsays whether a configuration is valid,\n"
    ".Fl Fl dump-config\nprints every key with its value and its origin.\n"
    ".Ss Values\n"
    ".Bl -tag -width \"DURATION\"\n"
    ".It Ar BOOL\nyes, no, true, false, on, off, 1 or 0.\n"
    ".It Ar NUMBER\nA whole decimal number.\n"
    ".It Ar DURATION\nNumbers with units: ns, us, ms, s, min, h, d, w;\nfor example 250ms, 1.5s or "
    "\\(dq1min 30s\\(dq.\n"
    ".It Ar SIZE\nA number with B, KiB, MiB, GiB or TiB; K, M, G and T mean the same.\n"
    ".It Ar ADDRESS\nHOST:PORT, [IPV6]:PORT or the absolute path of a unix socket.\n"
    ".It Ar NAME\n1 to 63 of a-z, 0-9 and the dash, which is neither first nor last.\n"
    ".It Ar LIST\nWords with spaces between them; addresses may have commas between them too.\n"
    ".It Ar PATH\nAn absolute path; in the environment and as a flag it may begin in the\n"
    "current folder.\n"
    ".El\n"
    ".Ss Reload\n"
    "On\n.Dv SIGHUP\n"
    "a daemon reads its configuration again.\n"
    "It takes over all of it or, when something is wrong or a changed key\n"
    "needs a restart, nothing, and says why.\n"
    "Keys that a reload can change are marked below.\n";

static const char man_tail[] =
    ".Sh FILES\n"
    ".Bl -tag -width Ds\n"
    ".It Pa /usr/lib/dtorch/*.conf\nWhat the vendor sets.\n"
    ".It Pa /etc/dtorch/*.conf , Pa /etc/dtorch/*.conf.d/*.conf\nWhat the site sets.\n"
    ".El\n"
    ".Sh EXIT STATUS\n"
    "The daemons exit with 78 when their configuration is wrong.\n"
    "Their units do not start them again then.\n"
    ".Sh EXAMPLES\n"
    "A worker of a controller on another host, in\n"
    ".Pa /etc/dtorch/workerd.conf :\n"
    ".Bd -literal -offset indent\n"
    "[Worker]\n"
    "Controller=ctl1.example.com:7700\n"
    "Rack=r12\n"
    ".Ed\n"
    ".Sh SEE ALSO\n"
    ".Xr dtorchctl 1 ,\n"
    ".Xr dtorch-protocol 7 ,\n"
    ".Xr dtorch-controllerd 8 ,\n"
    ".Xr dtorch-workerd 8\n";

/* Append one word with what mdoc would read as its own escaped. */
static dt_status_t append_word(dt_buf_t *out, const char *word, bool is_begin)
{
    if (is_begin && (*word == '.' || *word == '\''))
        DT_TRY(dt_buf_append_str(out, "\\&"));
    for (const char *at = word; *at; at++) {
        if (*at == '\\')
            DT_TRY(dt_buf_append_str(out, "\\e"));
        else if (*at == '"')
            DT_TRY(dt_buf_append_str(out, "\\(dq"));
        else
            DT_TRY(dt_buf_append_byte(out, (uint8_t)*at));
    }
    return DT_OK;
}

/* Append text with a new line at each sentence's end and before the 80th column. */
static dt_status_t append_text(dt_buf_t *out, const char *text)
{
    DT_CLEANUP(dt_strv_fini) dt_strv_t words = {0};
    size_t begin = out->len;
    bool is_begin = true;

    DT_TRY(dt_strv_split(&words, text, " "));
    for (size_t i = 0; i < words.count; i++) {
        const char *word = words.items[i];
        if (!is_begin && out->len - begin + strlen(word) + 1 > MAN_WIDTH)
            is_begin = true;
        if (i)
            DT_TRY(dt_buf_append_byte(out, is_begin ? '\n' : ' '));
        if (is_begin)
            begin = out->len;
        DT_TRY(append_word(out, word, is_begin));
        is_begin = dt_str_has_suffix(word, ".");
    }
    return dt_buf_append_str(out, "\n");
}

/* Append the sentences of one option. */
static dt_status_t append_option(dt_buf_t *out, const dt_conf_option_t *option)
{
    char bounds[128], dflt[256], text[1024];

    dt_conf_bounds_text(option, bounds, sizeof bounds);
    DT_TRY(dt_conf_default_text(option, dflt, sizeof dflt));
    (void)snprintf(text, sizeof text, "%s.", option->help);
    text[0] = (char)toupper((unsigned char)text[0]);
    DT_TRY(append_text(out, text));
    if (option->more)
        DT_TRY(append_text(out, option->more));
    (void)snprintf(text, sizeof text, "Default: %s%s%s%s%s", *dflt ? dflt : "none",
                   *bounds ? "; " : "",
                   !*bounds                       ? ""
                   : option->type == DT_CONF_ENUM ? "one of "
                   : dt_conf_is_counted(option)   ? ""
                                                  : "range ",
                   bounds, option->is_reloadable ? "; reloadable." : ".");
    return append_text(out, text);
}

dt_status_t dt_conf_print_man(dt_buf_t *out)
{
    const dt_conf_table_t *const tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                             dt_conf_table_client()};

    DT_TRY(dt_buf_append_str(out, man_head));
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        DT_TRY(dt_buf_printf(out, ".Sh [%s] IN %s\n", tables[i]->section, tables[i]->file));
        DT_TRY(append_text(out, tables[i]->summary));
        DT_TRY(dt_buf_append_str(out, ".Bl -tag -width Ds\n"));
        for (size_t k = 0; k < tables[i]->option_count; k++) {
            const dt_conf_option_t *option = &tables[i]->options[k];
            DT_TRY(dt_buf_printf(out, ".It Va %s Ns = Ns Ar %s\n", option->name,
                                 dt_conf_placeholder(option)));
            DT_TRY(append_option(out, option));
        }
        DT_TRY(dt_buf_append_str(out, ".El\n"));
    }
    return dt_buf_append_str(out, man_tail);
}

dt_status_t dt_conf_print_man_flags(const dt_conf_table_t *table, dt_buf_t *out)
{
    DT_TRY(dt_buf_append_str(out, ".Bl -tag -width Ds\n"));
    for (size_t i = 0; i < table->option_count; i++) {
        const dt_conf_option_t *option = &table->options[i];
        char flag[DT_CONF_NAME_SIZE];
        dt_conf_flag_name(option->name, flag);
        DT_TRY(dt_buf_printf(out, ".It Fl Fl %s Ns = Ns Ar %s\n", flag + 2,
                             dt_conf_placeholder(option)));
        DT_TRY(append_option(out, option));
    }
    return dt_buf_append_str(out, ".El\n");
}
