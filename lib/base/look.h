/* Whether it pays to look for an answer for a moment instead of sleeping until one is woken.
 *
 * A wake-up of another processor takes longer than most short answers do. Who has asked for
 * something may therefore look for it, a bounded time, giving the processor to others between; it
 * does so as long as that finds answers, and not for a while when it does not: four looks that paid
 * stand for one in vain, and after a rest it is tried anew. Zeroed memory is a start. Does not:
 * look, sleep, or know how long. */
#ifndef DT_BASE_LOOK_H
#define DT_BASE_LOOK_H
#include <stdbool.h>
#include <stdint.h>

#define DT_LOOK_MISS 4   /* what a look in vain counts against one that paid */
#define DT_LOOK_MOST 16  /* what lies in store of those that paid */
#define DT_LOOK_REST 256 /* times without a look, when nothing is left of it */
#define DT_LOOK_ANEW 12  /* what lies in store after a rest: one that missed says little */

typedef struct dt_look {
    int32_t store; /* below 0: how much is left of a rest */
} dt_look_t;

/* Whether to look this time. Counts the rest down. */
bool dt_look_begin(dt_look_t *look);
/* Say how it went, at most once for each dt_look_begin() that was true: not of a look that was
 * broken off. */
void dt_look_end(dt_look_t *look, bool has_paid);

#endif
