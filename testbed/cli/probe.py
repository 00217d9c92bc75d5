"""The command `probe`: a flow's path through a network that is up, its DSCP at the far end, its one-way delay."""

from __future__ import annotations

import json
import statistics
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.options import FabricOption, JsonOption
from testbed.net.fabric.fabric_state import find_fabric
from testbed.net.fabric.flow_trace import LARGEST_DSCP, LARGEST_PORT, Flow, Trace, trace_flow
from testbed.spec.units import time_text


def add_commands(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(probe)


def probe(
    source: Annotated[str, typer.Argument(help="The host that sends, for example east1.")],
    target: Annotated[str, typer.Argument(help="The host that receives, for example west1.")],
    protocol: Annotated[str, typer.Option(help="udp or tcp.")] = "udp",
    source_port: Annotated[int, typer.Option("--sport", min=1, max=LARGEST_PORT)] = 40_000,
    destination_port: Annotated[int, typer.Option("--dport", min=1, max=LARGEST_PORT)] = 40_001,
    dscp: Annotated[
        int, typer.Option(min=0, max=LARGEST_DSCP, help="Traffic class that it is sent with.")
    ] = 0,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many packets.")] = 10,
    fabric: FabricOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send packets of one flow from host to host and tell which WAN links they cross, how long it takes, their DSCP.

    Exit status 1 when none arrives.
    """
    flow = Flow(protocol, source_port, destination_port, dscp)
    trace = trace_flow(find_fabric(fabric, (source, target)), source, target, flow, count)
    if as_json:
        print(json.dumps(trace.document(), indent=1))
    else:
        _print(trace, source, target, flow)
    if not trace.arrived:
        raise typer.Exit(1)


def _print(trace: Trace, source: str, target: str, flow: Flow) -> None:
    console = Console(highlight=False, soft_wrap=True)
    ports = f"{flow.protocol} {flow.source_port} to {flow.destination_port}"
    console.print(f"{source} to {target}, {ports}: {trace.arrived} of {trace.sent} packets arrived")
    for path, packets in trace.paths.most_common():
        links = ", ".join(f"{link} {direction}" for link, direction in path) or "no WAN link"
        console.print(f"  path      {links}" + (f"  ({packets} packets)" if len(trace.paths) > 1 else ""))
    if trace.arrived:
        low, middle, high = (time_text(pick(trace.one_way_s)) for pick in (min, statistics.median, max))
        console.print(f"  one way   {middle}, from {low} to {high}")
        classes = ", ".join(str(number) for number in sorted(trace.dscp))
        console.print(f"  DSCP      sent {flow.dscp}, arrived {classes}")
