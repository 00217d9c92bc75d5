"""A plain socket to the kernel's rtnetlink: batches of requests in one go, dumps as the messages that they are.

pyroute2 carries each message through an event loop and makes objects of every attribute, half a millisecond and more
for each: for one link that does not matter, for some thousand settings under the virtual clock, where each system call
costs, it is most of what building a network takes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from testbed.net.errors import LinkError

# linux/rtnetlink.h: what a new one of each kind is told by; to be deleted is one more, to ask for all two more
LINK, ADDRESS, ROUTE, NEIGHBOUR, RULE, QDISC, CLASS, FILTER = 16, 20, 24, 28, 32, 36, 40, 44
HEADER = struct.Struct("=IHHII")
FORMS = {
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
_SOL_NETLINK, _CAPPED_ANSWERS, _WORDS_OF_ERRORS = 270, 10, 11  # NETLINK_CAP_ACK, NETLINK_EXT_ACK
_ERROR_WORDS, _CAPPED_BYTES = 1, 20  # NLMSGERR_ATTR_MSG, after the code and the request's header
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER_BYTES = 1 << 17
_BATCH_BYTES = 1 << 15  # that go to the kernel in one message


def attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """(type, payload) of each."""
    end = len(data)
    while at + 4 <= end:
        length, number = _ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            return
        yield number & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3


def put(number: int, payload: bytes) -> bytes:
    """An attribute."""
    return _ATTRIBUTE.pack(len(payload) + 4, number) + payload + bytes(-len(payload) % 4)


def nest(number: int, *inner: bytes) -> bytes:
    """An attribute made of attributes."""
    return put(number | NESTED, b"".join(inner))


def text(words: str) -> bytes:
    """A string as the kernel takes it."""
    return words.encode() + b"\0"


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, flags, the request's number, body) of each message."""
    at = 0
    while at + 16 <= len(data):
        length, kind, flags, number, _ = HEADER.unpack_from(data, at)
        if length < 16:
            return
        yield kind, flags, number, data[at + 16 : at + length]
        at += (length + 3) & ~3


@dataclass(frozen=True)
class Request:
    """Something to be made or changed: its kind, NLM_F_ flags, and the message; `words` for errors."""

    kind: int
    flags: int
    body: bytes
    words: str


class Netlink:
    """A socket in the present network namespace, wherever its user goes afterwards. OSError; LinkError as told.

    protocol: rtnetlink's, unless told.
    """

    def __init__(self, protocol: int = 0) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._tells_words = False

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def fileno(self) -> int:
        """Of the socket, for ioctl."""
        return self._socket.fileno()

    def _receive(self) -> bytes:
        size = self._socket.recv_into(self._buffer)
        return bytes(memoryview(self._buffer)[:size])

    def dump(self, kind: int, body: bytes, asked: int | None = None) -> list[bytes]:
        """All objects of a kind, asked for with this body; none where this kernel has no such kind. OSError.

        asked: the kind of the request, where it is not rtnetlink's.
        """
        request = kind + 2 if asked is None else asked
        while True:
            self._socket.send(HEADER.pack(16 + len(body), request, _DUMP, 0, 0) + body)
            found: list[bytes] = []
            done = interrupted = False
            while not done:
                for number, flags, _, message in messages(self._receive()):
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

    def carry_out(self, requests: Sequence[Request]) -> None:
        """All of them, in order, in as few messages as they fit into; LinkError names the first that fails."""
        if not self._tells_words:
            self._tells_words = True
            for option in (_CAPPED_ANSWERS, _WORDS_OF_ERRORS):
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
            # who fails answers in any case; when the last one answers, all have been done
            flags = request.flags | _REQUEST | (ACKNOWLEDGE if number == len(requests) - 1 else 0)
            size = 16 + len(request.body)
            parts.append(HEADER.pack(size, request.kind, flags, number, 0) + request.body)
            parts.append(bytes(-size % 4))
        self._socket.send(b"".join(parts))
        failed: list[str] = []
        while True:
            for kind, _, number, body in messages(self._receive()):
                if kind != _ERROR:
                    continue
                code = -int.from_bytes(body[:4], "little", signed=True)
                if code:
                    said = dict(attributes(body, _CAPPED_BYTES)).get(_ERROR_WORDS, b"").rstrip(b"\0").decode()
                    words = os.strerror(code) + (f" ({said})" if said else "")
                    failed.append(f"{words}\n  while running: {requests[number].words}")
                if number == len(requests) - 1:
                    if failed:
                        raise LinkError(f"failed: {failed[0]}")
                    return


def interface_indexes(found: Iterable[bytes]) -> dict[str, int]:
    """By name, from a dump of LINK."""
    return {
        dict(attributes(message, 16))[3].rstrip(b"\0").decode(): FORMS[LINK].unpack_from(message)[2]
        for message in found
    }
