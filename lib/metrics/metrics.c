#include "metrics/metrics.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"

#define TIMEOUT_S  5 /* of a connection without progress */
#define MEMORY_MAX 16384
#define BACKLOG    64
#define ROOM       16 /* places that are kept for who comes next */

/* One published text. Whoever takes it out of the slot owns it. */
struct page {
    int64_t published_ns;
    bool is_ready;
    char not_ready[256];
    size_t size;
    char text[];
};

/* A connection that is open. */
struct guest {
    struct MHD_Connection *connection; /* NULL: free */
    int fd;
    int64_t began_ns;
};

struct dt_metrics {
    struct MHD_Daemon *daemon;
    struct guest guests[DT_METRICS_CONNECTIONS_MAX]; /* HTTP thread */
    unsigned guest_count;                            /* HTTP thread */
    _Atomic(struct page *) slot; /* the newest text that the HTTP thread has not taken */
    struct page *shown;          /* HTTP thread */
    char address[128];
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

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type,
                              const char *text, size_t size)
{
    struct MHD_Response *response;
    enum MHD_Result result;
    void *copy = malloc(size ? size : 1);
    if (!copy)
        return MHD_NO;
    memcpy(copy, text, size);
    response = MHD_create_response_from_buffer(size, copy, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(copy);
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, "Content-Type", type);
    (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, "Allow", "GET, HEAD");
    result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_line(struct MHD_Connection *connection, unsigned code,
                                   const char *line)
{
    char text[320];
    int size = snprintf(text, sizeof text, "%s\n", line);
    return answer(connection, code, "text/plain; charset=utf-8", text, (size_t)size);
}

static bool is_stale(const struct page *page)
{
    return !page || dt_clock_mono_ns(dt_clock_system()) - page->published_ns >
                        DT_METRICS_STALE_MS * DT_CLOCK_MS_NS;
}

/* NOLINTNEXTLINE(readability-function-size): microhttpd wants eight parameters */
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **request)
{
    struct dt_metrics *metrics = arg;
    struct page *page;
    static char first_call;
    (void)version, (void)upload;
    if (*request != &first_call) { /* headers only; a body is taken and dropped */
        *request = &first_call;
        return MHD_YES;
    }
    if (*upload_size) {
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
    page = newest(metrics);
    if (strcmp(url, "/metrics") == 0)
        return page ? answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8",
                             page->text, page->size)
                    : answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "starting");
    if (strcmp(url, "/healthz") == 0)
        return is_stale(page) ? answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                            page ? "the state thread does not move" : "starting")
                              : answer_line(connection, MHD_HTTP_OK, "ok");
    if (strcmp(url, "/readyz") == 0)
        return page && page->is_ready && !is_stale(page)
                   ? answer_line(connection, MHD_HTTP_OK, "ready")
                   : answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                                 !page            ? "starting"
                                 : page->is_ready ? "the state thread does not move"
                                                  : page->not_ready);
    return answer_line(connection, MHD_HTTP_NOT_FOUND,
                       "nothing here; try /metrics, /healthz or /readyz");
}

/* ---- guests ---- */

/* Whoever asks is answered in milliseconds, so those who have been here for longest when it gets
 * full are slow by themselves, or mean to be: they make room. microhttpd closes what we shut. */
static void make_room(struct dt_metrics *metrics)
{
    struct guest *oldest = NULL;
    for (unsigned i = 0; i < DT_METRICS_CONNECTIONS_MAX; i++) {
        struct guest *guest = &metrics->guests[i];
        if (guest->connection && guest->fd >= 0 && (!oldest || guest->began_ns < oldest->began_ns))
            oldest = guest;
    }
    if (!oldest)
        return;
    (void)shutdown(oldest->fd, SHUT_RDWR);
    oldest->fd = -1;
}

static void guest_comes(struct dt_metrics *metrics, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    unsigned at = 0;
    while (at < DT_METRICS_CONNECTIONS_MAX && metrics->guests[at].connection)
        at++;
    if (at == DT_METRICS_CONNECTIONS_MAX)
        return;
    metrics->guests[at] = (struct guest){.connection = connection,
                                         .fd = info ? info->connect_fd : -1,
                                         .began_ns = dt_clock_mono_ns(dt_clock_system())};
    if (++metrics->guest_count > DT_METRICS_CONNECTIONS_MAX - ROOM)
        make_room(metrics);
}

static void on_guest(void *arg, struct MHD_Connection *connection, void **context,
                     enum MHD_ConnectionNotificationCode what)
{
    struct dt_metrics *metrics = arg;
    (void)context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        guest_comes(metrics, connection);
        return;
    }
    for (unsigned i = 0; i < DT_METRICS_CONNECTIONS_MAX; i++)
        if (metrics->guests[i].connection == connection) {
            metrics->guests[i].connection = NULL;
            metrics->guest_count--;
        }
}

/* ---- listening ---- */

static dt_status_t split_address(const char *listen, char host[256], char port[16], dt_error_t *err)
{
    const char *colon = strrchr(listen, ':');
    size_t length = colon ? (size_t)(colon - listen) : 0;
    if (length >= 2 && listen[0] == '[' && colon[-1] == ']') {
        listen++;
        length -= 2;
    }
    if (!colon || !length || length >= 256 || !colon[1] || !dt_str_copy(port, 16, colon + 1))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "MetricsListen=%s: not HOST:PORT or [V6]:PORT",
                       listen);
    memcpy(host, listen, length);
    host[length] = '\0';
    return DT_OK;
}

static dt_status_t fail_listen(dt_error_t *err, const char *listen, int number)
{
    const char *text = strerrordesc_np(number);
    dt_status_t status = number == EADDRINUSE      ? DT_ERR_EXISTS
                         : number == EADDRNOTAVAIL ? DT_ERR_NOT_FOUND
                         : number == EACCES        ? DT_ERR_DENIED
                                                   : DT_ERR_INTERNAL;
    return dt_fail(err, status, "errno", number, "cannot listen on MetricsListen=%s: %s%s", listen,
                   text ? text : "unknown error",
                   number == EADDRINUSE ? "; another program has this port" : "");
}

static dt_status_t listen_on(const char *listen_text, int *ret_fd, dt_error_t *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[256], port[16];
    int fd, rc, on = 1, number;
    DT_TRY(split_address(listen_text, host, port, err));
    rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return dt_fail(err, DT_ERR_NOT_FOUND, "getaddrinfo", rc, "MetricsListen=%s: %s",
                       listen_text, gai_strerror(rc));
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        freeaddrinfo(found);
        *ret_fd = fd;
        return DT_OK;
    }
    number = errno;
    freeaddrinfo(found);
    if (fd >= 0)
        close(fd);
    return fail_listen(err, listen_text, number);
}

static void name_address(int fd, const char *listen, char *address, size_t size)
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    char host[96], port[16];
    if (getsockname(fd, (struct sockaddr *)&bound, &length) < 0 ||
        getnameinfo((struct sockaddr *)&bound, length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        (void)dt_str_copy(address, size, listen);
    else
        (void)snprintf(address, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

dt_status_t dt_metrics_open(const dt_metrics_options_t *options, dt_metrics_t **ret_metrics,
                            dt_error_t *err)
{
    struct dt_metrics *metrics;
    bool is_tls = options->certificate_pem != NULL;
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | (is_tls ? MHD_USE_TLS : 0);
    int fd = -1;
    dt_check(options->struct_size == sizeof *options);
    DT_TRY(listen_on(options->listen, &fd, err));
    metrics = calloc(1, sizeof *metrics);
    if (!metrics) {
        close(fd);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    }
    name_address(fd, options->listen, metrics->address, sizeof metrics->address);
    metrics->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, metrics, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_NOTIFY_CONNECTION, on_guest, metrics, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)DT_METRICS_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_MAX,
        is_tls ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, options->certificate_pem,
        MHD_OPTION_HTTPS_MEM_KEY, options->key_pem, MHD_OPTION_END);
    if (!metrics->daemon) {
        free(metrics);
        close(fd);
        return dt_fail(err, is_tls ? DT_ERR_INVALID : DT_ERR_INTERNAL, "microhttpd", 0,
                       "MetricsListen=%s: the HTTP server does not start%s", options->listen,
                       is_tls ? " with this certificate and key" : "");
    }
    *ret_metrics = metrics;
    return DT_OK;
}

const char *dt_metrics_address(const dt_metrics_t *metrics)
{
    return metrics->address;
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
    MHD_stop_daemon(metrics->daemon); /* closes the socket, joins the thread */
    free(atomic_load(&metrics->slot));
    free(metrics->shown);
    free(metrics);
}
