"""Matching of arriving messages with posted receives, by tag, for one peer."""

from __future__ import annotations

from collections import deque

import numpy as np

from testbed.comm.transport.base import Request, TransportError

_MAX_MESSAGES = 100_000


class Staged:
    """A message that nobody has asked for yet: its payload so far, in memory of its own."""

    __slots__ = ("view",)

    def __init__(self, length: int) -> None:
        # numpy does not touch the memory, so an announced length costs nothing until bytes come
        self.view = np.empty(length, dtype=np.uint8).data


class Mailbox:
    """Receives posted and messages staged, each in order per tag; at most one of the two exists for a tag."""

    __slots__ = ("posted", "staged", "staged_bytes", "staged_messages")

    def __init__(self) -> None:
        self.posted: dict[int, deque[Request]] = {}
        self.staged: dict[int, deque[Staged]] = {}
        self.staged_bytes = 0
        self.staged_messages = 0

    def post(self, request: Request) -> None:
        """Remember a receive that no message waits for."""
        queue = self.posted.get(request.tag)
        if queue is None:
            self.posted[request.tag] = deque((request,))
        else:
            queue.append(request)

    def take_posted(self, tag: int) -> Request | None:
        """The oldest receive posted for this tag, no longer posted."""
        queue = self.posted.get(tag)
        if queue is None:
            return None
        request = queue.popleft()
        if not queue:
            del self.posted[tag]
        return request

    def has_room(self, length: int, most_bytes: int) -> bool:
        """Whether a message of `length` bytes may be staged; of empty ones, too, there may only be so many."""
        return self.staged_bytes + length <= most_bytes and self.staged_messages < _MAX_MESSAGES

    def stage(self, tag: int, length: int) -> Staged:
        """Room for a message of `length` bytes that came before its receive."""
        staged = Staged(length)
        self.reserve(length)
        self.keep(tag, staged)
        return staged

    def reserve(self, length: int) -> None:
        """Count a message of `length` bytes as staged."""
        self.staged_bytes += length
        self.staged_messages += 1

    def release(self, length: int) -> None:
        """Count it no longer."""
        self.staged_bytes -= length
        self.staged_messages -= 1

    def keep(self, tag: int, staged: Staged) -> None:
        """Put a message, which is counted already, where receives look for it."""
        self.staged.setdefault(tag, deque()).append(staged)

    def take_staged(self, tag: int) -> Staged | None:
        """The oldest message staged for this tag, whole or still coming in, no longer staged."""
        queue = self.staged.get(tag)
        if queue is None:
            return None
        staged = queue.popleft()
        if not queue:
            del self.staged[tag]
        self.release(len(staged.view))
        return staged

    def discard(self, staged: Staged) -> None:
        """Forget a message that will never be whole; nothing happens when it was taken before."""
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

    def __init__(self, words: str, got_bytes: int) -> None:
        super().__init__(words)
        self.got_bytes = got_bytes


def wrong_length(rank: int, peer: int, tag: int, got: int, expected: int) -> TransportError:
    """The error of a message that does not fit its receive."""
    return WrongLength(
        f"rank {rank}: message from peer {peer}, tag {tag}: got {got} bytes, expected {expected}, as posted",
        got,
    )
