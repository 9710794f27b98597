"""A headless Chromium, spoken to over two pipes: what a test of a page needs of it, by the standard library alone.

Everything that the browser writes to its console, every exception and every request that failed is kept in `complaints`.
"""

from __future__ import annotations

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
import typing

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 300.0  # the first start of a browser on a busy machine takes its time


def find_browser() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Browser:
    """A browser with one page. Raises RuntimeError when it ends, answers with an error, or not within PATIENCE_S."""

    session: str | None = None  # of the page, once we are attached to it

    def __init__(self, program: str, width: int = 1280, height: int = 900) -> None:
        self.folder = tempfile.mkdtemp(prefix="dtpage.")
        down_read, self.down = os.pipe()
        self.up, up_write = os.pipe()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.number = 0
        self.rest = b""
        arguments = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                     "--remote-debugging-pipe", f"--user-data-dir={self.folder}", f"--window-size={width},{height}",
                     "about:blank"]
        if program.endswith("headless-shell"):
            arguments.remove("--headless")
        # The browser reads from descriptor 3 and writes to 4.
        self.process = subprocess.Popen(["/bin/sh", "-c", f'exec "$@" 3<&{down_read} 4>&{up_write}', "sh", *arguments],
                                        pass_fds=(down_read, up_write), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down_read)
        os.close(up_write)
        self.session = self.call("Target.attachToTarget", targetId=self.first_page(), flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def first_page(self) -> str:
        """The page that it opens by itself: it answers before there is one."""
        until = time.monotonic() + PATIENCE_S
        while not (pages := [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]):
            if time.monotonic() > until:
                raise RuntimeError("the browser opens no page")
            time.sleep(0.05)
        return pages[0]["targetId"]

    def receive(self, until: float) -> dict[str, typing.Any]:
        """The next message."""
        while b"\0" not in self.rest:
            if not select.select([self.up], [], [], max(0.0, until - time.monotonic()))[0]:
                raise RuntimeError(f"the browser does not answer; it complained of {self.complaints}")
            more = os.read(self.up, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self.rest += more
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def note(self, message: dict[str, typing.Any]) -> None:
        """Keep what an event tells."""
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.complaints.append("exception: " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console: {[a.get('value') for a in what['args']]}")
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"log: {what['entry']['text']} {what['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def call(self, method: str, **params: typing.Any) -> dict[str, typing.Any]:
        """Call a method of the DevTools protocol and give its result."""
        self.number += 1
        message: dict[str, typing.Any] = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.down, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self.receive(until)
            if answer.get("id") != self.number:
                self.note(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def open(self, url: str) -> None:
        """Go to an address; the page may still be loading."""
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> typing.Any:
        """The value of an expression in the page, as JSON carries it."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression: str) -> typing.Any:
        """Wait until an expression is true, and give it. Raises AssertionError when it is not within PATIENCE_S."""
        until = time.monotonic() + PATIENCE_S
        while True:
            value = self.value(expression)
            if value:
                return value
            if time.monotonic() > until:
                raise AssertionError(f"not true in time: {expression}; the page says: "
                                     f"{self.value('document.body.innerText')!r}; complaints: {self.complaints}")
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key: "ArrowRight", "Enter", "/"."""
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        what = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **what)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def scheme(self, name: str) -> None:
        """Prefer "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path: str | pathlib.Path) -> None:
        """Write what is seen as a PNG."""
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self.down)
        os.close(self.up)
        shutil.rmtree(self.folder, ignore_errors=True)
