"""usage: neighbour.py EXAMPLES

Somebody else's job: a small network is trained without an end, on one device of the cluster that DTORCH_ADDRESS names. Writes where
that is, then a line every ten steps. It leaves most of a small machine to others: the next data come every twentieth second."""

import itertools
import pathlib
import sys
import time

import torch
from torch import nn


def main() -> None:
    sys.path.insert(0, str(pathlib.Path(sys.argv[1])))
    import mlp

    torch.manual_seed(0)
    points, kinds = (t.to("dtorch") for t in mlp.spirals(200))
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 2)).to("dtorch")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    print("on", torch.dtorch.get_device_name(0), flush=True)
    for step in itertools.count(1):
        loss = nn.functional.cross_entropy(model(points), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


if __name__ == "__main__":
    main()
