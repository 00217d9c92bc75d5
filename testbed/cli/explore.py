"""The command `explore`: the quickest configuration of a training step, by the model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from testbed.cli.carrying import telling
from testbed.cli.options import MODEL_CLOCK, JobsOption, JsonOption, OverridesOption
from testbed.config import load_scenario
from testbed.experiments import exploring as experiment
from testbed.explorer import Exploration
from testbed.report import print_summary
from testbed.report.exploration import PAGE
from testbed.report.figures import size_text, time_text
from testbed.results.directory import default_path


def add_commands(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(explore)


def explore(
    scenario: Annotated[Path, typer.Argument(help="A scenario with `explore`.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A folder for what was tried; one that is there is gone on with [default: runs/...].",
        ),
    ] = None,
    overrides: OverridesOption = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Run the best, and what they are held against, on the network.")
    ] = False,
    clock: Annotated[str, typer.Option(help="Of that: virtual or real.")] = MODEL_CLOCK,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a scenario's configurations for the quickest step, by the model; --confirm runs the best.

    All have the scenario's sequences in a step: where microbatches are not searched, they follow from the degrees.
    """
    loaded = load_scenario(scenario, overrides or [])
    folder = output if output is not None else default_path(f"{loaded.name}-explored")
    experiment.check(loaded, str(scenario), folder, clock if confirm else None)
    console, shown = Console(stderr=True, highlight=False), Console(highlight=False)
    try:
        with _trying(console) as progress:
            explored = experiment.explore(loaded, str(scenario), folder, progress)
    except KeyboardInterrupt:
        console.print(f"stopped; -o {folder} goes on", soft_wrap=True)
        raise
    if not as_json:
        _print(explored.found, shown)
    if confirm:
        with telling(console) as listener:
            confirmed = experiment.confirm(explored, clock, jobs, listener)
        if confirmed.ran:
            print_summary(confirmed.result, console if as_json else shown)
        if (right := confirmed.agreement) is not None and not as_json:
            shown.print(
                f"The model was {right.median_error:.1%} off in the median, {right.worst_error:.1%} at the worst; "
                f"Kendall's tau {right.kendall_tau:.2f}.",
                soft_wrap=True,
            )
    console.print(f"page: {folder / PAGE}", soft_wrap=True)
    if not confirm:
        console.print(f"Confirm: testbed run {explored.confirmation} --clock virtual", soft_wrap=True)
    if as_json:
        print(json.dumps(explored.document, indent=1))


@contextlib.contextmanager
def _trying(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar of how many configurations have been tried."""
    with Progress(
        TextColumn("trying configurations"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(found: Exploration, console: Console) -> None:
    how = (
        "all tried"
        if found.tried == found.combinations
        else f"the best {found.tried:,} by the closed form tried"
    )
    console.print(f"{found.combinations:,} combinations: {how}, {len(found.fitting):,} fit.")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("configuration", overflow="fold")
    compared = found.compared(experiment.SHOWN)
    tailed = any(result.tried.tail_s != result.tried.step_time_s for result in compared)
    headings = ["predicted\nstep time", *(["99 %\nwithin"] if tailed else [])]
    for heading in (*headings, "against\nthe first", "between\nbuildings", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in compared:
        evaluated = result.tried
        table.add_row(
            str(result.configuration) if result.kind == "best" else result.name,
            time_text(evaluated.step_time_s),
            *([time_text(evaluated.tail_s)] if tailed else []),
            f"{compared[0].tried.step_time_s / evaluated.step_time_s:.2f}x",
            size_text(evaluated.wan_bytes),
            "" if evaluated.memory_bytes is None else size_text(round(evaluated.memory_bytes)),
        )
    console.print(table)
    for constraint, count in found.infeasible.items():
        one = found.examples[constraint]
        console.print(f"{count:,} left out by {constraint}: one has {one.found}, expected {one.expected}.")
