/* The session machine: hello, order, ids, what nodes get, resume, loss. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "lib/sessiontest.h"
#include "wire/signature.h"

TestSuite(session, .timeout = 60);

#define WELCOME DTORCH__V1__SESSION_DOWN__KIND_WELCOME
#define REFUSAL DTORCH__V1__SESSION_DOWN__KIND_REFUSAL
#define ACK     DTORCH__V1__SESSION_DOWN__KIND_ACK
#define ACK_MS  (DT_SESSION_ACK_NS / 1000000 + 1)
#define RESULT  DTORCH__V1__SESSION_DOWN__KIND_RESULT
#define ANSWER  DTORCH__V1__SESSION_DOWN__KIND_ANSWER
#define POISON  DTORCH__V1__SESSION_DOWN__KIND_POISON
#define FAULT   DTORCH__V1__SESSION_DOWN__KIND_FAULT

/* A session on one device: mesh 0, signature 0 `f` of two inputs, 1 in place, 2 a view; tensors 1
 * and 2 are uploaded. Next record: 6. */
static dt_sessiontest_t *prepared(void)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    dt_sessiontest_node(test, 1, 1);
    dt_sessiontest_join(test, 1, 1);
    dt_sessiontest_begin(test, 1);
    dt_sessiontest_define(test, 0, 2, "f", 0, 0);
    dt_sessiontest_define(test, 1, 1, "w", 0, 0);
    dt_sessiontest_define(test, 2, 1, "v", 0, 0);
    dt_sessiontest_upload(test, 1, 0, 0);
    dt_sessiontest_upload(test, 2, 0, 0);
    dt_sessiontest_frame(test, 1, DT_FRAME_SYNC);
    cr_assert(dt_sessiontest_down(test, 1, ACK, 0));
    cr_assert_eq(dt_sessiontest_down(test, 1, ACK, 0)->ack->sequence, 5);
    return test;
}

static void op(dt_sessiontest_t *test, uint32_t signature, uint64_t a, uint64_t b, uint64_t out)
{
    uint64_t inputs[] = {a, b};
    dt_sessiontest_op(test, signature, b ? 2 : 1, inputs, out ? 1 : 0, &out);
}

/* Send one frame of one operator and say what became of it. */
static bool is_refused_with(dt_sessiontest_t *test, const char *name, uint64_t sequence)
{
    dt_sessiontest_frame(test, 1, 0);
    return dt_sessiontest_is_malformed(test, 1, name, sequence);
}

Test(session, a_hello_is_welcomed_and_its_node_is_asked_to_serve)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    const Dtorch__V1__SessionDown *down;
    const Dtorch__V1__SessionOpen *open;
    dt_sessiontest_node(test, 1, 2);
    dt_sessiontest_open(test, 1);
    dt_sessiontest_hello(test, 1, 2);
    down = dt_sessiontest_down(test, 1, WELCOME, 0);
    cr_assert(down);
    cr_assert_eq(down->welcome->session, 65);
    cr_assert_eq(down->welcome->next_sequence, 1);
    cr_assert_eq(down->welcome->credit_bytes, 1u << 20);
    cr_assert_eq(down->welcome->n_bindings, 2);
    cr_assert_str_eq(down->welcome->bindings[1]->node, "n1");
    cr_assert_eq(down->welcome->bindings[1]->device, 1);
    open = dt_sessiontest_opened(test, 1);
    cr_assert(open);
    cr_assert_eq(open->n_bindings, 2);
    cr_assert_eq(dt_sessiontest_events(test, "session-started"), 1);
    dt_sessiontest_free(test);
}

Test(session, without_a_fitting_device_a_hello_is_refused_for_now)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    const Dtorch__V1__SessionDown *down;
    dt_sessiontest_node_is(test, 1, 2, 1, 1001, false);
    dt_sessiontest_open(test, 1);
    dt_sessiontest_hello(test, 1, 1);
    down = dt_sessiontest_down(test, 1, REFUSAL, 0);
    cr_assert(down);
    cr_assert(down->refusal->retry);
    cr_assert_eq(down->refusal->code, DTORCH__V1__REFUSAL__CODE__LIMIT);
    cr_assert(dt_sessiontest_closed(test, 1));
    dt_sessiontest_free(test);
}

Test(session, vdevs_go_to_the_devices_with_the_fewest)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    const Dtorch__V1__SessionDown *down;
    dt_sessiontest_node(test, 1, 1);
    dt_sessiontest_node(test, 2, 1);
    dt_sessiontest_join(test, 1, 2);
    down = dt_sessiontest_down(test, 1, WELCOME, 0);
    cr_assert_str_neq(down->welcome->bindings[0]->node, down->welcome->bindings[1]->node);
    dt_sessiontest_free(test);
}

Test(session, definitions_reach_the_node_as_plans_and_the_rest_unchanged)
{
    dt_sessiontest_t *test = prepared();
    uint64_t first, last;
    dt_sessiontest_begin(test, 6);
    op(test, 0, 1, 2, 3);
    dt_sessiontest_free_id(test, 1);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert_str_eq(dt_sessiontest_records(test, 101, &first, &last),
                     "DEF_PLAN DEF_PLAN DEF_PLAN UPLOAD UPLOAD OP FREE");
    cr_assert_eq(first, 1);
    cr_assert_eq(last, 7);
    cr_assert_eq(dt_sessiontest_counts(test).tensors, 2);
    dt_sessiontest_free(test);
}

Test(session, malformed_records_end_the_stream_and_what_stands_before_them_goes_on)
{
    dt_sessiontest_t *test = prepared();
    uint64_t last;
    dt_sessiontest_begin(test, 6);
    op(test, 0, 1, 2, 3);
    op(test, 0, 1, 99, 4);
    cr_assert(is_refused_with(test, "E_ID", 7));
    cr_assert_eq(dt_sessiontest_counts(test).away, 1);
    (void)dt_sessiontest_records(test, 101, NULL, &last);
    cr_assert_eq(last, 6);
    dt_sessiontest_resume(test, 2, test->session, test->token);
    cr_assert_eq(test->next_sequence, 7);
    cr_assert_eq(dt_sessiontest_events(test, "session-misbehaves"), 1);
    dt_sessiontest_free(test);
}

Test(session, ids_are_checked_against_the_session)
{
    static const struct {
        uint32_t signature;
        uint64_t a, b, out;
        const char *name;
    } cases[] = {
        {0, 1, 2, 0, "E_ARITY"}, {0, 1, 0, 3, "E_ARITY"}, {9, 1, 2, 3, "E_SIG"},
        {0, 1, 3, 3, "E_ID"},    {0, 1, 2, 2, "E_DUP"},   {0, 1, 9, 3, "E_ID"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dt_sessiontest_t *test = prepared();
        dt_sessiontest_begin(test, 6);
        op(test, cases[i].signature, cases[i].a, cases[i].b, cases[i].out);
        cr_assert(is_refused_with(test, cases[i].name, 6), "case %zu", i);
        dt_sessiontest_free(test);
    }
}

Test(session, an_id_that_was_freed_names_nothing)
{
    dt_sessiontest_t *test = prepared();
    uint64_t ids[] = {2, 2};
    dt_record_t record = {.kind = DT_RECORD_FREE};
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_free_id(test, 1);
    op(test, 0, 1, 2, 3);
    cr_assert(is_refused_with(test, "E_ID", 7));
    dt_sessiontest_resume(test, 1, test->session, test->token);
    dt_sessiontest_forget(test);
    record.ids.ids = ids;
    record.ids.count = 2;
    dt_sessiontest_begin(test, 7);
    dt_sessiontest_put(test, &record);
    cr_assert(is_refused_with(test, "E_ID", 7), "twice in one record");
    cr_assert_eq(dt_sessiontest_counts(test).tensors, 1, "nothing of that record took effect");
    dt_sessiontest_free(test);
}

Test(session, definitions_are_checked)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_define(test, 1, 1, "f", 0, 0);
    cr_assert(is_refused_with(test, "E_DUP", 6));
    dt_sessiontest_resume(test, 1, test->session, test->token);
    dt_sessiontest_forget(test);
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_define(test, 3, 1, "f", 0, 5);
    cr_assert(is_refused_with(test, "E_LIMIT", 6), "a mesh that is not defined");
    dt_sessiontest_resume(test, 1, test->session, test->token);
    dt_sessiontest_forget(test);
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_mesh(test, 1, 1, 3);
    cr_assert(is_refused_with(test, "E_LIMIT", 6), "a device that is not there");
    dt_sessiontest_resume(test, 1, test->session, test->token);
    dt_sessiontest_forget(test);
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_mesh(test, 0, 1, 0);
    cr_assert(is_refused_with(test, "E_DUP", 6), "mesh 0 is there from the start");
    dt_sessiontest_free(test);
}

Test(session, kinds_for_workers_only_are_malformed_from_a_client)
{
    dt_sessiontest_t *test = prepared();
    dt_record_t record = {.kind = DT_RECORD_BIND};
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_put(test, &record);
    cr_assert(is_refused_with(test, "E_KIND", 6));
    dt_sessiontest_free(test);
}

Test(session, kinds_that_are_not_served_are_refused_by_name)
{
    dt_sessiontest_t *test = prepared();
    const Dtorch__V1__SessionDown *down;
    dt_record_t record = {.kind = DT_RECORD_REDISTRIBUTE};
    record.move.tensor = 1;
    record.move.output = 3;
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_put(test, &record);
    op(test, 0, 3, 2, 4);
    dt_sessiontest_fetch(test, 4, 1);
    dt_sessiontest_free_id(test, 3);
    dt_sessiontest_frame(test, 1, 0);
    down = dt_sessiontest_down(test, 1, POISON, 0);
    cr_assert(down);
    cr_assert(strstr(down->poison->error->text, "REDISTRIBUTE"));
    down = dt_sessiontest_down(test, 1, RESULT, 0);
    cr_assert(down);
    cr_assert_eq(down->result->future, 1);
    cr_assert_eq(down->result->error->sequence, 6, "the first cause");
    cr_assert_str_eq(dt_sessiontest_records(test, 101, NULL, NULL),
                     "DEF_PLAN DEF_PLAN DEF_PLAN UPLOAD UPLOAD NOP NOP NOP FREE");
    dt_sessiontest_free(test);
}

Test(session, tensors_of_an_operator_lie_where_its_signature_says)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    dt_sessiontest_node(test, 1, 2);
    dt_sessiontest_join(test, 1, 2);
    dt_sessiontest_begin(test, 1);
    dt_sessiontest_mesh(test, 1, 2, 0);
    dt_sessiontest_mesh(test, 2, 1, 1);
    dt_sessiontest_define(test, 0, 0, "f", 0, 1);
    dt_sessiontest_define(test, 1, 1, "f", 0, 2);
    dt_sessiontest_op(test, 0, 0, NULL, 1, &(uint64_t){1});
    dt_sessiontest_upload(test, 2, 0, 0);
    dt_sessiontest_op(test, 1, 1, &(uint64_t){2}, 1, &(uint64_t){3});
    dt_sessiontest_frame(test, 1, 0);
    cr_assert_eq(dt_sessiontest_count(test, 1, POISON), 2);
    cr_assert(strstr(dt_sessiontest_down(test, 1, POISON, 0)->poison->error->text,
                     "one placement for each dimension"),
              "%s", dt_sessiontest_down(test, 1, POISON, 0)->poison->error->text);
    cr_assert(strstr(dt_sessiontest_down(test, 1, POISON, 1)->poison->error->text,
                     "other virtual devices"));
    cr_assert_str_eq(dt_sessiontest_records(test, 101, NULL, NULL),
                     "DEF_MESH DEF_MESH NOP DEF_PLAN NOP UPLOAD NOP");
    dt_sessiontest_free(test);
}

Test(session, order_and_epoch_are_kept)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_begin(test, 8);
    op(test, 0, 1, 2, 3);
    cr_assert(is_refused_with(test, "E_SEQ", 6));
    dt_sessiontest_resume(test, 1, test->session, test->token);
    dt_sessiontest_forget(test);
    dt_sessiontest_begin(test, 6);
    test->writer.epoch = 6;
    op(test, 0, 1, 2, 3);
    cr_assert(is_refused_with(test, "E_EPOCH", 6));
    dt_sessiontest_free(test);
}

Test(session, a_frame_sent_again_is_dropped_and_one_that_overlaps_is_cut)
{
    dt_sessiontest_t *test = prepared();
    uint64_t last;
    dt_sessiontest_begin(test, 6);
    op(test, 0, 1, 2, 3);
    dt_sessiontest_frame(test, 1, 0);
    dt_sessiontest_forget(test);
    dt_sessiontest_begin(test, 6);
    op(test, 0, 1, 2, 3);
    dt_sessiontest_frame(test, 1, DT_FRAME_RESENT);
    cr_assert_eq(dt_sessiontest_down(test, 1, ACK, 0)->ack->sequence, 6);
    cr_assert_str_eq(dt_sessiontest_records(test, 101, NULL, NULL), "");
    dt_sessiontest_begin(test, 6);
    op(test, 0, 1, 2, 3);
    op(test, 0, 3, 2, 4);
    dt_sessiontest_frame(test, 1, DT_FRAME_RESENT);
    cr_assert_str_eq(dt_sessiontest_records(test, 101, NULL, &last), "OP");
    cr_assert_eq(last, 7);
    cr_assert_eq(dt_sessiontest_counts(test).tensors, 4);
    dt_sessiontest_free(test);
}

Test(session, acks_are_merged_for_some_milliseconds)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_forget(test);
    for (uint64_t i = 0; i < 3; i++) {
        dt_sessiontest_begin(test, 6 + i);
        op(test, 0, 1, 2, 3 + i);
        dt_sessiontest_frame(test, 1, 0);
    }
    cr_assert_eq(dt_sessiontest_count(test, 1, ACK), 0);
    dt_sessiontest_pass(test, ACK_MS);
    cr_assert_eq(dt_sessiontest_count(test, 1, ACK), 1);
    cr_assert_eq(dt_sessiontest_down(test, 1, ACK, 0)->ack->sequence, 8);
    dt_sessiontest_free(test);
}

Test(session, credit_moves_when_the_node_has_executed)
{
    dt_sessiontest_t *test = prepared();
    uint64_t credit = test->credit;
    dt_sessiontest_pass(test, ACK_MS);
    cr_assert_eq(test->credit, credit);
    dt_sessiontest_executed(test, 101, 0, 5);
    dt_sessiontest_pass(test, ACK_MS);
    cr_assert_gt(test->credit, credit);
    cr_assert_eq(dt_sessiontest_counts(test).queued_bytes, 0);
    dt_sessiontest_free(test);
}

/* Big uploads fill the windows. */
static size_t fill(dt_sessiontest_t *test, uint64_t *sequence, uint64_t *id)
{
    size_t before;
    dt_sessiontest_begin(test, *sequence);
    for (int i = 0; i < 1000; i++, (*sequence)++)
        dt_sessiontest_upload(test, (*id)++, 0, 0);
    before = test->writer.len;
    dt_sessiontest_frame(test, 1, 0);
    return before - DT_FRAME_HEADER_BYTES;
}

Test(session, a_node_gets_its_window_and_a_client_beyond_its_credit_is_ended)
{
    dt_sessiontest_t *test = dt_sessiontest_new_stopped();
    uint64_t sequence = 1, id = 1, last;
    size_t sent = 0;
    test->options.tensors_max = 1000000;
    dt_sessiontest_start(test);
    dt_sessiontest_node(test, 1, 1);
    dt_sessiontest_join(test, 1, 1);
    while (sent < (1u << 20) - (100u << 10))
        sent += fill(test, &sequence, &id);
    (void)dt_sessiontest_records(test, 101, NULL, &last);
    cr_assert_lt(last, sequence - 1, "the node's window holds some back");
    cr_assert_lt(dt_sessiontest_counts(test).unsent_bytes, 1u << 20);
    dt_sessiontest_executed(test, 101, 0, last);
    uint64_t more;
    (void)dt_sessiontest_records(test, 101, NULL, &more);
    cr_assert_gt(more, last);
    cr_assert_not(dt_sessiontest_closed(test, 1));
    while (!dt_sessiontest_closed(test, 1))
        (void)fill(test, &sequence, &id);
    cr_assert_eq(dt_sessiontest_down(test, 1, REFUSAL, 0)->refusal->code,
                 DTORCH__V1__REFUSAL__CODE__LIMIT);
    cr_assert_eq(dt_sessiontest_events(test, "session-misbehaves"), 1);
    dt_sessiontest_free(test);
}

Test(session, results_are_kept_until_confirmed_and_sent_again_after_a_resume)
{
    dt_sessiontest_t *test = prepared();
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__FuturesDone done = DTORCH__V1__FUTURES_DONE__INIT;
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_fetch(test, 1, 1);
    dt_sessiontest_fetch(test, 2, 2);
    dt_sessiontest_frame(test, 1, 0);
    dt_sessiontest_result(test, 101, 2);
    dt_sessiontest_result(test, 101, 1);
    dt_sessiontest_result(test, 101, 1);
    cr_assert_eq(dt_sessiontest_count(test, 1, RESULT), 2, "one that comes twice is told once");
    done.future = 1;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_DONE;
    up.done = &done;
    dt_sessiontest_send(test, 1, &up);
    dt_sessiontest_close(test, 1);
    dt_sessiontest_resume(test, 2, test->session, test->token);
    cr_assert_eq(dt_sessiontest_count(test, 2, RESULT), 1);
    cr_assert_eq(dt_sessiontest_down(test, 2, RESULT, 0)->result->future, 2);
    cr_assert_eq(dt_sessiontest_down(test, 2, WELCOME, 0)->welcome->results_done, 1);
    dt_sessiontest_free(test);
}

Test(session, a_token_moves_the_session_and_the_one_before_it_holds_until_the_first_message)
{
    dt_sessiontest_t *test = prepared();
    uint8_t first[DT_SESSION_TOKEN_BYTES], second[DT_SESSION_TOKEN_BYTES];
    memcpy(first, test->token, sizeof first);
    dt_sessiontest_resume(test, 2, test->session, first);
    memcpy(second, test->token, sizeof second);
    cr_assert(dt_sessiontest_closed(test, 1), "the old stream is over");
    cr_assert(memcmp(first, second, sizeof first) != 0);
    dt_sessiontest_close(test, 2); /* the Welcome was lost: the old token still holds */
    dt_sessiontest_resume(test, 3, test->session, first);
    cr_assert(dt_sessiontest_down(test, 3, WELCOME, 0));
    dt_sessiontest_begin(test, 6);
    op(test, 0, 1, 2, 3);
    dt_sessiontest_frame(test, 3, 0);
    dt_sessiontest_resume(test, 4, test->session, first);
    cr_assert_eq(dt_sessiontest_down(test, 4, REFUSAL, 0)->refusal->code,
                 DTORCH__V1__REFUSAL__CODE__DENIED);
    cr_assert_not(dt_sessiontest_closed(test, 3));
    dt_sessiontest_free(test);
}

Test(session, someone_elses_number_and_one_of_an_earlier_start_are_refused)
{
    dt_sessiontest_t *test = prepared();
    uint8_t wrong[DT_SESSION_TOKEN_BYTES] = {1};
    dt_sessiontest_resume(test, 2, test->session, wrong);
    cr_assert_eq(dt_sessiontest_down(test, 2, REFUSAL, 0)->refusal->code,
                 DTORCH__V1__REFUSAL__CODE__DENIED);
    dt_sessiontest_resume(test, 3, 7, wrong);
    cr_assert_eq(dt_sessiontest_down(test, 3, REFUSAL, 0)->refusal->code,
                 DTORCH__V1__REFUSAL__CODE__EPOCH);
    dt_sessiontest_resume(test, 4, 100000, wrong);
    cr_assert_eq(dt_sessiontest_down(test, 4, REFUSAL, 0)->refusal->code,
                 DTORCH__V1__REFUSAL__CODE__EPOCH);
    dt_sessiontest_free(test);
}

Test(session, one_that_stays_away_is_freed_after_its_grace)
{
    dt_sessiontest_t *test = dt_sessiontest_new_stopped();
    test->options.grace_ns = 3000 * DT_SESSIONTEST_MS;
    dt_sessiontest_start(test);
    dt_sessiontest_node(test, 1, 1);
    dt_sessiontest_join(test, 1, 1);
    dt_sessiontest_close(test, 1);
    dt_sessiontest_pass(test, 2900);
    cr_assert_eq(dt_sessiontest_counts(test).away, 1);
    dt_sessiontest_pass(test, 300);
    cr_assert_eq(dt_sessiontest_counts(test).away, 0);
    cr_assert_eq(dt_sessiontest_events(test, "session-lost"), 1);
    cr_assert(dt_sessiontest_closed(test, 101), "the node's stream of it is over");
    dt_sessiontest_free(test);
}

Test(session, a_client_that_falls_silent_is_away)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_pass(test, 4000);
    cr_assert(dt_sessiontest_closed(test, 1));
    cr_assert_eq(dt_sessiontest_counts(test).away, 1);
    dt_sessiontest_free(test);
}

Test(session, bye_frees_at_once)
{
    dt_sessiontest_t *test = prepared();
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SessionBye bye = DTORCH__V1__SESSION_BYE__INIT;
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_BYE;
    up.bye = &bye;
    dt_sessiontest_send(test, 1, &up);
    cr_assert_eq(dt_sessiontest_counts(test).live, 0);
    cr_assert_eq(dt_sessiontest_counts(test).tensors, 0);
    cr_assert_eq(dt_sessiontest_closed(test, 1)->status, DT_OK);
    cr_assert_eq(dt_sessiontest_events(test, "session-ended"), 1);
    dt_sessiontest_free(test);
}

Test(session, a_broken_link_goes_on_behind_what_the_node_received)
{
    dt_sessiontest_t *test = prepared();
    uint64_t first, last;
    for (uint64_t i = 0; i < 4; i++) {
        dt_sessiontest_begin(test, 6 + i);
        op(test, 0, 1, 2, 3 + i);
        dt_sessiontest_frame(test, 1, 0);
    }
    dt_sessiontest_close(test, 101);
    dt_sessiontest_begin(test, 10);
    op(test, 0, 1, 2, 7);
    dt_sessiontest_frame(test, 1, 0);
    dt_sessiontest_link(test, 1, 201, 7);
    (void)dt_sessiontest_records(test, 201, &first, &last);
    cr_assert_eq(first, 8);
    cr_assert_eq(last, 10);
    dt_sessiontest_free(test);
}

/* Record `sequence` of the test below is what was sent, ids included. */
static void check_small(const dt_record_t *record)
{
    uint64_t i = record->sequence - 6;
    cr_assert_eq(record->kind, i % 3 == 2 ? DT_RECORD_FREE : DT_RECORD_OP);
    if (i % 3 == 2) {
        cr_assert_eq(record->ids.count, 1);
        cr_assert_eq(record->ids.ids[0], 3 + i - 2);
        return;
    }
    cr_assert_eq(record->op.inputs[0], 1);
    cr_assert_eq(record->op.inputs[1], 2);
    cr_assert_eq(record->op.outputs[0], 3 + i);
}

static uint32_t check_small_frames(const dt_sessiontest_t *test, uint64_t stream)
{
    static dt_record_t record;
    dt_frame_reader_t reader = {.scratch = NULL};
    uint32_t frames = 0;
    for (uint32_t i = 0; i < test->action_count; i++) {
        const dt_sessiontest_action_t *action = &test->actions[i];
        dt_cursor_t cursor = {action->data + 1, action->data + action->size, 0};
        bool is_end = false;
        if (action->kind != DT_SESSION_DO_SEND || action->stream != stream ||
            action->data[0] != 0x0a)
            continue;
        uint64_t size = dt_cursor_varint(&cursor);
        cr_assert_eq(dt_frame_open(&reader, cursor.at, (size_t)size), 0);
        frames++;
        while (dt_record_next(&reader, &record, &is_end) == 0 && !is_end)
            check_small(&record);
        cr_assert(is_end);
    }
    dt_frame_reader_fini(&reader);
    return frames;
}

Test(session, small_frames_are_kept_together_when_many_wait)
{
    enum { FRAMES = 1500 };
    dt_sessiontest_t *test = prepared();
    uint64_t first, last;
    dt_sessiontest_close(test, 101); /* the node is away for a while */
    for (uint64_t i = 0; i < FRAMES; i++) {
        dt_sessiontest_begin(test, 6 + i);
        if (i % 3 == 2)
            dt_sessiontest_free_id(test, 3 + i - 2);
        else
            op(test, 0, 1, 2, 3 + i);
        dt_sessiontest_frame(test, 1, 0);
    }
    cr_assert_not(dt_sessiontest_closed(test, 1), "%s", dt_sessiontest_closed(test, 1)->text);
    dt_sessiontest_pass(test, ACK_MS);
    const Dtorch__V1__SessionDown *ack =
        dt_sessiontest_down(test, 1, ACK, dt_sessiontest_count(test, 1, ACK) - 1);
    cr_assert_eq(ack->ack->sequence, 5 + FRAMES);
    cr_assert_eq(ack->ack->credit_bytes, 1u << 20, "nothing was executed");
    dt_sessiontest_link(test, 1, 201, 5);
    (void)dt_sessiontest_records(test, 201, &first, &last);
    cr_assert_eq(first, 6);
    cr_assert_eq(last, 5 + FRAMES);
    uint32_t sent = check_small_frames(test, 201);
    cr_assert_lt(sent, 80, "%u frames", sent); /* 64 as they came, the rest together */
    dt_sessiontest_free(test);
}

/* Two nodes of one device each, vdev 0 on the first: mesh 1 is vdev 1; signatures 0 and 1 add two
 * tensors on vdev 0 and on vdev 1; tensors 1 and 2 lie on vdev 0 and 1. Next record: 6. */
static dt_sessiontest_t *prepared_two(void)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    dt_sessiontest_node(test, 1, 1);
    dt_sessiontest_node(test, 2, 1);
    dt_sessiontest_join(test, 1, 2);
    dt_sessiontest_begin(test, 1);
    dt_sessiontest_mesh(test, 1, 1, 1);
    dt_sessiontest_define(test, 0, 2, "f", 0, 0);
    dt_sessiontest_define(test, 1, 2, "f", 0, 1);
    dt_sessiontest_upload(test, 1, 0, 0);
    dt_sessiontest_upload(test, 2, 1, 0);
    dt_sessiontest_frame(test, 1, DT_FRAME_SYNC);
    return test;
}

Test(session, a_dead_node_loses_its_tensors_and_the_rest_goes_on_elsewhere)
{
    dt_sessiontest_t *test = prepared_two();
    const Dtorch__V1__SessionDown *down;
    uint64_t first, last;
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_fetch(test, 2, 1);
    dt_sessiontest_frame(test, 1, 0);
    dt_sessiontest_close(test, 102);
    dt_sessiontest_node_is(test, 2, 1, 1, 0, false);
    dt_sessiontest_forget(test);
    dt_sessiontest_pass(test, 1500);
    cr_assert_not(dt_sessiontest_down(test, 1, FAULT, 0), "it may come back");
    dt_sessiontest_pass(test, 400); /* the client has not spoken for as long */
    dt_sessiontest_begin(test, 7);
    op(test, 0, 1, 1, 3);
    dt_sessiontest_frame(test, 1, 0);
    dt_sessiontest_pass(test, 300);
    down = dt_sessiontest_down(test, 1, FAULT, 0);
    cr_assert(down);
    cr_assert_eq(down->fault->tensor_count, 1);
    cr_assert_eq(down->fault->tensors[0], 2);
    cr_assert_str_eq(down->fault->error->kind, "WorkerLost");
    cr_assert_eq(down->fault->n_bindings, 2);
    cr_assert_str_eq(down->fault->bindings[1]->node, "n1", "bound anew");
    cr_assert_str_eq(dt_sessiontest_down(test, 1, RESULT, 0)->result->error->kind, "WorkerLost");
    dt_sessiontest_link(test, 1, 301, 0);
    dt_sessiontest_begin(test, 8);
    op(test, 1, 2, 2, 4);
    dt_sessiontest_fetch(test, 4, 2);
    dt_sessiontest_free_id(test, 2);
    dt_sessiontest_upload(test, 5, 1, 0);
    op(test, 1, 5, 5, 6);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert_eq(dt_sessiontest_down(test, 1, RESULT, 1)->result->future, 2);
    cr_assert_str_eq(dt_sessiontest_records(test, 301, &first, &last),
                     "DEF_MESH DEF_PLAN DEF_PLAN NOP NOP FREE UPLOAD OP");
    cr_assert_eq(first, 5, "definitions stand right before the record that it joined at");
    cr_assert_eq(last, 12);
    dt_sessiontest_free(test);
}

Test(session, a_lost_engine_comes_back_as_a_further_instance)
{
    dt_sessiontest_t *test = prepared();
    const Dtorch__V1__SessionOpen *open = dt_sessiontest_opened(test, 1);
    uint8_t key[DT_SESSION_KEY_BYTES];
    memcpy(key, open->key.data, sizeof key);
    dt_sessiontest_forget(test);
    dt_sessiontest_lost(test, 101, 0);
    open = dt_sessiontest_opened(test, 1);
    cr_assert(open);
    cr_assert(memcmp(key, open->key.data, sizeof key) != 0);
    cr_assert(dt_sessiontest_closed(test, 101));
    cr_assert_eq(dt_sessiontest_down(test, 1, FAULT, 0)->fault->tensor_count, 2);
    dt_sessiontest_link(test, 1, 201, 0);
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_upload(test, 3, 0, 0);
    op(test, 0, 3, 3, 4);
    op(test, 0, 3, 1, 5);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert_str_eq(dt_sessiontest_records(test, 201, NULL, NULL),
                     "DEF_PLAN DEF_PLAN DEF_PLAN UPLOAD OP NOP");
    dt_sessiontest_free(test);
}

Test(session, what_is_written_with_a_lost_input_is_lost_and_its_views_too)
{
    dt_sessiontest_t *test = prepared_two();
    dt_sessiontest_lost(test, 102, 1);
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_define(test, 2, 2, "wf", 0, 0);
    dt_sessiontest_define(test, 3, 1, "v", 0, 0);
    op(test, 3, 1, 0, 3);                                                  /* 3 views 1 */
    dt_sessiontest_op(test, 2, 2, (uint64_t[]){3, 2}, 1, (uint64_t[]){4}); /* writes 3 */
    dt_sessiontest_fetch(test, 1, 1);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert(dt_sessiontest_down(test, 1, RESULT, 0)->result->error);
    cr_assert_str_eq(dt_sessiontest_down(test, 1, RESULT, 0)->result->error->kind, "EngineLost");
    dt_sessiontest_free(test);
}

Test(session, without_a_device_what_is_put_there_is_poisoned_until_one_comes)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_node_is(test, 1, 1, 2, 0, false); /* a new life, not connected yet */
    cr_assert(dt_sessiontest_down(test, 1, FAULT, 0));
    dt_sessiontest_begin(test, 6);
    dt_sessiontest_upload(test, 3, 0, 0);
    dt_sessiontest_fetch(test, 3, 1);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert(dt_sessiontest_down(test, 1, RESULT, 0)->result->error);
    dt_sessiontest_forget(test);
    dt_sessiontest_node_is(test, 1, 1, 2, 1001, true);
    cr_assert(dt_sessiontest_opened(test, 1));
    cr_assert_eq(dt_sessiontest_down(test, 1, FAULT, 0)->fault->n_bindings, 1);
    dt_sessiontest_link(test, 1, 201, 0);
    dt_sessiontest_begin(test, 8);
    dt_sessiontest_upload(test, 4, 0, 0);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert_str_eq(dt_sessiontest_records(test, 201, NULL, NULL),
                     "DEF_PLAN DEF_PLAN DEF_PLAN UPLOAD");
    dt_sessiontest_free(test);
}

Test(session, a_node_that_lost_what_it_had_is_lost)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_executed(test, 101, 0, 5);
    dt_sessiontest_close(test, 101);
    dt_sessiontest_link(test, 1, 201, 0);
    cr_assert(dt_sessiontest_down(test, 1, FAULT, 0));
    cr_assert(dt_sessiontest_closed(test, 201));
    dt_sessiontest_free(test);
}

Test(session, sessions_cannot_name_each_others_things)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_open(test, 2);
    dt_sessiontest_hello(test, 2, 1);
    dt_sessiontest_begin(test, 1);
    dt_sessiontest_fetch(test, 1, 1);
    dt_sessiontest_frame(test, 2, 0);
    cr_assert(dt_sessiontest_is_malformed(test, 2, "E_ID", 1));
    cr_assert_not(dt_sessiontest_closed(test, 1));
    dt_sessiontest_free(test);
}

Test(session, queries_go_to_the_device_asked_and_survive_a_broken_link)
{
    dt_sessiontest_t *test = prepared();
    Dtorch__V1__SessionUp up = DTORCH__V1__SESSION_UP__INIT;
    Dtorch__V1__SigQuery query = DTORCH__V1__SIG_QUERY__INIT;
    Dtorch__V1__WorkerSessionUp said = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__SigAnswer answer = DTORCH__V1__SIG_ANSWER__INIT;
    uint8_t body[3] = {1, 2, 3};
    query.query = 1;
    query.signature = (ProtobufCBinaryData){sizeof body, body};
    up.kind_case = DTORCH__V1__SESSION_UP__KIND_QUERY;
    up.query = &query;
    dt_sessiontest_close(test, 101);
    dt_sessiontest_send(test, 1, &up);
    dt_sessiontest_send(test, 1, &up);
    dt_sessiontest_link(test, 1, 201, 5);
    answer.query = 1;
    answer.needs_execution = true;
    said.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_ANSWER;
    said.answer = &answer;
    dt_sessiontest_up(test, 201, &said);
    dt_sessiontest_up(test, 201, &said);
    cr_assert_eq(dt_sessiontest_count(test, 1, ANSWER), 1);
    cr_assert(dt_sessiontest_down(test, 1, ANSWER, 0)->answer->needs_execution);
    dt_sessiontest_free(test);
}

Test(session, one_that_does_not_read_is_ended_and_named)
{
    dt_sessiontest_t *test = prepared();
    cr_assert_lt(dt_sessions_queue_max(test->sessions, 1), 8u << 20);
    dt_sessions_stuck(test->sessions, 1, 5u << 20, test->now_ns);
    dt_sessiontest_perform(test);
    cr_assert_eq(dt_sessiontest_events(test, "session-misbehaves"), 1);
    cr_assert_eq(dt_sessiontest_counts(test).away, 1);
    dt_sessiontest_free(test);
}

Test(session, a_stream_without_a_hello_is_ended)
{
    dt_sessiontest_t *test = dt_sessiontest_new();
    dt_sessiontest_open(test, 1);
    dt_sessions_opened(test->sessions, 2, DT_SESSION_STREAM_LINK, "peer", test->now_ns);
    dt_sessiontest_pass(test, 5500);
    cr_assert(dt_sessiontest_closed(test, 1));
    cr_assert(dt_sessiontest_closed(test, 2));
    dt_sessiontest_free(test);
}

Test(session, numbers_are_reserved_before_they_run_out)
{
    dt_sessiontest_t *test = dt_sessiontest_new_stopped();
    test->options.sessions_max = 200;
    dt_sessiontest_start(test);
    dt_sessiontest_node(test, 1, 1);
    for (uint64_t i = 0; i < 150; i++) {
        dt_sessiontest_open(test, 1);
        dt_sessiontest_hello(test, 1, 1);
        cr_assert_eq(test->session, 65 + i);
        dt_sessiontest_close(test, 1);
        dt_sessiontest_forget(test);
    }
    dt_sessiontest_free(test);
}

Test(session, jobs_are_listed_and_can_be_ended)
{
    dt_sessiontest_t *test = prepared();
    Dtorch__V1__ListJobsRequest request = DTORCH__V1__LIST_JOBS_REQUEST__INIT;
    Dtorch__V1__JobList *list;
    Dtorch__V1__JobDetail *job;
    dt_error_t err;
    cr_assert_eq(dt_sessions_list(test->sessions, &request, &test->arena, test->now_ns, &list),
                 DT_OK);
    cr_assert_eq(list->n_jobs, 1);
    cr_assert_eq(list->jobs[0]->id, test->session);
    cr_assert_eq(list->jobs[0]->sequence, 5);
    cr_assert_eq(list->jobs[0]->tensors, 2);
    cr_assert_eq(
        dt_sessions_get(test->sessions, test->session, &test->arena, test->now_ns, &job, &err),
        DT_OK);
    cr_assert_eq(job->n_nodes, 1);
    cr_assert_eq(job->nodes[0]->sent, 5);
    cr_assert_eq(dt_sessions_end(test->sessions, test->session, "by a person", test->now_ns, &err),
                 DT_OK);
    dt_sessiontest_perform(test);
    cr_assert(strstr(dt_sessiontest_down(test, 1, REFUSAL, 0)->refusal->text, "by a person"));
    cr_assert_eq(
        dt_sessions_get(test->sessions, test->session, &test->arena, test->now_ns, &job, &err),
        DT_ERR_NOT_FOUND);
    dt_sessiontest_free(test);
}

static void report_stats_of(dt_sessiontest_t *test, uint32_t engine, uint64_t count,
                            uint64_t memory_bytes)
{
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    Dtorch__V1__SessionStats stats = DTORCH__V1__SESSION_STATS__INIT;
    Dtorch__V1__OperatorStats mm = DTORCH__V1__OPERATOR_STATS__INIT, *list[] = {&mm};
    char name[] = "aten::mm";
    mm.name = name;
    mm.count = count;
    mm.device_ns = 1000 * count;
    stats.operators = list;
    stats.n_operators = 1;
    stats.memory_bytes = memory_bytes;
    stats.engine = engine;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_STATS;
    up.stats = &stats;
    dt_sessiontest_up(test, 201, &up);
}

static void report_stats(dt_sessiontest_t *test, uint64_t count, uint64_t memory_bytes)
{
    report_stats_of(test, 0, count, memory_bytes);
}

Test(session, what_two_engines_of_a_node_say_is_added_up)
{
    dt_sessiontest_t *test = prepared();
    Dtorch__V1__JobDetail *job;
    dt_error_t err;
    dt_sessiontest_link(test, 1, 201, 5);
    report_stats_of(test, 71, 3, 100);
    report_stats_of(test, 72, 10, 1000);
    report_stats_of(test, 71, 5, 400); /* less than the other one did, and yet more */
    report_stats_of(test, 72, 11, 900);
    cr_assert_eq(
        dt_sessions_get(test->sessions, test->session, &test->arena, test->now_ns, &job, &err),
        DT_OK);
    cr_assert_eq(job->n_operators, 1);
    cr_assert_eq(job->operators[0]->count, 16);
    cr_assert_eq(job->operators[0]->device_ns, 16000);
    cr_assert_eq(job->nodes[0]->memory_bytes, 1300);
    cr_assert_eq(job->nodes[0]->operators, 16);
    cr_assert_eq(job->nodes[0]->device_ns, 16000);
    dt_sessiontest_free(test);
}

static const Dtorch__V1__Job *job_of(dt_sessiontest_t *test)
{
    Dtorch__V1__JobDetail *detail;
    dt_error_t err;
    cr_assert_eq(
        dt_sessions_get(test->sessions, test->session, &test->arena, test->now_ns, &detail, &err),
        DT_OK);
    return detail->job;
}

/* Each engine reports each second, but not together. */
Test(session, rates_of_engines_are_between_their_own_reports)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_link(test, 1, 201, 5);
    report_stats_of(test, 71, 5, 0);
    dt_sessiontest_pass(test, 900);
    report_stats_of(test, 72, 7, 0);
    cr_assert_eq(job_of(test)->operators_per_second, -1); /* since when is not known */
    cr_assert_eq(job_of(test)->device_percent, -1);
    dt_sessiontest_pass(test, 100);
    report_stats_of(test, 71, 1005, 0);
    cr_assert_eq(job_of(test)->operators_per_second, 1000);
    dt_sessiontest_pass(test, 100); /* nearer than that is a part of the same report */
    report_stats_of(test, 71, 1006, 0);
    cr_assert_eq(job_of(test)->operators_per_second, 1000);
    dt_sessiontest_pass(test, 800);
    report_stats_of(test, 72, 200007, 0);
    cr_assert_eq(job_of(test)->operators_per_second, 201000);
    cr_assert_eq(job_of(test)->device_percent, 20);
    dt_sessiontest_pass(test, 1800); /* the first one is silent, the second not yet */
    cr_assert_eq(job_of(test)->operators_per_second, 200000);
    dt_sessiontest_pass(test, 3000);
    cr_assert_eq(job_of(test)->operators_per_second, 0);
    cr_assert_eq(job_of(test)->device_percent, 0);
    dt_sessiontest_free(test);
}

static const Dtorch__V1__UsageReport *usage_of(dt_sessiontest_t *test)
{
    Dtorch__V1__UsageReport *report;
    cr_assert_eq(dt_sessions_usage(test->sessions, &test->arena, test->now_ns, &report), DT_OK);
    return report;
}

Test(session, what_was_used_is_kept_when_the_job_has_ended)
{
    dt_sessiontest_t *test = prepared();
    const Dtorch__V1__UsageReport *report = usage_of(test);
    uint64_t held_ms;
    cr_assert(report->n_rows == 1 && report->rows[0]->jobs == 1 && report->rows[0]->running == 1);
    cr_assert_eq(report->rows[0]->operators, 0);
    dt_sessiontest_link(test, 1, 201, 5);
    report_stats(test, 3, 64u << 20);
    dt_sessiontest_pass(test, 2000);
    report_stats(test, 7, 0); /* sums since it began there, so 4 more; 64 MiB for two seconds */
    report = usage_of(test);
    cr_assert_eq(report->rows[0]->operators, 7);
    cr_assert_eq(report->rows[0]->device_ns, 7000);
    cr_assert_geq(report->rows[0]->memory_mib_s, 128);
    cr_assert_leq(report->rows[0]->memory_mib_s, 129);
    cr_assert_geq(report->rows[0]->held_ms, 2000);
    held_ms = report->rows[0]->held_ms;
    cr_assert_eq(dt_sessions_end(test->sessions, test->session, "done", test->now_ns, NULL), DT_OK);
    dt_sessiontest_pass(test, 1000);
    report = usage_of(test);
    cr_assert(report->n_rows == 1 && report->rows[0]->jobs == 1 && report->rows[0]->running == 0);
    cr_assert_eq(report->rows[0]->operators, 7);
    cr_assert_eq(report->rows[0]->held_ms, held_ms);
    cr_assert_eq(report->n_operators, 1);
    cr_assert_str_eq(report->operators[0]->name, "aten::mm");
    cr_assert_eq(report->operators[0]->count, 7);
    dt_sessiontest_open(test, 2); /* a second one of the same program counts in the same row */
    dt_sessiontest_hello(test, 2, 1);
    report = usage_of(test);
    cr_assert(report->n_rows == 1 && report->rows[0]->jobs == 2 && report->rows[0]->running == 1);
    dt_sessiontest_free(test);
}

/* How often a node was told to say again what was not answered. */
static uint32_t restarts(const dt_sessiontest_t *test, uint64_t stream)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < test->action_count; i++) {
        const dt_sessiontest_action_t *action = &test->actions[i];
        if (action->kind != DT_SESSION_DO_SEND || action->stream != stream)
            continue;
        Dtorch__V1__WorkerSessionDown *down =
            dtorch__v1__worker_session_down__unpack(NULL, action->size, action->data);
        cr_assert_not_null(down);
        count += down->kind_case == DTORCH__V1__WORKER_SESSION_DOWN__KIND_CHUNK &&
                 down->chunk->transfer == 0 && down->chunk->restart;
        dtorch__v1__worker_session_down__free_unpacked(down, NULL);
    }
    return count;
}

Test(session, answers_that_may_be_lost_with_a_link_are_asked_for_when_it_is_back)
{
    dt_sessiontest_t *test = prepared();
    dt_sessiontest_link(test, 1, 201, 5);
    cr_assert_eq(restarts(test, 201), 1);
    dt_sessiontest_free(test);
}

/* ---- work that definitions make ---- */

static void define_move(dt_sessiontest_t *test, uint32_t id, int64_t rows)
{
    static dt_signature_tensor_t in, out;
    dt_value_t arg = {.tag = DT_VALUE_TENSOR};
    dt_signature_t sig = {.name = "dtorch::redistribute",
                          .arg_count = 1,
                          .args = &arg,
                          .input_count = 1,
                          .output_count = 1,
                          .inputs = &in,
                          .outputs = &out};
    const int64_t sizes[] = {rows, 64, 64};
    dt_record_t record = {.kind = DT_RECORD_DEF_SIG};
    dt_buf_t body;
    memset(&in, 0, sizeof in);
    cr_assert_eq(dt_meta_set(&in.meta, DT_DTYPE_F32, 3, sizes, NULL, 0, NULL), DT_OK);
    in.layout = (dt_layout_t){.mesh = 1, .ndim = 5};
    out = in;
    out.alias = DT_ALIAS_FRESH;
    for (unsigned j = 0; j < 5; j++) {
        in.layout.placements[j] = (dt_placement_t){
            .kind = DT_PLACEMENT_PARTIAL, .reduction = DT_REDUCTION_SUM, .unit = 1, .groups = 1};
        out.layout.placements[j] = (dt_placement_t){
            .kind = DT_PLACEMENT_SHARD, .dim = (uint8_t)(j % 3), .unit = 1, .groups = 1};
    }
    dt_buf_init(&body, 1u << 16);
    cr_assert_eq(dt_signature_encode(&sig, &body, NULL), DT_OK);
    record.definition.id = id;
    record.definition.body = body.data;
    record.definition.body_bytes = (uint32_t)body.len;
    dt_sessiontest_put(test, &record);
    dt_buf_fini(&body);
}

Test(session, a_client_that_defines_moves_without_end_gets_its_share_of_the_thread)
{
    enum { VDEVS = 32, MOVES = 600 };
    dt_sessiontest_t *test = dt_sessiontest_new();
    uint64_t vdevs[VDEVS];
    dt_sessiontest_node(test, 1, VDEVS);
    dt_sessiontest_join(test, 1, VDEVS);
    for (uint32_t i = 0; i < VDEVS; i++)
        vdevs[i] = i;
    dt_record_t mesh = {.kind = DT_RECORD_DEF_MESH};
    mesh.mesh = (dt_record_mesh_t){.id = 1,
                                   .ndim = 5,
                                   .vdev_count = VDEVS,
                                   .sizes = {2, 2, 2, 2, 2},
                                   .names = {"", "", "", "", ""},
                                   .vdevs = vdevs};
    dt_sessiontest_begin(test, 1);
    dt_sessiontest_put(test, &mesh);
    define_move(test, 0, 1000);
    dt_sessiontest_frame(test, 1, 0);
    uint64_t one = dt_sessiontest_counts(test).plan_work;
    cr_assert(one > 1000 && one <= 8192, "%lu", (unsigned long)one);
    dt_sessiontest_begin(test, 3);
    for (uint32_t i = 1; i < MOVES; i++)
        define_move(test, i, 1000 + i);
    dt_sessiontest_frame(test, 1, 0);
    cr_assert_gt(one * MOVES, 2 * DT_SESSION_PLAN_WORK);
    uint64_t all = dt_sessiontest_counts(test).plan_work;
    cr_assert(all > DT_SESSION_PLAN_WORK / 2 && all <= DT_SESSION_PLAN_WORK, "%lu",
              (unsigned long)all);
    cr_assert_eq(dt_sessiontest_count(test, 1, POISON), 0, "none is refused");
    for (int second = 0; second < 3; second++) { /* as time passes it may have more */
        uint64_t before = dt_sessiontest_counts(test).plan_work;
        dt_sessiontest_pass(test, 1000);
        dt_sessiontest_begin(test, MOVES + 2 + 50 * (uint64_t)second);
        for (uint32_t i = 0; i < 50; i++)
            define_move(test, MOVES + 50 * (uint32_t)second + i, 5000 + i);
        dt_sessiontest_frame(test, 1, 0);
        uint64_t more = dt_sessiontest_counts(test).plan_work - before;
        cr_assert(more > 0 && more <= DT_SESSION_PLAN_WORK_RATE + 1000, "%lu", (unsigned long)more);
    }
    dt_sessiontest_free(test);
}
