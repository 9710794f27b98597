/* Bounded copies and vectors of strings. Numbers with units are in units.c. */
#include "base/strings.h"

#include <stdlib.h>
#include <string.h>

enum { STR_NAME_MAX = 63 };

bool dt_str_is_equal(const char *a, const char *b)
{
    if (!a || !b)
        return a == b;
    return strcmp(a, b) == 0;
}

bool dt_str_has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool dt_str_has_suffix(const char *text, const char *suffix)
{
    size_t len = strlen(text);
    size_t suffix_len = strlen(suffix);
    return len >= suffix_len && memcmp(text + len - suffix_len, suffix, suffix_len) == 0;
}

bool dt_str_copy(char *dst, size_t size, const char *text)
{
    size_t len = strlen(text);
    bool fits = len < size;
    if (!fits) {
        len = size - 1;
        while (len && ((unsigned char)text[len] & 0xc0) == 0x80)
            len--; /* back to the begin of the character that would be split */
    }
    memcpy(dst, text, len);
    dst[len] = '\0';
    return fits;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

char *dt_str_trim(char *text)
{
    while (is_blank(*text))
        text++;
    size_t len = strlen(text);
    while (len && is_blank(text[len - 1]))
        len--;
    text[len] = '\0';
    return text;
}

/* The length of the UTF-8 character at `at`, or 0 if it is not valid. */
static size_t utf8_length(const unsigned char *at, size_t left)
{
    if (at[0] < 0x80)
        return 1;
    size_t len = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || len > left)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool is_overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool is_surrogate = at[0] == 0xed && at[1] > 0x9f;
    bool is_too_large = at[0] == 0xf4 && at[1] > 0x8f;
    return is_overlong || is_surrogate || is_too_large ? 0 : len;
}

size_t dt_str_utf8_length(const char *text, size_t len)
{
    return len ? utf8_length((const unsigned char *)text, len) : 0;
}

bool dt_str_is_utf8(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t step = dt_str_utf8_length(text + i, len - i);
        if (!step)
            return false;
        i += step;
    }
    return true;
}

bool dt_str_is_name(const char *text)
{
    size_t len = strlen(text);
    if (len < 1 || len > STR_NAME_MAX || text[0] == '-' || text[len - 1] == '-')
        return false;
    return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static dt_status_t append_bytes(dt_strv_t *strv, const char *text, size_t len)
{
    /* One more for the NULL at the end. The vectors are short, so they grow one by one. */
    char **items = reallocarray(strv->items, strv->count + 2, sizeof *items);
    if (!items)
        return DT_ERR_NOMEM;
    strv->items = items;
    items[strv->count] = strndup(text, len);
    if (!items[strv->count])
        return DT_ERR_NOMEM;
    items[++strv->count] = NULL;
    return DT_OK;
}

dt_status_t dt_strv_append(dt_strv_t *strv, const char *text)
{
    return append_bytes(strv, text, strlen(text));
}

dt_status_t dt_strv_split(dt_strv_t *strv, const char *text, const char *separators)
{
    for (;;) {
        text += strspn(text, separators);
        size_t len = strcspn(text, separators);
        if (!len)
            return DT_OK;
        DT_TRY(append_bytes(strv, text, len));
        text += len;
    }
}

bool dt_strv_has(const dt_strv_t *strv, const char *text)
{
    for (size_t i = 0; i < strv->count; i++)
        if (dt_str_is_equal(strv->items[i], text))
            return true;
    return false;
}

void dt_strv_fini(dt_strv_t *strv)
{
    if (!strv)
        return;
    for (size_t i = 0; i < strv->count; i++)
        free(strv->items[i]);
    free(strv->items);
    *strv = (dt_strv_t){0};
}

void dt_str_free(char **text)
{
    free(*text);
}
