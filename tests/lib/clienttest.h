/* libdtorch in a test: the public header and the parts of lib/ that it leaves out what it finds of,
 * in the order that this needs; and calls that end the test when they fail. */
#ifndef DT_TESTS_LIB_CLIENTTEST_H
#define DT_TESTS_LIB_CLIENTTEST_H
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/meta.h"
#include "tensor/value.h"
#include "wire/record.h"
/* clang-format off: the public header leaves out what it finds defined */
#include <dtorch/dtorch.h>
/* clang-format on */

#include "lib/testcluster.h"

/* Devices= of the worker: "torch:cpu" where that backend is built, else "ref". Static. */
const char *dt_clienttest_devices(void);
/* Connect. `address` NULL: the cluster's unix socket. `backend` NULL: any. */
dt_session_t *dt_clienttest_connect(dt_testcluster_t *tc, const char *address, const char *backend);
/* Synchronise and end the session; nothing may have failed. */
void dt_clienttest_disconnect(dt_session_t *session);
/* A one-dimensional tensor. */
dt_tensor_t *dt_clienttest_i64(dt_session_t *session, const int64_t *data, int64_t count);
dt_tensor_t *dt_clienttest_f32(dt_session_t *session, unsigned ndim, const int64_t *sizes,
                               const float *data);
/* An operator with one result. */
dt_tensor_t *dt_clienttest_call(dt_session_t *session, const char *name, const dt_value_t *args,
                                uint32_t count);
dt_tensor_t *dt_clienttest_call2(dt_session_t *session, const char *name, dt_tensor_t *a,
                                 dt_tensor_t *b);
void dt_clienttest_read(dt_tensor_t *tensor, void *data, size_t size);
/* Fetch what must fail. Returns the status; *ret_failure says why. */
dt_status_t dt_clienttest_fails(dt_tensor_t *tensor, dt_failure_t *ret_failure);

#endif
