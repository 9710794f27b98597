// Which line of the program issues an operator.
//
// The interpreter's frames of this thread are read where they lie: the thread that issues an
// operator stands still meanwhile, so nobody changes them. A place is (code object, instruction);
// what text that is, the package tells once (`resolve`), and a table keeps it. The layouts below
// are those of the versions that are named; dt_device_here() lets the package check them, others
// have no lines.
#include <cstring>
#include <unordered_map>

#include "internal.h"

namespace dt_pu
{

dt_device_python_t python{};

namespace
{

/* Offsets within the interpreter's structures. */
struct Layout {
    uint32_t version;    /* sys.hexversion >> 16 */
    size_t state_cframe; /* of the thread's state: pointer to what holds the frame */
    size_t cframe_frame; /* in it */
    size_t frame_code, frame_previous, frame_instruction;
};
constexpr Layout layouts[] = {
    {0x030b, 56, 8, 32, 48, 56},
    {0x030c, 56, 0, 0, 8, 56},
};
constexpr uint32_t depth_max = 64; /* frames that are looked at */

const Layout *layout = nullptr;

template <typename T> T at_offset(const void *base, size_t offset)
{
    T value;
    memcpy(&value, static_cast<const char *>(base) + offset, sizeof value);
    return value;
}

struct Place {
    uint64_t code, instruction;
    bool operator==(const Place &other) const
    {
        return code == other.code && instruction == other.instruction;
    }
};

struct PlaceHash {
    size_t operator()(const Place &place) const
    {
        return (place.code * 31 + place.instruction) * UINT64_C(0x9e3779b97f4a7c15) >> 20;
    }
};

struct Places {
    std::mutex lock;
    std::unordered_map<Place, const std::string *, PlaceHash> table; /* NULL: not the program's */
    const std::string *told = nullptr;                               /* to the session */
    uint32_t session = 0;
};
constexpr size_t places_max = 65536;

Places &places()
{
    static auto *made = new Places;
    return *made;
}

/* What this thread has looked up lately. */
struct Slot {
    Place place;
    const std::string *text;
};
constexpr size_t slot_count = 512;
thread_local Slot slots[slot_count];
thread_local const std::string *pending = nullptr; /* place of the operator that is on its way */

const std::string *resolve_slowly(const Place &place)
{
    Places &p = places();
    {
        std::lock_guard<std::mutex> hold(p.lock);
        auto known = p.table.find(place);
        if (known != p.table.end())
            return known->second;
        if (p.table.size() >= places_max)
            return nullptr;
    }
    char text[1024] = "";
    /* Python runs in it: no lock is held. */
    bool is_place = python.resolve(reinterpret_cast<void *>(place.code), place.instruction, text,
                                   sizeof text) == 1;
    std::lock_guard<std::mutex> hold(p.lock);
    const std::string *kept = is_place ? new std::string(text) : nullptr;
    return p.table.emplace(place, kept).first->second;
}

const std::string *resolve(const Place &place)
{
    Slot &slot = slots[PlaceHash()(place) & (slot_count - 1)];
    if (!(slot.place == place))
        slot = {place, resolve_slowly(place)};
    return slot.text;
}

const std::string *find_place()
{
    const char *state = static_cast<const char *>(python.thread_state());
    if (!state)
        return nullptr; /* not one of the interpreter's */
    const char *holder = at_offset<const char *>(state, layout->state_cframe);
    const char *frame = holder ? at_offset<const char *>(holder, layout->cframe_frame) : nullptr;
    for (uint32_t i = 0; frame && i < depth_max; i++) {
        Place place{at_offset<uint64_t>(frame, layout->frame_code),
                    at_offset<uint64_t>(frame, layout->frame_instruction)};
        const std::string *text = place.code ? resolve(place) : nullptr;
        if (text)
            return text;
        frame = at_offset<const char *>(frame, layout->frame_previous);
    }
    return nullptr;
}

} // namespace

bool place_here(char *ret_place, size_t size)
{
    const std::string *text = layout && python.resolve ? find_place() : nullptr;
    if (!text)
        return false;
    (void)snprintf(ret_place, size, "%s", text->c_str());
    return true;
}

void note_place()
{
    pending = layout && python.resolve ? find_place() : nullptr;
}

/* Threads without frames, as autograd's, go on at the place that was told last: the line that began
 * the backward pass. */
void mark_place(dt_session_t *session)
{
    Places &p = places();
    dt_error_t err;
    if (!pending || (pending == p.told && p.session == session_number()))
        return;
    p.told = pending;
    p.session = session_number();
    must(dt_mark_source(session, pending->c_str(), &err), err);
}

/* ---- signals ---- */

namespace
{

/* What a signal's handler has raised on this thread, until the wait that it ended has come back. */
struct Raised {
    void *type, *value, *traceback;
};
thread_local std::unique_ptr<Raised> raised;

} // namespace

/* Called by a thread that waits, with no lock but perhaps the recorder. Only the interpreter's own
 * threads have handlers to run; nobody waits for the recorder with the GIL (Lock). */
bool should_stop(void *)
{
    if (!python.thread_state || !python.thread_state() || !python.check_signals)
        return false;
    int state = python.gil_ensure();
    bool is_raised = python.check_signals() != 0;
    if (is_raised) {
        raised = std::make_unique<Raised>();
        python.fetch_error(&raised->type, &raised->value, &raised->traceback);
    }
    python.gil_release(state);
    return is_raised;
}

bool is_interrupted()
{
    return raised != nullptr;
}

void raise_if_interrupted()
{
    if (C10_LIKELY(!raised))
        return;
    std::unique_ptr<Raised> taken = std::move(raised);
    raise_interrupted(taken->type, taken->value, taken->traceback);
}

Lock::Lock(std::mutex &m) : std::unique_lock<std::mutex>(m, std::defer_lock)
{
    if (C10_LIKELY(try_lock()))
        return;
    if (python.gil_check && python.gil_check()) {
        void *state = python.save_thread();
        lock();
        python.restore_thread(state);
    } else {
        lock();
    }
}

} // namespace dt_pu

using namespace dt_pu;

int dt_device_python(const dt_device_python_t *given)
{
    if (given->struct_size > sizeof *given) {
        set_error_text("dt_device_python_t is larger than this library knows");
        return DT_ERR_INVALID;
    }
    python = dt_device_python_t{};
    memcpy(&python, given, given->struct_size);
    layout = nullptr;
    for (const Layout &known : layouts)
        if (known.version == given->version >> 16 && given->thread_state && given->resolve)
            layout = &known;
    return DT_OK;
}

int dt_device_here(char *ret_place, size_t size)
{
    return place_here(ret_place, size);
}
