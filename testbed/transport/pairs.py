"""All channels with one peer: deals out segments of messages, puts together what comes; rules are in `channels`."""

from __future__ import annotations

from collections import deque

from testbed.transport.base import PeerCounters, Request, TransportError
from testbed.transport.channels import FAST, FRAME, LAST, Channel, Incoming, Outgoing, StripeSettings
from testbed.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.transport.onesided import Exposed, is_one_sided, is_put

SEQUENCE_MASK = (1 << 24) - 1
_MESSAGE_MASK = (1 << 32) - 1
# a message may be so much ahead of the oldest that has not begun to come: sanity, not flow control
_MOST_AHEAD = 1 << 20


class Pair:
    """All channels with one peer, for one class of traffic. Sends and receives are accepted at any time."""

    def __init__(
        self,
        rank: int,
        peer: int,
        settings: StripeSettings,
        max_staged_bytes: int,
        counters: PeerCounters,
        exposed: Exposed,
    ) -> None:
        self.rank = rank
        self.peer = peer
        self.settings = settings
        self.counters = counters
        self.exposed = exposed
        self.lost: TransportError | None = None
        self.channels: dict[int, Channel] = {}
        self._max_staged_bytes = max_staged_bytes
        self._mailbox = Mailbox()
        # outgoing
        self._next_message = 0
        self._next_sequence = 0
        self._next_channel = 0
        self._waiting: deque[Outgoing] = deque()  # not cut up entirely
        self._unsent: dict[int, Outgoing] = {}  # all that the kernel does not have entirely
        # incoming
        self._messages: dict[int, Incoming] = {}  # begun and not ended, or not matched yet
        self._next_match = 0  # the oldest message that is not matched
        self._expected = 0  # the lowest sequence number that has not come
        self._early: set[int] = set()  # higher ones that have
        self._notices: deque[tuple[int, Incoming]] = deque()
        self._one_sided: deque[Incoming] = deque()  # puts and signals, in the order in which they were sent

    @property
    def connected(self) -> bool:
        """Whether every channel has a connection, or had one."""
        channels = self.channels.values()
        count = sum(channel.sock is not None or channel.lost is not None for channel in channels)
        return count == self.settings.connections

    @property
    def may_part(self) -> bool:
        """Whether all channels can say goodbye now: nothing is left to be cut up, and a pair in use has all of them."""
        begun = any(channel.sock is not None for channel in self.channels.values())
        return self.lost is not None or (not self._waiting and (self.connected or not begun))

    # ---- what the rank asks for

    def send(self, request: Request) -> None:
        """Send now as far as channels take it, the rest when they can."""
        if self.lost is not None:
            request.fail(self.lost)
            return
        out = Outgoing(request, self._next_message)
        self._next_message = (self._next_message + 1) & _MESSAGE_MASK
        self._unsent[out.number] = out
        if out.left <= self.settings.fast_bytes:
            self.channels[0].segment(out, FAST | LAST, 0, 0, out.left)
        else:
            self._waiting.append(out)
            self.pump()

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request for it."""
        staged = self._mailbox.take_staged(request.tag)
        if staged is None:
            if self.lost is not None:
                request.fail(self.lost)
                return
            self._mailbox.post(request)
        else:
            assert isinstance(staged, Incoming)
            self._give(staged, request)
        self._go_on()

    def _go_on(self, but: Channel | None = None) -> None:
        """Channels that found no room may find some now."""
        for channel in list(self.channels.values()):
            if channel is not but:
                channel.go_on()

    def pump(self) -> None:
        """Deal out what waits, as far as channels have room."""
        settings = self.settings
        waiting = self._waiting
        while waiting and self.lost is None:
            channel = self._channel_with_room()
            if channel is None:
                return
            out = waiting[0]
            total = len(out.request.view)
            start, end = out.cut, min(out.cut + settings.segment_bytes, total)
            out.cut = end
            out.segments += 1
            sequence = 0
            if settings.mode == "dqplb":
                sequence = self._next_sequence
                self._next_sequence = (sequence + 1) & SEQUENCE_MASK
            if end == total:
                waiting.popleft()
            channel.outstanding += 1
            channel.segment(out, LAST if end == total else 0, sequence, start, end)
            if end == total and settings.mode == "spray":
                self.channels[0].notify(out)

    def _channel_with_room(self) -> Channel | None:
        """The next in turn that is connected and has not too much under way."""
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

    # ---- what channels tell

    def on_sent(self, out: Outgoing, size_bytes: int) -> None:
        """The kernel has another part of a message."""
        out.left -= size_bytes
        self.counters.header_bytes_sent += FRAME.size
        if out.left == 0:
            del self._unsent[out.number]
            self.counters.messages_sent += 1
            self.counters.bytes_sent += len(out.request.view)
            out.request.complete()

    def incoming(self, channel: Channel, number: int, tag: int, total: int, fast: bool) -> Incoming | None:
        """The message of this number, begun if need be; None when it has to wait, or the peer breaks the rules."""
        into = self._messages.get(number)
        if into is not None:
            if (into.tag, into.total) != (tag, total):
                self.fail(f"it changed its mind on message {number}")
                return None
            return into
        ahead = (number - self._next_match) & _MESSAGE_MASK
        if ahead >= _MOST_AHEAD:
            self.fail(f"it sent message {number} when {self._next_match} was next")
            return None
        put = self.exposed.place(self.peer, tag, total) if is_put(tag) else None
        if isinstance(put, str):
            self.fail(put)
            return None
        posted = not is_one_sided(tag) and tag in self._mailbox.posted  # signals may have to wait for puts
        matched = put is not None or (ahead == 0 and posted)
        # small ones may come before large ones that were sent first: those behind must not wait for them
        most = self._max_staged_bytes * (2 if fast else 1)
        if not matched and not self._mailbox.has_room(total, most):
            return None
        into = self._messages[number] = Incoming(number, tag, total, staged=not matched)
        if put is not None:
            into.request, into.view = put, put.view
        if into.staged:
            self._mailbox.reserve(total)
        if ahead == 0:
            self._match()
            self._go_on(but=channel)  # what could not be matched yet perhaps can now
        return None if self.lost is not None else into

    def _match(self) -> None:
        """Find receives for messages, in the order in which they were sent."""
        while (into := self._messages.get(self._next_match)) is not None and self.lost is None:
            self._next_match = (self._next_match + 1) & _MESSAGE_MASK
            if into.ended:
                del self._messages[into.number]
            if is_one_sided(into.tag):
                self._one_sided.append(into)
                self._tell_one_sided()
            else:
                self._match_receive(into)

    def _match_receive(self, into: Incoming) -> None:
        request = self._mailbox.take_posted(into.tag)
        if request is None:
            self._mailbox.keep(into.tag, into)
            return
        if into.staged:
            self._mailbox.release(into.total)
        self._give(into, request)

    def _tell_one_sided(self) -> None:
        """Puts are over, and signals found, in their order, when they have come and all before them have."""
        waiting = self._one_sided
        while waiting and waiting[0].ended:
            into = waiting.popleft()
            if into.request is not None:
                into.request.complete()
            else:
                self._match_receive(into)

    def _give(self, into: Incoming, request: Request) -> None:
        """A message, come entirely, in part or not at all yet, goes to this receive."""
        if len(request.view) != into.total:
            request.fail(wrong_length(self.rank, self.peer, request.tag, into.total, len(request.view)))
            if not into.staged:  # there is no room for it: it goes nowhere
                if into.total > self._max_staged_bytes:
                    assert request.error is not None
                    self.fail(request.error)
                    return
                into.view = Staged(into.total).view
            return
        if into.staged:
            for offset, length in into.segments if into.total else ():
                request.view[offset : offset + length] = into.view[offset : offset + length]
                self.counters.bytes_copied += length
            for channel in self.channels.values():
                self.counters.bytes_copied += channel.repoint(into, request.view)
        into.staged = False
        into.view = request.view
        into.request = request
        if into.ended:
            request.complete()

    def on_segment(
        self, channel: Channel, into: Incoming, offset: int, length: int, flags: int, sequence: int
    ) -> None:
        """Another part of a message is there."""
        into.received += length
        into.segments.append((offset, length))
        self.counters.header_bytes_received += FRAME.size
        if flags & FAST or self.settings.mode == "spray":
            if flags & FAST:
                into.announced = 1
            self.on_progress(into)
            return
        self._note(channel, sequence)
        if flags & LAST:
            self._notices.append((sequence, into))
        self._tell_notices()

    def _note(self, channel: Channel, sequence: int) -> None:
        """A sequence number has come: those without a gap before them are done with."""
        if (sequence - self._expected) & SEQUENCE_MASK > SEQUENCE_MASK // 2 or sequence in self._early:
            channel.fail(f"it sent segment {sequence} twice")
            return
        self._early.add(sequence)
        while self._expected in self._early:
            self._early.remove(self._expected)
            self._expected = (self._expected + 1) & SEQUENCE_MASK

    def _tell_notices(self) -> None:
        """Messages whose last segment, and all before, have come, are whole."""
        if not self._notices:
            return
        left: deque[tuple[int, Incoming]] = deque()
        for last, into in self._notices:
            if (self._expected - last - 1) & SEQUENCE_MASK <= SEQUENCE_MASK // 2:
                into.announced = len(into.segments)
                self.on_progress(into)
            else:
                left.append((last, into))
        self._notices = left

    def on_progress(self, into: Incoming) -> None:
        """Whether that message is whole."""
        if into.announced is None or into.received < into.total or into.announced > len(into.segments):
            return
        if into.ended:
            return
        into.ended = True
        self.counters.messages_received += 1
        self.counters.bytes_received += into.total
        if (
            into.number - self._next_match
        ) & _MESSAGE_MASK >= _MOST_AHEAD:  # matched, or else to be matched still
            self._messages.pop(into.number, None)  # none are left where the pair has failed meanwhile
        if is_one_sided(into.tag):
            self._tell_one_sided()
        elif into.request is not None:
            into.request.complete()

    def on_channel_lost(self, channel: Channel, error: TransportError) -> None:
        """One channel is gone: with a goodbye the others finish first, else all is over."""
        if not channel.left_well or all(other.lost is not None for other in self.channels.values()):
            self.fail(error)

    def fail(self, reason: TransportError | str) -> None:
        """The peer is lost: let all channels go, fail all that waits. Whole messages can still be received."""
        if self.lost is not None:
            return
        channels = list(self.channels.values())
        if isinstance(reason, str):
            # the channel words it, and comes back here with the error
            alive = next((channel for channel in channels if channel.lost is None), None)
            if alive is not None:
                alive.left_well = False
                alive.fail(reason)
                return
            reason = TransportError(reason)
        self.lost = reason
        for channel in channels:
            channel.fail(reason)
        for into in self._messages.values():
            if not into.ended:
                if into.request is not None:
                    into.request.fail(reason)
                else:
                    self._mailbox.discard(into)
        self._messages.clear()
        self._one_sided.clear()
        self._mailbox.fail(reason)
        self._waiting.clear()
        unsent, self._unsent = self._unsent, {}
        for out in unsent.values():
            out.request.fail(reason)
