"""The command `sweep`: evaluate a scenario at all values of one or two settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from testbed.cli.console import EXIT_UNTRUSTED, plain_table, progress_bar, show_progress
from testbed.cli.experiments import sweep as experiment
from testbed.cli.experiments.run import open_executor
from testbed.cli.options import (
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
from testbed.show.report.sweep import CAPTION, PAGE, TABLE, missing_libraries
from testbed.show.report.sweep_findings import Curves, Maps, Panel, arrange_series, describe_sweep
from testbed.spec.scenario import load_scenario
from testbed.spec.sweep_axes import parse_axes
from testbed.spec.units import size_text, time_text

MOST_ROWS, MOST_COLUMNS = 40, 8  # on a terminal; files have all of them


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

    Without --clock and --confirm nothing is built. With --clock virtual or real every point is measured; with
    --confirm N only N of them: the ends, both sides of where the fastest variant changes, and the widest gaps.
    Exit status 3: some results are untrusted.
    """
    changes = assignments(overrides, trials)
    parsed = parse_axes(axes)
    folder = output or default_path(f"{load_scenario(scenario, changes).name}-swept")
    request = experiment.SweepRequest(
        scenario,
        changes,
        parsed,
        folder,
        clock=experiment.measuring_clock(clock, confirm),
        confirm=confirm,
        jobs=jobs,
    )
    console, shown = Console(stderr=True, highlight=False), Console(highlight=False)
    try:
        planned = experiment.plan_sweep(request)  # report errors before workers start
        with open_executor(engine, scheduler, jobs) as workers:
            found = _execute(planned.with_engine(workers), console)
    except KeyboardInterrupt:
        console.print(f"stopped; resume with -o {folder}", soft_wrap=True)
        raise
    if as_json:
        print(json.dumps(found.document(), indent=1))
    else:
        _print(found, shown)
    for words in missing_libraries():
        console.print(words, markup=False, soft_wrap=True)
    console.print(
        f"page: {folder / PAGE}; table: {folder / TABLE}; for a paper: {folder / CAPTION}", soft_wrap=True
    )
    if found.status == "untrusted":
        raise typer.Exit(EXIT_UNTRUSTED)


def _execute(planned: experiment.SweepPlan, console: Console) -> Sweep:
    with progress_bar(console) as bar, show_progress(console, quiet=True) as listener:
        task = bar.add_task("the model", total=None)

        def report(done: int, total: int, words: str) -> None:
            bar.update(task, completed=done, total=total, description=words or "the model")
            if words:
                console.print(f"  point {done + 1} of {total}: {words}", soft_wrap=True)

        return experiment.sweep(planned, report, listener)


def _print(found: Sweep, console: Console) -> None:
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
