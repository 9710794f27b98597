// The device's guard and hooks: PyTorch's idea of streams, events and current devices. A session
// has one order of operators, so there is one stream, and events are done when everything before
// is.
#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "internal.h"

namespace dt_pu
{
namespace
{

/* Autograd's threads number their nodes each on their own, and a backward pass goes by these
 * numbers: what a backward pass makes (create_graph) has to come after the forward pass, as on the
 * CPU, where one thread makes both, or sums are added up in another order. A node asks for its
 * device's stream when it is made, and changes to it when its turn comes. */
std::atomic<uint64_t> &last_node()
{
    static std::atomic<uint64_t> number{0};
    return number;
}

void tell_node()
{
    uint64_t mine = at::sequence_number::peek(), last = last_node().load(std::memory_order_relaxed);
    while (mine > last && !last_node().compare_exchange_weak(last, mine, std::memory_order_relaxed))
        ;
}

void catch_up()
{
    const uint64_t last = last_node().load(std::memory_order_relaxed);
    while (at::sequence_number::peek() < last)
        (void)at::sequence_number::get_and_increment();
}

/* Devices that backward passes may be on, whatever came first. */
constexpr uint32_t backward_threads = 32;

struct Guard final : public c10::impl::DeviceGuardImplInterface {
    Guard() = default;
    explicit Guard(c10::DeviceType)
    {
    }
    c10::DeviceType type() const override
    {
        return kind;
    }
    c10::Device exchangeDevice(c10::Device device) const override
    {
        c10::Device before = getDevice();
        setDevice(device);
        return before;
    }
    c10::Device getDevice() const override
    {
        return {kind, (c10::DeviceIndex)current_vdev()};
    }
    void setDevice(c10::Device device) const override
    {
        if (!device.has_index())
            return;
        check_vdev(device.index());
        set_current_vdev((uint32_t)device.index());
    }
    void uncheckedSetDevice(c10::Device device) const noexcept override
    {
        if (device.has_index())
            set_current_vdev((uint32_t)device.index());
    }
    c10::Stream getStream(c10::Device device) const override
    {
        tell_node();
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream getDefaultStream(c10::Device device) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream getNewStream(c10::Device device, int) const override
    {
        return c10::Stream(c10::Stream::DEFAULT, device);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        catch_up();
        return stream;
    }
    /* Autograd asks once in a process, at its first backward pass, and makes a thread for each:
     * that may be before a session has begun, and the next one may have more. Programs are told the
     * session's number by torch.dtorch.device_count(). */
    c10::DeviceIndex deviceCount() const noexcept override
    {
        return (c10::DeviceIndex)std::max(vdev_count(), backward_threads);
    }
    bool queryStream(const c10::Stream &) const override
    {
        return true;
    }
    void synchronizeStream(const c10::Stream &) const override
    {
        synchronize();
    }
    void synchronizeDevice(const c10::DeviceIndex) const override
    {
        synchronize();
    }
    void record(void **, const c10::Stream &, const c10::DeviceIndex,
                const c10::EventFlag) const override
    {
    }
    void block(void *, const c10::Stream &) const override
    {
    }
    bool queryEvent(void *) const override
    {
        return true;
    }
    void synchronizeEvent(void *) const override
    {
        synchronize();
    }
    void destroyEvent(void *, const c10::DeviceIndex) const noexcept override
    {
    }
    void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override
    {
    }
};

struct Hooks final : public at::PrivateUse1HooksInterface {
    bool isBuilt() const override
    {
        return true;
    }
    bool isAvailable() const override
    {
        return true;
    }
    bool hasPrimaryContext(c10::DeviceIndex) const override
    {
        return true;
    }
    const at::Generator &getDefaultGenerator(c10::DeviceIndex index) const override
    {
        return default_generator(index);
    }
    at::Generator getNewGenerator(c10::DeviceIndex index) const override
    {
        return new_generator(index);
    }
    c10::DeviceIndex deviceCount() const override
    {
        return (c10::DeviceIndex)vdev_count();
    }
    void setCurrentDevice(c10::DeviceIndex index) const override
    {
        check_vdev(index);
        set_current_vdev((uint32_t)index);
    }
    c10::DeviceIndex getCurrentDevice() const override
    {
        return (c10::DeviceIndex)current_vdev();
    }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override
    {
        c10::DeviceIndex before = getCurrentDevice();
        setCurrentDevice(index);
        return before;
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override
    {
        return index < 0 ? getCurrentDevice() : exchangeDevice(index);
    }
    c10::Device getDeviceFromPtr(void *) const override
    {
        return {kind, (c10::DeviceIndex)current_vdev()};
    }
    /* Nothing is gained by pinning: uploads read any memory. */
    c10::Allocator *getPinnedMemoryAllocator() const override
    {
        return c10::GetCPUAllocator();
    }
    bool isPinnedPtr(const void *) const override
    {
        return false;
    }
    void resizePrivateUse1Bytes(const c10::Storage &storage, size_t bytes) const override
    {
        resize_storage(storage, bytes);
    }
};

} // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

void register_device()
{
    c10::SetAllocator(kind, allocator());
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    (void)default_generator(0);
}

} // namespace dt_pu
