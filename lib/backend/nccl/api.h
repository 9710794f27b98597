/* NCCL and the CUDA runtime as far as groups need them: our own declarations. They are what has
 * stayed since NCCL 2.14 (2022), whose configuration NCCL takes in every later release.
 *
 * With DT_NCCL_WITH_HEADERS the types are NVIDIA's own, so that the two can be compared. */
#ifndef DT_BACKEND_NCCL_API_H
#define DT_BACKEND_NCCL_API_H
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DT_NCCL_LIBRARY      "libnccl.so.2"
#define DT_NCCL_RUNTIME      "libcudart.so.13"
#define DT_NCCL_RUNTIME_PAST "libcudart.so.12"

/* ncclResult_t */
#define DT_NCCL_SUCCESS          0
#define DT_NCCL_UNHANDLED_CUDA   1
#define DT_NCCL_SYSTEM_ERROR     2
#define DT_NCCL_INTERNAL_ERROR   3
#define DT_NCCL_INVALID_ARGUMENT 4
#define DT_NCCL_INVALID_USAGE    5
#define DT_NCCL_REMOTE_ERROR     6
#define DT_NCCL_IN_PROGRESS      7
/* ncclDataType_t */
#define DT_NCCL_I8   0
#define DT_NCCL_U8   1
#define DT_NCCL_I32  2
#define DT_NCCL_U32  3
#define DT_NCCL_I64  4
#define DT_NCCL_U64  5
#define DT_NCCL_F16  6
#define DT_NCCL_F32  7
#define DT_NCCL_F64  8
#define DT_NCCL_BF16 9
/* ncclRedOp_t */
#define DT_NCCL_SUM 0
#define DT_NCCL_MAX 2
#define DT_NCCL_MIN 3
#define DT_NCCL_AVG 4
/* cudaError_t, cudaMemcpyKind, flags */
#define DT_NCCL_CUDA_SUCCESS      0
#define DT_NCCL_CUDA_NO_MEMORY    2
#define DT_NCCL_CUDA_NOT_READY    600
#define DT_NCCL_CUDA_COPY_DEFAULT 4
#define DT_NCCL_CUDA_NON_BLOCKING 1 /* of a stream */
#define DT_NCCL_CUDA_NO_TIMING    2 /* of an event */
/* cudaDeviceProp.memPitch of all devices: copies of rows refuse a pitch above it, of one row too.
 */
#define DT_NCCL_CUDA_PITCH_MAX UINT64_C(0x7fffffff)

/* ncclConfig_t of 2.14; later fields are unset for that version. */
#define DT_NCCL_CONFIG_MAGIC   0xcafebeefU
#define DT_NCCL_CONFIG_VERSION 21400
typedef struct dt_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
    int unset; /* INT_MIN: where later releases have a field */
} dt_nccl_config_t;

#ifdef DT_NCCL_WITH_HEADERS
typedef ncclResult_t dt_nccl_result_t;
typedef ncclComm_t dt_nccl_comm_t;
typedef ncclUniqueId dt_nccl_id_t;
typedef ncclConfig_t dt_nccl_config_arg_t;
typedef ncclDataType_t dt_nccl_dtype_t;
typedef ncclRedOp_t dt_nccl_op_t;
typedef cudaError_t dt_nccl_error_t;
typedef cudaStream_t dt_nccl_stream_t;
typedef cudaEvent_t dt_nccl_event_t;
typedef enum cudaMemcpyKind dt_nccl_copy_t;
#else
typedef struct dt_nccl_id {
    char bytes[128];
} dt_nccl_id_t;
typedef int dt_nccl_result_t, dt_nccl_dtype_t, dt_nccl_op_t, dt_nccl_error_t, dt_nccl_copy_t;
typedef struct dt_nccl_comm *dt_nccl_comm_t;
typedef struct dt_nccl_stream *dt_nccl_stream_t;
typedef struct dt_nccl_event *dt_nccl_event_t;
typedef dt_nccl_config_t dt_nccl_config_arg_t;
#endif

/* X(field, symbol, result, parameters) */
#define DT_NCCL_SYMBOLS(X)                                                                         \
    X(get_version, ncclGetVersion, dt_nccl_result_t, (int *))                                      \
    X(get_id, ncclGetUniqueId, dt_nccl_result_t, (dt_nccl_id_t *))                                 \
    X(init_rank, ncclCommInitRankConfig, dt_nccl_result_t,                                         \
      (dt_nccl_comm_t *, int, dt_nccl_id_t, int, dt_nccl_config_arg_t *))                          \
    X(async_error, ncclCommGetAsyncError, dt_nccl_result_t, (dt_nccl_comm_t, dt_nccl_result_t *))  \
    X(comm_abort, ncclCommAbort, dt_nccl_result_t, (dt_nccl_comm_t))                               \
    X(result_text, ncclGetErrorString, const char *, (dt_nccl_result_t))                           \
    X(last_text, ncclGetLastError, const char *, (dt_nccl_comm_t))                                 \
    X(group_start, ncclGroupStart, dt_nccl_result_t, (void))                                       \
    X(group_end, ncclGroupEnd, dt_nccl_result_t, (void))                                           \
    X(send, ncclSend, dt_nccl_result_t,                                                            \
      (const void *, size_t, dt_nccl_dtype_t, int, dt_nccl_comm_t, dt_nccl_stream_t))              \
    X(recv, ncclRecv, dt_nccl_result_t,                                                            \
      (void *, size_t, dt_nccl_dtype_t, int, dt_nccl_comm_t, dt_nccl_stream_t))                    \
    X(broadcast, ncclBroadcast, dt_nccl_result_t,                                                  \
      (const void *, void *, size_t, dt_nccl_dtype_t, int, dt_nccl_comm_t, dt_nccl_stream_t))      \
    X(all_reduce, ncclAllReduce, dt_nccl_result_t,                                                 \
      (const void *, void *, size_t, dt_nccl_dtype_t, dt_nccl_op_t, dt_nccl_comm_t,                \
       dt_nccl_stream_t))                                                                          \
    X(all_gather, ncclAllGather, dt_nccl_result_t,                                                 \
      (const void *, void *, size_t, dt_nccl_dtype_t, dt_nccl_comm_t, dt_nccl_stream_t))           \
    X(reduce_scatter, ncclReduceScatter, dt_nccl_result_t,                                         \
      (const void *, void *, size_t, dt_nccl_dtype_t, dt_nccl_op_t, dt_nccl_comm_t,                \
       dt_nccl_stream_t))

#define DT_NCCL_RUNTIME_SYMBOLS(X)                                                                 \
    X(device_count, cudaGetDeviceCount, dt_nccl_error_t, (int *))                                  \
    X(set_device, cudaSetDevice, dt_nccl_error_t, (int))                                           \
    X(error_text, cudaGetErrorString, const char *, (dt_nccl_error_t))                             \
    X(stream_create, cudaStreamCreateWithFlags, dt_nccl_error_t, (dt_nccl_stream_t *, unsigned))   \
    X(stream_destroy, cudaStreamDestroy, dt_nccl_error_t, (dt_nccl_stream_t))                      \
    X(stream_wait, cudaStreamSynchronize, dt_nccl_error_t, (dt_nccl_stream_t))                     \
    X(event_create, cudaEventCreateWithFlags, dt_nccl_error_t, (dt_nccl_event_t *, unsigned))      \
    X(event_record, cudaEventRecord, dt_nccl_error_t, (dt_nccl_event_t, dt_nccl_stream_t))         \
    X(event_query, cudaEventQuery, dt_nccl_error_t, (dt_nccl_event_t))                             \
    X(event_destroy, cudaEventDestroy, dt_nccl_error_t, (dt_nccl_event_t))                         \
    X(memory_alloc, cudaMalloc, dt_nccl_error_t, (void **, size_t))                                \
    X(memory_free, cudaFree, dt_nccl_error_t, (void *))                                            \
    X(copy, cudaMemcpy, dt_nccl_error_t, (void *, const void *, size_t, dt_nccl_copy_t))           \
    X(copy_run, cudaMemcpyAsync, dt_nccl_error_t,                                                  \
      (void *, const void *, size_t, dt_nccl_copy_t, dt_nccl_stream_t))                            \
    X(copy_rows, cudaMemcpy2DAsync, dt_nccl_error_t,                                               \
      (void *, size_t, const void *, size_t, size_t, size_t, dt_nccl_copy_t, dt_nccl_stream_t))

typedef struct dt_nccl_api {
    void *library, *runtime;
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declarator and a parameter list */
#define X(field, symbol, result, parameters) result(*field) parameters;
    DT_NCCL_SYMBOLS(X) DT_NCCL_RUNTIME_SYMBOLS(X)
#undef X
} dt_nccl_api_t;

/* Open the first of `names` (a NULL ends them) that this process has loaded already, else the first
 * that can be loaded: what torch came with, where torch is, and not another release beside it.
 * Ownership: gives what dlclose() takes. Errors: NOT_FOUND, with the last one's cause. Threads:
 * any. */
DT_MUST_USE dt_status_t dt_nccl_library_open(const char *const *names, void **ret_library,
                                             dt_error_t *err);

/* Open both libraries; "" or NULL: the usual ones. Ownership: gives what dt_nccl_api_close() takes.
 * Errors: NOT_FOUND (none, or one that lacks a call), and `api` is closed. Threads: any. */
DT_MUST_USE dt_status_t dt_nccl_api_open(dt_nccl_api_t *api, const char *library,
                                         const char *runtime, dt_error_t *err);
void dt_nccl_api_close(dt_nccl_api_t *api);

#endif
