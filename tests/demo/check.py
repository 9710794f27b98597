"""usage: check.py [PART OF NAME]... [--moments=N [--seed=1]]

The demonstration itself: that it runs to its end, fails when a token is wrong, and leaves nothing behind when it is stopped. With
--moments it is stopped at N moments, which the seed chooses, and nothing else is checked."""

import argparse
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import torch  # noqa: E402  (the path comes first)

import demo  # noqa: E402
import devicetest  # noqa: E402

SHORT = ["--tokens=6", "--steps=2"]


def start(out: str, *options: str) -> "subprocess.Popen[str]":
    """The demonstration in a session of its own, with its files in out/tmp, so that what it leaves can be found."""
    scratch = pathlib.Path(out, "tmp")
    scratch.mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, str(HERE / "demo.py"), f"--out={out}", *SHORT, *options], text=True,
                            env=os.environ | {"TMPDIR": str(scratch)}, start_new_session=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def expect_nothing_left(program: "subprocess.Popen[str]", out: str) -> None:
    def left() -> str:  # what has ended is gone, though its parent was killed before it could look
        return subprocess.run(["pgrep", "-l", "-r", "R,S,D,T", "-s", str(program.pid)], capture_output=True, text=True, check=False).stdout

    assert devicetest.becomes(lambda: not left()), f"these still run: {left()}"
    files = [str(path) for path in pathlib.Path(out, "tmp").iterdir()]
    assert not files, f"these are left: {files}"


def whole() -> None:
    with tempfile.TemporaryDirectory() as out:
        program = start(out, "--prompt=Say hello in Spanish.")
        said, _ = program.communicate()
        assert program.returncode == 0, said[-3000:]
        for what in ("all 12 tokens are those of plain PyTorch", "dtorchctl job ops", "goes on: step and loss", "node-dead",
                     "the controller knew", "all of it was checked"):
            assert what in said, f"{what!r} is not said: {said[-3000:]}"
        assert pathlib.Path(out, "loss.png").read_bytes().startswith(b"\x89PNG")
        assert pathlib.Path(out, "trace.json").stat().st_size > 10000
        expect_nothing_left(program, out)


def stopped(at: str) -> None:
    """Ctrl-C, which a terminal sends to all processes, once the demonstration has said so much."""
    with tempfile.TemporaryDirectory() as out:
        program = start(out)
        assert program.stdout is not None
        said = ""
        while not re.search(at, said):
            line = program.stdout.readline()
            assert line, f"it ended before {at!r}: {said[-3000:]}"
            said += line
        rest = None
        while rest is None:  # Python drops an exception within a finalizer: a person presses again
            os.killpg(program.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                rest, _ = program.communicate(timeout=60)
        assert program.returncode == 130, f"{program.returncode}: {(said + rest)[-3000:]}"
        expect_nothing_left(program, out)


def stopped_after(seconds: float) -> None:
    """Ctrl-C at any moment, even before the demonstration is the one that takes it."""
    with tempfile.TemporaryDirectory() as out:
        program = start(out, "--kept=build/demo")
        rest = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            rest, _ = program.communicate(timeout=seconds)
        while rest is None:
            os.killpg(program.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                rest, _ = program.communicate(timeout=60)
        assert program.returncode in (0, 130, -signal.SIGINT), f"{program.returncode}: {rest[-3000:]}"
        expect_nothing_left(program, out)


def moments(suite: devicetest.Suite, count: int, seed: int) -> None:
    began = time.monotonic()
    if not suite.check("it runs to its end", whole):
        return
    whole_s = time.monotonic() - began
    chosen = random.Random(seed)
    for number in range(count):
        after_s = chosen.uniform(0, whole_s)
        suite.check(f"stopped after {after_s:.2f} of {whole_s:.0f} s (moment {number} of seed {seed})",
                    lambda after_s=after_s: stopped_after(after_s))


class Scores(torch.nn.Module):
    """A model that gives token 3 the best score, and token 4 nearly so."""

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> argparse.Namespace:
        assert ids.shape == attention_mask.shape
        return argparse.Namespace(logits=torch.tensor([0, 0, 0, 2.0, 1.9999, 1.0]).expand(*ids.shape, 6))


def wrong_token() -> None:
    """A tie may be decided otherwise by the order of a sum; anything else is wrong."""
    it = argparse.Namespace(model=Scores())
    ids, want = torch.ones(1, 2, dtype=torch.long), torch.tensor([[1, 3, 3]])
    assert "all 3 tokens" in demo.Demo.expect_tokens(it, want, want.clone(), ids, ids)
    assert "a tie" in demo.Demo.expect_tokens(it, want, torch.tensor([[1, 4, 0]]), ids, ids)
    try:
        demo.Demo.expect_tokens(it, want, torch.tensor([[1, 5, 3]]), ids, ids)
    except demo.Failed as failure:
        assert "token 1 of question 0 is 5" in str(failure)
    else:
        raise AssertionError("a wrong token was taken")


def main() -> int:
    suite = devicetest.Suite("demo", devicetest.arguments())
    count = int(devicetest.option("moments", "0"))
    if count:
        moments(suite, count, int(devicetest.option("seed", "1")))
        return suite.finish()
    suite.check("a wrong token makes it fail", wrong_token)
    suite.check("it runs to its end", whole)
    suite.check("stopped while the cluster begins", lambda: stopped("a controller and two workers"))
    suite.check("stopped in the middle of an answer", lambda: stopped("on ONE device"))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
