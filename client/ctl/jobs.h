/* Jobs as the verbs of several nouns need them: asked for page by page, and in words. */
#ifndef DT_CTL_JOBS_H
#define DT_CTL_JOBS_H
#include "ctl.h"
#include "dtorch/v1/admin.pb-c.h"

typedef struct dt_ctl_jobs {
    Dtorch__V1__Job **items; /* by id; in ctl->pool */
    size_t count;
} dt_ctl_jobs_t;

/* Read a job's number. Gives the exit code. */
int dt_ctl_job_id(dt_ctl_t *ctl, const char *text, uint64_t *ret_id);

/* Ask for all jobs. Gives the exit code. */
int dt_ctl_fetch_jobs(dt_ctl_t *ctl, dt_ctl_jobs_t *ret_jobs);

/* "program not connected, ends in 9 min", or "". */
const char *dt_ctl_job_why(dt_arena_t *pool, const Dtorch__V1__Job *job);

extern const dt_ctl_list_t dt_ctl_job_list_type;

#endif
