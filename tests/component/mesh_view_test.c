/* What people see of tensors on meshes: dtorchctl tensor list and job show, the controller's
 * metrics. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"

#define PATIENCE DT_TESTCLUSTER_PATIENCE_MS

TestSuite(mesh_view, .timeout = 600);

/* Run "dtorchctl NOUN VERB JOB" until it holds `wanted`, or `other`. */
static void expect_either(dt_testcluster_t *tc, const char *noun, const char *verb, uint64_t job,
                          const char *wanted, const char *other)
{
    char variable[600], number[24];
    const char *env[] = {variable, "NO_COLOR=1", NULL};
    const char *args[] = {noun, verb, number, NULL};
    int64_t until_ms = dt_test_now_ms() + PATIENCE;
    (void)snprintf(variable, sizeof variable, "DTORCH_ADMIN_SOCKET=%s",
                   dt_testcluster_admin_socket(tc));
    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)job);
    for (bool is_there = false; !is_there;) {
        dt_testrun_t said = dt_testrun_program("dtorchctl", args, env);
        is_there = said.out && (strstr(said.out, wanted) || strstr(said.out, other));
        cr_assert(is_there || dt_test_now_ms() < until_ms, "%s %s: no \"%s\" in:\n%s%s\n%s", noun,
                  verb, wanted, said.out, said.err, dt_testcluster_logs(tc));
        dt_testrun_fini(&said);
    }
}

static void expect(dt_testcluster_t *tc, const char *noun, const char *verb, uint64_t job,
                   const char *wanted)
{
    expect_either(tc, noun, verb, job, wanted, wanted);
}

static bool has_metric(dt_testcluster_t *tc, void *arg)
{
    char *text =
        dt_test_http_get(dt_testcluster_metrics_port(tc, DT_TESTCLUSTER_CONTROLLER), "/metrics");
    bool is_there = text && strstr(text, arg);
    free(text);
    return is_there;
}

static void expect_metric(dt_testcluster_t *tc, const char *line)
{
    cr_assert(dt_testcluster_wait(tc, has_metric, (void *)(uintptr_t)line, PATIENCE), "no %s",
              line);
}

Test(mesh_view, a_sharded_tensor_is_seen_whole_and_in_parts_with_its_mesh_and_what_moved)
{
    static const uint32_t sizes[] = {2};
    static const char *names[] = {"tp"};
    static const int64_t shape[] = {5, 3};
    static const float data[15] = {1, 2, 3};
    const dt_placement_t placement = {.kind = DT_PLACEMENT_SHARD};
    const dt_placement_t whole = {.kind = DT_PLACEMENT_REPLICATE};
    dt_testcluster_t *tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 2, .worker_conf = "Devices=ref\nEngines=1\n"});
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(tc),
                                    .vdev_count = 2,
                                    .program = "mesh-view",
                                    .connect_timeout_ms = PATIENCE};
    dt_session_info_t info = {.struct_size = sizeof info};
    dt_session_t *session = NULL;
    dt_tensor_t *sharded = NULL, *replicated = NULL;
    dt_mesh_t *mesh = NULL;
    dt_error_t err;
    float is[15];
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_mesh_create(session, 1, sizes, names, NULL, &mesh, &err), DT_OK, "%s",
                 err.text);
    const dt_upload_t upload = {.struct_size = sizeof upload,
                                .dtype = DT_DTYPE_F32,
                                .ndim = 2,
                                .sizes = shape,
                                .data = data,
                                .mesh = mesh,
                                .placements = &placement};
    cr_assert_eq(dt_tensor_upload(session, &upload, &sharded, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_redistribute(sharded, mesh, &whole, &replicated, &err), DT_OK, "%s", err.text);
    dt_clienttest_read(replicated, is, sizeof is);
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    uint64_t job = info.session;
    expect(tc, "tensor", "list", job, "float32 (3, 3)");
    expect(tc, "tensor", "list", job, "float32 (2, 3)");
    expect(tc, "tensor", "list", job, "(5, 3)");
    expect(tc, "tensor", "list", job, "2 (tp=2)  [Shard(0)]");
    expect(tc, "tensor", "list", job, "2 (tp=2)  [Replicate()]");
    /* Either node may have joined first. */
    expect_either(tc, "job", "show", job, "mesh 2 (tp=2)  vdev  0 w0:0  1 w1:0",
                  "mesh 2 (tp=2)  vdev  0 w1:0  1 w0:0");
    expect(tc, "job", "show", job, "all-gather  1 times  36 B a device");
    expect_metric(tc, "\ndtorch_moves_total{kind=\"all-gather\"} 1\n");
    expect_metric(tc, "\ndtorch_move_bytes_total{kind=\"all-gather\"} 36\n");
    expect_metric(tc, "\ndtorch_moves_total{kind=\"all-to-all\"} 0\n");
    dt_tensor_free(sharded);
    dt_tensor_free(replicated);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}
