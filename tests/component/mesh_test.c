/* Tensors on several virtual devices through real daemons: what is moved, computed, viewed and
 * written on a mesh is what one device would give. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"

#define PATIENCE  DT_TESTCLUSTER_PATIENCE_MS
#define VALUE_MAX 4096

TestSuite(mesh, .timeout = 600);

static dt_testcluster_t *start(int workers, const char *devices)
{
    char conf[128];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n", devices);
    return dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = workers, .worker_conf = conf});
}

static dt_session_t *begin(dt_testcluster_t *tc, uint32_t vdevs)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(tc),
                                    .vdev_count = vdevs,
                                    .program = "mesh",
                                    .connect_timeout_ms = PATIENCE};
    dt_session_t *session = NULL;
    dt_error_t err;
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s\n%s", err.text,
                 dt_testcluster_logs(tc));
    return session;
}

static dt_mesh_t *mesh_of(dt_session_t *session, unsigned ndim, uint32_t rows, uint32_t columns)
{
    const uint32_t sizes[] = {rows, columns};
    dt_mesh_t *mesh = NULL;
    dt_error_t err;
    cr_assert_eq(dt_mesh_create(session, ndim, sizes, NULL, NULL, &mesh, &err), DT_OK, "%s",
                 err.text);
    return mesh;
}

static dt_placement_t shard(unsigned dim)
{
    return (dt_placement_t){.kind = DT_PLACEMENT_SHARD, .dim = (uint8_t)dim};
}

static dt_placement_t replicate(void)
{
    return (dt_placement_t){.kind = DT_PLACEMENT_REPLICATE};
}

static dt_placement_t partial(unsigned reduction)
{
    return (dt_placement_t){.kind = DT_PLACEMENT_PARTIAL, .reduction = (uint8_t)reduction};
}

static int64_t count_of(unsigned ndim, const int64_t *sizes)
{
    int64_t count = 1;
    for (unsigned i = 0; i < ndim; i++)
        count *= sizes[i];
    return count;
}

/* Elements begin, begin + 1, ... */
static dt_tensor_t *upload(dt_session_t *session, const dt_mesh_t *mesh,
                           const dt_placement_t *placements, unsigned ndim, const int64_t *sizes,
                           float first)
{
    static float data[VALUE_MAX];
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = ndim,
                          .sizes = sizes,
                          .data = data,
                          .mesh = mesh,
                          .placements = placements};
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    cr_assert_leq(count_of(ndim, sizes), VALUE_MAX);
    for (int64_t i = 0; i < count_of(ndim, sizes); i++)
        data[i] = first + (float)i;
    cr_assert_eq(dt_tensor_upload(session, &upload, &tensor, &err), DT_OK, "%s", err.text);
    return tensor;
}

/* Fetch, and compare with factor * (first + i). */
static void expect_ramp(dt_testcluster_t *tc, dt_tensor_t *tensor, int64_t count, float first,
                        float factor)
{
    static float data[VALUE_MAX];
    static dt_failure_t failure;
    cr_assert_eq(dt_tensor_read(tensor, data, (size_t)count * sizeof *data, &failure), DT_OK,
                 "%s: %s\n%s", failure.kind, failure.error.text, dt_testcluster_logs(tc));
    for (int64_t i = 0; i < count; i++)
        cr_assert_float_eq(data[i], factor * (first + (float)i), 1e-6, "element %d: %g", (int)i,
                           (double)data[i]);
}

static dt_tensor_t *moved(dt_tensor_t *tensor, const dt_mesh_t *mesh,
                          const dt_placement_t *placements)
{
    dt_tensor_t *made = NULL;
    dt_error_t err;
    cr_assert_eq(dt_redistribute(tensor, mesh, placements, &made, &err), DT_OK, "%s", err.text);
    return made;
}

static void expect_placement(dt_tensor_t *tensor, const dt_mesh_t *mesh, unsigned at,
                             dt_placement_t expected)
{
    const dt_mesh_t *on;
    dt_placement_t placements[DT_RECORD_MESH_DIM_MAX];
    cr_assert_eq(dt_tensor_layout(tensor, &on, placements), DT_OK);
    cr_assert_eq(on, mesh);
    if (!mesh)
        return;
    cr_assert_eq(placements[at].kind, expected.kind, "placement %u is %u", at, placements[at].kind);
    if (expected.kind == DT_PLACEMENT_SHARD)
        cr_assert_eq(placements[at].dim, expected.dim);
}

Test(mesh, a_sharded_tensor_is_added_moved_and_fetched)
{
    const int64_t sizes[] = {4, 3};
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 2);
    dt_mesh_t *mesh = mesh_of(session, 1, 2, 1);
    dt_placement_t s0 = shard(0), r = replicate();
    dt_tensor_t *x = upload(session, mesh, &s0, 2, sizes, 1);
    dt_tensor_t *y = dt_clienttest_call2(session, "aten::add.Tensor", x, x);
    expect_placement(y, mesh, 0, s0);
    dt_tensor_t *z = moved(y, mesh, &r);
    expect_placement(z, mesh, 0, r);
    expect_ramp(tc, z, 12, 1, 2);
    expect_ramp(tc, y, 12, 1, 2);
    expect_ramp(tc, x, 12, 1, 1);
    dt_tensor_free(x);
    dt_tensor_free(y);
    dt_tensor_free(z);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- every pair of layouts ---- */

typedef struct shape {
    unsigned ndim;
    uint32_t rows, columns;
} shape_t;

static unsigned layouts_of(const shape_t *mesh, dt_placement_t list[][2])
{
    const dt_placement_t all[] = {replicate(), shard(0), shard(1), partial(DT_REDUCTION_SUM)};
    unsigned count = 0;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < (mesh->ndim == 2 ? 4 : 1); k++) {
            list[count][0] = all[i];
            list[count++][1] = all[k];
        }
    return count;
}

static void try_pairs(dt_testcluster_t *tc, dt_session_t *session, const shape_t *shape,
                      const int64_t *sizes)
{
    dt_mesh_t *mesh = mesh_of(session, shape->ndim, shape->rows, shape->columns);
    dt_placement_t list[16][2];
    unsigned count = layouts_of(shape, list);
    dt_tensor_t *plain = upload(session, NULL, NULL, 2, sizes, 1);
    for (unsigned i = 0; i < count; i++) {
        dt_tensor_t *from = moved(plain, mesh, list[i]);
        for (unsigned k = 0; k < count; k++) {
            dt_tensor_t *to = moved(from, mesh, list[k]);
            expect_ramp(tc, to, count_of(2, sizes), 1, 1);
            dt_tensor_free(to);
        }
        dt_tensor_t *back = moved(from, NULL, NULL);
        expect_placement(back, NULL, 0, replicate());
        expect_ramp(tc, back, count_of(2, sizes), 1, 1);
        dt_tensor_free(back);
        dt_tensor_free(from);
    }
    dt_tensor_free(plain);
    dt_mesh_free(mesh);
}

static void try_all_pairs(dt_testcluster_t *tc, uint32_t first)
{
    static const shape_t meshes[] = {{1, 2, 1}, {1, 3, 1}, {2, 2, 2}};
    static const int64_t sizes[][2] = {{4, 6}, {5, 3}, {1, 2}};
    dt_session_t *session = begin(tc, 4);
    for (unsigned m = 0; m < sizeof meshes / sizeof *meshes; m++)
        for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
            if (s >= first)
                try_pairs(tc, session, &meshes[m], sizes[s]);
    dt_clienttest_disconnect(session);
}

Test(mesh, every_pair_of_layouts_keeps_the_value)
{
    dt_testcluster_t *tc = start(1, "ref");
    try_all_pairs(tc, 0);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* Each device gets its own bytes; what is repeated goes once. */
Test(mesh, large_values_are_uploaded_in_parts)
{
    static const int64_t sizes[][3] = {{1500, 2, 1}, {3, 1201, 1}, {7, 12, 31}};
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 4);
    dt_mesh_t *flat = mesh_of(session, 1, 3, 1), *square = mesh_of(session, 2, 2, 2);
    const dt_placement_t list[][2] = {{shard(0), replicate()}, {shard(1), shard(0)},
                                      {replicate(), shard(1)}, {shard(2), replicate()},
                                      {shard(0), shard(0)},    {replicate(), replicate()}};
    for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
            dt_tensor_t *x = upload(session, i % 2 ? flat : square, list[i], 3, sizes[s], 1);
            expect_placement(x, i % 2 ? flat : square, 0, list[i][0]);
            expect_ramp(tc, x, count_of(3, sizes[s]), 1, 1);
            dt_tensor_free(x);
        }
    dt_mesh_free(flat);
    dt_mesh_free(square);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- operators: on a mesh as on one device ---- */

typedef struct trial {
    dt_testcluster_t *tc;
    dt_session_t *session;
    const dt_mesh_t *mesh;
    unsigned mesh_ndim;
} trial_t;

/* Both give the same values, of `count` elements. */
static void expect_same(const trial_t *t, const char *what, dt_tensor_t *plain, dt_tensor_t *spread)
{
    static float a[VALUE_MAX], b[VALUE_MAX];
    static dt_failure_t failure;
    dt_meta_t meta, other;
    cr_assert_eq(dt_tensor_meta(plain, &meta, NULL), DT_OK);
    cr_assert_eq(dt_tensor_meta(spread, &other, NULL), DT_OK);
    cr_assert_eq(meta.ndim, other.ndim, "%s", what);
    for (unsigned i = 0; i < meta.ndim; i++)
        cr_assert_eq(meta.sizes[i], other.sizes[i], "%s: dimension %u", what, i);
    size_t bytes = dt_dense_bytes(&meta);
    cr_assert_leq(bytes, sizeof a);
    cr_assert_eq(dt_tensor_read(plain, a, bytes, &failure), DT_OK, "%s: %s", what, failure.text);
    cr_assert_eq(dt_tensor_read(spread, b, bytes, &failure), DT_OK, "%s: %s: %s\n%s", what,
                 failure.error.text, failure.text, dt_testcluster_logs(t->tc));
    if (meta.dtype != DT_DTYPE_F32) {
        cr_assert_eq(memcmp(a, b, bytes), 0, "%s", what);
        return;
    }
    for (size_t i = 0; i < bytes / sizeof *a; i++)
        cr_assert(fabsf(a[i] - b[i]) <= 1e-4F * (1 + fabsf(a[i])), "%s: element %zu: %g, %g", what,
                  i, (double)a[i], (double)b[i]);
}

/* The placements that number `n` stands for; a Partial has the plain value all the same. */
static void placements_of(const trial_t *t, unsigned n, dt_placement_t *ret)
{
    const dt_placement_t all[] = {replicate(), shard(0), shard(1), partial(DT_REDUCTION_SUM)};
    for (unsigned i = 0; i < t->mesh_ndim; i++, n /= 4)
        ret[i] = all[n % 4];
}

static unsigned choices_of(const trial_t *t)
{
    return t->mesh_ndim == 2 ? 16 : 4;
}

/* One program over two matrices (m, k) and (k, n), on whatever they lie. Results are the caller's.
 */
#define RESULTS_MAX 16u
typedef unsigned program_fn(dt_session_t *session, dt_tensor_t *a, dt_tensor_t *b,
                            dt_tensor_t **ret_results);

static dt_tensor_t *unary(dt_session_t *session, const char *name, dt_tensor_t *x)
{
    const dt_value_t arg = dt_arg_tensor(x);
    return dt_clienttest_call(session, name, &arg, 1);
}

static dt_tensor_t *slice(dt_session_t *session, dt_tensor_t *x, int64_t dim, int64_t begin,
                          int64_t end)
{
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_int(dim), dt_arg_int(begin),
                               dt_arg_int(end)};
    return dt_clienttest_call(session, "aten::slice.Tensor", args, 4);
}

static dt_tensor_t *transpose(dt_session_t *session, dt_tensor_t *x)
{
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_int(0), dt_arg_int(1)};
    return dt_clienttest_call(session, "aten::transpose.int", args, 3);
}

static dt_tensor_t *sum_dim(dt_session_t *session, dt_tensor_t *x, int64_t dim)
{
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_ints(&dim, 1), dt_arg_bool(false)};
    return dt_clienttest_call(session, "aten::sum.dim_IntList", args, 3);
}

static void add_in_place(dt_session_t *session, dt_tensor_t *x, dt_tensor_t *y)
{
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_tensor(y)};
    dt_tensor_free(dt_clienttest_call(session, "aten::add_.Tensor", args, 2));
}

static unsigned arithmetic(dt_session_t *session, dt_tensor_t *a, dt_tensor_t *b, dt_tensor_t **r)
{
    const dt_value_t number[] = {dt_arg_tensor(a), dt_arg_double(0.5)};
    unsigned n = 0;
    r[n++] = dt_clienttest_call2(session, "aten::mm", a, b);
    r[n++] = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    r[n++] = dt_clienttest_call2(session, "aten::mul.Tensor", a, a);
    r[n++] = dt_clienttest_call(session, "aten::add.Tensor", number, 2);
    r[n++] = dt_clienttest_call(session, "aten::mul.Tensor", number, 2);
    r[n++] = unary(session, "aten::relu", a);
    r[n++] = unary(session, "aten::sum", a);
    r[n++] = sum_dim(session, a, 0);
    r[n++] = sum_dim(session, b, 1);
    return n;
}

/* Views of views, written through, beside reads of what they are views of. */
static unsigned views(dt_session_t *session, dt_tensor_t *a, dt_tensor_t *b, dt_tensor_t **r)
{
    unsigned n = 0;
    dt_tensor_t *base = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    dt_tensor_t *rows = slice(session, base, 0, 1, 3);
    dt_tensor_t *turned = transpose(session, base);
    dt_tensor_t *columns = slice(session, turned, 0, 0, 2);
    dt_tensor_t *part = slice(session, rows, 1, 1, 3);
    r[n++] = dt_clienttest_call2(session, "aten::mul.Tensor", part, part);
    add_in_place(session, rows, rows);
    r[n++] = dt_clienttest_call2(session, "aten::mul.Tensor", part, part);
    add_in_place(session, part, part);
    r[n++] = dt_clienttest_call2(session, "aten::mm", turned, base);
    add_in_place(session, columns, columns);
    r[n++] = dt_clienttest_call2(session, "aten::mm", base, b);
    add_in_place(session, base, base);
    dt_tensor_free(rows);
    r[n++] = part;
    r[n++] = columns;
    r[n++] = turned;
    r[n++] = base;
    return n;
}

/* Written tensors whose other operand lies elsewhere. */
static unsigned in_place(dt_session_t *session, dt_tensor_t *a, dt_tensor_t *b, dt_tensor_t **r)
{
    const float ones[VALUE_MAX] = {1, 2, 3, 4, 5, 6, 7, 8};
    const dt_value_t half[] = {dt_arg_tensor(a), dt_arg_double(0.25)};
    dt_meta_t meta;
    unsigned n = 0;
    cr_assert_eq(dt_tensor_meta(a, &meta, NULL), DT_OK);
    dt_tensor_t *plain = dt_clienttest_f32(session, 2, meta.sizes, ones);
    dt_tensor_t *alias = slice(session, plain, 0, 0, 1);
    add_in_place(session, a, plain);
    add_in_place(session, plain, a);
    r[n++] = dt_clienttest_call2(session, "aten::mm", plain, b);
    dt_tensor_free(dt_clienttest_call(session, "aten::mul_.Tensor", half, 2));
    dt_tensor_free(dt_clienttest_call(session, "aten::add_.Tensor", half, 2));
    add_in_place(session, alias, alias);
    r[n++] = dt_clienttest_call2(session, "aten::add.Tensor", a, plain);
    r[n++] = dt_clienttest_call2(session, "aten::mm", a, b);
    r[n++] = alias;
    r[n++] = plain;
    return n;
}

static void compare(const trial_t *t, const char *name, program_fn *program, const int64_t *m_k_n,
                    unsigned choice)
{
    static float seeds[VALUE_MAX];
    const int64_t a_sizes[] = {m_k_n[0], m_k_n[1]}, b_sizes[] = {m_k_n[1], m_k_n[2]};
    dt_tensor_t *plain[RESULTS_MAX], *spread[RESULTS_MAX];
    dt_placement_t pa[2], pb[2];
    char what[160];
    for (unsigned i = 0; i < VALUE_MAX; i++)
        seeds[i] = (float)((i * 37 + 11) % 23) - 9;
    placements_of(t, choice % choices_of(t), pa);
    placements_of(t, choice / choices_of(t), pb);
    dt_tensor_t *a = dt_clienttest_f32(t->session, 2, a_sizes, seeds);
    dt_tensor_t *b = dt_clienttest_f32(t->session, 2, b_sizes, seeds + 5);
    dt_tensor_t *sa = moved(a, t->mesh, pa), *sb = moved(b, t->mesh, pb);
    unsigned count = program(t->session, a, b, plain);
    cr_assert_eq(program(t->session, sa, sb, spread), count);
    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(what, sizeof what, "%s, result %u, %dx%dx%d, placements %u", name, i,
                       (int)m_k_n[0], (int)m_k_n[1], (int)m_k_n[2], choice);
        expect_same(t, what, plain[i], spread[i]);
        dt_tensor_free(plain[i]);
        dt_tensor_free(spread[i]);
    }
    expect_same(t, name, a, sa);
    dt_tensor_free(a);
    dt_tensor_free(b);
    dt_tensor_free(sa);
    dt_tensor_free(sb);
}

static void compare_all(dt_testcluster_t *tc, const char *name, program_fn *program)
{
    static const shape_t meshes[] = {{1, 2, 1}, {1, 3, 1}, {2, 2, 2}};
    static const int64_t sizes[][3] = {{4, 6, 2}, {3, 5, 7}};
    trial_t t = {.tc = tc, .session = begin(tc, 4)};
    for (unsigned m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        dt_mesh_t *mesh = mesh_of(t.session, meshes[m].ndim, meshes[m].rows, meshes[m].columns);
        t.mesh = mesh;
        t.mesh_ndim = meshes[m].ndim;
        unsigned all = choices_of(&t) * choices_of(&t);
        for (unsigned c = 0; c < all; c += t.mesh_ndim == 2 ? 13 : 1)
            compare(&t, name, program, sizes[(c + m) % 2], c);
        dt_mesh_free(mesh);
    }
    dt_clienttest_disconnect(t.session);
}

Test(mesh, two_workers_give_the_same)
{
    dt_testcluster_t *tc = start(2, "ref:2");
    try_all_pairs(tc, 2);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(mesh, devices_of_their_own_give_the_same)
{
    dt_testcluster_t *tc = start(1, "ref:4");
    try_all_pairs(tc, 1);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

static dt_testcluster_t *start_any(void)
{
    return start(1, dt_clienttest_devices());
}

Test(mesh, arithmetic_is_that_of_one_device)
{
    dt_testcluster_t *tc = start_any();
    compare_all(tc, "arithmetic", arithmetic);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(mesh, views_are_written_through_wherever_they_lie)
{
    dt_testcluster_t *tc = start_any();
    compare_all(tc, "views", views);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(mesh, writes_reach_the_storage_wherever_it_lies)
{
    dt_testcluster_t *tc = start_any();
    compare_all(tc, "in place", in_place);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- what is not a row of a rule ---- */

/* Numbers that are drawn do not depend on where they are wanted. */
static unsigned drawn(dt_session_t *session, dt_tensor_t *a, dt_tensor_t *b, dt_tensor_t **r)
{
    const dt_value_t half[] = {dt_arg_tensor(a), dt_arg_double(0.5)};
    unsigned n = 0;
    dt_error_t err;
    cr_assert_eq(dt_seed(session, 0, 7, 0, &err), DT_OK);
    r[n++] = dt_clienttest_call(session, "aten::rand_like", half, 1);
    r[n++] = dt_clienttest_call2(session, "aten::mm", a, b);
    dt_tensor_free(dt_clienttest_call(session, "aten::bernoulli_.float", half, 2));
    r[n++] = dt_clienttest_call2(session, "aten::mm", a, b);
    return n;
}

/* Sizes that depend on values, and what is made of them. */
static unsigned counted(dt_session_t *session, dt_tensor_t *a, dt_tensor_t *b, dt_tensor_t **r)
{
    unsigned n = 0;
    (void)b;
    r[n++] = unary(session, "aten::nonzero", a);
    r[n++] = dt_clienttest_call2(session, "aten::add.Tensor", r[0], r[0]);
    return n;
}

Test(mesh, what_has_no_row_is_that_of_one_device)
{
    if (strcmp(dt_clienttest_devices(), "ref") == 0)
        return; /* it has none of these operators */
    dt_testcluster_t *tc = start_any();
    compare_all(tc, "drawn", drawn);
    compare_all(tc, "counted", counted);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* In place over a list: no output says that its tensors are written. */
Test(mesh, what_is_written_and_not_returned_is_seen_in_copies_that_were_kept)
{
    const int64_t sizes[] = {4, 4};
    static dt_failure_t failure;
    if (strcmp(dt_clienttest_devices(), "ref") == 0)
        cr_skip_test("ref has no operator of this kind");
    dt_testcluster_t *tc = start_any();
    dt_session_t *session = begin(tc, 2);
    dt_mesh_t *mesh = mesh_of(session, 1, 2, 1);
    const dt_placement_t whole = replicate(), rows = shard(0), columns = shard(1);
    dt_tensor_t *x = upload(session, mesh, &whole, 2, sizes, 1);
    dt_tensor_t *y = upload(session, mesh, &rows, 2, sizes, 1);
    dt_tensor_t *across = upload(session, mesh, &columns, 2, sizes, 1);
    dt_tensor_t *z = dt_clienttest_call2(session, "aten::add.Tensor", x, y); /* x is cut for it */
    expect_ramp(tc, z, 16, 1, 2);
    dt_tensor_free(z);
    const dt_value_t list[] = {dt_arg_tensors(&x, 1), dt_arg_tensors(&x, 1)};
    cr_assert_eq(dt_call(session, "aten::_foreach_add_.List", list, 2, NULL, 0, NULL, &failure),
                 DT_OK, "%s", failure.error.text);
    z = dt_clienttest_call2(session, "aten::sub.Tensor", x, y);
    expect_ramp(tc, z, 16, 1, 1);
    const dt_value_t moves[] = {dt_arg_tensors(&y, 1), dt_arg_tensors(&across, 1)};
    cr_assert_eq(dt_call(session, "aten::_foreach_add_.List", moves, 2, NULL, 0, NULL, &failure),
                 DT_ERR_INVALID);
    cr_assert(strstr(failure.error.text, "would have to be moved"), "%s", failure.error.text);
    expect_ramp(tc, y, 16, 1, 1);
    dt_tensor_free(x);
    dt_tensor_free(y);
    dt_tensor_free(z);
    dt_tensor_free(across);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(mesh, a_strict_session_refuses_what_would_move_and_says_what)
{
    const int64_t sizes[] = {4, 4};
    static dt_failure_t failure;
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 2);
    dt_mesh_t *mesh = mesh_of(session, 1, 2, 1);
    const dt_placement_t rows = shard(0), columns = shard(1), beyond = shard(2);
    dt_tensor_t *x = upload(session, mesh, &rows, 2, sizes, 1);
    dt_tensor_t *y = upload(session, mesh, &columns, 2, sizes, 1), *z = NULL;
    const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_tensor(y)};
    dt_error_t err;
    cr_assert_eq(dt_set_policy(session, DT_POLICY_STRICT), DT_OK);
    cr_assert_eq(dt_call(session, "aten::add.Tensor", args, 2, &z, 1, NULL, &failure),
                 DT_ERR_INVALID);
    cr_assert(strstr(failure.error.text, "aten::add.Tensor"), "%s", failure.error.text);
    cr_assert(strstr(failure.error.text, "Shard(0)"), "%s", failure.error.text);
    cr_assert(strstr(failure.error.text, "(4, 4)"), "%s", failure.error.text);
    z = dt_clienttest_call2(session, "aten::add.Tensor", x, x);
    expect_ramp(tc, z, 16, 1, 2);
    dt_tensor_free(z);
    cr_assert_eq(dt_set_policy(session, DT_POLICY_AUTO), DT_OK);
    z = dt_clienttest_call2(session, "aten::add.Tensor", x, y);
    expect_ramp(tc, z, 16, 1, 2);
    dt_tensor_free(z);
    cr_assert_eq(dt_redistribute(x, mesh, &beyond, &z, &err), DT_ERR_INVALID);
    cr_assert(strstr(err.text, "Shard(2)"), "%s", err.text);
    const uint32_t sizes3[] = {3}, twice[] = {1, 1}, two[] = {2};
    dt_mesh_t *none = NULL;
    cr_assert_eq(dt_mesh_create(session, 1, sizes3, NULL, NULL, &none, &err), DT_ERR_LIMIT);
    cr_assert_eq(dt_mesh_create(session, 1, two, NULL, twice, &none, &err), DT_ERR_INVALID);
    dt_tensor_free(x);
    dt_tensor_free(y);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* Where the results of an operator over a weight and an input lie, and how often what was moved. */
Test(mesh, a_weight_is_read_elsewhere_than_where_it_lies)
{
    const int64_t sizes[] = {4, 4};
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 2);
    dt_mesh_t *mesh = mesh_of(session, 1, 2, 1);
    const dt_placement_t rows = shard(0), whole = replicate(), beyond = shard(2);
    dt_error_t err;
    dt_tensor_t *weight = upload(session, mesh, &rows, 2, sizes, 1);
    dt_tensor_t *plain = upload(session, NULL, NULL, 2, sizes, 1);
    for (uint32_t flags = 0; flags <= DT_USE_KEPT; flags += DT_USE_KEPT) {
        cr_assert_eq(dt_tensor_use(weight, &whole, flags, &err), DT_OK, "%s", err.text);
        for (unsigned round = 0; round < 3; round++) { /* read, a view of it, written, read */
            dt_tensor_t *twice = dt_clienttest_call2(session, "aten::add.Tensor", weight, weight);
            expect_placement(twice, mesh, 0, whole);
            expect_placement(weight, mesh, 0, rows);
            expect_ramp(tc, twice, 16, 1, (float)(2u << round));
            dt_tensor_t *view =
                dt_clienttest_call(session, "aten::t", (dt_value_t[]){dt_arg_tensor(weight)}, 1);
            dt_tensor_free(dt_clienttest_call2(session, "aten::add_.Tensor", weight, weight));
            dt_tensor_t *back =
                dt_clienttest_call(session, "aten::t", (dt_value_t[]){dt_arg_tensor(view)}, 1);
            expect_ramp(tc, back, 16, 1, (float)(2u << round));
            dt_tensor_free(dt_clienttest_call2(session, "aten::add_.Tensor", view, view));
            expect_ramp(tc, weight, 16, 1, (float)(4u << round));
            dt_tensor_free(
                dt_clienttest_call(session, "aten::mul_.Scalar",
                                   (dt_value_t[]){dt_arg_tensor(weight), dt_arg_double(0.5)}, 2));
            dt_tensor_free(twice);
            dt_tensor_free(view);
            dt_tensor_free(back);
        }
        dt_tensor_free(
            dt_clienttest_call(session, "aten::mul_.Scalar",
                               (dt_value_t[]){dt_arg_tensor(weight), dt_arg_double(0.125)}, 2));
    }
    cr_assert_eq(dt_tensor_use(weight, NULL, 0, &err), DT_OK, "%s", err.text);
    dt_tensor_t *twice = dt_clienttest_call2(session, "aten::add.Tensor", weight, weight);
    expect_placement(twice, mesh, 0, rows);
    dt_tensor_free(twice);
    cr_assert_eq(dt_tensor_use(weight, &beyond, 0, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_tensor_use(weight, &whole, 2, &err), DT_ERR_INVALID);
    cr_assert_eq(dt_tensor_use(plain, &whole, 0, &err), DT_ERR_INVALID);
    dt_tensor_free(weight);
    dt_tensor_free(plain);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* The large tensor stays in its parts, and the values are one device's. */
Test(mesh, softmax_over_a_cut_dimension_does_not_gather_it)
{
    static const char *const names[] = {"aten::_softmax", "aten::_log_softmax"};
    static float got[32 * 66], want[32 * 66];
    const int64_t sizes[] = {32, 66};
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 4);
    dt_mesh_t *mesh = mesh_of(session, 1, 4, 1);
    const dt_placement_t columns = shard(1);
    dt_tensor_t *plain = upload(session, NULL, NULL, 2, sizes, -1000);
    dt_tensor_t *cut = upload(session, mesh, &columns, 2, sizes, -1000);
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(dt_set_policy(session, i < 2 ? DT_POLICY_AUTO : DT_POLICY_WHOLE), DT_OK);
        const dt_value_t here[] = {dt_arg_tensor(plain), dt_arg_int(1), dt_arg_bool(false)};
        const dt_value_t there[] = {dt_arg_tensor(cut), dt_arg_int(1), dt_arg_bool(false)};
        dt_tensor_t *x = dt_clienttest_call(session, names[i % 2], here, 3);
        dt_tensor_t *y = dt_clienttest_call(session, names[i % 2], there, 3);
        if (i < 2)
            expect_placement(y, mesh, 0, columns);
        dt_clienttest_read(x, want, sizeof want);
        dt_clienttest_read(y, got, sizeof got);
        for (size_t k = 0; k < sizeof got / sizeof *got; k++)
            cr_assert_float_eq(got[k], want[k], 1e-4, "%s, element %zu: %g for %g", names[i % 2], k,
                               (double)got[k], (double)want[k]);
        dt_tensor_free(x);
        dt_tensor_free(y);
    }
    dt_tensor_free(plain);
    dt_tensor_free(cut);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(mesh, what_saves_moves_can_be_switched_off)
{
    static const unsigned policies[] = {DT_POLICY_AUTO, DT_POLICY_FORGET,   DT_POLICY_UNSETTLED,
                                        DT_POLICY_PASS, DT_POLICY_UNPINNED, 62};
    const int64_t sizes[] = {4, 4};
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 2);
    dt_mesh_t *mesh = mesh_of(session, 1, 2, 1);
    const dt_placement_t rows = shard(0), columns = shard(1), whole = replicate();
    dt_error_t err;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        const dt_placement_t sum = partial(DT_REDUCTION_SUM);
        cr_assert_eq(dt_set_policy(session, (dt_policy_t)policies[i]), DT_OK);
        dt_tensor_t *x = upload(session, mesh, &rows, 2, sizes, 1);
        dt_tensor_t *y = upload(session, mesh, &columns, 2, sizes, 1), *all;
        all = moved(x, mesh, &whole);
        dt_tensor_t *parts = moved(all, mesh, &sum);
        cr_assert_eq(dt_layout_hint(session, dt_tensor_id(y), DT_HINT_PINNED, &err), DT_OK);
        for (int round = 0; round < 2; round++) {
            dt_tensor_t *z = dt_clienttest_call2(session, "aten::add.Tensor", x, y);
            expect_ramp(tc, z, 16, 1, 2);
            dt_tensor_t *r =
                dt_clienttest_call(session, "aten::relu", (dt_value_t[]){dt_arg_tensor(parts)}, 1);
            expect_ramp(tc, r, 16, 1, 1);
            expect_placement(parts, mesh, 0, policies[i] & DT_POLICY_UNSETTLED ? sum : rows);
            dt_tensor_free(z);
            dt_tensor_free(r);
        }
        dt_tensor_free(x);
        dt_tensor_free(y);
        dt_tensor_free(all);
        dt_tensor_free(parts);
    }
    cr_assert_eq(dt_set_policy(session, (dt_policy_t)64), DT_ERR_INVALID);
    dt_mesh_free(mesh);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(mesh, tensors_go_between_meshes_and_meet_on_one)
{
    const int64_t sizes[] = {5, 4};
    const uint32_t shape[] = {2}, low[] = {0, 1}, high[] = {3, 2};
    dt_testcluster_t *tc = start(1, "ref");
    dt_session_t *session = begin(tc, 4);
    dt_mesh_t *a = NULL, *b = NULL, *again = NULL;
    dt_error_t err;
    cr_assert_eq(dt_mesh_create(session, 1, shape, NULL, low, &a, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_mesh_create(session, 1, shape, NULL, high, &b, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_mesh_create(session, 1, shape, NULL, high, &again, &err), DT_OK);
    cr_assert_eq(b, again, "the same mesh is the same one");
    const dt_placement_t rows = shard(0), columns = shard(1);
    dt_tensor_t *x = upload(session, a, &rows, 2, sizes, 1);
    dt_tensor_t *y = moved(x, b, &columns);
    expect_placement(y, b, 0, columns);
    expect_ramp(tc, y, 20, 1, 1);
    dt_tensor_t *z = dt_clienttest_call2(session, "aten::add.Tensor", x, y);
    expect_ramp(tc, z, 20, 1, 2);
    dt_tensor_free(x);
    dt_tensor_free(y);
    dt_tensor_free(z);
    dt_mesh_free(a);
    dt_mesh_free(b);
    dt_mesh_free(again);
    dt_clienttest_disconnect(session);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* A chain of operators and moves on one of two sessions that share all devices. */
static dt_tensor_t *step(dt_session_t *session, const dt_mesh_t *mesh, dt_tensor_t *x,
                         unsigned round)
{
    const dt_placement_t list[] = {shard(0), shard(1), replicate()};
    dt_tensor_t *sum = dt_clienttest_call2(session, "aten::add.Tensor", x, x);
    dt_tensor_t *next = moved(sum, mesh, &list[round % 3]);
    dt_tensor_free(sum);
    dt_tensor_free(x);
    return next;
}

Test(mesh, two_sessions_at_once_do_not_hinder_each_other)
{
    const int64_t sizes[] = {5, 4};
    dt_testcluster_t *tc = start(1, "ref:2");
    dt_session_t *sessions[2];
    dt_mesh_t *meshes[2];
    dt_tensor_t *x[2];
    const dt_placement_t rows = shard(0);
    for (int i = 0; i < 2; i++) {
        const uint32_t two = 2, order[2] = {(uint32_t)i, 1 - (uint32_t)i};
        dt_error_t err;
        sessions[i] = begin(tc, 2);
        cr_assert_eq(dt_mesh_create(sessions[i], 1, &two, NULL, order, &meshes[i], &err), DT_OK,
                     "%s", err.text);
        x[i] = upload(sessions[i], meshes[i], &rows, 2, sizes, 1);
    }
    for (unsigned round = 0; round < 10; round++)
        for (int i = 0; i < 2; i++)
            x[i] = step(sessions[i], meshes[i], x[i], round);
    for (int i = 0; i < 2; i++) {
        expect_ramp(tc, x[i], 20, 1, 1024);
        dt_tensor_free(x[i]);
        dt_mesh_free(meshes[i]);
        dt_clienttest_disconnect(sessions[i]);
    }
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- loss ---- */

/* The kind of the failure that fetching gives; "" if there is none. Static. */
static const char *kind_of(dt_tensor_t *tensor)
{
    static dt_failure_t failure;
    static float data[VALUE_MAX];
    dt_meta_t meta;
    cr_assert_eq(dt_tensor_meta(tensor, &meta, NULL), DT_OK);
    return dt_tensor_read(tensor, data, dt_dense_bytes(&meta), &failure) == DT_OK ? ""
                                                                                  : failure.kind;
}

Test(mesh, a_lost_device_takes_what_lies_on_a_mesh_with_it)
{
    const int64_t sizes[] = {4, 3};
    dt_testcluster_t *tc = start(2, "ref");
    dt_session_t *session = begin(tc, 3);
    dt_binding_t bindings[3];
    dt_mesh_t *all = mesh_of(session, 1, 3, 1);
    dt_placement_t rows = shard(0), whole = replicate();
    uint32_t count, lost = 0;
    cr_assert_eq(dt_session_bindings(session, bindings, 3, &count), DT_OK);
    while (lost < 3 && strcmp(bindings[lost].node, "w1") != 0)
        lost++;
    cr_assert_lt(lost, 3, "all devices are on one node");
    dt_tensor_t *spread = upload(session, all, &rows, 2, sizes, 1);
    dt_tensor_t *copies = upload(session, all, &whole, 2, sizes, 1);
    dt_tensor_t *plain = upload(session, NULL, NULL, 2, sizes, 1); /* on device 0 */
    cr_assert_eq(dt_synchronize(session, PATIENCE, NULL), DT_OK);
    dt_testcluster_kill(tc, 1, SIGKILL);
    cr_assert(dt_testcluster_wait_event(tc, "session-fault", DT_TESTCLUSTER_CONTROLLER, 0, PATIENCE,
                                        NULL),
              "%s", dt_testcluster_logs(tc));
    cr_assert_str_eq(kind_of(spread), "WorkerLost");
    cr_assert_str_eq(kind_of(copies), "WorkerLost");
    cr_assert_str_eq(kind_of(plain), lost == 0 ? "WorkerLost" : "");
    dt_tensor_free(spread);
    dt_tensor_free(copies);
    dt_tensor_free(plain);
    dt_mesh_free(all);
    (void)dt_disconnect(session, PATIENCE, NULL);
    (void)dt_testcluster_stop(tc);
}
