/* Numbers with units, to and from text. Integers only, so nothing depends on the locale or on the
 * rounding of floating point. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/strings.h"

#define UNIT_COUNT(table) (sizeof(table) / sizeof *(table))

enum { UNIT_FRACTION_DIGITS = 9 };

typedef struct unit {
    const char *name;
    int64_t factor;
} unit_t;

/* Largest first, which the writers rely on. */
static const unit_t durations[] = {
    {"w", INT64_C(604800000000000)}, {"d", INT64_C(86400000000000)},
    {"h", INT64_C(3600000000000)},   {"min", INT64_C(60000000000)},
    {"s", INT64_C(1000000000)},      {"ms", INT64_C(1000000)},
    {"us", INT64_C(1000)},           {"ns", 1},
};
static const unit_t sizes[] = {
    {"TiB", INT64_C(1) << 40},
    {"GiB", INT64_C(1) << 30},
    {"MiB", INT64_C(1) << 20},
    {"KiB", INT64_C(1) << 10},
    {"B", 1},
    {"T", INT64_C(1) << 40},
    {"G", INT64_C(1) << 30},
    {"M", INT64_C(1) << 20},
    {"K", INT64_C(1) << 10},
};

dt_status_t dt_str_to_i64(const char *text, int64_t *ret_value)
{
    bool is_negative = *text == '-';
    if (*text == '-' || *text == '+')
        text++;
    if (!*text || text[strspn(text, "0123456789")])
        return DT_ERR_INVALID;
    int64_t value = 0;
    for (; *text; text++) {
        int digit = *text - '0';
        if (__builtin_mul_overflow(value, INT64_C(10), &value) ||
            __builtin_add_overflow(value, is_negative ? -digit : digit, &value))
            return DT_ERR_LIMIT;
    }
    *ret_value = value;
    return DT_OK;
}

/* Read digits with an optional fraction from *text on: value = whole + fraction / scale. */
static dt_status_t read_decimal(const char **text, int64_t *ret_whole, int64_t *ret_fraction,
                                int64_t *ret_scale)
{
    size_t digits = strspn(*text, "0123456789");
    char whole[24];
    if (!digits)
        return DT_ERR_INVALID;
    if (digits >= sizeof whole)
        return DT_ERR_LIMIT;
    memcpy(whole, *text, digits);
    whole[digits] = '\0';
    DT_TRY(dt_str_to_i64(whole, ret_whole));
    *text += digits;
    *ret_fraction = 0;
    *ret_scale = 1;
    if (**text != '.')
        return DT_OK;
    (*text)++;
    digits = strspn(*text, "0123456789");
    if (!digits || digits > UNIT_FRACTION_DIGITS)
        return DT_ERR_INVALID;
    for (; digits; digits--, (*text)++) {
        *ret_fraction = *ret_fraction * 10 + (**text - '0');
        *ret_scale *= 10;
    }
    return DT_OK;
}

static const unit_t *find_unit(const unit_t *units, size_t count, const char **text)
{
    size_t len = strspn(*text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    for (size_t i = 0; i < count; i++)
        if (strlen(units[i].name) == len && strncmp(units[i].name, *text, len) == 0) {
            *text += len;
            return &units[i];
        }
    return NULL;
}

/* Read one number and its unit, and add it to *value. */
static dt_status_t read_part(const unit_t *units, size_t count, const char **text, int64_t *value)
{
    int64_t whole, fraction, scale, part;

    DT_TRY(read_decimal(text, &whole, &fraction, &scale));
    *text += strspn(*text, " ");
    const unit_t *unit = find_unit(units, count, text);
    if (!unit)
        return DT_ERR_INVALID;
    if (__builtin_mul_overflow(whole, unit->factor, &part))
        return DT_ERR_LIMIT;
    int64_t rest = (int64_t)((__int128)fraction * unit->factor / scale);
    if (__builtin_add_overflow(part, rest, &part) || __builtin_add_overflow(*value, part, value))
        return DT_ERR_LIMIT;
    *text += strspn(*text, " ");
    return DT_OK;
}

dt_status_t dt_str_to_duration_ns(const char *text, int64_t *ret_ns)
{
    int64_t value = 0;

    if (strcmp(text, "0") == 0) {
        *ret_ns = 0;
        return DT_OK;
    }
    do {
        DT_TRY(read_part(durations, UNIT_COUNT(durations), &text, &value));
    } while (*text);
    *ret_ns = value;
    return DT_OK;
}

dt_status_t dt_str_to_size(const char *text, int64_t *ret_bytes)
{
    int64_t value = 0;

    if (strcmp(text, "0") != 0) {
        DT_TRY(read_part(sizes, UNIT_COUNT(sizes), &text, &value));
        if (*text)
            return DT_ERR_INVALID;
    }
    *ret_bytes = value;
    return DT_OK;
}

dt_status_t dt_str_to_bool(const char *text, bool *ret_value)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

    for (size_t i = 0; i < UNIT_COUNT(words); i++)
        if (strcasecmp(text, words[i]) == 0) {
            *ret_value = i % 2;
            return DT_OK;
        }
    return DT_ERR_INVALID;
}

void dt_str_format_duration(int64_t ns, char text[static DT_STR_UNIT_TEXT_SIZE])
{
    uint64_t left = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    int at = 0;

    if (ns == 0)
        (void)snprintf(text, DT_STR_UNIT_TEXT_SIZE, "0");
    for (size_t i = 1; i < UNIT_COUNT(durations) && left; i++) { /* weeks are written as days */
        uint64_t factor = (uint64_t)durations[i].factor;
        if (left < factor)
            continue;
        at += snprintf(text + at, DT_STR_UNIT_TEXT_SIZE - (size_t)at, "%s%" PRIu64 "%s",
                       at       ? " "
                       : ns < 0 ? "-"
                                : "",
                       left / factor, durations[i].name);
        left %= factor;
    }
}

void dt_str_format_size(int64_t bytes, char text[static DT_STR_UNIT_TEXT_SIZE])
{
    size_t unit = 0;
    while (sizes[unit].factor > 1 && (bytes == 0 || bytes % sizes[unit].factor))
        unit++;
    (void)snprintf(text, DT_STR_UNIT_TEXT_SIZE, "%" PRId64 "%s", bytes / sizes[unit].factor,
                   bytes ? sizes[unit].name : "");
}

/* Write value / factor with one digit behind the point when it is below ten. */
static void human(int64_t value, int64_t factor, const char *unit, char *text)
{
    int64_t whole = value / factor;
    int64_t tenth = value % factor / (factor >= 10 ? factor / 10 : 1);
    if (factor >= 10 && whole < 10 && whole > -10)
        (void)snprintf(text, DT_STR_UNIT_TEXT_SIZE, "%s%" PRId64 ".%" PRId64 " %s",
                       value < 0 ? "-" : "", whole < 0 ? -whole : whole,
                       tenth < 0   ? -tenth
                       : tenth > 9 ? 9
                                   : tenth,
                       unit);
    else
        (void)snprintf(text, DT_STR_UNIT_TEXT_SIZE, "%" PRId64 " %s", whole, unit);
}

void dt_str_human_duration(int64_t ns, char text[static DT_STR_UNIT_TEXT_SIZE])
{
    static const struct {
        int64_t below, factor;
        const char *unit;
    } steps[] = {
        {INT64_C(1000), 1, "ns"},
        {INT64_C(1000000), INT64_C(1000), "us"},
        {INT64_C(100000000), INT64_C(1000000), "ms"},
        {INT64_C(120000000000), INT64_C(1000000000), "s"},
        {INT64_C(7200000000000), INT64_C(60000000000), "min"},
        {INT64_C(172800000000000), INT64_C(3600000000000), "h"},
        {INT64_MAX, INT64_C(86400000000000), "d"},
    };
    size_t step = 0;
    while (steps[step].below != INT64_MAX && (ns >= steps[step].below || ns <= -steps[step].below))
        step++;
    human(ns, steps[step].factor, steps[step].unit, text);
}

void dt_str_human_size(int64_t bytes, char text[static DT_STR_UNIT_TEXT_SIZE])
{
    size_t unit = 0;
    while (sizes[unit].factor > 1 && bytes < sizes[unit].factor && bytes > -sizes[unit].factor)
        unit++;
    human(bytes, sizes[unit].factor, sizes[unit].name, text);
}
