/* dtorchctl about a job, beside a program that goes on: it runs in a thread of its own, and until
 * it is done the test keeps the job busy. */
#ifndef DT_TESTS_LIB_CTLBESIDE_H
#define DT_TESTS_LIB_CTLBESIDE_H
#include <pthread.h>
#include <stdatomic.h>

#include "lib/clienttest.h"

typedef struct dt_ctlbeside {
    dt_testcluster_t *tc; /* set by the test */
    char job[32];
    const char *args[7];
    dt_testrun_t said; /* once it is done; dt_testrun_fini() */
    atomic_bool is_done;
    pthread_t thread;
} dt_ctlbeside_t;

/* Which job it is about. */
void dt_ctlbeside_job(dt_ctlbeside_t *beside, dt_session_t *session);
/* Begin "dtorchctl job VERB JOB SECONDS -o OUTPUT"; `output` NULL: without -o. */
void dt_ctlbeside_begin(dt_ctlbeside_t *beside, const char *verb, const char *seconds,
                        const char *output);
/* Wait for it, which is short once it is done. It must have succeeded. */
void dt_ctlbeside_end(dt_ctlbeside_t *beside);

#endif
