"""Progress, tables, warnings and results on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

from testbed.errors import BadInput
from testbed.measure.execution.progress import PartProgress, Progress, progress_text, time_left_text
from testbed.measure.execution.run import PreparedRun
from testbed.measure.result_model import Column, Row
from testbed.measure.results.manifest import Manifest
from testbed.measure.results.result import Result
from testbed.show.report import print_refusal, print_summary
from testbed.spec.scenario import Scenario
from testbed.workload.job.job import unused_inputs
from testbed.workload.schedules.optimal import LISTENER


class _More(ProgressColumn):
    """A column that shows a task's `more` field, if any."""

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("more", ""))


def progress_bar(console: Console) -> ProgressBar:
    """Return a progress bar with description, elapsed time and a task's `more`; hidden without a terminal."""
    return ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        _More(),  # last, since narrow terminals cut it off
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


def plain_table(
    names: Iterable[str],
    figures: Iterable[str] = (),
    after: Iterable[str] = (),
    rows: Iterable[Sequence[str]] = (),
) -> Table:
    """Return a table without borders, with columns of names, which may wrap, then of figures, then of words."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in names:
        table.add_column(heading, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in after:
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


PIPE_COLUMNS = 200  # width without a terminal; narrower tables break names


def print_rows(rows: Iterable[Row], columns: Sequence[Column[Row]]) -> list[Row]:
    """Print each row as it arrives, with headings before the first one, and return all rows."""

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
    """Return a console for tables: as wide as the terminal or `COLUMNS`; in a pipe or file, wide enough for names."""
    console = Console(highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=PIPE_COLUMNS)


def warn_unused_inputs(scenario: Scenario, strict: bool = False) -> None:
    """Warn about each ignored part of the job's files; raise BadInput if `strict` and there is one."""
    found = unused_inputs(scenario)
    if found and strict:
        hint = "\n".join(f"left out: {what}" for what in found)
        got = f"{len(found)} left out"
        raise BadInput(where=f"{scenario.name}: --strict", got=got, expected="none", hint=hint)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for what in found:
        console.print(f"left out: {what}", markup=False)


EXIT_UNTRUSTED = 3
"""Exit status of commands with untrusted results."""


@contextlib.contextmanager
def show_progress(console: Console, *, quiet: bool = False) -> Iterator[Progress]:
    """Show progress of runs within the block: start, phases, steps; `quiet` reports only repeated runs."""
    if quiet:

        def repeats(prepared: PreparedRun, reasons: Sequence[str]) -> None:
            if reasons:
                console.print(
                    f"untrusted ({', '.join(reasons)}): repeating, {prepared.scale}", soft_wrap=True
                )

        yield Progress(begins=repeats)
        return
    began_s = time.monotonic()
    with progress_bar(console) as bar:
        task = bar.add_task("checking", total=None)

        def begins(prepared: PreparedRun, reasons: Sequence[str]) -> None:
            scenario = prepared.request.scenario
            words = f"untrusted ({', '.join(reasons)}): repeating, {prepared.scale}"
            if not reasons:
                words = f"{scenario.name}: {scenario.ranks} ranks, {', '.join(scenario.variant_names)}, "
                words += f"policy {scenario.policy.label}; {prepared.backend.words}"
                words += "" if prepared.scale.is_one else f"; {prepared.scale}"
                words += f"\nexpected: {prepared.expectation}" if prepared.expectation else ""
            console.print(words)

        def phase(line: str) -> None:
            bar.update(task, description=line)
            console.print(f"  {line}")

        def parts(of: Sequence[PartProgress]) -> None:
            bar.update(
                task,
                more="; ".join(
                    filter(None, (time_left_text(time.monotonic() - began_s, of), progress_text(of)))
                ),
            )

        def step(done: int, total: int) -> None:
            bar.update(task, description=f"step {done + 1} of {total}", completed=done, total=total)
            if not console.is_terminal and done % max(1, total // 4) == 0:
                console.print(f"  step {done + 1} of {total}")

        with listen_to_schedule_search(lambda words: bar.update(task, description=words)):
            yield Progress(phase, step, parts, begins)


def print_result(result: Result, console: Console, *, strict: bool = False, as_json: bool = False) -> None:
    """Print the results, or with `strict`, only the reasons if they are untrusted; `console` is standard error."""
    document = result.document()
    if strict and result.status == "untrusted":
        if as_json:
            kept = ("schema", "scenario", "run_dir", "clock", "scale", "status")
            verdicts = [
                {key: variant[key] for key in ("name", "verdict")} for variant in document["variants"]
            ]
            print(json.dumps({key: document[key] for key in kept} | {"variants": verdicts}, indent=1))
        print_refusal(result, console)
    elif as_json:
        print(json.dumps(document, indent=1), flush=True)
        console.print(f"report: {Path(result.run_dir) / 'report.html'}", soft_wrap=True)
    else:
        output = Console(highlight=False)
        print_summary(result, output)
        if result.clock == "virtual" and (found := Manifest.open(Path(result.run_dir)).fingerprint):
            output.print(f"Fingerprint: {found.label}", soft_wrap=True)
