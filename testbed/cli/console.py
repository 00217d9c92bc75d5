"""Progress bars, tables and warnings on a terminal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from testbed.errors import BadInput
from testbed.measure.result_model import Column, Row
from testbed.spec.scenario import Scenario
from testbed.workload.job.job import unused_inputs
from testbed.workload.schedules.optimal_search import LISTENER


class _More(ProgressColumn):
    """A column with a task's `more` field, if any."""

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("more", ""))


def progress_bar(console: Console) -> Progress:
    """Return a progress bar with description, elapsed time and a task's `more`; hidden without a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        _More(),  # last, as narrow terminals cut it off
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def show_schedule_search(console: Console) -> Iterator[None]:
    """Show the progress of schedule searches within the block."""
    with progress_bar(console) as bar:
        task = bar.add_task("", total=None, visible=False)
        with listen_to_schedule_search(lambda words: bar.update(task, description=words, visible=True)):
            yield


@contextlib.contextmanager
def listen_to_schedule_search(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report` with the progress of schedule searches within the block."""
    token = LISTENER.set(lambda words: report(f"searching for a schedule: {words}"))
    try:
        yield
    finally:
        LISTENER.reset(token)


PIPE_COLUMNS = 200  # columns without a terminal; narrower tables break names


def print_rows(rows: Iterable[Row], columns: Sequence[Column[Row]]) -> list[Row]:
    """Print each row as it arrives, headings before the first, and return all rows."""

    def line(cells: Iterable[Any]) -> str:
        found = (str(cell).rjust(column.width) for cell, column in zip(cells, columns, strict=True))
        return " ".join(found).rstrip()

    found: list[Row] = []
    for row in rows:
        if not found:
            print(line(column.heading for column in columns))
            print(line(column.unit for column in columns))
        found.append(row)
        print(line(column.text(row) for column in columns), flush=True)
    return found


def console_of_tables() -> Console:
    """Return a console for tables: as wide as the terminal or `COLUMNS`, or wide enough for names in a pipe or file."""
    console = Console(highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=PIPE_COLUMNS)


def warn_unused_inputs(scenario: Scenario, strict: bool = False) -> None:
    """Warn about each ignored part of the job's files. Raises BadInput if `strict` and there is one."""
    found = unused_inputs(scenario)
    if found and strict:
        hint = "\n".join(f"left out: {what}" for what in found)
        got = f"{len(found)} left out"
        raise BadInput(where=f"{scenario.name}: --strict", got=got, expected="none", hint=hint)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for what in found:
        console.print(f"left out: {what}", markup=False)
