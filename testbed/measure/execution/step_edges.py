"""When a job's measured steps begin and end, for who reads counters at these moments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from testbed.clock import CpuTime, clock_here, sleep_until

NEAR_S = 0.001  # who waits for a launcher's words wakes up this late at most
EARLY_S: dict[CpuTime | None, float] = {"free": NEAR_S, None: 0.005, "counted": math.inf}
"""How long before a step's start its counters are due to be read, by what computing costs.

By the real clock a reading takes some milliseconds, and ranks that begin meanwhile would wait for a core. All ranks
have agreed on the start by then, and nothing is on its way but their last acknowledgements. In a guest whose computing
counts a reading may take longer: there it is due as soon as the start is known.
"""


class StepEdges:
    """Which edges of measured steps are due, from what the launchers say."""

    def __init__(self) -> None:
        self._clock = clock_here()
        self._starts_s: deque[float] = deque()
        self._ended: dict[int, int] = {}  # ranks that have ended a step, by its number

    @property
    def due_s(self) -> float | None:
        """When somebody should be back to read at a start; None while no step is about to begin."""
        if not self._starts_s:
            return None
        return self._starts_s[0] - EARLY_S[self._clock]

    def began(self, event: Mapping[str, Any]) -> None:
        """A step is going to begin: an event `step` of a launcher's."""
        if event["trial"] >= 0:
            self._starts_s.append(event["start_s"])

    def ended(self, event: Mapping[str, Any]) -> bool:
        """Some ranks have ended a step: an event `ended` of a launcher's. Whether all have now."""
        count = self._ended.pop(event["index"], 0) + event["ranks"]
        if count >= event["of"]:
            return True
        self._ended[event["index"]] = count
        return False

    def wait_for_start(self) -> None:
        """Sleep for what is left until the start that is due, where a reading takes no time; else do so at once."""
        start_s = self._starts_s.popleft()
        if self._clock == "free":
            sleep_until(start_s - 2e-9)  # a timer comes a nanosecond late
