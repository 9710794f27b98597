"""dtorch.pipeline(): a model whose stages lie on different meshes, trained with micro-batches in 1F1B order."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dtorch import _distribute, _sharded, plans
from dtorch._flow import Flow
from dtorch._schedule import Kind, order
from dtorch._stages import LATE_INPUTS, Stages, mapped
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

        args, kwargs: the model's; tensors with as many rows as the first of them are cut into micro-batches, wherever they are,
        in tuples, lists and dicts too. A micro-batch that counts nothing is left out, if its weight is known without a wait.
        Raises: ValueError (fewer rows than micro-batches; a tensor with another number of rows; labels or targets that are not
        counted, and no `weight`; num_items_in_batch), RuntimeError (gradients are off, a reentrant checkpoint, a batch norm in
        training), what the model raises. After an exception gradients may have been added for a part of the batch."""
        self._check_step(kwargs)
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs, **({} if target is None else {"target": target})}
        parts = [(part, _exact(self._weigh(part))) for part in _cut(given, self.microbatches)]
        total = sum(weight for _, weight in parts)
        counted = [(part, weight) for part, weight in parts if not _is_zero(weight)] or parts
        flows = [Flow(self._stages, self._pass(part, weight / total)) for part, weight in counted]
        lines = self._order if len(flows) == self.microbatches else order(len(self.stages), len(flows))
        losses: list[torch.Tensor] = []
        with self._copies(), _distribute.settled_later():
            try:
                for kind, stage, m in lines:
                    getattr(flows[m], ACTIONS[kind])(stage)
                    if kind is Kind.FORWARD and flows[m].loss is not None and len(losses) == m:
                        losses.append(flows[m].loss.detach())  # type: ignore[union-attr]  # as was just seen
            except BaseException:
                for flow in flows:
                    flow.abandon()
                raise
        return sum(losses[1:], losses[0])

    def _check_step(self, kwargs: Mapping[str, Any]) -> None:
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise RuntimeError("pipeline: a step makes gradients, and they are switched off here")
        if kwargs.get("num_items_in_batch") is not None:
            raise ValueError("pipeline: num_items_in_batch makes the loss a sum, and a step weighs means: leave it out, and say by "
                             "weight= what a micro-batch counts")
        for name, module in self.model.named_modules():
            if self.microbatches > 1 and isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
                raise RuntimeError(f"pipeline: {name} normalizes by what its batch has, which is another thing in a micro-batch: "
                                   "eval() of that module makes it go by its running statistics")

    def _pass(self, part: Mapping[Any, Any], share: Any) -> Callable[[], torch.Tensor]:
        """The forward pass of a micro-batch, which returns its share of the loss."""
        def forward() -> torch.Tensor:
            last = len(self.stages) - 1
            placed = {name: self._placed(value, last if name in self._late else 0) for name, value in part.items()}
            target = placed.pop("target", None)
            count = sum(isinstance(name, int) for name in placed)
            output = self.model(*(placed[at] for at in range(count)), **{k: v for k, v in placed.items() if isinstance(k, str)})
            loss = _loss_of(output) if self._loss_fn is None else self._loss_fn(output, target)
            if not isinstance(share, torch.Tensor) or share.device.type == "cpu":
                return loss * share
            stage = self._stages.stage_of(loss)
            here = share if stage is None else self._stages.move(share, stage)
            return torch.where(here == 0, torch.zeros_like(loss), loss * here)  # the mean of nothing is no number, and counts nothing
        return forward

    def _placed(self, value: Any, stage: int) -> Any:
        return mapped(value, lambda tensor: self.place(tensor, stage) if tensor.dim() else tensor)

    def _weigh(self, part: Mapping[Any, Any]) -> Any:
        if self._weight is not None:
            return self._weight(part)
        for name in ("labels", "target"):
            found = part.get(name)
            if isinstance(found, torch.Tensor) and not found.is_floating_point() and bool((found == IGNORED).any()):
                raise ValueError(f"pipeline: {name} of {IGNORED} are not counted, so micro-batches count differently: say how by "
                                 "weight=, as dtorch.plans.count_next_tokens does")
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


BatchNorm = torch.nn.modules.batchnorm._BatchNorm  # of any number of dimensions
IGNORED = -100  # torch.nn.CrossEntropyLoss's ignore_index, which Hugging Face's models leave as it is
ACTIONS = {Kind.FORWARD: "forward", Kind.SEND: "send", Kind.BACKWARD: "backward", Kind.SEND_BACK: "send_back"}


def _exact(weight: Any) -> Any:
    """Counts are integers, and PyTorch divides those in float32."""
    return weight.double() if isinstance(weight, torch.Tensor) else weight


def _is_zero(weight: Any) -> bool:
    """Whether a micro-batch counts nothing, False where that would have to be waited for."""
    return not (isinstance(weight, torch.Tensor) and weight.device.type != "cpu") and bool(weight == 0)


def _loss_of(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(loss, torch.Tensor) or loss.dim() > 0:
        raise ValueError("pipeline: the model's output has no `loss` of one value: give labels, or a loss_fn")
    return loss


def _rows(part: Mapping[Any, Any]) -> int:
    found: list[int] = []
    mapped(list(part.values()), lambda tensor: (tensor.dim() and found.append(int(tensor.size(0)))) or tensor)
    return found[0] if found else 0


def _cut(given: Mapping[Any, Any], count: int) -> list[dict[Any, Any]]:
    """Arguments of each micro-batch. Tensors with one row beside several are the same for all."""
    rows = _rows(given)
    if rows < count:
        raise ValueError(f"pipeline: a batch of {rows} rows has no {count} micro-batches")

    def piece(name: Any, tensor: torch.Tensor, m: int) -> torch.Tensor:
        if tensor.dim() == 0 or (tensor.size(0) == 1 and rows > 1):
            return tensor
        if tensor.size(0) != rows:
            raise ValueError(f"pipeline: argument {name!r} has {tensor.size(0)} rows, and the batch has {rows}")
        return torch.tensor_split(tensor, count)[m]
    return [{name: mapped(value, lambda tensor, name=name, m=m: piece(name, tensor, m)) for name, value in given.items()}
            for m in range(count)]
