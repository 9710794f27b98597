"""usage: device_llama_mesh.py [--smol] [--steps=N] [PART OF A NAME]...

Hugging Face's Llama, unmodified, under each configuration of a mesh against the CPU: logits, gradients, losses of ten steps and
the tokens that the trained model writes. The program is examples/llama_mesh.py; only the configuration differs.

--smol: SmolLM2-135M with its weights, whose 9 heads and 3 heads of keys do not divide by most meshes; else a small random model."""

import copy
import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "16"

import torch  # noqa: E402  (the number of devices is read when the session begins)

import devicetest  # noqa: E402

# By name: the mesh, what dimension dp means, and whether the vocabulary is spread, too.
CONFIGURATIONS = {
    "none": ("", "dp", False), "dp2": ("dp2", "dp", False), "tp2": ("tp2", "dp", False), "tp3": ("tp3", "dp", False),
    "tp4": ("tp4", "dp", False), "tp2 with vocabulary": ("tp2", "dp", True), "dp2 x tp2": ("dp2,tp2", "dp", False),
    "fsdp2": ("fsdp2", "dp", False), "hsdp 2x2": ("dp2,fsdp2", "dp", False),
    "cp2": ("cp2", "dp", False), "cp3": ("cp3", "dp", False), "cp4": ("cp4", "dp", False), "cp2 x tp2": ("cp2,tp2", "dp", False),
    "pp2": ("pp2", "dp", False), "pp2 x tp2": ("pp2,tp2", "dp", False), "dp2 x tp2 x pp2": ("dp2,tp2,pp2", "dp", False),
    "dp2 x tp2 x pp2 x cp2": ("dp2,tp2,pp2,cp2", "dp", False)}


def example() -> ModuleType:
    """Raises: Skip (the models' packages are not there)."""
    if importlib.util.find_spec("transformers") is None:
        raise devicetest.Skip("transformers is not installed")
    path = pathlib.Path(__file__).parents[2] / "client/python/examples/llama_mesh.py"
    spec = importlib.util.spec_from_file_location("llama_mesh", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["llama_mesh"] = module
    spec.loader.exec_module(module)
    return module


class Llama:
    """One model, and what it computes on the CPU; both made when they are first asked for."""

    def __init__(self, smol: bool, steps: int) -> None:
        self.smol, self.steps = smol, steps
        self.ids = torch.randint(0, 128, (4, 16), generator=torch.Generator().manual_seed(1))
        self.program: Any = None

    def make(self) -> None:
        self.program = example()
        self.model = self.program.load(self.smol)
        self.want = self.run(lambda alone: self.program.Spread(alone, self.ids, self.ids[:1, :4], self.program.plainly(alone)))

    def run(self, spread: Callable[[Any], Any]) -> Any:
        return self.program.run(spread(copy.deepcopy(self.model)), self.steps, 12, self.program.rate(self.smol))

    def check(self, mesh: str, plan: str, vocabulary: bool) -> None:
        if self.program is None:
            self.make()
        where, made = self.program.configuration(mesh, plan, vocabulary, self.model.config)
        try:
            got = self.run(lambda model: self.program.spread(model, where, made, self.ids, self.ids[:1, :4]))
            print(f"{mesh or 'one device'}: {self.program.compare(self.want, got)}")
        except SystemExit as error:
            raise AssertionError(str(error)) from None


def main() -> int:
    suite = devicetest.Suite("device llama mesh", devicetest.arguments())
    llama = Llama("--smol" in sys.argv, int(devicetest.option("steps", "10")))
    for name, configuration in CONFIGURATIONS.items():
        suite.check(name, lambda c=configuration: llama.check(*c))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
