#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/env.h"
#include "conf/print.h"
#include "lib/testproc.h"

TestSuite(conf_print, .timeout = 60);

/* Print into a buffer that lives until the next call. */
static const char *print(const dt_conf_table_t *table, const char *what)
{
    static dt_buf_t out;
    const char *text = NULL;
    dt_buf_fini(&out);
    dt_buf_init(&out, DT_CONF_TEXT_MAX);
    dt_status_t status = strcmp(what, "help") == 0 ? dt_conf_print_help(table, &out)
                                                   : dt_conf_print(table, what, &out);
    cr_assert_eq(status, DT_OK, "%s", dt_status_text(status));
    cr_assert_eq(dt_buf_text(&out, &text), DT_OK);
    return text;
}

static void check_example(const char *name)
{
    char path[1024];
    const char *tree = dt_env_get("DT_TEST_TREE");
    (void)snprintf(path, sizeof path, "%s/config/%s", tree ? tree : ".", name);
    char *file = dt_test_read_file(path);
    cr_assert(file, "%s", path);
    cr_assert_str_eq(file, print(dt_conf_table_client(), name),
                     "make it again: dtorch-controllerd --print=%s >config/%s", name, name);
    free(file);
}

Test(conf_print, the_example_files_are_what_the_tables_print)
{
    check_example("controllerd.conf");
    check_example("workerd.conf");
    check_example("client.conf");
}

Test(conf_print, an_example_with_its_keys_uncommented_is_the_default_configuration)
{
    const dt_conf_table_t *tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                       dt_conf_table_client()};
    for (size_t i = 0; i < 3; i++) {
        const char *text = print(tables[i], tables[i]->file);
        char *edited = strdup(text);
        dt_conf_t *conf = NULL;
        dt_conf_t *plain = NULL;
        dt_error_t err = {0};
        for (char *at = edited; (at = strstr(at, "\n#")) != NULL; at++)
            if (at[2] != ' ')
                at[1] = ' ';
        cr_assert_eq(dt_conf_parse(tables[i], "x", edited, strlen(edited), &conf, &err), DT_OK,
                     "%s", err.text);
        cr_assert_eq(dt_conf_parse(tables[i], "x", "", 0, &plain, &err), DT_OK);
        cr_assert_str_eq(dt_conf_hash(conf), dt_conf_hash(plain));
        dt_conf_free(conf);
        dt_conf_free(plain);
        free(edited);
    }
}

static void check_width(const char *text)
{
    while (*text) {
        size_t len = strcspn(text, "\n");
        cr_assert(len <= 80, "%.*s", (int)len, text);
        text += len + (text[len] == '\n');
    }
}

Test(conf_print, help_fits_eighty_columns_and_names_every_flag)
{
    const dt_conf_table_t *tables[] = {dt_conf_table_controller(), dt_conf_table_worker()};
    for (size_t i = 0; i < 2; i++) {
        const char *text = print(tables[i], "help");
        check_width(text);
        for (size_t k = 0; k < tables[i]->option_count; k++) {
            char flag[DT_CONF_NAME_SIZE];
            dt_conf_flag_name(tables[i]->options[k].name, flag);
            cr_assert(strstr(text, flag), "%s", flag);
        }
        check_width(print(tables[i], tables[i]->file));
    }
}

Test(conf_print, help_shows_the_bounds_and_the_default)
{
    const char *text = print(dt_conf_table_controller(), "help");
    cr_assert(strstr(text, "  --heartbeat-interval=DURATION\n"
                           "        time between two heartbeats, in both directions (50ms..1min; "
                           "default\n        250ms)\n"),
              "%s", text);
}

Test(conf_print, the_manual_page_names_every_key_of_every_program)
{
    const dt_conf_table_t *tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                       dt_conf_table_client()};
    const char *text = print(dt_conf_table_client(), "dtorch.conf.5");
    check_width(text);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < tables[i]->option_count; k++) {
            char item[128];
            (void)snprintf(item, sizeof item, "\n.It Va %s Ns = ", tables[i]->options[k].name);
            cr_assert(strstr(text, item), "%s", item);
        }
    cr_assert(strstr(text, "Default: info; one of err warning notice info debug; reloadable.\n"));
    cr_assert(strstr(text, "\\(dqsim:8\\(dq"), "quotes are escaped");
}

Test(conf_print, the_flags_of_a_program_are_a_list_for_its_own_page)
{
    const char *text = print(dt_conf_table_worker(), "flags");
    cr_assert(strstr(text, "\n.It Fl Fl node-name Ns = Ns Ar NAME\n"));
    cr_assert(!strstr(text, "nodes-max"));
}

Test(conf_print, what_is_unknown_is_not_printed)
{
    dt_buf_t out;
    dt_buf_init(&out, DT_CONF_TEXT_MAX);
    cr_assert_eq(dt_conf_print(dt_conf_table_client(), "x.conf", &out), DT_ERR_NOT_FOUND);
    dt_buf_init(&out, 100);
    cr_assert_eq(dt_conf_print(dt_conf_table_client(), "client.conf", &out), DT_ERR_LIMIT);
    dt_buf_fini(&out);
}

Test(conf_print, names_of_flags_and_variables_follow_from_the_key)
{
    char text[DT_CONF_NAME_SIZE];
    dt_conf_flag_name("CertificateAuthorityKey", text);
    cr_assert_str_eq(text, "--certificate-authority-key");
    dt_conf_env_name("HeartbeatInterval", text);
    cr_assert_str_eq(text, "DTORCH_HEARTBEAT_INTERVAL");
    dt_conf_env_name("Listen", text);
    cr_assert_str_eq(text, "DTORCH_LISTEN");
}
