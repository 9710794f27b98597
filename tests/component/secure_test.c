/* Tensor bytes over TLS, past the controller: between programs and nodes, and between nodes. Who
 * listens at a data port must be the node; what it is not falls back to the controller's relay,
 * with the reason told, and never gets a byte. */
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/meshwork.h"
#include "lib/testproxy.h"
#include "lib/tlscluster.h"
#include "pki/tls.h"
#include "wire/bulk.h"

#define PATIENCE DT_TESTCLUSTER_PATIENCE_MS
#define MIB      ((size_t)1 << 20)
#define HOUR_MS  INT64_C(3600000)

TestSuite(secure, .timeout = 600);

static char *conf_with(const char *lines)
{
    static char conf[512];
    (void)snprintf(conf, sizeof conf, "Devices=%s\nEngines=1\n%s", dt_clienttest_devices(), lines);
    return conf;
}

static dt_session_info_t info_of(dt_session_t *session)
{
    dt_session_info_t info = {.struct_size = sizeof info};
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    return info;
}

static void there_and_back(dt_session_t *session, size_t size)
{
    uint8_t *bytes = malloc(size), *is = malloc(size);
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    uint32_t x = (uint32_t)size;
    cr_assert(bytes && is);
    for (size_t i = 0; i < size; i++, x = x * 1664525u + 1013904223u)
        bytes[i] = (uint8_t)(x >> 24);
    cr_assert_eq(
        dt_tensor_from(session, DT_DTYPE_U8, 1, (int64_t[]){(int64_t)size}, bytes, &tensor, &err),
        DT_OK, "%s", err.text);
    dt_clienttest_read(tensor, is, size);
    cr_assert_eq(memcmp(is, bytes, size), 0, "%zu bytes came back changed", size);
    dt_tensor_free(tensor);
    free(bytes);
    free(is);
}

/* ---- what works ---- */

Test(secure, bytes_of_a_program_with_a_key_go_straight_to_the_node)
{
    static const size_t sizes[] = {5000, 65537, MIB, 5 * MIB + 13, 33 * MIB + 1};
    dt_tlscluster_t c;
    dt_tlscluster_start(&c, 1, conf_with("DataListen=0.0.0.0:0\n"));
    dt_session_t *session = dt_tlscluster_connect(&c, "direct", 1);
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        there_and_back(session, sizes[i]);
        bytes += 2 * sizes[i];
    }
    dt_session_info_t info = info_of(session);
    cr_assert_lt(info.relayed_bytes, bytes / 4, "%s", info.detour);
    cr_assert_gt(info.direct_bytes, bytes / 4 * 3);
    dt_clienttest_disconnect(session);
    dt_tlscluster_stop(&c);
}

Test(secure, a_connection_that_is_cut_again_and_again_loses_no_byte)
{
    char lines[128];
    dt_tlscluster_t c;
    int fd, port = dt_testcluster_reserve_port(&fd);
    char target[16];
    (void)snprintf(target, sizeof target, "%d", port);
    dt_testproxy_t *proxy = dt_testproxy_start(target);
    (void)snprintf(lines, sizeof lines, "DataListen=127.0.0.1:%d\nDataAddress=127.0.0.1:%d\n", port,
                   dt_testproxy_port(proxy));
    dt_tlscluster_start(&c, 1, conf_with(lines));
    dt_session_t *session = dt_tlscluster_connect(&c, "direct", 1);
    for (long i = 0; i < 12; i++) {
        dt_testproxy_cut_after(proxy, 1 + i * i * 40000);
        there_and_back(session, 2 * MIB + (size_t)i);
    }
    cr_assert_gt(dt_testproxy_cuts(proxy), 3);
    cr_assert_gt(info_of(session).direct_bytes, MIB);
    dt_clienttest_disconnect(session);
    dt_tlscluster_stop(&c);
    dt_testproxy_stop(proxy);
    (void)close(fd);
}

/* ---- who is not the node ---- */

typedef enum behaviour {
    SHOWS_A_CERTIFICATE,
    SPEAKS_PLAIN, /* as a node without certificate would */
    SAYS_NOTHING,
    HANGS_UP,
} behaviour_t;

/* Listens where the node should. */
typedef struct impostor {
    behaviour_t behaviour;
    dt_pki_pair_t pair;
    int listener, port, wake[2];
    pthread_t thread;
    int connections;
    size_t secret_bytes; /* that it was given inside of TLS */
    size_t hello_bytes;  /* that it was given in plain text and that are no TLS */
} impostor_t;

static void speak_plain(int fd, impostor_t *it)
{
    static const char text[] = "no session of this node has that token";
    uint8_t bytes[256], head[DT_BULK_HEAD_BYTES];
    const dt_bulk_head_t refused = {.kind = DT_BULK_REFUSED, .size = sizeof text - 1};
    ssize_t got = read(fd, bytes, sizeof bytes);
    if (got > 0 && bytes[0] != 22) /* a handshake of TLS */
        it->hello_bytes += (size_t)got;
    dt_bulk_put(head, &refused);
    (void)!write(fd, head, sizeof head);
    (void)!write(fd, text, sizeof text - 1);
    (void)shutdown(fd, SHUT_WR); /* what is closed with bytes unread is reset, words and all */
    while (read(fd, bytes, sizeof bytes) > 0)
        continue;
}

static void show_certificate(int fd, impostor_t *it)
{
    const dt_tls_options_t options = {
        .certificate = it->pair.certificate, .key = it->pair.key, .is_server = true};
    uint8_t bytes[256];
    dt_tls_t *tls;
    dt_error_t err;
    if (dt_tls_create(&options, &tls, &err) != DT_OK)
        return;
    for (;;) {
        struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = it->wake[0], .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 || fds[1].revents)
            break;
        ssize_t got = dt_tls_recv(tls, fd, bytes, sizeof bytes, &err);
        if (got < 0)
            break;
        it->secret_bytes += (size_t)got;
    }
    dt_tls_free(tls);
}

static void *impostor_main(void *arg)
{
    impostor_t *it = arg;
    for (;;) {
        struct pollfd fds[] = {{.fd = it->listener, .events = POLLIN},
                               {.fd = it->wake[0], .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 || fds[1].revents)
            return NULL;
        int fd = accept(it->listener, NULL, NULL);
        if (fd < 0)
            continue;
        it->connections++;
        struct pollfd end = {.fd = it->wake[0], .events = POLLIN};
        if (it->behaviour == SAYS_NOTHING)
            (void)poll(&end, 1, -1);
        else if (it->behaviour == SPEAKS_PLAIN)
            speak_plain(fd, it);
        else if (it->behaviour == SHOWS_A_CERTIFICATE)
            show_certificate(fd, it);
        (void)close(fd);
    }
}

static void impostor_start(impostor_t *it)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    it->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(it->listener, (struct sockaddr *)&address, size) == 0 &&
              listen(it->listener, 16) == 0 &&
              getsockname(it->listener, (struct sockaddr *)&address, &size) == 0);
    it->port = ntohs(address.sin_port);
    cr_assert_eq(pipe(it->wake), 0);
    cr_assert_eq(pthread_create(&it->thread, NULL, impostor_main, it), 0);
}

static void impostor_stop(impostor_t *it)
{
    (void)close(it->wake[1]); /* which its thread sees as an end */
    cr_assert_eq(pthread_join(it->thread, NULL), 0);
    (void)close(it->wake[0]);
    (void)close(it->listener);
    dt_pki_pair_fini(&it->pair);
}

/* A program whose data port is in other hands gets its work done, and says why it went another way:
 * with one of two words, as the system tells it. */
static void meet_either(dt_tlscluster_t *c, impostor_t *it, const char *why, const char *or_why)
{
    char lines[128];
    impostor_start(it);
    (void)snprintf(lines, sizeof lines, "DataListen=127.0.0.1:0\nDataAddress=127.0.0.1:%d\n",
                   it->port);
    dt_tlscluster_begin(c, 1, conf_with(lines));
    dt_session_t *session = dt_tlscluster_connect(c, "direct", 1);
    there_and_back(session, 3 * MIB + 1);
    there_and_back(session, 70000);
    dt_session_info_t info = info_of(session);
    cr_assert_eq(info.direct_bytes, 0);
    cr_assert_gt(info.relayed_bytes, 6 * MIB);
    cr_assert(strstr(info.detour, why) || strstr(info.detour, or_why),
              "\"%s\" does not say \"%s\" or \"%s\"", info.detour, why, or_why);
    dt_clienttest_disconnect(session);
    dt_tlscluster_stop(c);
    impostor_stop(it);
    cr_assert_gt(it->connections, 0, "nobody came");
    cr_assert_eq(it->secret_bytes, 0, "it was given %zu bytes", it->secret_bytes);
    cr_assert_eq(it->hello_bytes, 0, "it was told a token in plain text");
}

static void meet(dt_tlscluster_t *c, impostor_t *it, const char *why)
{
    meet_either(c, it, why, why);
}

Test(secure, a_certificate_of_another_authority_gets_no_byte)
{
    dt_tlscluster_t c;
    dt_pki_pair_t other;
    impostor_t it = {.behaviour = SHOWS_A_CERTIFICATE};
    dt_tlscluster_prepare(&c, 1);
    cr_assert_eq(dt_pki_make_ca("other", 0, &other, NULL), DT_OK);
    cr_assert_eq(dt_pki_make_client(&other, DT_PKI_ROLE_NODE, "w0", HOUR_MS, &it.pair, NULL),
                 DT_OK);
    meet(&c, &it, "the certificate of the other side is refused");
    dt_pki_pair_fini(&other);
}

Test(secure, an_old_certificate_gets_no_byte)
{
    dt_tlscluster_t c;
    impostor_t it = {.behaviour = SHOWS_A_CERTIFICATE};
    dt_tlscluster_prepare(&c, 1);
    cr_assert_eq(dt_pki_make_client(&c.ca, DT_PKI_ROLE_NODE, "w0", -HOUR_MS / 2, &it.pair, NULL),
                 DT_OK);
    meet(&c, &it, "expired");
}

Test(secure, a_certificate_of_another_node_gets_no_byte)
{
    dt_tlscluster_t c;
    impostor_t it = {.behaviour = SHOWS_A_CERTIFICATE};
    dt_tlscluster_prepare(&c, 1);
    cr_assert_eq(dt_pki_make_client(&c.ca, DT_PKI_ROLE_NODE, "w7", HOUR_MS, &it.pair, NULL), DT_OK);
    meet(&c, &it, "w0 answers with the certificate of w7");
}

Test(secure, who_speaks_plain_text_or_nothing_gets_no_byte)
{
    const struct {
        behaviour_t behaviour;
        const char *why, *or_why;
    } cases[] = {{SPEAKS_PLAIN, "does not speak TLS", "does not speak TLS"},
                 {SAYS_NOTHING, "the node does not answer", "the node does not answer"},
                 {HANGS_UP, "closed the connection", strerror(ECONNRESET)}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dt_tlscluster_t c;
        impostor_t it = {.behaviour = cases[i].behaviour};
        dt_tlscluster_prepare(&c, 1);
        meet_either(&c, &it, cases[i].why, cases[i].or_why);
    }
}

/* ---- who is no program ---- */

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0, "%s",
                 strerror(errno));
    return fd;
}

static bool is_over(int fd)
{
    uint8_t bytes[64];
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    ssize_t got;
    do {
        cr_assert_gt(poll(&wait, 1, PATIENCE), 0, "the node holds on to it");
        got = read(fd, bytes, sizeof bytes);
    } while (got > 0);
    return got == 0 || errno == ECONNRESET;
}

static bool has_said_why(dt_testcluster_t *tc, void *arg)
{
    (void)arg;
    return dt_testcluster_log_count(tc, 0, "does not speak TLS") > 0;
}

Test(secure, a_plain_client_at_a_port_with_tls_is_sent_away)
{
    char lines[64];
    dt_tlscluster_t c;
    int fd, port = dt_testcluster_reserve_port(&fd);
    (void)snprintf(lines, sizeof lines, "DataListen=127.0.0.1:%d\n", port);
    dt_tlscluster_start(&c, 1, conf_with(lines));
    uint8_t hello[DT_BULK_HEAD_BYTES + DT_BULK_TOKEN_BYTES] = {0};
    const dt_bulk_head_t head = {.kind = DT_BULK_HELLO, .total = 1, .size = DT_BULK_TOKEN_BYTES};
    dt_bulk_put(hello, &head);
    int plain = connect_to(port);
    cr_assert_eq(write(plain, hello, sizeof hello), (ssize_t)sizeof hello);
    cr_assert(is_over(plain));
    cr_assert(dt_testcluster_wait(c.tc, has_said_why, NULL, PATIENCE), "%s",
              dt_testcluster_logs(c.tc));
    dt_session_t *session = dt_tlscluster_connect(&c, "direct", 1);
    there_and_back(session, MIB);
    dt_clienttest_disconnect(session);
    (void)close(plain);
    dt_tlscluster_stop(&c);
    (void)close(fd);
}

Test(secure, a_client_with_tls_at_a_plain_port_hears_what_is_wrong)
{
    char lines[256];
    uint8_t bytes[8];
    dt_tls_t *tls;
    dt_error_t err;
    dt_pki_pair_t ca;
    ssize_t got = 0;
    int reserved, port = dt_testcluster_reserve_port(&reserved);
    (void)snprintf(lines, sizeof lines, "Devices=ref\nEngines=1\nDataListen=127.0.0.1:%d\n", port);
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1, .worker_conf = lines});
    cr_assert_eq(dt_pki_make_ca("test", 0, &ca, NULL), DT_OK);
    const dt_tls_options_t options = {.ca = ca.certificate, .peer = "w0"};
    cr_assert_eq(dt_tls_create(&options, &tls, &err), DT_OK, "%s", err.text);
    int fd = connect_to(port);
    while (got == 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        got = dt_tls_recv(tls, fd, bytes, sizeof bytes, &err);
        if (got == 0)
            cr_assert_gt(poll(&wait, 1, PATIENCE), 0, "the node holds on to it");
    }
    cr_assert_eq(got, -1);
    cr_assert(strstr(err.text, "does not speak TLS"), "%s", err.text);
    dt_tls_free(tls);
    dt_pki_pair_fini(&ca);
    (void)close(fd);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
    (void)close(reserved);
}

/* ---- between nodes ---- */

Test(secure, moves_and_sums_between_nodes_have_the_bits_of_one)
{
    static float first[DT_MESHWORK_SUMS], is[DT_MESHWORK_SUMS];
    static const struct {
        int workers;
        const char *devices;
    } shapes[] = {{1, "Devices=ref:4\n"}, {2, "Devices=ref:2\n"}, {4, "Devices=ref:1\n"}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        dt_tlscluster_t c;
        dt_tlscluster_start(&c, shapes[i].workers, shapes[i].devices);
        dt_session_t *session = dt_tlscluster_connect(&c, "auto", 4);
        dt_meshwork_run(session, c.tc, i == 0 ? first : is);
        cr_assert(i == 0 || memcmp(first, is, sizeof is) == 0, "%d nodes have other bits",
                  shapes[i].workers);
        for (int who = 0; who < shapes[i].workers; who++) {
            cr_assert_eq(dt_testcluster_log_count(c.tc, who, "link=plain"), 0);
            cr_assert_eq(dt_testcluster_log_count(c.tc, who, "link=TLS") > 0, i > 0);
        }
        dt_clienttest_disconnect(session);
        dt_tlscluster_stop(&c);
    }
}

Test(secure, a_node_that_is_killed_holds_nobody)
{
    static dt_failure_t failure;
    static float data[DT_MESHWORK_COUNT], is[DT_MESHWORK_COUNT];
    const uint32_t four = 4;
    dt_mesh_t *mesh;
    dt_tlscluster_t c;
    dt_tlscluster_start(&c, 2, "Devices=ref:2\n");
    dt_session_t *session = dt_tlscluster_connect(&c, "auto", 4);
    cr_assert_eq(dt_mesh_create(session, 1, &four, NULL, NULL, &mesh, NULL), DT_OK);
    dt_tensor_t *from = dt_meshwork_put(session, mesh, data, 0);
    dt_tensor_t *before = dt_meshwork_move(from, mesh, -1);
    dt_clienttest_read(before, is, sizeof is);
    dt_testcluster_kill(c.tc, 1, SIGKILL);
    dt_tensor_t *to = dt_meshwork_move(from, mesh, -1);
    cr_assert_neq(dt_tensor_read(to, is, sizeof is, &failure), DT_OK);
    cr_assert(failure.text[0] != '\0');
    dt_tensor_free(from);
    dt_tensor_free(before);
    dt_tensor_free(to);
    dt_mesh_free(mesh);
    (void)dt_disconnect(session, PATIENCE, NULL);
    dt_tlscluster_stop(&c);
}

Test(secure, nodes_of_which_one_has_a_certificate_and_one_has_none_say_so)
{
    static dt_failure_t failure;
    static float data[DT_MESHWORK_COUNT], is[DT_MESHWORK_COUNT];
    const uint32_t four = 4;
    char conf[2048], certificate[512], key[512], ca[512];
    dt_mesh_t *mesh;
    dt_tlscluster_t files;
    dt_session_t *session = NULL;
    dt_error_t err;
    dt_tlscluster_prepare(&files, 1);
    (void)snprintf(certificate, sizeof certificate, "%s", dt_temptree_path(&files.tree, "w0.pem"));
    (void)snprintf(key, sizeof key, "%s", dt_temptree_path(&files.tree, "w0.key"));
    (void)snprintf(ca, sizeof ca, "%s", dt_temptree_path(&files.tree, "ca.pem"));
    (void)snprintf(conf, sizeof conf,
                   "Devices=ref:2\nCertificate=%s\nKey=%s\nCertificateAuthority=%s\n", certificate,
                   key, ca);
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = 2, .worker_conf = "Devices=ref:2\n", .is_idle = true});
    dt_testcluster_set_conf(tc, 0, conf);
    for (int who = -1; who < 2; who++)
        dt_testcluster_start_daemon(tc, who);
    for (int who = 0; who < 2; who++)
        cr_assert(dt_testcluster_wait_here(tc, who, PATIENCE));
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(tc),
                                    .vdev_count = four,
                                    .program = "test",
                                    .connect_timeout_ms = PATIENCE};
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    cr_assert_eq(dt_mesh_create(session, 1, &four, NULL, NULL, &mesh, NULL), DT_OK);
    dt_tensor_t *from = dt_meshwork_put(session, mesh, data, 0);
    dt_tensor_t *to = dt_meshwork_move(from, mesh, -1);
    cr_assert_neq(dt_tensor_read(to, is, sizeof is, &failure), DT_OK);
    cr_assert(strstr(failure.text, "no certificate"), "%s %s", failure.kind, failure.text);
    dt_tensor_free(from);
    dt_tensor_free(to);
    dt_mesh_free(mesh);
    (void)dt_disconnect(session, PATIENCE, NULL);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
    dt_temptree_fini(&files.tree);
    dt_pki_pair_fini(&files.ca);
}
