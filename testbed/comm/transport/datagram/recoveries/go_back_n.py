"""Go-back-N, as in RoCE: the receiver drops everything out of order and sends one NAK, and the sender resumes there."""

from __future__ import annotations

import math

from testbed.comm.transport.datagram.packets import Ack
from testbed.comm.transport.datagram.recoveries.base import Feedback, Recovery, SentPackets
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator


class GoBackN(Recovery):
    """Resends everything after a hole. If that is lost, too, a timeout is needed: each hole causes only one NAK."""

    in_order = True

    def __init__(self, round_trips: RttEstimator) -> None:
        super().__init__(round_trips)
        self._progress_s = -math.inf
        self._went_back_to = -1

    def on_run_sent(self, numbers: range, path: int, now_s: float) -> int:
        """See Recovery."""
        if self.low == self._sent_end:
            self._progress_s = now_s
        return super().on_run_sent(numbers, path, now_s)

    def _on_hole(self, number: int, sending: SentPackets, feedback: Feedback) -> None:
        pass  # the receiver drops it, or reports a hole by a NAK

    def _after_ack(self, ack: Ack, feedback: Feedback, now_s: float) -> None:
        if feedback.acked:
            self._progress_s = now_s
        if ack.nak and ack.low == self.low and self._went_back_to != self.low:
            self._go_back(feedback, now_s)
            feedback.lost += 1

    def _go_back(self, feedback: Feedback, now_s: float) -> None:
        self._went_back_to = self.next = self.low
        self._progress_s = now_s

    @property
    def due_s(self) -> float:
        """See Recovery. The timeout runs from the last progress."""
        return self._progress_s + self.round_trips.rto_s if self.low < self._sent_end else math.inf

    def on_timer(self, now_s: float) -> Feedback:
        """See Recovery."""
        feedback = Feedback()
        if self.due_s <= now_s:
            feedback.timed_out = self.next - self.low
            feedback.lost = 1
            for path in self.paths.values():
                path.flight.clear()
                path.settled = path.serial
            self.round_trips.doublings += 1
            self._go_back(feedback, now_s)
        return feedback
