"""Operators of PyTorch's database that may differ on the device, each with the reason. A key is the entry's name, or the name and
a dtype: "svd" or "svd complex64"."""

_UNSET = "its result is memory that nobody has written"
_SPARSE = "sparse tensors are not supported on the device"
_INDICES_HERE = "the indices must be on the CPU, as with CUDA"

EXCEPTIONS: dict[str, str] = {
    "empty": _UNSET,
    "empty_like": _UNSET,
    "empty_permuted": _UNSET,
    "empty_strided": _UNSET,
    "new_empty": _UNSET,
    "new_empty_strided": _UNSET,
    "tensor_split": _INDICES_HERE,
    "to_sparse": _SPARSE,
}
