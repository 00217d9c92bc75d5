"""The command `probe`: a flow's way through a network that is up, its DSCP at the far end, its one-way delay."""

from __future__ import annotations

import json
import os
import statistics
from typing import Annotated

import typer
from rich.console import Console

from testbed.cli.fabric import FabricOption
from testbed.cli.options import JsonOption
from testbed.config import ConfigError, Problem
from testbed.config.units import format_duration
from testbed.errors import did_you_mean
from testbed.fabric.errors import FabricError
from testbed.fabric.holder import find
from testbed.fabric.tracing import Flow, Trace, trace_flow

PROTOCOLS = ("udp", "tcp")
LARGEST_PORT, LARGEST_DSCP = 65_535, 63


def add_probe_command(app: typer.Typer) -> None:
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
    if protocol not in PROTOCOLS:
        raise ConfigError([Problem("command line", None, "--protocol", protocol, " or ".join(PROTOCOLS))])
    if os.geteuid() != 0:
        raise FabricError("probing needs root: run it through sudo")
    state = find(fabric)
    hosts = [entry["name"] for entry in state.details["hosts"]]
    for argument, host in (("SOURCE", source), ("TARGET", target)):
        if host not in hosts:
            expected = f"a host: {did_you_mean(host, hosts)}"
            raise ConfigError([Problem("command line", None, argument, host, expected)])
    if source == target:
        raise ConfigError([Problem("command line", None, "TARGET", target, "another host than SOURCE")])
    flow = Flow(protocol, source_port, destination_port, dscp)
    trace = trace_flow(state, source, target, flow, count)
    if as_json:
        print(json.dumps(_document(trace), indent=1))
    else:
        _print(trace, source, target, flow)
    if not trace.arrived:
        raise typer.Exit(1)


def _document(trace: Trace) -> dict[str, object]:
    return {
        "sent": trace.sent,
        "arrived": trace.arrived,
        "paths": [
            {
                "links": [{"link": link, "direction": direction} for link, direction in path],
                "packets": packets,
            }
            for path, packets in trace.paths.most_common()
        ],
        "one_way_s": trace.one_way_s,
        "dscp": dict(trace.dscp),
    }


def _print(trace: Trace, source: str, target: str, flow: Flow) -> None:
    console = Console(highlight=False, soft_wrap=True)
    ports = f"{flow.protocol} {flow.source_port} to {flow.destination_port}"
    console.print(f"{source} to {target}, {ports}: {trace.arrived} of {trace.sent} packets arrived")
    for path, packets in trace.paths.most_common():
        links = ", ".join(f"{link} {direction}" for link, direction in path) or "no WAN link"
        console.print(f"  path      {links}" + (f"  ({packets} packets)" if len(trace.paths) > 1 else ""))
    if trace.arrived:
        low, middle, high = (
            format_duration(round(pick(trace.one_way_s), 7)) for pick in (min, statistics.median, max)
        )
        console.print(f"  one way   {middle}, from {low} to {high}")
        classes = ", ".join(str(number) for number in sorted(trace.dscp))
        console.print(f"  DSCP      sent {flow.dscp}, arrived {classes}")
