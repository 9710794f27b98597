"""The program's session with the cluster: where, and how it goes."""

import ctypes as c
from typing import Any

from dtorch import _native, _start, errors

__all__ = ["configure", "connect", "disconnect", "session_info"]


def check(status: int) -> int:
    """Raise the exception for a negative status, else return it."""
    if status < 0:
        library = _start.library()
        raise errors.from_status(status, library.why())
    return status


def configure(*, address: str | None = None, devices: int = 0, private: bool = False, program: str | None = None,
              device_kind: str | None = None, memory_limit: int = 0, config_file: str | None = None,
              record_file: str | None = None, bin_dir: str | None = None, private_devices: str | None = None,
              connect_timeout: float = 0) -> None:
    """Say where to connect, before the device is used for the first time.

    address: "host:port" or a unix socket's path, before DTORCH_ADDRESS and client.conf(5). devices: how many device indices
    there are, 0 = 1. private: a private cluster even if an address is configured. device_kind: "cpu", "cuda"; "sim" for a worker's
    simulated devices, which take the time of operators and compute nothing: values are zeros. program: its name in
    lists of jobs, None = the script's.
    Units: memory_limit in bytes for each device; connect_timeout in seconds, 0 = 10, 60 for a private
    cluster.
    Raises: BegunError (see disconnect)."""
    texts: dict[str, str | None] = {
        "address": address, "config_file": config_file, "program": program, "device_kind": device_kind, "bin_dir": bin_dir,
        "private_devices": private_devices, "record_file": record_file}
    options = _native.Options(
        struct_size=c.sizeof(_native.Options), vdev_count=devices, is_private=private, memory_limit_bytes=memory_limit,
        connect_timeout_ms=round(connect_timeout * 1000),
        **{name: text.encode() for name, text in texts.items() if text is not None})
    if options.bin_dir is None:
        options.bin_dir = _start.bin_dir()
    if options.program is None:
        options.program = _start.program_name()
    check(_start.library().configure(c.byref(options)))


def connect() -> None:
    """Begin the session now, not at the first use of the device. Raises: UnreachableError, DeniedError, WaitTimeout."""
    check(_start.library().connect())


def disconnect(timeout: float | None = None) -> None:
    """End the session after all that was submitted has been executed; its tensors are gone. The next use begins another one.

    Units: seconds, None: no limit. Raises: the OperatorError that no fetch has raised yet, WaitTimeout."""
    status = _start.library().disconnect(-1 if timeout is None else round(timeout * 1000))
    if status < 0:
        failure = errors.last_failure()
        raise failure if failure is not None else errors.from_status(status, _start.library().why())


def session_info() -> dict[str, Any]:
    """Counters of the session: "operators", "hits" (metadata known), "waits", "records", "bytes", "queries", "reconnects" ...

    Empty before the first use of the device."""
    info = _native.Session(struct_size=c.sizeof(_native.Session))
    if not _start.library().is_connected():
        return {}
    check(_start.library().session(c.byref(info)))
    return {name: getattr(info, name) for name, _ in info._fields_ if name != "struct_size"}
