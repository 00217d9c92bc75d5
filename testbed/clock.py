"""The clock a program runs under, real or virtual, and the tick of the virtual one."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import Literal

CLOCK_VARIABLE = "TESTBED_VIRTUAL_CLOCK"

# What computing costs in virtual time: nothing, or what it takes on the host.
CpuTime = Literal["free", "counted"]


def clock_here() -> CpuTime | None:
    """What computing costs where this program runs; None under the real clock."""
    known: dict[str, CpuTime] = {"free": "free", "counted": "counted"}
    return known.get(os.environ.get(CLOCK_VARIABLE, ""))


def sleep_until(moment_s: float) -> None:
    """Sleep until a moment of CLOCK_MONOTONIC; under the virtual clock the sleeper wakes at its very nanosecond."""
    left_ns = round(moment_s * 1e9) - time.monotonic_ns()
    time.sleep(max(0.0, left_ns - 0.5) / 1e9)  # which is rounded up to a whole one


_libc = ctypes.CDLL(None, use_errno=True)


def private_memory(size_bytes: int) -> mmap.mmap:
    """Zeroed memory of at least this size, writable, given back when nothing refers to it any more."""
    if clock_here() is None:
        return mmap.mmap(-1, max(1, size_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    memory = mmap.mmap(-1, max(1, size_bytes), flags=flags)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for protection in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory


KERNEL_TICK_HZ = 1000  # per second, while it is not idle: see testbed.net.virtual.kernel_patches
KERNEL_TICK_S = 1 / KERNEL_TICK_HZ
STEP_ALIGNMENT_TICKS = 10
"""A step begins on a beat. Who waits for it hears nobody at the end: for less than what counts as a stall."""
STEP_ALIGNMENT_S = STEP_ALIGNMENT_TICKS / KERNEL_TICK_HZ
