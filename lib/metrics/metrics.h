/* Metrics over HTTP: /metrics (Prometheus text), /healthz and /readyz, from a thread of its own.
 *
 * The state thread renders a text now and then and publishes it; the HTTP thread takes the newest
 * one when somebody asks. They meet in one atomic pointer, so a scrape never touches the state
 * thread and a slow reader holds nobody up.
 * /healthz: 200 while texts keep coming, 503 when the last is older than DT_METRICS_STALE_MS.
 * /readyz: 200 when the last text said so, else 503 and the reason.
 * Limits: DT_METRICS_CONNECTIONS_MAX connections, 5 s each without progress; when it gets full the
 * oldest are closed, so that slow ones keep nobody out. */
#ifndef DT_METRICS_METRICS_H
#define DT_METRICS_METRICS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "metrics/text.h"

#define DT_METRICS_CONNECTIONS_MAX 64
#define DT_METRICS_STALE_MS        10000

typedef struct dt_metrics dt_metrics_t;

typedef struct dt_metrics_options {
    size_t struct_size;          /* sizeof(dt_metrics_options_t) */
    const char *listen;          /* "127.0.0.1:7701" "[::1]:0"; port 0: any free one */
    const char *certificate_pem; /* text; HTTPS if set; with key_pem */
    const char *key_pem;
} dt_metrics_options_t;

/* Listen and start the thread. Until the first publish /healthz and /readyz say 503.
 * Ownership: borrows options; gives *ret_metrics.
 * Errors: INVALID (address, certificate), EXISTS (the port is taken), NOT_FOUND (a name that does
 * not resolve or an address that is not ours), DENIED (port below 1024), INTERNAL. Blocking: name
 * lookup. */
DT_MUST_USE dt_status_t dt_metrics_open(const dt_metrics_options_t *options,
                                        dt_metrics_t **ret_metrics, dt_error_t *err);

/* Return the address as bound, "127.0.0.1:43211". */
const char *dt_metrics_address(const dt_metrics_t *metrics);

/* Publish a text. `not_ready` says why the daemon cannot serve; NULL: it can.
 * Ownership: borrows (copies). Errors: NOMEM (the last text stays), LIMIT (the text overran its
 * bound). Threads: one at a time. Blocking: never. */
DT_MUST_USE dt_status_t dt_metrics_publish(dt_metrics_t *metrics, const dt_metrics_text_t *text,
                                           const char *not_ready, dt_error_t *err);

/* Stop listening and join the thread. NULL is fine. */
void dt_metrics_close(dt_metrics_t *metrics);

#endif
