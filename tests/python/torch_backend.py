"""usage: torch_backend.py PATH/dtorch-backend-torch.so [OPERATOR...]

Calls the torch backend through its C table beside PyTorch in Python, in one process on one LibTorch, and compares bit for
bit: values, dtype, sizes, strides, offset, conjugate and negative bits of every result, and the memory of every input
afterwards. What op_infer says of a call is compared with what was executed.

The calls are those that PyTorch's own operator database makes (its first samples, forward in several dtypes and backward
in float32), caught at the dispatcher, and a table for argument kinds that they lack. With OPERATOR names, only these.
"""

import concurrent.futures
import ctypes as c
import sys
import time
import warnings
from collections import Counter
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dtbackend as dt

CALLS_MAX = 3  # of one overload with one set of dtypes and kinds of arguments
BYTES_MAX = 1 << 24  # of one storage
DTYPES = {name: number for name, number in [
    ("uint8", 0), ("int8", 1), ("int16", 2), ("int32", 3), ("int64", 4), ("float16", 5), ("float32", 6), ("float64", 7),
    ("complex32", 8), ("complex64", 9), ("complex128", 10), ("bool", 11), ("bfloat16", 15), ("float8_e5m2", 23),
    ("float8_e4m3fn", 24), ("float8_e5m2fnuz", 25), ("float8_e4m3fnuz", 26), ("uint16", 27), ("uint32", 28), ("uint64", 29)]}
LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1}
FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
# Results that nobody has written: only their metadata is compared.
UNSET = ("aten::empty", "aten::new_empty", "aten::resize", "aten::_efficientzero", "aten::set_")

# What differs for a reason of its own.
KNOWN = {
    "aten::linalg_pinv.atol_rtol_tensor": "its matmul folds dimensions otherwise where an input requires grad",
    "aten::_ctc_loss": "parts of log_alpha are never written",
    "aten::_ctc_loss.Tensor": "parts of log_alpha are never written",
}


class BrokenPromise(BaseException):
    """Something that no call may do."""


class LeftOut(Exception):
    """A call that this test cannot make, with the reason."""


def dtype_number(dtype: torch.dtype) -> int:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise LeftOut(f"dtype {name}")
    return DTYPES[name]


def storage_bytes(tensor: torch.Tensor) -> bytes:
    storage = tensor.untyped_storage()
    if storage.nbytes() > BYTES_MAX:
        raise LeftOut("large")
    return c.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def packed_bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    size = tensor.numel() * tensor.element_size()
    return c.string_at(tensor.data_ptr(), size) if size else b""


class Arguments:
    """The arguments of one call as values of the table, with copies of all tensors in the backend."""

    def __init__(self, backend: dt.Backend) -> None:
        self.backend = backend
        self.keep: list[Any] = []  # what values point to
        self.owned: list[int] = []
        self.bases: dict[int, tuple[int, int]] = {}  # storage in PyTorch -> base in the backend, its bytes
        self.tensors: list[tuple[torch.Tensor, int]] = []  # in the order of the arguments
        self.values: list[dt.Value] = []
        self.questions: list[dt.Value] = []  # the same for op_infer

    def base(self, tensor: torch.Tensor) -> int:
        key = tensor.untyped_storage()._cdata
        if key not in self.bases:
            data = storage_bytes(tensor)
            if len(data) % tensor.element_size():
                raise LeftOut("storage of odd size")
            handle = self.backend.create(dtype_number(tensor.dtype), [len(data) // tensor.element_size()], data)
            self.owned.append(handle)
            self.bases[key] = (handle, dtype_number(tensor.dtype))
        handle, dtype = self.bases[key]
        if dtype != dtype_number(tensor.dtype):
            raise LeftOut("two dtypes over one storage")
        return handle

    def derive(self, name: str, values: list[dt.Value]) -> int:
        (handle,) = self.backend.execute(name, values)
        self.owned.append(handle)
        return handle

    def tensor(self, tensor: torch.Tensor) -> int:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise LeftOut("not a strided CPU tensor")
        if tensor.dim() > dt.DIM_MAX or tensor._is_zerotensor():
            raise LeftOut("tensor that the table cannot describe")
        values = [self.simple(dt.TENSOR, pointer=self.base(tensor)), self.ints(tensor.shape), self.ints(tensor.stride()),
                  self.simple(dt.INT, number=tensor.storage_offset())]
        handle = self.derive("aten::as_strided", values)
        if tensor.is_conj():
            handle = self.derive("aten::_conj", [self.simple(dt.TENSOR, pointer=handle)])
        if tensor.is_neg():
            handle = self.derive("aten::_neg_view", [self.simple(dt.TENSOR, pointer=handle)])
        self.tensors.append((tensor, handle))
        return handle

    @staticmethod
    def simple(tag: int, number: int = 0, pointer: int | None = None, real: float | None = None) -> dt.Value:
        value = dt.Value(tag, 0, 0)
        if real is not None:
            value.as_.real = real
        elif pointer is not None:
            value.as_.pointer = pointer
        else:
            value.as_.number = number
        return value

    def array(self, tag: int, kind: Any, items: Any) -> dt.Value:
        array = (kind * max(len(items), 1))(*items)
        self.keep.append(array)
        value = dt.Value(tag, 0, len(items))
        value.as_.pointer = c.addressof(array)
        return value

    def ints(self, items: Any) -> dt.Value:
        return self.array(dt.INTS, c.c_int64, [int(i) for i in items])

    def number(self, value: Any) -> dt.Value:
        if isinstance(value, bool):
            return self.simple(dt.TRUE if value else dt.FALSE)
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:
                raise LeftOut("int above 63 bits")
            return self.simple(dt.INT, number=value)
        if isinstance(value, float):
            return self.simple(dt.DOUBLE, real=value)
        if isinstance(value, complex):
            made = self.array(dt.COMPLEX, c.c_double, [value.real, value.imag])
            made.count = 0
            return made
        raise LeftOut(f"number of type {type(value).__name__}")

    def text(self, value: str) -> dt.Value:
        data = value.encode()
        made = self.array(dt.STR, c.c_char, list(data[i:i + 1] for i in range(len(data))))
        return made

    def tensor_list(self, items: Any) -> tuple[dt.Value, dt.Value]:
        handles = [None if t is None else self.tensor(t) for t in items]
        return (self.array(dt.TENSORS, c.c_void_p, handles),
                self.array(dt.TENSORS, c.c_uint64, [0 if h is None else 1 for h in handles]))

    def list_value(self, items: Any, schema_type: str) -> tuple[dt.Value, dt.Value]:
        if schema_type.startswith(("List[Tensor", "List[Optional[Tensor", "Optional[List[Tensor")):
            return self.tensor_list(items)
        if schema_type.startswith(("List[bool", "Optional[List[bool")):
            value = self.array(dt.BOOLS, c.c_uint8, [int(b) for b in items])
        elif schema_type.startswith(("List[float", "Optional[List[float")):
            value = self.array(dt.DOUBLES, c.c_double, [float(x) for x in items])
        elif schema_type.startswith(("List[number", "Optional[List[number")):
            value = self.array(dt.VALUES, dt.Value, [self.number(x) for x in items])
        elif schema_type.startswith(("List[str", "Optional[List[str")):
            value = self.array(dt.STRS, dt.Value, [self.text(x) for x in items])
        else:
            value = self.ints(items)
        return value, value

    def add(self, value: Any, schema_type: str) -> None:
        question = None
        if value is None:
            made = self.simple(dt.NONE)
        elif isinstance(value, torch.Tensor):
            made = self.simple(dt.TENSOR, pointer=self.tensor(value))
            question = self.simple(dt.TENSOR, number=1)
        elif isinstance(value, (list, tuple, torch.Size)):
            made, question = self.list_value(value, schema_type)
        elif isinstance(value, str):
            made = self.text(value)
        elif isinstance(value, torch.dtype):
            made = self.simple(dt.DTYPE, number=dtype_number(value))
        elif isinstance(value, torch.layout):
            made = self.simple(dt.LAYOUT, number=LAYOUTS.get(value, 0))
        elif isinstance(value, torch.memory_format):
            made = self.simple(dt.MEMORY_FORMAT, number=FORMATS[value])
        elif isinstance(value, torch.device):
            if value.type not in ("cpu", "meta"):
                raise LeftOut("other device")
            made = self.simple(dt.DEVICE, number=0 if value.type == "cpu" else 14)
            made.index = -1
        elif isinstance(value, torch.UntypedStorage):
            made = self.storage(value)
            question = self.simple(dt.STORAGE, number=1)
        else:
            made = self.number(value)
        self.values.append(made)
        self.questions.append(question or made)

    def storage(self, storage: torch.UntypedStorage) -> dt.Value:
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        return self.simple(dt.STORAGE, pointer=self.tensor(flat))

    def metas(self) -> list[dt.Meta]:
        return [self.backend.tensor(handle).meta for _, handle in self.tensors]

    def free(self) -> None:
        for handle in self.owned:
            self.backend.free(handle)


def describe(meta: dt.Meta) -> tuple[Any, ...]:
    n = meta.ndim
    return meta.dtype, tuple(meta.sizes[:n]), tuple(meta.strides[:n]), bool(meta.layout & 0x40), bool(meta.layout & 0x80)


def describe_torch(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (dtype_number(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), tensor.is_conj(), tensor.is_neg())


class Report:
    """What was called, what was equal, and what was not."""

    def __init__(self) -> None:
        self.calls = self.equal = self.refused = 0
        self.overloads: set[str] = set()
        self.tags: Counter[int] = Counter()
        self.left_out: Counter[str] = Counter()
        self.inferred: Counter[str] = Counter()
        self.differences: list[str] = []
        self.known: Counter[str] = Counter()
        self.infer_differences: dict[str, str] = {}


def flatten(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in flatten(item)]
    return [result]


def as_tensor(result: Any) -> torch.Tensor | None:
    if result is None or isinstance(result, torch.Tensor):
        return result
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    return torch.tensor(result, dtype=kinds[type(result)])


def compare_result(backend: dt.Backend, handle: int | None, wanted: torch.Tensor | None, name: str) -> str | None:
    if handle is None or wanted is None:
        return None if handle is None and wanted is None else "only one of them is undefined"
    info = backend.tensor(handle)
    if describe(info.meta) != describe_torch(wanted):
        return f"{describe(info.meta)}, PyTorch has {describe_torch(wanted)}"
    if info.offset != wanted.storage_offset():
        return f"offset {info.offset}, PyTorch has {wanted.storage_offset()}"
    data = packed_bytes(wanted)
    if len(data) <= BYTES_MAX and not name.startswith(UNSET) and backend.read(handle, len(data)) != data:
        return "values differ"
    return None


class Comparer(TorchDispatchMode):
    """Catches each ATen call of a program, runs it in the backend too, and compares."""

    def __init__(self, backend: dt.Backend, run: Callable[..., Any], report: Report, only: list[str]) -> None:
        super().__init__()
        self.backend, self.run, self.report, self.only = backend, run, report, only
        self.seen: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
        if not name.startswith("aten::") or (self.only and name not in self.only) or not self.is_new(name, args):
            return func(*args, **kwargs)
        return self.call(func, name, args, kwargs)

    def is_new(self, name: str, args: Any) -> bool:
        kinds = tuple(a.dtype if isinstance(a, torch.Tensor) else type(a) for a in args)
        self.seen[name, kinds] += 1
        return self.seen[name, kinds] <= CALLS_MAX

    def call(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        arguments = Arguments(self.backend)
        state = torch.get_rng_state()
        try:
            self.run(self.fill, func, arguments, args, kwargs)
            said = self.run(self.infer, name, arguments)
            if not torch.equal(state, torch.get_rng_state()):
                raise BrokenPromise(f"{name}: op_infer moved the random stream")
            handles, refusal = self.run(self.execute, name, arguments)
        except LeftOut as reason:
            self.report.left_out[str(reason)] += 1
            self.run(arguments.free)
            return func(*args, **kwargs)
        torch.set_rng_state(state)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self.finish_refused(name, refusal, error)
            self.run(self.free, arguments, handles)
            raise
        self.run(self.finish, name, arguments, handles, refusal, result, said)
        self.run(self.free, arguments, handles)
        return result

    @staticmethod
    def fill(func: Any, arguments: Arguments, args: Any, kwargs: dict[str, Any]) -> None:
        for i, schema in enumerate(func._schema.arguments):
            if i < len(args):
                arguments.add(args[i], str(schema.type))
            elif schema.name in kwargs:
                arguments.add(kwargs[schema.name], str(schema.type))
            else:
                arguments.values.append(dt.Value(dt.DEFAULT))
                arguments.questions.append(dt.Value(dt.DEFAULT))

    def infer(self, name: str, arguments: Arguments) -> Any:
        try:
            return self.backend.infer(name, arguments.questions, arguments.metas())
        except dt.BackendError as error:
            return error

    def execute(self, name: str, arguments: Arguments) -> tuple[list[int | None], dt.BackendError | None]:
        try:
            return self.backend.execute(name, arguments.values), None
        except dt.BackendError as error:
            if error.status == dt.NOT_FOUND and "not supported" in str(error):
                raise LeftOut("the table cannot hold an argument or result") from None
            return [], error

    def free(self, arguments: Arguments, handles: list[int | None]) -> None:
        for handle in handles:
            self.backend.free(handle)
        arguments.free()

    def finish_refused(self, name: str, refusal: dt.BackendError | None, error: Exception) -> None:
        self.report.calls += 1
        self.report.overloads.add(name)
        if refusal is None:
            self.report.differences.append(f"{name}: only PyTorch refuses: {error}")
        else:
            self.report.refused += 1

    def finish(self, name: str, arguments: Arguments, handles: list[int | None], refusal: dt.BackendError | None, result: Any,
               said: Any) -> None:
        report = self.report
        report.calls += 1
        report.overloads.add(name)
        report.tags.update(value.tag for value in arguments.values)
        if refusal is not None:
            report.differences.append(f"{name}: only the backend refuses: {str(refusal)[:200]}")
            return
        wanted = [as_tensor(leaf) for leaf in flatten(result)] if result is not None or handles else []
        why = self.compare(name, arguments, handles, wanted)
        if why is None:
            report.equal += 1
        elif name in KNOWN:
            report.known[name] += 1
        else:
            report.differences.append(f"{name}: {why}")
        self.judge_inferred(name, arguments, handles, said)

    def compare(self, name: str, arguments: Arguments, handles: list[int | None], wanted: list[Any]) -> str | None:
        if len(handles) != len(wanted):
            return f"{len(handles)} results, PyTorch has {len(wanted)}"
        for i, (handle, tensor) in enumerate(zip(handles, wanted)):
            why = compare_result(self.backend, handle, tensor, name)
            if why:
                return f"result {i}: {why}"
        for i, (tensor, handle) in enumerate(arguments.tensors):
            why = compare_result(self.backend, handle, tensor, name)
            if why:
                return f"tensor {i} afterwards: {why}"
        return None

    def judge_inferred(self, name: str, arguments: Arguments, handles: list[int | None], said: Any) -> None:
        report = self.report
        if isinstance(said, dt.BackendError):
            report.inferred["no answer" if said.status == dt.AGAIN else "refused"] += 1
            if said.status != dt.AGAIN:
                report.infer_differences.setdefault(name, f"refuses what is executed: {str(said)[:160]}")
            return
        why = self.compare_inferred(arguments, handles, said)
        report.inferred["right" if why is None else "wrong"] += 1
        if why:
            report.infer_differences.setdefault(name, why)

    def compare_inferred(self, arguments: Arguments, handles: list[int | None], said: list[dt.Output]) -> str | None:
        if len(said) != len(handles):
            return f"{len(said)} results said, {len(handles)} came"
        storages = [self.backend.tensor(handle).storage for _, handle in arguments.tensors]
        for i, (output, handle) in enumerate(zip(said, handles)):
            if handle is None or output.alias == dt.NO_TENSOR:
                if handle is not None or output.alias != dt.NO_TENSOR:
                    return f"result {i}: only one of them is undefined"
                continue
            info = self.backend.tensor(handle)
            if describe(output.meta) != describe(info.meta):
                return f"result {i}: said {describe(output.meta)}, came {describe(info.meta)}"
            same = [k for k, (_, h) in enumerate(arguments.tensors) if h == handle]
            shared = [k for k, storage in enumerate(storages) if storage == info.storage]
            is_right = (output.input in same if output.alias == dt.IN_PLACE
                        else output.input in shared and not same if output.alias == dt.VIEW else not shared)
            if not is_right:
                return f"result {i}: said alias {output.alias} of {output.input}, shares with {shared}, is {same}"
        return None


def program_of_database(mode: Comparer, failures: Counter[str]) -> None:
    """Run the first samples of each entry of PyTorch's operator database."""
    from torch.testing._internal.common_methods_invocations import op_db

    plan = [(torch.float32, 2, True), (torch.int64, 1, False), (torch.bool, 1, False), (torch.complex64, 1, False),
            (torch.bfloat16, 1, False)]
    for entry in op_db:
        for dtype, count, is_backward in plan:
            if dtype in entry.supported_dtypes("cpu"):
                run_samples(mode, entry, dtype, count, is_backward and entry.supports_autograd, failures)


def run_samples(mode: Comparer, entry: Any, dtype: torch.dtype, count: int, is_backward: bool, failures: Counter[str]) -> None:
    torch.manual_seed(1)
    try:
        samples = entry.sample_inputs("cpu", dtype, requires_grad=is_backward)
        for _, sample in zip(range(count), samples):
            with mode:
                result = entry(sample.input, *sample.args, **sample.kwargs)
                leaves = [t for t in flatten(result) if isinstance(t, torch.Tensor) and t.requires_grad]
                if is_backward and leaves:
                    torch.autograd.backward(leaves, [torch.ones_like(t) for t in leaves])
    except Exception as error:
        failures[f"{entry.name}: {type(error).__name__}"] += 1


def program_of_kinds(mode: Comparer) -> None:
    """Calls whose kinds of arguments the database does not have."""
    a = torch.ops.aten
    x = torch.randn(2, 3, 8, 8)
    z = torch.randn(4, dtype=torch.complex64)
    calls: list[Callable[[], Any]] = [
        lambda: a.upsample_nearest2d.vec(x, None, [2.0, 1.5]),
        lambda: a._foreach_add.ScalarList([x, x[0]], [1, 2.5]),
        lambda: a._foreach_mul_.ScalarList([x.clone(), x[0].clone()], [True, 2.5]),
        lambda: a.convolution_backward(x, x, torch.randn(3, 3, 1, 1), [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, True]),
        lambda: a.index.Tensor(x, [None, torch.tensor([0, 2])]),
        lambda: a.index_put(x, [torch.tensor([1]), None, torch.tensor([3])], torch.tensor(1.0), True),
        lambda: a.mul.Tensor(z, 1 + 2j),
        lambda: a.add.Scalar(z, 2j),
        lambda: a.set_.source_Storage_storage_offset(torch.empty(0), x.untyped_storage(), 5, [3, 2], [2, 4]),
        lambda: a.max_pool2d_with_indices(x, 2),
        lambda: a.empty.memory_format([2, 3, 4, 5], dtype=torch.bfloat16, memory_format=torch.channels_last),
        lambda: a.zeros([2], dtype=torch.int16, layout=torch.strided, device=torch.device("cpu"), pin_memory=False),
        lambda: a._to_copy(x, dtype=torch.float16, memory_format=torch.channels_last),
        lambda: a.gelu(x, approximate="tanh"),
        lambda: a.div.Tensor_mode(x, 3, rounding_mode="floor"),
        lambda: a._local_scalar_dense(torch.tensor(7)),
        lambda: a.equal(x, x),
        lambda: a._conj(z),
        lambda: a.resolve_conj(z.conj()),
        lambda: a.imag(z.conj()) if hasattr(a, "imag") else None,
        lambda: a.add.Tensor(x, 2), lambda: a.add.Tensor(torch.tensor([1]), 2.5), lambda: a.add.out(x, x, out=torch.empty(0)),
        lambda: a.sort.stable(x, stable=True, dim=1, descending=True),
        lambda: a.split_with_sizes(x, [1, 2], 1), lambda: a.unbind.int(x), lambda: a.chunk(x, 2) if hasattr(a, "chunk") else None,
        lambda: a.native_layer_norm_backward(x, x, [8], x.new_zeros(2, 3, 8, 1), x.new_ones(2, 3, 8, 1), None, None, [True, False, False]),
        lambda: a.bernoulli.p(x, 0.5), lambda: a.native_dropout(x, 0.5, True), lambda: a.randn([5]), lambda: a.randperm(9),
        lambda: a.arange.start_step(0.0, 1.0, 0.1), lambda: a.linspace(0, 1, 7), lambda: a.full([2], 3 + 1j),
        lambda: a.mm(x[0, 0], x[0, 0, 0]), lambda: a.select.int(x, 0, 9), lambda: a.linalg_inv_ex(torch.zeros(2, 2), check_errors=True),
        lambda: a.histc(x), lambda: a.histogram.bin_ct(x, 4),
    ]
    for call in calls:
        try:
            with mode:
                call()
        except Exception:
            pass  # both refuse: counted by the mode


def check_generators(backend: dt.Backend) -> list[str]:
    """Explicit random streams and streams used by default draw as PyTorch's generators do."""
    bad = []
    arguments = Arguments(backend)

    def draw(stream: int | None) -> bytes:
        name = "aten::randn" if stream is None else "aten::randn.generator"
        values = [arguments.ints([6])]
        if stream is not None:
            values.append(arguments.simple(dt.GENERATOR, number=stream))
        (handle,) = backend.execute(name, values)
        data = backend.read(handle, 24)
        backend.free(handle)
        return data

    def wanted(seed: int, count: int) -> list[bytes]:
        generator = torch.Generator().manual_seed(seed)
        return [packed_bytes(torch.randn(6, generator=generator)) for _ in range(count)]

    backend.seed(5, 42)
    backend.seed(6, 43)
    got = [draw(5), draw(6), draw(5)]
    if [got[0], got[2]] != wanted(42, 2) or got[1] != wanted(43, 1)[0]:
        bad.append("explicit streams differ from torch.Generator")
    backend.use(5)
    got = [draw(None), draw(5)]
    backend.use(6)
    got.append(draw(None))
    backend.use(5)
    got.append(draw(None))
    five, six = wanted(42, 5), wanted(43, 2)
    if got != [five[2], five[3], six[1], five[4]]:
        bad.append("streams used by default differ from torch.Generator")
    return bad


def check_errors(backend: dt.Backend) -> list[str]:
    """Errors carry PyTorch's class; the next call works."""
    bad = []
    arguments = Arguments(backend)
    x = arguments.simple(dt.TENSOR, pointer=arguments.tensor(torch.randn(3)))
    wanted = [("aten::select.int", [x, arguments.number(0), arguments.number(9)], 2),
              ("aten::mm", [x, x], 1), ("aten::add.Tensor", [x, arguments.text("no")], 4), ("aten::add.Tensor", [x], 4),
              ("aten::add.Tensor", [x] * 9, 4), ("aten::linalg_inv", [x], 1)]
    for name, values, kind in wanted:
        try:
            backend.execute(name, values)
            bad.append(f"{name}: does not refuse")
        except dt.BackendError as error:
            if error.kind != kind or not str(error):
                bad.append(f"{name}: kind {error.kind}, expected {kind}: {error}")
    arguments.free()
    return bad


OVERLOADS_MIN = 3000
CPU_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


def check_names(backend: dt.Backend) -> list[str]:
    """All overloads that can run on a CPU are found by name, each with arguments of kinds that can be said."""
    found, refused = 0, []
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if not name.startswith("aten::") or not torch._C._dispatch_has_kernel(name):
            continue
        if not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in CPU_KEYS):
            continue
        try:
            backend.find(name)
            found += 1
        except dt.BackendError:
            refused.append(name)
    print(f"{found} overloads with a CPU kernel can be called, {len(refused)} cannot:", " ".join(refused) or "none")
    return [] if found > OVERLOADS_MIN else [f"only {found} overloads can be called"]


def take_out_python_meta() -> None:
    """`import torch` registers Meta kernels in Python over the C++ ones; an engine has only the latter."""
    import torch._meta_registrations as registrations

    registrations._meta_lib_dont_use_me_use_register_meta._destroy()


def run_all(path: str, only: list[str]) -> int:
    start = time.monotonic()
    take_out_python_meta()
    report, failures = Report(), Counter()
    torch.set_num_threads(1)
    # One thread makes all calls of the table: it is left in inference mode, as an executor is.
    thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    backend = thread.submit(dt.Backend, path).result()

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return thread.submit(function, *arguments).result()

    mode = Comparer(backend, run, report, only)
    program_of_kinds(mode)
    program_of_database(mode, failures)
    report.tags[dt.GENERATOR] += 1
    bad = run(check_generators, backend) + run(check_errors, backend) + run(check_names, backend)
    print_report(report, failures, bad)
    passed, failed = report.equal + report.refused, len(report.differences) + len(bad)
    print(f"took {time.monotonic() - start:.0f} s")
    print(f"torch-backend: {passed} passed, {failed} failed, {sum(report.left_out.values()) + sum(report.known.values())} skipped")
    return 1 if failed or passed == 0 else 0


def print_report(report: Report, failures: Counter[str], bad: list[str]) -> None:
    names = [n for n in dir(dt) if n.isupper() and isinstance(getattr(dt, n), int)]
    kinds = {getattr(dt, n): n for n in names if n not in ("FRESH", "VIEW", "IN_PLACE", "NO_TENSOR", "OK", "INVALID")}
    for text in report.differences + bad:
        print(f"differs: {text}")
    for name, why in sorted(report.infer_differences.items()):
        print(f"op_infer: {name}: {why}")
    for name, count in sorted(report.known.items()):
        print(f"known: {name}, {count} calls: {KNOWN[name]}")
    print("left out:", ", ".join(f"{count} {why}" for why, count in report.left_out.most_common()) or "nothing")
    print("samples that PyTorch itself refused:", sum(failures.values()))
    print("kinds of arguments:", ", ".join(f"{kinds[tag]} {n}" for tag, n in sorted(report.tags.items()) if 0 <= tag < 21))
    print("op_infer:", ", ".join(f"{count} {what}" for what, count in report.inferred.most_common()))
    print(f"{report.calls} calls of {len(report.overloads)} overloads, {report.equal} equal, {report.refused} refused by both")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
