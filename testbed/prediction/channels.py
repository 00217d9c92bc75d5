"""What of a connection between ranks is the same for all of its messages; and one that nothing can happen to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from testbed.net.paths.losses import INITIAL_WINDOW_PACKETS, LossyWindow
from testbed.net.paths.network import Ends, Network, PartShares, Path
from testbed.prediction.events import Action, Clock, Event, EventQueue, SendBuffer
from testbed.prediction.fluid import AT_ONCE, Fluid


@dataclass(eq=False, slots=True)
class Channel:
    """Of a connection, by its key.

    plain: nothing is lost on its paths, and there is no first pace. hops: whether it is one path, known link by link.
    timed: by bytes of a message, those with all that goes with it, and its latency, where that is always the same.
    """

    key: object
    paths: Sequence[Path]
    shares: list[PartShares]
    buffer: SendBuffer
    plain: bool
    hops: bool
    timed: dict[float, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, key: object, paths: Sequence[Path], network: Network) -> Channel:
        """Over these paths."""
        lossless = all(path.lossy is None for path in paths)
        return cls(
            key,
            paths,
            [path.shares for path in paths],
            SendBuffer(network.send_buffer_bytes),
            lossless and not network.first_pace,
            lossless and len(paths) == 1 and network.routed,
        )

    def is_queued(self, fluid: Fluid, size_bytes: float, turn: int | None) -> bool:
        """Whether all of a message is in queues at once, and losses are theirs alone."""
        return self.hops and turn is not None and size_bytes <= fluid.holds_bytes(self.key, self.shares)

    def send(
        self,
        clock: Clock,
        fluid: Fluid,
        size_bytes: float,
        latency_s: float,
        turn: int | None,
        taken: Event,
        left: Callable[[], None],
        come: Callable[[], None],
    ) -> None:
        """A message on a plain one: as `Connections.send` has it."""
        until_s = clock.now_s + fluid.ahead_s(self.key, self.shares, size_bytes)

        def sent() -> None:
            clock.later(latency_s + max(0.0, until_s - clock.now_s), come)
            left()
            self.buffer.leave(size_bytes)

        fluid.send(self.key, self.shares, size_bytes, sent, turn=turn)
        self.buffer.put(size_bytes, taken)


class PersistentConnections(Protocol):
    """Connections that are the same ones in the next step."""

    @property
    def kept(self) -> ConnectionState:
        """Themselves."""

    @property
    def overflowed(self) -> bool:
        """Whether queues have had no room."""

    def go_on(self, agenda: EventQueue) -> None:
        """By another's time, from its beginning."""

    def send(
        self, ends: Ends, dscp: int, size_bytes: float, taken: Event, left: Action, come: Action
    ) -> None:
        """A message."""

    def open(self, ranks: int, before: Warmup) -> None:
        """Go round once."""

    def shift(self, seconds: float) -> None:
        """So much has gone by."""


class ConnectionState(NamedTuple):
    """What connections, by their keys, keep from one step to the next.

    lossy: windows over paths that lose packets, which are the same ones later on. paces: packets that were
    delivered in a round trip, of those whose first pace is less than the path's rate. fluid: empty between steps, it
    remembers rates. packets: of a step that is played packet by packet, all of them.
    """

    lossy: Mapping[object, LossyWindow]
    paces: Mapping[object, float]
    fluid: Fluid | None = None
    packets: PersistentConnections | None = None

    @property
    def matters(self) -> bool:
        """Whether a step is another one with it."""
        return bool(self.lossy or self.paces or self.packets)


NO_STATE = ConnectionState({}, {})


class Warmup(NamedTuple):
    """What ranks do on the same connections before: go round a ring so many times, then so many steps.

    messages: of each rank to the next each time, in so many pieces, which follow on those of the rank before. told:
    steps after all that, at the most, of which the median is told, until one takes what the one before it took. trials:
    that the run measures in one network, as many as are told where nothing but opening windows makes steps differ.
    """

    message_bytes: float = 0.0
    pieces: int = 1
    messages: int = 0
    times: int = 0
    steps: int = 0
    told: int = 1
    trials: int = 1


NO_WARMUP = Warmup()


class HopSegment(NamedTuple):
    """As a connection of its own. packet_s: what a packet takes in its slowest part; delay_s: on to the next queue."""

    key: object
    shares: PartShares
    packet_s: float
    delay_s: float


def split_by_hop(key: object, path: Path, capacities: Mapping[str, float]) -> tuple[HopSegment, ...]:
    """One for each link that is not much quicker than the slowest; delays are taken for alike."""
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
    """A message, or a piece of one. packet_bytes: of a full packet; rest_s: from leaving the last leg to being there.

    turn: in the first queue. follows: its connection has its share already. gone: called when it has left the last leg,
    with the seconds until it is there.
    """

    clock: Clock
    fluid: Fluid
    legs: Sequence[HopSegment]
    size_bytes: float
    packet_bytes: float
    rest_s: float
    turn: int | None
    follows: bool
    gone: Callable[[float], None]
    until_s: float = 0.0
    over: int = 0

    def begin(self, number: int = 0) -> None:
        """The leg of this number, and those behind it."""
        leg, fluid, last = self.legs[number], self.fluid, number + 1 == len(self.legs)
        shares = [leg.shares]
        ahead_s = 0.0 if self.follows else fluid.ahead_s(leg.key, shares, self.size_bytes)
        before_s = self.until_s + self.legs[number - 1].delay_s if number else 0.0
        self.until_s = max(before_s, self.clock.now_s + ahead_s)
        turn = fluid.next_turn() if number else self.turn
        if last:
            fluid.send(leg.key, shares, self.size_bytes, self._through, turn=turn)
            return
        first_bytes = min(self.size_bytes, self.packet_bytes)
        self.rest_s -= leg.packet_s * first_bytes / self.packet_bytes + leg.delay_s

        def first() -> None:
            self.clock.later(leg.delay_s, lambda: self.begin(number + 1))
            if first_bytes == self.size_bytes:
                self._through()

        fluid.send(leg.key, shares, first_bytes, first, turn=turn)
        if first_bytes < self.size_bytes:
            fluid.send(leg.key, shares, self.size_bytes - first_bytes, self._through, turn=turn)

    def _through(self) -> None:
        """One of the legs."""
        self.over += 1
        if self.over == len(self.legs):
            self.gone(max(0.0, self.rest_s) + max(0.0, self.until_s - self.clock.now_s))


@dataclass(eq=False)
class SlowStartRamp:
    """Of a connection whose first pace is less than its path's rate, both in packets per second. gain: see above.

    packets: that were delivered in a round trip at the most.
    """

    gain: float
    round_trip_s: float
    rate: float
    packets: float = INITIAL_WINDOW_PACKETS
    until_s: float = -math.inf
    since_s: float = -math.inf
    counted: float = 0.0

    def left_s(self, packets: float, now_s: float) -> float:
        """When so many more have left. What leaves in one round trip is measured, and the next has a pace by that."""
        at_s = max(now_s, self.until_s)
        while packets > 0:
            pace = self.gain * self.packets / self.round_trip_s
            if pace >= self.rate:
                at_s += packets / self.rate
                break
            if at_s >= self.since_s + self.round_trip_s:
                self.since_s, self.counted = at_s, 0.0
            some = min(packets, pace * (self.since_s + self.round_trip_s - at_s))
            at_s += some / pace
            self.counted += some
            self.packets = max(self.packets, self.counted)
            packets -= some
        self.until_s = at_s
        return at_s
