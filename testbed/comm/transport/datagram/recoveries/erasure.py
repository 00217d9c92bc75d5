"""Erasure coding: parity goes with each group of packets, and only what that does not mend is sent again.

After SDR-RDMA (arXiv:2505.05366), whose EC is 32 packets of data and 8 of parity, with selective repeat behind it.
A group ends with its message, its parity in proportion, one packet at least.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from testbed.comm.transport.datagram.packets import Ack
from testbed.comm.transport.datagram.recoveries.base import Feedback, Item, Parity, Recovery, SentPackets
from testbed.comm.transport.datagram.rtt_estimator import RttEstimator

DATA, PARITY = 32, 8


@dataclass
class _Group:
    """first: its first packet. unsent: packets that were never sent yet. last: by path, the last serial of its own."""

    first: int
    data: int
    parity: int
    unsent: int
    last: dict[int, int] = field(default_factory=dict)


class Erasure(Recovery):
    """data, parity: packets of a whole group."""

    code: ClassVar[str | None] = "mds"

    def __init__(self, round_trips: RttEstimator, data: int = DATA, parity: int = PARITY) -> None:
        super().__init__(round_trips)
        self.data, self.parity = data, parity
        self._open: deque[_Group] = deque()  # not sent entirely
        self._closed: deque[_Group] = deque()  # sent, and perhaps still under way
        self._parities: deque[Parity] = deque()  # to send next

    def extend(self, count: int) -> None:
        """See Recovery: the packets of one message, so that groups end with it."""
        for first in range(self.end, self.end + count, self.data):
            data = min(self.data, self.end + count - first)
            parity = math.ceil(data * self.parity / self.data)
            self._open.append(_Group(first, data, parity, data + parity))
        super().extend(count)

    @property
    def pending(self) -> int:
        """See Recovery."""
        return len(self._lost) + sum(own.unsent for own in self._open)

    def sent_below(self, end: int) -> bool:
        """See Recovery."""
        return end <= (self._open[0].first if self._open else self.end)

    def items(self, most: int) -> list[Item]:
        """See Recovery: a group's parity follows on its data."""
        found: list[Item] = list(self._again(most))
        found += list(self._parities)[: most - len(found)]
        if len(found) < most and self._open:
            own = self._open[0]
            end = min(own.first + own.data, self._limit, self.next + most - len(found))
            found += range(self.next, end)
        return found

    def fresh(self, most: int) -> range:
        """See Recovery: of one group."""
        if self._parities or not self._open:
            return range(0)
        own = self._open[0]
        found = super().fresh(most)
        return range(found.start, min(found.stop, own.first + own.data))

    def sent(self, item: Item, path: int, now_s: float) -> int:
        """See Recovery."""
        serial = super().sent(item, path, now_s)
        if isinstance(item, Parity):
            self._parities.remove(item)
            self._first_sent(1, path, serial)
        return serial

    def sent_run(self, numbers: range, path: int, now_s: float) -> int:
        """See Recovery: packets of one group, all sent before or none."""
        first_time = numbers.start >= self._sent_end
        serial = super().sent_run(numbers, path, now_s)
        if first_time:
            own = self._open[0]
            if numbers.stop == own.first + own.data:
                self._parities += [Parity(own.first, own.data, i, own.parity) for i in range(own.parity)]
            self._first_sent(len(numbers), path, serial + len(numbers) - 1)
        return serial

    def _first_sent(self, count: int, path: int, last: int) -> None:
        """So many packets of the group that is being sent have left, the last with this serial."""
        own = self._open[0]
        own.last[path] = last
        own.unsent -= count
        if not own.unsent:
            self._closed.append(self._open.popleft())

    def _passed(self, number: int, sending: SentPackets, news: Feedback) -> None:
        if number < self._under_code_from:
            self._lose(number, news)

    @property
    def _under_code_from(self) -> int:
        """Packets below have been given up by their parity: they go for themselves."""
        first = self._closed or self._open
        return first[0].first if first else self.end

    def _after_ack(self, ack: Ack, news: Feedback, now_s: float) -> None:
        self._give_up_ended(news)

    def on_timer(self, now_s: float) -> Feedback:
        """See Recovery."""
        news = super().on_timer(now_s)
        self._give_up_ended(news)
        return news

    def _give_up_ended(self, news: Feedback) -> None:
        """Groups of which nothing is under way any more; of a path that is left alone nothing later is heard."""
        while self._closed and all(
            self.paths[path].settled > serial for path, serial in self._closed[0].last.items()
        ):
            self._give_up(self._closed.popleft(), news)

    def _give_up(self, group: _Group, news: Feedback) -> None:
        """All of a group is through, or lost: its parity was not enough for what is missing."""
        for number in range(max(group.first, self.low), group.first + group.data):
            if not self._has(number) and not self._under_way_still(number):
                self._lose(number, news)

    def _under_way_still(self, number: int) -> bool:
        return any(
            isinstance(sending.item, int) and sending.item <= number < sending.item + sending.packets
            for path in self.paths.values()
            for sending in path.flight
        )

    def _parity_late(self, parity: Parity, news: Feedback) -> None:
        while self._closed and self._closed[0].first <= parity.first:
            self._give_up(self._closed.popleft(), news)


class XorParity(Erasure):
    """As `Erasure` with the simplest of codes, which mends one loss in each class of a group."""

    code: ClassVar[str | None] = "xor"
