"""Which clock a program runs under: told by the guest's first process through the environment."""

from __future__ import annotations

import os
from typing import Literal

CLOCK_VARIABLE = "TESTBED_VIRTUAL_CLOCK"

# What computing costs in virtual time: nothing, or what it takes on the host.
CpuTime = Literal["free", "counted"]


def clock_here() -> CpuTime | None:
    """What computing costs where this program runs; None under the real clock."""
    known: dict[str, CpuTime] = {"free": "free", "counted": "counted"}
    return known.get(os.environ.get(CLOCK_VARIABLE, ""))
