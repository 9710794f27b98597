#include "engine_meta.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/strings.h"
#include "dtorch/v1/session.pb-c.h"
#include "engine_exec_internal.h"
#include "wire/signature.h"
#include "wire/wire.h"

#define DT_ENGINE_META_ARENA_MAX (32u << 20)
/* All of an answer must find room in the ring when that has DT_SIGNATURE_BYTES_MAX. */
#define AHEAD_BYTES_MAX ((size_t)DT_SIGNATURE_BYTES_MAX / 2)

struct dt_engine_meta {
    dt_engine_meta_source_t source;
    dt_ops_rules_t *rules;
    int wake;
    _Atomic bool is_stopping;
    pthread_t thread;
    dt_ring_reader_t queries;
    dt_ring_writer_t answers;
    dt_arena_t arena;
};

/* Of the thread that is in op_infer: a crash there is not the executor's operator. */
static __thread char meta_running[DT_ENGINE_PAGE_NAME_MAX + 1];

const char *dt_engine_meta_running(void)
{
    return meta_running;
}

/* ---- one query ---- */

typedef struct meta_work {
    const dt_engine_meta_source_t *source;
    dt_arena_t *arena;
    const dt_signature_t *sig;
    dt_value_t *args;             /* (sig->arg_count) with numbers for those that are dynamic */
    dt_meta_t *inputs;            /* (sig->input_count) */
    dt_backend_output_t *outputs; /* (DT_RECORD_OUTPUTS_MAX), output_count of them filled */
    uint32_t output_count;
    bool is_ahead; /* nobody has asked yet, and perhaps nobody will: no kernel runs for it */
    dt_engine_answerer_t answerer;
} meta_work_t;

/* Handles where there are tensors, in lists too: 1 stands for one. */
static dt_status_t work_prepare(meta_work_t *work, dt_error_t *err)
{
    const dt_signature_t *sig = work->sig;
    work->inputs = dt_arena_calloc(work->arena, sig->input_count, sizeof *work->inputs);
    work->args = dt_arena_calloc(work->arena, sig->arg_count, sizeof *work->args);
    if (!work->outputs) /* a megabyte of which a page is used: not cleared */
        work->outputs = dt_arena_alloc(work->arena, DT_RECORD_OUTPUTS_MAX * sizeof *work->outputs);
    if (!work->inputs || !work->args || !work->outputs)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    for (uint32_t i = 0; i < sig->input_count; i++)
        work->inputs[i] = sig->inputs[i].meta;
    for (uint32_t i = 0; i < sig->arg_count; i++) { /* no metadata depends on a dynamic number */
        const dt_value_t one = {.tag = DT_VALUE_INT, .number = 1};
        work->args[i] = sig->args[i].tag == DT_VALUE_DYNAMIC ? one : sig->args[i];
    }
    return DT_OK;
}

/* Ask op_infer for one of the operators of a rule. */
static dt_status_t ask_meta(void *arg, const dt_ops_question_t *question,
                            dt_ops_answer_t *ret_answer, dt_error_t *err)
{
    const dt_engine_meta_source_t *source = arg;
    dt_backend_output_t outputs[DT_OPS_RESULT_MAX];
    uint32_t count;
    void *op;
    DT_TRY(source->backend->op_find(source->device, question->name, &op, err));
    DT_TRY(source->backend->op_infer(source->device, op, question->args, question->arg_count,
                                     question->inputs, question->input_count, outputs,
                                     DT_OPS_RESULT_MAX, &count, err));
    for (uint32_t i = 0; i < count; i++)
        ret_answer->outputs[i] =
            (dt_ops_output_t){outputs[i].alias, outputs[i].input, outputs[i].meta};
    ret_answer->count = count;
    return DT_OK;
}

static dt_status_t follow_rule(meta_work_t *work, dt_error_t *err)
{
    const dt_engine_meta_source_t *source = work->source;
    const dt_signature_t *sig = work->sig;
    const dt_ops_asker_t asker = {
        .ask = ask_meta, .arg = (void *)(uintptr_t)source, .kind = source->kind};
    const dt_ops_question_t question = {.name = sig->name,
                                        .args = work->args,
                                        .arg_count = sig->arg_count,
                                        .input_count = sig->input_count,
                                        .inputs = work->inputs};
    dt_ops_answer_t answer;
    DT_TRY(dt_ops_rules_answer(source->rules, &asker, &question, &answer, err));
    for (uint32_t i = 0; i < answer.count; i++) {
        const dt_ops_output_t *from = &answer.outputs[i];
        work->outputs[i] = (dt_backend_output_t){from->alias, from->input, from->meta};
    }
    work->output_count = answer.count;
    return DT_OK;
}

typedef dt_status_t (*infer_fn)(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                                const dt_meta_t *inputs, uint32_t input_count,
                                dt_backend_output_t *ret_outputs, uint32_t output_max,
                                uint32_t *ret_count, dt_error_t *err);

static dt_status_t ask_backend(meta_work_t *work, infer_fn infer, void *op, dt_error_t *err)
{
    const dt_signature_t *sig = work->sig;
    return infer ? infer(work->source->device, op, work->args, sig->arg_count, work->inputs,
                         sig->input_count, work->outputs, DT_RECORD_OUTPUTS_MAX,
                         &work->output_count, err)
                 : DT_ERR_AGAIN;
}

/* Nobody knows what comes out, but perhaps how many: each is then a number, until it has run. */
static void count_outputs(meta_work_t *work, void *op)
{
    const dt_backend_t *backend = work->source->backend;
    uint32_t count;
    work->output_count = 0;
    if (!backend->op_output_count ||
        backend->op_output_count(work->source->device, op, &count) != DT_OK ||
        count > DT_RECORD_OUTPUTS_MAX)
        return;
    for (uint32_t i = 0; i < count; i++) {
        work->outputs[i] = (dt_backend_output_t){.alias = DT_ALIAS_FRESH};
        if (dt_meta_set(&work->outputs[i].meta, DT_DTYPE_F32, 0, NULL, NULL, 0, NULL) != DT_OK)
            return;
    }
    work->output_count = count;
}

/* The first who knows. AGAIN: nobody does. */
static dt_status_t infer(meta_work_t *work, dt_error_t *err)
{
    const dt_backend_t *backend = work->source->backend;
    const char *name = work->sig->name;
    bool is_rule_first = dt_ops_rules_is_first(work->source->rules, name);
    dt_status_t status = DT_ERR_AGAIN;
    void *op;
    DT_TRY(work_prepare(work, err));
    DT_TRY(backend->op_find(work->source->device, name, &op, err));
    (void)dt_str_copy(meta_running, sizeof meta_running, name);
    work->answerer = DT_ENGINE_ANSWERER_META;
    if (!is_rule_first)
        status = ask_backend(work, backend->op_infer, op, err);
    if (status == DT_ERR_AGAIN && backend->op_infer) {
        work->answerer = DT_ENGINE_ANSWERER_RULE;
        status = follow_rule(work, err);
    }
    if (status == DT_ERR_AGAIN && !work->is_ahead) {
        work->answerer = DT_ENGINE_ANSWERER_REHEARSAL;
        status = ask_backend(work, backend->op_rehearse, op, err);
    }
    if (status == DT_ERR_AGAIN && !work->is_ahead) {
        work->answerer = DT_ENGINE_ANSWERER_EXECUTION;
        count_outputs(work, op);
    }
    if (work->source->page && (status == DT_OK || (status == DT_ERR_AGAIN && !work->is_ahead)))
        dt_engine_page_answered(work->source->page, work->answerer);
    meta_running[0] = '\0';
    return status;
}

/* The signature again, with what was learnt. Outputs lie where the inputs do. */
static dt_status_t signature_fill(meta_work_t *work, dt_buf_t *buf, dt_error_t *err)
{
    dt_signature_t filled = *work->sig;
    dt_signature_tensor_t *outputs =
        dt_arena_calloc(work->arena, work->output_count, sizeof *outputs);
    if (!outputs)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    for (uint32_t i = 0; i < work->output_count; i++) {
        const dt_backend_output_t *from = &work->outputs[i];
        bool is_alias = from->alias == DT_ALIAS_VIEW || from->alias == DT_ALIAS_IN_PLACE;
        outputs[i].alias = from->alias;
        outputs[i].input = is_alias ? from->input : 0;
        outputs[i].meta = from->meta;
        if (work->sig->input_count > 0)
            outputs[i].layout =
                work->sig
                    ->inputs[is_alias && from->input < work->sig->input_count ? from->input : 0]
                    .layout;
    }
    filled.outputs = outputs;
    filled.output_count = work->output_count;
    filled.flags &= ~(uint32_t)DT_SIGNATURE_UNKNOWN;
    if (work->answerer == DT_ENGINE_ANSWERER_EXECUTION)
        filled.flags |= DT_SIGNATURE_DATA_DEPENDENT;
    return dt_signature_encode(&filled, buf, err);
}

static void error_fill(Dtorch__V1__OperatorError *error, const dt_error_t *err, const char *name,
                       uint32_t vdev, dt_arena_t *arena)
{
    static char empty[] = "";
    char *text = dt_arena_alloc(arena, sizeof err->text);
    const char *word = dt_exec_error_kind(err);
    char *kind = dt_arena_strndup(arena, word, strlen(word));
    char *operator_name = dt_arena_strndup(arena, name, strnlen(name, DT_RECORD_NAME_MAX));
    dtorch__v1__operator_error__init(error);
    if (text)
        dt_exec_text_clean(text, sizeof err->text, err->text);
    error->code = err->code;
    error->kind = kind ? kind : empty;
    error->text = text ? text : empty;
    error->operator_name = operator_name ? operator_name : empty;
    error->vdev = vdev;
    error->source_code = err->source_code;
}

/* Answer the signature at the cursor. OK: `buf` has it with outputs, whatever *ret_executes says.
 * AGAIN: nobody can say even how many there are. */
static dt_status_t answer_next(meta_work_t *work, dt_cursor_t *cursor, dt_buf_t *buf,
                               bool *ret_executes, dt_error_t *err)
{
    dt_signature_t *sig = NULL;
    int malformed = dt_signature_decode(cursor, work->arena, &sig);
    dt_status_t status = malformed ? dt_frame_fail(err, malformed, 0, "signature") : DT_OK;
    work->is_ahead |= dt_cursor_left(cursor) > 0; /* what has others beside it is foretold too */
    work->sig = sig;
    work->output_count = 0;
    if (status == DT_OK)
        status = infer(work, err);
    *ret_executes = status == DT_ERR_AGAIN;
    if (status == DT_OK || (*ret_executes && work->output_count > 0))
        status = signature_fill(work, buf, err);
    return status;
}

/* What the program will probably ask next: where there is no plain answer, it is left empty, and
 * the program asks when it comes to that. */
static void answer_ahead(meta_work_t *work, dt_cursor_t *cursor, dt_buf_t *buf,
                         Dtorch__V1__SigAnswer *answer)
{
    dt_arena_t *whole = work->arena;
    dt_arena_t each;
    dt_error_t unread = {0}; /* who wants it asks again */
    size_t ends[DT_WIRE_AHEAD_MAX];
    size_t count = 0, at = 0;
    dt_arena_init(&each, DT_ENGINE_META_ARENA_MAX);
    for (; count < DT_WIRE_AHEAD_MAX && !cursor->error && dt_cursor_left(cursor); count++) {
        bool executes;
        size_t before = buf->len;
        work->arena = &each;
        dt_status_t status = answer_next(work, cursor, buf, &executes, &unread);
        if (status != DT_OK || executes)
            buf->len = before;
        ends[count] = buf->len;
        dt_arena_reset(&each);
    }
    work->arena = whole;
    dt_arena_fini(&each);
    if (!count || !(answer->ahead = dt_arena_calloc(whole, count, sizeof *answer->ahead)))
        return;
    answer->n_ahead = count;
    for (size_t i = 0; i < count; at = ends[i++])
        answer->ahead[i] = (ProtobufCBinaryData){ends[i] - at, buf->data + at};
}

/* NOLINTNEXTLINE(readability-function-size): who answers, what is asked, where the answer goes */
dt_status_t dt_engine_meta_answer(const dt_engine_meta_source_t *source, dt_arena_t *arena,
                                  uint64_t query, uint32_t vdev, const uint8_t *body, size_t size,
                                  uint8_t **ret_answer, size_t *ret_size)
{
    meta_work_t work = {.source = source, .arena = arena};
    dt_cursor_t cursor = {body, body + size, 0};
    dt_buf_t buf, ahead;
    dt_error_t err = {0};
    Dtorch__V1__WorkerSessionUp up;
    Dtorch__V1__SigAnswer answer;
    Dtorch__V1__OperatorError error;
    bool executes;
    dtorch__v1__worker_session_up__init(&up);
    dtorch__v1__sig_answer__init(&answer);
    dt_buf_init(&buf, DT_SIGNATURE_BYTES_MAX);
    dt_buf_init(&ahead, AHEAD_BYTES_MAX);
    answer.query = query;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_ANSWER;
    up.answer = &answer;
    dt_status_t status = answer_next(&work, &cursor, &buf, &executes, &err);
    answer.needs_execution = executes;
    if (status == DT_OK) {
        answer.signature.data = buf.data;
        answer.signature.len = buf.len;
    } else if (status != DT_ERR_AGAIN) {
        err.code = status;
        error_fill(&error, &err, work.sig ? work.sig->name : "signature", vdev, arena);
        answer.error = &error;
    }
    if (buf.len <= AHEAD_BYTES_MAX)
        answer_ahead(&work, &cursor, &ahead, &answer);
    status = dt_wire_pack(&up.base, arena, ret_answer, ret_size);
    dt_buf_fini(&ahead);
    dt_buf_fini(&buf);
    return status;
}

/* ---- the thread ---- */

static void query_take(dt_engine_meta_t *meta, const dt_ring_message_t *message)
{
    uint64_t query;
    uint32_t vdev;
    uint8_t *answer;
    size_t size;
    if (message->size < DT_CHANNEL_QUERY_HEAD)
        return;
    memcpy(&query, message->bytes, sizeof query);
    memcpy(&vdev, message->bytes + sizeof query, sizeof vdev);
    dt_arena_reset(&meta->arena);
    dt_status_t status = dt_engine_meta_answer(
        &meta->source, &meta->arena, query, vdev, message->bytes + DT_CHANNEL_QUERY_HEAD,
        message->size - DT_CHANNEL_QUERY_HEAD, &answer, &size);
    if (status == DT_OK)
        status = dt_ring_write(&meta->answers, message->kind, answer, size, NULL);
    if (status != DT_OK) /* room was looked at: it is memory, and the controller asks again */
        dt_arena_reset(&meta->arena);
}

static void meta_sleep(dt_engine_meta_t *meta)
{
    struct pollfd fd = {.fd = meta->wake, .events = POLLIN};
    (void)poll(&fd, 1, -1);
    dt_ring_wake_clear(meta->wake);
}

static void *meta_run(void *arg)
{
    dt_engine_meta_t *meta = arg;
    while (!atomic_load(&meta->is_stopping)) {
        dt_ring_message_t message;
        if (dt_ring_room(&meta->answers) < DT_SIGNATURE_BYTES_MAX + DT_CHANNEL_QUERY_HEAD) {
            dt_ring_want_room(&meta->answers);
            if (dt_ring_room(&meta->answers) < DT_SIGNATURE_BYTES_MAX + DT_CHANNEL_QUERY_HEAD)
                meta_sleep(meta);
        } else if (dt_ring_peek(&meta->queries, &message) == DT_OK) {
            query_take(meta, &message);
            dt_ring_pass(&meta->queries);
        } else if (!dt_ring_prepare_sleep(&meta->queries)) {
            meta_sleep(meta);
        }
    }
    return NULL;
}

dt_status_t dt_engine_meta_start(const dt_engine_meta_source_t *source, void *memory, int wake,
                                 int bell, dt_engine_meta_t **ret_meta, dt_error_t *err)
{
    dt_channel_meta_t *head = memory;
    uint32_t reader;
    dt_engine_meta_t *meta = calloc(1, sizeof *meta);
    if (!meta)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for the metadata thread");
    meta->source = *source;
    meta->wake = wake;
    dt_arena_init(&meta->arena, DT_ENGINE_META_ARENA_MAX);
    dt_status_t status = dt_ops_rules_create(&meta->rules, err);
    meta->source.rules = meta->rules;
    if (status == DT_OK)
        status =
            dt_ring_reader_init(&meta->queries, (uint8_t *)memory + DT_CHANNEL_QUERIES_AT,
                                dt_ring_body_bytes(DT_CHANNEL_META_BYTES), &head->queries, -1, err);
    if (status == DT_OK)
        status = dt_ring_writer_init(&meta->answers, (uint8_t *)memory + DT_CHANNEL_ANSWERS_AT,
                                     DT_CHANNEL_META_BYTES, err);
    if (status == DT_OK)
        status = dt_ring_join(&meta->answers, &head->answers, bell, &reader, err);
    int code = status == DT_OK ? pthread_create(&meta->thread, NULL, meta_run, meta) : 0;
    if (code)
        status = dt_fail(err, DT_ERR_AGAIN, "errno", code, "metadata thread: %s", strerror(code));
    if (status != DT_OK) {
        dt_ops_rules_free(meta->rules);
        free(meta);
        return status;
    }
    *ret_meta = meta;
    return DT_OK;
}

void dt_engine_meta_stop(dt_engine_meta_t *meta)
{
    if (!meta)
        return;
    atomic_store(&meta->is_stopping, true);
    dt_ring_wake(meta->wake);
    (void)pthread_join(meta->thread, NULL);
    dt_arena_fini(&meta->arena);
    dt_ops_rules_free(meta->rules);
    free(meta);
}
