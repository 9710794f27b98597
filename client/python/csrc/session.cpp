// The session behind the device: made at first use, one at a time.
#include <atomic>
#include <cstring>

#include "internal.h"

namespace dt_pu
{
namespace
{

struct State {
    std::mutex lock;                /* of what follows, and of beginning and ending a session */
    std::atomic<uint32_t> count{0}; /* of the session's virtual devices; 0: none yet */
    dt_device_options_t options{};
    std::string texts[6];
    bool is_ended = false; /* the process is about to end */
};

State &state()
{
    static auto *made = new State;
    return *made;
}

/* Ranges of the profiler that are open: a session that begins within them is told. */
struct Ranges {
    std::mutex lock; /* taken after that of State */
    std::vector<std::string> open;
};

Ranges &ranges()
{
    static auto *made = new Ranges;
    return *made;
}

thread_local uint32_t current = 0;

/* Strings of the options are kept here. */
const char *keep(State &s, int slot, const char *text)
{
    if (!text)
        return nullptr;
    s.texts[slot] = text;
    return s.texts[slot].c_str();
}

dt_session_t *connect(State &s)
{
    const dt_device_options_t &from = s.options;
    dt_connect_options_t options{};
    dt_session_t *session = nullptr;
    dt_error_t err;
    options.struct_size = sizeof options;
    options.flags = from.is_private ? DT_CONNECT_PRIVATE : 0;
    options.vdev_count = from.vdev_count;
    options.address = from.address;
    options.config_file = from.config_file;
    options.program = from.program;
    options.device_kind = device_kind();
    options.backend = strcmp(options.device_kind, "sim") == 0 ? "sim" : "torch";
    options.bin_dir = from.bin_dir;
    options.private_devices = from.private_devices ? from.private_devices : "torch";
    options.record_file = from.record_file;
    options.memory_limit_bytes = from.memory_limit_bytes;
    options.connect_timeout_ms = from.connect_timeout_ms;
    must(dt_connect(&options, &session, &err), err);
    dt_on_wait(session, should_stop, nullptr);
    session_began(session);
    return session;
}

/* Simulated devices may be more than were asked for. */
uint32_t count_of(dt_session_t *session, const dt_device_options_t &options)
{
    dt_session_info_t info{};
    info.struct_size = sizeof info;
    if (dt_session_info(session, &info) == DT_OK && info.vdev_count)
        return info.vdev_count;
    return options.vdev_count ? options.vdev_count : 1;
}

} // namespace

std::atomic<dt_session_t *> session_now{nullptr};
std::atomic<uint32_t> session_count{0};

dt_session_t *begin_session()
{
    State &s = state();
    std::lock_guard<std::mutex> hold(s.lock);
    dt_session_t *now = if_session();
    if (now)
        return now;
    TORCH_CHECK(!s.is_ended, "the dtorch device cannot be used any more: the program ends");
    now = connect(s);
    s.count = count_of(now, s.options);
    create_meshes(now, session_count + 1);
    session_count++;
    {
        Ranges &r = ranges();
        dt_error_t err;
        std::lock_guard<std::mutex> keep_out(r.lock);
        for (const std::string &name : r.open)
            must(dt_range_begin(now, name.c_str(), &err), err);
        session_now.store(now, std::memory_order_release);
    }
    session_goes_on();
    return now;
}

uint32_t vdev_count()
{
    State &s = state();
    uint32_t count = s.count.load(std::memory_order_relaxed);
    return count ? count : s.options.vdev_count ? s.options.vdev_count : 1;
}

const char *device_kind()
{
    const char *configured = state().options.device_kind;
    return configured ? configured : "cpu";
}

uint32_t current_vdev()
{
    return current;
}

void set_current_vdev(uint32_t vdev)
{
    current = vdev;
}

void check_vdev(int64_t index)
{
    TORCH_CHECK(index >= 0 && index < (int64_t)vdev_count(), "there is no device dtorch:", index,
                ": the session has ", vdev_count());
}

Counters &counters()
{
    static auto *made = new Counters{};
    return *made;
}

} // namespace dt_pu

using namespace dt_pu;

int dt_device_configure(const dt_device_options_t *options)
{
    State &s = state();
    if (options->struct_size != sizeof *options) {
        set_error_text("dt_device_options_t of another size");
        return DT_ERR_INVALID;
    }
    std::lock_guard<std::mutex> hold(s.lock);
    if (if_session()) {
        set_error_text("the session has begun");
        return DT_ERR_EXISTS;
    }
    s.options = *options;
    s.options.address = keep(s, 0, options->address);
    s.options.config_file = keep(s, 1, options->config_file);
    s.options.program = keep(s, 2, options->program);
    s.options.device_kind = keep(s, 3, options->device_kind);
    s.options.bin_dir = keep(s, 4, options->bin_dir);
    s.options.private_devices = keep(s, 5, options->private_devices);
    s.options.record_file = options->record_file ? strdup(options->record_file) : nullptr;
    return DT_OK;
}

int dt_device_connect(void)
{
    return guarded([] {
        (void)session();
        return DT_OK;
    });
}

int dt_device_disconnect(int64_t timeout_ms)
{
    State &s = state();
    return guarded([&] {
        auto failure = std::make_unique<dt_failure_t>();
        memset(failure.get(), 0, sizeof *failure);
        std::lock_guard<std::mutex> hold(s.lock);
        Lock recording(recorder());
        dt_session_t *now = session_now.exchange(nullptr);
        if (!now)
            return (int)DT_OK;
        forget_signatures();
        recording.unlock();
        dt_status_t status = dt_disconnect(now, timeout_ms, failure.get());
        s.count = 0;
        if (status != DT_OK) {
            keep_failure(*failure);
            set_error_text(failure->text);
        }
        return (int)status;
    });
}

int dt_device_is_connected(void)
{
    return if_session() != nullptr;
}

int dt_device_count(void)
{
    return (int)vdev_count();
}

int dt_device_current(void)
{
    return (int)current_vdev();
}

int dt_device_need(int count)
{
    return guarded([&] {
        State &s = state();
        std::lock_guard<std::mutex> hold(s.lock);
        if (!if_session()) {
            if (count > 0 && (uint32_t)count > s.options.vdev_count)
                s.options.vdev_count = (uint32_t)count;
            return (int)DT_OK;
        }
        if (count <= (int)vdev_count())
            return (int)DT_OK;
        set_error_text("the session has " + std::to_string(vdev_count()) + " devices, and " +
                       std::to_string(count) +
                       " are needed: make the mesh, or say dtorch.configure(devices=" +
                       std::to_string(count) + "), before the device is used first");
        return (int)DT_ERR_EXISTS;
    });
}

int dt_device_set_current(int index)
{
    return guarded([&] {
        check_vdev(index);
        set_current_vdev((uint32_t)index);
        return DT_OK;
    });
}

int dt_device_synchronize(void)
{
    return guarded([] {
        synchronize();
        return DT_OK;
    });
}

int dt_device_flush(void)
{
    dt_session_t *now = if_session();
    dt_error_t err;
    dt_status_t status = now ? dt_flush(now, &err) : DT_OK;
    if (status != DT_OK)
        set_error_text(err.text);
    return status;
}

int dt_device_is_forked(void)
{
    dt_session_t *now = if_session();
    dt_session_info_t info{};
    info.struct_size = sizeof info;
    return now && dt_session_info(now, &info) == DT_ERR_STOPPED;
}

int dt_device_session(dt_device_session_t *info)
{
    dt_session_t *now = if_session();
    dt_session_info_t from{};
    Counters &c = counters();
    if (info->struct_size != sizeof *info)
        return DT_ERR_INVALID;
    from.struct_size = sizeof from;
    if (now) {
        dt_status_t status = dt_session_info(now, &from);
        if (status != DT_OK)
            return status;
    }
    *info = dt_device_session_t{};
    info->struct_size = sizeof *info;
    info->session = from.session;
    info->vdev_count = vdev_count();
    info->is_connected = from.is_connected;
    info->is_private = from.is_private;
    info->epoch = from.epoch;
    info->reconnects = from.reconnects;
    info->records = from.records;
    info->bytes = from.bytes;
    info->signatures = from.signatures;
    info->queries = from.queries;
    info->operators = c.operators;
    info->hits = c.hits;
    info->metas = c.metas;
    info->rules = c.rules;
    info->asked = c.asked;
    info->waits = c.waits;
    info->views = c.views;
    info->uploads = c.uploads;
    return DT_OK;
}

int dt_device_binding(int index, char *ret_text, size_t size)
{
    return guarded([&] {
        std::string text = binding_text((uint32_t)index);
        (void)snprintf(ret_text, size, "%s", text.c_str());
        return (int)text.size();
    });
}

int dt_device_range_begin(const char *name)
{
    return guarded([&] {
        dt_error_t err;
        Ranges &r = ranges();
        std::lock_guard<std::mutex> hold(r.lock);
        dt_session_t *now = if_session();
        if (now)
            must(dt_range_begin(now, name, &err), err);
        r.open.emplace_back(name);
        return DT_OK;
    });
}

int dt_device_range_end(void)
{
    return guarded([&] {
        dt_error_t err;
        Ranges &r = ranges();
        std::lock_guard<std::mutex> hold(r.lock);
        dt_session_t *now = if_session();
        if (!r.open.empty())
            r.open.pop_back();
        if (now)
            must(dt_range_end(now, &err), err);
        return DT_OK;
    });
}

int dt_device_step(uint64_t step)
{
    dt_error_t err;
    dt_session_t *now = if_session();
    return now ? dt_mark_step(now, step, &err) : DT_OK;
}
