"""What the kernel has put on the network, and taken from it, for one connection: segments and their payload."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from typing import NamedTuple

from testbed.transport.sockets import IPPROTO_MPTCP

# of struct tcp_info in linux/tcp.h: bytes_received, segs_out, segs_in, bytes_sent (those sent again count again)
_INFO = struct.Struct("=128xQII56xQ")
# of linux/mptcp.h: struct mptcp_subflow_data goes before one tcp_info for each subflow
_SOL_MPTCP, _MPTCP_TCPINFO = 284, 2
_SUBFLOWS = struct.Struct("=IIII")
_MOST_SUBFLOWS = 16

_libc = ctypes.CDLL(None, use_errno=True)


class WireCounts(NamedTuple):
    """Of one or several connections since they were made; `subflows`: how many, of MPTCP's those that there are now."""

    subflows: int = 0
    segments_out: int = 0
    segments_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def plus(self, other: WireCounts) -> WireCounts:
        """The sums."""
        return WireCounts(*(one + two for one, two in zip(self, other, strict=True)))


def wire_counts(sock: socket.socket) -> WireCounts:
    """Of this connection. OSError when it is closed."""
    if sock.proto == IPPROTO_MPTCP:
        return _by_subflow(sock)
    return _read(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))


def _read(raw: bytes) -> WireCounts:
    bytes_in, segments_out, segments_in, bytes_out = _INFO.unpack(raw.ljust(_INFO.size, b"\0"))
    return WireCounts(1, segments_out, segments_in, bytes_out, bytes_in)


def _by_subflow(sock: socket.socket) -> WireCounts:
    """Of all subflows that an MPTCP connection has now; Python's own getsockopt cannot say what it wants to know."""
    room = ctypes.create_string_buffer(_SUBFLOWS.size + _MOST_SUBFLOWS * _INFO.size)
    _SUBFLOWS.pack_into(room, 0, _SUBFLOWS.size, 0, 0, _INFO.size)
    length = ctypes.c_uint(len(room))
    if _libc.getsockopt(sock.fileno(), _SOL_MPTCP, _MPTCP_TCPINFO, room, ctypes.byref(length)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    _, subflows, _, size = _SUBFLOWS.unpack_from(room)
    offsets = range(_SUBFLOWS.size, _SUBFLOWS.size + min(subflows, _MOST_SUBFLOWS) * size, size)
    total = WireCounts()
    for offset in offsets:
        total = total.plus(_read(room.raw[offset : offset + size]))
    return total
