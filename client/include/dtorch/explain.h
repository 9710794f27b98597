/* Seeing what operators become: beside dtorch.h, for tools and front ends.
 *
 * Between dt_explain_begin() and dt_explain_end() each record that the session puts into its stream
 * is noted: operators, and the redistributions that were put before or behind them. Nothing is
 * noted otherwise, and that costs nothing.
 *
 * As in dtorch.h: threads any, parameters borrowed, `ret_` set on success only. Blocking: never. */
#ifndef DT_DTORCH_EXPLAIN_H
#define DT_DTORCH_EXPLAIN_H
#include "dtorch/dtorch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begin to note. Errors: EXISTS (it was begun). */
DT_API dt_status_t dt_explain_begin(dt_session_t *session, dt_error_t *err);

/* End, and give what was noted as JSON:
 *   {"records":[{"signature":0,"line":"a.c:3","group":1},...],   in the stream's order; records of
 *                                        one group belong to one call, 0: to none
 *    "signatures":[{"operator":"aten::mm","rule":...,"inputs":...,"outputs":...,"algorithm":...,
 *                   "is_move":false,"bytes":64,"planned_ns":0,"mesh":[2,2]},...],
 *    "dropped":0}                        records for which there was no room
 * `bytes` are those that the busiest device receives by a move, else those of all tensors.
 * Ownership: gives *ret_json, dt_explain_free(). Errors: NOT_FOUND (it was not begun), LIMIT (more
 * than 64 MiB). */
DT_API dt_status_t dt_explain_end(dt_session_t *session, char **ret_json, dt_error_t *err);
DT_API void dt_explain_free(char *json); /* NULL is fine */

/* A redistribution that moved more than MoveWarning= (client.conf(5)) of a step's bytes. */
typedef struct dt_heavy_move {
    size_t struct_size;  /* sizeof(dt_heavy_move_t), set by the caller */
    uint64_t bytes;      /* that the busiest device received */
    uint64_t step_bytes; /* of all tensors that the step's operators took and gave */
    char line[1024];     /* of the program, "" if it is not known */
    char what[1600];     /* "float32 (8, 4) [Shard(0)] to [Replicate()]: all-gather" */
} dt_heavy_move_t;

/* End a step: was one redistribution of it heavy? Each is told once. What moved less than 1 MiB is
 * not. *ret_is_heavy says whether *ret_move was filled. */
DT_API dt_status_t dt_heavy_move(dt_session_t *session, dt_heavy_move_t *ret_move,
                                 bool *ret_is_heavy, dt_error_t *err);

#ifdef __cplusplus
}
#endif
#endif
