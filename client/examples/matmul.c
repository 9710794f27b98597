/* Multiply two matrices on a DTorch cluster.
 *
 *     cc matmul.c $(pkg-config --cflags --libs libdtorch) && ./a.out [ADDRESS]
 *
 * Without an address that of client.conf(5) or $DTORCH_ADDRESS is used; without one there a private
 * cluster of child processes is started. */
#include <dtorch/dtorch.h>
#include <stdio.h>

static int fail(const char *what, const dt_failure_t *failure)
{
    fprintf(stderr, "matmul: %s: %s (%s)\n", what, failure->error.text,
            dt_status_name(failure->error.code));
    return 1;
}

int main(int argc, char **argv)
{
    static dt_failure_t failure; /* large: not on the stack */
    const float a[] = {1, 2, 3, 4, 5, 6};
    const float b[] = {1, 0, 0, 1, 1, 1};
    const int64_t a_sizes[] = {2, 3};
    const int64_t b_sizes[] = {3, 2};
    float c[4];
    dt_tensor_t *ta = NULL, *tb = NULL, *tc = NULL;
    dt_session_t *session = NULL;
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = argc > 1 ? argv[1] : NULL};

    if (dt_connect(&options, &session, &failure.error) != DT_OK)
        return fail("connect", &failure);
    if (dt_tensor_from(session, DT_DTYPE_F32, 2, a_sizes, a, &ta, &failure.error) != DT_OK ||
        dt_tensor_from(session, DT_DTYPE_F32, 2, b_sizes, b, &tb, &failure.error) != DT_OK)
        return fail("upload", &failure);

    const dt_value_t args[] = {dt_arg_tensor(ta), dt_arg_tensor(tb)};
    if (dt_call(session, "aten::mm", args, 2, &tc, 1, NULL, &failure) != DT_OK)
        return fail("aten::mm", &failure);
    if (dt_tensor_read(tc, c, sizeof c, &failure) != DT_OK)
        return fail("read", &failure);
    printf("%g %g\n%g %g\n", (double)c[0], (double)c[1], (double)c[2], (double)c[3]);

    dt_tensor_free(ta);
    dt_tensor_free(tb);
    dt_tensor_free(tc);
    if (dt_disconnect(session, -1, &failure) != DT_OK)
        return fail("disconnect", &failure);
    return c[0] == 4 && c[1] == 5 && c[2] == 10 && c[3] == 11 ? 0 : 1;
}
