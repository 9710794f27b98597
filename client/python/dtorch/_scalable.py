"""dtorch.scalable(): one function over many items, on as many devices as there are."""

import collections
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from dtorch import _start, errors
from dtorch._future import TensorFuture, fetch
from dtorch.session import check

AHEAD = 2          # items that a device has: one is computed while the next is on its way
TURN_S = 0.001     # between two looks whether one of them is done
PROBE_S = 0.05     # between two looks whether a lost device is back
ATTEMPTS = 5       # of one item, which may be what its devices die of


def scalable(fn: Callable[..., Any], items: Iterable[Any], *, workers: int | Sequence[int] | None = None,
             each: Callable[[torch.device], Any] | None = None, patience: float = 60.0) -> list[Any]:
    """Call a function for every item, each on one of several devices, and return what it returns, in the items' order.

    fn: takes an item, and what `each` made for the device if it is given; may be called again for an item whose device was lost,
    so it should change nothing outside. Tensors of the item are on the worker's device, which is the current one; those of the
    result are on the CPU. items: read one by one as devices take them. workers: how many devices, or their indices; None: those
    of the session, or one where none has begun. each: makes what stays on a device, as a model, before its first item and again
    after it was lost.
    A device that is lost leaves the work to the others, and has its share again once the cluster has given the session another.
    Units: patience in seconds, how long there may be no device at all.
    Raises: what `fn` raises; OperatorError (an operator of it failed); LostError (no device for that long, or an item whose
    devices were lost again and again)."""
    pool = [_Worker(index, fn, each) for index in _indices(workers)]
    source, again = enumerate(items), collections.deque[_Task]()
    results: dict[int, Any] = {}
    last = time.monotonic()
    while True:
        for worker in pool:
            worker.look_for()
        is_over = _deal(pool, source, again)
        running = [worker for worker in pool if worker.tasks]
        if is_over and not running and not again:
            return [results[number] for number in range(len(results))]
        if any(worker.is_there for worker in pool):
            last = time.monotonic()
        elif time.monotonic() - last > patience:
            raise errors.LostError(f"scalable: there was no device for {patience} s, {len(results)} items were done")
        before = len(results)
        for worker in running:
            worker.collect(results, again)
        if len(results) == before:
            time.sleep(TURN_S)


class _Task:
    """An item: where it stands in the result, and how often it was begun."""

    def __init__(self, number: int, item: Any) -> None:
        self.number, self.item, self.attempts = number, item, 0


class _Worker:
    """A device, and the items that it has, oldest first."""

    def __init__(self, index: int, fn: Callable[..., Any], each: Callable[[torch.device], Any] | None) -> None:
        self.device = torch.device("dtorch", index)
        self.fn, self.each = fn, each
        self.made: tuple[Any, ...] | None = None
        self.tasks: collections.deque[tuple[_Task, Any]] = collections.deque()
        self.is_there = True
        self.probe: TensorFuture | None = None
        self.probed = 0.0

    def begin(self, task: _Task, again: "collections.deque[_Task]") -> None:
        """Issue an item's operators; nothing is waited for, unless `fn` does."""
        task.attempts += 1
        try:
            with torch.dtorch.device(self.device):  # type: ignore[attr-defined]
                if self.made is None:
                    self.made = () if self.each is None else (self.each(self.device),)
                moved = tree_map(lambda leaf: leaf.to(self.device) if isinstance(leaf, torch.Tensor) else leaf, task.item)
                leaves, shape = tree_flatten(self.fn(moved, *self.made))
                futures = [fetch(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        except errors.LostError as lost:
            self.lose(task, again, lost)
            return
        self.tasks.append((task, (futures, shape)))

    def collect(self, results: dict[int, Any], again: "collections.deque[_Task]") -> None:
        """Take the results that are here."""
        while self.tasks:
            task, (futures, shape) = self.tasks[0]
            if not all(future.done() for future in futures if isinstance(future, TensorFuture)):
                return
            self.tasks.popleft()
            try:
                values = [future.result() if isinstance(future, TensorFuture) else future for future in futures]
            except errors.LostError as lost:
                self.lose(task, again, lost)
                return
            results[task.number] = tree_unflatten(values, shape)

    def lose(self, task: _Task, again: "collections.deque[_Task]", lost: errors.LostError) -> None:
        """The device is gone, and with it the rest of what it had."""
        tasks = [task, *(other for other, _ in self.tasks)]
        self.tasks.clear()
        again.extendleft(reversed(tasks))
        self.is_there, self.made, self.probe = False, None, None
        if task.attempts >= ATTEMPTS:
            raise errors.LostError(f"scalable: item {task.number} was begun {task.attempts} times and lost each time: {lost}") from lost

    def look_for(self) -> None:
        """Whether a device that was lost is there again: it is asked for a value now and then."""
        if self.is_there:
            return
        try:
            if self.probe is None and time.monotonic() - self.probed > PROBE_S:
                self.probed = time.monotonic()
                self.probe = fetch(torch.ones(1, device=self.device))
            if self.probe is not None and self.probe.done():
                self.is_there = self.probe.result().item() == 1
                self.probe = None
        except errors.LostError:
            self.probe = None


def _deal(pool: list[_Worker], source: Iterator[tuple[int, Any]], again: "collections.deque[_Task]") -> bool:
    """Give items to those that have fewest, until all have enough. Returns whether none is left."""
    while True:
        free = [worker for worker in pool if worker.is_there and len(worker.tasks) < AHEAD]
        if not free:
            return False
        task = again.popleft() if again else next((_Task(*pair) for pair in source), None)
        if task is None:
            return True
        min(free, key=lambda worker: len(worker.tasks)).begin(task, again)


def _indices(workers: int | Sequence[int] | None) -> list[int]:
    if workers is None:
        return list(range(torch.dtorch.device_count()))  # type: ignore[attr-defined]
    chosen = list(range(workers)) if isinstance(workers, int) else list(workers)
    if not chosen or min(chosen) < 0 or len(set(chosen)) != len(chosen):
        raise ValueError(f"scalable: workers is a number of devices or different indices of them, not {workers!r}")
    check(_start.library().need(max(chosen) + 1))
    return chosen
