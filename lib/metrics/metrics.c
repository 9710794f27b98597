#include "metrics/metrics.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/strings.h"
#include "metrics/http.h"

#define TYPE        "text/plain; version=0.0.4; charset=utf-8"
#define OK          200
#define NOT_FOUND   404
#define UNAVAILABLE 503

/* One published text. Whoever takes it out of the slot owns it. */
struct page {
    int64_t published_ns;
    bool is_ready;
    char not_ready[256];
    size_t size;
    char text[];
};

struct dt_metrics {
    dt_http_t *http;
    _Atomic(struct page *) slot; /* the newest text that the HTTP thread has not taken */
    struct page *shown;          /* HTTP thread */
};

/* ---- HTTP thread ---- */

static struct page *newest(struct dt_metrics *metrics)
{
    struct page *page = atomic_exchange(&metrics->slot, NULL);
    if (page) {
        free(metrics->shown);
        metrics->shown = page;
    }
    return metrics->shown;
}

static bool is_stale(const struct page *page)
{
    return !page || dt_clock_mono_ns(dt_clock_system()) - page->published_ns >
                        DT_METRICS_STALE_MS * DT_CLOCK_MS_NS;
}

static dt_http_answer_t *handle(void *arg, const dt_http_request_t *request, bool *ret_is_kept)
{
    struct page *page = newest(arg);
    *ret_is_kept = false;
    if (strcmp(request->path, "/metrics") == 0)
        return page ? dt_http_answer_make(OK, TYPE, NULL, page->text, page->size)
                    : dt_http_answer_line(UNAVAILABLE, NULL, "starting");
    if (strcmp(request->path, "/healthz") == 0)
        return is_stale(page)
                   ? dt_http_answer_line(UNAVAILABLE, NULL,
                                         page ? "the state thread does not move" : "starting")
                   : dt_http_answer_line(OK, NULL, "ok");
    if (strcmp(request->path, "/readyz") == 0)
        return page && page->is_ready && !is_stale(page)
                   ? dt_http_answer_line(OK, NULL, "ready")
                   : dt_http_answer_line(UNAVAILABLE, NULL,
                                         !page            ? "starting"
                                         : page->is_ready ? "the state thread does not move"
                                                          : page->not_ready);
    return dt_http_answer_line(NOT_FOUND, NULL, "nothing here; try /metrics, /healthz or /readyz");
}

/* ---- state thread ---- */

dt_status_t dt_metrics_open(const dt_metrics_options_t *options, dt_metrics_t **ret_metrics,
                            dt_error_t *err)
{
    struct dt_metrics *metrics;
    dt_status_t status;
    dt_check(options->struct_size == sizeof *options);
    metrics = calloc(1, sizeof *metrics);
    if (!metrics)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    const dt_http_options_t http = {
        .struct_size = sizeof http,
        .option = "MetricsListen",
        .listen = options->listen,
        .certificate_pem = options->certificate_pem,
        .key_pem = options->key_pem,
        .connection_max = DT_METRICS_CONNECTIONS_MAX,
        .handler = handle,
        .arg = metrics,
    };
    status = dt_http_open(&http, &metrics->http, err);
    if (status == DT_OK)
        *ret_metrics = metrics;
    else
        free(metrics);
    return status;
}

const char *dt_metrics_address(const dt_metrics_t *metrics)
{
    return dt_http_address(metrics->http);
}

dt_status_t dt_metrics_publish(dt_metrics_t *metrics, const dt_metrics_text_t *text,
                               const char *not_ready, dt_error_t *err)
{
    struct page *page;
    if (dt_metrics_text_status(text) != DT_OK)
        return dt_fail(err, dt_metrics_text_status(text), "dt", 0, "the metrics text: %s",
                       dt_status_text(dt_metrics_text_status(text)));
    page = malloc(sizeof *page + text->buf.len);
    if (!page)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    page->published_ns = dt_clock_mono_ns(dt_clock_system());
    page->is_ready = !not_ready;
    (void)dt_str_copy(page->not_ready, sizeof page->not_ready, not_ready ? not_ready : "");
    page->size = text->buf.len;
    if (page->size)
        memcpy(page->text, text->buf.data, page->size);
    free(atomic_exchange(&metrics->slot, page));
    return DT_OK;
}

void dt_metrics_close(dt_metrics_t *metrics)
{
    if (!metrics)
        return;
    dt_http_close(metrics->http);
    free(atomic_load(&metrics->slot));
    free(metrics->shown);
    free(metrics);
}
