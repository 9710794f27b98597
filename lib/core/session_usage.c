/* What sessions use: sums by operator, and by who began them, from the controller's start on.
 *
 * A session's own sums grow as its nodes report. When it ends they are added to a row of its API
 * key and program, and to those of its operators, so that a report is the rows of what ended and
 * the sessions that are open. Rows and names are bounded; what comes beyond is summed up in one
 * without a name. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "core/session_internal.h"

#define ROWS_MAX  1024u
#define MIB       (UINT64_C(1) << 20)
#define RATE_NS   INT64_C(500000000)  /* nearer reports are one */
#define SILENT_NS INT64_C(2500000000) /* an engine without a report since then does nothing */

struct row {
    char key[64], program[128];
    uint64_t jobs, operators, device_ns, held_ms, memory_mib_ms, bytes, errors;
};

struct dt_session_usage {
    struct row rows[ROWS_MAX + 1]; /* the last one: the rest */
    uint32_t row_count;            /* without the rest */
    dt_session_stats_t stats;
};

/* ---- sums by operator ---- */

static uint32_t *slot_of(const dt_session_stats_t *stats, const char *name)
{
    uint64_t mask = 2 * DT_SESSION_STATS_MAX - 1;
    uint64_t at = dt_hash_str(DT_HASH_SEED, name) & mask;
    while (stats->index[at] && strcmp(stats->names[stats->index[at] - 1], name) != 0)
        at = (at + 1) & mask;
    return &stats->index[at];
}

void dt_session_stats_fini(dt_session_stats_t *stats)
{
    for (uint32_t i = 0; i < stats->count; i++)
        free(stats->names[i]);
    free(stats->names);
    free(stats->sums);
    free(stats->index);
    *stats = (dt_session_stats_t){0};
}

/* All of it or nothing. */
static bool make_tables(dt_session_stats_t *stats)
{
    stats->index = calloc(2 * (size_t)DT_SESSION_STATS_MAX, sizeof *stats->index);
    stats->names = calloc(DT_SESSION_STATS_MAX, sizeof *stats->names);
    stats->sums = calloc(DT_SESSION_STATS_MAX, sizeof *stats->sums);
    if (stats->index && stats->names && stats->sums)
        return true;
    dt_session_stats_fini(stats);
    return false;
}

/* The number of an operator's name; UINT32_MAX when there are too many. */
static uint32_t number_of(dt_session_stats_t *stats, const char *name)
{
    uint32_t *slot;
    if (!stats->index && !make_tables(stats))
        return UINT32_MAX;
    slot = slot_of(stats, name);
    if (*slot)
        return *slot - 1;
    if (stats->count == DT_SESSION_STATS_MAX)
        return UINT32_MAX;
    stats->names[stats->count] = strdup(name);
    if (!stats->names[stats->count])
        return UINT32_MAX;
    *slot = ++stats->count;
    return *slot - 1;
}

static void add(dt_session_stat_t *sum, const dt_session_stat_t *more)
{
    sum->count += more->count;
    sum->device_ns += more->device_ns;
    sum->bytes += more->bytes;
    sum->errors += more->errors;
}

static void add_all(dt_session_stats_t *stats, const dt_session_stats_t *more)
{
    for (uint32_t i = 0; i < more->count; i++) {
        uint32_t at = number_of(stats, more->names[i]);
        if (at != UINT32_MAX)
            add(&stats->sums[at], &more->sums[i]);
    }
}

static int by_device_time(const void *a, const void *b)
{
    const Dtorch__V1__OperatorStats *x = *(Dtorch__V1__OperatorStats *const *)a;
    const Dtorch__V1__OperatorStats *y = *(Dtorch__V1__OperatorStats *const *)b;
    return (y->device_ns > x->device_ns) - (y->device_ns < x->device_ns);
}

bool dt_session_stats_show(const dt_session_stats_t *stats, dt_arena_t *arena,
                           Dtorch__V1__OperatorStats ***ret_list)
{
    Dtorch__V1__OperatorStats *all = dt_arena_calloc(arena, stats->count, sizeof *all);
    Dtorch__V1__OperatorStats **list = dt_arena_calloc(arena, stats->count, sizeof(void *));
    if (!all || !list)
        return false;
    for (uint32_t i = 0; i < stats->count; i++) {
        dtorch__v1__operator_stats__init(&all[i]);
        all[i].name = dt_arena_strndup(arena, stats->names[i], strlen(stats->names[i]));
        all[i].count = stats->sums[i].count;
        all[i].device_ns = stats->sums[i].device_ns;
        all[i].bytes = stats->sums[i].bytes;
        all[i].errors = stats->sums[i].errors;
        if (!all[i].name)
            return false;
        list[i] = &all[i];
    }
    if (stats->count)
        qsort(list, stats->count, sizeof(void *), by_device_time);
    *ret_list = list;
    return true;
}

/* ---- what nodes report ---- */

static dt_session_reporter_t *reporter_of(dt_session_link_t *link, uint32_t engine)
{
    for (uint32_t i = 0; i < link->reporter_count; i++)
        if (link->reporters[i].engine == engine)
            return &link->reporters[i];
    if (link->reporter_count == DT_SESSION_REPORTERS_MAX)
        return NULL;
    dt_session_reporter_t *grown =
        realloc(link->reporters, (link->reporter_count + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    link->reporters = grown;
    grown[link->reporter_count] =
        (dt_session_reporter_t){.engine = engine, .operators_per_s = -1, .device_ns_per_s = -1};
    return &grown[link->reporter_count++];
}

void dt_session_drop_reporters(dt_session_link_t *link)
{
    for (uint32_t i = 0; i < link->reporter_count; i++)
        free(link->reporters[i].stats);
    free(DT_TAKE(link->reporters));
    link->reporter_count = 0;
}

/* What one engine says of one operator since the session began there: what is new is added. */
static void take_operator(dt_session_link_t *link, dt_session_reporter_t *from,
                          const Dtorch__V1__OperatorStats *said)
{
    dt_session_stats_t *stats = &link->session->stats;
    uint32_t at = number_of(stats, said->name);
    dt_session_stat_t now = {said->count, said->device_ns, said->bytes, said->errors}, more;
    dt_session_stat_t *seen;
    if (at == UINT32_MAX)
        return;
    if (at >= from->stat_count) {
        uint32_t count = stats->count > at ? stats->count : at + 1;
        dt_session_stat_t *grown = realloc(from->stats, count * sizeof *grown);
        if (!grown)
            return;
        memset(grown + from->stat_count, 0, (count - from->stat_count) * sizeof *grown);
        from->stats = grown;
        from->stat_count = count;
    }
    seen = &from->stats[at];
    if (now.count < seen->count)
        return; /* out of order, or nonsense */
    more = (dt_session_stat_t){now.count - seen->count, now.device_ns - seen->device_ns,
                               now.bytes - seen->bytes, now.errors - seen->errors};
    add(&stats->sums[at], &more);
    link->operators += more.count;
    link->device_ns += more.device_ns;
    from->operators += more.count;
    from->device_ns += more.device_ns;
    *seen = now;
}

/* An engine reports each second while it computes. What it did between two of its own reports, over
 * the time between them, is its rate; a job's is the sum of its engines', since those do not report
 * together. */
static void take_rate(dt_session_reporter_t *from, int64_t now_ns)
{
    int64_t elapsed_ns = now_ns - from->since_ns;
    from->told_ns = now_ns;
    if (from->since_ns && elapsed_ns < RATE_NS)
        return; /* a part of one report */
    if (from->since_ns) {
        double seconds = (double)elapsed_ns / 1e9;
        from->operators_per_s = (double)(from->operators - from->since_operators) / seconds;
        from->device_ns_per_s = (double)(from->device_ns - from->since_device_ns) / seconds;
    }
    from->since_ns = now_ns;
    from->since_operators = from->operators;
    from->since_device_ns = from->device_ns;
}

void dt_session_rates_show(const dt_session_t *session, Dtorch__V1__Job *job, int64_t now_ns)
{
    double operators_per_s = 0, device_ns_per_s = 0;
    bool is_known = false;
    for (dt_list_t *at = session->links.next; at != &session->links; at = at->next) {
        const dt_session_link_t *link = DT_CONTAINER_OF(at, dt_session_link_t, list);
        for (uint32_t i = 0; i < link->reporter_count; i++) {
            const dt_session_reporter_t *from = &link->reporters[i];
            if (from->operators_per_s < 0)
                continue;
            is_known = true;
            if (now_ns - from->told_ns > SILENT_NS)
                continue; /* it computes nothing */
            operators_per_s += from->operators_per_s;
            device_ns_per_s += from->device_ns_per_s;
        }
    }
    job->operators_per_second = is_known ? (int64_t)(operators_per_s + 0.5) : -1;
    job->device_percent = is_known ? (int64_t)(device_ns_per_s / 1e7 + 0.5) : -1;
}

void dt_session_take_stats(dt_session_link_t *link, const Dtorch__V1__SessionStats *stats,
                           int64_t now_ns)
{
    dt_session_reporter_t *from = reporter_of(link, stats->engine);
    if (!from)
        return;
    for (size_t i = 0; i < stats->n_operators; i++)
        if (stats->operators[i]->name[0])
            take_operator(link, from, stats->operators[i]);
    if (stats->n_operators > 0)
        take_rate(from, now_ns);
    if (link->memory_ns && now_ns > link->memory_ns) /* it held that much until now */
        link->session->memory_mib_ms +=
            link->memory_bytes / MIB * (uint64_t)((now_ns - link->memory_ns) / 1000000);
    link->memory_ns = now_ns;
    link->memory_bytes += stats->memory_bytes - from->memory_bytes;
    link->memory_peak_bytes += stats->memory_peak_bytes - from->memory_peak_bytes;
    link->tensors += stats->tensors - from->tensors;
    from->memory_bytes = stats->memory_bytes;
    from->memory_peak_bytes = stats->memory_peak_bytes;
    from->tensors = stats->tensors;
}

/* ---- by who began it ---- */

static void add_session(struct row *row, const dt_session_t *session, int64_t now_ns)
{
    row->jobs++;
    for (uint32_t i = 0; i < session->stats.count; i++) {
        row->operators += session->stats.sums[i].count;
        row->device_ns += session->stats.sums[i].device_ns;
    }
    row->held_ms += (uint64_t)((now_ns - session->started_ns) / 1000000) * session->vdev_count;
    row->memory_mib_ms += session->memory_mib_ms;
    row->bytes += session->bytes;
    row->errors += session->error_total;
}

/* The row of a key and program, made if there is none; where `count` rows are full, that behind
 * them. */
static struct row *row_of(struct row *rows, uint32_t *count, const char *key, const char *program)
{
    for (uint32_t i = 0; i < *count; i++)
        if (strcmp(rows[i].key, key) == 0 && strcmp(rows[i].program, program) == 0)
            return &rows[i];
    if (*count == ROWS_MAX)
        return &rows[ROWS_MAX];
    dt_wire_text_copy(rows[*count].key, sizeof rows->key, key);
    dt_wire_text_copy(rows[*count].program, sizeof rows->program, program);
    return &rows[(*count)++];
}

void dt_session_usage_keep(dt_sessions_t *sessions, const dt_session_t *session)
{
    struct dt_session_usage *usage = sessions->usage;
    if (!usage)
        usage = sessions->usage = calloc(1, sizeof *usage);
    if (!usage)
        return; /* a report lacks this job, nothing else does */
    add_session(row_of(usage->rows, &usage->row_count, session->key_name, session->program),
                session, sessions->now_ns);
    add_all(&usage->stats, &session->stats);
}

void dt_session_usage_free(struct dt_session_usage *usage)
{
    if (usage)
        dt_session_stats_fini(&usage->stats);
    free(usage);
}

/* ---- the report ---- */

static Dtorch__V1__Usage *show_row(const struct row *row, uint64_t running, dt_arena_t *arena)
{
    Dtorch__V1__Usage *shown = dt_arena_alloc(arena, sizeof *shown);
    if (!shown)
        return NULL;
    dtorch__v1__usage__init(shown);
    shown->key = dt_arena_strndup(arena, row->key, strlen(row->key));
    shown->program = dt_arena_strndup(arena, row->program, strlen(row->program));
    shown->jobs = row->jobs;
    shown->running = running;
    shown->operators = row->operators;
    shown->device_ns = row->device_ns;
    shown->held_ms = row->held_ms;
    shown->memory_mib_s = row->memory_mib_ms / 1000;
    shown->bytes = row->bytes;
    shown->errors = row->errors;
    return shown->key && shown->program ? shown : NULL;
}

static int compare_rows(const void *a, const void *b)
{
    const Dtorch__V1__Usage *x = *(Dtorch__V1__Usage *const *)a;
    const Dtorch__V1__Usage *y = *(Dtorch__V1__Usage *const *)b;
    return (y->device_ns > x->device_ns) - (y->device_ns < x->device_ns);
}

static bool fill_rows(const dt_sessions_t *sessions, dt_arena_t *arena, int64_t now_ns,
                      Dtorch__V1__UsageReport *report)
{
    const struct dt_session_usage *kept = sessions->usage;
    uint32_t count = kept ? kept->row_count : 0;
    struct row *rows = dt_arena_calloc(arena, ROWS_MAX + 1, sizeof *rows);
    uint64_t *running = dt_arena_calloc(arena, ROWS_MAX + 1, sizeof *running);
    report->rows = dt_arena_calloc(arena, ROWS_MAX + 1, sizeof(void *));
    if (!rows || !running || !report->rows)
        return false;
    if (kept)
        memcpy(rows, kept->rows, sizeof kept->rows);
    for (dt_list_t *at = sessions->all.next; at != &sessions->all; at = at->next) {
        const dt_session_t *session = DT_CONTAINER_OF(at, dt_session_t, list);
        struct row *row = row_of(rows, &count, session->key_name, session->program);
        add_session(row, session, now_ns);
        running[row - rows]++;
    }
    for (uint32_t i = 0; i <= ROWS_MAX; i++) {
        if (!rows[i].jobs)
            continue;
        report->rows[report->n_rows] = show_row(&rows[i], running[i], arena);
        if (!report->rows[report->n_rows++])
            return false;
    }
    qsort(report->rows, report->n_rows, sizeof(void *), compare_rows);
    return true;
}

dt_status_t dt_sessions_operators(const dt_sessions_t *sessions, dt_arena_t *arena,
                                  Dtorch__V1__OperatorStats ***ret_list, size_t *ret_count)
{
    dt_session_stats_t all = {0};
    bool is_shown;
    if (sessions->usage)
        add_all(&all, &sessions->usage->stats);
    for (dt_list_t *at = sessions->all.next; at != &sessions->all; at = at->next)
        add_all(&all, &DT_CONTAINER_OF(at, dt_session_t, list)->stats);
    is_shown = dt_session_stats_show(&all, arena, ret_list);
    *ret_count = is_shown ? all.count : 0;
    dt_session_stats_fini(&all);
    return is_shown ? DT_OK : DT_ERR_NOMEM;
}

dt_status_t dt_sessions_usage(const dt_sessions_t *sessions, dt_arena_t *arena, int64_t now_ns,
                              Dtorch__V1__UsageReport **ret_report)
{
    Dtorch__V1__UsageReport *report = dt_arena_alloc(arena, sizeof *report);
    if (!report)
        return DT_ERR_NOMEM;
    dtorch__v1__usage_report__init(report);
    if (!fill_rows(sessions, arena, now_ns, report))
        return DT_ERR_NOMEM;
    DT_TRY(dt_sessions_operators(sessions, arena, &report->operators, &report->n_operators));
    *ret_report = report;
    return DT_OK;
}
