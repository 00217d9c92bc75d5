"""What the kernel has put on the network, and taken from it, for one connection: segments and their payload."""

from __future__ import annotations

import ctypes
import math
import os
import socket
import struct
from typing import NamedTuple

from testbed.comm.transport.sockets import IPPROTO_MPTCP

# of struct tcp_info in linux/tcp.h: last_data_recv (milliseconds ago, by the kernel's ticks), bytes_received, segs_out,
# segs_in, bytes_sent (those sent again count again)
_INFO = struct.Struct("=52xI72xQII56xQ")
# of linux/mptcp.h: struct mptcp_subflow_data goes before one tcp_info for each subflow
_SOL_MPTCP, _MPTCP_TCPINFO = 284, 2
_SUBFLOWS = struct.Struct("=IIII")
_MOST_SUBFLOWS = 16

_libc = ctypes.CDLL(None, use_errno=True)


class WireCounts(NamedTuple):
    """Of one or several connections since they were made; `subflows`: how many, of MPTCP's those that there are now.

    quiet_s: how long ago the last data came in, by the kernel's ticks; infinity where that is not known.
    """

    subflows: int = 0
    segments_out: int = 0
    segments_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    quiet_s: float = math.inf

    def plus(self, other: WireCounts) -> WireCounts:
        """The sums, and the shorter quiet."""
        return WireCounts(
            self.subflows + other.subflows,
            self.segments_out + other.segments_out,
            self.segments_in + other.segments_in,
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
            min(self.quiet_s, other.quiet_s),
        )


def wire_counts(sock: socket.socket) -> WireCounts:
    """Of this connection. OSError when it is closed."""
    if sock.proto == IPPROTO_MPTCP:
        return _by_subflow(sock)
    return _read(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))


def _read(raw: bytes) -> WireCounts:
    quiet_ms, bytes_in, segments_out, segments_in, bytes_out = _INFO.unpack(raw.ljust(_INFO.size, b"\0"))
    return WireCounts(1, segments_out, segments_in, bytes_out, bytes_in, quiet_ms / 1e3)


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
