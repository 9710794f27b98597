"""Where PyTorch needs to be told about the device in Python: each change here says what it is for.

Each wraps one function, does nothing for tensors of other devices, and is made once."""

import functools
import importlib
import warnings
from typing import Any

import torch

from dtorch import _start


def install() -> None:
    """Make all of them."""
    _keep_parameters()
    _print_at_once()
    _refuse_dlpack()
    _compile_to_eager()
    _forward_ranges()
    _loop_in_some_optimizers()
    _average_one_by_one()
    _zero_what_is_padded()


def _is_ours(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "dtorch"


# ---- Module.to: parameters stay the same objects, as on a move to CUDA ----

_moved: dict[int, tuple[Any, Any]] | None = None  # while a move runs: by id of the old parameter, (old, new)


def _keep_parameters() -> None:
    """PyTorch makes new Parameter objects when a module moves between the CPU and a device of a kind that it does not know:
    tied weights come apart, and an optimizer that was made before goes on with the old ones. Here the old object takes the
    new content instead; where something else holds the old content, tied weights stay tied at least."""
    plain = torch.nn.Module._apply

    @functools.wraps(plain)
    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        global _moved
        outermost = _moved is None
        if outermost:
            _moved = {}
        try:
            before = dict(self._parameters)
            result = plain(self, fn, recurse)
            for name, old in before.items():
                new = self._parameters[name]
                if old is not None and new is not old and (_is_ours(old) or _is_ours(new)):
                    self._parameters[name] = keep(old, new)
            return result
        finally:
            if outermost:
                _moved = None

    torch.nn.Module._apply = _apply


def keep(old: Any, new: Any) -> Any:
    """The old parameter with the new one's content; the new one where something else holds the old content."""
    known = _moved.get(id(old)) if _moved is not None else None
    if known is not None:
        return known[1]
    kind, own = type(old), dict(old.__dict__)
    kept = old
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:
        kept = new
        if _moved is not None:
            _moved[id(old)] = (old, new)
    kept.__dict__.update(own)
    if type(kept) is not kind:  # a lazy parameter is still one
        kept.__class__ = kind
    return kept


# ---- repr: the tensor is fetched once, not element by element ----


def _print_at_once() -> None:
    from torch import _tensor_str

    plain = _tensor_str._tensor_str

    @functools.wraps(plain)
    def _str(self: torch.Tensor, indent: int) -> str:
        return plain(self.detach().cpu() if self.device.type == "dtorch" else self, indent)

    _tensor_str._tensor_str = _str


# ---- DLPack shares memory, and there is none to share ----


def _refuse_dlpack() -> None:
    text = "a tensor on dtorch lies on the cluster, so DLPack has no address to share: use x.cpu() first"

    def refusing(plain: Any) -> Any:
        @functools.wraps(plain)
        def function(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_ours(self):
                raise BufferError(text)
            return plain(self, *args, **kwargs)
        return function

    torch.Tensor.__dlpack__ = refusing(torch.Tensor.__dlpack__)
    torch.Tensor.__dlpack_device__ = refusing(torch.Tensor.__dlpack_device__)
    torch.to_dlpack = torch.utils.dlpack.to_dlpack = refusing(torch.utils.dlpack.to_dlpack)


# ---- torch.compile: inductor has no code for the device; the traced program runs operator by operator ----


def _compile_to_eager() -> None:
    wrapper = torch._TorchCompileInductorWrapper
    plain = wrapper.__call__

    @functools.wraps(plain)
    def __call__(self: Any, model: Any, inputs: Any) -> Any:
        if not _uses_device(model, inputs):
            return plain(self, model, inputs)
        _warn_of_eager()
        return model.forward

    wrapper.__call__ = __call__


@functools.lru_cache(maxsize=1)
def _warn_of_eager() -> None:
    warnings.warn("torch.compile on dtorch: traced, then run operator by operator as without it; inductor makes no code for "
                  "this device", stacklevel=2)


def _uses_device(model: Any, inputs: Any) -> bool:
    leaves = list(inputs)
    if isinstance(model, torch.nn.Module):
        leaves += [*model.parameters(), *model.buffers()]
    if isinstance(model, torch.fx.GraphModule):
        leaves += [node.meta.get("example_value") for node in model.graph.nodes]
    return any(_is_ours(leaf) for leaf in leaves)


# ---- profiler ranges: marks in the stream, shown by `dtorchctl job` and named by errors ----


def _forward_ranges() -> None:
    plain = torch.autograd.profiler.record_function
    enter, leave = plain.__enter__, plain.__exit__

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        self._dtorch = _start.library().range_begin(self.name.encode()[:127]) == 0
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self: Any, *raised: Any) -> Any:
        if self.__dict__.pop("_dtorch", False):
            _start.library().range_end()
        return leave(self, *raised)

    plain.__enter__, plain.__exit__ = __enter__, __exit__


# ---- optimizers: PyTorch updates all parameters of a device in one call where it knows how (foreach), those of the CPU one by
# one. Most give the same bits both ways; these three do not, and the CPU's bits are what is promised. foreach=True still works.


def _loop_in_some_optimizers() -> None:
    for name in ("asgd", "nadam", "radam"):
        module = importlib.import_module(f"torch.optim.{name}")
        plain = getattr(module, "_default_to_fused_or_foreach", None)
        if plain is not None:
            module._default_to_fused_or_foreach = _loop_on_device(plain)


def _loop_on_device(plain: Any) -> Any:
    @functools.wraps(plain)
    def function(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        if any(_is_ours(parameter) for parameter in params):
            return False, False
        return plain(params, differentiable, use_fused=use_fused)
    return function


# ---- averaged models: one by one, too. All at once PyTorch computes otherwise, and cannot take the counters of norms.


def _average_one_by_one() -> None:
    module = importlib.import_module("torch.optim.swa_utils")
    plain = getattr(module, "_get_foreach_kernels_supported_devices", None)
    if plain is not None:
        module._get_foreach_kernels_supported_devices = lambda: [kind for kind in plain() if kind != "dtorch"]


# ---- nn.TransformerEncoder: where it only evaluates, PyTorch leaves out what a mask pads, by nested tensors, and gives zeros
# there. There are none on the device: all is computed, and set to zero where PyTorch does.


def _zero_what_is_padded() -> None:
    plain = torch.nn.TransformerEncoder.forward

    @functools.wraps(plain)
    def forward(self: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None) -> Any:
        if not _is_ours(src) or not _leaves_out(self, src, mask, src_key_padding_mask):
            return plain(self, src, mask, src_key_padding_mask, is_causal)
        padded = src_key_padding_mask if src_key_padding_mask.dtype == torch.bool else src_key_padding_mask != 0
        output = src
        for layer in self.layers:
            output = layer(output, is_causal=bool(is_causal), src_key_padding_mask=padded)
        output = output.masked_fill(padded.unsqueeze(-1), 0.0)
        return output if self.norm is None else self.norm(output)

    torch.nn.TransformerEncoder.forward = forward


def _leaves_out(encoder: Any, src: Any, mask: Any, padding: Any) -> bool:
    """Whether PyTorch goes its fast path with a mask of padding: the conditions of its forward(). Waits for the mask's values."""
    first = encoder.layers[0]
    if (padding is None or mask is not None or src.dim() != 3 or first.training or not getattr(encoder, "use_nested_tensor", False)
            or not torch.backends.mha.get_fastpath_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled()):
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in (src, *first.parameters())):
        return False
    kept = padding.logical_not()
    return not getattr(encoder, "mask_check", True) or not bool((kept[:, 1:] & ~kept[:, :-1]).any())
