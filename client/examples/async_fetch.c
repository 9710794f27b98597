/* Ask for values and go on: futures.
 *
 *     ./async_fetch [ADDRESS]
 *
 * A value is asked for after each of COUNT operators in place; all of them are on their way before
 * the first is looked at, and each is the value at its place in the program. */
#include <dtorch/dtorch.h>
#include <stdio.h>
#include <stdlib.h>

#define COUNT 100

static dt_failure_t failure;

static void die(const char *what)
{
    fprintf(stderr, "async_fetch: %s: %s\n", what, failure.error.text);
    exit(1);
}

int main(int argc, char **argv)
{
    static dt_future_t *futures[COUNT];
    const int64_t sizes[] = {3};
    const double start[] = {0, 10, 20};
    dt_session_t *session = NULL;
    dt_tensor_t *x = NULL, *same = NULL;
    int ready = 0, wrong = 0;
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address = argc > 1 ? argv[1] : NULL};
    if (dt_connect(&options, &session, &failure.error) != DT_OK)
        die("connect");
    if (dt_tensor_from(session, DT_DTYPE_F64, 1, sizes, start, &x, &failure.error) != DT_OK)
        die("upload");
    for (int i = 0; i < COUNT; i++) {
        const dt_value_t args[] = {dt_arg_tensor(x), dt_arg_double(1.0)};
        if (dt_call(session, "aten::add_.Scalar", args, 2, &same, 1, NULL, &failure) != DT_OK)
            die("aten::add_.Scalar");
        dt_tensor_free(same); /* it is x once more */
        if (dt_fetch(x, &futures[i], &failure.error) != DT_OK)
            die("fetch");
    }
    for (int i = 0; i < COUNT; i++)
        ready += dt_future_ready(futures[i]);
    printf("%d of %d values were here when the program got there\n", ready, COUNT);
    for (int i = 0; i < COUNT; i++) {
        double value[3];
        if (dt_future_wait(futures[i], 10000, &failure) != DT_OK)
            die("wait");
        if (dt_future_read(futures[i], value, sizeof value, &failure.error) != DT_OK)
            die("read");
        wrong += value[0] != i + 1 || value[1] != i + 11 || value[2] != i + 21;
        dt_future_free(futures[i]);
    }
    printf("%d wrong\n", wrong);
    dt_tensor_free(x);
    if (dt_disconnect(session, -1, &failure) != DT_OK)
        die("disconnect");
    return wrong ? 1 : 0;
}
