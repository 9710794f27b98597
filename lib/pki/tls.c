#include "pki/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "pki/pki_internal.h"

#define RECORD_BYTES 16384u
#define RECORD_ROOM  (RECORD_BYTES + 512u) /* a record, with what surrounds it */
#define KEY_IDENTITY "dtorch"
#define KEY_LABEL    "EXPERIMENTAL dtorch link"

/* Bytes between OpenSSL and the socket. */
typedef struct tls_buffer {
    uint8_t *bytes; /* (DT_TLS_BUFFER_BYTES); NULL before the first */
    size_t at, len;
} tls_buffer_t;

struct dt_tls {
    SSL *ssl;
    SSL_CTX *context;
    int fd; /* of the call at hand */
    tls_buffer_t in, out;
    bool is_exact, is_held;
    bool is_ready;
    bool is_over;
    bool has_ended; /* the other side has closed the connection */
    int code;       /* errno of the connection; 0: none */
    bool is_server, is_keyed;
    uint8_t key[DT_TLS_KEY_BYTES]; /* if it is keyed */
    char expected[DT_PKI_NAME_MAX + 1];
    char peer[DT_PKI_NAME_MAX + 1];
};

/* ---- the socket ---- */

static bool buffer_open(tls_buffer_t *buffer)
{
    if (!buffer->bytes)
        buffer->bytes = malloc(DT_TLS_BUFFER_BYTES);
    return buffer->bytes != NULL;
}

static bool is_later(int code)
{
    return code == EAGAIN || code == EWOULDBLOCK;
}

/* Bytes are sent by sendmsg() and received by recvmsg(): an engine's filter knows these two. */
static void flush_out(dt_tls_t *tls)
{
    while (tls->out.len > 0 && tls->code == 0) {
        struct iovec part = {.iov_base = tls->out.bytes + tls->out.at, .iov_len = tls->out.len};
        const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        ssize_t sent = sendmsg(tls->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && !is_later(errno))
            tls->code = errno;
        if (sent < 0)
            return;
        tls->out.at += (size_t)sent;
        tls->out.len -= (size_t)sent;
    }
    if (tls->out.len == 0)
        tls->out.at = 0;
}

/* Room behind what waits. What is left of it is moved to the front when it is little. */
static size_t room_out(dt_tls_t *tls)
{
    if (!buffer_open(&tls->out)) {
        tls->code = ENOMEM;
        return 0;
    }
    if (tls->out.at > 0 && tls->out.len <= DT_TLS_BUFFER_BYTES / 8) {
        memmove(tls->out.bytes, tls->out.bytes + tls->out.at, tls->out.len);
        tls->out.at = 0;
    }
    return DT_TLS_BUFFER_BYTES - tls->out.at - tls->out.len;
}

static int bio_write(BIO *bio, const char *bytes, int size)
{
    dt_tls_t *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (room_out(tls) < (size_t)size)
        flush_out(tls);
    if (tls->code != 0)
        return -1;
    if (room_out(tls) < (size_t)size) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(tls->out.bytes + tls->out.at + tls->out.len, bytes, (size_t)size);
    tls->out.len += (size_t)size;
    return size;
}

/* Returns bytes received; 0: none, `code` or `has_ended` may say why. */
static size_t receive(dt_tls_t *tls, void *bytes, size_t size)
{
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t got;
    do
        got = recvmsg(tls->fd, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && !is_later(errno))
        tls->code = errno;
    tls->has_ended |= got == 0;
    return got > 0 ? (size_t)got : 0;
}

static void fill_in(dt_tls_t *tls)
{
    if (!buffer_open(&tls->in)) {
        tls->code = ENOMEM;
        return;
    }
    tls->in.at = 0;
    tls->in.len = receive(tls, tls->in.bytes, DT_TLS_BUFFER_BYTES);
}

static int bio_read(BIO *bio, char *bytes, int size)
{
    dt_tls_t *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    size_t got = 0;
    if (tls->is_exact) {
        got = receive(tls, bytes, (size_t)size);
    } else {
        if (tls->in.len == 0 && !tls->is_held)
            fill_in(tls);
        got = tls->in.len < (size_t)size ? tls->in.len : (size_t)size;
        if (got > 0)
            memcpy(bytes, tls->in.bytes + tls->in.at, got);
        tls->in.at += got;
        tls->in.len -= got;
    }
    if (got > 0)
        return (int)got;
    if (tls->has_ended)
        return 0;
    if (tls->code == 0)
        BIO_set_retry_read(bio);
    return -1;
}

static long bio_control(BIO *bio, int command, long number, void *arg)
{
    (void)bio;
    (void)number;
    (void)arg;
    return command == BIO_CTRL_FLUSH; /* what is sent is flushed at the end of a call */
}

static BIO_METHOD *method;
static pthread_once_t method_once = PTHREAD_ONCE_INIT;

static void method_make(void)
{
    BIO_METHOD *made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "dtorch socket");
    if (made && BIO_meth_set_write(made, bio_write) == 1 &&
        BIO_meth_set_read(made, bio_read) == 1 && BIO_meth_set_ctrl(made, bio_control) == 1)
        method = made; /* for good */
    else
        BIO_meth_free(made);
}

/* ---- how it ends ---- */

static bool is_refusal(int reason)
{
    switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
        return true;
    default:
        return false;
    }
}

static bool is_no_tls(int reason)
{
    return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
           reason == SSL_R_UNEXPECTED_MESSAGE || reason == SSL_R_BAD_RECORD_TYPE ||
           reason == SSL_R_PACKET_LENGTH_TOO_LONG || reason == SSL_R_RECORD_LENGTH_MISMATCH ||
           reason == SSL_R_UNSUPPORTED_PROTOCOL;
}

static void over(dt_tls_t *tls, dt_error_t *err)
{
    unsigned long number = ERR_peek_error();
    int reason = ERR_GET_REASON(number);
    long verdict = SSL_get_verify_result(tls->ssl);
    tls->is_over = true;
    if (tls->code != 0)
        (void)dt_fail(err, DT_ERR_PEER, "errno", tls->code, "%s", strerror(tls->code));
    else if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
        (void)dt_fail(err, DT_ERR_DENIED, "openssl", verdict,
                      "the certificate of the other side is refused: %s",
                      X509_verify_cert_error_string(verdict));
    else if (number != 0 && is_refusal(reason))
        (void)dt_fail(err, DT_ERR_DENIED, "openssl", (int64_t)number,
                      "no agreement about certificates: %s", ERR_reason_error_string(number));
    else if (number != 0 && !tls->is_ready && is_no_tls(reason))
        (void)dt_fail(err, DT_ERR_PEER, "openssl", (int64_t)number,
                      "the other side does not speak TLS");
    else if (tls->has_ended)
        (void)dt_fail(err, DT_ERR_PEER, "errno", 0, "the other side closed the connection");
    else
        (void)dt_fail(err, DT_ERR_PEER, "openssl", (int64_t)number, "TLS: %s",
                      number ? ERR_reason_error_string(number) : "no reason given");
    flush_out(tls); /* the alert that says it to the other side */
    ERR_clear_error();
}

/* Whether an operation of OpenSSL's has failed for good. */
static bool has_failed(dt_tls_t *tls, int rc, dt_error_t *err)
{
    int why = SSL_get_error(tls->ssl, rc);
    if ((why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) && tls->code == 0)
        return false;
    if (why == SSL_ERROR_ZERO_RETURN)
        tls->has_ended = true;
    over(tls, err);
    return true;
}

/* ---- who is there ---- */

static bool peer_check(dt_tls_t *tls, dt_error_t *err)
{
    dt_pki_info_t info = {0};
    if (tls->is_keyed && SSL_session_reused(tls->ssl) != 1) {
        tls->is_over = true;
        (void)dt_fail(err, DT_ERR_DENIED, "dt", 0, "the other side does not know the key");
        return false;
    }
    if (tls->is_keyed)
        return true;
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    char *text = certificate ? dt_pki_certificate_text(certificate) : NULL;
    bool is_node = text && dt_pki_read(text, &info, NULL) == DT_OK && info.role == DT_PKI_ROLE_NODE;
    free(text);
    if (is_node)
        memcpy(tls->peer, info.name, sizeof tls->peer);
    if (!tls->expected[0] || (is_node && strcmp(info.name, tls->expected) == 0))
        return true;
    tls->is_over = true;
    (void)dt_fail(err, DT_ERR_DENIED, "dt", 0, "%s answers with the certificate of %s%s",
                  tls->expected,
                  is_node ? "" : "no node: ", info.common_name[0] ? info.common_name : "nobody");
    return false;
}

/* Go on with the handshake. False: it is not over yet, or all is. */
static bool shake_hands(dt_tls_t *tls, dt_error_t *err)
{
    if (tls->is_ready)
        return true;
    int rc = SSL_do_handshake(tls->ssl);
    if (rc != 1) {
        if (!has_failed(tls, rc, err))
            flush_out(tls);
        return false;
    }
    tls->is_ready = peer_check(tls, err);
    return tls->is_ready;
}

/* A call begins. False: it is over already. */
static bool enter(dt_tls_t *tls, int fd, dt_error_t *err)
{
    tls->fd = fd;
    if (tls->is_over) {
        (void)dt_fail(err, DT_ERR_PEER, "dt", 0, "the connection is over");
        return false;
    }
    ERR_clear_error(); /* of others on this thread */
    return true;
}

/* A call ends: what it made goes out. */
static ssize_t leave(dt_tls_t *tls, size_t done, dt_error_t *err)
{
    if (!tls->is_over)
        flush_out(tls);
    if (!tls->is_over && tls->code != 0 && done == 0)
        over(tls, err);
    ERR_clear_error(); /* others on this thread look at the queue too */
    return done == 0 && tls->is_over ? -1 : (ssize_t)done;
}

ssize_t dt_tls_send(dt_tls_t *tls, int fd, const void *bytes, size_t size, dt_error_t *err)
{
    size_t done = 0;
    if (!enter(tls, fd, err))
        return -1;
    while (shake_hands(tls, err) && done < size) {
        size_t part = size - done < RECORD_BYTES ? size - done : RECORD_BYTES;
        if (room_out(tls) < RECORD_ROOM)
            flush_out(tls);
        if (room_out(tls) < RECORD_ROOM)
            break;
        int rc = SSL_write(tls->ssl, (const uint8_t *)bytes + done, (int)part);
        if (rc <= 0) {
            (void)has_failed(tls, rc, err);
            break;
        }
        done += (size_t)rc;
    }
    return leave(tls, done, err);
}

ssize_t dt_tls_recv(dt_tls_t *tls, int fd, void *bytes, size_t size, dt_error_t *err)
{
    size_t done = 0;
    if (!enter(tls, fd, err))
        return -1;
    while (shake_hands(tls, err) && done < size) {
        size_t part = size - done < INT32_MAX ? size - done : INT32_MAX;
        int rc = SSL_read(tls->ssl, (uint8_t *)bytes + done, (int)part);
        if (rc > 0) {
            done += (size_t)rc;
            continue;
        }
        /* What came before the end counts; the end is found again by the next call. */
        if (done == 0)
            (void)has_failed(tls, rc, err);
        break;
    }
    return leave(tls, done, err);
}

bool dt_tls_wants_out(const dt_tls_t *tls)
{
    return tls->out.len > 0;
}

bool dt_tls_is_ready(const dt_tls_t *tls)
{
    return tls->is_ready;
}

void dt_tls_hold(dt_tls_t *tls, bool is_held)
{
    tls->is_held = is_held;
}

const char *dt_tls_peer(const dt_tls_t *tls)
{
    return tls->is_ready ? tls->peer : "";
}

dt_status_t dt_tls_export(dt_tls_t *tls, uint8_t ret_key[DT_TLS_KEY_BYTES], dt_error_t *err)
{
    uint8_t key[DT_TLS_KEY_BYTES];
    if (!tls->is_ready)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the handshake is not over");
    if (SSL_export_keying_material(tls->ssl, key, sizeof key, KEY_LABEL, sizeof KEY_LABEL - 1, NULL,
                                   0, 0) != 1)
        return dt_pki_fail(err, DT_ERR_INTERNAL, "cannot derive a key");
    memcpy(ret_key, key, sizeof key);
    OPENSSL_cleanse(key, sizeof key);
    return DT_OK;
}

/* ---- keys ---- */

static SSL_SESSION *session_of_key(SSL *ssl, const dt_tls_t *tls)
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && cipher && SSL_SESSION_set1_master_key(session, tls->key, sizeof tls->key) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int key_use(SSL *ssl, const EVP_MD *hash, const unsigned char **ret_name, size_t *ret_size,
                   SSL_SESSION **ret_session)
{
    (void)hash; /* ours is SHA-256, the only one that is offered */
    *ret_session = session_of_key(ssl, SSL_get_app_data(ssl));
    *ret_name = (const unsigned char *)KEY_IDENTITY;
    *ret_size = sizeof KEY_IDENTITY - 1;
    return *ret_session != NULL;
}

static int key_find(SSL *ssl, const unsigned char *name, size_t size, SSL_SESSION **ret_session)
{
    *ret_session = NULL;
    if (size != sizeof KEY_IDENTITY - 1 || memcmp(name, KEY_IDENTITY, size) != 0)
        return 1; /* another key: none that we know */
    *ret_session = session_of_key(ssl, SSL_get_app_data(ssl));
    return *ret_session != NULL;
}

/* ---- life ---- */

/* All authorities of a text. */
static bool trust(SSL_CTX *context, const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    X509 *authority;
    int count = 0;
    while (bio && (authority = PEM_read_bio_X509(bio, NULL, NULL, NULL)) != NULL) {
        count += X509_STORE_add_cert(store, authority) == 1;
        X509_free(authority);
    }
    BIO_free(bio);
    ERR_clear_error(); /* its end is an error there */
    return count > 0;
}

static dt_status_t show(SSL_CTX *context, const dt_tls_options_t *options, dt_error_t *err)
{
    DT_CLEANUP(dt_pki_free_certificate) X509 *certificate = NULL;
    DT_CLEANUP(dt_pki_free_key) EVP_PKEY *key = NULL;
    DT_TRY(dt_pki_parse_certificate(options->certificate, &certificate, err));
    DT_TRY(dt_pki_parse_key(options->key, &key, err));
    if (SSL_CTX_use_certificate(context, certificate) != 1 ||
        SSL_CTX_use_PrivateKey(context, key) != 1)
        return dt_pki_fail(err, DT_ERR_INVALID, "a certificate and its key");
    return DT_OK;
}

static bool is_set_up(SSL_CTX *context)
{
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
    (void)SSL_CTX_set_mode(context,
                           SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* The fastest one first. */
    (void)SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                            "TLS_CHACHA20_POLY1305_SHA256");
    return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_num_tickets(context, 0) == 1;
}

static dt_status_t tls_new(bool is_server, dt_tls_t **ret_tls, dt_error_t *err)
{
    dt_tls_t *tls = calloc(1, sizeof *tls);
    if (!tls)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for TLS");
    tls->is_server = is_server;
    (void)pthread_once(&method_once, method_make);
    tls->context = method ? SSL_CTX_new(TLS_method()) : NULL;
    if (!tls->context || !is_set_up(tls->context)) {
        dt_tls_free(tls);
        (void)dt_pki_fail(err, DT_ERR_INTERNAL, "TLS");
        return DT_ERR_INTERNAL;
    }
    *ret_tls = tls;
    return DT_OK;
}

/* What the context holds is settled: a connection of it. Frees `tls` after an error. */
static dt_status_t tls_open(dt_tls_t *tls, dt_tls_t **ret_tls, dt_error_t *err)
{
    BIO *bio = BIO_new(method);
    tls->ssl = bio ? SSL_new(tls->context) : NULL;
    if (!tls->ssl) {
        BIO_free(bio);
        dt_tls_free(tls);
        return dt_pki_fail(err, DT_ERR_NOMEM, "TLS");
    }
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    (void)SSL_set_app_data(tls->ssl, tls);
    if (tls->is_server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    *ret_tls = tls;
    return DT_OK;
}

dt_status_t dt_tls_create(const dt_tls_options_t *options, dt_tls_t **ret_tls, dt_error_t *err)
{
    dt_tls_t *tls;
    DT_TRY(tls_new(options->is_server, &tls, err));
    dt_status_t status = DT_OK;
    tls->is_exact = options->is_exact;
    (void)snprintf(tls->expected, sizeof tls->expected, "%s", options->peer ? options->peer : "");
    if (options->ca && !trust(tls->context, options->ca))
        status = dt_fail(err, DT_ERR_INVALID, "dt", 0, "no authority in the text of authorities");
    if (status == DT_OK && options->certificate)
        status = show(tls->context, options, err);
    if (status != DT_OK) {
        dt_tls_free(tls);
        return status;
    }
    /* Whoever shows a certificate is a node, and the cluster signs those as clients'. */
    X509_VERIFY_PARAM *param = SSL_CTX_get0_param(tls->context);
    (void)X509_VERIFY_PARAM_set_purpose(param, X509_PURPOSE_SSL_CLIENT);
    (void)X509_VERIFY_PARAM_set_trust(param, X509_TRUST_SSL_CLIENT);
    SSL_CTX_set_verify(
        tls->context,
        options->ca ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_NONE, NULL);
    return tls_open(tls, ret_tls, err);
}

dt_status_t dt_tls_create_keyed(const uint8_t key[DT_TLS_KEY_BYTES], bool is_server,
                                dt_tls_t **ret_tls, dt_error_t *err)
{
    dt_tls_t *tls;
    DT_TRY(tls_new(is_server, &tls, err));
    tls->is_keyed = true;
    memcpy(tls->key, key, sizeof tls->key);
    if (SSL_CTX_set_ciphersuites(tls->context, "TLS_AES_128_GCM_SHA256") != 1) {
        dt_tls_free(tls);
        return dt_pki_fail(err, DT_ERR_INTERNAL, "TLS");
    }
    SSL_CTX_set_psk_use_session_callback(tls->context, key_use);
    SSL_CTX_set_psk_find_session_callback(tls->context, key_find);
    return tls_open(tls, ret_tls, err);
}

void dt_tls_free(dt_tls_t *tls)
{
    if (!tls)
        return;
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    free(tls->in.bytes);
    free(tls->out.bytes);
    OPENSSL_cleanse(tls->key, sizeof tls->key);
    free(tls);
}
