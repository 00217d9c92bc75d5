"""The bar that commands show while something long goes on."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def bar_on(console: Console) -> Progress:
    """With what is being done, for how long, and a task's `more`; nothing where nobody looks."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[more]}"),  # the last is cut where a terminal is narrow
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
