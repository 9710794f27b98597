/* Operators on their way into the stream. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define OUTPUTS_NEAR 16u /* of an ordinary operator, on the stack */

/* ---- by number ---- */

static dt_status_t check_submit(const dt_session_t *session, uint32_t signature,
                                uint32_t input_count, uint32_t scalar_count, uint32_t output_count,
                                dt_error_t *err)
{
    const dt_client_signature_t *sig =
        signature < session->cache.signature_count ? session->cache.signatures[signature] : NULL;
    if (!sig || sig->is_dropped)
        return dt_fail(err, DT_ERR_INVALID, "dt", signature, "signature %u is not defined",
                       signature);
    if (input_count != sig->input_count || scalar_count != sig->dynamic_count ||
        output_count != sig->id_count)
        return dt_fail(err, DT_ERR_INVALID, "dt", signature,
                       "signature %u takes %u inputs, %u numbers and gives %u outputs with an id; "
                       "%u, %u, %u were given",
                       signature, sig->input_count, sig->dynamic_count, sig->id_count, input_count,
                       scalar_count, output_count);
    return DT_OK;
}

/* NOLINTNEXTLINE(readability-function-size): the public interface, nine parameters */
dt_status_t dt_submit(dt_session_t *session, uint32_t signature, const uint64_t *inputs,
                      uint32_t input_count, const dt_value_t *scalars, uint32_t scalar_count,
                      uint64_t *ret_outputs, uint32_t output_count, dt_error_t *err)
{
    dt_record_op_t op = {.signature = signature,
                         .input_count = input_count,
                         .output_count = output_count,
                         .scalar_count = scalar_count,
                         .inputs = inputs,
                         .outputs = ret_outputs,
                         .scalars = scalars};
    for (uint32_t i = 0; i < scalar_count; i++)
        if (!dt_value_is_scalar(&scalars[i]))
            return dt_fail(err, DT_ERR_INVALID, "dt", i, "number %u is none", i);
    DT_TRY(dt_client_lock(session, err));
    session->sends_itself = true;
    dt_status_t status =
        check_submit(session, signature, input_count, scalar_count, output_count, err);
    if (status == DT_OK && session->track.is_on) {
        dt_client_spread_t spread = {.signature = session->cache.signatures[signature],
                                     .inputs = inputs,
                                     .scalars = scalars,
                                     .scalar_count = scalar_count,
                                     .wanted = DT_CLIENT_NO_PLACE};
        status = dt_client_spread(session, &spread, ret_outputs, err);
        dt_client_unlock_sent(session);
        return status;
    }
    if (status == DT_OK)
        status = dt_client_room(
            session, dt_client_op_bound(input_count, output_count, scalar_count), INT64_MAX, err);
    if (status == DT_OK) {
        for (uint32_t i = 0; i < output_count; i++)
            ret_outputs[i] = session->next_tensor++;
        dt_client_put_op(session, &op);
    }
    dt_client_unlock_sent(session);
    return status;
}

/* NOLINTNEXTLINE(readability-function-size): the public interface, nine parameters */
dt_status_t dt_submit_on(dt_session_t *session, uint32_t signature, const dt_mesh_t *mesh,
                         const dt_placement_t *placements, const dt_value_t *scalars,
                         uint32_t scalar_count, uint64_t *ret_outputs, uint32_t output_count,
                         dt_error_t *err)
{
    dt_client_spread_t spread = {.scalars = scalars, .scalar_count = scalar_count};
    for (uint32_t i = 0; i < scalar_count; i++)
        if (!dt_value_is_scalar(&scalars[i]))
            return dt_fail(err, DT_ERR_INVALID, "dt", i, "number %u is none", i);
    DT_TRY(dt_client_lock(session, err));
    session->sends_itself = true;
    dt_status_t status = check_submit(session, signature, 0, scalar_count, output_count, err);
    if (status == DT_OK) {
        spread.signature = session->cache.signatures[signature];
        const dt_meta_t *meta =
            spread.signature->output_count == 1 && spread.signature->metas[0] != DT_CLIENT_NO_META
                ? session->metas.items[spread.signature->metas[0]]
                : NULL;
        status = dt_client_place_given(session, 0, mesh, placements, meta, &spread.wanted, err);
    }
    if (status == DT_OK && !mesh)
        spread.wanted = DT_CLIENT_NO_PLACE;
    if (status == DT_OK)
        status = dt_client_spread(session, &spread, ret_outputs, err);
    dt_client_unlock_sent(session);
    return status;
}

/* ---- by name ---- */

/* Make the handles of the results. Nothing has been done when it fails. */
static bool make_outputs(dt_session_t *session, const dt_client_signature_t *sig, uint64_t *ids,
                         dt_tensor_t **outputs)
{
    const dt_client_call_t *call = &session->cache.call;
    uint64_t next = session->next_tensor;
    for (uint32_t i = 0; i < sig->output_count; i++) {
        const dt_output_t *out = &sig->outputs[i];
        outputs[i] = NULL;
        if (out->alias == DT_ALIAS_NONE)
            continue;
        if (out->alias == DT_ALIAS_IN_PLACE) {
            outputs[i] = call->handles[out->input];
            outputs[i]->refs++;
            continue;
        }
        outputs[i] = dt_client_tensor_new(session, next, sig->metas[i], sig->vdev);
        if (!outputs[i]) {
            while (i-- > 0) {
                if (outputs[i] && sig->outputs[i].alias != DT_ALIAS_IN_PLACE)
                    outputs[i]->id = 0;
                if (outputs[i])
                    dt_client_tensor_unref(outputs[i]);
            }
            return false;
        }
        *ids++ = next++;
    }
    session->next_tensor = next;
    return true;
}

/* A tensor that is written in place may have other sizes afterwards. */
static void take_metas(const dt_client_signature_t *sig, dt_tensor_t **outputs)
{
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias == DT_ALIAS_IN_PLACE)
            outputs[i]->meta = sig->metas[i];
}

/* The call in the scratch is that of `sig`. Lock held, not released. */
static dt_status_t put_call(dt_session_t *session, dt_client_signature_t *sig, uint32_t mask,
                            dt_tensor_t **outputs, dt_error_t *err)
{
    const dt_client_call_t *call = &session->cache.call;
    uint64_t near[OUTPUTS_NEAR];
    uint64_t *ids = sig->id_count <= OUTPUTS_NEAR ? near : malloc(sig->id_count * sizeof *ids);
    dt_value_t scalars[DT_CLIENT_SCALARS_MAX];
    dt_record_op_t op = {.signature = sig->id,
                         .input_count = call->input_count,
                         .output_count = sig->id_count,
                         .inputs = call->inputs,
                         .outputs = ids,
                         .scalars = scalars};
    for (uint32_t i = 0; mask && i < call->number_count; i++)
        if (mask >> i & 1)
            scalars[op.scalar_count++] = call->numbers[i];
    bool is_made = ids && make_outputs(session, sig, ids, outputs);
    if (is_made) {
        take_metas(sig, outputs);
        sig->used = dt_client_sequence(session);
        dt_client_put_op(session, &op);
    }
    if (ids != near)
        free(ids);
    return is_made ? DT_OK : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for results");
}

/* What a call that may wait needs of the scratch, and handles for its results. */
struct tracked {
    dt_client_signature_t *sig;
    uint64_t *inputs;
    dt_tensor_t **handles;
    uint64_t *ids;
    dt_value_t scalars[DT_CLIENT_SCALARS_MAX];
    uint32_t scalar_count;
};

static bool tracked_begin(dt_session_t *session, struct tracked *t, uint32_t mask,
                          dt_tensor_t **outputs)
{
    const dt_client_call_t *call = &session->cache.call;
    const dt_client_signature_t *sig = t->sig;
    size_t in = call->input_count;
    t->inputs = malloc((in + 1) * sizeof *t->inputs);
    t->handles = malloc((in + 1) * sizeof(void *));
    t->ids = calloc((size_t)sig->id_count + 1, sizeof *t->ids);
    if (!t->inputs || !t->handles || !t->ids)
        return false;
    if (in) { /* before the first tensor there are no lists at all */
        memcpy(t->inputs, call->inputs, in * sizeof *t->inputs);
        memcpy(t->handles, call->handles, in * sizeof(void *));
    }
    for (uint32_t i = 0; mask && i < call->number_count; i++)
        if (mask >> i & 1)
            t->scalars[t->scalar_count++] = call->numbers[i];
    for (uint32_t i = 0; i < sig->output_count; i++)
        outputs[i] = NULL;
    for (uint32_t i = 0; i < sig->output_count; i++)
        if (sig->outputs[i].alias == DT_ALIAS_FRESH || sig->outputs[i].alias == DT_ALIAS_VIEW) {
            outputs[i] = dt_client_tensor_new(session, 0, sig->metas[i], sig->vdev);
            if (!outputs[i])
                return false;
        }
    return true;
}

static void tracked_give(dt_session_t *session, struct tracked *t, dt_tensor_t **outputs)
{
    const dt_client_signature_t *sig = t->sig;
    const uint64_t *id = t->ids;
    for (uint32_t i = 0; i < sig->output_count; i++) {
        if (sig->outputs[i].alias == DT_ALIAS_IN_PLACE) {
            outputs[i] = t->handles[sig->outputs[i].input];
            outputs[i]->refs++;
            outputs[i]->meta = sig->metas[i];
        } else if (outputs[i]) {
            const dt_client_node_t *node = dt_client_node_find(session, *id);
            outputs[i]->id = *id++;
            if (node)
                outputs[i]->vdev = dt_client_place_vdev(session, node->place);
        }
    }
}

/* put_call() in a session with several devices. */
static dt_status_t put_tracked(dt_session_t *session, dt_client_signature_t *sig, uint32_t mask,
                               dt_tensor_t **outputs, dt_error_t *err)
{
    struct tracked t = {.sig = sig};
    bool is_made = tracked_begin(session, &t, mask, outputs);
    dt_client_spread_t spread = {.signature = sig,
                                 .inputs = t.inputs,
                                 .scalars = t.scalars,
                                 .scalar_count = t.scalar_count,
                                 .wanted = DT_CLIENT_NO_PLACE};
    dt_status_t status = is_made ? dt_client_spread(session, &spread, t.ids, err)
                                 : dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for results");
    if (status == DT_OK)
        tracked_give(session, &t, outputs);
    for (uint32_t i = 0; status != DT_OK && t.ids && i < sig->output_count; i++)
        if (outputs[i])
            dt_client_tensor_unref(outputs[i]);
    free(t.inputs);
    free(t.handles);
    free(t.ids);
    return status;
}

static dt_status_t too_many(const dt_client_signature_t *sig, const char *name, uint32_t output_max,
                            dt_error_t *err)
{
    return dt_fail(err, DT_ERR_LIMIT, "dt", sig->output_count, "%s has %u results, room for %u",
                   name, sig->output_count, output_max);
}

/* Lock held. Each turn either puts the operator or brings it nearer to that. */
static dt_status_t call_locked(dt_session_t *session, const dt_client_question_t *question,
                               dt_tensor_t **ret_outputs, uint32_t *ret_count,
                               dt_failure_t *failure)
{
    dt_failure_t *room = NULL; /* 8 KiB that are seldom needed */
    dt_error_t err;
    dt_status_t status;
    err.code = DT_OK;
    for (;;) {
        dt_client_call_t *call = &session->cache.call;
        dt_client_family_t *family;
        dt_client_signature_t *sig = NULL;
        status = dt_client_call_handles(session, question->name, question->args,
                                        question->arg_count, &err);
        if (status != DT_OK)
            break;
        if (!call->unknown)
            sig = dt_client_lookup(session, &family);
        if (!sig) {
            if (!failure && !room && !(room = calloc(1, sizeof *room))) {
                status = dt_fail(&err, DT_ERR_NOMEM, "dt", 0, "no memory for a signature");
                break;
            }
            dt_failure_t *to = failure ? failure : room;
            to->error.code = DT_OK;
            status = dt_client_resolve(session, question, &sig, to);
            if (status != DT_OK)
                break;
            continue;
        }
        if (sig->output_count > question->output_max) {
            status = too_many(sig, question->name, question->output_max, &err);
            break;
        }
        if (session->track.is_on) {
            status = put_tracked(session, sig, family->mask, ret_outputs, &err);
            if (status == DT_OK)
                *ret_count = sig->output_count;
            break;
        }
        size_t bound = dt_client_op_bound(call->input_count, sig->id_count, call->number_count);
        bool has_waited = !dt_client_has_room(session, bound);
        status = dt_client_room(session, bound, INT64_MAX, &err);
        if (status != DT_OK)
            break;
        if (has_waited) { /* perhaps: another thread may have used the scratch */
            status = dt_client_call_handles(session, question->name, question->args,
                                            question->arg_count, &err);
            if (status != DT_OK || call->unknown || dt_client_lookup(session, &family) != sig)
                continue;
        }
        status = put_call(session, sig, family->mask, ret_outputs, &err);
        if (status == DT_OK)
            *ret_count = sig->output_count;
        break;
    }
    free(room);
    if (status != DT_OK && err.code != DT_OK)
        return dt_client_failure_from(failure, &err);
    return status;
}

/* NOLINTNEXTLINE(readability-function-size): the public interface, eight parameters */
dt_status_t dt_call(dt_session_t *session, const char *name, const dt_value_t *args,
                    uint32_t arg_count, dt_tensor_t **ret_outputs, uint32_t output_max,
                    uint32_t *ret_count, dt_failure_t *failure)
{
    dt_client_question_t question = {
        .name = name, .args = args, .arg_count = arg_count, .output_max = output_max};
    uint32_t count = 0;
    dt_error_t err;
    if (dt_client_lock(session, &err) != DT_OK)
        return dt_client_failure_from(failure, &err);
    session->sends_itself = true;
    dt_status_t status = call_locked(session, &question, ret_outputs, &count, failure);
    dt_client_unlock_sent(session);
    if (status == DT_OK && ret_count)
        *ret_count = count;
    return status;
}
