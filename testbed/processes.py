"""Child processes, signals, open files, and connections that end without FIN or RST."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

PR_SET_PDEATHSIG = 1


def set_parent_death_signal(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent dies; at once if the parent is gone already."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def process_start_ticks(pid: int) -> float | None:
    """Start of a process in clock ticks since boot, which with its id names it for good; None when it has ended.

    Not psutil's time of day, which moves when the machine's clock is set: an owner would look like somebody else.
    """
    try:
        state, *figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else float(figures[18])


def raise_open_file_limit(needed: int | None = None) -> None:
    """Let this process have so many files open, and as many again, as far as it may; None: as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed is None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif soft != resource.RLIM_INFINITY and needed > soft:
        wanted = 2 * needed
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(hard, wanted), hard)
        )


def wait_or_kill(process: subprocess.Popen[Any], timeout_s: float) -> None:
    """Wait for a child that was told to end; kill it when it does not in its time."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def close_pipes(process: subprocess.Popen[Any]) -> None:
    """Close this end of a child's pipes, whatever state they are in; for many a child that is the word to end."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM that arrive meanwhile take effect after the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


class _Numbered(Protocol):
    def fileno(self) -> int:
        """Its file descriptor."""
        ...


File = TypeVar("File", bound="int | _Numbered")


def wait_readable(files: Sequence[File], timeout_s: float | None) -> list[File]:
    """Those that can be read from, or have ended, waiting up to `timeout_s` (rounded up to milliseconds) for one."""
    poll = select.poll()
    numbered = {file if isinstance(file, int) else file.fileno(): file for file in files}
    for number in numbered:
        poll.register(number, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000))
    return [numbered[number] for number, _ in found]


TCP_REPAIR = 19
_PIDFD_GETFD = 438  # of all architectures: this and newer calls are numbered alike
_libc = ctypes.CDLL(None, use_errno=True)


def suppress_tcp_close(pid: int) -> int:
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
