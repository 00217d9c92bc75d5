"""The command `explore`: the quickest configuration of a training step, by the model."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from testbed.cli.carrying import run_and_report
from testbed.cli.options import JobsOption, JsonOption, OverridesOption
from testbed.config import ConfigError, Problem, Scenario, load_scenario
from testbed.explorer import Exploration, NothingFits, Search
from testbed.explorer.confirming import agreement, confirmation
from testbed.explorer.keeping import RESULT, Keeper, OtherSearch
from testbed.explorer.search import Result
from testbed.report.exploration import PAGE, write_exploration
from testbed.report.figures import size_text, time_text
from testbed.results.directory import default_path, hand_over
from testbed.running.request import Request, check_here

SHOWN = 5
CONFIRMATION, CONFIRMED = "confirm.yaml", "confirmed"


def add_explore_command(app: typer.Typer) -> None:
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
    clock: Annotated[str, typer.Option(help="Of that: virtual or real.")] = "virtual",
    jobs: JobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search a scenario's configurations for the quickest step, by the model; --confirm runs the best.

    All have the scenario's sequences in a step: where microbatches are not searched, they follow from the degrees.
    """
    loaded = load_scenario(scenario, overrides or [])
    if loaded.explore is None:
        expected = "a scenario that says what to search"
        raise ConfigError([Problem(str(scenario), None, "explore", "nothing", expected)])
    folder = output if output is not None else default_path(f"{loaded.name}-explored")
    if confirm and not (folder / CONFIRMED).exists():
        check_here(loaded, str(scenario), clock)  # sooner than after the search
    fresh = not folder.exists()
    try:
        keeper = Keeper(folder, loaded)
    except OtherSearch as error:
        raise ConfigError([Problem("command line", None, "--output", str(error), "another folder")]) from None
    try:
        with contextlib.closing(keeper):
            found = _search(loaded, str(scenario), keeper)
    except ConfigError:
        if fresh:
            shutil.rmtree(folder)
        raise
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False).print(f"stopped; -o {folder} goes on", soft_wrap=True)
        raise
    confirms = confirmation(loaded, found)
    document = _document(loaded, found, confirms.variants)
    file = folder / CONFIRMATION
    file.write_text(confirms.scenario.to_yaml())
    _write(folder, document)
    if not as_json:
        _print(found, Console(highlight=False))
    if confirm:
        with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
            summary = _confirmed(folder, clock, jobs)
        right = agreement(summary["variants"])
        document["agreement"] = asdict(right) if right else None
        _write(folder, document, summary)
        if right is not None and not as_json:
            Console(highlight=False).print(
                f"The model was {right.median_error:.1%} off in the median, {right.worst_error:.1%} at the worst; "
                f"Kendall's tau {right.kendall_tau:.2f}.",
                soft_wrap=True,
            )
    console = Console(stderr=True, highlight=False)
    console.print(f"page: {folder / PAGE}", soft_wrap=True)
    if not confirm:
        console.print(f"Confirm: testbed run {file} --clock virtual", soft_wrap=True)
    if as_json:
        print(json.dumps(document, indent=1))


def _confirmed(folder: Path, clock: str, jobs: int | None) -> dict[str, Any]:
    """The summary of the run that confirms, which is not done again."""
    run, file = folder / CONFIRMED, folder / CONFIRMATION
    if not run.exists():
        return run_and_report(Request(load_scenario(file), run, str(file), clock=clock, jobs=jobs))
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    if (run / "scenario.yaml").read_text() != file.read_text() or summary["clock"] != clock:
        expected = "a folder without one, or the same configurations and clock"
        raise ConfigError([Problem("command line", None, "--confirm", f"another run in {run}", expected)])
    return summary


def _write(folder: Path, document: dict[str, Any], confirmed: dict[str, Any] | None = None) -> None:
    (folder / RESULT).write_text(json.dumps(document, indent=1) + "\n")
    write_exploration(folder, document, confirmed)
    hand_over(folder)


def _search(loaded: Scenario, file: str, keeper: Keeper) -> Exploration:
    console = Console(stderr=True, highlight=False)
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

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        try:
            return Search(loaded, progress, keeper.known(), keeper.note).run()
        except NothingFits as error:
            expected = "a space with one that does, or a constraint that lets one through"
            raise ConfigError([Problem(file, None, "explore", str(error), expected)]) from None


def _print(found: Exploration, console: Console) -> None:
    how = (
        "all tried"
        if found.tried == found.combinations
        else f"the best {found.tried:,} by the closed form tried"
    )
    console.print(f"{found.combinations:,} combinations: {how}, {len(found.fitting):,} fit.")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("configuration", overflow="fold")
    compared = found.compared(SHOWN)
    tailed = any(result.tried.tail_s != result.tried.step_time_s for result in compared)
    headings = ["predicted\nstep time", *(["99 %\nwithin"] if tailed else [])]
    for heading in (*headings, "against\nthe first", "between\nbuildings", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in compared:
        tried_out = result.tried
        table.add_row(
            str(result.configuration) if result.kind == "best" else result.name,
            time_text(tried_out.step_time_s),
            *([time_text(tried_out.tail_s)] if tailed else []),
            f"{compared[0].tried.step_time_s / tried_out.step_time_s:.2f}x",
            size_text(tried_out.wan_bytes),
            "" if tried_out.memory_bytes is None else size_text(round(tried_out.memory_bytes)),
        )
    console.print(table)
    for constraint, count in found.misfits.items():
        one = found.examples[constraint]
        console.print(f"{count:,} left out by {constraint}: one has {one.found}, expected {one.expected}.")


def _document(scenario: Scenario, found: Exploration, variants: Mapping[str, str]) -> dict[str, Any]:
    """variants: of the scenario that confirms, by what is compared."""

    def entries(results: Sequence[Result]) -> list[dict[str, Any]]:
        return [
            {
                "name": result.name,
                "kind": result.kind,
                "configuration": str(result.configuration),
                "changes": dict(result.configuration.changes),
                **asdict(result.tried),
            }
            for result in results
        ]

    return {
        "scenario": scenario.name,
        "combinations": found.combinations,
        "tried": found.tried,
        "misfits": [
            {"count": count, **asdict(found.examples[name])} for name, count in found.misfits.items()
        ],
        "compared": [
            {**entry, "variant": variants.get(entry["name"])} for entry in entries(found.compared(SHOWN))
        ],
        "pareto": entries(found.pareto),
        "fitting": entries(found.fitting),
        "agreement": None,
    }
