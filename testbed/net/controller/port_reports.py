"""What switches reported of their ports, kept until a controller that takes its time acts on it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class PortReport:
    """Which ports (datapath id, number) were down at a time, as the switches said."""

    time_s: float
    ports_down: frozenset[tuple[int, int]]


class PortReports:
    """Reports in the order in which they came. Each is acted on `reaction_s` after it came, not before.

    One that comes while another is waiting is acted on after it; those that fall due while the controller is at work
    are taken together, and the latest counts.
    """

    def __init__(self, reaction_s: float) -> None:
        self._reaction_s = reaction_s
        self._reports: deque[PortReport] = deque()

    def add(self, report: PortReport) -> None:
        """Keep a report that came just now."""
        self._reports.append(report)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until one is due; None where there is none."""
        return max(0.0, self._reports[0].time_s + self._reaction_s - now_s) if self._reports else None

    def take(self, now_s: float) -> PortReport | None:
        """The report to act on now, None if none is due; those before it are dropped."""
        found = None
        while self._reports and self._reports[0].time_s + self._reaction_s <= now_s:
            found = self._reports.popleft()
        return found
