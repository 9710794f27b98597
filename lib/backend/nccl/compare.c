/* Whether NVIDIA's headers still say what api.h says: compiled where they are (mk/nccl.mk), and
 * linked against the libraries, never run. */
#include <cuda_runtime_api.h>
#include <limits.h>
#include <nccl.h>

#define DT_NCCL_WITH_HEADERS
#include "backend/nccl/api.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(DT_NCCL_SUCCESS, ncclSuccess);
SAME(DT_NCCL_UNHANDLED_CUDA, ncclUnhandledCudaError);
SAME(DT_NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(DT_NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(DT_NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(DT_NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(DT_NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(DT_NCCL_IN_PROGRESS, ncclInProgress);
SAME(DT_NCCL_I8, ncclInt8);
SAME(DT_NCCL_U8, ncclUint8);
SAME(DT_NCCL_I32, ncclInt32);
SAME(DT_NCCL_U32, ncclUint32);
SAME(DT_NCCL_I64, ncclInt64);
SAME(DT_NCCL_U64, ncclUint64);
SAME(DT_NCCL_F16, ncclFloat16);
SAME(DT_NCCL_F32, ncclFloat32);
SAME(DT_NCCL_F64, ncclFloat64);
SAME(DT_NCCL_BF16, ncclBfloat16);
SAME(DT_NCCL_SUM, ncclSum);
SAME(DT_NCCL_MAX, ncclMax);
SAME(DT_NCCL_MIN, ncclMin);
SAME(DT_NCCL_AVG, ncclAvg);
SAME(DT_NCCL_CUDA_SUCCESS, cudaSuccess);
SAME(DT_NCCL_CUDA_NO_MEMORY, cudaErrorMemoryAllocation);
SAME(DT_NCCL_CUDA_NOT_READY, cudaErrorNotReady);
SAME(DT_NCCL_CUDA_COPY_DEFAULT, cudaMemcpyDefault);
SAME(DT_NCCL_CUDA_NON_BLOCKING, cudaStreamNonBlocking);
SAME(DT_NCCL_CUDA_NO_TIMING, cudaEventDisableTiming);

#define PLACE(field)                                                                               \
    _Static_assert(offsetof(dt_nccl_config_t, field) == offsetof(ncclConfig_t, field), #field)
PLACE(size);
PLACE(magic);
PLACE(version);
PLACE(blocking);
_Static_assert(offsetof(dt_nccl_config_t, unset) == offsetof(ncclConfig_t, cgaClusterSize),
               "unset");

/* Each call has the type that we gave it, and is there to be linked. */
extern const dt_nccl_api_t dt_nccl_compared;
const dt_nccl_api_t dt_nccl_compared = {
#define X(field, symbol, result, parameters) .field = symbol,
    DT_NCCL_SYMBOLS(X) DT_NCCL_RUNTIME_SYMBOLS(X)
#undef X
};
