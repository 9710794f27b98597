"""Build backend of the Python package (PEP 517): a wheel of Python files and of what the repository's Makefile builds.

usage: build_dtorch.py tree FOLDER BUILD    lay the package out in FOLDER by links, with what make has built in BUILD; a Python
                                            with FOLDER on its path has the package as if it were installed

The wheel carries libdtorch_torch.so (for one minor version of torch), libdtorch.so, the daemons and the torch backend: what a
private cluster needs. Environment: DTORCH_MAKE_FLAGS go to make, as "-j8 WITH_CUDA=no"."""

import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FIND_TORCH = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
# In the package: where it is in the build folder.
PAYLOAD = {
    "lib/libdtorch_torch.so": "lib/libdtorch_torch.so",
    "lib/libdtorch.so.0": "lib/libdtorch.so",
    "bin/dtorch-controllerd": "bin/dtorch-controllerd",
    "bin/dtorch-workerd": "bin/dtorch-workerd",
    "bin/dtorchctl": "bin/dtorchctl",
    "lib/dtorch/backends/dtorch-backend-torch.so": "lib/dtorch/backends/dtorch-backend-torch.so",
}


def version() -> str:
    """The repository's version as Python writes versions: "0.1.0" or "0.1.0+g1234abc"."""
    text = subprocess.run(["sh", "mk/version.sh"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    public, _, local = text.lstrip("v").partition("-")
    return public + ("+" + local.replace("-", ".") if local else "")


def torch_folder() -> str:
    """Where the torch of this Python lies, outside the isolation that pip may build in. Raises: SystemExit (there is none)."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    found = subprocess.run([sys.executable, "-c", FIND_TORCH], env=environment, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise SystemExit("dtorch: this Python has no torch; install torch first, the device is built against it")
    return found.stdout.strip()


def torch_version(folder: str) -> str:
    """"2.11.0" of a torch package's folder."""
    scope: dict[str, str] = {}
    exec((pathlib.Path(folder) / "version.py").read_text(), scope)
    return scope["__version__"].partition("+")[0]


def build() -> tuple[pathlib.Path, str]:
    """Run make; returns the build folder and torch's version. Raises: CalledProcessError."""
    folder = torch_folder()
    flags = os.environ.get("DTORCH_MAKE_FLAGS", f"-j{os.cpu_count()}").split()
    subprocess.run(["make", "all", "PRESET=release", "WITH_TORCH=yes", f"TORCH_DIR={folder}", *flags], cwd=ROOT, check=True,
                   stdout=sys.stderr)
    return ROOT / "build" / "release", torch_version(folder)


def metadata() -> dict[str, str]:
    """The files of the .dist-info folder but RECORD, by name."""
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: dtorch\nVersion: {version()}\nRequires-Python: >=3.10\n"
                    "Summary: The PyTorch device of DTorch\nLicense: Apache-2.0\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: build_dtorch\nRoot-Is-Purelib: false\nTag: py3-none-{platform()}\n",
        "entry_points.txt": "[torch.backends]\ndtorch = dtorch._start:autoload\n",
    }


def platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def python_files() -> list[pathlib.Path]:
    return sorted((HERE / "dtorch").glob("*.py"))


class Wheel:
    """A wheel being written: files, their hashes, RECORD at the end."""

    def __init__(self, path: pathlib.Path) -> None:
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self.record: list[str] = []

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        info = zipfile.ZipInfo(name)
        info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, info: str) -> None:
        for name, text in metadata().items():
            self.add(f"{info}/{name}", text.encode())
        self.zip.writestr(f"{info}/RECORD", "\n".join([*self.record, f"{info}/RECORD,,"]) + "\n")
        self.zip.close()


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """PEP 517: build, and write the wheel; returns its name."""
    built, torch = build()
    name = f"dtorch-{version()}-py3-none-{platform()}.whl"
    wheel = Wheel(pathlib.Path(wheel_directory) / name)
    for path in python_files():
        wheel.add(f"dtorch/{path.name}", path.read_bytes())
    wheel.add("dtorch/lib/torch-version", f"{torch}\n".encode())
    for inside, outside in PAYLOAD.items():
        wheel.add(f"dtorch/{inside}", (built / outside).read_bytes(), 0o755)
    wheel.close(f"dtorch-{version()}.dist-info")
    return name


def build_editable(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """PEP 660: a wheel that points to a layout of links in build/python, so that changed Python files count at once."""
    built, torch = build()
    lay_out(ROOT / "build" / "python", built, torch)
    name = f"dtorch-{version()}-py3-none-any.whl"
    wheel = Wheel(pathlib.Path(wheel_directory) / name)
    wheel.add("dtorch.pth", f"{ROOT / 'build' / 'python'}\n".encode())
    wheel.close(f"dtorch-{version()}.dist-info")
    return name


def link(path: pathlib.Path, target: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def lay_out(folder: pathlib.Path, built: pathlib.Path, torch: str) -> None:
    """The package in a folder, by links to its files and to what was built."""
    for old in (folder / "dtorch").glob("*.py"):
        old.unlink()
    for path in python_files():
        link(folder / "dtorch" / path.name, path)
    for inside, outside in PAYLOAD.items():
        link(folder / "dtorch" / inside, built.resolve() / outside)
    (folder / "dtorch" / "lib" / "torch-version").write_text(f"{torch}\n")
    info = folder / "dtorch-0.dist-info"
    info.mkdir(exist_ok=True)
    for name, text in metadata().items():
        (info / name).write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "tree":
        sys.exit(__doc__)
    lay_out(pathlib.Path(sys.argv[2]).absolute(), pathlib.Path(sys.argv[3]).absolute(), torch_version(torch_folder()))
