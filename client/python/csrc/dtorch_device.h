/* The PyTorch device "dtorch": what the Python package calls, by ctypes.
 *
 * libdtorch_torch.so registers a PrivateUse1 backend over libdtorch. It links LibTorch and
 * libdtorch and no Python, so one binary serves every Python version; what it needs of the
 * interpreter (the line that issues an operator, signals while it waits, classes of exceptions) it
 * is told by dt_device_python(). The package does, once, at the end of `import torch`:
 *
 *     dt_device_python(&python)   functions of the interpreter; may be left out
 *     dt_device_install()         kernels, allocator, hooks; connects to nothing
 *     dt_device_take_meta()       C++ Meta kernels, those below Python's, of what has a kernel now
 *     dt_device_configure(&opts)  any time before the first use of the device
 *
 * and renames the backend. The session begins with the first use of the device and ends with
 * dt_device_disconnect() or the process.
 *
 * Tensors go through operators of the namespace `dtorch` (torch.ops.dtorch.NAME), as ctypes knows
 * none; their errors are exceptions:
 *
 *     fetch_start(Tensor) -> int           ask for the value as it is now; a number for the next
 * ones fetch_done(int) -> bool              it is here, or its error is fetch_wait(int, int) ->
 * bool         wait so many ms (negative: no limit); False: not yet. Raises the operator's error
 *     fetch_take(int) -> Tensor            on the CPU; waits; the number ends
 *     fetch_drop(int) -> ()                not wanted any more
 *     place(Tensor) -> str                 "node, cpu:0" where the tensor lies, "" if not known yet
 *     wire_id(Tensor) -> int               the id that the cluster knows it by (for tests and
 * tools)
 *
 * Functions return 0 or a negative dt_status_t unless they say otherwise; dt_device_error() tells
 * what was wrong on this thread. They may be called from any thread, with or without the GIL; those
 * that wait need it released (ctypes.CDLL does that).
 * Strings are UTF-8; parameters are borrowed. */
#ifndef DT_DTORCH_DEVICE_H
#define DT_DTORCH_DEVICE_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifndef DT_API
#define DT_API __attribute__((visibility("default")))
#endif

#define DT_DEVICE_ABI 2

/* Changes when a function or a structure of this header does. */
DT_API uint32_t dt_device_abi(void);
/* Of PyTorch that this library was built with, "2.11.0". */
DT_API const char *dt_device_torch_version(void);
/* What the last function that failed on this thread said; never NULL. Valid until the next one. */
DT_API const char *dt_device_error(void);

/* ---- start ---- */

/* What the library may ask of the interpreter. Unused members are NULL; zero is a good start. */
typedef struct dt_device_python {
    size_t struct_size;
    uint32_t version; /* sys.hexversion */
    /* Addresses in the interpreter, as ctypes.cast(ctypes.pythonapi.NAME, c_void_p) gives them. */
    int (*gil_ensure)(void);        /* PyGILState_Ensure */
    void (*gil_release)(int state); /* PyGILState_Release */
    int (*check_signals)(void);     /* PyErr_CheckSignals */
    void *(*thread_state)(void);    /* PyGILState_GetThisThreadState */
    void (*fetch_error)(void **ret_type, void **ret_value, void **ret_traceback); /* PyErr_Fetch */
    void (*restore_error)(void *type, void *value,
                          void *traceback); /* PyErr_Restore, keeps order */
    void (*ref)(void *object);              /* Py_IncRef */
    void (*unref)(void *object);            /* Py_DecRef */
    /* A Python callback. `code` is a code object that has issued an operator for the first time at
     * the instruction at `instruction` (an address; code objects' own begin at
     * id(code) + CodeType.__basicsize__). Write "train.py:57 in loss" to `ret_place`, at most
     * `size` bytes with the NUL, and return 1; 0: not a place of the program (the next outer frame
     * is asked). Keep the code object alive: it is known by its address from now on. */
    int (*resolve)(void *code, uint64_t instruction, char *ret_place, size_t size);
    int (*gil_check)(void);              /* PyGILState_Check */
    void *(*save_thread)(void);          /* PyEval_SaveThread */
    void (*restore_thread)(void *state); /* PyEval_RestoreThread */
} dt_device_python_t;
DT_API int dt_device_python(const dt_device_python_t *python);

/* Which exception stands for a kind of error: `type` is a Python class (kept by the caller for
 * good) that is called with the text alone; dt_device_failure() has the rest. Kinds: those of
 * dt_failure_t
 * ("IndexError" "ValueError" "TypeError" "NotImplementedError" "LinAlgError" "OutOfMemoryError"
 * "RuntimeError" "WorkerLost" "EngineLost" "MetadataError"), the names of statuses ("DT_ERR_LOST"),
 * "Forked", and "" for all others. Without a class PyTorch's own exceptions are thrown. */
DT_API int dt_device_exception(const char *kind, void *type);

/* Whether the issuing line can be read from this interpreter: asks for the place of the caller, who
 * compares. Gives 1 and the place, 0 if it is unknown; then errors come without a line. */
DT_API int dt_device_here(char *ret_place, size_t size);

/* Register kernels, allocator, guard, hooks and generators. Returns how many overloads have a
 * kernel now. May be called again. */
DT_API int dt_device_install(void);
/* Take the C++ Meta kernels that lie under Python's registrations, which stay as they are. Call it
 * after dt_device_install(). Returns how many there are. Without it the cluster is asked for more.
 */
DT_API int dt_device_take_meta(void);

/* As dt_connect_options_t of dtorch/dtorch.h. Zero is a good start: set struct_size. */
typedef struct dt_device_options {
    size_t struct_size;
    uint32_t vdev_count; /* device indices, 0 = 1 */
    uint32_t is_private; /* a private cluster, whatever address is configured */
    const char *address;
    const char *config_file;
    const char *program;
    const char *device_kind;
    const char *bin_dir;
    const char *private_devices;
    const char *record_file;
    uint64_t memory_limit_bytes;
    int64_t connect_timeout_ms;
} dt_device_options_t;
/* Errors: DT_ERR_EXISTS (the session has begun). */
DT_API int dt_device_configure(const dt_device_options_t *options);

/* ---- the session ---- */

/* Begin it now; nothing if it has begun. Blocking: yes. */
DT_API int dt_device_connect(void);
/* End it: waits until all has been executed, at most timeout_ms. An operator's error that nobody
 * has fetched makes it fail, and dt_device_failure() tells. Tensors of the session are gone
 * afterwards; the next use of the device begins another one. Nothing if there is none. */
DT_API int dt_device_disconnect(int64_t timeout_ms);
/* 1: there is a session, 0: not (yet, or any more). */
DT_API int dt_device_is_connected(void);
/* Device indices: of the session, or as configured. */
DT_API int dt_device_count(void);
/* The program names devices up to this one: the session gets as many if it has not begun.
 * Errors: DT_ERR_EXISTS (it has begun with fewer). */
DT_API int dt_device_need(int count);
/* Index that "dtorch" without a number means on this thread. */
DT_API int dt_device_current(void);
DT_API int dt_device_set_current(int index);
/* Wait until everything submitted so far has been executed. */
DT_API int dt_device_synchronize(void);
DT_API int dt_device_flush(void);
/* The program was forked and this is the child: the device cannot be used here. */
DT_API int dt_device_is_forked(void);

typedef struct dt_device_session {
    size_t struct_size;
    uint64_t session;
    uint32_t vdev_count;
    uint32_t is_connected;
    uint32_t is_private;
    uint32_t epoch;
    uint64_t reconnects;
    uint64_t records;
    uint64_t bytes;
    uint64_t signatures;
    uint64_t queries;
    uint64_t operators; /* calls of the boxed kernel */
    uint64_t hits;      /* of them: metadata was known */
    uint64_t metas;     /* answered by a C++ Meta kernel here */
    uint64_t rules;     /* by a rule */
    uint64_t asked;     /* by the cluster */
    uint64_t waits;     /* for values: fetches, and sizes that depend on values */
    uint64_t views;     /* view operators sent */
    uint64_t uploads;
} dt_device_session_t;
DT_API int dt_device_session(dt_device_session_t *info);
/* "node03 cpu:0" of a virtual device; returns its length. */
DT_API int dt_device_binding(int index, char *ret_text, size_t size);

/* Bytes of the program's storages, as it has made them; the cluster may hold more for a while. */
typedef struct dt_device_memory {
    size_t struct_size;
    uint64_t allocated_bytes;
    uint64_t peak_bytes;
    uint64_t total_bytes; /* ever */
    uint64_t storages;
    uint64_t total_storages;
} dt_device_memory_t;
DT_API int dt_device_memory(int index, dt_device_memory_t *stats);
DT_API int dt_device_memory_reset_peak(int index);

/* ---- random streams ---- */

/* Begin the default generator of a device anew; index -1: all devices. Needs no session. */
DT_API int dt_device_seed(int index, uint64_t seed);
DT_API uint64_t dt_device_initial_seed(int index);
/* Copy its state. `*size`: room, then what it takes. Waits for the cluster. */
DT_API int dt_device_rng_state(int index, void *ret_state, size_t *size);
DT_API int dt_device_set_rng_state(int index, const void *state, size_t size);

/* ---- notes and errors ---- */

DT_API int dt_device_range_begin(const char *name);
DT_API int dt_device_range_end(void);
DT_API int dt_device_step(uint64_t step);

/* All that is known of the last error that an operator raised on this thread. */
typedef struct dt_device_failure {
    size_t struct_size;
    int32_t status; /* dt_status_t */
    uint32_t device;
    uint32_t vdev;
    uint32_t range_count;
    uint64_t sequence;
    uint64_t skipped;
    char kind[32];
    char text[4097];
    char operator_name[256];
    char inputs[1025];
    char place[1024];
    char node[64];
    char range[16][128];
} dt_device_failure_t;
/* DT_ERR_NOT_FOUND: none. */
DT_API int dt_device_failure(dt_device_failure_t *failure);

/* ns that recording one `add` costs in C++, over `count` calls. Needs a session. */
DT_API double dt_device_bench_add(int count);
/* ns of it to find what comes out of a call: its key is put together and looked up. */
DT_API double dt_device_bench_hit(int count);
/* ns to find which line of the program issues an operator. */
DT_API double dt_device_bench_place(int count);

#ifdef __cplusplus
}
#endif
#endif
