"""TCP sockets: settings with read-back, and what the kernel knows about a connection."""

from __future__ import annotations

import contextlib
import fcntl
import math
import socket
import struct
import sys
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.comm.transport.base import BEST_EFFORT, TrafficClass, TransportError
from testbed.comm.transport.wire import ConnectionKey

# of struct tcp_info in linux/tcp.h: name here, offset, format, unit in which the kernel counts
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
_GLANCE = struct.Struct("=68xI8xI16xI16xQ")  # of these rtt, congestion window, retransmits, bytes_acked
_CONGESTION_CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


# of asm-generic/socket.h
_SO_MAX_PACING_RATE, _UNPACED = 47, 2**32 - 1  # unpaced is all ones, of whatever width
FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # with which root may pass the machine's limits
# of linux/mptcp.h
_SOL_MPTCP, _MPTCP_INFO, _MPTCP_FELL_BACK = 284, 1, 1
IPPROTO_MPTCP = 262  # socket.IPPROTO_MPTCP from Python 3.10 on Linux, but not in every build


@dataclass(frozen=True)
class SocketSettings:
    """What every socket of a transport gets; None leaves the kernel's default.

    window_bytes: the most that may be under way; both buffers are twice that, for what waits to be sent or read.
    """

    congestion_control: str | None = None
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    multipath: bool = False
    pacing_bps: float | None = None
    window_bytes: int | None = None

    def make(self) -> socket.socket:
        """A new socket. TransportError where the kernel has no MPTCP."""
        try:
            return socket.socket(
                socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if self.multipath else socket.IPPROTO_TCP
            )
        except OSError as error:
            raise TransportError(
                f"MPTCP: the kernel has none ({error.strerror}); see net.mptcp.enabled"
            ) from None

    def apply(self, sock: socket.socket, traffic: TrafficClass = BEST_EFFORT) -> None:
        """Set and read back; raises TransportError where the kernel refuses or does something else."""
        sock.setblocking(False)
        self.mark(sock, traffic)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        room = None if self.window_bytes is None else 2 * self.window_bytes
        for option, size in (
            (socket.SO_SNDBUF, self.send_buffer_bytes or room),
            (socket.SO_RCVBUF, self.receive_buffer_bytes or room),
        ):
            if size is not None:
                _set_buffer(sock, option, size)
        if self.window_bytes is not None:
            # a buffer that is set is not widened any more, and one that was accepted would keep its first window
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, self.window_bytes)
        if self.congestion_control is not None:
            _set_congestion_control(sock, self.congestion_control)
        if self.pacing_bps is not None:
            _set_pacing(sock, self.pacing_bps)

    def mark(self, sock: socket.socket, traffic: TrafficClass) -> None:
        """Give the socket's packets this class, and read it back."""
        if traffic.dscp:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, traffic.dscp << 2)
            got = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2
            if got != traffic.dscp:
                raise TransportError(f"DSCP: asked for {traffic.dscp}, the kernel uses {got}")
        if traffic.priority:  # after the DSCP, which sets one of its own
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, traffic.priority)
            got = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
            if got != traffic.priority:
                raise TransportError(f"socket priority: asked for {traffic.priority}, the kernel uses {got}")


@dataclass(frozen=True)
class MeshSettings:
    """How sockets are made and how long things may take.

    socket_of: (rank, peer, which connection, what all get) -> what this one gets.
    token: the same for all ranks of a job; connections from any other job are refused.
    congestion_control: set on every socket and read back; None leaves the kernel's default.
    multipath: MPTCP in place of TCP.
    source_port: (rank, peer, which connection) -> local port of a connection that `rank` dials to a peer, for hashing
    that can be repeated.
    incarnation: for how many times this rank has come back after it was lost.
    bootstrap_timeout_s: for dialling a peer, which may start later than this rank, until both have said hello.
    close_timeout_s: bound of `close`. max_staged_bytes: per peer, for messages that come before their receive; a peer
    that sends more has to wait. send_buffer_bytes, receive_buffer_bytes: of each socket; None: sized by the kernel.
    port_bps: of this rank's card. bdp_bytes: per rank what is under way when the empty path to it is full; path_bps:
    per rank its narrowest link; round_trips_s: per rank what a full packet and its acknowledgement take there; None:
    not known.
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
        """The part that every socket gets."""
        return SocketSettings(
            self.congestion_control, self.send_buffer_bytes, self.receive_buffer_bytes, self.multipath
        )

    def settings_of(self, rank: int, peer: int, key: ConnectionKey) -> SocketSettings:
        """What the sockets of one connection get."""
        return self.sockets if self.socket_of is None else self.socket_of(rank, peer, key, self.sockets)

    def local_port(self, rank: int, peer: int, key: ConnectionKey) -> int:
        """From which port `rank` dials a peer; 0 for any."""
        return 0 if self.source_port is None else self.source_port(rank, peer, key)


def congestion_control(sock: socket.socket) -> str:
    """The name of the congestion control that the socket uses now."""
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
        with contextlib.suppress(PermissionError):  # root may pass the machine's limit
            sock.setsockopt(socket.SOL_SOCKET, FORCED[option], size)
    in_use = sock.getsockopt(socket.SOL_SOCKET, option) // 2  # the kernel doubles it for its own needs
    if in_use < size:
        name, limit = ("send", "wmem_max") if option == socket.SO_SNDBUF else ("receive", "rmem_max")
        raise TransportError(
            f"{name} buffer: asked for {size} bytes, the kernel gives {in_use}; see net.core.{limit}"
        )


def _set_pacing(sock: socket.socket, rate_bps: float) -> None:
    size = max(1, round(rate_bps / 8))
    sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, size.to_bytes(8, sys.byteorder))
    if (in_use := _pacing(sock)) != size:
        raise TransportError(f"pacing: asked for {size} bytes/s, the kernel uses {in_use}")


def _pacing(sock: socket.socket) -> int:
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, 8), sys.byteorder)


def describe(sock: socket.socket) -> dict[str, Any]:
    """A connection's congestion control and history, ready for JSON; seconds, bytes, segments.

    What a kernel older than a figure does not know reads as 0.
    """
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES).ljust(_TCP_INFO_BYTES, b"\0")
    figures = {
        name: round(struct.unpack_from(form, raw, offset)[0] * unit, 6)
        for name, offset, form, unit in _TCP_INFO
    }
    more: dict[str, Any] = {}
    if sock.proto == IPPROTO_MPTCP:
        with contextlib.suppress(ValueError):
            more["subflows"] = subflows(sock)
    for name, option in (("send_buffer_bytes", socket.SO_SNDBUF), ("receive_buffer_bytes", socket.SO_RCVBUF)):
        more[name] = sock.getsockopt(socket.SOL_SOCKET, option) // 2
    if (pacing := _pacing(sock)) < _UNPACED:
        more["pacing_bps"] = pacing * 8
    return {"congestion_control": congestion_control(sock), **figures, **more}


def glance(sock: socket.socket) -> dict[str, float]:
    """The part of `describe` that changes all the time, and quickly; seconds, segments, bytes."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _GLANCE.size)
    rtt_us, window, retransmits, acked = _GLANCE.unpack(raw)
    return {
        "rtt_s": rtt_us / 1e6,
        "congestion_window_segments": window,
        "retransmits": retransmits,
        "bytes_acked": acked,
    }


def state_words(sock: socket.socket) -> str:
    """Where bytes are that do not arrive, for people. OSError when the socket has gone."""
    unread, unacknowledged = (
        int.from_bytes(fcntl.ioctl(sock, what, bytes(4)), sys.byteorder)
        for what in (termios.FIONREAD, termios.TIOCOUTQ)
    )
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    (heard_ms,) = struct.unpack_from("=I", raw, _LAST_DATA_RECEIVED)
    return f"{unread} bytes unread, {unacknowledged} not acknowledged, last data came {heard_ms} ms ago"


def subflows(sock: socket.socket) -> int:
    """How many subflows an MPTCP connection has. ValueError when it is plain TCP, by the other end for example."""
    try:
        raw = sock.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 64)
    except OSError:
        raise ValueError("MPTCP: the other end, or something on the way, speaks plain TCP only") from None
    (flags,) = struct.unpack_from("=I", raw, 8)
    if flags & _MPTCP_FELL_BACK:
        raise ValueError("MPTCP: the connection fell back to plain TCP")
    return 1 + raw[0]
