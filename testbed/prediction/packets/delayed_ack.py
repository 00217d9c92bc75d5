"""Whether the end of a connection acknowledges at once what comes to it, as Linux' TCP decides (`tcp_input.c`).

The first packets are acknowledged each, so are those that the receiver's own window still grows by, and those after a
pause that is longer than a timeout. Whoever answers waits: what it sends acknowledges, too. When nothing has been sent
in time, it no longer counts on that.
"""

from __future__ import annotations

import math

from testbed.net.paths.losses import DELAYED_S, TIMEOUT_S

QUICK = 16  # acknowledgements, `TCP_MAX_QUICKACKS`
FIRST_WINDOW_BYTES = 65_535
# packets of so many bytes and more; by so many full packets for each (`tcp_grow_window`)
GROWS_BYTES, GROWS_BY = 128, 2


class Delaying:
    """round_trip_s: of the empty path. window_bytes: of the receiver, when it has grown; infinite: it need not grow.

    answers: it has answered already (`inet_csk_in_pingpong_mode`).
    """

    __slots__ = ("_came_s", "_grows_bytes", "_quick", "_timeout_s", "_wait_s", "answers")

    def __init__(self, round_trip_s: float, window_bytes: float, answers: bool) -> None:
        self.answers = answers
        self._grows_bytes = window_bytes - FIRST_WINDOW_BYTES if window_bytes < math.inf else 0.0
        self._timeout_s = TIMEOUT_S + round_trip_s
        # its peer's hello came when time began; how long after a packet an answer counts as one, `icsk_ack.ato`
        self._came_s, self._wait_s = 0.0, DELAYED_S
        self._quick = QUICK

    @property
    def at_once(self) -> bool:
        """Whether each packet is."""
        return self._quick > 0 and not self.answers

    def come(self, now_s: float, size_bytes: int, full_bytes: int) -> None:
        """A packet has, of so many bytes; a full one has so many (`tcp_event_data_recv`)."""
        gap_s, self._came_s = now_s - self._came_s, now_s
        if gap_s <= DELAYED_S / 2:
            self._wait_s = (self._wait_s + DELAYED_S) / 2
        elif gap_s < self._wait_s:
            self._wait_s = min(self._wait_s / 2 + gap_s, self._timeout_s)
        elif gap_s > self._timeout_s:
            self._quick = QUICK
        if self._grows_bytes > 0 and size_bytes >= GROWS_BYTES:
            self._grows_bytes -= GROWS_BY * full_bytes
            self._quick |= 1

    def send(self, now_s: float) -> None:
        """Data goes the other way (`tcp_event_data_sent`)."""
        if now_s - self._came_s < self._wait_s:
            self.answers = True

    def acknowledge(self) -> None:
        """It does (`tcp_dec_quickack_mode`)."""
        if self._quick:
            self._quick -= 1
            if not self._quick:
                self._wait_s = DELAYED_S

    def double(self) -> None:
        """What comes is there already (`tcp_enter_quickack_mode`)."""
        self._quick, self.answers, self._wait_s = QUICK, False, DELAYED_S

    def run_out(self) -> None:
        """It has waited for long enough (`tcp_delack_timer_handler`)."""
        self._wait_s = DELAYED_S if self.answers else min(2 * self._wait_s, self._timeout_s)
        self.answers = False

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self._came_s -= seconds
