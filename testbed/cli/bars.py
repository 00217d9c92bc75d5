"""The bar that commands show while something long goes on."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


class _More(ProgressColumn):
    """What a task has as `more`, if it has any."""

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("more", ""))


def bar_on(console: Console) -> Progress:
    """With what is being done, for how long, and a task's `more`; nothing where nobody looks."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        _More(),  # the last is cut where a terminal is narrow
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
