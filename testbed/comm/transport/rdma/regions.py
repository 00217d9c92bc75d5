"""Which memory a card knows: arrays and mappings once, for as long as they live; anything else for one message."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from testbed.comm.transport.buffer_address import address_of
from testbed.comm.transport.rdma.verbs import Card, Region


def owner_of(view: memoryview) -> Any:
    """What the memory of a view belongs to, through arrays that are parts of others."""
    owner: Any = view.obj
    while True:
        base = owner.base if isinstance(owner, np.ndarray) else None
        if isinstance(base, memoryview):
            base = base.obj
        if base is None:
            return owner
        owner = base


class Piece:
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


class Regions:
    """Of one card. `registered`: how often memory had to be registered.

    Whoever frees memory that a card knows, and gets other memory at the same place, would have the card write where
    nobody looks any more. So what is kept is kept by its owner, an array or a mapping, and goes with it.
    """

    def __init__(self, card: Card) -> None:
        self._card = card
        self._kept: dict[int, tuple[int, int, Region]] = {}  # by the owner's id: address, bytes
        self.registered = 0

    def piece(self, view: memoryview) -> Piece:
        """Of a view that is not empty. TransportError."""
        address, size_bytes = address_of(view), len(view)
        kept = self._of_owner(owner_of(view))
        if kept is not None and kept[0] <= address <= address + size_bytes <= kept[0] + kept[1]:
            return Piece(address, kept[2])
        region = self._register(address, size_bytes, not view.readonly)
        return Piece(address, region, region.close)

    def _of_owner(self, owner: Any) -> tuple[int, int, Region] | None:
        """All of an array or a mapping, known from now on until it goes; None for what cannot say when it does."""
        if not isinstance(owner, np.ndarray | mmap.mmap):
            return None
        key = id(owner)
        if key not in self._kept:
            whole = memoryview(owner)  # type: ignore[arg-type]  # of which both are
            if not whole.c_contiguous:
                return None
            address = address_of(whole.cast("B"))
            self._kept[key] = address, whole.nbytes, self._register(address, whole.nbytes, not whole.readonly)
            weakref.finalize(owner, self._forget, key).atexit = False
        return self._kept[key]

    def _register(self, address: int, size_bytes: int, writable: bool) -> Region:
        self.registered += 1
        return self._card.register(address, size_bytes, writable)

    def _forget(self, key: int) -> None:
        self._kept.pop(key)[2].close()
