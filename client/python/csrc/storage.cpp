// Storages: handles without memory, and the geometries of tensors over them.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unordered_map>

#include "internal.h"

namespace dt_pu
{

/* ---- geometry ---- */

namespace
{

struct Named {
    dt_meta_t meta;
    int64_t offset;
    bool operator==(const Named &other) const
    {
        size_t bytes = meta.ndim * sizeof(int64_t);
        return meta.dtype == other.meta.dtype && meta.ndim == other.meta.ndim &&
               meta.layout == other.meta.layout && offset == other.offset &&
               memcmp(meta.sizes, other.meta.sizes, bytes) == 0 &&
               memcmp(meta.strides, other.meta.strides, bytes) == 0;
    }
};

struct NamedHash {
    size_t operator()(const Named &key) const
    {
        uint64_t hash = (uint64_t)key.meta.dtype | (uint64_t)key.meta.ndim << 8 |
                        (uint64_t)key.meta.layout << 16 | (uint64_t)key.offset << 24;
        for (unsigned i = 0; i < key.meta.ndim; i++) {
            hash = (hash ^ (uint64_t)key.meta.sizes[i]) * UINT64_C(0xff51afd7ed558ccd);
            hash = (hash ^ (uint64_t)key.meta.strides[i]) * UINT64_C(0xc4ceb9fe1a85ec53);
            hash ^= hash >> 32;
        }
        return hash;
    }
};

std::unordered_map<Named, Geometry *, NamedHash> &geometries()
{
    static auto *table = new std::unordered_map<Named, Geometry *, NamedHash>;
    return *table;
}

size_t span_bytes(const dt_meta_t &meta, int64_t offset)
{
    int64_t last = offset;
    for (unsigned i = 0; i < meta.ndim; i++) {
        if (meta.sizes[i] == 0)
            return 0;
        last += (meta.sizes[i] - 1) * meta.strides[i];
    }
    return (size_t)(last + 1) * dt_element_bytes((dt_dtype_t)meta.dtype);
}

/* Strides are exactly those that PyTorch gives a new tensor. */
bool is_row_major(const dt_meta_t &meta)
{
    int64_t stride = 1;
    for (unsigned i = meta.ndim; i-- > 0; stride *= std::max<int64_t>(meta.sizes[i], 1))
        if (meta.strides[i] != stride)
            return false;
    return true;
}

dt_meta_t describe(c10::ScalarType type, at::IntArrayRef sizes, const int64_t *strides)
{
    dt_meta_t meta;
    dt_error_t err;
    must(dt_describe((dt_dtype_t)type, (unsigned)sizes.size(), sizes.data(), strides, &meta, &err),
         err);
    return meta;
}

} // namespace

static Geometry *intern(const dt_meta_t &meta, int64_t offset)
{
    auto &table = geometries();
    auto [at, is_new] = table.try_emplace(Named{meta, offset}, nullptr);
    if (!is_new)
        return at->second;
    auto *made = new Geometry{meta,
                              offset,
                              nullptr,
                              (uint32_t)table.size(),
                              span_bytes(meta, offset),
                              is_row_major(meta)};
    at->second = made; /* `at` does not outlive the next line */
    made->plain = offset ? intern(meta, 0) : made;
    return made;
}

const Geometry *geometry_of(const dt_meta_t &meta, int64_t offset)
{
    static std::mutex lock;
    std::lock_guard<std::mutex> hold(lock);
    return intern(meta, offset);
}

const Geometry *geometry_of(const at::TensorBase &tensor)
{
    dt_meta_t meta = describe(tensor.scalar_type(), tensor.sizes(), tensor.strides().data());
    meta.layout |= lazy_bits(*tensor.unsafeGetTensorImpl());
    return geometry_of(meta, tensor.storage_offset());
}

const Geometry *geometry_in(Storage *storage, const at::TensorBase &tensor)
{
    if (C10_LIKELY(storage->base && storage->base->equals(tensor)))
        return storage->base;
    if (!storage->latest || !storage->latest->equals(tensor))
        storage->latest = geometry_of(tensor);
    return storage->latest;
}

const Geometry *geometry_of(c10::ScalarType type, at::IntArrayRef sizes,
                            const at::IntArrayRef *strides)
{
    return geometry_of(describe(type, sizes, strides ? strides->data() : nullptr), 0);
}

/* ---- handles ---- */

namespace
{

/* Addresses are handed out of a mapping that nobody can read: a stray access faults. */
constexpr size_t space_bytes = (size_t)1 << 42;
constexpr size_t block_storages = 1024;

struct Pool {
    std::mutex lock;
    std::vector<Storage *> blocks; /* of block_storages each */
    std::vector<Storage *> free;
    char *space = nullptr;
    size_t next = 64;
    std::vector<dt_device_memory_t> stats; /* a virtual device each */

    dt_device_memory_t &of(uint32_t vdev)
    {
        if (C10_UNLIKELY(vdev >= stats.size()))
            stats.resize(vdev + 1);
        return stats[vdev];
    }
};

Pool &pool()
{
    static Pool *made = new Pool; /* storages are freed after static destructors have run */
    return *made;
}

char *take_address(Pool &p, size_t bytes)
{
    if (!p.space) {
        void *space = mmap(nullptr, space_bytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        TORCH_CHECK(space != MAP_FAILED, "dtorch: no address space for the device");
        p.space = static_cast<char *>(space);
    }
    size_t step = (bytes + 64) & ~(size_t)63;
    if (p.next + step > space_bytes)
        p.next = 64;
    char *address = p.space + p.next;
    p.next += step;
    return address;
}

void count(dt_device_memory_t &stats, size_t bytes)
{
    stats.allocated_bytes += bytes;
    stats.total_bytes += bytes;
    if (stats.allocated_bytes > stats.peak_bytes)
        stats.peak_bytes = stats.allocated_bytes;
}

} // namespace

void release_storage(void *context)
{
    Storage *storage = static_cast<Storage *>(context);
    if (storage->id) {
        uint64_t near[8];
        size_t total = 1 + storage->views.size();
        std::vector<uint64_t> far(total > 8 ? total : 0);
        uint64_t *ids = total > 8 ? far.data() : near;
        for (size_t i = 0; i < storage->views.size(); i++)
            ids[i] = storage->views[i].id;
        ids[total - 1] = storage->id;
        free_ids(storage, ids, (uint32_t)total, storage->bytes);
    }
    if (storage->mesh) {
        storage->wish.reset();
        storage->state.reset();
        storage->use.reset();
        storage->used.reset();
    }
    Pool &p = pool();
    std::lock_guard<std::mutex> hold(p.lock);
    dt_device_memory_t &stats = p.of(storage->vdev);
    stats.allocated_bytes -= storage->bytes;
    stats.storages--;
    storage->views.clear();
    storage->id = 0;
    storage->mesh = 0;
    storage->base = storage->latest = nullptr;
    storage->is_live = false;
    p.free.push_back(storage);
}

namespace
{

struct DeviceAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        return dt_pu::allocate(bytes, current_vdev());
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return nullptr;
    }
    void copy_data(void *, const void *, size_t) const override
    {
        TORCH_CHECK(false, "memory of a dtorch device cannot be copied by address");
    }
};

} // namespace

c10::Allocator *allocator()
{
    static auto *made = new DeviceAllocator;
    return made;
}

c10::DataPtr allocate(size_t bytes, uint32_t vdev)
{
    Pool &p = pool();
    std::lock_guard<std::mutex> hold(p.lock);
    if (p.free.empty()) {
        Storage *block = new Storage[block_storages];
        p.blocks.push_back(block);
        for (size_t i = block_storages; i > 0; i--)
            p.free.push_back(block + i - 1);
    }
    Storage *storage = p.free.back();
    storage->address = take_address(p, bytes);
    p.free.pop_back();
    storage->vdev = vdev;
    storage->bytes = bytes;
    storage->is_live = true;
    dt_device_memory_t &stats = p.of(vdev);
    count(stats, bytes);
    stats.storages++;
    stats.total_storages++;
    return {storage->address, storage, &release_storage, c10::Device(kind, (c10::DeviceIndex)vdev)};
}

/* from_blob() over one of our addresses, as PyTorch's old way of saving does */
Storage *storage_of_address(const void *address)
{
    Pool &p = pool();
    std::lock_guard<std::mutex> hold(p.lock);
    for (Storage *block : p.blocks)
        for (size_t i = 0; i < block_storages; i++)
            if (block[i].is_live && block[i].address == address)
                return block + i;
    TORCH_CHECK(false, "the tensor's memory is not that of a dtorch device");
}

at::Tensor make_tensor(const Geometry *geometry, uint32_t vdev, uint64_t id, uint32_t mesh)
{
    const dt_meta_t &meta = geometry->meta;
    c10::DataPtr pointer = allocate(geometry->span_bytes, vdev);
    Storage *storage = static_cast<Storage *>(pointer.get_context());
    storage->base = geometry;
    storage->id = id;
    storage->mesh = mesh;
    storage->session = session_number();
    auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                      geometry->span_bytes, std::move(pointer),
                                                      allocator(), true);
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(impl)), c10::DispatchKeySet(key),
        c10::scalarTypeToTypeMeta((c10::ScalarType)meta.dtype));
    c10::TensorImpl *made = tensor.unsafeGetTensorImpl();
    if (geometry->is_contiguous)
        made->set_sizes_contiguous(at::IntArrayRef(meta.sizes, meta.ndim));
    else
        made->set_sizes_and_strides(at::IntArrayRef(meta.sizes, meta.ndim),
                                    at::IntArrayRef(meta.strides, meta.ndim));
    if (meta.layout & DT_META_CONJ)
        tensor._set_conj(true);
    if (meta.layout & DT_META_NEG)
        tensor._set_neg(true);
    return tensor;
}

void free_ids(const Storage *storage, const uint64_t *ids, uint32_t count, size_t bytes)
{
    dt_session_t *session = if_session();
    if (session && storage->session == session_number())
        dt_free_ids_of(session, ids, count, bytes);
}

void forget(Storage *storage)
{
    if (!storage->id)
        return;
    std::vector<uint64_t> ids{storage->id};
    for (const View &view : storage->views)
        ids.push_back(view.id);
    free_ids(storage, ids.data(), (uint32_t)ids.size(), storage->bytes);
    storage->views.clear();
    storage->id = 0;
}

void resize_bytes(Storage *storage, size_t bytes)
{
    Pool &p = pool();
    std::lock_guard<std::mutex> hold(p.lock);
    dt_device_memory_t &stats = p.of(storage->vdev);
    stats.allocated_bytes -= storage->bytes;
    storage->bytes = bytes;
    count(stats, bytes);
}

} // namespace dt_pu

int dt_device_memory(int index, dt_device_memory_t *stats)
{
    using namespace dt_pu;
    if (stats->struct_size != sizeof *stats || index < 0 || (uint32_t)index >= vdev_count())
        return DT_ERR_INVALID;
    Pool &p = pool();
    std::lock_guard<std::mutex> hold(p.lock);
    *stats = p.of((uint32_t)index);
    stats->struct_size = sizeof *stats;
    return DT_OK;
}

int dt_device_memory_reset_peak(int index)
{
    using namespace dt_pu;
    if (index < 0 || (uint32_t)index >= vdev_count())
        return DT_ERR_INVALID;
    Pool &p = pool();
    std::lock_guard<std::mutex> hold(p.lock);
    dt_device_memory_t &stats = p.of((uint32_t)index);
    stats.peak_bytes = stats.allocated_bytes;
    return DT_OK;
}
