/* The first step of joining: a TLS handshake that trusts nobody, and a comparison with the hash
 * that the join token carries. Nothing is sent over the connection. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "loop/loop.h"
#include "pki/pki_internal.h"

#define HOST_SIZE 256
#define NS_PER_MS INT64_C(1000000)

static void free_ssl(SSL **ssl)
{
    SSL_free(*ssl);
}

static void free_context(SSL_CTX **context)
{
    SSL_CTX_free(*context);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
}

static dt_status_t split(const char *address, char host[HOST_SIZE], char port[8], dt_error_t *err)
{
    const char *colon = strrchr(address, ':');
    const char *from = address;
    const char *end = colon;
    if (colon && address[0] == '[' && colon > address + 1 && colon[-1] == ']') {
        from = address + 1;
        end = colon - 1;
    }
    if (!colon || end <= from || end - from >= HOST_SIZE || strlen(colon + 1) == 0 ||
        strlen(colon + 1) > 5 || strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "address %.200s is not host:port", address);
    (void)snprintf(host, HOST_SIZE, "%.*s", (int)(end - from), from);
    (void)snprintf(port, 8, "%s", colon + 1);
    return DT_OK;
}

/* Wait for `events`. False: the deadline is over. */
static bool wait_for(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        int64_t left_ms = (deadline_ns - dt_loop_now_ns()) / NS_PER_MS;
        struct pollfd wait = {.fd = fd, .events = events};
        if (left_ms <= 0)
            return false;
        int rc = poll(&wait, 1, left_ms > 1000000 ? 1000000 : (int)left_ms);
        if (rc > 0)
            return true;
        if (rc < 0 && errno != EINTR)
            return false;
    }
}

/* Connect to one address. Returns the descriptor, or -errno. */
static int connect_one(const struct addrinfo *to, int64_t deadline_ns)
{
    int number = 0;
    socklen_t size = sizeof number;
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    bool has_begun = connect(fd, to->ai_addr, to->ai_addrlen) == 0 || errno == EINPROGRESS;
    if (has_begun && !wait_for(fd, POLLOUT, deadline_ns))
        number = ETIMEDOUT;
    else if (!has_begun || getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size) != 0)
        number = errno;
    if (number == 0)
        return fd;
    (void)close(fd);
    return -number;
}

static dt_status_t connect_to(const char *host, const char *port, int64_t deadline_ns, int *ret_fd,
                              dt_error_t *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, port, &hints, &list);
    if (rc != 0)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", rc, "cannot resolve %s: %s", host,
                       gai_strerror(rc));
    int fd = -ENOENT;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
        fd = connect_one(at, deadline_ns);
    freeaddrinfo(list);
    if (fd < 0)
        return dt_fail(err, fd == -ETIMEDOUT ? DT_ERR_TIMEOUT : DT_ERR_PEER, "errno", -fd,
                       "cannot connect to %s:%s: %s", host, port, strerror(-fd));
    *ret_fd = fd;
    return DT_OK;
}

static dt_status_t shake_hands(SSL *ssl, int fd, const char *host, int64_t deadline_ns,
                               dt_error_t *err)
{
    int rc;
    ERR_clear_error();
    while ((rc = SSL_connect(ssl)) != 1) {
        int why = SSL_get_error(ssl, rc);
        short events = why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE)
            return dt_pki_fail(err, DT_ERR_PEER, "TLS handshake failed");
        if (!wait_for(fd, events, deadline_ns))
            return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "%s did not finish the TLS handshake",
                           host);
    }
    return DT_OK;
}

static bool is_signed_by(X509 *leaf, X509 *authority)
{
    bool is_ok = X509_check_issued(authority, leaf) == X509_V_OK &&
                 X509_verify(leaf, X509_get0_pubkey(authority)) == 1;
    ERR_clear_error();
    return is_ok;
}

/* Find the authority with this hash in the chain that the server sent. */
static dt_status_t find_authority(SSL *ssl, const char *ca_sha256, const char *address,
                                  char **ret_ca, dt_error_t *err)
{
    STACK_OF(X509) *chain = SSL_get_peer_cert_chain(ssl);
    for (int i = 1; chain && i < sk_X509_num(chain); i++) {
        X509 *authority = sk_X509_value(chain, i);
        dt_pki_info_t info;
        char *text = dt_pki_certificate_text(authority);
        if (text && dt_pki_read(text, &info, NULL) == DT_OK && info.is_ca &&
            dt_pki_equal(info.sha256, ca_sha256, DT_PKI_SHA256_HEX_SIZE - 1) &&
            is_signed_by(sk_X509_value(chain, 0), authority)) {
            *ret_ca = text;
            return DT_OK;
        }
        free(text);
    }
    return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                   "%s does not belong to the cluster of this join token: its certificate is not "
                   "signed by the authority that the token names",
                   address);
}

dt_status_t dt_pki_fetch_ca(const char *address, const char *ca_sha256, int64_t timeout_ms,
                            char **ret_ca, dt_error_t *err)
{
    static const unsigned char protocols[] = {2, 'h', '2'};
    char host[HOST_SIZE], port[8];
    DT_CLEANUP(close_fd) int fd = -1;
    DT_CLEANUP(free_context) SSL_CTX *context = NULL;
    DT_CLEANUP(free_ssl) SSL *ssl = NULL;
    int64_t deadline_ns = dt_loop_now_ns() + timeout_ms * NS_PER_MS;
    if (strlen(ca_sha256) != DT_PKI_SHA256_HEX_SIZE - 1)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "not a SHA-256 in hex");
    DT_TRY(split(address, host, port, err));
    DT_TRY(connect_to(host, port, deadline_ns, &fd, err));
    context = SSL_CTX_new(TLS_client_method());
    ssl = context ? SSL_new(context) : NULL;
    if (!ssl || SSL_set_min_proto_version(ssl, TLS1_2_VERSION) != 1 ||
        SSL_set_alpn_protos(ssl, protocols, sizeof protocols) != 0 || SSL_set_fd(ssl, fd) != 1)
        return dt_pki_fail(err, DT_ERR_INTERNAL, "TLS");
    SSL_set_verify(ssl, SSL_VERIFY_NONE, NULL); /* the comparison below is the verification */
    if (strspn(host, "0123456789.:abcdefABCDEF") != strlen(host))
        (void)SSL_set_tlsext_host_name(ssl, host);
    DT_TRY(shake_hands(ssl, fd, host, deadline_ns, err));
    return find_authority(ssl, ca_sha256, address, ret_ca, err);
}
