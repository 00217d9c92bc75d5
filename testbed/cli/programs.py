"""Commands that run any program: as the ranks of a job on an emulated network, or in a guest of the virtual clock."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

import typer
from rich.console import Console

from testbed.cli.console import progress_bar
from testbed.cli.options import (
    AUTO_SCALE,
    DEFAULT_STALL_TIMEOUT,
    RUN_CLOCK,
    CpuTimeOption,
    DatapathOption,
    EngineOption,
    MemoryOption,
    PolicyOption,
    SizeScaleOption,
    StallOption,
    TopologyOption,
)
from testbed.errors import BadInput
from testbed.measure.execution.benchmark_options import congestion_control_for, wants_guest
from testbed.measure.execution.network_setup import (
    check_clock,
    check_transport,
    choose_network,
    guest_settings,
    require_command,
)
from testbed.measure.execution.program_run import (
    TorchOptions,
    guest_bytes,
    parse_algorithm_options,
    require_program,
    run_programs,
)
from testbed.measure.results.run_directory import default_path
from testbed.measure.results.unfinished_run import failed_path
from testbed.net.virtual.guest import Guest, GuestSettings
from testbed.net.virtual.kernel_build import build as build_kernel
from testbed.net.virtual.kernel_image import find_image
from testbed.spec.policy import DEFAULT_POLICY
from testbed.spec.transport import TransportSpec
from testbed.workload.job.tuning_choice import tuning_of

SEED = 1
# variables that a guest sets itself
KEPT_OUTSIDE = ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE")


def launch(
    context: typer.Context,
    topology: TopologyOption = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks (default: one per host; 4 on loopback).")
    ] = None,
    policy: PolicyOption = DEFAULT_POLICY,
    transport: Annotated[
        str,
        typer.Option(
            help="PyTorch backend testbed: tcp, striped, mptcp, rdma, or FILE.py:NAME. With rdma hosts have RDMA "
            "cards, which any program can use."
        ),
    ] = "tcp",
    protocol: Annotated[
        str, typer.Option(help="PyTorch backend testbed: eager, rendezvous or staged.")
    ] = "eager",
    collective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLLECTIVE=ALGORITHM",
            help="PyTorch backend testbed: algorithm of a collective, such as all_reduce=ring (default: auto).",
        ),
    ] = None,
    tuning: Annotated[
        Path | None,
        typer.Option(
            help="PyTorch backend testbed: tuning table for algorithm auto, written by `testbed bench --tune`."
        ),
    ] = None,
    torch_default: Annotated[
        bool,
        typer.Option(help="Make testbed the default backend of PyTorch's init_process_group()."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Measure every WAN link before and check all settings afterwards; exit status 3 if they do not "
            "hold.",
        ),
    ] = False,
    clock: Annotated[
        str, typer.Option(help="real, or virtual, where computation takes no time.")
    ] = RUN_CLOCK,
    size_scale: SizeScaleOption = AUTO_SCALE,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    memory: MemoryOption = None,
    writable: Annotated[
        list[Path] | None,
        typer.Option(help="Virtual clock: a folder of this machine that programs may write to."),
    ] = None,
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="PyTorch backend testbed: folder for flight recorder dumps if a rank fails, for `testbed diagnose` "
            "(default: runs/launch-DATE-TIME.failed).",
        ),
    ] = None,
) -> None:
    """Run a program once per rank, each in its host: testbed launch -t TOPOLOGY -- python train.py

    Programs get RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME, as from torchrun, the
    variables that MPICH programs need, and the backend "testbed" of torch.distributed. Output lines are prefixed with
    their rank. The exit status is the worst of all ranks. If a rank fails, the others are stopped.
    """
    command = require_program(context.args)
    check_transport(transport, protocol)
    check_clock(clock)
    options = TorchOptions(
        TransportSpec(kind=transport, protocol=protocol),
        parse_algorithm_options(collective or ()),
        tuning_of(tuning, "command line", "--tuning"),
        congestion_control_for(None, topology),
        torch_default,
    )
    asked, output = output, output or failed_path(default_path("launch"))
    if wants_guest(clock):
        needed = guest_bytes(ranks, topology)
        seen = [*(writable or [])]
        try:
            output.mkdir(parents=True, exist_ok=True)
            seen.append(output)
        except OSError as error:
            if asked is not None:
                raise BadInput(
                    where="--output", got=str(output), expected=f"a folder: {error.strerror}"
                ) from None
        try:
            _in_guest(
                guest_settings(memory, "free", SEED, stall_timeout, None, seen, default_memory_bytes=needed),
                output,
            )
        finally:
            with contextlib.suppress(OSError):
                output.rmdir()  # if nothing was dumped
    console = Console(stderr=True, highlight=False)
    network, count = choose_network(topology, policy, link_engine, datapath, size_scale, ranks, least=1)
    status = run_programs(
        command,
        network,
        count,
        _show,
        lambda line: console.print(f"  {line}", soft_wrap=True),
        options,
        strict,
        output,
    )
    raise typer.Exit(status)


def _in_guest(settings: GuestSettings, output: Path) -> NoReturn:
    """Run the same command in a guest, under the virtual clock, and exit with its status."""
    words = sys.argv[1:]
    # last, so that it takes precedence, but before the program, which may have an option of the same name
    at = words.index("--") if "--" in words else words.index("launch") + 1
    words[at:at] = ["--output", str(output)]
    # other variables are passed on to the programs
    environment = {key: value for key, value in os.environ.items() if key not in KEPT_OUTSIDE}
    rerun_in_guest(settings, words, environment)


def _show(rank: int, is_error: bool, line: str) -> None:
    print(f"[{rank}] {line}", file=sys.stderr if is_error else sys.stdout, flush=True)


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
    terminal = {key: os.environ[key] for key in ("TERM",) if key in os.environ}
    run_in_guest(settings, command, terminal, shows_times=sys.stderr.isatty())


def rerun_in_guest(
    settings: GuestSettings, words: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> NoReturn:
    """Run this command, or one with other arguments, in a guest under the virtual clock, and exit with its status."""
    command = [sys.executable, "-c", "from testbed.cli import main; main()", *(words or sys.argv[1:])]
    run_in_guest(settings, command, {**(environment or {}), "PYTHONUNBUFFERED": "1"})


def run_in_guest(
    settings: GuestSettings,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    shows_times: bool = False,
) -> NoReturn:
    """Run a program in a guest, forward its output, and exit with its status."""

    def passed_on(stream: TextIO) -> Callable[[str], None]:
        return lambda text: print(text, end="", file=stream, flush=True)

    out, err = passed_on(sys.stdout), passed_on(sys.stderr)
    ended = Guest(find_image(), settings).run(list(command), Path.cwd(), environment, out, err)
    if shows_times:
        err(f"{ended.uptime_s:.3f} s of virtual time in {ended.wall_s:.1f} s of wall time\n")
    raise typer.Exit(ended.status if ended.status >= 0 else 128 - ended.status)
