"""Commands of the virtual clock: build its kernel, run a program under it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from testbed.cli.console import progress_bar
from testbed.measure.execution.network_setup import guest_settings, require_command
from testbed.net.virtual.guest import STALL_TIMEOUT_S, Guest, GuestExit, GuestSettings
from testbed.net.virtual.kernel_build import build as build_kernel
from testbed.net.virtual.kernel_image import find_image

MemoryOption = Annotated[
    str | None, typer.Option("--memory", help="Memory of the virtual clock's guest, such as '4 GiB'.")
]
CpuTimeOption = Annotated[
    str,
    typer.Option(
        "--cpu-time",
        help="free: computation takes no virtual time. counted: it takes its CPU time, for programs that spin.",
    ),
]
StallOption = Annotated[
    str, typer.Option("--stall-timeout", help="Give up if virtual time does not advance for this long.")
]
DEFAULT_STALL_TIMEOUT = f"{STALL_TIMEOUT_S:g} s"
virtual_app = typer.Typer(
    help="The virtual clock: a Linux kernel in a process, whose time advances only when it is idle.",
    no_args_is_help=True,
)


@virtual_app.command()
def build(
    source: Annotated[
        Path | None,
        typer.Option(help="A kernel source tree or archive (default: the distribution's newest)."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Rebuild even if the kernel exists.")] = False,
    fetch: Annotated[
        bool,
        typer.Option(help="Check the distribution's archive for a newer source than the one in /usr/src."),
    ] = True,
) -> None:
    """Build the virtual clock's kernel, test all its features, and store it. Takes about five minutes on two cores."""
    console = Console(stderr=True, highlight=False)
    with progress_bar(console) as bar:
        task = bar.add_task("looking for a kernel source", total=None)
        reported = -1

        def progress(line: str, share: float | None) -> None:
            nonlocal reported
            bar.update(task, description=line, completed=share or 0, total=None if share is None else 1)
            quarter = -1 if share is None else int(share * 4)
            if share is None or (not console.is_terminal and quarter > reported):
                console.print(f"  {line}" + (f" {quarter * 25} %" if share is not None else ""))
            reported = quarter

        image, built = build_kernel(source, again, progress, fetch)
    console.print(
        f"{'built' if built else 'there already'}: Linux {image.version} in {image.folder}, "
        f"{len(image.checked)} features tried",
        soft_wrap=True,
    )


@virtual_app.command(name="exec", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def execute(
    context: typer.Context,
    memory: MemoryOption = None,
    cpu_time: CpuTimeOption = "free",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the kernel's random numbers.")] = 1,
    writable: Annotated[
        list[Path] | None, typer.Option(help="A folder of this machine that the program may write to.")
    ] = None,
    open_vswitch: Annotated[bool, typer.Option(help="Start Open vSwitch first.")] = True,
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
    timeout: Annotated[str | None, typer.Option(help="Longest wall time.")] = None,
) -> None:
    """Run a program as root in a guest: testbed virtual exec -- ping -c 3 127.0.0.1

    It sees this machine's files, but its changes to them stay in the guest's memory. All its processes end with it.
    """
    command = require_command(context.args)
    settings = guest_settings(
        memory, cpu_time, seed, stall_timeout, timeout, writable or [], open_vswitch=open_vswitch
    )
    guest = Guest(find_image(), settings)
    ended = guest.run(
        command, Path.cwd(), {key: os.environ[key] for key in ("TERM",) if key in os.environ}, out, err
    )
    err(f"{summary_line(ended)}\n" if sys.stderr.isatty() else "")
    raise typer.Exit(ended.status if ended.status >= 0 else 128 - ended.status)


def summary_line(ended: GuestExit) -> str:
    """Describe how much virtual time passed in how much wall time."""
    return f"{ended.uptime_s:.3f} s of virtual time in {ended.wall_s:.1f} s of wall time"


def rerun_in_guest(settings: GuestSettings) -> NoReturn:
    """Run the same command in a guest, under the virtual clock, and exit with its status."""
    guest = Guest(find_image(), settings)
    command = [sys.executable, "-c", "from testbed.cli import main; main()", *sys.argv[1:]]
    ended = guest.run(command, Path.cwd(), {"PYTHONUNBUFFERED": "1"}, out, err)
    raise typer.Exit(ended.status if ended.status >= 0 else 128 - ended.status)


def out(text: str) -> None:
    """Write to standard output and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def err(text: str) -> None:
    """Write to standard error and flush."""
    sys.stderr.write(text)
    sys.stderr.flush()
