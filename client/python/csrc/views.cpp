// Views: how a geometry came about is noted when a view operator runs, and sent when it is used.
//
// A chain is kept for (geometry of the base tensor, geometry of the view), for all storages alike:
// the elements that a view names depend on nothing else. So a view operator that was seen before
// costs two look-ups and sends nothing, and autograd's as_strided() on a fresh buffer finds the
// chain that the forward pass made. What no chain made is as_strided() of the base.
#include <ATen/EmptyTensor.h>
#include <algorithm>
#include <unordered_map>

#include "record.h"

namespace dt_pu
{
namespace
{

/* One call of a view operator on one geometry. */
struct Step {
    Op *op;
    const Geometry *parent;
    std::vector<c10::IValue> args;         /* in the schema's order; at `self` nothing */
    size_t self;                           /* argument that is viewed */
    std::vector<const Geometry *> outputs; /* a list's, or one */
};

struct Pair {
    uint32_t base, view;
    bool operator==(const Pair &other) const
    {
        return base == other.base && view == other.view;
    }
};

struct PairHash {
    size_t operator()(const Pair &pair) const
    {
        return ((uint64_t)pair.base << 32 | pair.view) * UINT64_C(0x9e3779b97f4a7c15) >> 16;
    }
};

using Chains = std::unordered_map<Pair, Step *, PairHash>;

/* Recorder held. Lives for ever, as geometries do. */
Chains &chains()
{
    static auto *table = new Chains;
    return *table;
}

/* View kernels call others. */
thread_local int depth = 0;

struct Deeper {
    Deeper()
    {
        depth++;
    }
    ~Deeper()
    {
        depth--;
    }
};

/* Calls seen before, by their keys. Recorder held. */
constexpr size_t known_views_max = 65536;
KeyTable<Geometries> &known_views()
{
    static auto *table = new KeyTable<Geometries>;
    return *table;
}

const Geometry *flat_geometry(const Storage *storage, size_t bytes)
{
    const dt_meta_t &base = storage->base->meta;
    int64_t count = (int64_t)(bytes / dt_element_bytes((dt_dtype_t)base.dtype));
    return geometry_of((c10::ScalarType)base.dtype, {count}, nullptr);
}

/* Which argument is viewed: the first whose annotation says so and is not written. */
size_t viewed_argument(const Op &op)
{
    const auto &arguments = op.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); i++)
        if (arguments[i].alias_info())
            return i;
    return 0;
}

/* What the base tensor of a storage is, if nothing has decided it. */
void decide_base(Storage *storage, const at::TensorBase &tensor)
{
    if (storage->base)
        return;
    dt_meta_t meta = geometry_of(tensor)->meta;
    meta.layout = (uint8_t)(meta.layout & DT_META_CLASS_MASK);
    const Geometry *whole = geometry_of(meta, 0);
    size_t bytes = tensor.storage().nbytes();
    if (tensor.storage_offset() == 0 && whole->span_bytes == bytes) {
        storage->base = whole;
        return;
    }
    int64_t count = (int64_t)bytes / (int64_t)tensor.element_size();
    storage->base = geometry_of(tensor.scalar_type(), {count}, nullptr);
}

/* ---- sending ---- */

struct Definition {
    std::vector<dt_value_t> args;
    ValueMemory memory;
    dt_operand_t operand;
    dt_operation_t operation;
};

/* Views that no call is about to name make room for others. */
void drop_some(Storage *storage)
{
    std::vector<uint64_t> old;
    auto &views = storage->views;
    auto end = std::remove_if(views.begin(), views.end(), [&](const View &view) {
        bool goes = view.used != calls().now && old.size() < views_max / 2;
        if (goes)
            old.push_back(view.id);
        return goes;
    });
    views.erase(end, views.end());
    free_ids(storage, old.data(), (uint32_t)old.size(), 0);
}

void remember(Storage *storage, const Geometry *geometry, uint64_t id)
{
    if (storage->views.size() >= views_max && calls().asking == 0)
        drop_some(storage);
    storage->views.push_back({geometry, id, calls().now});
}

uint64_t known_id(Storage *storage, const Geometry *geometry)
{
    if (geometry == storage->base)
        return storage->id;
    for (View &view : storage->views)
        if (view.geometry == geometry) {
            view.used = calls().now;
            return view.id;
        }
    return 0;
}

/* A walk through a tensor, x[i] or x[i : i + n], is one signature: where it begins is a number that
 * each submission brings. A slice is sent as narrow() then, whose length says what comes out. */
struct Moving {
    bool is_moving;
    int64_t begin;
};

int64_t begin_of(const Step &step, int64_t dim)
{
    const dt_meta_t &parent = step.parent->meta;
    int64_t begin = step.args[2].toInt(), size = parent.sizes[dim];
    if (begin < 0)
        begin += size;
    return begin < 0 ? 0 : begin > size ? size : begin;
}

int64_t dim_of(const Step &step)
{
    int64_t dim = step.args[1].toInt();
    return dim < 0 ? dim + step.parent->meta.ndim : dim;
}

Moving moving_of(const Step &step)
{
    if (step.op->name == "aten::select.int")
        return {true, step.args[2].toInt()};
    bool is_slice =
        step.op->name == "aten::slice.Tensor" && step.args[2].isInt() && step.args[4].toInt() == 1;
    return {is_slice, is_slice ? begin_of(step, dim_of(step)) : 0};
}

std::unique_ptr<Signature> define_step(const Step &step, bool is_moving, uint32_t vdev)
{
    Stack stack(step.args.begin(), step.args.end());
    std::vector<const Geometry *> operands{step.parent};
    stack[step.self] = make_tensor(step.parent, vdev, 0);
    Call call{step.op, &stack, &operands, vdev, false};
    const char *name = step.op->name.c_str();
    Definition d;
    d.args = values_of(call, false, d.memory);
    if (is_moving)
        d.args[2] = dt_arg_tag(DT_VALUE_DYNAMIC);
    if (is_moving && step.args.size() == 5) {
        name = "aten::narrow";
        d.args[3] = dt_arg_int(step.outputs[0]->meta.sizes[dim_of(step)]);
        d.args.pop_back();
    }
    d.operand = {step.parent->meta, vdev};
    d.operation = {name, d.args.data(), (uint32_t)d.args.size(), 1, &d.operand};
    std::vector<dt_output_t> outputs;
    for (const Geometry *geometry : step.outputs)
        outputs.push_back({DT_ALIAS_VIEW, 0, geometry->meta});
    auto made = std::make_unique<Signature>();
    dt_error_t err;
    must(dt_signature_define(session(), &d.operation, outputs.data(), (uint32_t)outputs.size(), 0,
                             &made->number, &err),
         err);
    return made;
}

uint32_t signature_of(const Step &step, bool is_moving, uint32_t vdev)
{
    static auto *key_of_step = new Key; /* recorder held */
    key_of_step->clear();
    if (is_moving) {
        key_of_step->put(step.op);
        key_of_step->put(step.parent->plain->number);
        key_of_step->put(step.outputs[0]->plain->number);
        key_of_step->put(dim_of(step));
    } else {
        key_of_step->put(&step);
    }
    key_of_step->put(vdev);
    Signature *known = find_signature(*key_of_step);
    if (!known)
        known = add_signature(*key_of_step, define_step(step, is_moving, vdev));
    return known->number;
}

uint64_t send_step(Storage *storage, Step &step, uint64_t parent, const Geometry *wanted)
{
    dt_session_t *now = session();
    Moving moving = moving_of(step);
    uint32_t signature = signature_of(step, moving.is_moving, storage->vdev);
    dt_value_t begin = dt_arg_int(moving.begin);
    std::vector<uint64_t> ids(step.outputs.size());
    uint64_t found = 0;
    dt_error_t err;
    mark_place(now);
    must(dt_submit(now, signature, &parent, 1, &begin, moving.is_moving, ids.data(),
                   (uint32_t)ids.size(), &err),
         err);
    counters().views++;
    for (size_t i = 0; i < ids.size(); i++) {
        if (step.outputs[i] == wanted && !found)
            found = ids[i];
        else if (known_id(storage, step.outputs[i])) {
            dt_free_ids(now, &ids[i], 1);
            continue;
        }
        remember(storage, step.outputs[i], ids[i]);
    }
    return found;
}

/* No chain is known: flatten the base, reinterpret it if the type is another, take the geometry. */
uint64_t send_strided(Storage *storage, const Geometry *view)
{
    const dt_meta_t &base = storage->base->meta, &meta = view->meta;
    uint64_t from = storage->id;
    const Geometry *parent = storage->base;
    if (base.dtype != meta.dtype) {
        const Geometry *flat = flat_geometry(storage, storage->base->span_bytes);
        uint64_t flat_id = known_id(storage, flat);
        if (!flat_id)
            flat_id = send_strided(storage, flat);
        int64_t count =
            (int64_t)(storage->base->span_bytes / dt_element_bytes((dt_dtype_t)meta.dtype));
        const int64_t used = count * (int64_t)dt_element_bytes((dt_dtype_t)meta.dtype) /
                             (int64_t)dt_element_bytes((dt_dtype_t)base.dtype);
        if (used != flat->meta.sizes[0]) { /* a rest that is no whole element */
            const Geometry *whole = geometry_of((c10::ScalarType)base.dtype, {used}, nullptr);
            flat_id = view_id(storage, whole);
            flat = whole;
        }
        parent = geometry_of((c10::ScalarType)meta.dtype, {count}, nullptr);
        from = known_id(storage, parent);
        if (!from) {
            dt_value_t args[2] = {dt_arg_tag(DT_VALUE_TENSOR),
                                  dt_arg_dtype((dt_dtype_t)meta.dtype)};
            args[0].handle = &args;
            from = submit_piece({"aten::view.dtype", args, 2, &flat, &flat_id, 1, storage->vdev,
                                 parent, DT_ALIAS_VIEW});
            remember(storage, parent, from);
        }
        if (parent == view)
            return from;
    }
    dt_value_t args[4] = {dt_arg_tag(DT_VALUE_TENSOR), dt_arg_ints(meta.sizes, meta.ndim),
                          dt_arg_ints(meta.strides, meta.ndim), dt_arg_int(view->offset)};
    args[0].handle = &args;
    uint64_t id = submit_piece(
        {"aten::as_strided", args, 4, &parent, &from, 1, storage->vdev, view, DT_ALIAS_VIEW});
    counters().views++;
    remember(storage, view, id);
    return id;
}

/* The lazy bits are part of a value: a tensor that carries them is made from the same without. */
uint64_t send_bits(Storage *storage, const Geometry *view, uint8_t bit)
{
    dt_meta_t meta = view->meta;
    meta.layout = (uint8_t)(meta.layout & ~bit);
    const Geometry *plain = geometry_of(meta, view->offset);
    uint64_t from = view_id(storage, plain);
    dt_value_t arg = dt_arg_tag(DT_VALUE_TENSOR);
    arg.handle = &arg;
    const char *name = bit == DT_META_CONJ ? "aten::_conj" : "aten::_neg_view";
    uint64_t id =
        submit_piece({name, &arg, 1, &plain, &from, 1, storage->vdev, view, DT_ALIAS_VIEW});
    remember(storage, view, id);
    return id;
}

/* ---- noting ---- */

/* What view_id() makes a view of; NULL: of the base. */
const Geometry *made_of(const Geometry *base, const Geometry *view)
{
    auto chain = chains().find({base->number, view->number});
    if (chain != chains().end())
        return chain->second->parent;
    const uint8_t bits = view->meta.layout & (DT_META_CONJ | DT_META_NEG);
    if (!bits)
        return nullptr;
    dt_meta_t meta = view->meta;
    meta.layout = (uint8_t)(meta.layout & ~(bits & DT_META_CONJ ? DT_META_CONJ : DT_META_NEG));
    return geometry_of(meta, view->offset);
}

/* A parent whose own chain nobody knew may have been made of the view, the other way round. */
bool is_circle(const Geometry *base, const Geometry *view, const Geometry *parent)
{
    while (parent && parent != base && parent != view)
        parent = made_of(base, parent);
    return parent == view;
}

void note(const Geometry *base, const Geometry *parent, Op &op,
          const std::vector<c10::IValue> &args, size_t self, const std::vector<at::Tensor> &results)
{
    Step *step = nullptr;
    for (const at::Tensor &result : results) {
        const Geometry *geometry = geometry_of(result);
        if (geometry == base || chains().count({base->number, geometry->number}) ||
            is_circle(base, geometry, parent))
            continue;
        if (!step) {
            step = new Step{&op, parent, args, self, {}};
            for (const at::Tensor &output : results)
                step->outputs.push_back(geometry_of(output));
        }
        chains().emplace(Pair{base->number, geometry->number}, step);
    }
}

} // namespace

/* Strides that a call gives are those of the program's storage. A copy of a part of it, on a mesh,
 * has others: what is made of strides is made of the base, and reshaping says sizes only. */
static void note_call(Storage *storage, Op &op, const std::vector<c10::IValue> &args, size_t self,
                      const at::Tensor &viewed, const std::vector<at::Tensor> &results)
{
    static Op *view = find_op("aten::view"), *strided = find_op("aten::as_strided"),
              *alias = find_op("aten::_reshape_alias");
    const Geometry *parent = geometry_in(storage, viewed);
    if (&op == alias)
        note(storage->base, parent, *view, {args[0], args[1]}, self, results);
    else if (&op == strided)
        note(storage->base, storage->base, op,
             {args[0], args[1], args[2], results[0].storage_offset()}, self, results);
    else
        note(storage->base, parent, op, args, self, results);
}

uint64_t view_id(Storage *storage, const Geometry *view)
{
    uint64_t id = known_id(storage, view);
    if (id)
        return id;
    auto chain = chains().find({storage->base->number, view->number});
    if (chain == chains().end()) {
        if (view->meta.layout & DT_META_CONJ)
            return send_bits(storage, view, DT_META_CONJ);
        if (view->meta.layout & DT_META_NEG)
            return send_bits(storage, view, DT_META_NEG);
        return send_strided(storage, view);
    }
    Step &step = *chain->second;
    uint64_t parent = view_id(storage, step.parent);
    return send_step(storage, step, parent, view);
}

void ensure_base(Storage *storage, const at::TensorBase &tensor)
{
    if (C10_UNLIKELY(storage->id && storage->session != session_number())) {
        dt_error_t err{DT_ERR_LOST, "dt", 0, "the tensor belongs to a session that has ended"};
        raise(err);
    }
    decide_base(storage, tensor);
    if (storage->id)
        return;
    (void)session();
    const dt_meta_t &meta = storage->base->meta;
    dt_value_t args[3] = {dt_arg_ints(meta.sizes, meta.ndim), dt_arg_ints(meta.strides, meta.ndim),
                          dt_arg_dtype((dt_dtype_t)meta.dtype)};
    storage->session = session_number();
    storage->id = empty_on(storage, args);
    storage->wish.reset();
}

void note_permuted(const Geometry *base, const Geometry *view, const std::vector<int64_t> &order)
{
    static Op *permute = find_op("aten::permute");
    if (base == view || chains().count({base->number, view->number}))
        return;
    std::vector<int64_t> inverse(order.size());
    for (size_t i = 0; i < order.size(); i++)
        inverse[(size_t)order[i]] = (int64_t)i;
    chains().emplace(Pair{base->number, view->number},
                     new Step{permute, base, {c10::IValue(), inverse}, 0, {view}});
}

bool is_within_view()
{
    return depth > 0;
}

void begin_view(Scratch &s, const Op &op, const at::Tensor &viewed)
{
    Storage *storage = storage_of(viewed);
    decide_base(storage, viewed);
    s.begin(op, is_default_type_odd());
    s.key.put(storage->base->number);
    s.key.put(geometry_in(storage, viewed)->number);
}

const Geometries *find_view(const Key &key)
{
    return known_views().find(key);
}

at::Tensor view_of(const at::Tensor &viewed, const Geometry *geometry)
{
    const dt_meta_t &meta = geometry->meta;
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(viewed.storage()), viewed.key_set(),
        c10::scalarTypeToTypeMeta((c10::ScalarType)meta.dtype));
    c10::TensorImpl *impl = view.unsafeGetTensorImpl();
    impl->set_storage_offset(geometry->offset);
    impl->set_sizes_and_strides(at::IntArrayRef(meta.sizes, meta.ndim),
                                at::IntArrayRef(meta.strides, meta.ndim));
    if (C10_UNLIKELY((meta.layout & DT_META_CONJ) != 0 || viewed.is_conj()))
        impl->_set_conj(meta.layout & DT_META_CONJ);
    if (C10_UNLIKELY((meta.layout & DT_META_NEG) != 0 || viewed.is_neg()))
        impl->_set_neg(meta.layout & DT_META_NEG);
    return view;
}

/* A call that went well: the next one like it needs no kernel. Recorder held. */
static void remember_view(const Op &op, const std::vector<c10::IValue> &args, size_t self,
                          const at::Tensor &viewed, const std::vector<at::Tensor> &results)
{
    Scratch &s = scratch();
    Geometries geometries;
    if (self != 0)
        return;
    begin_view(s, op, viewed);
    for (size_t i = 1; i < args.size(); i++)
        put_value(s, op, op.arguments[i], args[i]);
    for (const at::Tensor &result : results)
        geometries.push_back(geometry_of(result));
    if (known_views().size() >= known_views_max)
        known_views().clear();
    if (!known_views().find(s.key))
        known_views().add(s.key, std::move(geometries));
}

void record_view(Op &op, Stack *stack)
{
    const size_t count = op.arguments.size(), begin = stack->size() - count;
    if (depth > 0) {
        op.view->callBoxed(op.handle, c10::DispatchKeySet(key), stack);
        return;
    }
    size_t self = viewed_argument(op);
    std::vector<c10::IValue> args(stack->begin() + (ptrdiff_t)begin, stack->end());
    at::Tensor viewed = args[self].toTensor();
    {
        Deeper deeper;
        op.view->callBoxed(op.handle, c10::DispatchKeySet(key), stack);
    }
    const c10::IValue &result = stack->back();
    Storage *storage = storage_of(viewed);
    args[self] = c10::IValue();
    Lock lock(recorder());
    decide_base(storage, viewed);
    const std::vector<at::Tensor> results = result.isTensorList()
                                                ? result.toTensorVector()
                                                : std::vector<at::Tensor>{result.toTensor()};
    note_call(storage, op, args, self, viewed, results);
    remember_view(op, args, self, viewed, results);
}

} // namespace dt_pu
