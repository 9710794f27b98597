/* Questions of tests/python/placement.py, a line each: overload, call (JSON), mesh ("2x3"), and for
 * each tensor input a placement a mesh dimension, joined by ";" ("S0;R", "S1/8*3" is unit 8 and 3
 * groups, "S1@2/9" is rows 2.. of 9, "Psum"), inputs apart by blanks. Separated by tabs. The answer
 * is a line of JSON:
 *   {"moved": n, "price": bytes, "in": ["S0;R", ...], "out": [...], "local": [device, ...]}
 * where a device is {"run": true, "ops": [{"name": ..., "args": [...]}]} or
 * {"run": false, "fill": [...]}; an argument is {"t": id} a tensor, {"ts": [ids]}, {"same": i}
 * argument i as the program gave it, null, true, false, a number, or a list of integers. `local` is
 * there if nothing moved. Errors: {"error": text}. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

static dt_placement_t placement(const char **at)
{
    static const char *const reductions[] = {"sum", "avg", "max", "min"};
    dt_placement_t p = dt_placement_replicate();
    char *end = NULL;
    if (**at == 'S') {
        p = dt_placement_shard((unsigned)strtoul(*at + 1, &end, 10));
        if (*end == '/')
            p.unit = (uint32_t)strtoul(end + 1, &end, 10);
        if (*end == '*')
            p.groups = (uint32_t)strtoul(end + 1, &end, 10);
        if (*end == '@') {
            p.order = DT_ORDER_WINDOW;
            p.groups = (uint32_t)strtoul(end + 1, &end, 10) + 1;
            p.unit = *end == '/' ? (uint32_t)strtoul(end + 1, &end, 10) : 0;
        }
        *at = end;
        return p;
    }
    for (unsigned r = 0; **at == 'P' && r < 4; r++)
        if (strncmp(*at + 1, reductions[r], 3) == 0)
            p = dt_placement_partial(r);
    *at += **at == 'P' ? 4 : 1;
    return p;
}

static void print_layout(const dt_layout_t *layout)
{
    static const char *const reductions[] = {"sum", "avg", "max", "min"};
    printf("\"");
    for (unsigned j = 0; j < layout->ndim; j++) {
        dt_placement_t p = layout->placements[j];
        printf("%s", j ? ";" : "");
        if (p.kind == DT_PLACEMENT_REPLICATE)
            printf("R");
        else if (p.kind == DT_PLACEMENT_PARTIAL)
            printf("P%s", reductions[p.reduction]);
        else if (dt_placement_is_window(p))
            printf("S%u@%" PRIu32 "/%" PRIu32, p.dim, p.groups - 1, p.unit);
        else
            printf("S%u/%" PRIu32 "*%" PRIu32, p.dim, p.unit, p.groups);
    }
    printf("\"");
}

static void print_layouts(const char *key, const dt_layout_t *layouts, uint32_t count)
{
    printf(", \"%s\": [", key);
    for (uint32_t i = 0; i < count; i++) {
        printf("%s", i ? ", " : "");
        print_layout(&layouts[i]);
    }
    printf("]");
}

static void print_arg(const dt_value_t *arg, uint32_t i)
{
    switch (arg->tag) {
    case DT_VALUE_NONE:
        printf("null");
        return;
    case DT_VALUE_TRUE:
    case DT_VALUE_FALSE:
        printf("%s", arg->tag == DT_VALUE_TRUE ? "true" : "false");
        return;
    case DT_VALUE_INT:
        printf("%" PRId64, arg->number);
        return;
    case DT_VALUE_DOUBLE:
        printf("{\"f\": \"%.17g\"}", arg->real);
        return;
    case DT_VALUE_DTYPE:
        printf("{\"dtype\": \"%s\"}", dt_dtype_name((unsigned)arg->number));
        return;
    case DT_VALUE_TENSOR:
        printf("{\"t\": %" PRIu64 "}", arg->id);
        return;
    case DT_VALUE_INTS:
    case DT_VALUE_TENSORS:
        printf("%s[", arg->tag == DT_VALUE_TENSORS ? "{\"ts\": " : "");
        for (uint32_t k = 0; k < arg->count; k++)
            printf("%s%" PRId64, k ? ", " : "",
                   arg->tag == DT_VALUE_INTS ? arg->ints[k] : (int64_t)arg->ids[k]);
        printf("%s", arg->tag == DT_VALUE_TENSORS ? "]}" : "]");
        return;
    default:
        printf("{\"same\": %" PRIu32 "}", i);
    }
}

static void print_local(const dt_shard_local_t *local, uint32_t output_count)
{
    printf("{\"run\": %s", local->is_run ? "true, \"ops\": [" : "false, \"fill\": [");
    for (uint32_t j = 0; j < output_count && !local->is_run; j++)
        printf("%s%u", j ? ", " : "", local->fills[j]);
    for (uint32_t k = 0; k < local->op_count && local->is_run; k++) {
        printf("%s{\"name\": \"%s\", \"args\": [", k ? ", " : "", local->ops[k].name);
        for (uint32_t i = 0; i < local->ops[k].arg_count; i++) {
            printf("%s", i ? ", " : "");
            print_arg(&local->ops[k].args[i], i);
        }
        printf("]}");
    }
    printf("]}");
}

typedef struct question {
    dt_shard_mesh_t mesh;
    call_t call;
    dt_layout_t inputs[CALL_TENSOR_MAX], outputs[CALL_TENSOR_MAX];
    dt_error_t err;
} question_t;

static bool answer_local(const dt_shard_rules_t *rules, question_t *q)
{
    dt_signature_t *s = &q->call.signature;
    dt_arena_t arena;
    for (uint32_t j = 0; j < s->output_count; j++)
        q->call.outputs[j].layout = q->outputs[j];
    if (dt_shard_verify(rules, s, &q->mesh, &q->err) != DT_OK)
        return false;
    printf(", \"local\": [");
    dt_arena_init(&arena, 1u << 20);
    for (uint32_t i = 0; i < q->mesh.count; i++) {
        dt_shard_local_t local;
        if (dt_shard_localize(rules, s, &q->mesh, i, &arena, &local, &q->err) != DT_OK)
            break;
        printf("%s", i ? ", " : "");
        print_local(&local, s->output_count);
    }
    printf("]");
    dt_arena_fini(&arena);
    return q->err.text[0] == '\0';
}

static void answer(const dt_shard_rules_t *rules, char *const fields[4])
{
    static question_t q;
    dt_shard_policy_t policy = {.flags = 0};
    dt_layout_t wanted;
    uint32_t sizes[DT_RECORD_MESH_DIM_MAX], ndim = 0;
    char *at = fields[2];
    memset(&q.err, 0, sizeof q.err);
    do {
        sizes[ndim++] = (uint32_t)strtoul(at, &at, 10);
    } while (*at++ == 'x' && ndim < DT_RECORD_MESH_DIM_MAX);
    dt_check(dt_shard_mesh_init(&q.mesh, ndim, sizes, NULL, NULL) == DT_OK);
    call_build(&q.call, rules, fields[0], fields[1]);
    const char *text = fields[3];
    for (uint32_t i = 0; i < q.call.signature.input_count; i++, text += *text == ' ') {
        q.call.inputs[i].layout = dt_layout_replicate(1, ndim);
        for (uint32_t j = 0; j < ndim; j++, text += *text == ';')
            q.call.inputs[i].layout.placements[j] = placement(&text);
    }
    if (*text) {
        wanted = dt_layout_replicate(1, ndim);
        for (uint32_t j = 0; j < ndim; j++, text += *text == ';')
            wanted.placements[j] = placement(&text);
        policy.wanted = &wanted;
    }
    dt_shard_answer_t answer = {.inputs = q.inputs, .outputs = q.outputs};
    printf("{");
    if (dt_shard_propagate(rules, &q.call.signature, &q.mesh, 1, &policy, &answer, &q.err) ==
        DT_OK) {
        printf("\"moved\": %" PRIu32 ", \"price\": %" PRId64, answer.moved_count,
               answer.price_bytes);
        print_layouts("in", q.inputs, q.call.signature.input_count);
        print_layouts("out", q.outputs, q.call.signature.output_count);
        if (answer.moved_count == 0 && !answer_local(rules, &q))
            printf(", \"error\": \"%s\"", q.err.text);
    } else {
        printf("\"error\": \"%s\"", q.err.text);
    }
    printf("}\n");
    (void)fflush(stdout);
}

int ask_all(const dt_shard_rules_t *rules)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        char *fields[4] = {line}, *save = NULL;
        line[strcspn(line, "\n")] = '\0';
        for (int i = 0; i < 4; i++)
            fields[i] = strtok_r(i ? NULL : line, "\t", &save);
        if (!fields[2]) {
            fprintf(stderr, "golden: a question of too few fields\n");
            return 2;
        }
        static char none[1];
        fields[3] = fields[3] ? fields[3] : none;
        answer(rules, fields);
    }
    return 0;
}
