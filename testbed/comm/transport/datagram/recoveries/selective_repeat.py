"""Selective repeat: only what is lost is sent again, after a time-out, or at once when the receiver tells of a hole."""

from __future__ import annotations

from testbed.comm.transport.datagram.recoveries.base import Feedback, Recovery, SentPackets
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator


class SelectiveRepeat(Recovery):
    """Each packet by itself is sent again three round trips after it was sent (SDR-RDMA's SR, arXiv:2505.05366)."""

    def __init__(self, round_trips: RttEstimator) -> None:
        super().__init__(round_trips)
        self._waiting: dict[int, float] = {}  # packets that have not come, when they were sent

    def _passed(self, number: int, sending: SentPackets, news: Feedback) -> None:
        self._waiting.pop(number, None)
        self._waiting[number] = sending.sent_s

    @property
    def due_s(self) -> float:
        """See Recovery."""
        due_s = super().due_s
        waiting = self._waiting
        while waiting and self._has(next(iter(waiting))):
            del waiting[next(iter(waiting))]
        if waiting:
            due_s = min(due_s, next(iter(waiting.values())) + self.round_trips.rto_s)
        return due_s

    def on_timer(self, now_s: float) -> Feedback:
        """See Recovery."""
        rto_s, waiting = self.round_trips.rto_s, self._waiting
        news = super().on_timer(now_s)
        while waiting:
            number, sent_s = next(iter(waiting.items()))
            if sent_s + rto_s > now_s and not self._has(number):
                break
            del waiting[number]
            self._lose(number, news)
        return news


class Nack(Recovery):
    """A packet is sent again when something that was sent later has come and it has not: after one round trip."""

    def _passed(self, number: int, sending: SentPackets, news: Feedback) -> None:
        self._lose(number, news)
