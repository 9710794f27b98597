"""usage: mesh.py [--devices=2]

Tensors on several devices: one program, one global view. Without a cluster, DTORCH_DTENSOR_IN_SAME_DEVICE=8 stands in for eight
devices."""

import argparse

import torch

import dtorch
from dtorch import DeviceMesh, Replicate, Shard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--devices", type=int, default=2)
    mesh = DeviceMesh("cuda", range(parser.parse_args().devices))

    x = dtorch.rand((4, 3), device_mesh=mesh, placements=[Shard(0)])
    print(f"{x=}")
    for device, part in x.shards().items():
        print(f"device {device} has {tuple(part.shape)}")

    # Any operator takes it; what it needs elsewhere is moved.
    y = (x @ x.t()).softmax(-1)
    print(f"a product, where it lies: {y.placements}, its sum: {y.sum().item():.6f}")

    # A write through a view reaches the tensor, wherever its parts are.
    x[1:3, 0] = 1
    whole = x.redistribute(placements=[Replicate()])
    print("the same on one device:", torch.equal(whole.to_torch(), x.to_torch()))

    # Autograd is PyTorch's own.
    weight = dtorch.distribute_tensor(torch.eye(3), mesh, [Shard(1)]).requires_grad_()
    (x @ weight).square().sum().backward()
    print(f"the gradient lies where the tensor does: {weight.grad.placements}\n{weight.grad.to_torch()}")


if __name__ == "__main__":
    main()
