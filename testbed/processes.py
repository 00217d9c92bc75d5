"""Processes: when one started, children that do not outlive their parent, signals that wait until something is done."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent dies; at once if the parent is gone already."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def process_started(pid: int) -> float | None:
    """Start of a process in clock ticks since boot, which with its id names it for good; None when it has ended.

    Not psutil's time of day, which moves when the machine's clock is set: an owner would look like somebody else.
    """
    try:
        state, *figures = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state == "Z" else float(figures[18])


def make_room_for_files(needed: int | None = None) -> None:
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
def signals_held() -> Iterator[None]:
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
