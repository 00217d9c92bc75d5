"""Memory registration with a NIC: arrays and mappings once, for as long as they live; other memory per message."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from testbed.comm.transport.base import buffer_address
from testbed.comm.transport.rdma.card import Card, Region


def find_owner(view: memoryview) -> Any:
    """Return the object that owns a view's memory, following arrays that are parts of others."""
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
        """Release the memory, because the NIC is done with it."""
        if self._release is not None:
            self._release()
            self._release = None


class RegionCache:
    """The registered memory of one NIC. `registered`: how often memory had to be registered.

    If registered memory were freed and its address reused, the NIC would write into the wrong memory. So registrations
    are cached only for owners (arrays or mappings), and end with them.
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
