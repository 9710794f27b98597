"""Where a tensor lies along one dimension of a mesh: PyTorch's names, with their equality, hashes and texts."""

from collections.abc import Sequence
from typing import Any

__all__ = ["Partial", "Placement", "Replicate", "Shard"]

REDUCTIONS = ("sum", "avg", "max", "min")
DIM_MAX = 16  # dimensions of a tensor, as on the wire


class Placement:
    """What all placements have in common. One stands for each dimension of the mesh."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether it is a Shard, of that tensor dimension if one is given."""
        return False

    def is_replicate(self) -> bool:
        """Whether every device has the whole value."""
        return False

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether the value is what the devices' parts give together, by that reduction if one is given."""
        return False


class Shard(Placement):
    """A tensor dimension is cut as torch.chunk() cuts it: the last parts are shorter, or empty.

    dim: of the tensor; a negative one counts from the end and is made positive where the tensor is known.
    unit: borders lie at multiples of it only (heads of attention). groups: the dimension is groups of equal size one behind
    the other, and each of them is cut by itself (fused weights).
    Raises: TypeError, ValueError."""

    __slots__ = ("dim", "groups", "unit")

    def __init__(self, dim: int, *, unit: int = 1, groups: int = 1) -> None:
        for name, value in (("dim", dim), ("unit", unit), ("groups", groups)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Shard: {name} must be an int, not {type(value).__name__}")
        if unit < 1 or groups < 1:
            raise ValueError(f"Shard: unit and groups must be 1 or more, not {unit} and {groups}")
        if not -DIM_MAX <= dim < DIM_MAX:
            raise ValueError(f"Shard: there is no dimension {dim}")
        self.dim, self.unit, self.groups = dim, unit, groups

    def is_shard(self, dim: int | None = None) -> bool:
        return dim is None or dim == self.dim

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and (self.dim, self.unit, self.groups) == (other.dim, other.unit, other.groups)

    def __hash__(self) -> int:
        return hash((self.dim, self.unit, self.groups)) if self.unit > 1 or self.groups > 1 else hash(self.dim)

    def __repr__(self) -> str:
        more = "".join(f", {name}={value}" for name, value in (("unit", self.unit), ("groups", self.groups)) if value > 1)
        return f"Shard(dim={self.dim}{more})"

    def __str__(self) -> str:
        return f"S({self.dim})" if self.unit == self.groups == 1 else repr(self).replace("Shard(dim=", "S(")


class Replicate(Placement):
    """Every device of this mesh dimension has the whole value."""

    __slots__ = ()

    def is_replicate(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replicate)

    def __hash__(self) -> int:
        return -1

    def __repr__(self) -> str:
        return "Replicate()"

    def __str__(self) -> str:
        return "R"


class Partial(Placement):
    """The value is the sum (average, maximum, minimum) of the devices' parts, and has not been put together yet.

    Raises: ValueError (another reduction)."""

    __slots__ = ("reduce_op",)

    def __init__(self, reduce_op: str = "sum") -> None:
        if reduce_op not in REDUCTIONS:
            raise ValueError(f"Partial: the reduction is one of {', '.join(REDUCTIONS)}, not {reduce_op!r}")
        self.reduce_op = reduce_op

    def is_partial(self, reduce_op: str | None = None) -> bool:
        return reduce_op is None or reduce_op == self.reduce_op

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partial) and self.reduce_op == other.reduce_op

    def __hash__(self) -> int:
        return 1 + hash(self.reduce_op)

    def __repr__(self) -> str:
        return f"Partial({self.reduce_op})"

    def __str__(self) -> str:
        return f"P({self.reduce_op})"


def placement_of(value: Any) -> Placement:
    """A placement as it is, or one of torch.distributed.tensor as ours. Raises: TypeError."""
    if isinstance(value, Placement):
        return value
    kind = type(value).__name__
    if type(value).__module__.startswith("torch.distributed") and kind in ("Shard", "Replicate", "Partial"):
        if kind == "Replicate":
            return Replicate()
        return Shard(value.dim) if kind == "Shard" else Partial(value.reduce_op)
    raise TypeError(f"a placement is dtorch.Shard(dim), dtorch.Replicate() or dtorch.Partial(), not {value!r}")


def check(placements: Sequence[Any] | Placement | None, mesh_ndim: int, tensor_ndim: int) -> tuple[Placement, ...]:
    """Placements of a tensor of so many dimensions on a mesh of so many, one each; None: Replicate everywhere.

    Raises: TypeError (no placement), ValueError (too few or many, no such dimension, reductions that cannot be mixed)."""
    if placements is None:
        return (Replicate(),) * mesh_ndim
    given = [placements] if isinstance(placements, Placement) else list(placements)
    if len(given) != mesh_ndim:
        raise ValueError(f"a mesh of {mesh_ndim} dimensions needs as many placements, not {len(given)}: {given}")
    made = tuple(_inside(placement_of(value), tensor_ndim) for value in given)
    reductions = {p.reduce_op for p in made if isinstance(p, Partial)}
    if len(reductions) > 1 and reductions & {"max", "min"}:
        raise ValueError(f"Partial: {' and '.join(sorted(reductions))} cannot be mixed, since their order would matter")
    return made


def _inside(placement: Placement, tensor_ndim: int) -> Placement:
    if not isinstance(placement, Shard):
        return placement
    dim = placement.dim + tensor_ndim if placement.dim < 0 else placement.dim
    if not 0 <= dim < tensor_ndim:
        raise ValueError(f"{placement!r} of a tensor of {tensor_ndim} dimensions")
    return placement if dim == placement.dim else Shard(dim, unit=placement.unit, groups=placement.groups)


# ---- as the library takes them: four integers a placement: kind, dimension or reduction, unit, groups ----


def encode(placements: Sequence[Placement]) -> list[int]:
    """Numbers for the library. Shapes: (4 * placements,)."""
    numbers: list[int] = []
    for placement in placements:
        if isinstance(placement, Shard):
            numbers += [1, placement.dim, placement.unit, placement.groups]
        elif isinstance(placement, Partial):
            numbers += [2, REDUCTIONS.index(placement.reduce_op), 1, 1]
        else:
            numbers += [0, 0, 1, 1]
    return numbers


def decode(numbers: Sequence[int]) -> tuple[Placement, ...]:
    """The reverse of encode()."""
    made: list[Placement] = []
    for at in range(0, len(numbers), 4):
        kind, what, unit, groups = numbers[at:at + 4]
        made.append(Shard(what, unit=unit, groups=groups) if kind == 1 else Partial(REDUCTIONS[what]) if kind == 2
                    else Replicate())
    return tuple(made)
