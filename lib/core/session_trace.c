/* Timelines: what a job's nodes and its stream say of their times, while somebody wants to know.
 * Batches are kept packed, bounded in bytes; a trace outlives its session, until another one needs
 * the place. Without a trace the cost is a test of a pointer. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/session_internal.h"
#include "dtorch/v1/admin.pb-c.h"
#include "wire/wire.h"

#define TRACES_MAX  4u
#define BYTES_MAX   (16u << 20) /* of the batches of one trace */
#define BATCHES_MAX 16384u
#define OWN_MAX     256u                 /* events of the controller in one batch */
#define REPLY_MAX   64u                  /* batches in one answer */
#define REPLY_BYTES (512u << 10)         /* of them */
#define LATE_NS     DT_SESSION_SECOND_NS /* batches come so long after the end */

typedef struct own_event {
    Dtorch__V1__TraceEvent__Kind kind;
    uint64_t sequence, count, size_bytes;
    int64_t begin_ns, duration_ns, client_ns;
    char text[128];
} own_event_t;

typedef struct kept_batch {
    uint8_t *packed; /* a TimelineBatch */
    uint32_t size;
} kept_batch_t;

struct dt_session_trace {
    dt_list_t list; /* in sessions.traces, by age */
    uint64_t job;
    dt_session_t *session; /* NULL: it has ended */
    char program[128];
    int64_t begun_ns, until_ns;
    kept_batch_t *batches; /* (batch_count), number - 1 */
    uint32_t batch_count, batch_cap;
    size_t bytes;
    uint64_t dropped; /* batches */
    uint32_t own_count;
    own_event_t own[OWN_MAX];
};

/* ---- keeping ---- */

static void trace_free(dt_sessions_t *sessions, struct dt_session_trace *trace)
{
    if (trace->session)
        trace->session->trace = NULL;
    for (uint32_t i = 0; i < trace->batch_count; i++)
        free(trace->batches[i].packed);
    dt_list_remove(&trace->list);
    sessions->trace_count--;
    free(trace->batches);
    free(trace);
}

static bool batch_room(struct dt_session_trace *trace)
{
    uint32_t cap = trace->batch_cap ? 2 * trace->batch_cap : 64;
    if (trace->batch_count < trace->batch_cap)
        return true;
    kept_batch_t *grown = cap <= BATCHES_MAX ? realloc(trace->batches, cap * sizeof *grown) : NULL;
    if (!grown)
        return false;
    trace->batches = grown;
    trace->batch_cap = cap;
    return true;
}

static void keep(struct dt_session_trace *trace, const char *node, int64_t now_ns,
                 Dtorch__V1__TraceBatch *batch)
{
    Dtorch__V1__TimelineBatch message = DTORCH__V1__TIMELINE_BATCH__INIT;
    uint8_t *packed;
    size_t size;
    message.number = trace->batch_count + 1;
    message.node = DT_SESSION_TEXT(node);
    message.received_ns = now_ns;
    message.trace = batch;
    if (!batch_room(trace) || trace->bytes >= BYTES_MAX ||
        dt_wire_pack_new(&message.base, &packed, &size) != DT_OK) {
        trace->dropped++;
        return;
    }
    trace->batches[trace->batch_count++] = (kept_batch_t){packed, (uint32_t)size};
    trace->bytes += size;
}

void dt_session_trace_take(dt_sessions_t *sessions, dt_session_link_t *link,
                           Dtorch__V1__TraceBatch *batch)
{
    struct dt_session_trace *trace = link->session->trace;
    if (trace)
        keep(trace, link->place->name, sessions->now_ns, batch);
}

/* ---- the controller's own events ---- */

static void own_flush(struct dt_session_trace *trace, int64_t now_ns)
{
    Dtorch__V1__TraceBatch batch = DTORCH__V1__TRACE_BATCH__INIT;
    Dtorch__V1__TraceEvent *events = calloc(trace->own_count, sizeof *events);
    Dtorch__V1__TraceEvent *at[OWN_MAX];
    for (uint32_t i = 0; events && i < trace->own_count; i++) {
        const own_event_t *from = &trace->own[i];
        dtorch__v1__trace_event__init(&events[i]);
        events[i].kind = from->kind;
        events[i].sequence = from->sequence;
        events[i].count = from->count;
        events[i].size_bytes = from->size_bytes;
        events[i].begin_ns = from->begin_ns;
        events[i].duration_ns = from->duration_ns;
        events[i].client_ns = from->client_ns;
        events[i].text = DT_SESSION_TEXT(from->text);
        at[i] = &events[i];
    }
    batch.events = at;
    batch.n_events = events ? trace->own_count : 0;
    batch.begun_ns = trace->begun_ns;
    batch.sent_ns = now_ns;
    if (batch.n_events > 0)
        keep(trace, "", now_ns, &batch);
    trace->own_count = 0;
    free(events);
}

static own_event_t *own_add(dt_sessions_t *sessions, dt_session_t *session,
                            Dtorch__V1__TraceEvent__Kind kind)
{
    static own_event_t over; /* of no trace any more: written, never read */
    struct dt_session_trace *trace = session->trace;
    if (sessions->now_ns >= trace->until_ns)
        return &over;
    if (trace->own_count == OWN_MAX)
        own_flush(trace, sessions->now_ns);
    own_event_t *event = &trace->own[trace->own_count++];
    memset(event, 0, sizeof *event);
    event->kind = kind;
    event->begin_ns = sessions->now_ns;
    return event;
}

void dt_session_trace_frame(dt_sessions_t *sessions, dt_session_t *session, uint64_t first,
                            size_t size)
{
    own_event_t *event = own_add(sessions, session, DTORCH__V1__TRACE_EVENT__KIND__FRAME);
    event->sequence = first;
    event->count = session->next_sequence - first;
    event->size_bytes = size;
}

void dt_session_trace_ack(dt_sessions_t *sessions, dt_session_t *session)
{
    own_event_t *event = own_add(sessions, session, DTORCH__V1__TRACE_EVENT__KIND__ACK);
    event->sequence = session->ack_sequence;
    event->count = session->ack_credit;
}

void dt_session_trace_mark(dt_sessions_t *sessions, dt_session_t *session, unsigned what,
                           uint64_t sequence, uint64_t client_ns, const char *text)
{
    bool is_step = what == DT_MARK_STEP;
    own_event_t *event =
        own_add(sessions, session,
                is_step                       ? DTORCH__V1__TRACE_EVENT__KIND__STEP
                : what == DT_MARK_RANGE_BEGIN ? DTORCH__V1__TRACE_EVENT__KIND__RANGE_BEGIN
                                              : DTORCH__V1__TRACE_EVENT__KIND__RANGE_END);
    event->sequence = sequence;
    event->count = is_step ? session->step : 0;
    event->client_ns = client_ns <= INT64_MAX ? (int64_t)client_ns : 0;
    if (text)
        dt_wire_text_copy(event->text, sizeof event->text, text);
}

void dt_session_trace_ended(dt_session_t *session)
{
    if (session->trace)
        session->trace->session = NULL;
    session->trace = NULL;
}

void dt_sessions_traces_free(dt_sessions_t *sessions)
{
    while (!dt_list_is_empty(&sessions->traces))
        trace_free(sessions, DT_CONTAINER_OF(sessions->traces.next, struct dt_session_trace, list));
}

/* ---- beginning ---- */

static struct dt_session_trace *trace_find(const dt_sessions_t *sessions, uint64_t job)
{
    for (dt_list_t *at = sessions->traces.next; at != &sessions->traces; at = at->next) {
        struct dt_session_trace *trace = DT_CONTAINER_OF(at, struct dt_session_trace, list);
        if (trace->job == job)
            return trace;
    }
    return NULL;
}

static bool is_running(const dt_sessions_t *sessions, const struct dt_session_trace *trace)
{
    return trace->session && sessions->now_ns < trace->until_ns + LATE_NS;
}

/* Have a place: the oldest that does not run goes. */
static bool make_place(dt_sessions_t *sessions)
{
    struct dt_session_trace *oldest = NULL;
    if (sessions->trace_count < TRACES_MAX)
        return true;
    for (dt_list_t *at = sessions->traces.next; at != &sessions->traces && !oldest; at = at->next) {
        struct dt_session_trace *trace = DT_CONTAINER_OF(at, struct dt_session_trace, list);
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): one that was freed is not in the list */
        oldest = is_running(sessions, trace) ? NULL : trace;
    }
    if (!oldest)
        return false;
    trace_free(sessions, oldest);
    return true;
}

static void ask_nodes(dt_sessions_t *sessions, const dt_session_t *session, uint32_t duration_ms)
{
    Dtorch__V1__WorkerSessionDown down = DTORCH__V1__WORKER_SESSION_DOWN__INIT;
    Dtorch__V1__WantTrace wanted = DTORCH__V1__WANT_TRACE__INIT;
    wanted.duration_ms = duration_ms;
    down.kind_case = DTORCH__V1__WORKER_SESSION_DOWN__KIND_TRACE;
    down.trace = &wanted;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        if (link->stream)
            dt_sessions_send(sessions, link->stream, &down.base);
    }
}

static dt_status_t begin(dt_sessions_t *sessions, uint64_t job, uint32_t duration_ms,
                         dt_error_t *err)
{
    dt_session_t *session = dt_sessions_find(sessions, job);
    struct dt_session_trace *trace = trace_find(sessions, job);
    if (!session)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "there is no job %" PRIu64, job);
    if (trace)
        trace_free(sessions, trace);
    if (!make_place(sessions))
        return dt_fail(err, DT_ERR_AGAIN, "dt", TRACES_MAX, "%u jobs are traced already",
                       TRACES_MAX);
    trace = calloc(1, sizeof *trace);
    if (!trace)
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a timeline");
    trace->job = job;
    trace->session = session;
    trace->begun_ns = sessions->now_ns;
    trace->until_ns = sessions->now_ns + duration_ms * (DT_SESSION_SECOND_NS / 1000);
    dt_wire_text_copy(trace->program, sizeof trace->program, session->program);
    dt_list_push(&sessions->traces, &trace->list);
    sessions->trace_count++;
    session->trace = trace;
    for (uint32_t i = 0; i < session->range_depth && i < DT_SESSION_RANGES_MAX; i++)
        dt_session_trace_mark(sessions, session, DT_MARK_RANGE_BEGIN, 0, 0, session->ranges[i]);
    ask_nodes(sessions, session, duration_ms);
    return DT_OK;
}

/* ---- reading ---- */

static bool fill_batches(const struct dt_session_trace *trace, uint32_t after, dt_arena_t *arena,
                         Dtorch__V1__Timeline *timeline)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, arena};
    size_t bytes = 0;
    timeline->batches = dt_arena_calloc(arena, REPLY_MAX, sizeof(void *));
    if (!timeline->batches)
        return false;
    for (uint32_t i = after; i < trace->batch_count; i++) {
        if (timeline->n_batches == REPLY_MAX || (bytes > 0 && bytes >= REPLY_BYTES)) {
            timeline->more = true;
            break;
        }
        Dtorch__V1__TimelineBatch *batch = dtorch__v1__timeline_batch__unpack(
            &allocator, trace->batches[i].size, trace->batches[i].packed);
        if (!batch)
            return false;
        timeline->batches[timeline->n_batches++] = batch;
        bytes += trace->batches[i].size;
    }
    return true;
}

static Dtorch__V1__Job *job_of(dt_sessions_t *sessions, const struct dt_session_trace *trace,
                               dt_arena_t *arena)
{
    Dtorch__V1__Job *job;
    if (trace->session)
        return dt_session_job(sessions, trace->session, arena, sessions->now_ns);
    job = dt_arena_alloc(arena, sizeof *job);
    if (!job)
        return NULL;
    dtorch__v1__job__init(job);
    job->id = trace->job;
    job->program = DT_SESSION_TEXT(trace->program);
    return job;
}

dt_status_t dt_sessions_timeline(dt_sessions_t *sessions,
                                 const Dtorch__V1__GetTimelineRequest *request, dt_arena_t *arena,
                                 int64_t now_ns, Dtorch__V1__Timeline **ret_timeline,
                                 dt_error_t *err)
{
    Dtorch__V1__Timeline *timeline = dt_arena_alloc(arena, sizeof *timeline);
    struct dt_session_trace *trace;
    dt_sessions_set_now(sessions, now_ns);
    if (request->begin_ms > 0)
        DT_TRY(begin(sessions, request->job, request->begin_ms, err));
    trace = trace_find(sessions, request->job);
    if (!trace)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "job %" PRIu64 " is not traced",
                       request->job);
    own_flush(trace, sessions->now_ns);
    if (timeline) {
        dtorch__v1__timeline__init(timeline);
        timeline->running = is_running(sessions, trace);
        timeline->dropped = trace->dropped;
        timeline->begun_ns = trace->begun_ns;
        timeline->job = job_of(sessions, trace, arena);
    }
    if (!timeline || !timeline->job || !fill_batches(trace, request->after, arena, timeline))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the reply is too large");
    *ret_timeline = timeline;
    return DT_OK;
}
