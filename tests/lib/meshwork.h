/* A little work on a mesh of four devices, the same on every cluster: moves from cut to cut, whose
 * bits must not change, and a product whose parts are summed, whose bits are given back.
 * Errors: they end the test. */
#ifndef DT_TESTS_LIB_MESHWORK_H
#define DT_TESTS_LIB_MESHWORK_H
#include "lib/clienttest.h"

#define DT_MESHWORK_ROWS    37
#define DT_MESHWORK_COLUMNS 4001
#define DT_MESHWORK_COUNT   (DT_MESHWORK_ROWS * DT_MESHWORK_COLUMNS)
#define DT_MESHWORK_SUMS    (DT_MESHWORK_ROWS * DT_MESHWORK_ROWS)

/* A matrix (DT_MESHWORK_ROWS, DT_MESHWORK_COLUMNS), cut along `dim`. Gives. */
dt_tensor_t *dt_meshwork_put(dt_session_t *session, dt_mesh_t *mesh, const float *data,
                             uint8_t dim);
/* Move it; whole if `dim` is -1. Gives. */
dt_tensor_t *dt_meshwork_move(dt_tensor_t *tensor, dt_mesh_t *mesh, int dim);
/* All of it. `ret_sums` has DT_MESHWORK_SUMS numbers. */
void dt_meshwork_run(dt_session_t *session, dt_testcluster_t *tc, float *ret_sums);

#endif
