"""BBR version 1 as in Linux (`tcp_bbr.c`): pacing from a model of the path's bandwidth and minimum round trip."""

from __future__ import annotations

import math
from random import Random

from testbed.net.paths.congestion.bbr import HIGH_GAIN
from testbed.net.paths.congestion.linux_tcp import INITIAL_WINDOW_PACKETS
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
THOUSANDTHS = int(1000 * HIGH_GAIN)
HIGH, LOW = THOUSANDTHS / 1000 + 1 / 1000, 1000 / THOUSANDTHS  # `bbr_high_gain`, `bbr_drain_gain`
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
    """The maximum `value` over the last rounds (`win_minmax.c`)."""

    __slots__ = ("_best", "_rounds", "value")

    def __init__(self, rounds: int) -> None:
        self._rounds, self.value = rounds, 0.0
        self._best = [(0, 0.0)] * 3

    def add(self, at: int, value: float) -> None:
        """Add a value of this round."""
        self._add(at, value)
        self.value = self._best[0][1]

    def _add(self, at: int, value: float) -> None:
        best, segments = self._best, (at, value)
        if value >= best[0][1] or at - best[2][0] > self._rounds:
            self._best = [segments] * 3
            return
        if value >= best[1][1]:
            best[1] = best[2] = segments
        elif value >= best[2][1]:
            best[2] = segments
        since = at - best[0][0]
        if since > self._rounds:
            best[:] = [best[1], best[2], segments]
            if at - best[0][0] > self._rounds:
                best[:] = [best[1], best[2], segments]
        elif best[1][0] == best[0][0] and since > self._rounds / 4:
            best[1] = best[2] = segments
        elif best[2][0] == best[1][0] and since > self._rounds / 2:
            best[2] = segments


class Bbr(Control):
    """The BBR state of one connection.

    `packet_bytes` is the size of a full packet. `round_trip_s` is the round-trip time of the empty path. `draw` selects
    where the gain cycle starts.
    """

    paces = True

    def __init__(self, packet_bytes: int, round_trip_s: float, draw: Random) -> None:
        self._packet_bytes, self._rates, self._draw = packet_bytes, DeliveryRate(), draw
        self.window = float(INITIAL_WINDOW_PACKETS)
        self.mode = STARTUP
        self._pacing_gain, self._window_gain = HIGH, HIGH
        self._rate = WindowedMax(ROUNDS)  # packets per second
        self._least_s, self._least_at_s = round_trip_s, 0.0
        self._round, self._round_ends, self._is_round_start = 0, 0, False
        self._is_pipe_full, self._full_rate, self._full_count = False, 0.0, 0
        self._phase, self._phase_s = 0, 0.0
        self._probe_until_s, self._probed_round = 0.0, False
        self._prior_window = 0.0
        self._was_recovering = self._is_packet_conserving = self._is_idle_restart = False
        self._extra_acked, self._extra_place, self._extra_rounds = [0.0, 0.0], 0, 0
        self._epoch_s, self._epoch_packets = 0.0, 0
        self._policer = PolicerDetector()
        self._pace = HIGH * MARGIN * packet_bytes * INITIAL_WINDOW_PACKETS / round_trip_s

    # ---- pacing rate and window targets

    def _segments(self) -> int:
        segments = int(min(self._pace / PACE_SHARE, GSO_BYTES) / self._packet_bytes)
        return max(segments, 1 if self._pace < SLOW else 2)

    @property
    def _bandwidth(self) -> float:
        return self._policer.rate or self._rate.value

    def _bdp(self, rate: float, gain: float) -> int:
        return math.ceil(rate * self._least_s * gain)

    def _quantized(self, packets: float) -> int:
        even = (int(packets) + 3 * self._segments() + 1) & ~1
        return even + 2 * (self.mode == PROBE_RATE and self._phase == 0)

    def _target_in_flight(self, gain: float) -> int:
        return self._quantized(self._bdp(self._rate.value, gain))

    def _set_pace(self, gain: float) -> None:
        rate = self._bandwidth * self._packet_bytes * gain * MARGIN
        if self._is_pipe_full or rate > self._pace:
            self._pace = rate

    # ---- Control

    def pace(self, packet_bytes: int, out: int, smoothed_s: float) -> float:
        """Return the pacing rate."""
        return self._pace

    def stamp(self, now_s: float, first: bool) -> Stamp:
        """Return the stamp for rate samples."""
        return self._rates.sent(now_s, first=first)

    def on_delivered(self, sent_s: float, number: int, stamp: Stamp) -> None:
        """Record a delivered packet for rate samples."""
        self._rates.on_delivered(sent_s, number, stamp)

    def on_app_limited(self, in_flight: int) -> None:
        """Mark rate samples as application limited."""
        self._rates.limit(in_flight)

    def on_restart(self, now_s: float, idle_s: float) -> None:
        """Restart at the estimated rate, without probing for more."""
        if not self._rates.limited_until:
            return
        self._is_idle_restart = True
        self._epoch_s, self._epoch_packets = now_s, 0
        if self.mode == PROBE_RATE:
            self._set_pace(1.0)
        elif self.mode == PROBE_ROUND_TRIP:
            self._end_probe(now_s)

    def enter_recovery(self, sent: int, *, after_timeout: bool) -> None:
        """Save the window."""
        if not after_timeout:
            self._save_window()

    def on_probe_repair(self) -> None:
        """Save only the window."""
        self._save_window()

    def on_timeout(self, in_flight: int, *, is_new_episode: bool) -> None:
        """Save the window and probe for the rate again."""
        if is_new_episode:
            self._save_window()
        self._was_recovering = True
        self._full_rate, self._is_round_start = 0.0, True
        self._update_policer(1, limited=False)
        self.window = float(in_flight + 1)

    def on_ack(self, ack: AckSample) -> None:
        """Update the model from a rate sample."""
        now_s, in_flight, next_s = ack.now_s, ack.in_flight, ack.departs_s
        sample = Sample(ack.latest_s, ack.delivered, ack.lost, ack.before)
        self._rates.sample(now_s, ack.least_s, sample)
        self._update_rate(sample)
        self._update_extra(now_s, sample)
        if self.mode == PROBE_RATE and self._phase_ends(now_s, sample, next_s):
            self._next_phase(now_s)
        self._check_full_pipe(sample)
        self._drain(now_s, in_flight, next_s)
        self._update_least(now_s, sample, in_flight)
        self._set_gains()
        self._set_pace(self._pacing_gain)
        self._set_window(sample, in_flight, recovering=ack.recovering)

    def _update_rate(self, sample: Sample) -> None:
        self._is_round_start = False
        if not sample.interval_s:
            return
        if sample.prior_delivered >= self._round_ends:
            self._round_ends = self._rates.delivered
            self._round += 1
            self._is_round_start = True
            self._is_packet_conserving = False
        self._update_policer(sample.lost, limited=sample.limited)
        rate = sample.packets / sample.interval_s
        if not sample.limited or rate >= self._rate.value:
            self._rate.add(self._round, rate)

    def _update_policer(self, lost: int, *, limited: bool) -> None:
        probes, rates = self.mode == PROBE_RATE, self._rates
        begins = self._is_round_start and (probes or not self._policer.rate)
        if self._policer.update(
            rates.delivered, rates.delivered_s, lost, is_round_start=begins, is_app_limited=limited
        ):
            self._probe_rate(rates.delivered_s)

    def _update_extra(self, now_s: float, sample: Sample) -> None:
        """Track packets that are acknowledged in a burst beyond the estimated rate (ACK aggregation)."""
        if sample.acknowledged <= 0 or not sample.interval_s:
            return
        if self._is_round_start:
            self._extra_rounds += 1
            if self._extra_rounds >= EXTRA_ROUNDS:
                self._extra_rounds = 0
                self._extra_place ^= 1
                self._extra_acked[self._extra_place] = 0.0
        expected = self._bandwidth * (now_s - self._epoch_s)
        if self._epoch_packets <= expected:
            self._epoch_packets, self._epoch_s, expected = 0, now_s, 0.0
        self._epoch_packets += sample.acknowledged
        extra = min(self._epoch_packets - expected, self.window)
        self._extra_acked[self._extra_place] = max(self._extra_acked[self._extra_place], extra)

    def _in_flight_at_departure(self, in_flight: int, now_s: float, next_s: float) -> float:
        """Return the packets in flight when the next one leaves."""
        delivered = self._rate.value * max(0.0, next_s - now_s)
        advance_only = self._segments() if self._pacing_gain > 1 else 0
        return max(0.0, in_flight + advance_only - delivered)

    def _phase_ends(self, now_s: float, sample: Sample, next_s: float) -> bool:
        whole = now_s - self._phase_s > self._least_s
        if self._pacing_gain == 1.0 or whole == (self._pacing_gain < 1.0):
            return whole
        in_flight = self._in_flight_at_departure(sample.prior_in_flight, now_s, next_s)
        if self._pacing_gain > 1.0:
            return sample.lost > 0 or in_flight >= self._target_in_flight(self._pacing_gain)
        return in_flight <= self._target_in_flight(1.0)

    def _next_phase(self, now_s: float) -> None:
        self._phase = (self._phase + 1) % len(CYCLE)
        self._phase_s = now_s

    def _check_full_pipe(self, sample: Sample) -> None:
        if self._is_pipe_full or not self._is_round_start or sample.limited:
            return
        if self._rate.value >= FULL * self._full_rate:
            self._full_rate, self._full_count = self._rate.value, 0
            return
        self._full_count += 1
        self._is_pipe_full = self._full_count >= FULL_ROUNDS

    def _drain(self, now_s: float, in_flight: int, next_s: float) -> None:
        if self.mode == STARTUP and self._is_pipe_full:
            self.mode = DRAIN
        if self.mode == DRAIN and self._in_flight_at_departure(
            in_flight, now_s, next_s
        ) <= self._target_in_flight(1.0):
            self._probe_rate(now_s)

    def _probe_rate(self, now_s: float) -> None:
        self.mode = PROBE_RATE
        self._phase = len(CYCLE) - 1 - self._draw.randrange(len(CYCLE) - 1)
        self._next_phase(now_s)

    def _update_least(self, now_s: float, sample: Sample, in_flight: int) -> None:
        has_expired = now_s > self._least_at_s + LEAST_S
        if sample.round_trip_s >= 0 and (sample.round_trip_s < self._least_s or has_expired):
            self._least_s, self._least_at_s = sample.round_trip_s, now_s
        if has_expired and not self._is_idle_restart and self.mode != PROBE_ROUND_TRIP:
            self.mode = PROBE_ROUND_TRIP
            self._save_window()
            self._probe_until_s = 0.0
        if self.mode == PROBE_ROUND_TRIP:
            self._rates.limit(in_flight)
            if not self._probe_until_s and in_flight <= LEAST_PACKETS:
                self._probe_until_s, self._probed_round = now_s + PROBE_S, False
                self._round_ends = self._rates.delivered
            elif self._probe_until_s:
                self._probed_round = self._probed_round or self._is_round_start
                if self._probed_round:
                    self._end_probe(now_s)
        if sample.packets > 0:
            self._is_idle_restart = False

    def _end_probe(self, now_s: float) -> None:
        if not self._probe_until_s or now_s <= self._probe_until_s:
            return
        self._least_at_s = now_s
        self.window = max(self.window, self._prior_window)
        if self._is_pipe_full:
            self._probe_rate(now_s)
        else:
            self.mode = STARTUP

    def _set_gains(self) -> None:
        if self.mode == PROBE_RATE:
            self._pacing_gain = 1.0 if self._policer.rate else CYCLE[self._phase]
            self._window_gain = WINDOW_GAIN
        else:
            self._pacing_gain, self._window_gain = GAINS[self.mode]

    def _save_window(self) -> None:
        if not self._was_recovering and self.mode != PROBE_ROUND_TRIP:
            self._prior_window = self.window
        else:
            self._prior_window = max(self._prior_window, self.window)

    def _set_window(self, sample: Sample, in_flight: int, *, recovering: bool) -> None:
        acknowledged = sample.acknowledged
        if acknowledged:
            window = max(1.0, self.window - sample.lost) if sample.lost else self.window
            if recovering and not self._was_recovering:
                self._is_packet_conserving = True
                self._round_ends = self._rates.delivered
                window = float(in_flight + acknowledged)
            elif self._was_recovering and not recovering:
                window = max(window, self._prior_window)
                self._is_packet_conserving = False
            self._was_recovering = recovering
            if self._is_packet_conserving:
                self.window = max(window, float(in_flight + acknowledged))
            else:
                target = self._quantized(
                    self._bdp(self._bandwidth, self._window_gain) + self._extra_packets()
                )
                if self._is_pipe_full:
                    window = min(window + acknowledged, float(target))
                elif window < target or self._rates.delivered < INITIAL_WINDOW_PACKETS:
                    window += acknowledged
                self.window = max(window, float(LEAST_PACKETS))
        if self.mode == PROBE_ROUND_TRIP:
            self.window = min(self.window, float(LEAST_PACKETS))

    def _extra_packets(self) -> float:
        if not self._is_pipe_full:
            return 0.0
        return min(max(self._extra_acked), self._bandwidth * EXTRA_S)

    def shift(self, seconds: float) -> None:
        """Move recorded times back by `seconds`."""
        self._rates.shift(seconds)
        self._least_at_s -= seconds
        self._phase_s -= seconds
        self._epoch_s -= seconds
        self._policer.shift(seconds)
        if self._probe_until_s:
            self._probe_until_s -= seconds
