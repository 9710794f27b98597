"""Values that are on their way."""

import asyncio
from collections.abc import Generator
from typing import Any

import torch

from dtorch import errors


class TensorFuture:
    """The value of a tensor as it was when dtorch.fetch() was called; later in-place operators do not change it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._value: torch.Tensor | None = None
        self._number: int | None = None
        if tensor.device.type == "dtorch":
            with torch.no_grad():
                self._number = torch.ops.dtorch.fetch_start(tensor.detach())
        else:
            self._value = tensor.detach().cpu()

    def done(self) -> bool:
        """Whether result() would return, or raise, at once."""
        return self._number is None or torch.ops.dtorch.fetch_done(self._number)

    def result(self, timeout: float | None = None) -> torch.Tensor:
        """Wait for the value, on the CPU.

        Units: timeout in seconds, None: no limit.
        Raises: WaitTimeout, which is a TimeoutError (not yet: ask again), the OperatorError of the operator that failed,
        KeyboardInterrupt (ask again)."""
        if self._value is None:
            milliseconds = -1 if timeout is None else max(0, round(timeout * 1000))
            if not torch.ops.dtorch.fetch_wait(self._number, milliseconds):
                raise errors.WaitTimeout(f"the value is not here after {timeout} s")
            self._value = torch.ops.dtorch.fetch_take(self._number)
            self._number = None
        return self._value

    def __await__(self) -> Generator[Any, None, torch.Tensor]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self.result).__await__()

    def __del__(self) -> None:
        number, self._number = getattr(self, "_number", None), None
        if number is not None:
            torch.ops.dtorch.fetch_drop(number)

    def __repr__(self) -> str:
        return f"<TensorFuture: {'done' if self.done() else 'on its way'}>"


def fetch(tensor: torch.Tensor) -> TensorFuture:
    """Ask for a tensor's value without waiting for it.

    Shapes: any; the value is contiguous, without autograd history. A tensor that is not on the device is copied at once."""
    return TensorFuture(tensor)
