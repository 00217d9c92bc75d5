"""Hold the docs' figures against the commands that give them, and list those that are stale.

    python benchmarks/docs_figures.py                # all marked figures that the model gives: half an hour
    python benchmarks/docs_figures.py --run          # and those of runs under the virtual clock: two hours
    python benchmarks/docs_figures.py README.md docs/explanation/model.md --only quickstart

A page marks figures with a comment in front of a paragraph, a table or a listing. The first form holds each quantity of
what follows, the second those that are named, which must stand there, too, the third those in the columns of a table
whose headings begin so. In the fourth each row of a table has a command of its own: `{row}` is the code that the row
begins with. Decimal numbers without a unit count only in what `python` prints.

    <!-- figures of: testbed predict quickstart -->
    <!-- figures of: testbed predict quickstart: 1.977 s, 1.523 s -->
    <!-- figures of: testbed predict transports/step-70b: columns the model -->
    <!-- figures of: testbed explore explore/{row}: columns production, atlas -->
    <!-- figures of: python benchmarks/datagram_model.py -->
    <!-- seconds of CPU of: testbed plan quickstart: 1.2 s -->

A quantity is stale when the command's output has none of its unit that rounds to it, at the digits that the page shows;
seconds of CPU when they are less than half or more than twice. Exit status 1 when something is stale.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs")
BY_MODEL = ("predict", "plan", "check", "graph", "schema", "sweep", "explore")
MARK = re.compile(
    r"^<!-- (?P<what>figures|seconds of CPU) of: (?P<command>(?:testbed|python) .+?)"
    r"(?:: (?:columns (?P<columns>.+)|(?P<named>[^:]*\d[^:]*)))? -->$"
)
# what a command's figures are of: how long it took itself, and with what
ASIDE = re.compile(r"\bin [\d.]+ m?s\b|calibration of [\d-]+ \(Linux [\d.]+\)|divided by [\d,]+")
UNITS = {
    **{"ns": ("s", 1e-9), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1.0)},
    **{"B": ("B", 1.0), "kB": ("B", 1e3), "MB": ("B", 1e6), "GB": ("B", 1e9), "TB": ("B", 1e12)},
    **{
        "bit/s": ("bit/s", 1.0),
        "Mbit/s": ("bit/s", 1e6),
        "Gbit/s": ("bit/s", 1e9),
        "Tbit/s": ("bit/s", 1e12),
    },
    **{"%": ("%", 1.0), "x": ("x", 1.0), "tokens/s": ("tokens/s", 1.0), "sequences/s": ("sequences/s", 1.0)},
}
QUANTITY = re.compile(
    r"(?<![\w.,-])(?P<number>\d[\d,]*(?:\.\d+)?) ?"
    r"(?:(?P<unit>[kMGT]?B|[MGT]?bit/s|tokens/s|sequences/s|[num]?s|%|x)(?![\w/])|(?![\w/.,]))"
)


class Quantity(NamedTuple):
    """A number with its unit; half: of its last digit, by which rounding may have changed it."""

    text: str
    kind: str
    value: float
    half: float


@dataclass(frozen=True)
class Mark:
    """A comment in a page, with the figures that it holds. line: where the comment is, from 1."""

    page: Path
    line: int
    what: str
    command: str
    figures: tuple[tuple[int, Quantity], ...] = field(repr=False)
    missing: tuple[str, ...] = ()


class Output(NamedTuple):
    """What a command printed, and the processor time that it took."""

    status: int
    text: str
    cpu_s: float


def quantities(text: str, bare: bool = False) -> Iterator[Quantity]:
    """All quantities of a text, in its order. bare: decimal numbers without a unit, too."""
    for found in QUANTITY.finditer(ASIDE.sub("", text)):
        if found["unit"] is None and not (bare and "." in found["number"]):
            continue
        kind, factor = UNITS[found["unit"]] if found["unit"] else ("no unit", 1.0)
        _, point, decimals = found["number"].partition(".")
        value = float(found["number"].replace(",", ""))
        half = 0.5 * 10.0 ** -len(decimals) if point else 0.5
        yield Quantity(found[0].strip(), kind, value * factor, half * factor)


def agrees(shown: Quantity, found: Sequence[Quantity]) -> bool:
    """Whether one of those found is the one shown, at the digits of both."""
    return any(
        shown.kind == own.kind and abs(shown.value - own.value) <= (shown.half + own.half) * (1 + 1e-9)
        for own in found
    )


def marks_of(page: Path) -> Iterator[Mark]:
    """All marks of a page; a comment marks what follows until an empty line, and a listing until it ends."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        found = MARK.match(line)
        if found is None:
            continue
        block = list(_block(lines, number + 1))
        bare = found["command"].startswith("python")
        missing: list[str] = []
        columns = None
        if found["columns"] is not None:
            starts = tuple(found["columns"].split(", "))
            columns = [at for at, name in enumerate(_cells(lines[block[0]])) if name.startswith(starts)]
            missing = [] if columns else [f"columns {found['columns']}"]
        figures: dict[str, list[tuple[int, Quantity]]] = {}
        if found["named"] is None:
            for place in block[2:] if columns else block:
                row = re.match(r"\| *`([^`]+)`", lines[place])
                if row is None and "{row}" in found["command"]:
                    continue
                command = found["command"].replace("{row}", row[1] if row else "")
                cells = _cells(lines[place])
                text = lines[place] if columns is None else " | ".join(cells[at] for at in columns)
                figures.setdefault(command, []).extend((place + 1, one) for one in quantities(text, bare))
        else:
            named = [one.strip() for one in found["named"].split(", ")]
            text = " ".join(" ".join(lines[place] for place in block).split())
            figures[found["command"]] = [(number + 1, one) for word in named for one in quantities(word)]
            missing = [word for word in named if not re.search(_number(word), text)]
        for command, held in figures.items():
            yield Mark(page, number + 1, found["what"], command, tuple(held), tuple(missing))


def _number(word: str) -> str:
    """The digits of a quantity, as a sentence may have them: "1.977 and 1.523 s" has 1.977 s."""
    return rf"(?<![\d.]){re.escape(word.split(maxsplit=1)[0].rstrip('x%'))}(?![\d]|\.\d)"


def _cells(line: str) -> list[str]:
    """The cells of a table's row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _block(lines: Sequence[str], start: int) -> Iterator[int]:
    """The lines after a mark: a paragraph, a table, or a listing with the empty lines in it; further marks aside."""
    place = start
    while place < len(lines) and (not lines[place].strip() or MARK.match(lines[place])):
        place += 1
    listing = place < len(lines) and lines[place].startswith("    ")
    while place < len(lines):
        line = lines[place]
        if listing and line.strip() and not line.startswith("    "):
            return
        if not listing and not line.strip():
            return
        yield place
        place += 1


@cache
def output_of(command: str) -> Output:
    """Run a command of a page, and keep what it printed for the next page that has it."""
    program, *words = shlex.split(command)
    with tempfile.TemporaryDirectory(prefix="docs-figures-") as folder:
        if program == "testbed" and words[0] in ("run", "sweep", "explore"):
            words += ["-o", f"{folder}/{words[0]}"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *(["-m", "testbed"] if program == "testbed" else []), *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "200"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Output(done.returncode, done.stdout + (done.stderr if done.returncode else ""), cpu_s)


def stale_of(mark: Mark) -> Iterator[str]:
    """A line for each figure of a mark that its command does not give."""
    where = f"{mark.page.relative_to(ROOT)}"
    for word in mark.missing:
        yield f"{where}:{mark.line}: {word}: got a mark, expected it in what follows, too"
    output = output_of(mark.command)
    if output.status != 0:
        said = " ".join(output.text.split())[-200:]
        yield f"{where}:{mark.line}: {mark.command}: got status {output.status} ({said}), expected 0"
        return
    found = list(quantities(output.text, mark.command.startswith("python")))
    for line, figure in mark.figures:
        if mark.what == "seconds of CPU":
            if not output.cpu_s / 2 <= figure.value <= 2 * output.cpu_s:
                took = f"about {output.cpu_s:.2g} s of CPU"
                yield f"{where}:{line}: got {figure.text}, expected {took} of `{mark.command}`"
        elif not agrees(figure, found):
            near = [own for own in found if own.kind == figure.kind]
            nearest = min(near, key=lambda own: abs(own.value - figure.value), default=None)
            said = f"{nearest.text} as the nearest" if nearest else f"any in {figure.kind}"
            yield f"{where}:{line}: got {figure.text}, expected {said} of `{mark.command}`"


def marks_in(pages: Sequence[str], only: str = "", runs: bool = False) -> list[Mark]:
    """Of pages and folders of pages, those whose command has the words, and is to be run."""
    files = [
        file
        for name in pages
        for file in (sorted((ROOT / name).rglob("*.md")) if (ROOT / name).is_dir() else [ROOT / name])
    ]
    allowed = (*BY_MODEL, "run") if runs else BY_MODEL
    return [
        mark
        for file in files
        for mark in marks_of(file)
        if only in mark.command and (mark.command.startswith("python") or mark.command.split()[1] in allowed)
    ]


def main() -> int:
    """Print what is stale; the exit status says whether anything is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "pages", nargs="*", default=PAGES, help="files or folders; default: README.md and docs"
    )
    parser.add_argument("--only", default="", help="only commands with these words")
    parser.add_argument("--run", action="store_true", help="also runs under the virtual clock")
    asked = parser.parse_args()
    marks = marks_in(asked.pages, asked.only, asked.run)
    stale = [line for mark in marks for line in stale_of(mark)]
    print("\n".join(stale))
    count = sum(len(mark.figures) for mark in marks)
    print(
        f"{count} figures of {len({mark.command for mark in marks})} commands, {len(stale)} stale",
        file=sys.stderr,
    )
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
