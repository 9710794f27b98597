/* Where the controller listens, and what it refuses to listen on. */
#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "controllerd.h"

#define SOCKET_MODE 0660

static bool is_path(const char *address)
{
    return address[0] == '/' || dt_str_has_prefix(address, "unix:");
}

/* Copy the host part of HOST:PORT or [V6]:PORT. */
static bool host_of(const char *address, char host[INET6_ADDRSTRLEN + 64])
{
    const char *end = strrchr(address, ':');
    size_t length = end ? (size_t)(end - address) : strlen(address);
    if (length >= 2 && address[0] == '[' && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    if (length >= INET6_ADDRSTRLEN + 64)
        return false;
    memcpy(host, address, length);
    host[length] = '\0';
    return true;
}

bool dt_controllerd_is_local(const char *address)
{
    char host[INET6_ADDRSTRLEN + 64];
    struct in6_addr six;
    struct in_addr four;
    if (is_path(address))
        return true;
    if (!host_of(address, host))
        return false;
    if (inet_pton(AF_INET, host, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
    return strcmp(host, "localhost") == 0;
}

static dt_status_t check_private(const dt_conf_t *conf, bool has_tls, dt_error_t *err)
{
    const dt_strv_t *listens = dt_conf_list(conf, "Listen");
    const char *metrics = dt_conf_str(conf, "MetricsListen");
    if (has_tls || dt_conf_bool(conf, "Insecure"))
        return DT_OK;
    for (size_t i = 0; i < listens->count; i++) {
        const char *address = listens->items[i];
        if (strcmp(address, "none") != 0 && !dt_controllerd_is_local(address))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "Listen=%s needs TLS (Certificate=, Key=, CertificateAuthority=) and a "
                           "token, or a loopback address.\n"
                           "  Make both:  dtorchctl setup controller        (exit code 78, nothing "
                           "was started)",
                           address);
    }
    if (strcmp(metrics, "none") != 0 && !dt_controllerd_is_local(metrics))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "MetricsListen=%s needs TLS (Certificate=, Key=, CertificateAuthority=), or "
                       "a loopback address.\n"
                       "  Make it:  dtorchctl setup controller        (exit code 78, nothing was "
                       "started)",
                       metrics);
    return DT_OK;
}

/* Whoever reads the page sees what a viewer does, so off this host it wants to know who that is. */
static dt_status_t check_page(const dt_conf_t *conf, bool has_tls, dt_error_t *err)
{
    const char *listen = dt_conf_str(conf, "StatusListen");
    if (strcmp(listen, "none") == 0 || dt_controllerd_is_local(listen) ||
        (has_tls && *dt_conf_str(conf, "StatusSecret")))
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                   "StatusListen=%s needs TLS (Certificate=, Key=, CertificateAuthority=) and "
                   "StatusSecret=, or a loopback address.\n"
                   "  From elsewhere, without either:  ssh -L 7702:127.0.0.1:7702 THIS-HOST",
                   listen);
}

dt_status_t dt_controllerd_check_conf(const dt_conf_t *conf, dt_error_t *err)
{
    bool has_certificate = *dt_conf_str(conf, "Certificate");
    bool has_authority = *dt_conf_str(conf, "CertificateAuthority");
    if (dt_conf_int(conf, "DeadBeats") <= dt_conf_int(conf, "SuspectBeats"))
        return dt_conf_fail(conf, "DeadBeats", err, "must be above SuspectBeats");
    if (has_certificate && !has_authority)
        return dt_conf_fail(conf, "Certificate", err, "CertificateAuthority= must be set too");
    if (has_authority && !has_certificate)
        return dt_conf_fail(conf, "CertificateAuthority", err, "Certificate= must be set too");
    if (!has_certificate && *dt_conf_str(conf, "Key"))
        return dt_conf_fail(conf, "Key", err, "Certificate= must be set too");
    DT_TRY(check_private(conf, has_certificate, err));
    return check_page(conf, has_certificate, err);
}

/* ---- binding ---- */

static int exit_of(dt_status_t status, bool is_unix)
{
    switch (status) {
    case DT_ERR_EXISTS:
        return DT_CONTROLLERD_EXIT_UNAVAILABLE;
    case DT_ERR_NOT_FOUND:
        return is_unix ? DT_CONTROLLERD_EXIT_CONFIG : DT_CONTROLLERD_EXIT_UNAVAILABLE;
    case DT_ERR_DENIED:
        return DT_CONTROLLERD_EXIT_DENIED;
    case DT_ERR_INVALID:
        return DT_CONTROLLERD_EXIT_CONFIG;
    default:
        return DT_CONTROLLERD_EXIT_SOFTWARE;
    }
}

static dt_status_t remember(dt_controllerd_t *app, const char *address, dt_error_t *err)
{
    dt_check(app->listen_count < DT_CONTROLLERD_LISTEN_MAX);
    app->listens[app->listen_count] = strdup(address);
    if (!app->listens[app->listen_count])
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    app->listen_count++;
    return DT_OK;
}

static bool is_remembered(const dt_controllerd_t *app, const char *address)
{
    for (size_t i = 0; i < app->listen_count; i++) {
        if (strcmp(app->listens[i], address) == 0)
            return true;
    }
    return false;
}

/* Write a socket's own address as text, and whether only this host can reach it. */
static bool socket_address(int fd, char *text, size_t size, bool *ret_is_unix)
{
    union {
        struct sockaddr any;
        struct sockaddr_un un;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_storage room;
    } addr = {.room = {0}};
    socklen_t length = sizeof addr;
    char host[INET6_ADDRSTRLEN];
    *ret_is_unix = false;
    if (getsockname(fd, &addr.any, &length) < 0)
        return false;
    if (addr.any.sa_family == AF_UNIX) {
        *ret_is_unix = true;
        (void)snprintf(text, size, "%.*s", (int)sizeof addr.un.sun_path, addr.un.sun_path);
    } else if (addr.any.sa_family == AF_INET &&
               inet_ntop(AF_INET, &addr.in.sin_addr, host, sizeof host)) {
        (void)snprintf(text, size, "%s:%u", host, (unsigned)ntohs(addr.in.sin_port));
    } else if (addr.any.sa_family == AF_INET6 &&
               inet_ntop(AF_INET6, &addr.in6.sin6_addr, host, sizeof host)) {
        (void)snprintf(text, size, "[%s]:%u", host, (unsigned)ntohs(addr.in6.sin6_port));
    } else {
        return false;
    }
    return true;
}

/* Use one socket that the service manager passed. */
static dt_status_t listen_passed(dt_controllerd_t *app, const dt_sysd_fd_t *passed, bool *had_admin,
                                 dt_error_t *err)
{
    char address[256];
    bool is_unix, is_admin;
    if (!socket_address(passed->fd, address, sizeof address, &is_unix))
        return dt_fail(err, DT_ERR_INVALID, "dt", passed->fd,
                       "the passed socket \"%s\" has no address that we know", passed->name);
    is_admin = is_unix && (strstr(passed->name, "admin") ||
                           strcmp(address, dt_conf_str(app->conf, "AdminSocket")) == 0);
    if (!dt_controllerd_is_local(address) && !dt_conf_bool(app->conf, "Insecure"))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "the passed socket \"%s\" listens on %s; off loopback use Listen=, which "
                       "speaks TLS",
                       passed->name, address);
    if (is_admin)
        *had_admin = true;
    else
        DT_TRY(remember(app, address, err));
    return dt_rpc_server_listen_fd(
        app->server, passed->fd, is_admin ? DT_CONTROLLERD_LISTENER_ADMIN : (int)app->listen_count,
        err);
}

/* Let the admin group use the socket that we made. Who may not give it away, or has no such group,
 * keeps it private. */
static void give_to_group(const char *path, const char *name)
{
    char room[4096];
    struct group group, *found = NULL;
    if (!*name || getgrnam_r(name, &group, room, sizeof room, &found) != 0 || !found) {
        dt_log_info("no group for the admin socket: only root and this user may use it",
                    DT_LOG_S("group", name));
        return;
    }
    if (lchown(path, (uid_t)-1, group.gr_gid) < 0)
        dt_log_info("the admin socket stays with this user's group", DT_LOG_S("group", name),
                    DT_LOG_S("reason", strerrordesc_np(errno)));
}

static dt_status_t listen_one(dt_controllerd_t *app, const char *address, dt_error_t *err)
{
    const dt_rpc_tls_t tls = {
        .ca = app->tls.ca, .certificate = app->tls.chain, .key = app->tls.key};
    char bound[256], host[INET6_ADDRSTRLEN + 64];
    int number = (int)app->listen_count + 1, port;
    if (is_path(address)) {
        DT_TRY(remember(app, address, err));
        return dt_rpc_server_listen_unix(app->server, address, SOCKET_MODE, number, err);
    }
    DT_TRY(dt_rpc_server_listen_tcp(app->server, address, app->tls.is_on ? &tls : NULL, number,
                                    &port, err));
    app->has_tls_listener |= app->tls.is_on;
    if (!host_of(address, host))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "Listen=%s: too long", address);
    (void)snprintf(bound, sizeof bound, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
    return remember(app, bound, err);
}

dt_status_t dt_controllerd_listen(dt_controllerd_t *app, int *ret_exit, dt_error_t *err)
{
    dt_sysd_fd_t passed[DT_SYSD_FD_MAX];
    const dt_strv_t *listens = dt_conf_list(app->conf, "Listen");
    const char *admin = dt_conf_str(app->conf, "AdminSocket");
    size_t count;
    bool had_admin = false;
    dt_status_t status = dt_sysd_listen_fds(passed, &count, err);
    for (size_t i = 0; status == DT_OK && i < count; i++) {
        if (app->listen_count == DT_CONTROLLERD_LISTEN_MAX - 1)
            status = dt_fail(err, DT_ERR_INVALID, "dt", 0, "too many sockets were passed");
        else
            status = listen_passed(app, &passed[i], &had_admin, err);
    }
    *ret_exit = exit_of(status, true);
    if (status == DT_OK && !had_admin) {
        status = dt_rpc_server_listen_unix(app->server, admin, SOCKET_MODE,
                                           DT_CONTROLLERD_LISTENER_ADMIN, err);
        *ret_exit = exit_of(status, true);
        if (status == DT_OK)
            give_to_group(admin, dt_conf_str(app->conf, "AdminGroup"));
    }
    for (size_t i = 0; status == DT_OK && i < listens->count; i++) {
        const char *address = listens->items[i];
        if (strcmp(address, "none") == 0 || is_remembered(app, address))
            continue;
        if (app->listen_count == DT_CONTROLLERD_LISTEN_MAX - 1)
            status = dt_fail(err, DT_ERR_INVALID, "dt", 0, "Listen= has too many addresses");
        else
            status = listen_one(app, address, err);
        *ret_exit = exit_of(status, is_path(address));
    }
    return status;
}
