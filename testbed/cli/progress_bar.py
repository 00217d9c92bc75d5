"""The bar that commands show while something long goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from testbed.workload.schedules.optimal_search import LISTENER


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


@contextlib.contextmanager
def searching(console: Console) -> Iterator[None]:
    """Tells how far searches for a schedule are within the block, where somebody looks."""
    with bar_on(console) as bar:
        task = bar.add_task("", total=None, visible=False)
        with told_of_searches(lambda words: bar.update(task, description=words, visible=True)):
            yield


@contextlib.contextmanager
def told_of_searches(tell: Callable[[str], None]) -> Iterator[None]:
    """`tell` hears how far searches for a schedule are within the block."""
    token = LISTENER.set(lambda words: tell(f"searching for a schedule: {words}"))
    try:
        yield
    finally:
        LISTENER.reset(token)
