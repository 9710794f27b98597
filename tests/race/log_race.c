/* Many threads log through one call site while the level changes: lines written and lines dropped
 * add up, and ThreadSanitizer has nothing to say. */
#include <pthread.h>
#include <stdio.h>

#include "base/log.h"

enum { RACE_THREADS = 4, RACE_LINES = 20000 };

static _Atomic uint64_t written;
static _Atomic uint64_t dropped;

static void count(const dt_log_record_t *record, void *arg)
{
    char line[DT_LOG_LINE_MAX];
    (void)arg;
    (void)dt_log_format(record, line, sizeof line);
    atomic_fetch_add(&written, 1);
    atomic_fetch_add(&dropped, record->dropped);
}

static void log_line(int i)
{
    dt_log_warn("race", DT_LOG_I("i", i));
}

static void *logger(void *arg)
{
    (void)arg;
    for (int i = 0; i < RACE_LINES; i++) {
        log_line(i);
        if (i % 100 == 0)
            dt_log_set_level(i % 200 ? DT_LOG_INFO : DT_LOG_WARNING);
    }
    return NULL;
}

static int64_t mono_ns;

static int64_t fake_mono(void *arg)
{
    (void)arg;
    return __atomic_load_n(&mono_ns, __ATOMIC_RELAXED);
}

static int64_t fake_wall(void *arg)
{
    (void)arg;
    return 0;
}

int main(void)
{
    static const dt_clock_t clock = {fake_mono, fake_wall, NULL};
    pthread_t threads[RACE_THREADS];

    dt_log_set_clock_for_test(&clock);
    dt_log_set_sink(count, NULL);
    for (int i = 0; i < RACE_THREADS; i++)
        if (pthread_create(&threads[i], NULL, logger, NULL) != 0)
            return 1;
    for (int i = 0; i < RACE_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    if (atomic_load(&written) != DT_LOG_SITE_BURST) {
        (void)printf("log_race: %d lines let through, not the burst of %d\n",
                     (int)atomic_load(&written), DT_LOG_SITE_BURST);
        return 1;
    }
    __atomic_fetch_add(&mono_ns, 10 * DT_LOG_SITE_REFILL_NS, __ATOMIC_RELAXED);
    log_line(0);
    uint64_t sum = atomic_load(&written) + atomic_load(&dropped);
    if (sum != RACE_THREADS * RACE_LINES + 1) {
        (void)printf("log_race: %d lines written or counted of %d\n", (int)sum,
                     RACE_THREADS * RACE_LINES + 1);
        return 1;
    }
    return 0;
}
