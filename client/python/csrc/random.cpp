// Random streams: a generator is a number that operators name; its state lives on the cluster.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GeneratorImpl.h>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "record.h"

namespace dt_pu
{
namespace
{

constexpr size_t state_max = 16384; /* bytes; a CPU generator's are about 5,000 */

std::atomic<uint32_t> next_stream{1};

/* ---- several devices: each has a state of a stream, and draws of one alone leave it apart ---- */

/* On which mesh a stream was drawn from last, `alone` on one device; none: nowhere since all
 * devices were seeded alike. Any thread. */
struct Drawn {
    std::mutex lock;
    std::unordered_map<uint32_t, uint32_t> meshes;
};
constexpr uint32_t alone = 0;

Drawn &drawn()
{
    static auto *made = new Drawn;
    return *made;
}

void note_alike(uint32_t stream)
{
    std::lock_guard<std::mutex> hold(drawn().lock);
    drawn().meshes.erase(stream);
}

void note_apart(uint32_t stream)
{
    std::lock_guard<std::mutex> hold(drawn().lock);
    drawn().meshes[stream] = alone;
}

/* A stream's state on a device as a tensor of bytes, by operators that the torch backend brings
 * along: it is read beside a byte that lies there. */
at::Tensor read_state(uint32_t stream, uint32_t vdev)
{
    dt_session_t *now = session();
    const Geometry *output = geometry_of(c10::kByte, {(int64_t)generator_state_bytes}, nullptr);
    const Geometry *input;
    dt_value_t args[2] = {dt_arg_generator(stream), dt_arg_tag(DT_VALUE_TENSOR)};
    args[1].handle = &args;
    dt_future_t *future = nullptr;
    dt_error_t err;
    at::Tensor byte = at::zeros({}, at::kByte);
    {
        Lock lock(recorder());
        uint64_t beside = upload(byte, vdev, &input);
        uint64_t id = submit_piece({"dtorch::generator_state.beside", args, 2, &input, &beside, 1,
                                    vdev, output, DT_ALIAS_FRESH});
        dt_status_t status = dt_fetch_id(now, id, &future, &err);
        dt_free_ids(now, &beside, 1);
        dt_free_ids(now, &id, 1);
        must(status, err);
    }
    return wait_and_take(future);
}

void write_state(uint32_t stream, const at::Tensor &state, uint32_t vdev)
{
    const Geometry *input;
    dt_session_t *now = session();
    dt_value_t args[2] = {dt_arg_generator(stream), dt_arg_tag(DT_VALUE_TENSOR)};
    args[1].handle = &args;
    Lock lock(recorder());
    uint64_t id = upload(state, vdev, &input);
    (void)submit_piece(
        {"dtorch::set_generator_state", args, 2, &input, &id, 1, vdev, nullptr, DT_ALIAS_NONE});
    dt_free_ids(now, &id, 1);
}

/* What a generator of the CPU with this seed would begin with. */
at::Tensor state_of_seed(uint64_t seed)
{
    return at::detail::createCPUGenerator(seed).get_state();
}

/* A stream has a state on each device of the session. A generator of the program's writes all of
 * them, a device's default one that of its device: all those have stream 0. Its seed is sent when
 * there is a session, and to a later one before an operator names it. */
struct DeviceGenerator final : public c10::GeneratorImpl {
    uint32_t stream;
    uint64_t seed_now;
    uint32_t session = 0; /* generation that knows the seed */

    DeviceGenerator(uint32_t vdev, uint32_t number, uint64_t begin)
        : GeneratorImpl(c10::Device(kind, (c10::DeviceIndex)vdev), c10::DispatchKeySet(key)),
          stream(number), seed_now(begin)
    {
    }
    uint32_t vdev() const
    {
        return (uint32_t)device().index();
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
        if (stream == 0 && vdev_count() > 1) {
            note_apart(stream);
            write_state(stream, state_of_seed(seed_now), vdev());
        } else {
            note_alike(stream);
            must(dt_seed(now, stream, seed_now, 0, &err), err);
        }
    }
    /* Before an operator names it. Default ones are told when the session begins. */
    void make_known()
    {
        if (stream != 0 && session != session_number())
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
        stream == 0 ? note_apart(stream) : note_alike(stream);
        for (uint32_t i = 0; i < vdev_count(); i++)
            if (stream != 0 || i == vdev())
                write_state(stream, copy, i);
    }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override
    {
        (void)dt_pu::session();
        const_cast<DeviceGenerator *>(this)->make_known();
        return read_state(stream, vdev()).getIntrusivePtr();
    }
    DeviceGenerator *clone_impl() const override
    {
        auto *copy = new DeviceGenerator(vdev(), next_stream++, seed_now);
        copy->set_state(*get_state());
        return copy;
    }
};

} // namespace

namespace
{

/* Of each device, made when it is asked for. */
struct Defaults {
    std::mutex lock;
    std::deque<at::Generator> all;
    uint64_t seed = c10::default_rng_seed_val; /* of all, the last time */
};

Defaults &defaults()
{
    static auto *made = new Defaults;
    return *made;
}

DeviceGenerator *default_of(uint32_t vdev)
{
    return default_generator((c10::DeviceIndex)vdev).get<DeviceGenerator>();
}

} // namespace

const at::Generator &default_generator(c10::DeviceIndex index)
{
    const size_t vdev = index < 0 ? current_vdev() : (size_t)index;
    Defaults &d = defaults();
    std::lock_guard<std::mutex> hold(d.lock);
    while (d.all.size() <= vdev)
        d.all.push_back(
            at::make_generator<DeviceGenerator>((uint32_t)d.all.size(), 0u, uint64_t{d.seed}));
    return d.all[vdev];
}

at::Generator new_generator(c10::DeviceIndex index)
{
    return at::make_generator<DeviceGenerator>(index < 0 ? current_vdev() : (uint32_t)index,
                                               next_stream++, (uint64_t)c10::default_rng_seed_val);
}

uint32_t stream_of(const at::Generator &generator)
{
    auto *impl = generator.get<DeviceGenerator>();
    impl->make_known();
    return impl->stream;
}

static void seed_all(uint64_t seed)
{
    Defaults &d = defaults();
    dt_session_t *now = if_session();
    dt_error_t err;
    std::lock_guard<std::mutex> hold(d.lock);
    d.seed = seed;
    note_alike(0);
    for (at::Generator &generator : d.all)
        generator.get<DeviceGenerator>()->seed_now = seed;
    if (now)
        must(dt_seed(now, 0, seed, 0, &err), err);
}

void session_began(dt_session_t *session)
{
    dt_error_t err;
    note_alike(0);
    must(dt_seed(session, 0, defaults().seed, 0, &err), err);
}

void session_goes_on()
{
    for (uint32_t i = 0; i < vdev_count(); i++) {
        DeviceGenerator *generator = default_of(i);
        if (generator->seed_now != defaults().seed)
            generator->tell();
    }
}

void note_draw(const Scratch &s, const Op &op)
{
    if (vdev_count() > 1 && (s.mesh == 0 || op.is_all_alias))
        note_apart(s.stream); /* what is written in place is drawn on the first device */
}

void put_in_step(const Mesh &mesh, const at::Generator *generator)
{
    const uint32_t stream = generator ? stream_of(*generator) : 0, first = mesh.vdevs[0];
    {
        std::lock_guard<std::mutex> hold(drawn().lock);
        auto [last, is_new] = drawn().meshes.try_emplace(stream, mesh.number);
        if (is_new || last->second == mesh.number)
            return;
        last->second = mesh.number;
    }
    at::Tensor state = read_state(stream, first);
    for (uint32_t vdev : mesh.vdevs)
        if (vdev != first)
            write_state(stream, state, vdev);
}

} // namespace dt_pu

using namespace dt_pu;

int dt_device_seed(int index, uint64_t seed)
{
    return guarded([&] {
        if (index < 0)
            seed_all(seed);
        else
            default_of((uint32_t)index)->set_current_seed(seed);
        return DT_OK;
    });
}

uint64_t dt_device_initial_seed(int index)
{
    return default_of((uint32_t)index)->current_seed();
}

int dt_device_rng_state(int index, void *ret_state, size_t *size)
{
    return guarded([&] {
        at::Tensor state = default_generator((c10::DeviceIndex)index).get_state();
        size_t needed = state.nbytes();
        bool fits = *size >= needed;
        *size = needed;
        if (!fits)
            return (int)DT_ERR_LIMIT;
        memcpy(ret_state, state.const_data_ptr(), needed);
        return (int)DT_OK;
    });
}

int dt_device_set_rng_state(int index, const void *state, size_t size)
{
    return guarded([&] {
        TORCH_CHECK(size > 0 && size <= state_max, "a state of ", size, " bytes");
        at::Tensor copy = at::empty({(int64_t)size}, at::kByte);
        memcpy(copy.mutable_data_ptr(), state, size);
        at::Generator generator = default_generator((c10::DeviceIndex)index);
        generator.set_state(copy);
        return DT_OK;
    });
}
