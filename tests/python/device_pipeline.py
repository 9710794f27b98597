"""usage: device_pipeline.py [PART OF A NAME]...

dtorch.pipeline() against the same model on the CPU: the order of 1F1B, gradients of whole batches, memory of each stage, tied
parameters, checkpoints, and what is refused."""

import json
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"] = "8"

import torch  # noqa: E402  (the number of devices is read when the session begins)
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import devicetest  # noqa: E402
import dtorch  # noqa: E402
from dtorch import plans  # noqa: E402
from devicecluster import Cluster  # noqa: E402
from dtorch._schedule import Action, Kind, of_stage, order  # noqa: E402

WIDTH, LAYERS, WORDS = 16, 4, 12


class Block(nn.Module):
    def __init__(self, width: int = WIDTH, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.tanh(self.up(x)))) * scale


class Network(nn.Module):
    """An embedding, layers that share a tensor made at the begin, and a head, which may have the embedding's weight."""

    def __init__(self, tied: bool = False, how: str = "", width: int = WIDTH, layers: int = LAYERS, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.how, self.fails_at = how, -1

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        scale = torch.sigmoid(x.mean(-1, keepdim=True))  # every layer reads it, and its gradient comes from each
        for at, layer in enumerate(self.layers):
            if at == self.fails_at:
                raise KeyError("planted")
            x = checkpoint(layer, x, scale, use_reentrant=self.how == "reentrant") if self.how else layer(x, scale)
        return self.head(self.norm(x))


def network(**options: Any) -> Network:
    torch.manual_seed(0)
    return Network(**options).double()


def batch(rows: int, length: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return torch.randint(WORDS, (rows, length), generator=made), torch.randint(WORDS, (rows, length), generator=made)


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def stages(count: int, width: int = 1) -> list[dtorch.DeviceMesh]:
    if width == 1:
        return plans.stages(dtorch.init_device_mesh("cpu", (count,), mesh_dim_names=("pp",)))
    return plans.stages(dtorch.init_device_mesh("cpu", (count, width), mesh_dim_names=("pp", "dp")))


def piped(model: nn.Module, count: int, microbatches: int, **options: Any) -> Any:
    return dtorch.pipeline(model, stages(count), microbatches, **{"loss_fn": cross_entropy, **options})


def plain(model: nn.Module, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = cross_entropy(model(ids), target)
    loss.backward()
    return loss


def same(want: nn.Module, got: nn.Module, tolerance: float = 1e-12) -> None:
    """Gradients: float64, so only the order of sums differs."""
    for (name, one), other in zip(want.named_parameters(), got.parameters()):
        far = float((one.grad - other.grad.cpu()).abs().max() / one.grad.abs().max())
        assert far <= tolerance, f"the gradient of {name} is {far:.1e} off"


def refused(kind: type[BaseException], text: str, function: Callable[[], Any]) -> None:
    try:
        function()
    except kind as error:
        assert text in str(error), f"says {error}"
        return
    raise AssertionError(f"is not refused with {kind.__name__}")


# ---- the order ----


def each_stage_does_one_forward_and_one_backward() -> None:
    assert of_stage(0, 4, 6) == [(Kind.FORWARD, 0), (Kind.FORWARD, 1), (Kind.FORWARD, 2), (Kind.FORWARD, 3), (Kind.BACKWARD, 0),
                                 (Kind.FORWARD, 4), (Kind.BACKWARD, 1), (Kind.FORWARD, 5), (Kind.BACKWARD, 2), (Kind.BACKWARD, 3),
                                 (Kind.BACKWARD, 4), (Kind.BACKWARD, 5)]
    assert of_stage(3, 4, 2) == [(Kind.FORWARD, 0), (Kind.BACKWARD, 0), (Kind.FORWARD, 1), (Kind.BACKWARD, 1)]


def the_order_has_everything_once_and_after_what_it_needs() -> None:
    for count in range(1, 7):
        for microbatches in range(1, 13):
            done: set[Action] = set()
            for line in order(count, microbatches):
                kind, stage, m = line
                needs = {Kind.FORWARD: [(Kind.SEND, stage - 1)] if stage else [],
                         Kind.SEND: [(Kind.FORWARD, stage)],
                         Kind.BACKWARD: [(Kind.FORWARD, stage)] + ([(Kind.SEND_BACK, stage + 1)] if stage < count - 1 else []),
                         Kind.SEND_BACK: [(Kind.BACKWARD, stage)]}[kind]
                assert line not in done and all(Action(k, s, m) in done for k, s in needs), (count, microbatches, line)
                done.add(line)
            assert len(done) == microbatches * (4 * count - 2)


def the_order_keeps_each_stage_to_its_own_and_its_activations_few() -> None:
    for count, microbatches in ((2, 5), (4, 8), (6, 3)):
        for stage in range(count):
            own = [(kind, m) for kind, s, m in order(count, microbatches) if s == stage and kind in (Kind.FORWARD, Kind.BACKWARD)]
            assert own == of_stage(stage, count, microbatches)
            held = most = 0
            for kind, _ in own:
                held += 1 if kind is Kind.FORWARD else -1
                most = max(most, held)
            assert most == min(count - stage, microbatches)


# ---- values ----


def gradients_are_those_of_the_batch(count: int, microbatches: int, rows: int, **options: Any) -> Callable[[], None]:
    def check() -> None:
        want, got = network(**options), network(**options)
        ids, target = batch(rows)
        loss = plain(want, ids, target)
        mine = piped(got, count, microbatches).step(ids, target=target)
        assert abs(loss.item() - mine.item()) <= 1e-12 * abs(loss.item())
        same(want, got)
    return check


def steps_add_up_and_train() -> None:
    want, got = network(tied=True), network(tied=True)
    pipe = piped(got, 2, 4)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (want, got)]
    for step in range(5):
        ids, target = batch(8 + step)
        for half in (slice(0, 5), slice(5, None)):  # two batches a step
            plain(want, ids[half].repeat(2, 1), target[half].repeat(2, 1))
            pipe.step(ids[half].repeat(2, 1), target=target[half].repeat(2, 1))
        same(want, got, 1e-10)
        norms = [nn.utils.clip_grad_norm_(model.parameters(), 0.1) for model in (want, got)]
        assert abs(norms[0] - norms[1].cpu()) <= 1e-12 * norms[0]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for one, other in zip(want.parameters(), got.parameters()):
        assert torch.allclose(one, other.detach().cpu(), rtol=1e-9, atol=1e-12)


def stages_may_be_spread_themselves() -> None:
    want, got = network(tied=True), network(tied=True)
    ids, target = batch(8)
    loss = plain(want, ids, target)
    pipe = dtorch.pipeline(got, stages(2, 2), 2, plan=plans.data_parallel("dp"), loss_fn=cross_entropy)
    assert abs(loss.item() - pipe.step(ids, target=target).item()) <= 1e-12 * abs(loss.item())
    same(want, got)
    assert [p.device_mesh for p in (got.layers[0].up.weight, got.layers[3].up.weight)] == list(pipe.stages)


def the_model_goes_on_as_a_module() -> None:
    want, got = network(tied=True), network(tied=True)
    ids, target = batch(4)
    pipe = piped(got, 4, 2)
    assert torch.allclose(want(ids), got(pipe.place(ids)).cpu(), rtol=1e-12)
    plain(want, ids, target)
    plain(got, pipe.place(ids), pipe.place(target, -1))
    same(want, got)
    again = network(tied=True)
    again.load_state_dict({name: value.cpu() for name, value in got.state_dict().items()})
    assert all(torch.equal(one, other) for one, other in zip(want.state_dict().values(), again.state_dict().values()))


def a_loop_over_microbatches_is_a_pipeline_too() -> None:
    want, got = network(), network()
    ids, target = batch(6)
    plain(want, ids, target)
    pipe = piped(got, 2, 1)
    losses = [cross_entropy(got(pipe.place(a)), pipe.place(b, -1)) / 3 for a, b in zip(ids.chunk(3), target.chunk(3))]
    sum(losses).backward()
    same(want, got)


def places_and_weights_are_the_programs() -> None:
    want, got = network(), network()
    ids, target = batch(6)
    target[0, :4] = target[3, :2] = -100
    loss = plain(want, ids, target)
    pipe = dtorch.pipeline(got, stages(3), 3, places={r"embed|layers\.0": 0, r"layers\.[12]": 1, r"layers\.3|norm|head": 2},
                           loss_fn=cross_entropy, weight=lambda part: (part["target"] != -100).sum())
    assert abs(loss.item() - pipe.step(ids, target=target).item()) <= 1e-12 * abs(loss.item())
    same(want, got)


def dropout_is_the_same_in_each_run() -> None:
    ids, target = batch(6)
    seen = []
    for _ in range(2):
        model = network(dropout=0.5)
        pipe = piped(model, 2, 3)
        torch.manual_seed(5)
        seen.append([pipe.step(ids, target=target).item(), *(p.grad.sum().item() for p in model.parameters())])
    assert seen[0] == seen[1] and seen[0][0] != piped(network(), 2, 3).step(ids, target=target).item()


def autocast_holds_on_the_way() -> None:
    model = network().float()
    kinds = []
    model.layers[3].up.register_forward_hook(lambda _, args, output: kinds.append(output.dtype))
    with torch.autocast("dtorch", torch.bfloat16):
        piped(model, 2, 2).step(*batch(4)[:1], target=batch(4)[1])
    assert kinds == [torch.bfloat16] * 2, kinds


def a_microbatch_may_count_nothing() -> None:
    """The mean over none of its targets is no number; its rows beside counted ones are left out of the batch's mean."""
    for place in (lambda target: target, lambda target: target.to("dtorch")):
        want, got = network(), network()
        ids, target = batch(6)
        target[0:2] = -100
        loss = plain(want, ids, target)
        pipe = piped(got, 2, 3, weight=lambda part: (part["target"] != -100).sum())
        assert abs(loss.item() - pipe.step(ids, target=place(target)).item()) <= 1e-12 * abs(loss.item())
        same(want, got)


def what_is_sent_may_be_changed_later() -> None:
    """In place, between layers: each stage reads what the tensor was when its layer was called, and the gradient is that one's."""
    class Changing(Network):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            scale = x.mean(-1, keepdim=True) + 1
            steps = torch.zeros_like(ids[0, 0]) + 1
            for layer in self.layers:
                x = layer(x, (scale + 0) if layer is self.layers[0] else scale, steps)
                steps.add_(1)
                scale.mul_(0.5)
            return self.head(self.norm(x))

    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, scale: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.lin(x)) / (steps + 0.0) + scale

    def make() -> Network:
        model = Changing()
        torch.manual_seed(3)
        model.layers = nn.ModuleList(Adding() for _ in range(LAYERS))
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        return model.double()
    want, got = make(), make()
    ids, target = batch(4)
    loss = plain(want, ids, target)
    assert abs(loss.item() - piped(got, 2, 2).step(ids, target=target).item()) <= 1e-12 * abs(loss.item())
    same(want, got)


def arguments_may_be_nested() -> None:
    class Taking(Network):
        def forward(self, given: dict[str, Any]) -> torch.Tensor:
            return super().forward(given["of"][0])

    want = network()
    torch.manual_seed(0)
    got = Taking().double()
    ids, target = batch(6)
    plain(want, ids, target)
    pipe = piped(got, 2, 3)
    pipe.step({"of": [ids], "name": "a"}, target=target)
    same(want, got)
    refused(ValueError, "argument 0 has 5 rows", lambda: pipe.step({"of": [ids, ids[:5]]}, target=target))


def modules_without_parameters_run_where_their_input_is() -> None:
    """One dropout before the layers and behind them, as T5 has it."""
    class Dropping(Network):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.0)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.drop(self.embed(ids))
            scale = torch.sigmoid(x.mean(-1, keepdim=True))
            for layer in self.layers:
                x = layer(x, scale)
            return self.head(self.drop(self.norm(x)))

    want = network()
    torch.manual_seed(0)
    got = Dropping().double()
    ids, target = batch(4)
    plain(want, ids, target)
    piped(got, 4, 2).step(ids, target=target)
    same(want, got)


# ---- memory ----


def a_stage_holds_the_activations_of_few_microbatches() -> None:
    """Between its first forward pass and its end, stage s of 4 keeps 4 - s micro-batches' activations, however many there are."""
    width, rows, length, microbatches, count = 64, 4, 32, 8, 4
    model = network(width=width)
    made = torch.Generator().manual_seed(1)
    ids = torch.randint(WORDS, (rows * microbatches, length), generator=made)
    pipe = dtorch.pipeline(model, stages(count), microbatches, loss_fn=cross_entropy)
    pipe.step(ids, target=ids)  # gradients are there from now on
    torch.dtorch.synchronize()
    own = [torch.dtorch.memory_allocated(stage) for stage in range(count)]
    for stage in range(count):
        torch.dtorch.reset_peak_memory_stats(stage)
    pipe.step(ids, target=ids)
    torch.dtorch.synchronize()
    one = rows * length * 8  # a number of a layer for a micro-batch, float64
    # What autograd keeps of a layer: its input, its width four times in tanh()'s result, the product with the scale.
    layer = (width + 4 * width + width) * one
    for stage in range(count):
        used = torch.dtorch.max_memory_allocated(stage) - own[stage]
        held = count - stage
        print(f"stage {stage}: {used} bytes at most beside its own, {used / layer:.2f} layers of a micro-batch")
        assert held * layer * 0.9 <= used <= (held + 2.5) * layer, f"stage {stage} had {used} bytes, a micro-batch {layer}"


# ---- what is refused ----


def checkpoints_work_but_for_reentrant_ones() -> None:
    want, got = network(), network(how="plain")
    ids, target = batch(4)
    plain(want, ids, target)
    piped(got, 2, 2).step(ids, target=target)
    same(want, got)
    other = network(how="reentrant")
    pipe = piped(other, 2, 2)
    refused(RuntimeError, "reentrant checkpoint", lambda: pipe.step(ids, target=target))
    other.how = ""
    other.zero_grad()
    pipe.step(ids, target=target)
    same(want, other)


def an_error_of_the_model_comes_out_and_the_next_step_is_whole() -> None:
    want, got = network(tied=True), network(tied=True)
    ids, target = batch(4)
    pipe = piped(got, 2, 4)
    for at in (0, 3):
        got.fails_at = at
        refused(KeyError, "planted", lambda: pipe.step(ids, target=target))
    got.fails_at = -1
    got.zero_grad()
    plain(want, ids, target)
    pipe.step(ids, target=target)
    same(want, got)


def labels_that_do_not_count_need_a_weight() -> None:
    class Output(nn.Module):
        """As models of Hugging Face: it makes its loss of labels."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.network(ids)
            shifted = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
            return {"loss": cross_entropy(logits, shifted), "logits": logits}

    want, got = Output(), Output()
    ids = batch(4)[0]
    labels = ids.clone()
    labels[0, :3] = -100
    loss = want(ids, labels)["loss"]
    loss.backward()
    refused(ValueError, "weight=", lambda: dtorch.pipeline(got, stages(2), 2).step(ids, labels=labels))
    again = Output()
    pipe = dtorch.pipeline(again, stages(2), 2, weight=plans.count_next_tokens)
    assert abs(pipe.step(ids, labels=labels).item() - loss.item()) <= 1e-12 * loss.item()
    same(want, again)


def targets_that_do_not_count_need_a_weight() -> None:
    ids, target = batch(6)
    target[0, :4] = -100
    refused(ValueError, "target of -100", lambda: piped(network(), 2, 3).step(ids, target=target))


def a_sum_of_a_known_count_is_refused() -> None:
    """Trainer gives Hugging Face's models what the whole batch counts, and they divide by that."""
    pipe = dtorch.pipeline(network(), stages(2), 2)
    refused(ValueError, "num_items_in_batch", lambda: pipe.step(batch(4)[0], num_items_in_batch=20))


def a_batch_norm_in_training_is_refused() -> None:
    def make() -> Network:
        model = network()
        torch.manual_seed(2)
        model.norm = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(WIDTH), nn.Unflatten(0, (-1, 5))).double()
        return model
    want, got = make(), make()
    ids, target = batch(4)
    pipe = piped(got, 2, 2)
    refused(RuntimeError, "norm.1 normalizes by what its batch has", lambda: pipe.step(ids, target=target))
    for model in (want, got):
        model.norm.eval()
    plain(want, ids, target)
    pipe.step(ids, target=target)
    same(want, got)


def what_does_not_fit_is_said() -> None:
    def make(meshes: Any, microbatches: Any = 2, **options: Any) -> Any:
        return dtorch.pipeline(network(), meshes, microbatches, loss_fn=cross_entropy, **options)
    two, ids = stages(2), batch(4)[0]
    refused(ValueError, "1 or more", lambda: make(two, 0))
    refused(TypeError, "DeviceMeshes", lambda: make([0, 1]))
    refused(ValueError, "no device is in two stages", lambda: make([two[0], two[0]]))
    refused(ValueError, "same dimensions", lambda: make([two[0], stages(2, 2)[1]]))
    refused(ValueError, "4 layers of 'layers' are not enough for 5 stages", lambda: make(stages(5)))
    refused(ValueError, "has no list of layers", lambda: dtorch.pipeline(nn.Linear(2, 2), two, 2))
    refused(ValueError, "no stage is said for norm.weight", lambda: make(two, places={r"embed|layers\.0|head": 0, r"layers\..": 1}))
    refused(ValueError, "no module of the model goes to stage 1", lambda: make(two, places={".*": 0}))
    refused(ValueError, "to stage 2", lambda: make(two, places={".*": 2}))
    refused(ValueError, "no 2 micro-batches", lambda: make(two).step(ids[:1], target=ids[:1]))
    refused(ValueError, "argument 'target' has 3 rows", lambda: make(two).step(ids, target=ids[:3]))
    refused(ValueError, "no `loss`", lambda: dtorch.pipeline(network(), two, 2).step(ids))
    back = make(two, places={r"layers\.[01]|embed|norm|head": 0, r"layers\.[23]": 1})
    refused(ValueError, "norm of stage 0 is called when stage 1 has begun", lambda: back.step(ids, target=ids))
    with torch.no_grad():
        refused(RuntimeError, "switched off", lambda: make(two).step(ids, target=ids))


def backward_passes_before_the_session_take_no_device_away() -> None:
    """The first backward pass of a process makes autograd's threads, here in this file's first check of values on the CPU."""
    torch.ones(2, requires_grad=True).sum().backward()
    x = torch.ones(2, device="dtorch:7", requires_grad=True)
    x.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.ones(2)) and torch.dtorch.device_count() == 8


# ---- what one sees ----


def a_timeline_shows_each_stage_going_forward_and_backward_in_turn() -> None:
    """On simulated devices, whose operators take their time: the order in which each device ran what it was given."""
    count, microbatches = 4, 6
    dtorch.disconnect()
    del os.environ["DTORCH_DTENSOR_IN_SAME_DEVICE"]  # each stage has a device of its own
    with Cluster(f"sim:{count},gbs=1") as cluster:
        dtorch.configure(address=cluster.path, devices=count, device_kind="sim", connect_timeout=120)
        model = Network(width=256, layers=count)
        pipe = dtorch.pipeline(model, [dtorch.DeviceMesh("dtorch", [device]) for device in range(count)], microbatches,
                               places={r"embed": 0, r"layers\.0": 0, r"layers\.1": 1, r"layers\.2": 2, r"layers\.3|norm|head": 3},
                               loss_fn=lambda output, _: output.mean())
        ids, _ = batch(4 * microbatches)
        pipe.step(ids)
        torch.dtorch.synchronize()
        job = cluster.items("job", "list")[0]["id"]
        said: list[str] = []
        watcher = threading.Thread(target=lambda: said.append(cluster.ctl("job", "timeline", str(job), "3")))
        watcher.start()
        while watcher.is_alive():
            pipe.step(ids)
            for device in range(count):
                torch.dtorch.synchronize(device)
        watcher.join()
        dtorch.disconnect()
    for stage, passes in passes_of(json.loads(said[0]), count).items():
        own = "".join("F" if kind is Kind.FORWARD else "B" for kind, _ in of_stage(stage, count, microbatches))
        assert len(passes) >= 3 * len(own) and own in passes, f"stage {stage} ran {passes}, not {own} again and again"
        whole = passes[passes.index(own):]
        assert all(whole[at:at + len(own)] == own[:len(whole) - at] for at in range(0, len(whole), len(own))), (stage, whole, own)


def passes_of(trace: dict[str, Any], count: int) -> dict[int, str]:
    """By device, a letter for each pass of a layer in the order of time, by its first operator."""
    lanes = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"]
             if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] >= 10}
    seen: dict[int, list[tuple[float, str]]] = {stage: [] for stage in range(count)}
    letters = {"aten::tanh": "F", "aten::tanh_backward": "B"}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["name"] in letters:
            seen[device_of(lanes[event["tid"]])].append((event["ts"], letters[event["name"]]))
    return {stage: "".join(letter for _, letter in sorted(events)) for stage, events in seen.items()}


def device_of(lane: str) -> int:
    found = re.search(r"vdev (\d+)", lane)
    assert found, f"lane {lane!r} names no device"
    return int(found.group(1))


CHECKS = (
    backward_passes_before_the_session_take_no_device_away,  # first, before there is a session
    each_stage_does_one_forward_and_one_backward, the_order_has_everything_once_and_after_what_it_needs,
    the_order_keeps_each_stage_to_its_own_and_its_activations_few, steps_add_up_and_train, stages_may_be_spread_themselves,
    the_model_goes_on_as_a_module, a_loop_over_microbatches_is_a_pipeline_too, places_and_weights_are_the_programs,
    a_microbatch_may_count_nothing, what_is_sent_may_be_changed_later, arguments_may_be_nested,
    modules_without_parameters_run_where_their_input_is, dropout_is_the_same_in_each_run, autocast_holds_on_the_way,
    a_stage_holds_the_activations_of_few_microbatches,
    checkpoints_work_but_for_reentrant_ones, an_error_of_the_model_comes_out_and_the_next_step_is_whole,
    labels_that_do_not_count_need_a_weight, targets_that_do_not_count_need_a_weight, a_sum_of_a_known_count_is_refused,
    a_batch_norm_in_training_is_refused, what_does_not_fit_is_said)
BATCHES = {(1, 1, 3): {}, (2, 1, 4): {}, (2, 4, 8): {}, (4, 8, 8): {}, (3, 4, 10): {"tied": True}, (4, 2, 7): {"tied": True},
           (4, 3, 3): {}}


def main() -> int:
    suite = devicetest.Suite("device pipeline", devicetest.arguments())
    for function in CHECKS:
        suite.check(function.__name__, function)
    for (count, microbatches, rows), options in BATCHES.items():
        suite.check(f"gradients of {count} stages, {microbatches} micro-batches, {rows} rows{', tied' if options else ''}",
                    gradients_are_those_of_the_batch(count, microbatches, rows, **options))
    suite.check("a timeline", a_timeline_shows_each_stage_going_forward_and_backward_in_turn)  # last, in another session
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
