"""The command `explore`: search a training step's configurations for the fastest, with the step model."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from testbed.cli.console import console_of_tables, plain_table, show_progress
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


def explore(
    scenario: Annotated[Path, typer.Argument(help="A scenario with `explore`.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the search; an existing one is resumed (default: runs/...).",
        ),
    ] = None,
    overrides: OverridesOption = None,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm", help="Run the best configurations and the baselines on the emulated network."
        ),
    ] = False,
    clock: Annotated[str, typer.Option(help="Clock for --confirm: virtual or real.")] = MODEL_CLOCK,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that evaluate, and guests that confirm (default: one per core)."),
    ] = None,
    engine: WorkersOption = WORKERS,
    scheduler: SchedulerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a scenario's configurations for the fastest step with the step model; --confirm runs the best.

    All configurations have the scenario's sequences per step: if microbatches are not searched, they follow from the
    degrees. For a recorded job everything but the operations of its ranks is searched.
    """
    began_s = time.monotonic()
    loaded = load_scenario(scenario, overrides or [])
    folder = output if output is not None else default_path(f"{loaded.name}-explored")
    experiment.check(loaded, str(scenario), folder, clock if confirm else None)
    console, shown = Console(stderr=True, highlight=False), console_of_tables()
    with open_executor(engine, scheduler, jobs) as workers:
        try:
            with _show_search(console, began_s) as progress:
                explored = experiment.explore(loaded, str(scenario), folder, progress, workers)
        except KeyboardInterrupt:
            console.print(f"stopped; resume with -o {folder}", soft_wrap=True)
            raise
        if not as_json:
            _print_search(explored, shown, confirming=confirm)
        if confirm:
            with show_progress(console) as listener:
                confirmed = experiment.confirm(explored, clock, jobs, listener, workers)
    if confirm:
        if confirmed.ran:
            print_summary(confirmed.result, console if as_json else shown)
        if not as_json:
            rows = compared_rows(explored.document, confirmed.result)
            _print_sentences(describe_results(explored.document, rows), shown)  # now with its certainty
        if (right := confirmed.agreement) is not None and not as_json:
            shown.print(
                f"Model error: median {right.median_error:.1%}, worst {right.worst_error:.1%}; "
                f"Kendall's tau {right.kendall_tau:.2f}.",
                soft_wrap=True,
            )
    console.print(f"page: {folder / PAGE}", soft_wrap=True)
    if not confirm:
        console.print(
            f"Run all of them, without selection on the network: testbed run {explored.confirmation} --clock virtual",
            soft_wrap=True,
        )
    if as_json:
        print(json.dumps(explored.document, indent=1))


@contextlib.contextmanager
def _show_search(console: Console, began_s: float) -> Iterator[Callable[[SearchProgress], None]]:
    """Show a progress bar with the best configuration so far, and print the first feasible one."""
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
        announced = False

        def update(standing: SearchProgress) -> None:
            nonlocal announced
            if standing.first is not None and not announced:
                announced = True
                after = time_text(time.monotonic() - began_s)
                console.print(f"first feasible one after {after}: {standing.first_words}", soft_wrap=True)
            bar.update(
                task,
                completed=standing.done,
                total=standing.planned,
                description=standing.best_words,
                doing=standing.doing,
            )

        yield update


def _print_sentences(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        console.print(sentence, soft_wrap=True)


def _print_search(explored: experiment.Explored, console: Console, *, confirming: bool) -> None:
    document, found = explored.document, explored.found
    rows = compared_rows(document)
    # with --confirm, certainty is reported after the run
    _print_sentences(
        describe_results(document, rows) if confirming else describe_findings(document, rows), console
    )
    shown = pair_rows(rows)
    best = best_of(rows)
    tailed = any(row["tail_s"] not in (None, row["step_time_s"]) for row in shown)
    tuned = any(row["tuned"] for row in shown)
    sized = any(row["memory_bytes"] is not None for row in shown)
    headings = ["predicted\nstep time", *(["99 %\nwithin"] if tailed else [])]
    headings += ["as given,\nnot tuned"] if tuned else []
    headings += ["the best\nagainst it", "between\nbuildings", *(["memory"] if sized else [])]
    table = plain_table(["configuration"], headings)
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
    how = "all" if found.tried == found.combinations else "the most promising"
    console.print(
        f"{found.combinations:,} combinations, {found.tried:,} ({how}) evaluated with the model, "
        f"{len(found.fitting):,} feasible."
    )
    for constraint, count in found.infeasible.items():
        one = found.examples[constraint]
        console.print(f"{count:,} violate {constraint}: for example {one.found}, expected {one.expected}.")
