/* What it costs to propagate placements of an operator that was not seen before (a plan cache's
 * miss), on a mesh of 2x2: `make bench ONLY=propagate_miss_us`. The mean over the operators of a
 * transformer layer, in time of the processor; one JSON line, as tests/bench/stream.c prints them.
 * Exit status 3: the key was not asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shard/rules.h"

#define KEY        "propagate_miss_us"
#define RUNS       9
#define ROUNDS     2000
#define TENSOR_MAX 8
#define SHAPE_MAX  4

typedef struct shape {
    unsigned ndim;
    int64_t sizes[SHAPE_MAX];
    int8_t shards[2]; /* on each mesh dimension: the tensor's, -1: Replicate, -2: Partial(sum) */
} shape_t;

static const struct {
    const char *name;
    unsigned input_count, output_count;
    shape_t tensors[TENSOR_MAX]; /* inputs, then outputs */
    unsigned int_count;
    int64_t ints[SHAPE_MAX]; /* a list behind the inputs */
} calls[] = {
    {"aten::add.Tensor",
     2,
     1,
     {{3, {8, 512, 256}, {0, -2}}, {3, {8, 512, 256}, {0, 1}}, {3, {8, 512, 256}, {-1, -1}}},
     0,
     {0}},
    {"aten::linear",
     2,
     1,
     {{3, {8, 512, 256}, {0, 1}}, {2, {768, 256}, {-1, 0}}, {3, {8, 512, 768}, {-1, -1}}},
     0,
     {0}},
    {"aten::mm",
     2,
     1,
     {{2, {4096, 256}, {0, 1}}, {2, {256, 768}, {-1, 0}}, {2, {4096, 768}, {0}}},
     0,
     {0}},
    {"aten::view",
     1,
     1,
     {{3, {8, 512, 256}, {0, 2}}, {4, {8, 512, 8, 32}, {-1, -1}}},
     4,
     {8, 512, 8, 32}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu",
     3,
     2,
     {{4, {8, 8, 512, 32}, {0, 1}},
      {4, {8, 4, 512, 32}, {0, 1}},
      {4, {8, 4, 512, 32}, {0, 1}},
      {4, {8, 8, 512, 32}, {-1, -1}},
      {3, {8, 8, 512}, {-1, -1}}},
     0,
     {0}},
    {"aten::silu", 1, 1, {{3, {8, 512, 768}, {0, 2}}, {3, {8, 512, 768}, {-1, -1}}}, 0, {0}},
};
#define CALL_COUNT (sizeof calls / sizeof calls[0])

typedef struct call {
    dt_signature_t signature;
    dt_signature_tensor_t tensors[TENSOR_MAX];
    dt_value_t args[TENSOR_MAX];
} call_t;

static void build(call_t *c, unsigned which)
{
    dt_signature_t *s = &c->signature;
    memset(c, 0, sizeof *c);
    s->name = calls[which].name;
    s->input_count = s->arg_count = calls[which].input_count;
    s->output_count = calls[which].output_count;
    s->args = c->args;
    s->inputs = c->tensors;
    s->outputs = c->tensors + s->input_count;
    for (unsigned i = 0; i < s->input_count + s->output_count; i++) {
        const shape_t *shape = &calls[which].tensors[i];
        dt_check(dt_meta_set(&c->tensors[i].meta, DT_DTYPE_F32, shape->ndim, shape->sizes, NULL, 0,
                             NULL) == DT_OK);
        c->tensors[i].layout = dt_layout_replicate(1, 2);
        for (unsigned j = 0; j < 2 && i < s->input_count; j++)
            if (shape->shards[j] != -1)
                c->tensors[i].layout.placements[j] =
                    shape->shards[j] == -2 ? dt_placement_partial(DT_REDUCTION_SUM)
                                           : dt_placement_shard((unsigned)shape->shards[j]);
        c->args[i].tag = DT_VALUE_TENSOR;
    }
    if (calls[which].int_count)
        c->args[s->arg_count++] = (dt_value_t){
            .tag = DT_VALUE_INTS, .count = calls[which].int_count, .ints = calls[which].ints};
}

static double now_us(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double run(const dt_shard_rules_t *rules, const call_t *built, const dt_shard_mesh_t *mesh)
{
    static const dt_shard_policy_t policy = {.flags = DT_SHARD_AUTO};
    dt_layout_t inputs[TENSOR_MAX], outputs[TENSOR_MAX];
    dt_shard_answer_t answer = {.inputs = inputs, .outputs = outputs};
    double begin = now_us();
    for (unsigned k = 0; k < ROUNDS; k++)
        for (unsigned i = 0; i < CALL_COUNT; i++)
            dt_check(dt_shard_propagate(rules, &built[i].signature, mesh, 1, &policy, &answer,
                                        NULL) == DT_OK);
    return (now_us() - begin) / (ROUNDS * CALL_COUNT);
}

int main(int argc, char **argv)
{
    static call_t built[CALL_COUNT];
    static const uint32_t sizes[] = {2, 2};
    double us[RUNS];
    dt_shard_rules_t *rules;
    dt_shard_mesh_t mesh;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], KEY) == 0)
            argc = 1;
    if (argc > 1)
        return 3;
    dt_check(dt_shard_rules_create(&rules, NULL) == DT_OK);
    dt_check(dt_shard_mesh_init(&mesh, 2, sizes, NULL, NULL) == DT_OK);
    for (unsigned i = 0; i < CALL_COUNT; i++)
        build(&built[i], i);
    for (int i = 0; i < RUNS; i++)
        us[i] = run(rules, built, &mesh);
    qsort(us, RUNS, sizeof us[0], by_value);
    (void)printf("{\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"us\",\"better\":\"lower\","
                 "\"peer\":\"\",\"peer_value\":0,\"goal\":20,\"runs\":%d,\"spread\":%.3g}\n",
                 KEY, us[RUNS / 2], RUNS, us[RUNS * 3 / 4] - us[RUNS / 4]);
    dt_shard_rules_free(rules);
    return 0;
}
