"""What of a network card with verbs is needed: queue pairs of reliable connections, memory, completions as events."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from testbed.comm.transport.base import buffer_address

RECEIVED, WRITTEN, SENT = "received", "written", "sent"


class Completion(NamedTuple):
    """Something is over.

    kind: RECEIVED, a message into slot `number`; WRITTEN, a peer's write; SENT, this rank's write `number`, or a
    small message where that is 0. failed: why it failed, in words; empty where it did not.
    """

    kind: str
    queue_pair: int
    number: int
    immediate: int = 0
    size_bytes: int = 0
    failed: str = ""


@dataclass(frozen=True)
class Address:
    """Where a queue pair is. gid: of its card's port, as people write it."""

    gid: str
    number: int


class CardCounts(NamedTuple):
    """Since the card was made, of all its queue pairs.

    received: packets; duplicates: that it had already. went_back: times that it began to send again, told by its peer
    or by its timer. out_of_sequence: times that it told a peer that a packet had not come.
    """

    received: int
    went_back: int
    out_of_sequence: int
    duplicates: int


class Region(Protocol):
    """Memory that the card knows. key: for its own work; remote_key: for peers that write into it."""

    key: int
    remote_key: int

    def close(self) -> None:
        """Let go of it."""


class QueuePair(Protocol):
    """One reliable connection."""

    number: int

    @property
    def address(self) -> Address:
        """What the peer has to know of it."""

    def connect(self, peer: Address) -> None:
        """Be connected with this one from now on. TransportError."""

    def write(
        self, number: int, address: int, size_bytes: int, key: int, to: int, remote_key: int, immediate: int
    ) -> None:
        """Write from registered memory into a peer's, which is told that it is done. number: not 0, for completions."""

    def close(self) -> None:
        """Nothing more comes of it, nor goes."""


class Card(Protocol):
    """One card, as one rank has it. Its completions come when what stands behind `fileno` can be read."""

    def fileno(self) -> int:
        """A descriptor for epoll."""

    def queue_pair(self, fast: bool, depth: int, port: int, dscp: int) -> QueuePair:
        """fast: for messages into slots, else for writes. depth: of them at most under way.

        port: that its packets come from, 0 for any; dscp: their mark.
        """

    def send(self, queue_pair: QueuePair, header: bytes, body: bytes | memoryview) -> bool:
        """Copy it, and send it into whichever slot of the peer's is next; False where there is no room to."""

    def register(self, address: int, size_bytes: int, writable: bool) -> Region:
        """Have the card know this memory. TransportError."""

    def slot(self, number: int) -> memoryview:
        """The memory that a message was received into, until `free`."""

    def free(self, number: int) -> None:
        """Have the slot receive again."""

    def completions(self) -> list[Completion]:
        """All since the last call; whatever comes after it is an event."""

    def counts(self) -> CardCounts | None:
        """For whoever uses it; None where it does not tell."""

    def close(self) -> None:
        """Let go of all that belongs to it."""


def find_owner(view: memoryview) -> Any:
    """What the memory of a view belongs to, through arrays that are parts of others."""
    owner: Any = view.obj
    while True:
        base = owner.base if isinstance(owner, np.ndarray) else None
        if isinstance(base, memoryview):
            base = base.obj
        if base is None:
            return owner
        owner = base


class RegisteredPiece:
    """A part of registered memory, held until `release`."""

    __slots__ = ("_release", "address", "key", "remote_key")

    def __init__(self, address: int, region: Region, release: Callable[[], None] | None = None) -> None:
        self.address = address
        self.key = region.key
        self.remote_key = region.remote_key
        self._release = release

    def release(self) -> None:
        """The card has done with it."""
        if self._release is not None:
            self._release()
            self._release = None


class RegionCache:
    """Of one card. `registered`: how often memory had to be registered.

    Whoever frees memory that a card knows, and gets other memory at the same place, would have the card write where
    nobody looks any more. So what is kept is kept by its owner, an array or a mapping, and goes with it.
    """

    def __init__(self, card: Card) -> None:
        self._card = card
        self._kept: dict[int, tuple[int, int, Region]] = {}  # by the owner's id: address, bytes
        self.registered = 0

    def piece(self, view: memoryview) -> RegisteredPiece:
        """Of a view that is not empty. TransportError."""
        address, size_bytes = buffer_address(view), len(view)
        kept = self._of_owner(find_owner(view))
        if kept is not None and kept[0] <= address <= address + size_bytes <= kept[0] + kept[1]:
            return RegisteredPiece(address, kept[2])
        region = self._register(address, size_bytes, not view.readonly)
        return RegisteredPiece(address, region, region.close)

    def _of_owner(self, owner: Any) -> tuple[int, int, Region] | None:
        """All of an array or a mapping, known from now on until it goes; None for what cannot say when it does."""
        if not isinstance(owner, np.ndarray | mmap.mmap):
            return None
        key = id(owner)
        if key not in self._kept:
            whole = memoryview(owner)  # type: ignore[arg-type]  # of which both are
            if not whole.c_contiguous:
                return None
            address = buffer_address(whole.cast("B"))
            self._kept[key] = address, whole.nbytes, self._register(address, whole.nbytes, not whole.readonly)
            weakref.finalize(owner, self._forget, key).atexit = False
        return self._kept[key]

    def _register(self, address: int, size_bytes: int, writable: bool) -> Region:
        self.registered += 1
        return self._card.register(address, size_bytes, writable)

    def _forget(self, key: int) -> None:
        self._kept.pop(key)[2].close()
