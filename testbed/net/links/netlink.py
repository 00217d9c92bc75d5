"""A minimal netlink socket: batched requests, and dumps as raw messages.

pyroute2 passes each message through an event loop and decodes every attribute into objects, which takes half a
millisecond or more. With thousands of settings under the virtual clock, where each system call costs time, that would
take most of the time to build a network.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from testbed.net.errors import LinkError

# linux/rtnetlink.h: RTM_NEW* of each kind; RTM_DEL* is one more, RTM_GET* two more
LINK, ADDRESS, ROUTE, NEIGHBOUR, RULE, QDISC, CLASS, FILTER = 16, 20, 24, 28, 32, 36, 40, 44
HEADER = struct.Struct("=IHHII")
MESSAGE_STRUCTS = {
    LINK: struct.Struct("=BxHiII"),
    ADDRESS: struct.Struct("=BBBBI"),
    ROUTE: struct.Struct("=BBBBBBBBI"),
    NEIGHBOUR: struct.Struct("=BxxxiHBB"),
    RULE: struct.Struct("=BBBBBBBBI"),
    QDISC: struct.Struct("=BxxxiIII"),
    CLASS: struct.Struct("=BxxxiIII"),
    FILTER: struct.Struct("=BxxxiIII"),
}
ACKNOWLEDGE, REPLACE, EXCLUSIVE, CREATE = 0x4, 0x100, 0x200, 0x400  # NLM_F_
NESTED = 0x8000
_REQUEST, _DUMP = 0x1, 0x301  # NLM_F_REQUEST, with NLM_F_DUMP
_ERROR, _DONE, _INTERRUPTED = 2, 3, 0x10
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11  # NETLINK_CAP_ACK, NETLINK_EXT_ACK
_ERROR_MESSAGE, _ERROR_HEADER_BYTES = 1, 20  # NLMSGERR_ATTR_MSG, after the code and the request's header
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER_BYTES = 1 << 17
_BATCH_BYTES = 1 << 15  # bytes sent to the kernel at once


def parse_attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the type and payload of each attribute, from offset `at` on."""
    end = len(data)
    while at + 4 <= end:
        length, number = _ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            return
        yield number & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3


def encode_attribute(number: int, payload: bytes) -> bytes:
    """Encode an attribute."""
    return _ATTRIBUTE.pack(len(payload) + 4, number) + payload + bytes(-len(payload) % 4)


def encode_nested(number: int, *inner: bytes) -> bytes:
    """Encode an attribute that contains attributes."""
    return encode_attribute(number | NESTED, b"".join(inner))


def encode_string(words: str) -> bytes:
    """Encode a null-terminated string."""
    return words.encode() + b"\0"


def parse_messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield the kind, flags, sequence number and body of each message."""
    at = 0
    while at + 16 <= len(data):
        length, kind, flags, number, _ = HEADER.unpack_from(data, at)
        if length < 16:
            return
        yield kind, flags, number, data[at + 16 : at + length]
        at += (length + 3) & ~3


@dataclass(frozen=True)
class Request:
    """A netlink request: message type, NLM_F_ flags, message body, and a description for error messages."""

    kind: int
    flags: int
    body: bytes
    description: str


class Netlink:
    """A netlink socket in the current network namespace; the socket stays in it when its user enters another.

    Args:
        protocol: The netlink family; 0 is rtnetlink.

    Raises:
        OSError: The socket cannot be opened.
    """

    def __init__(self, protocol: int = 0) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._has_extended_ack = False

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket, for ioctl."""
        return self._socket.fileno()

    def _receive(self) -> bytes:
        size = self._socket.recv_into(self._buffer)
        return bytes(memoryview(self._buffer)[:size])

    def dump(self, kind: int, body: bytes, request_kind: int | None = None) -> list[bytes]:
        """Return the messages of all objects of a kind.

        Args:
            kind: Message type of the objects.
            body: Body of the request.
            request_kind: Message type of the request; None for that of rtnetlink.

        Returns:
            The message bodies; none if the kernel does not know the kind.

        Raises:
            OSError: The kernel refused.
        """
        request = kind + 2 if request_kind is None else request_kind
        while True:
            self._socket.send(HEADER.pack(16 + len(body), request, _DUMP, 0, 0) + body)
            found: list[bytes] = []
            done = interrupted = False
            while not done:
                for number, flags, _, message in parse_messages(self._receive()):
                    interrupted |= bool(flags & _INTERRUPTED)
                    if number == _ERROR:
                        code = -int.from_bytes(message[:4], "little", signed=True)
                        if code in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOENT, errno.ENODEV):
                            return []
                        raise OSError(code, "netlink")
                    if number == _DONE:
                        done = True
                    elif number == kind:
                        found.append(message)
            if not interrupted:
                return found

    def execute(self, requests: Sequence[Request]) -> None:
        """Execute requests in order, in as few batches as possible. Raises LinkError for the first that fails."""
        if not self._has_extended_ack:
            self._has_extended_ack = True
            for option in (_CAP_ACK, _EXT_ACK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
        first = 0
        while first < len(requests):
            size, last = 0, first
            while last < len(requests) and (last == first or size < _BATCH_BYTES):
                size += 16 + len(requests[last].body)
                last += 1
            self._batch(requests[first:last])
            first = last

    def _batch(self, requests: Sequence[Request]) -> None:
        parts = []
        for number, request in enumerate(requests):
            # a failed request is always answered; the acknowledgement of the last one means that all are done
            flags = request.flags | _REQUEST | (ACKNOWLEDGE if number == len(requests) - 1 else 0)
            size = 16 + len(request.body)
            parts.append(HEADER.pack(size, request.kind, flags, number, 0) + request.body)
            parts.append(bytes(-size % 4))
        self._socket.send(b"".join(parts))
        failed: list[str] = []
        while True:
            for kind, _, number, body in parse_messages(self._receive()):
                if kind != _ERROR:
                    continue
                code = -int.from_bytes(body[:4], "little", signed=True)
                if code:
                    details = dict(parse_attributes(body, _ERROR_HEADER_BYTES)).get(_ERROR_MESSAGE, b"")
                    message = details.rstrip(b"\0").decode()
                    reason = os.strerror(code) + (f" ({message})" if message else "")
                    failed.append(f"{reason}\n  while running: {requests[number].description}")
                if number == len(requests) - 1:
                    if failed:
                        raise LinkError(f"failed: {failed[0]}")
                    return
