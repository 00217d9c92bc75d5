"""The settings of the TCP connections in a network namespace, read over sock_diag without their counters."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from testbed.net.links.netlink import Netlink, parse_attributes
from testbed.net.links.netns import network_namespace

# linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h
_NETLINK_SOCK_DIAG, _BY_FAMILY, _ESTABLISHED = 4, 20, 1
_INFO, _CONGESTION, _TOS, _TRAFFIC_CLASS, _MARK, _PRIORITY = 2, 4, 5, 6, 15, 17
_EXTENSIONS = sum(1 << (number - 1) for number in (_INFO, _CONGESTION, _TOS, _TRAFFIC_CLASS))
_REQUEST = struct.Struct("=BBBxI48x")
_HEAD = struct.Struct("=4xHH4s12x4s12xIQ16xI")  # ports, addresses, interface, cookie, inode
_TCP_INFO = struct.Struct("=5xB10xI40xI48xQ")  # options, segment size, path MTU, maximum pacing rate
_TCP_INFO_NAMES = ("TCP options", "segment size", "path MTU", "maximum pacing rate in bytes/s")
Connection = tuple[str, int, str, int, int]
"""Local address and port, the peer's address and port, and the kernel's cookie that identifies the connection."""
Settings = dict[str, int | str]
_OPTIONS = 0xF  # timestamps, SACK, window scaling, ECN; the other bits report events
# A connection counts as settled after this many equal reads: at the first, a program may still be setting it up.
_SETTLED_READS = 2


class SocketTable:
    """The established TCP connections in the namespace of process `pid` (None: the current one).

    Raises:
        OSError: The netlink socket cannot be opened.
    """

    def __init__(self, pid: int | None) -> None:
        with network_namespace(pid):
            self._netlink = Netlink(_NETLINK_SOCK_DIAG)
        self._known: dict[Connection, tuple[Settings, int]] = {}

    def close(self) -> None:
        """Close the socket."""
        self._netlink.close()

    def changes(self) -> Iterator[str]:
        """Yield a description of each change of a settled connection since the last call."""
        known, self._known = self._known, {}
        for connection, settings in self.read().items():
            before, reads = known.get(connection, (settings, 0))
            self._known[connection] = settings, reads + 1 if before == settings else 1
            if before == settings or reads < _SETTLED_READS:
                continue
            here, port, there, peer_port, _ = connection
            for name, value in settings.items():
                if before.get(name, value) != value:
                    yield f"connection {here}:{port} to {there}:{peer_port}: {name} {before[name]} -> {value}"

    def read(self) -> dict[Connection, Settings]:
        """Return the settings of each connection that belongs to a program."""
        request = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, _EXTENSIONS, 1 << _ESTABLISHED)
        answers = self._netlink.dump(_BY_FAMILY, request, _BY_FAMILY)
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
    found = dict(parse_attributes(message, _HEAD.size))
    settings: Settings = {}
    if len(found.get(_INFO, b"")) >= _TCP_INFO.size:
        options, *others = _TCP_INFO.unpack_from(found[_INFO])
        settings |= zip(_TCP_INFO_NAMES, (options & _OPTIONS, *others), strict=True)
    if _CONGESTION in found:
        settings["congestion control"] = found[_CONGESTION].rstrip(b"\0").decode()
    for name, number in (("TOS", _TOS), ("mark", _MARK), ("priority", _PRIORITY)):
        if number in found:
            settings[name] = int.from_bytes(found[number], "little")
    return connection, settings
