/* Answering by rule: a walk over the nodes of one rule. Depth and sizes are bounded by the reader,
 * so the walk is. */
#include <stdlib.h>
#include <string.h>

#include "ops/meta_internal.h"

typedef struct walk {
    const dt_ops_rules_t *rules;
    const dt_ops_rule_t *rule;
    const dt_ops_asker_t *asker;
    const dt_ops_question_t *question;
    uint32_t first_input[DT_OPS_PARAM_MAX]; /* of each argument, among the question's inputs */
    dt_status_t status;                     /* AGAIN, or NOMEM from the asker */
    dt_error_t *err;
} walk_t;

static bool evaluate(walk_t *w, uint32_t at, dt_ops_value_t *ret_value);

static bool refuse(walk_t *w, const char *what, const char *why)
{
    if (w->status == DT_OK) {
        w->status = DT_ERR_AGAIN;
        (void)dt_fail(w->err, DT_ERR_AGAIN, "dt", w->rule->line,
                      "%s: the rule of meta.def:%d does not hold: %s%s%.200s", w->question->name,
                      w->rule->line, what, *what ? ": " : "", why);
    }
    return false;
}

/* ---- arguments ---- */

static void tensor_param(const walk_t *w, uint32_t input, dt_ops_value_t *to)
{
    to->kind = DT_OPS_VALUE_TENSOR;
    to->alias = DT_ALIAS_IN_PLACE;
    to->input = input;
    to->meta = w->question->inputs[input];
}

static bool param(walk_t *w, uint32_t i, dt_ops_value_t *to)
{
    const dt_value_t *given = i < w->question->arg_count ? &w->question->args[i] : NULL;
    if (!given || given->tag == DT_VALUE_DEFAULT)
        return w->rule->defaults[i] >= 0 ? evaluate(w, (uint32_t)w->rule->defaults[i], to)
                                         : refuse(w, "", "an argument without default is left out");
    to->number = given->number;
    switch (given->tag) {
    case DT_VALUE_NONE:
        to->kind = DT_OPS_VALUE_NONE;
        return true;
    case DT_VALUE_TRUE:
    case DT_VALUE_FALSE:
        to->kind = DT_OPS_VALUE_BOOL;
        to->number = given->tag == DT_VALUE_TRUE;
        return true;
    case DT_VALUE_INT:
        to->kind = DT_OPS_VALUE_INT;
        return true;
    case DT_VALUE_DTYPE:
        to->kind = DT_OPS_VALUE_DTYPE;
        return true;
    case DT_VALUE_TENSOR:
        tensor_param(w, w->first_input[i], to);
        return true;
    case DT_VALUE_INTS:
        if (given->count > DT_OPS_INTS_MAX)
            return refuse(w, "", "a list that is too long");
        to->kind = DT_OPS_VALUE_INTS;
        to->count = given->count;
        memcpy(to->ints, given->ints, given->count * sizeof to->ints[0]);
        return true;
    case DT_VALUE_BOOLS:
        if (given->count > DT_OPS_INTS_MAX)
            return refuse(w, "", "a list that is too long");
        to->kind = DT_OPS_VALUE_INTS;
        to->count = given->count;
        for (uint32_t k = 0; k < given->count; k++)
            to->ints[k] = given->bools[k] != 0;
        return true;
    case DT_VALUE_TENSORS:
    case DT_VALUE_STORAGE:
        return refuse(w, "", "a list of tensors, or a storage");
    default:
        to->kind = DT_OPS_VALUE_RAW;
        to->raw = given;
        return true;
    }
}

/* Where each argument's tensors begin among the inputs. False: they are not as the question says.
 */
static bool count_inputs(walk_t *w)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < w->question->arg_count; i++) {
        const dt_value_t *arg = &w->question->args[i];
        if (i < DT_OPS_PARAM_MAX)
            w->first_input[i] = (uint32_t)next;
        if (arg->tag == DT_VALUE_TENSOR || arg->tag == DT_VALUE_STORAGE)
            next++;
        for (uint32_t k = 0; arg->tag == DT_VALUE_TENSORS && k < arg->count; k++)
            next += arg->ids[k] != 0;
    }
    return next == w->question->input_count;
}

/* ---- asking another operator ---- */

typedef struct inner {
    dt_value_t args[DT_OPS_CHILD_MAX];
    dt_meta_t inputs[DT_OPS_CHILD_MAX];
    dt_ops_value_t tensors[DT_OPS_CHILD_MAX]; /* what the inputs are, for aliases of aliases */
    int64_t ints[DT_OPS_CHILD_MAX][DT_OPS_INTS_MAX];
    dt_ops_question_t question;
    dt_ops_answer_t answer;
} inner_t;

static bool pass(walk_t *w, inner_t *inner, uint32_t i, const dt_ops_value_t *value)
{
    dt_value_t *arg = &inner->args[i];
    arg->number = value->number;
    switch (value->kind) {
    case DT_OPS_VALUE_NONE:
        arg->tag = DT_VALUE_NONE;
        return true;
    case DT_OPS_VALUE_BOOL:
        arg->tag = value->number ? DT_VALUE_TRUE : DT_VALUE_FALSE;
        return true;
    case DT_OPS_VALUE_INT:
        arg->tag = DT_VALUE_INT;
        return true;
    case DT_OPS_VALUE_DTYPE:
        arg->tag = DT_VALUE_DTYPE;
        return true;
    case DT_OPS_VALUE_INTS:
        memcpy(inner->ints[i], value->ints, value->count * sizeof value->ints[0]);
        arg->tag = DT_VALUE_INTS;
        arg->count = value->count;
        arg->ints = inner->ints[i];
        return true;
    case DT_OPS_VALUE_TENSOR:
        arg->tag = DT_VALUE_TENSOR;
        inner->tensors[inner->question.input_count] = *value;
        inner->inputs[inner->question.input_count++] = value->meta;
        return true;
    case DT_OPS_VALUE_RAW:
        *arg = *value->raw;
        return true;
    default:
        return refuse(w, inner->question.name, "an undefined tensor is passed on");
    }
}

/* An output of the inner operator, told as the outer one's. */
static bool take_output(walk_t *w, const inner_t *inner, const dt_ops_output_t *output,
                        dt_ops_value_t *to)
{
    bool is_alias = output->alias == DT_ALIAS_VIEW || output->alias == DT_ALIAS_IN_PLACE;
    const dt_ops_value_t *of = is_alias && output->input < inner->question.input_count
                                   ? &inner->tensors[output->input]
                                   : NULL;
    if (output->alias == DT_ALIAS_NONE) {
        to->kind = DT_OPS_VALUE_UNDEFINED;
        return true;
    }
    if (is_alias && !of)
        return refuse(w, inner->question.name, "an alias of an input that there is not");
    to->kind = DT_OPS_VALUE_TENSOR;
    to->meta = output->meta;
    to->alias = DT_ALIAS_FRESH;
    if (of && of->alias != DT_ALIAS_FRESH) {
        bool is_same = output->alias == DT_ALIAS_IN_PLACE && of->alias == DT_ALIAS_IN_PLACE;
        to->alias = is_same ? DT_ALIAS_IN_PLACE : DT_ALIAS_VIEW;
        to->input = of->input;
    }
    return true;
}

static bool ask_inner(walk_t *w, const dt_ops_node_t *node, inner_t *inner, dt_ops_value_t *to)
{
    dt_error_t err = {0};
    const uint16_t *children = &w->rules->children[node->children];
    for (uint32_t i = 0; i < node->child_count; i++) {
        dt_ops_value_t value = {.kind = DT_OPS_VALUE_NONE};
        if (!evaluate(w, children[i], &value) || !pass(w, inner, i, &value))
            return false;
    }
    dt_status_t status = w->asker->ask(w->asker->arg, &inner->question, &inner->answer, &err);
    if (status == DT_ERR_NOMEM) {
        w->status = dt_fail(w->err, status, "dt", 0, "%s: no memory", node->name);
        return false;
    }
    if (status != DT_OK)
        return refuse(w, node->name, err.text);
    if (node->number < 0 && inner->answer.count != 1)
        return refuse(w, node->name, "several results, and none is named");
    uint32_t which = node->number < 0 ? 0 : (uint32_t)node->number;
    if (which >= inner->answer.count || which >= DT_OPS_RESULT_MAX)
        return refuse(w, node->name, "there is no such result");
    return take_output(w, inner, &inner->answer.outputs[which], to);
}

/* Large, so not on the stack of each level. */
static bool ask(walk_t *w, const dt_ops_node_t *node, dt_ops_value_t *to)
{
    inner_t *inner = calloc(1, sizeof *inner);
    if (!inner) {
        w->status = dt_fail(w->err, DT_ERR_NOMEM, "dt", 0, "no memory for %s", node->name);
        return false;
    }
    inner->question.name = node->name;
    inner->question.args = inner->args;
    inner->question.arg_count = node->child_count;
    inner->question.inputs = inner->inputs;
    bool holds = ask_inner(w, node, inner, to);
    free(inner);
    return holds;
}

/* ---- nodes ---- */

static bool list(walk_t *w, const dt_ops_node_t *node, dt_ops_value_t *to)
{
    const uint16_t *children = &w->rules->children[node->children];
    dt_ops_value_t value = {.kind = DT_OPS_VALUE_NONE};
    to->kind = DT_OPS_VALUE_INTS;
    to->count = 0;
    for (uint32_t i = 0; i < node->child_count; i++) {
        const dt_ops_node_t *child = &w->rules->nodes[children[i]];
        bool is_splice = child->kind == DT_OPS_NODE_SPLICE;
        if (!evaluate(w, is_splice ? w->rules->children[child->children] : children[i], &value))
            return false;
        uint32_t count = is_splice ? value.count : 1;
        bool fits = is_splice ? value.kind == DT_OPS_VALUE_INTS : value.kind == DT_OPS_VALUE_INT;
        if (!fits || to->count + count > DT_OPS_INTS_MAX)
            return refuse(w, "", "a list of something else, or one that is too long");
        if (is_splice)
            memcpy(&to->ints[to->count], value.ints, count * sizeof value.ints[0]);
        else
            to->ints[to->count] = value.number;
        to->count += count;
    }
    return true;
}

static bool position(walk_t *w, const dt_ops_node_t *node, dt_ops_value_t *to)
{
    const uint16_t *children = &w->rules->children[node->children];
    dt_ops_value_t from = {.kind = DT_OPS_VALUE_NONE}, at = from;
    if (!evaluate(w, children[0], &from) || !evaluate(w, children[1], &at))
        return false;
    if (from.kind != DT_OPS_VALUE_INTS || at.kind != DT_OPS_VALUE_INT)
        return refuse(w, "", "an element of what is no list, or no integer for its place");
    int64_t k = at.number < 0 ? at.number + from.count : at.number;
    if (k < 0 || k >= from.count)
        return refuse(w, "", "an element that there is not");
    to->kind = DT_OPS_VALUE_INT;
    to->number = from.ints[k];
    return true;
}

/* CHOOSE, AND, OR: the second argument is looked at only where it counts. */
static bool choose(walk_t *w, const dt_ops_node_t *node, dt_ops_value_t *to)
{
    const uint16_t *children = &w->rules->children[node->children];
    dt_ops_value_t first = {.kind = DT_OPS_VALUE_NONE};
    if (!evaluate(w, children[0], &first))
        return false;
    if (first.kind != DT_OPS_VALUE_BOOL && first.kind != DT_OPS_VALUE_INT)
        return refuse(w, "", "expected a truth value");
    if (node->number == DT_OPS_BUILTIN_CHOOSE)
        return evaluate(w, children[first.number ? 1 : 2], to);
    if ((first.number != 0) != (node->number == DT_OPS_BUILTIN_AND)) {
        *to = first;
        return true;
    }
    return evaluate(w, children[1], to);
}

static bool builtin(walk_t *w, const dt_ops_node_t *node, dt_ops_value_t *to)
{
    const uint16_t *children = &w->rules->children[node->children];
    dt_ops_builtin_t which = (dt_ops_builtin_t)node->number;
    dt_ops_value_t args[4];
    const char *why = "";
    if (which == DT_OPS_BUILTIN_CHOOSE || which == DT_OPS_BUILTIN_AND || which == DT_OPS_BUILTIN_OR)
        return choose(w, node, to);
    for (uint32_t i = 0; i < node->child_count; i++)
        if (!evaluate(w, children[i], &args[i]))
            return false;
    return dt_ops_builtin_apply(which, args, node->child_count, to, &why) ||
           refuse(w, dt_ops_builtin_name(which), why);
}

static bool evaluate(walk_t *w, uint32_t at, dt_ops_value_t *ret_value)
{
    const dt_ops_node_t *node = &w->rules->nodes[at];
    ret_value->number = node->number;
    switch (node->kind) {
    case DT_OPS_NODE_NUMBER:
        ret_value->kind = DT_OPS_VALUE_INT;
        return true;
    case DT_OPS_NODE_TRUE:
    case DT_OPS_NODE_FALSE:
        ret_value->kind = DT_OPS_VALUE_BOOL;
        ret_value->number = node->kind == DT_OPS_NODE_TRUE;
        return true;
    case DT_OPS_NODE_NONE:
        ret_value->kind = DT_OPS_VALUE_NONE;
        return true;
    case DT_OPS_NODE_UNDEFINED:
        ret_value->kind = DT_OPS_VALUE_UNDEFINED;
        return true;
    case DT_OPS_NODE_DTYPE:
        ret_value->kind = DT_OPS_VALUE_DTYPE;
        return true;
    case DT_OPS_NODE_PARAM:
        return param(w, (uint32_t)node->number, ret_value);
    case DT_OPS_NODE_LIST:
        return list(w, node, ret_value);
    case DT_OPS_NODE_INDEX:
        return position(w, node, ret_value);
    case DT_OPS_NODE_ASK:
        return ask(w, node, ret_value);
    default:
        return builtin(w, node, ret_value);
    }
}

/* ---- a rule ---- */

static bool result(walk_t *w, uint32_t i, dt_ops_output_t *to)
{
    dt_ops_value_t value = {.kind = DT_OPS_VALUE_NONE};
    if (!evaluate(w, (uint32_t)w->rule->results[i], &value))
        return false;
    memset(to, 0, sizeof *to);
    if (value.kind == DT_OPS_VALUE_UNDEFINED) {
        to->alias = DT_ALIAS_NONE;
        return true;
    }
    if (value.kind != DT_OPS_VALUE_TENSOR)
        return refuse(w, "", "a result that is no tensor");
    to->alias = value.alias;
    to->input = value.alias == DT_ALIAS_FRESH ? 0 : value.input;
    to->meta = value.meta;
    return true;
}

static bool follow(walk_t *w, dt_ops_answer_t *ret_answer)
{
    const dt_ops_rule_t *rule = w->rule;
    dt_ops_value_t holds = {.kind = DT_OPS_VALUE_NONE};
    if (!rule->is_any && strcmp(w->asker->kind, "cpu") != 0)
        return refuse(w, "", "another kind of device");
    if (!count_inputs(w))
        return refuse(w, "", "tensors that are not described");
    if (w->question->arg_count > rule->param_count && !rule->is_open)
        return refuse(w, "", "more arguments than the rule knows");
    if (rule->condition >= 0) {
        if (!evaluate(w, (uint32_t)rule->condition, &holds))
            return false;
        bool is_truth = holds.kind == DT_OPS_VALUE_BOOL || holds.kind == DT_OPS_VALUE_INT;
        if (!is_truth || !holds.number)
            return refuse(w, "", "its condition");
    }
    for (uint32_t i = 0; i < rule->result_count; i++)
        if (!result(w, i, &ret_answer->outputs[i]))
            return false;
    ret_answer->count = rule->result_count;
    return true;
}

/* The first rule of an overload; *ret_count: how many follow each other. NULL: none. */
static const dt_ops_rule_t *find(const dt_ops_rules_t *rules, const char *name, uint32_t *ret_count)
{
    uint32_t low = 0, high = rules ? rules->rule_count : 0, end;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(rules->rules[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (end = low; rules && end < rules->rule_count; end++)
        if (strcmp(rules->rules[end].name, name) != 0)
            break;
    *ret_count = end - low;
    return end > low ? &rules->rules[low] : NULL;
}

dt_status_t dt_ops_rules_answer(const dt_ops_rules_t *rules, const dt_ops_asker_t *asker,
                                const dt_ops_question_t *question, dt_ops_answer_t *ret_answer,
                                dt_error_t *err)
{
    uint32_t count;
    const dt_ops_rule_t *rule = find(rules, question->name, &count);
    walk_t walk = {.rules = rules, .asker = asker, .question = question, .err = err};
    if (!rule)
        return dt_fail(err, DT_ERR_AGAIN, "dt", 0, "%s has no rule", question->name);
    for (uint32_t i = 0; i < count; i++) {
        walk.rule = &rule[i];
        walk.status = DT_OK;
        if (follow(&walk, ret_answer))
            return DT_OK;
        if (walk.status != DT_ERR_AGAIN)
            break;
    }
    return walk.status;
}

bool dt_ops_rules_has(const dt_ops_rules_t *rules, const char *name)
{
    uint32_t count;
    return find(rules, name, &count) != NULL;
}

bool dt_ops_rules_is_first(const dt_ops_rules_t *rules, const char *name)
{
    uint32_t count;
    const dt_ops_rule_t *rule = find(rules, name, &count);
    return rule && rule->is_first;
}

uint32_t dt_ops_rules_count(const dt_ops_rules_t *rules)
{
    return rules->overload_count;
}

const char *dt_ops_rules_name(const dt_ops_rules_t *rules, uint32_t i)
{
    for (uint32_t k = 0; k < rules->rule_count; k++)
        if (k == 0 || strcmp(rules->rules[k - 1].name, rules->rules[k].name) != 0)
            if (i-- == 0)
                return rules->rules[k].name;
    return NULL;
}

void dt_ops_rules_free(dt_ops_rules_t *rules)
{
    if (!rules)
        return;
    free(rules->rules);
    free(rules->nodes);
    free(rules->children);
    free(rules->names);
    free(rules);
}

static const dt_ops_line_t built_in[] = {
#define RULE(kind, text) {__LINE__, #kind, text},
#include "ops/meta.def"
#undef RULE
};

dt_status_t dt_ops_rules_create(dt_ops_rules_t **ret_rules, dt_error_t *err)
{
    return dt_ops_rules_read(built_in, sizeof built_in / sizeof *built_in, ret_rules, err);
}
