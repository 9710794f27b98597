/* The one expression language of --filter: terms with spaces between, all of which must hold.
 *     state=ready|degraded  devices>=8  name=gpu0*  labels.zone!=""  memory_bytes>64GiB
 * A term is KEY OP VALUE without spaces; a value with spaces stands in "double quotes".
 *     =  !=          equal to one of VALUE|VALUE…; texts may hold * and ?
 *     ~  !~          contains
 *     <  <=  >  >=   numbers; with units where the field has one (8GiB, 500ms, 10m for a time)
 * A missing value equals the empty text, and no order holds for it.
 * Limits: DT_CTL_TERM_MAX terms. It knows no fields: the caller looks keys up. */
#ifndef DT_CTL_FILTER_H
#define DT_CTL_FILTER_H
#include "value.h"

#define DT_CTL_TERM_MAX 32

typedef enum dt_ctl_op {
    DT_CTL_EQUAL,
    DT_CTL_UNEQUAL,
    DT_CTL_CONTAINS,
    DT_CTL_LACKS,
    DT_CTL_LESS,
    DT_CTL_AT_MOST,
    DT_CTL_MORE,
    DT_CTL_AT_LEAST,
} dt_ctl_op_t;

typedef struct dt_ctl_term {
    const char *key;
    dt_ctl_op_t op;
    const char *value; /* with its | inside */
} dt_ctl_term_t;

typedef struct dt_ctl_filter {
    dt_ctl_term_t terms[DT_CTL_TERM_MAX];
    size_t count;
} dt_ctl_filter_t;

/* Read an expression; NULL and "" give one without terms.
 * Ownership: borrows; texts live in `pool`. Errors: INVALID, LIMIT. */
DT_MUST_USE dt_status_t dt_ctl_filter_parse(dt_arena_t *pool, const char *text,
                                            dt_ctl_filter_t *ret_filter, dt_error_t *err);

/* Whether a term holds for a value. Errors: INVALID (the term's value does not fit the field). */
DT_MUST_USE dt_status_t dt_ctl_term_holds(dt_arena_t *pool, const dt_ctl_term_t *term,
                                          const dt_ctl_value_t *value, int64_t now_wall_ms,
                                          bool *ret_holds, dt_error_t *err);

#endif
