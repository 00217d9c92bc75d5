"""What a running fabric is set to and has counted, read from the system by whoever asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from testbed.fabric.plan import Plan
from testbed.fabric.state import FabricState
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
                "out_interfaces": {
                    port.side: port.edge_interface for port in plan.wan_ports if port.link_index == index
                },
            }
            for index, link in enumerate(plan.topology.wan)
        ],
        "mtu": plan.topology.mtu,
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
    with IPRoute() as ipr:
        for link in state.details["wan"]:
            entry: dict[str, Any] = {key: link[key] for key in ("a", "b", "plane")}
            for way, side in (("a_to_b", "a"), ("b_to_a", "b")):
                shape = read_shape(ipr, link["out_interfaces"][side])
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
    """Counters of one WAN direction's shaper, and the frames that arrived at the far edge."""

    a: str
    b: str
    plane: int
    direction: str
    shaper: ShapeCounters
    arrived_packets: int
    arrived_bytes: int


def wan_counters(ipr: IPRoute, plan: Plan) -> list[WanCounters]:
    """Counters of every WAN direction now."""
    arrived = {
        link.get_attr("IFLA_IFNAME"): link.get_attr("IFLA_STATS64")
        for link in ipr.get_links()
        if link.get_attr("IFLA_IFNAME").startswith(plan.prefix)
    }
    ends = {(port.link_index, port.side): port for port in plan.wan_ports}
    counters = []
    for index, link in enumerate(plan.topology.wan):
        for direction, near, far in (("a_to_b", "a", "b"), ("b_to_a", "b", "a")):
            stats = arrived[ends[index, far].edge_interface]
            counters.append(
                WanCounters(
                    link.a,
                    link.b,
                    link.plane,
                    direction,
                    read_counters(ipr, ends[index, near].edge_interface),
                    arrived_packets=int(stats["rx_packets"]),
                    arrived_bytes=int(stats["rx_bytes"]),
                )
            )
    return counters


def _bare_wire(index: int, name: str) -> LinkWire:
    nothing = Impairment(0.0)
    return LinkWire(name, f"w{index}a", f"w{index}b", nothing, nothing)
