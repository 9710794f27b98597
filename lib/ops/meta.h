/* Metadata of results by rule, for operators without a Meta kernel.
 *
 * lib/ops/meta.def has a line an overload: its results' metadata through *other* ATen operators on
 * Meta, or from its inputs' sizes. The evaluator knows no LibTorch: who uses it brings a function
 * that asks a Meta kernel. The engine's metadata thread brings its backend's op_infer; a program
 * with PyTorch in its process brings the kernels there. The order of answers is everybody's: Meta
 * kernel, rule, execution; and whoever executes an operator for the first time compares.
 *
 * A rule answers exactly or refuses (AGAIN): it never invents an error. Where the operator that it
 * asks raises one, the real operator is left to raise its own.
 *
 * Limits: DT_OPS_RESULT_MAX results; the bounds of meta.c for the rules themselves,
 * checked when they are read. Nothing recursive without bound, no allocation while answering, about
 * 60 KiB of stack. Threads: a dt_ops_rules_t is constant after it was made; any number may use it.
 *
 * For C++: include it inside extern "C". */
#ifndef DT_OPS_META_H
#define DT_OPS_META_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/meta.h"
#include "tensor/value.h"

#define DT_OPS_RESULT_MAX 8u /* of a rule, and of an operator that it asks */

/* One result. */
typedef struct dt_ops_output {
    uint8_t alias;  /* dt_alias_t */
    uint32_t input; /* VIEW, IN_PLACE: which tensor input */
    dt_meta_t meta; /* but for NONE */
} dt_ops_output_t;

typedef struct dt_ops_answer {
    uint32_t count; /* results, in schema order, lists flattened */
    dt_ops_output_t outputs[DT_OPS_RESULT_MAX];
} dt_ops_answer_t;

/* An operator and what it is called with. The k-th tensor among `args` (lists flattened, None left
 * out: ids of TENSORS are 1 and 0) has metadata inputs[k]; the handles themselves mean nothing. */
typedef struct dt_ops_question {
    const char *name;       /* "aten::where.self" */
    const dt_value_t *args; /* (arg_count), in the schema's order; left out at the end: defaults */
    uint32_t arg_count;
    uint32_t input_count;
    const dt_meta_t *inputs; /* (input_count) */
} dt_ops_question_t;

/* Who answers for other operators. */
typedef struct dt_ops_asker {
    /* Ask LibTorch's Meta kernel of question->name, and nothing else: no rule, no execution.
     * Arguments are TENSOR, NONE, numbers, INTS, DTYPE and what the first question brought. A
     * number may stand where the schema has a tensor: it is a wrapped number then.
     * Ownership: borrows all; fills *ret_answer. Errors: any; `err` comes empty. AGAIN, NOT_FOUND:
     * there is no such kernel. LIMIT: more than DT_OPS_RESULT_MAX results. All of them make the
     * rule refuse, but NOMEM. */
    dt_status_t (*ask)(void *arg, const dt_ops_question_t *question, dt_ops_answer_t *ret_answer,
                       dt_error_t *err);
    void *arg;
    const char *kind; /* of the device that would execute: "cpu", "cuda"; most rules hold on the CPU
                         only */
} dt_ops_asker_t;

typedef struct dt_ops_rules dt_ops_rules_t;

/* Read the rules that are built in (meta.def). Cost: about 0.2 ms, once.
 * Ownership: gives *ret_rules, dt_ops_rules_free(). Errors: NOMEM; INVALID is a bug of meta.def,
 * which the unit tests find, and the text names its line. */
DT_MUST_USE dt_status_t dt_ops_rules_create(dt_ops_rules_t **ret_rules, dt_error_t *err);
void dt_ops_rules_free(dt_ops_rules_t *rules); /* NULL is fine */

/* Whether there is a rule for an overload at all; another kind of device may still make it refuse.
 * `rules` NULL: there is none. */
bool dt_ops_rules_has(const dt_ops_rules_t *rules, const char *name);
/* Whether the rule goes before the Meta kernel, because that is wrong for some arguments. Where
 * such a rule refuses, the operator is executed: its Meta kernel is not asked. */
bool dt_ops_rules_is_first(const dt_ops_rules_t *rules, const char *name);
uint32_t dt_ops_rules_count(const dt_ops_rules_t *rules); /* of overloads */
/* The i-th overload, in alphabetical order; NULL behind the last. */
const char *dt_ops_rules_name(const dt_ops_rules_t *rules, uint32_t i);

/* Answer by rule. Results are FRESH, VIEW, IN_PLACE or NONE as the real ones would be.
 * Ownership: borrows all; fills *ret_answer. Errors: AGAIN (no rule, or it does not hold for these
 * arguments; the text says which), NOMEM (from `ask`). Blocking: as asker->ask, which is called a
 * few times. */
DT_MUST_USE dt_status_t dt_ops_rules_answer(const dt_ops_rules_t *rules,
                                            const dt_ops_asker_t *asker,
                                            const dt_ops_question_t *question,
                                            dt_ops_answer_t *ret_answer, dt_error_t *err);

#endif
