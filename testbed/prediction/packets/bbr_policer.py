"""Whether a policer cuts BBR's rate, and to what, as Linux guesses it (`bbr_lt_bw_sampling`)."""

from __future__ import annotations

ROUNDS, USED_ROUNDS = 4, 48  # of an interval, at the least; that a rate is used for
LOST = 50 / 256  # of what is delivered in an interval
ALIKE = 1 / 8  # rates of two intervals, one after the other
LEAST_S = 1e-3


class PolicerDetector:
    """Of one connection. rate: packets per second that it is cut to; 0 while nothing says so."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._before = 0.0  # rate of the interval before
        self._samples, self._rounds = False, 0
        # until the interval began, and when; packets lost in it
        self._delivered, self._since_s, self._lost = 0, 0.0, 0

    def heard(self, delivered: int, now_s: float, lost: int, *, begins: bool, limited: bool) -> bool:
        """Another sample: whether it is over. delivered: in all, until now_s. begins: a round trip does.

        lost: now. limited: there is not enough to send.
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
        """Tell the time from so much later on."""
        self._since_s -= seconds
