/* What a controller says to a program's library: results, answers, poison, faults, refusals, acks.
 * Input: messages, each behind its length in two bytes. A session without an I/O thread waits for
 * three values, one answer, and those to questions that were asked ahead, meanwhile. Welcome and
 * doors need connections: not here. */
#include <stdlib.h>
#include <string.h>

#include "client/src/client.h"
#include "lib/offlinesession.h"
#include "wire/wire.h"

enum { FUTURES = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static dt_session_t *session_new(dt_future_t **futures, dt_client_query_t *query)
{
    dt_session_t *session = dt_offlinesession_new(1 << 20);
    pthread_mutex_lock(&session->lock);
    for (int i = 0; i < FUTURES; i++)
        if (dt_client_fetch(session, 1, INT64_MAX, &futures[i], NULL) != DT_OK)
            abort();
    query->number = query->least = 1;
    dt_buf_init(&query->answer, DT_SIGNATURE_BYTES_MAX);
    dt_list_push(&session->queries, &query->link);
    pthread_mutex_unlock(&session->lock);
    return session;
}

/* A tensor of so many elements goes through an operator. */
static void question(int64_t size, dt_signature_tensor_t *input, dt_value_t *arg,
                     dt_signature_t *ret_sig)
{
    memset(input, 0, sizeof *input);
    *arg = (dt_value_t){.tag = DT_VALUE_TENSOR};
    if (dt_meta_set(&input->meta, DT_DTYPE_F32, 1, &size, NULL, 0, NULL) != DT_OK)
        abort();
    *ret_sig = (dt_signature_t){.name = "fuzz::grow",
                                .arg_count = 1,
                                .args = arg,
                                .input_count = 1,
                                .inputs = input,
                                .flags = DT_SIGNATURE_UNKNOWN};
}

/* Sizes 1, 2, 3: the next ones are asked, as question 2. Gives their course. */
static uint64_t ask_ahead(dt_session_t *session)
{
    uint64_t course = 0;
    pthread_mutex_lock(&session->lock);
    for (int64_t size = 1; size <= 3; size++) {
        dt_signature_tensor_t input;
        dt_signature_t sig;
        dt_value_t arg;
        question(size, &input, &arg, &sig);
        course = dt_client_ahead_learn(session, &sig, 0);
    }
    dt_client_query_t *query = DT_CONTAINER_OF(session->queries.prev, dt_client_query_t, link);
    if (!query->batch)
        abort();
    query->number = query->least = 2;
    pthread_mutex_unlock(&session->lock);
    return course;
}

/* What came is there to be taken, once each, as it came: bytes that nobody believes yet. */
static void take_ahead(dt_session_t *session, uint64_t course)
{
    pthread_mutex_lock(&session->lock);
    bool is_answered = dt_list_is_empty(&session->queries);
    for (int64_t size = 4; is_answered && size <= 20; size++) {
        dt_signature_tensor_t input;
        dt_signature_t sig;
        dt_value_t arg;
        dt_buf_t body, answer;
        question(size, &input, &arg, &sig);
        dt_buf_init(&body, DT_SIGNATURE_BYTES_MAX);
        dt_buf_init(&answer, DT_SIGNATURE_BYTES_MAX);
        if (dt_signature_encode(&sig, &body, NULL) != DT_OK)
            abort();
        bool is_known = dt_client_ahead_take(session, course, &body, &answer) == DT_OK;
        if (is_known != (answer.len > 0) ||
            dt_client_ahead_take(session, course, &body, &answer) == DT_OK)
            abort();
        dt_buf_fini(&body);
        dt_buf_fini(&answer);
    }
    pthread_mutex_unlock(&session->lock);
}

static bool is_for_here(const uint8_t *data, size_t size)
{
    Dtorch__V1__SessionDown *down;
    dt_arena_t arena;
    dt_arena_init(&arena, DT_WIRE_ARENA_MAX);
    bool is_sound = DT_WIRE_UNPACK(dtorch__v1__session_down, &arena, data, size, &down, NULL) ==
                        DT_OK && /* else the stream is ended: wire_fuzz */
                    down->kind_case != DTORCH__V1__SESSION_DOWN__KIND_WELCOME &&
                    down->kind_case != DTORCH__V1__SESSION_DOWN__KIND_DOOR;
    dt_arena_fini(&arena);
    return is_sound;
}

/* A value that is there is all there, in its metadata's size. */
static void look(dt_future_t *future)
{
    dt_failure_t failure;
    dt_meta_t meta;
    const void *bytes;
    size_t size;
    if (!dt_future_ready(future) || dt_future_wait(future, 0, &failure) != DT_OK)
        return;
    if (dt_future_meta(future, &meta) != DT_OK || dt_future_data(future, &bytes, &size) != DT_OK ||
        size != dt_dense_bytes(&meta) || future->layout.ndim != meta.ndim ||
        memcmp(future->layout.sizes, meta.sizes, meta.ndim * sizeof *meta.sizes) != 0)
        abort();
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)bytes)[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dt_future_t *futures[FUTURES];
    dt_failure_t failure = {.error.code = DT_OK};
    dt_client_query_t query = {.failure = &failure};
    dt_session_t *session = session_new(futures, &query);
    uint64_t course = ask_ahead(session);
    while (size >= 2) {
        size_t part = (size_t)data[0] | (size_t)data[1] << 8;
        part = part < size - 2 ? part : size - 2;
        if (is_for_here(data + 2, part))
            dt_client_down(session, data + 2, part);
        data += part + 2;
        size -= part + 2;
    }
    dt_list_remove(&query.link);
    dt_buf_fini(&query.answer);
    take_ahead(session, course);
    for (int i = 0; i < FUTURES; i++) {
        look(futures[i]);
        dt_future_free(futures[i]);
    }
    pthread_mutex_lock(&session->lock);
    dt_client_end(session, DT_ERR_STOPPED, "the end");
    dt_arena_fini(&session->io.arena);
    dt_client_unuse_unlock(session);
    return 0;
}
