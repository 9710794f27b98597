/* Reading ops.def: a line becomes a dt_shard_rule_t. Texts stay where they are. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "shard/rules_internal.h"

typedef struct parser {
    dt_shard_rule_t *rule;
    const dt_shard_line_t *line;
    const char *at;
    dt_error_t *err;
} parser_t;

static bool fail(parser_t *p, const char *what)
{
    (void)dt_fail(p->err, DT_ERR_INVALID, "dt", p->line->line, "ops.def:%d: %s, at \"%.40s\"",
                  p->line->line, what, p->at);
    return false;
}

static void skip_space(parser_t *p)
{
    while (*p->at == ' ')
        p->at++;
}

static bool is_text(dt_shard_text_t text, const char *word)
{
    return strlen(word) == text.size && memcmp(text.at, word, text.size) == 0;
}

/* The next word up to a blank, or to one of `ends`. */
static dt_shard_text_t word(parser_t *p, const char *ends)
{
    skip_space(p);
    dt_shard_text_t text = {p->at, (uint32_t)strcspn(p->at, ends)};
    p->at += text.size;
    return text;
}

/* ---- arguments ---- */

static bool param_default(parser_t *p, dt_shard_param_t *param)
{
    dt_shard_text_t text = word(p, ",) ");
    char *end = NULL;
    param->has_default = true;
    if (is_text(text, "none") || is_text(text, "[]"))
        param->has_default = false;
    else if (is_text(text, "true") || is_text(text, "false"))
        param->number = *text.at == 't';
    else
        param->number = strtoll(text.at, &end, 10);
    return !end || end == text.at + text.size || fail(p, "a default that is no number");
}

static bool param(parser_t *p)
{
    if (p->rule->param_count == DT_SHARD_PARAM_MAX)
        return fail(p, "too many arguments");
    dt_shard_param_t *to = &p->rule->params[p->rule->param_count++];
    to->name = word(p, "=,) ");
    if (to->name.size == 0)
        return fail(p, "expected an argument");
    to->kind = is_text(to->name, "T")   ? DT_SHARD_PARAM_TENSOR
               : is_text(to->name, "_") ? DT_SHARD_PARAM_SKIP
                                        : DT_SHARD_PARAM_ATTR;
    p->rule->slot_count += to->kind == DT_SHARD_PARAM_TENSOR;
    skip_space(p);
    if (*p->at != '=')
        return true;
    p->at++;
    return param_default(p, to);
}

static bool params(parser_t *p)
{
    if (*p->at != '(') {
        p->rule->params[0].kind = DT_SHARD_PARAM_TENSOR;
        p->rule->param_count = p->rule->slot_count = 1;
        return true;
    }
    do {
        p->at++;
        if (!param(p))
            return false;
        skip_space(p);
    } while (*p->at == ',');
    if (*p->at != ')')
        return fail(p, "expected , or )");
    p->at++;
    return true;
}

static int find_param(const dt_shard_rule_t *rule, dt_shard_text_t name)
{
    for (unsigned i = 0; i < rule->param_count; i++)
        if (rule->params[i].kind == DT_SHARD_PARAM_ATTR && rule->params[i].name.size == name.size &&
            memcmp(rule->params[i].name.at, name.at, name.size) == 0)
            return (int)i;
    return -1;
}

/* ---- templates ---- */

static bool spec(parser_t *p, dt_shard_spec_t *specs, uint8_t *count, uint8_t term,
                 dt_shard_text_t text)
{
    if (*count == DT_SHARD_SPEC_MAX)
        return fail(p, "too many tensors in a template");
    dt_shard_spec_t *to = &specs[(*count)++];
    to->term = term;
    for (; text.size && (*text.at == '^' || *text.at == '!'); text.at++, text.size--)
        *(*text.at == '^' ? &to->is_broadcast : &to->is_nonlinear) = true;
    const char *at = memchr(text.at, '@', text.size);
    const char *end = text.at + text.size;
    to->has_deps = at != NULL;
    text.size = at ? (uint32_t)(at - text.at) : text.size;
    for (; at && at < end; at++) {
        if (*at == '@')
            continue;
        if (!isdigit((unsigned char)*at))
            return fail(p, "expected a digit behind @");
        to->deps |= (uint16_t)(1u << (*at - '0'));
    }
    while (text.size && text.at[text.size - 1] == '*')
        text.size--;
    for (uint32_t i = 0; i < text.size; i++)
        if (!isalnum((unsigned char)text.at[i]) && !strchr("._~", text.at[i]))
            return fail(p, "a character that no template has");
    to->text = text;
    return true;
}

static bool template(parser_t *p, dt_shard_text_t text)
{
    dt_shard_rule_t *rule = p->rule;
    const char *at = text.at, *end = text.at + text.size;
    const char *arrow = memmem(text.at, text.size, "->", 2);
    uint8_t term = 0;
    while (at < arrow) {
        size_t n = strcspn(at, ",+-");
        if (!spec(p, rule->ins, &rule->in_count, term, (dt_shard_text_t){at, (uint32_t)n}))
            return false;
        at += n;
        if (at < arrow && *at == '+') {
            term++;
            rule->has_terms = true;
        }
        at += at < arrow;
    }
    at = arrow + 2;
    do { /* nothing behind the arrow: one result without dimensions */
        size_t n = strcspn(at, ", ");
        n = at + n > end ? (size_t)(end - at) : n;
        if (!spec(p, rule->outs, &rule->out_count, 0, (dt_shard_text_t){at, (uint32_t)n}))
            return false;
        at += n + 1;
    } while (at <= end && at[-1] == ',');
    return true;
}

/* ---- options ---- */

static bool option_reduce(parser_t *p, dt_shard_text_t value)
{
    static const char *const names[] = {"", "none", "sum", "avg", "max", "min"};
    for (unsigned i = DT_SHARD_REDUCE_NONE; i <= DT_SHARD_REDUCE_MIN; i++)
        if (is_text(value, names[i])) {
            p->rule->reduce = (uint8_t)i;
            return true;
        }
    return fail(p, "no such reduction");
}

static bool option_class(parser_t *p, dt_shard_text_t value)
{
    static const struct {
        const char *name;
        char code;
    } words[] = {{"mm", DT_SHARD_CLASS_MM},       {"cast", DT_SHARD_CLASS_CAST},
                 {"scale", DT_SHARD_CLASS_SCALE}, {"shift", DT_SHARD_CLASS_SHIFT},
                 {"add", DT_SHARD_CLASS_ADD},     {"sub", DT_SHARD_CLASS_SUB}};
    if (p->rule->class_count == DT_SHARD_CLASS_MAX || value.size == 0)
        return fail(p, "no algebra, or too much of it");
    dt_shard_class_t *to = &p->rule->classes[p->rule->class_count++];
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++)
        if (is_text(value, words[i].name))
            to->code = words[i].code;
    if (to->code)
        return true;
    to->code = *value.at;
    if (!strchr("LJAIDXNZ", to->code))
        return fail(p, "no such algebra");
    for (uint32_t i = 1; i < value.size; i++) {
        to->is_all |= value.at[i] == '*';
        if (isdigit((unsigned char)value.at[i]))
            to->args |= (uint16_t)(1u << (value.at[i] - '0'));
        else if (value.at[i] != '*')
            return fail(p, "expected digits or * behind an algebra");
    }
    to->args |= value.size == 1;
    return true;
}

/* NAME, NAME:oJ, NAME:I.D, NAME:s */
static bool option_loc(parser_t *p, dt_shard_text_t value)
{
    const char *colon = memchr(value.at, ':', value.size);
    uint32_t size = colon ? (uint32_t)(colon - value.at) : value.size, more = value.size - size;
    int at = find_param(p->rule, (dt_shard_text_t){value.at, size});
    if (at < 0 || p->rule->loc_count == DT_SHARD_LOC_MAX)
        return fail(p, "loc= of what is no argument, or too many");
    dt_shard_loc_t *to = &p->rule->locs[p->rule->loc_count++];
    *to = (dt_shard_loc_t){.param = (uint8_t)at, .what = 'o'};
    if (!colon)
        return true;
    if (more == 3 && colon[1] == 'o' && isdigit((unsigned char)colon[2])) {
        to->of = (uint8_t)(colon[2] - '0');
    } else if (more == 2 && colon[1] == 's') {
        to->what = 's';
    } else if (more == 4 && isdigit((unsigned char)colon[1]) && colon[2] == '.' &&
               isdigit((unsigned char)colon[3])) {
        to->what = 'i';
        to->of = (uint8_t)(colon[1] - '0');
        to->dim = (uint8_t)(colon[3] - '0');
    } else {
        return fail(p, "loc= is NAME, NAME:oJ, NAME:I.D or NAME:s");
    }
    return true;
}

/* Each piece of a value that `separator` divides. */
static bool each(parser_t *p, dt_shard_text_t value, char separator,
                 bool (*take)(parser_t *p, dt_shard_text_t piece))
{
    const char *at = value.at, *end = value.at + value.size;
    while (at <= end) {
        const char *next = memchr(at, separator, (size_t)(end - at));
        next = next ? next : end;
        if (!take(p, (dt_shard_text_t){at, (uint32_t)(next - at)}))
            return false;
        at = next + 1;
    }
    return true;
}

static bool option_param(parser_t *p, dt_shard_text_t value, int8_t *to)
{
    *to = (int8_t)find_param(p->rule, value);
    return *to >= 0 || fail(p, "names an argument that the line does not have");
}

static bool option(parser_t *p, dt_shard_text_t text)
{
    dt_shard_rule_t *rule = p->rule;
    const char *equals = memchr(text.at, '=', text.size);
    dt_shard_text_t key = {text.at, equals ? (uint32_t)(equals - text.at) : text.size};
    dt_shard_text_t value = {text.at + key.size + 1, text.size - key.size - 1};
    if (!equals)
        return fail(p, "a word that no family has");
    if (is_text(key, "red"))
        return option_reduce(p, value);
    if (is_text(key, "p"))
        return each(p, value, '+', option_class);
    if (is_text(key, "loc"))
        return each(p, value, ',', option_loc);
    if (is_text(key, "n"))
        return option_param(p, value, &rule->tail);
    if (is_text(key, "unless"))
        return option_param(p, value, &rule->unless);
    if (is_text(key, "vocab") || is_text(key, "heads")) {
        *(*key.at == 'v' ? &rule->vocabulary : &rule->grouped) = (uint8_t)*value.at;
        return value.size == 1 || fail(p, "expected a label");
    }
    bool *flag = is_text(key, "same")      ? &rule->is_same
                 : is_text(key, "inplace") ? &rule->is_in_place
                 : is_text(key, "runs")    ? &rule->is_runs
                 : is_text(key, "rows")    ? &rule->is_rows
                 : is_text(key, "put")     ? &rule->is_put
                 : is_text(key, "back")    ? &rule->is_back
                 : is_text(key, "owes")    ? &rule->owes
                                           : NULL;
    if (!flag || !is_text(value, "1"))
        return fail(p, "no such option");
    *flag = true;
    return true;
}

/* A word of DIM: a number, or an argument; one that the overload has not means all dimensions. */
static bool dim_word(parser_t *p, dt_shard_text_t text)
{
    dt_shard_rule_t *rule = p->rule;
    if (is_text(text, "keepdim")) {
        rule->keepdim = (int8_t)find_param(rule, text);
        return true;
    }
    if (rule->word_count == DT_SHARD_WORD_MAX)
        return fail(p, "too many dimensions");
    bool is_number = isdigit((unsigned char)*text.at) != 0;
    int word_at = is_number ? *text.at - '0' : find_param(rule, text);
    rule->is_word_number[rule->word_count] = is_number;
    rule->words[rule->word_count++] = (int8_t)word_at;
    return true;
}

static bool rest(parser_t *p)
{
    dt_shard_rule_t *rule = p->rule;
    for (skip_space(p); *p->at; skip_space(p)) {
        dt_shard_text_t text = word(p, " ");
        bool ok = true;
        if (memmem(text.at, text.size, "->", 2))
            ok = template(p, text);
        else if (is_text(text, "meta"))
            rule->is_meta = true;
        else if (is_text(text, "join"))
            rule->is_join = true;
        else if (is_text(text, "real"))
            rule->is_real = true;
        else if (rule->family == DT_SHARD_FAMILY_DIM && !memchr(text.at, '=', text.size))
            ok = dim_word(p, text);
        else
            ok = option(p, text);
        if (!ok)
            return false;
    }
    return true;
}

static bool family(parser_t *p)
{
    static const char *const names[] = {
#define X(name) #name,
        DT_SHARD_FAMILY_MAP(X)
#undef X
    };
    dt_shard_text_t text = word(p, " ");
    if (memmem(text.at, text.size, "->", 2)) {
        p->rule->family = DT_SHARD_FAMILY_LITERAL;
        return template(p, text);
    }
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (is_text(text, names[i])) {
            p->rule->family = (uint8_t)i;
            return true;
        }
    return fail(p, "neither a family nor a template");
}

static bool rule_line(parser_t *p)
{
    dt_shard_rule_t *rule = p->rule;
    *rule = (dt_shard_rule_t){.line = p->line->line, .tail = -1, .unless = -1, .keepdim = -1};
    rule->name = word(p, "( ");
    if (rule->name.size == 0 || rule->name.size > DT_SHARD_NAME_MAX ||
        !memchr(rule->name.at, ':', rule->name.size))
        return fail(p, "expected an operator's name");
    if (!params(p) || !family(p) || !rest(p))
        return false;
    if (rule->family == DT_SHARD_FAMILY_VNORM && (!dim_word(p, (dt_shard_text_t){"dim", 3}) ||
                                                  !dim_word(p, (dt_shard_text_t){"keepdim", 7})))
        return false;
    bool needs = rule->family == DT_SHARD_FAMILY_DIM || rule->family == DT_SHARD_FAMILY_NLL ||
                 rule->family == DT_SHARD_FAMILY_NLLB || rule->family == DT_SHARD_FAMILY_LOSSN ||
                 rule->family == DT_SHARD_FAMILY_LOSSNB;
    return !needs || rule->out_count || fail(p, "the family needs a template");
}

/* ---- the table ---- */

static int compare_text(dt_shard_text_t a, dt_shard_text_t b)
{
    int order = memcmp(a.at, b.at, a.size < b.size ? a.size : b.size);
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static int by_name(const void *a, const void *b)
{
    const dt_shard_rule_t *x = a, *y = b;
    int order = compare_text(x->name, y->name);
    return order ? order : x->line - y->line;
}

dt_status_t dt_shard_rules_read(const dt_shard_line_t *lines, uint32_t count,
                                dt_shard_rules_t **ret_rules, dt_error_t *err)
{
    dt_shard_rules_t *rules = calloc(1, sizeof *rules);
    if (rules)
        rules->rules = calloc(count ? count : 1, sizeof *rules->rules);
    if (!rules || !rules->rules) {
        dt_shard_rules_free(rules);
        return dt_fail(err, DT_ERR_NOMEM, "dt", count, "no memory for %u rules", count);
    }
    for (; rules->count < count; rules->count++) {
        const dt_shard_line_t *line = &lines[rules->count];
        parser_t p = {&rules->rules[rules->count], line, line->text, err};
        if (!rule_line(&p)) {
            dt_shard_rules_free(rules);
            return DT_ERR_INVALID;
        }
    }
    qsort(rules->rules, count, sizeof *rules->rules, by_name);
    for (uint32_t i = 1; i < count; i++) {
        const dt_shard_rule_t *a = &rules->rules[i - 1], *b = &rules->rules[i];
        if (compare_text(a->name, b->name) != 0)
            continue;
        (void)dt_fail(err, DT_ERR_INVALID, "dt", b->line, "ops.def:%d: a second line for %.*s",
                      b->line, (int)b->name.size, b->name.at);
        dt_shard_rules_free(rules);
        return DT_ERR_INVALID;
    }
    *ret_rules = rules;
    return DT_OK;
}

dt_status_t dt_shard_rules_create(dt_shard_rules_t **ret_rules, dt_error_t *err)
{
    static const dt_shard_line_t lines[] = {
#define OP(text) {__LINE__, text},
#include "ops/ops.def"
#undef OP
    };
    return dt_shard_rules_read(lines, sizeof lines / sizeof lines[0], ret_rules, err);
}

void dt_shard_rules_free(dt_shard_rules_t *rules)
{
    if (!rules)
        return;
    free(rules->rules);
    free(rules);
}

static const dt_shard_rule_t *lookup(const dt_shard_rules_t *rules, const char *name, size_t size)
{
    dt_shard_text_t key = {name, (uint32_t)size};
    uint32_t low = 0, high = rules->count;
    if (size > 8 && memcmp(name + size - 8, ".default", 8) == 0)
        key.size -= 8;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        int order = compare_text(key, rules->rules[middle].name);
        if (order == 0)
            return &rules->rules[middle];
        *(order < 0 ? &high : &low) = order < 0 ? middle : middle + 1;
    }
    return NULL;
}

/* `base` of `base_size` bytes with another overload. */
static const dt_shard_rule_t *lookup_with(const dt_shard_rules_t *rules, const char *base,
                                          size_t base_size, const char *overload,
                                          size_t overload_size)
{
    char name[DT_SHARD_NAME_MAX + 1];
    if (base_size + overload_size + 1 > DT_SHARD_NAME_MAX)
        return NULL;
    memcpy(name, base, base_size);
    if (overload_size == 0)
        return lookup(rules, name, base_size);
    name[base_size] = '.';
    memcpy(name + base_size + 1, overload, overload_size);
    return lookup(rules, name, base_size + 1 + overload_size);
}

const dt_shard_rule_t *dt_shard_rules_find(const dt_shard_rules_t *rules, const char *name,
                                           bool *ret_is_in_place)
{
    static const char *const overloads[] = {"", "Tensor", "Tensor_Tensor", "int"};
    const dt_shard_rule_t *rule = lookup(rules, name, strlen(name));
    const char *dot = strchrnul(name, '.');
    size_t base = (size_t)(dot - name);
    *ret_is_in_place = rule && rule->is_in_place;
    if (rule || base < 2 || dot[-1] != '_' || dot[-2] == '_')
        return rule;
    base--;
    rule = lookup_with(rules, name, base, *dot ? dot + 1 : "", *dot ? strlen(dot + 1) : 0);
    for (unsigned i = 0; !rule && i < sizeof overloads / sizeof overloads[0]; i++)
        rule = lookup_with(rules, name, base, overloads[i], strlen(overloads[i]));
    *ret_is_in_place = rule && !rule->is_meta;
    return rule;
}

bool dt_shard_rules_has(const dt_shard_rules_t *rules, const char *name)
{
    bool is_in_place;
    return dt_shard_rules_find(rules, name, &is_in_place) != NULL;
}
