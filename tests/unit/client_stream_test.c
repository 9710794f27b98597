/* Frames: closing, keeping, acknowledging, sending again; frees. Without an I/O thread. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/client.h"
#include "lib/offlinesession.h"

TestSuite(client_stream, .timeout = 60);

static dt_session_t *session;

static void open_session(void)
{
    session = dt_offlinesession_new(1 << 20);
    session->epoch = 3;
    pthread_mutex_lock(&session->lock);
}

static void close_session(void)
{
    session->state = DT_CLIENT_ENDED;
    dt_client_unuse_unlock(session);
}

static void put_op(uint64_t input)
{
    uint64_t output = session->next_tensor;
    dt_record_op_t op = {
        .signature = 1, .input_count = 1, .output_count = 1, .inputs = &input, .outputs = &output};
    cr_assert_eq(dt_client_room(session, dt_client_op_bound(1, 1, 0), 0, NULL), DT_OK);
    session->next_tensor++;
    dt_client_put_op(session, &op);
}

static dt_client_frame_t *frame_at(int index)
{
    dt_list_t *at = session->frames.next;
    while (index-- > 0)
        at = at->next;
    cr_assert_neq(at, &session->frames);
    return DT_CONTAINER_OF(at, dt_client_frame_t, link);
}

static int frame_count(void)
{
    int count = 0;
    for (dt_list_t *at = session->frames.next; at != &session->frames; at = at->next)
        count++;
    return count;
}

/* What the I/O thread does when it sends all. */
static void send_all(void)
{
    for (dt_list_t *at = session->frames.next; at != &session->frames; at = at->next) {
        dt_client_frame_t *frame = DT_CONTAINER_OF(at, dt_client_frame_t, link);
        if (!frame->is_counted)
            session->sent_payload += frame->size - DT_FRAME_HEADER_BYTES;
        frame->is_counted = frame->is_sent = true;
    }
    session->unsent = NULL;
    session->unsent_bytes = 0;
}

Test(client_stream, numbers_records_without_a_gap)
{
    dt_frame_reader_t reader = {0};
    open_session();
    uint64_t next = 1;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k <= i; k++)
            put_op(1);
        dt_client_close_frame(session);
        dt_client_frame_t *frame = frame_at(i);
        cr_assert_eq(dt_frame_open(&reader, frame->bytes, frame->size), 0);
        cr_assert_eq(reader.header.first_sequence, next);
        cr_assert_eq(reader.header.count, (uint32_t)i + 1);
        cr_assert_eq(reader.header.epoch, 3);
        next += reader.header.count;
    }
    cr_assert_eq(dt_client_sequence(session), next);
    dt_frame_reader_fini(&reader);
    close_session();
}

Test(client_stream, closes_a_full_frame_by_itself)
{
    open_session();
    while (frame_count() == 0)
        put_op(session->next_tensor - 1);
    cr_assert_leq(frame_at(0)->size, DT_FRAME_FLUSH_BYTES);
    cr_assert_geq(frame_at(0)->size, DT_FRAME_FLUSH_BYTES - 2048);
    close_session();
}

Test(client_stream, a_lingering_frame_is_closed_by_the_appending_thread)
{
    open_session();
    session->settings.linger_ns = 0;
    for (int i = 0; i < 8; i++)
        put_op(1);
    cr_assert_eq(frame_count(), 1);
    close_session();
}

static void put_ops(int count)
{
    while (count-- > 0)
        put_op(1);
}

Test(client_stream, frames_stay_open_for_longer_the_longer_a_run_of_operators_is)
{
    enum { LOOK = DT_CLIENT_LINGER_LOOK };
    open_session();
    session->settings.linger_ns = 0;
    session->settings.linger_max_ns = INT64_MAX;
    session->credit_first = session->credit_bytes;
    put_ops(LOOK); /* the cluster has nothing to do: they leave */
    cr_assert_eq(frame_count(), 1);
    send_all();
    session->busy_since_ns = 1; /* since this machine was started, nearly */
    put_ops(LOOK);
    cr_assert_eq(frame_count(), 1);
    dt_client_close_frame(session);
    session->has_awaited = true; /* a value: what comes now is a new run */
    put_ops(LOOK);
    cr_assert_eq(frame_count(), 3);
    send_all();
    session->busy_since_ns = 1;
    session->credit_bytes = session->credit_first + session->sent_payload;
    put_ops(LOOK); /* all is executed */
    cr_assert_eq(frame_count(), 4);
    close_session();
}

Test(client_stream, keeps_frames_until_they_are_acknowledged)
{
    open_session();
    for (int i = 0; i < 4; i++) {
        put_op(1);
        put_op(1);
        dt_client_close_frame(session);
    }
    send_all();
    dt_client_accepted(session, 5); /* frame 3 in part */
    cr_assert_eq(frame_count(), 2);
    cr_assert_eq(frame_at(0)->first, 5);
    dt_client_accepted(session, 2); /* late: nothing */
    cr_assert_eq(session->acked_sequence, 5);
    dt_client_accepted(session, 8);
    cr_assert_eq(frame_count(), 0);
    close_session();
}

Test(client_stream, sends_again_what_the_other_side_does_not_have)
{
    dt_frame_reader_t reader = {0};
    open_session();
    for (int i = 0; i < 4; i++) {
        put_op(1);
        dt_client_close_frame(session);
    }
    send_all();
    put_op(1);
    dt_client_close_frame(session); /* never sent */
    session->epoch = 4;
    dt_client_resume(session, 3);
    cr_assert_eq(frame_count(), 3);
    cr_assert_eq(session->unsent, frame_at(0));
    cr_assert_eq(session->acked_sequence, 2);
    for (int i = 0; i < 3; i++) {
        dt_client_frame_t *frame = frame_at(i);
        cr_assert_eq(dt_frame_open(&reader, frame->bytes, frame->size), 0);
        cr_assert_eq(reader.header.first_sequence, 3 + (uint64_t)i);
        cr_assert_eq(reader.header.flags, i < 2 ? DT_FRAME_RESENT : 0);
    }
    dt_frame_reader_fini(&reader);
    close_session();
}

Test(client_stream, a_program_waits_when_too_much_is_unsent)
{
    open_session();
    dt_error_t err;
    size_t bound = dt_client_op_bound(1, 1, 0);
    while (dt_client_room(session, bound, dt_loop_now_ns() + 1000000, &err) == DT_OK)
        put_op(1);
    cr_assert_eq(err.code, DT_ERR_TIMEOUT);
    cr_assert_gt(session->unsent_bytes, DT_CLIENT_UNSENT_MAX);
    cr_assert_leq(session->unsent_bytes, DT_CLIENT_UNSENT_MAX + DT_FRAME_FLUSH_BYTES);
    send_all();
    cr_assert_eq(dt_client_room(session, 100, 0, &err), DT_OK);
    close_session();
}

Test(client_stream, frees_go_with_the_frame_and_behind_the_last_use)
{
    dt_frame_reader_t reader = {0};
    dt_record_t record;
    bool is_end = false;
    int ops = 0, frees = 0;
    open_session();
    for (int i = 0; i < 200; i++) {
        put_op(1);
        dt_tensor_t *tensor = dt_client_tensor_new(session, session->next_tensor - 1, 0, 0);
        dt_client_tensor_unref(tensor);
    }
    dt_client_close_frame(session);
    cr_assert_eq(session->free_count, 0);
    dt_client_frame_t *frame = frame_at(0);
    cr_assert_eq(dt_frame_open(&reader, frame->bytes, frame->size), 0);
    while (dt_record_next(&reader, &record, &is_end) == 0 && !is_end) {
        ops += record.kind == DT_RECORD_OP;
        for (uint32_t i = 0; record.kind == DT_RECORD_FREE && i < record.ids.count; i++)
            cr_assert_leq(record.ids.ids[i], (uint64_t)ops, "freed before it was made");
        frees += record.kind == DT_RECORD_FREE ? (int)record.ids.count : 0;
    }
    cr_assert_eq(ops, 200);
    cr_assert_eq(frees, 200);
    dt_frame_reader_fini(&reader);
    close_session();
}

Test(client_stream, frees_alone_are_sent_at_the_tail)
{
    open_session();
    for (uint64_t i = 0; i < 1000; i++)
        dt_client_tensor_unref(dt_client_tensor_new(session, i + 1, 0, 0));
    cr_assert_eq(frame_count(), 0);
    dt_client_put_frees(session, true);
    dt_client_close_frame(session);
    cr_assert_eq(session->free_count, 0);
    cr_assert_eq(frame_count(), 1);
    close_session();
}

Test(client_stream, the_end_of_a_session_fails_what_is_open)
{
    dt_future_t *future;
    dt_failure_t failure;
    dt_error_t err;
    open_session();
    cr_assert_eq(dt_client_fetch(session, 1, 0, &future, NULL), DT_OK);
    dt_client_end(session, DT_ERR_LOST, "gone");
    cr_assert_eq(dt_client_room(session, 10, 0, &err), DT_ERR_LOST);
    cr_assert_str_eq(err.text, "gone");
    pthread_mutex_unlock(&session->lock);
    cr_assert_eq(dt_future_wait(future, -1, &failure), DT_ERR_LOST);
    cr_assert_str_eq(failure.error.text, "gone");
    dt_future_free(future);
    pthread_mutex_lock(&session->lock);
    close_session();
}

Test(client_stream, results_are_confirmed_without_holes)
{
    dt_future_t *futures[5];
    Dtorch__V1__Result result = DTORCH__V1__RESULT__INIT;
    uint8_t meta[] = {DT_DTYPE_U8, 0, DT_META_CONTIGUOUS}, value[] = {9};
    uint8_t is = 0;
    open_session();
    for (int i = 0; i < 5; i++)
        cr_assert_eq(dt_client_fetch(session, 1, 0, &futures[i], NULL), DT_OK);
    result.meta = (ProtobufCBinaryData){sizeof meta, meta};
    result.value = (ProtobufCBinaryData){1, value};
    static const uint64_t order[] = {2, 1, 1, 5, 3, 4};
    static const uint64_t confirmed[] = {0, 2, 2, 2, 3, 5};
    for (int i = 0; i < 6; i++) {
        result.future = order[i];
        dt_client_result(session, &result);
        cr_assert_eq(session->future_base - 1, confirmed[i], "after %d", i);
    }
    pthread_mutex_unlock(&session->lock);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(dt_future_wait(futures[i], 0, NULL), DT_OK);
        cr_assert_eq(dt_future_read(futures[i], &is, 1, NULL), DT_OK);
        cr_assert_eq(is, 9);
        dt_future_free(futures[i]);
    }
    pthread_mutex_lock(&session->lock);
    close_session();
}
