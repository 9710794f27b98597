/* An HTTP server for a few readers, on a thread of its own: what metrics and the status page share.
 *
 * Only GET and HEAD are answered, bodies of requests are dropped. A handler looks at the request
 * and gives an answer, which may be sent to any number of readers at once; it never waits. Limits:
 * connection_max connections, DT_HTTP_TIMEOUT_S each without progress; when it gets full the oldest
 * are closed, so that slow ones keep nobody out. */
#ifndef DT_METRICS_HTTP_H
#define DT_METRICS_HTTP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_HTTP_CONNECTIONS_MAX 64
#define DT_HTTP_TIMEOUT_S       5

typedef struct dt_http dt_http_t;
typedef struct dt_http_answer dt_http_answer_t;

typedef struct dt_http_request {
    const char *path;     /* without the query */
    const char *host;     /* header Host, or NULL */
    const char *password; /* of HTTP's basic authentication, or NULL */
} dt_http_request_t;

typedef struct dt_http_header {
    const char *name, *value;
} dt_http_header_t;

/* Gives the answer; *ret_is_kept: the handler keeps it, else it is freed when it was sent. NULL: no
 * memory, the connection is closed. Threads: the server's. */
typedef dt_http_answer_t *dt_http_handler_t(void *arg, const dt_http_request_t *request,
                                            bool *ret_is_kept);

typedef struct dt_http_options {
    size_t struct_size;          /* sizeof(dt_http_options_t) */
    const char *option;          /* name of the option, for messages: "MetricsListen" */
    const char *listen;          /* "127.0.0.1:7701" "[::1]:0"; port 0: any free one */
    const char *certificate_pem; /* text; HTTPS if set; with key_pem */
    const char *key_pem;
    unsigned connection_max; /* up to DT_HTTP_CONNECTIONS_MAX */
    dt_http_handler_t *handler;
    void *arg;
} dt_http_options_t;

/* Listen and start the thread.
 * Ownership: borrows options; keeps arg until dt_http_close(); gives *ret_http.
 * Errors: INVALID (address, certificate), EXISTS (the port is taken), NOT_FOUND (a name that does
 * not resolve or an address that is not ours), DENIED (port below 1024), INTERNAL. Blocking: name
 * lookup. */
DT_MUST_USE dt_status_t dt_http_open(const dt_http_options_t *options, dt_http_t **ret_http,
                                     dt_error_t *err);
const char *dt_http_address(const dt_http_t *http); /* as bound, "127.0.0.1:43211" */
/* Stop listening and join the thread. NULL is fine. */
void dt_http_close(dt_http_t *http);

/* Make an answer. `headers` end with a NULL name, and may be NULL. Cache-Control is no-store.
 * Ownership: borrows (copies). NULL: no memory. Threads: any. */
dt_http_answer_t *dt_http_answer_make(unsigned code, const char *type,
                                      const dt_http_header_t *headers, const void *bytes,
                                      size_t size);
/* The same, but takes `bytes`, even on failure: freed with the last reader's answer. */
dt_http_answer_t *dt_http_answer_take(unsigned code, const char *type,
                                      const dt_http_header_t *headers, void *bytes, size_t size);
/* A line of text. */
dt_http_answer_t *dt_http_answer_line(unsigned code, const dt_http_header_t *headers,
                                      const char *line);
void dt_http_answer_free(dt_http_answer_t *answer); /* NULL is fine */

#endif
