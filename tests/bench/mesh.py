"""usage: mesh.py [KEY...]

Figures of tensors on a mesh of two devices, each beside PyTorch's DTensor in the same run: what an operator costs the program, and
tensor-parallel training steps of a Llama of 4 layers, DTensor's by torchrun with gloo. One JSON line each; the status is 3 if none
of the keys is one of these."""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LAYERS, HIDDEN, HEADS, KEYS, WIDTH, WORDS, BATCH, LENGTH = 4, 256, 8, 4, 704, 512, 4, 128
WARM, STEPS, RUNS = 3, 9, 9
HERE = os.path.dirname(os.path.abspath(__file__))


def llama() -> nn.Module:
    """A Llama of transformers with random weights, the same in every process. Raises: ImportError."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KEYS, intermediate_size=WIDTH,
        vocab_size=WORDS, max_position_embeddings=LENGTH, attn_implementation="sdpa"))


def step_of(model: nn.Module, ids: torch.Tensor) -> Callable[[], float]:
    """A training step, until its loss is known."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def times_of(step: Callable[[], float]) -> list[float]:
    times = []
    for i in range(WARM + STEPS):
        begin = time.perf_counter()
        step()
        if i >= WARM:
            times.append(time.perf_counter() - begin)
    return times


def batch() -> torch.Tensor:
    return torch.randint(WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def dtensor_worker() -> None:
    """What torchrun runs: prints the median of the steps' times, and the last loss."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = llama()
    column, row = ColwiseParallel(), RowwiseParallel()
    plan = {f"model.layers.*.{part}": style for style, parts in (
        (column, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")),
        (row, ("self_attn.o_proj", "mlp.down_proj"))) for part in parts}
    parallelize_module(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), plan)
    step = step_of(model, batch())
    times, loss = times_of(step), step()
    if dist.get_rank() == 0:
        print(f"RESULT {statistics.median(times)} {loss}", flush=True)
    dist.destroy_process_group()


def dtensor_step() -> tuple[float, float]:
    """Seconds of a step, and the loss behind all of them."""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                           os.path.abspath(__file__), "--dtensor"], env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"RESULT (\S+) (\S+)", done.stdout)
    assert found, done.stderr
    return float(found[1]), float(found[2])


BEGIN, END = (3, 5, 7), (2, 5, 7)  # of tensors that stand for nothing else


def moved_bytes(path: str) -> float:
    """Bytes that each device of a mesh of two receives in the moves of a recording between tensors of the sizes BEGIN and END, as
    the layouts tell; those of one device alone are shared between both."""
    from devicecluster import BIN
    shown = subprocess.run([str(BIN / "dtorchctl"), "diag", "decode", path], capture_output=True, text=True, check=True).stdout
    item = {"float32": 4, "int64": 8, "bool": 1, "float64": 8, "bfloat16": 2, "int32": 4}
    total, counts = 0.0, False
    for line in shown.splitlines():
        counts = (counts or f" {BEGIN}" in line) and f" {END}" not in line
        found = re.search(r"redistribute\(t\d+ (\w+) \(([\d, ]*)\)(?: \[(\w+)[^\]]*\])?\) -> t\d+ \w+ \([\d, ]*\)(?: \[(\w+))?", line)
        if not found or not counts:
            continue
        whole = item[found[1]] * torch.Size(int(n) for n in found[2].split(",") if n.strip()).numel()
        share = {("Shard", "Replicate"): 0.5, ("Shard", "Shard"): 0.25, ("Partial", "Shard"): 0.5, ("Partial", "Replicate"): 1.0,
                 ("Shard", None): 0.25, ("Partial", None): 0.5, (None, "Replicate"): 0.5}
        total += whole * share.get((found[3], found[4]), 0.0)
    return total


def dtorch_step(path: str) -> tuple[float, float, float]:
    """As dtensor_step(), and the bytes that a device receives in a step."""
    import dtorch
    from devicecluster import Cluster
    with Cluster("torch:cpu:2") as cluster:
        dtorch.configure(address=cluster.path, devices=2, record_file=path, connect_timeout=120)
        mesh = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        model = llama()
        dtorch.distribute(model, mesh, dtorch.plans.llama_tensor_parallel("tp", config=model.config))
        step = step_of(model, dtorch.distribute_tensor(batch(), mesh, [dtorch.Replicate()]))
        times = times_of(step)
        torch.ones(BEGIN, device="dtorch")
        loss = step()
        torch.ones(END, device="dtorch")
        dtorch.disconnect()
    return statistics.median(times), loss, moved_bytes(path)


def tp2() -> dict[str, tuple[list[float], float]]:
    """Both figures of tensor parallelism: by key the values and what the peer has."""
    try:
        theirs_s, their_loss = dtensor_step()
    except subprocess.CalledProcessError as failed:
        print(f"bench: no tp2 figures: {failed.stderr[-400:]}", file=sys.stderr)
        return {}
    with tempfile.TemporaryDirectory() as folder:
        ours_s, our_loss, moved = dtorch_step(os.path.join(folder, "tp2"))
    if abs(our_loss - their_loss) > 1e-3 * abs(their_loss):
        raise SystemExit(f"bench: the loss is {our_loss}, DTensor's {their_loss}")
    megatron = 4 * LAYERS * BATCH * LENGTH * HIDDEN * 4  # an all-reduce of two: each receives what it is of
    return {"tp2_step_ratio": ([ours_s / theirs_s], round(theirs_s * 1e3, 2)), "tp2_bytes_ratio": ([moved / megatron], megatron)}


def add_us(a: torch.Tensor, settle: Callable[[], Any]) -> list[float]:
    """Microseconds of the program's thread that an add takes."""
    values = []
    for _ in range(RUNS):
        settle()
        begin = time.thread_time()
        for _ in range(2000):
            a + a
        values.append((time.thread_time() - begin) / 2000 * 1e6)
    return values


DTENSOR_ADD = """
import sys
sys.path.insert(0, sys.argv[1])
import mesh, torch, statistics
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
torch.set_num_threads(1)
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
a = distribute_tensor(torch.ones(2, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
mesh.add_us(a, lambda: None)
print(statistics.median(mesh.add_us(a, lambda: None)))
"""


def mesh_op() -> dict[str, tuple[list[float], float]]:
    import dtorch
    from devicecluster import Cluster
    theirs = subprocess.run([sys.executable, "-c", DTENSOR_ADD, HERE], env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
                            capture_output=True, text=True, check=True)
    with Cluster("torch:cpu:2") as cluster:
        dtorch.configure(address=cluster.path, devices=2, connect_timeout=120)
        a = dtorch.ones(2, 4, device_mesh=dtorch.DeviceMesh("cpu", [0, 1]), placements=[dtorch.Shard(0)])
        add_us(a, torch.dtorch.synchronize)
        values = add_us(a, torch.dtorch.synchronize)
        del a
        dtorch.disconnect()
    return {"mesh_op_py_us": (values, round(float(theirs.stdout), 3))}


# Key: unit, peer, goal; and what measures which.
FIGURES = {
    "mesh_op_py_us": ("us", "DTensor", 1.2),
    "tp2_step_ratio": ("ratio", "DTensor with torchrun and gloo, ms", 0.5),
    "tp2_bytes_ratio": ("ratio", "Megatron's four all-reduces a layer, bytes", 0.95),
}
MEASURES = {mesh_op: ("mesh_op_py_us",), tp2: ("tp2_step_ratio", "tp2_bytes_ratio")}


def main() -> int:
    torch.set_num_threads(1)
    sys.path.insert(0, os.path.join(HERE, "..", "python"))
    from device import report
    wanted = [measure for measure, keys in MEASURES.items() if not sys.argv[1:] or set(keys) & set(sys.argv[1:])]
    for measure in wanted:
        for key, (values, peer) in measure().items():
            unit, name, goal = FIGURES[key]
            report(key, values, unit, "lower", name, peer, goal)
    return 0 if wanted else 3


if __name__ == "__main__":
    if sys.argv[1:] == ["--dtensor"]:
        dtensor_worker()
    else:
        sys.exit(main())
