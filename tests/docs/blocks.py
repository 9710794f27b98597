"""The code blocks of a document, and what a reader would do with them.

A block begins with ``` and a language. Words behind the language, which readers do not see, say more:

  sh            typed into the first terminal, where it must succeed; with `fails` it must fail
  sh other      typed into a terminal of its own, where it goes on until the end, as by Ctrl-C
  sh again      may be typed again and again until it shows what the block after it says: for what only looks
  python, c     written to the file that the first line names, `# train.py` or `/* train.c */`
  text          what the block before it prints, all of it. `...` is any text, alone on a line any lines
  text about    the same, with any number for each number, its unit included, and any room between words
  ... elsewhere  not for us: programs of others

"""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import uuid

LIMIT_S = int(os.environ.get("DT_TEST_CHECK_S", "900"))
NUMBER = r"\d[\d.:]*(?:\s*(?:ns|us|ms|s|min|h|d|%|B|KiB|MiB|GiB|TiB|GB|k|M|G)(?![a-zA-Z]))?"


@dataclasses.dataclass
class Block:
    line: int  # of its first line, in the document
    language: str
    words: frozenset[str]
    text: str


def read(path: pathlib.Path) -> list[Block]:
    """The blocks of a document, in order. Raises: ValueError (one has no end)."""
    blocks: list[Block] = []
    begin, info, lines = 0, "", []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```") and not begin:
            begin, info, lines = number + 1, line[3:], []
        elif line.startswith("```"):
            language, *words = info.split() or [""]
            blocks.append(Block(begin, language, frozenset(words), "".join(f"{text}\n" for text in lines)))
            begin = 0
        elif begin:
            lines.append(line)
    if begin:
        raise ValueError(f"{path}:{begin}: a block has no end")
    return blocks


def pattern(said: Block) -> str:
    """A regular expression for what a text block says."""
    parts = []
    for line in said.text.splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
            continue
        pieces = [re.escape(piece) for piece in line.rstrip().split("...")]
        if "about" in said.words:
            pieces = [r"\s+".join(words(piece)) for piece in line.rstrip().split("...")]
        room = r"[ \t]*" if "about" in said.words else ""
        parts.append(room + ".*".join(pieces) + r"[ \t]*\n")
    return "".join(parts)


def words(piece: str) -> list[str]:
    """Words with any number for each number. The rooms before and behind are words without letters."""
    masked = re.sub(NUMBER, "\0", piece)
    return [re.escape(word).replace("\0", NUMBER) for word in re.split(r"\s+", masked)]


class Terminal:
    """A shell that keeps its folder, variables and jobs from one command to the next."""

    def __init__(self, environment: dict[str, str], output: pathlib.Path) -> None:
        self.output = output
        with output.open("wb") as file:
            self.shell = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, env=environment,
                                          start_new_session=True)
        self.send("trap DT_BAD=1 ERR\n")

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def send(self, text: str) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write(text.encode())
        self.shell.stdin.flush()

    def run(self, text: str) -> tuple[str, int]:
        """What commands print, and 1 if one of them failed, else 0. Raises: AssertionError (the limit is over)."""
        mark, begin = uuid.uuid4().hex, len(self.said())
        self.send(f"DT_BAD=0\n{text}\necho {mark} $DT_BAD\n")
        found = None
        until = time.monotonic() + LIMIT_S
        while not found and time.monotonic() < until and self.shell.poll() is None:
            time.sleep(0.02)
            found = re.search(rf"{mark} (\d+)\n", self.said()[begin:])
        assert found, f"it does not end: {text}{self.said()[begin:][-2000:]}"
        return self.said()[begin:begin + found.start()], int(found[1])

    def end(self, number: int) -> None:
        """Send a signal to all that runs there, and wait for the shell."""
        try:
            os.killpg(self.shell.pid, number)
        except ProcessLookupError:
            pass
        self.shell.wait(LIMIT_S)


class Reader:
    """Does what a document says, in a folder of its own; `replaced` are texts that stand for others there."""

    def __init__(self, environment: dict[str, str], folder: pathlib.Path, replaced: dict[str, str]) -> None:
        self.environment, self.folder, self.replaced = environment, folder, replaced
        self.others: list[Terminal] = []
        self.first = self.open()

    def open(self) -> Terminal:
        number, name = tempfile.mkstemp(dir=self.folder, prefix="terminal.")
        os.close(number)
        return Terminal(self.environment, pathlib.Path(name))

    def follow(self, blocks: list[Block]) -> None:
        """Raises: AssertionError with the line of the block that is not as it is told."""
        blocks = [dataclasses.replace(block, text=self.ours(block.text)) for block in blocks]
        for index, block in enumerate(blocks):
            behind = blocks[index + 1] if index + 1 < len(blocks) else None
            said = behind if behind and behind.language == "text" and "elsewhere" not in behind.words else None
            text = block.text
            if "elsewhere" in block.words or block.language == "text":
                continue
            if block.language in ("python", "c"):
                self.write(block, text)
            elif block.language == "sh" and "other" in block.words:
                self.type_elsewhere(block, text, said)
            elif block.language == "sh":
                self.type(block, text, said)
            else:
                raise AssertionError(f"line {block.line}: a block of {block.language!r} is for nobody")

    def ours(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def write(self, block: Block, text: str) -> None:
        name = re.match(r"(?:#|/\*) ([a-z_]+\.(?:py|c))\b", text)
        assert name, f"line {block.line}: the first line names no file"
        folder, _ = self.first.run("pwd")
        pathlib.Path(folder.strip(), name[1]).write_text(text)

    def type(self, block: Block, text: str, said: Block | None) -> None:
        until = time.monotonic() + LIMIT_S / 2
        while True:
            got, status = self.first.run(text)
            is_right = (status != 0) == ("fails" in block.words) and (not said or re.fullmatch(pattern(said), got) is not None)
            if is_right or "again" not in block.words or time.monotonic() > until:
                break
            time.sleep(0.1)
        assert is_right, f"line {block.line}: {text.strip()}: {'failed' if status else 'succeeded'}, and prints\n{got}" + (
            f"where line {said.line} says\n{said.text}" if said else "")

    def type_elsewhere(self, block: Block, text: str, said: Block | None) -> None:
        terminal = self.open()
        self.others.append(terminal)
        terminal.send(f"exec {text}" if text.count("\n") == 1 else text)
        until = time.monotonic() + LIMIT_S / 2
        while said and not re.search(pattern(said), terminal.said()):
            assert time.monotonic() < until and terminal.shell.poll() is None, f"line {block.line}: {text} says {terminal.said()[-3000:]}"
            time.sleep(0.05)

    def end(self) -> list[str]:
        """End all that runs, as Ctrl-C would; gives what is left running."""
        self.first.end(signal.SIGTERM)
        for terminal in self.others:
            terminal.end(signal.SIGINT)
        command = ["pgrep", "-a", "-r", "R,S,D,T", "-s", ",".join(str(terminal.shell.pid) for terminal in (self.first, *self.others))]
        until = time.monotonic() + LIMIT_S / 2
        while (left := subprocess.run(command, capture_output=True, text=True, check=False).stdout) and time.monotonic() < until:
            time.sleep(0.05)
        return left.splitlines()
