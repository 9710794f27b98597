#include "filter.h"

#include <ctype.h>
#include <fnmatch.h>
#include <string.h>

#include "base/strings.h"
#include "text.h"

static const struct {
    const char *sign; /* longer ones first */
    dt_ctl_op_t op;
} signs[] = {{"!=", DT_CTL_UNEQUAL},  {"!~", DT_CTL_LACKS}, {"<=", DT_CTL_AT_MOST},
             {">=", DT_CTL_AT_LEAST}, {"=", DT_CTL_EQUAL},  {"~", DT_CTL_CONTAINS},
             {"<", DT_CTL_LESS},      {">", DT_CTL_MORE}};

static size_t sign_at(const char *text, dt_ctl_op_t *ret_op)
{
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (dt_str_has_prefix(text, signs[i].sign)) {
            *ret_op = signs[i].op;
            return strlen(signs[i].sign);
        }
    return 0;
}

/* Read the value at `text`, quoted or up to a space. Returns what follows, NULL without a closing
 * quote. */
static const char *parse_value(dt_arena_t *pool, const char *text, const char **ret_value)
{
    if (*text == '"') {
        const char *end = strchr(text + 1, '"');
        if (!end)
            return NULL;
        *ret_value = dt_ctl_copy(pool, text + 1, (size_t)(end - text - 1));
        return end + 1;
    }
    size_t len = strcspn(text, " \t,");
    *ret_value = dt_ctl_copy(pool, text, len);
    return text + len;
}

dt_status_t dt_ctl_filter_parse(dt_arena_t *pool, const char *text, dt_ctl_filter_t *ret_filter,
                                dt_error_t *err)
{
    dt_ctl_filter_t filter = {.count = 0};
    for (const char *at = text ? text : "";;) {
        at += strspn(at, " \t,");
        if (*at == '\0')
            break;
        if (filter.count == DT_CTL_TERM_MAX)
            return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "a filter has at most %d terms",
                           DT_CTL_TERM_MAX);
        dt_ctl_term_t *term = &filter.terms[filter.count++];
        size_t len = 0;
        while (isalnum((unsigned char)at[len]) || (at[len] != '\0' && strchr("_./-", at[len])))
            len++;
        size_t sign = sign_at(at + len, &term->op);
        if (len == 0 || sign == 0)
            return dt_fail(
                err, DT_ERR_INVALID, "dt", 0,
                "filter \"%s\": write FIELD=VALUE, or != ~ !~ < <= > >= in place of =", at);
        term->key = dt_ctl_copy(pool, at, len);
        at = parse_value(pool, at + len + sign, &term->value);
        if (!at)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "filter: the quote after %s is not closed",
                           term->key);
    }
    *ret_filter = filter;
    return DT_OK;
}

/* Read what stands in a term as a number of the field's unit. */
static dt_status_t read_number(const char *text, dt_ctl_unit_t unit, int64_t now_wall_ms,
                               int64_t *ret_number)
{
    if (dt_str_to_i64(text, ret_number) == DT_OK)
        return DT_OK;
    switch (unit) {
    case DT_CTL_BYTES:
        return dt_str_to_size(text, ret_number);
    case DT_CTL_WALL_MS:
        return dt_ctl_parse_time(text, now_wall_ms, ret_number, NULL);
    case DT_CTL_MS:
        DT_TRY(dt_str_to_duration_ns(text, ret_number));
        *ret_number /= 1000000;
        return DT_OK;
    case DT_CTL_NS:
        return dt_str_to_duration_ns(text, ret_number);
    default:
        return DT_ERR_INVALID;
    }
}

/* Make the value that a term's text stands for, of the same kind as `like`. */
static dt_status_t read_like(dt_arena_t *pool, const dt_ctl_term_t *term, const char *text,
                             const dt_ctl_value_t *like, int64_t now_wall_ms,
                             dt_ctl_value_t *ret_value, dt_error_t *err)
{
    dt_ctl_value_t value = *like;
    int64_t number = 0;
    bool is_true = false;
    dt_status_t status = DT_OK;
    switch (like->kind) {
    case DT_CTL_BOOL:
        status = dt_str_to_bool(text, &is_true);
        value.integer = is_true;
        break;
    case DT_CTL_INT:
    case DT_CTL_UINT:
        status = read_number(text, like->unit, now_wall_ms, &number);
        if (like->kind == DT_CTL_UINT && number < 0)
            status = DT_ERR_INVALID;
        value.integer = number;
        value.natural = (uint64_t)number;
        break;
    case DT_CTL_ENUM: {
        const ProtobufCEnumDescriptor *type = like->field->descriptor;
        unsigned i = 0;
        while (i < type->n_values &&
               strcasecmp(dt_ctl_enum_word(pool, type, type->values[i].value), text) != 0)
            i++;
        if (i == type->n_values)
            status = DT_ERR_INVALID;
        else
            value.integer = type->values[i].value;
        break;
    }
    default:
        value.text = text;
    }
    if (status != DT_OK)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "filter: \"%s\" is no value of %s", text,
                       term->key);
    *ret_value = value;
    return DT_OK;
}

/* Whether one of the alternatives A|B|C equals the value. */
static dt_status_t equals_any(dt_arena_t *pool, const dt_ctl_term_t *term,
                              const dt_ctl_value_t *value, int64_t now_wall_ms, bool *ret_equals,
                              dt_error_t *err)
{
    bool is_text =
        value->kind == DT_CTL_TEXT || value->kind == DT_CTL_LIST || value->kind == DT_CTL_MESSAGE;
    const char *shown = dt_ctl_raw(pool, value);
    *ret_equals = false;
    for (const char *at = term->value;; at++) {
        size_t len = strcspn(at, "|");
        const char *text = dt_ctl_copy(pool, at, len);
        if (value->kind == DT_CTL_ABSENT || *text == '\0') {
            *ret_equals = *ret_equals || (value->kind == DT_CTL_ABSENT && *text == '\0');
        } else if (is_text) {
            *ret_equals = *ret_equals || fnmatch(text, shown, 0) == 0 || strcmp(text, shown) == 0;
        } else {
            dt_ctl_value_t wanted;
            DT_TRY(read_like(pool, term, text, value, now_wall_ms, &wanted, err));
            *ret_equals = *ret_equals || dt_ctl_compare(value, &wanted) == 0;
        }
        at += len;
        if (*at == '\0')
            return DT_OK;
    }
}

dt_status_t dt_ctl_term_holds(dt_arena_t *pool, const dt_ctl_term_t *term,
                              const dt_ctl_value_t *value, int64_t now_wall_ms, bool *ret_holds,
                              dt_error_t *err)
{
    dt_ctl_value_t wanted;
    bool holds;
    switch (term->op) {
    case DT_CTL_EQUAL:
    case DT_CTL_UNEQUAL:
        DT_TRY(equals_any(pool, term, value, now_wall_ms, &holds, err));
        *ret_holds = holds == (term->op == DT_CTL_EQUAL);
        return DT_OK;
    case DT_CTL_CONTAINS:
    case DT_CTL_LACKS:
        holds = strstr(dt_ctl_raw(pool, value), term->value) != NULL;
        *ret_holds = holds == (term->op == DT_CTL_CONTAINS);
        return DT_OK;
    default:
        break;
    }
    *ret_holds = false;
    if (value->kind == DT_CTL_ABSENT)
        return DT_OK;
    DT_TRY(read_like(pool, term, term->value, value, now_wall_ms, &wanted, err));
    int order = dt_ctl_compare(value, &wanted);
    *ret_holds = term->op == DT_CTL_LESS      ? order < 0
                 : term->op == DT_CTL_AT_MOST ? order <= 0
                 : term->op == DT_CTL_MORE    ? order > 0
                                              : order >= 0;
    return DT_OK;
}
