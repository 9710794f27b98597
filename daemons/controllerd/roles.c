/* Who may call what. */
#include <stdio.h>
#include <string.h>

#include "controllerd.h"

#define NODE_PREFIX  "spiffe://dtorch/node/"
#define ADMIN_PREFIX "spiffe://dtorch/admin/"

#define BIT(role) (1u << (role))
#define ANYBODY   BIT(DT_CONTROLLERD_ROLE_NONE)
#define LOCAL                                                                                      \
    (ANYBODY | BIT(DT_CONTROLLERD_ROLE_VIEWER) | BIT(DT_CONTROLLERD_ROLE_USER) |                   \
     BIT(DT_CONTROLLERD_ROLE_WORKER))
#define PEOPLE                                                                                     \
    (ANYBODY | BIT(DT_CONTROLLERD_ROLE_VIEWER) | BIT(DT_CONTROLLERD_ROLE_USER) |                   \
     BIT(DT_CONTROLLERD_ROLE_OPERATOR) | BIT(DT_CONTROLLERD_ROLE_ADMIN))

const char *dt_controllerd_role_text(dt_controllerd_role_t role)
{
    static const char *const texts[DT_CONTROLLERD_ROLE_COUNT] = {
        [DT_CONTROLLERD_ROLE_NONE] = "none",   [DT_CONTROLLERD_ROLE_VIEWER] = "viewer",
        [DT_CONTROLLERD_ROLE_USER] = "user",   [DT_CONTROLLERD_ROLE_OPERATOR] = "operator",
        [DT_CONTROLLERD_ROLE_ADMIN] = "admin", [DT_CONTROLLERD_ROLE_WORKER] = "worker",
    };
    return texts[role];
}

/* The roles that a peer has by where it came from and what it showed. */
static unsigned peer_roles(const dt_rpc_peer_t *peer)
{
    if (peer->kind == DT_RPC_PEER_UNIX && peer->listener == DT_CONTROLLERD_LISTENER_ADMIN)
        return PEOPLE;
    if (peer->kind != DT_RPC_PEER_TLS)
        return LOCAL; /* the worker's socket, loopback, or what Insecure=yes lets through */
    if (!peer->has_certificate)
        return ANYBODY;
    if (dt_str_has_prefix(peer->spiffe_id, ADMIN_PREFIX))
        return PEOPLE;
    if (dt_str_has_prefix(peer->spiffe_id, NODE_PREFIX))
        return ANYBODY | BIT(DT_CONTROLLERD_ROLE_WORKER);
    return ANYBODY;
}

bool dt_controllerd_peer_has_role(const dt_rpc_peer_t *peer, dt_controllerd_role_t role)
{
    return (peer_roles(peer) & BIT(role)) != 0;
}

const char *dt_controllerd_peer_node(const dt_rpc_peer_t *peer)
{
    if (peer->kind != DT_RPC_PEER_TLS || !peer->has_certificate ||
        !dt_str_has_prefix(peer->spiffe_id, NODE_PREFIX))
        return NULL;
    return peer->spiffe_id + strlen(NODE_PREFIX);
}

void dt_controllerd_peer_name(const dt_rpc_peer_t *peer, char *out, size_t size)
{
    if (peer->kind == DT_RPC_PEER_UNIX)
        (void)snprintf(out, size, peer->uid == 0 ? "root (uid %lu)" : "uid %lu",
                       (unsigned long)peer->uid);
    else if (peer->kind == DT_RPC_PEER_TLS && dt_str_has_prefix(peer->spiffe_id, ADMIN_PREFIX))
        (void)snprintf(out, size, "admin %s (certificate)", peer->spiffe_id + strlen(ADMIN_PREFIX));
    else
        (void)snprintf(out, size, "%s", peer->address);
}
