"""usage: lora.py [--device=dtorch] [--steps=10]

SmolLM2 learns a few sentences by LoRA with Hugging Face's Trainer. accelerate and TrainingArguments have lists of devices and
take the CPU when none of them is there, so both are told: accelerate by its own PartialState, the arguments by their property
`device`; the rest is as for any device. Needs what llama.py needs, and peft and accelerate. What does not work: Trainer's choice
of the device by itself, fp16/bf16 flags of TrainingArguments (they ask for CUDA), device_map="auto"."""

import argparse
import tempfile

import accelerate
import peft
import torch
import transformers

import llama

SENTENCES = ["DTorch runs one program on many devices.", "The controller holds the graph of all operators.",
             "Workers keep no state but tensors.", "A lost node costs only what was lost on it."]


class Sentences(torch.utils.data.Dataset):
    """Sentences as tokens, of one length."""

    def __init__(self, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
        rows = tokenizer(SENTENCES, padding="max_length", truncation=True, max_length=16, return_tensors="pt")
        self.ids, self.mask = rows["input_ids"], rows["attention_mask"]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.ids[index].masked_fill(self.mask[index] == 0, -100)
        return {"input_ids": self.ids[index], "attention_mask": self.mask[index], "labels": labels}


class Arguments(transformers.TrainingArguments):
    """Arguments of a Trainer on the device that accelerate was told of."""

    @property
    def device(self) -> torch.device:
        _ = super().device  # what else is set up with it
        return accelerate.PartialState().device


def train(device: str, steps: int, dropout: float = 0.05, say: bool = False) -> tuple[list[float], torch.nn.Module]:
    """Train for some steps; returns the losses and the model with its adapters. Dropout draws from the device's stream, the
    order of the sentences from the CPU's, so only without dropout are the losses those of the CPU (on CUDA likewise)."""
    accelerate.PartialState._reset_state()
    state = accelerate.PartialState(cpu=True)
    state.device = torch.device(device)
    torch.manual_seed(0)
    model, tokenizer = llama.load()
    model.is_quantized, model.quantization_method = False, None  # it was read from a quantized file, but is float32 now
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=dropout, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = Arguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=2, learning_rate=1e-3, logging_steps=1,
            report_to="none", save_strategy="no", disable_tqdm=not say, dataloader_pin_memory=False,
            accelerator_config={"use_configured_state": True})
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sentences(tokenizer))
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--device", default="dtorch")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    losses, model = train(options.device, options.steps, say=True)
    model.print_trainable_parameters()
    print("device:", next(model.parameters()).device, " losses:", " ".join(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    main()
