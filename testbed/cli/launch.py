"""The command `launch`: any program as the ranks of a job, on an emulated network."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from testbed.cli.options import (
    AUTO_SCALE,
    RUN_CLOCK,
    DatapathOption,
    EngineOption,
    PolicyOption,
    SizeScaleOption,
    TopologyOption,
)
from testbed.cli.virtual import DEFAULT_STALL_TIMEOUT, MemoryOption, StallOption, err, out
from testbed.errors import BadInput
from testbed.measure.execution.benchmark_options import congestion_control_for, wants_guest
from testbed.measure.execution.network_setup import choose_network, guest_settings
from testbed.measure.execution.program_run import (
    TorchOptions,
    check_program_options,
    guest_bytes,
    parse_algorithm_options,
    require_program,
    run_programs,
)
from testbed.measure.results.run_directory import default_path
from testbed.measure.results.unfinished_run import failed_path
from testbed.net.virtual.guest import Guest, GuestSettings
from testbed.net.virtual.kernel_image import find_image
from testbed.spec.policy import DEFAULT_POLICY
from testbed.spec.transport import TransportSpec
from testbed.workload.job.tuning_choice import tuning_of

SEED = 1
# what a guest has of its own
KEPT_OUTSIDE = ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE")


def add_commands(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(launch)


def launch(
    context: typer.Context,
    topology: TopologyOption = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="How many [default: one per host; 4 on loopback].")
    ] = None,
    policy: PolicyOption = DEFAULT_POLICY,
    transport: Annotated[
        str,
        typer.Option(
            help="PyTorch's backend testbed: tcp, striped, mptcp, rdma, or FILE.py:NAME. With rdma hosts have cards "
            "with verbs, for any program."
        ),
    ] = "tcp",
    protocol: Annotated[str, typer.Option(help="The same: eager, rendezvous or staged.")] = "eager",
    collective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLLECTIVE=ALGORITHM",
            help="The same: how a collective is done, such as all_reduce=ring [default: auto].",
        ),
    ] = None,
    tuning: Annotated[
        Path | None, typer.Option(help="The same: what auto goes by, as `testbed bench --tune` writes it.")
    ] = None,
    torch_default: Annotated[
        bool,
        typer.Option(help="PyTorch's init_process_group() gets the backend testbed where it names none."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Measure every WAN link before, check every setting after: exit status 3 where they do not hold.",
        ),
    ] = False,
    clock: Annotated[str, typer.Option(help="real, or virtual: computing takes no time there.")] = RUN_CLOCK,
    size_scale: SizeScaleOption = AUTO_SCALE,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    memory: MemoryOption = None,
    writable: Annotated[
        list[Path] | None,
        typer.Option(help="Virtual clock: a folder of this machine that programs may change."),
    ] = None,
    stall_timeout: StallOption = DEFAULT_STALL_TIMEOUT,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="PyTorch's backend testbed: where flight recorders are dumped when a rank fails, for `testbed "
            "diagnose` [default: runs/launch-DATE-TIME.failed].",
        ),
    ] = None,
) -> None:
    """Run a program once per rank, each in its host: testbed launch -t TOPOLOGY -- python train.py

    It finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME, as torchrun sets them, what
    MPI programs (MPICH's) need, and in PyTorch the backend "testbed" of torch.distributed. Its lines are shown with the
    rank before them; the exit status is the worst. When a rank fails the others are stopped.
    """
    command = require_program(context.args)
    check_program_options(transport, protocol, clock)
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
                output.rmdir()  # where nothing was dumped
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
    """The same command in a guest, where it finds the clock that it wants; ends with its status."""
    words = sys.argv[1:]
    # the last of an option counts: before the program, which may have one of that name
    at = words.index("--") if "--" in words else words.index("launch") + 1
    words[at:at] = ["--output", str(output)]
    command = [sys.executable, "-c", "from testbed.cli import main; main()", *words]
    # what the programs go by besides, as they would find it outside
    environment = {key: value for key, value in os.environ.items() if key not in KEPT_OUTSIDE}
    guest = Guest(find_image(), settings)
    ended = guest.run(command, Path.cwd(), {**environment, "PYTHONUNBUFFERED": "1"}, out, err)
    raise typer.Exit(ended.status if ended.status >= 0 else 128 - ended.status)


def _show(rank: int, is_error: bool, line: str) -> None:
    print(f"[{rank}] {line}", file=sys.stderr if is_error else sys.stdout, flush=True)
