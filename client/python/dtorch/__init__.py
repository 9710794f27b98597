"""DTorch for PyTorch: the device "dtorch", on which unmodified PyTorch programs run, on a cluster.

`import torch` loads the device by itself. Where it leads is said by DTORCH_ADDRESS or client.conf(5); with neither, a private
cluster of one node starts on this machine, and ends with the program. Only what PyTorch has no name for is here:

    dtorch.fetch(x)         a TensorFuture: the value of x, without waiting for it; can be awaited
    dtorch.configure(...)   where to connect, how many devices, before the first use
    dtorch.Error            and its subclasses, see dtorch.errors

torch.dtorch is the device's module, as torch.cuda is for CUDA.
"""

import torch  # noqa: F401  (loads the device by the entry point, unless that is switched off)

from dtorch import _start
from dtorch._future import TensorFuture, fetch
from dtorch.errors import Error, OperatorError
from dtorch.session import configure, connect, disconnect, session_info

__all__ = ["Error", "OperatorError", "TensorFuture", "configure", "connect", "disconnect", "fetch", "session_info"]

_start.start()
