/* Parts of the torch backend. Only files of this folder include it; what leaves the shared object
 * is the C table of device/backend.h, and no exception crosses it.
 *
 * A tensor handle is a c10::TensorImpl * with one reference; NULL is an undefined tensor. */
#ifndef DT_BACKEND_TORCH_INTERNAL_H
#define DT_BACKEND_TORCH_INTERNAL_H
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <cstdint>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" {
#include "device/backend.h"
}

namespace dt_torch
{

/* A value that does not fit the schema; the text names the argument. */
struct ValueMismatch : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* A question that has no answer without the values. */
struct NotKnown : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* What a schema argument takes. */
enum class Kind : uint8_t {
    tensor,
    tensors,
    optional_tensors,
    integer,
    integers,
    real,
    reals,
    boolean,
    booleans,
    scalar,
    scalars,
    string,
    strings,
    device,
    generator,
    storage,
    complex,
    unsupported,
};

struct Argument {
    Kind kind;
    bool is_optional;
    bool has_default;
    int32_t fixed; /* length of int[N]; -1 without */
    c10::IValue fallback;
    std::string name;
};

struct Op;

/* A way to call an operator without boxing its arguments: typed.cpp. */
struct Typed {
    virtual ~Typed() = default;
    /* Whether these arguments can be given so; what cannot is boxed, and refused there. */
    virtual bool fits(const Op &op, const dt_value_t *args, uint32_t count) const = 0;
    virtual at::Tensor call(const Op &op, const dt_value_t *args, uint32_t count) const = 0;
};

struct Op {
    c10::OperatorHandle handle;
    std::unique_ptr<Typed> typed; /* NULL: its schema is not one of the few that have it */
    std::vector<Argument> arguments;
    std::string name;
    bool is_supported = true;
    bool is_factory = false; /* a device argument and no tensor argument */
    bool is_dynamic = false; /* metadata of results depends on values */
    bool is_meta_missing =
        false; /* Meta refused it once: never asked again; metadata thread only */
    explicit Op(const c10::OperatorHandle &h) : handle(h)
    {
    }
};

/* The stack and the results keep their memory between calls; a call that throws leaves them empty.
 */
struct Scratch {
    std::vector<c10::IValue> stack;
    std::vector<at::Tensor> results;
    void clear()
    {
        stack.clear();
        results.clear();
    }
};

struct Device {
    c10::Device where = c10::Device(c10::DeviceType::CPU);
    int32_t threads = 1;
    std::mutex lock; /* ops */
    std::unordered_map<std::string, std::unique_ptr<Op>> ops;
    std::unordered_map<uint32_t, at::Generator> streams; /* executor only */
    uint32_t used_stream = 0;                            /* that the default generator stands for */
    bool is_default_loaded = false;
    Scratch scratch;        /* executor only */
    pthread_t executor = 0; /* the thread that has entered to execute */
};

/* Where a call's arguments come from and where its device arguments point. */
struct Call {
    Device *device;
    c10::Device where;                     /* that DEVICE arguments mean */
    const std::vector<at::Tensor> *inputs; /* infer: in place of handles, in order; else NULL */
    size_t next_input = 0;
};

inline at::Tensor borrow(void *handle)
{
    if (!handle)
        return at::Tensor();
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
        static_cast<c10::TensorImpl *>(handle)));
}

inline void *give(at::Tensor &&tensor)
{
    return tensor.defined() ? tensor.unsafeReleaseTensorImpl() : nullptr;
}

/* What an exception means. */
dt_status_t status_of(const c10::Error &e, dt_error_t *err) noexcept;
dt_status_t status_of(const std::exception &e, dt_error_t *err) noexcept;

/* Run `body`; no exception leaves. Each is caught once, where it is turned into a status: to throw
 * it again would cost what the first throw did. */
template <typename F> dt_status_t guarded(dt_error_t *err, F &&body) noexcept
{
    try {
        return body();
    } catch (const c10::Error &e) {
        return status_of(e, err);
    } catch (const std::exception &e) {
        return status_of(e, err);
    } catch (...) {
        return dt_fail(err, DT_ERR_INVALID, "torch", DT_BACKEND_RUNTIME_ERROR, "unknown exception");
    }
}

/* operators.cpp: once a process, before any is looked for. */
void register_operators();
void register_linear(); /* linear.cpp */
/* schema.cpp */
dt_status_t find_op(Device *device, const char *name, Op **ret_op, dt_error_t *err);
/* values.cpp: push all arguments of `op` onto `stack`. Throws ValueMismatch. */
void push_arguments(const Op &op, const dt_value_t *args, uint32_t count, Call &call,
                    std::vector<c10::IValue> &stack);
at::Scalar as_scalar(const Argument &argument, const dt_value_t &v);
/* typed.cpp: NULL: it is boxed. */
std::unique_ptr<Typed> typed_call(const Op &op);
/* values.cpp: flatten what stands on `stack`, numbers as tensors of no dimensions. */
void pop_results(std::vector<c10::IValue> &stack, std::vector<at::Tensor> &results);
/* memory.cpp: tensors of the CPU come from `memory` from now on, in the whole process. */
void install_allocator(const dt_backend_memory_t *memory);
/* random.cpp, tensors.cpp, infer.cpp: entries of the table; `arg` is the Device */
at::Generator &stream_of(Device *device, uint32_t stream);
dt_status_t generator_seed(void *arg, uint32_t stream, uint64_t seed, uint64_t offset,
                           dt_error_t *err);
dt_status_t generator_use(void *arg, uint32_t stream, dt_error_t *err);
void generator_free(void *arg, uint32_t stream);
/* tensors.cpp */
dt_status_t meta_of(const at::Tensor &tensor, dt_meta_t *ret_meta, dt_error_t *err);
at::Tensor empty_like_meta(const dt_meta_t &meta, c10::Device where);
dt_status_t tensor_create(void *arg, const dt_meta_t *meta, void **ret_tensor, dt_error_t *err);
dt_status_t tensor_info(void *arg, void *handle, dt_backend_tensor_t *ret_info, dt_error_t *err);
bool tensor_is(void *arg, void *handle, const dt_meta_t *meta, const void **ret_storage);
dt_status_t tensor_write(void *arg, void *handle, uint64_t offset, const void *bytes, size_t size,
                         dt_error_t *err);
dt_status_t tensor_read(void *arg, void *handle, uint64_t offset, void *ret_bytes, size_t size,
                        dt_error_t *err);
void tensor_free(void *arg, void *handle);
/* infer.cpp */
dt_status_t op_infer(void *arg, void *op_arg, const dt_value_t *args, uint32_t arg_count,
                     const dt_meta_t *inputs, uint32_t input_count,
                     dt_backend_output_t *ret_outputs, uint32_t output_max, uint32_t *ret_count,
                     dt_error_t *err);
dt_status_t op_rehearse(void *arg, void *op_arg, const dt_value_t *args, uint32_t arg_count,
                        const dt_meta_t *inputs, uint32_t input_count,
                        dt_backend_output_t *ret_outputs, uint32_t output_max, uint32_t *ret_count,
                        dt_error_t *err);
dt_status_t op_output_count(void *arg, void *op_arg, uint32_t *ret_count);
/* Set what each thread that calls LibTorch needs, once a thread. */
void enter_thread(Device *device);

} // namespace dt_torch

#endif
