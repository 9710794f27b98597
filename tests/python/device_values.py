"""usage: device_values.py [PART OF A NAME...]

Where a device could give a wrong value and say nothing: writes that no result names, views that share memory, types that follow
from each other, bits that are lazy, sizes of nothing, memory that changes hands. Each check is a program whose results are
compared with the CPU's, bit for bit, or something that both must refuse."""

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import devicetest
import dtorch  # noqa: F401
from devicetest import DEVICE as D
from devicetest import differences
from torch.utils._pytree import tree_leaves

CHECKS: list[Callable[[], None]] = []
torch.manual_seed(0)
VALUES = torch.randn(64)


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def on(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of a shape, none of them twice."""
    count = int(np.prod(shape))
    return (VALUES.repeat(count // 64 + 1)[:count] * 4).reshape(shape).to(dtype).clone().to(device)


def same(programs: dict[str, Callable[[str], Any]]) -> None:
    """Each program gives the same on both, or both refuse it with the same class. Raises: AssertionError with all that differ."""
    wrong = []
    for name, program in programs.items():
        why = differs(program)
        if why:
            wrong.append(f"{name}: {why}")
    if wrong:
        raise AssertionError("; ".join(wrong))


def differs(program: Callable[[str], Any]) -> str | None:
    results: list[Any] = []
    for device in ("cpu", D):
        torch.manual_seed(1)
        try:
            result = program(device)
            results.append([t.detach() if isinstance(t, torch.Tensor) else t for t in result] if isinstance(result, (list, tuple))
                           else result)
            if device == D and isinstance(results[0], Exception):  # it comes when a value is asked for
                [devicetest.raw(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        except Exception as error:  # noqa: BLE001  (both must refuse)
            results.append(error)
    want, got = results[0], results[-1]
    if isinstance(want, Exception) or isinstance(got, Exception):
        if not isinstance(got, Exception):
            return f"does not refuse: {devicetest.first_lines(want)[:150]}"
        if not isinstance(want, Exception):
            return f"{type(got).__name__}: {devicetest.first_lines(got)[:250]}"
        return None if isinstance(got, type(want)) or isinstance(want, type(got)) else f"{type(got).__name__} for {type(want).__name__}"
    return next(differences(want, got), None)


def attempts(functions: Iterable[Callable[[], Any]]) -> list[Any]:
    """What each gives, or the class of PyTorch's that it is refused with."""
    results: list[Any] = []
    for function in functions:
        try:
            result = function()
            devicetest.raw(result)
            results += [str(result.dtype), result]
        except Exception as error:  # noqa: BLE001  (compared with the other device's)
            results.append(next(k.__name__ for k in type(error).__mro__ if not k.__module__.startswith("dtorch")))
    return results


# ---- types ----

TYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b, "less": lambda a, b: a < b,
    "where": lambda a, b: torch.where(a != 0, a, b), "power": lambda a, b: a ** b, "floor": lambda a, b: a // b,
    "maximum": torch.maximum, "copysign": torch.copysign, "atan2": torch.atan2}


@check
def types_of_tensors_follow_from_each_other() -> None:
    """A tensor with another, with a tensor of no dimension, and with one of the CPU, of each pair of types."""
    def program(d: str, name: str, a: torch.dtype, b: torch.dtype) -> list[Any]:
        x = on(d, 5).abs().add(1).to(a)
        others = (on(d, 5).abs().add(1).to(b), on(d, 1).abs().add(2).to(b)[0], torch.tensor(2).to(b))
        return attempts(functools.partial(BINARY[name], *pair) for y in others for pair in ((x, y), (y, x)))
    same({f"{name} {a} {b}": lambda d, n=name, a=a, b=b: program(d, n, a, b)
          for i, (a, b) in enumerate(itertools.product(TYPES, TYPES)) for k, name in enumerate(BINARY) if (i + 3 * k) % 10 == 0})


@check
def numbers_of_python_and_numpy_take_part() -> None:
    numbers = (True, 3, 2.5, 1 + 2j, 2**40, 1e300, np.float64(0.1), np.float32(0.1), np.int64(7), np.bool_(True), float("nan"), -0.0)

    def program(d: str, number: Any, dtype: torch.dtype) -> list[Any]:
        x = on(d, 4).to(dtype)
        return attempts((lambda: x + number, lambda: number * x, lambda: x - number, lambda: torch.full((2,), number, device=d),
                         lambda: torch.where(x > 0, x, number), lambda: x == number, lambda: x.clone().fill_(number),
                         lambda: torch.tensor(number, device=d), lambda: x.clone().mul_(number), lambda: x.masked_fill(x > 0, number)))
    same({f"{n!r} {t}": lambda d, n=n, t=t: program(d, n, t) for n in numbers for t in (torch.int32, torch.float32, torch.float16)})


@check
def a_default_type_counts() -> None:
    def program(d: str) -> list[Any]:
        whole = torch.arange(4, device=d)
        results = []
        for dtype in (torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            try:
                results += [whole / 2, whole.sin(), torch.ones(2, device=d), whole * 0.5, torch.arange(0, 1, 0.25, device=d),
                            torch.tensor(1.5, device=d), whole.to(torch.bool) * 1.5, torch.rand(3, device=d), whole.sqrt(),
                            torch.full((2,), 0.1, device=d), torch.zeros(2, device=d), whole.mean(dtype=dtype), torch.linspace(0, 1, 3, device=d),
                            torch.complex(torch.ones(1, device=d), torch.ones(1, device=d)), torch.eye(2, device=d)]
            finally:
                torch.set_default_dtype(torch.float32)
        return results
    same({"program": program})


@check
def a_default_type_counts_for_integers() -> None:
    """Operators that compute on integers as the default type: with a result of their own, in `out=` of another type, one tensor
    after the other, in parts."""
    functions: dict[str, Callable[[Any], Any]] = {
        "sqrt": torch.sqrt, "atan2": lambda x: torch.atan2(x, x), "degrees": torch.rad2deg, "angle": torch.angle,
        "logsumexp": lambda x: torch.logsumexp(x, 0), "mvlgamma": lambda x: torch.mvlgamma(x + 4, 2), "ldexp": lambda x: torch.ldexp(x, x),
        "logit": torch.logit, "trapezoid": torch.trapezoid, "gradient": torch.gradient, "complex": lambda x: x * 1j, "ndtr": torch.special.ndtr,
        "power": lambda x: torch.pow(2.0, x), "where": lambda x: torch.where(x > 1, x, 0.3), "number": lambda x: (x + 0.1, x / 3, 0.1 - x),
        "lists": lambda x: torch._foreach_sqrt([x, x[1:]]) + torch._foreach_div([x], 3) + torch._foreach_add([x], 1),
        "distance": lambda x: F.pairwise_distance(x, x + 1), "nll": lambda x: F.poisson_nll_loss(x, x), "said": lambda x: x.sum(dtype=torch.float32),
        "like": lambda x: (torch.full_like(x, 2), torch.ones_like(x), x.clone(), x.new_full((2,), 7), x.abs(), x.sum(), x.cumsum(0), x * 2)}
    for name in ("sqrt", "exp", "sin", "log1p", "sigmoid", "reciprocal"):
        for dtype in (torch.float32, torch.float64, torch.float16):
            functions[f"{name} out {dtype}"] = lambda x, f=getattr(torch, name), t=dtype: f(x, out=torch.empty(0, device=x.device, dtype=t))
    for name, function in (("div", torch.div), ("atan2", torch.atan2), ("add", torch.add), ("true_divide", torch.true_divide), ("pow", torch.pow)):
        functions[f"{name} out"] = lambda x, f=function: (f(x, x + 2, out=torch.empty(0, device=x.device, dtype=torch.float32)),
                                                          f(x, 3, out=torch.empty(0, device=x.device, dtype=torch.float64)))
    functions["div rounded out"] = lambda x: torch.div(x, 3, rounding_mode="floor", out=torch.empty(0, device=x.device))
    functions["add large out"] = lambda x: torch.add(x + 2**53, 1, out=torch.empty(0, device=x.device, dtype=torch.float64))

    def program(d: str, function: Callable[[Any], Any], dtype: torch.dtype, x: torch.dtype) -> Any:
        torch.set_default_dtype(dtype)
        try:
            return tree_leaves(function(torch.arange(1, 6, device=d).to(x)))
        finally:
            torch.set_default_dtype(torch.float32)
    same({f"{name} {t}": lambda d, f=f, t=t: program(d, f, t, torch.int64) for name, f in functions.items() for t in (torch.float64, torch.bfloat16)})
    same({f"{name} of bool": lambda d, f=f: program(d, f, torch.float64, torch.bool) for name, f in functions.items()})


@check
def sums_and_means_choose_their_type() -> None:
    same({str(t): lambda d, t=t: [x := on(d, 3, 4).to(t), x.sum(), x.sum(0), x.prod(), x.cumsum(0), x.to(torch.float64).mean(), x.max(), x.argmax(1),
                                  x.sum(dtype=torch.float64), (x != 0).sum(), x.any(), x.all(), torch.count_nonzero(x)] for t in TYPES})


@check
def casts_are_the_cpus() -> None:
    odd = torch.tensor([0.0, -0.0, 1.5, -1.5, 2.5, 255.0, 65504.0, 1e-8, -3.999])
    same({f"{a} to {b}": lambda d, a=a, b=b: [odd.to(a).to(d).to(b), odd.to(d).to(a).to(b)] for a in TYPES for b in TYPES})


# ---- writes ----


@check
def writes_that_no_result_names() -> None:
    def embedding(d: str) -> list[Any]:
        torch.manual_seed(2)
        table = nn.Embedding(5, 3, max_norm=0.5).to(d)
        out = table(torch.tensor([1, 4, 1], device=d))
        return [out, table.weight]

    def bag(d: str) -> list[Any]:
        torch.manual_seed(2)
        table = nn.EmbeddingBag(5, 3, max_norm=0.5).to(d)
        return [table(torch.tensor([1, 4, 1], device=d), torch.tensor([0, 2], device=d)), table.weight]

    def norms(d: str) -> list[Any]:
        torch.manual_seed(2)
        results: list[Any] = []
        for norm in (nn.BatchNorm1d(3), nn.BatchNorm1d(3, momentum=None), nn.InstanceNorm1d(3, track_running_stats=True, affine=True)):
            norm.to(d)
            for _ in range(3):
                results.append(norm(torch.randn(4, 3, 5).to(d)))
            norm.eval()
            results += [norm(torch.randn(4, 3, 5).to(d)), *norm.state_dict().values()]
        return results

    def spectral(d: str) -> list[Any]:
        torch.manual_seed(2)
        net = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).to(d)
        outs = [net(on(d, 2, 4)) for _ in range(3)]
        return outs + list(net.state_dict().values())

    def scaling(d: str) -> list[Any]:
        grads, found = [on(d, 3), on(d, 2, 2)], torch.zeros((), device=d)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor(0.5, device=d))
        grads[0][0] = float("inf")
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor(0.5, device=d))
        scale, growth = torch.tensor(8.0, device=d), torch.zeros((), dtype=torch.int32, device=d)
        torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 2)
        return [*grads, found, scale, growth]

    def rrelu(d: str) -> list[Any]:
        noise = torch.zeros(4, 4, device=d)
        return [torch.ops.aten.rrelu_with_noise(on(d, 4, 4), noise, 0.1, 0.3, True), noise]

    def fake(d: str) -> list[Any]:
        observer = torch.ones(1, dtype=torch.long, device=d)
        low, high = torch.tensor([0.0], device=d), torch.tensor([0.0], device=d)
        scale, zero = torch.ones(1, device=d), torch.zeros(1, dtype=torch.int32, device=d)
        out = torch.fused_moving_avg_obs_fake_quant(on(d, 4, 4), observer, observer, low, high, scale, zero, 0.1, 0, 255, 0)
        return [out, low, high, scale, zero]

    same({"embedding": embedding, "bag": bag, "norms": norms, "spectral": spectral, "scaling": scaling, "rrelu": rrelu, "fake": fake})


@check
def fused_optimizers_write_all_that_they_keep() -> None:
    def program(d: str, kind: Any, **options: Any) -> list[Any]:
        weights = [nn.Parameter(on(d, 3, 2)), nn.Parameter(on(d, 5))]
        optimizer = kind(weights, lr=0.1, **options)
        for i in range(3):
            for w in weights:
                w.grad = on(d, *w.shape) * (i + 1)
            optimizer.step()
        return weights + [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    same({f"{k.__name__} {o}": lambda d, k=k, o=o: [t.cpu() for t in program(d, k, **o)] for k, o in (
        (torch.optim.Adam, {"fused": True}), (torch.optim.AdamW, {"fused": True, "amsgrad": True}), (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
        (torch.optim.Adagrad, {"fused": True}), (torch.optim.Adam, {"foreach": True, "amsgrad": True}))})


@check
def lists_are_written() -> None:
    def program(d: str) -> list[Any]:
        a, b = [on(d, 3), on(d, 2, 2), on(d, 6)[::2]], [on(d, 3), on(d, 2, 2), on(d, 3)]
        torch._foreach_add_(a, b, alpha=2)
        torch._foreach_mul_(a, 0.5)
        torch._foreach_mul_(a, torch.tensor(2.0, device=d))
        torch._foreach_mul_(a, [1.0, 2.0, 3.0])
        torch._foreach_addcdiv_(a, b, b, 0.5)
        torch._foreach_lerp_(a, b, 0.25)
        torch._foreach_sqrt_(c := [x.abs() for x in a])
        torch._foreach_copy_(e := [torch.zeros_like(x) for x in a], a)
        torch._foreach_zero_(b[:1])
        return a + b + c + e + list(torch._foreach_norm(a)) + list(torch._foreach_maximum(a, b)) + list(torch._foreach_pow(c, 2))
    same({"program": program})


@check
def views_of_one_memory_see_each_others_writes() -> None:
    def windows(d: str) -> list[Any]:
        x = on(d, 10)
        w = x.unfold(0, 4, 2)
        first = w.sum(1)
        x[3] = 100
        w[2].mul_(2)
        return [x, w, first, w + 0, x.as_strided((3, 3), (2, 1), 1)]

    def strided(d: str) -> list[Any]:
        x = on(d, 4, 4)
        a, b = x.as_strided((4,), (5,)), x.as_strided((2, 2), (8, 2), 1)
        a.fill_(9)
        b.add_(1)
        x.t().diagonal(1).zero_()
        return [x, a, b]

    def typed(d: str) -> list[Any]:
        x = on(d, 4, 4)
        bits, halves = x.view(torch.int32), x.view(torch.int16)
        bits[0, 0] = 0x3F800000
        halves[1, 1] = 0
        y = x.view(4, 2, 2).transpose(0, 1)
        y[0].neg_()
        return [x, bits, halves, y, x.view(torch.uint8)[2], x.view(torch.float64)]

    def chained(d: str) -> list[Any]:
        x = on(d, 2, 3, 4)
        y = x.permute(2, 0, 1)[1:3].flatten(1)  # a copy
        z = x[:, 1:].transpose(1, 2)[..., 0]
        z.mul_(3)
        y.zero_()
        p, q = x.split([1, 2], 1)
        q.sub_(p)
        x.squeeze_(0).unsqueeze_(0)
        return [x, y, z, p, q]

    def moved(d: str) -> list[Any]:
        x = on(d, 3, 4)
        x[:, :2] = x[:, 2:]
        x[1] = x[0]
        x[[0, 2]] = x[[2, 0]]
        x[x > 1], y = 0.5, x.t()
        y += y.clone()
        x.t_()
        x[1] -= 1
        return [x, y, x.stride()]

    def expanded(d: str) -> list[Any]:
        x = on(d, 1, 3)
        e = x.expand(4, 3)
        x.add_(1)
        return [e, e.sum(0), e.clone(), e.contiguous(), e.to(torch.float64), torch.empty_like(e).copy_(e), e[1:]]

    same({"windows": windows, "strided": strided, "typed": typed, "chained": chained, "moved": moved, "expanded": expanded})


@check
def writes_where_memory_overlaps_are_refused() -> None:
    same({"add_": lambda d: torch.zeros(6, device=d).as_strided((4, 3), (1, 1)).add_(1),
          "expanded": lambda d: torch.zeros(1, 3, device=d).expand(4, 3).mul_(2),
          "shifted": lambda d: (x := on(d, 8))[1:].add_(x[:-1]),
          "out": lambda d: torch.add((x := on(d, 8))[1:], 1, out=x[:-1]),
          "copy": lambda d: (x := torch.zeros(6, device=d)).as_strided((4, 3), (1, 1)).copy_(torch.ones(4, 3, device=d)),
          "leaf": lambda d: torch.zeros(3, device=d, requires_grad=True).add_(1),
          "type": lambda d: torch.ones(3, dtype=torch.int32, device=d).add_(torch.ones(3, device=d) * 0.5),
          "bool": lambda d: torch.ones(3, dtype=torch.bool, device=d).sub_(1),
          "shape": lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
          "out type": lambda d: torch.add(on(d, 3), 1, out=torch.ones(3, dtype=torch.int32, device=d))})


@check
def indices_write() -> None:
    def program(d: str) -> list[Any]:
        i, j = torch.tensor([0, 2, 2, 1], device=d), torch.tensor([[0, 1], [2, 0]], device=d)
        v, results = on(d, 4, 3), []
        for reduce in ("sum", "prod", "amax", "amin", "mean"):
            results += [on(d, 3, 3).scatter_reduce_(0, torch.tensor([[0, 1, 2], [1, 1, 0]], device=d), on(d, 2, 3), reduce, include_self=False)]
            results += [on(d, 3, 3).index_reduce_(0, i, v, reduce)] if reduce != "sum" else []
        x = on(d, 4, 3)
        x[i[:3]] += 1
        x.index_put_((i,), v, accumulate=True)
        x.index_add_(0, i, v, alpha=2)
        x.index_copy_(1, torch.tensor([2, 0], device=d), on(d, 4, 2))
        x.scatter_(1, j, 7.0)
        x.scatter_add_(1, j, on(d, 2, 2))
        x.put_(torch.tensor([0, 5], device=d), on(d, 2))
        x.masked_scatter_(x > 2, on(d, 12))
        x[1:, [0, 2]] = on(d, 3, 2)
        x[None, 0, ..., True] *= 2
        x[torch.tensor(1, device=d)] = 4
        x[torch.tensor(True)] += 1
        x[:, torch.tensor([True, False, True], device=d)] = torch.tensor(3.5)
        x[x < -2] = torch.tensor(1, device=d)
        return results + [x, x.gather(1, j), x.take(i), x[torch.tensor(2)], x[..., None, 1:2], x[i, :2], x[[1], [2]], x[-1, -1],
                          x.select_scatter(on(d, 3), 0, 1), x.slice_scatter(on(d, 2, 3), 0, 1, 3), x.diagonal_scatter(on(d, 3)),
                          x.fill_diagonal_(2), x[torch.tensor([1, 0])], x[i.to(torch.int32)], x[i.cpu()]]
    same({"program": program})


# ---- results that are given ----


@check
def results_go_where_they_are_told() -> None:
    def shapes(d: str) -> list[Any]:
        results: list[Any] = []
        for out in (torch.empty(0, device=d), torch.empty(3, 4, device=d), torch.empty(4, 3, device=d).t(), torch.zeros(3, 8, device=d)[:, ::2],
                    torch.zeros(2, 3, 4, device=d)[1], torch.empty(3, 4, device=d, dtype=torch.float64), torch.zeros(4, 4, 3, device=d).permute(2, 0, 1)[:, 1]):
            base = out._base if out._base is not None else out
            returned = torch.add(on(d, 3, 4), 1, out=out)
            results += [out, base, returned is out, torch.mul(out, out, out=out), torch.sub(out, 1, out=out)]
        return results

    def larger(d: str) -> list[Any]:
        out, small = torch.zeros(10, device=d), torch.zeros(2, device=d)
        keep = out[2:5]
        torch.add(on(d, 3), 1, out=out.resize_(0))
        torch.cat([on(d, 3), on(d, 4)], out=small.resize_(0))
        return [out, small, keep.shape]

    def several(d: str) -> list[Any]:
        values, indices = torch.empty(0, device=d), torch.empty(0, dtype=torch.long, device=d)
        torch.sort(on(d, 3, 4), 1, out=(values, indices))
        q, r = torch.empty(4, 4, device=d), torch.empty(4, 4, device=d)
        torch.linalg.qr(on(d, 4, 4), out=(q, r))
        return [values, indices, q, r, torch.linalg.inv(on(d, 4, 4), out=torch.zeros(4, 8, device=d)[:, ::2]),
                torch.mm(on(d, 3, 4), on(d, 4, 2), out=torch.zeros(2, 3, device=d).t()), torch.cumsum(on(d, 5), 0, out=torch.zeros(10, device=d)[::2]),
                torch.bmm(on(d, 2, 3, 4), on(d, 2, 4, 2), out=torch.empty(2, 2, 3, device=d).transpose(1, 2)),
                torch.arange(5, out=torch.empty(0, device=d)), torch.nonzero(on(d, 4) > 0, out=torch.empty(0, dtype=torch.long, device=d)),
                torch.masked_select(on(d, 4), on(d, 4) > 0, out=torch.empty(0, device=d)), torch.index_select(on(d, 4, 2), 0, torch.tensor([3, 0], device=d), out=torch.zeros(2, 2, device=d).t())]

    same({"shapes": shapes, "larger": larger, "several": several})


# ---- memory that changes hands ----


@check
def storages_are_shared_and_changed() -> None:
    def data(d: str) -> list[Any]:
        x = on(d, 3, 3).requires_grad_()
        y = (x * 1).sum()
        alias = x.data
        alias[0] = 5
        x.data = x.data * 2
        alias[1] = 7
        y.backward()
        return [x, alias, x.grad, x._version]

    def set_to(d: str) -> list[Any]:
        a, b = on(d, 4), on(d, 2, 3)
        a.set_(b)
        a[0] = 3
        c = torch.empty(0, device=d)
        c.set_(b.untyped_storage(), 1, (2, 2), (2, 1))
        c.add_(1)
        e = torch.tensor([], device=d).set_(b.t())
        return [a, b, c, e, a.data_ptr() == b.data_ptr(), a.untyped_storage().nbytes()]

    def resized(d: str) -> list[Any]:
        a = on(d, 2, 3)
        view = a[1]
        a.resize_(3)
        a.add_(1)
        a.resize_(2, 3)
        b = on(d, 4)
        b.resize_(8)[4:] = 1
        c = on(d, 2, 2)
        c.resize_as_(torch.ones(1, 3, device=d))
        e = on(d, 6)[2:]
        e.resize_(2, 2)
        return [a, view, b, c, e]

    def stored(d: str) -> list[Any]:
        x = on(d, 4)
        s = x.untyped_storage()
        other = on(d, 4).mul_(2)
        s.copy_(other.untyped_storage())
        y = s.clone()
        s.fill_(0)
        typed = other.storage()
        return [x, torch.empty(0, device=d).set_(y, 0, (4,), (1,)), s.nbytes(), len(typed), typed.nbytes(), x.element_size()]

    def grown(d: str) -> list[Any]:
        x = on(d, 3)
        x.untyped_storage().resize_(22)
        y = torch.empty(0, dtype=torch.float32, device=d).set_(x.untyped_storage(), 0, (5,), (1,))
        y[3:] = 1
        z = torch.empty(0, dtype=torch.int16, device=d).set_(x.untyped_storage(), 1, (2, 2), (2, 1))
        return [x, y, z]

    def freed(d: str) -> list[Any]:  # as FSDP does with parameters
        x = on(d, 6)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(24)
        x.copy_(on(d, 6))
        return [x]

    same({"data": data, "set_": set_to, "resize_": resized, "storage": stored, "grown": grown, "freed": freed})


@check
def bytes_of_the_program_are_taken_when_they_are_given() -> None:
    for count in (3, 1000, 300_000, 5_000_000):
        array = np.arange(count, dtype=np.float32)
        value = torch.from_numpy(array)
        there, lazily, into = value.to(D), value.to(D, non_blocking=True), torch.empty(count, device=D)
        into.copy_(value, non_blocking=True)
        array[:] = -1
        for tensor in (there, lazily, into):
            assert float(tensor.double().sum()) == count * (count - 1) / 2, count
        back = there.cpu()
        there.zero_()
        assert float(back[-1]) == count - 1
        row = torch.zeros(2, count, device=D)
        row[1] = torch.full((count,), 2.0)
        assert float(row.sum()) == 2 * count


@check
def parameters_and_subclasses_go_along() -> None:
    class Marked(torch.Tensor):
        pass

    class Own(nn.Parameter):
        pass

    def program(d: str) -> list[Any]:
        x = on(d, 3).as_subclass(Marked)
        y = x * 2 + torch.ones(3, device=d)
        net = nn.Module()
        net.weight = Own(on("cpu", 3))
        net.weight.note = "kept"
        net.register_buffer("seen", on("cpu", 2))
        net.other = net.weight
        net.to(d)
        (net.weight * net.other).sum().backward()
        net.seen[0] = 9
        twin = copy.deepcopy(net)
        with torch.no_grad():
            twin.weight.add_(1)
        return [type(y) is Marked, y.as_subclass(torch.Tensor), type(net.weight) is Own, net.weight.note, net.other is net.weight,
                net.weight.grad, net.seen, twin.weight, twin.other is twin.weight, net.weight, type(x[1:]) is Marked,
                type(twin.weight) is Own, nn.Buffer(on(d, 2)), isinstance(nn.Parameter(on(d, 1)), torch.Tensor)]
    same({"program": program})


# ---- lazy bits ----


@check
def conjugates_and_negatives_are_values() -> None:
    def program(d: str) -> list[Any]:
        z = torch.view_as_complex(on(d, 3, 3, 2))
        c = z.conj()
        c.add_(1 + 1j)
        c[0] = 2 + 3j
        c.t()[1].mul_(1j)
        n = c.imag
        n.sub_(1)
        n[1] = 4
        m = z.mH
        results = [z, c, n, m, m @ z, c.real, n * 2, c.resolve_conj(), n.resolve_neg(), c.clone(), n.clone(), c.sum(), n.sum(), torch.cat([c, m]), c.t(), n.t(),
                   torch.stack([n, n]), c.reshape(9), n.contiguous(), c.contiguous(), c == z, torch.dot(c[0], z[0]), torch.vdot(c[0], z[0]),
                   torch.linalg.solve(m + 5 * torch.eye(3, device=d), z), torch.einsum("ij,kj->ik", c, m), c.to(torch.complex128), n.to(torch.float64),
                   c.abs(), c.angle(), c.conj(), c.cpu().clone().to(d), torch.empty(3, 3, dtype=torch.complex64, device=d).copy_(c),
                   torch.empty(3, 3, device=d).copy_(n), c[c.real > 0], n[n > 0], c.conj_physical(), torch.zeros_like(c), torch.zeros_like(n),
                   F.pad(c, (1, 1)), c.is_conj(), n.is_neg(), m.is_conj(), copy.deepcopy(c), copy.deepcopy(n), c.expand(2, 3, 3), c.item() if c.numel() == 1 else 0]
        z.copy_(c)
        return results + [z, c.mul_(c), torch.view_as_real(z.resolve_conj()), c.tolist(), n.tolist()]
    same({"program": program, "refused": lambda d: torch.view_as_real(torch.view_as_complex(on(d, 3, 2)).conj())})


@check
def gradients_of_complex_numbers() -> None:
    def program(d: str) -> list[Any]:
        z = torch.view_as_complex(on(d, 3, 3, 2)).requires_grad_()
        w = (z.conj() @ z * z.imag).abs().sum() + z.real.mul(2).sum() + torch.fft.fft(z).abs().sum()
        (g,) = torch.autograd.grad(w, z, create_graph=True)
        (h,) = torch.autograd.grad(g.abs().sum(), z)
        return [w, g, h]
    same({"program": program})


# ---- formats, nothing at all ----


@check
def orders_of_memory_are_the_cpus() -> None:
    def program(d: str) -> list[Any]:
        torch.manual_seed(3)
        last = torch.channels_last
        x = torch.randn(2, 3, 4, 5).to(d).to(memory_format=last)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2)).to(d).to(memory_format=last)
        x.requires_grad_()
        y = net(x)
        y.sum().backward()
        volume = torch.randn(1, 2, 3, 3, 3).to(d, memory_format=torch.channels_last_3d)
        odd = torch.randn(4, 3, 2).to(d).permute(1, 2, 0)
        return [x, y, x.grad, *[p.grad for p in net.parameters()], x + 1, x * x[:1], torch.cat([x, x]), torch.empty_like(x).zero_(), x.clone(),
                x.contiguous(), x.to(torch.float64), x.sum(1), x.mean((2, 3)), F.interpolate(x, scale_factor=2), F.pad(x, (1, 1)), x[:, 1:], x[:1].clone(),
                F.avg_pool2d(x, 2), F.group_norm(x, 3), F.softmax(x, 1), x.unsqueeze(0), x.to("cpu").to(d), x.cpu(), volume, volume * 2, F.conv3d(volume, torch.ones(1, 2, 2, 2, 2, device=d)),
                odd, odd + 1, odd.exp(), odd * torch.ones(3, 2, 4, device=d), odd.clone(), odd.cpu(), odd.to(torch.half), torch.zeros_like(odd), odd > 0,
                torch.where(odd > 0, odd, odd.contiguous()), odd.sum(0), torch.stack([odd, odd]), odd.reshape(6, 4), F.layer_norm(odd, (4,)),
                torch.randn(1, 3, 1, 1).to(d).to(memory_format=last), torch.randn(2, 1, 4, 4).to(d).to(memory_format=last) + 1, torch.manual_seed(5) and F.dropout(x, 0.3), torch.rand_like(odd)]
    same({"program": program})


@check
def nothing_is_computed_as_on_the_cpu() -> None:
    same({"sums": lambda d: [e := torch.empty(0, 3, device=d), e.sum(), e.sum(0), e.prod(), e.mean(), e.std(), e.any(), e.all(), e.cumsum(0), e.t(), e + 1, e @ torch.ones(3, 2, device=d),
                             torch.ones(2, 0, device=d) @ torch.ones(0, 3, device=d), torch.cat([e, on(d, 2, 3)]), torch.cat([torch.empty(0, device=d), on(d, 2, 3)]),
                             e.view(3, 0), e.reshape(0), e.nonzero(), e[e > 0], e.expand(0, 3), e.clone(), e.cpu(), e.to(torch.float64), e.flatten(), e.sort(0), F.relu(e),
                             F.linear(e, on(d, 2, 3), on(d, 2)), F.layer_norm(e, (3,)), F.softmax(e, 1), e.unique(), e.tolist(), torch.stack([e, e]), e.norm(), e.new_ones(0)],
          "layers": lambda d: [F.conv2d(torch.empty(0, 3, 4, 4, device=d), on(d, 2, 3, 3, 3)), F.embedding(torch.empty(0, dtype=torch.long, device=d), on(d, 4, 2)),
                               F.cross_entropy(torch.empty(0, 3, device=d), torch.empty(0, dtype=torch.long, device=d)), torch.einsum("ij,jk->ik", on(d, 2, 3), torch.empty(3, 0, device=d)),
                               torch.bmm(torch.empty(0, 2, 3, device=d), torch.empty(0, 3, 2, device=d)), F.scaled_dot_product_attention(*[torch.empty(0, 2, 3, 4, device=d)] * 3)],
          "writes": lambda d: [(e := torch.empty(0, 2, device=d)).add_(1), e.fill_(3), e.copy_(torch.ones(1, 2, device=d)), e.zero_(), e.index_put_((torch.empty(0, dtype=torch.long, device=d),), torch.tensor(1.0, device=d)),
                               on(d, 3)[1:1].add_(5), (x := on(d, 3))[3:].fill_(1), x],
          "max": lambda d: torch.empty(0, device=d).max(), "argmin": lambda d: torch.empty(0, 3, device=d).argmin(0), "median": lambda d: torch.empty(0, device=d).median(),
          "amax": lambda d: torch.empty(0, 3, device=d).amax(0), "amax1": lambda d: torch.empty(0, 3, device=d).amax(1)})


# ---- autograd ----


@check
def versions_guard_what_was_saved() -> None:
    def changed(write: Callable[[torch.Tensor], Any]) -> Callable[[str], Any]:
        def program(d: str) -> Any:
            x = on(d, 4).requires_grad_()
            y = x * 2
            z = (y * y).sum()
            write(y)
            z.backward()
            return x.grad
        return program
    def under(y: torch.Tensor) -> None:
        with torch.no_grad():
            y[1:].mul_(2)
    same({"add_": changed(lambda y: y.add_(1)), "view": changed(lambda y: y[1:].zero_()), "no_grad": changed(under),
          "detach": changed(lambda y: y.detach().add_(1)), "data": changed(lambda y: y.data.add_(1)), "copy_": changed(lambda y: y.copy_(torch.ones(4))),
          "set": changed(lambda y: y.__setitem__(0, 1.0)), "out": changed(lambda y: torch.add(y.detach(), 1, out=y.detach())),
          "foreach": changed(lambda y: torch._foreach_add_([y.detach()], 1)), "nothing": changed(lambda y: y + 1),
          "versions": lambda d: [(x := on(d, 4))._version, x.add_(1)._version, x[1:].mul_(2)._version, x._version, x.data.add_(1)._version, x._version, x.detach()._version,
                                 torch._foreach_add_([x], 1) or x._version, torch.add(x, 1, out=x)._version, x.zero_()._version, x.resize_(2)._version]})


@check
def gradients_gather_as_on_the_cpu() -> None:
    def program(d: str) -> list[Any]:
        x, w = on(d, 3, 4).requires_grad_(), on(d, 4, 2).t().contiguous().t().requires_grad_()
        for _ in range(2):
            (x @ w).sin().sum().backward()
        first = x.grad.clone()
        x.grad.zero_()
        y = x * 1
        y.retain_grad()
        y[:, 1:].mul_(3)
        z = y.view(-1)
        z[::2].add_(x.reshape(-1)[::2])
        y.sum().backward()
        leaf = torch.zeros(3, 4, device=d)
        leaf[1] = x[0] * 2
        leaf.sum().backward()
        with torch.no_grad():
            x.add_(1)
            x[0] = 0
        x.requires_grad_(False).mul_(2)
        return [first, x.grad, w.grad, y.grad, x, leaf, y.grad_fn.name(), z.grad_fn is not None]
    same({"program": program})


@check
def saved_tensors_and_averages() -> None:
    def program(d: str) -> list[Any]:
        torch.manual_seed(4)
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()).to(d)
        average = torch.optim.swa_utils.AveragedModel(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
        for i in range(3):
            with torch.autograd.graph.save_on_cpu(pin_memory=False) if i == 1 else torch.enable_grad():
                net(on(d, 5, 4)).pow(2).sum().backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=i != 1)
            scheduler.step()
            average.update_parameters(net)
        torch.optim.swa_utils.update_bn([on(d, 5, 4)], average)
        flat = nn.utils.parameters_to_vector(net.parameters())
        nn.utils.vector_to_parameters(flat * 2, net.parameters())
        return [flat, *net.state_dict().values(), *average.state_dict().values(), scheduler.get_last_lr()[0]]
    same({"program": program})


@check
def averaged_models_take_buffers() -> None:
    def program(d: str) -> list[Any]:
        torch.manual_seed(4)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)).to(d)
        averages = [torch.optim.swa_utils.AveragedModel(net, use_buffers=True), torch.optim.swa_utils.AveragedModel(
            net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))]
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        for i in range(5):
            net(on(d, 8, 4) * (i + 1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for average in averages:
                average.update_parameters(net)
        torch.optim.swa_utils.update_bn([on(d, 8, 4)], averages[0])
        return [value for average in averages for value in average.state_dict().values()]
    same({"program": program})


@check
def encoders_leave_out_what_is_padded() -> None:
    """In evaluation the CPU goes by nested tensors: zeros where a mask pads. Other results differ by rounding."""
    def program(d: str, kind: str) -> Any:
        torch.manual_seed(5)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        net = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8) if kind == "norm" else None, mask_check=kind != "unchecked").to(d)
        net.train(kind == "training").requires_grad_(kind == "gradient")
        padding = torch.tensor([[False] * 5, [False, False, False, True, True]], device=d)
        if kind == "right":
            padding = padding.flip(1)
        if kind == "float":
            padding = torch.zeros(2, 5, device=d).masked_fill(padding, float("-inf"))
        attention = torch.zeros(5, 5, device=d) if kind == "mask" else None
        return net(on(d, 2, 5, 8), attention, None if kind == "none" else padding).detach().cpu()
    for kind in ("plain", "norm", "float", "unchecked", "right", "mask", "gradient", "none"):
        want, got = program("cpu", kind), program(D, kind)
        assert torch.allclose(want, got, atol=1e-5, rtol=1e-5), f"{kind}: {devicetest.how_far(want, got)}"
        assert torch.equal(want == 0, got == 0), kind


@check
def integers_are_counted_in_bins() -> None:
    """Programs count experts by histc() of integers on every device but the CPU, which takes floats only."""
    whole = torch.tensor([0, 3, 1, 3, 3, 2, 7], dtype=torch.int32)
    for bins, top in ((4, 3), (8, 7), (3, 0)):
        got = torch.histc(whole.to(D), bins, 0, top)
        assert got.dtype == torch.int32 and torch.equal(got.cpu().float(), torch.histc(whole.float(), bins, 0, top)), (bins, got)
    same({"float": lambda d: torch.histc(on(d, 9), 4), "gradient": lambda d: torch.histc(on(d, 9).requires_grad_(), 4, -1, 1)})


# ---- asking ----


@check
def questions_are_answered_in_python() -> None:
    def program(d: str) -> list[Any]:
        x, i = on(d, 5), torch.tensor(2, device=d)
        return [list(range(5))[i], "abc"[i], x[i], x[:i], x[i:], [1, 2, 3][: int(i)], torch.arange(int(i), device=d), float(x[0]), bool(x[1] > 0), complex(x[0]), round(float(x[2]), 3),
                x.tolist(), [float(v) for v in x], x.max().item() in x.tolist(), len(x), x.numel(), torch.tensor([x[0], x[1]]), torch.tensor(x[0].item(), device=d), torch.stack([x[0], i.float()]),
                torch.is_tensor(x), torch.as_tensor(x[0]), np.asarray(x.cpu()).tolist(), torch.zeros(int(i), 2, device=d), x.repeat(int(i)), f"{x[0]:.2f}", f"{i}", str(x.dtype), x.is_contiguous(),
                x.equal(x), torch.equal(x, x + 1), x.allclose(x), torch.is_nonzero(i), torch.is_floating_point(x), min(x).item(), max(x), sum(x), sorted(x.tolist()), i == 2, bool(i == 2), int(i) + 1,
                x.nonzero().shape[0], torch.numel(x), torch.result_type(x, i), torch.promote_types(x.dtype, i.dtype), torch.broadcast_shapes(x.shape, (1,)), x.element_size(), x.ndim, hash(x) == hash(x),
                (x > 0).sum().item(), torch.where(x > 0)[0], x.data_ptr() == x.view(5).data_ptr(), i.item() is not True, divmod(7, int(i)), x.__contains__(float(x[0])), x.sum().item().hex()]
    same({"program": program, "many": lambda d: bool(on(d, 3)), "index": lambda d: range(3)[on(d, 1)[0]], "item": lambda d: on(d, 2).item()})


@check
def generators_are_drawn_from_in_order() -> None:
    def program(d: str) -> list[Any]:
        g, h = torch.Generator(d).manual_seed(3), torch.Generator(d).manual_seed(3)
        a, b = torch.rand(3, device=d, generator=g), torch.rand(3, device=d)
        c = [torch.rand(2, device=d, generator=h) for _ in range(2)]
        x = torch.empty(5, device=d).uniform_(-1, 1, generator=g)
        g2 = g.clone_state() if hasattr(g, "clone_state") else g
        y = torch.randint(0, 9, (4,), device=d, generator=g)
        return [a, b, *c, x, y, torch.randint(0, 9, (4,), device=d, generator=g2), torch.normal(0.0, 1.0, (3,), device=d, generator=h), torch.randperm(5, device=d, generator=h),
                torch.multinomial(torch.tensor([0.1, 0.6, 0.3], device=d), 5, True, generator=h), torch.bernoulli(torch.full((5,), 0.4, device=d), generator=h),
                nn.init.normal_(torch.empty(3, device=d), generator=g), torch.rand(2, 2, device=d).double(), torch.randn(3, dtype=torch.float64, device=d), torch.randn(3, dtype=torch.bfloat16, device=d),
                torch.randn(3, dtype=torch.complex64, device=d), torch.empty(40, device=d).normal_(), torch.rand(20, device=d), F.dropout(torch.ones(8, device=d), 0.5)]
    same({"program": program})


def main() -> int:
    suite = devicetest.Suite("device values", devicetest.arguments())
    for function in CHECKS:
        suite.check(function.__name__.replace("_", " "), function)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
