"""Commands that vary a scenario: `explore` searches its configurations, `sweep` takes all values of a setting."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from testbed.cli.console import EXIT_UNTRUSTED, console_of_tables, plain_table, progress_bar, show_progress
from testbed.cli.experiments import explore as exploring
from testbed.cli.experiments import sweep as sweeping
from testbed.cli.experiments.run import open_executor
from testbed.cli.options import (
    MODEL_CLOCK,
    WORKERS,
    JobsOption,
    JsonOption,
    OverridesOption,
    ScenarioArgument,
    SchedulerOption,
    TrialsOption,
    WorkersOption,
    assignments,
)
from testbed.measure.results.run_directory import default_path
from testbed.measure.results.sweep_result import Sweep, SweepFigure
from testbed.prediction.search import SearchProgress
from testbed.show.report import print_summary
from testbed.show.report.exploration import PAGE as EXPLORATION_PAGE
from testbed.show.report.exploration import compared_rows
from testbed.show.report.exploration_findings import (
    BEST,
    best_of,
    describe_findings,
    describe_results,
    difference_text,
    pair_rows,
)
from testbed.show.report.sweep import CAPTION, PAGE, TABLE, missing_libraries
from testbed.show.report.sweep_findings import Curves, Maps, Panel, arrange_series, describe_sweep
from testbed.spec.scenario import load_scenario
from testbed.spec.sweep_axes import parse_axes
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
    degrees. For a recorded job, everything except the operations of its ranks is searched.
    """
    began_s = time.monotonic()
    loaded = load_scenario(scenario, overrides or [])
    folder = output if output is not None else default_path(f"{loaded.name}-explored")
    exploring.check(loaded, str(scenario), folder, clock if confirm else None)
    console, shown = Console(stderr=True, highlight=False), console_of_tables()
    with open_executor(engine, scheduler, jobs) as workers:
        try:
            with _show_search(console, began_s) as progress:
                explored = exploring.explore(loaded, str(scenario), folder, progress, workers)
        except KeyboardInterrupt:
            console.print(f"stopped; resume with -o {folder}", soft_wrap=True)
            raise
        if not as_json:
            _print_search(explored, shown, confirming=confirm)
        if confirm:
            with show_progress(console) as listener:
                confirmed = exploring.confirm(explored, clock, jobs, listener, workers)
    if confirm:
        if confirmed.ran:
            print_summary(confirmed.result, console if as_json else shown)
        if not as_json:
            rows = compared_rows(explored.document, confirmed.result)
            _print_sentences(describe_results(explored.document, rows), shown)  # now with certainty
        if (right := confirmed.agreement) is not None and not as_json:
            shown.print(
                f"Model error: median {right.median_error:.1%}, worst {right.worst_error:.1%}; "
                f"Kendall's tau {right.kendall_tau:.2f}.",
                soft_wrap=True,
            )
    console.print(f"page: {folder / EXPLORATION_PAGE}", soft_wrap=True)
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


def _print_search(explored: exploring.Explored, console: Console, *, confirming: bool) -> None:
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


MOST_ROWS, MOST_COLUMNS = 40, 8  # limits on a terminal; files have all rows and columns


def sweep(
    scenario: ScenarioArgument,
    axes: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=RANGE [KEY=RANGE]",
            help="A `--set` path and its values: A,B,C or FIRST..LAST:COUNT or FIRST..LAST:log:COUNT.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for the sweep; an existing one is resumed (default: runs/...)."
        ),
    ] = None,
    overrides: OverridesOption = None,
    trials: TrialsOption = None,
    clock: Annotated[
        Literal["model", "virtual", "real"],
        typer.Option(
            help="Clock for measuring points; model: only predict them. With --confirm the default is virtual."
        ),
    ] = "model",
    confirm: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Measure N of the points, chosen with the model."),
    ] = None,
    jobs: JobsOption = None,
    engine: WorkersOption = WORKERS,
    scheduler: SchedulerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sweep one or two settings of a scenario, predicted and optionally measured; curve or heat map.

    testbed sweep quickstart topology.wan.0.delay=1ms..80ms:log:8 policy=ecmp,te --confirm 4

    Without --clock and --confirm nothing is built. With --clock virtual or real every point is measured; with --confirm
    N, only N points are: the ends, both sides of each change of the fastest variant, and the widest gaps. Exit status
    3: some results are untrusted.
    """
    changes = assignments(overrides, trials)
    parsed = parse_axes(axes)
    folder = output or default_path(f"{load_scenario(scenario, changes).name}-swept")
    request = sweeping.SweepRequest(
        scenario,
        changes,
        parsed,
        folder,
        clock=sweeping.measuring_clock(clock, confirm),
        confirm=confirm,
        jobs=jobs,
    )
    console, shown = Console(stderr=True, highlight=False), Console(highlight=False)
    try:
        planned = sweeping.plan_sweep(request)  # report errors before workers start
        with open_executor(engine, scheduler, jobs) as workers:
            found = _run_sweep(planned.with_engine(workers), console)
    except KeyboardInterrupt:
        console.print(f"stopped; resume with -o {folder}", soft_wrap=True)
        raise
    if as_json:
        print(json.dumps(found.document(), indent=1))
    else:
        _print_sweep(found, shown)
    for words in missing_libraries():
        console.print(words, markup=False, soft_wrap=True)
    console.print(
        f"page: {folder / PAGE}; table: {folder / TABLE}; for a paper: {folder / CAPTION}", soft_wrap=True
    )
    if found.status == "untrusted":
        raise typer.Exit(EXIT_UNTRUSTED)


def _run_sweep(planned: sweeping.SweepPlan, console: Console) -> Sweep:
    with progress_bar(console) as bar, show_progress(console, quiet=True) as listener:
        task = bar.add_task("the model", total=None)

        def report(done: int, total: int, words: str) -> None:
            bar.update(task, completed=done, total=total, description=words or "the model")
            if words:
                console.print(f"  point {done + 1} of {total}: {words}", soft_wrap=True)

        return sweeping.sweep(planned, report, listener)


def _print_sweep(found: Sweep, console: Console) -> None:
    for sentence in describe_sweep(found):
        console.print(sentence, markup=False, soft_wrap=True)
    shown = arrange_series(found)
    if isinstance(shown, Curves) and len(shown.series) <= MOST_COLUMNS:
        console.print(_curve_table(shown))
    elif isinstance(shown, Maps) and len(shown.across.texts) <= MOST_COLUMNS:
        for panel in shown.panels:
            console.print(_map_table(shown, panel))
    else:
        console.print(_point_table(found))
        if len(found.points) * len(found.variants) > MOST_ROWS:
            console.print(f"All rows: {found.folder / TABLE}", soft_wrap=True)
        return
    if any(point.run for point in found.points):
        console.print("* measured; others are predicted.")


def _curve_table(curves: Curves) -> Table:
    """Return a table with a row per value and a column per line."""
    table = plain_table((), (curves.axis.label, *(one.name.replace(", ", "\n") for one in curves.series)))
    for index, text in enumerate(curves.axis.texts):
        figures = [one.by_index.get(index) for one in curves.series]
        table.add_row(text.removesuffix(f" {curves.axis.unit}"), *map(_cell, figures))
    return table


def _map_table(maps: Maps, panel: Panel) -> Table:
    """Return a table with a column per value of the first axis and a row per value of the second, the largest first."""
    columns = (text.removesuffix(f" {maps.across.unit}") for text in maps.across.texts)
    table = plain_table((), (maps.upwards.label, *columns))
    table.title, table.title_justify = f"{panel.name}: {maps.across.label} to the right", "left"
    for row in reversed(range(len(maps.upwards.texts))):
        text = maps.upwards.texts[row].removesuffix(f" {maps.upwards.unit}")
        figures = [panel.figures.get((column, row)) for column in range(len(maps.across.texts))]
        table.add_row(text, *map(_cell, figures))
    return table


def _cell(figure: SweepFigure | None) -> str:
    if figure is None:
        return "does not fit"
    mark = "" if figure.measured is None else " UNTRUSTED" if figure.untrusted else " *"
    return f"{time_text(figure.step_time_s)}{mark}"


def _point_table(found: Sweep) -> Table:
    """Return a table with a row per point and variant, up to MOST_ROWS."""
    table = plain_table((), (axis.label for axis in found.axes))
    table.add_column("variant", overflow="fold")
    for heading in ("predicted\nstep time", "measured\nstep time", "between\nbuildings"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    rows: list[list[str]] = []
    for point in found.points:
        pairs = zip(found.axes, point.at, strict=True)
        at = [axis.texts[index].removesuffix(f" {axis.unit}") for axis, index in pairs]
        if point.misfit is not None:
            rows.append([*at, "does not fit"])
        for figure in point.figures:
            taken = figure.measured
            median, verdict = ("", "") if taken is None else (time_text(taken.median_s), taken.status)
            sent = size_text(figure.wan_bytes)
            rows.append([*at, figure.variant, time_text(figure.predicted_s), median, sent, verdict])
    for row in rows[:MOST_ROWS]:
        table.add_row(*row)
    return table
