/* What ran when: a bounded buffer of operators' times, sent in batches while a trace runs. What has
 * no room in the ring is dropped and counted: a trace never holds up the session. */
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "dtorch/v1/session.pb-c.h"
#include "engine_exec_internal.h"

#define EVENTS_MAX 512u
#define NAMES_MAX  64u
#define NAME_BYTES 256u
#define TEXT_BYTES 512u
#define SEND_NS    (100 * DT_CLOCK_MS_NS) /* a batch waits no longer */

typedef struct trace_event {
    uint64_t sequence;
    uint32_t signature;
    uint32_t vdev;
    bool has_failed;
    int64_t begin_ns, spent_ns;
    char *source; /* the program's line, a copy; NULL: as the one before */
} trace_event_t;

typedef struct trace_name {
    uint32_t signature;
    uint32_t vdev;
    char name[NAME_BYTES];
    char text[TEXT_BYTES];
} trace_name_t;

struct dt_exec_trace {
    uint64_t number;
    int64_t begun_ns, until_ns, sent_ns;
    uint64_t dropped;
    const char *source; /* of the last event; compared only */
    uint32_t event_count, name_count;
    trace_event_t events[EVENTS_MAX];
    trace_name_t names[NAMES_MAX];
};

static void forget_events(struct dt_exec_trace *trace)
{
    for (uint32_t i = 0; i < trace->event_count; i++)
        free(trace->events[i].source);
    trace->event_count = trace->name_count = 0;
}

void dt_exec_trace_end(dt_exec_session_t *session)
{
    if (session->trace)
        forget_events(session->trace);
    free(session->trace);
    session->trace = NULL;
}

void dt_exec_trace_begin(dt_exec_session_t *session, uint32_t duration_ms)
{
    dt_exec_t *exec = session->exec;
    struct dt_exec_trace *trace = calloc(1, sizeof *trace);
    dt_exec_trace_end(session);
    if (!trace)
        return;
    trace->number = ++exec->traces;
    trace->begun_ns = trace->sent_ns = dt_exec_now(exec);
    trace->until_ns = trace->begun_ns + duration_ms * DT_CLOCK_MS_NS;
    session->trace = trace;
}

/* ---- sending ---- */

typedef struct batch {
    Dtorch__V1__TraceEvent events[EVENTS_MAX];
    Dtorch__V1__TraceEvent *event_at[EVENTS_MAX];
    Dtorch__V1__TraceName names[NAMES_MAX];
    Dtorch__V1__TraceName *name_at[NAMES_MAX];
} batch_t;

static void fill(struct dt_exec_trace *trace, batch_t *batch, Dtorch__V1__TraceBatch *ret_message)
{
    for (uint32_t i = 0; i < trace->name_count; i++) {
        Dtorch__V1__TraceName *name = batch->name_at[i] = &batch->names[i];
        dtorch__v1__trace_name__init(name);
        name->signature = trace->names[i].signature;
        name->vdev = trace->names[i].vdev;
        name->operator_name = trace->names[i].name;
        name->text = trace->names[i].text;
    }
    for (uint32_t i = 0; i < trace->event_count; i++) {
        const trace_event_t *from = &trace->events[i];
        Dtorch__V1__TraceEvent *event = batch->event_at[i] = &batch->events[i];
        dtorch__v1__trace_event__init(event);
        event->kind = DTORCH__V1__TRACE_EVENT__KIND__OPERATOR;
        event->sequence = from->sequence;
        event->signature = from->signature;
        event->vdev = from->vdev;
        event->begin_ns = from->begin_ns;
        event->duration_ns = from->spent_ns;
        event->failed = from->has_failed;
        if (from->source)
            event->text = from->source;
    }
    ret_message->names = batch->name_at;
    ret_message->n_names = trace->name_count;
    ret_message->events = batch->event_at;
    ret_message->n_events = trace->event_count;
    ret_message->dropped = trace->dropped;
    ret_message->begun_ns = trace->begun_ns;
    ret_message->sent_ns = trace->sent_ns;
}

static bool send_batch(dt_exec_session_t *session, Dtorch__V1__TraceBatch *message)
{
    uint8_t *bytes;
    Dtorch__V1__WorkerSessionUp up = DTORCH__V1__WORKER_SESSION_UP__INIT;
    up.kind_case = DTORCH__V1__WORKER_SESSION_UP__KIND_TRACE;
    up.trace = message;
    size_t size = dtorch__v1__worker_session_up__get_packed_size(&up);
    session->has_emitted = true; /* look for room before the next record */
    /* Results go before: a trace leaves as much as a record may want. */
    if (dt_ring_room(&session->up) < size + 2 * (size_t)DT_EXEC_ROOM_BYTES ||
        dt_ring_reserve(&session->up, size, &bytes, NULL) != DT_OK)
        return false;
    (void)dtorch__v1__worker_session_up__pack(&up, bytes);
    dt_ring_commit(&session->up, size, DT_CHANNEL_UP);
    return true;
}

static void flush(dt_exec_session_t *session)
{
    struct dt_exec_trace *trace = session->trace;
    Dtorch__V1__TraceBatch message = DTORCH__V1__TRACE_BATCH__INIT;
    batch_t *batch = malloc(sizeof *batch);
    trace->sent_ns = session->exec->now_ns;
    if (batch)
        fill(trace, batch, &message);
    if (!batch || !send_batch(session, &message)) {
        trace->dropped += trace->event_count;
        trace->number = ++session->exec->traces; /* names that were not told are told again */
        trace->source = NULL;
    }
    forget_events(trace);
    free(batch);
}

void dt_exec_trace_turn(dt_exec_session_t *session)
{
    struct dt_exec_trace *trace = session->trace;
    int64_t now_ns = session->exec->now_ns;
    bool is_over = now_ns >= trace->until_ns;
    if (is_over || (trace->event_count > 0 && now_ns - trace->sent_ns >= SEND_NS))
        flush(session);
    if (is_over)
        dt_exec_trace_end(session);
}

int64_t dt_exec_trace_due_ns(const dt_exec_session_t *session)
{
    const struct dt_exec_trace *trace = session->trace;
    int64_t due_ns = trace->event_count > 0 ? trace->sent_ns + SEND_NS : INT64_MAX;
    return due_ns < trace->until_ns ? due_ns : trace->until_ns;
}

/* ---- recording ---- */

static void add_name(struct dt_exec_trace *trace, const dt_exec_plan_t *plan, uint32_t signature)
{
    trace_name_t *name = &trace->names[trace->name_count++];
    char line[TEXT_BYTES];
    dt_buf_t text;
    name->signature = signature;
    name->vdev = plan->vdev;
    (void)dt_str_copy(name->name, sizeof name->name, plan->signature->name);
    name->text[0] = '\0';
    dt_buf_init(&text, DT_SIGNATURE_BYTES_MAX);
    if (dt_signature_print(plan->signature, &text) == DT_OK) {
        size_t size = text.len < sizeof line ? text.len : sizeof line - 1;
        memcpy(line, text.data, size);
        line[size] = '\0';
        dt_exec_text_clean(name->text, sizeof name->text, line);
    }
    dt_buf_fini(&text);
}

/* A copy if it is another one than before. */
static char *new_source(dt_exec_session_t *session)
{
    char *copy;
    if (session->origin->source == session->trace->source)
        return NULL;
    session->trace->source = session->origin->source;
    copy = malloc(DT_CHANNEL_SOURCE_BYTES);
    if (copy)
        dt_exec_text_clean(copy, DT_CHANNEL_SOURCE_BYTES,
                           session->origin->source ? session->origin->source : "");
    return copy;
}

void dt_exec_trace_op(dt_exec_session_t *session, dt_exec_plan_t *plan, uint64_t sequence,
                      uint32_t signature, int64_t spent_ns, bool has_failed)
{
    struct dt_exec_trace *trace = session->trace;
    int64_t now_ns = session->exec->now_ns;
    if (now_ns >= trace->until_ns) {
        dt_exec_trace_turn(session);
        return;
    }
    if (trace->event_count == EVENTS_MAX || trace->name_count == NAMES_MAX)
        flush(session);
    if (plan->traced != trace->number) {
        plan->traced = trace->number;
        add_name(trace, plan, signature);
    }
    trace->events[trace->event_count++] = (trace_event_t){
        .sequence = sequence,
        .signature = signature,
        .vdev = plan->vdev,
        .has_failed = has_failed,
        .begin_ns = now_ns - spent_ns,
        .spent_ns = spent_ns,
        .source = new_source(session),
    };
}
