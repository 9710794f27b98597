/* Binding: a line's template meets a call. Every dimension of every tensor gets a label; dimensions
 * with one label may be sharded together. Labels come from the global sizes, once for a call. */
#include <math.h>
#include <string.h>

#include "shard/rules_internal.h"

/* ---- attributes ---- */

static const dt_value_t *given(const dt_shard_call_t *call, unsigned param)
{
    const dt_signature_t *s = call->signature;
    return param < s->arg_count && s->args[param].tag != DT_VALUE_DEFAULT ? &s->args[param] : NULL;
}

dt_shard_attr_t dt_shard_attr_of(const dt_shard_call_t *call, unsigned param)
{
    const dt_shard_param_t *p = &call->rule->params[param];
    const dt_value_t *value = given(call, param);
    dt_shard_attr_t none = {.kind = DT_SHARD_ATTR_NONE};
    dt_shard_attr_t number = {.kind = DT_SHARD_ATTR_NUMBER};
    if (!value) {
        number.number = p->number;
        number.real = (double)p->number;
        return p->has_default ? number : none;
    }
    switch (value->tag) {
    case DT_VALUE_NONE:
        return none;
    case DT_VALUE_TRUE:
    case DT_VALUE_FALSE:
    case DT_VALUE_INT:
        number.number = value->tag == DT_VALUE_INT ? value->number : value->tag == DT_VALUE_TRUE;
        number.real = (double)number.number;
        return number;
    case DT_VALUE_DOUBLE:
        number.real = value->real;
        number.number = value->real > -1e18 && value->real < 1e18 ? (int64_t)value->real : 0;
        return number;
    case DT_VALUE_INTS:
        return (dt_shard_attr_t){
            .kind = DT_SHARD_ATTR_LIST, .count = value->count, .ints = value->ints};
    default:
        return (dt_shard_attr_t){.kind = DT_SHARD_ATTR_UNKNOWN};
    }
}

dt_shard_attr_t dt_shard_attr(const dt_shard_call_t *call, const char *name)
{
    const dt_shard_rule_t *rule = call->rule;
    size_t size = strlen(name);
    for (unsigned i = 0; i < rule->param_count; i++)
        if (rule->params[i].kind == DT_SHARD_PARAM_ATTR && rule->params[i].name.size == size &&
            memcmp(rule->params[i].name.at, name, size) == 0)
            return dt_shard_attr_of(call, i);
    return (dt_shard_attr_t){.kind = DT_SHARD_ATTR_NONE};
}

/* ---- tensors of the call ---- */

static char kind_of(unsigned dtype)
{
    if (dtype == DT_DTYPE_BOOL)
        return 'b';
    if (dtype == DT_DTYPE_C32 || dtype == DT_DTYPE_C64 || dtype == DT_DTYPE_C128)
        return 'c';
    bool is_integer = dtype <= DT_DTYPE_I64 || (dtype >= DT_DTYPE_U16 && dtype <= DT_DTYPE_U64);
    return is_integer ? 'i' : 'f';
}

/* A number in a tensor's place: shape (). */
static const dt_meta_t *number_meta(const dt_value_t *value)
{
    static const dt_meta_t metas[] = {{.dtype = DT_DTYPE_I64},
                                      {.dtype = DT_DTYPE_F64},
                                      {.dtype = DT_DTYPE_C128},
                                      {.dtype = DT_DTYPE_BOOL}};
    if (value->tag == DT_VALUE_INT)
        return &metas[0];
    if (value->tag == DT_VALUE_COMPLEX)
        return &metas[2];
    return &metas[value->tag == DT_VALUE_TRUE || value->tag == DT_VALUE_FALSE ? 3 : 1];
}

static bool add_input(dt_shard_call_t *call, const dt_meta_t *meta, int32_t at)
{
    if (call->in_count == DT_SHARD_TENSOR_MAX)
        return false;
    call->ins[call->in_count++] = (dt_shard_tensor_t){.meta = meta,
                                                      .at = at,
                                                      .kind = kind_of(meta->dtype),
                                                      .is_linear = true,
                                                      .slot = (uint8_t)call->slot_count};
    return true;
}

static bool is_written(const dt_signature_t *s, uint32_t input)
{
    for (uint32_t j = 0; j < s->output_count; j++)
        if (s->outputs[j].alias == DT_ALIAS_IN_PLACE && s->outputs[j].input == input)
            return true;
    return false;
}

/* Take argument `i`; *next is the next tensor input. */
static bool argument(dt_shard_call_t *call, uint32_t i, uint32_t *next)
{
    const dt_shard_rule_t *rule = call->rule;
    const dt_signature_t *s = call->signature;
    const dt_value_t *arg = &s->args[i];
    bool is_slot = i < rule->param_count && rule->params[i].kind == DT_SHARD_PARAM_TENSOR;
    bool is_tensor =
        arg->tag == DT_VALUE_TENSOR || arg->tag == DT_VALUE_TENSORS || arg->tag == DT_VALUE_STORAGE;
    if (is_tensor && !is_slot) { /* only an argument that results are written to */
        bool is_out = i >= rule->param_count && arg->tag == DT_VALUE_TENSOR;
        uint32_t input = (*next)++;
        if (!is_out || !is_written(s, input))
            return false;
        call->out_first = call->out_first < call->in_count ? call->out_first : call->in_count;
        return add_input(call, &s->inputs[input].meta, (int32_t)input);
    }
    if (!is_slot)
        return true;
    dt_shard_slot_t *slot = &call->slots[call->slot_count];
    *slot = (dt_shard_slot_t){.first = call->in_count, .param = i};
    bool fits = true;
    if (arg->tag == DT_VALUE_TENSOR) {
        fits = add_input(call, &s->inputs[*next].meta, (int32_t)*next);
        (*next)++;
    } else if (arg->tag == DT_VALUE_TENSORS) {
        for (uint32_t k = 0; k < arg->count && fits; k++)
            if (arg->ids[k] != 0) {
                fits = add_input(call, &s->inputs[*next].meta, (int32_t)*next);
                (*next)++;
            }
    } else if (arg->tag == DT_VALUE_STORAGE) {
        return false;
    } else if (arg->tag != DT_VALUE_NONE && arg->tag != DT_VALUE_DEFAULT) {
        fits = add_input(call, number_meta(arg), -1);
    }
    slot->count = call->in_count - slot->first;
    call->slot_count++;
    return fits;
}

static bool tensors(dt_shard_call_t *call)
{
    const dt_signature_t *s = call->signature;
    uint32_t next = 0;
    call->out_first = DT_SHARD_TENSOR_MAX;
    if (call->rule->slot_count > DT_SHARD_SPEC_MAX || s->output_count > DT_SHARD_TENSOR_MAX)
        return false;
    for (uint32_t i = 0; i < s->arg_count; i++)
        if (!argument(call, i, &next))
            return false;
    for (; call->slot_count < call->rule->slot_count; call->slot_count++)
        call->slots[call->slot_count] = (dt_shard_slot_t){.first = call->in_count};
    call->out_first = call->out_first < call->in_count ? call->out_first : call->in_count;
    for (uint32_t j = 0; j < s->output_count; j++)
        if (s->outputs[j].alias != DT_ALIAS_NONE)
            call->outs[call->out_count++] =
                (dt_shard_tensor_t){.meta = &s->outputs[j].meta,
                                    .at = (int32_t)j,
                                    .kind = kind_of(s->outputs[j].meta.dtype)};
    return next == s->input_count;
}

/* ---- literal templates ---- */

static bool has(dt_shard_text_t text, char c)
{
    return memchr(text.at, c, text.size) != NULL;
}

/* "1~": a dimension of size 1 for each that the tail stands for. */
static bool is_thin(dt_shard_text_t text)
{
    return text.size > 1 && memmem(text.at, text.size, "1~", 2) != NULL;
}

/* Dimensions that are spelled out. */
static int fixed_dims(dt_shard_text_t text)
{
    return (int)text.size - (is_thin(text) ? 2 : has(text, '~')) - has(text, '.');
}

static int dots_of(dt_shard_text_t text, int ndim, int tail)
{
    return ndim - fixed_dims(text) - (has(text, '~') ? tail : 0);
}

static int prefix_of(dt_shard_text_t text)
{
    const char *dot = memchr(text.at, '.', text.size);
    return dot ? (int)(dot - text.at) : 0;
}

typedef struct literal {
    int tail;                       /* dimensions of ~ beside a dot */
    int dots;                       /* most dimensions that a dot stands for */
    int64_t sizes[DT_META_DIM_MAX]; /* (dots) of these, broadcast */
    int64_t label_sizes[256];       /* of labels of the inputs without ^; -1: unknown */
} literal_t;

/* Labels of one tensor. `is_input`: a dot's dimension that broadcasts has none. */
static bool literal_labels(const literal_t *l, const dt_shard_spec_t *spec, bool is_input,
                           dt_shard_tensor_t *to)
{
    dt_shard_text_t text = spec->text;
    int ndim = to->meta->ndim, n = 0, dots = dots_of(text, ndim, l->tail);
    int tail = has(text, '.') ? l->tail : ndim - fixed_dims(text) - (is_thin(text) ? 1 : 0);
    uint32_t from = 0;
    if (text.size == 1 && *text.at == '_')
        return true; /* all whole */
    if (has(text, '.') && dots < 0)
        return false;
    if (spec->is_broadcast && !has(text, '.') && !has(text, '~') && ndim < (int)text.size)
        from = text.size - (uint32_t)ndim;
    for (uint32_t i = from; i < text.size; i++) {
        char c = text.at[i];
        int count = c == '.' ? dots : c == '~' ? (is_thin(text) ? tail - 1 : tail) : 1;
        for (int k = 0; k < count; k++, n++) {
            int b = l->dots - dots + k; /* which of the broadcast dimensions */
            bool passes = c == '.' && b >= 0 && (!is_input || to->meta->sizes[n] == l->sizes[b]);
            if (n >= ndim)
                return false;
            to->labels[n] = passes ? (uint8_t)(128 + b) : c >= 'a' && c <= 'z' ? (uint8_t)c : 0;
        }
    }
    if (n != ndim)
        return false;
    for (int d = 0; d < ndim && spec->is_broadcast; d++) {
        int64_t size = l->label_sizes[to->labels[d]];
        if (to->labels[d] && to->meta->sizes[d] == 1 && size >= 0 && size != 1)
            to->labels[d] = 0;
    }
    return true;
}

/* Sizes of the dimensions that dots stand for, aligned right. */
static void measure_dots(const dt_shard_call_t *call, const dt_shard_spec_t *const *specs,
                         literal_t *l)
{
    for (uint32_t i = 0; i < call->in_count; i++) {
        int dots = specs[i] && has(specs[i]->text, '.')
                       ? dots_of(specs[i]->text, call->ins[i].meta->ndim, l->tail)
                       : 0;
        l->dots = dots > l->dots ? dots : l->dots;
    }
    for (int b = 0; b < l->dots; b++)
        l->sizes[b] = 1;
    for (uint32_t i = 0; i < call->in_count; i++) {
        if (!specs[i] || !has(specs[i]->text, '.'))
            continue;
        const dt_meta_t *meta = call->ins[i].meta;
        int dots = dots_of(specs[i]->text, meta->ndim, l->tail), first = prefix_of(specs[i]->text);
        for (int k = 0; k < dots; k++)
            if (meta->sizes[first + k] != 1)
                l->sizes[l->dots - dots + k] = meta->sizes[first + k];
    }
}

static bool bind_literal(dt_shard_call_t *call, const dt_shard_spec_t *const *ins,
                         const dt_shard_spec_t *const *outs)
{
    literal_t l = {.tail = 0};
    if (call->rule->tail >= 0) {
        dt_shard_attr_t list = dt_shard_attr_of(call, (unsigned)call->rule->tail);
        if (list.kind != DT_SHARD_ATTR_LIST || list.count > DT_META_DIM_MAX)
            return false;
        l.tail = (int)list.count;
    }
    measure_dots(call, ins, &l);
    memset(l.label_sizes, 0xff, sizeof l.label_sizes);
    for (int late = 0; late < 2; late++)
        for (uint32_t i = 0; i < call->in_count; i++) {
            if (!ins[i] || ins[i]->is_broadcast != (late == 1))
                continue;
            if (!literal_labels(&l, ins[i], true, &call->ins[i]))
                return false;
            for (int d = 0; d < call->ins[i].meta->ndim && !late; d++)
                l.label_sizes[call->ins[i].labels[d]] = call->ins[i].meta->sizes[d];
        }
    for (uint32_t j = 0; j < call->out_count; j++)
        if (!literal_labels(&l, outs[j], false, &call->outs[j]))
            return false;
    return true;
}

/* ---- family DIM ---- */

static bool is_base(const dt_shard_spec_t *spec)
{
    return spec && spec->text.size && strchr("bBi", *spec->text.at);
}

static bool dim_labels(const dt_shard_spec_t *spec, int base, uint32_t named, bool keeps,
                       dt_shard_tensor_t *to)
{
    dt_shard_text_t text = spec->text;
    int ndim = to->meta->ndim, n = 0;
    int kind = text.size ? *text.at : 'r';
    if (kind == 'z' || kind == 'Z') {
        for (int d = 0; d < ndim; d++)
            to->labels[d] = kind == 'z' ? 'z' : 0;
        return true;
    }
    if (kind == '_')
        return true;
    for (int d = 0; d < base; d++) {
        bool is_named = named >> d & 1;
        if (kind == 'r' && is_named && !keeps)
            continue;
        if (n >= ndim)
            return false;
        to->labels[n++] = !is_named || kind == 'b' ? (uint8_t)('a' + d) : kind == 'i' ? 'z' : 0;
    }
    return n + (text.size ? (int)text.size - 1 : 0) == ndim;
}

/* The dimensions that the words name; bit d. False: they are not known. */
static bool named_dims(const dt_shard_call_t *call, int base, uint32_t *ret_named)
{
    const dt_shard_rule_t *rule = call->rule;
    for (unsigned w = 0; w < rule->word_count && base > 0; w++) {
        dt_shard_attr_t a = {.kind = DT_SHARD_ATTR_NONE};
        if (rule->is_word_number[w])
            a = (dt_shard_attr_t){.kind = DT_SHARD_ATTR_NUMBER, .number = rule->words[w]};
        else if (rule->words[w] >= 0)
            a = dt_shard_attr_of(call, (unsigned)rule->words[w]);
        if (a.kind == DT_SHARD_ATTR_UNKNOWN)
            return false;
        if (a.kind == DT_SHARD_ATTR_NONE || (a.kind == DT_SHARD_ATTR_LIST && a.count == 0))
            *ret_named |= (1u << base) - 1;
        uint32_t count = a.kind == DT_SHARD_ATTR_LIST ? a.count : a.kind == DT_SHARD_ATTR_NUMBER;
        for (uint32_t i = 0; i < count; i++) {
            int64_t d = a.kind == DT_SHARD_ATTR_LIST ? a.ints[i] : a.number;
            if (d < -base || d >= base)
                return false;
            *ret_named |= 1u << (d < 0 ? d + base : d);
        }
    }
    return true;
}

/* cat takes tensors of shape (0,) among others of any rank, and passes over them. */
static void ignore_placeholders(dt_shard_call_t *call)
{
    const dt_shard_rule_t *rule = call->rule;
    for (uint32_t i = 0; i < call->out_first && call->out_count == 1; i++) {
        const dt_meta_t *meta = call->ins[i].meta;
        call->ins[i].is_ignored = rule->in_count == 1 && *rule->ins[0].text.at == 'B' &&
                                  meta->ndim == 1 && meta->sizes[0] == 0 &&
                                  call->outs[0].meta->ndim > 1 && call->slots[0].count > 1;
    }
}

/* Of all tensors that are joined only one is not passed over: it is its copy, cut as it is. */
static bool joins_one(const dt_shard_call_t *call)
{
    uint32_t ignored = 0;
    for (uint32_t i = 0; i < call->out_first && call->out_count == 1; i++)
        ignored += call->ins[i].is_ignored;
    return ignored > 0 && ignored + 1 == call->out_first;
}

static bool bind_dim(dt_shard_call_t *call, const dt_shard_spec_t *const *ins,
                     const dt_shard_spec_t *const *outs)
{
    int base = 0;
    bool found = false, has_fresh = false, keeps = false;
    uint32_t named = 0;
    ignore_placeholders(call);
    for (uint32_t i = 0; i < call->in_count + call->out_count; i++) {
        bool is_in = i < call->in_count;
        const dt_shard_spec_t *spec = is_in ? ins[i] : outs[i - call->in_count];
        if (!spec || (is_in && call->ins[i].is_ignored))
            continue;
        int ndim = is_in ? call->ins[i].meta->ndim : call->outs[i - call->in_count].meta->ndim;
        has_fresh |= is_in && spec->text.size == 1 && strchr("zZ", *spec->text.at);
        if (!found && is_base(spec))
            base = ndim - (int)spec->text.size + 1;
        found |= is_base(spec);
    }
    if (base < 0 || (base == 0 && has_fresh) || !named_dims(call, base, &named))
        return false;
    if (joins_one(call))
        named = 0;
    if (call->rule->keepdim >= 0) {
        dt_shard_attr_t a = dt_shard_attr_of(call, (unsigned)call->rule->keepdim);
        if (a.kind == DT_SHARD_ATTR_UNKNOWN)
            return false;
        keeps = a.number != 0;
    }
    for (uint32_t i = 0; i < call->in_count; i++)
        if (ins[i] && !call->ins[i].is_ignored &&
            !dim_labels(ins[i], base, named, keeps, &call->ins[i]))
            return false;
    for (uint32_t j = 0; j < call->out_count; j++)
        if (!dim_labels(outs[j], base, named, keeps, &call->outs[j]))
            return false;
    return true;
}

/* ---- which template ---- */

static const dt_shard_spec_t spec_dots = {.text = {".", 1}};
static const dt_shard_spec_t spec_whole = {.text = {"_", 1}};
static const dt_shard_spec_t spec_scalar = {.text = {"", 0}};

typedef struct specs {
    const dt_shard_spec_t *ins[DT_SHARD_TENSOR_MAX], *outs[DT_SHARD_TENSOR_MAX];
    dt_shard_spec_t made[4]; /* those of CONV */
} specs_t;

/* The line's own template, one spec a tensor argument and result. */
static bool own_template(dt_shard_call_t *call, specs_t *specs)
{
    const dt_shard_rule_t *rule = call->rule;
    for (uint32_t i = 0; i < call->out_first; i++) {
        if (call->ins[i].slot >= rule->in_count)
            return false; /* an argument that the template does not know */
        specs->ins[i] = &rule->ins[call->ins[i].slot];
    }
    for (uint32_t j = 0; j < call->out_count; j++) {
        uint32_t at = rule->out_count == 1 ? 0 : (uint32_t)call->outs[j].at;
        if (at >= rule->out_count)
            return false;
        specs->outs[j] = &rule->outs[at];
    }
    return true;
}

static void pointwise_template(dt_shard_call_t *call, specs_t *specs, const dt_shard_spec_t *result)
{
    for (uint32_t i = 0; i < call->out_first; i++)
        specs->ins[i] = &spec_dots;
    for (uint32_t j = 0; j < call->out_count; j++)
        specs->outs[j] = result;
}

/* Losses: reduction 0 none, 1 mean, 2 sum. */
static bool loss_template(dt_shard_call_t *call, specs_t *specs)
{
    unsigned family = call->rule->family;
    dt_shard_attr_t a = dt_shard_attr(call, "reduction");
    int64_t reduction = a.kind == DT_SHARD_ATTR_NONE ? 1 : a.number;
    if (a.kind == DT_SHARD_ATTR_UNKNOWN || reduction < 0 || reduction > 2)
        return false;
    bool is_mean = reduction == 1, is_none = reduction == 0;
    if (is_mean && family == DT_SHARD_FAMILY_LOSSNB)
        return false;                                             /* divides by the local count, */
    call->is_scaled = is_mean && family == DT_SHARD_FAMILY_LOSSB; /* this one is mended */
    if (family == DT_SHARD_FAMILY_LOSS || family == DT_SHARD_FAMILY_LOSSB) {
        bool is_whole = is_none || family == DT_SHARD_FAMILY_LOSSB;
        pointwise_template(call, specs, is_whole ? &spec_dots : &spec_scalar);
    } else if (!own_template(call, specs)) {
        return false;
    }
    if (family == DT_SHARD_FAMILY_NLL && is_mean) /* weighs by class, skips ignored rows */
        return false;
    if (family == DT_SHARD_FAMILY_LOSS || family == DT_SHARD_FAMILY_NLL ||
        family == DT_SHARD_FAMILY_LOSSN)
        call->reduce = is_none   ? DT_SHARD_REDUCE_NONE
                       : is_mean ? DT_SHARD_REDUCE_AVG
                                 : DT_SHARD_REDUCE_SUM;
    if (family == DT_SHARD_FAMILY_NLL || family == DT_SHARD_FAMILY_LOSSN)
        for (uint32_t j = 0; j < call->out_count && !is_none; j++)
            if (call->outs[j].at == 0 || specs->outs[j]->has_deps)
                specs->outs[j] = &spec_scalar;
    if (family == DT_SHARD_FAMILY_NLLB || family == DT_SHARD_FAMILY_LOSSNB)
        for (uint32_t i = 0; i < call->in_count && !is_none; i++)
            if (call->ins[i].slot == 0)
                specs->ins[i] = &spec_whole;
    return true;
}

/* Channels pass only without groups. */
static bool conv_template(dt_shard_call_t *call, specs_t *specs)
{
    dt_shard_attr_t groups = dt_shard_attr(call, "groups");
    dt_shard_attr_t transposed = dt_shard_attr(call, "transposed");
    if (groups.kind == DT_SHARD_ATTR_UNKNOWN || transposed.kind == DT_SHARD_ATTR_UNKNOWN)
        return false;
    bool is_one = groups.kind == DT_SHARD_ATTR_NONE || groups.number == 1;
    bool swaps = transposed.number != 0;
    static const char *const texts[2][2][4] = {
        {{"nC~", "OC~", "O", "nO~"}, {"nC~", "CO~", "O", "nO~"}},
        {{"nc~", "oc~", "o", "no~"}, {"nc~", "co~", "o", "no~"}}};
    for (unsigned k = 0; k < 4; k++) {
        const char *text = texts[is_one][swaps][k];
        specs->made[k] = (dt_shard_spec_t){.text = {text, (uint32_t)strlen(text)}};
    }
    const dt_shard_spec_t *in = &specs->made[0], *weight = &specs->made[1];
    const dt_shard_spec_t *bias = &specs->made[2], *out = &specs->made[3];
    specs->made[2].term = !call->rule->is_back;
    const dt_shard_spec_t *forward[] = {in, weight, bias}, *backward[] = {out, in, weight};
    const dt_shard_spec_t *results[] = {in, weight, bias};
    static const uint16_t deps[] = {5, 3, 1}; /* arguments that each gradient is made of */
    for (uint32_t i = 0; i < call->out_first; i++) {
        if (call->ins[i].slot > 2)
            return false;
        specs->ins[i] = (call->rule->is_back ? backward : forward)[call->ins[i].slot];
    }
    for (uint32_t j = 0; j < call->out_count; j++) {
        int32_t at = call->outs[j].at;
        if (at > (call->rule->is_back ? 2 : 0))
            return false;
        specs->outs[j] = call->rule->is_back ? results[at] : out;
        call->outs[j].has_deps = call->rule->is_back;
        call->outs[j].deps = call->rule->is_back ? deps[at] : 0;
    }
    return true;
}

static bool choose_template(dt_shard_call_t *call, specs_t *specs)
{
    const dt_shard_rule_t *rule = call->rule;
    switch (rule->family) {
    case DT_SHARD_FAMILY_PW:
        pointwise_template(call, specs, &spec_dots);
        return true;
    case DT_SHARD_FAMILY_LOSS:
    case DT_SHARD_FAMILY_LOSSB:
    case DT_SHARD_FAMILY_LOSSN:
    case DT_SHARD_FAMILY_LOSSNB:
    case DT_SHARD_FAMILY_NLL:
    case DT_SHARD_FAMILY_NLLB:
        return loss_template(call, specs);
    case DT_SHARD_FAMILY_CONV:
        return conv_template(call, specs);
    default:
        break;
    }
    if (rule->is_same && call->ins[0].meta->ndim != call->ins[call->slots[1].first].meta->ndim)
        return false;
    return own_template(call, specs);
}

/* ord: 0 and 1 add up, the infinities are extremes; others have no row. */
static bool vnorm(dt_shard_call_t *call, specs_t *specs)
{
    static const dt_shard_spec_t all = {.text = {"b", 1}}, reduced = {.text = {"r", 1}};
    dt_shard_attr_t a = dt_shard_attr(call, "ord");
    double ord = a.kind == DT_SHARD_ATTR_NONE ? 2 : a.real;
    if (a.kind == DT_SHARD_ATTR_UNKNOWN)
        return false;
    call->reduce = ord == 0 || ord == 1       ? DT_SHARD_REDUCE_SUM
                   : ord == (double)INFINITY  ? DT_SHARD_REDUCE_MAX
                   : ord == -(double)INFINITY ? DT_SHARD_REDUCE_MIN
                                              : DT_SHARD_REDUCE_NONE;
    for (uint32_t i = 0; i < call->out_first; i++)
        specs->ins[i] = &all;
    for (uint32_t j = 0; j < call->out_count; j++)
        specs->outs[j] = &reduced;
    return true;
}

static bool labels(dt_shard_call_t *call)
{
    const dt_shard_rule_t *rule = call->rule;
    specs_t specs;
    bool is_dim = rule->family == DT_SHARD_FAMILY_DIM;
    for (uint32_t i = 0; i < call->in_count; i++)
        specs.ins[i] = NULL; /* out= arguments keep none */
    if (rule->family == DT_SHARD_FAMILY_VNORM ? !vnorm(call, &specs)
                                              : !choose_template(call, &specs))
        return false;
    for (uint32_t i = 0; i < call->out_first; i++) {
        call->ins[i].term = specs.ins[i]->term;
        call->ins[i].is_linear = !specs.ins[i]->is_nonlinear;
    }
    for (uint32_t j = 0; j < call->out_count; j++)
        if (specs.outs[j]->has_deps) {
            call->outs[j].has_deps = true;
            call->outs[j].deps = specs.outs[j]->deps;
        }
    return is_dim || rule->family == DT_SHARD_FAMILY_VNORM
               ? bind_dim(call, specs.ins, specs.outs)
               : bind_literal(call, specs.ins, specs.outs);
}

static void begin(dt_shard_call_t *call, const dt_shard_rule_t *rule,
                  const dt_signature_t *signature, bool is_in_place)
{
    call->rule = rule;
    call->signature = signature;
    call->is_in_place = is_in_place;
    call->is_scaled = false;
    call->reduce = rule->reduce;
    call->in_count = call->out_count = call->slot_count = 0;
    call->out_first = DT_SHARD_TENSOR_MAX;
    for (unsigned i = 0; i < 256; i++)
        call->divisors[i] = 1;
}

bool dt_shard_bind(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                   dt_shard_call_t *ret_call)
{
    bool is_in_place;
    const dt_shard_rule_t *rule = dt_shard_rules_find(rules, signature->name, &is_in_place);
    if (!rule || rule->family == DT_SHARD_FAMILY_REPL || rule->family == DT_SHARD_FAMILY_RAND ||
        rule->family == DT_SHARD_FAMILY_EACH ||
        (signature->flags & (DT_SIGNATURE_RANDOM | DT_SIGNATURE_UNKNOWN)))
        return false;
    begin(ret_call, rule, signature, is_in_place);
    if (!tensors(ret_call))
        return false;
    if (rule->unless >= 0 && dt_shard_attr_of(ret_call, (unsigned)rule->unless).number != 0)
        return false;
    if (ret_call->reduce == DT_SHARD_REDUCE_UNSET)
        ret_call->reduce = rule->has_terms || rule->family == DT_SHARD_FAMILY_LITERAL ||
                                   rule->family == DT_SHARD_FAMILY_CONV
                               ? DT_SHARD_REDUCE_SUM
                               : DT_SHARD_REDUCE_NONE;
    switch (rule->family) {
    case DT_SHARD_FAMILY_VIEW:
    case DT_SHARD_FAMILY_EXPAND:
    case DT_SHARD_FAMILY_PERM:
    case DT_SHARD_FAMILY_SQUEEZE:
    case DT_SHARD_FAMILY_REPEAT:
    case DT_SHARD_FAMILY_PAD:
    case DT_SHARD_FAMILY_INDEX:
    case DT_SHARD_FAMILY_FACT:
        return dt_shard_bind_family(ret_call);
    default:
        return labels(ret_call);
    }
}

/* ---- lists, element by element ---- */

uint32_t dt_shard_element_count(const dt_shard_rules_t *rules, const dt_signature_t *signature)
{
    bool is_in_place;
    const dt_shard_rule_t *rule = dt_shard_rules_find(rules, signature->name, &is_in_place);
    if (!rule || rule->family != DT_SHARD_FAMILY_EACH || signature->arg_count == 0 ||
        signature->args[0].tag != DT_VALUE_TENSORS)
        return 0;
    return signature->args[0].count;
}

/* The element's tensors: one of each list, and single tensors without dimensions. */
static bool element_inputs(dt_shard_call_t *call, uint32_t element)
{
    const dt_signature_t *s = call->signature;
    uint32_t next = 0, all = s->args[0].count;
    for (uint32_t i = 0; i < s->arg_count; i++) {
        const dt_value_t *arg = &s->args[i];
        uint32_t count = arg->tag == DT_VALUE_TENSORS ? arg->count : arg->tag == DT_VALUE_TENSOR;
        uint32_t at = next + (arg->tag == DT_VALUE_TENSORS ? element : 0);
        for (uint32_t k = 0; arg->tag == DT_VALUE_TENSORS && k < count; k++)
            if (arg->ids[k] == 0)
                return false;
        next += count;
        if (count == 0)
            continue;
        bool fits = arg->tag == DT_VALUE_TENSORS ? count == all : s->inputs[at].meta.ndim == 0;
        if (!fits || call->slot_count == DT_SHARD_SPEC_MAX ||
            !add_input(call, &s->inputs[at].meta, (int32_t)at))
            return false;
        call->slots[call->slot_count] =
            (dt_shard_slot_t){.first = call->in_count - 1, .count = 1, .param = i};
        call->slot_count++;
    }
    return next == s->input_count;
}

/* Its results: the inputs that are written, or one new tensor. */
static bool element_outputs(dt_shard_call_t *call, uint32_t element)
{
    const dt_signature_t *s = call->signature;
    for (uint32_t j = 0; j < s->output_count; j++) {
        const dt_signature_tensor_t *out = &s->outputs[j];
        bool is_own = out->alias != DT_ALIAS_IN_PLACE && j == element;
        for (uint32_t i = 0; i < call->in_count; i++)
            is_own |= out->alias == DT_ALIAS_IN_PLACE && (int32_t)out->input == call->ins[i].at;
        if (!is_own)
            continue;
        if (out->alias == DT_ALIAS_NONE || call->out_count == DT_SHARD_TENSOR_MAX)
            return false;
        call->outs[call->out_count++] = (dt_shard_tensor_t){
            .meta = &out->meta, .at = (int32_t)j, .kind = kind_of(out->meta.dtype)};
    }
    return call->out_count > 0;
}

bool dt_shard_bind_element(const dt_shard_rules_t *rules, const dt_signature_t *signature,
                           uint32_t element, dt_shard_call_t *ret_call)
{
    bool is_in_place;
    specs_t specs;
    begin(ret_call, dt_shard_rules_find(rules, signature->name, &is_in_place), signature, false);
    if ((signature->flags & (DT_SIGNATURE_RANDOM | DT_SIGNATURE_UNKNOWN)) ||
        !element_inputs(ret_call, element) || !element_outputs(ret_call, element))
        return false;
    ret_call->out_first = ret_call->in_count;
    ret_call->reduce = DT_SHARD_REDUCE_NONE;
    pointwise_template(ret_call, &specs, &spec_dots);
    return bind_literal(ret_call, specs.ins, specs.outs);
}
