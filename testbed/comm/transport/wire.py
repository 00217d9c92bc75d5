"""Wire format between two ranks.

A connection begins with one hello from each side, the dialling side first. After that each side sends messages: a
header of 16 bytes (tag, length; little-endian, unsigned, 64 bits each), then the payload. Notes have a reserved tag and
are for the ranks' communicators. The last message is a goodbye; its payload, if any, is the reason of an abort.
Channels of a striped pair send frames instead: see `channels`. `Addresses` is the format in which ranks exchange
addresses at bootstrap.
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
PACKET_HEADERS_BYTES = 66  # Ethernet, IPv4 and TCP with timestamps
GOODBYE_TAG = 2**64 - 1
NOTE_TAG = 2**64 - 3


class ConnectionKey(NamedTuple):
    """Identifies one of the connections between two ranks.

    Attributes:
        traffic: The class of its traffic.
        channel: The channel within a striped pair.
        channels: The number of channels, so that both ends can check it; 0 if a pair has one connection per class.
    """

    traffic: TrafficClass = BEST_EFFORT
    channel: int = 0
    channels: int = 0


class Hello(NamedTuple):
    """A decoded hello: its sender, the connection, and how often the sender has come back after being lost."""

    sender: int
    key: ConnectionKey
    incarnation: int


def make_hello(
    sender: int, receiver: int, size: int, token: str, key: ConnectionKey, incarnation: int = 0
) -> bytes:
    """Return the hello from `sender` to `receiver`, in a job of `size` ranks with this token."""
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
    """Return the decoded hello. Raises ValueError, with the field that is wrong, unless it is meant for this rank."""
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
    """Addresses of ranks in wire format, six bytes each.

    With thousands of ranks that each know thousands of addresses, tuples would take gigabytes.
    """

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    @classmethod
    def of(cls, addresses: Sequence[Address]) -> Addresses:
        """Return the addresses as packed IPv4 addresses and ports."""
        return cls(b"".join(_ENTRY.pack(socket.inet_aton(ip), port) for ip, port in addresses))

    def __len__(self) -> int:
        return len(self.packed) // ENTRY_BYTES

    @overload
    def __getitem__(self, index: int) -> Address: ...
    @overload
    def __getitem__(self, index: slice) -> Addresses: ...
    def __getitem__(self, index: int | slice) -> Address | Addresses:
        if isinstance(index, slice):
            return Addresses.of([self[number] for number in range(*index.indices(len(self)))])
        where = range(len(self))[index] * ENTRY_BYTES
        ip, port = _ENTRY.unpack_from(self.packed, where)
        return socket.inet_ntoa(ip), port

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
