"""Random programs of tensor operators: which operator comes next, with which arguments.

A step names an ATen overload and its arguments in the order of the schema; Ref(i) is the i-th tensor of the program. Steps
are made from what the tensors are at that moment, so most of them are legal; the others test that both sides refuse.
"""

import dataclasses
import random
from typing import Any, Callable

import torch

SIZE_MAX = 240  # elements of one tensor
DIM_MAX = 5
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (torch.float32, torch.float32, torch.float64, torch.int64, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool,
          torch.bfloat16, torch.float16, torch.complex64)
REF_DTYPES = (torch.float32, torch.float32, torch.float64, torch.int64, torch.bool)


@dataclasses.dataclass(frozen=True)
class Ref:
    slot: int


@dataclasses.dataclass
class Step:
    """One operator, or with name "upload" a tensor from host memory: args are (dtype, sizes, seed)."""

    name: str
    args: list[Any]
    outputs: list[int]  # slots for results that are new tensors; as many as there may be

    def refs(self) -> list[int]:
        found: list[int] = []

        def walk(value: Any) -> None:
            if isinstance(value, Ref):
                found.append(value.slot)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    walk(item)

        walk(self.args)
        return found

    def __str__(self) -> str:
        return f"{self.name}({', '.join(str(a) for a in self.args)}) -> {self.outputs}"


def upload_data(dtype: torch.dtype, sizes: list[int], seed: int) -> torch.Tensor:
    """What an upload step holds, contiguous: small numbers, halves among those of floating point."""
    return torch.empty(sizes, dtype=dtype).copy_(_numbers(dtype, sizes, seed))


def _numbers(dtype: torch.dtype, sizes: list[int], seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0 if dtype == torch.uint8 else -8, 9, sizes, generator=draw)
    if dtype == torch.bool:
        return numbers > 0
    if dtype.is_complex:
        return torch.complex(numbers.to(torch.float32), torch.randint(-8, 9, sizes, generator=draw).to(torch.float32) / 2).to(dtype)
    return numbers.to(dtype) / 2 if dtype.is_floating_point else numbers.to(dtype)


Args = tuple[str, list[Any]] | None


class Maker:
    """Chooses steps for tensors that it is shown. `ref`: only what the ref backend must do exactly as PyTorch does."""

    def __init__(self, rng: random.Random, is_ref: bool) -> None:
        self.rng = rng
        self.is_ref = is_ref
        self.next_slot = 0
        self.pending: list[Args] = []
        self.tensors: dict[int, torch.Tensor] = {}
        kinds: list[tuple[int, Callable[[], Args]]] = [
            (30, self.view), (22, self.in_place), (8, self.in_place_layout), (22, self.pointwise), (14, self.out), (8, self.joining),
            (10, self.reducing), (9, self.indexing), (4, self.creating), (6, self.copying), (4, self.products)]
        if not is_ref:
            kinds += [(5, self.index_writes), (3, self.random_numbers), (3, self.complex_views), (2, self.foreach), (3, self.depending)]
        self.kinds = [kind for _, kind in kinds]
        self.weights = [weight for weight, _ in kinds]

    # ---- helpers ----

    def new_slots(self, count: int) -> list[int]:
        first = self.next_slot
        self.next_slot += count
        return list(range(first, first + count))

    def next(self, tensors: dict[int, torch.Tensor]) -> Step:
        self.tensors = tensors
        if len(tensors) < 3 or self.rng.random() < 0.03:
            return Step("upload", [self.dtype(), self.sizes(), self.rng.getrandbits(31)], self.new_slots(1))
        made: Args = None
        while made is None:
            made = self.pending.pop(0) if self.pending else self.rng.choices(self.kinds, self.weights)[0]()
        return Step(made[0], made[1], self.new_slots(8))

    def dtype(self) -> torch.dtype:
        return self.rng.choice(REF_DTYPES if self.is_ref else DTYPES)

    def sizes(self) -> list[int]:
        while True:
            sizes = [self.rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 5)) if self.rng.random() < 0.9 else self.rng.randint(6, 40)
                     for _ in range(self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))]
            if torch.Size(sizes).numel() <= SIZE_MAX:
                return sizes

    def one(self, holds: Callable[[torch.Tensor], bool] = lambda t: True) -> tuple[Ref, torch.Tensor] | None:
        """One tensor of which that holds; younger ones more often."""
        slots = [slot for slot, tensor in self.tensors.items() if holds(tensor)]
        if not slots:
            return None
        slot = slots[max(self.rng.randrange(len(slots)), self.rng.randrange(len(slots)))]
        return Ref(slot), self.tensors[slot]

    def any(self) -> tuple[Ref, torch.Tensor]:
        found = self.one()
        assert found
        return found

    def like(self, tensor: torch.Tensor) -> Ref:
        """A tensor that broadcasts with `tensor`, if there is one; now and then any."""
        def fits(other: torch.Tensor) -> bool:
            try:
                return torch.Size(torch.broadcast_shapes(other.shape, tensor.shape)).numel() <= SIZE_MAX
            except RuntimeError:
                return False

        found = self.one(fits) if self.rng.random() < 0.95 else None
        return (found or self.any())[0]

    def fitting(self, tensor: torch.Tensor) -> Ref:
        """A tensor that can be broadcast to `tensor`'s shape, if there is one."""
        def fits(other: torch.Tensor) -> bool:
            try:
                return torch.broadcast_shapes(other.shape, tensor.shape) == tensor.shape
            except RuntimeError:
                return False

        return (self.one(fits) or self.any())[0]

    def dim(self, tensor: torch.Tensor) -> int:
        count = max(tensor.dim(), 1)
        return self.rng.randrange(-count, count) if self.rng.random() < 0.98 else count

    def number(self, dtype: torch.dtype | None = None) -> Any:
        if dtype is not None and not dtype.is_floating_point:
            return self.rng.randint(0 if dtype == torch.uint8 else -3, 5)
        return self.rng.choice((self.rng.randint(-3, 5), self.rng.randint(-6, 10) / 2, True))

    def is_exact(self, tensor: torch.Tensor) -> bool:
        """Sums and products of it come out the same in any order."""
        if not self.is_ref or not tensor.dtype.is_floating_point or tensor.numel() == 0:
            return True
        return bool((tensor.isfinite() & (tensor == tensor.round())).all()) and float(tensor.abs().max()) <= 256

    # ---- views ----

    def view(self) -> Args:
        ref, t = self.any()
        kinds = ["alias", "detach", "t", "transpose", "permute", "expand", "select", "slice", "slice", "squeeze", "squeeze.dim",
                 "unsqueeze", "view", "reshape", "as_strided", "as_strided"]
        if not self.is_ref:
            kinds += ["diagonal", "unfold", "view.dtype", "unbind", "split", "split_with_sizes", "chunk", "narrow", "movedim", "flatten",
                      "expand_as", "view_as", "squeeze.dims", "slice"]
        return getattr(self, "view_" + self.rng.choice(kinds).replace(".", "_"))(ref, t)

    def view_alias(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::alias", [ref]

    def view_detach(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::detach", [ref]

    def view_t(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::t", [ref]

    def view_transpose(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::transpose.int", [ref, self.dim(t), self.dim(t)]

    def view_permute(self, ref: Ref, t: torch.Tensor) -> Args:
        dims = list(range(t.dim()))
        self.rng.shuffle(dims)
        return "aten::permute", [ref, dims]

    def view_expand(self, ref: Ref, t: torch.Tensor) -> Args:
        sizes = [self.rng.choice((-1, size, self.rng.randint(1, 4) if size == 1 else size)) for size in t.shape]
        sizes = [self.rng.randint(1, 3) for _ in range(self.rng.randint(0, 2))] + sizes
        grown = torch.Size([max(s, 1) for s in sizes]).numel() * max(t.numel(), 1)
        return ("aten::expand", [ref, sizes, False]) if grown <= SIZE_MAX and len(sizes) <= DIM_MAX else None

    def view_expand_as(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::expand_as", [ref, self.like(t)]

    def view_view_as(self, ref: Ref, t: torch.Tensor) -> Args:
        found = self.one(lambda o: o.numel() == t.numel())
        return ("aten::view_as", [ref, found[0]]) if found else None

    def view_select(self, ref: Ref, t: torch.Tensor) -> Args:
        dim = self.dim(t)
        size = t.shape[dim] if t.dim() and dim < t.dim() else 1
        return "aten::select.int", [ref, dim, self.rng.randint(-size, max(size - 1, 0))]

    def view_slice(self, ref: Ref, t: torch.Tensor) -> Args:
        if t.dim() == 0:
            return None
        dim = self.dim(t)
        size = t.shape[dim] if dim < t.dim() else 1
        start, end = self.rng.randint(-size - 1, size), self.rng.choice((None, self.rng.randint(-size, size + 1)))
        return "aten::slice.Tensor", [ref, dim, self.rng.choice((None, start)), end, self.rng.choice((1, 1, 2, 3))]

    def view_squeeze(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::squeeze", [ref]

    def view_squeeze_dim(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::squeeze.dim", [ref, self.dim(t)]

    def view_squeeze_dims(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::squeeze.dims", [ref, sorted({self.dim(t) for _ in range(2)})]

    def view_unsqueeze(self, ref: Ref, t: torch.Tensor) -> Args:
        return ("aten::unsqueeze", [ref, self.rng.randint(-t.dim() - 1, t.dim())]) if t.dim() < DIM_MAX else None

    def factors(self, count: int) -> list[int]:
        sizes = []
        while count > 1 and len(sizes) < 3:
            size = self.rng.choice([d for d in range(1, count + 1) if count % d == 0])
            sizes.append(size)
            count //= size
        sizes = sizes + [count] if count != 1 or not sizes else sizes
        if self.rng.random() < 0.3 and 0 not in sizes:
            sizes[self.rng.randrange(len(sizes))] = -1
        return sizes

    def view_view(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::view", [ref, self.factors(t.numel())]

    def view_reshape(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::reshape", [ref, self.factors(t.numel())]

    def strided(self, t: torch.Tensor) -> tuple[list[int], list[int], int] | None:
        """Sizes, strides and offset within the storage of `t`."""
        total = t.untyped_storage().nbytes() // t.element_size()
        if total == 0:
            return None
        offset = self.rng.randrange(total)
        sizes, strides, room = [], [], total - offset - 1
        for _ in range(self.rng.randint(0, 3)):
            stride = self.rng.choice((0, 1, 1, 2, 3, 5))
            size = self.rng.randint(1, min(5, room // stride + 1 if stride else 3))
            room -= (size - 1) * stride
            sizes.append(size)
            strides.append(stride)
        return sizes, strides, offset

    def view_as_strided(self, ref: Ref, t: torch.Tensor) -> Args:
        made = self.strided(t)
        if not made:
            return None
        sizes, strides, offset = made
        if self.rng.random() < 0.2:
            return "aten::as_strided", [ref, [1] * len(sizes), strides]
        return "aten::as_strided", [ref, sizes, strides, offset]

    def view_diagonal(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::diagonal", [ref, self.rng.randint(-2, 2), self.dim(t), self.dim(t)]

    def view_unfold(self, ref: Ref, t: torch.Tensor) -> Args:
        return ("aten::unfold", [ref, self.dim(t), self.rng.randint(0, 3), self.rng.randint(1, 3)]) if t.numel() < 64 else None

    def view_view_dtype(self, ref: Ref, t: torch.Tensor) -> Args:
        if t.dtype == torch.bool:  # bytes that are neither 0 nor 1 have no meaning
            return None
        return "aten::view.dtype", [ref, self.rng.choice([d for d in DTYPES if d != torch.bool])]

    def view_unbind(self, ref: Ref, t: torch.Tensor) -> Args:
        dim = self.dim(t)
        return ("aten::unbind.int", [ref, dim]) if t.dim() > 0 and dim < t.dim() and 0 < t.shape[dim] <= 6 else None

    def view_split(self, ref: Ref, t: torch.Tensor) -> Args:
        dim = self.dim(t)
        if t.dim() == 0 or dim >= t.dim() or t.shape[dim] > 20:
            return None
        return "aten::split.Tensor", [ref, self.rng.randint(max(1, t.shape[dim] // 6), 5), dim]

    def view_split_with_sizes(self, ref: Ref, t: torch.Tensor) -> Args:
        if t.dim() == 0:
            return None
        first = self.rng.randint(0, t.shape[0])
        return "aten::split_with_sizes", [ref, [first, t.shape[0] - first], 0]

    def view_chunk(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::chunk", [ref, self.rng.randint(1, 4), self.dim(t)]

    def view_narrow(self, ref: Ref, t: torch.Tensor) -> Args:
        if t.dim() == 0:
            return None
        start = self.rng.randint(0, t.shape[0])
        return "aten::narrow", [ref, 0, start, self.rng.randint(0, t.shape[0] - start)]

    def view_movedim(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::movedim.int", [ref, self.dim(t), self.dim(t)]

    def view_flatten(self, ref: Ref, t: torch.Tensor) -> Args:
        return "aten::flatten.using_ints", [ref, self.dim(t), self.dim(t)]

    def complex_views(self) -> Args:
        found = self.one(lambda t: t.dtype.is_complex)
        if not found:
            return None
        name = self.rng.choice(("real", "imag", "_conj", "view_as_real", "resolve_conj", "_neg_view", "resolve_neg"))
        return "aten::" + name, [found[0]]

    # ---- writes ----

    def target(self) -> tuple[Ref, torch.Tensor] | None:
        """A tensor that may be written: no two of its elements are one, and it does not begin behind its memory (growing it
        would leave a gap that has no value)."""
        return self.one(lambda t: all(stride != 0 or size <= 1 for size, stride in zip(t.shape, t.stride()))
                        and t.storage_offset() * t.element_size() <= t.untyped_storage().nbytes())

    def in_place(self) -> Args:
        found = self.target()
        if not found:
            return None
        ref, t = found
        other = self.fitting(t)
        choices: list[Args] = [
            ("aten::add_.Tensor", [ref, other]), ("aten::sub_.Tensor", [ref, other]), ("aten::mul_.Tensor", [ref, other]),
            ("aten::copy_", [ref, other]), ("aten::copy_", [ref, other]), ("aten::fill_.Scalar", [ref, self.number(t.dtype)]),
            ("aten::zero_", [ref]), ("aten::add_.Tensor", [ref, self.number(t.dtype)])]
        if not self.is_ref:
            choices += [
                ("aten::add_.Tensor", [ref, other, self.number(t.dtype)]), ("aten::add_.Scalar", [ref, self.number(t.dtype)]),
                ("aten::mul_.Scalar", [ref, self.number(t.dtype)]), ("aten::div_.Tensor", [ref, other]), ("aten::neg_", [ref]),
                ("aten::abs_", [ref]), ("aten::relu_", [ref]), ("aten::clamp_", [ref, -2, 3]), ("aten::logical_not_", [ref]),
                ("aten::eq_.Tensor", [ref, other]), ("aten::bitwise_xor_.Tensor", [ref, other]), ("aten::tril_", [ref]),
                ("aten::cumsum_", [ref, self.dim(t)]), ("aten::lerp_.Scalar", [ref, other, 0.5]), ("aten::floor_", [ref]),
                ("aten::addcmul_", [ref, other, self.fitting(t)]), ("aten::fill_.Tensor", [ref, self.fitting(torch.tensor(0))]),
                ("aten::maximum.out", [ref, other, ref]), ("aten::square_", [ref]), ("aten::sgn_", [ref]), ("aten::exp_", [ref])]
        return self.rng.choice(choices)

    def in_place_layout(self) -> Args:
        """What changes a tensor's own metadata or memory."""
        def is_plain(x: torch.Tensor) -> bool:
            return not x.is_conj() and not x.is_neg()

        found = self.target()
        if not found or self.is_ref or not is_plain(found[1]):
            return None
        ref, t = found
        other, o = self.one(lambda x: x.dtype == t.dtype and is_plain(x)) or (ref, t)
        strided, set_to = self.strided(t), self.strided(o)
        kind = self.rng.randrange(9)
        if kind == 0:
            return "aten::transpose_", [ref, self.dim(t), self.dim(t)]
        if kind == 1:
            return "aten::unsqueeze_", [ref, 0] if t.dim() < DIM_MAX else [ref, 99]
        if kind == 2:
            return "aten::squeeze_.dim", [ref, self.dim(t)]
        if kind == 3:
            return "aten::t_", [ref]
        if kind == 4 and strided:
            return "aten::as_strided_", [ref, *strided]
        if kind == 5:
            return "aten::set_.source_Tensor", [ref, other]
        if kind == 6 and set_to and o.storage_offset() == 0:  # else it would count from there
            return "aten::set_.source_Tensor_storage_offset", [ref, other, set_to[2], set_to[0], set_to[1]]
        if kind == 7:
            self.pending.append(("aten::fill_.Scalar", [ref, 2]))  # what was added has no value yet
            return "aten::resize_", [ref, self.sizes()]
        self.pending.append(("aten::zero_", [ref]))
        return "aten::resize_as_", [ref, other]

    def index_writes(self) -> Args:
        found = self.target()
        if not found or found[1].dim() == 0 or found[1].shape[0] == 0:
            return None
        ref, t = found
        index = self.one(lambda i: i.dtype == torch.int64 and i.dim() == 1 and 0 < i.numel() <= 8
                         and bool(((i >= -t.shape[0]) & (i < t.shape[0])).all()))
        mask = self.one(lambda m: m.dtype == torch.bool and m.shape == t.shape)
        choices: list[Args] = [("aten::masked_fill_.Scalar", [ref, self.fitting(t), self.number(t.dtype)])]
        if index:
            value = self.rng.choice([r for r in (self.fitting(t[0]), self.any()[0])])
            choices += [("aten::index_put_", [ref, [index[0]], value, self.rng.random() < 0.5]),
                        ("aten::index_fill_.int_Scalar", [ref, 0, index[0], self.number(t.dtype)])]
            source = self.one(lambda s: s.dtype == t.dtype and s.dim() == t.dim() and s.shape[1:] == t.shape[1:]
                              and s.shape[0] == index[1].numel())
            if source:
                choices += [("aten::index_add_", [ref, 0, index[0], source[0]]), ("aten::index_copy_", [ref, 0, index[0], source[0]])]
        if mask:
            choices.append(("aten::index_put_", [ref, [mask[0]], self.one(lambda v: v.numel() == 1)[0] if self.one(
                lambda v: v.numel() == 1) else ref]))
        return self.rng.choice(choices)

    def random_numbers(self) -> Args:
        found = self.target()
        if not found:
            return None
        ref, _ = found
        return self.rng.choice([("aten::normal_", [ref, 0.0, 1.0]), ("aten::uniform_", [ref, -1.0, 1.0]),
                                ("aten::random_.from", [ref, 0, 100]), ("aten::bernoulli_.float", [ref, 0.5]),
                                ("aten::randn", [self.sizes()]), ("aten::randperm", [self.rng.randint(0, 9)])])

    def foreach(self) -> Args:
        refs = [self.any()[0] for _ in range(3)]
        targets = list(dict.fromkeys(found[0] for found in (self.target() for _ in range(3)) if found))
        return self.rng.choice([("aten::_foreach_add.List", [refs, refs]), ("aten::_foreach_mul.Scalar", [refs, self.number()]),
                                ("aten::_foreach_neg_", [targets]), ("aten::_foreach_mul_.Scalar", [targets, 2])])

    # ---- new tensors ----

    def pointwise(self) -> Args:
        ref, t = self.any()
        other = self.like(t)
        name = self.rng.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "eq.Tensor", "lt.Tensor", "ge.Tensor", "where", "number", "neg",
                                "relu", "maximum", "minimum", "abs", "div.Tensor", "more", "more", "more"))
        if name == "number":
            return self.rng.choice([("aten::add.Tensor", [ref, self.number()]), ("aten::mul.Tensor", [ref, self.number()]),
                                    ("aten::gt.Scalar", [ref, self.number()]), ("aten::le.Scalar", [ref, self.number()])])
        if name == "where":
            mask = self.one(lambda m: m.dtype == torch.bool)
            return ("aten::where.self", [mask[0], ref, other]) if mask else None
        if name in ("neg", "relu", "abs"):
            return f"aten::{name}", [ref]
        if name != "more":
            return f"aten::{name}", [ref, other]
        if self.is_ref:
            return None
        return self.rng.choice([
            ("aten::exp", [ref]), ("aten::sqrt", [ref]), ("aten::tanh", [ref]), ("aten::sigmoid", [ref]), ("aten::gelu", [ref]),
            ("aten::pow.Tensor_Scalar", [ref, 2]), ("aten::add.Tensor", [ref, other, self.number()]), ("aten::rsub.Scalar", [ref, 3]),
            ("aten::remainder.Scalar", [ref, 3]), ("aten::div.Tensor_mode", [ref, other, "floor"]), ("aten::clamp", [ref, None, 2]),
            ("aten::addcmul", [ref, ref, other]), ("aten::isnan", [ref]), ("aten::logical_and", [ref, other]),
            ("aten::bitwise_and.Tensor", [ref, other]), ("aten::floor", [ref]), ("aten::sign", [ref]), ("aten::conj_physical", [ref]),
            ("aten::lerp.Tensor", [ref, other, other]), ("aten::softmax.int", [ref, self.dim(t)]), ("aten::nan_to_num", [ref])])

    def joining(self) -> Args:
        ref, t = self.any()
        dim = self.dim(t)
        def fits(o: torch.Tensor) -> bool:
            return o.dim() == t.dim() and all(a == b for i, (a, b) in enumerate(zip(o.shape, t.shape)) if i != dim % max(t.dim(), 1))

        refs = [ref] + [found[0] for found in (self.one(fits) for _ in range(self.rng.randint(0, 2))) if found]
        if sum(self.tensors[r.slot].numel() for r in refs) > SIZE_MAX:
            return None
        if self.is_ref or self.rng.random() < 0.6:
            return "aten::cat", [refs, dim]
        return "aten::stack", [[r for r in refs if self.tensors[r.slot].shape == t.shape], 0]

    def reducing(self) -> Args:
        found = self.one(self.is_exact)
        if not found:
            return None
        ref, t = found
        dim = self.dim(t)
        choices: list[Args] = [("aten::sum", [ref]), ("aten::sum.dim_IntList", [ref, [dim], self.rng.random() < 0.5]),
                               ("aten::amax", [ref, [dim], self.rng.random() < 0.5]), ("aten::argmax", [ref, dim])]
        if not self.is_ref:
            choices += [("aten::mean.dim", [ref, [dim]]), ("aten::max.dim", [ref, dim]), ("aten::sort", [ref, dim]),
                        ("aten::cumsum", [ref, dim]), ("aten::prod.dim_int", [ref, dim]), ("aten::any", [ref]), ("aten::all.dim", [ref, dim]),
                        ("aten::var.correction", [ref, [dim]]), ("aten::topk", [ref, 1, dim]), ("aten::logsumexp", [ref, [dim]]),
                        ("aten::min.dim", [ref, dim, True]), ("aten::norm.ScalarOpt_dim", [ref, 2, [dim]]), ("aten::flip", [ref, [dim]]),
                        ("aten::roll", [ref, [1], [dim]]), ("aten::argsort", [ref, dim])]
        return self.rng.choice(choices)

    def indexing(self) -> Args:
        if self.is_ref:
            return None
        found = self.one(lambda t: t.dim() > 0)
        if not found:
            return None
        ref, t = found
        index = self.one(lambda i: i.dtype == torch.int64 and i.dim() <= 2)
        if not index:
            return None
        dim = self.dim(t)
        return self.rng.choice([("aten::index_select", [ref, dim, index[0]]), ("aten::gather", [ref, dim, index[0]]),
                                ("aten::index.Tensor", [ref, [index[0]]]), ("aten::index.Tensor", [ref, [None, index[0]]]),
                                ("aten::take", [ref, index[0]]), ("aten::embedding", [ref, index[0]])])

    def depending(self) -> Args:
        """Results whose sizes depend on values."""
        ref, t = self.any()
        mask = self.one(lambda m: m.dtype == torch.bool and m.shape == t.shape)
        choices: list[Args] = [("aten::nonzero", [ref])]
        if mask:
            choices += [("aten::masked_select", [ref, mask[0]]), ("aten::index.Tensor", [ref, [mask[0]]])]
        first = self.one(lambda m: m.dtype == torch.bool and m.dim() == 1 and t.dim() > 1 and m.shape[0] == t.shape[-1])
        if first:
            choices.append(("aten::index.Tensor", [ref, [None] * (t.dim() - 1) + [first[0]]]))
        return self.rng.choice(choices)

    def creating(self) -> Args:
        dtype = self.dtype()
        ref, _ = self.any()
        choices: list[Args] = [("aten::full", [self.sizes(), self.number(dtype), dtype]), ("aten::zeros", [self.sizes(), dtype]),
                               ("aten::ones", [self.sizes(), dtype]), ("aten::arange", [self.rng.randint(0, 9), self.rng.choice(
                                   (torch.int64, torch.float32))]), ("aten::zeros_like", [ref]), ("aten::ones_like", [ref])]
        if not self.is_ref:
            choices += [("aten::eye", [3, dtype]), ("aten::linspace", [0, 1, 5]), ("aten::new_zeros", [ref, self.sizes()]),
                        ("aten::full_like", [ref, 3]), ("aten::scalar_tensor", [2.5])]
        return self.rng.choice(choices)

    def copying(self) -> Args:
        ref, t = self.any()
        choices: list[Args] = [("aten::clone", [ref]), ("aten::contiguous", [ref]), ("aten::_to_copy", [ref, self.dtype()]),
                               ("aten::to.dtype", [ref, self.dtype()])]
        if not self.is_ref:
            choices += [("aten::clone", [ref, torch.contiguous_format]), ("aten::repeat", [ref, [2] + [1] * t.dim()]),
                        ("aten::clone", [ref, torch.channels_last if t.dim() == 4 else torch.preserve_format])]
            choices = [choice for choice in choices if t.numel() * 2 <= SIZE_MAX or choice[0] != "aten::repeat"]
        return self.rng.choice(choices)

    def products(self) -> Args:
        a = self.one(lambda t: t.dim() == 2 and self.is_exact(t))
        if not a:
            return None
        b = self.one(lambda t: t.dim() == 2 and t.dtype == a[1].dtype and t.shape[0] == a[1].shape[1] and self.is_exact(t))
        if not b:
            return None
        return "aten::mm" if self.is_ref or self.rng.random() < 0.7 else "aten::matmul", [a[0], b[0]]

    def out(self) -> Args:
        """out= forms: into tensors of the right and of wrong sizes, and of inputs' memory."""
        found = self.target()
        if not found or self.is_ref:
            return None
        out, o = found
        ref, t = self.one(lambda x: x.shape == o.shape) if self.rng.random() < 0.5 else self.any()
        other, dim = self.like(t), self.dim(t)
        def is_apart(x: torch.Tensor) -> bool:  # else it is read while it is written, in any order
            return x.untyped_storage()._cdata != o.untyped_storage()._cdata

        product = self.one(lambda x: x.dim() == 2 and t.dim() == 2 and x.dtype == t.dtype and x.shape[0] == t.shape[1]
                           and is_apart(x) and is_apart(t))
        choices: list[Args] = [
            ("aten::add.out", [ref, other, 1, out]), ("aten::mul.out", [ref, other, out]), ("aten::sub.out", [ref, other, 2, out]),
            ("aten::cat.out", [[ref, ref], dim, out]), ("aten::sum.IntList_out", [ref, [dim], False, None, out]),
            ("aten::clamp.out", [ref, -1, 2, out]), ("aten::neg.out", [ref, out]), ("aten::div.out", [ref, other, out]),
            ("aten::eq.Tensor_out", [ref, other, out]), ("aten::cumsum.out", [ref, dim, None, out]), ("aten::ne.Scalar_out", [ref, 1, out]),
            ("aten::amax.out", [ref, [dim], False, out]), ("aten::tril.out", [ref, 0, out]), ("aten::exp.out", [ref, out])]
        if product:
            choices += [("aten::mm.out", [ref, product[0], out])] * 3
        return self.rng.choice([choice for choice in choices if t.numel() * 2 <= SIZE_MAX or choice[0] != "aten::cat.out"])
