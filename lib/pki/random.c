/* Random numbers, hashes, and the join token. */
#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "pki/pki.h"

static void to_hex(const uint8_t *bytes, size_t count, char *text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * count] = '\0';
}

void dt_pki_random(void *bytes, size_t size)
{
    uint8_t *at = bytes;
    while (size > 0) {
        ssize_t got = getrandom(at, size, 0);
        if (got < 0 && errno == EINTR)
            continue;
        dt_check(got > 0); /* the kernel has no random numbers: nothing safe can be done */
        at += got;
        size -= (size_t)got;
    }
}

void dt_pki_random_hex(char *text, size_t byte_count)
{
    uint8_t bytes[64];
    while (byte_count > 0) {
        size_t part = byte_count < sizeof bytes ? byte_count : sizeof bytes;
        dt_pki_random(bytes, part);
        to_hex(bytes, part, text);
        text += 2 * part;
        byte_count -= part;
    }
    OPENSSL_cleanse(bytes, sizeof bytes);
}

void dt_pki_sha256_hex(const void *data, size_t size, char *hex)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    (void)SHA256(data, size, digest);
    to_hex(digest, sizeof digest, hex);
}

bool dt_pki_equal(const void *a, const void *b, size_t size)
{
    return CRYPTO_memcmp(a, b, size) == 0;
}

/* ---- join tokens ---- */

void dt_pki_token_make(const char *ca_sha256, dt_pki_token_t *ret_token)
{
    *ret_token = (dt_pki_token_t){0};
    dt_pki_random_hex(ret_token->id, DT_PKI_TOKEN_ID_BYTES);
    dt_pki_random_hex(ret_token->secret, DT_PKI_TOKEN_SECRET_BYTES);
    (void)snprintf(ret_token->ca_sha256, sizeof ret_token->ca_sha256, "%s", ca_sha256);
}

void dt_pki_token_format(const dt_pki_token_t *token, char *text)
{
    (void)snprintf(text, DT_PKI_TOKEN_SIZE, "dtj_%s_%s_%s", token->id, token->secret,
                   token->ca_sha256);
}

/* Take exactly `digits` lower-case hex digits and the `end` behind them. */
static bool take_hex(const char **text, size_t digits, char end, char *ret_hex)
{
    const char *at = *text;
    for (size_t i = 0; i < digits; i++)
        if (!((at[i] >= '0' && at[i] <= '9') || (at[i] >= 'a' && at[i] <= 'f')))
            return false;
    if (end != '\0' && at[digits] != end)
        return false;
    memcpy(ret_hex, at, digits);
    ret_hex[digits] = '\0';
    *text = at + digits + (end != '\0');
    return true;
}

dt_status_t dt_pki_token_parse(const char *text, dt_pki_token_t *ret_token, dt_error_t *err)
{
    dt_pki_token_t token;
    while (isspace((unsigned char)*text))
        text++;
    bool is_ok = strncmp(text, "dtj_", 4) == 0;
    text += is_ok ? 4 : 0;
    is_ok = is_ok && take_hex(&text, (size_t)2 * DT_PKI_TOKEN_ID_BYTES, '_', token.id) &&
            take_hex(&text, (size_t)2 * DT_PKI_TOKEN_SECRET_BYTES, '_', token.secret) &&
            take_hex(&text, (size_t)2 * DT_PKI_SHA256_SIZE, '\0', token.ca_sha256);
    while (is_ok && isspace((unsigned char)*text))
        text++;
    if (!is_ok || *text != '\0')
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "not a join token: it looks like dtj_<%d digits>_<%d digits>_<%d digits> "
                       "and comes from dtorchctl token create",
                       2 * DT_PKI_TOKEN_ID_BYTES, 2 * DT_PKI_TOKEN_SECRET_BYTES,
                       2 * DT_PKI_SHA256_SIZE);
    *ret_token = token;
    return DT_OK;
}

/* ---- API keys ---- */

void dt_pki_api_key_make(dt_pki_api_key_t *ret_key, char text[static DT_PKI_TOKEN_SIZE])
{
    dt_pki_random_hex(ret_key->id, DT_PKI_TOKEN_ID_BYTES);
    dt_pki_random_hex(ret_key->secret, DT_PKI_TOKEN_SECRET_BYTES);
    (void)snprintf(text, DT_PKI_TOKEN_SIZE, "dtk_%s_%s", ret_key->id, ret_key->secret);
}

dt_status_t dt_pki_api_key_parse(const char *text, dt_pki_api_key_t *ret_key, dt_error_t *err)
{
    dt_pki_api_key_t key;
    bool is_ok = strncmp(text, "dtk_", 4) == 0;
    text += is_ok ? 4 : 0;
    is_ok = is_ok && take_hex(&text, (size_t)2 * DT_PKI_TOKEN_ID_BYTES, '_', key.id) &&
            take_hex(&text, (size_t)2 * DT_PKI_TOKEN_SECRET_BYTES, '\0', key.secret) && !*text;
    if (!is_ok)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0,
                       "not an API key: it looks like dtk_<%d digits>_<%d digits> and comes from "
                       "dtorchctl key create",
                       2 * DT_PKI_TOKEN_ID_BYTES, 2 * DT_PKI_TOKEN_SECRET_BYTES);
    *ret_key = key;
    return DT_OK;
}
