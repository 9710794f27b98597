/* The machine's clocks, and wall time as text. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static int64_t system_mono_ns(void *arg)
{
    struct timespec ts = {0};

    (void)arg;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail with a valid clock */
    return (int64_t)ts.tv_sec * DT_CLOCK_SECOND_NS + ts.tv_nsec;
}

static int64_t system_wall_ms(void *arg)
{
    struct timespec ts = {0};

    (void)arg;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / DT_CLOCK_MS_NS;
}

const dt_clock_t *dt_clock_system(void)
{
    static const dt_clock_t clock = {system_mono_ns, system_wall_ms, NULL};
    return &clock;
}

void dt_clock_format_wall(int64_t wall_ms, char text[static DT_CLOCK_TEXT_SIZE])
{
    int64_t seconds = wall_ms / 1000;
    int64_t ms = wall_ms % 1000;
    if (ms < 0) {
        ms += 1000;
        seconds--;
    }
    time_t when = (time_t)seconds;
    struct tm tm;
    if (!gmtime_r(&when, &tm) || tm.tm_year < -1900 || tm.tm_year > 9999 - 1900) {
        (void)snprintf(text, DT_CLOCK_TEXT_SIZE, "invalid");
        return;
    }
    char date[24];
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(text, DT_CLOCK_TEXT_SIZE, "%s.%03dZ", date, (int)ms);
}
