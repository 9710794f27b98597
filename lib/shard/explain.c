#include "shard/explain.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/strings.h"
#include "shard/rules_internal.h"

#define OPERAND_BYTES 320

typedef struct explaining {
    const dt_shard_rules_t *rules;
    const dt_signature_t *signature;
    dt_shard_mesh_fn *mesh_of;
    void *arg;
    dt_shard_explained_t *to;
} explaining_t;

static void append(char *text, const char *more)
{
    size_t at = strlen(text);
    (void)snprintf(text + at, DT_SHARD_EXPLAIN_TEXT - at, "%s", more);
}

/* ---- tensors ---- */

static dt_status_t add_operand(const explaining_t *e, const dt_signature_tensor_t *tensor,
                               char *text, dt_error_t *err)
{
    char meta[OPERAND_BYTES / 2], at[OPERAND_BYTES / 2], both[OPERAND_BYTES + 8];
    const dt_shard_mesh_t *mesh = e->mesh_of(e->arg, tensor->layout.mesh);
    if (!mesh)
        return dt_fail(err, DT_ERR_INVALID, "dt", tensor->layout.mesh,
                       "%s: there is no mesh %" PRIu32, e->signature->name, tensor->layout.mesh);
    dt_meta_print(&tensor->meta, meta, sizeof meta);
    if (mesh->count == 1)
        (void)snprintf(at, sizeof at, "on %" PRIu64, mesh->vdevs[0]);
    else
        dt_layout_print(&tensor->layout, at, sizeof at);
    (void)snprintf(both, sizeof both, "%s%s %s", *text ? "; " : "", meta, at);
    append(text, both);
    e->to->bytes += dt_meta_bytes(&tensor->meta);
    return DT_OK;
}

/* Inputs, then outputs. NULL: that output is none. */
static const dt_signature_tensor_t *tensor_at(const dt_signature_t *s, uint32_t i)
{
    if (i < s->input_count)
        return &s->inputs[i];
    const dt_signature_tensor_t *output = &s->outputs[i - s->input_count];
    return output->alias == DT_ALIAS_NONE ? NULL : output;
}

static dt_status_t add_operands(const explaining_t *e, dt_error_t *err)
{
    const dt_signature_t *s = e->signature;
    for (uint32_t i = 0; i < s->input_count + s->output_count; i++) {
        const dt_signature_tensor_t *tensor = tensor_at(s, i);
        if (tensor)
            DT_TRY(
                add_operand(e, tensor, i < s->input_count ? e->to->inputs : e->to->outputs, err));
    }
    return DT_OK;
}

/* ---- rules ---- */

/* The rule's line, its blanks put together. */
static void put_line(const dt_shard_rule_t *rule, char *text)
{
    size_t at = 0;
    for (const char *c = rule->name.at; *c && at + 1 < DT_SHARD_EXPLAIN_TEXT; c++)
        if (*c != ' ' || (at > 0 && text[at - 1] != ' '))
            text[at++] = *c;
    while (at > 0 && text[at - 1] == ' ')
        at--;
    text[at] = '\0';
}

static const char *label_name(int label, char name[8])
{
    if (label < 0)
        return "whole";
    if (label == 0)
        return "parts";
    if (label == (int)DT_SHARD_LABEL_ROWS)
        return "rows";
    (void)snprintf(name, 8, label < 128 ? "%c" : "dim %d", label < 128 ? label : label - 128);
    return name;
}

static bool is_everything_whole(const dt_signature_t *s)
{
    for (uint32_t i = 0; i < s->input_count + s->output_count; i++) {
        const dt_signature_tensor_t *tensor = tensor_at(s, i);
        if (tensor && !dt_layout_is_replicate(&tensor->layout))
            return false;
    }
    return true;
}

static void put_rule(const explaining_t *e, const dt_shard_mesh_t *mesh)
{
    int labels[DT_RECORD_MESH_DIM_MAX];
    char name[8];
    bool is_in_place;
    const dt_signature_t *s = e->signature;
    const dt_shard_rule_t *rule = dt_shard_rules_find(e->rules, s->name, &is_in_place);
    if (dt_shard_is_attention(s->name))
        append(e->to->rule, "a block of attention, keys from device to device");
    else if (!rule)
        append(e->to->rule, "no rule");
    else
        put_line(rule, e->to->rule);
    if (is_everything_whole(s)) {
        append(e->to->rule, ": whole");
        return;
    }
    if (!rule || !dt_shard_row_labels(e->rules, s, mesh, labels))
        return;
    for (unsigned k = 0; k < mesh->ndim; k++) {
        append(e->to->rule, k ? ", " : ": ");
        append(e->to->rule, label_name(labels[k], name));
    }
}

/* ---- moves ---- */

static dt_status_t put_steps(const explaining_t *e, dt_error_t *err)
{
    const dt_signature_tensor_t *in = e->signature->inputs, *out = e->signature->outputs;
    dt_shard_plan_t chosen;
    dt_layout_t from = in->layout, to = out->layout;
    dt_shard_pair_t pair = {.meta = &in->meta,
                            .from_mesh = e->mesh_of(e->arg, from.mesh),
                            .to_mesh = e->mesh_of(e->arg, to.mesh),
                            .from = &from,
                            .to = &to};
    if (pair.from_mesh->count == 1) /* however it is written, it is the whole there */
        from = dt_layout_replicate(from.mesh, pair.from_mesh->ndim);
    if (pair.to_mesh->count == 1)
        to = dt_layout_replicate(to.mesh, pair.to_mesh->ndim);
    DT_TRY(dt_shard_plan_choose(&pair, NULL, NULL, &chosen, err));
    for (uint32_t k = 0; k < chosen.step_count; k++) {
        append(e->to->steps, k ? ", " : "");
        append(e->to->steps, dt_shard_step_name(chosen.steps[k].kind));
    }
    if (chosen.step_count == 0)
        append(e->to->steps, "nothing moves");
    e->to->bytes = chosen.recv_bytes;
    e->to->cost_us = chosen.cost_us;
    return DT_OK;
}

dt_status_t dt_shard_explain(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                             dt_shard_mesh_fn *mesh_of, void *arg,
                             dt_shard_explained_t *ret_explained, dt_error_t *err)
{
    const explaining_t e = {rules, signature, mesh_of, arg, ret_explained};
    const dt_shard_mesh_t *mesh;
    memset(ret_explained, 0, sizeof *ret_explained);
    DT_TRY(add_operands(&e, err));
    if (signature->input_count > 0)
        ret_explained->mesh = signature->inputs[0].layout.mesh;
    else if (signature->output_count > 0)
        ret_explained->mesh = signature->outputs[0].layout.mesh;
    mesh = mesh_of(arg, ret_explained->mesh);
    if (!mesh)
        return dt_fail(err, DT_ERR_INVALID, "dt", ret_explained->mesh, "%s: there is no mesh",
                       signature->name);
    ret_explained->is_move = dt_str_is_equal(signature->name, DT_SHARD_EXPLAIN_MOVE) &&
                             signature->input_count == 1 && signature->output_count == 1;
    if (ret_explained->is_move)
        return put_steps(&e, err);
    /* Across meshes there are parts and their whole, by no rule. */
    for (uint32_t i = 0; i < signature->input_count + signature->output_count; i++) {
        const dt_signature_tensor_t *tensor = tensor_at(signature, i);
        if (tensor && tensor->layout.mesh != ret_explained->mesh)
            return DT_OK;
    }
    if (mesh->count == 1)
        return DT_OK; /* no rule is asked */
    for (uint32_t i = 0; i < signature->input_count + signature->output_count; i++) {
        const dt_signature_tensor_t *tensor = tensor_at(signature, i);
        if (tensor)
            DT_TRY(dt_layout_check(&tensor->layout, mesh, &tensor->meta, err));
    }
    put_rule(&e, mesh);
    return DT_OK;
}
