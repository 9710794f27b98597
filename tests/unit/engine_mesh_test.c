/* Tensors on several vdevs of one engine, with the ref backend: what each vdev has, what an
 * operator makes of it, what a redistribution joins; empty shards, views, poison, memory. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "device/builtin.h"
#include "lib/execrig.h"
#include "shard/layout.h"

TestSuite(engine_mesh, .timeout = 60);

#define MESH_ID 7u
#define ITEMS   64

static const dt_backend_t *table;
static void *device;
static dt_execrig_t rig;
static dt_execrig_session_t s;

/* ---- helpers ---- */

static void begin_on(const uint32_t *vdevs, uint32_t vdev_count, uint64_t limit_bytes)
{
    const dt_backend_device_options_t options = {
        .struct_size = sizeof options, .memory = dt_exec_backend_memory(), .threads = 1};
    table = dt_backend_ref();
    cr_assert_eq(table->device_open(NULL, &options, &device, NULL), DT_OK);
    dt_execrig_init(&rig, table, device, true);
    dt_execrig_open_on(&rig, &s, 1, vdevs, vdev_count, limit_bytes);
}

static void begin(uint32_t vdev_count)
{
    static const uint32_t vdevs[] = {0, 1, 2, 3};
    begin_on(vdevs, vdev_count, 1 << 20);
}

static void end(void)
{
    dt_execrig_close(&s);
    dt_execrig_fini(&rig);
    table->device_close(device);
}

static void mesh_define(uint32_t id, unsigned ndim, const uint32_t *sizes, const uint64_t *vdevs)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_DEF_MESH};
    record.mesh.id = id;
    record.mesh.ndim = (uint8_t)ndim;
    record.mesh.vdev_count = 1;
    for (unsigned i = 0; i < ndim; i++) {
        record.mesh.sizes[i] = sizes[i];
        record.mesh.vdev_count *= sizes[i];
        record.mesh.names[i] = "";
    }
    record.mesh.vdevs = vdevs;
    dt_execrig_put(&s, &record);
}

/* MESH_ID: all vdevs in a row. */
static void mesh_line(uint32_t count)
{
    static const uint64_t vdevs[] = {0, 1, 2, 3};
    mesh_define(MESH_ID, 1, &count, vdevs);
}

static dt_layout_t on(dt_placement_t placement)
{
    return (dt_layout_t){.mesh = MESH_ID, .ndim = 1, .placements = {placement}};
}

static dt_layout_t plain(void)
{
    return (dt_layout_t){0};
}

static dt_signature_tensor_t tensor(unsigned ndim, const int64_t *sizes, dt_layout_t layout)
{
    dt_signature_tensor_t is = {.layout = layout};
    cr_assert_eq(dt_meta_set(&is.meta, DT_DTYPE_F32, ndim, sizes, NULL, 0, NULL), DT_OK);
    return is;
}

/* A signature of tensors only. */
static uint32_t define(const char *name, const dt_signature_tensor_t *inputs, uint32_t input_count,
                       dt_signature_tensor_t output)
{
    dt_value_t args[4] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_TENSOR}};
    const dt_signature_t sig = {.name = name,
                                .arg_count = input_count,
                                .input_count = input_count,
                                .output_count = 1,
                                .id_count = output.alias != DT_ALIAS_IN_PLACE,
                                .args = args,
                                .inputs = inputs,
                                .outputs = &output};
    return dt_execrig_define(&s, &sig);
}

static uint64_t upload(dt_signature_tensor_t like, const float *values)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    record.move.meta = like.meta;
    record.move.layout = like.layout;
    record.move.output = ++s.tensor;
    record.move.size = (uint64_t)dt_meta_bytes(&like.meta);
    record.move.bytes = (const uint8_t *)values;
    dt_execrig_put(&s, &record);
    return s.tensor;
}

static uint64_t redistribute(uint64_t id, dt_signature_tensor_t from, dt_layout_t to)
{
    dt_signature_tensor_t output = {.meta = from.meta, .layout = to};
    return dt_execrig_op(&s, define("dtorch::redistribute", &from, 1, output), &id, 1, true);
}

static Dtorch__V1__WorkerSessionUp *fetch(uint64_t id)
{
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(&s, dt_execrig_fetch(&s, id));
    cr_assert_not_null(up, "no answer");
    return up;
}

/* `count` values of a tensor that the first vdev of its mesh has. */
static void expect(uint64_t id, const float *values, size_t count)
{
    Dtorch__V1__WorkerSessionUp *up = fetch(id);
    float is[ITEMS];
    cr_assert_null(up->result->error, "%s", up->result->error ? up->result->error->text : "");
    cr_assert_eq(up->result->value.len, count * sizeof(float), "%zu bytes", up->result->value.len);
    if (count > 0)
        memcpy(is, up->result->value.data, count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(is[i], values[i], "%zu: %g, not %g", i, (double)is[i], (double)values[i]);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

/* The whole value of a tensor on MESH_ID. */
static void expect_whole(uint64_t id, dt_signature_tensor_t from, const float *values)
{
    expect(redistribute(id, from, plain()), values, (size_t)dt_meta_numel(&from.meta));
}

/* What vdev `vdev` has. */
static void expect_local(uint64_t id, dt_signature_tensor_t from, uint64_t vdev, unsigned ndim,
                         const int64_t *sizes, const float *values)
{
    const uint32_t one = 1;
    dt_layout_t there = {.mesh = 100 + (uint32_t)vdev, .ndim = 1};
    dt_signature_tensor_t output = tensor(ndim, sizes, there);
    mesh_define(there.mesh, 1, &one, &vdev);
    uint64_t local = dt_execrig_op(&s, define("dtorch::local", &from, 1, output), &id, 1, true);
    expect(local, values, (size_t)dt_meta_numel(&output.meta));
}

static const float ramp[ITEMS] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                  12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22};

/* ---- tests ---- */

Test(engine_mesh, each_vdev_keeps_its_box_and_computes_on_it)
{
    for (uint32_t vdevs = 2; vdevs <= 4; vdevs++) {
        static const int64_t sizes[] = {5, 3};
        static const int64_t uneven[5] = {0, 0, 3, 2, 2}; /* rows of vdev 0, by count of vdevs */
        float twice[15];
        for (int i = 0; i < 15; i++)
            twice[i] = 2 * ramp[i];
        begin(vdevs);
        mesh_line(vdevs);
        dt_signature_tensor_t x = tensor(2, sizes, on(dt_placement_shard(0)));
        uint64_t a = upload(x, ramp);
        uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
        uint64_t b = dt_execrig_op(&s, add, (uint64_t[]){a, a}, 2, true);
        expect(b, twice, (size_t)uneven[vdevs] * 3);
        expect_whole(b, x, twice);
        expect_whole(a, x, ramp);
        expect_local(b, x, 1, 2, (const int64_t[]){uneven[vdevs] < 3 ? uneven[vdevs] : 2, 3},
                     twice + uneven[vdevs] * 3);
        end();
    }
}

Test(engine_mesh, a_shard_of_another_dimension_is_cut_out_of_each_row)
{
    static const int64_t sizes[] = {2, 3};
    static const int64_t left[] = {2, 2};
    static const int64_t right[] = {2, 1};
    begin(2);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(2, sizes, on(dt_placement_shard(1)));
    uint64_t a = upload(x, ramp);
    expect_local(a, x, 0, 2, left, (const float[]){1, 2, 4, 5});
    expect_local(a, x, 1, 2, right, (const float[]){3, 6});
    expect_whole(a, x, ramp);
    end();
}

Test(engine_mesh, a_mesh_of_two_dimensions_nests)
{
    static const uint32_t sizes[] = {2, 2};
    static const uint64_t vdevs[] = {3, 1, 0, 2};
    static const int64_t five[] = {5};
    static const int64_t two[] = {2};
    static const int64_t one[] = {1};
    begin(4);
    mesh_define(MESH_ID, 2, sizes, vdevs);
    dt_layout_t layout = on(dt_placement_shard(0));
    layout.ndim = 2;
    layout.placements[1] = dt_placement_shard(0);
    dt_signature_tensor_t x = tensor(1, five, layout);
    uint64_t a = upload(x, ramp);
    expect_local(a, x, 3, 1, two, (const float[]){1, 2});
    expect_local(a, x, 1, 1, one, (const float[]){3});
    expect_local(a, x, 0, 1, one, (const float[]){4});
    expect_local(a, x, 2, 1, one, (const float[]){5});
    expect_whole(a, x, ramp);
    end();
}

Test(engine_mesh, an_operator_does_not_run_on_an_empty_shard)
{
    static const int64_t two[] = {2};
    static const int64_t none[] = {0};
    begin(3);
    mesh_line(3);
    dt_signature_tensor_t x = tensor(1, two, on(dt_placement_shard(0)));
    dt_signature_tensor_t p = tensor(0, NULL, on(dt_placement_partial(DT_REDUCTION_SUM)));
    uint64_t a = upload(x, ramp);
    uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
    uint64_t b = dt_execrig_op(&s, add, (uint64_t[]){a, a}, 2, true);
    expect_local(b, x, 2, 1, none, NULL);
    expect_whole(b, x, (const float[]){2, 4});
    uint64_t sum = dt_execrig_op(&s, define("aten::sum", &x, 1, p), &b, 1, true);
    expect_local(sum, p, 2, 0, NULL, (const float[]){-0.0F});
    expect_whole(sum, p, (const float[]){6});
    end();
}

Test(engine_mesh, several_operators_may_stand_for_one)
{
    static const int64_t five[] = {5};
    begin(2);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, five, on(dt_placement_shard(0)));
    dt_signature_tensor_t p = tensor(0, NULL, on(dt_placement_partial(DT_REDUCTION_SUM)));
    uint32_t mean = define("aten::mean", &x, 1, p); /* of 3 and of 2, each times its share */
    for (int i = 0; i < 2; i++) {
        uint64_t a = upload(x, ramp);
        expect_whole(dt_execrig_op(&s, mean, &a, 1, true), p, (const float[]){3});
    }
    end();
}

Test(engine_mesh, a_view_and_what_is_written_through_it_are_the_shards)
{
    static const int64_t flat[] = {4};
    static const int64_t rows[] = {4, 1};
    begin(2);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, flat, on(dt_placement_shard(0)));
    dt_signature_tensor_t v = tensor(2, rows, on(dt_placement_shard(0)));
    dt_signature_tensor_t written = x;
    written.alias = DT_ALIAS_IN_PLACE;
    v.alias = DT_ALIAS_VIEW;
    uint64_t a = upload(x, ramp);
    dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_INT, .number = 1}};
    const dt_signature_t unsqueeze = {.name = "aten::unsqueeze",
                                      .arg_count = 2,
                                      .input_count = 1,
                                      .output_count = 1,
                                      .id_count = 1,
                                      .args = args,
                                      .inputs = &x,
                                      .outputs = &v};
    uint64_t view = dt_execrig_op(&s, dt_execrig_define(&s, &unsqueeze), &a, 1, true);
    uint32_t add_ = define("aten::add_.Tensor", (dt_signature_tensor_t[]){x, x}, 2, written);
    (void)dt_execrig_op(&s, add_, (uint64_t[]){a, a}, 2, false);
    v.alias = DT_ALIAS_FRESH;
    expect_whole(view, v, (const float[]){2, 4, 6, 8});
    dt_execrig_free(&s, a);
    expect_whole(view, v, (const float[]){2, 4, 6, 8});
    end();
}

Test(engine_mesh, replicated_copies_share_no_memory)
{
    static const int64_t two[] = {2};
    begin(3);
    mesh_line(3);
    dt_signature_tensor_t one = tensor(1, two, plain());
    dt_signature_tensor_t r = tensor(1, two, on(dt_placement_replicate()));
    dt_signature_tensor_t written = r;
    written.alias = DT_ALIAS_IN_PLACE;
    uint64_t copies[2];
    copies[0] = upload(r, ramp);
    copies[1] = redistribute(upload(one, ramp), one, r.layout);
    uint32_t add_ = define("aten::add_.Tensor", (dt_signature_tensor_t[]){r, r}, 2, written);
    for (int i = 0; i < 2; i++) {
        (void)dt_execrig_op(&s, add_, (uint64_t[]){copies[i], copies[i]}, 2, false);
        for (uint64_t vdev = 0; vdev < 3; vdev++)
            expect_local(copies[i], r, vdev, 1, two, (const float[]){2, 4});
    }
    end();
}

Test(engine_mesh, numbers_of_a_record_reach_every_vdev)
{
    static const int64_t four[] = {4};
    begin(2);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, four, on(dt_placement_shard(0)));
    dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_DYNAMIC}};
    const dt_signature_t sig = {.name = "aten::mul.Scalar",
                                .arg_count = 2,
                                .input_count = 1,
                                .output_count = 1,
                                .id_count = 1,
                                .dynamic_count = 1,
                                .args = args,
                                .inputs = &x,
                                .outputs = &x};
    static dt_record_t record;
    uint64_t a = upload(x, ramp);
    uint64_t output = ++s.tensor;
    const dt_value_t three = {.tag = DT_VALUE_DOUBLE, .real = 3};
    record = (dt_record_t){.kind = DT_RECORD_OP};
    record.op = (dt_record_op_t){.signature = dt_execrig_define(&s, &sig),
                                 .input_count = 1,
                                 .output_count = 1,
                                 .scalar_count = 1,
                                 .inputs = &a,
                                 .outputs = &output,
                                 .scalars = &three};
    dt_execrig_put(&s, &record);
    expect_whole(output, x, (const float[]){3, 6, 9, 12});
    end();
}

/* ---- made of tensors on each vdev ---- */

/* The layout of vdev `vdev` alone. */
static dt_layout_t alone(uint64_t vdev)
{
    const uint32_t one = 1;
    mesh_define(10 + (uint32_t)vdev, 1, &one, &vdev);
    return (dt_layout_t){.mesh = 10 + (uint32_t)vdev, .ndim = 1};
}

static uint64_t assemble(const dt_signature_tensor_t *parts, const uint64_t *ids, uint32_t count,
                         dt_signature_tensor_t output)
{
    static const uint64_t there[] = {1, 1, 1, 1};
    const dt_value_t list = {.tag = DT_VALUE_TENSORS, .count = count, .ids = there};
    const dt_signature_t sig = {.name = "dtorch::assemble",
                                .arg_count = 1,
                                .input_count = count,
                                .output_count = 1,
                                .id_count = 1,
                                .args = &list,
                                .inputs = parts,
                                .outputs = &output};
    return dt_execrig_op(&s, dt_execrig_define(&s, &sig), ids, count, true);
}

/* An upload of float32 to one vdev whose bytes come by themselves. */
static uint64_t upload_later(dt_signature_tensor_t like)
{
    static dt_record_t record;
    record = (dt_record_t){.kind = DT_RECORD_UPLOAD};
    record.move.meta = like.meta;
    record.move.layout = like.layout;
    record.move.output = record.move.number = ++s.tensor;
    record.move.size = (uint64_t)dt_meta_bytes(&like.meta);
    dt_execrig_put(&s, &record);
    return s.tensor;
}

Test(engine_mesh, is_assembled_from_a_tensor_on_each_vdev_whose_bytes_may_come_later)
{
    static const int64_t three[] = {3};
    static const int64_t sizes[][1] = {{2}, {1}};
    dt_signature_tensor_t parts[2];
    uint64_t ids[2];
    begin(2);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, three, on(dt_placement_shard(0)));
    for (uint64_t vdev = 0; vdev < 2; vdev++) {
        parts[vdev] = tensor(1, sizes[vdev], alone(vdev));
        ids[vdev] = upload_later(parts[vdev]);
    }
    uint64_t a = assemble(parts, ids, 2, x);
    uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
    uint64_t b = dt_execrig_op(&s, add, (uint64_t[]){a, a}, 2, true);
    dt_execrig_free(&s, ids[1]);
    dt_execrig_run(&s);
    cr_assert_lt(atomic_load(&s.channel->executed), s.sequence - 1, "it did not wait for bytes");
    dt_execrig_chunk(&s, ids[1], 0, &ramp[2], 4);
    dt_execrig_run(&s);
    cr_assert_lt(atomic_load(&s.channel->executed), s.sequence - 1, "it did not wait for bytes");
    dt_execrig_chunk(&s, ids[0], 0, ramp, 8);
    expect_whole(b, x, (const float[]){2, 4, 6});
    Dtorch__V1__WorkerSessionUp *up = fetch(ids[0]);
    cr_assert_not_null(up->result->error, "it has a value after it was taken over");
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    end();
}

/* ---- only some vdevs are here ---- */

Test(engine_mesh, the_only_vdev_of_a_mesh_that_is_here_has_its_part)
{
    static const uint32_t second[] = {1};
    static const int64_t five[] = {5};
    begin_on(second, 1, 1 << 20);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, five, on(dt_placement_shard(0)));
    uint64_t a = upload(x, ramp);
    uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
    uint64_t b = dt_execrig_op(&s, add, (uint64_t[]){a, a}, 2, true);
    expect_local(b, x, 1, 1, (const int64_t[]){2}, (const float[]){8, 10});
    uint64_t future = dt_execrig_fetch(&s, b);
    cr_assert_null(dt_execrig_result(&s, future),
                   "the first vdev of the mesh answers, nobody else");
    cr_assert_eq(atomic_load(&s.channel->executed), s.sequence - 1);
    end();
}

Test(engine_mesh, a_mesh_without_a_vdev_here_is_passed_over)
{
    static const uint32_t third[] = {2};
    static const int64_t four[] = {4};
    begin_on(third, 1, 1 << 20);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, four, on(dt_placement_shard(0)));
    uint64_t a = upload(x, ramp);
    uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
    uint64_t b = dt_execrig_op(&s, add, (uint64_t[]){a, a}, 2, true);
    (void)redistribute(b, x, on(dt_placement_replicate()));
    dt_execrig_free(&s, a);
    uint64_t future = dt_execrig_fetch(&s, b);
    cr_assert_null(dt_execrig_result(&s, future));
    cr_assert_eq(atomic_load(&s.channel->executed), s.sequence - 1);
    end();
}

/* ---- what goes wrong ---- */

static void expect_error(uint64_t id, const char *kind, uint64_t sequence, uint32_t vdev)
{
    Dtorch__V1__WorkerSessionUp *up = fetch(id);
    cr_assert_not_null(up->result->error, "it has a value");
    cr_assert_str_eq(up->result->error->kind, kind, "%s: %s", up->result->error->kind,
                     up->result->error->text);
    cr_assert_eq(up->result->error->sequence, sequence);
    cr_assert_eq(up->result->error->vdev, vdev);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

/* Sequence of the record that is put next. */
static uint64_t next_sequence(void)
{
    dt_execrig_flush(&s);
    return s.sequence;
}

Test(engine_mesh, a_failure_on_one_vdev_is_named_and_reaches_all_by_the_next_move)
{
    static const int64_t big[] = {3000};
    static const int64_t small[] = {3};
    static const uint32_t vdevs[] = {0, 1, 2};
    begin_on(vdevs, 3, 62500); /* five copies of 12,000 bytes, not six */
    mesh_line(3);
    dt_signature_tensor_t r = tensor(1, big, on(dt_placement_replicate()));
    dt_signature_tensor_t x = tensor(1, small, on(dt_placement_shard(0)));
    dt_signature_tensor_t p = tensor(0, NULL, on(dt_placement_replicate()));
    uint64_t good = upload(x, ramp);
    dt_value_t args[] = {{.tag = DT_VALUE_INTS, .count = 1, .ints = big}};
    const dt_signature_t zeros = {.name = "aten::zeros",
                                  .arg_count = 1,
                                  .output_count = 1,
                                  .id_count = 1,
                                  .args = args,
                                  .outputs = &r};
    uint32_t make = dt_execrig_define(&s, &zeros);
    uint64_t first = dt_execrig_op(&s, make, NULL, 0, true);
    uint32_t sum = define("aten::sum", &r, 1, p);
    uint64_t fails_at = next_sequence();
    uint64_t second = dt_execrig_op(&s, make, NULL, 0, true);
    uint64_t reduced = dt_execrig_op(&s, sum, &second, 1, true);
    dt_layout_t plan = plain();
    uint64_t moved = redistribute(reduced, p, on(dt_placement_partial(DT_REDUCTION_SUM)));
    expect_error(moved, "OutOfMemoryError", fails_at, 2);
    p.layout = on(dt_placement_partial(DT_REDUCTION_SUM));
    expect_error(redistribute(moved, p, plan), "OutOfMemoryError", fails_at, 2);
    dt_execrig_free(&s, first);
    dt_execrig_free(&s, second);
    second = dt_execrig_op(&s, make, NULL, 0, true);
    expect(dt_execrig_op(&s, sum, &second, 1, true), (const float[]){0}, 1);
    expect_whole(good, x, ramp);
    end();
}

Test(engine_mesh, results_of_another_size_than_the_layout_says_are_an_error)
{
    static const int64_t four[] = {4};
    static const int64_t two[] = {2};
    begin(2);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, four, on(dt_placement_shard(0)));
    uint64_t a = upload(x, ramp);
    dt_value_t args[] = {{.tag = DT_VALUE_INTS, .count = 1, .ints = two}};
    dt_signature_tensor_t lie = tensor(1, four, on(dt_placement_replicate()));
    const dt_signature_t zeros = {.name = "aten::zeros",
                                  .arg_count = 1,
                                  .output_count = 1,
                                  .id_count = 1,
                                  .args = args,
                                  .outputs = &lie};
    uint32_t make = dt_execrig_define(&s, &zeros);
    uint64_t at = next_sequence();
    expect_error(dt_execrig_op(&s, make, NULL, 0, true), "MetadataError", at, 0);
    expect_whole(a, x, ramp);
    end();
}

Test(engine_mesh, what_cannot_be_is_refused_by_name)
{
    static const int64_t four[] = {4};
    static const uint64_t crossed[] = {1, 0};
    const uint32_t two = 2;
    begin(2);
    mesh_line(2);
    mesh_define(8, 1, &two, crossed);
    dt_signature_tensor_t x = tensor(1, four, on(dt_placement_shard(0)));
    dt_signature_tensor_t y = x;
    dt_signature_tensor_t undefined = x;
    y.layout.mesh = 8;
    undefined.layout.mesh = 99;
    uint64_t a = upload(x, ramp);
    uint64_t b = upload(y, ramp);
    uint32_t mixed = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, y}, 2, x);
    uint32_t nowhere = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, undefined}, 2, x);
    dt_signature_tensor_t r = tensor(1, four, on(dt_placement_replicate()));
    uint32_t unknown = define("aten::no_such", &r, 1, r);
    uint64_t c = upload(r, ramp);
    uint64_t at = next_sequence();
    expect_error(dt_execrig_op(&s, mixed, (uint64_t[]){a, b}, 2, true), "RuntimeError", at, 0);
    at = next_sequence();
    expect_error(dt_execrig_op(&s, nowhere, (uint64_t[]){a, a}, 2, true), "NotImplementedError", at,
                 0);
    at = next_sequence();
    expect_error(dt_execrig_op(&s, unknown, &c, 1, true), "NotImplementedError", at, 0);
    at = next_sequence();
    uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
    expect_error(dt_execrig_op(&s, add, (uint64_t[]){a, b}, 2, true), "RuntimeError", at + 1, 0);
    expect_whole(a, x, ramp);
    expect_whole(b, y, ramp);
    end();
}

/* ---- seen from outside ---- */

static Dtorch__V1__WorkerSessionUp *list(void)
{
    const uint32_t limit = 100;
    dt_execrig_flush(&s);
    cr_assert_eq(dt_ring_write(&s.frames, DT_CHANNEL_LIST, &limit, sizeof limit, NULL), DT_OK);
    dt_execrig_run(&s);
    for (;;) {
        Dtorch__V1__WorkerSessionUp *up = dt_execrig_next(&s);
        cr_assert_not_null(up);
        if (up->kind_case == DTORCH__V1__WORKER_SESSION_UP__KIND_STATS && up->stats->is_list)
            return up;
        dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    }
}

Test(engine_mesh, each_local_tensor_is_listed_and_freed)
{
    static const int64_t five[] = {5};
    begin(3);
    mesh_line(3);
    dt_signature_tensor_t x = tensor(1, five, on(dt_placement_shard(0)));
    uint64_t a = upload(x, ramp);
    uint64_t one = dt_execrig_upload(&s, DT_DTYPE_F32, 1, five, ramp);
    Dtorch__V1__WorkerSessionUp *up = list();
    cr_assert_eq(up->stats->tensors, 2);
    cr_assert_eq(up->stats->n_list, 4);
    uint32_t vdevs = 0;
    for (size_t i = 0; i < up->stats->n_list; i++)
        if (up->stats->list[i]->id == a) {
            vdevs |= 1U << up->stats->list[i]->vdev;
            cr_assert_eq(up->stats->list[i]->size_bytes, up->stats->list[i]->vdev < 2 ? 8 : 4);
        }
    cr_assert_eq(vdevs, 7);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    dt_execrig_free(&s, a);
    dt_execrig_free(&s, one);
    up = list();
    cr_assert_eq(up->stats->tensors, 0);
    cr_assert_eq(up->stats->n_list, 0);
    cr_assert_eq(up->stats->memory_bytes, 0, "%llu bytes are left",
                 (unsigned long long)up->stats->memory_bytes);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    end();
}

Test(engine_mesh, memory_that_ids_need_is_used_again)
{
    static const int64_t four[] = {4};
    begin(2);
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, four, on(dt_placement_shard(0)));
    uint64_t a = upload(x, ramp);
    uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
    for (int i = 0; i < 3000; i++) {
        uint64_t b = dt_execrig_op(&s, add, (uint64_t[]){a, a}, 2, true);
        dt_execrig_free(&s, b);
        if (i % 1000 == 0)
            dt_execrig_run(&s);
    }
    expect_whole(a, x, ramp);
    end();
}

/* ---- several engines ---- */

/* Both engines in one process: vdev 0 on the first, which `rig` and `s` are now and then. */
typedef struct pair {
    dt_execrig_t rigs[2];
    dt_execrig_session_t sessions[2];
    dt_board_t *board;
} pair_t;

/* What helpers speak to. */
static void speak_to(pair_t *pair, int engine, int was)
{
    pair->sessions[was] = s;
    s = pair->sessions[engine];
}

static void pair_begin(pair_t *pair, uint64_t limit_bytes)
{
    const dt_backend_device_options_t options = {
        .struct_size = sizeof options, .memory = dt_exec_backend_memory(), .threads = 1};
    table = dt_backend_ref();
    cr_assert_eq(table->device_open(NULL, &options, &device, NULL), DT_OK);
    for (uint32_t i = 0; i < 2; i++) {
        dt_execrig_init(&pair->rigs[i], table, device, true);
        dt_execrig_open_on(&pair->rigs[i], &pair->sessions[i], 1, &i, 1, limit_bytes);
    }
    pair->board =
        dt_execrig_join((dt_execrig_session_t *const[]){&pair->sessions[0], &pair->sessions[1]}, 2);
    s = pair->sessions[0];
}

/* `s` is engine `now`. */
static void pair_end(pair_t *pair, int now)
{
    pair->sessions[now] = s;
    for (int i = 0; i < 2; i++) {
        dt_execrig_close(&pair->sessions[i]);
        dt_execrig_fini(&pair->rigs[i]);
    }
    dt_board_close(pair->board);
    table->device_close(device);
}

static bool is_through(void)
{
    dt_execrig_run(&s);
    (void)sched_yield(); /* threads of transports work meanwhile */
    return atomic_load(&s.channel->executed) == s.sequence - 1;
}

/* Give turns until the stream of `s` is through. */
static void run_through(void)
{
    while (!is_through())
        ;
}

/* The same for both engines, of which `s` is the second; it is the first then. */
static void run_both(pair_t *pair)
{
    bool is_done[2] = {false, false};
    for (int now = 1; !is_done[0] || !is_done[1] || now != 0; now = !now) {
        is_done[now] = is_through();
        speak_to(pair, !now, now);
    }
}

/* The same stream for both engines: a shard, doubled, made whole on both. *ret_moved: its id. */
static void pair_program(const float *input, uint64_t *ret_moved)
{
    static const int64_t five[] = {5};
    mesh_line(2);
    dt_signature_tensor_t x = tensor(1, five, on(dt_placement_shard(0)));
    uint64_t a = upload(x, input);
    uint32_t add = define("aten::add.Tensor", (dt_signature_tensor_t[]){x, x}, 2, x);
    uint64_t b = dt_execrig_op(&s, add, (uint64_t[]){a, a}, 2, true);
    *ret_moved = redistribute(b, x, on(dt_placement_replicate()));
}

Test(engine_mesh, a_session_waits_for_another_engine_and_others_go_on)
{
    static const int64_t five[] = {5};
    pair_t pair;
    dt_execrig_session_t other;
    uint64_t moved;
    pair_begin(&pair, 1 << 20);
    dt_signature_tensor_t r = tensor(1, five, on(dt_placement_replicate()));
    pair_program(ramp, &moved);
    uint64_t behind = next_sequence();
    dt_execrig_free(&s, 1);
    dt_execrig_run(&s);
    cr_assert_lt(atomic_load(&s.channel->executed), behind - 1, "it did not wait for its peer");

    dt_execrig_open(&pair.rigs[0], &other, 2, 1, 1 << 20);
    uint64_t a = dt_execrig_upload(&other, DT_DTYPE_F32, 1, five, ramp);
    Dtorch__V1__WorkerSessionUp *up = dt_execrig_result(&other, dt_execrig_fetch(&other, a));
    cr_assert_not_null(up, "another session waited too");
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    dt_execrig_close(&other);

    speak_to(&pair, 1, 0);
    pair_program(ramp, &moved);
    run_through();
    expect_local(moved, r, 1, 1, five, (const float[]){2, 4, 6, 8, 10});
    speak_to(&pair, 0, 1);
    run_through();
    expect(moved, (const float[]){2, 4, 6, 8, 10}, 5);
    pair_end(&pair, 0);
}

Test(engine_mesh, a_cause_on_one_engine_reaches_the_other)
{
    static const int64_t five[] = {5};
    static const int64_t big[] = {1 << 19};
    pair_t pair;
    uint64_t ids[3] = {0};
    uint64_t fails_at[2];
    pair_begin(&pair, 1 << 20);
    for (int i = 0; i < 2; i++) {
        if (i == 1)
            speak_to(&pair, 1, 0);
        mesh_line(2);
        dt_signature_tensor_t x = tensor(1, five, on(dt_placement_shard(0)));
        dt_signature_tensor_t large = tensor(1, big, alone(1));
        uint64_t a = upload(x, ramp);
        dt_signature_tensor_t sum = tensor(0, NULL, large.layout);
        dt_value_t args[] = {{.tag = DT_VALUE_INTS, .count = 1, .ints = big}};
        const dt_signature_t zeros = {.name = "aten::zeros",
                                      .arg_count = 1,
                                      .output_count = 1,
                                      .id_count = 1,
                                      .args = args,
                                      .outputs = &large};
        uint32_t make = dt_execrig_define(&s, &zeros);
        fails_at[i] = next_sequence();
        uint64_t fails = dt_execrig_op(&s, make, NULL, 0, true); /* on vdev 1: over its limit */
        uint32_t reduce = define("aten::sum", &large, 1, sum);
        uint64_t poisoned = dt_execrig_op(&s, reduce, &fails, 1, true);
        ids[0] = redistribute(poisoned, sum, on(dt_placement_replicate()));
        ids[1] = redistribute(a, x, on(dt_placement_replicate()));
        dt_execrig_run(&s);
    }
    cr_assert_eq(fails_at[0], fails_at[1], "both get one stream");
    run_both(&pair);
    expect_error(ids[0], "OutOfMemoryError", fails_at[0], 1);
    expect(ids[1], ramp, 5);
    pair_end(&pair, 0);
}

Test(engine_mesh, an_engine_that_is_lost_in_a_redistribution_is_named)
{
    pair_t pair;
    uint64_t moved;
    pair_begin(&pair, 1 << 20);
    pair_program(ramp, &moved);
    dt_execrig_run(&s);
    dt_board_lose(pair.board, 1, "");
    dt_ring_wake(pair.rigs[0].wake);
    run_through();
    Dtorch__V1__WorkerSessionUp *up = fetch(moved);
    cr_assert_not_null(up->result->error);
    cr_assert_str_eq(up->result->error->operator_name, "dtorch::redistribute");
    cr_assert_not_null(strstr(up->result->error->text, "node1"), "%s", up->result->error->text);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    pair_end(&pair, 0);
}

Test(engine_mesh, a_session_that_is_closed_while_it_waits_leaves_nothing)
{
    pair_t pair;
    uint64_t moved;
    pair_begin(&pair, 1 << 20);
    pair_program(ramp, &moved);
    dt_execrig_run(&s);
    pair_end(&pair, 0);
}
