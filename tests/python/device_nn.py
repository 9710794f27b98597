"""usage: device_nn.py [--seconds=S] [PART OF A NAME...]

PyTorch's own module and optimizer databases on the device against the CPU, bit for bit: every module with every input set,
forward and backward, in training and in evaluation; every optimizer with every option set and implementation, some steps."""

import copy
import itertools
import sys
import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import devicetest
import dtorch  # noqa: F401
from devicetest import DEVICE, expect_same, move

STEPS = 4
# What may differ, with the reason.
OPTIMIZER_EXCEPTIONS: dict[str, str] = {"SparseAdam": "sparse tensors are not supported on the device"}


def module_run(cls: type, sample: Any, device: str, is_training: bool) -> Any:
    """Construct on the CPU, move, run forward and backward; returns results, gradients and buffers."""
    torch.manual_seed(3)
    build, call = sample.constructor_input, sample.forward_input
    module = cls(*build.args, **build.kwargs)
    if call is None:
        return list(module.state_dict().values())
    args, kwargs = move((call.args, call.kwargs), device)
    module.to(device).train(is_training)
    torch.manual_seed(4)
    result = module(*args, **kwargs)
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves = [p for p in module.parameters() if p.requires_grad]
    leaves += [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    grads = torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True) if outputs else ()
    return result, grads, list(module.state_dict().values())


def check_module(info: Any, is_training: bool) -> None:
    torch.manual_seed(1)
    for index, sample in enumerate(info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True,
                                                           training=is_training)):
        try:
            want = module_run(info.module_cls, sample, "cpu", is_training)
        except Exception as error:  # noqa: BLE001  (whatever the CPU refuses is not compared)
            refuse_as(error, info.module_cls, sample, is_training)
            continue
        try:
            expect_same(want, module_run(info.module_cls, sample, DEVICE, is_training))
        except AssertionError as why:
            raise AssertionError(f"input {index} {sample.desc}: {why}") from None


def refuse_as(error: Exception, cls: type, sample: Any, is_training: bool) -> None:
    """What the CPU refuses, the device refuses. Raises: AssertionError."""
    try:
        devicetest.raw(tree_leaves(module_run(cls, sample, DEVICE, is_training))[0])
    except Exception:  # noqa: BLE001
        return
    raise AssertionError(f"does not refuse: {error}")


def implementations(info: Any) -> list[dict[str, Any]]:
    """The options that choose how an optimizer is computed, where the CPU has that way."""
    ways: list[dict[str, Any]] = [{}]
    ways += [{"foreach": value} for value in (False, True) if "foreach" in info.supported_impls]
    if "cpu" in info.supports_fused_on and "fused" in info.supported_impls:
        ways.append({"fused": True})
    return ways


def optimizer_run(info: Any, options: dict[str, Any], device: str) -> Any:
    """Some steps on a small module; returns parameters and the optimizer's state."""
    torch.manual_seed(2)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3, bias=False)).to(device)
    x, y = torch.randn(6, 5).to(device), torch.randn(6, 3).to(device)
    parameters = list(module.parameters())
    if info.optim_cls is torch.optim.Muon:
        parameters = [p for p in parameters if p.dim() == 2]
    options = {k: v.to(device) if isinstance(v, torch.Tensor) and v.dim() else copy.copy(v) for k, v in options.items()}
    optimizer = info.optim_cls(parameters, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((module(x) - y) ** 2).sum()
        loss.backward()
        return loss

    losses = []
    for _ in range(STEPS):
        if info.step_requires_closure:
            losses.append(optimizer.step(closure))
        else:
            losses.append(closure())
            optimizer.step()
    state = [v for s in optimizer.state_dict()["state"].values() for v in tree_leaves(s) if isinstance(v, torch.Tensor)]
    return [p.detach() for p in parameters], [torch.as_tensor(loss).detach().cpu() for loss in losses], [v.cpu() for v in state]


def check_optimizer(info: Any, options: dict[str, Any]) -> None:
    try:
        want = optimizer_run(info, options, "cpu")
    except (RuntimeError, ValueError) as refusal:
        try:
            optimizer_run(info, options, DEVICE)
        except type(refusal):
            return
        if options.get("capturable"):
            return  # a device may capture, the CPU may not
        raise AssertionError(f"does not refuse: {refusal}") from None
    got = optimizer_run(info, options, DEVICE)
    expect_same(want, got)


def modules(suite: devicetest.Suite) -> None:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if suite.is_over():
            print(f"time is up before module {info.name}")
            return
        for is_training in (True, False):
            what = f"module {info.name} {'training' if is_training else 'evaluation'}"
            suite.check(what, lambda info=info, mode=is_training: check_module(info, mode))


def optimizers(suite: devicetest.Suite) -> None:
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        if suite.is_over():
            return
        name = info.optim_cls.__name__
        reason = OPTIMIZER_EXCEPTIONS.get(name)
        if reason:
            suite.skipped += 1
            print(f"skipped: optimizer {name}: {reason}")
            continue
        inputs = info.optim_inputs_func(device="cpu")
        for way, sample in itertools.product(implementations(info), inputs):
            options = sample.kwargs | way
            suite.check(f"optimizer {name} {sample.desc} {way or ''}", lambda info=info, o=options: check_optimizer(info, o))


def main() -> int:
    suite = devicetest.Suite("device nn", devicetest.arguments())
    warnings.simplefilter("ignore")
    optimizers(suite)
    modules(suite)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
