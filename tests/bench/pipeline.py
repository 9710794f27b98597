"""usage: pipeline.py [KEY...]

How near a pipeline of 4 stages and 8 micro-batches comes to its ideal, on simulated devices whose operators take the time that
their bytes say. The ideal is (micro-batches + stages - 1) times what a stage has to do for one micro-batch, by the same steps on
one device in the same run. One JSON line; the status is 3 if none of the keys is one of these."""

import os
import sys
import time
from typing import Any

import torch
from torch import nn

STAGES, MICROBATCHES, LAYERS, WIDTH, ROWS, RUNS = 4, 8, 8, 1024, 4, 5
DEVICES = f"sim:{STAGES},gbs=1"
HERE = os.path.dirname(os.path.abspath(__file__))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def seconds_of(stages: list[Any]) -> list[float]:
    """A step's time, until all devices have done it. The first one makes gradients and signatures, and does not count."""
    import dtorch
    pipe = dtorch.pipeline(Network(), stages, MICROBATCHES, loss_fn=lambda output, _: output.mean())
    batch, times = torch.zeros(ROWS * MICROBATCHES, WIDTH), []
    for _ in range(RUNS + 1):
        begin = time.perf_counter()
        pipe.step(batch)
        for device in range(STAGES):
            torch.dtorch.synchronize(device)
        times.append(time.perf_counter() - begin)
    return times[1:]


def efficiency() -> tuple[list[float], float]:
    import dtorch
    from devicecluster import Cluster
    with Cluster(DEVICES) as cluster:
        dtorch.configure(address=cluster.path, devices=STAGES, device_kind="sim", connect_timeout=120)
        stages = [dtorch.DeviceMesh("dtorch", [device]) for device in range(STAGES)]
        alone, piped = seconds_of(stages[:1]), seconds_of(stages)
        dtorch.disconnect()
    ideal = min(alone) / (MICROBATCHES * STAGES) * (MICROBATCHES + STAGES - 1)
    return [ideal / seconds for seconds in piped], round(min(alone) * 1e3)


def main() -> int:
    if sys.argv[1:] and "pipeline_efficiency" not in sys.argv[1:]:
        return 3
    sys.path.insert(0, os.path.join(HERE, "..", "python"))
    from device import report
    values, alone = efficiency()
    report("pipeline_efficiency", values, "ratio", "higher", "the same step on one device, ms", alone, 0.85)
    return 0


if __name__ == "__main__":
    sys.exit(main())
