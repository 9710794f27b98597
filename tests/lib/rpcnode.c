#include "lib/rpcnode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 4096

static void must(bool ok, const char *what, const dt_error_t *err)
{
    if (ok)
        return;
    fprintf(stderr, "rpcnode: %s: %s\n", what, err ? err->text : "");
    abort();
}

static rpcnode_t *node_of(dt_rpc_stream_t *stream)
{
    return dt_rpc_stream_arg(stream);
}

/* ---- stream methods ---- */

static void on_open(dt_rpc_stream_t *stream)
{
    node_of(stream)->opened++;
}

static void on_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    rpcnode_t *node = node_of(stream);
    node->last_status = why->code;
    (void)snprintf(node->last_text, sizeof node->last_text, "%s", why->text);
    node->closed++;
}

static void echo_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    if (dt_rpc_stream_send(stream, data, size) != DT_OK)
        dt_rpc_stream_cancel(stream, DT_ERR_LIMIT, "you do not read");
}

static void flood_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    static const uint8_t chunk[CHUNK];
    (void)data;
    (void)size;
    rpcnode_t *node = node_of(stream);
    dt_status_t status;
    do {
        status = dt_rpc_stream_send(stream, chunk, sizeof chunk);
        if (dt_rpc_stream_queued(stream) > node->queued_longest)
            node->queued_longest = dt_rpc_stream_queued(stream);
    } while (status == DT_OK);
    if (status == DT_ERR_LIMIT) {
        node->flooded++;
        dt_rpc_stream_cancel(stream, DT_ERR_LIMIT, "you do not read");
    }
}

static void count_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    for (const char *text = "123"; *text; text++)
        must(dt_rpc_stream_send(stream, text, 1) == DT_OK, "send", NULL);
}

static void count_half_closed(dt_rpc_stream_t *stream)
{
    dt_rpc_stream_close(stream, DT_OK, NULL);
}

static void refuse_open(dt_rpc_stream_t *stream)
{
    must(dt_rpc_stream_send(stream, "no", 2) == DT_OK, "send", NULL);
    dt_rpc_stream_close(stream, DT_ERR_DENIED, "go away");
}

static void refuse_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    (void)stream;
    (void)data;
    (void)size;
}

static const dt_rpc_stream_ops_t echo_ops = {
    .open = on_open, .message = echo_message, .closed = on_closed};
static const dt_rpc_stream_ops_t flood_ops = {
    .open = on_open, .message = flood_message, .closed = on_closed};
static const dt_rpc_stream_ops_t count_ops = {.open = on_open,
                                              .message = count_message,
                                              .half_closed = count_half_closed,
                                              .closed = on_closed};
static const dt_rpc_stream_ops_t refuse_ops = {
    .open = refuse_open, .message = refuse_message, .closed = on_closed};

/* ---- unary methods ---- */

static void who(dt_rpc_call_t *call, const uint8_t *data, size_t size, void *arg)
{
    static const char *const kinds[] = {"plain", "unix", "tls"};
    const dt_rpc_peer_t *peer = dt_rpc_call_peer(call);
    char text[512];
    (void)data;
    (void)size;
    (void)arg;
    int length =
        snprintf(text, sizeof text, "%s listener=%d uid=%d pid=%d cert=%d cn=%s id=%s at=%s",
                 kinds[peer->kind], peer->listener, (int)peer->uid, (int)peer->pid,
                 peer->has_certificate, peer->common_name, peer->spiffe_id, peer->address);
    dt_rpc_call_reply(call, text, (size_t)length);
}

static void on_late(void *arg, int64_t deadline_ns)
{
    rpcnode_t *node = arg;
    (void)deadline_ns;
    dt_rpc_call_t *call = node->late_call;
    node->late_call = NULL;
    if (dt_rpc_call_is_cancelled(call))
        node->left++;
    dt_rpc_call_reply(call, node->late_text, strlen(node->late_text));
}

static void late(dt_rpc_call_t *call, const uint8_t *data, size_t size, void *arg)
{
    rpcnode_t *node = arg;
    if (node->late_call) {
        dt_rpc_call_fail(call, DT_ERR_AGAIN, "busy");
        return;
    }
    (void)snprintf(node->late_text, sizeof node->late_text, "%.*s", (int)size, (const char *)data);
    node->late_call = call;
    dt_timer_arm(node->late_timer, dt_loop_now_ns() + node->late_ms * INT64_C(1000000));
}

static void hold(dt_rpc_call_t *call, const uint8_t *data, size_t size, void *arg)
{
    rpcnode_t *node = arg;
    (void)data;
    (void)size;
    if (node->held_count == 64)
        dt_rpc_call_fail(call, DT_ERR_LIMIT, "enough");
    else
        node->held[node->held_count++] = call;
}

/* ---- the node ---- */

static void on_refused(void *arg, const char *address, uint64_t count)
{
    rpcnode_t *node = arg;
    (void)address;
    node->refused += (int)count;
}

static void on_stopped(void *arg)
{
    rpcnode_t *node = arg;
    node->server = NULL;
    dt_rpc_stop(node->rpc);
}

static void on_stop(void *arg)
{
    rpcnode_t *node = arg;
    for (int i = 0; i < node->held_count; i++)
        dt_rpc_call_fail(node->held[i], DT_ERR_STOPPED, "stopping");
    node->held_count = 0;
    dt_rpc_server_stop(node->server, node->grace_ms, on_stopped, node);
}

static void on_act(void *arg)
{
    rpcnode_t *node = arg;
    node->act(node);
    dt_rpc_stop(node->rpc);
}

void rpcnode_open(rpcnode_t *node, const dt_rpc_server_options_t *options)
{
    dt_error_t err = {0};
    memset(node, 0, sizeof *node);
    node->late_ms = 400;
    dt_rpc_method_t *methods = calloc(7, sizeof *methods);
    must(methods != NULL, "memory", NULL);
    methods[0] = (dt_rpc_method_t){.name = RPCNODE_ECHO, .ops = &echo_ops, .arg = node};
    methods[1] = (dt_rpc_method_t){.name = RPCNODE_FLOOD, .ops = &flood_ops, .arg = node};
    methods[2] = (dt_rpc_method_t){
        .name = RPCNODE_COUNT, .ops = &count_ops, .is_server_stream = true, .arg = node};
    methods[3] = (dt_rpc_method_t){.name = RPCNODE_REFUSE, .ops = &refuse_ops, .arg = node};
    methods[4] = (dt_rpc_method_t){.name = RPCNODE_WHO, .unary = who, .arg = node};
    methods[5] = (dt_rpc_method_t){.name = RPCNODE_LATE, .unary = late, .arg = node};
    methods[6] = (dt_rpc_method_t){.name = RPCNODE_HOLD, .unary = hold, .arg = node};
    const char *base = secure_getenv("TMPDIR");
    (void)snprintf(node->directory, sizeof node->directory, "%.40s/dtrpc.XXXXXX",
                   base ? base : "/tmp");
    must(mkdtemp(node->directory) != NULL, "folder", NULL);
    (void)snprintf(node->socket_path, sizeof node->socket_path, "%s/s", node->directory);
    (void)snprintf(node->unix_address, sizeof node->unix_address, "unix:%s", node->socket_path);
    must(dt_loop_create(&node->loop, &err) == DT_OK, "loop", &err);
    must(dt_rpc_create(node->loop, NULL, &node->rpc, &err) == DT_OK, "rpc", &err);
    must(dt_timer_create(node->loop, on_late, node, &node->late_timer, &err) == DT_OK, "t", &err);
    must(dt_rpc_wake_create(node->rpc, on_stop, node, &node->stop_wake, &err) == DT_OK, "w", &err);
    must(dt_rpc_wake_create(node->rpc, on_act, node, &node->act_wake, &err) == DT_OK, "w", &err);
    dt_rpc_server_options_t all = options ? *options : (dt_rpc_server_options_t){0};
    all.methods = methods;
    all.method_count = 7;
    all.refused = on_refused;
    all.arg = node;
    node->methods = methods;
    must(dt_rpc_server_create(node->rpc, &all, &node->server, &err) == DT_OK, "server", &err);
}

void rpcnode_start(rpcnode_t *node)
{
    dt_error_t err = {0};
    must(dt_rpc_server_listen_unix(node->server, node->socket_path, 0600, 1, &err) == DT_OK, "unix",
         &err);
    must(dt_rpc_server_listen_tcp(node->server, "127.0.0.1:0", NULL, 2, &node->port, &err) == DT_OK,
         "tcp", &err);
    (void)snprintf(node->tcp_address, sizeof node->tcp_address, "127.0.0.1:%d", node->port);
    must(dt_rpc_server_start(node->server, &err) == DT_OK, "start", &err);
}

void rpcnode_open_and_start(rpcnode_t *node)
{
    rpcnode_open(node, NULL);
    rpcnode_start(node);
}

static void *serve_main(void *arg)
{
    rpcnode_t *node = arg;
    dt_rpc_run(node->rpc);
    return NULL;
}

void rpcnode_serve(rpcnode_t *node)
{
    node->is_served = true;
    must(pthread_create(&node->thread, NULL, serve_main, node) == 0, "thread", NULL);
}

void rpcnode_act(rpcnode_t *node, void (*act)(rpcnode_t *node))
{
    node->act = act;
    dt_rpc_wake(node->act_wake);
    (void)pthread_join(node->thread, NULL);
    rpcnode_serve(node);
}

struct wait {
    rpcnode_t *node;
    dt_timer_t *timer;
    const atomic_int *flag;
    int value;
    int64_t end_ns;
    bool is_over;
};

static void on_wait(void *arg, int64_t deadline_ns)
{
    struct wait *wait = arg;
    wait->is_over = *wait->flag >= wait->value || deadline_ns >= wait->end_ns;
    if (wait->is_over)
        dt_rpc_stop(wait->node->rpc);
    else
        dt_timer_arm(wait->timer, deadline_ns + INT64_C(2000000));
}

bool rpcnode_run_until(rpcnode_t *node, const atomic_int *flag, int value, int64_t timeout_ms)
{
    struct wait wait = {.node = node,
                        .flag = flag,
                        .value = value,
                        .end_ns = dt_loop_now_ns() + timeout_ms * INT64_C(1000000)};
    dt_error_t err = {0};
    must(dt_timer_create(node->loop, on_wait, &wait, &wait.timer, &err) == DT_OK, "timer", &err);
    dt_timer_arm(wait.timer, dt_loop_now_ns());
    while (!wait.is_over) /* the server's end stops the runtime too */
        dt_rpc_run(node->rpc);
    dt_timer_free(wait.timer);
    return *flag >= value;
}

void rpcnode_stop(rpcnode_t *node)
{
    if (node->server)
        dt_rpc_wake(node->stop_wake);
    if (node->is_served)
        (void)pthread_join(node->thread, NULL);
    else if (node->server)
        dt_rpc_run(node->rpc);
    dt_rpc_wake_free(node->stop_wake);
    dt_rpc_wake_free(node->act_wake);
    dt_timer_free(node->late_timer);
    must(dt_rpc_free(node->rpc) == DT_OK, "something of gRPC is still open", NULL);
    must(dt_loop_free(node->loop) == DT_OK, "a handle is left over", NULL);
    must(access(node->socket_path, F_OK) != 0, "the socket file is left over", NULL);
    must(rmdir(node->directory) == 0, "the folder is not empty", NULL);
    free(node->methods);
}
