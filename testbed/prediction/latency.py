"""How long requests took and what each waited for, from when operations began and ended: measured or by the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from testbed.prediction.time_breakdown import Spans
from testbed.spec.scale import Scale
from testbed.workload.plan import Computing, JobPlan, Message
from testbed.workload.plans import Mark
from testbed.workload.serving import Serving

T = TypeVar("T")


@dataclass(frozen=True)
class Parts:
    """Of a request's time, real seconds.

    batching: until its batch was closed, or sent again; queue: for cards that were busy. transfer: from when something
    was there to be sent until it had come, what waited for the same link included.
    """

    batching_s: float = 0.0
    queue_s: float = 0.0
    transfer_s: float = 0.0
    compute_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.batching_s + self.queue_s + self.transfer_s + self.compute_s


@dataclass(frozen=True)
class RequestTime:
    """Of a request: when it arrived, when its answer's first and last part came, and the parts of that time; real."""

    arrival_s: float
    first_s: float
    last_s: float
    parts: Parts

    @property
    def latency_s(self) -> float:
        """From its arrival, whether or not anybody had time for it then."""
        return self.last_s - self.arrival_s


def request_times(serving: Serving, spans: Spans, scale: Scale) -> list[RequestTime]:
    """Of every request that counts, in the order of arrival. spans: emulated, from the step's start."""
    walk = _Walk(serving.plan, spans)
    found = []
    for answer in serving.answers:
        first, last = answer.arrives[0], answer.arrives[-1]
        closed_s, queue_s, transfer_s, compute_s = walk.back_from(last)
        own = [scale.real_s(seconds) for seconds in (queue_s, transfer_s, compute_s)]
        for number in range(answer.batch.first, answer.batch.end):
            if number < serving.spec.not_counted:
                continue
            arrival_s = serving.arrivals_s[number]
            parts = Parts(max(0.0, scale.real_s(closed_s) - arrival_s), *own)
            first_s, last_s = (scale.real_s(spans[mark.rank][mark.number][1]) for mark in (first, last))
            found.append(RequestTime(arrival_s, first_s, last_s, parts))
    return found


def at_share(values: Sequence[T], share: float) -> T:
    """Which one so large a share does not exceed, by nearest rank. values: in order."""
    # 0.07 * 200 is a little more than 14
    return values[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


class _Walk:
    """From an answer back to its batch, always to what came last of what was waited for."""

    def __init__(self, plan: JobPlan, spans: Spans) -> None:
        self.plan, self.spans = plan, spans
        self.sends = {
            (rank, one.peer, one.tag): Mark(rank, number)
            for rank, own in enumerate(plan.ranks)
            for number, one in enumerate(own)
            if isinstance(one, Message) and one.sends
        }

    def _end_s(self, mark: Mark) -> float:
        return self.spans[mark.rank][mark.number][1]

    def _latest(self, mark: Mark) -> Mark:
        after = self.plan.ranks[mark.rank][mark.number].after
        return max((Mark(mark.rank, number) for number in after), key=self._end_s)

    def back_from(self, mark: Mark) -> tuple[float, float, float, float]:
        """When the batch was closed, and what was spent in queues, on links, computing since; emulated."""
        queue_s = transfer_s = compute_s = 0.0
        while True:
            operation = self.plan.ranks[mark.rank][mark.number]
            begin_s, end_s = self.spans[mark.rank][mark.number]
            if isinstance(operation, Computing):
                before = self._latest(mark)
                queue_s += begin_s - self._end_s(before)
                compute_s += end_s - begin_s
            elif isinstance(operation, Message):
                before = self._latest(self.sends[operation.peer, mark.rank, operation.tag])
                transfer_s += end_s - self._end_s(before)
            else:
                return end_s, queue_s, transfer_s, compute_s
            mark = before
