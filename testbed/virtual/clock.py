"""Which clock a program runs under: told by the guest's first process through the environment."""

from __future__ import annotations

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
