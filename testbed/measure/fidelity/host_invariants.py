"""Invariants of hosts: ranks could always run, and no foreign traffic crossed their cards. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.fidelity.verdict import Invariant, graded
from testbed.net.fabric.bridges import NIC
from testbed.net.links.interfaces import NodeCounts
from testbed.net.links.protocol_counters import ETHERNET_BYTES

STILL_UNTRUSTED = 0.01  # of its step
STILL_CAUTION_REAL_CLOCK, STILL_UNTRUSTED_REAL_CLOCK = 0.05, 0.2
CHANGED, CHANGED_S = 0.02, 0.0002
CHANGED_ROUGHLY, CHANGED_ROUGHLY_S = 0.25, 0.01  # by the real clock, and where TCP sends again


@dataclass(frozen=True)
class Attempt:
    """At a collective alone on the network: what it took, and how many segments were sent again meanwhile."""

    took_s: float
    resent: int


@dataclass(frozen=True)
class BaselineTimes:
    """The collective alone on the network, each time before the first step and, if done again, after the last one.

    order_s: what it may take longer where ranks pay for messages that come at the same moment in another order. path_s:
    what latency and bandwidth of its paths make of it. resent: segments sent again between before and after. remembers:
    whether connections are paced by rates that they remember, losses with them. overflowed: whether queues of the
    topology have dropped packets, which leaves windows smaller than they were.
    """

    before: Sequence[Attempt]
    after: Sequence[Attempt]
    order_s: float = 0.0
    path_s: float = 0.0
    resent: int = 0
    remembers: bool = False
    overflowed: bool = False


@dataclass(frozen=True)
class Stall:
    """A rank did not run, though it would have: from `at_s` after a step's start on, for `least_s` to `most_s`."""

    rank: int
    host: str
    trial: int
    at_s: float
    least_s: float
    most_s: float
    step_s: float


def stalls(
    hosts: Sequence[str],
    steps: Sequence[Mapping[str, Any]],
    pauses: Mapping[str, Sequence[tuple[float, float]]],
) -> list[Stall]:
    """Those of all steps.

    hosts: by rank. steps: each rank's record of each step. pauses: by host the spans in which the scenario itself has
    it stand still, on the same clock.
    """
    found = []
    for step in steps:
        host = hosts[step["rank"]]
        for gap in step.get("stalls", ()):
            since_s = step["start_s"] + gap["at_s"]
            planned = [
                begin < since_s + gap["for_s"] and since_s < end for begin, end in pauses.get(host, ())
            ]
            if not any(planned):
                most_s = gap["for_s"]
                least_s = max(0.0, most_s - step["looks_s"])
                step_s = step["end_s"] - step["start_s"]
                found.append(Stall(step["rank"], host, step["trial"], gap["at_s"], least_s, most_s, step_s))
    return found


def ranks_awake(
    found: Sequence[Stall], noticed_s: float, exact: bool, paused: Sequence[str] = ()
) -> Invariant:
    """Whether every rank could run whenever it had something to do.

    noticed_s: the shortest stall that is sure to be noticed, real or virtual seconds as the steps' are. exact:
    under the virtual clock, where a process is never late by itself. paused: hosts that the scenario has stand still.
    """
    caution, untrusted = (
        (0.0, STILL_UNTRUSTED) if exact else (STILL_CAUTION_REAL_CLOCK, STILL_UNTRUSTED_REAL_CLOCK)
    )
    totals: dict[tuple[int, int], float] = {}
    for entry in found:
        key = entry.rank, entry.trial
        # what it would have slept anyway is no matter where nothing else is late
        still_s = entry.most_s if exact else entry.least_s
        totals[key] = totals.get(key, 0.0) + still_s / entry.step_s
    share = max(totals.values(), default=0.0)
    words = f"Whenever a rank looked round, it had last done so at most {noticed_s * 1e3:.3g} ms before."
    if found:
        worst = max(found, key=lambda entry: entry.most_s / entry.step_s)
        words = f"Rank {worst.rank} on {worst.host} stood still in trial {worst.trial}, {worst.at_s * 1e3:.4g} ms "
        words += f"after its start, for {worst.least_s * 1e3:.4g} to {worst.most_s * 1e3:.4g} ms"
        others = len(found) - 1
        words += f", and ranks did so {others} more times." if others else "."
    if paused:
        words += f" Left out, as the scenario has them stand still: {', '.join(paused)}."
    return graded(
        "ranks_awake",
        share,
        caution,
        untrusted,
        bound="never" if exact else f"at most {caution:.0%} of a step",
        measured=f"{share:.1%} of a step" if found else "never",
        sentence=words,
    )


def network_as_before(lone: BaselineTimes, exact: bool, why_not: str = "") -> Invariant:
    """Whether the collective that was alone on the network before the first step takes the same after the last one.

    exact: under the virtual clock. why_not: why it was not done again, as a sentence.
    """
    before, after = lone.before, lone.after
    quiet = [[attempt.took_s for attempt in series if not attempt.resent] for series in (before, after)]
    early, late = quiet if all(quiet) else [[attempt.took_s for attempt in part] for part in (before, after)]
    early_s, late_s = min(early, default=0.0), min(late, default=0.0)
    tight_s = max(CHANGED * early_s, CHANGED_S, lone.order_s)
    # slower than its paths: TCP's windows hold it back, and what they are then goes by what has been lost since
    held_back = lone.path_s > 0 and early_s > lone.path_s + tight_s
    # what TCP sends again, and when, goes by what it remembers of the traffic before
    smaller = held_back or lone.remembers or lone.overflowed
    steady = exact and all(quiet) and not (smaller and lone.resent)
    share, absolute_s = (CHANGED, CHANGED_S) if steady else (CHANGED_ROUGHLY, CHANGED_ROUGHLY_S)
    absolute_s = max(absolute_s, lone.order_s)
    name, bound = "network_as_before", f"within {share:.0%}, or {absolute_s * 1e3:.3g} ms"
    if not before or not after:
        return Invariant(name, bound, "not applicable", None, why_not or "There is one rank only.")
    opened = held_back and abs(late_s - lone.path_s) <= tight_s
    same = abs(late_s - early_s) <= max(share * early_s, absolute_s) or opened
    words = f"The ring all-reduce alone on the network took {early_s * 1e3:.4g} ms before the first step, "
    words += f"and {late_s * 1e3:.4g} ms after the last one"
    words += "" if all(quiet) else ", with segments that were lost and sent again"
    words += ", as its paths have it: TCP's windows were not open yet" if opened and steady else ""
    return Invariant(
        name,
        bound=bound,
        measured=f"{late_s / early_s - 1:+.1%}",
        ok=same,
        sentence=words + ("." if same else ": something has changed meanwhile."),
        severity="untrusted" if steady else "caution",
    )


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
        card, own = counted[name].ports[NIC], counted[name].protocols
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
