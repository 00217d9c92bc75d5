"""Messages that come in by writes: receives that are announced, and when the segments of each have all come."""

from __future__ import annotations

from testbed.comm.transport.base import Request
from testbed.comm.transport.rdma.immediates import Immediate
from testbed.comm.transport.rdma.regions import Piece
from testbed.comm.transport.segment_order import Sequences


class Inbound:
    """A receive of a large message, a put, or a signal.

    number, slot: by which the peer knows it; 0 and -1 before it is announced. matched: whether it is known which of the
    peer's messages it is for. received: bytes that have come. ended: whether all have.
    """

    __slots__ = ("ended", "matched", "number", "piece", "received", "request", "slot")

    def __init__(self, request: Request, matched: bool = False, ended: bool = False) -> None:
        self.request = request
        self.matched = matched
        self.ended = ended
        self.number, self.slot = 0, -1
        self.piece: Piece | None = None
        self.received = 0

    def unknown_to_sender(self, announced: int) -> bool:
        """Whether a peer that had been told of so many receives did not know of this one, and it is nobody's yet."""
        return not self.matched and (self.number == 0 or self.number > announced)


class Segments:
    """Of all messages of a pair. numbered: a message is whole when its last segment, and all before that, have come."""

    def __init__(self, numbered: bool) -> None:
        self._numbered = numbered
        self._sequences: Sequences[Inbound] = Sequences()

    def add(self, into: Inbound, immediate: Immediate, size_bytes: int) -> list[Inbound]:
        """A segment is there; the messages that are whole now."""
        into.received += size_bytes
        if not self._numbered:
            return [into] if into.received >= len(into.request.view) else []
        self._sequences.came(immediate.sequence)
        if immediate.notify:
            self._sequences.ends(immediate.sequence, into)
        return self._sequences.whole()
