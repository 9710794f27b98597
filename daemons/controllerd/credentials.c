/* The controller's certificates: where they come from, and whether they hold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controllerd.h"

#define BEGIN_CERTIFICATE "-----BEGIN CERTIFICATE-----"

/* Read the file that an option names, or the service manager's credential, which goes first: it is
 * readable where the file may not be. */
static dt_status_t read_named(const dt_conf_t *conf, const char *key, const char *credential,
                              char **ret_text, dt_error_t *err)
{
    char path[DT_SYSD_PATH_MAX];
    dt_error_t why;
    if (credential && dt_sysd_credential_path(credential, path, NULL) == DT_OK) {
        if (dt_pki_read_file(path, ret_text, &why) == DT_OK)
            return DT_OK;
        return dt_fail(err, why.code, why.source, why.source_code, "credential %s: %s", credential,
                       why.text);
    }
    if (dt_pki_read_file(dt_conf_str(conf, key), ret_text, &why) == DT_OK)
        return DT_OK;
    return dt_fail(err, why.code, why.source, why.source_code, "%s=: %s", key, why.text);
}

static bool has_credential(const char *name)
{
    char path[DT_SYSD_PATH_MAX];
    return dt_sysd_credential_path(name, path, NULL) == DT_OK;
}

/* Put the authority behind the certificate, so that a node that joins can fetch it. */
static char *chain_of(const char *certificate, const char *ca)
{
    const char *first = strstr(certificate, BEGIN_CERTIFICATE);
    bool has_chain = first && strstr(first + 1, BEGIN_CERTIFICATE);
    size_t size = strlen(certificate) + strlen(ca) + 2;
    char *chain = malloc(size);
    if (chain)
        (void)snprintf(chain, size, "%s%s%s", certificate, has_chain ? "" : "\n",
                       has_chain ? "" : ca);
    return chain;
}

static dt_status_t load_authority_key(const dt_conf_t *conf, int64_t wall_ms,
                                      dt_controllerd_tls_t *tls, dt_error_t *err)
{
    dt_error_t why;
    if (!*dt_conf_str(conf, "CertificateAuthorityKey") && !has_credential("ca.key"))
        return DT_OK;
    DT_TRY(read_named(conf, "CertificateAuthorityKey", "ca.key", &tls->ca_key, err));
    if (dt_pki_check(tls->ca, tls->ca_key, NULL, wall_ms, &why) != DT_OK)
        return dt_fail(err, why.code, why.source, why.source_code,
                       "CertificateAuthority= and CertificateAuthorityKey=: %s", why.text);
    return DT_OK;
}

static dt_status_t load(const dt_conf_t *conf, int64_t wall_ms, dt_controllerd_tls_t *tls,
                        dt_error_t *err)
{
    DT_CLEANUP(dt_str_free) char *certificate = NULL;
    dt_error_t why;
    DT_TRY(read_named(conf, "Certificate", NULL, &certificate, err));
    DT_TRY(read_named(conf, "CertificateAuthority", NULL, &tls->ca, err));
    if (!*dt_conf_str(conf, "Key") && !has_credential("tls.key"))
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "Certificate= is set, but neither Key= nor the credential tls.key");
    DT_TRY(read_named(conf, "Key", "tls.key", &tls->key, err));
    if (dt_pki_read(certificate, &tls->info, &why) != DT_OK ||
        dt_pki_check(certificate, tls->key, tls->ca, wall_ms, &why) != DT_OK)
        return dt_fail(err, why.code, why.source, why.source_code, "Certificate=%s: %s",
                       dt_conf_str(conf, "Certificate"), why.text);
    if (dt_pki_read(tls->ca, &tls->ca_info, &why) != DT_OK)
        return dt_fail(err, why.code, why.source, why.source_code, "CertificateAuthority=%s: %s",
                       dt_conf_str(conf, "CertificateAuthority"), why.text);
    DT_TRY(load_authority_key(conf, wall_ms, tls, err));
    tls->chain = chain_of(certificate, tls->ca);
    if (!tls->chain)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "out of memory");
    tls->is_on = true;
    return DT_OK;
}

dt_status_t dt_controllerd_tls_load(const dt_conf_t *conf, int64_t wall_ms,
                                    dt_controllerd_tls_t *ret_tls, dt_error_t *err)
{
    dt_controllerd_tls_t tls = {.is_on = false};
    dt_status_t status = DT_OK;
    if (*dt_conf_str(conf, "Certificate"))
        status = load(conf, wall_ms, &tls, err);
    if (status != DT_OK) {
        dt_controllerd_tls_fini(&tls);
        return status;
    }
    *ret_tls = tls;
    return DT_OK;
}

void dt_controllerd_tls_fini(dt_controllerd_tls_t *tls)
{
    free(tls->ca);
    free(tls->chain);
    dt_pki_key_free(tls->key);
    dt_pki_key_free(tls->ca_key);
    *tls = (dt_controllerd_tls_t){.is_on = false};
}
