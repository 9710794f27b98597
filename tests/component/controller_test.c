/* The controller daemon by itself: what it refuses to start with, what it keeps over restarts, who
 * may ask it for what, reloads, certificates and joining. Workers are played by the test. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/version.h"
#include "dtorch/v1/session.pb-c.h"
#include "dtorch/v1/worker.pb-c.h"
#include "grpc/health/v1/health.pb-c.h"
#include "lib/rawpeer.h"
#include "lib/testcluster.h"
#include "pki/pki.h"
#include "rpc/rpc.h"

#define CTRL    DT_TESTCLUSTER_CONTROLLER
#define LONG_MS DT_TESTCLUSTER_PATIENCE_MS
#define CALL_MS LONG_MS
#define HOUR_MS INT64_C(3600000)

TestSuite(controller, .timeout = 600);

/* ---- helpers ---- */

static dt_testcluster_t *alone(const char *conf)
{
    return dt_testcluster_start(&(dt_testcluster_options_t){.controller_conf = conf});
}

static void stop(dt_testcluster_t *tc)
{
    cr_assert_eq(dt_testcluster_stop(tc), 0, "the controller left something behind, see above");
}

static void restart(dt_testcluster_t *tc, int signo)
{
    int code;
    dt_testcluster_kill(tc, CTRL, signo);
    cr_assert(dt_testcluster_wait_exit(tc, CTRL, LONG_MS, &code));
    cr_assert_eq(code, signo == SIGTERM ? 0 : 128 + signo, "exit %d\n%s", code,
                 dt_testcluster_logs(tc));
    dt_testcluster_start_daemon(tc, CTRL);
}

static void expect_exit(dt_testcluster_t *tc, int wanted, const char *text)
{
    int code = -1;
    dt_testcluster_spawn(tc, CTRL, NULL);
    cr_assert(dt_testcluster_wait_exit(tc, CTRL, LONG_MS, &code), "it runs\n%s",
              dt_testcluster_logs(tc));
    cr_assert_eq(code, wanted, "exit %d, not %d\n%s", code, wanted, dt_testcluster_logs(tc));
    cr_assert_gt(dt_testcluster_log_count(tc, CTRL, text), 0, "no line says '%s'\n%s", text,
                 dt_testcluster_logs(tc));
}

/* Call a unary method. Gives the reply, or NULL and *err. */
static void *call(const char *address, const dt_rpc_tls_t *tls, const char *method,
                  const ProtobufCMessage *request, const ProtobufCMessageDescriptor *type,
                  dt_error_t *err)
{
    uint8_t packed[16384], *reply;
    size_t size;
    void *message;
    cr_assert_leq(protobuf_c_message_get_packed_size(request), sizeof packed);
    if (dt_rpc_call_blocking(address, tls, method, packed, protobuf_c_message_pack(request, packed),
                             CALL_MS, &reply, &size, err) != DT_OK)
        return NULL;
    message = protobuf_c_message_unpack(type, NULL, size, reply);
    cr_assert_not_null(message, "%s answered noise", method);
    free(reply);
    return message;
}

/* A worker that says hello and no more. Gives the first answer. */
static Dtorch__V1__WorkerDown *hello(const char *address, const dt_rpc_tls_t *tls, const char *name,
                                     uint8_t id, uint64_t incarnation, dt_rpc_reader_t **ret_reader,
                                     dt_error_t *err)
{
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    Dtorch__V1__WorkerHello hello = DTORCH__V1__WORKER_HELLO__INIT;
    Dtorch__V1__WorkerUp up = DTORCH__V1__WORKER_UP__INIT;
    Dtorch__V1__WorkerDown *down = NULL;
    char boot_id[] = "01234567-89ab-cdef-0123-456789abcdef", build[] = "test", hash[17] = "";
    uint8_t node_id[16], packed[1024], *data;
    size_t size;
    memset(node_id, id, sizeof node_id);
    memset(hash, '0', 16);
    version.major = 1;
    hello.version = &version;
    hello.build = build;
    hello.node_id = (ProtobufCBinaryData){.data = node_id, .len = sizeof node_id};
    hello.node_name = (char *)(uintptr_t)name;
    hello.incarnation = incarnation;
    hello.boot_id = boot_id;
    hello.config_hash = hash;
    hello.pid = 1;
    up.kind_case = DTORCH__V1__WORKER_UP__KIND_HELLO;
    up.hello = &hello;
    if (dt_rpc_reader_open(address, tls, "/dtorch.v1.Worker/Stream", true, packed,
                           dtorch__v1__worker_up__pack(&up, packed), CALL_MS, ret_reader,
                           err) != DT_OK)
        return NULL;
    if (dt_rpc_reader_next(*ret_reader, CALL_MS, &data, &size, err) == DT_OK) {
        down = dtorch__v1__worker_down__unpack(NULL, size, data);
        free(data);
    } else {
        dt_rpc_reader_free(*ret_reader);
    }
    return down;
}

/* Register a node, so that there is one to act on; it is gone at once. */
static void add_node(dt_testcluster_t *tc, const char *name, uint8_t id)
{
    dt_rpc_reader_t *reader;
    dt_error_t err;
    Dtorch__V1__WorkerDown *down =
        hello(dt_testcluster_controller_socket(tc), NULL, name, id, 1, &reader, &err);
    cr_assert_not_null(down, "%s\n%s", err.text, dt_testcluster_logs(tc));
    cr_assert_eq(down->kind_case, DTORCH__V1__WORKER_DOWN__KIND_WELCOME, "%s",
                 dt_testcluster_logs(tc));
    dtorch__v1__worker_down__free_unpacked(down, NULL);
    dt_rpc_reader_free(reader);
}

static Dtorch__V1__Node *only_node(dt_testcluster_t *tc, Dtorch__V1__NodeList **ret_list)
{
    *ret_list = dt_testcluster_nodes(tc);
    cr_assert_not_null(*ret_list, "%s", dt_testcluster_logs(tc));
    cr_assert_eq((*ret_list)->n_nodes, 1);
    return (*ret_list)->nodes[0];
}

static dt_status_t label(dt_testcluster_t *tc, const char *key, const char *value)
{
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    Dtorch__V1__Label one = DTORCH__V1__LABEL__INIT, *labels[] = {&one};
    char name[] = "w0", *names[] = {name}, *reply = NULL;
    size_t size;
    dt_status_t status;
    one.key = (char *)(uintptr_t)key;
    one.value = (char *)(uintptr_t)value;
    request.names = names;
    request.n_names = 1;
    request.change = DTORCH__V1__SET_NODE_REQUEST__CHANGE__LABEL;
    request.set_labels = labels;
    request.n_set_labels = 1;
    status =
        dt_testcluster_admin_call(tc, "SetNode", &request.base, (uint8_t **)&reply, &size, NULL);
    free(reply);
    return status;
}

/* ---- start and stop ---- */

Test(controller, is_ready_and_says_where_it_listens)
{
    dt_testcluster_t *tc = alone(NULL);
    Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
    char *answer;
    cr_assert_not_null(status);
    cr_assert_eq(status->n_listens, 2);
    cr_assert_str_eq(status->listens[0], dt_testcluster_controller_socket(tc));
    cr_assert_not_null(strstr(status->listens[1], "127.0.0.1:"));
    cr_assert_str_eq(status->version, "1.0");
    cr_assert_str_eq(status->build, dt_version());
    cr_assert(status->is_private);
    cr_assert_gt(dt_testcluster_log_count(tc, CTRL, "private: no TLS"), 0);
    cr_assert_str_eq(status->journal->directory, dt_testcluster_state_dir(tc, CTRL));
    cr_assert_eq(status->epoch, 1);
    dtorch__v1__cluster_status__free_unpacked(status, NULL);
    answer = dt_test_http_get(dt_testcluster_metrics_port(tc, CTRL), "/readyz");
    cr_assert(answer && strstr(answer, "200 OK"), "%s", answer ? answer : "no answer");
    free(answer);
    answer = dt_test_http_get(dt_testcluster_metrics_port(tc, CTRL), "/metrics");
    cr_assert(answer && strstr(answer, "\ndtorch_epoch 1\n") &&
                  strstr(answer, "# TYPE dtorch_journal_fsync_seconds histogram"),
              "%s", answer ? answer : "no answer");
    free(answer);
    answer = dt_test_http_get(dt_testcluster_metrics_port(tc, CTRL), "/other");
    cr_assert(answer && strstr(answer, "404"), "%s", answer ? answer : "no answer");
    free(answer);
    stop(tc);
}

struct drip {
    int fds[64];
    atomic_bool is_over;
};

/* A byte now and then of a request that never ends. */
static void *drip_on(void *arg)
{
    struct drip *drip = arg;
    while (!atomic_load(&drip->is_over)) {
        for (size_t i = 0; i < sizeof drip->fds / sizeof *drip->fds; i++)
            (void)!send(drip->fds[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        dt_test_pause_ms(20);
    }
    return NULL;
}

Test(controller, answers_on_its_metrics_port_beside_as_many_slow_clients_as_may_be)
{
    dt_testcluster_t *tc = alone(NULL);
    struct drip drip = {.is_over = false};
    pthread_t thread;
    char port[16], *answer;
    Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
    cr_assert_not_null(status); /* it is ready */
    dtorch__v1__cluster_status__free_unpacked(status, NULL);
    (void)snprintf(port, sizeof port, "%d", dt_testcluster_metrics_port(tc, CTRL));
    for (size_t i = 0; i < sizeof drip.fds / sizeof *drip.fds; i++) {
        drip.fds[i] = dt_rawpeer_connect(port);
        cr_assert_geq(drip.fds[i], 0);
        cr_assert_eq(send(drip.fds[i], "GET /", 5, MSG_NOSIGNAL), 5);
    }
    cr_assert_eq(pthread_create(&thread, NULL, drip_on, &drip), 0);
    answer = dt_test_http_get(dt_testcluster_metrics_port(tc, CTRL), "/readyz");
    cr_assert(answer && strstr(answer, "200 OK"), "%s", answer ? answer : "no answer");
    free(answer);
    atomic_store(&drip.is_over, true);
    (void)pthread_join(thread, NULL);
    for (size_t i = 0; i < sizeof drip.fds / sizeof *drip.fds; i++)
        (void)close(drip.fds[i]);
    stop(tc);
}

Test(controller, keeps_its_state_directory_to_itself)
{
    dt_testcluster_t *tc = alone(NULL);
    struct stat st;
    cr_assert_eq(stat(dt_testcluster_state_dir(tc, CTRL), &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700);
    cr_assert_eq(stat(dt_testcluster_admin_socket(tc), &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0660);
    stop(tc);
}

Test(controller, wrong_values_end_it_with_78)
{
    static const char *const wrong[][2] = {
        {"DeadBeats=3", "must be above SuspectBeats"},
        {"Certificate=/nowhere/c.pem", "CertificateAuthority"},
        {"Certificate=/nowhere/c.pem\nKey=/nowhere/k.pem\nCertificateAuthority=/nowhere/a.pem",
         "/nowhere/c.pem"},
        {"MetricsListen=0.0.0.0:0", "MetricsListen=0.0.0.0:0 needs TLS"},
        {"StatusListen=0.0.0.0:0", "StatusListen=0.0.0.0:0 needs TLS"},
        {"StateDirectory=/nowhere/at/all", "/nowhere/at/all"},
        {"AdminSocket=/nowhere/admin.sock", "/nowhere/admin.sock"},
    };
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.is_idle = true});
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dt_testcluster_set_conf(tc, CTRL, wrong[i][0]);
        expect_exit(tc, 78, wrong[i][1]);
    }
    stop(tc);
}

Test(controller, an_address_that_is_not_ours_ends_it_with_69)
{
    dt_testcluster_t *tc = dt_testcluster_start(&(dt_testcluster_options_t){.is_idle = true});
    dt_testcluster_set_conf(tc, CTRL, "Insecure=yes\nListen=192.0.2.1:7700");
    expect_exit(tc, 69, "192.0.2.1:7700");
    stop(tc);
}

Test(controller, a_second_one_on_the_state_directory_ends_with_75)
{
    dt_testcluster_t *tc = alone(NULL);
    char admin[600], listen[600];
    const char *args[] = {"--config",
                          dt_testcluster_conf_file(tc, CTRL),
                          "--listen",
                          listen,
                          "--admin-socket",
                          admin,
                          "--metrics-listen",
                          "none",
                          NULL};
    dt_testrun_t run;
    (void)snprintf(listen, sizeof listen, "%s/tmp/other.sock", dt_testcluster_dir(tc));
    (void)snprintf(admin, sizeof admin, "%s/tmp/admin.sock", dt_testcluster_dir(tc));
    run = dt_testrun_program("dtorch-controllerd", args, NULL);
    cr_assert_eq(run.code, 75, "exit %d: %s", run.code, run.err);
    dt_testrun_fini(&run);
    dtorch__v1__cluster_status__free_unpacked(dt_testcluster_status(tc), NULL);
    stop(tc);
}

/* The one journal file of a fresh controller. */
static void journal_path(dt_testcluster_t *tc, char path[600])
{
    char pattern[600];
    glob_t found;
    (void)snprintf(pattern, sizeof pattern, "%s/journal-*.log", dt_testcluster_state_dir(tc, CTRL));
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0);
    (void)snprintf(path, 600, "%s", found.gl_pathv[found.gl_pathc - 1]);
    globfree(&found);
}

Test(controller, a_damaged_journal_ends_it_with_65_and_a_torn_one_does_not)
{
    dt_testcluster_t *tc = alone(NULL);
    char path[600];
    FILE *file;
    restart(tc, SIGTERM);
    dt_testcluster_kill(tc, CTRL, SIGKILL);
    cr_assert(dt_testcluster_wait_exit(tc, CTRL, LONG_MS, &(int){0}));
    journal_path(tc, path);
    file = fopen(path, "ae");
    cr_assert(file && fwrite("half a record", 13, 1, file) == 1 && fclose(file) == 0);
    dt_testcluster_start_daemon(tc, CTRL);
    cr_assert_gt(dt_testcluster_log_count(tc, CTRL, "torn end was cut"), 0, "%s",
                 dt_testcluster_logs(tc));
    dt_testcluster_kill(tc, CTRL, SIGTERM);
    cr_assert(dt_testcluster_wait_exit(tc, CTRL, LONG_MS, &(int){0}));
    file = fopen(path, "r+e");
    cr_assert(file && fseek(file, 60, SEEK_SET) == 0 && fwrite("\xff\xff\xff", 3, 1, file) == 1 &&
              fclose(file) == 0);
    expect_exit(tc, 65, "is damaged at offset");
    cr_assert_gt(dt_testcluster_log_count(tc, CTRL, path), 0);
    stop(tc);
}

/* ---- what is kept ---- */

Test(controller, a_restart_keeps_drains_labels_events_and_identity)
{
    dt_testcluster_t *tc = alone(NULL);
    Dtorch__V1__NodeList *list;
    Dtorch__V1__ClusterStatus *before, *after;
    Dtorch__V1__EventList *events;
    Dtorch__V1__Node *node;
    uint64_t last;
    add_node(tc, "w0", 1);
    cr_assert_eq(
        dt_testcluster_set_node(tc, 0, DTORCH__V1__SET_NODE_REQUEST__CHANGE__DRAIN, "fan 2", NULL),
        DT_OK);
    cr_assert_eq(label(tc, "rack", "r12"), DT_OK);
    before = dt_testcluster_status(tc);
    last = dt_testcluster_last_event(tc);
    for (int i = 0; i < 2; i++) {
        restart(tc, i ? SIGKILL : SIGTERM);
        node = only_node(tc, &list);
        cr_assert_str_eq(node->name, "w0");
        cr_assert_eq(node->admin, DTORCH__V1__NODE_INTENT__ADMIN__DRAINED);
        cr_assert_str_eq(node->reason, "fan 2");
        cr_assert_not_null(strstr(node->reason_by, "uid"), "%s", node->reason_by);
        cr_assert_eq(node->n_labels, 1);
        cr_assert_str_eq(node->labels[0]->value, "r12");
        dtorch__v1__node_list__free_unpacked(list, NULL);
    }
    after = dt_testcluster_status(tc);
    cr_assert_eq(after->epoch, before->epoch + 2);
    cr_assert_arr_eq(after->cluster_id.data, before->cluster_id.data, 16);
    dtorch__v1__cluster_status__free_unpacked(before, NULL);
    dtorch__v1__cluster_status__free_unpacked(after, NULL);
    events = dt_testcluster_events(tc, 0);
    cr_assert_gt(events->n_events, 2);
    cr_assert_eq(events->events[0]->sequence, 1);
    cr_assert_gt(events->events[events->n_events - 1]->sequence, last);
    for (size_t i = 1; i < events->n_events; i++)
        cr_assert_eq(events->events[i]->sequence, i + 1, "events have a gap");
    dtorch__v1__event_list__free_unpacked(events, NULL);
    stop(tc);
}

static bool is_journal_failing(dt_testcluster_t *tc, void *arg)
{
    Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
    bool is_failing = status && status->journal && status->journal->is_failing;
    (void)arg;
    if (status)
        dtorch__v1__cluster_status__free_unpacked(status, NULL);
    return is_failing;
}

Test(controller, promises_nothing_when_its_journal_was_removed)
{
    dt_testcluster_t *tc = alone(NULL);
    char pattern[600];
    glob_t found;
    add_node(tc, "w0", 7);
    (void)snprintf(pattern, sizeof pattern, "%s/journal-*", dt_testcluster_state_dir(tc, CTRL));
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        cr_assert_eq(unlink(found.gl_pathv[i]), 0);
    globfree(&found);
    cr_assert_neq(label(tc, "zone", "a"), DT_OK);
    cr_assert(dt_testcluster_wait(tc, is_journal_failing, NULL, LONG_MS), "%s",
              dt_testcluster_logs(tc));
    dt_testcluster_kill(tc, CTRL, SIGKILL); /* it would wait for its disk */
    stop(tc);
}

Test(controller, snapshots_take_the_place_of_old_records)
{
    dt_testcluster_t *tc = alone("JournalSnapshotRecords=100");
    char pattern[600], value[16];
    Dtorch__V1__NodeList *list;
    Dtorch__V1__Node *node;
    glob_t found;
    add_node(tc, "w0", 1);
    for (int i = 0; i < 300; i++) {
        (void)snprintf(value, sizeof value, "v%d", i);
        cr_assert_eq(label(tc, "n", value), DT_OK, "%s", dt_testcluster_logs(tc));
    }
    restart(tc, SIGKILL);
    (void)snprintf(pattern, sizeof pattern, "%s/snapshot-*.snap",
                   dt_testcluster_state_dir(tc, CTRL));
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0, "no snapshot\n%s", dt_testcluster_logs(tc));
    cr_assert_leq(found.gl_pathc, 2);
    globfree(&found);
    node = only_node(tc, &list);
    cr_assert_eq(node->n_labels, 1);
    cr_assert_str_eq(node->labels[0]->value, "v299");
    dtorch__v1__node_list__free_unpacked(list, NULL);
    stop(tc);
}

/* ---- who may ask for what ---- */

Test(controller, loopback_may_look_and_not_change)
{
    dt_testcluster_t *tc = alone(NULL);
    Dtorch__V1__GetClusterRequest look = DTORCH__V1__GET_CLUSTER_REQUEST__INIT;
    Dtorch__V1__SetNodeRequest change = DTORCH__V1__SET_NODE_REQUEST__INIT;
    Dtorch__V1__ListTokensRequest tokens = DTORCH__V1__LIST_TOKENS_REQUEST__INIT;
    char address[64], name[] = "w0", *names[] = {name};
    dt_error_t err;
    void *reply;
    change.names = names;
    change.n_names = 1;
    change.change = DTORCH__V1__SET_NODE_REQUEST__CHANGE__UNDRAIN;
    (void)snprintf(address, sizeof address, "127.0.0.1:%d", dt_testcluster_port(tc));
    reply = call(address, NULL, "/dtorch.v1.Admin/GetCluster", &look.base,
                 &dtorch__v1__cluster_status__descriptor, &err);
    cr_assert_not_null(reply, "%s", err.text);
    protobuf_c_message_free_unpacked(reply, NULL);
    for (int i = 0; i < 2; i++) {
        const char *at = i ? dt_testcluster_controller_socket(tc) : address;
        cr_assert_null(call(at, NULL, "/dtorch.v1.Admin/SetNode", &change.base,
                            &dtorch__v1__node_list__descriptor, &err));
        cr_assert_eq(err.code, DT_ERR_DENIED, "%s", err.text);
        cr_assert_not_null(strstr(err.text, "operator"), "%s", err.text);
        cr_assert_null(call(at, NULL, "/dtorch.v1.Admin/ListTokens", &tokens.base,
                            &dtorch__v1__token_list__descriptor, &err));
        cr_assert_eq(err.code, DT_ERR_DENIED, "%s", err.text);
    }
    stop(tc);
}

Test(controller, the_admin_socket_takes_no_workers)
{
    dt_testcluster_t *tc = alone(NULL);
    dt_rpc_reader_t *reader;
    dt_error_t err;
    cr_assert_null(hello(dt_testcluster_admin_socket(tc), NULL, "w0", 1, 1, &reader, &err));
    cr_assert_eq(err.code, DT_ERR_DENIED, "%s", err.text);
    stop(tc);
}

Test(controller, a_session_without_a_device_or_of_another_major_version_is_refused_by_name)
{
    dt_testcluster_t *tc = alone(NULL);
    for (uint32_t major = 1; major <= 2; major++) {
        Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
        Dtorch__V1__SessionHello greeting = DTORCH__V1__SESSION_HELLO__INIT;
        Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
        Dtorch__V1__SessionDown *down;
        uint8_t packed[256], *data;
        dt_rpc_reader_t *reader;
        dt_error_t err;
        size_t size;
        version.major = major;
        greeting.version = &version;
        up.kind_case = DTORCH__V1__SESSION_UP__KIND_HELLO;
        up.hello = &greeting;
        cr_assert_eq(dt_rpc_reader_open(dt_testcluster_controller_socket(tc), NULL,
                                        "/dtorch.v1.Session/Stream", true, packed,
                                        dtorch__v1__session_up__pack(&up, packed), CALL_MS, &reader,
                                        &err),
                     DT_OK, "%s", err.text);
        cr_assert_eq(dt_rpc_reader_next(reader, CALL_MS, &data, &size, &err), DT_OK, "%s",
                     err.text);
        down = dtorch__v1__session_down__unpack(NULL, size, data);
        free(data);
        cr_assert_eq(down->kind_case, DTORCH__V1__SESSION_DOWN__KIND_REFUSAL);
        cr_assert_eq(down->refusal->code, major == 1 ? DTORCH__V1__REFUSAL__CODE__LIMIT
                                                     : DTORCH__V1__REFUSAL__CODE__VERSION);
        cr_assert_not_null(strstr(down->refusal->text, major == 1 ? "device" : "2.0"), "%s",
                           down->refusal->text);
        dtorch__v1__session_down__free_unpacked(down, NULL);
        dt_rpc_reader_free(reader);
    }
    stop(tc);
}

static Grpc__Health__V1__HealthCheckResponse *check_health(dt_testcluster_t *tc,
                                                           const char *service, dt_error_t *err)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    request.service = (char *)(uintptr_t)service;
    return call(dt_testcluster_controller_socket(tc), NULL, "/grpc.health.v1.Health/Check",
                &request.base, &grpc__health__v1__health_check_response__descriptor, err);
}

Test(controller, answers_the_standard_health_service)
{
    static const char *const serving[] = {"", "dtorch.v1.Worker", "dtorch.v1.Admin"};
    dt_testcluster_t *tc = alone(NULL);
    Grpc__Health__V1__HealthCheckResponse *response;
    dt_error_t err;
    for (size_t i = 0; i < 3; i++) {
        response = check_health(tc, serving[i], &err);
        cr_assert(response && response->status == 1, "%s", serving[i]);
        grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    }
    response = check_health(tc, "dtorch.v1.Session", &err);
    cr_assert(response && response->status == 2);
    grpc__health__v1__health_check_response__free_unpacked(response, NULL);
    cr_assert_null(check_health(tc, "no.such.Service", &err));
    cr_assert_eq(err.code, DT_ERR_NOT_FOUND, "%s", err.text);
    stop(tc);
}

Test(controller, tells_health_watchers_when_it_stops)
{
    dt_testcluster_t *tc = alone(NULL);
    Grpc__Health__V1__HealthCheckResponse *response;
    dt_rpc_reader_t *reader;
    uint8_t *data;
    dt_error_t err;
    size_t size;
    cr_assert_eq(dt_rpc_reader_open(dt_testcluster_controller_socket(tc), NULL,
                                    "/grpc.health.v1.Health/Watch", false, "", 0, CALL_MS, &reader,
                                    &err),
                 DT_OK, "%s", err.text);
    for (unsigned status = 1; status <= 2; status++) {
        cr_assert_eq(dt_rpc_reader_next(reader, CALL_MS, &data, &size, &err), DT_OK, "%s",
                     err.text);
        response = grpc__health__v1__health_check_response__unpack(NULL, size, data);
        free(data);
        cr_assert_eq((unsigned)response->status, status);
        grpc__health__v1__health_check_response__free_unpacked(response, NULL);
        if (status == 1)
            dt_testcluster_kill(tc, CTRL, SIGTERM);
    }
    cr_assert_neq(dt_rpc_reader_next(reader, CALL_MS, &data, &size, &err), DT_OK);
    dt_rpc_reader_free(reader);
    cr_assert(dt_testcluster_wait_exit(tc, CTRL, LONG_MS, &(int){0}));
    stop(tc);
}

Test(controller, followers_get_events_as_they_happen)
{
    dt_testcluster_t *tc = alone(NULL);
    Dtorch__V1__ListEventsRequest request = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    uint8_t packed[64], *data;
    dt_rpc_reader_t *reader;
    bool was_seen = false;
    dt_error_t err;
    size_t size;
    request.after_sequence = dt_testcluster_last_event(tc);
    cr_assert_eq(dt_rpc_reader_open(dt_testcluster_admin_socket(tc), NULL,
                                    "/dtorch.v1.Admin/FollowEvents", false, packed,
                                    dtorch__v1__list_events_request__pack(&request, packed),
                                    CALL_MS, &reader, &err),
                 DT_OK, "%s", err.text);
    add_node(tc, "w0", 1);
    while (!was_seen) {
        Dtorch__V1__EventList *list;
        cr_assert_eq(dt_rpc_reader_next(reader, CALL_MS, &data, &size, &err), DT_OK, "%s\n%s",
                     err.text, dt_testcluster_logs(tc));
        list = dtorch__v1__event_list__unpack(NULL, size, data);
        free(data);
        for (size_t i = 0; i < list->n_events; i++) {
            cr_assert_eq(list->events[i]->sequence, ++request.after_sequence, "a gap");
            was_seen |= strcmp(list->events[i]->name, "node-dead") == 0;
        }
        dtorch__v1__event_list__free_unpacked(list, NULL);
    }
    dt_rpc_reader_free(reader);
    stop(tc);
}

Test(controller, diagnostics_name_every_part_and_every_bound)
{
    static const char *const parts[] = {"loop", "daemon", "rpc", "journal", "core"};
    dt_testcluster_t *tc = alone(NULL);
    Dtorch__V1__GetDiagnosticsRequest request = DTORCH__V1__GET_DIAGNOSTICS_REQUEST__INIT;
    Dtorch__V1__Diagnostics *all;
    dt_error_t err;
    size_t seen = 0, bounds = 0;
    all = call(dt_testcluster_admin_socket(tc), NULL, "/dtorch.v1.Admin/GetDiagnostics",
               &request.base, &dtorch__v1__diagnostics__descriptor, &err);
    cr_assert_not_null(all, "%s", err.text);
    for (size_t part = 0; part < 5; part++) {
        size_t before = seen;
        for (size_t i = 0; i < all->n_items && seen == before; i++)
            seen += strcmp(all->items[i]->part, parts[part]) == 0;
        cr_assert_gt(seen, before, "nothing of %s", parts[part]);
    }
    for (size_t i = 0; i < all->n_items; i++)
        bounds += *all->items[i]->bound != '\0';
    cr_assert_gt(bounds, 8);
    dtorch__v1__diagnostics__free_unpacked(all, NULL);
    stop(tc);
}

/* ---- reload ---- */

static void reload(dt_testcluster_t *tc, const char *conf, const char *text)
{
    int before = dt_testcluster_log_count(tc, CTRL, text);
    int64_t deadline = dt_test_now_ms() + LONG_MS;
    dt_testcluster_set_conf(tc, CTRL, conf);
    dt_testcluster_kill(tc, CTRL, SIGHUP);
    while (dt_testcluster_log_count(tc, CTRL, text) == before) {
        cr_assert_lt(dt_test_now_ms(), deadline, "no line says '%s'\n%s", text,
                     dt_testcluster_logs(tc));
        dt_test_pause_ms(20);
    }
}

/* The value of a key, as the controller says. */
static void config_value(dt_testcluster_t *tc, const char *key, char value[256])
{
    Dtorch__V1__GetConfigRequest request = DTORCH__V1__GET_CONFIG_REQUEST__INIT;
    Dtorch__V1__ConfigList *list;
    dt_error_t err;
    list = call(dt_testcluster_admin_socket(tc), NULL, "/dtorch.v1.Admin/GetConfig", &request.base,
                &dtorch__v1__config_list__descriptor, &err);
    cr_assert_not_null(list, "%s", err.text);
    value[0] = '\0';
    for (size_t i = 0; i < list->n_items; i++) {
        if (strcmp(list->items[i]->key, key) == 0)
            (void)snprintf(value, 256, "%s", list->items[i]->value);
    }
    dtorch__v1__config_list__free_unpacked(list, NULL);
}

Test(controller, reloads_all_or_nothing_and_drops_no_connection)
{
    dt_testcluster_t *tc = alone(NULL);
    dt_rpc_reader_t *reader;
    char value[256];
    uint8_t *data;
    dt_error_t err;
    size_t size;
    cr_assert_eq(dt_rpc_reader_open(dt_testcluster_controller_socket(tc), NULL,
                                    "/grpc.health.v1.Health/Watch", false, "", 0, CALL_MS, &reader,
                                    &err),
                 DT_OK);
    cr_assert_eq(dt_rpc_reader_next(reader, CALL_MS, &data, &size, &err), DT_OK);
    free(data);
    reload(tc, "HeartbeatInterval=300ms", "configuration reloaded");
    config_value(tc, "HeartbeatInterval", value);
    cr_assert_str_eq(value, "300ms");
    reload(tc, "HeartbeatInterval=400ms\nNodesMax=5", "configuration not reloaded");
    cr_assert_gt(dt_testcluster_log_count(tc, CTRL, "NodesMax"), 0);
    reload(tc, "HeartbeatInterval=400ms\nNonsense=1", "configuration not reloaded");
    reload(tc, "HeartbeatInterval=400ms\nListen=0.0.0.0:0", "configuration not reloaded");
    config_value(tc, "HeartbeatInterval", value);
    cr_assert_str_eq(value, "300ms");
    cr_assert_eq(dt_rpc_reader_next(reader, 10, &data, &size, &err), DT_ERR_AGAIN,
                 "the connection was dropped: %s", err.text);
    dt_rpc_reader_free(reader);
    stop(tc);
}

/* ---- certificates ---- */

struct pki {
    dt_pki_pair_t ca, server, admin;
    char conf[2048];
};

static void write_pem(dt_testcluster_t *tc, const char *name, const char *text)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/conf/%s", dt_testcluster_dir(tc), name);
    dt_test_write_file(path, text);
}

static void make_server(dt_testcluster_t *tc, struct pki *pki, int64_t lifetime_ms)
{
    const char *sans[] = {"localhost", "127.0.0.1"};
    dt_error_t err;
    dt_pki_pair_fini(&pki->server);
    cr_assert_eq(dt_pki_make_server(&pki->ca, sans, 2, lifetime_ms, &pki->server, &err), DT_OK,
                 "%s", err.text);
    write_pem(tc, "c.pem", pki->server.certificate);
    write_pem(tc, "c.key", pki->server.key);
}

static void make_pki(dt_testcluster_t *tc, struct pki *pki, const char *more)
{
    const char *dir = dt_testcluster_dir(tc);
    dt_error_t err;
    memset(pki, 0, sizeof *pki);
    cr_assert_eq(dt_pki_make_ca("test", 0, &pki->ca, &err), DT_OK, "%s", err.text);
    make_server(tc, pki, HOUR_MS);
    cr_assert_eq(dt_pki_make_client(&pki->ca, DT_PKI_ROLE_ADMIN, "ana", HOUR_MS, &pki->admin, &err),
                 DT_OK, "%s", err.text);
    write_pem(tc, "ca.pem", pki->ca.certificate);
    write_pem(tc, "ca.key", pki->ca.key);
    (void)snprintf(pki->conf, sizeof pki->conf,
                   "Certificate=%s/conf/c.pem\nKey=%s/conf/c.key\nCertificateAuthority=%s/conf/"
                   "ca.pem\nCertificateAuthorityKey=%s/conf/ca.key\n%s",
                   dir, dir, dir, dir, more);
    dt_testcluster_set_conf(tc, CTRL, pki->conf);
}

static void free_pki(struct pki *pki)
{
    dt_pki_pair_fini(&pki->ca);
    dt_pki_pair_fini(&pki->server);
    dt_pki_pair_fini(&pki->admin);
}

static dt_testcluster_t *idle(void)
{
    return dt_testcluster_start(&(dt_testcluster_options_t){.is_idle = true});
}

static void tcp_address(dt_testcluster_t *tc, char address[64])
{
    (void)snprintf(address, 64, "127.0.0.1:%d", dt_testcluster_port(tc));
}

Test(controller, a_certificate_that_expired_or_is_anothers_ends_it_with_78)
{
    dt_testcluster_t *tc = idle();
    dt_pki_pair_t other;
    struct pki pki;
    dt_error_t err;
    make_pki(tc, &pki, "");
    make_server(tc, &pki, 1000);
    dt_test_pause_ms(2100); /* the shortest life that a certificate can have, and over */
    expect_exit(tc, 78, "expired");
    cr_assert_eq(dt_pki_make_ca("other", 0, &other, &err), DT_OK);
    make_server(tc, &pki, HOUR_MS);
    write_pem(tc, "ca.pem", other.certificate);
    expect_exit(tc, 78, "c.pem");
    write_pem(tc, "ca.pem", pki.ca.certificate);
    write_pem(tc, "c.key", other.key);
    expect_exit(tc, 78, "key");
    write_pem(tc, "c.key", "no PEM at all\n");
    expect_exit(tc, 78, "Key=");
    dt_pki_pair_fini(&other);
    free_pki(&pki);
    stop(tc);
}

Test(controller, an_admins_certificate_may_change_things_from_afar)
{
    dt_testcluster_t *tc = idle();
    Dtorch__V1__CreateTokenRequest request = DTORCH__V1__CREATE_TOKEN_REQUEST__INIT;
    Dtorch__V1__CreateTokenReply *reply;
    Dtorch__V1__ClusterStatus *status;
    struct pki pki;
    char address[64];
    dt_error_t err;
    make_pki(tc, &pki, "");
    dt_testcluster_start_daemon(tc, CTRL);
    tcp_address(tc, address);
    const dt_rpc_tls_t bare = {.ca = pki.ca.certificate};
    const dt_rpc_tls_t admin = {
        .ca = pki.ca.certificate, .certificate = pki.admin.certificate, .key = pki.admin.key};
    cr_assert_null(call(address, &bare, "/dtorch.v1.Admin/CreateToken", &request.base,
                        &dtorch__v1__create_token_reply__descriptor, &err));
    cr_assert_eq(err.code, DT_ERR_DENIED, "%s", err.text);
    reply = call(address, &admin, "/dtorch.v1.Admin/CreateToken", &request.base,
                 &dtorch__v1__create_token_reply__descriptor, &err);
    cr_assert_not_null(reply, "%s", err.text);
    cr_assert_not_null(strstr(reply->info->by, "admin ana"), "%s", reply->info->by);
    dtorch__v1__create_token_reply__free_unpacked(reply, NULL);
    status = dt_testcluster_status(tc);
    cr_assert(!status->is_private);
    dtorch__v1__cluster_status__free_unpacked(status, NULL);
    free_pki(&pki);
    stop(tc);
}

/* Ask to join. Gives the reply or NULL and *err; *ret_key is the key that was made. */
static Dtorch__V1__JoinReply *join(const char *address, const dt_rpc_tls_t *tls, const char *token,
                                   const char *name, uint8_t id, char **ret_key, dt_error_t *err)
{
    Dtorch__V1__ProtocolVersion version = DTORCH__V1__PROTOCOL_VERSION__INIT;
    Dtorch__V1__JoinRequest request = DTORCH__V1__JOIN_REQUEST__INIT;
    Dtorch__V1__JoinReply *reply;
    uint8_t node_id[16];
    char *csr = NULL;
    version.major = 1;
    memset(node_id, id, sizeof node_id);
    cr_assert_eq(dt_pki_make_csr(name, &csr, ret_key, err), DT_OK);
    request.version = &version;
    request.token = (char *)(uintptr_t)token;
    request.node_name = (char *)(uintptr_t)name;
    request.node_id = (ProtobufCBinaryData){.data = node_id, .len = sizeof node_id};
    request.csr_pem = csr;
    reply = call(address, tls, "/dtorch.v1.Worker/Join", &request.base,
                 &dtorch__v1__join_reply__descriptor, err);
    free(csr);
    return reply;
}

static void expect_no_join(const char *address, const dt_rpc_tls_t *tls, const char *token,
                           const char *name)
{
    char *key = NULL;
    dt_error_t err;
    cr_assert_null(join(address, tls, token, name, 9, &key, &err), "%s joined", name);
    cr_assert_eq(err.code, DT_ERR_DENIED, "%s", err.text);
    cr_assert(strlen(token) < 20 || !strstr(err.text, token), "the token is told: %s", err.text);
    dt_pki_key_free(key);
}

Test(controller, a_token_gives_one_node_a_certificate_that_only_it_can_use)
{
    dt_testcluster_t *tc = idle();
    Dtorch__V1__CreateTokenRequest request = DTORCH__V1__CREATE_TOKEN_REQUEST__INIT;
    Dtorch__V1__CreateTokenReply *token;
    Dtorch__V1__JoinReply *joined, *renewed;
    Dtorch__V1__WorkerDown *down;
    dt_rpc_reader_t *reader;
    struct pki pki;
    char address[64], *key, *key2;
    dt_error_t err;
    make_pki(tc, &pki, "");
    dt_testcluster_start_daemon(tc, CTRL);
    tcp_address(tc, address);
    const dt_rpc_tls_t bare = {.ca = pki.ca.certificate};
    token = call(dt_testcluster_admin_socket(tc), NULL, "/dtorch.v1.Admin/CreateToken",
                 &request.base, &dtorch__v1__create_token_reply__descriptor, &err);
    cr_assert_not_null(token, "%s", err.text);
    restart(tc, SIGKILL); /* a token that was shown is durable */
    expect_no_join(address, &bare, "dtj_x_y", "w0");
    expect_no_join(address, &bare, "renew", "w0");
    joined = join(address, &bare, token->token, "w0", 1, &key, &err);
    cr_assert_not_null(joined, "%s\n%s", err.text, dt_testcluster_logs(tc));
    cr_assert_str_eq(joined->ca_pem, pki.ca.certificate);
    expect_no_join(address, &bare, token->token, "w1"); /* used up */
    const dt_rpc_tls_t node = {
        .ca = pki.ca.certificate, .certificate = joined->certificate_pem, .key = key};
    down = hello(address, &node, "w0", 1, 1, &reader, &err);
    cr_assert(down && down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_WELCOME, "%s\n%s", err.text,
              dt_testcluster_logs(tc));
    dtorch__v1__worker_down__free_unpacked(down, NULL);
    dt_rpc_reader_free(reader);
    down = hello(address, &node, "w1", 2, 1, &reader, &err);
    cr_assert(down && down->kind_case == DTORCH__V1__WORKER_DOWN__KIND_REFUSAL &&
                  down->refusal->code == DTORCH__V1__REFUSAL__CODE__DENIED,
              "another node's name was taken");
    dtorch__v1__worker_down__free_unpacked(down, NULL);
    dt_rpc_reader_free(reader);
    cr_assert_null(hello(address, &bare, "w2", 3, 1, &reader, &err), "no certificate, no worker");
    cr_assert_eq(err.code, DT_ERR_DENIED, "%s", err.text);
    renewed = join(address, &node, "renew", "w0", 1, &key2, &err);
    cr_assert_not_null(renewed, "%s", err.text);
    expect_no_join(address, &node, "renew", "w1");
    cr_assert_eq(dt_testcluster_log_count(tc, CTRL, token->token), 0, "the token is in the log");
    dtorch__v1__join_reply__free_unpacked(renewed, NULL);
    dtorch__v1__join_reply__free_unpacked(joined, NULL);
    dtorch__v1__create_token_reply__free_unpacked(token, NULL);
    dt_pki_key_free(key);
    dt_pki_key_free(key2);
    free_pki(&pki);
    stop(tc);
}

Test(controller, without_an_authority_no_token_is_made)
{
    dt_testcluster_t *tc = alone(NULL);
    Dtorch__V1__CreateTokenRequest request = DTORCH__V1__CREATE_TOKEN_REQUEST__INIT;
    dt_error_t err;
    cr_assert_null(call(dt_testcluster_admin_socket(tc), NULL, "/dtorch.v1.Admin/CreateToken",
                        &request.base, &dtorch__v1__create_token_reply__descriptor, &err));
    cr_assert_not_null(strstr(err.text, "dtorchctl setup controller"), "%s", err.text);
    stop(tc);
}

/* Wait until the cluster shows an alarm whose text holds `text`; "": no alarm. */
static void expect_alarm(dt_testcluster_t *tc, const char *text)
{
    int64_t deadline = dt_test_now_ms() + LONG_MS;
    for (bool is_so = false; !is_so;) {
        Dtorch__V1__ClusterStatus *status = dt_testcluster_status(tc);
        cr_assert_not_null(status, "%s", dt_testcluster_logs(tc));
        is_so = !*text && status->n_alarms == 0;
        for (size_t i = 0; *text && i < status->n_alarms; i++)
            is_so |= strcmp(status->alarms[i]->name, "certificate-expires") == 0 &&
                     strstr(status->alarms[i]->text, text);
        cr_assert(is_so || dt_test_now_ms() < deadline, "no alarm '%s'\n%s", text,
                  dt_testcluster_logs(tc));
        dtorch__v1__cluster_status__free_unpacked(status, NULL);
    }
}

Test(controller, a_certificate_that_ends_soon_is_an_alarm_until_a_reload_brings_a_new_one)
{
    dt_testcluster_t *tc =
        dt_testcluster_start(&(dt_testcluster_options_t){.is_idle = true, .fake_wall = true});
    struct pki pki;
    make_pki(tc, &pki, "");
    dt_testcluster_start_daemon(tc, CTRL);
    expect_alarm(tc, "");
    dt_testcluster_jump_wall(tc, CTRL, HOUR_MS * 5 / 6);
    expect_alarm(tc, "the controller's certificate expires in");
    dt_testcluster_jump_wall(tc, CTRL, 2 * HOUR_MS);
    expect_alarm(tc, "the controller's certificate expired at");
    reload(tc, pki.conf, "configuration not reloaded");
    make_server(tc, &pki, 10 * HOUR_MS);
    reload(tc, pki.conf, "configuration reloaded");
    expect_alarm(tc, "");
    write_pem(tc, "c.key", pki.admin.key);
    reload(tc, pki.conf, "configuration not reloaded");
    free_pki(&pki);
    stop(tc);
}

static int count_descriptors(pid_t pid)
{
    char path[64];
    struct dirent *entry;
    int count = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    cr_assert(dir);
    while ((entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* gRPC's own listener, which TLS needs, gives up for ever when it finds no descriptor. */
Test(controller, whose_TLS_port_is_lost_for_want_of_descriptors_ends_with_75)
{
    dt_testcluster_t *tc = idle();
    struct pki pki;
    struct rlimit limit;
    int fds[64], code = -1;
    char port[16];
    make_pki(tc, &pki, "");
    dt_testcluster_start_daemon(tc, CTRL);
    pid_t pid = dt_testcluster_pid(tc, CTRL);
    cr_assert_eq(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
    limit.rlim_cur = (rlim_t)count_descriptors(pid) + 8;
    cr_assert_eq(prlimit(pid, RLIMIT_NOFILE, &limit, NULL), 0);
    (void)snprintf(port, sizeof port, "%d", dt_testcluster_port(tc));
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        fds[i] = dt_rawpeer_connect(port);
    cr_assert(dt_testcluster_wait_exit(tc, CTRL, LONG_MS, &code),
              "it goes on and nobody can reach it\n%s", dt_testcluster_logs(tc));
    cr_assert_eq(code, 75, "exit %d\n%s", code, dt_testcluster_logs(tc));
    cr_assert_gt(dt_testcluster_log_count(tc, CTRL, "descriptors"), 0);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    dt_testcluster_start_daemon(tc, CTRL);
    free_pki(&pki);
    stop(tc);
}
