"""Room for frames that wait for Open vSwitch.

The userspace datapath reads each port through a packet socket that gets the machine's default receive buffer: some 20
jumbo frames. When its one thread has to wait a few milliseconds for a core, that overflows and frames are lost that no
counter of the switch shows. The default is raised while the ports are made, for a moment, and put back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

DEFAULT_RECEIVE_BUFFER = Path("/proc/sys/net/core/rmem_default")
LARGE_BYTES = 16 * 1024 * 1024
_FORMER = "rmem_default"  # file in the state's root: what to put back, should we be killed in between


@contextlib.contextmanager
def large_receive_buffers(root: Path) -> Iterator[None]:
    """Sockets made on this machine within the block get room; one process at a time; left alone where read-only.

    `root` is the folder of all fabrics' states: the lock is on it, and what to put back is written there.
    """
    with _locked(root):
        former = DEFAULT_RECEIVE_BUFFER.read_text().strip()
        try:
            if int(former) < LARGE_BYTES:
                (root / _FORMER).write_text(former)
                with contextlib.suppress(OSError):
                    DEFAULT_RECEIVE_BUFFER.write_text(str(LARGE_BYTES))
            yield
        finally:
            _restore(root)


def restore_after_kill(root: Path) -> None:
    """Put the default back if whoever had raised it was killed; waits for one who is at it."""
    if (root / _FORMER).exists():
        with _locked(root):
            pass


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _restore(root)  # nobody else is at it, so what is written there is a dead one's
        yield
    finally:
        os.close(descriptor)


def _restore(root: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        former = (root / _FORMER).read_text().strip()
        if former.isdigit():
            with contextlib.suppress(OSError):
                DEFAULT_RECEIVE_BUFFER.write_text(former)
        (root / _FORMER).unlink()
