"""The commands `diagnose` and `trace`: who did it, from dumps of ranks' flight recorders; dumps made, and exported."""

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
    typer.Argument(metavar="RUN", help="A run's folder, RUN.failed of one that failed, or any of dumps."),
]


def add_commands(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command()(diagnose)
    trace = typer.Typer(
        no_args_is_help=True, help="Dumps of ranks' flight recorders: what their operations did last."
    )
    trace.command()(dump)
    trace.command()(export)
    app.add_typer(trace, name="trace")


def diagnose(
    run: DumpsArgument,
    clock_error: Annotated[
        str | None,
        typer.Option(
            help="By how much clocks of ranks may differ [default: 1 ms, nothing where a run has one clock]."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say who did it: which rank, host, card, link or switch a run that stands, broke or is slow waits for.

    From dumps of all ranks' flight recorders, of this project or PyTorch's; writes `diagnosis.html` beside them.
    """
    try:
        clock_error_s = None if clock_error is None else parse_duration(clock_error)
    except ValueError as error:
        raise BadInput(where="--clock-error", got=repr(clock_error), expected=str(error)) from error
    read = read_evidence(run)
    found = {own.name: judge(own.dumps, own.paths, clock_error_s) for own in read}
    told = Console(stderr=True, highlight=False)
    for own in read:
        for note in own.notes:
            told.print(f"note: {own.name + ': ' if own.name else ''}{note}", markup=False, soft_wrap=True)
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
    told.print(f"page: {page}", markup=False, soft_wrap=True)


def dump(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a run at work will make.")],
) -> None:
    """Have a run that is at work dump what its ranks' operations do now; it goes on."""
    for folder in dump_running(run):
        print(folder)


def export(
    run: DumpsArgument,
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the files go; made if need be.")],
    form: Annotated[
        Literal["pytorch"], typer.Option("--to", help="pytorch: trace_rank_N, which torchfrtrace reads.")
    ],
) -> None:
    """Write dumps as other tools read them."""
    for own in read_evidence(run):
        folder = output / own.name
        folder.mkdir(parents=True, exist_ok=True)
        for dumped in own.dumps:
            write_pytorch(dumped, folder)
        print(folder)
