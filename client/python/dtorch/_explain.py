"""dtorch.explain(): what a function's operators become, and why; and warnings of moves that are heavy for their step."""

import ctypes as c
import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from dtorch import _start
from dtorch.session import check

__all__ = ["Explanation", "Move", "MoveWarning", "Step", "explain"]

CELL_MAX = {"moved by": 88}  # characters of one cell of a printed table, 44 in other columns
_last = re.compile(r"\[[^\[]*\]$|on \d+$")


class MoveWarning(UserWarning):
    """One redistribution has moved more than MoveWarning= of client.conf(5) (in percent) of a step's bytes."""


@dataclasses.dataclass(frozen=True)
class Move:
    """A redistribution.

    tensor ("float32 (8, 4)"), source and target ("[Shard(0)]", "on 1"), algorithm ("reduce-scatter, all-gather"), line of the
    program. Units: bytes that the busiest device receives; planned_us is what it was priced at when it was chosen."""

    tensor: str
    source: str
    target: str
    algorithm: str
    bytes: int
    planned_us: float
    line: str

    def __str__(self) -> str:
        return f"{self.tensor} {self.source} to {self.target}: {self.algorithm}"


@dataclasses.dataclass(frozen=True)
class Step:
    """An operator as it runs, with what was moved for it before and behind.

    operator ("aten::mm"; "dtorch::redistribute": the program asked for it), rule of its placement with the row of each mesh
    dimension, inputs and outputs ("float32 (8, 4) [Shard(0)]; ..."), line of the program, mesh (its shape; empty: one device),
    moves. Units: bytes are those of all its tensors."""

    operator: str
    rule: str
    inputs: str
    outputs: str
    line: str
    mesh: tuple[int, ...]
    bytes: int
    moves: tuple[Move, ...]

    @property
    def moved_bytes(self) -> int:
        """Of all its moves."""
        return sum(move.bytes for move in self.moves)


class Explanation:
    """A table of steps, in the order in which they were issued: a sequence; printed, it is read.

    result: what the function returned. dropped: records for which there was no room."""

    def __init__(self, steps: list[Step], result: Any = None, dropped: int = 0) -> None:
        self.steps, self.result, self.dropped = steps, result, dropped

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: Any) -> Any:
        return self.steps[index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    @property
    def moves(self) -> list[Move]:
        """All redistributions, those that most bytes come by first."""
        return sorted((move for step in self.steps for move in step.moves), key=lambda move: -move.bytes)

    @property
    def moved_bytes(self) -> int:
        """Of all moves; each counted where the busiest device receives."""
        return sum(step.moved_bytes for step in self.steps)

    def __repr__(self) -> str:
        rows = [("line", "operator", "rule", "inputs", "outputs", "moved by", "bytes")]
        for step in self.steps:
            rows.append((step.line, step.operator, step.rule, step.inputs, step.outputs,
                         "; ".join(str(move) for move in step.moves), str(step.moved_bytes or "")))
        most = [CELL_MAX.get(name, 44) for name in rows[0]]
        cut = [[cell if len(cell) <= size else cell[:size - 1] + "…" for cell, size in zip(row, most)] for row in rows]
        kept = [k for k in range(len(cut[0])) if any(row[k] for row in cut[1:]) or k == 1]
        widths = {k: max(len(row[k]) for row in cut) for k in kept}
        lines = ["  ".join(row[k].ljust(widths[k]) for k in kept).rstrip() for row in cut]
        return "\n".join([*lines, f"{len(self.steps)} operators, {len(self.moves)} moves of {self.moved_bytes} bytes"])

    def svg(self) -> str:
        """A picture of the plan: a box for each operator by where its results lie, and before it what had to be moved, as broad as
        its bytes. Hovering shows the rest. A document of its own; write it to a file."""
        return _picture(self.steps)

    def _repr_svg_(self) -> str:
        return self.svg()


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Call a function and say what its operators became: rules, placements, what was moved, by which algorithm, at which line.

    The function runs as always; its result is in the table. Operators of other threads meanwhile are in it too. What an operator
    takes on its device `dtorchctl job explain-plan` tells.
    Raises: what `fn` raises; Error (within an explain() already)."""
    library = _start.library()
    check(library.explain_begin())
    text = c.c_char_p()
    try:
        result = fn(*args, **kwargs)
    finally:
        status = library.explain_end(c.byref(text))
    check(status)
    try:
        told = json.loads(text.value or b"{}")
    finally:
        library.explain_free(text)
    return Explanation(list(_steps(told)), result, told["dropped"])


def _steps(told: dict[str, Any]) -> Iterator[Step]:
    """One of each operator's record, with the moves of its group; moves of no group are steps of their own."""
    records, signatures = told["records"], told["signatures"]
    at = 0
    while at < len(records):
        end = at + 1
        while end < len(records) and records[at]["group"] and records[end]["group"] == records[at]["group"]:
            end += 1
        yield from _group([(record["line"], signatures[record["signature"]]) for record in records[at:end]])
        at = end


def _group(group: list[tuple[str, dict[str, Any]]]) -> Iterator[Step]:
    """What moves before an operator is for it; what moves behind the last one brings back what that wrote."""
    if all(is_["is_move"] for _, is_ in group):
        for line, is_ in group:
            yield _step(line, is_, [_move(line, is_)])
        return
    found: list[tuple[str, dict[str, Any], list[Move]]] = []
    waiting: list[Move] = []
    for line, is_ in group:
        if is_["is_move"]:
            waiting.append(_move(line, is_))
        else:
            found.append((line, is_, waiting))
            waiting = []
    found[-1][2].extend(waiting)
    for line, is_, moves in found:
        yield _step(line, is_, moves)


def _step(line: str, is_: dict[str, Any], moves: list[Move]) -> Step:
    return Step(is_["operator"], is_["rule"], is_["inputs"], is_["outputs"], line, tuple(is_["mesh"]), is_["bytes"], tuple(moves))


def _move(line: str, is_: dict[str, Any]) -> Move:
    source, target = _last.search(is_["inputs"]), _last.search(is_["outputs"])
    begin = source.start() if source else len(is_["inputs"])
    return Move(is_["inputs"][:begin].strip(), is_["inputs"][begin:], is_["outputs"][target.start():] if target else "",
                is_["algorithm"], is_["bytes"], is_["planned_ns"] / 1000, line)


# ---- a picture ----

ROW, WIDTH, BAR = 26, 980, 160
COLOURS = {"Shard": "#4878d0", "Partial": "#d65f5f", "Replicate": "#6acc64", "on": "#956cb4"}


def _colour(tensors: str) -> str:
    return next((colour for word, colour in COLOURS.items() if word in tensors), "#8c8c8c")


def _text(x: int, y: int, text: str, size: int = 12, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}"{more}>{escape(text)}</text>'


def _picture(steps: list[Step]) -> str:
    most = max((move.bytes for step in steps for move in step.moves), default=0) or 1
    parts, y = [], 44
    for word, colour in COLOURS.items():
        x = 10 + 120 * len(parts) // 2
        parts += [f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>', _text(x + 18, 18, word)]
    for step in steps:
        for move in step.moves:
            width = max(2, BAR * move.bytes // most)
            parts.append(f'<g><title>{escape(f"{move}, {move.bytes} bytes, {move.line}")}</title>'
                         f'<rect x="40" y="{y + 6}" width="{width}" height="12" fill="#ee854a"/>'
                         + _text(50 + BAR, y + 16, f"{move.algorithm}, {move.bytes} bytes: {move.source} to {move.target}", 11) + "</g>")
            y += ROW
        if step.operator != "dtorch::redistribute":
            about = "\n".join((step.rule, f"{step.inputs} -> {step.outputs}", step.line))
            parts.append(f"<g><title>{escape(about)}</title>"
                         f'<rect x="10" y="{y}" width="300" height="{ROW - 4}" rx="4" fill="{_colour(step.outputs)}"/>'
                         + _text(18, y + 15, step.operator, 12, ' fill="white"') + _text(320, y + 15, f"{step.outputs}   {step.line}", 11)
                         + "</g>")
            y += ROW
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 10}" font-family="sans-serif">'
            + "".join(parts) + "</svg>")


# ---- warnings ----

_place = re.compile(r"(.*):(\d+)(?: in (.*))?")


class _Heavy(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("bytes", c.c_uint64), ("step_bytes", c.c_uint64), ("line", c.c_char * 1024),
                ("what", c.c_char * 1600)]


def end_step() -> None:
    """Warn of the redistribution that moved most in the step that ends, if it was heavy; at the program's line."""
    library = _start.library()
    if not library.is_connected() or library.is_forked():
        return
    heavy = _Heavy(struct_size=c.sizeof(_Heavy))
    if check(library.heavy_move(c.byref(heavy))) == 0:
        return
    line = heavy.line.decode(errors="replace")
    text = (f"{heavy.what.decode(errors='replace')} brings {heavy.bytes} bytes to a device, "
            f"{100 * heavy.bytes // max(1, heavy.step_bytes)} % of what the step's operators take and give"
            + (f", at {line}" if line else "") + "; dtorch.explain() shows why (MoveWarning= of client.conf(5) sets the share)")
    at = _place.fullmatch(line)
    warnings.warn_explicit(text, MoveWarning, at[1] if at else "<program>", int(at[2]) if at else 1)


def install() -> None:
    """A step ends with an optimizer's."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: end_step())
