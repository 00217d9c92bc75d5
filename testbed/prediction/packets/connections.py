"""A job's packet-level connections, single or striped, with the interface of `prediction.connections.Connections`.

Striped messages are cut into segments that are sent round-robin over a pair's connections, as in `transport.pairs`. The
receiver acknowledges a segment with a frame on the same connection, which makes room for the next segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from testbed.clock import STEP_ALIGNMENT_S
from testbed.comm.transport.channels import FRAME, StripeSettings
from testbed.net.paths.hops import PacketHop
from testbed.net.paths.network import ANY, Ends, Network
from testbed.prediction.channels import Warmup
from testbed.prediction.events import Event, EventQueue
from testbed.prediction.packets.links import ClassfulLinkQueue, Entrance, LinkQueue, Place
from testbed.prediction.packets.sender import Sender
from testbed.prediction.striping import Part, Striper

# Maximum random extra delay of a link, seeded by its name. Without this delay, identical buildings would lose the same
# packets at the same time, since only the order of simultaneous events would differ.
APART_S = 1e-6

Action = Callable[[], None]


class PacketConnections:
    """All connections of a job, kept from one step to the next; `draw` is the random source of losses on links."""

    def __init__(self, events: EventQueue, network: Network, draw: Random | None) -> None:
        self.events, self._network, self._draw = events, network, draw
        self._draw_bbr = draw or Random(network.seed)
        self.links: dict[str, LinkQueue | ClassfulLinkQueue] = {}
        self.senders: dict[tuple[Ends, int, int], Sender] = {}
        self._pairs: dict[tuple[Ends, int], Striper] = {}
        self._no_reply_yet: tuple[Ends, int, int] | None = None  # the message's receiver has not replied yet

    @property
    def overflowed(self) -> bool:
        """Whether any queue has overflowed, so that steps differ."""
        return any(link.dropped for link in self.links.values())

    def shift(self, seconds: float) -> None:
        """Do nothing, since `continue_on` shifts all times."""

    def open(self, ranks: int, before: Warmup) -> None:
        """Start a ring round on the second next beat, after ranks have agreed on it by a message around the ring."""

        def go(rank: int, remaining: int) -> None:
            ends = rank, (rank + 1) % ranks
            on_arrival = partial(go, ends[1], remaining - 1)
            if remaining and self._is_known(ends):
                self.send(ends, 0, before.message_bytes / before.pieces, Event(), lambda: None, on_arrival)
            elif remaining:
                on_arrival()  # this direction is not used later

        self._no_reply_yet = (ranks - 1, 0), 0, 0
        begins_s = (self.events.now_s // STEP_ALIGNMENT_S + 2) * STEP_ALIGNMENT_S
        for rank in range(ranks):
            for _ in range(before.pieces):
                self.events.call_at(begins_s, partial(go, rank, before.messages))

    def _is_known(self, ends: Ends) -> bool:
        return (ends, 0) in self._network.packets or (ends, ANY) in self._network.packets

    def continue_on(self, events: EventQueue) -> None:
        """Continue on another event queue, from its start."""
        seconds = self.events.now_s
        if events is self.events:
            return
        self.events = events
        for link in self.links.values():
            link.shift(seconds)
        for sender in self.senders.values():
            sender.continue_on(events, seconds)

    def send(
        self, ends: Ends, dscp: int, size_bytes: float, accepted: Event, on_sent: Action, on_arrival: Action
    ) -> None:
        """Send a message.

        `accepted` happens when the sockets have accepted the message. `on_sent` is called when it has been sent, and
        `on_arrival` when it arrives.
        """
        network = self._network
        stripes = network.packet_paths(ends, dscp)[0].stripes
        if stripes is not None:
            self._pair(ends, dscp, stripes).send(size_bytes, accepted, on_arrival)
            accepted.and_then(on_sent)
            return
        self._sender(ends, dscp).send(network.whole_bytes(ends, size_bytes), accepted, on_sent, on_arrival)

    def _sender(self, ends: Ends, dscp: int, channel: int = 0) -> Sender:
        key = ends, dscp, channel
        if key not in self.senders:
            path = self._network.packet_paths(ends, dscp)[channel]
            forward, backward = (self._through(hops, path.frame_bytes) for hops in (path.hops, path.back))
            self.senders[key] = Sender(
                self.events,
                path,
                forward,
                backward,
                self._network.send_buffer_bytes,
                self._draw_bbr,
                dials=ends[0] > ends[1] and key != self._no_reply_yet,
            )
            if (other := self.senders.get((ends[::-1], dscp, channel))) is not None:
                self.senders[key].join(other)
        return self.senders[key]

    def _through(self, hops: Sequence[PacketHop], frame_bytes: int) -> list[Entrance]:
        found: list[Entrance] = []
        for hop in hops:
            link = self.links.get(hop.name)
            if link is None:
                later_s = APART_S * Random(hop.name).random()
                own = hop._replace(delay_s=hop.delay_s + later_s)
                link = (
                    ClassfulLinkQueue(own, self._draw, frame_bytes)
                    if hop.classes
                    else LinkQueue(own, self._draw)
                )
                self.links[hop.name] = link
            found.append(link if isinstance(link, LinkQueue) else Place(link, hop.number))
        return found

    def _pair(self, ends: Ends, dscp: int, stripes: StripeSettings) -> Striper:
        if (ends, dscp) not in self._pairs:
            forward, backward = (
                [self._sender(way, dscp, channel) for channel in range(stripes.connections)]
                for way in (ends, ends[::-1])
            )
            self._pairs[ends, dscp] = striped_pair(stripes, forward, backward)
        return self._pairs[ends, dscp]


def striped_pair(stripes: StripeSettings, forward: Sequence[Sender], backward: Sequence[Sender]) -> Striper:
    """Return the striping from one rank to another, per class; `forward` and `backward` are senders by channel."""

    def send_part(
        channel: int, part: Part, turn: int | None, accepted: Event, on_arrival: Action, on_ack: Action | None
    ) -> None:
        def arrive() -> None:
            if on_ack is not None:
                backward[channel].send(FRAME.size, Event(), _ignore, on_ack)
            on_arrival()

        forward[channel].send(FRAME.size + part.size_bytes, accepted, _ignore, arrive)

    return Striper(stripes, len(forward), lambda: None, send_part, by_segment=True)


def _ignore() -> None:
    """Ignore the departure of a part."""
