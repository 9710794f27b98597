"""dtorch.plot_mesh(): which device holds what of a tensor, as text and as a picture."""

import itertools
from collections.abc import Sequence
from html import escape
from typing import Any

import torch

from dtorch._sharded import layout_of
from dtorch.mesh import DeviceMesh
from dtorch.placements import Partial, Placement, Shard

__all__ = ["MeshPicture", "plot_mesh"]

Intervals = tuple[tuple[int, int], ...]  # of one dimension: [begin, end) each, in rising order
COLOURS = ("#4878d0", "#ee854a", "#6acc64", "#d65f5f", "#956cb4", "#8c613c", "#dc7ec0", "#797979")


class MeshPicture:
    """Where the parts of a tensor are.

    mesh (None: one device), placements, shape. parts: by device the intervals of each dimension that it holds; empty ones are ()."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        now = layout_of(tensor)
        self.mesh: DeviceMesh | None = now[0] if now else None
        self.placements: tuple[Placement, ...] = now[1] if now else ()
        self.device = str(tensor.device)
        self.parts: dict[int, tuple[Intervals, ...]] = {}
        if self.mesh is None:
            self.parts[tensor.device.index or 0] = tuple(((0, size),) for size in self.shape)
            return
        places = itertools.product(*(range(size) for size in self.mesh.shape))
        for device, at in zip(self.mesh.mesh.flatten().tolist(), places):
            self.parts[device] = part_of(self.shape, self.mesh.shape, self.placements, at)

    def _words(self, device: int) -> str:
        cells = []
        for size, intervals in zip(self.shape, self.parts[device]):
            whole = intervals == ((0, size),)
            cells.append(":" if whole else "+".join(f"{begin}:{end}" for begin, end in intervals) or "none")
        summand = "".join(f" {p}" for p in self.placements if isinstance(p, Partial))
        return f"dtorch:{device} [{', '.join(cells)}]{summand}"

    def __repr__(self) -> str:
        if self.mesh is None:
            return f"{self.dtype} {self.shape} on {self.device}, the whole of it"
        columns = self.mesh.shape[-1]
        words = [self._words(device) for device in self.parts]
        width = max(len(word) for word in words)
        names = self.mesh.mesh_dim_names or tuple(str(d) for d in range(self.mesh.ndim))
        head = (f"{self.dtype} {self.shape} on "
                + ", ".join(f"{n}={s}: {p!r}" for n, s, p in zip(names, self.mesh.shape, self.placements)))
        rows = ["  ".join(word.ljust(width) for word in words[at:at + columns]).rstrip() for at in range(0, len(words), columns)]
        return "\n".join([head, *rows])

    def svg(self) -> str:
        """A picture: the tensor once for each device, what it holds filled; dimensions behind the second are left out. Parts that
        are the same have the same colour. A document of its own; write it to a file."""
        wide, high, gap = 120, 80, 40
        columns = self.mesh.shape[-1] if self.mesh else 1
        seen: dict[Any, str] = {}
        drawn = []
        for k, (device, part) in enumerate(self.parts.items()):
            x, y = 20 + (k % columns) * (wide + gap), 40 + (k // columns) * (high + gap)
            colour = seen.setdefault(part, COLOURS[len(seen) % len(COLOURS)])
            drawn.append(f"<g><title>{escape(self._words(device))}</title>"
                         f'<text x="{x}" y="{y - 6}" font-size="12">dtorch:{device}</text>'
                         f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="none" stroke="#444"/>')
            for (top, bottom), (left, right) in itertools.product(self._spans(part, 0), self._spans(part, 1)):
                drawn.append(f'<rect x="{x + left * wide:.1f}" y="{y + top * high:.1f}" width="{(right - left) * wide:.1f}" '
                             f'height="{(bottom - top) * high:.1f}" fill="{colour}"/>')
            drawn.append("</g>")
        rows = -(-len(self.parts) // columns)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{40 + columns * (wide + gap)}" height="{40 + rows * (high + gap)}" '
                'font-family="sans-serif">' + "".join(drawn) + "</svg>")

    def _repr_svg_(self) -> str:
        return self.svg()

    def _spans(self, part: tuple[Intervals, ...], dim: int) -> list[tuple[float, float]]:
        """As shares of the dimension; a tensor of fewer dimensions fills it."""
        if dim >= len(part):
            return [] if any(not intervals for intervals in part) else [(0.0, 1.0)]
        return [(begin / self.shape[dim], end / self.shape[dim]) for begin, end in part[dim]]


def plot_mesh(tensor: torch.Tensor) -> MeshPicture:
    """Which device holds what of a tensor. Printed it is text in the mesh's shape; `.svg()` is a picture, and notebooks show that.

    No value is asked for. A slice that stayed where its rows are (docs/python.md) is drawn as the Shard that it shows as."""
    return MeshPicture(tensor)


def part_of(shape: Sequence[int], mesh_shape: Sequence[int], placements: Sequence[Placement],
            at: Sequence[int]) -> tuple[Intervals, ...]:
    """What the device at a place of the mesh holds, by the rule of lib/shard/layout.h: each mesh dimension cuts what is left again,
    as torch.chunk() does, at multiples of the unit, and each group alike."""
    parts = []
    for dim, size in enumerate(shape):
        cuts = [(count, place, p) for count, place, p in zip(mesh_shape, at, placements) if isinstance(p, Shard) and p.dim == dim]
        groups = cuts[0][2].groups if cuts else 1
        begin, end = 0, size // groups
        for count, place, p in cuts:
            units = -(-(end - begin) // p.unit)
            step = -(-units // count) * p.unit
            begin, end = min(begin + place * step, end), min(begin + (place + 1) * step, end)
        run = size // groups
        parts.append(tuple((g * run + begin, g * run + end) for g in range(groups)) if end > begin else ())
    return tuple(parts)
