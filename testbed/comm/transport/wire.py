"""Bytes on the wire between two ranks.

A connection begins with one hello from each side, the dialler's first. After that each side sends messages: a header
of 16 bytes (tag, length; little-endian, unsigned, 64 bits each), then the payload. Notes, with a tag of their own, are
for the ranks' communicators. The last message is a goodbye, whose payload, if any, tells why its sender gave up.
Channels of a striped pair send frames instead: see `channels`.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple, overload

from testbed.comm.transport.base import BEST_EFFORT, TrafficClass

VERSION = 3
_MAGIC = b"SCALEACR"
_HELLO = struct.Struct("<8sHBBHHIIII32s")
HELLO_BYTES = _HELLO.size

HEADER = struct.Struct("<QQ")
HEADER_BYTES = HEADER.size
PACKET_HEADERS_BYTES = 66  # Ethernet, IPv4 and TCP with timestamps, of each packet
GOODBYE_TAG = 2**64 - 1
NOTE_TAG = 2**64 - 3


class ConnectionKey(NamedTuple):
    """Which of the connections between two ranks: the class of its traffic, and the channel within a striped pair.

    channels: how many channels there are, so that both ends know; 0 where a pair has one connection per class.
    """

    traffic: TrafficClass = BEST_EFFORT
    channel: int = 0
    channels: int = 0


class Hello(NamedTuple):
    """Who said it, for which connection, and for how many times it has come back after it was lost."""

    sender: int
    key: ConnectionKey
    incarnation: int


def make_hello(
    sender: int, receiver: int, size: int, token: str, key: ConnectionKey, incarnation: int = 0
) -> bytes:
    """What `sender` says first to `receiver`, in a job of `size` ranks with this token."""
    traffic, channel, channels = key
    return _HELLO.pack(
        _MAGIC,
        VERSION,
        traffic.dscp,
        traffic.priority,
        channel,
        channels,
        size,
        sender,
        receiver,
        incarnation,
        _digest(token),
    )


def read_hello(data: bytes, receiver: int, size: int, token: str) -> Hello:
    """What it says. Raises ValueError, saying what is wrong, unless it is meant for us."""
    magic, version, dscp, priority, channel, channels, *rest = _HELLO.unpack(data)
    their_size, sender, addressee, incarnation, digest = rest
    if magic != _MAGIC:
        raise ValueError(f"magic: got {magic!r}, expected {_MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"protocol version: got {version}, expected {VERSION}")
    if not hmac.compare_digest(digest, _digest(token)):
        raise ValueError("token: it belongs to another job")
    if their_size != size:
        raise ValueError(f"number of ranks: got {their_size}, expected {size}")
    if addressee != receiver:
        raise ValueError(f"addressee: got rank {addressee}, expected rank {receiver}")
    if sender >= size or sender == receiver:
        raise ValueError(f"sender: got rank {sender}, expected another rank of 0 to {size - 1}")
    return Hello(sender, ConnectionKey(TrafficClass(dscp, priority), channel, channels), incarnation)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


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
