"""The commands `diagnose` and `trace`: find a culprit in flight recorder dumps, request dumps, and export them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from testbed.cli.options import JsonOption
from testbed.comm.flight_recorder.pytorch import write_pytorch
from testbed.errors import BadInput
from testbed.measure.diagnosis import diagnose as judge
from testbed.measure.diagnosis import read_evidence
from testbed.measure.diagnosis.dumps import dump_running
from testbed.measure.diagnosis.verdicts import diagnosis_lines
from testbed.measure.results.run_directory import chown_to_sudo_user
from testbed.show.report.diagnosis_page import write_diagnosis
from testbed.spec.units import parse_duration

DumpsArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run's folder, RUN.failed of a failed run, or any folder of dumps."),
]


trace_app = typer.Typer(
    no_args_is_help=True, help="Flight recorder dumps of ranks: their most recent operations."
)


def diagnose(
    run: DumpsArgument,
    clock_error: Annotated[
        str | None,
        typer.Option(
            help="Largest difference between ranks' clocks (default: 1 ms; 0 if a run has one clock)."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the culprit of a run that hangs, failed or is slow: the rank, host, card, link or switch.

    Reads flight recorder dumps of all ranks, from this project or PyTorch; writes `diagnosis.html` into their folder.
    """
    try:
        clock_error_s = None if clock_error is None else parse_duration(clock_error)
    except ValueError as error:
        raise BadInput(where="--clock-error", got=repr(clock_error), expected=str(error)) from error
    read = read_evidence(run)
    found = {own.name: judge(own.dumps, own.paths, clock_error_s) for own in read}
    notes = Console(stderr=True, highlight=False)
    for own in read:
        for note in own.notes:
            notes.print(f"note: {own.name + ': ' if own.name else ''}{note}", markup=False, soft_wrap=True)
    page = write_diagnosis(run, found)
    chown_to_sudo_user(run)
    if as_json:
        documents = {name: own.to_document() for name, own in found.items()}
        print(json.dumps(documents[""] if list(documents) == [""] else documents, indent=1))
        return
    console = Console(highlight=False)
    for name, diagnosis in found.items():
        if name:
            console.print(f"\n{name}", style="bold", markup=False)
        for line in diagnosis_lines(diagnosis):
            console.print(line, markup=False, soft_wrap=True)
    notes.print(f"page: {page}", markup=False, soft_wrap=True)


@trace_app.command()
def dump(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder that a run in progress will create.")
    ],
) -> None:
    """Make a run in progress dump its ranks' flight recorders; the run continues."""
    for folder in dump_running(run):
        print(folder)


@trace_app.command()
def export(
    run: DumpsArgument,
    output: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the files; created if necessary.")
    ],
    form: Annotated[
        Literal["pytorch"],
        typer.Option("--to", help="pytorch: trace_rank_N files, which torchfrtrace reads."),
    ],
) -> None:
    """Convert dumps for other tools."""
    for own in read_evidence(run):
        folder = output / own.name
        folder.mkdir(parents=True, exist_ok=True)
        for dumped in own.dumps:
            write_pytorch(dumped, folder)
        print(folder)
