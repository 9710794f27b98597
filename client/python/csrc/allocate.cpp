// Making tensors without a value, and changing what a storage is.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>

#include "internal.h"

namespace dt_pu
{
namespace
{

c10::ScalarType type_or_default(std::optional<c10::ScalarType> type)
{
    return type ? *type : c10::typeMetaToScalarType(at::get_default_dtype());
}

uint32_t vdev_of(std::optional<c10::Device> device)
{
    if (!device || !device->has_index())
        return current_vdev();
    check_vdev(device->index());
    return (uint32_t)device->index();
}

void check_options(std::optional<c10::Layout> layout)
{
    TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::kStrided,
                                "dtorch devices have strided tensors only");
}

/* While it lives, allocations go to a device. */
struct On {
    uint32_t before = current_vdev();
    explicit On(uint32_t vdev)
    {
        set_current_vdev(vdev);
    }
    ~On()
    {
        set_current_vdev(before);
    }
};

size_t bytes_of(const at::Tensor &tensor)
{
    return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                            (size_t)tensor.element_size(),
                                            (size_t)tensor.storage_offset());
}

} // namespace

/* A tensor on another device than the first is made like a small one that lies there: operators run
 * where their inputs are. */
uint64_t empty_on(const Storage *storage, const dt_value_t *args)
{
    const uint32_t vdev = storage->vdev;
    const Geometry *geometry = storage->base;
    if (storage->wish)
        return submit_piece({"aten::empty_strided", args, 3, nullptr, nullptr, 0, vdev, geometry,
                             DT_ALIAS_FRESH, storage->wish.get()});
    if (vdev == 0)
        return submit_piece(
            {"aten::empty_strided", args, 3, nullptr, nullptr, 0, 0, geometry, DT_ALIAS_FRESH});
    dt_session_t *now = session();
    dt_tensor_t *tensor = nullptr;
    dt_upload_t from{};
    dt_error_t err;
    uint8_t byte = 0;
    from.struct_size = sizeof from;
    from.dtype = DT_DTYPE_U8;
    from.data = &byte;
    from.vdev = vdev;
    must(dt_tensor_upload(now, &from, &tensor, &err), err);
    uint64_t seed = dt_tensor_disown(tensor);
    const Geometry *input = geometry_of(c10::kByte, {}, nullptr);
    dt_value_t like[4] = {dt_arg_tag(DT_VALUE_TENSOR), args[0], args[1], args[2]};
    like[0].handle = &like;
    uint64_t id = submit_piece(
        {"aten::new_empty_strided", like, 4, &input, &seed, 1, vdev, geometry, DT_ALIAS_FRESH});
    dt_free_ids(now, &seed, 1);
    return id;
}

at::Tensor empty(at::IntArrayRef size, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool>, std::optional<c10::MemoryFormat> format)
{
    check_options(layout);
    On on(vdev_of(device));
    at::Tensor made = at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(key),
                                                type_or_default(type), format);
    storage_of(made)->base = geometry_of(made);
    wish_here(storage_of(made));
    return made;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool>)
{
    check_options(layout);
    On on(vdev_of(device));
    at::Tensor made = at::detail::empty_strided_generic(
        size, stride, allocator(), c10::DispatchKeySet(key), type_or_default(type));
    storage_of(made)->base = geometry_of(made);
    wish_here(storage_of(made));
    return made;
}

/* A tensor that is zero without memory, as autograd makes them. */
at::Tensor efficient_zero_tensor(at::IntArrayRef size, std::optional<c10::ScalarType> type,
                                 std::optional<c10::Layout> layout,
                                 std::optional<c10::Device> device, std::optional<bool>)
{
    check_options(layout);
    On on(vdev_of(device));
    auto keys = c10::DispatchKeySet(key) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
    return at::detail::empty_generic(size, allocator(), keys, type_or_default(type), std::nullopt);
}

/* ---- storages that grow ---- */

/* The first bytes stay. The storage is one of plain bytes afterwards. */
void resize_storage(const c10::Storage &handle, size_t bytes)
{
    Storage *storage = storage_of(handle);
    c10::StorageImpl *impl = handle.unsafeGetStorageImpl();
    if (storage->id && bytes != impl->nbytes()) {
        auto options = at::TensorOptions().dtype(at::kByte).device(kind, (int8_t)storage->vdev);
        at::Tensor fresh =
            empty({(int64_t)bytes}, at::kByte, std::nullopt,
                  c10::Device(kind, (int8_t)storage->vdev), std::nullopt, std::nullopt);
        int64_t kept = (int64_t)std::min(bytes, impl->nbytes());
        at::Tensor old = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(handle), c10::DispatchKeySet(key), options.dtype());
        old.unsafeGetTensorImpl()->set_sizes_contiguous({kept});
        at::Tensor begin = fresh.slice(0, 0, kept);
        if (kept > 0)
            begin.copy_(old);
        Lock lock(recorder());
        Storage *from = storage_of(fresh);
        ensure_base(from, fresh);
        forget(storage);
        storage->id = from->id;
        storage->base = from->base;
        storage->session = from->session;
        storage->views = std::move(from->views);
        from->id = 0;
        from->views.clear();
    } else if (!storage->id) {
        storage->base = nullptr;
    }
    impl->set_nbytes(bytes);
    resize_bytes(storage, bytes);
}

namespace
{

void fit(const at::Tensor &tensor)
{
    size_t bytes = bytes_of(tensor);
    if (tensor.numel() > 0 && bytes > tensor.storage().nbytes())
        resize_storage(tensor.storage(), bytes);
}

} // namespace

const at::Tensor &resize_(const at::Tensor &self, at::IntArrayRef size,
                          std::optional<c10::MemoryFormat> format)
{
    if (self.sizes() == size && !format)
        return self;
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    if (format)
        self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
    fit(self);
    return self;
}

at::Tensor &set_source_storage_offset(at::Tensor &self, c10::Storage source, int64_t offset,
                                      at::IntArrayRef size, at::IntArrayRef stride)
{
    c10::TensorImpl *impl = self.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(std::move(source));
    impl->set_storage_offset(offset);
    if (size.size() == stride.size())
        impl->set_sizes_and_strides(size, stride);
    else
        impl->set_sizes_contiguous(size);
    fit(self);
    return self;
}

at::Tensor &set_source_storage(at::Tensor &self, c10::Storage source)
{
    int64_t count = (int64_t)(source.nbytes() / (size_t)self.element_size());
    return set_source_storage_offset(self, std::move(source), 0, {count}, {1});
}

at::Tensor &set_nothing(at::Tensor &self)
{
    c10::Storage none(c10::Storage::use_byte_size_t(), 0, allocate(0, storage_of(self)->vdev),
                      allocator(), true);
    return set_source_storage_offset(self, std::move(none), 0, {0}, {1});
}

} // namespace dt_pu
