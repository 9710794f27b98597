/* The table of methods against what the .proto files say, and who has which role. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/env.h"
#include "daemons/controllerd/controllerd.h"

TestSuite(controllerd_roles, .timeout = 60);

static const dt_controllerd_method_t *find(const char *path)
{
    size_t count;
    const dt_controllerd_method_t *methods = dt_controllerd_methods(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(methods[i].path, path) == 0)
            return &methods[i];
    }
    return NULL;
}

/* Copy the word that begins at `text`. */
static void word(const char *text, char out[64])
{
    size_t length = 0;
    while (length < 63 &&
           (isalnum((unsigned char)text[length]) || text[length] == '_' || text[length] == '.'))
        length++;
    memcpy(out, text, length);
    out[length] = '\0';
}

/* Compare each `rpc` line of a file with the table. Returns how many there are. */
static size_t check_file(const char *name)
{
    char path[512], line[512], package[64] = "", service[64] = "";
    const char *tree = dt_env_get("DT_TEST_TREE");
    size_t count = 0;
    FILE *file;
    (void)snprintf(path, sizeof path, "%s/proto/%s", tree ? tree : ".", name);
    file = fopen(path, "re");
    cr_assert_not_null(file, "%s", path);
    while (fgets(line, sizeof line, file)) {
        char method[64], role[64], full[256];
        const dt_controllerd_method_t *row;
        const char *at = line + strspn(line, " ");
        if (strncmp(at, "package ", 8) == 0)
            word(at + 8, package);
        if (strncmp(at, "service ", 8) == 0)
            word(at + 8, service);
        if (strncmp(at, "rpc ", 4) != 0)
            continue;
        count++;
        word(at + 4, method);
        (void)snprintf(full, sizeof full, "/%s.%s/%s", package, service, method);
        row = find(full);
        cr_assert_not_null(row, "%s is in no row", full);
        at = strstr(line, "// Role: ");
        cr_assert_not_null(at, "%s has no role in its comment", full);
        word(at + 9, role);
        cr_assert_str_eq(role, dt_controllerd_role_text(row->role), "role of %s", full);
        at = strstr(line, "returns (stream");
        cr_assert_eq(at != NULL, row->ops != NULL, "%s: stream or unary", full);
        if (at)
            *strstr(line, "returns") = '\0';
        cr_assert_eq(row->is_server_stream, at && !strstr(line, "(stream "),
                     "%s: which side streams", full);
    }
    (void)fclose(file);
    return count;
}

Test(controllerd_roles, the_table_says_what_the_proto_comments_say)
{
    size_t table, found = 0;
    (void)dt_controllerd_methods(&table);
    found += check_file("dtorch/v1/worker.proto");
    found += check_file("dtorch/v1/admin.proto");
    found += check_file("dtorch/v1/session.proto");
    found += check_file("grpc/health/v1/health.proto");
    cr_assert_eq(found, table, "%zu methods in the files, %zu in the table", found, table);
}

static bool may(const dt_rpc_peer_t *peer, const char *roles)
{
    for (int role = 0; role < DT_CONTROLLERD_ROLE_COUNT; role++) {
        const char *text = dt_controllerd_role_text((dt_controllerd_role_t)role);
        if (dt_controllerd_peer_has_role(peer, (dt_controllerd_role_t)role) !=
            (strstr(roles, text) != NULL)) {
            fprintf(stderr, "%s is not as in \"%s\"\n", text, roles);
            return false;
        }
    }
    return true;
}

Test(controllerd_roles, the_admin_socket_is_for_people)
{
    dt_rpc_peer_t peer = {.kind = DT_RPC_PEER_UNIX, .listener = DT_CONTROLLERD_LISTENER_ADMIN};
    char name[64];
    cr_assert(may(&peer, "none viewer user operator admin"));
    dt_controllerd_peer_name(&peer, name, sizeof name);
    cr_assert_str_eq(name, "root (uid 0)");
    peer.uid = 1000;
    dt_controllerd_peer_name(&peer, name, sizeof name);
    cr_assert_str_eq(name, "uid 1000");
}

Test(controllerd_roles, the_workers_socket_and_loopback_never_change_anything)
{
    dt_rpc_peer_t peer = {.kind = DT_RPC_PEER_UNIX, .listener = 1};
    cr_assert(may(&peer, "none viewer user worker"));
    peer.kind = DT_RPC_PEER_PLAIN;
    cr_assert(may(&peer, "none viewer user worker"));
    peer.listener = DT_CONTROLLERD_LISTENER_ADMIN; /* the number alone gives nothing */
    cr_assert(may(&peer, "none viewer user worker"));
}

Test(controllerd_roles, a_certificate_gives_what_its_name_says_and_nothing_else)
{
    dt_rpc_peer_t peer = {.kind = DT_RPC_PEER_TLS, .listener = 1};
    char name[64];
    cr_assert(may(&peer, "none"));
    (void)dt_str_copy(peer.spiffe_id, sizeof peer.spiffe_id, "spiffe://dtorch/node/gpu001");
    cr_assert(may(&peer, "none"), "without a verified certificate");
    peer.has_certificate = true;
    cr_assert(may(&peer, "none worker"));
    cr_assert_str_eq(dt_controllerd_peer_node(&peer), "gpu001");
    (void)dt_str_copy(peer.spiffe_id, sizeof peer.spiffe_id, "spiffe://dtorch/admin/ana");
    cr_assert(may(&peer, "none viewer user operator admin"));
    cr_assert_null(dt_controllerd_peer_node(&peer));
    dt_controllerd_peer_name(&peer, name, sizeof name);
    cr_assert_str_eq(name, "admin ana (certificate)");
    (void)dt_str_copy(peer.spiffe_id, sizeof peer.spiffe_id, "spiffe://other/admin/ana");
    cr_assert(may(&peer, "none"));
}

Test(controllerd_roles, addresses_of_this_host_are_told_from_others)
{
    static const char *const local[] = {"/run/x.sock", "127.0.0.1:7700", "127.9.9.9:1",
                                        "[::1]:7700",  "localhost:0",    "[::ffff:127.0.0.1]:1"};
    static const char *const other[] = {"0.0.0.0:7700",        "[::]:7700",
                                        "10.0.0.1:1",          "ctl1:7700",
                                        "localhost.example:1", "127.0.0.1.example:1"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        cr_assert(dt_controllerd_is_local(local[i]), "%s", local[i]);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        cr_assert(!dt_controllerd_is_local(other[i]), "%s", other[i]);
}

static dt_status_t check(const char *text, dt_error_t *err)
{
    DT_CLEANUP(dt_conf_freep) dt_conf_t *conf = NULL;
    cr_assert_eq(
        dt_conf_parse(dt_conf_table_controller(), "c.conf", text, strlen(text), &conf, err), DT_OK,
        "%s", err->text);
    return dt_controllerd_check_conf(conf, err);
}

Test(controllerd_roles, plain_text_off_this_host_is_a_configuration_error)
{
    dt_error_t err;
    cr_assert_eq(check("[Controller]\n", &err), DT_OK, "%s", err.text);
    cr_assert_eq(check("[Controller]\nListen=0.0.0.0:7700\n", &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "Listen=0.0.0.0:7700 needs TLS"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "dtorchctl setup controller"), "%s", err.text);
    cr_assert_eq(check("[Controller]\nListen=none\nMetricsListen=[::]:7701\n", &err),
                 DT_ERR_INVALID);
    cr_assert_eq(check("[Controller]\nListen=0.0.0.0:7700\nInsecure=yes\n", &err), DT_OK);
    cr_assert_eq(check("[Controller]\nListen=0.0.0.0:7700\nCertificate=/c\nKey=/k\n"
                       "CertificateAuthority=/a\n",
                       &err),
                 DT_OK);
}

Test(controllerd_roles, options_that_need_each_other_are_checked_together)
{
    dt_error_t err;
    cr_assert_eq(check("[Controller]\nSuspectBeats=8\n", &err), DT_ERR_INVALID);
    cr_assert_not_null(strstr(err.text, "DeadBeats"), "%s", err.text);
    cr_assert_eq(check("[Controller]\nCertificate=/c\n", &err), DT_ERR_INVALID);
    cr_assert_eq(check("[Controller]\nCertificateAuthority=/c\n", &err), DT_ERR_INVALID);
    cr_assert_eq(check("[Controller]\nKey=/c\n", &err), DT_ERR_INVALID);
}
