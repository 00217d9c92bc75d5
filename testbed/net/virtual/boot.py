"""Becomes a guest's kernel: limits itself, binds its life to its parent's, then executes. Standard library only.

Usage: boot.py CORE PARENT KERNEL ARGUMENT...
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
ADDR_NO_RANDOMIZE = 0x0040000


def main() -> None:
    """Never returns."""
    core, parent, kernel = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A guest is two processes that take turns: on one core a system call of its programs takes 7 us, on two cores 37.
    os.sched_setaffinity(0, {core})
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The guest's memory grows by a gap that the host's address layout leaves: a random one makes every guest another.
    libc.personality(ADDR_NO_RANDOMIZE)
    if os.getppid() == parent:
        library = os.environ.pop("GUEST_PRELOAD")
        os.execve(kernel, sys.argv[3:], {**os.environ, "LD_PRELOAD": library})


main()
