"""usage: device_context.py [--seed=N] [--count=N] [PART OF A NAME]...

Attention over a sequence that is sharded: values and gradients are those of one device, whatever its lengths, heads and meshes;
bytes moved and memory are what a ring needs.

The session is a private cluster of one node whose device stands for eight."""

import itertools
import json
import os
import random
import subprocess
import sys
import textwrap
from typing import Any

if not os.environ.get("DTORCH_ADDRESS"):
    os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "8"

import torch  # noqa: E402  (the number of devices is read when the session begins)
from torch.nn import functional as F  # noqa: E402

import devicetest  # noqa: E402
import dtorch  # noqa: E402
from devicecluster import Cluster  # noqa: E402
from dtorch import DeviceMesh, Partial, Replicate, Shard  # noqa: E402

suite = devicetest.Suite("device context", devicetest.arguments())
R, S0, S1, S2 = Replicate(), Shard(0), Shard(1), Shard(2)

# Of the largest value: sums are made in another order than on one device. In bfloat16 each block is rounded before it is merged.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 4e-6, torch.bfloat16: 2.0 ** -6}


def line(devices: int) -> DeviceMesh:
    return DeviceMesh("cuda", list(range(devices)))


def square() -> DeviceMesh:
    return DeviceMesh("cuda", [[0, 1], [2, 3]])


class Case:
    """Queries, keys and values, and what one device makes of them."""

    def __init__(self, heads: tuple[int, int], lengths: tuple[int, int], *, causal: bool = False, batch: int = 1, width: int = 8,
                 dtype: torch.dtype = torch.float64, **options: Any) -> None:
        """heads: of queries, of keys; lengths likewise; options: of scaled_dot_product_attention()."""
        generator = torch.Generator().manual_seed(heads[0] * 1000 + lengths[0] * 10 + lengths[1])
        shapes = [(batch, count, length, width) for count, length in zip((heads[0], heads[1], heads[1], heads[0]),
                                                                           (lengths[0], lengths[1], lengths[1], lengths[0]))]
        *self.inputs, self.given = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
        self.options = dict(options, is_causal=causal, enable_gqa=heads[0] != heads[1])
        self.name = f"heads {heads}, lengths {lengths}, causal {causal}, batch {batch}, {dtype}"
        self.dtype = dtype
        self.want = self.run([x.clone().requires_grad_() for x in self.inputs], self.given)

    def run(self, inputs: list[torch.Tensor], given: torch.Tensor) -> list[torch.Tensor]:
        """The result and the gradients of all inputs."""
        out = F.scaled_dot_product_attention(*inputs, **self.options)
        out.backward(given)
        return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]

    def on(self, mesh: DeviceMesh, queries: Any, keys: Any = None) -> list[torch.Tensor]:
        """The same on a mesh. Raises: AssertionError (a value is another one, or lies in memory in another way)."""
        where = [queries, keys or queries, keys or queries]
        inputs = [dtorch.distribute_tensor(x, mesh, at).requires_grad_() for x, at in zip(self.inputs, where)]
        got = self.run(inputs, dtorch.distribute_tensor(self.given, mesh, queries))
        for name, a, b in zip(("result", "q's gradient", "k's gradient", "v's gradient"), self.want, got):
            far = (a.double() - b.cpu().double()).abs().max().item() / max(a.abs().max().item(), 0.2)
            assert far <= TOLERANCE[self.dtype], f"{name} is {far:.1e} off: {self.name} on {tuple(mesh.shape)} as {where[:2]}"
            assert a.stride() == b.stride() and a.dtype == b.dtype, f"{name}: {self.name}"
        return got


HEADS = ((3, 3), (4, 2), (3, 1))
LENGTHS = ((8, 8), (9, 9), (13, 13), (24, 24), (5, 17), (17, 5), (3, 3), (1, 9), (9, 1))  # even, uneven, empty shards, unlike


def a_ring_gives_the_values_of_one_device(devices: int) -> None:
    mesh = line(devices)
    for heads, lengths, causal in itertools.product(HEADS, LENGTHS, (False, True)):
        got = Case(heads, lengths, causal=causal).on(mesh, [S2])
        assert all(x.placements == (S2,) for x in got), got[0].placements


def other_types_and_scales() -> None:
    for dtype, causal, heads in itertools.product((torch.float32, torch.bfloat16), (False, True), HEADS):
        Case(heads, (24, 24), causal=causal, dtype=dtype, width=16).on(line(4), [S2])
        Case(heads, (13, 13), causal=causal, dtype=dtype, width=16, scale=0.3).on(line(3), [S2])
    for scale in (0.1, 0.5, 1.0):  # one list for all of them
        Case((3, 3), (8, 8), causal=True, scale=scale).on(line(2), [S2])


def many_heads_or_batches_are_dealt_out() -> None:
    """By heads where all divide, else by batch; the results come back."""
    sizes = (((4, 4), 1), ((8, 4), 1), ((3, 3), 4))
    for devices, (heads, batch), lengths, causal in itertools.product((2, 4), sizes, ((16, 16), (9, 9)), (False, True)):
        got = Case(heads, lengths, causal=causal, batch=batch).on(line(devices), [S2])
        assert all(x.placements == (S2,) for x in got)


def meshes_of_two_dimensions() -> None:
    """Sequence, batch and heads in any combination; heads that do not divide stay with their keys."""
    for at in itertools.product((S0, S1, S2, R), repeat=2):
        if S2 not in at:
            continue
        for heads, lengths, causal in itertools.product(((4, 4), (6, 3), (3, 1)), ((8, 8), (9, 9), (7, 13)), (False, True)):
            got = Case(heads, lengths, causal=causal, batch=2).on(square(), list(at))
            assert got[0].placements.count(S2) == 1 or at == (S2, S2), got[0].placements
    cube = DeviceMesh("cuda", torch.arange(8).view(2, 2, 2))
    for at in itertools.permutations((S0, S1, S2)):
        Case((6, 3), (9, 9), causal=True, batch=2).on(cube, list(at))


def keys_that_lie_elsewhere() -> None:
    """Whole keys are attended to where they are; keys cut by heads or batch come to the ring; whole queries gather."""
    for causal, lengths in itertools.product((False, True), ((8, 8), (9, 9), (4, 12))):
        got = Case((3, 3), lengths, causal=causal).on(line(2), [S2], [R])
        assert [x.placements for x in got] == [(S2,), (S2,), (R,), (R,)]
        for at in (S0, S1):
            Case((3, 3), lengths, causal=causal).on(line(2), [S2], [at])
        Case((3, 3), lengths, causal=causal).on(line(2), [R], [S2])
        Case((3, 3), lengths, causal=causal).on(line(2), [S0], [S2])


def some_layout(draw: random.Random, dims: int) -> list[Any]:
    """Placements of any kind, the sequence's most."""
    kinds = [Shard(2), Shard(2), Shard(2, unit=draw.choice((2, 3))), Shard(0), Shard(1, unit=draw.choice((1, 2))), R, Partial()]
    return [draw.choice(kinds) for _ in range(dims)]


def random_cases() -> None:
    """Every tensor lies anywhere, on any mesh."""
    draw = random.Random(int(devicetest.option("seed", "1")))
    for _ in range(int(devicetest.option("count", "150"))):
        shape = draw.choice(((2,), (3,), (4,), (8,), (2, 2), (2, 3), (1, 2), (2, 2, 2)))
        mesh = dtorch.init_device_mesh("cuda", shape)
        few, length = draw.choice((1, 2, 3)), draw.choice((1, 2, 7, 8, 12, 16, 24))
        case = Case((few * draw.choice((1, 2, 3)), few), (length, draw.choice((length, length, 1, 5, 16))), causal=draw.random() < 0.5,
                    batch=draw.choice((1, 2, 3)), scale=draw.choice((None, 0.3)))
        layouts = [some_layout(draw, len(shape)) for _ in range(2)]
        case.on(mesh, layouts[0], draw.choice(layouts))


def a_mask_gathers() -> None:
    mask = torch.rand(9, 9, generator=torch.Generator().manual_seed(1)) > 0.3
    mask.fill_diagonal_(True)
    for kind in (mask, mask.double().log().clamp(min=-50)):
        case = Case((4, 2), (9, 9), attn_mask=kind)
        case.options["attn_mask"] = dtorch.distribute_tensor(kind, line(3), [R])
        case.on(line(3), [S2])


def dropout_draws_as_one_device_does() -> None:
    results = []
    for at in ([R], [S2]):
        torch.manual_seed(5)
        inputs = [dtorch.distribute_tensor(x, line(2), at).requires_grad_() for x in Case((4, 4), (8, 8)).inputs]
        out = F.scaled_dot_product_attention(*inputs, dropout_p=0.4, is_causal=True)
        out.square().sum().backward()
        results.append([out.detach().cpu(), *(x.grad.cpu() for x in inputs if x.grad is not None)])
    torch.manual_seed(5)
    inputs = [x.clone().requires_grad_() for x in Case((4, 4), (8, 8)).inputs]
    out = F.scaled_dot_product_attention(*inputs, dropout_p=0.4, is_causal=True)
    out.square().sum().backward()
    results.append([out.detach(), *(x.grad for x in inputs if x.grad is not None)])
    for one in results[:2]:
        for a, b in zip(results[2], one):
            assert torch.allclose(a, b, rtol=0, atol=1e-13)


def a_growing_cache() -> None:
    """A token at a time beside keys that are sharded by the prompt; then what a static cache does: written in place."""
    case = Case((4, 2), (12, 12), causal=True)
    q, k, v = (dtorch.distribute_tensor(x, line(2), [S2]) for x in case.inputs)
    for step in range(3):
        new = [x[:, :, :1] + step for x in case.inputs]
        token, more_k, more_v = (dtorch.distribute_tensor(x, line(2), [R]) for x in new)
        k, v = torch.cat([k, more_k], 2), torch.cat([v, more_v], 2)
        got = F.scaled_dot_product_attention(token, k, v, enable_gqa=True)
        want = F.scaled_dot_product_attention(new[0], k.cpu(), v.cpu(), enable_gqa=True)
        assert torch.allclose(want, got.cpu(), rtol=0, atol=1e-13), step
    del q


def views_of_fused_weights() -> None:
    """q, k and v are views of one tensor, with the heads behind the sequence, as models make them."""
    fused = torch.randn(1, 12, 3 * 3 * 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    results = []
    for x in (fused.clone(), dtorch.distribute_tensor(fused, line(4), [S1])):
        leaf = x.requires_grad_()
        q, k, v = (part.view(1, 12, 3, 8).transpose(1, 2) for part in leaf.split(24, 2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, 12, 24)
        out.square().sum().backward()
        results.append([out.detach().cpu(), leaf.grad.cpu()])
    for a, b in zip(*results):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def strict_refuses() -> None:
    x = dtorch.distribute_tensor(torch.randn(1, 3, 8, 8), line(2), [S2])
    with dtorch.strict():
        try:
            F.scaled_dot_product_attention(x, x, x)
        except dtorch.Error as error:
            assert "strict" in str(error)
            return
    raise AssertionError("nothing was refused")


# ---- bytes and memory, as the daemons count them ----

PROGRAM = """
    import os, sys
    os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "8"
    import torch, dtorch
    import torch.nn.functional as F

    def say(word):
        torch.lgamma(torch.ones(1, device="dtorch"))
        torch.dtorch.synchronize()
        print(word, flush=True)
        sys.stdin.readline()

    for given in sys.argv[1:]:
        n, heads, kv, length, causal = map(int, given.split(","))
        mesh = dtorch.DeviceMesh("cuda", list(range(n)))
        inputs = [dtorch.randn(1, count, length, 32, device_mesh=mesh, placements=[dtorch.Shard(2)]) for count in (heads, kv, kv)]
        say("made")
        out = F.scaled_dot_product_attention(*inputs, is_causal=bool(causal), enable_gqa=heads != kv)
        say("done")
        del inputs, out
    """


def counted(*cases: tuple[int, int, int, int, bool]) -> list[dict[str, int]]:
    """What the daemons say of a program that attends, in each case (devices, heads, heads of keys, length, causal): bytes of the
    moves that attention made, the peak of memory up to then."""
    with Cluster() as cluster:
        words = [",".join(str(int(number)) for number in case) for case in cases]
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM), *words], text=True, stdin=subprocess.PIPE,
                                   env=os.environ | {"DTORCH_ADDRESS": cluster.path}, stdout=subprocess.PIPE)
        try:
            states = [state(cluster, process, index + 1) for index in range(2 * len(cases))]
        finally:
            process.kill()
            process.communicate()
    return [{"bytes": after["bytes"] - before["bytes"], "peak": after["peak"]} for before, after in zip(states[::2], states[1::2])]


def state(cluster: Cluster, process: Any, said: int) -> dict[str, int]:
    """The program's figures as of its next word, the `said`-th; it goes on then."""
    assert process.stdout.readline().strip() == ("made", "done")[(said + 1) % 2]
    found: dict[str, Any] = {}

    def is_counted() -> bool:  # the worker tells what was executed from time to time, memory and operators together
        nonlocal found
        job = next((j for j in json.loads(cluster.ctl("job", "list", "-o", "json"))["items"] if j["state"] == "live"), None)
        found = json.loads(cluster.ctl("job", "show", str(job["id"]), "-o", "json"))["items"][0] if job else {}
        return any(op["name"] == "aten::lgamma" and op["count"] >= said for op in found.get("operators", []))

    assert devicetest.becomes(is_counted), found
    process.stdin.write("\n")
    process.stdin.flush()
    return {"bytes": sum(move["bytes"] for move in found["moves"]), "peak": int(found["job"]["memory_peak_bytes"])}


def bytes_and_memory_are_those_of_a_ring() -> None:
    """Keys and values go around once; under a triangular mask half of everything changes places, there and back. All devices
    together hold one device's tensors, two blocks of keys and values and one of the result, however many they are."""
    cases = ((2, 3, 1, 512, False), (8, 3, 1, 512, False), (4, 3, 3, 256, False), (4, 3, 3, 256, True))
    row = 32 * 4
    for (devices, heads, kv, length, causal), got in zip(cases, counted(*cases)):
        own = length // devices
        want = 2 * (devices - 1) * own * kv * row
        if causal:
            want += own // 2 * (2 * heads + 2 * kv) * row + own // 2 * heads * 4
        assert got["bytes"] == want, (devices, heads, kv, causal, got, want)
        bound = (2 * heads + 2 * kv + 4 * kv + heads) * length * row
        print(f"{devices} devices: {got['peak'] / ((2 * heads + 2 * kv) * length * row):.2f} times the memory of one")
        assert causal or got["peak"] <= bound * 1.05 + 65536, (devices, got, bound)


LONG = """
    import os, sys
    os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "8"
    import torch, dtorch
    import torch.nn.functional as F
    torch.set_num_threads(1)
    devices, length, width = 8, 32768, 16
    drawn = torch.Generator().manual_seed(1)
    given = [torch.randn(1, 1, length, width, generator=drawn) for _ in range(3)]
    mesh = dtorch.DeviceMesh("cuda", list(range(devices)))
    inputs = [dtorch.distribute_tensor(x, mesh, [dtorch.Shard(2)]) for x in given]
    out = F.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.lgamma(torch.ones(1, device="dtorch"))
    torch.dtorch.synchronize()
    print("made", flush=True)
    sys.stdin.readline()
    rows = torch.arange(0, length, 251)
    scores = given[0][0, 0, rows].double() @ given[1][0, 0].double().T / width ** 0.5
    exact = scores.masked_fill(torch.arange(length) > rows[:, None], float("-inf")).softmax(-1) @ given[2][0, 0].double()
    one = F.scaled_dot_product_attention(*given, is_causal=True)
    for x in (one, out.cpu()):
        print((x[0, 0, rows].double() - exact).abs().max().item(), flush=True)
    """


def a_long_sequence_needs_the_memory_of_its_parts() -> None:
    """32,768 tokens on 8 devices: what a device has is 4,096 tokens' worth, times what a ring under a triangle needs beside its own
    (decision 0018), not times 8; and the values are as near to float64's as one device's are."""
    part, row = 4096, 16 * 4
    with Cluster() as cluster:
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(LONG)], text=True, stdin=subprocess.PIPE,
                                   env=os.environ | {"DTORCH_ADDRESS": cluster.path}, stdout=subprocess.PIPE)
        try:
            peak = state(cluster, process, 1)["peak"]
            own, ours = (float(process.stdout.readline()) for _ in range(2))
        finally:
            process.kill()
            process.communicate()
    print(f"32,768 tokens: {peak / 8 / (4 * part * row):.2f} times the memory of 4,096; {ours:.1e} from float64, one device {own:.1e}")
    assert peak / 8 <= 2.5 * 4 * part * row, peak
    assert ours <= 1.25 * own, (ours, own)  # the largest of 2,096 roundings, each way


def each_device_has_its_engine(devices: str, isolation: str, nodes: tuple[str, ...], count: int) -> None:
    """Blocks go from process to process, or from node to node, in so many programs at once."""
    text = """
        import dtorch
        dtorch.configure(devices=2)
        import device_context
        for causal in (False, True):
            for heads, length in (((3, 3), 12), ((3, 1), 13)):
                device_context.Case(heads, (length, length), causal=causal).on(device_context.line(2), [dtorch.Shard(2)])
        print("right")
        """
    with Cluster(devices, f"Isolation={isolation}\n", nodes) as cluster:
        environment = {key: value for key, value in os.environ.items() if key != "DTORCH_DTENSOR_IN_SAME_DEVICE"}
        programs = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], text=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, env=environment | {"DTORCH_ADDRESS": cluster.path}) for _ in range(count)]
        for program in programs:
            said, complained = program.communicate(timeout=devicetest.LIMIT_S)
            assert said.strip() == "right", complained[-500:]


def main() -> int:
    for count in (2, 3, 4):
        suite.check(f"a ring of {count} gives the values of one device", lambda n=count: a_ring_gives_the_values_of_one_device(n))
    for test in (other_types_and_scales, many_heads_or_batches_are_dealt_out, meshes_of_two_dimensions, keys_that_lie_elsewhere,
                 random_cases, a_mask_gathers, dropout_draws_as_one_device_does, a_growing_cache, views_of_fused_weights,
                 strict_refuses, bytes_and_memory_are_those_of_a_ring, a_long_sequence_needs_the_memory_of_its_parts):
        suite.check(test.__name__.replace("_", " "), test)
    for given in (("torch:cpu:2", "session", ("a",), 2), ("torch", "device", ("a", "b"), 1)):
        suite.check(f"each device has its engine, nodes {' '.join(given[2])}", lambda where=given: each_device_has_its_engine(*where))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
