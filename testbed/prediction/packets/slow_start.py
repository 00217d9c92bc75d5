"""When a window stops doubling though nothing was lost: HyStart, as Linux' CUBIC has it (`hystart_update`)."""

from __future__ import annotations

import math

LEAST_WINDOW = 16  # packets
TRAIN_S = 2e-3  # between acknowledgements of one train, at the most
SAMPLES = 8  # round trips of a round that are looked at
LEAST_DELAY_S, MOST_DELAY_S = 4e-3, 16e-3  # an eighth of the least round trip, within these
GSO_BYTES, MOST_BATCH_S = 1 << 16, 1e-3  # what acknowledgements may come late by, as segments go together


class HyStart:
    """Of one connection, round by round."""

    def __init__(self) -> None:
        self.found = False
        self._least_s = math.inf
        self._round_s = self._heard_s = -math.inf
        self._end = -1
        self._samples, self._current_s = 0, math.inf

    def acknowledged(
        self,
        now_s: float,
        unacknowledged: int,
        next_byte: int,
        round_trip_s: float,
        window: int,
        pace: float,
    ) -> bool:
        """Whether doubling is over. unacknowledged, next_byte: the first byte that is not, that is not sent.

        pace: bytes per second.
        """
        self._least_s = min(self._least_s, round_trip_s)
        if self.found or window < LEAST_WINDOW:
            return False
        if unacknowledged > self._end:
            self._round_s = self._heard_s = now_s
            self._end = next_byte
            self._samples, self._current_s = 0, math.inf
        if now_s - self._heard_s <= TRAIN_S:
            self._heard_s = now_s
            batch_s = min(MOST_BATCH_S, 4 * GSO_BYTES / pace)
            if now_s - self._round_s > (self._least_s + batch_s) / 2:
                self.found = True
        self._current_s = min(self._current_s, round_trip_s)
        if self._samples < SAMPLES:
            self._samples += 1
        elif self._current_s > self._least_s + min(max(self._least_s / 8, LEAST_DELAY_S), MOST_DELAY_S):
            self.found = True
        return self.found

    def begin_again(self) -> None:
        """After a timeout."""
        self.found = False
        self._end = -1

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self._round_s -= seconds
        self._heard_s -= seconds
