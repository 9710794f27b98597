"""usage: device_mesh.py [PART OF A NAME]...

Tensors on meshes: the names and their checks, values under every layout, models under every plan against one device.

The session is a private cluster of one node whose device stands for eight."""

import copy
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "8"

import torch  # noqa: E402  (the number of devices is read when the session begins)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import devicetest  # noqa: E402
import dtorch  # noqa: E402
from dtorch import DeviceMesh, Partial, Replicate, Shard, plans  # noqa: E402
from dtorch.placements import decode, encode  # noqa: E402

suite = devicetest.Suite("device mesh", devicetest.arguments())
R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()


def two() -> DeviceMesh:
    return DeviceMesh("cuda", [0, 1])


def four() -> DeviceMesh:
    return DeviceMesh("cuda", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))


def raises(kind: type[BaseException], function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Raises: AssertionError (the function did not raise that)."""
    try:
        function(*args, **kwargs)
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def same(want: Any, got: Any) -> None:
    devicetest.expect_same(want, got)


def close(want: torch.Tensor, got: torch.Tensor, bound: float = 1e-5) -> None:
    """Sums over devices are added in another order than on one: the last bits may differ. Raises: AssertionError."""
    a, b = want.detach().double().cpu(), got.detach().cpu().double()
    assert a.shape == b.shape, f"{tuple(b.shape)} for {tuple(a.shape)}"
    far = float((a - b).abs().max() / (a.abs().max() + 1e-9)) if a.numel() else 0.0
    assert far <= bound, f"{far} from the value"


# ---- names: no cluster is needed ----


def placements_are_pytorch_s() -> None:
    from torch.distributed import tensor as peer

    for ours, theirs in ((Shard(0), peer.Shard(0)), (Shard(-1), peer.Shard(-1)), (Replicate(), peer.Replicate()),
                         (Partial(), peer.Partial()), (Partial("max"), peer.Partial("max"))):
        assert repr(ours) == repr(theirs) and str(ours) == str(theirs), (repr(ours), str(ours))
        assert ours.is_shard() == theirs.is_shard() and ours.is_partial() == theirs.is_partial()
        assert ours.is_replicate() == theirs.is_replicate()
    assert Shard(0) == Shard(0) != Shard(1) and hash(Shard(2)) == hash(Shard(2)) and Shard(0) != Shard(0, unit=2)
    assert len({Shard(0), Shard(0), Replicate(), Replicate(), Partial(), Partial("avg")}) == 4
    assert Shard(1).is_shard(1) and not Shard(1).is_shard(0) and Partial("avg").is_partial("avg")


def placements_are_checked() -> None:
    raises(TypeError, Shard, "0")
    raises(TypeError, Shard, True)
    raises(ValueError, Shard, 0, unit=0)
    raises(ValueError, Partial, "product")
    given = [Shard(1, unit=4, groups=3), Replicate(), Partial("min"), Shard(0)]
    assert list(decode(encode(given))) == given
    raises(ValueError, dtorch.rand, (4, 3), device_mesh=two(), placements=[Shard(2)])
    raises(ValueError, dtorch.rand, (4, 3), device_mesh=two(), placements=[S0, S0])
    raises(TypeError, dtorch.rand, (4, 3), device_mesh=two(), placements=["S0"])
    raises(ValueError, dtorch.distribute_tensor, torch.ones(2), four(), [Partial("max"), Partial()])


def a_mesh_has_a_shape_and_names() -> None:
    mesh = DeviceMesh("cuda", [[0, 1, 2], [3, 4, 5]], mesh_dim_names=("dp", "tp"))
    assert mesh.shape == (2, 3) and mesh.ndim == 2 and mesh.size() == 6 and mesh.size("tp") == 3 and mesh.size(-2) == 2
    assert mesh.mesh.tolist() == [[0, 1, 2], [3, 4, 5]] and mesh.device_type == "cuda" and mesh.mesh_dim_names == ("dp", "tp")
    assert mesh["tp"].mesh.tolist() == [0, 1, 2] and mesh["dp"].mesh.tolist() == [0, 3]
    assert mesh["tp", "dp"].mesh.tolist() == [[0, 3], [1, 4], [2, 5]] and mesh["dp", "tp"] == mesh
    assert mesh.select("dp", 1) == DeviceMesh("cpu", [3, 4, 5], mesh_dim_names=("tp",))
    assert eval(repr(mesh)) == mesh and hash(eval(repr(mesh))) == hash(mesh)
    assert dtorch.init_device_mesh("dtorch", (2, 2)) == DeviceMesh("cpu", torch.tensor([[0, 1], [2, 3]]))


def a_mesh_is_checked() -> None:
    for kind, args in ((ValueError, ("tpu", [0])), (ValueError, ("cuda", [])), (ValueError, ("cuda", [0, 0])),
                       (ValueError, ("cuda", [[0], [1, 2]])), (ValueError, ("cuda", [-1])), (TypeError, ("cuda", [0.5])),
                       (TypeError, ("cuda", "01")), (TypeError, ("cuda", torch.ones(2)))):
        raises(kind, DeviceMesh, *args)
    raises(ValueError, DeviceMesh, "cuda", [0, 1], mesh_dim_names=("a", "b"))
    raises(ValueError, DeviceMesh, "cuda", [[0, 1]], mesh_dim_names=("a", "a"))
    raises(KeyError, lambda: four()["pp"])
    raises(KeyError, two().size, "dp")
    raises(IndexError, four().select, "tp", 2)
    raises(ValueError, dtorch.init_device_mesh, "cuda", (2, 0))


def a_session_that_has_begun_keeps_its_number_of_devices() -> None:
    torch.zeros(1, device="dtorch")
    count = torch.dtorch.device_count()  # type: ignore[attr-defined]
    for call in (lambda: DeviceMesh("cuda", [0, count]), lambda: torch.dtorch.set_device(count),  # type: ignore[attr-defined]
                 lambda: dtorch.configure(devices=count + 1)):
        try:
            call()
        except dtorch.errors.BegunError as error:
            assert "begun" in str(error) or f"configure(devices={count + 1})" in str(error), error
        else:
            raise AssertionError("a session grew")


def plans_say_where() -> None:
    class Config:
        num_attention_heads, num_key_value_heads, hidden_size = 9, 3, 576

    mesh = four()
    plan = plans.fsdp("dp") + plans.llama_tensor_parallel("tp", config=Config, vocabulary=True)
    q = plan.layout("model.layers.0.self_attn.q_proj.weight", (576, 576), mesh)
    assert q.at_rest == (S0, Shard(0, unit=192)) and q.in_use == (R, Shard(0, unit=192)) and q.state == q.at_rest
    k = plan.layout("model.layers.0.self_attn.k_proj.weight", (192, 576), mesh)
    assert k.at_rest[1] == Shard(0, unit=64), k
    o = plan.layout("model.layers.0.self_attn.o_proj.weight", (576, 576), mesh)
    assert o.at_rest == (S0, Shard(1, unit=192)), o
    down, head = (plan.layout(name, (576, 1536), mesh).at_rest[1] for name in ("a.down_proj.weight", "lm_head.weight"))
    assert (down, head) == (S1, S0) and plan.batch(mesh) == (S0, R)
    norm = plan.layout("model.norm.weight", (576,), mesh)
    assert norm.at_rest == (S0, R) and norm.in_use == (R, R)
    one, two_ = (plans.zero(stage).layout("w", (4, 4), mesh) for stage in (1, 2))
    assert one.at_rest == one.gradient == (R, R) and one.state == two_.gradient == two_.state == (S0, R)
    assert plans.expert_parallel("dp").layout("mlp.experts.down_proj", (8, 4, 4), mesh).at_rest == (S0, R)
    simple = plans.as_plan({"qkv": [R, S0], "out": [R, S1]}, mesh)
    assert simple.layout("qkv.weight", (6, 2), mesh).at_rest == (R, S0) and simple.layout("x", (2,), mesh).at_rest == (R, R)
    raises(ValueError, simple.layout, "out.bias", (4,), mesh)
    raises(KeyError, plans.data_parallel("ddp").batch, mesh)
    raises(TypeError, plans.as_plan, ["qkv"], mesh)


# ---- values ----


def the_first_example_runs() -> None:
    text = ("import dtorch\n"
            "mesh = dtorch.DeviceMesh('cuda', [0, 1])\n"
            "x = dtorch.rand((4, 3), device_mesh=mesh, placements=[dtorch.Shard(0)])\n"
            "print(f'{x=}')\n")
    for devices in ("2", None):
        environment = {k: v for k, v in os.environ.items() if k != "DTORCH_DTENSOR_IN_SAME_DEVICE"}
        if devices:
            environment["DTORCH_DTENSOR_IN_SAME_DEVICE"] = devices
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "example.py"
            path.write_text(text)
            done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False,
                                  timeout=devicetest.LIMIT_S)
        assert done.returncode == 0, done.stderr
        for part in ("x=tensor([[", "size=(4, 3)", "device_mesh=DeviceMesh('cuda', [0, 1])", "placements=[Shard(dim=0)]"):
            assert part in done.stdout, done.stdout


LAYOUTS = [("S0", [S0]), ("S1", [S1]), ("R", [R])]


def meshes() -> list[tuple[DeviceMesh, list[Any]]]:
    three = DeviceMesh("cuda", [0, 1, 2])
    return [(two(), [S0]), (two(), [S1]), (two(), [R]), (three, [S0]), (four(), [S0, S1]), (four(), [S0, S0]), (four(), [R, S1])]


def values_go_in_and_come_out() -> None:
    for mesh, layout in meshes():
        for shape in ((5, 3), (1, 2), (0, 4), (8, 6)):
            value = torch.arange(shape[0] * shape[1], dtype=torch.float64).reshape(shape)
            x = dtorch.distribute_tensor(value, mesh, layout)
            same(value, x.to_torch())
            assert x.device_mesh == mesh and list(x.placements) == layout and x.shape == value.shape
            same(value, x.full_tensor().cpu())
    x = dtorch.distribute_tensor(torch.arange(5.0), two(), [S0])
    same([torch.arange(3.0), torch.arange(3.0, 5.0)], list(x.shards().values()))
    assert not hasattr(torch.ones(2), "placements") and not hasattr(torch.ones(2, device="dtorch"), "device_mesh")


def parts_are_reshaped() -> None:
    # Its gradient reshapes a column, which is moved for it: read with the column's strides a copy would be read beyond its end.
    for mesh, layout in meshes():
        gradients = []
        for t in (torch.ones(1), dtorch.distribute_tensor(torch.ones(1), mesh, [S0] * mesh.ndim)):
            t.requires_grad_()
            other = torch.arange(2.0)
            other = other if t.device.type == "cpu" else dtorch.distribute_tensor(other, mesh, [S0] * mesh.ndim)
            torch.cartesian_prod(t, other).sum().backward()
            gradients.append(t.grad)
        same(gradients[0], gradients[1].cpu())


def integers_do_not_wrap() -> None:
    # The identity of a maximum is the least integer, and that less one is the largest.
    value = torch.tensor([[-8, 3, 5]])
    x = dtorch.distribute_tensor(value, two(), [S0]).amax(0)
    for step in (lambda t: t - 6, lambda t: -t, lambda t: t + torch.tensor(-7), lambda t: t * -3, lambda t: t * 3, lambda t: 2 - t):
        same(step(value.amax(0)), step(x).cpu())
    one, mesh_one = torch.tensor(-8).to("dtorch"), dtorch.distribute_tensor(torch.tensor(6), four())
    assert (one - mesh_one).item() == -14 and (mesh_one - one).item() == 14
    image = torch.arange(-100, 143).reshape(1, 3, 9, 9)
    for where in (S0, S1, Shard(2), Shard(3)):
        same(F.avg_pool2d(image, 3, 1, 1), F.avg_pool2d(dtorch.distribute_tensor(image, two(), [where]), 3, 1, 1).cpu())


def layouts_change() -> None:
    value = torch.randn(6, 5)
    for mesh, layout in meshes():
        x = dtorch.distribute_tensor(value, mesh, layout)
        for other, to in meshes():
            y = x.redistribute(other, to)
            assert y.device_mesh == other and list(y.placements) == to
            same(value, y.to_torch())


def every_layout_is_the_global_value() -> None:
    value = torch.arange(6.0).reshape(2, 3)
    for mesh, layout in meshes():
        x = dtorch.distribute_tensor(value, mesh, layout)
        assert x.sum().item() == 15.0 and float(x.max()) == 5.0 and bool((x >= 0).all()) and x[1, 2].item() == 5.0
        assert x.tolist() == value.tolist()
    x = dtorch.distribute_tensor(value, two(), [S0]).sum(0)
    assert x.tolist() == [3.0, 5.0, 7.0] and float(x[0] + 1) == 4.0, "a number is added once, not on each device"


def plain_tensors_meet_them() -> None:
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    x, plain = dtorch.distribute_tensor(a, two(), [S0]), b.to("dtorch")
    same(a + b, (x + plain).cpu())
    same(b - a, (plain - x).cpu())
    plain += x
    same(b + a, plain.cpu())
    same(a * 2.5, (x * 2.5).cpu())
    same(a + 1, (x + torch.tensor(1.0)).cpu())


def factories_make_the_same_everywhere() -> None:
    for name, args in (("zeros", ((5, 4),)), ("ones", (5, 4)), ("full", ((5, 4), 2.5)), ("arange", (7,)), ("eye", (5,)),
                       ("linspace", (0, 1, 5))):
        want = getattr(torch, name)(*args)
        for mesh, layout in meshes():
            layout = [p if not p.is_shard() or p.dim < want.dim() else S0 for p in layout]
            x = getattr(dtorch, name)(*args, device_mesh=mesh, placements=layout)
            assert list(x.placements) == layout, (name, x.placements)
            same(want, x.to_torch())
    same(torch.ones(3), dtorch.ones(3).cpu())


def random_numbers_are_the_same_everywhere() -> None:
    def draw(make: Callable[..., torch.Tensor], like: torch.Tensor) -> list[torch.Tensor]:
        torch.manual_seed(5)
        return [make("rand"), make("randn"), torch.rand_like(like), F.dropout(like, 0.5), torch.bernoulli(like * 0.5),
                nn.init.normal_(like.clone()), torch.multinomial(like, 2), make("rand")]

    want = draw(lambda name: getattr(torch, name)(6, 4), torch.ones(6, 4))
    for mesh, layout in meshes():
        got = draw(lambda name: getattr(dtorch, name)(6, 4, device_mesh=mesh, placements=layout),
                   dtorch.ones(6, 4, device_mesh=mesh, placements=layout))
        for a, b in zip(want, got):
            same(a, b.cpu())


VIEWS: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
    ("row", lambda x: x[3]), ("column", lambda x: x[:, 2]), ("rows", lambda x: x[1:5]), ("columns", lambda x: x[:, 1:3]),
    ("steps", lambda x: x[::2]), ("transposed", lambda x: x.t()), ("flat", lambda x: x.view(-1)),
    ("chunk", lambda x: x.chunk(2)[1]),
    ("split", lambda x: x.view(4, 2, 6)[:, 1]), ("diagonal", lambda x: x.diagonal()), ("chain", lambda x: x.t()[1:4].t()[2:7]),
    ("strided", lambda x: x.as_strided((3, 2), (6, 1), 7)), ("strided part", lambda x: x[2:, 1:].as_strided((3, 2), (6, 1))),
    ("reshaped part", lambda x: torch.ops.aten._reshape_alias(x[:, 2], (2, 4), (24, 6))), ("detached", lambda x: x.detach().data)]


def writes_go_through_views() -> None:
    value = torch.randn(8, 6)
    for mesh, layout in meshes():
        for name, view in VIEWS:
            want, x = value.clone(), dtorch.distribute_tensor(value, mesh, layout)
            for t in (want, x):
                seen = view(t)
                view(t).mul_(3).add_(1)
                view(t)[..., 0] = 7
                seen += 1
            try:
                same(want, x.cpu())
                assert view(x).tolist() == view(want).tolist(), "the view has another value"
            except AssertionError as error:
                raise AssertionError(f"{name} of {layout}: {error}") from None


def writes_go_through_parts_of_expanded_views() -> None:
    """Where several elements are one place of the storage, the part that was moved cannot be copied back."""
    value = torch.randn(1, 6)
    for mesh, layout in ((two(), [S1]), (four(), [S1, R]), (four(), [R, S1]), (DeviceMesh("cuda", [0, 1, 2, 3]), [S1])):
        want, x = value.clone(), dtorch.distribute_tensor(value, mesh, layout)
        beside = x.t()
        for t in (want, x):
            part = t.expand(3, 6)[:, 1:4]
            part[0].add_(1)
            part[2, 1:].mul_(3)
            part[1] += part[0]
        same(want, x.cpu())
        same(want.t(), beside.cpu())
        assert list(x.placements) == layout, x.placements


def gradients_go_through_views() -> None:
    value = torch.randn(8, 6)
    for mesh, layout in meshes()[:5]:
        for name, view in VIEWS[:-5]:
            if name == "chunk":
                continue  # autograd refuses a write to one of several views, as on the CPU
            gradients = []
            for t in (value.clone(), dtorch.distribute_tensor(value, mesh, layout)):
                t.requires_grad_()
                y = t * 2
                view(y).mul_(0.5)
                (y * y).sum().backward()
                gradients.append(t.grad)
            try:
                close(*gradients)
            except AssertionError as error:
                raise AssertionError(f"{name} of {layout}: {error}") from None


def redistribute_has_a_gradient() -> None:
    for before, after in ((S0, R), (R, S0), (S0, S1), (S1, S0)):
        x = dtorch.distribute_tensor(torch.arange(12.0).reshape(4, 3), two(), [before]).requires_grad_()
        (x.redistribute(placements=[after]) ** 2).sum().backward()
        same(2 * torch.arange(12.0).reshape(4, 3), x.grad.cpu())
        assert list(x.grad.placements) == [before], x.grad.placements
    x = torch.arange(4.0, device="dtorch", requires_grad=True)
    (x.redistribute(two(), [S0]).full_tensor() * 3).sum().backward()
    same(torch.full((4,), 3.0), x.grad.cpu())


def what_needs_a_whole_dimension_does_not_gather_it() -> None:
    x, target = torch.randn(40, 70, dtype=torch.float64), torch.randint(0, 70, (40,))
    target[3] = -100
    weight = torch.rand(70, dtype=torch.float64)
    steps: list[tuple[str, Callable[..., torch.Tensor]]] = [
        ("softmax", lambda x, t, w: x.softmax(1)), ("softmax 0", lambda x, t, w: x.softmax(0)),
        ("log_softmax", lambda x, t, w: x.log_softmax(-1)), ("norm", lambda x, t, w: x.norm()),
        ("norm of rows", lambda x, t, w: torch.linalg.vector_norm(x, 3, 1)), ("layer_norm", lambda x, t, w: F.layer_norm(x, (70,), w, w)),
        ("cross_entropy", lambda x, t, w: F.cross_entropy(x, t)), ("weighted", lambda x, t, w: F.cross_entropy(x, t, w))]
    for mesh, where, rows in ((two(), [S0], [S0]), (two(), [S1], [R]), (DeviceMesh("cuda", [0, 1, 2]), [S1], [R]), (four(), [S0, S1], [S0, R]),
                              (four(), [S1, S1], [R, R])):
        for name, step in steps:
            results = []
            for on in (False, True):
                a = (dtorch.distribute_tensor(x, mesh, where) if on else x.clone()).requires_grad_()
                y = step(a, dtorch.distribute_tensor(target, mesh, rows) if on else target,
                         dtorch.distribute_tensor(weight, mesh) if on else weight)
                results.append((y, torch.autograd.grad((y * y).sum(), a)[0]))
            for want, got in zip(*results):
                try:
                    close(want, got, 1e-12)
                except AssertionError as error:
                    raise AssertionError(f"{name} of {where}: {error}") from None
            if name in ("softmax", "softmax 0", "log_softmax", "layer_norm") and mesh.ndim == 1:
                assert list(results[1][0].placements) == where, (name, where, results[1][0].placements)
    for dtype in (torch.bfloat16, torch.float16):
        y = dtorch.distribute_tensor(x.to(dtype), two(), [S1])
        close(x.to(dtype).softmax(1), y.softmax(1), 1e-2)
        assert y.softmax(1).dtype == dtype and torch.softmax(y, 1, dtype=torch.float32).dtype == torch.float32


def the_gradient_of_an_embedding_moves_what_is_less() -> None:
    """The tokens are gathered where there are fewer of them than rows; else each device makes its part of the sum."""
    for rows, tokens, where in ((64, 8, R), (4, 64, P)):
        given, ids = torch.randn(tokens, 6, dtype=torch.float64), torch.randint(0, rows, (tokens,))
        on = [dtorch.distribute_tensor(t, two(), [S0]) for t in (given, ids)]
        got = torch.ops.aten.embedding_dense_backward(*on, rows, -1, False)
        assert list(got.placements) == [where], (rows, tokens, got.placements)
        close(torch.ops.aten.embedding_dense_backward(given, ids, rows, -1, False), got, 1e-12)
    # A table that is cut by rows has its gradient by rows: each device makes its own, without a move.
    for rows, mesh, where, padding in ((11, two(), [S0], None), (11, two(), [S0], 7), (12, four(), [R, S0], 3), (41, four(), [S0, S0], None)):
        weight, ids = torch.randn(rows, 6), torch.randint(0, rows, (4, 5))
        tables = [weight.requires_grad_(), dtorch.distribute_tensor(weight, mesh, where).detach().requires_grad_()]
        for table, at in zip(tables, (ids, dtorch.distribute_tensor(ids, mesh, [R] * mesh.ndim)), strict=True):
            F.embedding(at, table, padding_idx=padding).square().sum().backward()
        assert list(tables[1].grad.placements) == where, (rows, tables[1].grad.placements)
        close(tables[0].grad, tables[1].grad)


def lazy_conjugates_are_moved() -> None:
    value = torch.randn(1, 1, 5, 4, dtype=torch.complex64)
    x = dtorch.distribute_tensor(value, two(), [S1])
    for f in (lambda t: t.conj().view(1, 5, 4), lambda t: t.conj().view(5, 4).mT.conj()[1:3], lambda t: t.conj().imag.view(20)):
        assert torch.equal(f(value), f(x).cpu())


def operators_that_depend_on_values() -> None:
    value = torch.tensor([[1.0, -2.0, 3.0], [0.0, 5.0, -6.0], [7.0, 0.0, 9.0]])
    for mesh, layout in meshes():
        x = dtorch.distribute_tensor(value, mesh, layout)
        same(value[value > 0], x[x > 0].cpu())
        same(value.nonzero(), x.nonzero().cpu())
        same(value.unique(), x.unique().cpu())
        x[x < 0] = 0.5
        same(torch.where(value < 0, 0.5, value), x.cpu())


def meshes_of_one_array_keep_their_names() -> None:
    plain, named = DeviceMesh("cuda", [0, 1]), dtorch.init_device_mesh("cuda", (2,), mesh_dim_names=("tp",))
    x, y = (dtorch.distribute_tensor(torch.ones(4, 2), mesh, [S0]) for mesh in (plain, named))
    for mesh, t in ((plain, x), (named, y), (named, y + 1), (named, (y * 2).t())):
        assert t.device_mesh == mesh, (t.device_mesh, mesh)
    same(torch.full((4, 2), 2.0), (x + y).cpu())
    # A gradient that came on the one is not moved for the sake of the other's name.
    layer = dtorch.distribute(nn.Linear(2, 4), named, plans.zero(2, "tp"))
    layer(x).sum().backward()
    assert list(layer.weight.grad.placements) == [S0] and layer.weight.grad.device_mesh.is_same_array(named)


def copies_keep_the_layout() -> None:
    import io

    value = torch.randn(6, 4)
    x = dtorch.distribute_tensor(value, two(), [S1])
    for y in (copy.deepcopy(x), x.clone(), torch.empty_like(x).copy_(x), torch.zeros_like(x) + x):
        same(value, y.cpu())
        assert list(y.placements) == [S1], y.placements
    buffer = io.BytesIO()
    torch.save({"x": x}, buffer)
    buffer.seek(0)
    same(value, torch.load(buffer)["x"].cpu())


def what_is_written_and_not_returned() -> None:
    model = nn.Linear(6, 4)
    for plan, where in ((plans.data_parallel(0), S0), (plans.fsdp(0), S0), (plans.zero(1, 0), S0)):
        want, on = copy.deepcopy(model), dtorch.distribute(copy.deepcopy(model), two(), plan)
        x = torch.randn(8, 6)
        for m, y in ((want, x), (on, dtorch.distribute_tensor(x, two(), [where]))):
            optimizer = torch.optim.AdamW(m.parameters(), lr=0.1, fused=True)
            for _ in range(2):
                m(y).square().mean().backward()
                optimizer.step()
        for a, b in zip(want.parameters(), on.parameters()):
            close(a, b)
    x, mean, var = torch.randn(4, 3, 2), torch.zeros(3), torch.ones(3)
    y = dtorch.distribute_tensor(x, two(), [S0])
    means, vars_ = (dtorch.distribute_tensor(t, two(), [S0]) for t in (mean, var))
    close(F.batch_norm(x, mean, var, training=True), F.batch_norm(y, means, vars_, training=True))
    close(mean, means)
    close(var, vars_)
    for plan, where in ((plans.data_parallel(0), S0), (plans.data_parallel(0), S1)):
        norm = nn.BatchNorm1d(3)
        on = dtorch.distribute(copy.deepcopy(norm), two(), plan)
        for _ in range(2):
            close(norm(x), on(dtorch.distribute_tensor(x, two(), [where])))
        for a, b in zip(norm.buffers(), on.buffers()):
            close(a, b)
    # Copies that were kept for another operator are told apart from what was written since.
    norm = nn.BatchNorm1d(3)
    on = dtorch.distribute(copy.deepcopy(norm), two(), plans.data_parallel(0))
    for _ in range(2):
        close(norm.eval()(x), on.eval()(dtorch.distribute_tensor(x, two(), [S1])))
        close(norm.train()(x), on.train()(dtorch.distribute_tensor(x, two(), [R])))
    model, weights = nn.Linear(4, 4, bias=False), torch.randn(4, 4)
    on = dtorch.distribute(copy.deepcopy(model), two(), plans.data_parallel(0))
    for m, w in ((model, weights), (on, dtorch.distribute_tensor(weights, two(), [S0]))):
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.1, fused=True)
        for _ in range(2):
            (m.weight * w).sum().backward()
            optimizer.step()
    close(model.weight * weights, on.weight * dtorch.distribute_tensor(weights, two(), [S0]))
    for where in (S0, S1):
        torch.manual_seed(3)
        want = F.rrelu(x, training=True)
        torch.manual_seed(3)
        leaf = dtorch.distribute_tensor(x, two(), [where]).requires_grad_()
        got = F.rrelu(leaf, training=True)
        got.sum().backward()
        same([want], [got.detach().cpu()])
        close(torch.where(x > 0, 1.0, want / x), leaf.grad)


def norms_without_statistics_run_wherever_they_lie() -> None:
    x = torch.randn(4, 3, 6, dtype=torch.float64)
    for where in ([Shard(2), S0], [S0, S1], [R, Shard(2)], [P, R]):
        on = dtorch.distribute_tensor(x, four(), where)
        close(F.batch_norm(x, None, None, training=True), F.batch_norm(on, None, None, training=True), 1e-12)
        got = torch.ops.aten._native_batch_norm_legit.no_stats(on, None, None, True, 0.1, 1e-5)
        for want, part in zip(torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5), got):
            close(want, part, 1e-12)


def sizes_that_had_to_be_asked_for() -> None:
    # What is asked has no sizes of its own: they are not taken for those of the tensor that is asked about.
    numbers = torch.arange(24).reshape(4, 3, 2)
    for where in (S0, S1, R):
        got = torch.unravel_index(dtorch.distribute_tensor(numbers, two(), [where]), (2, 3, 4))
        same([t.contiguous() for t in torch.unravel_index(numbers, (2, 3, 4))], [t.cpu() for t in got])


def lists_of_tensors() -> None:
    values = [torch.randn(4, 3), torch.randn(5), torch.randn(2, 2)]
    on = [dtorch.distribute_tensor(values[0], two(), [S1]), dtorch.distribute_tensor(values[1], two(), [S0])]
    on.append(values[2].to("dtorch"))
    same([v * 2 for v in values], [t.cpu() for t in torch._foreach_mul(on, 2.0)])
    torch._foreach_add_(on, on, alpha=2)
    same([v + v * 2 for v in values], [t.cpu() for t in on])
    close(torch.nn.utils.get_total_norm(values), torch.nn.utils.get_total_norm(on[:2] + [on[2]]) / 3)


def results_go_where_out_says() -> None:
    """Every layout of inputs and of the tensor that is given for the result; also one that has to be resized, and a view."""
    a, b = torch.randn(6, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)
    steps: list[tuple[str, Callable[..., Any]]] = [
        ("add", lambda x, y, out: torch.add(x, y, out=out)), ("mm", lambda x, y, out: torch.mm(x, y, out=out)),
        ("exp", lambda x, y, out: torch.exp(x, out=out)), ("where", lambda x, y, out: torch.clamp(x, y, y + 1, out=out)),
        ("cumsum", lambda x, y, out: torch.cumsum(x, 1, out=out)), ("sum", lambda x, y, out: torch.sum(y, 0, out=out[0]))]
    layouts = (R, S0, S1, P)
    for mesh in (two(), DeviceMesh("cuda", [0, 1, 2, 3])):
        for i, (name, step) in enumerate(steps):
            for j, (first, second, third) in enumerate((p, q, r) for p in layouts for q in layouts for r in layouts):
                if (i + j) % 3:
                    continue
                want = torch.ones(6, 6, dtype=torch.float64)
                on = [dtorch.distribute_tensor(t, mesh, [w]) for t, w in ((a, first), (b, second), (want, third))]
                step(a, b, want)
                step(*on)
                try:
                    close(want, on[2], 1e-12)
                except AssertionError as error:
                    raise AssertionError(f"{name} of {first}, {second} into {third}: {error}") from None
        x, out = dtorch.distribute_tensor(a, mesh, [S0]), torch.empty(0, dtype=torch.float64, device=mesh.device)
        close(a.exp(), torch.exp(x, out=out), 1e-12)
        pair = [torch.empty(0, device=mesh.device, dtype=torch.float64), torch.empty(0, device=mesh.device, dtype=torch.int64)]
        torch.max(x, 1, out=tuple(pair))
        for want, got in zip(a.max(1), pair):
            same(want, got.cpu())


def lists_that_lie_alike_run_as_lists() -> None:
    values = [torch.randn(4, 3), torch.randn(7, 2), torch.randn(1, 5)]
    for mesh, where in ((two(), [S0]), (two(), [S1]), (two(), [P]), (four(), [S0, R])):
        on = [dtorch.distribute_tensor(v, mesh, where) for v in values]
        here = [v.clone() for v in values]
        for lists in (here, on):
            torch._foreach_mul_(lists, 2.0)
            torch._foreach_addcdiv_(lists, lists, [t.abs() + 1 for t in lists], 0.5)
            lists += torch._foreach_sqrt([t * t for t in lists])
        for a, b in zip(here, on):
            close(a, b)
        assert list(on[0].placements) == where or where == [P], on[0].placements


# ---- models ----


class Block(nn.Module):
    """Attention and a network, each with a norm before and a sum after."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.o_proj, self.up_proj = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.down_proj = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width), the same."""
        batch, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.o_proj(y)
        return x + self.down_proj(F.gelu(self.up_proj(self.norm2(x))))


class Gpt(nn.Module):
    """Numbers to scores of the next number, with one weight for both ends."""

    def __init__(self, letters: int = 24, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.letter, self.place, self.block = nn.Embedding(letters, width), nn.Embedding(length, width), Block(width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        self.head.weight = self.letter.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence) to (batch, sequence, letters)."""
        x = self.letter(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.block(x)))


def train(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor, steps: int = 3) -> list[torch.Tensor]:
    """Losses, norms of gradients, and the parameters at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    seen: list[torch.Tensor] = []
    for _ in range(steps):
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        seen += [loss.detach(), nn.utils.clip_grad_norm_(model.parameters(), 0.5)]
        optimizer.step()
    return seen + list(model.parameters())


def trains_as_on_one_device(mesh: DeviceMesh, plan: Any, where: list[Any]) -> nn.Module:
    torch.manual_seed(0)
    model = Gpt().double()  # AdamW divides by the root of gradients, some of which are nothing but rounding
    rows = torch.randint(0, 24, (4, 9))
    ids, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    one = dtorch.distribute(copy.deepcopy(model), mesh, plan)
    assert one.head.weight is one.letter.weight
    want = train(model, ids, labels)
    got = train(one, *(dtorch.distribute_tensor(t, mesh, where) for t in (ids, labels)))
    for a, b in zip(want, got):
        close(a, b, 1e-6)
    return one


def gpt_data_parallel() -> None:
    trains_as_on_one_device(two(), plans.data_parallel(0), [S0])


def gpt_tensor_parallel() -> None:
    model = trains_as_on_one_device(two(), plans.llama_tensor_parallel(0), [R])
    assert list(model.block.q_proj.weight.placements) == [S0] and list(model.block.o_proj.weight.placements) == [S1]
    assert list(model.block.q_proj.weight.grad.placements) == [S0]


def gpt_data_and_tensor_parallel() -> None:
    trains_as_on_one_device(four(), plans.data_parallel("dp") + plans.llama_tensor_parallel("tp"), [S0, R])


def gpt_fully_sharded() -> None:
    model = trains_as_on_one_device(two(), plans.fsdp(0), [S0])
    assert all(list(p.placements) == [S0] == list(p.grad.placements) for p in model.parameters())


def zero_shards_the_state() -> None:
    for stage in (1, 2, 3):
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        on = dtorch.distribute(copy.deepcopy(model), two(), plans.zero(stage, 0))
        x = torch.randn(8, 6)
        results = []
        for m, y in ((model, x), (on, dtorch.distribute_tensor(x, two(), [S0]))):
            optimizer = torch.optim.AdamW(m.parameters(), lr=0.1)
            for _ in range(2):
                m(y).square().mean().backward()
                optimizer.step()
            results.append(list(m.parameters()))
        for a, b in zip(*results):
            close(a, b)
            state = optimizer.state[b]
            assert list(state["exp_avg"].placements) == list(state["exp_avg_sq"].placements) == [S0], (stage, state)
            assert list(b.placements) == [S0 if stage == 3 else R]
            assert list(b.grad.placements) == [R if stage == 1 else S0], (stage, b.grad.placements)


def a_copy_of_a_model_follows_its_plan() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    on = copy.deepcopy(dtorch.distribute(copy.deepcopy(model), two(), plans.zero(2, 0)))
    x = torch.randn(8, 6)
    for m, y in ((model, x), (on, dtorch.distribute_tensor(x, two(), [S0]))):
        optimizer = torch.optim.AdamW(m.parameters(), lr=0.1)
        m(y).square().mean().backward()
        optimizer.step()
    assert list(on.weight.grad.placements) == list(optimizer.state[on.weight]["exp_avg"].placements) == [S0]
    assert list(on.weight.placements) == [R]
    close(model.weight, on.weight)


def what_does_not_fit_is_refused_if_strict() -> None:
    x, w = dtorch.distribute_tensor(torch.randn(4, 6), two(), [S1]), dtorch.distribute_tensor(torch.randn(6, 4), two(), [S1])
    with dtorch.strict():
        raises(dtorch.OperatorError, lambda: x @ w)
        close(x.cpu() @ w.cpu(), x.redistribute(placements=[R]) @ w)
        with dtorch.strict(False):
            x @ w
        raises(dtorch.OperatorError, lambda: x @ w)
    close(x.cpu() @ w.cpu(), x @ w)
    # A backward pass runs on another thread: its error is its own there too, not this thread's last one.
    loss = dtorch.distribute_tensor(torch.randn(4, 6), two(), [S0]).requires_grad_().softmax(0).square().sum()
    with dtorch.strict():
        raises(dtorch.OperatorError, lambda: x @ w)
        try:
            loss.backward()
            raise AssertionError("a softmax over rows that are cut has a gradient without a move")
        except dtorch.OperatorError as error:
            assert "aten::mm" not in str(error) and "strict" in error.reason, error
    assert str(dtorch.OperatorError("said by the program")) == "said by the program"


def slices_stay_where_their_rows_are() -> None:
    """Under the strict policy, so that a move would be refused: read, written, split, joined, with gradients."""
    torch.manual_seed(3)
    for shape, mesh, placements in (((12, 3), DeviceMesh("cuda", [0, 1, 2, 3]), [S0]), ((11, 3), two(), [S0]),
                                    ((3, 9), DeviceMesh("cuda", [0, 1, 2]), [S1]), ((7, 4), four(), [S0, S1])):
        def program(x: torch.Tensor, strictly: bool) -> list[torch.Tensor]:
            dim = placements[0].dim  # noqa: B023  (called at once)
            x = x.detach().clone().requires_grad_()
            with dtorch.strict(strictly):
                y = x * 2
                y.narrow(dim, 2, 4).mul_(3).narrow(dim, 1, 2).add_(1)
                parts = y.split(4, dim)
                joined = torch.cat(parts, dim)
                walk = [y.narrow(dim, i, 2).exp() for i in range(4)]
                total = sum(((part * (k + 2)).sum() for k, part in enumerate((*parts, *walk))), joined.sum())
            total.backward()
            return [y, joined, *parts, *walk, x.grad]

        value = torch.randn(shape)
        for a, b in zip(program(value, False), program(dtorch.distribute_tensor(value, mesh, placements), True), strict=True):
            close(a, b)
    x = dtorch.distribute_tensor(value := torch.randn(12, 3), DeviceMesh("cuda", [0, 1, 2, 3]), [S0]).requires_grad_()
    even = (part := x[1:6]).redistribute(placements=[S0])
    assert list(part.placements) == list(even.placements) == [S0] and even.redistribute(placements=[S0]) is even
    assert [[len(s) for s in t.shards().values()] for t in (part, even)] == [[2, 3, 0, 0], [2, 2, 1, 0]]
    close(value[1:6], even)
    (even * 2).sum().backward()
    close(F.pad(torch.full((5, 3), 2.0), (0, 0, 1, 6)), x.grad)
    # What has to move: rows of two slices that do not begin alike, one row of all, a view that joins the dimension.
    x = dtorch.distribute_tensor(value := torch.randn(13, 4), two(), [S0])
    for f in (lambda t: t[1:] - t[:-1], lambda t: t[9] * t[2:6], lambda t: t[3:9].reshape(-1), lambda t: torch.stack(list(t)),
              lambda t: torch.cat([t[9:], t[:9]]), lambda t: t[4:8].t() @ t[5:9], lambda t: t[-3:].softmax(0)):
        close(f(value), f(x))
    x[3:11][2] = 7
    value[3:11][2] = 7
    x[-2].mul_(2)
    value[-2].mul_(2)
    close(value, x)


def ways_of_saving_moves_can_be_switched_off() -> None:
    torch.manual_seed(1)
    model, ids, labels = Gpt().double(), torch.randint(0, 24, (4, 8)), torch.randint(0, 24, (4, 8))
    want = train(copy.deepcopy(model), ids, labels, 2)
    for name in ("keep", "settle", "settle_first", "pin", "whole_linear", "decompose"):
        on = dtorch.distribute(copy.deepcopy(model), four(), plans.data_parallel("dp") + plans.llama_tensor_parallel("tp"))
        batch = [dtorch.distribute_tensor(t, four(), [S0, R]) for t in (ids, labels)]
        with dtorch.policy(**{name: False}):
            got = train(on, *batch, 2)
        for a, b in zip(want, got):
            close(a, b, 1e-9)
    raises(RuntimeError, torch.ops.dtorch.set_policy, -1)


def bytes_of(optimizer: torch.optim.Optimizer) -> list[int]:
    """What each of two devices holds of an optimizer's state, measured on the parts themselves."""
    held = [0, 0]
    for state in optimizer.state.values():
        for tensor in state.values():
            for device, part in tensor.shards().items() if tensor.dim() else ():
                held[device] += part.nbytes
    return held


def zero_holds_a_part_of_the_state() -> None:
    for stage in (0, 1, 2, 3):
        plan = plans.zero(stage, 0) if stage else plans.data_parallel(0)
        on = dtorch.distribute(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)), two(), plan)
        optimizer = torch.optim.AdamW(on.parameters())
        on(dtorch.randn(8, 6, device_mesh=two(), placements=[S0])).square().mean().backward()
        optimizer.step()
        whole = 2 * sum(p.numel() * p.element_size() for p in on.parameters())
        assert bytes_of(optimizer) == [whole // 2 if stage else whole] * 2, (stage, bytes_of(optimizer), whole)


class Experts(nn.Module):
    """Networks side by side, the first dimension counts them: as those of transformers' Mixtral."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(count, width, 4 * width) * 0.2)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) * 0.2)

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Shapes: x (tokens, width), weights (tokens, experts); as x."""
        gate, up = (x @ self.gate_up).chunk(2, -1)
        return ((F.silu(gate) * up @ self.down) * weights.t()[..., None]).sum(0)


class Mixture(nn.Module):
    """Each token is given to the two experts that its scores name."""

    def __init__(self, count: int = 4, width: int = 8) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(width, count, bias=False), Experts(count, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).softmax(-1)
        best, which = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, which, best / best.sum(-1, keepdim=True))
        return self.experts(x, weights)


def experts_in_parts_are_the_dense_computation() -> None:
    for ids in ([0, 1], [0, 1, 2]):  # four experts on three devices: 2, 2 and none
        torch.manual_seed(0)
        mesh = DeviceMesh("cuda", ids, mesh_dim_names=("ep",))
        model = Mixture().double()
        on = dtorch.distribute(copy.deepcopy(model), mesh, plans.expert_parallel("ep"))
        assert list(on.experts.down.placements) == [S0]
        x = torch.randn(10, 8, dtype=torch.float64)
        results = []
        for m, y in ((model, x), (on, dtorch.distribute_tensor(x, mesh))):
            optimizer = torch.optim.AdamW(m.parameters(), lr=0.01)
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = (m(y) - y).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach().cpu())
            results.append([*losses, *(p.grad for p in m.parameters()), *m.parameters()])
        for a, b in zip(*results):
            close(a, b, 1e-9)


def every_pair_of_layouts() -> None:
    """On a mesh of 2x3, and from it to others, sizes that do not divide."""
    mesh = DeviceMesh("cuda", [[0, 1, 2], [3, 4, 5]])
    words = [R, S0, S1, P]
    pairs = [[a, b] for a in words for b in words]
    others = [(two(), [p]) for p in words] + [(DeviceMesh("cuda", [5, 3, 1]), [p]) for p in words]
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        value = torch.arange(-10, 25).reshape(5, 7).to(dtype)
        source = dtorch.distribute_tensor(value, mesh, [R, R])
        moved = []
        for before in pairs:
            x = source.redistribute(mesh, before)
            for where, after in [(mesh, p) for p in pairs] if dtype == torch.float32 else [(mesh, pairs[(pairs.index(before) + 5) % 16])]:
                moved.append((before, where, after, x.redistribute(where, after)))
            moved += [(before, where, after, x.redistribute(where, after)) for where, after in others[:: 1 if dtype.itemsize == 4 else 3]]
        for before, where, after, y in moved:
            assert y.device_mesh == where and list(y.placements) == after
            if not torch.equal(value, y.to_torch()):
                raise AssertionError(f"{dtype} {before} to {where} {after}: {y.to_torch()}")
        moved.clear()


def a_state_dict_loads_whole() -> None:
    torch.manual_seed(0)
    model = Gpt()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    for mesh, plan in ((two(), plans.fsdp(0)), (four(), plans.data_parallel("dp") + plans.llama_tensor_parallel("tp"))):
        other = dtorch.distribute(Gpt(), mesh, plan)
        before = {name: list(p.placements) for name, p in other.named_parameters()}
        other.load_state_dict(kept)
        assert {name: list(p.placements) for name, p in other.named_parameters()} == before
        for name, value in other.state_dict().items():
            same(kept[name], value.to_torch())
    with torch.device("meta"):
        empty = Gpt()
    empty = dtorch.distribute(empty, two(), plans.fsdp(0))
    empty.load_state_dict(kept)
    same(kept["letter.weight"], empty.letter.weight.detach().to_torch())


CHECKS = [
    placements_are_pytorch_s, placements_are_checked, a_mesh_has_a_shape_and_names, a_mesh_is_checked, plans_say_where,
    the_first_example_runs, a_session_that_has_begun_keeps_its_number_of_devices, values_go_in_and_come_out,
    parts_are_reshaped, integers_do_not_wrap, layouts_change,
    every_layout_is_the_global_value, plain_tensors_meet_them,
    factories_make_the_same_everywhere, random_numbers_are_the_same_everywhere, writes_go_through_views,
    writes_go_through_parts_of_expanded_views, meshes_of_one_array_keep_their_names, gradients_go_through_views,
    redistribute_has_a_gradient,
    what_needs_a_whole_dimension_does_not_gather_it, the_gradient_of_an_embedding_moves_what_is_less, lazy_conjugates_are_moved,
    operators_that_depend_on_values, copies_keep_the_layout,
    norms_without_statistics_run_wherever_they_lie, sizes_that_had_to_be_asked_for, lists_of_tensors, results_go_where_out_says,
    lists_that_lie_alike_run_as_lists, ways_of_saving_moves_can_be_switched_off, what_is_written_and_not_returned,
    gpt_data_parallel, gpt_tensor_parallel,
    gpt_data_and_tensor_parallel, gpt_fully_sharded, zero_shards_the_state,
    zero_holds_a_part_of_the_state, a_copy_of_a_model_follows_its_plan, what_does_not_fit_is_refused_if_strict,
    slices_stay_where_their_rows_are,
    experts_in_parts_are_the_dense_computation, every_pair_of_layouts, a_state_dict_loads_whole]

if __name__ == "__main__":
    for function in CHECKS:
        suite.check(function.__name__.replace("_", " "), function)
    sys.exit(suite.finish())
