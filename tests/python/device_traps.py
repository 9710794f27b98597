"""usage: device_traps.py [PART OF A NAME...]

One check for each thing that a PyTorch user might do with a device: does it work on "dtorch", as it does on the CPU?"""

import copy
import gc
import io
import pickle
import sys
import threading
import warnings
import weakref
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import devicetest
import dtorch
from devicetest import DEVICE as D
from devicetest import becomes, both, expect_same

torch.manual_seed(0)
CPU = torch.randn(4, 4)
X = CPU.to(D)


def base(device: str) -> torch.Tensor:
    """A copy of CPU on a device. Shapes: (4, 4)."""
    return CPU.clone().to(device)


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], function: Any, text: str = "") -> None:
    """Check that a call raises one of these. Raises: AssertionError."""
    try:
        function()
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"says {str(error)[:200]!r}, which lacks {text!r}") from error
        return
    raise AssertionError("raises nothing")


# ---- the device and its module ----


def has_its_name() -> None:
    assert str(X.device) == "dtorch:0" and X.is_dtorch and X.dtorch().device.type == D and CPU.dtorch().is_dtorch
    assert not CPU.is_dtorch and torch.device(D, 0) == X.device


def is_the_accelerator() -> None:
    assert str(torch.accelerator.current_accelerator()) == D and torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.dtorch.device_count() >= 1
    torch.accelerator.synchronize()
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0):
        pass
    torch.accelerator.current_stream()


def has_a_module() -> None:
    module = torch.get_device_module(D)
    assert module is torch.dtorch and module.is_available() and module.device_count() >= 1 and module.current_device() == 0
    module.set_device(0)
    module.set_device("dtorch:0")
    module.synchronize()
    module.empty_cache()
    with module.device(0), module.device_of(X), module.device(None), module.device(-1):
        assert module.current_device() == 0
    assert module.is_initialized() and not module._is_in_bad_fork()
    assert isinstance(module.get_device_name(), str) and module.get_device_name()
    assert torch.bfloat16 in module.get_amp_supported_dtype()


def has_no_device_that_it_has_not() -> None:
    raises(RuntimeError, lambda: torch.ones(2, device=f"dtorch:{torch.dtorch.device_count()}"))
    raises(RuntimeError, lambda: torch.dtorch.set_device(torch.dtorch.device_count()))
    raises(ValueError, lambda: torch.dtorch.set_device("cpu"))


def is_a_default_device() -> None:
    torch.set_default_device(D)
    try:
        assert torch.ones(2).is_dtorch and nn.Linear(2, 2).weight.is_dtorch and torch.tensor([1]).is_dtorch
    finally:
        torch.set_default_device(None)
    with torch.device(D):
        assert torch.arange(3).is_dtorch
    assert not torch.ones(2).is_dtorch


def streams_and_events_stand_in() -> None:
    module = torch.dtorch
    stream, event, end = module.Stream(), module.Event(enable_timing=True), module.Event(enable_timing=True)
    with module.stream(stream):
        event.record()
        X + 1
        end.record(stream)
    stream.wait_event(event)
    stream.wait_stream(module.current_stream())
    stream.synchronize()
    end.synchronize()
    assert event.query() and event.elapsed_time(end) >= 0 and module.default_stream() == stream
    assert becomes(stream.query)  # it waits 20 ms for its answer
    raises(ValueError, lambda: module.Event().elapsed_time(end))


def tells_its_memory() -> None:
    module = torch.dtorch
    gc.collect()
    before = module.memory_allocated()
    big = torch.zeros(1 << 20, device=D)
    assert module.memory_allocated() - before >= 1 << 22 and module.max_memory_allocated() >= module.memory_allocated()
    view = big[10:]
    assert module.memory_allocated() - before < (1 << 22) + 4096
    del big, view
    assert module.memory_allocated() <= before
    module.reset_peak_memory_stats()
    assert module.max_memory_allocated() < before + (1 << 22)
    stats = module.memory_stats()
    assert stats["allocated_bytes.all.current"] == module.memory_allocated() and "allocated" in module.memory_summary()


# ---- values ----


def gives_values() -> None:
    assert X.sum().item() == CPU.sum().item() and bool((X > 0).any()) and X.tolist() == CPU.tolist()
    assert float(X[0, 0]) == float(CPU[0, 0]) and int(X[0, 0] * 100) == int(CPU[0, 0] * 100) and len(X) == 4
    assert [float(v) for v in X[0]] == CPU[0].tolist() and f"{X[0, 0]:.3f}" == f"{CPU[0, 0]:.3f}"
    assert torch.tensor(5, device=D).item() == 5 and range(10)[torch.tensor(3, device=D)] == 3


def prints() -> None:
    assert repr(X) == repr(CPU).replace("]])", "]], device='dtorch:0')")
    large = torch.arange(5000.0)
    assert repr(large.to(D)) == repr(large).replace("])", "], device='dtorch:0')")
    assert "grad_fn=<MulBackward0>" in repr(X.clone().requires_grad_() * 2) and "dtype=torch.int32" in str(X.int())
    assert "size=(0, 3)" in repr(torch.empty(0, 3, device=D))


def prints_in_one_wait() -> None:
    large = torch.randn(100, 100, device=D)
    before = dtorch.session_info()["waits"]
    repr(large)
    assert dtorch.session_info()["waits"] - before <= 1, f"{dtorch.session_info()['waits'] - before} waits"


def is_no_numpy_array() -> None:
    raises(TypeError, X.numpy, "dtorch")
    raises(TypeError, lambda: X.__array__())
    assert (X.cpu().numpy() == CPU.numpy()).all()


def is_not_shared_by_dlpack() -> None:
    raises(BufferError, lambda: torch.utils.dlpack.to_dlpack(X), "x.cpu()")
    raises(BufferError, lambda: X.__dlpack__(), "x.cpu()")
    raises(BufferError, lambda: torch.from_dlpack(X))
    expect_same(CPU, torch.from_dlpack(CPU))


def futures_give_values() -> None:
    a = torch.ones(3, device=D)
    future = dtorch.fetch(a * 2)
    a.add_(5)
    expect_same(torch.full((3,), 2.0), future.result())
    assert future.done() and future.result(0) is future.result()
    future = dtorch.fetch(a)
    a.zero_()
    expect_same(torch.full((3,), 6.0), future.result(60))
    expect_same(CPU, dtorch.fetch(CPU).result())
    dtorch.fetch(a)  # forgotten
    assert not dtorch.fetch(X.clone().requires_grad_()).result().requires_grad


def futures_end_a_wait_in_time() -> None:
    x = torch.randn(400, 400, device=D)
    for _ in range(20):
        x = (x @ x).clamp(-1, 1)
    future = dtorch.fetch(x)
    try:
        first = future.result(0)
    except dtorch.errors.WaitTimeout as error:
        assert isinstance(error, TimeoutError)
        first = None
    value = future.result(600)
    assert future.done() and value.shape == (400, 400) and (first is None or first is value)
    raises(IndexError, dtorch.fetch(F.embedding(torch.tensor([9]).to(D), X)).result, "out of range")


def futures_can_be_awaited() -> None:
    import asyncio

    async def program() -> list[torch.Tensor]:
        return list(await asyncio.gather(*(one(i) for i in range(5))))

    async def one(i: int) -> torch.Tensor:
        return await dtorch.fetch(torch.full((2,), float(i), device=D) + 1)

    expect_same([torch.full((2,), float(i + 1)) for i in range(5)], asyncio.run(program()))


# ---- indexing, views, in-place ----


def masks_and_dynamic_shapes() -> None:
    both(lambda d: [x := base(d), x[x > 0], x.gt(0).nonzero(), torch.unique(x.round()), x.masked_select(x < 0),
                    torch.where(x > 0), x[x > 9], torch.bincount(x.gt(0).long().flatten()), x.argwhere()])


def comparisons() -> None:
    assert torch.equal(X, X.clone()) and not torch.equal(X, X + 1) and torch.allclose(X, X) and (X == CPU.to(D)).all()


def writes_through_views() -> None:
    def program(d: str) -> Any:
        a = base(d)
        a.view(16)[3:].add_(1)
        a.t()[1].mul_(2)
        a[::2, 1:].zero_()
        a[0, 0] = 5
        a[1] = torch.ones(4)
        a[a < 0] = 7
        a[torch.tensor([0, 2])] = 3.0
        a.diagonal().fill_(9)
        a[..., -1] += a[..., 0]
        b = a.expand(2, 4, 4)
        return a, b, b[1].t(), a.unfold(0, 2, 1), a.narrow(1, 1, 2).select(0, 1)
    both(program)


def views_made_of_each_other() -> None:
    # One storage had the second of the first, another of the same shape has the first of the second: a circle, if both were kept.
    value = torch.arange(24.0).reshape(4, 6)
    x, y = value.to(D), (value * 2).to(D)
    whole = torch.empty(0, device=D).set_(x.untyped_storage(), 0, (6, 4), (1, 6))
    expect_same(value.T[1:3] + 0, whole[1:3] + 0)
    expect_same((value * 2).T + 0, y[:, 1:3].T.as_strided((6, 4), (1, 6), 0) + 0)


def a_view_sees_later_writes() -> None:
    def program(d: str) -> Any:
        a = torch.zeros(4, 4, device=d)
        row, column, flat = a[1], a[:, 2], a.view(-1)
        first = row + 0  # the view has been an operand once
        a.add_(1)
        column.mul_(3)
        flat[5] = 8
        return a, row, column, flat, first, row + column
    both(program)


def views_cost_nothing_until_they_are_used() -> None:
    x = torch.zeros(6, 4, device=D)
    (x + 1).sum().item()
    before = dtorch.session_info()
    views = [x.view(4, 6), x.t(), x[1:3], x[:, 1], x.expand(2, 6, 4), x.unfold(0, 2, 2), *x.split(2), x.permute(1, 0).unsqueeze(0)]
    between = dtorch.session_info()
    assert between["records"] == before["records"] and between["views"] == before["views"], "a view that nobody used was sent"
    used = [view + 1 for view in views[:4]] + [view * 2 for view in views[:4]]
    after = dtorch.session_info()
    assert 4 <= after["views"] - before["views"] <= 5, "each is sent once, as the view operators that made it"
    expect_same([view.cpu() for view in used[:1]], [torch.ones(4, 6)])


def library_knows_no_python() -> None:
    from dtorch import _native
    library = (_native.FOLDER / "libdtorch_torch.so").read_bytes()
    assert b"libtorch_python" not in library and b"libpython" not in library and b"libtorch_cpu" in library


def detached_and_data() -> None:
    def program(d: str) -> Any:
        a = base(d).requires_grad_()
        with torch.no_grad():
            a.mul_(2)
        a.data[0] = 1
        a.detach()[1] = 2
        a.data = a.data + 1
        (a * a).sum().backward()
        return a, a.grad
    both(program)


def indexes_from_the_cpu() -> None:
    both(lambda d: [base(d)[torch.tensor([0, 2])], base(d)[:, torch.tensor([True, False, True, True])], base(d)[[3, 1]]])


def mixes_with_cpu_scalars_only() -> None:
    both(lambda d: [base(d) + torch.tensor(2.5), torch.tensor(3) * base(d)])
    raises(RuntimeError, lambda: X + torch.ones(4), "same device")
    raises(RuntimeError, lambda: torch.mm(X, CPU), "device")


def outputs_are_given() -> None:
    def program(d: str) -> Any:
        x, out, strided = base(d), torch.empty(0, device=d), torch.zeros(4, 8, device=d)
        torch.add(x, x, out=out)
        torch.mul(x, 2, out=strided[:, ::2])
        values, indices = torch.empty(4, device=d), torch.empty(4, dtype=torch.long, device=d)
        torch.max(x, 1, out=(values, indices))
        return out, strided, values, indices
    both(program)


def storages_change() -> None:
    def program(d: str) -> Any:
        a = base(d)
        a.resize_(2, 3)
        b = torch.empty(0, device=d).set_(base(d).untyped_storage(), 2, (3, 2), (1, 3))
        c = base(d)
        size = c.untyped_storage().resize_(128).nbytes()
        return a, b, size, tuple(c.set_().shape), base(d).resize_(6, 6).view(-1)[:16].clone()
    both(program)


def dtypes_are_viewed_and_changed() -> None:
    both(lambda d: [base(d).view(torch.int32) + 1, base(d).half(), base(d).bfloat16(), base(d).double(), base(d).long(),
                    base(d).view(torch.uint8)[0], base(d).to(torch.float8_e4m3fn).float(), base(d).bool()])
    assert X.to("meta").shape == (4, 4)


def complex_numbers() -> None:
    def program(d: str) -> Any:
        z = torch.view_as_complex(base(d).view(4, 2, 2))
        w = z.conj() * 2
        z.real.add_(1)
        z.imag[0] = 4
        return w, z.conj(), z.conj().resolve_conj(), z.conj().imag, torch.view_as_real(z), z.abs(), z.angle(), z @ z.mH
    both(program)


def memory_formats() -> None:
    def program(d: str) -> Any:
        a = torch.ones(2, 3, 4, 4).to(d, memory_format=torch.channels_last)
        b = F.conv2d(a, torch.ones(5, 3, 3, 3).to(d, memory_format=torch.channels_last))
        return a, b, a + 1, a.contiguous(), F.max_pool2d(a, 2), a.to(torch.half), torch.empty_like(a).zero_()
    both(program)


def kinds_of_operators() -> None:
    both(lambda d: [torch.fft.fft(base(d)), torch.linalg.svd(base(d))[1], torch.einsum("ij,jk->ik", base(d), base(d)),
                    torch.linalg.inv(base(d)), base(d).sort(), base(d).topk(2), torch.cdist(base(d), base(d)),
                    base(d).cumsum(0), F.interpolate(base(d)[None, None], scale_factor=2.0), torch.cat([base(d)] * 2),
                    torch.stack([base(d)] * 2).split(1), torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d))])


def factories() -> None:
    both(lambda d: [torch.arange(0, 1, 0.1, device=d), torch.linspace(0, 1, 7, device=d), torch.eye(3, device=d),
                    torch.full((2,), 3 + 1j, device=d), torch.tensor([[1, 2], [3, 4]], device=d), torch.zeros_like(base(d)),
                    torch.tril_indices(3, 3, device=d), torch.hann_window(5, device=d), base(d).new_ones(2), base(d).new_tensor(1),
                    torch.as_tensor([1.0, 2.0], device=d), torch.logspace(0, 1, 3, device=d), torch.empty(2, 0, device=d)])


# ---- copies, pickles, files ----


def copies() -> None:
    same = copy.deepcopy({"x": X, "v": X[1:], "p": nn.Parameter(X)})
    expect_same(CPU, same["x"])
    same["x"].zero_()
    assert same["v"].sum() == 0, "deepcopy keeps sharing within one copy"
    expect_same(CPU, X)
    expect_same(CPU, copy.copy(X))
    expect_same(CPU, X.cpu())
    expect_same(CPU, X.to("cpu", non_blocking=True))
    expect_same(CPU, torch.empty(4, 4).copy_(X))


def deepcopies_modules() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(D)
    twin = copy.deepcopy(module)
    assert twin[0].weight.is_dtorch and twin[0].weight is not module[0].weight
    for a, b in zip(module.state_dict().values(), twin.state_dict().values()):
        expect_same(a.cpu(), b)


def saves_and_loads() -> None:
    file = io.BytesIO()
    torch.save({"x": X, "v": X[1:], "n": 3}, file)
    file.seek(0)
    back = torch.load(file)
    assert back["x"].is_dtorch and back["v"].is_dtorch
    expect_same(CPU, back["x"])
    back["x"].zero_()
    assert back["v"].abs().sum() == 0, "views share after loading"
    for where in ("cpu", D, torch.device(D), {"dtorch:0": "cpu"}, lambda storage, place: storage):
        file.seek(0)
        expect_same(CPU, torch.load(file, map_location=where)["x"])


def loads_what_the_cpu_saved() -> None:
    file = io.BytesIO()
    torch.save(CPU, file)
    file.seek(0)
    loaded = torch.load(file, map_location=D)
    assert loaded.is_dtorch
    expect_same(CPU, loaded)


def saves_the_old_way() -> None:
    file = io.BytesIO()
    torch.save(X, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    expect_same(CPU, torch.load(file))


def pickles() -> None:
    expect_same(CPU, pickle.loads(pickle.dumps(X)))
    parameter = pickle.loads(pickle.dumps(nn.Parameter(X)))
    assert isinstance(parameter, nn.Parameter) and parameter.is_dtorch


def state_dicts_go_both_ways() -> None:
    there, here = nn.Linear(4, 4, device=D), nn.Linear(4, 4)
    there.load_state_dict(here.state_dict())
    expect_same(here.weight.detach(), there.weight.detach())
    here.load_state_dict({k: v + 1 for k, v in there.state_dict().items()})
    expect_same(here.weight.detach(), there.weight.detach() + 1)
    there.load_state_dict(here.state_dict(), assign=True)


def optimizers_are_saved() -> None:
    def program(d: str) -> Any:
        p = nn.Parameter(base(d))
        o = torch.optim.AdamW([p], lr=0.1)
        for _ in range(2):
            o.zero_grad()
            (p * p).sum().backward()
            o.step()
        file = io.BytesIO()
        torch.save(o.state_dict(), file)
        file.seek(0)
        q = nn.Parameter(p.detach().clone())
        o2 = torch.optim.AdamW([q], lr=0.1)
        o2.load_state_dict(torch.load(file))
        (q * q).sum().backward()
        o2.step()
        return p, q
    both(program)


def data_loaders_feed_it() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    for options in ({}, {"pin_memory": True}, {"num_workers": 2}, {"num_workers": 1, "pin_memory": True}):
        total = sum(float((x.to(D, non_blocking=True) * y.to(D)[:, None]).sum())
                    for x, y in torch.utils.data.DataLoader(data, batch_size=2, **options))
        assert total == float((data.tensors[0] * data.tensors[1][:, None]).sum()), options


def memory_is_pinned() -> None:
    expect_same(CPU, CPU.pin_memory().to(D, non_blocking=True))


# ---- random numbers ----


def seeds_give_the_cpus_numbers() -> None:
    both(lambda d: [torch.randn(5, device=d), torch.rand(3, 3, device=d), torch.randint(9, (5,), device=d), torch.randperm(9, device=d),
                    torch.multinomial(torch.ones(5, device=d), 3), torch.bernoulli(torch.full((9,), 0.5, device=d)),
                    torch.normal(0.0, 1.0, (4,), device=d), torch.empty(4, device=d).exponential_(), torch.empty(4, device=d).cauchy_(),
                    torch.empty(4, device=d).log_normal_(), torch.empty(9, device=d).geometric_(0.3), torch.randn_like(base(d)),
                    torch.rand_like(base(d)), torch.poisson(torch.full((4,), 3.0, device=d)), torch.empty(5, device=d).random_(),
                    torch.normal(base(d), 1.0), torch.binomial(torch.full((3,), 9.0, device=d), torch.full((3,), 0.4, device=d))], 3)


def dropouts_draw_as_the_cpu() -> None:
    both(lambda d: [F.dropout(torch.ones(50, device=d), 0.3), F.dropout2d(torch.ones(2, 3, 4, 4, device=d), 0.5),
                    F.alpha_dropout(torch.ones(50, device=d), 0.3, True), F.feature_alpha_dropout(torch.ones(2, 9, 3, device=d), 0.3, True),
                    torch.rrelu(base(d), training=True), F.gumbel_softmax(base(d)), F.dropout(base(d), 0.5, inplace=True)], 4)


def initialises_as_the_cpu() -> None:
    def program(d: str) -> Any:
        with torch.device(d):
            parts = [nn.Linear(3, 5), nn.Conv2d(2, 3, 3), nn.Embedding(4, 3), nn.LSTM(3, 2), nn.MultiheadAttention(4, 2)]
        orthogonal = nn.init.orthogonal_(torch.empty(3, 4, device=d))
        return [p.detach() for m in parts for p in m.parameters()], orthogonal, nn.init.trunc_normal_(torch.empty(9, device=d))
    both(program, 5)


def generators_are_its_own() -> None:
    expect_same(torch.randn(5, generator=torch.Generator().manual_seed(7)),
                torch.randn(5, device=D, generator=torch.Generator(D).manual_seed(7)))
    g = torch.Generator(D).manual_seed(3)
    state, first = g.get_state(), torch.rand(3, device=D, generator=g)
    g.set_state(state)
    expect_same(first.cpu(), torch.rand(3, device=D, generator=g))
    assert g.device.type == D and g.initial_seed() == 3
    raises(RuntimeError, lambda: torch.randn(5, device=D, generator=torch.Generator()))


def states_of_generators_go_round() -> None:
    module = torch.dtorch
    torch.manual_seed(11)
    assert module.initial_seed() == 11
    state = module.get_rng_state()
    first = torch.rand(4, device=D)
    module.set_rng_state(state)
    expect_same(first.cpu(), torch.rand(4, device=D))
    module.set_rng_state_all(module.get_rng_state_all())
    module.manual_seed(5)
    module.manual_seed_all(5)
    expect_same(torch.rand(4, generator=torch.Generator().manual_seed(5)), torch.rand(4, device=D))
    module.seed()
    module.seed_all()
    torch.seed()


def a_state_is_a_cpu_state() -> None:
    torch.manual_seed(21)
    torch.rand(3, device=D)
    torch.rand(3)
    assert torch.equal(torch.dtorch.get_rng_state(), torch.get_rng_state())


def forks_of_generators_end() -> None:
    torch.manual_seed(2)
    with torch.random.fork_rng(devices=[0], device_type=D):
        first = torch.rand(3, device=D)
        torch.manual_seed(9)
    expect_same(first.cpu(), torch.rand(3, device=D))


# ---- modules ----


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


def tied_weights_stay_tied() -> None:
    model = Tied()
    model.to(D)
    assert model.head.weight is model.embed.weight and len(list(model.parameters())) == 1 and model.head.weight.is_dtorch
    model.cpu()
    assert model.head.weight is model.embed.weight and not model.head.weight.is_dtorch
    held = Tied()
    watch = weakref.ref(held.embed.weight)  # PyTorch refuses to give new content to a watched tensor
    held.to(D)
    assert held.head.weight is held.embed.weight and held.head.weight.is_dtorch and watch() is None


def optimizers_made_before_a_move_go_on() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    parameter = model.weight
    model.to(D)
    assert model.weight is parameter and parameter.is_dtorch
    before = model.weight.detach().clone()
    model(torch.ones(1, 2, device=D)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def parameters_keep_their_class_and_attributes() -> None:
    model = nn.LazyLinear(3)
    model.weight.mark = 7
    model.to(D)
    assert isinstance(model.weight, nn.UninitializedParameter) and model.weight.mark == 7
    model(torch.ones(2, 5, device=D))
    assert model.weight.shape == (3, 5) and model.weight.is_dtorch and type(model.weight) is nn.Parameter


def gradients_move_along() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    want = model.weight.grad.clone()
    model.to(D)
    assert model.weight.grad.is_dtorch
    expect_same(want, model.weight.grad)
    model.to(torch.float64)
    model.half().dtorch().float()
    model.to_empty(device="cpu")
    model.to_empty(device=D)


def old_weights_are_not_kept() -> None:
    model = nn.Linear(64, 64)
    address = weakref.ref(model.weight.untyped_storage())
    model.to(D)
    assert becomes(lambda: gc.collect() >= 0 and address() is None), "the CPU's storage is still there"


def recurrent(layer: Any, device: str, packed: bool = False, **options: Any) -> list[torch.Tensor]:
    """Results and all gradients; the numbers come from the CPU's stream, dropout's from the device's."""
    torch.manual_seed(8)
    net = layer(4, 3, num_layers=2, bidirectional=True, **options).to(device)
    data = torch.randn(5, 2, 4).to(device).requires_grad_()
    given = nn.utils.rnn.pack_padded_sequence(data, torch.tensor([5, 2])) if packed else data
    torch.manual_seed(9)
    out, last = net(given)
    out = out.data if packed else out
    last = last if isinstance(last, tuple) else (last,)
    (out.sum() + sum(t.square().sum() for t in last)).backward()
    return [t.detach().cpu() for t in (out, *last, data.grad, *(p.grad for p in net.parameters()))]


def recurrent_layers() -> None:
    """In the CPU's parts and order, which PyTorch's own decomposition leaves on other devices."""
    for layer in (nn.RNN, nn.LSTM, nn.GRU):
        for options in ({}, {"packed": True}, {"dropout": 0.5}, {"bias": False, "batch_first": True}, {"bias": False, "packed": True}):
            expect_same(recurrent(layer, "cpu", **options), recurrent(layer, D, **options))
    expect_same(recurrent(nn.LSTM, "cpu", proj_size=2), recurrent(nn.LSTM, D, proj_size=2))
    expect_same(recurrent(nn.RNN, "cpu", nonlinearity="relu"), recurrent(nn.RNN, D, nonlinearity="relu"))
    for cell in (nn.RNNCell, nn.LSTMCell, nn.GRUCell):
        both(lambda d, cell=cell: cell(4, 3).to(d)(torch.ones(2, 4).to(d)))


def attention() -> None:
    def program(d: str) -> Any:
        net = nn.MultiheadAttention(8, 2, batch_first=True).to(d)
        x = torch.randn(2, 5, 8).to(d)
        q = torch.randn(2, 2, 5, 8).to(d)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(d)
        fast = layer.eval()(x)
        return (net(x, x, x), F.scaled_dot_product_attention(q, q, q), F.scaled_dot_product_attention(q, q, q, is_causal=True),
                F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(5, 5, device=d).tril().bool()), fast)
    both(program)


def bags_of_embeddings() -> None:
    """Asked for metadata, nobody may run the kernel on zeros: it believes its offsets."""
    def program(d: str) -> Any:
        rows, weight = torch.tensor([0, 2, 1, 3, 4, 0]).to(d), torch.randn(5, 3).to(d).requires_grad_()
        bags = [F.embedding_bag(rows, weight, torch.tensor(offsets).to(d), mode=mode, include_last_offset=is_last)
                for mode in ("sum", "mean", "max") for offsets, is_last in (([0, 2, 6], True), ([0, 0, 3], False), ([0, 6], True))]
        sum(bag.square().sum() for bag in bags).backward()
        return (*bags, weight.grad)
    both(program)


def packed_sequences() -> None:
    def program(d: str) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 3, 2).to(d), torch.tensor([4, 2, 1]))
        assert packed.data.device.type == d and packed.to("cpu").data.device.type == "cpu"
        return nn.utils.rnn.pad_packed_sequence(nn.RNN(2, 3).to(d)(packed)[0])
    both(program)


# ---- autograd ----


class Twice(torch.autograd.Function):
    seen: list[int] = []

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        Twice.seen.append(threading.get_ident())
        return grad * 2


def functions_of_the_program() -> None:
    a = X.clone().requires_grad_()
    Twice.apply(a).sum().backward()
    expect_same(torch.full((4, 4), 2.0), a.grad)
    assert Twice.seen[-1] != threading.get_ident(), "backward of a device has a thread of its own"


def second_derivatives() -> None:
    def program(d: str) -> Any:
        a = base(d).requires_grad_()
        (first,) = torch.autograd.grad((a**3).sum(), a, create_graph=True)
        return torch.autograd.grad(first.sum(), a)[0], torch.autograd.functional.hessian(lambda z: (z**3).sum(), base(d)[0])
    both(program)


def doubles(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(2)


def hooks() -> None:
    def program(d: str) -> Any:
        a = base(d).requires_grad_()
        a.register_hook(lambda g: g * 3)
        net, seen = nn.Linear(4, 4).to(d), []
        net.register_forward_hook(lambda m, i, o: o * 2)
        net.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum()))
        net(a * 2).sum().backward(retain_graph=True)
        a.register_post_accumulate_grad_hook(doubles)
        (a * 2).sum().backward()
        return a.grad, seen, net.weight.grad
    both(program)


def checkpointing() -> None:
    for reentrant in (False, True):
        def program(d: str, reentrant: bool = reentrant) -> Any:
            a = base(d).requires_grad_()
            torch.utils.checkpoint.checkpoint(lambda z: F.dropout(z.sin(), 0.5), a, use_reentrant=reentrant).sum().backward()
            return a.grad
        both(program)


def function_transforms() -> None:
    def program(d: str) -> Any:
        x = base(d)
        f = torch.func
        return (f.vmap(f.grad(lambda a: (a**2).sum()))(x), f.jacrev(torch.sin)(x[0]), f.jacfwd(torch.sin)(x[0]),
                f.vmap(torch.dot)(x, x), f.hessian(lambda a: (a**3).sum())(x[0]), f.jvp(torch.exp, (x,), (x,)), f.vjp(torch.exp, x)[0],
                f.functional_call(nn.Linear(4, 4).to(d), {"weight": x, "bias": x[0]}, (x,)).detach())
    both(program)


def forward_mode() -> None:
    def program(d: str) -> Any:
        ad = torch.autograd.forward_ad
        with ad.dual_level():
            dual = ad.make_dual(base(d), torch.ones(4, 4, device=d))
            return tuple(ad.unpack_dual((dual * dual).sin().sum(0)))
    both(program)


def inference_mode() -> None:
    def program(d: str) -> Any:
        with torch.inference_mode():
            a = base(d) * 2
            a.t()[0].add_(1)
            b = F.dropout(a, 0.5)
        return a.clone(), b.clone()
    both(program)


def anomalies_are_found() -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        a = torch.zeros(2, device=D, requires_grad=True)
        raises(RuntimeError, lambda: (a.sqrt() * 0).sum().backward(), "nan")


def version_counters() -> None:
    a = X.clone().requires_grad_()
    b = a * 2
    c = b * b
    b.add_(1)
    raises(RuntimeError, lambda: c.sum().backward(), "modified by an inplace operation")


def sparse_gradients_are_refused() -> None:
    net = nn.Embedding(5, 3, sparse=True).to(D)
    raises((RuntimeError, NotImplementedError), lambda: net(torch.tensor([1, 2, 1], device=D)).sum().backward())


def zero_tensors() -> None:
    both(lambda d: [torch.autograd.grad(torch.sgn(z := torch.complex(base(d), base(d)).requires_grad_()).abs().sum(), z)])


# ---- mixed precision ----


def autocast() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        def program(d: str, dtype: torch.dtype = dtype) -> Any:
            net, x = nn.Linear(4, 4).to(d), base(d)
            with torch.autocast(d, dtype=dtype):
                y = net(x)
                assert y.dtype == dtype and (x + 1).dtype == torch.float32
                loss = y.float().sum()
                with torch.autocast(d, enabled=False):
                    assert (x @ x).dtype == torch.float32
            loss.backward()
            return y.detach(), net.weight.grad
        both(program)
    assert torch.get_autocast_dtype(D) in (torch.bfloat16, torch.float16) and not torch.is_autocast_enabled(D)


def gradients_are_scaled() -> None:
    def program(d: str) -> Any:
        p = nn.Parameter(base(d))
        o, scaler = torch.optim.SGD([p], lr=0.1), torch.amp.GradScaler(d, init_scale=8.0, growth_interval=2)
        for i in range(4):
            o.zero_grad()
            scaler.scale((p * p).sum() * (float("inf") if i == 1 else 1)).backward()
            scaler.unscale_(o)
            nn.utils.clip_grad_norm_([p], 1.0)
            scaler.step(o)
            scaler.update()
        return p, scaler.get_scale()
    both(program)


# ---- errors ----


def shapes_are_refused_at_once() -> None:
    raises(RuntimeError, lambda: X @ torch.ones(3, 3, device=D))
    raises(RuntimeError, lambda: X.view(5, 5))
    raises(IndexError, lambda: X[9])
    raises(RuntimeError, lambda: torch.cat([X, torch.ones(3, 3, device=D)]))
    raises(TypeError, lambda: torch.add(X, "no"))
    raises(RuntimeError, lambda: F.conv2d(X, X))
    expect_same(CPU, X)


def values_are_refused_when_fetched() -> None:
    raises(IndexError, lambda: F.embedding(torch.tensor([9]).to(D), X).cpu())
    raises(RuntimeError, lambda: X.index_select(0, torch.tensor([7], device=D)).cpu())
    raises(torch.linalg.LinAlgError, lambda: torch.linalg.inv(torch.zeros(2, 2, device=D)).cpu())
    raises(RuntimeError, lambda: F.nll_loss(X, torch.tensor([0, 1, 2, 9], device=D)).item())
    expect_same(CPU + 1, X + 1)


def unsupported_layouts_say_so() -> None:
    raises((RuntimeError, NotImplementedError), lambda: X.to_sparse_csr())
    raises((RuntimeError, NotImplementedError), lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8))
    expect_same(CPU, X)


# ---- tools ----


def compiles() -> None:
    both(lambda d: torch.compile(lambda a: a.sin() + 1, backend="eager")(base(d)))
    net = torch.compile(nn.Linear(4, 4).to(D))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        net(X).sum().backward()
        torch.compile(lambda a: a.cos())(X)
    told = [w for w in seen if "torch.compile on dtorch" in str(w.message)]
    assert len(told) == 1, f"{len(told)} warnings"


def profiles() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.profiler.record_function("my range"):
            (X @ X).sum().item()
    keys = [event.key for event in profile.key_averages()]
    assert "aten::mm" in keys and "my range" in keys


def threads_use_it_together() -> None:
    results: list[Any] = [None] * 4

    def work(i: int) -> None:
        a = torch.full((8,), float(i), device=D)
        for _ in range(50):
            a = a * 1.5 + 1
            if i % 2:
                a.sum().item()
        results[i] = a.cpu()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        want = torch.full((8,), float(i))
        for _ in range(50):
            want = want * 1.5 + 1
        expect_same(want, results[i])


def reference_counts_fall() -> None:
    gc.collect()
    before = torch.dtorch.memory_stats()["allocation.all.current"]
    for _ in range(20):
        a = X.clone().requires_grad_()
        (a.view(16)[1:] * 2).sum().backward()
    del a

    def left() -> int:
        gc.collect()
        return torch.dtorch.memory_stats()["allocation.all.current"] - before

    assert becomes(lambda: left() <= 0), f"{left()} storages are left"


def many_dimensions_and_none() -> None:
    both(lambda d: [torch.ones([1] * 12, device=d).sum(3), torch.tensor(3.0, device=d) * 2, torch.empty(0, device=d).sum(),
                    torch.ones(2, 0, 3, device=d).sum(0), torch.ones(2, 0, device=d) @ torch.ones(0, 3, device=d)])


def address_is_not_null() -> None:
    assert X.data_ptr() != 0 and X[1:].data_ptr() - X.data_ptr() == 16 and X.untyped_storage().data_ptr() == X.data_ptr()


def metadata_is_worked_out_here() -> None:
    """By Meta kernels and rules of this process: forward and backward ask the cluster nothing. (An optimizer may, for lists.)"""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm, self.out = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11)
            self.batch = nn.BatchNorm1d(5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.embed(ids)).unflatten(-1, (2, 4)).transpose(1, 2)
            x = F.scaled_dot_product_attention(x, x, x, is_causal=True).transpose(1, 2).flatten(2)
            x = F.dropout(F.relu(self.batch(x)), 0.1)
            return self.out(torch.where(x > 0, x, x.abs()))
    model = Model().to(D)
    ids = torch.randint(11, (3, 5)).to(D)
    before = dtorch.session_info()
    F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    after = dtorch.session_info()
    asked = {name: after[name] - before[name] for name in ("asked", "queries", "rules", "metas")}
    assert asked["asked"] == asked["queries"] == 0 and asked["rules"] > 5 and asked["metas"] > 5, asked


def main() -> int:
    suite = devicetest.Suite("device traps", devicetest.arguments())
    for name, function in list(globals().items()):
        if callable(function) and getattr(function, "__module__", "") == "__main__" and name not in ("raises", "main", "base", "doubles", "recurrent") and (
                not isinstance(function, type)):
            suite.check(name.replace("_", " "), function)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
