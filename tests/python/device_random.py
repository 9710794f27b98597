"""usage: device_random.py [--seed=FIRST] [--count=N] [--steps=N] [--verbose]

Random programs on the device against the CPU, bit for bit, from seeds: views, in-place writes through views, slices assigned,
masks, sizes that depend on values, branches on values, autograd through all of it. A failure prints its seed and the program up
to the step that differs."""

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

import devicetest
import dtorch  # noqa: F401
from devicetest import DEVICE, difference

Step = Callable[[list[torch.Tensor]], Any]
MOST = 4096  # elements of one tensor


class Maker:
    """Chooses the steps of one program. Both devices are given the same steps; only metadata and values decide what comes next."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.text: list[str] = []

    def shape(self) -> list[int]:
        return [self.rng.choice((0, 1, 2, 3, 4, 5)) if self.rng.random() < 0.1 else self.rng.randint(1, 5)
                for _ in range(self.rng.randint(0, 4))]

    def view(self, t: torch.Tensor) -> tuple[str, Step]:
        """A view of a tensor, by its number in the list."""
        rng, n = self.rng, t.dim()
        ways: list[tuple[str, Step]] = [("detach()", lambda x: x.detach()), ("unsqueeze(0)", lambda x: x.unsqueeze(0)),
                                        ("T", lambda x: x.permute(list(reversed(range(x.dim())))))]
        if n:
            d = rng.randrange(n)
            size = t.shape[d]
            ways += [(f"unsqueeze(-1)[..., 0] {d}", lambda x: x.unsqueeze(-1)[..., 0]), (f"movedim({d},0)", lambda x: x.movedim(d, 0)),
                     ("expand", lambda x: x.expand(2, *x.shape))]
            if size > 0:
                i, start = rng.randrange(size), rng.randrange(size)
                length, step = rng.randint(0, size - start), rng.randint(1, 3)
                ways += [(f"select({d},{i})", lambda x: x.select(d, i)), (f"narrow({d},{start},{length})", lambda x: x.narrow(d, start, length)),
                         (f"slice({d},{start},::{step})", lambda x: x[(slice(None),) * d + (slice(start, None, step),)]),
                         (f"chunk({d})", lambda x: x.detach().chunk(2, d)[-1]), (f"unfold({d})", lambda x: x.unfold(d, 1 + i % size, 1)),
                         (f"tensor_split({d})", lambda x: x.detach().tensor_split(2, d)[0])]
            if n > 1:
                e = rng.randrange(n)
                ways += [(f"transpose({d},{e})", lambda x: x.transpose(d, e)), (f"diagonal {d},{e}", lambda x: x.diagonal(0, d, e) if d != e else x)]
            if t.is_contiguous():
                ways += [("view(-1)", lambda x: x.view(-1)), ("flatten(0)", lambda x: x.flatten())]
        ways.append(("squeeze()", lambda x: x.squeeze()))
        return rng.choice(ways)

    def fresh(self, t: torch.Tensor) -> tuple[str, Step]:
        """A new tensor from one."""
        rng, n = self.rng, t.dim()
        number = rng.choice((0.5, 2, -1, 3.25))
        ways: list[tuple[str, Step]] = [
            (f"add({number})", lambda x: x + number), (f"mul({number})", lambda x: x * number), ("sin", torch.sin), ("neg", torch.neg),
            ("relu", torch.relu), ("clone", torch.clone), ("sum()", lambda x: x.sum()), ("contiguous", lambda x: x.contiguous()),
            ("where", lambda x: torch.where(x > 0, x, -x)), ("mean", lambda x: x.mean()), ("complex", lambda x: x.to(torch.complex128).real.to(x.dtype)),
            ("reshape", lambda x: x.reshape(-1)), ("tanh", torch.tanh), ("x*x", lambda x: x * x), ("rsub", lambda x: 1 - x),
            ("sigmoid", torch.sigmoid), ("abs", torch.abs), ("clamp", lambda x: x.clamp(-1, 1)), ("flip", lambda x: x.flip(list(range(n))))]
        if n:
            d = rng.randrange(n)
            keep = rng.random() < 0.5
            ways += [(f"sum({d})", lambda x: x.sum(d, keepdim=keep)), (f"softmax({d})", lambda x: x.softmax(d)), (f"cumsum({d})", lambda x: x.cumsum(d)),
                     (f"cat({d})", lambda x: torch.cat([x, x], d)), (f"stack({d})", lambda x: torch.stack([x, x + 1], d)),
                     (f"roll({d})", lambda x: x.roll(1, d)), (f"repeat_interleave({d})", lambda x: x.repeat_interleave(2, d))]
            if t.shape[d]:
                index = [rng.randrange(t.shape[d]) for _ in range(rng.randint(1, 3))]
                ways += [(f"index_select({d},{index})", lambda x: x.index_select(d, torch.tensor(index, device=x.device))),
                         (f"max({d})", lambda x: x.max(d).values), (f"sort({d})", lambda x: x.sort(d).values), (f"amax({d})", lambda x: x.amax(d)),
                         (f"[{index}]", lambda x: x.movedim(d, 0)[torch.tensor(index, device=x.device)])]
        if n >= 2 and t.shape[-1] and t.shape[-2]:
            ways += [("x@xT", lambda x: x @ x.mT), ("norm", lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))]
        return rng.choice(ways)

    def dynamic(self) -> tuple[str, Step]:
        """A new tensor whose size depends on values."""
        return self.rng.choice([
            ("x[x>0]", lambda x: x[x > 0.0137]), ("masked_select", lambda x: x.masked_select(x < 0.4871)),
            ("unique", lambda x: torch.unique((x.detach() * 2.1).round())), ("nonzero", lambda x: (x.detach().abs() > 0.0137).nonzero().to(x.dtype)),
            ("argwhere", lambda x: torch.argwhere(x.detach() > 0.0137).sum().to(x.dtype)), ("x[nonzero]", lambda x: x.reshape(-1)[x.detach().reshape(-1).gt(0.0137).nonzero()[:, 0]])])

    def write(self, t: torch.Tensor) -> tuple[str, Step]:
        """A write into a tensor, which may be a view."""
        rng, n = self.rng, t.dim()
        number = rng.choice((0.5, 2.0, -1.5))
        ways: list[tuple[str, Step]] = [
            (f"add_({number})", lambda x: x.add_(number)), (f"mul_({number})", lambda x: x.mul_(number)), ("sin_", lambda x: x.sin_()),
            (f"fill_({number})", lambda x: x.fill_(number)), ("copy_(neg)", lambda x: x.copy_(-x.detach())), ("zero_", lambda x: x.zero_()),
            ("masked_fill_", lambda x: x.masked_fill_(x.detach() > 0.7, 0.25)), ("clamp_", lambda x: x.clamp_(-2, 2)),
            (f"[x<0]={number}", lambda x: x.__setitem__(x.detach() < 0.0137, number)), ("[...]+=1", lambda x: x.__setitem__(..., x.detach() + 1)),
            (f"[:]={number}", lambda x: x.__setitem__(..., number))]
        if n and t.shape[0]:
            i = rng.randrange(t.shape[0])
            ways += [(f"[{i}]={number}", lambda x: x.__setitem__(i, number)), (f"[{i}:]*=", lambda x: x[i:].mul_(1.25)),
                     (f"[::2]", lambda x: x.__setitem__(slice(None, None, 2), x.detach()[::2] - 1)),
                     (f"index_fill_ {i}", lambda x: x.index_fill_(0, torch.tensor([i], device=x.device), number)),
                     (f"[tensor {i}]", lambda x: x.__setitem__(torch.tensor([i], device=x.device), x.detach()[i] * 2))]
        return rng.choice(ways)


def is_expanded(t: torch.Tensor) -> bool:
    """Whether elements share memory: writing there is refused."""
    return any(stride == 0 and size > 1 for stride, size in zip(t.stride(), t.shape)) or t.numel() == 0 or overlaps(t)


def overlaps(t: torch.Tensor) -> bool:
    places = torch.arange(max(1, t.untyped_storage().nbytes() // t.element_size()))
    seen = places.as_strided(t.shape, t.stride(), t.storage_offset()).reshape(-1)
    return seen.unique().numel() != seen.numel()


class Program:
    """One program on both devices, step by step."""

    dtype = torch.float32

    def __init__(self, seed: int) -> None:
        self.maker = Maker(seed)
        torch.manual_seed(seed)
        self.here: list[torch.Tensor] = []
        self.there: list[torch.Tensor] = []
        for _ in range(3):
            value = torch.randn(self.maker.shape(), dtype=self.dtype)
            needs = self.maker.rng.random() < 0.5
            self.here.append(value.clone().requires_grad_(needs))
            self.maker.text.append(f"t{len(self.here) - 1} = randn({tuple(value.shape)}, requires_grad={needs})")
            self.there.append(self.bring(value).requires_grad_(needs))
        self.leaves = [i for i, t in enumerate(self.here) if t.requires_grad]

    def bring(self, value: torch.Tensor) -> torch.Tensor:
        """A value of the CPU's on the device."""
        return value.to(DEVICE)

    def differs(self, want: torch.Tensor, got: torch.Tensor) -> str | None:
        """How the device's tensor differs from the CPU's; None: in nothing that counts."""
        return difference(want, got)

    def strides(self, t: torch.Tensor) -> list[int]:
        """Those that must be the CPU's."""
        return list(t.stride())

    def step(self) -> None:
        rng = self.maker.rng
        index = rng.randrange(len(self.here))
        here, there = self.here[index], self.there[index]
        roll = rng.random()
        if roll < 0.35:
            self.make(index, *self.maker.view(here))
        elif roll < 0.6:
            self.make(index, *self.maker.fresh(here))
        elif roll < 0.67:
            self.make(index, *self.maker.dynamic())
        elif roll < 0.9 and not is_expanded(here) and not (here.requires_grad and here.is_leaf):
            self.write(index, *self.maker.write(here))
        elif roll < 0.95:
            self.maker.text.append(f"branch on t{index}.sum() > 0")
            chosen = bool(here.detach().sum() > 0.01)
            if bool(there.detach().sum() > 0.01) != chosen:
                raise AssertionError("a branch goes the other way")
            rng.seed(f"{rng.random()}{chosen}")
        else:
            self.compare(index)

    def make(self, index: int, name: str, step: Step) -> None:
        """A further tensor from one of those that are there."""
        self.maker.text.append(f"t{len(self.here)} = t{index}.{name}")
        want, refusal = attempt(step, self.here[index])
        got, error = attempt(step, self.there[index])
        self.same_refusal(refusal, error)
        if refusal is None and want.numel() <= MOST:
            self.here.append(want)
            self.there.append(got)
            if (want.shape, want.dtype, self.strides(want)) != (got.shape, got.dtype, self.strides(got)):
                raise AssertionError(f"{tuple(got.shape)} {got.stride()} for {tuple(want.shape)} {want.stride()}")
        else:
            self.maker.text[-1] += "  (refused, or large)"

    def write(self, index: int, name: str, step: Step) -> None:
        self.maker.text.append(f"t{index}.{name}")
        _, refusal = attempt(step, self.here[index])
        _, error = attempt(step, self.there[index])
        self.same_refusal(refusal, error)

    def same_refusal(self, refusal: Exception | None, error: Exception | None) -> None:
        if (refusal is None) != (error is None):
            raise AssertionError(f"{'the device' if error else 'only the CPU'} refuses: {devicetest.first_lines(refusal or error)}")

    def compare(self, index: int) -> None:
        why = self.differs(self.here[index], self.there[index])
        if why:
            raise AssertionError(f"t{index}: {why}")

    def backward(self) -> None:
        """Gradients of the sum of all that can have them."""
        for index in self.leaves:
            total_here = [t.sum() for t in self.here if t.requires_grad]
            total_there = [t.sum() for t in self.there if t.requires_grad]
            want, refusal = attempt(lambda ts: torch.autograd.grad(sum(ts), self.here[index], allow_unused=True)[0], total_here)
            got, error = attempt(lambda ts: torch.autograd.grad(sum(ts), self.there[index], allow_unused=True)[0], total_there)
            self.maker.text.append(f"grad of t{index}")
            self.same_refusal(refusal, error)
            if want is not None:
                why = self.differs(want, got)
                if why:
                    raise AssertionError(why)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        for index in range(len(self.here)):
            self.maker.text.append(f"compare t{index}")
            self.compare(index)
        self.backward()


def attempt(step: Any, argument: Any) -> tuple[Any, Exception | None]:
    try:
        return step(argument), None
    except (RuntimeError, IndexError, ValueError) as error:
        return None, error


def run_seed(seed: int, steps: int, kind: type[Program] = Program) -> None:
    program = kind(seed)
    try:
        program.run(steps)
    except (AssertionError, RuntimeError):
        if "--verbose" in sys.argv:
            print("    " + "\n    ".join(program.maker.text))
        raise


def main() -> int:
    suite = devicetest.Suite("device random")
    first, count, steps = (int(devicetest.option(name, default)) for name, default in (("seed", "1"), ("count", "300"), ("steps", "40")))
    for seed in range(first, first + count):
        suite.check(f"program --seed={seed} --count=1", lambda seed=seed: run_seed(seed, steps))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
