"""A process that ends without a word: its connections are gone, and no peer hears of it, as when a machine loses power.

What a process leaves behind its kernel ends in good order, or resets; where the network is cut it goes on trying. A
connection under repair is dropped instead (TCP_REPAIR, made for moving processes to other machines).
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

TCP_REPAIR = 19
_PIDFD_GETFD = 438  # of all architectures: this and newer calls are numbered alike
_libc = ctypes.CDLL(None, use_errno=True)


def forget_connections(pid: int) -> int:
    """Have the kernel say nothing when a process, which stands still, ends: how many TCP connections it has. OSError.

    Those of MPTCP, and ones that nobody has accepted yet, are left as they are.
    """
    found = 0
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=_copied(process, int(entry.name))) as copy:
                found += _repaired(copy)
    finally:
        os.close(process)
    return found


def _copied(process: int, number: int) -> int:
    """A file of another process's as one of ours."""
    copy = int(_libc.syscall(_PIDFD_GETFD, process, number, 0))
    if copy < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"pidfd_getfd: {os.strerror(error)}")
    return copy


def _repaired(copy: socket.socket) -> bool:
    if copy.family != socket.AF_INET or copy.type != socket.SOCK_STREAM:
        return False
    try:
        copy.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except OSError:  # a listener has no peer
        return False
    return True
