/* Growable byte buffer with a maximum, and a read position for those who consume it in pieces.
 * Invariants: pos <= len <= cap <= max; bytes behind `len` are undefined.
 * A failed append leaves the buffer as it was. A zeroed struct is a buffer of maximum 0. Threads:
 * none of its own. */
#ifndef DT_BASE_BUF_H
#define DT_BASE_BUF_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct dt_buf {
    uint8_t *data; /* len bytes are valid; NULL while nothing was reserved */
    size_t len;    /* bytes written */
    size_t pos;    /* bytes consumed, for the owner's use */
    size_t cap;    /* bytes allocated */
    size_t max;    /* bytes that it may ever hold */
} dt_buf_t;

/* Start an empty buffer that may hold `max` bytes. Allocates nothing. */
void dt_buf_init(dt_buf_t *buf, size_t max);
void dt_buf_fini(dt_buf_t *buf); /* NULL is fine; leaves an empty buffer of the same maximum */

/* Forget the content, keep the memory. */
void dt_buf_reset(dt_buf_t *buf);

/* Make room for `size` more bytes behind `len`.
 * Errors: LIMIT (over the maximum), NOMEM; nothing changed. Cost: amortised O(1). */
DT_MUST_USE dt_status_t dt_buf_reserve(dt_buf_t *buf, size_t size);

/* Reserve `size` bytes, count them as written, give their address (valid until the next call).
 * Errors: LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_buf_extend(dt_buf_t *buf, size_t size, void **ret_at);

/* Append bytes, which must not lie in the buffer itself. Errors: LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_buf_append(dt_buf_t *buf, const void *data, size_t size);
DT_MUST_USE dt_status_t dt_buf_append_str(dt_buf_t *buf, const char *text);
DT_MUST_USE dt_status_t dt_buf_append_byte(dt_buf_t *buf, uint8_t byte);

/* Append formatted text without its NUL. Errors: LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_buf_printf(dt_buf_t *buf, const char *fmt, ...) DT_PRINTF_LIKE(2, 3);
DT_MUST_USE dt_status_t dt_buf_vprintf(dt_buf_t *buf, const char *fmt, va_list args)
    DT_PRINTF_LIKE(2, 0);

/* Drop the first `size` bytes, moving the rest to the front; `pos` becomes 0.
 * `size` must not be above `len`. Cost: O(rest). */
void dt_buf_consume(dt_buf_t *buf, size_t size);

/* See the content as a NUL-terminated string. The NUL lies behind `len` and does not count.
 * Ownership: *ret_text is borrowed until the next call on the buffer. Errors: LIMIT, NOMEM. */
DT_MUST_USE dt_status_t dt_buf_text(dt_buf_t *buf, const char **ret_text);

/* Take the content out as a NUL-terminated string; the buffer is empty then.
 * Ownership: gives *ret_text, free with free(). Errors: LIMIT, NOMEM; the content stays. */
DT_MUST_USE dt_status_t dt_buf_take_text(dt_buf_t *buf, char **ret_text);

#endif
