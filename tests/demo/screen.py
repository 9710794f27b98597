"""What the demonstration draws: headings with the time, commands with what they say, and a curve of losses, on the terminal and
as a picture."""

import pathlib
import sys
import time
from typing import Any

WIDTH, HEIGHT = 60, 10
BEGIN = time.monotonic()


def say(text: str) -> None:
    """A heading, with the seconds since the begin."""
    print(f"\n[{time.monotonic() - BEGIN:5.1f} s] {text}", flush=True)


def progress(text: str, done: int, total: int) -> None:
    """A bar that is drawn over itself on a terminal; elsewhere only its end is written."""
    if sys.stdout.isatty() or done == total:
        filled = 30 * done // max(total, 1)
        begin = "\r" if sys.stdout.isatty() else ""
        print(f"{begin}  [{'#' * filled}{'.' * (30 - filled)}] {text}", end="\n" if done == total else "", flush=True)


def curve(losses: list[float]) -> str:
    """The losses as a plot of text, the first step at the left."""
    low, high = min(losses), max(losses)
    span = max(high - low, 1e-12)
    column = max(1, min(6, WIDTH // len(losses)))
    rows = []
    for row in range(HEIGHT, -1, -1):
        marks = "".join(("*" if round((loss - low) / span * HEIGHT) == row else " ").ljust(column) for loss in losses)
        label = f"{low + span * row / HEIGHT:8.4f}" if row in (0, HEIGHT) else " " * 8
        rows.append(f"  {label} |{marks}".rstrip())
    rows.append(f"  {'':8} +{'-' * column * len(losses)}\n  {'':8}  step 1 to {len(losses)}")
    return "\n".join(rows)


def picture(path: pathlib.Path, curves: dict[str, list[float]]) -> None:
    """The same as a PNG: one colour a curve, a circle a step."""
    from PIL import Image, ImageDraw

    width, height, edge = 900, 500, 70
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    values = [loss for losses in curves.values() for loss in losses]
    low, span = min(values), max(max(values) - min(values), 1e-12)
    draw.line([(edge, edge // 2), (edge, height - edge), (width - edge // 2, height - edge)], fill="black", width=2)
    for part in range(5):
        y = height - edge - part / 4 * (height - 2 * edge)
        draw.text((8, y - 6), f"{low + span * part / 4:.4f}", fill="black")
    for index, (name, losses) in enumerate(curves.items()):
        points = [place(step, loss, len(losses), low, span, (width, height, edge)) for step, loss in enumerate(losses)]
        color = ("#1f6feb", "#d1242f")[index % 2]
        draw.line(points, fill=color, width=3)
        for x, y in points:
            size = 7 - 4 * index
            draw.ellipse([x - size, y - size, x + size, y + size], outline=color, width=3)
        draw.text((width // 2, edge // 2 + 16 * index), name, fill=color)
    draw.text((width // 2 - 20, height - edge // 2), "step", fill="black")
    image.save(path)


def place(step: int, loss: float, steps: int, low: float, span: float, size: tuple[int, int, int]) -> tuple[float, float]:
    """Where a step's loss is drawn. Units: pixels."""
    width, height, edge = size
    return edge + step / max(steps - 1, 1) * (width - 2 * edge), height - edge - (loss - low) / span * (height - 2 * edge)


class Answer:
    """Writes the first row of what a model generates, as it comes: what transformers calls a streamer."""

    def __init__(self, tokenizer: Any, skip: int, seen: Any = None) -> None:
        """skip: tokens of the prompt, which come first. seen: called with the number of new tokens at each one."""
        self.tokenizer, self.skip, self.seen = tokenizer, skip, seen
        self.tokens: list[int] = []
        self.written, self.first_s = "", 0.0
        self.begin = time.monotonic()

    def put(self, value: Any) -> None:
        """The next token of each row, or the prompts. Shapes: (rows,), or (rows, length)."""
        if value.dim() > 1:
            return
        self.first_s = self.first_s or time.monotonic() - self.begin
        self.tokens.append(int(value[0]))
        text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # half a letter: the next token has the other half
            print(text[len(self.written):].replace("\n", "\n  "), end="", flush=True)
            self.written = text
        if self.seen is not None:
            self.seen(len(self.tokens))

    def end(self) -> None:
        print(flush=True)
