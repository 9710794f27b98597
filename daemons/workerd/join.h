/* The node's credentials: where they come from, and their renewal.
 *
 * Sources, the first that is there: Certificate=, Key= and CertificateAuthority= (read again at a
 * reload, renewed by whoever wrote them); `node.crt`, `node.key`, `ca.crt` in the state directory
 * (renewed here at two thirds of their life); a join token (JoinTokenFile=, else the credential
 * "join.token"; the word "none" or an empty file is none): the controller's authority is fetched,
 * accepted if its SHA-256 is the token's, then a key is made here and a certificate asked for.
 * Without any, only controllers on this host (unix sockets, loopback, names that resolve to it) are
 * dialed, in plain text.
 *
 * Joining goes on for ever while nobody answers; it ends the daemon when a person has to act: the
 * authority is another one, or the controller refuses the token. The key never leaves the node, and
 * no token is ever logged. */
#ifndef DT_WORKERD_JOIN_H
#define DT_WORKERD_JOIN_H
#include <stdbool.h>

#include "conf/conf.h"
#include "identity.h"
#include "rpc/rpc.h"
#include "tasks.h"

typedef struct dt_join dt_join_t;

typedef struct dt_join_options {
    dt_loop_t *loop;
    dt_rpc_t *rpc;
    dt_tasks_t *tasks;
    const dt_conf_t *conf;                            /* until dt_join_reload() */
    const dt_identity_t *identity;                    /* kept until freed */
    void (*ready)(void *arg);                         /* dt_join_is_ready() holds now */
    void (*failed)(void *arg, const dt_error_t *why); /* nothing will come of it by itself */
    void *arg;
} dt_join_options_t;

/* Look for credentials and check them; asks nobody yet.
 * Ownership: keeps what options say; gives *ret_join, free with dt_join_free().
 * Errors: INVALID (damaged, expired, of another node or authority, or none though one is needed),
 * NOT_FOUND, DENIED (a file), NOMEM; the text says what to do. Blocking: reads files. */
DT_MUST_USE dt_status_t dt_join_create(const dt_join_options_t *options, dt_join_t **ret_join,
                                       dt_error_t *err);
/* Begin to join, if that is needed, and to watch the certificate's life. */
void dt_join_start(dt_join_t *join);

/* Whether the controller can be dialed. */
bool dt_join_is_ready(const dt_join_t *join);
/* What to show on TCP, NULL for plain text. Borrowed until the next turn. */
const dt_rpc_tls_t *dt_join_tls(const dt_join_t *join);
/* When the certificate ends, wall clock ms; 0: there is none. */
int64_t dt_join_not_after_ms(const dt_join_t *join);

/* The configuration was loaded again: read its certificate files again.
 * Errors: as dt_join_create(); the old credentials stay. */
DT_MUST_USE dt_status_t dt_join_reload(dt_join_t *join, const dt_conf_t *conf, dt_error_t *err);

/* Ask nobody any more. `stopped` runs when what was asked has ended, perhaps at once. */
void dt_join_stop(dt_join_t *join, void (*stopped)(void *arg));

/* After the tasks were freed. NULL is fine. */
void dt_join_free(dt_join_t *join);

/* Where an address of Controller= leads, as far as it says so itself. */
typedef enum dt_join_place {
    DT_JOIN_PLACE_HERE,      /* a unix socket or loopback: plain text is fine */
    DT_JOIN_PLACE_ELSEWHERE, /* an IP address of another host: never without TLS */
    DT_JOIN_PLACE_NAME,      /* depends on what it resolves to: see link.c */
} dt_join_place_t;
dt_join_place_t dt_join_place(const char *address);

/* Part HOST:PORT or [V6]:PORT. False: it does not fit or has no port. */
bool dt_join_split(const char *address, char *host, size_t host_size, char *port, size_t port_size);

#endif
