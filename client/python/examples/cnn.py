"""usage: cnn.py [--device=dtorch] [--steps=60]

A small residual network learns which way stripes run in noisy pictures, with SGD, momentum and batch normalisation."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

SIZE, KINDS, BATCH = 16, 4, 32


class Residual(nn.Module):
    """Two convolutions around which the input goes too; half the size when stride is 2."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.around = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, channels_in, height, width) to (batch, channels, height / stride, width / stride)."""
        y = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        return F.relu(y + self.around(x))


def network() -> nn.Sequential:
    """Pictures (batch, 1, SIZE, SIZE) to scores (batch, KINDS)."""
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Residual(8, 16, 2), nn.MaxPool2d(2),
                         Residual(16, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, KINDS))


def pictures(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Striped pictures and the kind of each. Shapes: (count, 1, SIZE, SIZE) and (count,)."""
    kinds = torch.randint(KINDS, (count,))
    angle = (kinds * torch.pi / KINDS)[:, None, None]
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    wave = torch.sin(x * torch.cos(angle) + y * torch.sin(angle) + torch.rand(count, 1, 1) * 6)
    return (wave + torch.randn(count, SIZE, SIZE) * 0.7)[:, None], kinds


def train(device: str, steps: int, say: bool = False) -> tuple[list[torch.Tensor], nn.Module]:
    """Train for some steps; returns the losses, each still on the device, and the model."""
    torch.manual_seed(0)
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    losses = []
    for step in range(1, steps + 1):
        batch, kinds = (t.to(device) for t in pictures(BATCH))
        scores = model(batch)
        loss = F.cross_entropy(scores, kinds, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if say and (step % 5 == 0 or step == steps):  # item() waits for the device; the steps between do not
            done = 30 * step // steps
            right = (scores.argmax(1) == kinds).float().mean()
            print(f"\r[{'#' * done}{'.' * (30 - done)}] step {step}/{steps}  loss {loss.item():.3f}  right {right.item():.0%}",
                  end="", flush=True)
    return losses, model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--device", default="dtorch")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    train(options.device, options.steps, say=True)
    print()
