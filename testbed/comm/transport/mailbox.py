"""Matching of incoming messages with posted receives, by tag, for one peer."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

import numpy as np

from testbed.comm.transport.base import Request, TransportError

_MAX_MESSAGES = 100_000

ItemT = TypeVar("ItemT")


class Staged:
    """An unexpected message: its payload so far, in a separate buffer."""

    __slots__ = ("view",)

    def __init__(self, length: int) -> None:
        # NumPy does not touch the memory, so an announced length costs nothing until data arrives
        self.view = np.empty(length, dtype=np.uint8).data


class TagQueues(dict[int, deque[ItemT]]):
    """Queues by tag; none is ever empty."""

    __slots__ = ()

    def put(self, tag: int, item: ItemT) -> None:
        """Append an item to a tag's queue."""
        queue = self.get(tag)
        if queue is None:
            self[tag] = deque((item,))
        else:
            queue.append(item)

    def take(self, tag: int) -> ItemT | None:
        """Remove and return the oldest item of a tag, or None."""
        queue = self.get(tag)
        if queue is None:
            return None
        item = queue.popleft()
        if not queue:
            del self[tag]
        return item


class Mailbox:
    """Posted receives and unexpected messages, each in order per tag. A tag never has both."""

    __slots__ = ("posted", "staged", "staged_bytes", "staged_messages")

    def __init__(self) -> None:
        self.posted: TagQueues[Request] = TagQueues()
        self.staged: TagQueues[Staged] = TagQueues()
        self.staged_bytes = 0
        self.staged_messages = 0

    def has_room(self, length: int, max_bytes: int) -> bool:
        """Return whether a message of `length` bytes may be staged.

        The number of messages is limited, too, including empty ones.
        """
        return self.staged_bytes + length <= max_bytes and self.staged_messages < _MAX_MESSAGES

    def stage(self, tag: int, length: int) -> Staged:
        """Return a buffer for a message of `length` bytes that arrived before its receive was posted."""
        staged = Staged(length)
        self.reserve(length)
        self.staged.put(tag, staged)
        return staged

    def reserve(self, length: int) -> None:
        """Count a message of `length` bytes as staged."""
        self.staged_bytes += length
        self.staged_messages += 1

    def release(self, length: int) -> None:
        """Undo `reserve`."""
        self.staged_bytes -= length
        self.staged_messages -= 1

    def take_staged(self, tag: int) -> Staged | None:
        """Remove and return the oldest message staged for this tag, complete or not, or None."""
        staged = self.staged.take(tag)
        if staged is not None:
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
        posted, self.posted = self.posted, TagQueues()
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
