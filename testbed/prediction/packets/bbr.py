"""BBR version 1 as in Linux (`tcp_bbr.c`): paces by a model of the path's bandwidth and minimum round trip."""

from __future__ import annotations

import math
from random import Random

from testbed.net.paths.losses import FIRST_PACKETS
from testbed.prediction.packets.bbr_policer import PolicerDetector
from testbed.prediction.packets.congestion_control import (
    PACE_SHARE,
    AckSample,
    Control,
    DeliveryRate,
    Sample,
    Stamp,
)

STARTUP, DRAIN, PROBE_RATE, PROBE_ROUND_TRIP = range(4)
HIGH = 2885 / 1000 + 1 / 1000  # `bbr_high_gain`
LOW = 1000 / 2885
WINDOW_GAIN = 2.0
GAINS = {STARTUP: (HIGH, HIGH), DRAIN: (LOW, HIGH), PROBE_ROUND_TRIP: (1.0, 1.0)}
CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
ROUNDS = len(CYCLE) + 2  # window of the maximum rate
MARGIN = 0.99
FULL, FULL_ROUNDS = 1.25, 3
LEAST_S, PROBE_S = 10.0, 0.2  # window of the minimum round trip; duration of its probe
LEAST_PACKETS = 4
EXTRA_ROUNDS, EXTRA_S = 5, 0.1
GSO_BYTES, SLOW = (1 << 16) - 321, 1.2e6 / 8


class WindowedMax:
    """The maximum `value` of the last rounds (`win_minmax.c`)."""

    __slots__ = ("_best", "_rounds", "value")

    def __init__(self, rounds: int) -> None:
        self._rounds, self.value = rounds, 0.0
        self._best = [(0, 0.0)] * 3

    def add(self, at: int, value: float) -> None:
        """Add a value of this round."""
        self._add(at, value)
        self.value = self._best[0][1]

    def _add(self, at: int, value: float) -> None:
        best, own = self._best, (at, value)
        if value >= best[0][1] or at - best[2][0] > self._rounds:
            self._best = [own] * 3
            return
        if value >= best[1][1]:
            best[1] = best[2] = own
        elif value >= best[2][1]:
            best[2] = own
        since = at - best[0][0]
        if since > self._rounds:
            best[:] = [best[1], best[2], own]
            if at - best[0][0] > self._rounds:
                best[:] = [best[1], best[2], own]
        elif best[1][0] == best[0][0] and since > self._rounds / 4:
            best[1] = best[2] = own
        elif best[2][0] == best[1][0] and since > self._rounds / 2:
            best[2] = own


class Bbr(Control):
    """BBR of one connection.

    packet_bytes: size of a full packet. round_trip_s: of the empty path. draw: selects where the gain cycle starts.
    """

    paces = True

    def __init__(self, packet_bytes: int, round_trip_s: float, draw: Random) -> None:
        self._packet_bytes, self._rates, self._draw = packet_bytes, DeliveryRate(), draw
        self.window = float(FIRST_PACKETS)
        self.mode = STARTUP
        self._pacing, self._gain = HIGH, HIGH
        self._rate = WindowedMax(ROUNDS)  # packets per second
        self._least_s, self._least_at_s = round_trip_s, 0.0
        self._round, self._round_ends, self._begins = 0, 0, False
        self._full, self._full_rate, self._full_count = False, 0.0, 0
        self._phase, self._phase_s = 0, 0.0
        self._probe_until_s, self._probed_round = 0.0, False
        self._prior_window = 0.0
        self._recovering = self._conserving = self._restarts = False
        self._extra, self._extra_place, self._extra_rounds = [0.0, 0.0], 0, 0
        self._epoch_s, self._epoch_packets = 0.0, 0
        self._policed = PolicerDetector()
        self._pace = HIGH * MARGIN * packet_bytes * FIRST_PACKETS / round_trip_s

    # ---- pacing rate and window targets

    def _segments(self) -> int:
        own = int(min(self._pace / PACE_SHARE, GSO_BYTES) / self._packet_bytes)
        return max(own, 1 if self._pace < SLOW else 2)

    @property
    def _used_rate(self) -> float:
        return self._policed.rate or self._rate.value

    def _product(self, rate: float, gain: float) -> int:
        return math.ceil(rate * self._least_s * gain)

    def _whole(self, packets: float) -> int:
        even = (int(packets) + 3 * self._segments() + 1) & ~1
        return even + 2 * (self.mode == PROBE_RATE and self._phase == 0)

    def _inflight(self, gain: float) -> int:
        return self._whole(self._product(self._rate.value, gain))

    def _set_pace(self, gain: float) -> None:
        rate = self._used_rate * self._packet_bytes * gain * MARGIN
        if self._full or rate > self._pace:
            self._pace = rate

    # ---- Control

    def pace(self, packet_bytes: int, out: int, usual_s: float) -> float:
        """Return the pacing rate."""
        return self._pace

    def stamp(self, now_s: float, first: bool) -> Stamp:
        """Return the stamp for rate samples."""
        return self._rates.sent(now_s, first=first)

    def came(self, sent_s: float, number: int, stamp: Stamp) -> None:
        """Record a delivered packet for rate samples."""
        self._rates.came(sent_s, number, stamp)

    def starve(self, flying: int) -> None:
        """Mark rate samples as application limited."""
        self._rates.limit(flying)

    def resume(self, now_s: float, idle_s: float) -> None:
        """Restart at the estimated rate, without probing for more."""
        if not self._rates.limited_until:
            return
        self._restarts = True
        self._epoch_s, self._epoch_packets = now_s, 0
        if self.mode == PROBE_RATE:
            self._set_pace(1.0)
        elif self.mode == PROBE_ROUND_TRIP:
            self._end_probe(now_s)

    def lose(self, sent: int, *, again: bool) -> None:
        """Save the window."""
        if not again:
            self._save()

    def mended(self) -> None:
        """Save the window only."""
        self._save()

    def time_out(self, flying: int, *, anew: bool) -> None:
        """Save the window and probe for the rate again."""
        if anew:
            self._save()
        self._recovering = True
        self._full_rate, self._begins = 0.0, True
        self._police(1, limited=False)
        self.window = float(flying + 1)

    def heard(self, told: AckSample) -> None:
        """Update the model from a rate sample."""
        now_s, flying, next_s = told.now_s, told.flying, told.departs_s
        some = Sample(told.latest_s, told.delivered, told.lost, told.before)
        self._rates.sample(now_s, told.least_s, some)
        self._update_rate(some)
        self._update_extra(now_s, some)
        if self.mode == PROBE_RATE and self._phase_ends(now_s, some, next_s):
            self._advance(now_s)
        self._look_whether_full(some)
        self._drain(now_s, flying, next_s)
        self._update_least(now_s, some, flying)
        self._set_gains()
        self._set_pace(self._pacing)
        self._set_window(some, flying, recovering=told.recovering)

    def _update_rate(self, some: Sample) -> None:
        self._begins = False
        if not some.interval_s:
            return
        if some.prior_delivered >= self._round_ends:
            self._round_ends = self._rates.delivered
            self._round += 1
            self._begins = True
            self._conserving = False
        self._police(some.lost, limited=some.limited)
        rate = some.packets / some.interval_s
        if not some.limited or rate >= self._rate.value:
            self._rate.add(self._round, rate)

    def _police(self, lost: int, *, limited: bool) -> None:
        probes, rates = self.mode == PROBE_RATE, self._rates
        begins = self._begins and (probes or not self._policed.rate)
        if self._policed.heard(rates.delivered, rates.delivered_s, lost, begins=begins, limited=limited):
            self._probe_rate(rates.delivered_s)

    def _update_extra(self, now_s: float, some: Sample) -> None:
        """Track packets acknowledged in a burst beyond the estimated rate (ACK aggregation)."""
        if some.acknowledged <= 0 or not some.interval_s:
            return
        if self._begins:
            self._extra_rounds += 1
            if self._extra_rounds >= EXTRA_ROUNDS:
                self._extra_rounds = 0
                self._extra_place ^= 1
                self._extra[self._extra_place] = 0.0
        expected = self._used_rate * (now_s - self._epoch_s)
        if self._epoch_packets <= expected:
            self._epoch_packets, self._epoch_s, expected = 0, now_s, 0.0
        self._epoch_packets += some.acknowledged
        extra = min(self._epoch_packets - expected, self.window)
        self._extra[self._extra_place] = max(self._extra[self._extra_place], extra)

    def _at_departure(self, flying: int, now_s: float, next_s: float) -> float:
        """Return the packets in flight when the next one leaves."""
        delivered = self._rate.value * max(0.0, next_s - now_s)
        more = self._segments() if self._pacing > 1 else 0
        return max(0.0, flying + more - delivered)

    def _phase_ends(self, now_s: float, some: Sample, next_s: float) -> bool:
        whole = now_s - self._phase_s > self._least_s
        if self._pacing == 1.0 or whole == (self._pacing < 1.0):
            return whole
        flying = self._at_departure(some.prior_flying, now_s, next_s)
        if self._pacing > 1.0:
            return some.lost > 0 or flying >= self._inflight(self._pacing)
        return flying <= self._inflight(1.0)

    def _advance(self, now_s: float) -> None:
        self._phase = (self._phase + 1) % len(CYCLE)
        self._phase_s = now_s

    def _look_whether_full(self, some: Sample) -> None:
        if self._full or not self._begins or some.limited:
            return
        if self._rate.value >= FULL * self._full_rate:
            self._full_rate, self._full_count = self._rate.value, 0
            return
        self._full_count += 1
        self._full = self._full_count >= FULL_ROUNDS

    def _drain(self, now_s: float, flying: int, next_s: float) -> None:
        if self.mode == STARTUP and self._full:
            self.mode = DRAIN
        if self.mode == DRAIN and self._at_departure(flying, now_s, next_s) <= self._inflight(1.0):
            self._probe_rate(now_s)

    def _probe_rate(self, now_s: float) -> None:
        self.mode = PROBE_RATE
        self._phase = len(CYCLE) - 1 - self._draw.randrange(len(CYCLE) - 1)
        self._advance(now_s)

    def _update_least(self, now_s: float, some: Sample, flying: int) -> None:
        old = now_s > self._least_at_s + LEAST_S
        if some.round_trip_s >= 0 and (some.round_trip_s < self._least_s or old):
            self._least_s, self._least_at_s = some.round_trip_s, now_s
        if old and not self._restarts and self.mode != PROBE_ROUND_TRIP:
            self.mode = PROBE_ROUND_TRIP
            self._save()
            self._probe_until_s = 0.0
        if self.mode == PROBE_ROUND_TRIP:
            self._rates.limit(flying)
            if not self._probe_until_s and flying <= LEAST_PACKETS:
                self._probe_until_s, self._probed_round = now_s + PROBE_S, False
                self._round_ends = self._rates.delivered
            elif self._probe_until_s:
                self._probed_round = self._probed_round or self._begins
                if self._probed_round:
                    self._end_probe(now_s)
        if some.packets > 0:
            self._restarts = False

    def _end_probe(self, now_s: float) -> None:
        if not self._probe_until_s or now_s <= self._probe_until_s:
            return
        self._least_at_s = now_s
        self.window = max(self.window, self._prior_window)
        if self._full:
            self._probe_rate(now_s)
        else:
            self.mode = STARTUP

    def _set_gains(self) -> None:
        if self.mode == PROBE_RATE:
            self._pacing = 1.0 if self._policed.rate else CYCLE[self._phase]
            self._gain = WINDOW_GAIN
        else:
            self._pacing, self._gain = GAINS[self.mode]

    def _save(self) -> None:
        if not self._recovering and self.mode != PROBE_ROUND_TRIP:
            self._prior_window = self.window
        else:
            self._prior_window = max(self._prior_window, self.window)

    def _set_window(self, some: Sample, flying: int, *, recovering: bool) -> None:
        acknowledged = some.acknowledged
        if acknowledged:
            window = max(1.0, self.window - some.lost) if some.lost else self.window
            if recovering and not self._recovering:
                self._conserving = True
                self._round_ends = self._rates.delivered
                window = float(flying + acknowledged)
            elif self._recovering and not recovering:
                window = max(window, self._prior_window)
                self._conserving = False
            self._recovering = recovering
            if self._conserving:
                self.window = max(window, float(flying + acknowledged))
            else:
                target = self._whole(self._product(self._used_rate, self._gain) + self._extra_packets())
                if self._full:
                    window = min(window + acknowledged, float(target))
                elif window < target or self._rates.delivered < FIRST_PACKETS:
                    window += acknowledged
                self.window = max(window, float(LEAST_PACKETS))
        if self.mode == PROBE_ROUND_TRIP:
            self.window = min(self.window, float(LEAST_PACKETS))

    def _extra_packets(self) -> float:
        if not self._full:
            return 0.0
        return min(max(self._extra), self._used_rate * EXTRA_S)

    def shift(self, seconds: float) -> None:
        """Move recorded times `seconds` back."""
        self._rates.shift(seconds)
        self._least_at_s -= seconds
        self._phase_s -= seconds
        self._epoch_s -= seconds
        self._policed.shift(seconds)
        if self._probe_until_s:
            self._probe_until_s -= seconds
