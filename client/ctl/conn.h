/* Which controller to ask, and asking it.
 * Addresses come from -H, else Address= of client.conf (DTORCH_ADDRESS), else the admin socket.
 * They are tried in order until one answers; that one is kept for the next call. With
 * CertificateAuthority= in client.conf TCP is TLS, without it plain text. Threads: one. */
#ifndef DT_CTL_CONN_H
#define DT_CTL_CONN_H
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

#include "conf/conf.h"
#include "pool.h"
#include "rpc/rpc.h"

#define DT_CTL_PORT        "7700" /* of an address that names none */
#define DT_CTL_ADDRESS_MAX 16
#define DT_CTL_CALL_MS     5000                /* until an answer must be there */
#define DT_CTL_LATE        "no answer in time" /* what is said of an address then */

typedef struct dt_ctl_conn {
    dt_conf_t *conf; /* NULL: not opened yet */
    const char *addresses[DT_CTL_ADDRESS_MAX];
    size_t address_count, current; /* current: the one that answered last */
    bool has_tls;
    char *ca, *certificate, *key; /* PEM, or NULL */
    dt_rpc_tls_t tls;
    bool has_answered;
} dt_ctl_conn_t;

/* Read client.conf (or `config_path`) and work out the addresses. `hosts` is -H's text or NULL.
 * Ownership: keeps copies in `kept`; dt_ctl_conn_fini() in any case.
 * Errors: INVALID (configuration or address), NOT_FOUND, DENIED (files). Blocking: reads files. */
DT_MUST_USE dt_status_t dt_ctl_conn_open(dt_ctl_conn_t *conn, dt_arena_t *kept, const char *hosts,
                                         const char *config_path, dt_error_t *err);
void dt_ctl_conn_fini(dt_ctl_conn_t *conn);

/* One call of the Admin service. */
typedef struct dt_ctl_request {
    const char *method; /* "ListNodes" */
    const ProtobufCMessage *message;
    const ProtobufCMessageDescriptor *reply_type;
    int64_t timeout_ms; /* for each address */
} dt_ctl_request_t;

/* Call a method of the Admin service. *ret_reply lives in `pool`.
 * Errors: as the controller said; PEER (nobody answered), DENIED (no right to connect): then
 * *ret_tried says in lines which addresses were tried and why each failed, else it is NULL;
 * INTERNAL (the answer is no message of that type). Blocking: see timeout_ms. */
DT_MUST_USE dt_status_t dt_ctl_conn_call(dt_ctl_conn_t *conn, dt_arena_t *pool,
                                         const dt_ctl_request_t *request,
                                         ProtobufCMessage **ret_reply, const char **ret_tried,
                                         dt_error_t *err);

/* Open a server stream of the Admin service, after a first call was answered.
 * Ownership: gives *ret_reader, dt_rpc_reader_free(). Errors: as above. */
DT_MUST_USE dt_status_t dt_ctl_conn_follow(dt_ctl_conn_t *conn, dt_arena_t *pool,
                                           const char *method, const ProtobufCMessage *request,
                                           dt_rpc_reader_t **ret_reader, dt_error_t *err);

/* The address that answered last, or the first one. */
const char *dt_ctl_conn_address(const dt_ctl_conn_t *conn);

/* Unpack a message into the pool. Errors: INTERNAL. */
DT_MUST_USE dt_status_t dt_ctl_unpack(dt_arena_t *pool, const ProtobufCMessageDescriptor *type,
                                      const uint8_t *data, size_t size,
                                      ProtobufCMessage **ret_message, dt_error_t *err);

#endif
