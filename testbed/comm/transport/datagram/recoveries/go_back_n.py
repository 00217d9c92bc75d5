"""Go-back-N, as RoCE has it: the receiver drops what is not next and says so once, the sender goes on from there."""

from __future__ import annotations

import math

from testbed.comm.transport.datagram.packets import Ack
from testbed.comm.transport.datagram.recoveries.base import Feedback, Recovery, SentPackets
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator


class GoBackN(Recovery):
    """All behind a hole is sent again. What is lost again is found by a time-out: a hole is told of only once."""

    in_order = True

    def __init__(self, round_trips: RttEstimator) -> None:
        super().__init__(round_trips)
        self._progress_s = -math.inf
        self._went_back_to = -1

    def sent_run(self, numbers: range, path: int, now_s: float) -> int:
        """See Recovery."""
        if self.low == self._sent_end:
            self._progress_s = now_s
        return super().sent_run(numbers, path, now_s)

    def _passed(self, number: int, sending: SentPackets, news: Feedback) -> None:
        pass  # it is dropped, or the receiver tells of a hole

    def _after_ack(self, ack: Ack, news: Feedback, now_s: float) -> None:
        if news.acked:
            self._progress_s = now_s
        if ack.refuses and ack.low == self.low and self._went_back_to != self.low:
            self._go_back(news, now_s)
            news.lost += 1

    def _go_back(self, news: Feedback, now_s: float) -> None:
        self._went_back_to = self.next = self.low
        self._progress_s = now_s

    @property
    def due_s(self) -> float:
        """See Recovery: the time-out runs from the last progress."""
        return self._progress_s + self.round_trips.rto_s if self.low < self._sent_end else math.inf

    def on_timer(self, now_s: float) -> Feedback:
        """See Recovery."""
        news = Feedback()
        if self.due_s <= now_s:
            news.late = self.next - self.low
            news.lost = 1
            for path in self.paths.values():
                path.flight.clear()
                path.settled = path.serial
            self.round_trips.doublings += 1
            self._go_back(news, now_s)
        return news
