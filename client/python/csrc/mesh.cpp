// Tensors on meshes: what libdtorch knows by a storage's id, in the words of the package.
//
// libdtorch plans every submission whose inputs are on a mesh. Here is only what it cannot know:
// the layout that a storage shall have once something is written to it, and what a plan says of
// one.
#include <ATen/ATen.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/new_empty_native.h>
#include <ATen/ops/new_empty_strided_native.h>
#include <algorithm>
#include <map>
#include <torch/library.h>

#include "composites.h"
#include "internal.h"

namespace dt_pu
{
namespace
{

using Numbers = std::vector<int64_t>;

struct Meshes {
    std::mutex lock;
    std::vector<Mesh *> all; /* by number - 1 */
    std::map<std::string, Mesh *> by_content;
    std::map<const dt_mesh_t *, Mesh *> by_handle;
};

Meshes &meshes()
{
    static auto *made = new Meshes;
    return *made;
}

thread_local std::shared_ptr<const MeshLayout> place_now; /* of storages that this thread makes */

/* A mesh of an earlier session may name devices that this one has not. */
bool fits(const Mesh &mesh)
{
    return *std::max_element(mesh.vdevs.begin(), mesh.vdevs.end()) < vdev_count();
}

[[noreturn]] void refuse(const Mesh &mesh)
{
    const uint32_t last = *std::max_element(mesh.vdevs.begin(), mesh.vdevs.end());
    dt_error_t error{};
    error.code = DT_ERR_EXISTS;
    error.source = "dt";
    (void)snprintf(error.text, sizeof error.text,
                   "a mesh of an earlier session has device %u, and this session has %u devices: "
                   "say dtorch.configure(devices=%u) before the device is used first",
                   last, vdev_count(), last + 1);
    raise(error);
}

void create(Meshes &m, Mesh &mesh, dt_session_t *session, uint32_t number)
{
    std::vector<const char *> names;
    dt_error_t err;
    if (!fits(mesh))
        refuse(mesh);
    for (const std::string &name : mesh.names)
        names.push_back(name.c_str());
    must(dt_mesh_create(session, (unsigned)mesh.sizes.size(), mesh.sizes.data(),
                        names.empty() ? nullptr : names.data(), mesh.vdevs.data(), &mesh.handle,
                        &err),
         err);
    mesh.session = number;
    m.by_handle.emplace(mesh.handle, &mesh);
}

std::vector<dt_placement_t> placements_of(const Mesh &mesh, at::IntArrayRef numbers)
{
    TORCH_CHECK(numbers.size() == 4 * mesh.sizes.size(), "a mesh of ", mesh.sizes.size(),
                " dimensions with ", numbers.size(), " numbers of placements");
    std::vector<dt_placement_t> placements;
    for (size_t i = 0; i < numbers.size(); i += 4) {
        dt_placement_t placement{};
        placement.kind = (uint8_t)numbers[i];
        placement.dim = placement.kind == DT_PLACEMENT_SHARD ? (uint8_t)numbers[i + 1] : 0;
        placement.reduction = placement.kind == DT_PLACEMENT_PARTIAL ? (uint8_t)numbers[i + 1] : 0;
        placement.unit = (uint32_t)numbers[i + 2];
        placement.groups = (uint32_t)numbers[i + 3];
        placements.push_back(placement);
    }
    return placements;
}

Numbers numbers_of(const MeshLayout &layout)
{
    Numbers numbers{(int64_t)layout.mesh->number};
    for (const dt_placement_t &p : layout.placements) {
        numbers.push_back(p.kind);
        numbers.push_back(p.kind == DT_PLACEMENT_SHARD     ? p.dim
                          : p.kind == DT_PLACEMENT_PARTIAL ? p.reduction
                                                           : 0);
        numbers.push_back(p.unit ? p.unit : 1);
        numbers.push_back(p.groups ? p.groups : 1);
    }
    return numbers;
}

std::shared_ptr<MeshLayout> layout_from(int64_t number, at::IntArrayRef numbers)
{
    Mesh *mesh = mesh_of_number((uint32_t)number);
    return std::make_shared<MeshLayout>(MeshLayout{mesh, placements_of(*mesh, numbers)});
}

/* Nothing is summed up any more in what is made like a tensor. */
std::shared_ptr<MeshLayout> settled(std::optional<MeshLayout> layout, bool is_same_shape)
{
    if (!layout)
        return nullptr;
    for (dt_placement_t &placement : layout->placements)
        if (!is_same_shape || placement.kind == DT_PLACEMENT_PARTIAL)
            placement = dt_placement_t{DT_PLACEMENT_REPLICATE, 0, 0, 1, 1};
    return std::make_shared<MeshLayout>(std::move(*layout));
}

} // namespace

std::optional<MeshLayout> layout_held(const at::Tensor &tensor)
{
    Storage *storage = storage_of(tensor);
    const dt_mesh_t *handle = nullptr;
    dt_error_t err;
    if (!storage->id || storage->session != session_number())
        return storage->wish ? std::optional<MeshLayout>(*storage->wish) : std::nullopt;
    if (!any_mesh())
        return std::nullopt;
    MeshLayout layout{nullptr, std::vector<dt_placement_t>(DT_RECORD_MESH_DIM_MAX)};
    must(dt_layout_of(session(), wire_id(tensor), &handle, layout.placements.data(), &err), err);
    if (!handle)
        return std::nullopt;
    Meshes &m = meshes();
    std::lock_guard<std::mutex> hold(m.lock);
    auto known = m.by_handle.find(handle);
    TORCH_CHECK(known != m.by_handle.end(), "a tensor is on a mesh that nobody has made");
    /* Meshes that differ in names only are one to the session. */
    Mesh *told = storage->mesh ? m.all[storage->mesh - 1] : nullptr;
    layout.mesh = told && told->handle == handle ? told : known->second;
    layout.placements.resize(layout.mesh->sizes.size());
    return layout;
}

namespace
{

at::Tensor made_like(at::Tensor made, const at::Tensor &self, std::optional<c10::Device> device)
{
    if (!any_mesh() || made.device() != self.device() || (device && *device != self.device()))
        return made;
    Lock lock(recorder());
    Storage *storage = storage_of(made);
    if (!storage->id && !storage->wish)
        storage->wish = settled(layout_held(self), made.sizes() == self.sizes());
    if (storage->wish)
        storage->mesh = storage->wish->mesh->number;
    return made;
}

at::Tensor plain_of(const at::Tensor &self)
{
    return self.is_conj() || self.is_neg() ? self.resolve_conj().resolve_neg() : self;
}

at::Tensor on_mesh(const at::Tensor &self, uint64_t id, uint32_t mesh, uint32_t vdev)
{
    at::IntArrayRef strides = self.strides();
    bool is_dense = self.device().type() == kind && self.is_non_overlapping_and_dense();
    return make_tensor(geometry_of(self.scalar_type(), self.sizes(), is_dense ? &strides : nullptr),
                       vdev, id, mesh);
}

} // namespace

/* ---- meshes ---- */

std::atomic<bool> &any_mesh_flag()
{
    static auto *made = new std::atomic<bool>{false};
    return *made;
}

Mesh *mesh_of_number(uint32_t number)
{
    Meshes &m = meshes();
    std::lock_guard<std::mutex> hold(m.lock);
    TORCH_CHECK(number > 0 && number <= m.all.size(), "there is no mesh ", number);
    return m.all[number - 1];
}

dt_mesh_t *handle_of(Mesh &mesh)
{
    dt_session_t *now = session();
    Meshes &m = meshes();
    std::lock_guard<std::mutex> hold(m.lock);
    if (mesh.session != session_number())
        create(m, mesh, now, session_number());
    return mesh.handle;
}

static std::atomic<uint32_t> policy_flags{0};

bool has_policy(uint32_t flag)
{
    return policy_flags & flag;
}

static dt_policy_t session_policy()
{
    return (dt_policy_t)(policy_flags & (policy_parts - 1));
}

void create_meshes(dt_session_t *session, uint32_t number)
{
    Meshes &m = meshes();
    std::lock_guard<std::mutex> hold(m.lock);
    (void)dt_set_policy(session, session_policy());
    m.by_handle.clear();
    for (Mesh *mesh : m.all) {
        dt_mesh_free(mesh->handle);
        mesh->handle = nullptr;
    }
    for (Mesh *mesh : m.all)
        if (fits(*mesh))
            create(m, *mesh, session, number);
}

static int64_t mesh(at::IntArrayRef sizes, const std::vector<std::string> &names,
                    at::IntArrayRef vdevs)
{
    Meshes &m = meshes();
    std::string content;
    for (int64_t size : sizes)
        content += std::to_string(size) + "x";
    for (const std::string &name : names)
        content += std::to_string(name.size()) + ":" + name;
    for (int64_t vdev : vdevs)
        content += "," + std::to_string(vdev);
    std::lock_guard<std::mutex> hold(m.lock);
    Mesh *&known = m.by_content[content];
    if (!known) {
        known = new Mesh{(uint32_t)m.all.size() + 1, {}, names, {}, nullptr, 0};
        known->sizes.assign(sizes.begin(), sizes.end());
        known->vdevs.assign(vdevs.begin(), vdevs.end());
        m.all.push_back(known);
        any_mesh_flag() = true;
    }
    dt_session_t *now = if_session();
    if (now && known->session != session_number())
        create(m, *known, now, session_number());
    return known->number;
}

/* ---- layouts of storages ---- */

at::Tensor copy_in_use(Storage *storage)
{
    uint64_t id = 0;
    dt_error_t err;
    if (storage->used.defined())
        return storage->used;
    TORCH_CHECK(storage->id && storage->session == session_number(),
                "the tensor belongs to a session that has ended");
    must(dt_redistribute_id(session(), storage->id, &storage->base->meta, storage->vdev,
                            handle_of(*storage->use->mesh), storage->use->placements.data(), &id,
                            &err),
         err);
    at::Tensor copy = make_tensor(storage->base, storage->vdev, id, storage->mesh);
    if (storage->is_used_kept)
        storage->used = copy;
    return copy;
}

void wish_here(Storage *storage)
{
    if (C10_LIKELY(!place_now))
        return;
    storage->wish = place_now;
    storage->mesh = place_now->mesh->number;
}

static void make_on(int64_t number, at::IntArrayRef placements)
{
    place_now = number ? layout_from(number, placements) : nullptr;
}

/* Storages that `op` is the first to write to take the layout of another argument. */
void adopt_layouts(const Op &op, const Stack &stack)
{
    const size_t count = op.arguments.size(), begin = stack.size() - count;
    for (size_t i = 0; i < count; i++) {
        const c10::IValue &value = stack[begin + i];
        if (op.arguments[i].written < 0 || !value.isTensor() || !value.toTensor().defined())
            continue;
        for (size_t k = 0; k < count; k++)
            if (k != i && stack[begin + k].isTensor() && stack[begin + k].toTensor().defined())
                adopt_layout(value.toTensor(), stack[begin + k].toTensor());
    }
}

void adopt_layout(const at::Tensor &self, const at::Tensor &source)
{
    if (self.device().type() != kind || source.device().type() != kind)
        return;
    Storage *storage = storage_of(self);
    if (storage->id || storage->wish || !storage_of(source)->mesh)
        return;
    Lock lock(recorder());
    bool is_whole = storage->base && storage->base->equals(self);
    storage->wish = settled(layout_held(source), is_whole && self.sizes() == source.sizes());
    if (storage->wish)
        storage->mesh = storage->wish->mesh->number;
}

at::Tensor empty_like(const at::Tensor &self, std::optional<c10::ScalarType> type,
                      std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                      std::optional<bool> pin, std::optional<c10::MemoryFormat> format)
{
    return made_like(at::native::empty_like(self, type, layout, device, pin, format), self, device);
}

at::Tensor new_empty(const at::Tensor &self, at::IntArrayRef size,
                     std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                     std::optional<c10::Device> device, std::optional<bool> pin)
{
    return made_like(at::native::new_empty_symint(self, c10::fromIntArrayRefSlow(size), type,
                                                  layout, device, pin),
                     self, device);
}

at::Tensor new_empty_strided(const at::Tensor &self, at::IntArrayRef size, at::IntArrayRef stride,
                             std::optional<c10::ScalarType> type, std::optional<c10::Layout> layout,
                             std::optional<c10::Device> device, std::optional<bool> pin)
{
    return made_like(at::native::new_empty_strided_symint(self, c10::fromIntArrayRefSlow(size),
                                                          c10::fromIntArrayRefSlow(stride), type,
                                                          layout, device, pin),
                     self, device);
}

/* What an optimizer makes like a parameter is its state: it lies where the plan says. */
bool make_state(Stack *stack, size_t count)
{
    const at::Tensor self = stack->at(stack->size() - count).toTensor();
    Storage *storage = storage_of(self);
    if (C10_LIKELY(!storage->state) || !storage->base || !storage->base->equals(self))
        return false;
    at::Tensor made = at::empty_strided(self.sizes(), self.strides(), self.options());
    Storage *fresh = storage_of(made);
    fresh->wish = storage->state;
    fresh->mesh = storage->state->mesh->number;
    made.zero_();
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(made));
    return true;
}

/* ---- for the package ---- */

static at::Tensor upload_to(const at::Tensor &cpu, const MeshLayout &layout)
{
    const Geometry *geometry;
    uint64_t id = upload(cpu, layout.mesh->vdevs[0], &geometry, &layout);
    return on_mesh(cpu, id, layout.mesh->number, layout.mesh->vdevs[0]);
}

static at::Tensor distribute(const at::Tensor &self, int64_t number, at::IntArrayRef placements)
{
    std::shared_ptr<MeshLayout> layout = layout_from(number, placements);
    dt_session_t *now = session();
    dt_mesh_t *handle = handle_of(*layout->mesh);
    dt_error_t err;
    uint64_t id = 0;
    note_place();
    at::Tensor plain = plain_of(self);
    if (plain.device().type() != kind) {
        TORCH_CHECK(plain.device().is_cpu(), "dtorch: copying from ", plain.device(),
                    " is not supported");
        return upload_to(plain, *layout);
    }
    Lock lock(recorder());
    calls().now++;
    uint64_t from = wire_id(plain);
    const Geometry *geometry = geometry_of(plain)->plain;
    mark_place(now);
    must(dt_redistribute_id(now, from, &geometry->meta, storage_of(plain)->vdev, handle,
                            layout->placements.data(), &id, &err),
         err);
    return on_mesh(plain, id, layout->mesh->number, layout->mesh->vdevs[0]);
}

at::Tensor collect_on(const at::Tensor &self, uint32_t vdev)
{
    dt_session_t *now = session();
    dt_error_t err;
    uint64_t id = 0;
    note_place();
    at::Tensor plain = plain_of(self);
    Lock lock(recorder());
    calls().now++;
    uint64_t from = wire_id(plain);
    const Geometry *geometry = geometry_of(plain)->plain;
    mark_place(now);
    must(dt_redistribute_id(now, from, &geometry->meta, vdev, nullptr, nullptr, &id, &err), err);
    return on_mesh(plain, id, 0, vdev);
}

static at::Tensor collect(const at::Tensor &self)
{
    return collect_on(self, storage_of(self)->vdev);
}

static void redistribute_in_place(const at::Tensor &self, int64_t number,
                                  at::IntArrayRef placements)
{
    std::shared_ptr<MeshLayout> layout = layout_from(number, placements);
    dt_session_t *now = session();
    dt_mesh_t *handle = handle_of(*layout->mesh);
    dt_error_t err;
    note_place();
    Lock lock(recorder());
    calls().now++;
    Storage *storage = storage_of(self);
    ensure_base(storage, self);
    TORCH_CHECK(storage->base->equals(self), "redistribute_: a view of a part of its storage");
    mark_place(now);
    must(dt_redistribute_in_place(now, storage->id, &storage->base->meta, handle,
                                  layout->placements.data(), &err),
         err);
    storage->mesh = layout->mesh->number;
    storage->used.reset();
}

static Numbers layout(const at::Tensor &self)
{
    if (!any_mesh())
        return {};
    Lock lock(recorder());
    calls().now++;
    std::optional<MeshLayout> found = layout_held(self);
    return found ? numbers_of(*found) : Numbers{};
}

/* False: it shows as a Shard with other borders, a slice whose rows stayed where they were. */
static bool lies_as_told(const at::Tensor &self)
{
    if (!any_mesh())
        return true;
    Lock lock(recorder());
    calls().now++;
    std::optional<MeshLayout> found = layout_held(self);
    for (size_t i = 0; found && i < found->placements.size(); i++)
        if (found->placements[i].kind == DT_PLACEMENT_SHARD && found->placements[i].unit == 0)
            return false;
    return true;
}

static at::Tensor shard(const at::Tensor &self, int64_t vdev)
{
    dt_session_t *now = session();
    dt_future_t *future = nullptr;
    dt_error_t err;
    note_place();
    at::Tensor plain = plain_of(self);
    {
        Lock lock(recorder());
        calls().now++;
        uint64_t id = wire_id(plain);
        const Geometry *geometry = geometry_of(plain)->plain;
        must(dt_fetch_shard(now, id, &geometry->meta, (uint32_t)vdev, &future, &err), err);
    }
    return wait_and_take(future);
}

/* Of this session and those after it. Gives what it was. */
static int64_t set_policy(int64_t flags)
{
    TORCH_CHECK(flags >= 0 && flags < 2 * (int64_t)policy_parts, "no such policy: ", flags);
    uint32_t before = policy_flags.exchange((uint32_t)flags);
    dt_session_t *now = if_session();
    if (now)
        (void)dt_set_policy(now, session_policy());
    return before;
}

/* What a plan says of a parameter. `use` and `state` on its mesh; empty: as at rest. */
static void hint(const at::Tensor &self, int64_t flags, at::IntArrayRef use, at::IntArrayRef state)
{
    dt_session_t *now = session();
    dt_error_t err;
    Lock lock(recorder());
    calls().now++;
    Storage *storage = storage_of(self);
    ensure_base(storage, self);
    TORCH_CHECK(storage->mesh && storage->base->equals(self), "hint: not a whole tensor on a mesh");
    Mesh *mesh = mesh_of_number(storage->mesh);
    uint32_t hints = flags & 1 ? DT_HINT_PINNED : 0;
    must(dt_layout_hint(now, storage->id, hints, &err), err);
    storage->is_used_kept = flags & 2;
    storage->used.reset();
    storage->use = use.empty() ? nullptr : layout_from(mesh->number, use);
    storage->state = state.empty() ? nullptr : layout_from(mesh->number, state);
}

} // namespace dt_pu

/* _sharded.py and mesh.py call these; placements are four numbers each. */
TORCH_LIBRARY_FRAGMENT(dtorch, m)
{
    m.def("mesh(int[] sizes, str[] names, int[] vdevs) -> int", dt_pu::mesh);
    m.def("set_policy(int flags) -> int", dt_pu::set_policy);
    m.def("make_on(int mesh, int[] placements) -> ()", dt_pu::make_on);
    m.def("distribute(Tensor tensor, int mesh, int[] placements) -> Tensor");
    m.def("collect(Tensor tensor) -> Tensor");
    m.def("redistribute_(Tensor(a!) tensor, int mesh, int[] placements) -> ()");
    m.def("layout(Tensor tensor) -> int[]");
    m.def("lies_as_told(Tensor tensor) -> bool");
    m.def("shard(Tensor tensor, int vdev) -> Tensor");
    m.def("hint(Tensor tensor, int flags, int[] use, int[] state) -> ()");
}

TORCH_LIBRARY_IMPL(dtorch, PrivateUse1, m)
{
    m.impl("distribute", TORCH_FN(dt_pu::distribute));
    m.impl("collect", TORCH_FN(dt_pu::collect));
    m.impl("redistribute_", TORCH_FN(dt_pu::redistribute_in_place));
    m.impl("layout", TORCH_FN(dt_pu::layout));
    m.impl("lies_as_told", TORCH_FN(dt_pu::lies_as_told));
    m.impl("shard", TORCH_FN(dt_pu::shard));
    m.impl("hint", TORCH_FN(dt_pu::hint));
}

TORCH_LIBRARY_IMPL(dtorch, CPU, m)
{
    m.impl("distribute", TORCH_FN(dt_pu::distribute));
}
