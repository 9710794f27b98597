/* Clients that send nonsense about meshes and layouts: each is refused at its record, by name where
 * the record is sound and its claim is not; the session next to it goes on, memory is bounded. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "lib/sessiontest.h"
#include "shard/layout.h"
#include "wire/signature.h"

#define POISON DTORCH__V1__SESSION_DOWN__KIND_POISON
#define RESULT DTORCH__V1__SESSION_DOWN__KIND_RESULT
#define VDEVS  4096u

TestSuite(session_mesh, .timeout = 60);

/* A node with two devices and a session of `vdevs`: mesh 1 is of two, mesh 2 the second alone. */
static dt_sessiontest_t *prepared(uint32_t vdevs)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    dt_sessiontest_node(test, 1, 2);
    dt_sessiontest_join(test, 1, vdevs);
    dt_sessiontest_begin(test, 1);
    dt_sessiontest_mesh(test, 1, 2, 0);
    dt_sessiontest_mesh(test, 2, 1, 1);
    dt_sessiontest_frame(test, 1, 0);
    dt_sessiontest_forget(test);
    return test;
}

static void put_mesh(dt_sessiontest_t *test, uint32_t id, uint32_t count, const uint64_t *vdevs)
{
    dt_record_t record = {.kind = DT_RECORD_DEF_MESH};
    record.mesh = (dt_record_mesh_t){.id = id,
                                     .ndim = 1,
                                     .vdev_count = count,
                                     .sizes = {count},
                                     .names = {"dp"},
                                     .vdevs = vdevs};
    record.mesh.name_bytes[0] = 2;
    dt_sessiontest_put(test, &record);
}

static void expect_malformed(dt_sessiontest_t *test, const char *name, uint64_t sequence)
{
    dt_sessiontest_frame(test, 1, 0);
    cr_assert(dt_sessiontest_is_malformed(test, 1, name, sequence), "not %s at %lu", name,
              (unsigned long)sequence);
    cr_assert_eq(dt_sessiontest_events(test, "session-misbehaves"), 1, "people are told");
    dt_sessiontest_free(test);
}

Test(session_mesh, a_mesh_of_devices_that_are_not_there_is_malformed)
{
    dt_sessiontest_t *test = prepared(2);
    const uint64_t beyond[] = {0, 2};
    dt_sessiontest_begin(test, 3);
    put_mesh(test, 3, 2, beyond);
    expect_malformed(test, "E_LIMIT", 3);
}

Test(session_mesh, a_mesh_that_has_a_device_twice_is_malformed)
{
    dt_sessiontest_t *test = prepared(2);
    const uint64_t twice[] = {1, 1};
    dt_sessiontest_begin(test, 3);
    put_mesh(test, 3, 2, twice);
    expect_malformed(test, "E_DUP", 3);
}

Test(session_mesh, a_number_that_names_a_mesh_already_is_malformed)
{
    dt_sessiontest_t *test = prepared(2);
    dt_sessiontest_begin(test, 3);
    dt_sessiontest_mesh(test, 1, 2, 0);
    expect_malformed(test, "E_DUP", 3);
}

/* What is kept of a mesh is 3,000 times what it has on the wire. */
Test(session_mesh, meshes_of_thousands_of_devices_have_a_bound_in_bytes)
{
    dt_sessiontest_t *test = prepared(VDEVS);
    uint64_t *vdevs = calloc(VDEVS, sizeof *vdevs);
    uint32_t id = 3;
    cr_assert_not_null(vdevs);
    for (uint32_t i = 0; i < VDEVS; i++)
        vdevs[i] = i;
    while (!dt_sessiontest_closed(test, 1)) {
        dt_sessiontest_forget(test);
        dt_sessiontest_begin(test, id);
        put_mesh(test, id, VDEVS, vdevs);
        dt_sessiontest_frame(test, 1, 0);
        cr_assert_lt(++id, (64u << 20) / (VDEVS * sizeof *vdevs), "64 MiB are kept at most");
    }
    cr_assert(dt_sessiontest_is_malformed(test, 1, "E_LIMIT", id - 1));
    free(vdevs);
    dt_sessiontest_free(test);
}

/* ---- signatures that lie ---- */

typedef struct lie {
    const char *name;
    uint32_t input_count;
    uint32_t flags;
    dt_signature_tensor_t in[2], out;
} lie_t;

static lie_t claim(const char *name, uint32_t in_mesh, uint32_t out_mesh)
{
    lie_t lie = {.name = name, .input_count = 1};
    int64_t sizes[] = {4, 3};
    cr_assert_eq(dt_meta_set(&lie.out.meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK);
    lie.in[0].meta = lie.in[1].meta = lie.out.meta;
    lie.in[0].layout = lie.in[1].layout = dt_layout_replicate(in_mesh, in_mesh == 1);
    lie.out.layout = dt_layout_replicate(out_mesh, out_mesh == 1);
    return lie;
}

static void define(dt_sessiontest_t *test, uint32_t id, const lie_t *lie)
{
    dt_value_t args[2] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}};
    dt_signature_t sig = {.name = lie->name,
                          .arg_count = lie->input_count,
                          .input_count = lie->input_count,
                          .output_count = 1,
                          .flags = lie->flags,
                          .args = args,
                          .inputs = lie->in,
                          .outputs = &lie->out};
    dt_record_t record = {.kind = DT_RECORD_DEF_SIG};
    dt_buf_t body;
    dt_error_t err;
    dt_buf_init(&body, 1u << 16);
    cr_assert_eq(dt_signature_encode(&sig, &body, &err), DT_OK, "%s", err.text);
    record.definition.id = id;
    record.definition.body = body.data;
    record.definition.body_bytes = (uint32_t)body.len;
    dt_sessiontest_put(test, &record);
    dt_buf_fini(&body);
}

/* The claim is accepted as a record, nothing of it reaches the node, and what is asked of its
 * result is answered with the refusal, which holds `text`. */
static void expect_refused(const lie_t *lie, const char *text)
{
    dt_sessiontest_t *test = prepared(2);
    uint64_t inputs[] = {1, 1};
    dt_record_t upload = {.kind = DT_RECORD_UPLOAD};
    const float numbers[12] = {0};
    upload.move.meta = lie->in[0].meta;
    upload.move.layout = dt_layout_replicate(lie->in[0].layout.mesh, lie->in[0].layout.mesh == 1);
    upload.move.output = 1;
    upload.move.size = sizeof numbers;
    upload.move.bytes = (const uint8_t *)numbers;
    dt_sessiontest_begin(test, 3);
    dt_sessiontest_put(test, &upload);
    define(test, 0, lie);
    dt_sessiontest_op(test, 0, lie->input_count, inputs, 1, &(uint64_t){2});
    dt_sessiontest_fetch(test, 2, 1);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert_null(dt_sessiontest_closed(test, 1), "%s: the session goes on", lie->name);
    const Dtorch__V1__SessionDown *down = dt_sessiontest_down(test, 1, RESULT, 0);
    cr_assert(down && down->result->error, "%s was taken", lie->name);
    cr_assert(strstr(down->result->error->text, text), "%s: %s", lie->name,
              down->result->error->text);
    cr_assert_eq(dt_sessiontest_counts(test).moves[0].count, 0);
    dt_sessiontest_free(test);
}

Test(session_mesh, what_signatures_claim_falsely_is_refused_by_name)
{
    lie_t lie = claim("aten::alias", 1, 1);
    lie.out.layout.placements[0] = dt_placement_shard(0);
    expect_refused(&lie, "aten::alias");
    lie = claim("aten::alias", 1, 1);
    lie.in[0].layout.placements[0] = dt_placement_shard(15);
    expect_refused(&lie, "cannot lie as");
    lie = claim("aten::alias", 1, 1);
    lie.in[0].layout.placements[0] =
        (dt_placement_t){.kind = DT_PLACEMENT_SHARD, .unit = UINT32_MAX, .groups = UINT32_MAX};
    expect_refused(&lie, "cannot lie as");
    lie = claim("aten::alias", 1, 1);
    lie.in[0].layout.ndim = 8;
    expect_refused(&lie, "cannot lie as");
    lie = claim("aten::nonzero", 1, 1);
    lie.flags = DT_SIGNATURE_DATA_DEPENDENT;
    lie.out.layout.ndim = 8;
    expect_refused(&lie, "Replicate tensors only");
    lie = claim("aten::alias", 1, 2);
    expect_refused(&lie, "on one mesh");
    lie = claim("dtorch::redistribute", 1, 2);
    lie.out.meta.sizes[0] = 5;
    expect_refused(&lie, "other sizes");
    lie = claim("dtorch::redistribute", 1, 1);
    lie.out.layout.placements[0] = dt_placement_shard(7);
    expect_refused(&lie, "cannot lie as");
    lie = claim("dtorch::local", 1, 2);
    lie.out.meta.sizes[0] = 3;
    expect_refused(&lie, "other sizes");
    lie = claim("dtorch::local", 2, 0);
    expect_refused(&lie, "no part");
    lie = claim("dtorch::assemble", 0, 1);
    expect_refused(&lie, "a part for each device");
}

Test(session_mesh, layouts_have_a_bound_in_number)
{
    dt_sessiontest_t *test = prepared(2);
    lie_t lie = claim("aten::alias", 1, 1);
    lie.in[0].layout.placements[0] = lie.out.layout.placements[0] = dt_placement_shard(0);
    uint32_t made = 0;
    while (!dt_sessiontest_closed(test, 1)) {
        dt_sessiontest_forget(test);
        dt_sessiontest_begin(test, 3 + made);
        lie.in[0].layout.placements[0].unit = lie.out.layout.placements[0].unit = 2 + made;
        define(test, made, &lie);
        dt_sessiontest_frame(test, 1, 0);
        cr_assert_leq(++made, 16385, "so many at most");
    }
    cr_assert(dt_sessiontest_is_malformed(test, 1, "E_LIMIT", 2 + made));
    dt_sessiontest_free(test);
}

/* Nothing of it is seen next to it. */
Test(session_mesh, the_session_beside_a_malformed_one_goes_on)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    const uint64_t beyond[] = {0, 9};
    dt_sessiontest_node(test, 1, 2);
    dt_sessiontest_join(test, 2, 2);
    dt_sessiontest_join(test, 1, 2);
    dt_sessiontest_begin(test, 1);
    put_mesh(test, 1, 2, beyond);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert(dt_sessiontest_is_malformed(test, 1, "E_LIMIT", 1));
    dt_sessiontest_begin(test, 1);
    dt_sessiontest_mesh(test, 1, 2, 0);
    dt_sessiontest_upload(test, 1, 0, 0);
    dt_sessiontest_frame(test, 2, 0);
    cr_assert_null(dt_sessiontest_closed(test, 2));
    cr_assert_eq(dt_sessiontest_counts(test).live, 1);
    cr_assert_eq(dt_sessiontest_counts(test).tensors, 1);
    dt_sessiontest_free(test);
}
