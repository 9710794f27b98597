"""usage: device_opdb_mesh.py [--samples=N] [--ways=N] [--seed=S] [--part=K/N] [--seconds=S] [--whole] [--refused] [PART OF A NAME...]

PyTorch's own operator database on meshes against the CPU: each sample with its tensors in layouts drawn from the seed, on meshes
of 2, 3, 4 and 2x2 devices, even and uneven; forward and, where the entry has gradients, backward. Shapes, types and classes of
errors must be the same; values within a bound by type, since parts are added in another order than on one device.
Without --whole: the first samples (1) of each entry, each in so many layouts (1), for at most --seconds.
--refused tells which runs are refused by the CPU as well; one that only the mesh refuses is a failure.
What may differ, and why, is in opdb_exceptions.py."""

import itertools
import os
import random
import sys
from collections import Counter
from typing import Any

os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "4"

import torch  # noqa: E402  (the number of devices is read when the session begins)
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

import devicetest  # noqa: E402
import dtorch  # noqa: E402
from dtorch import DeviceMesh, Replicate, Shard  # noqa: E402
from opdb_exceptions import EXCEPTIONS  # noqa: E402

BOUNDS = {torch.float32: 2e-4, torch.complex64: 2e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}  # of the largest value
ROUNDINGS = 16  # times the CPU's own distance from the exact value


class Ways:
    """Draws meshes and layouts."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.mesh = self.rng.choice([DeviceMesh("cuda", [0, 1]), DeviceMesh("cuda", [0, 1, 2]), DeviceMesh("cuda", [0, 1, 2, 3]),
                                     DeviceMesh("cuda", [[0, 1], [2, 3]])])
        self.text = f"{list(self.mesh.shape)}:"

    def move(self, leaf: Any) -> Any:
        """One argument: a tensor goes to the mesh, now and then to one device."""
        if isinstance(leaf, torch.device):
            return self.mesh.device
        if isinstance(leaf, str) and leaf == "cpu":
            return "dtorch"
        if not isinstance(leaf, torch.Tensor):
            return leaf
        source = leaf.detach().clone()
        if self.rng.random() < 0.1:
            self.text += " one"
            return source.to("dtorch").requires_grad_(leaf.requires_grad)
        made = [Shard(self.rng.randrange(leaf.dim())) if leaf.dim() and self.rng.random() < 0.75 else Replicate()
                for _ in range(self.mesh.ndim)]
        self.text += " " + "".join(str(p) for p in made)
        return dtorch.distribute_tensor(source, self.mesh, made).requires_grad_(leaf.requires_grad)


def run(entry: Any, arguments: Any, process: Any) -> list[Any]:
    """Results, gradients, and the arguments afterwards: what was written in place shows there."""
    leaves = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.manual_seed(5)
    result = entry(arguments[0], *arguments[1], **arguments[2])
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if process is not None and outputs:
        outputs = [t for t in tree_leaves(process(result)) if isinstance(t, torch.Tensor) and t.requires_grad]
    gradients: Any = ()
    if outputs and leaves:
        gradients = torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True,
                                        materialize_grads=True)
    return [t.detach().cpu() if isinstance(t, torch.Tensor) else t for t in tree_leaves((result, gradients))]


def attempt(entry: Any, arguments: Any, process: Any) -> tuple[list[Any] | None, Exception | None]:
    try:
        return run(entry, arguments, process), None
    except Exception as error:  # noqa: BLE001  (compared with the CPU's)
        return None, error


def differs(want: Any, got: Any) -> str | None:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return None if devicetest.same_plain(want, got) or want == got else f"{got!r} for {want!r}"
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"{got.dtype} {tuple(got.shape)} for {want.dtype} {tuple(want.shape)}"
    if want.layout != torch.strided or torch.equal(devicetest.one_nan(want), devicetest.one_nan(got)):
        return None
    bound = BOUNDS.get(want.dtype, 1e-9)
    a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (want.resolve_conj(), got.resolve_conj()))
    scale = float(a.abs().nan_to_num(posinf=0, neginf=0).max())
    is_rounded = want.dtype.is_floating_point or want.dtype.is_complex
    if is_rounded and torch.allclose(a, b, rtol=bound, atol=bound * scale + (1e-6 if want.dtype in BOUNDS else 1e-12), equal_nan=True):
        return None
    return f"values of {want.dtype} {tuple(want.shape)}: {devicetest.how_far(want, got)}"


def widened(value: Any) -> Any:
    """Float32 as float64."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def is_rounding(entry: Any, given: Any, process: Any, want: list[Any], got: list[Any]) -> bool:
    """Whether float32 results on the mesh are about as near to float64's as the CPU's are: of a gradient that is zero but for
    rounding, nothing is left to compare with."""
    exact, _ = attempt(entry, tree_map(widened, devicetest.move(given, "cpu")), process)
    if exact is None or len(exact) != len(want) or not any(isinstance(t, torch.Tensor) and t.dtype == torch.float32 for t in want):
        return False
    for true, here, there in zip(exact, want, got):
        if differs(here, there) is None:
            continue
        if not (isinstance(there, torch.Tensor) and there.dtype == torch.float32 and here.shape == there.shape == true.shape):
            return False
        far_here, far_there = (float((t.double() - true).abs().max()) for t in (here, there))
        if not far_there <= ROUNDINGS * far_here:  # a NaN is no rounding
            return False
    return True


class Comparison:
    """Counts what ran, what was refused, and what was wrong."""

    def __init__(self, suite: devicetest.Suite, samples: int, ways: int, seed: str) -> None:
        self.suite, self.samples, self.ways, self.seed = suite, samples, ways, seed
        self.counts: Counter[str] = Counter()

    def entry(self, entry: Any, dtype: torch.dtype) -> None:
        name = entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else "")
        key = f"{name} {str(dtype).removeprefix('torch.')}"
        if (EXCEPTIONS.get(name) or EXCEPTIONS.get(key)) and not self.suite.only:
            self.suite.skipped += 1
            return
        self.suite.check(key, lambda: self.compare(entry, dtype, key))

    def compare(self, entry: Any, dtype: torch.dtype, key: str) -> None:
        grad = entry.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        torch.manual_seed(1)
        samples = entry.sample_inputs("cpu", dtype, requires_grad=grad)
        for index, sample in enumerate(itertools.islice(samples, self.samples or None)):
            if any(isinstance(t, torch.Tensor) and t.layout != torch.strided
                   for t in tree_leaves((sample.input, sample.args, sample.kwargs))):
                raise devicetest.Skip("sparse tensors are not supported on the device")
            for way in range(self.ways):
                ways = Ways(f"{self.seed} {key} {index} {way}")
                why = self.judge(entry, sample, ways)
                if why is not None:
                    raise AssertionError(f"sample {index}, {ways.text}: {why}")

    def judge(self, entry: Any, sample: Any, ways: Ways) -> str | None:
        """How one sample differs. Raises: Skip (the CPU's own result is another one each time)."""
        given = (sample.input, sample.args, sample.kwargs)
        want, refusal = attempt(entry, devicetest.move(given, "cpu"), sample.output_process_fn_grad)
        got, error = attempt(entry, tree_map(ways.move, given), sample.output_process_fn_grad)
        self.counts["ran" if error is None else "refused" if refusal is None else "refused as by the CPU"] += 1
        if refusal is not None:
            if "--refused" in sys.argv:
                print(f"  refused by both: {entry.name}: {devicetest.first_lines(refusal)[:160]}")
            return None if error is not None else f"does not refuse: {devicetest.first_lines(refusal)[:120]}"
        if error is not None:
            return f"{type(error).__name__}: {devicetest.first_lines(error)[:240]}"
        if want is None or got is None or len(want) != len(got):
            return "another number of results"
        why = next((w for w in map(differs, want, got) if w), None)
        if why is not None and is_rounding(entry, given, sample.output_process_fn_grad, want, got):
            self.counts["rounded"] += 1
            return None
        if why is not None:
            again, _ = attempt(entry, devicetest.move(given, "cpu"), sample.output_process_fn_grad)
            if any(differs(a, b) for a, b in zip(want, again or [])):
                raise devicetest.Skip("differs on the CPU from run to run")
        return why


# ---- in place ----

SHAPED = {"as_strided", "resize_", "transpose", "unsqueeze"}  # entries whose in-place form changes the shape, and so the layout


def in_place_forms_stay_where_they_are(entries: Any) -> None:
    """Whatever takes its tensors in parts does so in place, too: under strict() nothing may move."""
    mesh, at, moved = DeviceMesh("cuda", [0, 1]), [Shard(0)], []

    def put(value: Any) -> Any:
        return dtorch.distribute_tensor(value.detach(), mesh, at) if isinstance(value, torch.Tensor) else value

    def runs(function: Any, sample: Any) -> torch.Tensor | None:
        given, args, kwargs = put(sample.input), tree_map(put, sample.args), tree_map(put, sample.kwargs)
        try:
            with dtorch.strict():
                function(given, *args, **kwargs)
        except Exception:  # no row for parts, or none on the CPU: that is for others to judge
            return None
        return given

    for entry in entries:
        form = entry.get_inplace()
        sample = next((s for s in entry.sample_inputs("cpu", torch.float32) if is_even(s)), None) if form is not None else None
        if sample is None or entry.name in SHAPED or runs(entry.op, sample) is None:
            continue
        try:
            form(sample.input.clone(), *sample.args, **sample.kwargs)
        except RuntimeError:
            continue  # not in place on the CPU
        given = runs(form, sample)
        if given is None or given.placements != (Shard(0),):
            moved.append(entry.name)
    assert not moved, f"in place they move what they do not move otherwise: {moved}"


def is_even(sample: Any) -> bool:
    """Whether all its tensors have the shape of the first, and can be cut."""
    if not isinstance(sample.input, torch.Tensor) or sample.input.dim() < 1 or sample.input.size(0) < 2:
        return False
    others = [leaf for leaf in tree_leaves((sample.args, sample.kwargs)) if isinstance(leaf, torch.Tensor)]
    return all(leaf.shape == sample.input.shape for leaf in others)


def main() -> int:
    from torch.testing._internal.common_methods_invocations import op_db

    part, parts = map(int, devicetest.option("part", "0/1").split("/"))
    is_whole = "--whole" in sys.argv
    samples, ways = (0, 4) if is_whole else (int(devicetest.option("samples", "1")), int(devicetest.option("ways", "1")))
    suite = devicetest.Suite("device opdb mesh" + (f" {part}" if parts > 1 else ""), devicetest.arguments())
    comparison = Comparison(suite, samples, ways, devicetest.option("seed", "1"))
    planned = [(e, d) for d in (torch.float32, torch.int64) for i, e in enumerate(op_db)
               if i % parts == part and d in e.supported_dtypes("cpu")]
    if not is_whole:
        planned = random.Random(comparison.seed).sample(planned, len(planned))
    for entry, dtype in planned:
        if suite.is_over():
            break
        comparison.entry(entry, dtype)
    if part == 0:
        entries = [entry for entry in op_db if torch.float32 in entry.supported_dtypes("cpu")]
        suite.check("in-place forms stay where they are", lambda: in_place_forms_stay_where_they_are(entries))
    print(f"samples: {dict(comparison.counts)}")
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
