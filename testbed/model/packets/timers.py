"""Kernel timers: they go by jiffies, and a connection has one of them at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

from testbed.model.keeping import Agenda
from testbed.paths.congestion.base import JIFFY_S

LEAST_S = 2e-3  # `TCP_TIMEOUT_MIN_US`
# levels of the wheel (`calc_wheel_index`): each is 8 times as coarse as the one before, and begins 8 times as far ahead
COARSER, FIRST_LEVEL = 8, 63


def timer_s(now_s: float, seconds: float) -> float:
    """When a timer that is set now goes off: never early, so a bucket of the wheel later at the least."""
    ahead = math.ceil(seconds / JIFFY_S)
    apart, ends = 1, FIRST_LEVEL
    while ahead >= ends:
        apart, ends = apart * COARSER, ends * COARSER
    return (int(now_s / JIFFY_S) + ahead + apart) // apart * apart * JIFFY_S


class Timer:
    """Whoever sets it anew takes the place of who set it before."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self._at_s, self._alarm_s = math.inf, math.inf
        self._act: Callable[[], None] | None = None

    def set(self, seconds: float, act: Callable[[], None]) -> None:
        """After so long."""
        at_s = timer_s(self.agenda.now_s, seconds)
        self._at_s, self._act = at_s, act
        if at_s < self._alarm_s:
            self._alarm_s = at_s
            self.agenda.at(at_s, self._ring)

    def stop(self) -> None:
        """For good."""
        self._at_s, self._act = math.inf, None

    def _ring(self) -> None:
        now_s = self.agenda.now_s
        if now_s >= self._alarm_s:
            self._alarm_s = math.inf
        if now_s < self._at_s:
            if self._alarm_s > self._at_s and self._at_s < math.inf:
                self._alarm_s = self._at_s
                self.agenda.at(self._at_s, self._ring)
            return
        act = self._act
        self.stop()
        if act is not None:
            act()

    def go_on(self, agenda: Agenda) -> None:
        """By another's time: nothing is left of this one's."""
        self.agenda = agenda
        self._alarm_s = math.inf
        self.stop()
