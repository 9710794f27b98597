#include "lib/multiplier.h"

#include <stdlib.h>
#include <string.h>

/* Wait for a batch and look at its result: (side, side), ones times ones. */
static void take_batch(dt_multiplier_t *m, dt_future_t *future, float *is)
{
    size_t count = (size_t)m->side * (size_t)m->side;
    dt_failure_t failure;
    dt_error_t err;
    if (dt_future_wait(future, DT_TESTCLUSTER_PATIENCE_MS, &failure) != DT_OK)
        dt_test_die("%s: %s", failure.kind, failure.error.text);
    if (dt_future_read(future, is, count * sizeof *is, &err) != DT_OK)
        dt_test_die("%s", err.text);
    for (size_t i = 0; i < count; i++)
        if (is[i] != (float)m->side)
            dt_test_die("batch %d: %g, not %d", atomic_load(&m->done), (double)is[i], m->side);
    dt_future_free(future);
    atomic_fetch_add(&m->done, 1);
}

static void *multiply(void *arg)
{
    dt_multiplier_t *m = arg;
    dt_future_t *futures[DT_MULTIPLIER_AHEAD] = {NULL};
    size_t count = (size_t)m->side * (size_t)m->side;
    float *data = malloc(count * sizeof *data);
    int sent = 0;
    if (!data)
        dt_test_die("out of memory");
    for (size_t i = 0; i < count; i++)
        data[i] = 1;
    dt_tensor_t *a = dt_clienttest_f32(m->session, 2, (int64_t[]){m->side, m->side}, data);
    for (; !atomic_load(&m->should_end) && (m->wanted == 0 || sent < m->wanted); sent++) {
        dt_future_t **place = &futures[sent % DT_MULTIPLIER_AHEAD];
        dt_tensor_t *product = NULL;
        dt_error_t err;
        for (int k = 0; k < DT_MULTIPLIER_BATCH; k++) {
            dt_tensor_free(product);
            product = dt_clienttest_call2(m->session, "aten::mm", a, a);
        }
        if (*place)
            take_batch(m, *place, data);
        if (dt_fetch(product, place, &err) != DT_OK)
            dt_test_die("%s", err.text);
        dt_tensor_free(product);
    }
    for (int i = 0; i < DT_MULTIPLIER_AHEAD; i++)
        if (futures[(sent + i) % DT_MULTIPLIER_AHEAD])
            take_batch(m, futures[(sent + i) % DT_MULTIPLIER_AHEAD], data);
    dt_tensor_free(a);
    free(data);
    return NULL;
}

void dt_multiplier_start(dt_multiplier_t *m, dt_testcluster_t *tc, int side, int wanted)
{
    memset(m, 0, sizeof *m);
    m->side = side;
    m->wanted = wanted;
    m->session = dt_clienttest_connect(tc, NULL, NULL);
    if (pthread_create(&m->thread, NULL, multiply, m) != 0)
        dt_test_die("no thread");
}

void dt_multiplier_join(dt_multiplier_t *m)
{
    (void)pthread_join(m->thread, NULL);
    dt_clienttest_disconnect(m->session);
}
