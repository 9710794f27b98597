/* Inside libdtorch_torch.so: the PyTorch device "dtorch" over libdtorch.
 *
 *   an operator of the program
 *     -> PrivateUse1 kernel (register.cpp), boxed
 *     -> key over (overload, attributes, the operands' geometries)      record.cpp
 *     -> signature, known (a cache hit) or worked out once              metadata.cpp
 *     -> dt_submit(): a record in libdtorch's open frame
 *     -> results: new tensors of known geometry, no value
 *
 * A tensor of PyTorch is (storage, geometry). The storage's context, dt_pu::Storage, owns the ids
 * that the cluster knows: that of the base tensor, which fills the storage, and those of views of
 * it that were operands. View operators (views.cpp) only note how a geometry came about; what was
 * noted is sent when such a tensor becomes an operand.
 *
 * Threads: any may issue operators (autograd's backward runs in one of its own). `recorder()`
 * guards the storages' ids, the tables of signatures and chains; it is held while a record is
 * appended, which may wait for the cluster, and never while Python is called. Storages are freed
 * without it. Nothing here is destroyed at exit: threads may still run then. */
#ifndef DT_PYTHON_INTERNAL_H
#define DT_PYTHON_INTERNAL_H
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <dtorch/dtorch.h>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dtorch_device.h"
#include "keys.h"

namespace dt_pu
{

using Stack = torch::jit::Stack;
constexpr auto kind = c10::DeviceType::PrivateUse1;
constexpr auto key = c10::DispatchKey::PrivateUse1;

/* ---- geometry (storage.cpp): sizes, strides, element type, lazy bits, offset; interned ---- */

struct Geometry {
    dt_meta_t meta;
    int64_t offset;        /* elements */
    const Geometry *plain; /* the same at offset 0: all that an operator sees */
    uint32_t number;       /* names it in keys */
    size_t span_bytes;     /* of storage, from its begin to the last element's end */
    bool is_contiguous;    /* row-major, with PyTorch's strides */
    bool equals(const at::TensorBase &tensor) const; /* part of every operator's cost: inline */
};

inline uint8_t lazy_bits(const c10::TensorImpl &tensor)
{
    return (uint8_t)((tensor.is_conj() ? DT_META_CONJ : 0) | (tensor.is_neg() ? DT_META_NEG : 0));
}

inline bool Geometry::equals(const at::TensorBase &tensor) const
{
    const c10::TensorImpl &impl = *tensor.unsafeGetTensorImpl();
    const auto sizes = impl.sizes(), strides = impl.strides();
    if ((c10::ScalarType)meta.dtype != c10::typeMetaToScalarType(impl.dtype()) ||
        meta.ndim != sizes.size() || offset != impl.storage_offset() ||
        (meta.layout & 0xc0) != lazy_bits(impl))
        return false;
    for (unsigned i = 0; i < meta.ndim; i++)
        if (meta.sizes[i] != sizes[i] || meta.strides[i] != strides[i])
            return false;
    return true;
}

/* The one of a tensor's present sizes, strides, ... Ownership: lives for ever. Throws when it has
 * more dimensions than the wire. Threads: recorder held. */
const Geometry *geometry_of(const at::TensorBase &tensor);
const Geometry *geometry_of(const dt_meta_t &meta, int64_t offset);
/* That of a new contiguous tensor, or with `strides`. */
const Geometry *geometry_of(c10::ScalarType type, at::IntArrayRef sizes,
                            const at::IntArrayRef *strides);

/* ---- storages (storage.cpp) ---- */

struct View {
    const Geometry *geometry;
    uint64_t id;
    uint64_t used; /* by which call, the last time */
};

/* A mesh, the same for the whole process; its handle is the session's. */
struct Mesh {
    uint32_t number; /* 1 and up */
    std::vector<uint32_t> sizes;
    std::vector<std::string> names; /* none, or one for each dimension */
    std::vector<uint32_t> vdevs;
    dt_mesh_t *handle;
    uint32_t session; /* generation that `handle` belongs to */
};

struct MeshLayout {
    Mesh *mesh;
    std::vector<dt_placement_t> placements; /* one for each of its dimensions */
};

struct Storage {
    uint64_t id = 0;                  /* of the base tensor; 0: nothing was sent yet */
    const Geometry *base = nullptr;   /* of the base tensor; NULL: not decided */
    const Geometry *latest = nullptr; /* of the view that was looked up last */
    uint32_t vdev = 0;
    uint32_t session = 0; /* generation that `id` belongs to */
    uint32_t mesh = 0;    /* number of the mesh it is on, or will be; 0: on a device */
    std::shared_ptr<const MeshLayout> wish; /* for the base tensor, as long as nothing was sent */
    std::shared_ptr<const MeshLayout> use;  /* operators read a copy that lies so; NULL: this */
    at::Tensor used;                        /* that copy, if it is kept until this is written */
    bool is_used_kept = false;
    std::shared_ptr<const MeshLayout>
        state; /* of what an optimizer makes like this; NULL: as this */
    std::vector<View> views;
    char *address = nullptr; /* what data_ptr() gives; not to be read */
    size_t bytes = 0;        /* counted in the statistics */
    bool is_live = false;
};

constexpr size_t views_max = 128; /* of one storage; the oldest goes then */

c10::Allocator *allocator();
c10::DataPtr allocate(size_t bytes, uint32_t vdev);
void release_storage(void *context); /* frees a storage: the deleter by which our memory is known */
Storage *storage_of_address(const void *address);
/* Throws for memory that is not the device's. */
inline Storage *storage_of(const c10::Storage &storage)
{
    const c10::DataPtr &pointer = storage.data_ptr();
    if (C10_LIKELY(pointer.get_deleter() == &release_storage))
        return static_cast<Storage *>(pointer.get_context());
    return storage_of_address(pointer.get());
}
inline Storage *storage_of(const at::TensorBase &tensor)
{
    return storage_of(tensor.storage());
}
/* That of a tensor over it. Recorder held. */
const Geometry *geometry_in(Storage *storage, const at::TensorBase &tensor);
/* A new tensor; with `id` its value is on its way. */
at::Tensor make_tensor(const Geometry *geometry, uint32_t vdev, uint64_t id, uint32_t mesh = 0);
/* Forget all ids: the storage's content is something else from now on. Recorder held. */
void forget(Storage *storage);
/* `bytes` is what they hold: none where they are views of what stays. */
void free_ids(const Storage *storage, const uint64_t *ids, uint32_t count, size_t bytes);
void resize_bytes(Storage *storage, size_t bytes);

/* ---- operators (schema.cpp) ---- */

enum class Kind : uint8_t {
    tensor,
    tensors,
    integer,
    real,
    scalar,
    dtype,
    layout,
    memory_format,
    boolean,
    generator,
    device,
    storage,
    other, /* lists, strings: written as they are */
};

struct Argument {
    Kind kind;
    bool is_list;
    int32_t written;        /* return that is this argument, written in place; -1: none */
    bool is_unsaid = false; /* written, and no return */
};

struct Op {
    c10::OperatorHandle handle;
    std::string name; /* "aten::add.Tensor" */
    std::vector<Argument> arguments;
    std::vector<int32_t> aliases; /* a return is this argument, written; -1: new */
    bool is_all_alias = true;     /* no return is new */
    bool has_list = false;        /* a return is a list */
    bool is_out = false;          /* what is written is an `out` argument: it may be resized */
    bool is_dynamic = false;      /* sizes of results depend on values */
    bool is_index = false;        /* ... only with a mask among the indices */
    bool takes_cpu = false;       /* indices may lie on the CPU */
    bool draws = false;
    bool writes_unsaid = false; /* an argument is written and not returned ... */
    int32_t writes_if = -1;     /* ... only if this argument, a bool, is true; -1: always */
    bool writes_list = false;   /* the first argument, tensors that each know their version */
    bool is_pointwise = false;
    bool shapes_by_value = false; /* numbers shape the results: arange and its like */
    bool is_meta_refused = false; /* recorder held */
    bool makes_state = false;     /* zeros_like */
    bool reads_at_rest = false;   /* copies a tensor or makes one like it: where it is in use does
                                     not count */
    std::optional<c10::SafeKernelFunction> meta, view;
    /* Of operators over lists (foreach): the same one tensor after the other. */
    std::optional<c10::SafeKernelFunction> one_by_one;
    void find_one_by_one(); /* sets it, if there is one */
    explicit Op(const c10::OperatorHandle &h) : handle(h)
    {
    }
};

Op *make_op(const c10::OperatorHandle &handle); /* lives for ever */
Op *find_op(const char *name, const char *overload = "");
const std::vector<Op *> &all_ops();

/* ---- calls (record.cpp) ---- */

/* Recorder held. A view that a call is about to name must not be dropped for others' sake. */
struct Calls {
    uint64_t now = 0; /* number of the call that is put together */
    int asking = 0;   /* threads that have put a call together and wait for the cluster's answer */
};
Calls &calls();

std::mutex &recorder();
/* Nobody waits for the recorder with the GIL: who holds the recorder may want the GIL. */
struct Lock : public std::unique_lock<std::mutex> {
    explicit Lock(std::mutex &m);
};

/* Of what is written, for autograd: PyTorch does it where it can see what is written, and that is
 * not in lists. */
inline void bump(const at::Tensor &tensor)
{
    if (!tensor.is_inference())
        tensor.unsafeGetTensorImpl()->bump_version();
}
/* PyTorch's default type is not that of the engines, float32. */
inline bool is_default_type_odd()
{
    return c10::get_default_dtype_as_scalartype() != c10::kFloat;
}
/* Run a registered operator: arguments are taken from the stack, results put there. */
void record(Op &op, Stack *stack);
/* The id of a tensor for an operand, sending what it needs first. Recorder held. */
uint64_t wire_id(const at::Tensor &tensor);
/* The same geometry over another storage. */
uint64_t wire_id_in(Storage *storage, const at::Tensor &tensor);

/* An operator of the library itself, without PyTorch's stack. */
struct Piece {
    const char *name;
    const dt_value_t *args; /* tensors as non-NULL handles */
    uint32_t arg_count;
    const Geometry *const *inputs;
    const uint64_t *ids; /* (input_count) */
    uint32_t input_count;
    uint32_t vdev;
    const Geometry *output;             /* NULL: there is none, or it is input 0 written in place */
    dt_alias_t alias;                   /* of the output */
    const MeshLayout *layout = nullptr; /* of the output, where there is no input */
};
/* Submit; returns the output's id, or 0. Recorder held. */
uint64_t submit_piece(const Piece &piece);

/* ---- signatures (signatures.cpp, metadata.cpp) ---- */

struct Output {
    dt_alias_t alias;
    uint32_t input;           /* operand that it is */
    const Geometry *geometry; /* NULL: known only afterwards */
};

struct Signature {
    uint32_t number;
    uint32_t id_count;
    bool depends; /* metadata of results depends on values */
    std::vector<Output> outputs;
    std::vector<uint32_t> lists; /* per return: a list's length, UINT32_MAX: no list */
    uint64_t used = 0;
};

/* Recorder held in all three. NULL: not known. A signature stays valid while the recorder is held,
 * and through the wait for the results of a call that uses it. */
Signature *find_signature(const Key &key);
Signature *add_signature(const Key &key, std::unique_ptr<Signature> made);
void forget_signatures(); /* the session has ended */

/* What a call is made of, in the slow path. */
struct Call {
    Op *op;
    const Stack *stack; /* the last op->arguments.size() values */
    const std::vector<const Geometry *> *operands;
    uint32_t vdev;
    bool has_mask; /* among the indices of aten::index */
};
/* Work out the results and define. Recorder held; it is released while the cluster is asked.
 * Throws what the operator raises. */
std::unique_ptr<Signature> work_out(const Call &call);
/* Results of a call that nobody knew before it was executed are these: known from now on, unless
 * they depend on values. Recorder held. */
void settle(const Call &call, Signature &signature, const std::vector<const Geometry *> &learned);
/* Values of a call for libdtorch; they live in `memory`. Numbers that change become DYNAMIC if
 * `with_dynamic`. */
struct ValueMemory {
    std::deque<std::vector<int64_t>> ints;
    std::deque<std::vector<double>> reals;
    std::deque<std::vector<uint8_t>> bools;
    std::deque<std::vector<void *>> handles;
    std::deque<std::vector<dt_value_t>> values;
    std::deque<std::string> texts;
};
std::vector<dt_value_t> values_of(const Call &call, bool with_dynamic, ValueMemory &memory);
/* A number is brought by each submission and is no part of the signature. */
bool is_dynamic_number(const Op &op, const Argument &argument, const c10::IValue &number);
dt_value_t value_of_number(const c10::IValue &number, ValueMemory *memory);
c10::IValue number_in(const at::Tensor &wrapped);

/* By rule (rules.cpp). The rule goes before the Meta kernel, which is wrong for some arguments. */
bool is_rule_first(const Op &op);
/* False: no rule holds. Appends the results. Recorder held. */
bool answer_by_rule(const dt_operation_t &operation, std::vector<dt_output_t> &ret_outputs);

/* Integers that the operator would compute on as the engine's default type are given as the
 * program's instead, where that is another. */
void compute_in_default(Op &op, Stack &stack);

/* Take the C++ Meta kernels of all operators that have one. */
int take_meta_kernels();

/* ---- views (views.cpp) ---- */

/* Run a view operator: nothing is sent. */
void record_view(Op &op, Stack *stack);
/* The id of a view, sending its operators if that has not happened. Recorder held. */
uint64_t view_id(Storage *storage, const Geometry *view);
/* `view` is `base` with its dims in another order: dim i of base is dim order[i] of view. Recorder
 * held. */
void note_permuted(const Geometry *base, const Geometry *view, const std::vector<int64_t> &order);
/* Send an empty base tensor if nothing was sent yet. Recorder held. */
void ensure_base(Storage *storage, const at::TensorBase &tensor);

/* ---- bytes in and out (copy.cpp) ---- */

uint64_t upload(const at::Tensor &cpu, uint32_t vdev, const Geometry **ret_geometry,
                const MeshLayout *layout = nullptr);
at::Tensor fetch(const at::Tensor &tensor);
at::Tensor wait_and_take(dt_future_t *future); /* takes `future` */
void wait_for(dt_future_t *future);

int64_t fetch_start(const at::Tensor &tensor);
bool fetch_done(int64_t number);
bool fetch_wait(int64_t number, int64_t timeout_ms);
at::Tensor fetch_take(int64_t number);
void fetch_drop(int64_t number);
at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool non_blocking);
at::Scalar local_scalar_dense(const at::Tensor &self);

/* ---- tensors without a value (allocate.cpp) ---- */

at::Tensor empty(at::IntArrayRef size, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format);
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory);
at::Tensor efficient_zero_tensor(at::IntArrayRef size, std::optional<c10::ScalarType> type,
                                 std::optional<c10::Layout> layout,
                                 std::optional<c10::Device> device, std::optional<bool> pin_memory);
const at::Tensor &resize_(const at::Tensor &self, at::IntArrayRef size,
                          std::optional<c10::MemoryFormat> format);
at::Tensor &set_source_storage_offset(at::Tensor &self, c10::Storage source, int64_t offset,
                                      at::IntArrayRef size, at::IntArrayRef stride);
at::Tensor &set_source_storage(at::Tensor &self, c10::Storage source);
at::Tensor &set_nothing(at::Tensor &self);
void resize_storage(const c10::Storage &handle, size_t bytes);
/* Send an uninitialised tensor; args: sizes, strides, dtype. Recorder held. */
uint64_t empty_on(const Storage *storage, const dt_value_t *args);

/* ---- meshes (mesh.cpp) ---- */

std::atomic<bool> &any_mesh_flag();
/* Whether the program has made one: without, nothing here costs anything. */
inline bool any_mesh()
{
    static const std::atomic<bool> &flag = any_mesh_flag();
    return C10_UNLIKELY(flag.load(std::memory_order_relaxed));
}
Mesh *mesh_of_number(uint32_t number);
dt_mesh_t *handle_of(Mesh &mesh);                           /* in the session; begins it */
void create_meshes(dt_session_t *session, uint32_t number); /* a session has begun */
/* Where a tensor is, or will be; nothing: on a device. Recorder held. */
std::optional<MeshLayout> layout_held(const at::Tensor &tensor);
/* A copy of a storage's base where it is in use. Recorder held. */
at::Tensor copy_in_use(Storage *storage);
void wish_here(Storage *storage); /* what this thread makes now goes to a mesh, perhaps */
void adopt_layouts(const Op &op, const Stack &stack);
void adopt_layout(const at::Tensor &self, const at::Tensor &source); /* before `self` is written */
at::Tensor collect_on(const at::Tensor &self, uint32_t vdev); /* the whole value, on one device */
/* zeros_like() of a parameter whose state lies elsewhere. False: it is like any other. */
bool make_state(Stack *stack, size_t count);

at::Tensor empty_like(const at::Tensor &self, std::optional<c10::ScalarType> type,
                      std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                      std::optional<bool> pin, std::optional<c10::MemoryFormat> format);
at::Tensor new_empty(const at::Tensor &self, at::IntArrayRef size,
                     std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device, std::optional<bool> pin);
at::Tensor new_empty_strided(const at::Tensor &self, at::IntArrayRef size, at::IntArrayRef stride,
                             std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                             std::optional<c10::Device> device, std::optional<bool> pin);

/* ---- the session (session.cpp) ---- */

/* Read by every operator; written by session.cpp. */
extern std::atomic<dt_session_t *> session_now; /* NULL: none */
extern std::atomic<uint32_t> session_count;
dt_session_t *begin_session(); /* throws */
inline dt_session_t *if_session()
{
    return session_now.load(std::memory_order_acquire);
}
/* Connects at first use; throws. */
inline dt_session_t *session()
{
    dt_session_t *now = if_session();
    return C10_LIKELY(now != nullptr) ? now : begin_session();
}
inline uint32_t session_number() /* generation; 0: none yet */
{
    return session_count.load(std::memory_order_relaxed);
}
uint32_t vdev_count();
const char *device_kind(); /* "cpu", "cuda" */
uint32_t current_vdev();
void set_current_vdev(uint32_t vdev);
void check_vdev(int64_t index);
void synchronize();                      /* throws; waits in slices */
std::string binding_text(uint32_t vdev); /* "node03 cpu:0" */

struct Counters {
    std::atomic<uint64_t> operators, hits, metas, rules, asked, waits, views, uploads;
    /* Recorder held: nobody else counts, so it need not be one step. */
    void count_operator()
    {
        operators.store(operators.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    void count_hit()
    {
        hits.store(hits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
};
Counters &counters();

/* ---- random streams (random.cpp) ---- */

constexpr size_t generator_state_bytes = 5056; /* of a CPU generator */

const at::Generator &default_generator(c10::DeviceIndex index); /* -1: of the current device */
at::Generator new_generator(c10::DeviceIndex index);
uint32_t stream_of(const at::Generator &generator);
void session_began(dt_session_t *session); /* seeds again what was seeded before ... */
void session_goes_on();                    /* ... and the devices that were seeded apart */
/* The devices of a mesh draw the same numbers from now on: those that its first device would have
 * drawn. NULL: from their default generators. Waits. */
void put_in_step(const Mesh &mesh, const at::Generator *generator);

/* ---- places (frames.cpp) ---- */

/* Find which line of the program issues what follows. Recorder not held: Python may be called. */
void note_place();
/* Tell the session. Recorder held. */
void mark_place(dt_session_t *session);
bool place_here(char *ret_place, size_t size);
/* libdtorch asks it while a thread waits: has a signal's handler raised something? */
bool should_stop(void *);
bool is_interrupted(); /* this thread's last wait ended by that */
void raise_if_interrupted();
extern dt_device_python_t python;

/* ---- errors (errors.cpp) ---- */

[[noreturn]] void raise(const dt_failure_t &failure);
[[noreturn]] void raise(const dt_error_t &error);
/* A signal's handler has raised this Python exception; takes all three. */
[[noreturn]] void raise_interrupted(void *type, void *value, void *traceback);
inline void must(dt_status_t status, const dt_error_t &error)
{
    if (C10_UNLIKELY(status != DT_OK))
        raise(error);
}
/* Run the body of a C function: exceptions become statuses. */
int guarded(const std::function<int()> &body) noexcept;
void keep_failure(const dt_failure_t &failure);
bool last_failure(dt_failure_t *ret_failure);
void set_error_text(const std::string &text);
const char *error_text();
void set_exception(const char *kind_name, void *type);

void register_device();
int register_all();
std::string place_of(const at::Tensor &tensor);
int64_t wire_id_of(const at::Tensor &tensor);
bool equal(const at::Tensor &a, const at::Tensor &b);

} // namespace dt_pu
#endif
