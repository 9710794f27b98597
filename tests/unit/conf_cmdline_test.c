#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <string.h>

#include "conf/cmdline.h"

TestSuite(conf_cmdline, .timeout = 60);

static dt_conf_cmdline_t cmdline;
static dt_error_t error;

/* Parse up to five words. */
static dt_status_t parse(const char *a, const char *b, const char *c, const char *d)
{
    char *argv[] = {(char[]){"dtorch-controllerd"}, NULL, NULL, NULL, NULL, NULL};
    const char *words[] = {a, b, c, d};
    static char copies[4][200];
    int argc = 1;
    for (int i = 0; i < 4 && words[i]; i++) {
        (void)dt_str_copy(copies[i], sizeof copies[i], words[i]);
        argv[argc++] = copies[i];
    }
    error = (dt_error_t){0};
    return dt_conf_cmdline_parse(dt_conf_table_controller(), argc, argv, &cmdline, &error);
}

Test(conf_cmdline, nothing_is_fine)
{
    cr_assert_eq(parse(NULL, NULL, NULL, NULL), DT_OK);
    cr_assert_eq(cmdline.sources.flag_count, 0);
    cr_assert(!cmdline.is_help && !cmdline.is_check && !cmdline.sources.config_path);
}

Test(conf_cmdline, takes_values_behind_an_equals_sign_or_as_the_next_word)
{
    cr_assert_eq(parse("--dead-beats=9", "--cluster-name", "prod", "--rejoin-grace="), DT_OK);
    cr_assert_eq(cmdline.sources.flag_count, 3);
    cr_assert_str_eq(cmdline.sources.flags[0].key, "DeadBeats");
    cr_assert_str_eq(cmdline.sources.flags[0].value, "9");
    cr_assert_str_eq(cmdline.sources.flags[1].value, "prod");
    cr_assert_str_eq(cmdline.sources.flags[2].value, "");
}

Test(conf_cmdline, a_truth_alone_means_yes)
{
    cr_assert_eq(parse("--insecure", "--check-config", NULL, NULL), DT_OK);
    cr_assert_str_eq(cmdline.sources.flags[0].value, "yes");
    cr_assert(cmdline.is_check);
    cr_assert_eq(parse("--insecure=no", NULL, NULL, NULL), DT_OK);
    cr_assert_str_eq(cmdline.sources.flags[0].value, "no");
}

Test(conf_cmdline, knows_its_own_flags)
{
    cr_assert_eq(parse("--config", "a.conf", "--dump-config", "-h"), DT_OK);
    cr_assert_str_eq(cmdline.sources.config_path, "a.conf");
    cr_assert(cmdline.is_dump && cmdline.is_help);
    cr_assert_eq(parse("--version", "--config=b.conf", "--print=flags", NULL), DT_OK);
    cr_assert(cmdline.is_version);
    cr_assert_str_eq(cmdline.print, "flags");
}

Test(conf_cmdline, an_unknown_flag_names_the_nearest)
{
    cr_assert_eq(parse("--heartbeat-intervall=3s", NULL, NULL, NULL), DT_ERR_INVALID);
    cr_assert_str_eq(error.text, "unknown flag \"--heartbeat-intervall\"; did you mean "
                                 "\"--heartbeat-interval\"?");
    cr_assert_eq(parse("--check-conf", NULL, NULL, NULL), DT_ERR_INVALID);
    cr_assert(strstr(error.text, "did you mean \"--check-config\"?"), "%s", error.text);
    cr_assert_eq(parse("-x", NULL, NULL, NULL), DT_ERR_INVALID);
    cr_assert_str_eq(error.text, "unknown flag \"-x\"");
}

Test(conf_cmdline, missing_values_and_operands_are_errors)
{
    cr_assert_eq(parse("--cluster-name", NULL, NULL, NULL), DT_ERR_INVALID);
    cr_assert_str_eq(error.text, "--cluster-name needs a value");
    cr_assert_eq(parse("--config", NULL, NULL, NULL), DT_ERR_INVALID);
    cr_assert_eq(parse("start", NULL, NULL, NULL), DT_ERR_INVALID);
    cr_assert_str_eq(error.text, "\"start\" is not a flag, and there are no other arguments");
}

Test(conf_cmdline, too_many_flags_are_refused)
{
    static char flag[] = "--dead-beats=9";
    char *argv[DT_CONF_FLAG_MAX + 2] = {flag};
    for (int i = 0; i < DT_CONF_FLAG_MAX + 1; i++)
        argv[i + 1] = flag;
    cr_assert_eq(dt_conf_cmdline_parse(dt_conf_table_controller(), DT_CONF_FLAG_MAX + 1, argv,
                                       &cmdline, &error),
                 DT_OK);
    cr_assert_eq(dt_conf_cmdline_parse(dt_conf_table_controller(), DT_CONF_FLAG_MAX + 2, argv,
                                       &cmdline, &error),
                 DT_ERR_LIMIT);
}

static dt_status_t refuse(const dt_conf_t *conf, dt_error_t *err)
{
    return dt_conf_fail(conf, "Controller", err, "refused by a test");
}

static void swallow_output(void)
{
    cr_redirect_stdout();
    cr_redirect_stderr();
}

/* Run dt_conf_start() without the system's files. */
static int start(const char *word, dt_conf_check_fn check)
{
    dt_conf_t *conf = NULL;
    char *argv[] = {(char[]){"x"}, (char[]){"--config=/dev/null"}, NULL, NULL};
    static char copy[64];
    int argc = 2;
    if (word) {
        (void)dt_str_copy(copy, sizeof copy, word);
        argv[argc++] = copy;
    }
    int rc = dt_conf_start(dt_conf_table_worker(), argc, argv, check, &cmdline, &conf);
    cr_assert_eq(rc == DT_CONF_GO_ON, conf != NULL);
    dt_conf_free(conf);
    return rc;
}

Test(conf_cmdline, start_gives_the_exit_status_of_each_end, .init = swallow_output)
{
    cr_assert_eq(start(NULL, NULL), DT_CONF_GO_ON);
    cr_assert_eq(start("--help", NULL), 0);
    cr_assert_eq(start("--version", NULL), 0);
    cr_assert_eq(start("--check-config", NULL), 0);
    cr_assert_eq(start("--dump-config", NULL), 0);
    cr_assert_eq(start("--print=workerd.conf", NULL), 0);
    cr_assert_eq(start("--print=nothing", NULL), DT_CONF_EXIT_USAGE);
    cr_assert_eq(start("--nonsense", NULL), DT_CONF_EXIT_USAGE);
    cr_assert_eq(start("--engines=-1", NULL), DT_CONF_EXIT_CONFIG);
    cr_assert_eq(start("--check-config", refuse), DT_CONF_EXIT_CONFIG);
}

Test(conf_cmdline, a_reload_runs_the_daemons_own_check_too, .init = swallow_output)
{
    cr_assert_eq(start(NULL, NULL), DT_CONF_GO_ON);
    cr_assert(cmdline.sources.check == NULL);
    cr_assert_eq(start("--help", refuse), 0);
    cr_assert_eq(start("--check-config", refuse), DT_CONF_EXIT_CONFIG);
    cr_assert(cmdline.sources.check == refuse);
}
