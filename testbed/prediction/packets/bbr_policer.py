"""BBR's detection of token-bucket policers, and of their rate, as in Linux (`bbr_lt_bw_sampling`)."""

from __future__ import annotations

ROUNDS, USED_ROUNDS = 4, 48  # minimum rounds of an interval; rounds for which a detected rate is used
LOST = 50 / 256  # minimum loss in an interval relative to what is delivered
ALIKE = 1 / 8  # maximum relative difference between the rates of two consecutive intervals
LEAST_S = 1e-3


class PolicerDetector:
    """Policer detection of one connection. rate: detected rate in packets per second; 0 for none."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._before = 0.0  # rate of the previous interval
        self._samples, self._rounds = False, 0
        # of the current interval: packets delivered before it, its start, packets lost in it
        self._delivered, self._since_s, self._lost = 0, 0.0, 0

    def heard(self, delivered: int, now_s: float, lost: int, *, begins: bool, limited: bool) -> bool:
        """Process a sample; return whether the detected rate is no longer to be used.

        Args:
            delivered: Packets delivered until `now_s`.
            now_s: Time of the last delivery.
            lost: Newly lost packets.
            begins: Whether a round begins.
            limited: Whether the application limits sending.
        """
        self._lost += lost
        if self.rate:
            self._rounds += begins
            over = self._rounds >= USED_ROUNDS
            if over:
                self._reset(delivered, now_s)
            return over
        if not self._samples:
            if not lost:
                return False
            self._begin(delivered, now_s)
            self._samples = True
        if limited:
            self._reset(delivered, now_s)
            return False
        self._rounds += begins
        if self._rounds > 4 * ROUNDS:
            self._reset(delivered, now_s)
        elif self._rounds >= ROUNDS and lost:
            self._look(delivered, now_s)
        return False

    def _look(self, delivered: int, now_s: float) -> None:
        came, took_s = delivered - self._delivered, now_s - self._since_s
        if not came or self._lost < LOST * came or took_s < LEAST_S:
            return
        rate = came / took_s
        if self._before and abs(rate - self._before) <= ALIKE * self._before:
            self.rate, self._rounds = (rate + self._before) / 2, 0
            return
        self._before = rate
        self._begin(delivered, now_s)

    def _begin(self, delivered: int, now_s: float) -> None:
        self._delivered, self._since_s, self._lost, self._rounds = delivered, now_s, 0, 0

    def _reset(self, delivered: int, now_s: float) -> None:
        self.rate, self._before, self._samples = 0.0, 0.0, False
        self._begin(delivered, now_s)

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self._since_s -= seconds
