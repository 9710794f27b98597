/* TLS on a connected stream socket that somebody else watches: bytes in, bytes out, nothing waits.
 *
 *   created --> the handshake, by the first sends and receives --> ready --> over, with an error
 *
 * Both sides are ours, so it is TLS 1.3 and nothing older, without tickets, early data or
 * renegotiation. Who proves what:
 *   certificates  a node shows its own, signed by the cluster's authority; who expects a node is
 *                 told its name and compares it with the certificate's spiffe URI, whatever the
 *                 address was. No host name is looked at, so a node's certificate, which is one
 *                 for clients, cannot stand for the controller's
 *   a key         both sides know 32 bytes that nobody else does
 * Invariants: no byte of the caller's is encrypted, and none is given to it, before the handshake
 * is over and the other side is who it should be. Limits: about DT_TLS_BUFFER_BYTES each way, made
 * when they are needed. A connection's end is not authenticated: messages say themselves how long
 * they are. Does not: own or watch the descriptor. Threads: one at a time. Blocking: never. */
#ifndef DT_PKI_TLS_H
#define DT_PKI_TLS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

#define DT_TLS_KEY_BYTES    32u
#define DT_TLS_BUFFER_BYTES ((size_t)288 << 10) /* 17 records with what surrounds them */

typedef struct dt_tls dt_tls_t;

typedef struct dt_tls_options {
    const char *ca;          /* PEM, one or more authorities; NULL: a server that asks for none */
    const char *certificate; /* PEM, the leaf first; NULL: none is shown, as a client may */
    const char *key;
    const char *peer; /* name of the node that must be there; NULL: see dt_tls_peer() */
    bool is_server;
    bool is_exact; /* receive no byte behind what was asked for: the socket is handed on */
} dt_tls_options_t;

/* Ownership: borrows `options`; gives *ret_tls, dt_tls_free().
 * Errors: INVALID (a text is no certificate or key), NOMEM, INTERNAL (OpenSSL).
 * Cost: some 0.3 ms, for reading certificates. */
DT_MUST_USE dt_status_t dt_tls_create(const dt_tls_options_t *options, dt_tls_t **ret_tls,
                                      dt_error_t *err);
/* Likewise by a key that both sides know. Errors: NOMEM, INTERNAL. */
DT_MUST_USE dt_status_t dt_tls_create_keyed(const uint8_t key[DT_TLS_KEY_BYTES], bool is_server,
                                            dt_tls_t **ret_tls, dt_error_t *err);
void dt_tls_free(dt_tls_t *tls); /* NULL is fine */

/* Send what can be sent now. What was taken is not always in the socket already: see
 * dt_tls_wants_out(), and come again, if need be with nothing.
 * Ownership: borrows `bytes`. Returns how many were taken; 0: none now; -1: it is over and *err
 * says why.
 * Errors: PEER (source "errno" where the connection broke, its code 0 for its end; else it is not
 * TLS, or broke its rules), DENIED (a certificate does not convince: by us or by the other side).
 */
ssize_t dt_tls_send(dt_tls_t *tls, int fd, const void *bytes, size_t size, dt_error_t *err);
/* Receive, likewise. */
ssize_t dt_tls_recv(dt_tls_t *tls, int fd, void *bytes, size_t size, dt_error_t *err);

/* Whether bytes wait for the socket to take them. */
bool dt_tls_wants_out(const dt_tls_t *tls);
bool dt_tls_is_ready(const dt_tls_t *tls); /* the handshake is over */
/* Bytes that came may lie in our memory, where no poll of the socket tells of them: receive until
 * there are none. Who has to stop before sets a hold, and then receives only what is here. */
void dt_tls_hold(dt_tls_t *tls, bool is_held);
/* The node whose certificate was shown; "" before the handshake is over and where none was. */
const char *dt_tls_peer(const dt_tls_t *tls);

/* A key that both sides can compute and nobody else. Errors: INVALID (the handshake is not over),
 * INTERNAL. */
DT_MUST_USE dt_status_t dt_tls_export(dt_tls_t *tls, uint8_t ret_key[DT_TLS_KEY_BYTES],
                                      dt_error_t *err);

#endif
