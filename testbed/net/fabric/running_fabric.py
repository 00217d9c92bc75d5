"""Functions to inspect and change a running fabric from another process: settings, counters, links, policy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed.errors import did_you_mean
from testbed.net.controller.process import ControllerApi
from testbed.net.errors import FabricError, need_root
from testbed.net.fabric.fabric_state import CONTROLLER_FILE, FabricState
from testbed.net.fabric.plan import WAN_NODE, Plan
from testbed.net.links.interfaces import read_interfaces
from testbed.net.links.link_engine import (
    LinkEngine,
    classes_from_json,
    wire_from_json,
)
from testbed.net.links.netem import NetemEngine
from testbed.net.links.netlink import Netlink
from testbed.net.links.userspace import UserspaceEngine
from testbed.plugins import resolve_file_names
from testbed.spec.base_model import validate
from testbed.spec.errors import ConfigError, Problem
from testbed.spec.link_direction import DIRECTIONS, Direction, QueueClass
from testbed.spec.links import DirectionSpec, change_direction
from testbed.spec.policy import PolicySpec
from testbed.spec.scale import Scale
from testbed.spec.yaml_loader import Document, Origin, parse_override

CONTROL_SOCKET = "links.sock"


def describe(plan: Plan) -> dict[str, Any]:
    """Return the part of a fabric's state that `inspect` needs: buildings, hosts, WAN links and wires."""
    return {
        "buildings": [building.name for building in plan.topology.buildings],
        "hosts": [
            {
                "name": host.name,
                "building": host.building,
                "rank": host.index,
                "ip": host.ip,
                "mac": host.mac,
            }
            for host in plan.topology.hosts
        ],
        "wan": [
            {"a": link.a, "b": link.b, "plane": link.plane, "name": link.name} for link in plan.topology.wan
        ],
        "wires": [asdict(wire) for wire in plan.wires()],
        "mtu": plan.topology.mtu,
    }


def engine_of(state: FabricState) -> LinkEngine:
    """Return the fabric's link engine; the owner may start and stop it, other processes may read and change it."""
    wires = [wire_from_json(wire) for wire in state.details["wires"]]
    pid, seed = state.pids[WAN_NODE], state.details["seed"]
    if state.details["link_engine"] == "userspace":
        return UserspaceEngine(pid, wires, state.folder / CONTROL_SOCKET, seed)
    return NetemEngine(pid, state.pids, wires, state.details["mtu"], seed)


def change_links(state: FabricState, directions: Mapping[tuple[str, str], Direction]) -> None:
    """Change WAN directions in place, from any process; raises LinkError on failure."""
    engine_of(state).change(directions)
    for wire in state.details["wires"]:
        # Save them for later readers: the kernel does not return the jitter's distribution.
        changed = {which: directions[name, which] for name, which in directions if name == wire["name"]}
        wire |= {which: asdict(direction) for which, direction in changed.items()}
    state.save()


def inspect(state: FabricState) -> dict[str, Any]:
    """Return buildings, hosts and WAN links with every setting as read back now; raises LinkError if a part is gone."""
    engine = engine_of(state)
    settings = engine.settings()
    wan = [
        {
            **{key: link[key] for key in ("name", "a", "b", "plane")},
            **{which: asdict(settings[link["name"], which]) for which in DIRECTIONS},
        }
        for link in state.details["wan"]
    ]
    copied = ("link_engine", "datapath", "policy", "scale", "mtu", "buildings", "hosts")
    return {
        "id": state.id,
        "topology": state.topology,
        "phase": state.phase,
        "failure": state.failure,
        **{key: state.details[key] for key in copied},
        "wan": wan,
        "seeded": engine.is_seeded(),
    }


@dataclass(frozen=True)
class WanCounters:
    """Frame counters of one WAN direction: those that left the near edge, and those that reached the far edge."""

    a: str
    b: str
    plane: int
    direction: str
    entered_packets: int
    arrived_packets: int


@dataclass(frozen=True)
class FabricCounters:
    """The frame counters of a fabric.

    Attributes:
        wan: All WAN directions.
        edges: Frames (received, sent) by each building's edge switch, over all ports.
        backlog_drops: Packets that this kernel has dropped since boot at net.core.netdev_max_backlog.
    """

    wan: tuple[WanCounters, ...]
    edges: dict[str, tuple[int, int]]
    backlog_drops: int


def read_counters(plan: Plan, netlink: Netlink) -> FabricCounters:
    """Read all counters; LinkError or KeyError if a part is gone.

    Args:
        plan: The fabric's plan.
        netlink: A socket in the root namespace.
    """
    ends = {(port.link_index, port.side): port for port in plan.wan_ports}
    stats = {
        link.name: link
        for link in read_interfaces(netlink, statistics=True)
        if link.name.startswith(plan.prefix)
    }
    wan = [
        WanCounters(
            *(link.a, link.b, link.plane, direction),
            entered_packets=stats[ends[index, near].edge_interface].tx_packets,
            arrived_packets=stats[ends[index, far].edge_interface].rx_packets,
        )
        for index, link in enumerate(plan.topology.wan)
        for direction, near, far in (("a_to_b", "a", "b"), ("b_to_a", "b", "a"))
    ]
    edges = {
        edge.building.name: (
            sum(stats[name].rx_packets for name in edge.interfaces),
            sum(stats[name].tx_packets for name in edge.interfaces),
        )
        for edge in plan.edges
    }
    return FabricCounters(tuple(wan), edges, backlog_drops())


def backlog_drops() -> int:
    """Return the packets dropped so far at net.core.netdev_max_backlog, on all cores."""
    return sum(int(line.split()[1], 16) for line in Path("/proc/net/softnet_stat").read_text().splitlines())


COMMAND_LINE, LINK_SET, ALL = "command line", "link set", "all"
Settings = Mapping[tuple[str, str], Direction]  # by (link, direction)


@dataclass(frozen=True)
class PolicyChange:
    """The result of a policy change: number of rules, of changed rules, and the seconds that it took."""

    name: str
    rules: int
    changed: int
    seconds: float
    classes: tuple[QueueClass, ...]


def parse_link_settings(assignments: Iterable[str]) -> DirectionSpec:
    """Parse "KEY=VALUE" link settings, with a topology file's keys; others stay None. Raises ConfigError if invalid."""
    return validate(DirectionSpec, _document(LINK_SET, {}, assignments))


def parse_policy_args(name: str, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """Parse a policy name and "KEY=VALUE" options into the controller's form.

    The file of a user-defined policy is relative to the working directory.

    Raises:
        ConfigError: The policy or an option is invalid.
    """
    return validate(
        PolicySpec, _document(COMMAND_LINE, {"name": resolve_file_names(name, Path())}, assignments)
    ).to_choice()


def changed_directions(
    now: Settings, link: str, direction: str | None, changes: DirectionSpec, mtu: int, scale: Scale
) -> dict[tuple[str, str], Direction]:
    """Compute the new settings of the selected directions.

    Args:
        now: The current settings of all directions.
        link: A link's name, or "all".
        direction: "a_to_b" or "b_to_a"; None for both.
        changes: The settings to change, unscaled.
        mtu: The fabric's MTU in bytes.
        scale: The fabric's scale.

    Raises:
        ConfigError: The link or direction does not exist, or jitter exceeds the delay.
    """
    if direction not in (*DIRECTIONS, None):
        raise command_line_error("--direction", str(direction), " or ".join(DIRECTIONS))
    names = sorted({name for name, _ in now})
    if link not in (ALL, *names):
        raise command_line_error("LINK", link, f"all, or a link: {did_you_mean(link, names)}")
    changed = {
        where: change_direction(figures, changes, mtu, scale)
        for where, figures in now.items()
        if link in (where[0], ALL) and direction in (where[1], None)
    }
    for figures in changed.values():
        if figures.jitter_s > figures.delay_s:
            shown = f"{figures.jitter_s:g} s with a delay of {figures.delay_s:g} s"
            raise ConfigError([Problem(LINK_SET, None, "jitter", shown, "jitter of at most the delay")])
    return changed


def change_link(
    state: FabricState, link: str, changes: DirectionSpec, direction: str | None = None
) -> dict[tuple[str, str], Direction]:
    """Change a link in place; packets in flight are not affected.

    Args:
        state: The fabric's state.
        link: A link's name, or "all".
        changes: The settings to change, unscaled.
        direction: "a_to_b" or "b_to_a"; None for both.

    Returns:
        The new settings of the changed directions.

    Raises:
        ConfigError: See `changed_directions`.
        FabricError: The caller is not root.
        LinkError: The link engine cannot apply the settings.
    """
    need_root("changing a link")
    now, scale = engine_of(state).settings(), Scale(**state.details["scale"])
    changed = changed_directions(now, link, direction, changes, state.details["mtu"], scale)
    change_links(state, changed)
    return changed


def with_queues(
    now: Settings, wan: Iterable[str], classes: tuple[QueueClass, ...]
) -> dict[tuple[str, str], Direction]:
    """Return the settings of these WAN links with a policy's queues."""
    links = set(wan)
    return {where: replace(own, classes=classes) for where, own in now.items() if where[0] in links}


def change_policy(state: FabricState, policy: Mapping[str, Any]) -> PolicyChange:
    """Put a policy from `parse_policy_args` in force: first its rules, then its queues.

    Raises:
        PolicyError: The policy is invalid; nothing has changed.
        ControllerError: The rules cannot be installed; the previous ones stay.
        FabricError: The caller is not root.
        LinkError: The link engine cannot apply the queues.
    """
    need_root("changing the policy")
    answer = controller_of(state).set(policy)
    classes = classes_from_json(answer["classes"])
    wan = [link["name"] for link in state.details["wan"]]
    change_links(state, with_queues(engine_of(state).settings(), wan, classes))
    state.details["policy"] = policy["name"]
    state.save()
    return PolicyChange(policy["name"], answer["rules"], answer["changed"], answer["seconds"], classes)


def controller_of(state: FabricState) -> ControllerApi:
    """Return the client of a fabric's controller; raises FabricError without root or without a controller."""
    try:
        return ControllerApi(**json.loads((state.folder / CONTROLLER_FILE).read_text()))
    except PermissionError:
        raise FabricError("access to the controller needs root: run it through sudo") from None
    except FileNotFoundError:
        raise FabricError(f"fabric {state.id} has no controller API") from None


def _document(source: str, data: dict[str, Any], assignments: Iterable[str]) -> Document:
    document = Document(source, data, {(): Origin(source, None)})
    for assignment in assignments:
        key, value = parse_override(assignment, source)
        document.data[key] = value
    return document


def command_line_error(field: str, value: str, expected: str) -> ConfigError:
    """Return the error about an option or argument of a command."""
    return ConfigError([Problem(COMMAND_LINE, None, field, value, expected)])
