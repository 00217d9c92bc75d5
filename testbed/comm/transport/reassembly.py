"""Messages that come in parts, in any order: where each part goes, which receive a message is for, when it is whole.

Messages of a pair are numbered in the order in which they were sent, and find their receives in that order.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from testbed.comm.transport.base import PeerCounters, Request, TransportError
from testbed.comm.transport.mailbox import Mailbox, Staged, wrong_length
from testbed.comm.transport.onesided import ExposedWindows, is_one_sided, is_put

MESSAGE_MASK = (1 << 32) - 1
# a message may be so much ahead of the oldest that has not begun to come: sanity, not flow control
MAX_AHEAD = 1 << 20


class IncomingMessage(Staged):
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


class Reassembler:
    """What comes from one peer, of one class of traffic."""

    def __init__(
        self, rank: int, peer: int, max_staged_bytes: int, counters: PeerCounters, exposed: ExposedWindows
    ) -> None:
        self.rank = rank
        self.peer = peer
        self.counters = counters
        self.exposed = exposed
        self.lost: TransportError | None = None
        self._max_staged_bytes = max_staged_bytes
        self._mailbox = Mailbox()
        self._messages: dict[int, IncomingMessage] = {}  # begun and not ended, or not matched yet
        self._next_match = 0  # the oldest message that is not matched
        self._one_sided: deque[IncomingMessage] = (
            deque()
        )  # puts and signals, in the order in which they were sent

    # ---- for those who derive

    def fail(self, reason: TransportError | str) -> None:
        """The peer is lost."""
        raise NotImplementedError

    def _go_on(self) -> None:
        """What found no room may find some now."""

    def _repoint(self, into: IncomingMessage, view: memoryview) -> int:
        """What is coming in for this message goes on in other memory; the bytes that had to be copied."""
        return 0

    # ---- the rank's side

    def receive(self, request: Request) -> None:
        """Take the oldest message of the request's tag, or post the request for it."""
        staged = self._mailbox.take_staged(request.tag)
        if staged is None:
            if self.lost is not None:
                request.fail(self.lost)
                return
            self._mailbox.post(request)
        else:
            assert isinstance(staged, IncomingMessage)
            self._give(staged, request)
        self._go_on()

    # ---- the network's side

    def begin(self, number: int, tag: int, total: int, slack: int = 1) -> IncomingMessage | None:
        """The message of this number, begun if need be; None when it has to wait, or the peer breaks the rules.

        slack: how many times the room for messages without a receive counts.
        """
        into = self._messages.get(number)
        if into is not None:
            if (into.tag, into.total) != (tag, total):
                self.fail(f"it changed its mind on message {number}")
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
            self._go_on()  # what could not be matched yet perhaps can now
        return None if self.lost is not None else into

    def end(self, into: IncomingMessage) -> None:
        """All of a message is there."""
        if into.ended:
            return
        into.ended = True
        self.counters.messages_received += 1
        self.counters.bytes_received += into.total
        # matched, or else to be matched still
        if (into.number - self._next_match) & MESSAGE_MASK >= MAX_AHEAD:
            self._messages.pop(into.number, None)  # none are left where the pair has failed meanwhile
        if is_one_sided(into.tag):
            self._tell_one_sided()
        elif into.request is not None:
            into.request.complete()

    def _match(self) -> None:
        """Find receives for messages, in the order in which they were sent."""
        while (into := self._messages.get(self._next_match)) is not None and self.lost is None:
            self._next_match = (self._next_match + 1) & MESSAGE_MASK
            if into.ended:
                del self._messages[into.number]
            if is_one_sided(into.tag):
                self._one_sided.append(into)
                self._tell_one_sided()
            else:
                self._match_receive(into)

    def _match_receive(self, into: IncomingMessage) -> None:
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

    def _give(self, into: IncomingMessage, request: Request) -> None:
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
            self.counters.bytes_copied += self._repoint(into, request.view)
        into.staged = False
        into.view = request.view
        into.request = request
        if into.ended:
            request.complete()

    def _fail_incoming(self, reason: TransportError) -> None:
        """The peer is lost: what is not whole fails. Whole messages can still be received."""
        for into in self._messages.values():
            if not into.ended:
                if into.request is not None:
                    into.request.fail(reason)
                else:
                    self._mailbox.discard(into)
        self._messages.clear()
        self._one_sided.clear()
        self._mailbox.fail(reason)


SEQUENCES = 1 << 24  # after which numbers begin again

Message = TypeVar("Message")


class SegmentOrder(Generic[Message]):
    """Of one pair, one direction. expected: the lowest number that has not come."""

    def __init__(self) -> None:
        self.expected = 0
        self._early: set[int] = set()  # higher ones that have come
        # messages that are not whole, by their last segments
        self._notices: deque[tuple[int, Message]] = deque()

    def came(self, sequence: int) -> bool:
        """A segment has come; False for one that had."""
        if self._passed(sequence) or sequence in self._early:
            return False
        self._early.add(sequence)
        while self.expected in self._early:
            self._early.remove(self.expected)
            self.expected = (self.expected + 1) % SEQUENCES
        return True

    def ends(self, sequence: int, message: Message) -> None:
        """A message's last segment has this number."""
        self._notices.append((sequence, message))

    def whole(self) -> list[Message]:
        """Messages whose last segment, and all before, have come; each is told once."""
        found = [message for last, message in self._notices if self._passed(last)]
        if found:
            self._notices = deque(notice for notice in self._notices if not self._passed(notice[0]))
        return found

    def _passed(self, sequence: int) -> bool:
        """Whether all up to it have come."""
        return (self.expected - sequence - 1) % SEQUENCES < SEQUENCES // 2
