"""Messages that are striped over a pair's connections in segments, as in `comm.transport.striped`.

Segments are sent round-robin; a connection with too many unacknowledged segments is skipped. Messages complete in the
order in which they were sent. A small message is always sent whole on the first connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from testbed.comm.transport.channels import StripeSettings
from testbed.prediction.events import Event

PIECES = 4  # minimum number of parts per connection window, since each acknowledged part makes room


class PartSender(Protocol):
    """A function that sends part of a message on the connection with this number.

    `turn` is the rank in queues, which all parts sent at the same time share. `accepted` happens when the socket has
    accepted the part. `on_arrival` is called when the part has arrived, and `on_ack` when its sender knows of that; it
    is None if the sender need not know.
    """

    def __call__(
        self,
        channel: int,
        part: Part,
        turn: int | None,
        accepted: Event,
        on_arrival: Callable[[], None],
        on_ack: Callable[[], None] | None,
    ) -> None:
        """Send the part."""


@dataclass(frozen=True)
class Part:
    """A part of a message, in one or several segments.

    `ends_bytes` is the size of the whole message in its last part, else 0. `follows` is true if the part leaves when
    earlier parts are acknowledged.
    """

    size_bytes: float
    segments: int
    ends_bytes: float = 0.0
    follows: bool = False


@dataclass(eq=False)
class _Message:
    """A message: bytes not yet assigned, parts that have not arrived, and parts that sockets have not accepted."""

    size_bytes: float
    left_bytes: float
    accepted: Event
    on_arrival: Callable[[], None]
    pending: int = 0
    unaccepted: int = 0

    @property
    def is_complete(self) -> bool:
        return self.left_bytes <= 0 and not self.pending


class RoundRobin:
    """A round-robin choice of connections that skips those with too many unacknowledged segments."""

    def __init__(self, connections: int, outstanding: int) -> None:
        self.unacknowledged = [0] * connections
        self._outstanding, self._next = outstanding, 0

    def next_channel(self) -> int | None:
        """Assign a segment to a connection; None if all have too many."""
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
    """The segments of one pair of ranks and traffic class.

    `send_part` sends a part. With `by_segment`, each segment is a part that is sent in its turn; if messages may
    overtake each other, an end marker follows them. Without it, a part has several segments of one connection.
    """

    stripes: StripeSettings
    connections: int
    next_turn: Callable[[], int | None]
    send_part: PartSender
    by_segment: bool = False
    round_robin: RoundRobin = field(init=False)
    waiting: deque[_Message] = field(default_factory=deque)
    in_order: deque[_Message] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.round_robin = RoundRobin(self.connections, self.stripes.outstanding)

    def send(self, size_bytes: float, accepted: Event, on_arrival: Callable[[], None]) -> None:
        """Send a message.

        `accepted` happens when the sockets have accepted the whole message. `on_arrival` is called when it and all
        earlier messages have arrived.
        """
        if size_bytes <= self.stripes.fast_bytes:
            part = Part(size_bytes, 1, ends_bytes=size_bytes)
            self.send_part(0, part, self.next_turn(), accepted, on_arrival, None)
            return
        message = _Message(size_bytes, size_bytes, accepted, on_arrival)
        self.waiting.append(message)
        if not self._overtakes:
            self.in_order.append(message)
        self._assign(follows=False)

    @property
    def _overtakes(self) -> bool:
        """Whether a message may arrive before earlier ones."""
        return self.by_segment and self.stripes.mode == "spray"

    def _assign(self, *, follows: bool) -> None:
        """Assign segments as long as there is room."""
        turn = self.next_turn() if self.waiting else None
        while self.waiting:
            message = self.waiting[0]
            segments = list(self._take_segments(message))
            is_whole = message.left_bytes <= 0
            parts = list(self._parts(segments, follows))
            if is_whole:
                channel, part = parts[-1]
                parts[-1] = channel, replace(part, ends_bytes=message.size_bytes)
            message.pending += len(parts)
            message.unaccepted += len(parts)
            for channel, part in parts:
                self._send_to(message, channel, part, turn)
            if not is_whole:
                return
            self.waiting.popleft()
            if self._overtakes:
                message.pending += 1
                self.send_part(0, Part(0.0, 0), turn, Event(), partial(self._count_arrival, message), None)

    def _take_segments(self, message: _Message) -> Iterator[tuple[int, float]]:
        """Yield the connections and sizes of the next segments, as long as there is room."""
        while message.left_bytes > 0 and (channel := self.round_robin.next_channel()) is not None:
            size_bytes = min(self.stripes.segment_bytes, message.left_bytes)
            message.left_bytes -= size_bytes
            yield channel, size_bytes

    def _parts(self, segments: Sequence[tuple[int, float]], follows: bool) -> Iterator[tuple[int, Part]]:
        """Yield parts with their connections; see `by_segment`."""
        if self.by_segment:
            yield from ((channel, Part(size_bytes, 1)) for channel, size_bytes in segments)
            return
        most = max(1, self.stripes.outstanding // PIECES)
        for channel in range(self.connections):
            sizes = [size_bytes for one, size_bytes in segments if one == channel]
            for start in range(0, len(sizes), most):
                own = sizes[start : start + most]
                yield channel, Part(sum(own), len(own), follows=follows)

    def _count_arrival(self, message: _Message) -> None:
        """Count an arrived part or end marker."""
        message.pending -= 1
        if self._overtakes and message.is_complete:
            message.on_arrival()
        while self.in_order and self.in_order[0].is_complete:
            self.in_order.popleft().on_arrival()

    def _send_to(self, message: _Message, channel: int, part: Part, turn: int | None) -> None:
        def on_accepted() -> None:
            message.unaccepted -= 1
            if not message.unaccepted and message.left_bytes <= 0:
                message.accepted.trigger()

        def on_ack() -> None:
            self.round_robin.unacknowledged[channel] -= part.segments
            self._assign(follows=True)

        accepted = Event()
        accepted.and_then(on_accepted)
        self.send_part(channel, part, turn, accepted, partial(self._count_arrival, message), on_ack)
