"""An in-memory network of OpenFlow tables that forwards symbolic packets: policies are tested here, without a switch.

The tables follow OpenFlow's rules (highest priority wins, never out of the port a packet came in at) and are strict
where OpenFlow is vague: two rules of one priority for the same packet are an error. The hash of `Ecmp` is not Open
vSwitch's, so which of the equal links a flow takes differs from a real switch; that it keeps its link does not.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from testbed.config.topology import Topology
from testbed.controller.policies import EdgePorts
from testbed.controller.rules import Ecmp, Output, Rule

Port = tuple[int, int]
"""A port of a switch: (datapath id, port number)."""


@dataclass(frozen=True)
class Packet:
    """The header of an IPv4 packet; `ip_proto` is 6 for TCP, 17 for UDP."""

    ipv4_src: str
    ipv4_dst: str
    ip_proto: int = 6
    source_port: int = 0
    destination_port: int = 0

    def flow_hash(self, seed: int) -> int:
        """A number that both directions of a flow share."""
        addresses = int(IPv4Address(self.ipv4_src)) ^ int(IPv4Address(self.ipv4_dst))
        key = (addresses, self.ip_proto, self.source_port ^ self.destination_port, seed)
        return zlib.crc32(repr(key).encode())


class AmbiguousRulesError(Exception):
    """Two rules of the same priority match one packet; a switch would take either."""


class Table:
    """The flow table of one switch."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = sorted(rules, key=lambda rule: -rule.priority)

    def lookup(self, packet: Packet, in_port: int) -> Rule | None:
        """The rule for a packet; None when there is none (the packet is dropped). AmbiguousRulesError."""
        matching = [rule for rule in self._rules if rule.match.covers(in_port, packet.ipv4_dst)]
        if len(matching) > 1 and matching[0].priority == matching[1].priority:
            raise AmbiguousRulesError(f"{packet}: {matching[0]} / {matching[1]}")
        return matching[0] if matching else None

    def output_ports(self, packet: Packet, in_port: int) -> list[int]:
        """The ports that a packet leaves by; empty when it is dropped."""
        rule = self.lookup(packet, in_port)
        ports = [] if rule is None else [_port(action, packet) for action in rule.actions]
        return [port for port in ports if port != in_port]


@dataclass(frozen=True)
class Journey:
    """What became of a packet: the ports it left switches by, in order; the outer ports it came out of; loops."""

    hops: tuple[Port, ...]
    delivered: tuple[Port, ...]
    looped: bool


class Network:
    """Switches and the wires between them; a port without a wire leads out of the network."""

    def __init__(self, rules: Mapping[int, Sequence[Rule]], wires: Mapping[Port, Port]) -> None:
        self._tables = {dpid: Table(own) for dpid, own in rules.items()}
        self._wires = wires

    def forward(self, packet: Packet, start: Port) -> Journey:
        """Send a packet in at an outer port and follow it, and every copy of it, to the end."""
        pending, seen = [start], set[Port]()
        hops: list[Port] = []
        delivered: list[Port] = []
        while pending:
            dpid, in_port = pending.pop()
            if (dpid, in_port) in seen:
                return Journey(tuple(hops), tuple(delivered), looped=True)
            seen.add((dpid, in_port))
            for port in self._tables[dpid].output_ports(packet, in_port):
                hops.append((dpid, port))
                if (dpid, port) in self._wires:
                    pending.append(self._wires[dpid, port])
                else:
                    delivered.append((dpid, port))
        return Journey(tuple(hops), tuple(delivered), looped=False)


def wires(topology: Topology, edges: Sequence[EdgePorts]) -> dict[Port, Port]:
    """The WAN links as wires between the edges' ports, in both directions."""
    by_building = {edge.building: edge for edge in edges}
    joined: dict[Port, Port] = {}
    for link in topology.wan:
        a, b = by_building[link.a], by_building[link.b]
        end_a, end_b = (a.dpid, a.wan[link.b, link.plane]), (b.dpid, b.wan[link.a, link.plane])
        joined[end_a], joined[end_b] = end_b, end_a
    return joined


def _port(action: Output | Ecmp, packet: Packet) -> int:
    if isinstance(action, Output):
        return action.port
    # highest random weight, as Open vSwitch's bundle action does it
    flow = packet.flow_hash(action.seed)
    weights = [zlib.crc32(f"{position} {flow}".encode()) for position in range(len(action.ports))]
    return action.ports[weights.index(max(weights))]
