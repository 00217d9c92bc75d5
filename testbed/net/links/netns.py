"""Network namespaces: enter one for a `with` block, or run commands in one; also the clock offset of a time namespace.

A socket always belongs to the namespace in which it was created, so one process can hold sockets in many namespaces:
enter, open, leave. `os.setns` needs Python 3.12; this calls setns(2) itself.
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

_CLOCK_OFFSETS = Path("/proc/self/timens_offsets")

_libc = ctypes.CDLL(None, use_errno=True)


def set_network_namespace(descriptor: int) -> None:
    """Move the calling thread into the network namespace of an open descriptor. Raises OSError when refused."""
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def _unshare(namespace: int) -> None:
    if _libc.unshare(namespace) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare: {os.strerror(error)}")


def shift_monotonic_clock(offset_s: float) -> None:
    """Shift CLOCK_MONOTONIC for the future children of this process.

    Args:
        offset_s: How far their clock is ahead of this process's clock, in seconds.

    Raises:
        OSError: The kernel refused, or this process has called it before.
    """
    _unshare(CLONE_NEWTIME)
    # offsets are relative to the machine's clock, and this process may have one already
    offsets = {line.split()[0]: line.split()[1:] for line in _CLOCK_OFFSETS.read_text().splitlines()}
    own_s, own_ns = map(int, offsets["monotonic"])
    seconds, nanoseconds = divmod(round(offset_s * 1e9) + own_ns, 1_000_000_000)
    _CLOCK_OFFSETS.write_text(f"monotonic {own_s + seconds} {nanoseconds}\n")


@contextlib.contextmanager
def _restored_network_namespace() -> Iterator[None]:
    """Run the block, then return this thread to its network namespace."""
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
    """Run the block in a new, empty network namespace, which lives as long as the sockets opened in it.

    Raises:
        OSError: The kernel refused.
    """
    with _restored_network_namespace():
        _unshare(CLONE_NEWNET)
        yield


@contextlib.contextmanager
def network_namespace(pid: int | None) -> Iterator[None]:
    """Run the block in the network namespace of process `pid` (None: in the current one)."""
    if pid is None:
        yield
        return
    with _restored_network_namespace():
        target = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            set_network_namespace(target)
        finally:
            os.close(target)
        yield


def namespace_cookie(pid: int) -> int | None:
    """Return the unique id of a process's network namespace; unlike its inode number it is never reused until reboot.

    Returns:
        The id; None before Linux 5.14.

    Raises:
        OSError: The process has ended.
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
    """Return the command line that runs `arguments` in the namespaces of process `pid` (None: in the current ones)."""
    return arguments if pid is None else ["mnexec", "-a", str(pid), *arguments]


def run_script(pid: int | None, commands: list[str]) -> str:
    """Run shell commands in the namespaces of a process, up to the first that fails.

    Args:
        pid: The process; None for the current namespaces.
        commands: The commands.

    Returns:
        What they wrote to standard output.

    Raises:
        LinkError: A command failed, wrote to standard error, or exceeded TIMEOUT_S.
    """
    if not commands:
        return ""
    script = "\n".join(commands)
    return run_with_input(command_in_namespace(pid, ["sh", "-e"]), script, script, f" {script}")


def run_with_input(arguments: list[str], text: str, short: str, shown: str) -> str:
    """Run a program that reads commands, and return what it wrote to standard output.

    Args:
        arguments: The program and its arguments.
        text: The commands.
        short: The commands in the message of a time-out.
        shown: The commands in the message of a failure.

    Raises:
        LinkError: It failed, wrote to standard error, or exceeded TIMEOUT_S.
    """
    try:
        done = subprocess.run(
            arguments, input=f"{text}\n", capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise LinkError(f"cannot run {error.filename}: not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LinkError(f"not finished after {TIMEOUT_S} s: {short}") from error
    message = done.stderr.strip()
    if done.returncode != 0 or message:
        raise LinkError(f"failed ({done.returncode}): {message or 'no message'}\n  while running:{shown}")
    return done.stdout
