"""Entry point: the commands, and how errors become messages and exit statuses.

Exit status: 0 done (and a run not untrusted), 1 failure, 2 bad input, 3 a run whose figures are untrusted,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from rich.console import Console

from testbed.cli.interrupts import by_ctrl_c, raise_on_signals
from testbed.cli.lazy import LazyGroup
from testbed.errors import TestbedError

app = typer.Typer(
    name="testbed",
    cls=LazyGroup,
    help="Packet-level network emulation for training jobs that span several data-center buildings.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _every_command() -> None:
    """There is no option that all commands have; a typer app without commands of its own needs this to be a group."""


def main() -> NoReturn:
    """Run the command line; errors of ours become one message on standard error and an exit status."""
    raise_on_signals()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    status = 0
    try:
        app(standalone_mode=True)
    except (SystemExit, KeyboardInterrupt) as leave:
        code = leave.code if isinstance(leave, SystemExit) else 130
        status = code if isinstance(code, int) else int(bool(code))
        if by_ctrl_c(leave):
            console.print("interrupted; no network, process or unfinished run is left behind", markup=False)
    except TestbedError as error:
        console.print(f"error: {error}", style="red", markup=False)
        status = error.status
    sys.exit(status)
