"""Messages cut into segments that go round a pair's connections, each packet by packet, as `transport.striped` does.

A segment is acknowledged by a frame of the receiver's on the same connection: the next one goes when that has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from testbed.comm.transport.channels import FRAME, StripeSettings
from testbed.prediction.events import Event
from testbed.prediction.packets.sender import Sender
from testbed.prediction.striping import Turns

Action = Callable[[], None]


@dataclass(eq=False)
class _Message:
    """left_bytes: that are not cut off yet; untaken, coming: segments that sockets do not have, that are not there."""

    left_bytes: float
    taken: Event
    come: Action
    untaken: int = 0
    coming: int = 0

    @property
    def there(self) -> bool:
        return self.left_bytes <= 0 and not self.coming


@dataclass(eq=False)
class StripedPair:
    """Of two ranks, one way, and a class of traffic. there, back: its connections', by channel."""

    stripes: StripeSettings
    there: Sequence[Sender]
    back: Sequence[Sender]
    _turns: Turns = field(init=False)
    _waiting: deque[_Message] = field(default_factory=deque)
    _order: deque[_Message] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._turns = Turns(len(self.there), self.stripes.outstanding)

    def send(self, size_bytes: float, taken: Event, come: Action) -> None:
        """A message. taken: when sockets have all of it; come: called when it is there, and all before it are."""
        if size_bytes <= self.stripes.fast_bytes:
            self.there[0].send(FRAME.size + size_bytes, taken, _nothing, come)
            return
        message = _Message(size_bytes, taken, come)
        self._waiting.append(message)
        if self.stripes.mode == "dqplb":
            self._order.append(message)
        self._deal()

    def _deal(self) -> None:
        """Out, as far as there is room."""
        while self._waiting and (channel := self._turns.take()) is not None:
            message = self._waiting[0]
            size_bytes = min(self.stripes.segment_bytes, message.left_bytes)
            message.left_bytes -= size_bytes
            if message.left_bytes <= 0:
                self._waiting.popleft()
            self._segment(message, channel, size_bytes)
            if message.left_bytes <= 0 and self.stripes.mode == "spray":
                message.coming += 1
                self.there[0].send(FRAME.size, Event(), _nothing, partial(self._come, message))

    def _segment(self, message: _Message, channel: int, size_bytes: float) -> None:
        def come() -> None:
            self.back[channel].send(FRAME.size, Event(), _nothing, acknowledged)
            self._come(message)

        def acknowledged() -> None:
            self._turns.unacknowledged[channel] -= 1
            self._deal()

        def in_socket() -> None:
            message.untaken -= 1
            if not message.untaken and message.left_bytes <= 0:
                message.taken.happen()

        taken = Event()
        message.coming += 1
        message.untaken += 1
        taken.and_then(in_socket)
        self.there[channel].send(FRAME.size + size_bytes, taken, _nothing, come)

    def _come(self, message: _Message) -> None:
        """A segment of it, or word of its end."""
        message.coming -= 1
        if self.stripes.mode == "spray":
            if message.there:
                message.come()
            return
        while self._order and self._order[0].there:
            self._order.popleft().come()


def _nothing() -> None:
    """Nobody asks when a part has left."""
