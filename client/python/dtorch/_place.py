"""The program's line that issues an operator, as people read it: "train.py:57 in loss".

The library reads the interpreter's frames itself, for each operator, and comes here once for each place."""

import _thread
import ctypes as c
import os
import types
from typing import Any

import torch

from dtorch import _native

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HEADER = types.CodeType.__basicsize__
_kept: dict[int, types.CodeType] = {}


def describe(code: types.CodeType, instruction: int) -> str | None:
    """The place of the instruction at an address within a code object; None if it is not the program's own: PyTorch's, or ours."""
    name = code.co_filename
    if name.startswith((_TORCH, _HERE, "<frozen")):
        return None
    return f"{_short(name)}:{_line(code, instruction - id(code) - _HEADER)} in {code.co_name}"


def _line(code: types.CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


def _short(name: str) -> str:
    """Relative to the current folder where it is below it."""
    try:
        relative = os.path.relpath(name)
    except (OSError, ValueError):
        return name
    return name if relative.startswith("..") else relative


@_native.RESOLVE
def resolve(code: types.CodeType, instruction: int, place: int, size: int) -> int:
    """What the library calls: see dt_device_python_t.resolve."""
    try:
        _kept[id(code)] = code
        text = describe(code, instruction)
        if text is None:
            return 0
        raw = text.encode(errors="replace")[: size - 1] + b"\0"
        c.memmove(place, raw, len(raw))
        return 1
    except KeyboardInterrupt:  # it would be lost here: it comes again where the program can take it
        _thread.interrupt_main()
        return 0
    except Exception:  # noqa: BLE001  (called from C: no one could take it)
        return 0


def probe(library: _native.Library) -> bool:
    """Whether the library can read this interpreter's frames: asked from a line that is known. It stops reading them if not."""
    scope: dict[str, Any] = {}
    exec(compile("def here(ask, *to):\n    return ask(*to)", "<dtorch>", "exec"), scope)
    buffer = c.create_string_buffer(1024)
    return scope["here"](library.here, buffer, len(buffer)) == 1 and buffer.value == b"<dtorch>:2 in here"
