"""Closed forms: when a message of datagrams is whole at a path that loses packets, by how losses are mended.

Packets leave one after the other, each is lost by itself with one probability, windows hold nobody up; what is more
in them than the path holds stands in its queue. After SDR-RDMA
(arXiv:2505.05366), whose model has selective repeat as the latest of all packets' geometric delays, and erasure codes
that fall back on it; the forms here are our own, and tests hold them against the machines of `transport.datagram`.

- selective_repeat: a packet that is lost is sent again every three round trips. nack: every round trip.
- go_back_n: a lost packet costs a round trip of the line, one lost again a time-out; what was sent meanwhile is wasted.
- erasure, xor: as nack, with whole groups in place of packets, which fail where more is lost than their parity mends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

from testbed.comm.transport.datagram.rtt_estimator import MIN_RTO_S, RTO_ROUND_TRIPS
from testbed.net.paths.poisson import poisson_quantile, poisson_within

CODED = ("erasure", "xor")
TIMED = ("selective_repeat", "go_back_n")  # what time-outs mend, of what is lost at a message's end
_POINTS = 200  # of an integral over one period
_NEGLIGIBLE = 1e-7


@dataclass(frozen=True)
class RecoveryForm:
    """One message on an empty path.

    packets: of data; packet_s: of one on the path's slowest link; loss: chance that one is lost. data, parity: of a
    whole group of erasure codes. queued_s: what a packet waits in the path's queue as long as others follow it. whole_s
    and others count from the first packet's leaving to the last one's coming.
    """

    recovery: str
    packets: int
    packet_s: float
    round_trip_s: float
    loss: float
    data: int = 32
    parity: int = 8
    queued_s: float = 0.0

    @property
    def rto_s(self) -> float:
        """From a packet's leaving of which nothing is heard until it is sent again, behind which the queue is empty."""
        return max(RTO_ROUND_TRIPS * (self.round_trip_s + self.queued_s) - self.queued_s, MIN_RTO_S)

    @property
    def back_s(self) -> float:
        """What going back for a packet costs: until it is sent again, and has waited behind what is thrown away."""
        return self.round_trip_s + self.queued_s + self.packet_s

    @property
    def lossless_s(self) -> float:
        """Without a loss; parity's packets go in between, those of the last group need not be waited for."""
        return self._leave_s + self.round_trip_s / 2

    @cached_property
    def _groups(self) -> int:
        return math.ceil(self.packets / self.data)

    @property
    def _last(self) -> int:
        """Packets of data in the last group, which is shorter."""
        return self.packets - (self._groups - 1) * self.data

    @property
    def _leave_s(self) -> float:
        if self.recovery not in CODED:
            return self.packets * self.packet_s
        return (self.packets + (self._groups - 1) * self.parity) * self.packet_s

    def group_fails(self, data: int) -> float:
        """Chance that a group of so many packets of data cannot be had from what comes of it."""
        p, parity = self.loss, math.ceil(data * self.parity / self.data)
        if self.recovery == "xor":
            good = 1.0
            for own in range(parity):
                members = len(range(own, data, parity)) + 1
                good *= (1 - p) ** members + members * p * (1 - p) ** (members - 1)
            return 1 - good
        # what fails is never all parity alone: more than `parity` are lost, so some of the data
        return sum(_binomial(data + parity, lost, p) for lost in range(parity + 1, data + parity + 1))

    @cached_property
    def fails_again(self) -> float:
        """Chance that a whole group that has failed does once more, when what it lacks of data has been sent again.

        Of that as much has to come as parity does not stand for; of erasure codes' lost packets data has its share.
        """
        p, fails, again = self.loss, 0.0, 0.0
        if self.recovery == "xor":
            size = math.ceil(self.data / self.parity) + 1  # of a class, with its parity
            for lost in range(2, size + 1):
                chance, parity = _binomial(size, lost, p), lost / size
                whole = (1 - p) ** (lost - 1)
                mendable = (1 - p) ** lost + lost * p * (1 - p) ** (lost - 1)
                fails, again = fails + chance, again + chance * (1 - parity * whole - (1 - parity) * mendable)
        else:
            for lost in range(self.parity + 1, self.data + self.parity + 1):
                chance, sent = (
                    _binomial(self.data + self.parity, lost, p),
                    lost - lost * self.parity // (self.data + self.parity),
                )
                few = sum(_binomial(sent, came, 1 - p) for came in range(lost - self.parity))
                fails, again = fails + chance, again + chance * few
        return again / fails if fails else 0.0

    def chance(self, within_s: float) -> float:
        """That it is whole so long after its first packet left."""
        left_s = within_s - self.round_trip_s / 2
        if left_s < self._leave_s * (1 - 1e-12):
            return 0.0
        if self.recovery == "go_back_n":
            return self._chance_back(left_s)
        if self.recovery in CODED:
            return self._chance_coded(left_s)

        def failing(times: int) -> float:
            return self.loss**times

        packet_s = self.packet_s
        if self.recovery == "selective_repeat":
            return _latest(self.packets, packet_s, left_s, self.rto_s, failing)
        # nothing comes behind the last packet that tells of its loss
        last = 1 - failing(1 + math.floor((left_s - self._leave_s) / self.rto_s + 1e-9))
        before = self.packets - 1
        return last * _latest(before, packet_s, left_s - packet_s, self.round_trip_s + packet_s, failing)

    def _chance_coded(self, left_s: float) -> float:
        whole, last = self.group_fails(self.data), self.group_fails(self._last)
        group_s = (self.data + self.parity) * self.packet_s
        again = self.fails_again

        def failing(first: float) -> Callable[[int], float]:
            return lambda times: first * again ** (times - 1)

        spare_s = left_s - self._leave_s
        # the last group's parity tells of its loss; where that is lost, too, a time-out does
        found = 1 - failing(last)(1 + math.floor(max(0.0, spare_s) / (self.round_trip_s + group_s) + 1e-9))
        before = self._groups - 1
        period_s = self.round_trip_s + self.packet_s
        return found * _latest(before, group_s, left_s - self._last * self.packet_s, period_s, failing(whole))

    def _chance_back(self, left_s: float) -> float:
        """By how many losses there may have been: each costs a round trip."""
        most = math.floor((left_s - self._leave_s) / self.back_s + 1e-9)
        mean = self.packets * self.loss / (1 - self.loss)
        return poisson_within(most, mean)

    @cached_property
    def mean_s(self) -> float:
        """On average."""
        if self.recovery == "go_back_n":
            p, costs_s = self.loss, self.back_s
            once_s = p * (costs_s + p / (1 - p) * self.rto_s)
            last_s = p * (self.rto_s - costs_s)
            return self.lossless_s + self.packets * once_s + last_s
        late_s, at_s = 0.0, self.lossless_s
        step_s = self.round_trip_s / _POINTS
        before = 1 - self.chance(at_s)
        while before > _NEGLIGIBLE:
            after = 1 - self.chance(at_s + step_s)
            late_s += (before + after) / 2 * step_s
            at_s, before = at_s + step_s, after
        return self.lossless_s + late_s

    def quantile_s(self, share: float) -> float:
        """What so large a share of messages do not exceed."""
        low_s = high_s = self.lossless_s * (1 + 1e-9)
        while self.chance(high_s) < share:
            low_s, high_s = high_s, high_s + max(self.round_trip_s, high_s - self.lossless_s)
        for _ in range(60):
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if self.chance(middle_s) >= share else (middle_s, high_s)
        return high_s


@dataclass(frozen=True)
class LossyDatagrams:
    """As `losses.Lossy`, of a pair that sends datagrams: `RecoveryForm`, as the model of a step asks for it.

    path_rate: bytes per second of the path. most_packets: of a window that reacts to losses; infinite for one that does
    not. late: whether losses are counted that make messages late. What mending takes on average is told as one time,
    and how often that is. timeout_s: of go-back-N; None: by the round trip. blind_packets: up to so many go by after it
    went back before word of one comes, and a loss among them is left to the time-out. standing_bytes: in the path's
    queue while a message goes by that is longer than what the path holds. factor: to all times of mending, by
    calibration.
    """

    recovery: str
    loss: float
    rtt_s: float
    path_rate: float
    packet_bytes: float
    data: int = 32
    parity: int = 8
    most_packets: float = math.inf
    late: bool = True
    timeout_s: float | None = None
    blind_packets: int = 0
    standing_bytes: float = 0.0
    factor: float = 1.0

    @property
    def begins(self) -> bool:
        """Its windows are what they are on average."""
        return False

    @property
    def mended_s(self) -> float:
        """Until what was lost has come after all."""
        return self.factor * self._mended_s

    @property
    def _mended_s(self) -> float:
        if self.timeout_s is not None:
            return self.timeout_s
        if self.recovery not in TIMED:
            return self.rtt_s
        queued_s = self.standing_bytes / self.path_rate
        return RTO_ROUND_TRIPS * (self.rtt_s + queued_s) - queued_s

    def form(self, packets: int, followed: float) -> RecoveryForm:
        """Of a message, so large a share of which is followed by a round trip's packets."""
        queued_s = followed * self.standing_bytes / self.path_rate
        packet_s = self.packet_bytes / self.path_rate
        return RecoveryForm(
            self.recovery, packets, packet_s, self.rtt_s, self.loss, self.data, self.parity, queued_s
        )

    def _followed(self, packets: int, busy_s: float) -> float:
        """In sixteenths: what is lost in the last round trip of all that a pair sends finds an empty queue.

        What follows a message is not known when it begins: of those in a row as much does on average as is ahead.
        """
        whole_s = packets * self.packet_bytes / self.path_rate + busy_s
        return round(16 * max(0.0, 1 - self.rtt_s / whole_s)) / 16

    def least_s(self, size_bytes: float, busy_s: float = 0.0, draw: Random | None = None) -> float:
        """What a message takes to leave: by the window, and by what is sent again.

        draw: says how often go-back-N has to; None: as often as on average.
        """
        took_s = size_bytes / self.path_rate
        packets = math.ceil(size_bytes / self.packet_bytes)
        if self.recovery == "go_back_n" and packets:
            once_s = (
                self.form(packets, self._followed(packets, busy_s)).back_s + self.unheard * self._mended_s
            )
            times = packets * self.loss
            if draw is not None:
                times = poisson_quantile(times, draw.random())
            took_s += self.factor * times * once_s
        elif self.recovery not in CODED:
            took_s /= 1 - self.loss
        window_bytes = self.most_packets * self.packet_bytes
        at_once = min(size_bytes, window_bytes)
        return max(took_s, at_once / self.path_rate + (size_bytes - at_once) / window_bytes * self.rtt_s)

    @property
    def unheard(self) -> float:
        """Of go-back-N's losses those that a time-out tells of, as a share."""
        before = self.loss * self.blind_packets
        # the first word comes after any number of packets up to the most, each as likely
        blind = 1 - -math.expm1(-before) / before if before else 0.0
        return blind + (1 - blind) * self.loss / (1 - self.loss)

    def late_chance(self, size_bytes: float, busy_s: float = 0.0) -> float:
        """How often a message ends later by `mended_s`, so that it does by what `RecoveryForm` says on average."""
        packets = max(1, math.ceil(size_bytes / self.packet_bytes))
        if not self.late:
            return 0.0
        if self.recovery == "go_back_n":
            return self.loss  # of its last packet, behind which nothing comes
        return min(1.0, _late_s(self.form(packets, self._followed(packets, busy_s))) / self._mended_s)


@lru_cache(maxsize=10_000)
def _late_s(form: RecoveryForm) -> float:
    return form.mean_s - form.lossless_s


def _latest(
    count: int, apart_s: float, left_s: float, period_s: float, failing: Callable[[int], float]
) -> float:
    """Chance that all of `count` things have come, which are tried first `apart_s` apart and again each period.

    left_s: since the first was; failing: chance that so many tries of one fail.
    """
    if count <= 0:
        return 1.0
    logarithm, counted, times = 0.0, 0, 0
    # of those tried last, which had one try only, to the first
    while counted < count:
        times += 1
        # the i-th, from 0, has left at (i + 1) x apart, and has had `times` tries from then on
        above_s = left_s - times * period_s
        upto = count - min(count, max(0, math.floor(above_s / apart_s + 1e-9)))
        here = upto - counted
        fails = failing(times)
        if fails >= 1:
            return 0.0
        if here > 0:
            logarithm += here * math.log1p(-fails)
            counted = upto
        if fails < 1e-18:
            break
    return math.exp(logarithm)


def _binomial(count: int, lost: int, p: float) -> float:
    return math.comb(count, lost) * p**lost * (1 - p) ** (count - lost)
