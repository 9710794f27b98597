/* What a signature does on its mesh, in words for people: the rule and its row, what its tensors
 * are and where they lie, and of a move the steps, the bytes and the price.
 *
 * A program explains what it calls, dtorchctl what a job runs, by the same lines. Nothing here is
 * asked while operators run.
 *
 * Threads: any. Blocking: never. Allocation: none but that of dt_shard_plan_choose(). */
#ifndef DT_SHARD_EXPLAIN_H
#define DT_SHARD_EXPLAIN_H
#include "base/buf.h"
#include "shard/redistribute.h"
#include "shard/rules.h"

#define DT_SHARD_EXPLAIN_TEXT 512u
#define DT_SHARD_EXPLAIN_MOVE "dtorch::redistribute"

/* The meshes of a session by number. NULL: there is none with it. */
typedef const dt_shard_mesh_t *dt_shard_mesh_fn(void *arg, uint32_t mesh);

typedef struct dt_shard_explained {
    bool is_move;
    uint32_t mesh; /* of the first tensor */
    /* "aten::mm(T, T) ik,kj->ij p=mm: i, whole": the line of ops.def without what people do not
     * read, and for each mesh dimension the label that is cut, "parts" where the operator's algebra
     * takes Partials or shapes, "whole" */
    char rule[DT_SHARD_EXPLAIN_TEXT];
    char inputs[DT_SHARD_EXPLAIN_TEXT]; /* "float32 (8, 4) [Shard(0)]; int64 (8,) [Replicate()]" */
    char outputs[DT_SHARD_EXPLAIN_TEXT];
    /* of a move: "reduce-scatter, all-gather"; "nothing moves" */
    char steps[DT_SHARD_EXPLAIN_TEXT];
    int64_t bytes;  /* move: that the busiest device receives; else of all tensors, whole */
    double cost_us; /* of a move, as it was priced when its steps were chosen */
} dt_shard_explained_t;

/* Explain a decoded signature.
 * Errors: INVALID (a layout on a mesh that `mesh_of` does not know or that does not fit), NOMEM. */
DT_MUST_USE dt_status_t dt_shard_explain(const dt_shard_rules_t *rules,
                                         const dt_signature_t *signature, dt_shard_mesh_fn *mesh_of,
                                         void *arg, dt_shard_explained_t *ret_explained,
                                         dt_error_t *err);

#endif
