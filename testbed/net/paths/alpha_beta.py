"""What one collective alone on the network should take, by the alpha-beta model, to be held against what it takes.

A message of s bytes from one rank to the next takes alpha + s x beta: latency of the path, and time per byte of its
slowest part (Hockney 1994, "The communication challenge for MPP"). The latency is the links' delays and what frames
are held for at each hop but the slowest. The model holds where nothing else is on the network and TCP's windows are
open: so each run does one such collective before its steps. Pure.
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
    NOTHING_HELD,
    Hop,
    Paths,
    Planes,
    Serialisation,
    packet_payload_bytes,
    passage,
)
from testbed.spec.buildings import Host
from testbed.spec.link_direction import Direction
from testbed.spec.links import ETHERNET_HEADER_BYTES
from testbed.spec.topology import Topology

TRANSFER_S = 0.1  # what bytes alone should take: long enough to be seen beside latency
LEAST_PACKETS = 4  # per message


@dataclass(frozen=True)
class RingStep:
    """From one rank of a ring to the next: delays in seconds, seconds per byte of payload, what holds frames.

    back_s: until an acknowledgement has come the other way; None: the delays as there.
    """

    delay_s: float
    beta_s: float
    serialisation: Serialisation = NOTHING_HELD
    back_s: float | None = None

    def alpha_s(self, size_bytes: float) -> float:
        """What a message takes beside its bytes at the slowest hop; messages shorter than a frame are held less."""
        return self.delay_s + self.serialisation.beyond_s(size_bytes)

    @property
    def returned_s(self) -> float:
        """What a short message takes the other way."""
        return self.delay_s if self.back_s is None else self.back_s

    def round_trip_s(self, size_bytes: float) -> float:
        """Until a message that is sent alone is acknowledged."""
        return self.alpha_s(size_bytes) + size_bytes * self.beta_s + self.returned_s


class EmptyPath(NamedTuple):
    """A path with nothing on it, by the nearest planes.

    rate_bps: of its narrowest link. round_trip_s: of a full packet and the word that it has come. bdp_bytes: payload
    that is under way when it is full.
    """

    rate_bps: float
    round_trip_s: float
    bdp_bytes: float


def nearest_plane(planes: Sequence[Direction]) -> Direction:
    """The one of least delay; of several the quickest."""
    return min(planes, key=lambda plane: (plane.delay_s, -plane.rate_bps))


def worst_plane(planes: Sequence[Direction]) -> Direction:
    """The largest delay and the lowest rate of them: no policy can do worse."""
    slow = min(planes, key=lambda plane: plane.rate_bps)
    return replace(slow, delay_s=max(plane.delay_s for plane in planes))


def all_planes(planes: Sequence[Direction]) -> Direction:
    """The least delay, and the rates of all: nothing that spreads a message can do better."""
    return replace(nearest_plane(planes), rate_bps=sum(plane.rate_bps for plane in planes))


def ring_steps(paths: Paths, hosts: Sequence[Host], planes: Planes = nearest_plane) -> list[RingStep]:
    """The ring's steps, from each host to the next and from the last to the first; figures as in the topology."""
    after = [*hosts[1:], *hosts[:1]]
    return [_step(paths, one, other, planes) for one, other in zip(hosts, after, strict=True)]


def empty_paths(paths: Paths, hosts: Sequence[Host]) -> list[list[EmptyPath]]:
    """Per host and other host the path between them; nothing of one to itself."""

    def path(one: Host, other: Host) -> EmptyPath:
        if one == other:
            return EmptyPath(0.0, 0.0, 0.0)
        there, back = _both_ways(paths, one, other, nearest_plane)
        step = step_of(paths.topology, there, back)
        round_trip_s = step.round_trip_s(step.serialisation.packet_bytes)
        rate_bps = min(hop.links[0].rate_bps for hop in there)
        return EmptyPath(rate_bps, round_trip_s, round_trip_s / step.beta_s)

    return [[path(one, other) for other in hosts] for one in hosts]


def bdp_bytes(paths: Paths, hosts: Sequence[Host]) -> list[list[float]]:
    """Per host and other host the payload that is under way when the empty path between them is full; 0 to itself."""
    return [[path.bdp_bytes for path in row] for row in empty_paths(paths, hosts)]


def _both_ways(paths: Paths, one: Host, other: Host, planes: Planes) -> tuple[list[Hop], list[Hop]]:
    """The hops there and back, of one link each."""
    there, back = ([hop.by(planes) for hop in paths.between(*ends)] for ends in ((one, other), (other, one)))
    return there, back


def _step(paths: Paths, one: Host, other: Host, planes: Planes) -> RingStep:
    return step_of(paths.topology, *_both_ways(paths, one, other, planes))


def step_of(topology: Topology, there: Sequence[Hop], back: Sequence[Hop]) -> RingStep:
    """Of a path and of the one that acknowledgements take; hops of one link each."""
    forth, returned = passage(topology, there), passage(topology, back)
    return RingStep(
        forth.delay_s,
        # packets follow each other through all parts at once: only the slowest takes its time per byte
        8 / forth.rate_bps * frame_per_payload(topology),
        forth.serialisation,
        returned.delay_s + returned.serialisation.whole_s(0),
    )


def frame_per_payload(topology: Topology) -> float:
    """Bytes on the wire per byte of payload, of full packets."""
    return (topology.mtu + ETHERNET_HEADER_BYTES) / packet_payload_bytes(topology)


def calibration_bytes(steps: Sequence[RingStep], mtu: int, largest_bytes: float) -> int:
    """Size of a message between neighbours of the ring for which bytes take some TRANSFER_S in all.

    No larger than those of the workload itself, which are what memory was made for, but for some packets.
    """
    rounds = baseline_rounds(len(steps))
    wanted = TRANSFER_S / rounds / max(step.beta_s for step in steps)
    return max(LEAST_PACKETS * mtu, round(min(wanted, largest_bytes)))


def ring_all_reduce_s(
    steps: Sequence[RingStep],
    message_bytes: float,
    overhead_s: float,
    pieces: int = 1,
    rounds: int | None = None,
    note_s: float | None = None,
) -> float:
    """What a ring all-reduce takes in which every message has so many bytes.

    Reduce-scatter and all-gather, n - 1 rounds each: a rank sends what it got in the round before, as soon as it has
    it and has sent all before. pieces: into which messages are cut that go round independently, one of which is
    sent while others are on their way; each costs its two ends `overhead_s`. rounds: of one that is broken off.
    note_s: where a rank sends first once the next one has said that it waits, what that costs its two ends.
    """
    size, piece_bytes = len(steps), message_bytes / pieces
    rounds = 2 * (size - 1) if rounds is None else rounds
    sent = [0.0] * size
    last_s = 0.0
    # the next one says so at the beginning of the first rounds, and of others so many rounds ahead
    told_s: dict[tuple[int, int, int], float] = {}
    if note_s is not None:
        for rank, piece, number in product(range(size), range(pieces), range(AHEAD)):
            told_s[number, piece, rank] = steps[rank].returned_s + note_s
    untold: dict[tuple[int, int, int], float] = {}
    ready = [(0.0, 0, piece, rank) for piece in range(pieces) for rank in range(size)]
    heapq.heapify(ready)
    while ready:
        since_s, number, piece, rank = heapq.heappop(ready)
        if note_s is not None:  # others of the rank's may go meanwhile
            if (waits_s := told_s.get((number, piece, rank))) is None:
                untold[number, piece, rank] = since_s
                continue
            if waits_s > since_s:
                heapq.heappush(ready, (waits_s, number, piece, rank))
                continue
        sent[rank] = max(since_s, sent[rank]) + piece_bytes * steps[rank].beta_s
        there_s = sent[rank] + steps[rank].alpha_s(piece_bytes) + overhead_s
        if note_s is not None:
            later = number + AHEAD, piece, rank
            told_s[later] = there_s + steps[rank].returned_s + note_s
            if later in untold:
                heapq.heappush(ready, (max(untold.pop(later), told_s[later]), *later))
        if number + 1 < rounds:
            heapq.heappush(ready, (there_s, number + 1, piece, (rank + 1) % size))
        last_s = max(last_s, there_s)
    return last_s
