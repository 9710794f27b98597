/* dtorchctl setup: what it writes starts a cluster with TLS, and nothing is lost by it. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/temptree.h"
#include "lib/testcluster.h"
#include "lib/testproc.h"
#include "pki/pki.h"

#define ARG_MAX_COUNT 16
#define PATIENCE_MS   DT_TESTCLUSTER_PATIENCE_MS

TestSuite(ctl_setup, .timeout = 600);

static dt_temptree_t tree;

static const char *at(const char *path)
{
    return dt_temptree_path(&tree, path);
}

/* Run dtorchctl with words of one line, %s in it standing for the folder. */
static dt_testrun_t run(const char *line)
{
    char text[2000], socket[600], *rest;
    const char *args[ARG_MAX_COUNT + 1] = {NULL};
    const char *env[] = {socket, NULL};
    size_t count = 0, used = 0;
    for (const char *c = line; *c; c++) {
        if (c[0] == '%' && c[1] == 's') {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s", tree.root);
            c++;
        } else {
            text[used++] = *c;
        }
        cr_assert_lt(used, sizeof text - 1);
    }
    text[used] = '\0';
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        args[count++] = word;
    (void)snprintf(socket, sizeof socket, "DTORCH_ADMIN_SOCKET=%s/admin.sock", tree.root);
    return dt_testrun_program("dtorchctl", args, env);
}

static void check(const char *line, int code, const char *out, const char *err)
{
    dt_testrun_t got = run(line);
    cr_assert(got.code == code && (!out || strstr(got.out, out)) && (!err || strstr(got.err, err)),
              "dtorchctl %s: exit code %d, wanted %d\n%s%s", line, got.code, code, got.out,
              got.err);
    dt_testrun_fini(&got);
}

static unsigned mode_of(const char *path)
{
    struct stat status;
    cr_assert_eq(stat(at(path), &status), 0, "%s", path);
    return status.st_mode & 0777;
}

static void start(void)
{
    dt_temptree_init(&tree);
}

static void fini(void)
{
    dt_temptree_fini(&tree);
}

#define CONTROLLER                                                                                 \
    "setup controller --dir=%s/etc --name=prod --listen=%s/c.sock,127.0.0.1:0 "                    \
    "--state-dir=%s/state"

Test(ctl_setup, writes_a_configuration_a_ca_and_certificates_once, .init = start, .fini = fini)
{
    check(CONTROLLER " --dry-run", 3, "would be", NULL);
    cr_assert_neq(access(at("etc"), F_OK), 0, "a dry run wrote something");
    check(CONTROLLER, 0, "etc/controllerd.conf", "setup worker --controller=");
    cr_assert_eq(mode_of("etc/pki/ca.key") & 0137, 0, "the CA's key is not for others");
    cr_assert_eq(mode_of("etc/pki/controllerd.key") & 0137, 0);
    cr_assert_eq(mode_of("etc/pki/admin.key"), 0600);
    char *ca = dt_test_read_file(at("etc/pki/ca.pem"));
    char *conf = dt_test_read_file(at("etc/controllerd.conf"));
    check(CONTROLLER, 1, "", "exists    ");
    char *again = dt_test_read_file(at("etc/controllerd.conf"));
    cr_assert_str_eq(conf, again, "refused and yet written");
    free(again);
    check(CONTROLLER " --force", 0, "kept", NULL);
    again = dt_test_read_file(at("etc/pki/ca.pem"));
    cr_assert_str_eq(ca, again, "--force must not take every node's certificate away");
    free(again);
    free(ca);
    free(conf);
}

Test(ctl_setup, an_example_of_comments_only_is_written_over, .init = start, .fini = fini)
{
    dt_temptree_write(&tree, "etc/workerd.conf", "# An example.\n[Worker]\n#Controller=x:1\n");
    check("setup worker --dir=%s/etc --controller=/run/x.sock", 0, "written", NULL);
    check("setup worker --dir=%s/etc --controller=/run/x.sock", 1, "", "exists    ");
}

Test(ctl_setup, a_folder_that_cannot_be_made_or_written_is_told, .init = start, .fini = fini)
{
    check("setup worker --dir=%s/no/such --controller=/run/x.sock", 1, "", "No such file");
    dt_temptree_write(&tree, "file", "x");
    check("setup worker --dir=%s/file --controller=/run/x.sock", 1, "", NULL);
}

Test(ctl_setup, a_wrong_token_gives_65_and_writes_nothing, .init = start, .fini = fini)
{
    dt_temptree_write(&tree, "token", "dtj_nonsense\n");
    check("setup worker --dir=%s/etc --controller=127.0.0.1:1 --token-file=%s/token", 65, "",
          "token");
    check("setup worker --dir=%s/etc --controller=127.0.0.1:1 --token-file=%s/none", 67, "",
          "No such file");
    cr_assert_neq(access(at("etc"), F_OK), 0);
}

Test(ctl_setup, renew_makes_certificates_anew_and_nothing_else, .init = start, .fini = fini)
{
    check("setup controller --dir=%s/etc --renew", 67, "", "there is no CA");
    check(CONTROLLER " --address=ctl.example,10.1.2.3", 0, "written", NULL);
    dt_pki_info_t was, is;
    char names[1000];
    char *ca = dt_test_read_file(at("etc/pki/ca.pem"));
    char *conf = dt_test_read_file(at("etc/controllerd.conf"));
    char *old = dt_test_read_file(at("etc/pki/controllerd.pem"));
    cr_assert_eq(dt_pki_read(old, &was, NULL), DT_OK);
    check("setup controller --dir=%s/etc --renew --dry-run", 3, "would be", NULL);
    check("setup controller --dir=%s/etc --renew", 0, "written", "systemctl restart");
    char *new = dt_test_read_file(at("etc/pki/controllerd.pem"));
    char *key = dt_test_read_file(at("etc/pki/controllerd.key"));
    cr_assert_eq(dt_pki_read(new, &is, NULL), DT_OK);
    cr_assert_str_neq(was.sha256, is.sha256);
    cr_assert_eq(dt_pki_check(new, key, ca, is.not_before_ms + 1, NULL), DT_OK);
    cr_assert_eq(dt_pki_server_names(new, names, sizeof names, NULL), DT_OK);
    cr_assert_eq(strncmp(names, "ctl.example,10.1.2.3,", 21), 0, "%s", names);
    char *conf_now = dt_test_read_file(at("etc/controllerd.conf"));
    char *ca_now = dt_test_read_file(at("etc/pki/ca.pem"));
    cr_assert_str_eq(conf, conf_now);
    cr_assert_str_eq(ca, ca_now);
    char *const texts[] = {ca, conf, old, new, key, conf_now, ca_now};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        free(texts[i]);
}

Test(ctl_setup, a_worker_of_another_machine_takes_tensors_from_there, .init = start, .fini = fini)
{
    dt_pki_token_t token;
    char text[DT_PKI_TOKEN_SIZE], ca[DT_PKI_SHA256_HEX_SIZE];
    dt_pki_sha256_hex("x", 1, ca);
    dt_pki_token_make(ca, &token);
    dt_pki_token_format(&token, text);
    dt_temptree_write(&tree, "token", text);
    check("setup worker --dir=%s/far --controller=ctl.invalid --token-file=%s/token", 0, "written",
          "cannot be reached");
    check("setup worker --dir=%s/near --controller=127.0.0.1:1 --token-file=%s/token", 0, "written",
          NULL);
    char *far = dt_test_read_file(at("far/workerd.conf"));
    char *near = dt_test_read_file(at("near/workerd.conf"));
    cr_assert(strstr(far, "\nDataListen=0.0.0.0:7703\n"), "%s", far);
    cr_assert_null(strstr(near, "DataListen"), "%s", near);
    free(far);
    free(near);
}

/* ---- LibTorch ---- */

/* Run words of the shell within the folder: a prefix with the program and a torch backend in it. */
static dt_testrun_t run_installed(const char *words)
{
    char script[3000];
    const char *bin = getenv("DT_TEST_BIN");
    (void)snprintf(script, sizeof script,
                   "cd '%s' && mkdir -p bin lib/dtorch/backends && cp '%s/dtorchctl' bin/ && "
                   "touch lib/dtorch/backends/dtorch-backend-torch.so && %s",
                   tree.root, bin ? bin : "", words);
    const char *const args[] = {"-c", script, NULL};
    return dt_testrun_program("/bin/sh", args, NULL);
}

static void check_installed(const char *words, int code, const char *out, const char *err)
{
    dt_testrun_t got = run_installed(words);
    cr_assert(got.code == code && strstr(got.out, out) && strstr(got.err, err),
              "%s: exit code %d, wanted %d\n%s%s", words, got.code, code, got.out, got.err);
    dt_testrun_fini(&got);
}

#define WORKER "bin/dtorchctl setup worker --force --dir=etc --controller=/run/x.sock"

Test(ctl_setup, a_python_environment_gives_the_backend_its_libtorch, .init = start, .fini = fini)
{
    check_installed(WORKER, 0, "written", "LibTorch is not known here");
    check_installed(WORKER " --torch=venv", 67, "", "there is no libtorch_cpu.so in it");
    check_installed("mkdir -p venv/lib/python3.11/site-packages/torch/lib && "
                    "touch venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so && " WORKER
                    " --torch=venv && readlink lib/dtorch/libtorch",
                    0, "/venv/lib/python3.11/site-packages/torch/lib\n", "Next");
    check_installed(WORKER, 0, "written", "Next        systemctl");
    check_installed("mkdir -p other/lib && touch other/lib/libtorch_cpu.so && " WORKER
                    " --torch=other && readlink lib/dtorch/libtorch",
                    0, "/other/lib\n", "Next");
    check_installed("rm lib/dtorch/backends/* && " WORKER " --torch=venv", 67, "",
                    "the torch backend is not installed here");
}

/* ---- a cluster out of it ---- */

static void start_daemon(dt_testproc_t *proc, const char *name, const char *const *args)
{
    char path[600], notify[300];
    const char *argv[ARG_MAX_COUNT + 2] = {name};
    dt_testproc_env_t env;
    *proc = (dt_testproc_t){.pidfd = -1, .notify_fd = -1};
    for (size_t i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    (void)snprintf(notify, sizeof notify, "%s/%s.notify", tree.root, name);
    (void)snprintf(path, sizeof path, "%s/%s", getenv("DT_TEST_BIN"), name);
    dt_testproc_listen(proc, notify);
    dt_testproc_env_init(&env, NULL);
    dt_testproc_env_add(&env, "NOTIFY_SOCKET=%s", notify);
    dt_testproc_spawn(proc, path, argv, &env, at("log"), at("log"), NULL);
    dt_testproc_env_fini(&env);
    if (!dt_testproc_wait_ready(proc, PATIENCE_MS)) {
        char *log = dt_test_read_file(at("log"));
        cr_assert_fail("%s is not ready\n%s", name, log);
    }
}

static void stop_daemon(dt_testproc_t *proc)
{
    (void)kill(proc->pid, SIGTERM);
    cr_assert(dt_testproc_wait_exit(proc, PATIENCE_MS));
    cr_assert_eq(proc->code, 0);
    dt_testproc_close(proc);
}

/* The TCP port out of the controller's status. */
static int port_of(void)
{
    dt_testrun_t got = run("cluster status -o json");
    const char *text = got.out ? strstr(got.out, "\"127.0.0.1:") : NULL;
    int port = text ? (int)strtol(text + strlen("\"127.0.0.1:"), NULL, 10) : 0;
    cr_assert_gt(port, 0, "%s%s", got.out, got.err);
    dt_testrun_fini(&got);
    return port;
}

static bool node_is_ready(const char *name)
{
    int64_t deadline_ms = dt_test_now_ms() + PATIENCE_MS;
    bool found = false;
    while (!found && dt_test_now_ms() < deadline_ms) {
        dt_testrun_t got = run("node list --filter=state=ready -o name");
        found = got.out && strstr(got.out, name);
        dt_testrun_fini(&got);
        if (!found)
            dt_test_pause_ms(20);
    }
    return found;
}

static void make_token(void)
{
    dt_testrun_t token = run("token create -q");
    cr_assert_eq(token.code, 0, "%s", token.err);
    cr_assert_eq(strncmp(token.out, "dtj_", 4), 0);
    dt_temptree_write(&tree, "token", token.out);
    dt_testrun_fini(&token);
}

static void start_controller(dt_testproc_t *proc)
{
    char conf[400], admin[400];
    (void)snprintf(conf, sizeof conf, "--config=%s/etc/controllerd.conf", tree.root);
    (void)snprintf(admin, sizeof admin, "--admin-socket=%s/admin.sock", tree.root);
    const char *args[] = {conf, admin, "--metrics-listen=none", "--status-listen=none", NULL};
    start_daemon(proc, "dtorch-controllerd", args);
}

Test(ctl_setup, a_cluster_with_tls_comes_up_from_what_it_writes, .init = start, .fini = fini)
{
    dt_testproc_t controller, worker;
    char line[400], conf[400], state[400];
    check(CONTROLLER, 0, NULL, NULL);
    start_controller(&controller);
    int port = port_of();
    (void)snprintf(line, sizeof line, "-H 127.0.0.1:%d --config=%%s/etc/client.conf", port);
    check(line, 0, "cluster   prod", NULL);
    (void)snprintf(line, sizeof line, "-H 127.0.0.1:%d node list", port);
    check(line, 69, "", "CertificateAuthority=");
    make_token();
    check("token list --filter=state=valid -o json", 0, "\"uses_left\":1", NULL);
    (void)snprintf(line, sizeof line,
                   "setup worker --dir=%%s/w --controller=127.0.0.1:%d --token-file=%%s/token "
                   "--name=joiner --devices=sim:2",
                   port);
    check(line, 0, "pki/join.token", "has the CA that the token names");
    cr_assert_eq(mode_of("w/pki/join.token") & 0137, 0);
    (void)snprintf(conf, sizeof conf, "--config=%s/w/workerd.conf", tree.root);
    (void)snprintf(state, sizeof state, "--state-directory=%s/wstate", tree.root);
    const char *args[] = {conf, state, "--metrics-listen=none", NULL};
    start_daemon(&worker, "dtorch-workerd", args);
    cr_assert(node_is_ready("joiner"), "%s", dt_test_read_file(at("log")));
    check("node show joiner", 0, "cert      good until ", NULL);
    check("token list --filter=state=valid -o name", 0, "", NULL);
    check("device list -o name", 0, "joiner:0\njoiner:1\n", NULL);
    stop_daemon(&worker);
    stop_daemon(&controller);
}

Test(ctl_setup, a_token_of_another_cluster_is_refused_at_once, .init = start, .fini = fini)
{
    dt_testproc_t controller;
    char line[400];
    check(CONTROLLER, 0, NULL, NULL);
    start_controller(&controller);
    make_token();
    char *token = dt_test_read_file(at("token"));
    token[strlen(token) - 2] = token[strlen(token) - 2] == '0' ? '1' : '0';
    dt_temptree_write(&tree, "token", token);
    free(token);
    (void)snprintf(line, sizeof line,
                   "setup worker --dir=%%s/w --controller=127.0.0.1:%d --token-file=%%s/token",
                   port_of());
    check(line, 77, "", "nothing was written");
    cr_assert_neq(access(at("w"), F_OK), 0);
    stop_daemon(&controller);
}
