"""usage: mlp.py [--device=dtorch] [--steps=200]

A small network learns to tell two spirals apart. Nothing here knows of DTorch but the device's name."""

import argparse

import torch
from torch import nn


def spirals(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two spirals. Shapes: (2 count, 2) and (2 count,)."""
    turn = torch.rand(count).sqrt() * 9
    arms = [torch.stack([sign * turn.cos() * turn, sign * turn.sin() * turn], 1) for sign in (1, -1)]
    points = torch.cat(arms) / 9 + torch.randn(2 * count, 2) * 0.02
    return points, torch.cat([torch.zeros(count), torch.ones(count)]).long()


def train(device: str, steps: int, say: bool = False) -> tuple[list[torch.Tensor], nn.Module]:
    """Train for some steps; returns the losses, each still on the device, and the model."""
    torch.manual_seed(0)
    points, kinds = (t.to(device) for t in spirals(200))
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(1, steps + 1):
        loss = nn.functional.cross_entropy(model(points), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if say and (step % 20 == 0 or step == steps):  # item() waits for the device; the steps between do not
            done = 30 * step // steps
            right = (model(points).argmax(1) == kinds).float().mean()
            print(f"\r[{'#' * done}{'.' * (30 - done)}] step {step}/{steps}  loss {loss.item():.4f}  right {right.item():.1%}",
                  end="", flush=True)
    return losses, model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--device", default="dtorch")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    train(options.device, options.steps, say=True)
    print()
