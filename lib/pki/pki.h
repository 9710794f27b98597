/* Keys, certificates, hashes and random numbers: the only folder that calls OpenSSL.
 *
 * Keys are EC P-256, certificates X.509 v3 signed with SHA-256. Certificates and keys are PEM text
 * in memory; files are read by the caller and written with dt_pki_write_file(). Invariants: a
 * signed certificate carries the name that the signer was told, never the one that the request
 * claims; private keys are wiped when freed. Times are wall-clock milliseconds, since certificates
 * know no other. Does not: log, keep state, or touch the network but in dt_pki_fetch_ca(). */
#ifndef DT_PKI_PKI_H
#define DT_PKI_PKI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_PKI_SHA256_SIZE     32
#define DT_PKI_SHA256_HEX_SIZE 65 /* with the NUL */
#define DT_PKI_NAME_MAX        63 /* bytes of a common name */
#define DT_PKI_PEM_MAX         65536
#define DT_PKI_SAN_MAX         32

#define DT_PKI_TOKEN_ID_BYTES     6  /* random; 12 hex digits */
#define DT_PKI_TOKEN_SECRET_BYTES 16 /* random; 32 hex digits */
#define DT_PKI_TOKEN_SIZE         128

/* What a certificate is for; gives the SAN URI: spiffe://dtorch/node/NAME or /admin/NAME. */
typedef enum dt_pki_role { DT_PKI_ROLE_NONE, DT_PKI_ROLE_NODE, DT_PKI_ROLE_ADMIN } dt_pki_role_t;

typedef struct dt_pki_pair {
    char *certificate; /* PEM; the leaf alone */
    char *key;         /* PEM, PKCS#8, not encrypted */
} dt_pki_pair_t;

typedef struct dt_pki_info {
    char common_name[DT_PKI_NAME_MAX + 1];
    dt_pki_role_t role;                  /* of the SAN URI */
    char name[DT_PKI_NAME_MAX + 1];      /* of the SAN URI, "" without one */
    int64_t not_before_ms;               /* wall clock, ms since 1970 */
    int64_t not_after_ms;                /* wall clock, ms since 1970 */
    char sha256[DT_PKI_SHA256_HEX_SIZE]; /* of the DER, lower-case hex */
    bool is_ca;
} dt_pki_info_t;

typedef struct dt_pki_token {
    char id[2 * DT_PKI_TOKEN_ID_BYTES + 1];
    char secret[2 * DT_PKI_TOKEN_SECRET_BYTES + 1];
    char ca_sha256[DT_PKI_SHA256_HEX_SIZE];
} dt_pki_token_t;

/* Free both texts; the key is wiped. Zeroes `pair`. NULL is fine. */
void dt_pki_pair_fini(dt_pki_pair_t *pair);
/* Wipe and free a key's text. NULL is fine. */
void dt_pki_key_free(char *key);

/* Make a certificate authority.
 * Units: `lifetime_ms` 0 = 10 years. Ownership: gives both texts of *ret_ca, dt_pki_pair_fini().
 * Errors: INVALID (name), INTERNAL (OpenSSL). Threads: any. Blocking: about 1 ms. */
DT_MUST_USE dt_status_t dt_pki_make_ca(const char *name, int64_t lifetime_ms, dt_pki_pair_t *ret_ca,
                                       dt_error_t *err);

/* Make a server's key and certificate, signed by `ca`. Each of `sans` is a DNS name or an IP
 * address; the first one is the common name too.
 * Units: `lifetime_ms`, from now on. Ownership: gives both texts of *ret_pair.
 * Errors: INVALID (names, CA), INTERNAL. Threads: any. Blocking: about 1 ms. */
DT_MUST_USE dt_status_t dt_pki_make_server(const dt_pki_pair_t *ca, const char *const *sans,
                                           size_t san_count, int64_t lifetime_ms,
                                           dt_pki_pair_t *ret_pair, dt_error_t *err);

/* Make a key and a client certificate for a node or an administrator, signed by `ca`. */
DT_MUST_USE dt_status_t dt_pki_make_client(const dt_pki_pair_t *ca, dt_pki_role_t role,
                                           const char *name, int64_t lifetime_ms,
                                           dt_pki_pair_t *ret_pair, dt_error_t *err);

/* Make a key and a request for a certificate (PKCS#10) that carries `name`.
 * Ownership: gives *ret_csr (free) and *ret_key (dt_pki_key_free). Errors: INVALID, INTERNAL. */
DT_MUST_USE dt_status_t dt_pki_make_csr(const char *name, char **ret_csr, char **ret_key,
                                        dt_error_t *err);

/* Sign a request. Its own signature is checked; its names are ignored: the certificate says
 * `role` and `name`.
 * Ownership: gives *ret_certificate (free).
 * Errors: INVALID (malformed, too large, bad signature, key not EC P-256), INTERNAL. */
DT_MUST_USE dt_status_t dt_pki_sign_csr(const dt_pki_pair_t *ca, const char *csr, size_t csr_size,
                                        dt_pki_role_t role, const char *name, int64_t lifetime_ms,
                                        char **ret_certificate, dt_error_t *err);

/* Read what a PEM certificate (the first in the text) says. Errors: INVALID. */
DT_MUST_USE dt_status_t dt_pki_read(const char *pem, dt_pki_info_t *ret_info, dt_error_t *err);

/* Write the host names and IP addresses of a PEM certificate into `names`, commas between them: ""
 * for none. Errors: INVALID, LIMIT (they do not fit into `size` bytes). */
DT_MUST_USE dt_status_t dt_pki_server_names(const char *pem, char *names, size_t size,
                                            dt_error_t *err);

/* Check that a certificate, its key and its authority belong together and that the certificate is
 * valid at `wall_ms`. `ca` may be NULL: then only pair and time are checked.
 * Errors: INVALID (malformed, key of another certificate), DENIED (not signed by this authority,
 * expired or not valid yet; the text says since or until when). */
DT_MUST_USE dt_status_t dt_pki_check(const char *certificate, const char *key, const char *ca,
                                     int64_t wall_ms, dt_error_t *err);

/* Say whether a certificate should be renewed: two thirds of its life are over. */
bool dt_pki_is_due(const dt_pki_info_t *info, int64_t wall_ms);

/* Fetch the authority of a TLS server without trusting it, and accept it only if its SHA-256 is
 * `ca_sha256` (lower-case hex, from a join token) and the server's own certificate is signed by
 * it. `address` is host:port. The server must send its authority in its chain.
 * Ownership: gives *ret_ca (free). Errors: INVALID (address), NOT_FOUND (name), PEER (connection,
 * handshake), DENIED (another authority), TIMEOUT.
 * Threads: any. Blocking: until `timeout_ms` (name resolution apart). */
DT_MUST_USE dt_status_t dt_pki_fetch_ca(const char *address, const char *ca_sha256,
                                        int64_t timeout_ms, char **ret_ca, dt_error_t *err);

/* Fill with random bytes from the kernel. Stops the process if there are none. Threads: any. */
void dt_pki_random(void *bytes, size_t size);
/* Write 2 * byte_count random hex digits and a NUL. */
void dt_pki_random_hex(char *text, size_t byte_count);
/* Hash. `hex` has DT_PKI_SHA256_HEX_SIZE bytes; lower case. */
void dt_pki_sha256_hex(const void *data, size_t size, char *hex);
/* Compare without telling by time where the difference is. */
bool dt_pki_equal(const void *a, const void *b, size_t size);

/* Make a join token for a cluster: random id and secret. */
void dt_pki_token_make(const char *ca_sha256, dt_pki_token_t *ret_token);
/* Write "dtj_<id>_<secret>_<ca sha256>". `text` has DT_PKI_TOKEN_SIZE bytes. */
void dt_pki_token_format(const dt_pki_token_t *token, char *text);
/* Read a token's text; white space around it is allowed. Errors: INVALID; the text of the error
 * never repeats the secret. */
DT_MUST_USE dt_status_t dt_pki_token_parse(const char *text, dt_pki_token_t *ret_token,
                                           dt_error_t *err);

/* An API key of a program: "dtk_<id>_<secret>". */
typedef struct dt_pki_api_key {
    char id[2 * DT_PKI_TOKEN_ID_BYTES + 1];
    char secret[2 * DT_PKI_TOKEN_SECRET_BYTES + 1];
} dt_pki_api_key_t;

/* Make a key with random id and secret, and its text. */
void dt_pki_api_key_make(dt_pki_api_key_t *ret_key, char text[static DT_PKI_TOKEN_SIZE]);
/* Read a key's text. Errors: INVALID; nothing of the text is repeated. */
DT_MUST_USE dt_status_t dt_pki_api_key_parse(const char *text, dt_pki_api_key_t *ret_key,
                                             dt_error_t *err);

/* Write a file so that a crash leaves the old one or the new one: temporary name, fsync, rename,
 * fsync of the folder. `mode` e.g. 0600; the temporary file is removed after an error.
 * Errors: as errno says (DENIED, NOT_FOUND, LIMIT for a full disk, INTERNAL). Blocking: yes. */
DT_MUST_USE dt_status_t dt_pki_write_file(const char *path, const void *data, size_t size,
                                          unsigned mode, dt_error_t *err);
/* Read a PEM file of at most DT_PKI_PEM_MAX bytes. Ownership: gives *ret_text, wiped by
 * dt_pki_key_free(). Errors: NOT_FOUND, DENIED, INVALID (too large, empty, no PEM). */
DT_MUST_USE dt_status_t dt_pki_read_file(const char *path, char **ret_text, dt_error_t *err);

#endif
