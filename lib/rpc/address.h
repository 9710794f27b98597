/* Addresses as text: "host:port", "[v6]:port", "/path", "unix:/path"; and socket addresses. */
#ifndef DT_RPC_ADDRESS_H
#define DT_RPC_ADDRESS_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/status.h"

#define DT_RPC_HOST_MAX 256

typedef struct dt_rpc_address {
    bool is_unix;
    char host[DT_RPC_HOST_MAX]; /* name or number without brackets; unix: the path; "" any */
    int port;                   /* 0..65535; unix: 0 */
} dt_rpc_address_t;

/* Read an address. Errors: INVALID; the text says what is wrong. */
DT_MUST_USE dt_status_t dt_rpc_address_parse(const char *text, dt_rpc_address_t *ret_address,
                                             dt_error_t *err);
/* Find a socket address to listen on; "" and "*" are all interfaces. Errors: NOT_FOUND (name).
 * Blocking: for a name that is neither a number nor in /etc/hosts. */
DT_MUST_USE dt_status_t dt_rpc_address_resolve(const dt_rpc_address_t *address,
                                               struct sockaddr_storage *ret_socket,
                                               socklen_t *ret_size, dt_error_t *err);
/* Write what gRPC calls a target. A name in the hosts file is written as its addresses: gRPC's own
 * resolver would ask the name server for the family that the file lacks, and wait for it.
 * `ret_is_number`: the target does not carry the name, so TLS must be told what to expect.
 * Errors: INVALID (no host, too long). Blocking: to read `hosts_path`, "/etc/hosts" if NULL. */
DT_MUST_USE dt_status_t dt_rpc_address_target(const dt_rpc_address_t *address,
                                              const char *hosts_path, char *text, size_t size,
                                              bool *ret_is_number, dt_error_t *err);
/* Write a socket address, "10.0.0.1:5" or "[::1]:5"; without `with_port` only the host. An IPv4
 * address in IPv6 is written as IPv4. */
void dt_rpc_address_text(const struct sockaddr_storage *socket, bool with_port, char *text,
                         size_t size);
int dt_rpc_address_port(const struct sockaddr_storage *socket);
/* Write gRPC's name of a peer ("ipv4:1.2.3.4:5", "ipv6:%5B::1%5D:5") as above. */
void dt_rpc_address_of_peer(const char *peer, char *text, size_t size);

#endif
