/* Signatures: asked for at the cluster, defined in the stream, dropped when there are too many. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "client.h"
#include "ring.h"

#define ARENA_MAX (32u << 20)

/* ---- encoding ---- */

static void *arena_array(dt_arena_t *arena, size_t count, size_t size, dt_status_t *status)
{
    void *memory = dt_arena_calloc(arena, count ? count : 1, size);
    if (!memory)
        *status = DT_ERR_NOMEM;
    return memory;
}

/* The wire's TENSORS say which elements are None. */
static dt_status_t copy_args(const dt_client_question_t *question, const dt_client_call_t *call,
                             uint32_t mask, dt_arena_t *arena, dt_signature_t *sig)
{
    dt_status_t status = DT_OK;
    dt_value_t *args = arena_array(arena, question->arg_count, sizeof *args, &status);
    for (uint32_t i = 0; args && i < question->arg_count; i++) {
        const dt_value_t *from = &question->args[i];
        args[i] = *from;
        if (from->tag != DT_VALUE_TENSORS)
            continue;
        uint64_t *ids = arena_array(arena, from->count, sizeof *ids, &status);
        for (uint32_t k = 0; ids && k < from->count; k++)
            ids[k] = from->handles[k] != NULL;
        args[i].ids = ids;
    }
    for (uint32_t i = 0; args && i < call->number_count; i++)
        if (mask >> i & 1)
            args[call->positions[i]].tag = DT_VALUE_DYNAMIC;
    sig->name = question->name;
    sig->arg_count = question->arg_count;
    sig->args = args;
    return status;
}

/* Make the signature of the call in the scratch, without outputs. Lives in `arena`. */
static dt_status_t describe(dt_session_t *session, const dt_client_question_t *question,
                            uint32_t mask, dt_arena_t *arena, dt_signature_t *ret_sig,
                            dt_error_t *err)
{
    const dt_client_call_t *call = &session->cache.call;
    dt_layout_t layout = {.mesh = call->vdev, .ndim = call->vdev ? 1 : 0};
    dt_status_t status = DT_OK;
    memset(ret_sig, 0, sizeof *ret_sig);
    dt_signature_tensor_t *inputs = arena_array(arena, call->input_count, sizeof *inputs, &status);
    if (status == DT_OK)
        status = copy_args(question, call, mask, arena, ret_sig);
    if (status != DT_OK)
        return dt_fail(err, status, "dt", 0, "no memory for the signature of %s", question->name);
    if (call->vdev >= session->settings.vdev_count)
        return dt_fail(err, DT_ERR_INVALID, "dt", call->vdev, "virtual device %u of %u", call->vdev,
                       session->settings.vdev_count);
    for (uint32_t i = 0; i < call->input_count; i++) {
        inputs[i].meta = *session->metas.items[call->metas[i]];
        inputs[i].layout = layout;
    }
    ret_sig->inputs = inputs;
    ret_sig->input_count = call->input_count;
    return DT_OK;
}

/* ---- defining ---- */

void dt_client_signature_free(dt_client_signature_t *signature)
{
    if (!signature)
        return;
    dt_client_plans_free(signature);
    dt_client_rings_free(signature);
    dt_client_rows_free(signature);
    free(signature->outputs);
    free(signature->metas);
    free(signature->inputs);
    free(signature->body);
    free(signature);
}

/* What is needed to define it anew for other layouts. */
static bool keep_inputs(dt_session_t *session, const dt_signature_t *sig, const dt_buf_t *body,
                        dt_client_signature_t *made)
{
    made->inputs = calloc(sig->input_count + 1, sizeof *made->inputs);
    made->body = malloc(body->len);
    if (!made->inputs || !made->body)
        return false;
    memcpy(made->body, body->data, body->len);
    made->body_bytes = (uint32_t)body->len;
    bool is_question =
        dt_str_is_equal(sig->name, "dtorch::metadata"); /* says nothing of its input */
    for (uint32_t i = 0; i < sig->input_count; i++) {
        made->inputs[i] = DT_CLIENT_NO_META;
        if (!is_question &&
            dt_client_meta_intern(&session->metas, &sig->inputs[i].meta, &made->inputs[i]) != DT_OK)
            return false;
    }
    return true;
}

/* In place over lists, fused optimizers, statistics of a batch norm that trains: no output says
 * what is written. */
static bool writes_unsaid(const dt_signature_t *sig)
{
    static const char *const named[] = {
        "native_batch_norm",       "_native_batch_norm_legit", "_batch_norm_with_update",
        "batch_norm_update_stats", "rrelu_with_noise",         "rrelu_with_noise_",
    };
    const char *colons = strstr(sig->name, "::");
    const char *base = colons ? colons + 2 : sig->name;
    size_t bytes = strcspn(base, ".");
    if (strcmp(base + bytes, ".no_stats") == 0)
        return false; /* there are none to write */
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (strlen(named[i]) != bytes || memcmp(base, named[i], bytes) != 0)
            continue;
        for (uint32_t k = 0; k < sig->arg_count; k++)
            if (sig->args[k].tag == DT_VALUE_FALSE) /* training= */
                return false;
        return true;
    }
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias == DT_ALIAS_IN_PLACE)
            return false;
    return bytes > 2 && base[bytes - 1] == '_' && base[bytes - 2] != '_';
}

static bool is_strided(const dt_signature_t *sig)
{
    const char *colons = strstr(sig->name, "::");
    const char *base = colons ? colons + 2 : sig->name;
    return strncmp(base, "as_strided", 10) == 0 || strcmp(base, "_reshape_alias") == 0;
}

static dt_client_signature_t *signature_new(dt_session_t *session, const dt_signature_t *sig,
                                            const dt_buf_t *body, uint32_t vdev)
{
    dt_client_signature_t *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->outputs = calloc(sig->output_count + 1, sizeof *made->outputs);
    made->metas = calloc(sig->output_count + 1, sizeof *made->metas);
    if (!keep_inputs(session, sig, body, made))
        goto fail;
    made->flags = sig->flags;
    made->vdev = vdev;
    made->writes_unsaid = writes_unsaid(sig);
    made->is_strided = is_strided(sig);
    made->needs_whole = dt_client_whole_takes(sig);
    made->may_ring = made->needs_whole || dt_client_ring_takes(sig);
    made->ring_drops = made->may_ring && !made->needs_whole && dt_client_ring_drops(sig);
    made->row_dim = dt_client_rows_dim(sig);
    made->row_first = made->row_dim >= 0 ? sig->args[2].number : 0;
    made->input_count = sig->input_count;
    made->output_count = sig->output_count;
    for (uint32_t i = 0; i < sig->arg_count; i++)
        made->dynamic_count += sig->args[i].tag == DT_VALUE_DYNAMIC;
    for (uint32_t i = 0; made->outputs && made->metas && i < sig->output_count; i++) {
        const dt_signature_tensor_t *out = &sig->outputs[i];
        bool is_known = out->alias != DT_ALIAS_NONE && !(sig->flags & DT_SIGNATURE_DATA_DEPENDENT);
        made->outputs[i].alias = out->alias;
        made->outputs[i].input = out->input;
        made->outputs[i].meta = out->meta;
        made->metas[i] = DT_CLIENT_NO_META;
        made->id_count += out->alias == DT_ALIAS_FRESH || out->alias == DT_ALIAS_VIEW;
        if (is_known &&
            dt_client_meta_intern(&session->metas, &out->meta, &made->metas[i]) != DT_OK)
            goto fail;
    }
    if (made->outputs && made->metas)
        return made;
fail:
    dt_client_signature_free(made);
    return NULL;
}

static int by_use(const void *a, const void *b)
{
    uint64_t x = (*(dt_client_signature_t *const *)a)->used;
    uint64_t y = (*(dt_client_signature_t *const *)b)->used;
    return (x > y) - (x < y);
}

/* Forget `old` on both sides. */
static dt_status_t drop(dt_session_t *session, dt_client_signature_t *const *old, uint32_t count,
                        dt_error_t *err)
{
    dt_client_cache_t *cache = &session->cache;
    dt_status_t status = DT_OK;
    for (uint32_t i = 0; i < count; i++)
        old[i]->is_dropped = true; /* now, so that nobody finds it while the lock is released */
    dt_client_cache_forget_dropped(cache);
    for (uint32_t i = 0; status == DT_OK && i < count; i++) {
        char text[16];
        dt_record_t record;
        int len = snprintf(text, sizeof text, "%" PRIu32, old[i]->id);
        record.kind = DT_RECORD_SET_OPTION;
        memset(&record.note, 0, sizeof record.note);
        record.note.what = DT_OPTION_DROP_SIGNATURE;
        record.note.text = text;
        record.note.text_bytes = (uint32_t)len;
        cache->live_count--;
        status = dt_client_append(session, &record, err);
    }
    return status;
}

/* Drop a part of those that were not used for longest. */
static dt_status_t drop_some(dt_session_t *session, dt_error_t *err)
{
    dt_client_cache_t *cache = &session->cache;
    dt_client_signature_t **old = malloc(cache->signature_count * sizeof *old);
    uint32_t count = 0;
    dt_status_t status = DT_OK;
    if (!old)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to drop signatures");
    for (uint32_t i = 0; i < cache->signature_count; i++)
        if (!cache->signatures[i]->is_dropped && !cache->signatures[i]->is_pinned)
            old[count++] = cache->signatures[i];
    qsort(old, count, sizeof *old, by_use);
    if (count > DT_CLIENT_SIGNATURES / 8)
        count = DT_CLIENT_SIGNATURES / 8;
    status = drop(session, old, count, err);
    free(old);
    if (status == DT_OK && count == 0)
        status = dt_fail(err, DT_ERR_LIMIT, "dt", DT_CLIENT_SIGNATURES,
                         "more than %u signatures in use", DT_CLIENT_SIGNATURES);
    return status;
}

/* Define `sig`, whose outputs are known, as entry `numbers` of `family`; NULL: of no family. */
static dt_status_t define(dt_session_t *session, dt_client_family_t *family,
                          const dt_client_numbers_t *numbers, dt_signature_t *sig, uint32_t vdev,
                          dt_client_signature_t **ret_signature, dt_error_t *err)
{
    dt_buf_t body;
    dt_layout_t layout;
    dt_record_t record;
    dt_client_signature_t *made = NULL;
    dt_status_t status;
    dt_buf_init(&body, DT_SIGNATURE_BYTES_MAX);
    sig->flags &= ~(uint32_t)DT_SIGNATURE_UNKNOWN;
    status = dt_client_layout(session, vdev, &layout, err);
    if (status == DT_OK)
        status = dt_signature_encode(sig, &body, err);
    if (status == DT_OK && session->cache.live_count >= DT_CLIENT_SIGNATURES)
        status = drop_some(session, err);
    record.kind = DT_RECORD_DEF_SIG;
    record.definition.body = body.data;
    record.definition.body_bytes = (uint32_t)body.len;
    if (status == DT_OK)
        status = dt_client_room(session, dt_record_bound(&record), INT64_MAX, err);
    if (status == DT_OK && family && (made = dt_client_find_entry(family, numbers)) != NULL) {
        *ret_signature = made; /* another thread was faster */
        dt_buf_fini(&body);
        return DT_OK;
    }
    if (status == DT_OK && session->cache.signature_count >= DT_RECORD_SIG_MAX)
        status = dt_fail(err, DT_ERR_LIMIT, "dt", DT_RECORD_SIG_MAX,
                         "a session has at most %u signatures", DT_RECORD_SIG_MAX);
    if (status == DT_OK && (!(made = signature_new(session, sig, &body, vdev)) ||
                            (family ? dt_client_cache_put(&session->cache, family, numbers, made)
                                    : dt_client_signature_add(&session->cache, made)) != DT_OK))
        status = dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    if (status == DT_OK && made) {
        record.definition.id = made->id;
        made->used = dt_client_sequence(session);
        dt_client_put(session, &record);
        *ret_signature = made;
    } else {
        dt_client_signature_free(made);
    }
    dt_buf_fini(&body);
    return status;
}

dt_status_t dt_client_signature_define(dt_session_t *session, dt_signature_t *sig,
                                       dt_client_signature_t **ret_signature, dt_error_t *err)
{
    return define(session, NULL, NULL, sig, 0, ret_signature, err);
}

/* ---- asking ---- */

/* Wait for the answer to query->body. Lock held, released meanwhile. */
static dt_status_t ask(dt_session_t *session, uint32_t vdev, dt_client_query_t *query,
                       dt_failure_t *failure)
{
    query->vdev = vdev;
    query->failure = failure;
    dt_list_push(&session->queries, &query->link);
    session->may_defer = true;
    dt_client_close_frame(session);
    dt_client_io_kick(session);
    session->may_defer = false;
    bool is_waiting = true;
    while (!query->is_done && session->state != DT_CLIENT_ENDED && is_waiting)
        is_waiting = dt_client_await(session, INT64_MAX);
    dt_list_remove(&query->link);
    if (!is_waiting && !query->is_done && session->state != DT_CLIENT_ENDED) {
        dt_error_t err;
        (void)dt_fail(&err, DT_ERR_TIMEOUT, "dt", 0, "the program did not wait for the answer");
        return dt_client_failure_from(failure, &err);
    }
    if (!query->is_done || session->state == DT_CLIENT_ENDED)
        return dt_client_failure_from(failure, &session->end);
    return failure->error.code;
}

/* The same, but where it was foreseen and asked already. */
static dt_status_t ask_or_take(dt_session_t *session, const dt_signature_t *sig,
                               const dt_buf_t *body, uint32_t vdev, dt_client_query_t *query,
                               dt_failure_t *failure)
{
    uint64_t course = dt_client_ahead_learn(session, sig, vdev);
    dt_buf_init(&query->answer, DT_SIGNATURE_BYTES_MAX);
    query->body = body->data;
    query->body_bytes = body->len;
    if (dt_client_ahead_take(session, course, body, &query->answer) == DT_OK)
        return DT_OK;
    return ask(session, vdev, query, failure);
}

static dt_status_t decode(const void *bytes, size_t size, dt_arena_t *arena,
                          dt_signature_t **ret_sig, dt_error_t *err)
{
    dt_cursor_t cursor = {.at = bytes, .end = (const uint8_t *)bytes + size};
    int error = dt_signature_decode(&cursor, arena, ret_sig);
    if (error || dt_cursor_left(&cursor))
        return dt_fail(err, DT_ERR_INTERNAL, "wire", error,
                       "the cluster answered with a malformed signature (%s)",
                       dt_frame_error_name(error));
    return DT_OK;
}

/* What nobody knows before it has run: as many outputs as the program expects. */
static dt_status_t unknown_outputs(const dt_client_question_t *question, dt_arena_t *arena,
                                   dt_signature_t *sig)
{
    dt_status_t status = DT_OK;
    dt_signature_tensor_t *outputs =
        arena_array(arena, question->output_max, sizeof *outputs, &status);
    for (uint32_t i = 0; outputs && i < question->output_max; i++) {
        if (dt_meta_set(&outputs[i].meta, DT_DTYPE_F32, 0, NULL, NULL, 0, NULL) != DT_OK)
            return DT_ERR_INTERNAL;
        if (sig->input_count)
            outputs[i].layout = sig->inputs[0].layout;
    }
    sig->outputs = outputs;
    sig->output_count = question->output_max;
    sig->flags = DT_SIGNATURE_DATA_DEPENDENT;
    return status;
}

/* Read the answer: the question with outputs. */
static dt_status_t take_answer(const dt_client_query_t *query, const dt_client_question_t *question,
                               dt_arena_t *arena, dt_signature_t **ret_sig, dt_error_t *err)
{
    dt_signature_t *sig, *asked;
    dt_buf_t again;
    DT_TRY(decode(query->body, query->body_bytes, arena, &asked, err));
    if (query->needs_execution && query->answer.len == 0) {
        DT_TRY(unknown_outputs(question, arena, asked));
        *ret_sig = asked;
        return DT_OK;
    }
    DT_TRY(decode(query->answer.data, query->answer.len, arena, &sig, err));
    /* It must be an answer to this question. */
    dt_signature_t bare = *sig;
    bare.output_count = 0;
    bare.flags = asked->flags;
    dt_buf_init(&again, DT_SIGNATURE_BYTES_MAX);
    dt_status_t status = dt_signature_encode(&bare, &again, err);
    if (status == DT_OK &&
        (again.len != query->body_bytes || memcmp(again.data, query->body, again.len) != 0))
        status = dt_fail(err, DT_ERR_INTERNAL, "dt", 0,
                         "the cluster answered for another signature than %s", question->name);
    dt_buf_fini(&again);
    if (query->needs_execution)
        sig->flags |= DT_SIGNATURE_DATA_DEPENDENT;
    *ret_sig = sig;
    return status;
}

static dt_status_t take_apart(dt_session_t *session, const dt_client_question_t *question,
                              dt_error_t *err)
{
    return question->operation ? dt_client_call_operands(session, question->operation, err)
                               : dt_client_call_handles(session, question->name, question->args,
                                                        question->arg_count, err);
}

/* Which arguments are the numbers of `mask`. */
static uint32_t dynamic_args(const dt_client_call_t *call, uint32_t mask,
                             uint8_t places[static DT_CLIENT_SCALARS_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < call->number_count; i++)
        if (mask >> i & 1)
            places[count++] = call->positions[i];
    return count;
}

/* What is asked has the numbers of this call, dynamic ones too: whether one is whole can decide the
 * outputs' type. */
static dt_status_t ask_and_define(dt_session_t *session, const dt_client_question_t *question,
                                  dt_client_family_t *family, const dt_client_numbers_t *numbers,
                                  dt_arena_t *arena, dt_client_signature_t **ret_signature,
                                  dt_failure_t *failure)
{
    dt_client_query_t query = {0};
    dt_signature_t sig, *answered = NULL;
    dt_buf_t body;
    dt_error_t err;
    uint8_t places[DT_CLIENT_SCALARS_MAX];
    uint32_t vdev = session->cache.call.vdev;
    dt_status_t status;
    dt_buf_init(&body, DT_SIGNATURE_BYTES_MAX);
    const uint32_t dynamic = dynamic_args(&session->cache.call, numbers->mask, places);
    status = describe(session, question, 0, arena, &sig, &err);
    sig.flags = DT_SIGNATURE_UNKNOWN;
    if (status == DT_OK)
        status = dt_signature_encode(&sig, &body, &err);
    if (status != DT_OK) {
        dt_buf_fini(&body);
        return dt_client_failure_from(failure, &err);
    }
    status = ask_or_take(session, &sig, &body, vdev, &query, failure);
    if (status == DT_OK) {
        status = take_answer(&query, question, arena, &answered, &err);
        for (uint32_t i = 0; status == DT_OK && i < dynamic; i++) /* it is ours, in `arena` */
            ((dt_value_t *)(uintptr_t)answered->args)[places[i]].tag = DT_VALUE_DYNAMIC;
        if (status == DT_OK)
            status = define(session, family, numbers, answered, vdev, ret_signature, &err);
        if (status != DT_OK)
            status = dt_client_failure_from(failure, &err);
    }
    dt_buf_fini(&query.answer);
    dt_buf_fini(&body);
    return status;
}

/* The outputs and flags are those of `like`. */
static dt_status_t define_like(dt_session_t *session, const dt_client_question_t *question,
                               dt_client_family_t *family, const dt_client_numbers_t *numbers,
                               const dt_client_signature_t *like,
                               dt_client_signature_t **ret_signature, dt_error_t *err)
{
    dt_arena_t arena;
    dt_signature_t sig;
    dt_status_t status = DT_OK;
    uint32_t vdev = session->cache.call.vdev;
    dt_arena_init(&arena, ARENA_MAX);
    dt_signature_tensor_t *outputs =
        arena_array(&arena, like->output_count, sizeof *outputs, &status);
    for (uint32_t i = 0; outputs && i < like->output_count; i++) {
        outputs[i].alias = like->outputs[i].alias;
        outputs[i].input = like->outputs[i].input;
        outputs[i].meta = like->outputs[i].meta;
        outputs[i].layout = (dt_layout_t){.mesh = vdev, .ndim = vdev ? 1 : 0};
    }
    if (status != DT_OK)
        status = dt_fail(err, status, "dt", 0, "no memory for a signature");
    else
        status = describe(session, question, numbers->mask, &arena, &sig, err);
    if (status == DT_OK) {
        sig.outputs = outputs;
        sig.output_count = like->output_count;
        sig.flags = like->flags;
        status = define(session, family, numbers, &sig, vdev, ret_signature, err);
    }
    dt_arena_fini(&arena);
    return status;
}

/* Inputs whose metadata depends on values are fetched first. Lock held, released meanwhile. */
static dt_status_t learn_inputs(dt_session_t *session, const dt_client_question_t *question,
                                dt_failure_t *failure)
{
    dt_error_t err;
    for (;;) {
        dt_meta_t meta;
        if (take_apart(session, question, &err) != DT_OK)
            return dt_client_failure_from(failure, &err);
        dt_tensor_t *unknown = session->cache.call.unknown;
        if (!unknown)
            return DT_OK;
        pthread_mutex_unlock(&session->lock);
        dt_status_t status = dt_tensor_meta(unknown, &meta, failure);
        pthread_mutex_lock(&session->lock);
        if (status != DT_OK)
            return status;
        if (session->state == DT_CLIENT_ENDED)
            return dt_client_failure_from(failure, &session->end);
    }
}

dt_status_t dt_client_resolve(dt_session_t *session, const dt_client_question_t *question,
                              dt_client_signature_t **ret_signature, dt_failure_t *failure)
{
    dt_client_family_t *family;
    dt_client_numbers_t numbers;
    dt_arena_t arena;
    dt_layout_t layout;
    dt_error_t err = {.code = DT_ERR_NOMEM, .source = "dt", .text = "no memory for a signature"};
    DT_TRY(learn_inputs(session, question, failure));
    if ((*ret_signature = dt_client_lookup(session, &family)) != NULL)
        return DT_OK;
    uint32_t vdev = session->cache.call.vdev;
    if (dt_client_layout(session, vdev, &layout, &err) != DT_OK) /* may release the lock */
        return dt_client_failure_from(failure, &err);
    DT_TRY(learn_inputs(session, question, failure));
    if ((*ret_signature = dt_client_lookup(session, &family)) != NULL)
        return DT_OK;
    if (!family && !(family = dt_client_family_new(session)))
        return dt_client_failure_from(failure, &err);
    const dt_client_signature_t *like = dt_client_promote(session, family, &numbers);
    if ((*ret_signature = dt_client_find_entry(family, &numbers)) != NULL)
        return DT_OK;
    dt_arena_init(&arena, ARENA_MAX);
    dt_status_t status;
    if (like) {
        status = define_like(session, question, family, &numbers, like, ret_signature, &err);
        if (status != DT_OK)
            status = dt_client_failure_from(failure, &err);
    } else {
        status =
            ask_and_define(session, question, family, &numbers, &arena, ret_signature, failure);
    }
    dt_arena_fini(&arena);
    return status;
}

/* ---- for front ends ---- */

static dt_client_question_t question_of(const dt_operation_t *operation, uint32_t output_max)
{
    return (dt_client_question_t){.name = operation->name,
                                  .args = operation->args,
                                  .arg_count = operation->arg_count,
                                  .operation = operation,
                                  .output_max = output_max};
}

dt_status_t dt_signature_find(dt_session_t *session, const dt_operation_t *operation,
                              uint32_t *ret_signature, dt_error_t *err)
{
    dt_client_family_t *family;
    dt_client_signature_t *found = NULL;
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status = dt_client_call_operands(session, operation, err);
    if (status == DT_OK && !(found = dt_client_lookup(session, &family)))
        status = dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "%s has not been defined for these inputs",
                         operation->name);
    if (found) {
        found->is_pinned = true;
        *ret_signature = found->id;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* What is defined again must say the same: whoever defines has worked it out, and would take the
 * results for something that they are not. */
static bool says_the_same(const dt_client_signature_t *known, const dt_client_signature_t *like)
{
    if (known->output_count != like->output_count ||
        (known->flags ^ like->flags) & DT_SIGNATURE_DEPENDS)
        return false;
    for (uint32_t i = 0; i < known->output_count; i++) {
        const dt_output_t *a = &known->outputs[i], *b = &like->outputs[i];
        if (a->alias != b->alias || (a->alias == DT_ALIAS_IN_PLACE && a->input != b->input))
            return false;
        if (a->alias != DT_ALIAS_NONE && !(known->flags & DT_SIGNATURE_DEPENDS) &&
            !dt_meta_equal(&a->meta, &b->meta))
            return false;
    }
    return true;
}

static dt_status_t define_given(dt_session_t *session, const dt_operation_t *operation,
                                const dt_output_t *outputs, uint32_t output_count, uint32_t flags,
                                dt_client_signature_t **ret_signature, dt_error_t *err)
{
    dt_client_question_t question = question_of(operation, output_count);
    dt_client_signature_t like = {
        .outputs = (dt_output_t *)(uintptr_t)outputs, .output_count = output_count, .flags = flags};
    dt_client_numbers_t none = {0};
    dt_client_family_t *family;
    DT_TRY(dt_client_call_operands(session, operation, err));
    if ((*ret_signature = dt_client_lookup(session, &family)) != NULL) {
        if (says_the_same(*ret_signature, &like))
            return DT_OK;
        return dt_fail(err, DT_ERR_EXISTS, "dt", (int64_t)(*ret_signature)->id,
                       "%s is defined with other results", operation->name);
    }
    if (!family && !(family = dt_client_family_new(session)))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
    return define_like(session, &question, family, &none, &like, ret_signature, err);
}

dt_status_t dt_signature_define(dt_session_t *session, const dt_operation_t *operation,
                                const dt_output_t *outputs, uint32_t output_count, uint32_t flags,
                                uint32_t *ret_signature, dt_error_t *err)
{
    dt_client_signature_t *signature;
    if (flags & ~(DT_SIGNATURE_DRAWS | DT_SIGNATURE_DEPENDS) ||
        output_count > DT_RECORD_OUTPUTS_MAX)
        return dt_fail(err, DT_ERR_INVALID, "dt", flags, "unknown flags, or too many outputs");
    DT_TRY(dt_client_lock(session, err));
    dt_status_t status =
        define_given(session, operation, outputs, output_count, flags, &signature, err);
    if (status == DT_OK) {
        signature->is_pinned = true;
        *ret_signature = signature->id;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

dt_status_t dt_signature_infer(dt_session_t *session, const dt_operation_t *operation,
                               uint32_t output_max, uint32_t *ret_signature, dt_failure_t *failure)
{
    dt_client_question_t question = question_of(operation, output_max);
    dt_client_signature_t *signature;
    dt_failure_t unused = {.error = {.code = DT_OK}};
    dt_error_t err;
    if (!failure)
        failure = &unused;
    failure->error.code = DT_OK;
    if (dt_client_lock(session, &err) != DT_OK)
        return dt_client_failure_from(failure, &err);
    dt_status_t status = dt_client_resolve(session, &question, &signature, failure);
    if (status == DT_OK) {
        signature->is_pinned = true;
        *ret_signature = signature->id;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

dt_status_t dt_signature_drop(dt_session_t *session, const uint32_t *signatures, uint32_t count,
                              dt_error_t *err)
{
    dt_client_signature_t **old = malloc((count ? count : 1) * sizeof *old);
    uint32_t known = 0;
    if (!old)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory to drop signatures");
    dt_status_t status = dt_client_lock(session, err);
    if (status != DT_OK) {
        free(old);
        return status;
    }
    for (uint32_t i = 0; i < count; i++)
        if (signatures[i] < session->cache.signature_count &&
            !session->cache.signatures[signatures[i]]->is_dropped)
            old[known++] = session->cache.signatures[signatures[i]];
    status = drop(session, old, known, err);
    pthread_mutex_unlock(&session->lock);
    free(old);
    return status;
}

dt_status_t dt_signature_outputs(dt_session_t *session, uint32_t signature,
                                 const dt_output_t **ret_outputs, uint32_t *ret_count,
                                 uint32_t *ret_flags)
{
    if (dt_client_is_forked(session))
        return DT_ERR_STOPPED;
    pthread_mutex_lock(&session->lock);
    bool is_known = signature < session->cache.signature_count;
    if (is_known) {
        const dt_client_signature_t *found = session->cache.signatures[signature];
        *ret_outputs = found->outputs;
        *ret_count = found->output_count;
        if (ret_flags)
            *ret_flags = found->flags;
    }
    pthread_mutex_unlock(&session->lock);
    return is_known ? DT_OK : DT_ERR_NOT_FOUND;
}
