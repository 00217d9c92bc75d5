"""Invariants of the network inside buildings: conservation and pauses. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

from testbed.measure.fidelity.invariants import MISSING_UNTRUSTED, Conservation, without
from testbed.measure.fidelity.verdict import Invariant, graded
from testbed.net.fabric.bridges import NIC, Bridge, Cable, bridges, cables, nic_cables
from testbed.net.links.interfaces import NodeCounts, PortCounts
from testbed.net.links.protocol_counters import ProtocolCounts
from testbed.spec.topology import Topology

NAMED = 3  # places of many
_NAME, _BOUND = "conservation_in_buildings", "0 frames missing"


def conservation_in_buildings(
    balances: Sequence[PacketBalance],
    timed: Sequence[Conservation] = (),
    left_out: Sequence[str] = (),
    corrupting: bool = False,
) -> Invariant:
    """Every frame that entered a cable, a switch or a host left it, or a queue of the topology's dropped it.

    timed: cables that a link engine carries. left_out: buildings in which events take a switch down, and hosts whose
    cards they change, with the switches that these are plugged into. corrupting: links change bits on purpose, those
    of addresses among them.
    """
    if corrupting:
        words = "Links corrupt frames on purpose: one whose addresses were hit goes nowhere, by design."
        return Invariant(_NAME, _BOUND, "not applicable", None, words)
    if not balances:
        words = "The scenario's events take switches of every building down."
        return Invariant(_NAME, _BOUND, "not applicable", None, words)
    missing = {_named(balance): balance.missing for balance in balances}
    missing |= {f"the cable {cable.name}": cable.missing + cable.overrun for cable in timed}
    total = sum(missing.values())
    worst = sorted((name for name in missing if missing[name]), key=missing.__getitem__, reverse=True)
    frames = sum(balance.went_in for balance in balances if balance.name.startswith("switch "))
    full = max(balances, key=lambda balance: balance.dropped)
    dropped = sum(balance.dropped for balance in balances) + sum(cable.dropped for cable in timed)
    words = "every one came out again, and all that came to hosts reached their sockets"
    if worst:
        words = f"{total} are missing here or at hosts, or came from nowhere: "
        words += ", ".join(f"{missing[name]} at {name}" for name in worst[:NAMED])
        words += f" and {len(worst) - NAMED} other places" if len(worst) > NAMED else ""
    queues = f"the queues of cards and switch ports dropped {dropped}"
    if full.dropped:
        queues += f", most at {full.name}"
    return graded(
        _NAME,
        total,
        0,
        MISSING_UNTRUSTED * frames,
        bound=_BOUND,
        measured=f"{total} missing",
        sentence=f"Of {frames} frames that entered switches inside buildings {words}; {queues}."
        + without(left_out),
    )


def _named(balance: PacketBalance) -> str:
    """With the interface that dropped frames though nobody asked it to."""
    return (
        f"{balance.name} (dropped by a queueing discipline on {balance.culprit})"
        if balance.culprit
        else balance.name
    )


Counts = Mapping[str, NodeCounts]
"""By node: a host or a switch inside a building."""
LARGEST_BYTES = 65536  # that TCP hands over at once
_Counts = TypeVar("_Counts", PortCounts, ProtocolCounts)


@dataclass(frozen=True)
class PacketBalance:
    """Frames (`bytes_`: their bytes, where no queue dropped any) over a whole run.

    name: what they went into and should have come out of. dropped: by queues that the topology asks for. culprit: the
    interface there whose other queueing disciplines dropped most, if any did.
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
        """Frames that nobody accounts for, gone or come from nowhere; one, where only their bytes differ."""
        frames = abs(self.went_in - self.came_out - self.dropped)
        return frames or int(self.bytes_in != self.bytes_out)


def grown(before: Counts, after: Counts) -> dict[str, NodeCounts]:
    """What was counted from one reading to the other, node by node."""
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
    """Of all that is inside buildings, but for cables that a link engine carries.

    left_out: buildings. cards: hosts; their cables and the switches at these cables' ends are left out as well.
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
    """Those that a link engine carries."""
    return [cable for cable in cables(topology) if cable.needs_engine]


def building_of(topology: Topology, cable: Cable) -> str:
    """The building in which a cable is."""
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
        f"{name}, between its card and its IP layer",
        card.rx_packets,
        own.in_packets,
        culprit=_culprit(counted.ports),
    )
    yield PacketBalance(f"{name}, between its IP layer and its sockets", own.in_packets, own.delivered)
    # more than that is somebody's who does without: no_foreign_traffic has it
    left = min(card.tx_packets + card.waiting, own.out_packets - card.dropped)
    # TCP hands several segments over in one, which count as one where its queue drops them
    dropped = min(max(own.out_packets - left, card.dropped), card.dropped * (LARGEST_BYTES // mtu + 1))
    yield PacketBalance(f"{name}, between its sockets and its card", own.out_packets, left, dropped)


def lossless(dropped: int, pauses: int, fullest: str, share: float) -> Invariant:
    """Whether pausing switches had room for all that came.

    dropped: frames for which a buffer had none. fullest: the link whose buffer was fullest, and by what share.
    """
    words = f"Switches sent {pauses} pauses, and no buffer overflowed"
    if dropped:
        words = f"Switches sent {pauses} pauses, and buffers overflowed all the same: {dropped} frames were dropped"
    if fullest:
        words += f"; the fullest, of what came by {fullest}, was so to {share:.0%}"
    return Invariant("lossless", "0 frames dropped", f"{dropped} dropped", dropped == 0, f"{words}.")


def no_circle(circle: Sequence[str]) -> Invariant:
    """Whether pauses can wait for each other; circle: the buildings of one, the first one last again."""
    words = "On the paths of least delay no pausing links wait for each other in a circle."
    if circle:
        words = (
            f"Pausing links lie in a circle, {' to '.join(circle)}, and packets go on from each to the next: once "
            "all of their buffers are full, all of them stand for ever."
        )
    return Invariant(
        "no_pause_circle",
        bound="no circle",
        measured="none" if not circle else " to ".join(circle),
        ok=not circle,
        sentence=words,
        severity="caution",
    )
