"""Messages cut into segments that are dealt out to a pair's connections, as `comm.transport.striped` does it.

Segments go round the connections; one that has too many which are not acknowledged is passed over. Messages are whole
in the order in which they were sent. Small ones go on the first connection, whole, whatever else there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from testbed.comm.transport.channels import StripeSettings
from testbed.prediction.events import Event

PIECES = 4  # that a connection's window is played in at least: room for more comes with each


class PartSender(Protocol):
    """Sends parts of messages on a connection, by its number.

    turn: of all that is dealt out at the same time. taken: happens when the socket has it; come: called when it is
    there, acknowledged when its sender knows of that.
    """

    def __call__(
        self,
        channel: int,
        part: Part,
        turn: int | None,
        taken: Event,
        come: Callable[[], None],
        acknowledged: Callable[[], None],
    ) -> None:
        """Now."""


@dataclass(frozen=True)
class Part:
    """So many bytes of a message, in so many segments.

    ends_bytes: of the whole message, if this is its last part; else 0. follows: it leaves as others have come.
    """

    size_bytes: float
    segments: int
    ends_bytes: float = 0.0
    follows: bool = False


@dataclass(eq=False)
class _Cut:
    """A message: what is not dealt out yet, its parts that have not come, or not left."""

    size_bytes: float
    left_bytes: float
    taken: Event
    come: Callable[[], None]
    coming: int = 0
    untaken: int = 0


class RoundRobin:
    """Who of so many connections has the next segment: round them, but for those with too many unacknowledged."""

    def __init__(self, connections: int, outstanding: int) -> None:
        self.unacknowledged = [0] * connections
        self._outstanding, self._next = outstanding, 0

    def take(self) -> int | None:
        """Give one a segment; None where all have too many."""
        count = len(self.unacknowledged)
        for step in range(count):
            channel = (self._next + step) % count
            if self.unacknowledged[channel] < self._outstanding:
                self._next = channel + 1
                self.unacknowledged[channel] += 1
                return channel
        return None


@dataclass(eq=False)
class Striper:
    """Of one pair of ranks and class of traffic, with so many connections. flow: sends a part."""

    stripes: StripeSettings
    connections: int
    next_turn: Callable[[], int | None]
    flow: PartSender
    turns: RoundRobin = field(init=False)
    waiting: deque[_Cut] = field(default_factory=deque)
    order: deque[_Cut] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.turns = RoundRobin(self.connections, self.stripes.outstanding)

    def send(self, size_bytes: float, taken: Event, come: Callable[[], None]) -> None:
        """A message. taken: when sockets have all of it; come: called when it is there, and all before it are."""
        if size_bytes <= self.stripes.fast_bytes:
            self.flow(
                0, Part(size_bytes, 1, ends_bytes=size_bytes), self.next_turn(), taken, come, lambda: None
            )
            return
        message = _Cut(size_bytes, size_bytes, taken, come)
        self.waiting.append(message)
        self.order.append(message)
        self._deal(follows=False)

    def _deal(self, *, follows: bool) -> None:
        """Out, as far as there is room."""
        turn = self.next_turn() if self.waiting else None
        while self.waiting:
            message = self.waiting[0]
            segments = self._cut(message)
            whole = message.left_bytes <= 0
            parts = [
                (channel, part)
                for channel, sizes in enumerate(segments)
                for part in self._parts(sizes, follows)
            ]
            if whole:
                channel, part = parts[-1]
                parts[-1] = channel, replace(part, ends_bytes=message.size_bytes)
            message.coming += len(parts)
            message.untaken += len(parts)
            for channel, part in parts:
                self._send(message, channel, part, turn)
            if not whole:
                return
            self.waiting.popleft()

    def _cut(self, message: _Cut) -> list[list[float]]:
        """Its segments' bytes, by connection, as far as there is room."""
        found: list[list[float]] = [[] for _ in range(self.connections)]
        while message.left_bytes > 0 and (channel := self.turns.take()) is not None:
            size_bytes = min(self.stripes.segment_bytes, message.left_bytes)
            message.left_bytes -= size_bytes
            found[channel].append(size_bytes)
        return found

    def _parts(self, sizes: Sequence[float], follows: bool) -> Iterator[Part]:
        """Of what goes on one connection."""
        most = max(1, self.stripes.outstanding // PIECES)
        for start in range(0, len(sizes), most):
            own = sizes[start : start + most]
            yield Part(sum(own), len(own), follows=follows)

    def _send(self, message: _Cut, channel: int, part: Part, turn: int | None) -> None:
        def come() -> None:
            message.coming -= 1
            while self.order and self.order[0].left_bytes <= 0 and not self.order[0].coming:
                self.order.popleft().come()

        def in_socket() -> None:
            message.untaken -= 1
            if not message.untaken and message.left_bytes <= 0:
                message.taken.happen()

        def acknowledged() -> None:
            self.turns.unacknowledged[channel] -= part.segments
            self._deal(follows=True)

        taken = Event()
        taken.and_then(in_socket)
        self.flow(channel, part, turn, taken, come, acknowledged)
