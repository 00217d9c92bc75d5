"""The command `predict`: what a scenario's steps take, from the model alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.options import JsonOption, OverridesOption
from testbed.config import Scenario, load_scenario
from testbed.job.intent import intent_of
from testbed.model.calibration import Calibration, find_calibration
from testbed.model.dry_run import check_memory
from testbed.model.predicting import predict as predict_step
from testbed.report.figures import size_text, time_text
from testbed.scale import Scale


def add_predict_command(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(predict)


def predict(
    scenario: Annotated[Path, typer.Argument(help="Any scenario file.")],
    overrides: OverridesOption = None,
    clock: Annotated[
        Literal["virtual", "real"],
        typer.Option(help="Whose calibration the model takes: `testbed calibrate`."),
    ] = "virtual",
    as_json: JsonOption = False,
) -> None:
    """Say what a scenario's steps take, by a model of its network; nothing is built or sent.

    The model knows paths under the policy, fair shares, latency, what losses do to connections, the software's cost
    per message, and what each collective sends. It knows nothing of full queues, events and neighbours.
    """
    began_s = time.perf_counter()
    found = dict(_predictions(load_scenario(scenario, overrides or []), find_calibration(clock)))
    took_s = time.perf_counter() - began_s
    if as_json:
        entries = {name: {"step_time_s": step_s, "wan_bytes": size} for name, (step_s, size) in found.items()}
        print(json.dumps(entries, indent=1))
        return
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("variant", overflow="fold")
    for heading in ("predicted\nstep time", "against\nthe first", "between\nbuildings"):
        table.add_column(heading, justify="right", no_wrap=True)
    first_s = next(iter(found.values()))[0]
    for name, (step_s, size) in found.items():
        table.add_row(name, time_text(step_s), f"{first_s / step_s:.2f}x", size_text(size))
    console.print(table)
    console.print(
        f"\nBy the model, in {time_text(took_s)}; `testbed run {scenario}` measures.", soft_wrap=True
    )


def _predictions(scenario: Scenario, calibration: Calibration) -> Iterator[tuple[str, tuple[float, int]]]:
    """By name of what is compared: seconds of a step, bytes between buildings."""
    scale = Scale()
    engine = calibration.link_engine
    common = None if scenario.variants is not None else intent_of(scenario, scale, engine)
    for name in scenario.variant_names:
        intent = common or intent_of(scenario.variant(name), scale, engine)
        check_memory(intent.load)
        algorithm = name if common else intent.scenario.algorithms[0]
        yield name, (predict_step(intent, algorithm, calibration).step_time_s, intent.wan_bytes(algorithm))
