#include "top.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

#define LINES_FIXED                                                                                \
    9 /* header, two of keys, whose operators, blank lines, headings, footers, the cursor's */
#define KEYS_COLUMNS 80 /* from there on keys have words */
#define LINES_MIN    4  /* jobs at least, and devices at least */
#define DEVICES_SORT "-load,-mem_used,id"

/* ---- looks ---- */

void dt_ctl_top_forget(dt_ctl_top_look_t *look)
{
    free(look->jobs);
    *look = (dt_ctl_top_look_t){0};
}

void dt_ctl_top_remember(dt_ctl_top_look_t *look, const dt_ctl_top_t *top, int64_t now_ns)
{
    dt_ctl_top_forget(look);
    look->jobs = calloc(top->job_count + 1, sizeof *look->jobs);
    if (!look->jobs)
        return;
    look->at_ns = now_ns;
    look->count = top->job_count;
    for (size_t i = 0; i < top->job_count; i++)
        look->jobs[i] = (dt_ctl_top_seen_t){top->jobs[i]->job->id, top->jobs[i]->job->bytes};
}

static int compare_seen(const void *left, const void *right)
{
    const dt_ctl_top_seen_t *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

/* Jobs come by id, so looks are sorted. */
static const dt_ctl_top_seen_t *find_seen(const dt_ctl_top_look_t *look, uint64_t id)
{
    const dt_ctl_top_seen_t key = {.id = id};
    if (look->count == 0)
        return NULL;
    return bsearch(&key, look->jobs, look->count, sizeof *look->jobs, compare_seen);
}

/* ---- rows ---- */

static uint64_t stream_rate(const Dtorch__V1__Job *job, const dt_ctl_top_look_t *before,
                            int64_t now_ns)
{
    const dt_ctl_top_seen_t *seen = find_seen(before, job->id);
    if (!seen || job->bytes <= seen->bytes || now_ns <= before->at_ns)
        return 0;
    double seconds = (double)(now_ns - before->at_ns) / 1e9;
    return (uint64_t)((double)(job->bytes - seen->bytes) / seconds + 0.5);
}

static Dtorch__V1__TopRates *rates_of(dt_arena_t *pool, const Dtorch__V1__Job *job,
                                      const dt_ctl_top_look_t *before, int64_t now_ns)
{
    if (job->operators_per_second < 0 || job->device_percent < 0)
        return NULL;
    Dtorch__V1__TopRates *rates = dt_ctl_alloc(pool, 1, sizeof *rates);
    dtorch__v1__top_rates__init(rates);
    rates->operators_per_second = (uint64_t)job->operators_per_second;
    rates->device_percent = (uint64_t)job->device_percent;
    rates->bytes_per_second = stream_rate(job, before, now_ns);
    return rates;
}

static bool is_bound(const Dtorch__V1__Job *job, const Dtorch__V1__NodeDevice *device)
{
    for (size_t i = 0; device->device && i < job->n_bindings; i++)
        if (job->bindings[i]->device == device->device->index &&
            strcmp(job->bindings[i]->node, device->node) == 0)
            return true;
    return false;
}

static Dtorch__V1__TopDevice *device_row(dt_arena_t *pool, const dt_ctl_jobs_t *jobs,
                                         Dtorch__V1__NodeDevice *device)
{
    Dtorch__V1__TopDevice *row = dt_ctl_alloc(pool, 1, sizeof *row);
    dtorch__v1__top_device__init(row);
    row->device = device;
    row->jobs = dt_ctl_alloc(pool, jobs->count + 1, sizeof *row->jobs);
    for (size_t i = 0; i < jobs->count; i++)
        if (is_bound(jobs->items[i], device))
            row->jobs[row->n_jobs++] = jobs->items[i]->id;
    return row;
}

static void make_devices(dt_arena_t *pool, const dt_ctl_jobs_t *jobs, const dt_ctl_nodes_t *nodes,
                         dt_ctl_top_t *top)
{
    size_t total = 0;
    for (size_t i = 0; i < nodes->count; i++)
        total += nodes->items[i]->n_devices;
    top->devices = dt_ctl_alloc(pool, total + 1, sizeof *top->devices);
    for (size_t i = 0; i < nodes->count; i++)
        for (size_t j = 0; j < nodes->items[i]->n_devices; j++)
            top->devices[top->device_count++] = device_row(pool, jobs, nodes->items[i]->devices[j]);
}

void dt_ctl_top_make(dt_arena_t *pool, const dt_ctl_jobs_t *jobs, const dt_ctl_nodes_t *nodes,
                     const dt_ctl_top_look_t *before, int64_t now_ns, dt_ctl_top_t *ret_top)
{
    *ret_top = (dt_ctl_top_t){.nodes = nodes};
    ret_top->jobs = dt_ctl_alloc(pool, jobs->count + 1, sizeof *ret_top->jobs);
    for (size_t i = 0; i < jobs->count; i++) {
        Dtorch__V1__TopJob *row = dt_ctl_alloc(pool, 1, sizeof *row);
        dtorch__v1__top_job__init(row);
        row->job = jobs->items[i];
        row->rates = rates_of(pool, row->job, before, now_ns);
        ret_top->jobs[ret_top->job_count++] = row;
        ret_top->operators_per_second += row->rates ? row->rates->operators_per_second : 0;
        ret_top->queued_bytes += row->job->queued_bytes;
        ret_top->memory_bytes += row->job->memory_bytes;
    }
    make_devices(pool, jobs, nodes, ret_top);
}

/* ---- columns ---- */

static const Dtorch__V1__TopJob *job_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__TopJob *)(const void *)view->items[0];
}

static const char *show_rate(const dt_ctl_view_t *view)
{
    const Dtorch__V1__TopRates *rates = job_of(view)->rates;
    return rates ? dt_ctl_count(view->pool, rates->operators_per_second) : "-";
}

static dt_ctl_value_t job_devices(const dt_ctl_view_t *view)
{
    return dt_ctl_uint(job_of(view)->job->n_bindings, DT_CTL_PLAIN);
}

static dt_ctl_value_t job_step(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Job *job = job_of(view)->job;
    return job->steps ? dt_ctl_uint(job->step, DT_CTL_PLAIN) : dt_ctl_absent();
}

static dt_ctl_value_t job_errors(const dt_ctl_view_t *view)
{
    uint64_t errors = job_of(view)->job->errors;
    return errors ? dt_ctl_uint(errors, DT_CTL_PLAIN) : dt_ctl_absent();
}

static const dt_ctl_column_t job_columns[] = {
    {"id", "ID", "job.id", NULL, NULL, 0, 0},
    {"program", "PROGRAM", "job.program", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"state", "STATE", "job.state", NULL, NULL, DT_CTL_COLUMN_STATE, 0},
    {"devices", "DEV", NULL, job_devices, NULL, 0, 0},
    {"rate", "OPS/S", "rates.operators_per_second", NULL, show_rate, 0, 0},
    {"time", "TIME", "rates.device_percent", NULL, NULL, 0, 0},
    {"stream", "STREAM/S", "rates.bytes_per_second", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"queued", "QUEUED", "job.queued_bytes", NULL, NULL, 0, 0},
    {"memory", "MEMORY", "job.memory_bytes", NULL, NULL, 0, 0},
    {"tensors", "TENSORS", "job.tensors", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"step", "STEP", NULL, job_step, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"errors", "ERRORS", NULL, job_errors, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"age", "AGE", "job.age_ms", NULL, NULL, 0, 0},
};

const dt_ctl_list_t dt_ctl_top_jobs = {
    .kind = "Top",
    .one = "job",
    .many = "jobs",
    .name_path = "job.id",
    .type = &dtorch__v1__top_job__descriptor,
    .columns = job_columns,
    .column_count = sizeof job_columns / sizeof job_columns[0],
};

static const Dtorch__V1__TopDevice *device_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__TopDevice *)(const void *)view->items[0];
}

/* What the columns of devices are worked out with. */
struct devices {
    const dt_ctl_nodes_t *nodes;
    size_t bar_columns;
};

static const char *bar_of(const dt_ctl_view_t *view, uint64_t part, uint64_t total)
{
    const struct devices *shown = view->context;
    if (shown->bar_columns == 0)
        return "";
    return dt_ctl_print(view->pool, "%s ", dt_ctl_bar(view->pool, part, total, shown->bar_columns));
}

static dt_ctl_value_t device_state(const dt_ctl_view_t *view)
{
    const Dtorch__V1__NodeDevice *device = device_of(view)->device;
    const struct devices *shown = view->context;
    return dt_ctl_text(
        dt_ctl_device_state(view->pool, dt_ctl_nodes_find(shown->nodes, device->node), device));
}

static const char *show_load(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Device *device = device_of(view)->device->device;
    if (!device)
        return "-";
    return dt_ctl_print(view->pool, "%s%3u%%", bar_of(view, device->utilization_percent, 100),
                        device->utilization_percent);
}

static const char *show_memory(const dt_ctl_view_t *view)
{
    const Dtorch__V1__Device *device = device_of(view)->device->device;
    if (!device || device->memory_bytes == 0)
        return "-";
    return dt_ctl_print(
        view->pool, "%s%12s", bar_of(view, device->memory_used_bytes, device->memory_bytes),
        dt_ctl_memory(view->pool, view->style, device->memory_used_bytes, device->memory_bytes));
}

static const dt_ctl_column_t device_columns[] = {
    {"id", "DEVICE", "device.id", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"state", "STATE", NULL, device_state, NULL, DT_CTL_COLUMN_STATE, 0},
    {"load", "LOAD", "device.device.utilization_percent", NULL, show_load, 0, 0},
    {"mem_used", "MEMORY", "device.device.memory_used_bytes", NULL, show_memory, 0, 0},
    {"jobs", "JOBS", "jobs", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
};

const dt_ctl_list_t dt_ctl_top_devices = {
    .kind = "TopDevices",
    .one = "device",
    .many = "devices",
    .name_path = "device.id",
    .type = &dtorch__v1__top_device__descriptor,
    .columns = device_columns,
    .column_count = sizeof device_columns / sizeof device_columns[0],
};

/* ---- drawing ---- */

const dt_ctl_top_key_t dt_ctl_top_keys[] = {
    {'o', "ops", "-rate,id", "rate,id"},
    {'t', "time", "-time,id", "time,id"},
    {'m', "memory", "-memory,id", "memory,id"},
    {'b', "queued", "-queued,id", "queued,id"},
    {'e', "errors", "-job.errors,id", "job.errors,id"},
    {'a', "age", "-age,id", "age,id"},
    {'n', "id", "id", "-id"},
};
const size_t dt_ctl_top_key_count = sizeof dt_ctl_top_keys / sizeof dt_ctl_top_keys[0];

/* A line of keys, the one that sorts in brackets; on a narrow terminal without their words. */
static const char *keys_line(dt_arena_t *pool, const dt_ctl_top_view_t *view, bool with_words)
{
    const char *line = "sort:";
    for (size_t i = 0; i < dt_ctl_top_key_count; i++) {
        const dt_ctl_top_key_t *key = &dt_ctl_top_keys[i];
        bool is_sorted = view->sorted == i;
        line = dt_ctl_print(pool, "%s%s%c%s%s%s", line,
                            is_sorted    ? " ["
                            : with_words ? "  "
                                         : " ",
                            key->key, with_words ? " " : "", with_words ? key->word : "",
                            is_sorted ? "]" : "");
    }
    if (!with_words)
        return dt_ctl_print(pool, "%s  r d TAB SPACE q", line);
    return dt_ctl_print(pool, "%s  r turn\nTAB a job's operators  d devices  SPACE %s  q quit",
                        line, view->is_paused ? "go on" : "pause");
}

static void draw_header(dt_ctl_t *ctl, const dt_ctl_top_t *top, const dt_ctl_top_view_t *view)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_screen_t *screen = &ctl->output.screen;
    const dt_ctl_style_t *style = &ctl->output.style;
    const char *line = dt_ctl_print(
        pool, "%s  %zu job%s  %zu device%s  %s operators/s  %s held  %s queued%s",
        dt_ctl_time(pool, style->now_wall_ms, style->now_wall_ms, style->is_utc), top->job_count,
        top->job_count == 1 ? "" : "s", top->device_count, top->device_count == 1 ? "" : "s",
        dt_ctl_count(pool, top->operators_per_second), dt_ctl_size(pool, style, top->memory_bytes),
        dt_ctl_size(pool, style, top->queued_bytes), view->is_paused ? "  paused" : "");
    (void)fprintf(screen->file, "%s\n",
                  screen->columns > 0 ? dt_ctl_ellipsis(pool, line, screen->columns) : line);
    if (!view->with_keys)
        return;
    bool fits = screen->columns == 0 || screen->columns >= KEYS_COLUMNS;
    (void)fprintf(screen->file, "%s\n", keys_line(pool, view, fits));
}

/* Print one of the tables with its own order and limit. */
static int draw_table(dt_ctl_t *ctl, const dt_ctl_list_t *list, const void *rows, size_t count,
                      const char *sort, size_t limit, const void *context)
{
    dt_ctl_output_t kept = ctl->output;
    ctl->output.sort = sort;
    ctl->output.limit = limit;
    ctl->output.context = context;
    if (list == &dt_ctl_top_devices)
        ctl->output.fields = ctl->output.filter = NULL; /* they are meant for jobs */
    int code = dt_ctl_print_list(ctl, list, rows, count, NULL);
    ctl->output = kept;
    return code;
}

static int draw_operators(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail, size_t limit)
{
    dt_ctl_output_t kept = ctl->output;
    ctl->output.fields = ctl->output.filter = NULL; /* they are meant for jobs */
    ctl->output.sort = "-time,name";
    ctl->output.limit = limit;
    (void)fprintf(ctl->output.screen.file, "Operators of job %" PRIu64 ", %s, since it began:\n",
                  detail->job->id, dt_ctl_safe(&ctl->pool, detail->job->program));
    int code = dt_ctl_print_operators(ctl, detail);
    ctl->output = kept;
    return code;
}

static size_t min_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t max_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t bar_columns(const dt_ctl_screen_t *screen)
{
    if (screen->columns == 0 || (screen->columns >= 72 && screen->columns < 110))
        return 10;
    return screen->columns >= 110 ? 20 : screen->columns >= 58 ? 4 : 0;
}

int dt_ctl_top_draw(dt_ctl_t *ctl, const dt_ctl_top_t *top, const dt_ctl_top_view_t *view)
{
    const struct devices shown = {top->nodes, bar_columns(&ctl->output.screen)};
    size_t upper_limit = 0, job_limit = ctl->output.limit;
    size_t upper = view->detail         ? view->detail->n_operators
                   : view->with_devices ? top->device_count
                                        : 0;
    int code = DT_CTL_EXIT_OK;
    if (view->lines > 0) {
        size_t left = view->lines > LINES_FIXED + LINES_MIN ? view->lines - LINES_FIXED : LINES_MIN;
        upper_limit = max_of(left / 2, left > top->job_count ? left - top->job_count : 0);
        size_t used = min_of(upper_limit, upper);
        size_t room = max_of(left > used ? left - used : 0, 1);
        job_limit = job_limit > 0 ? min_of(job_limit, room) : room;
    }
    draw_header(ctl, top, view);
    if (upper > 0) {
        (void)fputc('\n', ctl->output.screen.file);
        if (view->detail)
            code = draw_operators(ctl, view->detail, upper_limit);
        else
            code = draw_table(ctl, &dt_ctl_top_devices, top->devices, top->device_count,
                              DEVICES_SORT, upper_limit, &shown);
    }
    (void)fputc('\n', ctl->output.screen.file);
    if (code == DT_CTL_EXIT_OK)
        code = draw_table(ctl, &dt_ctl_top_jobs, top->jobs, top->job_count, ctl->output.sort,
                          job_limit, NULL);
    return code;
}
