#include "lib/meshwork.h"

#include <string.h>

#include "lib/testproc.h"

#define ROWS    DT_MESHWORK_ROWS
#define COLUMNS DT_MESHWORK_COLUMNS

static dt_placement_t cut(uint8_t dim)
{
    return (dt_placement_t){.kind = DT_PLACEMENT_SHARD, .dim = dim, .unit = 1, .groups = 1};
}

dt_tensor_t *dt_meshwork_put(dt_session_t *session, dt_mesh_t *mesh, const float *data, uint8_t dim)
{
    const int64_t sizes[] = {ROWS, COLUMNS};
    const dt_placement_t placement = cut(dim);
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = 2,
                          .sizes = sizes,
                          .data = data,
                          .mesh = mesh,
                          .placements = &placement};
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    if (dt_tensor_upload(session, &upload, &tensor, &err) != DT_OK)
        dt_test_die("%s", err.text);
    return tensor;
}

dt_tensor_t *dt_meshwork_move(dt_tensor_t *tensor, dt_mesh_t *mesh, int dim)
{
    const dt_placement_t placement =
        dim < 0 ? (dt_placement_t){.kind = DT_PLACEMENT_REPLICATE} : cut((uint8_t)dim);
    dt_tensor_t *moved = NULL;
    dt_error_t err;
    if (dt_redistribute(tensor, mesh, &placement, &moved, &err) != DT_OK)
        dt_test_die("%s", err.text);
    return moved;
}

static void read_all(dt_tensor_t *tensor, dt_testcluster_t *tc, float *ret_data, size_t count)
{
    static dt_failure_t failure;
    if (dt_tensor_read(tensor, ret_data, count * sizeof *ret_data, &failure) != DT_OK)
        dt_test_die("%s %s\n%s", failure.kind, failure.text, dt_testcluster_logs(tc));
}

void dt_meshwork_run(dt_session_t *session, dt_testcluster_t *tc, float *ret_sums)
{
    static float data[DT_MESHWORK_COUNT], is[DT_MESHWORK_COUNT];
    const uint32_t four = 4;
    dt_mesh_t *mesh;
    dt_error_t err;
    if (dt_mesh_create(session, 1, &four, NULL, NULL, &mesh, &err) != DT_OK)
        dt_test_die("%s", err.text);
    for (int i = 0; i < DT_MESHWORK_COUNT; i++)
        data[i] = (float)(i * 7919LL % 100003) * 0.37F - 100;
    dt_tensor_t *columns = dt_meshwork_put(session, mesh, data, 1);
    dt_tensor_t *rows = dt_meshwork_move(columns, mesh, 0);
    read_all(rows, tc, is, DT_MESHWORK_COUNT);
    if (memcmp(is, data, sizeof is) != 0)
        dt_test_die("a move changed bits");
    dt_tensor_t *turned =
        dt_clienttest_call(session, "aten::t", (dt_value_t[]){dt_arg_tensor(columns)}, 1);
    dt_tensor_t *product = dt_clienttest_call2(session, "aten::mm", columns, turned);
    dt_tensor_t *sum = dt_meshwork_move(product, mesh, -1);
    read_all(sum, tc, ret_sums, DT_MESHWORK_SUMS);
    dt_tensor_t *all[] = {columns, rows, turned, product, sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dt_tensor_free(all[i]);
    dt_mesh_free(mesh);
}
