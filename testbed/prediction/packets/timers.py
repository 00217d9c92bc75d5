"""Kernel timers with jiffy resolution; a connection has one of them at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

from testbed.clock import KERNEL_TICK_S
from testbed.prediction.events import EventQueue

LEAST_S = 2e-3  # `TCP_TIMEOUT_MIN_US`
# levels of the timer wheel (`calc_wheel_index`): each is 8 times as coarse, and starts 8 times as far ahead
COARSER, FIRST_LEVEL = 8, 63


def timer_s(now_s: float, seconds: float) -> float:
    """Return when a timer that is set now fires; it is never early, so it fires at least one wheel bucket later."""
    ahead = math.ceil(seconds / KERNEL_TICK_S)
    apart, ends = 1, FIRST_LEVEL
    while ahead >= ends:
        apart, ends = apart * COARSER, ends * COARSER
    return (int(now_s / KERNEL_TICK_S) + ahead + apart) // apart * apart * KERNEL_TICK_S


class Timer:
    """A timer with one callback; setting it replaces the previous one."""

    def __init__(self, events: EventQueue) -> None:
        self.events = events
        self._alarm_s = math.inf
        self._set_s = self._wait_s = 0.0
        self._act: Callable[[], None] | None = None

    def set(self, seconds: float, act: Callable[[], None]) -> None:
        """Set the timer."""
        now_s = self.events.now_s
        self._set_s, self._wait_s, self._act = now_s, seconds, act
        if now_s + seconds < self._alarm_s:  # otherwise the pending alarm fires first and then reschedules
            self._set_alarm(timer_s(now_s, seconds))

    def stop(self) -> None:
        """Cancel the timer."""
        self._act = None

    def _set_alarm(self, at_s: float) -> None:
        if at_s < self._alarm_s:
            self._alarm_s = at_s
            self.events.call_at(at_s, self._ring)

    def _ring(self) -> None:
        now_s, act = self.events.now_s, self._act
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

    def continue_on(self, events: EventQueue) -> None:
        """Continue on another event queue without a pending alarm."""
        self.events = events
        self._alarm_s = math.inf
        self.stop()
