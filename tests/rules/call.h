/* Calls as conformance vectors write them: JSON with `in` and `out` (a shape for each tensor
 * argument or result, null if absent, a list of shapes for a list), `k` (dtype kinds f i b c of all
 * inputs
 * ">" results) and `a` (attributes that rules look at, by name). */
#ifndef DT_TESTS_CALL_H
#define DT_TESTS_CALL_H
#include "shard/rules_internal.h"

#define CALL_TENSOR_MAX 64
#define CALL_ARG_MAX    32

typedef struct call {
    dt_signature_t signature;
    dt_signature_tensor_t inputs[CALL_TENSOR_MAX], outputs[CALL_TENSOR_MAX];
    dt_value_t args[CALL_ARG_MAX];
    int64_t ints[CALL_ARG_MAX][CALL_TENSOR_MAX];
    uint64_t ids[CALL_ARG_MAX][CALL_TENSOR_MAX];
    const char *kinds;
} call_t;

/* Fill `c`; attributes that are not in the text are DEFAULT. Ends the program on bad JSON. */
void call_build(call_t *c, const dt_shard_rules_t *rules, const char *name, const char *text);

/* ask.c: answer questions from standard input; see there. Returns the exit code. */
int ask_all(const dt_shard_rules_t *rules);

#endif
