"""One rank's computing, which loses part of its speed while messages or collectives of the rank are under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """What has a time, and acts later."""

    now_s: float

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Act after so long."""


@dataclass(eq=False)
class _Piece:
    end_s: float
    over: Callable[[], None]


class Computers:
    """What the rank computes now. share: of its speed that is lost while anything else is under way."""

    def __init__(self, clock: Clock, share: float) -> None:
        self._clock, self._slower = clock, 1 / (1 - share)
        self._pieces: list[_Piece] = []
        self._others = 0

    def begin(self, duration_s: float, over: Callable[[], None]) -> None:
        """Compute for so long, at full speed; `over` is called at the end."""
        if self._others:
            duration_s *= self._slower
        if self._slower == 1:
            self._clock.later(duration_s, over)
            return
        piece = _Piece(self._clock.now_s + duration_s, over)
        self._pieces.append(piece)
        self._wait(piece)

    def beside(self) -> None:
        """Something else begins."""
        self._others += 1
        if self._others == 1:
            self._rescale(self._slower)

    def alone(self) -> None:
        """Something else has ended."""
        self._others -= 1
        if not self._others:
            self._rescale(1 / self._slower)

    def _rescale(self, factor: float) -> None:
        now_s = self._clock.now_s
        for piece in self._pieces:
            piece.end_s = now_s + (piece.end_s - now_s) * factor
            self._wait(piece)

    def _wait(self, piece: _Piece) -> None:
        until_s = piece.end_s

        def come() -> None:
            if piece.end_s == until_s and piece in self._pieces:  # else it takes longer, or no longer as long
                self._pieces.remove(piece)
                piece.over()

        self._clock.later(until_s - self._clock.now_s, come)
