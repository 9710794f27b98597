"""usage: device_opdb.py [--samples=N] [--part=K/N] [--seconds=S] [--whole] [PART OF A NAME...]

PyTorch's own operator database on the device against the CPU, sample by sample: values, shapes, dtypes, strides and errors'
classes must be the same, forward and, in float32, backward. A second pass takes int64, bool, bfloat16 and complex64.
Without --whole: the first samples (5) of each entry, for at most --seconds.
What may differ, and why, is in opdb_exceptions.py."""

import itertools
import sys
from collections import Counter, defaultdict
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import devicetest
import dtorch  # noqa: F401
from devicetest import DEVICE
from opdb_exceptions import EXCEPTIONS

SECOND = (torch.int64, torch.bool, torch.bfloat16, torch.complex64)


AGAIN = 32  # runs on the CPU, before it is believed to be sure of its answer


class NotRepeatable(Exception):
    """Two runs on the CPU differ."""


def run(entry: Any, sample: Any, device: str) -> Any:
    """Results of one sample: those of the operator and, where its input requires grad, the gradients."""
    arguments = devicetest.move((sample.input, sample.args, sample.kwargs), device)
    leaves = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.manual_seed(5)
    result = entry(arguments[0], *arguments[1], **arguments[2])
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if sample.output_process_fn_grad is not None and outputs:
        outputs = [t for t in tree_leaves(sample.output_process_fn_grad(result)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not leaves:
        return result, []
    ones = [torch.ones_like(t) for t in outputs]
    return result, torch.autograd.grad(outputs, leaves, ones, allow_unused=True, materialize_grads=True)


def attempt(entry: Any, sample: Any, device: str) -> tuple[Any, Exception | None]:
    try:
        result = run(entry, sample, device)
        if device != "cpu":
            result = torch.utils._pytree.tree_map(lambda t: Fetched.of(t), result)
        return result, None
    except Exception as error:  # noqa: BLE001  (compared with the other device's)
        return None, error


class Fetched:
    """Results are compared on the CPU; their geometry is the device tensor's."""

    @staticmethod
    def of(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            devicetest.raw(leaf)  # an error that the values bring comes here
        return leaf


def classes(error: Exception) -> tuple[type, ...]:
    """PyTorch's classes of an error: DTorch's own derive from them."""
    return tuple(k for k in type(error).__mro__ if not k.__module__.startswith("dtorch"))


def stir(fill: int) -> None:
    """Leave small pieces of memory behind that hold other bytes than before. linalg.lstsq gives LAPACK's gelsy an array of pivots
    that PyTorch never writes: on the CPU itself one of several results comes out, by what memory held."""
    kept = [torch.full((size,), fill, dtype=torch.int32) for size in range(1, 9) for _ in range(64)]
    kept.clear()


def judge(entry: Any, sample: Any) -> str | None:
    """How the device differs from the CPU with one sample; None: in nothing. Raises: NotRepeatable, Skip (the CPU refuses)."""
    want, refusal = attempt(entry, sample, "cpu")
    got, error = attempt(entry, sample, DEVICE)
    if refusal is not None:
        if error is None:
            return f"does not refuse: {type(refusal).__name__}: {devicetest.first_lines(refusal)[:120]}"
        return None if classes(error)[0] in type(refusal).__mro__ or isinstance(refusal, RuntimeError) else (
            f"{type(error).__name__} for {type(refusal).__name__}: {devicetest.first_lines(error)[:160]}")
    if error is not None:
        return f"{type(error).__name__}: {devicetest.first_lines(error)[:240]}"
    why = next(devicetest.differences(want, got), None)
    if why is not None:
        for number in range(AGAIN):
            stir(number % 3)
            again, _ = attempt(entry, sample, "cpu")
            if next(devicetest.differences(want, again), None) is not None:
                raise NotRepeatable
    return why


class Pass:
    """One dtype of each entry."""

    def __init__(self, suite: devicetest.Suite, samples: int, is_first: bool) -> None:
        self.suite, self.samples, self.is_first = suite, samples, is_first
        self.failures: dict[str, list[str]] = defaultdict(list)
        self.reasons: Counter[str] = Counter()
        self.compared = 0

    def entry(self, entry: Any, dtype: torch.dtype, skip: int = 0) -> None:
        """Compare the samples of one entry from number `skip` on."""
        name = entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else "")
        key = f"{name} {str(dtype).removeprefix('torch.')}"
        reason = EXCEPTIONS.get(name) or EXCEPTIONS.get(key)
        if reason is not None and not self.suite.only:
            if skip == 0:
                self.reasons[reason] += 1
                self.suite.skipped += 1
            return
        self.suite.check(key, lambda: self.compare(entry, dtype, skip))

    def compare(self, entry: Any, dtype: torch.dtype, skip: int) -> None:
        grad = self.is_first and entry.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        torch.manual_seed(1)
        samples = entry.sample_inputs("cpu", dtype, requires_grad=grad)
        stop = None if self.samples == 0 else self.samples
        for index, sample in enumerate(itertools.islice(samples, stop)):
            if index < skip:
                continue
            try:
                why = judge(entry, sample)
            except NotRepeatable:
                raise devicetest.Skip("differs on the CPU from run to run") from None
            self.compared += 1
            if why is not None:
                raise AssertionError(f"sample {index}: {why}")


def plan(entries: list[Any]) -> list[tuple[Any, torch.dtype, bool]]:
    first = [(e, torch.float32, True) for e in entries if torch.float32 in e.supported_dtypes("cpu")]
    others = [(e, d, False) for e in entries for d in SECOND if d in e.supported_dtypes("cpu")]
    return first + others


def main() -> int:
    from torch.testing._internal.common_methods_invocations import op_db

    part, parts = map(int, devicetest.option("part", "0/1").split("/"))
    is_whole = "--whole" in sys.argv
    samples = 0 if is_whole else int(devicetest.option("samples", "5"))
    suite = devicetest.Suite("device opdb" + (f" {part}" if parts > 1 else ""), devicetest.arguments())
    entries = [e for i, e in enumerate(op_db) if i % parts == part]
    first, second = Pass(suite, samples, True), Pass(suite, samples, False)
    planned, begun = plan(entries), 0
    for entry, dtype, is_first in planned:
        if suite.is_over():
            break
        begun += 1
        (first if is_first else second).entry(entry, dtype)
    for reason, count in (first.reasons + second.reasons).most_common():
        print(f"exception, {count} entries: {reason}")
    print(f"{begun} of {len(planned)} entries and dtypes, {first.compared + second.compared} samples")
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
