"""The alpha-beta model of one collective alone on the network, to compare with its measured time.

A message of s bytes from one rank to the next takes alpha + s x beta: the path's latency, and the time per byte of its
slowest part (Hockney 1994, "The communication challenge for MPP"). The latency is the links' delays plus the
serialisation at all hops except the slowest. The model is valid if nothing else uses the network and TCP's windows are
open, so each run performs such a collective before its steps. This module is pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from testbed.comm.collectives.baseline_ring import baseline_rounds
from testbed.comm.collectives.plan_executor import AHEAD
from testbed.net.paths.hops import (
    NO_SERIALISATION,
    Hop,
    Paths,
    Planes,
    Serialisation,
    packet_payload_bytes,
    passage,
)
from testbed.spec.buildings import Host
from testbed.spec.link_direction import ETHERNET_HEADER_BYTES, Direction
from testbed.spec.topology import Topology

TRANSFER_S = 0.1  # target transfer time without latency: long enough to be measurable
MIN_MESSAGE_PACKETS = 4


@dataclass(frozen=True)
class RingStep:
    """A step from one rank of a ring to the next.

    Attributes:
        delay_s: The path's delay in seconds.
        beta_s: Seconds per byte of payload.
        serialisation: The serialisation at the path's hops.
        back_s: Seconds for an acknowledgement in the reverse direction; None for `delay_s`.
    """

    delay_s: float
    beta_s: float
    serialisation: Serialisation = NO_SERIALISATION
    back_s: float | None = None

    def alpha_s(self, size_bytes: float) -> float:
        """Return a message's latency without its bytes at the slowest hop; it is lower for messages below a frame."""
        return self.delay_s + self.serialisation.beyond_s(size_bytes)

    @property
    def returned_s(self) -> float:
        """Seconds for a short message in the reverse direction."""
        return self.delay_s if self.back_s is None else self.back_s

    def round_trip_s(self, size_bytes: float) -> float:
        """Return the seconds until a message sent alone is acknowledged."""
        return self.alpha_s(size_bytes) + size_bytes * self.beta_s + self.returned_s


class EmptyPath(NamedTuple):
    """An idle path over the planes of least delay.

    Attributes:
        rate_bps: The rate of its slowest link.
        round_trip_s: The round trip of a full packet and its acknowledgement.
        bdp_bytes: The bandwidth-delay product in bytes of payload.
    """

    rate_bps: float
    round_trip_s: float
    bdp_bytes: float


def nearest_plane(planes: Sequence[Direction]) -> Direction:
    """Return the plane of least delay; among equals, the fastest."""
    return min(planes, key=lambda plane: (plane.delay_s, -plane.rate_bps))


def worst_plane(planes: Sequence[Direction]) -> Direction:
    """Return a plane with the largest delay and the lowest rate: no policy can do worse."""
    slow = min(planes, key=lambda plane: plane.rate_bps)
    return replace(slow, delay_s=max(plane.delay_s for plane in planes))


def all_planes(planes: Sequence[Direction]) -> Direction:
    """Return a plane with the least delay and the sum of all rates: no spreading of a message can do better."""
    return replace(nearest_plane(planes), rate_bps=sum(plane.rate_bps for plane in planes))


def ring_steps(paths: Paths, hosts: Sequence[Host], planes: Planes = nearest_plane) -> list[RingStep]:
    """Return the steps of a ring over hosts, from each to the next and from the last to the first, unscaled."""
    ends = zip(hosts, [*hosts[1:], *hosts[:1]], strict=True)
    return [step_of(paths.topology, *_hops_there_and_back(paths, *pair, planes)) for pair in ends]


def empty_paths(paths: Paths, hosts: Sequence[Host]) -> list[list[EmptyPath]]:
    """Return the idle path between each pair of hosts, as a matrix; zeros from a host to itself."""

    def path(one: Host, other: Host) -> EmptyPath:
        if one == other:
            return EmptyPath(0.0, 0.0, 0.0)
        there, back = _hops_there_and_back(paths, one, other, nearest_plane)
        step = step_of(paths.topology, there, back)
        round_trip_s = step.round_trip_s(step.serialisation.packet_bytes)
        rate_bps = min(hop.links[0].rate_bps for hop in there)
        return EmptyPath(rate_bps, round_trip_s, round_trip_s / step.beta_s)

    return [[path(one, other) for other in hosts] for one in hosts]


def bdp_bytes(paths: Paths, hosts: Sequence[Host]) -> list[list[float]]:
    """Return the bandwidth-delay product between each pair of hosts in bytes of payload; 0 from a host to itself."""
    return [[path.bdp_bytes for path in row] for row in empty_paths(paths, hosts)]


def _hops_there_and_back(paths: Paths, one: Host, other: Host, planes: Planes) -> tuple[list[Hop], list[Hop]]:
    there, back = (
        [hop.with_plane(planes) for hop in paths.between(*ends)] for ends in ((one, other), (other, one))
    )
    return there, back


def step_of(topology: Topology, there: Sequence[Hop], back: Sequence[Hop]) -> RingStep:
    """Return the ring step for a path and the reverse path of its acknowledgements, with hops of one link each."""
    forward, reverse = passage(topology, there), passage(topology, back)
    return RingStep(
        forward.delay_s,
        # Packets are pipelined through all parts, so only the slowest part adds time per byte.
        8 / forward.rate_bps * frame_per_payload(topology),
        forward.serialisation,
        reverse.delay_s + reverse.serialisation.whole_s(0),
    )


def frame_per_payload(topology: Topology) -> float:
    """Return the bytes on the wire per byte of payload, for full packets."""
    return (topology.mtu + ETHERNET_HEADER_BYTES) / packet_payload_bytes(topology)


def calibration_bytes(steps: Sequence[RingStep], mtu: int, largest_bytes: float) -> int:
    """Return the message size between ring neighbours for which all transfers take about TRANSFER_S.

    It is at most `largest_bytes`, the workload's own largest message, for which memory is sized; but at least
    MIN_MESSAGE_PACKETS packets.
    """
    rounds = baseline_rounds(len(steps))
    wanted = TRANSFER_S / rounds / max(step.beta_s for step in steps)
    return max(MIN_MESSAGE_PACKETS * mtu, round(min(wanted, largest_bytes)))


def ring_all_reduce_s(
    steps: Sequence[RingStep],
    message_bytes: float,
    overhead_s: float,
    pieces: int = 1,
    rounds: int | None = None,
    note_s: float | None = None,
) -> float:
    """Return the seconds that a ring all-reduce takes.

    It consists of a reduce-scatter and an all-gather of n - 1 rounds each. A rank sends what it received in the
    previous round as soon as it has it and has sent everything before.

    Args:
        steps: The ring's steps.
        message_bytes: The size of every message.
        overhead_s: The cost of each piece at its two ends, in seconds.
        pieces: The number of pieces per message, which go round the ring independently and are pipelined.
        rounds: The number of rounds, for an all-reduce that is cut short.
        note_s: The cost of a ready notification at its two ends; None if ranks send without waiting for one.
    """
    size, piece_bytes = len(steps), message_bytes / pieces
    rounds = 2 * (size - 1) if rounds is None else rounds
    sent = [0.0] * size
    last_s = 0.0
    # The receiver announces the first AHEAD rounds at the start, and every later round AHEAD rounds in advance.
    notified_s: dict[tuple[int, int, int], float] = {}
    if note_s is not None:
        for rank, piece, number in product(range(size), range(pieces), range(AHEAD)):
            notified_s[number, piece, rank] = steps[rank].returned_s + note_s
    blocked: dict[tuple[int, int, int], float] = {}
    ready = [(0.0, 0, piece, rank) for piece in range(pieces) for rank in range(size)]
    heapq.heapify(ready)
    while ready:
        since_s, number, piece, rank = heapq.heappop(ready)
        if note_s is not None:  # the rank's other messages may overtake a blocked one
            if (permitted_s := notified_s.get((number, piece, rank))) is None:
                blocked[number, piece, rank] = since_s
                continue
            if permitted_s > since_s:
                heapq.heappush(ready, (permitted_s, number, piece, rank))
                continue
        sent[rank] = max(since_s, sent[rank]) + piece_bytes * steps[rank].beta_s
        arrived_s = sent[rank] + steps[rank].alpha_s(piece_bytes) + overhead_s
        if note_s is not None:
            later = number + AHEAD, piece, rank
            notified_s[later] = arrived_s + steps[rank].returned_s + note_s
            if later in blocked:
                heapq.heappush(ready, (max(blocked.pop(later), notified_s[later]), *later))
        if number + 1 < rounds:
            heapq.heappush(ready, (arrived_s, number + 1, piece, (rank + 1) % size))
        last_s = max(last_s, arrived_s)
    return last_s
