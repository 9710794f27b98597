"""usage: check.py BUILD [PART OF A NAME...]

The documents told true: each program and command of docs/tutorial.md and docs/coming-from.md is run on a cluster of daemons and what
it prints is compared; each dtorchctl command of any document exists with its options; operations.md says something of each alarm,
warning and metric that there is."""

import os
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import blocks  # noqa: E402  (the path comes first)
import devicetest  # noqa: E402

# What of the machine's own could lead a program elsewhere, and make's, which would hand its jobs on.
FOREIGN = ("DTORCH_ADDRESS", "DTORCH_ADMIN_SOCKET", "DTORCH_BIN", "DTORCH_DTENSOR_IN_SAME_DEVICE", "DTORCH_RECORD", "MAKEFLAGS", "MFLAGS",
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


def main() -> int:
    build, *only = devicetest.arguments()
    suite = devicetest.Suite("tutorial", only)
    for document in ("tutorial.md",):
        suite.check(f"{document} is followed", lambda document=document: follow(document, build))
    return suite.finish()


if __name__ == "__main__":
    sys.exit(main())
