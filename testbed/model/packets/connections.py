"""A job's connections packet by packet, with the same to be asked of as `model.connections.Connections`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from testbed.model.keeping import NOTHING_KEPT, Agenda, Before, Kept
from testbed.model.packets.line import Line
from testbed.model.packets.sender import Sender
from testbed.model.packets.stripes import StripedPair
from testbed.model.waiting import Event
from testbed.paths.network import ANY, Ends, Network
from testbed.paths.packet_paths import PacketHop
from testbed.transport.channels import StripeSettings

Action = Callable[[], None]


class PacketConnections:
    """From their first packet on; they stay what they are from one step to the next. draw: of what links lose."""

    def __init__(self, agenda: Agenda, network: Network, draw: Random | None) -> None:
        self.agenda, self._network, self._draw = agenda, network, draw
        self._own = draw or Random(0)
        self.lines: dict[str, Line] = {}
        self.senders: dict[tuple[Ends, int, int], Sender] = {}
        self._pairs: dict[tuple[Ends, int], StripedPair] = {}

    @property
    def kept(self) -> Kept:
        """They stay what they are."""
        return NOTHING_KEPT._replace(packets=self)

    def shift(self, seconds: float) -> None:
        """Whoever goes on shifts them by all that went by."""

    def open(self, ends: Ends, before: Before) -> None:
        """Begin to send what was sent before, each message when the one before it is there."""
        left = before.messages

        def go() -> None:
            nonlocal left
            if left:
                left -= 1
                self.send(ends, 0, before.message_bytes, Event(), lambda: None, go)

        if ends[0] != ends[1] and (
            (ends, 0) in self._network.packets or (ends, ANY) in self._network.packets
        ):
            go()

    def go_on(self, agenda: Agenda) -> None:
        """By another's time, from its beginning."""
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
        """A message. taken: happens when sockets have it; left, come: called when it was sent, and when it is there."""
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
            there, back = self._through(path.hops), self._through(path.back)
            self.senders[key] = Sender(
                self.agenda, path, there, back, self._network.send_buffer_bytes, self._own
            )
        return self.senders[key]

    def _through(self, hops: Sequence[PacketHop]) -> list[Line]:
        for hop in hops:
            if hop.name not in self.lines:
                self.lines[hop.name] = Line(hop, self._draw)
        return [self.lines[hop.name] for hop in hops]

    def _pair(self, ends: Ends, dscp: int, stripes: StripeSettings) -> StripedPair:
        if (ends, dscp) not in self._pairs:
            there, back = (
                [self._sender(way, dscp, channel) for channel in range(stripes.connections)]
                for way in (ends, ends[::-1])
            )
            self._pairs[ends, dscp] = StripedPair(stripes, there, back)
        return self._pairs[ends, dscp]
