/* Reading rules: recursive descent into a table of nodes, every size bounded. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ops/meta_internal.h"

typedef struct parser {
    dt_ops_rules_t *rules;
    const dt_ops_line_t *line;
    const char *at;
    const char *params[DT_OPS_PARAM_MAX]; /* their names, within the line */
    uint32_t param_bytes[DT_OPS_PARAM_MAX];
    uint32_t param_count;
    uint32_t depth;
    dt_error_t *err;
} parser_t;

static const struct {
    const char *name;
    uint8_t least, most;
} builtins[] = {
#define X(text, name, least, most) {text, least, most},
    DT_OPS_BUILTIN_MAP(X)
#undef X
};

const char *dt_ops_builtin_name(dt_ops_builtin_t builtin)
{
    return builtins[builtin].name;
}

static int expression(parser_t *p);

/* ---- words ---- */

static int fail(parser_t *p, const char *what)
{
    (void)dt_fail(p->err, DT_ERR_INVALID, "dt", p->line->line, "meta.def:%d: %s, at \"%.40s\"",
                  p->line->line, what, p->at);
    return -1;
}

static void skip_space(parser_t *p)
{
    while (*p->at == ' ')
        p->at++;
}

static bool take(parser_t *p, const char *word)
{
    size_t len = strlen(word);
    skip_space(p);
    if (strncmp(p->at, word, len) != 0 ||
        (isalpha((unsigned char)*word) &&
         (isalnum((unsigned char)p->at[len]) || p->at[len] == '_')))
        return false;
    p->at += len;
    return true;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == ':';
}

/* A name: letters, digits, and :: . _ within; 0: none here. */
static size_t name_bytes(parser_t *p)
{
    size_t len = 0;
    skip_space(p);
    if (!isalpha((unsigned char)*p->at) && *p->at != '_')
        return 0;
    while (is_name(p->at[len]))
        len++;
    return len;
}

static const char *keep_name(parser_t *p, const char *name, size_t len)
{
    char *to = p->rules->names + p->rules->name_bytes;
    memcpy(to, name, len);
    to[len] = '\0';
    p->rules->name_bytes += len + 1;
    return to;
}

/* ---- nodes ---- */

static int node(parser_t *p, dt_ops_node_kind_t kind, int64_t number)
{
    if (p->rules->node_count == DT_OPS_NODE_MAX)
        return fail(p, "too many expressions");
    p->rules->nodes[p->rules->node_count] =
        (dt_ops_node_t){.kind = (uint8_t)kind, .number = number};
    return (int)p->rules->node_count++;
}

static int adopt(parser_t *p, int parent, const int *children, uint32_t count)
{
    dt_ops_node_t *of = &p->rules->nodes[parent];
    of->children = (uint16_t)p->rules->child_count;
    of->child_count = (uint8_t)count;
    for (uint32_t i = 0; i < count; i++)
        p->rules->children[p->rules->child_count++] = (uint16_t)children[i];
    return parent;
}

static int call_builtin(parser_t *p, dt_ops_builtin_t builtin, const int *children, uint32_t count)
{
    int made;
    if (count < builtins[builtin].least || count > builtins[builtin].most)
        return fail(p, "a function has another number of arguments");
    made = node(p, DT_OPS_NODE_BUILTIN, builtin);
    return made < 0 ? made : adopt(p, made, children, count);
}

static int binary(parser_t *p, dt_ops_builtin_t builtin, int left, int right)
{
    const int children[] = {left, right};
    return left < 0 || right < 0 ? -1 : call_builtin(p, builtin, children, 2);
}

/* Expressions up to `end`, which is taken. Gives how many, or -1. */
static int arguments(parser_t *p, const char *end, int *ret_children)
{
    int count = 0;
    if (take(p, end))
        return 0;
    do {
        if (count == DT_OPS_CHILD_MAX)
            return fail(p, "too many arguments");
        bool is_splice = *end == ']' && take(p, "*");
        int one = expression(p);
        if (one < 0)
            return -1;
        if (is_splice) {
            int splice = node(p, DT_OPS_NODE_SPLICE, 0);
            if (splice < 0)
                return -1;
            one = adopt(p, splice, &one, 1);
        }
        ret_children[count++] = one;
    } while (take(p, ","));
    return take(p, end) ? count : fail(p, "expected , or the closing bracket");
}

/* ---- primaries ---- */

static int number(parser_t *p)
{
    char *end;
    errno = 0;
    long long value = strtoll(p->at, &end, 10);
    if (errno)
        return fail(p, "a number out of range");
    p->at = end;
    return node(p, DT_OPS_NODE_NUMBER, value);
}

static int list(parser_t *p)
{
    int children[DT_OPS_CHILD_MAX];
    int count = arguments(p, "]", children);
    int made = count < 0 ? -1 : node(p, DT_OPS_NODE_LIST, 0);
    return made < 0 ? made : adopt(p, made, children, (uint32_t)count);
}

/* aten::name.overload(...), with [k] behind it if it has several results. */
static int ask(parser_t *p, const char *name, size_t len)
{
    int children[DT_OPS_CHILD_MAX];
    int count = arguments(p, ")", children);
    int made = count < 0 ? -1 : node(p, DT_OPS_NODE_ASK, -1);
    if (made < 0)
        return made;
    p->rules->nodes[made].name = keep_name(p, name, len);
    if (take(p, "[")) {
        if (!isdigit((unsigned char)*p->at))
            return fail(p, "expected which result, a number");
        p->rules->nodes[made].number = strtoll(p->at, NULL, 10);
        while (isdigit((unsigned char)*p->at))
            p->at++;
        if (!take(p, "]"))
            return fail(p, "expected ]");
    }
    return adopt(p, made, children, (uint32_t)count);
}

static int function(parser_t *p, const char *name, size_t len)
{
    int children[DT_OPS_CHILD_MAX];
    for (unsigned i = 0; i < DT_OPS_BUILTIN_COUNT; i++) {
        if (strlen(builtins[i].name) != len || memcmp(builtins[i].name, name, len) != 0)
            continue;
        int count = arguments(p, ")", children);
        return count < 0 ? -1 : call_builtin(p, (dt_ops_builtin_t)i, children, (uint32_t)count);
    }
    return fail(p, "no function has the name before this");
}

static bool is_word(const char *name, size_t len, const char *word)
{
    return strlen(word) == len && memcmp(name, word, len) == 0;
}

static int word(parser_t *p, const char *name, size_t len)
{
    if (is_word(name, len, "true"))
        return node(p, DT_OPS_NODE_TRUE, 0);
    if (is_word(name, len, "false"))
        return node(p, DT_OPS_NODE_FALSE, 0);
    if (is_word(name, len, "none"))
        return node(p, DT_OPS_NODE_NONE, 0);
    if (is_word(name, len, "undefined"))
        return node(p, DT_OPS_NODE_UNDEFINED, 0);
    for (uint32_t i = 0; i < p->param_count; i++)
        if (p->param_bytes[i] == len && memcmp(p->params[i], name, len) == 0)
            return node(p, DT_OPS_NODE_PARAM, i);
    for (unsigned i = 0; i <= DT_DTYPE_NUMBER_MAX; i++)
        if (dt_dtype_bytes(i) && is_word(name, len, dt_dtype_name(i)))
            return node(p, DT_OPS_NODE_DTYPE, i);
    return fail(p, "no argument has the name before this");
}

static int primary(parser_t *p)
{
    skip_space(p);
    size_t len = name_bytes(p);
    const char *name = p->at;
    if (take(p, "(")) {
        int inner = expression(p);
        return inner < 0 || take(p, ")") ? inner : fail(p, "expected )");
    }
    if (take(p, "["))
        return list(p);
    if (isdigit((unsigned char)*p->at) || (*p->at == '-' && isdigit((unsigned char)p->at[1])))
        return number(p);
    if (len == 0)
        return fail(p, "expected a value");
    if (len > DT_OPS_NAME_MAX)
        return fail(p, "a name that is too long");
    p->at += len;
    if (!take(p, "("))
        return word(p, name, len);
    return memchr(name, ':', len) ? ask(p, name, len) : function(p, name, len);
}

/* ---- operators, loosest last ---- */

static int postfix(parser_t *p)
{
    int left = primary(p);
    while (left >= 0 && take(p, "[")) {
        const int children[] = {left, expression(p)};
        if (children[1] < 0)
            return -1;
        if (!take(p, "]"))
            return fail(p, "expected ]");
        left = node(p, DT_OPS_NODE_INDEX, 0);
        if (left >= 0)
            left = adopt(p, left, children, 2);
    }
    return left;
}

static int product(parser_t *p)
{
    int left = postfix(p);
    for (;;) {
        if (left >= 0 && take(p, "*"))
            left = binary(p, DT_OPS_BUILTIN_MUL, left, postfix(p));
        else if (left >= 0 && take(p, "/"))
            left = binary(p, DT_OPS_BUILTIN_DIV, left, postfix(p));
        else
            return left;
    }
}

static int sum(parser_t *p)
{
    int left = product(p);
    for (;;) {
        if (left >= 0 && take(p, "+"))
            left = binary(p, DT_OPS_BUILTIN_ADD, left, product(p));
        else if (left >= 0 && take(p, "-"))
            left = binary(p, DT_OPS_BUILTIN_SUB, left, product(p));
        else
            return left;
    }
}

static int comparison(parser_t *p)
{
    int left = sum(p);
    if (left < 0)
        return left;
    if (take(p, "=="))
        return binary(p, DT_OPS_BUILTIN_EQ, left, sum(p));
    if (take(p, "!="))
        return binary(p, DT_OPS_BUILTIN_NE, left, sum(p));
    if (take(p, "<="))
        return binary(p, DT_OPS_BUILTIN_LE, left, sum(p));
    if (take(p, "<"))
        return binary(p, DT_OPS_BUILTIN_LT, left, sum(p));
    return left;
}

static int negation(parser_t *p)
{
    if (!take(p, "not"))
        return comparison(p);
    int inner = comparison(p);
    return inner < 0 ? inner : call_builtin(p, DT_OPS_BUILTIN_NOT, &inner, 1);
}

static int conjunction(parser_t *p)
{
    int left = negation(p);
    while (left >= 0 && take(p, "and"))
        left = binary(p, DT_OPS_BUILTIN_AND, left, negation(p));
    return left;
}

static int expression(parser_t *p)
{
    if (p->depth == DT_OPS_DEPTH_MAX)
        return fail(p, "calls within calls, too deep");
    p->depth++;
    int left = conjunction(p);
    while (left >= 0 && take(p, "or"))
        left = binary(p, DT_OPS_BUILTIN_OR, left, conjunction(p));
    p->depth--;
    return left;
}

/* ---- a line ---- */

static int param(parser_t *p, dt_ops_rule_t *rule)
{
    size_t len = name_bytes(p);
    if (len == 0 || memchr(p->at, ':', len) || memchr(p->at, '.', len))
        return fail(p, "expected the name of an argument");
    if (p->param_count == DT_OPS_PARAM_MAX)
        return fail(p, "too many arguments");
    for (uint32_t i = 0; i < p->param_count && *p->at != '_'; i++)
        if (p->param_bytes[i] == len && memcmp(p->params[i], p->at, len) == 0)
            return fail(p, "a second argument of this name");
    p->params[p->param_count] = p->at;
    p->param_bytes[p->param_count] = (uint32_t)len;
    rule->defaults[p->param_count] = -1;
    p->at += len;
    if (take(p, "=")) {
        int value = expression(p);
        if (value < 0)
            return -1;
        rule->defaults[p->param_count] = (int16_t)value;
    }
    p->param_count++;
    return 0;
}

static int params(parser_t *p, dt_ops_rule_t *rule)
{
    if (!take(p, "("))
        return fail(p, "expected (");
    do {
        if (take(p, "...")) {
            rule->is_open = true;
            break;
        }
        if (param(p, rule) < 0)
            return -1;
    } while (take(p, ","));
    rule->param_count = (uint8_t)p->param_count;
    return take(p, ")") ? 0 : fail(p, "expected , or )");
}

static int results(parser_t *p, dt_ops_rule_t *rule)
{
    do {
        if (rule->result_count == DT_OPS_RESULT_MAX)
            return fail(p, "too many results");
        int result = expression(p);
        if (result < 0)
            return -1;
        rule->results[rule->result_count++] = (int16_t)result;
    } while (take(p, ","));
    rule->condition = -1;
    if (take(p, "if")) {
        int condition = expression(p);
        if (condition < 0)
            return -1;
        rule->condition = (int16_t)condition;
    }
    skip_space(p);
    return *p->at ? fail(p, "more than a rule") : 0;
}

static int rule_line(parser_t *p, dt_ops_rule_t *rule)
{
    size_t len = name_bytes(p);
    const char *kind = p->line->kind;
    rule->line = p->line->line;
    rule->is_any = strcmp(kind, "any") == 0;
    rule->is_first = strcmp(kind, "first") == 0;
    if (!rule->is_any && !rule->is_first && strcmp(kind, "cpu") != 0)
        return fail(p, "a kind that is not any, cpu or first");
    if (len == 0 || len > DT_OPS_NAME_MAX || !memchr(p->at, ':', len))
        return fail(p, "expected an operator's name");
    rule->name = keep_name(p, p->at, len);
    p->at += len;
    if (params(p, rule) < 0)
        return -1;
    return take(p, "=") ? results(p, rule) : fail(p, "expected =");
}

/* ---- all lines ---- */

static int by_name(const void *a, const void *b)
{
    const dt_ops_rule_t *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->line - y->line;
}

static dt_status_t reserve(dt_ops_rules_t *rules, const dt_ops_line_t *lines, uint32_t count)
{
    size_t bytes = 1;
    for (uint32_t i = 0; i < count; i++)
        bytes += 2 * strlen(lines[i].text) + 2; /* a name has a bracket behind it */
    rules->rules = calloc(count ? count : 1, sizeof *rules->rules);
    rules->nodes = calloc(DT_OPS_NODE_MAX, sizeof *rules->nodes);
    rules->children = calloc(DT_OPS_NODE_MAX, sizeof *rules->children); /* one parent each */
    rules->names = malloc(bytes);
    return rules->rules && rules->nodes && rules->children && rules->names ? DT_OK : DT_ERR_NOMEM;
}

static void shrink(void *table, size_t bytes)
{
    void **at = table;
    void *smaller = realloc(*at, bytes ? bytes : 1);
    if (smaller)
        *at = smaller;
}

dt_status_t dt_ops_rules_read(const dt_ops_line_t *lines, uint32_t count,
                              dt_ops_rules_t **ret_rules, dt_error_t *err)
{
    dt_ops_rules_t *rules = calloc(1, sizeof *rules);
    dt_status_t status =
        rules && count <= DT_OPS_LINE_MAX ? reserve(rules, lines, count) : DT_ERR_NOMEM;
    if (status != DT_OK) {
        dt_ops_rules_free(rules);
        return dt_fail(err, status, "dt", count, "no memory for %u rules", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        parser_t p = {.rules = rules, .line = &lines[i], .at = lines[i].text, .err = err};
        if (rule_line(&p, &rules->rules[i]) < 0) {
            dt_ops_rules_free(rules);
            return DT_ERR_INVALID;
        }
        rules->rule_count++;
    }
    qsort(rules->rules, count, sizeof *rules->rules, by_name);
    for (uint32_t i = 0; i < count; i++)
        rules->overload_count +=
            i == 0 || strcmp(rules->rules[i - 1].name, rules->rules[i].name) != 0;
    shrink(&rules->nodes, rules->node_count * sizeof *rules->nodes);
    shrink(&rules->children, rules->child_count * sizeof *rules->children);
    *ret_rules = rules;
    return DT_OK;
}
