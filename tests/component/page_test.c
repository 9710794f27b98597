/* The status page over HTTP: what its document says of a cluster that changes, and whom it answers.
 * What a browser makes of it is tests/page. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* clang-format off: the public header leaves out what it finds defined */
#include "lib/clienttest.h"
/* clang-format on */
#include "lib/rawpeer.h"
#include "lib/testcluster.h"
#include "lib/tlscluster.h"

#define CTRL      DT_TESTCLUSTER_CONTROLLER
#define LONG_MS   DT_TESTCLUSTER_PATIENCE_MS
#define SLOW      80 /* more than the port holds */
#define SECRET    "correct horse battery staple"
#define GET_TEXT  "GET /status.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
#define IS_HOSTED "HTTP/1.1 200 "

TestSuite(page, .timeout = 600);

struct page {
    dt_testcluster_t *tc;
    int port, kept; /* of the page; the descriptor that keeps it for us */
};

static struct page start(int workers, const char *worker_conf)
{
    static char conf[64];
    struct page page = {.tc = NULL};
    page.port = dt_testcluster_reserve_port(&page.kept);
    (void)snprintf(conf, sizeof conf, "StatusListen=127.0.0.1:%d", page.port);
    page.tc = dt_testcluster_start(&(dt_testcluster_options_t){
        .workers = workers, .controller_conf = conf, .worker_conf = worker_conf});
    return page;
}

static void stop(struct page *page)
{
    cr_assert_eq(dt_testcluster_stop(page->tc), 0, "a daemon left something behind");
    close(page->kept);
}

/* Wait until the document has a text, or has it no more. Gives the document, free(). */
static char *document(struct page *page, const char *text, bool is_there)
{
    char *answer = NULL;
    for (int64_t waited_ms = 0; waited_ms < LONG_MS; waited_ms += 50) {
        free(answer);
        answer = dt_test_http_get(page->port, "/status.json");
        if (answer && strstr(answer, "\"cluster\":") && (strstr(answer, text) != NULL) == is_there)
            return answer;
        dt_test_pause_ms(50);
    }
    cr_assert(false, "the document %s %s:\n%s\n%s", is_there ? "never has" : "always has", text,
              answer ? answer : "nothing", dt_testcluster_logs(page->tc));
    return NULL;
}

static void expect(struct page *page, const char *text)
{
    free(document(page, text, true));
}

/* Send bytes and give all that comes, free(). */
static char *talk(int port, const char *bytes)
{
    char target[16], *text = calloc(1, 65536);
    size_t used = 0;
    ssize_t got;
    (void)snprintf(target, sizeof target, "%d", port);
    int fd = dt_rawpeer_connect(target);
    cr_assert(fd >= 0 && text && send(fd, bytes, strlen(bytes), MSG_NOSIGNAL) > 0);
    while (used < 65535 && (got = recv(fd, text + used, 65535 - used, 0)) > 0)
        used += (size_t)got;
    close(fd);
    return text;
}

static void expect_answer(int port, const char *bytes, const char *begin)
{
    char *answer = talk(port, bytes);
    cr_assert(strncmp(answer, begin, strlen(begin)) == 0, "%s\nwas answered by\n%s", bytes, answer);
    free(answer);
}

/* ---- what it says ---- */

Test(page, shows_a_worker_that_joins_and_that_it_died)
{
    struct page page = start(1, "Devices=sim:3");
    expect(&page, "\"nodes\":[{\"name\":\"w0\",\"health\":\"ok\"");
    expect(&page, "\"devices\":{\"total\":3,\"ok\":3,");
    expect(&page, "\"name\":\"node-joined\",\"node\":\"w0\"");
    dt_testcluster_kill(page.tc, 0, SIGKILL);
    expect(&page, "\"nodes\":[{\"name\":\"w0\",\"health\":\"dead\"");
    expect(&page, "\"alarms\":[{\"name\":\"node-dead\"");
    stop(&page);
}

Test(page, shows_a_job_with_its_devices_and_what_operators_took)
{
    const int64_t sizes[] = {2, 2};
    const float numbers[] = {1, 2, 3, 4};
    float product[4];
    struct page page = start(1, "Devices=ref:1");
    dt_session_t *session = dt_clienttest_connect(page.tc, NULL, NULL);
    dt_tensor_t *a = dt_clienttest_f32(session, 2, sizes, numbers);
    dt_tensor_t *b = dt_clienttest_call2(session, "aten::mm", a, a);
    dt_clienttest_read(b, product, sizeof product);
    expect(&page, "\"program\":\"test\",\"key\":\"\",\"state\":\"live\"");
    expect(&page, "\"on\":[\"w0\",0]");
    expect(&page, "\"operators\":[{\"name\":\"aten::mm\",\"count\":1,");
    dt_tensor_free(a);
    dt_tensor_free(b);
    dt_clienttest_disconnect(session);
    expect(&page, "\"jobs\":[]");
    expect(&page, "\"operators\":[{\"name\":\"aten::mm\",\"count\":1,"); /* stays in the sums */
    stop(&page);
}

#define SIDE 128

/* What the controller says of the only device, or -1. */
static long load_of_device(dt_testcluster_t *tc)
{
    static const char name[] = "\"utilization_percent\":";
    dt_testrun_t run = dt_testcluster_ctl(tc, "device", "list", "-o", "json", NULL);
    const char *at = run.out ? strstr(run.out, name) : NULL;
    long percent = at ? strtol(at + sizeof name - 1, NULL, 10) : -1;
    dt_testrun_fini(&run);
    return percent;
}

Test(page, a_device_is_as_busy_as_its_engine_computes)
{
    const int64_t sizes[] = {SIDE, SIDE};
    static float numbers[SIDE * SIDE];
    struct page page = start(1, "Devices=ref:1");
    dt_session_t *session = dt_clienttest_connect(page.tc, NULL, NULL);
    dt_tensor_t *a = dt_clienttest_f32(session, 2, sizes, numbers);
    int64_t deadline = dt_test_now_ms() + LONG_MS;
    cr_assert_leq(load_of_device(page.tc), 0);
    do { /* work, until it is seen */
        for (int i = 0; i < 20; i++) {
            dt_tensor_t *b = dt_clienttest_call2(session, "aten::mm", a, a);
            dt_clienttest_read(b, numbers, sizeof numbers);
            dt_tensor_free(b);
        }
        cr_assert_lt(dt_test_now_ms(), deadline, "%s", dt_testcluster_logs(page.tc));
    } while (load_of_device(page.tc) <= 0);
    while (load_of_device(page.tc) > 0) { /* rest */
        cr_assert_lt(dt_test_now_ms(), deadline, "%s", dt_testcluster_logs(page.tc));
        dt_test_pause_ms(50);
    }
    dt_tensor_free(a);
    dt_clienttest_disconnect(session);
    stop(&page);
}

Test(page, carries_hostile_names_as_text)
{
    struct page page = start(1, "Devices=ref:1");
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = dt_testcluster_controller_socket(page.tc),
                                    .program = "\"></script><img src=x>&'",
                                    .connect_timeout_ms = LONG_MS};
    dt_session_t *session = NULL;
    dt_error_t err;
    char *text;
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    text = document(&page, "\"program\":\"\\u0022\\u003e\\u003c/script\\u003e", true);
    cr_assert(!strstr(text, "<img") && !strstr(text, "</script"), "%s", text);
    free(text);
    dt_clienttest_disconnect(session);
    stop(&page);
}

Test(page, makes_a_document_only_for_who_asks)
{
    struct page page = start(0, NULL);
    dt_testrun_t run = dt_testcluster_ctl(page.tc, "diag", "dump", NULL);
    cr_assert(strstr(run.out, "status_documents") != NULL, "%s%s", run.out, run.err);
    dt_testrun_fini(&run);
    run = dt_testcluster_ctl(page.tc, "diag", "dump", "--filter=name=status_documents", "-o", "csv",
                             "-p", "value", NULL);
    cr_assert(strstr(run.out, "0") != NULL && !strpbrk(run.out, "123456789"), "%s", run.out);
    dt_testrun_fini(&run);
    expect(&page, "\"version\":1");
    run = dt_testcluster_ctl(page.tc, "diag", "dump", "--filter=name=status_documents", "-o", "csv",
                             "-p", "value", NULL);
    cr_assert(strpbrk(run.out, "123456789") != NULL, "%s", run.out);
    dt_testrun_fini(&run);
    stop(&page);
}

/* ---- whom it answers ---- */

Test(page, gives_its_files_with_a_strict_policy)
{
    static const char *const files[] = {"/", "/page.css", "/page.js", "/icon.svg"};
    struct page page = start(0, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *answer = dt_test_http_get(page.port, files[i]);
        cr_assert(answer && strstr(answer, IS_HOSTED) == answer, "%s: %s", files[i], answer);
        cr_assert(strstr(answer, "Content-Security-Policy: default-src 'none'; script-src 'self'"));
        cr_assert(strstr(answer, "frame-ancestors 'none'") && strstr(answer, "nosniff"));
        cr_assert(!strstr(answer, "unsafe-inline"));
        free(answer);
    }
    stop(&page);
}

Test(page, only_reads_and_only_for_this_host)
{
    struct page page = start(0, NULL);
    expect_answer(page.port,
                  "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
                  "Connection: close\r\n\r\n",
                  "HTTP/1.1 405");
    expect_answer(page.port, "DELETE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                  "HTTP/1.1 405");
    expect_answer(page.port, "GET /other HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                  "HTTP/1.1 404");
    static const char *const ours[] = {"localhost",    "LOCALHOST:1", "127.0.0.1",
                                       "127.1.2.3:80", "[::1]",       "[::1]:7702"};
    static const char *const foreign[] = {
        "evil.example", "evil.example:7702",  "localhost.evil.com",
        "10.0.0.1",     "127.0.0.1.evil.com", "[::1].evil.com",
        "[::2]",        "localhost:x",        ""};
    char request[256];
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        (void)snprintf(request, sizeof request,
                       "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", ours[i]);
        expect_answer(page.port, request, IS_HOSTED);
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        (void)snprintf(request, sizeof request,
                       "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", foreign[i]);
        expect_answer(page.port, request, "HTTP/1.1 421");
    }
    expect_answer(page.port, "GET / HTTP/1.0\r\n\r\n", "HTTP/1.1 421");
    stop(&page);
}

Test(page, is_read_beside_many_that_are_slow)
{
    struct page page = start(1, NULL);
    int slow[SLOW];
    char target[16];
    (void)snprintf(target, sizeof target, "%d", page.port);
    for (int i = 0; i < SLOW; i++) {
        slow[i] = dt_rawpeer_connect(target);
        cr_assert_geq(slow[i], 0);
        cr_assert_eq(send(slow[i], GET_TEXT, 10, MSG_NOSIGNAL), 10);
    }
    expect(&page, "\"name\":\"w0\"");
    for (int i = 0; i < SLOW; i++)
        close(slow[i]);
    stop(&page);
}

Test(page, is_off_by_one_option)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.workers = 0});
    dt_testrun_t run = dt_testcluster_ctl(tc, "diag", "dump", "--filter=name=status_page", "-o",
                                          "csv", "-p", "value", NULL);
    cr_assert(strstr(run.out, "off") != NULL, "%s%s", run.out, run.err);
    dt_testrun_fini(&run);
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

Test(page, off_loopback_wants_tls_and_a_secret)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.is_idle = true});
    static const char *const wrong[] = {"StatusListen=0.0.0.0:0",
                                        "StatusListen=0.0.0.0:0\nInsecure=yes",
                                        "StatusListen=127.0.0.1:0\nStatusSecret=/nowhere/at/all"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int code = -1;
        dt_testcluster_set_conf(tc, CTRL, wrong[i]);
        dt_testcluster_spawn(tc, CTRL, NULL);
        cr_assert(dt_testcluster_wait_exit(tc, CTRL, LONG_MS, &code), "%s", wrong[i]);
        cr_assert_eq(code, 78, "%s: %d\n%s", wrong[i], code, dt_testcluster_logs(tc));
    }
    cr_assert(strstr(dt_testcluster_logs(tc), "StatusListen=0.0.0.0:0 needs TLS"));
    cr_assert(strstr(dt_testcluster_logs(tc), "StatusSecret=/nowhere/at/all: "));
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* ---- TLS ---- */

/* GET / by TLS, with what openssl's client gives for it, free(). */
static char *get_by_tls(int port, const char *authorization)
{
    char command[512];
    (void)snprintf(
        command, sizeof command,
        "printf 'GET / HTTP/1.1\\r\\nHost: page.example\\r\\n%sConnection: close\\r\\n\\r\\n' | "
        "openssl s_client -quiet -connect 127.0.0.1:%d 2>/dev/null",
        authorization, port);
    const char *const args[] = {"-c", command, NULL};
    dt_testrun_t run = dt_testrun_program("/bin/sh", args, NULL);
    char *text = strdup(run.out ? run.out : "");
    dt_testrun_fini(&run);
    cr_assert(text != NULL);
    return text;
}

Test(page, asks_for_the_secret_over_tls)
{
    dt_tlscluster_t c;
    char lines[1024], *answer;
    int kept, port = dt_testcluster_reserve_port(&kept);
    dt_tlscluster_prepare(&c, 0);
    dt_temptree_write(&c.tree, "secret", SECRET "\n");
    (void)snprintf(lines, sizeof lines, "StatusListen=0.0.0.0:%d\nStatusSecret=%s\n", port,
                   dt_temptree_path(&c.tree, "secret"));
    c.controller_lines = lines;
    dt_tlscluster_begin(&c, 0, "");
    answer = get_by_tls(port, "");
    cr_assert(strstr(answer, "HTTP/1.1 401") == answer, "%s", answer);
    cr_assert(strstr(answer, "WWW-Authenticate: Basic") && !strstr(answer, "<html"), "%s", answer);
    free(answer);
    answer = get_by_tls(port, "Authorization: Basic YTpjb3JyZWN0IGhvcnNl\\r\\n"); /* its begin */
    cr_assert(strstr(answer, "HTTP/1.1 401") == answer, "%s", answer);
    free(answer);
    answer =
        get_by_tls(port, "Authorization: Basic YTpjb3JyZWN0IGhvcnNlIGJhdHRlcnkgc3RhcGxl\\r\\n");
    cr_assert(strstr(answer, IS_HOSTED) == answer && strstr(answer, "<html"), "%s", answer);
    free(answer);
    dt_tlscluster_stop(&c);
    close(kept);
}

/* ---- a new certificate ---- */

/* Fingerprint of the certificate that is shown at a port, or "". */
static void fingerprint(int port, char text[128])
{
    char command[256];
    (void)snprintf(command, sizeof command,
                   "openssl s_client -connect 127.0.0.1:%d </dev/null 2>/dev/null | "
                   "openssl x509 -noout -fingerprint 2>/dev/null",
                   port);
    const char *const args[] = {"-c", command, NULL};
    dt_testrun_t run = dt_testrun_program("/bin/sh", args, NULL);
    (void)snprintf(text, 128, "%s", run.out ? run.out : "");
    dt_testrun_fini(&run);
}

static void write_server(dt_tlscluster_t *c)
{
    static const char *const names[] = {"localhost", "127.0.0.1"};
    dt_pki_pair_t pair = {0};
    dt_error_t err;
    cr_assert_eq(dt_pki_make_server(&c->ca, names, 2, 1000 * 3600 * 24, &pair, &err), DT_OK);
    dt_temptree_write(&c->tree, "server.pem", pair.certificate);
    dt_temptree_write(&c->tree, "server.key", pair.key);
    dt_pki_pair_fini(&pair);
}

Test(page, shows_the_certificate_that_a_reload_brought_and_so_does_the_metrics_port)
{
    dt_tlscluster_t c;
    char lines[1024], before[2][128], now[128];
    int kept[2],
        port[2] = {dt_testcluster_reserve_port(&kept[0]), dt_testcluster_reserve_port(&kept[1])};
    dt_tlscluster_prepare(&c, 0);
    dt_temptree_write(&c.tree, "secret", SECRET "\n");
    (void)snprintf(lines, sizeof lines,
                   "StatusListen=0.0.0.0:%d\nMetricsListen=0.0.0.0:%d\nStatusSecret=%s\n", port[0],
                   port[1], dt_temptree_path(&c.tree, "secret"));
    c.controller_lines = lines;
    dt_tlscluster_begin(&c, 0, "");
    for (int i = 0; i < 2; i++) {
        fingerprint(port[i], before[i]);
        cr_assert(before[i][0] != '\0', "port %d", i);
    }
    write_server(&c);
    dt_testcluster_kill(c.tc, CTRL, SIGHUP);
    int64_t deadline = dt_test_now_ms() + LONG_MS;
    for (int i = 0; i < 2; i++) {
        do {
            cr_assert_lt(dt_test_now_ms(), deadline, "port %d\n%s", i, dt_testcluster_logs(c.tc));
            fingerprint(port[i], now);
        } while (now[0] == '\0' || strcmp(now, before[i]) == 0);
    }
    char *answer =
        get_by_tls(port[0], "Authorization: Basic YTpjb3JyZWN0IGhvcnNlIGJhdHRlcnkgc3RhcGxl\\r\\n");
    cr_assert(strstr(answer, IS_HOSTED) == answer && strstr(answer, "<html"), "%s", answer);
    free(answer);
    dt_tlscluster_stop(&c);
    close(kept[0]);
    close(kept[1]);
}
