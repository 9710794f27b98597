/* The metadata thread's answers, and the protobuf fields that the engine writes by hand. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemons/workerd/engine_meta.h"
#include "daemons/workerd/engine_pack.h"
#include "dtorch/v1/session.pb-c.h"
#include "lib/fakebackend.h"
#include "wire/signature.h"

TestSuite(engine_meta, .timeout = 60);

static const int64_t four[] = {4};

/* Ask the fake backend. Gives the unpacked answer. */
static Dtorch__V1__WorkerSessionUp *ask(const char *name, const uint8_t *damaged, size_t size)
{
    dt_arena_t arena;
    dt_buf_t body;
    uint8_t *answer;
    size_t answer_size;
    dt_error_t err = {0};
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}, {.tag = DT_VALUE_DYNAMIC}};
    dt_signature_tensor_t input = {.layout = {.mesh = 3}};
    cr_assert_eq(dt_meta_set(&input.meta, DT_DTYPE_F32, 1, four, NULL, 0, &err), DT_OK);
    const dt_signature_t sig = {.name = name,
                                .arg_count = 2,
                                .input_count = 1,
                                .dynamic_count = 1,
                                .flags = DT_SIGNATURE_UNKNOWN | DT_SIGNATURE_RANDOM,
                                .args = args,
                                .inputs = &input};
    dt_buf_init(&body, 4096);
    cr_assert_eq(dt_signature_encode(&sig, &body, &err), DT_OK, "%s", err.text);
    dt_arena_init(&arena, 16 << 20);
    const dt_engine_meta_source_t source = {.backend = &fake_backend, .kind = "cpu"};
    cr_assert_eq(dt_engine_meta_answer(&source, &arena, 77, 2, damaged ? damaged : body.data,
                                       damaged ? size : body.len, &answer, &answer_size),
                 DT_OK);
    Dtorch__V1__WorkerSessionUp *up =
        dtorch__v1__worker_session_up__unpack(NULL, answer_size, answer);
    cr_assert_not_null(up);
    cr_assert_eq(up->kind_case, DTORCH__V1__WORKER_SESSION_UP__KIND_ANSWER);
    cr_assert_eq(up->answer->query, 77);
    dt_arena_fini(&arena);
    dt_buf_fini(&body);
    return up;
}

Test(engine_meta, outputs_are_filled_in_and_lie_where_the_inputs_do)
{
    Dtorch__V1__WorkerSessionUp *up = ask("aten::view", NULL, 0);
    dt_arena_t arena;
    dt_signature_t *sig;
    dt_cursor_t cursor = {up->answer->signature.data,
                          up->answer->signature.data + up->answer->signature.len, 0};
    dt_arena_init(&arena, 1 << 20);
    cr_assert_eq(dt_signature_decode(&cursor, &arena, &sig), 0);
    cr_assert_eq(sig->output_count, 1);
    cr_assert_eq(sig->outputs[0].alias, DT_ALIAS_VIEW);
    cr_assert_eq(sig->outputs[0].layout.mesh, 3);
    cr_assert(dt_meta_equal(&sig->outputs[0].meta, &sig->inputs[0].meta));
    cr_assert_eq(sig->flags, DT_SIGNATURE_RANDOM);
    cr_assert_eq(sig->args[1].tag, DT_VALUE_DYNAMIC);
    dt_arena_fini(&arena);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

Test(engine_meta, what_cannot_be_told_is_an_error_or_needs_execution)
{
    Dtorch__V1__WorkerSessionUp *up = ask("aten::nothing", NULL, 0);
    cr_assert_str_eq(up->answer->error->kind, "NotImplementedError");
    cr_assert_str_eq(up->answer->error->operator_name, "aten::nothing");
    cr_assert_eq(up->answer->signature.len, 0);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    up = ask("fake::slow", NULL, 0);
    cr_assert(up->answer->needs_execution);
    cr_assert_null(up->answer->error);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    up = ask("aten::view", (const uint8_t *)"\xff\xff\xff", 3);
    cr_assert_not_null(up->answer->error);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}

/* Append the question for a view of so many elements. */
static void add_question(dt_buf_t *body, const char *name, int64_t size)
{
    const dt_value_t args[] = {{.tag = DT_VALUE_TENSOR}};
    dt_signature_tensor_t input = {.layout = {.mesh = 3}};
    cr_assert_eq(dt_meta_set(&input.meta, DT_DTYPE_F32, 1, &size, NULL, 0, NULL), DT_OK);
    const dt_signature_t sig = {.name = name,
                                .arg_count = 1,
                                .input_count = 1,
                                .flags = DT_SIGNATURE_UNKNOWN,
                                .args = args,
                                .inputs = &input};
    cr_assert_eq(dt_signature_encode(&sig, body, NULL), DT_OK);
}

Test(engine_meta, what_is_asked_ahead_has_a_plain_answer_or_none)
{
    dt_buf_t body;
    dt_arena_t arena;
    uint8_t *answer;
    size_t size;
    const dt_engine_meta_source_t source = {.backend = &fake_backend, .kind = "cpu"};
    dt_buf_init(&body, 4096);
    add_question(&body, "aten::view", 5);
    add_question(&body, "aten::view", 6);
    add_question(&body, "aten::nothing", 7); /* an error */
    add_question(&body, "fake::slow", 8);    /* by execution */
    add_question(&body, "aten::view", 9);
    cr_assert_eq(dt_buf_append(&body, "\xff\xff\xff", 3), DT_OK);
    dt_arena_init(&arena, 16 << 20);
    cr_assert_eq(dt_engine_meta_answer(&source, &arena, 1, 2, body.data, body.len, &answer, &size),
                 DT_OK);
    Dtorch__V1__WorkerSessionUp *up = dtorch__v1__worker_session_up__unpack(NULL, size, answer);
    cr_assert_not_null(up);
    cr_assert_gt(up->answer->signature.len, 0);
    cr_assert_null(up->answer->error);
    cr_assert_eq(up->answer->n_ahead, 5);
    for (size_t i = 0; i < 5; i++)
        cr_assert_eq(up->answer->ahead[i].len > 0, i == 0 || i == 3, "%zu", i);
    dt_signature_t *sig;
    dt_cursor_t cursor = {up->answer->ahead[3].data,
                          up->answer->ahead[3].data + up->answer->ahead[3].len, 0};
    cr_assert_eq(dt_signature_decode(&cursor, &arena, &sig), 0);
    cr_assert_eq(sig->inputs[0].meta.sizes[0], 9);
    cr_assert_eq(sig->outputs[0].meta.sizes[0], 9);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    dt_arena_fini(&arena);
    dt_buf_fini(&body);
}

static int rehearsals;

/* NOLINTNEXTLINE(readability-function-size): the parameters of the table's entry */
static dt_status_t rehearse(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                            const dt_meta_t *inputs, uint32_t input_count,
                            dt_backend_output_t *ret_outputs, uint32_t output_max,
                            uint32_t *ret_count, dt_error_t *err)
{
    (void)device, (void)op, (void)args, (void)arg_count, (void)input_count, (void)output_max;
    (void)err;
    rehearsals++;
    ret_outputs[0] = (dt_backend_output_t){.alias = DT_ALIAS_FRESH, .meta = inputs[0]};
    *ret_count = 1;
    return DT_OK;
}

/* An operator may take the process with it, given what its program would never give it. */
Test(engine_meta, no_operator_runs_for_what_is_asked_ahead)
{
    dt_backend_t backend = fake_backend;
    const dt_engine_meta_source_t source = {.backend = &backend, .kind = "cpu"};
    backend.op_rehearse = rehearse;
    for (unsigned count = 1; count <= 3; count++) {
        dt_buf_t body;
        dt_arena_t arena;
        uint8_t *answer;
        size_t size;
        dt_buf_init(&body, 4096);
        dt_arena_init(&arena, 16 << 20);
        for (unsigned i = 0; i < count; i++)
            add_question(&body, "fake::slow", 5 + i);
        cr_assert_eq(
            dt_engine_meta_answer(&source, &arena, 1, 2, body.data, body.len, &answer, &size),
            DT_OK);
        Dtorch__V1__WorkerSessionUp *up = dtorch__v1__worker_session_up__unpack(NULL, size, answer);
        cr_assert_not_null(up);
        cr_assert_eq(up->answer->signature.len > 0, count == 1, "%u", count);
        cr_assert_eq(up->answer->needs_execution, count > 1);
        for (size_t i = 0; i < up->answer->n_ahead; i++)
            cr_assert_eq(up->answer->ahead[i].len, 0);
        cr_assert_eq(rehearsals, 1, "%d", rehearsals);
        dtorch__v1__worker_session_up__free_unpacked(up, NULL);
        dt_arena_fini(&arena);
        dt_buf_fini(&body);
    }
}

static Dtorch__V1__WorkerSessionUp *unpack(unsigned field, const uint8_t *body, size_t size)
{
    uint8_t bytes[256];
    uint8_t *end = dt_pack_bytes(bytes, field, body, size);
    Dtorch__V1__WorkerSessionUp *up =
        dtorch__v1__worker_session_up__unpack(NULL, (size_t)(end - bytes), bytes);
    cr_assert_not_null(up);
    return up;
}

static uint8_t *put(uint8_t *at, unsigned field, const char *text)
{
    return dt_pack_bytes(at, field, text, strlen(text));
}

Test(engine_meta, an_error_written_by_hand_is_that_of_the_proto)
{
    uint8_t bytes[256];
    uint8_t *at = dt_pack_number(bytes, DT_PACK_ERROR_CODE, (uint64_t)(int64_t)DT_ERR_INVALID);
    at = put(at, DT_PACK_ERROR_KIND, "kind");
    at = put(at, DT_PACK_ERROR_TEXT, "text");
    at = dt_pack_number(at, DT_PACK_ERROR_SEQUENCE, 4);
    at = put(at, DT_PACK_ERROR_OPERATOR, "operator");
    at = put(at, DT_PACK_ERROR_INPUTS, "inputs");
    at = put(at, DT_PACK_ERROR_SOURCE, "source");
    at = put(at, DT_PACK_ERROR_NODE, "node");
    at = dt_pack_number(at, DT_PACK_ERROR_DEVICE, 9);
    at = dt_pack_number(at, DT_PACK_ERROR_VDEV, 10);
    at = dt_pack_number(at, DT_PACK_ERROR_SOURCE_CODE, (uint64_t)INT64_C(-11));
    at = dt_pack_head(at, DT_PACK_ERROR_RANGE, 0);
    at = put(at, DT_PACK_ERROR_RANGE, "range");
    Dtorch__V1__OperatorError *error =
        dtorch__v1__operator_error__unpack(NULL, (size_t)(at - bytes), bytes);
    cr_assert_not_null(error);
    cr_assert_eq(error->code, DT_ERR_INVALID);
    cr_assert_str_eq(error->kind, "kind");
    cr_assert_str_eq(error->text, "text");
    cr_assert_eq(error->sequence, 4);
    cr_assert_str_eq(error->operator_name, "operator");
    cr_assert_str_eq(error->inputs, "inputs");
    cr_assert_str_eq(error->source, "source");
    cr_assert_str_eq(error->node, "node");
    cr_assert_eq(error->device, 9);
    cr_assert_eq(error->vdev, 10);
    cr_assert_eq(error->source_code, -11);
    cr_assert_eq(error->n_range, 2);
    cr_assert_str_eq(error->range[0], "");
    cr_assert_str_eq(error->range[1], "range");
    dtorch__v1__operator_error__free_unpacked(error, NULL);
}

Test(engine_meta, fields_written_by_hand_are_those_of_the_proto)
{
    uint8_t body[128];
    uint8_t *at = dt_pack_number(body, DT_PACK_EXECUTED_SEQUENCE, 300);
    at = dt_pack_number(at, DT_PACK_EXECUTED_VDEV, 4);
    Dtorch__V1__WorkerSessionUp *up = unpack(DT_PACK_UP_EXECUTED, body, (size_t)(at - body));
    cr_assert_eq(up->executed->sequence, 300);
    cr_assert_eq(up->executed->vdev, 4);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    at = dt_pack_number(body, DT_PACK_RESULT_FUTURE, 9);
    at = dt_pack_bytes(at, DT_PACK_RESULT_META, "mm", 2);
    at = dt_pack_bytes(at, DT_PACK_RESULT_VALUE, "vvv", 3);
    at = dt_pack_number(at, DT_PACK_RESULT_TRANSFER, 10);
    at = dt_pack_number(at, DT_PACK_RESULT_SIZE, 11);
    uint8_t error[16];
    size_t error_size = (size_t)(dt_pack_number(error, DT_PACK_ERROR_SKIPPED, 5) - error);
    at = dt_pack_bytes(at, DT_PACK_RESULT_ERROR, error, error_size);
    up = unpack(DT_PACK_UP_RESULT, body, (size_t)(at - body));
    cr_assert_eq(up->result->future, 9);
    cr_assert_eq(up->result->meta.len, 2);
    cr_assert_eq(up->result->value.len, 3);
    cr_assert_eq(up->result->transfer, 10);
    cr_assert_eq(up->result->size_bytes, 11);
    cr_assert_eq(up->result->error->skipped, 5);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    at = dt_pack_number(body, DT_PACK_POISON_SEQUENCE, 12);
    at = dt_pack_bytes(at, DT_PACK_POISON_ERROR, error, error_size);
    up = unpack(DT_PACK_UP_POISON, body, (size_t)(at - body));
    cr_assert_eq(up->poison->sequence, 12);
    cr_assert_eq(up->poison->error->skipped, 5);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
    at = dt_pack_number(body, DT_PACK_CHUNK_SESSION, 1);
    at = dt_pack_number(at, DT_PACK_CHUNK_TRANSFER, 2);
    at = dt_pack_number(at, DT_PACK_CHUNK_OFFSET, 3);
    at = dt_pack_number(at, DT_PACK_CHUNK_CRC, 4);
    at = dt_pack_bytes(at, DT_PACK_CHUNK_DATA, "data", 4);
    at = dt_pack_number(at, DT_PACK_CHUNK_RECEIVED, 5);
    at = dt_pack_bytes(at, DT_PACK_CHUNK_ERROR, error, error_size);
    at = dt_pack_number(at, DT_PACK_CHUNK_RESTART, 1);
    up = unpack(DT_PACK_UP_CHUNK, body, (size_t)(at - body));
    cr_assert_eq(up->chunk->session, 1);
    cr_assert_eq(up->chunk->transfer, 2);
    cr_assert_eq(up->chunk->offset, 3);
    cr_assert_eq(up->chunk->crc32c, 4);
    cr_assert_eq(up->chunk->data.len, 4);
    cr_assert_eq(up->chunk->received, 5);
    cr_assert_eq(up->chunk->error->skipped, 5);
    cr_assert(up->chunk->restart);
    dtorch__v1__worker_session_up__free_unpacked(up, NULL);
}
