// Tensors of the CPU live in memory that the engine gives: shared, accounted, with a limit.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <cstring>

#include "backend/torch/torch_internal.h"

namespace dt_torch
{
namespace
{

/* Read by the deleter, which gets a block and nothing else. Written once, before the first tensor.
 */
const dt_backend_memory_t *memory_;

void release(void *block)
{
    if (block)
        memory_->release(block);
}

struct EngineAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t size) override
    {
        const c10::Device cpu(c10::DeviceType::CPU);
        if (size == 0)
            return {nullptr, nullptr, &release, cpu};
        void *block = memory_->alloc(memory_->arg, size);
        TORCH_CHECK_WITH(OutOfMemoryError, block, "out of memory: tried to allocate ", size,
                         " bytes");
        return {block, block, &release, cpu};
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release;
    }
    void copy_data(void *to, const void *from, std::size_t size) const override
    {
        memcpy(to, from, size);
    }
};

} // namespace

void install_allocator(const dt_backend_memory_t *memory)
{
    static EngineAllocator allocator; /* never destroyed before the tensors: the process _exits */
    memory_ = memory;
    c10::SetCPUAllocator(&allocator, 100);
}

} // namespace dt_torch
