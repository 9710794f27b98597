#include "lib/clienttest.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *dt_clienttest_devices(void)
{
    char path[1024];
    const char *bin = getenv("DT_TEST_BIN");
    (void)snprintf(path, sizeof path, "%s/../lib/dtorch/backends/dtorch-backend-torch.so",
                   bin ? bin : "");
    return access(path, R_OK) == 0 ? "torch:cpu" : "ref";
}

dt_session_t *dt_clienttest_connect(dt_testcluster_t *tc, const char *address, const char *backend)
{
    dt_connect_options_t options = {.struct_size = sizeof options,
                                    .address =
                                        address ? address : dt_testcluster_controller_socket(tc),
                                    .backend = backend,
                                    .program = "test",
                                    .connect_timeout_ms = DT_TESTCLUSTER_PATIENCE_MS};
    dt_session_t *session = NULL;
    dt_error_t err;
    if (dt_connect(&options, &session, &err) != DT_OK)
        dt_test_die("connect: %s\n%s", err.text, dt_testcluster_logs(tc));
    return session;
}

void dt_clienttest_disconnect(dt_session_t *session)
{
    dt_failure_t failure;
    if (dt_disconnect(session, DT_TESTCLUSTER_PATIENCE_MS, &failure) != DT_OK)
        dt_test_die("disconnect: %s %s: %s", failure.kind, failure.operator_name,
                    failure.error.text);
}

dt_tensor_t *dt_clienttest_i64(dt_session_t *session, const int64_t *data, int64_t count)
{
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    if (dt_tensor_from(session, DT_DTYPE_I64, 1, &count, data, &tensor, &err) != DT_OK)
        dt_test_die("upload: %s", err.text);
    return tensor;
}

dt_tensor_t *dt_clienttest_f32(dt_session_t *session, unsigned ndim, const int64_t *sizes,
                               const float *data)
{
    dt_tensor_t *tensor = NULL;
    dt_error_t err;
    if (dt_tensor_from(session, DT_DTYPE_F32, ndim, sizes, data, &tensor, &err) != DT_OK)
        dt_test_die("upload: %s", err.text);
    return tensor;
}

dt_tensor_t *dt_clienttest_call(dt_session_t *session, const char *name, const dt_value_t *args,
                                uint32_t count)
{
    dt_tensor_t *result = NULL;
    dt_failure_t failure;
    if (dt_call(session, name, args, count, &result, 1, NULL, &failure) != DT_OK)
        dt_test_die("%s: %s: %s", name, failure.kind, failure.error.text);
    return result;
}

dt_tensor_t *dt_clienttest_call2(dt_session_t *session, const char *name, dt_tensor_t *a,
                                 dt_tensor_t *b)
{
    const dt_value_t args[] = {dt_arg_tensor(a), dt_arg_tensor(b)};
    return dt_clienttest_call(session, name, args, 2);
}

void dt_clienttest_read(dt_tensor_t *tensor, void *data, size_t size)
{
    dt_failure_t failure;
    if (dt_tensor_read(tensor, data, size, &failure) != DT_OK)
        dt_test_die("read: %s %s: %s", failure.kind, failure.operator_name, failure.error.text);
}

dt_status_t dt_clienttest_fails(dt_tensor_t *tensor, dt_failure_t *ret_failure)
{
    dt_future_t *future;
    dt_status_t status = dt_fetch(tensor, &future, &ret_failure->error);
    if (status != DT_OK) /* the session has heard of its end already */
        return status;
    status = dt_future_wait(future, DT_TESTCLUSTER_PATIENCE_MS, ret_failure);
    dt_future_free(future);
    return status;
}
