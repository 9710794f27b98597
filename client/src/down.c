/* What the controller says. I/O thread. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "client.h"
#include "wire/wire.h"

static void copy_bindings(dt_session_t *session, Dtorch__V1__VdevBinding **from, size_t count)
{
    dt_binding_t *bindings = calloc(count ? count : 1, sizeof *bindings);
    if (!bindings)
        return; /* the old ones stay: they are for people */
    for (size_t i = 0; i < count; i++) {
        bindings[i].vdev = from[i]->vdev;
        bindings[i].device = from[i]->device;
        (void)dt_str_copy(bindings[i].node, sizeof bindings[i].node, from[i]->node);
        (void)dt_str_copy(bindings[i].kind, sizeof bindings[i].kind, from[i]->kind);
        (void)dt_str_copy(bindings[i].backend, sizeof bindings[i].backend, from[i]->backend);
        (void)dt_str_copy(bindings[i].boot_id, sizeof bindings[i].boot_id, from[i]->boot_id);
    }
    free(session->bindings);
    session->bindings = bindings;
    session->binding_count = (uint32_t)count;
}

static void on_welcome(dt_session_t *session, const Dtorch__V1__SessionWelcome *welcome)
{
    if (welcome->resume_token.len != sizeof session->io.token || session->io.is_welcome)
        return;
    dt_client_io_welcome(session, welcome);
    pthread_mutex_lock(&session->lock);
    if (session->state == DT_CLIENT_CONNECTING) {
        /* Frames must fit into the window several times. */
        size_t part = (size_t)(welcome->credit_bytes / 4);
        session->flush_bytes = part < DT_FRAME_FLUSH_BYTES ? part : DT_FRAME_FLUSH_BYTES;
        session->credit_first = welcome->credit_bytes;
    } else if (session->state == DT_CLIENT_AWAY) {
        session->reconnects++;
    }
    session->number = welcome->session;
    session->epoch = (uint32_t)welcome->epoch;
    session->credit_bytes = welcome->credit_bytes;
    copy_bindings(session, welcome->bindings, welcome->n_bindings);
    dt_client_resume(session, welcome->next_sequence);
    for (dt_list_t *at = session->queries.next; at != &session->queries; at = at->next)
        DT_CONTAINER_OF(at, dt_client_query_t, link)->number = 0; /* ask again */
    if (session->state != DT_CLIENT_ENDED)
        session->state = DT_CLIENT_LIVE;
    dt_client_changed(session);
    pthread_mutex_unlock(&session->lock);
    dt_client_io_pump(session);
}

static void on_ack(dt_session_t *session, const Dtorch__V1__Ack *ack)
{
    pthread_mutex_lock(&session->lock);
    dt_client_accepted(session, ack->sequence);
    if (ack->credit_bytes > session->credit_bytes)
        session->credit_bytes = ack->credit_bytes;
    bool has_work = session->unsent != NULL;
    pthread_mutex_unlock(&session->lock);
    if (has_work)
        dt_client_io_pump(session);
}

/* An answer counts for the question's first number and for those it was asked again by. */
static void on_answer(dt_session_t *session, const Dtorch__V1__SigAnswer *answer)
{
    pthread_mutex_lock(&session->lock);
    for (dt_list_t *at = session->queries.next; at != &session->queries; at = at->next) {
        dt_client_query_t *query = DT_CONTAINER_OF(at, dt_client_query_t, link);
        if (query->is_done || answer->query == 0 ||
            (answer->query != query->number && answer->query != query->least))
            continue;
        query->is_done = true;
        if (query->batch) {
            dt_client_ahead_answered(session, query->batch, answer);
            break;
        }
        query->needs_execution = answer->needs_execution;
        dt_error_t err = {.code = DT_OK};
        if (answer->signature.len &&
            dt_buf_append(&query->answer, answer->signature.data, answer->signature.len) != DT_OK)
            (void)dt_client_failure_from(
                query->failure,
                (dt_fail(&err, DT_ERR_NOMEM, "dt", 0, "no memory for an answer"), &err));
        if (answer->error && !answer->needs_execution)
            dt_client_failure_fill(query->failure, answer->error);
        break;
    }
    dt_client_changed(session);
    pthread_mutex_unlock(&session->lock);
}

static void on_fault(dt_session_t *session, const Dtorch__V1__Fault *fault)
{
    dt_client_record_fault(session, fault);
    pthread_mutex_lock(&session->lock);
    if (fault->n_bindings) {
        copy_bindings(session, fault->bindings, fault->n_bindings);
        dt_client_ahead_forget(session); /* other devices may answer otherwise */
    }
    if (fault->error && (fault->tensor_count || fault->operators_lost))
        dt_client_failure_note(session, fault->error);
    pthread_mutex_unlock(&session->lock);
    dt_client_bulk_doubt(session);
}

/* Before the first Welcome a refusal that may pass is tried again; later the session is over when
 * it is refused for good. */
static void on_refusal(dt_session_t *session, const Dtorch__V1__Refusal *refusal)
{
    dt_status_t code = DT_ERR_PEER;
    pthread_mutex_lock(&session->lock);
    session->io.has_refusal = true;
    if (session->io.has_token && (refusal->code == DTORCH__V1__REFUSAL__CODE__EPOCH ||
                                  refusal->code == DTORCH__V1__REFUSAL__CODE__DENIED))
        code = DT_ERR_LOST;
    else if (refusal->code == DTORCH__V1__REFUSAL__CODE__DENIED)
        code = DT_ERR_DENIED;
    else if (refusal->code == DTORCH__V1__REFUSAL__CODE__LIMIT ||
             refusal->code == DTORCH__V1__REFUSAL__CODE__STOPPING)
        code = refusal->retry ? DT_ERR_AGAIN : DT_ERR_LIMIT;
    if (!refusal->retry)
        dt_client_end(session, code, refusal->text);
    else if (session->state == DT_CLIENT_CONNECTING)
        (void)dt_fail(&session->end, code, "dt", refusal->code, "%s", refusal->text);
    pthread_mutex_unlock(&session->lock);
}

static void on_poison(dt_session_t *session, const Dtorch__V1__Poison *poison)
{
    if (!poison->error)
        return;
    pthread_mutex_lock(&session->lock);
    dt_client_failure_note(session, poison->error);
    pthread_mutex_unlock(&session->lock);
}

static void on_result(dt_session_t *session, const Dtorch__V1__Result *result)
{
    pthread_mutex_lock(&session->lock);
    dt_client_result(session, result);
    bool has_download = !dt_list_is_empty(&session->downloads) || session->has_refused;
    if (!session->is_ticking) { /* it confirms what has come */
        session->is_ticking = true;
        dt_client_io_kick(session);
    }
    pthread_mutex_unlock(&session->lock);
    if (has_download)
        dt_client_bulk_pump(session);
}

void dt_client_down(dt_session_t *session, const uint8_t *data, size_t size)
{
    Dtorch__V1__SessionDown *down;
    dt_error_t err;
    dt_arena_reset(&session->io.arena);
    if (DT_WIRE_UNPACK(dtorch__v1__session_down, &session->io.arena, data, size, &down, &err) !=
        DT_OK) {
        dt_rpc_stream_cancel(session->io.stream, DT_ERR_PEER, err.text);
        return;
    }
    switch (down->kind_case) {
    case DTORCH__V1__SESSION_DOWN__KIND_WELCOME:
        on_welcome(session, down->welcome);
        break;
    case DTORCH__V1__SESSION_DOWN__KIND_REFUSAL:
        on_refusal(session, down->refusal);
        break;
    case DTORCH__V1__SESSION_DOWN__KIND_ACK:
        on_ack(session, down->ack);
        break;
    case DTORCH__V1__SESSION_DOWN__KIND_RESULT:
        on_result(session, down->result);
        break;
    case DTORCH__V1__SESSION_DOWN__KIND_ANSWER:
        on_answer(session, down->answer);
        break;
    case DTORCH__V1__SESSION_DOWN__KIND_POISON:
        on_poison(session, down->poison);
        break;
    case DTORCH__V1__SESSION_DOWN__KIND_FAULT:
        on_fault(session, down->fault);
        break;
    case DTORCH__V1__SESSION_DOWN__KIND_DOOR:
        dt_client_door(session, down->door);
        break;
    default:
        break; /* a beat: that it came is enough; or of a newer minor version */
    }
}
