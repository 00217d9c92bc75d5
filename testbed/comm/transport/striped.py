"""Large messages striped over several connections per peer: see `channels` for the frames.

A rank may also limit the total of unacknowledged segments of all pairs at one distance (`SharedWindow`). A window per
pair would be too small for the last active pair, which could have the links to itself, or too large for all pairs at
once. The shared window gives free segments to waiting pairs round-robin.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence

from testbed.comm.transport.base import (
    BEST_EFFORT,
    Request,
    TrafficClass,
    TransportError,
)
from testbed.comm.transport.channels import FAST, FRAME, LAST, Channel, OutgoingMessage, StripeSettings
from testbed.comm.transport.mesh import Mesh
from testbed.comm.transport.onesided import PeerEnd
from testbed.comm.transport.reassembly import (
    MESSAGE_MASK,
    SEQUENCES,
    IncomingMessage,
    Reassembler,
    SegmentOrder,
)
from testbed.comm.transport.sockets import MeshSettings
from testbed.comm.transport.wire import ConnectionKey


class StripedTransport(Mesh["StripedPair"]):
    """One rank's striped pairs; see Transport for the messages, Mesh for the other arguments and the errors.

    Args:
        stripes: Returns the striping of messages to a peer, by distance for example. Both sides of a pair must agree.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        settings: MeshSettings,
        stripes: Callable[[int], StripeSettings] | None = None,
        *,
        eager: bool = False,
        listener: socket.socket | None = None,
    ) -> None:
        self._windows: dict[int, SharedWindow] = {}
        self._stripes = stripes or (lambda peer: StripeSettings())
        super().__init__(rank, addresses, settings, eager=eager, listener=listener)

    def _make_stream(self, peer: int, key: ConnectionKey) -> Channel:
        settings = self._stripes(peer)
        if key.channels != settings.connections or key.channel >= key.channels:
            raise ValueError(
                f"channel: got {key.channel} of {key.channels}, expected one of {settings.connections}"
            )
        pairs = self._pairs.setdefault(key.traffic, {})
        if peer not in pairs:
            pairs[peer] = StripedPair(self._end(peer), settings, self._window_of(settings))
        pair = pairs[peer]
        channel = pair.channels[key.channel] = Channel(pair, key.channel)
        return channel

    def _window_of(self, settings: StripeSettings) -> SharedWindow | None:
        """Return the window that all pairs with the same settings object share."""
        if settings.together is None:
            return None
        return self._windows.setdefault(id(settings), SharedWindow(settings.together))

    def _keys(self, peer: int, traffic: TrafficClass = BEST_EFFORT) -> list[ConnectionKey]:
        count = self._stripes(peer).connections
        return [ConnectionKey(traffic, channel, count) for channel in range(count)]


class StripedPair(Reassembler):
    """All channels with one peer, for one class of traffic. Sends and receives are always accepted."""

    def __init__(self, end: PeerEnd, settings: StripeSettings, window: SharedWindow | None = None) -> None:
        super().__init__(end)
        self.settings = settings
        self._window = window  # shared with other pairs, besides the channels' own windows
        self.channels: dict[int, Channel] = {}
        self._begun = False  # whether striping has begun
        self._asking_channel: Channel | None = None  # the channel whose segment begins a message
        # outgoing
        self._next_message = 0
        self._next_sequence = 0
        self._next_channel = 0
        self._waiting: deque[OutgoingMessage] = deque()  # messages not completely cut into segments
        self._unsent: dict[int, OutgoingMessage] = {}  # messages that the kernel has not accepted completely
        # incoming
        self._sequences: SegmentOrder[IncomingMessage] = SegmentOrder()

    @property
    def is_connected(self) -> bool:
        """Whether every channel has a connection, or had one."""
        return self._begun or self.settings.connections == sum(
            channel.is_connected or channel.lost is not None for channel in self.channels.values()
        )

    @property
    def can_say_goodbye(self) -> bool:
        """Whether all channels can say goodbye: no message waits to be cut, and a pair in use has all its channels."""
        in_use = any(channel.sock is not None for channel in self.channels.values())
        return self.lost is not None or (not self._waiting and (self.is_connected or not in_use))

    # ---- called by the rank

    def send(self, request: Request) -> None:
        """Send as much as the channels accept now, and the rest later."""
        if self.lost is not None:
            request.fail(self.lost)
            return
        out = OutgoingMessage(request, self._next_message)
        self._next_message = (self._next_message + 1) & MESSAGE_MASK
        self._unsent[out.number] = out
        if out.left <= self.settings.fast_bytes:
            self.channels[0].segment(out, FAST | LAST, 0, 0, out.left)
        else:
            self._waiting.append(out)
            self.pump()

    def _resume_reading(self) -> None:
        for channel in list(self.channels.values()):
            if channel is not self._asking_channel:
                channel.resume_reading()

    def _repoint(self, into: IncomingMessage, view: memoryview) -> int:
        return sum(channel.repoint(into, view) for channel in self.channels.values())

    def pump(self, max_segments: int | None = None) -> None:
        """Spread waiting messages over channels with room.

        max_segments: the maximum in this pair's turn in a shared window.
        """
        if not self._begun:
            # every pair starts with the same channel, whichever connected first
            self._begun = self.is_connected
            if not self._begun:
                return
        settings, window = self.settings, self._window
        waiting = self._waiting
        while waiting and self.lost is None:
            if max_segments == 0:
                assert window is not None
                window.wait(self)
                return
            channel = self._channel_with_room()
            if channel is None or (
                window is not None and not window.take(self, in_turn=max_segments is not None)
            ):
                return
            max_segments = None if max_segments is None else max_segments - 1
            out = waiting[0]
            total = len(out.request.view)
            start, end = out.cut, min(out.cut + settings.segment_bytes, total)
            out.cut = end
            out.segments += 1
            sequence = 0
            if settings.mode == "dqplb":
                sequence = self._next_sequence
                self._next_sequence = (sequence + 1) % SEQUENCES
            if end == total:
                waiting.popleft()
            channel.outstanding += 1
            channel.segment(out, LAST if end == total else 0, sequence, start, end)
            if end == total and settings.mode == "spray":
                self.channels[0].notify(out)

    def _channel_with_room(self) -> Channel | None:
        """Return the next channel, round-robin, that is connected and has room in its window."""
        count = self.settings.connections
        for step in range(count):
            number = (self._next_channel + step) % count
            channel = self.channels.get(number)
            if (
                channel is not None
                and channel.sock is not None
                and channel.outstanding < self.settings.outstanding
            ):
                self._next_channel = number + 1
                return channel
        return None

    # ---- called by channels

    def on_acknowledged(self, count: int) -> None:
        """See ChannelOwner."""
        if self._window is not None:
            self._window.give(count)
        self.pump()

    def on_sent(self, out: OutgoingMessage, size_bytes: int) -> None:
        """See ChannelOwner."""
        out.left -= size_bytes
        self.counters.header_bytes_sent += FRAME.size
        if out.left == 0:
            del self._unsent[out.number]
            self.counters.messages_sent += 1
            self.counters.bytes_sent += len(out.request.view)
            out.request.complete()

    def incoming(
        self, channel: Channel, number: int, tag: int, total: int, fast: bool
    ) -> IncomingMessage | None:
        """See Reassembler.begin.

        Small messages may overtake large ones that were sent first, and must not wait for them.
        """
        previous, self._asking_channel = self._asking_channel, channel
        try:
            return self.begin(number, tag, total, slack=2 if fast else 1)
        finally:
            self._asking_channel = previous

    def on_segment(
        self, channel: Channel, into: IncomingMessage, offset: int, length: int, flags: int, sequence: int
    ) -> None:
        """See ChannelOwner."""
        into.received += length
        into.segments.append((offset, length))
        self.counters.header_bytes_received += FRAME.size
        if flags & FAST or self.settings.mode == "spray":
            if flags & FAST:
                into.announced = 1
            self.on_progress(into)
            return
        if not self._sequences.record(sequence):
            channel.fail(f"it sent segment {sequence} twice")
        if flags & LAST:
            self._sequences.end_message(sequence, into)
        for complete in self._sequences.pop_complete():
            complete.announced = len(complete.segments)
            self.on_progress(complete)

    def on_progress(self, into: IncomingMessage) -> None:
        """Finish the message if all its segments have arrived."""
        if into.announced is None or into.received < into.total or into.announced > len(into.segments):
            return
        self.end(into)

    def on_channel_lost(self, channel: Channel, error: TransportError) -> None:
        """Handle a lost channel: after a goodbye, the other channels finish first; otherwise the peer is lost."""
        if not channel.peer_said_goodbye or all(other.lost is not None for other in self.channels.values()):
            self.fail(error)

    def fail(self, reason: TransportError | str) -> None:
        """Mark the peer as lost: close all channels and fail all requests. Whole messages can still be received."""
        if self.lost is not None:
            return
        channels = list(self.channels.values())
        if isinstance(reason, str):
            # the channel makes the error and calls `fail` with it
            alive = next((channel for channel in channels if channel.lost is None), None)
            if alive is not None:
                alive.peer_said_goodbye = False
                alive.fail(reason)
                return
            reason = TransportError(reason)
        self.lost = reason
        for channel in channels:
            channel.fail(reason)
        if self._window is not None:
            self._window.give(sum(channel.outstanding for channel in channels))
        self._fail_incoming(reason)
        self._waiting.clear()
        unsent, self._unsent = self._unsent, {}
        for out in unsent.values():
            out.request.fail(reason)


class SharedWindow:
    """A limit on unacknowledged segments that several pairs share."""

    def __init__(self, limit: int) -> None:
        self.free = limit
        self._waiting: deque[StripedPair] = deque()

    def take(self, pair: StripedPair, *, in_turn: bool) -> bool:
        """Return whether the pair may send a segment now.

        Otherwise queue it. in_turn: this is its turn in the queue.
        """
        if not self.free or (self._waiting and not in_turn):
            self.wait(pair)
            return False
        self.free -= 1
        return True

    def wait(self, pair: StripedPair) -> None:
        """Queue the pair behind all others that wait."""
        if pair not in self._waiting:
            self._waiting.append(pair)

    def give(self, count: int) -> None:
        """Release `count` segments, which were acknowledged or are lost with their pair."""
        self.free += count
        while self.free and self._waiting:
            self._waiting.popleft().pump(1)
