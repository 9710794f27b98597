/* A page for people over HTTP: a few fixed files and one JSON document, from a thread of its own.
 *
 * The document is made by the state thread, but only while somebody looks: dt_page_is_watched()
 * says so, and `wanted` is called when a reader comes and there is none that is fresh. The reader
 * is told to come again then (202 and {"wait":...}), so no reader ever waits for the state thread,
 * and the state thread never for a reader. They meet in one atomic pointer.
 *
 * Who may read. On loopback the text is plain, and a request must name a loopback host, so that no
 * site of the world can have a browser read the page for it under a name of its own (DNS
 * rebinding). With a certificate it is HTTPS, where the certificate's names see to that, and every
 * request must bring the secret as the password of HTTP's basic authentication. Every answer
 * forbids what the page does not need: frames, other sites' scripts, guesses of types. Limits:
 * DT_PAGE_CONNECTIONS_MAX connections, with lib/metrics/http.h's time-out. */
#ifndef DT_METRICS_PAGE_H
#define DT_METRICS_PAGE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_PAGE_CONNECTIONS_MAX 64
#define DT_PAGE_SECRET_MIN      16
#define DT_PAGE_FILES_MAX       8
#define DT_PAGE_DOCUMENT        "/status.json"

typedef struct dt_page dt_page_t;

/* A file of the page. Ownership: static. */
typedef struct dt_page_file {
    const char *path; /* "/" "/page.js" */
    const char *type; /* "text/html; charset=utf-8" */
    const void *bytes;
    size_t size;
} dt_page_file_t;

typedef struct dt_page_options {
    size_t struct_size;          /* sizeof(dt_page_options_t) */
    const char *option;          /* name of the option, for messages */
    const char *listen;          /* as in dt_http_options_t */
    const char *certificate_pem; /* HTTPS if set; with key_pem and secret */
    const char *key_pem;
    const char *secret; /* at least DT_PAGE_SECRET_MIN bytes, or NULL: none is asked for */
    const dt_page_file_t *files;
    size_t file_count;
    void (*wanted)(void *arg); /* on the page's thread; must not block */
    void *arg;
} dt_page_options_t;

/* Listen and start the thread. Ownership: borrows options (copies the secret), keeps `files` and
 * `arg`; gives *ret_page. Errors: as dt_http_open(); INVALID (the secret is too short).
 * Blocking: name lookup. */
DT_MUST_USE dt_status_t dt_page_open(const dt_page_options_t *options, dt_page_t **ret_page,
                                     dt_error_t *err);
const char *dt_page_address(const dt_page_t *page); /* as bound */

/* Whether somebody asked for the document in the last `within_ns`. Threads: any. */
bool dt_page_is_watched(const dt_page_t *page, int64_t within_ns);

/* Publish a document; it is shown for `good_for_ns`. Ownership: takes `text` (malloc), even on
 * failure. Errors: NOMEM (the last document stays). Threads: one at a time. Blocking: never. */
DT_MUST_USE dt_status_t dt_page_publish(dt_page_t *page, char *text, size_t size,
                                        int64_t good_for_ns);

/* Stop listening and join the thread. NULL is fine. */
void dt_page_close(dt_page_t *page);

/* Whether a Host header names this host by loopback: "localhost:7702", "127.0.0.1", "[::1]:80". */
bool dt_page_is_loopback_host(const char *host);

#endif
