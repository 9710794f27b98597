"""The status page in a headless Chromium, over real daemons: what it shows, that it keeps up, keys, colours, no complaints.

usage: check.py BIN [FOLDER]     BIN holds the daemons; pictures are left in FOLDER
Ends with "page: N passed, N failed, N skipped".
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import typing

from browser import PATIENCE_S, Browser, find_browser

HOSTILE = "\"></p><img src=x onerror=hit=1><script>hit=1</script>"
NODES = ("w0", "w1", "w2")


class Cluster:
    """A controller with its page, and three workers with two simulated devices each, in a folder of their own."""

    def __init__(self, programs: pathlib.Path) -> None:
        self.programs = programs
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="dtpage."))
        # Bound and not listening: the kernel gives it to nobody else, and a daemon may bind it once more.
        self.kept = socket.socket()
        self.kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.kept.bind(("127.0.0.1", 0))
        self.url = f"http://localhost:{self.kept.getsockname()[1]}/"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.write("controller", f"[Controller]\nClusterName=page\nListen={self.folder}/c.sock\nAdminSocket={self.folder}/a.sock\n"
                   f"StateDirectory={self.folder}/controller\nMetricsListen=none\nSuspectBeats=20\nDeadBeats=240\n"
                   f"StatusListen=127.0.0.1:{self.kept.getsockname()[1]}\n")
        for node in NODES:
            self.write(node, f"[Worker]\nController={self.folder}/c.sock\nNodeName={node}\nStateDirectory={self.folder}/{node}\n"
                       "Devices=sim:2\nMetricsListen=none\nDataListen=127.0.0.1:0\nRack=r1\n")

    def write(self, name: str, text: str) -> None:
        """A daemon's configuration and folder."""
        (self.folder / name).mkdir()
        (self.folder / f"{name}.conf").write_text(text)

    def start(self, name: str) -> None:
        """Start a daemon."""
        program = self.programs / ("dtorch-controllerd" if name == "controller" else "dtorch-workerd")
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen([str(program), "--config", str(self.folder / f"{name}.conf")],
                                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """kill -9."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running.pop(name).wait()

    def ctl(self, *words: str) -> None:
        """Have dtorchctl do something, as soon as it can."""
        until = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run([str(self.programs / "dtorchctl"), *words], capture_output=True, text=True, check=False,
                                  env=os.environ | {"DTORCH_ADMIN_SOCKET": f"{self.folder}/a.sock"})
            if done.returncode == 0:
                return
            if time.monotonic() > until:
                raise AssertionError(f"dtorchctl {words}: {done.stderr}")
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"---- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        """End all daemons and take the folder away."""
        for program in reversed(self.running.values()):
            program.terminate()
        for program in self.running.values():
            program.wait(60)
        self.kept.close()
        shutil.rmtree(self.folder)


def card(node: str) -> str:
    """The script that finds a node in the map."""
    return f"document.querySelector('#map .node[data-name={node}]')"


def is_quiet(browser: Browser) -> None:
    """Nothing was complained of, nothing came from elsewhere, and no name became code."""
    assert browser.complaints == [], browser.complaints
    assert all(request.startswith("http://localhost:") for request in browser.requests), browser.requests
    assert browser.value("typeof hit") == "undefined"
    assert browser.value("document.querySelectorAll('main img, main script').length") == 0


def shows_an_empty_cluster(cluster: Cluster, browser: Browser) -> None:
    cluster.start("controller")
    cluster.ctl("cluster", "status")
    browser.open(cluster.url)
    browser.wait("document.body && document.body.dataset.drawn")
    browser.wait("document.getElementById('name').textContent === 'page'")
    assert "No node has joined yet" in browser.value("document.getElementById('map').textContent")
    assert "No job is open" in browser.value("document.getElementById('jobs').textContent")


def shows_nodes_that_join(cluster: Cluster, browser: Browser) -> None:
    for node in NODES:
        cluster.start(node)
    for node in NODES:
        browser.wait(f"{card(node)} && {card(node)}.getAttribute('aria-label').startsWith('{node}, ok, 2 devices')")
    browser.wait("document.getElementById('tiles').innerText.includes('3 ready')")
    browser.wait("document.getElementById('events').innerText.includes('node-joined')")
    browser.wait("document.getElementById('pulse').textContent === 'all is well'")
    assert "rack r1" in browser.value("document.getElementById('map').textContent")


def hostile_text_stays_text(cluster: Cluster, browser: Browser) -> None:
    cluster.ctl("node", "cordon", "w2", "-m", HOSTILE)
    browser.wait(f"{card('w2')}.textContent.includes('cordoned')")
    browser.value(f"{card('w2')}.click()")
    browser.wait(f"document.getElementById('detail').textContent.includes({json.dumps(HOSTILE)})")
    is_quiet(browser)
    cluster.ctl("node", "uncordon", "w2")
    browser.wait(f"!{card('w2')}.textContent.includes('cordoned')")


def keys_are_enough(_cluster: Cluster, browser: Browser) -> None:
    browser.value("document.getElementById('find').focus()")
    browser.press("Escape")
    browser.press("Tab")
    browser.wait("document.activeElement.classList.contains('node')")
    browser.value(f"{card('w0')}.focus(), {card('w0')}.click()")
    browser.press("ArrowRight")
    browser.wait("document.activeElement.dataset.name === 'w1' && document.activeElement.getAttribute('aria-selected') === 'true'")
    browser.wait("document.querySelector('#detail h3').textContent === 'w1'")
    browser.press("ArrowLeft")
    browser.wait("document.activeElement.dataset.name === 'w0'")
    browser.press("/")
    browser.wait("document.activeElement.id === 'find'")
    for key in "w2":
        browser.press(key)
    browser.wait("document.querySelectorAll('#map .node').length === 1")
    browser.wait("document.getElementById('shown').textContent === '1 of 3 nodes'")
    browser.press("Escape")
    browser.wait("document.querySelectorAll('#map .node').length === 3")
    assert browser.value("document.querySelectorAll('#map [tabindex=\"0\"]').length") == 1


def is_light_and_dark(_cluster: Cluster, browser: Browser, folder: pathlib.Path | None) -> None:
    colours = []
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        colours.append(browser.value("getComputedStyle(document.body).backgroundColor"))
        if folder:
            browser.picture(folder / f"page-{scheme}.png")
    assert colours[0] != colours[1], colours


def a_worker_that_dies_is_seen(cluster: Cluster, browser: Browser) -> None:
    cluster.kill("w1")
    browser.wait(f"{card('w1')}.classList.contains('bad')")
    browser.wait("document.getElementById('alarms').innerText.includes('w1 is dead')")
    browser.wait("document.querySelector('#events .error .name').textContent === 'node-dead'")
    browser.wait("document.getElementById('pulse').textContent === '1 warning'")
    assert browser.value(f"{card('w0')}.classList.contains('bad')") is False
    cluster.start("w1")
    browser.wait(f"!{card('w1')}.classList.contains('bad')")
    browser.wait("document.getElementById('alarms').hidden")


def nothing_was_complained_of(_cluster: Cluster, browser: Browser) -> None:
    is_quiet(browser)


def a_controller_that_is_gone_is_told(cluster: Cluster, browser: Browser) -> None:
    cluster.kill("controller")
    browser.wait("!document.getElementById('banner').hidden && document.body.classList.contains('stale')")
    browser.wait("document.getElementById('banner').textContent.includes('does not answer')")
    cluster.start("controller")
    browser.wait("document.getElementById('banner').hidden && !document.body.classList.contains('stale')")
    for node in NODES:
        browser.wait(f"{card(node)}?.getAttribute('aria-label').startsWith('{node}, ok')")  # it may not have joined again


def main() -> int:
    """Run all of them on one cluster, in order; after a failure the rest is left out."""
    program = find_browser()
    if not program:
        print("page: no Chromium is installed (make deps brings chromium-headless-shell)", file=sys.stderr)
        print("page: 0 passed, 0 failed, 1 skipped")
        return 0
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    tests: tuple[typing.Callable[..., None], ...] = (
        shows_an_empty_cluster, shows_nodes_that_join, hostile_text_stays_text, keys_are_enough, is_light_and_dark,
        a_worker_that_dies_is_seen, nothing_was_complained_of, a_controller_that_is_gone_is_told)
    cluster, browser, passed, failed = Cluster(pathlib.Path(sys.argv[1]).resolve()), Browser(program), 0, 0
    try:
        for test in tests:
            try:
                test(cluster, browser, *([folder] if test is is_light_and_dark else []))
                passed += 1
            except (AssertionError, RuntimeError):
                failed += 1
                traceback.print_exc()
                print(f"FAILED {test.__name__}\n{cluster.logs()}", file=sys.stderr)
                break
    finally:
        browser.close()
        cluster.end()
    print(f"page: {passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
