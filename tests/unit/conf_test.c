#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "conf/conf.h"

TestSuite(conf, .timeout = 60);

/* Parse the text of controllerd.conf; the error's text is in `error` then. */
static dt_error_t error;

static dt_conf_t *parse(const char *text)
{
    dt_conf_t *conf = NULL;
    error = (dt_error_t){0};
    if (dt_conf_parse(dt_conf_table_controller(), "/etc/c.conf", text, strlen(text), &conf,
                      &error) != DT_OK)
        return NULL;
    return conf;
}

/* Expect the text to be refused with the message. */
static void refused(const char *text, const char *message)
{
    dt_conf_t *conf = parse(text);
    cr_assert(conf == NULL, "taken: %s", text);
    cr_assert_eq(error.code, DT_ERR_INVALID);
    cr_assert_str_eq(error.text, message);
}

Test(conf, an_empty_file_gives_the_defaults)
{
    dt_conf_t *conf = parse("");
    cr_assert_str_eq(dt_conf_str(conf, "ClusterName"), "dtorch");
    cr_assert_eq(dt_conf_duration_ns(conf, "HeartbeatInterval"), 250 * DT_CLOCK_MS_NS);
    cr_assert_eq(dt_conf_int(conf, "DeadBeats"), 8);
    cr_assert_eq(dt_conf_size(conf, "JournalSegment"), INT64_C(64) << 20);
    cr_assert_not(dt_conf_bool(conf, "Insecure"));
    cr_assert_str_eq(dt_conf_enum(conf, "LogLevel"), "info");
    cr_assert_eq(dt_conf_list(conf, "Listen")->count, 2);
    cr_assert_str_eq(dt_conf_str(conf, "Certificate"), "");
    cr_assert(dt_conf_is_default(conf, "Listen"));
    dt_conf_free(conf);
}

Test(conf, every_default_is_within_its_own_bounds)
{
    const dt_conf_table_t *tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                       dt_conf_table_client()};
    for (size_t i = 0; i < 3; i++) {
        dt_conf_t *conf = NULL;
        cr_assert_eq(dt_conf_parse(tables[i], "x", "", 0, &conf, &error), DT_OK, "%s", error.text);
        cr_assert_eq(dt_conf_entry_count(conf), tables[i]->option_count);
        for (size_t k = 0; k < tables[i]->option_count; k++) {
            const dt_conf_option_t *option = &tables[i]->options[k];
            dt_conf_entry_t entry;
            dt_conf_entry(conf, k, &entry);
            cr_assert_str_eq(entry.value, option->dflt, "%s is not written as it is printed",
                             option->name);
            cr_assert(option->help && option->help[strlen(option->help) - 1] != '.');
        }
        dt_conf_free(conf);
    }
}

Test(conf, there_are_fewer_than_eighty_keys_and_none_twice)
{
    const dt_conf_table_t *tables[] = {dt_conf_table_controller(), dt_conf_table_worker(),
                                       dt_conf_table_client()};
    size_t sum = 0;
    for (size_t i = 0; i < 3; i++) {
        sum += tables[i]->option_count;
        for (size_t k = 0; k < tables[i]->option_count; k++)
            for (size_t m = 0; m < k; m++)
                cr_assert_str_neq(tables[i]->options[k].name, tables[i]->options[m].name);
    }
    cr_assert(sum < 80, "%zu", sum);
}

Test(conf, reads_each_type_with_blanks_comments_and_line_ends_of_any_kind)
{
    dt_conf_t *conf = parse("# one\n; two\n\n \t\n[Controller]\r\n"
                            "  ClusterName = prod \r\nInsecure=on\nDeadBeats=12\n"
                            "HeartbeatInterval=1.5s\nJournalSegment=128MiB\nLogLevel=debug\n"
                            "StateDirectory=/srv/a b#c\nListen=none");
    cr_assert(conf, "%s", error.text);
    cr_assert_str_eq(dt_conf_str(conf, "ClusterName"), "prod");
    cr_assert(dt_conf_bool(conf, "Insecure"));
    cr_assert_eq(dt_conf_int(conf, "DeadBeats"), 12);
    cr_assert_eq(dt_conf_duration_ns(conf, "HeartbeatInterval"), 1500 * DT_CLOCK_MS_NS);
    cr_assert_eq(dt_conf_size(conf, "JournalSegment"), INT64_C(128) << 20);
    cr_assert_str_eq(dt_conf_enum(conf, "LogLevel"), "debug");
    cr_assert_str_eq(dt_conf_str(conf, "StateDirectory"), "/srv/a b#c", "no inline comments");
    cr_assert_str_eq(dt_conf_list(conf, "Listen")->items[0], "none");
    dt_conf_free(conf);
}

Test(conf, the_last_line_of_a_key_wins_and_an_empty_value_is_the_default_again)
{
    dt_conf_t *conf = parse("[Controller]\nListen=none\nListen=[::1]:0,/run/x y:7\nDeadBeats=9\n"
                            "DeadBeats=\n");
    cr_assert(conf, "%s", error.text);
    const dt_strv_t *listen = dt_conf_list(conf, "Listen");
    cr_assert_eq(listen->count, 3);
    cr_assert_str_eq(listen->items[2], "y:7");
    cr_assert_eq(dt_conf_int(conf, "DeadBeats"), 8);
    cr_assert(dt_conf_is_default(conf, "DeadBeats") && !dt_conf_is_default(conf, "Listen"));
    dt_conf_free(conf);
}

Test(conf, addresses_to_dial_get_the_default_port)
{
    const char *text = "[Worker]\nController=ctl1 ctl2:70, [fe80::1%eth0] [::1]:80 /run/x\n";
    dt_conf_t *conf = NULL;
    cr_assert_eq(dt_conf_parse(dt_conf_table_worker(), "w", text, strlen(text), &conf, &error),
                 DT_OK, "%s", error.text);
    dt_conf_entry_t entry;
    dt_conf_entry(conf, 0, &entry);
    cr_assert_str_eq(entry.value, "ctl1:7700 ctl2:70 [fe80::1%eth0]:7700 [::1]:80 /run/x");
    cr_assert_str_eq(entry.origin, "w:2");
    dt_conf_free(conf);
}

Test(conf, device_words_may_hold_commas)
{
    const char *text = "[Worker]\nDevices=sim:8,nvlink=4 ref\n";
    dt_conf_t *conf = NULL;
    cr_assert_eq(dt_conf_parse(dt_conf_table_worker(), "w", text, strlen(text), &conf, &error),
                 DT_OK);
    cr_assert_eq(dt_conf_list(conf, "Devices")->count, 2);
    cr_assert_str_eq(dt_conf_list(conf, "Devices")->items[0], "sim:8,nvlink=4");
    dt_conf_free(conf);
}

Test(conf, an_unknown_key_is_an_error_with_line_and_nearest_key)
{
    refused("[Controller]\n\nHeartbeatIntervall=3s\n",
            "/etc/c.conf:3: unknown key \"HeartbeatIntervall\" in [Controller]; did you mean "
            "\"HeartbeatInterval\"?");
    refused("[Controller]\nZzz=3s\n", "/etc/c.conf:2: unknown key \"Zzz\" in [Controller]");
}

Test(conf, an_unknown_section_is_an_error_and_a_foreign_one_names_its_file)
{
    refused("[Controler]\n",
            "/etc/c.conf:1: unknown section [Controler]; did you mean [Controller]?");
    refused("[Xyz]\n", "/etc/c.conf:1: unknown section [Xyz]; the only one here is [Controller]");
    refused("[Worker]\n", "/etc/c.conf:1: section [Worker] belongs into workerd.conf; "
                          "dtorch-controllerd reads [Controller]");
    refused("[Controller] # x\n",
            "/etc/c.conf:1: a section is written [Controller], alone on its line");
    refused("DeadBeats=4\n", "/etc/c.conf:1: \"DeadBeats\" stands before the line [Controller]");
}

Test(conf, a_line_that_is_neither_is_an_error)
{
    refused("[Controller]\nDeadBeats\n",
            "/etc/c.conf:2: \"DeadBeats\" is neither Key=Value nor [Controller]");
    refused("[Controller]\n=4\n", "/etc/c.conf:2: \"=4\" is neither Key=Value nor [Controller]");
    refused("[Controller]\nClusterName=a\x01\n", "/etc/c.conf:2: control character 0x01");
    refused("[Controller]\nClusterName=\xff\n", "/etc/c.conf:2: not UTF-8");
}

Test(conf, bounds_are_named_with_value_and_range)
{
    refused("[Controller]\nHeartbeatInterval=10ms\n",
            "/etc/c.conf:2: HeartbeatInterval=10ms: not in 50ms..1min");
    refused("[Controller]\nHeartbeatInterval=61s\n",
            "/etc/c.conf:2: HeartbeatInterval=61s: not in 50ms..1min");
    refused("[Controller]\nHeartbeatInterval=250\n",
            "/etc/c.conf:2: HeartbeatInterval=250: not a duration with its unit, such as 250ms or "
            "1min 30s");
    refused("[Controller]\nJournalSegment=1KiB\n",
            "/etc/c.conf:2: JournalSegment=1KiB: not in 1MiB..1GiB");
    refused("[Controller]\nDeadBeats=1001\n", "/etc/c.conf:2: DeadBeats=1001: not in 3..1000");
    refused("[Controller]\nDeadBeats=99999999999999999999\n",
            "/etc/c.conf:2: DeadBeats=99999999999999999999: far too large");
    refused("[Controller]\nInsecure=perhaps\n", "/etc/c.conf:2: Insecure=perhaps: not yes or no");
    refused("[Controller]\nLogLevel=infos\n",
            "/etc/c.conf:2: LogLevel=infos: not one of: err warning notice info debug; did you "
            "mean info?");
    refused("[Controller]\nStateDirectory=var\n",
            "/etc/c.conf:2: StateDirectory=var: not an absolute path");
    refused("[Controller]\nListen=a:1 a:2 a:3 a:4 a:5 a:6 a:7 a:8 a:9 a:10 a:11 a:12 a:13 a:14 "
            "a:15 a:16 a:17\n",
            "/etc/c.conf:2: Listen=a:1 a:2 a:3 a:4 a:5 a:6 a:7 a:8 a:9 a:10 a:11 a:12 a:13 a:14 "
            "a:15 a:16 a:17: at most 16 words");
}

Test(conf, wrong_addresses_say_what_is_wrong)
{
    refused("[Controller]\nListen=localhost\n",
            "/etc/c.conf:2: Listen=localhost: \"localhost\" is not a unix socket's path, HOST:PORT "
            "or [IPV6]:PORT");
    refused("[Controller]\nListen=a:70000\n",
            "/etc/c.conf:2: Listen=a:70000: port 70000 is not in 0..65535");
    refused("[Controller]\nListen=a:x\n", "/etc/c.conf:2: Listen=a:x: \"x\" is not a port number");
    refused("[Controller]\nListen=fe80::1\n",
            "/etc/c.conf:2: Listen=fe80::1: \"fe80::1\": an IPv6 address stands in brackets: "
            "[IPV6]:PORT");
    refused("[Controller]\nMetricsListen=/run/x\n",
            "/etc/c.conf:2: MetricsListen=/run/x: not HOST:PORT, [IPV6]:PORT or none");
    refused("[Controller]\nClusterName=My\n",
            "/etc/c.conf:2: ClusterName=My: \"My\" is not a name: 1..63 of a-z 0-9 -, no dash at "
            "the ends");
}

Test(conf, a_socket_path_that_is_too_long_is_refused_with_its_length)
{
    char text[300] = "[Controller]\nListen=/";
    memset(text + strlen(text), 'x', 120);
    cr_assert(parse(text) == NULL);
    cr_assert(strstr(error.text, "the path of a unix socket has at most 107 bytes, this has 121"),
              "%s", error.text);
}

Test(conf, lines_and_values_have_a_bound)
{
    static char text[2 * DT_CONF_LINE_MAX] = "[Controller]\n#";
    memset(text + strlen(text), 'x', DT_CONF_LINE_MAX);
    cr_assert(parse(text) == NULL);
    cr_assert_str_eq(error.text, "/etc/c.conf:2: a line of 4097 bytes; at most 4096");
    cr_assert(dt_conf_parse(dt_conf_table_controller(), "c", "\0", 1, &(dt_conf_t *){NULL},
                            &error) == DT_ERR_INVALID);
    cr_assert_str_eq(error.text, "c:1: control character 0x00");
}

Test(conf, a_dump_names_origins_and_is_a_file_again)
{
    dt_conf_t *conf = parse("[Controller]\nDeadBeats=12\nListen=a:1,b:2\n");
    dt_conf_t *again = NULL;
    dt_buf_t dump;
    const char *text;
    dt_buf_init(&dump, DT_CONF_TEXT_MAX);
    cr_assert_eq(dt_conf_dump(conf, &dump), DT_OK);
    cr_assert_eq(dt_buf_text(&dump, &text), DT_OK);
    cr_assert(strstr(text, "\n# from: /etc/c.conf:2\nDeadBeats=12\n"), "%s", text);
    cr_assert(strstr(text, "\n# from: default\nSuspectBeats=3\n"));
    cr_assert(strstr(text, "\nListen=a:1 b:2\n"));
    cr_assert_eq(dt_conf_parse(dt_conf_table_controller(), "d", text, strlen(text), &again, &error),
                 DT_OK, "%s", error.text);
    cr_assert_str_eq(dt_conf_hash(conf), dt_conf_hash(again));
    dt_buf_fini(&dump);
    dt_conf_free(conf);
    dt_conf_free(again);
}

Test(conf, the_hash_is_over_values_and_not_over_how_they_were_written)
{
    dt_conf_t *plain = parse("");
    dt_conf_t *same = parse("[Controller]\nHeartbeatInterval=0.25s\nLogLevel=info\n");
    dt_conf_t *other = parse("[Controller]\nLogLevel=debug\n");
    cr_assert_eq(strlen(dt_conf_hash(plain)), 16);
    cr_assert_eq(strspn(dt_conf_hash(plain), "0123456789abcdef"), 16);
    cr_assert_str_eq(dt_conf_hash(plain), dt_conf_hash(same));
    cr_assert_str_neq(dt_conf_hash(plain), dt_conf_hash(other));
    dt_conf_free(plain);
    dt_conf_free(same);
    dt_conf_free(other);
}

Test(conf, a_nodes_own_name_is_not_in_the_hash)
{
    const char *texts[] = {"[Worker]\nNodeName=a\nRack=1\n", "[Worker]\nNodeName=b\n"};
    dt_conf_t *conf[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        cr_assert_eq(dt_conf_parse(dt_conf_table_worker(), "w", texts[i], strlen(texts[i]),
                                   &conf[i], &error),
                     DT_OK);
    cr_assert_str_eq(dt_conf_hash(conf[0]), dt_conf_hash(conf[1]));
    dt_conf_free(conf[0]);
    dt_conf_free(conf[1]);
}

Test(conf, a_programs_own_check_points_at_the_line)
{
    dt_conf_t *conf = parse("[Controller]\nDeadBeats=3\n");
    cr_assert_eq(dt_conf_fail(conf, "DeadBeats", &error, "must be above SuspectBeats (%d)", 3),
                 DT_ERR_INVALID);
    cr_assert_str_eq(error.text, "/etc/c.conf:2: DeadBeats=3: must be above SuspectBeats (3)");
    dt_conf_free(conf);
    dt_conf_free(NULL);
}
