"""Selective repeat: only lost packets are resent, after a timeout, or at once when the receiver reports a hole."""

from __future__ import annotations

from testbed.comm.transport.datagram.recoveries.base import Feedback, Recovery, SentPackets
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator


class SelectiveRepeat(Recovery):
    """Resends each packet three round trips after it was sent (SDR-RDMA's SR, arXiv:2505.05366)."""

    def __init__(self, round_trips: RttEstimator) -> None:
        super().__init__(round_trips)
        self._waiting: dict[int, float] = {}  # missing packets, with their sending time

    def _on_hole(self, number: int, sending: SentPackets, feedback: Feedback) -> None:
        self._waiting.pop(number, None)
        self._waiting[number] = sending.sent_s

    @property
    def due_s(self) -> float:
        """See Recovery."""
        due_s = super().due_s
        waiting = self._waiting
        while waiting and self._has_come(next(iter(waiting))):
            del waiting[next(iter(waiting))]
        if waiting:
            due_s = min(due_s, next(iter(waiting.values())) + self.round_trips.rto_s)
        return due_s

    def on_timer(self, now_s: float) -> Feedback:
        """See Recovery."""
        rto_s, waiting = self.round_trips.rto_s, self._waiting
        feedback = super().on_timer(now_s)
        while waiting:
            number, sent_s = next(iter(waiting.items()))
            if sent_s + rto_s > now_s and not self._has_come(number):
                break
            del waiting[number]
            self._lose(number, feedback)
        return feedback


class Nack(Recovery):
    """Resends a packet after about one round trip, when a later packet has arrived and it has not."""

    def _on_hole(self, number: int, sending: SentPackets, feedback: Feedback) -> None:
        self._lose(number, feedback)
