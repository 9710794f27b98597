/* Programs over TLS: with an API key, with a client certificate, and what is refused. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/clienttest.h"
#include "lib/temptree.h"
#include "lib/testproxy.h"
#include "pki/pki.h"

#define PATIENCE  DT_TESTCLUSTER_PATIENCE_MS
#define MINUTE_MS INT64_C(60000)
#define MONTH_MS  (30 * 24 * 60 * MINUTE_MS)

static dt_temptree_t tree;
static char address[64]; /* of the controller, TLS */

static void make_tree(void)
{
    dt_temptree_init(&tree);
}

static void remove_tree(void)
{
    dt_temptree_fini(&tree);
}

TestSuite(key, .init = make_tree, .fini = remove_tree, .timeout = 600);

/* ---- a cluster with TLS ---- */

static void write_pair(const dt_pki_pair_t *pair, const char *name)
{
    char file[64];
    (void)snprintf(file, sizeof file, "%s.pem", name);
    dt_temptree_write(&tree, file, pair->certificate);
    (void)snprintf(file, sizeof file, "%s.key", name);
    dt_temptree_write(&tree, file, pair->key);
}

static void make_client(const dt_pki_pair_t *ca, dt_pki_role_t role, const char *name)
{
    dt_pki_pair_t pair;
    cr_assert_eq(dt_pki_make_client(ca, role, name, MONTH_MS, &pair, NULL), DT_OK);
    write_pair(&pair, name);
    dt_pki_pair_fini(&pair);
}

/* ca, server, and what clients may show: admin, node; other-ca, stranger. */
static void make_pki(void)
{
    dt_pki_pair_t ca, server;
    static const char *const sans[] = {"127.0.0.1", "localhost"};
    cr_assert_eq(dt_pki_make_ca("test", 0, &ca, NULL), DT_OK);
    cr_assert_eq(dt_pki_make_server(&ca, sans, 2, MONTH_MS, &server, NULL), DT_OK);
    write_pair(&ca, "ca");
    write_pair(&server, "server");
    make_client(&ca, DT_PKI_ROLE_ADMIN, "admin");
    make_client(&ca, DT_PKI_ROLE_NODE, "node");
    dt_pki_pair_fini(&ca);
    dt_pki_pair_fini(&server);
    cr_assert_eq(dt_pki_make_ca("other", 0, &ca, NULL), DT_OK);
    write_pair(&ca, "other-ca");
    make_client(&ca, DT_PKI_ROLE_ADMIN, "stranger");
    dt_pki_pair_fini(&ca);
}

static dt_testcluster_t *start(bool fake_wall)
{
    char controller[2048], worker[128];
    make_pki();
    (void)snprintf(controller, sizeof controller, "Certificate=%s\nKey=%s\nCertificateAuthority=%s",
                   dt_temptree_path(&tree, "server.pem"), dt_temptree_path(&tree, "server.key"),
                   dt_temptree_path(&tree, "ca.pem"));
    (void)snprintf(worker, sizeof worker, "Devices=%s\nEngines=1\n", dt_clienttest_devices());
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = 1,
                                                         .controller_conf = controller,
                                                         .worker_conf = worker,
                                                         .fake_wall = fake_wall});
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testcluster_port(tc));
    return tc;
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_log_count(tc, DT_TESTCLUSTER_CONTROLLER, "dtk_") -
                     dt_testcluster_log_count(tc, DT_TESTCLUSTER_CONTROLLER, "begins with dtk_"),
                 0, "a key was logged\n%s", dt_testcluster_logs(tc));
    cr_assert_eq(dt_testcluster_stop(tc), 0);
}

/* dtorchctl with the words of `line`, which must end with `code`. Gives its output, free(). */
static char *ctl(dt_testcluster_t *tc, int code, const char *line)
{
    char text[256], *words[10] = {NULL}, *save = NULL;
    size_t count = 0;
    (void)snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok_r(text, " ", &save); word && count < 9;
         word = strtok_r(NULL, " ", &save))
        words[count++] = word;
    dt_testrun_t run = dt_testcluster_ctl(tc, words[0], words[1], words[2], words[3], words[4],
                                          words[5], words[6], words[7], words[8], NULL);
    cr_assert_eq(run.code, code, "%s: exit %d\n%s%s", line, run.code, run.out, run.err);
    char *out = DT_TAKE(run.out);
    dt_testrun_fini(&run);
    return out;
}

static void ctl_says(dt_testcluster_t *tc, const char *line, const char *wanted)
{
    char *out = ctl(tc, 0, line);
    cr_assert(strstr(out, wanted), "%s does not say %s:\n%s", line, wanted, out);
    free(out);
}

/* Make a key. Gives its text, free(). */
static char *make_key(dt_testcluster_t *tc, const char *words)
{
    char line[200];
    (void)snprintf(line, sizeof line, "key create %s", words);
    char *key = ctl(tc, 0, line);
    key[strcspn(key, "\n")] = '\0';
    cr_assert_eq(strlen(key), 4 + 12 + 1 + 32, "\"%s\"", key);
    return key;
}

/* ---- programs ---- */

typedef struct program {
    const char *address, *key, *ca, *certificate; /* names of files but `key` and `address` */
    int64_t timeout_ms;                           /* 0: PATIENCE */
} program_t;

static dt_status_t try_connect(const program_t *program, dt_session_t **ret_session,
                               dt_error_t *err)
{
    char ca[512], certificate[512] = "", key[512] = "", file[64];
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = program->address ? program->address : address,
                                    .program = "test",
                                    .api_key = program->key ? program->key : "",
                                    .connect_timeout_ms =
                                        program->timeout_ms ? program->timeout_ms : PATIENCE};
    (void)snprintf(ca, sizeof ca, "%s",
                   dt_temptree_path(&tree, program->ca ? program->ca : "ca.pem"));
    options.certificate_authority = program->ca && !*program->ca ? "" : ca;
    if (program->certificate) {
        (void)snprintf(file, sizeof file, "%s.pem", program->certificate);
        (void)snprintf(certificate, sizeof certificate, "%s", dt_temptree_path(&tree, file));
        (void)snprintf(file, sizeof file, "%s.key", program->certificate);
        (void)snprintf(key, sizeof key, "%s", dt_temptree_path(&tree, file));
        options.certificate = certificate;
        options.key = key;
    }
    return dt_connect(&options, ret_session, err);
}

static dt_session_t *connect_with(dt_testcluster_t *tc, const program_t *program)
{
    dt_session_t *session = NULL;
    dt_error_t err;
    cr_assert_eq(try_connect(program, &session, &err), DT_OK, "%s\n%s", err.text,
                 dt_testcluster_logs(tc));
    return session;
}

static void refuses(dt_testcluster_t *tc, const program_t *program, dt_status_t status,
                    const char *why)
{
    dt_session_t *session = NULL;
    dt_error_t err = {.code = DT_OK};
    cr_assert_eq(try_connect(program, &session, &err), status, "%d, %s\n%s", err.code, err.text,
                 dt_testcluster_logs(tc));
    cr_assert(strstr(err.text, why), "\"%s\" does not say \"%s\"", err.text, why);
}

/* Small values, and some that go by the bulk stream. */
static void compute(dt_session_t *session)
{
    enum { COUNT = 300000 };
    int64_t small[] = {1, 2, 3}, read[3];
    float *large = malloc(COUNT * sizeof *large), *back = malloc(COUNT * sizeof *back);
    cr_assert(large && back);
    for (int i = 0; i < COUNT; i++)
        large[i] = (float)(i % 1000);
    dt_tensor_t *a = dt_clienttest_i64(session, small, 3);
    dt_tensor_t *sum = dt_clienttest_call2(session, "aten::add.Tensor", a, a);
    dt_tensor_t *b = dt_clienttest_f32(session, 1, (int64_t[]){COUNT}, large);
    dt_tensor_t *twice = dt_clienttest_call2(session, "aten::add.Tensor", b, b);
    dt_clienttest_read(sum, read, sizeof read);
    dt_clienttest_read(twice, back, COUNT * sizeof *back);
    cr_assert(read[0] == 2 && read[2] == 6);
    for (int i = 0; i < COUNT; i++)
        cr_assert_eq(back[i], 2 * large[i]);
    dt_tensor_free(a);
    dt_tensor_free(sum);
    dt_tensor_free(b);
    dt_tensor_free(twice);
    free(large);
    free(back);
}

static void is_metric(dt_testcluster_t *tc, const char *line)
{
    bool is_there = false;
    int64_t until_ms = dt_test_now_ms() + PATIENCE;
    while (!is_there && dt_test_now_ms() < until_ms) { /* they are rendered once a second */
        char *text = dt_test_http_get(dt_testcluster_metrics_port(tc, DT_TESTCLUSTER_CONTROLLER),
                                      "/metrics");
        is_there = text && strstr(text, line);
        free(text);
        if (!is_there)
            dt_test_pause_ms(100);
    }
    cr_assert(is_there, "/metrics does not say %s", line);
}

/* ---- what works ---- */

Test(key, lets_a_program_compute_over_tls_and_is_seen_at_its_job)
{
    dt_testcluster_t *tc = start(false);
    char *key = make_key(tc, "ana --expires=90d -m nightly");
    dt_temptree_write(&tree, "ana.key", key);
    dt_session_t *session = connect_with(tc, &(program_t){.key = key});
    compute(session);
    ctl_says(tc, "job list -o json", "\"key\":\"ana\"");
    ctl_says(tc, "key show ana", "nightly");
    ctl_says(tc, "key show ana -o json", "\"jobs\":1");
    ctl_says(tc, "key list", "127.0.0.1");
    ctl_says(tc, "events list", "key-created");
    is_metric(tc, "dtorch_api_keys{state=\"valid\"} 1");
    dt_clienttest_disconnect(session);
    free(ctl(tc, 1, "key create ana")); /* there is one */
    free(ctl(tc, 67, "key show nobody"));
    free(ctl(tc, 64, "key create bob --expires=1s"));
    free(key);
    stop(tc);
}

Test(key, is_read_from_the_file_that_the_environment_names)
{
    dt_testcluster_t *tc = start(false);
    char *key = make_key(tc, "ana"), spaced[128], file[512], ca[512];
    (void)snprintf(spaced, sizeof spaced, "  %s\n\n", key);
    dt_temptree_write(&tree, "ana.key", spaced);
    (void)snprintf(file, sizeof file, "%s", dt_temptree_path(&tree, "ana.key"));
    (void)snprintf(ca, sizeof ca, "%s", dt_temptree_path(&tree, "ca.pem"));
    cr_assert_eq(setenv("DTORCH_API_KEY_FILE", file, 1), 0);
    cr_assert_eq(setenv("DTORCH_CERTIFICATE_AUTHORITY", ca, 1), 0);
    dt_connect_options_t options = {
        .struct_size = sizeof options, .address = address, .connect_timeout_ms = PATIENCE};
    dt_session_t *session = NULL;
    dt_error_t err;
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    dt_clienttest_disconnect(session);
    cr_assert_eq(setenv("DTORCH_API_KEY", "no key at all", 1), 0);
    cr_assert_eq(dt_connect(&options, &session, &err), DT_ERR_INVALID);
    cr_assert(strstr(err.text, "ApiKey") && !strstr(err.text, "no key at all"), "%s", err.text);
    cr_assert_eq(setenv("DTORCH_API_KEY", key, 1), 0);
    cr_assert_eq(dt_connect(&options, &session, &err), DT_OK, "%s", err.text);
    dt_clienttest_disconnect(session);
    free(key);
    stop(tc);
}

Test(key, survives_a_restart_of_the_controller_and_then_its_end_counts)
{
    dt_testcluster_t *tc = start(true);
    int code;
    char *key = make_key(tc, "ana --expires=1h"), *other = make_key(tc, "bob");
    dt_clienttest_disconnect(connect_with(tc, &(program_t){.key = key}));
    free(ctl(tc, 0, "key revoke bob -m lost"));
    for (int turn = 0; turn < 2; turn++) {
        dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGTERM);
        cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, PATIENCE, &code));
        if (turn == 1)
            dt_testcluster_jump_wall(tc, DT_TESTCLUSTER_CONTROLLER, 61 * MINUTE_MS);
        dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
        cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, PATIENCE));
        refuses(tc, &(program_t){.key = other}, DT_ERR_DENIED, "bob was revoked: lost");
        if (turn == 0)
            dt_clienttest_disconnect(connect_with(tc, &(program_t){.key = key}));
        else
            refuses(tc, &(program_t){.key = key}, DT_ERR_DENIED, "ana has expired");
    }
    ctl_says(tc, "key show ana", "127.0.0.1");
    is_metric(tc, "dtorch_api_keys{state=\"expired\"} 1");
    is_metric(tc, "dtorch_sessions_refused_total{key=\"expired\"} 1");
    free(make_key(tc, "ana"));
    free(key);
    free(other);
    stop(tc);
}

Test(key, is_not_needed_where_a_certificate_of_the_cluster_is_shown)
{
    dt_testcluster_t *tc = start(false);
    dt_session_t *session = connect_with(tc, &(program_t){.certificate = "admin"});
    compute(session);
    dt_clienttest_disconnect(session);
    refuses(tc, &(program_t){.certificate = "node"}, DT_ERR_DENIED, "API key");
    dt_session_t *plain = dt_clienttest_connect(tc, NULL, NULL); /* the unix socket */
    dt_clienttest_disconnect(plain);
    stop(tc);
}

/* ---- what is refused ---- */

Test(key, that_is_none_or_wrong_is_refused_with_what_to_do)
{
    dt_testcluster_t *tc = start(false);
    char *key = make_key(tc, "ana");
    refuses(tc, &(program_t){0}, DT_ERR_DENIED, "ApiKeyFile=");
    refuses(tc, &(program_t){.key = "dtk_something"}, DT_ERR_DENIED, "is no API key");
    refuses(tc, &(program_t){.key = "something"}, DT_ERR_INVALID, "dtorchctl key create");
    key[20] = key[20] == 'a' ? 'b' : 'a'; /* in the secret */
    refuses(tc, &(program_t){.key = key}, DT_ERR_DENIED, "not known here");
    cr_assert(dt_testcluster_wait_event(tc, "session-refused", DT_TESTCLUSTER_CONTROLLER, 0,
                                        PATIENCE, NULL));
    is_metric(tc, "dtorch_sessions_refused_total{key=\"unknown\"} 1");
    is_metric(tc, "dtorch_sessions_refused_total{key=\"missing\"} 1");
    is_metric(tc, "dtorch_sessions_refused_total{key=\"malformed\"} 1");
    free(key);
    stop(tc);
}

Test(key, is_never_sent_without_tls)
{
    dt_session_t *session = NULL;
    dt_error_t err;
    dt_connect_options_t options = {
        .struct_size = sizeof options,
        .address = "192.0.2.1:7700",
        .api_key = "dtk_0123456789ab_0123456789abcdef0123456789abcdef",
        .certificate_authority = "",
    };
    cr_assert_eq(dt_connect(&options, &session, &err), DT_ERR_INVALID, "%s", err.text);
    cr_assert(strstr(err.text, "without TLS") && !strstr(err.text, "dtk_0"), "%s", err.text);
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){0});
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testcluster_port(tc));
    options.address = address; /* loopback needs none, and gets none: there is no device here */
    options.connect_timeout_ms = 1;
    cr_assert_neq(dt_connect(&options, &session, &err), DT_ERR_INVALID, "%s", err.text);
    stop(tc);
}

Test(key, does_not_help_where_a_certificate_is_of_another_authority)
{
    dt_testcluster_t *tc = start(false);
    char *key = make_key(tc, "ana");
    dt_session_t *session = NULL;
    dt_error_t err;
    refuses(tc, &(program_t){.key = key, .ca = "other-ca.pem"}, DT_ERR_DENIED, "certificate");
    const program_t stranger = {.key = key, .certificate = "stranger", .timeout_ms = 3000};
    cr_assert_neq(try_connect(&stranger, &session, &err), DT_OK); /* it may come to have another */
    dt_clienttest_disconnect(connect_with(tc, &(program_t){.key = key}));
    free(key);
    stop(tc);
}

Test(key, failures_of_one_host_are_few_events_and_stop_nobody_with_a_right_one)
{
    enum { TRIES = 25 };
    dt_testcluster_t *tc = start(false);
    char *key = make_key(tc, "ana");
    for (int i = 0; i < TRIES; i++) {
        char wrong[64];
        dt_session_t *session = NULL;
        (void)snprintf(wrong, sizeof wrong, "dtk_%012x_%032x", i, i);
        dt_connect_options_t options = {.struct_size = sizeof options,
                                        .address = address,
                                        .api_key = wrong,
                                        .certificate_authority = dt_temptree_path(&tree, "ca.pem"),
                                        .connect_timeout_ms = i < 10 ? PATIENCE : 200};
        cr_assert_neq(dt_connect(&options, &session, NULL), DT_OK);
    }
    dt_clienttest_disconnect(connect_with(tc, &(program_t){.key = key}));
    Dtorch__V1__EventList *events = dt_testcluster_events(tc, 0);
    size_t refused = 0;
    cr_assert_not_null(events);
    for (size_t i = 0; i < events->n_events; i++)
        refused += strcmp(events->events[i]->name, "session-refused") == 0;
    cr_assert(refused >= 1 && refused <= 4, "%zu events", refused);
    dtorch__v1__event_list__free_unpacked(events, NULL);
    free(key);
    stop(tc);
}

/* ---- what is revoked ---- */

static bool is_reconnected(dt_session_t *session, uint64_t count)
{
    dt_session_info_t info = {.struct_size = sizeof info};
    cr_assert_eq(dt_session_info(session, &info), DT_OK);
    return info.is_connected && info.reconnects >= count;
}

Test(key, that_is_revoked_ends_no_running_job_unless_it_is_asked_to)
{
    dt_testcluster_t *tc = start(false);
    char *key = make_key(tc, "ana"), target[16], through[64];
    (void)snprintf(target, sizeof target, "%d", dt_testcluster_port(tc));
    dt_testproxy_t *proxy = dt_testproxy_start(target);
    (void)snprintf(through, sizeof through, "127.0.0.1:%d", dt_testproxy_port(proxy));
    dt_session_t *session = connect_with(tc, &(program_t){.key = key, .address = through});
    compute(session);
    free(ctl(tc, 3, "key revoke ana --dry-run"));
    ctl_says(tc, "key revoke ana -y", "revoked");
    ctl_says(tc, "key show ana", "revoked");
    refuses(tc, &(program_t){.key = key}, DT_ERR_DENIED, "revoked");
    compute(session);
    dt_testproxy_cut_after(proxy, 1); /* the session has to come back with the revoked key */
    compute(session);
    cr_assert(is_reconnected(session, 1));
    ctl_says(tc, "key revoke ana --end-jobs -y -m stolen", "jobs ended");
    float data[4] = {0};
    dt_tensor_t *tensor = NULL;
    dt_error_t err = {.code = DT_OK};
    int64_t until_ms = dt_test_now_ms() + PATIENCE;
    while (err.code == DT_OK && dt_test_now_ms() < until_ms) { /* the end is on its way */
        if (dt_tensor_from(session, DT_DTYPE_F32, 1, (int64_t[]){4}, data, &tensor, &err) == DT_OK)
            dt_tensor_free(tensor);
        (void)dt_synchronize(session, 10, NULL);
    }
    cr_assert_neq(err.code, DT_OK);
    cr_assert(strstr(err.text, "revoked") && strstr(err.text, "stolen"), "%s", err.text);
    ctl_says(tc, "job list -o name", "");
    ctl_says(tc, "events list", "key-revoked");
    (void)dt_disconnect(session, 0, NULL);
    dt_testproxy_stop(proxy);
    free(key);
    stop(tc);
}
