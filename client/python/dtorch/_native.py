"""libdtorch_torch.so by ctypes: its functions with their types, and where it lies.

The headers client/python/csrc/dtorch_device.h and explain.h say what each function does; the structures here are theirs.
"""

import ctypes as c
import pathlib
from typing import Any

ABI = 2
FOLDER = pathlib.Path(__file__).absolute().parent / "lib"

NOT_FOUND = -3
STOPPED = -12


class Python(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("version", c.c_uint32), ("gil_ensure", c.c_void_p), ("gil_release", c.c_void_p),
                ("check_signals", c.c_void_p), ("thread_state", c.c_void_p), ("fetch_error", c.c_void_p),
                ("restore_error", c.c_void_p), ("ref", c.c_void_p), ("unref", c.c_void_p), ("resolve", c.c_void_p),
                ("gil_check", c.c_void_p), ("save_thread", c.c_void_p), ("restore_thread", c.c_void_p)]


class Options(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("vdev_count", c.c_uint32), ("is_private", c.c_uint32), ("address", c.c_char_p),
                ("config_file", c.c_char_p), ("program", c.c_char_p), ("device_kind", c.c_char_p), ("bin_dir", c.c_char_p),
                ("private_devices", c.c_char_p), ("record_file", c.c_char_p), ("memory_limit_bytes", c.c_uint64),
                ("connect_timeout_ms", c.c_int64)]


class Session(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("session", c.c_uint64), ("vdev_count", c.c_uint32), ("is_connected", c.c_uint32),
                ("is_private", c.c_uint32), ("epoch", c.c_uint32), ("reconnects", c.c_uint64), ("records", c.c_uint64),
                ("bytes", c.c_uint64), ("signatures", c.c_uint64), ("queries", c.c_uint64), ("operators", c.c_uint64),
                ("hits", c.c_uint64), ("metas", c.c_uint64), ("rules", c.c_uint64), ("asked", c.c_uint64), ("waits", c.c_uint64),
                ("views", c.c_uint64), ("uploads", c.c_uint64)]


class Memory(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("allocated_bytes", c.c_uint64), ("peak_bytes", c.c_uint64),
                ("total_bytes", c.c_uint64), ("storages", c.c_uint64), ("total_storages", c.c_uint64)]


class Failure(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("status", c.c_int32), ("device", c.c_uint32), ("vdev", c.c_uint32),
                ("range_count", c.c_uint32), ("sequence", c.c_uint64), ("skipped", c.c_uint64), ("kind", c.c_char * 32),
                ("text", c.c_char * 4097), ("operator_name", c.c_char * 256), ("inputs", c.c_char * 1025),
                ("place", c.c_char * 1024), ("node", c.c_char * 64), ("range", (c.c_char * 128) * 16)]


RESOLVE = c.PYFUNCTYPE(c.c_int, c.py_object, c.c_uint64, c.c_void_p, c.c_size_t)

# Result and arguments of each function. Those that never wait keep the GIL (PyDLL): it costs less than to give it up.
QUICK: dict[str, tuple[Any, list[Any]]] = {
    "dt_device_abi": (c.c_uint32, []),
    "dt_device_torch_version": (c.c_char_p, []),
    "dt_device_error": (c.c_char_p, []),
    "dt_device_python": (c.c_int, [c.POINTER(Python)]),
    "dt_device_exception": (c.c_int, [c.c_char_p, c.py_object]),
    "dt_device_here": (c.c_int, [c.c_char_p, c.c_size_t]),
    "dt_device_configure": (c.c_int, [c.POINTER(Options)]),
    "dt_device_is_connected": (c.c_int, []),
    "dt_device_count": (c.c_int, []),
    "dt_device_current": (c.c_int, []),
    "dt_device_set_current": (c.c_int, [c.c_int]),
    "dt_device_is_forked": (c.c_int, []),
    "dt_device_need": (c.c_int, [c.c_int]),
    "dt_device_memory": (c.c_int, [c.c_int, c.POINTER(Memory)]),
    "dt_device_memory_reset_peak": (c.c_int, [c.c_int]),
    "dt_device_initial_seed": (c.c_uint64, [c.c_int]),
    "dt_device_failure": (c.c_int, [c.POINTER(Failure)]),
    "dt_device_explain_free": (None, [c.c_char_p]),
    "dt_device_heavy_move": (c.c_int, [c.c_void_p]),
}
WAITING: dict[str, tuple[Any, list[Any]]] = {
    "dt_device_install": (c.c_int, []),
    "dt_device_take_meta": (c.c_int, []),
    "dt_device_connect": (c.c_int, []),
    "dt_device_disconnect": (c.c_int, [c.c_int64]),
    "dt_device_synchronize": (c.c_int, []),
    "dt_device_flush": (c.c_int, []),
    "dt_device_session": (c.c_int, [c.POINTER(Session)]),
    "dt_device_binding": (c.c_int, [c.c_int, c.c_char_p, c.c_size_t]),
    "dt_device_seed": (c.c_int, [c.c_int, c.c_uint64]),
    "dt_device_rng_state": (c.c_int, [c.c_int, c.c_void_p, c.POINTER(c.c_size_t)]),
    "dt_device_set_rng_state": (c.c_int, [c.c_int, c.c_void_p, c.c_size_t]),
    "dt_device_range_begin": (c.c_int, [c.c_char_p]),
    "dt_device_range_end": (c.c_int, []),
    "dt_device_step": (c.c_int, [c.c_uint64]),
    "dt_device_explain_begin": (c.c_int, []),
    "dt_device_explain_end": (c.c_int, [c.POINTER(c.c_char_p)]),
    "dt_device_bench_add": (c.c_double, [c.c_int]),
    "dt_device_bench_hit": (c.c_double, [c.c_int]),
    "dt_device_bench_place": (c.c_double, [c.c_int]),
}


class Library:
    """The loaded library: its functions, by their names without "dt_device_"."""

    def __init__(self, path: pathlib.Path) -> None:
        """Load it.

        Raises: OSError (not there, or for another LibTorch), ImportError (of another version than this package)."""
        self.path = path
        for table, handle in ((QUICK, c.PyDLL(str(path))), (WAITING, c.CDLL(str(path)))):
            for name, (result, arguments) in table.items():
                function = getattr(handle, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name.removeprefix("dt_device_"), function)
        if self.abi() != ABI:
            raise ImportError(f"{path} has interface {self.abi()}, this package needs {ABI}: install them together again")

    def __getattr__(self, name: str) -> Any:  # for type checkers: functions are set in __init__
        raise AttributeError(name)

    def why(self) -> str:
        """What the last function that failed on this thread said."""
        return self.error().decode(errors="replace")


def built_for() -> str:
    """Version of PyTorch, "2.11.0", that the library beside this package was built with; "" if there is no library."""
    try:
        return (FOLDER / "torch-version").read_text().strip()
    except OSError:
        return ""
