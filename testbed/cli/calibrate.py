"""The command `calibrate`: what the model of a step takes from the emulator, measured on this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.carrying import run_and_report
from testbed.cli.options import JobsOption
from testbed.job.errors import RunError
from testbed.model.calibrating import Fit, fit, probes
from testbed.model.calibration import LINK_ENGINE, keep_calibration
from testbed.report.figures import time_text
from testbed.results.directory import default_path, hand_over
from testbed.running.request import Request

SCENARIO, RUN = "calibration.yaml", "run"


def add_calibrate_command(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(calibrate)


def calibrate(
    clock: Annotated[Literal["virtual", "real"], typer.Option(help="Of which clock.")] = "virtual",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder to make, for the probes' run [default: runs/...]."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="The file to keep the result in [default: where runs look for it].")
    ] = None,
    jobs: JobsOption = None,
) -> None:
    """Send probes through the emulated network, and fit the model of a step to what they take.

    Kept per clock, and used from then on by run, predict and explore: what losses do to connections under each
    congestion control; on the real clock also what software costs per message and byte. Some minutes.
    """
    folder = output if output is not None else default_path(f"calibration-{clock}")
    folder.mkdir(parents=True)
    try:
        found = _measured(folder, clock, jobs)
        kept = keep_calibration(clock, found.calibration, keep)
    except BaseException:
        if not (folder / RUN).exists():
            shutil.rmtree(folder)
        raise
    hand_over(folder)
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("congestion control")
    for heading in ("window under loss,\nof the textbook's", "a loss is mended\nafter round trips"):
        table.add_column(heading, justify="right")
    for name, response in found.calibration.losses.items():
        table.add_row(name, f"{response.window:.2f}", f"{response.recovery:.2f}")
    console.print(table)
    if found.calibration.message_s is not None and found.calibration.byte_s is not None:
        each, gigabyte = time_text(found.calibration.message_s), time_text(found.calibration.byte_s * 1e9)
        console.print(f"Software takes {each} for a message and {gigabyte} for a gigabyte, at each end.")
    worst = max(found.errors, key=lambda name: abs(found.errors[name]))
    console.print(
        f"With that the model is {found.median_error:.1%} off in the median of {len(found.errors)} probes, "
        f"{abs(found.errors[worst]):.1%} at the worst ({worst}).\nKept in {kept}.",
        soft_wrap=True,
    )


def _measured(folder: Path, clock: str, jobs: int | None) -> Fit:
    scenario = probes()
    file = folder / SCENARIO
    file.write_text(scenario.to_yaml())
    summary = run_and_report(Request(scenario, folder / RUN, str(file), clock=clock, jobs=jobs))
    try:
        return fit(scenario, summary, clock, _made(folder / RUN))
    except ValueError as error:
        raise RunError(str(error)) from None


def _made(run: Path) -> dict[str, str]:
    """With which version, on which kernel and link engine, when."""
    manifest = json.loads((run / "manifest.json").read_text())
    kernel = manifest["clock"].get("kernel") or manifest["host"]["kernel"]
    return {
        "testbed": manifest["testbed_version"],
        "kernel": kernel,
        LINK_ENGINE: manifest["link_engine"],
        "created": manifest["created"],
    }
