"""usage: gpt.py [--device=dtorch] [--steps=200] [--tokens=200]

A small GPT learns the letters of this very file with AdamW, dropout, a schedule and clipped gradients, then writes some."""

import argparse
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 2, 64, 16


class Block(nn.Module):
    """Attention and a network, each with a norm before and a sum after."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, WIDTH), the same."""
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, WIDTH)))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.norm2(x)))))


class Gpt(nn.Module):
    """Letters to scores of the next letter; the first and the last layer share their weight."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place, self.drop = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH), nn.Dropout(0.1)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, letters, bias=False)
        self.head.weight = self.letter.weight
        nn.init.normal_(self.letter.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence) to (batch, sequence, letters)."""
        x = self.letter(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(self.drop(x))))


def text() -> tuple[list[str], torch.Tensor]:
    """The alphabet, and this file in numbers of its letters. Shapes: (length,)."""
    letters = pathlib.Path(__file__).read_text()
    alphabet = sorted(set(letters))
    return alphabet, torch.tensor([alphabet.index(letter) for letter in letters])


def train(device: str, steps: int, say: bool = False) -> tuple[list[torch.Tensor], Gpt]:
    """Train for some steps; returns the losses, each still on the device, and the model."""
    torch.manual_seed(0)
    alphabet, data = text()
    model = Gpt(len(alphabet)).to(device)
    data = data.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    starts = torch.randint(len(data) - CONTEXT - 1, (steps, BATCH))
    torch.manual_seed(1)
    losses = []
    for step in range(1, steps + 1):
        rows = torch.stack([data[start:start + CONTEXT + 1] for start in starts[step - 1].tolist()])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if say and (step % 10 == 0 or step == steps):  # item() waits for the device; the steps between do not
            done = 30 * step // steps
            print(f"\r[{'#' * done}{'.' * (30 - done)}] step {step}/{steps}  loss {loss.item():.3f}", end="", flush=True)
    return losses, model


@torch.no_grad()
def write(model: Gpt, device: str, tokens: int) -> None:
    """Print some letters, each as soon as it is known."""
    alphabet, _ = text()
    ids = torch.tensor([[alphabet.index(letter) for letter in "class "]], device=device)
    model.eval()
    for _ in range(tokens):
        scores = model(ids[:, -CONTEXT:])[:, -1]
        ids = torch.cat([ids, torch.multinomial(scores.softmax(-1), 1)], 1)
        print(alphabet[ids[0, -1].item()], end="", flush=True)
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--device", default="dtorch")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    _, trained = train(options.device, options.steps, say=True)
    print("\nclass ", end="")
    write(trained, options.device, options.tokens)
