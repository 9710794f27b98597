/* A job's trace, read from the controller: what job timeline draws and job explain-plan adds up. */
#ifndef DT_CTL_TRACE_H
#define DT_CTL_TRACE_H
#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"

#define DT_CTL_TRACE_SECONDS_MAX 60

typedef struct dt_ctl_trace {
    const Dtorch__V1__Job *job;
    int64_t begun_ns;
    uint64_t dropped_batches;
    const Dtorch__V1__TimelineBatch **batches; /* (batch_count) as they came; each has a `trace` */
    size_t batch_count, batch_cap;
} dt_ctl_trace_t;

/* Read JOB [SECONDS] of the command line; 1 second if it is not said. Gives the exit code. */
int dt_ctl_trace_args(dt_ctl_t *ctl, uint64_t *ret_job, uint32_t *ret_duration_ms);

/* Trace a job for so long. Ownership: all lies in ctl->pool. Blocking: that long and a second.
 * Gives the exit code. */
int dt_ctl_trace_collect(dt_ctl_t *ctl, uint64_t job, uint32_t duration_ms,
                         dt_ctl_trace_t *ret_trace);

/* Events that the nodes had no room for: what each engine dropped is in its last batch. */
uint64_t dt_ctl_trace_dropped(const dt_ctl_trace_t *trace);

#endif
