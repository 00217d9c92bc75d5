"""The command `explore`: the quickest configuration of a training step, planned or recorded, by the model."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from testbed.cli.console import console_of_tables
from testbed.cli.experiments import explore as experiment
from testbed.cli.experiments.run import open_executor
from testbed.cli.options import (
    MODEL_CLOCK,
    WORKERS,
    JsonOption,
    OverridesOption,
    SchedulerOption,
    WorkersOption,
)
from testbed.cli.run_output import show_progress
from testbed.measure.results.run_directory import default_path
from testbed.prediction.search import SearchProgress
from testbed.show.report import print_summary
from testbed.show.report.exploration import PAGE, compared_rows
from testbed.show.report.exploration_findings import (
    BEST,
    best_of,
    describe_findings,
    describe_results,
    difference_text,
    pair_rows,
)
from testbed.spec.scenario import load_scenario
from testbed.spec.units import size_text, time_text


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
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="How many processes try, and guests confirm [default: one for each core]."),
    ] = None,
    engine: WorkersOption = WORKERS,
    scheduler: SchedulerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a scenario's configurations for the quickest step, by the model; --confirm runs the best.

    All have the scenario's sequences in a step: where microbatches are not searched, they follow from the degrees. Of a
    job that was recorded all but what its ranks do is searched.
    """
    began_s = time.monotonic()
    loaded = load_scenario(scenario, overrides or [])
    folder = output if output is not None else default_path(f"{loaded.name}-explored")
    experiment.check(loaded, str(scenario), folder, clock if confirm else None)
    console, shown = Console(stderr=True, highlight=False), console_of_tables()
    with open_executor(engine, scheduler, jobs) as workers:
        try:
            with _trying(console, began_s) as progress:
                explored = experiment.explore(loaded, str(scenario), folder, progress, workers)
        except KeyboardInterrupt:
            console.print(f"stopped; -o {folder} goes on", soft_wrap=True)
            raise
        if not as_json:
            _print(explored, shown, confirming=confirm)
        if confirm:
            with show_progress(console) as listener:
                confirmed = experiment.confirm(explored, clock, jobs, listener, workers)
    if confirm:
        if confirmed.ran:
            print_summary(confirmed.result, console if as_json else shown)
        if not as_json:
            rows = compared_rows(explored.document, confirmed.result)
            _tell(describe_results(explored.document, rows), shown)  # how sure it is comes now
        if (right := confirmed.agreement) is not None and not as_json:
            shown.print(
                f"The model was {right.median_error:.1%} off in the median, {right.worst_error:.1%} at the worst; "
                f"Kendall's tau {right.kendall_tau:.2f}.",
                soft_wrap=True,
            )
    console.print(f"page: {folder / PAGE}", soft_wrap=True)
    if not confirm:
        console.print(
            f"All that is compared, with no choice by packets: testbed run {explored.confirmation} --clock virtual",
            soft_wrap=True,
        )
    if as_json:
        print(json.dumps(explored.document, indent=1))


@contextlib.contextmanager
def _trying(console: Console, began_s: float) -> Iterator[Callable[[SearchProgress], None]]:
    """A bar of how many configurations have been tried, with the best so far; before it, for all, the first that fits.

    began_s: when the command did.
    """
    with Progress(
        TextColumn("{task.fields[doing]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None, doing="")
        told = False

        def tell(standing: SearchProgress) -> None:
            nonlocal told
            if standing.first is not None and not told:
                told = True
                after = time_text(time.monotonic() - began_s)
                console.print(f"first that fits after {after}: {standing.first_words}", soft_wrap=True)
            bar.update(
                task,
                completed=standing.done,
                total=standing.planned,
                description=standing.best_words,
                doing=standing.doing,
            )

        yield tell


def _tell(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        console.print(sentence, soft_wrap=True)


def _print(explored: experiment.Explored, console: Console, *, confirming: bool) -> None:
    document, found = explored.document, explored.found
    rows = compared_rows(document)
    # where it is confirmed a run will say how sure it is
    _tell(describe_results(document, rows) if confirming else describe_findings(document, rows), console)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("configuration", overflow="fold")
    shown = pair_rows(rows)
    best = best_of(rows)
    tailed = any(row["tail_s"] not in (None, row["step_time_s"]) for row in shown)
    tuned = any(row["tuned"] for row in shown)
    sized = any(row["memory_bytes"] is not None for row in shown)
    headings = ["predicted\nstep time", *(["99 %\nwithin"] if tailed else [])]
    headings += ["as given,\nnot tuned"] if tuned else []
    for heading in (*headings, "the best\nagainst it", "between\nbuildings", *(["memory"] if sized else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in shown:
        given, memory_bytes = row["as_given"], row["memory_bytes"]
        table.add_row(
            ": ".join(filter(None, (row["name"], difference_text(best, row))))
            if row["kind"] == BEST
            else row["of"],
            time_text(row["step_time_s"]),
            *(["" if row["tail_s"] is None else time_text(row["tail_s"])] if tailed else []),
            *([time_text(given["step_time_s"]) if given else ""] if tuned else []),
            f"{row['step_time_s'] / best['step_time_s']:.2f}x",
            size_text(row["wan_bytes"]),
            *(["" if memory_bytes is None else size_text(round(memory_bytes))] if sized else []),
        )
    console.print(table)
    how = "all" if found.tried == found.combinations else "what looks best"
    console.print(
        f"{found.combinations:,} combinations, {found.tried:,} ({how}) tried on the model, "
        f"{len(found.fitting):,} fit."
    )
    for constraint, count in found.infeasible.items():
        one = found.examples[constraint]
        console.print(f"{count:,} left out by {constraint}: one has {one.found}, expected {one.expected}.")
