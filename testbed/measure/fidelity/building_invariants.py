"""Checks of the network inside buildings: packet conservation and pause frames. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from testbed.measure.fidelity.invariants import (
    MISSING_FAILURE,
    MISSING_UNTRUSTED,
    Conservation,
    left_out_text,
)
from testbed.measure.fidelity.verdict import Finding, check
from testbed.net.fabric.bridges import NIC, Bridge, Cable, bridges, cables, nic_cables
from testbed.net.links.interfaces import NodeCounts, PortCounts
from testbed.net.links.protocol_counters import ProtocolCounts
from testbed.spec.topology import Topology

NAMED = 3  # number of places named in a sentence


@check("0 frames missing", failure=MISSING_FAILURE)
def conservation_in_buildings(
    balances: Sequence[PacketBalance],
    timed: Sequence[Conservation] = (),
    left_out: Sequence[str] = (),
    corrupting: bool = False,
) -> Finding:
    """Check that every frame that entered a cable, switch or host left it, or that a modelled queue dropped it.

    Args:
        balances: Frame counts of switches, cables and hosts.
        timed: Cables emulated by a link engine.
        left_out: Buildings in which events take a switch down, and hosts with NICs that events change, with their
            switches.
        corrupting: Whether links are configured to corrupt frames, which may change their addresses.
    """
    if corrupting:
        sentence = (
            "Links corrupt frames by configuration: a frame with a corrupted address cannot be delivered."
        )
        return Finding("not applicable", sentence)
    if not balances:
        return Finding("not applicable", "The scenario's events take down switches in every building.")
    missing = {_named(balance): balance.missing for balance in balances}
    missing |= {f"the cable {cable.name}": cable.missing + cable.overrun for cable in timed}
    total = sum(missing.values())
    worst = sorted((name for name in missing if missing[name]), key=missing.__getitem__, reverse=True)
    frames = sum(balance.went_in for balance in balances if balance.name.startswith("switch "))
    full = max(balances, key=lambda balance: balance.dropped)
    dropped = sum(balance.dropped for balance in balances) + sum(cable.dropped for cable in timed)
    sentence = "every one came out again, and all that reached hosts were delivered to sockets"
    if worst:
        sentence = f"{total} are missing or in excess, there or at hosts: "
        sentence += ", ".join(f"{missing[name]} at {name}" for name in worst[:NAMED])
        sentence += f" and {len(worst) - NAMED} other places" if len(worst) > NAMED else ""
    queues = f"the queues of NICs and switch ports dropped {dropped}"
    if full.dropped:
        queues += f", most at {full.name}"
    return Finding(
        f"{total} missing",
        f"Of {frames} frames that entered switches inside buildings {sentence}; {queues}."
        + left_out_text(left_out),
        value=total,
        limits=(0, MISSING_UNTRUSTED * frames),
    )


def _named(balance: PacketBalance) -> str:
    """Return the name of the place, with the interface whose unmodelled queue dropped frames."""
    return (
        f"{balance.name} (dropped by a queueing discipline on {balance.culprit})"
        if balance.culprit
        else balance.name
    )


Counts = Mapping[str, NodeCounts]
"""Counters by node: a host or a switch inside a building."""
LARGEST_BYTES = 65536  # largest segment that TCP passes to the queue (GSO)
_Counts = TypeVar("_Counts", PortCounts, ProtocolCounts)


@dataclass(frozen=True)
class PacketBalance:
    """Frames into and out of one place (switch, cable or part of a host) over a whole run.

    `dropped` counts drops in the topology's queues. `bytes_in` and `bytes_out` are set only if no queue dropped frames.
    `culprit` is the interface with the most drops in other queueing disciplines, if there are any.
    """

    name: str
    went_in: int
    came_out: int
    dropped: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    culprit: str = ""

    @property
    def missing(self) -> int:
        """The number of frames unaccounted for, whether missing or in excess; 1 if only the bytes differ."""
        frames = abs(self.went_in - self.came_out - self.dropped)
        return frames or int(self.bytes_in != self.bytes_out)


def subtract_counts(before: Counts, after: Counts) -> dict[str, NodeCounts]:
    """Return the growth of all counters between two readings, by node."""
    found = {}
    for node, late in after.items():
        early = before[node]
        protocols = None
        if late.protocols is not None and early.protocols is not None:
            protocols = _less(late.protocols, early.protocols)
        found[node] = NodeCounts(
            {
                name: _less(port, early.ports[name])
                for name, port in late.ports.items()
                if name in early.ports
            },
            protocols,
        )
    return found


def _less(late: _Counts, early: _Counts) -> _Counts:
    names = [field.name for field in fields(late)]
    return type(late)(**{name: getattr(late, name) - getattr(early, name) for name in names})


def packet_balances(
    topology: Topology, counted: Counts, left_out: Collection[str] = (), cards: Collection[str] = ()
) -> Iterator[PacketBalance]:
    """Yield the balances of everything inside buildings, except cables emulated by a link engine.

    Args:
        topology: The emulated topology.
        counted: Growth of the counters over the run.
        left_out: Buildings to leave out.
        cards: Hosts to leave out, with their cables and the switches at their ends.
    """
    switches = {cable.b[0] for host, cable in nic_cables(topology).items() if host in cards}
    for bridge in bridges(topology):
        if bridge.building not in left_out and bridge.name not in switches:
            yield _switch(bridge, counted[bridge.name].ports)
    for cable in cables(topology):
        if building_of(topology, cable) in left_out or cable.needs_engine or cable.a[0] in cards:
            continue
        yield from _cable(cable, counted)
    for host in topology.hosts:
        if host.building not in left_out and host.name not in cards:
            yield from _host(host.name, counted[host.name], topology.mtu)


def timed_cables(topology: Topology) -> list[Cable]:
    """Return the cables that a link engine emulates."""
    return [cable for cable in cables(topology) if cable.needs_engine]


def building_of(topology: Topology, cable: Cable) -> str:
    """Return the building that contains a cable."""
    return next(bridge.building for bridge in bridges(topology) if bridge.name == cable.b[0])


def _switch(bridge: Bridge, ports: Mapping[str, PortCounts]) -> PacketBalance:
    own = [ports[port.interface] for port in bridge.ports]
    dropped = sum(port.dropped for port in own)
    whole = not dropped and not any(port.waiting for port in own)
    return PacketBalance(
        f"switch {bridge.name}",
        sum(port.rx_packets for port in own),
        sum(port.tx_packets + port.waiting for port in own),
        dropped,
        *((sum(port.rx_bytes for port in own), sum(port.tx_bytes for port in own)) if whole else (0, 0)),
        _culprit(ports),
    )


def _culprit(ports: Mapping[str, PortCounts]) -> str:
    name = max(ports, key=lambda name: ports[name].dropped_otherwise)
    return name if ports[name].dropped_otherwise else ""


def _cable(cable: Cable, counted: Counts) -> Iterator[PacketBalance]:
    for near, far in ((cable.a, cable.b), (cable.b, cable.a)):
        sent, came = (counted[node].ports[interface] for node, interface in (near, far))
        yield PacketBalance(
            f"the cable from {near[0]} {near[1]} to {far[0]} {far[1]}",
            sent.tx_packets,
            came.rx_packets,
            bytes_in=sent.tx_bytes,
            bytes_out=came.rx_bytes,
        )


def _host(name: str, counted: NodeCounts, mtu: int) -> Iterator[PacketBalance]:
    card, own = counted.ports[NIC], counted.protocols
    assert own is not None
    yield PacketBalance(
        f"{name}, between its NIC and its IP layer",
        card.rx_packets,
        own.in_packets,
        culprit=_culprit(counted.ports),
    )
    yield PacketBalance(f"{name}, between its IP layer and its sockets", own.in_packets, own.delivered)
    # anything beyond that was sent without passing IP, which no_foreign_traffic reports
    left = min(card.tx_packets + card.waiting, own.out_packets - card.dropped)
    # TCP passes several segments as one (GSO), which count as one when the queue drops them
    dropped = min(max(own.out_packets - left, card.dropped), card.dropped * (LARGEST_BYTES // mtu + 1))
    yield PacketBalance(f"{name}, between its sockets and its NIC", own.out_packets, left, dropped)


@check("0 frames dropped")
def lossless(dropped: int, pauses: int, fullest: str, share: float) -> Finding:
    """Check that the ingress buffers of switches with pause frames never overflowed.

    Args:
        dropped: Frames dropped by full buffers.
        pauses: Pause frames sent.
        fullest: The link with the fullest buffer; empty if unknown.
        share: Occupancy of that buffer, 0 to 1.
    """
    sentence = f"Switches sent {pauses} pauses, and no buffer overflowed"
    if dropped:
        sentence = (
            f"Switches sent {pauses} pauses, but buffers still overflowed: {dropped} frames were dropped"
        )
    if fullest:
        sentence += f"; the fullest buffer, for frames from {fullest}, was {share:.0%} full"
    return Finding(f"{dropped} dropped", f"{sentence}.", dropped == 0)


@check("no cycle", "caution")
def no_pause_circle(circle: Sequence[str]) -> Finding:
    """Check that links cannot pause each other in a cycle; `circle` has its buildings, the first also at the end."""
    if not circle:
        sentence = "On the paths of least delay, links with pause frames have no cyclic buffer dependency."
        return Finding("none", sentence, ok=True)
    return Finding(
        " to ".join(circle),
        f"Links with pause frames form a cyclic buffer dependency, {' to '.join(circle)}: once all of their "
        "buffers are full, they pause each other for ever (PFC deadlock).",
        ok=False,
    )
