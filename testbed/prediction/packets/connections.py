"""A job's connections packet by packet, single or striped, with the interface of `prediction.connections.Connections`.

Striped messages are cut into segments that go round-robin over a pair's connections, as `transport.pairs` does it. The
receiver acknowledges a segment with a frame on the same connection, which makes room for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from testbed.clock import STEP_ALIGNMENT_S
from testbed.comm.transport.channels import FRAME, StripeSettings
from testbed.net.paths.hops import PacketHop
from testbed.net.paths.network import ANY, Ends, Network
from testbed.prediction.channels import NO_STATE, ConnectionState, Warmup
from testbed.prediction.events import Event, EventQueue
from testbed.prediction.packets.links import ClassfulLinkQueue, Entrance, LinkQueue, Place
from testbed.prediction.packets.sender import Sender
from testbed.prediction.striping import RoundRobin

# Maximum random extra delay of a link, seeded by its name. Without it identical buildings would lose the same packets
# at the same time, since only the order of simultaneous events would differ.
APART_S = 1e-6

Action = Callable[[], None]


class PacketConnections:
    """All connections of a job, kept from one step to the next. draw: random source of losses on links."""

    def __init__(self, agenda: EventQueue, network: Network, draw: Random | None) -> None:
        self.agenda, self._network, self._draw = agenda, network, draw
        self._own = draw or Random(network.seed)
        self.lines: dict[str, LinkQueue | ClassfulLinkQueue] = {}
        self.senders: dict[tuple[Ends, int, int], Sender] = {}
        self._pairs: dict[tuple[Ends, int], StripedPair] = {}
        self._heard_word: tuple[Ends, int, int] | None = None  # its receiver has not replied yet

    @property
    def overflowed(self) -> bool:
        """Whether any queue has overflowed, so that steps differ."""
        return any(line.dropped for line in self.lines.values())

    @property
    def kept(self) -> ConnectionState:
        """The connections themselves."""
        return NO_STATE._replace(packets=self)

    def shift(self, seconds: float) -> None:
        """Do nothing: `go_on` shifts all times."""

    def open(self, ranks: int, before: Warmup) -> None:
        """Start a ring round on the next beat but one; ranks have agreed on it by a message round the ring."""

        def go(rank: int, left: int) -> None:
            ends = rank, (rank + 1) % ranks
            come = partial(go, ends[1], left - 1)
            if left and self._is_known(ends):
                self.send(ends, 0, before.message_bytes / before.pieces, Event(), lambda: None, come)
            elif left:
                come()  # this direction is not used later on

        self._heard_word = (ranks - 1, 0), 0, 0
        begins_s = (self.agenda.now_s // STEP_ALIGNMENT_S + 2) * STEP_ALIGNMENT_S
        for rank in range(ranks):
            for _ in range(before.pieces):
                self.agenda.at(begins_s, partial(go, rank, before.messages))

    def _is_known(self, ends: Ends) -> bool:
        return (ends, 0) in self._network.packets or (ends, ANY) in self._network.packets

    def go_on(self, agenda: EventQueue) -> None:
        """Continue on another event queue, from its start."""
        seconds = self.agenda.now_s
        if agenda is self.agenda:
            return
        self.agenda = agenda
        for line in self.lines.values():
            line.shift(seconds)
        for sender in self.senders.values():
            sender.go_on(agenda, seconds)

    def send(
        self, ends: Ends, dscp: int, size_bytes: float, taken: Event, left: Action, come: Action
    ) -> None:
        """Send a message.

        taken: happens when the sockets have it. left: called when it was sent. come: called when it has arrived.
        """
        network = self._network
        stripes = network.packet_paths(ends, dscp)[0].stripes
        if stripes is not None:
            self._pair(ends, dscp, stripes).send(size_bytes, taken, come)
            taken.and_then(left)
            return
        self._sender(ends, dscp).send(network.whole_bytes(ends, size_bytes), taken, left, come)

    def _sender(self, ends: Ends, dscp: int, channel: int = 0) -> Sender:
        key = ends, dscp, channel
        if key not in self.senders:
            path = self._network.packet_paths(ends, dscp)[channel]
            there, back = (self._through(hops, path.frame_bytes) for hops in (path.hops, path.back))
            self.senders[key] = Sender(
                self.agenda,
                path,
                there,
                back,
                self._network.send_buffer_bytes,
                self._own,
                dials=ends[0] > ends[1] and key != self._heard_word,
            )
            if (other := self.senders.get((ends[::-1], dscp, channel))) is not None:
                self.senders[key].join(other)
        return self.senders[key]

    def _through(self, hops: Sequence[PacketHop], frame_bytes: int) -> list[Entrance]:
        found: list[Entrance] = []
        for hop in hops:
            line = self.lines.get(hop.name)
            if line is None:
                later_s = APART_S * Random(hop.name).random()
                own = hop._replace(delay_s=hop.delay_s + later_s)
                line = (
                    ClassfulLinkQueue(own, self._draw, frame_bytes)
                    if hop.classes
                    else LinkQueue(own, self._draw)
                )
                self.lines[hop.name] = line
            found.append(line if isinstance(line, LinkQueue) else Place(line, hop.number))
        return found

    def _pair(self, ends: Ends, dscp: int, stripes: StripeSettings) -> StripedPair:
        if (ends, dscp) not in self._pairs:
            there, back = (
                [self._sender(way, dscp, channel) for channel in range(stripes.connections)]
                for way in (ends, ends[::-1])
            )
            self._pairs[ends, dscp] = StripedPair(stripes, there, back)
        return self._pairs[ends, dscp]


Callback = Callable[[], None]


@dataclass(eq=False)
class _Message:
    """A striped message: bytes not cut yet, segments that sockets have not taken, segments that have not arrived."""

    left_bytes: float
    taken: Event
    come: Callback
    untaken: int = 0
    coming: int = 0

    @property
    def there(self) -> bool:
        return self.left_bytes <= 0 and not self.coming


@dataclass(eq=False)
class StripedPair:
    """Striping from one rank to another, per traffic class. there, back: senders of both directions, by channel."""

    stripes: StripeSettings
    there: Sequence[Sender]
    back: Sequence[Sender]
    _turns: RoundRobin = field(init=False)
    _waiting: deque[_Message] = field(default_factory=deque)
    _order: deque[_Message] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._turns = RoundRobin(len(self.there), self.stripes.outstanding)

    def send(self, size_bytes: float, taken: Event, come: Callback) -> None:
        """Send a message.

        taken: happens when the sockets have all of it. come: called when it and all messages before it have arrived.
        """
        if size_bytes <= self.stripes.fast_bytes:
            self.there[0].send(FRAME.size + size_bytes, taken, _nothing, come)
            return
        message = _Message(size_bytes, taken, come)
        self._waiting.append(message)
        if self.stripes.mode == "dqplb":
            self._order.append(message)
        self._deal()

    def _deal(self) -> None:
        """Send segments as far as there is room."""
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
        """Count an arrived segment or end marker."""
        message.coming -= 1
        if self.stripes.mode == "spray":
            if message.there:
                message.come()
            return
        while self._order and self._order[0].there:
            self._order.popleft().come()


def _nothing() -> None:
    """Ignore that a part has left."""
