"""Matching of incoming messages with posted receives, by tag, for one peer."""

from __future__ import annotations

from collections import deque

import numpy as np

from testbed.comm.transport.base import Request, TransportError

_MAX_MESSAGES = 100_000


class Staged:
    """An unexpected message: its payload so far, in a buffer of its own."""

    __slots__ = ("view",)

    def __init__(self, length: int) -> None:
        # numpy does not touch the memory, so an announced length costs nothing until data arrives
        self.view = np.empty(length, dtype=np.uint8).data


class Mailbox:
    """Posted receives and unexpected messages, each in order per tag. A tag never has both."""

    __slots__ = ("posted", "staged", "staged_bytes", "staged_messages")

    def __init__(self) -> None:
        self.posted: dict[int, deque[Request]] = {}
        self.staged: dict[int, deque[Staged]] = {}
        self.staged_bytes = 0
        self.staged_messages = 0

    def post(self, request: Request) -> None:
        """Post a receive for which no message waits."""
        queue = self.posted.get(request.tag)
        if queue is None:
            self.posted[request.tag] = deque((request,))
        else:
            queue.append(request)

    def take_posted(self, tag: int) -> Request | None:
        """Remove and return the oldest receive posted for this tag, or None."""
        queue = self.posted.get(tag)
        if queue is None:
            return None
        request = queue.popleft()
        if not queue:
            del self.posted[tag]
        return request

    def has_room(self, length: int, max_bytes: int) -> bool:
        """Return whether a message of `length` bytes may be staged.

        The number of messages is limited, too, even of empty ones.
        """
        return self.staged_bytes + length <= max_bytes and self.staged_messages < _MAX_MESSAGES

    def stage(self, tag: int, length: int) -> Staged:
        """Return a buffer for a message of `length` bytes that came before its receive."""
        staged = Staged(length)
        self.reserve(length)
        self.keep(tag, staged)
        return staged

    def reserve(self, length: int) -> None:
        """Count a message of `length` bytes as staged."""
        self.staged_bytes += length
        self.staged_messages += 1

    def release(self, length: int) -> None:
        """Undo `reserve`."""
        self.staged_bytes -= length
        self.staged_messages -= 1

    def keep(self, tag: int, staged: Staged) -> None:
        """Store a message, which is counted already, where receives look for it."""
        self.staged.setdefault(tag, deque()).append(staged)

    def take_staged(self, tag: int) -> Staged | None:
        """Remove and return the oldest message staged for this tag, complete or not, or None."""
        queue = self.staged.get(tag)
        if queue is None:
            return None
        staged = queue.popleft()
        if not queue:
            del self.staged[tag]
        self.release(len(staged.view))
        return staged

    def discard(self, staged: Staged) -> None:
        """Drop a message that will never be complete. Does nothing if it was taken."""
        for tag, queue in self.staged.items():
            if staged in queue:
                self.release(len(staged.view))
                queue.remove(staged)
                if not queue:
                    del self.staged[tag]
                return

    def fail(self, error: TransportError) -> None:
        """Fail every posted receive."""
        posted, self.posted = self.posted, {}
        for queue in posted.values():
            for request in queue:
                request.fail(error)


class WrongLength(TransportError):
    """A message of `got_bytes` that does not fit its receive."""

    def __init__(self, message: str, got_bytes: int) -> None:
        super().__init__(message)
        self.got_bytes = got_bytes


def wrong_length(rank: int, peer: int, tag: int, got: int, expected: int) -> TransportError:
    """Return the error for a message that does not fit its receive."""
    return WrongLength(
        f"rank {rank}: message from peer {peer}, tag {tag}: got {got} bytes, expected {expected}, as posted",
        got,
    )
