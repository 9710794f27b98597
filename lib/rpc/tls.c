/* TCP listeners: plain ones are ours (listen.c), those with TLS are gRPC's own, since it takes no
 * accepted descriptor with TLS. Certificates are asked for at each handshake, so new ones are used
 * without touching the connections that stand. */
#include <errno.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/address.h"
#include "rpc/rpc_internal.h"

#define CERTIFICATE "-----BEGIN CERTIFICATE-----"

/* gRPC asks for certificates. Threads: any of gRPC's. */
static grpc_ssl_certificate_config_reload_status
fetch_certificates(void *arg, grpc_ssl_server_certificate_config **ret_config)
{
    dt_rpc_tls_state_t *tls = arg;
    grpc_ssl_certificate_config_reload_status status = GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    pthread_mutex_lock(&tls->lock);
    if (tls->is_new) {
        grpc_ssl_pem_key_cert_pair pair = {tls->key, tls->chain};
        *ret_config = grpc_ssl_server_certificate_config_create(tls->ca, &pair, 1);
        status = *ret_config ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                             : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
        tls->is_new = *ret_config == NULL;
    }
    pthread_mutex_unlock(&tls->lock);
    return status;
}

static void free_key(char *key)
{
    if (key)
        explicit_bzero(key, strlen(key));
    free(key);
}

/* The chain ends with the authority, so that a node that joins can compare it with its token. */
static dt_status_t store_certificates(dt_rpc_tls_state_t *state, const dt_rpc_tls_t *tls,
                                      dt_error_t *err)
{
    char *ca = NULL, *chain = NULL, *key = NULL;
    if (!tls->ca || !tls->certificate || !tls->key)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "TLS needs an authority, a certificate and a key");
    ca = strdup(tls->ca);
    key = strdup(tls->key);
    const char *first = strstr(tls->certificate, CERTIFICATE);
    bool is_leaf = !first || !strstr(first + 1, CERTIFICATE);
    if (!ca || !key || asprintf(&chain, "%s\n%s", tls->certificate, is_leaf ? tls->ca : "") < 0) {
        free(ca);
        free_key(key);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for certificates");
    }
    pthread_mutex_lock(&state->lock);
    free(state->ca);
    free(state->chain);
    free_key(state->key);
    state->ca = ca;
    state->chain = chain;
    state->key = key;
    state->is_new = true;
    pthread_mutex_unlock(&state->lock);
    return DT_OK;
}

/* gRPC says only that it could not bind: find out why beforehand. */
static dt_status_t try_port(const struct sockaddr_storage *address, socklen_t size,
                            const char *where, dt_error_t *err)
{
    int one = 1;
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    int rc = fd < 0 ? -1 : bind(fd, (const struct sockaddr *)address, size);
    if (rc == 0 && dt_rpc_address_port(address) != 0)
        rc = listen(fd, 1);
    int number = errno;
    if (fd >= 0)
        (void)close(fd);
    if (rc == 0)
        return DT_OK;
    dt_status_t status = number == EADDRINUSE                   ? DT_ERR_EXISTS
                         : number == EACCES || number == EPERM  ? DT_ERR_DENIED
                         : number == EADDRNOTAVAIL              ? DT_ERR_NOT_FOUND
                         : number == EMFILE || number == ENFILE ? DT_ERR_AGAIN
                                                                : DT_ERR_INVALID;
    return dt_fail(err, status, "errno", number, "cannot listen on %s: %s", where,
                   strerror(number));
}

static dt_status_t listen_tls(dt_rpc_server_t *server, const struct sockaddr_storage *address,
                              socklen_t size, const dt_rpc_tls_t *tls, int *ret_port,
                              dt_error_t *err)
{
    char where[112];
    dt_rpc_address_text(address, true, where, sizeof where);
    DT_TRY(try_port(address, size, where, err));
    dt_rpc_tls_state_t *state = calloc(1, sizeof *state);
    if (!state)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for certificates");
    pthread_mutex_init(&state->lock, NULL);
    dt_list_push(&server->rpc->tls, &state->link); /* freed with the runtime, in any case */
    DT_TRY(store_certificates(state, tls, err));
    grpc_ssl_server_credentials_options *options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY, fetch_certificates, state);
    grpc_server_credentials *credentials =
        options ? grpc_ssl_server_credentials_create_with_options(options) : NULL;
    if (credentials) {
        state->port = grpc_server_add_http2_port(server->grpc, where, credentials);
        grpc_server_credentials_release(credentials);
    }
    if (state->port <= 0)
        return dt_fail(err, DT_ERR_INVALID, "grpc", 0,
                       "cannot listen on %s: gRPC does not take the certificate and key", where);
    server->tls[server->tls_count++] = state;
    *ret_port = state->port;
    return DT_OK;
}

dt_status_t dt_rpc_server_listen_tcp(dt_rpc_server_t *server, const char *address,
                                     const dt_rpc_tls_t *tls, int listener, int *ret_port,
                                     dt_error_t *err)
{
    dt_rpc_address_t parsed;
    struct sockaddr_storage socket_address = {0};
    socklen_t size = 0;
    DT_TRY(dt_rpc_address_parse(address, &parsed, err));
    if (parsed.is_unix)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "%s is not a TCP address", address);
    DT_TRY(dt_rpc_address_resolve(&parsed, &socket_address, &size, err));
    if (!tls)
        return dt_rpc_listen_plain(server, &socket_address, size, listener, ret_port, err);
    if (server->is_started)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "TLS listeners come before the start");
    if (server->tls_count == DT_RPC_LISTENER_MAX)
        return dt_fail(err, DT_ERR_LIMIT, "dt", 0, "more than %d listeners", DT_RPC_LISTENER_MAX);
    if (server->tls_count == 0) {
        server->tls_listener = listener;
        server->accept_failures = dt_rpc_accept_failures();
    }
    return listen_tls(server, &socket_address, size, tls, ret_port, err);
}

dt_status_t dt_rpc_server_reload_tls(dt_rpc_server_t *server, const dt_rpc_tls_t *tls,
                                     dt_error_t *err)
{
    if (server->tls_count == 0)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "there is no TLS listener");
    for (size_t i = 0; i < server->tls_count; i++)
        DT_TRY(store_certificates(server->tls[i], tls, err));
    return DT_OK;
}
