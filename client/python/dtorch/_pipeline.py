"""dtorch.pipeline(): a model whose stages lie on different meshes, trained with micro-batches in 1F1B order."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dtorch import _distribute, _sharded, plans
from dtorch._flow import Flow
from dtorch._schedule import Kind, order
from dtorch._stages import LATE_INPUTS, Stages
from dtorch.mesh import DeviceMesh


def pipeline(model: torch.nn.Module, stages: Sequence[DeviceMesh], microbatches: int, *, plan: Any = None,
             places: Mapping[str, int] | None = None, loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
             weight: Callable[[Mapping[str, Any]], Any] | None = None, late: Sequence[str] = LATE_INPUTS) -> "Pipeline":
    """Put a model's modules onto stages, in place, and return what trains it in micro-batches.

    stages: a mesh for each, with the same dimensions and no device in common; see plans.stages(). plan: how parameters lie on
    their stage's mesh, as of dtorch.distribute(). places: stages by regular expressions that match names of modules whole, the
    first that matches counts; None: plans.layers_on_stages(model, len(stages)). The model stays a module that can be called, saved
    and asked as before: what enters a stage is moved to it.

    loss_fn: the loss of an output and a target, a mean over the rows of the batch; None: the output's own `loss`. weight: what a
    micro-batch counts in the loss of the batch, a number or a 0-dim tensor, from its arguments by name or position (the target as
    "target"); None: its rows. late: names of arguments that are read by the last stage.
    Raises: TypeError, ValueError, KeyError (what does not fit; nothing was moved then)."""
    if isinstance(microbatches, bool) or not isinstance(microbatches, int) or microbatches < 1:
        raise ValueError(f"pipeline: micro-batches are 1 or more, not {microbatches!r}")
    where = plans.layers_on_stages(model, len(stages)) if places is None else places
    made = Stages(model, stages, where, plan)
    return Pipeline(model, made, microbatches, plan, loss_fn, weight, frozenset(late) | {"target"})


class Pipeline:
    """A model on its stages. Made by pipeline()."""

    def __init__(self, model: torch.nn.Module, stages: Stages, microbatches: int, plan: Any,
                 loss_fn: Callable[[Any, Any], torch.Tensor] | None, weight: Callable[[Mapping[str, Any]], Any] | None,
                 late: frozenset[str]) -> None:
        self.model, self.microbatches = model, microbatches
        self._stages, self._plan, self._loss_fn, self._weight, self._late = stages, plan, loss_fn, weight, late
        self._order = order(len(stages.meshes), microbatches)

    @property
    def stages(self) -> tuple[DeviceMesh, ...]:
        """The meshes of the stages."""
        return self._stages.meshes

    def place(self, tensor: torch.Tensor, stage: int = 0) -> torch.Tensor:
        """A tensor with rows of the batch where a stage reads it: on its mesh, as the plan places the batch."""
        mesh = self.stages[stage]
        placements = plans.as_plan(self._plan, mesh).batch(mesh)
        made = [p if not isinstance(p, _sharded.words.Shard) or p.dim < tensor.dim() else _sharded.Replicate() for p in placements]
        if _sharded.layout_of(tensor) is None:
            return _sharded.distribute_tensor(tensor, mesh, made)
        return _sharded.redistribute(tensor, mesh, made)

    def step(self, *args: Any, target: Any = None, **kwargs: Any) -> torch.Tensor:
        """One forward and backward pass of the model over a batch, in micro-batches: gradients are added to the parameters' as by
        `loss.backward()` over the whole batch. Returns the batch's loss, without history; it waits for nothing.

        args, kwargs: the model's; tensors with as many rows as the first of them are cut into micro-batches, wherever they are.
        Raises: ValueError (fewer rows than micro-batches; a tensor with another number of rows; labels that are not counted, and
        no `weight`), RuntimeError (gradients are off, a reentrant checkpoint), what the model raises. After an exception
        gradients may have been added for a part of the batch."""
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise RuntimeError("pipeline: a step makes gradients, and they are switched off here")
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs, **({} if target is None else {"target": target})}
        parts = _cut(given, self.microbatches)
        weights = [_exact(self._weigh(part)) for part in parts]
        total = sum(weights)
        flows = [Flow(self._stages, self._pass(part, share / total)) for part, share in zip(parts, weights)]
        losses: list[torch.Tensor] = []
        with self._copies(), _distribute.settled_later():
            try:
                for kind, stage, m in self._order:
                    getattr(flows[m], ACTIONS[kind])(stage)
                    if kind is Kind.FORWARD and flows[m].loss is not None and len(losses) == m:
                        losses.append(flows[m].loss.detach())  # type: ignore[union-attr]  # as was just seen
            except BaseException:
                for flow in flows:
                    flow.abandon()
                raise
        return sum(losses[1:], losses[0])

    def _pass(self, part: Mapping[Any, Any], share: Any) -> Callable[[], torch.Tensor]:
        """The forward pass of a micro-batch, which returns its share of the loss."""
        def forward() -> torch.Tensor:
            last = len(self.stages) - 1
            placed = {name: self.place(value, last if name in self._late else 0) if isinstance(value, torch.Tensor) and value.dim()
                      else value for name, value in part.items()}
            target = placed.pop("target", None)
            count = sum(isinstance(name, int) for name in placed)
            output = self.model(*(placed[at] for at in range(count)), **{k: v for k, v in placed.items() if isinstance(k, str)})
            loss = _loss_of(output) if self._loss_fn is None else self._loss_fn(output, target)
            return loss * share
        return forward

    def _weigh(self, part: Mapping[Any, Any]) -> Any:
        if self._weight is not None:
            return self._weight(part)
        labels = part.get("labels")
        if self._loss_fn is None and labels is not None and bool((labels == IGNORED).any()):
            raise ValueError(f"pipeline: labels of {IGNORED} are not counted, so micro-batches count differently: say how by weight=, "
                             "as dtorch.plans.count_next_tokens does")
        return _rows(part)

    @contextlib.contextmanager
    def _copies(self) -> Iterator[None]:
        """Parameters that a stage has in common with another one are there once a step; their gradients go back at its end."""
        lent = []
        for unit in self._stages.units:
            for module, key, parameter in unit.foreign:
                copy = self._stages.move(parameter.detach(), unit.stage).detach().requires_grad_(parameter.requires_grad)
                module._parameters[key] = copy  # type: ignore[assignment]  # a leaf, as a parameter is
                lent.append((module, key, parameter, copy))
        try:
            yield
            for _, _, parameter, copy in lent:
                if copy.grad is not None:
                    _distribute.add_gradient(parameter, copy.grad)
        finally:
            for module, key, parameter, _ in lent:
                module._parameters[key] = parameter


IGNORED = -100  # torch.nn.CrossEntropyLoss's ignore_index, which Hugging Face's models leave as it is
ACTIONS = {Kind.FORWARD: "forward", Kind.SEND: "send", Kind.BACKWARD: "backward", Kind.SEND_BACK: "send_back"}


def _exact(weight: Any) -> Any:
    """Counts are integers, and PyTorch divides those in float32."""
    return weight.double() if isinstance(weight, torch.Tensor) else weight


def _loss_of(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
        raise ValueError("pipeline: the model's output has no `loss` of one value: give labels, or a loss_fn")
    return loss


def _rows(part: Mapping[Any, Any]) -> int:
    return next((int(value.size(0)) for value in part.values() if isinstance(value, torch.Tensor) and value.dim()), 0)


def _cut(given: Mapping[Any, Any], count: int) -> list[dict[Any, Any]]:
    """Arguments of each micro-batch. Tensors with one row beside several are the same for all."""
    rows = _rows(given)
    if rows < count:
        raise ValueError(f"pipeline: a batch of {rows} rows has no {count} micro-batches")
    parts: list[dict[Any, Any]] = [{} for _ in range(count)]
    for name, value in given.items():
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or (value.size(0) == 1 and rows > 1):
            pieces: Sequence[Any] = [value] * count
        elif value.size(0) == rows:
            pieces = torch.tensor_split(value, count)
        else:
            raise ValueError(f"pipeline: argument {name!r} has {value.size(0)} rows, and the batch has {rows}")
        for part, piece in zip(parts, pieces):
            part[name] = piece
    return parts
