"""libdtorch for Python, by ctypes: what tests need of it. The structures are those of dtorch/dtorch.h."""

import ctypes as c
from typing import Any

import dtbackend as dt

PRIVATE = 1
NOT_FOUND, LOST = -3, -11
OUTPUT_MAX = 64


class ConnectOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("flags", c.c_uint32), ("vdev_count", c.c_uint32), ("address", c.c_char_p),
                ("config_file", c.c_char_p), ("certificate", c.c_char_p), ("key", c.c_char_p),
                ("certificate_authority", c.c_char_p), ("program", c.c_char_p), ("device_kind", c.c_char_p),
                ("backend", c.c_char_p), ("memory_limit_bytes", c.c_uint64), ("bin_dir", c.c_char_p),
                ("private_devices", c.c_char_p), ("connect_timeout_ms", c.c_int64), ("linger_us", c.c_uint32),
                ("record_file", c.c_char_p)]


class Failure(c.Structure):
    _fields_ = [("error", dt.Error), ("kind", c.c_char * 32), ("text", c.c_char * 4097), ("sequence", c.c_uint64),
                ("operator_name", c.c_char * 256), ("inputs", c.c_char * 1025), ("place", c.c_char * 1024),
                ("node", c.c_char * 64), ("device", c.c_uint32), ("vdev", c.c_uint32), ("skipped", c.c_uint64),
                ("range_count", c.c_uint32), ("range", (c.c_char * 128) * 16)]


class ClientError(Exception):
    """What a function of libdtorch returned. `status` is a dt_status_t; `kind` is PyTorch's class, or ""."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


def _failed(status: int, failure: Failure) -> ClientError:
    text = failure.text.decode(errors="replace") or failure.error.text.decode(errors="replace")
    return ClientError(status, failure.kind.decode(errors="replace"), text)


class Session:
    """A session on a private cluster of one node with `devices`. Tensors are handles, to be freed by free()."""

    def __init__(self, library: str, bin_dir: str, devices: str) -> None:
        self.lib = c.CDLL(library)
        for name in ("dt_tensor_free", "dt_future_free"):
            getattr(self.lib, name).argtypes = [c.c_void_p]
            getattr(self.lib, name).restype = None
        self.lib.dt_tensor_id.argtypes = [c.c_void_p]
        self.lib.dt_tensor_id.restype = c.c_uint64
        self.session = c.c_void_p()
        options = ConnectOptions(c.sizeof(ConnectOptions), PRIVATE, bin_dir=bin_dir.encode(), program=b"programs",
                                 private_devices=devices.encode(), connect_timeout_ms=60000)
        error = dt.Error()
        status = self.lib.dt_connect(c.byref(options), c.byref(self.session), c.byref(error))
        if status != dt.OK:
            raise ClientError(status, "", error.text.decode(errors="replace"))

    def close(self) -> None:
        """End the session. Raises ClientError for an operator whose error nobody fetched."""
        failure = Failure()
        session, self.session = self.session, None
        status = self.lib.dt_disconnect(session, c.c_int64(60000), c.byref(failure))
        if status != dt.OK:
            raise _failed(status, failure)

    def upload(self, dtype: int, sizes: list[int], data: bytes) -> int:
        tensor, error = c.c_void_p(), dt.Error()
        status = self.lib.dt_tensor_from(self.session, dtype, len(sizes), (c.c_int64 * max(len(sizes), 1))(*sizes), data,
                                         c.byref(tensor), c.byref(error))
        if status != dt.OK:
            raise ClientError(status, "", error.text.decode(errors="replace"))
        return tensor.value

    def call(self, name: str, values: list[dt.Value], output_max: int = OUTPUT_MAX) -> list[int | None]:
        """Call an operator. Returns handles, None for undefined results; free() each that is not None."""
        results, count, failure = (c.c_void_p * output_max)(), c.c_uint32(), Failure()
        array = (dt.Value * max(len(values), 1))(*values)
        status = self.lib.dt_call(self.session, name.encode(), array, len(values), results, output_max, c.byref(count),
                                  c.byref(failure))
        if status != dt.OK:
            raise _failed(status, failure)
        return [results[i] for i in range(count.value)]

    def seed(self, stream: int, seed: int) -> None:
        error = dt.Error()
        if self.lib.dt_seed(self.session, stream, c.c_uint64(seed), c.c_uint64(0), c.byref(error)) != dt.OK:
            raise ClientError(error.code, "", error.text.decode(errors="replace"))

    def meta(self, tensor: int) -> dt.Meta:
        meta, failure = dt.Meta(), Failure()
        status = self.lib.dt_tensor_meta(c.c_void_p(tensor), c.byref(meta), c.byref(failure))
        if status != dt.OK:
            raise _failed(status, failure)
        return meta

    def fetch(self, tensor: int) -> Any:
        """Ask for a value as it is now; wait() gives it."""
        future, error = c.c_void_p(), dt.Error()
        status = self.lib.dt_fetch(c.c_void_p(tensor), c.byref(future), c.byref(error))
        if status != dt.OK:
            raise ClientError(status, "", error.text.decode(errors="replace"))
        return future

    def wait(self, future: Any) -> bytes:
        """The elements, row-major. Frees the future."""
        failure, data, size = Failure(), c.c_void_p(), c.c_size_t()
        status = self.lib.dt_future_wait(future, c.c_int64(60000), c.byref(failure))
        if status == dt.OK:
            status = self.lib.dt_future_data(future, c.byref(data), c.byref(size))
        result = c.string_at(data, size.value) if status == dt.OK and size.value else b""
        self.lib.dt_future_free(future)
        if status != dt.OK:
            raise _failed(status, failure)
        return result

    def read(self, tensor: int) -> bytes:
        return self.wait(self.fetch(tensor))

    def free(self, tensor: int | None) -> None:
        if tensor is not None:
            self.lib.dt_tensor_free(tensor)
