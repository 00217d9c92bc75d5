"""The command `calibrate`: what the model of a step takes from the emulator, measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from testbed.cli.experiments import calibrate as experiment
from testbed.cli.options import MODEL_CLOCK, JobsOption, OutputOption
from testbed.cli.run_output import show_progress
from testbed.measure.results.run_directory import default_path
from testbed.show.report import print_summary
from testbed.spec.units import time_text


def add_commands(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(calibrate)


def calibrate(
    clock: Annotated[Literal["virtual", "real"], typer.Option(help="Of which clock.")] = MODEL_CLOCK,
    output: OutputOption = None,
    keep: Annotated[
        Path | None, typer.Option(help="The file to keep the result in [default: where runs look for it].")
    ] = None,
    jobs: JobsOption = None,
) -> None:
    """Send probes through the emulated network, and fit the model of a step to what they take.

    Kept per clock, and used from then on by run, predict and explore: what losses do to connections under each
    congestion control, and what each other way to mend them takes; on the real clock also what software costs per
    message and byte. Some minutes.
    """
    folder = output if output is not None else default_path(f"calibration-{clock}")
    with show_progress(Console(stderr=True, highlight=False)) as listener:
        done = experiment.calibrate(clock, folder, jobs, keep, listener)
    found = done.fit
    print_summary(done.result, Console(highlight=False))
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("congestion control")
    for heading in ("window under loss,\nof the textbook's", "a loss is mended\nafter round trips"):
        table.add_column(heading, justify="right")
    for name, response in found.calibration.losses.items():
        table.add_row(name, f"{response.window:.2f}", f"{response.recovery:.2f}")
    console.print(table)
    console.print(_mending(found.calibration.mending))
    if found.calibration.message_s is not None and found.calibration.byte_s is not None:
        each, gigabyte = time_text(found.calibration.message_s), time_text(found.calibration.byte_s * 1e9)
        console.print(f"Software takes {each} for a message and {gigabyte} for a gigabyte, at each end.")
    worst = max(found.errors, key=lambda name: abs(found.errors[name]))
    console.print(
        f"With that the model is {found.median_error:.1%} off in the median of {len(found.errors)} probes, "
        f"{abs(found.errors[worst]):.1%} at the worst ({worst}).\nKept in {done.kept}.",
        soft_wrap=True,
    )


def _mending(factors: Mapping[str, float]) -> Table:
    """By how losses are mended."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("losses are mended by")
    table.add_column("which takes,\nof its closed form", justify="right")
    for name, factor in factors.items():
        table.add_row(name, f"{factor:.2f}")
    return table
