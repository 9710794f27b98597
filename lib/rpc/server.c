/* The server: which methods there are, their calls, and the order of stopping. */
#include <grpc/support/string_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "rpc/rpc_internal.h"

#define REQUESTS_AHEAD     8 /* posted for each method: a burst is taken without a round trip each */
#define UNKNOWN_AHEAD      2
#define STREAMS_CONNECTION 128 /* open calls on one connection */
#define KEEPALIVE_MS       30000
#define KEEPALIVE_WAIT_MS  20000
#define DESCRIPTOR_RESERVE 64ul         /* descriptors that are not for connections */
#define MEMORY_MAX         (512u << 20) /* what gRPC may hold for this server's connections */

struct dt_rpc_call {
    dt_rpc_server_t *server;
    dt_rpc_registered_t *registered;
    grpc_call *call;
    grpc_byte_buffer *payload;
    grpc_metadata_array initial;
    gpr_timespec deadline;
    dt_rpc_tag_t request_tag, close_tag, reply_tag;
    int is_cancelled; /* written by gRPC before close_tag comes */
    bool is_replied;  /* the owner has given it back */
    size_t pending;   /* batches in flight */
    dt_rpc_peer_t peer;
    dt_rpc_connection_t *connection;
};

struct unknown {
    dt_rpc_server_t *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array initial;
    dt_rpc_tag_t request_tag, reply_tag;
    int is_cancelled;
};

static void request_stream(dt_rpc_server_t *server, dt_rpc_registered_t *registered);
static void request_unary(dt_rpc_server_t *server, dt_rpc_registered_t *registered);
static void request_unknown(dt_rpc_server_t *server);

/* ---- streams ---- */

bool dt_rpc_stream_bearer(const dt_rpc_stream_t *stream, char *out, size_t size)
{
    const size_t prefix = sizeof DT_RPC_BEARER - 1;
    const grpc_metadata *found = NULL;
    for (size_t i = 0; i < stream->initial.count; i++) {
        const grpc_metadata *one = &stream->initial.metadata[i];
        if (grpc_slice_str_cmp(one->key, DT_RPC_AUTHORIZATION) != 0)
            continue;
        if (found)
            return false;
        found = one;
    }
    if (!found || GRPC_SLICE_LENGTH(found->value) < prefix ||
        memcmp(GRPC_SLICE_START_PTR(found->value), DT_RPC_BEARER, prefix) != 0)
        return false;
    size_t length = GRPC_SLICE_LENGTH(found->value) - prefix;
    const uint8_t *text = GRPC_SLICE_START_PTR(found->value) + prefix;
    if (length >= size || memchr(text, 0, length))
        return false;
    memcpy(out, text, length);
    out[length] = '\0';
    return true;
}

static void ignore_message(dt_rpc_stream_t *stream, const uint8_t *data, size_t size)
{
    (void)stream;
    (void)data;
    (void)size;
}

static void ignore_closed(dt_rpc_stream_t *stream, const dt_error_t *why)
{
    (void)stream;
    (void)why;
}

/* The owner never sees a stream that is refused here. */
static const dt_rpc_stream_ops_t refused_ops = {.message = ignore_message, .closed = ignore_closed};

static void begin_stream(dt_rpc_stream_t *stream, bool is_gone)
{
    dt_rpc_server_t *server = stream->server;
    bool is_over = server->stats.streams > server->options.stream_max;
    grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                     .data.recv_close_on_server.cancelled = &stream->is_cancelled};
    grpc_op initial = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    stream->id = ++stream->rpc->stream_id;
    if (is_gone || is_over)
        stream->ops = &refused_ops;
    dt_rpc_stream_batch(stream, &close, &stream->close_tag); /* at once: it tells a lost peer */
    dt_rpc_stream_batch(stream, &initial, &stream->initial_tag);
    dt_rpc_stream_opened(stream);
    if (is_gone)
        dt_rpc_stream_cancel(stream, DT_ERR_PEER, "the connection is gone");
    else if (is_over)
        dt_rpc_stream_close(stream, DT_ERR_LIMIT, "too many streams on this server");
    dt_rpc_stream_read(stream);
}

static void on_stream(void *arg, bool ok)
{
    dt_rpc_stream_t *stream = arg;
    dt_rpc_server_t *server = stream->server;
    bool is_gone = false;
    server->requests--;
    if (!ok || server->is_stopping) { /* never was a call, or comes too late */
        if (ok)
            (void)grpc_call_cancel(stream->call, NULL);
        dt_rpc_stream_discard(stream);
        dt_rpc_server_maybe_done(server);
        return;
    }
    request_stream(server, stream->registered);
    server->stats.streams_total++;
    server->stats.streams++;
    stream->pending = 1; /* ours, while it starts */
    stream->connection = dt_rpc_peer_of(server, stream->call, &stream->peer, &is_gone);
    begin_stream(stream, is_gone);
    dt_rpc_stream_put(stream);
}

static void request_stream(dt_rpc_server_t *server, dt_rpc_registered_t *registered)
{
    const dt_rpc_method_t *method = registered->method;
    dt_rpc_stream_t *stream = dt_rpc_stream_new(server->rpc, method->ops, method->arg);
    if (!stream)
        return; /* the next call of this method posts again */
    stream->server = server;
    stream->registered = registered;
    stream->is_server_stream = method->is_server_stream;
    stream->queue_bytes_max = server->options.queue_bytes_max;
    stream->open_tag = (dt_rpc_tag_t){on_stream, stream};
    server->requests++;
    dt_check(grpc_server_request_registered_call(server->grpc, registered->handle, &stream->call,
                                                 &stream->deadline, &stream->initial, NULL,
                                                 server->rpc->queue, server->rpc->queue,
                                                 &stream->open_tag) == GRPC_CALL_OK);
}

/* ---- unary ---- */

static void discard_call(dt_rpc_call_t *call)
{
    dt_rpc_server_t *server = call->server;
    if (call->payload)
        grpc_byte_buffer_destroy(call->payload);
    grpc_metadata_array_destroy(&call->initial);
    if (call->call)
        grpc_call_unref(call->call);
    server->rpc->open_count--;
    free(call);
    dt_rpc_server_maybe_done(server);
}

static void put_call(dt_rpc_call_t *call)
{
    if (call->pending > 0 || !call->is_replied)
        return;
    call->server->stats.calls--;
    dt_rpc_peer_done(call->connection);
    discard_call(call);
}

static void on_call_batch(void *arg, bool ok)
{
    dt_rpc_call_t *call = arg;
    (void)ok;
    call->pending--;
    put_call(call);
}

static void handle_call(dt_rpc_call_t *call, bool is_gone)
{
    dt_rpc_server_t *server = call->server;
    const dt_rpc_method_t *method = call->registered->method;
    size_t size = 0;
    const uint8_t *data = NULL;
    if (call->payload) {
        data = dt_rpc_gather(server->rpc, call->payload, &size);
        grpc_byte_buffer_destroy(call->payload);
        call->payload = NULL;
    }
    if (is_gone)
        dt_rpc_call_fail(call, DT_ERR_PEER, "the connection is gone");
    else if (server->stats.calls > server->options.call_max)
        dt_rpc_call_fail(call, DT_ERR_AGAIN, "too many requests at once");
    else if (!data)
        dt_rpc_call_fail(call, DT_ERR_INVALID, "a request without a message");
    else
        method->unary(call, data, size, method->arg);
}

static void on_call(void *arg, bool ok)
{
    dt_rpc_call_t *call = arg;
    dt_rpc_server_t *server = call->server;
    bool is_gone = false;
    server->requests--;
    if (!ok || server->is_stopping) {
        if (ok)
            (void)grpc_call_cancel(call->call, NULL);
        discard_call(call);
        return;
    }
    request_unary(server, call->registered);
    server->stats.calls_total++;
    server->stats.calls++;
    call->connection = dt_rpc_peer_of(server, call->call, &call->peer, &is_gone);
    grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                     .data.recv_close_on_server.cancelled = &call->is_cancelled};
    call->pending++;
    dt_rpc_start(call->call, &close, 1, &call->close_tag);
    handle_call(call, is_gone);
}

static void request_unary(dt_rpc_server_t *server, dt_rpc_registered_t *registered)
{
    dt_rpc_call_t *call = calloc(1, sizeof *call);
    if (!call)
        return; /* the next call of this method posts again */
    call->server = server;
    call->registered = registered;
    call->request_tag = (dt_rpc_tag_t){on_call, call};
    call->close_tag = call->reply_tag = (dt_rpc_tag_t){on_call_batch, call};
    grpc_metadata_array_init(&call->initial);
    server->rpc->open_count++;
    server->requests++;
    dt_check(grpc_server_request_registered_call(server->grpc, registered->handle, &call->call,
                                                 &call->deadline, &call->initial, &call->payload,
                                                 server->rpc->queue, server->rpc->queue,
                                                 &call->request_tag) == GRPC_CALL_OK);
}

const dt_rpc_peer_t *dt_rpc_call_peer(const dt_rpc_call_t *call)
{
    return &call->peer;
}

bool dt_rpc_call_is_cancelled(const dt_rpc_call_t *call)
{
    return call->pending == 0; /* RECV_CLOSE comes before our reply only if the client has left */
}

static void answer(dt_rpc_call_t *call, grpc_byte_buffer *bytes, grpc_status_code status,
                   const char *text)
{
    grpc_slice details = grpc_slice_from_copied_string(text);
    grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                      {.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
                       .data.send_status_from_server.status = status,
                       .data.send_status_from_server.status_details = &details},
                      {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = bytes}};
    dt_check(!call->is_replied);
    call->is_replied = true;
    call->pending++;
    dt_rpc_start(call->call, ops, bytes ? 3 : 2, &call->reply_tag);
    grpc_slice_unref(details);
    if (bytes)
        grpc_byte_buffer_destroy(bytes); /* gRPC holds its own reference */
}

void dt_rpc_call_reply(dt_rpc_call_t *call, const void *data, size_t size)
{
    answer(call, dt_rpc_bytes(data, size), GRPC_STATUS_OK, "");
}

void dt_rpc_call_fail(dt_rpc_call_t *call, dt_status_t status, const char *text)
{
    answer(call, NULL, (grpc_status_code)dt_rpc_to_grpc(status), text ? text : "");
}

/* ---- methods that do not exist: without an answer they would hang until the deadline ---- */

static void free_unknown(struct unknown *unknown)
{
    dt_rpc_server_t *server = unknown->server;
    grpc_call_details_destroy(&unknown->details);
    grpc_metadata_array_destroy(&unknown->initial);
    if (unknown->call)
        grpc_call_unref(unknown->call);
    server->rpc->open_count--;
    free(unknown);
    dt_rpc_server_maybe_done(server);
}

static void on_unknown_answered(void *arg, bool ok)
{
    struct unknown *unknown = arg;
    (void)ok;
    unknown->server->requests--;
    free_unknown(unknown);
}

static void on_unknown(void *arg, bool ok)
{
    struct unknown *unknown = arg;
    dt_rpc_server_t *server = unknown->server;
    if (!ok || server->is_stopping) {
        if (ok)
            (void)grpc_call_cancel(unknown->call, NULL);
        on_unknown_answered(unknown, false);
        return;
    }
    request_unknown(server);
    server->stats.unknown_total++;
    char text[DT_RPC_TEXT_MAX];
    char *method = grpc_slice_to_c_string(unknown->details.method);
    (void)snprintf(text, sizeof text, "this server has no method %.160s", method);
    gpr_free(method);
    grpc_slice details = grpc_slice_from_copied_string(text);
    grpc_op ops[3] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
         .data.send_status_from_server.status = GRPC_STATUS_UNIMPLEMENTED,
         .data.send_status_from_server.status_details = &details},
        {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
         .data.recv_close_on_server.cancelled = &unknown->is_cancelled},
    };
    dt_rpc_start(unknown->call, ops, 3, &unknown->reply_tag);
    grpc_slice_unref(details);
}

static void request_unknown(dt_rpc_server_t *server)
{
    struct unknown *unknown = calloc(1, sizeof *unknown);
    if (!unknown)
        return;
    unknown->server = server;
    unknown->request_tag = (dt_rpc_tag_t){on_unknown, unknown};
    unknown->reply_tag = (dt_rpc_tag_t){on_unknown_answered, unknown};
    grpc_call_details_init(&unknown->details);
    grpc_metadata_array_init(&unknown->initial);
    server->rpc->open_count++;
    server->requests++; /* until it was answered */
    dt_check(grpc_server_request_call(server->grpc, &unknown->call, &unknown->details,
                                      &unknown->initial, server->rpc->queue, server->rpc->queue,
                                      &unknown->request_tag) == GRPC_CALL_OK);
}

/* ---- life ---- */

static grpc_server *create_grpc_server(const dt_rpc_server_options_t *options)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("dtorch-server");
    grpc_resource_quota_resize(quota, MEMORY_MAX);
    grpc_arg args[] = {
        DT_RPC_INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)options->message_bytes_max),
        DT_RPC_INT_ARG(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)DT_RPC_MESSAGE_MAX),
        DT_RPC_INT_ARG(GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS_CONNECTION),
        DT_RPC_INT_ARG(GRPC_ARG_MAX_CONNECTION_IDLE_MS, (int)options->idle_ms),
        DT_RPC_INT_ARG(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, (int)options->handshake_ms),
        /* Nobody of ours compresses: two filters less that each message goes through. */
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_CHANNELZ, 0), /* nobody asks; it counts each message */
        DT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        DT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_WAIT_MS),
        /* else a client's keepalive ends in GOAWAY too_many_pings */
        DT_RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0),
        DT_RPC_INT_ARG(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000),
        DT_RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        DT_RPC_INT_ARG(GRPC_ARG_ALLOW_REUSEPORT, 0), /* else two servers share one port */
        {.type = GRPC_ARG_POINTER,
         .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {.p = quota, .vtable = grpc_resource_quota_arg_vtable()}},
    };
    grpc_channel_args list = {sizeof args / sizeof *args, args};
    grpc_server *server = grpc_server_create(&list, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static void fill_defaults(dt_rpc_server_options_t *options)
{
#define DEFAULT(field, number)                                                                     \
    if (options->field == 0)                                                                       \
    options->field = (number)
    DEFAULT(connection_max, 4096);
    DEFAULT(stream_max, 8192);
    DEFAULT(call_max, 1024);
    DEFAULT(message_bytes_max, DT_RPC_MESSAGE_MAX);
    DEFAULT(queue_bytes_max, 8u << 20);
    DEFAULT(idle_ms, 10000);
    DEFAULT(handshake_ms, 5000);
#undef DEFAULT
    /* Without a descriptor left not even the silent ones could be told from the others. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 2 * DESCRIPTOR_RESERVE &&
        options->connection_max > limit.rlim_cur - DESCRIPTOR_RESERVE)
        options->connection_max = (size_t)limit.rlim_cur - DESCRIPTOR_RESERVE;
}

static void free_server(dt_rpc_server_t *server)
{
    dt_rpc_listeners_close(server);
    dt_rpc_connections_free(server);
    dt_timer_free(server->grace);
    dt_timer_free(server->sweep);
    dt_timer_free(server->breath);
    grpc_server_destroy(server->grpc);
    grpc_server_credentials_release(server->insecure);
    free(server->registered);
    server->rpc->open_count--;
    free(server);
}

static void on_grace(void *arg, int64_t deadline_ns)
{
    dt_rpc_server_t *server = arg;
    (void)deadline_ns;
    if (!server->is_shut)
        grpc_server_cancel_all_calls(server->grpc);
}

dt_status_t dt_rpc_server_create(dt_rpc_t *rpc, const dt_rpc_server_options_t *options,
                                 dt_rpc_server_t **ret_server, dt_error_t *err)
{
    dt_rpc_server_t *server = calloc(1, sizeof *server);
    dt_rpc_registered_t *registered = calloc(options->method_count + 1, sizeof *registered);
    if (!server || !registered) {
        free(server);
        free(registered);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a server");
    }
    server->rpc = rpc;
    server->options = *options;
    fill_defaults(&server->options);
    server->registered = registered;
    dt_status_t status = dt_timer_create(rpc->loop, on_grace, server, &server->grace, err);
    if (status == DT_OK)
        status = dt_rpc_listeners_init(server, err);
    if (status != DT_OK) {
        dt_timer_free(server->grace);
        free(registered);
        free(server);
        return status;
    }
    server->grpc = create_grpc_server(&server->options);
    server->insecure = grpc_insecure_server_credentials_create();
    grpc_server_register_completion_queue(server->grpc, rpc->queue, NULL);
    for (size_t i = 0; i < options->method_count; i++) {
        const dt_rpc_method_t *method = &options->methods[i];
        registered[i].method = method;
        registered[i].handle = grpc_server_register_method(
            server->grpc, method->name, NULL,
            method->ops ? GRPC_SRM_PAYLOAD_NONE : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        dt_check(registered[i].handle != NULL); /* a name twice */
    }
    rpc->open_count++;
    *ret_server = server;
    return DT_OK;
}

dt_status_t dt_rpc_server_start(dt_rpc_server_t *server, dt_error_t *err)
{
    if (server->is_started)
        return dt_fail(err, DT_ERR_INVALID, "dt", 0, "the server was started already");
    server->is_started = true;
    grpc_server_start(server->grpc);
    for (size_t i = 0; i < server->options.method_count; i++)
        for (int ahead = 0; ahead < REQUESTS_AHEAD; ahead++) {
            if (server->registered[i].method->ops)
                request_stream(server, &server->registered[i]);
            else
                request_unary(server, &server->registered[i]);
        }
    for (int ahead = 0; ahead < UNKNOWN_AHEAD; ahead++)
        request_unknown(server);
    dt_rpc_listeners_begin(server);
    return DT_OK;
}

void dt_rpc_server_maybe_done(dt_rpc_server_t *server)
{
    if (!server->is_shut || server->requests || server->stats.streams || server->stats.calls)
        return;
    void (*done)(void *arg) = server->done;
    void *arg = server->done_arg;
    free_server(server);
    if (done)
        done(arg);
}

static void on_shut(void *arg, bool ok)
{
    dt_rpc_server_t *server = arg;
    (void)ok;
    server->is_shut = true;
    dt_rpc_server_maybe_done(server);
}

void dt_rpc_server_stop(dt_rpc_server_t *server, int64_t grace_ms, void (*done)(void *arg),
                        void *arg)
{
    if (server->is_stopping)
        return;
    server->is_stopping = true;
    server->done = done;
    server->done_arg = arg;
    dt_rpc_listeners_close(server);
    server->shut_tag = (dt_rpc_tag_t){on_shut, server};
    grpc_server_shutdown_and_notify(server->grpc, server->rpc->queue, &server->shut_tag);
    dt_timer_arm(server->grace, dt_loop_now_ns() + grace_ms * DT_RPC_NS_PER_MS);
}

void dt_rpc_server_stats(const dt_rpc_server_t *server, dt_rpc_server_stats_t *ret_stats)
{
    *ret_stats = server->stats;
    ret_stats->connections = server->connection_count - server->gone_count;
    ret_stats->connection_max = server->options.connection_max;
    ret_stats->stream_max = server->options.stream_max;
    ret_stats->call_max = server->options.call_max;
}
