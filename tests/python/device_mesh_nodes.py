"""usage: device_mesh_nodes.py [PART OF A NAME]...

Meshes over several nodes, each with one device: what the daemons count of bytes, and what is left when a node is lost; one
function over many items while nodes come and go."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import devicetest
import dtorch
from devicecluster import Cluster
from devicetest import becomes
from dtorch import DeviceMesh, Partial, Replicate, Shard, plans

suite = devicetest.Suite("device mesh nodes", devicetest.arguments())
R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()


def within(cluster: Cluster, devices: int, run: Callable[[], None]) -> None:
    """Run with a session of so many devices of the cluster."""
    dtorch.configure(address=cluster.path, devices=devices, connect_timeout=120)
    try:
        run()
    finally:
        with contextlib.suppress(dtorch.Error):  # what was lost was seen
            dtorch.disconnect()


def uploaded(cluster: Cluster) -> list[float]:
    """Bytes of large tensors that programs have sent to each of two nodes, by the nodes' own counters."""
    return [cluster.counter(f"node{i}", "dtorch_worker_bulk_bytes_total", 'direction="upload"') for i in range(2)]


def moved_since(cluster: Cluster, before: list[float]) -> list[float]:
    return sorted(now - then for now, then in zip(uploaded(cluster), before))


def a_file_is_loaded_in_parts() -> None:
    """A state_dict from a file into a model made on "meta": each node gets its parts and no byte more."""
    torch.manual_seed(0)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(512, 515, bias=False), nn.Linear(515, 256, bias=False))

    with Cluster("torch:cpu:1", nodes=("node0", "node1")) as cluster:
        path = cluster.folder / "model.pt"
        model = make()
        torch.save(model.state_dict(), path)

        def run() -> None:
            mesh = DeviceMesh("cuda", [0, 1])
            for plan, shares in ((plans.fsdp(0), [(258 * 512 + 128 * 515) * 4, (257 * 512 + 128 * 515) * 4]),
                                 ({"0.weight": [S1], "1.weight": [R]}, [256 * 515 * 4, 256 * 515 * 4])):
                with torch.device("meta"):
                    empty = make()
                on = dtorch.distribute(empty, mesh, plan)
                torch.dtorch.synchronize()
                before = uploaded(cluster)
                on.load_state_dict(torch.load(path, mmap=True, weights_only=True))
                torch.dtorch.synchronize()
                replicated = 0 if shares[0] != shares[1] else 256 * 515 * 4  # sent to one node, who gives it to the other
                want = sorted([float(shares[0] + replicated), float(shares[1])])
                assert becomes(lambda b=before, w=want: moved_since(cluster, b) == w), (moved_since(cluster, before), want)
                for name, value in on.state_dict().items():
                    devicetest.expect_same(model.state_dict()[name], value.to_torch())
        within(cluster, 2, run)


def moves_are_at_the_bound() -> None:
    """What the controller counts of redistributions is what no plan can be below, for the device that receives most; and the
    engines' own counters, of bytes that came by sockets or out of each other's memory, say the same."""
    for devices, nodes, way in (("torch:cpu:1", ("node0", "node1"), "link"), ("torch:cpu:2", ("node0",), "memory")):
        bounds_hold(devices, nodes, way)


def bounds_hold(devices: str, nodes: tuple[str, ...], way: str) -> None:
    with Cluster(devices, nodes=nodes) as cluster:
        def run() -> None:
            mesh, rows, columns = DeviceMesh("cuda", [0, 1]), 512, 384
            whole = rows * columns * 4
            value = torch.randn(rows, columns)

            def told() -> float:  # once a second
                return cluster.counter("controllerd", "dtorch_move_bytes_total")

            def came(by: str) -> float:
                return sum(cluster.counter(node, "dtorch_worker_move_bytes_total", f'by="{by}"') for node in nodes)

            sources = {p: dtorch.distribute_tensor(value, mesh, [p]) for p in (R, S0, S1, P)}
            torch.dtorch.synchronize()
            want = 2 * whole  # Replicate and Partial are made of what one device was sent
            assert becomes(lambda: told() >= want), told()
            received = want
            assert becomes(lambda: came(way) >= received), (way, came(way))
            moved = []
            for before, after, bound in ((R, S0, 0), (R, S1, 0), (S0, P, 0), (S0, R, whole // 2), (S0, S1, whole // 4), (S1, S0, whole // 4),
                                         (P, R, whole), (P, S0, whole // 2), (P, S1, whole // 2)):
                moved.append(sources[before].redistribute(mesh, [after]))
                torch.dtorch.synchronize()
                want += bound
                assert becomes(lambda w=want: told() >= w), f"{before} to {after}: {told() - want} bytes beside the bound"
                assert told() == want, f"{before} to {after}: {told() - want} bytes above the bound"
                received += 2 * bound  # both devices
                assert becomes(lambda r=received: came(way) >= r), f"{before} to {after}: {received - came(way)} bytes did not come"
                assert came(way) == received, f"{before} to {after}: {came(way) - received} bytes came beside what was planned"
            for y in moved:
                assert torch.allclose(value, y.to_torch(), rtol=1e-6)
        within(cluster, 2, run)


def survivors_make_a_new_mesh() -> None:
    """A node is killed: what lay on it is lost with a typed error, the session goes on with the devices that are left."""
    with Cluster("torch:cpu:1", nodes=("node0", "node1", "node2"), dead_beats=40) as cluster:
        def run() -> None:
            everybody = DeviceMesh("cuda", [0, 1, 2])
            value = torch.arange(24.0).reshape(6, 4)
            lost = dtorch.distribute_tensor(value, everybody, [S0])
            kept = [value.to(f"dtorch:{i}") for i in range(3)]
            torch.dtorch.synchronize()
            cluster.programs["node1"].kill()

            def is_lost() -> bool:
                try:
                    (lost + 1).cpu()
                except dtorch.Error:
                    return True
                return False

            assert becomes(is_lost), "the tensor on all devices is still there"
            left = [i for i in range(3) if survives(kept[i])]
            assert len(left) == 2, left
            mesh = DeviceMesh("cuda", left)
            x = kept[left[0]].redistribute(mesh, [S0])
            devicetest.expect_same(value @ value.t(), (x @ x.t()).to_torch())
            devicetest.expect_same(value.sum(), (x.sum()).cpu())
            layer = dtorch.distribute(nn.Linear(4, 2), mesh, plans.fsdp(0))
            before = layer(x).cpu()
            layer(x).sum().backward()
            with torch.no_grad():
                layer.bias -= layer.bias.grad
            assert torch.allclose(before - 6, layer(x).cpu())
            raises_lost(lost)
        within(cluster, 3, run)


def survives(tensor: torch.Tensor) -> bool:
    try:
        tensor.cpu()
    except dtorch.Error:
        return False
    return True


def raises_lost(tensor: torch.Tensor) -> None:
    """Raises: AssertionError (the value is there, or the error does not say which node was lost)."""
    try:
        tensor.cpu()
    except dtorch.Error as error:
        assert "node" in str(error), error
        return
    raise AssertionError("a lost value is there")


def items_are_spread() -> None:
    """Results come in the items' order, of several devices, with what was made for each; what the function raises is raised."""
    with Cluster("torch:cpu:1", nodes=("node0", "node1")) as cluster:
        def run() -> None:
            torch.manual_seed(1)
            layer, items = nn.Linear(4, 3), [{"x": torch.randn(2, 4), "number": i} for i in range(12)]
            want = [(i, layer(item["x"]).detach()) for i, item in enumerate(items)]
            made, used = [], []

            def make(device: torch.device) -> nn.Module:
                made.append(device.index)
                return nn.Linear(4, 3).to(device).requires_grad_(False)

            def compute(item: Any, own: nn.Module) -> Any:
                used.append(item["x"].device.index)
                assert torch.dtorch.current_device() == used[-1] == own.weight.device.index
                own.load_state_dict(layer.state_dict())
                return item["number"], own(item["x"])

            got = dtorch.scalable(compute, iter(items), workers=2, each=make)
            assert len(got) == len(want) and all(g[0] == w[0] for g, w in zip(got, want))
            for (_, g), (_, w) in zip(got, want):
                devicetest.expect_same(w, g)
            assert sorted(made) == [0, 1] == sorted(set(used)) and len(used) == len(items), (made, used)
            assert dtorch.scalable(lambda x: x, []) == []
            assert dtorch.scalable(lambda x: x + 1, [torch.tensor(1), torch.tensor(2)], workers=[1]) == [2, 3]
            for bad, kind in ((lambda x: x.view(7), RuntimeError), (lambda x: x[x + 9], dtorch.OperatorError)):
                try:
                    dtorch.scalable(bad, [torch.arange(3)])
                except kind:
                    continue
                raise AssertionError(f"no {kind}")
        within(cluster, 2, run)


def items_outlive_their_devices() -> None:
    """A node is killed while it computes, and started again: each item is once in the result, and the node has its share again."""
    with Cluster("torch:cpu:1", nodes=("node0", "node1", "node2"), dead_beats=40) as cluster:
        def run() -> None:
            used: list[list[int]] = [[], [], []]  # devices, in the order of calls: before, while the node is away, afterwards
            stage = 0

            def everybody() -> bool:
                return set(used[stage]) == {0, 1, 2}

            def some() -> bool:
                return len(used[stage]) >= 8

            def kill() -> None:
                cluster.programs["node1"].kill()
                cluster.programs["node1"].wait()

            def items() -> Iterator[torch.Tensor]:
                nonlocal stage
                number, until = 0, time.monotonic() + devicetest.LIMIT_S / 2
                for is_enough, event in ((everybody, kill), (some, lambda: cluster.start("node1")),
                                         (everybody, None)):
                    while not is_enough() and time.monotonic() < until:
                        yield torch.full((3,), float(number), dtype=torch.float64)  # exact, however many there are
                        number += 1
                    if event:
                        event()
                        stage += 1

            def compute(x: torch.Tensor) -> torch.Tensor:
                used[stage].append(x.device.index)
                return (x.outer(x) + 1).sum()

            got = dtorch.scalable(compute, items(), workers=3, patience=devicetest.LIMIT_S / 2)
            assert set(used[2]) == {0, 1, 2}, used
            assert [value.item() for value in got] == [9.0 * i * i + 9 for i in range(len(got))], got
        within(cluster, 3, run)


def trained(worker_options: str) -> list[torch.Tensor]:
    """A model's parameters after some steps of data parallelism, with all gradients summed and with the optimizer's state in parts,
    on two nodes. Every gradient moves as soon as it is there."""
    values: list[torch.Tensor] = []

    def run() -> None:
        mesh = DeviceMesh("cuda", [0, 1])
        for plan in (plans.data_parallel(0), plans.zero(2, 0)):
            torch.manual_seed(0)
            model = dtorch.distribute(nn.Sequential(*[nn.Linear(67, 67) for _ in range(6)]), mesh, plan)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(4):
                batch = dtorch.distribute_tensor(torch.randn(10, 67), mesh, [S0])
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            values.extend(dtorch.to_torch(p.detach()) for p in model.parameters())

    with Cluster("torch:cpu:1", worker_options, nodes=("node0", "node1")) as cluster:
        within(cluster, 2, run)
    return values


def a_step_has_the_same_bits_without_overlap() -> None:
    """Operators that go on beside moves change nothing of what a program computes."""
    for one, other in zip(trained(""), trained("Overlap=no\n"), strict=True):
        assert torch.equal(one, other), (one - other).abs().max()


# A session makes all meshes of its process: those with more devices come last.
CHECKS = [a_file_is_loaded_in_parts, moves_are_at_the_bound, a_step_has_the_same_bits_without_overlap, items_are_spread,
          survivors_make_a_new_mesh, items_outlive_their_devices]

if __name__ == "__main__":
    for function in CHECKS:
        suite.check(function.__name__.replace("_", " "), function)
    sys.exit(suite.finish())
