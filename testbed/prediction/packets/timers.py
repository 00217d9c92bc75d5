"""Kernel timers: they go by jiffies, and a connection has one of them at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

from testbed.clock import KERNEL_TICK_S
from testbed.prediction.events import EventQueue

LEAST_S = 2e-3  # `TCP_TIMEOUT_MIN_US`
# levels of the wheel (`calc_wheel_index`): each is 8 times as coarse as the one before, and begins 8 times as far ahead
COARSER, FIRST_LEVEL = 8, 63


def timer_s(now_s: float, seconds: float) -> float:
    """When a timer that is set now goes off: never early, so a bucket of the wheel later at the least."""
    ahead = math.ceil(seconds / KERNEL_TICK_S)
    apart, ends = 1, FIRST_LEVEL
    while ahead >= ends:
        apart, ends = apart * COARSER, ends * COARSER
    return (int(now_s / KERNEL_TICK_S) + ahead + apart) // apart * apart * KERNEL_TICK_S


class Timer:
    """Whoever sets it anew takes the place of who set it before."""

    def __init__(self, agenda: EventQueue) -> None:
        self.agenda = agenda
        self._alarm_s = math.inf
        self._set_s = self._wait_s = 0.0
        self._act: Callable[[], None] | None = None

    def set(self, seconds: float, act: Callable[[], None]) -> None:
        """After so long."""
        now_s = self.agenda.now_s
        self._set_s, self._wait_s, self._act = now_s, seconds, act
        if now_s + seconds < self._alarm_s:  # else the alarm is no later: it looks then when this goes off
            self._set_alarm(timer_s(now_s, seconds))

    def stop(self) -> None:
        """For good."""
        self._act = None

    def _set_alarm(self, at_s: float) -> None:
        if at_s < self._alarm_s:
            self._alarm_s = at_s
            self.agenda.at(at_s, self._ring)

    def _ring(self) -> None:
        now_s, act = self.agenda.now_s, self._act
        if now_s >= self._alarm_s:
            self._alarm_s = math.inf
        if act is None:
            return
        at_s = timer_s(self._set_s, self._wait_s)
        if now_s < at_s:
            self._set_alarm(at_s)
            return
        self.stop()
        act()

    def go_on(self, agenda: EventQueue) -> None:
        """By another's time: nothing is left of this one's."""
        self.agenda = agenda
        self._alarm_s = math.inf
        self.stop()
