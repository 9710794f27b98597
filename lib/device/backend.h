/* The table between DTorch and a chip maker's code: what a backend offers, as plain C.
 *
 * A backend is either built in (`ref`, `sim`, and `nvml`, which only lists NVIDIA's devices, for
 * `torch` to run on) or a shared object `dtorch-backend-NAME.so` in a directory of `Backends=`, as
 * `torch` is, which exports one symbol:
 *     const dt_backend_t *dt_backend_get(int abi);
 * It is called with the host's DT_BACKEND_ABI and returns a table that lives as long as the
 * process, or NULL if it cannot serve that ABI.
 *
 * How the table grows. `struct_size` is the size of the table that the backend was compiled with.
 *  - New entries (open a device, allocate, copy, execute, …) come at the end only. The host copies
 *    min(struct_size, its own size) bytes into a zeroed table, so entries that the backend does not
 *    know are NULL to the host, and entries that the host does not know are never called.
 *  - A table smaller than DT_BACKEND_SIZE_MIN is refused: it lacks entries that have no fallback.
 *  - Whatever changes the meaning or the layout of what exists (an entry here, dt_device_info_t,
 *    dt_backend_options_t other than at its end, dt_error_t) raises DT_BACKEND_ABI. Another ABI is
 *    refused at load, with the file and both numbers in the message.
 *  - An entry that may be NULL says so, and what the host does instead.
 *
 * Where it runs. A shared object is never loaded into the node agent: it runs in a child that is
 * told to enumerate and refresh (probe.h), so a backend that crashes or hangs costs that child
 * only. All entries of one context are called from one thread, one at a time. They may block (the
 * agent waits on a thread of its own), but not longer than DT_BACKEND_CALL_MS: then the child is
 * killed.
 *
 * Errors: `err` is never NULL and comes empty; a backend puts a sentence into err->text and its own
 * number into err->source_code. err->source and err->code are the host's to set.
 *
 * Strings: NUL-terminated UTF-8 within the given size; the host replaces control characters and
 * cuts what is too long. Nothing that a backend returns is trusted beyond that.
 *
 * Executing operators. The entries from device_open on are there all together (but those that say
 * they may be NULL), or device_open is NULL and no session is placed on the backend's devices. They
 * run in an engine, a sandboxed child for one device: no files, no sockets, no new processes after
 * device_open has returned, so whatever needs them must have happened by then. All are called from
 * the engine's executor thread, but op_find and op_infer, which the metadata thread calls at the
 * same time. Operators are ATen overloads by schema name.
 *
 * docs/backend.md tells how to write a backend. */
#ifndef DT_DEVICE_BACKEND_H
#define DT_DEVICE_BACKEND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/meta.h"
#include "tensor/value.h"

#define DT_BACKEND_ABI     1
#define DT_BACKEND_CALL_MS 10000
#define DT_BACKEND_SYMBOL  "dt_backend_get"
#define DT_DEVICE_MAX      64 /* devices of one node, over all backends */
#define DT_DEVICE_LINK_MAX 64 /* links of one device */

/* Values are those of Device.Health in proto/dtorch/v1/worker.proto. */
typedef enum dt_device_health {
    DT_DEVICE_UNKNOWN = 0,
    DT_DEVICE_OK = 1,
    DT_DEVICE_DEGRADED = 2, /* works, with a fault that someone should look at */
    DT_DEVICE_FAILED = 3,   /* must not be used */
} dt_device_health_t;

/* How near two devices are; the larger the nearer. Values are those of Link.Kind. */
typedef enum dt_link_kind {
    DT_LINK_SYSTEM = 0,     /* across NUMA nodes, or unknown */
    DT_LINK_NUMA = 1,       /* same NUMA node */
    DT_LINK_PCI_SWITCH = 2, /* same PCI switch */
    DT_LINK_NVLINK = 3,     /* a direct link between chips, NVLink or the maker's own */
} dt_link_kind_t;

typedef struct dt_device_link {
    int32_t peer;   /* position in the array that enumerate filled; in a snapshot: device index */
    int32_t kind;   /* dt_link_kind_t */
    uint32_t lanes; /* direct links only: number of active links, else 0 */
} dt_device_link_t;

/* One device. Fields marked (r) may change at refresh, the others only by a new enumeration.
 * Zero means "unknown" unless a field says otherwise. */
typedef struct dt_device_info {
    char uuid[64];          /* required, stable over restarts and re-ordering, unique in the node */
    char kind[16];          /* required: "cpu" "cuda" "sim" or the maker's own word */
    char name[96];          /* of the model */
    char pci_address[32];   /* "0000:3b:00.0", lower case, or empty */
    char driver[64];        /* driver version */
    char nvlink_domain[64]; /* cluster UUID of a fabric that spans nodes, or empty */
    char health_text[256];  /* (r) why it is not OK */
    uint64_t memory_bytes;  /* of the device */
    uint64_t memory_used_bytes;   /* (r) by anyone */
    uint64_t ecc_uncorrected;     /* (r) since the driver was loaded */
    uint64_t throttle_reasons;    /* (r) NVML's bit set, 0 if none or not NVIDIA */
    int32_t numa_node;            /* -1 unknown; the host then asks sysfs by pci_address */
    int32_t health;               /* (r) dt_device_health_t */
    uint32_t utilization_percent; /* (r) 0..100 */
    uint32_t temperature_c;       /* (r) */
    int32_t link_count; /* of `links`: what only the device knows; the host adds the rest */
    dt_device_link_t links[DT_DEVICE_LINK_MAX];
} dt_device_info_t;

/* What the host tells a backend when it opens it. Grows at its end only, as the table does. */
typedef struct dt_backend_options {
    size_t struct_size;
    const char *spec;   /* what followed "NAME:" in Devices=, or "" */
    const char *root;   /* prefix for /proc, /sys and /etc: "" outside tests */
    const char *seed;   /* identity of the node, for uuids of devices that have none; never empty */
    const char *faults; /* file that plays faults in tests (sim only), or "" */
    const char *library; /* driver library to open in place of the usual one, or "" */
} dt_backend_options_t;

/* source_code of an INVALID that an operator itself raised: PyTorch's exception classes. */
typedef enum dt_backend_error {
    DT_BACKEND_RUNTIME_ERROR = 1,
    DT_BACKEND_INDEX_ERROR = 2,
    DT_BACKEND_VALUE_ERROR = 3,
    DT_BACKEND_TYPE_ERROR = 4,
    DT_BACKEND_NOT_IMPLEMENTED = 5,
    DT_BACKEND_OUT_OF_MEMORY = 6,
    DT_BACKEND_LINALG_ERROR = 7,
} dt_backend_error_t;

/* Host memory for tensors, given by the engine: shared, accounted by session, with a limit.
 * alloc: at least 64-byte aligned, not cleared; NULL over the limit. release: any block of it, from
 * any thread. Devices with memory of their own use it for staging only. */
typedef struct dt_backend_memory {
    void *(*alloc)(void *arg, size_t size);
    void (*release)(void *block);
    void *arg;
} dt_backend_memory_t;

/* How a device is opened for operators. Grows at its end only. */
typedef struct dt_backend_device_options {
    size_t struct_size;
    const dt_device_info_t *info; /* the device that is meant, from the last enumeration */
    const dt_backend_memory_t *memory;
    int32_t threads; /* that one operator may use, 1 or more */
} dt_backend_device_options_t;

/* One output as op_infer tells it. */
typedef struct dt_backend_output {
    uint8_t alias;  /* dt_alias_t */
    uint32_t input; /* VIEW, IN_PLACE: which tensor input */
    dt_meta_t meta; /* but for NONE */
} dt_backend_output_t;

/* A tensor as tensor_info tells it. */
typedef struct dt_backend_tensor {
    dt_meta_t meta;
    int64_t offset;         /* elements from the start of the storage */
    const void *storage;    /* identity: equal for tensors that share memory */
    uint64_t storage_bytes; /* of that storage */
    void *data;             /* first element, if the host can read and write there; else NULL */
} dt_backend_tensor_t;

typedef struct dt_backend {
    size_t struct_size; /* sizeof(dt_backend_t) at the backend's compile time */
    int32_t abi;        /* DT_BACKEND_ABI at the backend's compile time */
    const char *name;   /* [a-z][a-z0-9-]*, at most 31 bytes; the NAME of dtorch-backend-NAME.so */

    /* Make a context. Ownership: borrows options; gives *ret_ctx, ended by close. NULL in *ret_ctx
     * is a valid context. Errors: INVALID (spec, the text says what and where), NOT_FOUND (no such
     * hardware or driver here: not a fault, the node just has no such devices), DEVICE. */
    dt_status_t (*open)(const dt_backend_options_t *options, void **ret_ctx, dt_error_t *err);

    /* Fill ret_devices[0 .. *ret_count) with all devices that can be seen now, at most device_max,
     * in any order. A device that is there but broken is listed with health FAILED; one that is
     * gone is not listed. Errors: DEVICE, LIMIT (more than device_max), NOMEM; nothing is then
     * known of its devices. */
    dt_status_t (*enumerate)(void *ctx, dt_device_info_t *ret_devices, int32_t device_max,
                             int32_t *ret_count, dt_error_t *err);

    /* Update the fields marked (r) of devices[0 .. count), which are those of the last enumeration,
     * and set *ret_is_stale if the set of devices is another one by now: the host then enumerates.
     * May be NULL: the host calls enumerate each time instead. Errors: DEVICE; the host then
     * enumerates. */
    dt_status_t (*refresh)(void *ctx, dt_device_info_t *devices, int32_t count, bool *ret_is_stale,
                           dt_error_t *err);

    /* End a context. May be NULL: there is nothing to free. */
    void (*close)(void *ctx);

    /* ---- executing operators ---- */

    /* Open one device for operators. Ownership: borrows options, keeps options->memory until
     * device_close; gives *ret_device. Errors: NOT_FOUND (no such device), DEVICE, NOMEM. */
    dt_status_t (*device_open)(void *ctx, const dt_backend_device_options_t *options,
                               void **ret_device, dt_error_t *err);
    void (*device_close)(void *device); /* every tensor has been freed before */

    /* Find an overload by schema name, "aten::add.Tensor". Ownership: *ret_op lives as long as the
     * device. Errors: NOT_FOUND (unknown, or an argument of it has a type that no dt_value_t
     * holds). Threads: any. */
    dt_status_t (*op_find)(void *device, const char *name, void **ret_op, dt_error_t *err);

    /* Run an operator. `args` are in the schema's order, positional and keyword alike; those left
     * out at the end, and DEFAULT, are the schema's defaults. TENSOR, TENSORS and STORAGE hold
     * handles. A number where the schema has a Tensor is a wrapped number (it does not widen
     * dtypes). DEVICE arguments mean this device whatever they say, unless they say meta.
     * *ret_count results, lists flattened, in schema order; NULL for an undefined one. A result
     * that is an input written in place is that input's tensor again, with a reference of its own.
     * A number is a tensor of no dimensions. Work may still run on the device at return; errors
     * that come later are device_sync's. Ownership: borrows the arguments; gives each result, free
     * with tensor_free. Errors: INVALID (the operator's own, with source_code a
     * dt_backend_error_t), LIMIT (memory; the next operator works), NOT_FOUND (no kernel for this
     * device), DEVICE. No results then. */
    dt_status_t (*op_execute)(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                              void **ret_results, uint32_t result_max, uint32_t *ret_count,
                              dt_error_t *err);

    /* Tell what op_execute would return, without running it on real data. The k-th tensor in `args`
     * (lists flattened, None left out: ids of TENSORS are 1 and 0) has metadata inputs[k].
     * May be NULL: as if it said AGAIN. Errors: AGAIN (not known without executing it), INVALID
     * (the operator would refuse these arguments, as op_execute), NOT_FOUND, NOMEM. Threads: the
     * metadata thread, beside the executor. */
    dt_status_t (*op_infer)(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                            const dt_meta_t *inputs, uint32_t input_count,
                            dt_backend_output_t *ret_outputs, uint32_t output_max,
                            uint32_t *ret_count, dt_error_t *err);

    /* Make a tensor with undefined contents. Errors: LIMIT, INVALID (strides that overlap). */
    dt_status_t (*tensor_create)(void *device, const dt_meta_t *meta, void **ret_tensor,
                                 dt_error_t *err);
    /* Fill *ret_info. Errors: INVALID (a tensor that dt_meta_t cannot describe: sparse, more than
     * DT_META_DIM_MAX dimensions). */
    dt_status_t (*tensor_info)(void *device, void *tensor, dt_backend_tensor_t *ret_info,
                               dt_error_t *err);
    /* Copy bytes [offset, offset + size) of the row-major, densely packed elements in or out.
     * Blocking: until the bytes are there. Errors: INVALID (out of range), DEVICE. */
    dt_status_t (*tensor_write)(void *device, void *tensor, uint64_t offset, const void *bytes,
                                size_t size, dt_error_t *err);
    dt_status_t (*tensor_read)(void *device, void *tensor, uint64_t offset, void *ret_bytes,
                               size_t size, dt_error_t *err);
    void (*tensor_free)(void *device, void *tensor); /* NULL is fine */

    /* Start random stream `stream` anew. A GENERATOR argument names a stream; one never seeded
     * begins with seed 0. Streams are this device's alone. Errors: NOMEM, LIMIT (too many), INVALID
     * (an offset that this device's generators do not have). */
    dt_status_t (*generator_seed)(void *device, uint32_t stream, uint64_t seed, uint64_t offset,
                                  dt_error_t *err);
    /* Operators that draw without naming a generator draw from `stream` from now on (0 at first).
     * Cost: nothing if it is the same as before. Errors: NOMEM, LIMIT. */
    dt_status_t (*generator_use)(void *device, uint32_t stream, dt_error_t *err);
    void (*generator_free)(void *device, uint32_t stream); /* unknown is fine */

    /* Wait for everything that was started. May be NULL: op_execute returns when it is done.
     * Errors: DEVICE. */
    dt_status_t (*device_sync)(void *device, dt_error_t *err);

    /* Tell what the next op_execute of `op` returns, where that is known before: for a backend that
     * does not compute. Ownership: `outputs` stays until that op_execute returns. May be NULL: not
     * told. Cannot fail. */
    void (*op_expect)(void *device, void *op, const dt_backend_output_t *outputs, uint32_t count);

    /* As op_infer, by whatever is exact but dearer than a look at the shapes: running the operator
     * on zeros, say. It is asked where op_infer and the rules of lib/ops/meta.def said AGAIN. May
     * be NULL: as if it said AGAIN. Blocking: well below a second. */
    dt_status_t (*op_rehearse)(void *device, void *op, const dt_value_t *args, uint32_t arg_count,
                               const dt_meta_t *inputs, uint32_t input_count,
                               dt_backend_output_t *ret_outputs, uint32_t output_max,
                               uint32_t *ret_count, dt_error_t *err);

    /* How many tensors the operator returns, all of them new, whatever its arguments are: asked
     * where nobody knows more before it has run. May be NULL: as if it said AGAIN. Errors: AGAIN
     * (it depends on them). Threads: as op_infer. */
    dt_status_t (*op_output_count)(void *device, void *op, uint32_t *ret_count);

    /* Whether a tensor has exactly this metadata (NULL: any), strides and bits included, and in
     * *ret_storage what tensor_info tells as `storage`: asked for each result of an operator that
     * takes numbers, so it should cost a few comparisons. False also where that cannot be said;
     * tensor_info is asked then. `tensor` is never NULL. May be NULL: as if it said false. */
    bool (*tensor_is)(void *device, void *tensor, const dt_meta_t *meta, const void **ret_storage);
} dt_backend_t;

/* Bytes that every table of this ABI has: up to and with `enumerate`. Later entries may be NULL. */
#define DT_BACKEND_SIZE_MIN offsetof(dt_backend_t, refresh)

typedef const dt_backend_t *(*dt_backend_get_fn)(int abi);

#endif
