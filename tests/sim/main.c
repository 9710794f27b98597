/* usage: sim [--first=N] [--count=N] [--trace]
 * Runs the seeds that once failed, then a range. Ends with "sim: N passed, N failed". */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "overlap.h"
#include "sim.h"
#include "stream.h"

/* Each of these found a fault once; the comment says which. */
static const uint64_t regressions[] = {
    4,   /* meshes: a part of a tensor on another node was fetched from the first one */
    32,  /* meshes: results that were not confirmed held back a member of what the next one needs */
    202, /* an engine event was shown twice: a clone had the identity in between */
    258, /* the same, with a restart of the controller before the new life's record */
    456, /* stream: results that could not be confirmed held back the one before them */
    1117, /* a request sent again waited over the bound of pending answers */
    2274, /* stream: a node was told of more vdevs for an instance that it had already; meshes: who
             was away when a node was lost did not hear of it, and waited for it */
};

static uint64_t number(const char *text, const char *arg)
{
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*text && !*end)
        return value;
    (void)fprintf(stderr, "sim: bad argument %s\n", arg);
    exit(64);
}

static bool run_one(uint64_t seed, bool is_traced, uint64_t *steps)
{
    char failure[512];
    uint64_t count = 0;
    bool is_ok = sim_run(seed, is_traced, failure, &count) &&
                 stream_run(seed, STREAM_PLAIN, is_traced, failure, &count) &&
                 stream_run(seed, STREAM_MESHES, is_traced, failure, &count) &&
                 stream_run(seed, STREAM_OVERLAP, is_traced, failure, &count) &&
                 overlap_run(seed, is_traced, failure, &count);
    *steps += count;
    if (!is_ok)
        (void)printf("FAILED seed %" PRIu64 ": %s\n  again: sim --first=%" PRIu64
                     " --count=1 --trace\n",
                     seed, failure, seed);
    return is_ok;
}

int main(int argc, char **argv)
{
    uint64_t first = 1, count = 500, passed = 0, failed = 0, steps = 0;
    bool is_traced = false;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--first=", 8) == 0)
            first = number(argv[i] + 8, argv[i]);
        else if (strncmp(argv[i], "--count=", 8) == 0)
            count = number(argv[i] + 8, argv[i]);
        else if (strcmp(argv[i], "--trace") == 0)
            is_traced = true;
        else
            return 64;
    }
    for (size_t i = 0; !is_traced && i < sizeof regressions / sizeof regressions[0]; i++)
        run_one(regressions[i], false, &steps) ? passed++ : failed++;
    for (uint64_t seed = first; seed < first + count; seed++)
        run_one(seed, is_traced, &steps) ? passed++ : failed++;
    (void)printf("sim: %" PRIu64 " steps in %" PRIu64 " seeds\n", steps, passed + failed);
    (void)printf("sim: %" PRIu64 " passed, %" PRIu64 " failed\n", passed, failed);
    return failed ? 1 : 0;
}
