/* Bidirectional streams: the same code for both sides, since they differ in their start and in
 * their last batch only.
 *
 * A stream lives while a batch of it is in flight (`pending`); when the last one has completed,
 * closed() runs and everything is freed. States: opening -> open -> ending (nothing more is
 * accepted) -> end begun (the final batch was started) -> closed. */
#include <grpc/support/string_util.h>
#include <stdlib.h>
#include <string.h>

#include "rpc/rpc_internal.h"

#define QUEUE_BYTES_MAX (8u << 20)

struct message {
    dt_list_t link;
    grpc_byte_buffer *bytes;
    size_t size;
};

static void end_if_drained(dt_rpc_stream_t *stream);

void *dt_rpc_stream_arg(const dt_rpc_stream_t *stream)
{
    return stream->arg;
}

void dt_rpc_stream_set_arg(dt_rpc_stream_t *stream, void *arg)
{
    stream->arg = arg;
}

const dt_rpc_peer_t *dt_rpc_stream_peer(const dt_rpc_stream_t *stream)
{
    return &stream->peer;
}

uint64_t dt_rpc_stream_id(const dt_rpc_stream_t *stream)
{
    return stream->id;
}

int64_t dt_rpc_stream_last_rx_ns(const dt_rpc_stream_t *stream)
{
    return stream->last_rx_ns;
}

size_t dt_rpc_stream_queued(const dt_rpc_stream_t *stream)
{
    return stream->queued_bytes;
}

/* ---- life ---- */

static void drop_queue(dt_rpc_stream_t *stream)
{
    dt_list_t *at;
    while ((at = dt_list_pop(&stream->messages)) != NULL) {
        struct message *message = DT_CONTAINER_OF(at, struct message, link);
        grpc_byte_buffer_destroy(message->bytes);
        free(message);
    }
    stream->queued_bytes = stream->is_writing ? stream->writing_bytes : 0;
}

void dt_rpc_stream_discard(dt_rpc_stream_t *stream)
{
    drop_queue(stream);
    dt_list_remove(&stream->close_link);
    dt_timer_free(stream->open_timer);
    if (stream->rx)
        grpc_byte_buffer_destroy(stream->rx);
    grpc_metadata_array_destroy(&stream->initial);
    grpc_metadata_array_destroy(&stream->trailing);
    grpc_slice_unref(stream->details);
    grpc_slice_unref(stream->bearer.key);
    grpc_slice_unref(stream->bearer.value);
    if (stream->call)
        grpc_call_unref(stream->call);
    if (stream->channel)
        grpc_channel_destroy(stream->channel);
    stream->rpc->open_count--;
    free(stream);
}

static void tell_closed(dt_rpc_stream_t *stream)
{
    dt_error_t why = {.code = DT_OK, .source = "dt", .text = "ended"};
    if (!stream->server)
        dt_rpc_why(stream->grpc_status, stream->details, &why);
    else if (stream->has_why && (stream->why.code != DT_OK || !stream->is_cancelled))
        why = stream->why;
    else if (stream->is_cancelled) /* a lost connection looks like a half-close first */
        (void)dt_fail(&why, DT_ERR_PEER, "grpc", GRPC_STATUS_CANCELLED,
                      "the peer closed the connection");
    stream->ops->closed(stream, &why);
}

void dt_rpc_stream_put(dt_rpc_stream_t *stream)
{
    dt_rpc_server_t *server = stream->server;
    if (--stream->pending > 0)
        return;
    stream->is_ending = stream->is_end_begun = true;
    tell_closed(stream);
    dt_rpc_peer_done(stream->connection);
    dt_rpc_stream_discard(stream);
    if (server) {
        server->stats.streams--;
        dt_rpc_server_maybe_done(server);
    }
}

void dt_rpc_stream_batch(dt_rpc_stream_t *stream, grpc_op *op, dt_rpc_tag_t *tag)
{
    stream->pending++;
    dt_rpc_start(stream->call, op, 1, tag);
}

void dt_rpc_stream_shut(dt_rpc_stream_t *stream)
{
    stream->is_ending = stream->is_end_begun = true;
    drop_queue(stream);
}

void dt_rpc_stream_opened(dt_rpc_stream_t *stream)
{
    stream->is_open = true;
    stream->last_rx_ns = dt_loop_now_ns();
    if (stream->ops->open)
        stream->ops->open(stream);
}

/* ---- receiving ---- */

void dt_rpc_stream_read(dt_rpc_stream_t *stream)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &stream->rx};
    dt_rpc_stream_batch(stream, &op, &stream->read_tag);
}

static void on_half_close(dt_rpc_stream_t *stream)
{
    stream->is_half_closed = true;
    if (!stream->server)
        return; /* the server's status follows */
    if (!stream->is_server_stream)
        dt_rpc_stream_close(stream, DT_OK, NULL);
    else if (stream->ops->half_closed && !stream->is_ending)
        stream->ops->half_closed(stream);
}

/* Client: ask for the status, once there is nothing more to read. Asked for earlier, a status that
 * is not OK makes gRPC drop the messages before it that were not read yet. */
static void read_status(dt_rpc_stream_t *stream)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                  .data.recv_status_on_client.trailing_metadata = &stream->trailing,
                  .data.recv_status_on_client.status = &stream->grpc_status,
                  .data.recv_status_on_client.status_details = &stream->details};
    if (!stream->server)
        dt_rpc_stream_batch(stream, &op, &stream->close_tag);
}

static void handle_message(dt_rpc_stream_t *stream, grpc_byte_buffer *bytes)
{
    size_t size = 0;
    const uint8_t *data = dt_rpc_gather(stream->rpc, bytes, &size);
    grpc_byte_buffer_destroy(bytes);
    if (!data) {
        dt_rpc_stream_cancel(stream, DT_ERR_NOMEM, "no memory for a message");
        read_status(stream);
        return;
    }
    stream->last_rx_ns = dt_loop_now_ns();
    if (stream->server)
        stream->server->stats.rx_messages++;
    stream->ops->message(stream, data, size);
    /* Later: with the next read gRPC writes to the peer that its window is free again, which wakes
     * it. What the message led to leaves first, and a thread that has what it waited for goes on.
     * The reference is that of the read. */
    stream->pending++;
    dt_list_push(&stream->rpc->unread, &stream->unread_link);
}

void dt_rpc_catch_up(dt_rpc_t *rpc)
{
    dt_list_t *at;
    while ((at = dt_list_pop(&rpc->unread)) != NULL) {
        dt_rpc_stream_t *stream = DT_CONTAINER_OF(at, dt_rpc_stream_t, unread_link);
        stream->pending--;
        dt_rpc_stream_read(stream);
    }
}

static void on_read(void *arg, bool ok)
{
    dt_rpc_stream_t *stream = arg;
    grpc_byte_buffer *bytes = stream->rx;
    stream->rx = NULL;
    if (ok && bytes && !stream->has_why) {
        handle_message(stream, bytes);
    } else {
        if (bytes)
            grpc_byte_buffer_destroy(bytes); /* we have ended it: nobody wants to know */
        else if (ok)
            on_half_close(stream);
        read_status(stream);
    }
    dt_rpc_stream_put(stream);
}

/* ---- sending ---- */

static void write_next(dt_rpc_stream_t *stream)
{
    if (stream->is_writing || stream->is_corked)
        return;
    dt_list_t *at = dt_list_pop(&stream->messages);
    if (!at)
        return;
    struct message *message = DT_CONTAINER_OF(at, struct message, link);
    stream->tx = message->bytes;
    stream->writing_bytes = message->size;
    stream->is_writing = true;
    free(message);
    /* The hint is legal only when another message follows: the last one would never leave. */
    uint32_t flags = dt_list_is_empty(&stream->messages) ? 0 : GRPC_WRITE_BUFFER_HINT;
    grpc_op op = {
        .op = GRPC_OP_SEND_MESSAGE, .flags = flags, .data.send_message.send_message = stream->tx};
    dt_rpc_stream_batch(stream, &op, &stream->write_tag);
}

static void on_write(void *arg, bool ok)
{
    dt_rpc_stream_t *stream = arg;
    grpc_byte_buffer_destroy(stream->tx);
    stream->tx = NULL;
    stream->is_writing = false;
    stream->queued_bytes -= stream->writing_bytes;
    if (stream->server && ok)
        stream->server->stats.tx_messages++;
    if (!ok)
        dt_rpc_stream_shut(stream);
    write_next(stream);
    end_if_drained(stream);
    if (ok && !stream->is_writing && !stream->is_ending && stream->ops->drained)
        stream->ops->drained(stream);
    dt_rpc_stream_put(stream);
}

dt_status_t dt_rpc_stream_send(dt_rpc_stream_t *stream, const void *data, size_t size)
{
    if (stream->is_ending)
        return DT_ERR_STOPPED;
    if (size > stream->queue_bytes_max || stream->queued_bytes > stream->queue_bytes_max - size)
        return DT_ERR_LIMIT;
    struct message *message = malloc(sizeof *message);
    if (!message)
        return DT_ERR_NOMEM;
    message->bytes = dt_rpc_bytes(data, size);
    message->size = size;
    stream->queued_bytes += size;
    dt_list_push(&stream->messages, &message->link);
    write_next(stream);
    return DT_OK;
}

void dt_rpc_stream_cork(dt_rpc_stream_t *stream)
{
    stream->is_corked = true;
}

void dt_rpc_stream_uncork(dt_rpc_stream_t *stream)
{
    stream->is_corked = false;
    write_next(stream);
    end_if_drained(stream);
}

/* ---- ending ---- */

static void end_if_drained(dt_rpc_stream_t *stream)
{
    if (!stream->is_ending || stream->is_end_begun || stream->is_writing ||
        !dt_list_is_empty(&stream->messages)) /* corked */
        return;
    stream->is_end_begun = true;
    grpc_slice details = grpc_slice_from_copied_string(stream->why.text);
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    if (stream->server) {
        op.op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        op.data.send_status_from_server.status = (grpc_status_code)dt_rpc_to_grpc(stream->why.code);
        op.data.send_status_from_server.status_details = &details;
    }
    dt_rpc_stream_batch(stream, &op, &stream->end_tag);
    grpc_slice_unref(details);
}

static void set_why(dt_rpc_stream_t *stream, dt_status_t status, const char *text)
{
    if (stream->has_why)
        return;
    stream->has_why = true;
    (void)dt_fail(&stream->why, status, "dt", 0, "%.*s", DT_RPC_TEXT_MAX, text ? text : "");
}

void dt_rpc_stream_close(dt_rpc_stream_t *stream, dt_status_t status, const char *text)
{
    if (stream->is_ending)
        return;
    if (stream->server)
        set_why(stream, status, text);
    stream->is_ending = true;
    stream->close_deadline_ns = dt_loop_now_ns() + DT_RPC_CLOSE_NS;
    if (dt_list_is_empty(&stream->rpc->closing))
        dt_rpc_arm_sweep(stream->rpc);
    dt_list_push(&stream->rpc->closing, &stream->close_link);
    end_if_drained(stream);
}

void dt_rpc_stream_cancel(dt_rpc_stream_t *stream, dt_status_t status, const char *text)
{
    set_why(stream, status, text);
    dt_rpc_stream_shut(stream);
    (void)grpc_call_cancel_with_status(stream->call, (grpc_status_code)dt_rpc_to_grpc(status),
                                       text ? text : "", NULL);
}

/* ---- the rest of the batches ---- */

static void on_batch(void *arg, bool ok)
{
    (void)ok;
    dt_rpc_stream_put(arg);
}

static void on_close(void *arg, bool ok)
{
    dt_rpc_stream_t *stream = arg;
    (void)ok;
    if (!stream->server || stream->is_cancelled)
        dt_rpc_stream_shut(stream);
    dt_rpc_stream_put(stream);
}

dt_rpc_stream_t *dt_rpc_stream_new(dt_rpc_t *rpc, const dt_rpc_stream_ops_t *ops, void *arg)
{
    dt_rpc_stream_t *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->rpc = rpc;
    stream->ops = ops;
    stream->arg = arg;
    stream->queue_bytes_max = QUEUE_BYTES_MAX;
    stream->details = stream->bearer.key = stream->bearer.value = grpc_empty_slice();
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    dt_list_init(&stream->messages);
    dt_list_init(&stream->close_link);
    dt_list_init(&stream->unread_link);
    stream->read_tag = (dt_rpc_tag_t){on_read, stream};
    stream->write_tag = (dt_rpc_tag_t){on_write, stream};
    stream->close_tag = (dt_rpc_tag_t){on_close, stream};
    stream->initial_tag = stream->end_tag = (dt_rpc_tag_t){on_batch, stream};
    rpc->open_count++;
    return stream;
}
