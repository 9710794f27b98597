"""Proof of placement rules by brute force: usage placement.py GOLDEN [--whole [SECONDS]] [NAME PART]

GOLDEN is the program of tests/rules, which answers what lib/shard says. For a call, inputs get placements on a mesh;
what propagation makes of them is a row. Inputs are cut by lists of positions (nothing here knows boxes), every device
runs what localize says, in PyTorch, and the results are put together as the outputs' placements say and compared with
the operator's global result, in float64. Calls: those of `cases()`, which new rules are tried on; with --whole those
that PyTorch's operator database reaches too, forward and backward.
"""

import itertools
import json
import random
import subprocess
import sys
import time
import warnings

import torch

warnings.filterwarnings("ignore")
MESHES = ((2,), (3,), (4,), (2, 2), (2, 3))
REDUCTIONS = ("sum", "avg", "max", "min")
DTYPES = {"b": torch.bool, "i": torch.int64, "f": torch.float64, "c": torch.complex128}


def kind(t):
    return "b" if t.dtype == torch.bool else "c" if t.is_complex() else "f" if t.is_floating_point() else "i"


class Asker:
    def __init__(self, program):
        self.child = subprocess.Popen([program, "--ask"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name, call, mesh, places):
        self.child.stdin.write(f"{name}\t{call}\t{'x'.join(map(str, mesh))}\t{' '.join(places)}\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def close(self):
        self.child.stdin.close()
        self.child.wait()


class Call:
    """One operator call, told as conformance vectors do."""

    def __init__(self, name, args, kwargs=None):
        self.name, kwargs = name, kwargs or {}
        op, _, overload = name.removeprefix("aten::").partition(".")
        self.f = getattr(getattr(torch.ops.aten, op), overload or "default")
        self.schema = self.f._schema.arguments
        wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
        widen = lambda t: t.detach().to(wide.get(t.dtype, t.dtype)).clone() if isinstance(t, torch.Tensor) else t
        self.values, self.tensors, self.groups, attrs = [], [], [], {}
        for i, a in enumerate(self.schema):
            value = args[i] if i < len(args) else kwargs.get(a.name, a.default_value if a.has_default_value() else None)
            is_tensor = "Tensor" in str(a.type)
            if is_tensor and isinstance(value, (list, tuple)):
                value = [widen(t) for t in value]
                self.groups.append([list(t.shape) for t in value if t is not None])
                attrs["indices"] = [None if t is None else 1 for t in value]
                self.tensors += [t for t in value if t is not None]
            elif is_tensor:
                value = widen(torch.tensor(value) if isinstance(value, (int, float)) else value)  # a number in a tensor's place
                self.groups.append(list(value.shape) if isinstance(value, torch.Tensor) else None)
                self.tensors += [value] if isinstance(value, torch.Tensor) else []
            elif isinstance(value, (bool, int, float)) or (isinstance(value, (list, tuple)) and all(isinstance(x, int) for x in value)):
                attrs[a.name] = list(value) if isinstance(value, (list, tuple)) else value
            self.values.append(value)
        for key, value in attrs.items():
            if isinstance(value, float) and value in (float("inf"), float("-inf")):
                attrs[key] = str(value)
        self.reference = self.run(self.f, self.values)
        outs = self.reference_groups
        kinds = "".join(map(kind, self.tensors)) + ">" + "".join(map(kind, self.reference))
        self.text = json.dumps({"in": self.groups, "out": outs, "k": kinds, "a": attrs}, separators=(",", ":"))

    def run(self, f, values):
        schema = f._schema.arguments
        fresh = [v.clone() if isinstance(v, torch.Tensor) else [t if t is None else t.clone() for t in v] if isinstance(v, list) and v and isinstance(v[0], torch.Tensor) else v for v in values]
        positional = [v for v, a in zip(fresh, schema) if not a.kwarg_only]
        named = {a.name: v for v, a in zip(fresh, schema) if a.kwarg_only}
        out = f(*positional, **named)
        out = out if isinstance(out, tuple) else (out,)
        self.reference_groups = [[list(t.shape) for t in o] if isinstance(o, (list, tuple)) else list(o.shape) if isinstance(o, torch.Tensor) else None for o in out]
        flat = [t for o in out for t in (o if isinstance(o, (list, tuple)) else [o])]
        return [t.detach().clone() for t in flat if isinstance(t, torch.Tensor)]

    def local(self, ops, tensors):
        """Run a local program; `tensors` are this device's inputs."""
        results = []
        for op in ops:
            base, _, overload = op["name"].removeprefix("aten::").partition(".")
            f = getattr(getattr(torch.ops.aten, base), overload or "default")

            def ref(i):
                return None if i == 0 else tensors[i - 1] if i < 0x10000 else results[(i - 0x10000) // 16][(i - 0x10000) % 16]

            def value(a, at):
                if isinstance(a, dict) and "same" in a:
                    return self.values[a["same"]]
                if isinstance(a, dict) and "f" in a:
                    return float(a["f"])
                if isinstance(a, dict) and "dtype" in a:
                    return getattr(torch, a["dtype"])
                if isinstance(a, dict) and "ts" in a:
                    return [ref(i) for i in a["ts"]]
                return ref(a["t"]) if isinstance(a, dict) else a

            values = [value(a, i) for i, a in enumerate(op["args"])]
            schema = f._schema.arguments
            values += self.values[len(values) :] if f is self.f else []
            values += [s.default_value if s.has_default_value() else None for s in schema[len(values) :]]
            results.append(self.run(f, values))
        return results[-1]


# ---- placements, by lists of positions ----


def parse(text):
    """"S1/8*3" -> ("S", 1, 8, 3); "S1@2/9" -> ("S", 1, 1, 1, 2, 9); "Psum" -> ("P", "sum"); "R" -> ("R",)"""
    if text[0] == "P":
        return ("P", text[1:])
    if text[0] == "R":
        return ("R",)
    if "@" in text:
        dim, _, more = text[1:].partition("@")
        first, _, of = more.partition("/")
        return ("S", int(dim), 1, 1, int(first), int(of))
    dim, _, more = text[1:].partition("/")
    unit, _, groups = more.partition("*")
    return ("S", int(dim), int(unit or 1), int(groups or 1))


def positions(shape, mesh, places, coords):
    lists = [list(range(n)) for n in shape]
    for d, n in enumerate(shape):
        mine = [(size, p, c) for size, p, c in zip(mesh, places, coords) if p[0] == "S" and p[1] == d]
        if not mine:
            continue
        groups, keep = mine[0][1][3], []
        if len(mine[0][1]) > 4:  # rows of a longer dimension: they are where its rows are
            (size, (*_, first, of), c), step = mine[0], -(-mine[0][1][5] // mine[0][0])
            lists[d] = [row for row in range(n) if c * step <= row + first < (c + 1) * step]
            continue
        for g in range(groups):
            run = list(range(g * (n // groups), (g + 1) * (n // groups)))
            for size, p, c in mine:
                step = -(-(-(-len(run) // p[2])) // size) * p[2]
                run = run[c * step : (c + 1) * step]
            keep += run
        lists[d] = keep
    return lists


def take(t, lists):
    for d, rows in enumerate(lists):
        t = t.index_select(d, torch.tensor(rows, dtype=torch.int64))
    return t.contiguous()


def parts_of(t, mesh, places, rng):
    """The contributions of a Partial tensor, by coordinates on its Partial dimensions."""
    dims = [(j, p[1]) for j, p in enumerate(places) if p[0] == "P"]
    names = list(itertools.product(*[range(mesh[j]) for j, _ in dims]))
    if not dims:
        return {(): t}
    averaged = 1
    for j, how in dims:
        averaged *= mesh[j] if how == "avg" else 1
    noise = torch.rand(t.shape, generator=rng, dtype=torch.float64) * 1.3 + 0.2
    noise = noise.to(t.dtype) if t.is_floating_point() or t.is_complex() else (noise * 4).to(t.dtype) + 1
    if dims[0][1] in ("max", "min"):
        own = torch.randint(0, len(names), t.shape, generator=rng)
        sign = -1 if dims[0][1] == "max" else 1
        return {name: torch.where(own == k, t, t + sign * noise) for k, name in enumerate(names)}
    parts = {name: noise * (k + 1) * (-1) ** k for k, name in enumerate(names[:-1])}
    parts[names[-1]] = t * averaged - sum(parts.values()) if parts else t * averaged
    return parts


def close(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    tolerance = 1e-3 if a.dtype in (torch.float32, torch.complex64, torch.float16, torch.bfloat16) else 1e-6
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * 0.01 + 1e-9, equal_nan=True)


def identity(t_dtype, shape, fill):
    if fill in (0, 1):
        return torch.zeros(shape, dtype=t_dtype)
    info = torch.finfo(t_dtype) if t_dtype.is_floating_point else torch.iinfo(torch.uint8 if t_dtype == torch.bool else t_dtype)
    if t_dtype == torch.bool:
        return torch.full(shape, fill == 3, dtype=t_dtype)
    low, high = (float("-inf"), float("inf")) if t_dtype.is_floating_point else (info.min, info.max)
    return torch.full(shape, low if fill == 2 else high, dtype=t_dtype)


def assemble(reference, mesh, places, locals_):
    """The global tensor from local ones; a text if they are none."""
    buffers, dims = {}, [j for j, p in enumerate(places) if p[0] == "P"]
    for coords, local in zip(itertools.product(*map(range, mesh)), locals_):
        lists = positions(reference.shape, mesh, places, coords)
        if list(local.shape) != [len(rows) for rows in lists]:
            return f"local shape {list(local.shape)}, expected {[len(rows) for rows in lists]}"
        if local.dtype != reference.dtype:
            return f"dtype {local.dtype}"
        key = tuple(coords[j] for j in dims)
        buffer, seen = buffers.setdefault(key, (torch.zeros_like(reference), torch.zeros(reference.shape, dtype=torch.bool)))
        where = torch.meshgrid(*[torch.tensor(rows, dtype=torch.int64) for rows in lists], indexing="ij") if lists else ()
        if lists and local.numel() == 0:
            continue
        if bool(seen[where].any()) and not close(buffer[where], local):
            return "replicas differ"
        buffer[where] = local
        seen[where] = True
    for _, seen in buffers.values():
        if not bool(seen.all()):
            return "a hole"
    stack = torch.stack([b for b, _ in buffers.values()])
    how = {places[j][1] for j in dims}
    if not dims:
        return stack[0]
    if how & {"max", "min"}:
        stack = stack.to(torch.uint8) if stack.dtype == torch.bool else stack
        return (stack.amax(0) if "max" in how else stack.amin(0)).to(reference.dtype)
    averaged = 1
    for j in dims:
        averaged *= mesh[j] if places[j][1] == "avg" else 1
    total = stack.sum(0)
    return (total / averaged).to(reference.dtype) if averaged > 1 else total.to(reference.dtype)


# ---- one row ----


def prove(call, mesh, answer, rng):
    """None if the row holds, else why not."""
    ins = [[parse(p) for p in text.split(";")] for text in answer["in"]]
    outs = [[parse(p) for p in text.split(";")] for text in answer["out"]]
    contributions = [parts_of(t, mesh, p, rng) for t, p in zip(call.tensors, ins)]
    locals_ = [[] for _ in call.reference]
    present = [i for i, g in enumerate(flat_outputs(call)) if g]
    has_no_values = call.name.startswith(("aten::empty", "aten::new_empty"))
    for coords, device in zip(itertools.product(*map(range, mesh)), answer["local"]):
        own = []
        for t, p, parts in zip(call.tensors, ins, contributions):
            key = tuple(c for c, x in zip(coords, p) if x[0] == "P")
            own.append(take(parts[key], positions(t.shape, mesh, p, coords)))
        if device["run"]:
            try:
                results = call.local(device["ops"], own)
            except Exception as e:
                return f"raises {str(e).splitlines()[0][:120]}"
            if len(results) != len(call.reference):
                return f"{len(results)} results"
        else:
            results = []
            for j, reference in zip(present, call.reference):
                shape = [len(rows) for rows in positions(reference.shape, mesh, outs[j], coords)]
                results.append(identity(reference.dtype, shape, device["fill"][j]))
        for to, result in zip(locals_, results):
            to.append(torch.zeros_like(result) if has_no_values else result)
    for j, reference, pieces in zip(present, call.reference, locals_):
        whole = assemble(reference, mesh, outs[j], pieces)
        if isinstance(whole, str):
            return f"result {j}: {whole}"
        if not has_no_values and not close(whole, reference):
            return f"result {j}: other values"
    return None


def flat_outputs(call):
    flat = []
    for g in json.loads(call.text)["out"]:
        flat += [1] * len(g) if g and isinstance(g[0], list) else [g is not None]
    return flat


def some_place(t, rng):
    options = ["R"] + [f"S{d}" for d in range(t.ndim)] * 2
    if t.ndim and rng.random() < 0.3:
        d = rng.randrange(t.ndim)
        groups = rng.choice([g for g in (1, 2, 3) if t.shape[d] % g == 0])
        options = [f"S{d}/{rng.choice((1, 2, 3, 4))}*{groups}"]
        if rng.random() < 0.4:
            first = rng.randrange(5)
            options = [f"S{d}@{first}/{max(1, t.shape[d] + first + rng.randrange(6))}"]
    if rng.random() < 0.3:
        hows = ["sum"] if t.dtype == torch.int64 else [] if t.dtype == torch.bool else ["sum", "avg"]
        hows += [] if t.is_complex() or t.dtype == torch.bool else ["max", "min"]
        options = ["P" + h for h in hows] or options
    return rng.choice(options)


def some_layout(t, mesh, rng):
    for _ in range(50):
        places = [some_place(t, rng) for _ in mesh]
        hows = {p[1:] for p in places if p[0] == "P"}
        groups = {}
        for p in map(parse, places):
            if p[0] == "S":  # a window is alone on its dimension
                groups.setdefault(p[1], set()).update({p[3], p[4] + 10} if len(p) > 4 and p[1] in groups else {p[3]})
        if (len(hows) < 2 or hows == {"sum", "avg"}) and all(len(g) == 1 for g in groups.values()):
            return ";".join(places)
    return ";".join("R" for _ in mesh)


def try_call(asker, call, rounds, rng, tally):
    seen, generator = set(), torch.Generator().manual_seed(7)
    for _ in range(rounds):
        mesh = rng.choice(MESHES)
        one = [some_layout(t, mesh, rng) for t in call.tensors]
        places = [one[0]] * len(one) if rng.random() < 0.3 and len({t.ndim for t in call.tensors}) == 1 else one
        wanted = [";".join(rng.choice(("R", "S0")) for _ in mesh)] if call.name == "aten::embedding_dense_backward" else []
        answer = asker.ask(call.name, call.text, mesh, places + wanted)
        for turn in range(3):  # one mesh dimension's choice changes what another's costs: it comes to an end
            if "error" in answer or not answer["moved"]:
                break
            if turn == 2:
                answer["error"] = "moves what it wanted itself"
                break
            answer = asker.ask(call.name, call.text, mesh, answer["in"] + wanted)
        if "error" in answer:
            if "cannot lie" in answer["error"]:
                continue
            yield places, mesh, answer["error"]
            continue
        key = (mesh, tuple(answer["in"]), tuple(answer["out"]))
        if key in seen or not any(c in text for text in answer["in"] + answer["out"] for c in "SP"):
            continue
        seen.add(key)
        tally["rows"] += 1
        why = prove(call, mesh, answer, generator)
        if why:
            yield answer["in"], mesh, f"{why}; out {answer['out']}"


# ---- calls ----


def cases():
    torch.manual_seed(1)
    r = torch.randn
    i = lambda high, *shape: torch.randint(0, high, shape)
    yield "aten::add.Tensor", (r(4, 6), r(6))
    yield "aten::mm", (r(6, 8), r(8, 4))
    yield "aten::addmm", (r(4), r(6, 8), r(8, 4))
    # a term that is broadcast, shards without elements, integers by factors that are none
    yield "aten::addmv", (r(1), r(6, 3), r(3))
    yield "aten::addmv", (r(6), r(6, 3), r(3))
    yield "aten::baddbmm", (i(9, 2, 5, 6), i(9, 2, 5, 3), i(9, 2, 3, 6)), {"beta": 0.2, "alpha": 0.6}
    yield "aten::avg_pool2d", (i(9, 2, 3, 4, 5), [2, 2])
    yield "aten::avg_pool2d", (r(2, 3, 4, 5), [2, 2])
    yield "aten::narrow", (r(6, 5, 4), -1, 1, 2)
    yield "aten::narrow", (i(9, 5, 4), 0, 0, 3)
    yield "aten::view", (r(4, 12), [4, 4, 3])
    yield "aten::view", (r(5, 4, 3), [5, 12])
    yield "aten::sum.dim_IntList", (r(6, 4, 5), [1], True)
    yield "aten::mean.dim", (r(6, 4, 5), [0, 1])
    yield "aten::squeeze.dims", (r(4, 1, 3, 1), [1, 2, 3])
    yield "aten::zeros_like", (r(4, 6),)
    yield "aten::view.dtype", (i(99, 4, 6), torch.float64)
    yield "aten::view.dtype", (i(99, 4, 6), torch.float32)
    # a tensor of shape (0,), which cat drops
    yield "aten::cat", ([r(0), r(4, 6), r(4, 3)], 1)
    yield "aten::cat", ([r(4, 6), r(0), r(5, 6)], 0)
    yield "aten::cat", ([r(0), r(5, 6)], 0)
    # means of unequal shards
    yield "aten::mean.dim", (r(5, 7, 3), [0, 1], True)
    yield "aten::mean", (r(5, 7),)
    for reduction in 0, 1, 2:
        yield "aten::mse_loss", (r(5, 6), r(5, 6), reduction)
        yield "aten::huber_loss", (r(5, 6), r(5, 6), reduction, 0.7)
        yield "aten::binary_cross_entropy", (torch.rand(5, 6), torch.rand(5, 6), None, reduction)
        grad = r(5, 6) if reduction == 0 else r(())
        yield "aten::mse_loss_backward", (grad, r(5, 6), r(5, 6), reduction)
        yield "aten::smooth_l1_loss_backward", (grad, r(5, 6), r(5, 6), reduction, 0.6)
    # vocabulary
    yield "aten::embedding", (r(7, 4), i(7, 3, 5))
    yield "aten::embedding", (r(8, 4), i(8, 6), 2)
    for rows, padding in ((7, -1), (8, 2), (2, 1)):
        yield "aten::embedding_dense_backward", (r(3, 5, 4), i(rows, 3, 5), rows, padding, False)
    for reduction in 0, 1, 2:
        for weight in None, torch.rand(7):
            x, target = torch.log_softmax(r(6, 7), 1), i(7, 6)
            target[1] = 3
            yield "aten::nll_loss_forward", (x, target, weight, reduction, 3)
            grad, total = r(6) if reduction == 0 else r(()), torch.rand(()) + 3
            yield "aten::nll_loss_backward", (grad, x, target, weight, reduction, 3, total)
    x, target = torch.log_softmax(r(2, 5, 3, 4), 1), i(5, 2, 3, 4)
    yield "aten::nll_loss2d_forward", (x, target, torch.rand(5), 2, 1)
    yield "aten::nll_loss2d_backward", (r(()), x, target, torch.rand(5), 2, 1, torch.rand(()))
    # heads in groups
    q, k, v = r(2, 8, 5, 4), r(2, 4, 6, 4), r(2, 4, 6, 4)
    yield "aten::_scaled_dot_product_flash_attention_for_cpu", (q, k, v)
    mask = {"attn_mask": r(5, 6)}
    yield "aten::_scaled_dot_product_flash_attention_for_cpu", (q, k, v, 0.0, False), mask
    yield "aten::_scaled_dot_product_flash_attention_for_cpu", (r(2, 6, 5, 4), r(2, 3, 6, 4), r(2, 3, 6, 4))
    yield "aten::linear", (r(3, 5, 8), r(6, 8), r(6))
    yield "aten::linear", (r(3, 8), r(6, 8))
    # the parts of a fused dimension
    yield "aten::split.Tensor", (r(4, 12), 4, 1)
    yield "aten::split_with_sizes", (r(12, 3), [4, 4, 4], 0)
    yield "aten::cat", ([r(4, 5), r(4, 5), r(4, 5)], 1)
    yield "aten::view", (r(2, 5, 12), [2, 5, 3, 4])
    yield "aten::view", (r(2, 5, 12), [10, 3, 4])
    yield "aten::view", (r(4, 2, 3, 5), [4, 2, 15])
    # rows of a dimension that is cut, and rows put together
    for start, end in (0, 4), (3, 7), (2, 9), (-3, 100), (5, 5), (0, 8), (8, 12):
        yield "aten::slice.Tensor", (r(12, 3), 0, start, end)
        yield "aten::slice.Tensor", (r(2, 7, 3), 1, start, end)
        yield "aten::slice_backward", (r(12, 3)[start:end], [12, 3], 0, start, end, 1)
    yield "aten::slice.Tensor", (r(12, 3), 0, 1, 9, 2)
    yield "aten::slice_backward", (r(4, 3), [12, 3], 0, 1, 9, 2)
    yield "aten::slice.Tensor", (r(9), 0, None, 7)
    yield "aten::narrow", (r(2, 9), 1, 4, 3)
    yield "aten::narrow_copy", (r(9, 2), 0, 4, 3)
    for size in 1, 4, 5, 11, 12:
        yield "aten::split.Tensor", (r(11, 2), size)
        yield "aten::split.Tensor", (i(9, 2, 12), size, -1)
    yield "aten::split_with_sizes", (r(11, 2), [4, 0, 6, 1], 0)
    yield "aten::split_with_sizes", (r(2, 11), [11], 1)
    yield "aten::split_with_sizes_copy", (r(2, 11), [1, 8, 2], 1)
    yield "aten::unsafe_split.Tensor", (r(11, 2), 4)
    yield "aten::cat", ([r(4, 2), r(1, 2), r(6, 2)],)
    yield "aten::cat", ([i(9, 2, 4), i(9, 2, 7)], 1)
    yield "aten::cat", ([r(0), r(7, 2), r(5, 2)],)
    yield "aten::cat", ([r(7, 2)],)
    # lists
    few = lambda: [r(4, 6), r(5), r(3, 2)]
    yield "aten::_foreach_add.List", (few(), few()), {"alpha": 2}
    yield "aten::_foreach_mul.Scalar", (few(), 3.0)
    yield "aten::_foreach_addcdiv.Scalar", (few(), few(), [t.abs() + 1 for t in few()], 0.5)
    yield "aten::_foreach_mul.Tensor", (few(), r(()))


def captured(per_op=6):
    """Calls that PyTorch's operator database reaches, forward and backward."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    seen, found = set(), []
    allowed = {torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64}

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            kwargs, name = kwargs or {}, str(f).replace("aten.", "aten::", 1)
            tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
            key = (name, tuple(tuple(t.shape) for t in tensors), repr([a for a in args if not isinstance(a, torch.Tensor)])[:80])
            count = sum(k[0] == name for k in seen)
            fits = all(t.layout is torch.strided and t.dtype in allowed and t.numel() < 5000 for t in tensors)
            if name.startswith("aten::") and tensors and fits and key not in seen and count < per_op:
                seen.add(key)
                copy = lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else [copy(y) for y in x] if isinstance(x, (list, tuple)) else x
                found.append((name, tuple(copy(a) for a in args), {k: copy(v) for k, v in kwargs.items()}))
            return f(*args, **kwargs)

    for op in op_db:
        dtype = next((d for d in (torch.float32, torch.int64, torch.complex64) if d in op.dtypes), None)
        if dtype is None:
            continue
        try:
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd and dtype is not torch.int64))[:per_op]
        except Exception:
            continue
        for s in samples:
            try:
                with Record():
                    out = op(s.input, *s.args, **s.kwargs)
                    fs = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
                    ins = [t for t in tree_flatten((s.input, s.args, s.kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
                    if fs:
                        torch.autograd.grad(fs, ins, [torch.randn_like(t) for t in fs], allow_unused=True)
            except Exception:
                pass
    return found


def main():
    torch.set_num_threads(1)
    words = [w for w in sys.argv[2:] if not w.startswith("--")]
    is_whole = "--whole" in sys.argv
    seconds = float(words.pop(0)) if is_whole and words and words[0].replace(".", "").isdigit() else 1e9
    calls = [(c[0], c[1], c[2] if len(c) > 2 else {}) for c in cases()]
    rounds = 60
    if is_whole:
        calls += captured()
        rounds = 25
    asker, rng, tally, end = Asker(sys.argv[1]), random.Random(5), {"rows": 0}, time.monotonic() + seconds
    passed = failed = skipped = 0
    for name, args, kwargs in calls:
        if words and not any(w in name for w in words) or time.monotonic() > end:
            continue
        try:
            call = Call(name, args, kwargs)
        except Exception as e:
            skipped += 1
            if not is_whole:
                print(f"FAIL {name}: cannot be called: {str(e).splitlines()[0]}")
                failed += 1
            continue
        if len(call.text) > 30000 or not call.tensors or not call.reference:
            skipped += 1
            continue
        bad = list(try_call(asker, call, rounds, rng, tally))
        passed, failed = passed + (not bad), failed + bool(bad)
        for places, mesh, why in bad[:3]:
            print(f"FAIL {name} {call.text[:160]} mesh {mesh} in {places}: {why}")
    asker.close()
    print(f"{tally['rows']} rows were tried")
    print(f"placement: {passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
