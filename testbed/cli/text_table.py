"""Rows of figures as text in columns: of one width each, printed as they are measured; how wide a table may be."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rich.console import Console

PIPED = 200  # columns where nobody says how many there are: a table that is narrower breaks names

Row = TypeVar("Row")


def print_rows(
    rows: Iterable[Row],
    headings: Sequence[Sequence[str]],
    widths: Sequence[int],
    cells: Callable[[Row], Sequence[Any]],
) -> list[Row]:
    """All of them, each printed as it comes; headings before the first, behind what is told until there is one."""

    def line(own: Sequence[Any]) -> str:
        return " ".join(str(cell).rjust(width) for cell, width in zip(own, widths, strict=True)).rstrip()

    found: list[Row] = []
    for row in rows:
        if not found:
            print("\n".join(map(line, headings)))
        found.append(row)
        print(line(cells(row)), flush=True)
    return found


def console_of_tables() -> Console:
    """Standard output as wide as its terminal is, or `COLUMNS` says; in a pipe or a file wide enough for names."""
    console = Console(highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=PIPED)
