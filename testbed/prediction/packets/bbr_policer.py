"""BBR's detection of token-bucket policers, and of their rate, as in Linux (`bbr_lt_bw_sampling`)."""

from __future__ import annotations

ROUNDS, USED_ROUNDS = 4, 48  # minimum rounds of an interval; rounds for which a detected rate is used
LOST = 50 / 256  # minimum loss in an interval, relative to the packets delivered
ALIKE = 1 / 8  # maximum relative difference between the rates of two consecutive intervals
LEAST_S = 1e-3


class PolicerDetector:
    """The policer detection of one connection; `rate` is the detected rate in packets per second, or 0."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._previous_rate = 0.0  # rate of the previous interval
        self._is_sampling, self._rounds = False, 0
        # for the current interval: packets delivered before it, its start, packets lost in it
        self._delivered, self._started_s, self._lost = 0, 0.0, 0

    def update(
        self, delivered: int, now_s: float, lost: int, *, is_round_start: bool, is_app_limited: bool
    ) -> bool:
        """Process a sample; return whether the detected rate must no longer be used.

        Args:
            delivered: Number of packets delivered until `now_s`.
            now_s: Time of the last delivery.
            lost: Number of newly lost packets.
            is_round_start: Whether a round begins.
            is_app_limited: Whether the application limits sending.
        """
        self._lost += lost
        if self.rate:
            self._rounds += is_round_start
            is_over = self._rounds >= USED_ROUNDS
            if is_over:
                self._reset(delivered, now_s)
            return is_over
        if not self._is_sampling:
            if not lost:
                return False
            self._start_interval(delivered, now_s)
            self._is_sampling = True
        if is_app_limited:
            self._reset(delivered, now_s)
            return False
        self._rounds += is_round_start
        if self._rounds > 4 * ROUNDS:
            self._reset(delivered, now_s)
        elif self._rounds >= ROUNDS and lost:
            self._check_interval(delivered, now_s)
        return False

    def _check_interval(self, delivered: int, now_s: float) -> None:
        arrived, took_s = delivered - self._delivered, now_s - self._started_s
        if not arrived or self._lost < LOST * arrived or took_s < LEAST_S:
            return
        rate = arrived / took_s
        if self._previous_rate and abs(rate - self._previous_rate) <= ALIKE * self._previous_rate:
            self.rate, self._rounds = (rate + self._previous_rate) / 2, 0
            return
        self._previous_rate = rate
        self._start_interval(delivered, now_s)

    def _start_interval(self, delivered: int, now_s: float) -> None:
        self._delivered, self._started_s, self._lost, self._rounds = delivered, now_s, 0, 0

    def _reset(self, delivered: int, now_s: float) -> None:
        self.rate, self._previous_rate, self._is_sampling = 0.0, 0.0, False
        self._start_interval(delivered, now_s)

    def shift(self, seconds: float) -> None:
        """Move recorded times back by `seconds`."""
        self._started_s -= seconds
