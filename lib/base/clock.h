/* The two clocks, behind a table so that tests and the simulator bring their own.
 * Monotonic nanoseconds decide everything inside; wall milliseconds are for showing and storing
 * only, and may jump in both directions at any moment. */
#ifndef DT_BASE_CLOCK_H
#define DT_BASE_CLOCK_H
#include <stddef.h>
#include <stdint.h>

#define DT_CLOCK_US_NS     INT64_C(1000)
#define DT_CLOCK_MS_NS     INT64_C(1000000)
#define DT_CLOCK_SECOND_NS INT64_C(1000000000)
#define DT_CLOCK_TEXT_SIZE 32 /* bytes that dt_clock_format_wall needs */

typedef struct dt_clock {
    int64_t (*mono_ns)(void *arg); /* never goes back; 0 is some time before the start */
    int64_t (*wall_ms)(void *arg); /* since 1970-01-01T00:00:00Z */
    void *arg;
} dt_clock_t;

/* The machine's clocks (CLOCK_MONOTONIC, CLOCK_REALTIME).
 * Ownership: static. Threads: any. */
const dt_clock_t *dt_clock_system(void);

static inline int64_t dt_clock_mono_ns(const dt_clock_t *clock)
{
    return clock->mono_ns(clock->arg);
}

static inline int64_t dt_clock_wall_ms(const dt_clock_t *clock)
{
    return clock->wall_ms(clock->arg);
}

/* Write a wall time as RFC 3339 in UTC, "2026-11-30T05:41:00.123Z".
 * Years outside 0000..9999 give "invalid". Units: milliseconds. Threads: any. */
void dt_clock_format_wall(int64_t wall_ms, char text[static DT_CLOCK_TEXT_SIZE]);

#endif
