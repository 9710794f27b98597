/* dtorchctl job explain-plan: a program on a mesh that runs all the while, and what is said of its
 * operators. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "lib/ctlbeside.h"

TestSuite(plan, .timeout = 600);

static dt_tensor_t *call1(dt_session_t *session, const char *name, dt_tensor_t *a)
{
    const dt_value_t args[] = {dt_arg_tensor(a)};
    return dt_clienttest_call(session, name, args, 1);
}

/* The item of the list that has this text, up to its end; fails if there is none. */
static const char *item_with(const char *json, const char *text, char *item, size_t size)
{
    const char *at = strstr(json, text), *begin = at, *end = at ? strstr(at, "},") : NULL;
    cr_assert_not_null(at, "no %s in %s", text, json);
    while (begin > json && *begin != '{')
        begin--;
    (void)snprintf(item, size, "%.*s", (int)((end ? end : begin + strlen(begin)) - begin), begin);
    return item;
}

static void expect_in(const char *item, const char *text)
{
    cr_assert_not_null(strstr(item, text), "no %s in %s", text, item);
}

static dt_session_t *begin(dt_ctlbeside_t *asker, uint32_t vdevs)
{
    dt_session_t *session = NULL;
    asker->tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = 1, .worker_conf = "Devices=ref:2\nEngines=1\n"});
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(asker->tc),
                                    .vdev_count = vdevs,
                                    .program = "plan",
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    cr_assert_eq(dt_connect(&options, &session, NULL), DT_OK);
    dt_ctlbeside_job(asker, session);
    return session;
}

static dt_tensor_t *upload(dt_session_t *session, const dt_mesh_t *mesh, dt_placement_t placement)
{
    static const int64_t shape[] = {4};
    static const float data[] = {1, 2, 3, 4};
    dt_tensor_t *made = NULL;
    const dt_upload_t upload = {.struct_size = sizeof upload,
                                .dtype = DT_DTYPE_F32,
                                .ndim = 1,
                                .sizes = shape,
                                .data = data,
                                .mesh = mesh,
                                .placements = &placement};
    cr_assert_eq(dt_tensor_upload(session, &upload, &made, NULL), DT_OK);
    return made;
}

/* A mean of a sharded vector, whose Partial has to be made whole for what follows, at one line. */
static void step(dt_session_t *session, dt_tensor_t *sharded, const dt_mesh_t *mesh)
{
    const dt_placement_t whole = {.kind = DT_PLACEMENT_REPLICATE};
    dt_tensor_t *all = NULL;
    float is[4];
    cr_assert_eq(DT_SOURCE_HERE(session), DT_OK);
    dt_tensor_t *sum = call1(session, "aten::sum", sharded);
    dt_tensor_t *root = call1(session, "aten::sqrt", sum);
    cr_assert_eq(DT_SOURCE_HERE(session), DT_OK);
    cr_assert_eq(dt_redistribute(sharded, mesh, &whole, &all, NULL), DT_OK);
    dt_clienttest_read(root, is, sizeof is[0]);
    cr_assert(is[0] > 3.16F && is[0] < 3.17F);
    dt_clienttest_read(all, is, sizeof is);
    cr_assert_eq(is[3], 4);
    dt_tensor_free(sum);
    dt_tensor_free(root);
    dt_tensor_free(all);
}

Test(plan, says_rule_placements_moves_and_line_of_what_runs)
{
    static const uint32_t sizes[] = {2};
    static const char *const names[] = {"dp"};
    dt_ctlbeside_t asker = {0};
    char item[4096];
    dt_mesh_t *mesh = NULL;
    dt_session_t *session = begin(&asker, 2);
    cr_assert_eq(dt_mesh_create(session, 1, sizes, names, NULL, &mesh, NULL), DT_OK);
    dt_tensor_t *sharded =
        upload(session, mesh, (dt_placement_t){.kind = DT_PLACEMENT_SHARD, .unit = 1, .groups = 1});
    step(session, sharded, mesh);
    dt_ctlbeside_begin(&asker, "explain-plan", "1", "json");
    while (!atomic_load(&asker.is_done))
        step(session, sharded, mesh);
    dt_ctlbeside_end(&asker);
    (void)item_with(asker.said.out, "\"operator_name\":\"aten::sum\"", item, sizeof item);
    expect_in(item, "\"rule\":\"aten::sum");
    expect_in(item, "\"inputs\":\"float32 (4,) [Shard(0)]\"");
    expect_in(item, "\"outputs\":\"float32 () [Partial(sum)]\"");
    expect_in(item, "\"line\":\"");
    expect_in(item, "plan_test.c:");
    expect_in(item, "\"mesh\":\"(dp=2)\"");
    expect_in(item, "\"runs\":");
    (void)item_with(asker.said.out, "\"operator_name\":\"aten::sqrt\"", item, sizeof item);
    expect_in(item, "float32 () [Partial(sum)] to [Replicate()]: all-reduce");
    expect_in(item, "\"moved_bytes\":4");
    (void)item_with(asker.said.out, "\"operator_name\":\"dtorch::redistribute\"", item,
                    sizeof item);
    expect_in(item, "\"algorithm\":\"all-gather\"");
    expect_in(item, "\"moved_bytes\":8");
    dt_testrun_fini(&asker.said);
    dt_tensor_free(sharded);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(asker.tc), 0);
}

Test(plan, of_a_job_that_does_nothing_are_its_definitions)
{
    dt_ctlbeside_t asker = {0};
    dt_session_t *session = begin(&asker, 1);
    dt_tensor_t *a = dt_clienttest_f32(session, 0, NULL, (const float[]){3});
    dt_tensor_t *b = call1(session, "aten::sqrt", a);
    float is;
    dt_clienttest_read(b, &is, sizeof is);
    dt_testrun_t said = dt_testcluster_ctl(asker.tc, "job", "explain-plan", asker.job, NULL);
    cr_assert_eq(said.code, 0, "%s", said.err);
    expect_in(said.out, "aten::sqrt");
    expect_in(said.out, "on 0");
    expect_in(said.err, "nothing ran");
    dt_testrun_fini(&said);
    said = dt_testcluster_ctl(asker.tc, "job", "explain-plan", "77", NULL);
    cr_assert_eq(said.code, 67, "%d: %s", said.code, said.err);
    dt_testrun_fini(&said);
    dt_tensor_free(a);
    dt_tensor_free(b);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(asker.tc), 0);
}
