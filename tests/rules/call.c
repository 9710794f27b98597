/* Calls in JSON, as dt_signature_t. */
#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE_MAX 1024

/* ---- JSON ---- */

typedef enum node_kind {
    NODE_NULL,
    NODE_BOOL,
    NODE_NUMBER,
    NODE_TEXT,
    NODE_LIST,
    NODE_OBJECT
} node_kind_t;

typedef struct node {
    node_kind_t kind;
    double number;
    bool is_float;
    const char *text, *key;
    size_t text_size, key_size;
    struct node *first, *next;
    int count;
} node_t;

static node_t pool[NODE_MAX];
static int pool_count;

static node_t *parse(const char **at);

static void parse_children(const char **at, node_t *to, char end)
{
    node_t **link = &to->first;
    (*at)++;
    while (**at && **at != end) {
        const char *key = NULL;
        size_t size = 0;
        if (end == '}') {
            key = *at + 1;
            size = strcspn(key, "\"");
            *at = key + size + 2;
        }
        *link = parse(at);
        (*link)->key = key;
        (*link)->key_size = size;
        link = &(*link)->next;
        to->count++;
        *at += **at == ',';
    }
    *at += **at == end;
}

static node_t *parse(const char **at)
{
    if (pool_count == NODE_MAX) {
        fprintf(stderr, "golden: a call with more than %d values\n", NODE_MAX);
        exit(2);
    }
    node_t *to = &pool[pool_count++];
    *to = (node_t){.kind = NODE_NULL};
    if (**at == '[' || **at == '{') {
        to->kind = **at == '[' ? NODE_LIST : NODE_OBJECT;
        parse_children(at, to, **at == '[' ? ']' : '}');
    } else if (**at == '"') {
        to->kind = NODE_TEXT;
        to->text = *at + 1;
        to->text_size = strcspn(to->text, "\"");
        *at = to->text + to->text_size + 1;
    } else if (**at == 't' || **at == 'f') {
        to->kind = NODE_BOOL;
        to->number = **at == 't';
        *at += **at == 't' ? 4 : 5;
    } else if (**at == 'n') {
        *at += 4;
    } else {
        char *end;
        to->kind = NODE_NUMBER;
        to->number = strtod(*at, &end);
        to->is_float = strcspn(*at, ".eE") < (size_t)(end - *at);
        if (end == *at) {
            fprintf(stderr, "golden: bad JSON at %.20s\n", *at);
            exit(2);
        }
        *at = end;
    }
    return to;
}

static const node_t *get(const node_t *object, const char *key, size_t size)
{
    for (const node_t *n = object ? object->first : NULL; n; n = n->next)
        if (n->key_size == size && memcmp(n->key, key, size) == 0)
            return n;
    return NULL;
}

/* ---- a call as a signature ---- */

static void add_tensor(dt_signature_tensor_t *to, char kind, const node_t *shape)
{
    int64_t sizes[DT_META_DIM_MAX];
    unsigned ndim = 0;
    unsigned dtype = kind == 'b'   ? DT_DTYPE_BOOL
                     : kind == 'i' ? DT_DTYPE_I64
                     : kind == 'c' ? DT_DTYPE_C64
                                   : DT_DTYPE_F32;
    for (const node_t *n = shape->first; n && ndim < DT_META_DIM_MAX; n = n->next)
        sizes[ndim++] = (int64_t)n->number;
    *to = (dt_signature_tensor_t){.alias = DT_ALIAS_FRESH};
    dt_check(dt_meta_set(&to->meta, dtype, ndim, sizes, NULL, 0, NULL) == DT_OK);
}

static bool is_list(const node_t *group)
{
    return group->kind == NODE_LIST && group->first && group->first->kind != NODE_NUMBER;
}

/* One tensor argument; `where`: which elements of a list are given, NULL: all. */
static void add_input(call_t *c, dt_value_t *arg, int i, const node_t *group, const node_t *where)
{
    dt_signature_t *s = &c->signature;
    if (!group || group->kind == NODE_NULL) {
        arg->tag = DT_VALUE_NONE;
    } else if (!is_list(group)) {
        arg->tag = DT_VALUE_TENSOR;
        add_tensor(&c->inputs[s->input_count++], *c->kinds++, group);
    } else {
        arg->tag = DT_VALUE_TENSORS;
        arg->ids = c->ids[i];
        const node_t *given = where ? where->first : NULL, *n = group->first;
        while (n || given) {
            bool is_none = given && given->kind == NODE_NULL;
            c->ids[i][arg->count++] = !is_none;
            if (!is_none && n) {
                add_tensor(&c->inputs[s->input_count++], *c->kinds++, n);
                n = n->next;
            }
            given = given ? given->next : NULL;
        }
    }
}

static void add_attribute(call_t *c, dt_value_t *arg, int i, const node_t *value)
{
    if (!value) {
        arg->tag = DT_VALUE_DEFAULT;
    } else if (value->kind == NODE_BOOL) {
        arg->tag = value->number != 0 ? DT_VALUE_TRUE : DT_VALUE_FALSE;
    } else if (value->kind == NODE_NUMBER && value->is_float) {
        arg->tag = DT_VALUE_DOUBLE;
        arg->real = value->number;
    } else if (value->kind == NODE_NUMBER) {
        arg->tag = DT_VALUE_INT;
        arg->number = (int64_t)value->number;
    } else if (value->kind == NODE_TEXT) { /* "inf", "-inf" */
        arg->tag = DT_VALUE_DOUBLE;
        arg->real = strtod(value->text, NULL);
    } else if (value->kind == NODE_LIST) {
        arg->tag = DT_VALUE_INTS;
        arg->ints = c->ints[i];
        for (const node_t *n = value->first; n; n = n->next)
            c->ints[i][arg->count++] = (int64_t)n->number;
    } else {
        arg->tag = DT_VALUE_NONE;
    }
}

static void add_outputs(call_t *c, const node_t *groups)
{
    dt_signature_t *s = &c->signature;
    for (const node_t *g = groups->first; g; g = g->next) {
        if (g->kind == NODE_NULL)
            c->outputs[s->output_count++] = (dt_signature_tensor_t){.alias = DT_ALIAS_NONE};
        else if (!is_list(g))
            add_tensor(&c->outputs[s->output_count++], *c->kinds++, g);
        for (const node_t *n = is_list(g) ? g->first : NULL; n; n = n->next)
            add_tensor(&c->outputs[s->output_count++], *c->kinds++, n);
    }
}

void call_build(call_t *c, const dt_shard_rules_t *rules, const char *name, const char *text)
{
    bool is_in_place;
    pool_count = 0;
    const node_t *root = parse(&text), *attrs = get(root, "a", 1);
    const dt_shard_rule_t *rule = dt_shard_rules_find(rules, name, &is_in_place);
    const node_t *group = get(root, "in", 2)->first;
    int i = 0;
    memset(c, 0, sizeof *c);
    c->kinds = get(root, "k", 1)->text;
    c->signature.name = name;
    c->signature.args = c->args;
    c->signature.inputs = c->inputs;
    c->signature.outputs = c->outputs;
    for (; rule && i < rule->param_count; i++) {
        const dt_shard_param_t *p = &rule->params[i];
        if (p->kind == DT_SHARD_PARAM_TENSOR) {
            add_input(c, &c->args[i], i, group, get(attrs, "indices", 7));
            group = group ? group->next : NULL;
        } else if (p->kind == DT_SHARD_PARAM_ATTR) {
            add_attribute(c, &c->args[i], i, get(attrs, p->name.at, p->name.size));
        }
    }
    for (; group; group = group->next, i++)
        add_input(c, &c->args[i], i, group, NULL);
    c->signature.arg_count = (uint32_t)i;
    c->kinds++; /* > */
    add_outputs(c, get(root, "out", 3));
    c->signature.id_count = c->signature.output_count;
}
