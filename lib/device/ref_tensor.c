/* Tensors of `ref`: a shape over a storage that several may share. */
#include <stdlib.h>
#include <string.h>

#include "device/ref_internal.h"

/* A storage without data of a question may be as large as any view of it wants. */
#define QUESTION_BYTES (UINT64_C(1) << 62)

bool dt_ref_is_dtype(unsigned dtype)
{
    return dt_ref_is_float(dtype) || dtype == DT_DTYPE_I64 || dtype == DT_DTYPE_BOOL;
}

static dt_status_t no_memory(dt_error_t *err, uint64_t bytes)
{
    return dt_fail(err, DT_ERR_LIMIT, "ref", DT_BACKEND_OUT_OF_MEMORY,
                   "out of memory: tried to allocate %llu bytes", (unsigned long long)bytes);
}

static void storage_drop(dt_ref_storage_t *storage)
{
    if (!storage || --storage->ref_count > 0)
        return;
    if (storage->data && storage->memory)
        storage->memory->release(storage->data);
    free(storage);
}

static dt_ref_storage_t *storage_new(const dt_backend_memory_t *memory, uint64_t bytes)
{
    dt_ref_storage_t *storage = malloc(sizeof *storage);
    if (!storage)
        return NULL;
    *storage = (dt_ref_storage_t){
        .ref_count = 1, .memory = memory, .bytes = memory ? bytes : QUESTION_BYTES};
    if (memory && bytes > 0 && !(storage->data = memory->alloc(memory->arg, bytes))) {
        free(storage);
        return NULL;
    }
    return storage;
}

dt_status_t dt_ref_tensor_new(const dt_backend_memory_t *memory, unsigned dtype, unsigned ndim,
                              const int64_t *sizes, const int64_t *strides,
                              dt_ref_tensor_t **ret_tensor, dt_error_t *err)
{
    dt_meta_t meta;
    DT_TRY(dt_meta_set(&meta, dtype, ndim, sizes, strides, 0, err));
    return dt_ref_tensor_of(memory, &meta, ret_tensor, err);
}

dt_status_t dt_ref_tensor_of(const dt_backend_memory_t *memory, const dt_meta_t *meta,
                             dt_ref_tensor_t **ret_tensor, dt_error_t *err)
{
    uint64_t bytes = memory ? (uint64_t)dt_meta_span_bytes(meta) : 0;
    dt_ref_tensor_t *tensor = malloc(sizeof *tensor);
    if (!tensor)
        return no_memory(err, sizeof *tensor);
    tensor->offset = 0;
    tensor->meta = *meta;
    tensor->ref_count = 1;
    tensor->is_wrapped = false;
    tensor->storage = storage_new(memory, bytes);
    if (!tensor->storage) {
        free(tensor);
        return no_memory(err, bytes);
    }
    *ret_tensor = tensor;
    return DT_OK;
}

dt_status_t dt_ref_tensor_alias(dt_ref_tensor_t *of, unsigned ndim, const int64_t *sizes,
                                const int64_t *strides, int64_t offset,
                                dt_ref_tensor_t **ret_tensor, dt_error_t *err)
{
    dt_ref_tensor_t *tensor = calloc(1, sizeof *tensor);
    dt_status_t status;
    if (!tensor)
        return no_memory(err, sizeof *tensor);
    status = dt_meta_set(&tensor->meta, of->meta.dtype, ndim, sizes, strides, 0, err);
    if (status != DT_OK) {
        free(tensor);
        return status;
    }
    tensor->storage = of->storage;
    tensor->storage->ref_count++;
    tensor->offset = offset;
    tensor->ref_count = 1;
    *ret_tensor = tensor;
    return DT_OK;
}

dt_ref_tensor_t *dt_ref_tensor_keep(dt_ref_tensor_t *tensor)
{
    tensor->ref_count++;
    return tensor;
}

void dt_ref_tensor_drop(dt_ref_tensor_t *tensor)
{
    if (!tensor || --tensor->ref_count > 0)
        return;
    storage_drop(tensor->storage);
    free(tensor);
}

void *dt_ref_tensor_data(const dt_ref_tensor_t *tensor)
{
    if (!tensor->storage->data)
        return NULL;
    return (char *)tensor->storage->data +
           tensor->offset * (int64_t)dt_dtype_bytes(tensor->meta.dtype);
}

/* ---- entries of the table ---- */
dt_status_t dt_ref_tensor_create(void *device, const dt_meta_t *meta, void **ret_tensor,
                                 dt_error_t *err)
{
    const dt_ref_device_t *ref = device;
    dt_ref_tensor_t *tensor;
    if (meta->layout & (DT_META_CONJ | DT_META_NEG))
        return dt_fail(err, DT_ERR_INVALID, "ref", DT_BACKEND_NOT_IMPLEMENTED,
                       "the ref backend has no lazy conjugate or negative");
    DT_TRY(dt_ref_tensor_new(ref->memory, meta->dtype, meta->ndim, meta->sizes, meta->strides,
                             &tensor, err));
    *ret_tensor = tensor;
    return DT_OK;
}

dt_status_t dt_ref_tensor_info(void *device, void *tensor, dt_backend_tensor_t *ret_info,
                               dt_error_t *err)
{
    const dt_ref_tensor_t *t = tensor;
    (void)device;
    (void)err;
    *ret_info = (dt_backend_tensor_t){
        .meta = t->meta,
        .offset = t->offset,
        .storage = t->storage,
        .storage_bytes = t->storage->bytes,
        .data = dt_meta_numel(&t->meta) > 0 ? dt_ref_tensor_data(t) : NULL,
    };
    return DT_OK;
}

bool dt_ref_tensor_is(void *device, void *tensor, const dt_meta_t *meta, const void **ret_storage)
{
    const dt_ref_tensor_t *t = tensor;
    (void)device;
    *ret_storage = t->storage;
    return !meta || dt_meta_equal(meta, &t->meta);
}

dt_status_t dt_ref_check_range(const dt_ref_tensor_t *tensor, uint64_t offset, size_t size,
                               dt_error_t *err)
{
    uint64_t bytes = (uint64_t)dt_meta_bytes(&tensor->meta);
    if (offset <= bytes && size <= bytes - offset)
        return DT_OK;
    return dt_fail(err, DT_ERR_INVALID, "ref", DT_BACKEND_VALUE_ERROR,
                   "bytes from %llu, %zu of them, of a tensor of %llu", (unsigned long long)offset,
                   size, (unsigned long long)bytes);
}

/* The element that stands at place `number` of the row-major order. */
static char *element_at(const dt_ref_tensor_t *tensor, uint64_t number)
{
    const dt_meta_t *meta = &tensor->meta;
    int64_t at = 0;
    for (int i = meta->ndim - 1; i >= 0; i--) {
        at += (int64_t)(number % (uint64_t)meta->sizes[i]) * meta->strides[i];
        number /= (uint64_t)meta->sizes[i];
    }
    return (char *)dt_ref_tensor_data(tensor) + at * (int64_t)dt_dtype_bytes(meta->dtype);
}

/* Copy piece by piece: a piece is what lies in one element, or all that is contiguous. */
static void copy_bytes(const dt_ref_tensor_t *tensor, uint64_t offset, size_t size, char *out,
                       const char *in)
{
    bool is_packed = dt_ref_is_contiguous(&tensor->meta);
    size_t width = dt_dtype_bytes(tensor->meta.dtype);
    for (size_t done = 0; done < size;) {
        uint64_t at = offset + done;
        size_t inside = is_packed ? 0 : at % width;
        size_t piece = is_packed ? size : width - inside;
        char *mine = is_packed ? (char *)dt_ref_tensor_data(tensor) + at
                               : element_at(tensor, at / width) + inside;
        if (piece > size - done)
            piece = size - done;
        if (in)
            memcpy(mine, in + done, piece);
        else
            memcpy(out + done, mine, piece);
        done += piece;
    }
}

dt_status_t dt_ref_tensor_write(void *device, void *tensor, uint64_t offset, const void *bytes,
                                size_t size, dt_error_t *err)
{
    (void)device;
    DT_TRY(dt_ref_check_range(tensor, offset, size, err));
    copy_bytes(tensor, offset, size, NULL, bytes);
    return DT_OK;
}

dt_status_t dt_ref_tensor_read(void *device, void *tensor, uint64_t offset, void *ret_bytes,
                               size_t size, dt_error_t *err)
{
    (void)device;
    DT_TRY(dt_ref_check_range(tensor, offset, size, err));
    copy_bytes(tensor, offset, size, ret_bytes, NULL);
    return DT_OK;
}

void dt_ref_tensor_free(void *device, void *tensor)
{
    (void)device;
    dt_ref_tensor_drop(tensor);
}
