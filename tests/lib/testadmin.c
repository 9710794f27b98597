/* The test cluster's Admin calls and the conditions that rest on them. See testcluster.h. */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/testcluster.h"
#include "rpc/rpc.h"

#define CALL_MS  DT_TESTCLUSTER_PATIENCE_MS
#define POLL_MS  20
#define ARGS_MAX 32
#define RUN_MS   180000

dt_status_t dt_testcluster_admin_call(dt_testcluster_t *tc, const char *method,
                                      const ProtobufCMessage *request, uint8_t **ret_reply,
                                      size_t *ret_size, dt_error_t *err)
{
    char path[128];
    size_t size = protobuf_c_message_get_packed_size(request);
    uint8_t *packed = malloc(size + 1);
    dt_status_t status;
    if (!packed)
        dt_test_die("out of memory");
    (void)protobuf_c_message_pack(request, packed);
    (void)snprintf(path, sizeof path, "/dtorch.v1.Admin/%s", method);
    status = dt_rpc_call_blocking(dt_testcluster_admin_socket(tc), NULL, path, packed, size,
                                  CALL_MS, ret_reply, ret_size, err);
    free(packed);
    return status;
}

static void *call_and_unpack(dt_testcluster_t *tc, const char *method,
                             const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *reply_type)
{
    uint8_t *reply = NULL;
    size_t size = 0;
    ProtobufCMessage *message;
    if (dt_testcluster_admin_call(tc, method, request, &reply, &size, NULL) != DT_OK)
        return NULL;
    message = protobuf_c_message_unpack(reply_type, NULL, size, reply);
    if (!message)
        dt_test_die("%s answered what cannot be unpacked", method);
    free(reply);
    return message;
}

Dtorch__V1__ClusterStatus *dt_testcluster_status(dt_testcluster_t *tc)
{
    Dtorch__V1__GetClusterRequest request = DTORCH__V1__GET_CLUSTER_REQUEST__INIT;
    return call_and_unpack(tc, "GetCluster", &request.base,
                           &dtorch__v1__cluster_status__descriptor);
}

Dtorch__V1__NodeList *dt_testcluster_nodes(dt_testcluster_t *tc)
{
    Dtorch__V1__ListNodesRequest request = DTORCH__V1__LIST_NODES_REQUEST__INIT;
    request.with_devices = true;
    return call_and_unpack(tc, "ListNodes", &request.base, &dtorch__v1__node_list__descriptor);
}

Dtorch__V1__EventList *dt_testcluster_events(dt_testcluster_t *tc, uint64_t after_sequence)
{
    Dtorch__V1__ListEventsRequest request = DTORCH__V1__LIST_EVENTS_REQUEST__INIT;
    request.after_sequence = after_sequence;
    request.severity_min = DTORCH__V1__SEVERITY__DEBUG;
    request.limit = 10000;
    return call_and_unpack(tc, "ListEvents", &request.base, &dtorch__v1__event_list__descriptor);
}

dt_status_t dt_testcluster_set_node(dt_testcluster_t *tc, int worker,
                                    Dtorch__V1__SetNodeRequest__Change change, const char *reason,
                                    dt_error_t *err)
{
    Dtorch__V1__SetNodeRequest request = DTORCH__V1__SET_NODE_REQUEST__INIT;
    char name[16], why[256], by[] = "test";
    char *names[] = {name};
    uint8_t *reply = NULL;
    size_t size = 0;
    dt_status_t status;
    (void)snprintf(name, sizeof name, "w%d", worker);
    (void)snprintf(why, sizeof why, "%s", reason ? reason : "");
    request.n_names = 1;
    request.names = names;
    request.change = change;
    request.reason = why;
    request.by = by;
    status = dt_testcluster_admin_call(tc, "SetNode", &request.base, &reply, &size, err);
    free(reply);
    return status;
}

bool dt_testcluster_wait(dt_testcluster_t *tc, bool (*holds)(dt_testcluster_t *tc, void *arg),
                         void *arg, int64_t patience_ms)
{
    int64_t deadline = dt_test_now_ms() + patience_ms;
    while (!holds(tc, arg)) {
        if (dt_test_now_ms() >= deadline)
            return false;
        dt_test_pause_ms(POLL_MS);
    }
    return true;
}

struct node_condition {
    char name[16];
    dt_testcluster_node_fn holds;
    void *arg;
};

static bool node_holds(dt_testcluster_t *tc, void *arg)
{
    const struct node_condition *condition = arg;
    Dtorch__V1__NodeList *list = dt_testcluster_nodes(tc);
    bool result = false;
    for (size_t i = 0; list && i < list->n_nodes; i++)
        if (strcmp(list->nodes[i]->name, condition->name) == 0)
            result = condition->holds(list->nodes[i], condition->arg);
    if (list)
        dtorch__v1__node_list__free_unpacked(list, NULL);
    return result;
}

bool dt_testcluster_wait_node(dt_testcluster_t *tc, int worker, dt_testcluster_node_fn holds,
                              void *arg, int64_t patience_ms)
{
    struct node_condition condition = {.holds = holds, .arg = arg};
    (void)snprintf(condition.name, sizeof condition.name, "w%d", worker);
    return dt_testcluster_wait(tc, node_holds, &condition, patience_ms);
}

static bool has_health(const Dtorch__V1__Node *node, void *arg)
{
    const Dtorch__V1__NodeHealth *health = arg;
    return node->health == *health;
}

bool dt_testcluster_wait_health(dt_testcluster_t *tc, int worker, Dtorch__V1__NodeHealth health,
                                int64_t patience_ms)
{
    return dt_testcluster_wait_node(tc, worker, has_health, &health, patience_ms);
}

static bool is_here(const Dtorch__V1__Node *node, void *arg)
{
    (void)arg;
    return node->health == DTORCH__V1__NODE_HEALTH__NODE_OK && node->cpu_count > 0;
}

bool dt_testcluster_wait_here(dt_testcluster_t *tc, int worker, int64_t patience_ms)
{
    return dt_testcluster_wait_node(tc, worker, is_here, NULL, patience_ms);
}

static bool has_admin(const Dtorch__V1__Node *node, void *arg)
{
    const Dtorch__V1__NodeIntent__Admin *admin = arg;
    return node->admin == *admin;
}

bool dt_testcluster_wait_admin(dt_testcluster_t *tc, int worker,
                               Dtorch__V1__NodeIntent__Admin admin, int64_t patience_ms)
{
    return dt_testcluster_wait_node(tc, worker, has_admin, &admin, patience_ms);
}

struct event_condition {
    const char *name;
    char node[16]; /* "": any */
    uint64_t after;
    Dtorch__V1__Event *found; /* the first that fits, packed and unpacked again */
};

static Dtorch__V1__Event *copy_event(const Dtorch__V1__Event *event)
{
    size_t size = dtorch__v1__event__get_packed_size(event);
    uint8_t *packed = malloc(size + 1);
    Dtorch__V1__Event *copy;
    if (!packed)
        dt_test_die("out of memory");
    (void)dtorch__v1__event__pack(event, packed);
    copy = dtorch__v1__event__unpack(NULL, size, packed);
    free(packed);
    return copy;
}

static bool event_holds(dt_testcluster_t *tc, void *arg)
{
    struct event_condition *condition = arg;
    Dtorch__V1__EventList *list = dt_testcluster_events(tc, condition->after);
    for (size_t i = 0; list && !condition->found && i < list->n_events; i++) {
        const Dtorch__V1__Event *event = list->events[i];
        if (strcmp(event->name, condition->name) == 0 &&
            (!condition->node[0] || strcmp(event->node, condition->node) == 0))
            condition->found = copy_event(event);
    }
    if (list)
        dtorch__v1__event_list__free_unpacked(list, NULL);
    return condition->found != NULL;
}

bool dt_testcluster_wait_event(dt_testcluster_t *tc, const char *name, int worker,
                               uint64_t after_sequence, int64_t patience_ms,
                               Dtorch__V1__Event **ret_event)
{
    struct event_condition condition = {.name = name, .after = after_sequence};
    if (worker >= 0)
        (void)snprintf(condition.node, sizeof condition.node, "w%d", worker);
    if (!dt_testcluster_wait(tc, event_holds, &condition, patience_ms))
        return false;
    if (ret_event)
        *ret_event = condition.found;
    else
        dtorch__v1__event__free_unpacked(condition.found, NULL);
    return true;
}

uint64_t dt_testcluster_last_event(dt_testcluster_t *tc)
{
    Dtorch__V1__EventList *list = dt_testcluster_events(tc, 0);
    uint64_t last = list && list->n_events ? list->events[list->n_events - 1]->sequence : 0;
    if (list)
        dtorch__v1__event_list__free_unpacked(list, NULL);
    return last;
}

dt_testrun_t dt_testrun_program(const char *program, const char *const *args,
                                const char *const *env)
{
    const char *base = getenv("TMPDIR");
    const char *bin = getenv("DT_TEST_BIN");
    const char *argv[ARGS_MAX + 2] = {program};
    char path[DT_TESTPROC_PATH_MAX], out[DT_TESTPROC_PATH_MAX], err[DT_TESTPROC_PATH_MAX];
    dt_testproc_t proc = {.pidfd = -1, .notify_fd = -1};
    dt_testproc_env_t environment;
    dt_testrun_t run = {0};
    static int number;
    int pid = (int)getpid();
    number++;
    if (!base || !*base)
        base = "/tmp";
    if (program[0] == '/')
        (void)snprintf(path, sizeof path, "%s", program);
    else
        (void)snprintf(path, sizeof path, "%s/%s", bin ? bin : ".", program);
    (void)snprintf(out, sizeof out, "%s/out.%d.%d", base, pid, number);
    (void)snprintf(err, sizeof err, "%s/err.%d.%d", base, pid, number);
    dt_testproc_env_init(&environment, NULL);
    for (int i = 0; env && env[i]; i++)
        dt_testproc_env_add(&environment, "%s", env[i]);
    for (int i = 0; args[i] && i < ARGS_MAX; i++)
        argv[i + 1] = args[i];
    dt_testproc_spawn(&proc, path, argv, &environment, out, err, NULL);
    if (!dt_testproc_wait_exit(&proc, RUN_MS))
        (void)fprintf(stderr, "%s ran for over %d ms and was killed\n", program, RUN_MS);
    dt_testproc_close(&proc);
    dt_testproc_env_fini(&environment);
    run.code = proc.code;
    run.out = dt_test_read_file(out);
    run.err = dt_test_read_file(err);
    (void)unlink(out);
    (void)unlink(err);
    return run;
}

dt_testrun_t dt_testcluster_ctl(dt_testcluster_t *tc, const char *first, ...)
{
    char socket[DT_TESTPROC_PATH_MAX + 32];
    const char *env[] = {socket, "NO_COLOR=1", NULL};
    const char *argv[ARGS_MAX + 1] = {first};
    va_list list;
    int count = 1;
    va_start(list, first);
    while (count < ARGS_MAX && (argv[count] = va_arg(list, const char *)) != NULL)
        count++;
    va_end(list);
    argv[count] = NULL;
    (void)snprintf(socket, sizeof socket, "DTORCH_ADMIN_SOCKET=%s",
                   dt_testcluster_admin_socket(tc));
    return dt_testrun_program("dtorchctl", argv, env);
}

void dt_testrun_fini(dt_testrun_t *run)
{
    free(run->out);
    free(run->err);
    *run = (dt_testrun_t){0};
}

char *dt_test_http_get(int port, const char *path)
{
    struct sockaddr_in addr = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = DT_TESTCLUSTER_PATIENCE_MS / 1000};
    size_t cap = 1 << 20, len = 0;
    char *text = malloc(cap + 1), request[256];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int size = snprintf(request, sizeof request,
                        "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    ssize_t n = -1;
    if (text && fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
        send(fd, request, (size_t)size, MSG_NOSIGNAL) == size)
        while (len < cap && (n = recv(fd, text + len, cap - len, 0)) > 0)
            len += (size_t)n;
    if (fd >= 0)
        close(fd);
    if (n != 0 || len == 0) {
        free(text);
        return NULL;
    }
    text[len] = '\0';
    return text;
}
