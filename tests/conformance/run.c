/* One case on two backends. */
#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

#define ELEMENT_MAX 4096
#define INTS_MAX    32

static unsigned dtype_of(char letter)
{
    return letter == 'f'   ? DT_DTYPE_F32
           : letter == 'd' ? DT_DTYPE_F64
           : letter == 'i' ? DT_DTYPE_I64
                           : DT_DTYPE_BOOL;
}

/* ---- one side: a backend with the tensors and the results of the case ---- */
typedef struct side {
    const dt_conf_backend_t *backend;
    void *tensors[DT_CONF_TENSOR_MAX];
    void *owned[2 * DT_CONF_TENSOR_MAX]; /* what the tensors are views of, and they */
    uint32_t owned_count;
    uint32_t tensor_count;
    void *results[DT_CONF_RESULT_MAX];
    uint32_t result_count;
    dt_status_t status; /* of the operator */
    dt_error_t err;
} side_t;

static dt_status_t call(side_t *side, const char *name, const dt_value_t *args, uint32_t count,
                        void **ret_results, uint32_t *ret_count)
{
    const dt_conf_backend_t *b = side->backend;
    void *op;
    dt_status_t status = b->table->op_find(b->device, name, &op, &side->err);
    if (status != DT_OK)
        return status;
    return b->table->op_execute(b->device, op, args, count, ret_results, DT_CONF_RESULT_MAX,
                                ret_count, &side->err);
}

/* Run an operator with one result on `tensor`; what it gives is owned. NULL: it failed. */
static void *derive(side_t *side, const char *name, const dt_value_t *args, uint32_t count)
{
    void *results[DT_CONF_RESULT_MAX];
    uint32_t result_count;
    if (call(side, name, args, count, results, &result_count) != DT_OK || result_count != 1)
        return NULL;
    side->owned[side->owned_count++] = results[0];
    return results[0];
}

static void release(side_t *side)
{
    const dt_conf_backend_t *b = side->backend;
    for (uint32_t i = 0; i < side->result_count; i++)
        b->table->tensor_free(b->device, side->results[i]);
    for (uint32_t i = 0; i < side->owned_count; i++)
        b->table->tensor_free(b->device, side->owned[i]);
    side->owned_count = side->result_count = 0;
}

/* ---- tensors ---- */
typedef struct shape {
    unsigned ndim;
    int64_t sizes[DT_META_DIM_MAX];
    char how; /* letter behind the sizes, or 0 */
} shape_t;

static shape_t parse_shape(const char *text)
{
    shape_t shape = {0};
    while (isdigit((unsigned char)*text)) {
        char *end;
        shape.sizes[shape.ndim++] = strtoll(text, &end, 10);
        text = *end == 'x' ? end + 1 : end;
    }
    shape.how = *text;
    return shape;
}

/* The shape of what is uploaded, from which a view has the wanted one. */
static shape_t base_of(const shape_t *shape)
{
    shape_t base = *shape;
    unsigned n = shape->ndim;
    if (shape->how == 't') {
        base.sizes[n - 1] = shape->sizes[n - 2];
        base.sizes[n - 2] = shape->sizes[n - 1];
    } else if (shape->how == 's') {
        base.sizes[0] *= 2;
    } else if (shape->how == 'e') {
        base.sizes[n - 1] = 1;
    } else if (shape->how == 'p') { /* permute(2, 0, 1) gives back the wanted one */
        base.sizes[0] = shape->sizes[1];
        base.sizes[1] = shape->sizes[2];
        base.sizes[2] = shape->sizes[0];
    }
    return base;
}

static double random_value(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)(*state >> 33) / (double)(UINT64_C(1) << 30) * 3 - 3;
}

static void fill_values(unsigned dtype, char how, uint64_t seed, size_t count, void *data)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 3e30, -1, 0.5};
    uint64_t state = seed * 77777 + 1;
    for (size_t i = 0; i < count; i++) {
        double value = random_value(&state);
        if (how == 'v' && (dtype == DT_DTYPE_F32 || dtype == DT_DTYPE_F64))
            value = special[i % (sizeof special / sizeof *special)];
        if (dtype == DT_DTYPE_F32)
            ((float *)data)[i] = (float)value;
        else if (dtype == DT_DTYPE_F64)
            ((double *)data)[i] = value;
        else if (dtype == DT_DTYPE_I64)
            ((int64_t *)data)[i] = (int64_t)(value * 3);
        else
            ((uint8_t *)data)[i] = value > 0;
    }
}

static void *view_of(side_t *side, void *base, const shape_t *shape)
{
    const int64_t order[] = {2, 0, 1};
    dt_value_t args[] = {{.tag = DT_VALUE_TENSOR, .handle = base},
                         {.tag = DT_VALUE_INT, .number = 0},
                         {.tag = DT_VALUE_INT, .number = 0},
                         {.tag = DT_VALUE_NONE},
                         {.tag = DT_VALUE_INT, .number = 2}};
    switch (shape->how) {
    case 't':
        args[1].number = shape->ndim - 2;
        args[2].number = shape->ndim - 1;
        return derive(side, "aten::transpose.int", args, 3);
    case 's':
        return derive(side, "aten::slice.Tensor", args, 5);
    case 'e':
        args[1] = (dt_value_t){.tag = DT_VALUE_INTS, .count = shape->ndim, .ints = shape->sizes};
        return derive(side, "aten::expand", args, 2);
    case 'p':
        args[1] = (dt_value_t){.tag = DT_VALUE_INTS, .count = 3, .ints = order};
        return derive(side, "aten::permute", args, 2);
    default:
        return base;
    }
}

static dt_status_t make_tensor(side_t *side, const char *text, unsigned dtype, uint32_t number)
{
    static double data[ELEMENT_MAX];
    const dt_conf_backend_t *b = side->backend;
    shape_t shape = parse_shape(text), base = base_of(&shape);
    dt_meta_t meta;
    void *tensor;
    DT_TRY(dt_meta_set(&meta, dtype, base.ndim, base.sizes, NULL, 0, &side->err));
    dt_check(dt_meta_numel(&meta) <= ELEMENT_MAX);
    fill_values(dtype, shape.how, number + 1, (size_t)dt_meta_numel(&meta), data);
    DT_TRY(b->table->tensor_create(b->device, &meta, &tensor, &side->err));
    side->owned[side->owned_count++] = tensor;
    DT_TRY(b->table->tensor_write(b->device, tensor, 0, data, (size_t)dt_meta_bytes(&meta),
                                  &side->err));
    side->tensors[number] = view_of(side, tensor, &shape);
    return side->tensors[number] ? DT_OK : DT_ERR_INVALID;
}

/* ---- arguments ---- */
typedef struct arguments {
    dt_value_t values[DT_CONF_ARG_MAX];
    uint32_t count;
    int64_t ints[INTS_MAX];
    uint32_t ints_used;
    void *handles[DT_CONF_TENSOR_MAX];
    uint64_t ids[DT_CONF_TENSOR_MAX];   /* the same list for op_infer */
    uint32_t order[DT_CONF_TENSOR_MAX]; /* tensors in the order of the arguments */
    uint32_t order_count;
} arguments_t;

static void add_tensor(arguments_t *a, uint32_t number)
{
    dt_check(a->order_count < DT_CONF_TENSOR_MAX);
    a->order[a->order_count++] = number;
}

static void parse_list(arguments_t *a, const side_t *side, const char *word, dt_value_t *value)
{
    uint32_t count = 0;
    for (const char *at = strchr(word, '@'); at; at = strchr(at + 1, '@')) {
        uint32_t number = (uint32_t)(at[1] - '0');
        a->handles[count] = side->tensors[number];
        a->ids[count++] = 1;
        add_tensor(a, number);
    }
    *value = (dt_value_t){.tag = DT_VALUE_TENSORS, .count = count, .handles = a->handles};
}

static void parse_ints(arguments_t *a, const char *word, dt_value_t *value)
{
    int64_t *first = &a->ints[a->ints_used];
    char *end;
    for (const char *at = word + 2;; at = end + 1) {
        a->ints[a->ints_used++] = strtoll(at, &end, 10);
        if (*end != ',')
            break;
    }
    *value = (dt_value_t){
        .tag = DT_VALUE_INTS, .count = (uint32_t)(&a->ints[a->ints_used] - first), .ints = first};
}

static void parse_word(arguments_t *a, const side_t *side, const char *word)
{
    dt_value_t *value = &a->values[a->count++];
    const char *text = *word && word[1] == ':' ? word + 2 : "";
    *value = (dt_value_t){.tag = DT_VALUE_DEFAULT};
    switch (*word) {
    case '@':
        *value = (dt_value_t){.tag = DT_VALUE_TENSOR, .handle = side->tensors[word[1] - '0']};
        add_tensor(a, (uint32_t)(word[1] - '0'));
        break;
    case '[':
        parse_list(a, side, word, value);
        break;
    case 'i':
        *value = (dt_value_t){.tag = DT_VALUE_INT, .number = strtoll(text, NULL, 10)};
        break;
    case 'f':
        *value = (dt_value_t){.tag = DT_VALUE_DOUBLE, .real = strtod(text, NULL)};
        break;
    case 'b':
        value->tag = *text == '1' ? DT_VALUE_TRUE : DT_VALUE_FALSE;
        break;
    case 'l':
        parse_ints(a, word, value);
        break;
    case 'd':
        *value = (dt_value_t){.tag = DT_VALUE_DTYPE, .number = dtype_of(*text)};
        break;
    case 'm':
        *value = (dt_value_t){.tag = DT_VALUE_MEMORY_FORMAT, .number = *text - '0'};
        break;
    case 'n':
        value->tag = DT_VALUE_NONE;
        break;
    default:
        break;
    }
}

static void parse_arguments(const char *pattern, const side_t *side, arguments_t *a)
{
    char text[128], *rest = text;
    const char *word;
    memset(a, 0, sizeof *a);
    (void)snprintf(text, sizeof text, "%s", pattern);
    while ((word = strsep(&rest, " ")) != NULL)
        parse_word(a, side, word);
}

/* ---- comparison ---- */
static bool say(dt_conf_report_t *report, const char *what, const dt_meta_t *got,
                const dt_meta_t *wanted)
{
    char a[160], b[160];
    dt_meta_print(got, a, sizeof a);
    dt_meta_print(wanted, b, sizeof b);
    (void)snprintf(report->text, sizeof report->text, "%s: %s, torch has %s", what, a, b);
    return false;
}

/* Error of one element in units of epsilon; infinity where one is NaN and the other is not. */
static double error_of(unsigned dtype, const void *got, const void *wanted, size_t i)
{
    bool is_single = dtype == DT_DTYPE_F32;
    double x = is_single ? ((const float *)got)[i] : ((const double *)got)[i];
    double y = is_single ? ((const float *)wanted)[i] : ((const double *)wanted)[i];
    double size = fabs(y) > 1 ? fabs(y) : 1;
    if (x == y || (isnan(x) && isnan(y)))
        return 0;
    if (!isfinite(x) || !isfinite(y))
        return INFINITY;
    return fabs(x - y) / ((is_single ? FLT_EPSILON : DBL_EPSILON) * size);
}

static bool compare_values(const side_t *tested, const side_t *oracle, void *got_tensor,
                           void *wanted_tensor, const dt_meta_t *meta, const dt_conf_row_t *row,
                           dt_conf_report_t *report)
{
    static double got[2 * ELEMENT_MAX], wanted[2 * ELEMENT_MAX];
    size_t bytes = (size_t)dt_meta_bytes(meta), count = (size_t)dt_meta_numel(meta);
    dt_error_t err = {0};
    if (bytes > sizeof got || row->is_unset)
        return true;
    if (tested->backend->table->tensor_read(tested->backend->device, got_tensor, 0, got, bytes,
                                            &err) != DT_OK ||
        oracle->backend->table->tensor_read(oracle->backend->device, wanted_tensor, 0, wanted,
                                            bytes, &err) != DT_OK) {
        (void)snprintf(report->text, sizeof report->text, "cannot be read: %.400s", err.text);
        return false;
    }
    if (meta->dtype != DT_DTYPE_F32 && meta->dtype != DT_DTYPE_F64) {
        if (memcmp(got, wanted, bytes) == 0)
            return true;
        return say(report, "values differ", meta, meta);
    }
    for (size_t i = 0; i < count; i++) {
        double error = error_of(meta->dtype, got, wanted, i);
        double *most = &report->error[meta->dtype == DT_DTYPE_F64];
        *most = error > *most ? error : *most;
        if (error > row->tolerance) {
            (void)snprintf(report->text, sizeof report->text,
                           "element %zu is off by %g epsilon, at most %g", i, error,
                           row->tolerance);
            return false;
        }
    }
    return true;
}

static bool compare_tensors(const side_t *tested, const side_t *oracle, void *got, void *wanted,
                            const char *what, const dt_conf_row_t *row, dt_conf_report_t *report)
{
    dt_backend_tensor_t a, b;
    dt_error_t err;
    if (tested->backend->table->tensor_info(tested->backend->device, got, &a, &err) != DT_OK ||
        oracle->backend->table->tensor_info(oracle->backend->device, wanted, &b, &err) != DT_OK) {
        (void)snprintf(report->text, sizeof report->text, "%s: tensor_info fails", what);
        return false;
    }
    if (!dt_meta_equal(&a.meta, &b.meta))
        return say(report, what, &a.meta, &b.meta);
    if (a.offset != b.offset) {
        (void)snprintf(report->text, sizeof report->text, "%s: offset %lld, torch has %lld", what,
                       (long long)a.offset, (long long)b.offset);
        return false;
    }
    return compare_values(tested, oracle, got, wanted, &a.meta, row, report);
}

/* Which tensor of the case the result is (+100) or lies in the memory of; -1: of none. */
static int alias_of(const side_t *side, uint32_t result)
{
    const dt_conf_backend_t *b = side->backend;
    dt_backend_tensor_t mine, other;
    dt_error_t err;
    for (uint32_t i = 0; i < side->tensor_count; i++)
        if (side->results[result] == side->tensors[i])
            return 100 + (int)i;
    if (b->table->tensor_info(b->device, side->results[result], &mine, &err) != DT_OK)
        return -2;
    for (uint32_t i = 0; i < side->tensor_count; i++)
        if (b->table->tensor_info(b->device, side->tensors[i], &other, &err) == DT_OK &&
            mine.storage == other.storage)
            return (int)i;
    return -1;
}

static bool compare_sides(const dt_conf_case_t *c, const side_t *tested, const side_t *oracle,
                          dt_conf_report_t *report)
{
    char what[32];
    if (tested->result_count != oracle->result_count) {
        (void)snprintf(report->text, sizeof report->text, "%u results, torch has %u",
                       tested->result_count, oracle->result_count);
        return false;
    }
    for (uint32_t i = 0; i < tested->result_count; i++) {
        int mine = alias_of(tested, i), theirs = alias_of(oracle, i);
        (void)snprintf(what, sizeof what, "result %u", i);
        if (mine != theirs) {
            (void)snprintf(report->text, sizeof report->text,
                           "result %u is an alias of %d, torch's of %d", i, mine, theirs);
            return false;
        }
        if (!compare_tensors(tested, oracle, tested->results[i], oracle->results[i], what, c->row,
                             report))
            return false;
    }
    for (uint32_t i = 0; i < tested->tensor_count; i++) {
        (void)snprintf(what, sizeof what, "input %u afterwards", i);
        if (!compare_tensors(tested, oracle, tested->tensors[i], oracle->tensors[i], what, c->row,
                             report))
            return false;
    }
    return true;
}

/* ---- what op_infer says ---- */
static bool compare_inferred(const dt_backend_output_t *said, uint32_t said_count,
                             const side_t *tested, const arguments_t *a, dt_conf_report_t *report)
{
    const dt_conf_backend_t *b = tested->backend;
    dt_backend_tensor_t info;
    dt_error_t err;
    bool is_right = said_count == tested->result_count;
    for (uint32_t i = 0; is_right && i < said_count; i++) {
        int alias = alias_of(tested, i);
        int told = said[i].alias == DT_ALIAS_FRESH      ? -1
                   : said[i].input >= a->order_count    ? -3
                   : said[i].alias == DT_ALIAS_IN_PLACE ? 100 + (int)a->order[said[i].input]
                                                        : (int)a->order[said[i].input];
        if (b->table->tensor_info(b->device, tested->results[i], &info, &err) != DT_OK)
            return true;
        if (!dt_meta_equal(&said[i].meta, &info.meta))
            return say(report, "op_infer", &said[i].meta, &info.meta);
        is_right = alias == told;
    }
    if (!is_right)
        (void)snprintf(report->text, sizeof report->text, "op_infer: results or aliases differ");
    return is_right;
}

/* Ask before the operator runs: it may write its inputs. False: it has no answer. */
static bool ask(const side_t *side, const dt_conf_row_t *row, const arguments_t *given,
                dt_backend_output_t *ret_outputs, uint32_t *ret_count, dt_status_t *ret_status)
{
    const dt_conf_backend_t *b = side->backend;
    dt_meta_t metas[DT_CONF_TENSOR_MAX];
    dt_backend_tensor_t info;
    arguments_t a = *given;
    dt_error_t err;
    void *op;
    *ret_status = DT_ERR_AGAIN;
    if (!b->table->op_infer || b->table->op_find(b->device, row->op, &op, &err) != DT_OK)
        return false;
    for (uint32_t i = 0; i < a.order_count; i++) {
        if (b->table->tensor_info(b->device, side->tensors[a.order[i]], &info, &err) != DT_OK)
            return false;
        metas[i] = info.meta;
    }
    for (uint32_t i = 0; i < a.count; i++) {
        if (a.values[i].tag == DT_VALUE_TENSOR)
            a.values[i].id = 1;
        if (a.values[i].tag == DT_VALUE_TENSORS)
            a.values[i].ids = a.ids;
    }
    *ret_status = b->table->op_infer(b->device, op, a.values, a.count, metas, a.order_count,
                                     ret_outputs, DT_CONF_RESULT_MAX, ret_count, &err);
    if (*ret_status == DT_ERR_AGAIN && b->table->op_rehearse)
        *ret_status = b->table->op_rehearse(b->device, op, a.values, a.count, metas, a.order_count,
                                            ret_outputs, DT_CONF_RESULT_MAX, ret_count, &err);
    return *ret_status == DT_OK;
}

/* ---- a case ---- */
static dt_status_t set_up(const dt_conf_case_t *c, side_t *side)
{
    uint32_t count = 0;
    for (; count < DT_CONF_TENSOR_MAX && c->shapes->of[count]; count++) {
        char mark[4] = {'@', (char)('0' + count), 'b', '\0'};
        bool is_bool = strstr(c->row->args, mark) != NULL;
        DT_TRY(make_tensor(side, c->shapes->of[count],
                           is_bool ? DT_DTYPE_BOOL : dtype_of(c->dtypes[count]), count));
    }
    side->tensor_count = count;
    return DT_OK;
}

static dt_conf_verdict_t judge(const dt_conf_case_t *c, side_t *tested, side_t *oracle,
                               dt_conf_report_t *report)
{
    dt_backend_output_t said[DT_CONF_RESULT_MAX];
    uint32_t said_count = 0;
    dt_status_t said_status;
    arguments_t mine, theirs;
    bool is_said;
    void *op;
    if (tested->backend->table->op_find(tested->backend->device, c->row->op, &op, &tested->err) !=
        DT_OK)
        return DT_CONF_ABSENT;
    parse_arguments(c->row->args, tested, &mine);
    parse_arguments(c->row->args, oracle, &theirs);
    is_said = ask(tested, c->row, &mine, said, &said_count, &said_status);
    report->has_inferred |= is_said;
    tested->status =
        call(tested, c->row->op, mine.values, mine.count, tested->results, &tested->result_count);
    oracle->status = call(oracle, c->row->op, theirs.values, theirs.count, oracle->results,
                          &oracle->result_count);
    if (tested->status != DT_OK && oracle->status != DT_OK)
        return DT_CONF_BOTH_REFUSE;
    if (tested->status != oracle->status) {
        bool is_mine = tested->status != DT_OK;
        (void)snprintf(report->text, sizeof report->text, "%s refuses: %.400s",
                       is_mine ? "only the backend" : "torch",
                       is_mine ? tested->err.text : oracle->err.text);
        return DT_CONF_DIFFERENT;
    }
    if (!compare_sides(c, tested, oracle, report))
        return DT_CONF_DIFFERENT;
    if (is_said && !compare_inferred(said, said_count, tested, &mine, report))
        return DT_CONF_DIFFERENT;
    if (said_status == DT_ERR_INVALID) {
        (void)snprintf(report->text, sizeof report->text, "op_infer refuses what is executed");
        return DT_CONF_DIFFERENT;
    }
    return DT_CONF_SAME;
}

dt_conf_verdict_t dt_conf_run(const dt_conf_case_t *c, const dt_conf_backend_t *tested,
                              const dt_conf_backend_t *oracle, dt_conf_report_t *report)
{
    side_t mine = {.backend = tested}, theirs = {.backend = oracle};
    dt_conf_verdict_t verdict = DT_CONF_DIFFERENT;
    if (set_up(c, &mine) != DT_OK || set_up(c, &theirs) != DT_OK)
        (void)snprintf(report->text, sizeof report->text, "tensors cannot be made: %.400s%.64s",
                       mine.err.text, theirs.err.text);
    else
        verdict = judge(c, &mine, &theirs, report);
    release(&mine);
    release(&theirs);
    return verdict;
}

void dt_conf_print_case(const dt_conf_case_t *c, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "%s(%s) with", c->row->op, c->row->args);
    for (uint32_t i = 0; i < DT_CONF_TENSOR_MAX && c->shapes->of[i] && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, " %s:%c", c->shapes->of[i], c->dtypes[i]);
}
