#include "trace.h"

#include <string.h>
#include <time.h>

#include "base/strings.h"
#include "jobs.h"

#define POLL_MS 100

int dt_ctl_trace_args(dt_ctl_t *ctl, uint64_t *ret_job, uint32_t *ret_duration_ms)
{
    int64_t seconds = 1;
    int code = dt_ctl_job_id(ctl, ctl->cli.args[0], ret_job);
    if (code != DT_CTL_EXIT_OK)
        return code;
    if (ctl->cli.arg_count > 1 && (dt_str_to_i64(ctl->cli.args[1], &seconds) != DT_OK ||
                                   seconds < 1 || seconds > DT_CTL_TRACE_SECONDS_MAX))
        return dt_ctl_fail(ctl, DT_CTL_EXIT_USAGE, "\"%s\" is no number of seconds, 1 to %d",
                           ctl->cli.args[1], DT_CTL_TRACE_SECONDS_MAX);
    *ret_duration_ms = (uint32_t)seconds * 1000;
    return DT_CTL_EXIT_OK;
}

static void take_page(dt_ctl_t *ctl, dt_ctl_trace_t *trace, const Dtorch__V1__Timeline *page)
{
    if (trace->batch_count + page->n_batches > trace->batch_cap) {
        size_t cap = (trace->batch_count + page->n_batches) * 2 + 64;
        const Dtorch__V1__TimelineBatch **grown = dt_ctl_alloc(&ctl->pool, cap, sizeof *grown);
        if (trace->batch_count > 0)
            memcpy(grown, trace->batches, trace->batch_count * sizeof *grown);
        trace->batches = grown;
        trace->batch_cap = cap;
    }
    for (size_t i = 0; i < page->n_batches; i++)
        if (page->batches[i]->trace)
            trace->batches[trace->batch_count++] = page->batches[i];
    trace->job = page->job;
    trace->begun_ns = page->begun_ns;
    trace->dropped_batches = page->dropped;
}

static void wait_a_moment(void)
{
    const struct timespec moment = {.tv_nsec = POLL_MS * DT_CLOCK_MS_NS};
    (void)nanosleep(&moment, NULL);
}

/* Begin, and read until there is no more to come. */
int dt_ctl_trace_collect(dt_ctl_t *ctl, uint64_t job, uint32_t duration_ms,
                         dt_ctl_trace_t *ret_trace)
{
    Dtorch__V1__GetTimelineRequest request = DTORCH__V1__GET_TIMELINE_REQUEST__INIT;
    const Dtorch__V1__Timeline *page;
    int code;
    memset(ret_trace, 0, sizeof *ret_trace);
    request.job = job;
    request.begin_ms = duration_ms;
    for (;;) {
        page = dt_ctl_call(ctl, "GetTimeline", &request, &dtorch__v1__timeline__descriptor, &code);
        if (!page)
            return code;
        if (!page->job)
            return dt_ctl_fail(ctl, DT_CTL_EXIT_INTERNAL, "the controller's answer has no job");
        take_page(ctl, ret_trace, page);
        if (page->n_batches > 0)
            request.after = page->batches[page->n_batches - 1]->number;
        request.begin_ms = 0;
        if (page->more)
            continue;
        if (!page->running)
            return DT_CTL_EXIT_OK;
        wait_a_moment();
    }
}

uint64_t dt_ctl_trace_dropped(const dt_ctl_trace_t *trace)
{
    uint64_t dropped = 0;
    for (size_t i = 0; i < trace->batch_count; i++) {
        const Dtorch__V1__TimelineBatch *batch = trace->batches[i];
        bool is_last = true;
        for (size_t k = i + 1; k < trace->batch_count && is_last; k++)
            is_last = trace->batches[k]->trace->begun_ns != batch->trace->begun_ns ||
                      strcmp(trace->batches[k]->node, batch->node) != 0;
        dropped += is_last ? batch->trace->dropped : 0;
    }
    return dropped;
}
