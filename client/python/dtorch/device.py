"""The device's module, torch.dtorch: what torch.cuda is for CUDA.

Everything is ordered as the program issued it, so there is one stream on each device; Stream and Event are there for programs
that use them. Indices are the session's virtual devices."""

import ctypes as c
import time
from typing import Any

import torch

from dtorch import _native, _start, errors
from dtorch.session import check

__all__ = [
    "Event", "Stream", "StreamContext", "current_device", "current_stream", "default_stream", "device",
    "device_count", "device_of", "empty_cache", "get_amp_supported_dtype", "get_device_capability", "get_device_name",
    "get_device_properties", "get_rng_state", "get_rng_state_all", "init", "initial_seed", "is_available", "is_bf16_supported",
    "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_stats", "memory_summary", "reset_accumulated_memory_stats",
    "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_rng_state", "set_rng_state_all", "set_stream", "stream",
    "synchronize"]

Device = torch.device | str | int | None


def _index(which: Any, optional: bool = True) -> int:
    """The index that a user's way to name a device means; None and "dtorch": the current one.

    Raises: ValueError (another type of device), Error (no such index)."""
    if isinstance(which, int):
        index = which
    elif which is None:
        index = -1
    else:
        named = torch.device(which) if isinstance(which, str) else getattr(which, "device", which)
        if named.type != "dtorch":
            raise ValueError(f"Expected a dtorch device, but got: {named}")
        index = -1 if named.index is None else named.index
    if index < 0:
        return _start.library().current()
    if index >= device_count():
        kind = errors.BegunError if is_initialized() else errors.Error
        raise kind(f"there is no dtorch:{index}: the session has {device_count()} devices; say "
                   f"dtorch.configure(devices={index + 1}) before the device is used first")
    return index


# ---- devices ----


def is_available() -> bool:
    """Whether the device can be used here. Connects to nothing, so a cluster that does not answer shows later."""
    return _start.is_loaded()


def is_initialized() -> bool:
    """Whether the session has begun."""
    return bool(_start.library().is_connected())


def init() -> None:
    """Begin the session now. Raises: UnreachableError, DeniedError, ForkedError."""
    check(_start.library().connect())


_lazy_init = init


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # what activation checkpointing asks before it keeps random states
        return is_initialized()
    raise AttributeError(f"module 'torch.dtorch' has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    return bool(_start.library().is_forked())


def device_count() -> int:
    """How many device indices there are."""
    return _start.library().count()


def current_device() -> int:
    """The index that "dtorch" without a number means on this thread."""
    return _start.library().current()


def set_device(device: Device) -> None:
    """Make an index the current one of this thread. Raises: Error (no such index)."""
    check(_start.library().set_current(_index(device)))


class device:  # noqa: N801  (PyTorch's name)
    """Context manager: an index is the current one within; None and negative: nothing changes."""

    def __init__(self, device: Any = None) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> "device":
        self.prev_idx = current_device()
        if self.idx >= 0:
            set_device(self.idx)
        return self

    def __exit__(self, *_: Any) -> None:
        if self.idx >= 0:
            set_device(self.prev_idx)


class device_of(device):  # noqa: N801
    """Context manager: the device of a tensor is the current one within; nothing changes for tensors of other devices."""

    def __init__(self, tensor: Any) -> None:
        super().__init__(tensor.device.index if tensor.device.type == "dtorch" else None)


def get_device_name(device: Device = None) -> str:
    """Where an index leads: "node03 cpu:0". Begins the session."""
    index = _index(device)
    init()
    text = c.create_string_buffer(256)
    check(_start.library().binding(index, text, len(text)))
    return text.value.decode(errors="replace")


def get_device_properties(device: Device = None) -> Any:
    """An object with name and total_memory (0: not limited by the session)."""
    return _Properties(get_device_name(device))


class _Properties:
    def __init__(self, name: str) -> None:
        self.name, self.total_memory, self.major, self.minor = name, 0, 0, 0

    def __repr__(self) -> str:
        return f"DtorchDeviceProperties(name={self.name!r})"


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """CUDA's (major, minor) has no meaning here: always (0, 0)."""
    return (0, 0)


def synchronize(device: Device = None) -> None:
    """Wait until everything that was issued so far has been executed. An operator's error is raised by the fetch of a value."""
    check(_start.library().synchronize())


# ---- one stream a device ----


class Stream:
    """Stands for the one stream that a device has. Everything on it is in the program's order already."""

    def __init__(self, device: Device = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("dtorch", _index(device))
        self.device_index, self.stream_id, self.priority = self.device.index, 0, 0

    def synchronize(self) -> None:
        """Wait until everything that was issued so far has been executed."""
        synchronize(self.device)

    def query(self) -> bool:
        """Whether everything issued so far has been executed. Asks the device, and waits for its answer at most 20 ms."""
        return self.record_event()._wait(0.02)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Put an event here in the stream; returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        """Nothing to do: what follows comes after all events anyhow."""

    def wait_stream(self, stream: "Stream") -> None:
        """Nothing to do, as wait_event()."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)

    def __repr__(self) -> str:
        return f"<torch.dtorch.Stream device={self.device}>"


class Event:
    """A place in the stream. With enable_timing, record() waits for the device, so that elapsed_time() means something."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self.enable_timing = enable_timing
        self._future: Any = None
        self._seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Put it here in the stream."""
        from dtorch._future import fetch

        index = current_device() if stream is None else stream.device.index
        self._future = fetch(torch.zeros((), device=torch.device("dtorch", index)))
        if self.enable_timing:
            self._future.result()
            self._seconds = time.perf_counter()

    def _wait(self, seconds: float) -> bool:
        try:
            self._future.result(seconds)
        except errors.WaitTimeout:
            return False
        return True

    def query(self) -> bool:
        """Whether everything before it has been executed; true of one that was not recorded."""
        return self._future is None or self._future.done()

    def synchronize(self) -> None:
        """Wait until everything before it has been executed."""
        if self._future is not None:
            self._future.result()

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing to do: what follows comes after it anyhow."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this event to another. Raises: ValueError (enable_timing was not given, or not recorded)."""
        if self._seconds is None or end._seconds is None:
            raise ValueError("both events must be made with enable_timing=True and be recorded")
        return (end._seconds - self._seconds) * 1e3


class StreamContext:
    """Context manager that changes nothing but the current device."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._device = device(None if stream is None else stream.device)

    def __enter__(self) -> Stream | None:
        self._device.__enter__()
        return self.stream

    def __exit__(self, *_: Any) -> None:
        self._device.__exit__()


def stream(stream: Stream | None) -> StreamContext:
    """A context manager for a stream, as torch.cuda.stream()."""
    return StreamContext(stream)


def current_stream(device: Device = None) -> Stream:
    """The stream of a device."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream: Stream | None) -> None:
    """Make the stream's device the current one."""
    if stream is not None:
        set_device(stream.device)


# ---- random numbers ----


def manual_seed(seed: int) -> None:
    """Seed the current device's generator: the same numbers as one CPU device draws."""
    check(_start.library().seed(current_device(), int(seed) & (2**64 - 1)))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; torch.manual_seed() calls it."""
    check(_start.library().seed(-1, int(seed) & (2**64 - 1)))


def _fresh_seed() -> int:
    return torch.Generator().seed()


def seed() -> None:
    """Seed the current device's generator with a number that nobody knows."""
    manual_seed(_fresh_seed())


def seed_all() -> None:
    """Seed the generators of all devices with a number that nobody knows."""
    manual_seed_all(_fresh_seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _start.library().initial_seed(current_device())


def get_rng_state(device: Device = "dtorch") -> torch.Tensor:
    """State of a device's generator.

    Shapes: (bytes,), uint8, on the CPU. It is the state of a CPU generator too."""
    index, size = _index(device), c.c_size_t(0)
    _start.library().rng_state(index, None, c.byref(size))
    state = torch.empty(size.value, dtype=torch.uint8)
    check(_start.library().rng_state(index, state.data_ptr(), c.byref(size)))
    return state


def set_rng_state(new_state: torch.Tensor, device: Device = "dtorch") -> None:
    """Set the state of a device's generator. Shapes: as get_rng_state() gave it, or torch.get_rng_state()."""
    state = new_state.detach().to("cpu", torch.uint8).contiguous()
    check(_start.library().set_rng_state(_index(device), state.data_ptr(), state.numel()))


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' generators, by index."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Set the states of all devices' generators, by index."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# ---- memory: of the program's storages, as it has made them ----


def _memory(device: Device) -> _native.Memory:
    stats = _native.Memory(struct_size=c.sizeof(_native.Memory))
    check(_start.library().memory(_index(device), c.byref(stats)))
    return stats


def memory_stats(device: Device = None) -> dict[str, int]:
    """Counters under torch.cuda's names. Nothing is cached on the program's side, so reserved is what is allocated."""
    stats = _memory(device)
    current, peak, total = stats.allocated_bytes, stats.peak_bytes, stats.total_bytes
    result = {"allocation.all.current": stats.storages, "allocation.all.allocated": stats.total_storages,
              "allocation.all.freed": stats.total_storages - stats.storages, "num_ooms": 0, "num_alloc_retries": 0}
    for what in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"):
        result |= {f"{what}.all.current": current, f"{what}.all.peak": peak, f"{what}.all.allocated": total,
                   f"{what}.all.freed": total - current}
    return dict(sorted(result.items()))


def memory_allocated(device: Device = None) -> int:
    """Bytes of the program's storages on a device."""
    return _memory(device).allocated_bytes


def max_memory_allocated(device: Device = None) -> int:
    """The most that memory_allocated() has been since the start, or the last reset_peak_memory_stats()."""
    return _memory(device).peak_bytes


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let max_memory_allocated() begin anew from what is allocated now."""
    check(_start.library().memory_reset_peak(_index(device)))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Nothing to do: totals go on."""


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """memory_stats() for people."""
    stats = memory_stats(device)
    names = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "allocation.all.current")
    return "\n".join(f"{name:32} {stats[name]:>16,}" for name in names)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes are the cluster's to know: not told to programs. Raises: NotImplementedError."""
    raise NotImplementedError("torch.dtorch.mem_get_info: see `dtorchctl device list` for what a device has")


def empty_cache() -> None:
    """Send what is waiting to go out: memory is freed on the device in the stream, nothing is cached here."""
    check(_start.library().flush())


def ipc_collect() -> None:
    """Nothing to do."""


# ---- autocast ----


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What torch.autocast("dtorch") takes."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always."""
    return True


class _utils:  # noqa: N801  (torch.random and torch.serialization ask for it by this name)
    @staticmethod
    def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
        if allow_cpu and str(device).startswith("cpu"):
            return -1
        return _index(device)
