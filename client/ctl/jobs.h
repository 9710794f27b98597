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

/* Ask for one. NULL after the error was told. It lives in ctl->pool. */
const Dtorch__V1__JobDetail *dt_ctl_fetch_job(dt_ctl_t *ctl, uint64_t id, int *ret_code);

/* Print a job's operators as ctl->output says. Gives the exit code. */
int dt_ctl_print_operators(dt_ctl_t *ctl, const Dtorch__V1__JobDetail *detail);

/* "program not connected, ends in 9 min", or "". */
const char *dt_ctl_job_why(dt_arena_t *pool, const Dtorch__V1__Job *job);

extern const dt_ctl_list_t dt_ctl_job_list_type;

#endif
