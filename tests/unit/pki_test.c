#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pki/pki.h"

#define DAY_MS INT64_C(86400000)

static dt_pki_pair_t ca, foreign;
static dt_error_t err;

static int64_t now_ms(void)
{
    return (int64_t)time(NULL) * 1000;
}

static void open_pki(void)
{
    cr_assert(eq(int, dt_pki_make_ca("test cluster", 0, &ca, &err), DT_ERR_INVALID));
    cr_assert(eq(int, dt_pki_make_ca("test-cluster", 0, &ca, &err), DT_OK), "%s", err.text);
    cr_assert(eq(int, dt_pki_make_ca("foreign", 0, &foreign, &err), DT_OK), "%s", err.text);
}

static void close_pki(void)
{
    dt_pki_pair_fini(&ca);
    dt_pki_pair_fini(&foreign);
}

TestSuite(pki, .timeout = 60, .init = open_pki, .fini = close_pki);

Test(pki, makes_an_authority_that_lives_ten_years)
{
    dt_pki_info_t info;
    cr_assert(eq(int, dt_pki_read(ca.certificate, &info, &err), DT_OK), "%s", err.text);
    cr_assert(info.is_ca);
    cr_assert_str_eq(info.common_name, "test-cluster");
    cr_assert(eq(int, info.role, DT_PKI_ROLE_NONE));
    cr_assert(gt(i64, info.not_after_ms, now_ms() + 3640 * DAY_MS));
    cr_assert(eq(sz, strlen(info.sha256), 64));
}

Test(pki, makes_a_server_certificate_for_names_and_addresses)
{
    const char *const sans[] = {"controller.example", "10.0.0.7", "::1"};
    const char *const bad[] = {"a,b"};
    dt_pki_pair_t pair;
    dt_pki_info_t info;
    cr_assert(eq(int, dt_pki_make_server(&ca, sans, 3, DAY_MS, &pair, &err), DT_OK), "%s",
              err.text);
    cr_assert(
        eq(int, dt_pki_check(pair.certificate, pair.key, ca.certificate, now_ms(), &err), DT_OK),
        "%s", err.text);
    cr_assert(eq(int, dt_pki_read(pair.certificate, &info, &err), DT_OK));
    cr_assert_str_eq(info.common_name, "controller.example");
    cr_assert(not(info.is_ca));
    cr_assert(eq(int, dt_pki_make_server(&ca, bad, 1, DAY_MS, &pair, &err), DT_ERR_INVALID));
    dt_pki_pair_fini(&pair);
}

Test(pki, signs_a_request_for_the_name_it_was_told_and_not_the_one_requested)
{
    char *csr, *key, *certificate;
    dt_pki_info_t info;
    cr_assert(eq(int, dt_pki_make_csr("evil", &csr, &key, &err), DT_OK), "%s", err.text);
    cr_assert(eq(int,
                 dt_pki_sign_csr(&ca, csr, strlen(csr), DT_PKI_ROLE_NODE, "node-7", 30 * DAY_MS,
                                 &certificate, &err),
                 DT_OK),
              "%s", err.text);
    cr_assert(eq(int, dt_pki_check(certificate, key, ca.certificate, now_ms(), &err), DT_OK), "%s",
              err.text);
    cr_assert(eq(int, dt_pki_read(certificate, &info, &err), DT_OK));
    cr_assert_str_eq(info.common_name, "node-7");
    cr_assert_str_eq(info.name, "node-7");
    cr_assert(eq(int, info.role, DT_PKI_ROLE_NODE));
    free(csr);
    free(certificate);
    dt_pki_key_free(key);
}

Test(pki, refuses_a_request_that_was_changed_or_is_none)
{
    char *csr, *key, *certificate = NULL;
    cr_assert(eq(int, dt_pki_make_csr("node", &csr, &key, &err), DT_OK));
    for (size_t at = 60; at < strlen(csr) - 60; at += 7) {
        char was = csr[at];
        if (was == '\n')
            continue;
        csr[at] = was == 'A' ? 'B' : 'A';
        if (csr[at] != was)
            cr_assert(eq(int,
                         dt_pki_sign_csr(&ca, csr, strlen(csr), DT_PKI_ROLE_NODE, "node", DAY_MS,
                                         &certificate, &err),
                         DT_ERR_INVALID),
                      "byte %zu", at);
        csr[at] = was;
    }
    cr_assert(eq(
        int, dt_pki_sign_csr(&ca, "hello", 5, DT_PKI_ROLE_NODE, "node", DAY_MS, &certificate, &err),
        DT_ERR_INVALID));
    cr_assert(eq(int,
                 dt_pki_sign_csr(&ca, csr, strlen(csr), DT_PKI_ROLE_NODE, "no de", DAY_MS,
                                 &certificate, &err),
                 DT_ERR_INVALID));
    free(csr);
    dt_pki_key_free(key);
}

Test(pki, tells_roles_apart)
{
    dt_pki_pair_t admin;
    dt_pki_info_t info;
    cr_assert(
        eq(int, dt_pki_make_client(&ca, DT_PKI_ROLE_ADMIN, "alice", DAY_MS, &admin, &err), DT_OK),
        "%s", err.text);
    cr_assert(eq(int, dt_pki_read(admin.certificate, &info, &err), DT_OK));
    cr_assert(eq(int, info.role, DT_PKI_ROLE_ADMIN));
    cr_assert_str_eq(info.name, "alice");
    dt_pki_pair_fini(&admin);
}

Test(pki, says_why_a_certificate_is_not_good)
{
    const char *const sans[] = {"a"};
    dt_pki_pair_t pair, other;
    int64_t now = now_ms();
    cr_assert(eq(int, dt_pki_make_server(&ca, sans, 1, DAY_MS, &pair, &err), DT_OK));
    cr_assert(eq(int, dt_pki_make_server(&foreign, sans, 1, DAY_MS, &other, &err), DT_OK));
    cr_assert(eq(int, dt_pki_check(pair.certificate, pair.key, foreign.certificate, now, &err),
                 DT_ERR_DENIED));
    cr_assert(strstr(err.text, "not signed by this authority") != NULL, "%s", err.text);
    cr_assert(eq(int, dt_pki_check(pair.certificate, other.key, ca.certificate, now, &err),
                 DT_ERR_INVALID));
    cr_assert(eq(int,
                 dt_pki_check(pair.certificate, pair.key, ca.certificate, now + 2 * DAY_MS, &err),
                 DT_ERR_DENIED));
    cr_assert(strstr(err.text, "has expired at 2") != NULL, "%s", err.text);
    cr_assert(eq(int, dt_pki_check(pair.certificate, pair.key, ca.certificate, now - DAY_MS, &err),
                 DT_ERR_DENIED));
    cr_assert(strstr(err.text, "is the clock right") != NULL, "%s", err.text);
    cr_assert(eq(int, dt_pki_check("x", pair.key, ca.certificate, now, &err), DT_ERR_INVALID));
    dt_pki_pair_fini(&pair);
    dt_pki_pair_fini(&other);
}

Test(pki, refuses_to_sign_with_what_is_no_authority)
{
    const char *const sans[] = {"a"};
    dt_pki_pair_t pair, out;
    cr_assert(eq(int, dt_pki_make_server(&ca, sans, 1, DAY_MS, &pair, &err), DT_OK));
    cr_assert(eq(int, dt_pki_make_server(&pair, sans, 1, DAY_MS, &out, &err), DT_ERR_INVALID));
    dt_pki_pair_t mixed = {.certificate = ca.certificate, .key = foreign.key};
    cr_assert(eq(int, dt_pki_make_server(&mixed, sans, 1, DAY_MS, &out, &err), DT_ERR_INVALID));
    dt_pki_pair_fini(&pair);
}

Test(pki, asks_for_renewal_after_two_thirds_of_a_life)
{
    dt_pki_info_t info = {.not_before_ms = 0, .not_after_ms = 30 * DAY_MS};
    cr_assert(not(dt_pki_is_due(&info, 19 * DAY_MS)));
    cr_assert(dt_pki_is_due(&info, 20 * DAY_MS));
}

Test(pki, reads_the_join_token_that_it_wrote)
{
    dt_pki_info_t info;
    dt_pki_token_t token, read;
    char text[DT_PKI_TOKEN_SIZE], spaced[DT_PKI_TOKEN_SIZE + 8];
    cr_assert(eq(int, dt_pki_read(ca.certificate, &info, &err), DT_OK));
    dt_pki_token_make(info.sha256, &token);
    dt_pki_token_format(&token, text);
    cr_assert(eq(sz, strlen(text), 114));
    (void)snprintf(spaced, sizeof spaced, " %s\n", text);
    cr_assert(eq(int, dt_pki_token_parse(spaced, &read, &err), DT_OK), "%s", err.text);
    cr_assert_str_eq(read.id, token.id);
    cr_assert_str_eq(read.secret, token.secret);
    cr_assert_str_eq(read.ca_sha256, info.sha256);
    for (size_t at = 0; text[at]; at++) {
        char was = text[at];
        text[at] = '!';
        cr_assert(eq(int, dt_pki_token_parse(text, &read, &err), DT_ERR_INVALID), "byte %zu", at);
        cr_assert(strstr(err.text, token.secret) == NULL, "the secret is in the message");
        text[at] = '\0';
        cr_assert(eq(int, dt_pki_token_parse(text, &read, &err), DT_ERR_INVALID), "cut at %zu", at);
        text[at] = was;
    }
}

Test(pki, gives_other_random_numbers_each_time)
{
    char a[33], b[33];
    dt_pki_random_hex(a, 16);
    dt_pki_random_hex(b, 16);
    cr_assert(eq(sz, strlen(a), 32));
    cr_assert(strcmp(a, b) != 0);
    cr_assert(dt_pki_equal("abc", "abc", 3));
    cr_assert(not(dt_pki_equal("abc", "abd", 3)));
}

Test(pki, hashes_as_the_standard_says)
{
    char hex[DT_PKI_SHA256_HEX_SIZE];
    dt_pki_sha256_hex("abc", 3, hex);
    cr_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

Test(pki, writes_a_private_file_whole_or_not_at_all)
{
    char folder[100], path[128], *text;
    struct stat info;
    const char *base = secure_getenv("TMPDIR");
    (void)snprintf(folder, sizeof folder, "%.60s/dtpki.XXXXXX", base ? base : "/tmp");
    cr_assert(mkdtemp(folder) != NULL);
    (void)snprintf(path, sizeof path, "%s/key.pem", folder);
    cr_assert(eq(int, dt_pki_write_file(path, "old", 3, 0644, &err), DT_OK), "%s", err.text);
    cr_assert(eq(int, dt_pki_read_file(path, &text, &err), DT_ERR_INVALID));
    cr_assert(eq(int, dt_pki_write_file(path, ca.key, strlen(ca.key), 0600, &err), DT_OK));
    cr_assert(stat(path, &info) == 0 && (info.st_mode & 0777) == 0600);
    cr_assert(eq(int, dt_pki_read_file(path, &text, &err), DT_OK), "%s", err.text);
    cr_assert_str_eq(text, ca.key);
    dt_pki_key_free(text);
    cr_assert(eq(int, unlink(path), 0));
    cr_assert(eq(int, rmdir(folder), 0), "a temporary file was left");
    cr_assert(eq(int, dt_pki_write_file(path, "x", 1, 0600, &err), DT_ERR_NOT_FOUND));
    cr_assert(eq(int, dt_pki_read_file(path, &text, &err), DT_ERR_NOT_FOUND));
    cr_assert(strstr(err.text, path) != NULL, "%s", err.text);
}
