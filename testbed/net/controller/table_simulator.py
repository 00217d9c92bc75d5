"""An in-memory network of OpenFlow tables that forwards symbolic packets, to check policies without a switch.

The tables follow OpenFlow: the highest priority wins, and no packet leaves by its ingress port. Where OpenFlow leaves
the result undefined, they are strict: two rules of one priority that match the same packet are an error. Among equal
links, a flow takes the one that Open vSwitch would pick.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from testbed.errors import TestbedError
from testbed.net.controller.ecmp_hash import select_member
from testbed.net.controller.edges import EdgePorts
from testbed.net.controller.rules import Ecmp, FastFailover, Goto, Output, Packet, Rule, SetDscp
from testbed.spec.topology import Topology

Port = tuple[int, int]
"""A port of a switch: (datapath id, port number)."""


class AmbiguousRulesError(TestbedError):
    """An error for two rules of the same priority that match one packet; a switch would apply either."""


class Table:
    """One flow table of a switch, with a packet counter per rule."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.packets: Counter[Rule] = Counter()
        # by (destination host, source host) of the match; None if it is not a single host
        self._rules: dict[tuple[str | None, str | None], list[Rule]] = {}
        for rule in rules:
            ends = _host(rule.match.ipv4_dst), _host(rule.match.ipv4_src)
            self._rules.setdefault(ends, []).append(rule)

    def lookup(self, packet: Packet, in_port: int) -> Rule | None:
        """Return the rule for a packet, or None if no rule matches and the packet is dropped.

        Raises:
            AmbiguousRulesError: Two rules of the same priority match.
        """
        destination, source = packet.ipv4_dst, packet.ipv4_src
        matching = [
            rule
            for ends in ((destination, source), (destination, None), (None, source), (None, None))
            for rule in self._rules.get(ends, ())
            if rule.match.covers(in_port, packet)
        ]
        matching.sort(key=lambda rule: -rule.priority)
        if len(matching) > 1 and matching[0].priority == matching[1].priority:
            raise AmbiguousRulesError(f"{packet}: {matching[0]} / {matching[1]}")
        return matching[0] if matching else None


def _host(network: str | None) -> str | None:
    return network[:-3] if network is not None and network.endswith("/32") else None


class Switch:
    """A switch: its flow tables, and the ports that are down."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.tables = {
            number: Table([r for r in rules if r.table == number]) for number in {r.table for r in rules}
        }
        self.down: set[int] = set()

    def outputs(self, packet: Packet, in_port: int) -> list[tuple[int, Packet]]:
        """Return (port, packet as sent) for each port that a packet leaves by; empty if it is dropped."""
        found: list[tuple[int, Packet]] = []
        number: int | None = 0
        while number is not None:
            table, number = self.tables.get(number), None
            rule = table.lookup(packet, in_port) if table else None
            if table is None or rule is None:
                break
            table.packets[rule] += 1
            for action in rule.actions:
                if isinstance(action, Goto):
                    number = action.table
                elif isinstance(action, SetDscp):
                    packet = replace(packet, ip_dscp=action.dscp)
                else:
                    port = self._port(action, packet)
                    if port is not None and port != in_port and port not in self.down:
                        found.append((port, packet))
        return found

    def _port(self, action: Output | Ecmp | FastFailover, packet: Packet) -> int | None:
        if isinstance(action, Output):
            return action.port
        alive = [(index, port) for index, port in enumerate(action.ports) if port not in self.down]
        if not alive:
            return None
        if isinstance(action, FastFailover):
            return alive[0][1]
        return action.ports[select_member((index for index, _ in alive), packet.flow_hash(action.seed))]


@dataclass(frozen=True)
class PacketTrace:
    """The path of a packet through the network.

    Attributes:
        hops: The ports by which it left switches, in order.
        delivered: The outer ports by which it left the network.
        looped: Whether it entered a loop.
        dscps: Its DSCP at each hop.
    """

    hops: tuple[Port, ...]
    delivered: tuple[Port, ...]
    looped: bool
    dscps: tuple[int, ...] = ()


class Network:
    """A network of switches and wires; a port without a wire is an outer port."""

    def __init__(self, rules: Mapping[int, Sequence[Rule]], wires: Mapping[Port, Port]) -> None:
        self.switches = {dpid: Switch(own) for dpid, own in rules.items()}
        self.bytes: defaultdict[Port, float] = defaultdict(float)
        self._wires = wires

    def forward(self, packet: Packet, start: Port, size: float = 1.0) -> PacketTrace:
        """Inject a packet at an outer port and follow all its copies; add `size` to `bytes` of each egress port."""
        pending, seen = [(start, packet)], set[Port]()
        hops: list[Port] = []
        dscps: list[int] = []
        delivered: list[Port] = []
        while pending:
            (dpid, in_port), packet = pending.pop()
            if (dpid, in_port) in seen:
                return PacketTrace(tuple(hops), tuple(delivered), looped=True)
            seen.add((dpid, in_port))
            for port, sent in self.switches[dpid].outputs(packet, in_port):
                hops.append((dpid, port))
                dscps.append(sent.ip_dscp)
                self.bytes[dpid, port] += size
                if (dpid, port) in self._wires:
                    pending.append((self._wires[dpid, port], sent))
                else:
                    delivered.append((dpid, port))
        return PacketTrace(tuple(hops), tuple(delivered), looped=False, dscps=tuple(dscps))

    def cut(self, end: Port) -> None:
        """Cut a wire and so take down the ports at both ends."""
        for dpid, port in (end, self._wires[end]):
            self.switches[dpid].down.add(port)


def wires(topology: Topology, edges: Sequence[EdgePorts]) -> dict[Port, Port]:
    """Return the WAN links as a map between the edges' ports, in both directions."""
    by_building = {edge.building: edge for edge in edges}
    peers: dict[Port, Port] = {}
    for link in topology.wan:
        a, b = by_building[link.a], by_building[link.b]
        end_a, end_b = (a.dpid, a.wan[link.b, link.plane]), (b.dpid, b.wan[link.a, link.plane])
        peers[end_a], peers[end_b] = end_b, end_a
    return peers
