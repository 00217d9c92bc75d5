"""Commands for running networks: up, exec, inspect, down, clean, link, probe, policy; and doctor."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from testbed.cli.options import (
    AUTO_SCALE,
    DatapathOption,
    EngineOption,
    FabricOption,
    JsonOption,
    PolicyOption,
    SizeScaleOption,
)
from testbed.measure.execution.network_setup import choose_network_without_ranks, require_command
from testbed.measure.results.run_directory import RUNS
from testbed.measure.results.run_listing import list_killed
from testbed.net import doctor
from testbed.net.errors import need_root
from testbed.net.fabric.daemon import take_down
from testbed.net.fabric.fabric_state import (
    ENVIRONMENT_MARK,
    clean_abandoned,
    command_in_host,
    find_fabric,
    load_live,
)
from testbed.net.fabric.flow_trace import MAX_DSCP, MAX_PORT, Flow, Trace, trace_flow
from testbed.net.fabric.running_fabric import (
    ALL,
    change_link,
    change_policy,
    controller_of,
    parse_link_settings,
    parse_policy_args,
)
from testbed.net.fabric.running_fabric import inspect as read_back
from testbed.net.links.link_engine import classes_from_json
from testbed.spec.errors import option_error
from testbed.spec.link_direction import PACKET_FAULTS, LossBursts, QueueClass
from testbed.spec.policy import DEFAULT_POLICY
from testbed.spec.scale import Scale
from testbed.spec.units import format_fraction, format_size, rate_text, size_text, time_text

link_app = typer.Typer(no_args_is_help=True, help="Change WAN links of a running network.")


def diagnose(as_json: JsonOption = False) -> None:
    """Check what this host supports, with evidence, and which link engine and datapath a run would use."""
    raise typer.Exit(doctor.report(json=as_json))


def up(
    topology: Annotated[Path, typer.Argument(help="A topology file.")],
    policy: PolicyOption = DEFAULT_POLICY,
    link_engine: EngineOption = None,
    datapath: DatapathOption = None,
    size_scale: SizeScaleOption = AUTO_SCALE,
) -> None:
    """Build a network and leave it running, for `exec`, `inspect` and your own programs."""
    console = Console(stderr=True, highlight=False)
    network = choose_network_without_ranks(topology, policy, link_engine, datapath, size_scale)
    for fabric_id, removed in clean_abandoned().items():
        console.print(
            f"removed {len(removed)} items that fabric {fabric_id}, whose owner is gone, had left behind"
        )
    fabric_id = network.start(topology, lambda line: console.print(f"  {line}"))
    resolved = network.topology.resolve(network.scale)
    console.print(
        f"{resolved.name} is up as fabric {fabric_id}: {len(resolved.hosts)} hosts, {len(resolved.wan)} WAN links"
        + ("" if network.scale.is_one else f", {network.scale}")
    )
    names = ", ".join(host.name for host in resolved.hosts[:8]) + (", ..." if len(resolved.hosts) > 8 else "")
    console.print(
        f"hosts: {names}\ntry:   testbed exec {resolved.hosts[0].name} -- ping -c 3 {resolved.hosts[-1].name}"
    )


def execute(
    context: typer.Context,
    host: Annotated[str, typer.Argument(help="Host to run in, for example east1.")],
    fabric: FabricOption = None,
) -> None:
    """Run a program inside a host: testbed exec HOST -- COMMAND... Exits with the program's status."""
    arguments = require_command(context.args)
    state = find_fabric(fabric, (host,))
    command = command_in_host(state, host, arguments, "HOST")
    os.environ[ENVIRONMENT_MARK] = state.id
    os.execvp(command[0], command)


def inspect(as_json: JsonOption = False, fabric: FabricOption = None) -> None:
    """Show a running network: hosts, and every WAN link's settings as read back from the kernel."""
    shown = read_back(find_fabric(fabric))
    if as_json:
        print(json.dumps(shown, indent=1))
        return
    console, scale = Console(highlight=False), Scale(**shown["scale"])
    console.print(
        f"fabric {shown['id']} ({shown['topology']}), {shown['phase']}: policy {shown['policy']}, "
        f"link engine {shown['link_engine']}, datapath {shown['datapath']}"
        + ("" if scale.is_one else f", {scale}")
    )
    if shown["failure"]:
        console.print(f"broken: {shown['failure']}", style="red")
    hosts = Table("host", "building", "rank", "address")
    for entry in shown["hosts"]:
        hosts.add_row(entry["name"], entry["building"], str(entry["rank"]), entry["ip"])
    console.print(hosts)
    links = Table(
        Column("WAN link", no_wrap=True), "from", "rate", "delay", "jitter", "loss", "queue", "else"
    )
    for entry in shown["wan"]:
        for here, direction in (("a", "a_to_b"), ("b", "b_to_a")):
            links.add_row(entry["name"], entry[here], *direction_row(entry[direction]))
    console.print(links)


def direction_row(direction: dict[str, Any]) -> list[str]:
    """Return rate, delay, jitter, loss and queue of one direction as text, then all non-default settings."""
    queue, bursts = format_size(direction["queue_bytes"]), direction["loss_bursts"]
    if packets := direction["queue_packets"]:
        queue = f"{packets} packets"
    jitter = time_text(direction["jitter_s"])
    if direction["jitter_s"] and direction["jitter_distribution"] != "uniform":
        jitter += f" {direction['jitter_distribution']}"
    more = [f"{kind} {format_fraction(direction[kind])}" for kind in PACKET_FAULTS if direction[kind]]
    if ecn_bytes := direction["ecn_bytes"]:
        more.append(f"marks from {format_size(ecn_bytes)}")
    if pause := direction["pause"]:
        more.append(f"pauses above {format_size(pause['xoff_bytes'])}")
    if direction["classes"]:
        more.append(f"queues {', '.join(entry['name'] for entry in direction['classes'])}")
    return [
        rate_text(direction["rate_bps"]),
        time_text(direction["delay_s"]),  # rounded, as the kernel counts in ticks: 2.499968 ms for 2.5
        jitter,
        f"{LossBursts(**bursts).mean:.3%} in bursts" if bursts else format_fraction(direction["loss"]),
        queue,
        ", ".join(more),
    ]


def down(
    fabric: FabricOption = None,
    every: Annotated[bool, typer.Option("--all", help="Take down all running networks.")] = False,
) -> None:
    """Take a network down."""
    console = Console(stderr=True, highlight=False)
    states = load_live() if every else [find_fabric(fabric)]
    for state in states:
        take_down(state)
        console.print(f"fabric {state.id} ({state.topology}) is down")


def clean(
    every: Annotated[bool, typer.Option("--all", help="Also remove running networks and runs.")] = False,
) -> None:
    """Remove the interfaces, bridges, namespaces and processes that killed runs left behind, and nothing else.

    Folders that those runs left in ./runs are listed but not removed.
    """
    need_root("cleaning")
    console = Console(stderr=True, highlight=False)
    cleaned = clean_abandoned(everything=every)
    for fabric_id, removed in cleaned.items():
        console.print(
            f"fabric {fabric_id}:", *(f"  removed {item}" for item in removed), sep="\n", markup=False
        )
    left = list_killed(RUNS)
    for entry in left:
        console.print(
            f"{entry.path}: left behind by a killed run, {size_text(entry.size_bytes)}", soft_wrap=True
        )
    if left:
        console.print("`testbed runs prune --left` removes them, and those of failed runs")
    if not cleaned and not left:
        console.print("nothing to clean")


@link_app.command(name="set")
def set_link(
    link: Annotated[
        str, typer.Argument(help="A link, such as east-west-0 (building, building, plane), or all.")
    ],
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...", help="As in a topology file, such as delay='10 ms' loss='1 %'."
        ),
    ],
    direction: Annotated[str | None, typer.Option(help="a_to_b or b_to_a (default: both).")] = None,
    way: Annotated[str | None, typer.Option(hidden=True)] = None,  # former name of --direction
    fabric: FabricOption = None,
) -> None:
    """Change settings of a WAN link in place; other settings stay unchanged. Packets in flight keep their delay."""
    if way is not None:
        raise option_error("--way", "an option that was renamed", "--direction")
    changed = change_link(
        find_fabric(fabric, link=None if link == ALL else link),
        link,
        parse_link_settings(settings),
        direction,
    )
    console = Console(stderr=True, highlight=False)
    for where, figures in changed.items():
        row = [figure for figure in direction_row(asdict(figures)) if figure]
        console.print(f"{' '.join(where)}: {', '.join(row)}")


def probe(
    source: Annotated[str, typer.Argument(help="Sending host, for example east1.")],
    target: Annotated[str, typer.Argument(help="Receiving host, for example west1.")],
    protocol: Annotated[str, typer.Option(help="udp or tcp.")] = "udp",
    source_port: Annotated[int, typer.Option("--sport", min=1, max=MAX_PORT)] = 40_000,
    destination_port: Annotated[int, typer.Option("--dport", min=1, max=MAX_PORT)] = 40_001,
    dscp: Annotated[int, typer.Option(min=0, max=MAX_DSCP, help="DSCP of the packets.")] = 0,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of packets.")] = 10,
    fabric: FabricOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trace a flow between two hosts: the WAN links that its packets cross, their delay and their DSCP.

    Exit status 1 if no packet arrives.
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


SETTINGS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Options, as in a scenario, such as over=te replan=true."),
]
NAME = Annotated[str, typer.Argument(metavar="POLICY", help="A policy, or your own as FILE.py:NAME.")]
SHOWN_RULES = 20
policy_app = typer.Typer(
    no_args_is_help=True, help="Show or change the transport policy of a running network."
)


@policy_app.command(name="show")
def show(
    rules: Annotated[bool, typer.Option("--rules", help="List all rules, with packet counts.")] = False,
    as_json: JsonOption = False,
    fabric: FabricOption = None,
) -> None:
    """Show the active policy, its rules and its queues."""
    api = controller_of(find_fabric(fabric))
    shown = api.show()
    if rules or as_json:
        counted = api.rules()
    if as_json:
        print(json.dumps({**shown, "bridges": counted}, indent=1))
        return
    console = Console(highlight=False)
    policy = shown["policy"]
    options = "".join(f", {key} {json.dumps(value)}" for key, value in policy["options"].items())
    console.print(
        f"policy {policy['name']}{options}; replans when links fail: {'yes' if shown['replan'] else 'no'}"
    )
    console.print(
        f"the controller reacts in {shown['reaction_s'] * 1e3:g} ms, {shown['rule_s'] * 1e3:g} ms per rule"
    )
    if shown["down"]:
        console.print(f"links down: {', '.join(shown['down'])}")
    for name, value in shown["notes"].items():
        console.print(f"{name}: {value:.6g}")
    for bridge, count in shown["rules"].items():
        console.print(f"{bridge}: {count} rules")
    _print_classes(console, classes_from_json(shown["classes"]))
    if rules:
        table = Table("bridge", "priority", "match", "actions", "packets", "bytes", "comment")
        for bridge, own in counted.items():
            for rule in own:
                match = " ".join(f"{key}={value}" for key, value in rule["match"].items())
                actions = ", ".join(
                    f"{key} {value}" for action in rule["actions"] for key, value in action.items()
                )
                figures = [str(rule[key]) for key in ("packets", "bytes")]
                table.add_row(
                    bridge,
                    str(rule["priority"]),
                    match or "any",
                    actions or "drop",
                    *figures,
                    rule["comment"],
                )
        console.print(table)


@policy_app.command(name="set")
def change(name: NAME, settings: SETTINGS = None, fabric: FabricOption = None) -> None:
    """Change the policy: rules, then queues. Connections stay up; after an error the old policy remains in force."""
    changed = change_policy(find_fabric(fabric), parse_policy_args(name, settings or ()))
    console = Console(stderr=True, highlight=False)
    console.print(
        f"policy {changed.name}: {changed.rules} rules, {changed.changed} of them changed, confirmed in "
        f"{changed.seconds:.2f} s"
    )
    _print_classes(console, changed.classes)


@policy_app.command(name="diff")
def diff(
    name: NAME, settings: SETTINGS = None, as_json: JsonOption = False, fabric: FabricOption = None
) -> None:
    """Show what `policy set` would change, without changing anything."""
    found = controller_of(find_fabric(fabric)).diff(parse_policy_args(name, settings or ()))
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console(highlight=False)
    for bridge, changes in found["bridges"].items():
        for sign, key, style in (("-", "removed", "red"), ("+", "added", "green")):
            for rule in changes[key][:SHOWN_RULES]:
                console.print(f"{sign} {bridge}: {rule}", style=style, markup=False, soft_wrap=True)
            if (more := len(changes[key]) - SHOWN_RULES) > 0:
                console.print(f"{sign} {bridge}: and {more} more", style=style)
    if not any(changes[key] for changes in found["bridges"].values() for key in changes):
        console.print("the rules would not change")
    _print_classes(console, classes_from_json(found["classes"]))


def _print_classes(console: Console, classes: Sequence[QueueClass]) -> None:
    if not classes:
        return
    table = Table("queue", "DSCP", "priority", "share", "limit")
    for entry in classes:
        dscps = ", ".join(map(str, entry.dscps)) or "all others"
        table.add_row(entry.name, dscps, str(entry.priority), f"{entry.share:.3%}", f"{entry.limit:.3%}")
    console.print(table)
