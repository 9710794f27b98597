/* What plans of engine_exec_move.c are to engine_exec_redistribute.c, which runs those that move
 * bytes between devices. */
#ifndef DT_WORKERD_ENGINE_EXEC_MOVE_H
#define DT_WORKERD_ENGINE_EXEC_MOVE_H
#include "engine_exec_internal.h"

/* One vdev of this engine that is on either mesh. */
typedef struct dt_exec_move_own {
    uint32_t vdev;
    uint32_t from_own, to_own; /* which of mesh->own; UINT32_MAX: it is not on that mesh */
    dt_meta_t from, to;        /* local; zeroed where it is not */
} dt_exec_move_own_t;

struct dt_exec_move {
    enum { MOVE_REDISTRIBUTE, MOVE_LOCAL, MOVE_ASSEMBLE } kind;
    dt_exec_mesh_t *from; /* of the input; ASSEMBLE: not looked at */
    dt_exec_mesh_t *to;   /* of the output */
    dt_exchange_plan_t *exchange;
    bool
        is_played; /* the device computes nothing, so there are no bytes: only who waits for whom */
    uint32_t own_count;
    dt_exec_move_own_t *owns;  /* (own_count) rising vdevs */
    struct dt_exec_run *spare; /* not in use, to be used again */
};

/* A cause of a move's failure, told; NULL: there is no memory, the session is broken. */
dt_exec_cause_t *dt_exec_move_cause(dt_exec_session_t *session, const dt_exec_plan_t *plan,
                                    uint64_t sequence, uint32_t vdev, const dt_error_t *err);
void dt_exec_move_count(dt_exec_session_t *session, const dt_exec_plan_t *plan, uint64_t bytes);

/* ---- engine_exec_redistribute.c ---- */

/* As dt_exec_perform(): put a redistribution into the queue, and begin it if nothing runs. */
bool dt_exec_redistribute(dt_exec_session_t *session, dt_exec_plan_t *plan);
void dt_exec_runs_free(struct dt_exec_move *move); /* none is in the queue */

#endif
