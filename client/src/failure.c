/* Failures: what an OperatorError becomes for a program, and those that nobody has fetched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "base/version.h"
#include "client.h"

const char *dt_status_name(dt_status_t status)
{
    switch (status) {
#define X(name, value, grpc, text)                                                                 \
    case name:                                                                                     \
        return #name;
        DT_ERR_MAP(X)
#undef X
    }
    return "unknown";
}

const char *dt_client_version(void)
{
    return dt_version();
}

/* Statuses of peers are numbers that may be anything. */
static dt_status_t status_of(int32_t code)
{
    return code < 0 && code >= DT_ERR_INTERNAL ? (dt_status_t)code : DT_ERR_INTERNAL;
}

#define COPY(to, from) (void)dt_str_copy((to), sizeof(to), (from))

void dt_client_failure_fill(dt_failure_t *failure, const Dtorch__V1__OperatorError *error)
{
    memset(failure, 0, sizeof *failure);
    failure->error.code = status_of(error->code);
    failure->error.source = "operator";
    failure->error.source_code = error->source_code;
    COPY(failure->error.text, error->text);
    COPY(failure->kind, error->kind);
    COPY(failure->text, error->text);
    COPY(failure->operator_name, error->operator_name);
    COPY(failure->inputs, error->inputs);
    COPY(failure->place, error->source);
    COPY(failure->node, error->node);
    failure->sequence = error->sequence;
    failure->device = error->device;
    failure->vdev = error->vdev;
    failure->skipped = error->skipped;
    for (uint32_t i = 0; i < error->n_range && i < DT_FAILURE_RANGES_MAX; i++) {
        COPY(failure->range[i], error->range[i]);
        failure->range_count = i + 1;
    }
}

dt_status_t dt_client_failure_give(const dt_failure_t *failure, dt_failure_t *ret_failure)
{
    if (ret_failure)
        *ret_failure = *failure;
    return failure->error.code;
}

dt_status_t dt_client_failure_from(dt_failure_t *failure, const dt_error_t *err)
{
    if (failure) {
        memset(failure, 0, sizeof *failure);
        failure->error = *err;
        COPY(failure->text, err->text);
    }
    return err->code;
}

/* ---- unfetched ones ---- */

static void drop(dt_session_t *session, uint32_t at)
{
    free(session->failures[at]);
    session->failure_count--;
    memmove(session->failures + at, session->failures + at + 1,
            (session->failure_count - at) * sizeof(void *));
}

void dt_client_failure_note(dt_session_t *session, const Dtorch__V1__OperatorError *error)
{
    uint32_t known = session->fetched_count < 64 ? session->fetched_count : 64;
    for (uint32_t i = 0; i < session->failure_count; i++)
        if (session->failures[i]->sequence == error->sequence)
            return;
    for (uint32_t i = 0; i < known; i++)
        if (session->fetched[i] == error->sequence)
            return;
    if (session->failure_count == DT_CLIENT_FAILURES_MAX)
        return; /* the first causes matter most */
    dt_failure_t *failure = malloc(sizeof *failure);
    if (!failure)
        return;
    dt_client_failure_fill(failure, error);
    session->failures[session->failure_count++] = failure;
}

void dt_client_failure_fetched(dt_session_t *session, uint64_t sequence)
{
    session->fetched[session->fetched_count++ % 64] = sequence;
    for (uint32_t i = 0; i < session->failure_count; i++)
        if (session->failures[i]->sequence == sequence) {
            drop(session, i);
            return;
        }
}
