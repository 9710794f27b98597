#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

TestSuite(log, .timeout = 60);

/* What the sink saw. */
static struct {
    int count;
    uint64_t dropped; /* of the last line */
    dt_log_level_t level;
    char line[DT_LOG_LINE_MAX];
    char message[DT_LOG_LINE_MAX];
} seen;

static int64_t fake_ns;

static int64_t fake_mono(void *arg)
{
    (void)arg;
    return fake_ns;
}

static int64_t fake_wall(void *arg)
{
    (void)arg;
    return 0;
}

static void capture(const dt_log_record_t *record, void *arg)
{
    (void)arg;
    seen.count++;
    seen.dropped = record->dropped;
    seen.level = record->level;
    (void)dt_log_format(record, seen.line, sizeof seen.line);
    (void)dt_log_format_message(record, seen.message, sizeof seen.message);
}

static void setup(void)
{
    static const dt_clock_t clock = {fake_mono, fake_wall, NULL};
    memset(&seen, 0, sizeof seen);
    fake_ns = DT_CLOCK_SECOND_NS;
    dt_log_set_clock_for_test(&clock);
    dt_log_set_sink(capture, NULL);
    dt_log_set_level(DT_LOG_INFO);
}

static void warn_once(void)
{
    dt_log_warn("disk full");
}

Test(log, writes_an_event_with_its_fields_as_logfmt, .init = setup)
{
    dt_log_warn("node lost", DT_LOG_S("node", "gpu007"), DT_LOG_I("silent_ms", -5),
                DT_LOG_U("bytes", UINT64_MAX), DT_LOG_B("last", true), DT_LOG_S("reason", NULL));
    cr_assert_str_eq(seen.line, "time=1970-01-01T00:00:00.000Z level=warning event=\"node lost\" "
                                "node=gpu007 silent_ms=-5 bytes=18446744073709551615 last=yes "
                                "reason=\"\"\n");
    cr_assert_str_eq(seen.message, "node lost node=gpu007 silent_ms=-5 "
                                   "bytes=18446744073709551615 last=yes reason=\"\"");
}

Test(log, an_event_needs_no_fields, .init = setup)
{
    dt_log_notice("ready");
    cr_assert_str_eq(seen.line, "time=1970-01-01T00:00:00.000Z level=notice event=ready\n");
}

Test(log, a_peers_text_cannot_forge_a_line, .init = setup)
{
    dt_log_info("hello", DT_LOG_S("build", "x\nlevel=err event=\"fire\"\x1b[31m\xff\\"));
    cr_assert_str_eq(strstr(seen.line, "build="),
                     "build=\"x\\nlevel=err event=\\\"fire\\\"\\x1b[31m\\xff\\\\\"\n");
    cr_assert(strchr(seen.line, '\n') == seen.line + strlen(seen.line) - 1);
}

Test(log, levels_that_are_off_cost_nothing_and_change_at_any_time, .init = setup)
{
    int evaluated = 0;
    dt_log_debug("move", DT_LOG_I("n", ++evaluated));
    cr_assert_eq(seen.count, 0);
    cr_assert_eq(evaluated, 0);
    dt_log_set_level(DT_LOG_DEBUG);
    dt_log_debug("move", DT_LOG_I("n", ++evaluated));
    cr_assert_eq(seen.count, 1);
    dt_log_set_level(DT_LOG_ERR);
    dt_log_warn("warned");
    dt_log_err("failed");
    cr_assert_eq(seen.count, 2);
    cr_assert_eq(seen.level, DT_LOG_ERR);
}

Test(log, a_site_that_floods_is_cut_and_says_how_much_was_dropped, .init = setup)
{
    for (int i = 0; i < 1000; i++)
        warn_once();
    cr_assert_eq(seen.count, DT_LOG_SITE_BURST);
    fake_ns += DT_LOG_SITE_REFILL_NS;
    warn_once();
    cr_assert_eq(seen.count, DT_LOG_SITE_BURST + 1);
    cr_assert_eq(seen.dropped, 1000 - DT_LOG_SITE_BURST);
    cr_assert(strstr(seen.line, " dropped=980\n"), "%s", seen.line);
    warn_once();
    cr_assert_eq(seen.count, DT_LOG_SITE_BURST + 1, "one token for one interval");
    fake_ns += DT_LOG_SITE_REFILL_NS;
    warn_once();
    cr_assert_eq(seen.dropped, 1, "the count begins again");
}

Test(log, a_quiet_site_has_its_whole_burst_again, .init = setup)
{
    for (int i = 0; i < 100; i++)
        warn_once();
    fake_ns += 100 * DT_LOG_SITE_REFILL_NS;
    seen.count = 0;
    for (int i = 0; i < 100; i++)
        warn_once();
    cr_assert_eq(seen.count, DT_LOG_SITE_BURST);
}

Test(log, one_site_does_not_silence_another, .init = setup)
{
    for (int i = 0; i < 100; i++)
        warn_once();
    seen.count = 0;
    dt_log_warn("another");
    cr_assert_eq(seen.count, 1);
}

Test(log, a_site_that_repeats_for_a_minute_stays_under_its_rate, .init = setup)
{
    for (int i = 0; i < 60000; i++) {
        fake_ns += DT_CLOCK_MS_NS;
        warn_once();
    }
    cr_assert(seen.count >= 120 && seen.count <= 120 + DT_LOG_SITE_BURST, "%d", seen.count);
}

Test(log, a_line_that_is_too_long_is_cut_between_fields, .init = setup)
{
    char value[DT_LOG_VALUE_MAX + 100];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    dt_log_info("long", DT_LOG_S("a", value), DT_LOG_S("b", value), DT_LOG_S("c", value),
                DT_LOG_S("d", value), DT_LOG_S("e", value), DT_LOG_S("f", value),
                DT_LOG_S("g", value), DT_LOG_S("h", value), DT_LOG_S("i", value));
    size_t len = strlen(seen.line);
    cr_assert(len < DT_LOG_LINE_MAX);
    cr_assert_str_eq(seen.line + len - 9, " cut=yes\n");
    cr_assert(strstr(seen.line, " g=v") && !strstr(seen.line, " h=v"));
    const char *first = strstr(seen.line, " a=") + 3;
    cr_assert_eq(strcspn(first, " "), DT_LOG_VALUE_MAX, "a value has its own bound");
}

Test(log, keeps_errno, .init = setup)
{
    errno = ENOSPC;
    dt_log_err("write failed");
    cr_assert_eq(errno, ENOSPC);
}

Test(log, the_message_id_is_for_the_journal_only, .init = setup)
{
    dt_log_notice("start", DT_LOG_ID("0123456789abcdef0123456789abcdef"), DT_LOG_I("n", 1));
    cr_assert(!strstr(seen.line, "0123456789abcdef"));
    cr_assert(strstr(seen.line, "event=start n=1\n"));
}

Test(log, the_text_of_an_error_is_a_field, .init = setup)
{
    dt_error_t err;
    (void)dt_fail(&err, DT_ERR_PEER, "dt", 0, "no route");
    dt_log_warn("dial failed", DT_LOG_E(&err));
    cr_assert(strstr(seen.line, "error=\"no route\"\n"));
}

Test(log, names_its_levels_both_ways)
{
    dt_log_level_t level;
    for (int i = DT_LOG_ERR; i <= DT_LOG_DEBUG; i++) {
        cr_assert_eq(dt_log_level_from_text(dt_log_level_text((dt_log_level_t)i), &level), DT_OK);
        cr_assert_eq((int)level, i);
    }
    cr_assert_eq(dt_log_level_from_text("loud", &level), DT_ERR_INVALID);
    cr_assert_str_eq(dt_log_level_text((dt_log_level_t)0), "unknown");
}

/* Fill a pipe and put it in place of stderr. Gives the end to read from. */
static int choke_stderr(void)
{
    int ends[2];
    char noise[1024] = "noise\n";
    cr_assert_eq(pipe2(ends, O_NONBLOCK), 0);
    while (write(ends[1], noise, sizeof noise) > 0)
        continue;
    cr_assert_eq(fcntl(ends[1], F_SETFL, 0), 0);
    cr_assert_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    return ends[0];
}

Test(log, that_nobody_reads_loses_lines_and_no_time)
{
    char text[65536 * 2];
    size_t len = 0;
    ssize_t rc;
    int saved = dup(STDERR_FILENO);
    int fd = choke_stderr();
    dt_log_warn("one"); /* would wait for ever */
    dt_log_warn("two");
    while (read(fd, text, sizeof text) > 0)
        continue;
    dt_log_warn("three");
    dt_log_warn("four");
    while ((rc = read(fd, text + len, sizeof text - len)) > 0)
        len += (size_t)rc;
    text[len] = '\0';
    cr_assert_eq(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    cr_assert(strstr(text, "lines=2\n"), "%s", text);
    cr_assert(strstr(text, "event=three\n") && strstr(text, "event=four\n"), "%s", text);
    cr_assert_not(strstr(text, "event=one"));
}
