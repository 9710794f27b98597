"""Tensors on a mesh: making them, moving them, and what torch.Tensor gains.

A tensor on a mesh is an ordinary torch.Tensor on the device "dtorch" with its global shape; where its parts lie is known to the
library by its storage. Views of it, and tensors computed from it, are on that mesh too."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dtorch import placements as words
from dtorch.mesh import DeviceMesh, mesh_of
from dtorch.placements import Partial, Placement, Replicate

Placements = Sequence[Placement] | Placement | None


def layout_of(tensor: torch.Tensor) -> tuple[DeviceMesh, tuple[Placement, ...]] | None:
    """Mesh and placements of a tensor; None if it is on one device."""
    if tensor.device.type != "dtorch":
        return None
    numbers = torch.ops.dtorch.layout(tensor)
    return (mesh_of(numbers[0]), words.decode(numbers[1:])) if numbers else None


# ---- from one layout to another ----


def distribute_tensor(tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Placements = None) -> torch.Tensor:
    """A tensor with that value on a mesh; each device is sent its part only.

    tensor: anywhere: on the CPU, on one device, on a mesh. placements: one for each mesh dimension, None: Replicate. The result
    is a leaf of autograd, which asks for a gradient if `tensor` does.
    Raises: TypeError, ValueError (placements that do not fit)."""
    made = words.check(placements, device_mesh.ndim, tensor.dim())
    with torch.no_grad():
        source = tensor.detach()
        if source.device.type == "cpu" and any(isinstance(p, Partial) for p in made):  # made of what the devices have
            whole = [Replicate() if isinstance(p, Partial) else p for p in made]
            source = torch.ops.dtorch.distribute(source, device_mesh.number(), words.encode(whole))
        result = torch.ops.dtorch.distribute(source, device_mesh.number(), words.encode(made))
    return result.requires_grad_(tensor.requires_grad)


def redistribute(tensor: torch.Tensor, device_mesh: DeviceMesh | None = None, placements: Placements = None, *,
                 async_op: bool = False) -> torch.Tensor:
    """The same value in another layout, on the same mesh or on another one. Autograd takes its gradient back to where the
    tensor was. `async_op` changes nothing: nothing waits here.

    Raises: TypeError, ValueError (placements that do not fit; a tensor on one device needs a mesh)."""
    now = layout_of(tensor)
    if device_mesh is None:
        if now is None:
            raise ValueError("redistribute: the tensor is on one device, so a mesh is needed")
        device_mesh = now[0]
    made = words.check(placements, device_mesh.ndim, tensor.dim())
    if now == (device_mesh, made) and torch.ops.dtorch.lies_as_told(tensor):
        return tensor
    return _Move.apply(tensor, device_mesh, made)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on one device, the first of its mesh; autograd goes through."""
    return tensor if layout_of(tensor) is None else _Move.apply(tensor, None, ())


def to_torch(tensor: torch.Tensor) -> torch.Tensor:
    """The whole tensor on the CPU; it waits for the value. Autograd goes through."""
    return tensor.cpu()


def shards(tensor: torch.Tensor) -> dict[int, torch.Tensor]:
    """What each device holds, by its index, on the CPU: for debugging. It waits for each.

    Shapes: those of the parts; a device without a part has one with a size of 0."""
    now = layout_of(tensor)
    if now is None:
        return {tensor.device.index or 0: tensor.detach().cpu()}
    with torch.no_grad():
        return {device: torch.ops.dtorch.shard(tensor.detach(), device) for device in now[0].mesh.flatten().tolist()}


def redistribute_(tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Placements) -> torch.Tensor:
    """Give the tensor's storage another layout: the tensor and all views of it are there then. Autograd does not see it.

    Raises: as redistribute()."""
    made = words.check(placements, device_mesh.ndim, tensor.dim())
    torch.ops.dtorch.redistribute_(tensor.detach(), device_mesh.number(), words.encode(made))
    return tensor


# Bits of torch.ops.dtorch.set_policy: dt_policy_t, and what the device alone knows.
STRICT, FORGET, UNSETTLED, PASS, UNPINNED, WHOLE, PARTS = 1, 2, 4, 8, 16, 32, 1 << 8


@contextlib.contextmanager
def _switched(bits: int, is_on: bool) -> Iterator[None]:
    before = torch.ops.dtorch.set_policy(0)
    torch.ops.dtorch.set_policy(before | bits if is_on else before & ~bits)
    try:
        yield
    finally:
        torch.ops.dtorch.set_policy(before)


@contextlib.contextmanager
def strict(is_strict: bool = True) -> Iterator[None]:
    """Within, an operator whose tensors do not lie where it can take them is refused, at the line that calls it; without, they are
    moved. redistribute() is what moves then. It holds for all threads of the program.

    Raises (within, the operators): OperatorError (the text has shapes, placements and the nearest row)."""
    with _switched(STRICT, is_strict):
        yield


@contextlib.contextmanager
def policy(*, keep: bool = True, settle: bool = True, settle_first: bool = True, pin: bool = True, whole_linear: bool = True,
           decompose: bool = True) -> Iterator[None]:
    """Within, what saves moves is left out where False is given, to measure what it is worth. Values are the same, but for the
    order of sums. It holds for all threads of the program.

    keep: what was moved for one operator is there for the next ones until it is written. settle: a Partial that had to be reduced
    is replaced by the sum. settle_first: a Partial passes operators that join or shrink only, not all that are linear. pin:
    parameters that a plan placed are not moved where anything else is possible. whole_linear: a linear layer is one operator, not
    a view and a product. decompose: softmax, norms and losses along a sharded dimension run in parts instead of gathering it."""
    bits = sum(bit for bit, is_left in ((FORGET, keep), (UNSETTLED, settle), (PASS, settle_first), (UNPINNED, pin),
                                        (PARTS, whole_linear), (WHOLE, decompose)) if not is_left)
    with _switched(bits, True):
        yield


class _Move(torch.autograd.Function):
    """redistribute() for autograd: the identity, so the gradient goes back into the source's layout, Partial as Replicate."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, mesh: DeviceMesh | None, made: tuple[Placement, ...]) -> torch.Tensor:
        ctx.before, ctx.device = layout_of(tensor), tensor.device
        if mesh is None:
            return torch.ops.dtorch.collect(tensor)
        return torch.ops.dtorch.distribute(tensor, mesh.number(), words.encode(made))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.before is None:
            return full_tensor(gradient).to(ctx.device), None, None
        mesh, made = ctx.before
        settled = tuple(Replicate() if isinstance(p, Partial) else p for p in made)
        return redistribute(gradient, mesh, settled), None, None


# ---- making tensors on a mesh ----


@contextlib.contextmanager
def placed(device_mesh: DeviceMesh, made: Sequence[Placement]) -> Iterator[None]:
    """Tensors that are made anew within, on this thread, are on that mesh."""
    torch.ops.dtorch.make_on(device_mesh.number(), words.encode(made))
    try:
        yield
    finally:
        torch.ops.dtorch.make_on(0, [])


def _factory(plain: Callable[..., torch.Tensor], is_resized: bool = False) -> Callable[..., torch.Tensor]:
    """The factory of that name. is_resized: PyTorch makes it by resizing an empty tensor; it is made on one device and moved."""
    name = plain.__name__

    def function(*args: Any, device_mesh: DeviceMesh | None = None, placements: Placements = None, requires_grad: bool = False,
                 **options: Any) -> torch.Tensor:
        if device_mesh is None:
            if placements is not None:
                raise ValueError(f"{name}: placements need a device_mesh")
            return plain(*args, requires_grad=requires_grad, device="dtorch", **options)
        if "device" in options:
            raise TypeError(f"{name}: a device_mesh says where the tensor is, so there is no device")
        drawn = {key: value for key, value in options.items() if key != "generator"}
        made = words.check(placements, device_mesh.ndim, plain(*args, device="meta", **drawn).dim())
        if is_resized:
            return distribute_tensor(plain(*args, device=device_mesh.device, **options), device_mesh,
                                     made).requires_grad_(requires_grad)
        whole = tuple(Replicate() if isinstance(p, Partial) else p for p in made)
        with torch.no_grad(), placed(device_mesh, whole):
            tensor = plain(*args, device=device_mesh.device, **options)
        if whole != made:
            redistribute_(tensor, device_mesh, made)
        return tensor.requires_grad_(requires_grad)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""torch.{name}() on the device dtorch, on a mesh if one is given: the same global values on every mesh.

    placements: one for each dimension of the mesh, None: Replicate.
    Raises: as torch.{name}(), TypeError and ValueError (placements that do not fit)."""
    return function


arange = _factory(torch.arange, is_resized=True)
empty = _factory(torch.empty)
eye = _factory(torch.eye, is_resized=True)
full = _factory(torch.full)
linspace = _factory(torch.linspace, is_resized=True)
ones = _factory(torch.ones)
rand = _factory(torch.rand)
randint = _factory(torch.randint)
randn = _factory(torch.randn)
randperm = _factory(torch.randperm, is_resized=True)
zeros = _factory(torch.zeros)


# ---- what torch.Tensor gains ----


def _attribute(name: str, part: int) -> property:
    def getter(self: torch.Tensor) -> Any:
        now = layout_of(self)
        if now is None:
            raise AttributeError(f"'Tensor' object has no attribute {name!r}: it is not on a mesh")
        return now[part]
    return property(getter)


def _shown(plain: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(plain)
    def text_of(self: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        text = plain(self, *args, **kwargs)
        is_wrapped = torch._C._functorch.maybe_get_level(self) != -1  # within vmap() or grad()
        now = None if is_wrapped else layout_of(self)
        if now is None or not text.endswith(")"):
            return text
        return f"{text[:-1]},\n       size={tuple(self.shape)}, device_mesh={now[0]!r}, placements={list(now[1])})"
    return text_of


def install() -> None:
    """Give torch.Tensor the methods and attributes of tensors on a mesh, and their text."""
    from torch import _tensor_str

    for function in (redistribute, full_tensor, to_torch, shards):
        setattr(torch.Tensor, function.__name__, function)
    torch.Tensor.device_mesh = _attribute("device_mesh", 0)
    torch.Tensor.placements = _attribute("placements", 1)
    _tensor_str._str = _shown(_tensor_str._str)
