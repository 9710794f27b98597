/* JSON, written piece by piece into a buffer: commas and escapes are seen to, nesting is the
 * caller's. The first failure is kept in `status`, what follows it is dropped, so one look at the
 * end is enough. Text of any bytes is safe: what is no UTF-8 becomes U+FFFD, and besides what JSON
 * wants escaped, so are < > & and the line ends of Unicode, so that a document may stand in a page.
 * Threads: none of its own. */
#ifndef DT_BASE_JSON_H
#define DT_BASE_JSON_H
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct dt_json {
    dt_buf_t *out;
    dt_status_t status; /* LIMIT or NOMEM of the buffer */
    bool is_first;      /* nothing stands before in this object or list */
} dt_json_t;

/* Begin a document. Ownership: keeps `out`. */
void dt_json_init(dt_json_t *json, dt_buf_t *out);

/* Open with '{' or '[', close with the other one. */
void dt_json_open(dt_json_t *json, char bracket);
void dt_json_close(dt_json_t *json, char bracket);

/* The next value's name, within an object. */
void dt_json_key(dt_json_t *json, const char *key);

void dt_json_text(dt_json_t *json, const char *text);
void dt_json_uint(dt_json_t *json, uint64_t value);
void dt_json_int(dt_json_t *json, int64_t value);
void dt_json_bool(dt_json_t *json, bool value);

/* A name and its value. */
void dt_json_put_text(dt_json_t *json, const char *key, const char *text);
void dt_json_put_uint(dt_json_t *json, const char *key, uint64_t value);
void dt_json_put_int(dt_json_t *json, const char *key, int64_t value);

#endif
