/* dtorchctl report: what was used since the controller started, jobs that ended too. */
#include <string.h>

#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"
#include "text.h"

#define MIB_S_PER_GIB_H (1024.0 * 3600)

static const Dtorch__V1__Usage *usage_of(const dt_ctl_view_t *view)
{
    return (const Dtorch__V1__Usage *)(const void *)view->items[0];
}

static const char *show_operators(const dt_ctl_view_t *view)
{
    return dt_ctl_count(view->pool, usage_of(view)->operators);
}

static const char *show_memory(const dt_ctl_view_t *view)
{
    double hours = (double)usage_of(view)->memory_mib_s / MIB_S_PER_GIB_H;
    return dt_ctl_print(view->pool, hours < 10 ? "%.2f GiB h" : "%.0f GiB h", hours);
}

static dt_ctl_value_t running(const dt_ctl_view_t *view)
{
    uint64_t count = usage_of(view)->running;
    return count ? dt_ctl_uint(count, DT_CTL_PLAIN) : dt_ctl_absent();
}

static dt_ctl_value_t errors(const dt_ctl_view_t *view)
{
    uint64_t count = usage_of(view)->errors;
    return count ? dt_ctl_uint(count, DT_CTL_PLAIN) : dt_ctl_absent();
}

static const dt_ctl_column_t usage_columns[] = {
    {"program", "PROGRAM", "program", NULL, NULL, DT_CTL_COLUMN_SHRINK, 0},
    {"key", "KEY", "key", NULL, NULL, DT_CTL_COLUMN_SHRINK | DT_CTL_COLUMN_SPARSE, 0},
    {"jobs", "JOBS", "jobs", NULL, NULL, 0, 0},
    {"running", "RUNNING", NULL, running, NULL, DT_CTL_COLUMN_SPARSE, 0},
    {"operators", "OPERATORS", "operators", NULL, show_operators, 0, 0},
    {"time", "TIME", "device_ns", NULL, NULL, 0, 0},
    {"held", "HELD", "held_ms", NULL, NULL, 0, 0},
    {"memory", "MEMORY", "memory_mib_s", NULL, show_memory, 0, 0},
    {"stream", "STREAM", "bytes", NULL, NULL, DT_CTL_COLUMN_WIDE, 0},
    {"errors", "ERRORS", NULL, errors, NULL, DT_CTL_COLUMN_SPARSE, 0},
};

static const dt_ctl_list_t usage_list = {
    .kind = "UsageReport",
    .one = "program",
    .many = "programs",
    .name_path = "program",
    .type = &dtorch__v1__usage__descriptor,
    .columns = usage_columns,
    .column_count = sizeof usage_columns / sizeof usage_columns[0],
};

/* What all rows come to, in two lines above them. */
static void print_total(dt_ctl_t *ctl, const Dtorch__V1__UsageReport *report)
{
    dt_arena_t *pool = &ctl->pool;
    const dt_ctl_style_t *style = &ctl->output.style;
    uint64_t jobs = 0, operators = 0, device_ns = 0, held_ms = 0;
    for (size_t i = 0; i < report->n_rows; i++) {
        jobs += report->rows[i]->jobs;
        operators += report->rows[i]->operators;
        device_ns += report->rows[i]->device_ns;
        held_ms += report->rows[i]->held_ms;
    }
    (void)fprintf(ctl->output.screen.file,
                  "since %s (%s)\n"
                  "%s job%s  %s operators  %s of device time  %s of devices held\n",
                  dt_ctl_time(pool, report->since_wall_ms, style->now_wall_ms, style->is_utc),
                  dt_ctl_duration(pool, report->until_wall_ms - report->since_wall_ms),
                  dt_ctl_count(pool, jobs), jobs == 1 ? "" : "s", dt_ctl_count(pool, operators),
                  dt_ctl_duration_ns(pool, (int64_t)device_ns),
                  dt_ctl_duration(pool, (int64_t)held_ms));
}

int dt_ctl_report_usage(dt_ctl_t *ctl)
{
    Dtorch__V1__GetUsageRequest request = DTORCH__V1__GET_USAGE_REQUEST__INIT;
    int code = dt_ctl_check_list(ctl, &usage_list);
    if (code != DT_CTL_EXIT_OK)
        return code;
    const Dtorch__V1__UsageReport *report =
        dt_ctl_call(ctl, "GetUsage", &request, &dtorch__v1__usage_report__descriptor, &code);
    if (!report)
        return code;
    if (dt_ctl_is_people(ctl) && !dt_ctl_has(ctl, DT_CTL_OPT_NO_LEGEND))
        print_total(ctl, report);
    return dt_ctl_print_list(ctl, &usage_list,
                             (const ProtobufCMessage *const *)(const void *)report->rows,
                             report->n_rows, &report->base);
}
