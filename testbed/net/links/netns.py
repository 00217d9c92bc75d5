"""Network namespaces: enter one for a `with` block, run commands in one, shift its clock for children.

A socket belongs for its whole life to the namespace in which it was made, so one process can hold sockets in many
namespaces: enter, open, leave. `os.setns` exists only from Python 3.12 on; this calls setns(2) itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from testbed.net.errors import LinkError

CLONE_NEWNET, CLONE_NEWTIME = 0x40000000, 0x00000080
SO_NETNS_COOKIE, _COOKIE_BYTES = 71, 8

_CLOCKS = Path("/proc/self/timens_offsets")

_libc = ctypes.CDLL(None, use_errno=True)


def set_network_namespace(descriptor: int) -> None:
    """Move the calling thread into the network namespace behind an open descriptor; OSError when refused."""
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def _unshare(namespace: int) -> None:
    if _libc.unshare(namespace) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare: {os.strerror(error)}")


def shift_monotonic_clock(offset_s: float) -> None:
    """Have this process's children, from now on, see CLOCK_MONOTONIC so much ahead. Once in a process; OSError."""
    _unshare(CLONE_NEWTIME)
    # counted from the machine's own clock, from which this process may be ahead already
    offsets = {line.split()[0]: line.split()[1:] for line in _CLOCKS.read_text().splitlines()}
    already_s, already_ns = map(int, offsets["monotonic"])
    seconds, nanoseconds = divmod(round(offset_s * 1e9) + already_ns, 1_000_000_000)
    _CLOCKS.write_text(f"monotonic {already_s + seconds} {nanoseconds}\n")


@contextlib.contextmanager
def _coming_back() -> Iterator[None]:
    """Wherever the block takes this thread, it is back in its network namespace afterwards."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            yield
        finally:
            set_network_namespace(home)
    finally:
        os.close(home)


@contextlib.contextmanager
def empty_network_namespace() -> Iterator[None]:
    """Run the block in a new network namespace with nothing in it; it lives on in the sockets opened there. OSError."""
    with _coming_back():
        _unshare(CLONE_NEWNET)
        yield


@contextlib.contextmanager
def network_namespace(pid: int | None) -> Iterator[None]:
    """Run the block in the network namespace of process `pid` (None: stay here), then come back."""
    if pid is None:
        yield
        return
    with _coming_back():
        away = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            set_network_namespace(away)
        finally:
            os.close(away)
        yield


def namespace_cookie(pid: int) -> int | None:
    """What tells a process's network namespace from all others since boot; its inode's number is soon another's.

    None where the kernel has no such thing (Linux 5.14 has); OSError when the process has ended.
    """
    with network_namespace(pid), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inside:
        try:
            cookie = inside.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, _COOKIE_BYTES)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            return None
    return int.from_bytes(cookie, sys.byteorder)


TIMEOUT_S = 30


def command_in_namespace(pid: int | None, arguments: list[str]) -> list[str]:
    """The command line that runs `arguments` in the namespaces of process `pid` (None: right here)."""
    return arguments if pid is None else ["mnexec", "-a", str(pid), *arguments]


def run_script(pid: int | None, commands: list[str]) -> str:
    """Run shell commands one after the other, stopping at the first that fails; returns what they printed.

    Raises LinkError with the command's own words when one fails, prints to standard error, or hangs.
    """
    if not commands:
        return ""
    script = "\n".join(commands) + "\n"
    try:
        done = subprocess.run(
            command_in_namespace(pid, ["sh", "-e"]),
            input=script,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise LinkError(f"cannot run {error.filename}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LinkError(f"no end after {TIMEOUT_S} s: {script.strip()}") from error
    complaint = done.stderr.strip()
    if done.returncode != 0 or complaint:
        raise LinkError(
            f"failed ({done.returncode}): {complaint or 'no message'}\n  while running: {script.strip()}"
        )
    return done.stdout
