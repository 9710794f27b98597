/* usage: golden FILE | golden --ask
 * Runs conformance cases of placement rules through lib/shard. A line: overload, call, mesh size,
 * kind of sizes, legal rows, inputs that must be redistributed; separated by tabs. The call is
 * JSON: `in` and `out`: a shape for each tensor argument or result, null if absent, a list of
 * shapes for a list; `k`: dtype kinds (f i b c) of all inputs ">" results; `a`: attributes that
 * rules look at. A legal row's inputs must give exactly its outputs with nothing moved, and the
 * signature must verify. Illegal inputs must be moved, to layouts that verify. Prints what fails,
 * and "rules: N passed, N failed". With --ask it answers questions, see ask.c. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

/* ---- a case ---- */

/* "S0,R,Psum" up to a blank or >; results without a tensor are passed over. Returns the end. */
static const char *placements(const char *at, dt_signature_tensor_t *to, uint32_t count)
{
    static const char *const reductions[] = {"sum", "avg", "max", "min"};
    for (uint32_t i = 0; i < count; i++) {
        to[i].layout = dt_layout_replicate(1, 1);
        if (to[i].alias == DT_ALIAS_NONE)
            continue;
        size_t size = strcspn(at, ", >\n");
        if (*at == 'S')
            to[i].layout.placements[0] = dt_placement_shard((unsigned)strtoul(at + 1, NULL, 10));
        for (unsigned r = 0; *at == 'P' && r < 4; r++)
            if (strncmp(at + 1, reductions[r], 3) == 0)
                to[i].layout.placements[0] = dt_placement_partial(r);
        at += size;
        at += *at == ',';
    }
    return at;
}

typedef struct judge {
    const dt_shard_rules_t *rules;
    dt_shard_mesh_t mesh;
    call_t call;
    dt_shard_answer_t answer;
    dt_layout_t inputs[CALL_TENSOR_MAX], outputs[CALL_TENSOR_MAX];
    dt_error_t err;
} judge_t;

static bool ask(judge_t *j)
{
    static const dt_shard_policy_t policy = {.flags = DT_SHARD_PLAIN};
    j->answer = (dt_shard_answer_t){.inputs = j->inputs, .outputs = j->outputs};
    j->err.text[0] = '\0';
    return dt_shard_propagate(j->rules, &j->call.signature, &j->mesh, 1, &policy, &j->answer,
                              &j->err) == DT_OK;
}

static bool is_legal(judge_t *j)
{
    if (!ask(j) || j->answer.moved_count != 0)
        return false;
    for (uint32_t k = 0; k < j->call.signature.output_count; k++)
        if (!dt_layout_equal(&j->outputs[k], &j->call.outputs[k].layout))
            return false;
    return dt_shard_verify(j->rules, &j->call.signature, &j->mesh, &j->err) == DT_OK;
}

static bool is_moved(judge_t *j)
{
    if (!ask(j) || j->answer.moved_count == 0)
        return false;
    for (uint32_t k = 0; k < j->call.signature.input_count; k++)
        j->call.inputs[k].layout = j->inputs[k];
    for (uint32_t k = 0; k < j->call.signature.output_count; k++)
        j->call.outputs[k].layout = j->outputs[k];
    return dt_shard_verify(j->rules, &j->call.signature, &j->mesh, &j->err) == DT_OK;
}

static int run_case(judge_t *j, char *const fields[6])
{
    const uint32_t size = (uint32_t)strtoul(fields[2], NULL, 10);
    int failed = 0;
    call_build(&j->call, j->rules, fields[0], fields[1]);
    dt_check(dt_shard_mesh_init(&j->mesh, 1, &size, NULL, NULL) == DT_OK);
    for (const char *at = fields[4]; *at && *at != '-'; at += strspn(at, " \n")) {
        const char *row = at;
        at = placements(at, j->call.inputs, j->call.signature.input_count);
        at += *at == '>';
        at = placements(at, j->call.outputs, j->call.signature.output_count);
        if (is_legal(j))
            continue;
        failed++;
        printf("FAIL %s %s mesh %s: legal %.*s: %s\n", fields[0], fields[1], fields[2],
               (int)(at - row), row, j->err.text[0] ? j->err.text : "other layouts come out");
    }
    for (const char *at = fields[5]; *at && *at != '-' && *at != '\n'; at += strspn(at, " ")) {
        const char *row = at;
        at = placements(at, j->call.inputs, j->call.signature.input_count);
        (void)placements("", j->call.outputs, j->call.signature.output_count);
        if (is_moved(j))
            continue;
        failed++;
        printf("FAIL %s %s mesh %s: illegal %.*s: %s\n", fields[0], fields[1], fields[2],
               (int)(at - row), row, j->err.text[0] ? j->err.text : "nothing moved");
    }
    return failed;
}

static bool split(char *line, char *fields[6])
{
    for (int i = 0; i < 6; i++) {
        fields[i] = line;
        line = i < 5 ? strchr(line, '\t') : line;
        if (!line)
            return false;
        if (i < 5)
            *line++ = '\0';
    }
    return true;
}

int main(int argc, char **argv)
{
    static judge_t judge;
    static char line[1 << 16];
    dt_shard_rules_t *rules;
    dt_error_t err = {0};
    char *fields[6];
    int passed = 0, failed = 0;
    if (dt_shard_rules_create(&rules, &err) != DT_OK) {
        fprintf(stderr, "golden: %s\n", err.text);
        return 1;
    }
    if (argc == 2 && strcmp(argv[1], "--ask") == 0)
        return ask_all(rules);
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!file) {
        fprintf(stderr, "usage: golden FILE, which can be read; or golden --ask\n");
        return 2;
    }
    judge.rules = rules;
    while (fgets(line, sizeof line, file)) {
        if (*line == '#' || *line == '\n')
            continue;
        if (!split(line, fields)) {
            printf("FAIL a line without 6 fields: %.60s\n", line);
            failed++;
            continue;
        }
        int bad = run_case(&judge, fields);
        *(bad ? &failed : &passed) += 1;
    }
    (void)fclose(file);
    dt_shard_rules_free(rules);
    printf("rules: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
