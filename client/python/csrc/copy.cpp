// Bytes between the program and the device.
#include <ATen/ATen.h>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <unordered_map>

#include "internal.h"

namespace dt_pu
{
namespace
{

constexpr std::chrono::milliseconds look(20);   /* between two looks at signals and the session */
constexpr size_t keep_bytes = (size_t)16 << 20; /* above it an upload is waited for, not copied */

/* The order of a tensor's dims in memory, outermost first. */
std::vector<int64_t> memory_order(const at::Tensor &tensor)
{
    std::vector<int64_t> order((size_t)tensor.dim());
    for (size_t i = 0; i < order.size(); i++)
        order[i] = (int64_t)i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return tensor.stride(a) > tensor.stride(b) ||
               (tensor.stride(a) == tensor.stride(b) && tensor.size(a) > tensor.size(b));
    });
    return order;
}

/* An upload whose bytes are read where they are: they stay until it says so. */
struct Sent {
    std::mutex lock;
    std::condition_variable changed;
    bool is_done = false;
    c10::Storage bytes;
};

void upload_done(void *arg)
{
    std::unique_ptr<std::shared_ptr<Sent>> sent(static_cast<std::shared_ptr<Sent> *>(arg));
    std::lock_guard<std::mutex> hold((*sent)->lock);
    (*sent)->is_done = true;
    (*sent)->changed.notify_all();
}

/* Leaving early, by a signal or since the session has ended, is fine: the bytes are kept. */
void wait_until_sent(dt_session_t *session, Sent &sent)
{
    dt_error_t err;
    std::unique_lock<std::mutex> hold(sent.lock);
    while (!sent.changed.wait_for(hold, look, [&] { return sent.is_done; })) {
        hold.unlock();
        must(dt_flush(session, &err), err);
        if (should_stop(nullptr))
            raise_if_interrupted();
        hold.lock();
    }
}

} // namespace

/* Contiguous, without lazy bits: as the wire wants it. */
uint64_t upload(const at::Tensor &cpu, uint32_t vdev, const Geometry **ret_geometry,
                const MeshLayout *layout)
{
    at::Tensor plain = cpu.resolve_conj().resolve_neg().contiguous();
    dt_session_t *now = session();
    dt_tensor_t *tensor = nullptr;
    dt_upload_t from{};
    dt_error_t err;
    static const char nothing[1] = {0};
    from.struct_size = sizeof from;
    from.dtype = (dt_dtype_t)plain.scalar_type();
    from.ndim = (unsigned)plain.dim();
    from.sizes = plain.sizes().data();
    from.data = plain.numel() ? plain.const_data_ptr() : nothing;
    from.vdev = vdev;
    if (layout) {
        from.mesh = handle_of(*layout->mesh);
        from.placements = layout->placements.data();
    }
    std::shared_ptr<Sent> sent;
    if (plain.nbytes() >= keep_bytes) {
        sent = std::make_shared<Sent>();
        sent->bytes = plain.storage();
        from.release = upload_done;
        from.arg = new std::shared_ptr<Sent>(sent);
    }
    must(dt_tensor_upload(now, &from, &tensor, &err), err);
    counters().uploads++;
    if (sent)
        wait_until_sent(now, *sent);
    *ret_geometry = geometry_of(plain.scalar_type(), plain.sizes(), nullptr);
    return dt_tensor_disown(tensor);
}

/* ---- waiting ---- */

void wait_for(dt_future_t *future)
{
    auto failure = std::make_unique<dt_failure_t>();
    if (dt_future_wait(future, -1, failure.get()) != DT_OK)
        raise(*failure);
}

at::Tensor wait_and_take(dt_future_t *future)
{
    std::unique_ptr<dt_future_t, void (*)(dt_future_t *)> hold(future, dt_future_free);
    const void *data;
    size_t size;
    dt_meta_t meta;
    counters().waits++;
    wait_for(future);
    TORCH_CHECK(dt_future_meta(future, &meta) == DT_OK &&
                    dt_future_data(future, &data, &size) == DT_OK,
                "a value came without metadata");
    auto options = at::TensorOptions().dtype((c10::ScalarType)meta.dtype).device(at::kCPU);
    at::Tensor value = at::empty(at::IntArrayRef(meta.sizes, meta.ndim), options);
    if (size)
        memcpy(value.mutable_data_ptr(), data, size);
    return value;
}

static dt_future_t *ask(const at::Tensor &tensor)
{
    dt_future_t *future = nullptr;
    dt_error_t err;
    dt_session_t *now = session();
    note_place();
    Lock lock(recorder());
    if (storage_of(tensor)->mesh) /* it is gathered, which can fail at this very line */
        mark_place(now);
    must(dt_fetch_id(now, wire_id(tensor), &future, &err), err);
    return future;
}

at::Tensor fetch(const at::Tensor &tensor)
{
    return wait_and_take(ask(tensor));
}

void synchronize()
{
    dt_session_t *now = if_session();
    dt_error_t err;
    if (now)
        must(dt_synchronize(now, -1, &err), err);
}

/* ---- copy_ ---- */

namespace
{

/* A layout's dimensions in another order: dimension i of the result is order[i]. */
std::optional<MeshLayout> permuted(const MeshLayout *layout, const std::vector<int64_t> &order)
{
    if (!layout)
        return std::nullopt;
    MeshLayout made = *layout;
    for (dt_placement_t &placement : made.placements)
        for (size_t i = 0; placement.kind == DT_PLACEMENT_SHARD && i < order.size(); i++)
            if (order[i] == placement.dim) {
                placement.dim = (uint8_t)i;
                break;
            }
    return made;
}

/* What is to be written over a tensor on a mesh goes to the same places: each device is sent its
 * part. Recorder held. */
std::optional<MeshLayout> layout_over(const at::Tensor &self, const at::Tensor &source)
{
    if (!storage_of(self)->mesh || self.sizes() != source.sizes())
        return std::nullopt;
    std::optional<MeshLayout> layout = layout_held(self);
    for (size_t i = 0; layout && i < layout->placements.size(); i++)
        if (layout->placements[i].kind == DT_PLACEMENT_PARTIAL)
            layout->placements[i] = dt_placement_t{DT_PLACEMENT_REPLICATE, 0, 0, 1, 1};
    return layout;
}

/* A CPU tensor becomes the content of a storage that it fills: nothing to copy on the device. The
 * device's tensor is contiguous; the wanted order of dims is a view of it. */
bool adopt(const at::Tensor &self, const at::Tensor &source)
{
    Storage *storage = storage_of(self);
    if (storage->id || source.scalar_type() != self.scalar_type() ||
        source.sizes() != self.sizes() || self.storage_offset() != 0 || self.is_conj() ||
        self.is_neg() || !self.is_non_overlapping_and_dense() ||
        self.nbytes() != self.storage().nbytes())
        return false;
    const Geometry *geometry;
    std::vector<int64_t> order = memory_order(self);
    at::Tensor physical = self.is_contiguous() ? source : source.permute(order);
    std::optional<MeshLayout> layout = permuted(storage->wish.get(), order);
    storage->id = upload(physical, storage->vdev, &geometry, layout ? &*layout : nullptr);
    storage->wish.reset();
    storage->session = session_number();
    storage->base = geometry;
    if (!self.is_contiguous())
        note_permuted(geometry, geometry_of(self), order);
    return true;
}

void send_copy(const at::Tensor &self, uint64_t source, const Geometry *from)
{
    Storage *storage = storage_of(self);
    uint64_t ids[2] = {wire_id(self), source};
    const Geometry *inputs[2] = {geometry_of(self), from};
    dt_value_t args[2] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_tag(DT_VALUE_TENSOR)};
    args[0].handle = args[1].handle = &args;
    (void)submit_piece(
        {"aten::copy_", args, 2, inputs, ids, 2, storage->vdev, inputs[0], DT_ALIAS_IN_PLACE});
    if (C10_UNLIKELY(storage->mesh != 0))
        storage->used.reset();
}

bool is_all_bytes(const at::Tensor &tensor)
{
    return tensor.scalar_type() == at::kByte && tensor.storage_offset() == 0 &&
           tensor.is_contiguous() && tensor.nbytes() == tensor.storage().nbytes();
}

/* All bytes of a storage on a mesh go to a new storage, as deepcopy() does it: that becomes a copy
 * of the other, base and layout. */
bool adopt_bytes(const at::Tensor &self, const at::Tensor &source)
{
    Storage *from = storage_of(source), *to = storage_of(self);
    if (to->id || !from->id || !is_all_bytes(self) || !is_all_bytes(source) ||
        self.nbytes() != source.nbytes() || from->base->meta.dtype == DT_DTYPE_U8)
        return false;
    Lock lock(recorder());
    calls().now++;
    dt_value_t arg = dt_arg_tag(DT_VALUE_TENSOR);
    arg.handle = &arg;
    const Geometry *base = from->base;
    to->id = submit_piece(
        {"aten::clone", &arg, 1, &base, &from->id, 1, from->vdev, base, DT_ALIAS_FRESH});
    to->session = session_number();
    to->base = base;
    to->mesh = from->mesh;
    to->wish.reset();
    return true;
}

void copy_in(const at::Tensor &self, const at::Tensor &source)
{
    const Geometry *geometry;
    (void)session();
    note_place();
    Lock lock(recorder());
    calls().now++;
    if (adopt(self, source))
        return;
    std::optional<MeshLayout> layout = layout_over(self, source);
    uint64_t id = upload(source, storage_of(self)->vdev, &geometry, layout ? &*layout : nullptr);
    send_copy(self, id, geometry);
    dt_free_ids_of(session(), &id, 1, source.nbytes());
}

} // namespace

at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool)
{
    if (self.device().type() != kind) {
        self.copy_(fetch(source));
        return self;
    }
    if (source.device().type() != kind) {
        TORCH_CHECK(source.device().is_cpu(), "dtorch: copying from ", source.device(),
                    " is not supported");
        copy_in(self, source);
        return self;
    }
    const uint32_t mesh = storage_of(source)->mesh;
    if (storage_of(self)->vdev != storage_of(source)->vdev && !mesh && !storage_of(self)->mesh) {
        copy_in(self, fetch(source));
        return self;
    }
    (void)session();
    note_place();
    if (mesh && storage_of(self)->vdev != storage_of(source)->vdev && !storage_of(self)->mesh)
        return copy_(self, collect_on(source, storage_of(self)->vdev), false);
    if (mesh && adopt_bytes(self, source))
        return self;
    adopt_layout(self, source);
    Lock lock(recorder());
    calls().now++;
    uint64_t id = wire_id(source);
    send_copy(self, id, geometry_of(source));
    if (mesh && !storage_of(self)->mesh)
        storage_of(self)->mesh = mesh;
    return self;
}

at::Scalar local_scalar_dense(const at::Tensor &self)
{
    return fetch(self).item();
}

/* Compared on the device, so that one value comes back. */
bool equal(const at::Tensor &a, const at::Tensor &b)
{
    TORCH_CHECK(a.device() == b.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                a.device(), " and ", b.device(), "!");
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected object of data type ",
                a.scalar_type(), " but got data type ", b.scalar_type(),
                " for argument #2 'other'");
    if (a.sizes() != b.sizes())
        return false;
    return a.numel() == 0 || a.eq(b).all().item<bool>();
}

/* ---- fetching without waiting: numbers for Python ---- */

namespace
{

struct Futures {
    std::mutex lock;
    std::unordered_map<int64_t, std::shared_ptr<dt_future_t>> table;
    int64_t next = 1;
};

Futures &futures()
{
    static auto *made = new Futures;
    return *made;
}

std::shared_ptr<dt_future_t> future_of(int64_t number)
{
    Futures &f = futures();
    std::lock_guard<std::mutex> hold(f.lock);
    auto known = f.table.find(number);
    TORCH_CHECK(known != f.table.end(), "there is no fetch ", number);
    return known->second;
}

} // namespace

int64_t fetch_start(const at::Tensor &tensor)
{
    std::shared_ptr<dt_future_t> future(ask(tensor), dt_future_free);
    Futures &f = futures();
    dt_session_t *now = session();
    std::lock_guard<std::mutex> hold(f.lock);
    (void)dt_flush(now, nullptr);
    f.table.emplace(f.next, std::move(future));
    return f.next++;
}

bool fetch_done(int64_t number)
{
    return dt_future_ready(future_of(number).get());
}

bool fetch_wait(int64_t number, int64_t timeout_ms)
{
    auto future = future_of(number);
    auto failure = std::make_unique<dt_failure_t>();
    dt_status_t status = dt_future_wait(future.get(), timeout_ms, failure.get());
    if (status != DT_OK && (status != DT_ERR_TIMEOUT || is_interrupted()))
        raise(*failure);
    return status == DT_OK;
}

void fetch_drop(int64_t number)
{
    Futures &f = futures();
    std::lock_guard<std::mutex> hold(f.lock);
    f.table.erase(number);
}

at::Tensor fetch_take(int64_t number)
{
    auto future = future_of(number);
    dt_meta_t meta;
    const void *data;
    size_t size;
    wait_for(future.get());
    fetch_drop(number);
    TORCH_CHECK(dt_future_meta(future.get(), &meta) == DT_OK &&
                    dt_future_data(future.get(), &data, &size) == DT_OK,
                "a value came without metadata");
    auto options = at::TensorOptions().dtype((c10::ScalarType)meta.dtype).device(at::kCPU);
    /* The future owns the bytes, and the tensor the future. */
    return at::from_blob(
        const_cast<void *>(data), at::IntArrayRef(meta.sizes, meta.ndim),
        [future](void *) { (void)future; }, options);
}

} // namespace dt_pu
