"""Plans: how a model is spread over a mesh, as a configuration. dtorch.distribute(model, mesh, plan) carries one out.

A plan has rules for each mesh dimension, by name or number. A rule says of the parameters whose names match a pattern where they
lie along that dimension: at rest, while an operator reads them, their gradients, and the optimizer's state. What no rule names is
Replicate. Plans for different dimensions are added:

    plan = data_parallel("dp") + llama_tensor_parallel("tp", config=model.config)

The ready plans are for models with the names of Hugging Face's Llama; whatever the plan, the values are those of one device."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dtorch import placements
from dtorch.mesh import DeviceMesh
from dtorch.placements import Placement, Replicate, Shard

__all__ = ["Layout", "Plan", "Rule", "as_plan", "context_parallel", "count_next_tokens", "data_parallel", "expert_parallel", "fsdp",
           "layers_on_stages", "llama_tensor_parallel", "sd3_tensor_parallel", "stages", "zero"]

Dim = str | int


@dataclass(frozen=True)
class Rule:
    """Where parameters lie along one mesh dimension.

    pattern: a regular expression that is searched in the parameter's qualified name ("layers.0.mlp.up_proj.weight").
    in_use: what operators read; a copy that is kept until the parameter is written. gradient: where it goes once a backward pass
    has made it. state: of the optimizer's tensors that are made like the parameter. Each None: as at rest."""

    pattern: str
    at_rest: Placement = field(default_factory=Replicate)
    in_use: Placement | None = None
    gradient: Placement | None = None
    state: Placement | None = None


@dataclass(frozen=True)
class Layout:
    """What a plan says of one parameter: placements, one for each mesh dimension."""

    at_rest: tuple[Placement, ...]
    in_use: tuple[Placement, ...]
    gradient: tuple[Placement, ...]
    state: tuple[Placement, ...]


class Plan:
    """Rules for each mesh dimension, and where the batch lies along it."""

    def __init__(self, rules: Mapping[Dim, Sequence[Rule]], batch: Mapping[Dim, Placement] | None = None) -> None:
        """rules: by dimension, the first that matches a name counts. batch: by dimension, where inputs and labels lie.

        Raises: re.error (a pattern)."""
        self.rules = {dim: tuple(given) for dim, given in rules.items()}
        self._batch = dict(batch or {})
        for given in self.rules.values():
            for rule in given:
                re.compile(rule.pattern)

    def __add__(self, other: "Plan") -> "Plan":
        """Both: of rules for the same dimension, those of the left come first."""
        rules = {dim: self.rules.get(dim, ()) + other.rules.get(dim, ()) for dim in [*self.rules, *other.rules]}
        return Plan(rules, other._batch | self._batch)

    def layout(self, name: str, shape: Sequence[int], mesh: DeviceMesh) -> Layout:
        """Where a parameter goes. Raises: KeyError, IndexError (the mesh has no such dimension), ValueError (the parameter has
        no such dimension)."""
        found: list[Rule | None] = [None] * mesh.ndim
        for dim, rules in self.rules.items():
            at = mesh.dim(dim)
            if found[at] is None and len(shape) > 0:
                found[at] = next((rule for rule in rules if re.search(rule.pattern, name)), None)
        rest = [rule.at_rest if rule else Replicate() for rule in found]
        other = [[_or(rule and getattr(rule, what), at_rest) for rule, at_rest in zip(found, rest)]
                 for what in ("in_use", "gradient", "state")]
        try:
            return Layout(*(_checked(given, shape, mesh) for given in (rest, *other)))
        except ValueError as error:
            raise ValueError(f"{name} {tuple(shape)}: {error}") from None

    def batch(self, mesh: DeviceMesh) -> tuple[Placement, ...]:
        """Where inputs and labels lie, one placement for each mesh dimension. Raises: KeyError, IndexError (no such one)."""
        made: list[Placement] = [Replicate()] * mesh.ndim
        for dim, placement in self._batch.items():
            made[mesh.dim(dim)] = placement
        return tuple(made)

    def __repr__(self) -> str:
        return f"Plan({self.rules!r}, batch={self._batch!r})"


def _or(value: Placement | None, otherwise: Placement) -> Placement:
    return otherwise if value is None else value


def _checked(given: Sequence[Placement], shape: Sequence[int], mesh: DeviceMesh) -> tuple[Placement, ...]:
    """Dimensions exist, and a unit is left out where chunks of whole units are torch's chunks anyway."""
    made = []
    for placement, devices in zip(placements.check(given, mesh.ndim, len(shape)), mesh.shape):
        if isinstance(placement, Shard) and placement.groups == 1 and shape[placement.dim] % (placement.unit * devices) == 0:
            placement = Shard(placement.dim)
        made.append(placement)
    return tuple(made)


def as_plan(given: Any, mesh: DeviceMesh) -> Plan:
    """A plan; or one made of a mapping from patterns to placements, or of (pattern, at rest[, in use[, state]]), each with one
    placement for each mesh dimension; None: everything Replicate. Raises: TypeError, ValueError."""
    if isinstance(given, Plan):
        return given
    lines = [] if given is None else list(given.items()) if isinstance(given, Mapping) else list(given)
    rules: dict[Dim, list[Rule]] = {dim: [] for dim in range(mesh.ndim)}
    for line in lines:
        if not isinstance(line, tuple) or not 2 <= len(line) <= 4 or not isinstance(line[0], str):
            raise TypeError(f"a plan's line is (pattern, at rest[, in use[, state]]), not {line!r}")
        parts = [None if part is None else placements.check(part, mesh.ndim, placements.DIM_MAX) for part in line[1:]]
        parts += [None] * (3 - len(parts))
        for dim in range(mesh.ndim):
            rest, use, state = (None if part is None else part[dim] for part in parts)
            rules[dim].append(Rule(line[0], _or(rest, Replicate()), in_use=use, state=state))
    return Plan(rules)


# ---- ready plans ----


def data_parallel(dim: Dim = "dp") -> Plan:
    """Each device has the whole model and a part of the batch."""
    return Plan({dim: ()}, {dim: Shard(0)})


def context_parallel(dim: Dim = "cp") -> Plan:
    """Each device has the whole model and a part of every sequence; attention sends keys and values around, or deals heads out.

    Shapes: inputs and labels (batch, sequence)."""
    return Plan({dim: ()}, {dim: Shard(1)})


def zero(stage: int, dim: Dim = "dp") -> Plan:
    """Data parallelism with, by stage, the optimizer's state (1), the gradients too (2), the parameters too (3) in parts.

    Raises: ValueError (another stage)."""
    if stage not in (1, 2, 3):
        raise ValueError(f"ZeRO has the stages 1, 2 and 3, not {stage}")
    part = Shard(0)
    rule = {1: Rule("", state=part), 2: Rule("", gradient=part, state=part), 3: Rule("", part, in_use=Replicate())}[stage]
    return Plan({dim: [rule]}, {dim: part})


def fsdp(dim: Dim = "dp") -> Plan:
    """Parameters, gradients and state in parts; a parameter is gathered where it is read: ZeRO stage 3."""
    return zero(3, dim)


def llama_tensor_parallel(dim: Dim = "tp", *, config: Any = None, vocabulary: bool = False) -> Plan:
    """Heads of attention and the width of the feed-forward network in parts; with `vocabulary` the rows of the embedding and of
    the last layer too.

    config: the model's, for its heads: parts then have whole heads, and a query's head lies with its key's, whatever the mesh's
    size. Without it widths must divide by the mesh's size to do so."""
    heads = getattr(config, "num_attention_heads", 1)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = (getattr(config, "head_dim", None) or config.hidden_size // heads) if config is not None else 1
    query = width * max(heads // kv_heads, 1)
    rules = [
        Rule(r"\bq_proj\.(weight|bias)$", Shard(0, unit=query)),
        Rule(r"\b(k|v)_proj\.(weight|bias)$", Shard(0, unit=width)),
        Rule(r"\bo_proj\.weight$", Shard(1, unit=query)),
        Rule(r"\b(gate|up)_proj\.(weight|bias)$", Shard(0)),
        Rule(r"\bdown_proj\.weight$", Shard(1)),
    ]
    if vocabulary:
        rules.append(Rule(r"\b(embed_tokens|lm_head)\.weight$", Shard(0)))
    return Plan({dim: rules})


def sd3_tensor_parallel(dim: Dim = "tp", *, head_width: int = 1) -> Plan:
    """For diffusers' SD3Transformer2DModel, and models with its names: heads of both streams' attention and the width of the
    feed-forward networks in parts.

    head_width: of one head (the configuration's attention_head_dim): parts then have whole heads, whatever the mesh's size."""
    heads, width = Shard(0, unit=head_width), Shard(1, unit=head_width)
    return Plan({dim: [
        Rule(r"\battn2?\.(to_(q|k|v)|add_(q|k|v)_proj)\.(weight|bias)$", heads),
        Rule(r"\battn2?\.(to_out\.0|to_add_out)\.weight$", width),
        Rule(r"\bff(_context)?\.net\.0\.proj\.(weight|bias)$", Shard(0)),
        Rule(r"\bff(_context)?\.net\.2\.weight$", Shard(1)),
    ]})


def expert_parallel(dim: Dim = "ep") -> Plan:
    """Experts in parts: parameters below a module `experts` whose first dimension counts them. Shapes: (experts, ...)."""
    return Plan({dim: [Rule(r"\bexperts\.\w+$", Shard(0))]})


# ---- stages of a pipeline ----


def stages(mesh: DeviceMesh, dim: Dim = "pp") -> list[DeviceMesh]:
    """The meshes along one dimension of a mesh, which they do not have themselves; those of a mesh without another dimension have one
    of size 1, without a name. Raises: KeyError, IndexError (no such dimension)."""
    at = mesh.dim(dim)
    if mesh.ndim == 1:
        return [DeviceMesh(mesh.device_type, [device]) for device in mesh.mesh.tolist()]
    return [mesh.select(at, index) for index in range(mesh.shape[at])]


def layers_on_stages(model: torch.nn.Module, count: int) -> dict[str, int]:
    """Where modules go, for dtorch.pipeline(): the layers of a model with a list of them (torch.nn.ModuleList, the one with most
    parameters) in as even parts as there can be, what is defined before the list on the first stage, what comes after it on the
    last one. Modules beside the list without parameters are with the inputs, those without buffers too, as dropout, wherever they
    are called. Raises: ValueError (no list with that many layers)."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)}
    if not lists:
        raise ValueError(f"layers_on_stages: {type(model).__name__} has no list of layers: say by places= which module goes where")
    name = max(lists, key=lambda one: sum(parameter.numel() for parameter in lists[one].parameters()))
    layers = len(lists[name])
    if layers < count:
        raise ValueError(f"layers_on_stages: {layers} layers of {name!r} are not enough for {count} stages")
    above = [".".join(name.split(".")[:n]) for n in range(name.count(".") + 1)] if name else []
    places, is_behind = {}, False
    for other, module in model.named_modules():
        if other == name:
            places.update({re.escape(f"{name}.{layer}"): layer * count // layers for layer in range(layers)})
            is_behind = True
        elif other and other not in above and not other.startswith(name + "."):
            if next(module.parameters(), None) is not None:
                places[re.escape(other)] = count - 1 if is_behind else 0
            elif next(module.buffers(), None) is not None:
                places[re.escape(other)] = 0
    return places


def count_next_tokens(part: Mapping[Any, Any]) -> torch.Tensor:
    """What a micro-batch counts in the loss of a causal language model of Hugging Face: its labels but for the first of each row and
    those of -100, which are left out of the mean."""
    return (part["labels"][:, 1:] != -100).sum()
