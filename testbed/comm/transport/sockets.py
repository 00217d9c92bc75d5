"""TCP sockets: settings with read-back, state of a connection, and counters of its traffic.

`SocketSettings` and `MeshSettings` configure sockets. `describe_connection`, `snapshot_connection` and
`describe_socket_state` read TCP_INFO. `read_socket_options` reads options that only the owner of a socket can see, to
detect changes that others make. `read_wire_counts` counts segments and payload that the kernel sent and received.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import os
import socket
import struct
import sys
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from testbed.comm.transport.base import BEST_EFFORT, TrafficClass, TransportError
from testbed.comm.transport.wire import ConnectionKey

# fields of struct tcp_info in linux/tcp.h: our name, offset, format, unit
_TCP_INFO = (
    ("mss_bytes", 16, "=I", 1),
    ("rtt_s", 68, "=I", 1e-6),
    ("rttvar_s", 72, "=I", 1e-6),
    ("min_rtt_s", 148, "=I", 1e-6),
    ("congestion_window_segments", 80, "=I", 1),
    ("retransmits", 100, "=I", 1),
    ("bytes_acked", 120, "=Q", 1),
    ("bytes_sent", 200, "=Q", 1),
    ("bytes_retransmitted", 208, "=Q", 1),
    ("busy_s", 168, "=Q", 1e-6),
    ("receive_window_limited_s", 176, "=Q", 1e-6),
    ("send_buffer_limited_s", 184, "=Q", 1e-6),
)
_TCP_INFO_BYTES = 216
_LAST_DATA_RECEIVED = 52
_SNAPSHOT = struct.Struct("=68xI8xI16xI16xQ")  # rtt, congestion window, retransmits, bytes_acked
_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


# from asm-generic/socket.h
_SO_MAX_PACING_RATE, _UNPACED = 47, 2**32 - 1  # all ones, of any width, means unpaced
FORCED_OPTIONS = {
    socket.SO_SNDBUF: 32,
    socket.SO_RCVBUF: 33,
}  # SO_SNDBUFFORCE, SO_RCVBUFFORCE: root may exceed the host's limits
# from linux/mptcp.h
_SOL_MPTCP, _MPTCP_INFO, _MPTCP_FELL_BACK = 284, 1, 1
IPPROTO_MPTCP = 262  # socket.IPPROTO_MPTCP from Python 3.10 on Linux, but not in every build


@dataclass(frozen=True)
class SocketSettings:
    """Settings of every socket of a transport; None keeps the kernel's default.

    `window_bytes` limits the bytes in flight. Both buffers are twice that, for data that waits to be sent or read.
    """

    congestion_control: str | None = None
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    multipath: bool = False
    pacing_bps: float | None = None
    window_bytes: int | None = None

    def make(self) -> socket.socket:
        """Return a new socket. Raises TransportError if the kernel has no MPTCP."""
        try:
            return socket.socket(
                socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if self.multipath else socket.IPPROTO_TCP
            )
        except OSError as error:
            raise TransportError(
                f"MPTCP: the kernel has none ({error.strerror}); see net.mptcp.enabled"
            ) from None

    def apply(self, sock: socket.socket, traffic: TrafficClass = BEST_EFFORT) -> None:
        """Apply the settings and read them back. Raises TransportError if the kernel refuses or uses another value."""
        sock.setblocking(False)
        self.set_traffic_class(sock, traffic)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        room = None if self.window_bytes is None else 2 * self.window_bytes
        for option, size in (
            (socket.SO_SNDBUF, self.send_buffer_bytes or room),
            (socket.SO_RCVBUF, self.receive_buffer_bytes or room),
        ):
            if size is not None:
                _set_buffer(sock, option, size)
        if self.window_bytes is not None:
            # a buffer that is set no longer grows, and an accepted socket would keep its initial window
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, self.window_bytes)
        if self.congestion_control is not None:
            _set_congestion_control(sock, self.congestion_control)
        if self.pacing_bps is not None:
            _set_pacing(sock, self.pacing_bps)

    def set_traffic_class(self, sock: socket.socket, traffic: TrafficClass) -> None:
        """Set DSCP and priority of the socket and read them back.

        Raises TransportError if the kernel uses another value.
        """
        if traffic.dscp:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic.dscp << 2)
            got = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2
            if got != traffic.dscp:
                raise TransportError(f"DSCP: asked for {traffic.dscp}, the kernel uses {got}")
        if traffic.priority:  # after the DSCP, because setting that changes the priority, too
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, traffic.priority)
            got = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
            if got != traffic.priority:
                raise TransportError(f"socket priority: asked for {traffic.priority}, the kernel uses {got}")


@dataclass(frozen=True)
class MeshSettings:
    """Settings for creating sockets, and timeouts.

    Attributes:
        token: The job's secret. Connections of any other job are refused.
        congestion_control: Set on every socket and read back; None keeps the kernel's default.
        multipath: Use MPTCP instead of TCP.
        source_port: (rank, peer, connection) -> local port of a connection that `rank` dials, for reproducible ECMP
            hashing.
        bootstrap_timeout_s: Time from dialling a peer, which may start later than this rank, until both have said
            hello.
        incarnation: How often this rank has come back after being lost.
        close_timeout_s: The limit of `close`.
        max_staged_bytes: Limit per peer for messages that arrive before their receive is posted. A peer that sends more
            is blocked.
        send_buffer_bytes: Size for each socket; None lets the kernel size it.
        receive_buffer_bytes: Size for each socket; None lets the kernel size it.
        socket_of: (rank, peer, connection, common settings) -> settings of one connection.
        port_bps: Rate of this rank's NIC.
        bdp_bytes: Bandwidth-delay product of the path to each rank; None if unknown.
        path_bps: Rate of the narrowest link of the path to each rank; None if unknown.
        round_trips_s: Time of a full packet and its acknowledgement on the empty path to each rank; None if unknown.
    """

    token: str
    congestion_control: str | None = None
    multipath: bool = False
    source_port: Callable[[int, int, ConnectionKey], int] | None = None
    bootstrap_timeout_s: float = 30.0
    incarnation: int = 0
    close_timeout_s: float = 2.0
    max_staged_bytes: int = 256 * 1024**2
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    socket_of: Callable[[int, int, ConnectionKey, SocketSettings], SocketSettings] | None = None
    port_bps: float = math.inf
    bdp_bytes: Sequence[int] | None = None
    path_bps: Sequence[float] | None = None
    round_trips_s: Sequence[float] | None = None

    @property
    def sockets(self) -> SocketSettings:
        """The settings that all sockets share."""
        return SocketSettings(
            self.congestion_control, self.send_buffer_bytes, self.receive_buffer_bytes, self.multipath
        )

    def settings_of(self, rank: int, peer: int, key: ConnectionKey) -> SocketSettings:
        """Return the settings for the sockets of one connection."""
        return self.sockets if self.socket_of is None else self.socket_of(rank, peer, key, self.sockets)

    def local_port(self, rank: int, peer: int, key: ConnectionKey) -> int:
        """Return the local port from which `rank` dials a peer; 0 for any."""
        return 0 if self.source_port is None else self.source_port(rank, peer, key)


def congestion_control(sock: socket.socket) -> str:
    """Return the name of the congestion-control algorithm that the socket uses."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def _set_congestion_control(sock: socket.socket, name: str) -> None:
    available = "one of the kernel's"
    try:
        available = f"one of {_CONGESTION_CONTROLS.read_text().strip()}"
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        raise TransportError(
            f"congestion control: got {name}, expected {available} ({error.strerror})"
        ) from None
    in_use = congestion_control(sock)
    if in_use != name:
        raise TransportError(f"congestion control: asked for {name}, the kernel uses {in_use}")


def _set_buffer(sock: socket.socket, option: int, size: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, option, size)
    if sock.getsockopt(socket.SOL_SOCKET, option) // 2 < size:
        with contextlib.suppress(PermissionError):  # root may exceed the host's limit
            sock.setsockopt(socket.SOL_SOCKET, FORCED_OPTIONS[option], size)
    in_use = sock.getsockopt(socket.SOL_SOCKET, option) // 2  # the kernel doubles the value for its overhead
    if in_use < size:
        name, limit = ("send", "wmem_max") if option == socket.SO_SNDBUF else ("receive", "rmem_max")
        raise TransportError(
            f"{name} buffer: asked for {size} bytes, the kernel gives {in_use}; see net.core.{limit}"
        )


def _set_pacing(sock: socket.socket, rate_bps: float) -> None:
    size = max(1, round(rate_bps / 8))
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, size.to_bytes(8, sys.byteorder))
    if (in_use := _read_pacing(sock)) != size:
        raise TransportError(f"pacing: asked for {size} bytes/s, the kernel uses {in_use}")


def _read_pacing(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 8), sys.byteorder)


def describe_connection(sock: socket.socket) -> dict[str, Any]:
    """Return a connection's congestion control and statistics, ready for JSON, in seconds, bytes and segments.

    Fields that an old kernel does not know are 0.
    """
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES).ljust(_TCP_INFO_BYTES, b"\0")
    info = {
        name: round(struct.unpack_from(form, raw, offset)[0] * unit, 6)
        for name, offset, form, unit in _TCP_INFO
    }
    extra: dict[str, Any] = {}
    if sock.proto == IPPROTO_MPTCP:
        with contextlib.suppress(ValueError):
            extra["subflows"] = subflows(sock)
    for name, option in (("send_buffer_bytes", socket.SO_SNDBUF), ("receive_buffer_bytes", socket.SO_RCVBUF)):
        extra[name] = sock.getsockopt(socket.SOL_SOCKET, option) // 2
    if (pacing := _read_pacing(sock)) < _UNPACED:
        extra["pacing_bps"] = pacing * 8
    return {"congestion_control": congestion_control(sock), **info, **extra}


def snapshot_connection(sock: socket.socket) -> dict[str, float]:
    """Return the fast-changing part of `describe_connection`, in seconds, segments and bytes."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SNAPSHOT.size)
    rtt_us, window, retransmits, acked = _SNAPSHOT.unpack(raw)
    return {
        "rtt_s": rtt_us / 1e6,
        "congestion_window_segments": window,
        "retransmits": retransmits,
        "bytes_acked": acked,
    }


def describe_socket_state(sock: socket.socket) -> str:
    """Describe, as text, where undelivered bytes are. Raises OSError if the socket is closed."""
    unread, unacknowledged = (
        int.from_bytes(fcntl.ioctl(sock, request, bytes(4)), sys.byteorder)
        for request in (termios.FIONREAD, termios.TIOCOUTQ)
    )
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (quiet_ms,) = struct.unpack_from("=I", raw, _LAST_DATA_RECEIVED)
    return f"{unread} bytes unread, {unacknowledged} not acknowledged, last data came {quiet_ms} ms ago"


def subflows(sock: socket.socket) -> int:
    """Return the number of subflows of an MPTCP connection. Raises ValueError if it fell back to plain TCP."""
    try:
        raw = sock.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 64)
    except OSError:
        raise ValueError("MPTCP: the other end, or a middlebox, supports only plain TCP") from None
    (flags,) = struct.unpack_from("=I", raw, 8)
    if flags & _MPTCP_FELL_BACK:
        raise ValueError("MPTCP: the connection fell back to plain TCP")
    return 1 + raw[0]


SocketOptions = dict[str, int | str]

# from asm-generic/socket.h, linux/tcp.h and linux/in.h, if Python lacks the name: level, option, size in bytes
_SO_BUF_LOCK, _TCP_NOTSENT_LOWAT, _IP_MTU_DISCOVER, _IP_MTU = 72, 25, 10, 14
_OPTIONS = {
    "TCP_NODELAY": (socket.IPPROTO_TCP, socket.TCP_NODELAY, 4),
    "TCP_CORK": (socket.IPPROTO_TCP, socket.TCP_CORK, 4),
    "TCP_MAXSEG": (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 4),
    "TCP_NOTSENT_LOWAT": (socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, 4),
    "SO_MAX_PACING_RATE": (socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 8),
    "SO_PRIORITY": (socket.SOL_SOCKET, socket.SO_PRIORITY, 4),
    "SO_MARK": (socket.SOL_SOCKET, socket.SO_MARK, 4),
    "IP_TOS": (socket.IPPROTO_IP, socket.IP_TOS, 4),
    "IP_TTL": (socket.IPPROTO_IP, socket.IP_TTL, 4),
    "IP_MTU_DISCOVER": (socket.IPPROTO_IP, _IP_MTU_DISCOVER, 4),
    "IP_MTU": (socket.IPPROTO_IP, _IP_MTU, 4),
}
_BUFFERS = {"SO_SNDBUF": (1, socket.SO_SNDBUF), "SO_RCVBUF": (2, socket.SO_RCVBUF)}  # bits of SO_BUF_LOCK
_NAME_BYTES = 16  # TCP_CA_NAME_MAX


def read_socket_options(sock: socket.socket) -> SocketOptions:
    """Return a connection's options by name, without those that this kernel or kind of socket does not have.

    Buffer sizes are included only if they were set explicitly, because the kernel adapts the others as needed.
    """
    options: SocketOptions = {}
    for name, (level, option, size) in _OPTIONS.items():
        with contextlib.suppress(OSError):
            options[name] = int.from_bytes(sock.getsockopt(level, option, size), sys.byteorder)
    with contextlib.suppress(OSError):
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
        options["TCP_CONGESTION"] = raw.partition(b"\0")[0].decode()
    with contextlib.suppress(OSError):
        locked = sock.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)
        for name, (bit, option) in _BUFFERS.items():
            options[name] = (
                sock.getsockopt(socket.SOL_SOCKET, option) if locked & bit else "sized by the kernel"
            )
    return options


def changed_options(before: SocketOptions, after: SocketOptions) -> list[str]:
    """Return the options that differ, each with its old and new value."""
    return [
        f"{name} {before[name]} -> {value}"
        for name, value in after.items()
        if before.get(name, value) != value
    ]


# fields of struct tcp_info in linux/tcp.h: last_data_recv (milliseconds ago, in the kernel's ticks), bytes_received,
# segs_out, segs_in, bytes_sent (includes retransmissions)
_WIRE_COUNTS = struct.Struct("=52xI72xQII56xQ")
# from linux/mptcp.h: struct mptcp_subflow_data precedes one tcp_info per subflow
_MPTCP_TCPINFO = 2
_SUBFLOW_DATA = struct.Struct("=IIII")
_MAX_SUBFLOWS = 16

_libc = ctypes.CDLL(None, use_errno=True)


class WireCounts(NamedTuple):
    """Traffic of one or more connections since they were created.

    Attributes:
        subflows: The number of connections; for MPTCP, of subflows that exist now.
        segments_out: Segments sent.
        segments_in: Segments received.
        bytes_out: Payload sent. Retransmitted bytes count again.
        bytes_in: Payload received.
        quiet_s: Time since the last data arrived, in the kernel's ticks; infinity if unknown.
    """

    subflows: int = 0
    segments_out: int = 0
    segments_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    quiet_s: float = math.inf

    def add(self, other: WireCounts) -> WireCounts:
        """Return the sums, and the shorter `quiet_s`."""
        return WireCounts(
            self.subflows + other.subflows,
            self.segments_out + other.segments_out,
            self.segments_in + other.segments_in,
            self.bytes_out + other.bytes_out,
            self.bytes_in + other.bytes_in,
            min(self.quiet_s, other.quiet_s),
        )


def read_wire_counts(sock: socket.socket) -> WireCounts:
    """Return the counts of one connection. Raises OSError if it is closed."""
    if sock.proto == IPPROTO_MPTCP:
        return _read_subflow_counts(sock)
    return _unpack_wire_counts(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _WIRE_COUNTS.size))


def _unpack_wire_counts(raw: bytes) -> WireCounts:
    quiet_ms, bytes_in, segments_out, segments_in, bytes_out = _WIRE_COUNTS.unpack(
        raw.ljust(_WIRE_COUNTS.size, b"\0")
    )
    return WireCounts(1, segments_out, segments_in, bytes_out, bytes_in, quiet_ms / 1e3)


def _read_subflow_counts(sock: socket.socket) -> WireCounts:
    """Sum over all current subflows, through libc: Python's getsockopt cannot pass the input of MPTCP_TCPINFO."""
    room = ctypes.create_string_buffer(_SUBFLOW_DATA.size + _MAX_SUBFLOWS * _WIRE_COUNTS.size)
    _SUBFLOW_DATA.pack_into(room, 0, _SUBFLOW_DATA.size, 0, 0, _WIRE_COUNTS.size)
    length = ctypes.c_uint(len(room))
    if _libc.getsockopt(sock.fileno(), _SOL_MPTCP, _MPTCP_TCPINFO, room, ctypes.byref(length)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    _, subflows, _, size = _SUBFLOW_DATA.unpack_from(room)
    offsets = range(_SUBFLOW_DATA.size, _SUBFLOW_DATA.size + min(subflows, _MAX_SUBFLOWS) * size, size)
    total = WireCounts()
    for offset in offsets:
        total = total.add(_unpack_wire_counts(room.raw[offset : offset + size]))
    return total
