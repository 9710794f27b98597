/* Calls that wait, for tools and tests: each has a completion queue of its own, and no runtime. */
#include <stdlib.h>
#include <string.h>

#include "rpc/rpc_internal.h"

/* What completed: tags are these numbers. */
enum {
    TAG_BEGIN = 1,
    TAG_READ,
    TAG_SEND,
    TAG_STATUS,
    TAG_COUNT,
};

struct dt_rpc_reader {
    grpc_completion_queue *queue;
    grpc_channel *channel;
    grpc_call *call;
    grpc_byte_buffer *message;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice details;
    bool is_pending[TAG_COUNT];
    bool is_ok[TAG_COUNT];
    bool has_status; /* it was asked for */
};

static void *tag_of(int number)
{
    return (void *)(intptr_t)number;
}

static void begin(dt_rpc_reader_t *reader, int number, grpc_op *ops, size_t count)
{
    reader->is_pending[number] = true;
    dt_check(grpc_call_start_batch(reader->call, ops, count, tag_of(number), NULL) == GRPC_CALL_OK);
}

/* Wait until `number` has completed. False: not by the deadline. */
static bool wait_for(dt_rpc_reader_t *reader, int number, gpr_timespec deadline)
{
    while (reader->is_pending[number]) {
        grpc_event event = grpc_completion_queue_next(reader->queue, deadline, NULL);
        if (event.type != GRPC_OP_COMPLETE)
            return false;
        int done = (int)(intptr_t)event.tag;
        reader->is_pending[done] = false;
        reader->is_ok[done] = event.success != 0;
    }
    return true;
}

static void begin_read(dt_rpc_reader_t *reader)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &reader->message};
    begin(reader, TAG_READ, &op, 1);
}

/* Asked for once nothing more can be read: earlier, a status that is not OK makes gRPC drop the
 * messages before it. */
static void begin_status(dt_rpc_reader_t *reader)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                  .data.recv_status_on_client.trailing_metadata = &reader->trailing,
                  .data.recv_status_on_client.status = &reader->status,
                  .data.recv_status_on_client.status_details = &reader->details};
    if (!reader->has_status)
        begin(reader, TAG_STATUS, &op, 1);
    reader->has_status = true;
}

static void begin_call(dt_rpc_reader_t *reader, bool is_bidi, const void *data, size_t size)
{
    grpc_byte_buffer *bytes = data ? dt_rpc_bytes(data, size) : NULL;
    grpc_op ops[4] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &reader->initial},
    };
    size_t count = 2;
    if (bytes)
        ops[count++] =
            (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = bytes};
    if (!is_bidi)
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    begin(reader, TAG_BEGIN, ops, count);
    begin_read(reader);
    if (bytes)
        grpc_byte_buffer_destroy(bytes);
}

static dt_status_t open_call(const char *address, const dt_rpc_tls_t *tls, const char *method,
                             int64_t timeout_ms, gpr_timespec deadline,
                             dt_rpc_reader_t **ret_reader, dt_error_t *err)
{
    dt_rpc_reader_t *reader = calloc(1, sizeof *reader);
    if (!reader)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a call");
    dt_status_t status = dt_rpc_library_init(err);
    if (status != DT_OK) {
        free(reader);
        return status;
    }
    status = dt_rpc_channel(address, tls, 0, timeout_ms, &reader->channel, err);
    if (status != DT_OK) {
        free(reader);
        dt_rpc_library_fini();
        return status;
    }
    reader->queue = grpc_completion_queue_create_for_next(NULL);
    reader->details = grpc_empty_slice();
    grpc_metadata_array_init(&reader->initial);
    grpc_metadata_array_init(&reader->trailing);
    grpc_slice name = grpc_slice_from_copied_string(method);
    reader->call = grpc_channel_create_call(reader->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                            reader->queue, name, NULL, deadline, NULL);
    grpc_slice_unref(name); /* the call has its own reference */
    *ret_reader = reader;
    return DT_OK;
}

void dt_rpc_reader_free(dt_rpc_reader_t *reader)
{
    if (!reader)
        return;
    (void)grpc_call_cancel(reader->call, NULL);
    for (int number = TAG_BEGIN; number < TAG_COUNT; number++)
        (void)wait_for(reader, number, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    if (reader->message)
        grpc_byte_buffer_destroy(reader->message);
    grpc_metadata_array_destroy(&reader->initial);
    grpc_metadata_array_destroy(&reader->trailing);
    grpc_slice_unref(reader->details);
    grpc_call_unref(reader->call);
    grpc_channel_destroy(reader->channel);
    grpc_completion_queue_shutdown(reader->queue);
    while (
        grpc_completion_queue_next(reader->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(reader->queue);
    free(reader);
    dt_rpc_library_fini();
}

/* How the call ended. Waits for the status, which comes when all messages were read. */
static dt_status_t final_status(dt_rpc_reader_t *reader, gpr_timespec deadline, dt_error_t *err)
{
    dt_error_t why = {0};
    begin_status(reader);
    if (!wait_for(reader, TAG_STATUS, deadline))
        return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "no answer in time");
    dt_rpc_why(reader->status, reader->details, &why);
    if (why.code != DT_OK && err)
        *err = why;
    return why.code;
}

static dt_status_t take_message(dt_rpc_reader_t *reader, uint8_t **ret_data, size_t *ret_size,
                                dt_error_t *err)
{
    size_t size = grpc_byte_buffer_length(reader->message);
    uint8_t *data = malloc(size + 1);
    if (!data)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for %zu bytes", size);
    dt_rpc_copy_out(reader->message, data);
    grpc_byte_buffer_destroy(reader->message);
    reader->message = NULL;
    *ret_data = data;
    *ret_size = size;
    return DT_OK;
}

/* NOLINTNEXTLINE(readability-function-size): nine parameters: a call, its answer and its time */
dt_status_t dt_rpc_call_blocking(const char *address, const dt_rpc_tls_t *tls, const char *method,
                                 const void *data, size_t size, int64_t timeout_ms,
                                 uint8_t **ret_data, size_t *ret_size, dt_error_t *err)
{
    dt_rpc_reader_t *reader;
    gpr_timespec deadline = dt_rpc_deadline(timeout_ms);
    gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC); /* the call has the deadline itself */
    DT_TRY(open_call(address, tls, method, timeout_ms, deadline, &reader, err));
    begin_call(reader, false, data ? data : "", size);
    (void)wait_for(reader, TAG_READ, never);
    dt_status_t status = final_status(reader, never, err);
    if (status == DT_OK) {
        status = reader->message ? take_message(reader, ret_data, ret_size, err)
                                 : dt_fail(err, DT_ERR_INTERNAL, "grpc", 0,
                                           "%s: a reply without a message", method);
    }
    dt_rpc_reader_free(reader);
    return status;
}

/* NOLINTNEXTLINE(readability-function-size): nine parameters: a call, its stream and its time */
dt_status_t dt_rpc_reader_open(const char *address, const dt_rpc_tls_t *tls, const char *method,
                               bool is_bidi, const void *data, size_t size, int64_t timeout_ms,
                               dt_rpc_reader_t **ret_reader, dt_error_t *err)
{
    dt_rpc_reader_t *reader;
    dt_status_t status = DT_OK;
    DT_TRY(open_call(address, tls, method, timeout_ms, gpr_inf_future(GPR_CLOCK_MONOTONIC), &reader,
                     err));
    begin_call(reader, is_bidi, data, size);
    if (!wait_for(reader, TAG_BEGIN, dt_rpc_deadline(timeout_ms)))
        status = dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "%s did not answer in %lld ms", address,
                         (long long)timeout_ms);
    else if (!reader->is_ok[TAG_BEGIN]) {
        status = final_status(reader, gpr_inf_future(GPR_CLOCK_MONOTONIC), err);
        if (status == DT_OK) /* it ended before it began */
            status = dt_fail(err, DT_ERR_PEER, "grpc", 0, "%s closed the stream", address);
    }
    if (status != DT_OK) {
        dt_rpc_reader_free(reader);
        return status;
    }
    *ret_reader = reader;
    return DT_OK;
}

dt_status_t dt_rpc_reader_send(dt_rpc_reader_t *reader, const void *data, size_t size,
                               int64_t timeout_ms, dt_error_t *err)
{
    gpr_timespec deadline = dt_rpc_deadline(timeout_ms);
    if (!wait_for(reader, TAG_SEND, deadline)) /* the one before */
        return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "the peer does not read");
    grpc_byte_buffer *bytes = dt_rpc_bytes(data, size);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = bytes};
    begin(reader, TAG_SEND, &op, 1);
    grpc_byte_buffer_destroy(bytes);
    if (!wait_for(reader, TAG_SEND, deadline))
        return dt_fail(err, DT_ERR_TIMEOUT, "dt", 0, "the peer does not read");
    if (!reader->is_ok[TAG_SEND])
        return dt_fail(err, DT_ERR_PEER, "grpc", 0, "the stream has ended");
    return DT_OK;
}

dt_status_t dt_rpc_reader_next(dt_rpc_reader_t *reader, int64_t timeout_ms, uint8_t **ret_data,
                               size_t *ret_size, dt_error_t *err)
{
    if (!wait_for(reader, TAG_READ, dt_rpc_deadline(timeout_ms)))
        return dt_fail(err, DT_ERR_AGAIN, "dt", 0, "no message in time");
    if (!reader->message) {
        dt_status_t status = final_status(reader, gpr_inf_future(GPR_CLOCK_MONOTONIC), err);
        return status != DT_OK ? status : dt_fail(err, DT_ERR_STOPPED, "grpc", 0, "ended");
    }
    DT_TRY(take_message(reader, ret_data, ret_size, err));
    begin_read(reader);
    return DT_OK;
}
