"""What a congestion control decides of one connection: its window and its pace, by what the sender tells it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from testbed.net.paths.congestion import Growth
from testbed.net.paths.losses import INITIAL_WINDOW_PACKETS, MIN_WINDOW_PACKETS

PACE_SHARE = 1024  # of what is paced in a second: 1 ms of it (`sk_pacing_shift`)


@dataclass(slots=True)
class AckSample:
    """An acknowledgement, in packets and seconds; the next one is told of by the same object.

    delivered: that it tells of. advanced: whether the first that was not acknowledged is. lost: that are known to be by
    it. flying, before: under way now, and until it came. recovering: whether losses are being mended. latest_s: round
    trip of the one sent last; negative where it is not known. least_s: the least one.
    departs_s: when the next packet may leave. sent: packets until now, each as often as it was.
    """

    now_s: float = 0.0
    delivered: int = 0
    advanced: bool = False
    lost: int = 0
    flying: int = 0
    before: int = 0
    recovering: bool = False
    latest_s: float = -1.0
    least_s: float = 0.0
    departs_s: float = 0.0
    sent: int = 0


class Control(ABC):
    """Of one connection. window: packets."""

    paces: ClassVar[bool] = False
    """Whether packets leave one by one, at its pace, by what it measures of each."""

    window: float = float(INITIAL_WINDOW_PACKETS)

    @abstractmethod
    def pace(self, packet_bytes: int, out: int, usual_s: float) -> float:
        """Bytes per second; out: packets that are not acknowledged."""

    def stamp(self, now_s: float, first: bool) -> Stamp | None:
        """Of a packet that is sent, or again, of one that `paces`. first: nothing else is under way."""
        return None

    def came(self, sent_s: float, number: int, stamp: Stamp) -> None:  # noqa: B027 - most measure nothing
        """A packet was delivered."""

    def starve(self, flying: int) -> None:  # noqa: B027 - most do not mind
        """There is not enough to send."""

    def resume(self, now_s: float, idle_s: float) -> None:  # noqa: B027 - most do not mind
        """It sends, and nothing was under way for so long."""

    def use(self, full: bool, out: int, unacknowledged: int, next_byte: int) -> None:  # noqa: B027
        """All is sent that may be. full: so much is under way as the window has."""

    def time(  # noqa: B027 - most look at it when they hear the rest
        self, now_s: float, latest_s: float, unacknowledged: int, next_byte: int, pace: Callable[[], float]
    ) -> None:
        """A round trip was measured. pace: that Linux reckons with."""

    @abstractmethod
    def heard(self, told: AckSample) -> None:
        """An acknowledgement."""

    @abstractmethod
    def lose(self, sent: int, *, again: bool) -> None:
        """Packets are lost. sent: as `AckSample` has it; again: of those that were sent after a timeout."""

    def recovered(self) -> None:  # noqa: B027 - most say so themselves
        """What was lost is mended."""

    @abstractmethod
    def mended(self) -> None:
        """A probe has mended a loss that nothing else told of."""

    @abstractmethod
    def time_out(self, flying: int, *, anew: bool) -> None:
        """Nothing was heard for too long. anew: it is not the same episode of losses as before."""

    def undo(self) -> None:  # noqa: B027 - most go by other things
        """It was only late what it timed out for."""

    @abstractmethod
    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""


class LossBasedControl(Control):
    """A window that opens until packets are lost: as a `Growth` has it, and RFC 6937 while losses are mended."""

    def __init__(self, growth: type[Growth]) -> None:
        self.window = float(INITIAL_WINDOW_PACKETS)
        self._growth = growth()
        self._hystart = HyStart() if growth.uses_hystart else None
        self._threshold = math.inf
        self._least_s = math.inf  # round trip of data, whatever the handshake took
        self._undone = self.window, self._threshold  # what they were before a timeout
        # of RFC 6937: the window before, packets that came since, packets that had been sent
        self._prior = self._given = self._sent = 0
        self._is_full, self._most, self._most_until = False, 0, 0

    def pace(self, packet_bytes: int, out: int, usual_s: float) -> float:
        """That Linux reckons with, though nothing is paced by it (`tcp_update_pacing_rate`)."""
        window = self.window
        gain = 2.0 if window < self._threshold / 2 else 1.2
        return gain * packet_bytes * (window if window >= out else out) / usual_s

    def resume(self, now_s: float, idle_s: float) -> None:
        """Its clock stands meanwhile."""
        self._growth.idle(idle_s)

    def use(self, full: bool, out: int, unacknowledged: int, next_byte: int) -> None:
        """What the window is used for counts for a round trip (`tcp_cwnd_validate`)."""
        if full or unacknowledged >= self._most_until or (not self._is_full and out > self._most):
            self._is_full, self._most, self._most_until = full, out, next_byte

    def time(
        self, now_s: float, latest_s: float, unacknowledged: int, next_byte: int, pace: Callable[[], float]
    ) -> None:
        """It may double no more."""
        self._least_s = min(self._least_s, latest_s)
        if self._hystart and self.window < self._threshold:
            window = int(self.window)
            if self._hystart.acknowledged(now_s, unacknowledged, next_byte, latest_s, window, pace()):
                self._threshold = float(window)

    def heard(self, told: AckSample) -> None:
        """Go down, or up."""
        if told.recovering:
            self._reduce(told, more=told.advanced and not told.lost)
        elif told.advanced:
            self._grow(told.delivered, told.now_s)

    def _reduce(self, told: AckSample, *, more: bool) -> None:
        """As Linux has it (`tcp_cwnd_reduction`)."""
        delivered, flying, taken = told.delivered, told.flying, told.sent - self._sent
        if not delivered:
            return
        self._given += delivered
        threshold = int(self._threshold)
        room = threshold - flying
        if room < 0:
            some = -(-threshold * self._given // self._prior) - taken
        else:
            some = min(room, max(self._given - taken, delivered) + more)
        self.window = float(flying + max(some, 0 if taken else 1))

    def _grow(self, delivered: int, now_s: float) -> None:
        window = self.window
        if window < self._threshold:
            if not self._is_full and window >= 2 * self._most:
                return
            self.window = min(window + delivered, self._threshold)
            delivered -= int(self.window - window)
        if delivered > 0 and self._is_full and self.window >= self._threshold:
            # the kernel's is 0 until one was measured, as of a window that was lost as a whole
            least_s = self._least_s if self._least_s < math.inf else 0.0
            self.window = self._growth.grown(self.window, delivered, now_s, least_s)

    def _cut(self) -> None:
        # the kernel's windows are whole
        self._threshold = max(
            MIN_WINDOW_PACKETS, float(int(self._growth.after_loss(float(int(self.window)))))
        )

    def lose(self, sent: int, *, again: bool) -> None:
        """Begin to go down."""
        self._prior, self._sent = int(self.window), sent
        self._given = 0
        if not again:
            self._cut()

    def recovered(self) -> None:
        """That is what is left."""
        self.window = self._threshold

    def mended(self) -> None:
        """It was a loss."""
        self._cut()
        self.window = self._threshold

    def time_out(self, flying: int, *, anew: bool) -> None:
        """One packet, and all forgotten (`tcp_enter_loss`)."""
        if anew:
            self._undone = self.window, self._threshold
            self._cut()
            self._growth = type(self._growth)()
            if self._hystart:
                self._hystart.begin_again()
        self.window = float(flying + 1)

    def undo(self) -> None:
        """Both are what they were (`tcp_undo_cwnd_reduction`); what it knew of growing stays forgotten."""
        window, threshold = self._undone
        self.window, self._threshold = max(self.window, window), max(self._threshold, threshold)

    def shift(self, seconds: float) -> None:
        """Of its clocks."""
        self._growth.shift(seconds)
        if self._hystart:
            self._hystart.shift(seconds)


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


Stamp = tuple[int, float, float, bool]
"""What was so when a packet was sent: packets that were delivered until then, the time when, and the time when the last
one of them had been sent; whether there was not enough to send.
"""


@dataclass(slots=True)
class Sample:
    """Of one acknowledgement. packets, interval_s: what was delivered in how long; 0 where that is not known."""

    round_trip_s: float
    acknowledged: int
    lost: int
    prior_flying: int
    packets: int = 0
    interval_s: float = 0.0
    prior_delivered: int = 0
    limited: bool = False


class DeliveryRate:
    """Of one connection."""

    def __init__(self) -> None:
        self.delivered = 0
        self.delivered_s = self.first_sent_s = 0.0
        self.limited_until = 0
        self._newest_s, self._newest = -1.0, -1  # packet of those delivered: when it was sent, its number
        self._prior: Stamp | None = None
        self._sending_s = 0.0

    def sent(self, now_s: float, *, first: bool) -> Stamp:
        """A packet is. first: as nothing is under way."""
        if first:
            self.first_sent_s = self.delivered_s = now_s
        return self.delivered, self.delivered_s, self.first_sent_s, bool(self.limited_until)

    def limit(self, flying: int) -> None:
        """There is not enough to send."""
        self.limited_until = (self.delivered + flying) or 1

    def came(self, sent_s: float, number: int, stamp: Stamp) -> None:
        """A packet is delivered."""
        self.delivered += 1
        newest_s = self._newest_s
        if self._prior is None or sent_s > newest_s or (sent_s == newest_s and number > self._newest):
            self._newest_s, self._newest, self._prior = sent_s, number, stamp
            self.first_sent_s = sent_s
            self._sending_s = sent_s - stamp[2]

    def sample(self, now_s: float, least_s: float, some: Sample) -> None:
        """Of what came since the last one, into `some`, which has the rest. least_s: round trip."""
        if self.limited_until and self.delivered > self.limited_until:
            self.limited_until = 0
        if some.acknowledged:
            self.delivered_s = now_s
        prior, self._prior = self._prior, None
        if prior is None:
            return
        delivered, delivered_s, _, limited = prior
        some.prior_delivered, some.limited = delivered, limited
        interval_s = max(self._sending_s, now_s - delivered_s)
        if interval_s < least_s:
            return
        some.packets, some.interval_s = self.delivered - delivered, interval_s

    def shift(self, seconds: float) -> None:
        """Tell the time from so much later on."""
        self.delivered_s -= seconds
        self.first_sent_s -= seconds
        self._newest_s -= seconds
