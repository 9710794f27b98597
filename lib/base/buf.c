/* Growable bounded byte buffer. */
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST_SIZE = 256 };

void dt_buf_init(dt_buf_t *buf, size_t max)
{
    *buf = (dt_buf_t){.max = max};
}

void dt_buf_fini(dt_buf_t *buf)
{
    if (!buf)
        return;
    free(buf->data);
    dt_buf_init(buf, buf->max);
}

void dt_buf_reset(dt_buf_t *buf)
{
    buf->len = 0;
    buf->pos = 0;
}

dt_status_t dt_buf_reserve(dt_buf_t *buf, size_t size)
{
    size_t need;
    if (__builtin_add_overflow(buf->len, size, &need) || need > buf->max)
        return DT_ERR_LIMIT;
    if (need <= buf->cap)
        return DT_OK;

    size_t cap = buf->cap < BUF_FIRST_SIZE / 2 ? BUF_FIRST_SIZE / 2 : buf->cap;
    if (__builtin_mul_overflow(cap, 2, &cap) || cap > buf->max)
        cap = buf->max;
    if (cap < need)
        cap = need;
    uint8_t *data = realloc(buf->data, cap);
    if (!data)
        return DT_ERR_NOMEM;
    buf->data = data;
    buf->cap = cap;
    return DT_OK;
}

dt_status_t dt_buf_extend(dt_buf_t *buf, size_t size, void **ret_at)
{
    DT_TRY(dt_buf_reserve(buf, size));
    dt_check(buf->data || size == 0);
    *ret_at = buf->data ? buf->data + buf->len : NULL;
    buf->len += size;
    return DT_OK;
}

dt_status_t dt_buf_append(dt_buf_t *buf, const void *data, size_t size)
{
    void *at;

    DT_TRY(dt_buf_extend(buf, size, &at));
    if (size)
        memcpy(at, data, size);
    return DT_OK;
}

dt_status_t dt_buf_append_str(dt_buf_t *buf, const char *text)
{
    return dt_buf_append(buf, text, strlen(text));
}

dt_status_t dt_buf_append_byte(dt_buf_t *buf, uint8_t byte)
{
    return dt_buf_append(buf, &byte, 1);
}

dt_status_t dt_buf_vprintf(dt_buf_t *buf, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (len < 0)
        return DT_ERR_INVALID;
    /* vsnprintf writes a NUL behind the text, which may be one byte over the maximum. */
    DT_TRY(dt_buf_reserve(buf, (size_t)len));
    if (buf->cap - buf->len > (size_t)len) {
        (void)vsnprintf((char *)buf->data + buf->len, (size_t)len + 1, fmt, args);
        buf->len += (size_t)len;
        return DT_OK;
    }
    char *text = NULL;
    if (vasprintf(&text, fmt, args) < 0)
        return DT_ERR_NOMEM;
    dt_status_t status = dt_buf_append(buf, text, (size_t)len);
    free(text);
    return status;
}

dt_status_t dt_buf_printf(dt_buf_t *buf, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    dt_status_t status = dt_buf_vprintf(buf, fmt, args);
    va_end(args);
    return status;
}

void dt_buf_consume(dt_buf_t *buf, size_t size)
{
    dt_check(size <= buf->len);
    buf->len -= size;
    if (buf->len)
        memmove(buf->data, buf->data + size, buf->len);
    buf->pos = 0;
}

dt_status_t dt_buf_text(dt_buf_t *buf, const char **ret_text)
{
    DT_TRY(dt_buf_reserve(buf, 1));
    buf->data[buf->len] = '\0';
    *ret_text = (const char *)buf->data;
    return DT_OK;
}

dt_status_t dt_buf_take_text(dt_buf_t *buf, char **ret_text)
{
    const char *text;

    DT_TRY(dt_buf_text(buf, &text));
    *ret_text = (char *)buf->data;
    dt_buf_init(buf, buf->max);
    return DT_OK;
}
