"""Checks of hosts: ranks could run at all times, and no foreign traffic passed their NICs. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.measure.fidelity.verdict import Finding, check
from testbed.net.fabric.bridges import NIC
from testbed.net.links.interfaces import NodeCounts
from testbed.spec.link_direction import ETHERNET_HEADER_BYTES

STALLED, STALLED_REAL_CLOCK = (0.0, 0.01), (0.05, 0.2)  # shares of a step above which: caution, untrusted
CHANGED, CHANGED_S = 0.02, 0.0002
CHANGED_ROUGHLY, CHANGED_ROUGHLY_S = 0.25, 0.01  # on the real clock, and if TCP retransmits


@dataclass(frozen=True)
class Attempt:
    """One run of the isolated collective: its time, and the number of segments retransmitted during it."""

    took_s: float
    resent: int


@dataclass(frozen=True)
class BaselineTimes:
    """Times of the isolated collective before the first step and, if it was repeated, after the last one.

    Attributes:
        before, after: All attempts.
        order_s: Possible extra time if simultaneous messages are processed in another order.
        path_s: Time that follows from the latency and bandwidth of its paths.
        resent: Segments retransmitted between the attempts before and those after.
        remembers: Whether connections are paced at remembered rates; losses change these.
        overflowed: Whether queues of the topology dropped packets; this leaves smaller windows.
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
    """A time when a rank could not run: from `at_s` after the start of a step, for `least_s` to `most_s`."""

    rank: int
    host: str
    trial: int
    at_s: float
    least_s: float
    most_s: float
    step_s: float


def find_stalls(
    hosts: Sequence[str],
    steps: Sequence[Mapping[str, Any]],
    pauses: Mapping[str, Sequence[tuple[float, float]]],
) -> list[Stall]:
    """Return the stalls of all steps, except those that the scenario caused.

    Args:
        hosts: Host of each rank.
        steps: Each rank's record of each step.
        pauses: Spans in which the scenario itself pauses a host, by host, on the same clock.
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


@check(
    f"never; by the real clock at most {STALLED_REAL_CLOCK[0]:.0%} of a step",
    failure=f"caution; untrusted above {STALLED[1]:.0%} of a step, by the real clock above {STALLED_REAL_CLOCK[1]:.0%}",
)
def ranks_awake(found: Sequence[Stall], noticed_s: float, exact: bool, paused: Sequence[str] = ()) -> Finding:
    """Check that every rank could run whenever it had work.

    Args:
        found: All stalls.
        noticed_s: The shortest stall that is certain to be noticed, in seconds of the steps' clock.
        exact: Whether the run used the virtual clock, under which a process is never late on its own.
        paused: Hosts that the scenario pauses.
    """
    totals: dict[tuple[int, int], float] = defaultdict(float)
    for entry in found:
        # under the virtual clock nothing else is late, so the time that the rank would have slept anyway counts, too
        stalled_s = entry.most_s if exact else entry.least_s
        totals[entry.rank, entry.trial] += stalled_s / entry.step_s
    share = max(totals.values(), default=0.0)
    sentence = f"Every rank ran at least once every {noticed_s * 1e3:.3g} ms."
    if found:
        worst = max(found, key=lambda entry: entry.most_s / entry.step_s)
        sentence = (
            f"Rank {worst.rank} on {worst.host} stalled in trial {worst.trial}, {worst.at_s * 1e3:.4g} ms "
        )
        sentence += f"after its start, for {worst.least_s * 1e3:.4g} to {worst.most_s * 1e3:.4g} ms"
        others = len(found) - 1
        sentence += f", and ranks stalled {others} more times." if others else "."
    if paused:
        sentence += f" Left out, as the scenario pauses them: {', '.join(paused)}."
    return Finding(
        f"{share:.1%} of a step" if found else "never",
        sentence,
        bound="never" if exact else f"at most {STALLED_REAL_CLOCK[0]:.0%} of a step",
        value=share,
        limits=STALLED if exact else STALLED_REAL_CLOCK,
    )


@check(
    f"within {CHANGED:.0%}, or {CHANGED_S * 1e3:g} ms; by the real clock and if TCP retransmits {CHANGED_ROUGHLY:.0%}, "
    f"or {CHANGED_ROUGHLY_S * 1e3:g} ms",
    failure="untrusted; caution with the wider bound",
)
def network_as_before(lone: BaselineTimes, exact: bool, why_not: str = "") -> Finding:
    """Check that the isolated collective takes the same time before the first step and after the last one.

    `exact` is true under the virtual clock. `why_not` is a sentence that explains why it was not repeated.
    """
    before, after = lone.before, lone.after
    quiet = [[attempt.took_s for attempt in series if not attempt.resent] for series in (before, after)]
    early, late = quiet if all(quiet) else [[attempt.took_s for attempt in part] for part in (before, after)]
    early_s, late_s = min(early, default=0.0), min(late, default=0.0)
    tight_s = max(CHANGED * early_s, CHANGED_S, lone.order_s)
    # slower than its paths allow: TCP's windows limit it, and later windows depend on the losses in between
    window_limited = lone.path_s > 0 and early_s > lone.path_s + tight_s
    # which segments TCP retransmits, and when, depends on its state from earlier traffic
    history_dependent = window_limited or lone.remembers or lone.overflowed
    steady = exact and all(quiet) and not (history_dependent and lone.resent)
    share, absolute_s = (CHANGED, CHANGED_S) if steady else (CHANGED_ROUGHLY, CHANGED_ROUGHLY_S)
    absolute_s = max(absolute_s, lone.order_s)
    bound = f"within {share:.0%}, or {absolute_s * 1e3:.3g} ms"
    if not before or not after:
        return Finding("not applicable", why_not or "There is only one rank.", bound=bound)
    opened = window_limited and abs(late_s - lone.path_s) <= tight_s
    same = abs(late_s - early_s) <= max(share * early_s, absolute_s) or opened
    sentence = f"The ring all-reduce alone on the network took {early_s * 1e3:.4g} ms before the first step, "
    sentence += f"and {late_s * 1e3:.4g} ms after the last one"
    sentence += "" if all(quiet) else ", with retransmitted segments"
    sentence += ", as its paths allow: before, TCP's windows were not open yet" if opened and steady else ""
    return Finding(
        f"{late_s / early_s - 1:+.1%}",
        sentence + ("." if same else ": something has changed meanwhile."),
        same,
        "untrusted" if steady else "caution",
        bound,
    )


HEADERS_BYTES = 52  # IPv4 and TCP with time stamps, in each of the ranks' packets
LEAST_BYTES = 20  # an IP header
SEGMENTS_TO_OPEN = (
    2  # segments of the handshake that the listener of an accepted connection sends or receives
)
DIRECTIONS = ("out", "in")


@dataclass(frozen=True)
class Foreign:
    """Foreign traffic on one host's NIC; `direction` is "out" or "in", and `kinds` has counts by protocol, if known."""

    host: str
    direction: str
    packets: int
    bytes_: int
    kinds: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The traffic as a readable phrase."""
        kinds = f" ({', '.join(self.kinds)})" if self.kinds else ""
        verb = "sent" if self.direction == "out" else "received"
        return f"{self.host} {verb} {self.packets} packets, about {self.bytes_} bytes{kinds}"


def foreign_in_steps(hosts: Sequence[str], steps: Sequence[Mapping[str, Any]], mtu: int) -> list[Foreign]:
    """Return the foreign traffic that ranks saw on their hosts while steps were measured.

    Args:
        hosts: Host of each rank.
        steps: Each rank's record of each step; its `traffic` is None if the kernel does not report it.
        mtu: Largest size of an IP packet, in bytes.
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
            # the payload of foreign TCP cannot be distinguished from the ranks' own TCP options: bound it by packet
            # sizes
            size = min(max(bytes_, LEAST_BYTES * packets), mtu * packets) + ETHERNET_HEADER_BYTES * packets
            row = found.setdefault((hosts[step["rank"]], direction), [0, 0, 0, 0])
            for column, figure in enumerate((packets, size, counted["udp"], counted["icmp"])):
                row[column] += figure
    return [
        Foreign(host, direction, packets, size, _kinds(packets, udp, icmp))
        for (host, direction), (packets, size, udp, icmp) in found.items()
    ]


def _kinds(packets: int, udp: int, icmp: int) -> tuple[str, ...]:
    known = [("UDP", udp), ("ICMP", icmp), ("foreign TCP", packets - udp - icmp)]
    return tuple(f"{count} {name}" for name, count in known if count > 0)


def foreign_outside_steps(
    counted: Mapping[str, NodeCounts],
    ranks: Collection[str],
    background: Collection[str],
    hosts: Sequence[str],
) -> Iterator[Foreign]:
    """Yield the foreign traffic of the whole run: traffic of hosts with nothing to send, and frames that bypass IP.

    Args:
        counted: Counters by host.
        ranks: Hosts with a rank.
        background: Hosts with the scenario's background traffic, which is all TCP.
        hosts: All hosts.
    """
    for name in hosts:
        card, own = counted[name].ports[NIC], counted[name].protocols
        assert own is not None
        if name in ranks:
            raw = card.sent_packets - own.out_packets
            size = card.tx_bytes - own.out_bytes - (HEADERS_BYTES + ETHERNET_HEADER_BYTES) * own.out_packets
            size += HEADERS_BYTES * own.out_headers
            if raw > 0:
                yield Foreign(name, "out", raw, max(size, ETHERNET_HEADER_BYTES * raw), ("bypassing IP",))
            continue
        kind = "not TCP" if name in background else "no rank runs there"
        for direction, packets, bytes_, tcp in (
            ("out", card.sent_packets, card.tx_bytes, own.tcp_out),
            ("in", card.rx_packets, card.rx_bytes, own.tcp_in),
        ):
            if (rest := packets - (tcp if name in background else 0)) > 0:
                yield Foreign(name, direction, rest, bytes_ * rest // packets, (kind,))


@check("at most {} of the steps' time on the slowest link", limits=(0.001, 0.01))
def no_foreign_traffic(
    found: Sequence[Foreign], slowest_bps: float, steps_s: float, known: bool = True
) -> Finding:
    """Check that the network carried nothing but the run's own traffic.

    Args:
        found: All foreign traffic.
        slowest_bps: The lowest rate of any link or NIC, where foreign bytes take the longest.
        steps_s: Total time of the measured steps in seconds.
        known: Whether the traffic of the ranks' own connections is known.
    """
    if not known and not found:
        sentence = "The ranks' own traffic is unknown in some steps: not counted by the kernel, or sockets were closed."
        return Finding("not known", sentence)
    bytes_ = {
        direction: sum(entry.bytes_ for entry in found if entry.direction == direction)
        for direction in DIRECTIONS
    }
    share = 8 * max(bytes_.values()) / slowest_bps / steps_s if steps_s else 0.0
    sentence = "The hosts' NICs carried only the traffic of the ranks and the scenario's background traffic."
    if found:
        worst = sorted(found, key=lambda entry: entry.bytes_, reverse=True)
        sentence = "In addition to the run's own traffic, " + "; ".join(entry.text for entry in worst[:3])
        sentence += f"; and {len(worst) - 3} more" if len(worst) > 3 else ""
        sentence += f". That occupies the slowest link for up to {share:.2%} of the measured steps."
    return Finding(f"{share:.2%}" if found else "none", sentence, value=share)
