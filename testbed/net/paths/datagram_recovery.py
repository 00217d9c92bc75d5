"""Closed forms of the completion time of a datagram message over a lossy path, for each loss recovery scheme.

Packets leave back to back and are lost independently with the same probability. Windows do not limit the rate; the part
of a window beyond the path's capacity is in its queue. The approach follows SDR-RDMA (arXiv:2505.05366), which models
selective repeat as the maximum of all packets' geometric delays, and erasure codes that fall back on it. The forms here
are our own; tests compare them with the implementation in `transport.datagram`.

- selective_repeat: a lost packet is retransmitted every three round trips. nack: every round trip.
- go_back_n: a loss costs a round trip at the line rate, a repeated loss a timeout; packets sent meanwhile are wasted.
- erasure, xor: like nack, with groups in place of packets; a group fails if parity cannot recover its losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random

from testbed.comm.transport.datagram.rtt_estimator import MIN_RTO_S, RTO_ROUND_TRIPS
from testbed.net.paths.poisson import poisson_cdf, poisson_quantile

CODED_RECOVERIES = ("erasure", "xor")
# schemes that recover a message's last packets by timeouts
TIMEOUT_RECOVERIES = ("selective_repeat", "go_back_n")
_POINTS = 200  # integration points per round trip
_NEGLIGIBLE = 1e-7


@dataclass(frozen=True)
class RecoveryForm:
    """The completion time of one message on an otherwise empty path, from its first packet sent to its last received.

    Attributes:
        recovery: The recovery scheme.
        packets: The number of data packets.
        packet_s: The seconds for a packet on the path's slowest link.
        round_trip_s: The round trip in seconds.
        loss: The loss probability of a packet.
        data: Data packets in a full group of an erasure code.
        parity: Parity packets in a full group.
        queued_s: A packet's waiting time in the path's queue while others follow it.
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
        """The seconds from sending a packet to its retransmission by timeout, when the queue behind it is empty."""
        return max(RTO_ROUND_TRIPS * (self.round_trip_s + self.queued_s) - self.queued_s, MIN_RTO_S)

    @property
    def back_s(self) -> float:
        """The cost of going back to a packet, including its wait behind packets that are discarded."""
        return self.round_trip_s + self.queued_s + self.packet_s

    @property
    def lossless_s(self) -> float:
        """The time without losses; parity packets are interleaved, and a message does not wait for the last group's."""
        return self._leave_s + self.round_trip_s / 2

    @cached_property
    def _groups(self) -> int:
        return math.ceil(self.packets / self.data)

    @property
    def _last_group(self) -> int:
        """The data packets in the last group, which may be shorter."""
        return self.packets - (self._groups - 1) * self.data

    @property
    def _leave_s(self) -> float:
        if self.recovery not in CODED_RECOVERIES:
            return self.packets * self.packet_s
        return (self.packets + (self._groups - 1) * self.parity) * self.packet_s

    def group_failure_probability(self, data: int) -> float:
        """Return the probability that a group with `data` data packets cannot be decoded."""
        p, parity = self.loss, math.ceil(data * self.parity / self.data)
        if self.recovery == "xor":
            decodable = 1.0
            for index in range(parity):
                members = len(range(index, data, parity)) + 1
                decodable *= (1 - p) ** members + members * p * (1 - p) ** (members - 1)
            return 1 - decodable
        # A failed group always lacks data: more than `parity` packets are lost.
        return sum(_binomial(data + parity, lost, p) for lost in range(parity + 1, data + parity + 1))

    @cached_property
    def group_refailure_probability(self) -> float:
        """The probability that a full group that has failed fails again after its missing data is retransmitted.

        Enough of these packets must arrive to make up for the losses that parity cannot replace. The share of data
        among lost packets is assumed to be that among all packets.
        """
        p, fails, again = self.loss, 0.0, 0.0
        if self.recovery == "xor":
            size = math.ceil(self.data / self.parity) + 1  # packets of an XOR class, including parity
            for lost in range(2, size + 1):
                chance, parity = _binomial(size, lost, p), lost / size
                all_arrive = (1 - p) ** (lost - 1)
                decodable = (1 - p) ** lost + lost * p * (1 - p) ** (lost - 1)
                fails += chance
                again += chance * (1 - parity * all_arrive - (1 - parity) * decodable)
        else:
            for lost in range(self.parity + 1, self.data + self.parity + 1):
                chance, sent = (
                    _binomial(self.data + self.parity, lost, p),
                    lost - lost * self.parity // (self.data + self.parity),
                )
                too_few = sum(_binomial(sent, arrived, 1 - p) for arrived in range(lost - self.parity))
                fails, again = fails + chance, again + chance * too_few
        return again / fails if fails else 0.0

    def probability(self, within_s: float) -> float:
        """Return the probability that the message is complete `within_s` seconds after its first packet was sent."""
        left_s = within_s - self.round_trip_s / 2
        if left_s < self._leave_s * (1 - 1e-12):
            return 0.0
        if self.recovery == "go_back_n":
            return self._probability_go_back_n(left_s)
        if self.recovery in CODED_RECOVERIES:
            return self._probability_coded(left_s)

        def all_lost(times: int) -> float:
            return self.loss**times

        packet_s = self.packet_s
        if self.recovery == "selective_repeat":
            return _all_arrived_probability(self.packets, packet_s, left_s, self.rto_s, all_lost)
        # No later packet reveals the loss of the last one.
        last = 1 - all_lost(1 + math.floor((left_s - self._leave_s) / self.rto_s + 1e-9))
        before = self.packets - 1
        return last * _all_arrived_probability(
            before, packet_s, left_s - packet_s, self.round_trip_s + packet_s, all_lost
        )

    def _probability_coded(self, left_s: float) -> float:
        full = self.group_failure_probability(self.data)
        last = self.group_failure_probability(self._last_group)
        group_s = (self.data + self.parity) * self.packet_s
        again = self.group_refailure_probability

        def failing(first: float) -> Callable[[int], float]:
            return lambda times: first * again ** (times - 1)

        spare_s = left_s - self._leave_s
        # The last group's parity reveals its losses; if that is lost, too, a timeout does.
        found = 1 - failing(last)(1 + math.floor(max(0.0, spare_s) / (self.round_trip_s + group_s) + 1e-9))
        before = self._groups - 1
        period_s = self.round_trip_s + self.packet_s
        return found * _all_arrived_probability(
            before, group_s, left_s - self._last_group * self.packet_s, period_s, failing(full)
        )

    def _probability_go_back_n(self, left_s: float) -> float:
        """Return the probability that few enough losses occurred, since each costs a round trip."""
        most = math.floor((left_s - self._leave_s) / self.back_s + 1e-9)
        mean = self.packets * self.loss / (1 - self.loss)
        return poisson_cdf(most, mean)

    @cached_property
    def mean_s(self) -> float:
        """The mean completion time in seconds."""
        if self.recovery == "go_back_n":
            p, costs_s = self.loss, self.back_s
            once_s = p * (costs_s + p / (1 - p) * self.rto_s)
            last_s = p * (self.rto_s - costs_s)
            return self.lossless_s + self.packets * once_s + last_s
        late_s, at_s = 0.0, self.lossless_s
        step_s = self.round_trip_s / _POINTS
        before = 1 - self.probability(at_s)
        while before > _NEGLIGIBLE:
            after = 1 - self.probability(at_s + step_s)
            late_s += (before + after) / 2 * step_s
            at_s, before = at_s + step_s, after
        return self.lossless_s + late_s

    def quantile_s(self, share: float) -> float:
        """Return the completion time that this share of messages does not exceed, in seconds."""
        low_s = high_s = self.lossless_s * (1 + 1e-9)
        while self.probability(high_s) < share:
            low_s, high_s = high_s, high_s + max(self.round_trip_s, high_s - self.lossless_s)
        for _ in range(60):
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if self.probability(middle_s) >= share else (middle_s, high_s)
        return high_s


@dataclass(frozen=True)
class LossyDatagrams:
    """The counterpart of `losses.LossyConnection` for datagrams, based on `RecoveryForm`.

    The mean recovery time is expressed as one recovery time and the probability that it occurs.

    Attributes:
        recovery: The recovery scheme.
        loss: The loss probability of a packet.
        rtt_s: The round trip in seconds.
        path_rate: The path's rate in bytes per second.
        packet_bytes: The payload of a full packet.
        data: Data packets in a full group of an erasure code.
        parity: Parity packets in a full group.
        most_packets: The window of a loss-based congestion control; infinite for others.
        late: Whether to count losses that make messages late.
        timeout_s: The timeout of go-back-N; None to derive it from the round trip.
        blind_packets: The maximum number of packets after go-back-N went back until an acknowledgement arrives; only
            the timeout recovers a loss among them.
        excess_window_bytes: The standing queue while a message longer than the path's capacity passes.
        factor: The calibrated factor for all recovery times.
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
    excess_window_bytes: float = 0.0
    factor: float = 1.0

    @property
    def simulates_window(self) -> bool:
        """False: windows are averages and never simulated."""
        return False

    @property
    def recovery_s(self) -> float:
        """The seconds from a packet's loss to the arrival of its retransmission."""
        return self.factor * self._recovery_s

    @property
    def _recovery_s(self) -> float:
        if self.timeout_s is not None:
            return self.timeout_s
        if self.recovery not in TIMEOUT_RECOVERIES:
            return self.rtt_s
        queued_s = self.excess_window_bytes / self.path_rate
        return RTO_ROUND_TRIPS * (self.rtt_s + queued_s) - queued_s

    def form(self, packets: int, followed: float) -> RecoveryForm:
        """Return the closed form of a message; `followed` is the share of its packets with others behind them."""
        queued_s = followed * self.excess_window_bytes / self.path_rate
        packet_s = self.packet_bytes / self.path_rate
        return RecoveryForm(
            self.recovery, packets, packet_s, self.rtt_s, self.loss, self.data, self.parity, queued_s
        )

    def _followed(self, packets: int, busy_s: float) -> float:
        """Return the share of packets with others behind them, in sixteenths.

        Losses in the last round trip of what a pair sends find an empty queue. The traffic after a message is not known
        when it starts; on average it is as long as the traffic before it.
        """
        total_s = packets * self.packet_bytes / self.path_rate + busy_s
        return round(16 * max(0.0, 1 - self.rtt_s / total_s)) / 16

    def least_s(self, size_bytes: float, busy_s: float = 0.0, draw: Random | None = None) -> float:
        """Return the seconds to send a message, limited by the window and including retransmissions.

        Args:
            size_bytes: The message's size.
            busy_s: The time that the pair still needs for earlier messages.
            draw: The random generator for the number of go-backs; None for the average.
        """
        took_s = size_bytes / self.path_rate
        packets = math.ceil(size_bytes / self.packet_bytes)
        if self.recovery == "go_back_n" and packets:
            once_s = (
                self.form(packets, self._followed(packets, busy_s)).back_s
                + self.timeout_share * self._recovery_s
            )
            times = packets * self.loss
            if draw is not None:
                times = poisson_quantile(times, draw.random())
            took_s += self.factor * times * once_s
        elif self.recovery not in CODED_RECOVERIES:
            took_s /= 1 - self.loss
        window_bytes = self.most_packets * self.packet_bytes
        at_once = min(size_bytes, window_bytes)
        return max(took_s, at_once / self.path_rate + (size_bytes - at_once) / window_bytes * self.rtt_s)

    @property
    def timeout_share(self) -> float:
        """The share of go-back-N's losses that only a timeout reveals."""
        expected = self.loss * self.blind_packets
        # the number of packets before the first acknowledgement is uniform up to the maximum
        blind = 1 - -math.expm1(-expected) / expected if expected else 0.0
        return blind + (1 - blind) * self.loss / (1 - self.loss)

    def late_probability(self, size_bytes: float, busy_s: float = 0.0) -> float:
        """Return the probability that a message is late by `recovery_s`, so that the mean is that of `RecoveryForm`."""
        packets = max(1, math.ceil(size_bytes / self.packet_bytes))
        if not self.late:
            return 0.0
        if self.recovery == "go_back_n":
            return self.loss  # that of the last packet, since no later packet reveals its loss
        return min(1.0, _mean_late_s(self.form(packets, self._followed(packets, busy_s))) / self._recovery_s)


@lru_cache(maxsize=10_000)
def _mean_late_s(form: RecoveryForm) -> float:
    return form.mean_s - form.lossless_s


def _all_arrived_probability(
    count: int, apart_s: float, left_s: float, period_s: float, failing: Callable[[int], float]
) -> float:
    """Return the probability that all of `count` items have arrived.

    Args:
        count: The number of items, first sent `apart_s` apart and then once per period.
        apart_s: The interval between items.
        left_s: The time since the first item was sent.
        period_s: The retransmission period.
        failing: The probability that this many transmissions of an item all fail.
    """
    if count <= 0:
        return 1.0
    logarithm, counted, times = 0.0, 0, 0
    # from the last items, which had only one transmission, to the first
    while counted < count:
        times += 1
        # item i, from 0, was first sent at (i + 1) x apart_s, and has had `times` transmissions since
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
