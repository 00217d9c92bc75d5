"""Writes into a peer's memory that it need not ask for, and word of them: after RDMA WRITE and MPI's windows.

A put is a message whose tag says which of the receiver's windows it goes into, and where; its bytes go there as they
come from the network, whatever the receiver does. A signal is an empty message to be received with its own tag, which
comes after all puts that its sender began before it, for the same peer and class of traffic. Tags of both are above
MAX_TAG: the window's number in 15 bits, an offset in bytes, or what kind of signal it is, in 48.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from testbed.comm.transport.base import Request, Transport, TransportError, unwrap_transport

_ONE_SIDED = 1 << 63
_WINDOW_BIT = 48
_OFFSETS = (1 << _WINDOW_BIT) - 2  # what is above is for signals
WINDOWS = 0x7FFF  # of a rank at a time; with the next number tags would begin that have meanings of their own
SIGNAL, FENCE = _OFFSETS, _OFFSETS + 1
_PUTS_END = _ONE_SIDED | WINDOWS << _WINDOW_BIT


def put_tag(window: int, offset_bytes: int) -> int:
    """The tag of a put into a window of its receiver. ValueError for an offset that tags cannot say."""
    if not 0 <= offset_bytes < _OFFSETS:
        raise ValueError(f"offset: got {offset_bytes} bytes, expected 0 to {_OFFSETS - 1}")
    return _ONE_SIDED | window << _WINDOW_BIT | offset_bytes


def signal_tag(window: int, kind: int = SIGNAL) -> int:
    """The tag of a signal about a window of its receiver; kind: SIGNAL, or FENCE for those of a fence."""
    return _ONE_SIDED | window << _WINDOW_BIT | kind


def is_one_sided(tag: int) -> bool:
    """Whether it is a put's or a signal's."""
    return _ONE_SIDED <= tag < _PUTS_END


def is_put(tag: int) -> bool:
    """Whether it is a put's."""
    return _ONE_SIDED <= tag < _PUTS_END and tag & (1 << _WINDOW_BIT) - 1 < _OFFSETS


class ExposedWindows:
    """A rank's memory that peers may write into, by the numbers that they know it by."""

    def __init__(self) -> None:
        self._windows: dict[int, tuple[memoryview, frozenset[int]]] = {}
        self._free: list[int] = []  # numbers that have been given back, a heap

    def add(self, view: memoryview, peers: Iterable[int]) -> int:
        """Let these peers write into it from now on; returns its number. TransportError when there are too many."""
        if len(self._windows) == WINDOWS:
            raise TransportError(f"window: this rank has {WINDOWS}, there can be no more")
        number = heapq.heappop(self._free) if self._free else len(self._windows)
        self._windows[number] = (view, frozenset(peers))
        return number

    def remove(self, number: int) -> None:
        """Let nobody write into it any more."""
        del self._windows[number]
        heapq.heappush(self._free, number)

    def place(self, peer: int, tag: int, length: int) -> Request | str:
        """Where a peer's put goes, as a receive that nobody has to post; or what is wrong with it."""
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


@runtime_checkable
class OneSided(Protocol):
    """A transport whose `isend` takes tags of puts and signals, and whose `irecv` those of signals."""

    exposed: ExposedWindows


def find_one_sided(transport: Transport) -> Transport | None:
    """What under a transport's layers takes puts and signals; None where nothing does.

    Ways of handing messages over have no part in them: what is written needs no receive, no announcement and no slot.
    """
    return unwrap_transport(transport, OneSided)  # type: ignore[type-abstract,return-value]
