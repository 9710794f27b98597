#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/address.h"

static dt_rpc_address_t address;
static dt_error_t err;

TestSuite(rpc_address, .timeout = 60);

Test(rpc_address, reads_names_numbers_and_paths)
{
    cr_assert(eq(int, dt_rpc_address_parse("gpu-head.example:7700", &address, &err), DT_OK));
    cr_assert_str_eq(address.host, "gpu-head.example");
    cr_assert(eq(int, address.port, 7700));
    cr_assert(eq(int, dt_rpc_address_parse("[fe80::1]:0", &address, &err), DT_OK));
    cr_assert_str_eq(address.host, "fe80::1");
    cr_assert(eq(int, dt_rpc_address_parse("*:80", &address, &err), DT_OK));
    cr_assert_str_eq(address.host, "");
    cr_assert(eq(int, dt_rpc_address_parse("/run/dtorch/x.sock", &address, &err), DT_OK));
    cr_assert(address.is_unix);
    cr_assert(eq(int, dt_rpc_address_parse("unix:/run/dtorch/x.sock", &address, &err), DT_OK));
    cr_assert_str_eq(address.host, "/run/dtorch/x.sock");
}

Test(rpc_address, refuses_what_is_no_address_and_says_why)
{
    static const char *const bad[] = {"",      "host",    "host:",  "host:70000", "host:7x",
                                      "::1:5", "[::1]",   "[::1]5", "a b:5",      "a/b:5",
                                      "unix:", "host:-1", "a%b:5",  "host:7700 "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.text[0] = '\0';
        cr_assert(eq(int, dt_rpc_address_parse(bad[i], &address, &err), DT_ERR_INVALID), "'%s'",
                  bad[i]);
        cr_assert(ne(int, err.text[0], 0));
    }
}

Test(rpc_address, looks_into_the_hosts_file_each_time)
{
    char path[100], text[200];
    bool is_number;
    const char *base = secure_getenv("TMPDIR");
    (void)snprintf(path, sizeof path, "%.60s/dthosts.XXXXXX", base ? base : "/tmp");
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    (void)fprintf(file, "# comment\n10.0.0.1\tother head # head2\n::5 head six\n10.0.0.2 x HEAD\n");
    (void)fclose(file);
    cr_assert(eq(int, dt_rpc_address_parse("head:7700", &address, &err), DT_OK));
    cr_assert(
        eq(int, dt_rpc_address_target(&address, path, text, sizeof text, &is_number, &err), DT_OK));
    cr_assert_str_eq(text, "ipv4:10.0.0.1:7700,10.0.0.2:7700");
    cr_assert(is_number);
    cr_assert(eq(int, dt_rpc_address_parse("six:1", &address, &err), DT_OK));
    cr_assert(
        eq(int, dt_rpc_address_target(&address, path, text, sizeof text, &is_number, &err), DT_OK));
    cr_assert_str_eq(text, "ipv6:[::5]:1");
    cr_assert(eq(int, dt_rpc_address_parse("head2:1", &address, &err), DT_OK));
    cr_assert(
        eq(int, dt_rpc_address_target(&address, path, text, sizeof text, &is_number, &err), DT_OK));
    cr_assert_str_eq(text, "dns:///head2:1");
    cr_assert(not(is_number));
    cr_assert(eq(int, unlink(path), 0));
}

Test(rpc_address, writes_socket_addresses_and_the_peers_of_grpc)
{
    struct sockaddr_storage storage = {0};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(5)};
    char text[64];
    in6.sin6_addr.s6_addr[15] = 1;
    memcpy(&storage, &in6, sizeof in6);
    dt_rpc_address_text(&storage, true, text, sizeof text);
    cr_assert_str_eq(text, "[::1]:5");
    dt_rpc_address_text(&storage, false, text, sizeof text);
    cr_assert_str_eq(text, "::1");
    dt_rpc_address_of_peer("ipv6:%5B::1%5D:77", text, sizeof text);
    cr_assert_str_eq(text, "[::1]:77");
    dt_rpc_address_of_peer("ipv4:1.2.3.4:5", text, sizeof text);
    cr_assert_str_eq(text, "1.2.3.4:5");
}
