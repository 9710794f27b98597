/* Two layers of a network on a mesh of two virtual devices, as tensor parallelism cuts them: the
 * first weight by columns, the second by rows. One program, global shapes; where the parts lie is
 * said once, and the sum over the devices happens by itself when the result is read.
 *
 *     cc mesh.c $(pkg-config --cflags --libs libdtorch) && ./a.out [ADDRESS]
 *
 * Without an address that of client.conf(5) or $DTORCH_ADDRESS is used; without one there a private
 * cluster of child processes is started. */
#include <dtorch/dtorch.h>
#include <stdio.h>

enum { BATCH = 3, WIDTH = 4, HIDDEN = 6 };

static int fail(const char *what, const dt_failure_t *failure)
{
    fprintf(stderr, "mesh: %s: %s (%s)\n", what, failure->error.text,
            dt_status_name(failure->error.code));
    return 1;
}

static float value_of(int i)
{
    return (float)(i % 7) - 2;
}

/* What the program computes, on the host. */
static float expected(int row, int column)
{
    float y = 0;
    for (int h = 0; h < HIDDEN; h++) {
        float sum = 0;
        for (int k = 0; k < WIDTH; k++)
            sum += value_of(row * WIDTH + k) * value_of(k * HIDDEN + h);
        y += (sum > 0 ? sum : 0) * value_of(h * WIDTH + column);
    }
    return y;
}

static dt_status_t put(dt_session_t *session, const dt_mesh_t *mesh, dt_placement_t placement,
                       int64_t rows, int64_t columns, dt_tensor_t **ret_tensor, dt_error_t *err)
{
    static float data[WIDTH * HIDDEN];
    const int64_t sizes[] = {rows, columns};
    dt_upload_t upload = {.struct_size = sizeof upload,
                          .dtype = DT_DTYPE_F32,
                          .ndim = 2,
                          .sizes = sizes,
                          .data = data,
                          .mesh = mesh,
                          .placements = &placement};
    for (int i = 0; i < rows * columns; i++)
        data[i] = value_of(i);
    return dt_tensor_upload(session, &upload, ret_tensor, err);
}

static dt_status_t call(dt_session_t *session, const char *name, dt_tensor_t *a, dt_tensor_t *b,
                        dt_tensor_t **ret_tensor, dt_failure_t *failure)
{
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_tensor(b)};
    return dt_call(session, name, args, b ? 2 : 1, ret_tensor, 1, NULL, failure);
}

int main(int argc, char **argv)
{
    static dt_failure_t failure; /* large: not on the stack */
    const uint32_t devices = 2;
    const dt_placement_t whole = {.kind = DT_PLACEMENT_REPLICATE};
    const dt_placement_t by_rows = {.kind = DT_PLACEMENT_SHARD, .dim = 0};
    const dt_placement_t by_columns = {.kind = DT_PLACEMENT_SHARD, .dim = 1};
    float y[BATCH * WIDTH];
    int wrong = 0;
    dt_tensor_t *x = NULL, *w1 = NULL, *w2 = NULL, *h = NULL, *r = NULL, *out = NULL;
    dt_mesh_t *mesh = NULL;
    dt_session_t *session = NULL;
    dt_connect_options_t options = {
        .struct_size = sizeof options, .address = argc > 1 ? argv[1] : NULL, .vdev_count = devices};

    if (dt_connect(&options, &session, &failure.error) != DT_OK)
        return fail("connect", &failure);
    if (dt_mesh_create(session, 1, &devices, NULL, NULL, &mesh, &failure.error) != DT_OK)
        return fail("mesh", &failure);
    if (put(session, mesh, whole, BATCH, WIDTH, &x, &failure.error) != DT_OK ||
        put(session, mesh, by_columns, WIDTH, HIDDEN, &w1, &failure.error) != DT_OK ||
        put(session, mesh, by_rows, HIDDEN, WIDTH, &w2, &failure.error) != DT_OK)
        return fail("upload", &failure);

    if (call(session, "aten::mm", x, w1, &h, &failure) != DT_OK || /* cut by columns */
        call(session, "aten::relu", h, NULL, &r, &failure) != DT_OK ||
        call(session, "aten::mm", r, w2, &out, &failure) != DT_OK) /* a sum over the devices */
        return fail("compute", &failure);
    if (dt_tensor_read(out, y, sizeof y, &failure) != DT_OK)
        return fail("read", &failure);
    for (int i = 0; i < BATCH * WIDTH; i++) {
        printf("%g%c", (double)y[i], i % WIDTH == WIDTH - 1 ? '\n' : ' ');
        wrong += y[i] != expected(i / WIDTH, i % WIDTH);
    }

    dt_tensor_free(x);
    dt_tensor_free(w1);
    dt_tensor_free(w2);
    dt_tensor_free(h);
    dt_tensor_free(r);
    dt_tensor_free(out);
    dt_mesh_free(mesh);
    if (dt_disconnect(session, -1, &failure) != DT_OK)
        return fail("disconnect", &failure);
    return wrong ? 1 : 0;
}
