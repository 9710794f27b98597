/* dtorchctl job and tensor: the sessions of client programs, what they run and what they hold. */
#include <inttypes.h>
#include <string.h>

#include "jobs.h"
#include "text.h"

#define OPS_SHOWN       5     /* of `job show` */
#define MESH_SHOWN      8     /* devices of a mesh there */
#define TENSORS_MAX     10000 /* of one answer (admin.proto) */
#define CANCELLED       "cancelled"
#define REASON_MAX_SIZE 256

/* ---- asking ---- */

int dt_ctl_job_id(dt_ctl_t *ctl, const char *text, uint64_t *ret_id)
{
    int64_t id;
    if (dt_str_to_i64(text, &id) != DT_OK || id <= 0)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE,
                           "\"%s\" is no job: write its number, as job list shows it", text);
    *ret_id = (uint64_t)id;
    return DT_CTL_EXIT_OK;
}

int dt_ctl_fetch_jobs(dt_ctl_t *ctl, dt_ctl_jobs_t *ret_jobs)
{
    int code;
    size_t cap = 0;
    const Dtorch__V1__JobList *page = NULL;
    *ret_jobs = (dt_ctl_jobs_t){0};
    do {
        Dtorch__V1__ListJobsRequest request = DTORCH__V1__LIST_JOBS_REQUEST__INIT;
        if (page)
            request.after = page->jobs[page->n_jobs - 1]->id;
        page = dt_ctl_call(ctl, "ListJobs", &request, &dtorch__v1__job_list__descriptor, &code);
        if (!page)
            return code;
        if (ret_jobs->count + page->n_jobs > cap) {
            cap = (ret_jobs->count + page->n_jobs) * 2 + 16;
            Dtorch__V1__Job **items = dt_ctl_alloc(&ctl->pool, cap, sizeof *items);
            if (ret_jobs->count > 0)
                memcpy(items, ret_jobs->items, ret_jobs->count * sizeof *items);
            ret_jobs->items = items;
        }
        for (size_t i = 0; i < page->n_jobs; i++)
            ret_jobs->items[ret_jobs->count++] = page->jobs[i];
    } while (page->more && page->n_jobs > 0);
    return DT_CTL_EXIT_OK;
}

const Dtorch__V1__JobDetail *dt_ctl_fetch_job(dt_ctl_t *ctl, uint64_t id, int *ret_code)
{
    Dtorch__V1__GetJobRequest request = DTORCH__V1__GET_JOB_REQUEST__INIT;
    request.id = id;
    const Dtorch__V1__JobDetail *detail =
        dt_ctl_call(ctl, "GetJob", &request, &dtorch__v1__job_detail__descriptor, ret_code);
    if (detail && !detail->job) {
        *ret_code = dt_ctl_fail(ctl, DT_CTL_EXIT_INTERNAL, "the controller's answer has no job");
        return NULL;
    }
    return detail;
}

/* The detail of argument `index`. NULL after the error was told. */
static const Dtorch__V1__JobDetail *get_job(dt_ctl_t *ctl, size_t index, int *ret_code)
{
    uint64_t id = 0;
    *ret_code = dt_ctl_job_id(ctl, ctl->cli.args[index], &id);
    return *ret_code == DT_CTL_EXIT_OK ? dt_ctl_fetch_job(ctl, id, ret_code) : NULL;
}

/* ---- list ---- */

static const Dtorch__V1__Job *job_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__Job *)(const void *)view->items[0];
}

static const char *show_operators(const dt_ctl_view_t *view)
{
    return dt_ctl_count(view->pool, job_of(view)->operators);
}

static dt_ctl_value_t job_devices(const dt_ctl_view_t *view)
{
    return dt_ctl_uint(job_of(view)->n_bindings, DT_CTL_PLAIN);
}

static dt_ctl_value_t job_step(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Job *job = job_of(view);
    return job->steps ? dt_ctl_uint(job->step, DT_CTL_PLAIN) : dt_ctl_absent();
}

static dt_ctl_value_t job_errors(const dt_ctl_view_t *view)
{
    uint64_t errors = job_of(view)->errors;
    return errors ? dt_ctl_uint(errors, DT_CTL_PLAIN) : dt_ctl_absent();
}

const char *dt_ctl_job_why(dt_arena_t *pool, const Dtorch__V1__Job *job)
{
    if (job->state != DTORCH__V1__JOB__STATE__AWAY)
        return "";
    return dt_ctl_print(pool, "program not connected, ends in %s",
                        dt_ctl_duration(pool, job->grace_left_ms));
}

static dt_ctl_value_t job_reason(const dt_ctl_view_t *view)
{
    return dt_ctl_text(dt_ctl_job_why(view->pool, job_of(view)));
}

/* "gpu001:0 gpu001:1 gpu002:0": each device once, in the order of the virtual devices. */
static const char *where(dt_arena_t *pool, const Dtorch__V1__Job *job)
{
    const char *text = "";
    for (size_t i = 0; i < job->n_bindings; i++) {
        const Dtorch__V1__VdevBinding *at = job->bindings[i];
        size_t j = 0;
        while (j < i && (job->bindings[j]->device != at->device ||
                         strcmp(job->bindings[j]->node, at->node) != 0))
            j++;
        if (j == i)
            text = dt_ctl_print(pool, "%s%s%s:%u", text, *text ? " " : "", at->node, at->device);
    }
    return text;
}

static dt_ctl_value_t job_where(const dt_ctl_view_t *view)
{
    return dt_ctl_text(where(view->pool, job_of(view)));
}

static const dt_ctl_column_t job_columns[] = {
    {"id", "ID", "id", NULL, NULL, 0, 0},
    {"program", "PROGRAM", "program", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"state", "STATE", "state", NULL, NULL, DT_CTL_COLUMN_STATE, 0},
    {"tenant", "TENANT", "tenant", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"devices", "DEVICES", NULL, job_devices, NULL, 0, 0},
    {"where", "WHERE", NULL, job_where, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"operators", "OPERATORS", "operators", NULL, show_operators, 0, 0},
    {"executed", "EXECUTED", "operators_executed", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"device_time", "DEVICE TIME", "device_ns", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"queued", "QUEUED", "queued_bytes", NULL, NULL, 0, 0},
    {"tensors", "TENSORS", "tensors", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"memory", "MEMORY", "memory_bytes", NULL, NULL, 0, 0},
    {"step", "STEP", NULL, job_step, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"errors", "ERRORS", NULL, job_errors, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"age", "AGE", "age_ms", NULL, NULL, 0, 0},
    {"peer", "PEER", "peer", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"key", "KEY", "key", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"reason", "REASON", NULL, job_reason, NULL, DT_CTL_COLUMN_SPARSE | DT_CTL_COLUMN_SHRINK, 0},
};

const dt_ctl_list_t dt_ctl_job_list_type = {
    .kind = "JobList",
    .one = "job",
    .many = "jobs",
    .name_path = "id",
    .type = &dtorch__v1__job__descriptor,
    .columns = job_columns,
    .column_count = sizeof job_columns / sizeof job_columns[0],
};

int dt_ctl_job_list(dt_ctl_t *ctl)
{
    dt_ctl_jobs_t jobs;
    int code = dt_ctl_check_list(ctl, &dt_ctl_job_list_type);
    if (code == DT_CTL_EXIT_OK)
        code = dt_ctl_fetch_jobs(ctl, &jobs);
    if (code != DT_CTL_EXIT_OK)
        return code;
    return dt_ctl_print_list(ctl, &dt_ctl_job_list_type,
                             (const ProtobufCMessage *const *)(const void *)jobs.items, jobs.count,
                             NULL);
}

/* ---- show ---- */

static void show_work(dt_ctl_t *ctl, const Dtorch__V1__Job *job)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    const dt_ctl_style_t *style = &ctl->output.style;
    dt_ctl_line(pool, screen, "operators", DT_CTL_COLOUR_NONE,
                "%s accepted, %s executed in %s of device time, %s queued",
                dt_ctl_count(pool, job->operators), dt_ctl_count(pool, job->operators_executed),
                dt_ctl_duration_ns(pool, (int64_t)job->device_ns),
                dt_ctl_size(pool, style, job->queued_bytes));
    dt_ctl_line(pool, screen, "memory", DT_CTL_COLOUR_NONE, "%s in %" PRIu64 " tensor%s, peak %s%s",
                dt_ctl_size(pool, style, job->memory_bytes), job->tensors,
                job->tensors == 1 ? "" : "s", dt_ctl_size(pool, style, job->memory_peak_bytes),
                job->memory_limit_bytes
                    ? dt_ctl_print(pool, ", limit %s a virtual device",
                                   dt_ctl_size(pool, style, job->memory_limit_bytes))
                    : "");
    if (job->steps > 0)
        dt_ctl_line(pool, screen, "steps", DT_CTL_COLOUR_NONE,
                    "%" PRIu64 ", the last was %" PRIu64 ", %s ago", job->steps, job->step,
                    dt_ctl_duration(pool, job->step_age_ms));
    if (job->errors > 0)
        dt_ctl_line(pool, screen, "errors", DT_CTL_COLOUR_BAD,
                    "%" PRIu64 ", see: dtorchctl job errors %" PRIu64, job->errors, job->id);
    if (job->resumes > 0)
        dt_ctl_line(pool, screen, "resumed", DT_CTL_COLOUR_NONE, "%" PRIu64 " time%s", job->resumes,
                    job->resumes == 1 ? "" : "s");
}

static void show_bindings(dt_ctl_t *ctl, const Dtorch__V1__Job *job)
{
    dt_arena_t *pool = &ctl->pool;
    for (size_t i = 0; i < job->n_bindings; i++) {
        const Dtorch__V1__VdevBinding *at = job->bindings[i];
        dt_ctl_line(pool, &ctl->output.screen, i == 0 ? "devices" : "", DT_CTL_COLOUR_NONE,
                    "vdev %u on %s:%u  %s  backend %s", at->vdev, dt_ctl_safe(pool, at->node),
                    at->device, dt_ctl_safe(pool, at->kind), dt_ctl_safe(pool, at->backend));
    }
}

static void show_nodes(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail)
{
    dt_arena_t *pool = &ctl->pool;
    for (size_t i = 0; i < detail->n_nodes; i++) {
        const Dtorch__V1__JobNode *node = detail->nodes[i];
        dt_ctl_line(pool, &ctl->output.screen, i == 0 ? "nodes" : "",
                    node->is_connected ? DT_CTL_COLOUR_NONE : DT_CTL_COLOUR_WARN,
                    "%s  %s  record %" PRIu64 " of %" PRIu64 " sent  %s operators  %s%s",
                    dt_ctl_safe(pool, node->node),
                    node->is_connected ? "connected" : "not connected", node->executed, node->sent,
                    dt_ctl_count(pool, node->operators),
                    dt_ctl_size(pool, &ctl->output.style, node->memory_bytes),
                    node->unsent_bytes
                        ? dt_ctl_print(pool, "  %s wait",
                                       dt_ctl_size(pool, &ctl->output.style, node->unsent_bytes))
                        : "");
    }
}

/* Meshes, with the device and node that each of their virtual devices has now. */
static void show_meshes(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail)
{
    dt_arena_t *pool = &ctl->pool;
    for (size_t i = 0; i < detail->n_meshes; i++) {
        const Dtorch__V1__JobMesh *mesh = detail->meshes[i];
        const char *places = "";
        for (size_t k = 0; k < mesh->n_vdevs && k < MESH_SHOWN; k++) {
            const Dtorch__V1__VdevBinding *at = NULL;
            for (size_t b = 0; b < detail->job->n_bindings && !at; b++)
                if (detail->job->bindings[b]->vdev == mesh->vdevs[k])
                    at = detail->job->bindings[b];
            places = dt_ctl_print(
                pool, "%s  %u %s", places, mesh->vdevs[k],
                at ? dt_ctl_print(pool, "%s:%u", dt_ctl_safe(pool, at->node), at->device)
                   : "(no device)");
        }
        dt_ctl_line(pool, &ctl->output.screen, i == 0 ? "meshes" : "", DT_CTL_COLOUR_NONE,
                    "mesh %u %s  vdev%s%s", mesh->id, dt_ctl_safe(pool, mesh->shape), places,
                    mesh->n_vdevs > MESH_SHOWN
                        ? dt_ctl_print(pool, "  and %zu more", mesh->n_vdevs - MESH_SHOWN)
                        : "");
    }
}

static void show_moves(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail)
{
    dt_arena_t *pool = &ctl->pool;
    for (size_t i = 0; i < detail->n_moves; i++)
        dt_ctl_line(pool, &ctl->output.screen, i == 0 ? "moves" : "", DT_CTL_COLOUR_NONE,
                    "%s  %s times  %s a device", dt_ctl_safe(pool, detail->moves[i]->kind),
                    dt_ctl_count(pool, detail->moves[i]->count),
                    dt_ctl_size(pool, &ctl->output.style, detail->moves[i]->bytes));
}

static void show_top_operators(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail)
{
    dt_arena_t *pool = &ctl->pool;
    for (size_t i = 0; i < detail->n_operators && i < OPS_SHOWN; i++) {
        const Dtorch__V1__OperatorStats *op = detail->operators[i];
        dt_ctl_line(pool, &ctl->output.screen, i == 0 ? "most time" : "", DT_CTL_COLOUR_NONE,
                    "%s  %s times  %s", dt_ctl_safe(pool, op->name), dt_ctl_count(pool, op->count),
                    dt_ctl_duration_ns(pool, (int64_t)op->device_ns));
    }
    if (detail->n_operators > OPS_SHOWN)
        dt_ctl_line(pool, &ctl->output.screen, "", DT_CTL_COLOUR_NONE,
                    "and %zu more, see: dtorchctl job ops %" PRIu64,
                    detail->n_operators - OPS_SHOWN, detail->job->id);
}

static void show_job(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail)
{
    dt_arena_t *pool = &ctl->pool;
    const Dtorch__V1__Job *job = detail->job;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    const char *state =
        dt_ctl_enum_word(pool, &dtorch__v1__job__state__descriptor, (int)job->state);
    const char *why = dt_ctl_job_why(pool, job), *ranges = "";
    dt_ctl_line(pool, screen, "job", DT_CTL_COLOUR_NONE, "%" PRIu64 "  %s  tenant %s", job->id,
                dt_ctl_safe(pool, job->program), dt_ctl_safe(pool, job->tenant));
    dt_ctl_line(pool, screen, "state", dt_ctl_state_colour(state), "%s%s%s", state,
                *why ? ": " : "", why);
    dt_ctl_line(pool, screen, "program", DT_CTL_COLOUR_NONE, "from %s%s%s, build %s, since %s (%s)",
                dt_ctl_safe(pool, job->peer), *job->key ? " with API key " : "",
                dt_ctl_safe(pool, job->key), dt_ctl_safe(pool, job->build),
                dt_ctl_time(pool, job->started_wall_ms, ctl->output.style.now_wall_ms,
                            ctl->output.style.is_utc),
                dt_ctl_duration(pool, job->age_ms));
    for (size_t i = 0; i < detail->n_ranges; i++)
        ranges = dt_ctl_print(pool, "%s%s%s", ranges, i > 0 ? " > " : "",
                              dt_ctl_safe(pool, detail->ranges[i]));
    if (*ranges != '\0')
        dt_ctl_line(pool, screen, "in", DT_CTL_COLOUR_NONE, "%s", ranges);
    show_bindings(ctl, job);
    show_work(ctl, job);
    show_nodes(ctl, detail);
    show_meshes(ctl, detail);
    show_moves(ctl, detail);
    show_top_operators(ctl, detail);
}

static const dt_ctl_column_t detail_columns[] = {
    {"id", "ID", "job.id", NULL, NULL, 0, 0},
    {"program", "PROGRAM", "job.program", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"state", "STATE", "job.state", NULL, NULL, DT_CTL_COLUMN_STATE, 0},
};

static const dt_ctl_list_t detail_list = {
    .kind = "JobDetail",
    .one = "job",
    .many = "jobs",
    .name_path = "job.id",
    .type = &dtorch__v1__job_detail__descriptor,
    .columns = detail_columns,
    .column_count = sizeof detail_columns / sizeof detail_columns[0],
};

int dt_ctl_job_show(dt_ctl_t *ctl)
{
    size_t count = 0, wanted = ctl->cli.arg_count;
    const Dtorch__V1__JobDetail **details = dt_ctl_alloc(&ctl->pool, wanted + 1, sizeof *details);
    int worst = DT_CTL_EXIT_OK, code = dt_ctl_check_list(ctl, &detail_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    for (size_t i = 0; i < wanted; i++) {
        details[count] = get_job(ctl, i, &code);
        count += details[count] != NULL;
        if (code != DT_CTL_EXIT_OK && code != DT_CTL_EXIT_NOT_FOUND)
            return code;
        worst = code != DT_CTL_EXIT_OK ? code : worst;
    }
    if (count == 0)
        return worst;
    if (!dt_ctl_is_people(ctl) || ctl->output.fields)
        code = dt_ctl_print_list(
            ctl, &detail_list, (const ProtobufCMessage *const *)(const void *)details, count, NULL);
    else
        code = DT_CTL_EXIT_OK;
    for (size_t i = 0; dt_ctl_is_people(ctl) && !ctl->output.fields && i < count; i++) {
        (void)fputs(i > 0 ? "\n" : "", ctl->output.screen.file);
        show_job(ctl, details[i]);
    }
    return code == DT_CTL_EXIT_OK && worst != DT_CTL_EXIT_OK ? DT_CTL_EXIT_PARTIAL : code;
}

/* ---- ops ---- */

static const Dtorch__V1__OperatorStats *stats_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__OperatorStats *)(const void *)view->items[0];
}

static const char *show_count(const dt_ctl_view_t *view)
{
    return dt_ctl_count(view->pool, stats_of(view)->count);
}

static dt_ctl_value_t mean_time(const dt_ctl_view_t *view)
{
    const Dtorch__V1__OperatorStats *stats = stats_of(view);
    return stats->count ? dt_ctl_uint(stats->device_ns / stats->count, DT_CTL_NS) : dt_ctl_absent();
}

/* Of the device time of all operators; `context` is that sum. */
static dt_ctl_value_t share(const dt_ctl_view_t *view)
{
    const uint64_t *total_ns = view->context;
    if (!total_ns || *total_ns == 0)
        return dt_ctl_absent();
    double part = (double)stats_of(view)->device_ns / (double)*total_ns;
    return dt_ctl_uint((uint64_t)(part * 100 + 0.5), DT_CTL_PERCENT);
}

static const dt_ctl_column_t op_columns[] = {
    {"name", "OPERATOR", "name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"count", "COUNT", "count", NULL, show_count, 0, 0},
    {"time", "TIME", "device_ns", NULL, NULL, 0, 0},
    {"share", "SHARE", NULL, share, NULL, 0, 0},
    {"mean", "MEAN", NULL, mean_time, NULL, 0, 0},
    {"bytes", "BYTES", "bytes", NULL, NULL, 0, 0},
    {"errors", "ERRORS", "errors", NULL, NULL, 0, 0},
};

static const dt_ctl_list_t operators_list = {
    .kind = "OperatorStatsList",
    .one = "operator",
    .many = "operators",
    .name_path = "name",
    .type = &dtorch__v1__operator_stats__descriptor,
    .columns = op_columns,
    .column_count = sizeof op_columns / sizeof op_columns[0],
};

int dt_ctl_print_operators(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail)
{
    uint64_t total_ns = 0;
    for (size_t i = 0; i < detail->n_operators; i++)
        total_ns += detail->operators[i]->device_ns;
    ctl->output.context = &total_ns;
    int code = dt_ctl_print_list(ctl, &operators_list,
                                 (const ProtobufCMessage *const *)(const void *)detail->operators,
                                 detail->n_operators, NULL);
    ctl->output.context = NULL;
    return code;
}

int dt_ctl_job_ops(dt_ctl_t *ctl)
{
    int code = dt_ctl_check_list(ctl, &operators_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__JobDetail *detail = get_job(ctl, 0, &code);
    return detail ? dt_ctl_print_operators(ctl, detail) : code;
}

/* ---- errors ---- */

static const Dtorch__V1__OperatorError *error_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__OperatorError *)(const void *)view->items[0];
}

static dt_ctl_value_t error_device(const dt_ctl_view_t *view)
{
    const Dtorch__V1__OperatorError *error = error_of(view);
    return *error->node ? dt_ctl_text(dt_ctl_print(view->pool, "%s:%u", error->node, error->device))
                        : dt_ctl_absent();
}

static const dt_ctl_column_t error_columns[] = {
    {"record", "RECORD", "sequence", NULL, NULL, 0, 0},
    {"kind", "KIND", "kind", NULL, NULL, 0, 0},
    {"operator", "OPERATOR", "operator_name", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"at", "AT", "source", NULL, NULL, DT_CTL_COLUMN_SHRINK | DT_CTL_COLUMN_SPARSE, 0},
    {"device", "DEVICE", NULL, error_device, NULL, 0, 0},
    {"inputs", "INPUTS", "inputs", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"skipped", "SKIPPED", "skipped", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"text", "TEXT", "text", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

static const dt_ctl_list_t error_list = {
    .kind = "OperatorErrorList",
    .one = "error",
    .many = "errors",
    .name_path = "sequence",
    .type = &dtorch__v1__operator_error__descriptor,
    .columns = error_columns,
    .column_count = sizeof error_columns / sizeof error_columns[0],
};

/* One error as a program sees it. */
static void show_error(dt_ctl_t *ctl, const Dtorch__V1__OperatorError *error)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    const char *ranges = "";
    (void)fprintf(screen->file, "%s: %s%s%s\n", dt_ctl_safe(pool, error->kind),
                  dt_ctl_safe(pool, error->operator_name), *error->operator_name ? ": " : "",
                  dt_ctl_safe(pool, error->text));
    for (size_t i = 0; i < error->n_range; i++)
        ranges = dt_ctl_print(pool, "%s%s%s", ranges, i > 0 ? " > " : "",
                              dt_ctl_safe(pool, error->range[i]));
    if (*error->source != '\0')
        dt_ctl_line(pool, screen, "at", DT_CTL_COLOUR_NONE, "%s", dt_ctl_safe(pool, error->source));
    if (*ranges != '\0')
        dt_ctl_line(pool, screen, "in", DT_CTL_COLOUR_NONE, "%s", ranges);
    if (*error->inputs != '\0')
        dt_ctl_line(pool, screen, "inputs", DT_CTL_COLOUR_NONE, "%s",
                    dt_ctl_safe(pool, error->inputs));
    if (*error->node != '\0')
        dt_ctl_line(pool, screen, "device", DT_CTL_COLOUR_NONE,
                    "%s:%u (vdev %u), record %" PRIu64 " of the session",
                    dt_ctl_safe(pool, error->node), error->device, error->vdev, error->sequence);
    if (error->source_code != 0)
        dt_ctl_line(pool, screen, "code", DT_CTL_COLOUR_NONE, "%" PRId64, error->source_code);
    if (error->skipped > 0)
        dt_ctl_line(pool, screen, "skipped", DT_CTL_COLOUR_NONE,
                    "%" PRIu64 " operator%s that depend on it", error->skipped,
                    error->skipped == 1 ? "" : "s");
}

/* The error of the record that the second argument names. */
static int show_one_error(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail)
{
    int64_t sequence;
    if (dt_str_to_i64(ctl->cli.args[1], &sequence) != DT_OK || sequence <= 0)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "\"%s\" is no record: write its number",
                           ctl->cli.args[1]);
    for (size_t i = 0; i < detail->n_errors; i++) {
        if (detail->errors[i]->sequence != (uint64_t)sequence)
            continue;
        if (!dt_ctl_is_people(ctl) || ctl->output.fields)
            return dt_ctl_print_list(
                ctl, &error_list, (const ProtobufCMessage *const *)(const void *)&detail->errors[i],
                1, NULL);
        show_error(ctl, detail->errors[i]);
        return DT_CTL_EXIT_OK;
    }
    return dt_ctl_fail(ctl, DT_CTL_EXIT_NOT_FOUND,
                       "no error of record %" PRId64 " is kept; dtorchctl job errors %" PRIu64
                       " shows them",
                       sequence, detail->job->id);
}

int dt_ctl_job_errors(dt_ctl_t *ctl)
{
    int code = dt_ctl_check_list(ctl, &error_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__JobDetail *detail = get_job(ctl, 0, &code);
    if (!detail)
        return code;
    if (ctl->cli.arg_count > 1)
        return show_one_error(ctl, detail);
    code = dt_ctl_print_list(ctl, &error_list,
                             (const ProtobufCMessage *const *)(const void *)detail->errors,
                             detail->n_errors, NULL);
    if (code == DT_CTL_EXIT_OK && dt_ctl_is_people(ctl) && detail->job->errors > detail->n_errors)
        dt_ctl_note(ctl, "%" PRIu64 " older ones are no longer kept",
                    detail->job->errors - detail->n_errors);
    return code;
}

/* ---- cancel ---- */

static int cancel_dry(dt_ctl_t *ctl)
{
    int code = DT_CTL_EXIT_OK;
    for (size_t i = 0; i < ctl->cli.arg_count; i++) {
        const Dtorch__V1__JobDetail *detail = get_job(ctl, i, &code);
        if (!detail)
            return code;
        dt_ctl_note(ctl, "%" PRIu64 "  %s would end, with %" PRIu64 " tensors", detail->job->id,
                    detail->job->program, detail->job->tensors);
    }
    return DT_CTL_EXIT_WOULD;
}

/* End one job; NULL after the error was told. */
static const Dtorch__V1__JobDetail *cancel_one(dt_ctl_t *ctl, size_t index, const char *reason,
                                               int *ret_code)
{
    Dtorch__V1__EndJobRequest request = DTORCH__V1__END_JOB_REQUEST__INIT;
    *ret_code = dt_ctl_job_id(ctl, ctl->cli.args[index], &request.id);
    if (*ret_code != DT_CTL_EXIT_OK)
        return NULL;
    request.reason = dt_ctl_copy(&ctl->pool, reason, strlen(reason));
    request.by = dt_ctl_by(ctl);
    return dt_ctl_call(ctl, "EndJob", &request, &dtorch__v1__job_detail__descriptor, ret_code);
}

int dt_ctl_job_cancel(dt_ctl_t *ctl)
{
    int code = DT_CTL_EXIT_OK;
    size_t count = ctl->cli.arg_count;
    const char *given = dt_ctl_option(ctl, DT_CTL_OPT_REASON);
    const char *reason = given && *given ? given : CANCELLED;
    const Dtorch__V1__JobDetail **details = dt_ctl_alloc(&ctl->pool, count + 1, sizeof *details);
    if (strlen(reason) > REASON_MAX_SIZE)
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "-m: at most %d bytes", REASON_MAX_SIZE);
    if (dt_ctl_has(ctl, DT_CTL_OPT_DRY_RUN))
        return cancel_dry(ctl);
    if (!dt_ctl_confirm(ctl, "End %zu job%s? All tensors are freed.", count, count == 1 ? "" : "s"))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_FAILED, "nothing was changed");
    for (size_t i = 0; i < count; i++) {
        details[i] = cancel_one(ctl, i, reason, &code);
        if (!details[i])
            return i > 0 ? DT_CTL_EXIT_PARTIAL : code;
        if (dt_ctl_is_people(ctl) && !dt_ctl_has(ctl, DT_CTL_OPT_QUIET))
            (void)fprintf(ctl->output.screen.file, "%s  cancelled\n",
                          dt_ctl_safe(&ctl->pool, ctl->cli.args[i]));
    }
    return dt_ctl_is_people(ctl)
               ? code
               : dt_ctl_print_list(ctl, &detail_list,
                                   (const ProtobufCMessage *const *)(const void *)details, count,
                                   NULL);
}

/* ---- tensors ---- */

static const dt_ctl_column_t tensor_columns[] = {
    {"id", "ID", "id", NULL, NULL, 0, 0},
    {"job", "JOB", "session", NULL, NULL, 0, 0},
    {"tensor", "TENSOR", "meta", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"size", "SIZE", "size_bytes", NULL, NULL, 0, 0},
    {"vdev", "VDEV", "vdev", NULL, NULL, 0, 0},
    {"whole", "WHOLE", "global", NULL, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"mesh", "MESH", "mesh", NULL, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"placements", "PLACEMENTS", "placements", NULL, NULL,
     DT_CTL_COLUMN_SPARSE | DT_CTL_COLUMN_SHRINK, 0},
    {"version", "VERSION", "version", NULL, NULL, 0, 0},
    {"state", "STATE", "state", NULL, NULL, DT_CTL_COLUMN_STATE, 0},
};

static const dt_ctl_list_t tensor_list = {
    .kind = "TensorList",
    .one = "tensor",
    .many = "tensors",
    .name_path = "id",
    .type = &dtorch__v1__tensor_info__descriptor,
    .columns = tensor_columns,
    .column_count = sizeof tensor_columns / sizeof tensor_columns[0],
};

int dt_ctl_tensor_list(dt_ctl_t *ctl)
{
    Dtorch__V1__ListTensorsRequest request = DTORCH__V1__LIST_TENSORS_REQUEST__INIT;
    size_t limit = ctl->output.limit;
    int code = dt_ctl_check_list(ctl, &tensor_list);
    if (code == DT_CTL_EXIT_OK && ctl->cli.arg_count > 0)
        code = dt_ctl_job_id(ctl, ctl->cli.args[0], &request.job);
    if (code != DT_CTL_EXIT_OK)
        return code;
    /* The largest come first; another order or a filter is worked out here, of as many as one
     * answer holds. */
    if (ctl->output.filter || ctl->output.sort)
        request.limit = TENSORS_MAX;
    else
        request.limit = (uint32_t)(limit < TENSORS_MAX ? limit : TENSORS_MAX);
    const Dtorch__V1__TensorList *list =
        dt_ctl_call(ctl, "ListTensors", &request, &dtorch__v1__tensor_list__descriptor, &code);
    if (!list)
        return code;
    code = dt_ctl_print_list(ctl, &tensor_list,
                             (const ProtobufCMessage *const *)(const void *)list->tensors,
                             list->n_tensors, &list->base);
    if (list->more && (limit == 0 || ctl->output.filter || ctl->output.sort))
        dt_ctl_note(ctl, "there are more; the largest are shown (-n, at most %d)", TENSORS_MAX);
    for (size_t i = 0; i < list->n_unanswered; i++)
        dt_ctl_say(ctl, "node %s did not answer in time; its tensors are missing",
                   list->unanswered[i]);
    return code == DT_CTL_EXIT_OK && list->n_unanswered > 0 ? DT_CTL_EXIT_PARTIAL : code;
}
