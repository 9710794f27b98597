/* Certificates. */
#include "pki/pki.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pki/pki_internal.h"

#define CA_LIFETIME_MS (INT64_C(10) * 365 * 24 * 3600 * 1000)
#define BACKDATE_S     3600 /* certificates begin earlier: clocks of nodes differ */
#define SPIFFE_NODE    "spiffe://dtorch/node/"
#define SPIFFE_ADMIN   "spiffe://dtorch/admin/"

/* ---- small things ---- */

dt_status_t dt_pki_fail(dt_error_t *err, dt_status_t status, const char *what)
{
    char reason[200] = "no reason given";
    unsigned long number = ERR_get_error();
    if (number != 0)
        ERR_error_string_n(number, reason, sizeof reason);
    ERR_clear_error();
    return dt_fail(err, status, "openssl", (int64_t)number, "%s: %s", what, reason);
}

void dt_pki_free_certificate(X509 **certificate)
{
    X509_free(*certificate);
}

void dt_pki_free_key(EVP_PKEY **key)
{
    EVP_PKEY_free(*key);
}

static void free_request(X509_REQ **request)
{
    X509_REQ_free(*request);
}

static void free_bio(BIO **bio)
{
    BIO_free_all(*bio);
}

void dt_pki_key_free(char *key)
{
    if (key)
        OPENSSL_cleanse(key, strlen(key));
    free(key);
}

void dt_pki_pair_fini(dt_pki_pair_t *pair)
{
    if (!pair)
        return;
    free(pair->certificate);
    dt_pki_key_free(pair->key);
    *pair = (dt_pki_pair_t){0};
}

/* A name may stand in a SAN and in a log line: letters, digits, dot, dash, underscore. */
static dt_status_t check_name(const char *name, dt_error_t *err)
{
    size_t size = strlen(name);
    size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_");
    if (size == 0 || size > DT_PKI_NAME_MAX || good != size)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "a certificate's name has 1 to %d of [a-zA-Z0-9._-]", DT_PKI_NAME_MAX);
    return DT_OK;
}

/* Copy what was written to a memory BIO. NULL: no memory. */
static char *text_of(BIO *bio)
{
    char *data = NULL;
    long size = BIO_get_mem_data(bio, &data);
    if (size <= 0)
        return NULL;
    char *text = malloc((size_t)size + 1);
    if (!text)
        return NULL;
    memcpy(text, data, (size_t)size);
    text[size] = '\0';
    return text;
}

char *dt_pki_certificate_text(X509 *certificate)
{
    DT_CLEANUP(free_bio) BIO *bio = BIO_new(BIO_s_mem());
    return bio && PEM_write_bio_X509(bio, certificate) == 1 ? text_of(bio) : NULL;
}

static char *key_text(EVP_PKEY *key)
{
    DT_CLEANUP(free_bio) BIO *bio = BIO_new(BIO_s_secmem());
    return bio && PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1 ? text_of(bio)
                                                                                     : NULL;
}

static int no_password(char *buffer, int size, int is_writing, void *arg)
{
    (void)buffer;
    (void)size;
    (void)is_writing;
    (void)arg;
    return -1; /* never ask on the terminal */
}

dt_status_t dt_pki_parse_certificate(const char *pem, X509 **ret_certificate, dt_error_t *err)
{
    DT_CLEANUP(free_bio) BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *certificate = bio ? PEM_read_bio_X509(bio, NULL, no_password, NULL) : NULL;
    if (!certificate)
        return dt_pki_fail(err, DT_ERR_INVALID, "not a certificate in PEM");
    *ret_certificate = certificate;
    return DT_OK;
}

dt_status_t dt_pki_parse_key(const char *pem, EVP_PKEY **ret_key, dt_error_t *err)
{
    DT_CLEANUP(free_bio) BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
    if (!key)
        return dt_pki_fail(err, DT_ERR_INVALID, "not an unencrypted private key in PEM");
    *ret_key = key;
    return DT_OK;
}

static int64_t wall_ms_of(const ASN1_TIME *time)
{
    struct tm parts = {0};
    if (!time || ASN1_TIME_to_tm(time, &parts) != 1)
        return 0;
    return (int64_t)timegm(&parts) * 1000;
}

/* ---- making certificates ---- */

struct template
{
    const char *common_name;
    const char *san; /* in OpenSSL's notation, or NULL */
    bool is_ca;
    bool is_server;
    int64_t lifetime_ms;
};

static bool add_extension(X509 *certificate, X509 *issuer, int kind, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    bool is_ok = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return is_ok;
}

static bool add_extensions(X509 *certificate, X509 *issuer, const struct template *t)
{
    const char *usage = t->is_server ? "serverAuth,clientAuth" : "clientAuth";
    return add_extension(certificate, issuer, NID_basic_constraints,
                         t->is_ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
           add_extension(certificate, issuer, NID_key_usage,
                         t->is_ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
           (t->is_ca || add_extension(certificate, issuer, NID_ext_key_usage, usage)) &&
           add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
           add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always") &&
           (!t->san || add_extension(certificate, issuer, NID_subject_alt_name, t->san));
}

static bool set_serial(X509 *certificate)
{
    uint8_t bytes[16];
    dt_pki_random(bytes, sizeof bytes);
    bytes[0] = (uint8_t)((bytes[0] & 0x7f) | 0x40); /* positive, and of one length */
    BIGNUM *number = BN_bin2bn(bytes, sizeof bytes, NULL);
    bool is_ok = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return is_ok;
}

static bool set_times(X509 *certificate, int64_t lifetime_ms)
{
    time_t now = time(NULL);
    time_t end = now + (time_t)(lifetime_ms / 1000);
    return ASN1_TIME_set(X509_getm_notBefore(certificate), now - BACKDATE_S) != NULL &&
           ASN1_TIME_set(X509_getm_notAfter(certificate), end) != NULL;
}

static bool set_subject(X509_NAME *name, const char *common_name)
{
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)common_name,
                                      -1, -1, 0) == 1;
}

/* Make a certificate for `key`; `ca` NULL: it signs itself. */
static X509 *make_certificate(const struct template *t, EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key)
{
    X509 *certificate = X509_new();
    X509 *issuer = ca ? ca : certificate;
    bool is_ok = certificate && X509_set_version(certificate, X509_VERSION_3) == 1 &&
                 set_serial(certificate) && set_times(certificate, t->lifetime_ms) &&
                 set_subject(X509_get_subject_name(certificate), t->common_name) &&
                 X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
                 X509_set_pubkey(certificate, key) == 1 && add_extensions(certificate, issuer, t) &&
                 X509_sign(certificate, ca ? ca_key : key, EVP_sha256()) > 0;
    if (is_ok)
        return certificate;
    X509_free(certificate);
    return NULL;
}

/* Parse an authority, and see that it is one and that the key is its own. */
static dt_status_t open_ca(const dt_pki_pair_t *ca, X509 **ret_certificate, EVP_PKEY **ret_key,
                           dt_error_t *err)
{
    DT_CLEANUP(dt_pki_free_certificate) X509 *certificate = NULL;
    DT_CLEANUP(dt_pki_free_key) EVP_PKEY *key = NULL;
    DT_TRY(dt_pki_parse_certificate(ca->certificate, &certificate, err));
    DT_TRY(dt_pki_parse_key(ca->key, &key, err));
    if (X509_check_ca(certificate) != 1)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the authority's certificate is not one");
    if (X509_check_private_key(certificate, key) != 1)
        return dt_pki_fail(err, DT_ERR_INVALID,
                           "the authority's key is not that of its certificate");
    *ret_certificate = DT_TAKE(certificate);
    *ret_key = DT_TAKE(key);
    return DT_OK;
}

/* Make a key, and a certificate for it. */
static dt_status_t make_pair(const struct template *t, const dt_pki_pair_t *ca,
                             dt_pki_pair_t *ret_pair, dt_error_t *err)
{
    DT_CLEANUP(dt_pki_free_certificate) X509 *ca_certificate = NULL;
    DT_CLEANUP(dt_pki_free_key) EVP_PKEY *ca_key = NULL;
    if (ca)
        DT_TRY(open_ca(ca, &ca_certificate, &ca_key, err));
    DT_CLEANUP(dt_pki_free_key) EVP_PKEY *key = EVP_EC_gen("P-256");
    DT_CLEANUP(dt_pki_free_certificate)
    X509 *certificate = key ? make_certificate(t, key, ca_certificate, ca_key) : NULL;
    dt_pki_pair_t pair = {0};
    if (certificate) {
        pair.certificate = dt_pki_certificate_text(certificate);
        pair.key = key_text(key);
    }
    if (!pair.certificate || !pair.key) {
        dt_pki_pair_fini(&pair);
        return dt_pki_fail(err, DT_ERR_INTERNAL, "cannot make a certificate");
    }
    *ret_pair = pair;
    return DT_OK;
}

dt_status_t dt_pki_make_ca(const char *name, int64_t lifetime_ms, dt_pki_pair_t *ret_ca,
                           dt_error_t *err)
{
    struct template t = {.common_name = name,
                         .is_ca = true,
                         .lifetime_ms = lifetime_ms ? lifetime_ms : CA_LIFETIME_MS};
    DT_TRY(check_name(name, err));
    return make_pair(&t, NULL, ret_ca, err);
}

static bool is_ip(const char *text)
{
    uint8_t address[16];
    return inet_pton(AF_INET, text, address) == 1 || inet_pton(AF_INET6, text, address) == 1;
}

dt_status_t dt_pki_make_server(const dt_pki_pair_t *ca, const char *const *sans, size_t san_count,
                               int64_t lifetime_ms, dt_pki_pair_t *ret_pair, dt_error_t *err)
{
    char san[DT_PKI_SAN_MAX * 264] = "";
    char common_name[DT_PKI_NAME_MAX + 1];
    size_t used = 0;
    if (san_count == 0 || san_count > DT_PKI_SAN_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "a server's certificate has 1 to %d names",
                       DT_PKI_SAN_MAX);
    for (size_t i = 0; i < san_count; i++) {
        size_t good =
            strspn(sans[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_*");
        if (!is_ip(sans[i]) && (good == 0 || good > 253 || sans[i][good] != '\0'))
            return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                           "%.100s is neither a host name nor an address", sans[i]);
        used += (size_t)snprintf(san + used, sizeof san - used, "%s%s:%s", i ? "," : "",
                                 is_ip(sans[i]) ? "IP" : "DNS", sans[i]);
    }
    (void)snprintf(common_name, sizeof common_name, "%s", sans[0]);
    struct template t = {
        .common_name = common_name, .san = san, .is_server = true, .lifetime_ms = lifetime_ms};
    return make_pair(&t, ca, ret_pair, err);
}

static dt_status_t client_template(dt_pki_role_t role, const char *name, int64_t lifetime_ms,
                                   char san[256], struct template *ret_template, dt_error_t *err)
{
    DT_TRY(check_name(name, err));
    if (role != DT_PKI_ROLE_NODE && role != DT_PKI_ROLE_ADMIN)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "a client's certificate needs a role");
    (void)snprintf(san, 256, "URI:%s%s", role == DT_PKI_ROLE_NODE ? SPIFFE_NODE : SPIFFE_ADMIN,
                   name);
    *ret_template = (struct template){.common_name = name, .san = san, .lifetime_ms = lifetime_ms};
    return DT_OK;
}

dt_status_t dt_pki_make_client(const dt_pki_pair_t *ca, dt_pki_role_t role, const char *name,
                               int64_t lifetime_ms, dt_pki_pair_t *ret_pair, dt_error_t *err)
{
    char san[256];
    struct template t;
    DT_TRY(client_template(role, name, lifetime_ms, san, &t, err));
    return make_pair(&t, ca, ret_pair, err);
}

/* ---- requests ---- */

dt_status_t dt_pki_make_csr(const char *name, char **ret_csr, char **ret_key, dt_error_t *err)
{
    DT_TRY(check_name(name, err));
    DT_CLEANUP(dt_pki_free_key) EVP_PKEY *key = EVP_EC_gen("P-256");
    DT_CLEANUP(free_request) X509_REQ *request = X509_REQ_new();
    DT_CLEANUP(free_bio) BIO *bio = BIO_new(BIO_s_mem());
    bool is_ok = key && request && bio && X509_REQ_set_version(request, X509_REQ_VERSION_1) == 1 &&
                 set_subject(X509_REQ_get_subject_name(request), name) &&
                 X509_REQ_set_pubkey(request, key) == 1 &&
                 X509_REQ_sign(request, key, EVP_sha256()) > 0 &&
                 PEM_write_bio_X509_REQ(bio, request) == 1;
    char *csr = is_ok ? text_of(bio) : NULL;
    char *text = csr ? key_text(key) : NULL;
    if (!text) {
        free(csr);
        return dt_pki_fail(err, DT_ERR_INTERNAL, "cannot make a certificate request");
    }
    *ret_csr = csr;
    *ret_key = text;
    return DT_OK;
}

static bool is_p256(EVP_PKEY *key)
{
    char group[32] = "";
    size_t size = 0;
    return EVP_PKEY_is_a(key, "EC") == 1 &&
           EVP_PKEY_get_group_name(key, group, sizeof group, &size) == 1 &&
           (strcmp(group, "prime256v1") == 0 || strcmp(group, "P-256") == 0);
}

/* NOLINTNEXTLINE(readability-function-size): eight parameters: who signs what for whom */
dt_status_t dt_pki_sign_csr(const dt_pki_pair_t *ca, const char *csr, size_t csr_size,
                            dt_pki_role_t role, const char *name, int64_t lifetime_ms,
                            char **ret_certificate, dt_error_t *err)
{
    char san[256];
    struct template t;
    DT_CLEANUP(dt_pki_free_certificate) X509 *ca_certificate = NULL;
    DT_CLEANUP(dt_pki_free_key) EVP_PKEY *ca_key = NULL;
    DT_TRY(client_template(role, name, lifetime_ms, san, &t, err));
    if (csr_size == 0 || csr_size > DT_PKI_PEM_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "a request of %zu bytes", csr_size);
    DT_CLEANUP(free_bio) BIO *bio = BIO_new_mem_buf(csr, (int)csr_size);
    DT_CLEANUP(free_request)
    X509_REQ *request = bio ? PEM_read_bio_X509_REQ(bio, NULL, no_password, NULL) : NULL;
    EVP_PKEY *key = request ? X509_REQ_get0_pubkey(request) : NULL;
    if (!key)
        return dt_pki_fail(err, DT_ERR_INVALID, "not a certificate request in PEM");
    if (!is_p256(key))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the request's key is not EC P-256");
    if (X509_REQ_verify(request, key) != 1)
        return dt_pki_fail(err, DT_ERR_INVALID, "the request is not signed with its own key");
    DT_TRY(open_ca(ca, &ca_certificate, &ca_key, err));
    DT_CLEANUP(dt_pki_free_certificate)
    X509 *certificate = make_certificate(&t, key, ca_certificate, ca_key);
    char *text = certificate ? dt_pki_certificate_text(certificate) : NULL;
    if (!text)
        return dt_pki_fail(err, DT_ERR_INTERNAL, "cannot sign a request");
    *ret_certificate = text;
    return DT_OK;
}

/* ---- reading ---- */

/* Split "spiffe://dtorch/node/NAME". Anything else leaves `info` without a role. */
static void read_uri(const ASN1_IA5STRING *uri, dt_pki_info_t *info)
{
    static const struct {
        const char *prefix;
        dt_pki_role_t role;
    } kinds[] = {{SPIFFE_NODE, DT_PKI_ROLE_NODE}, {SPIFFE_ADMIN, DT_PKI_ROLE_ADMIN}};
    const char *text = (const char *)ASN1_STRING_get0_data(uri);
    size_t size = (size_t)ASN1_STRING_length(uri);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t skip = strlen(kinds[i].prefix);
        if (size <= skip || size - skip > DT_PKI_NAME_MAX ||
            memcmp(text, kinds[i].prefix, skip) != 0 || memchr(text, '\0', size))
            continue;
        memcpy(info->name, text + skip, size - skip);
        info->name[size - skip] = '\0';
        info->role = kinds[i].role;
        if (check_name(info->name, NULL) != DT_OK) {
            info->name[0] = '\0';
            info->role = DT_PKI_ROLE_NONE;
        }
    }
}

static void read_sans(X509 *certificate, dt_pki_info_t *info)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; names && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type == GEN_URI && info->role == DT_PKI_ROLE_NONE)
            read_uri(name->d.uniformResourceIdentifier, info);
    }
    GENERAL_NAMES_free(names);
}

/* Append a name as people write it; false: no room. Other kinds of names are passed over. */
static bool append_name(const GENERAL_NAME *name, char *names, size_t size)
{
    char text[INET6_ADDRSTRLEN];
    size_t len = strlen(names);
    int added = 0;
    if (name->type == GEN_DNS) {
        added = snprintf(names + len, size - len, "%s%.*s", len ? "," : "",
                         ASN1_STRING_length(name->d.dNSName),
                         (const char *)ASN1_STRING_get0_data(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
        int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
        if (inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text))
            added = snprintf(names + len, size - len, "%s%s", len ? "," : "", text);
    }
    return added >= 0 && (size_t)added < size - len;
}

dt_status_t dt_pki_server_names(const char *pem, char *names, size_t size, dt_error_t *err)
{
    DT_CLEANUP(dt_pki_free_certificate) X509 *certificate = NULL;
    bool is_ok = true;
    names[0] = '\0';
    DT_TRY(dt_pki_parse_certificate(pem, &certificate, err));
    GENERAL_NAMES *all = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; all && is_ok && i < sk_GENERAL_NAME_num(all); i++)
        is_ok = append_name(sk_GENERAL_NAME_value(all, i), names, size);
    GENERAL_NAMES_free(all);
    return is_ok ? DT_OK : dt_fail(err, DT_ERR_LIMIT, "dt", 0, "a certificate has too many names");
}

dt_status_t dt_pki_read(const char *pem, dt_pki_info_t *ret_info, dt_error_t *err)
{
    dt_pki_info_t info = {0};
    DT_CLEANUP(dt_pki_free_certificate) X509 *certificate = NULL;
    DT_TRY(dt_pki_parse_certificate(pem, &certificate, err));
    (void)X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName,
                                    info.common_name, sizeof info.common_name);
    read_sans(certificate, &info);
    info.not_before_ms = wall_ms_of(X509_get0_notBefore(certificate));
    info.not_after_ms = wall_ms_of(X509_get0_notAfter(certificate));
    info.is_ca = X509_check_ca(certificate) == 1;
    unsigned char *der = NULL;
    int size = i2d_X509(certificate, &der);
    if (size <= 0)
        return dt_pki_fail(err, DT_ERR_INVALID, "cannot encode a certificate");
    dt_pki_sha256_hex(der, (size_t)size, info.sha256);
    OPENSSL_free(der);
    ERR_clear_error();
    *ret_info = info;
    return DT_OK;
}

static void date_text(int64_t wall_ms, char text[32])
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm parts;
    if (!gmtime_r(&seconds, &parts) || strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        (void)snprintf(text, 32, "?");
}

static dt_status_t check_time(const dt_pki_info_t *info, int64_t wall_ms, dt_error_t *err)
{
    char date[32];
    if (wall_ms > info->not_after_ms) {
        date_text(info->not_after_ms, date);
        return dt_fail(err, DT_ERR_DENIED, "dt", 0, "the certificate of %s has expired at %s",
                       info->common_name, date);
    }
    if (wall_ms < info->not_before_ms) {
        date_text(info->not_before_ms, date);
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "the certificate of %s is not valid before %s: is the clock right?",
                       info->common_name, date);
    }
    return DT_OK;
}

dt_status_t dt_pki_check(const char *certificate, const char *key, const char *ca, int64_t wall_ms,
                         dt_error_t *err)
{
    dt_pki_info_t info;
    DT_CLEANUP(dt_pki_free_certificate) X509 *leaf = NULL, *authority = NULL;
    DT_CLEANUP(dt_pki_free_key) EVP_PKEY *own_key = NULL;
    DT_TRY(dt_pki_read(certificate, &info, err));
    DT_TRY(dt_pki_parse_certificate(certificate, &leaf, err));
    DT_TRY(dt_pki_parse_key(key, &own_key, err));
    if (X509_check_private_key(leaf, own_key) != 1)
        return dt_pki_fail(err, DT_ERR_INVALID, "the key is not that of the certificate");
    DT_TRY(check_time(&info, wall_ms, err));
    if (!ca)
        return DT_OK;
    DT_TRY(dt_pki_parse_certificate(ca, &authority, err));
    if (X509_check_issued(authority, leaf) != X509_V_OK ||
        X509_verify(leaf, X509_get0_pubkey(authority)) != 1) {
        ERR_clear_error();
        return dt_fail(err, DT_ERR_DENIED, "dt", 0,
                       "the certificate of %s is not signed by this authority", info.common_name);
    }
    DT_TRY(dt_pki_read(ca, &info, err));
    return check_time(&info, wall_ms, err);
}

bool dt_pki_is_due(const dt_pki_info_t *info, int64_t wall_ms)
{
    int64_t life_ms = info->not_after_ms - info->not_before_ms;
    return wall_ms >= info->not_before_ms + life_ms / 3 * 2;
}
