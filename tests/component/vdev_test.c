/* Sessions of several virtual devices through real daemons: on one device, on several, on two
 * nodes; each with its own memory; the loss of one. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"

#define PATIENCE  DT_TESTCLUSTER_PATIENCE_MS
#define VDEVS_MAX 8u
#define LARGE     50000 /* elements: more than goes beside a record */

TestSuite(vdev, .timeout = 600);

static dt_testcluster_t *start(int workers, const char *devices)
{
    char conf[128];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", devices);
    return dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = workers, .worker_conf = conf});
}

static dt_session_t *begin(dt_testcluster_t *tc, uint32_t vdevs, uint64_t memory_bytes)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(tc),
                                    .vdev_count = vdevs,
                                    .memory_limit_bytes = memory_bytes,
                                    .program = "vdevs",
                                    .connect_timeout_ms = PATIENCE};
    dt_session_t *session = NULL;
    dt_error_t err;
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s\n%s", err.text,
                 dt_testcluster_logs(tc));
    return session;
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* `count` elements, each `value`, on a virtual device. */
static dt_tensor_t *put(dt_session_t *session, uint32_t vdev, int64_t count, float value)
{
    float *data = malloc((size_t)count * sizeof *data);
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = 1,
                          .sizes = &count,
                          .data = data,
                          .vdev = vdev};
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    cr_assert_not_null(data);
    for (int64_t i = 0; i < count; i++)
        data[i] = value;
    cr_assert_eq(dt_tensor_upload(session, &upload, &tensor, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_tensor_vdev(tensor), vdev);
    free(data);
    return tensor;
}

/* Whether all elements are `value`; false with the kind of the failure if there is none. */
static bool is_all(dt_tensor_t *tensor, int64_t count, float value, char kind[32])
{
    static dt_failure_t failure;
    float *data = calloc((size_t)count, sizeof *data);
    bool is_so = true;
    cr_assert_not_null(data);
    kind[0] = '\0';
    if (dt_tensor_read(tensor, data, (size_t)count * sizeof *data, &failure) != DT_OK) {
        (void)snprintf(kind, 32, "%s", failure.kind[0] ? failure.kind : "?");
        is_so = false;
    }
    for (int64_t i = 0; is_so && i < count; i++)
        is_so = data[i] == value;
    free(data);
    return is_so;
}

static void expect_all(dt_testcluster_t *tc, dt_tensor_t *tensor, int64_t count, float value)
{
    char kind[32];
    cr_assert(is_all(tensor, count, value, kind), "not all %g: %s\n%s", (double)value, kind,
              dt_testcluster_logs(tc));
}

/* Chains of operators on all virtual devices at once, small and large values. */
static void compute_on_all(dt_testcluster_t *tc, dt_session_t *session, uint32_t vdevs)
{
    dt_tensor_t *small[VDEVS_MAX], *large[VDEVS_MAX];
    for (uint32_t v = 0; v < vdevs; v++) {
        small[v] = put(session, v, 3, (float)v + 1);
        large[v] = put(session, v, LARGE, (float)v);
    }
    for (int round = 0; round < 8; round++)
        for (uint32_t v = 0; v < vdevs; v++) {
            dt_tensor_t *twice =
                dt_clienttest_call2(session, "aten::add.Tensor", small[v], small[v]);
            cr_assert_eq(dt_tensor_vdev(twice), v);
            dt_tensor_free(small[v]);
            small[v] = twice;
        }
    for (uint32_t v = 0; v < vdevs; v++) {
        dt_tensor_t *sum = dt_clienttest_call2(session, "aten::add.Tensor", large[v], large[v]);
        expect_all(tc, small[v], 3, 256.0F * ((float)v + 1));
        expect_all(tc, sum, LARGE, 2 * (float)v);
        dt_tensor_free(sum);
        dt_tensor_free(small[v]);
        dt_tensor_free(large[v]);
    }
    cr_assert_eq(dt_synchronize(session, PATIENCE, NULL), DT_OK);
}

/* How many of the bindings are on this node; -1 as device: any. */
static uint32_t count_bound(dt_session_t *session, const char *node, int device)
{
    dt_binding_t bindings[VDEVS_MAX];
    uint32_t count, found = 0;
    cr_assert_eq(dt_session_bindings(session, bindings, VDEVS_MAX, &count), DT_OK);
    for (uint32_t i = 0; i < count; i++)
        found += strcmp(bindings[i].node, node) == 0 &&
                 (device < 0 || bindings[i].device == (uint32_t)device);
    return found;
}

Test(vdev, several_share_one_device)
{
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 4, 0);
    cr_assert_eq(count_bound(session, "w0", 0), 4);
    compute_on_all(tc, session, 4);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* The engine of a device that works for a session, as the controller knows it. */
static bool find_engine(dt_testcluster_t *tc, void *arg)
{
    pid_t *ret_pid = arg;
    Dtorch__V1__NodeList *nodes = dt_testcluster_nodes(tc);
    bool is_there = false;
    for (size_t i = 0; nodes && i < nodes->nodes[0]->n_engines; i++) {
        const Dtorch__V1__Engine *engine = nodes->nodes[0]->engines[i];
        if (engine->device != 1 || engine->state != DTORCH__V1__ENGINE__STATE__BUSY)
            continue;
        *ret_pid = (pid_t)engine->pid;
        is_there = true;
    }
    if (nodes)
        dtorch__v1__node_list__free_unpacked(nodes, NULL);
    return is_there;
}

/* Fetch; the values of sim mean nothing. Gives the failure's kind, "" without one. Static. */
static const char *fetch_kind(dt_tensor_t *tensor)
{
    static dt_failure_t failure;
    float data[3];
    return dt_tensor_read(tensor, data, sizeof data, &failure) == DT_OK ? "" : failure.kind;
}

Test(vdev, several_spread_over_the_devices_of_a_node_and_die_with_their_own)
{
    enum { DEVICES = 3, VDEVS = 6 };
    dt_testcluster_t *tc = start(1, "sim:3");
    dt_session_t *session = begin(tc, VDEVS, 0);
    dt_binding_t bindings[VDEVS_MAX];
    dt_tensor_t *tensors[VDEVS];
    uint32_t count;
    pid_t pid = 0;
    for (int device = 0; device < DEVICES; device++)
        cr_assert_eq(count_bound(session, "w0", device), 2);
    cr_assert_eq(dt_session_bindings(session, bindings, VDEVS_MAX, &count), DT_OK);
    for (uint32_t v = 0; v < VDEVS; v++) {
        dt_tensor_t *one = put(session, v, 3, 1);
        tensors[v] = dt_clienttest_call2(session, "aten::add.Tensor", one, one);
        dt_tensor_free(one);
    }
    cr_assert_eq(dt_synchronize(session, PATIENCE, NULL), DT_OK);
    cr_assert(dt_testcluster_wait(tc, find_engine, &pid, PATIENCE), "%s", dt_testcluster_logs(tc));
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert(dt_testcluster_wait_event(tc, "session-fault", DT_TESTCLUSTER_CONTROLLER, 0, PATIENCE,
                                        NULL),
              "%s", dt_testcluster_logs(tc));
    for (uint32_t v = 0; v < VDEVS; v++) {
        const char *kind = fetch_kind(tensors[v]);
        cr_assert_str_eq(kind, bindings[v].device == 1 ? "EngineLost" : "", "vdev %u: %s\n%s", v,
                         kind, dt_testcluster_logs(tc));
        dt_tensor_free(tensors[v]);
    }
    for (uint32_t v = 0; v < VDEVS; v++) { /* all have a device again */
        dt_tensor_t *one = put(session, v, 3, 1);
        cr_assert_str_eq(fetch_kind(one), "", "vdev %u\n%s", v, dt_testcluster_logs(tc));
        dt_tensor_free(one);
    }
    (void)dt_disconnect(session, PATIENCE, NULL);
    stop(tc);
}

Test(vdev, several_spread_over_two_nodes)
{
    dt_testcluster_t *tc = start(2, "ref:2");
    dt_session_t *session = begin(tc, 4, 0);
    cr_assert_eq(count_bound(session, "w0", -1), 2);
    cr_assert_eq(count_bound(session, "w1", -1), 2);
    compute_on_all(tc, session, 4);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* The value of a metric without labels; -1: it is not there. */
static double metric(dt_testcluster_t *tc, int who, const char *name)
{
    char line[128];
    char *text = dt_test_http_get(dt_testcluster_metrics_port(tc, who), "/metrics");
    (void)snprintf(line, sizeof line, "\n%s ", name);
    const char *at = text ? strstr(text, line) : NULL;
    double value = at ? strtod(at + strlen(line), NULL) : -1;
    free(text);
    return value;
}

static bool shows_work(dt_testcluster_t *tc, void *arg)
{
    static const char *const of_controller[] = {
        "dtorch_operators_accepted_total", "dtorch_operators_executed_total",
        "dtorch_session_bytes_total",      "dtorch_session_acks_total",
        "dtorch_session_results_total",    "dtorch_session_credit_bytes",
        "dtorch_session_memory_bytes",     "dtorch_tensors"};
    static const char *const of_worker[] = {
        "dtorch_worker_operations_total", "dtorch_worker_frame_bytes_total",
        "dtorch_worker_results_total", "dtorch_worker_session_memory_limit_bytes"};
    static const char *const queues[] = {"dtorch_session_queued_bytes",
                                         "dtorch_session_unsent_bytes",
                                         "dtorch_session_results_bytes"};
    const char **missing = arg;
    for (size_t i = 0; i < sizeof of_controller / sizeof *of_controller; i++)
        if (metric(tc, DT_TESTCLUSTER_CONTROLLER, *missing = of_controller[i]) <= 0)
            return false;
    for (size_t i = 0; i < sizeof of_worker / sizeof *of_worker; i++)
        if (metric(tc, 0, *missing = of_worker[i]) <= 0)
            return false;
    for (size_t i = 0; i < sizeof queues / sizeof *queues; i++)
        if (metric(tc, DT_TESTCLUSTER_CONTROLLER, *missing = queues[i]) < 0)
            return false;
    *missing = "dtorch_worker_queue_records"; /* all is executed */
    return metric(tc, 0, *missing) == 0;
}

Test(vdev, their_work_bytes_queues_credit_and_memory_are_metrics_of_both_daemons)
{
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 2, 0);
    const char *missing = "";
    dt_tensor_t *a = put(session, 1, 3, 1);
    compute_on_all(tc, session, 2);
    cr_assert(dt_testcluster_wait(tc, shows_work, &missing, PATIENCE), "%s is not as it should be",
              missing);
    dt_tensor_free(a);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(vdev, an_operator_on_tensors_of_two_is_refused_and_nothing_else_is)
{
    dt_testcluster_t *tc = start(1, "ref:2");
    static dt_failure_t failure;
    dt_session_t *session = begin(tc, 2, 0);
    dt_tensor_t *a = put(session, 0, 3, 1), *b = put(session, 1, 3, 2), *c = NULL;
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_tensor(b)};
    cr_assert_eq(dt_call(session, "aten::add.Tensor", args, 2, &c, 1, NULL, &failure),
                 DT_ERR_INVALID);
    cr_assert(strstr(failure.error.text, "virtual device"), "%s", failure.error.text);
    expect_all(tc, a, 3, 1);
    expect_all(tc, b, 3, 2);
    compute_on_all(tc, session, 2);
    dt_tensor_free(a);
    dt_tensor_free(b);
    dt_clienttest_disconnect(session);
    stop(tc);
}

Test(vdev, those_of_one_device_have_their_memory_in_common_and_no_more)
{
    enum { PART = 48 << 10 }; /* 192 KiB of float */
    dt_testcluster_t *tc = start(1, "ref");
    char kind[32];
    dt_session_t *session = begin(tc, 2, 256 << 10);
    dt_tensor_t *a = put(session, 0, PART, 1);
    dt_tensor_t *b = put(session, 1, PART, 2);
    dt_tensor_t *over = put(session, 0, PART, 3);
    expect_all(tc, a, PART, 1);
    expect_all(tc, b, PART, 2);
    cr_assert_not(is_all(over, PART, 3, kind), "they have more than their limits");
    cr_assert_str_eq(kind, "OutOfMemoryError");
    dt_tensor_free(a);
    dt_tensor_free(over);
    dt_tensor_t *again = put(session, 0, PART, 4);
    expect_all(tc, again, PART, 4);
    expect_all(tc, b, PART, 2);
    dt_tensor_free(again);
    dt_tensor_free(b);
    (void)dt_disconnect(session, PATIENCE, NULL);
    stop(tc);
}

Test(vdev, an_upload_that_fails_gives_back_what_was_kept_of_it)
{
    enum { PART = 1 << 20, ROUNDS = 200 }; /* 800 MiB: far more than a program may keep */
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 1, 1 << 20);
    for (int i = 0; i < ROUNDS; i++)
        dt_tensor_free(put(session, 0, PART, 1));
    dt_tensor_t *fits = put(session, 0, PART / 16, 5);
    expect_all(tc, fits, PART / 16, 5);
    dt_tensor_free(fits);
    (void)dt_disconnect(session, PATIENCE, NULL);
    stop(tc);
}

Test(vdev, what_a_program_frees_is_free_for_its_next_operator)
{
    enum { PART = 48 << 10, ROUNDS = 100 };
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 1, 1 << 20); /* five of them */
    dt_tensor_t *a = put(session, 0, PART, 1), *x = put(session, 0, PART, 0);
    for (int i = 0; i < ROUNDS; i++) { /* nobody waits in between */
        dt_tensor_t *next = dt_clienttest_call2(session, "aten::add.Tensor", x, a);
        dt_tensor_free(x);
        x = next;
    }
    expect_all(tc, x, PART, ROUNDS);
    dt_tensor_free(a);
    dt_tensor_free(x);
    dt_clienttest_disconnect(session);
    stop(tc);
}

/* The worker that holds a virtual device. */
static int worker_of(dt_session_t *session, uint32_t vdev)
{
    dt_binding_t bindings[VDEVS_MAX];
    uint32_t count;
    cr_assert_eq(dt_session_bindings(session, bindings, VDEVS_MAX, &count), DT_OK);
    cr_assert_lt(vdev, count);
    return bindings[vdev].node[1] - '0';
}

static bool has_moved(dt_testcluster_t *tc, void *arg)
{
    dt_session_t *session = arg;
    (void)tc;
    return worker_of(session, 0) == worker_of(session, 1);
}

Test(vdev, a_lost_node_takes_its_own_and_the_others_go_on)
{
    dt_testcluster_t *tc = start(2, "ref");
    static dt_failure_t failure;
    int code;
    dt_session_t *session = begin(tc, 2, 0);
    int dies = worker_of(session, 0);
    char node[4];
    (void)snprintf(node, sizeof node, "w%d", dies);
    cr_assert_neq(dies, worker_of(session, 1));
    dt_tensor_t *lost = put(session, 0, 3, 1), *kept = put(session, 1, LARGE, 1);
    expect_all(tc, lost, 3, 1);
    dt_testcluster_kill(tc, dies, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, dies, PATIENCE, &code));
    for (int i = 0; i < 8; i++) { /* while the loss is found out */
        dt_tensor_t *twice = dt_clienttest_call2(session, "aten::add.Tensor", kept, kept);
        dt_tensor_free(kept);
        kept = twice;
        if (i % 4 == 3)
            expect_all(tc, kept, LARGE, (float)(2 << i));
    }
    cr_assert_neq(dt_clienttest_fails(lost, &failure), DT_OK);
    cr_assert_str_eq(failure.kind, "WorkerLost");
    cr_assert_str_eq(failure.node, node);
    expect_all(tc, kept, LARGE, 256);
    cr_assert(dt_testcluster_wait(tc, has_moved, session, PATIENCE), "%s", dt_testcluster_logs(tc));
    compute_on_all(tc, session, 2); /* the lost one is on the other node now */
    expect_all(tc, kept, LARGE, 256);
    dt_tensor_free(lost);
    dt_tensor_free(kept);
    (void)dt_disconnect(session, PATIENCE, NULL);
    stop(tc);
}
