"""usage: context.py [KEY...]

Figures of attention over a sharded sequence, as bench.sh's other programs give them: a Llama layer of 8,192 tokens on two devices of
a thread each, beside eager PyTorch with two; memory of a ring of eight devices beside that of one. The status is 3 if none of the
keys is one of these."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

HIDDEN, HEADS, KEYS, WIDTH, LENGTH, RUNS = 256, 8, 2, 704, 8192, 3
HERE = os.path.dirname(os.path.abspath(__file__))


def layer() -> nn.Module:
    """One layer of a Llama, and what is around it. Raises: ImportError."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers
    torch.manual_seed(0)
    return transformers.LlamaModel(transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=KEYS, intermediate_size=WIDTH,
        vocab_size=32, max_position_embeddings=LENGTH, attn_implementation="sdpa", use_cache=False))


def ids() -> torch.Tensor:
    return torch.randint(32, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def times_of(model: nn.Module, given: torch.Tensor, settle: Callable[[], Any]) -> tuple[list[float], float]:
    """Seconds of a forward and backward pass, and the loss."""
    times, loss = [], 0.0
    for _ in range(RUNS + 1):
        model.zero_grad()
        begin = time.perf_counter()
        out = model(input_ids=given).last_hidden_state.square().mean()
        out.backward()
        loss = out.item()
        settle()
        times.append(time.perf_counter() - begin)
    return times[1:], loss


def cp2() -> dict[str, tuple[list[float], float]]:
    import dtorch
    from devicecluster import Cluster
    from dtorch import plans
    torch.set_num_threads(2)
    theirs, want = times_of(layer(), ids(), lambda: None)
    torch.set_num_threads(1)
    with Cluster("torch:cpu:2") as cluster:
        dtorch.configure(address=cluster.path, devices=2, connect_timeout=120)
        mesh, plan = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("cp",)), plans.context_parallel("cp")
        model = dtorch.distribute(layer(), mesh, plan)
        ours, got = times_of(model, dtorch.distribute_tensor(ids(), mesh, plan.batch(mesh)), torch.dtorch.synchronize)
        del model
        dtorch.disconnect()
    if abs(got - want) > 1e-4 * abs(want):
        raise SystemExit(f"bench: the loss is {got}, one device's {want}")
    return {"cp2_layer_ratio": ([mine / min(theirs) for mine in ours], round(min(theirs) * 1e3, 1))}


def memory() -> dict[str, tuple[list[float], float]]:
    import device_context
    heads, kv, length, row = HEADS, KEYS, LENGTH, 32 * 4
    one = (2 * heads + 2 * kv) * length * row
    got = device_context.counted((8, heads, kv, length, False))
    return {"ring_memory_ratio": ([got[0]["peak"] / one], one)}


# Key: unit, peer, goal; and what measures which.
FIGURES = {
    "cp2_layer_ratio": ("ratio", "eager PyTorch with two threads, ms", 1.0),
    "ring_memory_ratio": ("ratio", "queries, keys, values and the result, bytes", 1.2),
}
MEASURES = {cp2: ("cp2_layer_ratio",), memory: ("ring_memory_ratio",)}


def main() -> int:
    sys.path.insert(0, os.path.join(HERE, "..", "python"))
    from device import report
    wanted = [measure for measure, keys in MEASURES.items() if not sys.argv[1:] or set(keys) & set(sys.argv[1:])]
    sys.argv[1:] = []  # they are no names of checks
    for measure in wanted:
        for key, (values, peer) in measure().items():
            unit, name, goal = FIGURES[key]
            report(key, values, unit, "lower", name, peer, goal)
    return 0 if wanted else 3


if __name__ == "__main__":
    sys.exit(main())
