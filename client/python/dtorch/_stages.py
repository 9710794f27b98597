"""A model in stages: its parts on meshes of their own, and tensors moved from stage to stage as they come.

A *unit* is a module that lies on one stage whole, with all below it. What enters a unit from another stage is moved to the unit's
mesh before its forward pass; the model's own code between units runs wherever its tensors are."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dtorch import _distribute, _sharded
from dtorch.mesh import DeviceMesh
from dtorch.placements import Partial, Placement, Replicate

LATE_INPUTS = ("labels",)  # arguments of Hugging Face's models that their last stage reads


class Unit:
    """A module on a stage."""

    def __init__(self, name: str, module: torch.nn.Module, stage: int) -> None:
        self.name, self.module, self.stage = name, module, stage
        self.foreign: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []  # tied to one on another stage: owner, key, it
        self.is_lent = False  # they are replaced by what was moved for this forward pass


class Stages:
    """Units of a model on their meshes. Hooks of the units move what enters them; `enter` of the current pass says when."""

    def __init__(self, model: torch.nn.Module, meshes: Sequence[DeviceMesh], places: Mapping[str, int], plan: Any) -> None:
        """Put the model's parameters where `places` says; nothing is moved before everything is checked.

        Raises: TypeError, ValueError, KeyError (as distribute(); stages that do not fit each other or the model)."""
        self.meshes = tuple(meshes)
        _check_meshes(self.meshes)
        self.units = _units(model, places, len(self.meshes))
        _distribute.spread(model, self._mesh_of(model), plan)
        for unit in self.units:
            unit.foreign = self._foreign(unit)
            unit.module.register_forward_pre_hook(self._before(unit), with_kwargs=True)
            unit.module.register_forward_hook(self._after(unit), always_call=True)
        self._local = threading.local()

    # ---- where parameters lie ----

    def _mesh_of(self, model: torch.nn.Module) -> Callable[[str], DeviceMesh]:
        stage_of = {unit.name: unit.stage for unit in self.units}
        outside = [name for name, _ in model.named_parameters() if _owner(name, stage_of) is None]
        if outside:
            raise ValueError(f"pipeline: no stage is said for {', '.join(outside[:4])}{', ...' if len(outside) > 4 else ''}")

        def mesh_of(name: str) -> DeviceMesh:
            owner = _owner(name, stage_of)
            return self.meshes[0 if owner is None else stage_of[owner]]  # a buffer beside the units, with the inputs
        return mesh_of

    def _foreign(self, unit: Unit) -> list[tuple[torch.nn.Module, str, torch.nn.Parameter]]:
        found = []
        for module in unit.module.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and self.stage_of(parameter) != unit.stage:
                    found.append((module, key, parameter))
        return found

    def stage_of(self, tensor: torch.Tensor) -> int | None:
        """The stage that a tensor lies on, None if on none."""
        now = _sharded.layout_of(tensor)
        if now is None:
            return None
        return next((stage for stage, mesh in enumerate(self.meshes) if mesh.is_same_array(now[0])), None)

    # ---- what enters a unit ----

    def current(self) -> "Any | None":
        """The pass that this thread runs as a part of a schedule, None if there is none."""
        return getattr(self._local, "now", None)

    def set_current(self, now: Any) -> None:
        """This thread runs that pass from now on: an object with `enter(unit, args)`."""
        self._local.now = now

    def _before(self, unit: Unit) -> Callable[..., Any]:
        def hook(_: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            now = self.current()
            if now is not None:
                return now.enter(unit, (args, kwargs))
            if all(module._parameters[key] is parameter for module, key, parameter in unit.foreign):  # a schedule has copies there
                unit.is_lent = True
                for module, key, parameter in unit.foreign:
                    module._parameters[key] = self.move(parameter, unit.stage)  # type: ignore[assignment]  # with its history
            return mapped((args, kwargs), lambda tensor: self.move(tensor, unit.stage))
        return hook

    def _after(self, unit: Unit) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if unit.is_lent:
                unit.is_lent = False
                for module, key, parameter in unit.foreign:
                    module._parameters[key] = parameter
        return hook

    def move(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """The tensor on that stage's mesh, in the layout that it has on its own; autograd goes through."""
        if not self.is_elsewhere(tensor, stage):
            return tensor
        return _sharded.redistribute(tensor, self.meshes[stage], self.placements(tensor))

    def is_elsewhere(self, tensor: torch.Tensor, stage: int) -> bool:
        """Whether a unit of that stage cannot take the tensor as it is. Those on the CPU are as good there as on one device."""
        return tensor.device.type == "dtorch" and self.stage_of(tensor) != stage

    def placements(self, tensor: torch.Tensor) -> tuple[Placement, ...]:
        """How a tensor lies, Partial as Replicate: what it is sent as."""
        return self.sent_as(_sharded.layout_of(tensor))

    def sent_as(self, now: "tuple[DeviceMesh, Sequence[Placement]] | None") -> tuple[Placement, ...]:
        """How a tensor of that layout is sent."""
        ndim = self.meshes[0].ndim
        if now is None or now[0].ndim != ndim:
            return (Replicate(),) * ndim
        return tuple(Replicate() if isinstance(placement, Partial) else placement for placement in now[1])


def mapped(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same tree of tuples, lists and dicts with tensors changed. Other objects stay what they are: a cache of keys and values
    is the model's own, and each unit has a part of its own in it."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(part, change) for part in tree))
    if type(tree) in (tuple, list):
        return type(tree)(mapped(part, change) for part in tree)
    if type(tree) is dict:
        return {key: mapped(part, change) for key, part in tree.items()}
    return tree


def _owner(name: str, stage_of: Mapping[str, int]) -> str | None:
    parts = name.split(".")
    return next((".".join(parts[:n]) for n in range(len(parts)) if ".".join(parts[:n]) in stage_of), None)


def _units(model: torch.nn.Module, places: Mapping[str, int], stages: int) -> list[Unit]:
    for pattern, stage in places.items():
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage < stages:
            raise ValueError(f"pipeline: {pattern!r} is to go to stage {stage!r}, and there are stages 0 to {stages - 1}")
    units: dict[str, Unit] = {}
    for name, module in model.named_modules():
        found = next((stage for pattern, stage in places.items() if re.fullmatch(pattern, name)), None)
        if found is not None and _owner(name, {unit: 0 for unit in units}) is None:
            units[name] = Unit(name, module, found)
    empty = sorted(set(range(stages)) - {unit.stage for unit in units.values()})
    if empty:
        raise ValueError(f"pipeline: no module of the model goes to stage {empty[0]}")
    return list(units.values())


def _check_meshes(meshes: Sequence[DeviceMesh]) -> None:
    if not meshes or not all(isinstance(mesh, DeviceMesh) for mesh in meshes):
        raise TypeError(f"pipeline: stages are DeviceMeshes, one or more, not {list(meshes)!r}")
    first = meshes[0]
    for mesh in meshes:
        if mesh.ndim != first.ndim or mesh.mesh_dim_names != first.mesh_dim_names:
            raise ValueError(f"pipeline: stages have the same dimensions, {first!r} and {mesh!r} do not")
    devices = [device for mesh in meshes for device in mesh.mesh.flatten().tolist()]
    if len(set(devices)) != len(devices):
        raise ValueError("pipeline: no device is in two stages")
