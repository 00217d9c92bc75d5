"""One-sided operations, modelled on RDMA WRITE and MPI's windows: puts into a peer's memory, and signals.

A put is a message whose tag encodes the receiver's window and the offset in it. Its bytes are written there as they
arrive, without any action of the receiver. A signal is an empty message, received by its own tag. It arrives after all
puts that its sender began before it, for the same peer and class of traffic. The tags of both are above MAX_TAG: 15
bits for the window's number, and 48 for an offset in bytes or the kind of signal.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple, Protocol, runtime_checkable

from testbed.comm.transport.base import PeerCounters, Request, Transport, TransportError, unwrap_transport

_ONE_SIDED = 1 << 63
_WINDOW_BIT = 48
_OFFSETS = (1 << _WINDOW_BIT) - 2  # larger offsets denote signals
WINDOWS = 0x7FFF  # limit per rank; the next number would clash with reserved tags
SIGNAL, FENCE = _OFFSETS, _OFFSETS + 1
_PUTS_END = _ONE_SIDED | WINDOWS << _WINDOW_BIT


def put_tag(window: int, offset_bytes: int) -> int:
    """Return the tag of a put into the receiver's window. Raises ValueError if a tag cannot encode the offset."""
    if not 0 <= offset_bytes < _OFFSETS:
        raise ValueError(f"offset: got {offset_bytes} bytes, expected 0 to {_OFFSETS - 1}")
    return _ONE_SIDED | window << _WINDOW_BIT | offset_bytes


def signal_tag(window: int, kind: int = SIGNAL) -> int:
    """Return the tag of a signal about a window of its receiver. kind: SIGNAL, or FENCE for signals of a fence."""
    return _ONE_SIDED | window << _WINDOW_BIT | kind


def is_one_sided(tag: int) -> bool:
    """Return whether the tag belongs to a put or a signal."""
    return _ONE_SIDED <= tag < _PUTS_END


def is_put(tag: int) -> bool:
    """Return whether the tag belongs to a put."""
    return _ONE_SIDED <= tag < _PUTS_END and tag & (1 << _WINDOW_BIT) - 1 < _OFFSETS


class ExposedWindows:
    """The windows of a rank's memory that peers may write into, by number."""

    def __init__(self) -> None:
        self._windows: dict[int, tuple[memoryview, frozenset[int]]] = {}
        self._free: list[int] = []  # a heap of released numbers

    def add(self, view: memoryview, peers: Iterable[int]) -> int:
        """Let these peers write into `view` from now on.

        Return the window's number. Raises TransportError if there are too many windows.
        """
        if len(self._windows) == WINDOWS:
            raise TransportError(f"window: got {WINDOWS + 1}, expected at most {WINDOWS} per rank")
        number = heapq.heappop(self._free) if self._free else len(self._windows)
        self._windows[number] = (view, frozenset(peers))
        return number

    def remove(self, number: int) -> None:
        """Close a window."""
        del self._windows[number]
        heapq.heappush(self._free, number)

    def place(self, peer: int, tag: int, length: int) -> Request | str:
        """Return a receive for a peer's put, or a text that says what is wrong with the put."""
        number = (tag & ~_ONE_SIDED) >> _WINDOW_BIT
        offset = tag & (1 << _WINDOW_BIT) - 1
        put = f"its put of {length} bytes at offset {offset} into window {number}"
        known = self._windows.get(number)
        if known is None or peer not in known[1]:
            return f"{put}, which is not open to it"
        view = known[0]
        if offset + length > len(view):
            return f"{put}, which has {len(view)} bytes"
        return Request("recv", peer, tag, view[offset : offset + length])


class PeerEnd(NamedTuple):
    """A rank's end of the messages with one peer, independent of the transport.

    Attributes:
        rank: This rank.
        peer: The peer.
        counters: The peer's counters.
        exposed: Windows for puts.
        max_staged_bytes: The limit for messages without a receive.
    """

    rank: int
    peer: int
    counters: PeerCounters
    exposed: ExposedWindows
    max_staged_bytes: int = 0


@runtime_checkable
class OneSided(Protocol):
    """A transport whose `isend` takes tags of puts and signals, and whose `irecv` takes those of signals."""

    exposed: ExposedWindows


def find_one_sided(transport: Transport) -> Transport | None:
    """Return the transport, or the one under its layers, that takes puts and signals; None if there is none.

    Message protocols do not apply to them: a put needs no receive, no announcement and no slot.
    """
    return unwrap_transport(transport, OneSided)  # type: ignore[type-abstract,return-value]
