// The boxed kernel: a call becomes a key, the key a signature, the signature a record.
#include "record.h"

#include <cstring>

namespace dt_pu
{
namespace
{

[[noreturn]] void other_device(int64_t vdev, const at::Tensor &tensor)
{
    std::string here = "dtorch:" + std::to_string(vdev < 0 ? 0 : vdev);
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                here, " and ", tensor.device(), "!");
}

/* ---- arguments ---- */

/* All on one device, or some on a mesh: what is on a device meets it as Replicate. */
void put_device(Scratch &s, const Storage &storage, const at::Tensor &tensor)
{
    if (C10_UNLIKELY(storage.mesh || s.mesh)) {
        if (!s.mesh) {
            s.mesh = storage.mesh;
            s.vdev = storage.vdev;
        }
        return;
    }
    if (C10_UNLIKELY(s.vdev >= 0 && storage.vdev != (uint32_t)s.vdev))
        other_device(s.vdev, tensor);
    s.vdev = storage.vdev;
}

void put_operand(Scratch &s, const Op &op, const Argument &argument, const at::Tensor &tensor)
{
    const Geometry *geometry;
    uint64_t id;
    if (C10_LIKELY(tensor.device().type() == kind)) {
        Storage *storage = storage_of(tensor);
        put_device(s, *storage, tensor);
        if (C10_UNLIKELY(storage->use != nullptr) && !op.reads_at_rest && argument.written < 0) {
            s.copies.push_back(copy_in_use(storage));
            storage = storage_of(s.copies.back());
        }
        if (C10_LIKELY(storage->id && storage->base->equals(tensor) &&
                       storage->session == session_number())) {
            id = storage->id;
            geometry = storage->base;
        } else {
            id = wire_id_in(storage, tensor);
            geometry = geometry_in(storage, tensor);
        }
    } else {
        if (!tensor.device().is_cpu() || (tensor.dim() > 0 && !op.takes_cpu))
            other_device(s.vdev, tensor);
        id = upload(tensor, s.vdev < 0 ? current_vdev() : (uint32_t)s.vdev, &geometry);
        s.temporaries.push_back(id);
    }
    if (op.is_index && (tensor.scalar_type() == c10::kBool || tensor.scalar_type() == c10::kByte))
        s.has_mask |= !s.ids.empty();
    s.ids.push_back(id);
    s.operands.push_back(geometry->plain);
    s.key.put((uint64_t)'T' << 32 | geometry->plain->number);
}

} // namespace

void put_number(Scratch &s, const Op &op, const Argument &argument, const c10::IValue &v)
{
    /* As below, for what comes most: a whole number that a pointwise operator computes with. */
    if (C10_LIKELY(op.is_pointwise && argument.kind == Kind::scalar && v.isInt() &&
                   !op.shapes_by_value)) {
        s.key.put((uint64_t)'i' << 32 | 1);
        s.scalars.push_back(dt_arg_int(v.toInt()));
        return;
    }
    bool is_dynamic = is_dynamic_number(op, argument, v);
    const char kind_name = v.isInt() ? 'i' : v.isDouble() ? 'd' : v.isBool() ? 'b' : 'c';
    s.key.put((uint64_t)kind_name << 32 | is_dynamic);
    if (is_dynamic) {
        s.scalars.push_back(value_of_number(v, nullptr));
    } else if (v.isComplexDouble()) {
        auto number = v.toComplexDouble();
        s.key.put_bytes(&number, sizeof number);
    } else if (v.isDouble()) {
        s.key.put(v.toDouble());
    } else {
        s.key.put(v.isBool() ? (int64_t)v.toBool() : v.toInt());
    }
}

void put_tensor(Scratch &s, const Op &op, const Argument &argument, const at::Tensor &tensor)
{
    if (!tensor.defined())
        s.key.put('n');
    else if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.device().is_cpu())
        put_number(s, op, argument, number_in(tensor));
    else
        put_operand(s, op, argument, tensor);
}

void put_generator(Scratch &s, const at::Generator &generator)
{
    TORCH_CHECK(generator.device().type() == kind,
                "Expected a 'dtorch' device type for generator but found '",
                generator.device().type(), "'");
    s.stream = stream_of(generator);
    s.key.put('g');
    s.key.put(s.stream);
}

static void put_list(Scratch &s, const Op &op, const Argument &argument, const c10::IValue &v)
{
    static const Argument element{Kind::other, false, -1};
    auto list = v.toListRef();
    s.key.put('[');
    s.key.put((uint32_t)list.size());
    for (const c10::IValue &item : list)
        put_value(s, op, argument.kind == Kind::tensors ? argument : element, item);
}

void put_value(Scratch &s, const Op &op, const Argument &argument, const c10::IValue &v)
{
    if (v.isTensor()) {
        put_tensor(s, op, argument, v.toTensor());
    } else if (v.isNone()) {
        s.key.put('n');
    } else if (v.isInt() || v.isDouble() || v.isBool() || v.isComplexDouble()) {
        put_number(s, op, argument, v);
    } else if (v.isList()) {
        put_list(s, op, argument, v);
    } else if (v.isString()) {
        const std::string &text = v.toStringRef();
        s.key.put('s');
        s.key.put((uint32_t)text.size());
        s.key.put_bytes(text.data(), text.size());
    } else if (v.isGenerator()) {
        put_generator(s, v.toGenerator());
    } else if (v.isDevice()) {
        s.key.put('D');
    } else {
        TORCH_CHECK_NOT_IMPLEMENTED(false, op.name, ": an argument of type ", v.tagKind(),
                                    " cannot be sent to a dtorch device");
    }
}

namespace
{

/* ---- results ---- */

/* An output that was resized by the operator: the tensor follows. Recorder held. */
void follow(const at::Tensor &tensor, const Geometry *geometry, uint64_t id)
{
    Storage *storage = storage_of(tensor);
    const dt_meta_t &meta = geometry->meta;
    at::IntArrayRef sizes(meta.sizes, meta.ndim), strides(meta.strides, meta.ndim);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    if (id == storage->id) {
        std::vector<uint64_t> old;
        for (const View &view : storage->views)
            old.push_back(view.id);
        free_ids(storage, old.data(), (uint32_t)old.size(), 0);
        storage->views.clear();
        storage->base = geometry;
        tensor.storage().unsafeGetStorageImpl()->set_nbytes(geometry->span_bytes);
        resize_bytes(storage, geometry->span_bytes);
        return;
    }
    for (View &view : storage->views)
        if (view.id == id)
            view.geometry = geometry_of(tensor);
}

/* Sizes that depend on values: ask what came out, not for the value. Releases the lock and takes it
 * again. */
const Geometry *learn(uint64_t id, uint32_t vdev, Lock &lock)
{
    constexpr int64_t count = 2 + 2 * DT_META_DIM_MAX;
    dt_session_t *now = session();
    dt_value_t arg = dt_arg_tag(DT_VALUE_TENSOR);
    const Geometry *unknown = geometry_of(c10::kFloat, {}, nullptr);
    const Geometry *said = geometry_of(c10::kLong, {count}, nullptr);
    dt_future_t *future = nullptr;
    dt_meta_t meta;
    dt_error_t err;
    arg.handle = &arg;
    uint64_t answer =
        submit_piece({"dtorch::metadata", &arg, 1, &unknown, &id, 1, vdev, said, DT_ALIAS_FRESH});
    dt_status_t status = dt_fetch_id(now, answer, &future, &err);
    dt_free_ids(now, &answer, 1);
    must(status, err);
    lock.unlock();
    at::Tensor value = wait_and_take(future);
    lock.lock();
    const int64_t *at = value.const_data_ptr<int64_t>();
    must(dt_describe((dt_dtype_t)at[0], (unsigned)at[1], at + 2, at + 2 + DT_META_DIM_MAX, &meta,
                     &err),
         err);
    return geometry_of(meta, 0);
}

struct Results {
    const Signature &signature;
    const Op &op;
    Stack *stack;
    size_t begin; /* of the arguments on the stack */
    uint32_t vdev, mesh;
    std::vector<uint64_t> &ids; /* of new outputs */
    const std::vector<uint64_t> &inputs;
    Lock &lock;
    uint32_t output = 0, id = 0;
    std::vector<const Geometry *> learned; /* per output, where nobody knew before */

    at::Tensor next()
    {
        const Output &out = signature.outputs[output++];
        if (out.alias == DT_ALIAS_NONE)
            return at::Tensor();
        uint64_t number = ids[id++];
        const Geometry *geometry = out.geometry ? out.geometry : learn(number, vdev, lock);
        if (C10_UNLIKELY(signature.depends))
            learned.push_back(geometry);
        return make_tensor(geometry, vdev, number, mesh);
    }

    /* What is written with a tensor on a mesh is there afterwards. */
    void take_along(const at::Tensor &tensor)
    {
        if (C10_LIKELY(mesh == 0) || !tensor.defined() || tensor.device().type() != kind)
            return;
        if (!storage_of(tensor)->mesh)
            storage_of(tensor)->mesh = mesh;
        storage_of(tensor)->used.reset();
    }

    c10::IValue argument(size_t index)
    {
        const c10::IValue &value = (*stack)[begin + index];
        if (value.isList()) {
            if (C10_UNLIKELY(mesh != 0))
                for (const c10::IValue &item : value.toListRef())
                    take_along(item.toTensor());
            output += (uint32_t)value.toListRef().size();
            return value;
        }
        const Output &out = signature.outputs[output++];
        const Geometry *geometry = out.geometry;
        if (!geometry)
            geometry = learn(inputs[out.input], vdev, lock);
        if (C10_UNLIKELY(signature.depends))
            learned.push_back(geometry);
        if (value.toTensor().sizes() != at::IntArrayRef(geometry->meta.sizes, geometry->meta.ndim))
            follow(value.toTensor(), geometry, inputs[out.input]);
        take_along(value.toTensor());
        return value;
    }
};

/* A call that is not wanted after all may leave ids behind: they are freed with the session. */
void give_results(Results &r, c10::SmallVector<c10::IValue, 4> &values)
{
    for (size_t i = 0; i < r.op.aliases.size(); i++) {
        if (r.op.aliases[i] >= 0) {
            values.push_back(r.argument((size_t)r.op.aliases[i]));
        } else if (r.signature.lists[i] != UINT32_MAX) {
            std::vector<at::Tensor> list;
            for (uint32_t k = 0; k < r.signature.lists[i]; k++)
                list.push_back(r.next());
            values.emplace_back(std::move(list));
        } else {
            values.emplace_back(r.next());
        }
    }
}

Signature *find_or_work_out(Scratch &s, Op &op, Stack *stack)
{
    Signature *known = find_signature(s.key);
    if (C10_LIKELY(known != nullptr)) {
        counters().count_hit();
        return known;
    }
    /* The lock is released while the cluster is asked; no other thread uses this scratch. */
    Call call{&op, stack, &s.operands, s.where(), s.has_mask};
    std::unique_ptr<Signature> made = work_out(call);
    if ((known = find_signature(s.key)) != nullptr)
        return known; /* another thread was faster */
    return add_signature(s.key, std::move(made));
}

/* The lock is released while results are waited for: the scratch's content is taken along. */
void give_unknown(Scratch &s, Op &op, Signature &signature, Stack *stack, Lock &lock,
                  c10::SmallVector<c10::IValue, 4> &values)
{
    const size_t begin = stack->size() - op.arguments.size();
    const uint32_t vdev = s.where();
    std::vector<uint64_t> ids = s.outputs, inputs = s.ids;
    std::vector<const Geometry *> operands = s.operands;
    const bool has_mask = s.has_mask;
    Results results{signature, op, stack, begin, vdev, s.mesh, ids, inputs, lock, 0, 0, {}};
    give_results(results, values);
    if (signature.depends && results.learned.size() == signature.outputs.size() && !op.is_out)
        settle({&op, stack, &operands, vdev, has_mask}, signature, results.learned);
}

} // namespace

void submit(Scratch &s, const Signature &signature)
{
    dt_session_t *now = session();
    dt_error_t err;
    s.outputs.resize(signature.id_count);
    mark_place(now);
    must(dt_submit(now, signature.number, s.ids.data(), (uint32_t)s.ids.size(), s.scalars.data(),
                   (uint32_t)s.scalars.size(), s.outputs.data(), signature.id_count, &err),
         err);
    s.free_temporaries();
    if (C10_UNLIKELY(!s.copies.empty()))
        s.copies.clear();
}

static bool is_on_mesh(const c10::IValue &value)
{
    if (value.isTensorList()) {
        for (const c10::IValue &item : value.toListRef())
            if (is_on_mesh(item))
                return true;
        return false;
    }
    return value.isTensor() && value.toTensor().defined() &&
           value.toTensor().device().type() == kind && storage_of(value.toTensor())->mesh;
}

/* ---- arguments that are written and not returned ---- */

/* The same on the whole of every device of its mesh, in a storage of its own; on one device for
 * an operator that draws, since the numbers come from one device's stream. */
at::Tensor whole_copy(const at::Tensor &tensor, uint32_t mesh, bool draws)
{
    using Collect = at::Tensor(const at::Tensor &);
    static auto collect =
        c10::Dispatcher::singleton().findSchemaOrThrow("dtorch::collect", "").typed<Collect>();
    if (draws)
        return collect.call(tensor);
    using Distribute = at::Tensor(const at::Tensor &, int64_t, at::IntArrayRef);
    static auto handle = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtorch::distribute", "")
                             .typed<Distribute>();
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < mesh_of_number(mesh)->sizes.size(); i++)
        numbers.insert(numbers.end(), {DT_PLACEMENT_REPLICATE, 0, 1, 1});
    return handle.call(tensor, mesh, numbers);
}

bool is_whole(const at::Tensor &tensor)
{
    Lock lock(recorder());
    std::optional<MeshLayout> layout = layout_held(tensor);
    for (size_t i = 0; layout && i < layout->placements.size(); i++)
        if (layout->placements[i].kind != DT_PLACEMENT_REPLICATE)
            return false;
    return layout.has_value();
}

struct Wholes {
    bool draws = false;
    uint32_t mesh = 0;
    std::vector<std::pair<at::Tensor, at::Tensor>> written; /* a tensor and its copy */
    bool is_any = false;

    bool lies_right(const at::Tensor &tensor) const
    {
        return draws ? storage_of(tensor)->mesh == 0 : is_whole(tensor);
    }

    c10::IValue of(const c10::IValue &value, bool is_written)
    {
        if (value.isTensorList()) {
            std::vector<at::Tensor> list;
            for (const c10::IValue &item : value.toListRef())
                list.push_back(of(item, is_written).toTensor());
            return list;
        }
        if (!value.isTensor() || !value.toTensor().defined() ||
            value.toTensor().device().type() != kind || lies_right(value.toTensor()))
            return value;
        at::Tensor copy = whole_copy(value.toTensor(), mesh, draws);
        is_any = true;
        if (is_written)
            written.emplace_back(value.toTensor(), copy);
        return copy;
    }
};

uint32_t mesh_in(const c10::IValue &value)
{
    uint32_t mesh = 0;
    if (value.isTensorList())
        for (const c10::IValue &item : value.toListRef())
            mesh = mesh ? mesh : mesh_in(item);
    else if (value.isTensor() && value.toTensor().defined() &&
             value.toTensor().device().type() == kind)
        mesh = storage_of(value.toTensor())->mesh;
    return mesh;
}

/* What is moved for an operator is a copy, and a write to it would be lost: all is given whole, and
 * copied back. False: it is whole already. */
bool record_whole(Op &op, Stack *stack)
{
    const size_t count = op.arguments.size(), begin = stack->size() - count;
    Wholes wholes;
    Stack given;
    wholes.draws = op.draws;
    for (size_t i = begin; i < stack->size() && !wholes.mesh; i++)
        wholes.mesh = mesh_in((*stack)[i]);
    for (size_t i = 0; i < count; i++)
        given.push_back(wholes.of((*stack)[begin + i],
                                  op.arguments[i].is_unsaid || op.arguments[i].written >= 0));
    if (!wholes.is_any)
        return false;
    torch::jit::drop(*stack, count);
    record(op, &given);
    for (auto &[tensor, copy] : wholes.written)
        tensor.copy_(copy);
    for (c10::IValue &result : given)
        stack->push_back(std::move(result));
    return true;
}

/* A result that is drawn comes out of a stream on each device of the mesh. Recorder not held. */
void draw_in_step(const Op &op, const Stack &stack)
{
    const size_t count = op.arguments.size(), begin = stack.size() - count;
    const at::Generator *generator = nullptr;
    at::Generator given;
    uint32_t mesh = 0;
    for (size_t i = 0; i < count; i++) {
        mesh = mesh ? mesh : mesh_in(stack[begin + i]);
        if (op.arguments[i].kind == Kind::generator && !stack[begin + i].isNone()) {
            given = stack[begin + i].toGenerator();
            generator = &given;
        }
    }
    put_in_step(*mesh_of_number(mesh), generator);
}

constexpr size_t list_max = 256; /* tensors of a call that rules look at */

bool is_same_placement(const dt_placement_t &a, const dt_placement_t &b)
{
    return a.kind == b.kind && a.dim == b.dim && a.reduction == b.reduction && a.unit == b.unit &&
           a.groups == b.groups;
}

/* Lists whose tensors all lie alike are one operator on every device's parts. Recorder not held. */
bool runs_as_list(const Stack &stack, size_t count)
{
    std::optional<MeshLayout> first;
    size_t tensors = 0;
    Lock lock(recorder());
    for (size_t i = stack.size() - count; i < stack.size(); i++) {
        if (!stack[i].isTensorList())
            continue;
        for (const c10::IValue &item : stack[i].toListRef()) {
            const at::Tensor tensor = item.toTensor();
            if (++tensors > list_max || tensor.device().type() != kind ||
                !storage_of(tensor)->mesh || storage_of(tensor)->use)
                return false;
            std::optional<MeshLayout> layout = layout_held(tensor);
            if (!layout)
                return false;
            if (!first)
                first = layout;
            if (layout->mesh->handle != first->mesh->handle ||
                !std::equal(layout->placements.begin(), layout->placements.end(),
                            first->placements.begin(), first->placements.end(), is_same_placement))
                return false;
        }
    }
    return tensors > 0;
}

/* What goes another way where a mesh is in play. True: it is done. Recorder not held. */
static bool record_on_mesh(Op &op, Stack *stack)
{
    const size_t count = op.arguments.size(), begin = stack->size() - count;
    bool is_any = false;
    for (size_t i = begin; i < stack->size() && !is_any; i++)
        is_any = is_on_mesh((*stack)[i]);
    if (!is_any)
        return false;
    if (op.one_by_one && !runs_as_list(*stack, count)) { /* each has a layout of its own */
        op.one_by_one->callBoxed(op.handle, c10::DispatchKeySet(key), stack);
        return true;
    }
    if (op.makes_state && make_state(stack, count))
        return true;
    if (op.draws && !op.is_all_alias)
        draw_in_step(op, *stack);
    if (op.writes_unsaid && (op.writes_if < 0 || (*stack)[begin + (size_t)op.writes_if].toBool()) &&
        record_whole(op, stack))
        return true;
    adopt_layouts(op, *stack);
    return false;
}

static bool is_integer(const c10::IValue &value)
{
    if (value.isTensorList()) {
        for (const c10::IValue &item : value.toListRef())
            if (is_integer(item))
                return true;
        return false;
    }
    return value.isTensor() && value.toTensor().defined() &&
           c10::isIntegralType(value.toTensor().scalar_type(), true);
}

/* Where PyTorch's default type is not the engines', a pointwise operator over integers that PyTorch
 * itself takes apart is taken apart here: its parts say which of them computes in the default type.
 * True: it is done. */
static bool record_apart(Op &op, Stack *stack)
{
    const c10::DispatchKey composite = c10::DispatchKey::CompositeExplicitAutograd;
    bool is_any = false;
    for (size_t i = stack->size() - op.arguments.size(); i < stack->size(); i++)
        is_any |= is_integer((*stack)[i]);
    if (!is_any || !(op.is_pointwise || op.one_by_one) || op.reads_at_rest ||
        op.handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        !op.handle.hasKernelForDispatchKey(composite))
        return false;
    op.handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)
        .callBoxed(op.handle, c10::DispatchKeySet(key), stack);
    return true;
}

Scratch &scratch()
{
    static thread_local Scratch *mine = nullptr;
    if (C10_UNLIKELY(!mine)) {
        static thread_local std::unique_ptr<Scratch> owner; /* frees it with the thread */
        owner = std::make_unique<Scratch>();
        mine = owner.get();
    }
    return *mine;
}

void Scratch::free_temporaries()
{
    if (C10_LIKELY(temporaries.empty()))
        return;
    if (dt_session_t *now = if_session())
        dt_free_ids(now, temporaries.data(), (uint32_t)temporaries.size());
    temporaries.clear();
}

void Scratch::begin(const Op &op, bool is_odd)
{
    free_temporaries();
    key.clear();
    ids.clear();
    operands.clear();
    scalars.clear();
    if (C10_UNLIKELY(!copies.empty()))
        copies.clear();
    vdev = -1;
    mesh = 0;
    has_mask = false;
    stream = 0;
    calls().now++;
    key.put(&op);
    if (C10_UNLIKELY(is_odd))
        key.put(c10::get_default_dtype_as_scalartype());
}

Calls &calls()
{
    static auto *made = new Calls;
    return *made;
}

std::mutex &recorder()
{
    static auto *lock = new std::mutex;
    return *lock;
}

void record(Op &op, Stack *stack)
{
    const size_t count = op.arguments.size(), begin = stack->size() - count;
    Scratch &s = scratch();
    c10::SmallVector<c10::IValue, 4> values;
    (void)session(); /* connecting takes its time: not under the lock */
    note_place();
    if (any_mesh() && record_on_mesh(op, stack))
        return;
    const bool is_odd = is_default_type_odd();
    if (C10_UNLIKELY(is_odd)) {
        if (record_apart(op, stack))
            return;
        compute_in_default(op, *stack);
    }
    Lock lock(recorder());
    s.begin(op, is_odd);
    counters().count_operator();
    for (size_t i = 0; i < count; i++)
        put_value(s, op, op.arguments[i], (*stack)[begin + i]);
    s.end();
    Signature *signature = find_or_work_out(s, op, stack);
    submit(s, *signature);
    if (C10_UNLIKELY(op.draws))
        note_draw(s, op);
    const uint32_t vdev = s.where();
    if (C10_LIKELY(!signature->depends)) {
        Results results{*signature, op,    stack, begin, vdev, s.mesh,
                        s.outputs,  s.ids, lock,  0,     0,    {}};
        give_results(results, values);
    } else {
        give_unknown(s, op, *signature, stack, lock, values);
    }
    lock.unlock();
    if (C10_UNLIKELY(op.writes_list))
        for (const c10::IValue &item : (*stack)[begin].toListRef())
            bump(item.toTensor());
    torch::jit::drop(*stack, count);
    for (c10::IValue &value : values)
        stack->push_back(std::move(value));
}

uint64_t wire_id(const at::Tensor &tensor)
{
    return wire_id_in(storage_of(tensor), tensor);
}

uint64_t wire_id_in(Storage *storage, const at::Tensor &tensor)
{
    ensure_base(storage, tensor);
    const Geometry *geometry = geometry_in(storage, tensor);
    return geometry == storage->base ? storage->id : view_id(storage, geometry);
}

/* ---- calls of our own ---- */

namespace
{

void put_piece_key(Key &key, const Piece &piece)
{
    key.put(piece.name);
    for (uint32_t i = 0; i < piece.arg_count; i++) {
        const dt_value_t &arg = piece.args[i];
        key.put(arg.tag);
        key.put(arg.count);
        if (arg.tag == DT_VALUE_INTS)
            key.put_bytes(arg.ints, arg.count * sizeof(int64_t));
        else if (arg.tag != DT_VALUE_TENSOR)
            key.put(arg.number);
    }
    for (uint32_t i = 0; i < piece.input_count; i++)
        key.put(piece.inputs[i]->plain->number);
    key.put(piece.output ? piece.output->plain->number : 0);
    key.put((uint8_t)piece.alias);
    key.put(piece.vdev);
}

std::unique_ptr<Signature> define_piece(const Piece &piece)
{
    std::vector<dt_operand_t> operands(piece.input_count);
    for (uint32_t i = 0; i < piece.input_count; i++)
        operands[i] = {piece.inputs[i]->meta, piece.vdev};
    dt_operation_t operation{piece.name, piece.args, piece.arg_count, piece.input_count,
                             operands.data()};
    dt_output_t output{};
    output.alias = (uint8_t)piece.alias;
    if (piece.alias != DT_ALIAS_NONE)
        output.meta = piece.output->meta;
    auto made = std::make_unique<Signature>();
    dt_error_t err;
    must(dt_signature_define(session(), &operation, &output, piece.alias == DT_ALIAS_NONE ? 0 : 1,
                             0, &made->number, &err),
         err);
    made->id_count = piece.alias == DT_ALIAS_FRESH || piece.alias == DT_ALIAS_VIEW ? 1 : 0;
    return made;
}

} // namespace

uint64_t submit_piece(const Piece &piece)
{
    static auto *text = new Key; /* recorder held */
    uint64_t id = 0;
    dt_error_t err;
    text->clear();
    put_piece_key(*text, piece);
    Signature *known = find_signature(*text);
    if (!known)
        known = add_signature(*text, define_piece(piece));
    const Signature &signature = *known;
    mark_place(session());
    if (piece.layout) {
        must(dt_submit_on(session(), signature.number, handle_of(*piece.layout->mesh),
                          piece.layout->placements.data(), nullptr, 0, &id, signature.id_count,
                          &err),
             err);
        return id;
    }
    must(dt_submit(session(), signature.number, piece.ids, piece.input_count, nullptr, 0, &id,
                   signature.id_count, &err),
         err);
    return id;
}

} // namespace dt_pu
