"""Entry point: the commands, and how errors become messages and exit statuses.

Exit status: 0 success (and a run is not untrusted), 1 failure, 2 bad input, 3 a run with untrusted results,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from testbed.cli.interrupts import raise_on_signals, signal_behind
from testbed.cli.lazy_commands import LazyGroup
from testbed.errors import TestbedError
from testbed.version import VERSION

app = typer.Typer(
    name="testbed",
    cls=LazyGroup,
    help="Packet-level network emulation for training jobs that span several data-center buildings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"testbed {VERSION}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Make the typer app a group, even before commands are added."""


def main() -> NoReturn:
    """Run the command line. A TestbedError becomes one message on standard error and an exit status."""
    raise_on_signals()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    status = 0
    try:
        app(standalone_mode=True)
    except BaseException as error:
        known = _status_of(error, console)
        if known is None:
            raise
        status = known
    sys.exit(status)


def _status_of(error: BaseException, console: Console) -> int | None:
    """Report how a command ended and return its exit status; None for an unexpected error."""
    number = signal_behind(error)
    if number is not None:
        if number == signal.SIGINT:
            console.print("interrupted; no network, process or unfinished run is left behind", markup=False)
        return 128 + number
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(bool(error.code))
    if isinstance(error, TestbedError):
        console.print(f"error: {error}", style="red", markup=False)
        return error.status
    return None
