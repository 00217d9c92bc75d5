"""The command `launch`: any program as the ranks of a job, on an emulated network."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.options import (
    AUTO_SCALE,
    DatapathOption,
    EngineOption,
    PolicyOption,
    SizeScaleOption,
    TopologyOption,
)
from testbed.config.policy import DEFAULT_POLICY
from testbed.running.choosing import choose_network
from testbed.running.program_run import program_given, run_programs


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
    size_scale: SizeScaleOption = AUTO_SCALE,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
) -> None:
    """Run a program once per rank, each in its host: testbed launch -t TOPOLOGY -- python train.py

    It finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME, as torchrun sets them, and
    what MPI programs (MPICH's) need. Its lines are shown with the rank before them; the exit status is the worst. When
    a rank fails the others are stopped.
    """
    command = program_given(context.args)
    console = Console(stderr=True, highlight=False)
    network, count = choose_network(topology, policy, link_engine, datapath, size_scale, ranks, least=1)
    status = run_programs(command, network, count, _show, lambda line: console.print(f"  {line}"))
    raise typer.Exit(status)


def _show(rank: int, is_error: bool, line: str) -> None:
    print(f"[{rank}] {line}", file=sys.stderr if is_error else sys.stdout, flush=True)
