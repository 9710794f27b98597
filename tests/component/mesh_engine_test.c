/* Mesh tensors through real daemons: one program on one engine with several vdevs, on several
 * engines, and on both at once gives the bytes of one device; what one vdev cannot do is told. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"

#define PATIENCE DT_TESTCLUSTER_PATIENCE_MS
#define ROWS     37
#define COLUMNS  29
#define LARGE    50001 /* elements: more than goes beside a record */

TestSuite(mesh_engine, .timeout = 600);

typedef struct place {
    dt_session_t *session;
    dt_mesh_t *mesh;
    dt_testcluster_t *tc;
} place_t;

static dt_testcluster_t *start(int workers, const char *devices)
{
    char conf[128];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", devices);
    return dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = workers, .worker_conf = conf});
}

static void join(place_t *place, uint32_t vdevs, unsigned ndim, const uint32_t *sizes,
                 uint64_t memory_bytes)
{
    dt_error_t err;
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(place->tc),
                                    .vdev_count = vdevs,
                                    .memory_limit_bytes = memory_bytes,
                                    .program = "mesh",
                                    .connect_timeout_ms = PATIENCE};
    cr_assert_eq(dt_connect(&options, &place->session, &err), DT_OK, "%s\n%s", err.text,
                 dt_testcluster_logs(place->tc));
    cr_assert_eq(dt_mesh_create(place->session, ndim, sizes, NULL, NULL, &place->mesh, &err), DT_OK,
                 "%s", err.text);
}

static void begin(place_t *place, int workers, const char *devices, unsigned ndim,
                  const uint32_t *sizes, uint64_t memory_bytes)
{
    uint32_t vdevs = 1;
    for (unsigned i = 0; i < ndim; i++)
        vdevs *= sizes[i];
    place->tc = start(workers, devices);
    join(place, vdevs, ndim, sizes, memory_bytes);
}

static void end(place_t *place)
{
    dt_mesh_free(place->mesh);
    dt_clienttest_disconnect(place->session);
    cr_assert_eq(dt_testcluster_stop(place->tc), 0);
}

/* ---- values ---- */

static float *values(int64_t count)
{
    float *data = malloc((size_t)count * sizeof *data);
    cr_assert_not_null(data);
    for (int64_t i = 0; i < count; i++)
        data[i] = (float)((i * 7919) % 1000) / 8; /* sums of them are exact */
    return data;
}

/* On the mesh by placements; NULL: on one device. */
static dt_tensor_t *put(const place_t *place, unsigned ndim, const int64_t *sizes,
                        const dt_placement_t *placements)
{
    int64_t count = 1;
    for (unsigned i = 0; i < ndim; i++)
        count *= sizes[i];
    float *data = values(count);
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = ndim,
                          .sizes = sizes,
                          .data = data,
                          .mesh = placements ? place->mesh : NULL,
                          .placements = placements};
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    cr_assert_eq(dt_tensor_upload(place->session, &upload, &tensor, &err), DT_OK, "%s", err.text);
    free(data);
    return tensor;
}

/* The bytes of a tensor, whatever its layout. */
static void *bytes_of(const place_t *place, dt_tensor_t *tensor, size_t *ret_size)
{
    static dt_failure_t failure;
    dt_meta_t meta;
    cr_assert_eq(dt_tensor_meta(tensor, &meta, &failure), DT_OK, "%s", failure.text);
    *ret_size = (size_t)dt_meta_bytes(&meta);
    void *bytes = malloc(*ret_size + 1);
    cr_assert_not_null(bytes);
    cr_assert_eq(dt_tensor_read(tensor, bytes, *ret_size, &failure), DT_OK, "%s: %s\n%s",
                 failure.kind, failure.text, dt_testcluster_logs(place->tc));
    return bytes;
}

static void expect_same(const place_t *place, const char *what, dt_tensor_t *a, dt_tensor_t *b)
{
    size_t sizes[2];
    void *bytes[2] = {bytes_of(place, a, &sizes[0]), bytes_of(place, b, &sizes[1])};
    cr_assert_eq(sizes[0], sizes[1], "%s: %zu and %zu bytes", what, sizes[0], sizes[1]);
    cr_assert_eq(memcmp(bytes[0], bytes[1], sizes[0]), 0, "%s: another value", what);
    free(bytes[0]);
    free(bytes[1]);
}

static dt_tensor_t *call1(const place_t *place, const char *name, dt_tensor_t *a)
{
    const dt_value_t arg = dt_arg_tensor(a);
    return dt_clienttest_call(place->session, name, &arg, 1);
}

/* ---- one program ---- */

enum { STEPS = 9 };

/* What it gives from a matrix: each step's tensor is the caller's. */
static void program(const place_t *place, dt_tensor_t *x, dt_tensor_t *steps[STEPS])
{
    dt_session_t *session = place->session;
    steps[0] = dt_clienttest_call2(session, "aten::add.Tensor", x, x);
    steps[1] = call1(place, "aten::t", steps[0]);
    steps[2] = dt_clienttest_call2(session, "aten::mm", steps[1], x);
    steps[3] = dt_clienttest_call2(session, "aten::mm", x, steps[1]);
    steps[4] = call1(place, "aten::sum", x);
    steps[5] = dt_clienttest_call2(session, "aten::mul.Tensor", steps[3], steps[4]);
    const dt_value_t row[] = {dt_arg_tensor(steps[5]), dt_arg_int(0), dt_arg_int(3)};
    steps[6] = dt_clienttest_call(session, "aten::select.int", row, 3);
    steps[7] = dt_clienttest_call2(session, "aten::add_.Tensor", steps[6], steps[6]);
    steps[8] = call1(place, "aten::relu", steps[2]);
}

static void expect_on_mesh(const place_t *place, dt_tensor_t *tensor,
                           const dt_placement_t *placements)
{
    const dt_mesh_t *mesh;
    dt_placement_t is[DT_RECORD_MESH_DIM_MAX];
    unsigned ndim;
    uint32_t sizes[DT_RECORD_MESH_DIM_MAX];
    cr_assert_eq(dt_tensor_layout(tensor, &mesh, is), DT_OK);
    cr_assert_eq(mesh, place->mesh);
    dt_mesh_shape(mesh, &ndim, sizes);
    for (unsigned i = 0; i < ndim; i++)
        cr_assert(is[i].kind == placements[i].kind && is[i].dim == placements[i].dim);
}

static void run_all_layouts(const place_t *place)
{
    static const int64_t sizes[] = {ROWS, COLUMNS};
    const dt_placement_t layouts[][2] = {
        {{.kind = DT_PLACEMENT_SHARD, .dim = 0}, {.kind = DT_PLACEMENT_SHARD, .dim = 1}},
        {{.kind = DT_PLACEMENT_SHARD, .dim = 1}, {.kind = DT_PLACEMENT_REPLICATE}},
        {{.kind = DT_PLACEMENT_REPLICATE}, {.kind = DT_PLACEMENT_SHARD, .dim = 1}},
    };
    dt_tensor_t *one[STEPS];
    dt_tensor_t *many[STEPS];
    dt_tensor_t *x = put(place, 2, sizes, NULL);
    program(place, x, one);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        dt_tensor_t *y = put(place, 2, sizes, layouts[i]);
        expect_on_mesh(place, y, layouts[i]);
        expect_same(place, "upload", x, y);
        program(place, y, many);
        for (int k = 0; k < STEPS; k++) {
            char what[32];
            (void)snprintf(what, sizeof what, "layout %zu, step %d", i, k);
            expect_same(place, what, one[k], many[k]);
            dt_tensor_free(many[k]);
        }
        dt_tensor_free(y);
    }
    for (int k = 0; k < STEPS; k++)
        dt_tensor_free(one[k]);
    dt_tensor_free(x);
}

/* Bytes that go beside the records, in parts. */
static void run_large(const place_t *place)
{
    static const int64_t size = LARGE;
    const dt_placement_t shard[2] = {{.kind = DT_PLACEMENT_SHARD, .dim = 0},
                                     {.kind = DT_PLACEMENT_SHARD, .dim = 0}};
    const dt_placement_t replicate[2] = {{.kind = DT_PLACEMENT_REPLICATE}};
    dt_tensor_t *x = put(place, 1, &size, NULL);
    dt_tensor_t *twice = dt_clienttest_call2(place->session, "aten::add.Tensor", x, x);
    for (int i = 0; i < 2; i++) {
        dt_error_t err;
        dt_tensor_t *moved = NULL;
        dt_tensor_t *y = put(place, 1, &size, i == 0 ? shard : replicate);
        dt_tensor_t *sum = dt_clienttest_call2(place->session, "aten::add.Tensor", y, y);
        cr_assert_eq(dt_redistribute(sum, place->mesh, i == 0 ? replicate : shard, &moved, &err),
                     DT_OK);
        expect_same(place, "large", twice, sum);
        expect_same(place, "large, moved", twice, moved);
        dt_tensor_free(moved);
        dt_tensor_free(sum);
        dt_tensor_free(y);
    }
    dt_tensor_free(twice);
    dt_tensor_free(x);
}

static void run(int workers, const char *devices, unsigned ndim, const uint32_t *sizes)
{
    place_t place;
    begin(&place, workers, devices, ndim, sizes, 0);
    run_all_layouts(&place);
    run_large(&place);
    end(&place);
}

Test(mesh_engine, two_vdevs_of_one_engine_give_the_bytes_of_one_device)
{
    run(1, "ref", 1, (const uint32_t[]){2});
}

Test(mesh_engine, three_vdevs_of_one_engine_do_not_divide_anything)
{
    run(1, "ref", 1, (const uint32_t[]){3});
}

Test(mesh_engine, two_by_two_vdevs_of_one_engine)
{
    run(1, "ref", 2, (const uint32_t[]){2, 2});
}

Test(mesh_engine, two_engines)
{
    run(1, "ref:2", 1, (const uint32_t[]){2});
}

Test(mesh_engine, two_engines_with_two_vdevs_each)
{
    run(1, "ref:2", 2, (const uint32_t[]){2, 2});
}

Test(mesh_engine, four_engines)
{
    run(1, "ref:4", 1, (const uint32_t[]){4});
}

Test(mesh_engine, eight_devices_on_one)
{
    run(1, "ref:8", 2, (const uint32_t[]){2, 4});
}

/* The program asks for one device, its environment for eight on the one that there is. */
Test(mesh_engine, eight_devices_that_the_environment_asks_for)
{
    static const uint32_t sizes[] = {8};
    dt_session_info_t info = {.struct_size = sizeof info};
    place_t place = {.tc = start(1, "ref")};
    cr_assert_eq(setenv("DTORCH_DTENSOR_IN_SAME_DEVICE", "8", 1), 0);
    join(&place, 1, 1, sizes, 0);
    cr_assert_eq(unsetenv("DTORCH_DTENSOR_IN_SAME_DEVICE"), 0);
    cr_assert_eq(dt_session_info(place.session, &info), DT_OK);
    cr_expect_eq(info.vdev_count, 8);
    run_all_layouts(&place);
    run_large(&place);
    end(&place);
}

Test(mesh_engine, simulated_devices_move_no_bytes)
{
    static const int64_t size = INT64_C(1) << 34; /* 64 GiB that are nowhere */
    static const uint32_t two = 2;
    const dt_placement_t shard = {.kind = DT_PLACEMENT_SHARD, .dim = 0};
    const dt_value_t args[] = {dt_arg_ints(&size, 1)};
    place_t place;
    dt_error_t err;
    dt_tensor_t *parts = NULL;
    dt_tensor_t *whole = NULL;
    begin(&place, 1, "sim:2", 1, &two, 0);
    dt_tensor_t *x = dt_clienttest_call(place.session, "aten::zeros", args, 1);
    cr_assert_eq(dt_redistribute(x, place.mesh, &shard, &parts, &err), DT_OK, "%s", err.text);
    dt_tensor_t *sum = dt_clienttest_call2(place.session, "aten::add.Tensor", parts, parts);
    cr_assert_eq(dt_redistribute(sum, NULL, NULL, &whole, &err), DT_OK, "%s", err.text);
    dt_tensor_free(whole);
    dt_tensor_free(sum);
    dt_tensor_free(parts);
    dt_tensor_free(x);
    end(&place);
}

/* ---- what one of them cannot do ---- */

Test(mesh_engine, a_vdev_without_memory_is_named_and_the_session_goes_on)
{
    static const int64_t size = 1 << 20; /* 4 MiB, 2 on each */
    static const uint32_t two = 2;
    static dt_failure_t failure;
    const dt_placement_t shard = {.kind = DT_PLACEMENT_SHARD, .dim = 0};
    place_t place;
    dt_tensor_t *hog = NULL;
    begin(&place, 1, "ref:2", 1, &two, 8 << 20);
    dt_tensor_t *x = put(&place, 1, &size, &shard);
    float *data = values(size);
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = 1,
                          .sizes = &size,
                          .data = data,
                          .vdev = 1};
    cr_assert_eq(dt_tensor_upload(place.session, &upload, &hog, NULL), DT_OK);
    free(data);
    dt_tensor_t *first = dt_clienttest_call2(place.session, "aten::add.Tensor", x, x);
    dt_tensor_t *y = dt_clienttest_call2(place.session, "aten::add.Tensor", first, x);
    cr_assert_neq(dt_clienttest_fails(y, &failure), DT_OK);
    cr_assert_str_eq(failure.kind, "OutOfMemoryError", "%s: %s", failure.kind, failure.text);
    cr_assert_eq(failure.vdev, 1, "vdev %u: %s", failure.vdev, failure.text);
    dt_tensor_free(hog);
    dt_tensor_free(y);
    y = dt_clienttest_call2(place.session, "aten::add.Tensor", first, x);
    dt_tensor_t *sum = call1(&place, "aten::sum", x);
    size_t bytes;
    free(bytes_of(&place, sum, &bytes));
    dt_tensor_free(sum);
    dt_tensor_free(y);
    dt_tensor_free(first);
    dt_tensor_free(x);
    dt_mesh_free(place.mesh);
    (void)dt_disconnect(place.session, PATIENCE, NULL); /* which tells what failed */
    cr_assert_eq(dt_testcluster_stop(place.tc), 0);
}
