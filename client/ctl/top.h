/* What `top` shows: jobs with their rates, devices with who is on them. Rates of operators and of
 * device time are the controller's; that of the stream is between two looks. Threads: one. Never
 * asks anybody: messages in, text out. */
#ifndef DT_CTL_TOP_H
#define DT_CTL_TOP_H
#include "dtorch/v1/tool.pb-c.h"
#include "jobs.h"
#include "nodes.h"

/* One job when it was looked at. */
typedef struct dt_ctl_top_seen {
    uint64_t id;
    uint64_t bytes; /* of its stream */
} dt_ctl_top_seen_t;

typedef struct dt_ctl_top_look {
    int64_t at_ns; /* monotonic; 0: there was none */
    dt_ctl_top_seen_t *jobs;
    size_t count;
} dt_ctl_top_look_t;

void dt_ctl_top_forget(dt_ctl_top_look_t *look);

typedef struct dt_ctl_top {
    const dt_ctl_nodes_t *nodes;
    Dtorch__V1__TopJob **jobs;
    size_t job_count;
    Dtorch__V1__TopDevice **devices;
    size_t device_count;
    uint64_t operators_per_second, queued_bytes, memory_bytes; /* of all jobs */
} dt_ctl_top_t;

/* Work the rows out, in `pool`, which must hold the messages too. */
void dt_ctl_top_make(dt_arena_t *pool, const dt_ctl_jobs_t *jobs, const dt_ctl_nodes_t *nodes,
                     const dt_ctl_top_look_t *before, int64_t now_ns, dt_ctl_top_t *ret_top);
/* Remember what there was at `now_ns`. The old content is freed. A failed allocation gives an empty
 * look. */
void dt_ctl_top_remember(dt_ctl_top_look_t *look, const dt_ctl_top_t *top, int64_t now_ns);

extern const dt_ctl_list_t dt_ctl_top_jobs;
extern const dt_ctl_list_t dt_ctl_top_devices; /* context: of dt_ctl_top_draw() */

/* Keys that sort. */
typedef struct dt_ctl_top_key {
    char key;
    const char *word, *sort, *turned;
} dt_ctl_top_key_t;
extern const dt_ctl_top_key_t dt_ctl_top_keys[];
extern const size_t dt_ctl_top_key_count;

/* What a person wants to see. */
typedef struct dt_ctl_top_view {
    size_t lines;  /* of the terminal; 0: no limit */
    size_t sorted; /* by that key; their count: by none of them */
    bool with_devices, with_keys, is_paused;
    const Dtorch__V1__JobDetail *detail; /* this job's operators in place of the devices, or NULL */
} dt_ctl_top_view_t;

/* Draw both tables for people. Gives the exit code. */
int dt_ctl_top_draw(dt_ctl_t *ctl, const dt_ctl_top_t *top, const dt_ctl_top_view_t *view);

#endif
