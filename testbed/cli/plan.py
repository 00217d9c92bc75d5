"""The command `plan`: what a step will do and take, from the model alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.options import JsonOption, OverridesOption
from testbed.config import load_scenario
from testbed.model.dry_run import dry_runs, schedule_csv
from testbed.report.figures import size_text, time_text
from testbed.report.terminal import print_not_emulated
from testbed.results.training_summary import limited_words, prediction
from testbed.scale import Scale


def add_commands(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(plan)


def plan(
    scenario: Annotated[Path, typer.Argument(help="A scenario file, or the name of one that is shipped.")],
    overrides: OverridesOption = None,
    as_json: JsonOption = False,
    as_csv: Annotated[
        str | None, typer.Option("--csv", help="Of this variant the schedule alone, as a CSV file.")
    ] = None,
) -> None:
    """Try out a scenario's step on a model of its network: time, memory, bytes; nothing is built or sent."""
    loaded = load_scenario(scenario, overrides or [])
    tried = dry_runs(loaded, Scale())
    if as_csv is not None:
        print(schedule_csv(tried, as_csv), end="")
        return
    found = {name: prediction(one, Scale()) for name, one in tried.items()}
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)


def _print(found: dict[str, dict[str, Any]]) -> None:
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("variant", overflow="fold")
    memory = any("peak_activation_bytes" in entry for entry in found.values())
    alive = ["activations\nalive"] if memory else []
    for heading in ("step time", *alive, "between\nbuildings", "inside\nbuildings"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, entry in found.items():
        table.add_row(
            name,
            time_text(entry["step_time_s"]),
            *([size_text(max(entry.get("peak_activation_bytes", [0])))] if memory else []),
            size_text(entry["bytes"]["wan"]),
            size_text(entry["bytes"]["building"]),
        )
    console.print(table)
    for name, entry in found.items():
        console.print(
            f"{name}: {limited_words(entry, 'pipeline bubbles' if 'schedule' in entry else 'waiting for others')}."
        )
    print_not_emulated((what for entry in found.values() for what in entry.get("not_emulated", ())), console)
