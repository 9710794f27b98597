"""What the tests of the PyTorch device share: running named checks, comparing a device tensor with a CPU one, the last line.

A file of tests makes a Suite, adds checks and ends with `sys.exit(suite.finish())`. A check is a function; it fails by an
exception or by returning False, and is left out by raising Skip with the reason."""

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "dtorch"
LIMIT_S = int(os.environ.get("DT_TEST_CHECK_S", "900"))  # of one check


class Skip(Exception):
    """This check cannot be made here, with the reason."""


class Overdue(BaseException):
    """A check took longer than LIMIT_S."""


def ring(*_: Any) -> None:
    raise Overdue(f"takes longer than {LIMIT_S} s")


class Suite:
    """Runs checks one by one, says how each went if that was not well, counts."""

    def __init__(self, name: str, only: list[str] | None = None) -> None:
        self.name, self.only = name, only or []
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.start = time.monotonic()
        self.shown = self.start
        self.seconds = float(option("seconds", "1e9"))
        signal.signal(signal.SIGALRM, ring)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")

    def check(self, what: str, function: Callable[[], Any], limit_s: int = LIMIT_S) -> bool:
        """Run one check; returns whether it passed."""
        if self.only and not any(part in what for part in self.only):
            return True
        signal.alarm(limit_s)
        try:
            result = function()
            signal.alarm(0)
            if result is False:
                raise AssertionError("is not so")
        except Skip as reason:
            self.skipped += 1
            print(f"skipped: {what}: {reason}", flush=True)
            return True
        except (Exception, Overdue) as error:
            self.failed += 1
            print(f"FAILED: {what}: {type(error).__name__}: {first_lines(error)}{where(error)}", flush=True)
            return False
        finally:
            signal.alarm(0)
            self.progress()
        self.passed += 1
        return True

    def is_over(self) -> bool:
        """Whether --seconds have passed: what takes checks from a long list stops then."""
        return time.monotonic() - self.start > self.seconds

    def progress(self) -> None:
        """A line each ten seconds."""
        now = time.monotonic()
        if now - self.shown > 10:
            self.shown = now
            print(f"{self.name}: {self.passed} passed, {self.failed} failed so far ({now - self.start:.0f} s)", flush=True)

    def finish(self) -> int:
        """Say the tier's line; returns the exit status."""
        print(f"took {time.monotonic() - self.start:.0f} s")
        print(f"{self.name}: {self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 1 if self.failed or self.passed == 0 else 0


def first_lines(error: BaseException) -> str:
    return " | ".join(str(error).strip().split("\n")[:4])[:400]


def where(error: BaseException) -> str:
    """The line of the test that the error came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if os.sep + "tests" + os.sep in f.filename]
    return f"  ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""


def becomes(is_so: Callable[[], Any]) -> bool:
    """Wait until something is so: what was issued is not executed yet, and threads of PyTorch's let go of tensors when they come to
    it. Returns whether it is, once LIMIT_S are over."""
    until = time.monotonic() + LIMIT_S / 2
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(is_so())


def move(tree: Any, device: str) -> Any:
    """The same tree of arguments on a device: each tensor a leaf of its own, requires_grad kept."""
    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            copy = leaf.detach().clone(memory_format=torch.preserve_format)
            return copy.to(device).requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.device):
            return torch.device(device)
        return device if isinstance(leaf, str) and leaf == "cpu" else leaf
    return tree_map(one, tree)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's values. Shapes: any; the result is (bytes,)."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0, dtype=torch.uint8)


def difference(want: torch.Tensor, got: torch.Tensor) -> str | None:
    """How a tensor on the device differs from the CPU's, None if in nothing: shape, dtype, layout, strides, every bit of every
    value (one NaN is as good as another)."""
    if want.layout != got.layout:
        return f"layout {got.layout} for {want.layout}"
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"{got.dtype} {tuple(got.shape)} for {want.dtype} {tuple(want.shape)}"
    if want.layout != torch.strided:
        return None
    if want.stride() != got.stride() and want.numel() > 0:
        return f"strides {got.stride()} for {want.stride()} of shape {tuple(want.shape)}"
    if want.requires_grad != got.requires_grad:
        return f"requires_grad {got.requires_grad} for {want.requires_grad}"
    if torch.equal(raw(want), raw(got)) or torch.equal(one_nan(want), one_nan(got.detach().cpu())):
        return None
    return f"values of {want.dtype} {tuple(want.shape)}: {how_far(want, got)}"


def one_nan(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes with every NaN the same."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point():
        return raw(tensor)
    return raw(torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor) if tensor.dtype.itemsize > 1
               else tensor)


def how_far(want: torch.Tensor, got: torch.Tensor) -> str:
    a, b = want.detach().cpu(), got.detach().cpu()
    if not (a.is_floating_point() or a.is_complex()):
        return f"{int((a != b).sum())} of {a.numel()} differ"
    kind = torch.complex128 if a.is_complex() else torch.float64
    return f"{int((a != b).sum())} of {a.numel()} differ, at most by {float((a.to(kind) - b.to(kind)).abs().nan_to_num().max()):.3g}"


def differences(want: Any, got: Any) -> Iterator[str]:
    """How trees of results differ."""
    a, b = tree_leaves(want), tree_leaves(got)
    if len(a) != len(b):
        yield f"{len(b)} results for {len(a)}"
        return
    for index, (x, y) in enumerate(zip(a, b)):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            why = difference(x, y)
        else:
            why = None if same_plain(x, y) else f"{y!r} for {x!r}"
        if why:
            yield f"result {index}: {why}"


def same_plain(x: Any, y: Any) -> bool:
    if isinstance(x, torch.device):
        return isinstance(y, torch.device)
    return type(x) is type(y) and (x == y or x != x)


def expect_same(want: Any, got: Any) -> None:
    """Raises: AssertionError with the first difference."""
    for why in differences(want, got):
        raise AssertionError(why)


def both(program: Callable[[str], Any], seed: int = 0) -> None:
    """Run a program of one argument, the device's name, on the CPU and on the device, from the same seed; compare what it returns.

    Raises: AssertionError."""
    torch.manual_seed(seed)
    want = program("cpu")
    torch.manual_seed(seed)
    expect_same(want, program(DEVICE))


def option(name: str, default: str) -> str:
    """The value of --name=VALUE on the command line."""
    return next((word.partition("=")[2] for word in sys.argv[1:] if word.startswith(f"--{name}=")), default)


def arguments() -> list[str]:
    """Words on the command line: parts of names of the checks to run."""
    return [word for word in sys.argv[1:] if not word.startswith("-")]
