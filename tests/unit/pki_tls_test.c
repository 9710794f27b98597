/* TLS on a socket that nobody waits at: two ends in one process, turned one after the other. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pki/pki.h"
#include "pki/tls.h"

#define HOUR_MS INT64_C(3600000)
#define TURNS   100000

static dt_pki_pair_t ca, other_ca, node_a, node_b, admin, foreign, expired;

static void make(dt_pki_pair_t *by, dt_pki_role_t role, const char *name, int64_t life_ms,
                 dt_pki_pair_t *ret)
{
    cr_assert_eq(dt_pki_make_client(by, role, name, life_ms, ret, NULL), DT_OK);
}

static void setup(void)
{
    cr_assert_eq(dt_pki_make_ca("test", 0, &ca, NULL), DT_OK);
    cr_assert_eq(dt_pki_make_ca("other", 0, &other_ca, NULL), DT_OK);
    make(&ca, DT_PKI_ROLE_NODE, "a", HOUR_MS, &node_a);
    make(&ca, DT_PKI_ROLE_NODE, "b", HOUR_MS, &node_b);
    make(&ca, DT_PKI_ROLE_ADMIN, "a", HOUR_MS, &admin);
    make(&other_ca, DT_PKI_ROLE_NODE, "a", HOUR_MS, &foreign);
    make(&ca, DT_PKI_ROLE_NODE, "a", -HOUR_MS / 2, &expired);
}

static void teardown(void)
{
    dt_pki_pair_t *all[] = {&ca, &other_ca, &node_a, &node_b, &admin, &foreign, &expired};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dt_pki_pair_fini(all[i]);
}

TestSuite(pki_tls, .init = setup, .fini = teardown, .timeout = 120);

/* ---- two ends ---- */

struct end {
    dt_tls_t *tls;
    int fd;
    const uint8_t *send;
    uint8_t *got;
    size_t send_len, sent, got_len, part;
    dt_error_t err;
    bool is_over;
};

static void join(struct end ends[2])
{
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    ends[0].fd = pair[0];
    ends[1].fd = pair[1];
}

static void close_ends(struct end ends[2])
{
    for (int i = 0; i < 2; i++) {
        dt_tls_free(ends[i].tls);
        (void)close(ends[i].fd);
    }
}

static void open_tls(struct end *end, const dt_tls_options_t *options)
{
    dt_error_t err;
    cr_assert_eq(dt_tls_create(options, &end->tls, &err), DT_OK, "%s", err.text);
}

static void turn(struct end *end, size_t want)
{
    ssize_t n = dt_tls_send(end->tls, end->fd, end->send ? end->send + end->sent : NULL,
                            end->send_len - end->sent, &end->err);
    end->is_over |= n < 0;
    end->sent += n > 0 ? (size_t)n : 0;
    size_t left = want - end->got_len;
    uint8_t none;
    if (end->is_over)
        return;
    n = left == 0 ? dt_tls_recv(end->tls, end->fd, &none, 1, &end->err)
                  : dt_tls_recv(end->tls, end->fd, end->got + end->got_len,
                                end->part && end->part < left ? end->part : left, &end->err);
    cr_assert(n <= 0 || left > 0);
    end->is_over |= n < 0;
    end->got_len += n > 0 ? (size_t)n : 0;
}

/* Turn both until all has come, or one is over; then the other hears of it. */
static bool exchange(struct end ends[2])
{
    for (int i = 0; i < TURNS; i++) {
        for (int k = 0; k < 2; k++)
            if (!ends[k].is_over)
                turn(&ends[k], ends[1 - k].send_len);
        bool is_all = ends[0].got_len == ends[1].send_len && ends[1].got_len == ends[0].send_len;
        if (is_all && dt_tls_is_ready(ends[0].tls) && dt_tls_is_ready(ends[1].tls))
            return true;
        if (ends[0].is_over && ends[1].is_over)
            return false;
        for (int k = 0; k < 2; k++)
            if (ends[k].is_over)
                (void)shutdown(ends[k].fd, SHUT_WR);
    }
    cr_assert_fail("nothing moves any more: %s, %s", ends[0].err.text, ends[1].err.text);
    return false;
}

static dt_tls_options_t client_of(const char *authority, const char *peer)
{
    return (dt_tls_options_t){.ca = authority, .peer = peer};
}

static dt_tls_options_t server_with(const dt_pki_pair_t *pair)
{
    return (dt_tls_options_t){
        .certificate = pair->certificate, .key = pair->key, .is_server = true};
}

/* A few bytes go to the server; returns whether they may. */
static bool greet(struct end ends[2], const dt_tls_options_t *client,
                  const dt_tls_options_t *server)
{
    static uint8_t got[64];
    memset(ends, 0, 2 * sizeof *ends);
    join(ends);
    open_tls(&ends[0], client);
    open_tls(&ends[1], server);
    ends[0].send = (const uint8_t *)"hello";
    ends[0].send_len = 5;
    ends[0].got = ends[1].got = got;
    bool is_good = exchange(ends);
    cr_assert(is_good || ends[1].got_len == 0, "bytes came although it was refused");
    return is_good;
}

static void refuses(const dt_tls_options_t *client, const dt_tls_options_t *server, int by,
                    dt_status_t status, const char *why)
{
    struct end ends[2];
    cr_assert(!greet(ends, client, server), "it was not refused: %s", why);
    cr_assert(ends[by].is_over);
    cr_assert_eq(ends[by].err.code, status, "%d: %s", ends[by].err.code, ends[by].err.text);
    cr_assert(strstr(ends[by].err.text, why), "\"%s\" does not say \"%s\"", ends[by].err.text, why);
    close_ends(ends);
}

/* ---- bytes ---- */

static uint8_t *make_bytes(size_t size, uint32_t seed)
{
    uint8_t *bytes = malloc(size);
    cr_assert(bytes);
    for (size_t i = 0; i < size; i++, seed = seed * 1664525u + 1013904223u)
        bytes[i] = (uint8_t)(seed >> 24);
    return bytes;
}

static void both_ways(size_t one, size_t other, size_t part, bool is_exact)
{
    struct end ends[2] = {{.send_len = one, .part = part}, {.send_len = other, .part = 3 * part}};
    dt_tls_options_t client = client_of(ca.certificate, "a"), server = server_with(&node_a);
    uint8_t *sent[2] = {make_bytes(one, 1), make_bytes(other, 2)};
    client.is_exact = server.is_exact = is_exact;
    join(ends);
    open_tls(&ends[0], &client);
    open_tls(&ends[1], &server);
    for (int i = 0; i < 2; i++) {
        ends[i].send = sent[i];
        ends[i].got = malloc(ends[1 - i].send_len);
        cr_assert(ends[i].got);
    }
    cr_assert(exchange(ends), "%s, %s", ends[0].err.text, ends[1].err.text);
    cr_assert_eq(memcmp(ends[0].got, sent[1], other), 0);
    cr_assert_eq(memcmp(ends[1].got, sent[0], one), 0);
    for (int i = 0; i < 2; i++) {
        free(ends[i].got);
        free(sent[i]);
    }
    close_ends(ends);
}

Test(pki_tls, bytes_of_any_number_come_both_ways)
{
    both_ways(1, 1, 0, false);
    both_ways(48, 3 << 20, 0, false);
    both_ways((5 << 20) + 77, (5 << 20) + 1, 0, false);
    both_ways(100001, 200003, 1000, false);
    both_ways((1 << 20) + 1, 16384, 16384, true);
    both_ways(16385, 777777, 333, true);
}

Test(pki_tls, what_was_received_already_comes_while_it_is_held)
{
    struct end ends[2] = {0};
    uint8_t got[4096];
    uint8_t *bytes = make_bytes(100000, 3);
    const dt_tls_options_t client = client_of(ca.certificate, "a"), server = server_with(&node_a);
    cr_assert(greet(ends, &client, &server));
    dt_error_t err;
    size_t sent = 0, all = 0;
    while (sent < 100000) {
        ssize_t n = dt_tls_send(ends[0].tls, ends[0].fd, bytes + sent, 100000 - sent, &err);
        cr_assert_geq(n, 0, "%s", err.text);
        if (n == 0)
            break;
        sent += (size_t)n;
    }
    cr_assert_eq(dt_tls_recv(ends[1].tls, ends[1].fd, got, 1, &err), 1);
    dt_tls_hold(ends[1].tls, true);
    ssize_t n;
    while ((n = dt_tls_recv(ends[1].tls, ends[1].fd, got, sizeof got, &err)) > 0) {
        cr_assert_eq(memcmp(got, bytes + 1 + all, (size_t)n), 0);
        all += (size_t)n;
    }
    cr_assert_eq(n, 0, "%s", err.text);
    cr_assert_gt(all, 0); /* at least the rest of the first record */
    dt_tls_hold(ends[1].tls, false);
    for (int i = 0; i < TURNS && all + 1 < 100000; i++) {
        n = sent < 100000 ? dt_tls_send(ends[0].tls, ends[0].fd, bytes + sent, 100000 - sent, &err)
                          : dt_tls_send(ends[0].tls, ends[0].fd, NULL, 0, &err);
        sent += (size_t)n;
        n = dt_tls_recv(ends[1].tls, ends[1].fd, got, sizeof got, &err);
        cr_assert(n >= 0 && memcmp(got, bytes + 1 + all, (size_t)n) == 0);
        all += (size_t)n;
    }
    cr_assert_eq(all, 99999);
    free(bytes);
    close_ends(ends);
}

/* ---- who is there ---- */

Test(pki_tls, a_node_is_known_by_its_certificate)
{
    struct end ends[2];
    const dt_tls_options_t a = server_with(&node_a);
    dt_tls_options_t client = client_of(ca.certificate, "a");
    cr_assert(greet(ends, &client, &a), "%s", ends[0].err.text);
    cr_assert_str_eq(dt_tls_peer(ends[0].tls), "a");
    cr_assert_str_eq(dt_tls_peer(ends[1].tls), "");
    close_ends(ends);
    char both[8192]; /* while a cluster changes its authority */
    int size = snprintf(both, sizeof both, "%s%s", other_ca.certificate, ca.certificate);
    cr_assert(size > 0 && (size_t)size < sizeof both);
    client.ca = both;
    cr_assert(greet(ends, &client, &a), "%s", ends[0].err.text);
    close_ends(ends);
}

Test(pki_tls, another_node_another_authority_and_an_old_certificate_are_refused)
{
    const dt_tls_options_t client = client_of(ca.certificate, "a");
    const dt_tls_options_t b = server_with(&node_b), stranger = server_with(&foreign);
    const dt_tls_options_t old = server_with(&expired), person = server_with(&admin);
    refuses(&client, &b, 0, DT_ERR_DENIED, "a answers with the certificate of b");
    refuses(&client, &person, 0, DT_ERR_DENIED, "no node: a");
    refuses(&client, &stranger, 0, DT_ERR_DENIED, "the certificate of the other side is refused");
    refuses(&client, &stranger, 1, DT_ERR_DENIED, "unknown ca");
    refuses(&client, &old, 0, DT_ERR_DENIED, "expired");
    refuses(&client, &old, 1, DT_ERR_DENIED, "expired");
}

Test(pki_tls, a_node_that_connects_shows_its_certificate)
{
    struct end ends[2];
    dt_tls_options_t server = server_with(&node_a);
    server.ca = ca.certificate;
    dt_tls_options_t client = client_of(ca.certificate, "a");
    refuses(&client, &server, 1, DT_ERR_DENIED, "did not return a certificate");
    const dt_pki_pair_t *bad[] = {&foreign, &expired};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        client.certificate = bad[i]->certificate;
        client.key = bad[i]->key;
        refuses(&client, &server, 1, DT_ERR_DENIED, "the certificate of the other side is refused");
    }
    client.certificate = node_b.certificate;
    client.key = node_b.key;
    cr_assert(greet(ends, &client, &server), "%s", ends[1].err.text);
    cr_assert_str_eq(dt_tls_peer(ends[1].tls), "b");
    close_ends(ends);
}

Test(pki_tls, texts_that_are_no_certificates_are_errors)
{
    dt_tls_t *tls = NULL;
    dt_error_t err;
    dt_tls_options_t options = client_of("nothing", NULL);
    cr_assert_eq(dt_tls_create(&options, &tls, &err), DT_ERR_INVALID);
    options = server_with(&node_a);
    options.key = node_b.key;
    cr_assert_eq(dt_tls_create(&options, &tls, &err), DT_ERR_INVALID, "%s", err.text);
    options.key = "nothing";
    cr_assert_eq(dt_tls_create(&options, &tls, &err), DT_ERR_INVALID);
    cr_assert_null(tls);
}

/* ---- a key that both know ---- */

static bool keyed(struct end ends[2], const uint8_t *one, const uint8_t *other)
{
    static uint8_t got[8];
    memset(ends, 0, 2 * sizeof *ends);
    join(ends);
    cr_assert_eq(dt_tls_create_keyed(one, false, &ends[0].tls, NULL), DT_OK);
    cr_assert_eq(dt_tls_create_keyed(other, true, &ends[1].tls, NULL), DT_OK);
    ends[0].send = (const uint8_t *)"hello";
    ends[0].send_len = 5;
    ends[0].got = ends[1].got = got;
    bool is_good = exchange(ends);
    cr_assert(is_good == (ends[1].got_len == 5));
    return is_good;
}

Test(pki_tls, a_key_is_shared_or_nothing_goes)
{
    struct end ends[2];
    uint8_t one[DT_TLS_KEY_BYTES] = {1, 2, 3}, other[DT_TLS_KEY_BYTES] = {1, 2, 4};
    cr_assert(keyed(ends, one, one), "%s, %s", ends[0].err.text, ends[1].err.text);
    close_ends(ends);
    cr_assert(!keyed(ends, one, other));
    close_ends(ends);
}

Test(pki_tls, who_does_not_know_the_key_cannot_show_a_certificate_in_its_place)
{
    static uint8_t got[8];
    struct end ends[2] = {0};
    const uint8_t key[DT_TLS_KEY_BYTES] = {9};
    const dt_tls_options_t server = server_with(&node_a);
    join(ends);
    cr_assert_eq(dt_tls_create_keyed(key, false, &ends[0].tls, NULL), DT_OK);
    open_tls(&ends[1], &server);
    ends[0].send = (const uint8_t *)"hello";
    ends[0].send_len = 5;
    ends[0].got = ends[1].got = got;
    cr_assert(!exchange(ends));
    cr_assert_eq(ends[0].err.code, DT_ERR_DENIED, "%s", ends[0].err.text);
    cr_assert(strstr(ends[0].err.text, "does not know the key"), "%s", ends[0].err.text);
    cr_assert_eq(ends[1].got_len, 0);
    close_ends(ends);
}

Test(pki_tls, a_socket_is_handed_on_with_a_key_that_is_derived)
{
    struct end ends[2], next[2];
    dt_tls_options_t client = client_of(ca.certificate, "a"), server = server_with(&node_a);
    uint8_t keys[2][DT_TLS_KEY_BYTES], more[DT_TLS_KEY_BYTES];
    client.is_exact = server.is_exact = true;
    cr_assert(greet(ends, &client, &server));
    cr_assert_eq(dt_tls_export(ends[0].tls, keys[0], NULL), DT_OK);
    cr_assert_eq(dt_tls_export(ends[1].tls, keys[1], NULL), DT_OK);
    cr_assert_eq(memcmp(keys[0], keys[1], sizeof keys[0]), 0);
    memset(next, 0, sizeof next); /* the next two owners of the same sockets */
    static uint8_t got[2][8];
    for (int i = 0; i < 2; i++) {
        next[i].fd = ends[i].fd;
        dt_tls_free(DT_TAKE(ends[i].tls));
        cr_assert_eq(dt_tls_create_keyed(keys[i], i == 1, &next[i].tls, NULL), DT_OK);
        next[i].send = (const uint8_t *)"answer";
        next[i].send_len = 6;
        next[i].got = got[i];
    }
    cr_assert(exchange(next), "%s, %s", next[0].err.text, next[1].err.text);
    close_ends(next);
    cr_assert(greet(ends, &client, &server));
    cr_assert_eq(dt_tls_export(ends[0].tls, more, NULL), DT_OK);
    cr_assert_neq(memcmp(keys[0], more, sizeof more), 0);
    close_ends(ends);
}

/* ---- who speaks something else ---- */

static void says(bool is_server, const char *words, size_t size, bool ends_it, const char *why)
{
    struct end ends[2] = {0};
    uint8_t got[8];
    ssize_t n = 0;
    const dt_tls_options_t client = client_of(ca.certificate, "a"), server = server_with(&node_a);
    join(ends);
    open_tls(&ends[0], is_server ? &server : &client);
    cr_assert_eq(write(ends[1].fd, words, size), (ssize_t)size);
    if (ends_it)
        (void)shutdown(ends[1].fd, SHUT_RDWR);
    for (int i = 0; i < 10 && n == 0; i++)
        n = dt_tls_recv(ends[0].tls, ends[0].fd, got, sizeof got, &ends[0].err);
    cr_assert_eq(n, -1, "it goes on although %s", why);
    cr_assert_eq(ends[0].err.code, DT_ERR_PEER);
    cr_assert(strstr(ends[0].err.text, why), "\"%s\" does not say \"%s\"", ends[0].err.text, why);
    cr_assert_eq(dt_tls_send(ends[0].tls, ends[0].fd, "x", 1, &ends[0].err), -1);
    close_ends(ends);
}

Test(pki_tls, what_is_no_tls_is_named)
{
    static const char hello[64] = "DTB1\1";
    says(true, hello, 48, false, "does not speak TLS");
    says(true, "GET / HTTP/1.1\r\n\r\n", 18, false, "does not speak TLS");
    says(false, hello, 48, false, "does not speak TLS");
    says(true, "", 0, true, "closed the connection");
    says(false, "\26\3\3", 3, true, "closed the connection");
}

Test(pki_tls, a_byte_that_was_changed_on_the_way_ends_it)
{
    struct end ends[2];
    uint8_t record[256], got[64];
    const dt_tls_options_t client = client_of(ca.certificate, "a"), server = server_with(&node_a);
    cr_assert(greet(ends, &client, &server));
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    cr_assert_eq(dt_tls_send(ends[0].tls, pair[0], "four", 4, &ends[0].err), 4);
    ssize_t size = read(pair[1], record, sizeof record);
    cr_assert_gt(size, 10);
    record[size - 1] ^= 1;
    cr_assert_eq(write(pair[1], record, (size_t)size), size);
    cr_assert_eq(dt_tls_recv(ends[1].tls, pair[0], got, sizeof got, &ends[1].err), -1);
    cr_assert(strstr(ends[1].err.text, "TLS"), "%s", ends[1].err.text);
    (void)close(pair[0]);
    (void)close(pair[1]);
    close_ends(ends);
}
