"""usage: device_random_mesh.py [--seed=FIRST] [--count=N] [--steps=N] [--verbose]

Random programs on random meshes against the CPU, from seeds: the programs of device_random.py, whose tensors lie on meshes of 2, 3,
4, 2x2 and 2x3 devices in layouts drawn from the seed, or on one device, and go to other layouts and meshes between the steps. Sums
over devices are added in another order than on one, so values are compared in float64 within a bound. A failure prints its seed
and the program up to the step that differs."""

import itertools
import os
import sys
from typing import Any

os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "6"

import torch  # noqa: E402  (the number of devices is read when the session begins)

import devicetest  # noqa: E402
import dtorch  # noqa: E402
from device_random import Program, run_seed  # noqa: E402
from dtorch import DeviceMesh, Partial, Replicate, Shard  # noqa: E402
from dtorch._sharded import redistribute_  # noqa: E402

BOUND = 1e-9  # of the largest value


class MeshProgram(Program):
    """One program on the CPU and on meshes."""

    dtype = torch.float64

    def bring(self, value: torch.Tensor) -> torch.Tensor:
        rng, mesh = self.maker.rng, self.mesh()
        if rng.random() < 0.1:
            return value.to(mesh.device)
        made = self.layout(value, mesh)
        self.maker.text[-1] += f" on {mesh_text(mesh)}: {layout_text(made)}"
        return dtorch.distribute_tensor(value, mesh, made)

    def mesh(self) -> DeviceMesh:
        """The program's mesh, now and then another one. All have the same first device: autograd wants a tensor's gradient there."""
        rng = self.maker.rng
        if not hasattr(self, "main") or rng.random() < 0.1:
            shape = rng.choice(([2], [3], [4], [2, 2], [2, 3]))
            if not hasattr(self, "main"):
                self.first = rng.randrange(6)
            others = rng.sample([i for i in range(6) if i != self.first], torch.Size(shape).numel() - 1)
            mesh = DeviceMesh("cuda", torch.tensor([self.first, *others], device="cpu").reshape(shape))
            self.main = getattr(self, "main", mesh)
            return mesh
        return self.main

    def layout(self, t: torch.Tensor, mesh: DeviceMesh) -> list[Any]:
        rng = self.maker.rng
        kind = rng.choice(("sum", "avg", "max", "min") if t.dtype.is_floating_point else ("sum", "max", "min"))
        made: list[Any] = []
        for _ in mesh.shape:
            roll = rng.random()
            if roll < 0.6 and t.dim():
                made.append(Shard(rng.randrange(t.dim())))
            else:
                made.append(Partial(kind) if roll > 0.88 else Replicate())
        return made

    def step(self) -> None:
        rng = self.maker.rng
        if rng.random() > 0.2:
            super().step()
            return
        index = rng.randrange(len(self.there))
        t, mesh = self.there[index], self.mesh()
        made = self.layout(t, mesh)
        if index >= 3 or t._is_view() or rng.random() < 0.5:
            self.maker.text.append(f"t{len(self.here)} = t{index} redistributed to {mesh_text(mesh)}: {layout_text(made)}")
            self.there.append(moved := t.redistribute(mesh, made))
            form = torch.contiguous_format if moved.is_contiguous() else torch.preserve_format
            self.here.append(self.here[index] if moved is t else self.here[index].clone(memory_format=form))
        elif dtorch._sharded.layout_of(t) is not None:
            self.maker.text.append(f"t{index} redistributed in place to {mesh_text(mesh)}: {layout_text(made)}")
            redistribute_(t, mesh, made)

    def strides(self, t: torch.Tensor) -> list[int]:
        """What was moved has others where a dimension has one element, or the tensor none."""
        return [] if t.numel() == 0 else [stride for stride, size in zip(t.stride(), t.shape) if size > 1]

    def differs(self, want: torch.Tensor, got: torch.Tensor) -> str | None:
        if want.dtype != got.dtype or want.shape != got.shape or want.requires_grad != got.requires_grad:
            return f"{got.dtype} {tuple(got.shape)} {got.requires_grad} for {want.dtype} {tuple(want.shape)} {want.requires_grad}"
        a, b = want.detach(), got.detach().cpu()
        scale = max([1.0, *a.abs()[a.isfinite()].flatten().tolist()])
        return None if torch.allclose(a, b, rtol=BOUND, atol=BOUND * scale, equal_nan=True) else devicetest.how_far(want, got)


def mesh_text(mesh: DeviceMesh) -> str:
    return str(mesh.mesh.tolist()).replace(" ", "")


def layout_text(made: list[Any]) -> str:
    return ", ".join(map(str, made))


def main() -> int:
    suite = devicetest.Suite("device random mesh")
    first, count, steps = (int(devicetest.option(name, default)) for name, default in (("seed", "1"), ("count", "100"), ("steps", "25")))
    for seed in itertools.islice(itertools.count(first), count):
        if suite.is_over():
            break
        suite.check(f"program --seed={seed} --count=1", lambda seed=seed: run_seed(seed, steps, MeshProgram))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
