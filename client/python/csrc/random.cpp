// Random streams: a generator is a number that operators name; its state lives on the cluster.
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>
#include <cstring>

#include "internal.h"

namespace dt_pu
{
namespace
{

constexpr size_t state_max = 16384; /* bytes; a CPU generator's are about 5,000 */

std::atomic<uint32_t> next_stream{1};

/* A stream's state as a tensor of bytes, by operators that the torch backend brings along. */
at::Tensor read_state(uint32_t stream)
{
    dt_session_t *now = session();
    const Geometry *output = geometry_of(c10::kByte, {(int64_t)generator_state_bytes}, nullptr);
    dt_value_t arg = dt_arg_generator(stream);
    dt_future_t *future = nullptr;
    dt_error_t err;
    {
        Lock lock(recorder());
        uint64_t id = submit_piece(
            {"dtorch::generator_state", &arg, 1, nullptr, nullptr, 0, 0, output, DT_ALIAS_FRESH});
        dt_status_t status = dt_fetch_id(now, id, &future, &err);
        dt_free_ids(now, &id, 1);
        must(status, err);
    }
    return wait_and_take(future);
}

void write_state(uint32_t stream, const at::Tensor &state)
{
    const Geometry *input;
    dt_session_t *now = session();
    dt_value_t args[2] = {dt_arg_generator(stream), dt_arg_tag(DT_VALUE_TENSOR)};
    args[1].handle = &args;
    Lock lock(recorder());
    for (uint32_t vdev = 0; vdev < vdev_count(); vdev++) { /* each has the streams, in step */
        uint64_t id = upload(state, vdev, &input);
        (void)submit_piece(
            {"dtorch::set_generator_state", args, 2, &input, &id, 1, vdev, nullptr, DT_ALIAS_NONE});
        dt_free_ids(now, &id, 1);
    }
}

/* Its seed is sent when there is a session, and to a later one before an operator names it. */
struct DeviceGenerator final : public c10::GeneratorImpl {
    uint32_t stream;
    uint64_t seed_now;
    uint32_t session = 0; /* generation that knows the seed */

    DeviceGenerator(uint32_t number, uint64_t begin)
        : GeneratorImpl(c10::Device(kind, 0), c10::DispatchKeySet(key)), stream(number),
          seed_now(begin)
    {
    }
    static c10::DeviceType device_type()
    {
        return kind;
    }
    void tell()
    {
        dt_session_t *now = if_session();
        dt_error_t err;
        if (!now)
            return;
        session = session_number();
        must(dt_seed(now, stream, seed_now, 0, &err), err);
    }
    /* Before an operator names it. */
    void make_known()
    {
        if (session != session_number())
            tell();
    }
    void set_current_seed(uint64_t seed) override
    {
        seed_now = seed;
        tell();
    }
    uint64_t current_seed() const override
    {
        return seed_now;
    }
    uint64_t seed() override
    {
        set_current_seed(c10::detail::getNonDeterministicRandom());
        return seed_now;
    }
    void set_offset(uint64_t) override
    {
        TORCH_CHECK_NOT_IMPLEMENTED(false, "generators of dtorch devices have no offset");
    }
    uint64_t get_offset() const override
    {
        TORCH_CHECK_NOT_IMPLEMENTED(false, "generators of dtorch devices have no offset");
    }
    void set_state(const c10::TensorImpl &state) override
    {
        at::Tensor copy = at::empty({(int64_t)state.numel()}, at::kByte);
        memcpy(copy.mutable_data_ptr(), state.data(), (size_t)state.numel());
        (void)dt_pu::session();
        make_known();
        write_state(stream, copy);
    }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override
    {
        (void)dt_pu::session();
        const_cast<DeviceGenerator *>(this)->make_known();
        return read_state(stream).getIntrusivePtr();
    }
    DeviceGenerator *clone_impl() const override
    {
        auto *copy = new DeviceGenerator(next_stream++, seed_now);
        copy->set_state(*get_state());
        return copy;
    }
};

} // namespace

const at::Generator &default_generator()
{
    static auto *made = new at::Generator(
        at::make_generator<DeviceGenerator>(0u, (uint64_t)c10::default_rng_seed_val));
    return *made;
}

at::Generator new_generator()
{
    return at::make_generator<DeviceGenerator>(next_stream++, (uint64_t)c10::default_rng_seed_val);
}

uint32_t stream_of(const at::Generator &generator)
{
    auto *impl = generator.get<DeviceGenerator>();
    impl->make_known();
    return impl->stream;
}

void seed_default(uint64_t seed)
{
    default_generator().get<DeviceGenerator>()->set_current_seed(seed);
}

void session_began(dt_session_t *session)
{
    dt_error_t err;
    auto *generator = default_generator().get<DeviceGenerator>();
    generator->session = session_number() + 1; /* of this one */
    must(dt_seed(session, 0, generator->seed_now, 0, &err), err);
}

} // namespace dt_pu

using namespace dt_pu;

int dt_device_seed(int, uint64_t seed)
{
    return guarded([&] {
        seed_default(seed);
        return DT_OK;
    });
}

uint64_t dt_device_initial_seed(int)
{
    return default_generator().current_seed();
}

int dt_device_rng_state(int, void *ret_state, size_t *size)
{
    return guarded([&] {
        at::Tensor state = default_generator().get_state();
        size_t needed = state.nbytes();
        bool fits = *size >= needed;
        *size = needed;
        if (!fits)
            return (int)DT_ERR_LIMIT;
        memcpy(ret_state, state.const_data_ptr(), needed);
        return (int)DT_OK;
    });
}

int dt_device_set_rng_state(int, const void *state, size_t size)
{
    return guarded([&] {
        TORCH_CHECK(size > 0 && size <= state_max, "a state of ", size, " bytes");
        at::Tensor copy = at::empty({(int64_t)size}, at::kByte);
        memcpy(copy.mutable_data_ptr(), state, size);
        at::Generator generator = default_generator();
        generator.set_state(copy);
        return DT_OK;
    });
}
