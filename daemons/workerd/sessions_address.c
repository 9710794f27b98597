/* Where this node is reached: addresses that others are told. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc/address.h"
#include "sessions_internal.h"

bool dt_node_address_read(const char *text, struct sockaddr_storage *ret_address,
                          socklen_t *ret_size)
{
    dt_rpc_address_t parsed;
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (dt_rpc_address_parse(text, &parsed, NULL) != DT_OK || parsed.is_unix)
        return false;
    memset(ret_address, 0, sizeof *ret_address);
    if (inet_pton(AF_INET, parsed.host, &four.sin_addr) == 1) {
        four.sin_port = htons((uint16_t)parsed.port);
        memcpy(ret_address, &four, sizeof four);
        *ret_size = sizeof four;
        return true;
    }
    six.sin6_port = htons((uint16_t)parsed.port);
    if (inet_pton(AF_INET6, parsed.host, &six.sin6_addr) != 1)
        return false;
    memcpy(ret_address, &six, sizeof six);
    *ret_size = sizeof six;
    return true;
}

/* A name is told by the connection that stands: nobody is asked here. */
bool dt_node_address_own(const dt_node_sessions_t *sessions, struct sockaddr_storage *ret_address,
                         socklen_t *ret_size)
{
    const char *controller = sessions->options.address(sessions->options.arg);
    const char *peer = sessions->options.peer(sessions->options.arg);
    struct sockaddr_storage there;
    socklen_t size;
    if (!controller)
        return false;
    if (controller[0] == '/' || strncmp(controller, "unix:", 5) == 0)
        return dt_node_address_read("127.0.0.1:0", ret_address, ret_size);
    if (!dt_node_address_read(peer, &there, &size))
        return false;
    int fd = socket(there.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    *ret_size = sizeof *ret_address;
    bool is_known = connect(fd, (struct sockaddr *)&there, size) == 0 &&
                    getsockname(fd, (struct sockaddr *)ret_address, ret_size) == 0;
    (void)close(fd);
    return is_known;
}

void dt_node_address_set_port(struct sockaddr_storage *address, int port)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    if (address->ss_family == AF_INET) {
        memcpy(&four, address, sizeof four);
        four.sin_port = htons((uint16_t)port);
        memcpy(address, &four, sizeof four);
        return;
    }
    memcpy(&six, address, sizeof six);
    six.sin6_port = htons((uint16_t)port);
    memcpy(address, &six, sizeof six);
}

dt_node_reach_t dt_node_address_reach(const struct sockaddr_storage *address)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    memcpy(&four, address, sizeof four);
    memcpy(&six, address, sizeof six);
    if (address->ss_family == AF_INET && ntohl(four.sin_addr.s_addr) >> 24 == 127)
        return DT_NODE_REACH_LOOPBACK;
    if (address->ss_family == AF_INET)
        return four.sin_addr.s_addr == 0 ? DT_NODE_REACH_ANY : DT_NODE_REACH_ONE;
    if (IN6_IS_ADDR_LOOPBACK(&six.sin6_addr))
        return DT_NODE_REACH_LOOPBACK;
    return IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr) ? DT_NODE_REACH_ANY : DT_NODE_REACH_ONE;
}
