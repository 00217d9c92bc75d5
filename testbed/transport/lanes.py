"""One message over several connections: cut into segments, dealt out to lanes that have room, put together again.

After NCCLX's dynamic queue-pair load balancing (DQPLB; arXiv:2510.20171, and the public code `CtranIbVc`): segments go
round the lanes, one with too many of them unacknowledged is passed over, sequence numbers let the receiver put them in
order, the last segment of a message notifies, and small messages take a fast path over lane 0. Here a lane is a TCP
connection, its completions are acknowledgements of the receiver's, and data go to where the receive was posted.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from testbed.transport.base import MOST_REASON_BYTES, PeerCounters, Request, TransportError, aborted_words
from testbed.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.transport.stream import NOTHING, Stream

_FRAME = struct.Struct("<BBHIIIQQQ")
_SEGMENT, _ACK, _NOTIFY, _GOODBYE = 1, 2, 3, 4
_LAST, _FAST = 1, 2
SEQUENCE_MASK = (1 << 24) - 1
_MESSAGE_MASK = (1 << 32) - 1
# a message may be so much ahead of the oldest that has not begun to come: sanity, not flow control
_MOST_AHEAD = 1 << 20

LEAST_SEGMENT_BYTES = 256

MODES = ("dqplb", "spray")


@dataclass(frozen=True)
class StripeSettings:
    """How messages to a peer are cut and dealt out; both ends of a pair have the same.

    connections: lanes. segment_bytes: of a segment at most. outstanding: segments of a lane that are not acknowledged.
    mode: "dqplb" numbers segments through, and messages end in their order; in "spray" they carry no number, and each
    message's end is announced apart, on lane 0. fast_bytes: messages up to this size go on lane 0 at once, whole,
    uncounted. The defaults are those of NCCLX's public code within a zone, but for lanes (16 there), which here cost
    connections, and for the fast path's bound.
    """

    connections: int = 4
    segment_bytes: int = 512 * 1024
    outstanding: int = 128
    mode: Literal["dqplb", "spray"] = "dqplb"
    fast_bytes: int = 32 * 1024

    def __post_init__(self) -> None:
        bounds = {
            "connections": (1, 255),
            "segment_bytes": (LEAST_SEGMENT_BYTES, 1 << 30),
            "outstanding": (1, 1 << 16),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name}: got {value}, expected {least} to {most}")
        if self.mode not in MODES:
            raise ValueError(f"mode: got {self.mode!r}, expected {' or '.join(MODES)}")


class _Frame(NamedTuple):
    """A header. segments: acknowledged. offset: in the message; of a notice, how many segments there were."""

    kind: int
    flags: int
    segments: int
    sequence: int
    message: int
    length: int
    tag: int
    offset: int
    total: int


class _Outgoing:
    """A message that is being cut: how much is cut off, how much the kernel does not have yet."""

    __slots__ = ("cut", "left", "number", "request", "segments")

    def __init__(self, request: Request, number: int) -> None:
        self.request = request
        self.number = number
        self.cut = 0
        self.segments = 0
        self.left = len(request.view)


class _Incoming(Staged):
    """A message of which something has come. request: where it goes, once that is known; view: where it goes now."""

    __slots__ = ("announced", "ended", "number", "received", "request", "segments", "staged", "tag", "total")

    def __init__(self, number: int, tag: int, total: int, staged: bool) -> None:
        super().__init__(total if staged else 0)
        self.number = number
        self.tag = tag
        self.total = total
        self.staged = staged  # in memory of its own
        self.request: Request | None = None
        self.received = 0
        self.segments: list[tuple[int, int]] = []
        self.announced: int | None = None  # of how many segments it is made, once that is known
        self.ended = False


class Lane(Stream):
    """One connection of a pair."""

    header_bytes = _FRAME.size

    def __init__(self, pair: Pair, number: int) -> None:
        super().__init__(pair.rank, pair.peer)
        self.pair = pair
        self.number = number
        self.outstanding = 0
        self.left_well = False
        # the segment coming in: its message, offset, length, flags and sequence number
        self.current: tuple[_Incoming, int, int, int, int] | None = None
        self._farewell: bytearray | None = None

    def attach(self, sock: Any, watch: Any) -> None:
        """See Stream; then there is a lane more."""
        super().attach(sock, watch)
        self.pair.pump()

    def segment(self, out: _Outgoing, flags: int, sequence: int, start: int, end: int) -> None:
        """Send a part of a message."""
        request = out.request
        total = len(request.view)
        header = _FRAME.pack(_SEGMENT, flags, 0, sequence, out.number, end - start, request.tag, start, total)
        self.queue(header, request.view[start:end], out)

    def notify(self, out: _Outgoing) -> None:
        """Say of how many segments a message was made."""
        request = out.request
        total = len(request.view)
        self.queue(
            _FRAME.pack(_NOTIFY, 0, 0, 0, out.number, 0, request.tag, out.segments, total), NOTHING, None
        )

    def repoint(self, into: _Incoming, view: memoryview) -> int:
        """What is coming in for this message goes on in other memory; the bytes that had to be copied."""
        if self.current is None or self.current[0] is not into or self._target is None:
            return 0
        _, offset, length, _, _ = self.current
        come = length - len(self._target)
        view[offset : offset + come] = into.view[offset : offset + come]
        self._target = view[offset + come : offset + length]
        return come

    # ---- what the stream tells

    def _sent(self, what: _Outgoing, size_bytes: int) -> None:
        self.pair.on_sent(what, size_bytes)

    def _goodbye(self, reason: bytes) -> bytes:
        return _FRAME.pack(_GOODBYE, 0, 0, 0, 0, len(reason), 0, 0, 0)

    def _begin(self, stage: bytearray, start: int) -> bool:
        frame = _Frame._make(_FRAME.unpack_from(stage, start))
        self.current = None
        self._farewell = None
        self._target = NOTHING
        if frame.kind == _SEGMENT:
            return self._begin_segment(frame)
        if frame.kind == _ACK:
            return self._acknowledged(frame.segments)
        if frame.kind == _NOTIFY:
            return self._announced(frame)
        if frame.kind == _GOODBYE and frame.length <= MOST_REASON_BYTES:
            return self._begin_farewell(frame.length)
        return self._refuse(f"it sent a frame of kind {frame.kind}, {frame.length} bytes")

    def _begin_segment(self, frame: _Frame) -> bool:
        offset, length, total = frame.offset, frame.length, frame.total
        if offset + length > total or (length == 0) != (total == 0):
            return self._refuse(f"it sent {length} bytes at {offset} of a message of {total}")
        into = self.pair.incoming(self, frame.message, frame.tag, total, fast=bool(frame.flags & _FAST))
        if into is None:
            self._wait()
            return False
        many = len(into.segments) > total // LEAST_SEGMENT_BYTES
        if into.received + length > total or into.ended or many:
            words = f"it sent more than the {total} bytes of message {frame.message}, or too many segments"
            return self._refuse(words)
        self.current = (into, offset, length, frame.flags, frame.sequence)
        self._target = into.view[offset : offset + length]
        return True

    def _acknowledged(self, count: int) -> bool:
        if not 0 < count <= self.outstanding:
            return self._refuse(f"it acknowledged {count} segments of {self.outstanding}")
        self.outstanding -= count
        self.pair.pump()
        return self.lost is None

    def _announced(self, frame: _Frame) -> bool:
        into = self.pair.incoming(self, frame.message, frame.tag, frame.total, fast=False)
        if into is None:
            self._wait()
            return False
        into.announced = frame.offset
        self.pair.on_progress(into)
        return self.lost is None

    def _begin_farewell(self, length: int) -> bool:
        if length:
            self._farewell = bytearray(length)
            self._target = memoryview(self._farewell)
            return True
        self.left_well = True
        self._end("it closed its end")
        return False

    def _wait(self) -> None:
        """There is no room: the rest stays in the kernel."""
        if self.lost is None:
            self._target = None
            self._pause()

    def _refuse(self, reason: str) -> bool:
        self.fail(reason)
        return False

    def _arrived(self) -> None:
        if self._farewell is not None:
            self._end(aborted_words(self._farewell))
            return
        if self.current is None:
            return
        into, offset, length, flags, sequence = self.current
        self.current = None
        if not flags & _FAST:
            self.queue(_FRAME.pack(_ACK, 0, 1, 0, 0, 0, 0, 0, 0), NOTHING, None, first=True)
        self.pair.on_segment(self, into, offset, length, flags, sequence)

    def _lost(self, error: TransportError) -> None:
        self.current = None
        self.pair.on_lane_lost(self, error)


class Pair:
    """All lanes with one peer, for one class of traffic. Sends and receives are accepted at any time."""

    def __init__(
        self, rank: int, peer: int, settings: StripeSettings, max_staged_bytes: int, counters: PeerCounters
    ) -> None:
        self.rank = rank
        self.peer = peer
        self.settings = settings
        self.counters = counters
        self.lost: TransportError | None = None
        self.lanes: dict[int, Lane] = {}
        self._max_staged_bytes = max_staged_bytes
        self._mailbox = Mailbox()
        # outgoing
        self._next_message = 0
        self._next_sequence = 0
        self._next_lane = 0
        self._waiting: deque[_Outgoing] = deque()  # not cut up entirely
        self._unsent: dict[int, _Outgoing] = {}  # all that the kernel does not have entirely
        # incoming
        self._messages: dict[int, _Incoming] = {}  # begun and not ended, or not matched yet
        self._next_match = 0  # the oldest message that is not matched
        self._expected = 0  # the lowest sequence number that has not come
        self._early: set[int] = set()  # higher ones that have
        self._notices: deque[tuple[int, _Incoming]] = deque()

    @property
    def connected(self) -> bool:
        """Whether every lane has a connection, or had one."""
        lanes = self.lanes.values()
        count = sum(lane.sock is not None or lane.lost is not None for lane in lanes)
        return count == self.settings.connections

    @property
    def may_part(self) -> bool:
        """Whether every lane can say goodbye now: nothing is left to be cut up, and a pair in use has all its lanes."""
        begun = any(lane.sock is not None for lane in self.lanes.values())
        return self.lost is not None or (not self._waiting and (self.connected or not begun))

    # ---- what the rank asks for

    def send(self, request: Request) -> None:
        """Send now as far as lanes take it, the rest when they can."""
        if self.lost is not None:
            request.fail(self.lost)
            return
        out = _Outgoing(request, self._next_message)
        self._next_message = (self._next_message + 1) & _MESSAGE_MASK
        self._unsent[out.number] = out
        if out.left <= self.settings.fast_bytes:
            self.lanes[0].segment(out, _FAST | _LAST, 0, 0, out.left)
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
            assert isinstance(staged, _Incoming)
            self._give(staged, request)
        self._go_on()

    def _go_on(self, but: Lane | None = None) -> None:
        """Lanes that found no room may find some now."""
        for lane in list(self.lanes.values()):
            if lane is not but:
                lane.go_on()

    def pump(self) -> None:
        """Deal out what waits, as far as lanes have room."""
        settings = self.settings
        waiting = self._waiting
        while waiting and self.lost is None:
            lane = self._lane_with_room()
            if lane is None:
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
            lane.outstanding += 1
            lane.segment(out, _LAST if end == total else 0, sequence, start, end)
            if end == total and settings.mode == "spray":
                self.lanes[0].notify(out)

    def _lane_with_room(self) -> Lane | None:
        """The next in turn that is connected and has not too much under way."""
        count = self.settings.connections
        for step in range(count):
            number = (self._next_lane + step) % count
            lane = self.lanes.get(number)
            if lane is not None and lane.sock is not None and lane.outstanding < self.settings.outstanding:
                self._next_lane = number + 1
                return lane
        return None

    # ---- what lanes tell

    def on_sent(self, out: _Outgoing, size_bytes: int) -> None:
        """The kernel has another part of a message."""
        out.left -= size_bytes
        self.counters.header_bytes_sent += _FRAME.size
        if out.left == 0:
            del self._unsent[out.number]
            self.counters.messages_sent += 1
            self.counters.bytes_sent += len(out.request.view)
            out.request.complete()

    def incoming(self, lane: Lane, number: int, tag: int, total: int, fast: bool) -> _Incoming | None:
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
        matched = ahead == 0 and tag in self._mailbox.posted
        # small ones may come before large ones that were sent first: those behind must not wait for them
        most = self._max_staged_bytes * (2 if fast else 1)
        if not matched and not self._mailbox.has_room(total, most):
            return None
        into = self._messages[number] = _Incoming(number, tag, total, staged=not matched)
        if into.staged:
            self._mailbox.reserve(total)
        if ahead == 0:
            self._match()
            self._go_on(but=lane)  # what could not be matched yet perhaps can now
        return None if self.lost is not None else into

    def _match(self) -> None:
        """Find receives for messages, in the order in which they were sent."""
        while (into := self._messages.get(self._next_match)) is not None and self.lost is None:
            self._next_match = (self._next_match + 1) & _MESSAGE_MASK
            if into.ended:
                del self._messages[into.number]
            request = self._mailbox.take_posted(into.tag)
            if request is None:
                self._mailbox.keep(into.tag, into)
                continue
            if into.staged:
                self._mailbox.release(into.total)
            self._give(into, request)

    def _give(self, into: _Incoming, request: Request) -> None:
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
            for lane in self.lanes.values():
                self.counters.bytes_copied += lane.repoint(into, request.view)
        into.staged = False
        into.view = request.view
        into.request = request
        if into.ended:
            request.complete()

    def on_segment(
        self, lane: Lane, into: _Incoming, offset: int, length: int, flags: int, sequence: int
    ) -> None:
        """Another part of a message is there."""
        into.received += length
        into.segments.append((offset, length))
        self.counters.header_bytes_received += _FRAME.size
        if flags & _FAST or self.settings.mode == "spray":
            if flags & _FAST:
                into.announced = 1
            self.on_progress(into)
            return
        self._note(lane, sequence)
        if flags & _LAST:
            self._notices.append((sequence, into))
        self._tell_notices()

    def _note(self, lane: Lane, sequence: int) -> None:
        """A sequence number has come: those without a gap before them are done with."""
        if (sequence - self._expected) & SEQUENCE_MASK > SEQUENCE_MASK // 2 or sequence in self._early:
            lane.fail(f"it sent segment {sequence} twice")
            return
        self._early.add(sequence)
        while self._expected in self._early:
            self._early.remove(self._expected)
            self._expected = (self._expected + 1) & SEQUENCE_MASK

    def _tell_notices(self) -> None:
        """Messages whose last segment, and all before, have come, are whole."""
        if not self._notices:
            return
        left: deque[tuple[int, _Incoming]] = deque()
        for last, into in self._notices:
            if (self._expected - last - 1) & SEQUENCE_MASK <= SEQUENCE_MASK // 2:
                into.announced = len(into.segments)
                self.on_progress(into)
            else:
                left.append((last, into))
        self._notices = left

    def on_progress(self, into: _Incoming) -> None:
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
            del self._messages[into.number]
        if into.request is not None:
            into.request.complete()

    def on_lane_lost(self, lane: Lane, error: TransportError) -> None:
        """One lane is gone: with a goodbye the others finish first, else all is over."""
        if not lane.left_well or all(other.lost is not None for other in self.lanes.values()):
            self.fail(error)

    def fail(self, reason: TransportError | str) -> None:
        """The peer is lost: let all lanes go, fail all that waits. Whole messages can still be received."""
        if self.lost is not None:
            return
        lanes = list(self.lanes.values())
        if isinstance(reason, str):
            # the lane words it, and comes back here with the error
            alive = next((lane for lane in lanes if lane.lost is None), None)
            if alive is not None:
                alive.left_well = False
                alive.fail(reason)
                return
            reason = TransportError(reason)
        self.lost = reason
        for lane in lanes:
            lane.fail(reason)
        for into in self._messages.values():
            if not into.ended:
                if into.request is not None:
                    into.request.fail(reason)
                else:
                    self._mailbox.discard(into)
        self._messages.clear()
        self._mailbox.fail(reason)
        self._waiting.clear()
        unsent, self._unsent = self._unsent, {}
        for out in unsent.values():
            out.request.fail(reason)
