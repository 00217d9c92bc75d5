"""Entry point: the commands, and how errors become messages and exit statuses.

Exit status: 0 done (and a run not untrusted), 1 failure, 2 bad input, 3 a run whose figures are untrusted,
130 interrupted, 143 terminated.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer
from rich.console import Console

from testbed.cli.again import add_again_commands
from testbed.cli.bench import add_bench_command
from testbed.cli.calibrate import add_calibrate_command
from testbed.cli.example import add_example_command
from testbed.cli.explore import add_explore_command
from testbed.cli.fabric import add_fabric_commands
from testbed.cli.files import add_file_commands
from testbed.cli.interrupts import by_ctrl_c, raise_on_signals
from testbed.cli.launch import add_launch_command
from testbed.cli.link import add_link_commands
from testbed.cli.plan import add_plan_command
from testbed.cli.policy import add_policy_commands
from testbed.cli.predict import add_predict_command
from testbed.cli.probe import add_probe_command
from testbed.cli.run import add_run_commands
from testbed.cli.virtual import add_virtual_commands
from testbed.errors import TestbedError

app = typer.Typer(
    name="testbed",
    help="Packet-level network emulation for training jobs that span several data-center buildings.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_run_commands(app)
add_again_commands(app)
add_bench_command(app)
add_explore_command(app)
add_calibrate_command(app)
add_fabric_commands(app)
add_launch_command(app)
add_link_commands(app)
add_plan_command(app)
add_policy_commands(app)
add_predict_command(app)
add_probe_command(app)
add_file_commands(app)
add_example_command(app)
add_virtual_commands(app)


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
