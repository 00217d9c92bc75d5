"""Launcher of a guest's kernel: it sets limits, dies with its parent, and executes the kernel. Standard library only.

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
    """Replace this process with the kernel."""
    core, parent, kernel = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A guest has two processes that alternate: a system call of its programs takes 7 us on one core, 37 us on two.
    os.sched_setaffinity(0, {core})
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A gap in the host's address layout adds to the guest's memory; with a random layout, every guest would differ.
    libc.personality(ADDR_NO_RANDOMIZE)
    if os.getppid() == parent:
        library = os.environ.pop("GUEST_PRELOAD")
        os.execve(kernel, sys.argv[3:], {**os.environ, "LD_PRELOAD": library})


main()
