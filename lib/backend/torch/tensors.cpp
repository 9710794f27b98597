// Tensors as the table tells of them, and bytes in and out.
#if __has_include(<ATen/NamedTensorUtils.h>) /* later releases have no named tensors */
#include <ATen/NamedTensorUtils.h>
#define DT_TORCH_HAS_NAMES 1
#endif
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <cstring>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{

dt_status_t meta_of(const at::Tensor &tensor, dt_meta_t *ret_meta, dt_error_t *err)
{
    int64_t sizes[DT_META_DIM_MAX], strides[DT_META_DIM_MAX];
    unsigned bits = (tensor.is_conj() ? (unsigned)DT_META_CONJ : 0u) |
                    (tensor.is_neg() ? (unsigned)DT_META_NEG : 0u);
    if (tensor.layout() != at::kStrided)
        return dt_fail(err, DT_ERR_INVALID, "torch", DT_BACKEND_NOT_IMPLEMENTED,
                       "results that are not strided tensors are not supported");
    if (tensor.dim() > DT_META_DIM_MAX)
        return dt_fail(err, DT_ERR_INVALID, "torch", DT_BACKEND_NOT_IMPLEMENTED,
                       "a tensor of %d dimensions, at most %d", (int)tensor.dim(), DT_META_DIM_MAX);
    for (int64_t i = 0; i < tensor.dim(); i++) {
        sizes[i] = tensor.size(i);
        strides[i] = tensor.stride(i);
    }
    return dt_meta_set(ret_meta, (unsigned)tensor.scalar_type(), (unsigned)tensor.dim(), sizes,
                       strides, bits, err);
}

at::Tensor empty_like_meta(const dt_meta_t &meta, c10::Device where)
{
    auto options = at::TensorOptions().dtype((at::ScalarType)meta.dtype).device(where);
    at::Tensor tensor = at::empty_strided(at::IntArrayRef(meta.sizes, meta.ndim),
                                          at::IntArrayRef(meta.strides, meta.ndim), options);
    if (meta.layout & DT_META_CONJ)
        tensor._set_conj(true);
    if (meta.layout & DT_META_NEG)
        tensor._set_neg(true);
    return tensor;
}

dt_status_t tensor_create(void *arg, const dt_meta_t *meta, void **ret_tensor, dt_error_t *err)
{
    Device *device = static_cast<Device *>(arg);
    enter_thread(device);
    return guarded(err, [&] {
        *ret_tensor = give(empty_like_meta(*meta, device->where));
        return DT_OK;
    });
}

dt_status_t tensor_info(void *, void *handle, dt_backend_tensor_t *ret_info, dt_error_t *err)
{
    return guarded(err, [&] {
        at::Tensor tensor = borrow(handle);
        dt_backend_tensor_t info{};
        dt_status_t status = meta_of(tensor, &info.meta, err);
        if (status != DT_OK)
            return status;
        info.offset = tensor.storage_offset();
        info.storage = tensor.storage().unsafeGetStorageImpl();
        info.storage_bytes = tensor.storage().nbytes();
        if (tensor.device().is_cpu() && tensor.numel() > 0)
            info.data = static_cast<char *>(tensor.storage().mutable_data()) +
                        info.offset * (int64_t)tensor.element_size();
        *ret_info = info;
        return DT_OK;
    });
}

/* Without a reference of its own, and without filling in metadata only to compare it. */
bool tensor_is(void *, void *handle, const dt_meta_t *meta, const void **ret_storage)
{
    const c10::TensorImpl *impl = static_cast<const c10::TensorImpl *>(handle);
    try {
        if (impl->layout() != at::kStrided || !impl->has_storage())
            return false;
        *ret_storage = impl->unsafe_storage().unsafeGetStorageImpl();
        if (!meta)
            return true;
        unsigned bits = (impl->is_conj() ? (unsigned)DT_META_CONJ : 0u) |
                        (impl->is_neg() ? (unsigned)DT_META_NEG : 0u);
        return impl->dim() == meta->ndim &&
               (unsigned)c10::typeMetaToScalarType(impl->dtype()) == meta->dtype &&
               (meta->layout & ~(unsigned)DT_META_CLASS_MASK) == bits &&
               impl->sizes().equals(at::IntArrayRef(meta->sizes, meta->ndim)) &&
               impl->strides().equals(at::IntArrayRef(meta->strides, meta->ndim));
    } catch (const std::exception &) { /* a kind of tensor that has none of these */
        return false;
    }
}

namespace
{

/* The window [offset, offset + size) of the densely packed elements, as a flat byte tensor of the
 * device, or a copy of it if the tensor is not packed. */
dt_status_t check_range(const at::Tensor &tensor, uint64_t offset, size_t size, dt_error_t *err)
{
    uint64_t bytes = (uint64_t)tensor.numel() * tensor.element_size();
    if (offset > bytes || size > bytes - offset)
        return dt_fail(err, DT_ERR_INVALID, "torch", DT_BACKEND_VALUE_ERROR,
                       "bytes %llu to %llu of a tensor of %llu", (unsigned long long)offset,
                       (unsigned long long)(offset + size), (unsigned long long)bytes);
    return DT_OK;
}

at::Tensor host_bytes(const void *bytes, size_t size)
{
    return at::from_blob(const_cast<void *>(bytes), {(int64_t)size},
                         at::TensorOptions().dtype(at::kByte));
}

} // namespace

dt_status_t tensor_write(void *arg, void *handle, uint64_t offset, const void *bytes, size_t size,
                         dt_error_t *err)
{
    enter_thread(static_cast<Device *>(arg));
    return guarded(err, [&] {
        at::Tensor tensor = borrow(handle);
        dt_status_t status = check_range(tensor, offset, size, err);
        if (status != DT_OK || size == 0)
            return status;
        if (!tensor.is_contiguous()) { /* another order of dims: by way of the row-major one */
            at::Tensor rows = tensor.to(at::kCPU).contiguous();
            memcpy(static_cast<char *>(rows.mutable_data_ptr()) + offset, bytes, size);
            tensor.copy_(rows);
            return DT_OK;
        }
        if (tensor.device().is_cpu()) {
            memcpy(static_cast<char *>(tensor.mutable_data_ptr()) + offset, bytes, size);
            return DT_OK;
        }
        tensor.view({-1})
            .view(at::kByte)
            .narrow(0, (int64_t)offset, (int64_t)size)
            .copy_(host_bytes(bytes, size));
        return DT_OK;
    });
}

dt_status_t tensor_read(void *arg, void *handle, uint64_t offset, void *ret_bytes, size_t size,
                        dt_error_t *err)
{
    enter_thread(static_cast<Device *>(arg));
    return guarded(err, [&] {
        at::Tensor tensor = borrow(handle);
        dt_status_t status = check_range(tensor, offset, size, err);
        if (status != DT_OK || size == 0)
            return status;
#ifdef DT_TORCH_HAS_NAMES
        at::NoNamesGuard guard; /* values have no names, and some operators refuse those that do */
#endif
        at::Tensor packed = tensor.resolve_conj().resolve_neg().contiguous();
        if (packed.device().is_cpu())
            memcpy(ret_bytes, static_cast<const char *>(packed.const_data_ptr()) + offset, size);
        else
            host_bytes(ret_bytes, size)
                .copy_(packed.view({-1}).view(at::kByte).narrow(0, (int64_t)offset, (int64_t)size));
        return DT_OK;
    });
}

void tensor_free(void *, void *handle)
{
    if (handle)
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
            static_cast<c10::TensorImpl *>(handle));
}

} // namespace dt_torch
