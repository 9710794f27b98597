/* What the files of lib/pki share. */
#ifndef DT_PKI_PKI_INTERNAL_H
#define DT_PKI_PKI_INTERNAL_H
#include <openssl/evp.h>
#include <openssl/x509.h>

#include "pki/pki.h"

/* Fail with the oldest error of OpenSSL's queue, and empty the queue. */
dt_status_t dt_pki_fail(dt_error_t *err, dt_status_t status, const char *what);

/* Read the first certificate or the key of a PEM text. Errors: INVALID. */
DT_MUST_USE dt_status_t dt_pki_parse_certificate(const char *pem, X509 **ret_certificate,
                                                 dt_error_t *err);
DT_MUST_USE dt_status_t dt_pki_parse_key(const char *pem, EVP_PKEY **ret_key, dt_error_t *err);
/* Write as PEM; NULL after an error. Ownership: gives. */
char *dt_pki_certificate_text(X509 *certificate);

void dt_pki_free_certificate(X509 **certificate);
void dt_pki_free_key(EVP_PKEY **key);

#endif
