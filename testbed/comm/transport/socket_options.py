"""What a connection goes by that only the owner of its socket can read, to notice whoever changes it meanwhile."""

from __future__ import annotations

import contextlib
import socket
import sys

Options = dict[str, int | str]

# of asm-generic/socket.h, linux/tcp.h and linux/in.h, where Python has no names for them: level, option, size in bytes
_SO_MAX_PACING_RATE, _SO_BUF_LOCK, _TCP_NOTSENT_LOWAT, _IP_MTU_DISCOVER, _IP_MTU = 47, 72, 25, 10, 14
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


def read_options(sock: socket.socket) -> Options:
    """Return a connection's options by name, without those that this kernel or kind of socket does not have.

    Buffers count only where somebody has set their size: the kernel sizes the others as it needs them.
    """
    found: Options = {}
    for name, (level, option, size) in _OPTIONS.items():
        with contextlib.suppress(OSError):
            found[name] = int.from_bytes(sock.getsockopt(level, option, size), sys.byteorder)
    with contextlib.suppress(OSError):
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES)
        found["TCP_CONGESTION"] = raw.partition(b"\0")[0].decode()
    with contextlib.suppress(OSError):
        locked = sock.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)
        for name, (bit, option) in _BUFFERS.items():
            found[name] = (
                sock.getsockopt(socket.SOL_SOCKET, option) if locked & bit else "sized by the kernel"
            )
    return found


def changes(before: Options, after: Options) -> list[str]:
    """Say which options differ, each with its old and new value."""
    return [
        f"{name} {before[name]} -> {value}"
        for name, value in after.items()
        if before.get(name, value) != value
    ]
