"""The TCP connections of a network namespace, as its kernel tells anybody of them, without what counts."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from testbed.net.links.netlink import Netlink, attributes
from testbed.net.links.netns import network_namespace

# linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h
_NETLINK_SOCK_DIAG, _BY_FAMILY, _ESTABLISHED = 4, 20, 1
_INFO, _CONGESTION, _TOS, _TRAFFIC_CLASS, _MARK, _PRIORITY = 2, 4, 5, 6, 15, 17
_ASKED = sum(1 << (number - 1) for number in (_INFO, _CONGESTION, _TOS, _TRAFFIC_CLASS))
_REQUEST = struct.Struct("=BBBxI48x")
_HEAD = struct.Struct("=4xHH4s12x4s12xIQ16xI")  # ports, addresses, interface, cookie, inode
_INFO_PARTS = struct.Struct("=5xB10xI40xI48xQ")  # options, segment size, path MTU, most of pacing
_INFO_NAMES = ("TCP options", "segment size", "path MTU", "most of pacing, bytes/s")
Connection = tuple[str, int, str, int, int]
"""Local address and port, the peer's, and the kernel's cookie, by which one connection is told from the next."""
Settings = dict[str, int | str]
_OPTIONS = 0xF  # time stamps, SACK, scaled windows, ECN; the others say what has happened
_SETTLED = 2  # looks that a connection was the same in: whoever made it may still have been setting it up at the first


class SocketTable:
    """The established TCP connections of the namespace of process `pid` (None: here). OSError."""

    def __init__(self, pid: int | None) -> None:
        with network_namespace(pid):
            self._asker = Netlink(_NETLINK_SOCK_DIAG)
        self._known: dict[Connection, tuple[Settings, int]] = {}

    def close(self) -> None:
        """Close the socket."""
        self._asker.close()

    def look(self) -> Iterator[str]:
        """Say what has changed since the last look, of connections that were settled then. OSError."""
        known, self._known = self._known, {}
        for connection, settings in self.read().items():
            before, looks = known.get(connection, (settings, 0))
            self._known[connection] = settings, looks + 1 if before == settings else 1
            if before == settings or looks < _SETTLED:
                continue
            here, port, there, peer_port, _ = connection
            for name, value in settings.items():
                if before.get(name, value) != value:
                    yield f"connection {here}:{port} to {there}:{peer_port}: {name} {before[name]} -> {value}"

    def read(self) -> dict[Connection, Settings]:
        """Return what each connection that a program has goes by."""
        request = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, _ASKED, 1 << _ESTABLISHED)
        answers = self._asker.dump(_BY_FAMILY, request, _BY_FAMILY)
        return dict(_parse(message) for message in answers if _HEAD.unpack_from(message)[-1])


def _parse(message: bytes) -> tuple[Connection, Settings]:
    port, peer_port, here, there, _, cookie, _ = _HEAD.unpack_from(message)
    connection = (
        socket.inet_ntoa(here),
        socket.ntohs(port),
        socket.inet_ntoa(there),
        socket.ntohs(peer_port),
        cookie,
    )
    found = dict(attributes(message, _HEAD.size))
    settings: Settings = {}
    if len(found.get(_INFO, b"")) >= _INFO_PARTS.size:
        options, *others = _INFO_PARTS.unpack_from(found[_INFO])
        settings |= zip(_INFO_NAMES, (options & _OPTIONS, *others), strict=True)
    if _CONGESTION in found:
        settings["congestion control"] = found[_CONGESTION].rstrip(b"\0").decode()
    for name, number in (("TOS", _TOS), ("mark", _MARK), ("priority", _PRIORITY)):
        if number in found:
            settings[name] = int.from_bytes(found[number], "little")
    return connection, settings
