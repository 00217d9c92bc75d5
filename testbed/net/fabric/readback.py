"""What a running fabric is set to and has counted, read from the system by whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.net.fabric.ownership import FabricState
from testbed.net.fabric.plan import WAN_NODE, Plan
from testbed.net.links.netem import NetemEngine
from testbed.net.links.netlink import Netlink
from testbed.net.links.rtnetlink_dumps import interfaces
from testbed.net.links.userspace import UserspaceEngine
from testbed.net.links.wire import LinkEngine, direction_to_json, wire_from_json, wire_to_json
from testbed.spec.link_direction import Direction

CONTROL_SOCKET = "links.sock"


def describe(plan: Plan) -> dict[str, Any]:
    """The part of a fabric's state that `inspect` needs: buildings, hosts, where each WAN direction's settings are."""
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
            {
                "a": link.a,
                "b": link.b,
                "plane": link.plane,
                "name": link.name,
            }
            for link in plan.topology.wan
        ],
        "wires": [wire_to_json(wire) for wire in plan.wires()],
        "mtu": plan.topology.mtu,
    }


def engine_of(state: FabricState) -> LinkEngine:
    """The fabric's link engine: for its owner to start and stop, for anybody else to read and change."""
    wires = [wire_from_json(wire) for wire in state.details["wires"]]
    pid, seed = state.pids[WAN_NODE], state.details["seed"]
    if state.details["link_engine"] == "userspace":
        return UserspaceEngine(pid, wires, state.folder / CONTROL_SOCKET, seed)
    return NetemEngine(pid, state.pids, wires, state.details["mtu"], seed)


def change_links(state: FabricState, asked: Mapping[tuple[str, str], Direction]) -> None:
    """Set WAN directions anew, in place, from outside of the process that holds the fabric. LinkError."""
    engine_of(state).change(asked)
    for wire in state.details["wires"]:
        # for the next who reads: a kernel does not tell jitter's distribution
        changed = {which: asked[name, which] for name, which in asked if name == wire["name"]}
        wire |= {which: direction_to_json(direction) for which, direction in changed.items()}
    state.save()


def inspect(state: FabricState) -> dict[str, Any]:
    """Buildings, hosts and WAN links with every setting as read back now. LinkError when something of it is gone."""
    engine = engine_of(state)
    settings = engine.settings()
    wan = []
    for link in state.details["wan"]:
        entry: dict[str, Any] = {key: link[key] for key in ("name", "a", "b", "plane")}
        for which in ("a_to_b", "b_to_a"):
            entry[which] = direction_to_json(settings[link["name"], which])
        wan.append(entry)
    kept = ("link_engine", "datapath", "policy", "scale", "mtu")
    return {
        "id": state.id,
        "topology": state.topology,
        "phase": state.phase,
        "failure": state.failure,
        **{key: state.details[key] for key in kept},
        "buildings": state.details["buildings"],
        "hosts": state.details["hosts"],
        "wan": wan,
        "seeded": engine.seeded(),
    }


@dataclass(frozen=True)
class WanCounters:
    """Counters of one WAN direction's ends: frames that left the near edge, frames that reached the far edge."""

    a: str
    b: str
    plane: int
    direction: str
    entered_packets: int
    arrived_packets: int


@dataclass(frozen=True)
class FabricCounters:
    """All WAN directions, and per building the frames that went into and came out of its edge switch, all ports.

    `backlog_drops` are packets that this kernel threw away since it started because too many were on their way
    from one virtual interface to the next.
    """

    wan: tuple[WanCounters, ...]
    edges: dict[str, tuple[int, int]]
    backlog_drops: int


class CounterReader:
    """Reads a running fabric's counters again and again; use as a context manager."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._root = Netlink()
        self._ends = {(port.link_index, port.side): port for port in plan.wan_ports}

    def __enter__(self) -> CounterReader:
        return self

    def __exit__(self, *reason: object) -> None:
        self._root.close()

    def read(self) -> FabricCounters:
        """All counters now. LinkError or KeyError when a part is gone."""
        plan = self._plan
        stats = {
            link.name: link
            for link in interfaces(self._root, statistics=True)
            if link.name.startswith(plan.prefix)
        }
        wan = []
        for index, link in enumerate(plan.topology.wan):
            for direction, near, far in (("a_to_b", "a", "b"), ("b_to_a", "b", "a")):
                start, end = self._ends[index, near], self._ends[index, far]
                wan.append(
                    WanCounters(
                        link.a,
                        link.b,
                        link.plane,
                        direction,
                        entered_packets=stats[start.edge_interface].tx_packets,
                        arrived_packets=stats[end.edge_interface].rx_packets,
                    )
                )
        edges = {
            edge.building: (
                sum(stats[name].rx_packets for name in edge.interfaces),
                sum(stats[name].tx_packets for name in edge.interfaces),
            )
            for edge in plan.edges
        }
        return FabricCounters(tuple(wan), edges, backlog_drops())


def backlog_drops() -> int:
    """Packets dropped so far at net.core.netdev_max_backlog, of all cores."""
    return sum(int(line.split()[1], 16) for line in Path("/proc/net/softnet_stat").read_text().splitlines())
