/* A node comes to its certificate: by token, once; keeps it, renews it, and says why it cannot. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/temptree.h"
#include "lib/testcluster.h"
#include "pki/pki.h"

#define PATIENCE  DT_TESTCLUSTER_PATIENCE_MS
#define MINUTE_MS INT64_C(60000)

static dt_temptree_t tree;
static char ca_sha256[DT_PKI_SHA256_HEX_SIZE];

static void make_tree(void)
{
    dt_temptree_init(&tree);
}

static void remove_tree(void)
{
    dt_temptree_fini(&tree);
}

TestSuite(join, .init = make_tree, .fini = remove_tree, .timeout = 600);

/* Authority and server certificate of the controller, as files. */
static void make_pki(void)
{
    dt_pki_pair_t ca, server;
    dt_pki_info_t info;
    static const char *const sans[] = {"127.0.0.1", "localhost"};
    cr_assert_eq(dt_pki_make_ca("test", 0, &ca, NULL), DT_OK);
    cr_assert_eq(dt_pki_make_server(&ca, sans, 2, 100 * 24 * 60 * MINUTE_MS, &server, NULL), DT_OK);
    cr_assert_eq(dt_pki_read(ca.certificate, &info, NULL), DT_OK);
    memcpy(ca_sha256, info.sha256, sizeof ca_sha256);
    dt_temptree_write(&tree, "ca.pem", ca.certificate);
    dt_temptree_write(&tree, "ca.key", ca.key);
    dt_temptree_write(&tree, "c.pem", server.certificate);
    dt_temptree_write(&tree, "c.key", server.key);
    dt_pki_pair_fini(&ca);
    dt_pki_pair_fini(&server);
}

/* A controller with TLS; workers that dial TCP and have a token file. Workers are not started. */
static dt_testcluster_t *start(int workers, bool fake_wall)
{
    char controller[2048];
    char worker[512];
    make_pki();
    (void)snprintf(controller, sizeof controller,
                   "Certificate=%s\nKey=%s\nCertificateAuthority=%s\nCertificateAuthorityKey=%s\n"
                   "CertificateLifetime=1h\n",
                   dt_temptree_path(&tree, "c.pem"), dt_temptree_path(&tree, "c.key"),
                   dt_temptree_path(&tree, "ca.pem"), dt_temptree_path(&tree, "ca.key"));
    (void)snprintf(worker, sizeof worker, "JoinTokenFile=%s\n", dt_temptree_path(&tree, "token"));
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.workers = workers,
                                                         .controller_conf = controller,
                                                         .worker_conf = worker,
                                                         .is_idle = true,
                                                         .use_tcp = true,
                                                         .fake_wall = fake_wall});
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    return tc;
}

static void make_token(dt_testcluster_t *tc)
{
    dt_testrun_t run = dt_testcluster_ctl(tc, "token", "create", NULL);
    cr_assert_eq(run.code, 0, "%s", run.err);
    dt_temptree_write(&tree, "token", run.out);
    dt_testrun_fini(&run);
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0, "a daemon did not end well");
}

static void expect_ok(dt_testcluster_t *tc)
{
    cr_assert(dt_testcluster_wait_health(tc, 0, DTORCH__V1__NODE_HEALTH__NODE_OK, PATIENCE), "%s",
              dt_testcluster_logs(tc));
}

static void end_worker(dt_testcluster_t *tc)
{
    int code;
    dt_testcluster_kill(tc, 0, SIGTERM);
    cr_assert(dt_testcluster_wait_exit(tc, 0, PATIENCE, &code));
    cr_assert_eq(code, 0);
}

/* The worker ends by itself with `code`, says `word`, and leaves no secret in its log. */
static void expect_end(dt_testcluster_t *tc, int who, int code, const char *word)
{
    int got = -1;
    dt_testcluster_spawn(tc, who, NULL);
    cr_assert(dt_testcluster_wait_exit(tc, who, PATIENCE, &got), "it runs\n%s",
              dt_testcluster_logs(tc));
    cr_assert_eq(got, code, "exit %d\n%s", got, dt_testcluster_logs(tc));
    cr_assert_gt(dt_testcluster_log_count(tc, who, word), 0, "no line says '%s'\n%s", word,
                 dt_testcluster_logs(tc));
    cr_assert_eq(dt_testcluster_log_count(tc, who, "dtj_") -
                     dt_testcluster_log_count(tc, who, "dtj_<"), /* how one looks */
                 0, "a token was logged");
}

/* Give the end of the node's certificate, as the controller saw it at the last connection. */
static bool has_certificate(const Dtorch__V1__Node *node, void *arg)
{
    *(int64_t *)arg = node->certificate_not_after_wall_ms;
    return node->certificate_not_after_wall_ms > 0;
}

/* Its certificate ends later than that. What the controller knows is of the last connection, which
 * may be the one before. */
static bool is_good_longer(const Dtorch__V1__Node *node, void *arg)
{
    return node->certificate_not_after_wall_ms > *(const int64_t *)arg;
}

Test(join, by_token_gives_a_certificate_that_outlives_the_token)
{
    dt_testcluster_t *tc = start(1, false);
    int64_t end_ms = 0;
    make_token(tc);
    dt_testcluster_start_daemon(tc, 0);
    expect_ok(tc);
    cr_assert(dt_testcluster_wait_node(tc, 0, has_certificate, &end_ms, PATIENCE));
    end_worker(tc);
    dt_temptree_remove(&tree, "token");
    dt_testcluster_start_daemon(tc, 0);
    expect_ok(tc);
    cr_assert_eq(dt_testcluster_log_count(tc, 0, "joined the cluster"), 1);
    cr_assert_eq(dt_testcluster_log_count(tc, 0, "dtj_"), 0, "a token was logged");
    stop(tc);
}

Test(join, waits_for_a_controller_that_starts_later)
{
    dt_testcluster_t *tc = start(1, false);
    int code;
    make_token(tc);
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGTERM);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, PATIENCE, &code));
    dt_testcluster_start_daemon(tc, 0); /* ready without a controller */
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    expect_ok(tc);
    stop(tc);
}

/* The only child of a worker without devices to ask about: its engine. */
static pid_t engine_of(dt_testcluster_t *tc)
{
    int64_t end_ms = dt_test_now_ms() + PATIENCE;
    char path[64];
    long pid = 0;
    int agent = (int)dt_testcluster_pid(tc, 0);
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", agent, agent);
    while (pid == 0 && dt_test_now_ms() < end_ms) {
        char *text = dt_test_read_file(path);
        pid = text ? strtol(text, NULL, 10) : 0;
        free(text);
        dt_test_pause_ms(10);
    }
    cr_assert_gt(pid, 0, "the worker has no engine\n%s", dt_testcluster_logs(tc));
    return (pid_t)pid;
}

Test(join, takes_its_time_and_what_happened_to_engines_meanwhile_is_told_after_it)
{
    dt_testcluster_t *tc = start(1, false);
    char conf[512];
    int code;
    make_token(tc);
    dt_testcluster_kill(tc, DT_TESTCLUSTER_CONTROLLER, SIGTERM);
    cr_assert(dt_testcluster_wait_exit(tc, DT_TESTCLUSTER_CONTROLLER, PATIENCE, &code));
    (void)snprintf(conf, sizeof conf, "JoinTokenFile=%s\nEngines=1\nDevices=none\n",
                   dt_temptree_path(&tree, "token"));
    dt_testcluster_set_conf(tc, 0, conf);
    dt_testcluster_start_daemon(tc, 0); /* ready: its engine is warm */
    cr_assert_eq(kill(engine_of(tc), SIGSEGV), 0);
    dt_testcluster_start_daemon(tc, DT_TESTCLUSTER_CONTROLLER);
    cr_assert(dt_testcluster_wait_event(tc, "engine-crashed", 0, 0, PATIENCE, NULL), "%s",
              dt_testcluster_logs(tc));
    stop(tc);
}

Test(join, with_a_token_that_was_used_ends_the_daemon_with_77)
{
    dt_testcluster_t *tc = start(2, false);
    make_token(tc);
    dt_testcluster_start_daemon(tc, 0);
    expect_ok(tc);
    expect_end(tc, 1, 77, "join token is not valid");
    stop(tc);
}

Test(join, to_a_controller_of_another_authority_ends_the_daemon_with_77)
{
    dt_testcluster_t *tc = start(1, false);
    dt_pki_token_t token;
    char text[DT_PKI_TOKEN_SIZE];
    dt_pki_token_make(ca_sha256, &token);
    token.ca_sha256[0] = token.ca_sha256[0] == '0' ? '1' : '0';
    dt_pki_token_format(&token, text);
    dt_temptree_write(&tree, "token", text);
    expect_end(tc, 0, 77, "does not belong to the cluster of this join token");
    stop(tc);
}

Test(join, with_a_damaged_token_is_a_configuration_error)
{
    dt_testcluster_t *tc = start(1, false);
    dt_temptree_write(&tree, "token", "dtx_1_2\n");
    expect_end(tc, 0, 78, "not a join token");
    stop(tc);
}

Test(join, under_another_name_than_the_certificates_is_refused)
{
    dt_testcluster_t *tc = start(1, false);
    make_token(tc);
    dt_testcluster_start_daemon(tc, 0);
    expect_ok(tc);
    end_worker(tc);
    dt_testcluster_set_conf(tc, 0, "NodeName=another");
    expect_end(tc, 0, 78, "this node is ");
    stop(tc);
}

static bool is_renewed(dt_testcluster_t *tc, void *arg)
{
    (void)arg;
    return dt_testcluster_log_count(tc, 0, "certificate renewed") > 0;
}

Test(join, certificate_is_renewed_when_two_thirds_of_its_life_are_over)
{
    dt_testcluster_t *tc = start(1, true);
    int64_t first_ms = 0, second_ms;
    make_token(tc);
    dt_testcluster_start_daemon(tc, 0);
    expect_ok(tc);
    cr_assert(dt_testcluster_wait_node(tc, 0, has_certificate, &first_ms, PATIENCE));
    end_worker(tc);
    dt_testcluster_jump_wall(tc, DT_TESTCLUSTER_CONTROLLER, 45 * MINUTE_MS);
    dt_testcluster_jump_wall(tc, 0, 45 * MINUTE_MS);
    for (int i = 0; i < 2; i++) { /* renewed in the first life, shown in the second */
        dt_testcluster_start_daemon(tc, 0);
        expect_ok(tc);
        cr_assert(dt_testcluster_wait(tc, is_renewed, NULL, PATIENCE), "%s",
                  dt_testcluster_logs(tc));
        if (i == 0)
            end_worker(tc);
    }
    second_ms = first_ms + 30 * MINUTE_MS;
    cr_assert(dt_testcluster_wait_node(tc, 0, is_good_longer, &second_ms, PATIENCE), "%s",
              dt_testcluster_logs(tc));
    stop(tc);
}

Test(join, certificate_that_expired_is_named_with_what_to_do)
{
    dt_testcluster_t *tc = start(1, true);
    make_token(tc);
    dt_testcluster_start_daemon(tc, 0);
    expect_ok(tc);
    end_worker(tc);
    dt_testcluster_jump_wall(tc, 0, 120 * MINUTE_MS);
    dt_temptree_write(&tree, "token", "none\n");
    expect_end(tc, 0, 78, "expired at ");
    dt_testcluster_jump_wall(tc, 0, 0);
    dt_testcluster_start_daemon(tc, 0); /* it was the clock: nothing is lost */
    expect_ok(tc);
    stop(tc);
}
