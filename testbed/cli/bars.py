"""The bar that commands show while something long goes on."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def bar_on(console: Console) -> Progress:
    """With what is being done and for how long; nothing where nobody looks."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
