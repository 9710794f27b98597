"""Loading the device, once: what `import torch` calls at its end."""

import atexit
import ctypes as c
import os
import sys
import threading
import types
import warnings
from typing import Any

import torch

from dtorch import _native

_lock = threading.RLock()
_loaded: _native.Library | None = None
_refusal: BaseException | None = None


def autoload() -> None:
    """The entry point of the group torch.backends. Never raises: that would take PyTorch from programs that want no device;
    the first use of the device tells what is wrong instead."""
    start()


def start() -> None:
    """Load the library and register the device; at a failure register one whose use raises the reason."""
    global _loaded, _refusal
    with _lock:
        if _loaded is not None or _refusal is not None:
            return
        try:
            _check_versions()
            torch.ops.load_library(str(_native.FOLDER / "libdtorch_torch.so"))
            _loaded = _native.Library(_native.FOLDER / "libdtorch_torch.so")
            _install(_loaded)
        except Exception as cause:  # noqa: BLE001  (whatever it is, it is told at the first use)
            _loaded, _refusal = None, cause
            _register_refusal(cause)


def library() -> _native.Library:
    """The loaded library. Raises: RuntimeError with the reason why there is none."""
    if _loaded is None:
        start()
    if _loaded is None:
        raise RuntimeError(_refusal_text()) from _refusal
    return _loaded


def is_loaded() -> bool:
    """Whether the device can be used at all."""
    return _loaded is not None


def bin_dir() -> bytes | None:
    """Folder of the daemons that were installed with this package, for a private cluster; None: there are none, look elsewhere."""
    folder = _native.FOLDER.parent / "bin"
    return str(folder).encode() if folder.is_dir() and "DTORCH_BIN" not in os.environ else None


def program_name() -> bytes | None:
    """The script's name, as people see the program in lists of jobs; None: there is no script."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return None if name in ("", "-c", "-m") else name[:64].encode("ascii", "replace")


def _check_versions() -> None:
    built = _native.built_for()
    if not built:
        raise ImportError(f"{_native.FOLDER} holds no library: install the package, see docs/python.md")
    if built.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError(f"this package was built for torch {built}, this is torch {torch.__version__}: install it again")


def _install(library: _native.Library) -> None:
    from dtorch import _distribute, _explain, _place, _sharded, _torch, device, errors

    errors.install(library)
    _check(library, library.python(c.byref(_interpreter())))
    _check(library, library.install())
    _check(library, library.take_meta())
    torch.utils.rename_privateuse1_backend("dtorch")
    torch._register_device_module("dtorch", device)
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_packed_sequence=True,
                                                         for_storage=True)
    _place.probe(library)
    _torch.install()
    _sharded.install()
    _distribute.install()
    _explain.install()
    options = _native.Options(struct_size=c.sizeof(_native.Options), bin_dir=bin_dir(), program=program_name())
    _check(library, library.configure(c.byref(options)))
    atexit.register(_finish)


def _check(library: _native.Library, status: int) -> None:
    if status < 0:
        raise RuntimeError(library.why())


def _interpreter() -> _native.Python:
    from dtorch import _place

    def address(name: str) -> int | None:
        return c.cast(getattr(c.pythonapi, name), c.c_void_p).value

    return _native.Python(
        struct_size=c.sizeof(_native.Python), version=sys.hexversion, gil_ensure=address("PyGILState_Ensure"),
        gil_release=address("PyGILState_Release"), check_signals=address("PyErr_CheckSignals"),
        thread_state=address("PyGILState_GetThisThreadState"), fetch_error=address("PyErr_Fetch"),
        restore_error=address("PyErr_Restore"), ref=address("Py_IncRef"), unref=address("Py_DecRef"),
        resolve=c.cast(_place.resolve, c.c_void_p).value, gil_check=address("PyGILState_Check"),
        save_thread=address("PyEval_SaveThread"), restore_thread=address("PyEval_RestoreThread"))


def _finish() -> None:
    """At the program's end: tell of an operator's error that no fetch has raised, as nobody can any more."""
    from dtorch import errors

    if _loaded is None or _loaded.is_forked() or not _loaded.is_connected():
        return
    if _loaded.disconnect(2000) < 0:
        failure = errors.last_failure()
        if failure is not None:
            print(f"dtorch: an operator failed and its result was never asked for: {failure}", file=sys.stderr)


def _refusal_text() -> str:
    return f'the device "dtorch" cannot be used: {_refusal}'


def _register_refusal(cause: BaseException) -> None:
    """Register the device's name with nothing behind it but the reason."""
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(_refusal_text()) from cause

    try:
        torch.utils.rename_privateuse1_backend("dtorch")
        module = types.ModuleType("torch.dtorch")
        for name in ("_lazy_init", "init", "synchronize", "current_device", "set_device", "manual_seed", "get_rng_state"):
            setattr(module, name, refuse)
        module.is_available = lambda: False  # type: ignore[attr-defined]
        module.device_count = lambda: 0  # type: ignore[attr-defined]
        module._is_in_bad_fork = lambda: True  # type: ignore[attr-defined]
        module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
        torch._register_device_module("dtorch", module)
        fallback = torch.library.Library("_", "IMPL")
        fallback.fallback(refuse, "PrivateUse1")
        globals()["_keep"] = fallback
    except Exception as second:  # noqa: BLE001
        warnings.warn(f"{_refusal_text()} ({second})", stacklevel=2)
