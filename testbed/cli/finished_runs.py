"""Commands on finished runs: render the report again, compare two runs, repeat a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.experiments import run as experiment
from testbed.cli.options import JobsOption, JsonOption, OutputOption
from testbed.cli.run_output import show_progress
from testbed.measure.results.result import Result
from testbed.measure.results.run_directory import chown_to_sudo_user
from testbed.show.report import write_report
from testbed.show.report.run_comparison import Comparison, compare_runs, describe_unequal_work
from testbed.spec.units import time_text

EXIT_DIFFERENT = 4
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A folder created by `testbed run`.")]


def report(
    run: RunArgument,
    panels: Annotated[
        list[str] | None,
        typer.Option("--panel", metavar="NAME", help="An additional panel: a panel's name, or FILE.py:NAME."),
    ] = None,
) -> None:
    """Render a run's report and timeline again, from its files."""
    Result.open(run)
    path = write_report(run, panels or ())
    chown_to_sudo_user(run)
    Console(highlight=False).print(f"Report: {path}", soft_wrap=True)


def compare(
    one: RunArgument,
    other: Annotated[Path, typer.Argument(metavar="RUN", help="Another run.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: step times by variant, verdicts, and differences between their setups."""
    _print(compare_runs(one, other), as_json)


def reproduce(
    run: RunArgument,
    output: OutputOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a run from its folder, with its clock and scale, and compare. Exit status 4: they differ."""
    with show_progress(Console(stderr=True, highlight=False)) as listener:
        found, target = experiment.reproduce(run, output, jobs, listener)
    _print(found, as_json)
    Console(stderr=True, highlight=False).print(f"report: {target / 'report.html'}", soft_wrap=True)
    if not found.agrees:
        raise typer.Exit(EXIT_DIFFERENT)


def _print(found: Comparison, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.document(), indent=1))
        return
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("variant")
    for heading in ("one", "other", "other / one", "95 %"):
        table.add_column(heading, justify="right")
    table.add_column("verdicts")
    for held in found.variants:
        low_high = "" if held.interval is None else f"{held.interval[0]:.4f} to {held.interval[1]:.4f}"
        verdicts = " and ".join(dict.fromkeys(held.verdicts))
        times = time_text(held.one_s), time_text(held.other_s)
        ratio = "the same" if held.exact else f"{held.ratio:.4f}"
        table.add_row(held.name, *times, ratio, low_high, verdicts)
    console.print(table)
    for held in found.variants:
        if words := describe_unequal_work(held):
            console.print(words, markup=False, soft_wrap=True)
    if found.alone:
        console.print(f"In one run only: {', '.join(found.alone)}.")
    for entry in found.differences:
        console.print(f"different: {entry.what}: {entry.one}, {entry.other}", markup=False, soft_wrap=True)
    console.print(found.words, soft_wrap=True)
    console.print("They agree." if found.agrees else "They do not agree.")
