"""usage: device_train.py [PART OF A NAME...]

Whole training programs, those of client/python/examples, for 20 steps: losses and weights are the CPU's bit for bit, with one
thread each. Then what they cost: memory on the device beside eager's, and host memory that weights must not take."""

import gc
import importlib
import pathlib
import resource
import sys
from typing import Any

import torch
from torch import nn

import devicetest
import dtorch
from devicetest import DEVICE, becomes, expect_same

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))
STEPS = 20


def trained(example: str, device: str) -> Any:
    losses, model = importlib.import_module(example).train(device, STEPS)
    return losses, {name: value.detach() for name, value in model.state_dict().items()}, [p.grad for p in model.parameters()]


def trains_as_the_cpu(example: str) -> None:
    expect_same(trained(example, "cpu"), trained(example, DEVICE))


def no_step_waits(example: str) -> None:
    """Once the shapes are known, a step asks nothing of the cluster."""
    module = importlib.import_module(example)
    module.train(DEVICE, 2)
    before = dtorch.session_info()
    module.train(DEVICE, 5)
    after = dtorch.session_info()
    asked, waited = after["asked"] - before["asked"], after["waits"] - before["waits"]
    assert asked == 0, f"the cluster was asked {asked} times in five steps"
    assert waited == 0, f"{waited} waits in five steps"


def weights_leave_the_host() -> None:
    """A model of 256 MB, moved layer by layer, is not on the host afterwards. Units: kB from /proc."""
    gc.collect()
    before = resident_kb()
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(16)))
    model.to(DEVICE)
    torch.dtorch.synchronize()

    def grown() -> int:
        gc.collect()
        return resident_kb() - before

    assert becomes(lambda: grown() < 64 * 1024), (
        f"{grown()} kB more are resident, with weights of {16 * 2048 * 2048 * 4 // 1024} kB")
    assert torch.dtorch.memory_allocated() >= 16 * 2048 * 2048 * 4


def resident_kb() -> int:
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def eager_peak(example: str) -> int:
    """Bytes that eager holds at most, by the profiler's allocation events."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        importlib.import_module(example).train("cpu", 3)
    total = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak


def memory_is_eagers(example: str) -> None:
    """Storages that the program holds on the device peak within 5 % of eager's, and 64 KiB."""
    want = eager_peak(example)
    gc.collect()
    base = torch.dtorch.memory_allocated()
    torch.dtorch.reset_peak_memory_stats()
    importlib.import_module(example).train(DEVICE, 3)
    got = torch.dtorch.max_memory_allocated() - base
    assert got <= want * 1.05 + 65536, f"{got} bytes, eager {want}"


def main() -> int:
    suite = devicetest.Suite("device train", devicetest.arguments())
    for example in ("mlp", "gpt", "cnn"):
        suite.check(f"{example} trains as the cpu", lambda e=example: trains_as_the_cpu(e), 300)
        suite.check(f"{example}: no step waits", lambda e=example: no_step_waits(e))
        suite.check(f"{example}: memory is eager's", lambda e=example: memory_is_eagers(e))
    suite.check("weights leave the host", weights_leave_the_host)
    print(f"peak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
