/* What people see of sessions: events, statistics, jobs. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/session_internal.h"

#define FIELDS_MAX    5
#define LIST_JOBS_MAX 1000u
#define MESHES_SHOWN  256u

/* ---- events ---- */

struct draft {
    Dtorch__V1__Event event;
    Dtorch__V1__EventField fields[FIELDS_MAX];
    Dtorch__V1__EventField *list[FIELDS_MAX];
    char texts[FIELDS_MAX][256];
};

static void put_field(struct draft *draft, const char *key, const char *value)
{
    size_t at = draft->event.n_fields;
    if (!*value || at == FIELDS_MAX)
        return;
    dtorch__v1__event_field__init(&draft->fields[at]);
    dt_wire_text_copy(draft->texts[at], sizeof draft->texts[at], value);
    draft->fields[at].key = DT_SESSION_TEXT(key);
    draft->fields[at].value = draft->texts[at];
    draft->list[at] = &draft->fields[at];
    draft->event.n_fields++;
}

static void give_event(dt_sessions_t *sessions, const struct draft *draft)
{
    dt_session_queued_t *queued = dt_sessions_action(
        sessions, DT_SESSION_DO_EVENT, dtorch__v1__event__get_packed_size(&draft->event));
    if (!queued)
        return;
    (void)dtorch__v1__event__pack(&draft->event, queued->data);
    dt_sessions_push(sessions, queued);
}

void dt_session_event(dt_sessions_t *sessions, Dtorch__V1__Severity severity, const char *name,
                      const dt_session_t *session, const char *node, const char *kind,
                      const char *fmt, ...)
{
    struct draft draft;
    char text[513], clean[513], number[24];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dt_wire_text_copy(clean, sizeof clean, text);
    dtorch__v1__event__init(&draft.event);
    draft.event.severity = severity;
    draft.event.name = DT_SESSION_TEXT(name);
    draft.event.node = DT_SESSION_TEXT(node);
    draft.event.text = clean;
    draft.event.fields = draft.list;
    if (session && session->id) {
        (void)snprintf(number, sizeof number, "%" PRIu64, session->id);
        put_field(&draft, "session", number);
        put_field(&draft, "program", session->program);
        put_field(&draft, "peer", session->address);
    }
    put_field(&draft, "kind", kind);
    give_event(sessions, &draft);
}

void dt_session_event_refused(dt_sessions_t *sessions, const dt_session_stream_t *stream)
{
    struct draft draft;
    dtorch__v1__event__init(&draft.event);
    draft.event.severity = DTORCH__V1__SEVERITY__WARNING;
    draft.event.name = DT_SESSION_TEXT("session-refused");
    draft.event.text = stream->why_not;
    draft.event.fields = draft.list;
    put_field(&draft, "peer", stream->address);
    put_field(&draft, "kind", stream->why_kind);
    give_event(sessions, &draft);
}

/* ---- jobs ---- */

static void sum_links(const dt_session_t *session, Dtorch__V1__Job *job, int64_t now_ns)
{
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        job->memory_bytes += link->memory_bytes;
        job->memory_peak_bytes += link->memory_peak_bytes;
    }
    dt_session_rates_show(session, job, now_ns);
    for (uint32_t i = 0; i < session->stats.count; i++) {
        job->operators_executed += session->stats.sums[i].count;
        job->device_ns += session->stats.sums[i].device_ns;
    }
}

Dtorch__V1__Job *dt_session_job(const dt_sessions_t *sessions, const dt_session_t *session,
                                dt_arena_t *arena, int64_t now_ns)
{
    Dtorch__V1__Job *job = dt_arena_alloc(arena, sizeof *job);
    if (!job)
        return NULL;
    dtorch__v1__job__init(job);
    job->bindings = dt_session_bindings(session, NULL, arena, &job->n_bindings);
    if (!job->bindings)
        return NULL;
    job->id = session->id;
    job->program = DT_SESSION_TEXT(session->program);
    job->state = session->stream ? DTORCH__V1__JOB__STATE__LIVE : DTORCH__V1__JOB__STATE__AWAY;
    job->tenant = DT_SESSION_TEXT("default");
    job->peer = DT_SESSION_TEXT(session->address);
    job->build = DT_SESSION_TEXT(session->build);
    job->key = DT_SESSION_TEXT(session->key_name);
    job->started_wall_ms = session->started_wall_ms;
    job->age_ms = (now_ns - session->started_ns) / 1000000;
    if (!session->stream)
        job->grace_left_ms =
            (session->away_since_ns + sessions->options.grace_ns - now_ns) / 1000000;
    job->sequence = session->next_sequence - 1;
    job->executed = session->executed;
    job->operators = session->operators;
    job->bytes = session->bytes;
    job->queued_bytes = session->bytes - session->bytes_done;
    job->tensors = session->tensors.count;
    job->memory_limit_bytes = session->memory_limit;
    job->errors = session->error_total;
    job->resumes = session->resumes;
    job->step = session->step;
    job->steps = session->steps;
    job->step_age_ms = session->steps ? (now_ns - session->step_ns) / 1000000 : 0;
    sum_links(session, job, now_ns);
    return job;
}

dt_status_t dt_sessions_list(const dt_sessions_t *sessions,
                             const Dtorch__V1__ListJobsRequest *request, dt_arena_t *arena,
                             int64_t now_ns, Dtorch__V1__JobList **ret_list)
{
    uint32_t limit = request->limit ? request->limit : LIST_JOBS_MAX;
    Dtorch__V1__JobList *list = dt_arena_alloc(arena, sizeof *list);
    if (!list)
        return DT_ERR_NOMEM;
    dtorch__v1__job_list__init(list);
    list->jobs = dt_arena_calloc(arena, limit, sizeof(void *));
    if (!list->jobs)
        return DT_ERR_NOMEM;
    for (dt_list_t *at = sessions->all.next; at != &sessions->all; at = at->next) {
        const dt_session_t *session = DT_CONTAINER_OF(at, dt_session_t, list);
        if (session->id <= request->after)
            continue;
        if (list->n_jobs == limit) {
            list->more = true;
            break;
        }
        list->jobs[list->n_jobs] = dt_session_job(sessions, session, arena, now_ns);
        if (!list->jobs[list->n_jobs])
            return DT_ERR_NOMEM;
        list->n_jobs++;
    }
    *ret_list = list;
    return DT_OK;
}

static bool fill_operators(const dt_session_t *session, dt_arena_t *arena,
                           Dtorch__V1__JobDetail *detail)
{
    detail->n_operators = session->stats.count;
    return dt_session_stats_show(&session->stats, arena, &detail->operators);
}

static bool fill_errors(const dt_session_t *session, dt_arena_t *arena,
                        Dtorch__V1__JobDetail *detail)
{
    ProtobufCAllocator allocator = {dt_arena_pb_alloc, dt_arena_pb_free, arena};
    detail->errors = dt_arena_calloc(arena, session->error_count, sizeof(void *));
    if (!detail->errors)
        return false;
    for (uint32_t i = 0; i < session->error_count; i++) {
        uint32_t at = (session->error_head + i) % DT_SESSION_ERRORS_MAX;
        Dtorch__V1__SessionDown *down = dtorch__v1__session_down__unpack(
            &allocator, session->errors[at].size, session->errors[at].packed);
        if (!down)
            return false;
        if (down->kind_case == DTORCH__V1__SESSION_DOWN__KIND_POISON && down->poison->error)
            detail->errors[detail->n_errors++] = down->poison->error;
    }
    return true;
}

static uint64_t unsent_bytes(const dt_session_link_t *link)
{
    const dt_session_t *session = link->session;
    uint64_t sum = 0;
    uint64_t from = link->next > link->prelude_count ? link->next - link->prelude_count : 0;
    for (uint64_t i = link->join_index + from; i < session->queue_first + session->queue_count; i++)
        sum += session->queue[session->queue_head + (i - session->queue_first)]->size;
    return sum;
}

static bool fill_nodes(const dt_session_t *session, dt_arena_t *arena,
                       Dtorch__V1__JobDetail *detail)
{
    size_t count = 0;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next)
        count++;
    detail->nodes = dt_arena_calloc(arena, count, sizeof(void *));
    Dtorch__V1__JobNode *all = dt_arena_calloc(arena, count, sizeof *all);
    if (!all || !detail->nodes)
        return false;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        Dtorch__V1__JobNode *node = &all[detail->n_nodes];
        dtorch__v1__job_node__init(node);
        node->node = link->place->name;
        node->is_connected = link->stream != 0;
        node->sent = link->sent;
        node->executed = link->executed;
        node->memory_bytes = link->memory_bytes;
        node->memory_peak_bytes = link->memory_peak_bytes;
        node->tensors = link->tensors;
        node->operators = link->operators;
        node->device_ns = link->device_ns;
        node->unsent_bytes = unsent_bytes(link);
        detail->nodes[detail->n_nodes++] = node;
    }
    return true;
}

static bool fill_ranges(const dt_session_t *session, dt_arena_t *arena,
                        Dtorch__V1__JobDetail *detail)
{
    uint32_t depth =
        session->range_depth < DT_SESSION_RANGES_MAX ? session->range_depth : DT_SESSION_RANGES_MAX;
    detail->ranges = dt_arena_calloc(arena, depth, sizeof(char *));
    if (!detail->ranges)
        return false;
    for (uint32_t i = 0; i < depth; i++)
        detail->ranges[i] = DT_SESSION_TEXT(session->ranges[i]);
    detail->n_ranges = depth;
    return true;
}

static Dtorch__V1__JobMesh *show_mesh(const dt_session_mesh_t *mesh, uint32_t id, dt_arena_t *arena)
{
    Dtorch__V1__JobMesh *shown = dt_arena_alloc(arena, sizeof *shown);
    uint32_t *vdevs = dt_arena_calloc(arena, mesh->shard.count, sizeof *vdevs);
    if (!shown || !vdevs)
        return NULL;
    dtorch__v1__job_mesh__init(shown);
    shown->id = id;
    shown->shape = mesh->shape;
    for (uint32_t i = 0; i < mesh->shard.count; i++)
        vdevs[i] = (uint32_t)mesh->vdevs[i];
    shown->vdevs = vdevs;
    shown->n_vdevs = mesh->shard.count;
    return shown;
}

static bool fill_meshes(const dt_session_t *session, dt_arena_t *arena,
                        Dtorch__V1__JobDetail *detail)
{
    detail->meshes = dt_arena_calloc(arena, MESHES_SHOWN, sizeof(void *));
    if (!detail->meshes)
        return false;
    for (uint32_t i = 0; i < session->mesh_cap && detail->n_meshes < MESHES_SHOWN; i++) {
        if (session->meshes[i].shard.count < 2)
            continue;
        detail->meshes[detail->n_meshes] = show_mesh(&session->meshes[i], i, arena);
        if (!detail->meshes[detail->n_meshes++])
            return false;
    }
    return true;
}

static bool fill_moves(const dt_session_t *session, dt_arena_t *arena,
                       Dtorch__V1__JobDetail *detail)
{
    Dtorch__V1__JobMove *all = dt_arena_calloc(arena, DT_SESSION_MOVE_KINDS, sizeof *all);
    detail->moves = dt_arena_calloc(arena, DT_SESSION_MOVE_KINDS, sizeof(void *));
    if (!all || !detail->moves)
        return false;
    for (uint32_t kind = 0; kind < DT_SESSION_MOVE_KINDS; kind++) {
        if (session->moves[kind].count == 0)
            continue;
        dtorch__v1__job_move__init(&all[kind]);
        all[kind].kind = DT_SESSION_TEXT(dt_shard_step_name(kind));
        all[kind].count = session->moves[kind].count;
        all[kind].bytes = session->moves[kind].bytes;
        detail->moves[detail->n_moves++] = &all[kind];
    }
    return true;
}

dt_status_t dt_sessions_get(const dt_sessions_t *sessions, uint64_t job, dt_arena_t *arena,
                            int64_t now_ns, Dtorch__V1__JobDetail **ret_job, dt_error_t *err)
{
    const dt_session_t *session = dt_sessions_find(sessions, job);
    Dtorch__V1__JobDetail *detail;
    if (!session)
        return dt_fail(err, DT_ERR_NOT_FOUND, "dt", 0, "there is no job %" PRIu64, job);
    detail = dt_arena_alloc(arena, sizeof *detail);
    if (detail) {
        dtorch__v1__job_detail__init(detail);
        detail->job = dt_session_job(sessions, session, arena, now_ns);
    }
    if (!detail || !detail->job || !fill_operators(session, arena, detail) ||
        !fill_errors(session, arena, detail) || !fill_nodes(session, arena, detail) ||
        !fill_ranges(session, arena, detail) || !fill_meshes(session, arena, detail) ||
        !fill_moves(session, arena, detail))
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "the reply is too large");
    *ret_job = detail;
    return DT_OK;
}

/* ---- counts ---- */

static void count_session(const dt_session_t *session, dt_sessions_counts_t *counts)
{
    if (session->stream)
        counts->live++;
    else
        counts->away++;
    counts->operators += session->operators;
    counts->tensors += session->tensors.count;
    counts->storages += session->storages_live;
    counts->queued_bytes += session->bytes - session->bytes_done;
    counts->results_bytes += session->results_bytes;
    if (session->ack_credit > session->bytes)
        counts->credit_bytes += session->ack_credit - session->bytes;
    for (uint32_t i = 0; i < session->stats.count; i++)
        counts->executed += session->stats.sums[i].count;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        counts->memory_bytes += link->memory_bytes;
        counts->unsent_bytes += unsent_bytes(link);
    }
}

void dt_sessions_count(const dt_sessions_t *sessions, dt_sessions_counts_t *ret_counts)
{
    *ret_counts = sessions->counts; /* its `operators` and `executed` are those of ended sessions */
    ret_counts->sessions_max = sessions->options.sessions_max;
    ret_counts->streams = sessions->stream_count;
    ret_counts->links = sessions->link_count;
    for (dt_list_t *at = sessions->all.next; at != &sessions->all; at = at->next)
        count_session(DT_CONTAINER_OF(at, dt_session_t, list), ret_counts);
}
