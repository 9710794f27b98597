"""A cluster for tests of the PyTorch device: a controller and a worker of this build in a folder of their own, and a proxy that
keeps bytes back for a while."""

import asyncio
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from typing import Any

import dtorch._native

BIN = dtorch._native.FOLDER.parent / "bin"
READY_S = 300  # a loaded machine takes half a minute for each LibTorch
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # http_proxy is for elsewhere


class Cluster:
    """A controller on a unix socket and on a port of 127.0.0.1, and a worker for each node, with CPU devices. `apart`: a terminal's
    Ctrl-C does not reach them, so who is waiting for them ends them."""

    def __init__(self, devices: str = "torch", worker_options: str = "", nodes: tuple[str, ...] = ("node",),
                 dead_beats: int = 240, apart: bool = False) -> None:
        self.group = 0 if apart else None  # of processes
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dtpy."))
        self.kept, self.port = keep_port()
        self.metrics: dict[str, tuple[socket.socket, int]] = {}
        self.path = f"{self.folder}/controller.sock"
        self.admin = f"{self.folder}/admin.sock"
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.write("controllerd", f"[Controller]\nClusterName=test\nListen={self.path} 127.0.0.1:{self.port}\n"
                   f"AdminSocket={self.admin}\nStateDirectory={self.folder}/controllerd\n"
                   f"MetricsListen=127.0.0.1:{self.metrics_port('controllerd')}\nStatusListen=none\n"
                   f"SuspectBeats=20\nDeadBeats={dead_beats}\n")  # a busy machine is not a dead one
        for node in nodes:
            self.write(node, f"[Worker]\nController={self.path}\nNodeName={node}\nStateDirectory={self.folder}/{node}\n"
                       f"Devices={devices}\nMetricsListen=127.0.0.1:{self.metrics_port(node)}\nDataListen=127.0.0.1:0\n{worker_options}")
        try:
            self.start("controllerd")
            for node in nodes:
                self.start(node)
            self.await_nodes(nodes)
        except BaseException:
            self.__exit__()
            raise

    def metrics_port(self, name: str) -> int:
        self.metrics[name] = keep_port()
        return self.metrics[name][1]

    def counter(self, name: str, what: str, *labels: str) -> float:
        """The sum of a daemon's metric over all its samples that have these labels, as `direction="upload"`."""
        with DIRECTLY.open(f"http://127.0.0.1:{self.metrics[name][1]}/metrics", timeout=READY_S) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines
                   if line.startswith((what + " ", what + "{")) and all(label in line for label in labels))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).mkdir()
        (self.folder / f"{name}.conf").write_text(text)

    def start(self, name: str) -> None:
        """Start the controller, or the worker of a node: again, too."""
        with (self.folder / f"{name}.log").open("ab") as log:
            program = "dtorch-controllerd" if name == "controllerd" else "dtorch-workerd"
            command = [str(BIN / program), "--config", str(self.folder / f"{name}.conf")]
            self.programs[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                   process_group=self.group)

    def ctl(self, *words: str) -> str:
        """What dtorchctl says."""
        environment = os.environ | {"DTORCH_ADMIN_SOCKET": self.admin}
        done = subprocess.run([str(BIN / "dtorchctl"), *words], env=environment, capture_output=True, text=True, timeout=READY_S,
                              check=False)
        return done.stdout + done.stderr

    def items(self, *words: str) -> list[dict[str, Any]]:
        """The list that dtorchctl shows; empty while there is none."""
        said = self.ctl(*words, "-o", "json")
        return json.loads(said)["items"] if said.startswith("{") else []

    def await_nodes(self, nodes: tuple[str, ...]) -> None:
        """Wait until each of these nodes is well and has devices."""
        deadline = time.monotonic() + READY_S
        while not set(nodes) <= {node["name"] for node in self.items("node", "list") if node["health"] == "ok" and node["devices"]}:
            if time.monotonic() > deadline:
                raise AssertionError(f"not all of {nodes} are ready: {self.ctl('node', 'list')}\n{self.logs()}")
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: Any) -> None:
        for program in reversed(self.programs.values()):
            program.terminate()
        for program in self.programs.values():
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        for kept in (self.kept, *(kept for kept, _ in self.metrics.values())):
            kept.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def keep_port() -> tuple[socket.socket, int]:
    """A port that the kernel gives to nobody else while the socket is open: bound and not listening, with SO_REUSEADDR, it can
    be bound once more by a daemon."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept, kept.getsockname()[1]


class Proxy:
    """Passes bytes between its own port and another one, each piece so many seconds late, in order, however many there are."""

    def __init__(self, port: int, delay_s: float) -> None:
        self.target, self.delay_s = port, delay_s
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait(READY_S)

    def run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self.accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self.carry(reader, there_writer), self.carry(there_reader, writer), return_exceptions=True)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

        async def deliver() -> None:
            while True:
                due, piece = await pieces.get()
                await asyncio.sleep(max(0.0, due - self.loop.time()))
                if not piece:
                    writer.close()
                    return
                writer.write(piece)
                await writer.drain()

        task = self.loop.create_task(deliver())
        while True:
            piece = await reader.read(1 << 18)
            await pieces.put((self.loop.time() + self.delay_s, piece))
            if not piece:
                await task
                return

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(READY_S)
