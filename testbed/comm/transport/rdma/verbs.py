"""The interface of a network card with verbs: queue pairs of reliable connections, memory, completions as events.

`RegionCache` decides which memory a card knows: arrays and mappings once, for as long as they live; other memory for
one message.
"""

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
    """A completed work request.

    Attributes:
        kind: RECEIVED: a message into slot `number`. WRITTEN: a peer's write. SENT: this rank's write `number`, or a
            small message if that is 0.
        queue_pair: The queue pair's number.
        number: See `kind`.
        immediate: The peer's immediate.
        size_bytes: Bytes received.
        failed: The reason of a failure, as text; "" otherwise.
    """

    kind: str
    queue_pair: int
    number: int
    immediate: int = 0
    size_bytes: int = 0
    failed: str = ""


@dataclass(frozen=True)
class Address:
    """The address of a queue pair. `gid` is its card's port's, as text."""

    gid: str
    number: int


class CardCounts(NamedTuple):
    """Counts of all queue pairs since the card was made.

    Attributes:
        received: Packets received.
        went_back: Times that it started to resend, after a NAK or a timeout.
        out_of_sequence: NAKs that it sent.
        duplicates: Packets that it had already.
    """

    received: int
    went_back: int
    out_of_sequence: int
    duplicates: int


class Region(Protocol):
    """Memory that the card knows. `key`: for its own work; `remote_key`: for peers that write into it."""

    key: int
    remote_key: int

    def close(self) -> None:
        """Deregister the memory."""


class QueuePair(Protocol):
    """One reliable connection."""

    number: int

    @property
    def address(self) -> Address:
        """What the peer has to know to connect."""

    def connect(self, peer: Address) -> None:
        """Connect to the peer's queue pair. Raises TransportError."""

    def write(
        self, number: int, address: int, size_bytes: int, key: int, to: int, remote_key: int, immediate: int
    ) -> None:
        """Write from registered memory into a peer's, with notification.

        Args:
            number: Identifies the completion; not 0.
            address: Source address.
            size_bytes: Size.
            key: Key of the source.
            to: Destination address.
            remote_key: Key of the destination.
            immediate: Passed to the peer.
        """

    def close(self) -> None:
        """Close the connection; drop everything in flight."""


class Card(Protocol):
    """One card, for one rank. Completions are there when `fileno` is readable."""

    def fileno(self) -> int:
        """Return a descriptor for epoll."""

    def queue_pair(self, fast: bool, depth: int, port: int, dscp: int) -> QueuePair:
        """Return a new queue pair.

        Args:
            fast: For messages into slots, otherwise for writes.
            depth: The most work requests in flight.
            port: Source port of its packets; 0 for any.
            dscp: Their DSCP.
        """

    def send(self, queue_pair: QueuePair, header: bytes, body: bytes | memoryview) -> bool:
        """Send a copy of the message into the peer's next slot; return False if the card has no room."""

    def register(self, address: int, size_bytes: int, writable: bool) -> Region:
        """Register memory. Raises TransportError."""

    def slot(self, number: int) -> memoryview:
        """Return the memory of a received message, valid until `free`."""

    def free(self, number: int) -> None:
        """Make the slot available for receiving again."""

    def completions(self) -> list[Completion]:
        """Return all completions since the last call. Later ones cause an event."""

    def counts(self) -> CardCounts | None:
        """Return the card's counts; None if unavailable."""

    def close(self) -> None:
        """Release all resources of the card."""


def find_owner(view: memoryview) -> Any:
    """Return the object that owns a view's memory, through arrays that are parts of others."""
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
        """Release the memory: the card is done with it."""
        if self._release is not None:
            self._release()
            self._release = None


class RegionCache:
    """The registered memory of one card. `registered`: how often memory had to be registered.

    If memory that a card knows were freed and its address reused, the card would write into the wrong memory. So a
    registration is cached only for an owner, an array or a mapping, and ends with it.
    """

    def __init__(self, card: Card) -> None:
        self._card = card
        self._regions: dict[int, tuple[int, int, Region]] = {}  # by the owner's id: address, size
        self.registered = 0

    def piece(self, view: memoryview) -> RegisteredPiece:
        """Return the registered piece of a view that is not empty. Raises TransportError."""
        address, size_bytes = buffer_address(view), len(view)
        known = self._register_owner(find_owner(view))
        if known is not None and known[0] <= address <= address + size_bytes <= known[0] + known[1]:
            return RegisteredPiece(address, known[2])
        region = self._register(address, size_bytes, not view.readonly)
        return RegisteredPiece(address, region, region.close)

    def _register_owner(self, owner: Any) -> tuple[int, int, Region] | None:
        """Return the registration of a whole array or mapping, which ends with it; None for other owners."""
        if not isinstance(owner, np.ndarray | mmap.mmap):
            return None
        key = id(owner)
        if key not in self._regions:
            view = memoryview(owner)  # type: ignore[arg-type]  # of which both are
            if not view.c_contiguous:
                return None
            address = buffer_address(view.cast("B"))
            self._regions[key] = (
                address,
                view.nbytes,
                self._register(address, view.nbytes, not view.readonly),
            )
            weakref.finalize(owner, self._forget, key).atexit = False
        return self._regions[key]

    def _register(self, address: int, size_bytes: int, writable: bool) -> Region:
        self.registered += 1
        return self._card.register(address, size_bytes, writable)

    def _forget(self, key: int) -> None:
        self._regions.pop(key)[2].close()
