#include "rpc/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

#define HOSTS_LINE_MAX  1024
#define HOSTS_LINES_MAX 20000

static dt_status_t parse_unix(const char *path, dt_rpc_address_t *ret_address, dt_error_t *err)
{
    struct sockaddr_un un;
    size_t size = strlen(path);
    if (size == 0 || size >= sizeof un.sun_path)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "socket path %s has %zu bytes: 1 to %zu are possible", path, size,
                       sizeof un.sun_path - 1);
    ret_address->is_unix = true;
    memcpy(ret_address->host, path, size + 1);
    return DT_OK;
}

static dt_status_t parse_port(const char *text, const char *whole, int *ret_port, dt_error_t *err)
{
    char *end;
    long port = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || port > 65535)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "address %s: the port is not in 0..65535",
                       whole);
    *ret_port = (int)port;
    return DT_OK;
}

dt_status_t dt_rpc_address_parse(const char *text, dt_rpc_address_t *ret_address, dt_error_t *err)
{
    dt_rpc_address_t address = {0};
    const char *host = text, *host_end, *colon = strrchr(text, ':');
    if (text[0] == '/' || strncmp(text, "unix:", 5) == 0) {
        DT_TRY(parse_unix(text[0] == '/' ? text : text + 5, &address, err));
        *ret_address = address;
        return DT_OK;
    }
    if (text[0] == '[') {
        host = text + 1;
        host_end = strchr(text, ']');
        if (!host_end || host_end + 1 != colon)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "address %s is not [v6]:port", text);
    } else {
        host_end = colon;
        if (!colon || memchr(text, ':', (size_t)(colon - text)))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "address %s is not host:port, [v6]:port or a socket path", text);
    }
    size_t size = (size_t)(host_end - host);
    if (size >= sizeof address.host)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the host of the address has %zu bytes", size);
    memcpy(address.host, host, size);
    if (strcmp(address.host, "*") == 0)
        address.host[0] = '\0';
    for (const char *at = address.host; *at; at++)
        if (*at <= ' ' || *at == '/' || *at == '%' || *at == '?' || *at == '#' || *at == 127)
            return dt_fail(err, DT_ERR_INVALID, "dt", 0, "address %s has a bad character", text);
    DT_TRY(parse_port(colon + 1, text, &address.port, err));
    *ret_address = address;
    return DT_OK;
}

dt_status_t dt_rpc_address_resolve(const dt_rpc_address_t *address,
                                   struct sockaddr_storage *ret_socket, socklen_t *ret_size,
                                   dt_error_t *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[8];
    (void)snprintf(port, sizeof port, "%d", address->port);
    int rc = getaddrinfo(address->host[0] ? address->host : NULL, port, &hints, &list);
    if (rc != 0 || !list)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", rc, "cannot resolve %s: %s", address->host,
                       gai_strerror(rc));
    const struct addrinfo *best = list;
    for (const struct addrinfo *at = list; at; at = at->ai_next)
        if (best->ai_family != AF_INET && at->ai_family == AF_INET)
            best = at;
    memcpy(ret_socket, best->ai_addr, best->ai_addrlen);
    *ret_size = best->ai_addrlen;
    freeaddrinfo(list);
    return DT_OK;
}

/* Add what one line of a hosts file says about `host` to a target of one family. */
static void read_hosts_line(char *line, const dt_rpc_address_t *address, int family, char *text,
                            size_t size)
{
    struct in6_addr number;
    char *rest = NULL;
    size_t used = strlen(text);
    line[strcspn(line, "#\n")] = '\0';
    const char *value = strtok_r(line, " \t", &rest);
    if (!value || inet_pton(family, value, &number) != 1)
        return;
    for (const char *name; (name = strtok_r(NULL, " \t", &rest)) != NULL;) {
        if (strcasecmp(name, address->host) != 0)
            continue;
        bool is_v6 = family == AF_INET6;
        int added = snprintf(text + used, size - used, "%s%s%s%s:%d",
                             used ? "," : (is_v6 ? "ipv6:" : "ipv4:"), is_v6 ? "[" : "", value,
                             is_v6 ? "]" : "", address->port);
        if (added < 0 || (size_t)added >= size - used)
            text[used] = '\0'; /* enough addresses */
        return;
    }
}

/* Write the addresses that the hosts file has for a name. False: it has none. */
static bool read_hosts(const dt_rpc_address_t *address, const char *path, int family, char *text,
                       size_t size)
{
    char line[HOSTS_LINE_MAX];
    FILE *file = fopen(path, "re");
    text[0] = '\0';
    if (!file)
        return false;
    for (int i = 0; i < HOSTS_LINES_MAX && fgets(line, sizeof line, file); i++)
        read_hosts_line(line, address, family, text, size);
    (void)fclose(file);
    return text[0] != '\0';
}

dt_status_t dt_rpc_address_target(const dt_rpc_address_t *address, const char *hosts_path,
                                  char *text, size_t size, bool *ret_is_number, dt_error_t *err)
{
    struct in6_addr number;
    int length = 0;
    const char *hosts = hosts_path ? hosts_path : "/etc/hosts";
    *ret_is_number = true;
    if (address->is_unix)
        length = snprintf(text, size, "unix:%s", address->host);
    else if (inet_pton(AF_INET, address->host, &number) == 1)
        length = snprintf(text, size, "ipv4:%s:%d", address->host, address->port);
    else if (inet_pton(AF_INET6, address->host, &number) == 1)
        length = snprintf(text, size, "ipv6:[%s]:%d", address->host, address->port);
    else if (read_hosts(address, hosts, AF_INET, text, size) ||
             read_hosts(address, hosts, AF_INET6, text, size))
        return DT_OK;
    else if (strcasecmp(address->host, "localhost") == 0)
        length = snprintf(text, size, "ipv4:127.0.0.1:%d", address->port);
    else {
        *ret_is_number = false;
        length = snprintf(text, size, "dns:///%s:%d", address->host, address->port);
    }
    if (address->host[0] == '\0' || length < 0 || (size_t)length >= size)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "address without a host, or too long");
    return DT_OK;
}

void dt_rpc_address_text(const struct sockaddr_storage *socket, bool with_port, char *text,
                         size_t size)
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool is_v6 = false;
    if (socket->ss_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, socket, sizeof in);
        (void)inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
    } else if (socket->ss_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, socket, sizeof in6);
        is_v6 = !IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr);
        if (is_v6)
            (void)inet_ntop(AF_INET6, &in6.sin6_addr, host, sizeof host);
        else
            (void)inet_ntop(AF_INET, &in6.sin6_addr.s6_addr[12], host, sizeof host);
    }
    if (!with_port)
        (void)snprintf(text, size, "%s", host);
    else
        (void)snprintf(text, size, is_v6 ? "[%s]:%d" : "%s:%d", host, dt_rpc_address_port(socket));
}

int dt_rpc_address_port(const struct sockaddr_storage *socket)
{
    in_port_t port = 0;
    if (socket->ss_family == AF_INET)
        memcpy(&port, (const char *)socket + offsetof(struct sockaddr_in, sin_port), sizeof port);
    else if (socket->ss_family == AF_INET6)
        memcpy(&port, (const char *)socket + offsetof(struct sockaddr_in6, sin6_port), sizeof port);
    return ntohs(port);
}

void dt_rpc_address_of_peer(const char *peer, char *text, size_t size)
{
    size_t used = 0;
    if (strncmp(peer, "ipv4:", 5) == 0 || strncmp(peer, "ipv6:", 5) == 0)
        peer += 5;
    for (; *peer && used + 1 < size; peer++) {
        if (strncmp(peer, "%5B", 3) == 0 || strncmp(peer, "%5D", 3) == 0) {
            text[used++] = peer[2] == 'B' ? '[' : ']';
            peer += 2;
        } else {
            text[used++] = *peer;
        }
    }
    text[used] = '\0';
}
