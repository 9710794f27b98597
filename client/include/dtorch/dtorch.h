/* DTorch's C interface: tensors on a cluster, and any operator by its schema name.
 *
 * A program connects, makes tensors from host memory, calls operators and fetches values:
 *
 *     dt_connect(NULL, &session, &err);
 *     dt_tensor_from(session, DT_DTYPE_F32, 2, (int64_t[]){2, 2}, data, &a, &err);
 *     dt_call(session, "aten::mm", (dt_value_t[]){dt_arg_tensor(a), dt_arg_tensor(a)}, 2, &c, 1,
 *             NULL, &failure);
 *     dt_tensor_read(c, result, sizeof result, &failure);
 *
 * Operators flow without a reply: a call returns when its record is in the stream. Their errors are
 * values: the outputs of a failed operator are poisoned, dependants are skipped, and the first
 * cause is what fetching any of them gives. A poisoned tensor is not healed by writing to it, not
 * even by aten::copy_ or aten::zero_: free it and make another. A connection that breaks is made
 * again by itself, and every operator takes effect exactly once. Only functions that say so wait
 * for the cluster.
 *
 * Threads: every function may be called from any thread unless it says otherwise; a session has one
 * lock, operators of several threads take effect in the order in which they got it. A session ends
 * in the process that made it: after fork() the child's calls give DT_ERR_STOPPED.
 * Ownership: parameters are borrowed for the call, what comes back in a `ret_` parameter is the
 * caller's, unless a function says otherwise. `ret_` parameters are set on success only.
 * Errors: a status; `err` and `failure` may be NULL. Every function can give DT_ERR_INVALID (a
 * parameter that cannot be), DT_ERR_NOMEM, DT_ERR_STOPPED (forked, or the session was ended) and
 * DT_ERR_LOST (the cluster was away for too long or has forgotten the session: nothing of it can be
 * had any more); these are not named again.
 * Blocking: "flow" means that a function waits only while the cluster is so far behind that the
 * session's window is full. */
#ifndef DT_DTORCH_H
#define DT_DTORCH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- statuses ---- */

#ifndef DT_BASE_STATUS_H /* DTorch's own sources know these from elsewhere */
#define DT_MUST_USE __attribute__((warn_unused_result))

/* Each code is something that a caller can do differently about. */
typedef enum dt_status {
    DT_OK = 0,
    DT_ERR_NOMEM = -1,     /* out of memory, here */
    DT_ERR_INVALID = -2,   /* invalid input: an operator's own refusal, too */
    DT_ERR_NOT_FOUND = -3, /* no such operator, signature, file */
    DT_ERR_EXISTS = -4,
    DT_ERR_AGAIN = -5, /* try again later */
    DT_ERR_TIMEOUT = -6,
    DT_ERR_DENIED = -7,
    DT_ERR_LIMIT = -8,   /* over a limit: the device's memory, too */
    DT_ERR_PEER = -9,    /* a peer failed or left */
    DT_ERR_DEVICE = -10, /* a device failed */
    DT_ERR_LOST = -11,
    DT_ERR_STOPPED = -12,
    DT_ERR_INTERNAL = -13,
} dt_status_t;

typedef struct dt_error {
    dt_status_t code;
    const char *source;  /* who said it: "dt" "wire" "errno" "grpc" "cuda" "torch"; static string */
    int64_t source_code; /* that source's own number */
    char text[512];
} dt_error_t;
#endif

/* The first cause of a failed operator, with all that is known of it. */
#define DT_FAILURE_RANGES_MAX 16
typedef struct dt_failure {
    dt_error_t error;        /* status, source, source's own number, text (cut to 511 bytes) */
    char kind[32];           /* "IndexError" "OutOfMemoryError" "WorkerLost" "MetadataError" ...;
                                "" when no operator failed */
    char text[4097];         /* the backend's own words */
    uint64_t sequence;       /* of the record that failed */
    char operator_name[256]; /* "aten::mm" */
    char inputs[1025];       /* "float32 (4, 3), int64 (2,)" */
    char place[1024];        /* the program's line, if it said so: dt_mark_source() */
    char node[64];
    uint32_t device;  /* index within the node */
    uint32_t vdev;    /* of the session */
    uint64_t skipped; /* operators not run because of it, so far */
    uint32_t range_count;
    char range[DT_FAILURE_RANGES_MAX][128]; /* the program's open ranges, outermost first */
} dt_failure_t;

/* "DT_ERR_TIMEOUT"; "unknown" for other numbers. Static. */
DT_API const char *dt_status_name(dt_status_t status);
/* The library's version, "0.1.0". Static. */
DT_API const char *dt_client_version(void);

/* ---- element types, metadata ---- */

#ifndef DT_TENSOR_DTYPE_H
/* The numbers are PyTorch's ScalarType. */
typedef enum dt_dtype {
    DT_DTYPE_U8 = 0,
    DT_DTYPE_I8 = 1,
    DT_DTYPE_I16 = 2,
    DT_DTYPE_I32 = 3,
    DT_DTYPE_I64 = 4,
    DT_DTYPE_F16 = 5,
    DT_DTYPE_F32 = 6,
    DT_DTYPE_F64 = 7,
    DT_DTYPE_C32 = 8,
    DT_DTYPE_C64 = 9,
    DT_DTYPE_C128 = 10,
    DT_DTYPE_BOOL = 11,
    DT_DTYPE_BF16 = 15,
    DT_DTYPE_F8_E5M2 = 23,
    DT_DTYPE_F8_E4M3FN = 24,
    DT_DTYPE_F8_E5M2FNUZ = 25,
    DT_DTYPE_F8_E4M3FNUZ = 26,
    DT_DTYPE_U16 = 27,
    DT_DTYPE_U32 = 28,
    DT_DTYPE_U64 = 29,
} dt_dtype_t;
#endif

#ifndef DT_TENSOR_META_H
#define DT_META_DIM_MAX 16

/* How the strides are given; the lower four bits of dt_meta_t.layout. */
enum {
    DT_META_CONTIGUOUS = 0,    /* row-major */
    DT_META_CHANNELS_LAST = 1, /* 4-d NHWC or 5-d NDHWC order of a (N, C, ...) tensor */
    DT_META_EXPLICIT = 2,      /* anything else */
    DT_META_CLASS_MASK = 0x0f,
    DT_META_CONJ = 0x40, /* the value is the conjugate of what is stored */
    DT_META_NEG = 0x80,  /* the value is the negative of what is stored */
};

/* Metadata of a tensor. Make one by dt_describe(). */
typedef struct dt_meta {
    uint8_t dtype; /* dt_dtype_t */
    uint8_t ndim;  /* 0..DT_META_DIM_MAX */
    uint8_t layout;
    int64_t sizes[DT_META_DIM_MAX];   /* elements */
    int64_t strides[DT_META_DIM_MAX]; /* elements; filled whatever the class */
} dt_meta_t;
#endif

/* Fill *ret_meta. Shapes: `sizes` and `strides` have `ndim` entries; `strides` NULL: contiguous.
 * Errors: DT_ERR_LIMIT (more than 64 TiB). Blocking: never. */
DT_API DT_MUST_USE dt_status_t dt_describe(dt_dtype_t dtype, unsigned ndim, const int64_t *sizes,
                                           const int64_t *strides, dt_meta_t *ret_meta,
                                           dt_error_t *err);
/* Bytes of one element; 0 for a number that is no type. */
DT_API size_t dt_element_bytes(dt_dtype_t dtype);
/* Bytes of all elements, densely packed: what fetching gives. */
DT_API size_t dt_dense_bytes(const dt_meta_t *meta);

/* ---- arguments of operators ---- */

typedef struct dt_session dt_session_t;
typedef struct dt_tensor dt_tensor_t;
typedef struct dt_future dt_future_t;

#ifndef DT_TENSOR_VALUE_H
typedef enum dt_value_tag {
    DT_VALUE_DEFAULT = 0, /* the schema's default */
    DT_VALUE_NONE = 1,
    DT_VALUE_FALSE = 2,
    DT_VALUE_TRUE = 3,
    DT_VALUE_INT = 4,
    DT_VALUE_DOUBLE = 5,
    DT_VALUE_COMPLEX = 6, /* doubles[0] + i doubles[1] */
    DT_VALUE_STR = 7,
    DT_VALUE_TENSOR = 8, /* handle: a dt_tensor_t */
    DT_VALUE_INTS = 9,
    DT_VALUE_DOUBLES = 10,
    DT_VALUE_BOOLS = 11,
    DT_VALUE_TENSORS = 12, /* handles: dt_tensor_t each, NULL: None */
    DT_VALUE_VALUES = 13,  /* Scalar[] */
    DT_VALUE_STRS = 14,
    DT_VALUE_DTYPE = 15,
    DT_VALUE_LAYOUT = 16,
    DT_VALUE_MEMORY_FORMAT = 17,
    DT_VALUE_DEVICE = 18,    /* number: PyTorch's device type; index: -1 current */
    DT_VALUE_GENERATOR = 19, /* number: random stream */
    DT_VALUE_STORAGE = 20,   /* of a tensor, as TENSOR */
    DT_VALUE_DYNAMIC = 21,   /* signatures only: a number that each submission brings */
    DT_VALUE_SMALL = 0x40,   /* on the wire only */
} dt_value_tag_t;

#define DT_VALUE_LIST_MAX 65535u /* elements of one list argument */

typedef struct dt_value {
    uint8_t tag;    /* dt_value_tag_t */
    int16_t index;  /* DEVICE */
    uint32_t count; /* elements of lists, bytes of STR */
    union {
        int64_t number; /* INT, DTYPE, LAYOUT, MEMORY_FORMAT, DEVICE, GENERATOR, DYNAMIC */
        double real;    /* DOUBLE */
        uint64_t id;    /* not used here */
        void *handle;   /* TENSOR, STORAGE; NULL: None */
        const int64_t *ints;
        const double *doubles;
        const uint8_t *bools; /* each 0 or 1 */
        const char *text;     /* count bytes, no NUL counted */
        const uint64_t *ids;  /* not used here */
        void *const *handles; /* TENSORS */
        const struct dt_value *values;
    };
} dt_value_t;

/* What an output of an operator is to its inputs. */
typedef enum dt_alias {
    DT_ALIAS_FRESH = 0,
    DT_ALIAS_VIEW = 1,     /* shares the storage of an input */
    DT_ALIAS_IN_PLACE = 2, /* is that input, written; has no id of its own */
    DT_ALIAS_NONE = 3,     /* undefined; has neither id nor metadata */
} dt_alias_t;
#endif

/* ---- meshes, placements ---- */

typedef struct dt_mesh dt_mesh_t;

#ifndef DT_WIRE_RECORD_H
#define DT_RECORD_MESH_DIM_MAX 8u /* dimensions of a mesh */

typedef enum dt_placement_kind {
    DT_PLACEMENT_REPLICATE = 0, /* each device has the whole value */
    DT_PLACEMENT_SHARD = 1,     /* cut along a dimension, as torch.chunk does */
    DT_PLACEMENT_PARTIAL = 2,   /* the value is the reduction of what the devices have */
} dt_placement_kind_t;

typedef enum dt_reduction {
    DT_REDUCTION_SUM = 0,
    DT_REDUCTION_AVG = 1,
    DT_REDUCTION_MAX = 2,
    DT_REDUCTION_MIN = 3,
} dt_reduction_t;

/* Where a tensor lies along one dimension of its mesh. */
typedef struct dt_placement {
    uint8_t kind;      /* dt_placement_kind_t */
    uint8_t dim;       /* SHARD: tensor dimension */
    uint8_t reduction; /* PARTIAL: dt_reduction_t */
    uint32_t unit;     /* SHARD: borders are multiples of it; 0 = 1 */
    uint32_t groups;   /* SHARD: the dimension is `groups` runs, each cut alike; 0 = 1 */
} dt_placement_t;
#endif

/* Make arguments. Lists are borrowed: they must live until the call they are passed to returns. */
static inline dt_value_t dt_arg_tag(dt_value_tag_t tag)
{
    dt_value_t value;
    value.tag = (uint8_t)tag;
    value.index = 0;
    value.count = 0;
    value.number = 0;
    return value;
}
static inline dt_value_t dt_arg_default(void)
{
    return dt_arg_tag(DT_VALUE_DEFAULT);
}
static inline dt_value_t dt_arg_none(void)
{
    return dt_arg_tag(DT_VALUE_NONE);
}
static inline dt_value_t dt_arg_bool(bool is_true)
{
    return dt_arg_tag(is_true ? DT_VALUE_TRUE : DT_VALUE_FALSE);
}
static inline dt_value_t dt_arg_number(dt_value_tag_t tag, int64_t number)
{
    dt_value_t value = dt_arg_tag(tag);
    value.number = number;
    return value;
}
static inline dt_value_t dt_arg_int(int64_t number)
{
    return dt_arg_number(DT_VALUE_INT, number);
}
static inline dt_value_t dt_arg_dtype(dt_dtype_t dtype)
{
    return dt_arg_number(DT_VALUE_DTYPE, (int64_t)dtype);
}
static inline dt_value_t dt_arg_generator(uint32_t stream)
{
    return dt_arg_number(DT_VALUE_GENERATOR, (int64_t)stream);
}
static inline dt_value_t dt_arg_double(double number)
{
    dt_value_t value = dt_arg_tag(DT_VALUE_DOUBLE);
    value.real = number;
    return value;
}
static inline dt_value_t dt_arg_tensor(dt_tensor_t *tensor) /* NULL: None */
{
    dt_value_t value = dt_arg_tag(tensor ? DT_VALUE_TENSOR : DT_VALUE_NONE);
    value.handle = tensor;
    return value;
}
static inline dt_value_t dt_arg_tensors(dt_tensor_t *const *tensors, uint32_t count)
{
    dt_value_t value = dt_arg_tag(DT_VALUE_TENSORS);
    value.count = count;
    value.handles = (void *const *)tensors;
    return value;
}
static inline dt_value_t dt_arg_ints(const int64_t *ints, uint32_t count)
{
    dt_value_t value = dt_arg_tag(DT_VALUE_INTS);
    value.count = count;
    value.ints = ints;
    return value;
}
static inline dt_value_t dt_arg_doubles(const double *doubles, uint32_t count)
{
    dt_value_t value = dt_arg_tag(DT_VALUE_DOUBLES);
    value.count = count;
    value.doubles = doubles;
    return value;
}
static inline dt_value_t dt_arg_bools(const uint8_t *bools, uint32_t count)
{
    dt_value_t value = dt_arg_tag(DT_VALUE_BOOLS);
    value.count = count;
    value.bools = bools;
    return value;
}
static inline dt_value_t dt_arg_str(const char *text, uint32_t bytes)
{
    dt_value_t value = dt_arg_tag(DT_VALUE_STR);
    value.count = bytes;
    value.text = text;
    return value;
}

/* ---- sessions ---- */

#define DT_CONNECT_PRIVATE 1u /* a private cluster, whatever address is configured */

/* Zero is a good start: set struct_size. Strings may be NULL. */
typedef struct dt_connect_options {
    size_t struct_size;  /* sizeof(dt_connect_options_t) */
    uint32_t flags;      /* DT_CONNECT_* */
    uint32_t vdev_count; /* virtual devices, at most 4096; 0: Devices= of client.conf, else 1. With
                            $DTORCH_DTENSOR_IN_SAME_DEVICE at least that many, on one device */
    const char *address; /* "host:port" or a unix socket's path; NULL: Address= of client.conf(5) or
                            $DTORCH_ADDRESS; none there either: a private cluster */
    const char *config_file;           /* in place of the system's client.conf */
    const char *certificate;           /* PEM files, in place of those of client.conf */
    const char *key;                   /* of `certificate` */
    const char *certificate_authority; /* that the controller's certificate must come from */
    const char *program;               /* name for people, at most 127 bytes; NULL: the process's */
    const char *device_kind;           /* "cpu" "cuda" "sim"; NULL: any */
    const char *backend;               /* that must run the operators: "torch" "ref"; NULL: any */
    uint64_t memory_limit_bytes;       /* of each virtual device, those on one device have it in
                                          common; 0: the cluster's default */
    const char *bin_dir;         /* the daemons of a private cluster; NULL: $DTORCH_BIN, beside the
                                    library, $PATH */
    const char *private_devices; /* Devices= of a private cluster's worker; NULL: all */
    int64_t connect_timeout_ms;  /* 0 = 10 s; 60 s for a private cluster */
    uint32_t linger_us; /* how long a record may wait for more to go with it, if nobody waits for
                           it; 0 = 50 us, and in a long run of operators twice as long as it
                           lasted, up to 1 ms */
    const char *record_file; /* write the session to this file (dtorchctl diag decode prints it):
                                operators, uploaded bytes, results; NULL: Record= of client.conf or
                                $DTORCH_RECORD, "": none. A file that cannot be made fails
                                dt_connect(); one that takes no more is told by dt_disconnect() */
    const char *api_key; /* shown to the controller over TLS, never without; NULL: ApiKeyFile= or
                            ApiKey= of client.conf, $DTORCH_API_KEY_FILE or $DTORCH_API_KEY; "":
                            none. With one, client.conf's Certificate= is not used */
} dt_connect_options_t;

/* Connect and begin a session. `options` NULL: all defaults.
 * With no address configured a private cluster of child processes is started on a unix socket in a
 * folder of its own; it ends with the session, and with the program however that ends.
 * Ownership: gives *ret_session, end it with dt_disconnect(). Errors: DT_ERR_NOT_FOUND (no daemon
 * program), DT_ERR_AGAIN (nobody answers, or no device is free), DT_ERR_TIMEOUT, DT_ERR_DENIED (the
 * API key or the certificate; the text says what to do), DT_ERR_PEER (refused; the text says why).
 * An API key that would have to go without TLS is DT_ERR_INVALID. Blocking: until connected, or
 * connect_timeout_ms. */
DT_API DT_MUST_USE dt_status_t dt_connect(const dt_connect_options_t *options,
                                          dt_session_t **ret_session, dt_error_t *err);

/* Send what is left, wait until all has been executed, and end the session: all it holds on the
 * cluster is freed, and its futures fail with DT_ERR_STOPPED. Tensors and futures of it may be
 * freed before or after. Takes `session` whatever it returns; NULL is fine.
 * Errors: that of an operator whose error was never fetched, and then `failure` says which;
 * DT_ERR_TIMEOUT (not all was executed within timeout_ms; negative: no limit). Blocking: yes.
 * Threads: no other thread may use the session any more. */
DT_API dt_status_t dt_disconnect(dt_session_t *session, int64_t timeout_ms, dt_failure_t *failure);

/* Wait until everything that was submitted so far has been executed or skipped, on all virtual
 * devices. Errors: DT_ERR_TIMEOUT. An operator's failure is no error here. */
DT_API dt_status_t dt_synchronize(dt_session_t *session, int64_t timeout_ms, dt_error_t *err);

/* While a function waits for the cluster, ask now and then (every 20 ms) whether to wait on.
 * `should_stop` runs on the waiting thread and may take its time, but not call into the session;
 * once it gives true the function returns DT_ERR_TIMEOUT, and what it would have done is not done.
 * NULL: not any more. Not while another thread is waiting. */
DT_API void dt_on_wait(dt_session_t *session, bool (*should_stop)(void *arg), void *arg);

/* Send what is in the open frame now. Seldom wanted: it goes by itself within 1 ms. */
DT_API dt_status_t dt_flush(dt_session_t *session, dt_error_t *err);

typedef struct dt_session_info {
    size_t struct_size; /* sizeof(dt_session_info_t), set by the caller */
    uint64_t session;   /* the job's number */
    uint32_t vdev_count;
    bool is_connected; /* now; it reconnects by itself */
    bool is_private;
    uint32_t epoch;
    uint32_t failures;   /* operators' errors that were not fetched yet */
    uint64_t reconnects; /* since the start */
    uint64_t records;    /* appended */
    uint64_t accepted;   /* of them: by the controller */
    uint64_t bytes;      /* of records, appended */
    uint64_t signatures; /* defined */
    uint64_t queries;    /* signatures whose outputs the cluster was asked for */
    /* Bytes of values over 4096 bytes, both ways: by shared memory, by a connection to
     * their node, relayed by the controller. */
    uint64_t window_bytes;
    uint64_t direct_bytes;
    uint64_t relayed_bytes;
    char detour[128]; /* why not by the first of them that could be; "": nothing is amiss */
} dt_session_info_t;

/* What a virtual device is bound to. */
typedef struct dt_binding {
    uint32_t vdev;
    uint32_t device; /* index within the node */
    char node[64];
    char kind[16];    /* "cpu" "cuda" "sim" */
    char backend[32]; /* "torch" "ref" "sim" */
    char boot_id[40]; /* of the node's host */
} dt_binding_t;

/* Fill *info up to its struct_size. Blocking: never. */
DT_API dt_status_t dt_session_info(dt_session_t *session, dt_session_info_t *info);
/* Copy the bindings of virtual devices 0.. as they are now, at most `max`; *ret_count: how many
 * there are. Blocking: never. */
DT_API dt_status_t dt_session_bindings(dt_session_t *session, dt_binding_t *ret_bindings,
                                       uint32_t max, uint32_t *ret_count);

/* ---- tensors ---- */

/* Make a contiguous tensor from host memory, on virtual device 0.
 * Shapes: `sizes` has `ndim` entries; `data` has dt_dense_bytes() of them, row-major; NULL: zeros.
 * Ownership: copies `data`; gives *ret_tensor, dt_tensor_free(). Errors: DT_ERR_LIMIT (size).
 * Blocking: flow. */
DT_API DT_MUST_USE dt_status_t dt_tensor_from(dt_session_t *session, dt_dtype_t dtype,
                                              unsigned ndim, const int64_t *sizes, const void *data,
                                              dt_tensor_t **ret_tensor, dt_error_t *err);

/* The same with more to say. Zero is a good start: set struct_size. */
typedef struct dt_upload {
    size_t struct_size;
    dt_dtype_t dtype;
    unsigned ndim;
    const int64_t *sizes; /* (ndim) */
    const void *data;     /* row-major */
    uint32_t vdev;
    /* If set, `data` is kept, not copied, until `release` is called with `arg`, on any thread and
     * perhaps before the call returns. It may not call into the session. */
    void (*release)(void *arg);
    void *arg;
    /* Where it goes instead of `vdev`. `data` is the whole tensor; each device gets its part. */
    const dt_mesh_t *mesh;            /* NULL: to `vdev` */
    const dt_placement_t *placements; /* one for each dimension of the mesh, not Partial; NULL: all
                                         Replicate */
} dt_upload_t;
DT_API DT_MUST_USE dt_status_t dt_tensor_upload(dt_session_t *session, const dt_upload_t *upload,
                                                dt_tensor_t **ret_tensor, dt_error_t *err);

/* Drop a reference; with the last one the cluster frees the tensor right after its last use that
 * was submitted before. NULL is fine. Blocking: never. */
DT_API void dt_tensor_free(dt_tensor_t *tensor);
/* Take one more reference; returns `tensor`. */
DT_API dt_tensor_t *dt_tensor_ref(dt_tensor_t *tensor);

/* Tell the metadata of a tensor. Known at once, except for outputs whose size depends on values
 * (`aten::nonzero`): then the tensor is fetched. Errors: as dt_future_wait(). */
DT_API dt_status_t dt_tensor_meta(dt_tensor_t *tensor, dt_meta_t *ret_meta, dt_failure_t *failure);
/* The id that operators name it by, and the virtual device that it lies on. */
DT_API uint64_t dt_tensor_id(const dt_tensor_t *tensor);
DT_API uint32_t dt_tensor_vdev(const dt_tensor_t *tensor);
/* Fetch and wait: dt_fetch(), dt_future_wait(), dt_future_read(). Errors: theirs; DT_ERR_LIMIT
 * (`size` is not the tensor's size in bytes). */
DT_API dt_status_t dt_tensor_read(dt_tensor_t *tensor, void *ret_data, size_t size,
                                  dt_failure_t *failure);

/* ---- tensors on several devices ----
 * A mesh is an array of virtual devices. A tensor on a mesh is one tensor with its global shape:
 * any operator takes it, and values, in-place writes and views are those of one device. Where the
 * parts lie costs time, never meaning: what an operator needs elsewhere is moved there first. */

/* Make a mesh of virtual devices of the session.
 * Shapes: `sizes` has `ndim` entries (1 to DT_RECORD_MESH_DIM_MAX), their product is the number of
 * `vdevs`, row-major and distinct; NULL: 0, 1, 2... `names` has `ndim` names of at most 255 bytes,
 * for people; may be NULL. The same mesh made again is the same one.
 * Ownership: gives *ret_mesh, dt_mesh_free(); the session has at most 60,000 different ones.
 * Errors: DT_ERR_INVALID, DT_ERR_LIMIT (the session has fewer virtual devices). Blocking: flow.
 * Cost: ids that were submitted before the session's first mesh are plain tensors without known
 * views: a write to one of them beside mesh tensors is copied back to it. */
DT_API DT_MUST_USE dt_status_t dt_mesh_create(dt_session_t *session, unsigned ndim,
                                              const uint32_t *sizes, const char *const *names,
                                              const uint32_t *vdevs, dt_mesh_t **ret_mesh,
                                              dt_error_t *err);
DT_API void dt_mesh_free(dt_mesh_t *mesh); /* tensors on it stay; NULL is fine */
/* Tell the shape: *ret_ndim, and so many sizes. Blocking: never. */
DT_API void dt_mesh_shape(const dt_mesh_t *mesh, unsigned *ret_ndim,
                          uint32_t ret_sizes[DT_RECORD_MESH_DIM_MAX]);

/* Make a tensor of a value that lies on `mesh` by `placements` (one for each dimension of it).
 * `mesh` NULL: on virtual device 0 alone. From and to any mesh, any placements.
 * Ownership: gives *ret_tensor, a tensor of its own; dt_tensor_free().
 * Errors: DT_ERR_INVALID (a placement that this tensor cannot have; the text says why).
 * Blocking: flow. */
DT_API DT_MUST_USE dt_status_t dt_redistribute(dt_tensor_t *tensor, const dt_mesh_t *mesh,
                                               const dt_placement_t *placements,
                                               dt_tensor_t **ret_tensor, dt_error_t *err);
/* Tell where a tensor lies: *ret_mesh (with no reference of its own; NULL: on one virtual device)
 * and a placement for each of its dimensions. Blocking: never. */
DT_API DT_MUST_USE dt_status_t
dt_tensor_layout(dt_tensor_t *tensor, const dt_mesh_t **ret_mesh,
                 dt_placement_t ret_placements[DT_RECORD_MESH_DIM_MAX]);

/* Have operators read a tensor elsewhere than where it lies: each one that only reads it gets a
 * copy by `placements` on its mesh, a write goes to the tensor itself. NULL: as it lies. This is
 * what makes a sharded parameter one that is gathered when it is used. The copy is gone behind the
 * operator, or with DT_USE_KEPT kept until the tensor is written.
 * Errors: DT_ERR_INVALID (it is on no mesh; a placement that it cannot have; an unknown flag). */
#define DT_USE_KEPT 1u
DT_API DT_MUST_USE dt_status_t dt_tensor_use(dt_tensor_t *tensor, const dt_placement_t *placements,
                                             uint32_t flags, dt_error_t *err);

/* What to do when an operator cannot run with its inputs where they lie. All but STRICT switch off
 * something that saves moves, to measure what it is worth; they can be combined by |. No value
 * depends on any of them, but for the order of sums. */
typedef enum dt_policy {
    DT_POLICY_AUTO = 0, /* move what costs least */
    DT_POLICY_STRICT =
        1, /* refuse: the call gives DT_ERR_INVALID with operator, shapes, placements */
    DT_POLICY_FORGET = 2,    /* what was moved for one operator is not kept for the next ones */
    DT_POLICY_UNSETTLED = 4, /* a Partial that had to be reduced stays Partial */
    DT_POLICY_PASS = 8,      /* a Partial passes every operator that is linear in it, not only those
                                that join or shrink */
    DT_POLICY_UNPINNED = 16, /* DT_HINT_PINNED means nothing */
    DT_POLICY_WHOLE = 32,    /* softmax, norms and losses along a dimension that is cut gather it,
                                where they would run in parts */
} dt_policy_t;
/* Errors: DT_ERR_INVALID (an unknown bit). It holds for operators from now on. */
DT_API dt_status_t dt_set_policy(dt_session_t *session, dt_policy_t policy);

/* ---- operators ---- */

/* Call an operator by its schema name: "aten::add.Tensor".
 * `args` are in the schema's order, positional and keyword alike; those left out at the end, and
 * DT_VALUE_DEFAULT, are the schema's defaults. A tensor may lie on any virtual device, but all of
 * one operator on the same, unless one lies on a mesh: others are brought there. An operator
 * without tensors runs on virtual device 0. Results come in schema order, lists flattened:
 * ret_outputs[0 .. *ret_count), NULL for an undefined one. A result that is an input written in
 * place is that input again, with one more reference. Where nobody knows the results before the
 * operator has run and not even their number, output_max is taken for it. `ret_count` may be NULL.
 * Ownership: gives each output, dt_tensor_free(). Errors: those that the operator raises at once
 * for these shapes (INVALID, NOT_FOUND, with failure->kind), DT_ERR_LIMIT (more than output_max
 * results; nothing was done). Errors that need the values come when a result is fetched.
 * Blocking: flow; a signature that the session has not seen is asked for at the cluster, once. */
DT_API DT_MUST_USE dt_status_t dt_call(dt_session_t *session, const char *name,
                                       const dt_value_t *args, uint32_t arg_count,
                                       dt_tensor_t **ret_outputs, uint32_t output_max,
                                       uint32_t *ret_count, dt_failure_t *failure);

/* ---- operators, the fast path for front ends ----
 * A signature is an operator with its attributes and its inputs' metadata. It is looked up or
 * defined once, then operators are submitted by its number and by tensors' ids. An id is freed by
 * dt_free_ids(), or by the handle that owns it. */

typedef struct dt_operand {
    dt_meta_t meta;
    uint32_t vdev;
} dt_operand_t;

/* The k-th tensor among `args` (lists flattened, None left out; handles are only looked at for
 * being NULL) is described by inputs[k]. Numbers that change each time are DT_VALUE_DYNAMIC; where
 * kinds of numbers give different results, `number` tells them apart (it is not sent). */
typedef struct dt_operation {
    const char *name;
    const dt_value_t *args; /* (arg_count) */
    uint32_t arg_count;
    uint32_t input_count;
    const dt_operand_t *inputs; /* (input_count) */
} dt_operation_t;

typedef struct dt_output {
    uint8_t alias;  /* dt_alias_t */
    uint32_t input; /* VIEW, IN_PLACE: which input */
    dt_meta_t meta; /* but for NONE */
} dt_output_t;

#define DT_SIGNATURE_DRAWS   1u /* draws from a random stream */
#define DT_SIGNATURE_DEPENDS 2u /* metadata of the outputs depends on values */

/* Look up. Errors: DT_ERR_NOT_FOUND. Blocking: never. */
DT_API dt_status_t dt_signature_find(dt_session_t *session, const dt_operation_t *operation,
                                     uint32_t *ret_signature, dt_error_t *err);
/* Define with the outputs that the caller knows; the engine checks them at the first execution.
 * Defining again gives the same number. Errors: DT_ERR_LIMIT (too many), DT_ERR_EXISTS (it is
 * defined with other outputs). Blocking: flow. */
DT_API dt_status_t dt_signature_define(dt_session_t *session, const dt_operation_t *operation,
                                       const dt_output_t *outputs, uint32_t output_count,
                                       uint32_t flags, uint32_t *ret_signature, dt_error_t *err);
/* Look up, else ask the cluster for the outputs and define. `output_max` as in dt_call().
 * Errors: as dt_call(). Blocking: until the cluster has answered. */
DT_API dt_status_t dt_signature_infer(dt_session_t *session, const dt_operation_t *operation,
                                      uint32_t output_max, uint32_t *ret_signature,
                                      dt_failure_t *failure);
/* Tell the outputs of a signature, and its flags (may be NULL).
 * Ownership: *ret_outputs is the session's, valid until it ends. */
DT_API dt_status_t dt_signature_outputs(dt_session_t *session, uint32_t signature,
                                        const dt_output_t **ret_outputs, uint32_t *ret_count,
                                        uint32_t *ret_flags);

/* Signatures that will not be used any more: a session has at most 16,000, and those whose number
 * the program knows are not dropped by themselves. Unknown ones are passed over. Blocking: flow. */
DT_API dt_status_t dt_signature_drop(dt_session_t *session, const uint32_t *signatures,
                                     uint32_t count, dt_error_t *err);

/* Submit one operator. Shapes: `inputs` has an id for each input, `scalars` a number (INT, DOUBLE,
 * TRUE, FALSE, NONE) for each DYNAMIC argument, ret_outputs gets an id for each output that is
 * FRESH or VIEW; it may be NULL if there is none. Errors: DT_ERR_INVALID (counts). Blocking: flow.
 */
DT_API DT_MUST_USE dt_status_t dt_submit(dt_session_t *session, uint32_t signature,
                                         const uint64_t *inputs, uint32_t input_count,
                                         const dt_value_t *scalars, uint32_t scalar_count,
                                         uint64_t *ret_outputs, uint32_t output_count,
                                         dt_error_t *err);
/* The same for an operator without tensor inputs, whose results are to lie on `mesh` by
 * `placements` (NULL: all Replicate). */
DT_API DT_MUST_USE dt_status_t dt_submit_on(dt_session_t *session, uint32_t signature,
                                            const dt_mesh_t *mesh, const dt_placement_t *placements,
                                            const dt_value_t *scalars, uint32_t scalar_count,
                                            uint64_t *ret_outputs, uint32_t output_count,
                                            dt_error_t *err);

/* ---- ids on meshes: signatures say nothing of meshes; what dt_submit() is given lies where it
 * lies, and what must move is moved. An id stays valid wherever its value goes. ---- */

/* dt_redistribute() by ids. `meta` may be NULL for an id that came from an operator or upload since
 * the session's first mesh. `mesh` NULL: to `vdev` alone. */
DT_API DT_MUST_USE dt_status_t dt_redistribute_id(dt_session_t *session, uint64_t id,
                                                  const dt_meta_t *meta, uint32_t vdev,
                                                  const dt_mesh_t *mesh,
                                                  const dt_placement_t *placements,
                                                  uint64_t *ret_id, dt_error_t *err);
/* Move the storage of `id`; its views stay what they are. `id` is the whole of its storage, known
 * since the first mesh. Errors: DT_ERR_INVALID (it is a view, or unknown). */
DT_API DT_MUST_USE dt_status_t dt_redistribute_in_place(dt_session_t *session, uint64_t id,
                                                        const dt_meta_t *meta,
                                                        const dt_mesh_t *mesh,
                                                        const dt_placement_t *placements,
                                                        dt_error_t *err);
/* dt_tensor_layout() by id; a view's own layout, as of its last use. A Shard's unit is 0 where some
 * rows lie elsewhere than it says: of a slice of a dimension that is cut they stay where they were.
 * dt_redistribute() to the same placements makes it even. */
DT_API DT_MUST_USE dt_status_t dt_layout_of(dt_session_t *session, uint64_t id,
                                            const dt_mesh_t **ret_mesh,
                                            dt_placement_t ret_placements[DT_RECORD_MESH_DIM_MAX],
                                            dt_error_t *err);
/* What the program knows of a storage; `id` is the whole of it. */
#define DT_HINT_PINNED                                                                             \
    1u /* placed by a plan: not moved for an operator unless there is no other way */
DT_API DT_MUST_USE dt_status_t dt_layout_hint(dt_session_t *session, uint64_t id, uint32_t flags,
                                              dt_error_t *err);
/* For debugging: ask for the part that one virtual device has. `meta` as in dt_redistribute_id().
 */
DT_API DT_MUST_USE dt_status_t dt_fetch_shard(dt_session_t *session, uint64_t id,
                                              const dt_meta_t *meta, uint32_t vdev,
                                              dt_future_t **ret_future, dt_error_t *err);

/* The caller has used these ids for the last time. Blocking: never. */
DT_API void dt_free_ids(dt_session_t *session, const uint64_t *ids, uint32_t count);
/* The same of ids that hold so many bytes together: small ones are sent together with others, large
 * ones at once, so that a worker holds no more than a program that runs beside it would. */
DT_API void dt_free_ids_of(dt_session_t *session, const uint64_t *ids, uint32_t count,
                           uint64_t bytes);
/* Make a handle that owns `id` (of dt_submit()). `meta` NULL: not known yet.
 * Gives *ret_tensor, dt_tensor_free() */
DT_API DT_MUST_USE dt_status_t dt_tensor_adopt(dt_session_t *session, uint64_t id, uint32_t vdev,
                                               const dt_meta_t *meta, dt_tensor_t **ret_tensor,
                                               dt_error_t *err);
/* Give up a handle with a single reference without freeing its tensor; returns the id, which is the
 * caller's to free. Takes `tensor`. */
DT_API uint64_t dt_tensor_disown(dt_tensor_t *tensor);

/* ---- values ---- */

/* Ask for a tensor's value as it is at this point of the program: later in-place operators do not
 * change it. Ownership: gives *ret_future, dt_future_free(). Blocking: flow. */
DT_API DT_MUST_USE dt_status_t dt_fetch(dt_tensor_t *tensor, dt_future_t **ret_future,
                                        dt_error_t *err);
DT_API DT_MUST_USE dt_status_t dt_fetch_id(dt_session_t *session, uint64_t id,
                                           dt_future_t **ret_future, dt_error_t *err);
/* Whether dt_future_wait() would return at once. Blocking: never. */
DT_API bool dt_future_ready(dt_future_t *future);
/* Wait for the value; negative: no limit. Errors: DT_ERR_TIMEOUT; that of the operator which
 * failed, with all of *failure: INVALID (its own refusal), LIMIT (memory), LOST (node or engine
 * lost), DEVICE, INTERNAL (MetadataError). May be called again, from several threads. */
DT_API dt_status_t dt_future_wait(dt_future_t *future, int64_t timeout_ms, dt_failure_t *failure);
/* After dt_future_wait() gave DT_OK: the metadata (contiguous), and the elements row-major.
 * Ownership: *ret_data is the future's. Errors: DT_ERR_AGAIN (not ready). Blocking: never. */
DT_API dt_status_t dt_future_meta(dt_future_t *future, dt_meta_t *ret_meta);
DT_API dt_status_t dt_future_data(dt_future_t *future, const void **ret_data, size_t *ret_size);
/* Copy the elements. Errors: DT_ERR_AGAIN (not ready), DT_ERR_LIMIT (`size` is not the size). */
DT_API dt_status_t dt_future_read(dt_future_t *future, void *ret_data, size_t size,
                                  dt_error_t *err);
/* NULL is fine; one that is not ready is forgotten. No other thread may be waiting for it. */
DT_API void dt_future_free(dt_future_t *future);

/* ---- notes in the stream ---- */

/* A step of the program ended. */
DT_API dt_status_t dt_mark_step(dt_session_t *session, uint64_t step, dt_error_t *err);
/* Ranges, for people: they nest. `name` at most 127 bytes. */
DT_API dt_status_t dt_range_begin(dt_session_t *session, const char *name, dt_error_t *err);
DT_API dt_status_t dt_range_end(dt_session_t *session, dt_error_t *err);
/* Operators that follow come from this place of the program, "train.py:57 in loss", at most 1023
 * bytes: errors name it. Cheap when it is the same as before. NULL: unknown. */
DT_API dt_status_t dt_mark_source(dt_session_t *session, const char *place, dt_error_t *err);
#define DT_SOURCE_TEXT2(line) #line
#define DT_SOURCE_TEXT(line)  DT_SOURCE_TEXT2(line)
#define DT_SOURCE_HERE(session)                                                                    \
    dt_mark_source((session), __FILE__ ":" DT_SOURCE_TEXT(__LINE__), NULL)
/* Begin a random stream anew. Operators draw from stream 0, or from that of a generator argument.
 */
DT_API dt_status_t dt_seed(dt_session_t *session, uint32_t stream, uint64_t seed, uint64_t offset,
                           dt_error_t *err);
/* Set an option of the stream, by its number in dtorch-protocol(7). Unknown ones are passed over.
 */
DT_API dt_status_t dt_option(dt_session_t *session, uint32_t key, const char *value,
                             dt_error_t *err);

#ifdef __cplusplus
}
#endif
#endif
