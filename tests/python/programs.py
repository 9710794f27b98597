"""usage: programs.py BUILDDIR BACKEND [--seed=1] [--count=100] [--steps=60] [--verbose]

Runs random programs (views, writes through them, out=, resize_, set_, broadcasting, all dtypes) through libdtorch, the
controller, the agent and an engine with BACKEND ("torch" or "ref"), beside PyTorch in this process, and compares bit for
bit: values, dtype, sizes, strides; storage offset and aliasing by what writing through one tensor does to all others.

A failing program is made as short as it can be, and printed with its seed: --seed=N --count=1 runs it alone (but what the
session has learned of signatures before may matter: then run the seeds before it too).
"""

import argparse
import ctypes as c
import os
import random
import sys
import time
import warnings
from collections import Counter
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # warnings of out= tensors that are resized

import torch

import dtbackend as dt
import dtclient
import programs_make as make
from torch_backend import DTYPES, FORMATS, dtype_number, flatten, packed_bytes

Ref, Step = make.Ref, make.Step
NUMBERS = {number: getattr(torch, name) for name, number in DTYPES.items()}
CHECK_STEPS = 15  # steps between two comparisons of all values
TENSORS_MAX = 14
SHRINK_S = 120


class Values:
    """The arguments of one call for dt_call(). Keeps what they point to."""

    def __init__(self, handles: dict[int, int]) -> None:
        self.handles = handles
        self.keep: list[Any] = []

    def array(self, tag: int, kind: Any, items: list[Any], count: int | None = None) -> dt.Value:
        array = (kind * max(len(items), 1))(*items)
        self.keep.append(array)
        value = dt.Value(tag, 0, len(items) if count is None else count)
        value.as_.pointer = c.addressof(array)
        return value

    def list(self, items: list[Any], schema_type: str) -> dt.Value:
        if "Tensor" in schema_type:
            return self.array(dt.TENSORS, c.c_void_p, [None if i is None else self.handles[i.slot] for i in items])
        if "float" in schema_type:
            return self.array(dt.DOUBLES, c.c_double, items)
        return self.array(dt.INTS, c.c_int64, items)

    def value(self, item: Any, schema_type: str) -> dt.Value:
        value = dt.Value(dt.NONE)
        if isinstance(item, Ref):
            value.tag, value.as_.pointer = dt.TENSOR, self.handles[item.slot]
        elif isinstance(item, bool):
            value.tag = dt.TRUE if item else dt.FALSE
        elif isinstance(item, int):
            value.tag, value.as_.number = dt.INT, item
        elif isinstance(item, float):
            value.tag, value.as_.real = dt.DOUBLE, item
        elif isinstance(item, torch.dtype):
            value.tag, value.as_.number = dt.DTYPE, dtype_number(item)
        elif isinstance(item, torch.memory_format):
            value.tag, value.as_.number = dt.MEMORY_FORMAT, FORMATS[item]
        elif isinstance(item, str):
            return self.array(dt.STR, c.c_char, [bytes([b]) for b in item.encode()])
        elif isinstance(item, (list, tuple)):
            return self.list(list(item), schema_type)
        return value


def overload(name: str) -> Any:
    packet, _, form = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), form or "default")


def is_writing(name: str) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in overload(name)._schema.arguments)


def call_torch(name: str, args: list[Any]) -> Any:
    """Call with arguments in schema order; those of keyword are found by their place."""
    function = overload(name)
    schema = function._schema.arguments
    plain = [a for a, s in zip(args, schema) if not s.kwarg_only]
    named = {s.name: a for a, s in zip(args, schema) if s.kwarg_only}
    return function(*plain, **named)


def meta_text(meta: dt.Meta) -> str:
    return f"{NUMBERS[meta.dtype]} {tuple(meta.sizes[:meta.ndim])} strides {tuple(meta.strides[:meta.ndim])} bits {meta.layout & 0xc0:#x}"


def tensor_text(tensor: torch.Tensor) -> str:
    bits = (0x40 if tensor.is_conj() else 0) | (0x80 if tensor.is_neg() else 0)
    return f"{tensor.dtype} {tuple(tensor.shape)} strides {tensor.stride()} bits {bits:#x}"


def copied(tensors: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Copies that share memory as the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies = {}
    for slot, t in tensors.items():
        storage = storages.setdefault(t.untyped_storage()._cdata, t.untyped_storage().clone())
        copies[slot] = torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.shape, t.stride())
        torch._C._set_conj(copies[slot], t.is_conj())
        torch._C._set_neg(copies[slot], t.is_neg())
    return copies


class Machine:
    """The state of one program on both sides."""

    def __init__(self, session: dtclient.Session, seed: int, is_ref: bool, counts: Counter[str]) -> None:
        self.session = session
        self.is_ref = is_ref
        self.counts = counts
        self.tensors: dict[int, torch.Tensor] = {}
        self.handles: dict[int, int] = {}
        torch.manual_seed(seed)
        session.seed(0, seed)

    def close(self) -> None:
        for slot in list(self.handles):
            self.drop(slot)

    def drop(self, slot: int) -> None:
        self.session.free(self.handles.pop(slot))
        del self.tensors[slot]

    def upload(self, step: Step) -> None:
        dtype, sizes, seed = step.args
        tensor = make.upload_data(dtype, sizes, seed)
        self.tensors[step.outputs[0]] = tensor
        self.handles[step.outputs[0]] = self.session.upload(dtype_number(dtype), sizes, packed_bytes(tensor))

    def filled(self, value: Any, tensors: dict[int, torch.Tensor]) -> Any:
        if isinstance(value, Ref):
            return tensors[value.slot]
        return [self.filled(item, tensors) for item in value] if isinstance(value, (list, tuple)) else value

    def refuses(self, step: Step) -> str | None:
        """Try it in PyTorch on copies. Gives its refusal."""
        state = torch.get_rng_state()
        copies = copied({slot: self.tensors[slot] for slot in step.refs()})
        try:
            call_torch(step.name, self.filled(step.args, copies))
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            torch.set_rng_state(state)
        return None

    def call(self, step: Step) -> list[int | None]:
        schema = overload(step.name)._schema
        values = Values(self.handles)
        formed = [values.value(item, str(argument.type)) for item, argument in zip(step.args, schema.arguments)]
        is_counted = not any(str(r.type).startswith("List") for r in schema.returns)
        return self.session.call(step.name, formed, len(schema.returns) if is_counted else dtclient.OUTPUT_MAX)

    def apply(self, step: Step) -> str | None:
        """Perform a step on both sides. Gives the difference."""
        if step.name == "upload":
            self.upload(step)
            return None
        if any(slot not in self.tensors for slot in step.refs()):
            return None
        refusal = self.refuses(step)
        if refusal is not None:
            return self.apply_refused(step, refusal)
        try:
            handles = self.call(step)
        except dtclient.ClientError as error:
            if self.is_ref and error.kind == "NotImplementedError":
                self.counts["not in ref"] += 1
                return None
            return f"only DTorch refuses: {error.kind} {error}"
        self.counts["calls"] += 1
        self.counts[step.name] += 1
        return self.take(step, call_torch(step.name, self.filled(step.args, self.tensors)), handles)

    def apply_refused(self, step: Step, refusal: str) -> str | None:
        self.counts["refused"] += 1
        if is_writing(step.name):
            return None  # what is left of its target would differ: PyTorch keeps it, DTorch poisons it
        try:
            handles = self.call(step)
        except dtclient.ClientError:
            return None
        told = None
        for handle in handles:
            try:
                self.session.read(handle)
                told = f"only PyTorch refuses: {refusal}"
            except dtclient.ClientError:
                pass
        for handle in handles:
            self.session.free(handle)
        return told

    def take(self, step: Step, result: Any, handles: list[int | None]) -> str | None:
        """Keep results. Gives the difference of their metadata."""
        wanted = [] if result is None else flatten(result)
        if len(wanted) != len(handles):
            return f"{len(handles)} results, PyTorch has {len(wanted)}"
        by_handle = {handle: slot for slot, handle in self.handles.items()}
        why, free = None, list(step.outputs)
        for i, (tensor, handle) in enumerate(zip(wanted, handles)):
            slot = by_handle.get(handle)
            is_same = [s for s in step.refs() if self.tensors[s] is tensor]
            if is_same or slot is not None:
                if slot not in is_same:
                    why = f"result {i}: is input {slot}, in PyTorch input {is_same}"
                self.session.free(handle)
                continue
            if not free:
                self.session.free(handle)
                continue
            slot = free.pop(0)
            self.tensors[slot], self.handles[slot] = tensor, handle
        touched = step.refs() if is_writing(step.name) else []
        return why or self.compare_metas([s for s in touched + step.outputs if s in self.tensors])

    def compare_metas(self, slots: list[int]) -> str | None:
        for slot in slots:
            has, wanted = meta_text(self.session.meta(self.handles[slot])), tensor_text(self.tensors[slot])
            if has != wanted:
                return f"tensor {slot} is {has}, in PyTorch {wanted}"
        return None

    def same_bytes(self, data: bytes, tensor: torch.Tensor) -> bool:
        wanted = packed_bytes(tensor)
        if data == wanted:
            return True
        if not self.is_ref or not tensor.dtype.is_floating_point or len(data) != len(wanted):
            return False
        is_ = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
        be = torch.frombuffer(bytearray(wanted), dtype=tensor.dtype)
        return bool(((is_ == be) | (is_.isnan() & be.isnan())).all())

    def compare(self, slots: list[int]) -> str | None:
        why = self.compare_metas(slots)
        if why:
            return why
        futures = [(slot, self.session.fetch(self.handles[slot])) for slot in slots]
        for slot, future in futures:
            data = self.session.wait(future)
            if not self.same_bytes(data, self.tensors[slot]):
                tensor = self.tensors[slot]
                has = torch.frombuffer(bytearray(data), dtype=tensor.dtype).reshape(tensor.shape) if data else "nothing"
                why = why or f"tensor {slot} holds {has}, in PyTorch {tensor}"
        return why

    def compare_storages(self, seed: int) -> str | None:
        """Look at all memory, write it anew through one tensor, and see what the others hold then."""
        groups: dict[int, list[int]] = {}
        for slot, tensor in self.tensors.items():
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(slot)
        next_slot = max(self.tensors, default=0) + 1000
        for group in groups.values():
            tensor = self.tensors[group[0]]
            count = tensor.untyped_storage().nbytes() // tensor.element_size()
            if count == 0 or tensor.is_conj() or tensor.is_neg():
                continue
            whole, data = next_slot, next_slot + 1
            next_slot += 10
            steps = [Step("aten::as_strided", [Ref(group[0]), [count], [1], 0], [whole]), Step("upload", [tensor.dtype, [count], seed], [data]),
                     Step("aten::copy_", [Ref(whole), Ref(data)], [])]
            too_far = Step("aten::as_strided", [Ref(group[0]), [count + 1], [1], 0], [])
            why = self.apply(too_far) or self.apply(steps[0]) or self.compare([whole])
            why = why or self.apply(steps[1]) or self.apply(steps[2]) or self.compare(group)
            for slot in (whole, data):
                if slot in self.handles:
                    self.drop(slot)
            if why:
                return f"storage of {group}: {why}"
        return None


def run_program(session: dtclient.Session, seed: int, steps: int, is_ref: bool, counts: Counter[str]) -> tuple[list[Step], str | None]:
    """Make and run a program. Returns its steps and the difference."""
    rng = random.Random(seed)
    maker, machine, done = make.Maker(rng, is_ref), Machine(session, seed, is_ref, counts), []
    why = None
    for number in range(1, steps + 1):
        step = maker.next(machine.tensors)
        done.append(step)
        why = machine.apply(step)
        if not why and number % CHECK_STEPS == 0 and not maker.pending:
            why = machine.compare(list(machine.tensors))
        while len(machine.tensors) > TENSORS_MAX:
            slot = rng.choice(list(machine.tensors))
            done.append(Step("free", [Ref(slot)], []))
            machine.drop(slot)
        if why:
            break
    if not why and not maker.pending:
        why = machine.compare(list(machine.tensors)) or machine.compare_storages(seed)
    machine.close()
    return done, why


def replay(session: dtclient.Session, seed: int, steps: list[Step], is_ref: bool) -> str | None:
    machine = Machine(session, seed, is_ref, Counter())
    why = None
    for step in steps:
        if step.name == "free":
            if step.args[0].slot in machine.handles:
                machine.drop(step.args[0].slot)
            continue
        why = machine.apply(step)
        if why:
            break
    why = why or machine.compare(list(machine.tensors)) or machine.compare_storages(seed)
    machine.close()
    return why


def shrink(session: dtclient.Session, seed: int, steps: list[Step], is_ref: bool) -> tuple[list[Step], str]:
    """Leave out what the difference does not need."""
    end = time.monotonic() + SHRINK_S
    why = replay(session, seed, steps, is_ref)
    if not why:
        return steps, "(not again when only the steps are repeated)"
    size = max(len(steps) // 2, 1)
    while size >= 1 and time.monotonic() < end:
        at = 0
        while at < len(steps) and time.monotonic() < end:
            fewer = steps[:at] + steps[at + size:]
            still = replay(session, seed, fewer, is_ref)
            if still:
                steps, why = fewer, still
            else:
                at += size
        size //= 2
    return steps, why


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("backend")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    is_ref = options.backend == "ref"
    devices = "ref" if is_ref else f"{options.backend}:cpu"
    session = dtclient.Session(f"{options.build}/lib/libdtorch.so", f"{options.build}/bin", devices)
    start, counts, failed = time.monotonic(), Counter(), 0
    for seed in range(options.seed, options.seed + options.count):
        steps, why = run_program(session, seed, options.steps, is_ref, counts)
        if options.verbose:
            print(*steps, sep="\n")
        if why:
            failed += 1
            print(f"seed {seed} on {options.backend}: {why}", flush=True)
            steps, why = shrink(session, seed, steps, is_ref)
            print(f"the shortest program: {why}", *steps, sep="\n  ", flush=True)
    try:
        session.close()
    except dtclient.ClientError as error:
        failed += 1
        print(f"an error that nobody fetched: {error.kind} {error}")
    operators = sum(1 for name in counts if name.startswith("aten::"))
    print(f"{counts['calls']} calls of {operators} overloads, {counts['refused']} refused by PyTorch, {counts['not in ref']} not in ref, "
          f"in {time.monotonic() - start:.1f} s")
    print(f"programs: {options.count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
