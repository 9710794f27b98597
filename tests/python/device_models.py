"""usage: device_models.py [PART OF A NAME...]

Real models with other people's code on the device, as on the CPU: SmolLM2 with transformers (tokens, a fine-tuning step), LoRA
with peft and Trainer, a diffusers pipeline. Packages: mk/requirements-models.txt; without them all is skipped."""

import copy
import functools
import pathlib
import sys
from typing import Any

import torch

import devicetest
import dtorch  # noqa: F401
from devicetest import DEVICE, expect_same

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))
PROMPTS = ["Name the planets of the solar system.", "What is the capital of France?", "Write a haiku about rain.",
           "Count from one to ten.", "Why is the sky blue?", "Say hello in Spanish.", "What is 12 times 12?",
           "Tell me about cats.", "Who wrote Hamlet?", "List three colours."]


@functools.lru_cache(maxsize=1)
def smollm() -> tuple[Any, Any, Any]:
    """The model on the CPU, the same on the device, the tokenizer. Raises: Skip (a package is missing)."""
    try:
        import llama
    except ImportError as missing:
        raise devicetest.Skip(f"{missing}") from None
    model, tokenizer = llama.load()
    return model, copy.deepcopy(model).to(DEVICE), tokenizer


def question(prompt: str) -> torch.Tensor:
    import llama

    return llama.ask(smollm()[2], prompt)


def generated(model: Any, ids: torch.Tensor, device: str, **options: Any) -> torch.Tensor:
    torch.manual_seed(7)
    ids = ids.to(device)
    with torch.no_grad():
        return model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options).cpu()


def stays_tied() -> None:
    _, there, _ = smollm()
    assert there.lm_head.weight is there.model.embed_tokens.weight and there.lm_head.weight.is_dtorch


def logits() -> None:
    here, there, _ = smollm()
    ids = question(PROMPTS[0])
    with torch.no_grad():
        expect_same(here(ids).logits, there(ids.to(DEVICE)).logits)


def greedy(prompt: str) -> None:
    here, there, _ = smollm()
    ids = question(prompt)
    options = {"do_sample": False, "max_new_tokens": 12}
    expect_same(generated(here, ids, "cpu", **options), generated(there, ids, DEVICE, **options))


def sampled() -> None:
    here, there, _ = smollm()
    ids = question(PROMPTS[2])
    options = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "max_new_tokens": 12}
    expect_same(generated(here, ids, "cpu", **options), generated(there, ids, DEVICE, **options))


def static_cache() -> None:
    here, there, _ = smollm()
    ids = question(PROMPTS[1])
    options = {"do_sample": False, "max_new_tokens": 8, "cache_implementation": "static", "disable_compile": True}
    expect_same(generated(here, ids, "cpu", **options), generated(there, ids, DEVICE, **options))


def fine_tuned(model: Any, device: str) -> Any:
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = question(PROMPTS[0])[:, :24].to(device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach(), norm, [p.detach() for p in model.parameters()]


def fine_tuning_step() -> None:
    here, there, _ = smollm()
    expect_same(fine_tuned(here, "cpu"), fine_tuned(there, DEVICE))


def lora() -> None:
    try:
        import lora as example
    except ImportError as missing:
        raise devicetest.Skip(f"{missing}") from None
    (want, here), (got, there) = example.train("cpu", 2, 0), example.train(DEVICE, 2, 0)
    assert next(there.parameters()).is_dtorch, "the Trainer has moved the model elsewhere"
    assert want == got, f"losses {got} for {want}"
    expect_same([p.detach() for p in here.parameters() if p.requires_grad], [p.detach() for p in there.parameters() if p.requires_grad])


def diffusion() -> None:
    try:
        import diffusion as example
    except ImportError as missing:
        raise devicetest.Skip(f"{missing}") from None
    expect_same(example.draw("cpu", 3), example.draw(DEVICE, 3))


def main() -> int:
    suite = devicetest.Suite("device models", devicetest.arguments())
    suite.check("diffusers draws", diffusion)
    suite.check("smollm2 stays tied", stays_tied)
    suite.check("smollm2 logits", logits)
    prompts = PROMPTS if "--whole" in sys.argv else PROMPTS[:3]
    for prompt in prompts:
        suite.check(f"smollm2 greedy: {prompt}", lambda p=prompt: greedy(p))
    suite.check("smollm2 sampled", sampled)
    suite.check("smollm2 with a static cache", static_cache)
    suite.check("smollm2 fine-tuning step", fine_tuning_step)
    suite.check("lora with Trainer", lora)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
