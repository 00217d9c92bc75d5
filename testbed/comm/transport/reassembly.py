"""Reassembly of messages whose segments arrive in any order, and their matching with receives.

Messages of a pair are numbered in the order in which they were sent, and are matched with receives in that order.
`SegmentOrder` detects, from segment numbers, when everything up to the last segment of a message has arrived.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from testbed.comm.transport.base import Request, TransportError
from testbed.comm.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.comm.transport.onesided import PeerEnd, is_one_sided, is_put

MESSAGE_MASK = (1 << 32) - 1
# limit on how far a message is ahead of the oldest one that has not begun: a sanity check, not flow control
MAX_AHEAD = 1 << 20


class IncomingMessage(Staged):
    """A message that has arrived in part. `request`: its receive, once known; `view`: the buffer in use now."""

    __slots__ = ("announced", "ended", "number", "received", "request", "segments", "staged", "tag", "total")

    def __init__(self, number: int, tag: int, total: int, staged: bool) -> None:
        super().__init__(total if staged else 0)
        self.number = number
        self.tag = tag
        self.total = total
        self.staged = staged  # in a separate buffer
        self.request: Request | None = None
        self.received = 0
        self.segments: list[tuple[int, int]] = []
        self.announced: int | None = None  # its number of segments, once known
        self.ended = False


class Reassembler:
    """Incoming messages from one peer, of one class of traffic."""

    def __init__(self, end: PeerEnd) -> None:
        self.rank, self.peer, self.counters, self.exposed, self._max_staged_bytes = end
        self.lost: TransportError | None = None
        self._mailbox = Mailbox()
        self._messages: dict[int, IncomingMessage] = {}  # incomplete or not matched yet
        self._next_match = 0  # the oldest unmatched message
        self._one_sided: deque[IncomingMessage] = deque()  # puts and signals, in sending order

    # ---- for subclasses

    def fail(self, reason: TransportError | str) -> None:
        """Mark the peer as lost."""
        raise NotImplementedError

    def _resume_reading(self) -> None:
        """Retry reading, which had stopped for lack of room."""

    def _repoint(self, into: IncomingMessage, view: memoryview) -> int:
        """Redirect a message that is being received to other memory; return the bytes that had to be copied."""
        return 0

    # ---- called by the rank

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request."""
        staged = self._mailbox.take_staged(request.tag)
        if staged is None:
            if self.lost is not None:
                request.fail(self.lost)
                return
            self._mailbox.posted.put(request.tag, request)
        else:
            assert isinstance(staged, IncomingMessage)
            self._assign(staged, request)
        self._resume_reading()

    # ---- called by the network side

    def begin(self, number: int, tag: int, total: int, slack: int = 1) -> IncomingMessage | None:
        """Return the message of this number, creating it if needed; None if it has to wait or is invalid.

        Args:
            number: The message's number.
            tag: Its tag.
            total: Its length, in bytes.
            slack: A factor that raises the limit for messages without a receive.
        """
        into = self._messages.get(number)
        if into is not None:
            if (into.tag, into.total) != (tag, total):
                self.fail(f"it changed the tag or length of message {number}")
                return None
            return into
        ahead = (number - self._next_match) & MESSAGE_MASK
        if ahead >= MAX_AHEAD:
            self.fail(f"it sent message {number} when {self._next_match} was next")
            return None
        put = self.exposed.place(self.peer, tag, total) if is_put(tag) else None
        if isinstance(put, str):
            self.fail(put)
            return None
        posted = not is_one_sided(tag) and tag in self._mailbox.posted  # signals may have to wait for puts
        matched = put is not None or (ahead == 0 and posted)
        if not matched and not self._mailbox.has_room(total, self._max_staged_bytes * slack):
            return None
        into = self._messages[number] = IncomingMessage(number, tag, total, staged=not matched)
        if put is not None:
            into.request, into.view = put, put.view
        if into.staged:
            self._mailbox.reserve(total)
        if ahead == 0:
            self._match()
            self._resume_reading()  # later messages may match now
        return None if self.lost is not None else into

    def end(self, into: IncomingMessage) -> None:
        """Handle a message that has arrived completely."""
        if into.ended:
            return
        into.ended = True
        self.counters.messages_received += 1
        self.counters.bytes_received += into.total
        # keep it until it is matched
        if (into.number - self._next_match) & MESSAGE_MASK >= MAX_AHEAD:
            self._messages.pop(into.number, None)  # gone if the pair has failed meanwhile
        if is_one_sided(into.tag):
            self._complete_one_sided()
        elif into.request is not None:
            into.request.complete()

    def _match(self) -> None:
        """Match messages with receives, in the order in which they were sent."""
        while (into := self._messages.get(self._next_match)) is not None and self.lost is None:
            self._next_match = (self._next_match + 1) & MESSAGE_MASK
            if into.ended:
                del self._messages[into.number]
            if is_one_sided(into.tag):
                self._one_sided.append(into)
                self._complete_one_sided()
            else:
                self._match_receive(into)

    def _match_receive(self, into: IncomingMessage) -> None:
        request = self._mailbox.posted.take(into.tag)
        if request is None:
            self._mailbox.staged.put(into.tag, into)
            return
        if into.staged:
            self._mailbox.release(into.total)
        self._assign(into, request)

    def _complete_one_sided(self) -> None:
        """Complete puts and deliver signals in order, each once it and all earlier ones have arrived."""
        waiting = self._one_sided
        while waiting and waiting[0].ended:
            into = waiting.popleft()
            if into.request is not None:
                into.request.complete()
            else:
                self._match_receive(into)

    def _assign(self, into: IncomingMessage, request: Request) -> None:
        """Give a message to this receive, however much of it has arrived."""
        if len(request.view) != into.total:
            request.fail(wrong_length(self.rank, self.peer, request.tag, into.total, len(request.view)))
            if not into.staged:  # without a staging buffer, its further bytes are received and dropped
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
            self.counters.bytes_copied += self._repoint(into, request.view)
        into.staged = False
        into.view = request.view
        into.request = request
        if into.ended:
            request.complete()

    def _fail_incoming(self, reason: TransportError) -> None:
        """Fail incomplete messages of a lost peer. Whole messages can still be received."""
        for into in self._messages.values():
            if not into.ended:
                if into.request is not None:
                    into.request.fail(reason)
                else:
                    self._mailbox.discard(into)
        self._messages.clear()
        self._one_sided.clear()
        self._mailbox.fail(reason)


SEQUENCES = 1 << 24  # sequence numbers wrap around

Message = TypeVar("Message")


class SegmentOrder(Generic[Message]):
    """Order of the numbered segments of one pair, in one direction.

    `expected`: the lowest number that has not arrived.
    """

    def __init__(self) -> None:
        self.expected = 0
        self._early: set[int] = set()  # higher numbers that have arrived
        # incomplete messages with the number of their last segment
        self._open_messages: deque[tuple[int, Message]] = deque()

    def record(self, sequence: int) -> bool:
        """Record an arrived segment; return False if it is a duplicate."""
        if self._all_received(sequence) or sequence in self._early:
            return False
        self._early.add(sequence)
        while self.expected in self._early:
            self._early.remove(self.expected)
            self.expected = (self.expected + 1) % SEQUENCES
        return True

    def end_message(self, sequence: int, message: Message) -> None:
        """Record the number of a message's last segment."""
        self._open_messages.append((sequence, message))

    def pop_complete(self) -> list[Message]:
        """Return the messages whose last segment, and all segments before it, have arrived; each is returned once."""
        complete = [message for last, message in self._open_messages if self._all_received(last)]
        if complete:
            self._open_messages = deque(
                entry for entry in self._open_messages if not self._all_received(entry[0])
            )
        return complete

    def _all_received(self, sequence: int) -> bool:
        return (self.expected - sequence - 1) % SEQUENCES < SEQUENCES // 2
