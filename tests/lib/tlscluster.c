#include "lib/tlscluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/testproc.h"

#define MONTH_MS (INT64_C(30) * 24 * 3600 * 1000)

static void write_pair(dt_tlscluster_t *c, const dt_pki_pair_t *pair, const char *name)
{
    char file[64];
    (void)snprintf(file, sizeof file, "%s.pem", name);
    dt_temptree_write(&c->tree, file, pair->certificate);
    (void)snprintf(file, sizeof file, "%s.key", name);
    dt_temptree_write(&c->tree, file, pair->key);
}

static char *path_of(dt_tlscluster_t *c, const char *name, const char *ending, char *path,
                     size_t size)
{
    char file[64];
    (void)snprintf(file, sizeof file, "%s.%s", name, ending);
    (void)snprintf(path, size, "%s", dt_temptree_path(&c->tree, file));
    return path;
}

/* Lines of a daemon's configuration that name its certificate. */
static void certificate_lines(dt_tlscluster_t *c, const char *name, char *lines, size_t size)
{
    char certificate[512], key[512], ca[512];
    (void)snprintf(lines, size, "Certificate=%s\nKey=%s\nCertificateAuthority=%s\n",
                   path_of(c, name, "pem", certificate, sizeof certificate),
                   path_of(c, name, "key", key, sizeof key),
                   path_of(c, "ca", "pem", ca, sizeof ca));
}

void dt_tlscluster_prepare(dt_tlscluster_t *c, int workers)
{
    static const char *const sans[] = {"127.0.0.1", "localhost", DT_TLSCLUSTER_IP};
    dt_pki_pair_t pair;
    memset(c, 0, sizeof *c);
    dt_temptree_init(&c->tree);
    if (dt_pki_make_ca("test", 0, &c->ca, NULL) != DT_OK ||
        dt_pki_make_server(&c->ca, sans, 3, MONTH_MS, &pair, NULL) != DT_OK)
        dt_test_die("no certificates");
    write_pair(c, &c->ca, "ca");
    write_pair(c, &pair, "server");
    dt_pki_pair_fini(&pair);
    for (int i = 0; i < workers; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "w%d", i);
        if (dt_pki_make_client(&c->ca, DT_PKI_ROLE_NODE, name, MONTH_MS, &pair, NULL) != DT_OK)
            dt_test_die("no certificate for %s", name);
        write_pair(c, &pair, name);
        dt_pki_pair_fini(&pair);
    }
}

static void make_key(dt_tlscluster_t *c)
{
    dt_testrun_t run = dt_testcluster_ctl(c->tc, "key", "create", "test", NULL);
    if (run.code != 0)
        dt_test_die("no key: %s", run.err);
    c->key = strdup(run.out);
    if (!c->key)
        dt_test_die("no memory");
    c->key[strcspn(c->key, "\n")] = '\0';
    dt_testrun_fini(&run);
}

void dt_tlscluster_begin(dt_tlscluster_t *c, int workers, const char *lines)
{
    char conf[4096], all[8192];
    c->tc = dt_testcluster_start(
        &(dt_testcluster_options_t){.workers = workers, .use_tcp = true, .is_idle = true});
    (void)snprintf(c->address, sizeof c->address, "%s:%d", c->ip ? c->ip : "127.0.0.1",
                   dt_testcluster_port(c->tc));
    certificate_lines(c, "server", conf, sizeof conf);
    (void)snprintf(all, sizeof all, "%sListen=%s %s\n%s", conf,
                   dt_testcluster_controller_socket(c->tc), c->address,
                   c->controller_lines ? c->controller_lines : "");
    dt_testcluster_set_conf(c->tc, DT_TESTCLUSTER_CONTROLLER, all);
    dt_testcluster_start_daemon(c->tc, DT_TESTCLUSTER_CONTROLLER);
    for (int i = 0; i < workers; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "w%d", i);
        certificate_lines(c, name, conf, sizeof conf);
        (void)snprintf(all, sizeof all, "%sController=%s\n%s", conf, c->address, lines);
        dt_testcluster_set_conf(c->tc, i, all);
        if (c->before)
            c->before(c->arg, i);
        dt_testcluster_spawn(c->tc, i, NULL);
        if (c->after)
            c->after(c->arg, i);
    }
    for (int i = 0; i < workers; i++)
        if (!dt_testcluster_wait_ready(c->tc, i, DT_TESTCLUSTER_PATIENCE_MS) ||
            !dt_testcluster_wait_here(c->tc, i, DT_TESTCLUSTER_PATIENCE_MS))
            dt_test_die("worker %d did not register\n%s", i, dt_testcluster_logs(c->tc));
    make_key(c);
}

void dt_tlscluster_start(dt_tlscluster_t *c, int workers, const char *lines)
{
    dt_tlscluster_prepare(c, workers);
    dt_tlscluster_begin(c, workers, lines);
}

void dt_tlscluster_stop(dt_tlscluster_t *c)
{
    int bad = dt_testcluster_stop(c->tc);
    if (bad)
        dt_test_die("%d complaints about daemons", bad);
    dt_temptree_fini(&c->tree);
    dt_pki_pair_fini(&c->ca);
    free(c->key);
}

dt_session_t *dt_tlscluster_connect(dt_tlscluster_t *c, const char *way, uint32_t vdev_count)
{
    char ca[512];
    dt_session_t *session = NULL;
    dt_error_t err;
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = c->address,
                                    .program = "test",
                                    .api_key = c->key,
                                    .vdev_count = vdev_count,
                                    .certificate_authority = path_of(c, "ca", "pem", ca, sizeof ca),
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    if (setenv("DTORCH_DATA_PATH", way, 1) != 0)
        dt_test_die("no environment");
    if (dt_connect(&options, &session, &err) != DT_OK)
        dt_test_die("%s\n%s", err.text, dt_testcluster_logs(c->tc));
    (void)unsetenv("DTORCH_DATA_PATH");
    return session;
}
