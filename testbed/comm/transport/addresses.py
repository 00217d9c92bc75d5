"""Addresses of ranks, as ranks tell each other."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import overload

_ENTRY = struct.Struct("!4sH")  # IPv4 address and port
ENTRY_BYTES = _ENTRY.size

Address = tuple[str, int]


class Addresses(Sequence[Address]):
    """Addresses of ranks, as they travel: six bytes each, where tuples of thousands for thousands are gigabytes."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    @classmethod
    def of(cls, addresses: Sequence[Address]) -> Addresses:
        """Of IPv4 addresses and ports."""
        return cls(b"".join(_ENTRY.pack(socket.inet_aton(ip), port) for ip, port in addresses))

    def __len__(self) -> int:
        """How many."""
        return len(self.packed) // ENTRY_BYTES

    @overload
    def __getitem__(self, index: int) -> Address: ...
    @overload
    def __getitem__(self, index: slice) -> Addresses: ...
    def __getitem__(self, index: int | slice) -> Address | Addresses:
        """One, or some of them."""
        if isinstance(index, slice):
            return Addresses.of([self[number] for number in range(*index.indices(len(self)))])
        where = range(len(self))[index] * ENTRY_BYTES
        ip, port = _ENTRY.unpack_from(self.packed, where)
        return socket.inet_ntoa(ip), port

    def __eq__(self, other: object) -> bool:
        """Whether a sequence has the same ones."""
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
