"""The C table of lib/device/backend.h for Python, by ctypes: opens a backend and calls operators."""

import ctypes as c

DIM_MAX = 16
LINK_MAX = 64
RESULT_MAX = 4096
(DEFAULT, NONE, FALSE, TRUE, INT, DOUBLE, COMPLEX, STR, TENSOR, INTS, DOUBLES, BOOLS, TENSORS, VALUES, STRS, DTYPE, LAYOUT,
 MEMORY_FORMAT, DEVICE, GENERATOR, STORAGE) = range(21)
FRESH, VIEW, IN_PLACE, NO_TENSOR = range(4)
OK, INVALID, NOT_FOUND, AGAIN, LIMIT = 0, -2, -3, -5, -8


class Error(c.Structure):
    _fields_ = [("code", c.c_int), ("source", c.c_char_p), ("source_code", c.c_int64), ("text", c.c_char * 512)]


class Meta(c.Structure):
    _fields_ = [("dtype", c.c_uint8), ("ndim", c.c_uint8), ("layout", c.c_uint8), ("sizes", c.c_int64 * DIM_MAX),
                ("strides", c.c_int64 * DIM_MAX)]


class Payload(c.Union):
    _fields_ = [("number", c.c_int64), ("real", c.c_double), ("pointer", c.c_void_p)]


class Value(c.Structure):
    _fields_ = [("tag", c.c_uint8), ("index", c.c_int16), ("count", c.c_uint32), ("as_", Payload)]


class Link(c.Structure):
    _fields_ = [("peer", c.c_int32), ("kind", c.c_int32), ("lanes", c.c_uint32)]


class DeviceInfo(c.Structure):
    _fields_ = [("uuid", c.c_char * 64), ("kind", c.c_char * 16), ("name", c.c_char * 96), ("pci_address", c.c_char * 32),
                ("driver", c.c_char * 64), ("nvlink_domain", c.c_char * 64), ("health_text", c.c_char * 256),
                ("memory_bytes", c.c_uint64), ("memory_used_bytes", c.c_uint64), ("ecc_uncorrected", c.c_uint64),
                ("throttle_reasons", c.c_uint64), ("numa_node", c.c_int32), ("health", c.c_int32),
                ("utilization_percent", c.c_uint32), ("temperature_c", c.c_uint32), ("link_count", c.c_int32),
                ("links", Link * LINK_MAX)]


class Options(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("spec", c.c_char_p), ("root", c.c_char_p), ("seed", c.c_char_p),
                ("faults", c.c_char_p), ("library", c.c_char_p)]


class Memory(c.Structure):
    _fields_ = [("alloc", c.c_void_p), ("release", c.c_void_p), ("arg", c.c_void_p)]


class DeviceOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("info", c.POINTER(DeviceInfo)), ("memory", c.POINTER(Memory)),
                ("threads", c.c_int32)]


class Output(c.Structure):
    _fields_ = [("alias", c.c_uint8), ("input", c.c_uint32), ("meta", Meta)]


class TensorInfo(c.Structure):
    _fields_ = [("meta", Meta), ("offset", c.c_int64), ("storage", c.c_void_p), ("storage_bytes", c.c_uint64),
                ("data", c.c_void_p)]


P, E, U32, U64 = c.c_void_p, c.POINTER(Error), c.c_uint32, c.c_uint64


def entry(*arguments: object) -> object:
    return c.CFUNCTYPE(c.c_int, *arguments)


class Table(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("abi", c.c_int32), ("name", c.c_char_p),
        ("open", entry(c.POINTER(Options), c.POINTER(P), E)),
        ("enumerate", entry(P, c.POINTER(DeviceInfo), c.c_int32, c.POINTER(c.c_int32), E)),
        ("refresh", P), ("close", P),
        ("device_open", entry(P, c.POINTER(DeviceOptions), c.POINTER(P), E)), ("device_close", P),
        ("op_find", entry(P, c.c_char_p, c.POINTER(P), E)),
        ("op_execute", entry(P, P, c.POINTER(Value), U32, c.POINTER(P), U32, c.POINTER(U32), E)),
        ("op_infer", entry(P, P, c.POINTER(Value), U32, c.POINTER(Meta), U32, c.POINTER(Output), U32, c.POINTER(U32), E)),
        ("tensor_create", entry(P, c.POINTER(Meta), c.POINTER(P), E)),
        ("tensor_info", entry(P, P, c.POINTER(TensorInfo), E)),
        ("tensor_write", entry(P, P, U64, P, c.c_size_t, E)),
        ("tensor_read", entry(P, P, U64, P, c.c_size_t, E)),
        ("tensor_free", c.CFUNCTYPE(None, P, P)),
        ("generator_seed", entry(P, U32, U64, U64, E)),
        ("generator_use", entry(P, U32, E)),
        ("generator_free", c.CFUNCTYPE(None, P, U32)),
        ("device_sync", P), ("op_expect", P),
        ("op_rehearse", entry(P, P, c.POINTER(Value), U32, c.POINTER(Meta), U32, c.POINTER(Output), U32, c.POINTER(U32), E)),
        ("op_output_count", P), ("tensor_is", c.CFUNCTYPE(c.c_bool, P, P, c.POINTER(Meta), c.POINTER(P)))]


class BackendError(Exception):
    """What an entry returned, with its text. `status` is a dt_status_t, `kind` a dt_backend_error_t."""

    def __init__(self, status: int, error: Error) -> None:
        super().__init__(error.text.decode(errors="replace"))
        self.status = status
        self.kind = error.source_code


class Backend:
    """A shared object with its first device open. All calls must come from one thread.

    Raises BackendError where an entry fails; nothing is then left behind.
    """

    def __init__(self, path: str) -> None:
        library = c.CDLL(path)
        library.dt_backend_get.restype = c.POINTER(Table)
        self.table = library.dt_backend_get(1).contents
        libc = c.CDLL(None)
        # aligned_alloc(alignment, size) has the shape of alloc(arg, size)
        self.memory = Memory(c.cast(libc.aligned_alloc, P), c.cast(libc.free, P), 64)
        self.context, self.device = P(), P()
        options = Options(c.sizeof(Options), b"", b"", b"seed", b"", b"")
        self.check(self.table.open, c.byref(options), c.byref(self.context))
        devices, count = (DeviceInfo * 4)(), c.c_int32()
        self.check(self.table.enumerate, self.context, devices, 4, c.byref(count))
        self.info = devices[0]
        opened = DeviceOptions(c.sizeof(DeviceOptions), c.pointer(self.info), c.pointer(self.memory), 1)
        self.check(self.table.device_open, self.context, c.byref(opened), c.byref(self.device))
        self.ops: dict[str, P] = {}

    @staticmethod
    def check(function: object, *arguments: object) -> None:
        error = Error()
        status = function(*arguments, c.byref(error))
        if status != OK:
            raise BackendError(status, error)

    def find(self, name: str) -> P:
        if name not in self.ops:
            op = P()
            self.check(self.table.op_find, self.device, name.encode(), c.byref(op))
            self.ops[name] = op
        return self.ops[name]

    def execute(self, name: str, values: list[Value]) -> list[int | None]:
        """Run an operator. Returns handles, None for undefined results; free() each that is not None."""
        results, count = (P * RESULT_MAX)(), U32()
        array = (Value * max(len(values), 1))(*values)
        self.check(self.table.op_execute, self.device, self.find(name), array, len(values), results, RESULT_MAX, c.byref(count))
        return [results[i] for i in range(count.value)]

    def infer(self, name: str, values: list[Value], metas: list[Meta]) -> list[Output]:
        outputs, count = (Output * RESULT_MAX)(), U32()
        array = (Value * max(len(values), 1))(*values)
        inputs = (Meta * max(len(metas), 1))(*metas)
        asked = (self.device, self.find(name), array, len(values), inputs, len(metas), outputs, RESULT_MAX, c.byref(count))
        try:
            self.check(self.table.op_infer, *asked)
        except BackendError as refusal:
            if refusal.status != AGAIN:
                raise
            self.check(self.table.op_rehearse, *asked)
        return [Output.from_buffer_copy(outputs[i]) for i in range(count.value)]

    def create(self, dtype: int, sizes: list[int], data: bytes) -> int:
        """Make a contiguous tensor that holds `data`."""
        meta, tensor = Meta(dtype, len(sizes), 0), P()
        stride = 1
        for i in reversed(range(len(sizes))):
            meta.sizes[i], meta.strides[i] = sizes[i], stride
            stride *= max(sizes[i], 1)
        self.check(self.table.tensor_create, self.device, c.byref(meta), c.byref(tensor))
        self.check(self.table.tensor_write, self.device, tensor, 0, data, len(data))
        return tensor.value

    def tensor(self, handle: int) -> TensorInfo:
        info = TensorInfo()
        self.check(self.table.tensor_info, self.device, handle, c.byref(info))
        self.glance(handle, info)
        return info

    def glance(self, handle: int, info: TensorInfo) -> None:
        """tensor_is must say what tensor_info tells, and refuse what differs in one thing."""
        def is_so(meta: Meta | None) -> bool:
            storage = P()
            found = self.table.tensor_is(self.device, handle, meta and c.byref(meta), c.byref(storage))
            assert not found or storage.value == info.storage, "tensor_is names another storage"
            return found

        other = Meta.from_buffer_copy(info.meta)
        other.dtype += 1
        assert is_so(None) and is_so(info.meta) and not is_so(other), "tensor_is disagrees with tensor_info"
        if info.meta.ndim > 0:
            other = Meta.from_buffer_copy(info.meta)
            other.strides[0] += 1
            assert not is_so(other), "tensor_is does not look at strides"

    def read(self, handle: int, size: int) -> bytes:
        data = c.create_string_buffer(max(size, 1))
        self.check(self.table.tensor_read, self.device, handle, 0, data, size)
        return data.raw[:size]

    def free(self, handle: int | None) -> None:
        if handle is not None:
            self.table.tensor_free(self.device, handle)

    def seed(self, stream: int, seed: int) -> None:
        self.check(self.table.generator_seed, self.device, stream, seed, 0)

    def use(self, stream: int) -> None:
        self.check(self.table.generator_use, self.device, stream)
