"""usage: device.py [KEY...]

Figures of the PyTorch device, each beside PyTorch eager on the CPU in the same process, with one thread. One JSON line each; the
status is 3 if none of the keys is one of these."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dtorch
from dtorch import _start

RUNS = 9
FAR_RUNS = 12
HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "client", "python", "examples")
TESTS = os.path.join(HERE, "..", "python")


def report(key: str, values: list[float], unit: str, better: str, peer: str, peer_value: float, goal: float) -> None:
    values = sorted(values)
    spread = values[3 * len(values) // 4] - values[len(values) // 4]
    print(json.dumps({"figure": key, "value": float(f"{statistics.median(values):.4g}"), "unit": unit, "better": better, "peer": peer,
                      "peer_value": peer_value, "goal": goal, "runs": len(values), "spread": float(f"{spread:.4g}")}), flush=True)


def timed(program: Callable[[], Any], settle: Callable[[], Any] = lambda: None, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a program takes; `settle` is called before, and is not counted."""
    settle()
    start = clock()
    program()
    return clock() - start


def ratios(on: Callable[[str], Callable[[], Any]], settle: Callable[[], Any], runs: int = RUNS,
           clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """A program's time on the device over that on the CPU, in turn, after one run of each. What it costs the program's own
    thread is told by `clock` time.thread_time: then it does not count who else wants the processor."""
    there, here = on("dtorch"), on("cpu")
    there(), here()
    return [timed(there, settle, clock) / timed(here, clock=clock) for _ in range(runs)]


def client_op_py_ratio() -> list[float]:
    """What an add of shape (1,) costs the program's thread."""
    def adds(device: str) -> Callable[[], None]:
        a, b = torch.ones(1, device=device), torch.ones(1, device=device)

        def program() -> None:
            for _ in range(2000):
                a + b
        return program
    return ratios(adds, torch.dtorch.synchronize, 25, time.thread_time)


def add500_ratio() -> list[float]:
    """500 adds, each on the result of the one before, and the value."""
    def chain(device: str) -> Callable[[], None]:
        one = torch.ones(1, device=device)

        def program() -> None:
            x = one
            for _ in range(500):
                x = x + one
            x.item()
        return program
    return ratios(chain, torch.dtorch.synchronize, 25)


class Llama(nn.Module):
    """The operators of a Llama, so small that only their dispatch counts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.layers = nn.ModuleList(nn.ModuleDict({
            "norm1": nn.RMSNorm(8), "norm2": nn.RMSNorm(8), "q": nn.Linear(8, 8, False), "k": nn.Linear(8, 8, False),
            "v": nn.Linear(8, 8, False), "o": nn.Linear(8, 8, False), "gate": nn.Linear(8, 16, False), "up": nn.Linear(8, 16, False),
            "down": nn.Linear(16, 8, False)}) for _ in range(8))
        self.norm, self.head = nn.RMSNorm(8), nn.Linear(8, 32, False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence) to (batch, sequence, 32)."""
        x = self.embed(ids)
        for layer in self.layers:
            y = layer["norm1"](x)
            q, k, v = (layer[name](y).view(*y.shape[:2], 2, 4).transpose(1, 2) for name in "qkv")
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["o"](y.transpose(1, 2).reshape(x.shape))
            y = layer["norm2"](x)
            x = x + layer["down"](nn.functional.silu(layer["gate"](y)) * layer["up"](y))
        return self.head(self.norm(x))


def llama_step(device: str) -> Callable[[], None]:
    torch.manual_seed(0)
    model = Llama().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(32, (1, 9)).to(device)

    def program() -> None:
        model(ids[:, :-1])
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return program


def client_time_ratio() -> list[float]:
    """A forward and a training step of a tiny Llama, until the program's thread has them behind it."""
    return ratios(llama_step, torch.dtorch.synchronize, 25, time.thread_time)


def meta_hit_ns() -> list[float]:
    """To find the metadata of an operator's result: its key is put together and looked up."""
    return [_start.library().bench_hit(200000) for _ in range(RUNS)]


def place_ns() -> list[float]:
    """To find the line that issues an operator, three calls deep."""
    def deeper(depth: int) -> float:
        return deeper(depth - 1) if depth else _start.library().bench_place(200000)
    return [deeper(3) for _ in range(RUNS)]


def meta_hit_ratio() -> list[float]:
    """Operators of a training step, after the first, whose metadata was in the cache."""
    step = llama_step("dtorch")
    step(), step()
    values = []
    for _ in range(RUNS):
        before = dtorch.session_info()
        step()
        after = dtorch.session_info()
        asked = sum(after[name] - before[name] for name in ("asked", "metas", "rules"))
        values.append(1 - asked / max(1, after["operators"] - before["operators"]))
    return values


def train_ratio() -> list[float]:
    """Steps a second of the example gpt.py, over eager's."""
    sys.path.insert(0, EXAMPLES)
    import gpt

    def steps(device: str) -> Callable[[], None]:
        def program() -> None:
            gpt.train(device, 10)
            if device == "dtorch":
                torch.dtorch.synchronize()
        return program
    return [1 / ratio for ratio in ratios(steps, torch.dtorch.synchronize, 5)]


def decode_ratio() -> list[float]:
    """SmolLM2's tokens a second over eager's; nothing if its packages are missing."""
    sys.path.insert(0, EXAMPLES)
    try:
        import copy

        import llama
        model, tokenizer = llama.load()
    except (ImportError, SystemExit) as missing:
        print(f"bench: no decode_ratio: {missing}", file=sys.stderr)
        return []
    models = {"cpu": model, "dtorch": copy.deepcopy(model).to("dtorch")}

    def write(device: str) -> Callable[[], None]:
        ids = llama.ask(tokenizer, "Name the planets of the solar system.").to(device)

        def program() -> None:
            with torch.no_grad():
                models[device].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False, pad_token_id=0)
        return program
    return [1 / ratio for ratio in ratios(write, torch.dtorch.synchronize, 3)]


FIRST = """
import time, torch
start = time.perf_counter()
torch._import_device_backends()
torch.ones(1, device="dtorch").item()
print((time.perf_counter() - start) * 1e3)
"""


def first_op_ms() -> list[float]:
    """The device's part of `import torch`, which comes last there, and a first value from a running cluster. PyTorch is imported
    without it before the clock starts: to import it takes twenty times as long, and no two times as long."""
    sys.path.insert(0, TESTS)
    from devicecluster import Cluster

    with Cluster() as cluster, tempfile.TemporaryDirectory() as compiled:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        kept |= {"PYTHONPYCACHEPREFIX": compiled, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # an installed package is compiled

        def run() -> float:
            done = subprocess.run([sys.executable, "-c", FIRST], env=kept | {"DTORCH_ADDRESS": cluster.path}, capture_output=True,
                                  text=True, check=True)
            return float(done.stdout)

        run()
        return [run() for _ in range(RUNS)]


FAR = """
import sys, time, torch, dtorch
sys.path.insert(0, sys.argv[1])
import gpt
gpt.train("dtorch", 20)
torch.dtorch.synchronize()
print("ready", flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    gpt.train("dtorch", 100)
    torch.dtorch.synchronize()
    print(time.perf_counter() - start, flush=True)
"""


def far_ratio() -> list[float]:
    """Steps a second of the example gpt.py, which waits for nothing, over a link of 5 ms each way, over those of a link without;
    both go by a proxy. Two programs on one node take turns, each first as often as the other: what else the machine does meets
    both."""
    sys.path.insert(0, TESTS)
    from devicecluster import Cluster, Proxy

    def seconds(program: subprocess.Popen[str]) -> float:
        program.stdin.write("go\n")
        program.stdin.flush()
        return float(program.stdout.readline())

    with Cluster() as cluster:
        proxies = [Proxy(cluster.port, delay_s) for delay_s in (0, 0.005)]
        programs = [subprocess.Popen([sys.executable, "-c", FAR, EXAMPLES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                     env=os.environ | {"DTORCH_ADDRESS": f"127.0.0.1:{proxy.port}"}) for proxy in proxies]
        for program in programs:
            program.stdout.readline()
        near, far = programs
        values = []
        for number in range(FAR_RUNS):
            if number % 2:
                late = seconds(far)
                values.append(seconds(near) / late)
            else:
                early = seconds(near)
                values.append(early / seconds(far))
        for program in programs:
            program.stdin.close()
            program.wait()
        for proxy in proxies:
            proxy.close()
    return values


# Key: how it is measured, unit, better, peer, the peer's value, goal.
FIGURES: dict[str, tuple[Callable[[], list[float]], str, str, str, float, float]] = {
    "client_op_py_ratio": (client_op_py_ratio, "ratio", "lower", "torch eager", 1, 0.85),
    "add500_ratio": (add500_ratio, "ratio", "lower", "a reference system", 1.37, 1.1),
    "client_time_ratio": (client_time_ratio, "ratio", "lower", "torch eager", 1, 0.7),
    "meta_hit_ratio": (meta_hit_ratio, "ratio", "higher", "none", 0, 1),
    "meta_hit_ns": (meta_hit_ns, "ns", "lower", "none", 0, 50),
    "place_ns": (place_ns, "ns", "lower", "none", 0, 100),
    "train_ratio": (train_ratio, "ratio", "higher", "torch eager", 1, 1.1),
    "decode_ratio": (decode_ratio, "ratio", "higher", "torch eager", 1, 1.1),
    "far_ratio": (far_ratio, "ratio", "higher", "the same without the delay", 1, 0.95),
    "first_op_ms": (first_op_ms, "ms", "lower", "none", 0, 50),
}


def settle_spare() -> None:
    """The node loads a spare engine behind the one that was taken, on one of the processors that are measured."""
    torch.ones(1, device="dtorch").item()
    time.sleep(1.5)


def main() -> int:
    torch.set_num_threads(1)
    wanted = [key for key in FIGURES if not sys.argv[1:] or key in sys.argv[1:]]
    if set(wanted) - {"first_op_ms"}:
        settle_spare()
    for key in wanted:
        measure, unit, better, peer, peer_value, goal = FIGURES[key]
        values = measure()
        if values:
            report(key, values, unit, better, peer, peer_value, goal)
    return 0 if wanted else 3


if __name__ == "__main__":
    sys.exit(main())
