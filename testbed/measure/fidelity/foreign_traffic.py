"""Traffic on the hosts' cards that is neither the ranks' nor declared. Pure; bounds: docs/explanation/fidelity.md."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.fidelity.verdict import Invariant, graded
from testbed.net.fabric.bridges import CARD
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.protocol_counters import ETHERNET_BYTES

HEADERS_BYTES = 52  # of IPv4 and TCP with time stamps, in each of the ranks' packets
LEAST_BYTES = 20  # an IP header
SEGMENTS_TO_OPEN = 2  # of a connection that is accepted, which its listener sends or takes
CAUTION, UNTRUSTED = 0.001, 0.01  # of the measured steps' time
DIRECTIONS = ("out", "in")
_NAME, _BOUND = "no_foreign_traffic", f"at most {CAUTION:.1%} of the steps' time on the slowest link"


@dataclass(frozen=True)
class Foreign:
    """What one host's card carried for others than the run. way: "out" or "in". kinds: by protocol, where known."""

    host: str
    direction: str
    packets: int
    bytes_: int
    kinds: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """For people."""
        kinds = f" ({', '.join(self.kinds)})" if self.kinds else ""
        verb = "sent" if self.direction == "out" else "received"
        return f"{self.host} {verb} {self.packets} packets, some {self.bytes_} bytes{kinds}"


def in_steps(hosts: Sequence[str], steps: Sequence[Mapping[str, Any]], mtu: int) -> list[Foreign]:
    """What ranks saw on their hosts while steps were measured.

    hosts: by rank. steps: each rank's record of each step, with its `traffic`; None where the kernel does not tell.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for step in steps:
        seen: Mapping[str, Any] = step.get("traffic") or {}
        for direction in DIRECTIONS if seen else ():
            counted = seen[direction]
            packets = counted["packets"] - counted["own_packets"] - SEGMENTS_TO_OPEN * seen["opened"]
            if packets <= 0:
                continue
            others = counted["bytes"] - counted["own_bytes"] - HEADERS_BYTES * counted["headers"]
            bytes_ = others + HEADERS_BYTES * packets
            # of TCP of others nothing tells the payload from options of our own: so within what packets can be
            size = min(max(bytes_, LEAST_BYTES * packets), mtu * packets) + ETHERNET_BYTES * packets
            row = found.setdefault((hosts[step["rank"]], direction), [0, 0, 0, 0])
            for column, figure in enumerate((packets, size, counted["udp"], counted["icmp"])):
                row[column] += figure
    return [
        Foreign(host, direction, packets, size, _kinds(packets, udp, icmp))
        for (host, direction), (packets, size, udp, icmp) in found.items()
    ]


def _kinds(packets: int, udp: int, icmp: int) -> tuple[str, ...]:
    known = [("UDP", udp), ("ICMP", icmp), ("TCP of others", packets - udp - icmp)]
    return tuple(f"{count} {name}" for name, count in known if count > 0)


def outside_steps(
    counted: Mapping[str, NodeCounts],
    ranks: Collection[str],
    background: Collection[str],
    hosts: Sequence[str],
) -> Iterator[Foreign]:
    """What the run's whole time shows: hosts that have nothing to send, and frames that go past IP.

    counted: by host. ranks: hosts with a rank. background: hosts with the scenario's background traffic, all TCP.
    """
    for name in hosts:
        card, own = counted[name].ports[CARD], counted[name].protocols
        assert own is not None
        if name in ranks:
            raw = card.sent_packets - own.out_packets
            size = card.tx_bytes - own.out_bytes - (HEADERS_BYTES + ETHERNET_BYTES) * own.out_packets
            size += HEADERS_BYTES * own.out_headers
            if raw > 0:
                yield Foreign(name, "out", raw, max(size, ETHERNET_BYTES * raw), ("past IP",))
        elif name in background:
            for direction, packets, tcp in (
                ("out", card.sent_packets, own.tcp_out),
                ("in", card.rx_packets, own.tcp_in),
            ):
                if (rest := packets - tcp) > 0:
                    bytes_ = card.tx_bytes if direction == "out" else card.rx_bytes
                    yield Foreign(name, direction, rest, bytes_ * rest // packets, ("not TCP",))
        else:
            for direction, packets, bytes_ in (
                ("out", card.sent_packets, card.tx_bytes),
                ("in", card.rx_packets, card.rx_bytes),
            ):
                if packets:
                    yield Foreign(name, direction, packets, bytes_, ("no rank is there",))


def no_foreign_traffic(
    found: Sequence[Foreign], slowest_bps: float, steps_s: float, known: bool = True
) -> Invariant:
    """Whether the network carried more than what the run sent.

    slowest_bps: the lowest rate of any link or card: what others send can have kept it busy for as long as their bytes
    take there. steps_s: of all measured steps. known: whether it is told what the ranks' own connections sent.
    """
    if not known and not found:
        words = "Of some steps nobody tells what ranks' own connections sent: the kernel does not, or they were closed."
        return Invariant(_NAME, _BOUND, "not known", None, words)
    bytes_ = {
        direction: sum(entry.bytes_ for entry in found if entry.direction == direction)
        for direction in DIRECTIONS
    }
    share = 8 * max(bytes_.values()) / slowest_bps / steps_s if steps_s else 0.0
    words = "The hosts' cards carried what the ranks and the scenario's background traffic sent, and nothing else."
    if found:
        worst = sorted(found, key=lambda entry: entry.bytes_, reverse=True)
        words = "Beside what the run itself sends, " + "; ".join(entry.words for entry in worst[:3])
        words += f"; and {len(worst) - 3} more" if len(worst) > 3 else ""
        words += f". That fills the slowest link for up to {share:.2%} of the measured steps."
    return graded(
        _NAME,
        share,
        CAUTION,
        UNTRUSTED,
        bound=_BOUND,
        measured=f"{share:.2%}" if found else "none",
        sentence=words,
    )
