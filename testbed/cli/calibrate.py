"""The command `calibrate`: fit the step model's parameters to measurements on this machine."""

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


def calibrate(
    clock: Annotated[
        Literal["virtual", "real"], typer.Option(help="The clock to calibrate for.")
    ] = MODEL_CLOCK,
    output: OutputOption = None,
    keep: Annotated[
        Path | None, typer.Option(help="File for the result (default: where runs look for it).")
    ] = None,
    jobs: JobsOption = None,
) -> None:
    """Calibrate the step model: run probes on the emulated network and fit the model to them.

    The result is stored per clock and used by run, predict and explore. It covers the effect of loss under each
    congestion control, the cost of other kinds of loss recovery, and, with the real clock, software cost per message
    and byte. Takes some minutes.
    """
    folder = output if output is not None else default_path(f"calibration-{clock}")
    with show_progress(Console(stderr=True, highlight=False)) as listener:
        done = experiment.calibrate(clock, folder, jobs, keep, listener)
    found = done.fit
    print_summary(done.result, Console(highlight=False))
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("congestion control")
    for heading in ("window under loss /\ntextbook window", "recovery time\nin round trips"):
        table.add_column(heading, justify="right")
    for name, response in found.calibration.losses.items():
        table.add_row(name, f"{response.window:.2f}", f"{response.recovery:.2f}")
    console.print(table)
    console.print(_recovery_table(found.calibration.mending))
    if found.calibration.message_s is not None and found.calibration.byte_s is not None:
        each, gigabyte = time_text(found.calibration.message_s), time_text(found.calibration.byte_s * 1e9)
        console.print(f"Software takes {each} per message and {gigabyte} per gigabyte, at each end.")
    worst = max(found.errors, key=lambda name: abs(found.errors[name]))
    console.print(
        f"Model error over {len(found.errors)} probes: median {found.median_error:.1%}, "
        f"worst {abs(found.errors[worst]):.1%} ({worst}).\nSaved to {done.kept}.",
        soft_wrap=True,
    )


def _recovery_table(factors: Mapping[str, float]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("loss recovery")
    table.add_column("time /\nclosed form", justify="right")
    for name, factor in factors.items():
        table.add_row(name, f"{factor:.2f}")
    return table
