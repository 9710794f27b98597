/* Program threads against libdtorch's I/O thread: operators, fetches, frees, uploads, synchronising
 * and the end of a session, while connections are cut. Meant for ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "lib/clienttest.h"
#include "lib/testproxy.h"

enum { THREADS = 4, STEPS = 400, WIDE = 4096 };

static dt_session_t *session;
static dt_testproxy_t *proxy;
static dt_tensor_t *shared; /* int64 (1,), read by all */
static atomic_int wrong;

static void *work(void *arg)
{
    int number = *(const int *)arg;
    int64_t begin = number, is = 0;
    static const int64_t wide[WIDE];
    dt_tensor_t *x = dt_clienttest_i64(session, &begin, 1);
    dt_failure_t failure;
    for (int i = 0; i < STEPS; i++) {
        dt_tensor_t *y = dt_clienttest_call2(session, "aten::add.Tensor", x, shared);
        dt_future_t *future;
        dt_tensor_free(x);
        x = y;
        if (i % 20 == number && dt_fetch(x, &future, NULL) == DT_OK) {
            (void)dt_future_ready(future);
            if (i % 40 == number && dt_future_wait(future, -1, &failure) == DT_OK)
                (void)dt_future_read(future, &is, sizeof is, NULL);
            dt_future_free(future); /* sometimes before the value came */
        }
        if (i % 100 == 50) {
            dt_tensor_free(dt_clienttest_i64(session, wide, WIDE));
            (void)dt_mark_source(session, number % 2 ? "odd" : "even", NULL);
        }
        if (i % 150 == 60)
            (void)dt_synchronize(session, -1, NULL);
        if (i % 100 == 99 && number == 0)
            dt_testproxy_cut_after(proxy, 100 + i);
    }
    dt_clienttest_read(x, &is, sizeof is);
    if (is != begin + STEPS)
        atomic_fetch_add(&wrong, 1);
    dt_tensor_free(x);
    return NULL;
}

int main(void)
{
    char conf[64], address[64];
    pthread_t threads[THREADS];
    int numbers[THREADS];
    const int64_t one = 1;
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", dt_clienttest_devices());
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = conf});
    proxy = dt_testproxy_start(dt_testcluster_controller_socket(tc));
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testproxy_port(proxy));
    session = dt_clienttest_connect(tc, address, NULL);
    shared = dt_clienttest_i64(session, &one, 1);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0)
            dt_test_die("no thread");
    }
    for (int i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    dt_tensor_free(shared);
    dt_clienttest_disconnect(session);
    dt_testproxy_stop(proxy);
    return dt_testcluster_stop(tc) == 0 && atomic_load(&wrong) == 0 ? 0 : 1;
}
