"""usage: device_linear.py [PART OF A NAME...]

Linear layers are one operator on the device, forward and backward, with the CPU's bits, however their operands lie; where the
CPU takes a layer apart in another way than flattening its input, so does the device."""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import devicetest
import dtorch
from devicetest import DEVICE, both

IN, OUT = 24, 17

# Name: a tensor whose last dim is IN, from a drawn one of any shape.
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "1-d": lambda: torch.randn(IN),
    "1-d with gaps": lambda: torch.randn(2 * IN)[::2],
    "2-d": lambda: torch.randn(9, IN),
    "2-d of one row": lambda: torch.randn(1, IN),
    "2-d transposed": lambda: torch.randn(IN, 9).t(),
    "2-d with gaps": lambda: torch.randn(9, 2 * IN)[:, ::2],
    "2-d of no rows": lambda: torch.randn(0, IN),
    "3-d": lambda: torch.randn(3, 5, IN),
    "3-d of no rows": lambda: torch.randn(3, 0, IN),
    "3-d as rows of more": lambda: torch.randn(3, 5, 2 * IN)[..., :IN],
    "3-d with batch second": lambda: torch.randn(5, 3, IN).transpose(0, 1),
    "3-d of features first": lambda: torch.randn(3, IN, 5).transpose(1, 2),
    "3-d repeated": lambda: torch.randn(1, 1, IN).expand(3, 5, IN),
    "3-d of one batch that lies oddly": lambda: torch.randn(4, 5, IN)[::2][:1],
    "4-d": lambda: torch.randn(2, 3, 2, IN),
    "4-d of channels last": lambda: torch.randn(2, 3, 4, IN).to(memory_format=torch.channels_last),
}
WEIGHTS: dict[str, Callable[[], torch.Tensor]] = {
    "weight": lambda: torch.randn(OUT, IN),
    "transposed weight": lambda: torch.randn(IN, OUT).t(),
    "weight of one row": lambda: torch.randn(1, IN),
}


def layer(make_input: Callable[[], torch.Tensor], make_weight: Callable[[], torch.Tensor], has_bias: bool, learns: tuple[bool, bool, bool],
          dtype: torch.dtype) -> Callable[[str], Any]:
    """A program that runs a layer both ways and gives all that comes out."""
    def program(device: str) -> Any:
        x, w = make_input().to(dtype), make_weight().to(dtype)
        b = torch.randn(w.shape[0]).to(dtype) if has_bias else None
        strides, sizes = x.stride(), x.size()
        base = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).to(device)
        x = base.as_strided(sizes, strides, x.storage_offset()).detach().requires_grad_(learns[0])
        w = w.t().to(device).t() if not w.is_contiguous() else w.to(device)
        w = w.detach().requires_grad_(learns[1])
        b = b.to(device).requires_grad_(learns[2]) if b is not None else None
        y = F.linear(x, w, b)
        if y.requires_grad:
            torch.manual_seed(7)
            y.backward(torch.randn(y.shape).to(dtype).to(device))
            F.linear(x, w, b).sum().backward()
        return y, x.grad, w.grad, b.grad if b is not None else None
    return program


def layers(suite: devicetest.Suite) -> None:
    every = [c for c in itertools.product((True, False), repeat=3)]
    for (name, x), (weight, w), has_bias in itertools.product(INPUTS.items(), WEIGHTS.items(), (True, False)):
        def run(x: Any = x, w: Any = w, has_bias: bool = has_bias) -> None:
            for learns in every if has_bias else every[::2]:
                both(layer(x, w, has_bias, learns, torch.float32))
            for dtype in (torch.bfloat16, torch.float64):
                both(layer(x, w, has_bias, every[0], dtype))
        suite.check(f"{name}, {weight}, {'a' if has_bias else 'no'} bias", run)


def sizes(device: str) -> Any:
    """Layers as models have them: sizes that kernels treat in their own ways."""
    results = []
    for rows, size_in, size_out in ((1, 576, 1536), (8, 64, 256), (33, 100, 3), (128, 192, 192), (5, 1, 7), (7, 5, 1), (3, 0, 4), (64, 257, 129)):
        x = torch.randn(2, rows, size_in).to(device).requires_grad_()
        module = torch.nn.Linear(size_in, size_out)
        module = module.to(device)
        y = module(x)
        y.square().mean().backward()
        results += [y, x.grad, module.weight.grad, module.bias.grad]
    return results


def operators(program: Callable[[], Any]) -> int:
    before = dtorch.session_info()["operators"]
    program()
    return dtorch.session_info()["operators"] - before


def is_whole() -> None:
    """A layer is one operator each way, and its gradients are another each."""
    for shape in ((IN,), (9, IN), (3, 5, IN)):
        x, w, b = torch.randn(shape).to(DEVICE).requires_grad_(), torch.randn(OUT, IN).to(DEVICE).requires_grad_(), torch.randn(OUT).to(DEVICE)
        for bias in (b, None):
            assert operators(lambda x=x, bias=bias: F.linear(x, w, bias)) == 1
            y = F.linear(x, w, bias)
            grad = torch.ones_like(y)
            assert operators(lambda y=y, grad=grad: y.backward(grad)) == 1
            x.grad = w.grad = None
    with torch.inference_mode():
        assert operators(lambda: F.linear(x.detach(), w, b)) == 1


def autocast(device: str) -> Any:
    x, w, b = (torch.randn(s).to(device).requires_grad_() for s in ((3, 5, IN), (OUT, IN), (OUT,)))
    with torch.autocast(device, dtype=torch.bfloat16):
        y = F.linear(x, w, b)
    y.float().square().sum().backward()
    return y, x.grad, w.grad, b.grad


def derived_twice(device: str) -> Any:
    results = []
    for shape in ((9, IN), (3, 5, IN), (IN,)):
        x, w, b = (torch.randn(s).to(device).requires_grad_() for s in (shape, (OUT, IN), (OUT,)))
        y = F.linear(x, w, b).tanh().sum()
        first = torch.autograd.grad(y, (x, w, b), create_graph=True)
        results += [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), (x, w, b))]
    return results


def forward_derivative(device: str) -> Any:
    x, w, b, t = (torch.randn(s).to(device) for s in ((3, 5, IN), (OUT, IN), (OUT,), (3, 5, IN)))
    return torch.func.jvp(lambda x: F.linear(x, w, b), (x,), (t,))


def functions(device: str) -> Any:
    x, w, b = (torch.randn(s).to(device) for s in ((3, 5, IN), (OUT, IN), (OUT,)))
    per_sample = torch.func.vmap(torch.func.grad(lambda w, x: F.linear(x, w, b).square().sum()), in_dims=(None, 0))(w, x)
    return per_sample, torch.func.jacrev(lambda b: F.linear(x, w, b))(b), torch.func.hessian(lambda x: F.linear(x, w).square().sum())(x[0, 0])


def part_of_gradients(device: str) -> Any:
    x, w, b = (torch.randn(s).to(device).requires_grad_() for s in ((3, 5, IN), (OUT, IN), (OUT,)))
    return [torch.autograd.grad(F.linear(x, w, b).sum(), wanted) for wanted in ((x,), (w,), (b,), (x, b))]


def refusals() -> None:
    """The CPU's exceptions, at the layer's line."""
    for shapes in (((3, 4), (5, 6), None), ((3, 4), (5, 4), (6,)), ((), (5, 4), None), ((2, 3, 4), (5, 6), (5,))):
        texts = []
        for device in ("cpu", DEVICE):
            x, w, b = (torch.zeros(s, device=device) if s is not None else None for s in shapes)
            try:
                F.linear(x, w, b)
                texts.append("")
            except RuntimeError as error:
                texts.append(str(error).split("\n")[0])
        assert texts[0] == texts[1], texts


def main() -> int:
    suite = devicetest.Suite("device linear", devicetest.arguments())
    suite.check("is one operator each way", is_whole)
    layers(suite)
    for program in (sizes, autocast, derived_twice, forward_derivative, functions, part_of_gradients):
        suite.check(program.__name__, lambda program=program: both(program))
    suite.check("refusals", refusals)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
