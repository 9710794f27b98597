"""dtorch.distribute(): a model's parameters onto a mesh, by a plan."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from dtorch import _sharded, _torch
from dtorch import placements as words
from dtorch.mesh import DeviceMesh
from dtorch.placements import Replicate

if TYPE_CHECKING:
    from dtorch.plans import Layout  # each `import torch` comes here, and few programs have plans

# Of torch.ops.dtorch.hint: operators move it only where nothing else is possible; its copy in use is kept until it is written.
PINNED, KEPT = 1, 2


def distribute(model: torch.nn.Module, device_mesh: DeviceMesh, plan: Any = None, *,
               keep_gathered: bool = False) -> torch.nn.Module:
    """Put a model's parameters and buffers onto a mesh as a plan says, and return the model.

    Parameters stay the same objects where nothing forbids it, so that optimizers made before go on; tied ones stay tied. Those
    on "meta" are made without a value, for load_state_dict() to fill. Afterwards a gradient goes where the plan wants it as soon
    as a backward pass has made it, and tensors that an optimizer makes like a parameter lie where the plan wants its state.
    plan: a Plan, see dtorch.plans; or a mapping from patterns of names to placements; None: the same everywhere.
    keep_gathered: what an operator reads elsewhere than at rest is kept until the parameter is written: fewer moves, more memory.
    Raises: TypeError, ValueError (a plan that does not fit), KeyError (the mesh lacks a dimension of the plan). All parameters
    are checked before the first one is moved."""
    return spread(model, lambda _: device_mesh, plan, keep_gathered=keep_gathered)


def spread(model: torch.nn.Module, mesh_of: Callable[[str], DeviceMesh], plan: Any, *, keep_gathered: bool = False) -> torch.nn.Module:
    """distribute() onto several meshes: mesh_of says by the qualified name of a parameter or buffer where it goes. What is tied goes
    where its first name says."""
    from dtorch.plans import as_plan

    layouts: dict[int, tuple[DeviceMesh, Layout]] = {}
    for name, parameter in model.named_parameters():
        mesh = mesh_of(name)
        layouts[id(parameter)] = (mesh, as_plan(plan, mesh).layout(name, parameter.shape, mesh))
    done: dict[int, torch.Tensor] = {}
    flags = PINNED | (KEPT if keep_gathered else 0)
    kept = list(model.parameters()) + list(model.buffers())  # ids stay theirs until the end
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                mesh, layout = layouts.get(id(parameter)) or (mesh_of(_join(prefix, name)), None)
                module._parameters[name] = _place_once(parameter, mesh, layout, flags, done)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _place_once(buffer, mesh_of(_join(prefix, name)), None, flags, done)
    del kept
    return model


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _place_once(old: Any, mesh: DeviceMesh, layout: "Layout | None", flags: int, done: dict[int, torch.Tensor]) -> Any:
    if id(old) not in done:
        new = _place(old, mesh, layout, flags)
        done[id(old)] = new
        done[id(new)] = new  # a kept object is met again under the same id
    return done[id(old)]


def _place(old: torch.Tensor, mesh: DeviceMesh, layout: "Layout | None", flags: int) -> torch.Tensor:
    where = layout.at_rest if layout else (Replicate(),) * mesh.ndim
    if old.device.type == "meta":
        with torch.no_grad(), _sharded.placed(mesh, where):
            moved = torch.empty_like(old, device=mesh.device)
    else:
        moved = _sharded.distribute_tensor(old.detach(), mesh, where)
    if layout is None:
        return moved
    parameter = _torch.keep(old, torch.nn.Parameter(moved, old.requires_grad))
    _follow(parameter, mesh, layout, flags)
    return parameter


_followed: Any = WeakIdKeyDictionary()  # parameters, with what _follow() was told of them


def _follow(parameter: torch.Tensor, mesh: DeviceMesh, layout: "Layout", flags: int) -> None:
    """From now on a parameter, its gradient and its state go where the plan says."""
    _hint(parameter, layout, flags)
    if parameter.requires_grad:
        parameter.register_post_accumulate_grad_hook(functools.partial(_settle, mesh, layout))
    _followed[parameter] = (mesh, layout, flags)


def _copied(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(plain)
    def deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        is_new = id(self) not in memo
        result = plain(self, memo)
        told = _followed.get(self) if is_new else None
        if told is not None:
            _follow(result, *told)
        return result
    return deepcopy


def install() -> None:
    """Copies of a parameter follow the plan as it does."""
    torch.nn.Parameter.__deepcopy__ = _copied(torch.nn.Parameter.__deepcopy__)


def _hint(parameter: torch.Tensor, layout: "Layout", flags: int) -> None:
    use = words.encode(layout.in_use) if layout.in_use != layout.at_rest else []
    state = words.encode(layout.state) if layout.state != layout.at_rest else []
    torch.ops.dtorch.hint(parameter.detach(), flags, use, state)


_waiting: dict[int, Callable[[], None]] | None = None  # within settled_later(): by parameter, how to settle its gradient


@contextlib.contextmanager
def settled_later() -> Iterator[None]:
    """Within, gradients are added up as backward passes make them; they go where the plan wants them once, at the end. Only for a
    thread that runs the passes itself."""
    global _waiting
    if _waiting is not None:
        raise RuntimeError("gradients are added up for one step at a time")
    _waiting = {}
    try:
        yield
    finally:
        waiting, _waiting = _waiting, None
        for settle in waiting.values():
            settle()


def add_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to a parameter's gradient, as a backward pass does, a tensor from anywhere."""
    now = _sharded.layout_of(parameter)
    with torch.no_grad():
        here = gradient if now is None else _sharded.redistribute(gradient, *now)
        parameter.grad = here if parameter.grad is None else parameter.grad + here
    told = _followed.get(parameter)
    if told is not None:
        _settle(told[0], told[1], parameter)


def _settle(mesh: DeviceMesh, layout: "Layout", parameter: torch.Tensor) -> None:
    """A gradient is there: to where the plan wants it."""
    if _waiting is not None:
        _waiting[id(parameter)] = functools.partial(_settle, mesh, layout, parameter)
        return
    now = None if parameter.grad is None else _sharded.layout_of(parameter.grad)
    if now is not None and now[0].is_same_array(mesh) and now[1] == layout.gradient:
        return  # the mesh of a batch may have other names
    if parameter.grad is not None:
        with torch.no_grad():
            parameter.grad = _sharded.redistribute(parameter.grad, mesh, layout.gradient)
