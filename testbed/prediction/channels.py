"""Connections of the fluid model: channels, hop-by-hop transfers, pacing, and the warm-up before a step.

Messages that are sent at once move from one slow link's queue to the next, and each link serves them in FIFO order. A
message that waits in a later queue no longer occupies the links before that queue. So the message flows hop by hop,
where each hop ends with a slow link. A hop starts when the first packet has passed the previous hop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from testbed.net.paths.congestion.linux_tcp import INITIAL_WINDOW_PACKETS
from testbed.net.paths.network import Network, PartShares, Path
from testbed.prediction.events import EventQueue, SendBuffer
from testbed.prediction.fluid import AT_ONCE, Fluid


@dataclass(eq=False, slots=True)
class Channel:
    """The properties that are constant for all messages of one connection.

    `hops` is set if the connection has a single lossless path that is known link by link.
    """

    key: object
    shares: list[PartShares]
    buffer: SendBuffer
    hops: bool

    @classmethod
    def of(cls, key: object, paths: Sequence[Path], network: Network) -> Channel:
        """Build the channel of a connection over these paths."""
        return cls(
            key,
            [path.shares for path in paths],
            SendBuffer(network.send_buffer_bytes),
            len(paths) == 1 and paths[0].lossy is None and network.routed,
        )

    def is_queued(self, fluid: Fluid, size_bytes: float, turn: int | None) -> bool:
        """Return whether the whole message fits into queues at once, so that it is simulated hop by hop."""
        return self.hops and turn is not None and size_bytes <= fluid.holds_bytes(self.key, self.shares)


class Warmup(NamedTuple):
    """The ranks' use of the same connections before the returned step: ring rounds, then whole steps.

    Attributes:
        message_bytes: Size of a ring message.
        pieces: Pieces per ring message; a rank sends each piece after it has received that piece from the previous
            rank.
        messages: Messages from each rank to the next per round.
        times: Number of ring rounds.
        steps: Number of warm-up steps after the rounds.
        most_steps: Maximum number of steps after the warm-up; their median is returned. The simulation stops early once
            a step takes as long as the previous one.
        trials: Number of steps that a real run measures in one network. At least this many are simulated if steps
            differ only because windows are still growing.
    """

    message_bytes: float = 0.0
    pieces: int = 1
    messages: int = 0
    times: int = 0
    steps: int = 0
    most_steps: int = 1
    trials: int = 1


NO_WARMUP = Warmup()


class HopSegment(NamedTuple):
    """A section of a path that the fluid model treats as a separate connection.

    `packet_s` is the time of a full packet in the segment's slowest part. `delay_s` is the delay to the next queue.
    """

    key: object
    shares: PartShares
    packet_s: float
    delay_s: float


def split_by_hop(key: object, path: Path, capacities: Mapping[str, float]) -> tuple[HopSegment, ...]:
    """Split a path after each link that is not much faster than the slowest; the delay is divided evenly."""
    rates = [capacities[name] for name in path.parts]
    slow = [place for place, rate in enumerate(rates) if place and rate < AT_ONCE * min(rates)]
    ends = [0, *(place + 1 for place in slow[:-1]), len(rates)]
    packet_bytes, delay_s = path.serialisation.packet_bytes, path.delay_s / max(1, len(slow))
    return tuple(
        HopSegment(
            (key, "leg", start),
            dict.fromkeys(path.parts[start:end], 1.0),
            packet_bytes / min(rates[start:end]),
            delay_s,
        )
        for start, end in pairwise(ends)
    )


@dataclass(eq=False)
class HopTransfer:
    """A message, or a piece of one, that moves hop by hop.

    `packet_bytes` is the size of a full packet. `rest_s` is the time from leaving the last hop to arrival. `turn` is
    the message's rank in the first queue. `follows` is true if the message starts as earlier ones arrive, so that its
    connection already has its share. `on_sent` is called when the message has left the last hop, with the seconds until
    it arrives.
    """

    clock: EventQueue
    fluid: Fluid
    segments: Sequence[HopSegment]
    size_bytes: float
    packet_bytes: float
    rest_s: float
    turn: int | None
    follows: bool
    on_sent: Callable[[float], None]
    until_s: float = 0.0
    completed: int = 0

    def start(self, number: int = 0) -> None:
        """Send over the hop with this number, and then over the later ones."""
        segment, fluid, last = self.segments[number], self.fluid, number + 1 == len(self.segments)
        shares = [segment.shares]
        ahead_s = 0.0 if self.follows else fluid.ahead_s(segment.key, shares, self.size_bytes)
        previous_s = self.until_s + self.segments[number - 1].delay_s if number else 0.0
        self.until_s = max(previous_s, self.clock.now_s + ahead_s)
        turn = fluid.next_turn() if number else self.turn
        if last:
            fluid.send(segment.key, shares, self.size_bytes, self._segment_done, turn=turn)
            return
        first_bytes = min(self.size_bytes, self.packet_bytes)
        self.rest_s -= segment.packet_s * first_bytes / self.packet_bytes + segment.delay_s

        def on_first() -> None:
            self.clock.call_later(segment.delay_s, lambda: self.start(number + 1))
            if first_bytes == self.size_bytes:
                self._segment_done()

        fluid.send(segment.key, shares, first_bytes, on_first, turn=turn)
        if first_bytes < self.size_bytes:
            fluid.send(segment.key, shares, self.size_bytes - first_bytes, self._segment_done, turn=turn)

    def _segment_done(self) -> None:
        """Count a completed hop."""
        self.completed += 1
        if self.completed == len(self.segments):
            self.on_sent(max(0.0, self.rest_s) + max(0.0, self.until_s - self.clock.now_s))


@dataclass(eq=False)
class SlowStartRamp:
    """The start-up pacing of a congestion-control algorithm that paces at the delivery rate.

    It sends at `gain` times `packets`, the maximum number of packets delivered in one round trip, up to `rate`, the
    path's rate in packets per second. This is slow when there is little to send over a long path: a message of any
    size takes a third of a round trip to leave. BBR starts at 2.89 initial windows per round trip.
    """

    gain: float
    round_trip_s: float
    rate: float
    packets: float = INITIAL_WINDOW_PACKETS
    until_s: float = -math.inf
    since_s: float = -math.inf
    delivered: float = 0.0

    def departure_s(self, packets: float, now_s: float) -> float:
        """Return when this many more packets have left; each round trip's deliveries set the next one's rate."""
        at_s = max(now_s, self.until_s)
        while packets > 0:
            rate_now = self.gain * self.packets / self.round_trip_s
            if rate_now >= self.rate:
                at_s += packets / self.rate
                break
            if at_s >= self.since_s + self.round_trip_s:
                self.since_s, self.delivered = at_s, 0.0
            sent = min(packets, rate_now * (self.since_s + self.round_trip_s - at_s))
            at_s += sent / rate_now
            self.delivered += sent
            self.packets = max(self.packets, self.delivered)
            packets -= sent
        self.until_s = at_s
        return at_s
