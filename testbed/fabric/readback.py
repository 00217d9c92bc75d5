"""What a running fabric is set to and has counted, read from the system by whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from testbed.fabric.plan import Plan
from testbed.fabric.state import FabricState
from testbed.links import network_namespace
from testbed.links.netem import NetemEngine
from testbed.links.shaping import ShapeCounters, read_counters, read_shape
from testbed.links.userspace import read_settings
from testbed.links.wire import Impairment, LinkWire

CONTROL_SOCKET = "links.sock"


def describe(plan: Plan) -> dict[str, Any]:
    """The part of a fabric's state that `inspect` needs: hosts, and where each WAN direction's settings are kept."""
    return {
        "hosts": [
            {"name": host.name, "building": host.building, "rank": host.index, "ip": host.ip}
            for host in plan.topology.hosts
        ],
        "wan": [
            {
                "a": link.a,
                "b": link.b,
                "plane": link.plane,
                "name": link.name,
                "shapers": {
                    port.side: plan.shaper(port) for port in plan.wan_ports if port.link_index == index
                },
            }
            for index, link in enumerate(plan.topology.wan)
        ],
        "mtu": plan.topology.mtu,
        "shaped_after": plan.shaped_after,
    }


def engine_settings(state: FabricState) -> dict[tuple[str, str], Impairment]:
    """Delay, jitter and loss of every WAN direction, as the link engine says now."""
    if state.details["link_engine"] == "userspace":
        return read_settings(state.folder / CONTROL_SOCKET)
    wires = [_bare_wire(index, link["name"]) for index, link in enumerate(state.details["wan"])]
    return NetemEngine(state.pids["wan"], wires, {}).settings()


def inspect(state: FabricState) -> dict[str, Any]:
    """Hosts and WAN links with every setting as read back now. LinkError when something of it is gone."""
    impairments = engine_settings(state)
    wan = []
    where = state.pids["wan"] if state.details["shaped_after"] else None
    with network_namespace(where), IPRoute() as ipr:
        for link in state.details["wan"]:
            entry: dict[str, Any] = {key: link[key] for key in ("a", "b", "plane")}
            for way, side in (("a_to_b", "a"), ("b_to_a", "b")):
                shape = read_shape(ipr, link["shapers"][side])
                impairment = impairments[link["name"], way]
                entry[way] = {
                    "rate_bps": shape.rate_bps,
                    "delay_s": impairment.delay_s,
                    "jitter_s": impairment.jitter_s,
                    "loss": impairment.loss,
                    "queue_bytes": shape.queue_bytes,
                }
            wan.append(entry)
    kept = ("link_engine", "datapath", "policy", "size_scale", "mtu")
    return {
        "id": state.id,
        "topology": state.topology,
        "phase": state.phase,
        "failure": state.failure,
        **{key: state.details[key] for key in kept},
        "hosts": state.details["hosts"],
        "wan": wan,
    }


@dataclass(frozen=True)
class WanCounters:
    """Counters of one WAN direction: frames that left the near edge, the shaper's, frames that reached the far edge."""

    a: str
    b: str
    plane: int
    direction: str
    entered_packets: int
    shaper: ShapeCounters
    arrived_packets: int


@dataclass(frozen=True)
class FabricCounters:
    """All WAN directions, and per building the frames that went into and came out of its edge switch, all ports."""

    wan: tuple[WanCounters, ...]
    edges: dict[str, tuple[int, int]]


class CounterReader:
    """Reads a running fabric's counters again and again; use as a context manager."""

    def __init__(self, plan: Plan, wan_pid: int) -> None:
        self._plan = plan
        self._root = IPRoute()
        with network_namespace(wan_pid if plan.shaped_after else None):
            self._shapers = IPRoute()
        self._ends = {(port.link_index, port.side): port for port in plan.wan_ports}

    def __enter__(self) -> CounterReader:
        return self

    def __exit__(self, *reason: object) -> None:
        self._root.close()
        self._shapers.close()

    def read(self) -> FabricCounters:
        """All counters now. LinkError or KeyError when a part is gone."""
        plan = self._plan
        stats = {
            link.get_attr("IFLA_IFNAME"): link.get_attr("IFLA_STATS64")
            for link in self._root.get_links()
            if link.get_attr("IFLA_IFNAME").startswith(plan.prefix)
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
                        entered_packets=int(stats[start.edge_interface]["tx_packets"]),
                        shaper=read_counters(self._shapers, plan.shaper(start)),
                        arrived_packets=int(stats[end.edge_interface]["rx_packets"]),
                    )
                )
        edges = {
            edge.building: (
                sum(int(stats[name]["rx_packets"]) for name in edge.interfaces),
                sum(int(stats[name]["tx_packets"]) for name in edge.interfaces),
            )
            for edge in plan.edges
        }
        return FabricCounters(tuple(wan), edges)


def _bare_wire(index: int, name: str) -> LinkWire:
    nothing = Impairment(0.0)
    return LinkWire(name, f"w{index}a", f"w{index}b", nothing, nothing)
