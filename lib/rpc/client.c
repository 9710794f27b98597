/* The client's side: channels, streams and single requests on the state thread. Each dial has a
 * channel, and so a connection, of its own: names are resolved anew and nothing of an old failure
 * is remembered. */
#include <grpc/support/string_util.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/address.h"
#include "rpc/rpc_internal.h"

#define KEEPALIVE_MS      10000
#define KEEPALIVE_WAIT_MS 5000
#define OPEN_MS           5000
#define CONNECT_MS_MAX    20000
#define RESOLVE_MS        4000
#define TARGET_SIZE       1024

struct unary {
    dt_rpc_t *rpc;
    grpc_channel *channel;
    grpc_call *call;
    grpc_byte_buffer *reply;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    dt_rpc_tag_t tag;
    void (*done)(void *arg, const dt_error_t *why, const uint8_t *data, size_t size);
    void *arg;
};

/* ---- channels ---- */

static grpc_channel_credentials *create_credentials(const dt_rpc_tls_t *tls)
{
    if (!tls)
        return grpc_insecure_credentials_create();
    grpc_ssl_pem_key_cert_pair pair = {tls->key, tls->certificate};
    return grpc_ssl_credentials_create_ex(tls->ca, tls->certificate && tls->key ? &pair : NULL,
                                          NULL, NULL);
}

dt_status_t dt_rpc_channel(const char *address, const dt_rpc_tls_t *tls, size_t message_bytes_max,
                           int64_t limit_ms, grpc_channel **ret_channel, dt_error_t *err)
{
    dt_rpc_address_t parsed;
    char target[TARGET_SIZE];
    bool is_number = false;
    DT_TRY(dt_rpc_address_parse(address, &parsed, err));
    DT_TRY(dt_rpc_address_target(&parsed, NULL, target, sizeof target, &is_number, err));
    /* A little more, so that our own deadline comes first: its text is the clearer one. */
    int connect_ms = limit_ms < CONNECT_MS_MAX ? (int)limit_ms + 1000 : CONNECT_MS_MAX;
    int size_max = (int)(message_bytes_max ? message_bytes_max : DT_RPC_MESSAGE_MAX);
    grpc_arg args[] = {
        DT_RPC_INT_ARG(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, size_max),
        DT_RPC_INT_ARG(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)DT_RPC_MESSAGE_MAX),
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_HTTP_PROXY, 0), /* http_proxy must not see the cluster */
        DT_RPC_INT_ARG(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        DT_RPC_INT_ARG(GRPC_ARG_DNS_ENABLE_SRV_QUERIES, 0),
        DT_RPC_INT_ARG(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, RESOLVE_MS),
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_RETRIES, 0),
        DT_RPC_INT_ARG(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50),
        DT_RPC_INT_ARG(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, connect_ms), /* the attempt's limit */
        DT_RPC_INT_ARG(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, connect_ms),
        DT_RPC_INT_ARG(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* else equal dials share one */
        DT_RPC_INT_ARG(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        /* Nobody of ours compresses: two filters less that each message goes through. */
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        DT_RPC_INT_ARG(GRPC_ARG_ENABLE_CHANNELZ, 0), /* nobody asks; it counts each message */
        DT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        DT_RPC_INT_ARG(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_WAIT_MS),
        {.type = GRPC_ARG_STRING, /* the last one: only where the target does not have the name */
         .key = (char *)(uintptr_t)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
         .value.string = parsed.host},
    };
    grpc_channel_args list = {sizeof args / sizeof *args, args};
    if (!tls || parsed.is_unix || !is_number)
        list.num_args--;
    grpc_channel_credentials *credentials = create_credentials(parsed.is_unix ? NULL : tls);
    if (!credentials)
        return dt_fail(err, DT_ERR_INVALID, "grpc", 0, "gRPC does not take the certificates");
    *ret_channel = grpc_channel_create(target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return DT_OK;
}

gpr_timespec dt_rpc_deadline(int64_t timeout_ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
}

/* ---- streams ---- */

static void on_open_timeout(void *arg, int64_t deadline_ns)
{
    dt_rpc_stream_t *stream = arg;
    (void)deadline_ns;
    dt_rpc_stream_cancel(stream, DT_ERR_TIMEOUT, "nobody accepted the stream in time");
}

static void note_peer(dt_rpc_stream_t *stream)
{
    char *text = grpc_call_get_peer(stream->call);
    if (text && (strncmp(text, "ipv4:", 5) == 0 || strncmp(text, "ipv6:", 5) == 0))
        dt_rpc_address_of_peer(text, stream->peer.address, sizeof stream->peer.address);
    gpr_free(text);
}

static void on_opened(void *arg, bool ok)
{
    dt_rpc_stream_t *stream = arg;
    bool is_accepted = ok && !stream->has_why;
    if (is_accepted) {
        note_peer(stream);
        dt_timer_free(stream->open_timer);
        stream->open_timer = NULL;
        if (!stream->is_end_begun)
            dt_rpc_stream_opened(stream);
    }
    dt_rpc_stream_put(stream);
}

static void begin_dial(dt_rpc_stream_t *stream)
{
    grpc_op initial = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    if (!GRPC_SLICE_IS_EMPTY(stream->bearer.value)) {
        initial.data.send_initial_metadata.metadata = &stream->bearer;
        initial.data.send_initial_metadata.count = 1;
    }
    grpc_op opened = {.op = GRPC_OP_RECV_INITIAL_METADATA,
                      .data.recv_initial_metadata.recv_initial_metadata = &stream->initial};
    stream->pending = 1; /* ours, until all batches are started */
    dt_rpc_stream_batch(stream, &initial, &stream->initial_tag);
    dt_rpc_stream_read(stream);
    dt_rpc_stream_batch(stream, &opened, &stream->open_tag);
    stream->pending--;
}

/* A secret goes over an encrypted connection only, whatever the caller wanted. */
static void take_bearer(dt_rpc_stream_t *stream, const dt_rpc_dial_t *dial)
{
    char text[DT_RPC_BEARER_MAX + sizeof DT_RPC_BEARER];
    dt_rpc_address_t parsed;
    if (!dial->bearer || !*dial->bearer || !dial->tls ||
        dt_rpc_address_parse(dial->address, &parsed, NULL) != DT_OK || parsed.is_unix)
        return;
    (void)snprintf(text, sizeof text, DT_RPC_BEARER "%s", dial->bearer);
    stream->bearer.key = grpc_slice_from_static_string(DT_RPC_AUTHORIZATION);
    stream->bearer.value = grpc_slice_from_copied_string(text);
    explicit_bzero(text, sizeof text);
}

dt_status_t dt_rpc_dial(dt_rpc_t *rpc, const dt_rpc_dial_t *dial, dt_rpc_stream_t **ret_stream,
                        dt_error_t *err)
{
    dt_rpc_stream_t *stream = dt_rpc_stream_new(rpc, dial->ops, dial->arg);
    if (!stream)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a stream");
    int64_t open_ms = dial->open_ms ? dial->open_ms : OPEN_MS;
    dt_status_t status =
        dt_timer_create(rpc->loop, on_open_timeout, stream, &stream->open_timer, err);
    if (status == DT_OK)
        status = dt_rpc_channel(dial->address, dial->tls, dial->message_bytes_max, open_ms,
                                &stream->channel, err);
    if (status != DT_OK) {
        dt_rpc_stream_discard(stream);
        return status;
    }
    stream->id = ++rpc->stream_id;
    take_bearer(stream, dial);
    if (dial->queue_bytes_max)
        stream->queue_bytes_max = dial->queue_bytes_max;
    stream->open_tag = (dt_rpc_tag_t){on_opened, stream};
    grpc_slice name = grpc_slice_from_copied_string(dial->method);
    stream->call =
        grpc_channel_create_call(stream->channel, NULL, GRPC_PROPAGATE_DEFAULTS, rpc->queue, name,
                                 NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(name); /* the call has its own reference */
    dt_timer_arm(stream->open_timer, dt_loop_now_ns() + open_ms * DT_RPC_NS_PER_MS);
    begin_dial(stream);
    *ret_stream = stream;
    return DT_OK;
}

/* ---- single requests ---- */

static void free_unary(struct unary *unary)
{
    if (unary->reply)
        grpc_byte_buffer_destroy(unary->reply);
    grpc_metadata_array_destroy(&unary->initial);
    grpc_metadata_array_destroy(&unary->trailing);
    grpc_slice_unref(unary->details);
    grpc_call_unref(unary->call);
    grpc_channel_destroy(unary->channel);
    unary->rpc->open_count--;
    free(unary);
}

static void on_unary(void *arg, bool ok)
{
    struct unary *unary = arg;
    const uint8_t *data = NULL;
    size_t size = 0;
    dt_error_t why = {0};
    (void)ok; /* the status says it */
    dt_rpc_why(unary->status, unary->details, &why);
    if (why.code == DT_OK && unary->reply)
        data = dt_rpc_gather(unary->rpc, unary->reply, &size);
    if (why.code == DT_OK && !data)
        (void)dt_fail(&why, DT_ERR_INTERNAL, "grpc", 0, "a reply without a message");
    unary->done(unary->arg, &why, data, size);
    free_unary(unary);
}

/* NOLINTNEXTLINE(readability-function-size): ten parameters: a call, its time and who hears */
dt_status_t dt_rpc_unary(dt_rpc_t *rpc, const char *address, const dt_rpc_tls_t *tls,
                         const char *method, const void *data, size_t size, int64_t timeout_ms,
                         void (*done)(void *arg, const dt_error_t *why, const uint8_t *data,
                                      size_t size),
                         void *arg, dt_error_t *err)
{
    grpc_channel *channel;
    struct unary *unary = calloc(1, sizeof *unary);
    if (!unary)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a request");
    dt_status_t status = dt_rpc_channel(address, tls, 0, timeout_ms, &channel, err);
    if (status != DT_OK) {
        free(unary);
        return status;
    }
    *unary = (struct unary){.rpc = rpc,
                            .channel = channel,
                            .details = grpc_empty_slice(),
                            .tag = {on_unary, unary},
                            .done = done,
                            .arg = arg};
    rpc->open_count++;
    grpc_metadata_array_init(&unary->initial);
    grpc_metadata_array_init(&unary->trailing);
    grpc_slice name = grpc_slice_from_copied_string(method);
    unary->call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, rpc->queue, name,
                                           NULL, dt_rpc_deadline(timeout_ms), NULL);
    grpc_slice_unref(name); /* the call has its own reference */
    grpc_byte_buffer *bytes = dt_rpc_bytes(data, size);
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = bytes},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &unary->initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &unary->reply},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client.trailing_metadata = &unary->trailing,
         .data.recv_status_on_client.status = &unary->status,
         .data.recv_status_on_client.status_details = &unary->details},
    };
    dt_rpc_start(unary->call, ops, 6, &unary->tag);
    grpc_byte_buffer_destroy(bytes);
    return DT_OK;
}
