"""When what a rank computes, or waits out, will be over: computing is slower while its messages take part of it."""

from __future__ import annotations


class Timed:
    """Computing and pauses under way, by number. share: of the speed of computing that is lost while it is slowed."""

    def __init__(self, share: float = 0.0) -> None:
        self._slower = 1 / (1 - share)
        self._slowed = False
        self._computing: dict[int, float] = {}
        self._pauses: dict[int, float] = {}

    def compute(self, number: int, at_s: float, duration_s: float) -> None:
        """Begin to, for so long at full speed."""
        self._computing[number] = at_s + duration_s * (self._slower if self._slowed else 1.0)

    def pause(self, number: int, at_s: float, duration_s: float) -> None:
        """Begin to wait, which takes as long as it takes."""
        self._pauses[number] = at_s + duration_s

    def slow(self, at_s: float, whether: bool) -> None:
        """From now on what is left of computing takes longer, or no longer."""
        if whether == self._slowed:
            return
        self._slowed = whether
        if self._slower != 1:
            factor = self._slower if whether else 1 / self._slower
            for number, end_s in self._computing.items():
                self._computing[number] = at_s + max(0.0, end_s - at_s) * factor

    def over(self, now_s: float) -> dict[int, float]:
        """Those that have ended, and when; they are forgotten."""
        found: dict[int, float] = {}
        for under_way in (self._computing, self._pauses):
            ended = {number: end_s for number, end_s in under_way.items() if end_s <= now_s}
            for number in ended:
                del under_way[number]
            found |= ended
        return found

    @property
    def next_s(self) -> float | None:
        """When the first of them ends; None without any."""
        return min((*self._computing.values(), *self._pauses.values()), default=None)
