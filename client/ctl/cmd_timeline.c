/* dtorchctl job timeline: what a job's program, the controller and its devices did when, as a
 * Chrome trace. Lanes are "processes": 1 the program, 2 the controller, 10 and on the nodes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/strings.h"
#include "json.h"
#include "trace.h"
#include "wire/record.h"

#define NODES_MAX    1024u
#define STREAMS_MAX  4096u
#define CLIENT_PID   1u
#define CONTROL_PID  2u
#define NODE_PID     10u
#define MOVES_TID    10000u /* + vdev: what it moved; its operators are under its number alone */
#define VDEVS_MAX    4096u
#define SAME_NS      INT64_C(1000000000)
#define FRAMES_TID   1u
#define ACKS_TID     2u
#define RANGES_DEPTH 64u

/* A node's clock against the controller's: begin + offset is the controller's. */
typedef struct lane {
    const char *node;
    int64_t low_ns, high_ns; /* where the offset must lie */
    int64_t offset_ns;
} lane_t;

/* Batches of one engine come in order; its program's line goes on from one to the next. */
typedef struct engine_stream {
    const lane_t *lane;
    int64_t begun_ns;
    const char *source;
} engine_stream_t;

typedef struct timeline {
    dt_ctl_t *ctl;
    FILE *file;
    dt_ctl_trace_t trace;
    uint64_t dropped_events;
    lane_t lanes[NODES_MAX];
    uint32_t lane_count;
    engine_stream_t streams[STREAMS_MAX];
    uint32_t stream_count;
    const Dtorch__V1__TraceName **names; /* (name_cap) by signature */
    uint32_t name_cap;
    uint32_t range_depth;
    int64_t client_offset_ns; /* the program's clock + this is the controller's */
    int64_t last_ns;          /* of the program's lane */
    bool has_client_clock;
    bool is_moving[VDEVS_MAX]; /* its lane of moves has a name */
    bool has_event;
} timeline_t;

/* ---- clocks ---- */

static lane_t *lane_of(timeline_t *t, const char *node)
{
    for (uint32_t i = 0; i < t->lane_count; i++)
        if (strcmp(t->lanes[i].node, node) == 0)
            return &t->lanes[i];
    if (t->lane_count == NODES_MAX)
        return NULL;
    lane_t *lane = &t->lanes[t->lane_count++];
    *lane = (lane_t){.node = node, .low_ns = INT64_MIN, .high_ns = INT64_MAX};
    return lane;
}

/* A node began after it was asked to, and a batch was sent before it came. */
static void narrow(lane_t *lane, int64_t asked_ns, const Dtorch__V1__TimelineBatch *batch)
{
    int64_t low_ns = asked_ns - batch->trace->begun_ns;
    int64_t high_ns = batch->received_ns - batch->trace->sent_ns;
    lane->low_ns = low_ns > lane->low_ns ? low_ns : lane->low_ns;
    lane->high_ns = high_ns < lane->high_ns ? high_ns : lane->high_ns;
}

static void settle_clocks(timeline_t *t)
{
    for (size_t i = 0; i < t->trace.batch_count; i++) {
        lane_t *lane = *t->trace.batches[i]->node ? lane_of(t, t->trace.batches[i]->node) : NULL;
        if (lane)
            narrow(lane, t->trace.begun_ns, t->trace.batches[i]);
    }
    for (uint32_t i = 0; i < t->lane_count; i++) {
        lane_t *lane = &t->lanes[i];
        bool is_same = lane->low_ns <= 0 && lane->high_ns >= 0; /* one host, most likely */
        lane->offset_ns = is_same ? 0 : lane->low_ns + (lane->high_ns - lane->low_ns) / 2;
    }
}

/* The program's clock is behind each arrival of what it wrote. Where that is less than a second it
 * is one host's clock, most likely; else the quickest frame is taken to have needed no time. */
static void settle_client(timeline_t *t)
{
    int64_t least_ns = INT64_MAX;
    for (size_t i = 0; i < t->trace.batch_count; i++) {
        const Dtorch__V1__TraceBatch *trace = t->trace.batches[i]->trace;
        for (size_t k = 0; !*t->trace.batches[i]->node && k < trace->n_events; k++) {
            const Dtorch__V1__TraceEvent *event = trace->events[k];
            if (event->client_ns && event->begin_ns - event->client_ns < least_ns)
                least_ns = event->begin_ns - event->client_ns;
        }
    }
    t->has_client_clock = least_ns != INT64_MAX;
    bool is_same = least_ns > -SAME_NS && least_ns < SAME_NS;
    t->client_offset_ns = !t->has_client_clock || is_same ? 0 : least_ns;
}

/* When the program did it; in its lane time does not go back. */
static int64_t client_time(timeline_t *t, const Dtorch__V1__TraceEvent *event)
{
    int64_t ns = event->client_ns ? event->client_ns + t->client_offset_ns : event->begin_ns;
    if (t->last_ns && ns < t->last_ns)
        ns = t->last_ns;
    t->last_ns = ns;
    return ns;
}

/* ---- writing ---- */

/* The fields that all events have; more and the closing brace are the caller's. */
static void event_head(timeline_t *t, char phase, const char *name, uint32_t pid, uint32_t tid)
{
    (void)fprintf(t->file, "%s\n{\"ph\":\"%c\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32 ",\"name\":",
                  t->has_event ? "," : "", phase, pid, tid);
    dt_ctl_json_text(t->file, name);
    t->has_event = true;
}

/* Chrome's unit is the microsecond; ours are kept as its thousandths. */
static void put_time(timeline_t *t, const char *field, int64_t ns)
{
    uint64_t size = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    (void)fprintf(t->file, ",\"%s\":%s%" PRIu64 ".%03" PRIu64, field, ns < 0 ? "-" : "",
                  size / 1000, size % 1000);
}

static void name_lane(timeline_t *t, const char *what, uint32_t pid, uint32_t tid, const char *name)
{
    event_head(t, 'M', what, pid, tid);
    (void)fputs(",\"args\":{\"name\":", t->file);
    dt_ctl_json_text(t->file, name);
    (void)fputs("}}", t->file);
}

static void name_lanes(timeline_t *t)
{
    dt_arena_t *pool = &t->ctl->pool;
    name_lane(t, "process_name", CLIENT_PID, 0,
              dt_ctl_print(pool, "client %s", t->trace.job->program));
    name_lane(t, "thread_name", CLIENT_PID, FRAMES_TID, "ranges and steps");
    name_lane(t, "process_name", CONTROL_PID, 0, "controller");
    name_lane(t, "thread_name", CONTROL_PID, FRAMES_TID, "frames");
    name_lane(t, "thread_name", CONTROL_PID, ACKS_TID, "acknowledgements");
    for (uint32_t i = 0; i < t->lane_count; i++)
        name_lane(t, "process_name", NODE_PID + i, 0,
                  dt_ctl_print(pool, "node %s", t->lanes[i].node));
    for (size_t k = 0; k < t->trace.job->n_bindings; k++) {
        const Dtorch__V1__VdevBinding *binding = t->trace.job->bindings[k];
        for (uint32_t i = 0; i < t->lane_count; i++)
            if (strcmp(t->lanes[i].node, binding->node) == 0)
                name_lane(t, "thread_name", NODE_PID + i, binding->vdev,
                          dt_ctl_print(pool, "device %u (%s), vdev %u", binding->device,
                                       binding->kind, binding->vdev));
    }
}

static void learn_names(timeline_t *t, const Dtorch__V1__TraceBatch *trace)
{
    for (size_t i = 0; i < trace->n_names; i++) {
        uint32_t signature = trace->names[i]->signature;
        if (signature > DT_RECORD_SIG_MAX)
            continue;
        if (signature >= t->name_cap) {
            uint32_t cap = 2 * signature + 256;
            const Dtorch__V1__TraceName **grown = dt_ctl_alloc(&t->ctl->pool, cap, sizeof *grown);
            memset(grown, 0, cap * sizeof *grown);
            if (t->name_cap > 0)
                memcpy(grown, t->names, t->name_cap * sizeof *grown);
            t->names = grown;
            t->name_cap = cap;
        }
        t->names[signature] = trace->names[i];
    }
}

static engine_stream_t *stream_of(timeline_t *t, const lane_t *lane, int64_t begun_ns)
{
    static engine_stream_t unknown;
    for (uint32_t i = 0; i < t->stream_count; i++)
        if (t->streams[i].lane == lane && t->streams[i].begun_ns == begun_ns)
            return &t->streams[i];
    if (t->stream_count == STREAMS_MAX)
        return &unknown;
    t->streams[t->stream_count] = (engine_stream_t){lane, begun_ns, ""};
    return &t->streams[t->stream_count++];
}

static void put_operator(timeline_t *t, const lane_t *lane, engine_stream_t *stream,
                         const Dtorch__V1__TraceEvent *event)
{
    const Dtorch__V1__TraceName *name =
        event->signature < t->name_cap ? t->names[event->signature] : NULL;
    bool is_move = name && strcmp(name->operator_name, "dtorch::redistribute") == 0;
    uint32_t pid = NODE_PID + (uint32_t)(lane - t->lanes);
    if (*event->text)
        stream->source = event->text;
    if (is_move && event->vdev < VDEVS_MAX && !t->is_moving[event->vdev]) {
        t->is_moving[event->vdev] = true;
        name_lane(t, "thread_name", pid, MOVES_TID + event->vdev,
                  dt_ctl_print(&t->ctl->pool, "vdev %" PRIu32 ", communication", event->vdev));
    }
    event_head(t, 'X', name ? name->operator_name : "operator", pid,
               is_move ? MOVES_TID + event->vdev : event->vdev);
    (void)fprintf(t->file, ",\"cat\":\"%s\"", is_move ? "communication" : "operator");
    put_time(t, "ts", event->begin_ns + lane->offset_ns - t->trace.begun_ns);
    put_time(t, "dur", event->duration_ns);
    (void)fprintf(t->file, ",\"args\":{\"record\":%" PRIu64, event->sequence);
    if (name) {
        (void)fputs(",\"call\":", t->file);
        dt_ctl_json_text(t->file, name->text);
    }
    if (stream->source && *stream->source) {
        (void)fputs(",\"line\":", t->file);
        dt_ctl_json_text(t->file, stream->source);
    }
    (void)fprintf(t->file, "%s}}", event->failed ? ",\"failed\":true" : "");
}

static void put_frame(timeline_t *t, const Dtorch__V1__TraceEvent *event)
{
    event_head(t, 'X', "frame", CONTROL_PID, FRAMES_TID);
    put_time(t, "ts", event->begin_ns - t->trace.begun_ns);
    put_time(t, "dur", event->duration_ns);
    (void)fprintf(t->file,
                  ",\"cat\":\"frame\",\"args\":{\"record\":%" PRIu64 ",\"records\":%" PRIu64
                  ",\"bytes\":%" PRIu64 "}}",
                  event->sequence, event->count, event->size_bytes);
}

/* An end without a begin was of a range that nobody knows of any more. */
static void put_range(timeline_t *t, const Dtorch__V1__TraceEvent *event)
{
    bool is_begin = event->kind == DTORCH__V1__TRACE_EVENT__KIND__RANGE_BEGIN;
    if (is_begin ? t->range_depth == RANGES_DEPTH : t->range_depth == 0)
        return;
    t->range_depth += is_begin ? 1 : -1u;
    event_head(t, is_begin ? 'B' : 'E', is_begin ? event->text : "", CLIENT_PID, FRAMES_TID);
    put_time(t, "ts", client_time(t, event) - t->trace.begun_ns);
    (void)fprintf(t->file, ",\"cat\":\"range\",\"args\":{\"record\":%" PRIu64 "}}",
                  event->sequence);
}

static void put_instant(timeline_t *t, const Dtorch__V1__TraceEvent *event)
{
    bool is_step = event->kind == DTORCH__V1__TRACE_EVENT__KIND__STEP;
    const char *name = is_step ? dt_ctl_print(&t->ctl->pool, "step %" PRIu64, event->count) : "ack";
    event_head(t, 'i', name, is_step ? CLIENT_PID : CONTROL_PID, is_step ? FRAMES_TID : ACKS_TID);
    put_time(t, "ts", (is_step ? client_time(t, event) : event->begin_ns) - t->trace.begun_ns);
    (void)fprintf(t->file, ",\"s\":\"t\",\"args\":{\"record\":%" PRIu64 "}}", event->sequence);
}

static void put_own(timeline_t *t, const Dtorch__V1__TraceEvent *event)
{
    switch (event->kind) {
    case DTORCH__V1__TRACE_EVENT__KIND__FRAME:
        put_frame(t, event);
        return;
    case DTORCH__V1__TRACE_EVENT__KIND__RANGE_BEGIN:
    case DTORCH__V1__TRACE_EVENT__KIND__RANGE_END:
        put_range(t, event);
        return;
    case DTORCH__V1__TRACE_EVENT__KIND__ACK:
    case DTORCH__V1__TRACE_EVENT__KIND__STEP:
        put_instant(t, event);
        return;
    default:
        return; /* of a newer controller */
    }
}

static void put_batch(timeline_t *t, const Dtorch__V1__TimelineBatch *batch)
{
    const Dtorch__V1__TraceBatch *trace = batch->trace;
    const lane_t *lane = *batch->node ? lane_of(t, batch->node) : NULL;
    if (!lane) {
        for (size_t i = 0; !*batch->node && i < trace->n_events; i++)
            put_own(t, trace->events[i]);
        return;
    }
    engine_stream_t *stream = stream_of(t, lane, trace->begun_ns);
    learn_names(t, trace);
    for (size_t i = 0; i < trace->n_events; i++)
        if (trace->events[i]->kind == DTORCH__V1__TRACE_EVENT__KIND__OPERATOR)
            put_operator(t, lane, stream, trace->events[i]);
}

static void put_notes(timeline_t *t)
{
    (void)fprintf(t->file,
                  "\n],\"displayTimeUnit\":\"ns\",\"otherData\":{\"job\":%" PRIu64
                  ",\"dropped_events\":%" PRIu64 ",\"dropped_batches\":%" PRIu64 ",\"program\":",
                  t->trace.job->id, t->dropped_events, t->trace.dropped_batches);
    dt_ctl_json_text(t->file, t->trace.job->program);
    (void)fprintf(t->file, ",\"client_times\":\"%s\",\"client_offset_ns\":%" PRId64 ",\"clocks\":[",
                  t->has_client_clock ? "of the program" : "of arrival at the controller",
                  t->client_offset_ns);
    for (uint32_t i = 0; i < t->lane_count; i++) {
        const lane_t *lane = &t->lanes[i];
        (void)fprintf(t->file, "%s{\"offset_ns\":%" PRId64 ",\"error_ns\":%" PRId64 ",\"node\":",
                      i ? "," : "", lane->offset_ns, (lane->high_ns - lane->low_ns) / 2);
        dt_ctl_json_text(t->file, lane->node);
        (void)fputc('}', t->file);
    }
    (void)fputs("]}}\n", t->file);
}

static void write_all(timeline_t *t)
{
    (void)fputs("{\"traceEvents\":[", t->file);
    name_lanes(t);
    for (size_t i = 0; i < t->trace.batch_count; i++)
        put_batch(t, t->trace.batches[i]);
    for (; t->range_depth > 0; t->range_depth--) { /* still open */
        event_head(t, 'E', "", CLIENT_PID, FRAMES_TID);
        put_time(t, "ts", t->last_ns - t->trace.begun_ns);
        (void)fputc('}', t->file);
    }
    put_notes(t);
}

int dt_ctl_job_timeline(dt_ctl_t *ctl)
{
    uint64_t job;
    uint32_t duration_ms;
    int code = dt_ctl_trace_args(ctl, &job, &duration_ms);
    if (code != DT_CTL_EXIT_OK)
        return code;
    timeline_t *t = dt_ctl_alloc(&ctl->pool, 1, sizeof *t);
    memset(t, 0, sizeof *t);
    t->ctl = ctl;
    t->file = ctl->output.screen.file;
    code = dt_ctl_trace_collect(ctl, job, duration_ms, &t->trace);
    if (code != DT_CTL_EXIT_OK)
        return code;
    settle_clocks(t);
    settle_client(t);
    t->dropped_events = dt_ctl_trace_dropped(&t->trace);
    write_all(t);
    if (t->dropped_events + t->trace.dropped_batches > 0)
        dt_ctl_note(ctl, "%" PRIu64 " events and %" PRIu64 " batches had no room and are missing",
                    t->dropped_events, t->trace.dropped_batches);
    return DT_CTL_EXIT_OK;
}
