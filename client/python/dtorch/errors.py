"""What goes wrong, as exceptions: each is DTorch's class, and PyTorch's where PyTorch has one for it.

An operator's error surfaces where a value is asked for, perhaps long after the operator was issued: the exception names the
line that issued it. Errors that shapes alone show are raised at that line at once, by PyTorch's own classes.
"""

import ctypes as c
from typing import Any

import torch

from dtorch import _native

__all__ = ["BegunError", "DeniedError", "Error", "ForkedError", "LostError", "MetadataError", "OperatorError", "OperatorIndexError",
           "OperatorLinAlgError", "OperatorNotImplementedError", "OperatorOutOfMemoryError", "OperatorTypeError",
           "OperatorValueError", "UnreachableError", "WaitTimeout"]


class Error(RuntimeError):
    """Anything that DTorch itself has to say."""


class OperatorError(Error):
    """An operator failed on its device; everything computed from its results is refused with the same error.

    Attributes: operator ("aten::mm"), inputs ("float32 (4, 3), int64 (2,)"), place ("train.py:57 in loss", "" if unknown), node,
    device (index within the node), vdev (index of the PyTorch device), ranges (names of the open profiler ranges, outermost
    first), skipped (operators not run because of it so far), reason (PyTorch's own words)."""

    operator: str = ""
    inputs: str = ""
    place: str = ""
    node: str = ""
    device: int = 0
    vdev: int = 0
    ranges: tuple[str, ...] = ()
    skipped: int = 0
    reason: str = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.reason = text
        failure = _last_failure()
        if failure is not None and text.startswith(_text(failure.text)):  # it may be an earlier one, of another operator
            self._describe(failure)

    def _describe(self, failure: _native.Failure) -> None:
        self.reason = _text(failure.text) or self.reason
        self.operator, self.inputs = _text(failure.operator_name), _text(failure.inputs)
        self.place, self.node = _text(failure.place), _text(failure.node)
        self.device, self.vdev, self.skipped = failure.device, failure.vdev, failure.skipped
        self.ranges = tuple(_text(failure.range[i]) for i in range(failure.range_count))
        self.args = (_sentence(self),)


class OperatorIndexError(OperatorError, IndexError):
    """An index out of range, as PyTorch's IndexError."""


class OperatorValueError(OperatorError, ValueError):
    """As PyTorch's ValueError."""


class OperatorTypeError(OperatorError, TypeError):
    """As PyTorch's TypeError."""


class OperatorNotImplementedError(OperatorError, NotImplementedError):
    """The engine's PyTorch has no such kernel."""


class OperatorLinAlgError(OperatorError, torch.linalg.LinAlgError):
    """As torch.linalg.LinAlgError: singular, not positive definite, not converged."""


class OperatorOutOfMemoryError(OperatorError, torch.OutOfMemoryError):
    """The session's memory on the device is used up, as torch.OutOfMemoryError. What is freed can be used again."""


class MetadataError(OperatorError):
    """An operator's result has another shape, type or stride than was foreseen: a fault of DTorch, please report it."""


class BegunError(Error):
    """What can be said only before the device is first used, as how many devices there are: the text says where. A session that
    has begun keeps its number of devices; after dtorch.disconnect() another one may have more."""


class LostError(Error):
    """The cluster has lost what this needs: a node, an engine, or the whole session. The session goes on unless all is lost."""


class UnreachableError(Error, ConnectionError):
    """Nobody answers, or no device is free."""


class DeniedError(Error, PermissionError):
    """The cluster refuses this program."""


class WaitTimeout(Error, TimeoutError):
    """Waiting took longer than was allowed; what was waited for goes on."""


class ForkedError(Error):
    """The device was used in a child process that was forked after its first use: use multiprocessing's "spawn"."""


# By the library's names of kinds and statuses (dtorch_device.h).
KINDS: dict[str, type[BaseException]] = {
    "": OperatorError, "RuntimeError": OperatorError, "IndexError": OperatorIndexError, "ValueError": OperatorValueError,
    "TypeError": OperatorTypeError, "NotImplementedError": OperatorNotImplementedError, "LinAlgError": OperatorLinAlgError,
    "OutOfMemoryError": OperatorOutOfMemoryError, "MetadataError": MetadataError, "WorkerLost": LostError,
    "EngineLost": LostError, "Forked": ForkedError, "DT_ERR_LOST": LostError, "DT_ERR_AGAIN": UnreachableError,
    "DT_ERR_EXISTS": BegunError, "DT_ERR_PEER": UnreachableError, "DT_ERR_NOT_FOUND": UnreachableError, "DT_ERR_DENIED": DeniedError,
    "DT_ERR_TIMEOUT": WaitTimeout, "DT_ERR_STOPPED": ForkedError,
}
BY_STATUS = {-2: Error, -3: UnreachableError, -4: BegunError, -5: UnreachableError, -6: WaitTimeout, -7: DeniedError, -9: UnreachableError,
             -11: LostError}
_library: _native.Library | None = None


def install(library: _native.Library) -> None:
    """Have the library raise these classes, and ask it for the rest of what it knows of an error."""
    global _library
    _library = library
    for kind, exception in KINDS.items():
        library.exception(kind.encode(), exception)


def from_status(status: int, text: str) -> Error:
    """The exception for a status of the library that no operator has caused."""
    if _library is not None and _library.is_forked():
        return ForkedError(text)
    return BY_STATUS.get(status, Error)(text)


def last_failure() -> Error | None:
    """The last error of an operator that was noticed on this thread; None if there was none."""
    failure = _last_failure()
    if failure is None:
        return None
    return KINDS.get(_text(failure.kind), OperatorError)(_text(failure.text))


def _last_failure() -> _native.Failure | None:
    failure = _native.Failure(struct_size=c.sizeof(_native.Failure))
    if _library is None or _library.failure(c.byref(failure)) != 0:
        return None
    return failure


def _text(raw: Any) -> str:
    return bytes(getattr(raw, "value", raw)).decode(errors="replace")


def _sentence(error: OperatorError) -> str:
    lines = [error.reason]
    if error.operator:
        lines.append(f"operator: {error.operator}({error.inputs})")
    if error.place:
        lines.append(f"issued at: {error.place}")
    if error.ranges:
        lines.append("within: " + " / ".join(error.ranges))
    if error.node:
        lines.append(f"device: dtorch:{error.vdev}, which is device {error.device} of node {error.node}")
    if error.skipped:
        lines.append(f"not run because of it: {error.skipped} operators")
    return "\n  ".join(lines)
