#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/hosts.h"
#include "client/ctl/text.h"

static dt_arena_t pool;

static void start(void)
{
    (void)setenv("TZ", "UTC", 1);
    tzset();
    dt_arena_init(&pool, DT_CTL_POOL_MAX);
}

static void stop(void)
{
    dt_arena_fini(&pool);
}

TestSuite(ctl_text, .init = start, .fini = stop, .timeout = 60);
TestSuite(ctl_hosts, .init = start, .fini = stop, .timeout = 60);

/* 2026-11-30T14:02:11.500Z */
#define NOW_MS INT64_C(1796047331500)

Test(ctl_text, plain_text_is_given_back_as_it_is)
{
    const char *text = "gpu001 is fine";
    cr_assert(dt_ctl_safe(&pool, text) == text);
    cr_assert_str_eq(dt_ctl_safe(&pool, NULL), "");
}

Test(ctl_text, what_a_terminal_would_obey_becomes_an_escape)
{
    cr_assert_str_eq(dt_ctl_safe(&pool, "a\033[2Jb\r\n\tc\177"), "a\\x1b[2Jb\\x0d\\n\\tc\\x7f");
    cr_assert_str_eq(dt_ctl_safe(&pool, "\302\233m"), "\\u009bm", "C1 control as UTF-8");
    cr_assert_str_eq(dt_ctl_safe(&pool, "\342\200\256x"), "\\u202ex", "right-to-left override");
}

Test(ctl_text, bytes_that_are_not_utf8_become_escapes)
{
    cr_assert_str_eq(dt_ctl_safe(&pool, "\233m"), "\\x9bm", "C1 control as a byte");
    cr_assert_str_eq(dt_ctl_safe(&pool, "\300\200"), "\\xc0\\x80", "overlong NUL");
    cr_assert_str_eq(dt_ctl_safe(&pool, "\355\240\200"), "\\xed\\xa0\\x80", "surrogate");
    cr_assert_str_eq(dt_ctl_safe(&pool, "x\303"), "x\\xc3", "cut off");
    cr_assert_str_eq(dt_ctl_safe(&pool, "Z\303\274rich"), "Z\303\274rich", "but letters stay");
}

Test(ctl_text, an_ellipsis_counts_characters_and_not_bytes)
{
    cr_assert_eq(dt_ctl_columns("Z\303\274rich"), 6);
    cr_assert_str_eq(dt_ctl_ellipsis(&pool, "Z\303\274rich", 6), "Z\303\274rich");
    cr_assert_str_eq(dt_ctl_ellipsis(&pool, "Z\303\274rich", 4), "Z\303\274r…");
    cr_assert_str_eq(dt_ctl_ellipsis(&pool, "Z\303\274rich", 1), "…");
    cr_assert_str_eq(dt_ctl_ellipsis(&pool, "x", 0), "");
}

Test(ctl_text, times_of_today_have_no_date)
{
    cr_assert_str_eq(dt_ctl_time(&pool, NOW_MS - 3600000, NOW_MS, false), "13:02:11");
    cr_assert_str_eq(dt_ctl_time(&pool, NOW_MS - 86400000, NOW_MS, false), "2026-11-29 14:02");
    cr_assert_str_eq(dt_ctl_time(&pool, NOW_MS, NOW_MS, true), "2026-11-30T14:02:11.500Z");
}

static void check_time(const char *text, int64_t wanted_ms)
{
    int64_t got_ms = 0;
    dt_error_t error;
    cr_assert_eq(dt_ctl_parse_time(text, NOW_MS, &got_ms, &error), DT_OK, "%s", text);
    cr_assert_eq(got_ms, wanted_ms, "%s: %lld", text, (long long)got_ms);
}

Test(ctl_text, every_documented_form_of_a_time_is_read)
{
    const int64_t midnight_ms = INT64_C(1795996800000);
    check_time("10min", NOW_MS - 600000);
    check_time("1h 30min", NOW_MS - 5400000);
    check_time("today", midnight_ms);
    check_time("yesterday", midnight_ms - 86400000);
    check_time("14:02", midnight_ms + (14 * 60 + 2) * 60000);
    check_time("14:02:11", midnight_ms + (14 * 60 + 2) * 60000 + 11000);
    check_time("2026-11-28", midnight_ms - 2 * 86400000);
    check_time("2026-11-28 14:02", midnight_ms - 2 * 86400000 + (14 * 60 + 2) * 60000);
    check_time("2026-11-30T14:02:11.500Z", NOW_MS);
    check_time("2026-11-30T15:02:11.5+01:00", NOW_MS);
    check_time("@1796047331", NOW_MS - 500);
}

Test(ctl_text, what_is_no_time_is_refused)
{
    static const char *const wrong[] = {"",           "soon",
                                        "25:00",      "14:02x",
                                        "2026-13-01", "@99999999999999999999",
                                        "10",         "2026-11-28T14:02:11+"};
    int64_t got_ms;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        cr_assert_eq(dt_ctl_parse_time(wrong[i], NOW_MS, &got_ms, NULL), DT_ERR_INVALID, "%s",
                     wrong[i]);
}

Test(ctl_hosts, a_range_gives_names_as_wide_as_it_is_written)
{
    dt_ctl_hosts_t hosts = {0};
    cr_assert_eq(dt_ctl_hosts_add(&pool, "gpu[008-010,020],login,gpu[1-2]:0", &hosts, NULL), DT_OK);
    static const char *const wanted[] = {"gpu008", "gpu009", "gpu010", "gpu020",
                                         "login",  "gpu1:0", "gpu2:0"};
    cr_assert_eq(hosts.count, sizeof wanted / sizeof wanted[0]);
    for (size_t i = 0; i < hosts.count; i++)
        cr_assert_str_eq(hosts.names[i], wanted[i]);
}

Test(ctl_hosts, a_name_that_comes_twice_is_one)
{
    dt_ctl_hosts_t hosts = {0};
    cr_assert_eq(dt_ctl_hosts_add(&pool, "a[1-2],a1,a2", &hosts, NULL), DT_OK);
    cr_assert_eq(hosts.count, 2);
}

Test(ctl_hosts, broken_and_endless_ranges_are_refused)
{
    static const char *const wrong[] = {"",     "a,,b",     "a[1-",    "a[]",   "a[3-1]",
                                        "a[x]", "a[1-2-3]", "a[1][2]", "a[1-]", "a[-1]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        dt_ctl_hosts_t hosts = {0};
        cr_assert_eq(dt_ctl_hosts_add(&pool, wrong[i], &hosts, NULL), DT_ERR_INVALID, "%s",
                     wrong[i]);
    }
    dt_ctl_hosts_t hosts = {0};
    cr_assert_eq(dt_ctl_hosts_add(&pool, "a[0-999999999]", &hosts, NULL), DT_ERR_LIMIT);
}

Test(ctl_hosts, names_follow_when_the_number_is_one_higher_and_as_wide)
{
    cr_assert(dt_ctl_hosts_follow("gpu009", "gpu010"));
    cr_assert(dt_ctl_hosts_follow("w9", "w10"));
    cr_assert_not(dt_ctl_hosts_follow("gpu09", "gpu010"));
    cr_assert_not(dt_ctl_hosts_follow("gpu001", "cpu002"));
    cr_assert_not(dt_ctl_hosts_follow("gpu", "gpu1"));
    cr_assert_str_eq(dt_ctl_hosts_range(&pool, "gpu001", "gpu016"), "gpu[001-016]");
    cr_assert_str_eq(dt_ctl_hosts_range(&pool, "gpu001", "gpu001"), "gpu001");
}
