/* Kernels that die, engines and workers that are killed, under a program with two virtual devices:
 * its next fetch says what is lost and why, the other device works on, and so does the lost one for
 * new tensors. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "lib/clienttest.h"

TestSuite(crash, .timeout = 600);

#define PATIENCE_MS DT_TESTCLUSTER_PATIENCE_MS
#define COUNT       4

static bool has_torch(void)
{
    return strcmp(dt_clienttest_devices(), "ref") != 0;
}

static dt_testcluster_t *start(int workers, const char *more)
{
    char conf[512];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n%s", dt_clienttest_devices(), more);
    return dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = workers, .worker_conf = conf});
}

static dt_session_t *connect_to(dt_testcluster_t *tc, uint32_t vdev_count)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .vdev_count = vdev_count,
                                    .address = dt_testcluster_controller_socket(tc),
                                    .connect_timeout_ms = PATIENCE_MS};
    dt_session_t *session;
    dt_error_t err;
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s\n%s", err.text,
                 dt_testcluster_logs(tc));
    return session;
}

static dt_tensor_t *upload(dt_session_t *session, uint32_t vdev, float first)
{
    const int64_t sizes[] = {COUNT};
    const float data[COUNT] = {first, first + 1, first + 2, first + 3};
    const dt_upload_t what = {.struct_size = sizeof what,
                              .dtype = DT_DTYPE_F32,
                              .ndim = 1,
                              .sizes = sizes,
                              .data = data,
                              .vdev = vdev};
    dt_tensor_t *tensor;
    dt_error_t err;
    cr_assert_eq(dt_tensor_upload(session, &what, &tensor, &err), DT_OK, "%s", err.text);
    return tensor;
}

static void expect_first(dt_testcluster_t *tc, dt_tensor_t *tensor, float wanted)
{
    float is[COUNT];
    dt_failure_t failure;
    cr_assert_eq(dt_tensor_read(tensor, is, sizeof is, &failure), DT_OK, "%s: %s\n%s", failure.kind,
                 failure.error.text, dt_testcluster_logs(tc));
    cr_assert_eq(is[0], wanted, "%g, not %g", (double)is[0], (double)wanted);
}

/* The sum of a new tensor with itself, on that device: it works. */
static void expect_works(dt_testcluster_t *tc, dt_session_t *session, uint32_t vdev)
{
    dt_tensor_t *a = upload(session, vdev, 5);
    dt_tensor_t *b = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    expect_first(tc, b, 10);
    dt_tensor_free(a);
    dt_tensor_free(b);
}

static void end(dt_testcluster_t *tc, dt_session_t *session, dt_tensor_t *const *tensors, int count)
{
    dt_failure_t failure;
    for (int i = 0; i < count; i++)
        dt_tensor_free(tensors[i]);
    (void)dt_disconnect(session, PATIENCE_MS, &failure); /* some errors were not fetched */
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

static const char *node_of(dt_session_t *session, uint32_t vdev, dt_binding_t *bindings)
{
    uint32_t count;
    cr_assert_eq(dt_session_bindings(session, bindings, 2, &count), DT_OK);
    cr_assert_eq(count, 2);
    return bindings[vdev].node;
}

/* A batch norm's backward over no rows divides by their number: the kernel dies of SIGFPE. Nobody
 * knows its outputs without running it on zeros, so it is the question for them that it dies of. */
static void expect_crash(dt_session_t *session, dt_failure_t *failure)
{
    const int64_t none[] = {0, 2}, two[] = {2};
    const float data[2] = {1, 1};
    const uint8_t mask[3] = {1, 1, 1};
    dt_tensor_t *outputs[3];
    dt_tensor_t *x = dt_clienttest_f32(session, 2, none, data);
    dt_tensor_t *w = dt_clienttest_f32(session, 1, two, data);
    const dt_value_t args[] = {dt_arg_tensor(x),     dt_arg_tensor(x),  dt_arg_tensor(w),
                               dt_arg_none(),        dt_arg_none(),     dt_arg_tensor(w),
                               dt_arg_tensor(w),     dt_arg_bool(true), dt_arg_double(1e-5),
                               dt_arg_bools(mask, 3)};
    cr_assert_eq(
        dt_call(session, "aten::native_batch_norm_backward", args, 10, outputs, 3, NULL, failure),
        DT_ERR_LOST, "%s", failure->error.text);
    dt_tensor_free(x);
    dt_tensor_free(w);
}

/* How often an engine died of a signal. */
static int crashes(dt_testcluster_t *tc)
{
    return dt_testcluster_log_count(tc, 0, "engine crashed") +
           dt_testcluster_log_count(tc, 1, "engine crashed");
}

Test(crash, of_a_kernel_names_it_and_the_session_goes_on)
{
    if (!has_torch())
        cr_skip_test("needs the torch backend");
    dt_testcluster_t *tc = start(2, "");
    dt_session_t *session = connect_to(tc, 2), *other = connect_to(tc, 2);
    dt_binding_t bindings[2];
    dt_failure_t failure;
    char node[64];
    (void)snprintf(node, sizeof node, "%s", node_of(session, 0, bindings));
    cr_assert_str_neq(node, bindings[1].node, "each device is on a node of its own");
    dt_tensor_t *here = upload(session, 0, 1), *there = upload(session, 1, 2);
    expect_first(tc, here, 1);
    dt_tensor_t *before = dt_clienttest_call2(session, "aten::add.Tensor", here, here);
    expect_crash(session, &failure);
    cr_assert_str_eq(failure.kind, "EngineLost");
    cr_assert_not_null(strstr(failure.text, "SIGFPE in aten::native_batch_norm_backward"), "%s",
                       failure.text);
    cr_assert_str_eq(failure.node, node);
    cr_assert_eq(failure.error.source_code, SIGFPE, "%s", failure.text);
    cr_assert_eq(failure.device, bindings[0].device);
    dt_tensor_t *after = dt_clienttest_call2(session, "aten::add.Tensor", here, here);
    cr_assert_eq(dt_clienttest_fails(before, &failure), DT_ERR_LOST);
    cr_assert_eq(dt_clienttest_fails(here, &failure), DT_ERR_LOST, "what was there is lost");
    cr_assert_eq(dt_clienttest_fails(after, &failure), DT_ERR_LOST, "and what depends on it");
    expect_first(tc, there, 2);
    expect_works(tc, session, 1);
    expect_works(tc, session, 0);
    expect_works(tc, other, 0);
    expect_works(tc, other, 1);
    cr_assert_eq(crashes(tc), 1, "%d engines died of one call", crashes(tc));
    (void)dt_disconnect(other, PATIENCE_MS, &failure);
    end(tc, session, (dt_tensor_t *const[]){here, there, before, after}, 4);
}

Test(crash, of_a_kernel_is_not_noticed_in_another_engine_of_the_device)
{
    if (!has_torch())
        cr_skip_test("needs the torch backend");
    dt_testcluster_t *tc = start(1, "Isolation=session\n");
    dt_session_t *session = connect_to(tc, 1), *other = connect_to(tc, 1);
    dt_failure_t failure;
    dt_tensor_t *lost = upload(session, 0, 1), *kept = upload(other, 0, 2);
    expect_first(tc, lost, 1);
    expect_first(tc, kept, 2);
    expect_crash(session, &failure);
    cr_assert_eq(failure.error.source_code, SIGFPE, "%s", failure.text);
    dt_tensor_t *sum = dt_clienttest_call2(other, "aten::add.Tensor", kept, kept);
    expect_first(tc, sum, 4);
    expect_first(tc, kept, 2);
    cr_assert_eq(dt_clienttest_fails(lost, &failure), DT_ERR_LOST);
    expect_works(tc, session, 0);
    dt_tensor_free(kept);
    dt_tensor_free(sum);
    dt_clienttest_disconnect(other); /* nothing of it failed */
    end(tc, session, (dt_tensor_t *const[]){lost}, 1);
}

static bool engine_is_busy(const Dtorch__V1__Node *node, void *arg)
{
    for (size_t i = 0; i < node->n_engines; i++)
        if (node->engines[i]->state == DTORCH__V1__ENGINE__STATE__BUSY)
            *(pid_t *)arg = (pid_t)node->engines[i]->pid;
    return *(pid_t *)arg != 0;
}

/* Operators that are under way when `vdev`'s engine or node is killed. */
static dt_tensor_t *stream_adds(dt_session_t *session, dt_tensor_t *from, int count)
{
    dt_tensor_t *sum = dt_clienttest_call2(session, "aten::add.Tensor", from, from);
    for (int i = 0; i < count; i++) {
        dt_tensor_t *next = dt_clienttest_call2(session, "aten::sub.Tensor", sum, from);
        dt_tensor_free(sum);
        sum = next;
    }
    return sum;
}

static int worker_of(const char *node)
{
    return node[1] - '0'; /* "w0", "w1" */
}

Test(crash, of_an_engine_in_the_middle_of_a_stream_is_told)
{
    dt_testcluster_t *tc = start(2, "");
    dt_session_t *session = connect_to(tc, 2);
    dt_binding_t bindings[2];
    dt_failure_t failure;
    pid_t pid = 0;
    int worker = worker_of(node_of(session, 0, bindings));
    dt_tensor_t *here = upload(session, 0, 1), *there = upload(session, 1, 2);
    expect_first(tc, here, 1);
    cr_assert(dt_testcluster_wait_node(tc, worker, engine_is_busy, &pid, PATIENCE_MS));
    dt_tensor_t *sum = stream_adds(session, here, 3000);
    cr_assert_eq(kill(pid, SIGKILL), 0);
    dt_tensor_t *more = stream_adds(session, sum, 3000);
    cr_assert_eq(dt_clienttest_fails(more, &failure), DT_ERR_LOST, "%s", failure.error.text);
    cr_assert_str_eq(failure.kind, "EngineLost", "%s", failure.text);
    cr_assert_str_eq(failure.node, bindings[0].node);
    cr_assert(failure.device == bindings[0].device && failure.vdev == 0, "device %u, vdev %u",
              failure.device, failure.vdev);
    cr_assert(strncmp(failure.operator_name, "aten::", 6) == 0 || failure.operator_name[0] == '\0',
              "it was idle, or ran one of ours: %s", failure.operator_name);
    cr_assert_eq(dt_clienttest_fails(here, &failure), DT_ERR_LOST);
    expect_first(tc, there, 2);
    expect_works(tc, session, 1);
    expect_works(tc, session, 0);
    end(tc, session, (dt_tensor_t *const[]){here, there, sum, more}, 4);
}

Test(crash, of_a_worker_in_the_middle_of_a_stream_is_told)
{
    dt_testcluster_t *tc = start(2, "");
    dt_session_t *session = connect_to(tc, 2);
    dt_binding_t bindings[2];
    dt_failure_t failure;
    int code, worker = worker_of(node_of(session, 0, bindings));
    dt_tensor_t *here = upload(session, 0, 1), *there = upload(session, 1, 2);
    expect_first(tc, here, 1);
    dt_tensor_t *sum = stream_adds(session, here, 3000);
    dt_testcluster_kill(tc, worker, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, worker, PATIENCE_MS, &code));
    dt_tensor_t *more = stream_adds(session, sum, 3000);
    cr_assert_eq(dt_clienttest_fails(more, &failure), DT_ERR_LOST, "%s", failure.error.text);
    cr_assert_str_eq(failure.kind, "WorkerLost", "%s", failure.text);
    cr_assert_str_eq(failure.node, bindings[0].node);
    cr_assert_eq(dt_clienttest_fails(here, &failure), DT_ERR_LOST);
    expect_first(tc, there, 2);
    expect_works(tc, session, 1);
    expect_works(tc, session, 0); /* bound to the node that is left */
    dt_testcluster_start_daemon(tc, worker);
    dt_session_t *fresh = connect_to(tc, 2);
    expect_works(tc, fresh, 0);
    expect_works(tc, fresh, 1);
    (void)dt_disconnect(fresh, PATIENCE_MS, &failure);
    end(tc, session, (dt_tensor_t *const[]){here, there, sum, more}, 4);
}
