/* Placement rules: reading lines, choosing among rows, what a device runs. What the built-in lines
 * say is proved against PyTorch by tests/python/placement.py, and kept by tests/rules. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "shard/rules_internal.h"

TestSuite(shard_rules, .timeout = 60);

/* ---- a call ---- */

static struct {
    dt_shard_rules_t *rules;
    dt_signature_t signature;
    dt_value_t args[12];
    dt_signature_tensor_t inputs[8], outputs[8];
    dt_shard_mesh_t mesh;
    dt_layout_t want[8], out[8];
    dt_shard_answer_t answer;
    dt_error_t err;
} t;

static void start(const char *name, unsigned ndim, const uint32_t *sizes)
{
    if (!t.rules)
        cr_assert_eq(dt_shard_rules_create(&t.rules, &t.err), DT_OK, "%s", t.err.text);
    memset(&t.signature, 0, sizeof t.signature);
    t.signature.name = name;
    t.signature.args = t.args;
    t.signature.inputs = t.inputs;
    t.signature.outputs = t.outputs;
    cr_assert_eq(dt_shard_mesh_init(&t.mesh, ndim, sizes, NULL, NULL), DT_OK);
}

static const uint32_t two[] = {2}, square[] = {2, 2};

static dt_signature_tensor_t tensor(unsigned ndim, const int64_t *sizes)
{
    dt_signature_tensor_t to = {.alias = DT_ALIAS_FRESH};
    cr_assert_eq(dt_meta_set(&to.meta, DT_DTYPE_F32, ndim, sizes, NULL, 0, NULL), DT_OK);
    to.layout = dt_layout_replicate(1, t.mesh.ndim);
    return to;
}

static void value(dt_value_t arg)
{
    t.args[t.signature.arg_count++] = arg;
}

static dt_signature_tensor_t *input(unsigned ndim, const int64_t *sizes)
{
    value((dt_value_t){.tag = DT_VALUE_TENSOR});
    t.inputs[t.signature.input_count] = tensor(ndim, sizes);
    return &t.inputs[t.signature.input_count++];
}

static dt_signature_tensor_t *output(unsigned ndim, const int64_t *sizes)
{
    t.outputs[t.signature.output_count] = tensor(ndim, sizes);
    return &t.outputs[t.signature.output_count++];
}

static dt_status_t propagate(uint32_t flags)
{
    dt_shard_policy_t policy = {.flags = flags};
    t.answer = (dt_shard_answer_t){.inputs = t.want, .outputs = t.out};
    return dt_shard_propagate(t.rules, &t.signature, &t.mesh, 1, &policy, &t.answer, &t.err);
}

static void expect(const dt_layout_t *layout, const char *text)
{
    char got[200];
    dt_layout_print(layout, got, sizeof got);
    cr_assert_str_eq(got, text);
}

/* Take what propagation wants, and see that it verifies. */
static void settle(void)
{
    for (uint32_t i = 0; i < t.signature.input_count; i++)
        t.inputs[i].layout = t.want[i];
    for (uint32_t j = 0; j < t.signature.output_count; j++)
        t.outputs[j].layout = t.out[j];
    cr_assert_eq(dt_shard_verify(t.rules, &t.signature, &t.mesh, &t.err), DT_OK, "%s", t.err.text);
}

#define SIZES(...)                                                                                 \
    (const int64_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- lines ---- */

Test(shard_rules, the_built_in_lines_can_be_read_and_found)
{
    start("", 1, two);
    cr_assert_gt(t.rules->count, 600);
    cr_assert(dt_shard_rules_has(t.rules, "aten::mm"));
    cr_assert(dt_shard_rules_has(t.rules, "aten::mm.default"));
    cr_assert(dt_shard_rules_has(t.rules, "aten::add_.Tensor"));
    cr_assert(dt_shard_rules_has(t.rules, "aten::_foreach_add_.List"));
    cr_assert_not(dt_shard_rules_has(t.rules, "aten::m"));
    cr_assert_not(dt_shard_rules_has(t.rules, "aten::mm.out"));
    cr_assert_not(dt_shard_rules_has(t.rules, ""));
    cr_assert_not(dt_shard_rules_has(t.rules, "_"));
}

Test(shard_rules, a_bad_line_is_told_with_its_number)
{
    static const struct {
        const char *line, *text;
    } bad[] = {
        {"aten", "operator's name"},
        {"aten::x(T PW", "expected , or )"},
        {"aten::x(T, a=b) PW", "default that is no number"},
        {"aten::x WP", "neither a family nor a template"},
        {"aten::x .,->.%", "character that no template has"},
        {"aten::x PW red=most", "no such reduction"},
        {"aten::x PW p=Q0", "no such algebra"},
        {"aten::x PW p=L0x", "digits or *"},
        {"aten::x PW loc=size", "loc= of what is no argument"},
        {"aten::x(T, n) PW loc=n:q", "loc= is NAME"},
        {"aten::x PW other=1", "no such option"},
        {"aten::x PW word", "no family has"},
        {"aten::x DIM dim", "needs a template"},
        {"aten::x .->. n=shape", "the line does not have"},
        {"aten::x .@x->.", "digit behind @"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dt_shard_line_t lines[] = {{7, "aten::good PW"}, {42, bad[i].line}};
        dt_shard_rules_t *rules;
        dt_error_t err;
        cr_assert_eq(dt_shard_rules_read(lines, 2, &rules, &err), DT_ERR_INVALID, "%s",
                     bad[i].line);
        cr_assert_not_null(strstr(err.text, "ops.def:42: "), "%s", err.text);
        cr_assert_not_null(strstr(err.text, bad[i].text), "%s", err.text);
    }
    dt_shard_line_t twice[] = {{1, "aten::x PW"}, {2, "aten::x(T, T) PW"}};
    dt_shard_rules_t *rules;
    dt_error_t err;
    cr_assert_eq(dt_shard_rules_read(twice, 2, &rules, &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "a second line for aten::x"), "%s", err.text);
    dt_shard_rules_free(NULL);
}

/* ---- choosing ---- */

Test(shard_rules, each_mesh_dimension_takes_its_own_row)
{
    start("aten::addmm", 2, square);
    input(1, SIZES(8))->layout.placements[1] = dt_placement_shard(0);
    input(2, SIZES(4, 6))->layout.placements[0] = dt_placement_shard(0);
    input(2, SIZES(6, 8))->layout.placements[1] = dt_placement_shard(1);
    output(2, SIZES(4, 8));
    cr_assert_eq(propagate(0), DT_OK, "%s", t.err.text);
    cr_assert_eq(t.answer.moved_count, 0);
    expect(&t.out[0], "[Shard(0), Shard(1)]");
    settle();
}

Test(shard_rules, a_bias_beside_a_reduced_label_arrives_partial)
{
    start("aten::addmm", 1, two);
    input(1, SIZES(8));
    input(2, SIZES(4, 6))->layout.placements[0] = dt_placement_shard(1);
    input(2, SIZES(6, 8))->layout.placements[0] = dt_placement_shard(0);
    output(2, SIZES(4, 8));
    cr_assert_eq(propagate(0), DT_OK);
    expect(&t.want[0], "[Partial(sum)]");
    expect(&t.out[0], "[Partial(sum)]");
    cr_assert_eq(t.answer.moved_count, 1);
    cr_assert_eq(t.answer.price_bytes, 0);
    settle();
}

Test(shard_rules, a_number_is_a_replicate_input)
{
    start("aten::add.Tensor", 1, two);
    input(1, SIZES(4))->layout.placements[0] = dt_placement_partial(DT_REDUCTION_SUM);
    value((dt_value_t){.tag = DT_VALUE_DYNAMIC});
    output(1, SIZES(4));
    cr_assert_eq(propagate(0), DT_OK);
    expect(&t.want[0], "[Shard(0)]"); /* settled: 1 would be added on every device */
    settle();
    t.inputs[0].layout.placements[0] = dt_placement_partial(DT_REDUCTION_AVG);
    cr_assert_eq(propagate(0), DT_OK);
    expect(&t.want[0], "[Partial(avg)]");
}

Test(shard_rules, partial_passes_only_what_joins_under_the_policy)
{
    start("aten::mul.Tensor", 1, two);
    input(1, SIZES(4))->layout.placements[0] = dt_placement_partial(DT_REDUCTION_SUM);
    input(1, SIZES(4));
    output(1, SIZES(4));
    cr_assert_eq(propagate(0), DT_OK);
    expect(&t.out[0], "[Partial(sum)]");
    cr_assert_eq(propagate(DT_SHARD_AUTO), DT_OK);
    expect(&t.out[0], "[Shard(0)]");
}

Test(shard_rules, in_place_counts_the_way_back)
{
    start("aten::addcdiv_", 1, two);
    input(1, SIZES(64));
    input(1, SIZES(64))->layout.placements[0] = dt_placement_shard(0);
    input(1, SIZES(64))->layout.placements[0] = dt_placement_shard(0);
    *output(1, SIZES(64)) = t.inputs[0];
    t.outputs[0].alias = DT_ALIAS_IN_PLACE;
    cr_assert_eq(propagate(DT_SHARD_AUTO), DT_OK);
    expect(&t.want[0], "[Shard(0)]"); /* a slice is updated and gathered: 128 bytes, not twice */
    expect(&t.out[0], "[Shard(0)]");
    cr_assert_eq(t.answer.price_bytes, 128);
}

Test(shard_rules, a_pinned_input_stays_unless_there_is_no_other_row)
{
    static const uint8_t pinned[] = {0, DT_SHARD_PINNED};
    dt_shard_policy_t policy = {.flags = DT_SHARD_AUTO, .input_flags = pinned};
    start("aten::mm", 1, two);
    input(2, SIZES(64, 8))->layout.placements[0] = dt_placement_shard(0);
    input(2, SIZES(8, 4))->layout.placements[0] = dt_placement_shard(1);
    output(2, SIZES(64, 4));
    cr_assert_eq(propagate(DT_SHARD_AUTO), DT_OK);
    expect(&t.want[1], "[Replicate()]"); /* the weight is smaller */
    cr_assert_eq(dt_shard_propagate(t.rules, &t.signature, &t.mesh, 1, &policy, &t.answer, &t.err),
                 DT_OK);
    expect(&t.want[1], "[Shard(1)]");
    expect(&t.want[0], "[Replicate()]");
}

Test(shard_rules, strict_refuses_with_shape_and_placements)
{
    start("aten::sort", 1, two);
    input(2, SIZES(4, 6))->layout.placements[0] = dt_placement_shard(1);
    output(2, SIZES(4, 6));
    output(2, SIZES(4, 6));
    cr_assert_eq(propagate(DT_SHARD_STRICT), DT_ERR_INVALID);
    cr_assert_not_null(
        strstr(t.err.text, "aten::sort: input 0, float32 (4, 6), lies as [Shard(1)]"), "%s",
        t.err.text);
    cr_assert_eq(propagate(DT_SHARD_AUTO), DT_OK);
    expect(&t.out[0], "[Shard(0)]");
}

Test(shard_rules, an_operator_without_a_line_is_made_whole)
{
    start("aten::nothing", 1, two);
    input(1, SIZES(4))->layout.placements[0] = dt_placement_shard(0);
    output(1, SIZES(4));
    cr_assert_eq(propagate(0), DT_OK);
    cr_assert(t.answer.is_replicated);
    expect(&t.want[0], "[Replicate()]");
    cr_assert_eq(t.answer.price_bytes, 8);
    settle();
    start("aten::add.Tensor", 1, two); /* and so is one that draws, or whose results are unknown */
    input(1, SIZES(4))->layout.placements[0] = dt_placement_shard(0);
    output(1, SIZES(4));
    t.signature.flags = DT_SIGNATURE_RANDOM;
    cr_assert_eq(propagate(0), DT_OK);
    cr_assert(t.answer.is_replicated);
}

Test(shard_rules, a_tensor_of_another_mesh_is_brought)
{
    start("aten::add.Tensor", 1, two);
    input(1, SIZES(4))->layout.placements[0] = dt_placement_shard(0);
    input(1, SIZES(4))->layout = dt_layout_replicate(0, 0);
    output(1, SIZES(4));
    cr_assert_eq(propagate(DT_SHARD_STRICT), DT_OK, "%s", t.err.text);
    expect(&t.want[1], "[Shard(0)]");
    cr_assert_eq(t.want[1].mesh, 1);
    cr_assert_eq(t.answer.moved_count, 1);
}

Test(shard_rules, borders_at_heads_pass_a_view)
{
    static const uint32_t three[] = {3};
    start("aten::view", 1, three);
    input(2, SIZES(5, 8 * 16))->layout.placements[0] = dt_placement_shard(1);
    t.inputs[0].layout.placements[0].unit = 16;
    value((dt_value_t){.tag = DT_VALUE_INTS, .count = 3, .ints = SIZES(5, 8, 16)});
    output(3, SIZES(5, 8, 16));
    cr_assert_eq(propagate(DT_SHARD_STRICT), DT_OK, "%s", t.err.text);
    expect(&t.out[0], "[Shard(1)]"); /* 3, 3 and 2 heads */
    settle();
    t.inputs[0].layout.placements[0].unit = 1; /* 43 columns: a head is torn */
    cr_assert_eq(propagate(DT_SHARD_STRICT), DT_ERR_INVALID);
}

Test(shard_rules, a_factory_lies_as_wanted)
{
    dt_layout_t wanted = dt_layout_replicate(1, 1);
    dt_shard_policy_t policy = {.flags = DT_SHARD_AUTO, .wanted = &wanted};
    wanted.placements[0] = dt_placement_shard(1);
    start("aten::zeros", 1, two);
    value((dt_value_t){.tag = DT_VALUE_INTS, .count = 2, .ints = SIZES(4, 5)});
    output(2, SIZES(4, 5));
    cr_assert_eq(propagate(DT_SHARD_AUTO), DT_OK);
    expect(&t.out[0], "[Replicate()]");
    cr_assert_eq(dt_shard_propagate(t.rules, &t.signature, &t.mesh, 1, &policy, &t.answer, &t.err),
                 DT_OK);
    expect(&t.out[0], "[Shard(1)]");
    settle();
}

/* ---- verifying ---- */

Test(shard_rules, a_signature_that_is_no_row_is_refused_by_name)
{
    start("aten::mm", 1, two);
    input(2, SIZES(4, 6))->layout.placements[0] = dt_placement_shard(0);
    input(2, SIZES(6, 8));
    output(2, SIZES(4, 8))->layout.placements[0] = dt_placement_shard(1);
    cr_assert_eq(dt_shard_verify(t.rules, &t.signature, &t.mesh, &t.err), DT_ERR_INVALID);
    cr_assert_str_eq(t.err.text, "aten::mm: output 0 lies as [Shard(1)] in the signature, as "
                                 "[Shard(0)] by the rules");
    t.inputs[0].layout.placements[0] = dt_placement_shard(2);
    cr_assert_eq(dt_shard_verify(t.rules, &t.signature, &t.mesh, &t.err), DT_ERR_INVALID);
}

/* ---- one device ---- */

static dt_shard_local_t localize(uint32_t index, dt_arena_t *arena)
{
    dt_shard_local_t local;
    cr_assert_eq(dt_shard_localize(t.rules, &t.signature, &t.mesh, index, arena, &local, &t.err),
                 DT_OK, "%s", t.err.text);
    return local;
}

Test(shard_rules, sizes_among_the_attributes_become_local)
{
    dt_arena_t arena;
    dt_arena_init(&arena, 1u << 20);
    start("aten::view", 1, two);
    input(2, SIZES(6, 10))->layout.placements[0] = dt_placement_shard(0);
    value((dt_value_t){.tag = DT_VALUE_INTS, .count = 3, .ints = SIZES(6, -1, 5)});
    output(3, SIZES(6, 2, 5))->layout.placements[0] = dt_placement_shard(0);
    dt_shard_local_t local = localize(1, &arena);
    cr_assert(local.is_run && local.op_count == 1);
    cr_assert_eq(local.ops[0].args[0].id, 1);
    cr_assert_eq(memcmp(local.ops[0].args[1].ints, SIZES(3, 2, 5), 3 * sizeof(int64_t)), 0);
    cr_assert_eq(local.outputs[0].sizes[0], 3);
    dt_arena_t none;
    dt_shard_local_t refused;
    dt_arena_init(&none, 0);
    cr_assert_eq(dt_shard_localize(t.rules, &t.signature, &t.mesh, 0, &none, &refused, &t.err),
                 DT_ERR_NOMEM);
    dt_arena_fini(&arena);
}

Test(shard_rules, an_empty_shard_is_not_run)
{
    static const uint32_t four[] = {4};
    dt_arena_t arena;
    dt_arena_init(&arena, 1u << 20);
    start("aten::sum.dim_IntList", 1, four);
    input(2, SIZES(5, 3))->layout.placements[0] = dt_placement_shard(0);
    value((dt_value_t){.tag = DT_VALUE_INTS, .count = 1, .ints = SIZES(0)});
    output(1, SIZES(3))->layout.placements[0] = dt_placement_partial(DT_REDUCTION_SUM);
    cr_assert(localize(2, &arena).is_run);
    dt_shard_local_t local = localize(3, &arena);
    cr_assert_not(local.is_run);
    cr_assert_eq(local.fills[0], DT_SHARD_FILL_SUM);
    dt_arena_fini(&arena);
}

Test(shard_rules, a_program_numbers_the_dynamic_arguments_of_the_call)
{
    dt_arena_t arena;
    dt_arena_init(&arena, 1u << 20);
    start("aten::huber_loss", 1, two);
    input(1, SIZES(5))->layout.placements[0] = dt_placement_shard(0);
    input(1, SIZES(5))->layout.placements[0] = dt_placement_shard(0);
    value((dt_value_t){.tag = DT_VALUE_INT, .number = 1});
    value((dt_value_t){.tag = DT_VALUE_DYNAMIC});
    output(0, NULL);
    cr_assert_eq(propagate(0), DT_OK);
    expect(&t.out[0], "[Partial(sum)]"); /* 3 and 2 elements */
    settle();
    dt_shard_local_t local = localize(1, &arena);
    cr_assert_eq(local.op_count, 2);
    cr_assert_eq(local.ops[0].args[3].tag, DT_VALUE_DYNAMIC);
    cr_assert_eq(local.ops[0].args[3].number, 0);
    cr_assert_eq(local.ops[1].args[0].id, DT_SHARD_TEMP);
    cr_assert_float_eq(local.ops[1].args[1].real, 0.4, 1e-12);
    dt_arena_fini(&arena);
}

static void norm_of_groups(int64_t pictures)
{
    start("aten::native_group_norm", 1, two);
    input(4, SIZES(pictures, 6, 3, 3))->layout.placements[0] = dt_placement_shard(0);
    input(1, SIZES(6));
    input(1, SIZES(6));
    for (int i = 0; i < 4; i++)
        value((dt_value_t){.tag = DT_VALUE_INT, .number = SIZES(pictures, 6, 9, 2)[i]});
    value((dt_value_t){.tag = DT_VALUE_DOUBLE, .real = 1e-5});
    output(4, SIZES(pictures, 6, 3, 3))->layout.placements[0] = dt_placement_shard(0);
    output(2, SIZES(pictures, 2))->layout.placements[0] = dt_placement_shard(0);
    output(2, SIZES(pictures, 2))->layout.placements[0] = dt_placement_shard(0);
}

Test(shard_rules, a_group_norm_of_one_picture_of_several_reads_it_dense)
{
    dt_arena_t arena;
    dt_arena_init(&arena, 1u << 20);
    norm_of_groups(3);
    cr_assert_eq(localize(0, &arena).op_count, 1);
    dt_shard_local_t local = localize(1, &arena);
    cr_assert_eq(local.op_count, 2);
    cr_assert_str_eq(local.ops[0].name, "aten::contiguous");
    cr_assert_eq(local.ops[0].args[0].id, 1);
    cr_assert_eq(local.ops[1].args[0].id, DT_SHARD_TEMP);
    cr_assert_eq(local.ops[1].args[1].id, 2);
    cr_assert_eq(local.ops[1].args[3].number, 1); /* pictures here */
    dt_arena_fini(&arena);
}

Test(shard_rules, elements_of_a_list_have_layouts_of_their_own)
{
    static const uint64_t given[] = {1, 1};
    start("aten::_foreach_add_.Scalar", 1, two);
    value((dt_value_t){.tag = DT_VALUE_TENSORS, .count = 2, .ids = given});
    value((dt_value_t){.tag = DT_VALUE_DYNAMIC});
    for (uint32_t i = 0; i < 2; i++) {
        t.inputs[i] = tensor(1, SIZES(4));
        t.signature.input_count++;
        t.outputs[i] = t.inputs[i];
        t.outputs[i].alias = DT_ALIAS_IN_PLACE;
        t.outputs[i].input = i;
        t.signature.output_count++;
    }
    t.inputs[1].layout.placements[0] = dt_placement_shard(0);
    cr_assert_eq(propagate(DT_SHARD_STRICT), DT_OK, "%s", t.err.text);
    expect(&t.out[0], "[Replicate()]");
    expect(&t.out[1], "[Shard(0)]");
    settle();
}
