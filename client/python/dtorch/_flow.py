"""One micro-batch on its way through the stages: a forward pass that stops between two of them.

The model is unmodified, so its forward pass is one call. It runs on a thread of its own, which takes turns with the thread that
carries the schedule out: one of the two runs at any time. At the border of a stage autograd's graph is cut: what is sent is a
leaf of the next stage, and its gradient is sent back and put into the stage before."""

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from dtorch import _sharded
from dtorch._stages import Stages, Unit, mapped


class _Abandoned(BaseException):
    """The schedule has ended early: this pass has nothing to go on for."""


class _Border:
    """A tensor that was sent: where its stage's graph had it then, and the leaf that the next one has in its place."""

    def __init__(self, source: torch.Tensor, leaf: torch.Tensor, sender: int, receiver: int) -> None:
        self.edge, self.device, self.layout = get_gradient_edge(source), source.device, _sharded.layout_of(source)
        self.leaf, self.sender, self.receiver = leaf, sender, receiver
        self.gradient: torch.Tensor | None = None  # in the source's layout, once it was sent back


class Flow:
    """A micro-batch. Its functions are called by one thread, in the order of a schedule."""

    def __init__(self, stages: Stages, forward: Callable[[], torch.Tensor]) -> None:
        """forward: returns the loss, as its part of the batch's."""
        self._stages, self._forward = stages, forward
        self.stage = 0
        self.loss: torch.Tensor | None = None
        self._borders: list[_Border] = []
        self._sent: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # by id, version, stage: what it is, became
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._is_over = self._is_abandoned = False
        context, modes = contextvars.copy_context(), _Modes()
        self._thread = threading.Thread(target=context.run, args=(self._main, modes), name="dtorch-microbatch", daemon=True)
        self._has_begun = False

    # ---- the schedule's side ----

    def forward(self, stage: int) -> None:
        """Run this stage's part of the forward pass. Raises: what the model raises."""
        if not self._has_begun:
            self._has_begun = True
            self._thread.start()
        elif self._is_over:
            return
        else:
            self._theirs.release()
        self._wait()
        if self._is_over and self.stage < stage:
            raise ValueError(f"pipeline: the forward pass ended on stage {self.stage}, before stage {stage} began")

    def send(self, stage: int) -> None:
        """Send what the next stage takes to it."""
        if not self._is_over:
            self._theirs.release()
            self._wait()

    def backward(self, stage: int) -> None:
        """Run this stage's part of the backward pass; gradients are added to the parameters'. Raises: what autograd raises."""
        roots: list[tuple[Any, Any]] = [(border.edge, border.gradient) for border in self._borders
                 if border.sender == stage and border.gradient is not None]
        if self.loss is not None and stage == self.stage:
            roots.append((self.loss, torch.ones_like(self.loss)))
            self.loss = None
        self._borders = [border for border in self._borders if border.sender != stage]
        if roots:
            torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])

    def send_back(self, stage: int) -> None:
        """Send the gradients of what this stage received to who had sent it."""
        for border in self._borders:
            if border.receiver == stage and border.leaf.grad is not None:
                gradient, border.leaf.grad = border.leaf.grad, None
                if border.layout is None:
                    border.gradient = _sharded.full_tensor(gradient).to(border.device)
                else:
                    border.gradient = _sharded.redistribute(gradient, border.layout[0], self._stages.sent_as(border.layout))

    def abandon(self) -> None:
        """End the pass where it is."""
        self._is_abandoned = True
        if self._has_begun and not self._is_over:
            self._theirs.release()
            self._thread.join()

    def _wait(self) -> None:
        self._ours.acquire()
        if self._is_over:
            self._thread.join()
            self._sent.clear()
        if self._error is not None:
            raise self._error

    # ---- the pass's side, on its thread ----

    def _main(self, modes: "_Modes") -> None:
        self._stages.set_current(self)
        try:
            with modes:
                self.loss = self._forward()
        except _Abandoned:
            pass
        except BaseException as error:  # it is raised where the step was called
            self._error = error
        self._is_over = True
        self._ours.release()

    def _pause(self) -> None:
        self._ours.release()
        self._theirs.acquire()
        if self._is_abandoned:
            raise _Abandoned

    def enter(self, unit: Unit, args: Any) -> Any:
        """The arguments of a unit where it lies. Comes back when it is this stage's turn."""
        if not torch.is_grad_enabled() and self._needs_cut(unit, args):
            raise RuntimeError(f"pipeline: {unit.name} is called without gradients within a step, as by a reentrant checkpoint, which "
                               "would run the stages before it a second time: use_reentrant=False is what works")
        if unit.stage < self.stage:
            raise ValueError(f"pipeline: {unit.name} of stage {unit.stage} is called when stage {self.stage} has begun: stages have "
                             "the order in which the model calls them")
        while self.stage < unit.stage:
            self._pause()  # this stage's part is done: until it may send
            if self.stage + 1 == unit.stage:
                args = mapped(args, lambda tensor: self._take(tensor, unit.stage))
            self.stage += 1
            self._pause()  # until the next stage's turn
        return mapped(args, lambda tensor: self._take(tensor, unit.stage))

    def _needs_cut(self, unit: Unit, args: Any) -> bool:
        found = []
        mapped(args, lambda tensor: found.append(tensor.requires_grad and self._stages.is_elsewhere(tensor, unit.stage)) or tensor)
        return any(found)

    def _take(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """The tensor as a leaf on that stage; the same leaf for the same tensor, until it is changed in place."""
        if not self._stages.is_elsewhere(tensor, stage):
            return tensor
        key = (id(tensor), tensor._version, stage)
        if key not in self._sent:
            leaf = self._stages.move(tensor.detach(), stage)
            if tensor.requires_grad:
                leaf = leaf.detach().requires_grad_()
                self._borders.append(_Border(tensor, leaf, self._sender(tensor), stage))
            self._sent[key] = (tensor, leaf)
        return self._sent[key][1]

    def _sender(self, tensor: torch.Tensor) -> int:
        stage = self._stages.stage_of(tensor)
        return self.stage if stage is None else stage


class _Modes:
    """What PyTorch keeps for each thread and a forward pass goes by: taken on one thread, used on another one."""

    def __init__(self) -> None:
        self._autocast = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("dtorch", "cpu")}

    def __enter__(self) -> None:
        torch.autograd.set_grad_enabled(True)
        for kind, (is_on, dtype) in self._autocast.items():
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, dtype)

    def __exit__(self, *_: object) -> None:
        torch.clear_autocast_cache()
