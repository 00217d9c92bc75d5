"""The clock under which a program runs, real or virtual, and the tick of the virtual clock."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import Literal

CLOCK_VARIABLE = "TESTBED_VIRTUAL_CLOCK"

# The cost of computation in virtual time: nothing, or its CPU time on the host.
CpuTime = Literal["free", "counted"]


def clock_here() -> CpuTime | None:
    """Return the cost of computation under this program's clock; None under the real clock."""
    known: dict[str, CpuTime] = {"free": "free", "counted": "counted"}
    return known.get(os.environ.get(CLOCK_VARIABLE, ""))


def sleep_until(moment_s: float) -> None:
    """Sleep until a time on CLOCK_MONOTONIC, exact to the nanosecond under the virtual clock."""
    left_ns = round(moment_s * 1e9) - time.monotonic_ns()
    time.sleep(max(0.0, left_ns - 0.5) / 1e9)  # the kernel rounds up to a whole nanosecond


_libc = ctypes.CDLL(None, use_errno=True)


def private_memory(size_bytes: int) -> mmap.mmap:
    """Return zeroed, writable memory of at least this size, freed when nothing refers to it."""
    if clock_here() is None:
        return mmap.mmap(-1, max(1, size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    memory = mmap.mmap(-1, max(1, size_bytes), flags=flags)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for protection in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory


KERNEL_TICK_HZ = 1000  # while the kernel is not idle, see testbed.net.virtual.kernel_patches
KERNEL_TICK_S = 1 / KERNEL_TICK_HZ
STEP_ALIGNMENT_TICKS = 10
"""Ticks between possible step starts. A rank that waits for one is silent for less than a stall's threshold."""
STEP_ALIGNMENT_S = STEP_ALIGNMENT_TICKS / KERNEL_TICK_HZ
