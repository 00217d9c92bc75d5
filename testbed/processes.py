"""Child processes, signals, open files, and TCP connections that end without FIN or RST."""

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
    """Let the kernel signal this process when its parent dies, or at once if the parent is already gone."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def process_start_ticks(pid: int) -> float | None:
    """Return a process's start in clock ticks since boot, which identifies it together with its id; None if it ended.

    psutil's start time would change when the machine's clock is set, so that an owner would look like another process.
    """
    try:
        state, *figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else float(figures[18])


def raise_open_file_limit(needed: int | None = None) -> None:
    """Raise this process's limit of open files to twice `needed` as far as allowed, or to the maximum for None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed is None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    elif soft != resource.RLIM_INFINITY and needed > soft:
        wanted = 2 * needed
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(hard, wanted), hard)
        )


def wait_or_kill(process: subprocess.Popen[Any], timeout_s: float) -> None:
    """Wait for a child that was told to end; kill it on timeout."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def close_pipes(process: subprocess.Popen[Any]) -> None:
    """Close this end of a child's pipes in any state; many children end when their input closes."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP that arrive in the block until it ends."""
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
        """Return the file descriptor."""
        ...


File = TypeVar("File", bound="int | _Numbered")


def wait_readable(files: Sequence[File], timeout_s: float | None) -> list[File]:
    """Return the files that are readable or at their end, waiting up to `timeout_s` (rounded up to ms) for one."""
    poll = select.poll()
    numbered = {file if isinstance(file, int) else file.fileno(): file for file in files}
    for number in numbered:
        poll.register(number, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000))
    return [numbered[number] for number, _ in found]


TCP_REPAIR = 19
_PIDFD_GETFD = 438  # the same number on all architectures, as for all newer calls
_libc = ctypes.CDLL(None, use_errno=True)


def suppress_tcp_close(pid: int) -> int:
    """Keep the kernel from sending FIN or RST when a stopped process ends; return its number of TCP connections.

    MPTCP connections and those not yet accepted are left unchanged. OSError is raised on failure.
    """
    found = 0
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=_duplicate_fd(process, int(entry.name))) as copy:
                found += _enable_tcp_repair(copy)
    finally:
        os.close(process)
    return found


def _duplicate_fd(process: int, number: int) -> int:
    """Duplicate another process's file descriptor."""
    copy = int(_libc.syscall(_PIDFD_GETFD, process, number, 0))
    if copy < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"pidfd_getfd: {os.strerror(error)}")
    return copy


def _enable_tcp_repair(copy: socket.socket) -> bool:
    if copy.family != socket.AF_INET or copy.type != socket.SOCK_STREAM:
        return False
    try:
        copy.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except OSError:  # a listener has no peer
        return False
    return True
