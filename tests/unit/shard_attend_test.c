/* Attention a block at a time: which layouts go together, and what each device runs. That the
 * values are those of one device is seen by running it (tests/python/device_context.py). */
#include <criterion/criterion.h>
#include <string.h>

#include "shard/rules.h"

TestSuite(shard_attend, .timeout = 60);

#define SEQUENCE 24

static struct {
    dt_shard_rules_t *rules;
    dt_shard_mesh_t mesh;
    dt_value_t args[12];
    dt_signature_tensor_t inputs[9], outputs[3];
    dt_signature_t signature;
    dt_error_t err;
} t;

static void set_tensor(dt_signature_tensor_t *to, int64_t heads, unsigned ndim)
{
    const int64_t sizes[] = {2, heads, SEQUENCE, 8};
    cr_assert_eq(dt_meta_set(&to->meta, DT_DTYPE_F32, ndim, sizes, NULL, 0, NULL), DT_OK);
    to->layout = dt_layout_replicate(1, t.mesh.ndim);
}

/* out, lse, q, k, v; or dq, dk, dv, grad, q, k, v, out, lse. */
static void start(unsigned ndim, const uint32_t *sizes, bool is_backward, bool is_causal)
{
    uint32_t count = is_backward ? 9 : 5, written = is_backward ? 3 : 2;
    dt_shard_rules_t *rules = t.rules;
    memset(&t, 0, sizeof t);
    t.rules = rules;
    cr_assert(rules || dt_shard_rules_create(&t.rules, NULL) == DT_OK);
    cr_assert_eq(dt_shard_mesh_init(&t.mesh, ndim, sizes, NULL, NULL), DT_OK);
    for (uint32_t i = 0; i < count; i++) {
        bool is_key = is_backward ? i == 1 || i == 2 || i == 5 || i == 6 : i == 3 || i == 4;
        set_tensor(&t.inputs[i], is_key ? 2 : 4, i == (is_backward ? 8u : 1u) ? 3 : 4);
        t.args[i].tag = DT_VALUE_TENSOR;
    }
    for (uint32_t i = 0; i < written; i++) {
        t.outputs[i] = t.inputs[i];
        t.outputs[i].alias = DT_ALIAS_IN_PLACE;
        t.outputs[i].input = i;
    }
    t.args[count].tag = is_causal ? DT_VALUE_TRUE : DT_VALUE_FALSE;
    t.args[count + 1].tag = DT_VALUE_FALSE;
    t.args[count + 2].tag = DT_VALUE_NONE;
    t.signature = (dt_signature_t){.name = is_backward ? DT_SHARD_ATTEND_BACKWARD : DT_SHARD_ATTEND,
                                   .arg_count = count + 3,
                                   .args = t.args,
                                   .input_count = count,
                                   .inputs = t.inputs,
                                   .output_count = written,
                                   .outputs = t.outputs};
}

/* Queries' tensors at `q`, keys' at `k`, on mesh dimension `dim`. */
static void lie(unsigned dim, dt_placement_t q, dt_placement_t k)
{
    for (uint32_t i = 0; i < t.signature.input_count; i++)
        t.inputs[i].layout.placements[dim] = t.inputs[i].meta.sizes[1] == 2 ? k : q;
    for (uint32_t i = 0; i < t.signature.output_count; i++)
        t.outputs[i].layout = t.inputs[i].layout;
}

static bool verifies(void)
{
    return dt_shard_verify(t.rules, &t.signature, &t.mesh, &t.err) == DT_OK;
}

static dt_placement_t ordered(unsigned order)
{
    dt_placement_t placement = dt_placement_shard(2);
    placement.order = (uint8_t)order;
    return placement;
}

Test(shard_attend, takes_queries_with_their_keys_and_nothing_else)
{
    static const uint32_t two[] = {2}, three[] = {3};
    dt_placement_t r = dt_placement_replicate(), partial = dt_placement_partial(DT_REDUCTION_SUM);
    for (unsigned backward = 0; backward < 2; backward++) {
        start(1, two, backward, true);
        cr_assert(verifies(), "%s", t.err.text);
        lie(0, dt_placement_shard(2), dt_placement_shard(2));
        cr_assert(verifies(), "%s", t.err.text);
        lie(0, ordered(DT_ORDER_FOLDED), ordered(DT_ORDER_FOLDED | 1));
        cr_assert(verifies(), "%s", t.err.text);
        for (unsigned dim = 0; dim < 2; dim++) {
            lie(0, dt_placement_shard(dim), dt_placement_shard(dim));
            cr_assert(verifies(), "%s", t.err.text);
        }
        const dt_placement_t bad[][2] = {
            {r, dt_placement_shard(2)}, {dt_placement_shard(0), dt_placement_shard(1)},
            {dt_placement_shard(1), r}, {dt_placement_shard(3), dt_placement_shard(3)},
            {partial, partial},         {dt_placement_shard(2), partial},
        };
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            lie(0, bad[i][0], bad[i][1]);
            cr_assert_not(verifies(), "case %zu", i);
        }
        start(1, three, backward, false);
        lie(0, dt_placement_shard(1), dt_placement_shard(1)); /* heads 2 2 0 with keys 1 1 0 */
        cr_assert(verifies(), "%s", t.err.text);
        dt_placement_t torn = dt_placement_shard(1);
        torn.unit = 3;
        lie(0, torn, dt_placement_shard(1));
        cr_assert_not(verifies());
    }
}

Test(shard_attend, whole_keys_give_each_device_its_share_of_their_gradient)
{
    static const uint32_t two[] = {2};
    start(1, two, false, true);
    lie(0, dt_placement_shard(2), dt_placement_replicate());
    cr_assert(verifies(), "%s", t.err.text);
    start(1, two, true, true);
    lie(0, dt_placement_shard(2), dt_placement_replicate());
    cr_assert_not(verifies());
    for (unsigned i = 1; i < 3; i++)
        t.inputs[i].layout.placements[0] = t.outputs[i].layout.placements[0] =
            dt_placement_partial(DT_REDUCTION_SUM);
    cr_assert(verifies(), "%s", t.err.text);
}

/* Rows of a tensor in the local program: of an input, or of a slice of it. */
static int64_t rows(const dt_shard_local_t *local, dt_value_t arg)
{
    if (arg.id < DT_SHARD_TEMP)
        return local->inputs[arg.id - 1].sizes[2];
    const dt_shard_op_t *slice = &local->ops[(arg.id - DT_SHARD_TEMP) / 16];
    cr_assert_str_eq(slice->name, "aten::slice.Tensor");
    return slice->args[3].number - slice->args[2].number;
}

/* What a device computes in a step of the ring: pairs of a query and a key, twice. */
static int64_t work(uint32_t index)
{
    bool is_backward = t.signature.output_count == 3;
    dt_shard_local_t local;
    dt_arena_t arena;
    int64_t sum = 0;
    dt_arena_init(&arena, 1u << 20);
    cr_assert_eq(dt_shard_localize(t.rules, &t.signature, &t.mesh, index, &arena, &local, &t.err),
                 DT_OK, "%s", t.err.text);
    cr_assert(local.is_written);
    for (uint32_t i = 0; i < (local.is_run ? local.op_count : 0); i++) {
        const dt_shard_op_t *op = &local.ops[i];
        if (!strstr(op->name, "flash_attention"))
            continue;
        const dt_value_t *q = &op->args[is_backward ? 1 : 0];
        int64_t queries = rows(&local, q[0]), keys = rows(&local, q[1]);
        bool is_triangle = op->args[is_backward ? 7 : 4].tag == DT_VALUE_TRUE;
        cr_assert(!is_triangle || queries == keys);
        sum += is_triangle ? queries * (queries + 1) : 2 * queries * keys;
    }
    dt_arena_fini(&arena);
    return sum;
}

Test(shard_attend, folded_devices_have_the_same_work_in_every_step_and_all_of_it_is_done)
{
    static const uint32_t counts[] = {2, 3, 4};
    for (unsigned c = 0; c < 3; c++)
        for (unsigned folded = 0; folded < 2; folded++)
            for (unsigned backward = 0; backward < 2; backward++) {
                int64_t all = 0, fold = folded ? DT_ORDER_FOLDED : 0;
                start(1, &counts[c], backward, true);
                for (uint32_t turn = 0; turn < counts[c]; turn++) {
                    lie(0, ordered((unsigned)fold), ordered((unsigned)fold | turn));
                    cr_assert(verifies(), "%s", t.err.text);
                    for (uint32_t i = 0; i < counts[c]; i++) {
                        all += work(i);
                        cr_assert(!folded || work(i) == work(0));
                    }
                }
                cr_assert_eq(all, SEQUENCE * (SEQUENCE + 1));
            }
}

Test(shard_attend, boxes_that_overlap_are_cut_at_each_other_s_borders)
{
    static const uint32_t three[] = {3};
    int64_t all = 0;
    start(1, three, false, true);
    dt_placement_t queries = dt_placement_shard(2);
    queries.unit = 5; /* borders at 10, 20 beside 8, 16 */
    for (uint32_t turn = 0; turn < 3; turn++) {
        lie(0, queries, ordered(turn));
        cr_assert(verifies(), "%s", t.err.text);
        for (uint32_t i = 0; i < 3; i++)
            all += work(i);
    }
    cr_assert_eq(all, SEQUENCE * (SEQUENCE + 1));
}
