"""usage: table.py FILE

The figures of a run of `make bench`, FILE being its build/bench.jsonl, as a table for docs/bench/README.md: those that miss their
goal first."""

import json
import pathlib
import sys
from typing import Any


def number(value: float) -> str:
    """Four digits, without an exponent where people write none."""
    return f"{value:.4g}" if 0.001 <= abs(value) < 10000 or value == 0 else f"{value:,.0f}" if abs(value) >= 1 else f"{value:.2g}"


def misses(figure: dict[str, Any]) -> bool:
    """Whether a figure has a goal that it does not reach."""
    value, goal = figure["value"], figure["goal"]
    return bool(goal) and (value > goal if figure["better"] == "lower" else value < goal)


def table(path: pathlib.Path) -> str:
    figures = [json.loads(line) for line in path.read_text().splitlines()]
    lines = ["| figure | value | goal | | beside it, in the same run | runs |", "|---|---|---|---|---|---|"]
    for figure in sorted(figures, key=lambda figure: not misses(figure)):
        beside = f"{figure['peer']}: {number(figure['peer_value'])}" if figure["peer"] not in ("", "none") else ""
        bound = "at most" if figure["better"] == "lower" else "at least"
        goal = f"{bound} {number(figure['goal'])}" if figure["goal"] else ""
        lines.append(f"| `{figure['figure']}` | {number(figure['value'])} {figure['unit']} | {goal} | {'MISSED' if misses(figure) else ''} | {beside} "
                     f"| {figure['runs']} |")
    return "\n".join(lines) + f"\n\n{sum(map(misses, figures))} of {len(figures)} miss their goals.\n"


if __name__ == "__main__":
    sys.stdout.write(table(pathlib.Path(sys.argv[1])))
