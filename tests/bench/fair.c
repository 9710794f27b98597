/* A session's throughput beside one that never stops and whose operators take many times longer,
 * over its throughput alone on the device: `make bench ONLY=fair_share_ratio`. One JSON line, as
 * tests/bench/stream.c prints them. Exit status 3: the key was not asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/multiplier.h"

#define KEY     "fair_share_ratio"
#define RUNS    5
#define BATCHES 60
#define SIDE    64
#define OTHER   256 /* 64 times the work */

static double now_s(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* Seconds for so many batches. */
static double measure(dt_testcluster_t *tc)
{
    dt_multiplier_t m;
    double begin = now_s();
    dt_multiplier_start(&m, tc, SIDE, BATCHES);
    dt_multiplier_join(&m);
    return now_s() - begin;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
    char conf[128];
    double ratio[RUNS];
    dt_multiplier_t other;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], KEY) == 0)
            argc = 1;
    if (argc > 1)
        return 3;
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\nIsolation=device\n",
                   dt_clienttest_devices());
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = conf});
    (void)measure(tc);
    for (int i = 0; i < RUNS; i++) {
        double alone = measure(tc);
        dt_multiplier_start(&other, tc, OTHER, 0);
        while (atomic_load(&other.done) == 0)
            dt_test_pause_ms(1);
        ratio[i] = alone / measure(tc);
        atomic_store(&other.should_end, true);
        dt_multiplier_join(&other);
    }
    qsort(ratio, RUNS, sizeof *ratio, by_value);
    (void)printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"ratio\",\"better\":\"higher\","
                 "\"peer\":\"\",\"peer_value\":0,\"goal\":0.4,\"runs\":%d,\"spread\":%.4g}\n",
                 KEY, ratio[RUNS / 2], RUNS, ratio[3 * RUNS / 4] - ratio[RUNS / 4]);
    return dt_testcluster_stop(tc) == 0 ? 0 : 1;
}
