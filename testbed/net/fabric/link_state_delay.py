"""When switches see that a link of theirs is cut, or mended: some time after it is, and never if that was brief."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol


class Ends(Protocol):
    """What cuts, and shows it to the ends; names are the caller's."""

    def darken(self, names: Collection[str]) -> None:
        """Nothing passes from now on, and nobody sees it."""

    def set_carrier(self, name: str, up: bool) -> None:
        """Cut or mended, and seen."""


class Carriers:
    """Cuts and mends at once, and has it seen when its time has come: call `play` at `due_s` or later.

    A cut that is mended before it was seen never is, though packets were lost; one that is cut again before it was seen
    to be mended stays down. No threads: whoever waits for other things waits for `due_s`, too.
    """

    def __init__(
        self, ends: Ends, down_s: float, up_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ends = ends
        self._delay_s = {False: down_s, True: up_s}
        self._clock = clock
        self._down: set[str] = set()  # as the switches see it
        self._due: dict[str, tuple[float, bool]] = {}  # when each is seen, and whether to be up

    @property
    def due_s(self) -> float | None:
        """When the next one is seen; None when there is none."""
        return min((due_s for due_s, _ in self._due.values()), default=None)

    def is_down(self, name: str) -> bool:
        """Whether the switches see it down, or are about to."""
        return name in self._down or name in self._due

    def cut(self, names: Iterable[str], after_s: float | None = None) -> None:
        """Nothing passes from now on; after_s: when that is seen, in place of the usual time."""
        delay_s = self._delay_s[False] if after_s is None else after_s
        # what is still down, though mended, only stays so
        fresh = [name for name in names if self._due.pop(name, None) is None and name not in self._down]
        if delay_s and fresh:
            for name in fresh:
                self._due[name] = self._clock() + delay_s, False
            self._ends.darken(fresh)
        else:
            for name in fresh:
                self._see(name, up=False)

    def mend(self, names: Iterable[str]) -> None:
        """All is well again, though nothing passes before a switch that saw the cut sees that."""
        for name in names:
            if self._due.pop(name, None) is not None:
                self._ends.set_carrier(name, up=True)
            elif name in self._down and self._delay_s[True]:
                self._due[name] = self._clock() + self._delay_s[True], True
            elif name in self._down:
                self._see(name, up=True)

    def _see(self, name: str, up: bool) -> None:
        self._ends.set_carrier(name, up)
        (self._down.discard if up else self._down.add)(name)

    def play(self) -> None:
        """Let the switches see every change of carrier that is due."""
        for name, (due_s, up) in sorted(self._due.items(), key=lambda item: item[1][0]):
            if due_s <= self._clock():
                del self._due[name]
                self._see(name, up)

    def settle(self) -> None:
        """Let the switches see all changes now, due or not."""
        for name, (_, up) in self._due.items():
            self._see(name, up)
        self._due.clear()
