/* A program that multiplies matrices of ones on a thread of its own, some batches ahead of what it
 * has seen, and looks at each batch's result: what shares of a device are measured by. */
#ifndef DT_TESTS_LIB_MULTIPLIER_H
#define DT_TESTS_LIB_MULTIPLIER_H
#include <pthread.h>
#include <stdatomic.h>

#include "lib/clienttest.h"

#define DT_MULTIPLIER_BATCH    16 /* products between two fetches */
#define DT_MULTIPLIER_AHEAD    8  /* batches in the stream */
#define DT_MULTIPLIER_SIDE_MAX 256

typedef struct dt_multiplier {
    pthread_t thread;
    dt_session_t *session;
    int side;        /* of the matrices */
    int wanted;      /* batches; 0: until told */
    atomic_int done; /* batches whose result came and was right */
    atomic_bool should_end;
} dt_multiplier_t;

/* Connect and begin. A wrong result ends the test. */
void dt_multiplier_start(dt_multiplier_t *m, dt_testcluster_t *tc, int side, int wanted);
/* Wait for its end, and end its session. */
void dt_multiplier_join(dt_multiplier_t *m);

#endif
