"""Meshes: the session's devices in an array with named dimensions."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from dtorch import _start
from dtorch.session import check

__all__ = ["DeviceMesh", "init_device_mesh"]

DIM_MAX = 8       # dimensions of a mesh, as on the wire
DEVICE_MAX = 4096  # devices of one
DEVICE_TYPES = ("cuda", "cpu", "dtorch")


class DeviceMesh:
    """Devices of the session in an array of any number of dimensions, which may have names.

    device_type: "cuda", "cpu" or "dtorch", all of which mean the session's devices: their kind is the cluster's affair.
    ids: indices of devices, nested for more dimensions, or a tensor of them; each at most once. A session that has not begun
    yet will have as many devices as the highest index asks for.
    mesh_dim_names: one for each dimension; a plan and slicing go by them.
    Two meshes with the same ids and names are equal. There is one program and no rank in it, so PyTorch's get_rank(),
    get_coordinate() and get_group() have no meaning here.
    Raises: TypeError, ValueError; BegunError (the session has begun and has no such device)."""

    def __init__(self, device_type: str, ids: Any, *, mesh_dim_names: Sequence[str] | None = None) -> None:
        if device_type not in DEVICE_TYPES:
            raise ValueError(f"DeviceMesh: the device type is one of {', '.join(DEVICE_TYPES)}, not {device_type!r}")
        self._device_type = device_type
        self._shape, self._ids = _flatten(ids)
        self._names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        _check_ids(self._shape, self._ids)
        _check_names(self._names, len(self._shape))
        self._number: int | None = None
        check(_start.library().need(max(self._ids) + 1))

    @property
    def device_type(self) -> str:
        """As it was given."""
        return self._device_type

    @property
    def mesh(self) -> torch.Tensor:
        """The devices' indices. Shapes: that of the mesh, int64, on the CPU."""
        return torch.tensor(self._ids, dtype=torch.int64, device="cpu").reshape(self._shape)

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """Names of the dimensions, None if they have none."""
        return self._names

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self._shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Devices along each dimension."""
        return self._shape

    @property
    def device(self) -> torch.device:
        """What `x.device` is for tensors of this mesh: its first device."""
        return torch.device("dtorch", self._ids[0])

    def size(self, mesh_dim: int | str | None = None) -> int:
        """Devices in all, or along one dimension. Raises: KeyError, IndexError (no such dimension)."""
        return len(self._ids) if mesh_dim is None else self._shape[self.dim(mesh_dim)]

    def dim(self, name: int | str) -> int:
        """The number of a dimension by its name, or by its number, which may be negative. Raises: KeyError, IndexError."""
        if isinstance(name, str):
            if self._names is None or name not in self._names:
                raise KeyError(f"{self!r} has no dimension {name!r}")
            return self._names.index(name)
        if not -self.ndim <= name < self.ndim:
            raise IndexError(f"{self!r} has no dimension {name}")
        return name % self.ndim

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> "DeviceMesh":
        """The mesh of those dimensions, in that order, at the begin of all others; see select() for other places.

        Raises: KeyError (no such dimension), ValueError (one twice)."""
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a mesh is sliced by names of dimensions, each once, not by {mesh_dim_names!r}")
        dims = [self.dim(name) for name in names]
        others = [d for d in range(self.ndim) if d not in dims]
        array = self.mesh.permute(*dims, *others)
        for _ in others:
            array = array.select(-1, 0)
        return DeviceMesh(self._device_type, array, mesh_dim_names=names)

    def select(self, mesh_dim: int | str, index: int) -> "DeviceMesh":
        """The mesh at one place along a dimension, which is left out: `mesh.select("pp", 1)` is the second stage.

        Raises: KeyError, IndexError (no such dimension or place), ValueError (it is the only dimension)."""
        dim = self.dim(mesh_dim)
        if self.ndim == 1:
            raise ValueError(f"{self!r} has one dimension: nothing would be left")
        if not -self._shape[dim] <= index < self._shape[dim]:
            raise IndexError(f"{self!r} has {self._shape[dim]} places along {mesh_dim!r}, and {index} is none of them")
        names = None if self._names is None else self._names[:dim] + self._names[dim + 1:]
        return DeviceMesh(self._device_type, self.mesh.select(dim, index), mesh_dim_names=names)

    def number(self) -> int:
        """What the library knows the mesh by."""
        if self._number is None:
            self._number = torch.ops.dtorch.mesh(list(self._shape), list(self._names or ()), list(self._ids))
            _known.setdefault(self._number, self)
        return self._number

    def is_same_array(self, other: "DeviceMesh") -> bool:
        """Whether it has the same devices in the same shape, whatever its dimensions are called."""
        return self._shape == other._shape and self._ids == other._ids

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, DeviceMesh) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._shape, self._ids, self._names

    def __repr__(self) -> str:
        names = "" if self._names is None else f", mesh_dim_names={self._names}"
        return f"DeviceMesh({self._device_type!r}, {_nested(self._shape, self._ids)}{names})"


_known: dict[int, DeviceMesh] = {}  # by the library's number


def mesh_of(number: int) -> DeviceMesh:
    """The mesh that the library has given a number; the library got it from number() before."""
    return _known[number]


def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *,
                     mesh_dim_names: Sequence[str] | None = None) -> DeviceMesh:
    """A mesh of that shape over the session's first devices, in row-major order. Raises: as DeviceMesh()."""
    shape = tuple(mesh_shape)
    if not shape or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in shape):
        raise ValueError(f"a mesh's sizes are 1 or more, not {shape}")
    if math.prod(shape) > DEVICE_MAX:
        raise ValueError(f"a mesh has at most {DEVICE_MAX} devices, not {math.prod(shape)}")
    return DeviceMesh(device_type, torch.arange(math.prod(shape), device="cpu").reshape(shape), mesh_dim_names=mesh_dim_names)


def _flatten(ids: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and row-major indices of nested sequences or of a tensor."""
    if isinstance(ids, torch.Tensor):
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"DeviceMesh: ids are integers, not {ids.dtype}")
        ids = ids.detach().cpu().tolist()
    if isinstance(ids, int) and not isinstance(ids, bool):
        return (1,), (ids,)
    shape: list[int] = []
    level: list[Any] = [ids]
    while level and not isinstance(level[0], int):
        if not all(hasattr(part, "__len__") and hasattr(part, "__iter__") and not isinstance(part, str) for part in level):
            raise TypeError(f"DeviceMesh: ids are integers in nested lists, not {ids!r}")
        lengths = {len(part) for part in level}
        if len(lengths) != 1:
            raise ValueError(f"DeviceMesh: ids are nested unevenly: {ids!r}")
        shape.append(lengths.pop())
        level = [item for part in level for item in part]
    if any(isinstance(item, bool) or not isinstance(item, int) for item in level):
        raise TypeError(f"DeviceMesh: ids are integers in nested lists, not {ids!r}")
    return tuple(shape), tuple(level)


def _check_ids(shape: tuple[int, ...], ids: tuple[int, ...]) -> None:
    if not ids:
        raise ValueError("DeviceMesh: there is no device in it")
    if len(shape) > DIM_MAX or len(ids) > DEVICE_MAX:
        raise ValueError(f"DeviceMesh: at most {DIM_MAX} dimensions and {DEVICE_MAX} devices")
    if min(ids) < 0 or max(ids) >= DEVICE_MAX:
        raise ValueError(f"DeviceMesh: devices are numbered from 0 to {DEVICE_MAX - 1}")
    if len(set(ids)) != len(ids):
        raise ValueError(f"DeviceMesh: a device is in it twice: {list(ids)}")


def _check_names(names: tuple[str, ...] | None, ndim: int) -> None:
    if names is None:
        return
    if len(names) != ndim:
        raise ValueError(f"DeviceMesh: {ndim} dimensions need as many names, not {names}")
    if any(not isinstance(name, str) or not name or len(name.encode()) > 255 for name in names):
        raise TypeError(f"DeviceMesh: names of dimensions are texts of 1 to 255 bytes, not {names}")
    if len(set(names)) != len(names):
        raise ValueError(f"DeviceMesh: names of dimensions differ from each other, {names} do not")


def _nested(shape: tuple[int, ...], ids: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return list(ids)
    step = len(ids) // shape[0]
    return [_nested(shape[1:], ids[at:at + step]) for at in range(0, len(ids), step)]
