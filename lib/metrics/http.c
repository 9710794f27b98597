#include "metrics/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strings.h"

#define MEMORY_MAX 16384
#define BACKLOG    64

/* A connection that is open. */
struct guest {
    struct MHD_Connection *connection; /* NULL: free */
    int fd;
    int64_t began_ns;
};

struct dt_http {
    struct MHD_Daemon *daemon;
    dt_http_handler_t *handler;
    void *arg;
    struct guest guests[DT_HTTP_CONNECTIONS_MAX]; /* HTTP thread */
    unsigned guest_count;                         /* HTTP thread */
    unsigned connection_max;
    char address[128];
};

struct dt_http_answer {
    struct MHD_Response *response; /* counts its readers itself */
    unsigned code;
};

/* ---- answers ---- */

dt_http_answer_t *dt_http_answer_take(unsigned code, const char *type,
                                      const dt_http_header_t *headers, void *bytes, size_t size)
{
    dt_http_answer_t *answer = calloc(1, sizeof *answer);
    if (answer)
        answer->response = MHD_create_response_from_buffer(size, bytes, MHD_RESPMEM_MUST_FREE);
    if (!answer || !answer->response) {
        free(answer);
        free(bytes);
        return NULL;
    }
    answer->code = code;
    (void)MHD_add_response_header(answer->response, "Content-Type", type);
    (void)MHD_add_response_header(answer->response, "Cache-Control", "no-store");
    for (; headers && headers->name; headers++)
        (void)MHD_add_response_header(answer->response, headers->name, headers->value);
    return answer;
}

dt_http_answer_t *dt_http_answer_make(unsigned code, const char *type,
                                      const dt_http_header_t *headers, const void *bytes,
                                      size_t size)
{
    void *copy = malloc(size ? size : 1);
    if (!copy)
        return NULL;
    if (size)
        memcpy(copy, bytes, size);
    return dt_http_answer_take(code, type, headers, copy, size);
}

dt_http_answer_t *dt_http_answer_line(unsigned code, const dt_http_header_t *headers,
                                      const char *line)
{
    char text[512];
    int size = snprintf(text, sizeof text, "%s\n", line);
    return dt_http_answer_make(code, "text/plain; charset=utf-8", headers, text,
                               (size_t)size < sizeof text ? (size_t)size : sizeof text - 1);
}

void dt_http_answer_free(dt_http_answer_t *answer)
{
    if (!answer)
        return;
    MHD_destroy_response(answer->response);
    free(answer);
}

/* ---- HTTP thread ---- */

static dt_http_answer_t *ask_handler(struct dt_http *http, struct MHD_Connection *connection,
                                     const char *url, bool *ret_is_kept)
{
    char *password = NULL, *user = MHD_basic_auth_get_username_password(connection, &password);
    const dt_http_request_t request = {
        .path = url,
        .host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host"),
        .password = password,
    };
    dt_http_answer_t *answer = http->handler(http->arg, &request, ret_is_kept);
    if (user)
        MHD_free(user);
    if (password)
        MHD_free(password);
    return answer;
}

/* NOLINTNEXTLINE(readability-function-size): microhttpd wants eight parameters */
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **request)
{
    static char first_call;
    static const dt_http_header_t allow[] = {{"Allow", "GET, HEAD"}, {NULL, NULL}};
    dt_http_answer_t *answer;
    enum MHD_Result result;
    bool is_kept = false;
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
        answer = dt_http_answer_line(MHD_HTTP_METHOD_NOT_ALLOWED, allow, "only GET and HEAD");
    else
        answer = ask_handler(arg, connection, url, &is_kept);
    if (!answer)
        return MHD_NO;
    result = MHD_queue_response(connection, answer->code, answer->response);
    if (!is_kept)
        dt_http_answer_free(answer);
    return result;
}

/* ---- guests ---- */

/* Whoever asks is answered in milliseconds, so those who have been here for longest when it gets
 * full are slow by themselves, or mean to be: they make room. microhttpd closes what we shut. */
static void make_room(struct dt_http *http)
{
    struct guest *oldest = NULL;
    for (unsigned i = 0; i < DT_HTTP_CONNECTIONS_MAX; i++) {
        struct guest *guest = &http->guests[i];
        if (guest->connection && guest->fd >= 0 && (!oldest || guest->began_ns < oldest->began_ns))
            oldest = guest;
    }
    if (!oldest)
        return;
    (void)shutdown(oldest->fd, SHUT_RDWR);
    oldest->fd = -1;
}

static void guest_comes(struct dt_http *http, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    unsigned at = 0;
    while (at < DT_HTTP_CONNECTIONS_MAX && http->guests[at].connection)
        at++;
    if (at == DT_HTTP_CONNECTIONS_MAX)
        return;
    http->guests[at] = (struct guest){.connection = connection,
                                      .fd = info ? info->connect_fd : -1,
                                      .began_ns = dt_clock_mono_ns(dt_clock_system())};
    if (++http->guest_count > http->connection_max - http->connection_max / 4)
        make_room(http);
}

static void on_guest(void *arg, struct MHD_Connection *connection, void **context,
                     enum MHD_ConnectionNotificationCode what)
{
    struct dt_http *http = arg;
    (void)context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        guest_comes(http, connection);
        return;
    }
    for (unsigned i = 0; i < DT_HTTP_CONNECTIONS_MAX; i++)
        if (http->guests[i].connection == connection) {
            http->guests[i].connection = NULL;
            http->guest_count--;
        }
}

/* ---- listening ---- */

static dt_status_t split_address(const dt_http_options_t *options, char host[256], char port[16],
                                 dt_error_t *err)
{
    const char *listen = options->listen, *colon = strrchr(listen, ':');
    size_t length = colon ? (size_t)(colon - listen) : 0;
    if (length >= 2 && listen[0] == '[' && colon[-1] == ']') {
        listen++;
        length -= 2;
    }
    if (!colon || !length || length >= 256 || !colon[1] || !dt_str_copy(port, 16, colon + 1))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s=%s: not HOST:PORT or [V6]:PORT",
                       options->option, options->listen);
    memcpy(host, listen, length);
    host[length] = '\0';
    return DT_OK;
}

static dt_status_t fail_listen(dt_error_t *err, const dt_http_options_t *options, int number)
{
    const char *text = strerrordesc_np(number);
    dt_status_t status = number == EADDRINUSE      ? DT_ERR_EXISTS
                         : number == EADDRNOTAVAIL ? DT_ERR_NOT_FOUND
                         : number == EACCES        ? DT_ERR_DENIED
                                                   : DT_ERR_INTERNAL;
    return dt_fail(err, status, "errno", number, "cannot listen on %s=%s: %s%s", options->option,
                   options->listen, text ? text : "unknown error",
                   number == EADDRINUSE ? "; another program has this port" : "");
}

static dt_status_t listen_on(const dt_http_options_t *options, int *ret_fd, dt_error_t *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[256], port[16];
    int fd, rc, on = 1, number;
    DT_TRY(split_address(options, host, port, err));
    rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0)
        return dt_fail(err, DT_ERR_NOT_FOUND, "getaddrinfo", rc, "%s=%s: %s", options->option,
                       options->listen, gai_strerror(rc));
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
    return fail_listen(err, options, number);
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

dt_status_t dt_http_open(const dt_http_options_t *options, dt_http_t **ret_http, dt_error_t *err)
{
    struct dt_http *http;
    bool is_tls = options->certificate_pem != NULL;
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | (is_tls ? MHD_USE_TLS : 0);
    int fd = -1;
    dt_check(options->struct_size == sizeof *options);
    dt_check(options->connection_max > 0 && options->connection_max <= DT_HTTP_CONNECTIONS_MAX);
    DT_TRY(listen_on(options, &fd, err));
    http = calloc(1, sizeof *http);
    if (!http) {
        close(fd);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    }
    http->handler = options->handler;
    http->arg = options->arg;
    http->connection_max = options->connection_max;
    name_address(fd, options->listen, http->address, sizeof http->address);
    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, http, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_NOTIFY_CONNECTION, on_guest, http, MHD_OPTION_CONNECTION_LIMIT,
        options->connection_max, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)DT_HTTP_TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_MAX,
        is_tls ? MHD_OPTION_HTTPS_MEM_CERT : MHD_OPTION_END, options->certificate_pem,
        MHD_OPTION_HTTPS_MEM_KEY, options->key_pem, MHD_OPTION_END);
    if (!http->daemon) {
        free(http);
        close(fd);
        return dt_fail(err, is_tls ? DT_ERR_INVALID : DT_ERR_INTERNAL, "microhttpd", 0,
                       "%s=%s: the HTTP server does not start%s", options->option, options->listen,
                       is_tls ? " with this certificate and key" : "");
    }
    *ret_http = http;
    return DT_OK;
}

const char *dt_http_address(const dt_http_t *http)
{
    return http->address;
}

void dt_http_close(dt_http_t *http)
{
    if (!http)
        return;
    MHD_stop_daemon(http->daemon); /* closes the socket, joins the thread */
    free(http);
}
