#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/strings.h"

TestSuite(strings, .timeout = 60);
TestSuite(units, .timeout = 60);
TestSuite(clock, .timeout = 60);

Test(strings, copying_never_splits_a_character)
{
    char text[5];
    cr_assert(dt_str_copy(text, sizeof text, "abcd"));
    cr_assert_str_eq(text, "abcd");
    cr_assert_not(dt_str_copy(text, sizeof text, "abc\xc3\xa4"));
    cr_assert_str_eq(text, "abc");
    cr_assert_not(dt_str_copy(text, 1, "abc"));
    cr_assert_str_eq(text, "");
}

Test(strings, compares_prefixes_suffixes_and_null)
{
    cr_assert(dt_str_has_prefix("abc", "ab") && !dt_str_has_prefix("a", "ab"));
    cr_assert(dt_str_has_suffix("a.conf", ".conf") && !dt_str_has_suffix("conf", ".conf"));
    cr_assert(dt_str_is_equal(NULL, NULL) && !dt_str_is_equal("", NULL));
    cr_assert(!dt_str_is_equal(NULL, "") && dt_str_is_equal("a", "a"));
}

Test(strings, trims_blanks_at_both_ends_only)
{
    char text[] = " \t a b \r\n";
    char blank[] = "  ";
    cr_assert_str_eq(dt_str_trim(text), "a b");
    cr_assert_str_eq(dt_str_trim(blank), "");
}

Test(strings, tells_utf8_from_other_bytes)
{
    const char *good[] = {"", "abc", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    const char *bad[] = {"\x80",         "\xc3",         "\xc0\x80",         "\xe0\x80\x80",
                         "\xed\xa0\x80", "\xf5\x80\x80", "\xf4\x90\x80\x80", "a\xff"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_assert(dt_str_is_utf8(good[i], strlen(good[i])), "%zu", i);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(dt_str_is_utf8(bad[i], strlen(bad[i])), "%zu", i);
}

Test(strings, a_name_is_lower_case_with_inner_dashes)
{
    char name[65];
    memset(name, 'a', 64);
    name[64] = '\0';
    cr_assert_not(dt_str_is_name(name));
    name[63] = '\0';
    cr_assert(dt_str_is_name(name));
    cr_assert(dt_str_is_name("a") && dt_str_is_name("gpu-007"));
    cr_assert(!dt_str_is_name("") && !dt_str_is_name("-a") && !dt_str_is_name("a-"));
    cr_assert(!dt_str_is_name("A") && !dt_str_is_name("a.b") && !dt_str_is_name("a b"));
}

Test(strings, splits_into_words_without_empty_ones)
{
    dt_strv_t words = {0};
    cr_assert_eq(dt_strv_split(&words, " a,  bc ,d,", " ,"), DT_OK);
    cr_assert_eq(words.count, 3);
    cr_assert_str_eq(words.items[1], "bc");
    cr_assert(words.items[3] == NULL);
    cr_assert_eq(dt_strv_append(&words, "e"), DT_OK);
    cr_assert(dt_strv_has(&words, "e") && !dt_strv_has(&words, "b"));
    dt_strv_fini(&words);
    cr_assert_eq(dt_strv_split(&words, " , ", " ,"), DT_OK);
    cr_assert_eq(words.count, 0);
    cr_assert_not(dt_strv_has(&words, "e"));
    dt_strv_fini(&words);
    dt_strv_fini(NULL);
}

Test(units, reads_whole_numbers_to_the_last_one_that_fits)
{
    int64_t value;
    cr_assert(dt_str_to_i64("9223372036854775807", &value) == DT_OK && value == INT64_MAX);
    cr_assert(dt_str_to_i64("-9223372036854775808", &value) == DT_OK && value == INT64_MIN);
    cr_assert(dt_str_to_i64("+7", &value) == DT_OK && value == 7);
    cr_assert_eq(dt_str_to_i64("9223372036854775808", &value), DT_ERR_LIMIT);
    cr_assert_eq(dt_str_to_i64("-9223372036854775809", &value), DT_ERR_LIMIT);
    const char *bad[] = {"", "-", "+", " 1", "1 ", "1x", "0x1", "--1", "1.0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(dt_str_to_i64(bad[i], &value), DT_ERR_INVALID, "%s", bad[i]);
}

Test(units, reads_durations_with_their_units)
{
    static const struct {
        const char *text;
        int64_t ns;
    } good[] = {{"0", 0},
                {"250ms", 250 * DT_CLOCK_MS_NS},
                {"1.5s", 1500 * DT_CLOCK_MS_NS},
                {"1min 30s", 90 * DT_CLOCK_SECOND_NS},
                {"1min30s", 90 * DT_CLOCK_SECOND_NS},
                {"2 h", 7200 * DT_CLOCK_SECOND_NS},
                {"1w", 604800 * DT_CLOCK_SECOND_NS},
                {"7us", 7000},
                {"1ns", 1},
                {"0.000000001s", 1}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t ns = -1;
        cr_assert_eq(dt_str_to_duration_ns(good[i].text, &ns), DT_OK, "%s", good[i].text);
        cr_assert_eq(ns, good[i].ns, "%s", good[i].text);
    }
}

Test(units, refuses_durations_without_unit_or_sense)
{
    int64_t ns = -1;
    const char *bad[] = {"",      "5",     "-1s", "s",   "1 x", "1m",
                         "1s,2s", "1..5s", "1.s", ".5s", "1S",  " 1s"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(dt_str_to_duration_ns(bad[i], &ns), DT_ERR_INVALID, "%s", bad[i]);
    const char *large[] = {"99999999999w", "9999999999999999999999999s", "9223372036s 999999999ns"};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        cr_assert_eq(dt_str_to_duration_ns(large[i], &ns), DT_ERR_LIMIT, "%s", large[i]);
    cr_assert_eq(ns, -1, "outputs are set on success only");
}

Test(units, reads_sizes_and_refuses_numbers_without_unit)
{
    int64_t bytes = -1;
    cr_assert(dt_str_to_size("64MiB", &bytes) == DT_OK && bytes == INT64_C(64) << 20);
    cr_assert(dt_str_to_size("64M", &bytes) == DT_OK && bytes == INT64_C(64) << 20);
    cr_assert(dt_str_to_size("1.5 GiB", &bytes) == DT_OK && bytes == INT64_C(3) << 29);
    cr_assert(dt_str_to_size("0", &bytes) == DT_OK && bytes == 0);
    cr_assert(dt_str_to_size("12B", &bytes) == DT_OK && bytes == 12);
    const char *bad[] = {"", "64", "64MB", "64mib", "-1B", "1KiB 1B", "KiB"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(dt_str_to_size(bad[i], &bytes), DT_ERR_INVALID, "%s", bad[i]);
    cr_assert_eq(dt_str_to_size("9999999TiB", &bytes), DT_ERR_LIMIT);
}

Test(units, what_is_written_exactly_reads_back_to_the_same)
{
    char text[DT_STR_UNIT_TEXT_SIZE];
    int64_t back;
    int64_t values[64 * 3 + 2] = {0, INT64_MAX};
    size_t count = 2;
    for (int bit = 0; bit < 63; bit++)
        for (int64_t delta = -1; delta <= 1; delta++)
            values[count++] = (INT64_C(1) << bit) + (bit == 0 && delta < 0 ? 0 : delta);
    for (size_t i = 0; i < count; i++) {
        dt_str_format_duration(values[i], text);
        cr_assert_eq(dt_str_to_duration_ns(text, &back), DT_OK, "%s", text);
        cr_assert_eq(back, values[i], "%s", text);
        dt_str_format_size(values[i], text);
        cr_assert_eq(dt_str_to_size(text, &back), DT_OK, "%s", text);
        cr_assert_eq(back, values[i], "%s", text);
    }
}

static const char *duration(int64_t ns, bool is_human)
{
    static char text[DT_STR_UNIT_TEXT_SIZE];
    if (is_human)
        dt_str_human_duration(ns, text);
    else
        dt_str_format_duration(ns, text);
    return text;
}

Test(units, writes_durations_as_people_do)
{
    const int64_t ms = DT_CLOCK_MS_NS;
    cr_assert_str_eq(duration(250 * ms, false), "250ms");
    cr_assert_str_eq(duration(90000 * ms, false), "1min 30s");
    cr_assert_str_eq(duration(90 * INT64_C(86400000) * ms, false), "90d");
    cr_assert_str_eq(duration(0, false), "0");
    cr_assert_str_eq(duration(900 * ms, true), "0.9 s");
    cr_assert_str_eq(duration(45 * ms, true), "45 ms");
    cr_assert_str_eq(duration(7 * ms, true), "7.0 ms");
    cr_assert_str_eq(duration(12 * 60000 * ms, true), "12 min");
    cr_assert_str_eq(duration(41 * INT64_C(86400000) * ms, true), "41 d");
    cr_assert_str_eq(duration(0, true), "0 ns");
    cr_assert_str_eq(duration(-1500 * ms, true), "-1.5 s");
    cr_assert_str_eq(duration(INT64_MIN, true), "-106751 d");
    cr_assert_str_eq(duration(INT64_MIN, false), "-106751d 23h 47min 16s 854ms 775us 808ns");
}

Test(units, writes_sizes_as_people_do)
{
    char text[DT_STR_UNIT_TEXT_SIZE];
    dt_str_human_size(INT64_C(34) << 37, text);
    cr_assert_str_eq(text, "4.2 TiB");
    dt_str_human_size(512, text);
    cr_assert_str_eq(text, "512 B");
    dt_str_human_size(INT64_C(18) << 20, text);
    cr_assert_str_eq(text, "18 MiB");
    dt_str_human_size(INT64_MAX, text);
    cr_assert_str_eq(text, "8388607 TiB");
    dt_str_format_size(1000, text);
    cr_assert_str_eq(text, "1000B");
}

Test(units, reads_truth)
{
    bool truth = false;
    cr_assert(dt_str_to_bool("Yes", &truth) == DT_OK && truth);
    cr_assert(dt_str_to_bool("off", &truth) == DT_OK && !truth);
    cr_assert(dt_str_to_bool("1", &truth) == DT_OK && truth);
    cr_assert_eq(dt_str_to_bool("maybe", &truth), DT_ERR_INVALID);
    cr_assert_eq(dt_str_to_bool("", &truth), DT_ERR_INVALID);
}

Test(clock, writes_wall_time_as_rfc_3339)
{
    char text[DT_CLOCK_TEXT_SIZE];
    dt_clock_format_wall(0, text);
    cr_assert_str_eq(text, "1970-01-01T00:00:00.000Z");
    dt_clock_format_wall(INT64_C(1796017260123), text);
    cr_assert_str_eq(text, "2026-11-30T05:41:00.123Z");
    dt_clock_format_wall(-1, text);
    cr_assert_str_eq(text, "1969-12-31T23:59:59.999Z");
    dt_clock_format_wall(INT64_MAX, text);
    cr_assert_str_eq(text, "invalid");
    dt_clock_format_wall(INT64_MIN, text);
    cr_assert_str_eq(text, "invalid");
}

Test(clock, the_machines_monotonic_clock_never_goes_back)
{
    const dt_clock_t *clock = dt_clock_system();
    int64_t before = dt_clock_mono_ns(clock);
    for (int i = 0; i < 1000; i++) {
        int64_t now = dt_clock_mono_ns(clock);
        cr_assert(now >= before);
        before = now;
    }
    cr_assert(dt_clock_wall_ms(clock) > INT64_C(1700000000000));
}
