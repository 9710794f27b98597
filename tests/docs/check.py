"""usage: check.py BUILD [PART OF A NAME...]

The documents told true: each program and command of docs/tutorial.md and docs/coming-from.md is run on a cluster of daemons and what
it prints is compared; each dtorchctl command of any document exists with its options; operations.md says something of each alarm,
warning and metric that there is."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parent / "bench")]

import blocks  # noqa: E402  (the path comes first)
import devicetest  # noqa: E402
import table  # noqa: E402

# What of the machine's own could lead a program elsewhere, and make's, which would hand its jobs on.
FOREIGN = ("COLUMNS", "DTORCH_ADDRESS", "DTORCH_ADMIN_SOCKET", "DTORCH_BIN", "DTORCH_DTENSOR_IN_SAME_DEVICE", "DTORCH_RECORD", "MAKEFLAGS", "MFLAGS",
           "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV")


def follow(document: str, build: str) -> None:
    """Do what a document says. Raises: AssertionError."""
    with tempfile.TemporaryDirectory(prefix="dtdocs.") as folder:
        run = f"{folder}/run"
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        environment |= {"TMPDIR": folder, "RUN": run, "PRESET": pathlib.Path(build).name, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        reader = blocks.Reader(environment, pathlib.Path(folder), {"build/run": run})
        try:
            reader.first.run(f"cd {TREE}")
            reader.follow(blocks.read(TREE / "docs" / document))
        except BaseException as failure:
            print(f"{document}: {failure}\nits terminal at the end:\n{reader.first.said()[-2000:]}", flush=True)
            raise
        finally:
            left = reader.end()
    assert not left, f"these still run: {left}"


def documents() -> list[pathlib.Path]:
    return [TREE / "README.md", *sorted((TREE / "docs").glob("*.md"))]


def commands(program: str) -> Iterator[tuple[str, list[str]]]:
    """Where a document shows a command of a program, and its words, up to what a shell does with it."""
    for path in documents():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = [line] if re.match(rf"(?:    )?(?:sudo )?[A-Za-z_]*=?[^`]*{program} ", line) and "`" not in line else re.findall(r"`([^`]*)`", line)
            for text in code:
                for found in re.findall(rf"(?:^ *|&& |\(|\| |sudo |\w=\S* ){program}((?: [^|#>&`)]*)?)", text):
                    yield f"{path.name}:{number}: {program}{found}", shlex.split(found)


def ask(build: str, *words: str) -> tuple[int, str]:
    done = subprocess.run([f"{build}/bin/{words[0]}", *words[1:]], capture_output=True, text=True, timeout=devicetest.LIMIT_S, check=False)
    return done.returncode, done.stdout


def expect_options(where: str, said: str, words: list[str]) -> None:
    for word in words:
        option = re.match(r"--[a-z-]+|-[a-zA-Z]", word)
        assert not option or re.search(rf"(?<![\w-]){option[0]}(?![a-z-])", said), f"{where}: there is no {option and option[0]}"


def verbs(build: str) -> None:
    """Each command of dtorchctl that is shown exists, with its options."""
    count = 0
    for where, words in commands("dtorchctl"):
        path: list[str] = []
        for word in words:  # the longest noun and verb that there is
            if not re.fullmatch(r"[a-z]+", word) or ask(build, "dtorchctl", *path, word, "--help")[0] != 0:
                break
            path.append(word)
        plain = [word for word in words if not word.startswith("-")]
        status, said = ask(build, "dtorchctl", *path, "--help")
        assert status == 0 and (path or not plain or not re.match("[a-z]", words[0])), f"{where}: there is no such command"
        expect_options(where, said, words)
        count += 1
    assert count > 30, f"only {count} commands are found: are they still marked as code?"


def flags(build: str) -> None:
    for program in ("dtorch-controllerd", "dtorch-workerd"):
        said = ask(build, program, "--help")[1]
        for where, words in commands(program):
            expect_options(where, said, words)


def targets(_: str) -> None:
    """Each target of make that is named exists."""
    made = "".join(path.read_text() for path in [TREE / "Makefile", *(TREE / "mk").glob("*.mk")])
    for where, words in commands("make"):
        for word in words:
            if re.fullmatch(r"[a-z][a-z-]*", word):
                assert re.search(rf"^(?:[a-z-]+ )*{word}(?: [a-z -]+)?:|^{word.partition('-')[0]}-%:", made, re.M), f"{where}: there is no target {word}"


def source(*folders: str) -> str:
    return "".join(path.read_text() for folder in folders for path in sorted((TREE / folder).rglob("*.c")))


def expect_told(what: str, names: set[str]) -> None:
    """operations.md names exactly what there is of a kind, in its chapter."""
    text = (TREE / "docs" / "operations.md").read_text()
    chapter = re.search(rf"^## {what}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert chapter and names, what
    missing = sorted(name for name in names if f"`{name}`" not in chapter[1] and f"`{name}{{" not in chapter[1])
    assert not missing, f"the chapter {what} says nothing of {missing}"


def alarms(_: str) -> None:
    names = set(re.findall(r'alarm_add\(alarms, "([a-z-]+)"', source("lib/core")))
    names |= set(re.findall(r'alarm->name = \(char \*\)\(uintptr_t\) "([a-z-]+)"', source("daemons")))
    expect_told("Alarms", names)


def metrics(_: str) -> None:
    expect_told("Metrics", set(re.findall(r'"(dtorch_[a-z_]+)"', source("daemons", "lib"))))


def warnings(_: str) -> None:
    """Each text that a daemon logs as a warning or an error, and no other one."""
    text, names = source("daemons", "lib"), set()
    for found in re.finditer(r"dt_log_(?:warn|err)\(([^;]*?)(?:,\s*DT_LOG_|\);)", text, re.S):
        names |= {name.rstrip(' \\\\') for name in re.findall(r'"((?:[^"\\]|\\.)+)"', found[1])}
    names |= set(re.findall(r'return "(engine [a-z ]+)";', source("daemons/workerd")))
    names |= set(re.findall(r'SEVERITY__(?:WARNING|ERROR),\s*"([a-z-]+)"', source("lib/core")))
    expect_told("Log", names)
    told = re.search(r"^## Log\n(.*?)^## ", (TREE / "docs" / "operations.md").read_text(), re.M | re.S)
    assert told
    for name in re.findall(r"`([^`]*)`", "".join(line.split("|")[1] for line in told[1].splitlines() if line.startswith("| `"))):
        assert f'"{name}' in text, f"no daemon says {name!r}"


def figures(_: str) -> None:
    """The table of figures is made from the newest run that is kept."""
    newest = max((TREE / "docs" / "bench").glob("*.jsonl"))
    text = (TREE / "docs" / "bench" / "README.md").read_text()
    assert newest.name in text and table.table(newest) in text, f"make the table anew: tests/bench/table.py {newest.relative_to(TREE)}"


def main() -> int:
    build, *only = devicetest.arguments()
    suite = devicetest.Suite("tutorial", only)
    for document in ("tutorial.md", "coming-from.md"):
        suite.check(f"{document} is followed", lambda document=document: follow(document, build))
    for what, function in (("commands of dtorchctl", verbs), ("flags of daemons", flags), ("targets of make", targets), ("alarms", alarms),
                           ("warnings", warnings), ("metrics", metrics), ("figures", figures)):
        suite.check(f"{what} are told as they are", lambda function=function: function(build))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
