/* Growing shapes: what is asked before it is wanted, and that only answers are used. Without a
 * cluster: whoever waits answers by itself. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/client.h"
#include "lib/offlinesession.h"
#include "wire/wire.h"

TestSuite(client_ahead, .timeout = 120);

static dt_session_t *session;
static int waits;            /* for an answer */
static uint32_t foreseen;    /* signatures that were asked ahead, */
static int messages;         /* in so many */
static int64_t least_size;   /* in any question */
static bool knows_ahead;     /* the cluster answers what is asked ahead, */
static bool answers_in_time; /* ... before it is wanted */
static int64_t wrong_by;     /* and says so much more than what is so */

/* Rows of the input and `more` of them. */
static void outputs_of(const dt_signature_t *sig, int64_t error, dt_signature_tensor_t *ret)
{
    int64_t sizes[DT_META_DIM_MAX];
    const dt_meta_t *in = &sig->inputs[0].meta;
    memcpy(sizes, in->sizes, in->ndim * sizeof *sizes);
    sizes[0] += sig->args[1].number + error;
    memset(ret, 0, sizeof *ret);
    cr_assert_eq(dt_meta_set(&ret->meta, in->dtype, in->ndim, sizes, NULL, 0, NULL), DT_OK);
}

static void answer_one(const uint8_t *body, size_t size, int64_t error, dt_buf_t *ret)
{
    dt_cursor_t cursor = {body, body + size, 0};
    dt_signature_tensor_t output;
    dt_signature_t *sig;
    dt_arena_t arena;
    dt_arena_init(&arena, 1 << 20);
    cr_assert_eq(dt_signature_decode(&cursor, &arena, &sig), 0);
    cr_assert_eq(dt_cursor_left(&cursor), 0);
    cr_assert_eq(sig->flags, DT_SIGNATURE_UNKNOWN);
    for (unsigned i = 0; i < sig->inputs[0].meta.ndim; i++)
        if (sig->inputs[0].meta.sizes[i] < least_size)
            least_size = sig->inputs[0].meta.sizes[i];
    outputs_of(sig, error, &output);
    sig->outputs = &output;
    sig->output_count = 1;
    sig->flags = 0;
    cr_assert_eq(dt_signature_encode(sig, ret, NULL), DT_OK);
    dt_arena_fini(&arena);
}

static void reply(dt_client_query_t *query)
{
    Dtorch__V1__SessionDown down = DTORCH__V1__SESSION_DOWN__INIT;
    Dtorch__V1__SigAnswer answer = DTORCH__V1__SIG_ANSWER__INIT;
    ProtobufCBinaryData ahead[DT_WIRE_AHEAD_MAX];
    dt_buf_t bufs[DT_WIRE_AHEAD_MAX] = {0};
    uint8_t packed[32 << 10];
    uint32_t count = query->body_count ? query->body_count : 1;
    query->number = query->least = ++session->query_next;
    for (uint32_t i = 0, at = 0; i < count; i++) {
        uint32_t end = query->body_count ? query->ends[i] : (uint32_t)query->body_bytes;
        dt_buf_init(&bufs[i], DT_SIGNATURE_BYTES_MAX);
        if (!query->batch || knows_ahead)
            answer_one(query->body + at, end - at, query->batch ? wrong_by : 0, &bufs[i]);
        at = end;
    }
    answer.query = query->number;
    answer.signature = (ProtobufCBinaryData){bufs[0].len, bufs[0].data};
    answer.needs_execution = bufs[0].len == 0;
    answer.ahead = ahead;
    for (uint32_t i = 1; i < count; i++)
        ahead[answer.n_ahead++] = (ProtobufCBinaryData){bufs[i].len, bufs[i].data};
    down.kind_case = DTORCH__V1__SESSION_DOWN__KIND_ANSWER;
    down.answer = &answer;
    cr_assert_lt(dtorch__v1__session_down__get_packed_size(&down), sizeof packed);
    dt_client_down(session, packed, dtorch__v1__session_down__pack(&down, packed));
    for (uint32_t i = 0; i < count; i++)
        dt_buf_fini(&bufs[i]);
}

/* Those asked ahead, or those that are waited for. */
static bool reply_all(bool is_ahead)
{
    for (bool any = false;; any = true) {
        dt_client_query_t *found = NULL;
        for (dt_list_t *at = session->queries.next; at != &session->queries; at = at->next) {
            dt_client_query_t *query = DT_CONTAINER_OF(at, dt_client_query_t, link);
            if (!query->is_done && (query->batch != NULL) == is_ahead)
                found = query;
        }
        if (!found)
            return any;
        messages += is_ahead;
        foreseen += found->body_count;
        reply(found);
    }
}

/* Runs while somebody waits. */
static bool on_wait(void *arg)
{
    (void)arg;
    waits++;
    if (!reply_all(false))
        (void)reply_all(true);
    return false;
}

static void open_session(void)
{
    waits = messages = 0;
    foreseen = 0;
    least_size = INT64_MAX;
    knows_ahead = answers_in_time = true;
    wrong_by = 0;
    session = dt_offlinesession_new(1 << 30);
    dt_on_wait(session, on_wait, NULL);
}

static void close_session(void)
{
    dt_arena_fini(&session->io.arena);
    pthread_mutex_lock(&session->lock);
    dt_client_end(session, DT_ERR_STOPPED, "the end");
    dt_client_unuse_unlock(session);
}

/* An operator that adds `more` rows to a tensor of these sizes. Gives what it is told to have. */
static int64_t rows(const char *name, int64_t first, int64_t second, int64_t more)
{
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_INT, .number = more}};
    const int64_t sizes[] = {first, second};
    const dt_output_t *outputs;
    dt_operand_t operand = {.vdev = 0};
    uint32_t signature, count;
    dt_failure_t failure;
    cr_assert_eq(dt_meta_set(&operand.meta, DT_DTYPE_F32, 2, sizes, NULL, 0, NULL), DT_OK);
    const dt_operation_t operation = {name, args, 2, 1, &operand};
    cr_assert_eq(dt_signature_infer(session, &operation, 1, &signature, &failure), DT_OK, "%s",
                 failure.error.text);
    cr_assert_eq(dt_signature_outputs(session, signature, &outputs, &count, NULL), DT_OK);
    cr_assert_eq(count, 1);
    cr_assert_eq(outputs[0].meta.sizes[1], second);
    if (answers_in_time)
        (void)reply_all(true);
    return outputs[0].meta.sizes[0];
}

Test(client_ahead, a_cache_that_grows_is_not_waited_for_from_its_fourth_step, .init = open_session,
     .fini = close_session)
{
    for (int64_t t = 5; t < 205; t++)
        cr_assert_eq(rows("aten::grow", t, 8, 1), t + 1);
    cr_assert_eq(waits, 3);
    cr_assert_leq(messages, 6, "%d messages", messages); /* of 16, 32, 64, 64, ... */
    cr_assert_geq(foreseen, 197);
    cr_assert_leq(foreseen, 197 + 2 * DT_WIRE_AHEAD_MAX);
}

Test(client_ahead, an_answer_that_is_on_its_way_is_waited_for_and_not_asked_again,
     .init = open_session, .fini = close_session)
{
    answers_in_time = false;
    for (int64_t t = 1; t < 30; t++)
        cr_assert_eq(rows("aten::grow", t, 8, 1), t + 1);
    cr_assert_lt(waits, 8, "%d waits", waits);
}

Test(client_ahead, several_that_grow_are_told_apart, .init = open_session, .fini = close_session)
{
    for (int64_t t = 1; t < 60; t++) {
        cr_assert_eq(rows("aten::grow", t, 8, 1), t + 1); /* three of one course, */
        cr_assert_eq(rows("aten::grow", 3 * t, 64, 2), 3 * t + 2);
        cr_assert_eq(rows("aten::grow", 100, t, t), 100 + t);
        cr_assert_eq(rows("aten::other", t, t, 5), t + 5); /* and one of its own */
    }
    cr_assert_leq(waits, 16, "%d waits", waits);
}

Test(client_ahead, what_is_not_answered_ahead_is_asked_when_it_is_wanted, .init = open_session,
     .fini = close_session)
{
    knows_ahead = false;
    for (int64_t t = 1; t < 20; t++)
        cr_assert_eq(rows("aten::grow", t, 8, 1), t + 1);
    cr_assert_eq(waits, 19);
    cr_assert_eq(messages, 1, "a course without answers is left alone");
}

Test(client_ahead, answers_of_devices_that_are_gone_are_not_used, .init = open_session,
     .fini = close_session)
{
    wrong_by = 1000;
    for (int64_t t = 1; t < 4; t++)
        (void)rows("aten::grow", t, 8, 1);
    cr_assert_eq(waits, 3);
    pthread_mutex_lock(&session->lock);
    dt_client_ahead_forget(session);
    pthread_mutex_unlock(&session->lock);
    wrong_by = 0;
    for (int64_t t = 4; t < 40; t++)
        cr_assert_eq(rows("aten::grow", t, 8, 1), t + 1);
    cr_assert_leq(waits, 4);
    answers_in_time = false; /* asked before the change, answered after it */
    for (int64_t t = 1; t < 4; t++)
        (void)rows("aten::later", t, 8, 1);
    pthread_mutex_lock(&session->lock);
    dt_client_ahead_forget(session);
    pthread_mutex_unlock(&session->lock);
    wrong_by = 1000;
    cr_assert(reply_all(true));
    wrong_by = 0;
    cr_assert_eq(rows("aten::later", 4, 8, 1), 5);
}

Test(client_ahead, what_shrinks_is_not_foretold_below_one, .init = open_session,
     .fini = close_session)
{
    for (int64_t t = 9; t > 0; t--)
        cr_assert_eq(rows("aten::shrink", t, 8, 1), t + 1);
    cr_assert_eq(waits, 3);
    cr_assert_eq(least_size, 1);
}

Test(client_ahead, sizes_without_a_pattern_ask_nothing_ahead, .init = open_session,
     .fini = close_session)
{
    for (int64_t t = 1; t < 1 << 12; t *= 2)
        (void)rows("aten::grow", t, 8, 1);
    cr_assert_eq(foreseen, 0);
}

Test(client_ahead, a_session_ends_with_questions_on_their_way, .init = open_session,
     .fini = close_session)
{
    answers_in_time = false;
    for (int64_t t = 1; t < 4; t++)
        (void)rows("aten::grow", t, 8, 1);
    cr_assert_not(dt_list_is_empty(&session->queries));
}
