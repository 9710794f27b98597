/* Lists of names in short: gpu[001-016,020] stands for 17 names, each as long as its numbers are
 * written. Limits: DT_CTL_HOST_MAX names. */
#ifndef DT_CTL_HOSTS_H
#define DT_CTL_HOSTS_H
#include <stdbool.h>

#include "pool.h"

#define DT_CTL_HOST_MAX 1000 /* names that one request may hold (admin.proto) */

typedef struct dt_ctl_hosts {
    char **names; /* DT_CTL_HOST_MAX places, in the pool */
    size_t count;
} dt_ctl_hosts_t;

/* Append what `text` stands for: names with commas between, ranges in brackets. A name that is
 * there already is not added again.
 * Errors: INVALID, LIMIT. */
DT_MUST_USE dt_status_t dt_ctl_hosts_add(dt_arena_t *pool, const char *text, dt_ctl_hosts_t *hosts,
                                         dt_error_t *err);

/* Whether `next` is `last` with its final number one higher, written with as many digits. */
bool dt_ctl_hosts_follow(const char *last, const char *next);

/* "gpu[001-016]" for the names from `first` to `last`. */
const char *dt_ctl_hosts_range(dt_arena_t *pool, const char *first, const char *last);

#endif
