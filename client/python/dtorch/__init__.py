"""DTorch for PyTorch: the device "dtorch", on which unmodified PyTorch programs run, on a cluster.

`import torch` loads the device by itself. Where it leads is said by DTORCH_ADDRESS or client.conf(5); with neither, a private
cluster of one node starts on this machine, and ends with the program. Only what PyTorch has no name for is here:

    dtorch.fetch(x)         a TensorFuture: the value of x, without waiting for it; can be awaited
    dtorch.DeviceMesh(...)  several devices; Shard, Replicate, Partial say where a tensor lies on them
    dtorch.rand(..., device_mesh=, placements=) and the other factories, distribute_tensor(): tensors on a mesh
    dtorch.strict()         with it nothing is moved but by redistribute()
    dtorch.policy(...)      what saves moves, switched off one by one to measure it
    dtorch.distribute(...)  a model on a mesh, by a plan of dtorch.plans
    dtorch.pipeline(model, stages, microbatches)  a model in stages on different meshes, trained with micro-batches
    dtorch.explain(fn, ...) what the function's operators become: rules, placements, moves, bytes, lines
    dtorch.plot_mesh(x)     which device holds what of x, as text and as SVG
    dtorch.scalable(...)    a function over many items, each on one of the devices that are there
    dtorch.configure(...)   where to connect, how many devices, before the first use
    dtorch.Error            and its subclasses, see dtorch.errors

torch.dtorch is the device's module, as torch.cuda is for CUDA.
"""

from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  (loads the device by the entry point, unless that is switched off)

from dtorch import _start
from dtorch._future import TensorFuture, fetch
from dtorch._sharded import (arange, distribute_tensor, empty, eye, full, full_tensor, linspace, ones, policy, rand, randint,
                             randn, randperm, redistribute, shards, strict, to_torch, zeros)
from dtorch.errors import BegunError, Error, OperatorError
from dtorch.mesh import DeviceMesh, init_device_mesh
from dtorch.placements import Partial, Placement, Replicate, Shard
from dtorch.session import configure, connect, disconnect, session_info

__all__ = [
    "BegunError", "DeviceMesh", "Error", "OperatorError", "Partial", "Placement", "Replicate", "Shard", "TensorFuture",
    "arange", "configure", "connect", "disconnect", "distribute", "distribute_tensor", "empty", "explain", "eye", "fetch", "full",
    "full_tensor", "init_device_mesh", "linspace", "ones", "pipeline", "plans", "plot_mesh", "policy", "rand", "randint", "randn",
    "randperm", "redistribute", "scalable", "session_info", "shards", "strict", "to_torch", "zeros"]

if TYPE_CHECKING:
    from dtorch import plans
    from dtorch._distribute import distribute
    from dtorch._explain import explain
    from dtorch._pipeline import pipeline
    from dtorch._plot import plot_mesh
    from dtorch._scalable import scalable

LATE = {"distribute": "_distribute", "explain": "_explain", "pipeline": "_pipeline", "plot_mesh": "_plot", "scalable": "_scalable"}


def __getattr__(name: str) -> Any:
    """What programs on one device have no use for is read when it is asked for: each `import torch` comes here."""
    if name == "plans":
        import importlib

        return importlib.import_module("dtorch.plans")
    if name in LATE:
        import importlib

        globals()[name] = getattr(importlib.import_module(f"dtorch.{LATE[name]}"), name)
        return globals()[name]
    raise AttributeError(f"module 'dtorch' has no attribute {name!r}")


_start.start()
