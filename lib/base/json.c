#include "base/json.h"

#include <stdio.h>
#include <string.h>

#include "base/strings.h"

void dt_json_init(dt_json_t *json, dt_buf_t *out)
{
    *json = (dt_json_t){.out = out, .status = DT_OK, .is_first = true};
}

static void put(dt_json_t *json, const void *bytes, size_t size)
{
    if (json->status == DT_OK)
        json->status = dt_buf_append(json->out, bytes, size);
}

/* Before a value or a name: the comma behind what stands before. */
static void next(dt_json_t *json)
{
    if (!json->is_first)
        put(json, ",", 1);
    json->is_first = false;
}

void dt_json_open(dt_json_t *json, char bracket)
{
    next(json);
    put(json, &bracket, 1);
    json->is_first = true;
}

void dt_json_close(dt_json_t *json, char bracket)
{
    put(json, &bracket, 1);
    json->is_first = false;
}

/* Whether this byte stands for itself; all of a character beyond ASCII do, if it is one. */
static bool is_plain(unsigned char byte)
{
    return byte >= 0x20 && byte < 0x7f && byte != '"' && byte != '\\' && byte != '<' &&
           byte != '>' && byte != '&';
}

static bool is_line_end(const char *text)
{
    return memcmp(text, "\xe2\x80\xa8", 3) == 0 || memcmp(text, "\xe2\x80\xa9", 3) == 0;
}

static void put_text(dt_json_t *json, const char *text)
{
    size_t length = strlen(text), from = 0;
    char escape[8];
    put(json, "\"", 1);
    for (size_t at = 0, step; at < length; at += step) {
        step = 1;
        if (is_plain((unsigned char)text[at]))
            continue;
        step = dt_str_utf8_length(text + at, length - at);
        if (step > 1 && !(step == 3 && is_line_end(text + at)))
            continue;
        put(json, text + from, at - from);
        if (step == 0)
            (void)snprintf(escape, sizeof escape, "\\ufffd");
        else if (step == 3)
            (void)snprintf(escape, sizeof escape, "\\u20%02x", (unsigned char)text[at + 2] & 0x3f);
        else
            (void)snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)text[at]);
        put(json, escape, 6);
        step = step ? step : 1;
        from = at + step;
    }
    put(json, text + from, length - from);
    put(json, "\"", 1);
}

void dt_json_key(dt_json_t *json, const char *key)
{
    next(json);
    put_text(json, key);
    put(json, ":", 1);
    json->is_first = true; /* no comma before its value */
}

void dt_json_text(dt_json_t *json, const char *text)
{
    next(json);
    put_text(json, text);
}

/* A document of many nodes is mostly numbers, so printf's way is too long for them. */
static void put_number(dt_json_t *json, uint64_t value, bool is_negative)
{
    char digits[24];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    if (is_negative)
        digits[--at] = '-';
    if (!json->is_first)
        digits[--at] = ',';
    json->is_first = false;
    put(json, digits + at, sizeof digits - at);
}

void dt_json_uint(dt_json_t *json, uint64_t value)
{
    put_number(json, value, false);
}

void dt_json_int(dt_json_t *json, int64_t value)
{
    put_number(json, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
}

void dt_json_bool(dt_json_t *json, bool value)
{
    next(json);
    put(json, value ? "true" : "false", value ? 4 : 5);
}

void dt_json_put_text(dt_json_t *json, const char *key, const char *text)
{
    dt_json_key(json, key);
    dt_json_text(json, text);
}

void dt_json_put_uint(dt_json_t *json, const char *key, uint64_t value)
{
    dt_json_key(json, key);
    dt_json_uint(json, value);
}

void dt_json_put_int(dt_json_t *json, const char *key, int64_t value)
{
    dt_json_key(json, key);
    dt_json_int(json, value);
}
